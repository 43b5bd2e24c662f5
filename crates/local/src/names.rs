//! Everything that happens to a name in a directory: look up, create, make, link, remove, rename.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dhow_sys::node::{self, Replace, Special};
use dhow_sys::open::{self, Stat};
use dhow_sys::{Errno, xattr};
use dhow_vfs::{Cred, DirChange, Error, ErrorKind, FileKind, Handle, Make, Name, OpenAccess, Result, SetAttr};
use rustix::fs::OFlags;

use crate::error::{as_kind, sys};
use crate::fs::Filesystem;
use crate::inner::Inner;
use crate::inode::Inode;
use crate::io::LocalOpen;
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
    /// For reading and writing. From the moment the file is known: whoever removes it then leaves it to this open.
    pub open: LocalOpen,
    pub stat: Stat,
    pub change: DirChange,
    pub fresh: bool,
    pub applied: SetAttr,
    /// The log of verifiers, to be synced too.
    pub log: Option<Arc<OwnedFd>>,
    /// Syncing the directory is not enough.
    pub sync_inode: bool,
}

/// How often a create looks at a name that others make and remove all the time, before it is created by its name; and how
/// often another object is made that somebody removes at once.
const TRIES: usize = 16;

/// What the open of a create may do, whatever the file's mode says (case B01).
const BOTH: OpenAccess = OpenAccess { read: true, write: true };

/// What an attempt to make a file without a name, and then name it, came to.
enum Nameless {
    /// The file, its descriptor, and the log of verifiers.
    Made(Arc<Inode>, OwnedFd, Option<Arc<OwnedFd>>),
    /// The name is taken, by the file of the same request perhaps.
    Taken,
    /// Not in this way: whatever stands in the way is told by a create under the name.
    Impossible,
    /// The file was made, but may have no name given to it. If a create under the name goes, that is how it is here.
    Refused,
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
        let mut nameless = None;
        let mut refused = false;
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
                    Nameless::Refused => refused = true,
                }
                break;
            }
        }
        if let Some((inode, fd, log)) = nameless {
            return self.finish_new(user, dir, (inode, fd), set, (verifier, Some(log)), update);
        }
        match (self.create_named(user, dir, name, mode)?, verifier) {
            (Some(made), _) => {
                if refused {
                    dir.no_nameless.store(true, Ordering::Relaxed);
                }
                self.finish_new(user, dir, made, set, (verifier, None), update)
            }
            (None, Some(verifier)) => {
                // It was there, and is gone again: somebody else's.
                let found = self.made_before(user, dir, name, verifier).map_err(|e| match e.kind() {
                    ErrorKind::NotFound => ErrorKind::Exists.into(),
                    _ => e,
                })?;
                self.find_again(user, found, set, update)
            }
            (None, None) => Err(ErrorKind::Exists.into()),
        }
    }

    /// Does the rest of a create whose file was just made; somebody may have removed it already, which is as if he came
    /// after the open. `known`: the verifier is remembered already, in this log.
    fn finish_new(
        self: &Arc<Self>,
        user: &Cred,
        dir: &Arc<Inode>,
        (inode, fd): (Arc<Inode>, OwnedFd),
        set: &SetAttr,
        (verifier, known): (Option<[u8; 8]>, Option<Option<Arc<OwnedFd>>>),
        update: Update,
    ) -> Result<NewFile> {
        let open = LocalOpen::new(&inode, BOTH);
        {
            let mut fds = inode.fds.lock();
            fds.read = None;
            fds.write = Some(Arc::new(fd));
        }
        self.activate(&inode);
        let applied = self.set_new(user, &inode, None, set)?;
        // Elsewhere an fsync of the directory is known to cover what was created in it, less so what was linked there.
        let linked = known.is_some() && dir.fs.journal == Journal::Other;
        let log = match (verifier, known) {
            // Last, so that a sync of the log covers all of the above where the journal is one.
            (Some(verifier), known) if known.is_none() || self.log_takes_along(&dir.fs) => {
                self.remember(&inode.handle, verifier)
            }
            (_, known) => known.flatten(),
        };
        let change = update.end(self.options.exclusive)?;
        let stat = inode.stat()?;
        let sync_inode = !dir.fs.dir_sync_covers_new || linked || changes_after_create(set);
        Ok(NewFile { inode, open, stat, change, fresh: true, applied, log, sync_inode })
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
        if dir.fs.no_nameless.load(Ordering::Relaxed) || dir.no_nameless.load(Ordering::Relaxed) {
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
                match e {
                    Errno::EXIST => {}
                    Errno::PERM => return Nameless::Refused,
                    _ => return Nameless::Impossible,
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
    ///
    /// `EPERM` is told of filesystems without links, but of one odd directory or file as well (immutable ones, or what a
    /// security module guards): it says nothing of other directories.
    fn give_name(&self, user: &Cred, dir: &Arc<Inode>, name: &Name, fd: &OwnedFd) -> std::result::Result<(), Errno> {
        // Who cannot act as the user makes it by its name, or is told why not.
        let linked = self.as_user(user, || Ok(node::link(fd, &dir.path, name.as_bytes()))).unwrap_or(Err(Errno::IO));
        if linked == Err(Errno::OPNOTSUPP) {
            dir.fs.no_nameless.store(true, Ordering::Relaxed);
        }
        linked
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
        let open = LocalOpen::new(&inode, BOTH);
        let applied = self.set_new(user, &inode, None, set)?;
        let change = update.end(self.options.exclusive)?;
        let stat = inode.stat()?;
        Ok(NewFile { inode, open, stat, change, fresh: false, applied, log: None, sync_inode: true })
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
        let make = || {
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
            })
        };
        for _ in 0..TRIES {
            let fd = self.as_user(user, || {
                make()?;
                Ok(self.with_descriptors(|| open::path_beneath(at, bytes, self.crossing())))
            })?;
            match fd {
                Ok(fd) => {
                    let (inode, _) = self.child(dir, bytes, fd)?;
                    if inode.kind == what.kind() {
                        return self.finish_node(user, dir, inode, set, update);
                    }
                }
                Err(Errno::NOENT) => {}
                Err(e) => return Err(lookup_error(e)),
            }
            // Removed already, and replaced perhaps: there is nothing to tell of it. As if the request came only now.
        }
        Err(ErrorKind::Delay.into())
    }

    /// Does the rest of [`Inner::make`]; somebody may have removed the object already, which is as if he came after it.
    fn finish_node(
        self: &Arc<Self>,
        user: &Cred,
        dir: &Arc<Inode>,
        inode: Arc<Inode>,
        set: &SetAttr,
        update: Update,
    ) -> Result<NewNode> {
        let _held = LocalOpen::new(&inode, OpenAccess::default());
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
mod tests;
