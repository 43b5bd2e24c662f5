//! Everything that happens to a name in a directory: look up, create, make, link, remove, rename.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dhow_sys::node::{self, Replace, Special};
use dhow_sys::open::{self, Stat};
use dhow_sys::{Errno, xattr};
use dhow_vfs::{Cred, DirChange, Error, ErrorKind, FileKind, Handle, Make, Name, Result, SetAttr};
use rustix::fs::OFlags;

use crate::error::{as_kind, sys};
use crate::fs::Filesystem;
use crate::inner::Inner;
use crate::inode::Inode;
use crate::rights::X;
use crate::setattr::changes_after_create;

/// A change of a directory that is under way: of a name in it, of its attributes, or its own move. It counts for as long
/// as it lives, so that others do not call theirs atomic.
pub(crate) struct DirChanging {
    dir: Arc<Inode>,
    /// How many had begun of this directory, this one included.
    begun: u64,
    /// No other was under way when this one began.
    alone: bool,
}

impl DirChanging {
    pub(crate) fn begin(dir: &Arc<Inode>) -> DirChanging {
        let mut updates = dir.updates.lock();
        updates.0 += 1;
        updates.1 += 1;
        DirChanging { dir: dir.clone(), begun: updates.1, alone: updates.0 == 1 }
    }

    /// Whether no other change was under way at any time since this one began.
    fn was_alone(&self) -> bool {
        self.alone && self.dir.updates.lock().1 == self.begun
    }
}

impl Drop for DirChanging {
    fn drop(&mut self) {
        self.dir.updates.lock().0 -= 1;
    }
}

/// An update of a name in a directory, that tells the directory's change attribute before and after.
///
/// The two are read around the update, not with it. So they are `atomic` (RFC 8881 3.3.4: obtained atomically with the
/// change) only if nothing else can have changed the directory between the two looks: no program of this machine, which
/// is what `exclusive` promises, and no other request of any client, which is counted here. Without the promise it
/// cannot be known: the kernel tells a time of change, but not how many changes there were.
pub(crate) struct Update {
    changing: DirChanging,
    before: u64,
}

impl Update {
    pub(crate) fn begin(dir: &Arc<Inode>) -> Result<Update> {
        // Counted before the look.
        let changing = DirChanging::begin(dir);
        let (_, before) = dir.stat_change()?;
        Ok(Update { changing, before })
    }

    /// The change of the directory; `exclusive` if nobody but this server changes it.
    pub(crate) fn end(self, exclusive: bool) -> Result<DirChange> {
        let Update { changing, before } = self;
        changing.dir.changed();
        // Removed meanwhile by somebody: the update was real all the same.
        let mut after = changing.dir.stat_change().map_or_else(|_| changing.dir.change_more(), |(_, change)| change);
        if after == before {
            // Something happened, whatever the filesystem's clock says.
            after = changing.dir.change_more();
        }
        // Asked after the look.
        Ok(DirChange { before, after, atomic: exclusive && changing.was_alone() })
    }
}

/// A file that was created, or found again by its verifier.
pub(crate) struct NewFile {
    pub inode: Arc<Inode>,
    pub stat: Stat,
    pub change: DirChange,
    pub fresh: bool,
    pub applied: SetAttr,
    /// The log of verifiers, to be synced too.
    pub log: Option<Arc<OwnedFd>>,
    /// Syncing the directory is not enough.
    pub sync_inode: bool,
}

/// Another kind of object that was made.
pub(crate) struct NewNode {
    pub inode: Arc<Inode>,
    pub stat: Stat,
    pub change: DirChange,
    pub applied: SetAttr,
    pub sync_inode: bool,
}

/// What a removal came to.
pub(crate) struct Gone {
    pub change: DirChange,
    pub handle: Handle,
    pub nlink: u32,
}

/// What a rename came to.
pub(crate) struct Moved {
    pub from: DirChange,
    pub to: DirChange,
    pub replaced: Option<Handle>,
}

/// The error of a look-up. Not entering a mount point is a matter of what the export allows.
fn lookup_error(e: Errno) -> Error {
    match e {
        Errno::XDEV => as_kind(ErrorKind::Access, e),
        e => sys(e),
    }
}

/// No such name; or no such directory any more, in which nothing has a name.
fn dir_gone_or(dir: &Inode, e: Errno) -> Error {
    dir.stat().err().unwrap_or_else(|| sys(e))
}

impl Inner {
    /// Looks a name up. With `cached`, [`ErrorKind::Delay`] means that a disk would have to be waited for.
    pub(crate) fn lookup(
        self: &Arc<Self>,
        user: &Cred,
        dir: &Arc<Inode>,
        name: &Name,
        cached: bool,
    ) -> Result<(Arc<Inode>, Stat)> {
        dir.must_be_dir()?;
        self.must_have(user, dir, X)?;
        let fd = self.hold(user, dir, name.as_bytes(), cached).map_err(|e| match e {
            Errno::NOENT => dir_gone_or(dir, e),
            e => lookup_error(e),
        })?;
        self.child(dir, name.as_bytes(), fd)
    }

    /// The directory above. The way up is followed to the root of the export, so that nothing outside is shown even if
    /// somebody moved the directory out.
    pub(crate) fn parent(self: &Arc<Self>, user: &Cred, dir: &Arc<Inode>) -> Result<(Arc<Inode>, Stat)> {
        dir.must_be_dir()?;
        if dir.handle == self.root.handle {
            return Err(ErrorKind::NotFound.into());
        }
        dir.stat()?;
        self.must_have(user, dir, X)?;
        let first = open::parent(&dir.path).map_err(sys)?;
        let root = (self.root.fs.dev, self.root.ino);
        let mut below: Option<OwnedFd> = None;
        let mut last = (0, 0);
        for _ in 0..4096 {
            let at = below.as_ref().unwrap_or(&first);
            let stat = open::stat(at).map_err(sys)?;
            if (stat.dev, stat.ino) == root {
                let (handle, stat, fs) = self.identify(&first, &dir.fs, || None)?;
                return Ok((self.inodes.adopt(handle, &stat, &fs, first), stat));
            }
            // Above `/` is `/`.
            if (stat.dev, stat.ino) == last {
                break;
            }
            last = (stat.dev, stat.ino);
            below = Some(open::parent(at).map_err(sys)?);
        }
        Err(ErrorKind::Stale.into())
    }

    /// The mode for a new object: the client's umask counts only where no default access control list does instead
    /// (RFC 8275 5).
    fn new_mode(&self, dir: &Inode, set: &SetAttr, default: u32) -> u32 {
        let mode = set.mode.unwrap_or(default) & 0o7777;
        match set.umask {
            Some(umask) if xattr::get(&dir.path, crate::acl::DEFAULT).is_err() => mode & !(umask & 0o777),
            _ => mode,
        }
    }

    /// Creates a regular file that was not there.
    pub(crate) fn create(
        self: &Arc<Self>,
        user: &Cred,
        dir: &Arc<Inode>,
        name: &Name,
        set: &SetAttr,
        verifier: Option<[u8; 8]>,
    ) -> Result<NewFile> {
        dir.must_be_dir()?;
        let update = Update::begin(dir)?;
        let mode = self.new_mode(dir, set, 0o600);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NONBLOCK;
        let opened = self.as_user(user, || {
            Ok(self.with_descriptors(|| open::beneath(&dir.path, name.as_bytes(), flags, mode, self.crossing())))
        })?;
        let fd = match (opened, verifier) {
            (Ok(fd), _) => fd,
            (Err(Errno::EXIST), Some(verifier)) => return self.find_again(user, dir, name, set, verifier, update),
            (Err(Errno::XDEV | Errno::LOOP | Errno::ISDIR), _) => return Err(ErrorKind::Exists.into()),
            (Err(e), _) => return Err(sys(e)),
        };
        let path = self.with_descriptors(|| open::reopen(&fd, OFlags::PATH)).map_err(sys)?;
        let (inode, _) = self.child(dir, name.as_bytes(), path)?;
        let fd = Arc::new(fd);
        {
            let mut fds = inode.fds.lock();
            fds.read = None;
            fds.write = Some(fd);
        }
        self.activate(&inode);
        let applied = self.set_new(user, &inode, None, set)?;
        // Last, so that a sync of the log covers all of the above where the journal is one.
        let log = match verifier {
            Some(verifier) => self.exclusive.add(&inode.handle, verifier).unwrap_or_else(|e| {
                tracing::warn!("cannot log the verifier of an exclusive create: {e}");
                None
            }),
            None => None,
        };
        let change = update.end(self.options.exclusive)?;
        let stat = inode.stat()?;
        let sync_inode = !dir.fs.dir_sync_covers_new || changes_after_create(set);
        Ok(NewFile { inode, stat, change, fresh: true, applied, log, sync_inode })
    }

    /// The name is taken: by the file that the same request made before, perhaps.
    fn find_again(
        self: &Arc<Self>,
        user: &Cred,
        dir: &Arc<Inode>,
        name: &Name,
        set: &SetAttr,
        verifier: [u8; 8],
        update: Update,
    ) -> Result<NewFile> {
        let (inode, stat) = self.lookup(user, dir, name, false)?;
        // Only the superuser may have made it for somebody else.
        let owner = !self.switching || stat.uid == user.uid || user.uid == 0;
        if inode.kind != FileKind::Regular || !owner || self.exclusive.get(&inode.handle) != Some(verifier) {
            return Err(ErrorKind::Exists.into());
        }
        let applied = self.set_new(user, &inode, None, set)?;
        let change = update.end(self.options.exclusive)?;
        let stat = inode.stat()?;
        Ok(NewFile { inode, stat, change, fresh: false, applied, log: None, sync_inode: true })
    }

    /// Makes another kind of object.
    pub(crate) fn make(
        self: &Arc<Self>,
        user: &Cred,
        dir: &Arc<Inode>,
        name: &Name,
        what: &Make,
        set: &SetAttr,
    ) -> Result<NewNode> {
        dir.must_be_dir()?;
        let update = Update::begin(dir)?;
        let (at, bytes) = (&dir.path, name.as_bytes());
        let default = if matches!(what, Make::Directory) { 0o700 } else { 0o600 };
        let mode = self.new_mode(dir, set, default);
        let fd = self.as_user(user, || {
            match what {
                Make::Directory => node::mkdir(at, bytes, mode & 0o1777),
                Make::Symlink(target) => node::symlink(target, at, bytes),
                Make::Fifo => node::mknod(at, bytes, Special::Fifo, mode),
                Make::Socket => node::mknod(at, bytes, Special::Socket, mode),
                Make::Block(major, minor) => node::mknod(at, bytes, Special::Block(*major, *minor), mode),
                Make::Char(major, minor) => node::mknod(at, bytes, Special::Char(*major, *minor), mode),
            }
            .map_err(|e| match (e, what) {
                // The kernel says so of an empty target, which is no missing directory.
                (Errno::NOENT, Make::Symlink(target)) if target.is_empty() => as_kind(ErrorKind::Invalid, e),
                (e, _) => sys(e),
            })?;
            self.with_descriptors(|| open::path_beneath(at, bytes, self.crossing())).map_err(lookup_error)
        })?;
        let (inode, _) = self.child(dir, bytes, fd)?;
        let applied = self.set_new(user, &inode, None, set)?;
        let change = update.end(self.options.exclusive)?;
        let stat = inode.stat()?;
        let sync_inode = !dir.fs.dir_sync_covers_new || changes_after_create(set);
        Ok(NewNode { inode, stat, change, applied, sync_inode })
    }

    /// Adds a name.
    pub(crate) fn link(
        self: &Arc<Self>,
        user: &Cred,
        file: &Arc<Inode>,
        dir: &Arc<Inode>,
        name: &Name,
    ) -> Result<DirChange> {
        dir.must_be_dir()?;
        if file.kind == FileKind::Directory {
            return Err(ErrorKind::IsDir.into());
        }
        if file.fs.dev != dir.fs.dev {
            return Err(ErrorKind::CrossDevice.into());
        }
        let update = Update::begin(dir)?;
        self.as_user(user, || node::link(&file.path, &dir.path, name.as_bytes()).map_err(sys))?;
        file.changed();
        self.note(dir, name.as_bytes(), &file.handle, &file.fs);
        update.end(self.options.exclusive)
    }

    /// Removes a name.
    pub(crate) fn remove(self: &Arc<Self>, user: &Cred, dir: &Arc<Inode>, name: &Name) -> Result<Gone> {
        dir.must_be_dir()?;
        let update = Update::begin(dir)?;
        let (at, bytes) = (&dir.path, name.as_bytes());
        let (held, is_dir) = self.as_user(user, || {
            // The name may come to lead to another kind of object between the two calls.
            for _ in 0..8 {
                let held = match self.with_descriptors(|| open::path_beneath(at, bytes, self.crossing())) {
                    Err(Errno::XDEV) => return Err(ErrorKind::Busy.into()),
                    other => other.map_err(sys)?,
                };
                let is_dir = crate::inode::kind_of(open::stat(&held).map_err(sys)?.mode) == FileKind::Directory;
                match if is_dir { node::rmdir(at, bytes) } else { node::unlink(at, bytes) } {
                    Ok(()) => return Ok((held, is_dir)),
                    Err(Errno::ISDIR | Errno::NOTDIR) => {}
                    // Linux has both names for it.
                    Err(Errno::EXIST) if is_dir => return Err(ErrorKind::NotEmpty.into()),
                    Err(e) => return Err(sys(e)),
                }
            }
            Err(ErrorKind::Delay.into())
        })?;
        let change = update.end(self.options.exclusive)?;
        let (handle, stat, fs) = self.identify(&held, &dir.fs, || None)?;
        let nlink = if is_dir { 0 } else { stat.nlink };
        self.hints.forget(&handle, &dir.handle, bytes);
        self.let_go(&handle, nlink, &fs);
        Ok(Gone { change, handle, nlink })
    }

    /// An object lost a name: keep it no longer than its opens do.
    fn let_go(&self, handle: &Handle, nlink: u32, fs: &Filesystem) {
        if nlink == 0 && fs.needs_hint(handle) {
            self.hints.gone(handle);
        }
        if let Some(inode) = self.inodes.get_known(handle) {
            inode.changed();
            if nlink == 0 {
                if inode.opens.load(Ordering::Acquire) == 0 {
                    // Its data will never be asked for.
                    self.dirty.lock().remove(handle);
                }
                self.inodes.forget(handle);
            }
        }
    }

    /// Renames.
    pub(crate) fn rename(
        self: &Arc<Self>,
        user: &Cred,
        from: &Arc<Inode>,
        old: &Name,
        to: &Arc<Inode>,
        new: &Name,
    ) -> Result<Moved> {
        from.must_be_dir()?;
        to.must_be_dir()?;
        if from.fs.dev != to.fs.dev {
            return Err(ErrorKind::CrossDevice.into());
        }
        let from_update = Update::begin(from)?;
        // One directory counts as one update.
        let to_update = if from.handle == to.handle { None } else { Some(Update::begin(to)?) };
        let mut moved_dir = None;
        let (moved, target) = self.as_user(user, || {
            let held = |dir: &Inode, name: &Name| {
                self.with_descriptors(|| open::path_beneath(&dir.path, name.as_bytes(), self.crossing()))
            };
            let moved = match held(from, old) {
                Err(Errno::XDEV) => return Err(ErrorKind::Busy.into()),
                other => other.map_err(sys)?,
            };
            let target = match held(to, new) {
                Ok(fd) => Some(fd),
                Err(Errno::NOENT) => None,
                Err(Errno::XDEV) => return Err(ErrorKind::Busy.into()),
                Err(e) => return Err(sys(e)),
            };
            // A move changes the directory that moves, too.
            if self.options.exclusive
                && let Ok(fd) = moved.try_clone()
                && let Ok((inode, _)) = self.child(from, old.as_bytes(), fd)
                && inode.kind == FileKind::Directory
            {
                moved_dir = Some(DirChanging::begin(&inode));
            }
            match node::rename(&from.path, old.as_bytes(), &to.path, new.as_bytes(), Replace::Allowed) {
                Ok(()) => Ok((moved, target)),
                // Kinds that do not go together, or a directory with entries (RFC 8881 18.26.3).
                Err(e @ (Errno::ISDIR | Errno::NOTDIR | Errno::NOTEMPTY | Errno::EXIST)) => {
                    Err(as_kind(ErrorKind::Exists, e))
                }
                Err(e) => Err(sys(e)),
            }
        })?;
        drop(moved_dir);
        let from_change = from_update.end(self.options.exclusive)?;
        let to_change = match to_update {
            Some(update) => update.end(self.options.exclusive)?,
            None => from_change,
        };
        let (handle, _, fs) = self.identify(&moved, &from.fs, || None)?;
        if let Some(inode) = self.inodes.get_known(&handle) {
            inode.changed();
        }
        let mut replaced = None;
        if let Some(target) = target {
            let (other, stat, _) = self.identify(&target, &to.fs, || None)?;
            // Two names of one object: nothing has happened.
            if other != handle {
                let was_dir = crate::inode::kind_of(stat.mode) == FileKind::Directory;
                self.hints.forget(&other, &to.handle, new.as_bytes());
                self.let_go(&other, if was_dir { 0 } else { stat.nlink }, &fs);
                replaced = Some(other);
            }
        }
        self.note(to, new.as_bytes(), &handle, &fs);
        Ok(Moved { from: from_change, to: to_change, replaced })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use bytes::Bytes;
    use dhow_vfs::SetAttr;
    use std::sync::Barrier;

    fn name(n: &str) -> Name {
        Name::new(Bytes::copy_from_slice(n.as_bytes())).unwrap()
    }

    fn tree(exclusive: bool) -> (tempfile::TempDir, Arc<Inner>) {
        let home = tempfile::tempdir().unwrap();
        let mut options = Options::new(home.path());
        options.exclusive = exclusive;
        let inner = Arc::new(Inner::open(options).unwrap());
        (home, inner)
    }

    /// RFC 8881 3.3.4: `atomic` only with nobody else in between, whatever it was that the other changed.
    #[test]
    fn overlapping_changes_are_not_atomic() {
        let (_home, inner) = tree(true);
        let (user, dir) = (Cred::root(), inner.root.clone());
        let alone = inner.create(&user, &dir, &name("a"), &SetAttr::default(), None).unwrap().change;
        assert!(alone.atomic && alone.before < alone.after);
        let next = inner.remove(&user, &dir, &name("a")).unwrap().change;
        assert!(next.atomic);
        assert_eq!(alone.after, next.before, "nothing happened in between");

        // One within the other, one after the other, one that failed: none is atomic but the last.
        let outer = Update::begin(&dir).unwrap();
        let inside = inner.create(&user, &dir, &name("b"), &SetAttr::default(), None).unwrap().change;
        let outer = outer.end(true).unwrap();
        assert!(!inside.atomic && !outer.atomic);
        let (first, second) = (Update::begin(&dir).unwrap(), Update::begin(&dir).unwrap());
        assert!(!first.end(true).unwrap().atomic);
        assert!(!second.end(true).unwrap().atomic);
        let failing = Update::begin(&dir).unwrap();
        assert!(inner.remove(&user, &dir, &name("not there")).is_err());
        assert!(!failing.end(true).unwrap().atomic);
        assert!(inner.remove(&user, &dir, &name("b")).unwrap().change.atomic);

        // Changes of the directory itself count as well: of its attributes, its extended attributes, its place.
        let sub = inner.make(&user, &dir, &name("sub"), &Make::Directory, &SetAttr::default()).unwrap().inode;
        let update = Update::begin(&sub).unwrap();
        inner.setattr(&user, &sub, None, &SetAttr { mode: Some(0o711), ..SetAttr::default() }).unwrap();
        assert!(!update.end(true).unwrap().atomic);
        let update = Update::begin(&sub).unwrap();
        inner.rename(&user, &dir, &name("sub"), &dir, &name("moved")).unwrap();
        assert!(!update.end(true).unwrap().atomic);
        assert!(Update::begin(&sub).unwrap().end(true).unwrap().atomic);
        assert_eq!(dir.updates.lock().0, 0);
    }

    /// Without the promise that nobody else changes the tree, nothing is atomic.
    #[test]
    fn nothing_is_atomic_in_a_shared_tree() {
        let (_home, inner) = tree(false);
        let change = inner.create(&Cred::root(), &inner.root, &name("a"), &SetAttr::default(), None).unwrap().change;
        assert!(!change.atomic && change.before < change.after);
    }

    /// Many at once: for each thread the values only grow, no two updates end with one value, and what is called atomic
    /// overlaps nothing.
    #[test]
    fn change_attributes_only_grow() {
        let (_home, inner) = tree(true);
        let barrier = Arc::new(Barrier::new(5));
        let threads: Vec<_> = (0..4)
            .map(|t| {
                let (inner, barrier) = (inner.clone(), barrier.clone());
                std::thread::spawn(move || {
                    barrier.wait();
                    let mut changes = Vec::new();
                    for n in 0..100 {
                        let name = name(&format!("{t}-{n}"));
                        let made = inner.create(&Cred::root(), &inner.root, &name, &SetAttr::default(), None).unwrap();
                        changes.push(made.change);
                    }
                    changes
                })
            })
            .collect();
        barrier.wait();
        // Somebody who looks meanwhile: the same value is never given out with fewer entries after more.
        let mut seen: (u64, open::Time) = (0, inner.root.stat().unwrap().mtime);
        for _ in 0..2000 {
            let (stat, change) = inner.root.stat_change().unwrap();
            let time = |t: open::Time| (t.sec, t.nsec);
            assert!(change >= seen.0, "it went back");
            assert!(change > seen.0 || time(stat.mtime) == time(seen.1), "one value for two states");
            seen = (change, stat.mtime);
        }
        let mut all: Vec<DirChange> = Vec::new();
        for thread in threads {
            let changes = thread.join().unwrap();
            assert!(changes.is_sorted_by(|a, b| a.after <= b.before), "{changes:?}");
            all.extend(changes);
        }
        assert!(all.iter().all(|c| c.before < c.after));
        for atomic in all.iter().filter(|c| c.atomic) {
            let inside = all.iter().filter(|c| c.after > atomic.before && c.after < atomic.after).count();
            assert_eq!(inside, 0, "{atomic:?}");
        }
    }
}
