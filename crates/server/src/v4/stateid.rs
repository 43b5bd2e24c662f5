//! From a stateid to the right to read or write.

use super::{Fh, OpCx};
use crate::deleg::ReturnWait;
use crate::exports::OpenToken;
use dhow_proto::v4::{Stateid, Status};
use dhow_state::{IoKind, IoToken, Refused, State};
use dhow_vfs::IoRef;
use std::sync::Arc;

/// Ended clients that one request may have to retire before it answers DELAY.
const COURTESY_ROUNDS: u32 = 8;

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
/// special stateids, the grace period.
///
/// # Errors
/// BAD_STATEID, OLD_STATEID, DELEG_REVOKED, OPENMODE, LOCKED, GRACE, DELAY.
pub(crate) async fn grant(cx: &OpCx, fh: &Fh, stateid: Stateid, kind: IoKind) -> Result<Grant, Status> {
    let stateid = cx.state_arg(stateid)?;
    let (client, state) = (cx.client()?, &cx.server.state);
    let key = fh.key();
    // Each round retires one client whose lease has ended; more than a few in the way of one file is no good reason to
    // keep a request waiting.
    let mut returned = ReturnWait::default();
    let mut rounds = 0;
    while rounds < COURTESY_ROUNDS {
        match state.begin_io(client, &key, &stateid, kind, cx.server.now()) {
            Ok(token) => return Ok(Grant { fh: fh.clone(), token }),
            Err(Refused::Status(status)) => return Err(status),
            Err(Refused::Courtesy(id)) => {
                rounds += 1;
                cx.server.clear_the_way(id).await?;
            }
            Err(Refused::Delegated(recalls)) => returned.wait(&cx.server, recalls).await?,
        }
    }
    Err(Status::DELAY)
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
