//! The loop over the operations of a COMPOUND (RFC 8881 16.2).
//!
//! The operation table says where an operation may stand and which statuses it may return; nothing here or in the
//! operations repeats it.

use super::cx::{OpCx, Request};
use super::ops;
use crate::conn::ConnCx;
use crate::cred::Caller;
use crate::dispatch::Answer;
use crate::metrics::count;
use crate::shared::ServerShared;
use bytes::Bytes;
use dhow_net::Charge;
use dhow_proto::v4::optable::{self, OpInfo, Position};
use dhow_proto::v4::{CompoundHeader, OpNum, OpRes, ResOp, Status};
use dhow_state::{Reply, Sequence};
use dhow_xdr::{Decode, Encode, Mark, Reader, Writer};
use futures_util::FutureExt;
use siphasher::sip::SipHasher13;
use std::hash::Hasher;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

/// Minor versions served.
const MINORS: std::ops::RangeInclusive<u32> = 1..=2;

/// An operation number and a status: what a result takes at least.
pub(crate) const BARE: usize = 8;

/// Bytes at each end of a request that its digest covers.
const DIGEST_ENDS: usize = 1024;

/// Executes a COMPOUND: `r` stands after the RPC header, `out` holds that of the reply. `None` if the arguments do not
/// decode at all (GARBAGE_ARGS).
pub(crate) async fn run(
    server: &Arc<ServerShared>,
    conn: &Arc<ConnCx>,
    caller: Caller,
    mut r: Reader,
    record_len: usize,
    mut out: Writer,
) -> Option<Answer> {
    let rpc_header = out.mark();
    let header = CompoundHeader::decode(&mut r).ok()?;
    let digest = digest(&server.identity.handle_key, &header, &r, &caller);
    let status_at = out.placeholder();
    out.opaque(&header.tag);
    let count_at = out.placeholder();
    let request = Request { len: record_len, ops: header.numops, digest };
    let mut cx = OpCx::new(Arc::clone(server), Arc::clone(conn), caller, header.minorversion, request);
    let mut status = Status::OK;
    let mut results = 0;
    if !MINORS.contains(&header.minorversion) {
        status = Status::MINOR_VERS_MISMATCH;
    }
    while status.is_ok() && results < header.numops {
        cx.index = results;
        match step(&mut cx, &mut r, &mut out).await {
            Step::Done(s) => status = s,
            Step::Replay(reply) => {
                out.truncate(rpc_header);
                let mut segments = out.into_segments();
                segments.extend(reply.iter().cloned());
                return Some(Answer { segments, charge: Charge::none() });
            }
        }
        results += 1;
    }
    out.patch_u32(status_at, status.0);
    out.patch_u32(count_at, results);
    let segments = out.into_segments();
    if let Some(slot) = cx.slot.take() {
        let reply = if slot.cache_this() { without(&segments, rpc_header) } else { Reply::from([]) };
        // Before the reply leaves: the client may use the slot again as soon as it has it.
        slot.complete(reply, server.now());
    }
    Some(Answer { segments, charge: cx.charge.take().unwrap_or_default() })
}

/// The COMPOUND result alone, to be kept: a copy of its own, since a slice of a large buffer would keep all of that.
fn without(segments: &[Bytes], rpc_header: Mark) -> Reply {
    let mut all = Vec::with_capacity(segments.iter().map(Bytes::len).sum());
    segments.iter().for_each(|s| all.extend_from_slice(s));
    all.drain(..rpc_header.offset().min(all.len()));
    all.shrink_to_fit();
    Reply::from([Bytes::from(all)])
}

enum Step {
    Done(Status),
    Replay(Reply),
}

/// One operation: reads it, executes it, writes its result.
async fn step(cx: &mut OpCx, r: &mut Reader, out: &mut Writer) -> Step {
    let mark = out.mark();
    let Ok(op) = OpNum::decode(r) else {
        return Step::Done(fail(out, mark, OpNum::ILLEGAL, Status::BADXDR));
    };
    // The number of the result of an illegal operation is no operation either.
    let Some(info) = optable::lookup_minor(op, cx.minor).filter(|info| info.op != OpNum::ILLEGAL) else {
        report(cx, OpNum::ILLEGAL, Status::OP_ILLEGAL, Status::OP_ILLEGAL);
        return Step::Done(fail(out, mark, OpNum::ILLEGAL, Status::OP_ILLEGAL));
    };
    let begun = Instant::now();
    let refused = misplaced(cx, info).or_else(|| lacking(cx, op, info)).or_else(|| no_room(cx, op, out.len()));
    let mut status = match refused {
        Some(status) => fail(out, mark, op, status),
        None if op == OpNum::SEQUENCE => match sequence(cx, r, out) {
            Ok(status) => status,
            Err(reply) => return Step::Replay(reply),
        },
        None => {
            out.u32(op.0);
            let work = AssertUnwindSafe(execute(cx, op, r, out)).catch_unwind().await;
            work.unwrap_or_else(|_| {
                count(&cx.server.metrics.panics);
                tracing::error!(op = info.name, "operation panicked");
                Status::SERVERFAULT
            })
        }
    };
    let limit = limit(cx);
    if out.len() > limit.0 {
        count(&cx.server.metrics.reply_limit_hits);
        status = limit.1;
    }
    let allowed = info.nearest(status);
    if !status.is_ok() && (allowed != status || refused.is_none() && (status == limit.1 || is_fault(status))) {
        // What was written carries another status, or half a result.
        fail(out, mark, op, allowed);
    }
    if allowed != status {
        tracing::debug!(op = info.name, %status, instead = %allowed, "status is not one of this operation");
    }
    cx.server.metrics.record(op, allowed, begun.elapsed());
    report(cx, op, status, allowed);
    Step::Done(allowed)
}

fn is_fault(status: Status) -> bool {
    status == Status::SERVERFAULT
}

/// Checks a status against the table, as it was meant and as it is sent: a test's hook sees both, every build counts and
/// logs a breach, a debug build insists. A panic here fails the call; a test that does not look at its reply fails when
/// its server ends ([`crate::Running`]).
fn report(cx: &OpCx, op: OpNum, meant: Status, sent: Status) {
    if let Some(hook) = &cx.server.status_hook {
        hook(cx.minor, op, meant, sent);
    }
    // What may succeed was looked up before it ran; there is nothing to compare then.
    if (cfg!(debug_assertions) || !meant.is_ok())
        && let Some(breach) = breach(cx.minor, op, meant, sent)
    {
        count(&cx.server.metrics.breaches);
        tracing::error!(%breach, "a status that is not in the table");
        if cfg!(debug_assertions) {
            panic!("{breach}");
        }
    }
}

/// What is wrong with a status: sent though the operation may not return it in this minor version; or meant by our own
/// code, and made harmless by the table. What a filesystem says may be foreign to an operation, and is translated.
pub fn breach(minor: u32, op: OpNum, meant: Status, sent: Status) -> Option<String> {
    if !optable::allows(op, minor, sent) {
        return Some(format!("{op} may not return {sent} in 4.{minor}"));
    }
    let translated = meant != sent && !crate::errmap::is_of_backend(meant);
    translated.then(|| format!("{op} meant {meant}, which it may not return in 4.{minor}; sent {sent}"))
}

/// Writes the result of an operation that failed, in place of what was written since `mark`.
fn fail(out: &mut Writer, mark: Mark, op: OpNum, status: Status) -> Status {
    out.truncate(mark);
    ResOp::error(op, status).encode(out);
    status
}

/// Position rules (RFC 8881 2.10.2, 16.2.3).
fn misplaced(cx: &OpCx, info: &OpInfo) -> Option<Status> {
    let alone = cx.index == 0 && cx.request.ops == 1;
    let in_session = cx.slot.is_some() || cx.uncached;
    match info.position {
        Position::First if cx.index > 0 => Some(Status::SEQUENCE_POS),
        Position::Alone if !alone => Some(Status::NOT_ONLY_OP),
        Position::AloneOrInSession if !in_session && !alone => Some(Status::NOT_ONLY_OP),
        Position::InSession if !in_session => Some(Status::OP_NOT_IN_SESSION),
        Position::Never => Some(Status::NOTSUPP),
        // The first operation after a SEQUENCE that was executed once, its reply not kept (RFC 8881 2.10.6.1.3).
        _ if cx.uncached => Some(Status::RETRY_UNCACHED_REP),
        _ => None,
    }
}

fn lacking(cx: &OpCx, op: OpNum, info: &OpInfo) -> Option<Status> {
    if cx.may_be_foreign(op) {
        return None;
    }
    let current = if info.needs_current_fh() { cx.current().err() } else { None };
    let saved = if info.needs_saved_fh() { cx.saved().err() } else { None };
    current.or(saved)
}

/// Whether the operation after this one is SAVEFH.
fn saves_next(r: &Reader) -> bool {
    OpNum::decode(&mut r.clone()) == Ok(OpNum::SAVEFH)
}

/// The most bytes the reply may have after this operation, and the status of more. Room is kept for a bare error of
/// the next operation.
fn limit(cx: &OpCx) -> (usize, Status) {
    let Some(slot) = &cx.slot else { return (usize::MAX, Status::REP_TOO_BIG) };
    let (most, status) = slot.max_reply();
    let last = cx.index + 1 >= cx.request.ops;
    ((most as usize).saturating_sub(if last { 0 } else { BARE }), status)
}

/// An operation that changes something is refused *before* it runs if its result might not fit (RFC 8881 2.10.6.4);
/// the result of any other is looked at when it is there.
fn no_room(cx: &mut OpCx, op: OpNum, len: usize) -> Option<Status> {
    let (most, status) = limit(cx);
    cx.room = most.saturating_sub(len + BARE);
    (cx.room < result_size(op)).then(|| {
        count(&cx.server.metrics.reply_limit_hits);
        status
    })
}

/// Longest result body of operations that change something, bytes. (A denied LOCK is longer, but changes nothing.)
fn result_size(op: OpNum) -> usize {
    const CHANGE: usize = 20;
    const STATEID: usize = 16;
    const BITMAP: usize = 16;
    match op {
        // With a delegation: type, stateid, flag, space limit, an ACE for nobody.
        OpNum::OPEN => STATEID + CHANGE + 4 + BITMAP + 4 + STATEID + 4 + 12 + 16,
        OpNum::CLOSE | OpNum::LOCK | OpNum::LOCKU | OpNum::OPEN_DOWNGRADE => STATEID,
        OpNum::CREATE => CHANGE + BITMAP,
        OpNum::LINK | OpNum::REMOVE | OpNum::SETXATTR | OpNum::REMOVEXATTR => CHANGE,
        OpNum::RENAME => 2 * CHANGE,
        OpNum::SETATTR => BITMAP,
        OpNum::WRITE => 16,
        OpNum::COPY => 4 + STATEID + 20 + 8,
        // Two addresses.
        OpNum::COPY_NOTIFY => 12 + STATEID + 4 + 2 * 64,
        _ => 0,
    }
}

/// Where `sa_highest_slotid` stands in a request that begins with SEQUENCE: after operation, session, sequence id, slot.
const HIGHEST_SLOT: std::ops::Range<usize> = 28..32;

/// Digest of the operations (`r` stands before the first) and of who sends them. What may honestly differ in a retry is
/// left out: the highest slot in use is that of the moment, and stamp and machine name of an AUTH_SYS credential
/// identify nobody.
fn digest(key: &[u8; 16], header: &CompoundHeader, r: &Reader, caller: &Caller) -> u64 {
    let bytes = r.clone().rest();
    let mut h = SipHasher13::new_with_key(key);
    h.write_u32(header.minorversion);
    h.write_u32(header.numops);
    let end = bytes.len().min(DIGEST_ENDS);
    h.write(bytes.get(..HIGHEST_SLOT.start.min(end)).unwrap_or_default());
    h.write(bytes.get(HIGHEST_SLOT.end.min(end)..end).unwrap_or_default());
    h.write(bytes.get(bytes.len().saturating_sub(DIGEST_ENDS).max(end)..).unwrap_or_default());
    h.write_usize(bytes.len());
    h.write_u32(caller.flavor.0);
    if let Some(sys) = &caller.sys {
        [sys.uid, sys.gid].iter().chain(&sys.gids).for_each(|id| h.write_u32(*id));
    }
    h.finish()
}

/// SEQUENCE, which decides what becomes of the rest. `Err` is the reply to be sent again.
fn sequence(cx: &mut OpCx, r: &mut Reader, out: &mut Writer) -> Result<Status, Reply> {
    let mark = out.mark();
    let Ok(args) = Decode::decode(r) else { return Ok(fail(out, mark, OpNum::SEQUENCE, Status::BADXDR)) };
    let ok = match ops::sequence::run(cx, &args, out.len()) {
        Ok(Sequence::Replay(reply)) => return Err(reply),
        Ok(Sequence::Fresh(slot)) => {
            let ok = slot.result().clone();
            cx.slot = Some(slot);
            ok
        }
        Ok(Sequence::Uncached(ok)) => {
            cx.uncached = true;
            ok
        }
        Ok(Sequence::InProgress) => return Ok(fail(out, mark, OpNum::SEQUENCE, Status::DELAY)),
        Err(status) => return Ok(fail(out, mark, OpNum::SEQUENCE, status)),
    };
    ResOp::Sequence(Ok(ok)).encode(out);
    Ok(Status::OK)
}

/// Decodes the arguments of `op`, runs it and writes status and body.
async fn execute(cx: &mut OpCx, op: OpNum, r: &mut Reader, out: &mut Writer) -> Status {
    // Frequent operations run in place; the futures of the others have a box of their own, so that they do not make
    // that of every COMPOUND as large as the largest of them.
    macro_rules! finish {
        ($res:expr) => {{
            let res = $res;
            res.encode_res(out);
            OpRes::status(&res)
        }};
    }
    macro_rules! args {
        () => {
            match Decode::decode(r) {
                Ok(args) => args,
                Err(error) => {
                    tracing::debug!(%op, %error, "arguments do not decode");
                    return refuse(out, op, Status::BADXDR);
                }
            }
        };
    }
    macro_rules! boxed {
        ($run:path) => {{
            let args = args!();
            finish!(Box::pin($run(cx, args)).await)
        }};
    }
    match op {
        OpNum::PUTFH => {
            let args = args!();
            finish!(ops::putfh::run(cx, args, saves_next(r)))
        }
        OpNum::GETFH => finish!(ops::getfh::run(cx)),
        OpNum::SAVEFH => finish!(ops::savefh::run(cx)),
        OpNum::RESTOREFH => finish!(ops::restorefh::run(cx)),
        OpNum::GETATTR => finish!(ops::getattr::run(cx, args!()).await),
        OpNum::ACCESS => finish!(ops::access::run(cx, args!()).await),
        OpNum::LOOKUP => finish!(ops::lookup::run(cx, args!()).await),
        OpNum::READ => finish!(ops::read::run(cx, args!()).await),
        OpNum::WRITE => finish!(ops::write::run(cx, args!()).await),
        OpNum::COMMIT => finish!(ops::commit::run(cx, args!()).await),
        OpNum::PUTROOTFH => finish!(Box::pin(ops::putrootfh::run(cx)).await),
        OpNum::PUTPUBFH => finish!(Box::pin(ops::putpubfh::run(cx)).await),
        OpNum::LOOKUPP => finish!(Box::pin(ops::lookupp::run(cx)).await),
        OpNum::READLINK => finish!(Box::pin(ops::readlink::run(cx)).await),
        OpNum::CREATE => boxed!(ops::create::run),
        OpNum::LINK => boxed!(ops::link::run),
        OpNum::REMOVE => boxed!(ops::remove::run),
        OpNum::RENAME => boxed!(ops::rename::run),
        OpNum::SETATTR => boxed!(ops::setattr::run),
        OpNum::READDIR => boxed!(ops::readdir::run),
        OpNum::VERIFY => boxed!(ops::verify::verify),
        OpNum::NVERIFY => boxed!(ops::verify::nverify),
        OpNum::SECINFO => boxed!(ops::secinfo::run),
        OpNum::SECINFO_NO_NAME => boxed!(ops::secinfo::run_no_name),
        OpNum::ALLOCATE => boxed!(ops::allocate::allocate),
        OpNum::DEALLOCATE => boxed!(ops::allocate::deallocate),
        OpNum::SEEK => boxed!(ops::seek::run),
        OpNum::COPY_NOTIFY => finish!(Box::pin(ops::copy_notify::run(cx, &args!())).await),
        OpNum::COPY => finish!(Box::pin(ops::copy::run(cx, &args!())).await),
        OpNum::CLONE => finish!(Box::pin(ops::clone::run(cx, &args!())).await),
        OpNum::OFFLOAD_STATUS => finish!(ops::offload_status::run(cx, &args!())),
        OpNum::OFFLOAD_CANCEL => finish!(ops::offload_cancel::run(cx, &args!())),
        OpNum::READ_PLUS => boxed!(ops::read_plus::run),
        OpNum::IO_ADVISE => boxed!(ops::io_advise::run),
        OpNum::GETXATTR => boxed!(ops::xattr::get),
        OpNum::SETXATTR => boxed!(ops::xattr::set),
        OpNum::LISTXATTRS => boxed!(ops::xattr::list),
        OpNum::REMOVEXATTR => boxed!(ops::xattr::remove),
        OpNum::EXCHANGE_ID => finish!(Box::pin(ops::exchange_id::run(cx, args!())).await),
        OpNum::CREATE_SESSION => finish!(Box::pin(ops::create_session::run(cx, args!())).await),
        OpNum::DESTROY_SESSION => finish!(ops::destroy_session::run(cx, &args!())),
        OpNum::DESTROY_CLIENTID => finish!(Box::pin(ops::destroy_clientid::run(cx, args!())).await),
        OpNum::BIND_CONN_TO_SESSION => finish!(ops::bind_conn_to_session::run(cx, &args!())),
        OpNum::BACKCHANNEL_CTL => finish!(ops::backchannel_ctl::run(cx, &args!())),
        OpNum::RECLAIM_COMPLETE => finish!(Box::pin(ops::reclaim_complete::run(cx, args!())).await),
        OpNum::TEST_STATEID => finish!(ops::test_stateid::run(cx, &args!())),
        OpNum::FREE_STATEID => finish!(ops::free_stateid::run(cx, &args!()).await),
        OpNum::OPEN => finish!(Box::pin(ops::open::run(cx, args!())).await),
        OpNum::DELEGRETURN => boxed!(ops::delegreturn::run),
        OpNum::OPEN_DOWNGRADE => finish!(Box::pin(ops::open_downgrade::run(cx, args!())).await),
        OpNum::CLOSE => finish!(Box::pin(ops::close::run(cx, args!())).await),
        OpNum::LOCK => finish!(Box::pin(ops::lock::run(cx, args!())).await),
        OpNum::LOCKT => finish!(Box::pin(ops::lockt::run(cx, args!())).await),
        OpNum::LOCKU => finish!(Box::pin(ops::locku::run(cx, args!())).await),
        // Nobody has SP4_SSV here (RFC 8881 18.47.3: INVAL then).
        OpNum::SET_SSV => refuse(out, op, Status::INVAL),
        _ => refuse(out, op, Status::NOTSUPP),
    }
}

/// Writes the status (and empty body) of a failure, the operation number being there already.
fn refuse(out: &mut Writer, op: OpNum, status: Status) -> Status {
    let mark = out.mark();
    // ResOp writes the number again: write elsewhere, and take what follows it.
    let mut w = Writer::new();
    ResOp::error(op, status).encode(&mut w);
    let bytes = w.into_bytes();
    out.truncate(mark);
    out.raw(bytes.slice(4.min(bytes.len())..));
    status
}
