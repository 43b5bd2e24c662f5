//! Identities: what one user may do and another may not.

use super::{BOTH, F, READ, T, WRITE, how, is_one_of, kind, mode, name, user};
use bytes::Bytes;
use dhow_vfs::{Access, Cred, Cx, ErrorKind, IoRef, Make, PageLimit, SetAttr, SetTime, Stability, Time};

const ALICE: u32 = 1001;
const BOB: u32 = 1002;

async fn alices(t: &T, n: &str, bits: u32) -> F {
    let made = t.create_as(&user(ALICE), &t.root, n, bits).await.unwrap();
    // The mode of a create may be subject to a default ACL; that of a SETATTR is not.
    t.b.setattr(&user(ALICE), &made.node.handle, None, &mode(bits)).await.unwrap();
    F { h: made.node.handle, open: made.open }
}

pub(super) async fn mode_bits(t: &T) {
    let f = alices(t, "f", 0o604).await;
    let attr = t.attr(&f.h).await;
    assert_eq!((attr.uid, attr.gid), (ALICE, ALICE), "objects belong to who made them");
    assert!(t.b.open(&user(BOB), &f.h, &how(READ)).await.is_ok());
    assert_eq!(kind(t.b.open(&user(BOB), &f.h, &how(BOTH)).await), ErrorKind::Access);
    let none = IoRef { handle: &f.h, open: None };
    assert!(t.b.read(&user(BOB), none, 0, 1).await.is_ok());
    let w = t.b.write(&user(BOB), none, 0, Bytes::from_static(b"x"), Stability::Unstable).await;
    assert_eq!(kind(w), ErrorKind::Access);

    let dir = t.b.make(&user(ALICE), &t.root, &name("d"), &Make::Directory, &mode(0o700)).await.unwrap().node.handle;
    t.create_as(&user(ALICE), &dir, "inner", 0o666).await.unwrap();
    assert_eq!(kind(t.b.lookup(&user(BOB), &dir, &name("inner")).await), ErrorKind::Access);
    if let Some(fast) = t.b.try_lookup(&user(BOB), &dir, &name("inner")) {
        assert_eq!(kind(fast), ErrorKind::Access, "the fast look-up checks as well");
    }
    assert_eq!(kind(t.create_as(&user(BOB), &dir, "x", 0o644).await), ErrorKind::Access);
    assert_eq!(kind(t.b.remove(&user(BOB), &dir, &name("inner")).await), ErrorKind::Access);
    let limit = PageLimit { entries: 10, name_bytes: 1000, nodes: false };
    assert_eq!(kind(t.b.readdir(&user(BOB), &dir, 0, limit).await), ErrorKind::Access);
    t.b.setattr(&user(ALICE), &dir, None, &mode(0o744)).await.unwrap();
    assert_eq!(t.b.readdir(&user(BOB), &dir, 0, limit).await.unwrap().entries.len(), 1, "r without x lists names");
}

/// Cases B01 and B02: whatever the mode says, with an open and without.
pub(super) async fn the_owner_may_always_read_and_write(t: &T) {
    let f = alices(t, "f", 0o000).await;
    // An open is held to the mode, as on a local filesystem: `echo x >file` of a file of mode 0444 fails.
    for access in [READ, WRITE] {
        assert_eq!(kind(t.b.open(&user(ALICE), &f.h, &how(access)).await), ErrorKind::Access);
    }
    let io = f.io();
    t.b.write(&user(ALICE), io, 0, Bytes::from_static(b"abc"), Stability::Unstable).await.unwrap();
    let none = IoRef { handle: &f.h, open: None };
    assert_eq!(&t.b.read(&user(ALICE), none, 0, 3).await.unwrap().data[..], b"abc");
    t.b.write(&user(ALICE), none, 3, Bytes::from_static(b"d"), Stability::Unstable).await.unwrap();
    let truncate = SetAttr { size: Some(1), ..SetAttr::default() };
    t.b.setattr(&user(ALICE), &f.h, Some(&f.open), &truncate).await.unwrap();
    for access in [READ, WRITE] {
        assert_eq!(kind(t.b.open(&user(BOB), &f.h, &how(access)).await), ErrorKind::Access);
    }
    assert_eq!(kind(t.b.read(&user(BOB), none, 0, 1).await), ErrorKind::Access);
    assert_eq!(kind(t.b.setattr(&user(BOB), &f.h, None, &truncate).await), ErrorKind::Access);
}

/// Case B01: the open of a create writes a file of mode 0444.
pub(super) async fn creates_open_whatever_the_mode_says(t: &T) {
    let f = alices(t, "f", 0o444).await;
    let w = t.b.write(&user(ALICE), f.io(), 0, Bytes::from_static(b"pack"), Stability::Unstable).await.unwrap();
    assert_eq!(w.count, 4);
    assert_eq!(&t.b.read(&user(ALICE), f.io(), 0, 4).await.unwrap().data[..], b"pack");
    t.b.setattr(&user(ALICE), &f.h, None, &mode(0o400)).await.unwrap();
    let again = t.b.open(&user(ALICE), &f.h, &how(READ)).await.unwrap();
    t.b.close(again).await;
    t.b.close(f.open).await;
}

/// Case B37: supplementary groups count, all of them.
pub(super) async fn groups(t: &T) {
    let f = alices(t, "f", 0o060).await;
    t.b.setattr(&Cx::root(), &f.h, None, &SetAttr { gid: Some(7777), ..SetAttr::default() }).await.unwrap();
    let mut cred = Cred::user(BOB, BOB);
    assert_eq!(kind(t.b.open(&Cx::new(cred.clone()), &f.h, &how(BOTH)).await), ErrorKind::Access);
    cred.groups = (5000..5031).collect();
    assert_eq!(kind(t.b.open(&Cx::new(cred.clone()), &f.h, &how(BOTH)).await), ErrorKind::Access);
    cred.groups.push(7777);
    assert!(t.b.open(&Cx::new(cred), &f.h, &how(BOTH)).await.is_ok(), "by the 32nd group");
    assert!(t.b.open(&Cx::new(Cred::user(BOB, 7777)), &f.h, &how(READ)).await.is_ok(), "by the primary group");
    assert_eq!(
        kind(t.b.open(&user(BOB), &f.h, &how(READ)).await),
        ErrorKind::Access,
        "nothing of the last caller stays"
    );
}

pub(super) async fn who_may_set_what(t: &T) {
    let f = alices(t, "f", 0o644).await;
    let set = async |uid: u32, set: SetAttr| t.b.setattr(&user(uid), &f.h, None, &set).await.map(|_| ());
    let owner = |uid| SetAttr { uid: Some(uid), ..SetAttr::default() };
    let group = |gid| SetAttr { gid: Some(gid), ..SetAttr::default() };
    let at = SetAttr { mtime: Some(SetTime::To(Time { secs: 5, nanos: 0 })), ..SetAttr::default() };
    let now = SetAttr { mtime: Some(SetTime::Now), atime: Some(SetTime::Now), ..SetAttr::default() };
    assert_eq!(kind(set(BOB, mode(0o777)).await), ErrorKind::Perm);
    assert_eq!(kind(set(BOB, at.clone()).await), ErrorKind::Perm);
    is_one_of(set(BOB, now.clone()).await, &[ErrorKind::Access, ErrorKind::Perm]);
    assert_eq!(kind(set(ALICE, owner(BOB)).await), ErrorKind::Perm, "giving files away");
    assert_eq!(kind(set(ALICE, group(4242)).await), ErrorKind::Perm, "to a group of others");
    set(ALICE, at).await.unwrap();
    set(ALICE, mode(0o666)).await.unwrap();
    set(BOB, now).await.expect("who may write may set the times to now");
    t.b.setattr(
        &Cx::root(),
        &f.h,
        None,
        &SetAttr { uid: Some(BOB), gid: Some(9), mode: Some(0o600), ..SetAttr::default() },
    )
    .await
    .unwrap();
    let attr = t.attr(&f.h).await;
    assert_eq!((attr.uid, attr.gid, attr.mode), (BOB, 9, 0o600));
}

pub(super) async fn sticky_directories(t: &T) {
    let d = t.mkdir(&t.root, "tmp").await;
    t.b.setattr(&Cx::root(), &d, None, &mode(0o1777)).await.unwrap();
    t.create_as(&user(ALICE), &d, "a", 0o666).await.unwrap();
    is_one_of(t.b.remove(&user(BOB), &d, &name("a")).await, &[ErrorKind::Perm, ErrorKind::Access]);
    let stolen = t.b.rename(&user(BOB), &d, &name("a"), &d, &name("b")).await;
    is_one_of(stolen, &[ErrorKind::Perm, ErrorKind::Access]);
    t.create_as(&user(BOB), &d, "mine", 0o666).await.unwrap();
    let over = t.b.rename(&user(BOB), &d, &name("mine"), &d, &name("a")).await;
    is_one_of(over, &[ErrorKind::Perm, ErrorKind::Access]);
    t.b.remove(&user(ALICE), &d, &name("a")).await.unwrap();
}

pub(super) async fn set_id_bits(t: &T) {
    let f = alices(t, "f", 0o4777).await;
    assert_eq!(t.attr(&f.h).await.mode, 0o4777);
    let open = t.b.open(&user(BOB), &f.h, &how(WRITE)).await.unwrap();
    let io = IoRef { handle: &f.h, open: Some(&open) };
    t.b.write(&user(BOB), io, 0, Bytes::from_static(b"x"), Stability::Unstable).await.unwrap();
    assert_eq!(t.attr(&f.h).await.mode, 0o777, "gone with another user's write");
    // Owner, then mode: the bits of the same call stay.
    let set = SetAttr { uid: Some(BOB), mode: Some(0o4755), ..SetAttr::default() };
    t.b.setattr(&Cx::root(), &f.h, None, &set).await.unwrap();
    assert_eq!(t.attr(&f.h).await.mode, 0o4755);
    // A set-group-id directory hands its group down.
    let d = t.mkdir(&t.root, "d").await;
    t.b.setattr(&Cx::root(), &d, None, &SetAttr { gid: Some(500), ..SetAttr::default() }).await.unwrap();
    t.b.setattr(&Cx::root(), &d, None, &mode(0o2777)).await.unwrap();
    let made = t.create_as(&user(ALICE), &d, "g", 0o644).await.unwrap();
    assert_eq!(t.attr(&made.node.handle).await.gid, 500);
    let sub = t.b.make(&user(ALICE), &d, &name("sub"), &Make::Directory, &mode(0o755)).await.unwrap();
    let attr = t.attr(&sub.node.handle).await;
    assert_eq!((attr.gid, attr.mode & 0o2000), (500, 0o2000));
}

/// RFC 8881 18.1: what ACCESS says is what the calls do.
pub(super) async fn access_answers(t: &T) {
    const ALL: u32 = 0x3f;
    let ask = async |uid: u32, h, want| t.b.access(&user(uid), h, Access(want)).await.unwrap().0;
    let f = alices(t, "f", 0o754).await;
    let (r, w, x) = (Access::READ, Access::MODIFY | Access::EXTEND, Access::EXECUTE);
    assert_eq!(ask(ALICE, &f.h, ALL).await, r | w | x);
    assert_eq!(ask(BOB, &f.h, ALL).await, r);
    assert_eq!(ask(ALICE, &f.h, w).await, w, "only what was asked for");
    let d = t.b.make(&user(ALICE), &t.root, &name("d"), &Make::Directory, &mode(0o755)).await.unwrap().node.handle;
    assert_eq!(ask(ALICE, &d, ALL).await & !x, r | w | Access::LOOKUP | Access::DELETE);
    assert_eq!(ask(BOB, &d, ALL).await & !x, r | Access::LOOKUP);
}
