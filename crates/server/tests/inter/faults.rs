//! What goes wrong at the source, on the way, and at the destination: bounded, told, and nothing is left of it.

use crate::destination::closed_port;
use crate::{MIB, Pair, at, copy, poll, status_of};
use dhow_proto::v4::ops::{DataContent, OffloadArgs};
use dhow_proto::v4::{ArgOp, Attrs, Status};
use dhow_testkit::fault::{Action, Call};
use dhow_testkit::memfs::Options;
use dhow_testkit::wire::op;
use dhow_vfs::ErrorKind;
use std::time::Duration;

/// Nobody listens; somebody listens and says nothing (case K16); somebody hangs up (case K15).
#[tokio::test]
async fn sources_that_are_none() {
    let mut p = Pair::with(|_| {}, |b| b.copy.inter.source_connect = Duration::from_millis(500)).await;
    let (src, dst) = p.files(1).await;
    let told = p.notify(&src).await.unwrap();
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let rude = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (silent_at, rude_at) = (silent.local_addr().unwrap(), rude.local_addr().unwrap());
    let hang_up = tokio::spawn(async move {
        while let Ok((stream, _)) = rude.accept().await {
            drop(stream);
        }
    });
    let closed = closed_port();
    for there in [closed.addr(), silent_at, rude_at] {
        for _ in 0..2 {
            let res = copy(&mut p.cb, (&src.fh, told.stateid), &dst, false, at(there)).await;
            assert_eq!(res.unwrap_err(), Status::OFFLOAD_DENIED, "{there}");
        }
        p.quiet().await;
    }
    assert_eq!(p.connects(), 6);
    assert_eq!(p.b.running.shared().source_counts().ready, 0);
    hang_up.abort();
    // And the right one still works.
    assert_eq!(p.copy(&src, &dst, true).await.unwrap().response.count, MIB);
}

/// Who waits for a connection that takes long is told to come again, and leaves cleanly (cases K16, K17).
#[tokio::test]
async fn waiting_is_bounded() {
    let mut p = Pair::with(|_| {}, |b| b.copy.inter.source_wait = Duration::from_millis(200)).await;
    let (src, dst) = p.files(1).await;
    let told = p.notify(&src).await.unwrap();
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let there = silent.local_addr().unwrap();
    let mut other = p.b.client("other").await;
    let fh = src.fh.clone();
    let (one, two) = tokio::join!(
        copy(&mut p.cb, (&src.fh, told.stateid), &dst, false, at(there)),
        copy(&mut other, (&fh, told.stateid), &dst, false, at(there)),
    );
    assert_eq!(one.unwrap_err(), Status::DELAY);
    assert!(matches!(two, Err(Status::DELAY | Status::BAD_STATEID)), "{two:?}");
    assert_eq!(p.b.running.shared().state.counts().copies, 0);
}

/// The source goes away while it is read: the client is told, with what is there, and the connection is not used again.
#[tokio::test]
async fn the_source_goes_away() {
    let mut p = Pair::with(|_| {}, |b| b.copy.sync_budget = Duration::from_millis(20)).await;
    let (src, dst) = p.files(4).await;
    let _gate = p.a.fault.hold(Call::Read);
    let id = p.begin(&src, &dst).await;
    let Pair { a, b, ca, mut cb } = p;
    let gone = tokio::spawn(a.running.shutdown());
    let (count, status) = poll(&mut cb, id).await;
    assert_eq!((count, status), (0, Status::OFFLOAD_DENIED));
    gone.await.unwrap();
    for _ in 0..500 {
        if b.running.shared().source_counts() == Default::default() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(b.running.shared().source_counts(), Default::default());
    drop((ca, cb));
}

/// The connection breaks in the middle, again and again: the session goes on over the next one, and so does the copy.
#[tokio::test]
async fn broken_connections() {
    let mut p = Pair::with(
        |_| {},
        |b| {
            b.copy.sync_budget = Duration::from_millis(20);
            b.copy.inter.bandwidth = 20 * MIB;
        },
    )
    .await;
    let (src, dst) = p.files(20).await;
    let id = p.begin(&src, &dst).await;
    let mut cuts = 0;
    while status_of(&mut p.cb, id).await.unwrap().complete.is_empty() {
        tokio::time::sleep(Duration::from_millis(100)).await;
        // The newest one is that of the destination.
        let newest = p.a.running.shared().conns.lock().values().max_by_key(|c| c.id).cloned();
        if let Some(conn) = newest.filter(|c| c.id > 1 && cuts < 3) {
            conn.conn.close(dhow_net::CloseReason::Local("cut on purpose"));
            cuts += 1;
        }
    }
    assert_eq!(poll(&mut p.cb, id).await, (20 * MIB, Status::OK));
    assert!(p.equal() && cuts > 0);
    assert_eq!(p.connects(), 1, "one session all the while");
    p.quiet().await;
}

/// The file is cut short, or removed, while it is copied.
#[tokio::test]
async fn the_file_changes() {
    let mut p = Pair::with(|_| {}, |b| b.copy.sync_budget = Duration::from_millis(20)).await;
    let (src, dst) = p.files(6).await;
    let gate = p.a.fault.hold(Call::Read);
    let id = p.begin(&src, &dst).await;
    gate.arrived(1).await;
    let size = Attrs { size: Some(2 * MIB + 10), ..Attrs::default() };
    p.ca.ok(&[op::put(&src.fh), op::setattr_with(src.stateid, size)]).await;
    gate.open();
    assert_eq!(poll(&mut p.cb, id).await, (2 * MIB + 10, Status::OK));
    assert!(p.equal());
    p.a.fault.clear(Call::Read);
    let gate = p.a.fault.hold(Call::Read);
    let id = p.begin(&src, &dst).await;
    gate.arrived(1).await;
    let before = p.a.fs.content_of("src").unwrap();
    let root = p.ca.walk("").await;
    p.ca.ok(&[op::put(&root), op::remove("src")]).await;
    gate.open();
    // It is open: it goes on being there.
    assert_eq!(poll(&mut p.cb, id).await, (2 * MIB + 10, Status::OK));
    assert!(p.b.fs.content_of("dst").unwrap() == before);
    p.quiet().await;
}

/// The parent is closed while its file is copied: reads under way end, the next is refused (case K13).
#[tokio::test]
async fn the_parent_is_closed() {
    let mut p = Pair::with(
        |_| {},
        |b| {
            b.copy.sync_budget = Duration::from_millis(20);
            b.copy.inter.buffer = 1 << 20;
        },
    )
    .await;
    let (src, dst) = p.files(6).await;
    let gate = p.a.fault.hold(Call::Read);
    let id = p.begin(&src, &dst).await;
    gate.arrived(1).await;
    let sent = p.ca.send(0, &[op::put(&src.fh), op::close(src.stateid)]).await;
    // Others are told to wait as soon as CLOSE waits for the read.
    for _ in 0..2000 {
        let seek = p.ca.send(1, &[op::put(&src.fh), op::seek(src.stateid, 0, DataContent::DATA)]).await;
        match p.ca.wait(seek).await.status {
            Status::OK => tokio::time::sleep(Duration::from_millis(5)).await,
            status => {
                assert_eq!(status, Status::DELAY);
                break;
            }
        }
    }
    gate.open();
    assert_eq!(p.ca.wait(sent).await.status, Status::OK);
    let (count, status) = poll(&mut p.cb, id).await;
    assert_eq!(status, Status::PARTNER_NO_AUTH);
    assert!(count > 0 && count < 6 * MIB, "{count}");
    let (all, part) = (p.a.fs.content_of("src").unwrap(), p.b.fs.content_of("dst").unwrap());
    assert!(all[..count as usize] == part[..count as usize]);
    assert_eq!(p.a.running.shared().state.counts().copy_notifies, 0);
    p.quiet().await;
}

/// Errors of the source's filesystem, and of the destination's, at each step; the prefix is right.
#[tokio::test]
async fn failing_storage() {
    let mut p = Pair::with(|_| {}, |b| b.copy.sync_budget = Duration::from_millis(20)).await;
    let (src, dst) = p.files(4).await;
    p.a.fault.once(Call::Read, Action::Fail(ErrorKind::Io));
    assert_eq!(p.copy(&src, &dst, true).await.unwrap_err(), Status::IO);
    p.b.fault.once(Call::Write, Action::Fail(ErrorKind::NoSpace));
    assert_eq!(p.copy(&src, &dst, true).await.unwrap_err(), Status::NOSPC);
    p.quiet().await;
    // A source that cannot tell where its holes are.
    p.a.fault.always(Call::Seek, Action::Fail(ErrorKind::Io));
    let more = Attrs { size: Some(9 * MIB), ..Attrs::default() };
    p.ca.ok(&[op::put(&src.fh), op::setattr_with(src.stateid, more)]).await;
    assert_eq!(finish(&mut p, &src, &dst).await, (9 * MIB, Status::OK));
    assert!(p.equal());
    p.a.fault.clear(Call::Seek);
    // fsync fails: nothing is said to be durable that is not.
    p.b.fault.once(Call::Commit, Action::Fail(ErrorKind::Io));
    let (_, status) = finish(&mut p, &src, &dst).await;
    assert_eq!(status, Status::IO);
    p.quiet().await;
}

/// Copies, synchronously or not, to the end.
async fn finish(p: &mut Pair, src: &dhow_testkit::wire::Open, dst: &dhow_testkit::wire::Open) -> (u64, Status) {
    match p.copy(src, dst, false).await {
        Ok(ok) => match ok.response.callback_id.first() {
            Some(id) => poll(&mut p.cb, *id).await,
            None if ok.response.committed == dhow_proto::v4::StableHow::FILE_SYNC => (ok.response.count, Status::OK),
            None => (ok.response.count, Status::IO),
        },
        Err(status) => (0, status),
    }
}

/// The destination is full: the client learns it, and how far it got.
#[tokio::test]
async fn the_destination_is_full() {
    let options = Options { max_bytes: 5 * MIB, ..Options::default() };
    let mut p = Pair::on(options, |_| {}, |b| b.copy.inter.buffer = 1 << 20).await;
    let (src, dst) = p.files(8).await;
    let done = p.copy(&src, &dst, true).await.unwrap();
    let n = done.response.count;
    assert!((3 * MIB..=5 * MIB).contains(&n), "{n}");
    let (all, part) = (p.a.fs.content_of("src").unwrap(), p.b.fs.content_of("dst").unwrap());
    assert!(all[..n as usize] == part[..n as usize]);
    p.quiet().await;
}

/// OFFLOAD_CANCEL at the destination, and the end of its client: the copy stops, also one that hears nothing from its
/// source (case K08).
#[tokio::test]
async fn cancelling() {
    let mut p = Pair::with(|_| {}, |b| b.copy.sync_budget = Duration::from_millis(20)).await;
    let (src, dst) = p.files(4).await;
    let gate = p.a.fault.hold(Call::Read);
    let id = p.begin(&src, &dst).await;
    gate.arrived(1).await;
    p.cb.ok(&[ArgOp::OffloadCancel(OffloadArgs { stateid: id })]).await;
    assert_eq!(status_of(&mut p.cb, id).await.unwrap_err(), Status::BAD_STATEID);
    p.quiet().await;
    assert_eq!(p.b.running.shared().source_counts().ready, 1, "the connection is as good as before");
    gate.open();
    p.a.fault.clear(Call::Read);
    assert_eq!(finish(&mut p, &src, &dst).await, (4 * MIB, Status::OK));
    assert!(p.equal());
    p.quiet().await;
}

/// A directory in the place of the file.
#[tokio::test]
async fn not_a_file() {
    let mut p = Pair::new().await;
    let (src, dst) = p.files(1).await;
    let told = p.notify(&src).await.unwrap();
    let root = p.ca.walk("").await;
    let res = copy(&mut p.cb, (&root, told.stateid), &dst, true, told.source_server).await;
    assert_eq!(res.unwrap_err(), Status::WRONG_TYPE);
    p.quiet().await;
}
