//! From a stateid to the right to read or write.

use super::OpCx;
use dhow_proto::v4::{Stateid, Status};
use dhow_vfs::OpenFile;
use std::any::Any;

/// What an operation is about to do with a file's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Io {
    /// READ, READ_PLUS, SEEK.
    Read,
    /// WRITE, SETATTR of size, ALLOCATE, DEALLOCATE.
    Write,
}

/// The right to do I/O on the current file, until dropped: while it lives the state behind it is not freed.
pub(crate) struct Grant {
    /// The open the I/O runs under; `None` for special stateids (permissions are then checked at the call).
    pub open: Option<OpenFile>,
    /// Keeps the state from being freed.
    pub _hold: Option<Box<dyn Any + Send>>,
}

/// Checks `stateid` (after [`OpCx::resolve`]) for I/O of kind `io` on the current filehandle (RFC 8881 8.2.2, 9.1.2):
/// access mode, share reservations of others for special stateids, the grace period.
///
/// # Errors
/// BAD_STATEID, OLD_STATEID, OPENMODE, LOCKED, GRACE, EXPIRED...
pub(crate) async fn grant(cx: &OpCx, stateid: Stateid, _io: Io) -> Result<Grant, Status> {
    match cx.resolve(stateid)? {
        Stateid::ANONYMOUS | Stateid::READ_BYPASS => Ok(Grant { open: None, _hold: None }),
        _ => Err(Status::BAD_STATEID),
    }
}
