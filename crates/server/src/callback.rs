//! Calls from the server to a client, over a connection that the client bound to a back channel (RFC 8881 2.10.3.1,
//! 20).
//!
//! A call goes out as CB_SEQUENCE and one operation. If the connection breaks, or no answer comes in time, the very
//! same call (slot, sequence id) goes out on another connection of the session; if there is none the call waits a
//! while for the client to bind one, as SEQ4_STATUS_CB_PATH_DOWN_SESSION asks it to. DELAY is tried again. In the end
//! the caller gets the result or an error; what must not depend on callbacks (the end of a copy: cases K02, K03) does
//! not.

use crate::shared::ServerShared;
use bytes::Bytes;
use dhow_proto::v4::cb::{
    CB_PROC_COMPOUND, CB_VERSION, CbArgOp, CbCompoundArgs, CbCompoundRes, CbResOp, CbSequenceArgs, ReferringCall,
    ReferringCallList,
};
use dhow_proto::v4::ops::CallbackSec;
use dhow_proto::v4::{CbOpNum, ClientId, SessionId, Status};
use dhow_rpc::{CallHeader, Credential, ReplyHeader};
use dhow_state::{CbToken, CbUnavailable, Session};
use dhow_xdr::{Decode, Encode, Reader, Writer};
use std::sync::Arc;
use std::time::Duration;

/// How long one sending waits for its answer.
const ANSWER: Duration = Duration::from_secs(10);

/// How long to wait for a path, or a slot, or after DELAY, before the next try.
const PAUSE: Duration = Duration::from_millis(250);

/// How often a call is tried in all, each with at most [`ANSWER`] or [`PAUSE`].
const TRIES: u32 = 40;

/// A request of the client that a callback must not overtake: session, sequence id and slot (RFC 8881 2.10.6.3, case
/// K05).
pub(crate) type Referring = (SessionId, u32, u32);

/// Why a callback came to nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallbackError {
    /// The client is gone.
    NoClient,
    /// No path to it in time, or no answer on any.
    NoPath,
    /// The client answered with this status.
    Refused(Status),
}

/// Calls `op` at `client`, preferably on the session of the request it refers to.
pub(crate) async fn call(
    shared: &Arc<ServerShared>,
    client: ClientId,
    referring: Option<Referring>,
    op: CbArgOp,
) -> Result<CbResOp, CallbackError> {
    let path = || shared.state.callback(client, referring.map(|(s, ..)| s));
    call_by(shared, path, referring, op).await
}

/// Calls `op` on one session, whose client it concerns as that session's alone.
pub(crate) async fn call_on(
    shared: &Arc<ServerShared>,
    session: &Arc<Session>,
    op: CbArgOp,
) -> Result<CbResOp, CallbackError> {
    call_by(shared, || shared.state.callback_on(session), None, op).await
}

async fn call_by(
    shared: &Arc<ServerShared>,
    path: impl Fn() -> Result<CbToken, CbUnavailable>,
    referring: Option<Referring>,
    op: CbArgOp,
) -> Result<CbResOp, CallbackError> {
    let mut last = CallbackError::NoPath;
    let mut tries = 0;
    while tries < TRIES {
        tries += 1;
        let token = match path() {
            Ok(token) => token,
            Err(CbUnavailable::NoClient) => return Err(CallbackError::NoClient),
            Err(CbUnavailable::PathDown | CbUnavailable::Busy) => {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        match with_token(shared, token, &mut tries, referring, &op).await {
            Ok(result) => match result.status() {
                Status::OK => return Ok(result),
                Status::DELAY => last = CallbackError::Refused(Status::DELAY),
                other => return Err(CallbackError::Refused(other)),
            },
            Err(e) => last = e,
        }
        tokio::time::sleep(PAUSE).await;
    }
    Err(last)
}

/// One call on one slot: over as many connections as it takes.
async fn with_token(
    shared: &Arc<ServerShared>,
    mut token: CbToken,
    tries: &mut u32,
    referring: Option<Referring>,
    op: &CbArgOp,
) -> Result<CbResOp, CallbackError> {
    loop {
        match send(shared, &token, referring, op).await {
            Some(Ok(results)) => {
                let mut results = results.into_iter();
                // Results of other operations than those called are no answer.
                let first = results.next().filter(|r| r.op() == CbOpNum::SEQUENCE || !r.status().is_ok());
                let sequenced = first.map_or(Status::SERVERFAULT, |r| r.status());
                if sequenced != Status::OK {
                    // Not executed, and the sequence id is not used up (RFC 8881 20.9.3). A client that has lost count
                    // gives SEQ_MISORDERED for ever: then the slot is given up.
                    match sequenced {
                        Status::SEQ_MISORDERED | Status::SEQ_FALSE_RETRY => drop(token),
                        _ => token.refused(),
                    }
                    return Err(CallbackError::Refused(sequenced));
                }
                token.answered();
                let result = results.next().filter(|r| r.op() == op.op());
                return result.ok_or(CallbackError::Refused(Status::SERVERFAULT));
            }
            // The client does not serve the program, or answers what is none: no use to repeat that.
            Some(Err(())) => {
                let _other = token.retry();
                return Err(CallbackError::NoPath);
            }
            None => {
                *tries += 1;
                while !token.retry() {
                    if *tries >= TRIES || token.session().client().is_dying() {
                        return Err(CallbackError::NoPath);
                    }
                    *tries += 1;
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

/// One sending: the results; `Err` if the answer is no COMPOUND result; `None` if no answer came.
async fn send(
    shared: &Arc<ServerShared>,
    token: &CbToken,
    referring: Option<Referring>,
    op: &CbArgOp,
) -> Option<Result<Vec<CbResOp>, ()>> {
    let conn = shared.conns.lock().get(&token.conn().0).cloned()?;
    let xid = conn.next_xid();
    let lists = referring.map(|(session_id, sequence_id, slot_id)| ReferringCallList {
        session_id,
        calls: vec![ReferringCall { sequence_id, slot_id }],
    });
    let sequence = CbSequenceArgs {
        session_id: token.session().id(),
        sequence_id: token.sequence_id(),
        slot_id: token.slot(),
        highest_slot_id: token.highest_slot(),
        cache_this: false,
        referring_call_lists: lists.into_iter().collect(),
    };
    let args = CbCompoundArgs {
        tag: Bytes::new(),
        minorversion: token.session().minor(),
        ops: vec![CbArgOp::Sequence(sequence), op.clone()],
    };
    let cred = match token.sec() {
        CallbackSec::Sys(sys) => Credential::Sys(sys.clone()),
        _ => Credential::None,
    };
    let header = CallHeader::new(xid, token.program(), CB_VERSION, CB_PROC_COMPOUND, &cred).ok()?;
    let mut w = Writer::new();
    header.encode(&mut w);
    args.encode(&mut w);
    let reply = tokio::time::timeout(ANSWER, conn.conn.call(xid, w.into_segments())).await;
    let record = match reply {
        Ok(Ok(record)) => record,
        Ok(Err(error)) => {
            tracing::debug!(%error, conn = conn.id, "callback got no answer");
            return None;
        }
        Err(_) => {
            tracing::debug!(conn = conn.id, "callback was not answered in time");
            return None;
        }
    };
    let mut r = Reader::new(record.bytes.clone());
    let ok = ReplyHeader::decode(&mut r).is_ok_and(|h| h.is_success());
    Some(if ok { CbCompoundRes::decode(&mut r).map(|res| res.results).map_err(drop) } else { Err(()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ExportConfig, ExportOptions, Running, Server, ServerConfig};
    use dhow_proto::v4::ArgOp;
    use dhow_proto::v4::cb::CbRecallSlotArgs;
    use dhow_proto::v4::ops::{BindConnToSessionArgs, ChannelDirFromClient};
    use dhow_rpc::ReplyHeader;
    use dhow_testkit::MemFs;
    use dhow_testkit::wire::{CallBack, Callbacks, Client, ClientOptions, Wire};

    fn op() -> CbArgOp {
        CbArgOp::RecallSlot(CbRecallSlotArgs { target_highest_slot_id: 3 })
    }

    async fn server() -> Running {
        let export = ExportConfig { path: "/".into(), backend: MemFs::new(), options: ExportOptions::default() };
        Server::start(ServerConfig::in_memory(vec![export]).unwrap()).await.unwrap()
    }

    fn wire(server: &Running) -> Wire {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        server.serve_stream(theirs, None);
        let mut wire = Wire::new(ours);
        wire.on_callback = Callbacks::Keep;
        wire
    }

    async fn client(server: &Running) -> Client {
        Client::over(wire(server), ClientOptions::named("c")).await
    }

    fn start(
        server: &Running,
        c: &Client,
        referring: Option<Referring>,
    ) -> tokio::task::JoinHandle<Result<CbResOp, CallbackError>> {
        let (shared, id) = (server.shared().clone(), c.id);
        tokio::spawn(async move { call(&shared, id, referring, op()).await })
    }

    fn sequence(call: &CallBack) -> CbSequenceArgs {
        match call.compound().ops.into_iter().next() {
            Some(CbArgOp::Sequence(s)) => s,
            other => panic!("{other:?}"),
        }
    }

    async fn answer_with(wire: &mut Wire, call: &CallBack, status: Status) {
        let mut res = call.success();
        res.status = status;
        res.results[1] = CbResOp::error(CbOpNum::RECALL_SLOT, status);
        let mut w = Writer::new();
        ReplyHeader::success(call.header.xid).encode(&mut w);
        res.encode(&mut w);
        wire.send_record(&w.into_bytes()).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_names_what_it_must_not_overtake() {
        // RFC 8881 20.9, 2.10.6.3; case K05.
        let server = server().await;
        let mut c = client(&server).await;
        let session = c.session.id();
        let task = start(&server, &c, Some((session, 7, 3)));
        let got = c.wire.callback().await;
        let args = got.compound();
        assert_eq!((args.minorversion, args.ops.len()), (2, 2));
        let seq = sequence(&got);
        assert_eq!((seq.session_id, seq.sequence_id, seq.slot_id), (session, 1, 0));
        let calls = vec![ReferringCall { sequence_id: 7, slot_id: 3 }];
        assert_eq!(seq.referring_call_lists, [ReferringCallList { session_id: session, calls }]);
        assert_eq!(args.ops[1], op());
        c.wire.answer(&got).await;
        assert!(matches!(task.await.unwrap(), Ok(CbResOp::RecallSlot(Ok(())))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_broken_connection_is_replaced_by_another_with_the_same_call() {
        // RFC 8881 2.10.6.2, case K02.
        let server = server().await;
        let mut c = client(&server).await;
        let task = start(&server, &c, None);
        let first = c.wire.callback().await;
        let bind = BindConnToSessionArgs {
            session_id: c.session.id(),
            dir: ChannelDirFromClient::FORE_OR_BOTH,
            use_rdma: false,
        };
        c.wire = wire(&server);
        assert_eq!(c.wire.compound(2, &[ArgOp::BindConnToSession(bind)]).await.status, Status::OK);
        let second = c.wire.callback().await;
        assert_eq!(sequence(&first), sequence(&second));
        c.wire.answer(&second).await;
        assert!(task.await.unwrap().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn delay_is_tried_again_with_the_next_sequence_id() {
        // Case K03.
        let server = server().await;
        let mut c = client(&server).await;
        let task = start(&server, &c, None);
        let first = c.wire.callback().await;
        answer_with(&mut c.wire, &first, Status::DELAY).await;
        let second = c.wire.callback().await;
        assert_eq!(sequence(&second).sequence_id, sequence(&first).sequence_id + 1);
        c.wire.answer(&second).await;
        assert!(task.await.unwrap().is_ok());
        let task = start(&server, &c, None);
        let third = c.wire.callback().await;
        answer_with(&mut c.wire, &third, Status::BADHANDLE).await;
        assert_eq!(task.await.unwrap(), Err(CallbackError::Refused(Status::BADHANDLE)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_never_answers_costs_a_bounded_time() {
        let server = server().await;
        let c = client(&server).await;
        let begun = tokio::time::Instant::now();
        assert_eq!(start(&server, &c, None).await.unwrap(), Err(CallbackError::NoPath));
        assert!(begun.elapsed() < ANSWER * TRIES);
        let gone = ClientId(1);
        assert_eq!(call(server.shared(), gone, None, op()).await, Err(CallbackError::NoClient));
    }
}
