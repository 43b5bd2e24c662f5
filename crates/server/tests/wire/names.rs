//! Names and links (RFC 8881 14, 18.4, 18.9, 18.24 to 18.26).

use crate::common::{Srv, last};
use bytes::Bytes;
use dhow_proto::v4::attr::{FILEID, NUMLINKS, SIZE, TYPE};
use dhow_proto::v4::ops::{CreateType, OpenClaim, OpenHow, SecinfoArgs};
use dhow_proto::v4::{ArgOp, Attrs, FileHandle, FileType, OpNum, ResOp, SpecData, Status};
use dhow_testkit::wire::{Client, op};

/// One operation of each kind that takes a name, at the root.
fn takers(c: &Client, name: &[u8]) -> Vec<Vec<ArgOp>> {
    let owner = c.owner("o");
    let bytes = Bytes::copy_from_slice(name);
    let open = |how| op::open(owner.clone(), 1, 0, how, OpenClaim::Null(bytes.clone()));
    vec![
        vec![op::root(), op::lookup(name)],
        vec![op::root(), op::mkdir(name)],
        vec![op::root(), op::remove(name)],
        vec![op::root(), ArgOp::SaveFh, op::rename(name, "there")],
        vec![op::root(), ArgOp::SaveFh, op::rename("file", name)],
        vec![op::root(), op::lookup("file"), ArgOp::SaveFh, op::root(), op::link(name)],
        vec![op::root(), open(OpenHow::NoCreate)],
        vec![op::root(), op::open_create(owner.clone(), 3, 0, name, 0o644)],
        vec![op::root(), ArgOp::Secinfo(SecinfoArgs { name: bytes.clone() })],
    ]
}

/// Cases B14 and B17, RFC 8881 14.5: what is no name, for every operation that takes one.
#[tokio::test]
async fn what_is_no_name() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    c.create(&root, "file").await;
    let long = vec![b'n'; 256];
    let longer = vec![b'n'; 1024];
    let bad: [(&[u8], &[Status]); 8] = [
        (b"", &[Status::INVAL]),
        (&long, &[Status::NAMETOOLONG]),
        (&longer, &[Status::NAMETOOLONG]),
        (b"a/b", &[Status::BADCHAR]),
        (b"/", &[Status::BADCHAR]),
        (b"a\0b", &[Status::BADCHAR]),
        (b".", &[Status::BADNAME]),
        (b"..", &[Status::BADNAME]),
    ];
    for (name, due) in bad {
        for ops in takers(&c, name) {
            let res = c.run(&ops).await;
            let (op, status) = last(&res);
            assert_eq!(Some(op), ops.last().map(ArgOp::op));
            assert!(due.contains(&status), "{status:?} for {:?} of {op:?}", String::from_utf8_lossy(name));
        }
    }
    assert_eq!(srv.fs.object_count(), 2, "nothing was made");
}

/// Cases B14 and B15: any other bytes are a name, unchanged, 255 of them at most.
#[tokio::test]
async fn any_bytes() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let longest = vec![b'n'; 255];
    let names: [&[u8]; 9] =
        ["日本".as_bytes(), b"\xe9", b"\xe8", b"\xff\xfe", b"\xc3\x28", b" ", b"a\nb\x7f", b"...", &longest];
    let root = c.walk("").await;
    for name in names {
        let open = c.create(&root, name).await;
        c.write(&open, 0, name).await;
        c.close(&open).await;
    }
    let res = c.ok(&[op::root(), op::readdir(0, Default::default(), 8192, &[])]).await;
    let Some(ResOp::Readdir(Ok(list))) = res.last() else { panic!("{res:?}") };
    let mut listed: Vec<&[u8]> = list.entries.iter().map(|e| &e.name[..]).collect();
    listed.sort_unstable();
    let mut made = names.to_vec();
    made.sort_unstable();
    assert_eq!(listed, made);
    for name in names {
        c.ok(&[op::root(), ArgOp::SaveFh, op::rename(name, "x"), op::rename("x", name)]).await;
        c.ok(&[op::root(), op::lookup(name), ArgOp::SaveFh, op::root(), op::link("l"), op::remove("l")]).await;
        c.ok(&[op::root(), op::remove(name)]).await;
    }
}

async fn symlink(c: &mut Client, name: &str, target: &[u8]) -> Status {
    let kind = CreateType::Link(Bytes::copy_from_slice(target));
    c.status(&[op::root(), op::create(kind, name, Attrs::default())]).await
}

/// Case B17, RFC 8881 18.24: targets of any bytes up to 4095, at their exact length.
#[tokio::test]
async fn symbolic_links() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    for len in [1, 255, 256, 1023, 1024, 4095] {
        let target: Vec<u8> = (0..len).map(|i| (i % 255 + 1) as u8).collect();
        let name = format!("l{len}");
        assert!(symlink(&mut c, &name, &target).await.is_ok());
        let res = c.ok(&[op::root(), op::lookup(&name), ArgOp::Readlink, op::getattr(&[SIZE, TYPE])]).await;
        match &res[2..] {
            [ResOp::Readlink(Ok(link)), ResOp::Getattr(Ok(attrs))] => {
                assert_eq!(link.link, target);
                assert_eq!((attrs.attrs.size, attrs.attrs.file_type), (Some(len), Some(FileType::LNK)));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(symlink(&mut c, "empty", b"").await, Status::INVAL);
    assert!(matches!(symlink(&mut c, "huge", &[b'x'; 5000]).await, Status::NAMETOOLONG | Status::INVAL));
    // A link is never followed.
    c.ok(&[op::root(), op::mkdir("d")]).await;
    assert!(symlink(&mut c, "to-d", b"d").await.is_ok());
    assert_eq!(c.status(&[op::root(), op::lookup("to-d"), op::lookup("x")]).await, Status::SYMLINK);
    assert_eq!(c.status(&[op::root(), op::lookup("d"), ArgOp::Readlink]).await, Status::WRONG_TYPE);
}

/// RFC 8881 18.4: CREATE of every type.
#[tokio::test]
async fn special_files() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let dev = SpecData { major: 1, minor: 3 };
    let kinds = [
        (CreateType::Dir, FileType::DIR),
        (CreateType::Fifo, FileType::FIFO),
        (CreateType::Socket, FileType::SOCK),
        (CreateType::Char(dev), FileType::CHR),
        (CreateType::Block(dev), FileType::BLK),
    ];
    use dhow_proto::v4::attr::{MODE, RAWDEV};
    for (i, (kind, due)) in kinds.into_iter().enumerate() {
        let attrs = Attrs { mode: Some(0o640), ..Attrs::default() };
        let res =
            c.ok(&[op::root(), op::create(kind, format!("s{i}"), attrs), op::getattr(&[TYPE, MODE, RAWDEV])]).await;
        match &res[1..] {
            [ResOp::Create(Ok(made)), ResOp::Getattr(Ok(got))] => {
                assert!(op::changed(&made.cinfo));
                assert!(made.attrset.contains(MODE));
                assert_eq!((got.attrs.file_type, got.attrs.mode), (Some(due), Some(0o640)));
                if matches!(due, FileType::CHR | FileType::BLK) {
                    assert_eq!(got.attrs.rawdev, Some(dev));
                }
            }
            other => panic!("{other:?}"),
        }
    }
    for kind in [FileType::REG, FileType::ATTRDIR, FileType::NAMEDATTR, FileType(99), FileType(0)] {
        let create = op::create(CreateType::Other(kind), "x", Attrs::default());
        assert_eq!(c.status(&[op::root(), create]).await, Status::BADTYPE, "{kind:?}");
    }
    assert_eq!(c.status(&[op::root(), op::mkdir("s0")]).await, Status::EXIST);
    let root = c_root(&mut c).await;
    c.create(&root, "f").await;
    assert_eq!(c.status(&[op::root(), op::lookup("f"), op::mkdir("x")]).await, Status::NOTDIR);
}

async fn c_root(c: &mut Client) -> FileHandle {
    c.walk("").await
}

/// RFC 8881 18.25.
#[tokio::test]
async fn removing() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c_root(&mut c).await;
    let d = c.mkdir(&root, "d").await;
    let f = c.create(&d, "f").await;
    c.close(&f).await;
    assert_eq!(c.status(&[op::put(&root), op::remove("none")]).await, Status::NOENT);
    assert_eq!(c.status(&[op::put(&root), op::remove("d")]).await, Status::NOTEMPTY);
    assert_eq!(c.status(&[op::put(&f.fh), op::remove("x")]).await, Status::NOTDIR);
    let res = c.ok(&[op::put(&d), op::remove("f")]).await;
    assert!(matches!(&res[1], ResOp::Remove(Ok(ok)) if op::changed(&ok.cinfo)));
    c.ok(&[op::put(&root), op::remove("d")]).await;
    assert_eq!(c.status(&[op::put(&f.fh), op::getattr(&[TYPE])]).await, Status::STALE);
}

/// RFC 8881 18.26.
#[tokio::test]
async fn renaming() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c_root(&mut c).await;
    let (a, b) = (c.mkdir(&root, "a").await, c.mkdir(&root, "b").await);
    let f = c.create(&a, "f").await;
    let rename = |from: &FileHandle, old: &str, to: &FileHandle, new: &str| {
        [op::put(from), ArgOp::SaveFh, op::put(to), op::rename(old, new)]
    };
    let res = c.ok(&rename(&a, "f", &b, "g")).await;
    match &res[3] {
        ResOp::Rename(Ok(ok)) => assert!(op::changed(&ok.source_cinfo) && op::changed(&ok.target_cinfo)),
        other => panic!("{other:?}"),
    }
    assert_eq!(c.walk("b/g").await, f.fh);
    assert_eq!(c.status(&rename(&a, "f", &b, "h")).await, Status::NOENT);
    assert_eq!(c.status(&rename(&root, "a", &a, "x")).await, Status::INVAL, "below itself");
    // Over others: kinds must agree, a directory must be empty.
    c.mkdir(&root, "c").await;
    assert_eq!(c.status(&rename(&b, "g", &root, "c")).await, Status::EXIST, "a file over a directory");
    let over_file = c.status(&rename(&root, "c", &b, "g")).await;
    assert!(matches!(over_file, Status::EXIST | Status::NOTDIR), "a directory over a file: {over_file:?}");
    let not_empty = c.status(&rename(&root, "c", &root, "b")).await;
    assert!(matches!(not_empty, Status::EXIST | Status::NOTEMPTY), "{not_empty:?}");
    c.ok(&rename(&root, "c", &root, "a")).await;
    let dir = a_dir(&mut c).await;
    let old = c.create(&dir, "old").await;
    c.close(&old).await;
    c.ok(&rename(&b, "g", &dir, "old")).await;
    assert_eq!(c.walk("a/old").await, f.fh);
    assert_eq!(c.status(&[op::put(&old.fh), op::getattr(&[TYPE])]).await, Status::STALE);
    // Two names of one object: nothing happens.
    c.ok(&[op::put(&f.fh), ArgOp::SaveFh, op::put(&dir), op::link("twin")]).await;
    let res = c.ok(&rename(&dir, "old", &dir, "twin")).await;
    assert!(matches!(&res[3], ResOp::Rename(Ok(ok)) if !op::changed(&ok.source_cinfo)));
    assert_eq!((c.walk("a/old").await, c.walk("a/twin").await), (f.fh.clone(), f.fh.clone()));
    // From or into what is no directory.
    assert_eq!(c.status(&rename(&f.fh, "x", &root, "y")).await, Status::NOTDIR);
    assert_eq!(c.status(&rename(&root, "a", &f.fh, "y")).await, Status::NOTDIR);
}

async fn a_dir(c: &mut Client) -> FileHandle {
    c.walk("a").await
}

/// RFC 8881 18.9.
#[tokio::test]
async fn linking() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c_root(&mut c).await;
    let f = c.create(&root, "f").await;
    let d = c.mkdir(&root, "d").await;
    let res = c.ok(&[op::put(&f.fh), ArgOp::SaveFh, op::put(&d), op::link("g")]).await;
    assert!(matches!(&res[3], ResOp::Link(Ok(ok)) if op::changed(&ok.cinfo)));
    let g = c.walk("d/g").await;
    let (x, y) = (c.attrs(&f.fh, &[FILEID, NUMLINKS]).await, c.attrs(&g, &[FILEID, NUMLINKS]).await);
    assert_eq!((x.fileid, x.numlinks, y.numlinks), (y.fileid, Some(2), Some(2)));
    assert_eq!(c.status(&[op::put(&f.fh), ArgOp::SaveFh, op::put(&d), op::link("g")]).await, Status::EXIST);
    assert_eq!(c.status(&[op::put(&f.fh), ArgOp::SaveFh, op::put(&g), op::link("h")]).await, Status::NOTDIR);
    let status = c.status(&[op::put(&d), ArgOp::SaveFh, op::put(&root), op::link("h")]).await;
    assert_eq!(status, Status::ISDIR);
    let res = c.run(&[op::put(&root), op::lookup("f"), op::lookup("x")]).await;
    assert_eq!(last(&res), (OpNum::LOOKUP, Status::NOTDIR));
}

/// What takes a directory and gets a symbolic link: never followed, and not a directory.
#[tokio::test]
async fn links_are_no_directories() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    c.ok(&[op::root(), op::mkdir("d")]).await;
    assert!(symlink(&mut c, "l", b"d").await.is_ok());
    let owner = c.owner("o");
    let root = c_root(&mut c).await;
    let l = c.walk("l").await;
    for ops in [
        vec![op::put(&l), op::mkdir("x")],
        vec![op::put(&l), op::remove("x")],
        vec![op::put(&l), op::readdir(0, Default::default(), 4096, &[])],
        vec![op::put(&l), ArgOp::SaveFh, op::put(&root), op::rename("x", "y")],
        vec![op::put(&root), ArgOp::SaveFh, op::put(&l), op::rename("d", "y")],
        vec![op::put(&l), ArgOp::Lookupp],
        vec![op::put(&l), op::lookup("x")],
        vec![op::put(&l), op::open_create(owner, 3, 0, "x", 0o644)],
    ] {
        let status = c.status(&ops).await;
        assert!(matches!(status, Status::NOTDIR | Status::SYMLINK), "{:?}: {status:?}", ops.last());
    }
    assert_eq!(srv.fs.object_count(), 3);
}

/// Case B48: the companions in which a client without named attributes keeps its own (`._name`) are plain files, and the
/// two live and die by themselves.
#[tokio::test]
async fn companions_are_plain_files() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    for name in ["f", "._f"] {
        let open = c.create(&root, name).await;
        c.write(&open, 0, name.as_bytes()).await;
        c.close(&open).await;
    }
    c.ok(&[op::root(), ArgOp::SaveFh, op::rename("f", "g")]).await;
    assert_eq!(last(&c.run(&[op::root(), op::lookup("._g")]).await).1, Status::NOENT, "that is the client's to rename");
    c.ok(&[op::root(), ArgOp::SaveFh, op::rename("._f", "._g")]).await;
    c.ok(&[op::root(), op::lookup("g"), ArgOp::SaveFh, op::root(), op::link("h")]).await;
    assert_eq!(last(&c.run(&[op::root(), op::lookup("._h")]).await).1, Status::NOENT);
    c.ok(&[op::root(), op::remove("g")]).await;
    c.ok(&[op::root(), op::lookup("._g")]).await;
    c.ok(&[op::root(), op::remove("._g")]).await;
    assert_eq!(last(&c.run(&[op::root(), op::lookup("._g")]).await).1, Status::NOENT);
}
