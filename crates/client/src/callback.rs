//! The callback service: what the server may ask of the client (RFC 8881 section 20, RFC 7862 section 16).

use std::sync::{Arc, Weak};

use bytes::Bytes;
use dhow_net::{CallHandler, Charge, Connection, Record};
use dhow_proto::NFS4_CALLBACK_PROGRAM;
use dhow_proto::v4::cb::{
    CB_PROC_COMPOUND, CB_PROC_NULL, CB_VERSION, CbArgOp, CbCompoundHeader, CbGetattrOk, CbResOp, CbSequenceArgs,
    CbSequenceOk,
};
use dhow_proto::v4::{CbOpNum, Status, cbtable};
use dhow_rpc::{AcceptStat, CallBody, CallHeader, OpaqueAuth, ReplyBody, ReplyHeader, accepted_reply};
use dhow_session::backchannel::Admission;
use dhow_xdr::{Decode, Encode, Reader, Writer};

use crate::counters::add;
use crate::inner::{Inner, Session};

/// Operations accepted in one callback; servers send two.
const MAX_OPS: u32 = 64;

/// Answers calls that come in on the client's connections.
pub(crate) struct Callbacks {
    inner: Weak<Inner>,
}

impl Callbacks {
    pub(crate) fn new(inner: Weak<Inner>) -> Self {
        Self { inner }
    }
}

impl CallHandler for Callbacks {
    /// Callbacks never wait for anything, so they are answered in place.
    async fn call(&self, conn: &Connection, record: Record) {
        let Some(inner) = self.inner.upgrade() else { return };
        let mut r = Reader::new(record.bytes);
        let Ok(header) = CallHeader::decode(&mut r) else { return };
        let reply = answer(&inner, &header, r);
        conn.send(vec![reply], Charge::none());
    }
}

fn answer(inner: &Arc<Inner>, header: &CallHeader, mut r: Reader) -> Bytes {
    let xid = header.xid;
    let plain = |stat| accepted_reply(xid, stat).to_bytes();
    let Some(body) = &header.body else {
        return ReplyHeader { xid, body: ReplyBody::RpcMismatch { low: 2, high: 2 } }.to_bytes();
    };
    match body {
        CallBody { prog, .. } if *prog != NFS4_CALLBACK_PROGRAM => plain(AcceptStat::PROG_UNAVAIL),
        CallBody { vers, .. } if *vers != CB_VERSION => {
            let verf = OpaqueAuth::NONE;
            ReplyHeader { xid, body: ReplyBody::ProgMismatch { verf, low: CB_VERSION, high: CB_VERSION } }.to_bytes()
        }
        CallBody { proc: CB_PROC_NULL, .. } => plain(AcceptStat::SUCCESS),
        CallBody { proc: CB_PROC_COMPOUND, .. } => {
            add(&inner.counters.callbacks, 1);
            match CbCompoundHeader::decode(&mut r) {
                Ok(compound) => {
                    let mut w = Writer::new();
                    ReplyHeader::success(xid).encode(&mut w);
                    w.raw(cb_compound(inner, &compound, &mut r));
                    w.into_bytes()
                }
                Err(_) => plain(AcceptStat::GARBAGE_ARGS),
            }
        }
        _ => plain(AcceptStat::PROC_UNAVAIL),
    }
}

/// The body of the reply: status, tag, results.
fn finished(tag: &Bytes, results: &[CbResOp], status: Status) -> Bytes {
    let mut w = Writer::new();
    status.encode(&mut w);
    w.opaque(tag);
    w.array(results, |w, res| res.encode(w));
    w.into_bytes()
}

fn cb_compound(inner: &Arc<Inner>, header: &CbCompoundHeader, r: &mut Reader) -> Bytes {
    let tag = &header.tag;
    let session = inner.state.lock().session.clone();
    let minor = session.as_ref().map_or(header.minorversion, |s| s.minor);
    if header.minorversion != minor {
        return finished(tag, &[], Status::MINOR_VERS_MISMATCH);
    }
    if header.numops == 0 || header.numops > MAX_OPS {
        let status = if header.numops == 0 { Status::OK } else { Status::TOO_MANY_OPS };
        return finished(tag, &[], status);
    }
    // RFC 8881 section 20.9.3: CB_SEQUENCE comes first, in every CB_COMPOUND.
    let (first, args) = match next(r, minor) {
        Ok(CbArgOp::Sequence(args)) => (CbOpNum::SEQUENCE, args),
        Ok(other) => {
            let res = CbResOp::error(other.op(), Status::OP_NOT_IN_SESSION);
            return finished(tag, &[res], Status::OP_NOT_IN_SESSION);
        }
        Err(res) => return finished(tag, std::slice::from_ref(&res), res.status()),
    };
    let refuse = |status| {
        let res = checked(CbResOp::error(first, status), minor);
        finished(tag, std::slice::from_ref(&res), res.status())
    };
    // Each session has a back channel of its own.
    let session = {
        let state = inner.state.lock();
        state.session.iter().chain(&state.further).find(|s| s.id == args.session_id).cloned()
    };
    let Some(session) = session else {
        return refuse(Status::BADSESSION);
    };
    let highest = {
        let mut back = session.back.lock();
        match back.begin(args.slot_id, args.sequence_id) {
            Admission::New => back.highest(),
            Admission::Replay(reply) => return reply,
            Admission::Refuse(status) => return refuse(status),
        }
    };
    let mut results = vec![CbResOp::Sequence(Ok(sequence_ok(&args, highest)))];
    let mut status = Status::OK;
    for _ in 1..header.numops {
        let res = match next(r, minor) {
            Ok(op) => checked(execute(inner, &session, op), minor),
            Err(res) => checked(res, minor),
        };
        status = res.status();
        results.push(res);
        if !status.is_ok() {
            break;
        }
    }
    let reply = finished(tag, &results, status);
    session.back.lock().finish(args.slot_id, reply.clone());
    reply
}

fn sequence_ok(args: &CbSequenceArgs, highest: u32) -> CbSequenceOk {
    CbSequenceOk {
        session_id: args.session_id,
        sequence_id: args.sequence_id,
        slot_id: args.slot_id,
        highest_slot_id: highest,
        target_highest_slot_id: highest,
    }
}

/// The table of callbacks has the last word on what is answered (RFC 8881 15.3). A result that it does not allow is a
/// fault of this library: a debug build says so.
fn checked(res: CbResOp, minor: u32) -> CbResOp {
    let (op, status) = (res.op(), res.status());
    debug_assert!(cbtable::allows(op, minor, status), "{op:?} may not be answered by {status}");
    match cbtable::lookup_minor(op, minor) {
        Some(info) if !info.allows(status) => CbResOp::error(op, info.nearest(status)),
        _ => res,
    }
}

/// Reads the next operation; when that cannot be, the result to answer with.
fn next(r: &mut Reader, minor: u32) -> Result<CbArgOp, CbResOp> {
    let Ok(op) = CbOpNum::decode(r) else {
        return Err(CbResOp::error(CbOpNum::ILLEGAL, Status::BADXDR));
    };
    // One of a later minor version is as illegal as one that nobody knows (RFC 8881 15.1.3.4).
    if op == CbOpNum::ILLEGAL || cbtable::lookup_minor(op, minor).is_none() {
        return Err(CbResOp::error(CbOpNum::ILLEGAL, Status::OP_ILLEGAL));
    }
    CbArgOp::decode_body(op, r).map_err(|e| match e {
        // An operation that exists and is not served here: layouts, notifications, wishes.
        dhow_xdr::Error::BadEnum { what: "operation", .. } => CbResOp::error(op, Status::NOTSUPP),
        _ => CbResOp::error(op, Status::BADXDR),
    })
}

fn execute(inner: &Arc<Inner>, session: &Session, op: CbArgOp) -> CbResOp {
    let number = op.op();
    let status = match op {
        // Within one COMPOUND there is one sequence.
        CbArgOp::Sequence(_) => Status::SEQUENCE_POS,
        CbArgOp::Offload(args) => inner.offloads.completed(args.stateid, args.info),
        CbArgOp::RecallSlot(args) => {
            inner.with_table(session.epoch, |t| t.recall(args.target_highest_slot_id));
            // The server learns of it from the next SEQUENCE (section 20.8.4).
            Status::OK
        }
        CbArgOp::Recall(args) => {
            inner.delegations.recall(inner, args.fh, args.stateid);
            Status::OK
        }
        CbArgOp::RecallAny(args) => {
            inner.delegations.recall_any(args.objects_to_keep, &args.type_mask);
            Status::OK
        }
        CbArgOp::NotifyLock(_) => {
            inner.lock_freed.notify_waiters();
            Status::OK
        }
        CbArgOp::Getattr(args) => match inner.delegations.attributes(&args.fh, &args.attr_request) {
            Ok(attrs) => return CbResOp::Getattr(Ok(CbGetattrOk { attrs })),
            Err(status) => status,
        },
        CbArgOp::Illegal => Status::OP_ILLEGAL,
    };
    match (number, status) {
        (CbOpNum::OFFLOAD, Status::OK) => CbResOp::Offload(Ok(())),
        (CbOpNum::RECALL_SLOT, Status::OK) => CbResOp::RecallSlot(Ok(())),
        (CbOpNum::RECALL, Status::OK) => CbResOp::Recall(Ok(())),
        (CbOpNum::RECALL_ANY, Status::OK) => CbResOp::RecallAny(Ok(())),
        (CbOpNum::NOTIFY_LOCK, Status::OK) => CbResOp::NotifyLock(Ok(())),
        (number, status) => CbResOp::error(number, status),
    }
}
