//! Making, linking, renaming and removing objects, and changing their attributes.
//!
//! New objects get the mode asked for less the umask of the process, which a server sets to 0 at start
//! ([`crate::proc::clear_umask`]). Attribute calls take `O_PATH` descriptors.

use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{Access, AtFlags, Mode, RenameFlags, Timespec, Timestamps};
use rustix::fs::{Gid, Uid};

use crate::open::{FdName, Time, proc_fds};
use crate::{Errno, Result, check, retry};

/// The objects that `mknodat(2)` makes, beside regular files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A block device with its major and minor numbers.
    Block(u32, u32),
    /// A character device with its major and minor numbers.
    Char(u32, u32),
}

/// Makes a special object.
///
/// # Errors
/// `EEXIST`; `EPERM` for a device without `CAP_MKNOD`.
pub fn mknod(dir: impl AsFd, name: &[u8], what: Special, mode: u32) -> Result<()> {
    use rustix::fs::FileType;
    let (kind, dev) = match what {
        Special::Fifo => (FileType::Fifo, 0),
        Special::Socket => (FileType::Socket, 0),
        Special::Block(major, minor) => (FileType::BlockDevice, rustix::fs::makedev(major, minor)),
        Special::Char(major, minor) => (FileType::CharacterDevice, rustix::fs::makedev(major, minor)),
    };
    rustix::fs::mknodat(dir, name, kind, Mode::from_raw_mode(mode), dev)
}

/// Makes a directory.
///
/// # Errors
/// `EEXIST` and the like.
pub fn mkdir(dir: impl AsFd, name: &[u8], mode: u32) -> Result<()> {
    rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(mode))
}

/// Makes a symbolic link whose text is `target`.
///
/// # Errors
/// `ENOENT` for an empty target, `ENAMETOOLONG` over 4095 bytes.
pub fn symlink(target: &[u8], dir: impl AsFd, name: &[u8]) -> Result<()> {
    rustix::fs::symlinkat(target, dir, name)
}

/// Gives the object behind `fd` (which may be `O_PATH`) another name.
///
/// It goes through `/proc/self/fd`, since `AT_EMPTY_PATH` would need `CAP_DAC_READ_SEARCH`.
///
/// # Errors
/// `ENOENT` if the object has no name any more, `EPERM` for a directory, `EMLINK`, `EXDEV`.
pub fn link(fd: impl AsFd, dir: impl AsFd, name: &[u8]) -> Result<()> {
    let from = FdName::new(fd.as_fd());
    rustix::fs::linkat(proc_fds()?, from.as_bytes(), dir, name, AtFlags::SYMLINK_FOLLOW)
}

/// What a rename does when the new name exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replace {
    /// The old object of that name goes.
    Allowed,
    /// `EEXIST`.
    Refused,
}

/// Renames an object.
///
/// # Errors
/// Those of `renameat2(2)`; `EINVAL` for a directory into itself.
pub fn rename(from: impl AsFd, name: &[u8], to: impl AsFd, new_name: &[u8], replace: Replace) -> Result<()> {
    match replace {
        Replace::Allowed => rustix::fs::renameat(from, name, to, new_name),
        Replace::Refused => rustix::fs::renameat_with(from, name, to, new_name, RenameFlags::NOREPLACE),
    }
}

/// Removes the name of something that is not a directory.
///
/// # Errors
/// `EISDIR` for a directory.
pub fn unlink(dir: impl AsFd, name: &[u8]) -> Result<()> {
    rustix::fs::unlinkat(dir, name, AtFlags::empty())
}

/// Removes an empty directory.
///
/// # Errors
/// `ENOTEMPTY`, `ENOTDIR`, `EBUSY` for a mount point.
pub fn rmdir(dir: impl AsFd, name: &[u8]) -> Result<()> {
    rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)
}

/// The text of the symbolic link behind an `O_PATH` descriptor.
///
/// # Errors
/// `EINVAL` or `ENOENT` if it is no symbolic link.
pub fn readlink(fd: impl AsFd) -> Result<Vec<u8>> {
    Ok(rustix::fs::readlinkat(fd, c"", Vec::new())?.into_bytes())
}

/// Sets the permission bits, set-id and sticky bits included.
///
/// # Errors
/// `EPERM` if the thread is not the owner; `EOPNOTSUPP` for a symbolic link.
pub fn chmod(fd: impl AsFd, mode: u32) -> Result<()> {
    let name = FdName::new(fd.as_fd());
    rustix::fs::chmodat(proc_fds()?, name.as_bytes(), Mode::from_raw_mode(mode), AtFlags::empty())
}

/// Sets owner, group or both; `None` leaves it.
///
/// # Errors
/// `EPERM` if the thread may not.
pub fn chown(fd: impl AsFd, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    if uid == Some(u32::MAX) || gid == Some(u32::MAX) {
        return Err(Errno::INVAL);
    }
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    rustix::fs::chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH)
}

/// How a time is to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// Leave it.
    Omit,
    /// The time of the filesystem's clock. Whoever may write the file may ask for this.
    Now,
    /// A given time. Only the owner may.
    To(Time),
}

/// Sets access and modification time.
///
/// # Errors
/// `EPERM` for a given time by somebody who is not the owner, `EACCES` for the present time by somebody who may
/// not write; `EINVAL` for nanoseconds over 999 999 999.
pub fn utimens(fd: impl AsFd, atime: SetTime, mtime: SetTime) -> Result<()> {
    let fd = fd.as_fd();
    let times = Timestamps { last_access: timespec(atime)?, last_modification: timespec(mtime)? };
    match rustix::fs::utimensat(fd, c"", &times, AtFlags::EMPTY_PATH) {
        // Kernels before 5.8 do not know the flag here.
        Err(Errno::INVAL) => rustix::fs::utimensat(proc_fds()?, FdName::new(fd).as_bytes(), &times, AtFlags::empty()),
        other => other,
    }
}

fn timespec(time: SetTime) -> Result<Timespec> {
    Ok(match time {
        SetTime::Omit => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        SetTime::Now => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        SetTime::To(Time { nsec, .. }) if nsec > 999_999_999 => return Err(Errno::INVAL),
        SetTime::To(Time { sec, nsec }) => Timespec { tv_sec: sec, tv_nsec: nsec.into() },
    })
}

/// Asks whether the calling thread, as it is now, may do `want` to the object behind `fd`.
///
/// `access(2)` asks for the real uid; with `AT_EACCESS` the kernel takes the credentials that file accesses use,
/// that is, the fsuid, the fsgid and the groups that a [`crate::cred::CredGuard`] set. It sees access control
/// lists and read-only mounts.
///
/// # Errors
/// `EACCES` if it may not, `EROFS` for writing to a read-only filesystem, `ENOSYS` before Linux 5.8.
pub fn access(fd: impl AsFd, want: Access) -> Result<()> {
    let fd = fd.as_fd().as_raw_fd();
    let flags = libc::AT_EACCESS | libc::AT_EMPTY_PATH;
    // The C library emulates the flags from effective ids; only the system call itself knows the fsuid.
    retry(|| {
        // SAFETY: the path is an empty C string, the rest are numbers.
        let done = unsafe { libc::syscall(libc::SYS_faccessat2, fd, c"".as_ptr(), want.bits() as libc::c_int, flags) };
        check(done).map(drop)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileTypeExt, MetadataExt};

    use super::*;
    use crate::open::stat;
    use crate::testdir::{TestDir, can_switch};

    #[test]
    fn make_every_kind() {
        for dir in TestDir::each() {
            let fd = dir.fd();
            mkdir(&fd, b"d", 0o700).unwrap();
            assert_eq!(mkdir(&fd, b"d", 0o700).unwrap_err(), Errno::EXIST);
            mknod(&fd, b"p", Special::Fifo, 0o600).unwrap();
            mknod(&fd, b"s", Special::Socket, 0o600).unwrap();
            assert!(fs::symlink_metadata(dir.join("p")).unwrap().file_type().is_fifo());
            assert!(fs::symlink_metadata(dir.join("s")).unwrap().file_type().is_socket());
            match mknod(&fd, b"c", Special::Char(1, 3), 0o600) {
                Ok(()) => assert_eq!(stat(dir.o_path("c")).unwrap().rdev, (1, 3)),
                Err(e) => assert_eq!(e, Errno::PERM),
            }
            // case B17: a target of 4095 bytes comes back exactly.
            let target = vec![b'x'; 4095];
            symlink(&target, &fd, b"l").unwrap();
            assert_eq!(readlink(dir.o_path("l")).unwrap(), target);
            assert_eq!(symlink(&[b'x'; 4096], &fd, b"m").unwrap_err(), Errno::NAMETOOLONG);
            assert!(readlink(dir.o_path("d")).is_err());
        }
    }

    #[test]
    fn link_rename_remove() {
        for dir in TestDir::each() {
            let fd = dir.fd();
            fs::write(dir.join("a"), b"x").unwrap();
            let held = dir.o_path("a");
            link(&held, &fd, b"b").unwrap();
            assert_eq!(stat(&held).unwrap().nlink, 2);
            assert_eq!(link(&held, &fd, b"b").unwrap_err(), Errno::EXIST);
            assert_eq!(rename(&fd, b"a", &fd, b"b", Replace::Refused).unwrap_err(), Errno::EXIST);
            rename(&fd, b"a", &fd, b"c", Replace::Refused).unwrap();
            unlink(&fd, b"b").unwrap();
            rename(&fd, b"c", &fd, b"d", Replace::Allowed).unwrap();
            unlink(&fd, b"d").unwrap();
            assert_eq!(stat(&held).unwrap().nlink, 0);
            assert_eq!(link(&held, &fd, b"e").unwrap_err(), Errno::NOENT);
            // The link itself is linked, not what it points to.
            symlink(b"nowhere", &fd, b"l").unwrap();
            link(dir.o_path("l"), &fd, b"l2").unwrap();
            assert_eq!(readlink(dir.o_path("l2")).unwrap(), b"nowhere");
            mkdir(&fd, b"sub", 0o755).unwrap();
            assert_eq!(unlink(&fd, b"sub").unwrap_err(), Errno::ISDIR);
            assert_eq!(rmdir(&fd, b"l").unwrap_err(), Errno::NOTDIR);
            rmdir(&fd, b"sub").unwrap();
        }
    }

    #[test]
    fn attributes_of_an_o_path_descriptor() {
        for dir in TestDir::each() {
            fs::write(dir.join("f"), b"x").unwrap();
            let held = dir.o_path("f");
            chmod(&held, 0o4751).unwrap();
            assert_eq!(stat(&held).unwrap().mode & 0o7777, 0o4751);
            symlink(b"f", dir.fd(), b"l").unwrap();
            assert_eq!(chmod(dir.o_path("l"), 0o600).unwrap_err(), Errno::OPNOTSUPP);
            assert_eq!(chown(&held, Some(u32::MAX), None).unwrap_err(), Errno::INVAL);
            if can_switch() {
                chown(&held, Some(1000), None).unwrap();
                chown(&held, None, Some(2000)).unwrap();
                chown(dir.o_path("l"), Some(7), Some(8)).unwrap();
                let meta = fs::symlink_metadata(dir.join("l")).unwrap();
                assert_eq!((meta.uid(), meta.gid()), (7, 8));
                let s = stat(&held).unwrap();
                assert_eq!((s.uid, s.gid), (1000, 2000));
            }
        }
    }

    #[test]
    fn times_before_1970_and_after_2038() {
        // case B18
        for dir in TestDir::each() {
            fs::write(dir.join("f"), b"x").unwrap();
            let held = dir.o_path("f");
            for (sec, nsec) in [(-315_619_200, 0), (-14_154_245, 750_000_000), (2_208_988_800, 5), (-1, 1)] {
                let time = Time { sec, nsec };
                utimens(&held, SetTime::Omit, SetTime::To(time)).unwrap();
                let s = stat(&held).unwrap();
                assert_eq!(s.mtime, time);
                assert!(s.atime.sec > 1_500_000_000);
            }
            let before = stat(&held).unwrap().mtime;
            utimens(&held, SetTime::To(Time { sec: 7, nsec: 7 }), SetTime::Now).unwrap();
            let s = stat(&held).unwrap();
            assert_eq!(s.atime, Time { sec: 7, nsec: 7 });
            assert!(s.mtime.sec > before.sec.max(1_500_000_000) - 1);
            let bad = SetTime::To(Time { sec: 0, nsec: 1_000_000_000 });
            assert_eq!(utimens(&held, bad, SetTime::Omit).unwrap_err(), Errno::INVAL);
        }
    }
}
