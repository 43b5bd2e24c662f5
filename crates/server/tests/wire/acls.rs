//! Access control lists (RFC 8881 6) over a directory of this machine, enforced by its kernel.

use crate::common::Srv;
use crate::tree::Tree;
use dhow_proto::v4::attr::*;
use dhow_proto::v4::ops::{CreateType, OpenClaim, OpenHow, SetattrArgs, share};
use dhow_proto::v4::{Ace, ArgOp, Attrs, Bitmap, Fattr, FileHandle, ModeMasked, ModeUmask, ResOp, Stateid, Status};
use dhow_sys::xattr::{self, SetMode};
use dhow_testkit::wire::{Client, op, sys};
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const ALLOW: u32 = 0;
const DENY: u32 = 1;
const R: u32 = 0x1;
const W: u32 = 0x2 | 0x4;
const X: u32 = 0x20;
const RWX: u32 = R | W | X;
const GROUP_FLAG: u32 = 0x40;
const INHERIT: u32 = 0x3;
const INHERIT_ONLY: u32 = 0x8;
/// READ and EXECUTE, MODIFY and EXTEND of ACCESS.
const CAN_READ: u32 = 0x01;
const CAN_WRITE: u32 = 0x0c;

fn ace(ace_type: u32, flags: u32, mask: u32, who: &str) -> Ace {
    Ace { ace_type, flags, mask, who: bytes::Bytes::copy_from_slice(who.as_bytes()) }
}

/// A tree on a filesystem that keeps lists, served as root; `None` where there is no such thing.
async fn serve() -> Option<Tree> {
    let t = Tree::with(&std::env::temp_dir(), |_| {}, |_| {}).await;
    let mut c = t.srv.client("probe").await;
    let root = c.walk("").await;
    let fine = c.attrs(&root, &[SUPPORTED_ATTRS]).await.supported_attrs.unwrap().contains(ACL);
    if !fine || !dhow_sys::cred::can_switch_identity() {
        println!("skipped: no access control lists here, or no privilege");
        return None;
    }
    Some(t)
}

async fn set(c: &mut Client, fh: &FileHandle, attrs: Attrs) -> (Status, Bitmap) {
    let args = SetattrArgs { stateid: Stateid::ANONYMOUS, attrs: Fattr::from(attrs) };
    match c.run(&[op::put(fh), ArgOp::Setattr(args)]).await.results.pop() {
        Some(ResOp::Setattr(res)) => (res.status, res.attrsset),
        other => panic!("{other:?}"),
    }
}

fn list(acl: Vec<Ace>) -> Attrs {
    Attrs { acl: Some(acl), ..Attrs::default() }
}

/// Who, kind and the rights that POSIX knows, in order.
async fn shown(c: &mut Client, fh: &FileHandle) -> Vec<(String, u32, u32, u32)> {
    let acl = c.attrs(fh, &[ACL]).await.acl.unwrap();
    acl.iter().map(|a| (String::from_utf8(a.who.to_vec()).unwrap(), a.ace_type, a.flags, a.mask & RWX)).collect()
}

async fn access(c: &mut Client, fh: &FileHandle, uid: u32, gids: &[u32]) -> u32 {
    let before = std::mem::replace(&mut c.wire.cred, sys(uid, gids[0], &gids[1..]));
    let res = c.ok(&[op::put(fh), op::access(CAN_READ | CAN_WRITE)]).await.pop();
    c.wire.cred = before;
    match res {
        Some(ResOp::Access(Ok(ok))) => ok.access,
        other => panic!("{other:?}"),
    }
}

fn posix(path: &Path, name: &[u8]) -> dhow_sys::Result<Vec<u8>> {
    xattr::get(File::open(path).unwrap(), name)
}

/// A list that a local program set is shown, and honoured in ACCESS and OPEN; what it says is what the kernel does.
#[tokio::test]
async fn local_lists_are_shown_and_honoured() {
    let Some(t) = serve().await else { return };
    let mut c = t.srv.client_as("c", 1000, 1000, &[]).await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    c.close(&f).await;
    let path = t.path("export/f");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
    assert_eq!(
        shown(&mut c, &f.fh).await,
        [("OWNER@".into(), ALLOW, 0, R | W), ("GROUP@".into(), ALLOW, 0, R), ("EVERYONE@".into(), ALLOW, 0, 0)],
        "6.4.2: without a list, one that says what the mode says"
    );
    // user::rw- user:1001:rw- group::r-- group:2000:r-- mask::rw- other::---
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in
        [(1u16, 6u16, u32::MAX), (2, 6, 1001), (4, 4, u32::MAX), (8, 4, 2000), (0x10, 6, u32::MAX), (0x20, 0, u32::MAX)]
    {
        value.extend(tag.to_le_bytes());
        value.extend(perm.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    let file = File::open(&path).unwrap();
    xattr::set(&file, b"system.posix_acl_access", &value, SetMode::Either).unwrap();
    assert_eq!(
        shown(&mut c, &f.fh).await,
        [
            ("OWNER@".into(), ALLOW, 0, R | W),
            ("1001".into(), ALLOW, 0, R | W),
            ("GROUP@".into(), ALLOW, 0, R),
            ("2000".into(), ALLOW, GROUP_FLAG, R),
            ("EVERYONE@".into(), ALLOW, 0, 0)
        ]
    );
    assert_eq!(access(&mut c, &f.fh, 1000, &[1]).await, CAN_READ | CAN_WRITE, "the owner");
    assert_eq!(access(&mut c, &f.fh, 1001, &[1]).await, CAN_READ | CAN_WRITE, "a user who is named");
    assert_eq!(access(&mut c, &f.fh, 1002, &[1000]).await, CAN_READ, "the owning group");
    assert_eq!(access(&mut c, &f.fh, 1002, &[1, 2000]).await, CAN_READ, "a group that is named");
    assert_eq!(access(&mut c, &f.fh, 1002, &[1]).await, 0, "everybody else");
    let open = |c: &mut Client, access| {
        let owner = c.owner("o");
        op::open(owner, access, share::DENY_NONE, OpenHow::NoCreate, OpenClaim::Fh)
    };
    c.wire.cred = sys(1002, 2000, &[]);
    let ops = [op::put(&f.fh), open(&mut c, share::ACCESS_WRITE)];
    assert_eq!(c.status(&ops).await, Status::ACCESS);
    c.wire.cred = sys(1001, 1, &[]);
    let ops = [op::put(&f.fh), open(&mut c, share::ACCESS_BOTH)];
    assert_eq!(c.status(&ops).await, Status::OK);
}

/// Set by a client: stored as the kernel's list, the mode follows (6.4.1.2), and chmod sets the mask (6.4.1.1).
#[tokio::test]
async fn set_by_a_client() {
    let Some(t) = serve().await else { return };
    let mut c = t.srv.client_as("c", 1000, 1000, &[]).await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    assert_eq!(c.attrs(&f.fh, &[ACLSUPPORT]).await.aclsupport, Some(3), "ALLOW and DENY (6.2.1.2)");
    c.ok(&[op::put(&f.fh), op::setattr(Attrs { mode: Some(0o4750), ..Attrs::default() })]).await;
    let before = c.attrs(&f.fh, &[CHANGE, TIME_METADATA]).await;
    // As nfs4_setfacl -a does it: one entry put in front of those that are there.
    let mut acl = c.attrs(&f.fh, &[ACL]).await.acl.unwrap();
    acl.insert(0, ace(ALLOW, 0, R | W, "1001"));
    assert_eq!(set(&mut c, &f.fh, list(acl)).await, (Status::OK, Bitmap::of(&[ACL])), "attrset is exact (case B40)");
    let after = c.attrs(&f.fh, &[CHANGE, MODE]).await;
    assert_ne!(before.change, after.change);
    assert_eq!(after.mode, Some(0o4770), "high bits stay; the group's bits are the mask");
    assert_eq!(access(&mut c, &f.fh, 1001, &[1]).await, CAN_READ | CAN_WRITE);
    assert!(posix(&t.path("export/f"), b"system.posix_acl_access").is_ok());
    // chmod g-w takes writing from everybody who is named.
    c.ok(&[op::put(&f.fh), op::setattr(Attrs { mode: Some(0o750), ..Attrs::default() })]).await;
    assert_eq!(access(&mut c, &f.fh, 1001, &[1]).await, CAN_READ);
    let entry = shown(&mut c, &f.fh).await.into_iter().find(|e| e.0 == "1001" && e.1 == ALLOW).unwrap();
    assert_eq!(entry.3, R);
    // Mode and list in one call: the mode first (6.4.1.3).
    let both =
        Attrs { mode: Some(0o1777), ..list(vec![ace(ALLOW, 0, R | W, "OWNER@"), ace(ALLOW, 0, R, "EVERYONE@")]) };
    assert_eq!(set(&mut c, &f.fh, both).await.0, Status::OK);
    assert_eq!(c.attrs(&f.fh, &[MODE]).await.mode, Some(0o1644));
    assert!(posix(&t.path("export/f"), b"system.posix_acl_access").is_err(), "no more than a mode: no list");
    // Nobody but the owner.
    c.wire.cred = sys(1001, 1001, &[]);
    let (status, done) = set(&mut c, &f.fh, list(vec![ace(ALLOW, 0, R, "EVERYONE@")])).await;
    assert_eq!((status, done), (Status::PERM, Bitmap::EMPTY));
    // The lists are no extended attributes of users (RFC 8276 4.2): neither listed nor to be had.
    let list = ArgOp::Listxattrs(dhow_proto::v4::ops::ListxattrsArgs { cookie: 0, maxcount: 4096 });
    match c.ok(&[op::put(&f.fh), list]).await.pop() {
        Some(ResOp::Listxattrs(Ok(ok))) => assert!(ok.names.0.is_empty(), "{:?}", ok.names),
        other => panic!("{other:?}"),
    }
}

/// What cannot be kept, or makes no sense, is refused and changes nothing (6.2.1.2, 6.2.1.4.1, 5.9).
#[tokio::test]
async fn refusals() {
    let Some(t) = serve().await else { return };
    let mut c = t.srv.client_as("c", 1000, 1000, &[]).await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    let d = c.mkdir(&root, "d").await;
    let cases: [(&str, Ace, Status); 12] = [
        ("audit", ace(2, 0x10, R, "EVERYONE@"), Status::ATTRNOTSUPP),
        ("alarm", ace(3, 0x20, R, "EVERYONE@"), Status::ATTRNOTSUPP),
        ("no type", ace(9, 0, R, "EVERYONE@"), Status::ATTRNOTSUPP),
        ("a mask that nobody knows", ace(ALLOW, 0, 0x8000_0000, "EVERYONE@"), Status::INVAL),
        ("a flag that nobody knows", ace(ALLOW, 0x100, R, "EVERYONE@"), Status::INVAL),
        ("half an inheritance", ace(ALLOW, 0x1, R, "EVERYONE@"), Status::ATTRNOTSUPP),
        ("inherit-only without inheritance", ace(ALLOW, INHERIT_ONLY, R, "EVERYONE@"), Status::ATTRNOTSUPP),
        ("one generation", ace(ALLOW, INHERIT | 0x4, R, "EVERYONE@"), Status::ATTRNOTSUPP),
        ("special names without a meaning", ace(ALLOW, 0, R, "INTERACTIVE@"), Status::ATTRNOTSUPP),
        ("an unknown name", ace(ALLOW, 0, R, "who@nowhere.invalid"), Status::BADOWNER),
        ("no name", ace(ALLOW, 0, R, ""), Status::BADOWNER),
        ("hiding attributes", ace(DENY, 0, 0x80, "EVERYONE@"), Status::ATTRNOTSUPP),
    ];
    for (what, entry, due) in cases {
        for fh in [&f.fh, &d] {
            let before = c.attrs(fh, &[CHANGE, ACL]).await;
            assert_eq!(set(&mut c, fh, list(vec![entry.clone()])).await, (due, Bitmap::EMPTY), "{what}");
            assert_eq!(c.attrs(fh, &[CHANGE, ACL]).await, before, "{what}");
        }
    }
    let inherited = list(vec![ace(ALLOW, INHERIT, R, "EVERYONE@")]);
    assert_eq!(set(&mut c, &f.fh, inherited).await.0, Status::ATTRNOTSUPP, "a file gives nothing on");
    // dacl and sacl are not offered (5.8, 6.2.2, 6.2.3): asking is no error, setting is.
    let all = c.attrs(&f.fh, &[SUPPORTED_ATTRS]).await.supported_attrs.unwrap();
    assert!(!all.contains(DACL) && !all.contains(SACL));
    assert_eq!(c.attrs(&f.fh, &[DACL, SACL, TYPE]).await.mask(), Bitmap::of(&[TYPE]));
    for n in [DACL, SACL] {
        let raw = Fattr { mask: Bitmap::of(&[n]), values: vec![0; 8].into() };
        let args = SetattrArgs { stateid: Stateid::ANONYMOUS, attrs: raw };
        assert_eq!(c.status(&[op::put(&f.fh), ArgOp::Setattr(args)]).await, Status::ATTRNOTSUPP);
    }
    // Nor is anything else that SETATTR could set (5.5, table 5; security labels: RFC 7862 12.2.4) and this server does
    // not offer, whatever the value.
    let root = c.walk("").await;
    let missing = SETTABLE.minus(&all);
    assert!([SEC_LABEL, RETENTION_SET, MIMETYPE].into_iter().all(|n| missing.contains(n)));
    for n in missing.iter() {
        for (values, fh) in [(0, &f.fh), (8, &f.fh), (64, &root)] {
            let raw = Fattr { mask: Bitmap::of(&[n]), values: vec![0; values].into() };
            let args = SetattrArgs { stateid: Stateid::ANONYMOUS, attrs: raw };
            let got = c.status(&[op::put(fh), ArgOp::Setattr(args)]).await;
            assert_eq!(got, Status::ATTRNOTSUPP, "{n} {:?} with {values} bytes", dhow_proto::v4::attr::name(n));
        }
    }
}

/// Default lists: new objects inherit them, and then the client's umask does not count (RFC 8275 5); where there is none
/// it does. A list in the create itself takes the place of the inherited one (6.4.3).
#[tokio::test]
async fn inheritance_and_umask() {
    let Some(t) = serve().await else { return };
    let mut c = t.srv.client_as("c", 1000, 1000, &[]).await;
    let root = c.walk("").await;
    let (plain, giving) = (c.mkdir(&root, "plain").await, c.mkdir(&root, "giving").await);
    let own = |flags| {
        vec![
            ace(ALLOW, flags, RWX, "OWNER@"),
            ace(ALLOW, flags, RWX, "1001"),
            ace(ALLOW, flags, RWX, "GROUP@"),
            ace(ALLOW, flags, 0, "EVERYONE@"),
        ]
    };
    assert_eq!(set(&mut c, &giving, list(own(INHERIT))).await.0, Status::OK);
    let default = posix(&t.path("export/giving"), b"system.posix_acl_default").unwrap();
    assert_eq!(default.len(), 4 + 5 * 8);
    assert!(shown(&mut c, &giving).await.iter().any(|e| e.0 == "1001" && e.2 == INHERIT | INHERIT_ONLY));
    let create = |name: &str, attrs: Attrs| op::create(CreateType::Dir, name, attrs);
    let umask = |mode| Attrs { mode_umask: Some(ModeUmask { mode, umask: 0o077 }), ..Attrs::default() };
    for (dir, mode) in [(&plain, 0o700), (&giving, 0o770)] {
        c.ok(&[op::put(dir), create("sub", umask(0o777))]).await;
        let sub = c.walk(if dir == &plain { "plain/sub" } else { "giving/sub" }).await;
        assert_eq!(c.attrs(&sub, &[MODE]).await.mode, Some(mode));
        assert_eq!(shown(&mut c, &sub).await.iter().any(|e| e.0 == "1001" && e.2 & INHERIT_ONLY != 0), dir == &giving);
        let owner = c.owner("o");
        let how = OpenHow::Create(dhow_proto::v4::ops::CreateHow::Guarded(umask(0o666).into()));
        let open = op::open(owner, share::ACCESS_BOTH, share::DENY_NONE, how, OpenClaim::Null("f".into()));
        let f = c.open(dir, open).await;
        assert_eq!(c.attrs(&f.fh, &[MODE]).await.mode, Some(mode & 0o666));
        let reach = access(&mut c, &f.fh, 1001, &[1]).await;
        assert_eq!(reach, if dir == &giving { CAN_READ | CAN_WRITE } else { 0 });
        c.close(&f).await;
    }
    let attrs = list(vec![ace(ALLOW, 0, RWX, "OWNER@"), ace(ALLOW, 0, R | X, "2002")]);
    c.ok(&[op::put(&giving), create("own", attrs)]).await;
    let own = c.walk("giving/own").await;
    let names: Vec<String> = shown(&mut c, &own).await.into_iter().map(|e| e.0).collect();
    assert!(names.contains(&"2002".to_owned()) && !names.contains(&"1001".to_owned()), "{names:?}");
    // mode_set_masked is for SETATTR alone (6.2.5), mode_umask for creates alone (RFC 8275 4.2).
    let masked = Attrs { mode_set_masked: Some(ModeMasked { value: 0, mask: 7 }), ..Attrs::default() };
    assert_eq!(c.status(&[op::put(&plain), create("no", masked)]).await, Status::INVAL);
    assert_eq!(set(&mut c, &plain, umask(0o700)).await.0, Status::INVAL);
    // Bits that a mode has not (6.2.4).
    let odd = Attrs { mode: Some(0o4_0755), ..Attrs::default() };
    assert_eq!(set(&mut c, &plain, odd).await.0, Status::INVAL);
}

/// RFC 8881 5.8.1.14, 18.16.3: where lists are kept an exclusive create takes one, applies it and says so; its retry finds
/// the file as it is.
#[tokio::test]
async fn with_an_exclusive_create() {
    use dhow_proto::v4::Verifier;
    use dhow_proto::v4::ops::CreateHow;
    let Some(t) = serve().await else { return };
    let mut c = t.srv.client_as("c", 1000, 1000, &[]).await;
    let root = c.walk("").await;
    let takes = c.attrs(&root, &[SUPPATTR_EXCLCREAT]).await.suppattr_exclcreat.unwrap();
    assert!(takes.contains(ACL) && takes.contains(MODE_UMASK) && !takes.contains(MODE_SET_MASKED));
    let attrs = list(vec![ace(ALLOW, 0, R | W, "OWNER@"), ace(ALLOW, 0, R, "1001"), ace(ALLOW, 0, 0, "EVERYONE@")]);
    for round in 0..2 {
        let how = CreateHow::Exclusive41 { verifier: Verifier(*b"one list"), attrs: (&attrs).into() };
        let claim = OpenClaim::Null("f".into());
        let open = op::open(c.owner("o"), share::ACCESS_BOTH, share::DENY_NONE, OpenHow::Create(how), claim);
        match c.ok(&[op::put(&root), open]).await.pop() {
            Some(ResOp::Open(Ok(ok))) => assert_eq!(ok.attrset, Bitmap::of(&[ACL]), "round {round}"),
            other => panic!("{other:?}"),
        }
        let f = c.walk("f").await;
        assert_eq!(access(&mut c, &f, 1001, &[1]).await, CAN_READ);
        assert_eq!(access(&mut c, &f, 1002, &[1]).await, 0);
    }
}

/// READDIR and VERIFY know the attribute too.
#[tokio::test]
async fn in_listings_and_verify() {
    let Some(t) = serve().await else { return };
    let mut c = t.srv.client_as("c", 1000, 1000, &[]).await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    let acl = c.attrs(&f.fh, &[ACL]).await;
    let verify = |attrs: &Attrs| ArgOp::Verify(dhow_proto::v4::ops::VerifyArgs { attrs: attrs.into() });
    assert_eq!(c.status(&[op::put(&f.fh), verify(&acl)]).await, Status::OK);
    assert_eq!(c.status(&[op::put(&f.fh), verify(&list(vec![]))]).await, Status::NOT_SAME);
    let res = c.ok(&[op::put(&root), op::readdir(0, Default::default(), 8192, &[ACL, TYPE])]).await.pop();
    let Some(ResOp::Readdir(Ok(page))) = res else { panic!("{res:?}") };
    let entry = page.entries.iter().find(|e| e.name == "f").unwrap();
    assert_eq!(entry.attrs.acl, acl.acl);
}

/// A filesystem without lists does not advertise them.
#[tokio::test]
async fn where_there_are_none() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let a = c.attrs(&root, &[SUPPORTED_ATTRS, ACLSUPPORT, ACL]).await;
    assert!(!a.supported_attrs.unwrap().contains(ACL));
    assert_eq!((a.aclsupport, a.acl), (Some(0), None));
    assert_eq!(set(&mut c, &root, list(vec![])).await.0, Status::ATTRNOTSUPP);
}
