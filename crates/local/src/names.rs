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
use crate::sync::Journal;

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

/// How often a create looks at a name that others make and remove all the time, before it is created by its name.
const TRIES: usize = 16;

/// What an attempt to make a file without a name, and then name it, came to.
enum Nameless {
    /// The file, its descriptor, and the log of verifiers.
    Made(Arc<Inode>, OwnedFd, Option<Arc<OwnedFd>>),
    /// The name is taken, by the file of the same request perhaps.
    Taken,
    /// Not in this way: whatever stands in the way is told by a create under the name.
    Impossible,
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
        let mut log = None;
        let mut nameless = None;
        if let Some(verifier) = verifier {
            // A name that is taken may be free again a moment later: then without a name once more. To create it by its
            // name would leave a moment in which the verifier is not known.
            for _ in 0..TRIES {
                match self.create_nameless(user, dir, name, mode, verifier) {
                    Nameless::Made(inode, fd, logged) => nameless = Some((inode, fd, logged)),
                    Nameless::Taken => match self.made_before(user, dir, name, verifier) {
                        Err(e) if e.kind() == ErrorKind::NotFound => continue,
                        found => return self.find_again(user, found?, set, update),
                    },
                    Nameless::Impossible => {}
                }
                break;
            }
        }
        let known = nameless.is_some();
        let (inode, fd) = match nameless {
            Some((inode, fd, logged)) => {
                log = logged;
                (inode, fd)
            }
            None => match (self.create_named(user, dir, name, mode)?, verifier) {
                (Some(made), _) => made,
                (None, Some(verifier)) => {
                    // It was there, and is gone again: somebody else's.
                    let found = self.made_before(user, dir, name, verifier).map_err(|e| match e.kind() {
                        ErrorKind::NotFound => ErrorKind::Exists.into(),
                        _ => e,
                    })?;
                    return self.find_again(user, found, set, update);
                }
                (None, None) => return Err(ErrorKind::Exists.into()),
            },
        };
        let fd = Arc::new(fd);
        {
            let mut fds = inode.fds.lock();
            fds.read = None;
            fds.write = Some(fd);
        }
        self.activate(&inode);
        let applied = self.set_new(user, &inode, None, set)?;
        // Last, so that a sync of the log covers all of the above where the journal is one.
        if let Some(verifier) = verifier
            && (!known || self.log_takes_along(&dir.fs))
        {
            log = self.remember(&inode.handle, verifier);
        }
        let change = update.end(self.options.exclusive)?;
        let stat = inode.stat()?;
        // Elsewhere an fsync of the directory is known to cover what was created in it, less so what was linked there.
        let linked = known && dir.fs.journal == Journal::Other;
        let sync_inode = !dir.fs.dir_sync_covers_new || linked || changes_after_create(set);
        Ok(NewFile { inode, stat, change, fresh: true, applied, log, sync_inode })
    }

    /// Creates a file under its name. `None`: the name is taken.
    fn create_named(
        self: &Arc<Self>,
        user: &Cred,
        dir: &Arc<Inode>,
        name: &Name,
        mode: u32,
    ) -> Result<Option<(Arc<Inode>, OwnedFd)>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NONBLOCK;
        let opened = self.as_user(user, || {
            Ok(self.with_descriptors(|| open::beneath(&dir.path, name.as_bytes(), flags, mode, self.crossing())))
        })?;
        let fd = match opened {
            Ok(fd) => fd,
            Err(Errno::EXIST) => return Ok(None),
            Err(Errno::XDEV | Errno::LOOP | Errno::ISDIR) => return Err(ErrorKind::Exists.into()),
            Err(e) => return Err(sys(e)),
        };
        let path = self.with_descriptors(|| open::reopen(&fd, OFlags::PATH)).map_err(sys)?;
        let (inode, _) = self.child(dir, name.as_bytes(), path)?;
        Ok(Some((inode, fd)))
    }

    /// Creates a file so that its verifier is known before its name exists (see `crate::exclusive`).
    fn create_nameless(
        self: &Arc<Self>,
        user: &Cred,
        dir: &Arc<Inode>,
        name: &Name,
        mode: u32,
        verifier: [u8; 8],
    ) -> Nameless {
        if dir.fs.no_nameless.load(Ordering::Relaxed) {
            return Nameless::Impossible;
        }
        if dir.taken.load(Ordering::Relaxed) && self.is_taken(user, dir, name) {
            return Nameless::Taken;
        }
        let Some((fd, handle)) = self.nameless(user, dir, mode) else { return Nameless::Impossible };
        let log = self.remember(&handle, verifier);
        match self.give_name(user, dir, name, &fd) {
            Ok(()) => {}
            Err(e) => {
                self.exclusive.forget(&handle);
                if e != ErrorKind::Exists {
                    return Nameless::Impossible;
                }
                dir.taken.store(true, Ordering::Relaxed);
                return Nameless::Taken;
            }
        }
        dir.taken.store(false, Ordering::Relaxed);
        // By its name, for the other descriptor goes on without one where people look at it. Somebody beyond this server may
        // have been at the name already.
        let named = open::path_beneath(&dir.path, name.as_bytes(), self.crossing());
        let named = named.ok().and_then(|path| self.child(dir, name.as_bytes(), path).ok());
        let inode = match named {
            Some((inode, _)) if inode.handle == handle => inode,
            _ => {
                let path = self.with_descriptors(|| open::reopen(&fd, OFlags::PATH));
                match path.ok().and_then(|path| self.child(dir, name.as_bytes(), path).ok()) {
                    Some((inode, _)) => inode,
                    // Short of descriptors: it is there, and is found by its verifier.
                    None => return Nameless::Taken,
                }
            }
        };
        Nameless::Made(inode, fd, log)
    }

    /// Whether a name is taken. To look waits for the directory's lock once more than a create must, so it is done only where
    /// names were found taken: who asks for a lock file again and again is not to fill the log.
    fn is_taken(&self, user: &Cred, dir: &Arc<Inode>, name: &Name) -> bool {
        self.as_user(user, || Ok(open::stat_name(&dir.path, name.as_bytes()).is_ok())).unwrap_or(false)
    }

    /// A new file without a name. The link finds out whether the name is free.
    fn nameless(&self, user: &Cred, dir: &Arc<Inode>, mode: u32) -> Option<(OwnedFd, Handle)> {
        let made = self.as_user(user, || {
            let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::NONBLOCK;
            match self.with_descriptors(|| open::beneath(&dir.path, b".", flags, mode, self.crossing())) {
                Ok(fd) => Ok(Some(fd)),
                Err(e) => {
                    if matches!(e, Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOSYS) {
                        dir.fs.no_nameless.store(true, Ordering::Relaxed);
                    }
                    Ok(None)
                }
            }
        });
        let fd = made.ok().flatten()?;
        let (handle, _, _) = self.identify(&fd, &dir.fs, || None).ok()?;
        Some((fd, handle))
    }

    /// Gives a file its first name, if that is free. It is the user's own file, which may be linked whatever
    /// `fs.protected_hardlinks` says.
    fn give_name(
        &self,
        user: &Cred,
        dir: &Arc<Inode>,
        name: &Name,
        fd: &OwnedFd,
    ) -> std::result::Result<(), ErrorKind> {
        let linked = self.as_user(user, || {
            node::link(fd, &dir.path, name.as_bytes()).map_err(|e| {
                if matches!(e, Errno::PERM | Errno::OPNOTSUPP) {
                    dir.fs.no_nameless.store(true, Ordering::Relaxed);
                }
                sys(e)
            })
        });
        linked.map_err(|e| e.kind())
    }

    /// Logs the verifier of an exclusive create. Returns the log, to be synced.
    fn remember(&self, handle: &Handle, verifier: [u8; 8]) -> Option<Arc<OwnedFd>> {
        self.exclusive.add(handle, verifier).unwrap_or_else(|e| {
            tracing::warn!("cannot log the verifier of an exclusive create: {e}");
            None
        })
    }

    /// The name is taken: by the file that the same request made before, perhaps.
    fn made_before(
        self: &Arc<Self>,
        user: &Cred,
        dir: &Arc<Inode>,
        name: &Name,
        verifier: [u8; 8],
    ) -> Result<Arc<Inode>> {
        let (inode, stat) = self.lookup(user, dir, name, false).map_err(|e| match e.kind() {
            // What is mounted there and not entered has the name all the same.
            ErrorKind::Access => ErrorKind::Exists.into(),
            _ => e,
        })?;
        // Only the superuser may have made it for somebody else.
        let owner = !self.switching || stat.uid == user.uid || user.uid == 0;
        if inode.kind != FileKind::Regular || !owner || self.exclusive.get(&inode.handle) != Some(verifier) {
            return Err(ErrorKind::Exists.into());
        }
        Ok(inode)
    }

    /// Does the rest of a create whose file was there already.
    fn find_again(self: &Arc<Self>, user: &Cred, inode: Arc<Inode>, set: &SetAttr, update: Update) -> Result<NewFile> {
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

    /// Case B11 (RFC 8881 18.16.3) over a crash: wherever between the steps of an exclusive create the server is killed, the
    /// client that repeats it has its file, another one is told that the name is taken, and nothing is left of a file that
    /// had no name yet.
    #[test]
    fn an_exclusive_create_is_known_wherever_the_server_is_killed() {
        let (home, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let start = || {
            let mut options = Options::new(home.path());
            options.state_dir = Some(state.path().to_owned());
            Arc::new(Inner::open(options).unwrap())
        };
        let (user, set) = (Cred::root(), SetAttr { mode: Some(0o640), ..SetAttr::default() });
        let steps = ["nothing", "made", "logged", "named", "all"];
        for (n, step) in steps.iter().enumerate() {
            let (file, verifier) = (name(step), [n as u8; 8]);
            // What is written stays when the process is killed; what it had in memory goes with it.
            let killed = start();
            let dir = killed.root.clone();
            let made = killed.nameless(&user, &dir, 0o640);
            let (fd, handle) = made.expect("this test needs a filesystem that has files without a name");
            match n {
                0 | 1 => {}
                2 => drop(killed.remember(&handle, verifier)),
                3 => {
                    drop(killed.remember(&handle, verifier));
                    killed.give_name(&user, &dir, &file, &fd).unwrap();
                }
                _ => assert!(killed.create(&user, &dir, &file, &set, Some(verifier)).unwrap().fresh),
            }
            drop((fd, dir, killed));
            assert_eq!(home.path().join(step).exists(), n >= 3, "{step}");

            let server = start();
            let dir = server.root.clone();
            if n >= 3 {
                let other = server.create(&user, &dir, &file, &set, Some([99; 8]));
                assert_eq!(other.err().map(|e| e.kind()), Some(ErrorKind::Exists), "{step}");
            }
            let again = server.create(&user, &dir, &file, &set, Some(verifier)).unwrap();
            assert_eq!(again.fresh, n < 3, "{step}");
            // Attributes too are those of the whole create.
            assert_eq!(again.stat.mode & 0o7777, 0o640, "{step}");
            assert_eq!(again.stat.nlink, 1);
        }
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), steps.len());
    }

    /// A name that somebody takes between the look and the link: told as ever, and what was made for nothing is forgotten.
    /// Without files that have no name, creates go by the name.
    #[test]
    fn names_that_are_taken_meanwhile_and_filesystems_without_nameless_files() {
        let (home, inner) = tree(false);
        let (user, dir) = (Cred::root(), inner.root.clone());
        let (fd, handle) = inner.nameless(&user, &dir, 0o600).unwrap();
        std::fs::write(home.path().join("a"), b"").unwrap();
        inner.remember(&handle, [1; 8]);
        assert_eq!(inner.give_name(&user, &dir, &name("a"), &fd), Err(ErrorKind::Exists));
        let taken = inner.create(&user, &dir, &name("a"), &SetAttr::default(), Some([1; 8]));
        assert_eq!(taken.err().map(|e| e.kind()), Some(ErrorKind::Exists));
        assert!(!dir.fs.no_nameless.load(Ordering::Relaxed), "an EXIST says nothing of the filesystem");

        // Who asks again and again writes no more records; a name that is free ends that.
        let records = || inner.exclusive.len();
        let before = records();
        for n in 0..10 {
            let taken = inner.create(&user, &dir, &name("a"), &SetAttr::default(), Some([n; 8]));
            assert_eq!(taken.err().map(|e| e.kind()), Some(ErrorKind::Exists));
        }
        assert_eq!(records(), before);
        assert!(dir.taken.load(Ordering::Relaxed));
        inner.create(&user, &dir, &name("free"), &SetAttr::default(), Some([1; 8])).unwrap();
        assert!(!dir.taken.load(Ordering::Relaxed));
        assert_eq!(records(), before + 1);

        // What people see of an open file is its name.
        let made = inner.create(&user, &dir, &name("seen"), &SetAttr::default(), Some([2; 8])).unwrap();
        assert_eq!(open::path_of(&made.inode.path).unwrap(), home.path().canonicalize().unwrap().join("seen"));

        dir.fs.no_nameless.store(true, Ordering::Relaxed);
        let made = inner.create(&user, &dir, &name("b"), &SetAttr::default(), Some([3; 8])).unwrap();
        let again = inner.create(&user, &dir, &name("b"), &SetAttr::default(), Some([3; 8])).unwrap();
        assert!(made.fresh && !again.fresh && made.inode.handle == again.inode.handle);
        let taken = inner.create(&user, &dir, &name("b"), &SetAttr::default(), Some([4; 8]));
        assert_eq!(taken.err().map(|e| e.kind()), Some(ErrorKind::Exists));
    }

    /// Case B11: a lock file that others make and remove all the time. The record comes before the name even then, so that a
    /// kill finds no file without its verifier.
    #[test]
    fn a_name_that_comes_and_goes_is_never_created_by_its_name() {
        let (home, inner) = tree(false);
        let (user, dir) = (Cred::root(), inner.root.clone());
        let path = home.path().join("lock");
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let other = {
            let (stop, path) = (stop.clone(), path.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let _ = std::fs::File::create_new(&path);
                    let _ = std::fs::remove_file(&path);
                }
            })
        };
        for n in 0..2000_u32 {
            let mut verifier = [7; 8];
            verifier[..4].copy_from_slice(&n.to_be_bytes());
            match inner.create_nameless(&user, &dir, &name("lock"), 0o600, verifier) {
                Nameless::Made(inode, ..) => assert_eq!(inner.exclusive.get(&inode.handle), Some(verifier)),
                Nameless::Taken => {}
                Nameless::Impossible => panic!("a name that is taken or free is no reason to create by the name"),
            }
            match inner.create(&user, &dir, &name("lock"), &SetAttr::default(), Some(verifier)) {
                Ok(made) => assert_eq!(inner.exclusive.get(&made.inode.handle), Some(verifier)),
                Err(e) => assert!(matches!(e.kind(), ErrorKind::Exists | ErrorKind::Stale), "{e:?}"),
            }
        }
        stop.store(true, Ordering::Relaxed);
        other.join().unwrap();
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
        // By ctime: the kernel sets mtime a moment later, and one who looks in between sees the older one with it.
        let mut seen: (u64, open::Time) = (0, inner.root.stat().unwrap().ctime);
        for _ in 0..2000 {
            let (stat, change) = inner.root.stat_change().unwrap();
            assert!(change >= seen.0, "it went back");
            assert!(change > seen.0 || stat.ctime == seen.1, "one value for two states");
            seen = (change, stat.ctime);
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
