//! Every limit of the state machines, by name.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bounds and times. The defaults work for a server of some thousand clients.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Lease time (attribute `lease_time`); also how long an unconfirmed client record is kept.
    pub lease: Duration,
    /// Length of the grace period at most.
    pub grace: Duration,
    /// How long a client whose lease ended keeps its state if nobody needs it (courtesy, case B32).
    pub courtesy: Duration,
    /// Clients, confirmed or not.
    pub clients: usize,
    /// Unconfirmed clients among them; the oldest makes room.
    pub unconfirmed_clients: usize,
    /// Sessions of one client.
    pub sessions_per_client: usize,
    /// Sessions of all clients.
    pub sessions: usize,
    /// Slots of one session, at most 2048 are useful.
    pub slots_per_session: u32,
    /// Slots granted at least, however scarce memory for replies is.
    pub slots_min: u32,
    /// Largest request, bytes (`ca_maxrequestsize`).
    pub max_request: u32,
    /// Largest reply, bytes (`ca_maxresponsesize`).
    pub max_reply: u32,
    /// Largest reply that is cached, bytes (`ca_maxresponsesize_cached`).
    pub max_cached_reply: u32,
    /// Bytes that the cached replies of all sessions may take together if each slot is filled; a new session gets at
    /// most an eighth of what is left of it.
    pub cached_bytes: u64,
    /// Operations of one COMPOUND (`ca_maxoperations`).
    pub max_ops: u32,
    /// Connections bound to one session.
    pub conns_per_session: usize,
    /// Slots of a back channel that are used, however many the client offers.
    pub callback_slots: u32,
    /// Opens of one client.
    pub opens_per_client: usize,
    /// Opens of all clients.
    pub opens: usize,
    /// Lock-owner states of one open.
    pub lock_owners_per_open: usize,
    /// Byte ranges locked on one file.
    pub locks_per_file: usize,
    /// Byte ranges and lock-owner states of one client, together.
    pub locks_per_client: usize,
    /// Delegations of one client.
    pub delegations_per_client: usize,
    /// Delegations of all clients. Each may take a descriptor at the backend.
    pub delegations: usize,
    /// Asynchronous copies of one client that run at once.
    pub copies_per_client: usize,
    /// Asynchronous copies of all clients that run at once.
    pub copies: usize,
    /// Finished copies of one client that are remembered; the oldest is forgotten.
    pub finished_copies_per_client: usize,
    /// Copy-notify stateids of one open; the one that would end first makes room if it is not in use.
    pub copy_notifies_per_open: usize,
    /// Copy-notify stateids of one client.
    pub copy_notifies_per_client: usize,
    /// Copy-notify stateids of all clients.
    pub copy_notifies: usize,
    /// How long a finished copy answers OFFLOAD_STATUS.
    pub finished_copy_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(90),
            grace: Duration::from_secs(90),
            courtesy: Duration::from_secs(24 * 3600),
            clients: 16_384,
            unconfirmed_clients: 1024,
            sessions_per_client: 64,
            sessions: 65_536,
            slots_per_session: 2048,
            slots_min: 16,
            max_request: 1024 * 1024 + 4096,
            max_reply: 1024 * 1024 + 4096,
            max_cached_reply: 6 * 1024,
            cached_bytes: 512 * 1024 * 1024,
            max_ops: 128,
            conns_per_session: 64,
            callback_slots: 16,
            opens_per_client: 200_000,
            opens: 1_000_000,
            lock_owners_per_open: 4096,
            locks_per_file: 16_384,
            locks_per_client: 200_000,
            delegations_per_client: 4096,
            delegations: 16_384,
            copies_per_client: 16,
            copies: 64,
            finished_copies_per_client: 64,
            copy_notifies_per_open: 64,
            copy_notifies_per_client: 4096,
            copy_notifies: 65_536,
            finished_copy_time: Duration::from_secs(90),
        }
    }
}

/// Counts how often a limit was hit.
#[derive(Debug, Default)]
pub struct HitCount(AtomicU64);

impl HitCount {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// How often.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How often each limit was hit since the start: for metrics. Sizes that are negotiated are not among them, for
/// there the client is told beforehand.
#[derive(Debug, Default)]
pub struct LimitHits {
    /// [`Limits::clients`]: EXCHANGE_ID answered DELAY.
    pub clients: HitCount,
    /// [`Limits::unconfirmed_clients`]: the oldest made room.
    pub unconfirmed_clients: HitCount,
    /// [`Limits::sessions_per_client`] or [`Limits::sessions`]: CREATE_SESSION answered NOSPC.
    pub sessions: HitCount,
    /// [`Limits::slots_per_session`] or [`Limits::cached_bytes`]: fewer slots were granted than asked for.
    pub slots: HitCount,
    /// [`Limits::opens_per_client`] (OPEN answered SERVERFAULT) or [`Limits::opens`] (DELAY).
    pub opens: HitCount,
    /// [`Limits::lock_owners_per_open`]: LOCK answered SERVERFAULT.
    pub lock_owners: HitCount,
    /// [`Limits::locks_per_file`] or [`Limits::locks_per_client`]: LOCK or LOCKU answered SERVERFAULT.
    pub locks: HitCount,
    /// More waiters for locks of one file than are remembered: the client is not told, and finds out by asking.
    pub lock_waiters: HitCount,
    /// [`Limits::delegations`] or [`Limits::delegations_per_client`]: none was given.
    pub delegations: HitCount,
    /// [`Limits::copies`] or [`Limits::copies_per_client`]: a copy was not made asynchronous.
    pub copies: HitCount,
    /// One of the limits on copy-notify stateids: COPY_NOTIFY answered DELAY.
    pub copy_notifies: HitCount,
}
