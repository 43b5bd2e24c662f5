//! COPY, CLONE and offloading (RFC 7862 4, 15.2, 15.8, 15.9, 15.13, 16.1; cases B34, B35, K01 to K13, K25, K29, K30).

use crate::common::{Srv, Watched, config, last, open_to_all, start};
use dhow_proto::v4::cb::{CbArgOp, CbOffloadArgs, CbResOp, CbSequenceArgs, OffloadInfo};
use dhow_proto::v4::ops::{CopyNotifyArgs, CopyOk, CopyRes, CreateType, DataContent, OffloadStatusOk, share};
use dhow_proto::v4::{ArgOp, Attrs, FileHandle, NetLoc, OpNum, ResOp, StableHow, Stateid, Status, Verifier, attr};
use dhow_rpc::ReplyHeader;
use dhow_server::copy::CommitPolicy;
use dhow_server::{ExportConfig, ServerConfig};
use dhow_testkit::MemFs;
use dhow_testkit::fault::{Action, Call, Gate};
use dhow_testkit::memfs::Options;
use dhow_testkit::wire::{CallBack, Callbacks, Client, ClientOptions, Open, op};
use dhow_vfs::ErrorKind;
use dhow_xdr::{Encode, Writer};
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// One COPY between two files.
fn ops(src: &FileHandle, dst: &FileHandle, copy: ArgOp) -> [ArgOp; 4] {
    [op::put(src), ArgOp::SaveFh, op::put(dst), copy]
}

async fn copy_result(c: &mut Client, src: &FileHandle, dst: &FileHandle, copy: ArgOp) -> CopyRes {
    match c.run(&ops(src, dst, copy)).await.results.pop() {
        Some(ResOp::Copy(res)) => res,
        other => panic!("{other:?}"),
    }
}

async fn copy(c: &mut Client, src: &FileHandle, dst: &FileHandle, copy: ArgOp) -> Result<CopyOk, Status> {
    match copy_result(c, src, dst, copy).await {
        CopyRes::Ok(ok) => Ok(ok),
        CopyRes::NoReqs(_) => Err(Status::OFFLOAD_NO_REQS),
        CopyRes::Err(status) => Err(status),
    }
}

/// A source of data, hole, data, and a destination full of other bytes.
async fn pair(c: &mut Client) -> (Open, Open, Vec<u8>) {
    let root = c.walk("").await;
    let src = c.create(&root, "src").await;
    let dst = c.create(&root, "dst").await;
    let data: Vec<u8> = (0..300_000_u32).map(|i| (i % 251) as u8 + 1).collect();
    c.write(&src, 0, &data).await;
    c.write(&src, MIB, &data[..5000]).await;
    c.write(&dst, 0, &vec![0xee; 600_000]).await;
    c.write(&dst, 600_000, &vec![0xee; 600_000]).await;
    let mut all = data.clone();
    all.resize(MIB as usize, 0);
    all.extend_from_slice(&data[..5000]);
    (src, dst, all)
}

/// Cases B34 and B35: ranges, with normal and with special stateids; the bytes are equal, holes are holes, what lies
/// beyond stays.
#[tokio::test]
async fn ranges() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let (src, dst, bytes) = pair(&mut c).await;
    let size = bytes.len() as u64;
    let special = (Stateid::ANONYMOUS, Stateid::ANONYMOUS);
    let bypass = (Stateid::READ_BYPASS, Stateid::ANONYMOUS);
    for (from, to) in [(src.stateid, dst.stateid), special, bypass] {
        for (at, into, count, due) in [
            (0, 0, 0, size),
            (0, 0, size, size),
            (13, 1001, 200_000, 200_000),
            (0, 2 * MIB, 0, size),
            // Past the end of the source: what there is (what Linux does).
            (0, 0, size + 1, size),
            (size - 10, 5, 1000, 10),
            (size, 5, 10, 0),
            (size, 5, 0, 0),
            (size + 100, 5, 10, 0),
        ] {
            let before = srv.fs.content_of("dst").unwrap();
            let done = copy(&mut c, &src.fh, &dst.fh, op::copy(from, to, (at, into), count, true)).await.unwrap();
            assert_eq!(done.response.count, due, "{count} bytes from {at} to {into}");
            assert!(done.response.callback_id.is_empty() && done.requirements.consecutive);
            let mut model = before.to_vec();
            let (at, into, due) = (at as usize, into as usize, due as usize);
            if due > 0 {
                model.resize(model.len().max(into + due), 0);
                model[into..into + due].copy_from_slice(&bytes[at..at + due]);
            }
            assert!(srv.fs.content_of("dst").unwrap() == model, "{count} bytes from {at} to {into}");
        }
    }
    c.ok(&[op::put(&dst.fh), op::setattr_with(dst.stateid, Attrs { size: Some(0), ..Attrs::default() })]).await;
    copy(&mut c, &src.fh, &dst.fh, op::copy(src.stateid, dst.stateid, (0, 0), 0, true)).await.unwrap();
    match c.ok(&[op::put(&dst.fh), op::seek(dst.stateid, 300_000, DataContent::HOLE)]).await.pop() {
        Some(ResOp::Seek(Ok(ok))) => assert!(ok.offset < MIB, "the hole is a hole: {}", ok.offset),
        other => panic!("{other:?}"),
    }
    for (at, into, count) in [(u64::MAX, 0, 2), (1, 0, u64::MAX), (0, u64::MAX, 2)] {
        let status = copy(&mut c, &src.fh, &dst.fh, op::copy(src.stateid, dst.stateid, (at, into), count, true)).await;
        assert!(matches!(status, Err(Status::INVAL | Status::FBIG)), "{at} {into} {count}: {status:?}");
    }
}

/// The strict switch: a range past the end is INVAL (RFC 7862 15.2.3).
#[tokio::test]
async fn strict_ranges() {
    let srv = Srv::with(Options::default(), |c| c.copy.strict_eof = true).await;
    let mut c = srv.client("c").await;
    let (src, dst, bytes) = pair(&mut c).await;
    let size = bytes.len() as u64;
    let go = |at, count| op::copy(src.stateid, dst.stateid, (at, 0), count, true);
    for (at, count) in [(0, size + 1), (size + 1, 0), (size - 1, 2)] {
        assert_eq!(copy(&mut c, &src.fh, &dst.fh, go(at, count)).await.unwrap_err(), Status::INVAL);
    }
    assert_eq!(copy(&mut c, &src.fh, &dst.fh, go(size - 1, 1)).await.unwrap().response.count, 1);
}

/// Cases B34, K29, K12: one file with itself, wrong modes, wrong objects, stateids of nothing.
#[tokio::test]
async fn refusals() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let (src, dst, _) = pair(&mut c).await;
    let before = srv.fs.content_of("dst").unwrap();
    type Make = fn(Stateid, Stateid) -> ArgOp;
    let copying: Make = |s, d| op::copy(s, d, (0, 0), 4096, true);
    let cloning: Make = |s, d| op::clone(s, d, 0, 0, 4096);
    let owner = c.owner("reader");
    let r = c.open(&root, op::open_name(owner, share::ACCESS_READ, 0, "dst")).await;
    let owner = c.owner("writer");
    let w = c.open(&root, op::open_name(owner, share::ACCESS_WRITE, 0, "src")).await;
    c.ok(&[op::put(&root), op::mkdir("d")]).await;
    c.ok(&[op::put(&root), op::create(CreateType::Fifo, "p", Attrs::default())]).await;
    c.ok(&[op::put(&root), op::create(CreateType::Link("src".into()), "l", Attrs::default())]).await;
    let bogus = Stateid { seqid: 1, other: [9; 12] };
    for make in [copying, cloning] {
        let mut status = async |s: &FileHandle, d: &FileHandle, op: ArgOp| c.status(&ops(s, d, op)).await;
        assert_eq!(status(&src.fh, &dst.fh, make(src.stateid, r.stateid)).await, Status::OPENMODE, "case K29");
        assert_eq!(status(&src.fh, &dst.fh, make(w.stateid, dst.stateid)).await, Status::OPENMODE);
        for bad in [bogus, Stateid::INVALID] {
            assert_eq!(status(&src.fh, &dst.fh, make(bad, dst.stateid)).await, Status::BAD_STATEID);
            assert_eq!(status(&src.fh, &dst.fh, make(src.stateid, bad)).await, Status::BAD_STATEID);
        }
        assert_eq!(status(&src.fh, &dst.fh, make(dst.stateid, src.stateid)).await, Status::BAD_STATEID, "exchanged");
        assert_eq!(
            status(&src.fh, &src.fh, op::copy(src.stateid, src.stateid, (0, MIB), 10, true)).await,
            Status::INVAL
        );
    }
    for name in ["d", "p", "l"] {
        let other = c.walk(name).await;
        for make in [copying, cloning] {
            let anon = make(Stateid::ANONYMOUS, Stateid::ANONYMOUS);
            for (s, d) in [(&other, &dst.fh), (&src.fh, &other)] {
                let res = c.run(&ops(s, d, anon.clone())).await;
                let (_, status) = last(&res);
                assert!(matches!(status, Status::WRONG_TYPE | Status::INVAL), "{name}: {status:?}");
            }
        }
    }
    for make in [copying, cloning] {
        let op = make(src.stateid, dst.stateid);
        assert_eq!(c.status(&[op::put(&dst.fh), op]).await, Status::NOFILEHANDLE, "no saved filehandle");
    }
    // From another server: off until enabled. Its other half needs a real open, lock or delegation (case K12).
    let ArgOp::Copy(mut args) = copying(src.stateid, dst.stateid) else { unreachable!() };
    args.source_server = vec![NetLoc::Name("elsewhere".into())];
    assert!(!c.status(&ops(&src.fh, &dst.fh, ArgOp::Copy(args))).await.is_ok());
    for stateid in [Stateid::ANONYMOUS, Stateid::READ_BYPASS, Stateid::CURRENT, Stateid::INVALID, bogus] {
        let args = CopyNotifyArgs { src_stateid: stateid, destination_server: NetLoc::Name("there".into()) };
        let status = c.status(&[op::put(&src.fh), ArgOp::CopyNotify(args)]).await;
        assert!(matches!(status, Status::NOTSUPP | Status::BAD_STATEID), "{stateid:?}: {status:?}");
    }
    assert!(srv.fs.content_of("dst").unwrap() == before, "nothing was done");
}

/// Permissions and reservations bind copies as they bind READ and WRITE.
#[tokio::test]
async fn permissions_and_denials() {
    let srv = Srv::start().await;
    let mut c = srv.client_as("c", 1000, 1000, &[]).await;
    let root = c.walk("").await;
    let (src, dst, _) = pair(&mut c).await;
    c.ok(&[op::put(&src.fh), op::setattr(Attrs { mode: Some(0o600), ..Attrs::default() })]).await;
    c.close(&src).await;
    let anon = op::copy(Stateid::ANONYMOUS, Stateid::ANONYMOUS, (0, 0), 10, true);
    copy(&mut c, &src.fh, &dst.fh, anon.clone()).await.unwrap();
    c.wire.cred = dhow_testkit::wire::sys(1001, 1001, &[]);
    assert_eq!(copy(&mut c, &src.fh, &dst.fh, anon.clone()).await.unwrap_err(), Status::ACCESS);
    c.wire.cred = dhow_testkit::wire::sys(1000, 1000, &[]);
    let owner = c.owner("jealous");
    let held = c.open(&root, op::open_name(owner, share::ACCESS_READ, share::DENY_READ, "src")).await;
    assert_eq!(copy(&mut c, &src.fh, &dst.fh, anon.clone()).await.unwrap_err(), Status::LOCKED);
    copy(&mut c, &src.fh, &dst.fh, op::copy(held.stateid, dst.stateid, (0, 0), 10, true)).await.unwrap();
    c.close(&held).await;
    copy(&mut c, &src.fh, &dst.fh, anon).await.unwrap();
}

/// Between two exports of one server, whose filesystems know nothing of each other.
#[tokio::test]
async fn between_exports() {
    let (one, two) = (MemFs::new(), MemFs::with(Options { id: 2, ..Options::default() }));
    let export =
        |path: &str, fs: &Arc<MemFs>| ExportConfig { path: path.into(), backend: fs.clone(), options: open_to_all() };
    let (_running, addr) = start(config(vec![export("/one", &one), export("/two", &two)])).await;
    let mut c = Client::connect(addr, ClientOptions::default()).await;
    let (a, b) = (c.walk("one").await, c.walk("two").await);
    let (src, dst) = (c.create(&a, "src").await, c.create(&b, "dst").await);
    let data: Vec<u8> = (0..900_000_u32).map(|i| (i % 253) as u8 + 1).collect();
    c.write(&src, 0, &data).await;
    c.write(&src, 3 * MIB, b"end").await;
    c.write(&dst, 0, &vec![0xee; 1_000_000]).await;
    c.write(&dst, MIB, &vec![0xee; 1_000_000]).await;
    let done = copy(&mut c, &src.fh, &dst.fh, op::copy(src.stateid, dst.stateid, (0, 0), 0, true)).await.unwrap();
    assert_eq!(done.response.count, 3 * MIB + 3);
    assert!(one.content_of("src").unwrap() == two.content_of("dst").unwrap());
    let status = c.status(&ops(&src.fh, &dst.fh, op::clone(src.stateid, dst.stateid, 0, 0, 0))).await;
    assert_eq!(status, Status::XDEV);
}

/// Case K25: one verifier with WRITE and COMMIT; FILE_SYNC is true; a failed fsync shows.
#[tokio::test]
async fn stability() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let (src, dst, bytes) = pair(&mut c).await;
    let whole = op::copy(src.stateid, dst.stateid, (0, 0), 0, true);
    let verifier = |r: &ResOp| match r {
        ResOp::Commit(Ok(ok)) => ok.verifier,
        other => panic!("{other:?}"),
    };
    let first = verifier(&c.ok(&[op::put(&dst.fh), op::commit(0, 0)]).await[1]);
    let done = copy(&mut c, &src.fh, &dst.fh, whole.clone()).await.unwrap();
    assert_eq!((done.response.verifier, done.response.committed), (first, StableHow::FILE_SYNC), "to the end: durable");
    srv.fs.crash();
    assert!(srv.fs.content_of("dst").unwrap()[..bytes.len()] == bytes[..]);

    // A part of the file: the client commits when it has copied all parts.
    c.write(&src, 0, &bytes[..300_000]).await;
    let part = op::copy(src.stateid, dst.stateid, (0, 0), 1000, true);
    let done = copy(&mut c, &src.fh, &dst.fh, part).await.unwrap();
    assert_eq!(done.response.committed, StableHow::UNSTABLE);
    let second = verifier(&c.ok(&[op::put(&dst.fh), op::commit(0, 0)]).await[1]);
    assert_eq!(done.response.verifier, second);
    assert_ne!(first, second, "there was a crash");

    srv.fs.fail_syncs(1);
    match copy(&mut c, &src.fh, &dst.fh, whole).await {
        Ok(ok) => assert_eq!(ok.response.committed, StableHow::UNSTABLE, "never FILE_SYNC after a failed fsync"),
        Err(status) => assert_eq!(status, Status::IO),
    }
    let third = verifier(&c.ok(&[op::put(&dst.fh), op::commit(0, 0)]).await[1]);
    assert_ne!(third, second);
}

/// `copy.commit`: always, never.
#[tokio::test]
async fn commit_policies() {
    for (policy, whole, part) in [
        (CommitPolicy::Always, StableHow::FILE_SYNC, StableHow::FILE_SYNC),
        (CommitPolicy::Never, StableHow::UNSTABLE, StableHow::UNSTABLE),
    ] {
        let srv = Srv::with(Options::default(), |c| c.copy.commit = policy).await;
        let mut c = srv.client("c").await;
        let (src, dst, _) = pair(&mut c).await;
        for (count, due) in [(0, whole), (1000, part)] {
            let go = op::copy(src.stateid, dst.stateid, (0, 0), count, true);
            assert_eq!(copy(&mut c, &src.fh, &dst.fh, go).await.unwrap().response.committed, due, "{policy:?} {count}");
        }
    }
}

/// What is copied is written out meanwhile, so that the durable end (C3) has little left to wait for: by one call at a
/// time, for which nothing waits, also if the storage is stuck; short copies have none.
#[tokio::test]
async fn written_out_meanwhile() {
    let srv = Srv::with(Options::default(), |c| c.copy.sync_budget = Duration::from_secs(60)).await;
    let mut c = srv.client("c").await;
    let (src, dst) = big(&srv, &mut c).await;
    let whole = op::copy(src.stateid, dst.stateid, (0, 0), 0, true);
    let part = op::copy(src.stateid, dst.stateid, (0, 0), 5 * MIB, true);
    assert_eq!(copy(&mut c, &src.fh, &dst.fh, part).await.unwrap().response.count, 5 * MIB);
    assert_eq!(srv.fault.count(Call::StartWriteback), 0);
    for (hold, calls) in [(false, 1..=2), (true, 1..=1)] {
        let gate = hold.then(|| srv.fault.hold(Call::StartWriteback));
        let before = srv.fault.count(Call::StartWriteback);
        let done = copy(&mut c, &src.fh, &dst.fh, whole.clone()).await.unwrap().response;
        assert_eq!((done.count, done.committed), (20 * MIB, StableHow::FILE_SYNC));
        let made = srv.fault.count(Call::StartWriteback) - before;
        assert!(calls.contains(&made), "{made} calls for steps of 8 MiB");
        drop(gate);
    }
    let many = op::copy(src.stateid, dst.stateid, (0, 0), 19 * MIB, true);
    let before = srv.fault.count(Call::StartWriteback);
    assert_eq!(copy(&mut c, &src.fh, &dst.fh, many).await.unwrap().response.committed, StableHow::UNSTABLE);
    assert_eq!(srv.fault.count(Call::StartWriteback), before, "the client commits, after more of them");
    // Whether it could be written out is for the commit to say.
    srv.fault.clear(Call::StartWriteback);
    srv.fault.always(Call::StartWriteback, Action::Fail(ErrorKind::NoSpace));
    assert_eq!(copy(&mut c, &src.fh, &dst.fh, whole).await.unwrap().response.count, 20 * MIB);
}

/// Errors in the middle: what was copied counts, the error comes with the next try; nothing copied: the error itself.
#[tokio::test]
async fn errors_of_synchronous_copies() {
    let srv = Srv::with(Options { max_bytes: 5 * MIB, ..Options::default() }, |_| {}).await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let (src, dst) = (c.create(&root, "src").await, c.create(&root, "dst").await);
    for i in 0..4 {
        c.write(&src, i * 900_000, &vec![1; 900_000]).await;
    }
    let go = op::copy(src.stateid, dst.stateid, (0, 0), 0, true);
    assert_eq!(copy(&mut c, &src.fh, &dst.fh, go).await.unwrap_err(), Status::NOSPC);
    for kind in [ErrorKind::Io, ErrorKind::Quota, ErrorKind::FileTooBig, ErrorKind::Fault, ErrorKind::Stale] {
        srv.fault.once(Call::CopyRange, Action::Fail(kind));
        let go = op::copy(src.stateid, dst.stateid, (0, 0), 1000, true);
        assert!(copy(&mut c, &src.fh, &dst.fh, go.clone()).await.is_err(), "{kind:?}");
        assert_eq!(copy(&mut c, &src.fh, &dst.fh, go).await.unwrap().response.count, 1000);
    }
}

/// CLONE (RFC 7862 15.13): ranges, alignment, one file, durability.
#[tokio::test]
async fn clones() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let (src, dst, bytes) = pair(&mut c).await;
    let size = bytes.len() as u64;
    let block = u64::from(c.attrs(&dst.fh, &[attr::CLONE_BLKSIZE]).await.clone_blksize.expect("attribute 77"));
    assert!(block >= 512);
    let clone = |from, to, count| op::clone(src.stateid, dst.stateid, from, to, count);
    for (from, to, count) in [
        (1, 0, block),
        (0, 1, block),
        (0, 0, block + 1),
        (0, 0, size + 1),
        (size.next_multiple_of(block), 0, 0),
        (size.next_multiple_of(block), 0, block),
        (u64::MAX - block + 1, 0, block),
        (0, u64::MAX - block + 1, 2 * block),
    ] {
        let status = c.status(&ops(&src.fh, &dst.fh, clone(from, to, count))).await;
        assert_eq!(status, Status::INVAL, "{count} from {from} to {to}");
    }
    c.ok(&ops(&src.fh, &dst.fh, clone(block, 2 * block, 3 * block))).await;
    let (b, now) = (block as usize, srv.fs.content_of("dst").unwrap());
    assert!(now[2 * b..5 * b] == bytes[b..4 * b]);
    assert!(now[..2 * b].iter().chain(&now[5 * b..]).all(|&x| x == 0xee));
    // Past the end of the destination, to the end of the source.
    c.ok(&[op::put(&dst.fh), op::setattr_with(dst.stateid, Attrs { size: Some(0), ..Attrs::default() })]).await;
    c.ok(&ops(&src.fh, &dst.fh, clone(0, 0, 0))).await;
    assert!(srv.fs.content_of("dst").unwrap() == bytes);
    srv.fs.crash();
    assert!(srv.fs.content_of("dst").unwrap() == bytes, "the reply has no word on stability, so it is stable");
    // Within one file: apart from each other.
    let f = &dst;
    let own = |from, to, count| op::clone(f.stateid, f.stateid, from, to, count);
    assert_eq!(c.status(&ops(&f.fh, &f.fh, own(0, block, 2 * block))).await, Status::INVAL);
    assert_eq!(c.status(&ops(&f.fh, &f.fh, own(0, 0, 0))).await, Status::INVAL);
    c.ok(&ops(&f.fh, &f.fh, own(0, 16 * block, 2 * block))).await;
    assert!(srv.fs.content_of("dst").unwrap()[16 * b..18 * b] == bytes[..2 * b]);
}

#[tokio::test]
async fn a_filesystem_without_clones() {
    let srv = Srv::with(Options { clone: false, ..Options::default() }, |_| {}).await;
    let mut c = srv.client("c").await;
    let (src, dst, _) = pair(&mut c).await;
    let supported = c.attrs(&dst.fh, &[attr::SUPPORTED_ATTRS]).await.supported_attrs.unwrap();
    assert!(!supported.contains(attr::CLONE_BLKSIZE));
    assert_eq!(c.status(&ops(&src.fh, &dst.fh, op::clone(src.stateid, dst.stateid, 0, 0, 0))).await, Status::NOTSUPP);
    copy(&mut c, &src.fh, &dst.fh, op::copy(src.stateid, dst.stateid, (0, 0), 0, true)).await.unwrap();
}

// ---- Asynchronous copies

/// A server whose copies become asynchronous at once, and whose first steps are held by the gate.
pub async fn slow(change: impl FnOnce(&mut ServerConfig)) -> (Srv, Gate) {
    let srv = Srv::with(Options::default(), |c| {
        c.copy.sync_budget = Duration::from_millis(20);
        change(c);
    })
    .await;
    let gate = srv.fault.hold(Call::CopyRange);
    (srv, gate)
}

/// A source of 20 MiB, which takes several steps, and a destination.
pub async fn big(srv: &Srv, c: &mut Client) -> (Open, Open) {
    let root = c.walk("").await;
    let (src, dst) = (c.create(&root, "src").await, c.create(&root, "dst").await);
    if srv.fs.content_of("src").unwrap().is_empty() {
        for i in 0..20 {
            c.write(&src, i * MIB, &vec![i as u8 + 1; MIB as usize]).await;
        }
    }
    (src, dst)
}

fn whole(src: &Open, dst: &Open, synchronous: bool) -> ArgOp {
    op::copy(src.stateid, dst.stateid, (0, 0), 0, synchronous)
}

/// Starts a copy that becomes asynchronous.
pub async fn begin(c: &mut Client, src: &Open, dst: &Open) -> Stateid {
    let ok = copy(c, &src.fh, &dst.fh, whole(src, dst, false)).await.unwrap();
    assert_eq!(ok.response.count, 0, "the total comes later");
    assert!(!ok.requirements.synchronous && ok.requirements.consecutive);
    let id = *ok.response.callback_id.first().expect("a callback id: asynchronous");
    assert_ne!(id.seqid, 0);
    id
}

async fn status_of(c: &mut Client, id: Stateid) -> Result<OffloadStatusOk, Status> {
    match c.run(&[op::offload_status(id)]).await.results.pop() {
        Some(ResOp::OffloadStatus(done)) => done,
        other => panic!("{other:?}"),
    }
}

/// Polls until the copy has ended.
async fn poll(c: &mut Client, id: Stateid) -> OffloadStatusOk {
    for _ in 0..3000 {
        let now = status_of(c, id).await.expect("a copy that is known");
        if !now.complete.is_empty() {
            return now;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the copy does not end");
}

/// The next CB_OFFLOAD, with its CB_SEQUENCE.
pub async fn offloaded(c: &mut Client) -> (CallBack, CbSequenceArgs, CbOffloadArgs) {
    loop {
        let call = c.wire.callback().await;
        if call.header.body.as_ref().is_none_or(|b| b.proc == 0) {
            continue;
        }
        if let [CbArgOp::Sequence(s), CbArgOp::Offload(o)] = &call.compound().ops[..] {
            return (call.clone(), s.clone(), o.clone());
        }
    }
}

/// From COPY to CB_OFFLOAD: referring call (case K05), count, durability, and the status after.
#[tokio::test]
async fn an_asynchronous_copy() {
    let (srv, gate) = slow(|_| {}).await;
    let mut c = srv.client("c").await;
    let (src, dst) = big(&srv, &mut c).await;
    c.ok(&[op::put(&src.fh), op::commit(0, 0)]).await;
    let sequence_id = c.session.next[0];
    let id = begin(&mut c, &src, &dst).await;
    let now = status_of(&mut c, id).await.unwrap();
    assert_eq!((now.count, now.complete.len()), (0, 0));
    // Everything else goes on, also with the two files (case K09).
    c.read(&src, 0, 10).await;
    c.ok(&[op::put(&dst.fh), op::getattr(&[attr::SIZE])]).await;
    gate.open();
    let (_, sequence, done) = offloaded(&mut c).await;
    assert_eq!((&done.fh, done.stateid), (&dst.fh, id));
    match done.info {
        OffloadInfo::Ok(response) => {
            assert_eq!((response.count, response.committed), (20 * MIB, StableHow::FILE_SYNC));
            srv.fs.crash();
        }
        other => panic!("{other:?}"),
    }
    let calls: Vec<_> = sequence.referring_call_lists.iter().filter(|l| l.session_id == c.session.id()).collect();
    assert!(calls.iter().any(|l| l.calls.iter().any(|r| (r.slot_id, r.sequence_id) == (0, sequence_id))), "{calls:?}");
    assert!(srv.fs.content_of("src").unwrap() == srv.fs.content_of("dst").unwrap());
    // Acknowledged: it may be known or forgotten, but not running.
    match status_of(&mut c, id).await {
        Ok(now) => assert_eq!((now.count, now.complete), (20 * MIB, vec![Status::OK])),
        Err(status) => assert_eq!(status, Status::BAD_STATEID),
    }
}

/// Cases K02, K03: the callback cannot be delivered, or is answered by DELAY: polling finishes the copy.
#[tokio::test]
async fn finishing_by_polling() {
    let (srv, gate) = slow(|_| {}).await;
    let mut c = srv.client("c").await;
    let (src, dst) = big(&srv, &mut c).await;
    c.wire.on_callback = Callbacks::Keep;
    let id = begin(&mut c, &src, &dst).await;
    gate.open();
    let done = poll(&mut c, id).await;
    assert_eq!((done.count, done.complete), (20 * MIB, vec![Status::OK]), "before the callback is answered");
    let (call, sequence, _) = offloaded(&mut c).await;
    let delay = dhow_proto::v4::cb::CbCompoundRes {
        status: Status::DELAY,
        tag: Default::default(),
        results: vec![call.success().results[0].clone(), CbResOp::Offload(Err(Status::DELAY))],
    };
    let mut w = Writer::new();
    ReplyHeader::success(call.header.xid).encode(&mut w);
    delay.encode(&mut w);
    c.wire.send_record(&w.into_bytes()).await.unwrap();
    assert_eq!(poll(&mut c, id).await.count, 20 * MIB, "case K03: still there");
    // It comes again, on the next sequence id, and is acknowledged.
    let (again, next, _) = offloaded(&mut c).await;
    assert!(next.slot_id != sequence.slot_id || next.sequence_id == sequence.sequence_id + 1);
    c.wire.answer(&again).await;
}

/// Case K02: the connection is cut while the copy runs; it goes on, and a new connection finds its end.
#[tokio::test]
async fn a_cut_connection() {
    let (srv, gate) = slow(|_| {}).await;
    let mut c = srv.client("c").await;
    let (src, dst) = big(&srv, &mut c).await;
    let id = begin(&mut c, &src, &dst).await;
    c.wire = srv.wire().await;
    assert_eq!(status_of(&mut c, id).await.unwrap().complete.len(), 0);
    gate.open();
    assert_eq!(poll(&mut c, id).await.complete, [Status::OK]);
    assert!(srv.fs.content_of("src").unwrap() == srv.fs.content_of("dst").unwrap());
}

/// RFC 7862 15.8: a cancelled copy stops, is forgotten, and nobody is called back.
#[tokio::test]
async fn cancelling() {
    let (srv, gate) = slow(|_| {}).await;
    let mut c = srv.client("c").await;
    let (src, dst) = big(&srv, &mut c).await;
    let id = begin(&mut c, &src, &dst).await;
    assert_eq!(c.status(&[op::offload_cancel(Stateid { seqid: 1, other: [4; 12] })]).await, Status::BAD_STATEID);
    let mut other = srv.client("other").await;
    assert_eq!(other.status(&[op::offload_cancel(id)]).await, Status::BAD_STATEID, "another client's");
    assert_eq!(status_of(&mut other, id).await.unwrap_err(), Status::BAD_STATEID);
    assert!(c.status(&[op::offload_cancel(id)]).await.is_ok());
    let status = status_of(&mut c, id).await;
    assert!(matches!(&status, Err(Status::BAD_STATEID)) || status.is_ok_and(|s| !s.complete.is_empty()));
    gate.open();
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        c.ok(&[op::root()]).await;
    }
    assert!(!c.wire.callbacks.iter().any(is_offload), "no CB_OFFLOAD follows a cancel");
    assert!(srv.fault.count(Call::CopyRange) <= 2, "it stops within one step");
}

fn is_offload(call: &CallBack) -> bool {
    call.header.body.as_ref().is_some_and(|b| b.proc != 0)
        && call.compound().ops.iter().any(|op| matches!(op, CbArgOp::Offload(_)))
}

/// An error after some bytes: CB_OFFLOAD carries the error and the count (so that NOSPC is not lost).
#[tokio::test]
async fn an_error_under_way() {
    let (srv, gate) = slow(|_| {}).await;
    let mut c = srv.client("c").await;
    let (src, dst) = big(&srv, &mut c).await;
    let id = begin(&mut c, &src, &dst).await;
    srv.fault.clear(Call::CopyRange);
    srv.fault.always(Call::CopyRange, Action::Fail(ErrorKind::NoSpace));
    gate.open();
    let (_, _, done) = offloaded(&mut c).await;
    assert_eq!(done.stateid, id);
    match done.info {
        OffloadInfo::Err { status, bytes_copied } => {
            assert_eq!(status, Status::NOSPC);
            assert!(bytes_copied > 0 && bytes_copied < 20 * MIB, "{bytes_copied}");
        }
        other => panic!("{other:?}"),
    }
}

/// The client wants it synchronous, or has no back channel: a slice in bounded time, then the next.
#[tokio::test]
async fn slices() {
    for (synchronous, session_flags) in [(true, ClientOptions::default().session_flags), (false, 0)] {
        let srv = Srv::with(Options::default(), |c| c.copy.sync_budget = Duration::from_millis(20)).await;
        let mut o = ClientOptions::named("c");
        o.session_flags = session_flags;
        let mut c = Client::connect(srv.addr, o).await;
        let (src, dst) = big(&srv, &mut c).await;
        srv.fault.always(Call::CopyRange, Action::Delay(Duration::from_millis(50)));
        let (mut at, mut calls) = (0, 0);
        while at < 20 * MIB {
            let go = op::copy(src.stateid, dst.stateid, (at, at), 0, synchronous);
            let ok = copy(&mut c, &src.fh, &dst.fh, go).await.unwrap();
            assert!(ok.response.callback_id.is_empty() && ok.requirements.synchronous);
            assert!(ok.response.count > 0, "every call gets on");
            at += ok.response.count;
            calls += 1;
        }
        assert!(calls >= 2, "one call took all the time");
        assert!(srv.fs.content_of("src").unwrap() == srv.fs.content_of("dst").unwrap());
    }
}

/// A storage that says "not now" for good: a synchronous copy ends all the same.
#[tokio::test]
async fn a_source_that_never_answers() {
    let srv = Srv::with(Options::default(), |c| c.copy.sync_budget = Duration::from_millis(20)).await;
    let mut c = srv.client("c").await;
    let (src, dst) = big(&srv, &mut c).await;
    srv.fault.always(Call::CopyRange, Action::Fail(ErrorKind::Delay));
    assert_eq!(copy(&mut c, &src.fh, &dst.fh, whole(&src, &dst, true)).await.unwrap_err(), Status::DELAY);
}

/// Case K01: more copies than are allowed: the rest is done in slices; others are not disturbed; and afterwards there
/// is room again (case K06).
#[tokio::test]
async fn a_flood_of_copies() {
    let (srv, gate) = slow(|c| c.state.copies_per_client = 4).await;
    let mut c = srv.client("c").await;
    let mut other = srv.client("other").await;
    let (src, dst) = big(&srv, &mut c).await;
    let mut xids = Vec::new();
    for slot in 0..32 {
        xids.push(c.send(slot, &ops(&src.fh, &dst.fh, whole(&src, &dst, false))).await);
    }
    gate.arrived(32).await;
    for _ in 0..20 {
        other.ok(&[op::root(), op::getattr(&[attr::SIZE])]).await;
        // Until the copies have outlived their budget.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    gate.open();
    let mut ids = Vec::new();
    for xid in xids {
        match c.wait(xid).await.results.pop() {
            Some(ResOp::Copy(CopyRes::Ok(ok))) => match ok.response.callback_id.first() {
                Some(id) => ids.push(*id),
                None => assert!(ok.response.count > 0),
            },
            other => panic!("{other:?}"),
        }
    }
    assert!(!ids.is_empty() && ids.len() <= 4, "{} ran at once", ids.len());
    let hits = srv.running.shared().limit_hits();
    let counted = hits.iter().find(|(name, _)| *name == "copy.max_total").expect("counted").1;
    assert!(counted > 0 && counted <= 32, "{counted}");
    for id in ids {
        match status_of(&mut c, id).await {
            Ok(_) => assert_eq!(poll_if_known(&mut c, id).await, Some(Status::OK)),
            Err(status) => assert_eq!(status, Status::BAD_STATEID),
        }
    }
    srv.fault.clear(Call::CopyRange);
    let again = srv.fault.hold(Call::CopyRange);
    let id = begin(&mut c, &src, &dst).await;
    again.open();
    poll_if_known(&mut c, id).await;
}

/// As [`poll`]; `None` if the server has told the client by callback and forgotten the copy.
async fn poll_if_known(c: &mut Client, id: Stateid) -> Option<Status> {
    for _ in 0..3000 {
        match status_of(c, id).await {
            Ok(now) if now.complete.is_empty() => tokio::time::sleep(Duration::from_millis(5)).await,
            Ok(now) => return Some(now.complete[0]),
            Err(_) => return Some(Status::OK),
        }
    }
    None
}

/// Case K06: copies that fail at every step leave no count behind.
#[tokio::test]
async fn failures_leave_no_count_behind() {
    let (srv, gate) = slow(|c| c.state.copies_per_client = 2).await;
    gate.open();
    srv.fault.clear(Call::CopyRange);
    let mut c = srv.client("c").await;
    let (src, dst) = big(&srv, &mut c).await;
    for round in 0..10 {
        let gate = srv.fault.hold(Call::CopyRange);
        let id = begin(&mut c, &src, &dst).await;
        match round % 3 {
            0 => {
                srv.fault.clear(Call::CopyRange);
                srv.fault.always(Call::CopyRange, Action::Fail(ErrorKind::Io));
            }
            1 => assert!(c.status(&[op::offload_cancel(id)]).await.is_ok()),
            _ => srv.fs.fail_syncs(1),
        }
        gate.open();
        poll_if_known(&mut c, id).await;
        srv.fault.clear(Call::CopyRange);
        srv.fs.fail_syncs(0);
    }
}

/// Case K30: where the filesystem cannot go on as it began, the bytes go another way: nothing is refused after a part of
/// it was copied.
#[tokio::test]
async fn a_copy_that_has_begun_is_not_refused() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let (src, dst) = big(&srv, &mut c).await;
    srv.fault.rule(Call::CopyRange, None, Action::Delay(Duration::ZERO), 1);
    srv.fault.always(Call::CopyRange, Action::Fail(ErrorKind::NotSupported));
    let (mut done, size) = (0, c.attrs(&src.fh, &[attr::SIZE]).await.size.unwrap());
    while done < size {
        let part = op::copy(src.stateid, dst.stateid, (done, done), size - done, true);
        let ok = copy(&mut c, &src.fh, &dst.fh, part).await.expect("not refused");
        assert!(ok.response.count > 0);
        done += ok.response.count;
    }
    assert!(srv.fault.count(Call::CopyRange) >= 2, "it was not asked again");
    assert!(srv.fs.content_of("src").unwrap() == srv.fs.content_of("dst").unwrap());
}

/// Case K07: a client with running copies starts anew, and a server with running copies stops: both in bounded time.
#[tokio::test]
async fn endings_with_running_copies() {
    let (srv, gate) = slow(|c| c.limits.drain = Duration::from_millis(500)).await;
    let mut c = srv.client("c").await;
    let (src, dst) = big(&srv, &mut c).await;
    for _ in 0..3 {
        begin(&mut c, &src, &dst).await;
    }
    let reborn = ClientOptions { verifier: Verifier(*b"reborn!!"), ..ClientOptions::named("c") };
    let mut c2 = Client::connect(srv.addr, reborn).await;
    assert_eq!(c.status(&[op::root()]).await, Status::BADSESSION);
    let (src, dst) = big(&srv, &mut c2).await;
    begin(&mut c2, &src, &dst).await;
    let Srv { running, .. } = srv;
    let stop = tokio::time::timeout(Duration::from_secs(60), Watched::shutdown(running));
    stop.await.expect("a held copy does not hold the shutdown up");
    gate.open();
}

/// Case K08: cancels at random moments.
#[tokio::test]
async fn cancels_at_any_moment() {
    let (srv, gate) = slow(|c| c.copy.sync_budget = Duration::from_millis(1)).await;
    gate.open();
    srv.fault.clear(Call::CopyRange);
    srv.fault.always(Call::CopyRange, Action::Delay(Duration::from_millis(2)));
    let mut c = srv.client("c").await;
    let (src, dst) = big(&srv, &mut c).await;
    for round in 0..60 {
        let ok = copy(&mut c, &src.fh, &dst.fh, whole(&src, &dst, false)).await.unwrap();
        let Some(id) = ok.response.callback_id.first().copied() else { continue };
        tokio::time::sleep(Duration::from_micros(round * 137)).await;
        let status = c.status(&[op::offload_cancel(id)]).await;
        assert!(matches!(status, Status::OK | Status::BAD_STATEID | Status::COMPLETE_ALREADY), "{status:?}");
    }
    srv.fault.clear(Call::CopyRange);
    for _ in 0..200 {
        if srv.fs.open_count() <= 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (src, dst) = big(&srv, &mut c).await;
    assert!(copy(&mut c, &src.fh, &dst.fh, whole(&src, &dst, true)).await.is_ok());
}

/// Case K13's kin: the file is closed, and removed, while the copy runs; it ends by itself.
#[tokio::test]
async fn closed_and_removed_under_a_copy() {
    let (srv, gate) = slow(|_| {}).await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let (src, dst) = big(&srv, &mut c).await;
    let id = begin(&mut c, &src, &dst).await;
    c.close(&src).await;
    c.close(&dst).await;
    c.ok(&[op::put(&root), op::remove("src")]).await;
    gate.open();
    let end = poll_if_known(&mut c, id).await;
    assert!(matches!(end, Some(Status::OK | Status::STALE)), "{end:?}");
    for _ in 0..500 {
        if srv.fs.open_count() == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} opens are left", srv.fs.open_count());
}

/// OFFLOAD_STATUS of what is no copy.
#[tokio::test]
async fn no_copy() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    for id in [f.stateid, Stateid::ANONYMOUS, Stateid::CURRENT, Stateid { seqid: 3, other: [1; 12] }] {
        for ask in [op::offload_status(id), op::offload_cancel(id)] {
            let res = c.run(&[op::put(&f.fh), ask.clone()]).await;
            assert_eq!(last(&res), (ask.op(), Status::BAD_STATEID));
        }
    }
    assert_eq!(last(&c.run(&[op::put(&f.fh), op::commit(0, 0)]).await), (OpNum::COMMIT, Status::OK));
}
