//! A server that runs, with the configuration in force: what it was started with, and what it can be changed to.
//!
//! A reload is all or nothing: the file is read and everything checked, new exports are opened, and only then the server
//! is given all of it (`dhow_server::reload`). What clients were promised, or what is part of handles and sockets, cannot
//! be changed while the server runs; a configuration that would is refused, and the old one stays in force.

use crate::config::Config;
use crate::exit::{Failure, Outcome, warn};
use crate::export::Export;
use crate::settings::{KEYS, Settings};
use dhow_local::{FsNumbers, HandleMode, Local, Options, Reflink};
use dhow_partner::ClientConnector;
use dhow_server::{ExportConfig, ExportOptions, NetMatch, Reload, Reloaded, ServerShared};
use dhow_sys::pool::AlignedPool;
use dhow_vfs::Backend;
use std::collections::HashMap;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;

/// Open files that a server asks the system for.
pub const OPEN_FILES: u64 = 1 << 20;

/// Settings that stay as they were at the start.
const FIXED: &[&str] = &[
    // Clients were told.
    "lease",
    "grace",
    "limits.max_io",
    "limits.cached_reply",
    "limits.operations_per_compound",
    // Memory that is shared out at the start.
    "limits.request_bytes",
    "copy.buffer",
    // What connections to sources are kept by.
    "copy.source_idle",
    "copy.source_connect",
    "copy.source_timeout",
    "copy.max_sources",
    "copy.bandwidth_total",
];

/// Opens exports.
pub struct Opener {
    /// The state directory.
    pub state: PathBuf,
    /// Numbers of filesystems, in it.
    pub numbers: Arc<dyn FsNumbers>,
    /// Buffers that exports share.
    pub buffers: AlignedPool,
}

impl Opener {
    /// Opens the directory of an export; notes what cannot be done with it.
    ///
    /// # Errors
    /// One line that names the export.
    pub fn open(&self, export: &Export, limited: &mut Limited) -> Outcome<Arc<dyn Backend>> {
        let in_state = |e: io::Error| Failure::failed(format!("state directory {}: {e}", self.state.display()));
        let mut options = Options::new(&export.dir);
        let own = self.state.join("exports").join(directory_name(&export.name));
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&own).map_err(in_state)?;
        options.state_dir = Some(own);
        options.numbers = self.numbers.clone();
        options.fsid = export.fsid;
        options.crossmnt = export.crossmnt;
        options.metadata_sync = export.metadata_sync;
        options.exclusive = export.exclusive;
        options.local_locks = export.local_locks;
        options.reflink = if export.reflink { Reflink::Auto } else { Reflink::Never };
        options.handles = HandleMode::Auto;
        options.buffers = self.buffers.clone();
        let backend = Local::open(options).map_err(|e| Failure::failed(format!("export {}: {e}", export.name)))?;
        limited.note(&export.name, &backend.report());
        Ok(Arc::new(backend))
    }
}

/// An export as the server takes it.
pub fn served(export: &Export, backend: Arc<dyn Backend>) -> ExportConfig {
    ExportConfig {
        path: export.name.clone(),
        backend,
        options: ExportOptions {
            read_only: export.read_only,
            squash: export.squash,
            anon_uid: export.anonuid,
            anon_gid: export.anongid,
            clients: export.clients.clone(),
            secure: export.secure,
            delegations: export.delegations,
        },
    }
}

/// Settings as the server takes them: within what the system allows, with what the binary plugs in.
///
/// # Errors
/// Settings that make no sense together.
pub fn fitted(mut settings: Settings) -> Outcome<Settings> {
    fit_descriptors(&mut settings, dhow_sys::proc::raise_nofile_limit(OPEN_FILES));
    settings.copy.inter.interfaces = Some(interfaces);
    let (call_timeout, connect_timeout) = (settings.copy.inter.source_timeout, settings.copy.inter.source_connect);
    let connector = ClientConnector { call_timeout, connect_timeout, ..ClientConnector::default() };
    settings.copy.inter.connector = Some(Arc::new(connector));
    match (settings.owner_names, &settings.ids.domain) {
        (true, None) => {
            return Err(Failure::usage(
                "ids.owners = \"names\" needs a domain: set ids.domain to what your clients use",
            ));
        }
        (true, Some(_)) => {}
        (false, _) => settings.ids.domain = None,
    }
    settings.ids.service = Some(Arc::new(crate::people::SystemPeople));
    for key in KEYS {
        tracing::debug!(setting = key.name, value = (key.shown)(&settings));
    }
    Ok(settings)
}

/// The configuration in force, and what is open by it.
pub struct Live {
    config: Config,
    opener: Opener,
    open: HashMap<String, Arc<dyn Backend>>,
    acts_as_users: bool,
}

impl Live {
    /// With what the server was started with.
    pub fn new(config: Config, opener: Opener, open: HashMap<String, Arc<dyn Backend>>, limited: &Limited) -> Self {
        Self { config, opener, open, acts_as_users: !limited.identity }
    }

    /// Whether the process has the privilege to act as the users of its clients; else all happens as its own user.
    pub fn acts_as_users(&self) -> bool {
        self.acts_as_users
    }

    /// Puts another configuration in force.
    ///
    /// # Errors
    /// One line; the old configuration stays in force then.
    pub async fn reload(&mut self, shared: &Arc<ServerShared>, new: Config) -> Outcome<Reloaded> {
        can_change(&self.config, &new).map_err(Failure::usage)?;
        crate::serve::check_log(new.log.as_deref())?;
        let settings = fitted(new.server.clone())?;
        let mut limited = Limited::default();
        let mut open = HashMap::new();
        for export in &new.exports {
            let backend = match self.open.get(&export.name) {
                Some(backend) => Arc::clone(backend),
                // Asks the filesystem, which may take its time.
                None => tokio::task::block_in_place(|| self.opener.open(export, &mut limited))?,
            };
            open.insert(export.name.clone(), backend);
        }
        let exports = new.exports.iter().filter_map(|e| Some(served(e, Arc::clone(open.get(&e.name)?)))).collect();
        let Settings { server, state, copy, ids, .. } = settings;
        let reload = Reload { exports, limits: server, state, copy, ids };
        let done = shared.reload(reload).await.map_err(Failure::usage)?;
        // It was checked with the rest.
        crate::serve::log_as(new.log.as_deref())?;
        limited.say();
        self.open = open;
        self.config = new;
        Ok(done)
    }
}

/// Whether `new` can be put in force while `old` is.
fn can_change(old: &Config, new: &Config) -> Result<(), String> {
    let fixed = |what: &str| Err(format!("`{what}` cannot be changed while the server runs; restart it for that"));
    if old.listen != new.listen {
        return fixed("listen");
    }
    if old.state_dir != new.state_dir {
        return fixed("state_dir");
    }
    for key in KEYS.iter().filter(|k| FIXED.contains(&k.name)) {
        if (key.shown)(&old.server) != (key.shown)(&new.server) {
            return fixed(key.name);
        }
    }
    for export in &new.exports {
        let Some(was) = old.exports.iter().find(|e| e.name == export.name) else { continue };
        let changed = [
            ("dir", was.dir != export.dir),
            ("fsid", was.fsid != export.fsid),
            ("crossmnt", was.crossmnt != export.crossmnt),
            ("metadata_sync", was.metadata_sync != export.metadata_sync),
            ("exclusive", was.exclusive != export.exclusive),
            ("local_locks", was.local_locks != export.local_locks),
            ("copy.reflink", was.reflink != export.reflink),
        ];
        if let Some((key, _)) = changed.iter().find(|c| c.1) {
            return fixed(key).map_err(|e| format!("export {}: {e}", export.name));
        }
    }
    Ok(())
}

/// Keeps limits on opens and connections within what `files` descriptors allow: an open file takes up to two, and some
/// must be left for looking names up. Otherwise one client could use all of them up (they are scarce in containers).
fn fit_descriptors(settings: &mut Settings, files: u64) {
    let files = usize::try_from(files).unwrap_or(usize::MAX);
    settings.state.opens = settings.state.opens.min(files / 3);
    // Each may hold a descriptor that watches for local writers.
    settings.state.delegations = settings.state.delegations.min((files / 8).max(1));
    settings.state.opens_per_client = settings.state.opens_per_client.min(files / 4);
    settings.server.connections = settings.server.connections.min((files / 8).max(1));
}

/// A name of a file for the name of an export: `/a/b` and `/a_b` stay different.
fn directory_name(export: &str) -> String {
    let mut name = String::from("root");
    for c in export.chars() {
        match c {
            '/' => name.push('+'),
            c if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') => name.push(c),
            c => name.push_str(&format!("%{:x}", u32::from(c))),
        }
    }
    name
}

/// What this process cannot do, told once for all exports.
#[derive(Default)]
pub struct Limited {
    identity: bool,
    handles: Vec<String>,
}

impl Limited {
    fn note(&mut self, export: &str, report: &dhow_local::Report) {
        self.identity |= !report.switches_identity;
        if !report.opens_handles {
            self.handles.push(export.to_owned());
        }
    }

    /// Says it on standard error.
    pub fn say(&self) {
        if self.identity {
            warn("without the privilege to act as other users, everything happens as the user who runs this server");
        }
        if !self.handles.is_empty() {
            warn(format!(
                "without the privilege to open files by handle, files of {} that were renamed behind the server's \
                 back are looked for first",
                self.handles.join(", ")
            ));
        }
    }
}

/// The addresses of this machine, for sources of copies that listen on all of them.
fn interfaces() -> Vec<NetMatch> {
    match dhow_sys::ifaddr::interface_addresses() {
        Ok(list) => list.into_iter().map(|(addr, bits)| NetMatch::new(addr, bits)).collect(),
        Err(e) => {
            tracing::warn!(error = %e, "cannot tell the addresses of the network interfaces");
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_descriptors_lower_the_limits() {
        let mut settings = Settings::default();
        fit_descriptors(&mut settings, 4096);
        assert!(settings.state.opens * 2 + settings.server.connections < 4096);
        assert!(settings.state.opens_per_client < settings.state.opens);
        let mut plenty = Settings::default();
        fit_descriptors(&mut plenty, u64::MAX);
        assert_eq!(plenty.state.opens, Settings::default().state.opens);
    }

    #[test]
    fn names_of_exports_as_names_of_files() {
        assert_eq!(directory_name("/"), "root+");
        assert_ne!(directory_name("/a/b"), directory_name("/a_b"));
        assert!(!directory_name("/ä/x y").contains(['/', ' ']));
    }

    #[test]
    fn what_is_fixed_is_named() {
        let parse = |text: &str| Config::parse(text, "f").unwrap();
        let export = "\n[[export]]\nname = \"/a\"\ndir = \"/srv\"\n";
        let old = parse(&format!("listen = \":2049\"\n{export}"));
        let refused = |text: &str| can_change(&old, &parse(text)).unwrap_err();
        let listen = "listen = \":2049\"\n";
        assert!(refused(&format!("listen = \":2050\"\n{export}")).starts_with("`listen` cannot be changed"));
        assert!(refused(&format!("{listen}state_dir = \"/x\"\n{export}")).starts_with("`state_dir` cannot"));
        assert!(refused(&format!("{listen}lease = 30\n{export}")).starts_with("`lease` cannot"));
        assert!(refused(&format!("{listen}{export}fsid = 3\n")).starts_with("export /a: `fsid` cannot"));
        assert!(refused(&format!("{listen}{}", export.replace("/srv", "/tmp"))).starts_with("export /a: `dir` cannot"));
        for fine in [
            format!("{listen}log = \"debug\"\nids.lookup_groups = true\ncourtesy = 5\nlimits.opens = 7\n{export}"),
            format!("{listen}{export}squash = \"all\"\naccess = \"ro\"\nclients = \"::1\"\nsecure = true\n"),
            format!("{listen}{}", export.replace("/a", "/b")),
        ] {
            can_change(&old, &parse(&fine)).unwrap();
        }
    }

    /// What cannot be reloaded is what docs/operating.md says.
    #[test]
    fn what_is_fixed_is_documented() {
        let docs = include_str!("../../../docs/operating.md");
        for name in FIXED {
            assert!(KEYS.iter().any(|k| k.name == *name), "{name} is no setting");
            assert!(docs.contains(&format!("`{name}`")), "docs/operating.md does not name `{name}`");
        }
    }
}
