//! Delegations held by the library, and callbacks that it answers (RFC 8881 10.2 to 10.5, 20.1, 20.2, 20.6, 20.11).

use crate::common::{Place, config, connect};
use bytes::Bytes;
use dhow_client::v4::StableHow;
use dhow_client::{Client, Create, Delegation, DelegationState, File, OpenOptions, WantDelegation};
use dhow_server::{Delegations, Running, ServerConfig};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

fn all(config: &mut ServerConfig) {
    config.exports[0].options.delegations = Delegations::All;
}

async fn serve(place: &Place) -> Running {
    place.start_at(([127, 0, 0, 1], 0).into(), all).await
}

fn rw() -> OpenOptions {
    OpenOptions::read_write().create(Create::IfMissing, 0o644)
}

async fn held(client: &Client, name: &str, want: WantDelegation) -> (File, Arc<Delegation>) {
    let how = if want == WantDelegation::Read { OpenOptions::read() } else { rw() };
    let file = client.fs().open(name, &how.delegation(want)).await.unwrap();
    let delegation = file.delegation().expect("a delegation");
    (file, delegation)
}

async fn until(what: impl Fn() -> bool) {
    for _ in 0..2000 {
        if what() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("did not happen in twenty seconds");
}

#[tokio::test]
async fn none_unless_asked_for() {
    let place = Place::new();
    let running = serve(&place).await;
    let client = connect(running.addresses()[0]).await;
    let file = client.fs().open("f", &rw()).await.unwrap();
    assert!(file.delegation().is_none());
    assert_eq!(running.shared().state.delegations(), 0);
    file.close().await.unwrap();
    let (file, delegation) = held(&client, "f", WantDelegation::Any).await;
    assert!(delegation.is_write());
    assert_eq!((delegation.state(), delegation.fh()), (DelegationState::Held, file.fh()));
    assert_eq!(running.shared().state.write_delegations(), 1);
    file.close().await.unwrap();
    assert_eq!(delegation.state(), DelegationState::Returned);
    assert_eq!(running.shared().state.delegations(), 0);
    // Dropped, it goes back too.
    drop(held(&client, "f", WantDelegation::Write).await.0);
    until(|| running.shared().state.delegations() == 0).await;
    client.close().await.unwrap();
    running.shutdown().await;
}

#[tokio::test]
async fn a_recall_is_answered_when_nobody_holds_it() {
    // RFC 8881 10.4.4, 20.2.
    let place = Place::new();
    let running = serve(&place).await;
    let addr = running.addresses()[0];
    let (a, b) = (connect(addr).await, connect(addr).await);
    let (file, delegation) = held(&a, "f", WantDelegation::Write).await;
    file.write_all_at(0, Bytes::from_static(b"data"), StableHow::UNSTABLE).await.unwrap();
    // Nothing is kept by it: the other hardly waits.
    let theirs = b.fs().open("f", &OpenOptions::read()).await.unwrap();
    assert_eq!(delegation.state(), DelegationState::Returned);
    assert_eq!(theirs.read_at(0, 10).await.unwrap().data, "data");
    theirs.close().await.unwrap();
    file.close().await.unwrap();

    let (file, delegation) = held(&a, "g", WantDelegation::Write).await;
    let hold = delegation.hold().expect("it is not recalled");
    let other = b.clone();
    let open = tokio::spawn(async move { other.fs().open("g", &OpenOptions::read()).await.unwrap() });
    assert_eq!(delegation.recalled().await, DelegationState::Recalled);
    assert!(delegation.hold().is_none(), "no new belief");
    file.write_all_at(0, Bytes::from_static(b"kept back"), StableHow::UNSTABLE).await.unwrap();
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert!(!open.is_finished(), "the other waits");
    drop(hold);
    let theirs = open.await.unwrap();
    assert_eq!(delegation.state(), DelegationState::Returned);
    assert_eq!(theirs.read_at(0, 20).await.unwrap().data, "kept back");
    theirs.close().await.unwrap();
    file.close().await.unwrap();
    assert_eq!(running.shared().metrics.deleg.recalls.load(Relaxed), 2);
    a.close().await.unwrap();
    b.close().await.unwrap();
    running.shutdown().await;
}

#[tokio::test]
async fn others_are_told_size_and_change() {
    // RFC 8881 10.4.3, 20.1.
    let place = Place::new();
    let running = serve(&place).await;
    let addr = running.addresses()[0];
    let (a, b) = (connect(addr).await, connect(addr).await);
    let (file, delegation) = held(&a, "f", WantDelegation::Write).await;
    file.write_all_at(0, Bytes::from_static(b"12345"), StableHow::UNSTABLE).await.unwrap();
    let seen = b.fs().stat("f").await.unwrap().attrs;
    assert_eq!(seen.size, Some(5));
    file.set_size(3).await.unwrap();
    assert_eq!(b.fs().stat("f").await.unwrap().attrs.size, Some(3));
    delegation.set_modified(Some(100));
    let kept = b.fs().stat("f").await.unwrap().attrs;
    assert_eq!(kept.size, Some(100), "what the holder keeps back");
    assert!(kept.change > seen.change);
    assert!(b.fs().stat("f").await.unwrap().attrs.change > kept.change, "it may have changed again");
    assert_eq!(delegation.state(), DelegationState::Held);
    assert_eq!(running.shared().metrics.deleg.cb_getattrs.load(Relaxed), 4);
    // Of which the size is not known any more, it goes back.
    file.stateid().unwrap();
    assert_eq!(b.fs().stat("f").await.unwrap().attrs.size, Some(3));
    assert_eq!(delegation.state(), DelegationState::Returned);
    file.close().await.unwrap();
    a.close().await.unwrap();
    b.close().await.unwrap();
    running.shutdown().await;
}

#[tokio::test]
async fn reclaimed_after_a_restart_or_given_up() {
    // RFC 8881 9.11, 10.2.1.
    let place = Place::new();
    let running = serve(&place).await;
    let addr = running.addresses()[0];
    let keeper = |owner: &'static str| {
        let mut config = config(addr);
        config.owner = Some(Bytes::from_static(owner.as_bytes()));
        config
    };
    let client = Client::connect(keeper("keeper")).await.unwrap();
    let (file, delegation) = held(&client, "f", WantDelegation::Write).await;
    file.write_all_at(0, Bytes::from_static(b"data"), StableHow::FILE_SYNC).await.unwrap();
    running.shutdown().await;
    let running = place.start_at(addr, all).await;
    assert_eq!(file.read_at(0, 10).await.unwrap().data, "data");
    assert_eq!(delegation.state(), DelegationState::Held);
    assert_eq!(running.shared().state.write_delegations(), 1);
    running.shutdown().await;
    // Where none is given any more it comes back recalled, and is returned.
    let running = place.start_at(addr, |_| {}).await;
    assert_eq!(file.read_at(0, 10).await.unwrap().data, "data");
    until(|| delegation.state() == DelegationState::Returned).await;
    until(|| running.shared().state.delegations() == 0).await;
    file.close().await.unwrap();
    // A server that has forgotten the client: it is lost, the open goes on.
    running.shutdown().await;
    let running = place.start_at(addr, all).await;
    let (file, delegation) = held(&client, "g", WantDelegation::Write).await;
    running.shutdown().await;
    let forgetful = Place { store: Place::new().store, ..place };
    let running = forgetful.start_at(addr, all).await;
    file.write_all_at(0, Bytes::from_static(b"x"), StableHow::FILE_SYNC).await.unwrap();
    assert_eq!(delegation.state(), DelegationState::Lost);
    file.close().await.unwrap();
    client.close().await.unwrap();
    running.shutdown().await;
}

#[tokio::test]
async fn revoked_while_it_was_held_back() {
    // RFC 8881 10.4.5, 10.4.6.
    let mut place = Place::new();
    place.lease = Duration::from_secs(2);
    let running = serve(&place).await;
    let addr = running.addresses()[0];
    let (a, b) = (connect(addr).await, connect(addr).await);
    let (file, delegation) = held(&a, "f", WantDelegation::Write).await;
    let _hold = delegation.hold().unwrap();
    // The other gets through in the end.
    let theirs = b.fs().open("f", &OpenOptions::read_write()).await.unwrap();
    until(|| delegation.state() == DelegationState::Lost).await;
    file.write_all_at(0, Bytes::from_static(b"still open"), StableHow::FILE_SYNC).await.unwrap();
    assert_eq!(theirs.read_at(0, 20).await.unwrap().data, "still open");
    assert_eq!(running.shared().metrics.deleg.revoked.load(Relaxed), 1);
    theirs.close().await.unwrap();
    file.close().await.unwrap();
    a.close().await.unwrap();
    b.close().await.unwrap();
    running.shutdown().await;
}

#[tokio::test]
async fn near_the_limit_some_are_given_up() {
    // RFC 8881 20.6: those that nobody holds.
    let place = Place::new();
    let running = place
        .start_at(([127, 0, 0, 1], 0).into(), |c| {
            all(c);
            c.state.delegations = 8;
        })
        .await;
    let client = connect(running.addresses()[0]).await;
    let mut files = Vec::new();
    for i in 0..8 {
        client.fs().open(format!("f{i}").as_str(), &rw()).await.unwrap().close().await.unwrap();
        files.push(held(&client, &format!("f{i}"), WantDelegation::Read).await);
    }
    let hold = files[0].1.hold().unwrap();
    until(|| running.shared().state.delegations() == 4).await;
    assert_eq!(hold.delegation().state(), DelegationState::Held);
    for (file, _) in files {
        file.close().await.unwrap();
    }
    assert_eq!(running.shared().state.delegations(), 0);
    client.close().await.unwrap();
    running.shutdown().await;
}

#[tokio::test]
async fn a_waiter_for_a_lock_is_woken() {
    // RFC 8881 20.11.
    let place = Place::new();
    let running = serve(&place).await;
    let addr = running.addresses()[0];
    let (a, b) = (connect(addr).await, connect(addr).await);
    let (mine, theirs) = (a.fs().open("f", &rw()).await.unwrap(), b.fs().open("f", &rw()).await.unwrap());
    assert!(mine.try_lock(true, 0, 10).await.unwrap().is_none());
    let waits = tokio::spawn(async move {
        theirs.lock(true, 0, 10).await.unwrap();
        theirs
    });
    until(|| running.shared().state.lock_waiters() == 1).await;
    mine.unlock(0, 10).await.unwrap();
    let theirs = waits.await.unwrap();
    assert_eq!(running.shared().state.lock_waiters(), 0);
    until(|| running.shared().metrics.deleg.notify_lock.load(Relaxed) == 1).await;
    theirs.close().await.unwrap();
    mine.close().await.unwrap();
    a.close().await.unwrap();
    b.close().await.unwrap();
    running.shutdown().await;
}
