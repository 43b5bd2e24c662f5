//! Open, read, write, commit, space.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;
use dhow_sys::open;
use dhow_sys::{Errno, io};
use dhow_vfs::{Cred, ErrorKind, OpenAccess, OpenFile, ReadData, Result, SeekTo, Seeked};
use rustix::fs::OFlags;

use crate::error::sys;
use crate::inner::Inner;
use crate::inode::{Changing, Inode};
use crate::rights::{R, W, X};
use crate::sync::Lane;

/// The largest offset that the kernel knows.
const MAX_OFFSET: u64 = i64::MAX as u64;
/// Reads up to this size go to memory of their own instead of a pooled block, of which the least is 64 KiB.
const SMALL_READ: usize = 8 << 10;
/// The most that one read returns, whatever is asked.
const MAX_READ: u64 = 8 << 20;

/// The token of one open. The descriptors are the object's; this counts as a reason to keep them.
pub(crate) struct LocalOpen {
    pub inode: Arc<Inode>,
    pub access: OpenAccess,
}

impl LocalOpen {
    pub(crate) fn new(inode: &Arc<Inode>, access: OpenAccess) -> LocalOpen {
        inode.opens.fetch_add(1, Ordering::AcqRel);
        LocalOpen { inode: inode.clone(), access }
    }
}

impl Drop for LocalOpen {
    fn drop(&mut self) {
        if self.inode.opens.fetch_sub(1, Ordering::AcqRel) == 1 && !self.inode.is_dirty() {
            // A file that is open for writing cannot be run, so do not keep it so without need.
            let old = {
                let mut fds = self.inode.fds.lock();
                let again = self.inode.opens.load(Ordering::Acquire) > 0;
                if again { None } else { fds.write.take() }
            };
            drop(old);
        }
    }
}

impl Inner {
    /// Whether the user may read or write the file's data; who may run a program may read it. With `owner_may` the
    /// owner may whatever the mode says: for I/O without an open (case B02) and for reclaims. An OPEN is held to the
    /// mode, as on a local filesystem: the open that creates a file needs no question (case B01).
    pub(crate) fn may_io(&self, user: &Cred, inode: &Inode, access: OpenAccess, owner_may: bool) -> Result<()> {
        if !self.switching {
            // The process's own rights decide, when the file is opened.
            return Ok(());
        }
        let stat = inode.stat()?;
        let want = if access.read { R } else { 0 } | if access.write { W } else { 0 };
        if self.rights(user, inode, &stat, want)? == want || owner_may && stat.uid == user.uid {
            return Ok(());
        }
        if !access.write && self.rights(user, inode, &stat, X)? == X {
            return Ok(());
        }
        Err(ErrorKind::Access.into())
    }

    /// A descriptor for data, shared by all who use the file. With an open that grants the access nothing is checked;
    /// without one the user's rights are.
    pub(crate) fn data_fd(
        &self,
        user: &Cred,
        inode: &Arc<Inode>,
        open: Option<&OpenFile>,
        write: bool,
    ) -> Result<Arc<OwnedFd>> {
        inode.must_be_file()?;
        let granted = match open.map(OpenFile::get::<LocalOpen>) {
            Some(Some(open)) if Arc::ptr_eq(&open.inode, inode) => {
                if write {
                    open.access.write
                } else {
                    open.access.read
                }
            }
            Some(_) => return Err(ErrorKind::Invalid.into()),
            None => false,
        };
        if !granted {
            self.may_io(user, inode, OpenAccess { read: !write, write }, true)?;
        }
        self.open_data(user, inode, write)
    }

    /// A descriptor for data that is at hand.
    fn known_fd(&self, inode: &Arc<Inode>, write: bool) -> Option<Arc<OwnedFd>> {
        let fd = {
            let fds = inode.fds.lock();
            if write { fds.write.clone() } else { fds.write.as_ref().or(fds.read.as_ref()).cloned() }
        };
        if fd.is_some() {
            self.activate(inode);
        }
        fd
    }

    /// Opens a file for data if it is not open yet; who may was settled before. One descriptor serves reading and
    /// writing, so that it stays one for each file (case B52: a write after a read opens anew, for both).
    pub(crate) fn open_data(&self, user: &Cred, inode: &Arc<Inode>, write: bool) -> Result<Arc<OwnedFd>> {
        if let Some(fd) = self.known_fd(inode, write) {
            return Ok(fd);
        }
        let how = if write { OFlags::RDWR } else { OFlags::RDONLY } | OFlags::NONBLOCK;
        let opened = match self.with_descriptors(|| open::reopen(&inode.path, how)) {
            // Storage that knows the process's own user less than the client's.
            Err(Errno::ACCESS | Errno::PERM) if self.switching => {
                self.as_user(user, || open::reopen(&inode.path, how).map_err(sys))
            }
            other => other.map_err(sys),
        };
        let fd = Arc::new(opened?);
        {
            let mut fds = inode.fds.lock();
            if write {
                fds.write = Some(fd.clone());
                // The one for reading is not needed any more.
                fds.read = None;
            } else {
                fds.read = Some(fd.clone());
            }
        }
        self.activate(inode);
        Ok(fd)
    }

    /// Opens a file as the user.
    pub(crate) fn open_file(
        &self,
        user: &Cred,
        inode: &Arc<Inode>,
        access: OpenAccess,
        reclaim: bool,
    ) -> Result<OpenFile> {
        inode.must_be_file()?;
        // Counted before the check of nlink: from here on a removal keeps the file for us.
        let open = LocalOpen::new(inode, access);
        let stat = open::stat(&inode.path).map_err(sys)?;
        if stat.nlink == 0 && inode.opens.load(Ordering::Acquire) == 1 && !reclaim {
            return Err(ErrorKind::Stale.into());
        }
        self.may_io(user, inode, access, reclaim)?;
        self.open_data(user, inode, access.write)?;
        Ok(OpenFile::new(open))
    }

    /// Reads what is in memory; `None` if that is not all that is asked for.
    pub(crate) fn read_now(
        &self,
        user: &Cred,
        inode: &Arc<Inode>,
        open: Option<&OpenFile>,
        offset: u64,
        len: u32,
    ) -> Option<Result<ReadData>> {
        if !inode.fs.fast {
            return None;
        }
        // Opening may wait; a descriptor that is at hand does not.
        self.known_fd(inode, false)?;
        let fd = match self.data_fd(user, inode, open, false) {
            Ok(fd) => fd,
            Err(e) => return Some(Err(e)),
        };
        let size = match inode.stat() {
            Ok(stat) => stat.size,
            Err(e) => return Some(Err(e)),
        };
        let want = size.saturating_sub(offset).min(u64::from(len)).min(MAX_READ) as usize;
        if want == 0 {
            return Some(Ok(ReadData { data: Bytes::new(), eof: offset.saturating_add(u64::from(len)) >= size }));
        }
        let data = self.fill(want, |buf| {
            // Where all data is in memory nothing is waited for, and tmpfs does not know the flag.
            let read = if inode.fs.volatile { io::pread } else { io::pread_nowait };
            match read(&fd, buf, offset) {
                Ok(n) if n == buf.len() => Ok(Some(n)),
                // Part of it is on disk, or the filesystem cannot tell.
                Ok(_) | Err(Errno::AGAIN | Errno::OPNOTSUPP) => Ok(None),
                Err(e) => Err(sys(e)),
            }
        });
        match data {
            Ok(Some(data)) => Some(Ok(ReadData { eof: offset.saturating_add(want as u64) >= size, data })),
            Ok(None) => None,
            Err(e) => Some(Err(e)),
        }
    }

    /// Reads, waiting for the disk. Count, end of file and data agree (case B20).
    pub(crate) fn read(
        &self,
        user: &Cred,
        inode: &Arc<Inode>,
        open: Option<&OpenFile>,
        offset: u64,
        len: u32,
    ) -> Result<ReadData> {
        let fd = self.data_fd(user, inode, open, false)?;
        let size = inode.stat()?.size;
        let want = size.saturating_sub(offset).min(u64::from(len)).min(MAX_READ) as usize;
        if want == 0 {
            return Ok(ReadData { data: Bytes::new(), eof: offset.saturating_add(u64::from(len)) >= size });
        }
        let data = self.fill(want, |buf| {
            let mut done = 0;
            while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
                match io::pread(&fd, rest, offset + done as u64) {
                    // The file became shorter meanwhile.
                    Ok(0) => break,
                    Ok(n) => done += n,
                    Err(_) if done > 0 => break,
                    Err(e) => return Err(sys(e)),
                }
            }
            Ok(Some(done))
        })?;
        let data = data.unwrap_or_default();
        let end = offset + data.len() as u64;
        let eof = end >= size || data.len() < want && end >= inode.stat()?.size;
        Ok(ReadData { data, eof })
    }

    /// A buffer of `want` bytes filled by `read`, cut to the count that it returns.
    fn fill(&self, want: usize, read: impl FnOnce(&mut [u8]) -> Result<Option<usize>>) -> Result<Option<Bytes>> {
        if want <= SMALL_READ {
            let mut buf = vec![0; want];
            return Ok(read(&mut buf)?.map(|n| {
                buf.truncate(n);
                Bytes::from(buf)
            }));
        }
        let mut buf = self.options.buffers.take(want);
        let n = read(&mut buf)?;
        // Only what was read now leaves the pool: the rest is somebody else's old data.
        Ok(n.map(|n| buf.freeze(0..n)))
    }

    /// Writes all of `data` if there is room; returns the count. Runs with the user's uid, so that set-id bits are
    /// cleared and quotas count.
    pub(crate) fn write(&self, user: &Cred, inode: &Arc<Inode>, fd: &OwnedFd, offset: u64, data: &[u8]) -> Result<u32> {
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > MAX_OFFSET) {
            return Err(ErrorKind::FileTooBig.into());
        }
        let result = self.as_uid(user, || {
            let mut done = 0;
            while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
                match io::pwrite(fd, rest, offset + done as u64) {
                    Ok(0) => break,
                    Ok(n) => done += n,
                    Err(_) if done > 0 => break,
                    Err(e) => return Err(sys(e)),
                }
            }
            Ok(done as u32)
        });
        inode.changed();
        self.mark_dirty(inode);
        result
    }

    /// Writes as much of `data` as goes into memory without waiting for a lock or for a disk; returns the count, often 0:
    /// many filesystems cannot tell.
    pub(crate) fn write_now(
        &self,
        user: &Cred,
        inode: &Arc<Inode>,
        open: Option<&OpenFile>,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        // Opening may wait; a descriptor that is at hand does not.
        if inode.fs.no_nowait.load(Ordering::Relaxed)
            || offset.checked_add(data.len() as u64).is_none_or(|end| end > MAX_OFFSET)
            || self.known_fd(inode, true).is_none()
        {
            return Ok(0);
        }
        let fd = self.data_fd(user, inode, open, true)?;
        match self.as_uid(user, || Ok(io::pwrite_nowait(&fd, data, offset)))? {
            Ok(0) | Err(Errno::AGAIN) => Ok(0),
            Ok(done) => {
                inode.changed();
                self.mark_dirty(inode);
                Ok(done)
            }
            // What it is called where it is not known for buffered writes.
            Err(Errno::OPNOTSUPP | Errno::INVAL) => {
                inode.fs.no_nowait.store(true, Ordering::Relaxed);
                Ok(0)
            }
            // One that may wait tells the same, or does better.
            Err(_) => Ok(0),
        }
    }

    /// There is data that no fsync has covered: keep the file open until one does, since the kernel tells a failed
    /// write-out only to descriptors that were open then. Called after the write.
    pub(crate) fn mark_dirty(&self, inode: &Arc<Inode>) {
        if inode.fs.volatile {
            return;
        }
        inode.writes.fetch_add(1, Ordering::AcqRel);
        self.dirty.lock().entry(inode.handle.clone()).or_insert_with(|| (inode.clone(), Instant::now()));
    }

    /// Whether so many files wait for a COMMIT that one more should be made stable at once.
    pub(crate) fn too_many_dirty(&self) -> bool {
        self.dirty.lock().len() > self.options.max_cached / 2
    }

    /// Makes a file's data and metadata stable. A failure changes the verifier.
    pub(crate) async fn commit_inode(self: &Arc<Self>, inode: &Arc<Inode>) -> Result<()> {
        if inode.fs.volatile {
            return Ok(());
        }
        let upto = inode.writes.load(Ordering::Acquire);
        let target = self.sync_target(inode).await?;
        let result = self.sync_in(&inode.fs, Lane::File(inode.handle.clone()), vec![target]).await;
        // After a failure too: the kernel has given the data up, and clients learn it from the verifier.
        inode.stable.fetch_max(upto, Ordering::AcqRel);
        let mut dirty = self.dirty.lock();
        if !inode.is_dirty() {
            dirty.remove(&inode.handle);
        }
        result
    }

    /// Finds data or a hole (RFC 7862 15.11).
    pub(crate) fn seek(&self, inode: &Inode, fd: &OwnedFd, offset: u64, to: SeekTo) -> Result<Seeked> {
        let size = inode.stat()?.size;
        if offset >= size {
            return Err(ErrorKind::Range.into());
        }
        let found = match to {
            SeekTo::Data => io::seek_data(fd, offset),
            SeekTo::Hole => io::seek_hole(fd, offset),
        };
        match found {
            Ok(at) => Ok(Seeked { eof: false, offset: at }),
            // No data up to the end.
            Err(Errno::NXIO) => Ok(Seeked { eof: true, offset: size }),
            // A filesystem that keeps no holes: all is data, and the end counts as a hole.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(match to {
                SeekTo::Data => Seeked { eof: false, offset },
                SeekTo::Hole => Seeked { eof: false, offset: size },
            }),
            Err(e) => Err(sys(e)),
        }
    }

    /// Reserves space, or makes a hole.
    pub(crate) fn space(
        &self,
        user: &Cred,
        inode: &Arc<Inode>,
        fd: &OwnedFd,
        offset: u64,
        len: u64,
        reserve: bool,
    ) -> Result<()> {
        let end = offset.checked_add(len).ok_or(ErrorKind::Invalid)?;
        if end > MAX_OFFSET {
            return Err(ErrorKind::FileTooBig.into());
        }
        if len == 0 {
            return Ok(());
        }
        let _changing = Changing::new(inode);
        self.as_uid(user, || {
            if reserve { io::allocate(fd, offset, len) } else { io::punch_hole(fd, offset, len) }.map_err(sys)
        })?;
        inode.changed();
        self.mark_dirty(inode);
        Ok(())
    }
}
