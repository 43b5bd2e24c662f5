//! The destination: COPY whose source is on another server.

use crate::common::last;
use crate::{MIB, Pair, at, copy, copy_op, poll, status_of};
use dhow_proto::v4::ops::DataContent;
use dhow_proto::v4::{ArgOp, FileHandle, NetAddr, NetLoc, ResOp, StableHow, Stateid, Status};
use dhow_testkit::fault::Call;
use dhow_testkit::port::Reserved;
use dhow_testkit::wire::op;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Data, holes in the middle and at the end, old data in the destination: equal afterwards, holes kept, durable; the
/// second copy makes no connection and no session.
#[tokio::test]
async fn from_server_to_server() {
    let mut p = Pair::new().await;
    let (src, dst) = p.files(3).await;
    p.ca.write(&src, 40 * MIB, &[7; 5000]).await;
    let size = |n| dhow_proto::v4::Attrs { size: Some(n), ..Default::default() };
    p.ca.ok(&[op::put(&src.fh), op::setattr_with(src.stateid, size(60 * MIB))]).await;
    for i in 0..5 {
        p.cb.write(&dst, 10 * i * MIB, &vec![0xee; MIB as usize]).await;
    }
    let done = p.copy(&src, &dst, true).await.unwrap();
    assert_eq!((done.response.count, done.response.committed), (60 * MIB, StableHow::FILE_SYNC));
    assert!(done.response.callback_id.is_empty() && done.requirements.synchronous && done.requirements.consecutive);
    assert!(p.equal());
    match p.cb.ok(&[op::put(&dst.fh), op::seek(dst.stateid, 3 * MIB, DataContent::DATA)]).await.pop() {
        Some(ResOp::Seek(Ok(ok))) => assert!(ok.offset > 39 * MIB, "the hole is a hole: {}", ok.offset),
        other => panic!("{other:?}"),
    }
    let m = &p.b.running.shared().metrics.inter;
    assert!(m.bytes.load(Relaxed) < 5 * MIB, "holes are not read");
    let before = (m.source_connects.load(Relaxed), m.source_setup_calls.load(Relaxed));
    assert_eq!(before.0, 1);
    assert!(before.1 >= 3, "the connection, EXCHANGE_ID, CREATE_SESSION");
    let at_source = p.a.running.shared().metrics.connections_total.load(Relaxed);
    // Another file, over the same connection.
    let (ra, rb) = (p.ca.walk("").await, p.cb.walk("").await);
    let (src2, dst2) = (p.ca.create(&ra, "src2").await, p.cb.create(&rb, "dst2").await);
    p.ca.write(&src2, 0, b"second").await;
    assert_eq!(p.copy(&src2, &dst2, true).await.unwrap().response.count, 6);
    assert_eq!(&p.b.fs.content_of("dst2").unwrap()[..], b"second");
    let m = &p.b.running.shared().metrics.inter;
    assert_eq!((m.source_connects.load(Relaxed), m.source_setup_calls.load(Relaxed)), before);
    assert_eq!(p.a.running.shared().metrics.connections_total.load(Relaxed), at_source);
    // Nothing to copy.
    let (src3, dst3) = (p.ca.create(&ra, "src3").await, p.cb.create(&rb, "dst3").await);
    assert_eq!(p.copy(&src3, &dst3, true).await.unwrap().response.count, 0);
    p.quiet().await;
    for open in [&src, &src2, &src3] {
        p.ca.close(open).await;
    }
    assert_eq!(p.a.running.shared().state.counts().copy_notifies, 0, "they go with their opens");
    // The end of the destination ends its session with the source.
    let clients = p.a.running.shared().state.counts().clients;
    p.b.running.shutdown().await;
    assert_eq!(p.a.running.shared().state.counts().clients, clients - 1);
}

/// A copy that takes longer goes on after its reply; its end is polled. A synchronous one answers with what it has.
#[tokio::test]
async fn long_copies() {
    let mut p = Pair::with(|_| {}, |b| b.copy.sync_budget = Duration::from_millis(20)).await;
    let (src, dst) = p.files(40).await;
    let gate = p.a.fault.hold(Call::Read);
    let id = p.begin(&src, &dst).await;
    gate.arrived(1).await;
    assert_eq!(status_of(&mut p.cb, id).await.unwrap().complete, []);
    gate.open();
    assert_eq!(poll(&mut p.cb, id).await, (40 * MIB, Status::OK));
    assert!(p.equal());
    p.quiet().await;
}

/// With a limit on bandwidth a slice is cut by its budget, and the client goes on where it ended.
#[tokio::test]
async fn synchronous_slices() {
    let mut p = Pair::with(
        |_| {},
        |b| {
            b.copy.sync_budget = Duration::from_millis(50);
            b.copy.inter.bandwidth = 40 * MIB;
        },
    )
    .await;
    let (src, dst) = p.files(8).await;
    let done = p.copy(&src, &dst, true).await.unwrap();
    let n = done.response.count;
    assert!(n > 0 && n < 8 * MIB, "{n}");
    let (all, part) = (p.a.fs.content_of("src").unwrap(), p.b.fs.content_of("dst").unwrap());
    assert!(all[..n as usize] == part[..n as usize]);
    p.quiet().await;
}

/// Addresses that are not allowed are refused before a packet is sent.
#[tokio::test]
async fn forbidden_sources() {
    let mut p =
        Pair::with(|_| {}, |b| b.copy.inter.sources = vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()])
            .await;
    let (src, dst) = p.files(1).await;
    let told = p.notify(&src).await.unwrap();
    let port = p.a.addr.port();
    let loc = |netid: &'static str, ip: &str| {
        let addr = format!("{ip}.{}.{}", port >> 8, port & 255).into();
        NetLoc::Addr(NetAddr { netid: netid.into(), addr })
    };
    for place in [
        loc("tcp", "127.0.0.1"),
        loc("tcp6", "::1"),
        loc("tcp6", "::ffff:127.0.0.1"),
        loc("tcp", "0.0.0.0"),
        loc("tcp", "169.254.1.1"),
        loc("tcp6", "fe80::1"),
        loc("tcp", "224.0.0.1"),
        loc("udp", "192.0.2.1"),
        loc("tcp", "not an address"),
        NetLoc::Name("127.0.0.1".into()),
        NetLoc::Name("localhost".into()),
        NetLoc::Url("nfs://127.0.0.1/".into()),
    ] {
        let status = copy(&mut p.cb, (&src.fh, told.stateid), &dst, true, vec![place.clone()]).await;
        assert_eq!(status.unwrap_err(), Status::OFFLOAD_DENIED, "{place:?}");
    }
    assert_eq!(p.connects(), 0);
    assert!(p.b.fs.content_of("dst").unwrap().is_empty());
    p.quiet().await;
    // Switched off: not offered at all, and foreign handles are nothing special.
    let mut p = Pair::with(|_| {}, |b| b.copy.inter.enabled = false).await;
    let (src, dst) = p.files(1).await;
    let told = p.notify(&src).await.unwrap();
    let copying = copy_op(told.stateid, &dst, true, told.source_server);
    let ops = [op::put(&src.fh), ArgOp::SaveFh, op::put(&dst.fh), copying.clone()];
    assert_eq!(p.cb.status(&ops).await, Status::BADHANDLE);
    let ops = [op::put(&dst.fh), ArgOp::SaveFh, op::put(&dst.fh), copying];
    assert_eq!(p.cb.status(&ops).await, Status::NOTSUPP);
}

/// Places that are passed over, and the next one that works; a subset of what the source said.
#[tokio::test]
async fn the_first_place_that_works() {
    let mut p = Pair::new().await;
    let (src, dst) = p.files(1).await;
    let told = p.notify(&src).await.unwrap();
    assert!(told.source_server.contains(&at(p.a.addr)[0]));
    let port = closed_port();
    let closed = port.addr();
    let places = vec![
        NetLoc::Name("nowhere".into()),
        at("192.0.2.1:2049".parse().unwrap())[0].clone(),
        at(closed)[0].clone(),
        at(p.a.addr)[0].clone(),
    ];
    assert_eq!(copy(&mut p.cb, (&src.fh, told.stateid), &dst, true, places).await.unwrap().response.count, MIB);
    assert!(p.equal());
}

/// A port at which nobody listens, and nobody will.
pub fn closed_port() -> Reserved {
    Reserved::new()
}

/// A handle of another server may be saved for a COPY, and is good for nothing else (RFC 7862 15.2.3).
#[tokio::test]
async fn foreign_handles() {
    let mut p = Pair::new().await;
    let (src, dst) = p.files(1).await;
    let told = p.notify(&src).await.unwrap();
    let foreign = || op::put(&src.fh);
    let c = &mut p.cb;
    assert_eq!(c.status(&[foreign()]).await, Status::BADHANDLE, "nothing is saved");
    assert_eq!(c.status(&[foreign(), op::getattr(&[0])]).await, Status::BADHANDLE);
    assert_eq!(c.status(&[foreign(), ArgOp::SaveFh]).await, Status::OK);
    assert_eq!(c.status(&[foreign(), ArgOp::SaveFh, ArgOp::SaveFh]).await, Status::OK);
    for op in [op::getfh(), op::getattr(&[0]), op::read(told.stateid, 0, 10), op::lookup("x"), ArgOp::RestoreFh] {
        assert_eq!(c.status(&[foreign(), ArgOp::SaveFh, op]).await, Status::STALE);
    }
    let local = copy_op(told.stateid, &dst, true, vec![]);
    assert_eq!(c.status(&[foreign(), ArgOp::SaveFh, op::put(&dst.fh), local]).await, Status::STALE, "no source server");
    let there = copy_op(told.stateid, &dst, true, told.source_server.clone());
    assert_eq!(c.status(&[op::put(&dst.fh), ArgOp::SaveFh, foreign(), there.clone()]).await, Status::BADHANDLE);
    assert_eq!(c.status(&[foreign(), ArgOp::SaveFh, there.clone()]).await, Status::STALE, "foreign on both sides");
    assert_eq!(c.status(&[op::put(&dst.fh), there]).await, Status::NOFILEHANDLE);
    // Our own handle given as that of another server, and rubbish: the source says what it is.
    let ours = copy(c, (&dst.fh, told.stateid), &dst, true, told.source_server.clone()).await;
    assert_eq!(ours.unwrap_err(), Status::STALE);
    let rubbish = FileHandle(vec![9; 40].into());
    let res = copy(c, (&rubbish, told.stateid), &dst, true, told.source_server.clone()).await;
    assert_eq!(res.unwrap_err(), Status::STALE);
    // Special stateids mean nothing to another server (case K12); a guess is not authorized.
    for special in [Stateid::ANONYMOUS, Stateid::READ_BYPASS, Stateid::CURRENT, Stateid::INVALID] {
        let res = copy(c, (&src.fh, special), &dst, true, told.source_server.clone()).await;
        assert_eq!(res.unwrap_err(), Status::BAD_STATEID);
    }
    let mut guess = told.stateid;
    guess.other[11] ^= 1;
    for wrong in [guess, src.stateid] {
        let res = copy(c, (&src.fh, wrong), &dst, true, told.source_server.clone()).await;
        assert_eq!(res.unwrap_err(), Status::PARTNER_NO_AUTH);
    }
    let res = c.run(&[op::put(&dst.fh), op::getattr(&[0])]).await;
    assert_eq!(last(&res).1, Status::OK, "and all is well");
    // A handle that a copy brought along is no bad one; those that were answered BADHANDLE are.
    assert_eq!(p.b.running.shared().metrics.bad_handles.load(Relaxed), 3);
    p.quiet().await;
}

/// What comes from the source is written out while more of it comes (C3: the durable end has little left to wait for);
/// storage that is stuck holds up nothing but that end.
#[tokio::test]
async fn written_out_meanwhile() {
    let mut p = Pair::with(|_| {}, |b| b.copy.sync_budget = Duration::from_secs(60)).await;
    let (src, dst) = p.files(20).await;
    let gate = p.b.fault.hold(Call::StartWriteback);
    let done = p.copy(&src, &dst, true).await.unwrap().response;
    assert_eq!((done.count, done.committed), (20 * MIB, StableHow::FILE_SYNC));
    assert!(p.equal());
    assert_eq!(p.b.fault.count(Call::StartWriteback), 1, "one at a time");
    gate.open();
    p.quiet().await;
}

/// More copies than allowed: DELAY, before anything is sent; the counts return (cases K01, K06).
#[tokio::test]
async fn a_flood_of_copies() {
    let mut p = Pair::with(
        |_| {},
        |b| {
            b.copy.sync_budget = Duration::from_millis(20);
            b.state.copies_per_client = 2;
        },
    )
    .await;
    let (src, dst) = p.files(2).await;
    let gate = p.a.fault.hold(Call::Read);
    let ids = [p.begin(&src, &dst).await, p.begin(&src, &dst).await];
    for _ in 0..50 {
        assert_eq!(p.copy(&src, &dst, false).await.unwrap_err(), Status::DELAY);
    }
    // Others are not in its way.
    let mut other = p.b.client("other").await;
    other.attrs(&dst.fh, &[0]).await;
    gate.open();
    for id in ids {
        assert_eq!(poll(&mut p.cb, id).await, (2 * MIB, Status::OK));
    }
    p.quiet().await;
    // There is room again; how much of it one slice of the time allowed moves is the machine's business.
    assert!(p.copy(&src, &dst, true).await.unwrap().response.count > 0);
    assert_eq!(p.b.running.shared().metrics.inter.copy_limit_hits.load(Relaxed), 50);
    let hits = p.b.running.shared().limit_hits();
    assert!(hits.contains(&("copy.max_total", 50)), "each is counted once: {hits:?}");
}
