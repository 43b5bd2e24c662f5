//! A state directory that really is full: a filesystem of a few MiB, filled to the last byte (RFC 8881 8.4.3). What
//! `faults` shows with a store that says so, here with the disk itself, the database on it, and a restart.

use crate::common::*;
use crate::faults::{Log, works};
use dhow_proto::v4::Status;
use dhow_proto::v4::ops::share;
use dhow_server::store::FileStore;
use dhow_testkit::wire::{Client, ClientOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// A small filesystem, mounted as long as this lives.
struct Small {
    at: PathBuf,
    _home: tempfile::TempDir,
}

fn run(command: &mut Command) -> bool {
    command.output().is_ok_and(|o| o.status.success())
}

impl Small {
    /// `None`, and a line that says so, where that cannot be.
    fn mount(kind: &str) -> Option<Self> {
        let home = tempfile::tempdir().unwrap();
        let at = home.path().join("mnt");
        std::fs::create_dir(&at).unwrap();
        let image = home.path().join("image");
        let mounted = match kind {
            "tmpfs" => run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=4m", "dhow-test"]).arg(&at)),
            kind => {
                std::fs::File::create(&image).unwrap().set_len(8 << 20).unwrap();
                // No blocks kept back for root, who runs this.
                let args: &[&str] = if kind == "ext4" { &["-q", "-m", "0"] } else { &["-q"] };
                run(Command::new(format!("mkfs.{kind}")).args(args).arg(&image))
                    && run(Command::new("mount").args(["-o", "loop"]).args([&image, &at]))
            }
        };
        if !mounted {
            println!("SKIPPED: {kind} cannot be made or mounted here");
            return None;
        }
        Some(Self { at, _home: home })
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        if !run(Command::new("umount").arg(&self.at)) {
            run(Command::new("umount").arg("-l").arg(&self.at));
        }
    }
}

/// Takes all room that is left.
fn fill(dir: &Path) -> PathBuf {
    let path = dir.join("filler");
    let mut file = std::fs::File::create(&path).unwrap();
    for size in [64 << 10, 4096, 512, 1] {
        while file.write(&vec![7; size]).is_ok_and(|n| n == size) && file.sync_data().is_ok() {}
    }
    path
}

/// A client with a long name, of which not many fit.
async fn long_name(server: &dhow_server::Running, n: usize) -> Client {
    let owner = format!("{n:04}{}", "x".repeat(1000));
    Client::connect(server.addresses()[0], ClientOptions::named(owner)).await
}

async fn refuses_new_ones_and_harms_no_old_ones(kind: &str) {
    let Some(small) = Small::mount(kind) else { return };
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let dir = small.at.join("state");
    let place = Place { store: Arc::new(FileStore::open(&dir).unwrap()), ..Place::new() };
    let server = place.start().await;
    let mut old = client(&server, "old").await;
    works(&mut old, "f").await;
    let mut inside = Vec::new();
    for n in 0..3 {
        let mut early = long_name(&server, n).await;
        works(&mut early, "early").await;
        inside.push(early);
    }
    let fh = old.walk("f").await;
    let filler = fill(&small.at);
    // Room inside of the database is used first.
    let mut refused = None;
    for n in 3..4000 {
        let mut new = long_name(&server, n).await;
        let owner = new.owner("o");
        match open(&mut new, &fh, open_fh(owner, RW, share::DENY_NONE)).await {
            Ok(_) => inside.push(new),
            Err(Status::DELAY) => {
                refused = Some(new);
                break;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    let mut refused = refused.expect("a file system of a few MiB takes records without end");
    println!("{kind}: {} clients got in before it was full", inside.len());
    // Once more, and another one: one line in the log, and those that are in go on.
    for n in [9000, 9001] {
        let owner = refused.owner("o");
        assert_eq!(open(&mut refused, &fh, open_fh(owner, RW, share::DENY_NONE)).await, Err(Status::DELAY));
        let mut another = long_name(&server, n).await;
        let owner = another.owner("o");
        assert_eq!(open(&mut another, &fh, open_fh(owner, RW, share::DENY_NONE)).await, Err(Status::DELAY));
        works(&mut old, "g").await;
        if let Some(in_time) = inside.last_mut() {
            works(in_time, "h").await;
        }
    }
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "one line: {lines:?}");
    assert!(lines[0].contains("state directory") && lines[0].contains("state.redb"), "{}", lines[0]);
    // Room again: everybody is served.
    std::fs::remove_file(&filler).unwrap();
    works(&mut refused, "i").await;
    let recorded = place.recorded();
    assert_eq!(recorded.len(), inside.len() + 2, "old, those inside, and the one that was refused at first");
    server.shutdown().await;
    drop((refused, old, inside, place));
    // What was acknowledged is there after a restart.
    let mut store = FileStore::open(&dir);
    for _ in 0..1000 {
        // Tasks of the connections may hold it for a moment.
        if !store.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::ResourceBusy) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        store = FileStore::open(&dir);
    }
    let store = store.unwrap();
    let place = Place { store: Arc::new(store), ..Place::new() };
    assert_eq!(place.recorded(), recorded);
}

#[tokio::test]
async fn a_full_tmpfs() {
    refuses_new_ones_and_harms_no_old_ones("tmpfs").await;
}

#[tokio::test]
async fn a_full_ext4() {
    refuses_new_ones_and_harms_no_old_ones("ext4").await;
}
