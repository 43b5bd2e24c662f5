//! Ended leases (case B32).

use crate::common::*;
use dhow_proto::v4::Status;
use dhow_proto::v4::ops::share;
use dhow_testkit::wire::{Client, ClientOptions, Wire, op};
use dhow_testkit::{LinkOptions, link};
use std::time::Duration;

fn short() -> Place {
    Place { lease: Duration::from_secs(1), ..Place::new() }
}

async fn keep_alive(c: &mut dhow_testkit::wire::Client, for_: Duration) {
    let end = std::time::Instant::now() + for_;
    while std::time::Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(100)).await;
        c.ok(&[]).await;
    }
}

#[tokio::test]
async fn state_of_an_ended_lease_stays_if_nobody_wants_it() {
    let place = short();
    let server = place.start().await;
    let mut a = client(&server, "a").await;
    let root = a.walk("/").await;
    let f = a.create(&root, "f").await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    a.write(&f, 0, b"still here").await;
    a.close(&f).await;
}

#[tokio::test]
async fn state_of_an_ended_lease_yields_to_who_wants_it() {
    let place = short();
    let server = place.start().await;
    let mut a = client(&server, "a").await;
    let mut b = client(&server, "b").await;
    let root = a.walk("/").await;
    let owner = a.owner("o");
    let f = a.open(&root, op::open_create(owner, RW, share::DENY_BOTH, "f", 0o644)).await;
    assert_eq!(lock(&mut a, &f, false).await, Status::OK);
    let owner = b.owner("o");
    let denied = open(&mut b, &f.fh, open_fh(owner.clone(), RW, share::DENY_NONE)).await;
    assert_eq!(denied, Err(Status::SHARE_DENIED));
    assert_eq!(b.status(&[op::put(&f.fh), op::read(dhow_proto::v4::Stateid::ANONYMOUS, 0, 1)]).await, Status::LOCKED);
    keep_alive(&mut b, Duration::from_secs(3)).await;
    let fb = open(&mut b, &f.fh, open_fh(owner, RW, share::DENY_NONE)).await.unwrap();
    assert_eq!(lock(&mut b, &dhow_testkit::wire::Open { fh: f.fh.clone(), stateid: fb }, false).await, Status::OK);
    assert_eq!(place.recorded(), ["b"], "a may not reclaim what b has now, RFC 8881 8.4.3");
    assert_eq!(a.status(&[op::put(&f.fh)]).await, Status::BADSESSION);
    // It can start anew.
    let mut a = client(&server, "a").await;
    assert_eq!(a.status(&[op::put(&f.fh), op::getattr(&[])]).await, Status::OK);
}

#[tokio::test]
async fn a_client_without_state_goes_with_its_lease() {
    let place = short();
    let server = place.start().await;
    let mut a = client(&server, "a").await;
    let begun = std::time::Instant::now();
    while server.shared().state.client_count() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "the reaper does not come");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(a.status(&[op::root()]).await, Status::BADSESSION);
}

/// Case B32: half-done EXCHANGE_ID and CREATE_SESSION do not expire under load: a thousand clients at once, each of which
/// takes nearly the whole lease for every step. In virtual time.
#[tokio::test(start_paused = true)]
async fn many_clients_with_a_short_lease_all_get_their_sessions() {
    let lease = Duration::from_secs(5);
    let place = Place { lease, ..Place::new() };
    let server = place.start_unbound().await;
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..1000_u32 {
        // There and back; the slowest have a few milliseconds left.
        let latency = Duration::from_millis(u64::from(i % 250) * 10);
        let (ours, theirs, _) = link(LinkOptions { latency, ..LinkOptions::default() });
        server.serve_stream(theirs, None);
        tasks.spawn(async move {
            let mut c = Client::over(Wire::new(ours), ClientOptions::named(format!("c{i}"))).await;
            c.ok(&[op::root(), op::getfh()]).await;
            c
        });
    }
    let mut sessions = Vec::new();
    while let Some(done) = tasks.join_next().await {
        sessions.push(done.unwrap().session.id());
    }
    sessions.sort_unstable();
    sessions.dedup();
    assert_eq!(sessions.len(), 1000);
}
