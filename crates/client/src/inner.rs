//! What all handles and tasks of one client share.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use dhow_net::{ConnOptions, Connection, NetShared};
use dhow_proto::v4::ops::{ChannelAttrs, ExchangeIdOk};
use dhow_proto::v4::{ClientId, SessionId, payload};
use dhow_session::backchannel::BackSlots;
use dhow_session::lease::Lease;
use dhow_session::pool::{Limits, Pool};
use dhow_session::recovery::{Recovery, Step};
use dhow_session::slots::{End, SlotTable, Ticket};
use dhow_session::{Epoch, Time};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::call::Caller;
use crate::counters::Counters;
use crate::deleg::Delegations;
use crate::offload::Offloads;
use crate::opens::Opens;
use crate::{ClientConfig, Error, Result};

/// Room in a record for everything that is not payload: headers, credential, other operations.
pub(crate) const OVERHEAD: u32 = 8 << 10;

/// An established session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) epoch: Epoch,
    pub(crate) id: SessionId,
    pub(crate) minor: u32,
    /// Limits of requests, as the server granted them.
    pub(crate) fore: ChannelAttrs,
    /// Slots of callbacks.
    pub(crate) back: Mutex<BackSlots>,
}

/// Guarded by one short lock; nothing awaits while it is held.
pub(crate) struct State {
    pub(crate) recovery: Recovery,
    /// The primary session.
    pub(crate) session: Option<Arc<Session>>,
    /// A primary session that was given up, and that the server still holds.
    pub(crate) abandoned: Option<Arc<Session>>,
    /// Further sessions: those that the pool has besides the primary one.
    pub(crate) further: Vec<Arc<Session>>,
    /// The slots of all sessions.
    pub(crate) pool: Pool,
    /// Those who wait for a slot, in order.
    pub(crate) waiters: VecDeque<Waiter>,
    /// The recovery itself waits for a slot of the primary session.
    pub(crate) internal_waiters: VecDeque<Waiter>,
    /// The task that looks after the number of sessions knows that somebody waits.
    pub(crate) growth_watched: bool,
    pub(crate) lease: Lease,
    /// The session in which the server told the length of the lease.
    pub(crate) lease_known: Epoch,
    pub(crate) minor: u32,
    /// When the last reclaim ended.
    pub(crate) reclaimed_at: Time,
    /// When a new client ID was last taken up because the server had revoked everything.
    pub(crate) started_over: Option<Time>,
    /// Set once: why no more calls can be made.
    pub(crate) failed: Option<Error>,
}

/// One who waits for a slot.
pub(crate) struct Waiter {
    pub(crate) since: Time,
    pub(crate) tx: oneshot::Sender<Ticket>,
}

impl State {
    /// A session of this client that is in use.
    pub(crate) fn session_of(&self, epoch: Epoch) -> Option<Arc<Session>> {
        self.session.iter().chain(&self.further).find(|s| s.epoch == epoch).cloned()
    }

    /// What is said of the client ID in this session is true of the present one: the epoch to tell the recovery. `None`
    /// for a session that is gone.
    pub(crate) fn spokesman(&self, epoch: Epoch) -> Option<Epoch> {
        self.pool.contains(epoch).then(|| self.recovery.epoch())
    }

    /// The client ID is another one: its sessions are gone.
    pub(crate) fn drop_further(&mut self) {
        self.pool.remove_further();
        self.further.clear();
    }

    /// Hands slots that are free to those who wait.
    fn serve(&mut self) {
        let (pool, ready) = (&mut self.pool, self.recovery.is_ready());
        hand_out(&mut self.internal_waiters, pool, Pool::acquire_primary);
        if ready {
            hand_out(&mut self.waiters, pool, Pool::acquire);
        }
    }
}

fn hand_out(waiters: &mut VecDeque<Waiter>, pool: &mut Pool, acquire: impl Fn(&mut Pool) -> Option<Ticket>) {
    while let Some(waiter) = waiters.pop_front() {
        if waiter.tx.is_closed() {
            continue;
        }
        match acquire(pool) {
            Some(ticket) => {
                if let Err(ticket) = waiter.tx.send(ticket) {
                    pool.table(ticket.epoch).complete(&ticket, End::NotExecuted);
                }
            }
            None => return waiters.push_front(waiter),
        }
    }
}

/// Which session a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Home {
    /// The primary one, whichever that is.
    Primary,
    /// This further one, while it lasts.
    Further(Epoch),
}

/// A place for a connection, which is made anew when it breaks.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) home: Home,
    /// The first link of a session is the one that serves its back channel.
    pub(crate) first: bool,
    pub(crate) live: Mutex<Option<Live>>,
    /// A binding to the back channel is wanted.
    pub(crate) back_wanted: AtomicBool,
    /// Such a wish is not heeded before.
    pub(crate) back_again: Mutex<Time>,
}

impl Link {
    pub(crate) fn new(home: Home, first: bool) -> Arc<Self> {
        Arc::new(Self {
            home,
            first,
            live: Mutex::new(None),
            back_wanted: AtomicBool::new(false),
            back_again: Mutex::new(Time::ZERO),
        })
    }
}

/// A connection, and the session it was bound to.
#[derive(Debug, Clone)]
pub(crate) struct Live {
    pub(crate) conn: Connection,
    pub(crate) bound: Epoch,
}

pub(crate) struct Inner {
    pub(crate) config: ClientConfig,
    pub(crate) net: Arc<NetShared>,
    pub(crate) conn_options: ConnOptions,
    /// Those of the primary session, then those of further sessions. Locked for look-ups only.
    links: Mutex<Vec<Arc<Link>>>,
    pub(crate) state: Mutex<State>,
    /// Tells of changes of links and state; everybody who waits for something waits for the next. They are woken in the
    /// order in which they came.
    pub(crate) changes: Notify,
    /// Wakes the recovery task.
    pub(crate) kick: Notify,
    /// Connections for further sessions that are yet to be made.
    pub(crate) dialled: Mutex<Vec<Connection>>,
    /// Wakes the task that looks for revoked stateids.
    pub(crate) revoked: Notify,
    /// Wakes the task that looks for filesystems that moved.
    pub(crate) moved: Notify,
    /// Wakes those who wait for a lock to come free (CB_NOTIFY_LOCK).
    pub(crate) lock_freed: Notify,
    pub(crate) counters: Counters,
    /// Held while the length of the lease is asked for: once is enough.
    pub(crate) lease_asked: tokio::sync::Mutex<()>,
    pub(crate) offloads: Offloads,
    pub(crate) opens: Opens,
    pub(crate) delegations: Delegations,
    /// What the server said of itself.
    pub(crate) server: Mutex<Option<ExchangeIdOk>>,
    /// Differs in each instance: verifiers, owners, seeds come from it.
    pub(crate) nonce: u64,
    losses: AtomicU64,
    xid: AtomicU32,
    seed: AtomicU64,
    started: Instant,
}

impl Inner {
    pub(crate) fn new(config: ClientConfig, nonce: u64) -> Self {
        let record = (config.max_io + OVERHEAD) as usize;
        // Bounds what one server can make us hold: all slots answering with full-size data at once would be far
        // beyond, so this is sized by what a pipelined transfer keeps in flight, with room to spare.
        let budget = 64 * record;
        let net = NetShared::new(2 * budget * config.connections.max(1), budget);
        let conn_options = ConnOptions {
            max_record: record,
            budget,
            payload: Some(Arc::new(payload::read_payload_offset)),
            ..ConnOptions::default()
        };
        let links = (0..config.connections.max(1)).map(|n| Link::new(Home::Primary, n == 0)).collect();
        let limits = Limits { slots: config.slots, sessions: config.sessions };
        let minor = config.minor_versions.first().copied().unwrap_or(2);
        let state = State {
            recovery: Recovery::new(nonce),
            session: None,
            abandoned: None,
            further: Vec::new(),
            pool: Pool::new(limits),
            waiters: VecDeque::new(),
            internal_waiters: VecDeque::new(),
            growth_watched: false,
            lease: Lease::new(Duration::from_secs(30), Time::ZERO),
            lease_known: Epoch(0),
            minor,
            reclaimed_at: Time::ZERO,
            started_over: None,
            failed: None,
        };
        Self {
            config,
            net,
            conn_options,
            links: Mutex::new(links),
            state: Mutex::new(state),
            changes: Notify::new(),
            kick: Notify::new(),
            dialled: Mutex::default(),
            revoked: Notify::new(),
            moved: Notify::new(),
            lock_freed: Notify::new(),
            counters: Counters::default(),
            offloads: Offloads::default(),
            lease_asked: tokio::sync::Mutex::default(),
            opens: Opens::default(),
            delegations: Delegations::default(),
            server: Mutex::new(None),
            nonce,
            losses: AtomicU64::new(0),
            xid: AtomicU32::new(nonce as u32),
            seed: AtomicU64::new(nonce),
            started: Instant::now(),
        }
    }

    pub(crate) fn now(&self) -> Time {
        self.started.elapsed()
    }

    pub(crate) fn next_xid(&self) -> u32 {
        self.xid.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn next_seed(&self) -> u64 {
        self.seed.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
    }

    pub(crate) fn changed(&self) {
        self.changes.notify_waiters();
    }

    /// Waits until `look` finds something. `look` is called again after every change of links or state.
    pub(crate) async fn when<T>(&self, mut look: impl FnMut(&Self) -> Option<T>) -> T {
        loop {
            // From here on no change is missed (Notify::notify_waiters).
            let changed = self.changes.notified();
            if let Some(found) = look(self) {
                return found;
            }
            changed.await;
        }
    }

    pub(crate) fn links(&self) -> Vec<Arc<Link>> {
        self.links.lock().clone()
    }

    pub(crate) fn add_link(&self, link: Arc<Link>) {
        self.links.lock().push(link);
    }

    pub(crate) fn remove_link(&self, link: &Arc<Link>) {
        self.links.lock().retain(|l| !Arc::ptr_eq(l, link));
    }

    /// The live connection with the fewest calls pending of those that `wanted` accepts.
    pub(crate) fn pick(&self, wanted: impl Fn(&Link, &Live) -> bool) -> Option<Connection> {
        let links = self.links.lock();
        let live = links.iter().filter_map(|link| Some((link, link.live.lock().clone()?)));
        live.filter(|(link, l)| wanted(link, l) && !l.conn.is_closed())
            .min_by_key(|(_, l)| l.conn.pending())
            .map(|(_, l)| l.conn)
    }

    /// A connection that is bound to this session.
    pub(crate) fn pick_bound(&self, epoch: Epoch) -> Option<Connection> {
        self.pick(|_, live| live.bound == epoch)
    }

    /// A connection of the primary session, bound to it or not.
    pub(crate) fn pick_primary(&self) -> Option<Connection> {
        self.pick(|link, _| link.home == Home::Primary)
    }

    /// The server cannot call back in this session (or in none, of which any session tells).
    /// Said in answer to a request that was sent at `sent_at`.
    pub(crate) fn want_backchannel(&self, epoch: Epoch, sent_at: Time) {
        let mut news = false;
        for link in self.links().iter().filter(|l| l.first) {
            let concerned = link.live.lock().as_ref().is_some_and(|l| l.bound == epoch) || link.home == Home::Primary;
            // A server that says so with every reply, whatever is done about it, is not to be asked after every reply.
            let due = sent_at >= *link.back_again.lock();
            news |= concerned && due && !link.back_wanted.swap(true, Ordering::Relaxed);
        }
        if news {
            self.changed();
        }
    }

    /// Forgets that `conn` is bound, so that its task binds it again.
    pub(crate) fn unbind(&self, conn: &Connection) {
        self.bound(conn, Epoch(0));
    }

    pub(crate) fn bound(&self, conn: &Connection, epoch: Epoch) {
        for link in self.links() {
            if let Some(live) = link.live.lock().as_mut().filter(|l| l.conn == *conn) {
                live.bound = epoch;
            }
        }
        self.changed();
    }

    /// Why calls are impossible, if they are.
    pub(crate) fn failure(&self) -> Option<Error> {
        let state = self.state.lock();
        match (&state.failed, state.recovery.step()) {
            (Some(e), _) => Some(e.clone()),
            (None, Step::Closed) => Some(Error::Closed),
            (None, _) => None,
        }
    }

    /// No more calls; everything that waits wakes up.
    pub(crate) fn fail(&self, why: Error) {
        let waiters = {
            let mut state = self.state.lock();
            state.failed.get_or_insert(why);
            state.recovery.close();
            (std::mem::take(&mut state.waiters), std::mem::take(&mut state.internal_waiters))
        };
        drop(waiters);
        for link in self.links() {
            if let Some(live) = link.live.lock().take() {
                live.conn.close(dhow_net::CloseReason::Local("client closed"));
            }
        }
        self.kick.notify_one();
        self.revoked.notify_one();
        self.moved.notify_one();
        self.lock_freed.notify_waiters();
        self.changed();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.failure().is_some()
    }

    /// The session of requests: waits until there is one.
    pub(crate) async fn session(&self) -> Result<Arc<Session>> {
        self.when(|inner| {
            if let Some(e) = inner.failure() {
                return Some(Err(e));
            }
            let state = inner.state.lock();
            state.session.clone().filter(|_| state.recovery.is_ready()).map(Ok)
        })
        .await
    }

    pub(crate) fn clientid(&self) -> Option<ClientId> {
        self.state.lock().recovery.clientid().map(ClientId)
    }

    /// A slot of any session, as long as `primary` is the primary one and requests may be sent; `None` otherwise. For
    /// the recovery itself (`internal`) one of `primary`.
    pub(crate) async fn acquire(
        &self,
        primary: Epoch,
        internal: bool,
        caller: &Caller,
    ) -> Result<Option<(Ticket, Arc<Session>)>> {
        let mut waiter = {
            let mut state = self.state.lock();
            let state = &mut *state;
            if let Some(e) = &state.failed {
                return Err(e.clone());
            }
            let usable = if internal { state.recovery.holds(primary) } else { state.recovery.is_ready() };
            if state.pool.primary().epoch() != primary || !usable {
                return Ok(None);
            }
            // Those who came before are served first.
            let ticket = match internal {
                true => state.pool.acquire_primary(),
                false if state.waiters.is_empty() => state.pool.acquire(),
                false => None,
            };
            if let Some(ticket) = ticket {
                return Ok(state.session_of(ticket.epoch).map(|session| (ticket, session)));
            }
            if state.pool.primary().is_exhausted() && state.recovery.session_lost(primary) {
                state.abandoned = state.session.clone();
                self.kick.notify_one();
                return Ok(None);
            }
            let (tx, rx) = oneshot::channel();
            let since = self.now();
            let queue = if internal { &mut state.internal_waiters } else { &mut state.waiters };
            queue.push_back(Waiter { since, tx });
            self.watch_growth(state);
            rx
        };
        let ticket = tokio::select! {
            biased;
            given = &mut waiter => match given {
                Ok(ticket) => ticket,
                // The session ended while we waited.
                Err(_) => return Ok(None),
            },
            () = caller.gone() => {
                waiter.close();
                // A slot may have been handed over in this moment.
                if let Ok(ticket) = waiter.try_recv() {
                    self.with_table(ticket.epoch, |t| t.complete(&ticket, End::NotExecuted));
                }
                return Err(Error::Closed);
            }
        };
        // None: that session was lost in this moment, and the ticket with it.
        Ok(self.state.lock().session_of(ticket.epoch).map(|session| (ticket, session)))
    }

    /// Works on the slot table of a session (of one that is gone: without effect), then hands slots that came free to
    /// those who wait.
    pub(crate) fn with_table<R>(&self, epoch: Epoch, work: impl FnOnce(&mut SlotTable) -> R) -> R {
        let mut state = self.state.lock();
        let out = work(state.pool.table(epoch));
        state.serve();
        self.watch_growth(&mut state);
        out
    }

    /// Has the recovery task look whether those who wait need another session, unless it does already.
    fn watch_growth(&self, state: &mut State) {
        if !state.waiters.is_empty() && !state.growth_watched && state.pool.may_grow() {
            state.growth_watched = true;
            self.kick.notify_one();
        }
    }

    /// Hands free slots to those who wait.
    pub(crate) fn serve_waiters(&self) {
        self.state.lock().serve();
    }

    /// The server restarted but kept the session: what was established before is to be reclaimed. Said in answer to a
    /// request that was sent at `sent_at`.
    pub(crate) fn reclaim_needed(&self, sent_at: Time) {
        let news = {
            let mut state = self.state.lock();
            // What was asked before the last reclaim ended says nothing about the time after it.
            let epoch = state.recovery.epoch();
            sent_at >= state.reclaimed_at && state.recovery.reclaim_needed(epoch)
        };
        if news {
            self.state_lost();
            self.kick.notify_one();
            self.changed();
        }
    }

    /// State is being re-established: what a request was granted before is not among it.
    pub(crate) fn state_lost(&self) {
        self.losses.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether the lease may have ended between the sending of a request at `sent_at` and its answer: what it granted
    /// may be gone already.
    pub(crate) fn answered_late(&self, sent_at: Time) -> bool {
        self.now() >= sent_at.saturating_add(self.state.lock().lease.length())
    }

    /// Changes whenever state is lost.
    pub(crate) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Acquire)
    }

    /// The primary session is of no more use, though the server holds it: it is destroyed when the requests in it have
    /// had their answers, and another one made.
    pub(crate) fn abandon(&self, epoch: Epoch) {
        let waiters = {
            let mut state = self.state.lock();
            if state.pool.retire(epoch) {
                Default::default()
            } else if state.recovery.session_lost(epoch) {
                state.abandoned = state.session.clone();
                (std::mem::take(&mut state.waiters), std::mem::take(&mut state.internal_waiters))
            } else {
                return;
            }
        };
        drop(waiters);
        tracing::debug!(?epoch, server = %self.config.server, "session given up");
        self.kick.notify_one();
        self.changed();
    }

    /// A request of session `epoch` was told that the session (or the client ID) is gone.
    pub(crate) fn session_lost(&self, epoch: Epoch) {
        let waiters = {
            let mut state = self.state.lock();
            if state.pool.remove(epoch, self.now()) {
                // The others go on. If the client ID is gone they will find out, the primary among them.
                state.further.retain(|s| s.epoch != epoch);
                Default::default()
            } else if state.recovery.session_lost(epoch) {
                (std::mem::take(&mut state.waiters), std::mem::take(&mut state.internal_waiters))
            } else {
                return;
            }
        };
        drop(waiters);
        tracing::debug!(?epoch, server = %self.config.server, "session lost");
        self.kick.notify_one();
        self.changed();
    }
}
