//! Who may do what: users, owners, groups, set-id bits, access checks.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use bytes::Bytes;
use common::*;
use dhow_vfs::*;

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

fn in_groups(uid: u32, gid: u32, groups: &[u32]) -> Cx {
    Cx::new(Cred { uid, gid, groups: groups.into() })
}

#[tokio::test]
async fn created_objects_belong_to_the_user() {
    for tree in Tree::each().await {
        if !tree.switches() {
            return;
        }
        let f = tree.file(&in_groups(1000, 2000, &[3000]), &tree.root, "f", 0o644).await;
        let attr = tree.local.getattr(&root(), &f).await.unwrap();
        assert_eq!((attr.uid, attr.gid, attr.mode), (1000, 2000, 0o644));
        // A set-gid directory gives its group on, and the bit to directories.
        let d = tree.mkdir(&root(), &tree.root, "d", 0o2777).await;
        let set = SetAttr { gid: Some(3000), ..SetAttr::default() };
        tree.local.setattr(&root(), &d, None, &set).await.unwrap();
        tree.local.setattr(&root(), &d, None, &mode(0o2777)).await.unwrap();
        let sub = tree.mkdir(&user(1000), &d, "sub", 0o755).await;
        let attr = tree.local.getattr(&root(), &sub).await.unwrap();
        assert_eq!((attr.uid, attr.gid, attr.mode), (1000, 3000, 0o2755));
        let g = tree.file(&user(1000), &d, "g", 0o600).await;
        assert_eq!(tree.local.getattr(&root(), &g).await.unwrap().gid, 3000);
        let what = Make::Symlink(Bytes::from_static(b"x"));
        let link = tree.local.make(&user(1000), &tree.root, &name("l"), &what, &SetAttr::default()).await.unwrap();
        assert_eq!((link.node.attr.uid, link.node.attr.gid), (1000, 1000));
    }
}

#[tokio::test]
async fn the_creating_open_writes_whatever_the_mode_case_b01() {
    for tree in Tree::each().await {
        if !tree.switches() {
            return;
        }
        let how = CreateHow { set: mode(0o444), verifier: None };
        let made = tree.local.create(&user(1000), &tree.root, &name("pack"), &how).await.unwrap();
        assert_eq!(made.node.attr.mode, 0o444);
        assert_eq!(made.applied.mode, Some(0o444));
        let f = made.node.handle;
        let io = IoRef { handle: &f, open: Some(&made.open) };
        tree.local.write(&user(1000), io, 0, Bytes::from_static(b"PACK"), Stability::Unstable).await.unwrap();
        assert_eq!(tree.local.read(&user(1000), io, 0, 10).await.unwrap().data, "PACK");
        // The same user opens it again for reading, the mode being 0400; for writing it would be refused, as locally.
        tree.local.setattr(&user(1000), &f, None, &mode(0o400)).await.unwrap();
        let again = tree.open(&user(1000), &f, true, false).await.unwrap();
        let second = IoRef { handle: &f, open: Some(&again) };
        assert_eq!(tree.local.read(&user(1000), second, 0, 10).await.unwrap().data, "PACK");
        tree.local.close(again).await;
        assert_eq!(fails(tree.open(&user(1000), &f, true, true).await), ErrorKind::Access);
        assert_eq!(fails(tree.open(&user(1001), &f, true, false).await), ErrorKind::Access);
        tree.local.close(made.open).await;
    }
}

#[tokio::test]
async fn the_owner_writes_without_an_open_case_b02() {
    for tree in Tree::each().await {
        if !tree.switches() {
            return;
        }
        let f = tree.file(&user(1000), &tree.root, "f", 0o444).await;
        for (n, bits) in [0o444, 0o000, 0o200].into_iter().enumerate() {
            tree.local.setattr(&user(1000), &f, None, &mode(bits)).await.unwrap();
            tree.write(&user(1000), &f, n as u64, b"x").await.unwrap();
            assert_eq!(fails(tree.write(&user(1001), &f, 0, b"y").await), ErrorKind::Access);
            assert_eq!(tree.read(&user(1000), &f, 0, 9).await.unwrap().data.len(), n + 1);
        }
        // Truncation is data too.
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        tree.local.setattr(&user(1000), &f, None, &set).await.unwrap();
        assert_eq!(fails(tree.local.setattr(&user(1001), &f, None, &set).await), ErrorKind::Access);
    }
}

#[tokio::test]
async fn descriptors_carry_no_permission() {
    for tree in Tree::each().await {
        if !tree.switches() {
            return;
        }
        let f = tree.file(&user(1000), &tree.root, "f", 0o640).await;
        tree.write(&user(1000), &f, 0, b"secret").await.unwrap();
        tree.read(&user(1000), &f, 0, 6).await.unwrap();
        // A descriptor for both is in the cache now; strangers get nothing of it.
        assert_eq!(fails(tree.read(&user(1001), &f, 0, 6).await), ErrorKind::Access);
        assert_eq!(fails(tree.write(&user(1001), &f, 0, b"x").await), ErrorKind::Access);
        let io = IoRef { handle: &f, open: None };
        assert!(tree.local.try_read(&user(1001), io, 0, 6).is_none_or(|r| fails(r) == ErrorKind::Access));
        // The group may read and not write.
        let member = in_groups(1001, 1001, &[5, 1000, 7]);
        assert_eq!(tree.read(&member, &f, 0, 6).await.unwrap().data, "secret");
        assert_eq!(fails(tree.write(&member, &f, 0, b"x").await), ErrorKind::Access);
        // An open for reading does not grant writing.
        let open = tree.open(&member, &f, true, false).await.unwrap();
        let io = IoRef { handle: &f, open: Some(&open) };
        let written = tree.local.write(&member, io, 0, Bytes::from_static(b"x"), Stability::Unstable).await;
        assert_eq!(fails(written), ErrorKind::Access);
        assert_eq!(fails(tree.local.reopen(&member, &open, &both()).await), ErrorKind::Access);
        tree.local.close(open).await;
        // Who may run a program may read it over NFS, as he must to run it.
        tree.local.setattr(&user(1000), &f, None, &mode(0o711)).await.unwrap();
        assert_eq!(tree.read(&user(1001), &f, 0, 6).await.unwrap().data, "secret");
    }
}

fn both() -> OpenHow {
    OpenHow { access: OpenAccess { read: true, write: true }, ..OpenHow::default() }
}

#[tokio::test]
async fn an_open_outlives_a_change_of_mode() {
    for tree in Tree::each().await {
        if !tree.switches() {
            return;
        }
        let f = tree.file(&user(1000), &tree.root, "f", 0o666).await;
        let open = tree.local.open(&user(1001), &f, &both()).await.unwrap();
        tree.local.setattr(&user(1000), &f, None, &mode(0o600)).await.unwrap();
        let io = IoRef { handle: &f, open: Some(&open) };
        tree.local.write(&user(1001), io, 0, Bytes::from_static(b"x"), Stability::Unstable).await.unwrap();
        let set = SetAttr { size: Some(7), ..SetAttr::default() };
        tree.local.setattr(&user(1001), &f, Some(&open), &set).await.unwrap();
        assert_eq!(fails(tree.local.setattr(&user(1001), &f, None, &set).await), ErrorKind::Access);
        assert_eq!(fails(tree.local.open(&user(1001), &f, &both()).await), ErrorKind::Access);
        // A reclaim is no way around it, for what a client had open is not written down. The owner may as ever.
        let reclaim = OpenHow { reclaim: true, ..both() };
        assert_eq!(fails(tree.local.open(&user(1001), &f, &reclaim).await), ErrorKind::Access);
        let again = tree.local.open(&user(1000), &f, &reclaim).await.unwrap();
        tree.local.close(open).await;
        tree.local.close(again).await;
    }
}

#[tokio::test]
async fn search_permission_counts_for_names() {
    for tree in Tree::each().await {
        if !tree.switches() {
            return;
        }
        let d = tree.mkdir(&user(1000), &tree.root, "d", 0o700).await;
        let f = tree.file(&user(1000), &d, "f", 0o666).await;
        assert_eq!(fails(tree.lookup(&user(1001), &d, "f").await), ErrorKind::Access);
        assert_eq!(fails(tree.local.parent(&user(1001), &d).await), ErrorKind::Access);
        let limit = PageLimit { entries: 9, name_bytes: 999, nodes: false };
        assert_eq!(fails(tree.local.readdir(&user(1001), &d, 0, limit).await), ErrorKind::Access);
        let made = tree.local.create(&user(1001), &d, &name("g"), &CreateHow::default()).await;
        assert_eq!(fails(made), ErrorKind::Access);
        assert_eq!(fails(tree.local.remove(&user(1001), &d, &name("f")).await), ErrorKind::Access);
        let moved = tree.local.rename(&user(1001), &d, &name("f"), &tree.root, &name("f")).await;
        assert_eq!(fails(moved), ErrorKind::Access);
        // A handle once had is good for the file itself, as with every NFS server.
        assert!(tree.local.getattr(&user(1001), &f).await.is_ok());
        assert!(tree.read(&user(1001), &f, 0, 1).await.is_ok());
        // Sticky directories protect names of others.
        let sticky = tree.mkdir(&root(), &tree.root, "tmp", 0o1777).await;
        tree.file(&user(1000), &sticky, "mine", 0o666).await;
        assert_eq!(fails(tree.local.remove(&user(1001), &sticky, &name("mine")).await), ErrorKind::Perm);
        tree.local.remove(&user(1000), &sticky, &name("mine")).await.unwrap();
    }
}

#[tokio::test]
async fn access_rights() {
    let all = Access(0x1ff);
    for tree in Tree::each().await {
        if !tree.switches() {
            return;
        }
        let f = tree.file(&user(1000), &tree.root, "f", 0o640).await;
        let d = tree.mkdir(&user(1000), &tree.root, "d", 0o750).await;
        let (xread, xall) = (Access::XAREAD | Access::XALIST, Access::XAREAD | Access::XALIST | Access::XAWRITE);
        let write = Access::MODIFY | Access::EXTEND;
        let check = async |cx: &Cx, h: &Handle, want: Access| tree.local.access(cx, h, want).await.unwrap().0;
        assert_eq!(check(&user(1000), &f, all).await, Access::READ | write | xall);
        let member = in_groups(7, 7, &[1000]);
        assert_eq!(check(&member, &f, all).await, Access::READ | xread);
        assert_eq!(check(&user(7), &f, all).await, 0);
        // Nobody may run what has no x bit at all, the superuser neither.
        assert_eq!(check(&root(), &f, all).await, Access::READ | write | xall);
        assert_eq!(check(&root(), &f, Access(Access::READ)).await, Access::READ);
        let dir = Access::READ | Access::LOOKUP | write | Access::DELETE | xall;
        assert_eq!(check(&user(1000), &d, all).await, dir);
        assert_eq!(check(&member, &d, all).await, Access::READ | Access::LOOKUP | xread);
        assert_eq!(check(&user(7), &d, all).await, 0);
        tree.local.setattr(&user(1000), &f, None, &mode(0o755)).await.unwrap();
        assert_eq!(check(&user(7), &f, all).await, Access::READ | Access::EXECUTE | xread);
    }
}

#[tokio::test]
async fn remembered_rights_follow_every_change() {
    for tree in Tree::each().await {
        if !tree.switches() {
            return;
        }
        let d = tree.mkdir(&user(1000), &tree.root, "d", 0o755).await;
        let f = tree.file(&user(1000), &d, "f", 0o644).await;
        tree.write(&user(1000), &f, 0, b"x").await.unwrap();
        let path = tree.path("d/f");
        let set_mode = |path: &std::path::Path, bits| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(bits)).unwrap();
        };
        let can_read = async |cx: &Cx| tree.read(cx, &f, 0, 1).await.is_ok();
        let can_look = async |cx: &Cx| tree.lookup(cx, &d, "f").await.is_ok();
        // Changed behind our back, again and again, as fast as it goes.
        for _ in 0..50 {
            set_mode(&path, 0o600);
            assert!(!can_read(&user(7)).await);
            set_mode(&path, 0o604);
            assert!(can_read(&user(7)).await);
            set_mode(&tree.path("d"), 0o700);
            assert!(!can_look(&user(7)).await);
            set_mode(&tree.path("d"), 0o711);
            assert!(can_look(&user(7)).await);
            std::os::unix::fs::chown(&path, Some(7), Some(7)).unwrap();
            set_mode(&path, 0o060);
            assert!(can_read(&in_groups(8, 8, &[7])).await);
            assert!(!can_read(&in_groups(8, 8, &[9])).await);
            std::os::unix::fs::chown(&path, Some(1000), Some(9)).unwrap();
            assert!(!can_read(&in_groups(8, 8, &[7])).await);
            assert!(can_read(&in_groups(8, 8, &[9])).await);
        }
        // More users than are remembered.
        set_mode(&path, 0o640);
        for uid in 2000..2050 {
            assert!(!can_read(&user(uid)).await);
            assert!(can_read(&in_groups(uid, 9, &[])).await);
        }
        // An access control list: version 2, then tag, permissions and id of each entry.
        let entry = |tag: u16, bits: u16, id: u32| {
            [&tag.to_le_bytes()[..], &bits.to_le_bytes()[..], &id.to_le_bytes()[..]].concat()
        };
        let none = u32::MAX;
        let acl = [
            2u32.to_le_bytes().to_vec(),
            entry(0x01, 6, none),
            entry(0x02, 4, 2001),
            entry(0x04, 0, none),
            entry(0x10, 4, none),
            entry(0x20, 0, none),
        ]
        .concat();
        let held = std::fs::File::open(&path).unwrap();
        match rustix::fs::fsetxattr(&held, "system.posix_acl_access", &acl, rustix::fs::XattrFlags::empty()) {
            Ok(()) => {
                assert!(can_read(&user(2001)).await);
                assert!(!can_read(&user(2002)).await);
                assert!(!can_read(&in_groups(2002, 9, &[])).await);
                rustix::fs::fremovexattr(&held, "system.posix_acl_access").unwrap();
                assert!(!can_read(&user(2001)).await);
            }
            Err(e) => println!("skipped: no access control lists under {:?}: {e}", tree.dir.path()),
        }
    }
}

#[tokio::test]
async fn owner_group_and_mode() {
    for tree in Tree::each().await {
        if !tree.switches() {
            return;
        }
        let f = tree.file(&user(1000), &tree.root, "f", 0o644).await;
        let set = |uid, gid| SetAttr { uid, gid, ..SetAttr::default() };
        let member = in_groups(1000, 1000, &[2000]);
        let change = async |cx: &Cx, set: SetAttr| tree.local.setattr(cx, &f, None, &set).await;
        // The owner may give the file to a group of his, not to another user.
        assert_eq!(change(&member, set(None, Some(2000))).await.unwrap().attr.gid, 2000);
        assert_eq!(fails(change(&member, set(None, Some(3000))).await), ErrorKind::Perm);
        assert_eq!(fails(change(&member, set(Some(1001), None)).await), ErrorKind::Perm);
        assert_eq!(fails(change(&user(1001), mode(0o777)).await), ErrorKind::Perm);
        let done = change(&root(), set(Some(1001), Some(3000))).await.unwrap();
        assert_eq!((done.attr.uid, done.attr.gid), (1001, 3000));
        assert_eq!(done.applied, set(Some(1001), Some(3000)));
        // Owner first, mode after: the set-id bits of one request stay (in this order only).
        let request = SetAttr { mode: Some(0o6755), uid: Some(1000), gid: Some(1000), ..SetAttr::default() };
        assert_eq!(change(&root(), request).await.unwrap().attr.mode, 0o6755);
        // A change of owner alone clears them, as does a write by a user.
        assert_eq!(change(&root(), set(Some(1001), None)).await.unwrap().attr.mode, 0o755);
        change(&user(1001), mode(0o4777)).await.unwrap();
        tree.write(&user(1000), &f, 0, b"x").await.unwrap();
        assert_eq!(tree.local.getattr(&root(), &f).await.unwrap().mode, 0o777);
        change(&user(1001), mode(0o4777)).await.unwrap();
        let cut = SetAttr { size: Some(0), ..SetAttr::default() };
        change(&user(1000), cut).await.unwrap();
        assert_eq!(tree.local.getattr(&root(), &f).await.unwrap().mode, 0o777);
        // Only the bits of the mask (mode_set_masked, RFC 8881 6.2.5).
        let masked = SetAttr { mode: Some(0o000), mode_mask: Some(0o022), ..SetAttr::default() };
        let done = change(&user(1001), masked.clone()).await.unwrap();
        assert_eq!((done.attr.mode, done.applied), (0o755, masked));
        // What cannot be had on create is left out and no error (attrset tells).
        let wish = SetAttr { mode: Some(0o4755), uid: Some(5), gid: Some(2000), ..SetAttr::default() };
        let how = CreateHow { set: wish, verifier: None };
        let made = tree.local.create(&member, &tree.root, &name("g"), &how).await.unwrap();
        assert_eq!((made.node.attr.uid, made.node.attr.mode), (1000, 0o4755));
        assert_eq!((made.applied.uid, made.applied.mode), (None, Some(0o4755)));
        let own = CreateHow { set: set(Some(1000), Some(2000)), verifier: None };
        let made = tree.local.create(&member, &tree.root, &name("h"), &own).await.unwrap();
        assert_eq!((made.node.attr.gid, made.applied.uid, made.applied.gid), (2000, Some(1000), Some(2000)));
    }
}

#[tokio::test]
async fn umask_of_the_client() {
    // RFC 8275
    for tree in Tree::each().await {
        let set = SetAttr { mode: Some(0o666), umask: Some(0o027), ..SetAttr::default() };
        let how = CreateHow { set: set.clone(), verifier: None };
        let made = tree.local.create(&root(), &tree.root, &name("f"), &how).await.unwrap();
        assert_eq!(made.node.attr.mode, 0o640);
        let set = SetAttr { mode: Some(0o777), ..set };
        let made = tree.local.make(&root(), &tree.root, &name("d"), &Make::Directory, &set).await.unwrap();
        assert_eq!(made.node.attr.mode, 0o750);
    }
}

#[tokio::test]
async fn times_case_b18() {
    for tree in Tree::each().await {
        let f = tree.file(&user(1000), &tree.root, "f", 0o666).await;
        let set = |atime, mtime| SetAttr { atime, mtime, ..SetAttr::default() };
        let to = |secs, nanos| Some(SetTime::To(Time { secs, nanos }));
        for (secs, nanos) in [(-315_619_200, 0), (2_208_988_800, 999_999_999), (-14_154_245, 750_000_000)] {
            let done = tree.local.setattr(&user(1000), &f, None, &set(None, to(secs, nanos))).await.unwrap();
            assert_eq!(done.attr.mtime, Time { secs, nanos });
            assert_eq!(tree.local.getattr(&root(), &f).await.unwrap().mtime, Time { secs, nanos });
        }
        let bad = set(to(0, 1_000_000_000), None);
        assert_eq!(fails(tree.local.setattr(&user(1000), &f, None, &bad).await), ErrorKind::Invalid);
        if tree.switches() {
            // Who may write may set the present time, either or both; only the owner another.
            for now in [set(Some(SetTime::Now), None), set(None, Some(SetTime::Now))] {
                tree.local.setattr(&user(1001), &f, None, &now).await.unwrap();
            }
            assert_eq!(fails(tree.local.setattr(&user(1001), &f, None, &set(None, to(0, 0))).await), ErrorKind::Perm);
            tree.local.setattr(&user(1000), &f, None, &mode(0o644)).await.unwrap();
            let now = set(None, Some(SetTime::Now));
            assert_eq!(fails(tree.local.setattr(&user(1001), &f, None, &now).await), ErrorKind::Access);
        }
    }
}

#[tokio::test]
async fn xattrs_of_users() {
    for tree in Tree::each().await {
        if !tree.local.caps().xattrs {
            println!("skipped: no extended attributes under {:?}", tree.dir.path());
            continue;
        }
        let f = tree.file(&user(1000), &tree.root, "f", 0o644).await;
        let (local, one) = (&tree.local, user(1000));
        let before = local.getattr(&one, &f).await.unwrap().change;
        let change = local.setxattr(&one, &f, b"a", b"value", XattrSet::Create).await.unwrap();
        assert_eq!(change.before, before);
        assert_ne!(change.after, before);
        assert_eq!(local.getxattr(&one, &f, b"a").await.unwrap(), "value");
        assert_eq!(fails(local.setxattr(&one, &f, b"a", b"", XattrSet::Create).await), ErrorKind::Exists);
        assert_eq!(fails(local.setxattr(&one, &f, b"b", b"", XattrSet::Replace).await), ErrorKind::NoXattr);
        local.setxattr(&one, &f, b"\xff", &[7; 1000], XattrSet::Either).await.unwrap();
        let mut names = local.listxattr(&one, &f).await.unwrap();
        names.sort();
        assert_eq!(names, [Bytes::from_static(b"a"), Bytes::from_static(b"\xff")]);
        local.removexattr(&one, &f, b"a").await.unwrap();
        assert_eq!(fails(local.getxattr(&one, &f, b"a").await), ErrorKind::NoXattr);
        assert_eq!(fails(local.removexattr(&one, &f, b"a").await), ErrorKind::NoXattr);
        assert_eq!(fails(local.getxattr(&one, &f, b"").await), ErrorKind::Invalid);
        assert_eq!(fails(local.getxattr(&one, &f, &[b'x'; 251]).await), ErrorKind::NameTooLong);
        let huge = vec![1; 70_000];
        assert_eq!(fails(local.setxattr(&one, &f, b"h", &huge, XattrSet::Either).await), ErrorKind::XattrTooBig);
        if tree.switches() {
            assert_eq!(local.getxattr(&user(1001), &f, b"\xff").await.unwrap().len(), 1000);
            let set = local.setxattr(&user(1001), &f, b"c", b"", XattrSet::Either).await;
            assert_eq!(fails(set), ErrorKind::Access);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn identities_never_leak_between_calls() {
    for tree in Tree::each().await {
        if !tree.switches() {
            return;
        }
        let base = dhow_sys::cred::current_thread_identity().unwrap();
        let tree = std::sync::Arc::new(tree);
        let mut tasks = Vec::new();
        for task in 0..16u32 {
            let tree = tree.clone();
            tasks.push(tokio::spawn(async move {
                let (uid, gid) = (3000 + task % 5, 4000 + task % 3);
                let me = in_groups(uid, gid, &[gid, 5000 + task]);
                let (other, set) = (user(9999), SetAttr { mode: Some(0o600), ..SetAttr::default() });
                for n in 0..20 {
                    let text = name(&format!("{task}-{n}"));
                    let how = CreateHow { set: set.clone(), verifier: None };
                    let made = tree.local.create(&me, &tree.root, &text, &how).await.unwrap();
                    assert_eq!((made.node.attr.uid, made.node.attr.gid), (uid, gid));
                    let f = made.node.handle;
                    let io = IoRef { handle: &f, open: Some(&made.open) };
                    let data = Bytes::from(vec![task as u8; 100_000]);
                    tree.local.write(&me, io, 0, data, Stability::Unstable).await.unwrap();
                    tree.write(&me, &f, 50, b"x").await.unwrap();
                    assert_eq!(fails(tree.read(&other, &f, 0, 1).await), ErrorKind::Access);
                    assert_eq!(fails(tree.local.setattr(&other, &f, None, &set).await), ErrorKind::Perm);
                    tree.local.setattr(&me, &f, None, &set).await.unwrap();
                    assert_eq!(tree.local.access(&other, &f, Access(0x1ff)).await.unwrap(), Access(0));
                    tree.local.close(made.open).await;
                    assert_eq!(tree.local.lookup(&root(), &tree.root, &text).await.unwrap().handle, f);
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        // Whatever thread is asked now is what the process was.
        let threads: Vec<_> = (0..64)
            .map(|_| {
                tokio::task::spawn_blocking(|| {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                    dhow_sys::cred::current_thread_identity().unwrap()
                })
            })
            .collect();
        for thread in threads {
            assert_eq!(thread.await.unwrap(), base);
        }
        for _ in 0..64 {
            let asked = tokio::spawn(async { dhow_sys::cred::current_thread_identity().unwrap() });
            assert_eq!(asked.await.unwrap(), base);
        }
    }
}

/// Runs one test of this file again in a child that is an ordinary user from the start.
fn as_nobody(test: &str) -> bool {
    if std::env::var_os("DHOW_AS_NOBODY").is_some() {
        return true;
    }
    if !dhow_sys::cred::can_switch_identity() {
        // Then this process is an ordinary user already.
        return true;
    }
    use std::os::unix::process::CommandExt;
    // The build directory may be closed to others.
    let copy = tempfile::Builder::new().prefix("dhow-nobody-").tempdir().unwrap();
    std::fs::set_permissions(copy.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let exe = copy.path().join("test");
    std::fs::copy(std::env::current_exe().unwrap(), &exe).unwrap();
    let output = std::process::Command::new(&exe)
        .args(["--exact", test, "--nocapture"])
        .env("DHOW_AS_NOBODY", "1")
        .current_dir("/")
        .uid(65_534)
        .gid(65_534)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
    false
}

#[tokio::test]
async fn without_privilege_all_is_done_as_the_process() {
    if !as_nobody("without_privilege_all_is_done_as_the_process") {
        return;
    }
    for tree in Tree::each().await {
        let report = tree.local.report();
        let me = std::fs::metadata(tree.dir.path()).unwrap().uid();
        // A superuser from whom only the right to switch was taken may still open handles.
        assert!(!report.switches_identity && (me == 0 || !report.opens_handles), "{report:?}");
        // Whoever asks, the process answers with its own rights.
        let d = tree.mkdir(&root(), &tree.root, "d", 0o755).await;
        let f = tree.file(&user(1000), &d, "f", 0o444).await;
        let attr = tree.local.getattr(&user(1), &f).await.unwrap();
        assert_eq!(attr.uid, me);
        let chown = SetAttr { uid: Some(me + 1), ..SetAttr::default() };
        if me != 0 {
            assert_eq!(fails(tree.local.setattr(&root(), &f, None, &chown).await), ErrorKind::Perm);
        }
        tree.local.rename(&root(), &tree.root, &name("d"), &tree.root, &name("e")).await.unwrap();
        let sub = tree.mkdir(&root(), &d, "sub", 0o700).await;
        let tree = tree.restart(|_| {}).await;
        assert_eq!(patiently(&tree, &sub).await.unwrap().kind, FileKind::Directory);
        assert_eq!(tree.local.parent(&root(), &sub).await.unwrap().handle, d);
        let all = PageLimit { entries: 9, name_bytes: 999, nodes: true };
        assert_eq!(tree.list(&d, all).await.len(), 2);
        // The descriptor of a creating open serves a file without a w bit (case B01).
        let how = CreateHow { set: mode(0o444), verifier: None };
        let made = tree.local.create(&root(), &d, &name("ro"), &how).await.unwrap();
        let io = IoRef { handle: &made.node.handle, open: Some(&made.open) };
        tree.local.write(&root(), io, 0, Bytes::from_static(b"x"), Stability::FileSync).await.unwrap();
        tree.local.close(made.open).await;
    }
}
