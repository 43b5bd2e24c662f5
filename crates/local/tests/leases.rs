//! Watches for local writers (RFC 8881 10.4: a read delegation is good only while nobody else writes).
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use std::fs::{File, OpenOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::*;
use dhow_vfs::*;

fn counting() -> (Arc<AtomicU32>, WriterNotice) {
    let count = Arc::new(AtomicU32::new(0));
    let theirs = count.clone();
    (count, Arc::new(move || _ = theirs.fetch_add(1, Ordering::SeqCst)))
}

async fn until(what: impl Fn() -> bool) {
    for _ in 0..1000 {
        if what() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("did not happen in ten seconds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_local_writer_waits_until_the_watch_ends() {
    for tree in Tree::each().await {
        std::fs::write(tree.path("f"), b"old").unwrap();
        let f = tree.lookup(&root(), &tree.root, "f").await.unwrap().handle;
        let (count, notice) = counting();
        let watch = tree.local.watch_writers(&f, notice).await.unwrap();
        // Readers do not disturb it.
        assert_eq!(std::fs::read(tree.path("f")).unwrap(), b"old");
        assert_eq!(tree.read(&root(), &f, 0, 10).await.unwrap().data, b"old"[..]);
        assert!(!watch.is_broken());
        let path = tree.path("f");
        let writer = std::thread::spawn(move || std::fs::write(path, b"new").unwrap());
        until(|| watch.is_broken()).await;
        assert_eq!(count.load(Ordering::SeqCst), 1);
        assert!(!writer.is_finished(), "it waits");
        assert_eq!(std::fs::read(tree.path("f")).unwrap(), b"old");
        watch.end();
        tokio::task::spawn_blocking(move || writer.join().unwrap()).await.unwrap();
        assert_eq!(std::fs::read(tree.path("f")).unwrap(), b"new");
        assert_eq!(count.load(Ordering::SeqCst), 1, "the notice is given once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_watch_while_somebody_writes_and_none_is_left_behind() {
    for tree in Tree::each().await {
        std::fs::write(tree.path("f"), b"old").unwrap();
        let f = tree.lookup(&root(), &tree.root, "f").await.unwrap().handle;
        let (_, notice) = counting();
        let writer = OpenOptions::new().write(true).open(tree.path("f")).unwrap();
        assert_eq!(fails(tree.local.watch_writers(&f, notice.clone()).await), ErrorKind::Locked);
        drop(writer);
        drop(tree.local.watch_writers(&f, notice.clone()).await.unwrap());
        // Nobody waits for a watch that was dropped.
        File::options().write(true).open(tree.path("f")).unwrap();
        // Nor is a directory watched.
        assert_eq!(fails(tree.local.watch_writers(&tree.root, notice).await), ErrorKind::IsDir);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_of_this_server_is_told_to_wait() {
    for tree in Tree::each().await {
        std::fs::write(tree.path("f"), b"old").unwrap();
        let f = tree.lookup(&root(), &tree.root, "f").await.unwrap().handle;
        let (count, notice) = counting();
        let watch = tree.local.watch_writers(&f, notice).await.unwrap();
        assert_eq!(fails(tree.write(&root(), &f, 0, b"new").await), ErrorKind::Delay);
        until(|| count.load(Ordering::SeqCst) == 1).await;
        watch.end();
        tree.write(&root(), &f, 0, b"new").await.unwrap();
    }
}
