//! From a stateid to the right to read or write.

use super::{Fh, OpCx};
use crate::exports::OpenToken;
use dhow_proto::v4::{Stateid, Status};
use dhow_state::{IoKind, IoToken, Refused};
use dhow_vfs::IoRef;

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
/// BAD_STATEID, OLD_STATEID, OPENMODE, LOCKED, GRACE, DELAY.
pub(crate) async fn grant(cx: &OpCx, fh: &Fh, stateid: Stateid, kind: IoKind) -> Result<Grant, Status> {
    let stateid = cx.state_arg(stateid)?;
    let (client, state) = (cx.client()?, &cx.server.state);
    let key = fh.key();
    // Each round retires one client whose lease has ended; more than a few in the way of one file is no good reason to
    // keep a request waiting.
    for _ in 0..COURTESY_ROUNDS {
        match state.begin_io(client, &key, &stateid, kind, cx.server.now()) {
            Ok(token) => return Ok(Grant { fh: fh.clone(), token }),
            Err(Refused::Status(status)) => return Err(status),
            Err(Refused::Courtesy(id)) => cx.server.clear_the_way(id).await?,
        }
    }
    Err(Status::DELAY)
}
