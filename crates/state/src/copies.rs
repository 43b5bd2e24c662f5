//! Asynchronous copies: the registry (RFC 7862 4.8, 15.2, 15.8, 15.9).
//!
//! A copy is made by [`State::copy_begin`], which checks the limits and yields a [`CopyTicket`]; the task that copies
//! owns the ticket and nothing else does. States: *running* (the ticket lives; the byte counter moves; it may be
//! *cancelled*, then no callback follows), *finished* (the ticket was completed; OFFLOAD_STATUS answers for a time, at
//! least until the callback is answered: case K03), gone. The counts of running copies go up and down with tickets,
//! on every path (case K06). The stateid's seqid is 1 and stays (never 0, RFC 7862 4.8).

use crate::State;
use crate::client::Client;
use crate::ids::{Keyed, Kind, Map, StateKey, check_seqid};
use crate::types::*;
use parking_lot::Mutex;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Poll, Waker};

#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) bytes: AtomicU64,
    cancelled: AtomicBool,
    /// By an administrator: the client is told how its copy ended.
    aborted: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
}

impl Shared {
    /// Ends it in the name of an administrator.
    pub(crate) fn abort(&self) {
        self.aborted.store(true, Ordering::SeqCst);
        self.cancel();
    }

    fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
        std::mem::take(&mut *self.waiting.lock()).into_iter().for_each(Waker::wake);
    }
}

#[derive(Debug)]
pub(crate) enum Phase {
    Running,
    Finished { status: Status, at: Time, acknowledged: bool },
}

#[derive(Debug)]
pub(crate) struct Copy {
    pub(crate) client: Arc<Client>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) phase: Phase,
}

/// The registry.
#[derive(Debug)]
pub(crate) struct Copies {
    pub(crate) all: Map<StateKey, Copy>,
    running: usize,
}

impl Copies {
    pub(crate) fn new(keyed: Keyed) -> Self {
        Self { all: Map::with_hasher(keyed), running: 0 }
    }
}

/// A running copy, owned by the task that does it. Dropping it uncompleted ends the copy with SERVERFAULT.
#[must_use = "dropping the ticket ends the copy"]
#[derive(Debug)]
pub struct CopyTicket<T: Clone + Send> {
    state: Arc<State<T>>,
    client: Arc<Client>,
    key: StateKey,
    shared: Arc<Shared>,
    done: bool,
}

impl<T: Clone + Send> CopyTicket<T> {
    /// The stateid of the copy.
    pub fn stateid(&self) -> Stateid {
        self.key.stateid(1)
    }

    /// The client.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// Sets how many bytes, from the start of the range, are written.
    pub fn set_bytes(&self, n: u64) {
        self.shared.bytes.store(n, Ordering::Relaxed);
    }

    /// Bytes so far.
    pub fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// Whether to stop: OFFLOAD_CANCEL, or the client is gone.
    pub fn is_cancelled(&self) -> bool {
        self.shared.cancelled.load(Ordering::SeqCst)
    }

    /// Whether an administrator ended it: then it ends with ADMIN_REVOKED, and the client is told so.
    pub fn is_aborted(&self) -> bool {
        self.shared.aborted.load(Ordering::SeqCst)
    }

    /// Waits until the copy is cancelled.
    pub async fn cancelled(&self) {
        let shared = &self.shared;
        poll_fn(|cx| {
            if shared.cancelled.load(Ordering::SeqCst) {
                return Poll::Ready(());
            }
            {
                let mut waiting = shared.waiting.lock();
                if !waiting.iter().any(|w| w.will_wake(cx.waker())) {
                    waiting.push(cx.waker().clone());
                }
            }
            if shared.cancelled.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Ends the copy with `status` (ADMIN_REVOKED if an administrator ended it). The stateid to name in CB_OFFLOAD, or `None` if it was cancelled: then no callback
    /// follows (RFC 7862 15.8.3).
    pub fn complete(mut self, status: Status, now: Time) -> Option<Stateid> {
        self.end(status, Some(now))
    }

    fn end(&mut self, status: Status, now: Option<Time>) -> Option<Stateid> {
        if std::mem::replace(&mut self.done, true) {
            return None;
        }
        let mut copies = self.state.copies.lock();
        copies.running -= 1;
        self.client.copies.fetch_sub(1, Ordering::SeqCst);
        let aborted = self.is_aborted();
        if self.is_cancelled() && !aborted {
            copies.all.remove(&self.key);
            return None;
        }
        let status = if aborted { Status::ADMIN_REVOKED } else { status };
        let copy = copies.all.get_mut(&self.key)?;
        // Without a time the task died: then it is kept from the start of time, that is, until the next tick.
        copy.phase = Phase::Finished { status, at: now.unwrap_or_default(), acknowledged: now.is_none() };
        Some(self.key.stateid(1))
    }
}

impl<T: Clone + Send> Drop for CopyTicket<T> {
    fn drop(&mut self) {
        self.end(Status::SERVERFAULT, None);
    }
}

/// What OFFLOAD_STATUS answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyStatus {
    /// Bytes written, from the start of the range.
    pub bytes: u64,
    /// How it ended; `None` while it runs.
    pub complete: Option<Status>,
}

impl<T: Clone + Send> State<T> {
    /// Begins an asynchronous copy; `None` when too many run, of this client or in all: then the server copies a slice
    /// synchronously (case K01).
    pub fn copy_begin(self: &Arc<Self>, client: &Arc<Client>) -> Option<CopyTicket<T>> {
        let mut copies = self.copies.lock();
        if copies.running >= self.limits().copies
            || client.copies.load(Ordering::SeqCst) >= self.limits().copies_per_client
        {
            self.hits.copies.add();
            return None;
        }
        if client.is_dying() {
            return None;
        }
        self.trim_finished(&mut copies, client);
        copies.running += 1;
        client.copies.fetch_add(1, Ordering::SeqCst);
        let key = self.ids.state(Kind::Copy, 0);
        let shared = Arc::<Shared>::default();
        let copy = Copy { client: client.clone(), shared: shared.clone(), phase: Phase::Running };
        copies.all.insert(key, copy);
        Some(CopyTicket { state: self.clone(), client: client.clone(), key, shared, done: false })
    }

    /// A client's finished copies are bounded: the oldest is forgotten.
    fn trim_finished(&self, copies: &mut Copies, client: &Client) {
        let mut finished: Vec<_> = copies
            .all
            .iter()
            .filter(|(_, c)| c.client.id() == client.id())
            .filter_map(|(k, c)| match c.phase {
                Phase::Finished { at, .. } => Some((at, *k)),
                Phase::Running => None,
            })
            .collect();
        if finished.len() >= self.limits().finished_copies_per_client {
            finished.sort();
            let excess = finished.len() + 1 - self.limits().finished_copies_per_client;
            for (_, k) in finished.into_iter().take(excess) {
                copies.all.remove(&k);
            }
        }
    }

    /// OFFLOAD_STATUS (RFC 7862 15.9).
    ///
    /// # Errors
    ///
    /// BAD_STATEID, OLD_STATEID.
    pub fn copy_status(&self, client: &Client, stateid: &Stateid) -> Result<CopyStatus, Status> {
        let copies = self.copies.lock();
        let (_, copy) = find(&copies, client, stateid)?;
        let complete = match copy.phase {
            Phase::Running => None,
            Phase::Finished { status, .. } => Some(status),
        };
        Ok(CopyStatus { bytes: copy.shared.bytes.load(Ordering::Relaxed), complete })
    }

    /// OFFLOAD_CANCEL (RFC 7862 15.8): the copy stops soon and no CB_OFFLOAD follows; its stateid is gone at once. A
    /// finished copy is forgotten.
    ///
    /// # Errors
    ///
    /// BAD_STATEID, OLD_STATEID.
    pub fn copy_cancel(&self, client: &Client, stateid: &Stateid) -> Result<(), Status> {
        let mut copies = self.copies.lock();
        let key = find(&copies, client, stateid)?.0;
        if let Some(c) = copies.all.remove(&key) {
            c.shared.cancel();
        }
        Ok(())
    }

    /// The client answered CB_OFFLOAD: the finished copy need be kept no longer than its time.
    pub fn copy_acknowledged(&self, client: &Client, stateid: &Stateid) {
        let mut copies = self.copies.lock();
        let key = StateKey::parse(&stateid.other);
        if let Some(c) = copies.all.get_mut(&key).filter(|c| c.client.id() == client.id())
            && let Phase::Finished { acknowledged, .. } = &mut c.phase
        {
            *acknowledged = true;
        }
    }

    /// Copies that run now.
    pub fn copies_running(&self) -> usize {
        self.copies.lock().running
    }

    /// Cancels all copies, for a shutdown.
    pub fn cancel_all_copies(&self) {
        self.copies.lock().all.values().for_each(|c| c.shared.cancel());
    }

    pub(crate) fn test_copy(&self, client: &Client, stateid: &Stateid) -> Status {
        find(&self.copies.lock(), client, stateid).map_or_else(|e| e, |_| Status::OK)
    }

    pub(crate) fn cancel_copies(&self, client: &Client) {
        let copies = self.copies.lock();
        copies.all.values().filter(|c| c.client.id() == client.id()).for_each(|c| c.shared.cancel());
    }

    pub(crate) fn forget_copies(&self, client: &Client) {
        let mut copies = self.copies.lock();
        copies.all.retain(|_, c| c.client.id() != client.id() || matches!(c.phase, Phase::Running));
    }

    /// Finished copies are forgotten: once acknowledged after their time, else after four times that. Copies of a
    /// client whose lease ended long enough ago (one more lease time) are cancelled.
    pub(crate) fn tick_copies(&self, now: Time) {
        let keep = self.limits().finished_copy_time;
        let mut copies = self.copies.lock();
        copies.all.retain(|_, c| match c.phase {
            Phase::Running => {
                if c.client.is_expired(now) && now.since(c.client.lease_end()) > self.limits().lease {
                    c.shared.cancel();
                }
                true
            }
            Phase::Finished { at, acknowledged, .. } => {
                now.since(at) <= if acknowledged { keep } else { keep.saturating_mul(4) }
            }
        });
    }
}

fn find<'a>(copies: &'a Copies, client: &Client, stateid: &Stateid) -> Result<(StateKey, &'a Copy), Status> {
    let key = StateKey::parse(&stateid.other);
    let copy = copies.all.get(&key).filter(|c| c.client.id() == client.id()).ok_or(Status::BAD_STATEID)?;
    check_seqid(stateid.seqid, 1)?;
    Ok((key, copy))
}
