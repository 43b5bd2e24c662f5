//! Cloning and copying ranges: how the bytes of a copy move.
//!
//! In this order, whatever works first: sharing blocks, copying inside the kernel, reading and writing. Holes of the
//! source become holes of the destination.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dhow_sys::proc::{IoPriority, set_io_priority};
use dhow_sys::{Errno, io, open};
use dhow_vfs::{Cred, ErrorKind, Result};

use crate::error::sys;
use crate::fs::Filesystem;
use crate::inner::Inner;
use crate::inode::{Changing, Inode};
use crate::options::Reflink;
use crate::relay;

/// The most that one call inside the kernel copies, so that a cancelled copy ends soon.
const STEP: u64 = 8 << 20;
/// How much more of a copy within memory is one chunk of work: it takes no longer than a chunk on a disk.
const IN_MEMORY: u64 = 8;
/// Buffer of the last resort.
const BUFFER: usize = 1 << 20;

/// A file and where its data is reached.
pub(crate) struct End {
    pub inode: Arc<Inode>,
    pub fd: Arc<OwnedFd>,
    pub offset: u64,
}

/// Low I/O priority for as long as it lives.
struct Background;

impl Background {
    fn enter() -> Background {
        // Only a wish: some kernels are built without.
        let _ = set_io_priority(IoPriority::BestEffort(7));
        Background
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = set_io_priority(IoPriority::Default);
    }
}

impl Inner {
    /// Shares a range, all or nothing (RFC 7862 15.13).
    pub(crate) fn clone_range(&self, user: &Cred, src: &End, dst: &End, len: u64) -> Result<()> {
        if self.options.reflink == Reflink::Never {
            return Err(ErrorKind::NotSupported.into());
        }
        if src.inode.fs.dev != dst.inode.fs.dev {
            return Err(ErrorKind::CrossDevice.into());
        }
        let size = src.inode.stat()?.size;
        let end = src.offset.checked_add(len).ok_or(ErrorKind::Invalid)?;
        if end > size || src.offset > size || dst.offset.checked_add(len).is_none() {
            return Err(ErrorKind::Invalid.into());
        }
        self.as_uid(user, || {
            io::clone_range(&src.fd, src.offset, &dst.fd, dst.offset, len).map_err(|e| match e {
                Errno::NOTTY | Errno::OPNOTSUPP => ErrorKind::NotSupported.into(),
                e => sys(e),
            })
        })?;
        dst.inode.changed();
        self.mark_dirty(&dst.inode);
        Ok(())
    }

    /// Copies the start of a range: about `chunk` bytes of real work, more if it costs nothing.
    pub(crate) fn copy_range(&self, user: &Cred, src: &End, dst: &End, len: u64, chunk: u64) -> Result<u64> {
        let _background = Background::enter();
        let stat = src.inode.stat()?;
        let size = stat.size;
        let len = len.min(size.saturating_sub(src.offset));
        if dst.offset.checked_add(len).is_none_or(|end| end > i64::MAX as u64) {
            return Err(ErrorKind::FileTooBig.into());
        }
        if len == 0 {
            return Ok(0);
        }
        let in_memory = src.inode.fs.volatile && dst.inode.fs.volatile;
        let chunk = if in_memory { chunk.saturating_mul(IN_MEMORY) } else { chunk };
        let mut copy = Copy {
            inner: self,
            src,
            dst,
            size,
            done: 0,
            work: 0,
            buffered: self.options.reflink == Reflink::Never && shares_in_kernel(&dst.inode.fs),
            relayed: in_memory && !Arc::ptr_eq(&src.inode, &dst.inode) && relay::has_processor() && self.only_copy(),
            solid: src.inode.fs.volatile && stat.blocks.saturating_mul(512) >= size,
        };
        let _changing = Changing::new(&dst.inode);
        let result = self.as_uid(user, || copy.run(len, chunk.max(1)));
        let done = copy.done;
        dst.inode.changed();
        self.mark_dirty(&dst.inode);
        match result {
            // What was moved before an error counts; the error comes again on the next try.
            Err(_) if done > 0 => Ok(done),
            Err(e) => Err(e),
            Ok(()) => Ok(done),
        }
    }
}

struct Copy<'a> {
    inner: &'a Inner,
    src: &'a End,
    dst: &'a End,
    /// Size of the source at the start.
    size: u64,
    /// Bytes of the range that are right by now.
    done: u64,
    /// Bytes that were really moved.
    work: u64,
    /// Copying inside the kernel was refused, or would share blocks that must not be shared.
    buffered: bool,
    /// A second thread may read ahead.
    relayed: bool,
    /// The source has no holes, and asking for them is dear: in tmpfs, which counts its blocks exactly, SEEK_HOLE
    /// looks at every page up to the hole.
    solid: bool,
}

/// Whether `copy_file_range` may share blocks by itself, as it does wherever the filesystem knows how to.
fn shares_in_kernel(fs: &Filesystem) -> bool {
    ![open::EXT4_MAGIC, open::TMPFS_MAGIC].contains(&fs.magic)
}

impl Copy<'_> {
    fn from(&self) -> u64 {
        self.src.offset + self.done
    }

    fn to(&self) -> u64 {
        self.dst.offset + self.done
    }

    fn run(&mut self, len: u64, chunk: u64) -> Result<()> {
        while self.done < len && self.work < chunk {
            let left = len - self.done;
            if self.share(left)? {
                continue;
            }
            // Up to the next block boundary first, if the rest can be shared then.
            let left = self.before_boundary(left);
            let hole = match self.seek_data() {
                Ok(data) => (data - self.from()).min(left),
                // No more data up to the end, wherever that is by now.
                Err(Errno::NXIO) => match self.src.inode.stat()?.size.saturating_sub(self.from()) {
                    // The source became shorter: what it does not have is no hole.
                    0 => break,
                    more => more.min(left),
                },
                // A filesystem that keeps no holes.
                Err(Errno::INVAL | Errno::OPNOTSUPP) => 0,
                Err(e) => return Err(sys(e)),
            };
            if hole > 0 {
                self.hole(hole, chunk)?;
                continue;
            }
            let data = match self.seek_hole() {
                Ok(end) => (end - self.from()).min(left),
                Err(_) => left,
            };
            if self.data(data.min(chunk - self.work))? == 0 {
                // The source became shorter.
                break;
            }
        }
        Ok(())
    }

    fn seek_data(&self) -> std::result::Result<u64, Errno> {
        if self.solid { Ok(self.from()) } else { io::seek_data(&self.src.fd, self.from()) }
    }

    fn seek_hole(&self) -> std::result::Result<u64, Errno> {
        if self.solid { Ok(self.size) } else { io::seek_hole(&self.src.fd, self.from()) }
    }

    fn may_share(&self) -> bool {
        let fs = &self.dst.inode.fs;
        self.inner.options.reflink == Reflink::Auto
            && self.src.inode.fs.dev == fs.dev
            && !fs.no_clone.load(Ordering::Relaxed)
    }

    /// How much to copy before both offsets lie on a block boundary.
    fn before_boundary(&self, left: u64) -> u64 {
        let block = u64::from(self.dst.inode.fs.block).max(1);
        let (from, to) = (self.from() % block, self.to() % block);
        if self.may_share() && from == to && from != 0 { left.min(block - from) } else { left }
    }

    /// Shares as much as can be; true if that was something.
    fn share(&mut self, left: u64) -> Result<bool> {
        let block = u64::from(self.dst.inode.fs.block).max(1);
        if !self.may_share() || !self.from().is_multiple_of(block) || !self.to().is_multiple_of(block) {
            return Ok(false);
        }
        let whole = left - left % block;
        // A last part of a block can be shared if it is the end of both files.
        let to_the_end =
            self.from() + left == self.size && self.dst.inode.stat().is_ok_and(|stat| self.to() + left >= stat.size);
        let len = if to_the_end { left } else { whole };
        if len == 0 {
            return Ok(false);
        }
        match io::clone_range(&self.src.fd, self.from(), &self.dst.fd, self.to(), len) {
            Ok(()) => {
                self.done += len;
                Ok(true)
            }
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS) => {
                self.dst.inode.fs.no_clone.store(true, Ordering::Relaxed);
                Ok(false)
            }
            // Files that cannot share though their filesystem can (no checksums on one, swap, ...), or a full disk:
            // moving the bytes will tell.
            Err(_) => Ok(false),
        }
    }

    /// Makes `len` bytes of the destination a hole.
    fn hole(&mut self, len: u64, chunk: u64) -> Result<()> {
        let (start, mut end) = (self.to(), self.to() + len);
        let size = self.dst.inode.stat()?.size;
        let fd = &self.dst.fd;
        if start < size {
            let within = len.min(size - start);
            match io::punch_hole(fd, start, within) {
                Ok(()) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    let zeroes = vec![0; BUFFER];
                    let len = within.min((chunk - self.work).max(1)).min(STEP);
                    let mut at = 0;
                    while at < len {
                        let n = (len - at).min(BUFFER as u64) as usize;
                        let part = zeroes.get(..n).unwrap_or_default();
                        let (written, end) = write_all(fd, part, start + at);
                        at += written as u64;
                        end.map_err(sys)?;
                    }
                    self.work += len;
                    end = start + len;
                }
                Err(e) => return Err(sys(e)),
            }
        }
        if end > size {
            self.extend(start, end)?;
        }
        self.done += end - start;
        Ok(())
    }

    /// Makes the file reach to `end`, of which the part from `start` on is a hole. Setting the size would cut off what
    /// somebody else appends meanwhile; writing the last byte does not. Its block is given back if it is ours alone.
    fn extend(&self, start: u64, end: u64) -> Result<()> {
        let fd = &self.dst.fd;
        write_all(fd, &[0], end - 1).1.map_err(sys)?;
        let block = u64::from(self.dst.inode.fs.block).max(1);
        if end.is_multiple_of(block) && end - start >= block {
            // It may stay if it must.
            let _ = io::punch_hole(fd, end - block, block);
        }
        Ok(())
    }

    /// Moves up to `len` bytes of data; 0 at the end of the source.
    fn data(&mut self, len: u64) -> Result<u64> {
        if self.relayed && len >= relay::MIN {
            let (src, dst) = (&self.src.fd, &self.dst.fd);
            match relay::copy(src, self.from(), dst, self.to(), len, &self.inner.options.buffers) {
                Some(moved) => {
                    self.done += moved.done;
                    self.work += moved.done;
                    return moved.error.map_or(Ok(moved.done), |e| Err(sys(e)));
                }
                None => self.relayed = false,
            }
        }
        let len = len.min(STEP);
        if !self.buffered {
            let step = usize::try_from(len).unwrap_or(usize::MAX);
            match io::copy_file_range(&self.src.fd, self.from(), &self.dst.fd, self.to(), step) {
                Ok(n) => {
                    self.done += n as u64;
                    self.work += n as u64;
                    return Ok(n as u64);
                }
                Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::PERM) => self.buffered = true,
                Err(e) => return Err(sys(e)),
            }
        }
        let want = usize::try_from(len).unwrap_or(BUFFER).min(BUFFER);
        let mut buf = self.inner.options.buffers.take(want);
        let n = io::pread(&self.src.fd, &mut buf, self.from()).map_err(sys)?;
        let (written, end) = write_all(&self.dst.fd, buf.get(..n).unwrap_or_default(), self.to());
        self.done += written as u64;
        self.work += written as u64;
        end.map_err(sys)?;
        Ok(n as u64)
    }
}

/// Writes all of `data`, or tells why not: how much was written counts all the same.
pub(crate) fn write_all(fd: &OwnedFd, data: &[u8], offset: u64) -> (usize, std::result::Result<(), Errno>) {
    let mut done = 0;
    while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
        match io::pwrite(fd, rest, offset + done as u64) {
            Ok(0) => return (done, Err(Errno::NOSPC)),
            Ok(n) => done += n,
            Err(e) => return (done, Err(e)),
        }
    }
    (done, Ok(()))
}
