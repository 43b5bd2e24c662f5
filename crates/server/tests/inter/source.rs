//! The source: COPY_NOTIFY and the stateids it gives.

use crate::{MIB, Pair, at, copy, notify};
use dhow_proto::v4::ops::{CreateType, DataContent, FreeStateidArgs, TestStateidArgs, share};
use dhow_proto::v4::ops::{OffloadArgs, ReadPlusArgs};
use dhow_proto::v4::{ArgOp, Attrs, NetLoc, ResOp, StableHow, Stateid, Status};
use dhow_server::copy::CheckDestination;
use dhow_testkit::wire::{Client, op, sys};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

fn cancel(stateid: Stateid) -> ArgOp {
    ArgOp::OffloadCancel(OffloadArgs { stateid })
}

async fn read(c: &mut Client, fh: &dhow_proto::v4::FileHandle, stateid: Stateid) -> Status {
    c.status(&[op::put(fh), op::read(stateid, 0, 10)]).await
}

/// What it needs: an open for reading of a regular file, by its client (case K12).
#[tokio::test]
async fn what_it_needs() {
    let mut p = Pair::new().await;
    let (src, _) = p.files(1).await;
    let there = at(p.b.addr)[0].clone();
    let root = p.ca.walk("").await;
    for special in [Stateid::ANONYMOUS, Stateid::READ_BYPASS, Stateid::INVALID, Stateid::CURRENT] {
        assert_eq!(notify(&mut p.ca, &src.fh, special, there.clone()).await.unwrap_err(), Status::BAD_STATEID);
    }
    let owner = p.ca.owner("writer");
    let w = p.ca.open(&root, op::open_name(owner, share::ACCESS_WRITE, 0, "src")).await;
    assert_eq!(notify(&mut p.ca, &src.fh, w.stateid, there.clone()).await.unwrap_err(), Status::OPENMODE);
    p.ca.ok(&[op::put(&root), op::create(CreateType::Fifo, "p", Attrs::default())]).await;
    let pipe = p.ca.walk("p").await;
    for fh in [&root, &pipe] {
        assert_eq!(notify(&mut p.ca, fh, src.stateid, there.clone()).await.unwrap_err(), Status::WRONG_TYPE);
    }
    let mut stranger = p.a.client("stranger").await;
    assert_eq!(notify(&mut stranger, &src.fh, src.stateid, there.clone()).await.unwrap_err(), Status::BAD_STATEID);
    // Destinations that are not allowed.
    for ip in ["192.0.2.1:2049", "127.0.0.9:2049", "[::1]:2049"] {
        let to = at(ip.parse().unwrap())[0].clone();
        assert_eq!(notify(&mut p.ca, &src.fh, src.stateid, to).await.unwrap_err(), Status::ACCESS, "{ip}");
    }
    let told = notify(&mut p.ca, &src.fh, src.stateid, there).await.unwrap();
    assert_eq!(told.source_server, at(p.a.addr), "where the client found it");
    assert_eq!(told.lease_time.secs, 90);
    assert_eq!(p.a.running.shared().state.counts().copy_notifies, 1);
    let configured = vec!["192.0.2.1:2049".parse().unwrap(), "[2001:db8::1]:20049".parse().unwrap()];
    let list = configured.clone();
    let mut p = Pair::with(|a| a.copy.inter.addresses = list, |_| {}).await;
    let (src, _) = p.files(1).await;
    let told = p.notify(&src).await.unwrap();
    assert_eq!(told.source_server, configured.into_iter().flat_map(at).collect::<Vec<_>>());
}

/// A server that listens on all addresses names those of its interfaces, the best first (RFC 7862 15.3.3).
#[tokio::test]
async fn it_names_the_addresses_of_its_interfaces() {
    let everywhere = |a: &mut dhow_server::ServerConfig| {
        a.listen = vec!["0.0.0.0:0".parse().unwrap()];
        a.copy.inter.destinations.push("198.51.100.0/24".parse().unwrap());
        a.copy.inter.interfaces = Some(|| {
            let texts = ["127.0.0.1/8", "192.0.2.5/24", "198.51.100.5/24", "2001:db8::5/64", "fe80::5/64"];
            texts.iter().map(|t| t.parse().unwrap()).collect()
        });
    };
    let mut p = Pair::with(everywhere, |_| {}).await;
    let (src, dst) = p.files(1).await;
    let port = p.a.addr.port();
    let named =
        |ips: [&str; 3]| ips.iter().flat_map(|ip| at(format!("{ip}:{port}").parse().unwrap())).collect::<Vec<_>>();
    // The client came over loopback, and so will the destination.
    let told = p.notify(&src).await.unwrap();
    assert_eq!(told.source_server, named(["127.0.0.1", "192.0.2.5", "198.51.100.5"]));
    let there = at("198.51.100.77:2049".parse().unwrap())[0].clone();
    let far = notify(&mut p.ca, &src.fh, src.stateid, there).await.unwrap();
    assert_eq!(far.source_server, named(["198.51.100.5", "127.0.0.1", "192.0.2.5"]));
    // The destination takes the first that it may use and that answers.
    let from = (&src.fh, told.stateid);
    assert_eq!(copy(&mut p.cb, from, &dst, true, far.source_server).await.unwrap().response.count, MIB);
    assert!(p.equal());
}

/// Reads that one file, for any client, and does nothing else; ends by OFFLOAD_CANCEL or FREE_STATEID of its owner.
#[tokio::test]
async fn what_it_is_good_for() {
    let mut p = Pair::new().await;
    let (src, _) = p.files(1).await;
    let root = p.ca.walk("").await;
    let other = p.ca.create(&root, "other").await;
    let id = p.notify(&src).await.unwrap().stateid;
    let mut c = p.a.client("destination").await;
    assert_eq!(read(&mut c, &src.fh, id).await, Status::OK);
    let plus = ArgOp::ReadPlus(ReadPlusArgs { stateid: id, offset: 0, count: 4096 });
    for good in [plus, op::seek(id, 0, DataContent::HOLE)] {
        assert_eq!(c.status(&[op::put(&src.fh), good]).await, Status::OK);
    }
    assert_eq!(read(&mut c, &other.fh, id).await, Status::BAD_STATEID, "another file");
    for bad in [
        op::write(id, 0, StableHow::UNSTABLE, b"x"),
        op::close(id),
        op::setattr_with(id, Attrs { size: Some(0), ..Attrs::default() }),
        op::downgrade(id, 1, 0),
        ArgOp::CopyNotify(dhow_proto::v4::ops::CopyNotifyArgs {
            src_stateid: id,
            destination_server: at(p.b.addr)[0].clone(),
        }),
    ] {
        for c in [&mut c, &mut p.ca] {
            assert_eq!(c.status(&[op::put(&src.fh), bad.clone()]).await, Status::BAD_STATEID);
        }
    }
    let local = op::copy(id, other.stateid, (0, 0), 0, true);
    let ops = [op::put(&src.fh), ArgOp::SaveFh, op::put(&other.fh), local];
    assert_eq!(p.ca.status(&ops).await, Status::BAD_STATEID, "no source of a copy inside the server");
    let test = |c: Stateid| ArgOp::TestStateid(TestStateidArgs { stateids: vec![c] });
    for (c, due) in [(&mut c, Status::BAD_STATEID), (&mut p.ca, Status::OK)] {
        match c.ok(&[test(id)]).await.pop() {
            Some(ResOp::TestStateid(Ok(ok))) => assert_eq!(ok.status_codes, [due]),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(c.status(&[cancel(id)]).await, Status::BAD_STATEID, "not its owner");
    assert_eq!(c.status(&[ArgOp::FreeStateid(FreeStateidArgs { stateid: id })]).await, Status::BAD_STATEID);
    assert_eq!(read(&mut c, &src.fh, id).await, Status::OK);
    assert_eq!(p.ca.status(&[cancel(id)]).await, Status::OK);
    assert_eq!(read(&mut c, &src.fh, id).await, Status::BAD_STATEID);
    assert_eq!(p.ca.status(&[cancel(id)]).await, Status::BAD_STATEID);
    let id = p.notify(&src).await.unwrap().stateid;
    assert_eq!(p.ca.status(&[ArgOp::FreeStateid(FreeStateidArgs { stateid: id })]).await, Status::OK);
    assert_eq!(read(&mut c, &src.fh, id).await, Status::BAD_STATEID);
    // CLOSE of the parent (case K13).
    let id = p.notify(&src).await.unwrap().stateid;
    assert_eq!(read(&mut c, &src.fh, id).await, Status::OK);
    p.ca.close(&src).await;
    assert_eq!(read(&mut c, &src.fh, id).await, Status::BAD_STATEID);
    assert_eq!(p.a.running.shared().state.counts().copy_notifies, 0);
}

/// It reads in the name of who sent COPY_NOTIFY, whoever the reader says it is.
#[tokio::test]
async fn in_whose_name() {
    let mut p = Pair::new().await;
    let (src, _) = p.files(1).await;
    p.ca.ok(&[op::put(&src.fh), op::setattr(Attrs { mode: Some(0o600), ..Attrs::default() })]).await;
    let id = p.notify(&src).await.unwrap().stateid;
    let mut c = p.a.client_as("destination", 3000, 3000, &[]).await;
    assert_eq!(read(&mut c, &src.fh, Stateid::ANONYMOUS).await, Status::ACCESS);
    assert_eq!(read(&mut c, &src.fh, id).await, Status::OK);
    c.wire.cred = dhow_rpc::Credential::None;
    assert_eq!(read(&mut c, &src.fh, id).await, Status::OK);
    c.wire.cred = sys(0, 0, &[]);
    assert_eq!(read(&mut c, &src.fh, id).await, Status::OK);
}

/// Who reads is compared with who was named.
#[tokio::test]
async fn the_named_destination() {
    for check in [CheckDestination::Off, CheckDestination::Warn, CheckDestination::Enforce] {
        let mut p = Pair::with(|a| a.copy.inter.check_destination = check, |_| {}).await;
        let (src, dst) = p.files(1).await;
        let right = p.notify(&src).await.unwrap().stateid;
        let elsewhere = at("127.0.0.2:2049".parse().unwrap())[0].clone();
        let wrong = notify(&mut p.ca, &src.fh, src.stateid, elsewhere).await.unwrap();
        let mut c = p.a.client("destination").await;
        assert_eq!(read(&mut c, &src.fh, right).await, Status::OK);
        let (read_due, seek_due, seen) = match check {
            CheckDestination::Off => (Status::OK, Status::OK, 0),
            CheckDestination::Warn => (Status::OK, Status::OK, 2),
            CheckDestination::Enforce => (Status::PARTNER_NO_AUTH, Status::ACCESS, 2),
        };
        assert_eq!(read(&mut c, &src.fh, wrong.stateid).await, read_due, "{check:?}");
        let seek = op::seek(wrong.stateid, 0, DataContent::DATA);
        assert_eq!(c.status(&[op::put(&src.fh), seek]).await, seek_due);
        assert_eq!(p.a.running.shared().metrics.inter.destination_mismatches.load(Relaxed), seen);
        let done = crate::copy(&mut p.cb, (&src.fh, wrong.stateid), &dst, true, wrong.source_server).await;
        match read_due {
            Status::OK => assert_eq!(done.unwrap().response.count, MIB),
            status => assert_eq!(done.unwrap_err(), status),
        }
        // A name is not resolved: it cannot be enforced, but who comes must be allowed.
        let named = notify(&mut p.ca, &src.fh, src.stateid, NetLoc::Name("there".into())).await;
        match check {
            CheckDestination::Enforce => assert_eq!(named.unwrap_err(), Status::ACCESS),
            _ => assert_eq!(read(&mut c, &src.fh, named.unwrap().stateid).await, Status::OK),
        }
    }
}

/// It ends a lease time after its last use, and is counted to the last.
#[tokio::test]
async fn its_time() {
    const LEASE: Duration = Duration::from_secs(3);
    let mut p = Pair::with(|a| a.state.lease = LEASE, |_| {}).await;
    let (src, _) = p.files(1).await;
    let mut c = p.a.client("destination").await;
    let mut used = Instant::now();
    let mut id = p.notify(&src).await.unwrap().stateid;
    let mut uses = 0;
    while uses < 4 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let before = Instant::now();
        let status = read(&mut c, &src.fh, id).await;
        if used.elapsed() < LEASE {
            assert_eq!(status, Status::OK);
            (used, uses) = (before, uses + 1);
        } else {
            // The machine had other things to do for so long that this proves nothing.
            used = Instant::now();
            id = p.notify(&src).await.unwrap().stateid;
            uses = 0;
        }
    }
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        // It keeps its own lease, not that of the stateid.
        c.attrs(&src.fh, &[0]).await;
        if p.a.running.shared().state.counts().copy_notifies == 0 {
            break;
        }
    }
    assert_eq!(p.a.running.shared().state.counts().copy_notifies, 0);
    assert_eq!(read(&mut c, &src.fh, id).await, Status::BAD_STATEID);
}

/// A flood of COPY_NOTIFY: bounded by open, by client and in all; everything else goes on (case K01).
#[tokio::test]
async fn a_flood() {
    let mut p =
        Pair::with(|a| (a.state.copy_notifies_per_open, a.state.copy_notifies_per_client) = (8, 12), |_| {}).await;
    let (src, dst) = p.files(1).await;
    let root = p.ca.walk("").await;
    let more = p.ca.create(&root, "more").await;
    for _ in 0..200 {
        p.notify(&src).await.unwrap();
    }
    assert_eq!(p.a.running.shared().state.counts().copy_notifies, 8);
    let mut refused = 0;
    for _ in 0..200 {
        match p.notify(&more).await {
            Ok(_) => {}
            Err(status) => {
                assert_eq!(status, Status::DELAY);
                refused += 1;
            }
        }
    }
    assert_eq!((p.a.running.shared().state.counts().copy_notifies, refused), (12, 196));
    let hits = p.a.running.shared().limit_hits();
    assert!(hits.contains(&("copy.notifies_total", 196)), "{hits:?}");
    p.ca.close(&more).await;
    assert_eq!(p.copy(&src, &dst, true).await.unwrap().response.count, MIB);
}
