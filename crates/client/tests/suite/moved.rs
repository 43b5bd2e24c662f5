//! Filesystems at another server (RFC 8881 sections 11.4.1, 11.11.9.2, 11.13, 11.16): named, and not followed.

use crate::common::config;
use crate::script::{Act, Req, default_result, start};
use bytes::Bytes;
use dhow_client::v4::ops::*;
use dhow_client::v4::{
    ArgOp, Attrs, ByteStrings, FileHandle, FileType, FsId, FsLocation, FsLocations, OpNum, ResOp, StableHow, Status,
    attr,
};
use dhow_client::{Client, Create, Error, OpenOptions};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Files `a…` are in filesystem 1, files `b…` in filesystem 2, which is somewhere else once `moved` is set.
#[derive(Default)]
struct Two {
    moved: bool,
    /// What the server waits for before it clears LEASE_MOVED.
    refused: bool,
    located: bool,
    /// Never clear the flag.
    stays: bool,
    /// Questions for the locations, and operations that were refused.
    asked: usize,
    /// EXCHANGE_ID and TEST_STATEID.
    begun: usize,
    refusals: usize,
}

impl Two {
    fn act(&mut self, req: &Req) -> Act {
        let mut results = Vec::new();
        let mut current = Bytes::from_static(b"a");
        for op in &req.ops {
            self.begun += usize::from(matches!(op, ArgOp::ExchangeId(_) | ArgOp::TestStateid(_)));
            let absent = self.moved && current.starts_with(b"b");
            let res = match op {
                ArgOp::PutRootFh => {
                    current = Bytes::from_static(b"a");
                    default_result(op).unwrap()
                }
                ArgOp::PutFh(args) => {
                    current = args.object.0.clone();
                    default_result(op).unwrap()
                }
                ArgOp::Lookup(args) => {
                    current = args.name.clone();
                    default_result(op).unwrap()
                }
                ArgOp::Getattr(args) if absent && args.attr_request.contains(attr::FS_LOCATIONS) => {
                    (self.located, self.asked) = (true, self.asked + 1);
                    let name = Bytes::from_static;
                    let at = |server: &'static [u8]| FsLocation {
                        servers: ByteStrings(vec![name(server)]),
                        root: ByteStrings(vec![name(b"x"), name(b"y z")]),
                    };
                    let locations = vec![at(b"bad name\n"), at(b"serv2"), at(b"10.0.0.1.8.2")];
                    let found = FsLocations { root: ByteStrings(vec![name(b"b")]), locations };
                    let attrs = Attrs { fs_locations: Some(found), ..Attrs::default() };
                    ResOp::Getattr(Ok(GetattrOk { attrs: Box::new(attrs) }))
                }
                _ if absent => {
                    (self.refused, self.refusals) = (true, self.refusals + 1);
                    ResOp::error(op.op(), Status::MOVED)
                }
                ArgOp::Getattr(_) => ResOp::Getattr(Ok(GetattrOk {
                    attrs: Box::new(Attrs {
                        file_type: Some(FileType::REG),
                        fsid: Some(FsId { major: current[0].into(), minor: 0 }),
                        lease_time: Some(60),
                        ..Attrs::default()
                    }),
                })),
                ArgOp::Open(args) => {
                    if let OpenClaim::Null(name) = &args.claim {
                        current = name.clone();
                    }
                    default_result(op).unwrap()
                }
                ArgOp::GetFh => ResOp::GetFh(Ok(GetFhOk { object: FileHandle(current.clone()) })),
                ArgOp::Write(_) => ResOp::Write(Ok(WriteOk {
                    count: 1,
                    committed: StableHow::FILE_SYNC,
                    verifier: Default::default(),
                })),
                op => default_result(op).unwrap_or_else(|| ResOp::error(op.op(), Status::NOTSUPP)),
            };
            let failed = !res.status().is_ok();
            results.push(res);
            if failed {
                break;
            }
        }
        let flagged = self.moved && (self.stays || !(self.refused && self.located));
        Act::Flagged(if flagged { seq4_status::LEASE_MOVED } else { 0 }, results)
    }
}

async fn two() -> (Arc<Mutex<Two>>, Client) {
    let two = Arc::new(Mutex::new(Two::default()));
    let shared = two.clone();
    let server = start(move |req| Some(shared.lock().unwrap().act(req))).await;
    (two, Client::connect(config(server.addr)).await.unwrap())
}

/// Sections 11.4.1 and 11.16: who meets MOVED is told where to, by one more call.
#[tokio::test]
async fn moved_names_the_new_place() {
    let (two, client) = two().await;
    let options = OpenOptions::read_write().create(Create::IfMissing, 0o644);
    let file = client.fs().open("b", &options).await.unwrap();
    two.lock().unwrap().moved = true;
    let e = client.fs().stat("b").await.unwrap_err();
    let said = "b: moved to nfs://serv2/x/y%20z and 1 other places, which is not followed (GETFH: MOVED)";
    assert_eq!(e.to_string(), said);
    assert!(e.is(Status::MOVED));
    let Error::Moved { to, .. } = e else { panic!("{e}") };
    assert_eq!(to[1].to_string(), "nfs://10.0.0.1:2050/x/y%20z");
    let e = file.write_at(0, Bytes::from_static(b"x"), StableHow::FILE_SYNC).await.unwrap_err();
    assert!(matches!(e, Error::Moved { op: OpNum::WRITE, .. }), "{e}");
    let e = file.close().await.unwrap_err();
    assert!(matches!(e, Error::Moved { op: OpNum::CLOSE, .. }), "{e}");
    // The other filesystem is where it was.
    client.fs().stat("a").await.unwrap();
}

/// Sections 11.11.9.2 and 11.13.2: LEASE_MOVED has each filesystem with open files asked, until the flag is cleared.
#[tokio::test]
async fn a_moved_lease_is_found_out_about() {
    let (two, client) = two().await;
    let options = OpenOptions::read_write().create(Create::IfMissing, 0o644);
    let mut files = Vec::new();
    for name in ["a1", "a2", "a3", "b1", "b2"] {
        files.push(client.fs().open(name, &options).await.unwrap());
    }
    two.lock().unwrap().moved = true;
    // Any reply has the flag.
    client.fs().stat("a").await.unwrap();
    let cleared = || {
        let two = two.lock().unwrap();
        two.refused && two.located
    };
    for _ in 0..1000 {
        if cleared() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(cleared(), "the server still waits");
    assert_eq!(two.lock().unwrap().asked, 1, "one file of each filesystem is enough");
    assert_eq!(two.lock().unwrap().begun, 1, "client ID and stateids are good");
    files[0].write_at(0, Bytes::from_static(b"x"), StableHow::FILE_SYNC).await.unwrap();
}

/// A flag that no answer clears does not double every call.
#[tokio::test]
async fn a_flag_that_stays_is_not_heeded_after_every_reply() {
    let (two, client) = two().await;
    let options = OpenOptions::read_write().create(Create::IfMissing, 0o644);
    let _file = client.fs().open("b", &options).await.unwrap();
    (two.lock().unwrap().moved, two.lock().unwrap().stays) = (true, true);
    for _ in 0..100 {
        client.fs().stat("a").await.unwrap();
    }
    assert!(two.lock().unwrap().refusals <= 20);
}
