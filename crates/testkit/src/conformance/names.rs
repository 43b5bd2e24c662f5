//! Names, links, renames, handles.

use super::{BOTH, T, how, is_one_of, kind, mode, name};
use bytes::Bytes;
use dhow_vfs::{CreateHow, ErrorKind, FileKind, Make, SetAttr};

/// Cases B14 and B15: names come back byte for byte, and none is refused for its bytes.
pub(super) async fn names_are_bytes(t: &T) {
    let names: [&[u8]; 6] = ["日本".as_bytes(), b"\xe9", b"\xe8", b"\xff\xfe", b" \n\t", b"..."];
    for n in names {
        t.b.create(&t.cx, &t.root, &name(n), &CreateHow::default()).await.expect("any bytes make a name");
    }
    let limit = dhow_vfs::PageLimit { entries: 100, name_bytes: 100_000, nodes: false };
    let page = t.b.readdir(&t.cx, &t.root, 0, limit).await.unwrap();
    let mut listed: Vec<&[u8]> = page.entries.iter().map(|e| &e.name[..]).collect();
    listed.sort_unstable();
    let mut made = names.to_vec();
    made.sort_unstable();
    assert_eq!(listed, made);
    for n in names {
        assert!(t.b.lookup(&t.cx, &t.root, &name(n)).await.is_ok());
        t.b.remove(&t.cx, &t.root, &name(n)).await.unwrap();
    }
}

/// Case B17: 255 bytes of name, 4095 bytes of target; targets come back at their exact length. Some filesystems end at
/// 1023 or 1024 bytes (XFS): then that is said, and nothing is made.
pub(super) async fn lengths_of_names_and_targets(t: &T) {
    let long = "n".repeat(255);
    t.file(&t.root, &long).await;
    assert!(t.lookup(&t.root, &long).await.is_ok());
    for len in [1, 255, 256, 1023, 1024, 4095] {
        let target = Bytes::from("t".repeat(len));
        let text = format!("l{len}");
        let made = t.make(&t.root, &text, Make::Symlink(target.clone())).await;
        if len > 1023 && made.as_ref().is_err_and(|e| e.kind() == ErrorKind::NameTooLong) {
            assert_eq!(kind(t.lookup(&t.root, &text).await), ErrorKind::NotFound);
            continue;
        }
        let link = made.unwrap();
        assert_eq!(t.b.readlink(&t.cx, &link).await.unwrap(), target, "a target of {len} bytes");
        assert_eq!(t.attr(&link).await.size, len as u64);
    }
    let binary = Bytes::from_static(b"../\xff /x//");
    let link = t.make(&t.root, "bin", Make::Symlink(binary.clone())).await.unwrap();
    assert_eq!(t.b.readlink(&t.cx, &link).await.unwrap(), binary);
}

pub(super) async fn create_and_look_up(t: &T) {
    let f = t.file(&t.root, "f").await;
    let found = t.lookup(&t.root, "f").await.unwrap();
    assert_eq!((found.handle, found.attr.fileid), (f.h.clone(), t.attr(&f.h).await.fileid));
    assert_eq!(found.attr.kind, FileKind::Regular);
    assert_eq!(kind(t.create_as(&t.cx, &t.root, "f", 0o644).await), ErrorKind::Exists);
    assert_eq!(kind(t.make(&t.root, "f", Make::Directory).await), ErrorKind::Exists);
    let d = t.mkdir(&t.root, "d").await;
    assert_eq!(kind(t.create_as(&t.cx, &t.root, "d", 0o644).await), ErrorKind::Exists);
    assert_eq!(kind(t.lookup(&d, "none").await), ErrorKind::NotFound);
    assert_eq!(kind(t.remove(&d, "none").await), ErrorKind::NotFound);
    assert_eq!(kind(t.rename(&d, "none", &t.root, "x").await), ErrorKind::NotFound);
    // A name that differs by case is another name, where the filesystem says so.
    if t.b.caps().case_sensitive {
        assert_eq!(kind(t.lookup(&t.root, "F").await), ErrorKind::NotFound);
    }
    t.b.close(f.open).await;
}

pub(super) async fn walking_up(t: &T) {
    assert_eq!(kind(t.b.parent(&t.cx, &t.root).await), ErrorKind::NotFound, "nothing lies above the root");
    let a = t.mkdir(&t.root, "a").await;
    let b = t.mkdir(&a, "b").await;
    assert_eq!(t.b.parent(&t.cx, &b).await.unwrap().handle, a);
    assert_eq!(t.b.parent(&t.cx, &a).await.unwrap().handle, t.root);
    t.rename(&a, "b", &t.root, "b").await.unwrap();
    assert_eq!(t.b.parent(&t.cx, &b).await.unwrap().handle, t.root);
}

pub(super) async fn wrong_kinds_of_objects(t: &T) {
    let f = t.file(&t.root, "f").await;
    let d = t.mkdir(&t.root, "d").await;
    let l = t.make(&t.root, "l", Make::Symlink(Bytes::from_static(b"d"))).await.unwrap();
    assert_eq!(kind(t.lookup(&f.h, "x").await), ErrorKind::NotDir);
    is_one_of(t.lookup(&l, "x").await, &[ErrorKind::Symlink, ErrorKind::NotDir]);
    is_one_of(t.create_as(&t.cx, &f.h, "x", 0o644).await, &[ErrorKind::NotDir]);
    assert_eq!(kind(t.b.readlink(&t.cx, &f.h).await), ErrorKind::Invalid);
    assert_eq!(kind(t.b.readlink(&t.cx, &d).await), ErrorKind::Invalid);
    assert_eq!(kind(t.b.open(&t.cx, &d, &how(BOTH)).await), ErrorKind::IsDir);
    assert_eq!(kind(t.b.open(&t.cx, &l, &how(BOTH)).await), ErrorKind::Symlink);
    let none = dhow_vfs::IoRef { handle: &d, open: None };
    assert_eq!(kind(t.b.read(&t.cx, none, 0, 10).await), ErrorKind::IsDir);
    assert_eq!(
        kind(t.b.setattr(&t.cx, &d, None, &SetAttr { size: Some(0), ..SetAttr::default() }).await),
        ErrorKind::IsDir
    );
    let limit = dhow_vfs::PageLimit { entries: 10, name_bytes: 1000, nodes: false };
    assert_eq!(kind(t.b.readdir(&t.cx, &f.h, 0, limit).await), ErrorKind::NotDir);
    // A symbolic link is looked at, never followed.
    assert_eq!(t.lookup(&t.root, "l").await.unwrap().attr.kind, FileKind::Symlink);
}

pub(super) async fn hard_links(t: &T) {
    if !t.b.caps().links {
        return;
    }
    let f = t.file(&t.root, "f").await;
    let d = t.mkdir(&t.root, "d").await;
    t.b.link(&t.cx, &f.h, &d, &name("g")).await.unwrap();
    let g = t.lookup(&d, "g").await.unwrap();
    let f_attr = t.attr(&f.h).await;
    assert_eq!((g.attr.fileid, g.attr.nlink, f_attr.nlink), (f_attr.fileid, 2, 2));
    assert_eq!(t.b.object_id(&g.handle), t.b.object_id(&f.h), "two names of one object");
    assert_eq!(kind(t.b.link(&t.cx, &f.h, &d, &name("g")).await), ErrorKind::Exists);
    is_one_of(t.b.link(&t.cx, &d, &t.root, &name("e")).await, &[ErrorKind::IsDir, ErrorKind::Perm]);
    t.remove(&t.root, "f").await.unwrap();
    assert_eq!(t.attr(&g.handle).await.nlink, 1);
    assert_eq!(t.attr(&f.h).await.nlink, 1, "the handle is the object's, not the name's");
}

/// RFC 8881 18.26.
pub(super) async fn renames(t: &T) {
    let d = t.mkdir(&t.root, "d").await;
    let f = t.file(&t.root, "f").await;
    t.rename(&t.root, "f", &d, "g").await.unwrap();
    assert_eq!(kind(t.lookup(&t.root, "f").await), ErrorKind::NotFound);
    assert_eq!(t.lookup(&d, "g").await.unwrap().handle, f.h);

    // Over a file that is there.
    let old = t.file(&d, "h").await;
    t.b.close(old.open).await;
    t.rename(&d, "g", &d, "h").await.unwrap();
    assert_eq!(t.lookup(&d, "h").await.unwrap().handle, f.h);
    assert_eq!(kind(t.b.getattr(&t.cx, &old.h).await), ErrorKind::Stale);

    // A name onto itself, and two names of one object: nothing happens.
    t.rename(&d, "h", &d, "h").await.unwrap();
    assert_eq!(t.lookup(&d, "h").await.unwrap().handle, f.h);
    if t.b.caps().links {
        t.b.link(&t.cx, &f.h, &t.root, &name("h2")).await.unwrap();
        let done = t.rename(&d, "h", &t.root, "h2").await.unwrap();
        assert!(done.replaced.is_none());
        assert!(t.lookup(&d, "h").await.is_ok() && t.lookup(&t.root, "h2").await.is_ok());
        assert_eq!(t.attr(&f.h).await.nlink, 2);
    }

    // A directory over an empty one.
    let a = t.mkdir(&t.root, "a").await;
    t.mkdir(&t.root, "b").await;
    let before = t.attr(&t.root).await.nlink;
    t.rename(&t.root, "a", &t.root, "b").await.unwrap();
    assert_eq!(t.lookup(&t.root, "b").await.unwrap().handle, a);
    let after = t.attr(&t.root).await.nlink;
    assert!(after == before || after + 1 == before, "links of the parent: {before}, then {after}");
}

pub(super) async fn renames_that_are_refused(t: &T) {
    let d = t.mkdir(&t.root, "d").await;
    let inner = t.mkdir(&d, "inner").await;
    t.file(&t.root, "f").await;
    t.mkdir(&t.root, "e").await;
    is_one_of(t.rename(&t.root, "f", &t.root, "e").await, &[ErrorKind::IsDir, ErrorKind::Exists]);
    is_one_of(t.rename(&t.root, "e", &t.root, "f").await, &[ErrorKind::NotDir, ErrorKind::Exists]);
    is_one_of(t.rename(&t.root, "e", &t.root, "d").await, &[ErrorKind::NotEmpty, ErrorKind::Exists]);
    assert_eq!(kind(t.rename(&t.root, "d", &d, "x").await), ErrorKind::Invalid, "into itself");
    assert_eq!(kind(t.rename(&t.root, "d", &inner, "x").await), ErrorKind::Invalid, "below itself");
    for n in ["d", "e", "f"] {
        assert!(t.lookup(&t.root, n).await.is_ok(), "{n} is where it was");
    }
    is_one_of(t.remove(&t.root, "d").await, &[ErrorKind::NotEmpty, ErrorKind::Exists]);
}

/// Case B07: a handle names the object, whatever becomes of the path.
pub(super) async fn handles_survive_renames(t: &T) {
    let a = t.mkdir(&t.root, "a").await;
    let b = t.mkdir(&a, "b").await;
    let f = t.file(&b, "f").await;
    t.put(&f, 0, b"data").await;
    t.rename(&t.root, "a", &t.root, "z").await.unwrap();
    assert_eq!(t.get(&f, 0, 10).await, b"data");
    let inner = t.mkdir(&b, "inner").await;
    assert_eq!(t.attr(&inner).await.kind, FileKind::Directory);
    assert_eq!(t.lookup(&b, "f").await.unwrap().handle, f.h);
    t.rename(&b, "f", &t.root, "moved").await.unwrap();
    let again = t.b.open(&t.cx, &f.h, &how(BOTH)).await.unwrap();
    let io = dhow_vfs::IoRef { handle: &f.h, open: Some(&again) };
    assert_eq!(&t.read(io, 0, 10).await.data[..], b"data");
}

pub(super) async fn handles_go_stale(t: &T) {
    let f = t.file(&t.root, "f").await;
    t.b.close(f.open).await;
    let removed = t.remove(&t.root, "f").await.unwrap();
    assert_eq!(removed.nlink, 0);
    assert_eq!(kind(t.b.getattr(&t.cx, &f.h).await), ErrorKind::Stale);
    assert_eq!(kind(t.b.open(&t.cx, &f.h, &how(BOTH)).await), ErrorKind::Stale);
    let again = t.file(&t.root, "f").await;
    assert_ne!(again.h, f.h, "a new object has a handle of its own");
    assert_eq!(kind(t.b.getattr(&t.cx, &f.h).await), ErrorKind::Stale);
    let d = t.mkdir(&t.root, "d").await;
    t.remove(&t.root, "d").await.unwrap();
    is_one_of(t.lookup(&d, "x").await, &[ErrorKind::Stale, ErrorKind::NotFound]);
    is_one_of(t.create_as(&t.cx, &d, "x", 0o644).await, &[ErrorKind::Stale, ErrorKind::NotFound]);
}

pub(super) async fn special_files(t: &T) {
    if !t.b.caps().special {
        is_one_of(t.make(&t.root, "p", Make::Fifo).await, &[ErrorKind::NotSupported, ErrorKind::Perm]);
        return;
    }
    for (n, what, due) in [("p", Make::Fifo, FileKind::Fifo), ("s", Make::Socket, FileKind::Socket)] {
        let h = t.make(&t.root, n, what).await.unwrap();
        assert_eq!(t.attr(&h).await.kind, due);
        assert_eq!(kind(t.b.open(&t.cx, &h, &how(BOTH)).await), ErrorKind::WrongType, "never opened");
    }
    match t.make(&t.root, "c", Make::Char(1, 3)).await {
        Ok(h) => {
            let attr = t.attr(&h).await;
            assert_eq!((attr.kind, attr.rdev), (FileKind::Char, (1, 3)));
            assert_eq!(kind(t.b.open(&t.cx, &h, &how(BOTH)).await), ErrorKind::WrongType);
        }
        // Without the privilege to make devices.
        Err(e) => assert!(matches!(e.kind(), ErrorKind::Perm | ErrorKind::NotSupported), "{e}"),
    }
}

/// Creates of one name at once: one makes the file; creates of many names: all do.
pub(super) async fn one_of_many_creates_wins(t: &T) {
    let mut tasks = Vec::new();
    for i in 0..32 {
        let (b, cx, root) = (t.b.clone(), t.cx.clone(), t.root.clone());
        tasks.push(tokio::spawn(async move {
            let how = CreateHow { set: mode(0o600), verifier: None };
            let own = b.create(&cx, &root, &name(format!("own{i}")), &how).await;
            assert!(own.is_ok(), "{own:?}");
            match b.create(&cx, &root, &name("one"), &how).await {
                Ok(made) => Some(made.node.handle),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Exists);
                    None
                }
            }
        }));
    }
    let mut won = Vec::new();
    for task in tasks {
        won.extend(task.await.unwrap());
    }
    assert_eq!(won, [t.lookup(&t.root, "one").await.unwrap().handle]);
}

/// change_info4: what an update says of the directory is what GETATTR says before and after.
pub(super) async fn directory_changes_are_told(t: &T) {
    let d = t.mkdir(&t.root, "d").await;
    let mut last = t.attr(&d).await.change;
    let mut follow = async |what: &str, c: dhow_vfs::DirChange| {
        let now = t.attr(&d).await.change;
        assert_ne!(now, last, "{what} changes the directory");
        assert_eq!(c.after, now, "{what}: after");
        if c.atomic {
            assert_eq!(c.before, last, "{what}: before");
        }
        last = now;
    };
    let made = t.create_as(&t.cx, &d, "f", 0o644).await.unwrap();
    follow("create", made.change).await;
    follow("mkdir", t.b.make(&t.cx, &d, &name("e"), &Make::Directory, &mode(0o755)).await.unwrap().change).await;
    if t.b.caps().links {
        follow("link", t.b.link(&t.cx, &made.node.handle, &d, &name("g")).await.unwrap()).await;
    }
    follow("rename", t.rename(&d, "f", &d, "h").await.unwrap().to).await;
    follow("rename away", t.rename(&d, "h", &t.root, "h").await.unwrap().from).await;
    follow("remove", t.remove(&d, "e").await.unwrap().change).await;
}
