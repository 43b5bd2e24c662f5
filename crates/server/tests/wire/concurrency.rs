//! Requests do not wait for each other (case B44); peers that do not read harm only themselves (case B46).

use crate::common::{Srv, open_both};
use dhow_proto::v4::attr::SIZE;
use dhow_proto::v4::ops::share;
use dhow_proto::v4::{ArgOp, ResOp, StableHow, Stateid, Status};
use dhow_testkit::fault::{Action, Call, Gate};
use dhow_testkit::wire::{Client, ClientOptions, op};
use std::time::Duration;

/// Case B44: one slow READ delays nothing else on its connection, replies leave in any order.
#[tokio::test]
async fn a_slow_read_delays_only_itself() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let slow = c.create(&root, "slow").await;
    let fast = c.create(&root, "fast").await;
    c.write(&slow, 0, b"slow").await;
    c.write(&fast, 0, b"fast").await;
    let gate = Gate::new();
    srv.fault.rule(Call::Read, srv.fs.handle_of("slow"), Action::Hold(gate.clone()), u64::MAX);
    let held = c.send(1, &[op::put(&slow.fh), op::read(slow.stateid, 0, 10)]).await;
    gate.arrived(1).await;
    for _ in 0..100 {
        c.ok(&[op::put(&slow.fh), op::getattr(&[SIZE])]).await;
        assert_eq!(c.read(&fast, 0, 10).await.0, "fast");
    }
    c.write(&slow, 4, b"er").await;
    c.ok(&[op::put(&root), op::mkdir("d")]).await;
    gate.open();
    let res = c.wait(held).await;
    assert!(matches!(res.results.last(), Some(ResOp::Read(Ok(ok))) if ok.data.starts_with(b"slow")));
}

/// Case B44 for requests that come in large records, which are begun on the reader's own task: as soon as one waits it
/// is out of the way, and each runs once.
#[tokio::test]
async fn a_slow_large_write_delays_only_itself() {
    const LARGE: usize = 256 << 10;
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let slow = c.create(&root, "slow").await;
    let fast = c.create(&root, "fast").await;
    let gate = Gate::new();
    srv.fault.rule(Call::Write, srv.fs.handle_of("slow"), Action::Hold(gate.clone()), u64::MAX);
    let mut held = Vec::new();
    for n in 0..4u8 {
        let data = vec![n + 1; LARGE];
        let offset = u64::from(n) * LARGE as u64;
        let slot = u32::from(n) + 1;
        held.push(
            c.send(slot, &[op::put(&slow.fh), op::write(slow.stateid, offset, StableHow::UNSTABLE, &data)]).await,
        );
    }
    gate.arrived(4).await;
    let before = srv.fault.count(Call::Write);
    for n in 0..10u8 {
        // Both a small and a large one on the same connection.
        c.ok(&[op::put(&slow.fh), op::getattr(&[SIZE])]).await;
        c.write(&fast, 0, &vec![n; LARGE]).await;
    }
    assert_eq!(srv.fault.count(Call::Write), before + 10);
    gate.open();
    for held in held {
        let res = c.wait(held).await;
        assert!(matches!(res.results.last(), Some(ResOp::Write(Ok(ok))) if ok.count as usize == LARGE), "{res:?}");
    }
    assert_eq!(srv.fault.count(Call::Write), before + 10, "none was begun twice");
    for n in 0..4u8 {
        let (data, _) = c.read(&slow, u64::from(n) * LARGE as u64, 16).await;
        assert_eq!(data, [n + 1; 16][..]);
    }
}

/// Every kind of slow call: others on the same connection go on.
#[tokio::test]
async fn any_slow_call_delays_only_itself() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    let g = c.create(&root, "g").await;
    let d = c.mkdir(&root, "d").await;
    let owner = c.owner("p");
    let slow: Vec<(Call, Vec<ArgOp>)> = vec![
        (Call::Commit, vec![op::put(&f.fh), op::commit(0, 0)]),
        (Call::Write, vec![op::put(&f.fh), op::write(f.stateid, 0, StableHow::UNSTABLE, b"x")]),
        (Call::Make, vec![op::put(&d), op::mkdir("x")]),
        (Call::Create, vec![op::put(&d), op::open_create(owner, 3, 0, "y", 0o644)]),
        (Call::ReadDir, vec![op::put(&d), op::readdir(0, Default::default(), 4096, &[])]),
        (Call::Lookup, vec![op::put(&d), op::lookup("x")]),
        (Call::Remove, vec![op::put(&d), op::remove("x")]),
        (Call::StatFs, vec![op::put(&d), op::getattr(&[dhow_proto::v4::attr::SPACE_FREE])]),
        (Call::Seek, vec![op::put(&f.fh), op::seek(f.stateid, 0, dhow_proto::v4::ops::DataContent::DATA)]),
    ];
    for (call, ops) in slow {
        let gate = srv.fault.hold(call);
        let held = c.send(1, &ops).await;
        gate.arrived(1).await;
        srv.fault.clear(call);
        for _ in 0..10 {
            c.ok(&[op::put(&g.fh), op::getattr(&[SIZE]), op::read(g.stateid, 0, 1)]).await;
            c.ok(&[op::put(&root), op::lookup("g"), op::getfh()]).await;
        }
        gate.open();
        c.wait(held).await;
    }
}

/// Creates of different names in one directory do not wait for each other (C5).
#[tokio::test]
async fn creates_in_one_directory() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let gate = srv.fault.hold(Call::Create);
    let mut xids = Vec::new();
    for i in 0..32 {
        let owner = c.owner(format!("o{i}"));
        xids.push(c.send(i, &[op::put(&root), op::open_create(owner, 3, 0, format!("f{i}"), 0o644)]).await);
    }
    gate.arrived(32).await;
    gate.open();
    for xid in xids {
        assert!(c.wait(xid).await.status.is_ok());
    }
}

/// The same name from many at once: one file, and everybody has it open.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn creates_of_one_name() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let mut xids = Vec::new();
    for i in 0..32 {
        let owner = c.owner(format!("o{i}"));
        xids.push(c.send(i, &[op::put(&root), op::open_create(owner, 3, 0, "one", 0o644), op::getfh()]).await);
    }
    let mut seen = Vec::new();
    for xid in xids {
        let res = c.wait(xid).await;
        match res.results.last() {
            Some(ResOp::GetFh(Ok(ok))) => seen.push(ok.object.clone()),
            other => panic!("{other:?}"),
        }
    }
    seen.dedup();
    assert_eq!(seen.len(), 1);
    assert_eq!(srv.fs.open_count(), 32);
}

/// Case K26: unlink, create, rename and open of a few names from many slots: no deadlock, no fault, nothing left open.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_storm_of_names() {
    let srv = Srv::start().await;
    let mut tasks = Vec::new();
    for n in 0..4_u64 {
        let mut c = srv.client(&format!("client {n}")).await;
        tasks.push(tokio::spawn(async move {
            let root = c.walk("").await;
            let dirs = [root.clone(), c.walk("").await];
            let mut seed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut next = move || {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                seed
            };
            let mut opens = Vec::new();
            for round in 0..60 {
                let mut xids = Vec::new();
                for slot in 0..16 {
                    let r = next();
                    let (x, y) = (format!("n{}", r % 5), format!("n{}", (r >> 8) % 5));
                    let dir = &dirs[(r >> 16) as usize % 2];
                    let owner = c.owner(format!("o{round}-{slot}"));
                    let ops = match (r >> 24) % 5 {
                        0 => vec![op::put(dir), op::remove(x)],
                        1 => vec![op::put(dir), ArgOp::SaveFh, op::rename(x, y)],
                        2 => vec![op::put(dir), op::lookup(x), ArgOp::SaveFh, op::put(dir), op::link(y)],
                        _ => vec![op::put(dir), op::open_create(owner, share::ACCESS_BOTH, 0, x, 0o644), op::getfh()],
                    };
                    xids.push(c.send(slot, &ops).await);
                }
                for xid in xids {
                    let res = c.wait(xid).await;
                    if let [.., ResOp::Open(Ok(ok)), ResOp::GetFh(Ok(fh))] = &res.results[..] {
                        opens.push((fh.object.clone(), ok.stateid));
                    } else {
                        let due = [Status::OK, Status::NOENT, Status::EXIST, Status::STALE, Status::DELAY];
                        assert!(due.contains(&res.status), "{res:?}");
                    }
                }
            }
            for (fh, stateid) in opens {
                c.ok(&[op::put(&fh), op::close(stateid)]).await;
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(120), task).await.expect("no deadlock").unwrap();
    }
    assert_eq!(srv.fs.open_count(), 0);
}

/// CLOSE waits for I/O under its stateid or lets it finish; the data of an answered WRITE is there.
#[tokio::test]
async fn closing_under_io() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    let g = open_both(&mut c, &root, "f", "other").await;
    let gate = srv.fault.hold(Call::Write);
    let write = c.send(1, &[op::put(&f.fh), op::write(f.stateid, 0, StableHow::UNSTABLE, b"data")]).await;
    gate.arrived(1).await;
    let close = c.send(2, &[op::put(&f.fh), op::close(f.stateid)]).await;
    // Others read it meanwhile. (An OPEN of this file would wait for the CLOSE: they pass one gate.)
    for _ in 0..10 {
        c.read(&g, 0, 10).await;
        c.ok(&[op::put(&f.fh), op::getattr(&[SIZE])]).await;
    }
    gate.open();
    let written = c.wait(write).await;
    assert!(written.status.is_ok(), "{written:?}");
    let mut closed = c.wait(close).await.status;
    for _ in 0..500 {
        if closed != Status::DELAY {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        closed = c.status(&[op::put(&f.fh), op::close(f.stateid)]).await;
    }
    assert!(closed.is_ok(), "{closed:?}");
    assert_eq!(c.read(&g, 0, 10).await.0, "data");
    c.close(&g).await;
    assert_eq!(srv.fs.open_count(), 0);
}

/// Case B46: a peer that asks for gigabytes and reads nothing cannot pin more than its share, and others go on.
#[tokio::test]
async fn a_peer_that_does_not_read() {
    let srv = Srv::start().await;
    let mut c = srv.client("good").await;
    let root = c.walk("").await;
    let f = c.create(&root, "big").await;
    c.ok(&[
        op::put(&f.fh),
        op::setattr_with(f.stateid, dhow_proto::v4::Attrs { size: Some(1 << 30), ..Default::default() }),
    ])
    .await;
    let mut o = ClientOptions::named("bad");
    o.fore.max_requests = 512;
    let mut bad = Client::connect(srv.addr, o).await;
    let slots = bad.session.granted.fore_chan.max_requests;
    for slot in 0..slots {
        let sequence = ArgOp::Sequence(bad.session.sequence(slot, false));
        let read = [sequence, op::put(&f.fh), op::read(Stateid::ANONYMOUS, 0, 1 << 20)];
        bad.wire.send_compound(2, &read).await;
    }
    let limit = srv.running.shared().limits().reply_bytes_per_connection;
    for _ in 0..50 {
        c.ok(&[op::put(&f.fh), op::read(f.stateid, 0, 4096)]).await;
        let pinned: usize = srv.running.shared().conns.lock().values().map(|c| c.conn.waiting_bytes()).sum();
        assert!(pinned <= limit + (4 << 20), "{pinned} bytes wait for a peer that does not read");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(srv.fault.count(Call::Read) < u64::from(slots), "not all of it was read in advance");
}

/// Case B46: listings count as READs do.
#[tokio::test]
async fn a_peer_that_does_not_take_its_listings() {
    let srv = Srv::with(Default::default(), |c| c.limits.reply_bytes_per_connection = 4 << 20).await;
    let mut c = srv.client("bad").await;
    for i in 0..80 {
        let many = (0..30).map(|j| op::mkdir(format!("{i:02}-{j:02}-{}", "n".repeat(240))));
        let each = many.flat_map(|mkdir| [op::root(), mkdir]);
        c.ok(&each.collect::<Vec<_>>()).await;
    }
    let list = [op::root(), op::readdir(0, Default::default(), 1 << 20, &[])];
    let mut sent = Vec::new();
    for slot in 0..60 {
        sent.push(c.send(slot, &list).await);
    }
    for _ in 0..50 {
        let waiting: usize = srv.running.shared().conns.lock().values().map(|c| c.conn.waiting_bytes()).sum();
        assert!(waiting <= 6 << 20, "{waiting} bytes wait");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for xid in sent {
        let res = c.wait(xid).await;
        assert!(matches!(res.results.last(), Some(ResOp::Readdir(Ok(ok))) if ok.entries.len() == 2400));
    }
}

/// Processor time of this thread, on which the server runs too, in hundredths of a second.
fn cpu() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    // Behind the name: state, and the twelfth and thirteenth after it.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Case B46: a thousand idle connections and a hundred busy ones, half of which ask for more than they take: what waits for
/// those is bounded, the others go on, and the idle ones cost next to nothing.
#[tokio::test]
async fn a_thousand_idle_connections_and_fifty_peers_that_do_not_read() {
    use dhow_testkit::wire::Wire;
    use dhow_testkit::{LinkOptions, link};
    const BUDGET: usize = 1 << 20;
    let srv = Srv::with(Default::default(), |c| c.limits.reply_bytes_per_connection = BUDGET).await;
    let stream = |window| {
        let (ours, theirs, _) = link(LinkOptions { window, ..LinkOptions::default() });
        srv.running.serve_stream(theirs, None);
        Wire::new(ours)
    };
    let mut idle: Vec<Wire> = (0..1000).map(|_| stream(64 << 10)).collect();
    let mut maker = srv.client("maker").await;
    let root = maker.walk("").await;
    let f = maker.create(&root, "big").await;
    let size = dhow_proto::v4::Attrs { size: Some(1 << 30), ..Default::default() };
    maker.ok(&[op::put(&f.fh), op::setattr_with(f.stateid, size)]).await;
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for i in 0..50 {
        good.push(Client::over(stream(64 << 10), ClientOptions::named(format!("good {i}"))).await);
        let mut c = Client::over(stream(64 << 10), ClientOptions::named(format!("bad {i}"))).await;
        for slot in 0..16 {
            c.send(slot, &[op::put(&f.fh), op::read(Stateid::ANONYMOUS, 0, 256 << 10)]).await;
        }
        bad.push(c);
    }
    let pinned = || srv.running.shared().conns.lock().values().map(|c| c.conn.waiting_bytes()).sum::<usize>();
    for _ in 0..20 {
        for c in &mut good {
            c.ok(&[op::put(&f.fh), op::read(Stateid::ANONYMOUS, 0, 4096)]).await;
        }
        let most = bad.len() * (BUDGET + (512 << 10));
        assert!(pinned() <= most, "{} bytes wait for peers that do not read", pinned());
    }
    assert!(pinned() >= bad.len() * (256 << 10), "they do have more to come than they take");
    drop((good, bad));
    for w in idle.iter_mut().step_by(37) {
        assert!(w.null().await.header.is_success());
    }
    while srv.running.shared().conns.lock().len() > idle.len() + 1 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // What was dropped may have work left at first; who asks for ever asks in every stretch of time.
    let mut spent = Vec::new();
    while spent.len() < 25 && spent.last().is_none_or(|last| *last >= 20) {
        let before = cpu();
        tokio::time::sleep(Duration::from_millis(400)).await;
        spent.push(cpu() - before);
    }
    assert!(spent.last() < Some(&20), "a thousand idle connections cost {spent:?} hundredths of 0.4 seconds each");
}

/// Over a long link: with many requests in flight the time is one round trip, not one for each (virtual time).
#[tokio::test(start_paused = true)]
async fn pipelining_over_a_long_link() {
    use dhow_testkit::wire::Wire;
    use dhow_testkit::{LinkOptions, link};
    let srv = Srv::start().await;
    let latency = Duration::from_millis(100);
    let (ours, theirs, _control) = link(LinkOptions { latency, ..LinkOptions::default() });
    srv.running.serve_stream(theirs, None);
    let mut c = Client::over(Wire::new(ours), ClientOptions::named("far")).await;
    let start = tokio::time::Instant::now();
    let mut xids = Vec::new();
    for slot in 0..64 {
        xids.push(c.send(slot, &[op::root(), op::mkdir(format!("d{slot}"))]).await);
    }
    for xid in xids {
        assert!(c.wait(xid).await.status.is_ok());
    }
    assert!(start.elapsed() < Duration::from_millis(400), "{:?} for 64 calls at 200 ms each", start.elapsed());
}
