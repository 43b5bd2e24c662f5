//! Short forms of operations.

use bytes::Bytes;
use dhow_proto::v4::ops::{
    self, CreateHow, CreateType, DataContent, ExistLockOwner, Locker, OpenClaim, OpenHow, OpenToLockOwner,
};
use dhow_proto::v4::{
    ArgOp, Attrs, Bitmap, ChangeInfo, ClientId, Fattr, FileHandle, LockType, SessionId, StableHow, StateOwner, Stateid,
    Verifier,
};

fn bytes(b: impl AsRef<[u8]>) -> Bytes {
    Bytes::copy_from_slice(b.as_ref())
}

/// PUTROOTFH.
pub fn root() -> ArgOp {
    ArgOp::PutRootFh
}

/// PUTFH.
pub fn put(fh: &FileHandle) -> ArgOp {
    ArgOp::PutFh(ops::PutFhArgs { object: fh.clone() })
}

/// GETFH.
pub fn getfh() -> ArgOp {
    ArgOp::GetFh
}

/// LOOKUP.
pub fn lookup(name: impl AsRef<[u8]>) -> ArgOp {
    ArgOp::Lookup(ops::LookupArgs { name: bytes(name) })
}

/// GETATTR of these attributes.
pub fn getattr(bits: &[u32]) -> ArgOp {
    ArgOp::Getattr(ops::GetattrArgs { attr_request: Bitmap::of(bits) })
}

/// SETATTR under the anonymous stateid.
pub fn setattr(attrs: Attrs) -> ArgOp {
    setattr_with(Stateid::ANONYMOUS, attrs)
}

/// SETATTR.
pub fn setattr_with(stateid: Stateid, attrs: Attrs) -> ArgOp {
    ArgOp::Setattr(ops::SetattrArgs { stateid, attrs: attrs.into() })
}

/// ACCESS.
pub fn access(bits: u32) -> ArgOp {
    ArgOp::Access(ops::AccessArgs { access: bits })
}

/// CREATE of a directory.
pub fn mkdir(name: impl AsRef<[u8]>) -> ArgOp {
    create(CreateType::Dir, name, Attrs { mode: Some(0o755), ..Attrs::default() })
}

/// CREATE.
pub fn create(kind: CreateType, name: impl AsRef<[u8]>, attrs: Attrs) -> ArgOp {
    ArgOp::Create(ops::CreateArgs { kind, name: bytes(name), attrs: attrs.into() })
}

/// REMOVE.
pub fn remove(name: impl AsRef<[u8]>) -> ArgOp {
    ArgOp::Remove(ops::RemoveArgs { target: bytes(name) })
}

/// RENAME from the saved to the current filehandle.
pub fn rename(old: impl AsRef<[u8]>, new: impl AsRef<[u8]>) -> ArgOp {
    ArgOp::Rename(ops::RenameArgs { old_name: bytes(old), new_name: bytes(new) })
}

/// LINK of the saved into the current filehandle.
pub fn link(name: impl AsRef<[u8]>) -> ArgOp {
    ArgOp::Link(ops::LinkArgs { new_name: bytes(name) })
}

/// READDIR with no attributes but `bits`.
pub fn readdir(cookie: u64, verifier: Verifier, maxcount: u32, bits: &[u32]) -> ArgOp {
    let attr_request = Bitmap::of(bits);
    ArgOp::Readdir(ops::ReaddirArgs { cookie, verifier, dircount: maxcount, maxcount, attr_request })
}

/// READ.
pub fn read(stateid: Stateid, offset: u64, count: u32) -> ArgOp {
    ArgOp::Read(ops::ReadArgs { stateid, offset, count })
}

/// WRITE.
pub fn write(stateid: Stateid, offset: u64, stable: StableHow, data: impl AsRef<[u8]>) -> ArgOp {
    ArgOp::Write(ops::WriteArgs { stateid, offset, stable, data: bytes(data) })
}

/// COMMIT.
pub fn commit(offset: u64, count: u32) -> ArgOp {
    ArgOp::Commit(ops::CommitArgs { offset, count })
}

/// An open-owner or lock-owner.
pub fn owner(client: ClientId, owner: impl AsRef<[u8]>) -> StateOwner {
    StateOwner { client, owner: bytes(owner) }
}

/// OPEN.
pub fn open(owner: StateOwner, access: u32, deny: u32, how: OpenHow, claim: OpenClaim) -> ArgOp {
    ArgOp::Open(ops::OpenArgs { seqid: 0, share_access: access, share_deny: deny, owner, how, claim })
}

/// OPEN of a file that is there, by name.
pub fn open_name(owner: StateOwner, access: u32, deny: u32, name: impl AsRef<[u8]>) -> ArgOp {
    open(owner, access, deny, OpenHow::NoCreate, OpenClaim::Null(bytes(name)))
}

/// OPEN that creates the file if need be, with a mode.
pub fn open_create(owner: StateOwner, access: u32, deny: u32, name: impl AsRef<[u8]>, mode: u32) -> ArgOp {
    let attrs = Fattr::from(Attrs { mode: Some(mode), ..Attrs::default() });
    open(owner, access, deny, OpenHow::Create(CreateHow::Unchecked(attrs)), OpenClaim::Null(bytes(name)))
}

/// CLOSE.
pub fn close(stateid: Stateid) -> ArgOp {
    ArgOp::Close(ops::CloseArgs { seqid: 0, open_stateid: stateid })
}

/// OPEN_DOWNGRADE.
pub fn downgrade(stateid: Stateid, access: u32, deny: u32) -> ArgOp {
    let (share_access, share_deny) = (access, deny);
    ArgOp::OpenDowngrade(ops::OpenDowngradeArgs { open_stateid: stateid, seqid: 0, share_access, share_deny })
}

/// LOCK by a lock-owner that has none in this file yet.
pub fn lock_new(open: Stateid, owner: StateOwner, kind: LockType, offset: u64, length: u64) -> ArgOp {
    let new = OpenToLockOwner { open_seqid: 0, open_stateid: open, lock_seqid: 0, lock_owner: owner };
    ArgOp::Lock(ops::LockArgs { lock_type: kind, reclaim: false, offset, length, locker: Locker::New(new) })
}

/// LOCK by a lock-owner that has some.
pub fn lock_more(lock: Stateid, kind: LockType, offset: u64, length: u64) -> ArgOp {
    let locker = Locker::Existing(ExistLockOwner { lock_stateid: lock, lock_seqid: 0 });
    ArgOp::Lock(ops::LockArgs { lock_type: kind, reclaim: false, offset, length, locker })
}

/// LOCKT.
pub fn lockt(owner: StateOwner, kind: LockType, offset: u64, length: u64) -> ArgOp {
    ArgOp::Lockt(ops::LocktArgs { lock_type: kind, offset, length, owner })
}

/// LOCKU.
pub fn locku(lock: Stateid, offset: u64, length: u64) -> ArgOp {
    ArgOp::Locku(ops::LockuArgs { lock_type: LockType::WRITE, seqid: 0, lock_stateid: lock, offset, length })
}

/// SEEK for data, or for a hole.
pub fn seek(stateid: Stateid, offset: u64, what: DataContent) -> ArgOp {
    ArgOp::Seek(ops::SeekArgs { stateid, offset, what })
}

/// CLONE from the saved to the current filehandle.
pub fn clone(src: Stateid, dst: Stateid, src_offset: u64, dst_offset: u64, count: u64) -> ArgOp {
    ArgOp::Clone(ops::CloneArgs { src_stateid: src, dst_stateid: dst, src_offset, dst_offset, count })
}

/// COPY within the server from the saved to the current filehandle.
pub fn copy(src: Stateid, dst: Stateid, offsets: (u64, u64), count: u64, synchronous: bool) -> ArgOp {
    ArgOp::Copy(ops::CopyArgs {
        src_stateid: src,
        dst_stateid: dst,
        src_offset: offsets.0,
        dst_offset: offsets.1,
        count,
        consecutive: true,
        synchronous,
        source_server: Vec::new(),
    })
}

/// OFFLOAD_STATUS.
pub fn offload_status(stateid: Stateid) -> ArgOp {
    ArgOp::OffloadStatus(ops::OffloadArgs { stateid })
}

/// OFFLOAD_CANCEL.
pub fn offload_cancel(stateid: Stateid) -> ArgOp {
    ArgOp::OffloadCancel(ops::OffloadArgs { stateid })
}

/// DESTROY_SESSION.
pub fn destroy_session(session_id: SessionId) -> ArgOp {
    ArgOp::DestroySession(ops::DestroySessionArgs { session_id })
}

/// DESTROY_CLIENTID.
pub fn destroy_client(client_id: ClientId) -> ArgOp {
    ArgOp::DestroyClientid(ops::DestroyClientidArgs { client_id })
}

/// Whether a change_info4 is of a change.
pub fn changed(c: &ChangeInfo) -> bool {
    c.before != c.after
}
