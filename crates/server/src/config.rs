//! What a server is told at its start. Plain values: the binary reads files and fills these in.

use crate::netmatch::NetMatch;
use crate::store::{MemoryStore, StableStore};
use bytes::Bytes;
use dhow_vfs::Backend;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The clock on the wall. Times of files that the server itself makes up come from it; leases, grace and every other
/// deadline go by [`ServerShared::now`](crate::ServerShared::now), which it cannot move.
pub type WallClock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// Everything a server needs.
pub struct ServerConfig {
    /// Addresses to listen on; port 0 is any free one. Empty for a server that gets its streams by
    /// [`crate::Running::serve_stream`].
    pub listen: Vec<SocketAddr>,
    /// What is served.
    pub exports: Vec<ExportConfig>,
    /// Limits of transport and requests.
    pub limits: ServerLimits,
    /// Limits of state: clients, sessions, opens, locks, and the lease time.
    pub state: dhow_state::Limits,
    /// Copies inside the server.
    pub copy: crate::copy::CopyConfig,
    /// Names of users and groups.
    pub ids: crate::ids::IdConfig,
    /// Who this server is.
    pub identity: Identity,
    /// Durable records of clients: those of the previous instance are what a grace period is for.
    pub store: Arc<dyn StableStore>,
    /// What the clock on the wall says.
    pub wall: WallClock,
}

impl ServerConfig {
    /// Default limits, no listener, and nothing that outlives the process: for tests and demonstrations.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn in_memory(exports: Vec<ExportConfig>) -> Result<Self, getrandom::Error> {
        Ok(Self {
            listen: Vec::new(),
            exports,
            limits: ServerLimits::default(),
            state: dhow_state::Limits::default(),
            copy: crate::copy::CopyConfig::default(),
            ids: crate::ids::IdConfig::default(),
            identity: Identity::ephemeral()?,
            store: Arc::new(MemoryStore::default()),
            wall: Arc::new(SystemTime::now),
        })
    }
}

/// One export.
pub struct ExportConfig {
    /// Where it lies in the server's namespace: `/`, `/proj`, `/a/b`.
    pub path: String,
    /// What is served there.
    pub backend: Arc<dyn Backend>,
    /// Options.
    pub options: ExportOptions,
}

/// Options of an export.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// Changes are refused.
    pub read_only: bool,
    /// Whose identity is replaced.
    pub squash: Squash,
    /// User of squashed and unauthenticated requests.
    pub anon_uid: u32,
    /// Group of squashed and unauthenticated requests.
    pub anon_gid: u32,
    /// Clients that may use the export; empty: all.
    pub clients: Vec<NetMatch>,
    /// Only from ports below 1024.
    pub secure: bool,
    /// Which delegations are given.
    pub delegations: Delegations,
}

impl Default for ExportOptions {
    /// Writable, root squashed to 65534, all clients, any port, no delegations.
    fn default() -> Self {
        Self {
            read_only: false,
            squash: Squash::Root,
            anon_uid: 65534,
            anon_gid: 65534,
            clients: Vec::new(),
            secure: false,
            delegations: Delegations::Off,
        }
    }
}

/// Which delegations are given (RFC 8881 10.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Delegations {
    /// None.
    #[default]
    Off,
    /// Read delegations, where local writers are known of or do not exist ([`dhow_vfs::Backend::watch_writers`],
    /// [`dhow_vfs::Caps::exclusive`]).
    Read,
    /// Those, and write delegations where nobody changes the tree but through this server.
    All,
}

/// Whose identity is replaced by the anonymous one (case B38).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Squash {
    /// Nobody's.
    None,
    /// That of user 0 and group 0; other groups stay.
    Root,
    /// Everybody's.
    All,
}

/// Limits of transport and requests. Each has a metric that counts when it is hit.
#[derive(Clone, Debug)]
pub struct ServerLimits {
    /// Open connections.
    pub connections: usize,
    /// Open connections of one peer: an IPv4 address, or a /64 of IPv6.
    pub connections_per_peer: usize,
    /// Calls of one connection that are executed at once; above that nothing more is read from it. At least the
    /// slots a client may use on one connection, or slots wait for each other.
    pub calls_per_connection: usize,
    /// Largest payload of READ and WRITE, bytes (attributes maxread, maxwrite).
    pub max_io: u32,
    /// Bytes of received requests over all connections.
    pub request_bytes: usize,
    /// Bytes of received requests of one connection.
    pub request_bytes_per_connection: usize,
    /// Bytes of replies of one connection that wait to be taken by the peer, before it is held back.
    pub reply_bytes_per_connection: usize,
    /// How long a request may stay half received.
    pub partial_timeout: Duration,
    /// How long shutting down waits for requests that run.
    pub drain: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections: 4096,
            connections_per_peer: 1024,
            calls_per_connection: 2048,
            max_io: 1 << 20,
            request_bytes: 256 << 20,
            request_bytes_per_connection: 32 << 20,
            reply_bytes_per_connection: 16 << 20,
            partial_timeout: Duration::from_secs(60),
            drain: Duration::from_secs(5),
        }
    }
}

/// Who a server is. What must outlive a restart comes from the state directory.
#[derive(Clone, Debug)]
pub struct Identity {
    /// `so_major_id`: the same for all addresses of this server (RFC 8881 2.10.5).
    pub major_id: Bytes,
    /// `server_scope` (RFC 8881 2.10.4).
    pub scope: Bytes,
    /// Key of the MAC in filehandles; the same after a restart, or handles become invalid (case B06).
    pub handle_key: [u8; 16],
    /// Differs at every start: part of client IDs, session IDs and stateids.
    pub instance: u32,
    /// Differs at every start, and is not to be guessed: session IDs and stateids are made with it.
    pub secret: [u8; 16],
}

impl Identity {
    /// An identity from fresh randomness, for tests and for servers without a state directory: handles do not
    /// outlive the process.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn ephemeral() -> Result<Self, getrandom::Error> {
        let mut handle_key = [0; 16];
        getrandom::fill(&mut handle_key)?;
        let mut id = [0; 16];
        getrandom::fill(&mut id)?;
        let hex: String = id.iter().map(|b| format!("{b:02x}")).collect();
        let id = Bytes::from(hex);
        let mut secret = [0; 16];
        getrandom::fill(&mut secret)?;
        Ok(Self { major_id: id.clone(), scope: id, handle_key, instance: getrandom::u32()?, secret })
    }
}
