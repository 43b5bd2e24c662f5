//! An asynchronous copy: follows its job, keeps the counter that OFFLOAD_STATUS reads, and tells the client.
//!
//! One task per copy owns the ticket. It ends when the copy ended and the client has been told, or cannot be told for
//! as long as the outcome is kept; it is bounded either way. States are those of `dhow_state`'s registry: running, then
//! finished (until the callback is acknowledged and at least for a time), then gone.
//!
//! The callback names the COPY as a referring call, so that a client which sees it before the reply of COPY knows to
//! wait for that (case K05). A client that answers DELAY, or whose connection is gone, is asked again with growing
//! pauses; it may as well poll (cases K02, K03).

use super::job::{Ending, Job};
use crate::callback::{self, CallbackError};
use crate::exports::OpenToken;
use crate::shared::ServerShared;
use dhow_proto::v4::cb::{CbArgOp, CbOffloadArgs, OffloadInfo};
use dhow_proto::v4::ops::WriteResponse;
use dhow_proto::v4::{FileHandle, SessionId, Status};
use dhow_state::CopyTicket;
use std::sync::Arc;
use std::time::Duration;

/// How often the counter is brought up to date.
const PROGRESS_EVERY: Duration = Duration::from_millis(50);

/// Pauses between tries of the callback: the first, and the longest.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MOST: Duration = Duration::from_secs(10);

/// What CB_OFFLOAD says of the COPY it belongs to.
pub(crate) struct Origin {
    /// The destination, as the client knows it.
    pub handle: FileHandle,
    /// Session, sequence id and slot of the COPY.
    pub call: (SessionId, u32, u32),
}

/// Follows `job` to its end in a task of its own.
pub(crate) fn follow(server: Arc<ServerShared>, ticket: CopyTicket<OpenToken>, job: Job, origin: Origin) {
    let run = server.running.start();
    tokio::spawn(async move {
        let (ticket, mut ending) = watch(&server, ticket, job).await;
        if ticket.is_aborted() {
            ending.status = Status::ADMIN_REVOKED;
        }
        // What is left may wait for the client; shutting down need not wait for that.
        drop(run);
        ticket.set_bytes(ending.copied);
        let client = Arc::clone(ticket.client());
        let Some(stateid) = ticket.complete(ending.status, server.now()) else { return };
        let info = match ending.status {
            Status::OK => OffloadInfo::Ok(WriteResponse {
                callback_id: Vec::new(),
                count: ending.copied,
                committed: ending.committed,
                verifier: ending.verifier,
            }),
            status => OffloadInfo::Err { status, bytes_copied: ending.copied },
        };
        let args = CbOffloadArgs { fh: origin.handle, stateid, info };
        let op = CbArgOp::Offload(args);
        let deadline = tokio::time::Instant::now() + server.state.limits().finished_copy_time;
        let mut pause = RETRY_FIRST;
        loop {
            match callback::call(&server, client.id(), Some(origin.call), op.clone()).await {
                Ok(_) => break,
                Err(CallbackError::Refused(Status::DELAY) | CallbackError::NoPath) => {}
                // It says that it does not know the copy (it polled and moved on), or it is gone.
                Err(_) => break,
            }
            if client.is_dying() || tokio::time::Instant::now() + pause > deadline {
                tracing::info!(client = ?client.owner(), "client was not told that its copy ended; it can still ask");
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_MOST);
        }
        server.state.copy_acknowledged(&client, &stateid);
    });
}

async fn watch(server: &ServerShared, ticket: CopyTicket<OpenToken>, mut job: Job) -> (CopyTicket<OpenToken>, Ending) {
    let progress = Arc::clone(&job.progress);
    let mut closing = server.closing.subscribe();
    let ending = {
        let wait = job.wait();
        tokio::pin!(wait);
        loop {
            tokio::select! {
                biased;
                ending = &mut wait => break ending,
                () = ticket.cancelled(), if !progress.cancelled() => progress.cancel(),
                _ = closing.wait_for(|c| *c), if !progress.stopped() => progress.end_slice(),
                () = tokio::time::sleep(PROGRESS_EVERY) => ticket.set_bytes(progress.copied()),
            }
        }
    };
    (ticket, ending)
}
