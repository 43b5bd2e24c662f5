//! Names in directories, and listings.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;

use bytes::Bytes;
use common::*;
use dhow_vfs::*;

fn bare(entries: usize) -> PageLimit {
    PageLimit { entries, name_bytes: usize::MAX, nodes: false }
}

#[tokio::test]
async fn look_up_and_parent() {
    for tree in Tree::each().await {
        let a = tree.mkdir(&root(), &tree.root, "a", 0o755).await;
        let b = tree.mkdir(&root(), &a, "b", 0o755).await;
        let found = tree.lookup(&root(), &a, "b").await.unwrap();
        assert_eq!(found.handle, b);
        assert_eq!(found.attr.kind, FileKind::Directory);
        assert_eq!(fails(tree.lookup(&root(), &a, "x").await), ErrorKind::NotFound);
        assert_eq!(tree.local.parent(&root(), &b).await.unwrap().handle, a);
        assert_eq!(tree.local.parent(&root(), &a).await.unwrap().handle, tree.root);
        // Nothing leads out of the export.
        assert_eq!(fails(tree.local.parent(&root(), &tree.root).await), ErrorKind::NotFound);
        let f = tree.file(&root(), &b, "f", 0o644).await;
        assert_eq!(fails(tree.lookup(&root(), &f, "x").await), ErrorKind::NotDir);
        assert_eq!(fails(tree.local.parent(&root(), &f).await), ErrorKind::NotDir);
    }
}

#[tokio::test]
async fn a_directory_moved_out_has_no_parent_in_the_export() {
    let tree = Tree::disk().await;
    let outside = tempfile::tempdir().unwrap();
    let a = tree.mkdir(&root(), &tree.root, "a", 0o755).await;
    std::fs::rename(tree.path("a"), outside.path().join("a")).unwrap();
    assert_eq!(fails(settled(async || tree.local.parent(&root(), &a).await).await), ErrorKind::Stale);
}

#[tokio::test]
async fn symbolic_links_are_objects_and_are_not_followed() {
    for tree in Tree::each().await {
        // case B17: exact length, up to 4095 bytes; up to 1024 on XFS.
        for len in [1, 255, 256, 1023, 4095] {
            let target = Bytes::from(vec![b't'; len]);
            let text = format!("l{len}");
            let what = Make::Symlink(target.clone());
            let made = tree.local.make(&root(), &tree.root, &name(&text), &what, &SetAttr::default()).await;
            if len > 1023 && made.as_ref().is_err_and(|e| e.kind() == ErrorKind::NameTooLong) {
                assert!(std::fs::symlink_metadata(tree.path(&text)).is_err());
                continue;
            }
            let made = made.unwrap();
            assert_eq!(made.node.attr.kind, FileKind::Symlink);
            assert_eq!(tree.local.readlink(&root(), &made.node.handle).await.unwrap(), target);
        }
        std::os::unix::fs::symlink("/etc", tree.path("etc")).unwrap();
        let link = tree.lookup(&root(), &tree.root, "etc").await.unwrap();
        assert_eq!(link.attr.kind, FileKind::Symlink);
        assert_eq!(fails(tree.lookup(&root(), &link.handle, "passwd").await), ErrorKind::Symlink);
        assert_eq!(fails(tree.open(&root(), &link.handle, true, false).await), ErrorKind::Symlink);
        assert_eq!(fails(tree.local.readlink(&root(), &tree.root).await), ErrorKind::Invalid);
        let empty = Make::Symlink(Bytes::new());
        let made = tree.local.make(&root(), &tree.root, &name("e"), &empty, &SetAttr::default()).await;
        assert_eq!(fails(made), ErrorKind::Invalid);
    }
}

#[tokio::test]
async fn every_kind_is_made_and_never_opened() {
    for tree in Tree::each().await {
        let set = SetAttr { mode: Some(0o640), ..SetAttr::default() };
        let mut kinds = vec![(Make::Fifo, FileKind::Fifo), (Make::Socket, FileKind::Socket)];
        if tree.local.report().switches_identity {
            kinds.push((Make::Char(1, 3), FileKind::Char));
            kinds.push((Make::Block(7, 200), FileKind::Block));
        }
        for (index, (what, kind)) in kinds.into_iter().enumerate() {
            let text = format!("s{index}");
            let made = tree.local.make(&root(), &tree.root, &name(&text), &what, &set).await.unwrap();
            assert_eq!((made.node.attr.kind, made.node.attr.mode), (kind, 0o640));
            assert_eq!(made.applied.mode, Some(0o640));
            if let Make::Char(major, minor) = what {
                assert_eq!(made.node.attr.rdev, (major, minor));
            }
            // Opening a FIFO would wait for a writer for ever.
            assert_eq!(fails(tree.open(&root(), &made.node.handle, true, false).await), ErrorKind::WrongType);
            assert_eq!(fails(tree.read(&root(), &made.node.handle, 0, 1).await), ErrorKind::WrongType);
            let again = tree.local.make(&root(), &tree.root, &name(&text), &what, &set).await;
            assert_eq!(fails(again), ErrorKind::Exists);
        }
        let set = SetAttr { mode: Some(0o3770), ..SetAttr::default() };
        let made = tree.local.make(&root(), &tree.root, &name("d"), &Make::Directory, &set).await.unwrap();
        assert_eq!(made.node.attr.mode, 0o3770);
    }
}

#[tokio::test]
async fn names_are_bytes_case_b14_b15_b17() {
    for tree in Tree::each().await {
        let how = CreateHow::default();
        let names: Vec<Bytes> = vec![
            Bytes::from_static("日本".as_bytes()),
            Bytes::from_static(b"\xe9"),
            Bytes::from_static(b"\xe8"),
            Bytes::from_static(b"\xff\xfe"),
            Bytes::from_static(b"..."),
            Bytes::from_static(b" \n\t*?"),
            Bytes::from(vec![b'n'; 255]),
        ];
        for bytes in &names {
            let name = Name::new(bytes.clone()).unwrap();
            let made = tree.local.create(&root(), &tree.root, &name, &how).await.unwrap();
            assert_eq!(tree.local.lookup(&root(), &tree.root, &name).await.unwrap().handle, made.node.handle);
        }
        let listed: BTreeSet<Bytes> = tree.list(&tree.root, bare(2)).await.into_iter().map(|e| e.name).collect();
        assert_eq!(listed, names.into_iter().collect());
    }
}

#[tokio::test]
async fn change_info_brackets_every_update() {
    for base in bases() {
        let tree = Tree::at(&base, |o| o.exclusive = true).await;
        let mut last = tree.local.getattr(&root(), &tree.root).await.unwrap().change;
        for n in 0..200 {
            let made =
                tree.local.create(&root(), &tree.root, &name(&format!("f{n}")), &CreateHow::default()).await.unwrap();
            assert_eq!(made.change.before, last, "{n}");
            assert_ne!(made.change.after, made.change.before, "{n}");
            assert!(made.change.atomic);
            last = tree.local.getattr(&root(), &tree.root).await.unwrap().change;
            assert_eq!(last, made.change.after);
        }
        let removed = tree.local.remove(&root(), &tree.root, &name("f0")).await.unwrap();
        assert_eq!(removed.change.before, last);
        assert_ne!(removed.change.after, last);
        // A failed update changes nothing.
        let change = tree.local.getattr(&root(), &tree.root).await.unwrap().change;
        assert_eq!(fails(tree.local.remove(&root(), &tree.root, &name("f0")).await), ErrorKind::NotFound);
        assert_eq!(tree.local.getattr(&root(), &tree.root).await.unwrap().change, change);
    }
}

#[tokio::test]
async fn change_of_a_file_differs_after_every_write() {
    for tree in Tree::each().await {
        let f = tree.file(&root(), &tree.root, "f", 0o644).await;
        let mut seen = BTreeSet::new();
        for n in 0..300 {
            tree.write(&root(), &f, n, b"x").await.unwrap();
            let attr = tree.local.getattr(&root(), &f).await.unwrap();
            assert!(seen.insert(attr.change), "write {n} did not change the change attribute");
        }
    }
}

#[tokio::test]
async fn links_and_removal() {
    for tree in Tree::each().await {
        let f = tree.file(&root(), &tree.root, "f", 0o644).await;
        let d = tree.mkdir(&root(), &tree.root, "d", 0o755).await;
        tree.local.link(&root(), &f, &d, &name("g")).await.unwrap();
        assert_eq!(tree.local.getattr(&root(), &f).await.unwrap().nlink, 2);
        assert_eq!(tree.lookup(&root(), &d, "g").await.unwrap().handle, f);
        assert_eq!(fails(tree.local.link(&root(), &f, &d, &name("g")).await), ErrorKind::Exists);
        assert_eq!(fails(tree.local.link(&root(), &d, &d, &name("h")).await), ErrorKind::IsDir);
        assert_eq!(fails(tree.local.remove(&root(), &tree.root, &name("d")).await), ErrorKind::NotEmpty);
        let gone = tree.local.remove(&root(), &tree.root, &name("f")).await.unwrap();
        assert_eq!((gone.handle, gone.nlink), (Some(f.clone()), 1));
        let gone = tree.local.remove(&root(), &d, &name("g")).await.unwrap();
        assert_eq!((gone.handle, gone.nlink), (Some(f.clone()), 0));
        assert_eq!(fails(patiently(&tree, &f).await), ErrorKind::Stale);
        let link = async || tree.local.link(&root(), &f, &d, &name("h")).await;
        assert_eq!(fails(settled(link).await), ErrorKind::Stale);
        let gone = tree.local.remove(&root(), &tree.root, &name("d")).await.unwrap();
        assert_eq!((gone.handle, gone.nlink), (Some(d.clone()), 0));
        assert_eq!(fails(patiently(&tree, &d).await), ErrorKind::Stale);
        assert_eq!(fails(settled(async || tree.lookup(&root(), &d, "x").await).await), ErrorKind::Stale);
        let create = async || tree.local.create(&root(), &d, &name("x"), &CreateHow::default()).await;
        assert_eq!(fails(settled(create).await), ErrorKind::Stale);
    }
}

#[tokio::test]
async fn an_open_file_outlives_its_name() {
    for tree in Tree::each().await {
        let f = tree.file(&root(), &tree.root, "f", 0o644).await;
        tree.write(&root(), &f, 0, b"still here").await.unwrap();
        let open = tree.open(&root(), &f, true, true).await.unwrap();
        tree.local.remove(&root(), &tree.root, &name("f")).await.unwrap();
        let io = IoRef { handle: &f, open: Some(&open) };
        assert_eq!(tree.local.read(&root(), io, 0, 100).await.unwrap().data, "still here");
        tree.local.write(&root(), io, 0, Bytes::from_static(b"S"), Stability::FileSync).await.unwrap();
        assert_eq!(tree.local.getattr(&root(), &f).await.unwrap().size, 10);
        tree.local.close(open).await;
        assert_eq!(fails(patiently(&tree, &f).await), ErrorKind::Stale);
    }
}

#[tokio::test]
async fn renames() {
    for tree in Tree::each().await {
        let a = tree.mkdir(&root(), &tree.root, "a", 0o755).await;
        let b = tree.mkdir(&root(), &tree.root, "b", 0o755).await;
        let f = tree.file(&root(), &a, "f", 0o644).await;
        let g = tree.file(&root(), &b, "g", 0o644).await;
        let full = tree.mkdir(&root(), &b, "full", 0o755).await;
        tree.file(&root(), &full, "x", 0o644).await;
        let rename = async |from: &Handle, old: &str, to: &Handle, new: &str| {
            tree.local.rename(&root(), from, &name(old), to, &name(new)).await
        };
        // Kinds that do not go together, and a directory with entries (RFC 8881 18.26.3).
        assert_eq!(fails(rename(&a, "f", &tree.root, "b").await), ErrorKind::Exists);
        assert_eq!(fails(rename(&tree.root, "a", &b, "g").await), ErrorKind::Exists);
        assert_eq!(fails(rename(&tree.root, "a", &b, "full").await), ErrorKind::Exists);
        assert_eq!(fails(rename(&tree.root, "a", &a, "inside").await), ErrorKind::Invalid);
        assert_eq!(fails(rename(&a, "absent", &b, "y").await), ErrorKind::NotFound);
        let done = rename(&a, "f", &b, "g").await.unwrap();
        assert_eq!(done.replaced, Some(g.clone()));
        assert_ne!(done.from.before, done.from.after);
        assert_ne!(done.to.before, done.to.after);
        assert_eq!(fails(patiently(&tree, &g).await), ErrorKind::Stale);
        assert_eq!(tree.lookup(&root(), &b, "g").await.unwrap().handle, f);
        // Two names of one object: nothing happens.
        tree.local.link(&root(), &f, &b, &name("h")).await.unwrap();
        let done = rename(&b, "g", &b, "h").await.unwrap();
        assert_eq!(done.replaced, None);
        assert!(tree.lookup(&root(), &b, "g").await.is_ok() && tree.lookup(&root(), &b, "h").await.is_ok());
        // An empty directory is replaced.
        let empty = tree.mkdir(&root(), &tree.root, "empty", 0o755).await;
        let done = rename(&tree.root, "a", &tree.root, "empty").await.unwrap();
        assert_eq!(done.replaced, Some(empty.clone()));
        assert_eq!(fails(patiently(&tree, &empty).await), ErrorKind::Stale);
        assert_eq!(tree.lookup(&root(), &tree.root, "empty").await.unwrap().handle, a);
    }
}

#[tokio::test]
async fn listings_are_whole_and_agree_case_b03_b04_b09_k28() {
    for tree in Tree::each().await {
        let wanted: BTreeSet<Bytes> = (0..5000).map(|n| Bytes::from(format!("entry-{n}"))).collect();
        for name in &wanted {
            std::fs::write(tree.path(std::str::from_utf8(name).unwrap()), b"").unwrap();
        }
        for limit in [
            bare(7),
            bare(100_000),
            PageLimit { entries: 1000, name_bytes: 100, nodes: false },
            PageLimit { entries: 1, name_bytes: 0, nodes: true },
            PageLimit { entries: 300, name_bytes: 4096, nodes: true },
        ] {
            let listed = tree.list(&tree.root, limit).await;
            assert_eq!(listed.len(), wanted.len(), "{limit:?}");
            let mut ids = BTreeSet::new();
            for entry in &listed {
                assert!(entry.cookie > 2 && entry.cookie < 1 << 63);
                assert!(ids.insert(entry.fileid), "fileids are unique");
                if limit.nodes {
                    let node = entry.node.as_ref().unwrap().as_ref().unwrap();
                    assert_eq!(node.attr.fileid, entry.fileid);
                } else {
                    assert!(entry.node.is_none());
                }
            }
            let names: BTreeSet<Bytes> = listed.into_iter().map(|e| e.name).collect();
            assert!(names == wanted);
        }
        // Attributes in a listing are those of GETATTR.
        let limit = PageLimit { entries: 50, name_bytes: 9999, nodes: true };
        for entry in tree.local.readdir(&root(), &tree.root, 0, limit).await.unwrap().entries {
            let node = entry.node.unwrap().unwrap();
            assert_eq!(tree.local.getattr(&root(), &node.handle).await.unwrap(), node.attr);
        }
    }
}

#[tokio::test]
async fn a_listing_keeps_what_stays_while_others_come_and_go_case_k28() {
    for tree in Tree::each().await {
        for n in 0..3000 {
            std::fs::write(tree.path(&format!("stay-{n}")), b"").unwrap();
            std::fs::write(tree.path(&format!("go-{n}")), b"").unwrap();
        }
        let mut seen = Vec::new();
        let (mut cookie, mut round) = (0, 0);
        loop {
            let page = tree.local.readdir(&root(), &tree.root, cookie, bare(50)).await.unwrap();
            if let Some(last) = page.entries.last() {
                cookie = last.cookie;
            }
            seen.extend(page.entries.iter().map(|e| String::from_utf8(e.name.to_vec()).unwrap()));
            if page.eof {
                break;
            }
            for n in 0..25 {
                let n = round * 25 + n;
                let _ = std::fs::remove_file(tree.path(&format!("go-{n}")));
                std::fs::write(tree.path(&format!("come-{n}")), b"").unwrap();
            }
            round += 1;
        }
        let stayed: Vec<_> = seen.iter().filter(|n| n.starts_with("stay-")).collect();
        assert_eq!(stayed.len(), 3000);
        assert_eq!(stayed.into_iter().collect::<BTreeSet<_>>().len(), 3000);
        assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), seen.len(), "nothing twice");
    }
}

#[tokio::test]
async fn one_bad_entry_does_not_fail_a_listing_case_b40() {
    let tree = Tree::disk().await;
    if !tree.switches() {
        return;
    }
    // Readable but not searchable: names can be had, what is behind them cannot.
    let d = tree.mkdir(&root(), &tree.root, "d", 0o744).await;
    tree.file(&root(), &d, "f", 0o644).await;
    let limit = PageLimit { entries: 10, name_bytes: 4096, nodes: true };
    let page = tree.local.readdir(&user(1000), &d, 0, limit).await.unwrap();
    assert_eq!(page.entries.len(), 1);
    assert_eq!(page.entries[0].node.as_ref().unwrap().as_ref().unwrap_err(), &ErrorKind::Access);
    let closed = tree.mkdir(&root(), &tree.root, "closed", 0o711).await;
    assert_eq!(fails(tree.local.readdir(&user(1000), &closed, 0, limit).await), ErrorKind::Access);
    assert_eq!(fails(tree.local.readdir(&root(), &d, u64::MAX, limit).await), ErrorKind::BadCookie);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_updates_in_one_directory_case_k26() {
    for tree in Tree::each().await {
        let tree = std::sync::Arc::new(tree);
        let mut tasks = Vec::new();
        for writer in 0..8 {
            let tree = tree.clone();
            tasks.push(tokio::spawn(async move {
                for n in 0..50 {
                    let (a, b) = (name(&format!("w{writer}-{n}")), name(&format!("r{writer}-{n}")));
                    tree.local.create(&root(), &tree.root, &a, &CreateHow::default()).await.unwrap();
                    tree.local.rename(&root(), &tree.root, &a, &tree.root, &b).await.unwrap();
                    if n % 2 == 0 {
                        tree.local.remove(&root(), &tree.root, &b).await.unwrap();
                    }
                    // A name that all fight over.
                    let shared = name("shared");
                    let _ = tree.local.create(&root(), &tree.root, &shared, &CreateHow::default()).await;
                    let _ = tree.local.remove(&root(), &tree.root, &shared).await;
                }
            }));
        }
        for task in tasks {
            tokio::time::timeout(std::time::Duration::from_secs(120), task).await.unwrap().unwrap();
        }
        let left = std::fs::read_dir(tree.dir.path())
            .unwrap()
            .filter(|e| e.as_ref().unwrap().file_name().as_encoded_bytes().starts_with(b"r"));
        assert_eq!(left.count(), 8 * 25);
    }
}

#[tokio::test]
async fn mount_points_below_the_root() {
    // /proc is mounted on every machine that runs this.
    let mut options = dhow_local::Options::new("/");
    options.metadata_sync = false;
    let local = dhow_local::Local::open(options.clone()).unwrap();
    let top = local.root(&root()).await.unwrap();
    assert_eq!(fails(local.lookup(&root(), &top.handle, &name("proc")).await), ErrorKind::Access);
    options.crossmnt = true;
    let local = dhow_local::Local::open(options).unwrap();
    let proc = local.lookup(&root(), &top.handle, &name("proc")).await.unwrap();
    assert_ne!(proc.attr.fsid, top.attr.fsid);
    assert_eq!(proc.attr.fileid, std::fs::metadata("/proc").unwrap().ino());
    assert_ne!(proc.attr.mounted_on_fileid, proc.attr.fileid);
    let above = local.parent(&root(), &proc.handle).await.unwrap();
    assert_eq!(above.handle, top.handle);
    let limit = PageLimit { entries: 100, name_bytes: 1 << 20, nodes: true };
    let page = local.readdir(&root(), &top.handle, 0, limit).await.unwrap();
    let entry = page.entries.iter().find(|e| &e.name[..] == b"proc").unwrap();
    assert_eq!(entry.fileid, proc.attr.mounted_on_fileid);
}
