//! Byte-range locks that local programs see, and theirs that we see (`local_locks`).
//!
//! Each lock-owner gets an open file description of its own for each file it locks, and holds its locks there as open
//! file description locks (`F_OFD_SETLK`): they conflict with the locks of local programs (`fcntl`, classic or OFD) and
//! with each other as NFS's do, and the kernel does the splitting and merging of ranges. The server asks its own table
//! first, so what fails here is a local program's lock.
//!
//! Owner: one [`LockTable`] for each object, in its [`Inode`]. An entry lives as long as its owner holds a range. The
//! server unlocks whole files when an open is closed or a client's lease is over, and the last open keeps the object.
//!
//! When the server ends the kernel drops all of these at once; when it comes back they are taken again one by one as
//! clients reclaim. In between a local program can take them: then the reclaim fails (docs/operating.md).
//!
//! A lock of a range that no local program can name (beyond 2^63 - 1) is kept in the server's table alone.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use dhow_sys::lock::{self, LockRange as SysRange};
use dhow_sys::{Errno, open};
use dhow_vfs::{ErrorKind, IoRef, LockKind, LockOwner, LockRange, OpenFile, Result};
use rustix::fs::OFlags;

use crate::error::{as_kind, sys};
use crate::inner::Inner;
use crate::inode::Inode;
use crate::io::LocalOpen;

/// The last byte that the kernel can lock.
const LAST: u64 = i64::MAX as u64;

/// What lock-owners hold on one object.
#[derive(Default)]
pub(crate) struct LockTable {
    owners: HashMap<LockOwner, Holder>,
}

struct Holder {
    fd: Arc<OwnedFd>,
    writable: bool,
    ranges: Ranges,
}

/// Ranges that are held, whatever their kind: apart, in order, first and last byte of each.
#[derive(Debug, Default, PartialEq, Eq)]
struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    fn remove(&mut self, (first, last): (u64, u64)) {
        let mut left = Vec::with_capacity(self.0.len() + 1);
        for &(a, b) in &self.0 {
            if b < first || a > last {
                left.push((a, b));
                continue;
            }
            if let Some(before) = first.checked_sub(1).filter(|before| a <= *before) {
                left.push((a, before));
            }
            if let Some(after) = last.checked_add(1).filter(|after| *after <= b) {
                left.push((after, b));
            }
        }
        self.0 = left;
    }

    fn add(&mut self, range: (u64, u64)) {
        self.remove(range);
        self.0.push(range);
        self.0.sort_unstable();
        // Neighbours become one, so that the list stays as short as the kernel's.
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(self.0.len());
        for &(a, b) in &self.0 {
            match merged.last_mut() {
                Some(last) if last.1.checked_add(1) == Some(a) => last.1 = b,
                _ => merged.push((a, b)),
            }
        }
        self.0 = merged;
    }
}

/// First and last byte of what the kernel can lock of a range; `None` if that is nothing.
fn bytes_of(range: LockRange) -> Option<(u64, u64)> {
    let last = match range.len {
        0 => return None,
        u64::MAX => LAST,
        len => range.offset.saturating_add(len - 1).min(LAST),
    };
    (range.offset <= last).then_some((range.offset, last))
}

fn sys_range((first, last): (u64, u64)) -> SysRange {
    // 0 is to the end.
    SysRange { start: first, len: if last == LAST { 0 } else { last - first + 1 } }
}

fn sys_kind(kind: LockKind) -> lock::LockKind {
    match kind {
        LockKind::Read => lock::LockKind::Shared,
        LockKind::Write => lock::LockKind::Exclusive,
    }
}

fn failed(e: Errno) -> dhow_vfs::Error {
    match e {
        Errno::AGAIN | Errno::ACCESS => as_kind(ErrorKind::Locked, e),
        // The kernel's own table of locks is full.
        Errno::NOLCK => as_kind(ErrorKind::Delay, e),
        e => sys(e),
    }
}

impl Inner {
    /// A description for a lock-owner, that nothing else locks through.
    fn description(&self, inode: &Inode, write: bool) -> std::result::Result<OwnedFd, Errno> {
        let how = if write { OFlags::RDWR } else { OFlags::RDONLY } | OFlags::NONBLOCK;
        match self.with_descriptors(|| open::reopen(&inode.path, how)) {
            // A file that the process may write but not read.
            Err(Errno::ACCESS) if write => {
                self.with_descriptors(|| open::reopen(&inode.path, OFlags::WRONLY | OFlags::NONBLOCK))
            }
            other => other,
        }
    }

    /// Takes a lock for its owner. The descriptor is writable only if the open is: a file that somebody has open for
    /// writing cannot be run.
    pub(crate) fn lock(
        &self,
        inode: &Inode,
        open: Option<&OpenFile>,
        owner: &LockOwner,
        range: LockRange,
        kind: LockKind,
    ) -> Result<()> {
        let Some(bytes) = bytes_of(range) else { return Ok(()) };
        inode.must_be_file()?;
        let write =
            kind == LockKind::Write || open.and_then(OpenFile::get::<LocalOpen>).is_some_and(|o| o.access.write);
        let mut table = inode.locks.lock();
        match table.owners.get_mut(owner) {
            Some(holder) => {
                if write && !holder.writable {
                    // What it holds is shared, through a descriptor for reading: both can hold it until the old one goes.
                    let fd = Arc::new(self.description(inode, true).map_err(sys)?);
                    for held in &holder.ranges.0 {
                        lock::ofd_lock(&fd, Some(lock::LockKind::Shared), sys_range(*held)).map_err(failed)?;
                    }
                    (holder.fd, holder.writable) = (fd, true);
                }
                lock::ofd_lock(&holder.fd, Some(sys_kind(kind)), sys_range(bytes)).map_err(failed)?;
                holder.ranges.add(bytes);
            }
            None => {
                let fd = Arc::new(self.description(inode, write).map_err(sys)?);
                lock::ofd_lock(&fd, Some(sys_kind(kind)), sys_range(bytes)).map_err(failed)?;
                let ranges = Ranges(vec![bytes]);
                table.owners.insert(owner.clone(), Holder { fd, writable: write, ranges });
            }
        }
        Ok(())
    }

    /// Gives a range up; the description goes with the last.
    pub(crate) fn unlock(&self, inode: &Inode, owner: &LockOwner, range: LockRange) -> Result<()> {
        let Some(bytes) = bytes_of(range) else { return Ok(()) };
        let mut table = inode.locks.lock();
        let Some(holder) = table.owners.get_mut(owner) else { return Ok(()) };
        lock::ofd_lock(&holder.fd, None, sys_range(bytes)).map_err(failed)?;
        holder.ranges.remove(bytes);
        if holder.ranges.0.is_empty() {
            table.owners.remove(owner);
        }
        Ok(())
    }

    /// What stands against a lock, of others than its owner.
    pub(crate) fn test_lock(
        &self,
        inode: &Inode,
        owner: &LockOwner,
        range: LockRange,
        kind: LockKind,
    ) -> Result<Option<(LockRange, LockKind)>> {
        let Some(bytes) = bytes_of(range) else { return Ok(None) };
        inode.must_be_file()?;
        let own = inode.locks.lock().owners.get(owner).map(|holder| holder.fd.clone());
        let fd = match own {
            Some(fd) => fd,
            None => Arc::new(
                // Testing needs no access of its own, so whichever way the process may open it is good.
                self.description(inode, false).or_else(|_| self.description(inode, true)).map_err(sys)?,
            ),
        };
        let found = lock::ofd_test(&fd, sys_kind(kind), sys_range(bytes)).map_err(sys)?;
        Ok(found.map(|(kind, range)| {
            let len = if range.len == 0 { u64::MAX } else { range.len };
            let kind = match kind {
                lock::LockKind::Shared => LockKind::Read,
                lock::LockKind::Exclusive => LockKind::Write,
            };
            (LockRange { offset: range.start, len }, kind)
        }))
    }
}

/// The object that a lock call means, if it is at hand: locks come through an open.
pub(crate) fn of_open(io: &IoRef<'_>) -> Option<Arc<Inode>> {
    io.open.and_then(OpenFile::get::<LocalOpen>).filter(|o| o.inode.handle == *io.handle).map(|o| o.inode.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_and_joined() {
        let mut r = Ranges::default();
        r.add((10, 19));
        r.add((20, 29));
        assert_eq!(r.0, [(10, 29)]);
        r.remove((15, 24));
        assert_eq!(r.0, [(10, 14), (25, 29)]);
        r.add((0, LAST));
        assert_eq!(r.0, [(0, LAST)]);
        r.remove((0, 0));
        r.remove((LAST, LAST));
        assert_eq!(r.0, [(1, LAST - 1)]);
        r.remove((0, LAST));
        assert_eq!(r, Ranges::default());
    }

    #[test]
    fn what_the_kernel_can_lock() {
        let bytes = |offset, len| bytes_of(LockRange { offset, len });
        assert_eq!(bytes(5, 10), Some((5, 14)));
        assert_eq!(bytes(5, u64::MAX), Some((5, LAST)));
        assert_eq!(bytes(LAST, u64::MAX - 1), Some((LAST, LAST)));
        assert_eq!(bytes(LAST + 1, 1), None);
        assert_eq!(bytes(u64::MAX, u64::MAX), None);
        assert_eq!(sys_range((7, LAST)), SysRange { start: 7, len: 0 });
        assert_eq!(sys_range((7, 7)), SysRange { start: 7, len: 1 });
    }
}
