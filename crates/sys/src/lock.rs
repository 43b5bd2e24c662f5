//! Leases and open file description locks.

use std::os::fd::{AsFd, AsRawFd};

use crate::{Errno, Result, check};

/// What a lease allows its holder to believe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// Nobody has the file open for writing.
    Read,
    /// Nobody else has the file open.
    Write,
    /// No lease.
    None,
}

/// Takes, changes or gives up the lease of an open file (`F_SETLEASE`). A broken lease is told by `SIGIO`.
///
/// # Errors
/// `EAGAIN` if somebody has the file open against it; `EACCES` if the thread's fsuid is not the owner and it
/// lacks `CAP_LEASE`.
pub fn set_lease(fd: impl AsFd, lease: Lease) -> Result<()> {
    let kind = match lease {
        Lease::Read => libc::F_RDLCK,
        Lease::Write => libc::F_WRLCK,
        Lease::None => libc::F_UNLCK,
    };
    // SAFETY: F_SETLEASE takes a number.
    let done = unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), libc::F_SETLEASE, libc::c_int::from(kind as i16)) };
    check(libc::c_long::from(done)).map(drop)
}

/// The lease of an open file (`F_GETLEASE`); while it is being broken, what it is to become.
///
/// # Errors
/// Those of `fcntl(2)`.
pub fn lease(fd: impl AsFd) -> Result<Lease> {
    // SAFETY: F_GETLEASE takes no argument.
    let kind = unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), libc::F_GETLEASE) };
    check(libc::c_long::from(kind))?;
    Ok(match kind {
        libc::F_RDLCK => Lease::Read,
        libc::F_WRLCK => Lease::Write,
        _ => Lease::None,
    })
}

/// The kind of a byte-range lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Shared; the file must be open for reading.
    Shared,
    /// Exclusive; the file must be open for writing.
    Exclusive,
}

/// A range of bytes; `len` 0 means to the end of the file, however far that will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRange {
    /// First byte.
    pub start: u64,
    /// Number of bytes, or 0.
    pub len: u64,
}

fn flock(kind: i16, range: LockRange) -> Result<libc::flock> {
    // SAFETY: `flock` is a plain structure for which all-zero bytes are a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind;
    lock.l_whence = libc::SEEK_SET as i16;
    lock.l_start = i64::try_from(range.start).map_err(|_| Errno::INVAL)?;
    lock.l_len = i64::try_from(range.len).map_err(|_| Errno::INVAL)?;
    Ok(lock)
}

fn raw_kind(kind: Option<LockKind>) -> i16 {
    match kind {
        Some(LockKind::Shared) => libc::F_RDLCK as i16,
        Some(LockKind::Exclusive) => libc::F_WRLCK as i16,
        None => libc::F_UNLCK as i16,
    }
}

/// Sets (`Some`) or releases (`None`) a lock that belongs to the open file description, without waiting.
///
/// # Errors
/// `EAGAIN` or `EACCES` for a conflict, `EBADF` for a file open the wrong way.
pub fn ofd_lock(fd: impl AsFd, kind: Option<LockKind>, range: LockRange) -> Result<()> {
    let mut lock = flock(raw_kind(kind), range)?;
    // SAFETY: F_OFD_SETLK reads one `flock`, which lives through the call.
    let done = unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock) };
    check(libc::c_long::from(done)).map(drop)
}

/// The first lock that stands against setting `kind` on `range`, if any.
///
/// # Errors
/// Those of `fcntl(2)`.
pub fn ofd_test(fd: impl AsFd, kind: LockKind, range: LockRange) -> Result<Option<(LockKind, LockRange)>> {
    let mut lock = flock(raw_kind(Some(kind)), range)?;
    // SAFETY: F_OFD_GETLK reads and writes one `flock`, which lives through the call.
    let done = unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    check(libc::c_long::from(done))?;
    let kind = match i32::from(lock.l_type) {
        libc::F_UNLCK => return Ok(None),
        libc::F_RDLCK => LockKind::Shared,
        _ => LockKind::Exclusive,
    };
    Ok(Some((kind, LockRange { start: lock.l_start as u64, len: lock.l_len as u64 })))
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};

    use super::*;
    use crate::testdir::TestDir;

    fn open(dir: &TestDir) -> File {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(dir.join("f")).unwrap()
    }

    #[test]
    fn two_descriptions_conflict() {
        for dir in TestDir::each() {
            let (a, b) = (open(&dir), open(&dir));
            let range = LockRange { start: 10, len: 5 };
            ofd_lock(&a, Some(LockKind::Exclusive), range).unwrap();
            assert_eq!(
                ofd_test(&b, LockKind::Shared, LockRange { start: 0, len: 0 }).unwrap(),
                Some((LockKind::Exclusive, range))
            );
            assert_eq!(ofd_test(&b, LockKind::Shared, LockRange { start: 15, len: 1 }).unwrap(), None);
            assert_eq!(ofd_lock(&b, Some(LockKind::Shared), range).unwrap_err(), Errno::AGAIN);
            assert_eq!(ofd_test(&a, LockKind::Shared, range).unwrap(), None);
            ofd_lock(&a, None, range).unwrap();
            ofd_lock(&b, Some(LockKind::Shared), range).unwrap();
            let far = LockRange { start: u64::MAX, len: 0 };
            assert_eq!(ofd_lock(&b, Some(LockKind::Shared), far).unwrap_err(), Errno::INVAL);
        }
    }

    #[test]
    fn a_lease_needs_the_file_to_itself() {
        for dir in TestDir::each() {
            let a = open(&dir);
            set_lease(&a, Lease::Write).unwrap();
            assert_eq!(lease(&a).unwrap(), Lease::Write);
            set_lease(&a, Lease::None).unwrap();
            let _b = open(&dir);
            assert_eq!(set_lease(&a, Lease::Write).unwrap_err(), Errno::AGAIN);
        }
    }
}
