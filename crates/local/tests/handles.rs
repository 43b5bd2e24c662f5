//! Handles: renames, restarts, rubbish, and finding objects without the privilege to open by handle.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use std::time::Duration;

use common::*;
use dhow_local::{HandleMode, Options};
use dhow_vfs::*;

fn modes() -> [(&'static str, HandleMode); 3] {
    [("auto", HandleMode::Auto), ("walk", HandleMode::Walk), ("numbers", HandleMode::Numbers)]
}

#[tokio::test]
async fn a_handle_names_the_object_not_the_path_case_b07() {
    for base in bases() {
        for (text, mode) in modes() {
            let tree = Tree::at(&base, |o: &mut Options| o.handles = mode).await;
            let a = tree.mkdir(&root(), &tree.root, "a", 0o755).await;
            let x = tree.file(&root(), &a, "x", 0o644).await;
            tree.write(&root(), &x, 0, b"data").await.unwrap();
            tree.local.rename(&root(), &tree.root, &name("a"), &tree.root, &name("b")).await.unwrap();
            tree.mkdir(&root(), &a, "inner", 0o755).await;
            assert_eq!(tree.read(&root(), &x, 0, 10).await.unwrap().data, "data", "{text}");
            assert!(tree.path("b/inner").is_dir());
            // Another object of the same name has another handle.
            let other = tree.mkdir(&root(), &tree.root, "a", 0o755).await;
            assert_ne!(other, a);
        }
    }
}

#[tokio::test]
async fn handles_survive_a_restart_case_b06() {
    for base in bases() {
        for (text, mode) in modes() {
            let set = |o: &mut Options| o.handles = mode;
            let tree = Tree::at(&base, set).await;
            let a = tree.mkdir(&root(), &tree.root, "a", 0o755).await;
            let x = tree.file(&root(), &a, "x", 0o644).await;
            tree.local.rename(&root(), &tree.root, &name("a"), &tree.root, &name("b")).await.unwrap();
            let top = tree.root.clone();
            let verifier = tree.local.write_verifier();
            let tree = tree.restart(set).await;
            assert_eq!(tree.root, top);
            assert_ne!(tree.local.write_verifier(), verifier, "case B30");
            patiently(&tree, &x).await.unwrap_or_else(|e| panic!("{text}: {e}"));
            tree.write(&root(), &x, 0, b"after").await.unwrap();
            assert_eq!(std::fs::read(tree.path("b/x")).unwrap(), b"after");
            assert_eq!(tree.lookup(&root(), &a, "x").await.unwrap().handle, x);
        }
    }
}

#[tokio::test]
async fn local_renames_are_found_by_a_scan() {
    for (text, mode) in modes().into_iter().skip(1) {
        let set = |o: &mut Options| o.handles = mode;
        let tree = Tree::at(&std::env::temp_dir(), set).await;
        let a = tree.mkdir(&root(), &tree.root, "a", 0o755).await;
        let x = tree.file(&root(), &a, "x", 0o644).await;
        let dead = tree.file(&root(), &a, "dead", 0o644).await;
        std::fs::create_dir_all(tree.path("deep/er")).unwrap();
        let tree = tree.restart(set).await;
        std::fs::rename(tree.path("a"), tree.path("deep/er/moved")).unwrap();
        std::fs::rename(tree.path("deep/er/moved/x"), tree.path("y")).unwrap();
        std::fs::remove_file(tree.path("deep/er/moved/dead")).unwrap();
        assert_eq!(fails(tree.local.getattr(&root(), &x).await), ErrorKind::Delay, "{text}");
        patiently(&tree, &x).await.unwrap();
        patiently(&tree, &a).await.unwrap();
        assert_eq!(fails(patiently(&tree, &dead).await), ErrorKind::Stale);
        assert_eq!(tree.lookup(&root(), &tree.root, "y").await.unwrap().handle, x);
    }
}

#[tokio::test]
async fn hints_lost_in_a_crash_are_found_again() {
    let set = |o: &mut Options| o.handles = HandleMode::Walk;
    let tree = Tree::at(&std::env::temp_dir(), set).await;
    let x = tree.file(&root(), &tree.root, "x", 0o644).await;
    let Tree { dir, state, local, .. } = tree;
    drop(local);
    tokio::time::sleep(Duration::from_millis(20)).await;
    for entry in std::fs::read_dir(state.path()).unwrap() {
        std::fs::write(entry.unwrap().path(), b"rubbish").unwrap();
    }
    let mut options = Options::new(dir.path());
    options.state_dir = Some(state.path().to_owned());
    set(&mut options);
    let local = dhow_local::Local::open(options).unwrap();
    let top = local.root(&root()).await.unwrap().handle;
    let tree = Tree { dir, state, local, root: top };
    patiently(&tree, &x).await.unwrap();
}

#[tokio::test]
async fn more_directories_than_are_cached() {
    for (_, mode) in modes() {
        let tree = Tree::at(&std::env::temp_dir(), |o: &mut Options| {
            o.handles = mode;
            o.max_cached = 16;
        })
        .await;
        let mut all = Vec::new();
        for n in 0..200 {
            let d = tree.mkdir(&root(), &tree.root, &format!("d{n}"), 0o755).await;
            let f = tree.file(&root(), &d, "f", 0o644).await;
            tree.write(&root(), &f, 0, format!("{n}").as_bytes()).await.unwrap();
            all.push(f);
        }
        for (n, f) in all.iter().enumerate() {
            assert_eq!(tree.read(&root(), f, 0, 10).await.unwrap().data, format!("{n}"));
        }
        // The cache is bounded: far fewer descriptors than objects.
        let fds = std::fs::read_dir("/proc/self/fd").unwrap().filter(|entry| {
            let target = std::fs::read_link(entry.as_ref().unwrap().path()).unwrap_or_default();
            target.starts_with(tree.dir.path())
        });
        let fds = fds.count();
        // Files with unstable data are kept too, up to their own bound.
        assert!(fds < 150, "{fds} descriptors");
    }
}

#[tokio::test]
async fn rubbish_is_refused() {
    for tree in Tree::each().await {
        let good = tree.file(&root(), &tree.root, "f", 0o644).await;
        for len in [0, 1, 10, 64, 104] {
            let handle = Handle::new(&vec![0xa5; len]).unwrap();
            assert_eq!(fails(tree.local.getattr(&root(), &handle).await), ErrorKind::BadHandle, "{len}");
        }
        let change = |at: usize| {
            let mut bytes = good.as_bytes().to_vec();
            bytes[at] ^= 0x55;
            Handle::new(&bytes).unwrap()
        };
        // Another filesystem, another type, another inode: none of it leads anywhere.
        for at in [1, 5, 8, 9, good.as_bytes().len() - 1] {
            let kind = fails(tree.local.getattr(&root(), &change(at)).await);
            assert!(matches!(kind, ErrorKind::Stale | ErrorKind::BadHandle | ErrorKind::Delay), "{at}: {kind:?}");
        }
        let short = Handle::new(&good.as_bytes()[..good.as_bytes().len() - 4]).unwrap();
        assert!(tree.local.getattr(&root(), &short).await.is_err());
    }
}

#[tokio::test]
async fn one_object_has_one_identity() {
    let tree = Tree::disk().await;
    let d = tree.mkdir(&root(), &tree.root, "d", 0o755).await;
    let f = tree.file(&root(), &d, "f", 0o644).await;
    tree.local.link(&root(), &f, &tree.root, &name("g")).await.unwrap();
    let g = tree.lookup(&root(), &tree.root, "g").await.unwrap();
    assert_eq!(tree.local.object_id(&g.handle), tree.local.object_id(&f));
    // Seen through another export of the same filesystem too.
    let inner = dhow_local::Local::open(Options::new(tree.path("d"))).unwrap();
    let top = inner.root(&root()).await.unwrap();
    assert_eq!(top.handle, d);
    let f2 = inner.lookup(&root(), &top.handle, &name("f")).await.unwrap();
    assert_eq!(inner.object_id(&f2.handle), tree.local.object_id(&f));
    assert_eq!(f2.attr.fsid, g.attr.fsid);
    assert_eq!(fails(inner.parent(&root(), &top.handle).await), ErrorKind::NotFound);
    let mut options = Options::new(tree.path("d"));
    options.fsid = Some(77);
    let other = dhow_local::Local::open(options).unwrap();
    assert_eq!(other.root(&root()).await.unwrap().attr.fsid, FsId { major: 77, minor: 0 });
}

/// Runs one test of this file again in a child with few descriptors.
fn with_few_descriptors(test: &str) -> bool {
    if std::env::var_os("DHOW_FEW").is_some() {
        return true;
    }
    let exe = std::env::current_exe().unwrap();
    let output = std::process::Command::new("sh")
        .args(["-c", "ulimit -n 150 && exec \"$@\"", "sh"])
        .arg(exe)
        .args(["--exact", test, "--nocapture"])
        .env("DHOW_FEW", "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
    false
}

#[tokio::test]
async fn a_process_short_of_descriptors_gives_up_cached_ones() {
    if !with_few_descriptors("a_process_short_of_descriptors_gives_up_cached_ones") {
        return;
    }
    let tree = Tree::at(&std::env::temp_dir(), |o| o.max_cached = 100_000).await;
    for n in 0..1000 {
        let f = tree.file(&root(), &tree.root, &format!("f{n}"), 0o644).await;
        assert_eq!(tree.read(&root(), &f, 0, 10).await.unwrap().data.len(), 0);
    }
    for n in 0..1000 {
        tree.lookup(&root(), &tree.root, &format!("f{n}")).await.unwrap();
    }
    let all = PageLimit { entries: 1000, name_bytes: 1 << 20, nodes: true };
    let listed = tree.list(&tree.root, all).await;
    assert_eq!(listed.len(), 1000);
    assert!(listed.iter().all(|e| e.node.as_ref().unwrap().is_ok()));
}
