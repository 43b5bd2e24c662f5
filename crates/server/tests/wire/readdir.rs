//! READDIR (RFC 8881 18.23).

use crate::common::Srv;
use dhow_proto::v4::attr::{CHANGE, FILEHANDLE, FILEID, FSID, MODE, RDATTR_ERROR, SIZE, TYPE};
use dhow_proto::v4::ops::{ReaddirArgs, ReaddirOk};
use dhow_proto::v4::{ArgOp, Attrs, Bitmap, FileHandle, ResOp, Status, Verifier};
use dhow_testkit::wire::{Client, op};
use dhow_vfs::{Backend, CreateHow, Cx, Handle, Name};
use std::collections::BTreeSet;

/// Fills a directory behind the server's back: ten thousand creates by calls would take their time.
async fn fill(srv: &Srv, dir: &Handle, count: usize) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for i in 0..count {
        let name = format!("file-{i:06}");
        let n = Name::new(name.clone().into()).unwrap();
        let made = srv.fs.create(&Cx::root(), dir, &n, &CreateHow::default()).await.unwrap();
        srv.fs.close(made.open).await;
        names.insert(name);
    }
    names
}

async fn page(
    c: &mut Client,
    dir: &FileHandle,
    cookie: u64,
    verifier: Verifier,
    max: u32,
    bits: &[u32],
) -> Result<ReaddirOk, Status> {
    let readdir = op::readdir(cookie, verifier, max, bits);
    let res = c.run(&[op::put(dir), readdir]).await;
    match res.results.into_iter().next_back() {
        Some(ResOp::Readdir(done)) => done,
        other => panic!("{other:?}"),
    }
}

/// A whole listing; the replies' sizes are held against `max`.
async fn list(c: &mut Client, dir: &FileHandle, max: u32, bits: &[u32]) -> Vec<String> {
    let (mut names, mut cookie, mut verifier) = (Vec::new(), 0, Verifier::default());
    loop {
        let p = page(c, dir, cookie, verifier, max, bits).await.expect("a page");
        let size = dhow_xdr::Encode::to_bytes(&p).len();
        assert!(size <= max as usize, "{size} bytes of {max}");
        assert!(p.eof || !p.entries.is_empty());
        for e in &p.entries {
            assert!(e.cookie > 2, "cookies 0, 1 and 2 are reserved (case K28)");
            names.push(String::from_utf8(e.name.to_vec()).unwrap());
            cookie = e.cookie;
        }
        verifier = p.verifier;
        if p.eof {
            return names;
        }
    }
}

/// Case B03: the pages together are the directory, no name twice, at any size of page.
#[tokio::test]
async fn pages_make_up_the_directory() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let empty = list(&mut c, &root, 4096, &[]).await;
    assert!(empty.is_empty());
    let d = c.mkdir(&root, "d").await;
    let made = fill(&srv, &srv.fs.handle_of("d").unwrap(), 10_000).await;
    for (max, bits) in [
        (4096, &[][..]),
        (4096, &[TYPE, FILEID, MODE, SIZE, FILEHANDLE, CHANGE]),
        (32_768, &[FILEID]),
        (1 << 20, &[TYPE, FILEID]),
        (300, &[]),
    ] {
        let listed = list(&mut c, &d, max, bits).await;
        assert_eq!(listed.len(), made.len(), "pages of {max}");
        assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), made);
    }
}

/// Case B04: the verifier of any earlier page is good for as long as its cookies are.
#[tokio::test]
async fn verifiers_of_earlier_pages() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    fill(&srv, &srv.fs.handle_of("").unwrap(), 200).await;
    let first = page(&mut c, &root, 0, Verifier::default(), 1024, &[]).await.unwrap();
    let mut cookie = first.entries.last().unwrap().cookie;
    for i in 0..3 {
        let p = page(&mut c, &root, cookie, first.verifier, 1024, &[]).await.unwrap();
        cookie = p.entries.last().unwrap().cookie;
        // Changing the directory takes nothing away.
        c.ok(&[op::put(&root), op::mkdir(format!("new-{i}")), op::put(&root), op::remove(format!("file-00000{i}"))])
            .await;
    }
}

/// Case K28: names that stay are listed exactly once while others come and go.
#[tokio::test]
async fn a_changing_directory() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let made = fill(&srv, &srv.fs.handle_of("").unwrap(), 500).await;
    let (mut cookie, mut verifier, mut seen) = (0, Verifier::default(), Vec::new());
    for round in 0.. {
        let p = page(&mut c, &root, cookie, verifier, 800, &[FILEID]).await.unwrap();
        for e in &p.entries {
            seen.push(String::from_utf8(e.name.to_vec()).unwrap());
            cookie = e.cookie;
        }
        verifier = p.verifier;
        if p.eof {
            break;
        }
        // The last name listed goes, so its cookie leads on from a name that is not there.
        let gone = seen.last().unwrap().clone();
        c.ok(&[op::put(&root), op::remove(&gone), op::mkdir(format!("come-{round:05}"))]).await;
    }
    let unique: BTreeSet<_> = seen.iter().cloned().collect();
    assert_eq!(unique.len(), seen.len(), "a name twice");
    assert!(made.is_subset(&unique));
}

/// RFC 8881 18.23.3: too small for one entry; reserved cookies; what is no directory.
#[tokio::test]
async fn refusals() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let f = c.create(&root, "a-name-of-some-length").await;
    for max in [0, 1, 16, 20, 40] {
        let status = page(&mut c, &root, 0, Verifier::default(), max, &[]).await.unwrap_err();
        assert!(status == Status::TOOSMALL || (max == 0 && status == Status::INVAL), "{max}: {status:?}");
    }
    let exact = page(&mut c, &root, 0, Verifier::default(), 4096, &[]).await.unwrap();
    let size = dhow_xdr::Encode::to_bytes(&exact).len() as u32;
    assert_eq!(page(&mut c, &root, 0, Verifier::default(), size, &[]).await.unwrap().entries.len(), 1);
    assert_eq!(page(&mut c, &root, 0, Verifier::default(), size - 4, &[]).await.unwrap_err(), Status::TOOSMALL);
    for cookie in [1, 2] {
        let status = page(&mut c, &root, cookie, exact.verifier, 4096, &[]).await.unwrap_err();
        assert_eq!(status, Status::BAD_COOKIE, "cookie {cookie}");
    }
    assert_eq!(page(&mut c, &f.fh, 0, Verifier::default(), 4096, &[]).await.unwrap_err(), Status::NOTDIR);
    // Attributes that can only be set (case B40).
    let set_only = page(&mut c, &root, 0, Verifier::default(), 4096, &[dhow_proto::v4::attr::TIME_MODIFY_SET]).await;
    assert_eq!(set_only.unwrap_err(), Status::INVAL);
}

/// `dircount` is a hint for names alone; 0 is none (18.23.3).
#[tokio::test]
async fn dircount() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    fill(&srv, &srv.fs.handle_of("").unwrap(), 50).await;
    for (dircount, most) in [(0, 50), (1, 5), (200, 12), (u32::MAX, 50)] {
        let args = ReaddirArgs {
            cookie: 0,
            verifier: Verifier::default(),
            dircount,
            maxcount: 1 << 16,
            attr_request: Bitmap::EMPTY,
        };
        match c.ok(&[op::root(), ArgOp::Readdir(args)]).await.pop() {
            Some(ResOp::Readdir(Ok(ok))) => {
                assert!(!ok.entries.is_empty() && ok.entries.len() <= most, "{dircount}: {}", ok.entries.len());
            }
            other => panic!("{other:?}"),
        }
    }
    let huge = ReaddirArgs {
        cookie: 0,
        verifier: Verifier::default(),
        dircount: u32::MAX,
        maxcount: u32::MAX,
        attr_request: Bitmap::of(&[FILEID]),
    };
    match c.ok(&[op::root(), ArgOp::Readdir(huge)]).await.pop() {
        Some(ResOp::Readdir(Ok(ok))) => assert_eq!(ok.entries.len(), 50),
        other => panic!("{other:?}"),
    }
}

/// Case B09: attributes in a listing are those of GETATTR.
#[tokio::test]
async fn attributes_of_entries() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    c.write(&f, 0, b"xyz").await;
    c.mkdir(&root, "d").await;
    let wanted = [TYPE, CHANGE, SIZE, FSID, FILEHANDLE, FILEID, MODE, RDATTR_ERROR];
    let p = page(&mut c, &root, 0, Verifier::default(), 4096, &wanted).await.unwrap();
    assert!(p.eof && p.entries.len() == 2);
    for e in p.entries {
        let fh = e.attrs.filehandle.clone().unwrap();
        let name = String::from_utf8(e.name.to_vec()).unwrap();
        assert_eq!(c.walk(&name).await, fh);
        let own = c.attrs(&fh, &[TYPE, CHANGE, SIZE, FSID, FILEHANDLE, FILEID, MODE]).await;
        assert_eq!(Attrs { rdattr_error: None, ..e.attrs }, own);
    }
}

/// Case B40: an entry whose attributes cannot be had is told so in its place, and the others are listed.
#[tokio::test]
async fn an_entry_that_cannot_be_read() {
    use crate::common::{config, open_to_all, start};
    use dhow_server::{ExportConfig, ExportOptions};
    use dhow_testkit::MemFs;
    use dhow_testkit::wire::ClientOptions;
    let closed = ExportOptions { clients: vec!["192.0.2.0/24".parse().unwrap()], ..open_to_all() };
    let exports = vec![
        ExportConfig { path: "/far".into(), backend: MemFs::new(), options: closed },
        ExportConfig { path: "/near".into(), backend: MemFs::new(), options: open_to_all() },
    ];
    let (_running, addr) = start(config(exports)).await;
    let mut c = Client::connect(addr, ClientOptions::default()).await;
    let root = c.walk("").await;
    let p = page(&mut c, &root, 0, Verifier::default(), 4096, &[RDATTR_ERROR, TYPE, FSID, SIZE]).await.unwrap();
    let by_name = |n: &str| p.entries.iter().find(|e| e.name == n).map(|e| &e.attrs);
    assert_eq!(by_name("near").expect("it is listed").rdattr_error, Some(Status::OK));
    // A closed export is hidden, or says that it is closed.
    if let Some(far) = by_name("far") {
        assert_eq!((far.rdattr_error, far.size), (Some(Status::ACCESS), None));
    }
}
