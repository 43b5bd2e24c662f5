//! fsync shared by those who wait for it.
//!
//! Requests join a *lane*. At most one batch of a lane is being synced; who comes meanwhile waits for the next one,
//! together. The directories of one filesystem share a lane, since its journal is one, and where that journal is ordered
//! a batch of several directories costs one sync: a barrier that takes with it whatever came before. So hundreds of
//! creates at once, in one directory or in many, share a handful of syncs. Each file has a lane of its own, since its
//! data may take long. That all fsyncs of a file go through its one lane matters for errors too: the kernel
//! tells a failed write-out to one fsync of a descriptor only, and the lane changes the write verifier before anybody
//! hears of that fsync or of a later one.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use dhow_sys::{Errno, io};
use dhow_vfs::Handle;
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use tokio::sync::{Semaphore, oneshot};

/// Who waits for whom.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Lane {
    /// The directories of a filesystem.
    Meta,
    /// One file.
    File(Handle),
}

/// What is to be synced.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// One file or directory.
    File(Handle, Arc<OwnedFd>),
    /// All names and attributes of the filesystem of this directory: for objects that cannot be opened (symbolic links,
    /// devices), and for those whose data would take long.
    Filesystem(Arc<OwnedFd>, Journal),
}

/// How a filesystem orders its metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Journal {
    /// In one log (ext4, xfs): whatever is synced, all that came before it is durable too.
    Ordered,
    /// In some other way.
    Other,
}

impl Target {
    fn key(&self) -> Option<&Handle> {
        match self {
            Target::File(handle, _) => Some(handle),
            Target::Filesystem(..) => None,
        }
    }

    fn sync(&self) -> Result<(), Errno> {
        match self {
            Target::File(_, fd) => io::fsync(fd),
            Target::Filesystem(dir, Journal::Ordered) => barrier(dir).or_else(|_| io::syncfs(dir)),
            Target::Filesystem(dir, Journal::Other) => io::syncfs(dir),
        }
    }
}

/// The write verifier of a server instance (RFC 8881 18.32; cases B30, K25): different at every start, and changed
/// whenever written data may have been lost.
pub(crate) struct Verifier(AtomicU64);

impl Verifier {
    /// One that no other start of any server has had: not the time in seconds.
    pub(crate) fn fresh() -> Verifier {
        use std::hash::{BuildHasher, RandomState};
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos());
        // The state of a RandomState comes from the kernel's randomness.
        Verifier(AtomicU64::new(RandomState::new().hash_one((now, std::process::id()))))
    }

    pub(crate) fn bytes(&self) -> [u8; 8] {
        self.0.load(Ordering::Acquire).to_be_bytes()
    }

    /// Clients must send uncommitted data again.
    pub(crate) fn change(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// Makes all earlier changes of metadata durable, without writing out anybody's data: a file without a name is made, and
/// its fsync takes the log with it up to there.
fn barrier(dir: &OwnedFd) -> Result<(), Errno> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    io::fsync(rustix::fs::openat(dir, c".", flags, Mode::RUSR | Mode::WUSR)?)
}

#[derive(Default)]
struct Batch {
    /// Each object once, however many wait for it.
    targets: HashMap<Option<Handle>, Target>,
    waiters: Vec<Waiter>,
}

struct Waiter {
    keys: Vec<Option<Handle>>,
    done: oneshot::Sender<Result<(), Errno>>,
}

/// The lanes of a filesystem. A lane is in the map for as long as its runner runs.
pub(crate) struct Syncer {
    lanes: Mutex<HashMap<Lane, Batch>>,
    /// How many lanes run.
    running: AtomicU32,
    /// Requests, and the calls of the kernel that they came to.
    counts: [AtomicU64; 2],
    journal: Journal,
    verifier: Arc<Verifier>,
}

impl Syncer {
    pub(crate) fn new(verifier: Arc<Verifier>, journal: Journal) -> Syncer {
        Syncer { lanes: Mutex::default(), running: AtomicU32::new(0), counts: Default::default(), journal, verifier }
    }

    /// Whether an fsync is under way. Then updates of the filesystem may have to wait for its journal.
    pub(crate) fn is_busy(&self) -> bool {
        self.running.load(Ordering::Relaxed) > 0
    }

    /// Requests so far, and the syncs that they shared.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let [requests, syncs] = &self.counts;
        (requests.load(Ordering::Relaxed), syncs.load(Ordering::Relaxed))
    }

    /// Makes the targets durable. All changes made before the call are covered when it returns `Ok`.
    pub(crate) async fn sync(
        self: &Arc<Self>,
        permits: &Arc<Semaphore>,
        lane: Lane,
        targets: Vec<Target>,
    ) -> Result<(), Errno> {
        let [requests, _] = &self.counts;
        requests.fetch_add(1, Ordering::Relaxed);
        let (done, wait) = oneshot::channel();
        let start = {
            let mut lanes = self.lanes.lock();
            let start = !lanes.contains_key(&lane);
            let batch = lanes.entry(lane.clone()).or_default();
            let keys = targets.iter().map(|t| t.key().cloned()).collect();
            batch.waiters.push(Waiter { keys, done });
            for target in targets {
                batch.targets.insert(target.key().cloned(), target);
            }
            start
        };
        if start {
            self.running.fetch_add(1, Ordering::Relaxed);
            // A task of its own, so that dropping our future leaves nobody waiting for a runner that never comes.
            let (syncer, permits) = (self.clone(), permits.clone());
            tokio::spawn(async move {
                let permit = permits.acquire_owned().await;
                let ran = tokio::task::spawn_blocking(move || syncer.run(&lane)).await;
                drop(permit);
                if let Err(e) = ran {
                    tracing::error!("an fsync thread panicked: {e}");
                }
            });
        }
        wait.await.unwrap_or(Err(Errno::IO))
    }

    fn run(&self, lane: &Lane) {
        loop {
            let batch = {
                let mut lanes = self.lanes.lock();
                match lanes.get_mut(lane) {
                    Some(batch) if !batch.waiters.is_empty() => std::mem::take(batch),
                    _ => {
                        lanes.remove(lane);
                        self.running.fetch_sub(1, Ordering::Relaxed);
                        return;
                    }
                }
            };
            let together = *lane == Lane::Meta && self.sync_together(&batch.targets);
            let one = |target: &Target| if together { Ok(()) } else { self.sync_one(target) };
            let results: HashMap<Option<Handle>, Result<(), Errno>> =
                batch.targets.into_iter().map(|(key, target)| (key, one(&target))).collect();
            for Waiter { keys, done } in batch.waiters {
                let result = keys.iter().try_for_each(|key| results.get(key).copied().unwrap_or(Ok(())));
                // Nobody may be waiting any more.
                let _ = done.send(result);
            }
        }
    }

    /// One barrier in place of several syncs. An fsync of each would be right too, but a directory that others go on
    /// changing is in a later part of the log by the time it is its turn, which is then written once more. `false`:
    /// there is nothing to share, or no barrier to be had; then each is synced, and says what its own error is.
    fn sync_together(&self, targets: &HashMap<Option<Handle>, Target>) -> bool {
        if self.journal != Journal::Ordered || targets.len() < 2 {
            return false;
        }
        // A directory that was removed meanwhile takes no file.
        let done = targets.values().take(3).any(|target| match target {
            Target::File(_, fd) | Target::Filesystem(fd, _) => barrier(fd).is_ok(),
        });
        if done {
            let [_, syncs] = &self.counts;
            syncs.fetch_add(1, Ordering::Relaxed);
        }
        done
    }

    fn sync_one(&self, target: &Target) -> Result<(), Errno> {
        let [_, syncs] = &self.counts;
        syncs.fetch_add(1, Ordering::Relaxed);
        target.sync().inspect_err(|e| {
            tracing::error!("an fsync failed: {e}");
            self.verifier.change();
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verifiers_differ() {
        let verifier = Verifier::fresh();
        let first = verifier.bytes();
        assert_ne!(first, Verifier::fresh().bytes());
        verifier.change();
        assert_ne!(first, verifier.bytes());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn many_share_and_errors_stay_with_their_object() {
        let dir = tempfile_in_tmp();
        let file = Arc::new(OwnedFd::from(std::fs::File::create(&dir).unwrap()));
        let home = Arc::new(OwnedFd::from(std::fs::File::open(std::env::temp_dir()).unwrap()));
        // fsync of a pipe is refused, which stands in for a disk that fails.
        let (_reader, writer) = std::io::pipe().unwrap();
        let bad = Arc::new(OwnedFd::from(writer));
        let handle = |n: u8| Handle::new(&[n]).unwrap();
        let verifier = Arc::new(Verifier::fresh());
        let before = verifier.bytes();
        let syncer = Arc::new(Syncer::new(verifier.clone(), Journal::Other));
        let permits = Arc::new(Semaphore::new(2));
        let mut tasks = Vec::new();
        for n in 0..200 {
            let good = Target::File(handle(1), file.clone());
            let targets = match n % 4 {
                0 => vec![good, Target::File(handle(2), bad.clone())],
                1 => vec![Target::Filesystem(home.clone(), if n % 8 == 1 { Journal::Ordered } else { Journal::Other })],
                _ => vec![good],
            };
            let (syncer, permits) = (syncer.clone(), permits.clone());
            tasks.push(tokio::spawn(async move { (n, syncer.sync(&permits, Lane::Meta, targets).await) }));
        }
        for task in tasks {
            let (n, result) = task.await.unwrap();
            assert_eq!(result.is_err(), n % 4 == 0, "{n}: {result:?}");
        }
        assert_ne!(verifier.bytes(), before);
        std::fs::remove_file(dir).unwrap();
    }

    /// C5: who comes while a sync is under way shares the next one, in one directory or in many.
    #[tokio::test]
    async fn hundreds_share_one_sync() {
        let home = tempfile::tempdir().unwrap();
        for (journal, dirs, syncs) in [
            (Journal::Ordered, 1, 1),
            (Journal::Ordered, 8, 1),
            (Journal::Other, 1, 1),
            // Where one sync says nothing of the others' changes, each directory needs its own.
            (Journal::Other, 8, 8),
        ] {
            let fd = Arc::new(OwnedFd::from(std::fs::File::open(home.path()).unwrap()));
            let syncer = Arc::new(Syncer::new(Arc::new(Verifier::fresh()), journal));
            let permits = Arc::new(Semaphore::new(1));
            let busy = permits.clone().acquire_owned().await.unwrap();
            let mut all = Vec::new();
            for n in 0..500_u32 {
                let target = Target::File(Handle::new(&(n % dirs).to_be_bytes()).unwrap(), fd.clone());
                all.push(Box::pin(syncer.sync(&permits, Lane::Meta, vec![target])));
            }
            for sync in &mut all {
                assert!(futures_poll(sync.as_mut()).is_none());
            }
            drop(busy);
            for sync in all {
                sync.await.unwrap();
            }
            assert_eq!(syncer.counts(), (500, syncs), "{journal:?}, {dirs} directories");
        }
    }

    fn futures_poll<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        }
    }

    /// A removed directory takes no barrier; its neighbours are synced all the same.
    #[tokio::test]
    async fn a_removed_directory_among_others() {
        let home = tempfile::tempdir().unwrap();
        let open = |path: &std::path::Path| Arc::new(OwnedFd::from(std::fs::File::open(path).unwrap()));
        std::fs::create_dir(home.path().join("gone")).unwrap();
        let (gone, there) = (open(&home.path().join("gone")), open(home.path()));
        std::fs::remove_dir(home.path().join("gone")).unwrap();
        let target = |n: u8, fd: &Arc<OwnedFd>| Target::File(Handle::new(&[n]).unwrap(), fd.clone());
        for targets in [vec![target(1, &gone), target(2, &there)], vec![target(1, &gone), target(2, &gone)]] {
            let syncer = Arc::new(Syncer::new(Arc::new(Verifier::fresh()), Journal::Ordered));
            syncer.sync(&Arc::new(Semaphore::new(1)), Lane::Meta, targets).await.unwrap();
        }
    }

    fn tempfile_in_tmp() -> std::path::PathBuf {
        std::env::temp_dir().join(format!("dhow-syncer-{}", std::process::id()))
    }
}
