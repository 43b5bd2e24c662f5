//! Measures the local tree without a network: `cargo run --release -p dhow-local --example measure [directory]`.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dhow_local::{Local, Options};
use dhow_vfs::*;

fn name(text: String) -> Name {
    Name::new(Bytes::from(text)).unwrap()
}

fn report(what: &str, count: u64, took: Duration) {
    let each = took.as_nanos() as f64 / count as f64 / 1000.0;
    println!("{what:<52} {:>10.0}/s {each:>10.2} us each", count as f64 / took.as_secs_f64());
}

async fn creates(base: &std::path::Path, metadata_sync: bool, writers: u64, each: u64) {
    let dir = tempfile::tempdir_in(base).unwrap();
    let mut options = Options::new(dir.path());
    options.metadata_sync = metadata_sync;
    let local = Arc::new(Local::open(options).unwrap());
    let root = local.root(&Cx::root()).await.unwrap().handle;
    let started = Instant::now();
    let tasks: Vec<_> = (0..writers)
        .map(|w| {
            let (local, root) = (local.clone(), root.clone());
            tokio::spawn(async move {
                for n in 0..each {
                    let how = CreateHow::default();
                    let made = local.create(&Cx::root(), &root, &name(format!("{w}-{n}")), &how).await.unwrap();
                    local.close(made.open).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let what = format!("create, {writers} writers, metadata_sync = {metadata_sync}");
    report(&what, writers * each, started.elapsed());
}

async fn calls(base: &std::path::Path) {
    let dir = tempfile::tempdir_in(base).unwrap();
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::write(dir.path().join("f"), vec![1; 64 << 20]).unwrap();
    for n in 0..10_000 {
        std::fs::write(dir.path().join(format!("file-number-{n}")), b"").unwrap();
    }
    let mut options = Options::new(dir.path());
    options.metadata_sync = false;
    let local = Local::open(options).unwrap();
    let root = local.root(&Cx::root()).await.unwrap().handle;
    let user = Cx::new(Cred { uid: 1000, gid: 1000, groups: [4, 24, 1000].as_slice().into() });
    let f = local.lookup(&user, &root, &name("f".into())).await.unwrap().handle;
    for (who, cx) in [("root", Cx::root()), ("user", user.clone())] {
        let count = 100_000;
        let started = Instant::now();
        for _ in 0..count {
            local.getattr(&cx, &f).await.unwrap();
        }
        report(&format!("getattr, {who}"), count, started.elapsed());
        let started = Instant::now();
        for n in 0..count {
            local.lookup(&cx, &root, &name(format!("file-number-{}", n % 1000))).await.unwrap();
        }
        report(&format!("lookup of a cached name, {who}"), count, started.elapsed());
        let started = Instant::now();
        for _ in 0..count {
            local.access(&cx, &f, Access(0x1f)).await.unwrap();
        }
        report(&format!("access, {who}"), count, started.elapsed());
        let how = OpenHow { access: OpenAccess { read: true, write: false }, ..OpenHow::default() };
        let open = local.open(&cx, &f, &how).await.unwrap();
        for len in [4096u32, 65_536, 1 << 20] {
            let io = IoRef { handle: &f, open: Some(&open) };
            let count = (1u64 << 30) / u64::from(len).max(65_536);
            let started = Instant::now();
            for n in 0..count {
                let at = n * u64::from(len) % (63 << 20);
                local.read(&cx, io, at, len).await.unwrap();
            }
            report(&format!("read of {len} bytes in memory, {who}"), count, started.elapsed());
        }
    }
    local.setattr(&Cx::root(), &f, None, &SetAttr { mode: Some(0o666), ..SetAttr::default() }).await.unwrap();
    for len in [4096usize, 65_536, 1 << 20] {
        let data = Bytes::from(vec![3; len]);
        let io = IoRef { handle: &f, open: None };
        let count = (1u64 << 28) / len.max(16_384) as u64;
        let started = Instant::now();
        for n in 0..count {
            let at = n * len as u64 % (63 << 20);
            local.write(&user, io, at, data.clone(), Stability::Unstable).await.unwrap();
        }
        report(&format!("unstable write of {len} bytes, user, no open"), count, started.elapsed());
    }
    for nodes in [false, true] {
        let limit = PageLimit { entries: 1000, name_bytes: usize::MAX, nodes };
        let (mut cookie, mut count) = (0, 0);
        let started = Instant::now();
        loop {
            let page = local.readdir(&user, &root, cookie, limit).await.unwrap();
            count += page.entries.len() as u64;
            if page.eof {
                break;
            }
            cookie = page.entries.last().unwrap().cookie;
        }
        report(&format!("entries listed, attributes: {nodes}"), count, started.elapsed());
    }
}

#[tokio::main]
async fn main() {
    let base = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, Into::into);
    println!("under {}", base.display());
    calls(&base).await;
    creates(&base, false, 1, 5000).await;
    creates(&base, true, 1, 200).await;
    creates(&base, true, 10, 200).await;
    creates(&base, true, 100, 50).await;
}
