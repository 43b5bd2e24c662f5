//! Attributes: from the backend's to the wire's, and back for SETATTR and the like.
//!
//! Set-only attributes (time_access_set, time_modify_set, mode_set_masked, mode_umask) are in `supported_attrs`, because
//! clients look there before they send them (Linux: mode_umask); to ask for one is INVAL (RFC 8881 5.5).

use crate::exports::Export;
use crate::shared::ServerShared;
use crate::v4::Fh;
use bytes::Bytes;
use dhow_proto::v4::attr::{self as a, WRITE_ONLY};
use dhow_proto::v4::{Attrs, Bitmap, ChangeAttrType, Fattr, FileHandle, FileType, NfsTime, SpecData, Status};
use dhow_proto::v4::{FsId, SetTime as WireSetTime};
use dhow_vfs::{Attr, FileKind, FsStat, NAME_MAX, SetAttr, SetTime, Time};
use std::io::Write;

/// What every filesystem answers.
const ALWAYS: Bitmap = Bitmap::of(&[
    a::SUPPORTED_ATTRS,
    a::TYPE,
    a::FH_EXPIRE_TYPE,
    a::CHANGE,
    a::SIZE,
    a::LINK_SUPPORT,
    a::SYMLINK_SUPPORT,
    a::NAMED_ATTR,
    a::FSID,
    a::UNIQUE_HANDLES,
    a::LEASE_TIME,
    a::RDATTR_ERROR,
    a::ACLSUPPORT,
    a::CANSETTIME,
    a::CASE_INSENSITIVE,
    a::CASE_PRESERVING,
    a::CHOWN_RESTRICTED,
    a::FILEHANDLE,
    a::FILEID,
    a::FILES_AVAIL,
    a::FILES_FREE,
    a::FILES_TOTAL,
    a::HOMOGENEOUS,
    a::MAXFILESIZE,
    a::MAXLINK,
    a::MAXNAME,
    a::MAXREAD,
    a::MAXWRITE,
    a::MODE,
    a::NO_TRUNC,
    a::NUMLINKS,
    a::OWNER,
    a::OWNER_GROUP,
    a::RAWDEV,
    a::SPACE_AVAIL,
    a::SPACE_FREE,
    a::SPACE_TOTAL,
    a::SPACE_USED,
    a::TIME_ACCESS,
    a::TIME_ACCESS_SET,
    a::TIME_CREATE,
    a::TIME_DELTA,
    a::TIME_METADATA,
    a::TIME_MODIFY,
    a::TIME_MODIFY_SET,
    a::MOUNTED_ON_FILEID,
    a::MODE_SET_MASKED,
    a::SUPPATTR_EXCLCREAT,
    a::FS_CHARSET_CAP,
]);

/// What minor version 2 and its extensions add.
const MINOR2: Bitmap = Bitmap::of(&[a::SPACE_FREED, a::CHANGE_ATTR_TYPE, a::MODE_UMASK, a::XATTR_SUPPORT]);

/// What SETATTR sets here.
const SETS: Bitmap = Bitmap::of(&[
    a::SIZE,
    a::MODE,
    a::OWNER,
    a::OWNER_GROUP,
    a::TIME_ACCESS_SET,
    a::TIME_MODIFY_SET,
    a::MODE_SET_MASKED,
    a::MODE_UMASK,
]);

/// What is asked of the filesystem rather than of the object: costs a call of its own.
const OF_FILESYSTEM: Bitmap =
    Bitmap::of(&[a::FILES_AVAIL, a::FILES_FREE, a::FILES_TOTAL, a::SPACE_AVAIL, a::SPACE_FREE, a::SPACE_TOTAL]);

/// What READDIR can answer from the entry alone.
pub const OF_ENTRY: Bitmap = Bitmap::of(&[a::RDATTR_ERROR, a::MOUNTED_ON_FILEID]);

/// FSCHARSET_CAP4_CONTAINS_NON_UTF8: names are bytes (case B14).
const CONTAINS_NON_UTF8: u32 = 0x1;

/// The attributes of an export in a minor version: exactly those that GETATTR answers and SETATTR takes.
pub fn supported(export: &Export, minor: u32) -> Bitmap {
    let mut all = ALWAYS;
    if minor >= 2 {
        all = all.or(&MINOR2);
        if export.backend.caps().clone {
            all.set(a::CLONE_BLKSIZE);
        }
    }
    all
}

/// Attributes that can only be set are not asked for (RFC 8881 5.5: MUST be INVAL, case B40).
pub(crate) fn must_be_readable(wanted: &Bitmap) -> Result<(), Status> {
    if wanted.and(&WRITE_ONLY).is_empty() { Ok(()) } else { Err(Status::INVAL) }
}

/// Whether the filesystem must be asked for any of `wanted`.
pub fn needs_statfs(wanted: &Bitmap) -> bool {
    !wanted.and(&OF_FILESYSTEM).is_empty()
}

/// The object whose attributes are wanted.
#[derive(Clone, Copy)]
pub(crate) struct Object<'a> {
    /// Where it is.
    pub fh: &'a Fh,
    /// What the backend says of it.
    pub attr: &'a Attr,
    /// What the backend says of its filesystem; needed if [`needs_statfs`].
    pub stat: Option<&'a FsStat>,
}

/// Those of the `wanted` attributes that are supported.
pub(crate) fn collect(server: &ServerShared, minor: u32, object: Object<'_>, wanted: &Bitmap) -> Box<Attrs> {
    let mut out = Box::<Attrs>::default();
    fill(server, minor, object, wanted, &mut out);
    out
}

/// As [`collect`], into `out`, which should be empty.
pub(crate) fn fill(server: &ServerShared, minor: u32, object: Object<'_>, wanted: &Bitmap, out: &mut Attrs) {
    let Object { fh, attr, stat } = object;
    let export = &fh.export;
    let caps = export.backend.caps();
    let all = supported(export, minor);
    for number in wanted.and(&all).minus(&WRITE_ONLY).iter() {
        match number {
            a::SUPPORTED_ATTRS => out.supported_attrs = Some(all),
            a::TYPE => out.file_type = Some(file_type(attr.kind)),
            a::FH_EXPIRE_TYPE => out.fh_expire_type = Some(0),
            a::CHANGE => out.change = Some(attr.change),
            a::SIZE => out.size = Some(attr.size),
            a::LINK_SUPPORT => out.link_support = Some(caps.links),
            a::SYMLINK_SUPPORT => out.symlink_support = Some(caps.symlinks),
            a::NAMED_ATTR => out.named_attr = Some(false),
            a::FSID => out.fsid = Some(fsid(export, attr)),
            a::UNIQUE_HANDLES => out.unique_handles = Some(true),
            a::LEASE_TIME => {
                let secs = server.state.limits().lease.as_secs();
                out.lease_time = Some(u32::try_from(secs).unwrap_or(u32::MAX));
            }
            a::RDATTR_ERROR => out.rdattr_error = Some(Status::OK),
            a::ACLSUPPORT => out.aclsupport = Some(0),
            a::CANSETTIME => out.cansettime = Some(!caps.read_only),
            a::CASE_INSENSITIVE => out.case_insensitive = Some(!caps.case_sensitive),
            a::CASE_PRESERVING => out.case_preserving = Some(true),
            a::CHOWN_RESTRICTED => out.chown_restricted = Some(true),
            a::FILEHANDLE => {
                let wire = server.handles.encode(export.place, &fh.handle);
                out.filehandle = Some(FileHandle(wire.into()));
            }
            a::FILEID => out.fileid = Some(attr.fileid),
            a::FILES_AVAIL => out.files_avail = stat.map(|s| s.files_avail),
            a::FILES_FREE => out.files_free = stat.map(|s| s.files_free),
            a::FILES_TOTAL => out.files_total = stat.map(|s| s.files_total),
            a::HOMOGENEOUS => out.homogeneous = Some(true),
            a::MAXFILESIZE => out.maxfilesize = Some(caps.max_file_size),
            a::MAXLINK => out.maxlink = Some(caps.max_links),
            a::MAXNAME => out.maxname = Some(NAME_MAX as u32),
            a::MAXREAD => out.maxread = Some(server.limits.max_io.into()),
            a::MAXWRITE => out.maxwrite = Some(server.limits.max_io.into()),
            a::MODE => out.mode = Some(attr.mode & 0o7777),
            a::NO_TRUNC => out.no_trunc = Some(true),
            a::NUMLINKS => out.numlinks = Some(attr.nlink),
            a::OWNER => out.owner = Some(number_text(attr.uid)),
            a::OWNER_GROUP => out.owner_group = Some(number_text(attr.gid)),
            a::RAWDEV => out.rawdev = Some(SpecData { major: attr.rdev.0, minor: attr.rdev.1 }),
            a::SPACE_AVAIL => out.space_avail = stat.map(|s| s.avail),
            a::SPACE_FREE => out.space_free = stat.map(|s| s.free),
            a::SPACE_TOTAL => out.space_total = stat.map(|s| s.total),
            a::SPACE_USED => out.space_used = Some(attr.used),
            a::TIME_ACCESS => out.time_access = Some(time(attr.atime)),
            // Where the filesystem does not keep it, the earliest of the other times is the best that can be said.
            a::TIME_CREATE => {
                let known = attr.btime.unwrap_or(attr.atime.min(attr.mtime).min(attr.ctime));
                out.time_create = Some(time(known));
            }
            a::TIME_DELTA => {
                let nanos = caps.time_delta_nanos.max(1);
                out.time_delta = Some(NfsTime { secs: i64::from(nanos / 1_000_000_000), nanos: nanos % 1_000_000_000 });
            }
            a::TIME_METADATA => out.time_metadata = Some(time(attr.ctime)),
            a::TIME_MODIFY => out.time_modify = Some(time(attr.mtime)),
            a::MOUNTED_ON_FILEID => {
                let root = export.is_root(&fh.handle) && !export.is_pseudo();
                out.mounted_on_fileid = Some(if root { export.mounted_on() } else { attr.mounted_on_fileid });
            }
            a::SUPPATTR_EXCLCREAT => out.suppattr_exclcreat = Some(exclusive_create(minor)),
            a::FS_CHARSET_CAP => out.fs_charset_cap = Some(CONTAINS_NON_UTF8),
            a::CLONE_BLKSIZE => out.clone_blksize = Some(caps.clone_block),
            a::SPACE_FREED => out.space_freed = Some(if attr.nlink <= 1 { attr.used } else { 0 }),
            a::CHANGE_ATTR_TYPE => {
                let kind = if caps.change_is_time { ChangeAttrType::TIME_METADATA } else { ChangeAttrType::UNDEFINED };
                out.change_attr_type = Some(kind);
            }
            a::XATTR_SUPPORT => out.xattr_support = Some(caps.xattrs),
            _ => {}
        }
    }
}

/// The attributes that OPEN with EXCLUSIVE4_1 can set (RFC 8881 18.16.3).
fn exclusive_create(minor: u32) -> Bitmap {
    if minor >= 2 { SETS } else { SETS.without(a::MODE_UMASK) }
}

fn fsid(export: &Export, attr: &Attr) -> FsId {
    let fsid = export.fsid(attr.fsid);
    FsId { major: fsid.major, minor: fsid.minor }
}

fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::REG,
        FileKind::Directory => FileType::DIR,
        FileKind::Symlink => FileType::LNK,
        FileKind::Block => FileType::BLK,
        FileKind::Char => FileType::CHR,
        FileKind::Fifo => FileType::FIFO,
        FileKind::Socket => FileType::SOCK,
    }
}

fn time(t: Time) -> NfsTime {
    NfsTime { secs: t.secs, nanos: t.nanos }
}

/// Owners are numbers in decimal (RFC 8881 5.9): what clients without a common name service agree on.
fn number_text(id: u32) -> Bytes {
    let mut buf = [0; 10];
    let mut rest = &mut buf[..];
    // Ten digits always fit.
    let _ = write!(rest, "{id}");
    let left = rest.len();
    Bytes::copy_from_slice(buf.get(..buf.len() - left).unwrap_or_default())
}

/// The number that an owner stands for: decimal digits only. Names are refused: there is no name service here.
fn owner(text: &Bytes) -> Result<u32, Status> {
    let digits = !text.is_empty() && text.len() <= 10 && text.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(text).ok().filter(|_| digits).and_then(|t| t.parse().ok());
    // The last number means "no id" to the kernel (chown(2)).
    number.filter(|n| *n != u32::MAX).ok_or(Status::BADOWNER)
}

/// What attributes are to be set for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetFor {
    /// A new object (OPEN, CREATE).
    Create,
    /// One that exists (SETATTR).
    Change,
}

/// The attributes to be set.
///
/// # Errors
/// ATTRNOTSUPP for attributes that are not supported, or readable but not settable here although the protocol has them
/// settable (time_create, case B12); INVAL for attributes that can only be read (RFC 8881 5.5), for several modes at
/// once, a mode_umask outside of creation (RFC 8275 4.2), times with impossible nanoseconds; BADOWNER; BADXDR.
pub(crate) fn to_set(export: &Export, minor: u32, fattr: &Fattr, purpose: SetFor) -> Result<SetAttr, Status> {
    let mask = fattr.mask;
    if !mask.is_subset(&supported(export, minor)) {
        return Err(Status::ATTRNOTSUPP);
    }
    if !mask.is_subset(&SETS) {
        return Err(if mask.minus(&SETS).is_subset(&a::SETTABLE) { Status::ATTRNOTSUPP } else { Status::INVAL });
    }
    let modes = mask.and(&Bitmap::of(&[a::MODE, a::MODE_SET_MASKED, a::MODE_UMASK]));
    if modes.len() > 1 || (mask.contains(a::MODE_UMASK) && purpose == SetFor::Change) {
        return Err(Status::INVAL);
    }
    let attrs = fattr.parse()?;
    let mut set = SetAttr { size: attrs.size, ..SetAttr::default() };
    set.mode = attrs.mode.map(|m| m & 0o7777);
    if let Some(masked) = attrs.mode_set_masked {
        set.mode = Some(masked.value & 0o7777);
        set.mode_mask = Some(masked.mask & 0o7777);
    }
    if let Some(m) = attrs.mode_umask {
        set.mode = Some(m.mode & 0o7777);
        set.umask = Some(m.umask & 0o777);
    }
    set.uid = attrs.owner.as_ref().map(owner).transpose()?;
    set.gid = attrs.owner_group.as_ref().map(owner).transpose()?;
    set.atime = attrs.time_access_set.map(set_time).transpose()?;
    set.mtime = attrs.time_modify_set.map(set_time).transpose()?;
    Ok(set)
}

fn set_time(t: WireSetTime) -> Result<SetTime, Status> {
    match t {
        WireSetTime::Server => Ok(SetTime::Now),
        WireSetTime::Client(NfsTime { nanos: 1_000_000_000.., .. }) => Err(Status::INVAL),
        WireSetTime::Client(NfsTime { secs, nanos }) => Ok(SetTime::To(Time { secs, nanos })),
    }
}

/// The bits of `asked` that `applied` covers: attrset, exact (case B40).
pub(crate) fn applied(asked: &Bitmap, applied: &SetAttr) -> Bitmap {
    let done = |number| match number {
        a::SIZE => applied.size.is_some(),
        a::MODE | a::MODE_SET_MASKED | a::MODE_UMASK => applied.mode.is_some(),
        a::OWNER => applied.uid.is_some(),
        a::OWNER_GROUP => applied.gid.is_some(),
        a::TIME_ACCESS_SET => applied.atime.is_some(),
        a::TIME_MODIFY_SET => applied.mtime.is_some(),
        _ => false,
    };
    asked.iter().filter(|n| done(*n)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_numbers() {
        for (text, id) in [("0", 0), ("65534", 65534), ("4294967294", u32::MAX - 1)] {
            assert_eq!(owner(&Bytes::from(text)), Ok(id));
            assert_eq!(number_text(id), text);
        }
        for bad in ["", "root", "root@x", "1@x", "-1", "+1", " 1", "4294967295", "4294967296", "99999999999"] {
            assert_eq!(owner(&Bytes::copy_from_slice(bad.as_bytes())), Err(Status::BADOWNER), "{bad}");
        }
    }

    #[test]
    fn impossible_nanoseconds_are_refused_case_b18() {
        let t = |secs, nanos| set_time(WireSetTime::Client(NfsTime { secs, nanos }));
        assert_eq!(t(-1, 999_999_999), Ok(SetTime::To(Time { secs: -1, nanos: 999_999_999 })));
        assert_eq!(t(0, 1_000_000_000), Err(Status::INVAL));
    }
}
