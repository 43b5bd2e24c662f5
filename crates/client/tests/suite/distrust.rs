//! Servers that send nonsense: a clear error, no panic, no memory without bound (cases B22 and B50).

use crate::common::config;
use crate::script::{Act, Req, answer, default_result, results, start};
use bytes::Bytes;
use dhow_client::v4::ops::{DirEntry, GetFhOk, GetattrOk, ReadOk, ReaddirOk, WriteOk};
use dhow_client::v4::{ArgOp, Attrs, FileHandle, FileType, ResOp, StableHow, Status, Verifier};
use dhow_client::{CallOptions, Client, Error, OpenOptions, STAT};
use dhow_xdr::Encode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

async fn client(script: impl Fn(&Req) -> Option<Act> + Send + Sync + 'static) -> Client {
    let server = start(script).await;
    Client::connect(config(server.addr)).await.unwrap()
}

fn protocol<T: std::fmt::Debug>(result: Result<T, Error>, part: &str) {
    match result {
        Err(Error::Protocol(why)) => assert!(why.contains(part), "{why}"),
        other => panic!("wanted a protocol error about {part:?}, got {other:?}"),
    }
}

fn has(req: &Req, wanted: fn(&ArgOp) -> bool) -> bool {
    req.ops.iter().any(wanted)
}

/// Case B50: cookies that repeat for ever.
#[tokio::test]
async fn cookies_that_do_not_advance_end_the_listing() {
    let entry = |name: &'static str, cookie| DirEntry {
        cookie,
        name: Bytes::from_static(name.as_bytes()),
        attrs: Attrs::default(),
    };
    let page = move |cookies: [u64; 2], eof| {
        ResOp::Readdir(Ok(ReaddirOk {
            verifier: Verifier([1; 8]),
            entries: vec![entry("a", cookies[0]), entry("b", cookies[1])],
            eof,
        }))
    };
    let same = client(move |req| {
        has(req, |op| matches!(op, ArgOp::Readdir(_))).then(|| {
            Act::Ops(results(req, |op| match op {
                ArgOp::Readdir(_) => Some(page([4, 5], false)),
                op => directory(op),
            }))
        })
    })
    .await;
    protocol(same.fs().readdir("/", STAT).await.unwrap().collect().await, "circles");

    // Two pages that lead to each other.
    let round = client(move |req| {
        has(req, |op| matches!(op, ArgOp::Readdir(_))).then(|| {
            Act::Ops(results(req, |op| match op {
                ArgOp::Readdir(a) if a.cookie == 9 => Some(page([4, 5], false)),
                ArgOp::Readdir(_) => Some(page([8, 9], false)),
                op => directory(op),
            }))
        })
    })
    .await;
    protocol(round.fs().readdir("/", STAT).await.unwrap().collect().await, "circles");

    // A page that holds nothing and is not the last.
    let empty = client(|req| {
        has(req, |op| matches!(op, ArgOp::Readdir(_))).then(|| {
            Act::Ops(results(req, |op| match op {
                ArgOp::Readdir(_) => {
                    Some(ResOp::Readdir(Ok(ReaddirOk { verifier: Verifier([1; 8]), entries: vec![], eof: false })))
                }
                op => directory(op),
            }))
        })
    })
    .await;
    protocol(empty.fs().readdir("/", STAT).await, "no entries");
}

fn directory(op: &ArgOp) -> Option<ResOp> {
    match op {
        ArgOp::Getattr(_) => Some(ResOp::Getattr(Ok(GetattrOk {
            attrs: Box::new(Attrs { file_type: Some(FileType::DIR), ..Attrs::default() }),
        }))),
        op => default_result(op),
    }
}

/// A name that would lead a recursive copy out of its directory.
#[tokio::test]
async fn impossible_names_are_refused() {
    for name in ["..", ".", "", "a/b", "/etc/passwd", "a\0b"] {
        let c = client(move |req| {
            has(req, |op| matches!(op, ArgOp::Readdir(_))).then(|| {
                Act::Ops(results(req, |op| match op {
                    ArgOp::Readdir(_) => Some(ResOp::Readdir(Ok(ReaddirOk {
                        verifier: Verifier([1; 8]),
                        entries: vec![DirEntry {
                            cookie: 3,
                            name: Bytes::from_static(name.as_bytes()),
                            attrs: Attrs::default(),
                        }],
                        eof: true,
                    }))),
                    op => directory(op),
                }))
            })
        })
        .await;
        protocol(c.fs().readdir("/", STAT).await, "entry named");
    }
}

/// Case B22: more data than asked for, a count above what was sent.
#[tokio::test]
async fn replies_that_claim_more_are_refused() {
    let c = client(|req| {
        has(req, |op| matches!(op, ArgOp::Read(_) | ArgOp::Write(_))).then(|| {
            Act::Ops(results(req, |op| match op {
                ArgOp::Read(a) => {
                    let data = Bytes::from(vec![0; a.count as usize + 1]);
                    Some(ResOp::Read(Ok(ReadOk { eof: false, data })))
                }
                ArgOp::Write(a) => Some(ResOp::Write(Ok(WriteOk {
                    count: a.data.len() as u32 + 1,
                    committed: StableHow::FILE_SYNC,
                    verifier: Verifier([0; 8]),
                }))),
                op => default_result(op),
            }))
        })
    })
    .await;
    let file = c.fs().open("f", &OpenOptions::read_write()).await.unwrap();
    protocol(file.read_at(0, 100).await, "READ claims more");
    protocol(file.write_at(0, Bytes::from_static(b"abc"), StableHow::UNSTABLE).await, "WRITE claims more");
    // The slots are in order: the client goes on.
    assert!(c.compound(vec![ArgOp::PutRootFh], CallOptions::default()).await.is_ok());
}

/// No progress: a READ that returns nothing and no end, a WRITE that writes nothing.
#[tokio::test]
async fn no_progress_is_an_error() {
    let c = client(|req| {
        has(req, |op| matches!(op, ArgOp::Read(_) | ArgOp::Write(_))).then(|| {
            Act::Ops(results(req, |op| match op {
                ArgOp::Read(_) => Some(ResOp::Read(Ok(ReadOk { eof: false, data: Bytes::new() }))),
                ArgOp::Write(_) => Some(ResOp::Write(Ok(WriteOk {
                    count: 0,
                    committed: StableHow::FILE_SYNC,
                    verifier: Verifier([0; 8]),
                }))),
                op => default_result(op),
            }))
        })
    })
    .await;
    let file = c.fs().open("f", &OpenOptions::read_write()).await.unwrap();
    protocol(file.read_full_at(0, 100).await, "nothing");
    protocol(file.write_all_at(0, Bytes::from_static(b"abc"), StableHow::UNSTABLE).await, "nothing");
}

/// Rubbish after a good SEQUENCE costs that one call; a reply of another slot costs the connection, nothing more.
#[tokio::test]
async fn rubbish_is_survived() {
    let n = AtomicU64::new(0);
    let c = client(move |req| {
        has(req, |op| matches!(op, ArgOp::GetFh)).then(|| {
            let n = n.fetch_add(1, Relaxed);
            match n {
                0 => Act::Raw(Bytes::from_static(&[0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff])),
                1 => Act::Raw(Bytes::from_static(&[1])),
                2 => Act::Raw(Bytes::from(vec![0xff; 3000])),
                3 => Act::Ops(vec![ResOp::Readlink(Err(Status::IO))]),
                4 => Act::Ops(Vec::new()),
                5 => Act::Ops(vec![ResOp::PutRootFh(Ok(())); 9]),
                6 => Act::Ops(vec![
                    ResOp::PutRootFh(Ok(())),
                    ResOp::GetFh(Ok(GetFhOk { object: FileHandle(Bytes::from(vec![1; 200])) })),
                ]),
                _ => Act::Ops(results(req, default_result)),
            }
        })
    })
    .await;
    let ask = || c.compound(vec![ArgOp::PutRootFh, ArgOp::GetFh], CallOptions::default());
    for n in 0..7 {
        let got = ask().await;
        assert!(matches!(got, Err(Error::Protocol(_) | Error::OutcomeUnknown { .. })), "{n}: {got:?}");
    }
    assert_eq!(ask().await.unwrap().status, Status::OK);
}

/// Case B22: a record mark of almost 2 GiB, and one that lies. Neither is allocated for; the connection is made anew.
#[tokio::test]
async fn huge_records_cost_the_connection_only() {
    let n = AtomicU64::new(0);
    let c = client(move |req| {
        has(req, |op| matches!(op, ArgOp::GetFh)).then(|| match n.fetch_add(1, Relaxed) {
            0 => Act::Bytes(vec![0xff; 8]),
            1 => Act::Bytes(vec![0x80, 0, 0, 0]),
            2 => Act::Bytes([0u8; 4].repeat(1000)),
            3 => Act::Bytes(vec![0x80, 0, 0, 9, 1, 2, 3, 4, 0, 0, 0, 7, 0]),
            _ => Act::Ops(results(req, default_result)),
        })
    })
    .await;
    let res = c.compound(vec![ArgOp::PutRootFh, ArgOp::GetFh], CallOptions::default()).await.unwrap();
    assert_eq!(res.status, Status::OK);
    assert!(c.counters().snapshot().connects >= 5);
}

#[tokio::test]
async fn a_handle_of_no_bytes_is_refused() {
    let c = client(|req| {
        has(req, |op| matches!(op, ArgOp::GetFh)).then(|| {
            Act::Ops(results(req, |op| match op {
                ArgOp::GetFh => Some(ResOp::GetFh(Ok(GetFhOk { object: FileHandle(Bytes::new()) }))),
                op => default_result(op),
            }))
        })
    })
    .await;
    protocol(c.fs().stat("x").await, "filehandle");
}

/// Symbolic links that lead to each other through a server's answers.
#[tokio::test]
async fn links_without_end_are_given_up() {
    let c = client(|req| {
        Some(Act::Ops(results(req, |op| match op {
            ArgOp::Getattr(_) => Some(ResOp::Getattr(Ok(GetattrOk {
                attrs: Box::new(Attrs { file_type: Some(FileType::LNK), ..Attrs::default() }),
            }))),
            ArgOp::Readlink => {
                Some(ResOp::Readlink(Ok(dhow_client::v4::ops::ReadlinkOk { link: Bytes::from_static(b"a/b/c/d") })))
            }
            op => default_result(op),
        })))
    })
    .await;
    assert!(matches!(c.fs().stat("x").await, Err(Error::TooManyLinks(_))));
}

/// Replies with bytes changed, cut off and put in: an answer or an error, never a panic or a call without end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mutated_replies_never_panic() {
    let random = Arc::new(AtomicU64::new(1));
    let draw = {
        let random = random.clone();
        move || {
            // SplitMix64.
            let mut z = random.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed);
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }
    };
    let server = start(move |req| {
        // Set-up stays whole; so do two replies of three, so that the client gets somewhere.
        if req.sequence.is_none() || req.ops.is_empty() || draw() % 3 != 0 {
            return Some(Act::Ops(results(req, answered)));
        }
        let mut bytes = answer(req, results(req, answered)).to_bytes().to_vec();
        for _ in 0..1 + draw() % 4 {
            let at = (draw() % bytes.len() as u64) as usize;
            match draw() % 4 {
                0 => bytes[at] ^= 1 << (draw() % 8),
                1 => bytes[at & !3..].iter_mut().take(4).for_each(|b| *b = 0xff),
                2 => bytes.truncate(at.max(1)),
                _ => bytes.insert(at, draw() as u8),
            }
        }
        Some(Act::Raw(bytes.into()))
    })
    .await;
    let mut config = config(server.addr);
    config.call_timeout = Some(std::time::Duration::from_secs(5));
    let client = Client::connect(config).await.unwrap();
    let fs = client.fs();
    let (mut good, mut bad) = (0, 0);
    // A task that panicked looks like a closed client.
    let mut note = |error: Option<Error>| match error {
        None => good += 1,
        Some(Error::Closed) => panic!("a task panicked, or the client gave up"),
        Some(_) => bad += 1,
    };
    for _ in 0..60 {
        note(fs.stat("a/b").await.err());
        note(async { fs.readdir("d", STAT).await?.collect().await }.await.err());
        note(fs.getxattr("a", "b").await.err());
        match fs.open("f", &OpenOptions::read_write()).await {
            Ok(file) => {
                note(file.read_full_at(0, 1000).await.err());
                note(file.write_all_at(0, Bytes::from_static(b"abc"), StableHow::UNSTABLE).await.err());
                note(file.try_lock(true, 0, 1).await.err());
                note(file.close().await.err());
            }
            Err(e) => note(Some(e)),
        }
    }
    assert!(good > 0 && bad > 0, "{good} good, {bad} bad");
}

/// Something for every operation that the test above uses.
fn answered(op: &ArgOp) -> Option<ResOp> {
    match op {
        ArgOp::Readdir(_) => Some(ResOp::Readdir(Ok(ReaddirOk {
            verifier: Verifier([1; 8]),
            entries: vec![DirEntry { cookie: 3, name: Bytes::from_static(b"x"), attrs: Attrs::default() }],
            eof: true,
        }))),
        ArgOp::Read(a) => {
            Some(ResOp::Read(Ok(ReadOk { eof: true, data: Bytes::from(vec![0; a.count.min(500) as usize]) })))
        }
        ArgOp::Write(a) => Some(ResOp::Write(Ok(WriteOk {
            count: a.data.len() as u32,
            committed: StableHow::FILE_SYNC,
            verifier: Verifier([0; 8]),
        }))),
        ArgOp::Getxattr(_) => Some(ResOp::Getxattr(Ok(dhow_client::v4::ops::GetxattrOk { value: Bytes::new() }))),
        ArgOp::Lock(_) => {
            let stateid = dhow_client::v4::Stateid { seqid: 1, other: [4; 12] };
            Some(ResOp::Lock(dhow_client::v4::ops::LockRes::Ok(stateid)))
        }
        op => default_result(op),
    }
}
