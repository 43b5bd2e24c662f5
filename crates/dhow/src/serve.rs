//! `dhow serve`: configuration, wiring, start, stop.

use crate::cli::Serve;
use crate::config::{Config, parse_listen};
use crate::exit::{Failure, Outcome, warn};
use crate::export::Export;
use crate::settings::Settings;
use dhow_local::{FileFsNumbers, FsNumbers, HandleMode, Local, Options, Reflink};
use dhow_partner::ClientConnector;
use dhow_server::store::{FileStore, StableStore, identity};
use dhow_server::{ExportConfig, ExportOptions, NetMatch, Running, Server, ServerConfig, Squash, StartError};
use dhow_sys::pool::AlignedPool;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};
use tracing::level_filters::{LevelFilter, STATIC_MAX_LEVEL};
use tracing_subscriber::EnvFilter;

/// The port of NFS.
pub const PORT: u16 = 2049;
/// Open files that a server asks the system for.
const OPEN_FILES: u64 = 1 << 20;
/// Bytes of idle buffers that exports keep together.
const IDLE_BUFFERS: usize = 64 << 20;

/// What has to be done before any thread is started.
pub fn prepare_process() {
    dhow_sys::proc::clear_umask();
    dhow_sys::proc::raise_nofile_limit(OPEN_FILES);
    // With it, quotas and reserved blocks would not bind those who are served. Where it fails it was not there.
    let _ = dhow_sys::cred::drop_cap_sys_resource();
}

/// Logs to standard error what `filter` says, or what the environment variable `DHOW_LOG` says, or warnings.
///
/// # Errors
/// A filter that is none.
pub fn log_to_stderr(filter: Option<&str>) -> Outcome {
    let text = match filter {
        Some(text) => text.to_owned(),
        None => std::env::var("DHOW_LOG").unwrap_or_else(|_| "warn".into()),
    };
    let filter = directives(&text).and_then(|text| EnvFilter::try_new(text).ok()).ok_or_else(|| {
        Failure::usage(format!("`{text}` is not a log level; write error, warn, info, debug, trace or module=level"))
    })?;
    // A second call, in a test for example, changes nothing.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
        .try_init();
    Ok(())
}

/// A filter as the library takes it. It would take any word for a module; here that needs a level. Where this build has
/// no messages of level trace, debug is the most there is.
fn directives(text: &str) -> Option<String> {
    let level = |word: &str| match word.parse::<LevelFilter>() {
        Ok(level) => Some(level.min(STATIC_MAX_LEVEL).to_string()),
        Err(_) => None,
    };
    let each = text.split(',').map(str::trim).filter(|d| !d.is_empty()).map(|directive| {
        Some(match directive.rsplit_once('=') {
            Some((module, word)) => format!("{module}={}", level(word)?),
            None => level(directive)?,
        })
    });
    Some(each.collect::<Option<Vec<_>>>()?.join(","))
}

/// Waits for SIGINT or SIGTERM.
pub async fn interrupted() {
    let (Ok(mut int), Ok(mut term)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) else {
        // Without handlers the signals end the process by themselves.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = int.recv() => {}
        _ = term.recv() => {}
    }
}

/// Runs the command.
pub async fn run(args: Serve) -> Outcome {
    let config = configuration(&args)?;
    log_to_stderr(config.log.as_deref())?;
    let exports = config.exports.clone();
    let default_listen = config.listen.is_empty();
    let (running, state) = start(config).await?;
    for export in &exports {
        let access = if export.read_only { "read-only" } else { "read-write" };
        let squash = match export.squash {
            Squash::None => String::new(),
            Squash::Root => format!(", root acts as user {}", export.anonuid),
            Squash::All => format!(", everybody acts as user {}", export.anonuid),
        };
        announce(&format!("serving {} at {}, {access}{squash}", export.dir.display(), export.name));
    }
    if let (Some(export), Some(addr)) = (exports.first(), running.addresses().first()) {
        announce(&format!("mount with: {}", mount_command(export, *addr)));
    }
    let listening: Vec<String> = running.addresses().iter().map(ToString::to_string).collect();
    tracing::debug!(default_listen, state = %state.path.display(), "ready");
    announce(&format!("ready: listening on {}", listening.join(", ")));
    tell_service_manager("READY=1");
    interrupted().await;
    tracing::info!("stopping");
    tell_service_manager("STOPPING=1");
    tokio::select! {
        () = running.shutdown() => {}
        () = interrupted() => {}
    }
    Ok(())
}

/// Tells a service manager that asked for it (sd_notify(3)): one datagram to the socket that NOTIFY_SOCKET names. Who
/// does not listen is no reason not to serve.
fn tell_service_manager(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|n| !n.is_empty()) else { return };
    if let Err(error) = notify(&name, state) {
        tracing::warn!(%error, "cannot tell the service manager {state}");
    }
}

fn notify(name: &std::ffi::OsStr, state: &str) -> io::Result<()> {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    // A leading @ stands for the zero byte of the abstract name space.
    let addr = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &addr).map(drop)
}

/// Prints a line on standard output; a server goes on when nobody reads it.
fn announce(line: &str) {
    let _ = writeln!(io::stdout().lock(), "{line}");
}

/// What a user types to mount the first export.
fn mount_command(export: &Export, addr: SocketAddr) -> String {
    let host = match addr.ip() {
        ip if ip.is_unspecified() => {
            let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            let name = name.trim().to_owned();
            if name.is_empty() { "SERVER".into() } else { name }
        }
        IpAddr::V6(ip) => format!("[{ip}]"),
        IpAddr::V4(ip) => ip.to_string(),
    };
    let port = if addr.port() == PORT { String::new() } else { format!(",port={}", addr.port()) };
    format!("mount -t nfs -o vers=4.2{port} {host}:{} /mnt", export.name)
}

/// What the file and the command line say together.
fn configuration(args: &Serve) -> Outcome<Config> {
    let mut config = match &args.config {
        Some(path) => Config::read(path).map_err(Failure::usage)?,
        None => Config::default(),
    };
    for text in &args.exports {
        config.exports.push(Export::parse(text).map_err(Failure::usage)?);
    }
    if let Some(dir) = &args.dir {
        config.exports.push(Export::new("/", dir));
    }
    if config.exports.is_empty() {
        return Err(Failure::usage("nothing to serve; name a directory: dhow serve DIR, or --export /NAME=DIR"));
    }
    if !args.listen.is_empty() {
        config.listen =
            args.listen.iter().map(|t| parse_listen(t)).collect::<Result<_, _>>().map_err(Failure::usage)?;
    }
    if args.state_dir.is_some() {
        config.state_dir.clone_from(&args.state_dir);
    }
    if args.log.is_some() {
        config.log.clone_from(&args.log);
    }
    for (i, export) in config.exports.iter().enumerate() {
        if config.exports.iter().take(i).any(|other| other.name == export.name) {
            return Err(Failure::usage(format!("export {} is named twice; give each a name of its own", export.name)));
        }
        let at = |e: String| Failure::usage(format!("export {}: {}: {e}", export.name, export.dir.display()));
        match std::fs::metadata(&export.dir) {
            Ok(meta) if meta.is_dir() => {}
            Ok(_) => return Err(at("is not a directory".into())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(at("no such directory".into())),
            Err(e) => return Err(at(e.to_string())),
        }
    }
    crate::export::check_exclusive(&config.exports).map_err(Failure::usage)?;
    Ok(config)
}

/// The state directory of a server that runs; a temporary one goes when this is dropped.
#[derive(Debug)]
pub struct StateDir {
    /// Where it is.
    pub path: PathBuf,
    temporary: bool,
}

impl Drop for StateDir {
    fn drop(&mut self) {
        if self.temporary {
            // Nothing in it is worth a message.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

impl StateDir {
    /// The configured one, or the default of docs/operating.md for a server that listens on `port`.
    fn new(configured: Option<PathBuf>, port: u16) -> io::Result<Self> {
        if let Some(path) = configured {
            return Ok(Self { path, temporary: false });
        }
        if port == 0 {
            return Ok(Self {
                path: crate::output::temporary_dir(&std::env::temp_dir(), "dhow-state")?,
                temporary: true,
            });
        }
        let env = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let base = if dhow_copy::is_superuser() {
            PathBuf::from("/var/lib/dhow")
        } else {
            let home = || env("HOME").map(|h| h.join(".local/state"));
            match env("XDG_STATE_HOME").filter(|p| p.is_absolute()).or_else(home) {
                Some(base) => base.join("dhow"),
                None => {
                    return Err(io::Error::other("neither XDG_STATE_HOME nor HOME is set; name one with --state-dir"));
                }
            }
        };
        Ok(Self { path: base.join(port.to_string()), temporary: false })
    }
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

/// All addresses, IPv4 included; IPv4 alone on hosts without IPv6.
fn default_listen() -> SocketAddr {
    let has_v6 = std::net::UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok();
    let ip = if has_v6 { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
    SocketAddr::new(ip, PORT)
}

/// Starts a server and says on standard error what is limited.
///
/// # Errors
/// One line with the remedy.
pub async fn start(config: Config) -> Outcome<(Running, StateDir)> {
    let mut listen = config.listen;
    if listen.is_empty() {
        listen.push(default_listen());
    }
    let port = listen.iter().map(SocketAddr::port).find(|p| *p != 0).unwrap_or(0);
    let state = StateDir::new(config.state_dir, port).map_err(|e| Failure::failed(format!("state directory: {e}")))?;
    let store = FileStore::open(&state.path).map_err(|e| {
        use io::ErrorKind as E;
        let here = [E::PermissionDenied, E::AlreadyExists, E::NotFound, E::NotADirectory, E::ReadOnlyFilesystem];
        let remedy = if here.contains(&e.kind()) { "; name another with --state-dir" } else { "" };
        Failure::failed(format!("state directory: {e}{remedy}"))
    })?;
    let store: Arc<dyn StableStore> = Arc::new(store);
    let in_state = |e: io::Error| Failure::failed(format!("state directory {}: {e}", state.path.display()));
    let identity = identity(&store).map_err(in_state)?;
    let numbers: Arc<dyn FsNumbers> = Arc::new(FileFsNumbers::open(&state.path.join("filesystems")).map_err(in_state)?);
    let buffers = AlignedPool::new(IDLE_BUFFERS);
    let mut exports = Vec::new();
    let mut limited = Limited::default();
    for export in config.exports {
        let mut options = Options::new(&export.dir);
        let own = state.path.join("exports").join(directory_name(&export.name));
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&own).map_err(in_state)?;
        options.state_dir = Some(own);
        options.numbers = numbers.clone();
        options.fsid = export.fsid;
        options.crossmnt = export.crossmnt;
        options.metadata_sync = export.metadata_sync;
        options.exclusive = export.exclusive;
        options.local_locks = export.local_locks;
        options.reflink = if export.reflink { Reflink::Auto } else { Reflink::Never };
        options.handles = HandleMode::Auto;
        options.buffers = buffers.clone();
        let backend = Local::open(options).map_err(|e| Failure::failed(format!("export {}: {e}", export.name)))?;
        limited.note(&export.name, &backend.report());
        exports.push(ExportConfig {
            path: export.name,
            backend: Arc::new(backend),
            options: ExportOptions {
                read_only: export.read_only,
                squash: export.squash,
                anon_uid: export.anonuid,
                anon_gid: export.anongid,
                clients: export.clients,
                secure: export.secure,
                delegations: export.delegations,
            },
        });
    }
    limited.say();
    let mut settings = config.server;
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
    for key in crate::settings::KEYS {
        tracing::debug!(setting = key.name, value = (key.shown)(&settings));
    }
    let server = ServerConfig {
        listen,
        exports,
        limits: settings.server,
        state: settings.state,
        copy: settings.copy,
        ids: settings.ids,
        identity,
        store,
    };
    let running = Server::start(server).await.map_err(|e| match e {
        StartError::Exports(e) => Failure::usage(e),
        StartError::Listen { addr, source } => {
            let remedy = match source.kind() {
                io::ErrorKind::AddrInUse => {
                    format!("; stop the server that has it, or choose another port: --listen {}:12049", bracketed(addr))
                }
                io::ErrorKind::PermissionDenied => "; choose a port above 1023 with --listen".into(),
                io::ErrorKind::AddrNotAvailable => "; this host has no such address".into(),
                _ => String::new(),
            };
            Failure::failed(format!("cannot listen on {addr}: {source}{remedy}"))
        }
        e => Failure::failed(e),
    })?;
    Ok((running, state))
}

fn bracketed(addr: SocketAddr) -> String {
    match addr.ip() {
        IpAddr::V6(ip) => format!("[{ip}]"),
        IpAddr::V4(ip) => ip.to_string(),
    }
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
struct Limited {
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

    fn say(&self) {
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

    /// What is no level and names no module is no filter; messages that this build lacks are not asked for.
    #[test]
    fn filters_of_the_log() {
        assert_eq!(directives("warn").as_deref(), Some("warn"));
        assert_eq!(directives("INFO, dhow_server=debug").as_deref(), Some("info,dhow_server=debug"));
        assert_eq!(directives("trace").as_deref(), Some(STATIC_MAX_LEVEL.to_string().as_str()));
        for bad in ["verbose", "dhow_server", "dhow_server=loud", "warn,x"] {
            assert_eq!(directives(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_service_manager_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        notify(path.as_os_str(), "READY=1").unwrap();
        let mut buf = [0; 32];
        let n = socket.recv(&mut buf).unwrap();
        assert_eq!(&buf[..n], b"READY=1");
        assert!(notify("/nowhere/at/all".as_ref(), "READY=1").is_err());
    }

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
    fn the_mount_command_fits_the_address() {
        let export = Export::new("/data", "/srv/data");
        let at = |text: &str| mount_command(&export, text.parse().unwrap());
        assert_eq!(at("192.0.2.7:2049"), "mount -t nfs -o vers=4.2 192.0.2.7:/data /mnt");
        assert_eq!(at("[::1]:7000"), "mount -t nfs -o vers=4.2,port=7000 [::1]:/data /mnt");
        assert!(!at("[::]:2049").contains("[::]"));
    }

    #[test]
    fn names_of_exports_as_names_of_files() {
        assert_eq!(directory_name("/"), "root+");
        assert_ne!(directory_name("/a/b"), directory_name("/a_b"));
        assert!(!directory_name("/ä/x y").contains(['/', ' ']));
    }

    #[test]
    fn the_temporary_state_directory_goes() {
        let state = StateDir::new(None, 0).unwrap();
        let path = state.path.clone();
        assert!(path.is_dir());
        drop(state);
        assert!(!path.exists());
        let state = StateDir::new(Some("/x".into()), 0).unwrap();
        assert_eq!((state.path.as_path(), state.temporary), (std::path::Path::new("/x"), false));
    }
}
