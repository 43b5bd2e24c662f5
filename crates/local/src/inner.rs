//! The shared heart of a tree: what it holds, who acts, where work is done, what is made durable.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dhow_sys::cred::CredGuard;
use dhow_sys::open::{self, Crossing};
use dhow_sys::{Errno, cred, xattr};
use dhow_vfs::{Caps, Cred, ErrorKind, FileKind, Handle, Result};
use parking_lot::{Mutex, RwLock};
use rustix::fs::OFlags;
use tokio::sync::Semaphore;

use crate::error::sys;
use crate::exclusive::Exclusive;
use crate::fs::Filesystem;
use crate::hints::Hints;
use crate::inode::{Inode, Inodes};
use crate::leases::Leases;
use crate::options::{OpenError, Options};
use crate::sync::{Journal, Lane, Target, Verifier};

/// Where a piece of work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On this thread: it is short and works on memory.
    Here,
    /// In the blocking pool.
    Pool,
}

/// What a tree can do with the privileges of the process; to be told to the user at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Calls run as the users who make them.
    pub switches_identity: bool,
    /// Handles are opened directly.
    pub opens_handles: bool,
    /// Calls on memory run on the runtime's threads.
    pub fast: bool,
    /// Magic number of the filesystem's type.
    pub fs_magic: u32,
}

/// The state of one tree.
pub(crate) struct Inner {
    pub options: Options,
    pub caps: Caps,
    pub switching: bool,
    /// The process is the superuser to filesystems.
    pub superuser: bool,
    pub root: Arc<Inode>,
    pub inodes: Arc<Inodes>,
    pub filesystems: RwLock<Vec<Arc<Filesystem>>>,
    pub hints: Hints,
    pub exclusive: Exclusive,
    pub leases: Arc<Leases>,
    /// Files with unstable data, kept open until it is stable.
    pub dirty: Mutex<HashMap<Handle, (Arc<Inode>, Instant)>>,
    /// Files with a data descriptor, for the sweep.
    pub active: Mutex<Vec<std::sync::Weak<Inode>>>,
    pub sweeps: AtomicU64,
    pub blocking: Arc<Semaphore>,
    pub copies: Arc<Semaphore>,
    pub verifier: Arc<Verifier>,
    pub last_discovery: Mutex<Option<Instant>>,
}

/// A name for the tree's files in the state directory.
fn file_tag(path: &std::path::Path) -> String {
    let bytes = std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str());
    let h = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("{h:016x}")
}

impl Inner {
    pub(crate) fn open(mut options: Options) -> std::result::Result<Inner, OpenError> {
        options.path = options.path.canonicalize().map_err(|e| OpenError::new("find", options.path.clone(), e))?;
        let failed = |what| {
            let path = options.path.clone();
            move |e: Errno| OpenError::new(what, path, e)
        };
        let verifier = Arc::new(Verifier::fresh());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let path = rustix::fs::open(&options.path, flags, rustix::fs::Mode::empty()).map_err(failed("open"))?;
        let stat = open::stat(&path).map_err(failed("stat"))?;
        let fs = Arc::new(Filesystem::probe(&options, &path, &stat, None, &verifier).map_err(failed("read"))?);
        let handle = fs
            .handle_of(&path, &stat)
            .map_err(|e| OpenError::new("name", options.path.clone(), std::io::Error::other(e.to_string())))?;
        if options.max_cached == 0 {
            let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1 << 20);
            options.max_cached = usize::try_from(limit / 4).unwrap_or(65_536).min(65_536);
        }
        let inodes = Inodes::new(options.max_cached);
        let root = inodes.adopt(handle, &stat, &fs, path);
        let tag = file_tag(&options.path);
        let state = |kind: &str| options.state_dir.as_ref().map(|dir| dir.join(format!("{kind}-{tag}")));
        let hints = Hints::open(state("hints"), options.max_hints)
            .map_err(|e| OpenError::new("read hints for", options.path.clone(), e))?;
        let exclusive = Exclusive::open(state("exclusive"))
            .map_err(|e| OpenError::new("read verifiers for", options.path.clone(), e))?;
        let caps = probe_caps(&options, &fs);
        Ok(Inner {
            caps,
            switching: cred::can_switch_identity(),
            superuser: cred::process_identity().uid == 0 && cred::overrides_modes(),
            root,
            inodes,
            filesystems: RwLock::new(vec![fs]),
            hints,
            exclusive,
            leases: Arc::default(),
            dirty: Mutex::default(),
            active: Mutex::default(),
            sweeps: AtomicU64::new(1),
            blocking: Arc::new(Semaphore::new(options.blocking.max(1))),
            copies: Arc::new(Semaphore::new(options.copies.max(1))),
            verifier,
            last_discovery: Mutex::new(None),
            options,
        })
    }

    pub(crate) fn report(&self) -> Report {
        Report {
            switches_identity: self.switching,
            opens_handles: self.root.fs.openable,
            fast: self.root.fs.fast,
            fs_magic: self.root.fs.magic,
        }
    }

    pub(crate) fn crossing(&self) -> Crossing {
        if self.options.crossmnt { Crossing::Allowed } else { Crossing::Refused }
    }

    /// Runs `f` as the user, if the process may act as users at all.
    pub(crate) fn as_user<T>(&self, user: &Cred, f: impl FnOnce() -> Result<T>) -> Result<T> {
        if !self.switching {
            return f();
        }
        let _guard = CredGuard::become_user(user.uid, user.gid, &user.groups)
            .map_err(|e| crate::error::as_kind(ErrorKind::Access, e))?;
        f()
    }

    /// Whether the user is the superuser and the process too, so that no permission stands between them.
    pub(crate) fn is_super(&self, user: &Cred) -> bool {
        user.uid == 0 && self.superuser
    }

    /// As [`Inner::as_user`], for what only asks for permission: the superuser needs no change of groups for that.
    pub(crate) fn as_reader<T>(&self, user: &Cred, f: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.is_super(user) { f() } else { self.as_user(user, f) }
    }

    /// Runs `f` with the user's uid: for writing to what is open already.
    pub(crate) fn as_uid<T>(&self, user: &Cred, f: impl FnOnce() -> Result<T>) -> Result<T> {
        if !self.switching {
            return f();
        }
        let _guard = CredGuard::become_uid(user.uid).map_err(|e| crate::error::as_kind(ErrorKind::Access, e))?;
        f()
    }

    /// Where calls that work on memory are made on this filesystem.
    pub(crate) fn short(fs: &Filesystem) -> Place {
        if fs.fast { Place::Here } else { Place::Pool }
    }

    /// Where updates that work on memory are made. While the journal is being written an update of what is in it waits
    /// for the disk, and would keep a runtime's thread from everybody else.
    pub(crate) fn update(fs: &Filesystem) -> Place {
        if fs.fast && !fs.syncer.is_busy() { Place::Here } else { Place::Pool }
    }

    /// Whether the copy that asks is the only one under way in this tree.
    pub(crate) fn only_copy(&self) -> bool {
        self.copies.available_permits() + 1 >= self.options.copies.max(1)
    }

    /// Runs `f` at `place`.
    pub(crate) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        place: Place,
        f: impl FnOnce(&Arc<Inner>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if place == Place::Here {
            return f(self);
        }
        let permit = self.blocking.clone().acquire_owned().await;
        let inner = self.clone();
        let work = tokio::task::spawn_blocking(move || {
            let result = f(&inner);
            drop(permit);
            result
        });
        work.await.unwrap_or_else(|e| {
            tracing::error!("a blocking call panicked: {e}");
            Err(ErrorKind::Fault.into())
        })
    }

    /// Makes a call again after giving up cached descriptors, if the process has run out of them.
    pub(crate) fn with_descriptors<T>(
        &self,
        mut call: impl FnMut() -> std::result::Result<T, Errno>,
    ) -> std::result::Result<T, Errno> {
        match call() {
            Err(Errno::MFILE | Errno::NFILE) => {
                tracing::warn!("out of file descriptors; dropping the cached ones");
                self.inodes.forget_all();
                call()
            }
            other => other,
        }
    }

    /// Makes changes of names and attributes durable.
    pub(crate) async fn settle(self: &Arc<Self>, inodes: &[&Arc<Inode>]) -> Result<()> {
        let Some(fs) = inodes.first().map(|inode| inode.fs.clone()) else { return Ok(()) };
        if !self.options.metadata_sync || fs.volatile {
            return Ok(());
        }
        // An fsync of a file writes its data out too, and is shared with nobody. Where the log can be synced by itself, that
        // is done instead: whoever changes names and attributes at the same time shares one sync.
        let each = fs.journal == Journal::Other;
        let (files, rest): (Vec<&Arc<Inode>>, Vec<&Arc<Inode>>) =
            inodes.iter().copied().partition(|inode| inode.kind == FileKind::Regular && each);
        let files = async {
            for inode in files {
                self.commit_inode(inode).await?;
            }
            Ok(())
        };
        let rest = async {
            let mut targets = Vec::with_capacity(rest.len());
            for inode in rest {
                targets.push(if inode.kind == FileKind::Directory {
                    self.sync_target(inode).await?
                } else {
                    whole(&inode.fs)?
                });
            }
            self.sync_in(&fs, Lane::Meta, targets).await
        };
        tokio::try_join!(files, rest).map(drop)
    }

    /// Whether a sync of the log of exclusive creates is all that an exclusive create in `fs` needs to be durable: both lie
    /// in one filesystem whose journal is one, and the log's last record comes after the create.
    pub(crate) fn log_takes_along(&self, fs: &Filesystem) -> bool {
        self.options.metadata_sync
            && !fs.volatile
            && fs.journal == Journal::Ordered
            && self.exclusive.dev() == Some(fs.dev)
    }

    /// One shared fsync; a failure changes the write verifier.
    pub(crate) async fn sync_in(&self, fs: &Filesystem, lane: Lane, targets: Vec<Target>) -> Result<()> {
        if targets.is_empty() {
            return Ok(());
        }
        fs.syncer.sync(&self.blocking, lane, targets).await.map_err(sys)
    }

    /// A descriptor of a file or a directory that can be synced, opened as the process itself.
    pub(crate) async fn sync_target(self: &Arc<Self>, inode: &Arc<Inode>) -> Result<Target> {
        let inode = inode.clone();
        self.run(Inner::short(&inode.fs.clone()), move |inner| {
            {
                let fds = inode.fds.lock();
                if let Some(fd) = fds.write.as_ref().or(fds.read.as_ref()) {
                    return Ok(Target::File(inode.handle.clone(), fd.clone()));
                }
            }
            match inner.with_descriptors(|| open::reopen(&inode.path, OFlags::RDONLY | OFlags::NONBLOCK)) {
                Ok(fd) => {
                    let fd = Arc::new(fd);
                    inode.fds.lock().read.get_or_insert(fd.clone());
                    inner.activate(&inode);
                    Ok(Target::File(inode.handle.clone(), fd))
                }
                // Without privilege, and not readable.
                Err(Errno::ACCESS | Errno::PERM) => whole(&inode.fs),
                Err(e) => Err(sys(e)),
            }
        })
        .await
    }

    /// Puts a file on the list of those whose data descriptors the sweep looks after.
    pub(crate) fn activate(&self, inode: &Arc<Inode>) {
        let sweep = self.sweeps.load(Ordering::Relaxed);
        if inode.used.swap(sweep, Ordering::AcqRel) == 0 {
            self.active.lock().push(Arc::downgrade(inode));
        }
    }

    /// Closes data descriptors that nobody has used for a while, so that a program written by a client can be run here;
    /// lets go of files that were removed behind our back, so that their space is freed within some ten seconds; makes old unstable data stable; writes hints out. Called every 2 s.
    pub(crate) fn sweep(self: &Arc<Self>) {
        let now = self.sweeps.fetch_add(1, Ordering::AcqRel) + 1;
        let all = std::mem::take(&mut *self.active.lock());
        let mut keep = Vec::new();
        for weak in all {
            let Some(inode) = weak.upgrade() else { continue };
            let used = inode.used.load(Ordering::Acquire);
            let busy = inode.opens.load(Ordering::Acquire) > 0 || inode.is_dirty();
            if busy || now.saturating_sub(used) < 2 {
                keep.push(weak);
            } else {
                inode.used.store(0, Ordering::Release);
                let old = std::mem::take(&mut *inode.fds.lock());
                drop(old);
            }
        }
        self.active.lock().append(&mut keep);
        self.inodes.forget_removed(now);
        self.hints.flush();
        self.options.buffers.trim(Duration::from_secs(10));
        let old: Vec<_> = self
            .dirty
            .lock()
            .values()
            .filter(|(_, since)| since.elapsed() > Duration::from_secs(60))
            .map(|(inode, _)| inode.clone())
            .take(64)
            .collect();
        if !old.is_empty() {
            let inner = self.clone();
            tokio::spawn(async move {
                for inode in old {
                    // The verifier tells a failure to those who commit later.
                    let _ = inner.commit_inode(&inode).await;
                }
            });
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.hints.flush();
    }
}

fn whole(fs: &Filesystem) -> Result<Target> {
    let root = fs.root.try_clone().map_err(|e| sys(Errno::from_io_error(&e).unwrap_or(Errno::MFILE)))?;
    Ok(Target::Filesystem(Arc::new(root), fs.journal))
}

fn probe_caps(options: &Options, fs: &Filesystem) -> Caps {
    let xattrs = matches!(xattr::get(&fs.root, b"user.dhow.probe"), Ok(_) | Err(Errno::NODATA));
    let clone = options.reflink == crate::options::Reflink::Auto
        && (fs.magic == open::BTRFS_MAGIC || open::xfs_shares_blocks(&fs.root) == Some(true));
    let (max_file_size, max_links) = match fs.magic {
        // 2^32 - 1 blocks, with the common block size; 65 000 links.
        open::EXT4_MAGIC => (u64::from(u32::MAX) * u64::from(fs.block), 65_000),
        open::XFS_MAGIC => (i64::MAX as u64, i32::MAX as u32),
        open::BTRFS_MAGIC => (i64::MAX as u64, 65_535),
        open::TMPFS_MAGIC => (i64::MAX as u64, u32::MAX),
        _ => (i64::MAX as u64, 32_000),
    };
    Caps {
        read_only: fs.read_only,
        links: true,
        symlinks: true,
        special: true,
        xattrs,
        quotas: dhow_sys::quota::can_be_asked(&fs.root),
        acls: crate::acl::supported(&fs.root),
        clone,
        clone_block: if clone { fs.block } else { 0 },
        sparse: true,
        max_file_size,
        max_links,
        case_sensitive: true,
        change_is_time: fs.fine_ctime,
        exclusive: options.exclusive,
        time_delta_nanos: 1,
    }
}
