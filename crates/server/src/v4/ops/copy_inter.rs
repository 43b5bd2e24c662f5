//! COPY from another server (RFC 7862 4.6 to 4.10, 15.2): the saved filehandle means something there, the current one
//! here. See `crate::copy::partners` and `crate::copy::pull`.
//!
//! Every such copy counts as running from its start, also while its COPY has not been answered: above the limits the
//! answer is DELAY before anything is sent to the source.

use super::copy::{done, durable, range, regular_size, reply, side};
use crate::copy::job::Job;
use crate::copy::offload::{self, Origin};
use crate::copy::partners;
use crate::copy::pull::{Pull, client_status};
use crate::copy::source::{SourceFailure, SourceFile};
use crate::metrics::count;
use crate::v4::OpCx;
use crate::v4::stateid::grant;
use dhow_proto::v4::ops::{CopyArgs, CopyOk};
use dhow_proto::v4::{FileHandle, StableHow, Status, Verifier};
use dhow_rpc::OpaqueAuth;
use dhow_state::IoKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) async fn copy(cx: &OpCx, args: &CopyArgs) -> Result<CopyOk, Status> {
    let copy = cx.server.copy();
    let inter = &copy.inter;
    if !inter.enabled || inter.connector.is_none() {
        return Err(Status::NOTSUPP);
    }
    let handle = cx.saved_wire()?;
    let dst = cx.current()?.clone();
    regular_size(&dst).await?;
    let grant = grant(cx, &dst, args.dst_stateid, IoKind::Write).await?;
    // A special stateid, or the current one, means nothing to the other server.
    if args.src_stateid.is_special() {
        return Err(Status::BAD_STATEID);
    }
    let limits = cx.server.state.limits();
    if limits.copies == 0 || limits.copies_per_client == 0 {
        // None are wanted: coming again would not help.
        return Err(Status::OFFLOAD_DENIED);
    }
    let Some(ticket) = cx.server.state.copy_begin(cx.client()?) else {
        count(&cx.server.metrics.inter.copy_limit_hits);
        return Err(Status::DELAY);
    };
    let ticket = Unanswered { cx, ticket: Some(ticket) };
    let (source, addr) = partners::reach(&cx.server, &args.source_server).await?;
    let credential = OpaqueAuth { flavor: cx.caller.flavor, body: cx.caller.body.clone() };
    let file = SourceFile { handle, stateid: args.src_stateid, credential };
    let looked = tokio::time::timeout(inter.source_connect, source.connection().attributes(&file)).await;
    let attr = match looked.unwrap_or_else(|_| Err(SourceFailure::Lost("no answer".into()))) {
        Ok(attr) => attr,
        Err(failure) => {
            tracing::info!(%addr, ?failure, "cannot look at the source of a copy");
            if matches!(failure, SourceFailure::Lost(_)) {
                source.broken();
            }
            return Err(client_status(&failure, 0));
        }
    };
    if !attr.regular {
        return Err(Status::WRONG_TYPE);
    }
    let range = range(args, attr.size, &copy)?;
    let verifier = Verifier(dst.backend().write_verifier());
    if range.len == 0 {
        return Ok(done(0, StableHow::FILE_SYNC, verifier));
    }
    count(&cx.server.metrics.inter.copies);
    let sparse = attr.used.is_none_or(|used| used < attr.size);
    let gone_async = Arc::new(AtomicBool::new(false));
    let pull = Pull { server: Arc::clone(&cx.server), source, file, sparse, range };
    let mut job = Job::pull(pull, side(&dst, &grant), attr.size, durable(cx, &dst, &gone_async));
    if let Ok(ending) = tokio::time::timeout(copy.sync_budget, job.wait()).await {
        return reply(ending);
    }
    let session = cx.slot.as_ref().map(|s| (s.session(), s.call_id())).filter(|(s, _)| s.has_callback_path());
    if let (false, Some((_, call))) = (args.synchronous, session)
        && let Some(ticket) = ticket.keep()
    {
        gone_async.store(true, Ordering::Release);
        let stateid = ticket.stateid();
        let handle = FileHandle(cx.wire_handle(dst.export.place, &dst.handle));
        offload::follow(Arc::clone(&cx.server), ticket, job, Origin { handle, call });
        let mut ok = done(0, StableHow::UNSTABLE, verifier);
        ok.response.callback_id.push(stateid);
        ok.requirements.synchronous = false;
        return Ok(ok);
    }
    job.progress.end_slice();
    reply(job.wait().await)
}

/// The ticket of a copy that may yet be answered at once; then nobody ever hears of its stateid.
struct Unanswered<'a> {
    cx: &'a OpCx,
    ticket: Option<dhow_state::CopyTicket<crate::exports::OpenToken>>,
}

impl Unanswered<'_> {
    /// It goes on after the answer.
    fn keep(mut self) -> Option<dhow_state::CopyTicket<crate::exports::OpenToken>> {
        self.ticket.take()
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            let _ = self.cx.server.state.copy_cancel(ticket.client(), &ticket.stateid());
        }
    }
}
