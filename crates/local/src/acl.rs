//! Access control lists: the kernel keeps them as two extended attributes in a form of its own (acl(5), and
//! `linux/posix_acl_xattr.h`): a version, then entries of tag, bits and id, all little-endian.

use dhow_sys::{Errno, xattr};
use dhow_vfs::{AclEntry, AclSet, AclTag, Cred, ErrorKind, FileKind, PosixAcl, Result};

use crate::error::{as_kind, sys};
use crate::inner::Inner;
use crate::inode::Inode;

/// Of who may use an object.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// Of what new objects of a directory start with.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const NO_ID: u32 = u32::MAX;

fn decode(value: &[u8]) -> Option<PosixAcl> {
    let (version, entries) = value.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != VERSION || entries.len() % 8 != 0 {
        return None;
    }
    let mut out = Vec::with_capacity(entries.len() / 8);
    for entry in entries.chunks_exact(8) {
        let [t0, t1, p0, p1, i0, i1, i2, i3] = *entry else { return None };
        let id = u32::from_le_bytes([i0, i1, i2, i3]);
        let tag = match u16::from_le_bytes([t0, t1]) {
            0x01 => AclTag::Owner,
            0x02 => AclTag::User(id),
            0x04 => AclTag::OwnerGroup,
            0x08 => AclTag::Group(id),
            0x10 => AclTag::Mask,
            0x20 => AclTag::Other,
            _ => return None,
        };
        let perm = u8::try_from(u16::from_le_bytes([p0, p1])).ok()?;
        out.push(AclEntry { tag, perm });
    }
    PosixAcl::new(out)
}

fn encode(acl: &PosixAcl) -> Vec<u8> {
    let mut out = VERSION.to_le_bytes().to_vec();
    for entry in acl.entries() {
        let (tag, id): (u16, u32) = match entry.tag {
            AclTag::Owner => (0x01, NO_ID),
            AclTag::User(id) => (0x02, id),
            AclTag::OwnerGroup => (0x04, NO_ID),
            AclTag::Group(id) => (0x08, id),
            AclTag::Mask => (0x10, NO_ID),
            AclTag::Other => (0x20, NO_ID),
        };
        out.extend(tag.to_le_bytes());
        out.extend(u16::from(entry.perm).to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

/// Whether the filesystem of an object keeps access control lists.
pub(crate) fn supported(object: impl std::os::fd::AsFd) -> bool {
    matches!(xattr::get(object, ACCESS), Ok(_) | Err(Errno::NODATA))
}

fn failed(e: Errno) -> dhow_vfs::Error {
    match e {
        // More entries than the filesystem has room for.
        Errno::TOOBIG | Errno::RANGE => as_kind(ErrorKind::NoSpace, e),
        e => sys(e),
    }
}

impl Inner {
    /// The lists of an object; one without lists has what its mode says.
    pub(crate) fn acl(&self, inode: &Inode) -> Result<AclSet> {
        let stat = inode.stat()?;
        let read = |name: &[u8]| match xattr::get(&inode.path, name) {
            Ok(value) => match decode(&value) {
                Some(acl) => Ok(Some(acl)),
                None => Err(ErrorKind::Io.into()),
            },
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
            Err(e) => Err(sys(e)),
        };
        let access = read(ACCESS)?.unwrap_or_else(|| PosixAcl::from_mode(stat.mode));
        let default = if inode.kind == FileKind::Directory { read(DEFAULT)? } else { None };
        Ok(AclSet { access, default })
    }

    /// Sets the lists of an object, as the user: the kernel lets its owner. The mode follows the list of access.
    pub(crate) fn set_acl(&self, user: &Cred, inode: &Inode, acl: &AclSet) -> Result<()> {
        if inode.kind == FileKind::Symlink {
            return Err(ErrorKind::NotSupported.into());
        }
        if acl.default.is_some() && inode.kind != FileKind::Directory {
            return Err(ErrorKind::Invalid.into());
        }
        self.as_user(user, || {
            let set = |name: &[u8], acl| xattr::set(&inode.path, name, &encode(acl), xattr::SetMode::Either);
            set(ACCESS, &acl.access).map_err(failed)?;
            match &acl.default {
                Some(default) => set(DEFAULT, default).map_err(failed),
                None if inode.kind != FileKind::Directory => Ok(()),
                None => match xattr::remove(&inode.path, DEFAULT) {
                    Ok(()) | Err(Errno::NODATA) => Ok(()),
                    Err(e) => Err(failed(e)),
                },
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_form() {
        let entries = [
            (AclTag::Owner, 7),
            (AclTag::User(1000), 6),
            (AclTag::OwnerGroup, 5),
            (AclTag::Group(77), 0),
            (AclTag::Mask, 4),
            (AclTag::Other, 1),
        ];
        let acl = PosixAcl::new(entries.map(|(tag, perm)| AclEntry { tag, perm }).to_vec()).unwrap();
        let bytes = encode(&acl);
        assert_eq!(bytes.len(), 4 + 6 * 8);
        assert_eq!(bytes[..12], [2, 0, 0, 0, 1, 0, 7, 0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(bytes[12..20], [2, 0, 6, 0, 0xe8, 3, 0, 0]);
        assert_eq!(decode(&bytes), Some(acl));
        assert_eq!(decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(decode(&[1, 0, 0, 0]), None);
        assert_eq!(decode(&[]), None);
    }
}
