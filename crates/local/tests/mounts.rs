//! Filesystems below the root, filesystems that share blocks, full ones.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use std::os::unix::fs::MetadataExt;
use std::process::Command;

use bytes::Bytes;
use common::mount::Mount;
use common::*;
use dhow_local::{Options, Reflink};
use dhow_vfs::*;

#[tokio::test]
async fn mounted_filesystems_keep_their_handles_over_a_restart() {
    let set = |o: &mut Options| o.crossmnt = true;
    let tree = Tree::at(&std::env::temp_dir(), set).await;
    std::fs::create_dir_all(tree.path("a b/mnt")).unwrap();
    let Some(mount) = Mount::tmpfs(&tree.path("a b/mnt"), "size=4m") else { return };
    let a = tree.lookup(&root(), &tree.root, "a b").await.unwrap();
    let mnt = tree.lookup(&root(), &a.handle, "mnt").await.unwrap();
    assert_ne!(mnt.attr.fsid, a.attr.fsid);
    assert_ne!(mnt.attr.mounted_on_fileid, mnt.attr.fileid);
    let d = tree.mkdir(&root(), &mnt.handle, "d", 0o755).await;
    let f = tree.file(&root(), &d, "f", 0o644).await;
    tree.write(&root(), &f, 0, b"below").await.unwrap();
    assert_eq!(tree.local.parent(&root(), &mnt.handle).await.unwrap().handle, a.handle);
    assert_eq!(tree.local.parent(&root(), &d).await.unwrap().handle, mnt.handle);
    let moved = tree.local.rename(&root(), &d, &name("f"), &tree.root, &name("f")).await;
    assert_eq!(fails(moved), ErrorKind::CrossDevice);
    assert_eq!(fails(tree.local.link(&root(), &f, &tree.root, &name("f")).await), ErrorKind::CrossDevice);
    assert!(fails(tree.local.remove(&root(), &a.handle, &name("mnt")).await) == ErrorKind::Busy);
    assert_eq!(tree.local.statfs(&root(), &f).await.unwrap().total, 4 << 20);
    let all = PageLimit { entries: 9, name_bytes: 999, nodes: true };
    let listed = tree.list(&a.handle, all).await;
    assert_eq!(listed[0].fileid, mnt.attr.mounted_on_fileid);
    assert_eq!(listed[0].node.as_ref().unwrap().as_ref().unwrap().handle, mnt.handle);
    let tree = tree.restart(set).await;
    // Nobody has looked there since the restart.
    assert_eq!(tree.read(&root(), &f, 0, 9).await.unwrap().data, "below");
    let again = tree.local.getattr(&root(), &mnt.handle).await.unwrap();
    assert_eq!((again.fsid, again.mounted_on_fileid), (mnt.attr.fsid, mnt.attr.mounted_on_fileid));
    // Without the option the way is closed, and the listing goes on.
    let tree = tree.restart(|_| {}).await;
    assert_eq!(fails(tree.lookup(&root(), &a.handle, "mnt").await), ErrorKind::Access);
    assert_eq!(fails(patiently(&tree, &f).await), ErrorKind::Stale);
    let listed = tree.list(&a.handle, all).await;
    assert_eq!(listed[0].node.as_ref().unwrap().as_ref().unwrap_err(), &ErrorKind::Access);
    assert_eq!(fails(tree.local.remove(&root(), &a.handle, &name("mnt")).await), ErrorKind::Busy);
    // Before the tree below it.
    drop(mount);
}

#[tokio::test]
async fn a_full_disk_case_b50() {
    let home = tempfile::tempdir().unwrap();
    let Some(_mount) = Mount::tmpfs(home.path(), "size=1m") else { return };
    let tree = Tree::at(home.path(), |o| o.state_dir = None).await;
    let f = tree.file(&root(), &tree.root, "f", 0o644).await;
    let io = IoRef { handle: &f, open: None };
    assert_eq!(fails(tree.local.allocate(&root(), io, 0, 10 << 20).await), ErrorKind::NoSpace);
    let mut done = 0;
    let kind = loop {
        let data = Bytes::from(vec![1; 300_000]);
        match tree.local.write(&root(), io, done, data, Stability::FileSync).await {
            Ok(written) => {
                assert!(written.count > 0);
                done += u64::from(written.count);
            }
            Err(e) => break e.kind(),
        }
    };
    assert_eq!(kind, ErrorKind::NoSpace);
    assert_eq!(tree.local.getattr(&root(), &f).await.unwrap().size, done);
    // What a copy had no room for, it says; what it moved counts.
    let small = tree.file(&root(), &tree.root, "g", 0o644).await;
    tree.local.remove(&root(), &tree.root, &name("f")).await.unwrap();
    // The task that tidies up may hold the removed file for a moment.
    for _ in 0..100 {
        if tree.local.statfs(&root(), &tree.root).await.unwrap().free > 900_000 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    std::fs::write(tree.path("src"), vec![2; 700_000]).unwrap();
    let src = tree.lookup(&root(), &tree.root, "src").await.unwrap().handle;
    let backend = tree.shared();
    let copy = async |at: u64| {
        let io = IoRef { handle: &src, open: None };
        let source = CopySource { backend: &backend, cx: &root(), io, offset: at };
        let target = IoRef { handle: &small, open: None };
        tree.local.copy_range(&root(), source, target, at, 700_000 - at, u64::MAX).await
    };
    let mut at = 0;
    let kind = loop {
        match copy(at).await {
            Ok(n) => {
                assert!(n > 0);
                at += n;
            }
            Err(e) => break e.kind(),
        }
    };
    assert_eq!(kind, ErrorKind::NoSpace);
    let got = std::fs::read(tree.path("g")).unwrap();
    assert!(got.len() as u64 >= at && got[..at as usize].iter().all(|b| *b == 2));
}

#[tokio::test]
async fn space_of_files_removed_behind_our_back_is_freed() {
    let home = tempfile::tempdir().unwrap();
    let Some(_mount) = Mount::tmpfs(home.path(), "size=8m") else { return };
    let tree = Tree::at(home.path(), |o| o.state_dir = None).await;
    for n in 0..6 {
        let f = tree.file(&root(), &tree.root, &format!("f{n}"), 0o644).await;
        tree.write(&root(), &f, 0, &vec![1; MIB]).await.unwrap();
        std::fs::remove_file(tree.path(&format!("f{n}"))).unwrap();
    }
    for _ in 0..600 {
        if tree.local.statfs(&root(), &tree.root).await.unwrap().free > 7 * MIB as u64 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("not freed in a minute");
}

#[tokio::test]
async fn blocks_are_shared_where_they_can_be() {
    for (kind, mib) in [("btrfs", 256), ("xfs", 512)] {
        let Some(mount) = Mount::image(kind, mib) else { continue };
        for reflink in [Reflink::Auto, Reflink::Never] {
            let tree = Tree::at(mount.path(), |o| o.reflink = reflink).await;
            let size = (32 << 20) + 1234u64;
            let data: Vec<u8> = (0..size).map(|n| (n / 4096 % 251) as u8).collect();
            std::fs::write(tree.path("src"), &data).unwrap();
            let src = tree.lookup(&root(), &tree.root, "src").await.unwrap().handle;
            let io = IoRef { handle: &src, open: None };
            tree.local.commit(&root(), io, 0, 0).await.unwrap();
            let backend = tree.shared();
            let cx = root();
            let source = |offset| CopySource { backend: &backend, cx: &cx, io, offset };
            let dst = tree.file(&root(), &tree.root, "dst", 0o644).await;
            let target = IoRef { handle: &dst, open: None };
            let first = tree.local.copy_range(&root(), source(0), target, 0, u64::MAX, 1 << 20).await.unwrap();
            if reflink == Reflink::Auto {
                // All of it at once, since it costs nothing.
                assert_eq!(first, size, "{kind}");
                assert!(std::fs::read(tree.path("dst")).unwrap() == data);
                assert_eq!(tree.local.caps().clone_block, 4096);
                // The same offset within a block on both sides: the first part is moved, the rest is shared.
                let odd = tree.file(&root(), &tree.root, "odd", 0o644).await;
                let target = IoRef { handle: &odd, open: None };
                let moved = tree.local.copy_range(&root(), source(100), target, 4196, u64::MAX, 1 << 20).await;
                assert_eq!(moved.unwrap(), size - 100);
                let got = std::fs::read(tree.path("odd")).unwrap();
                assert!(got[4196..] == data[100..] && got[..4196].iter().all(|b| *b == 0));
                // CLONE, whole and in part; not aligned is refused.
                let part = tree.file(&root(), &tree.root, "part", 0o644).await;
                let target = IoRef { handle: &part, open: None };
                tree.local.clone_range(&root(), source(4096), target, 8192, 4096).await.unwrap();
                let got = std::fs::read(tree.path("part")).unwrap();
                assert!(got[8192..] == data[4096..8192]);
                tree.local.clone_range(&root(), source(0), target, 0, 0).await.unwrap();
                assert!(std::fs::read(tree.path("part")).unwrap() == data);
                let odd = tree.local.clone_range(&root(), source(1), target, 0, 4096).await;
                assert_eq!(fails(odd), ErrorKind::Invalid);
            } else {
                assert!(first <= 9 << 20, "{kind}: no more than about a chunk: {first}");
                assert!(!tree.local.caps().clone);
                let clone = tree.local.clone_range(&root(), source(0), target, 0, 0).await;
                assert_eq!(fails(clone), ErrorKind::NotSupported);
            }
        }
    }
}

#[tokio::test]
async fn subvolumes_are_filesystems_of_their_own_case_b09() {
    let Some(mount) = Mount::image("btrfs", 256) else { return };
    let tree = Tree::at(mount.path(), |_| {}).await;
    let made = Command::new("btrfs").args(["-q", "subvolume", "create"]).arg(tree.path("sub")).output();
    if !made.is_ok_and(|output| output.status.success()) {
        println!("skipped: no subvolume could be made");
        return;
    }
    let sub = tree.lookup(&root(), &tree.root, "sub").await.unwrap();
    let top = tree.local.getattr(&root(), &tree.root).await.unwrap();
    assert_ne!(sub.attr.fsid, top.fsid);
    let f = tree.file(&root(), &sub.handle, "f", 0o644).await;
    tree.write(&root(), &f, 0, b"in a subvolume").await.unwrap();
    assert_eq!(tree.local.parent(&root(), &sub.handle).await.unwrap().handle, tree.root);
    assert_eq!(std::fs::metadata(tree.path("sub")).unwrap().ino(), sub.attr.fileid);
    let tree = tree.restart(|_| {}).await;
    assert_eq!(tree.read(&root(), &f, 0, 99).await.unwrap().data, "in a subvolume");
    assert_eq!(tree.local.getattr(&root(), &f).await.unwrap().fsid, sub.attr.fsid);
    assert_eq!(tree.lookup(&root(), &sub.handle, "f").await.unwrap().handle, f);
}

#[tokio::test]
async fn a_read_only_filesystem() {
    let home = tempfile::tempdir().unwrap();
    let Some(mount) = Mount::tmpfs(home.path(), "size=1m") else { return };
    std::fs::write(mount.path().join("f"), b"x").unwrap();
    let done = Command::new("mount").args(["-o", "remount,ro"]).arg(mount.path()).status().unwrap();
    assert!(done.success());
    let local = dhow_local::Local::open(Options::new(mount.path())).unwrap();
    assert!(local.caps().read_only);
    let top = local.root(&root()).await.unwrap().handle;
    let f = local.lookup(&root(), &top, &name("f")).await.unwrap().handle;
    let granted = local.access(&root(), &f, Access(0x1ff)).await.unwrap();
    assert_eq!(granted.0 & (Access::MODIFY | Access::EXTEND | Access::XAWRITE), 0);
    assert_ne!(granted.0 & Access::READ, 0);
    let io = IoRef { handle: &f, open: None };
    assert_eq!(local.read(&root(), io, 0, 9).await.unwrap().data, "x");
    let write = local.write(&root(), io, 0, Bytes::from_static(b"y"), Stability::Unstable).await;
    assert_eq!(fails(write), ErrorKind::ReadOnly);
    let made = local.create(&root(), &top, &name("g"), &CreateHow::default()).await;
    assert_eq!(fails(made), ErrorKind::ReadOnly);
}

#[tokio::test]
async fn an_xfs_that_cannot_share_says_so() {
    let Some(mount) = Mount::image_with("xfs", 512, &["-m", "reflink=0"]) else { return };
    let tree = Tree::at(mount.path(), |_| {}).await;
    assert!(!tree.local.caps().clone);
    std::fs::write(tree.path("src"), vec![7; 100_000]).unwrap();
    let src = tree.lookup(&root(), &tree.root, "src").await.unwrap().handle;
    let dst = tree.file(&root(), &tree.root, "dst", 0o644).await;
    let backend = tree.shared();
    let io = IoRef { handle: &src, open: None };
    let source = CopySource { backend: &backend, cx: &root(), io, offset: 0 };
    let target = IoRef { handle: &dst, open: None };
    assert_eq!(fails(tree.local.clone_range(&root(), source.clone(), target, 0, 0).await), ErrorKind::NotSupported);
    assert_eq!(tree.local.copy_range(&root(), source, target, 0, u64::MAX, 1 << 30).await.unwrap(), 100_000);
    assert_eq!(std::fs::read(tree.path("dst")).unwrap(), vec![7; 100_000]);
}

#[tokio::test]
async fn a_failed_fsync_is_told_and_changes_the_verifier_case_b30_k25() {
    // A disk of 64 MiB behind which there is room for 24: it takes writes and fails when they are written out.
    let small = tempfile::tempdir().unwrap();
    let Some(_room) = Mount::tmpfs(small.path(), "size=24m") else { return };
    let home = tempfile::tempdir_in(small.path()).unwrap();
    // No journal, whose own failure would make the filesystem read-only.
    let Some(mount) = Mount::image_in(home, "ext4", 64, &["-O", "^has_journal"]) else { return };
    let tree = Tree::at(mount.path(), |o| o.metadata_sync = false).await;
    let good = tree.file(&root(), &tree.root, "good", 0o644).await;
    let bad = tree.file(&root(), &tree.root, "bad", 0o644).await;
    let io = IoRef { handle: &good, open: None };
    tree.write(&root(), &good, 0, b"small").await.unwrap();
    tree.local.commit(&root(), io, 0, 0).await.unwrap();
    let before = tree.local.write_verifier();
    let io = IoRef { handle: &bad, open: None };
    for n in 0..40 {
        let data = Bytes::from(vec![n as u8 + 1; MIB]);
        let done = tree.local.write(&root(), io, n * MIB as u64, data, Stability::Unstable).await.unwrap();
        assert_eq!(done.verifier, before);
    }
    let commit = tree.local.commit(&root(), io, 0, 0).await;
    assert!(matches!(fails(commit), ErrorKind::Io | ErrorKind::NoSpace));
    let after = tree.local.write_verifier();
    assert_ne!(after, before);
    // The kernel has told it once and would call it well now; the verifier still says that the data must come again.
    if let Ok(done) = tree.local.commit(&root(), io, 0, 0).await {
        assert_ne!(done.verifier, before);
    }
    // A write that is to be stable and is not, is an error.
    let more = tree.local.write(&root(), io, 40 * MIB as u64, Bytes::from(vec![1; 4 * MIB]), Stability::FileSync).await;
    assert!(matches!(fails(more), ErrorKind::Io | ErrorKind::NoSpace));
}

const MIB: usize = 1 << 20;
