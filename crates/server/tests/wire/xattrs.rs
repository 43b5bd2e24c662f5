//! Extended attributes (RFC 8276).

use crate::common::{Srv, last};
use bytes::Bytes;
use dhow_proto::v4::attr::{CHANGE, XATTR_SUPPORT};
use dhow_proto::v4::ops::*;
use dhow_proto::v4::{ArgOp, Attrs, FileHandle, ResOp, Status};
use dhow_testkit::wire::{Client, op, sys};

fn get(name: &[u8]) -> ArgOp {
    ArgOp::Getxattr(GetxattrArgs { name: Bytes::copy_from_slice(name) })
}

fn set(option: SetxattrOption, name: &[u8], value: &[u8]) -> ArgOp {
    let (name, value) = (Bytes::copy_from_slice(name), Bytes::copy_from_slice(value));
    ArgOp::Setxattr(SetxattrArgs { option, name, value })
}

fn list(cookie: u64, maxcount: u32) -> ArgOp {
    ArgOp::Listxattrs(ListxattrsArgs { cookie, maxcount })
}

fn remove(name: &[u8]) -> ArgOp {
    ArgOp::Removexattr(RemovexattrArgs { name: Bytes::copy_from_slice(name) })
}

async fn file(c: &mut Client) -> FileHandle {
    let root = c.walk("").await;
    c.create(&root, "f").await.fh
}

async fn value(c: &mut Client, fh: &FileHandle, name: &[u8]) -> Result<Bytes, Status> {
    match c.run(&[op::put(fh), get(name)]).await.results.pop() {
        Some(ResOp::Getxattr(done)) => done.map(|ok| ok.value),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn setting_getting_removing() {
    use SetxattrOption as O;
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let f = file(&mut c).await;
    assert_eq!(c.attrs(&f, &[XATTR_SUPPORT]).await.xattr_support, Some(true));
    assert_eq!(value(&mut c, &f, b"a").await.unwrap_err(), Status::NOXATTR);
    let mut status = async |op: ArgOp| c.status(&[op::put(&f), op]).await;
    assert_eq!(status(set(O::REPLACE, b"a", b"1")).await, Status::NOXATTR);
    assert_eq!(status(set(O::CREATE, b"a", b"1")).await, Status::OK);
    assert_eq!(status(set(O::CREATE, b"a", b"2")).await, Status::EXIST);
    assert_eq!(status(set(O::REPLACE, b"a", b"\x00\xff")).await, Status::OK);
    assert_eq!(status(set(O::EITHER, "ü".as_bytes(), b"")).await, Status::OK);
    assert_eq!(status(set(O(9), b"b", b"")).await, Status::INVAL);
    assert_eq!(status(remove(b"none")).await, Status::NOXATTR);
    assert_eq!(value(&mut c, &f, b"a").await.unwrap(), &b"\x00\xff"[..]);
    assert!(value(&mut c, &f, "ü".as_bytes()).await.unwrap().is_empty());
    // change_info4 is of the object (8.4.2.3, 8.4.4.3).
    let before = c.attrs(&f, &[CHANGE]).await.change;
    let cinfo = match c.ok(&[op::put(&f), remove(b"a")]).await.pop() {
        Some(ResOp::Removexattr(Ok(ok))) => ok.cinfo,
        other => panic!("{other:?}"),
    };
    assert_eq!((Some(cinfo.before), Some(cinfo.after)), (before, c.attrs(&f, &[CHANGE]).await.change));
    // A directory has them too.
    let d = c.walk("").await;
    c.ok(&[op::put(&d), set(O::EITHER, b"on-a-dir", b"v")]).await;
    assert_eq!(value(&mut c, &d, b"on-a-dir").await.unwrap(), "v");
}

/// RFC 8276 8.4.3: pages of names, each name once; too small a limit.
#[tokio::test]
async fn listing() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let f = file(&mut c).await;
    let mut made = Vec::new();
    for i in 0..100 {
        let name = format!("attribute-{i:03}");
        c.ok(&[op::put(&f), set(SetxattrOption::EITHER, name.as_bytes(), b"v")]).await;
        made.push(Bytes::from(name));
    }
    for max in [64, 300, 65_536] {
        let (mut cookie, mut names) = (0, Vec::new());
        loop {
            match c.ok(&[op::put(&f), list(cookie, max)]).await.pop() {
                Some(ResOp::Listxattrs(Ok(ok))) => {
                    assert!(dhow_xdr::Encode::to_bytes(&ok).len() <= max as usize);
                    names.extend(ok.names.0);
                    cookie = ok.cookie;
                    if ok.eof {
                        break;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        names.sort();
        assert_eq!(names, made, "pages of {max}");
    }
    for max in [0, 8, 20] {
        assert_eq!(c.status(&[op::put(&f), list(0, max)]).await, Status::TOOSMALL, "{max}");
    }
    let g = c.walk("").await;
    assert!(
        matches!(c.ok(&[op::put(&g), list(0, 1000)]).await.pop(), Some(ResOp::Listxattrs(Ok(ok))) if ok.eof && ok.names.0.is_empty())
    );
    let res = c.run(&[op::put(&f), list(u64::MAX, 1000)]).await;
    assert!(matches!(last(&res).1, Status::OK | Status::BAD_COOKIE | Status::INVAL));
}

#[tokio::test]
async fn limits_and_permissions() {
    let srv = Srv::start().await;
    let mut c = srv.client_as("c", 1000, 1000, &[]).await;
    let f = file(&mut c).await;
    let either = SetxattrOption::EITHER;
    let mut status = async |op: ArgOp| c.status(&[op::put(&f), op]).await;
    assert_eq!(status(set(either, b"", b"v")).await, Status::INVAL);
    assert_eq!(status(set(either, &[b'n'; 300], b"v")).await, Status::NAMETOOLONG);
    assert_eq!(status(set(either, b"big", &vec![1; 70_000])).await, Status::XATTR2BIG);
    assert_eq!(status(set(either, b"large", &vec![1; 60_000])).await, Status::OK);
    assert_eq!(value(&mut c, &f, b"large").await.unwrap().len(), 60_000);
    c.ok(&[op::put(&f), op::setattr(Attrs { mode: Some(0o600), ..Attrs::default() })]).await;
    c.wire.cred = sys(1001, 1001, &[]);
    for op in [get(b"large"), set(either, b"x", b""), list(0, 1000), remove(b"large")] {
        assert_eq!(c.status(&[op::put(&f), op]).await, Status::ACCESS);
    }
    let rights = match c.ok(&[op::put(&f), op::access(0x1c0)]).await.pop() {
        Some(ResOp::Access(Ok(ok))) => (ok.supported, ok.access),
        other => panic!("{other:?}"),
    };
    assert_eq!(rights, (0x1c0, 0), "RFC 8276 8.5");
}

/// Not in minor version 1.
#[tokio::test]
async fn minor_version_1() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let f = file(&mut c).await;
    c.minor = 1;
    assert_eq!(c.status(&[op::put(&f), get(b"a")]).await, Status::OP_ILLEGAL);
}

/// RFC 8276 8.4.1.3 to 8.4.4.3: a value that the session's replies cannot hold; names that are none; what keeps none; an
/// export that is not to be changed.
#[tokio::test]
async fn refusals() {
    use crate::common::{config, open_to_all, start};
    use dhow_proto::v4::ops::CreateType;
    use dhow_server::{ExportConfig, ExportOptions};
    use dhow_testkit::MemFs;
    use dhow_testkit::wire::ClientOptions;
    let either = SetxattrOption::EITHER;
    let fs = MemFs::new();
    let read_only = ExportOptions { read_only: true, ..open_to_all() };
    let exports = vec![
        ExportConfig { path: "/rw".into(), backend: fs.clone(), options: open_to_all() },
        ExportConfig { path: "/ro".into(), backend: fs.clone(), options: read_only },
    ];
    let (_running, addr) = start(config(exports)).await;
    let mut c = Client::connect(addr, ClientOptions::default()).await;
    let root = c.walk("rw").await;
    let f = c.create(&root, "f").await.fh;
    c.ok(&[op::put(&f), set(either, b"large", &vec![7; 20_000])]).await;
    for name in [&b""[..], b"a\0b", b"\0"] {
        for ask in [get(name), set(either, name, b"v"), remove(name)] {
            assert_eq!(c.status(&[op::put(&f), ask]).await, Status::INVAL, "{name:?}");
        }
    }
    // Any other bytes are a name.
    c.ok(&[op::put(&f), set(either, b"\xff/\xfe", b"v"), get(b"\xff/\xfe"), remove(b"\xff/\xfe")]).await;
    let ro = c.walk("ro/f").await;
    assert_eq!(value(&mut c, &ro, b"large").await.unwrap().len(), 20_000);
    for change in [set(either, b"x", b"v"), set(SetxattrOption::REPLACE, b"large", b""), remove(b"large")] {
        assert_eq!(c.status(&[op::put(&ro), change]).await, Status::ROFS);
    }
    // A session of small replies: MUST be REP_TOO_BIG, and the slot goes on.
    let mut o = ClientOptions::named("small");
    o.fore.max_response_size = 4096;
    o.fore.max_response_size_cached = 2048;
    let mut small = Client::connect(addr, o).await;
    let res = small.run(&[op::put(&f), get(b"large")]).await;
    assert_eq!(last(&res).1, Status::REP_TOO_BIG);
    small.ok(&[op::put(&f), list(0, 1 << 20)]).await;
    // On this machine's filesystems only files and directories keep what users set (xattr(7)).
    let t = crate::tree::Tree::with(&std::env::temp_dir(), |_| {}, |_| {}).await;
    let mut c = t.srv.client("c").await;
    let root = c.walk("").await;
    if c.attrs(&root, &[XATTR_SUPPORT]).await.xattr_support != Some(true) {
        return;
    }
    c.ok(&[op::put(&root), op::create(CreateType::Link("x".into()), "l", Attrs::default())]).await;
    c.ok(&[op::put(&root), op::create(CreateType::Fifo, "p", Attrs::default())]).await;
    for name in ["l", "p"] {
        let fh = c.walk(name).await;
        for ask in [set(either, b"a", b"v"), remove(b"a")] {
            let status = c.status(&[op::put(&fh), ask]).await;
            assert!(matches!(status, Status::WRONG_TYPE | Status::PERM | Status::NOTSUPP), "{name}: {status:?}");
        }
        let status = value(&mut c, &fh, b"a").await.unwrap_err();
        let due = [Status::WRONG_TYPE, Status::PERM, Status::NOTSUPP, Status::NOXATTR];
        assert!(due.contains(&status), "{name}: {status:?}");
        let listed = c.status(&[op::put(&fh), list(0, 1000)]).await;
        assert!(matches!(listed, Status::OK | Status::WRONG_TYPE | Status::PERM | Status::NOTSUPP), "{listed:?}");
    }
}
