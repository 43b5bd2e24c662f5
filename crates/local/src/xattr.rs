//! Extended attributes of users (RFC 8276): the `user.` namespace of Linux, without its prefix.

use std::sync::Arc;

use bytes::Bytes;
use dhow_sys::{Errno, xattr};
use dhow_vfs::{Cred, DirChange, Error, ErrorKind, Result, XattrSet};

use crate::error::{as_kind, sys};
use crate::inner::Inner;
use crate::inode::Inode;
use crate::names::DirChanging;
use crate::rights::R;

const PREFIX: &[u8] = b"user.";

fn full(name: &[u8]) -> Result<Vec<u8>> {
    if name.is_empty() || name.contains(&0) {
        return Err(ErrorKind::Invalid.into());
    }
    let full = [PREFIX, name].concat();
    if full.len() > xattr::MAX_NAME {
        return Err(ErrorKind::NameTooLong.into());
    }
    Ok(full)
}

fn failed(e: Errno) -> Error {
    match e {
        // Values that the filesystem can never hold; some say so as if the disk were full.
        Errno::TOOBIG | Errno::RANGE => as_kind(ErrorKind::XattrTooBig, e),
        e => sys(e),
    }
}

impl Inner {
    /// The value of an attribute.
    pub(crate) fn getxattr(&self, user: &Cred, inode: &Inode, name: &[u8]) -> Result<Bytes> {
        let name = full(name)?;
        self.must_have(user, inode, R)?;
        inode.stat()?;
        xattr::get(&inode.path, &name).map(Bytes::from).map_err(failed)
    }

    /// Sets an attribute.
    pub(crate) fn setxattr(
        &self,
        user: &Cred,
        inode: &Arc<Inode>,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
    ) -> Result<DirChange> {
        let name = full(name)?;
        let how = match how {
            XattrSet::Either => xattr::SetMode::Either,
            XattrSet::Create => xattr::SetMode::Create,
            XattrSet::Replace => xattr::SetMode::Replace,
        };
        if value.len() > xattr::MAX_VALUE {
            return Err(ErrorKind::XattrTooBig.into());
        }
        self.around(inode, || {
            self.as_user(user, || {
                xattr::set(&inode.path, &name, value, how).map_err(|e| match e {
                    // ext4 keeps all attributes of a file in one block at most, and calls that ENOSPC.
                    Errno::NOSPC if value.len() > 2048 => as_kind(ErrorKind::XattrTooBig, e),
                    e => failed(e),
                })
            })
        })
    }

    /// Removes an attribute.
    pub(crate) fn removexattr(&self, user: &Cred, inode: &Arc<Inode>, name: &[u8]) -> Result<DirChange> {
        let name = full(name)?;
        self.around(inode, || self.as_user(user, || xattr::remove(&inode.path, &name).map_err(failed)))
    }

    /// All names that users may see.
    pub(crate) fn listxattr(&self, inode: &Inode) -> Result<Vec<Bytes>> {
        inode.stat()?;
        // Listing needs no permission on Linux; XALIST of ACCESS is reading (RFC 8276 8.5).
        let names = xattr::list(&inode.path).map_err(failed)?;
        Ok(names.iter().filter_map(|n| n.strip_prefix(PREFIX)).map(Bytes::copy_from_slice).collect())
    }

    fn around(&self, inode: &Arc<Inode>, change: impl FnOnce() -> Result<()>) -> Result<DirChange> {
        let _changing = DirChanging::begin(inode);
        let (_, before) = inode.stat_change()?;
        change()?;
        inode.changed();
        let (_, after) = inode.stat_change()?;
        Ok(DirChange { before, after, atomic: false })
    }
}
