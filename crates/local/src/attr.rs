//! Attributes as clients see them, access rights, space.

use std::sync::Arc;

use dhow_sys::open::{self, Stat};
use dhow_vfs::{Access, Attr, Cred, ErrorKind, FileKind, FsStat, Handle, Node, Result, Time};

use crate::error::sys;
use crate::fs::Filesystem;
use crate::inner::Inner;
use crate::inode::{Inode, kind_of, nanos};
use crate::rights::{R, W, X};

fn time(t: open::Time) -> Time {
    Time { secs: t.sec, nanos: t.nsec }
}

/// Attributes from what the kernel said, and the change attribute to go with it.
pub(crate) fn attr(fs: &Filesystem, stat: &Stat, change: u64) -> Attr {
    let mounted_on = fs.mounted_on.filter(|_| stat.ino == fs.root_ino).unwrap_or(stat.ino);
    Attr {
        kind: kind_of(stat.mode),
        mode: stat.mode & 0o7777,
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        size: stat.size,
        used: stat.blocks.saturating_mul(512),
        rdev: stat.rdev,
        fsid: fs.fsid,
        fileid: stat.ino,
        mounted_on_fileid: mounted_on,
        change,
        atime: time(stat.atime),
        mtime: time(stat.mtime),
        ctime: time(stat.ctime),
        btime: stat.btime.map(time),
    }
}

impl Inner {
    /// Attributes of an object in use.
    pub(crate) fn attr_of(&self, inode: &Inode) -> Result<Attr> {
        let (stat, change) = inode.stat_change()?;
        Ok(attr(&inode.fs, &stat, change))
    }

    /// Handle and attributes of an object in use, whose `stat` has just been taken.
    pub(crate) fn node(&self, inode: &Inode, stat: &Stat) -> Node {
        let (stat, change) = inode.with_change(stat);
        Node { handle: inode.handle.clone(), attr: attr(&inode.fs, &stat, change) }
    }

    /// Handle and attributes of an object that need not be in use, so that a listing does not fill the cache.
    pub(crate) fn passing_node(&self, handle: Handle, fs: &Filesystem, stat: &Stat) -> Node {
        let known = self.inodes.get_known(&handle).map(|inode| inode.with_change(stat));
        let (stat, change) = known.unwrap_or_else(|| (*stat, nanos(stat.ctime)));
        Node { attr: attr(fs, &stat, change), handle }
    }

    /// Which of the rights the user has: what the kernel says to the user, access control lists and read-only mounts
    /// included. The owner override of I/O is no right and does not show here.
    pub(crate) fn access(&self, user: &Cred, inode: &Arc<Inode>, want: Access) -> Result<Access> {
        let stat = inode.stat()?;
        let dir = inode.kind == FileKind::Directory;
        let read = Access::READ | Access::XAREAD | Access::XALIST;
        let write = Access::MODIFY | Access::EXTEND | Access::XAWRITE | if dir { Access::DELETE } else { 0 };
        let run = if dir { Access::LOOKUP } else { Access::EXECUTE };
        let mut granted = 0;
        for (right, bits) in [(R, read), (W, write), (X, run)] {
            if want.0 & bits == 0 {
                continue;
            }
            match self.rights(user, inode, &stat, right) {
                Ok(0) => {}
                Ok(_) => granted |= want.0 & bits,
                Err(e) if matches!(e.kind(), ErrorKind::ReadOnly | ErrorKind::Busy) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(Access(granted))
    }

    /// Space and counts of the filesystem of an object.
    pub(crate) fn statfs(&self, inode: &Inode) -> Result<FsStat> {
        let fs = open::statfs(&inode.path).map_err(sys)?;
        let bytes = |blocks: u64| blocks.saturating_mul(fs.frsize);
        Ok(FsStat {
            total: bytes(fs.blocks),
            free: bytes(fs.bfree),
            avail: bytes(fs.bavail),
            files_total: fs.files,
            files_free: fs.ffree,
            files_avail: fs.ffree,
        })
    }
}
