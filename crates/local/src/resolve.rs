//! How a handle becomes an object, and an object gets its handle.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dhow_sys::open::{self, Crossing, Stat};
use dhow_sys::{Errno, dir, handle as kernel};
use dhow_vfs::{Cred, Error, ErrorKind, FileKind, Handle, Result};
use rustix::fs::OFlags;

use crate::error::sys;
use crate::fs::Filesystem;
use crate::handle::{self, Parsed};
use crate::hints::Way;
use crate::inner::{Inner, Place};
use crate::inode::Inode;

impl Inner {
    /// The object that `handle` names.
    pub(crate) async fn inode(self: &Arc<Self>, handle: &Handle) -> Result<Arc<Inode>> {
        if let Some(inode) = self.inodes.get(handle) {
            return Ok(inode);
        }
        let handle = handle.clone();
        self.run(Place::Pool, move |inner| inner.resolve(&handle)).await
    }

    /// The object that `handle` names, waiting for the disk if need be.
    pub(crate) fn resolve(self: &Arc<Self>, handle: &Handle) -> Result<Arc<Inode>> {
        if let Some(inode) = self.inodes.get(handle) {
            return Ok(inode);
        }
        let parsed = handle::parse(handle).ok_or(ErrorKind::BadHandle)?;
        if let Parsed::Kernel { fs, handle: inner } = &parsed
            && let Some((fs, fd)) = self.open_kernel(*fs, inner)?
        {
            let stat = open::stat(&fd).map_err(sys)?;
            if stat.nlink == 0 {
                return Err(ErrorKind::Stale.into());
            }
            // Some filesystems take more bytes for a handle than they give; an object has one handle here.
            if fs.handle_of(&fd, &stat)? != *handle {
                return Err(ErrorKind::Stale.into());
            }
            return Ok(self.inodes.adopt(handle.clone(), &stat, &fs, fd));
        }
        self.walk(handle)
    }

    /// Opens a kernel handle; `None` if it has to be found by a walk.
    fn open_kernel(&self, number: u32, inner: &kernel::KernelHandle) -> Result<Option<(Arc<Filesystem>, OwnedFd)>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        if self.by_number(number).is_none() {
            self.discover();
        }
        if let Some(fs) = self.by_number(number) {
            if !fs.openable {
                return Ok(None);
            }
            let mut opened = self.with_descriptors(|| kernel::open(&fs.root, inner, flags));
            // Linux says ENOMEM, with memory to spare, of a directory that is removed or moved while it looks for the
            // way to it (seen with ext4 of Linux 6.x). The next try tells what became of it.
            for _ in 0..2 {
                if !matches!(opened, Err(Errno::NOMEM)) {
                    break;
                }
                opened = kernel::open(&fs.root, inner, flags);
            }
            return match opened {
                Ok(fd) => Ok(Some((fs, fd))),
                Err(Errno::PERM) => Ok(None),
                // A handle that decodes to nothing is told by some filesystems as rubbish.
                Err(Errno::INVAL | Errno::NOENT) => Err(ErrorKind::Stale.into()),
                Err(e) => Err(sys(e)),
            };
        }
        // A subvolume that has not been visited since the start: its handles open on any mount of its filesystem.
        let candidates: Vec<_> = self.filesystems.read().iter().filter(|fs| fs.openable).cloned().collect();
        for near in candidates.iter().filter(|fs| fs.magic == open::BTRFS_MAGIC) {
            if let Ok(fd) = kernel::open(&near.root, inner, flags)
                && let Ok(stat) = open::stat(&fd)
                && let Ok(fs) = self.filesystem(&fd, &stat, near, || None)
                && fs.number == number
            {
                return Ok(Some((fs, fd)));
            }
        }
        if self.root.fs.openable { Err(ErrorKind::Stale.into()) } else { Ok(None) }
    }

    /// Goes to where the object was last seen, comparing handles at every step.
    fn walk(self: &Arc<Self>, handle: &Handle) -> Result<Arc<Inode>> {
        let way = self.hints.way(handle, |h| self.inodes.get(h));
        let Way { start, steps } = match way {
            Some(way) => way,
            None => return Err(self.missed(handle)),
        };
        let mut at = start;
        for (name, expected) in steps {
            let step = open::path_beneath(&at.path, &name, self.crossing()).map_err(sys).and_then(|fd| {
                let (found, stat, fs) = self.identify(&fd, &at.fs, || None)?;
                Ok((found == expected).then(|| self.inodes.adopt(found, &stat, &fs, fd)))
            });
            match step {
                Ok(Some(next)) => at = next,
                Ok(None) => return Err(self.missed(handle)),
                Err(e) if e.kind() == ErrorKind::Delay => return Err(e),
                Err(_) => return Err(self.missed(handle)),
            }
        }
        Ok(at)
    }

    /// The hints did not lead to the object: search the tree once, then it is gone.
    fn missed(self: &Arc<Self>, handle: &Handle) -> Error {
        if self.hints.miss(handle) {
            return ErrorKind::Stale.into();
        }
        if self.hints.start_scan() {
            let inner = self.clone();
            let run = move || crate::hints::scan(&inner);
            match tokio::runtime::Handle::try_current() {
                Ok(runtime) => drop(runtime.spawn_blocking(run)),
                Err(_) => run(),
            }
        }
        ErrorKind::Delay.into()
    }

    pub(crate) fn by_number(&self, number: u32) -> Option<Arc<Filesystem>> {
        self.filesystems.read().iter().find(|fs| fs.number == number).cloned()
    }

    /// The filesystem of an object that was reached from `near`. `mounted_on` is asked when it is a new one.
    pub(crate) fn filesystem(
        &self,
        fd: impl AsFd,
        stat: &Stat,
        near: &Arc<Filesystem>,
        mounted_on: impl FnOnce() -> Option<u64>,
    ) -> Result<Arc<Filesystem>> {
        let fd = fd.as_fd();
        if stat.dev == near.dev {
            return Ok(near.clone());
        }
        if let Some(fs) = self.filesystems.read().iter().find(|fs| fs.dev == stat.dev) {
            return Ok(fs.clone());
        }
        let is_dir = crate::inode::kind_of(stat.mode) == FileKind::Directory;
        let over = mounted_on().or(Some(stat.ino));
        let new = if is_dir {
            Filesystem::probe(&self.options, fd, stat, over, &self.verifier)
        } else {
            // A file of a subvolume; any directory of the same filesystem opens its handles.
            near.root
                .try_clone()
                .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::MFILE))
                .and_then(|root| Filesystem::with_root(&self.options, fd, root, stat, over, &self.verifier))
        };
        let new = Arc::new(new.map_err(sys)?);
        let mut all = self.filesystems.write();
        if let Some(fs) = all.iter().find(|fs| fs.dev == stat.dev) {
            return Ok(fs.clone());
        }
        if all.iter().any(|fs| fs.number == new.number) {
            // Two copies of one filesystem (a snapshot of the device): their handles cannot be told apart.
            tracing::warn!("two filesystems under {} have the same identity", self.options.path.display());
            return Err(ErrorKind::Access.into());
        }
        all.push(new.clone());
        Ok(new)
    }

    /// Handle, attributes and filesystem of an object reached from `near`. Runs as the process itself.
    pub(crate) fn identify(
        &self,
        fd: impl AsFd,
        near: &Arc<Filesystem>,
        mounted_on: impl FnOnce() -> Option<u64>,
    ) -> Result<(Handle, Stat, Arc<Filesystem>)> {
        let fd = fd.as_fd();
        let stat = open::stat(fd).map_err(sys)?;
        let fs = self.filesystem(fd, &stat, near, mounted_on)?;
        Ok((fs.handle_of(fd, &stat)?, stat, fs))
    }

    /// Holds what `name` leads to in `dir`, whose right to search was settled before. With `cached`, `EAGAIN` means that
    /// a disk would have to be waited for.
    pub(crate) fn hold(
        &self,
        user: &Cred,
        dir: &Inode,
        name: &[u8],
        cached: bool,
    ) -> std::result::Result<OwnedFd, Errno> {
        let open = if cached { open::path_beneath_cached } else { open::path_beneath };
        let hold = || self.with_descriptors(|| open(&dir.path, name, self.crossing()));
        match hold() {
            // Storage that trusts the process less than the user.
            Err(Errno::ACCESS) if self.switching && !self.is_super(user) => {
                self.as_user(user, || Ok(hold())).unwrap_or(Err(Errno::ACCESS))
            }
            other => other,
        }
    }

    /// Makes an object of a descriptor that was opened in `dir` by `name`.
    pub(crate) fn child(&self, dir: &Arc<Inode>, name: &[u8], fd: OwnedFd) -> Result<(Arc<Inode>, Stat)> {
        let (handle, stat, fs) = self.identify(&fd, &dir.fs, || entry_number(&dir.path, name))?;
        self.note(dir, name, &handle, &fs);
        Ok((self.inodes.adopt(handle, &stat, &fs, fd), stat))
    }

    /// Remembers where an object was seen, if that will be needed.
    pub(crate) fn note(&self, dir: &Inode, name: &[u8], handle: &Handle, fs: &Filesystem) {
        if fs.needs_hint(handle) {
            self.hints.note(handle, &dir.handle, name);
        }
    }

    /// Looks for filesystems mounted below the root that have not been visited yet.
    fn discover(&self) {
        if !self.options.crossmnt {
            return;
        }
        {
            let mut last = self.last_discovery.lock();
            if last.is_some_and(|at| at.elapsed() < Duration::from_secs(1)) {
                return;
            }
            *last = Some(Instant::now());
        }
        let Ok(table) = std::fs::read("/proc/self/mountinfo") else { return };
        for line in table.split(|b| *b == b'\n') {
            let Some(place) = line.split(|b| *b == b' ').nth(4) else { continue };
            let place = unescape(place);
            let root = std::os::unix::ffi::OsStrExt::as_bytes(self.options.path.as_os_str());
            let Some(below) = place.strip_prefix(root).and_then(|p| p.strip_prefix(b"/")) else { continue };
            if below.is_empty() {
                continue;
            }
            let (dir, name) = match below.iter().rposition(|b| *b == b'/') {
                Some(at) => (below.get(..at).unwrap_or_default(), below.get(at + 1..).unwrap_or_default()),
                None => (&b"."[..], below),
            };
            let found = open::path_beneath(&self.root.path, below, Crossing::Allowed).map_err(sys).and_then(|fd| {
                self.identify(&fd, &self.root.fs, || {
                    let dir = open::path_beneath(&self.root.path, dir, Crossing::Allowed).ok()?;
                    entry_number(dir, name)
                })
            });
            if let Err(e) = found {
                tracing::debug!("cannot enter {}: {e}", String::from_utf8_lossy(&place));
            }
        }
    }
}

/// The number that a directory has for an entry: that of the directory mounted over, for a mount point.
pub(crate) fn entry_number(dir: impl AsFd, name: &[u8]) -> Option<u64> {
    let dir = open::reopen(dir, OFlags::RDONLY | OFlags::DIRECTORY).ok()?;
    let mut buffer = vec![std::mem::MaybeUninit::uninit(); 16 << 10];
    let mut number = None;
    dir::read_from(dir, 0, &mut buffer, |entry| {
        if entry.name == name {
            number = Some(entry.ino);
            return dir::Flow::Stop;
        }
        dir::Flow::More
    })
    .ok()?;
    number
}

/// Undoes the octal escapes of `/proc/self/mountinfo`.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, tail)) = rest.split_first() {
        let octal = (*first == b'\\').then(|| tail.get(..3)).flatten();
        let value = octal.and_then(|o| std::str::from_utf8(o).ok()).and_then(|o| u8::from_str_radix(o, 8).ok());
        match value {
            Some(byte) => {
                out.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_table_escapes() {
        assert_eq!(unescape(b"/a\\040b\\134c\\"), b"/a b\\c\\");
    }
}
