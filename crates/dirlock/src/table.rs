//! Claims on keys, granted all at once in the order of arrival.

use crate::sync::Mutex;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// With whom a key may be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// With others who share it.
    Shared,
    /// With nobody.
    Exclusive,
}

/// A key, and how it is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim<K> {
    /// What is claimed.
    pub key: K,
    /// How.
    pub mode: Mode,
}

/// Wakers to be woken once the table is unlocked; mostly none.
type Wake = SmallVec<[Waker; 4]>;

/// A waker to be dropped once the table is unlocked: dropping one may end its task, and with it what the task holds here.
type Old = Option<Waker>;

/// Who claims a key, held or waiting, by ticket.
#[derive(Debug, Default)]
struct Queue {
    shared: BTreeSet<u64>,
    exclusive: BTreeSet<u64>,
}

impl Queue {
    fn set(&mut self, mode: Mode) -> &mut BTreeSet<u64> {
        match mode {
            Mode::Shared => &mut self.shared,
            Mode::Exclusive => &mut self.exclusive,
        }
    }

    /// Whether nothing before `ticket` stands in its way.
    fn is_free(&self, ticket: u64, mode: Mode) -> bool {
        let after = |set: &BTreeSet<u64>| set.first().is_none_or(|first| *first >= ticket);
        after(&self.exclusive) && (mode == Mode::Shared || after(&self.shared))
    }

    /// Who may have waited for `gone`, a ticket that has just left: those behind it, up to the next that holds the rest
    /// up anyway.
    fn behind(&self, gone: u64, mode: Mode, found: &mut SmallVec<[u64; 8]>) {
        let next = self.exclusive.range(gone..).next().copied();
        if mode == Mode::Exclusive {
            found.extend(self.shared.range(gone..next.unwrap_or(u64::MAX)).copied());
        }
        found.extend(next);
    }
}

struct Entry<K> {
    claims: Vec<Claim<K>>,
    granted: bool,
    waker: Option<Waker>,
}

struct Table<K> {
    next: u64,
    queues: BTreeMap<K, Queue>,
    entries: BTreeMap<u64, Entry<K>>,
}

impl<K: Ord + Clone> Table<K> {
    fn is_free(&self, ticket: u64, claims: &[Claim<K>]) -> bool {
        claims.iter().all(|claim| self.queues.get(&claim.key).is_some_and(|q| q.is_free(ticket, claim.mode)))
    }

    fn add(&mut self, claims: Vec<Claim<K>>) -> u64 {
        let ticket = self.next;
        // At a thousand million a second it lasts for centuries.
        self.next += 1;
        for claim in &claims {
            self.queues.entry(claim.key.clone()).or_default().set(claim.mode).insert(ticket);
        }
        let granted = self.is_free(ticket, &claims);
        self.entries.insert(ticket, Entry { claims, granted, waker: None });
        ticket
    }

    /// Takes a ticket out, held or waiting, and grants what it stood in the way of.
    fn remove(&mut self, ticket: u64, wake: &mut Wake) -> Old {
        let entry = self.entries.remove(&ticket)?;
        let mut behind = SmallVec::<[u64; 8]>::new();
        for claim in &entry.claims {
            let Some(queue) = self.queues.get_mut(&claim.key) else { continue };
            queue.set(claim.mode).remove(&ticket);
            queue.behind(ticket, claim.mode, &mut behind);
            if queue.shared.is_empty() && queue.exclusive.is_empty() {
                self.queues.remove(&claim.key);
            }
        }
        for ticket in behind {
            let free = match self.entries.get(&ticket) {
                Some(entry) => !entry.granted && self.is_free(ticket, &entry.claims),
                None => false,
            };
            if free && let Some(entry) = self.entries.get_mut(&ticket) {
                entry.granted = true;
                wake.extend(entry.waker.take());
            }
        }
        entry.waker
    }

    /// Whether the table is as the rules want it: a request is granted exactly if it is free, whoever holds a key at
    /// once shares it, each key's tickets are those of the requests that claim it.
    #[cfg(test)]
    fn check(&self) {
        for (ticket, entry) in &self.entries {
            assert_eq!(entry.granted, self.is_free(*ticket, &entry.claims), "granted exactly if free");
            assert!(!(entry.granted && entry.waker.is_some()), "a granted request was not woken");
            for claim in &entry.claims {
                let queue = &self.queues[&claim.key];
                let (own, other) = match claim.mode {
                    Mode::Shared => (&queue.shared, &queue.exclusive),
                    Mode::Exclusive => (&queue.exclusive, &queue.shared),
                };
                assert!(own.contains(ticket) && !other.contains(ticket));
            }
        }
        for queue in self.queues.values() {
            assert!(queue.shared.len() + queue.exclusive.len() > 0, "an idle key was kept");
            let granted = |set: &BTreeSet<u64>| set.iter().filter(|t| self.entries[t].granted).count();
            let (shared, exclusive) = (granted(&queue.shared), granted(&queue.exclusive));
            assert!(exclusive == 0 || (exclusive == 1 && shared == 0), "{exclusive} and {shared} hold one key");
        }
    }
}

struct Shared<K>(Mutex<Table<K>>);

impl<K: Ord + Clone> Shared<K> {
    fn remove(&self, ticket: u64) {
        let mut wake = Wake::new();
        // A statement of its own: the lock ends with it, and only then is the old waker dropped.
        let old = self.0.lock().remove(ticket, &mut wake);
        drop(old);
        wake.into_iter().for_each(Waker::wake);
    }
}

/// Locks by key. Cheap to clone; clones are one table.
pub struct Locks<K: Ord + Clone> {
    shared: Arc<Shared<K>>,
}

impl<K: Ord + Clone> Clone for Locks<K> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<K: Ord + Clone> Default for Locks<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Ord + Clone> Locks<K> {
    /// Nothing is claimed yet.
    pub fn new() -> Self {
        let table = Table { next: 0, queues: BTreeMap::new(), entries: BTreeMap::new() };
        Self { shared: Arc::new(Shared(Mutex::new(table))) }
    }

    /// Takes a place in the queues of all that is claimed, at once; not when the request is first polled. A key that
    /// is claimed twice counts once, in the stronger mode. A task must not request while it holds (rule 2).
    pub fn request(&self, mut claims: Vec<Claim<K>>) -> Request<K> {
        // The stronger first, for dedup keeps the first.
        claims.sort_by(|a, b| a.key.cmp(&b.key).then(b.mode.cmp(&a.mode)));
        claims.dedup_by(|later, first| later.key == first.key);
        let ticket = self.shared.0.lock().add(claims);
        Request { ticket: Some(ticket), shared: Arc::clone(&self.shared) }
    }

    /// Requests that hold or wait.
    pub fn requests(&self) -> usize {
        self.shared.0.lock().entries.len()
    }

    /// Holds the table against its rules.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        self.shared.0.lock().check();
    }

    /// Keys in the table.
    pub fn keys(&self) -> usize {
        self.shared.0.lock().queues.len()
    }
}

/// A place in the queues; ready when everything that was claimed is held. Dropping it gives the place up.
#[must_use = "a request waits only if it is awaited, and stands in the way of others meanwhile"]
pub struct Request<K: Ord + Clone> {
    /// `None` once it has become a [`Held`].
    ticket: Option<u64>,
    shared: Arc<Shared<K>>,
}

impl<K: Ord + Clone> Request<K> {
    /// Its place: who came earlier has a lower one.
    #[cfg(test)]
    pub(crate) fn ticket(&self) -> u64 {
        self.ticket.expect("it waits")
    }

    /// What was claimed, if it is held already; else the request again.
    ///
    /// # Errors
    /// The request: it has to wait.
    pub fn now(mut self) -> Result<Held<K>, Self> {
        let granted = match self.ticket {
            Some(ticket) => self.shared.0.lock().entries.get(&ticket).is_some_and(|entry| entry.granted),
            None => false,
        };
        match self.ticket {
            Some(ticket) if granted => {
                self.ticket = None;
                Ok(Held { ticket, shared: Arc::clone(&self.shared) })
            }
            _ => Err(self),
        }
    }
}

impl<K: Ord + Clone> Future for Request<K> {
    type Output = Held<K>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Held<K>> {
        // Asked again after it was ready: never.
        let Some(ticket) = self.ticket else { return Poll::Pending };
        let waker = cx.waker().clone();
        let (granted, old) = match self.shared.0.lock().entries.get_mut(&ticket) {
            Some(entry) if !entry.granted => (false, entry.waker.replace(waker)),
            _ => (true, None),
        };
        drop(old);
        if !granted {
            return Poll::Pending;
        }
        self.ticket = None;
        Poll::Ready(Held { ticket, shared: Arc::clone(&self.shared) })
    }
}

impl<K: Ord + Clone> Drop for Request<K> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.shared.remove(ticket);
        }
    }
}

/// Everything that a request claimed; dropping it lets the next ones in.
#[must_use = "dropping it lets the next ones in"]
pub struct Held<K: Ord + Clone> {
    ticket: u64,
    shared: Arc<Shared<K>>,
}

impl<K: Ord + Clone> Drop for Held<K> {
    fn drop(&mut self) {
        self.shared.remove(self.ticket);
    }
}

impl<K: Ord + Clone> std::fmt::Debug for Held<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Held({})", self.ticket)
    }
}
