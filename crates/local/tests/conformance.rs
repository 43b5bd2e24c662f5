//! The suite that every backend passes, on every filesystem that can be had.
#![allow(clippy::unwrap_used)]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use common::mount::Mount;
use dhow_local::{HandleMode, Local, Options};
use dhow_testkit::conformance::Suite;
use dhow_vfs::{Backend, Cred};

async fn suite(base: &Path, change: impl Fn(&mut Options)) {
    suite_of(base, change, &[""]).await;
}

/// Only the checks whose names have one of these parts.
async fn suite_of(base: &Path, change: impl Fn(&mut Options), parts: &[&str]) {
    let home = tempfile::Builder::new().prefix("dhow-suite-").tempdir_in(base).unwrap();
    let count = std::sync::atomic::AtomicU32::new(0);
    let make = || -> Arc<dyn Backend> {
        let n = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let dir = home.path().join(n.to_string());
        std::fs::create_dir(&dir).unwrap();
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o777)).unwrap();
        let mut options = Options::new(dir);
        change(&mut options);
        Arc::new(Local::open(options).unwrap())
    };
    for part in parts {
        let suite = Suite::new(&make).only(part);
        if dhow_sys::cred::can_switch_identity() {
            suite.run().await;
        } else {
            println!("users are skipped: the process may not act as others");
            let me = dhow_sys::cred::process_identity();
            suite.single_user(Cred::user(me.uid, me.gid)).run().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_disk() {
    suite(&std::env::temp_dir(), |_| {}).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_tmpfs() {
    if Path::new("/dev/shm").is_dir() {
        suite(Path::new("/dev/shm"), |_| {}).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_walks() {
    suite(&std::env::temp_dir(), |o| o.handles = HandleMode::Walk).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_numbers() {
    suite(&std::env::temp_dir(), |o| o.handles = HandleMode::Numbers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_btrfs_and_xfs() {
    if let Some(mount) = Mount::image("btrfs", 256) {
        suite(mount.path(), |_| {}).await;
    }
    if let Some(mount) = Mount::image("xfs", 512) {
        // All but the lengths of symbolic links, which end at 1023 bytes there.
        let parts = ["names_are", "look_up", "walking", "links", "renames", "handles", "special", "wins", "told"];
        suite_of(mount.path(), |_| {}, &parts).await;
        suite_of(mount.path(), |_| {}, &["listing::", "io::", "users::"]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_an_overlay() {
    // A filesystem of which nothing is known: everything goes to the pool.
    if let Some(mount) = Mount::overlay() {
        suite(mount.path(), |_| {}).await;
    }
}
