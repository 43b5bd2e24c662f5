//! The RPC level (RFC 5531): program, version, procedure, credential.

use crate::conn::{ConnCx, Held};
use crate::cred::Caller;
use crate::metrics::count;
use crate::shared::ServerShared;
use crate::v4::compound;
use bytes::Bytes;
use dhow_net::{Record, SHARED_BELOW};
use dhow_proto::NFS_PROGRAM;
use dhow_proto::v4::{PROC_COMPOUND, PROC_NULL, VERSION};
use dhow_rpc::{AcceptStat, CallHeader, OpaqueAuth, RPC_VERSION, ReplyBody, ReplyHeader, accepted_reply, denied_reply};
use dhow_state::ConnId;
use dhow_xdr::{Decode, Encode, Reader, Writer};
use futures_util::FutureExt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Executes one call and answers it.
pub(crate) async fn handle(server: Arc<ServerShared>, conn: Arc<ConnCx>, record: Record, held: Held) {
    count(&server.metrics.calls);
    server.metrics.calls_running.fetch_add(1, Relaxed);
    let Record { bytes, charge } = record;
    let xid = Reader::new(bytes.clone()).u32().unwrap_or(0);
    let work = AssertUnwindSafe(answer(&server, &conn, bytes)).catch_unwind();
    let reply = match work.await {
        Ok(reply) => reply,
        Err(_) => {
            // The panic hook has logged where; operations catch their own, so this one was between them.
            count(&server.metrics.panics);
            tracing::error!(xid, "call panicked");
            Some(Answer::header(&accepted_reply(xid, AcceptStat::SYSTEM_ERR)))
        }
    };
    // The request's buffer is free before the reply leaves.
    drop(charge);
    if let Some(Answer { segments, charge }) = reply {
        // The only call of its connection is answered at once, and so is one with a large answer, which several
        // threads copy to the socket better than one; small answers of a busy connection share a system call.
        let size: usize = segments.iter().map(Bytes::len).sum();
        if size > SHARED_BELOW || conn.calls_running() <= 1 {
            conn.conn.send(segments, charge);
        } else {
            conn.conn.send_soon(segments, charge);
        }
    }
    if conn.conn.is_closed() {
        // The call may have bound the connection to a session after the end of the connection was told.
        server.state.conn_closed(ConnId(conn.id));
    }
    server.metrics.calls_running.fetch_sub(1, Relaxed);
    drop(held);
}

/// What is sent back.
pub(crate) struct Answer {
    /// The whole message.
    pub segments: Vec<Bytes>,
    /// What its size was charged to.
    pub charge: dhow_net::Charge,
}

impl Answer {
    fn header(header: &ReplyHeader) -> Self {
        Self { segments: vec![header.to_bytes()], charge: dhow_net::Charge::none() }
    }
}

/// The answer to a message; `None` for one that cannot be answered.
async fn answer(server: &Arc<ServerShared>, conn: &Arc<ConnCx>, bytes: Bytes) -> Option<Answer> {
    let mut r = Reader::new(bytes.clone());
    let Ok(call) = CallHeader::decode(&mut r) else {
        count(&server.metrics.garbage);
        // The header itself is broken: with a transaction number there is somebody to tell.
        let xid = Reader::new(bytes).u32().ok()?;
        return Some(Answer::header(&accepted_reply(xid, AcceptStat::GARBAGE_ARGS)));
    };
    let xid = call.xid;
    let refuse = |body: ReplyBody| {
        count(&server.metrics.rpc_errors);
        Some(Answer::header(&ReplyHeader { xid, body }))
    };
    let stat = |stat: AcceptStat| ReplyBody::Accepted { verf: OpaqueAuth::NONE, stat };
    let Some(body) = call.body else {
        return refuse(ReplyBody::RpcMismatch { low: RPC_VERSION, high: RPC_VERSION });
    };
    let mut caller = match Caller::new(body.cred, conn.peer) {
        Ok(caller) => caller,
        Err(why) => {
            count(&server.metrics.rpc_errors);
            return Some(Answer::header(&denied_reply(xid, why)));
        }
    };
    if body.prog != NFS_PROGRAM {
        return refuse(stat(AcceptStat::PROG_UNAVAIL));
    }
    if body.vers != VERSION {
        return refuse(ReplyBody::ProgMismatch { verf: OpaqueAuth::NONE, low: VERSION, high: VERSION });
    }
    match body.proc {
        PROC_NULL => Some(Answer::header(&ReplyHeader::success(xid))),
        PROC_COMPOUND => {
            if server.ids.looks_groups_up() {
                Box::pin(caller.look_groups_up(&server.ids)).await;
            }
            let mut out = Writer::with_capacity(512);
            ReplyHeader::success(xid).encode(&mut out);
            match compound::run(server, conn, caller, r, bytes.len(), out).await {
                Some(done) => Some(done),
                None => {
                    count(&server.metrics.garbage);
                    Some(Answer::header(&accepted_reply(xid, AcceptStat::GARBAGE_ARGS)))
                }
            }
        }
        _ => refuse(stat(AcceptStat::PROC_UNAVAIL)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each call's future is moved into a task: a large one costs every call, so what is rare belongs into a box.
    #[test]
    fn the_future_of_a_call_is_small() {
        fn size<A, B, C, D, F>(_: fn(A, B, C, D) -> F) -> usize {
            size_of::<F>()
        }
        let size = size(handle);
        assert!(size <= 4096, "{size} bytes");
    }
}
