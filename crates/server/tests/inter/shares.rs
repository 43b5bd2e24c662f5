//! What copies share: memory, connections; and what is told of holes at the end.

use crate::common::Srv;
use crate::{MIB, Pair, copy, notify, partner, poll, status_of};
use dhow_partner::ClientConnector;
use dhow_proto::v4::ops::{CopyArgs, CopyRes};
use dhow_proto::v4::{ArgOp, Attrs, ResOp, Status};
use dhow_server::copy::netloc::to_netloc;
use dhow_testkit::fault::Call;
use dhow_testkit::memfs::Options;
use dhow_testkit::wire::{Client, Open, op};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// A third server, with a client and a file of so many MiB.
async fn third(mib: u64) -> (Srv, Client, Open) {
    let server = Srv::with(Options { id: 3, ..Options::default() }, partner).await;
    let mut client = server.client("c").await;
    let root = client.walk("").await;
    let file = client.create(&root, "third").await;
    for i in 0..mib {
        client.write(&file, i * MIB, &vec![i as u8 + 100; MIB as usize]).await;
    }
    (server, client, file)
}

/// A source that does not answer holds memory; copies from another one go on all the same (case K01).
#[tokio::test]
async fn a_silent_source_does_not_stop_the_others() {
    let mut p = Pair::with(
        |_| {},
        |b| {
            b.copy.sync_budget = Duration::from_millis(20);
            b.copy.inter.buffer = 4 << 20;
            // Silent to the end of the test.
            let call_timeout = Duration::from_secs(120);
            b.copy.inter.connector = Some(Arc::new(ClientConnector { call_timeout, ..ClientConnector::default() }));
        },
    )
    .await;
    let (src, dst) = p.files(8).await;
    let (_c, mut cc, file) = third(8).await;
    let gate = p.a.fault.hold(Call::Read);
    let silent = p.begin(&src, &dst).await;
    gate.arrived(3).await;
    let root = p.cb.walk("").await;
    let other = p.cb.create(&root, "other").await;
    let told = notify(&mut cc, &file.fh, file.stateid, to_netloc(p.b.addr)).await.unwrap();
    let done = copy(&mut p.cb, (&file.fh, told.stateid), &other, false, told.source_server).await.unwrap();
    let count = match done.response.callback_id.first() {
        Some(id) => poll(&mut p.cb, *id).await,
        None => (done.response.count, Status::OK),
    };
    assert_eq!(count, (8 * MIB, Status::OK));
    assert!(status_of(&mut p.cb, silent).await.unwrap().complete.is_empty(), "it still waits");
    gate.open();
    assert_eq!(poll(&mut p.cb, silent).await, (8 * MIB, Status::OK));
    assert!(p.equal());
    p.quiet().await;
}

/// A connection that nobody uses makes room for another source (`copy.max_sources`).
#[tokio::test]
async fn unused_connections_make_room() {
    let mut p = Pair::with(|_| {}, |b| b.copy.inter.max_sources = 1).await;
    let (src, dst) = p.files(1).await;
    let (_c, mut cc, file) = third(1).await;
    for _ in 0..2 {
        assert_eq!(p.copy(&src, &dst, true).await.unwrap().response.count, MIB);
        p.quiet().await;
        let told = notify(&mut cc, &file.fh, file.stateid, to_netloc(p.b.addr)).await.unwrap();
        let done = copy(&mut p.cb, (&file.fh, told.stateid), &dst, true, told.source_server).await.unwrap();
        assert_eq!(done.response.count, MIB);
        p.quiet().await;
    }
    assert_eq!(p.b.running.shared().source_counts().ready, 1);
    assert_eq!(p.b.running.shared().metrics.inter.source_connects.load(Relaxed), 4);
}

/// Where every connection is in use a copy from another source is put off, and counted; when one is free it is made
/// (`copy.max_sources`).
#[tokio::test]
async fn a_source_too_many_is_put_off() {
    let mut p = Pair::with(
        |_| {},
        |b| {
            b.copy.sync_budget = Duration::from_millis(20);
            b.copy.inter.max_sources = 1;
        },
    )
    .await;
    let (src, dst) = p.files(1).await;
    let (_c, mut cc, file) = third(1).await;
    let gate = p.a.fault.hold(Call::Read);
    let running = p.begin(&src, &dst).await;
    gate.arrived(1).await;
    let root = p.cb.walk("").await;
    let other = p.cb.create(&root, "other").await;
    let hits = |p: &Pair| {
        let hits = p.b.running.shared().limit_hits();
        hits.into_iter().find(|h| h.0 == "copy.max_sources").expect("a limit of that name").1
    };
    let told = notify(&mut cc, &file.fh, file.stateid, to_netloc(p.b.addr)).await.unwrap();
    for n in 1..=3 {
        let refused = copy(&mut p.cb, (&file.fh, told.stateid), &other, true, told.source_server.clone()).await;
        assert_eq!((refused.err(), hits(&p)), (Some(Status::DELAY), n));
    }
    gate.open();
    assert_eq!(poll(&mut p.cb, running).await, (MIB, Status::OK));
    p.quiet().await;
    let done = copy(&mut p.cb, (&file.fh, told.stateid), &other, true, told.source_server).await.unwrap();
    assert_eq!((done.response.count, hits(&p)), (MIB, 3));
    p.quiet().await;
}

/// A hole at the end of the source that the destination's filesystem cannot hold: what is told is what is there
/// (RFC 7862 15.2.3: the bytes that were copied).
#[tokio::test]
async fn a_hole_that_does_not_fit() {
    let options = Options { max_file_size: 6 * MIB, ..Options::default() };
    let mut p = Pair::on(options, |_| {}, |_| {}).await;
    let (src, dst) = p.files(2).await;
    let more = Attrs { size: Some(40 * MIB), ..Attrs::default() };
    p.ca.ok(&[op::put(&src.fh), op::setattr_with(src.stateid, more)]).await;
    let done = p.copy(&src, &dst, true).await.unwrap();
    assert_eq!(done.response.count, 2 * MIB);
    assert_eq!(p.b.fs.content_of("dst").unwrap().len() as u64, 2 * MIB);
    // Then the error has its turn.
    let told = p.notify(&src).await.unwrap();
    let rest = ArgOp::Copy(CopyArgs {
        src_stateid: told.stateid,
        dst_stateid: dst.stateid,
        src_offset: 2 * MIB,
        dst_offset: 2 * MIB,
        count: 0,
        consecutive: true,
        synchronous: true,
        source_server: told.source_server,
    });
    match p.cb.run(&[op::put(&src.fh), ArgOp::SaveFh, op::put(&dst.fh), rest]).await.results.pop() {
        Some(ResOp::Copy(CopyRes::Err(status))) => assert_eq!(status, Status::FBIG),
        other => panic!("{other:?}"),
    }
    p.quiet().await;
}
