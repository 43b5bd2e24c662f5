//! Exactly once (RFC 8881 section 2.10.6), whatever happens to connections and sessions.

use crate::common::config;
use crate::script::{Act, Req, default_result, results, start};
use bytes::Bytes;
use dhow_client::v4::ops::{CloseArgs, CommitOk, PutFhArgs, RemoveArgs, RemoveOk, SetattrArgs, VerifyArgs};
use dhow_client::v4::{ArgOp, FileHandle, OpNum, ResOp, Status};
use dhow_client::{CallOptions, Client, Create, Error, OpenOptions, PutOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

fn remove() -> Vec<ArgOp> {
    vec![ArgOp::PutRootFh, ArgOp::Remove(RemoveArgs { target: Bytes::from_static(b"x") })]
}

fn removed() -> Vec<ResOp> {
    vec![ResOp::PutRootFh(Ok(())), ResOp::Remove(Ok(RemoveOk { cinfo: Default::default() }))]
}

fn is_remove(ops: &[ArgOp]) -> bool {
    ops.iter().any(|op| op.op() == OpNum::REMOVE)
}

fn cached() -> CallOptions {
    CallOptions { cache: true, ..CallOptions::default() }
}

/// Section 2.10.6.2: a request whose reply was lost is sent again with the same slot, sequence id and bytes.
#[tokio::test]
async fn a_lost_reply_is_asked_for_with_the_same_bytes() {
    let server = start(|req| is_remove(&req.ops).then(|| Act::LoseReply(removed()))).await;
    let client = Client::connect(config(server.addr)).await.unwrap();
    let res = client.compound(remove(), cached()).await.unwrap();
    assert_eq!(res.status, Status::OK);
    assert_eq!(client.counters().snapshot().resent, 1);
    let records = server.log.records.lock().unwrap().clone();
    let removes: Vec<_> = records.iter().filter(|r| r.windows(1).len() > 100 && count(r, 28)).collect();
    assert_eq!(removes.len(), 2);
    assert_eq!(removes[0], removes[1]);
}

/// Whether the record has operation `op` as its last one but the name.
fn count(record: &[u8], op: u32) -> bool {
    record.windows(4).any(|w| w == op.to_be_bytes())
}

/// Section 2.10.6.1.2: SEQUENCE said DELAY, so nothing was executed; the same bytes go out again.
#[tokio::test]
async fn delay_of_sequence_waits_and_repeats() {
    let tries = AtomicU32::new(0);
    let server = start(move |req| {
        (is_remove(&req.ops) && tries.fetch_add(1, Relaxed) < 3)
            .then_some(Act::Sequence(Status::DELAY))
            .or_else(|| is_remove(&req.ops).then(|| Act::Ops(removed())))
    })
    .await;
    let client = Client::connect(config(server.addr)).await.unwrap();
    assert_eq!(client.compound(remove(), cached()).await.unwrap().status, Status::OK);
    assert_eq!(client.counters().snapshot().resent, 3);
}

/// DELAY of an operation: a new request, if nothing before it forbids that.
#[tokio::test]
async fn delay_of_an_operation_is_a_new_request() {
    let tries = AtomicU32::new(0);
    let server = start(move |req| {
        let first = is_remove(&req.ops) && tries.fetch_add(1, Relaxed) < 2;
        let res = if first { ResOp::error(OpNum::REMOVE, Status::DELAY) } else { removed().pop()? };
        is_remove(&req.ops).then(|| Act::Ops(vec![ResOp::PutRootFh(Ok(())), res]))
    })
    .await;
    let client = Client::connect(config(server.addr)).await.unwrap();
    assert_eq!(client.compound(remove(), cached()).await.unwrap().status, Status::OK);
    // REMOVE then REMOVE(DELAY): the first must not be done twice, so the caller gets the DELAY.
    let mut twice = remove();
    twice.extend(remove());
    let server = start(|req| {
        is_remove(&req.ops).then(|| {
            let mut all = removed();
            all.push(ResOp::PutRootFh(Ok(())));
            all.push(ResOp::error(OpNum::REMOVE, Status::DELAY));
            Act::Ops(all)
        })
    })
    .await;
    let client = Client::connect(config(server.addr)).await.unwrap();
    assert_eq!(client.compound(twice, cached()).await.unwrap().status, Status::DELAY);
}

/// Section 2.10.13.1.4: the session is lost with a request in it. What may be repeated is; what may not be is reported.
#[tokio::test]
async fn a_lost_session_repeats_only_what_may_be_repeated() {
    // The connection breaks after the request; the retry is told that the session is gone.
    let script = |kind: fn(&[ArgOp]) -> bool| {
        let tries = AtomicU32::new(0);
        move |req: &crate::script::Req| {
            if !kind(&req.ops) {
                return None;
            }
            match tries.fetch_add(1, Relaxed) {
                0 => Some(Act::HangUp),
                1 => Some(Act::Sequence(Status::BADSESSION)),
                _ => Some(Act::Ops(results(req, |op| match op {
                    ArgOp::Remove(_) => removed().pop(),
                    op => default_result(op),
                }))),
            }
        }
    };
    let server = start(script(is_remove)).await;
    let client = Client::connect(config(server.addr)).await.unwrap();
    let e = client.compound(remove(), cached()).await.unwrap_err();
    assert!(matches!(e, Error::OutcomeUnknown { op: OpNum::REMOVE }), "{e}");
    // The client goes on.
    assert_eq!(client.compound(remove(), cached()).await.unwrap().status, Status::OK);

    let getfh = |ops: &[ArgOp]| ops.iter().any(|op| op.op() == OpNum::GETFH);
    let server = start(script(getfh)).await;
    let client = Client::connect(config(server.addr)).await.unwrap();
    let res = client.compound(vec![ArgOp::PutRootFh, ArgOp::GetFh], CallOptions::default()).await.unwrap();
    assert_eq!(res.status, Status::OK);
    let created = server.log.setup.lock().unwrap().iter().filter(|op| op.op() == OpNum::CREATE_SESSION).count();
    assert_eq!(created, 2);
}

/// A request that was never executed because SEQUENCE itself said BADSESSION is sent in the next session, whatever it
/// is.
#[tokio::test]
async fn a_refused_session_is_no_reason_to_fail() {
    let tries = AtomicU32::new(0);
    let server = start(move |req| {
        is_remove(&req.ops).then(|| match tries.fetch_add(1, Relaxed) {
            0 => Act::Sequence(Status::BADSESSION),
            _ => Act::Ops(removed()),
        })
    })
    .await;
    let client = Client::connect(config(server.addr)).await.unwrap();
    assert_eq!(client.compound(remove(), cached()).await.unwrap().status, Status::OK);
}

/// Replies come in any order, and each reaches its caller; slots are shared by more callers than there are.
#[tokio::test]
async fn many_callers_share_the_slots() {
    let server = start(|req| is_remove(&req.ops).then(|| Act::Ops(removed()))).await;
    let client = Client::connect(config(server.addr)).await.unwrap();
    let calls = (0..500).map(|_| client.compound(remove(), cached()));
    for res in futures_util::future::join_all(calls).await {
        assert_eq!(res.unwrap().status, Status::OK);
    }
    assert_eq!(client.counters().snapshot().resent, 0);
}

/// A caller that goes away does not leave its slot in doubt.
#[tokio::test]
async fn callers_may_go_away() {
    let (release, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let server = start(move |req| {
        is_remove(&req.ops).then(|| {
            // Holds every answer of this connection until the callers are gone.
            let _ = wait.lock().unwrap().recv_timeout(Duration::from_millis(20));
            Act::Ops(removed())
        })
    })
    .await;
    let client = Client::connect(config(server.addr)).await.unwrap();
    for _ in 0..10 {
        let gone = tokio::time::timeout(Duration::from_millis(1), client.compound(remove(), cached())).await;
        drop(gone);
    }
    drop(release);
    for _ in 0..40 {
        assert_eq!(client.compound(remove(), cached()).await.unwrap().status, Status::OK);
    }
}

#[tokio::test]
async fn a_silent_server_times_out_the_caller_alone() {
    let server = start(|req| is_remove(&req.ops).then_some(Act::Silence)).await;
    let mut config = config(server.addr);
    config.call_timeout = Some(Duration::from_millis(200));
    let client = Client::connect(config).await.unwrap();
    assert!(matches!(client.compound(remove(), cached()).await, Err(Error::TimedOut(_))));
    // So short a time is over for others too, now and then, on a machine that has much to do.
    let mut res = client.compound(vec![ArgOp::PutRootFh], CallOptions::default()).await;
    for _ in 0..100 {
        if !matches!(res, Err(Error::TimedOut(_))) {
            break;
        }
        res = client.compound(vec![ArgOp::PutRootFh], CallOptions::default()).await;
    }
    assert_eq!(res.unwrap().status, Status::OK);
}

/// Minor version 2 first, then 1 (RFC 8178 section 8).
#[tokio::test]
async fn an_older_server_gets_minor_version_one() {
    let server = start(|req| {
        (req.minor != 1).then(|| {
            let status = Status::MINOR_VERS_MISMATCH;
            Act::Raw(dhow_xdr::Encode::to_bytes(&dhow_proto::v4::CompoundRes {
                status,
                tag: Bytes::new(),
                results: Vec::new(),
            }))
        })
    })
    .await;
    let client = Client::connect(config(server.addr)).await.unwrap();
    assert_eq!(client.session_info().await.unwrap().minor_version, 1);
    let mut only = config(server.addr);
    only.minor_versions = vec![2];
    let e = Client::connect(only).await.unwrap_err();
    assert_eq!(e.to_string(), "the server does not speak NFS version 4.2");
}

/// Section 2.10.6.1.3: the reply to a retry was not kept. A READ is simply read again; a REMOVE may have been done.
#[tokio::test]
async fn a_reply_that_was_not_kept() {
    let tries = AtomicU32::new(0);
    let server = start(move |req| {
        let uncached = |op| Act::Ops(vec![ResOp::error(op, Status::RETRY_UNCACHED_REP)]);
        (!req.ops.is_empty()
            && req.sequence.is_some()
            && req.ops[0].op() == OpNum::PUTROOTFH
            && req.ops.len() == 2
            && !matches!(req.ops[1], ArgOp::Getattr(_)))
        .then(|| match tries.fetch_add(1, Relaxed) % 3 {
            0 => Act::HangUp,
            1 => uncached(OpNum::PUTROOTFH),
            _ => Act::Ops(results(req, default_result)),
        })
    })
    .await;
    let client = Client::connect(config(server.addr)).await.unwrap();
    let read = client.compound(vec![ArgOp::PutRootFh, ArgOp::GetFh], CallOptions::default()).await;
    assert_eq!(read.unwrap().status, Status::OK);
    let e = client.compound(remove(), CallOptions::default()).await.unwrap_err();
    assert!(matches!(e, Error::OutcomeUnknown { op: OpNum::REMOVE }), "{e}");
}

/// Callers that come and give up while the server is away leave nothing behind: the slots are all there afterwards.
#[tokio::test]
async fn impatient_callers_leave_nothing_behind() {
    let server = start(|req| is_remove(&req.ops).then_some(Act::Silence)).await;
    let mut config = config(server.addr);
    // Long enough for four requests to be on their way.
    config.call_timeout = Some(Duration::from_millis(500));
    config.slots = 4;
    let client = Client::connect(config).await.unwrap();
    // Four hold the slots for ever, two hundred wait for one.
    let calls = (0..204).map(|_| client.compound(remove(), cached()));
    for res in futures_util::future::join_all(calls).await {
        assert!(matches!(res, Err(Error::TimedOut(_))));
    }
    // The last callers' tasks have heard of it by now, or will soon.
    let sent = || server.log.records.lock().unwrap().iter().filter(|r| count(r, 28)).count();
    client.break_connections();
    for _ in 0..1000 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        if sent() >= 8 {
            break;
        }
    }
    // Only the four that were sent are sent again.
    assert!(sent() >= 8 && sent() % 4 == 0, "{} requests", sent());
}

/// A reply too large for the session comes again with each retry: that ends.
#[tokio::test]
async fn a_reply_that_always_breaks_the_connection_ends_in_an_error() {
    let server = start(|req| is_remove(&req.ops).then(|| Act::Bytes(vec![0xff; 4]))).await;
    let client = Client::connect(config(server.addr)).await.unwrap();
    let e = client.compound(remove(), cached()).await.unwrap_err();
    assert!(matches!(e, Error::Protocol(_)), "{e}");
    let res = client.compound(vec![ArgOp::PutRootFh], CallOptions::default()).await;
    assert_eq!(res.unwrap().status, Status::OK);
}

/// What a server of [`creating`] does when an OPEN comes.
type Answers = fn(u32, &Req) -> Option<Act>;

/// A server whose answer to a request with `op` is chosen by how many of those came before.
async fn creating(op: OpNum, answers: Answers) -> Client {
    let tries = AtomicU32::new(0);
    let server = start(move |req| {
        let concerned = req.ops.iter().any(|o| o.op() == op);
        concerned.then(|| tries.fetch_add(1, Relaxed)).and_then(|n| answers(n, req))
    })
    .await;
    Client::connect(config(server.addr)).await.unwrap()
}

/// The usual results, but for `op`, which fails.
fn failing(req: &Req, op: OpNum, status: Status) -> Act {
    Act::Ops(results(req, |o| (o.op() == op).then(|| ResOp::error(op, status))))
}

/// Section 18.16.3: the first OPEN created the file and its reply was lost with the session; the server ended before it
/// had noted the verifier. EXIST is no answer then, for a program would take its own file for somebody else's.
#[tokio::test]
async fn an_exclusive_create_that_finds_its_own_file_is_in_doubt() {
    // Executed, session lost, and the server is in its grace period at first.
    let answers: Answers = |n, req| {
        Some(match n {
            0 => Act::HangUp,
            1 => Act::Sequence(Status::BADSESSION),
            2 => failing(req, OpNum::OPEN, Status::GRACE),
            3 => failing(req, OpNum::OPEN, Status::DELAY),
            _ => failing(req, OpNum::OPEN, Status::EXIST),
        })
    };
    let new = OpenOptions::write().create(Create::New, 0o600);
    let put = PutOptions { new: true, ..PutOptions::default() };
    let is_unknown = |e: Error| assert!(matches!(e, Error::OutcomeUnknown { op: OpNum::OPEN }), "{e}");
    is_unknown(creating(OpNum::OPEN, answers).await.fs().open("f", &new).await.unwrap_err());
    is_unknown(creating(OpNum::OPEN, answers).await.fs().make_file("f", 0o600, true).await.unwrap_err());
    let client = creating(OpNum::OPEN, answers).await;
    is_unknown(client.fs().put("f", Bytes::from_static(b"x"), &put).await.unwrap_err());
    // Asked for afresh it is a true answer.
    let e = client.fs().open("f", &new).await.unwrap_err();
    assert!(e.is(Status::EXIST), "{e}");
    // So it is when the request was not executed before: SEQUENCE said so.
    let answers: Answers = |n, req| {
        Some(match n {
            0 => Act::Sequence(Status::BADSESSION),
            1 => failing(req, OpNum::OPEN, Status::DELAY),
            _ => failing(req, OpNum::OPEN, Status::EXIST),
        })
    };
    let e = creating(OpNum::OPEN, answers).await.fs().open("f", &new).await.unwrap_err();
    assert!(e.is(Status::EXIST), "{e}");
}

/// A reply that the server did not keep (section 2.10.6.1.3): the request was executed, and is asked for in a new slot.
#[tokio::test]
async fn an_exclusive_create_without_a_kept_reply_is_in_doubt() {
    let answers: Answers = |n, req| {
        Some(match n {
            0 => Act::HangUp,
            1 => Act::Ops(vec![ResOp::error(req.ops[0].op(), Status::RETRY_UNCACHED_REP)]),
            _ => failing(req, OpNum::OPEN, Status::EXIST),
        })
    };
    let new = OpenOptions::write().create(Create::New, 0o600);
    let e = creating(OpNum::OPEN, answers).await.fs().open("f", &new).await.unwrap_err();
    assert!(matches!(e, Error::OutcomeUnknown { op: OpNum::OPEN }), "{e}");
}

/// A server that keeps the verifier in the file's times does not know it any more once data was written; one that is told
/// to come again because of what follows finds EXIST. The first OPEN stands: it is used, or closed.
#[tokio::test]
async fn a_create_whose_rest_was_delayed_keeps_its_open() {
    let new = OpenOptions::write().create(Create::New, 0o600);
    let delayed = |op: OpNum| {
        let (tries, closes) = (AtomicU32::new(0), Arc::new(AtomicU32::new(0)));
        let seen = closes.clone();
        let script = move |req: &Req| {
            if !req.ops.iter().any(|o| o.op() == OpNum::OPEN) {
                let closing = req.ops.iter().any(|o| o.op() == OpNum::CLOSE);
                seen.fetch_add(u32::from(closing), Relaxed);
                return closing.then(|| Act::Ops(results(req, default_result)));
            }
            Some(match tries.fetch_add(1, Relaxed) {
                0 => failing(req, op, Status::DELAY),
                1 => failing(req, OpNum::OPEN, Status::DELAY),
                _ => failing(req, OpNum::OPEN, Status::EXIST),
            })
        };
        (script, closes)
    };
    let (script, closes) = delayed(OpNum::GETATTR);
    let client = Client::connect(config(start(script).await.addr)).await.unwrap();
    let file = client.fs().open("f", &new).await.unwrap();
    assert_eq!(file.size(), 1 << 30, "asked for alone");
    file.close().await.unwrap();
    assert_eq!(closes.load(Relaxed), 1);

    let (script, closes) = delayed(OpNum::CLOSE);
    let client = Client::connect(config(start(script).await.addr)).await.unwrap();
    client.fs().make_file("f", 0o600, true).await.unwrap();
    assert_eq!(closes.load(Relaxed), 1);

    let (script, closes) = delayed(OpNum::WRITE);
    let client = Client::connect(config(start(script).await.addr)).await.unwrap();
    let put = PutOptions { new: true, ..PutOptions::default() };
    let e = client.fs().put("f", Bytes::from_static(b"x"), &put).await.unwrap_err();
    assert!(matches!(&e, Error::Status { op: OpNum::WRITE, status: Status::DELAY, .. }), "{e}");
    assert_eq!(closes.load(Relaxed), 1);
}

/// CLOSE, DELEGRETURN and their like leave nothing to find: in a new session they have been done (sections 18.2, 18.6).
/// COMMIT before a CLOSE is asked for once more, since its verifier is wanted.
#[tokio::test]
async fn a_close_that_was_done_is_done() {
    for (op, status) in [(OpNum::CLOSE, Status::BAD_STATEID), (OpNum::PUTFH, Status::STALE)] {
        let tries = AtomicU32::new(0);
        let server = start(move |req| {
            let last = req.ops.last().map(ArgOp::op);
            if last == Some(OpNum::COMMIT) {
                let verifier = dhow_client::v4::Verifier([9; 8]);
                return Some(Act::Ops(results(req, |o| {
                    matches!(o, ArgOp::Commit(_)).then_some(ResOp::Commit(Ok(CommitOk { verifier })))
                })));
            }
            (last == Some(OpNum::CLOSE)).then(|| match tries.fetch_add(1, Relaxed) % 3 {
                0 => Act::HangUp,
                1 => Act::Sequence(Status::BADSESSION),
                _ => failing(req, op, status),
            })
        })
        .await;
        let client = Client::connect(config(server.addr)).await.unwrap();
        let file = client.fs().open("f", &OpenOptions::write()).await.unwrap();
        file.close().await.unwrap();
        let file = client.fs().open("f", &OpenOptions::write()).await.unwrap();
        assert_eq!(file.commit_and_close().await.unwrap().0, [9; 8]);
        // The program's own CLOSE: nobody here knows what its stateid was.
        let close = ArgOp::Close(CloseArgs { seqid: 0, open_stateid: dhow_client::v4::Stateid::ANONYMOUS });
        let fh = FileHandle(Bytes::from_static(b"handle"));
        let ops = vec![ArgOp::PutFh(PutFhArgs { object: fh }), close];
        let e = client.compound(ops, cached()).await.unwrap_err();
        assert!(matches!(e, Error::OutcomeUnknown { op: OpNum::CLOSE }), "{e}");
    }
}

/// VERIFY before a change: the second time it stops at what the first time did (section 18.31).
#[tokio::test]
async fn a_guarded_change_that_was_done_is_in_doubt() {
    let answers: Answers = |n, req| {
        Some(match n {
            0 => Act::HangUp,
            1 => Act::Sequence(Status::BADSESSION),
            _ => failing(req, OpNum::VERIFY, Status::NOT_SAME),
        })
    };
    let attrs = || dhow_client::v4::Fattr::from(&dhow_client::v4::Attrs::default());
    let guarded = || {
        vec![
            ArgOp::PutRootFh,
            ArgOp::Verify(VerifyArgs { attrs: attrs() }),
            ArgOp::Setattr(SetattrArgs { stateid: dhow_client::v4::Stateid::ANONYMOUS, attrs: attrs() }),
        ]
    };
    let client = creating(OpNum::VERIFY, answers).await;
    let e = client.compound(guarded(), cached()).await.unwrap_err();
    assert!(matches!(e, Error::OutcomeUnknown { op: OpNum::VERIFY }), "{e}");
    assert_eq!(client.compound(guarded(), cached()).await.unwrap().status, Status::NOT_SAME);
}
