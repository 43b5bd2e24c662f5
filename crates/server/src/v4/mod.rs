//! NFS version 4, minor versions 1 and 2.
//!
//! * [`compound`]: the loop over the operations of a COMPOUND: position rules, limits, statuses, the reply.
//! * [`cx`]: what operations of one COMPOUND share: the current and saved filehandle and stateid, the caller, the
//!   session.
//! * [`ops`]: one operation, one file. Each has one function `run(cx, args) -> result`, with argument and result types
//!   of `dhow_proto::v4::ops`. To add one: write the file, add a line to the dispatch in `compound.rs`.
//! * [`name_locks`]: what operations that change names hold meanwhile.
//! * [`state_cx`]: what operations on opens and locks share; [`stateid`]: from a stateid to the right to read or write.

pub(crate) mod compound;
pub(crate) mod cx;
pub(crate) mod name_locks;
pub(crate) mod ops;
pub(crate) mod state_cx;
pub(crate) mod stateid;

pub(crate) use cx::{Fh, OpCx};

/// Result of most operations.
pub(crate) type OpResult<T> = Result<T, dhow_proto::v4::Status>;

/// A directory's change attribute around an update, on the wire.
pub(crate) fn change_info(change: dhow_vfs::DirChange) -> dhow_proto::v4::ChangeInfo {
    let dhow_vfs::DirChange { before, after, atomic } = change;
    dhow_proto::v4::ChangeInfo { atomic, before, after }
}
