//! State that an administrator of our server takes away (RFC 8881 sections 8.5, 18.38, 18.46.3).

use crate::common::{Place, connect, pair};
use bytes::Bytes;
use dhow_client::v4::ops::share;
use dhow_client::v4::{StableHow, Status, TO_EOF};
use dhow_client::{Client, Create, DelegationState, Error, File, Lost, OpenOptions, WantDelegation};
use dhow_server::{Delegations, Running};
use std::time::Duration;

fn rw() -> OpenOptions {
    OpenOptions::read_write().create(Create::IfMissing, 0o644)
}

async fn write(file: &File) -> Result<(), Error> {
    file.write_all_at(0, Bytes::from_static(b"x"), StableHow::FILE_SYNC).await.map(drop)
}

#[track_caller]
fn is_lost(done: Result<(), Error>, of: Lost, why: Status) {
    match done {
        Err(Error::StateLost { what, status }) => assert_eq!((what, status), (of, why)),
        other => panic!("{other:?}"),
    }
}

/// The client has acknowledged all that was taken from it.
async fn acknowledged(client: &Client, running: &Running) {
    for _ in 0..1000 {
        // A reply with the flag, should it be set still.
        client.fs().stat("/").await.unwrap();
        if running.shared().admin_clients(None, 10).items.iter().all(|c| c.info.revoked == 0) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("not in twenty seconds");
}

#[tokio::test]
async fn an_open_that_is_taken_away_stays_away() {
    let (_place, running, client) = pair().await;
    let (taken, other) = (client.fs().open("f", &rw()).await.unwrap(), client.fs().open("g", &rw()).await.unwrap());
    running.shared().admin_revoke(&taken.stateid().unwrap()).await.unwrap();
    is_lost(write(&taken).await, Lost::Open, Status::ADMIN_REVOKED);
    is_lost(taken.read_at(0, 1).await.map(drop), Lost::Open, Status::ADMIN_REVOKED);
    write(&other).await.unwrap();
    acknowledged(&client, &running).await;
    is_lost(taken.close().await, Lost::Open, Status::ADMIN_REVOKED);
    // Whoever wants it all the same opens it again.
    let again = client.fs().open("f", &rw()).await.unwrap();
    write(&again).await.unwrap();
    again.close().await.unwrap();
    other.close().await.unwrap();
    client.close().await.unwrap();
    running.shutdown().await;
}

#[tokio::test]
async fn locks_that_are_taken_away_are_missed_by_the_next_write() {
    let (_place, running, client) = pair().await;
    let file = client.fs().open("f", &rw()).await.unwrap();
    assert!(file.try_lock(true, 0, 10).await.unwrap().is_none());
    write(&file).await.unwrap();
    let open = file.stateid().unwrap();
    let states = running.shared().admin_states(&Default::default(), None, 10).items;
    let lock = states.iter().find(|s| s.stateid.other != open.other).unwrap().stateid;
    running.shared().admin_revoke(&lock).await.unwrap();
    // The open is good, what its holder relied on is not.
    is_lost(write(&file).await, Lost::Lock, Status::ADMIN_REVOKED);
    is_lost(file.unlock(0, TO_EOF).await, Lost::Lock, Status::ADMIN_REVOKED);
    acknowledged(&client, &running).await;
    is_lost(file.close().await, Lost::Lock, Status::ADMIN_REVOKED);
    client.close().await.unwrap();
    running.shutdown().await;
}

/// Nobody uses what was taken: the flag alone tells.
#[tokio::test]
async fn what_is_taken_from_idle_files_is_found_by_the_flag() {
    let place = Place::new();
    let all = |c: &mut dhow_server::ServerConfig| c.exports[0].options.delegations = Delegations::All;
    let running = place.start_at(([127, 0, 0, 1], 0).into(), all).await;
    let client = connect(running.addresses()[0]).await;
    let idle = client.fs().open("idle", &rw()).await.unwrap();
    let delegated = client.fs().open("delegated", &rw().delegation(WantDelegation::Write)).await.unwrap();
    let delegation = delegated.delegation().expect("a delegation");
    for stateid in [idle.stateid().unwrap(), delegation.stateid()] {
        running.shared().admin_revoke(&stateid).await.unwrap();
    }
    acknowledged(&client, &running).await;
    assert_eq!(delegation.state(), DelegationState::Lost);
    is_lost(write(&idle).await, Lost::Open, Status::ADMIN_REVOKED);
    // The open that came with the delegation goes on (section 10.4.6).
    write(&delegated).await.unwrap();
    is_lost(idle.close().await, Lost::Open, Status::ADMIN_REVOKED);
    delegated.close().await.unwrap();
    client.close().await.unwrap();
    running.shutdown().await;
}

/// The whole client is ended: plain opens come back, the rest is reported.
#[tokio::test]
async fn a_client_that_is_ended_comes_back() {
    let (_place, running, client) = pair().await;
    let plain = client.fs().open("plain", &rw()).await.unwrap();
    let locked = client.fs().open("locked", &rw()).await.unwrap();
    assert!(locked.try_lock(true, 0, 10).await.unwrap().is_none());
    let denying = client.fs().open("denying", &rw().deny(share::DENY_WRITE)).await.unwrap();
    let id = running.shared().admin_clients(None, 10).items[0].info.id;
    running.shared().admin_expire(id).await.unwrap();
    write(&plain).await.unwrap();
    is_lost(write(&locked).await, Lost::Lock, Status::NO_GRACE);
    is_lost(write(&denying).await, Lost::Share, Status::NO_GRACE);
    plain.close().await.unwrap();
    is_lost(locked.close().await, Lost::Lock, Status::NO_GRACE);
    is_lost(denying.close().await, Lost::Share, Status::NO_GRACE);
    client.close().await.unwrap();
    running.shutdown().await;
}
