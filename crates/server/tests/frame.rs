//! The server's frame over virtual streams: concurrency, draining, panics, back-pressure.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use bytes::Bytes;
use dhow_proto::v4::ops::{SequenceArgs, share};
use dhow_proto::v4::{ArgOp, Attrs, ResOp, StableHow, Stateid, Status, Verifier, attr};
use dhow_rpc::Credential;
use dhow_server::{ExportConfig, ExportOptions, Running, Server, ServerConfig, Squash};
use dhow_testkit::fault::{Action, Call};
use dhow_testkit::memfs::{Clock, Options};
use dhow_testkit::wire::{Client, ClientOptions, Open, Wire, op};
use dhow_testkit::{Fault, MemFs};
use dhow_vfs::{Backend, ErrorKind, Time};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

async fn start(backend: Arc<dyn Backend>) -> Running {
    let options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
    let export = ExportConfig { path: "/e".into(), backend, options };
    Server::start(ServerConfig::in_memory(vec![export]).unwrap()).await.unwrap()
}

fn wire(server: &Running, pipe: usize) -> Wire {
    let (near, far) = tokio::io::duplex(pipe);
    server.serve_stream(far, None);
    Wire::new(near)
}

async fn client(server: &Running, name: &str) -> Client {
    Client::over(wire(server, 1 << 16), ClientOptions::named(name)).await
}

/// Sends operations whose reply need not be kept, as large ones cannot be.
async fn send(c: &mut Client, slot: u32, ops: &[ArgOp]) -> u32 {
    let sequence = ArgOp::Sequence(c.session.sequence(slot, false));
    let all: Vec<ArgOp> = std::iter::once(sequence).chain(ops.iter().cloned()).collect();
    c.wire.send_compound(c.minor, &all).await
}

async fn read(c: &mut Client, open: &Open, offset: u64, count: u32) -> (Bytes, bool) {
    let xid = send(c, 0, &[op::put(&open.fh), op::read(open.stateid, offset, count)]).await;
    match c.wait(xid).await.results.pop() {
        Some(ResOp::Read(Ok(ok))) => (ok.data, ok.eof),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_way_of_a_file() {
    let server = start(MemFs::new()).await;
    let mut c = client(&server, "a").await;
    let root = c.walk("/e").await;
    let open = c.create(&root, "f").await;
    let data: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
    c.write(&open, 0, &data).await;
    let (got, eof) = read(&mut c, &open, 0, 1 << 20).await;
    assert!(eof && got == data);
    let attrs = c.attrs(&open.fh, &[attr::SIZE, attr::TYPE, attr::SPACE_FREE, attr::OWNER]).await;
    assert_eq!((attrs.size, attrs.owner), (Some(300_000), Some(Bytes::from_static(b"0"))));
    assert!(attrs.space_free.is_some());
    c.close(&open).await;
    let (got, _) = {
        let owner = c.owner("again");
        let open = c.open(&root, op::open_name(owner, share::ACCESS_READ, share::DENY_NONE, "f")).await;
        read(&mut c, &open, 299_990, 100).await
    };
    assert_eq!(got, &data[299_990..]);
    let m = &server.shared().metrics;
    assert_eq!(m.panics.load(Relaxed), 0);
    assert!(server.shared().net.metrics.aligned.load(Relaxed) > 0, "the WRITE's payload was aligned");
    server.shutdown().await;
}

/// Case B44: a slow operation delays only itself.
#[tokio::test]
async fn replies_leave_in_any_order() {
    let fault = Fault::new(MemFs::new());
    let server = start(fault.clone()).await;
    let mut c = client(&server, "a").await;
    let root = c.walk("/e").await;
    let open = c.create(&root, "f").await;
    c.write(&open, 0, b"data").await;
    let gate = fault.hold(Call::Read);
    let slow = c.send(1, &[op::put(&open.fh), op::read(open.stateid, 0, 4)]).await;
    gate.arrived(1).await;
    for _ in 0..100 {
        c.ok(&[op::put(&open.fh), op::getattr(&[attr::SIZE])]).await;
    }
    gate.open();
    let res = c.wait(slow).await;
    assert!(matches!(&res.results[2], ResOp::Read(Ok(ok)) if ok.data == "data"));
}

#[tokio::test]
async fn shutting_down_answers_what_runs() {
    let fault = Fault::new(MemFs::new());
    let server = start(fault.clone()).await;
    let mut c = client(&server, "a").await;
    let root = c.walk("/e").await;
    let gate = fault.hold(Call::Access);
    let slow = c.send(1, &[op::put(&root), op::access(1)]).await;
    gate.arrived(1).await;
    let down = tokio::spawn(server.shutdown());
    tokio::time::sleep(Duration::from_millis(50)).await;
    gate.open();
    let res = c.wait(slow).await;
    assert!(res.status.is_ok());
    down.await.unwrap();
    c.wire.closed().await;
}

/// A panic in a backend is a fault of one operation, and its slot goes on.
#[tokio::test]
async fn a_panic_is_serverfault() {
    let broken = Arc::new(AtomicBool::new(false));
    let clock = {
        let broken = broken.clone();
        Clock::Of(Arc::new(move || {
            assert!(!broken.load(Relaxed), "the clock is broken, as this test wants it");
            Time { secs: 1, nanos: 0 }
        }))
    };
    let server = start(MemFs::with(Options { clock, ..Options::default() })).await;
    let mut c = client(&server, "a").await;
    let root = c.walk("/e").await;
    broken.store(true, Relaxed);
    let res = c.run(&[op::put(&root), op::mkdir("d"), op::getfh()]).await;
    broken.store(false, Relaxed);
    assert_eq!((res.status, res.results.len()), (Status::SERVERFAULT, 3));
    assert_eq!(server.shared().metrics.panics.load(Relaxed), 1);
    c.ok(&[op::put(&root), op::mkdir("d"), op::getfh()]).await;
}

/// Case B46: a peer that does not take its replies is held back and pins no more than its budget.
#[tokio::test]
async fn a_peer_that_does_not_read() {
    let fs = MemFs::new();
    let export = ExportConfig {
        path: "/e".into(),
        backend: fs,
        options: ExportOptions { squash: Squash::None, ..ExportOptions::default() },
    };
    let mut config = ServerConfig::in_memory(vec![export]).unwrap();
    config.limits.reply_bytes_per_connection = 4 << 20;
    let server = Server::start(config).await.unwrap();
    let mut c = client(&server, "a").await;
    let root = c.walk("/e").await;
    let open = c.create(&root, "f").await;
    c.write(&open, 0, &vec![7; 1 << 20]).await;
    let mut sent = Vec::new();
    for slot in 1..60 {
        sent.push(send(&mut c, slot, &[op::put(&open.fh), op::read(open.stateid, 0, 1 << 20)]).await);
    }
    // All are taken in, since they are small, but most wait for budget before they read.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let waiting: usize = server.shared().conns.lock().values().map(|c| c.conn.waiting_bytes()).sum();
    assert!(waiting <= 6 << 20, "{waiting} bytes wait");
    // Others are served meanwhile.
    client(&server, "b").await.walk("/e").await;
    for xid in sent {
        let res = c.wait(xid).await;
        assert!(matches!(res.results.last(), Some(ResOp::Read(Ok(ok))) if ok.data.len() == 1 << 20));
    }
}

#[tokio::test]
async fn large_writes_are_taken_by_reference_and_by_many_at_once() {
    let server = start(MemFs::new()).await;
    let mut c = client(&server, "a").await;
    let root = c.walk("/e").await;
    let open = c.create(&root, "f").await;
    let mut sent = Vec::new();
    for i in 0..16u32 {
        let data = vec![i as u8; 1 << 20];
        let write = op::write(open.stateid, u64::from(i) << 20, StableHow::UNSTABLE, data);
        sent.push(c.send(i, &[op::put(&open.fh), write]).await);
    }
    for xid in sent {
        assert!(c.wait(xid).await.status.is_ok());
    }
    let (got, _) = read(&mut c, &open, 7 << 20, 1 << 20).await;
    assert!(got.len() == 1 << 20 && got.iter().all(|b| *b == 7));
    assert_eq!(server.shared().net.budget.free(), server.shared().net.budget.total());
    let anon = c.run(&[op::put(&open.fh), op::read(Stateid::ANONYMOUS, 0, 1)]).await;
    assert!(anon.status.is_ok());
}

/// Exports inside of exports (RFC 8881 7.3): the place of one hides what lies there; directories on the way stay.
#[tokio::test]
async fn exports_inside_of_exports() {
    let fs = |id| MemFs::with(Options { id, ..Options::default() });
    let (outer, data, deep) = (fs(1), fs(2), fs(3));
    let options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
    let export = |path: &str, backend: &Arc<MemFs>| ExportConfig {
        path: path.into(),
        backend: backend.clone(),
        options: options.clone(),
    };
    // What the outer one holds, before the others are there.
    let server = Server::start(ServerConfig::in_memory(vec![export("/", &outer)]).unwrap()).await.unwrap();
    let mut c = client(&server, "a").await;
    let root = c.walk("/").await;
    let hidden = c.mkdir(&root, "data").await;
    c.create(&hidden, "hidden").await;
    let srv = c.mkdir(&root, "srv").await;
    let x = c.mkdir(&srv, "x").await;
    c.create(&x, "kept").await;
    server.shutdown().await;

    let exports =
        vec![export("/", &outer), export("/data", &data), export("/srv/x/deep", &deep), export("/n/e", &deep)];
    let server = Server::start(ServerConfig::in_memory(exports).unwrap()).await.unwrap();
    let mut c = client(&server, "a").await;
    let root = c.walk("/").await;
    let fsid = |a: Attrs| a.fsid.unwrap();
    let top = fsid(c.attrs(&root, &[attr::FSID]).await);
    // The place of an export hides the directory, in a listing too.
    let inside = c.walk("/data").await;
    assert_eq!(c.status(&[op::put(&inside), op::lookup("hidden")]).await, Status::NOENT);
    let second = fsid(c.attrs(&inside, &[attr::FSID]).await);
    assert_ne!(top, second);
    let bits = [attr::FSID, attr::FILEHANDLE];
    let page = c.ok(&[op::put(&root), op::readdir(0, Verifier::default(), 8192, &bits)]).await;
    let Some(ResOp::Readdir(Ok(page))) = page.into_iter().nth(1) else { panic!() };
    let of = |name: &str| page.entries.iter().find(|e| e.name == name).unwrap().attrs.clone();
    assert_eq!((of("data").fsid, of("data").filehandle), (Some(second), Some(inside.clone())));
    assert_eq!(of("srv").fsid, Some(top));
    // Directories on the way to one are the real ones.
    let kept = c.walk("/srv/x/kept").await;
    assert_eq!(fsid(c.attrs(&kept, &[attr::FSID]).await), top);
    let third = c.walk("/srv/x/deep").await;
    assert_ne!(fsid(c.attrs(&third, &[attr::FSID]).await), top);
    // Where they are not there, the way leads on all the same.
    c.walk("/n/e").await;
    // And back.
    let up = c.ok(&[op::put(&inside), ArgOp::Lookupp, op::getfh()]).await;
    assert!(matches!(&up[2], ResOp::GetFh(Ok(ok)) if ok.object == root));
    let x = c.walk("/srv/x").await;
    let up = c.ok(&[op::put(&third), ArgOp::Lookupp, op::getfh()]).await;
    assert!(matches!(&up[2], ResOp::GetFh(Ok(ok)) if ok.object == x));
    assert_eq!(c.status(&[op::put(&root), ArgOp::Lookupp]).await, Status::NOENT);
}

/// A retry may name another highest slot, and another stamp in its credential: it is a retry all the same. (Case B25
/// is about requests that are different.)
#[tokio::test]
async fn an_honest_retry_is_no_false_one() {
    let server = start(MemFs::new()).await;
    let mut c = client(&server, "a").await;
    let root = c.walk("/e").await;
    let SequenceArgs { session_id, sequence_id, .. } = c.session.sequence(3, true);
    let request = |highest_slot_id| {
        let sequence = SequenceArgs { session_id, sequence_id, slot_id: 3, highest_slot_id, cache_this: true };
        [ArgOp::Sequence(sequence), op::put(&root), op::mkdir("once"), op::getfh()]
    };
    let first = c.wire.compound(2, &request(5)).await;
    assert!(first.status.is_ok());
    let Credential::Sys(sys) = &mut c.wire.cred else { panic!() };
    sys.stamp += 1;
    assert_eq!(c.wire.compound(2, &request(63)).await, first, "the directory was made once");
    let Credential::Sys(sys) = &mut c.wire.cred else { panic!() };
    sys.gids.push(7);
    assert_eq!(c.wire.compound(2, &request(5)).await.status, Status::SEQ_FALSE_RETRY);
}

/// Case K07: shutting down stops copies that run, rather than waiting for their end.
#[tokio::test]
async fn shutting_down_stops_copies() {
    let fs = MemFs::new();
    let fault = Fault::new(fs.clone());
    let options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
    let export = ExportConfig { path: "/e".into(), backend: fault.clone(), options };
    let mut config = ServerConfig::in_memory(vec![export]).unwrap();
    config.copy.sync_budget = Duration::ZERO;
    config.limits.drain = Duration::from_secs(600);
    let server = Server::start(config).await.unwrap();
    let mut c = client(&server, "a").await;
    let root = c.walk("/e").await;
    let (src, dst) = (c.create(&root, "src").await, c.create(&root, "dst").await);
    for i in 0..64 {
        c.write(&src, i << 20, &[7; 1 << 20]).await;
    }
    // Neither of the quick ways: the bytes go piece by piece, each taking its time.
    fault.always(Call::CloneRange, Action::Fail(ErrorKind::NotSupported));
    fault.always(Call::CopyRange, Action::Fail(ErrorKind::NotSupported));
    fault.always(Call::Write, Action::Delay(Duration::from_millis(50)));
    let copy = op::copy(src.stateid, dst.stateid, (0, 0), 0, false);
    c.ok(&[op::put(&src.fh), ArgOp::SaveFh, op::put(&dst.fh), copy]).await;
    let shared = server.shared().clone();
    assert_eq!(shared.state.counts().copies, 1);
    tokio::time::timeout(Duration::from_secs(60), server.shutdown()).await.unwrap();
    let written = fault.count(Call::Write);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(fault.count(Call::Write), written, "nothing goes on");
    let copied = fs.content_of("/dst").unwrap().len();
    assert!(copied < 64 << 20, "stopped half-way");
    assert_eq!(shared.state.counts().copies, 0);
}
