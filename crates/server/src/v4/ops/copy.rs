//! COPY (RFC 7862 15.2): copies between the saved and the current file of this server. See `crate::copy`.

use crate::copy::job::{Ending, Job};
use crate::copy::mover::{Range, Side};
use crate::copy::offload::{self, Origin};
use crate::copy::{CommitPolicy, CopyConfig};
use crate::errmap::status;
use crate::v4::stateid::{Grant, grant};
use crate::v4::{Fh, OpCx};
use dhow_proto::v4::ops::{CopyArgs, CopyOk, CopyRequirements, CopyRes, WriteResponse};
use dhow_proto::v4::{FileHandle, StableHow, Status, Verifier};
use dhow_state::IoKind;
use dhow_vfs::FileKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) async fn run(cx: &OpCx, args: &CopyArgs) -> CopyRes {
    copy(cx, args).await.map_or_else(CopyRes::Err, CopyRes::Ok)
}

async fn copy(cx: &OpCx, args: &CopyArgs) -> Result<CopyOk, Status> {
    if !args.source_server.is_empty() {
        return super::copy_inter::copy(cx, args).await;
    }
    let (src, dst) = (cx.saved()?.clone(), cx.current()?.clone());
    let size = regular_size(&src).await?;
    regular_size(&dst).await?;
    if src.key() == dst.key() {
        return Err(Status::INVAL);
    }
    let src_grant = grant(cx, &src, args.src_stateid, IoKind::Read).await?;
    let dst_grant = grant(cx, &dst, args.dst_stateid, IoKind::Write).await?;
    let range = range(args, size, &cx.server.copy())?;
    let verifier = Verifier(dst.backend().write_verifier());
    if range.len == 0 {
        return Ok(done(0, StableHow::FILE_SYNC, verifier));
    }
    let ends = (side(&src, &src_grant), side(&dst, &dst_grant));
    let gone_async = Arc::new(AtomicBool::new(false));
    let mut job = Job::spawn(ends.0, ends.1, range, durable(cx, &dst, &gone_async));
    let budget = cx.server.copy().sync_budget;
    if let Ok(ending) = tokio::time::timeout(budget, job.wait()).await {
        return reply(ending);
    }
    // Longer than a call should take: an asynchronous copy, if the client can be told of its end and has not too many.
    let session = cx.slot.as_ref().map(|s| (s.session(), s.call_id())).filter(|(s, _)| s.has_callback_path());
    if let (false, Some((_, call))) = (args.synchronous, session)
        && let Some(ticket) = cx.server.state.copy_begin(cx.client()?)
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

/// Size of a regular file.
///
/// # Errors
/// WRONG_TYPE for anything else, the backend's errors.
pub(super) async fn regular_size(fh: &Fh) -> Result<u64, Status> {
    let attr = match fh.backend().try_getattr(&fh.user, &fh.handle) {
        Some(attr) => attr,
        None => fh.backend().getattr(&fh.user, &fh.handle).await,
    };
    let attr = attr.map_err(|e| status(&e))?;
    if attr.kind == FileKind::Regular { Ok(attr.size) } else { Err(Status::WRONG_TYPE) }
}

/// The range to copy, cut at the source's end or refused if it crosses that.
pub(super) fn range(args: &CopyArgs, size: u64, config: &CopyConfig) -> Result<Range, Status> {
    let room = size.saturating_sub(args.src_offset);
    let past = args.src_offset > size || args.count > room;
    if past && config.strict_eof {
        return Err(Status::INVAL);
    }
    let len = if args.count == 0 { room } else { args.count.min(room) };
    if args.src_offset.checked_add(args.count).is_none() || args.dst_offset.checked_add(len).is_none() {
        return Err(Status::INVAL);
    }
    // Where no durable end is to come the storage is left alone: the copy itself would be slower for it.
    let write_out = match config.commit {
        CommitPolicy::Always => true,
        CommitPolicy::Never => false,
        CommitPolicy::Auto => !args.synchronous || len == room,
    };
    Ok(Range { src_offset: args.src_offset, dst_offset: args.dst_offset, len, write_out })
}

pub(super) fn side(fh: &Fh, grant: &Grant) -> Side {
    Side {
        backend: Arc::clone(fh.backend()),
        cx: (*fh.user).clone(),
        handle: fh.handle.clone(),
        open: grant.io().open.cloned(),
    }
}

/// Whether the end of this copy is to be made durable, asked when the last byte is in place.
pub(super) fn durable(cx: &OpCx, dst: &Fh, gone_async: &Arc<AtomicBool>) -> impl FnOnce(bool) -> bool + Send + 'static {
    let policy = cx.server.copy().commit;
    let on_file = cx.server.copies_on.enter(dst.key());
    let gone_async = Arc::clone(gone_async);
    move |reached_end| match policy {
        CommitPolicy::Always => true,
        CommitPolicy::Never => false,
        CommitPolicy::Auto => reached_end || gone_async.load(Ordering::Acquire) && on_file.alone(),
    }
}

/// The reply of a copy that ended. After some bytes an error waits for the next try: the client must learn what is
/// already there.
pub(super) fn reply(ending: Ending) -> Result<CopyOk, Status> {
    if !ending.status.is_ok() && ending.copied == 0 {
        return Err(ending.status);
    }
    let committed = if ending.status.is_ok() { ending.committed } else { StableHow::UNSTABLE };
    Ok(done(ending.copied, committed, ending.verifier))
}

pub(super) fn done(count: u64, committed: StableHow, verifier: Verifier) -> CopyOk {
    CopyOk {
        response: WriteResponse { callback_id: Vec::new(), count, committed, verifier },
        requirements: CopyRequirements { consecutive: true, synchronous: true },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dhow_proto::v4::Stateid;

    fn args(src_offset: u64, dst_offset: u64, count: u64) -> CopyArgs {
        CopyArgs {
            src_stateid: Stateid::ANONYMOUS,
            dst_stateid: Stateid::ANONYMOUS,
            src_offset,
            dst_offset,
            count,
            consecutive: false,
            synchronous: true,
            source_server: Vec::new(),
        }
    }

    #[test]
    fn ranges_case_b34() {
        let lax = CopyConfig::default();
        let strict = CopyConfig { strict_eof: true, ..CopyConfig::default() };
        let len = |a: CopyArgs, c: &CopyConfig| range(&a, 100, c).map(|r| r.len);
        assert_eq!(len(args(0, 0, 0), &strict), Ok(100));
        assert_eq!(len(args(40, 0, 0), &strict), Ok(60));
        assert_eq!(len(args(40, 0, 60), &strict), Ok(60));
        assert_eq!(len(args(100, 0, 0), &strict), Ok(0));
        assert_eq!(len(args(40, 0, 61), &strict), Err(Status::INVAL));
        assert_eq!(len(args(101, 0, 0), &strict), Err(Status::INVAL));
        assert_eq!(len(args(40, 0, 61), &lax), Ok(60));
        assert_eq!(len(args(101, 0, 5), &lax), Ok(0));
        assert_eq!(len(args(u64::MAX, 0, 2), &lax), Err(Status::INVAL));
        assert_eq!(len(args(0, u64::MAX, 2), &lax), Err(Status::INVAL));
    }

    /// One of many parts, or one that the client commits: nothing is written out meanwhile.
    #[test]
    fn what_ends_durably_is_written_out() {
        let out = |commit, synchronous, count| {
            let config = CopyConfig { commit, ..CopyConfig::default() };
            range(&CopyArgs { synchronous, ..args(40, 0, count) }, 100, &config).unwrap().write_out
        };
        for (synchronous, count, auto) in [(true, 0, true), (true, 60, true), (true, 59, false), (false, 59, true)] {
            assert_eq!(out(CommitPolicy::Auto, synchronous, count), auto);
            assert!(out(CommitPolicy::Always, synchronous, count));
            assert!(!out(CommitPolicy::Never, synchronous, count));
        }
    }

    #[test]
    fn an_error_after_some_bytes_waits() {
        let ending =
            |status, copied| Ending { status, copied, committed: StableHow::FILE_SYNC, verifier: Verifier([1; 8]) };
        assert_eq!(reply(ending(Status::NOSPC, 0)), Err(Status::NOSPC));
        let ok = reply(ending(Status::NOSPC, 5)).unwrap();
        assert_eq!((ok.response.count, ok.response.committed), (5, StableHow::UNSTABLE));
        let ok = reply(ending(Status::OK, 5)).unwrap();
        assert_eq!((ok.response.count, ok.response.committed), (5, StableHow::FILE_SYNC));
    }
}
