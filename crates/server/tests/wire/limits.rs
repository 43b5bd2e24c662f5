//! Limits: a client that takes too much is refused cleanly, goes on afterwards, and harms nobody else (case B22).

use crate::common::Srv;
use dhow_proto::v4::ops::{LockRes, SequenceArgs, TestStateidArgs, share};
use dhow_proto::v4::{ArgOp, LockType, ResOp, Status, Verifier};
use dhow_server::ServerConfig;
use dhow_testkit::wire::{Client, ClientOptions, Wire, op};

async fn serve(change: impl FnOnce(&mut ServerConfig)) -> Srv {
    Srv::with(Default::default(), change).await
}

/// How often a limit was reached, by its name in the configuration.
fn hits(srv: &Srv, name: &str) -> u64 {
    srv.running.shared().limit_hits().into_iter().find(|h| h.0 == name).expect("a limit of that name").1
}

async fn works(c: &mut Client, name: &str) {
    let root = c.walk("").await;
    let f = c.create(&root, name).await;
    c.write(&f, 0, b"x").await;
    c.close(&f).await;
}

async fn exchange(w: &mut Wire, o: &ClientOptions) -> Status {
    w.compound(2, &[o.exchange_id()]).await.status
}

/// RFC 8881 18.35: introductions that lead to nothing make room for others.
#[tokio::test]
async fn introductions_that_lead_to_nothing() {
    let srv = serve(|c| c.state.unconfirmed_clients = 50).await;
    let mut good = srv.client("good").await;
    let mut w = srv.wire().await;
    for i in 0..2000 {
        let status = exchange(&mut w, &ClientOptions::named(format!("nobody {i}"))).await;
        assert!(matches!(status, Status::OK | Status::DELAY), "{status:?}");
    }
    assert!(hits(&srv, "limits.unconfirmed_clients") > 1900);
    works(&mut good, "f").await;
    let mut late = srv.client("late").await;
    works(&mut late, "g").await;
}

/// All places of clients taken: the next is told to wait, those who are in go on.
#[tokio::test]
async fn clients() {
    let srv = serve(|c| c.state.clients = 5).await;
    let mut inside = Vec::new();
    for i in 0..5 {
        inside.push(srv.client(&format!("client {i}")).await);
    }
    let mut w = srv.wire().await;
    for i in 0..20 {
        assert_eq!(exchange(&mut w, &ClientOptions::named(format!("late {i}"))).await, Status::DELAY);
    }
    assert_eq!(hits(&srv, "limits.clients"), 20);
    for (i, c) in inside.iter_mut().enumerate() {
        works(c, &format!("f{i}")).await;
    }
    let mut first = inside.remove(0);
    assert!(first.wire.compound(2, &[op::destroy_session(first.session.id())]).await.status.is_ok());
    assert!(first.wire.compound(2, &[op::destroy_client(first.id)]).await.status.is_ok());
    let mut next = srv.client("next").await;
    works(&mut next, "g").await;
}

/// RFC 8881 18.36: sessions of one client.
#[tokio::test]
async fn sessions() {
    let srv = serve(|c| c.state.sessions_per_client = 4).await;
    let o = ClientOptions::named("greedy");
    let mut c = Client::connect(srv.addr, o.clone()).await;
    let mut granted = 1;
    let first = c.exchanged.sequence_id;
    let mut refused = 0;
    for i in 1..40_u32 {
        // A refused CREATE_SESSION uses its sequence id up as well: its error is the reply that is kept.
        match c.wire.compound(2, &[o.create_session(c.id, first.wrapping_add(i))]).await.status {
            Status::OK => granted += 1,
            Status::NOSPC => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((granted, refused), (4, 36));
    assert_eq!(hits(&srv, "limits.sessions"), 36);
    works(&mut c, "f").await;
    works(&mut srv.client("other").await, "g").await;
}

/// The memory of cached replies is shared: late sessions get fewer slots, but some.
#[tokio::test]
async fn slots() {
    let srv = serve(|c| c.state.cached_bytes = 8 << 20).await;
    let mut least = u32::MAX;
    for i in 0..40 {
        let mut o = ClientOptions::named(format!("client {i}"));
        o.fore.max_requests = 2048;
        let mut c = Client::connect(srv.addr, o).await;
        let slots = c.session.granted.fore_chan.max_requests;
        assert!(slots >= 1);
        least = least.min(slots);
        works(&mut c, &format!("f{i}")).await;
    }
    assert!(hits(&srv, "limits.cached_bytes") > 0);
    assert!(least < 2048, "forty sessions of 2048 slots are more than there is room for");
}

/// Opens of one client: refused at once (DELAY would make a client wait for itself; NFSv4.1 has no RESOURCE), and room
/// again after a CLOSE.
#[tokio::test]
async fn opens() {
    let srv = serve(|c| c.state.opens_per_client = 20).await;
    let mut c = srv.client("greedy").await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    let mut opens = vec![f];
    let mut refused = 0;
    for i in 0..60 {
        let open = op::open_name(c.owner(format!("o{i}")), share::ACCESS_READ, 0, "f");
        let res = c.run(&[op::put(&root), open]).await;
        match res.results.last() {
            Some(ResOp::Open(Ok(ok))) => {
                opens.push(dhow_testkit::wire::Open { stateid: ok.stateid, ..opens[0].clone() })
            }
            Some(ResOp::Open(Err(status))) => {
                assert!(matches!(*status, Status::SERVERFAULT | Status::NOSPC), "{status:?}");
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((opens.len(), refused), (20, 41));
    assert_eq!(hits(&srv, "limits.opens"), 41);
    assert_eq!(srv.fs.open_count(), 20, "what was refused is not open");
    works(&mut srv.client("other").await, "g").await;
    for open in opens {
        c.close(&open).await;
    }
    works(&mut c, "h").await;
}

/// Locks of one file, and lock-owners of one open.
#[tokio::test]
async fn locks() {
    let srv = serve(|c| {
        c.state.locks_per_file = 32;
        c.state.lock_owners_per_open = 4;
    })
    .await;
    let mut c = srv.client("greedy").await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    let mut stateid = None;
    let (mut granted, mut refused) = (0, 0);
    for i in 0..100 {
        let lock = match stateid {
            None => op::lock_new(f.stateid, c.owner("l"), LockType::WRITE, i * 10, 1),
            Some(s) => op::lock_more(s, LockType::WRITE, i * 10, 1),
        };
        match c.run(&[op::put(&f.fh), lock]).await.results.pop() {
            Some(ResOp::Lock(LockRes::Ok(s))) => {
                stateid = Some(s);
                granted += 1;
            }
            Some(ResOp::Lock(LockRes::Err(status))) => {
                assert!(matches!(status, Status::SERVERFAULT | Status::NOSPC), "{status:?}");
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(granted > 0 && granted <= 32 && refused > 0, "{granted} granted, {refused} refused");
    assert_eq!(hits(&srv, "limits.locks_per_file"), refused);
    // Giving them all up works at the limit too; then there is room.
    let s = stateid.unwrap();
    c.ok(&[op::put(&f.fh), op::locku(s, 0, u64::MAX)]).await;
    let mut owners = 1;
    for i in 0..20 {
        let lock = op::lock_new(f.stateid, c.owner(format!("l{i}")), LockType::READ, 0, 1);
        match c.run(&[op::put(&f.fh), lock]).await.results.pop() {
            Some(ResOp::Lock(LockRes::Ok(_))) => owners += 1,
            Some(ResOp::Lock(LockRes::Err(Status::SERVERFAULT | Status::NOSPC))) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(owners, 4);
    assert_eq!(hits(&srv, "limits.lock_owners_per_open"), 17);
}

/// Connections: the one too many waits or is closed; those that are there go on, and a place that gets free is taken.
#[tokio::test]
async fn connections() {
    let srv = serve(|c| c.limits.connections = 8).await;
    let mut wires = Vec::new();
    for _ in 0..8 {
        let mut w = srv.wire().await;
        assert!(w.null().await.header.is_success());
        wires.push(w);
    }
    let mut more = srv.wire().await;
    for _ in 0..1000 {
        if hits(&srv, "limits.connections") > 0 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(hits(&srv, "limits.connections"), 1);
    for w in &mut wires {
        assert!(w.null().await.header.is_success());
    }
    wires.truncate(4);
    // Either it was waiting and is served now, or it was closed and another is taken.
    let xid = more.xid();
    let null = dhow_testkit::wire::call_bytes(xid, dhow_rpc::OpaqueAuth::NONE, dhow_proto::NFS_PROGRAM, 4, 0, &[]);
    let served = more.send_record(&null).await.is_ok() && more.try_reply(xid).await.is_some();
    if !served {
        for _ in 0..500 {
            let mut w = srv.wire().await;
            let null =
                dhow_testkit::wire::call_bytes(1, dhow_rpc::OpaqueAuth::NONE, dhow_proto::NFS_PROGRAM, 4, 0, &[]);
            if w.send_record(&null).await.is_ok() && w.try_reply(1).await.is_some() {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("no place got free");
    }
}

/// More connections bound to one session than it may have.
#[tokio::test]
async fn connections_of_one_session() {
    let srv = serve(|c| c.state.conns_per_session = 4).await;
    let mut c = srv.client("c").await;
    let mut wires = Vec::new();
    for slot in 0..20 {
        let mut w = srv.wire().await;
        let request = c.sequenced(slot, &[op::root()]);
        let status = w.compound(2, &request).await.status;
        assert!(matches!(status, Status::OK | Status::CONN_NOT_BOUND_TO_SESSION | Status::DELAY), "{status:?}");
        wires.push(w);
    }
    assert!(hits(&srv, "limits.connections_per_session") > 0);
    works(&mut c, "f").await;
}

/// Connections of one peer: it is refused more, others are not. The peers here are addresses of the loopback.
#[tokio::test]
async fn connections_of_one_peer() {
    let srv = serve(|c| {
        c.limits.connections = 8;
        c.limits.connections_per_peer = 4;
    })
    .await;
    let from = async |ip: [u8; 4]| {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind((ip, 0).into()).unwrap();
        Wire::new(socket.connect(srv.addr).await.unwrap())
    };
    let served = async |w: &mut Wire| {
        let null = dhow_testkit::wire::call_bytes(1, dhow_rpc::OpaqueAuth::NONE, dhow_proto::NFS_PROGRAM, 4, 0, &[]);
        w.send_record(&null).await.is_ok() && w.try_reply(1).await.is_some()
    };
    let mut inside = Vec::new();
    for _ in 0..4 {
        let mut w = from([127, 0, 0, 2]).await;
        assert!(served(&mut w).await);
        inside.push(w);
    }
    for _ in 0..10 {
        let mut w = from([127, 0, 0, 2]).await;
        assert!(!served(&mut w).await, "one too many of its peer");
    }
    assert_eq!((hits(&srv, "limits.connections_per_peer"), hits(&srv, "limits.connections")), (10, 0));
    let mut other = from([127, 0, 0, 3]).await;
    assert!(served(&mut other).await, "another peer is not in its way");
    works(&mut srv.client("third").await, "f").await;
    for w in &mut inside {
        assert!(served(w).await);
    }
    inside.clear();
    for _ in 0..500 {
        if served(&mut from([127, 0, 0, 2]).await).await {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("no place got free");
}

/// Bytes in flight: one client's requests of all sizes wait for each other, those of others go on (case B22).
#[tokio::test]
async fn bytes_in_flight() {
    let srv = serve(|c| {
        c.limits.request_bytes = 4 << 20;
        c.limits.request_bytes_per_connection = 2 << 20;
    })
    .await;
    let mut c = srv.client("greedy").await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    let stuck = srv.fault.hold(dhow_testkit::fault::Call::Write);
    let data = vec![7; 900_000];
    let mut sent = Vec::new();
    for slot in 0..2 {
        let write = op::write(f.stateid, 0, dhow_proto::v4::StableHow::UNSTABLE, &data);
        sent.push(c.send(slot, &[op::put(&f.fh), write]).await);
    }
    stuck.arrived(2).await;
    // The next one finds no room: it waits in the connection, not in the server's memory.
    let write = op::write(f.stateid, 0, dhow_proto::v4::StableHow::UNSTABLE, &data);
    let sending = tokio::spawn(async move {
        sent.push(c.send(2, &[op::put(&f.fh), write]).await);
        (c, sent)
    });
    for _ in 0..1000 {
        if hits(&srv, "limits.request_bytes") > 0 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert!(hits(&srv, "limits.request_bytes") > 0, "nothing waited");
    assert_eq!(stuck.count(), 2);
    let mut other = srv.client("other").await;
    other.walk("").await;
    stuck.open();
    let (mut c, sent) = sending.await.unwrap();
    for xid in sent {
        assert!(c.wait(xid).await.status.is_ok());
    }
}

/// Large arguments that are well-formed: answered, or refused as too large, in any case at once.
#[tokio::test]
async fn large_arguments() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    for count in [1000, 40_000] {
        let args = TestStateidArgs { stateids: vec![f.stateid; count] };
        let sequence = ArgOp::Sequence(c.session.sequence(0, false));
        let res = c.wire.compound(2, &[sequence, ArgOp::TestStateid(args)]).await;
        match res.results.last() {
            Some(ResOp::TestStateid(Ok(ok))) => assert_eq!(ok.status_codes, vec![Status::OK; count]),
            Some(last) => assert!(matches!(last.status(), Status::REP_TOO_BIG | Status::REQ_TOO_BIG | Status::BADXDR)),
            None => panic!("no result"),
        }
    }
    let long = vec![b'n'; 900_000];
    for ask in [op::lookup(&long), op::mkdir(&long), op::remove(&long)] {
        assert_eq!(c.status(&[op::put(&root), ask]).await, Status::NAMETOOLONG);
    }
    works(&mut c, "g").await;
}

/// A thousand incarnations of one client: each replaces the one before.
#[tokio::test]
async fn incarnations() {
    let srv = Srv::start().await;
    for i in 0..300_u64 {
        let o = ClientOptions { verifier: Verifier(i.to_be_bytes()), ..ClientOptions::named("restless") };
        let mut c = Client::connect(srv.addr, o).await;
        let root = c.walk("").await;
        c.create(&root, "f").await;
    }
    for _ in 0..500 {
        if srv.fs.open_count() <= 1 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{} opens are left", srv.fs.open_count());
}

/// Sequence ids wrap (RFC 8881 2.10.6.1): not reached by counting here, but no value of it is a fault.
#[tokio::test]
async fn any_sequence_id() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    for sequence_id in [0, 2, 3, 0x7fff_ffff, 0x8000_0000, u32::MAX - 1, u32::MAX] {
        let sequence =
            SequenceArgs { session_id: c.session.id(), sequence_id, slot_id: 9, highest_slot_id: 9, cache_this: true };
        let res = c.wire.compound(2, &[ArgOp::Sequence(sequence), op::root()]).await;
        assert_eq!(res.status, Status::SEQ_MISORDERED, "{sequence_id}: the first is 1");
    }
    let xid = c.send(9, &[op::root()]).await;
    assert!(c.wait(xid).await.status.is_ok());
}

/// Waits until a limit was reached.
async fn reached(srv: &Srv, name: &str) {
    for _ in 0..2000 {
        if hits(srv, name) > 0 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("{name} is not counted");
}

/// Calls of one connection at once: those beyond the limit wait in the connection, others go on, and all are answered.
#[tokio::test]
async fn calls_of_one_connection() {
    let srv = serve(|c| c.limits.calls_per_connection = 4).await;
    let mut c = srv.client("greedy").await;
    let root = c.walk("").await;
    let stuck = srv.fault.hold(dhow_testkit::fault::Call::ReadDir);
    let list = op::readdir(0, Verifier::default(), 4096, &[]);
    let mut sent = Vec::new();
    for slot in 0..12 {
        sent.push(c.send(slot, &[op::put(&root), list.clone()]).await);
    }
    stuck.arrived(4).await;
    reached(&srv, "limits.calls_per_connection").await;
    let mut other = srv.client("other").await;
    works(&mut other, "f").await;
    assert_eq!(stuck.count(), 4, "more were begun than may run");
    stuck.open();
    for xid in sent {
        assert_eq!(c.wait(xid).await.status, Status::OK);
    }
    assert!(hits(&srv, "limits.calls_per_connection") < 12);
}

/// A client that takes no replies: its requests are left unread, those of others are served, and when it reads at last
/// everything comes (case B46).
#[tokio::test]
async fn reply_bytes_of_one_connection() {
    let srv = serve(|c| c.limits.reply_bytes_per_connection = 1 << 20).await;
    // Not TCP, whose buffers may take tens of MiB.
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    srv.running.serve_stream(theirs, None);
    let mut c = Client::over(Wire::new(ours), ClientOptions::named("lazy")).await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    c.write(&f, 0, &vec![3; 1 << 19]).await;
    let mut sent = Vec::new();
    for slot in 0..60 {
        sent.push(c.send(slot, &[op::put(&f.fh), op::read(f.stateid, 0, 1 << 19)]).await);
        if hits(&srv, "limits.reply_bytes_per_connection") > 0 {
            break;
        }
        // Until replies wait, and the next request is not read.
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    reached(&srv, "limits.reply_bytes_per_connection").await;
    let mut other = srv.client("other").await;
    works(&mut other, "g").await;
    for xid in sent {
        match c.wait(xid).await.results.pop() {
            Some(ResOp::Read(Ok(ok))) => assert_eq!(ok.data.len(), 1 << 19),
            other => panic!("{other:?}"),
        }
    }
}

/// A record that stays incomplete: its connection is closed and that is counted; one that is merely quiet is not.
#[tokio::test]
async fn records_that_stay_incomplete() {
    let srv = serve(|c| c.limits.partial_timeout = std::time::Duration::from_millis(200)).await;
    let mut quiet = srv.client("quiet").await;
    for sent in [1, 4, 50] {
        let mut w = srv.wire().await;
        // A fragment of 1000 bytes is announced.
        let mut bytes = 0x8000_03e8_u32.to_be_bytes().to_vec();
        bytes.extend([0; 46]);
        w.send_raw(&bytes[..sent]).await.unwrap();
        w.closed().await;
    }
    assert_eq!(hits(&srv, "limits.partial_timeout"), 3);
    works(&mut quiet, "f").await;
}

/// Every limit is counted under the name that it has in the configuration.
#[tokio::test]
async fn every_counter_has_the_name_of_its_key() {
    let srv = Srv::start().await;
    let keys = include_str!("../../../../docs/configuration.md");
    for (name, hits) in srv.running.shared().limit_hits() {
        let key = name.split_once('.').expect("section.key").1;
        assert!(keys.contains(key), "{name} is not in docs/configuration.md");
        assert_eq!(hits, 0, "{name}");
    }
}
