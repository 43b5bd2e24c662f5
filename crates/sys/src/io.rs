//! Reading and writing at offsets, syncing, copying, cloning, allocating.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::ReadWriteFlags;

use crate::{Errno, Result, check, retry};

/// Reads at `offset` into `buf`; returns the count, 0 at the end of the file. One call, so it may be short.
///
/// # Errors
/// Those of `pread(2)`.
pub fn pread(fd: impl AsFd, buf: &mut [u8], offset: u64) -> Result<usize> {
    let fd = fd.as_fd();
    retry(|| rustix::io::pread(fd, &mut *buf, offset))
}

/// Reads at `offset` only what is in memory, never waiting for a disk.
///
/// # Errors
/// `EAGAIN` if the first byte would have to be waited for; `EOPNOTSUPP` where the filesystem cannot tell.
pub fn pread_nowait(fd: impl AsFd, buf: &mut [u8], offset: u64) -> Result<usize> {
    let fd = fd.as_fd();
    retry(|| rustix::io::preadv2(fd, &mut [IoSliceMut::new(buf)], offset, ReadWriteFlags::NOWAIT))
}

/// Writes `buf` at `offset`; returns the count. One call, so it may be short.
///
/// # Errors
/// Those of `pwrite(2)`.
pub fn pwrite(fd: impl AsFd, buf: &[u8], offset: u64) -> Result<usize> {
    let fd = fd.as_fd();
    retry(|| rustix::io::pwrite(fd, buf, offset))
}

/// Writes at `offset` what goes into memory without waiting for a lock, for memory or for a disk; returns the count.
///
/// # Errors
/// `EAGAIN` if the first byte would have to wait; `EOPNOTSUPP` or `EINVAL` where the filesystem cannot tell.
pub fn pwrite_nowait(fd: impl AsFd, buf: &[u8], offset: u64) -> Result<usize> {
    let fd = fd.as_fd();
    retry(|| rustix::io::pwritev2(fd, &[IoSlice::new(buf)], offset, ReadWriteFlags::NOWAIT))
}

/// How far a write has gone when the call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// In memory.
    None,
    /// The data, and what is needed to read it back, are on stable storage (`RWF_DSYNC`).
    Data,
    /// Data and all metadata are on stable storage (`RWF_SYNC`).
    File,
}

/// Writes the slices one after the other at `offset`; returns the count. One call, so it may be short.
///
/// # Errors
/// Those of `pwritev2(2)`.
pub fn pwritev(fd: impl AsFd, bufs: &[IoSlice<'_>], offset: u64, durability: Durability) -> Result<usize> {
    let fd = fd.as_fd();
    let flags = match durability {
        Durability::None => ReadWriteFlags::empty(),
        Durability::Data => ReadWriteFlags::DSYNC,
        Durability::File => ReadWriteFlags::SYNC,
    };
    retry(|| rustix::io::pwritev2(fd, bufs, offset, flags))
}

/// Data and metadata of the file to stable storage.
///
/// # Errors
/// `EIO` once for each descriptor after a failed writeback: data has been lost.
pub fn fsync(fd: impl AsFd) -> Result<()> {
    let fd = fd.as_fd();
    retry(|| rustix::fs::fsync(fd))
}

/// Data, and the metadata needed to read it back, to stable storage.
///
/// # Errors
/// As [`fsync`].
pub fn fdatasync(fd: impl AsFd) -> Result<()> {
    let fd = fd.as_fd();
    retry(|| rustix::fs::fdatasync(fd))
}

/// The whole filesystem that `fd` lies on to stable storage. `fd` must not be `O_PATH`.
///
/// # Errors
/// `EIO` after a failed writeback (since Linux 5.8).
pub fn syncfs(fd: impl AsFd) -> Result<()> {
    let fd = fd.as_fd();
    retry(|| rustix::fs::syncfs(fd))
}

/// Starts writing out the dirty pages of a range, without waiting and without any promise of durability.
///
/// # Errors
/// Those of `sync_file_range(2)`.
pub fn start_writeback(fd: impl AsFd, offset: u64, len: u64) -> Result<()> {
    let offset = i64::try_from(offset).map_err(|_| Errno::INVAL)?;
    let len = i64::try_from(len).map_err(|_| Errno::INVAL)?;
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the call takes numbers only.
    let done = unsafe { libc::sync_file_range(fd, offset, len, libc::SYNC_FILE_RANGE_WRITE) };
    check(libc::c_long::from(done)).map(drop)
}

/// Copies up to `len` bytes inside the kernel; returns the count, 0 at the end of the source.
///
/// # Errors
/// `EXDEV`, `EOPNOTSUPP`, `EINVAL` where the pair of files cannot be copied this way.
pub fn copy_file_range(from: impl AsFd, from_offset: u64, to: impl AsFd, to_offset: u64, len: usize) -> Result<usize> {
    let (from, to) = (from.as_fd(), to.as_fd());
    retry(|| {
        let (mut a, mut b) = (from_offset, to_offset);
        rustix::fs::copy_file_range(from, Some(&mut a), to, Some(&mut b), len)
    })
}

/// Makes a range of `to` share the blocks of a range of `from`. A `len` of 0 means to the end of the source.
///
/// # Errors
/// `EOPNOTSUPP` or `EXDEV` where blocks cannot be shared, `EINVAL` for ranges that are not aligned.
pub fn clone_range(from: impl AsFd, from_offset: u64, to: impl AsFd, to_offset: u64, len: u64) -> Result<()> {
    let range = libc::file_clone_range {
        src_fd: i64::from(from.as_fd().as_raw_fd()),
        src_offset: from_offset,
        src_length: len,
        dest_offset: to_offset,
    };
    let to = to.as_fd().as_raw_fd();
    retry(|| {
        // SAFETY: FICLONERANGE reads one `file_clone_range`, which lives through the call.
        let done = unsafe { libc::ioctl(to, libc::FICLONERANGE, &raw const range) };
        check(libc::c_long::from(done)).map(drop)
    })
}

/// Makes `to` share all blocks of `from`.
///
/// # Errors
/// As [`clone_range`].
pub fn clone_file(from: impl AsFd, to: impl AsFd) -> Result<()> {
    let (from, to) = (from.as_fd(), to.as_fd());
    retry(|| rustix::fs::ioctl_ficlone(to, from))
}

fn fallocate(fd: impl AsFd, flags: FallocateFlags, offset: u64, len: u64) -> Result<()> {
    let fd = fd.as_fd();
    retry(|| rustix::fs::fallocate(fd, flags, offset, len))
}

/// Reserves space for a range; the file grows if the range ends behind its end.
///
/// # Errors
/// `ENOSPC`; `EOPNOTSUPP` where the filesystem cannot.
pub fn allocate(fd: impl AsFd, offset: u64, len: u64) -> Result<()> {
    fallocate(fd, FallocateFlags::empty(), offset, len)
}

/// Makes a range a hole: it reads as zeroes and takes no space. The size stays.
///
/// # Errors
/// `EOPNOTSUPP` where the filesystem cannot.
pub fn punch_hole(fd: impl AsFd, offset: u64, len: u64) -> Result<()> {
    fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)
}

/// Makes a range read as zeroes while its space stays reserved; the file may grow.
///
/// # Errors
/// `EOPNOTSUPP` where the filesystem cannot.
pub fn zero_range(fd: impl AsFd, offset: u64, len: u64) -> Result<()> {
    fallocate(fd, FallocateFlags::ZERO_RANGE, offset, len)
}

/// Where data begins at or after `offset`.
///
/// This moves the position of the open file; nothing in Dhow reads or writes at the position.
///
/// # Errors
/// `ENXIO` if there is none up to the end of the file.
pub fn seek_data(fd: impl AsFd, offset: u64) -> Result<u64> {
    i64::try_from(offset).map_err(|_| Errno::NXIO)?;
    rustix::fs::seek(fd, SeekFrom::Data(offset))
}

/// Where a hole begins at or after `offset`; the end of the file counts as one.
///
/// # Errors
/// `ENXIO` if `offset` is not before the end of the file.
pub fn seek_hole(fd: impl AsFd, offset: u64) -> Result<u64> {
    i64::try_from(offset).map_err(|_| Errno::NXIO)?;
    rustix::fs::seek(fd, SeekFrom::Hole(offset))
}

/// Sets the size of a file open for writing.
///
/// # Errors
/// `EFBIG` or `EINVAL` for a size that the filesystem cannot hold.
pub fn ftruncate(fd: impl AsFd, size: u64) -> Result<()> {
    if size > i64::MAX as u64 {
        return Err(Errno::FBIG);
    }
    let fd = fd.as_fd();
    retry(|| rustix::fs::ftruncate(fd, size))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, OpenOptions};

    use super::*;
    use crate::testdir::TestDir;

    fn file(dir: &TestDir, name: &str) -> File {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(dir.join(name)).unwrap()
    }

    #[test]
    fn read_and_write_at_offsets() {
        for dir in TestDir::each() {
            let f = file(&dir, "f");
            assert_eq!(pwrite(&f, b"hello world", 5).unwrap(), 11);
            let parts = [IoSlice::new(b"abc"), IoSlice::new(b"de")];
            assert_eq!(pwritev(&f, &parts, 0, Durability::None).unwrap(), 5);
            for durability in [Durability::Data, Durability::File] {
                assert_eq!(pwritev(&f, &[IoSlice::new(b"!")], 16, durability).unwrap(), 1);
            }
            let mut got = [0; 64];
            assert_eq!(pread(&f, &mut got, 0).unwrap(), 17);
            assert_eq!(&got[..17], b"abcdehello world!");
            assert_eq!(pread(&f, &mut got, 17).unwrap(), 0);
            fsync(&f).unwrap();
            fdatasync(&f).unwrap();
            start_writeback(&f, 0, 17).unwrap();
            syncfs(&f).unwrap();
        }
    }

    #[test]
    fn nowait_reads_from_memory() {
        for dir in TestDir::each() {
            let f = file(&dir, "f");
            pwrite(&f, &[9; 8192], 0).unwrap();
            let mut got = [0; 4096];
            match pread_nowait(&f, &mut got, 4096) {
                Ok(n) => assert_eq!((n, got), (4096, [9; 4096])),
                Err(e) => assert!(matches!(e, Errno::OPNOTSUPP | Errno::AGAIN), "{e}"),
            }
        }
    }

    #[test]
    fn nowait_writes_go_to_memory() {
        for dir in TestDir::each() {
            let f = file(&dir, "f");
            pwrite(&f, &[9; 8192], 0).unwrap();
            match pwrite_nowait(&f, &[7; 4096], 4096) {
                Ok(n) => {
                    let mut got = [0; 4096];
                    pread(&f, &mut got, 4096).unwrap();
                    assert_eq!((&got[..n], got.len() - n), (&[7; 4096][..n], 4096 - n));
                }
                Err(e) => assert!(matches!(e, Errno::OPNOTSUPP | Errno::INVAL | Errno::AGAIN), "{e}"),
            }
        }
    }

    #[test]
    fn holes_are_kept_and_found() {
        for dir in TestDir::each() {
            let f = file(&dir, "f");
            let mib = 1 << 20;
            pwrite(&f, &vec![1; mib], mib as u64).unwrap();
            ftruncate(&f, 4 * mib as u64).unwrap();
            assert_eq!(seek_data(&f, 0).unwrap(), mib as u64);
            assert_eq!(seek_hole(&f, mib as u64).unwrap(), 2 * mib as u64);
            assert_eq!(seek_data(&f, 2 * mib as u64).unwrap_err(), Errno::NXIO);
            assert_eq!(seek_hole(&f, 4 * mib as u64).unwrap_err(), Errno::NXIO);
            assert_eq!(seek_data(&f, u64::MAX).unwrap_err(), Errno::NXIO);
            punch_hole(&f, mib as u64, mib as u64).unwrap();
            assert_eq!(seek_data(&f, 0).unwrap_err(), Errno::NXIO);
            allocate(&f, 0, 5 * mib as u64).unwrap();
            let meta = f.metadata().unwrap();
            assert_eq!(meta.len(), 5 * mib as u64);
            assert!(std::os::unix::fs::MetadataExt::blocks(&meta) * 512 >= 5 * mib as u64);
            pwrite(&f, b"xxxx", 0).unwrap();
            match zero_range(&f, 0, 4096) {
                Ok(()) => {
                    let mut got = [1; 4];
                    pread(&f, &mut got, 0).unwrap();
                    assert_eq!(got, [0; 4]);
                }
                Err(e) => assert_eq!(e, Errno::OPNOTSUPP),
            }
            assert_eq!(ftruncate(&f, u64::MAX).unwrap_err(), Errno::FBIG);
        }
    }

    #[test]
    fn copies_inside_the_kernel() {
        for dir in TestDir::each() {
            let (a, b) = (file(&dir, "a"), file(&dir, "b"));
            pwrite(&a, b"0123456789", 0).unwrap();
            assert_eq!(copy_file_range(&a, 2, &b, 5, 100).unwrap(), 8);
            assert_eq!(fs::read(dir.join("b")).unwrap(), b"\0\0\0\0\x0023456789");
            assert_eq!(copy_file_range(&a, 10, &b, 0, 100).unwrap(), 0);
            // Neither ext4 nor tmpfs shares blocks; where a filesystem does, the bytes must be equal.
            match clone_file(&a, &b) {
                Ok(()) => assert_eq!(fs::read(dir.join("b")).unwrap(), b"0123456789"),
                Err(e) => assert!(matches!(e, Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL), "{e}"),
            }
            match clone_range(&a, 0, &b, 0, 0) {
                Ok(()) => assert_eq!(&fs::read(dir.join("b")).unwrap()[..10], b"0123456789"),
                Err(e) => assert!(matches!(e, Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL), "{e}"),
            }
        }
    }
}
