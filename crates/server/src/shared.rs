//! What all parts of a running server share.

use crate::admin::Baseline;
use crate::config::{Delegations, Identity, ServerLimits, WallClock};
use crate::conn::ConnCx;
use crate::copy::CopyConfig;
use crate::copy::on_file::CopiesOn;
use crate::copy::partners::Partners;
use crate::exports::{Exports, OpenToken};
use crate::fh::HandleCodec;
use crate::gates::AllGates;
use crate::ids::{IdConfig, Ids};
use crate::metrics::ServerMetrics;
use crate::store::StableStore;
use arc_swap::ArcSwap;
use dhow_net::{ConnLimit, NetShared};
use dhow_proto::v4::{OpNum, Status};
use dhow_state::sources::SourceCounts;
use dhow_state::{State, Time};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// Called for every result: minor version, operation, the status that was meant and the one that is sent. For tests that
/// check the operation table, with [`breach`](crate::breach).
pub type StatusHook = Arc<dyn Fn(u32, OpNum, Status, Status) + Send + Sync>;

/// What was chosen for a server.
pub(crate) struct Choices {
    pub limits: ServerLimits,
    pub copy: CopyConfig,
    pub ids: IdConfig,
    pub wall: WallClock,
}

/// What all parts of a running server share.
pub struct ServerShared {
    /// Limits of transport and requests.
    limits: ArcSwap<ServerLimits>,
    /// Who this server is.
    pub identity: Identity,
    /// What is served. Replaced as a whole: `crate::reload`.
    exports: ArcSwap<Exports>,
    /// Makes and checks filehandles.
    pub handles: HandleCodec,
    /// Clients, sessions, opens, locks. Told the time by [`ServerShared::now`].
    pub state: Arc<State<OpenToken>>,
    /// Settings of copies.
    copy: ArcSwap<CopyConfig>,
    /// Connections admitted, by all listeners.
    pub(crate) admission: Arc<ConnLimit>,
    /// One reload at a time.
    pub(crate) reloading: tokio::sync::Mutex<()>,
    /// Names of users and groups.
    pub(crate) ids: Ids,
    /// Connections to the sources of copies.
    pub(crate) partners: Partners,
    /// Addresses listened on.
    pub(crate) listening: OnceLock<Vec<SocketAddr>>,
    /// How many copies write to each file.
    pub(crate) copies_on: CopiesOn,
    /// The server shuts down: copies end with what they have.
    pub(crate) closing: watch::Sender<bool>,
    /// Queues in front of files and names.
    pub(crate) gates: AllGates,
    /// Durable records of clients.
    pub(crate) store: Arc<dyn StableStore>,
    /// Held while a record of a client is made and stored.
    pub(crate) recording: tokio::sync::Mutex<()>,
    /// The store refused the last record of a client.
    pub(crate) store_fails: AtomicBool,
    /// Counters.
    pub metrics: ServerMetrics,
    /// Buffers, budgets and counters of the transport.
    pub net: Arc<NetShared>,
    /// Open connections by number; callbacks find theirs here.
    pub conns: Mutex<HashMap<u64, Arc<ConnCx>>>,
    /// Calls that run.
    pub(crate) running: Running,
    /// Sees every result, if a test wants to.
    pub(crate) status_hook: Option<StatusHook>,
    /// Some export gives delegations.
    pub(crate) delegates: bool,
    /// Told whenever a delegation has ended.
    pub(crate) delegations_gone: Notify,
    /// Counters as they were when an administrator reset them.
    pub(crate) counted: Mutex<Baseline>,
    pub(crate) wall: WallClock,
    started: Instant,
}

impl ServerShared {
    pub(crate) fn new(
        choices: Choices,
        identity: Identity,
        exports: Exports,
        state: State<OpenToken>,
        store: Arc<dyn StableStore>,
        status_hook: Option<StatusHook>,
    ) -> Self {
        let Choices { limits, copy, ids, wall } = choices;
        let net = NetShared::new(limits.request_bytes, 64 << 20);
        let handles = HandleCodec::new(identity.handle_key);
        let partners = Partners::new(&copy.inter);
        let admission = ConnLimit::new(limits.connections, limits.connections_per_peer);
        let delegates = exports.list().iter().any(|e| e.options.delegations != Delegations::Off);
        Self {
            limits: ArcSwap::from_pointee(limits),
            identity,
            exports: ArcSwap::from_pointee(exports),
            handles,
            state: Arc::new(state),
            copy: ArcSwap::from_pointee(copy),
            admission,
            reloading: tokio::sync::Mutex::default(),
            ids: Ids::new(ids),
            partners,
            listening: OnceLock::new(),
            copies_on: CopiesOn::default(),
            closing: watch::Sender::new(false),
            gates: AllGates::new(),
            store,
            recording: tokio::sync::Mutex::default(),
            store_fails: AtomicBool::new(false),
            metrics: ServerMetrics::default(),
            net,
            conns: Mutex::default(),
            running: Running::default(),
            status_hook,
            delegates,
            delegations_gone: Notify::new(),
            counted: Mutex::default(),
            wall,
            started: Instant::now(),
        }
    }

    /// Limits of transport and requests, as they are now.
    pub fn limits(&self) -> arc_swap::Guard<Arc<ServerLimits>> {
        self.limits.load()
    }

    pub(crate) fn store_limits(&self, limits: ServerLimits) {
        self.limits.store(Arc::new(limits));
    }

    /// What is served now. Whoever looks twice keeps this: the next call may tell of others.
    pub fn exports(&self) -> Arc<Exports> {
        self.exports.load_full()
    }

    /// Serves these from now on; the ones before come back.
    pub(crate) fn swap_exports(&self, exports: Exports) -> Arc<Exports> {
        self.exports.swap(Arc::new(exports))
    }

    /// Settings of copies, as they are now.
    pub fn copy(&self) -> Arc<CopyConfig> {
        self.copy.load_full()
    }

    pub(crate) fn store_copy(&self, copy: CopyConfig) {
        self.copy.store(Arc::new(copy));
    }

    /// Connections to the sources of copies: being made, made, and their uses.
    pub fn source_counts(&self) -> SourceCounts {
        self.partners.counts()
    }

    /// Look-ups of users and groups that failed.
    pub fn failed_look_ups(&self) -> u64 {
        self.ids.failures()
    }

    /// The time that the state machines go by: it runs from the server's start, steadily, whatever is done to the clock
    /// on the wall (CLOCK_MONOTONIC; while the host sleeps it stands still, which only lengthens leases). It is tokio's
    /// clock, so that tests run in virtual time.
    pub fn now(&self) -> Time {
        Time(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

impl fmt::Debug for ServerShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerShared").field("exports", &self.exports()).finish_non_exhaustive()
    }
}

/// Counts what must end before the server has ended.
#[derive(Debug, Default)]
pub(crate) struct Running {
    count: Arc<(AtomicUsize, Notify)>,
}

/// One that runs.
#[derive(Debug)]
pub(crate) struct Run(Arc<(AtomicUsize, Notify)>);

impl Running {
    pub fn start(&self) -> Run {
        self.count.0.fetch_add(1, Ordering::AcqRel);
        Run(Arc::clone(&self.count))
    }

    pub fn count(&self) -> usize {
        self.count.0.load(Ordering::Acquire)
    }

    /// Waits until nothing runs.
    pub async fn idle(&self) {
        loop {
            let woken = self.count.1.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            if self.count() == 0 {
                return;
            }
            woken.await;
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.0.0.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.1.notify_waiters();
        }
    }
}
