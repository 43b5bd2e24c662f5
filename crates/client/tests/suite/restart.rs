//! The server restarts: sessions, opens and locks come back (RFC 8881 section 8.4.2, case B31).

use crate::common::{Place, config, connect};
use bytes::Bytes;
use dhow_client::v4::{StableHow, TO_EOF};
use dhow_client::{Client, Create, Error, OpenOptions, PutOptions};
use std::time::Duration;

fn rw() -> OpenOptions {
    OpenOptions::read_write().create(Create::IfMissing, 0o644)
}

#[tokio::test]
async fn open_files_and_locks_survive_a_restart() {
    let place = Place::new();
    let running = place.start().await;
    let addr = running.addresses()[0];
    let client = Client::connect(dhow_client_with_owner(addr, "keeper")).await.unwrap();
    let file = client.fs().open("f", &rw()).await.unwrap();
    file.write_all_at(0, Bytes::from_static(b"before"), StableHow::FILE_SYNC).await.unwrap();
    assert!(file.try_lock(true, 0, 100).await.unwrap().is_none());
    assert!(file.try_lock(false, 100, 100).await.unwrap().is_none());
    file.unlock(50, 10).await.unwrap();
    running.shutdown().await;
    // A call made while the server is away waits for it.
    let reads = {
        let client = client.clone();
        tokio::spawn(async move { client.fs().stat("f").await })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    let running = place.start_at(addr, |_| {}).await;
    assert_eq!(reads.await.unwrap().unwrap().attrs.size, Some(6));
    file.write_all_at(0, Bytes::from_static(b"after!"), StableHow::FILE_SYNC).await.unwrap();
    assert_eq!(file.read_at(0, 10).await.unwrap().data, "after!");

    // The locks are the first client's again, with the hole that was unlocked.
    let other = connect(addr).await;
    let theirs = other.fs().open("f", &rw()).await.unwrap();
    assert!(theirs.test_lock(true, 0, 50).await.unwrap().is_some());
    assert!(theirs.test_lock(true, 50, 10).await.unwrap().is_none());
    assert!(theirs.test_lock(true, 60, 40).await.unwrap().is_some());
    assert!(theirs.test_lock(false, 100, 100).await.unwrap().is_none(), "a shared lock stays shared");
    assert!(theirs.test_lock(true, 100, 100).await.unwrap().is_some());
    file.unlock(0, TO_EOF).await.unwrap();
    assert!(theirs.try_lock(true, 0, TO_EOF).await.unwrap().is_none());
    theirs.close().await.unwrap();
    file.close().await.unwrap();
    other.close().await.unwrap();
    client.close().await.unwrap();
    running.shutdown().await;
}

fn dhow_client_with_owner(addr: std::net::SocketAddr, owner: &'static str) -> dhow_client::ClientConfig {
    let mut config = config(addr);
    config.owner = Some(Bytes::from_static(owner.as_bytes()));
    config
}

/// A server that has forgotten all clients gives no grace: files are opened again, locks that might have been broken
/// are reported.
#[tokio::test]
async fn without_grace_files_come_back_and_locks_are_reported_lost() {
    let place = Place::new();
    let running = place.start().await;
    let addr = running.addresses()[0];
    let client = connect(addr).await;
    let plain = client.fs().open("plain", &rw()).await.unwrap();
    let locked = client.fs().open("locked", &rw()).await.unwrap();
    assert!(locked.try_lock(true, 0, 10).await.unwrap().is_none());
    running.shutdown().await;
    // The same files and handles, other records of clients.
    let forgetful = Place { store: Place::new().store, ..place };
    let running = forgetful.start_at(addr, |_| {}).await;
    plain.write_all_at(0, Bytes::from_static(b"x"), StableHow::FILE_SYNC).await.unwrap();
    // Somebody may have had the lock in between.
    let refused = locked.write_all_at(0, Bytes::from_static(b"x"), StableHow::FILE_SYNC).await;
    assert!(matches!(refused, Err(Error::StateLost { .. })), "{refused:?}");
    plain.close().await.unwrap();
    let closed = locked.close().await;
    assert!(matches!(closed, Err(Error::StateLost { .. })), "{closed:?}");
    client.close().await.unwrap();
    running.shutdown().await;
}

/// Many requests at once over several restarts: every one is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_outlive_restarts() {
    let mut place = Place::new();
    place.grace = Duration::from_millis(300);
    let mut running = place.start().await;
    let addr = running.addresses()[0];
    let mut config = config(addr);
    config.connections = 3;
    let client = Client::connect(config).await.unwrap();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let workers: Vec<_> = (0..8)
        .map(|n| {
            let (fs, stop) = (client.fs(), stop.clone());
            tokio::spawn(async move {
                let mut done = 0;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let name = format!("w{n}");
                    let data = Bytes::from(format!("{n} {done}"));
                    fs.put(&name, data.clone(), &PutOptions::default()).await.unwrap();
                    assert_eq!(fs.get(&name, 100).await.unwrap().unwrap().1, data);
                    done += 1;
                }
                done
            })
        })
        .collect();
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        running.shutdown().await;
        running = place.start_at(addr, |_| {}).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    for worker in workers {
        assert!(worker.await.unwrap() > 0);
    }
    client.close().await.unwrap();
    running.shutdown().await;
}
