//! Duplicate-request cache: replies of calls that must not run twice, for protocols without sessions (NFSv3 and
//! NFSv4.0; case B26).
//!
//! A data structure only: the caller says what is a call, when time passes, and what a reply weighs. A call whose
//! first copy still runs is recognised too, so that a retransmission that overtakes the reply does not run again.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Tells one call from another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CallKey {
    /// Who calls: the address *and port*, or the number of the connection. With the address alone, two clients behind
    /// one address that happen to use the same transaction number would get each other's replies.
    pub client: Box<[u8]>,
    /// Transaction number.
    pub xid: u32,
    /// Program.
    pub prog: u32,
    /// Version.
    pub vers: u32,
    /// Procedure.
    pub proc: u32,
    /// Checksum of the arguments (see [`checksum`]): a client that restarts may begin with the same transaction
    /// numbers again.
    pub checksum: u64,
}

/// Bytes of the arguments that go into [`checksum`].
const CHECKSUM_BYTES: usize = 1024;

/// A checksum of a call's arguments: their length and first KiB (FNV-1a). Tells accidents apart; it is no defence
/// against a client that wants to fool itself.
pub fn checksum(args: &[u8]) -> u64 {
    let len = (args.len() as u64).to_be_bytes();
    let bytes = len.iter().chain(args.iter().take(CHECKSUM_BYTES));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, b| (hash ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

/// Bounds of a [`DuplicateCache`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most calls remembered, running ones included.
    pub entries: usize,
    /// Most bytes of replies.
    pub bytes: usize,
    /// How long a reply is kept.
    pub max_age: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { entries: 4096, bytes: 4 << 20, max_age: Duration::from_secs(120) }
    }
}

/// What to do with a call.
#[derive(Debug, PartialEq, Eq)]
pub enum Begin<R> {
    /// Run it, then call [`DuplicateCache::finish`] or [`DuplicateCache::abort`].
    Run,
    /// Its first copy still runs: drop this one, the reply will come.
    InProgress,
    /// Send this reply again.
    Replay(R),
    /// As many calls run as can be remembered: drop this one, the client will send it again.
    Full,
}

enum Entry<R> {
    Running,
    Done { reply: R, bytes: usize, at: Duration },
}

/// The cache. `R` is a reply; cloning it should be cheap (buffers by reference).
pub struct DuplicateCache<R> {
    limits: Limits,
    entries: HashMap<CallKey, Entry<R>>,
    /// Finished calls, the oldest first; each once.
    done: VecDeque<CallKey>,
    bytes: usize,
}

impl<R: Clone> DuplicateCache<R> {
    /// An empty cache.
    pub fn new(limits: Limits) -> Self {
        Self { limits, entries: HashMap::new(), done: VecDeque::new(), bytes: 0 }
    }

    /// Notes that a call has arrived. `now` is a monotonic time of the caller's choice.
    pub fn begin(&mut self, key: &CallKey, now: Duration) -> Begin<R> {
        self.expire(now);
        match self.entries.get(key) {
            Some(Entry::Running) => return Begin::InProgress,
            Some(Entry::Done { reply, .. }) => return Begin::Replay(reply.clone()),
            None => {}
        }
        while self.entries.len() >= self.limits.entries {
            if !self.evict_oldest() {
                return Begin::Full;
            }
        }
        self.entries.insert(key.clone(), Entry::Running);
        Begin::Run
    }

    /// Keeps the reply of a call that ran; `bytes` is its size. A reply too large for the cache is not kept. Calls
    /// that [`DuplicateCache::begin`] did not admit are ignored.
    pub fn finish(&mut self, key: &CallKey, reply: R, bytes: usize, now: Duration) {
        if !matches!(self.entries.get(key), Some(Entry::Running)) {
            return;
        }
        if bytes > self.limits.bytes {
            self.entries.remove(key);
            return;
        }
        while self.bytes + bytes > self.limits.bytes && self.evict_oldest() {}
        self.entries.insert(key.clone(), Entry::Done { reply, bytes, at: now });
        self.done.push_back(key.clone());
        self.bytes += bytes;
    }

    /// Forgets a call that did not run to its end, so that a retransmission runs it.
    pub fn abort(&mut self, key: &CallKey) {
        if matches!(self.entries.get(key), Some(Entry::Running)) {
            self.entries.remove(key);
        }
    }

    /// Calls remembered, running ones included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of replies kept.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn expire(&mut self, now: Duration) {
        while let Some(Entry::Done { at, .. }) = self.done.front().and_then(|key| self.entries.get(key)) {
            if now.saturating_sub(*at) <= self.limits.max_age {
                return;
            }
            self.evict_oldest();
        }
    }

    /// Running calls are never evicted: that would let a retransmission run beside them.
    fn evict_oldest(&mut self) -> bool {
        let Some(key) = self.done.pop_front() else {
            return false;
        };
        if let Some(Entry::Done { bytes, .. }) = self.entries.remove(&key) {
            self.bytes -= bytes;
        }
        true
    }
}
