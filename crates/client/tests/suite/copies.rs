//! Asynchronous copies: callbacks early, late and never (cases K02, K03, K05).

use crate::common::config;
use crate::script::{Act, Req, Scripted, default_result, results, start};
use bytes::Bytes;
use dhow_client::v4::cb::{CbArgOp, CbOffloadArgs, CbRecallSlotArgs, CbResOp, OffloadInfo};
use dhow_client::v4::ops::{CommitOk, CopyNotifyOk, CopyOk, CopyRequirements, CopyRes, OffloadStatusOk, WriteResponse};
use dhow_client::v4::{
    ArgOp, CbOpNum, FileHandle, NetAddr, NetLoc, OpNum, ResOp, StableHow, Stateid, Status, Verifier, cbtable,
};
use dhow_client::{Client, Copied, CopyBegun, CopyOptions, Error, OpenOptions, RemoteSource};

const COPY: Stateid = Stateid { seqid: 1, other: [9; 12] };
const VERIFIER: Verifier = Verifier([5; 8]);

fn response(count: u64, running: bool, committed: StableHow) -> WriteResponse {
    let callback_id = if running { vec![COPY] } else { Vec::new() };
    WriteResponse { callback_id, count, committed, verifier: VERIFIER }
}

fn begun() -> ResOp {
    ResOp::Copy(CopyRes::Ok(CopyOk {
        response: response(0, true, StableHow::UNSTABLE),
        requirements: CopyRequirements { consecutive: true, synchronous: false },
    }))
}

fn completion(info: OffloadInfo) -> CbArgOp {
    CbArgOp::Offload(CbOffloadArgs { fh: FileHandle(Bytes::from_static(b"handle")), stateid: COPY, info })
}

async fn copy(server: &Scripted, durable: bool) -> Result<Copied, Error> {
    let client = Client::connect(config(server.addr)).await.unwrap();
    let fs = client.fs();
    let a = fs.open("a", &OpenOptions::read()).await.unwrap();
    let b = fs.open("b", &OpenOptions::write()).await.unwrap();
    a.copy_to(0, &b, 0, 1000, &CopyOptions { synchronous: false, durable }, |_| {}).await
}

fn is_copy(req: &Req) -> bool {
    req.ops.iter().any(|op| op.op() == OpNum::COPY)
}

fn with_copy(req: &Req) -> Vec<ResOp> {
    results(req, |op| if op.op() == OpNum::COPY { Some(begun()) } else { default_result(op) })
}

/// Case K05: the callback comes before the reply that names the copy.
#[tokio::test]
async fn a_callback_that_overtakes_the_reply_is_not_lost() {
    let server = start(|req| {
        is_copy(req).then(|| {
            let done = OffloadInfo::Ok(response(1000, false, StableHow::FILE_SYNC));
            Act::CallBack(completion(done), with_copy(req))
        })
    })
    .await;
    let copied = copy(&server, true).await.unwrap();
    assert_eq!((copied.bytes, copied.committed), (1000, StableHow::FILE_SYNC));
    let answers = server.log.callbacks.lock().unwrap();
    assert!(matches!(answers[0].results[1], CbResOp::Offload(Ok(()))));
}

/// C1: the error of an asynchronous copy is not lost.
#[tokio::test]
async fn an_error_in_the_callback_reaches_the_caller() {
    let server = start(|req| {
        is_copy(req).then(|| {
            let failed = OffloadInfo::Err { status: Status::NOSPC, bytes_copied: 10 };
            Act::CallBack(completion(failed), with_copy(req))
        })
    })
    .await;
    assert!(copy(&server, false).await.unwrap_err().is(Status::NOSPC));
}

/// Case K02: no callback ever comes; polling finds the end. How safe the data is is then not known, so a COMMIT is due,
/// and its verifier must be the one of the COPY reply.
#[tokio::test]
async fn without_callbacks_polling_finds_the_end() {
    for (commits, good) in [(VERIFIER, true), (Verifier([6; 8]), false)] {
        let server = start(move |req| {
            let poll = req.ops.iter().any(|op| op.op() == OpNum::OFFLOAD_STATUS);
            let commit = req.ops.iter().any(|op| op.op() == OpNum::COMMIT);
            (is_copy(req) || poll || commit).then(|| {
                Act::Ops(results(req, |op| match op.op() {
                    OpNum::COPY => Some(begun()),
                    OpNum::OFFLOAD_STATUS => {
                        Some(ResOp::OffloadStatus(Ok(OffloadStatusOk { count: 1000, complete: vec![Status::OK] })))
                    }
                    OpNum::COMMIT => Some(ResOp::Commit(Ok(CommitOk { verifier: commits }))),
                    _ => default_result(op),
                }))
            })
        })
        .await;
        match copy(&server, true).await {
            Ok(copied) if good => assert!(copied.bytes == 1000 && copied.is_durable()),
            Err(Error::WritesLost) if !good => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Case K03: the server forgot the copy without a word.
#[tokio::test]
async fn a_forgotten_copy_is_reported() {
    let server = start(|req| {
        let poll = req.ops.iter().any(|op| op.op() == OpNum::OFFLOAD_STATUS);
        (is_copy(req) || poll).then(|| {
            Act::Ops(results(req, |op| match op.op() {
                OpNum::COPY => Some(begun()),
                OpNum::OFFLOAD_STATUS => Some(ResOp::OffloadStatus(Err(Status::BAD_STATEID))),
                _ => default_result(op),
            }))
        })
    })
    .await;
    assert!(matches!(copy(&server, false).await, Err(Error::CopyLost)));
}

/// A completion of a copy that nobody waits for, CB_RECALL_SLOT, an operation that is not served, and one that does not
/// exist: each is answered properly (RFC 8881 section 20).
#[tokio::test]
async fn callbacks_are_answered() {
    let getfh = |req: &Req| req.ops.iter().any(|op| matches!(op, ArgOp::GetFh));
    let ask = |op: CbArgOp| async move {
        let server =
            start(move |req| (getfh)(req).then(|| Act::CallBack(op.clone(), results(req, default_result)))).await;
        let client = Client::connect(config(server.addr)).await.unwrap();
        client.compound(vec![ArgOp::PutRootFh, ArgOp::GetFh], Default::default()).await.unwrap();
        let slots = client.session_info().await.unwrap().slots;
        let answer = server.log.callbacks.lock().unwrap()[0].results[1].clone();
        (answer, slots)
    };
    let done = OffloadInfo::Ok(response(1, false, StableHow::FILE_SYNC));
    assert_eq!(ask(completion(done)).await.0, CbResOp::Offload(Err(Status::BAD_STATEID)));
    let (answer, _) = ask(CbArgOp::RecallSlot(CbRecallSlotArgs { target_highest_slot_id: 2 })).await;
    assert_eq!(answer, CbResOp::RecallSlot(Ok(())));
    assert_eq!(ask(CbArgOp::Illegal).await.0.status(), Status::OP_ILLEGAL);
}

/// RFC 8881 15.3, 20, RFC 7862 11.3: every number of a callback, with arguments of zeros and with none, in both minor
/// versions: answered by a status that the table of callbacks allows; what is not served is NOTSUPP, what there is not
/// (in that minor version) OP_ILLEGAL, what does not decode BADXDR. The client goes on.
#[tokio::test]
async fn every_callback_number_is_answered_by_the_table() {
    for minor in [1, 2] {
        let next = std::sync::Arc::new(std::sync::Mutex::new(Bytes::new()));
        let send = next.clone();
        let server = start(move |req| {
            let ask = req.ops.iter().any(|op| matches!(op, ArgOp::GetFh));
            ask.then(|| Act::CallBackBytes(send.lock().unwrap().clone(), results(req, default_result)))
        })
        .await;
        let mut config = config(server.addr);
        config.minor_versions = vec![minor];
        let client = Client::connect(config).await.unwrap();
        for number in (0..=17).chain([10_044, 10_045, u32::MAX]) {
            for args in [&[][..], &[0; 200]] {
                let op = [&number.to_be_bytes()[..], args].concat();
                *next.lock().unwrap() = op.into();
                client.compound(vec![ArgOp::PutRootFh, ArgOp::GetFh], Default::default()).await.unwrap();
                let answer = server.log.callbacks.lock().unwrap().last().unwrap().results[1].clone();
                let status = answer.status();
                match cbtable::lookup_minor(CbOpNum(number), minor) {
                    None => assert_eq!(answer, CbResOp::error(CbOpNum::ILLEGAL, Status::OP_ILLEGAL), "{number}"),
                    Some(_) if number == 10_044 => assert_eq!(status, Status::OP_ILLEGAL),
                    Some(info) => assert!(info.allows(status), "{number}: {status:?}"),
                }
                let served = [3, 4, 8, 10, 11, 13, 15].contains(&number);
                let known = cbtable::lookup_minor(CbOpNum(number), minor).is_some() && number != 10_044;
                if known && !served {
                    assert_eq!(status, Status::NOTSUPP, "{number}");
                } else if known && args.is_empty() {
                    assert_eq!(status, Status::BADXDR, "{number}");
                }
            }
        }
        client.session_info().await.unwrap();
    }
}

/// RFC 7862 sections 15.2.3 and 15.3: the source's handle is saved, the destination's current, and COPY carries the
/// copy-notify stateid and the source's addresses.
#[tokio::test]
async fn a_copy_between_servers_says_where_from() {
    const LENT: Stateid = Stateid { seqid: 1, other: [8; 12] };
    let at = || NetLoc::Addr(NetAddr { netid: Bytes::from_static(b"tcp"), addr: Bytes::from_static(b"192.0.2.1.8.1") });
    let source = start(move |req| {
        req.ops.iter().any(|op| op.op() == OpNum::COPY_NOTIFY).then(|| {
            Act::Ops(results(req, |op| match op {
                ArgOp::CopyNotify(a) => {
                    assert_eq!(a.destination_server, NetLoc::Name(Bytes::from_static(b"dst.example")));
                    assert_eq!(a.src_stateid.other, [3; 12], "the stateid of the open");
                    Some(ResOp::CopyNotify(Ok(CopyNotifyOk {
                        lease_time: Default::default(),
                        stateid: LENT,
                        source_server: vec![at()],
                    })))
                }
                op => default_result(op),
            }))
        })
    })
    .await;
    let target = start(move |req| {
        is_copy(req).then(|| {
            let ops: Vec<_> = req.ops.iter().map(ArgOp::op).collect();
            assert!(ops.ends_with(&[OpNum::PUTFH, OpNum::SAVEFH, OpNum::PUTFH, OpNum::COPY]), "{ops:?}");
            Act::Ops(results(req, |op| match op {
                ArgOp::Copy(a) => {
                    assert_eq!((a.src_stateid, a.source_server.clone()), (LENT, vec![at()]));
                    Some(ResOp::Copy(CopyRes::Ok(CopyOk {
                        response: response(1000, false, StableHow::FILE_SYNC),
                        requirements: CopyRequirements { consecutive: true, synchronous: true },
                    })))
                }
                op => default_result(op),
            }))
        })
    })
    .await;
    let (from, to) =
        (Client::connect(config(source.addr)).await.unwrap(), Client::connect(config(target.addr)).await.unwrap());
    let a = from.fs().open("a", &OpenOptions::read()).await.unwrap();
    let b = to.fs().open("b", &OpenOptions::write()).await.unwrap();
    let lent = a.copy_notify(NetLoc::Name(Bytes::from_static(b"dst.example"))).await.unwrap();
    let remote = RemoteSource::new(&a, lent);
    match b.begin_copy_from(&remote, 0, 0, 1000, &CopyOptions::default()).await.unwrap() {
        CopyBegun::Done(copied) => assert_eq!(copied.bytes, 1000),
        other => panic!("{other:?}"),
    }
}
