//! Filehandles, the way through the namespace (RFC 8881 4, 7, 18.16, 18.20 to 18.23).

use crate::common::{Srv, config, identity, last, open_to_all, start};
use dhow_proto::v4::attr::{FILEID, FSID, MOUNTED_ON_FILEID, TYPE};
use dhow_proto::v4::ops::{CreateHow, OpenClaim, OpenHow, share};
use dhow_proto::v4::{ArgOp, FileHandle, FileType, OpNum, PROC_COMPOUND, ResOp, Status, VERSION};
use dhow_server::{ExportConfig, ExportOptions, NetMatch};
use dhow_testkit::MemFs;
use dhow_testkit::memfs::Options;
use dhow_testkit::wire::{Client, ClientOptions, op, sys};
use dhow_xdr::{Encode, Writer};
use std::sync::Arc;

fn fh(bytes: &[u8]) -> FileHandle {
    FileHandle(bytes.to_vec().into())
}

/// Case B21: handles of any length but the right one.
#[tokio::test]
async fn lengths() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    for len in [0, 1, 3, 4, 10, 15, 16, 32, 64, 65, 127, 128] {
        for byte in [0, 1, 0xff] {
            let res = c.run(&[op::put(&fh(&vec![byte; len]))]).await;
            assert_eq!(last(&res), (OpNum::PUTFH, Status::BADHANDLE), "{len} bytes of {byte:#x}");
        }
    }
    for len in [129_u32, 132, 200, 1 << 20] {
        let mut w = Writer::new();
        w.opaque(b"");
        w.u32(2);
        w.u32(2);
        ArgOp::Sequence(c.session.sequence(0, false)).encode(&mut w);
        w.u32(OpNum::PUTFH.0);
        w.opaque(&vec![1; len as usize]);
        let args = w.into_bytes();
        let xid = c.wire.send_call(dhow_proto::NFS_PROGRAM, VERSION, PROC_COMPOUND, &args).await;
        let res = c.wire.compound_reply(2, xid).await;
        assert_eq!(last(&res), (OpNum::PUTFH, Status::BADXDR), "NFS4_FHSIZE is 128");
    }
}

/// Case B21: a handle that was changed, cut, or made by another server.
#[tokio::test]
async fn forged() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    c.ok(&[op::root(), op::mkdir("d")]).await;
    let good = c.walk("d").await;
    assert!(good.0.len() <= 128);
    for bit in 0..good.0.len() * 8 {
        let mut bytes = good.0.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(c.status(&[op::put(&fh(&bytes))]).await, Status::BADHANDLE, "bit {bit}");
    }
    for len in 0..good.0.len() {
        assert_eq!(c.status(&[op::put(&fh(&good.0[..len]))]).await, Status::BADHANDLE);
    }
    let mut longer = good.0.to_vec();
    longer.push(0);
    assert_eq!(c.status(&[op::put(&fh(&longer))]).await, Status::BADHANDLE);
    let other = Srv::start().await;
    let mut d = other.client("c").await;
    d.ok(&[op::root(), op::mkdir("d")]).await;
    assert_eq!(d.status(&[op::put(&good)]).await, Status::BADHANDLE, "another key");
    c.ok(&[op::put(&good), op::getattr(&[TYPE])]).await;
}

/// Handles of backends that use every byte they may (case B47).
#[tokio::test]
async fn long_handles() {
    let srv = Srv::with(Options { handle_len: 104, ..Options::default() }, |_| {}).await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    assert!(f.fh.0.len() > 104 && f.fh.0.len() <= 128);
    c.write(&f, 0, b"x").await;
    c.close(&f).await;
}

/// RFC 8881 15.1.2.7: what is gone is STALE, and stays so.
#[tokio::test]
async fn stale() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    c.ok(&[op::root(), op::mkdir("d")]).await;
    let d = c.walk("d").await;
    c.ok(&[op::root(), op::remove("d"), op::mkdir("d")]).await;
    for ops in [
        vec![op::put(&d), op::getattr(&[TYPE])],
        vec![op::put(&d), op::lookup("x")],
        vec![op::put(&d), op::mkdir("x")],
        vec![op::put(&d), op::readdir(0, Default::default(), 4096, &[])],
        vec![op::put(&d), ArgOp::Lookupp],
    ] {
        assert_eq!(c.status(&ops).await, Status::STALE, "{:?}", ops.last());
    }
    assert_ne!(c.walk("d").await, d);
}

/// Case B07: a handle names the object, not the path.
#[tokio::test]
async fn handles_survive_renames() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    c.ok(&[op::root(), op::mkdir("a")]).await;
    let a = c.walk("a").await;
    let f = c.create(&a, "f").await;
    c.write(&f, 0, b"data").await;
    c.ok(&[op::root(), ArgOp::SaveFh, op::rename("a", "b")]).await;
    c.mkdir(&a, "inner").await;
    assert_eq!(c.read(&f, 0, 10).await.0, "data");
    assert_eq!(c.walk("b").await, a);
    assert_eq!(c.walk("b/f").await, f.fh);
}

fn export(path: &str, fs: &Arc<MemFs>) -> ExportConfig {
    ExportConfig { path: path.into(), backend: fs.clone(), options: open_to_all() }
}

/// Case B06: a restarted server knows its handles, whatever the order of its exports; one whose export is gone says
/// STALE.
#[tokio::test]
async fn handles_survive_restarts() {
    let fs = MemFs::new();
    let second = MemFs::with(Options { id: 2, ..Options::default() });
    let identity = identity();
    let with = |exports| {
        let mut config = config(exports);
        config.identity = dhow_server::Identity { instance: config.identity.instance, ..identity.clone() };
        config
    };
    let (running, addr) = start(with(vec![export("/x", &fs), export("/y", &second)])).await;
    let mut c = Client::connect(addr, ClientOptions::default()).await;
    let x = c.walk("x").await;
    c.mkdir(&x, "d").await;
    let (d, y) = (c.walk("x/d").await, c.walk("y").await);
    running.shutdown().await;

    let (running, addr) = start(with(vec![export("/y", &second), export("/x", &fs)])).await;
    let mut c = Client::connect(addr, ClientOptions::default()).await;
    c.ok(&[op::put(&d), op::mkdir("after")]).await;
    assert_eq!((c.walk("x/d").await, c.walk("y").await), (d.clone(), y.clone()));
    running.shutdown().await;

    let (_running, addr) = start(with(vec![export("/x", &fs)])).await;
    let mut c = Client::connect(addr, ClientOptions::default()).await;
    c.ok(&[op::put(&d), op::getattr(&[TYPE])]).await;
    assert_eq!(c.status(&[op::put(&y), op::getattr(&[TYPE])]).await, Status::STALE);
}

async fn attrs_of(c: &mut Client, path: &str) -> dhow_proto::v4::Attrs {
    let fh = c.walk(path).await;
    c.attrs(&fh, &[TYPE, FSID, FILEID, MOUNTED_ON_FILEID]).await
}

async fn names(c: &mut Client, path: &str) -> Vec<String> {
    let fh = c.walk(path).await;
    match c
        .ok(&[op::put(&fh), op::readdir(0, Default::default(), 8192, &[FILEID, MOUNTED_ON_FILEID, FSID])])
        .await
        .pop()
    {
        Some(ResOp::Readdir(Ok(ok))) => {
            assert!(ok.eof);
            ok.entries.iter().map(|e| String::from_utf8(e.name.to_vec()).unwrap()).collect()
        }
        other => panic!("{other:?}"),
    }
}

/// RFC 8881 7.3 to 7.8: the pseudo-root leads to every export; each is a filesystem of its own.
#[tokio::test]
async fn pseudo_root() {
    let (one, two) = (MemFs::new(), MemFs::with(Options { id: 2, ..Options::default() }));
    let (_running, addr) =
        start(config(vec![export("/a/one", &one), export("/a/b/two", &two), export("/one2", &one)])).await;
    let mut c = Client::connect(addr, ClientOptions::default()).await;
    let mut top = names(&mut c, "").await;
    top.sort();
    assert_eq!(top, ["a", "one2"]);
    let mut below = names(&mut c, "a").await;
    below.sort();
    assert_eq!(below, ["b", "one"]);
    let (root, pseudo, in_one, in_two, again) = (
        attrs_of(&mut c, "").await,
        attrs_of(&mut c, "a/b").await,
        attrs_of(&mut c, "a/one").await,
        attrs_of(&mut c, "a/b/two").await,
        attrs_of(&mut c, "one2").await,
    );
    assert_eq!(root.fsid, pseudo.fsid, "the pseudo-root is one filesystem");
    assert_ne!(root.fsid, in_one.fsid);
    assert_ne!(in_one.fsid, in_two.fsid);
    assert_ne!(in_one.fsid, again.fsid, "two exports are two filesystems to a client");
    assert_ne!(in_one.mounted_on_fileid, in_one.fileid, "the root of an export is mounted on a directory (5.8.2.19)");
    assert_eq!(pseudo.mounted_on_fileid, pseudo.fileid);
    // Nothing is changed there.
    for change in [op::mkdir("x"), op::remove("a")] {
        assert_eq!(c.status(&[op::root(), change]).await, Status::ROFS);
    }
    assert_eq!(c.status(&[op::root(), op::lookup("none")]).await, Status::NOENT);
    assert_eq!(c.status(&[op::root(), op::lookup("a"), op::lookup("none")]).await, Status::NOENT);
}

/// RFC 8881 18.14: LOOKUPP, out of an export and up to the top.
#[tokio::test]
async fn walking_up() {
    let fs = MemFs::new();
    let (_running, addr) = start(config(vec![export("/a/one", &fs)])).await;
    let mut c = Client::connect(addr, ClientOptions::default()).await;
    let one = c.walk("a/one").await;
    let d = c.mkdir(&one, "d").await;
    let up =
        async |c: &mut Client, from: &FileHandle| match c.ok(&[op::put(from), ArgOp::Lookupp, op::getfh()]).await.pop()
        {
            Some(ResOp::GetFh(Ok(ok))) => ok.object,
            other => panic!("{other:?}"),
        };
    assert_eq!(up(&mut c, &d).await, one);
    let a = up(&mut c, &one).await;
    assert_eq!(a, c.walk("a").await);
    let root = up(&mut c, &a).await;
    assert_eq!(root, c.walk("").await);
    assert_eq!(c.status(&[op::put(&root), ArgOp::Lookupp]).await, Status::NOENT);
    let f = c.create(&one, "f").await;
    assert_eq!(c.status(&[op::put(&f.fh), ArgOp::Lookupp]).await, Status::NOTDIR);
}

/// RFC 8881 18.9, 18.26: links and renames stay within one filesystem.
#[tokio::test]
async fn between_filesystems() {
    let (one, two) = (MemFs::new(), MemFs::with(Options { id: 2, ..Options::default() }));
    let (_running, addr) = start(config(vec![export("/one", &one), export("/two", &two)])).await;
    let mut c = Client::connect(addr, ClientOptions::default()).await;
    let (a, b) = (c.walk("one").await, c.walk("two").await);
    let f = c.create(&a, "f").await;
    assert_eq!(c.status(&[op::put(&a), ArgOp::SaveFh, op::put(&b), op::rename("f", "f")]).await, Status::XDEV);
    assert_eq!(c.status(&[op::put(&f.fh), ArgOp::SaveFh, op::put(&b), op::link("f")]).await, Status::XDEV);
}

/// Export options: read-only, and networks that are let in.
#[tokio::test]
async fn closed_and_read_only_exports() {
    let fs = MemFs::new();
    let read_only = ExportOptions { read_only: true, ..open_to_all() };
    let far: NetMatch = "192.0.2.0/24".parse().unwrap();
    let near: NetMatch = "127.0.0.0/8".parse().unwrap();
    let exports = vec![
        export("/rw", &fs),
        ExportConfig { path: "/ro".into(), backend: fs.clone(), options: read_only },
        ExportConfig {
            path: "/far".into(),
            backend: fs.clone(),
            options: ExportOptions { clients: vec![far], ..open_to_all() },
        },
        ExportConfig {
            path: "/near".into(),
            backend: fs.clone(),
            options: ExportOptions { clients: vec![far, near], ..open_to_all() },
        },
    ];
    let (_running, addr) = start(config(exports)).await;
    let mut c = Client::connect(addr, ClientOptions::default()).await;
    let rw = c.walk("rw").await;
    let f = c.create(&rw, "f").await;
    c.write(&f, 0, b"abc").await;
    let ro = c.walk("ro").await;
    let rof = c.walk("ro/f").await;
    let owner = c.owner("o");
    use dhow_proto::v4::{Attrs, StableHow, Stateid};
    for ops in [
        vec![op::put(&ro), op::mkdir("x")],
        vec![op::put(&ro), op::remove("f")],
        vec![op::put(&ro), op::open_create(owner.clone(), 3, 0, "new", 0o644)],
        vec![op::put(&ro), op::open_name(owner.clone(), 2, 0, "f")],
        vec![op::put(&rof), op::setattr(Attrs { mode: Some(0), ..Attrs::default() })],
        vec![op::put(&rof), op::write(Stateid::ANONYMOUS, 0, StableHow::UNSTABLE, b"x")],
        vec![op::put(&ro), ArgOp::SaveFh, op::rename("f", "g")],
        vec![op::put(&rof), ArgOp::SaveFh, op::put(&ro), op::link("g")],
    ] {
        let status = c.status(&ops).await;
        assert_eq!(status, Status::ROFS, "{:?}", ops.last());
    }
    let open = c.open(&ro, op::open_name(owner, 1, 0, "f")).await;
    assert_eq!(c.read(&open, 0, 10).await.0, "abc");
    let granted = match c.ok(&[op::put(&ro), op::access(0x3f)]).await.pop() {
        Some(ResOp::Access(Ok(ok))) => ok.access,
        other => panic!("{other:?}"),
    };
    assert_eq!(granted & 0x1c, 0, "no right to change anything");

    c.walk("near").await;
    assert!(matches!(c.status(&[op::root(), op::lookup("far")]).await, Status::ACCESS | Status::NOENT));
}

/// RFC 8881 18.29, 18.45: which flavors a name takes; the current filehandle is consumed (2.6.3.1.1.8).
#[tokio::test]
async fn security_information() {
    use dhow_proto::v4::ops::{Secinfo, SecinfoArgs, SecinfoNoNameArgs, SecinfoStyle};
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    c.ok(&[op::root(), op::mkdir("d")]).await;
    let secinfo = |name: &'static str| ArgOp::Secinfo(SecinfoArgs { name: name.into() });
    let style = |style| ArgOp::SecinfoNoName(SecinfoNoNameArgs { style });
    for ask in [secinfo("d"), style(SecinfoStyle::CURRENT_FH)] {
        let res = c.ok(&[op::root(), ask.clone()]).await;
        let (ResOp::Secinfo(Ok(ok)) | ResOp::SecinfoNoName(Ok(ok))) = &res[1] else { panic!("{res:?}") };
        assert!(ok.flavors.contains(&Secinfo::Flavor(dhow_rpc::Flavor::SYS)));
        let res = c.run(&[op::root(), ask, op::getfh()]).await;
        assert_eq!(last(&res), (OpNum::GETFH, Status::NOFILEHANDLE));
    }
    assert_eq!(c.status(&[op::root(), secinfo("none")]).await, Status::NOENT);
    c.ok(&[op::root(), op::create(dhow_proto::v4::ops::CreateType::Fifo, "p", Default::default())]).await;
    let p = c.walk("p").await;
    assert_eq!(c.status(&[op::put(&p), secinfo("x")]).await, Status::NOTDIR);
    assert_eq!(c.status(&[op::put(&p), style(SecinfoStyle::PARENT)]).await, Status::NOTDIR);
    assert!(c.status(&[op::put(&p), style(SecinfoStyle::CURRENT_FH)]).await.is_ok());
    for odd in [2, u32::MAX] {
        let status = c.status(&[op::root(), style(SecinfoStyle(odd))]).await;
        assert!(matches!(status, Status::INVAL | Status::BADXDR), "style {odd}: {status:?}");
    }
    // The flavors told are those that work, and no other does.
    for (flavor, works) in [(dhow_rpc::Flavor::NONE, true), (dhow_rpc::Flavor::SYS, true)] {
        let res = c.ok(&[op::root(), secinfo("d")]).await;
        let ResOp::Secinfo(Ok(ok)) = &res[1] else { panic!("{res:?}") };
        assert_eq!(ok.flavors.contains(&Secinfo::Flavor(flavor)), works);
        assert_eq!(ok.flavors.len(), 2);
    }
    assert_eq!(c.status(&[op::root(), style(SecinfoStyle::PARENT)]).await, Status::NOENT);
    assert!(c.status(&[op::root(), op::lookup("d"), style(SecinfoStyle::PARENT)]).await.is_ok());
}

/// Two users of one client: each call acts as its own caller.
#[tokio::test]
async fn each_call_has_its_own_caller() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    c.wire.cred = sys(1000, 1000, &[]);
    let root = c.walk("").await;
    c.mkdir(&root, "mine").await;
    c.ok(&[
        op::put(&root),
        op::lookup("mine"),
        op::setattr(dhow_proto::v4::Attrs { mode: Some(0o700), ..Default::default() }),
    ])
    .await;
    c.wire.cred = sys(1001, 1001, &[]);
    assert_eq!(c.status(&[op::put(&root), op::lookup("mine"), op::lookup("x")]).await, Status::ACCESS);
    c.wire.cred = sys(1000, 1000, &[]);
    assert_eq!(c.status(&[op::put(&root), op::lookup("mine"), op::lookup("x")]).await, Status::NOENT);
    let attrs = attrs_of(&mut c, "mine").await;
    assert_eq!(attrs.file_type, Some(FileType::DIR));
}

/// Exports below exports: the inner one hides what the outer has under its name, the rest of the outer stays.
#[tokio::test]
async fn nested_exports() {
    let (outer, inner) = (MemFs::new(), MemFs::with(Options { id: 2, ..Options::default() }));
    // A tree in the outer filesystem, made before anything is exported below it.
    {
        let (_running, addr) = start(config(vec![export("/", &outer)])).await;
        let mut c = Client::connect(addr, ClientOptions::default()).await;
        let root = c.walk("").await;
        let a = c.mkdir(&root, "a").await;
        c.mkdir(&a, "b").await;
        c.mkdir(&a, "other").await;
        c.mkdir(&root, "z").await;
    }
    let (_running, addr) = start(config(vec![export("/", &outer), export("/a/b", &inner)])).await;
    let mut c = Client::connect(addr, ClientOptions::default()).await;
    let (root, b) = (attrs_of(&mut c, "").await, attrs_of(&mut c, "a/b").await);
    assert_ne!(root.fsid, b.fsid);
    let b_fh = c.walk("a/b").await;
    c.mkdir(&b_fh, "in-inner").await;
    assert!(inner.handle_of("in-inner").is_some() && outer.handle_of("a/b/in-inner").is_none());
    assert!(names(&mut c, "").await.contains(&"z".to_owned()), "the rest of the outer export is there");
    assert!(names(&mut c, "").await.contains(&"a".to_owned()));
    assert!(names(&mut c, "a").await.contains(&"b".to_owned()));
    // Up again, step by step.
    let up =
        async |c: &mut Client, from: &FileHandle| match c.ok(&[op::put(from), ArgOp::Lookupp, op::getfh()]).await.pop()
        {
            Some(ResOp::GetFh(Ok(ok))) => ok.object,
            other => panic!("{other:?}"),
        };
    let a = up(&mut c, &b_fh).await;
    assert_eq!(a, c.walk("a").await);
    assert_eq!(up(&mut c, &a).await, c.walk("").await);
    // What lies under a mount is not to be removed or moved aside from above, nor is anything to be put there: it may
    // be open to whom the inner export is closed.
    let exclusive = OpenHow::Create(CreateHow::Guarded(Default::default()));
    let open = op::open(c.owner("o"), share::ACCESS_BOTH, 0, exclusive, OpenClaim::Null("b".into()));
    for (ops, due) in [
        (vec![op::put(&a), op::remove("b")], Status::FILE_OPEN),
        (vec![op::put(&a), ArgOp::SaveFh, op::rename("b", "c")], Status::FILE_OPEN),
        (vec![op::put(&a), ArgOp::SaveFh, op::rename("other", "b")], Status::EXIST),
        (vec![op::put(&a), op::mkdir("b")], Status::EXIST),
        (vec![op::put(&a), open], Status::EXIST),
    ] {
        assert_eq!(c.status(&ops).await, due, "{ops:?}");
        assert_eq!(c.walk("a/b").await, b_fh);
    }
    // The way there is as any directory.
    c.ok(&[op::root(), ArgOp::SaveFh, op::rename("a", "moved"), op::root(), ArgOp::SaveFh, op::rename("moved", "a")])
        .await;
}

/// Invariant of the backend trait: state is kept by object, also when it is reached through two exports.
#[tokio::test]
async fn one_filesystem_in_two_exports() {
    use dhow_proto::v4::{LockType, Stateid};
    let fs = MemFs::new();
    let (_running, addr) = start(config(vec![export("/one", &fs), export("/two", &fs)])).await;
    let mut c = Client::connect(addr, ClientOptions::default()).await;
    let (one, two) = (c.walk("one").await, c.walk("two").await);
    let owner = c.owner("a");
    let f = c.open(&one, op::open_create(owner, share::ACCESS_BOTH, share::DENY_WRITE, "f", 0o644)).await;
    let g = c.walk("two/f").await;
    let open = op::open_name(c.owner("b"), share::ACCESS_WRITE, 0, "f");
    assert_eq!(c.status(&[op::put(&two), open]).await, Status::SHARE_DENIED);
    let write = op::write(Stateid::ANONYMOUS, 0, dhow_proto::v4::StableHow::UNSTABLE, b"x");
    assert_eq!(c.status(&[op::put(&g), write]).await, Status::LOCKED);
    let owner = c.owner("l");
    c.ok(&[op::put(&f.fh), op::lock_new(f.stateid, owner, LockType::WRITE, 0, 10)]).await;
    let owner = c.owner("m");
    assert_eq!(c.status(&[op::put(&g), op::lockt(owner, LockType::WRITE, 0, 10)]).await, Status::DENIED);
    // One file is one file: no copy onto itself by another way (case B34).
    let copy = op::copy(f.stateid, Stateid::ANONYMOUS, (0, 0), 0, true);
    let status = c.status(&[op::put(&f.fh), ArgOp::SaveFh, op::put(&g), copy]).await;
    assert!(matches!(status, Status::INVAL | Status::LOCKED), "{status:?}");
    c.close(&f).await;
    let copy = op::copy(Stateid::ANONYMOUS, Stateid::ANONYMOUS, (0, 0), 0, true);
    assert_eq!(c.status(&[op::put(&f.fh), ArgOp::SaveFh, op::put(&g), copy]).await, Status::INVAL);
}
