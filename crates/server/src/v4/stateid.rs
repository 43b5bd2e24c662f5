//! From a stateid to the right to read or write.

use super::{Fh, OpCx};
use crate::exports::OpenToken;
use crate::way::Way;
use dhow_proto::v4::{Stateid, Status};
use dhow_state::{IoKind, IoToken, Refused, State};
use dhow_vfs::IoRef;
use std::sync::Arc;

/// The right to do I/O on a file, until dropped: while it lives the state it rests on is not freed.
#[derive(Debug)]
pub(crate) struct Grant {
    fh: Fh,
    token: IoToken<OpenToken>,
}

impl Grant {
    /// The file, for the backend.
    pub fn io(&self) -> IoRef<'_> {
        IoRef { handle: &self.fh.handle, open: self.token.open().map(|t| &t.file) }
    }

    /// The filehandle.
    pub fn fh(&self) -> &Fh {
        &self.fh
    }
}

/// Checks `stateid` for I/O of `kind` on `fh` (RFC 8881 8.2.2, 9.1.2): access mode, share reservations of others for
/// special stateids, the grace period. Waits a little for what stands in the way; the caller holds no gate and no lock.
///
/// # Errors
/// BAD_STATEID, OLD_STATEID, DELEG_REVOKED, OPENMODE, LOCKED, GRACE, DELAY.
pub(crate) async fn grant(cx: &OpCx, fh: &Fh, stateid: Stateid, kind: IoKind) -> Result<Grant, Status> {
    let mut way = Way::default();
    loop {
        match try_grant(cx, fh, stateid, kind) {
            Ok(grant) => return Ok(grant),
            Err(refused) => way.clear(&cx.server, refused).await?,
        }
    }
}

/// As [`grant`], without the wait: for who holds a gate.
///
/// # Errors
/// As [`grant`], or what stands in the way.
pub(crate) fn try_grant(cx: &OpCx, fh: &Fh, stateid: Stateid, kind: IoKind) -> Result<Grant, Refused> {
    let stateid = cx.state_arg(stateid)?;
    let token = cx.server.state.begin_io(cx.client()?, &fh.key(), &stateid, kind, cx.server.now())?;
    Ok(Grant { fh: fh.clone(), token })
}

/// As [`grant`], for READ, READ_PLUS and SEEK, which alone honour copy-notify stateids: those come from another server,
/// and the reading is done in the name of who sent COPY_NOTIFY (RFC 7862 4.10, 15.3).
///
/// # Errors
/// Those of [`grant`]; PARTNER_NO_AUTH for a server that is not the destination.
pub(crate) async fn grant_read(cx: &OpCx, fh: &Fh, stateid: Stateid) -> Result<Grant, Status> {
    if !cx.server.copy().inter.enabled || !State::<OpenToken>::is_copy_notify(&stateid) {
        return grant(cx, fh, stateid, IoKind::Read).await;
    }
    let token = cx.server.state.notify_io(&fh.key(), &stateid, cx.server.now())?;
    let notified = token.behalf().ok_or(Status::SERVERFAULT)?;
    let behalf = notified.behalf.as_ref().ok_or(Status::SERVERFAULT)?;
    behalf.check(&cx.server, cx.caller.peer)?;
    let (export, handle) = (Arc::clone(&notified.export), notified.handle.clone());
    let fh = Fh { export, handle, user: Arc::clone(&behalf.user) };
    Ok(Grant { fh, token })
}
