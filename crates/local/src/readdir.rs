//! Listing directories.
//!
//! A cookie is the kernel's own position behind an entry (`d_off`), which the common filesystems keep meaningful while
//! entries come and go: a hash of the name on ext4, a number that is never used again on btrfs, xfs and tmpfs. Each call
//! opens the directory anew, which gives it a position of its own.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use dhow_sys::Errno;
use dhow_sys::dir::{self, Flow};
use dhow_sys::open;
use dhow_vfs::{Cred, DirEntry, DirPage, ErrorKind, Node, PageLimit, Result};
use rustix::fs::OFlags;

use crate::error::{as_kind, kind, sys};
use crate::inner::Inner;
use crate::inode::Inode;
use crate::rights::{R, X};

/// Set in cookies of positions 0, 1 and 2, which the protocol reserves (RFC 8881 18.23.3; case K28). No filesystem
/// that we know gives a position this high to anything but the end.
const LOW: u64 = 1 << 62;

fn to_cookie(position: u64) -> u64 {
    if position <= 2 { position | LOW } else { position }
}

fn to_position(cookie: u64) -> u64 {
    if cookie & !3 == LOW { cookie & 3 } else { cookie }
}

impl Inner {
    /// Reads a part of a directory.
    pub(crate) fn readdir(
        self: &Arc<Self>,
        user: &Cred,
        at: &Arc<Inode>,
        cookie: u64,
        limit: PageLimit,
    ) -> Result<DirPage> {
        at.must_be_dir()?;
        self.must_have(user, at, R)?;
        at.stat()?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let fd = match self.with_descriptors(|| open::reopen(&at.path, flags)) {
            // Storage that trusts the process less than the user.
            Err(Errno::ACCESS) => self.as_user(user, || open::reopen(&at.path, flags).map_err(sys))?,
            other => other.map_err(sys)?,
        };
        // About one kernel record for each name of common length; never less than the longest record.
        let size = (limit.entries.saturating_mul(64)).clamp(1024, 32 << 10);
        let mut buffer = vec![MaybeUninit::uninit(); size];
        let mut from = cookie;
        loop {
            let mut page = self.read_names(&fd, from, limit, &mut buffer)?;
            let last = page.entries.last().map(|entry| entry.cookie);
            if limit.nodes {
                self.add_nodes(user, at, &mut page)?;
            }
            match last {
                // All that was read had been removed before it was looked at: go on, so that the listing advances.
                Some(last) if page.entries.is_empty() && !page.eof => from = last,
                _ => return Ok(page),
            }
        }
    }

    fn read_names(
        &self,
        fd: &OwnedFd,
        cookie: u64,
        limit: PageLimit,
        buffer: &mut [MaybeUninit<u8>],
    ) -> Result<DirPage> {
        let mut page = DirPage::default();
        let mut name_bytes = 0;
        let read = dir::read_from(fd, to_position(cookie), buffer, |entry| {
            if entry.name == b"." || entry.name == b".." {
                return Flow::More;
            }
            let full = page.entries.len() >= limit.entries || name_bytes >= limit.name_bytes;
            if full && !page.entries.is_empty() {
                return Flow::Stop;
            }
            name_bytes += entry.name.len();
            page.entries.push(DirEntry {
                name: Bytes::copy_from_slice(entry.name),
                cookie: to_cookie(entry.next),
                fileid: entry.ino,
                node: None,
            });
            Flow::More
        });
        page.eof = match read {
            Ok(eof) => eof,
            // A position that the filesystem does not take.
            Err(e @ (Errno::INVAL | Errno::NOENT)) if cookie != 0 => return Err(as_kind(ErrorKind::BadCookie, e)),
            Err(e) => return Err(sys(e)),
        };
        Ok(page)
    }

    /// Adds handles and attributes; what fails for one entry stays with that entry (case B40).
    fn add_nodes(self: &Arc<Self>, user: &Cred, at: &Arc<Inode>, page: &mut DirPage) -> Result<()> {
        // Reading a listing and looking its names up are two rights: without the second the names come bare.
        let may_look = self.must_have(user, at, X).map_err(|e| e.kind());
        for entry in &mut page.entries {
            let number = entry.fileid;
            let hold = || self.hold(user, at, &entry.name, false);
            let node = may_look
                .and_then(|()| hold().map_err(|e| if e == Errno::XDEV { ErrorKind::Access } else { kind(e) }))
                .and_then(|fd| self.identify(&fd, &at.fs, || Some(number)).map_err(|e| e.kind()))
                .map(|(handle, stat, fs)| {
                    self.note(at, &entry.name, &handle, &fs);
                    self.passing_node(handle, &fs, &stat)
                });
            if let Ok(Node { attr, .. }) = &node {
                entry.fileid = attr.mounted_on_fileid;
            }
            entry.node = Some(node);
        }
        // Removed since the listing was read.
        page.entries.retain(|entry| !matches!(entry.node, Some(Err(ErrorKind::NotFound))));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_cookies_are_never_given() {
        for position in [0, 1, 2, 3, 4, 1 << 31, i64::MAX as u64, i32::MAX as u64] {
            let cookie = to_cookie(position);
            assert!(cookie > 2 && cookie < 1 << 63);
            assert_eq!(to_position(cookie), position);
        }
        assert_eq!(to_position(0), 0);
    }
}
