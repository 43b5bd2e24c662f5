//! One COMPOUND on one connection: encoding, sending, reading the reply. Knows nothing of slots.

use bytes::Bytes;
use dhow_net::Connection;
use dhow_proto::v4::ops::{SequenceArgs, SequenceOk};
use dhow_proto::v4::{ArgOp, CompoundHeader, CompoundRes, OpNum, PROC_COMPOUND, PROC_NULL, ResOp, Status, VERSION};
use dhow_proto::{NFS_PROGRAM, v4};
use dhow_rpc::{AcceptStat, CallHeader, Credential, ReplyBody, ReplyHeader};
use dhow_xdr::{Decode, Encode, Reader, Writer};

use crate::{Error, Result};

/// An encoded call. Sending it again sends the same bytes.
#[derive(Debug, Clone)]
pub(crate) struct Encoded {
    pub(crate) xid: u32,
    pub(crate) segments: Vec<Bytes>,
    pub(crate) len: usize,
}

/// Encodes a COMPOUND call; `sequence` goes before `ops`.
pub(crate) fn compound(
    xid: u32,
    cred: &Credential,
    minor: u32,
    sequence: Option<SequenceArgs>,
    ops: &[ArgOp],
) -> Result<Encoded> {
    let header = CallHeader::new(xid, NFS_PROGRAM, VERSION, PROC_COMPOUND, cred).map_err(unsendable)?;
    let mut w = Writer::with_capacity(512);
    header.encode(&mut w);
    let numops = ops.len() as u32 + u32::from(sequence.is_some());
    CompoundHeader { tag: Bytes::new(), minorversion: minor, numops }.encode(&mut w);
    if let Some(sequence) = sequence {
        ArgOp::Sequence(sequence).encode(&mut w);
    }
    for op in ops {
        op.encode(&mut w);
    }
    let len = w.len();
    Ok(Encoded { xid, segments: w.into_segments(), len })
}

/// Encodes a NULL call of some version.
pub(crate) fn null(xid: u32, version: u32) -> Result<Encoded> {
    let header = CallHeader::new(xid, NFS_PROGRAM, version, PROC_NULL, &Credential::None).map_err(unsendable)?;
    let bytes = header.to_bytes();
    Ok(Encoded { xid, len: bytes.len(), segments: vec![bytes] })
}

fn unsendable(e: dhow_xdr::Error) -> Error {
    Error::Argument(format!("the credential cannot be sent: {e}").into())
}

/// Reads the RPC header of a reply; what follows it is the result of the procedure.
///
/// # Errors
///
/// What the server says at the level of RPC.
pub(crate) fn accepted(record: Bytes) -> Result<Reader> {
    let mut r = Reader::new(record);
    let header = ReplyHeader::decode(&mut r)?;
    let refused = |text: String| Err(Error::Unsupported(text.into()));
    match header.body {
        ReplyBody::Accepted { stat: AcceptStat::SUCCESS, .. } => Ok(r),
        ReplyBody::Accepted { stat: AcceptStat::PROG_UNAVAIL, .. } => {
            refused("no NFS server answers at this port".to_owned())
        }
        ReplyBody::Accepted { stat: AcceptStat::GARBAGE_ARGS, .. } => {
            Err(Error::protocol("the server could not read our call"))
        }
        ReplyBody::Accepted { stat, .. } => Err(Error::protocol(format!("the server answered {stat}"))),
        ReplyBody::ProgMismatch { low, high, .. } => {
            refused(format!("the server speaks NFS versions {low} to {high} only; version 4 is needed"))
        }
        ReplyBody::RpcMismatch { low, high } => {
            refused(format!("the server speaks RPC versions {low} to {high}; version 2 is needed"))
        }
        ReplyBody::AuthError(why) => Err(Error::Auth(why)),
    }
}

/// Reads the result of a COMPOUND.
pub(crate) fn result(record: Bytes) -> Result<CompoundRes> {
    let mut r = accepted(record)?;
    let res = CompoundRes::decode(&mut r)?;
    r.finish()?;
    Ok(res)
}

/// What SEQUENCE answered in a COMPOUND that does not decode as a whole: enough to know where the slot stands.
pub(crate) fn sequence_only(record: Bytes) -> Option<Result<SequenceOk, Status>> {
    let mut r = accepted(record).ok()?;
    let _status = r.u32().ok()?;
    r.skip_opaque(v4::NO_LIMIT).ok()?;
    r.u32().ok().filter(|n| *n > 0)?;
    if OpNum(r.peek_u32().ok()?) != OpNum::SEQUENCE {
        return None;
    }
    match ResOp::decode(&mut r).ok()? {
        ResOp::Sequence(res) => Some(res),
        _ => None,
    }
}

/// Sends a COMPOUND without SEQUENCE and awaits its answer: EXCHANGE_ID, CREATE_SESSION, BIND_CONN_TO_SESSION and
/// their like.
pub(crate) async fn alone(conn: &Connection, xid: u32, cred: &Credential, minor: u32, op: ArgOp) -> Result<ResOp> {
    let name = op.op();
    let ops = [op];
    let call = compound(xid, cred, minor, None, &ops)?;
    let record = conn.call(call.xid, call.segments).await.map_err(|e| lost(conn, &e))?;
    let mut res = result(record.bytes)?;
    crate::check::reply_fits(&ops, &res)?;
    match res.results.pop() {
        Some(res) => Ok(res),
        // MINOR_VERS_MISMATCH and the like stand in the header alone.
        None => Err(Error::status(name, res.status)),
    }
}

/// An error for a call that a connection took with it.
pub(crate) fn lost(conn: &Connection, e: &dhow_net::CallError) -> Error {
    let server = conn.peer().map_or_else(|| "the server".to_owned(), |p| p.to_string());
    Error::Io { server: server.into(), cause: std::io::Error::other(e.to_string()).into() }
}

#[cfg(test)]
mod tests {
    use dhow_proto::v4::SessionId;
    use dhow_rpc::{AuthStat, denied_reply};

    use super::*;

    fn reply(res: &CompoundRes, junk: usize) -> Bytes {
        let mut w = Writer::new();
        ReplyHeader::success(1).encode(&mut w);
        res.encode(&mut w);
        w.fixed(&vec![0; junk]);
        w.into_bytes()
    }

    fn ok() -> SequenceOk {
        SequenceOk {
            session_id: SessionId([1; 16]),
            sequence_id: 2,
            slot_id: 3,
            highest_slot_id: 4,
            target_highest_slot_id: 5,
            status_flags: 0,
        }
    }

    #[test]
    fn a_reply_that_breaks_off_still_tells_where_the_slot_stands() {
        let res = CompoundRes {
            status: Status::OK,
            tag: Bytes::new(),
            results: vec![ResOp::Sequence(Ok(ok())), ResOp::PutRootFh(Ok(()))],
        };
        let whole = reply(&res, 0);
        assert_eq!(result(whole.clone()).unwrap(), res);
        let cut = whole.slice(..whole.len() - 4);
        assert!(matches!(result(cut.clone()), Err(Error::Protocol(_))));
        assert_eq!(sequence_only(cut), Some(Ok(ok())));
        assert!(matches!(result(reply(&res, 4)), Err(Error::Protocol(_))));
        assert_eq!(sequence_only(whole.slice(..30)), None);
    }

    #[test]
    fn refusals_of_rpc_have_words() {
        let e = result(denied_reply(1, AuthStat::TOOWEAK).to_bytes()).unwrap_err();
        assert!(matches!(e, Error::Auth(AuthStat::TOOWEAK)));
        let body = ReplyBody::ProgMismatch { verf: dhow_rpc::OpaqueAuth::NONE, low: 3, high: 3 };
        let e = result(ReplyHeader { xid: 1, body }.to_bytes()).unwrap_err();
        assert!(e.to_string().contains("versions 3 to 3"), "{e}");
    }
}
