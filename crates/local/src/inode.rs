//! One object that is in use, and the cache of them.
//!
//! An [`Inode`] exists once for each object however it was reached: a table of weak references sees to that. A bounded
//! cache keeps the recently used ones alive; opens and files with unstable data keep theirs by themselves.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use dhow_sys::open::{self, Stat};
use dhow_vfs::{Error, ErrorKind, FileKind, Handle};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::sys;
use crate::fs::Filesystem;
use crate::locks::LockTable;
use crate::rights::Rights;

/// The descriptors for data: one, for reading and writing, if that could be had.
#[derive(Clone, Default)]
pub(crate) struct Fds {
    pub read: Option<Arc<OwnedFd>>,
    pub write: Option<Arc<OwnedFd>>,
}

/// The change attribute, and what it was made of.
#[derive(Default)]
struct Change {
    ctime: u64,
    value: u64,
    /// Counts new values: who finds that it moved while he looked at the object has looked too early.
    epoch: u64,
}

impl Change {
    /// The value for `ctime`: the ctime itself, or more if that has been given out before or the clock went back.
    fn of(&mut self, ctime: open::Time) -> u64 {
        let ctime = nanos(ctime);
        if self.value == 0 {
            self.value = ctime;
        } else if self.ctime != ctime {
            self.raise(ctime);
        }
        self.ctime = ctime;
        self.value
    }

    fn raise(&mut self, to: u64) -> u64 {
        self.value = to.max(self.value.wrapping_add(1));
        self.epoch += 1;
        self.value
    }
}

/// An object in use.
pub(crate) struct Inode {
    pub handle: Handle,
    pub fs: Arc<Filesystem>,
    pub kind: FileKind,
    pub ino: u64,
    /// Holds the object (`O_PATH`).
    pub path: OwnedFd,
    /// Never locked across a system call that can wait.
    pub fds: Mutex<Fds>,
    /// Opens granted on it.
    pub opens: AtomicU32,
    /// Counts unstable writes.
    pub writes: AtomicU64,
    /// The value of `writes` up to which data is known to be stable.
    pub stable: AtomicU64,
    /// Calls under way that may keep the kernel's lock of the file for long: copies, changes of size and space.
    pub changing: AtomicU32,
    /// Held by the one large write under way. The kernel makes one after the other anyway, but lets those who wait turn in
    /// circles, each with a thread.
    turn: OnceLock<Arc<Semaphore>>,
    /// The sweep (by its number) in which a data descriptor was last used.
    pub used: AtomicU64,
    /// Changes under way of this directory, in it or of it, and how many have begun.
    pub updates: Mutex<(u32, u64)>,
    /// The last exclusive create in this directory made its file in vain: the name was taken.
    pub taken: AtomicBool,
    /// In this directory a file without a name may be given none, though files can be created.
    pub no_nameless: AtomicBool,
    change: Mutex<Change>,
    /// What users may do, as far as it has been asked.
    pub rights: Mutex<Rights>,
    /// Locks of lock-owners, where local programs are to see them.
    pub locks: Mutex<LockTable>,
    home: Weak<Inodes>,
}

/// Counts a call that may keep the kernel's lock of a file for long, for as long as it lives.
pub(crate) struct Changing(Arc<Inode>);

impl Changing {
    pub(crate) fn new(inode: &Arc<Inode>) -> Changing {
        inode.changing.fetch_add(1, Ordering::AcqRel);
        Changing(inode.clone())
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        self.0.changing.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The type of an object from its `st_mode`.
pub(crate) fn kind_of(mode: u32) -> FileKind {
    match rustix::fs::FileType::from_raw_mode(mode) {
        rustix::fs::FileType::Directory => FileKind::Directory,
        rustix::fs::FileType::Symlink => FileKind::Symlink,
        rustix::fs::FileType::BlockDevice => FileKind::Block,
        rustix::fs::FileType::CharacterDevice => FileKind::Char,
        rustix::fs::FileType::Fifo => FileKind::Fifo,
        rustix::fs::FileType::Socket => FileKind::Socket,
        _ => FileKind::Regular,
    }
}

/// A ctime as one number, nanoseconds since 1970.
pub(crate) fn nanos(time: open::Time) -> u64 {
    (time.sec as u64).wrapping_mul(1_000_000_000).wrapping_add(u64::from(time.nsec))
}

impl Inode {
    /// Its attributes as the kernel has them now.
    pub(crate) fn stat(&self) -> Result<Stat, Error> {
        let stat = open::stat(&self.path).map_err(sys)?;
        // Held by us alone, it is gone for everybody else.
        if stat.nlink == 0 && self.opens.load(Ordering::Acquire) == 0 {
            if let Some(home) = self.home.upgrade() {
                home.forget(&self.handle);
            }
            return Err(ErrorKind::Stale.into());
        }
        Ok(stat)
    }

    /// Its attributes, and the change attribute that goes with them. A value is never given out with attributes older
    /// than those it was first given out with: a client that has seen the newer ones would take the older for as new,
    /// and keep them. So one who was overtaken while he looked looks again.
    pub(crate) fn stat_change(&self) -> Result<(Stat, u64), Error> {
        for _ in 0..8 {
            let epoch = self.change.lock().epoch;
            let stat = self.stat()?;
            let mut change = self.change.lock();
            if change.epoch == epoch {
                return Ok((stat, change.of(stat.ctime)));
            }
        }
        // So busy that every look is overtaken: a value of its own, which nobody has seen with newer attributes.
        let stat = self.stat()?;
        Ok((stat, self.change_more()))
    }

    /// Attributes that were taken a moment ago, or newer ones, and the change attribute that goes with them.
    pub(crate) fn with_change(&self, stat: &Stat) -> (Stat, u64) {
        let overtaken = !self.fs.fine_ctime || nanos(stat.ctime) < self.change.lock().ctime;
        match overtaken.then(|| self.stat_change()) {
            Some(Ok(now)) => now,
            // Gone meanwhile: what it was is as good as anything.
            Some(Err(_)) | None => (*stat, self.change(stat.ctime)),
        }
    }

    /// The change attribute that goes with a `ctime` that was looked at a moment ago. Only for objects that nobody else
    /// can have changed meanwhile, or where a value too many does no harm.
    pub(crate) fn change(&self, ctime: open::Time) -> u64 {
        self.change.lock().of(ctime)
    }

    /// Tells that the object was changed through us. Where ctime ticks coarsely this change may have left it as it was.
    pub(crate) fn changed(&self) {
        if !self.fs.fine_ctime {
            let mut change = self.change.lock();
            if change.value != 0 {
                change.raise(0);
            }
        }
    }

    /// A new value of the change attribute, though ctime may be what it was.
    pub(crate) fn change_more(&self) -> u64 {
        self.change.lock().raise(0)
    }

    /// Waits, in line, until no other large write to the file is under way.
    pub(crate) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        let turn = self.turn.get_or_init(|| Arc::new(Semaphore::new(1)));
        // Never closed.
        turn.clone().acquire_owned().await.ok()
    }

    /// Whether the kernel's lock of the file may be kept by a call that takes long.
    pub(crate) fn is_changing(&self) -> bool {
        self.changing.load(Ordering::Acquire) > 0
    }

    /// Fails unless it is a directory.
    pub(crate) fn must_be_dir(&self) -> Result<(), Error> {
        match self.kind {
            FileKind::Directory => Ok(()),
            FileKind::Symlink => Err(ErrorKind::Symlink.into()),
            _ => Err(ErrorKind::NotDir.into()),
        }
    }

    /// Fails unless it is a regular file.
    pub(crate) fn must_be_file(&self) -> Result<(), Error> {
        match self.kind {
            FileKind::Regular => Ok(()),
            FileKind::Directory => Err(ErrorKind::IsDir.into()),
            FileKind::Symlink => Err(ErrorKind::Symlink.into()),
            _ => Err(ErrorKind::WrongType.into()),
        }
    }

    /// Whether there is data that no fsync has covered.
    pub(crate) fn is_dirty(&self) -> bool {
        self.writes.load(Ordering::Acquire) != self.stable.load(Ordering::Acquire)
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade() {
            let mut shard = home.shard(&self.handle).lock();
            // Another may have taken our place meanwhile.
            if shard.get(&self.handle).is_some_and(|weak| weak.strong_count() == 0) {
                shard.remove(&self.handle);
            }
        }
    }
}

const SHARDS: usize = 16;

/// All objects in use, and the recently used ones that are not.
pub(crate) struct Inodes {
    hasher: RandomState,
    all: [Mutex<HashMap<Handle, Weak<Inode>>>; SHARDS],
    recent: quick_cache::sync::Cache<Handle, Arc<Inode>>,
}

impl Inodes {
    pub(crate) fn new(max_recent: usize) -> Arc<Inodes> {
        Arc::new(Inodes {
            hasher: RandomState::new(),
            all: Default::default(),
            recent: quick_cache::sync::Cache::new(max_recent.max(16)),
        })
    }

    fn shard(&self, handle: &Handle) -> &Mutex<HashMap<Handle, Weak<Inode>>> {
        let index = self.hasher.hash_one(handle) as usize % SHARDS;
        // The remainder is less than the length.
        #[allow(clippy::indexing_slicing)]
        &self.all[index]
    }

    /// The object if it is in use or was recently.
    pub(crate) fn get(&self, handle: &Handle) -> Option<Arc<Inode>> {
        if let Some(inode) = self.recent.get(handle) {
            return Some(inode);
        }
        let inode = self.shard(handle).lock().get(handle).and_then(Weak::upgrade)?;
        self.recent.insert(handle.clone(), inode.clone());
        Some(inode)
    }

    /// The object if it is in use or was recently, without counting as a use.
    pub(crate) fn get_known(&self, handle: &Handle) -> Option<Arc<Inode>> {
        self.shard(handle).lock().get(handle).and_then(Weak::upgrade)
    }

    /// The object that `path` holds: the one that is known already, or a new one.
    pub(crate) fn adopt(
        self: &Arc<Self>,
        handle: Handle,
        stat: &Stat,
        fs: &Arc<Filesystem>,
        path: OwnedFd,
    ) -> Arc<Inode> {
        if let Some(known) = self.get(&handle) {
            return known;
        }
        let new = Arc::new(Inode {
            handle: handle.clone(),
            fs: fs.clone(),
            kind: kind_of(stat.mode),
            ino: stat.ino,
            path,
            fds: Mutex::default(),
            opens: AtomicU32::new(0),
            writes: AtomicU64::new(0),
            changing: AtomicU32::new(0),
            turn: OnceLock::new(),
            stable: AtomicU64::new(0),
            used: AtomicU64::new(0),
            updates: Mutex::default(),
            taken: AtomicBool::new(false),
            no_nameless: AtomicBool::new(false),
            change: Mutex::default(),
            rights: Mutex::default(),
            locks: Mutex::default(),
            home: Arc::downgrade(self),
        });
        let known = {
            let mut shard = self.shard(&handle).lock();
            let known = shard.get(&handle).and_then(Weak::upgrade);
            if known.is_none() {
                shard.insert(handle.clone(), Arc::downgrade(&new));
            }
            known
        };
        // `new` may be dropped here, which locks the shard: it is free again.
        let inode = known.unwrap_or(new);
        self.recent.insert(handle, inode.clone());
        inode
    }

    /// Stops keeping an object for its own sake.
    pub(crate) fn forget(&self, handle: &Handle) {
        self.recent.remove(handle);
    }

    /// Stops keeping removed objects of a part of the table, so that their space is freed. Four calls with rising
    /// `part` look at all of it.
    pub(crate) fn forget_removed(&self, part: u64) {
        for shard in self.all.iter().skip((part % 4) as usize).step_by(4) {
            let known: Vec<Arc<Inode>> = shard.lock().values().filter_map(Weak::upgrade).collect();
            for inode in known {
                // Looking has the effect.
                let _ = inode.fs.fast.then(|| inode.stat());
            }
        }
    }

    /// Stops keeping all: the process is short of descriptors.
    pub(crate) fn forget_all(&self) {
        self.recent.clear();
    }
}
