//! What LOCK, LOCKT and LOCKU share.

use super::getattr;
use crate::v4::OpCx;
use dhow_proto::v4::ops::LockDenied;
use dhow_proto::v4::{LockType, StateOwner, Status};
use dhow_state::{Held, LockKind, OwnerKey, Range};
use dhow_vfs::LockRange;

/// Blocking and other locks are the same (RFC 8881 9.6).
pub(super) fn kind_of(t: LockType) -> Result<LockKind, Status> {
    match t {
        LockType::READ | LockType::READW => Ok(LockKind::Read),
        LockType::WRITE | LockType::WRITEW => Ok(LockKind::Write),
        _ => Err(Status::INVAL),
    }
}

pub(super) fn backend_range(range: Range, kind: LockKind) -> (LockRange, dhow_vfs::LockKind) {
    let (offset, len) = range.offset_length();
    let kind = match kind {
        LockKind::Read => dhow_vfs::LockKind::Read,
        LockKind::Write => dhow_vfs::LockKind::Write,
    };
    (LockRange { offset, len }, kind)
}

pub(super) fn denied(held: &Held<OwnerKey>) -> LockDenied {
    let (offset, length) = held.range.offset_length();
    LockDenied {
        offset,
        length,
        lock_type: match held.kind {
            LockKind::Read => LockType::READ,
            LockKind::Write => LockType::WRITE,
        },
        owner: StateOwner { client: held.owner.client, owner: held.owner.owner.clone() },
    }
}

/// A lock of somebody beyond this server: a local program. Its owner has no name in the protocol.
pub(super) fn denied_beyond((range, kind): (LockRange, dhow_vfs::LockKind)) -> LockDenied {
    LockDenied {
        offset: range.offset,
        length: range.len,
        lock_type: match kind {
            dhow_vfs::LockKind::Read => LockType::READ,
            dhow_vfs::LockKind::Write => LockType::WRITE,
        },
        owner: StateOwner { client: Default::default(), owner: Default::default() },
    }
}

/// The status for a current filehandle that is no regular file; `None` if it is one (RFC 8881 18.10.3).
pub(super) async fn wrong_type(cx: &OpCx) -> Option<Status> {
    let fh = cx.current().ok()?;
    match fh.backend().getattr(&fh.user, &fh.handle).await {
        Ok(attr) => getattr::regular(attr.kind).err(),
        Err(e) => Some(crate::errmap::status(&e)),
    }
}
