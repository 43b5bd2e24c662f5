//! The server's state: clients, sessions, slots, opens, locks, copies, grace, leases (RFC 8881 2.10, 8, 9, 18).
//!
//! Pure: no I/O, no clock, no global randomness, no runtime. Time comes in as [`Time`], secrets and the instance number
//! as [`Identity`]; what must be done outside goes out as an [`Effect`], or is what the caller does between a plan and
//! its commit. `T` is the server's token for an open file; here it is only kept, cloned and given back.
//!
//! # Who owns what
//!
//! | Module | State | Guarded by |
//! |---|---|---|
//! | [`clients`](State::exchange_id) | client records, CREATE_SESSION reply slots, sessions of a client | one mutex |
//! | [`client`](Client) | lease, counts, flags of one client | atomics; its list of opens: a leaf mutex |
//! | [`session`](Session), `slots`, `backchannel` | slots, bound connections, callbacks | a mutex for each session; a sharded map finds it |
//! | `file`, [`open`](OpenPlan), [`lock`](LockPlan), [`io`](IoToken), `stateids` | opens, share reservations, locks | 64 stripes by file; a stateid names its stripe |
//! | `deleg`, [`change`](Change), `lockwait` | delegations, changes under way, waiters for locks | the stripe of the file |
//! | [`lockset`](LockSet) | the byte ranges of one file | a plain structure |
//! | [`admin`](Revocation) | none of its own: what an administrator sees and revokes (RFC 8881 8.5) | |
//! | [`copies`](CopyTicket) | asynchronous copies | one mutex |
//! | `grace` | who may reclaim | one mutex |
//! | [`retire`](Retire) | the end of a client | none of its own |
//! | [`ending`](End) | who waits for that | a leaf mutex of the client |
//!
//! Lock order: clients, then session map shard, then session; grace and the connection table are taken last. A stripe
//! is never taken together with any of those, nor two of one kind; a client's list of opens is taken under a stripe.
//! Nothing is locked when a function here returns, and no future here holds a lock while it waits.
//!
//! # A request's way
//!
//! [`State::sequence`] admits it ([`SlotToken`]: exactly once, lease held); operations that change state go
//! plan, I/O, commit; READ and WRITE hold an [`IoToken`]; [`SlotToken::complete`] keeps the reply for a retry. If state
//! of a client whose lease has ended stands in the way ([`Refused::Courtesy`]), the server retires that client
//! ([`State::retire`]) and asks again; if a delegation does ([`Refused::Delegated`]), it sends the recalls. [`State::tick`] is called about once a second.
//!
//! Copy-notify stateids (RFC 7862 15.3) are in `notify`: not to be guessed, tied to the open they were asked with.

mod admin;
mod backchannel;
mod change;
mod client;
mod clients;
mod copies;
mod deleg;
mod ending;
mod file;
mod grace;
mod ids;
mod io;
mod limits;
mod lock;
mod lockset;
mod lockwait;
mod notify;
mod open;
mod retire;
mod session;
mod slots;
pub mod sources;
mod stateids;
mod types;

pub use admin::{ClientInfo, CopyInfo, Detail, Memory, Page, Revocation, StateFilter, StateInfo};
pub use backchannel::{CbToken, CbUnavailable};
pub use change::{Change, Unseen};
pub use client::Client;
pub use clients::{CreatedSession, ExchangeId, ExchangedId};
pub use copies::{CopyStatus, CopyTicket};
pub use deleg::{DelegEnd, DelegKind, Delegated, Holder, Offer, Recall, Use, WhyNot};
pub use ending::End;
pub use ids::Identity;
pub use io::{Drain, IoToken};
pub use limits::{HitCount, LimitHits, Limits};
pub use lock::{LockPlan, LockRefused, LockRequest, Locker, UnlockPlan};
pub use lockset::{Held, LockKind, LockSet, Range};
pub use lockwait::LockNotice;
pub use open::{Claim, ClosePlan, Committed, DowngradePlan, NotOpened, OpenPlan, OpenRequest};
pub use retire::Retire;
pub use session::{Sequence, Session, SlotToken};
pub use types::*;

use arc_swap::ArcSwap;
use clients::Clients;
use copies::Copies;
use deleg::DelegCounts;
use file::Stripe;
use grace::Grace;
use ids::{Ids, Map, STRIPES};
use parking_lot::Mutex;
use session::Budget;
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const SESSION_SHARDS: usize = 16;

type SessionShard = Mutex<Map<SessionId, Arc<Session>>>;

/// All state of one server instance.
pub struct State<T: Clone + Send> {
    /// Replaced as a whole: [`State::set_limits`].
    limits: ArcSwap<Limits>,
    ids: Ids,
    clients: Mutex<Clients>,
    sessions: Box<[SessionShard]>,
    session_count: AtomicUsize,
    /// Which sessions a connection is bound to.
    conns: Mutex<Map<ConnId, SmallVec<[SessionId; 2]>>>,
    stripes: Box<[Mutex<Stripe<T>>]>,
    /// Opens in all stripes.
    opens: AtomicUsize,
    copies: Mutex<Copies>,
    /// Copy-notify stateids in all stripes.
    notify_total: Arc<AtomicUsize>,
    deleg_counts: Arc<DelegCounts>,
    /// Waiters for locks in all stripes.
    waiting: AtomicUsize,
    grace: Mutex<Grace>,
    budget: Arc<Budget>,
    /// Whether the grace period runs: what `grace` says, readable without its mutex.
    grace_active: AtomicBool,
    /// A client was turned away for want of room.
    pressed: AtomicBool,
    /// Somebody has denied writing with an OPEN; POSIX clients never do.
    denied: AtomicBool,
    /// Removals of names under way whose files were not looked at, for nobody had denied anything.
    unseen: AtomicUsize,
    hits: LimitHits,
}

impl<T: Clone + Send> State<T> {
    /// The state of a server that starts at `now`. `previous` are the durable records of the instance before: if there
    /// are any, a grace period begins.
    pub fn new(limits: Limits, identity: &Identity, previous: Vec<ClientRecord>, now: Time) -> Self {
        let ids = Ids::new(identity);
        let keyed = ids.keyed();
        let grace = Grace::new(previous, now + limits.grace);
        Self {
            grace_active: AtomicBool::new(grace.active()),
            limits: ArcSwap::from_pointee(limits),
            ids,
            clients: Mutex::new(Clients::new(keyed)),
            sessions: (0..SESSION_SHARDS).map(|_| Mutex::new(Map::with_hasher(keyed))).collect(),
            conns: Mutex::new(Map::with_hasher(keyed)),
            session_count: AtomicUsize::new(0),
            opens: AtomicUsize::new(0),
            stripes: (0..STRIPES).map(|_| Mutex::new(Stripe::new(keyed))).collect(),
            copies: Mutex::new(Copies::new(keyed)),
            notify_total: Arc::default(),
            deleg_counts: Arc::default(),
            waiting: AtomicUsize::new(0),
            grace: Mutex::new(grace),
            budget: Arc::new(Budget::default()),
            pressed: AtomicBool::new(false),
            denied: AtomicBool::new(false),
            unseen: AtomicUsize::new(0),
            hits: LimitHits::default(),
        }
    }

    /// The limits in force.
    pub fn limits(&self) -> arc_swap::Guard<Arc<Limits>> {
        self.limits.load()
    }

    /// Other limits from now on. What is there already stays, also where it is more than would be let in now. The lease
    /// time, the grace period and the sizes of sessions stay as clients know them.
    pub fn set_limits(&self, limits: Limits) {
        let old = self.limits.load();
        self.limits.store(Arc::new(Limits {
            lease: old.lease,
            grace: old.grace,
            max_request: old.max_request,
            max_reply: old.max_reply,
            max_cached_reply: old.max_cached_reply,
            max_ops: old.max_ops,
            ..limits
        }));
    }

    /// How often each limit was hit.
    pub fn limit_hits(&self) -> &LimitHits {
        &self.hits
    }

    /// How often [`Limits::conns_per_session`] was hit: the oldest binding made room.
    pub fn session_conn_hits(&self) -> u64 {
        self.budget.conn_hits.count()
    }

    /// What time does: leases, unconfirmed clients, courtesy, the grace period, finished copies. Call it about once a
    /// second and carry the effects out in order.
    pub fn tick(&self, now: Time) -> Effects<T> {
        let mut effects = Vec::new();
        if let Some(owners) = self.grace.lock().tick(now) {
            effects.push(Effect::EndGrace(owners));
        }
        self.tick_clients(now, &mut effects);
        self.tick_copies(now);
        self.tick_notifies(now);
        self.tick_delegs(now, &mut effects);
        self.tick_waiters(now, &mut effects);
        self.tick_revoked(now);
        self.tick_slots(&mut effects);
        effects
    }

    /// Numbers for metrics.
    pub fn counts(&self) -> Counts {
        let (mut opens, mut lock_states, mut files) = (0, 0, 0);
        for s in &self.stripes {
            let s = s.lock();
            opens += s.opens.len();
            lock_states += s.locks.len();
            files += s.files.len();
        }
        let sessions: Vec<_> =
            self.sessions.iter().flat_map(|s| s.lock().values().cloned().collect::<Vec<_>>()).collect();
        Counts {
            clients: self.client_count(),
            sessions: sessions.len(),
            reply_cache: sessions.iter().map(|s| s.inner.lock().slots.cached_bytes()).sum(),
            opens,
            lock_states,
            files,
            copies: self.copies_running(),
            copy_notifies: self.notifies(),
            delegations: self.delegations(),
            write_delegations: self.write_delegations(),
            lock_waiters: self.lock_waiters(),
            reply_cache_promised: self.budget.promised(),
        }
    }

    fn session_shard(&self, id: &SessionId) -> &SessionShard {
        let [.., last] = id.0;
        // The last byte is from a keyed hash; the remainder is below the length of the array.
        #[allow(clippy::indexing_slicing)]
        &self.sessions[last as usize % SESSION_SHARDS]
    }

    /// A session by its id.
    pub fn session(&self, id: SessionId) -> Option<Arc<Session>> {
        self.session_shard(&id).lock().get(&id).cloned()
    }

    fn insert_session(&self, s: Arc<Session>) {
        self.session_shard(&s.id()).lock().insert(s.id(), s);
        self.session_count.fetch_add(1, Ordering::Relaxed);
    }

    fn remove_session(&self, id: SessionId) {
        if self.session_shard(&id).lock().remove(&id).is_some() {
            self.session_count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl<T: Clone + Send> fmt::Debug for State<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("State")
    }
}

/// Numbers for metrics: see [`State::counts`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Client records.
    pub clients: usize,
    /// Sessions.
    pub sessions: usize,
    /// Opens.
    pub opens: usize,
    /// Lock states (not ranges).
    pub lock_states: usize,
    /// Files with state.
    pub files: usize,
    /// Asynchronous copies that run.
    pub copies: usize,
    /// Copy-notify stateids.
    pub copy_notifies: usize,
    /// Delegations that are held, of both kinds.
    pub delegations: usize,
    /// Write delegations among them.
    pub write_delegations: usize,
    /// Blocking LOCKs that were denied and may be told of their turn.
    pub lock_waiters: usize,
    /// Bytes of cached replies.
    pub reply_cache: u64,
    /// Bytes that cached replies may grow to.
    pub reply_cache_promised: u64,
}
