//! Gates: FIFO queues in front of a file, for operations that must not overlap but have to wait for the backend in
//! between; and the locks of names in directories.
//!
//! Both may be held across backend calls, which a mutex of the state may not. OPEN, OPEN_DOWNGRADE, CLOSE,
//! LOCK, LOCKU, DELEGRETURN and SETATTR of the size pass the gate of their *file*; updates by name hold the locks of their *names* (the rules
//! are those of `dhow_dirlock`, the operations' side is `v4/name_locks.rs`). The end of a client passes the gates of the
//! files it has open or holds a delegation of, one after the other. READ and WRITE pass none.
//!
//! Invariants of gates:
//! 1. Order: whoever waits at the gate of a file holds no lock of a name and no other gate. So nobody waits in a circle.
//! 2. The wait is bounded: after it the caller answers DELAY, so a stuck backend call costs its own callers only.
//! 3. A gate exists while somebody holds it or waits for it; nothing is kept for idle objects.
//! 4. First come, first served: tokio's mutex is fair.

use bytes::Bytes;
use dhow_dirlock::{DirLocks, Held, Key};
use dhow_vfs::{FsId, ObjectId};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex as Fifo, OwnedMutexGuard};

/// How many independent tables; a power of two.
const SHARDS: usize = 16;

/// How long to wait at a gate before DELAY: well below a client's own time-out (60 s in Linux).
pub(crate) const GATE_WAIT: Duration = Duration::from_secs(15);

type Shard<K> = Mutex<HashMap<K, Arc<Fifo<()>>>>;

/// Gates by key.
pub(crate) struct Gates<K> {
    shards: Arc<[Shard<K>]>,
    hasher: RandomState,
}

/// Somebody is through; dropping it lets the next one in.
#[must_use = "dropping it lets the next one through the gate"]
pub(crate) struct Pass<K: Hash + Eq> {
    shards: Arc<[Shard<K>]>,
    shard: usize,
    key: K,
    guard: Option<OwnedMutexGuard<()>>,
}

/// The wait at the gate took too long: answer DELAY.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Crowded;

impl<K: Hash + Eq + Clone> Gates<K> {
    /// No gates yet.
    pub fn new() -> Self {
        let shards: Vec<Shard<K>> = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shards: shards.into(), hasher: RandomState::new() }
    }

    /// Passes the gate of `key`, after those who came before.
    ///
    /// # Errors
    /// [`Crowded`] after `wait`.
    pub async fn pass(&self, key: &K, wait: Duration) -> Result<Pass<K>, Crowded> {
        let shard = self.hasher.hash_one(key) as usize % SHARDS;
        let Some(table) = self.shards.get(shard) else { return Err(Crowded) };
        let gate = Arc::clone(table.lock().entry(key.clone()).or_default());
        // Made before the wait, so that giving up, or being dropped while waiting, cleans up too.
        let mut pass = Pass { shards: Arc::clone(&self.shards), shard, key: key.clone(), guard: None };
        match Arc::clone(&gate).try_lock_owned() {
            Ok(guard) => pass.guard = Some(guard),
            Err(_) => match tokio::time::timeout(wait, gate.lock_owned()).await {
                Ok(guard) => pass.guard = Some(guard),
                Err(_) => return Err(Crowded),
            },
        }
        Ok(pass)
    }

    /// Gates that exist.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.shards.iter().map(|s| s.lock().len()).sum()
    }
}

impl<K: Hash + Eq> Drop for Pass<K> {
    fn drop(&mut self) {
        self.guard = None;
        let Some(table) = self.shards.get(self.shard) else { return };
        let mut table = table.lock();
        // Copies of the Arc are made under this lock, so a count of 1 means that nobody waits and nobody holds it.
        if table.get(&self.key).is_some_and(|gate| Arc::strong_count(gate) == 1) {
            table.remove(&self.key);
        }
    }
}

/// The locks of all names: by directory, name and filesystem.
pub(crate) type NameLocks = DirLocks<ObjectId, Bytes, FsId>;

/// What an update of names holds.
pub(crate) type HeldNames = Held<Key<ObjectId, Bytes, FsId>>;

/// All gates of a server.
pub(crate) struct AllGates {
    /// By file.
    pub files: Gates<ObjectId>,
    /// By directory and name.
    pub names: NameLocks,
}

impl AllGates {
    pub fn new() -> Self {
        Self { files: Gates::new(), names: NameLocks::new() }
    }

    /// Passes the gate of a file.
    ///
    /// # Errors
    /// [`Crowded`].
    pub async fn file(&self, object: &ObjectId) -> Result<Pass<ObjectId>, Crowded> {
        self.files.pass(object, GATE_WAIT).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    const LONG: Duration = Duration::from_secs(1000);

    #[tokio::test(start_paused = true)]
    async fn one_at_a_time_in_order_and_nothing_is_left() {
        let gates = Arc::new(Gates::<u32>::new());
        let inside = Arc::new(AtomicU32::new(0));
        let order = Arc::new(Mutex::new(Vec::new()));
        let first = gates.pass(&7, LONG).await.unwrap();
        let mut tasks = Vec::new();
        for i in 0..50 {
            let (gates, inside, order) = (gates.clone(), inside.clone(), order.clone());
            tasks.push(tokio::spawn(async move {
                let _pass = gates.pass(&7, LONG).await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                order.lock().push(i);
                tokio::time::sleep(Duration::from_millis(10)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
            }));
            tokio::task::yield_now().await;
        }
        drop(first);
        for t in tasks {
            t.await.unwrap();
        }
        assert_eq!(*order.lock(), (0..50).collect::<Vec<_>>());
        assert_eq!(gates.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn other_keys_do_not_wait() {
        let gates = Gates::<u32>::new();
        let _one = gates.pass(&1, LONG).await.unwrap();
        let _two = gates.pass(&2, Duration::ZERO).await.unwrap();
        assert_eq!(gates.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_is_bounded_and_leaves_nothing() {
        let gates = Gates::<u32>::new();
        let held = gates.pass(&1, LONG).await.unwrap();
        assert!(matches!(gates.pass(&1, Duration::from_secs(1)).await, Err(Crowded)));
        {
            let waiting = gates.pass(&1, LONG);
            tokio::pin!(waiting);
            assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        }
        drop(held);
        assert_eq!(gates.len(), 0);
        let _again = gates.pass(&1, Duration::ZERO).await.unwrap();
    }
}
