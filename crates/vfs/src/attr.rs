//! Attributes of objects and filesystems.

use crate::AclSet;
use std::sync::Arc;

/// Seconds and nanoseconds since 1970-01-01 UTC; `nanos` is 0..=999,999,999 also before 1970 (case B18).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time {
    /// Seconds, negative before 1970.
    pub secs: i64,
    /// Nanoseconds within the second.
    pub nanos: u32,
}

/// Type of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Block device.
    Block,
    /// Character device.
    Char,
    /// FIFO.
    Fifo,
    /// Socket.
    Socket,
}

/// Identifies a filesystem to clients (RFC 8881 5.8.1.9). Stable across restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct FsId {
    /// Major part.
    pub major: u64,
    /// Minor part.
    pub minor: u64,
}

/// Attributes of an object, taken together at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Type.
    pub kind: FileKind,
    /// Permission and set-id bits, 0o7777 at most.
    pub mode: u32,
    /// Number of links, at least 1 for anything a name leads to (case B09).
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Bytes of storage in use.
    pub used: u64,
    /// Device numbers (major, minor) of a device.
    pub rdev: (u32, u32),
    /// Filesystem.
    pub fsid: FsId,
    /// Number of the object, unique within `fsid` and equal in every place that shows it.
    pub fileid: u64,
    /// For the root of a mounted filesystem: the number of the directory it is mounted on; else equal to `fileid`.
    pub mounted_on_fileid: u64,
    /// Change attribute: differs after every change of data or metadata.
    pub change: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of data.
    pub mtime: Time,
    /// Last change of metadata.
    pub ctime: Time,
    /// Birth, where the filesystem keeps it.
    pub btime: Option<Time>,
}

/// A time to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The server's clock.
    Now,
    /// This time.
    To(Time),
}

/// Attributes to be set; `None` leaves one alone. Applied in the order size, owner, mode, ACL, times, so that a change of
/// owner does not clear set-id bits that the same call sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits, 0o7777.
    pub mode: Option<u32>,
    /// With `mode` on create only: the client's umask (RFC 8275), applied unless the directory has a default ACL.
    pub umask: Option<u32>,
    /// Bits of the mode to be touched (mode_set_masked, RFC 8881 6.2.5); `None`: all.
    pub mode_mask: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Owning group.
    pub gid: Option<u32>,
    /// Size in bytes (regular files).
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of data.
    pub mtime: Option<SetTime>,
    /// Access control lists; after the mode, which follows (RFC 8881 6.4.1.3).
    pub acl: Option<Arc<AclSet>>,
}

impl SetAttr {
    /// Whether nothing is to be set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Access rights asked for or granted: the bits of ACCESS (RFC 8881 18.1, RFC 8276 8.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Access(pub u32);

impl Access {
    /// Read data or list a directory.
    pub const READ: u32 = 0x01;
    /// Look up a name in a directory.
    pub const LOOKUP: u32 = 0x02;
    /// Change data, or entries of a directory.
    pub const MODIFY: u32 = 0x04;
    /// Write new data or add entries.
    pub const EXTEND: u32 = 0x08;
    /// Delete an entry of a directory.
    pub const DELETE: u32 = 0x10;
    /// Execute a file.
    pub const EXECUTE: u32 = 0x20;
    /// Read extended attributes.
    pub const XAREAD: u32 = 0x40;
    /// Write extended attributes.
    pub const XAWRITE: u32 = 0x80;
    /// List extended attributes.
    pub const XALIST: u32 = 0x100;
}

/// Change attribute of a directory around an update of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DirChange {
    /// Value before.
    pub before: u64,
    /// Value after.
    pub after: u64,
    /// Whether nothing else can have happened between the two.
    pub atomic: bool,
}

/// What a user may still take of a filesystem, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Quota {
    /// Space in use.
    pub used: u64,
    /// What can never be passed, if there is such a limit.
    pub hard: Option<u64>,
    /// What can be passed for a while, if there is such a limit.
    pub soft: Option<u64>,
}

/// Space and file counts of a filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct FsStat {
    /// Bytes in all.
    pub total: u64,
    /// Bytes free.
    pub free: u64,
    /// Bytes free to this user.
    pub avail: u64,
    /// File slots in all.
    pub files_total: u64,
    /// File slots free.
    pub files_free: u64,
    /// File slots free to this user.
    pub files_avail: u64,
}
