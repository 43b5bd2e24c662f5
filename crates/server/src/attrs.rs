//! Attributes: from the backend's to the wire's, and back for SETATTR and the like.
//!
//! Set-only attributes (time_access_set, time_modify_set, mode_set_masked, mode_umask) are in `supported_attrs`, because
//! clients look there before they send them (Linux: mode_umask); to ask for one is INVAL (RFC 8881 5.5).

use crate::acl::{self, Who};
use crate::errmap::IntoStatus;
use crate::exports::Export;
use crate::ids::Kind;
use crate::shared::ServerShared;
use crate::v4::Fh;
use bytes::Bytes;
use dhow_proto::v4::attr::{self as a, WRITE_ONLY};
use dhow_proto::v4::{
    Ace, Attrs, Bitmap, ByteStrings, ChangeAttrType, Fattr, FileHandle, FileType, FsId, FsLocations, NfsTime,
    OpenArguments, SetTime as WireSetTime, SpecData, Status,
};
use dhow_vfs::{AclSet, Attr, FileKind, FsStat, NAME_MAX, Quota, SetAttr, SetTime, Time};
use std::io::Write;
use std::sync::Arc;

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
    a::FS_LOCATIONS,
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
const MINOR2: Bitmap =
    Bitmap::of(&[a::SPACE_FREED, a::CHANGE_ATTR_TYPE, a::MODE_UMASK, a::XATTR_SUPPORT, a::OFFLINE, a::OPEN_ARGUMENTS]);

/// What SETATTR sets here.
const SETS: Bitmap = Bitmap::of(&[
    a::SIZE,
    a::ACL,
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

/// What is asked of the quota of the object's owner.
const OF_QUOTA: Bitmap = Bitmap::of(&[a::QUOTA_AVAIL_HARD, a::QUOTA_AVAIL_SOFT, a::QUOTA_USED]);

/// What READDIR can answer from the entry alone.
pub const OF_ENTRY: Bitmap = Bitmap::of(&[a::RDATTR_ERROR, a::MOUNTED_ON_FILEID]);

/// FSCHARSET_CAP4_CONTAINS_NON_UTF8: names are bytes (case B14).
const CONTAINS_NON_UTF8: u32 = 0x1;

/// The attributes of an export in a minor version: exactly those that GETATTR answers and SETATTR takes.
pub fn supported(export: &Export, minor: u32) -> Bitmap {
    let mut all = ALWAYS;
    if export.backend.caps().acls {
        all.set(a::ACL);
    }
    if export.backend.caps().quotas {
        all = all.or(&OF_QUOTA);
    }
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
    // What is left of a quota is no more than what is left of the filesystem.
    !wanted.and(&OF_FILESYSTEM.or(&OF_QUOTA)).is_empty()
}

/// The object whose attributes are wanted.
#[derive(Clone, Copy)]
pub(crate) struct Object<'a> {
    /// Where it is.
    pub fh: &'a Fh,
    /// What the backend says of it.
    pub attr: &'a Attr,
    /// What had to be asked for besides.
    pub more: &'a More,
}

/// What costs a call of its own, and is asked for only if it is wanted.
#[derive(Clone, Debug, Default)]
pub(crate) struct More {
    /// What the backend says of the filesystem.
    pub stat: Option<FsStat>,
    /// The quota of the owner, whom every allocation to the object is counted against (RFC 8881 5.8.2.28 to 5.8.2.30).
    quota: Option<Quota>,
    /// The access control list.
    acl: Option<Vec<Ace>>,
    /// The owner's name, if it is shown by name.
    owner: Option<Bytes>,
    /// The group's.
    group: Option<Bytes>,
}

impl More {
    /// Bytes until a limit, or until the filesystem is full.
    fn left(&self, limit: impl Fn(&Quota) -> Option<u64>) -> Option<u64> {
        let (quota, avail) = (self.quota.as_ref()?, self.stat?.avail);
        Some(limit(quota).map_or(avail, |limit| avail.min(limit.saturating_sub(quota.used))))
    }
}

/// Asks for what the `wanted` attributes need besides those of the object; `stat` if it is known already.
///
/// # Errors
/// The backend's.
pub(crate) async fn look_up(
    server: &ServerShared,
    fh: &Fh,
    attr: &Attr,
    wanted: &Bitmap,
    stat: Option<FsStat>,
) -> Result<More, Status> {
    let mut more = More { stat, ..More::default() };
    if more.stat.is_none() && needs_statfs(wanted) {
        more.stat = Some(fh.backend().statfs(&fh.user, &fh.handle).await.or_status()?);
    }
    if !wanted.and(&OF_QUOTA).is_empty() && fh.backend().caps().quotas {
        more.quota = Some(fh.backend().quota(&fh.user, &fh.handle, attr.uid).await.or_status()?);
    }
    if server.ids.shows_names() {
        if wanted.contains(a::OWNER) {
            more.owner = server.ids.name(Kind::User, attr.uid).await;
        }
        if wanted.contains(a::OWNER_GROUP) {
            more.group = server.ids.name(Kind::Group, attr.gid).await;
        }
    }
    if wanted.contains(a::ACL) && fh.backend().caps().acls {
        let acl = fh.backend().acl(&fh.user, &fh.handle).await.or_status()?;
        let entries = acl::to_nfs(&acl, attr.kind == FileKind::Directory);
        let mut out = Vec::with_capacity(entries.len());
        for entry in entries {
            out.push(to_wire(server, entry).await);
        }
        more.acl = Some(out);
    }
    Ok(more)
}

/// An entry of a list with its name.
async fn to_wire(server: &ServerShared, entry: acl::Entry) -> Ace {
    let named = async |kind, id| server.ids.name(kind, id).await.unwrap_or_else(|| number_text(id));
    let who = match entry.who {
        Who::Owner => Bytes::from_static(b"OWNER@"),
        Who::OwnerGroup => Bytes::from_static(b"GROUP@"),
        Who::Everyone => Bytes::from_static(b"EVERYONE@"),
        Who::User(uid) => named(Kind::User, uid).await,
        Who::Group(gid) => named(Kind::Group, gid).await,
    };
    Ace { ace_type: entry.kind, flags: entry.flags, mask: entry.mask, who }
}

/// A list that a client sent, as the backend keeps it. `dir`: of a directory.
///
/// # Errors
/// BADOWNER for names that are not known; ATTRNOTSUPP, INVAL: see [`acl::from_nfs`]; ATTRNOTSUPP for special names that
/// mean nothing here (RFC 8881 6.2.1.5).
async fn from_wire(server: &ServerShared, list: &[Ace], dir: bool) -> Result<AclSet, Status> {
    if list.len() > acl::MAX_ACES {
        return Err(Status::ATTRNOTSUPP);
    }
    let mut entries = Vec::with_capacity(list.len());
    for ace in list {
        let who = match &ace.who[..] {
            b"OWNER@" => Who::Owner,
            b"GROUP@" => Who::OwnerGroup,
            b"EVERYONE@" => Who::Everyone,
            special if special.ends_with(b"@") => return Err(Status::ATTRNOTSUPP),
            name if ace.flags & acl::IDENTIFIER_GROUP != 0 => Who::Group(server.ids.number(Kind::Group, name).await?),
            name => Who::User(server.ids.number(Kind::User, name).await?),
        };
        entries.push(acl::Entry { kind: ace.ace_type, flags: ace.flags, mask: ace.mask, who });
    }
    acl::from_nfs(&entries, dir)
}

/// Those of the `wanted` attributes that are supported.
pub(crate) fn collect(server: &ServerShared, minor: u32, object: Object<'_>, wanted: &Bitmap) -> Box<Attrs> {
    let mut out = Box::<Attrs>::default();
    fill(server, minor, object, wanted, &mut out);
    out
}

/// As [`collect`], into `out`, which should be empty.
pub(crate) fn fill(server: &ServerShared, minor: u32, object: Object<'_>, wanted: &Bitmap, out: &mut Attrs) {
    let Object { fh, attr, more } = object;
    let stat = more.stat.as_ref();
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
            a::ACL => out.acl = more.acl.clone(),
            a::ACLSUPPORT => out.aclsupport = Some(if caps.acls { acl::SUPPORT } else { 0 }),
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
            // Nowhere else (RFC 8881 11.16: no locations, and a valid root).
            a::FS_LOCATIONS => {
                out.fs_locations = Some(FsLocations { root: path_of(&export.path), locations: Vec::new() });
            }
            a::HOMOGENEOUS => out.homogeneous = Some(true),
            a::MAXFILESIZE => out.maxfilesize = Some(caps.max_file_size),
            a::MAXLINK => out.maxlink = Some(caps.max_links),
            a::MAXNAME => out.maxname = Some(NAME_MAX as u32),
            a::MAXREAD => out.maxread = Some(server.limits().max_io.into()),
            a::MAXWRITE => out.maxwrite = Some(server.limits().max_io.into()),
            a::MODE => out.mode = Some(attr.mode & 0o7777),
            a::NO_TRUNC => out.no_trunc = Some(true),
            a::NUMLINKS => out.numlinks = Some(attr.nlink),
            a::OWNER => out.owner = Some(more.owner.clone().unwrap_or_else(|| number_text(attr.uid))),
            a::OWNER_GROUP => out.owner_group = Some(more.group.clone().unwrap_or_else(|| number_text(attr.gid))),
            a::QUOTA_AVAIL_HARD => out.quota_avail_hard = more.left(|quota| quota.hard),
            a::QUOTA_AVAIL_SOFT => out.quota_avail_soft = more.left(|quota| quota.soft.or(quota.hard)),
            a::QUOTA_USED => out.quota_used = more.quota.map(|quota| quota.used),
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
            a::SUPPATTR_EXCLCREAT => out.suppattr_exclcreat = Some(exclusive_create(&all)),
            a::FS_CHARSET_CAP => out.fs_charset_cap = Some(CONTAINS_NON_UTF8),
            a::CLONE_BLKSIZE => out.clone_blksize = Some(caps.clone_block),
            a::SPACE_FREED => out.space_freed = Some(if attr.nlink <= 1 { attr.used } else { 0 }),
            a::CHANGE_ATTR_TYPE => {
                let kind = if caps.change_is_time { ChangeAttrType::TIME_METADATA } else { ChangeAttrType::UNDEFINED };
                out.change_attr_type = Some(kind);
            }
            // All data is at hand (RFC 9754).
            a::OFFLINE => out.offline = Some(false),
            a::OPEN_ARGUMENTS => out.open_arguments = Some(open_arguments()),
            a::XATTR_SUPPORT => out.xattr_support = Some(caps.xattrs),
            _ => {}
        }
    }
}

/// The attributes that OPEN with EXCLUSIVE4_1 can set (RFC 8881 18.16.3): those of any create.
pub(crate) fn exclusive_create(all: &Bitmap) -> Bitmap {
    all.and(&SETS).without(a::MODE_SET_MASKED)
}

/// What OPEN understands here (`open_arguments4`, RFC 9754): values of each argument as numbers of bits.
fn open_arguments() -> OpenArguments {
    OpenArguments {
        // OPEN4_SHARE_ACCESS_READ, WRITE, BOTH.
        share_access: Bitmap::of(&[1, 2, 3]),
        share_deny: Bitmap::of(&[0, 1, 2, 3]),
        // WANT_ANY_DELEG, NO_DELEG, CANCEL: honoured, or answered by why not.
        share_access_want: Bitmap::of(&[3, 4, 5]),
        // CLAIM_NULL, PREVIOUS, DELEGATE_CUR, FH, DELEG_CUR_FH.
        open_claim: Bitmap::of(&[0, 1, 2, 4, 5]),
        // UNCHECKED, GUARDED, EXCLUSIVE, EXCLUSIVE4_1.
        create_mode: Bitmap::of(&[0, 1, 2, 3]),
    }
}

/// The path of an export as `pathname4`.
fn path_of(path: &str) -> ByteStrings {
    ByteStrings(path.split('/').filter(|c| !c.is_empty()).map(|c| Bytes::copy_from_slice(c.as_bytes())).collect())
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

/// A number in decimal, as an owner without a name is shown (RFC 8881 5.9).
fn number_text(id: u32) -> Bytes {
    let mut buf = [0; 10];
    let mut rest = &mut buf[..];
    // Ten digits always fit.
    let _ = write!(rest, "{id}");
    let left = rest.len();
    Bytes::copy_from_slice(buf.get(..buf.len() - left).unwrap_or_default())
}

/// What attributes are to be set for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetFor {
    /// A new directory (CREATE).
    CreateDirectory,
    /// Another new object (OPEN, CREATE).
    Create,
    /// One that exists (SETATTR).
    Change(FileKind),
}

/// Permission and set-id bits: all there are (RFC 8881 6.2.4: others are INVAL).
fn mode_bits(mode: u32, all: u32) -> Result<u32, Status> {
    if mode & !all == 0 { Ok(mode) } else { Err(Status::INVAL) }
}

/// The attributes to be set.
///
/// # Errors
/// ATTRNOTSUPP for attributes that are not supported, or readable but not settable here although the protocol has them
/// settable (time_create, case B12), and for access control lists that cannot be kept; INVAL for attributes that can only
/// be read (RFC 8881 5.5), for several modes at once, modes with bits that there are not (6.2.4), a mode_umask outside of
/// creation (RFC 8275 4.2), a mode_set_masked in one (RFC 8881 6.2.5), times with impossible nanoseconds; BADOWNER;
/// BADXDR.
pub(crate) async fn to_set(
    server: &ServerShared,
    export: &Export,
    minor: u32,
    fattr: &Fattr,
    purpose: SetFor,
) -> Result<SetAttr, Status> {
    let mask = fattr.mask;
    if !mask.is_subset(&supported(export, minor)) {
        return Err(Status::ATTRNOTSUPP);
    }
    if !mask.is_subset(&SETS) {
        return Err(if mask.minus(&SETS).is_subset(&a::SETTABLE) { Status::ATTRNOTSUPP } else { Status::INVAL });
    }
    let modes = mask.and(&Bitmap::of(&[a::MODE, a::MODE_SET_MASKED, a::MODE_UMASK]));
    let exists = matches!(purpose, SetFor::Change(_));
    let misplaced = if exists { a::MODE_UMASK } else { a::MODE_SET_MASKED };
    if modes.len() > 1 || mask.contains(misplaced) {
        return Err(Status::INVAL);
    }
    let attrs = fattr.parse()?;
    let mut set = SetAttr { size: attrs.size, ..SetAttr::default() };
    set.mode = attrs.mode.map(|m| mode_bits(m, 0o7777)).transpose()?;
    if let Some(masked) = attrs.mode_set_masked {
        set.mode = Some(mode_bits(masked.value, 0o7777)?);
        set.mode_mask = Some(mode_bits(masked.mask, 0o7777)?);
    }
    if let Some(m) = attrs.mode_umask {
        set.mode = Some(mode_bits(m.mode, 0o7777)?);
        set.umask = Some(mode_bits(m.umask, 0o777)?);
    }
    if let Some(owner) = &attrs.owner {
        set.uid = Some(server.ids.number(Kind::User, owner).await?);
    }
    if let Some(group) = &attrs.owner_group {
        set.gid = Some(server.ids.number(Kind::Group, group).await?);
    }
    if let Some(list) = &attrs.acl {
        let dir = matches!(purpose, SetFor::CreateDirectory | SetFor::Change(FileKind::Directory));
        set.acl = Some(Arc::new(from_wire(server, list, dir).await?));
    }
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
        a::ACL => applied.acl.is_some(),
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
    fn what_is_left_of_a_quota_rfc8881_5_8_2_28() {
        let stat = Some(FsStat { avail: 1000, ..FsStat::default() });
        let more = |used, hard, soft| More { stat, quota: Some(Quota { used, hard, soft }), ..More::default() };
        assert_eq!(more(10, None, None).left(|q| q.hard), Some(1000), "no limit but the filesystem's");
        assert_eq!(more(10, Some(100), None).left(|q| q.hard), Some(90));
        assert_eq!(more(10, Some(5000), None).left(|q| q.hard), Some(1000));
        assert_eq!(more(110, Some(200), Some(100)).left(|q| q.soft), Some(0), "past the soft limit");
        assert_eq!(More::default().left(|q| q.hard), None);
    }

    #[test]
    fn numbers_as_text() {
        for id in [0, 65534, u32::MAX] {
            assert_eq!(number_text(id), id.to_string());
        }
    }

    #[test]
    fn modes_have_twelve_bits_rfc8881_6_2_4() {
        assert_eq!(mode_bits(0o7777, 0o7777), Ok(0o7777));
        assert_eq!(mode_bits(0o10_0644, 0o7777), Err(Status::INVAL));
    }

    #[test]
    fn impossible_nanoseconds_are_refused_case_b18() {
        let t = |secs, nanos| set_time(WireSetTime::Client(NfsTime { secs, nanos }));
        assert_eq!(t(-1, 999_999_999), Ok(SetTime::To(Time { secs: -1, nanos: 999_999_999 })));
        assert_eq!(t(0, 1_000_000_000), Err(Status::INVAL));
    }
}
