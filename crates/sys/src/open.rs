//! Opening by name without leaving a directory, opening again, and `statx(2)`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxAttributes, StatxFlags};

use crate::{Errno, Result, retry};

/// Whether a walk may enter another filesystem mounted below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crossing {
    /// A mount point below the start is entered.
    Allowed,
    /// A mount point below the start is refused with `EXDEV`.
    Refused,
}

/// The flags that keep a walk inside its directory.
///
/// A single component other than `..` cannot lead out, and is not resolved with `RESOLVE_BENEATH`: that makes the kernel
/// look, when the walk is over, whether what it found is still below the start, and a rename to another directory in
/// between would be told as `EXDEV`, like a mount point.
fn confined(name: &[u8], crossing: Crossing) -> ResolveFlags {
    let mut resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    if name == b".." || name.contains(&b'/') {
        resolve |= ResolveFlags::BENEATH;
    }
    if crossing == Crossing::Refused {
        resolve |= ResolveFlags::NO_XDEV;
    }
    resolve
}

/// Opens `name` below `dir` by `openat2(2)`, never leaving `dir`, never following a symbolic link.
///
/// `O_CLOEXEC` is added to `flags`. `mode` counts only when a file is created.
///
/// # Errors
/// `ELOOP` for a symbolic link on the way (or at the end, unless `flags` has both `O_PATH` and `O_NOFOLLOW`),
/// `EXDEV` for `..` out of `dir` or for a refused mount point.
pub fn beneath(dir: impl AsFd, name: &[u8], flags: OFlags, mode: u32, crossing: Crossing) -> Result<OwnedFd> {
    let resolve = confined(name, crossing);
    let dir = dir.as_fd();
    // EAGAIN means that a rename raced with the resolution of `..`; the kernel asks for another try.
    for _ in 0..8 {
        match retry(|| rustix::fs::openat2(dir, name, flags | OFlags::CLOEXEC, Mode::from_raw_mode(mode), resolve)) {
            Err(Errno::AGAIN) => {}
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

/// Holds the object `name` below `dir` by an `O_PATH` descriptor; a symbolic link at the end is held itself.
///
/// # Errors
/// As [`beneath`].
pub fn path_beneath(dir: impl AsFd, name: &[u8], crossing: Crossing) -> Result<OwnedFd> {
    beneath(dir, name, OFlags::PATH | OFlags::NOFOLLOW, 0, crossing)
}

/// As [`path_beneath`], but only if the kernel can answer from memory (`RESOLVE_CACHED`, Linux 5.12).
///
/// # Errors
/// `EAGAIN` if it would have to wait, or cannot tell; else as [`beneath`].
pub fn path_beneath_cached(dir: impl AsFd, name: &[u8], crossing: Crossing) -> Result<OwnedFd> {
    let resolve = confined(name, crossing) | ResolveFlags::CACHED;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat2(dir, name, flags, Mode::empty(), resolve) {
        // An older kernel does not know the flag.
        Err(Errno::INVAL) => Err(Errno::AGAIN),
        other => other,
    }
}

/// Holds the parent of a directory, going up over mount points. Of `/` it is `/` itself.
///
/// # Errors
/// `ENOTDIR`; `EACCES` without search permission.
pub fn parent(dir: impl AsFd) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(dir, c"..", flags, Mode::empty())
}

/// Where the object of a descriptor lies now, as far as the kernel can tell (`/proc/self/fd`): for people to read.
///
/// # Errors
/// As of `readlink`.
pub fn path_of(fd: impl AsFd) -> Result<std::path::PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    let link = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    let path = rustix::fs::readlink(link, Vec::new())?.into_bytes();
    Ok(std::ffi::OsString::from_vec(path).into())
}

/// The directory `/proc/self/fd`, held open: it keeps working after chroot and under another identity.
pub(crate) fn proc_fds() -> Result<BorrowedFd<'static>> {
    static DIR: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(dir) = DIR.get() {
        return Ok(dir.as_fd());
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(c"/proc/self/fd", flags, Mode::empty())?;
    Ok(DIR.get_or_init(|| dir).as_fd())
}

/// The name of a descriptor in `/proc/self/fd`, without allocating.
pub(crate) struct FdName {
    bytes: [u8; 12],
    len: usize,
}

impl FdName {
    pub(crate) fn new(fd: BorrowedFd<'_>) -> FdName {
        use std::io::Write;
        let mut bytes = [0; 12];
        let mut rest = bytes.as_mut_slice();
        // A descriptor is a positive i32: ten digits at most, so the write always fits.
        let _ = write!(rest, "{}", fd.as_raw_fd());
        let len = 12 - rest.len();
        FdName { bytes, len }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// Opens the object behind `fd` again with other flags, as the current identity of the thread.
///
/// This is how an `O_PATH` descriptor becomes one that reads or writes. The permission bits of the object are
/// checked now. The caller has looked at the type first: opening a FIFO or a device has effects of its own.
///
/// # Errors
/// `EACCES` when the mode forbids it; `ELOOP` for a symbolic link.
pub fn reopen(fd: impl AsFd, flags: OFlags) -> Result<OwnedFd> {
    let name = FdName::new(fd.as_fd());
    let flags = (flags | OFlags::CLOEXEC) - OFlags::NOFOLLOW;
    let dir = proc_fds()?;
    retry(|| rustix::fs::openat(dir, name.as_bytes(), flags, Mode::empty()))
}

/// A time of a file: seconds since 1970 (negative before it) and nanoseconds from 0 to 999 999 999.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds since 1970-01-01 00:00:00 UTC.
    pub sec: i64,
    /// Nanoseconds to add, always counted forwards.
    pub nsec: u32,
}

/// What `statx(2)` says about an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Device number of the filesystem, as `makedev` joins it. It may change at boot.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Type and permission bits, as in `st_mode`.
    pub mode: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Major and minor number of a device object.
    pub rdev: (u32, u32),
    /// Size in bytes.
    pub size: u64,
    /// Space used, in units of 512 bytes.
    pub blocks: u64,
    /// Preferred size of an I/O, in bytes.
    pub blksize: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of the data.
    pub mtime: Time,
    /// Last change of data or attributes.
    pub ctime: Time,
    /// Birth, where the filesystem records it.
    pub btime: Option<Time>,
    /// Id of the mount; 0 on kernels before Linux 5.8.
    pub mnt_id: u64,
    /// True for the root of a mount; `None` on kernels before Linux 5.8.
    pub mount_root: Option<bool>,
    /// The file can only be appended to.
    pub append_only: bool,
    /// The file cannot be changed.
    pub immutable: bool,
}

/// The attributes of the object behind `fd`, which may be `O_PATH`.
///
/// The kernel keeps its change cookie (`STATX_CHANGE_COOKIE`) from programs, so there is none here: the change
/// attribute has to come from `ctime`.
///
/// # Errors
/// Only those of the filesystem.
pub fn stat(fd: impl AsFd) -> Result<Stat> {
    stat_at(fd, b"", AtFlags::EMPTY_PATH)
}

/// The attributes of `name` in `dir`, without following a symbolic link and without mounting anything.
///
/// # Errors
/// `ENOENT` and the like.
pub fn stat_name(dir: impl AsFd, name: &[u8]) -> Result<Stat> {
    stat_at(dir, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT)
}

fn stat_at(dir: impl AsFd, name: &[u8], flags: AtFlags) -> Result<Stat> {
    let dir = dir.as_fd();
    let want = StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::MNT_ID;
    let x = retry(|| rustix::fs::statx(dir, name, flags, want))?;
    let time = |t: rustix::fs::StatxTimestamp| Time { sec: t.tv_sec, nsec: t.tv_nsec };
    let has = StatxFlags::from_bits_retain(x.stx_mask);
    Ok(Stat {
        dev: rustix::fs::makedev(x.stx_dev_major, x.stx_dev_minor),
        ino: x.stx_ino,
        mode: u32::from(x.stx_mode),
        nlink: x.stx_nlink,
        uid: x.stx_uid,
        gid: x.stx_gid,
        rdev: (x.stx_rdev_major, x.stx_rdev_minor),
        size: x.stx_size,
        blocks: x.stx_blocks,
        blksize: x.stx_blksize,
        atime: time(x.stx_atime),
        mtime: time(x.stx_mtime),
        ctime: time(x.stx_ctime),
        btime: has.contains(StatxFlags::BTIME).then(|| time(x.stx_btime)),
        mnt_id: if has.contains(StatxFlags::MNT_ID) { x.stx_mnt_id } else { 0 },
        mount_root: x
            .stx_attributes_mask
            .contains(StatxAttributes::MOUNT_ROOT)
            .then(|| x.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)),
        append_only: x.stx_attributes.contains(StatxAttributes::APPEND),
        immutable: x.stx_attributes.contains(StatxAttributes::IMMUTABLE),
    })
}

/// What `statfs(2)` and `statvfs(3)` say about a filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsStat {
    /// Magic number of the filesystem's type (`EXT4_SUPER_MAGIC`, ...), as 32 bits.
    pub magic: u32,
    /// Unit of the block counts, in bytes.
    pub frsize: u64,
    /// All blocks.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Free blocks for users without privilege.
    pub bavail: u64,
    /// All inodes, 0 where the filesystem does not count them.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// The kernel's 64-bit filesystem id: from the UUID on ext4, xfs and btrfs, not stable on others.
    pub fsid: u64,
    /// Longest name, in bytes.
    pub name_max: u64,
    /// Mounted read-only.
    pub read_only: bool,
}

/// Magic number of ext2, ext3 and ext4.
pub const EXT4_MAGIC: u32 = 0xef53;
/// Magic number of XFS.
pub const XFS_MAGIC: u32 = 0x5846_5342;
/// Magic number of btrfs.
pub const BTRFS_MAGIC: u32 = 0x9123_683e;
/// Magic number of tmpfs.
pub const TMPFS_MAGIC: u32 = 0x0102_1994;
/// Magic number of overlayfs.
pub const OVERLAY_MAGIC: u32 = 0x794c_7630;
/// Magic number of the kernel's NFS client.
pub const NFS_MAGIC: u32 = 0x6969;
/// Magic number of FUSE.
pub const FUSE_MAGIC: u32 = 0x6573_5546;

/// The figures of the filesystem that `fd` lies on.
///
/// # Errors
/// Only those of the filesystem.
pub fn statfs(fd: impl AsFd) -> Result<FsStat> {
    let fd = fd.as_fd();
    let fs = retry(|| rustix::fs::fstatfs(fd))?;
    let vfs = retry(|| rustix::fs::fstatvfs(fd))?;
    Ok(FsStat {
        magic: fs.f_type as u32,
        frsize: vfs.f_frsize,
        blocks: vfs.f_blocks,
        bfree: vfs.f_bfree,
        bavail: vfs.f_bavail,
        files: vfs.f_files,
        ffree: vfs.f_ffree,
        fsid: vfs.f_fsid,
        name_max: vfs.f_namemax,
        read_only: vfs.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY),
    })
}

/// The first form of what `XFS_IOC_FSGEOMETRY` tells, 112 bytes, of which the flags are wanted.
#[repr(C)]
struct XfsGeometry {
    before: [u64; 11],
    version: i32,
    flags: u32,
    after: [u32; 4],
}

/// Whether the XFS that `fd` (not `O_PATH`) lies on was made to share blocks; `None` if it is no XFS.
pub fn xfs_shares_blocks(fd: impl AsFd) -> Option<bool> {
    /// `_IOR('X', 100, struct xfs_fsop_geom_v1)`.
    const FSGEOMETRY_V1: libc::Ioctl = 0x8070_5864;
    const FLAG_REFLINK: u32 = 1 << 20;
    let mut geometry = XfsGeometry { before: [0; 11], version: 0, flags: 0, after: [0; 4] };
    // SAFETY: the kernel writes the 112 bytes that the request number states, and the structure has them.
    let done = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), FSGEOMETRY_V1, &raw mut geometry) };
    (done == 0).then_some(geometry.flags & FLAG_REFLINK != 0)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::testdir::TestDir;

    #[test]
    fn a_walk_never_leaves_the_directory() {
        for dir in TestDir::each() {
            fs::create_dir(dir.join("in")).unwrap();
            fs::write(dir.join("in/f"), b"x").unwrap();
            symlink("/etc", dir.join("in/abs")).unwrap();
            symlink("f", dir.join("in/rel")).unwrap();
            let inner = dir.o_path("in");
            let open = |name: &[u8]| beneath(&inner, name, OFlags::RDONLY, 0, Crossing::Refused);
            assert!(open(b"f").is_ok());
            assert_eq!(open(b"../in/f").unwrap_err(), Errno::XDEV);
            assert_eq!(open(b"..").unwrap_err(), Errno::XDEV);
            assert_eq!(open(b"/etc/passwd").unwrap_err(), Errno::XDEV);
            assert_eq!(open(b"abs/passwd").unwrap_err(), Errno::LOOP);
            assert_eq!(open(b"rel").unwrap_err(), Errno::LOOP);
            assert_eq!(open(b"a\0b").unwrap_err(), Errno::INVAL);
            let link = path_beneath(&inner, b"rel", Crossing::Refused).unwrap();
            assert_eq!(stat(&link).unwrap().mode & libc::S_IFMT, libc::S_IFLNK);
        }
    }

    /// What another process moves to a directory elsewhere is found or not found, and never refused like a mount point
    /// (RFC 8881 18.23.3: one entry that moves does not fail a listing).
    #[test]
    fn what_is_moved_away_meanwhile_is_no_mount_point() {
        use std::sync::atomic::{AtomicBool, Ordering};
        for dir in TestDir::each() {
            fs::create_dir_all(dir.join("a/d")).unwrap();
            fs::create_dir(dir.join("b")).unwrap();
            let (a, over) = (dir.o_path("a"), AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        fs::rename(dir.join("a/d"), dir.join("b/d")).unwrap();
                        fs::rename(dir.join("b/d"), dir.join("a/d")).unwrap();
                    }
                });
                let wrong = (0..40_000).find_map(|_| match path_beneath(&a, b"d", Crossing::Refused) {
                    Ok(_) | Err(Errno::NOENT) => None,
                    Err(e) => Some(e),
                });
                over.store(true, Ordering::Relaxed);
                assert_eq!(wrong, None);
            });
        }
    }

    #[test]
    fn cached_lookups_and_parents() {
        for dir in TestDir::each() {
            fs::create_dir(dir.join("d")).unwrap();
            let held = dir.o_path("d");
            match path_beneath_cached(dir.fd(), b"d", Crossing::Refused) {
                Ok(fd) => assert_eq!(stat(fd).unwrap().ino, stat(&held).unwrap().ino),
                Err(e) => assert_eq!(e, Errno::AGAIN),
            }
            assert_eq!(stat(parent(&held).unwrap()).unwrap().ino, stat(dir.fd()).unwrap().ino);
        }
    }

    #[test]
    fn mount_points_are_entered_only_when_allowed() {
        let root = rustix::fs::open(c"/", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        assert_eq!(path_beneath(&root, b"proc", Crossing::Refused).unwrap_err(), Errno::XDEV);
        let proc = path_beneath(&root, b"proc", Crossing::Allowed).unwrap();
        if let Some(mount_root) = stat(&proc).unwrap().mount_root {
            assert!(mount_root);
        }
    }

    #[test]
    fn an_o_path_descriptor_is_opened_again() {
        for dir in TestDir::each() {
            fs::write(dir.join("f"), b"hello").unwrap();
            let held = dir.o_path("f");
            assert_eq!(crate::io::pread(&held, &mut [0; 4], 0).unwrap_err(), Errno::BADF);
            let fd = reopen(&held, OFlags::RDWR).unwrap();
            crate::io::pwrite(&fd, b"HE", 0).unwrap();
            assert_eq!(fs::read(dir.join("f")).unwrap(), b"HEllo");
            // The object is meant, not its name.
            fs::rename(dir.join("f"), dir.join("g")).unwrap();
            assert_eq!(stat(reopen(&held, OFlags::RDONLY).unwrap()).unwrap().size, 5);
        }
    }

    #[test]
    fn statx_fills_everything() {
        for dir in TestDir::each() {
            fs::write(dir.join("f"), vec![7; 5000]).unwrap();
            let held = dir.o_path("f");
            let s = stat(&held).unwrap();
            assert_eq!((s.size, s.nlink, s.mode & libc::S_IFMT), (5000, 1, libc::S_IFREG));
            assert!(s.ino != 0 && s.ctime.sec > 1_500_000_000 && s.blksize >= 512);
            assert_eq!(s.mount_root, Some(false));
            assert_eq!(stat_name(dir.fd(), b"f").unwrap(), s);
            assert_eq!(stat_name(dir.fd(), b"absent").unwrap_err(), Errno::NOENT);
        }
    }

    #[test]
    fn statfs_tells_the_type() {
        let fs = statfs(TestDir::disk().fd()).unwrap();
        assert!(fs.blocks >= fs.bfree && fs.bfree >= fs.bavail && fs.frsize > 0 && fs.name_max >= 255);
        assert_eq!(std::mem::size_of::<XfsGeometry>(), 112);
        if let Some(shm) = TestDir::each().get(1) {
            assert_eq!(xfs_shares_blocks(shm.fd()), None);
            assert_eq!(statfs(shm.fd()).unwrap().magic, TMPFS_MAGIC);
            assert_eq!(statfs(shm.o_path(".")).unwrap().magic, TMPFS_MAGIC);
        }
    }
}
