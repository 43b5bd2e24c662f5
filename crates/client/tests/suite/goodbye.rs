//! The end of a session: of a client that is closed, and of one whose server restarts while it recovers.

use crate::common::config;
use crate::script::{Act, results, start};
use dhow_client::Client;
use dhow_client::v4::Status;
use dhow_proto::v4::{ArgOp, ClientId, ResOp, SessionId};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

fn asked(log: &crate::script::Log, wanted: impl Fn(&ArgOp) -> bool) -> usize {
    log.setup.lock().unwrap().iter().filter(|op| wanted(op)).count()
}

/// RFC 8881 section 18.37.3: DESTROY_SESSION may want its connection associated, which SEQUENCE does (section
/// 2.10.3.1).
#[tokio::test]
async fn a_session_is_destroyed_behind_sequence_where_the_server_wants_that() {
    let server = start(|req| {
        let unbound = matches!(req.ops[..], [ArgOp::DestroySession(_)]) && req.sequence.is_none();
        unbound.then(|| Act::Ops(vec![ResOp::DestroySession(Err(Status::CONN_NOT_BOUND_TO_SESSION))]))
    })
    .await;
    let client = Client::connect(config(server.addr)).await.unwrap();
    client.close().await.unwrap();
    assert_eq!(asked(&server.log, |op| matches!(op, ArgOp::DestroyClientid(_))), 1, "and goes on to the client ID");
}

/// NFS-Ganesha counts connections that are long gone and takes none in above 16: the session cannot be destroyed, and
/// whoever closes the client need not hear of it.
#[tokio::test]
async fn a_session_that_cannot_be_destroyed_is_left_to_its_lease() {
    let server = start(|req| {
        let destroy = matches!(req.ops[..], [ArgOp::DestroySession(_)]);
        destroy.then(|| Act::Ops(vec![ResOp::DestroySession(Err(Status::CONN_NOT_BOUND_TO_SESSION))]))
    })
    .await;
    let client = Client::connect(config(server.addr)).await.unwrap();
    client.close().await.unwrap();
    assert_eq!(asked(&server.log, |op| matches!(op, ArgOp::DestroyClientid(_))), 0, "it would be CLIENTID_BUSY");
    assert_eq!(asked(&server.log, |op| matches!(op, ArgOp::DestroySession(_))), 1);
}

/// The server restarts again just when RECLAIM_COMPLETE is on its way: the connection goes down with it, and the next
/// one cannot be bound (BADSESSION). The request must end with its session, or nobody makes another (RFC 8881 section
/// 8.4.2.1, case B31).
#[tokio::test]
async fn a_restart_during_the_recovery_is_recovered_from() {
    let instance = AtomicU32::new(1);
    let completed = AtomicU32::new(0);
    let server = start(move |req| {
        let now = instance.load(Ordering::SeqCst);
        if req.sequence.as_ref().is_some_and(|s| s.session_id != SessionId([now as u8; 16])) {
            return Some(Act::Sequence(Status::BADSESSION));
        }
        let mut answer = results(req, |_| None);
        match (&req.ops[..], &mut answer[..]) {
            // Client IDs and sessions are those of one instance.
            (_, [ResOp::ExchangeId(Ok(ok))]) => ok.client_id = ClientId(now.into()),
            ([ArgOp::CreateSession(args)], _) if args.client_id != ClientId(now.into()) => {
                answer = vec![ResOp::CreateSession(Err(Status::STALE_CLIENTID))];
            }
            (_, [ResOp::CreateSession(Ok(ok))]) => ok.session_id = SessionId([now as u8; 16]),
            ([ArgOp::BindConnToSession(args)], _) if args.session_id != SessionId([now as u8; 16]) => {
                answer = vec![ResOp::BindConnToSession(Err(Status::BADSESSION))];
            }
            ([ArgOp::ReclaimComplete(_)], _) if completed.fetch_add(1, Ordering::SeqCst) == 1 => {
                instance.store(3, Ordering::SeqCst);
                return Some(Act::HangUp);
            }
            ([ArgOp::PutRootFh | ArgOp::PutFh(_), ..], _) if now == 1 => {
                instance.store(2, Ordering::SeqCst);
                return Some(Act::Sequence(Status::BADSESSION));
            }
            _ => {}
        }
        Some(Act::Ops(answer))
    })
    .await;
    let client = Client::connect(config(server.addr)).await.unwrap();
    tokio::time::timeout(Duration::from_secs(30), client.fs().stat("/"))
        .await
        .expect("the client waits for ever")
        .unwrap();
    assert_eq!(asked(&server.log, |op| matches!(op, ArgOp::ExchangeId(_))), 3, "three instances of the server");
    client.close().await.unwrap();
}
