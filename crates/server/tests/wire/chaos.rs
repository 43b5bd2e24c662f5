//! Storage that fails and delays at random, connections that break: nothing is done twice, nothing is left behind.

use crate::common::Srv;
use crate::hostile::{Fuzz, Rng, seed_and_rounds, small, still_well};
use dhow_proto::v4::{CompoundRes, Status, Verifier};
use dhow_testkit::fault::{Action, Call};
use dhow_testkit::wire::{Client, ClientOptions, op};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Ends what a client has, by a new incarnation of it that has nothing.
async fn end(srv: &Srv, name: &str, uid: u32) {
    let o = ClientOptions { verifier: Verifier(*b"the last"), ..ClientOptions::named(name) };
    let wire = srv.wire().await.with_cred(dhow_testkit::wire::sys(uid, uid, &[7]));
    Client::over(wire, o).await;
}

/// Waits, with a bound, until nothing is open and nothing runs.
async fn settled(srv: &Srv) {
    let metrics = &srv.running.shared().metrics;
    for _ in 0..1000 {
        if srv.fs.open_count() == 0 && metrics.calls_running.load(Ordering::Relaxed) == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let running = metrics.calls_running.load(Ordering::Relaxed);
    panic!("{} opens of the backend are left, {running} calls run", srv.fs.open_count());
}

/// Random requests over a backend in which one call of five fails or dawdles: slots and opens all come back (cases
/// K06, K15, K20).
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn failing_storage() {
    let srv = std::sync::Arc::new(small().await);
    let mut good = srv.client("good").await;
    still_well(&srv, &mut good, 0).await;
    let (seed, rounds) = seed_and_rounds(1500);
    srv.fault.chaos(seed, 20);
    let mut tasks = Vec::new();
    for n in 0..4_u32 {
        let srv = srv.clone();
        tasks.push(tokio::spawn(async move {
            let mut r = Rng::new(seed * 100 + u64::from(n));
            let mut bad = Fuzz::new(&srv, &format!("bad {n}"), n * 1000).await;
            for round in 0..rounds {
                bad.round(&srv, &mut r, round % 5 == 0).await;
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(300), task).await.expect("no deadlock").unwrap();
    }
    srv.fault.chaos(0, 0);
    still_well(&srv, &mut good, 1).await;
    assert!(srv.fs.open_count() > 0, "the requests got somewhere");
    for n in 0..4 {
        end(&srv, &format!("bad {n}"), n * 1000).await;
    }
    settled(&srv).await;
}

/// The reply to a request that was sent before on a connection that is gone: asked for until it has ended.
async fn retry(c: &mut Client, srv: &Srv, request: &[dhow_proto::v4::ArgOp]) -> CompoundRes {
    for _ in 0..2000 {
        let xid = c.wire.send_compound(2, request).await;
        let Some(reply) = c.wire.try_reply(xid).await else {
            c.wire = srv.wire().await;
            continue;
        };
        let res = reply.compound(2);
        if res.results.len() != 1 || res.status != Status::DELAY {
            return res;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("the request does not end");
}

/// RFC 8881 2.10.6: exactly once, however often the connection breaks, before and after the reply.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn exactly_once_over_broken_connections() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    srv.fault.always(Call::Make, Action::Delay(Duration::from_millis(1)));
    let mut r = Rng::new(seed_and_rounds(0).0 + 42);
    for i in 0..300 {
        let request = c.sequenced(i % 8, &[op::root(), op::mkdir(format!("d{i}"))]);
        c.wire.send_compound(2, &request).await;
        match r.below(4) {
            0 => {}
            1 => tokio::task::yield_now().await,
            _ => tokio::time::sleep(Duration::from_micros(r.below(2500) as u64)).await,
        }
        c.wire = srv.wire().await;
        let res = retry(&mut c, &srv, &request).await;
        assert!(res.status.is_ok(), "done twice, or not at all: {res:?}");
        if r.chance(50) {
            // And once more, now that it has been answered.
            assert_eq!(retry(&mut c, &srv, &request).await, res);
        }
    }
    assert_eq!(srv.fault.count(Call::Make), 300);
    assert_eq!(srv.fs.object_count(), 301);
}

/// Clients that vanish with requests under way.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn vanishing_clients() {
    let srv = Srv::start().await;
    let (seed, _) = seed_and_rounds(0);
    srv.fault.chaos(seed + 1, 50);
    let mut r = Rng::new(seed + 2);
    for n in 0..30 {
        let name = format!("client {n}");
        let mut c = client(&srv, &name).await;
        for slot in 0..20 {
            let owner = c.owner(format!("o{slot}"));
            let ops = match r.below(3) {
                0 => vec![op::root(), op::mkdir(format!("d{}", r.below(20)))],
                1 => vec![op::root(), op::remove(format!("d{}", r.below(20)))],
                _ => vec![op::root(), op::open_create(owner, 3, 0, format!("f{}", r.below(20)), 0o644)],
            };
            c.send(slot, &ops).await;
        }
        tokio::time::sleep(Duration::from_micros(r.below(5000) as u64)).await;
    }
    srv.fault.chaos(0, 0);
    for n in 0..30 {
        end(&srv, &format!("client {n}"), 0).await;
    }
    settled(&srv).await;
    let mut good = srv.client("good").await;
    still_well(&srv, &mut good, 0).await;
}

async fn client(srv: &Srv, name: &str) -> Client {
    let wire = srv.wire().await.with_cred(dhow_testkit::wire::sys(0, 0, &[7]));
    Client::over(wire, ClientOptions::named(name)).await
}
