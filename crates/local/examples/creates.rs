//! What a local filesystem itself does with many creates in one directory, and in several: the measure of the server's.
//!
//! `creates DIRECTORY [SECONDS]` prints a table: files made a second by 1, 8, 100 and 500 writers in 1 and 8
//! directories, by plain threads and system calls (`direct`), and through the backend that the server uses, with
//! `metadata_sync` on and off. `fsyncs` are those of the backend. Everything made is removed at the end.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use bytes::Bytes;
use dhow_local::{Local, Options};
use dhow_vfs::{Backend, CreateHow, Cx, Handle, Make, Name, SetAttr};
use std::fs::{File, OpenOptions};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

struct Run {
    creates: AtomicU64,
    stop: AtomicBool,
}

fn direct(home: &Path, writers: usize, dirs: usize, time: Duration, sync: bool) -> f64 {
    let run = Arc::new(Run { creates: AtomicU64::new(0), stop: AtomicBool::new(false) });
    let paths: Vec<_> = (0..dirs).map(|d| home.join(format!("d{d}"))).collect();
    paths.iter().for_each(|p| std::fs::create_dir(p).unwrap());
    let begin = Instant::now();
    let threads: Vec<_> = (0..writers)
        .map(|w| {
            let (run, dir) = (run.clone(), paths[w % dirs].clone());
            std::thread::spawn(move || {
                let opened = File::open(&dir).unwrap();
                for n in 0.. {
                    if run.stop.load(Ordering::Relaxed) {
                        return;
                    }
                    OpenOptions::new().write(true).create_new(true).open(dir.join(format!("{w}-{n}"))).unwrap();
                    if sync {
                        opened.sync_all().unwrap();
                    }
                    run.creates.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    std::thread::sleep(time);
    let rate = run.creates.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64();
    run.stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|t| t.join().unwrap());
    rate
}

async fn backend(home: &Path, writers: usize, dirs: usize, time: Duration, sync: bool) -> (f64, f64) {
    let mut options = Options::new(home);
    options.metadata_sync = sync;
    let local = Arc::new(Local::open(options).unwrap());
    let root = local.root(&Cx::root()).await.unwrap().handle;
    let mut handles: Vec<Handle> = Vec::new();
    for d in 0..dirs {
        let name = Name::new(Bytes::from(format!("d{d}"))).unwrap();
        let made = local.make(&Cx::root(), &root, &name, &Make::Directory, &SetAttr::default()).await.unwrap();
        handles.push(made.node.handle);
    }
    let run = Arc::new(Run { creates: AtomicU64::new(0), stop: AtomicBool::new(false) });
    let before = local.sync_counts();
    let begin = Instant::now();
    let tasks: Vec<_> = (0..writers)
        .map(|w| {
            let (run, dir, local) = (run.clone(), handles[w % dirs].clone(), local.clone());
            tokio::spawn(async move {
                for n in 0.. {
                    if run.stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let name = Name::new(Bytes::from(format!("{w}-{n}"))).unwrap();
                    let how = CreateHow { set: SetAttr { mode: Some(0o644), ..SetAttr::default() }, verifier: None };
                    let made = local.create(&Cx::root(), &dir, &name, &how).await.unwrap();
                    local.close(made.open).await;
                    run.creates.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    tokio::time::sleep(time).await;
    let rate = run.creates.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64();
    let syncs = (local.sync_counts().syncs - before.syncs) as f64 / begin.elapsed().as_secs_f64();
    run.stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    (rate, syncs)
}

#[tokio::main]
async fn main() {
    let mut args = std::env::args().skip(1);
    let at = args.next().expect("creates DIRECTORY [SECONDS]");
    let time = Duration::from_secs_f64(args.next().map_or(3.0, |s| s.parse().expect("seconds")));
    println!("{:>8} {:>5} {:>5} {:>8} {:>12} {:>10}", "writers", "dirs", "sync", "via", "creates/s", "fsyncs/s");
    for sync in [true, false] {
        for writers in [1, 8, 100, 500] {
            for dirs in [1, 8] {
                let home = tempfile::Builder::new().prefix("dhow-creates-").tempdir_in(&at).unwrap();
                let rate = direct(home.path(), writers, dirs, time, sync);
                println!("{writers:>8} {dirs:>5} {sync:>5} {:>8} {rate:>12.0} {:>10}", "direct", "");
                drop(home);
                let home = tempfile::Builder::new().prefix("dhow-creates-").tempdir_in(&at).unwrap();
                let (rate, syncs) = backend(home.path(), writers, dirs, time, sync).await;
                println!("{writers:>8} {dirs:>5} {sync:>5} {:>8} {rate:>12.0} {syncs:>10.0}", "backend");
            }
        }
    }
}
