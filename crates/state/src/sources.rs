//! The cache of connections to other servers that copies read from (inter-server COPY, RFC 7862 4.9).
//!
//! One entry per source, shared by everything that reads from it. An entry is
//!
//! ```text
//!              acquire: nobody there                    ready(connection)
//!   (absent) ───────────────────────► connecting ─────────────────────────► ready ◄──► in use
//!      ▲                                 │ failed, or the ticket dropped       │
//!      └─────────────────────────────────┴──── broken, or idle for too long ───┘
//! ```
//!
//! * The first who needs a source gets a [`ConnectTicket`] and connects; whoever comes meanwhile waits. All of them
//!   get the connection, or all of them the failure. Nobody waits for a failed one twice: the entry is gone with it.
//! * Uses are counted by owned guards ([`Source`]), never by hand.
//! * After its last use a connection stays for the idle time. It leaves the table in the same locked step that finds it
//!   idle, so a new user either has it in use before that or does not see it at all: the two cannot meet half-way
//!   (case K17). What left the table belongs to whoever it was handed to, to be closed.
//! * When the table is full, the connection that was unused for longest makes room for a new source: what somebody had
//!   connected once cannot keep others out for the idle time.
//! * Waiting is a future; who gives up (the caller has a limit) just drops it (case K16).
//! * After [`Sources::shut`] nothing is handed out and the last guard wakes who waits for [`Sources::drained`].
//!
//! The connection is any `C: Clone`; time is handed in; no I/O is done under the lock.

use crate::types::Time;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::hash::Hash;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// Why no connection could be had. The text is for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceError {
    /// Whoever connected did not succeed.
    Failed(Arc<str>),
    /// The server shuts down.
    Shut,
    /// As many sources as allowed are in use, or being connected.
    Full,
}

#[derive(Debug)]
enum State<C> {
    Connecting { waiting: Vec<Arc<Wait<C>>> },
    Ready { connection: C, uses: usize, idle_since: Option<Time> },
}

#[derive(Debug)]
struct Entry<C> {
    /// Tells this entry from an earlier one of the same source.
    generation: u64,
    state: State<C>,
}

#[derive(Debug)]
struct Table<K, C> {
    entries: HashMap<K, Entry<C>>,
    next: u64,
    shut: bool,
    /// Guards alive, also of entries that have left the table.
    guards: usize,
    draining: Vec<Waker>,
}

/// How one who waits is told.
#[derive(Debug)]
struct Wait<C> {
    slot: Mutex<WaitSlot<C>>,
}

#[derive(Debug)]
struct WaitSlot<C> {
    outcome: Option<Result<C, SourceError>>,
    waker: Option<Waker>,
}

/// The cache. Clones share it.
#[derive(Debug)]
pub struct Sources<K, C> {
    table: Arc<Mutex<Table<K, C>>>,
    idle: Duration,
    most: usize,
}

impl<K: Hash + Eq + Clone, C: Clone> Table<K, C> {
    /// Takes out the connection that was unused for longest; the caller closes it.
    fn evict(&mut self) -> Result<C, SourceError> {
        let idle = self.entries.iter().filter_map(|(k, e)| match &e.state {
            // Not seen by a tick since its last use: that was a moment ago.
            State::Ready { uses: 0, idle_since, .. } => Some((idle_since.is_none(), *idle_since, e.generation, k)),
            _ => None,
        });
        let oldest = idle.min_by_key(|(fresh, since, generation, _)| (*fresh, *since, *generation));
        let key = oldest.map(|(.., k)| k.clone()).ok_or(SourceError::Full)?;
        match self.entries.remove(&key).map(|e| e.state) {
            Some(State::Ready { connection, .. }) => Ok(connection),
            _ => Err(SourceError::Full),
        }
    }
}

impl<K, C> Clone for Sources<K, C> {
    fn clone(&self) -> Self {
        Self { table: Arc::clone(&self.table), idle: self.idle, most: self.most }
    }
}

/// What [`Sources::acquire`] comes to.
#[derive(Debug)]
pub enum Acquired<K: Hash + Eq + Clone, C: Clone> {
    /// The connection is there.
    Ready(Source<K, C>),
    /// Nobody has one: connect, and hand the outcome to the ticket.
    Connect(ConnectTicket<K, C>),
    /// Somebody is connecting: await this (with a limit).
    Wait(Waiting<K, C>),
}

/// A connection in use. Dropping it ends the use.
#[derive(Debug)]
pub struct Source<K: Hash + Eq + Clone, C: Clone> {
    table: Arc<Mutex<Table<K, C>>>,
    key: K,
    generation: u64,
    connection: C,
}

/// The duty to connect. Dropping it unused is a failure.
#[must_use = "everybody who needs the source waits for it"]
pub struct ConnectTicket<K: Hash + Eq + Clone, C: Clone> {
    table: Arc<Mutex<Table<K, C>>>,
    key: K,
    generation: u64,
    done: bool,
    evicted: Option<C>,
}

/// A place in the queue for a connection that is being made.
#[derive(Debug)]
pub struct Waiting<K: Hash + Eq + Clone, C: Clone> {
    table: Arc<Mutex<Table<K, C>>>,
    key: K,
    generation: u64,
    wait: Arc<Wait<C>>,
    taken: bool,
}

/// What is in the cache, for metrics and tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceCounts {
    /// Being connected.
    pub connecting: usize,
    /// Connected, in use or idle.
    pub ready: usize,
    /// Uses.
    pub guards: usize,
}

impl<K: Hash + Eq + Clone, C: Clone> Sources<K, C> {
    /// An empty cache that keeps unused connections for `idle` and holds `most` sources at once.
    pub fn new(idle: Duration, most: usize) -> Self {
        let table = Table { entries: HashMap::new(), next: 0, shut: false, guards: 0, draining: Vec::new() };
        Self { table: Arc::new(Mutex::new(table)), idle, most }
    }

    /// A connection to `key`, or how to get one.
    ///
    /// # Errors
    /// [`SourceError::Shut`], [`SourceError::Full`].
    pub fn acquire(&self, key: &K) -> Result<Acquired<K, C>, SourceError> {
        let mut guard = self.table.lock();
        let t = &mut *guard;
        if t.shut {
            return Err(SourceError::Shut);
        }
        let shared = || Arc::clone(&self.table);
        match t.entries.get_mut(key) {
            Some(Entry { generation, state: State::Ready { connection, uses, idle_since } }) => {
                *uses += 1;
                *idle_since = None;
                t.guards += 1;
                let (generation, connection) = (*generation, connection.clone());
                Ok(Acquired::Ready(Source { table: shared(), key: key.clone(), generation, connection }))
            }
            Some(Entry { generation, state: State::Connecting { waiting } }) => {
                let wait = Arc::new(Wait { slot: Mutex::new(WaitSlot { outcome: None, waker: None }) });
                waiting.push(Arc::clone(&wait));
                let generation = *generation;
                Ok(Acquired::Wait(Waiting { table: shared(), key: key.clone(), generation, wait, taken: false }))
            }
            None => {
                let evicted = if t.entries.len() >= self.most { Some(t.evict()?) } else { None };
                t.next += 1;
                let generation = t.next;
                t.entries.insert(key.clone(), Entry { generation, state: State::Connecting { waiting: Vec::new() } });
                let (table, key) = (shared(), key.clone());
                Ok(Acquired::Connect(ConnectTicket { table, key, generation, done: false, evicted }))
            }
        }
    }

    /// Takes connections out that were unused for the idle time; the caller closes them. Call it about once a second:
    /// the idle time of a connection begins at the first call after its last use.
    pub fn tick(&self, now: Time) -> Vec<C> {
        let mut idle = Vec::new();
        self.table.lock().entries.retain(|_, e| match &mut e.state {
            State::Ready { uses: 0, idle_since: Some(since), connection } if now.since(*since) >= self.idle => {
                idle.push(connection.clone());
                false
            }
            State::Ready { uses: 0, idle_since: since @ None, .. } => {
                *since = Some(now);
                true
            }
            _ => true,
        });
        idle
    }

    /// Hands nothing out any more. The connections that nobody uses are returned, to be closed; those in use end with
    /// [`Sources::drained`]. Who waits is told.
    pub fn shut(&self) -> Vec<C> {
        let (idle, wakers) = {
            let mut t = self.table.lock();
            t.shut = true;
            let (mut idle, mut wakers) = (Vec::new(), Vec::new());
            t.entries.retain(|_, e| match &mut e.state {
                State::Ready { connection, uses: 0, .. } => {
                    idle.push(connection.clone());
                    false
                }
                State::Ready { .. } => true,
                State::Connecting { waiting } => {
                    wakers.extend(waiting.drain(..).filter_map(|w| w.tell(Err(SourceError::Shut))));
                    false
                }
            });
            (idle, wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
        idle
    }

    /// Waits until no connection is in use.
    pub async fn drained(&self) {
        poll_fn(|cx| {
            let mut t = self.table.lock();
            if t.guards == 0 {
                return Poll::Ready(());
            }
            if !t.draining.iter().any(|w| w.will_wake(cx.waker())) {
                t.draining.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// What is in the cache.
    pub fn counts(&self) -> SourceCounts {
        let t = self.table.lock();
        let connecting = t.entries.values().filter(|e| matches!(e.state, State::Connecting { .. })).count();
        SourceCounts { connecting, ready: t.entries.len() - connecting, guards: t.guards }
    }
}

impl<C> Wait<C> {
    /// Sets the outcome, under the table's lock; whom to wake when that is given back.
    fn tell(&self, outcome: Result<C, SourceError>) -> Option<Waker> {
        let mut slot = self.slot.lock();
        slot.outcome = Some(outcome);
        slot.waker.take()
    }
}

impl<K: Hash + Eq + Clone, C: Clone> Source<K, C> {
    /// The connection.
    pub fn connection(&self) -> &C {
        &self.connection
    }

    /// The connection turned out to be dead: nobody else gets it. Others who have it find out by themselves.
    pub fn broken(&self) {
        let mut t = self.table.lock();
        if t.entries.get(&self.key).is_some_and(|e| e.generation == self.generation) {
            t.entries.remove(&self.key);
        }
    }
}

impl<K: Hash + Eq + Clone, C: Clone> Drop for Source<K, C> {
    fn drop(&mut self) {
        let wakers = {
            let mut t = self.table.lock();
            release(&mut t, &self.key, self.generation)
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// One use less; who waits for the last one is to be woken.
fn release<K: Hash + Eq, C>(t: &mut Table<K, C>, key: &K, generation: u64) -> Vec<Waker> {
    t.guards -= 1;
    if let Some(Entry { generation: g, state: State::Ready { uses, .. } }) = t.entries.get_mut(key)
        && *g == generation
    {
        *uses -= 1;
        if *uses == 0 && t.shut {
            t.entries.remove(key);
        }
    }
    if t.guards == 0 { std::mem::take(&mut t.draining) } else { Vec::new() }
}

impl<K: Hash + Eq + Clone, C: Clone> ConnectTicket<K, C> {
    /// The connection that made room for this one, to be closed.
    pub fn take_evicted(&mut self) -> Option<C> {
        self.evicted.take()
    }

    /// It worked: the connection is there for all who wait. `Err` returns the connection if the server has been shut
    /// meanwhile: close it.
    pub fn ready(mut self, connection: C) -> Result<Source<K, C>, C> {
        self.done = true;
        let mut guard = self.table.lock();
        let t = &mut *guard;
        let wakers: Vec<Waker> = match t.entries.get_mut(&self.key) {
            Some(e) if e.generation == self.generation => match &mut e.state {
                State::Connecting { waiting } => {
                    // Each is counted as a use at once, so that the connection cannot expire before they look.
                    let waiting = std::mem::take(waiting);
                    let uses = 1 + waiting.len();
                    e.state = State::Ready { connection: connection.clone(), uses, idle_since: None };
                    t.guards += uses;
                    waiting.iter().filter_map(|w| w.tell(Ok(connection.clone()))).collect()
                }
                State::Ready { .. } => return Err(connection),
            },
            _ => return Err(connection),
        };
        drop(guard);
        wakers.into_iter().for_each(Waker::wake);
        let (table, key, generation) = (Arc::clone(&self.table), self.key.clone(), self.generation);
        Ok(Source { table, key, generation, connection })
    }

    /// It did not work: all who wait are told, and the next who comes tries anew.
    pub fn failed(mut self, why: &str) {
        self.fail(why);
    }

    fn fail(&mut self, why: &str) {
        if std::mem::replace(&mut self.done, true) {
            return;
        }
        let error = SourceError::Failed(why.into());
        let wakers: Vec<Waker> = {
            let mut t = self.table.lock();
            let waiting = match t.entries.get_mut(&self.key) {
                Some(e) if e.generation == self.generation => {
                    let waiting = match &mut e.state {
                        State::Connecting { waiting } => std::mem::take(waiting),
                        State::Ready { .. } => Vec::new(),
                    };
                    t.entries.remove(&self.key);
                    waiting
                }
                _ => Vec::new(),
            };
            waiting.iter().filter_map(|w| w.tell(Err(error.clone()))).collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl<K: Hash + Eq + Clone, C: Clone> Drop for ConnectTicket<K, C> {
    fn drop(&mut self) {
        self.fail("the attempt to connect was given up");
    }
}

impl<K: Hash + Eq + Clone, C: Clone> fmt::Debug for ConnectTicket<K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConnectTicket")
    }
}

impl<K: Hash + Eq + Clone, C: Clone> Waiting<K, C> {
    /// Waits for the outcome of whoever connects.
    ///
    /// # Errors
    /// Theirs, or [`SourceError::Shut`].
    pub async fn outcome(mut self) -> Result<Source<K, C>, SourceError> {
        let outcome = poll_fn(|cx| {
            let mut slot = self.wait.slot.lock();
            if let Some(outcome) = slot.outcome.take() {
                return Poll::Ready(outcome);
            }
            slot.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        self.taken = true;
        let (table, key, generation) = (Arc::clone(&self.table), self.key.clone(), self.generation);
        outcome.map(|connection| Source { table, key, generation, connection })
    }
}

impl<K: Hash + Eq + Clone, C: Clone> Drop for Waiting<K, C> {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        let wakers = {
            let mut t = self.table.lock();
            if let Some(Entry { generation, state: State::Connecting { waiting } }) = t.entries.get_mut(&self.key)
                && *generation == self.generation
            {
                waiting.retain(|w| !Arc::ptr_eq(w, &self.wait));
            }
            // Told, but gave up before it looked: the use that was counted for it ends. (Outcomes are set under the
            // table's lock, so it cannot be told now.)
            match self.wait.slot.lock().outcome.take() {
                Some(Ok(_)) => release(&mut t, &self.key, self.generation),
                _ => Vec::new(),
            }
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::future::Future;
    use std::pin::Pin;
    use std::task::Context;

    type S = Sources<u8, u32>;
    const IDLE: Duration = Duration::from_secs(900);

    fn poll<F: Future>(f: Pin<&mut F>) -> Poll<F::Output> {
        f.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn connect(s: &S, key: u8) -> ConnectTicket<u8, u32> {
        match s.acquire(&key) {
            Ok(Acquired::Connect(t)) => t,
            other => panic!("{other:?}"),
        }
    }

    fn ready(s: &S, key: u8) -> Source<u8, u32> {
        match s.acquire(&key) {
            Ok(Acquired::Ready(g)) => g,
            other => panic!("{other:?}"),
        }
    }

    fn wait(s: &S, key: u8) -> Waiting<u8, u32> {
        match s.acquire(&key) {
            Ok(Acquired::Wait(w)) => w,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_first_connects_and_the_others_get_it() {
        let s = S::new(IDLE, 8);
        let ticket = connect(&s, 1);
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(wait(&s, 1).outcome())).collect();
        assert!(poll(waiting[0].as_mut()).is_pending());
        let first = ticket.ready(7).unwrap();
        assert_eq!(s.counts(), SourceCounts { connecting: 0, ready: 1, guards: 4 });
        for w in &mut waiting {
            let Poll::Ready(Ok(g)) = poll(w.as_mut()) else { panic!() };
            assert_eq!(*g.connection(), 7);
        }
        drop(first);
        assert_eq!(s.counts().guards, 0);
        assert_eq!(*ready(&s, 1).connection(), 7, "a later copy needs no set-up");
        assert!(matches!(s.acquire(&2), Ok(Acquired::Connect(_))), "another source is another entry");
    }

    #[test]
    fn a_failure_reaches_all_and_leaves_nothing() {
        let s = S::new(IDLE, 8);
        let ticket = connect(&s, 1);
        let mut w = Box::pin(wait(&s, 1).outcome());
        assert!(poll(w.as_mut()).is_pending());
        ticket.failed("refused");
        let failed = Poll::Ready(Err(SourceError::Failed("refused".into())));
        assert_eq!(poll(w.as_mut()).map(|r| r.map(|_| ())), failed);
        assert_eq!(s.counts(), SourceCounts::default());
        drop(connect(&s, 1));
        assert_eq!(s.counts(), SourceCounts::default(), "a dropped ticket is a failure");
    }

    #[test]
    fn who_gives_up_leaves_cleanly_case_k16() {
        let s = S::new(IDLE, 8);
        let ticket = connect(&s, 1);
        let before = wait(&s, 1);
        let after = wait(&s, 1);
        drop(before);
        let g = ticket.ready(7).unwrap();
        assert_eq!(s.counts().guards, 2);
        drop(after);
        assert_eq!(s.counts().guards, 1, "told, but gave up before it looked");
        drop(g);
        assert_eq!(s.counts(), SourceCounts { connecting: 0, ready: 1, guards: 0 });
    }

    #[test]
    fn idle_time_begins_after_the_last_use_and_each_use_renews_it() {
        let s = S::new(IDLE, 8);
        let g = connect(&s, 1).ready(7).unwrap();
        assert!(s.tick(Time::from_secs(5000)).is_empty(), "in use");
        drop(g);
        assert!(s.tick(Time::from_secs(5001)).is_empty());
        assert!(s.tick(Time::from_secs(5900)).is_empty());
        drop(ready(&s, 1));
        assert!(s.tick(Time::from_secs(5901)).is_empty(), "renewed");
        assert!(s.tick(Time::from_secs(6800)).is_empty());
        assert_eq!(s.tick(Time::from_secs(6801)), vec![7]);
        assert!(matches!(s.acquire(&1), Ok(Acquired::Connect(_))), "case K17: expired is gone, not half there");
    }

    #[test]
    fn broken_is_not_handed_out_and_an_old_guard_harms_no_new_entry() {
        let s = S::new(IDLE, 8);
        let old = connect(&s, 1).ready(7).unwrap();
        old.broken();
        let new = connect(&s, 1).ready(8).unwrap();
        old.broken();
        drop(old);
        assert_eq!(s.counts(), SourceCounts { connecting: 0, ready: 1, guards: 1 });
        assert_eq!(*ready(&s, 1).connection(), 8);
        drop(new);
    }

    #[test]
    fn shutdown_drains() {
        let s = S::new(IDLE, 8);
        drop(connect(&s, 1).ready(1).unwrap());
        let used = connect(&s, 2).ready(2).unwrap();
        let ticket = connect(&s, 3);
        let mut w = Box::pin(wait(&s, 3).outcome());
        assert!(poll(w.as_mut()).is_pending());
        assert_eq!(s.shut(), vec![1]);
        assert!(matches!(poll(w.as_mut()), Poll::Ready(Err(SourceError::Shut))));
        assert!(matches!(s.acquire(&2), Err(SourceError::Shut)));
        assert_eq!(ticket.ready(3).unwrap_err(), 3, "connected too late: to be closed");
        let mut drained = Box::pin(s.drained());
        assert!(poll(drained.as_mut()).is_pending());
        drop(used);
        assert!(poll(drained.as_mut()).is_ready());
        assert_eq!(s.counts(), SourceCounts::default());
    }

    #[test]
    fn bounded() {
        let s = S::new(IDLE, 1);
        let _t = connect(&s, 1);
        assert!(matches!(s.acquire(&2), Err(SourceError::Full)));
    }

    #[test]
    fn the_longest_unused_makes_room() {
        let s = S::new(IDLE, 3);
        drop(connect(&s, 1).ready(1).unwrap());
        assert!(s.tick(Time::from_secs(10)).is_empty());
        drop(connect(&s, 2).ready(2).unwrap());
        assert!(s.tick(Time::from_secs(20)).is_empty());
        let used = connect(&s, 3).ready(3).unwrap();
        drop(ready(&s, 1));
        // Unused since 20 seconds, unused since a moment ago, in use.
        let mut ticket = connect(&s, 4);
        assert_eq!((ticket.take_evicted(), ticket.take_evicted()), (Some(2), None));
        let four = ticket.ready(4).unwrap();
        assert_eq!(connect(&s, 5).take_evicted(), Some(1));
        // The ticket was dropped: there is room, nobody has to go.
        let mut ticket = connect(&s, 5);
        assert_eq!(ticket.take_evicted(), None);
        assert!(matches!(s.acquire(&6), Err(SourceError::Full)), "in use, or being connected");
        drop((used, four, ticket));
        assert_eq!(s.counts(), SourceCounts { connecting: 0, ready: 2, guards: 0 });
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Acquire(u8),
        Ready,
        Fail,
        PollWaiting,
        DropWaiting,
        DropGuard,
        Broken,
        Tick(u16),
        Shut,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0..3_u8).prop_map(Step::Acquire),
            3 => Just(Step::Ready),
            2 => Just(Step::Fail),
            3 => Just(Step::PollWaiting),
            2 => Just(Step::DropWaiting),
            5 => Just(Step::DropGuard),
            1 => Just(Step::Broken),
            3 => (0..2000_u16).prop_map(Step::Tick),
            1 => Just(Step::Shut),
        ]
    }

    proptest! {
        /// Every interleaving of arrival, failure, expiry and shutdown keeps the counts exact, never closes a
        /// connection in use and never leaves anybody waiting for nothing.
        #[test]
        fn interleavings(steps in proptest::collection::vec(step(), 1..80)) {
            let s = S::new(IDLE, 2);
            let (mut tickets, mut waiting, mut guards) = (Vec::new(), Vec::new(), Vec::new());
            let (mut now, mut made) = (0_u64, 0_u32);
            for step in steps {
                match step {
                    Step::Acquire(k) => match s.acquire(&k) {
                        Ok(Acquired::Ready(g)) => guards.push(g),
                        Ok(Acquired::Connect(mut t)) => {
                            if let Some(closed) = t.take_evicted() {
                                prop_assert!(guards.iter().all(|g| *g.connection() != closed), "closed in use");
                            }
                            tickets.push(t);
                        }
                        Ok(Acquired::Wait(w)) => waiting.push(Box::pin(w.outcome())),
                        Err(_) => {}
                    },
                    Step::Ready => if let Some(t) = tickets.pop() {
                        made += 1;
                        guards.extend(t.ready(made).ok());
                    },
                    Step::Fail => drop(tickets.pop()),
                    Step::PollWaiting => if let Some(mut w) = waiting.pop() {
                        match poll(w.as_mut()) {
                            Poll::Ready(g) => guards.extend(g.ok()),
                            Poll::Pending => waiting.push(w),
                        }
                    },
                    Step::DropWaiting => drop(waiting.pop()),
                    Step::DropGuard => drop(guards.pop()),
                    Step::Broken => if let Some(g) = guards.last() { g.broken() },
                    Step::Tick(secs) => {
                        now += u64::from(secs);
                        for closed in s.tick(Time::from_secs(now)) {
                            prop_assert!(guards.iter().all(|g| *g.connection() != closed), "closed in use");
                        }
                    }
                    Step::Shut => drop(s.shut()),
                }
                prop_assert!(s.counts().guards >= guards.len());
                prop_assert_eq!(s.counts().connecting <= tickets.len(), true);
            }
            tickets.clear();
            for mut w in waiting.drain(..) {
                match poll(w.as_mut()) {
                    Poll::Ready(g) => guards.extend(g.ok()),
                    Poll::Pending => prop_assert!(false, "waits for nobody"),
                }
            }
            guards.clear();
            prop_assert_eq!(s.counts().guards, 0);
            prop_assert_eq!(s.counts().connecting, 0);
            let mut drained = Box::pin(s.drained());
            prop_assert!(poll(drained.as_mut()).is_ready());
        }
    }
}
