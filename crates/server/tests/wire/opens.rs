//! OPEN, CLOSE, OPEN_DOWNGRADE, share reservations (RFC 8881 9.7, 18.2, 18.16, 18.18).

use crate::common::{Srv, last, open_both, read_anon};
use dhow_proto::v4::attr::{CHANGE, MODE, SIZE, SUPPATTR_EXCLCREAT, TIME_ACCESS, TIME_METADATA, TIME_MODIFY, TYPE};
use dhow_proto::v4::ops::{
    AllocateArgs, CreateHow, CreateType, Delegation, OpenClaim, OpenHow, OpenOk, open_result, share,
};
use dhow_proto::v4::{
    ArgOp, Attrs, DelegationType, FileHandle, NfsTime, OpNum, ResOp, SetTime, StableHow, Stateid, Status, Verifier,
};
use dhow_testkit::wire::{Client, Open, op};
use std::time::{SystemTime, UNIX_EPOCH};

async fn root(c: &mut Client) -> FileHandle {
    c.walk("").await
}

async fn open(c: &mut Client, dir: &FileHandle, open: ArgOp) -> Result<OpenOk, Status> {
    match c.run(&[op::put(dir), open]).await.results.pop() {
        Some(ResOp::Open(done)) => done,
        other => panic!("{other:?}"),
    }
}

fn creating(c: &Client, how: CreateHow, name: &str) -> ArgOp {
    op::open(c.owner("creator"), 3, 0, OpenHow::Create(how), OpenClaim::Null(name.to_owned().into()))
}

fn mode(mode: u32) -> Attrs {
    Attrs { mode: Some(mode), ..Attrs::default() }
}

/// RFC 8881 18.16.3: UNCHECKED and GUARDED.
#[tokio::test]
async fn unchecked_and_guarded() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = root(&mut c).await;
    let req = creating(&c, CreateHow::Unchecked(mode(0o640).into()), "f");
    let made = open(&mut c, &root, req.clone()).await.unwrap();
    assert!(op::changed(&made.cinfo) && made.attrset.contains(MODE));
    assert_eq!(made.stateid.seqid, 1, "8.2.2");
    assert!(matches!(made.delegation, Delegation::None | Delegation::NoneExt(_)));
    assert_eq!(made.rflags & (open_result::CONFIRM | open_result::PRESERVE_UNLINKED), 0);
    let f = c.walk("f").await;
    let w = op::write(made.stateid, 0, StableHow::UNSTABLE, b"data");
    c.ok(&[op::put(&f), w]).await;
    // It is there: opened, its attributes left alone but for a size of 0.
    let req = creating(&c, CreateHow::Unchecked(mode(0o777).into()), "f");
    let again = open(&mut c, &root, req).await.unwrap();
    assert!(!op::changed(&again.cinfo));
    assert!(!again.attrset.contains(MODE), "nothing was set: {:?}", again.attrset);
    let got = c.attrs(&f, &[MODE, SIZE]).await;
    assert_eq!((got.mode, got.size), (Some(0o640), Some(4)));
    let truncating = Attrs { size: Some(0), ..mode(0o777) };
    let req = creating(&c, CreateHow::Unchecked(truncating.into()), "f");
    let again = open(&mut c, &root, req).await.unwrap();
    let got = c.attrs(&f, &[MODE, SIZE]).await;
    assert_eq!((got.mode, got.size), (Some(0o640), Some(0)), "a size of 0 truncates");
    assert!(again.attrset.contains(SIZE));
    let req = creating(&c, CreateHow::Guarded(mode(0o640).into()), "f");
    assert_eq!(open(&mut c, &root, req).await.unwrap_err(), Status::EXIST);
    let req = creating(&c, CreateHow::Guarded(mode(0o640).into()), "g");
    assert!(open(&mut c, &root, req).await.is_ok());
}

/// Case B11: EXCLUSIVE4_1 (and EXCLUSIVE4): a retry finds the file, another verifier does not; attributes are applied
/// and said; the times are of now, with and without a SETATTR after.
#[tokio::test]
async fn exclusive() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = root(&mut c).await;
    let verifier = Verifier(*b"\xff\xff\xff\xff\x7f\xff\xff\xff");
    let how = |v, m| CreateHow::Exclusive41 { verifier: v, attrs: mode(m).into() };
    let req = creating(&c, how(verifier, 0o604), "f");
    let first = open(&mut c, &root, req.clone()).await.unwrap();
    assert!(first.attrset.contains(MODE));
    let f = c.walk("f").await;
    check_times(&mut c, &f).await;
    let again = open(&mut c, &root, req.clone()).await.unwrap();
    assert_eq!(c.walk("f").await, f);
    assert_eq!(again.stateid.other, first.stateid.other, "the same owner, the same file");
    let req = creating(&c, how(Verifier(*b"another!"), 0o604), "f");
    assert_eq!(open(&mut c, &root, req).await.unwrap_err(), Status::EXIST);
    let half = Verifier(*b"\xff\xff\xff\xff\x00\x00\x00\x00");
    let req = creating(&c, how(half, 0o604), "f");
    assert_eq!(open(&mut c, &root, req).await.unwrap_err(), Status::EXIST, "all of the verifier counts");
    assert_eq!(c.attrs(&f, &[MODE]).await.mode, Some(0o604));
    check_times(&mut c, &f).await;

    // The form without attributes.
    let req = creating(&c, CreateHow::Exclusive(verifier), "g");
    assert!(open(&mut c, &root, req.clone()).await.is_ok());
    assert!(open(&mut c, &root, req).await.is_ok());
    let g = c.walk("g").await;
    check_times(&mut c, &g).await;
    c.ok(&[op::put(&g), op::setattr(mode(0o600))]).await;
    check_times(&mut c, &g).await;
    let req = creating(&c, CreateHow::Exclusive(Verifier([0; 8])), "g");
    assert_eq!(open(&mut c, &root, req).await.unwrap_err(), Status::EXIST);

    // Only what suppattr_exclcreat names may come with it (5.8.1.14).
    let allowed = c.attrs(&root, &[SUPPATTR_EXCLCREAT]).await.suppattr_exclcreat.unwrap();
    assert!(allowed.contains(MODE));
    let time = Attrs { time_modify_set: Some(SetTime::Client(NfsTime { secs: 1, nanos: 0 })), ..Attrs::default() };
    let with_time = CreateHow::Exclusive41 { verifier, attrs: (&time).into() };
    let req = creating(&c, with_time, "h");
    match open(&mut c, &root, req).await {
        Ok(ok) => assert!(time.mask().is_subset(&allowed) && time.mask().is_subset(&ok.attrset)),
        Err(status) => {
            assert!(!time.mask().is_subset(&allowed) && matches!(status, Status::INVAL | Status::ATTRNOTSUPP))
        }
    }
}

async fn check_times(c: &mut Client, fh: &FileHandle) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
    let got = c.attrs(fh, &[TIME_ACCESS, TIME_MODIFY, TIME_METADATA]).await;
    for t in [got.time_access, got.time_modify, got.time_metadata] {
        assert!((t.unwrap().secs - now).abs() < 60, "{t:?} at {now}");
    }
}

/// A file whose backend has made it although the reply was lost is found by the retry of the whole OPEN.
#[tokio::test]
async fn opening_what_is_no_file() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let dir = root(&mut c).await;
    let root = dir;
    c.mkdir(&root, "d").await;
    c.ok(&[op::put(&root), op::create(CreateType::Link("d".into()), "l", Attrs::default())]).await;
    c.ok(&[op::put(&root), op::create(CreateType::Fifo, "p", Attrs::default())]).await;
    let f = c.create(&root, "f").await;
    for (name, due) in [("d", Status::ISDIR), ("l", Status::SYMLINK), ("p", Status::WRONG_TYPE)] {
        for req in
            [op::open_name(c.owner("o"), 1, 0, name), creating(&c, CreateHow::Unchecked(mode(0o600).into()), name)]
        {
            assert_eq!(open(&mut c, &root, req).await.unwrap_err(), due, "{name}");
        }
        let fh = c.walk(name).await;
        let by_fh = op::open(c.owner("o"), 1, 0, OpenHow::NoCreate, OpenClaim::Fh);
        assert_eq!(open(&mut c, &fh, by_fh).await.unwrap_err(), due, "{name} by filehandle");
    }
    let req = op::open_name(c.owner("o"), 1, 0, "none");
    assert_eq!(open(&mut c, &root, req.clone()).await.unwrap_err(), Status::NOENT);
    assert_eq!(open(&mut c, &f.fh, req).await.unwrap_err(), Status::NOTDIR);
}

/// RFC 8881 18.16.3: access and deny bits that make no sense.
#[tokio::test]
async fn bits_that_make_no_sense() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = root(&mut c).await;
    c.create(&root, "f").await;
    for (access, deny) in [(0, 0), (4, 0), (1, 4), (0xff, 0), (1, u32::MAX), (0x8000_0001, 0)] {
        let req = op::open_name(c.owner("o"), access, deny, "f");
        assert_eq!(open(&mut c, &root, req).await.unwrap_err(), Status::INVAL, "{access:#x} {deny:#x}");
    }
    // Wishes for delegations are wishes (RFC 8881 18.16.3).
    for want in [share::WANT_NO_DELEG, share::WANT_READ_DELEG, share::WANT_ANY_DELEG, share::WANT_CANCEL] {
        let req = op::open_name(c.owner("o"), share::ACCESS_READ | want, 0, "f");
        assert!(open(&mut c, &root, req).await.is_ok(), "{want:#x}");
    }
}

/// RFC 8881 9.7: each pair of access and deny, of two owners, in both orders.
#[tokio::test]
async fn share_reservations() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = root(&mut c).await;
    let f = c.create(&root, "f").await;
    c.close(&f).await;
    for a1 in 1..=3 {
        for d1 in 0..=3 {
            for a2 in 1..=3 {
                for d2 in 0..=3 {
                    let owner = c.owner("one");
                    let first = c.open(&root, op::open_name(owner, a1, d1, "f")).await;
                    let req = op::open_name(c.owner("two"), a2, d2, "f");
                    let second = open(&mut c, &root, req).await;
                    let clash = a1 & d2 != 0 || a2 & d1 != 0;
                    match second {
                        Ok(ok) => {
                            assert!(!clash, "{a1} {d1} {a2} {d2}");
                            c.close(&Open { fh: f.fh.clone(), stateid: ok.stateid }).await;
                        }
                        Err(status) => {
                            assert_eq!(status, Status::SHARE_DENIED);
                            assert!(clash, "{a1} {d1} {a2} {d2}");
                        }
                    }
                    c.close(&first).await;
                }
            }
        }
    }
    assert_eq!(srv.fs.open_count(), 0);
}

/// RFC 8881 9.7, 8.2.3: a deny binds I/O under special stateids too, and of other clients.
#[tokio::test]
async fn deny_binds_special_stateids() {
    let srv = Srv::start().await;
    let (mut c, mut other) = (srv.client("c").await, srv.client("other").await);
    let root = root(&mut c).await;
    let owner = c.owner("o");
    let f = c.open(&root, op::open_create(owner, share::ACCESS_BOTH, share::DENY_BOTH, "f", 0o666)).await;
    c.write(&f, 0, b"mine").await;
    for client in [&mut c, &mut other] {
        assert_eq!(read_anon(client, &f.fh, 0, 1).await.unwrap_err(), Status::LOCKED);
        let write = op::write(Stateid::ANONYMOUS, 0, StableHow::UNSTABLE, b"x");
        assert_eq!(client.status(&[op::put(&f.fh), write]).await, Status::LOCKED);
    }
    let req = op::open_name(other.owner("o"), 1, 0, "f");
    assert_eq!(open(&mut other, &root, req).await.unwrap_err(), Status::SHARE_DENIED);
    assert_eq!(srv.fs.content_of("f").unwrap(), "mine");
    c.close(&f).await;
    assert!(read_anon(&mut other, &f.fh, 0, 1).await.is_ok());
}

/// RFC 8881 18.16.3, 9.7: an owner's second OPEN adds to the first: one stateid, a new seqid, the union.
#[tokio::test]
async fn upgrades() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = root(&mut c).await;
    let f = c.create(&root, "f").await;
    c.close(&f).await;
    let owner = c.owner("o");
    let r = c.open(&root, op::open_name(owner.clone(), share::ACCESS_READ, 0, "f")).await;
    let write = |s: Stateid| [op::put(&f.fh), op::write(s, 0, StableHow::UNSTABLE, b"x")];
    assert_eq!(c.status(&write(r.stateid)).await, Status::OPENMODE);
    let b = c.open(&root, op::open_name(owner.clone(), share::ACCESS_WRITE, 0, "f")).await;
    assert_eq!((b.stateid.other, b.stateid.seqid), (r.stateid.other, r.stateid.seqid + 1));
    assert!(c.status(&write(b.stateid)).await.is_ok());
    c.read(&b, 0, 1).await;
    assert_eq!(c.status(&[op::put(&f.fh), op::read(r.stateid, 0, 1)]).await, Status::OLD_STATEID);
    // All opens count, the owner's own too (9.7): it has write access, so it cannot deny writing.
    let req = op::open_name(owner.clone(), share::ACCESS_BOTH, share::DENY_WRITE, "f");
    assert_eq!(open(&mut c, &root, req).await.unwrap_err(), Status::SHARE_DENIED);
    let d = c.open(&root, op::open_name(owner.clone(), share::ACCESS_BOTH, 0, "f")).await;
    assert_eq!(d.stateid.seqid, b.stateid.seqid + 1);
    assert_eq!(c.status(&[op::put(&f.fh), op::close(b.stateid)]).await, Status::OLD_STATEID);
    c.close(&d).await;
    assert_eq!(srv.fs.open_count(), 0, "one CLOSE ends it");
}

/// RFC 8881 18.18: to what some OPENs of the owner asked for together, and to nothing else.
#[tokio::test]
async fn downgrades() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = root(&mut c).await;
    let f = c.create(&root, "f").await;
    c.close(&f).await;
    let owner = c.owner("o");
    c.open(&root, op::open_name(owner.clone(), share::ACCESS_READ, 0, "f")).await;
    let b = c.open(&root, op::open_name(owner, share::ACCESS_BOTH, share::DENY_WRITE, "f")).await;
    let down = |s, a, d| [op::put(&f.fh), op::downgrade(s, a, d)];
    for (a, d) in
        [(0, 0), (share::ACCESS_BOTH, share::DENY_BOTH), (4, 0), (1, 8), (share::ACCESS_READ, share::DENY_READ)]
    {
        assert_eq!(c.status(&down(b.stateid, a, d)).await, Status::INVAL, "{a} {d}");
    }
    // Wishes for delegations mean nothing here, and are no error (18.18.3); alone they are no access.
    assert_eq!(c.status(&down(b.stateid, share::WANT_ANY_DELEG, 0)).await, Status::INVAL);
    let access = share::ACCESS_READ | share::WANT_NO_DELEG;
    let stateid = match c.ok(&down(b.stateid, access, 0)).await.pop() {
        Some(ResOp::OpenDowngrade(Ok(ok))) => ok.open_stateid,
        other => panic!("{other:?}"),
    };
    assert_eq!((stateid.other, stateid.seqid), (b.stateid.other, b.stateid.seqid + 1));
    let write = op::write(stateid, 0, StableHow::UNSTABLE, b"x");
    assert_eq!(c.status(&[op::put(&f.fh), write]).await, Status::OPENMODE);
    let w = open_both(&mut c, &root, "f", "other").await;
    c.close(&w).await;
    assert_eq!(c.status(&down(b.stateid, share::ACCESS_READ, 0)).await, Status::OLD_STATEID);
    c.ok(&[op::put(&f.fh), op::close(stateid)]).await;
}

/// RFC 8881 18.2.
#[tokio::test]
async fn closing() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = root(&mut c).await;
    let f = c.create(&root, "f").await;
    let g = c.create(&root, "g").await;
    assert_eq!(c.status(&[op::put(&g.fh), op::close(f.stateid)]).await, Status::BAD_STATEID, "of another file");
    for special in [Stateid::ANONYMOUS, Stateid::READ_BYPASS] {
        assert_eq!(c.status(&[op::put(&f.fh), op::close(special)]).await, Status::BAD_STATEID);
    }
    let later = Stateid { seqid: f.stateid.seqid + 1, ..f.stateid };
    assert_eq!(c.status(&[op::put(&f.fh), op::close(later)]).await, Status::BAD_STATEID);
    c.close(&f).await;
    assert_eq!(c.status(&[op::put(&f.fh), op::close(f.stateid)]).await, Status::BAD_STATEID);
    c.ok(&[op::put(&g.fh), op::close(Stateid { seqid: 0, ..g.stateid })]).await;
    assert_eq!(srv.fs.open_count(), 0);
}

/// CLAIM_FH, and claims that need what is not there (RFC 8881 18.16.3, 8.4.2, 9.1).
#[tokio::test]
async fn claims() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = root(&mut c).await;
    let f = c.create(&root, "f").await;
    let claim = |c: &Client, claim| op::open(c.owner("by handle"), 1, 0, OpenHow::NoCreate, claim);
    let req = claim(&c, OpenClaim::Fh);
    let ok = open(&mut c, &f.fh, req).await.unwrap();
    assert_ne!(ok.stateid.other, f.stateid.other);
    let req = claim(&c, OpenClaim::Previous(DelegationType::NONE));
    assert_eq!(open(&mut c, &f.fh, req).await.unwrap_err(), Status::NO_GRACE, "there was no restart");
    let bogus = Stateid { seqid: 1, other: [3; 12] };
    for odd in [
        OpenClaim::DelegateCur { stateid: bogus, file: "f".into() },
        OpenClaim::DelegCurFh(bogus),
        OpenClaim::DelegatePrev("f".into()),
        OpenClaim::DelegPrevFh,
    ] {
        let by_handle = odd.is_by_handle();
        let req = claim(&c, odd.clone());
        let status = open(&mut c, if by_handle { &f.fh } else { &root }, req).await.unwrap_err();
        let due = [
            Status::BAD_STATEID,
            Status::NOTSUPP,
            Status::INVAL,
            Status::RECLAIM_BAD,
            Status::NO_GRACE,
            Status::EXPIRED,
        ];
        assert!(due.contains(&status), "{odd:?}: {status:?}");
    }
    // Creating goes by name.
    let how = OpenHow::Create(CreateHow::Unchecked(mode(0o600).into()));
    let req = op::open(c.owner("o"), 3, 0, how, OpenClaim::Fh);
    let status = c.status(&[op::put(&f.fh), req]).await;
    assert!(matches!(status, Status::INVAL | Status::OK), "{status:?}");
}

/// A file that was removed is there for who has it open, and gone after (RFC 8881 18.25.4).
#[tokio::test]
async fn removed_while_open() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = root(&mut c).await;
    let f = c.create(&root, "f").await;
    c.write(&f, 0, b"still").await;
    c.ok(&[op::put(&root), op::remove("f")]).await;
    assert_eq!(c.read(&f, 0, 10).await.0, "still");
    c.write(&f, 5, b"!").await;
    c.ok(&[op::put(&f.fh), op::getattr(&[SIZE, CHANGE])]).await;
    c.close(&f).await;
    assert_eq!(c.status(&[op::put(&f.fh), op::getattr(&[TYPE])]).await, Status::STALE);
    assert_eq!(srv.fs.object_count(), 1);
}

/// Permissions: whoever may not, does not, the owner included, but for the open that creates (case B01).
#[tokio::test]
async fn permissions() {
    let srv = Srv::start().await;
    let mut c = srv.client_as("c", 1000, 1000, &[]).await;
    let root = root(&mut c).await;
    let owner = c.owner("o");
    let f = c.open(&root, op::open_create(owner, 3, 0, "f", 0o604)).await;
    c.close(&f).await;
    c.wire.cred = dhow_testkit::wire::sys(1001, 1001, &[]);
    let req = |c: &Client, access| op::open_name(c.owner("thief"), access, 0, "f");
    let write = req(&c, share::ACCESS_WRITE);
    assert_eq!(open(&mut c, &root, write.clone()).await.unwrap_err(), Status::ACCESS);
    let read = req(&c, share::ACCESS_READ);
    let r = open(&mut c, &root, read).await.unwrap();
    c.ok(&[op::put(&f.fh), op::close(r.stateid)]).await;
    c.wire.cred = dhow_testkit::wire::sys(1000, 1000, &[]);
    c.ok(&[op::put(&f.fh), op::setattr(mode(0))]).await;
    assert_eq!(open(&mut c, &root, write).await.unwrap_err(), Status::ACCESS);
    let denied = srv.fs.open_count();
    assert_eq!(denied, 0, "a refused OPEN leaves nothing open");
}

/// A file made by an OPEN that then fails stays, and nothing stays open.
#[tokio::test]
async fn a_create_that_meets_a_deny() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = root(&mut c).await;
    let owner = c.owner("o");
    let f = c.open(&root, op::open_create(owner, 3, share::DENY_BOTH, "f", 0o644)).await;
    let req = op::open_create(c.owner("p"), 3, 0, "f", 0o644);
    assert_eq!(open(&mut c, &root, req).await.unwrap_err(), Status::SHARE_DENIED);
    // And does not truncate what it may not open.
    c.write(&f, 0, b"data").await;
    let truncating = Attrs { size: Some(0), ..Attrs::default() };
    let how = OpenHow::Create(CreateHow::Unchecked(truncating.into()));
    let req = op::open(c.owner("p"), 3, 0, how, OpenClaim::Null("f".into()));
    assert_eq!(open(&mut c, &root, req).await.unwrap_err(), Status::SHARE_DENIED);
    assert_eq!(srv.fs.content_of("f").unwrap(), "data");
    assert_eq!(srv.fs.open_count(), 1);
}

/// The longest owner (NFS4_OPAQUE_LIMIT), an empty one, and one too long.
#[tokio::test]
async fn owners() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = root(&mut c).await;
    c.create(&root, "f").await;
    for len in [0, 1, 1024] {
        let owner = c.owner(vec![b'o'; len]);
        let o = c.open(&root, op::open_name(owner, 1, 0, "f")).await;
        c.close(&o).await;
    }
    let owner = c.owner(vec![b'o'; 1025]);
    let res = c.run(&[op::put(&root), op::open_name(owner, 1, 0, "f")]).await;
    assert_eq!(last(&res), (OpNum::OPEN, Status::BADXDR));
    // The client ID in an owner is ignored in 4.1 (RFC 8881 18.16.3: clientid MUST be ignored).
    let mut owner = c.owner("x");
    owner.client.0 ^= 0xff;
    assert!(open(&mut c, &root, op::open_name(owner, 1, 0, "f")).await.is_ok());
}

/// Case B11: the retry of an exclusive create finds its file also when the server has restarted in between.
#[tokio::test]
async fn exclusive_over_a_restart() {
    use crate::common::{config, open_to_all, start};
    use dhow_server::ExportConfig;
    use dhow_testkit::MemFs;
    use dhow_testkit::wire::ClientOptions;
    let fs = MemFs::new();
    let export = || vec![ExportConfig { path: "/".into(), backend: fs.clone(), options: open_to_all() }];
    let verifier = Verifier(*b"\x7f\xff\xff\xff\xff\xff\xff\xff");
    let how = |v| CreateHow::Exclusive41 { verifier: v, attrs: mode(0o640).into() };
    let (running, addr) = start(config(export())).await;
    let mut c = Client::connect(addr, ClientOptions::default()).await;
    let dir = root(&mut c).await;
    let req = creating(&c, how(verifier), "f");
    open(&mut c, &dir, req).await.unwrap();
    running.shutdown().await;
    fs.crash();

    let (_running, addr) = start(config(export())).await;
    let mut c = Client::connect(addr, ClientOptions::default()).await;
    let dir = root(&mut c).await;
    let req = creating(&c, how(Verifier([1; 8])), "f");
    assert_eq!(open(&mut c, &dir, req).await.unwrap_err(), Status::EXIST);
    let req = creating(&c, how(verifier), "f");
    open(&mut c, &dir, req).await.unwrap();
    let f = c.walk("f").await;
    assert_eq!(c.attrs(&f, &[MODE]).await.mode, Some(0o640));
}

/// RFC 8881 18.30.3, 9.1.2: SETATTR of a size is a write: a deny stands against it, and the stateid's mode counts.
#[tokio::test]
async fn truncation_is_a_write() {
    let srv = Srv::start().await;
    let (mut c, mut other) = (srv.client("c").await, srv.client("other").await);
    let root = root(&mut c).await;
    let owner = c.owner("o");
    let f = c.open(&root, op::open_create(owner, share::ACCESS_BOTH, share::DENY_WRITE, "f", 0o666)).await;
    c.write(&f, 0, b"data").await;
    let size = |n| Attrs { size: Some(n), ..Attrs::default() };
    assert_eq!(other.status(&[op::put(&f.fh), op::setattr(size(0))]).await, Status::LOCKED);
    let owner = other.owner("r");
    let r = other.open(&root, op::open_name(owner, share::ACCESS_READ, 0, "f")).await;
    assert_eq!(other.status(&[op::put(&f.fh), op::setattr_with(r.stateid, size(0))]).await, Status::OPENMODE);
    let res = other.run(&[op::put(&f.fh), op::setattr_with(Stateid { seqid: 1, other: [8; 12] }, size(0))]).await;
    assert_eq!(last(&res), (OpNum::SETATTR, Status::BAD_STATEID));
    // An OPEN that truncates without writing otherwise, and other changes under the anonymous stateid: a final word, not
    // DELAY, which would be asked again for as long as the file is open.
    let truncating = CreateHow::Unchecked(size(0).into());
    let owner = other.owner("t");
    let open = op::open(owner, share::ACCESS_READ, 0, OpenHow::Create(truncating), OpenClaim::Null("f".into()));
    assert_eq!(other.status(&[op::put(&root), open]).await, Status::SHARE_DENIED);
    let args = AllocateArgs { stateid: Stateid::ANONYMOUS, offset: 0, length: 10 };
    assert_eq!(other.status(&[op::put(&f.fh), ArgOp::Allocate(args)]).await, Status::ACCESS);
    assert_eq!(srv.fs.content_of("f").unwrap(), "data");
    // Other attributes are no matter of state.
    other.ok(&[op::put(&f.fh), op::setattr(mode(0o600))]).await;
    c.ok(&[op::put(&f.fh), op::setattr_with(f.stateid, size(2))]).await;
    assert_eq!(srv.fs.content_of("f").unwrap(), "da");
}

/// RFC 8881 18.25.4, 18.26.4: a name of a file that somebody has open and denies writing to others is not removed and not
/// replaced, be it by the same client; it may be renamed; with the CLOSE it may go.
#[tokio::test]
async fn a_deny_keeps_the_name() {
    let srv = Srv::start().await;
    let (mut c, mut other) = (srv.client("c").await, srv.client("other").await);
    let root = root(&mut c).await;
    let rename = |from: &str, to: &str| [op::put(&root), ArgOp::SaveFh, op::rename(from, to)];
    let spare = c.create(&root, "spare").await;
    c.close(&spare).await;
    for (deny, kept) in [(share::DENY_READ, false), (share::DENY_WRITE, true), (share::DENY_BOTH, true)] {
        let owner = c.owner("o");
        let f = c.open(&root, op::open_create(owner, share::ACCESS_BOTH, deny, "f", 0o644)).await;
        for by in [&mut other, &mut c] {
            if kept {
                assert_eq!(by.status(&[op::put(&root), op::remove("f")]).await, Status::FILE_OPEN, "{deny}");
                assert_eq!(by.status(&rename("spare", "f")).await, Status::FILE_OPEN, "{deny}");
            }
            by.ok(&rename("f", "g")).await;
            by.ok(&rename("g", "f")).await;
        }
        c.write(&f, 0, b"kept").await;
        assert_eq!(srv.fs.content_of("f").unwrap(), "kept");
        if kept {
            c.close(&f).await;
        }
        other.ok(&[op::put(&root), op::remove("f")]).await;
        if !kept {
            c.close(&f).await;
        }
    }
}
