//! `dhow serve`: configuration, wiring, start, stop.

use crate::cli::Serve;
use crate::config::{Config, parse_listen};
use crate::exit::{Failure, Outcome};
use crate::export::Export;
use crate::live::{Limited, Live, OPEN_FILES, Opener, fitted, served};
use crate::scratch::Scratch;
use dhow_local::{FileFsNumbers, FsNumbers};
use dhow_server::store::{FileStore, StableStore, identity};
use dhow_server::{Reloaded, Running, Server, ServerConfig, ServerShared, Squash, StartError};
use dhow_sys::pool::AlignedPool;
use std::collections::HashMap;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Mutex;
use tracing::level_filters::{LevelFilter, STATIC_MAX_LEVEL};
use tracing_subscriber::EnvFilter;

/// The port of NFS.
pub const PORT: u16 = 2049;
/// Bytes of idle buffers that exports keep together.
const IDLE_BUFFERS: usize = 64 << 20;

/// What has to be done before any thread is started.
pub fn prepare_process() {
    dhow_sys::proc::clear_umask();
    dhow_sys::proc::raise_nofile_limit(OPEN_FILES);
    // With it, quotas and reserved blocks would not bind those who are served. Where it fails it was not there.
    let _ = dhow_sys::cred::drop_cap_sys_resource();
}

/// Puts another filter of the log in force; set once, by the first [`log_to_stderr`].
static LOG: OnceLock<Box<dyn Fn(EnvFilter) + Send + Sync>> = OnceLock::new();

fn log_filter(text: &str) -> Outcome<EnvFilter> {
    directives(text).and_then(|text| EnvFilter::try_new(text).ok()).ok_or_else(|| {
        Failure::usage(format!("`{text}` is not a log level; write error, warn, info, debug, trace or module=level"))
    })
}

/// Logs to standard error what `filter` says, or what the environment variable `DHOW_LOG` says, or warnings.
///
/// # Errors
/// A filter that is none.
pub fn log_to_stderr(filter: Option<&str>) -> Outcome {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(log_filter(&log_wanted(filter))?)
        .with_writer(io::stderr)
        .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
        .with_filter_reloading();
    let handle = builder.reload_handle();
    // A second call, in a test for example, changes nothing.
    if builder.try_init().is_ok() {
        let _ = LOG.set(Box::new(move |filter| drop(handle.reload(filter))));
    }
    Ok(())
}

fn log_wanted(filter: Option<&str>) -> String {
    filter.map_or_else(|| std::env::var("DHOW_LOG").unwrap_or_else(|_| "warn".into()), str::to_owned)
}

/// Whether `filter` is one.
///
/// # Errors
/// It is not.
pub fn check_log(filter: Option<&str>) -> Outcome {
    log_filter(&log_wanted(filter)).map(drop)
}

/// Logs by another filter from now on.
///
/// # Errors
/// A filter that is none.
pub fn log_as(filter: Option<&str>) -> Outcome {
    let filter = log_filter(&log_wanted(filter))?;
    if let Some(set) = LOG.get() {
        set(filter);
    }
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
    let (running, state, live) = start_live(config).await?;
    let acts_as_users = live.acts_as_users();
    let site = Arc::new(Site { shared: Arc::clone(running.shared()), live: Mutex::new(live), args });
    let admin = crate::admin::socket::open(&state.path)
        .map_err(|e| Failure::failed(format!("{}: {e}", crate::admin::socket::path(&state.path).display())))?;
    let orders = tokio::spawn(crate::admin::socket::serve(admin, Arc::clone(&site)));
    // From here on SIGHUP does not end the process.
    let hangups = tokio::spawn(reload_on_hangup(site));
    for export in &exports {
        let access = if export.read_only { "read-only" } else { "read-write" };
        let squash = squash_words(export, acts_as_users);
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
    hangups.abort();
    tokio::select! {
        () = running.shutdown() => {}
        () = interrupted() => {}
    }
    // Orders are answered to the end: that the server is stopping.
    orders.abort();
    crate::admin::socket::remove(&state.path);
    Ok(())
}

/// Who acts as somebody else, for the line about an export. Without the privilege to act as users nobody does: all is
/// done by the server's own user, of which there is a warning.
fn squash_words(export: &Export, acts_as_users: bool) -> String {
    match export.squash {
        Squash::Root if acts_as_users => format!(", root acts as user {}", export.anonuid),
        Squash::All if acts_as_users => format!(", everybody acts as user {}", export.anonuid),
        _ => String::new(),
    }
}

/// A server that can be told to read its configuration anew.
pub struct Site {
    /// The server.
    pub shared: Arc<ServerShared>,
    live: Mutex<Live>,
    args: Serve,
}

impl Site {
    /// Reads the configuration anew, file and command line, and puts it in force.
    ///
    /// # Errors
    /// One line; the old configuration stays in force then.
    pub async fn reload(&self) -> Outcome<Reloaded> {
        let mut live = self.live.lock().await;
        let config = configuration(&self.args)?;
        live.reload(&self.shared, config).await
    }
}

async fn reload_on_hangup(site: Arc<Site>) {
    let Ok(mut hangup) = signal(SignalKind::hangup()) else { return };
    while hangup.recv().await.is_some() {
        match site.reload().await {
            Ok(done) => announce(&format!("reloaded{}", told(&done))),
            Err(failure) => {
                crate::exit::complain(format!(
                    "not reloaded, the old configuration stays in force: {}",
                    failure.message
                ));
            }
        }
    }
}

/// What a reload did, to be put behind the word.
pub fn told(done: &Reloaded) -> String {
    let mut text = String::new();
    if !done.added.is_empty() {
        text += &format!("; new: {}", done.added.join(", "));
    }
    if !done.removed.is_empty() {
        text += &format!("; gone: {}, with {} opens and delegations", done.removed.join(", "), done.revoked);
    }
    text
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
    _temporary: Option<Scratch>,
}

impl StateDir {
    /// The configured one, or the default of docs/operating.md for a server that listens on `port`.
    fn new(configured: Option<PathBuf>, port: u16) -> io::Result<Self> {
        if let Some(path) = configured {
            return Ok(Self { path, _temporary: None });
        }
        if port == 0 {
            let own = Scratch::new(&std::env::temp_dir(), "dhow-state")?;
            return Ok(Self { path: own.to_path_buf(), _temporary: Some(own) });
        }
        Ok(Self { path: default_state_dir(port)?, _temporary: None })
    }
}

/// The state directory of a server on `port` that was told of none (docs/operating.md).
///
/// # Errors
/// There is no place for it.
pub fn default_state_dir(port: u16) -> io::Result<PathBuf> {
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
    Ok(base.join(port.to_string()))
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
    start_live(config).await.map(|(running, state, _)| (running, state))
}

/// As [`start`], with what a reload needs.
///
/// # Errors
/// As [`start`].
pub async fn start_live(config: Config) -> Outcome<(Running, StateDir, Live)> {
    let mut listen = config.listen.clone();
    if listen.is_empty() {
        listen.push(default_listen());
    }
    let port = listen.iter().map(SocketAddr::port).find(|p| *p != 0).unwrap_or(0);
    let state =
        StateDir::new(config.state_dir.clone(), port).map_err(|e| Failure::failed(format!("state directory: {e}")))?;
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
    let opener = Opener { state: state.path.clone(), numbers, buffers: AlignedPool::new(IDLE_BUFFERS) };
    let (mut exports, mut open) = (Vec::new(), HashMap::new());
    let mut limited = Limited::default();
    for export in &config.exports {
        let backend = opener.open(export, &mut limited)?;
        open.insert(export.name.clone(), Arc::clone(&backend));
        exports.push(served(export, backend));
    }
    limited.say();
    let settings = fitted(config.server.clone())?;
    let server = ServerConfig {
        listen,
        exports,
        limits: settings.server,
        state: settings.state,
        copy: settings.copy,
        ids: settings.ids,
        identity,
        store,
        wall: Arc::new(std::time::SystemTime::now),
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
    Ok((running, state, Live::new(config, opener, open, &limited)))
}

fn bracketed(addr: SocketAddr) -> String {
    match addr.ip() {
        IpAddr::V6(ip) => format!("[{ip}]"),
        IpAddr::V4(ip) => ip.to_string(),
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

    /// What cannot be done is not announced.
    #[test]
    fn nobody_is_squashed_without_the_privilege() {
        let mut export = Export::new("/", "/srv");
        assert_eq!(squash_words(&export, true), ", root acts as user 65534");
        assert_eq!(squash_words(&export, false), "");
        (export.squash, export.anonuid) = (Squash::All, 7);
        assert_eq!(squash_words(&export, true), ", everybody acts as user 7");
        export.squash = Squash::None;
        assert_eq!(squash_words(&export, true), "");
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
    fn the_mount_command_fits_the_address() {
        let export = Export::new("/data", "/srv/data");
        let at = |text: &str| mount_command(&export, text.parse().unwrap());
        assert_eq!(at("192.0.2.7:2049"), "mount -t nfs -o vers=4.2 192.0.2.7:/data /mnt");
        assert_eq!(at("[::1]:7000"), "mount -t nfs -o vers=4.2,port=7000 [::1]:/data /mnt");
        assert!(!at("[::]:2049").contains("[::]"));
    }

    #[test]
    fn the_temporary_state_directory_goes() {
        let state = StateDir::new(None, 0).unwrap();
        let path = state.path.clone();
        assert!(path.is_dir());
        drop(state);
        assert!(!path.exists());
        let state = StateDir::new(Some("/x".into()), 0).unwrap();
        assert_eq!((state.path.as_path(), state._temporary.is_none()), (std::path::Path::new("/x"), true));
    }
}
