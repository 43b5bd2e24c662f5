//! [`MemFs`]: a whole filesystem in memory, with a model of what survives a crash.
//!
//! - Data is stable once it was written with a stability above unstable, or committed. [`MemFs::crash`] throws away the
//!   rest, and what nothing leads to any more.
//! - Metadata (names, attributes, extended attributes) is stable at once, unless [`Options::metadata_sync`] is off: then
//!   it is stable from the next commit of anything on, as with a journal.
//! - The write verifier changes with a crash, with [`MemFs::restart`], and with a commit that fails.
//! - Reading leaves the access time alone.

mod backend;
mod data;
mod tree;

pub use data::BLOCK;

use crate::memfs::data::Data;
use bytes::Bytes;
use dhow_vfs::{Caps, Cred, FileKind, HANDLE_MAX, Handle, OpenHow, Quota, Time, WriteVerifier};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Number of the root directory.
const ROOT: u64 = 2;

/// Where times come from.
#[derive(Clone, Default)]
pub enum Clock {
    /// 2023-11-14 22:13:20 UTC, and one millisecond more with every look.
    #[default]
    Counter,
    /// The clock of the system.
    System,
    /// Whatever the function says.
    Of(Arc<dyn Fn() -> Time + Send + Sync>),
}

/// How to make a [`MemFs`].
#[derive(Clone)]
pub struct Options {
    /// Stands in every handle and in the fsid; two filesystems of one server have different ones.
    pub id: u64,
    /// Bytes of storage; what would need more is NoSpace.
    pub max_bytes: u64,
    /// Objects; one more is NoSpace.
    pub max_files: u64,
    /// Largest file, bytes.
    pub max_file_size: u64,
    /// Length of handles, bytes: 16 to [`HANDLE_MAX`].
    pub handle_len: usize,
    /// Metadata is stable at once.
    pub metadata_sync: bool,
    /// Answer the `try_` calls.
    pub fast: bool,
    /// Says that nobody else changes the tree ([`Caps::exclusive`]).
    pub exclusive: bool,
    /// CLONE is offered.
    pub clone: bool,
    /// Source of times.
    pub clock: Clock,
    /// Owner and group of the root directory.
    pub root_owner: (u32, u32),
    /// Mode of the root directory.
    pub root_mode: u32,
    /// Quotas by user that are told ([`Caps::quotas`]), not enforced; who is not among them has none and uses nothing.
    pub quotas: Option<Vec<(u32, Quota)>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            id: 1,
            max_bytes: 1 << 40,
            max_files: 1 << 32,
            max_file_size: i64::MAX as u64,
            handle_len: 16,
            metadata_sync: true,
            fast: true,
            exclusive: true,
            clone: true,
            clock: Clock::default(),
            root_owner: (0, 0),
            root_mode: 0o777,
            quotas: None,
        }
    }
}

/// What an object is, apart from its content.
#[derive(Clone, Debug)]
struct Inode {
    kind: FileKind,
    mode: u32,
    uid: u32,
    gid: u32,
    nlink: u32,
    rdev: (u32, u32),
    change: u64,
    atime: Time,
    mtime: Time,
    ctime: Time,
    btime: Time,
    /// Verifier of the exclusive create that made it.
    verifier: Option<[u8; 8]>,
    xattrs: BTreeMap<Bytes, Bytes>,
    /// Target of a symbolic link.
    target: Bytes,
    dir: Dir,
    data: Data,
    /// The content that a crash leaves.
    synced: Data,
    /// Opens that keep it although nothing leads to it.
    opens: u32,
}

/// Entries of a directory. A cookie belongs to a name from its coming to its going.
#[derive(Clone, Debug, Default)]
struct Dir {
    parent: u64,
    names: BTreeMap<Bytes, (u64, u64)>,
    order: BTreeMap<u64, Bytes>,
    next_cookie: u64,
}

struct Tree {
    inodes: HashMap<u64, Inode>,
    next_ino: u64,
    next_change: u64,
    ticks: u64,
    used: u64,
    /// Numbers of the inodes, as they were at the last commit, if metadata is not stable at once.
    journal: Option<HashMap<u64, Inode>>,
    failing_syncs: u32,
    /// By number, counting up: which file is open how.
    opens: BTreeMap<u64, (u64, OpenHow)>,
    last_open: u64,
}

/// A filesystem in memory.
pub struct MemFs {
    options: Options,
    caps: Caps,
    tree: Arc<Mutex<Tree>>,
    verifier: AtomicU64,
}

/// The token of an open: lives as long as somebody holds it.
struct MemOpen {
    tree: Arc<Mutex<Tree>>,
    id: u64,
    ino: u64,
    read: bool,
    write: bool,
}

impl Drop for MemOpen {
    fn drop(&mut self) {
        let mut tree = self.tree.lock();
        tree.opens.remove(&self.id);
        if let Some(inode) = tree.inodes.get_mut(&self.ino) {
            inode.opens = inode.opens.saturating_sub(1);
        }
        tree.reap(self.ino);
    }
}

impl MemFs {
    /// An empty filesystem with the default options.
    pub fn new() -> Arc<Self> {
        Self::with(Options::default())
    }

    /// An empty filesystem.
    pub fn with(mut options: Options) -> Arc<Self> {
        options.handle_len = options.handle_len.clamp(16, HANDLE_MAX);
        let caps = Caps {
            acls: false,
            quotas: options.quotas.is_some(),
            read_only: false,
            links: true,
            symlinks: true,
            special: true,
            xattrs: true,
            clone: options.clone,
            clone_block: if options.clone { BLOCK as u32 } else { 0 },
            sparse: true,
            max_file_size: options.max_file_size,
            max_links: tree::MAX_LINKS,
            case_sensitive: true,
            change_is_time: false,
            exclusive: options.exclusive,
            time_delta_nanos: 1,
        };
        let mut tree = Tree {
            inodes: HashMap::new(),
            next_ino: ROOT,
            next_change: 1,
            ticks: 0,
            used: 0,
            journal: None,
            failing_syncs: 0,
            opens: BTreeMap::new(),
            last_open: 0,
        };
        let now = options.clock.now(&mut tree.ticks);
        let owner = Cred::user(options.root_owner.0, options.root_owner.1);
        let root = tree.fresh(FileKind::Directory, options.root_mode & 0o7777, &owner, now);
        if let Some(inode) = tree.inodes.get_mut(&root) {
            inode.dir.parent = ROOT;
            inode.nlink = 2;
        }
        if !options.metadata_sync {
            tree.journal = Some(tree.inodes.clone());
        }
        Arc::new(Self {
            caps,
            tree: Arc::new(Mutex::new(tree)),
            verifier: AtomicU64::new(options.id << 32 | 1),
            options,
        })
    }

    /// Loses everything that is not stable, and changes the write verifier. Opens go on, but for files that nothing
    /// leads to.
    pub fn crash(&self) {
        let mut tree = self.tree.lock();
        let live = std::mem::take(&mut tree.inodes);
        tree.inodes = match &tree.journal {
            None => live.clone(),
            Some(journal) => journal.clone(),
        };
        for (ino, inode) in &mut tree.inodes {
            let opens = live.get(ino).map_or(0, |l| l.opens);
            let synced = live.get(ino).map_or_else(|| inode.synced.clone(), |l| l.synced.clone());
            inode.opens = opens;
            inode.data = synced.clone();
            inode.synced = synced;
        }
        tree.recount();
        drop(tree);
        self.new_verifier();
    }

    /// An orderly restart: everything is made stable; the write verifier changes all the same.
    pub fn restart(&self) {
        self.tree.lock().sync_all();
        self.new_verifier();
    }

    /// Makes everything stable.
    pub fn sync(&self) {
        self.tree.lock().sync_all();
    }

    /// Lets the next `count` commits (and writes that ask for stability) fail with an I/O error.
    pub fn fail_syncs(&self, count: u32) {
        self.tree.lock().failing_syncs = count;
    }

    /// Opens that nobody has closed.
    pub fn open_count(&self) -> u64 {
        self.tree.lock().inodes.values().map(|i| u64::from(i.opens)).sum()
    }

    /// The opens that nobody has closed, oldest first: number of the file, and how it was asked for (nobody's, if the open
    /// came with the file's creation).
    pub fn opens(&self) -> Vec<(u64, OpenHow)> {
        self.tree.lock().opens.values().cloned().collect()
    }

    /// Objects, the root included.
    pub fn object_count(&self) -> usize {
        self.tree.lock().inodes.len()
    }

    /// The handle of the object that the path of plain names leads to, without looking at permissions.
    pub fn handle_of(&self, path: &str) -> Option<Handle> {
        let tree = self.tree.lock();
        let mut at = ROOT;
        for part in path.split('/').filter(|p| !p.is_empty()) {
            at = tree.inodes.get(&at)?.dir.names.get(part.as_bytes())?.0;
        }
        self.handle(at)
    }

    /// The whole content of the file that the path of plain names leads to.
    pub fn content_of(&self, path: &str) -> Option<Bytes> {
        let handle = self.handle_of(path)?;
        let tree = self.tree.lock();
        tree.inodes.get(&self.ino_of(&handle).ok()?).map(|i| i.data.read(0, i.data.size))
    }

    fn new_verifier(&self) -> WriteVerifier {
        (self.verifier.fetch_add(1, Ordering::SeqCst) + 1).to_be_bytes()
    }

    fn handle(&self, ino: u64) -> Option<Handle> {
        let mut bytes = vec![0; self.options.handle_len];
        let (id, rest) = bytes.split_at_mut(8);
        id.copy_from_slice(&self.options.id.to_be_bytes());
        rest.split_at_mut(8).0.copy_from_slice(&ino.to_be_bytes());
        Handle::new(&bytes)
    }
}

impl Clock {
    fn now(&self, ticks: &mut u64) -> Time {
        *ticks += 1;
        match self {
            Self::Counter => {
                Time { secs: 1_700_000_000 + (*ticks / 1000) as i64, nanos: (*ticks % 1000) as u32 * 1_000_000 }
            }
            Self::System => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Time { secs: since.as_secs() as i64, nanos: since.subsec_nanos() }
            }
            Self::Of(f) => f(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dhow_vfs::{Backend, CreateHow, Cx, ErrorKind, IoRef, Name, OpenFile, SetAttr, Stability};

    async fn create(fs: &MemFs, name: &'static str) -> (Handle, OpenFile) {
        let root = fs.root(&Cx::root()).await.unwrap().handle;
        let name = Name::new(Bytes::from_static(name.as_bytes())).unwrap();
        let made = fs.create(&Cx::root(), &root, &name, &CreateHow::default()).await.unwrap();
        (made.node.handle, made.open)
    }

    async fn write(fs: &MemFs, h: &Handle, at: u64, data: &'static [u8], how: Stability) -> WriteVerifier {
        let io = IoRef { handle: h, open: None };
        fs.write(&Cx::root(), io, at, Bytes::from_static(data), how).await.unwrap().verifier
    }

    #[tokio::test]
    async fn a_crash_loses_what_was_not_committed_and_tells_by_the_verifier() {
        let fs = MemFs::new();
        let (h, _open) = create(&fs, "f").await;
        let io = IoRef { handle: &h, open: None };
        let first = write(&fs, &h, 0, b"stable", Stability::FileSync).await;
        assert_eq!(write(&fs, &h, 0, b"CHANGE and more", Stability::Unstable).await, first);
        fs.crash();
        assert_eq!(fs.content_of("f").unwrap(), "stable");
        let second = write(&fs, &h, 0, b"again", Stability::Unstable).await;
        assert_ne!(second, first);
        fs.commit(&Cx::root(), io, 0, 0).await.unwrap();
        fs.crash();
        assert_eq!(fs.content_of("f").unwrap(), "againe");
        let size = SetAttr { size: Some(2), ..SetAttr::default() };
        fs.setattr(&Cx::root(), &h, None, &size).await.unwrap();
        fs.crash();
        assert_eq!(fs.content_of("f").unwrap(), "ag", "a SETATTR is stable when it is answered");
    }

    #[tokio::test]
    async fn a_crash_ends_files_without_names_and_unlogged_names() {
        let fs = MemFs::with(Options { metadata_sync: false, ..Options::default() });
        let (kept, _open) = create(&fs, "kept").await;
        write(&fs, &kept, 0, b"x", Stability::FileSync).await;
        let (lost, _open2) = create(&fs, "lost").await;
        fs.crash();
        assert!(fs.handle_of("kept").is_some() && fs.handle_of("lost").is_none());
        assert_eq!(fs.getattr(&Cx::root(), &lost).await.unwrap_err().kind(), ErrorKind::Stale);
        assert_eq!(fs.getattr(&Cx::root(), &kept).await.unwrap().nlink, 1);
    }

    #[tokio::test]
    async fn a_failed_commit_changes_the_verifier_and_makes_nothing_stable() {
        let fs = MemFs::new();
        let (h, open) = create(&fs, "f").await;
        let io = IoRef { handle: &h, open: Some(&open) };
        let before = write(&fs, &h, 0, b"data", Stability::Unstable).await;
        fs.fail_syncs(1);
        assert_eq!(fs.commit(&Cx::root(), io, 0, 0).await.unwrap_err().kind(), ErrorKind::Io);
        assert_ne!(fs.write_verifier(), before);
        fs.crash();
        assert_eq!(fs.content_of("f").unwrap(), "");
        assert_eq!(fs.open_count(), 1);
        fs.close(open).await;
        assert_eq!(fs.open_count(), 0);
    }

    #[tokio::test]
    async fn space_runs_out_and_comes_back() {
        let fs = MemFs::with(Options { max_bytes: 3 * BLOCK, max_files: 3, ..Options::default() });
        let (h, open) = create(&fs, "f").await;
        let io = IoRef { handle: &h, open: Some(&open) };
        let big = Bytes::from(vec![1; 4 * BLOCK as usize]);
        let kind = |r: dhow_vfs::Result<dhow_vfs::Written>| r.unwrap_err().kind();
        assert_eq!(kind(fs.write(&Cx::root(), io, 0, big.clone(), Stability::Unstable).await), ErrorKind::NoSpace);
        fs.write(&Cx::root(), io, 0, big.slice(..3 * BLOCK as usize), Stability::Unstable).await.unwrap();
        assert_eq!(fs.statfs(&Cx::root(), &h).await.unwrap().free, 0);
        fs.write(&Cx::root(), io, 1, big.slice(..10), Stability::Unstable).await.expect("overwriting needs no room");
        let root = fs.root(&Cx::root()).await.unwrap().handle;
        let name = |n: &'static str| Name::new(Bytes::from_static(n.as_bytes())).unwrap();
        create(&fs, "g").await;
        let full = fs.create(&Cx::root(), &root, &name("h"), &CreateHow::default()).await;
        assert_eq!(full.unwrap_err().kind(), ErrorKind::NoSpace);
        fs.remove(&Cx::root(), &root, &name("f")).await.unwrap();
        assert_eq!(fs.statfs(&Cx::root(), &root).await.unwrap().free, 0, "still open");
        fs.close(open).await;
        assert_eq!(fs.statfs(&Cx::root(), &root).await.unwrap().free, 3 * BLOCK);
    }
}
