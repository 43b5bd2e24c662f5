//! What all handles and tasks of one client share.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dhow_net::{ConnOptions, Connection, NetShared};
use dhow_proto::v4::ops::{ChannelAttrs, ExchangeIdOk};
use dhow_proto::v4::{ClientId, SessionId, payload};
use dhow_session::backchannel::BackSlots;
use dhow_session::lease::Lease;
use dhow_session::recovery::{Recovery, Step};
use dhow_session::slots::{End, SlotTable, Ticket};
use dhow_session::{Epoch, Time};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};

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
    pub(crate) session: Option<Arc<Session>>,
    pub(crate) table: SlotTable,
    /// Those who wait for a slot, in order.
    pub(crate) waiters: VecDeque<oneshot::Sender<Ticket>>,
    pub(crate) lease: Lease,
    /// The session in which the server told the length of the lease.
    pub(crate) lease_known: Epoch,
    pub(crate) minor: u32,
    /// When the last reclaim ended.
    pub(crate) reclaimed_at: Time,
    /// Set once: why no more calls can be made.
    pub(crate) failed: Option<Error>,
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
    pub(crate) links: Vec<Mutex<Option<Live>>>,
    pub(crate) state: Mutex<State>,
    /// Counts changes of links and state; everybody who waits for something waits for the next.
    pub(crate) changes: watch::Sender<u64>,
    /// Wakes the recovery task.
    pub(crate) kick: Notify,
    /// Wakes the task that looks for revoked stateids.
    pub(crate) revoked: Notify,
    /// Wakes those who wait for a lock to come free (CB_NOTIFY_LOCK).
    pub(crate) lock_freed: Notify,
    /// A binding to the back channel is wanted.
    pub(crate) backchannel_wanted: AtomicU64,
    pub(crate) counters: Counters,
    pub(crate) offloads: Offloads,
    pub(crate) opens: Opens,
    pub(crate) delegations: Delegations,
    /// What the server said of itself.
    pub(crate) server: Mutex<Option<ExchangeIdOk>>,
    /// Differs in each instance: verifiers, owners, seeds come from it.
    pub(crate) nonce: u64,
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
        let links = (0..config.connections.max(1)).map(|_| Mutex::new(None)).collect();
        let minor = config.minor_versions.first().copied().unwrap_or(2);
        let state = State {
            recovery: Recovery::new(nonce),
            session: None,
            table: SlotTable::new(Epoch(0), 1, 1),
            waiters: VecDeque::new(),
            lease: Lease::new(Duration::from_secs(30), Time::ZERO),
            lease_known: Epoch(0),
            minor,
            reclaimed_at: Time::ZERO,
            failed: None,
        };
        Self {
            config,
            net,
            conn_options,
            links,
            state: Mutex::new(state),
            changes: watch::Sender::new(0),
            kick: Notify::new(),
            revoked: Notify::new(),
            lock_freed: Notify::new(),
            backchannel_wanted: AtomicU64::new(0),
            counters: Counters::default(),
            offloads: Offloads::default(),
            opens: Opens::default(),
            delegations: Delegations::default(),
            server: Mutex::new(None),
            nonce,
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
        self.changes.send_modify(|n| *n = n.wrapping_add(1));
    }

    /// Waits until `look` finds something. `look` is called again after every change of links or state.
    pub(crate) async fn when<T>(&self, mut look: impl FnMut(&Self) -> Option<T>) -> T {
        let mut changes = self.changes.subscribe();
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            // Never fails: the sender lives in self.
            let _ = changes.changed().await;
        }
    }

    /// The live connection with the fewest calls pending of those that `wanted` accepts.
    pub(crate) fn pick(&self, wanted: impl Fn(&Live) -> bool) -> Option<Connection> {
        let live = self.links.iter().filter_map(|link| link.lock().clone());
        live.filter(|l| wanted(l) && !l.conn.is_closed()).min_by_key(|l| l.conn.pending()).map(|l| l.conn)
    }

    /// Forgets that `conn` is bound, so that its task binds it again.
    pub(crate) fn unbind(&self, conn: &Connection) {
        for link in &self.links {
            if let Some(live) = link.lock().as_mut().filter(|l| l.conn == *conn) {
                live.bound = Epoch(0);
            }
        }
        self.changed();
    }

    pub(crate) fn bound(&self, conn: &Connection, epoch: Epoch) {
        for link in &self.links {
            if let Some(live) = link.lock().as_mut().filter(|l| l.conn == *conn) {
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
            std::mem::take(&mut state.waiters)
        };
        drop(waiters);
        for link in &self.links {
            if let Some(live) = link.lock().take() {
                live.conn.close(dhow_net::CloseReason::Local("client closed"));
            }
        }
        self.kick.notify_one();
        self.revoked.notify_one();
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

    /// A slot of session `epoch`. `None` when that session is over. During recovery only the recovery itself
    /// (`internal`) gets one.
    pub(crate) async fn acquire(&self, epoch: Epoch, internal: bool, caller: &Caller) -> Result<Option<Ticket>> {
        let mut waiter = {
            let mut state = self.state.lock();
            if let Some(e) = &state.failed {
                return Err(e.clone());
            }
            let usable = if internal { state.recovery.holds(epoch) } else { state.recovery.is_ready() };
            if state.table.epoch() != epoch || !usable {
                return Ok(None);
            }
            // Those who came before are served first.
            if (internal || state.waiters.is_empty())
                && let Some(ticket) = state.table.acquire()
            {
                return Ok(Some(ticket));
            }
            if state.table.is_exhausted() && state.recovery.session_lost(epoch) {
                drop(state);
                self.kick.notify_one();
                return Ok(None);
            }
            let (tx, rx) = oneshot::channel();
            state.waiters.push_back(tx);
            rx
        };
        tokio::select! {
            biased;
            // An error means that the session ended while we waited.
            given = &mut waiter => Ok(given.ok()),
            () = caller.gone() => {
                waiter.close();
                // A slot may have been handed over in this moment.
                if let Ok(ticket) = waiter.try_recv() {
                    self.with_table(|t| t.complete(&ticket, End::NotExecuted));
                }
                Err(Error::Closed)
            }
        }
    }

    /// Works on the slot table, then hands slots that came free to those who wait.
    pub(crate) fn with_table<R>(&self, work: impl FnOnce(&mut SlotTable) -> R) -> R {
        let mut state = self.state.lock();
        let state = &mut *state;
        let out = work(&mut state.table);
        while let Some(waiter) = state.waiters.pop_front() {
            if waiter.is_closed() {
                continue;
            }
            match state.table.acquire() {
                Some(ticket) => {
                    if let Err(ticket) = waiter.send(ticket) {
                        state.table.complete(&ticket, End::NotExecuted);
                    }
                }
                None => {
                    state.waiters.push_front(waiter);
                    break;
                }
            }
        }
        out
    }

    /// A request of session `epoch` was told that the session (or the client ID) is gone.
    pub(crate) fn session_lost(&self, epoch: Epoch) {
        let waiters = {
            let mut state = self.state.lock();
            if !state.recovery.session_lost(epoch) {
                return;
            }
            std::mem::take(&mut state.waiters)
        };
        drop(waiters);
        tracing::debug!(?epoch, server = %self.config.server, "session lost");
        self.kick.notify_one();
        self.changed();
    }
}
