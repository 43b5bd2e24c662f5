//! Attributes (RFC 8881 5, 18.7, 18.30, 18.31, 18.15).

use crate::common::{Srv, last, open_to_all};
use dhow_local::{Local, Options};
use dhow_proto::v4::attr::{self, *};
use dhow_proto::v4::ops::{CreateType, VerifyArgs};
use dhow_proto::v4::{ArgOp, Attrs, Bitmap, Fattr, FileHandle, ModeMasked, NfsTime, OpNum, ResOp, SetTime, Status};
use dhow_testkit::fault::{Action, Call};
use dhow_testkit::wire::{Client, op};
use dhow_testkit::{MemFs, memfs};
use dhow_vfs::ErrorKind;
use std::sync::Arc;

async fn file(c: &mut Client) -> FileHandle {
    let root = c.walk("").await;
    let open = c.create(&root, "f").await;
    c.close(&open).await;
    open.fh
}

async fn set(c: &mut Client, fh: &FileHandle, attrs: impl Into<Fattr>) -> (Status, Bitmap) {
    let args = dhow_proto::v4::ops::SetattrArgs { stateid: dhow_proto::v4::Stateid::ANONYMOUS, attrs: attrs.into() };
    match c.run(&[op::put(fh), ArgOp::Setattr(args)]).await.results.pop() {
        Some(ResOp::Setattr(res)) => (res.status, res.attrsset),
        other => panic!("{other:?}"),
    }
}

async fn supported(c: &mut Client, fh: &FileHandle) -> Bitmap {
    c.attrs(fh, &[SUPPORTED_ATTRS]).await.supported_attrs.unwrap()
}

/// Case B40: every attribute that is advertised can be had, one by one and all together; those that can only be set
/// are not had (5.5).
#[tokio::test]
async fn what_is_advertised_can_be_had() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let f = file(&mut c).await;
    let root = c.walk("").await;
    for fh in [f, root] {
        let all = supported(&mut c, &fh).await;
        for required in [
            TYPE,
            FH_EXPIRE_TYPE,
            CHANGE,
            SIZE,
            LINK_SUPPORT,
            SYMLINK_SUPPORT,
            NAMED_ATTR,
            FSID,
            UNIQUE_HANDLES,
            LEASE_TIME,
            RDATTR_ERROR,
            FILEHANDLE,
            SUPPATTR_EXCLCREAT,
        ] {
            assert!(all.contains(required), "{:?} is REQUIRED (5.6)", attr::name(required));
        }
        let readable = all.minus(&WRITE_ONLY);
        for n in readable.iter() {
            let got = c.attrs(&fh, &[n]).await;
            assert!(got.mask().is_subset(&Bitmap::of(&[n])), "{:?}", attr::name(n));
            // rdattr_error belongs to READDIR; the others are there.
            assert!(got.mask().contains(n) || n == RDATTR_ERROR, "{:?} is advertised", attr::name(n));
        }
        let numbers: Vec<u32> = readable.iter().collect();
        let got = c.attrs(&fh, &numbers).await.mask();
        assert!(readable.without(RDATTR_ERROR).is_subset(&got));
        for n in all.and(&WRITE_ONLY).iter() {
            assert_eq!(c.status(&[op::put(&fh), op::getattr(&[n])]).await, Status::INVAL, "{:?}", attr::name(n));
        }
        // What is not supported, or unknown, is left out (18.7.3).
        let strange = [HIDDEN, SYSTEM, 58, 63 + 10, 90, 127];
        let got = c.attrs(&fh, &[&strange[..], &[TYPE]].concat()).await.mask();
        assert!(got.contains(TYPE) && got.is_subset(&all));
    }
}

/// The values themselves, where a test can know them.
#[tokio::test]
async fn values() {
    let srv = Srv::start().await;
    let mut c = srv.client_as("c", 1000, 100, &[]).await;
    let root = c.walk("").await;
    let open = c.create(&root, "f").await;
    c.write(&open, 0, &[1; 5000]).await;
    let numbers: Vec<u32> = supported(&mut c, &open.fh).await.minus(&WRITE_ONLY).iter().collect();
    let a = c.attrs(&open.fh, &numbers).await;
    assert_eq!((a.size, a.numlinks, a.mode), (Some(5000), Some(1), Some(0o644)));
    assert_eq!((a.owner.as_deref(), a.owner_group.as_deref()), (Some(&b"1000"[..]), Some(&b"100"[..])), "numeric");
    assert_eq!(a.filehandle.as_ref(), Some(&open.fh));
    assert_eq!((a.named_attr, a.unique_handles), (Some(false), Some(true)));
    assert_eq!(a.fh_expire_type, Some(0), "handles are persistent (4.2.3)");
    assert_eq!(a.maxname, Some(255));
    assert!(a.lease_time.unwrap() > 0 && a.maxread.unwrap() >= 4096 && a.maxwrite.unwrap() >= 4096);
    assert!(a.maxfilesize.unwrap() > u64::from(u32::MAX));
    assert!(a.space_used.unwrap() >= 5000 && a.time_delta.unwrap().secs == 0);
    assert_eq!(a.fileid, a.mounted_on_fileid);
    assert_eq!(a.case_insensitive, Some(false));
    for t in [a.time_access, a.time_modify, a.time_metadata] {
        assert!(t.unwrap().secs > 1_700_000_000 && t.unwrap().nanos < 1_000_000_000);
    }
}

/// Case B40: attrset says exactly what was set, also of several at once.
#[tokio::test]
async fn attrset_is_exact() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let f = file(&mut c).await;
    let attrs = Attrs {
        mode: Some(0o751),
        owner: Some("1234".into()),
        owner_group: Some("5678".into()),
        size: Some(77),
        time_modify_set: Some(SetTime::Client(NfsTime { secs: 1_000_000_000, nanos: 5 })),
        time_access_set: Some(SetTime::Server),
        ..Attrs::default()
    };
    let (status, done) = set(&mut c, &f, &attrs).await;
    assert_eq!((status, done), (Status::OK, attrs.mask()));
    let got = c.attrs(&f, &[MODE, OWNER, OWNER_GROUP, SIZE, TIME_MODIFY]).await;
    assert_eq!((got.mode, got.size), (Some(0o751), Some(77)));
    assert_eq!((got.owner.as_deref(), got.owner_group.as_deref()), (Some(&b"1234"[..]), Some(&b"5678"[..])));
    assert_eq!(got.time_modify, Some(NfsTime { secs: 1_000_000_000, nanos: 5 }));
    assert_eq!(set(&mut c, &f, &Attrs::default()).await, (Status::OK, Bitmap::EMPTY), "nothing is no error");
}

/// Case B18: times before 1970 and after 2106, to the nanosecond; nanoseconds above 999,999,999 are INVAL (18.30.3).
#[tokio::test]
async fn times() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let f = file(&mut c).await;
    for (secs, nanos) in
        [(-315_619_200, 0), (2_208_988_800, 999_999_999), (-14_182_980, 750_000_000), (0, 0), (1 << 33, 1)]
    {
        let t = NfsTime { secs, nanos };
        let both = Some(SetTime::Client(t));
        let (status, _) =
            set(&mut c, &f, &Attrs { time_access_set: both, time_modify_set: both, ..Attrs::default() }).await;
        assert_eq!(status, Status::OK);
        let got = c.attrs(&f, &[TIME_ACCESS, TIME_MODIFY]).await;
        assert_eq!((got.time_access, got.time_modify), (Some(t), Some(t)));
    }
    for nanos in [1_000_000_000, u32::MAX] {
        let t = Some(SetTime::Client(NfsTime { secs: 5, nanos }));
        let (status, done) = set(&mut c, &f, &Attrs { time_modify_set: t, ..Attrs::default() }).await;
        assert_eq!((status, done), (Status::INVAL, Bitmap::EMPTY), "{nanos} nanoseconds");
    }
}

/// Case B12: time_create is set, or reported as unsupported, in step with supported_attrs.
#[tokio::test]
async fn setting_the_birth() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let f = file(&mut c).await;
    let attrs = Attrs { time_create: Some(NfsTime { secs: 1, nanos: 0 }), ..Attrs::default() };
    let (status, done) = set(&mut c, &f, &attrs).await;
    match status {
        Status::OK => assert!(done.contains(TIME_CREATE)),
        Status::ATTRNOTSUPP | Status::INVAL => assert!(done.is_empty()),
        other => panic!("{other:?}"),
    }
    if !supported(&mut c, &f).await.contains(TIME_CREATE) {
        assert_eq!(status, Status::ATTRNOTSUPP);
    }
}

/// RFC 8881 18.30.4, 15.1.15: what cannot be set, and values that make no sense.
#[tokio::test]
async fn what_cannot_be_set() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let f = file(&mut c).await;
    let root = c_root(&mut c).await;
    let d = c.mkdir(&root, "d").await;
    let before = c.attrs(&f, &[CHANGE, MODE, SIZE]).await;
    let cases: [(&str, Attrs, &[Status]); 10] = [
        ("a type", Attrs { file_type: Some(dhow_proto::v4::FileType::DIR), ..Attrs::default() }, &[Status::INVAL]),
        ("a change", Attrs { change: Some(1), ..Attrs::default() }, &[Status::INVAL]),
        ("a fileid", Attrs { fileid: Some(1), ..Attrs::default() }, &[Status::INVAL]),
        ("a ctime", Attrs { time_metadata: Some(NfsTime::default()), ..Attrs::default() }, &[Status::INVAL]),
        ("a time to be read", Attrs { time_modify: Some(NfsTime::default()), ..Attrs::default() }, &[Status::INVAL]),
        ("hidden", Attrs { hidden: Some(true), ..Attrs::default() }, &[Status::ATTRNOTSUPP]),
        ("a mode of many bits", Attrs { mode: Some(0o10_0000), ..Attrs::default() }, &[Status::INVAL, Status::OK]),
        (
            "an unknown owner",
            Attrs { owner: Some("nobody@nowhere.invalid".into()), ..Attrs::default() },
            &[Status::BADOWNER],
        ),
        ("an empty owner", Attrs { owner: Some("".into()), ..Attrs::default() }, &[Status::BADOWNER, Status::INVAL]),
        ("a huge owner", Attrs { owner: Some("99999999999".into()), ..Attrs::default() }, &[Status::BADOWNER]),
    ];
    for (what, attrs, due) in cases {
        let (status, done) = set(&mut c, &f, &attrs).await;
        assert!(due.contains(&status), "{what}: {status:?}");
        assert!(status.is_ok() || done.is_empty(), "{what}: {done:?}");
    }
    let size = Attrs { size: Some(0), ..Attrs::default() };
    let (status, _) = set(&mut c, &d, &size).await;
    assert!(
        matches!(status, Status::ISDIR | Status::INVAL | Status::WRONG_TYPE),
        "the size of a directory: {status:?}"
    );
    let (status, _) = set(&mut c, &f, &Attrs { size: Some(u64::MAX), ..Attrs::default() }).await;
    assert!(matches!(status, Status::FBIG | Status::INVAL), "{status:?}");
    let after = c.attrs(&f, &[CHANGE, SIZE]).await;
    assert_eq!(after.size, before.size);

    // Values that are cut, too long, or of an attribute that nobody knows.
    let good = Fattr::from(Attrs { mode: Some(0o600), ..Attrs::default() });
    let cut = Fattr { values: good.values.slice(..0), ..good.clone() };
    let long = Fattr { values: vec![0; 8].into(), ..good.clone() };
    let unknown = Fattr { mask: Bitmap::of(&[90]), values: vec![0; 4].into() };
    assert_eq!(set(&mut c, &f, cut).await.0, Status::BADXDR);
    assert_eq!(set(&mut c, &f, long).await.0, Status::BADXDR);
    assert_eq!(set(&mut c, &f, unknown).await.0, Status::ATTRNOTSUPP);
}

async fn c_root(c: &mut Client) -> FileHandle {
    c.walk("").await
}

/// RFC 8881 6.2.5: mode_set_masked touches the bits of its mask; not together with mode.
#[tokio::test]
async fn masked_modes() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let f = file(&mut c).await;
    if !supported(&mut c, &f).await.contains(MODE_SET_MASKED) {
        return;
    }
    let masked = Some(ModeMasked { value: 0o070, mask: 0o070 });
    assert_eq!(set(&mut c, &f, &Attrs { mode_set_masked: masked, ..Attrs::default() }).await.0, Status::OK);
    assert_eq!(c.attrs(&f, &[MODE]).await.mode, Some(0o674));
    let both = Attrs { mode_set_masked: masked, mode: Some(0o600), ..Attrs::default() };
    assert_eq!(set(&mut c, &f, &both).await.0, Status::INVAL);
}

/// The change attribute (5.8.1.4): every change of data, metadata or links; nothing else.
#[tokio::test]
async fn changes() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c_root(&mut c).await;
    let open = c.create(&root, "f").await;
    let mut seen = vec![c.attrs(&open.fh, &[CHANGE]).await.change.unwrap()];
    for i in 0..5 {
        c.write(&open, i, b"x").await;
        seen.push(c.attrs(&open.fh, &[CHANGE]).await.change.unwrap());
        c.ok(&[op::put(&open.fh), op::setattr(Attrs { mode: Some(0o600 + i as u32), ..Attrs::default() })]).await;
        seen.push(c.attrs(&open.fh, &[CHANGE]).await.change.unwrap());
        c.ok(&[op::put(&open.fh), ArgOp::SaveFh, op::put(&root), op::link(format!("l{i}"))]).await;
        seen.push(c.attrs(&open.fh, &[CHANGE]).await.change.unwrap());
    }
    let all = seen.len();
    seen.dedup();
    assert_eq!(seen.len(), all);
    c.read(&open, 0, 10).await;
    assert_eq!(c.attrs(&open.fh, &[CHANGE]).await.change, seen.last().copied());
}

/// RFC 8881 18.31 and 18.15.
#[tokio::test]
async fn verify_and_nverify() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let f = file(&mut c).await;
    let verify = |attrs: &Attrs| ArgOp::Verify(VerifyArgs { attrs: attrs.into() });
    let nverify = |attrs: &Attrs| ArgOp::Nverify(VerifyArgs { attrs: attrs.into() });
    let right = c.attrs(&f, &[TYPE, SIZE, CHANGE, FILEID]).await;
    let wrong = Attrs { size: Some(1), ..right.clone() };
    assert_eq!(c.status(&[op::put(&f), verify(&right)]).await, Status::OK);
    assert_eq!(c.status(&[op::put(&f), verify(&wrong)]).await, Status::NOT_SAME);
    assert_eq!(c.status(&[op::put(&f), nverify(&right)]).await, Status::SAME);
    assert_eq!(c.status(&[op::put(&f), nverify(&wrong)]).await, Status::OK);
    let set_only = Attrs { time_modify_set: Some(SetTime::Server), ..Attrs::default() };
    let unsupported = Attrs { hidden: Some(false), ..Attrs::default() };
    for op in [verify, nverify] {
        let res = c.run(&[op::put(&f), op(&set_only)]).await;
        assert_eq!(last(&res).1, Status::INVAL);
        let res = c.run(&[op::put(&f), op(&unsupported)]).await;
        assert_eq!(last(&res).1, Status::ATTRNOTSUPP);
    }
    // The use of it: nothing is done when the file has changed.
    let res = c.run(&[op::put(&f), verify(&wrong), op::setattr(Attrs { mode: Some(0), ..Attrs::default() })]).await;
    assert_eq!(last(&res), (OpNum::VERIFY, Status::NOT_SAME));
}

/// RFC 8881 18.1: the rights asked for, and those among them that are had.
#[tokio::test]
async fn access() {
    let srv = Srv::start().await;
    let mut c = srv.client_as("c", 1000, 1000, &[]).await;
    let root = c_root(&mut c).await;
    let f = c.create(&root, "f").await;
    c.ok(&[op::put(&f.fh), op::setattr(Attrs { mode: Some(0o540), ..Attrs::default() })]).await;
    let ask = async |c: &mut Client, want| match c.ok(&[op::put(&f.fh), op::access(want)]).await.pop() {
        Some(ResOp::Access(Ok(ok))) => (ok.supported, ok.access),
        other => panic!("{other:?}"),
    };
    let (supported, have) = ask(&mut c, 0x3f).await;
    assert_eq!(have, 0x21, "READ and EXECUTE");
    assert!(supported & have == have && supported & !0x3f == 0);
    assert_eq!(ask(&mut c, 0x01).await, (0x01, 0x01));
    assert_eq!(ask(&mut c, 0).await, (0, 0));
    c.wire.cred = dhow_testkit::wire::sys(1001, 1001, &[]);
    assert_eq!(ask(&mut c, 0x3f).await.1, 0);
    let status = c.status(&[op::put(&f.fh), op::access(0xffff_fe00)]).await;
    assert!(matches!(status, Status::OK | Status::INVAL));
}

/// What every POSIX filesystem can answer, and what it cannot: the whole table (RFC 8881 5.6, 5.7, RFC 7862 12.1,
/// RFC 8275, RFC 8276, RFC 9754) by number, so that nothing comes or goes unnoticed.
#[tokio::test]
async fn the_whole_table() {
    let srv = Srv::start().await;
    for minor in [1, 2] {
        let options = dhow_testkit::wire::ClientOptions { minor, ..dhow_testkit::wire::ClientOptions::named("c") };
        let mut c = Client::connect(srv.addr, options).await;
        let root = c.walk("").await;
        let all = supported(&mut c, &root).await;
        for n in 0..=95 {
            let due = match n {
                // No access control lists in memory, no backup bits, no quotas, no MIME types here.
                ACL | ARCHIVE | HIDDEN | MIMETYPE | QUOTA_AVAIL_HARD | QUOTA_AVAIL_SOFT | QUOTA_USED | SYSTEM => false,
                TIME_BACKUP => false,
                // Numbers 0 to 55 are those of NFSv4.0.
                0..=55 => true,
                // Notifications, dacl and sacl, policies, layouts, retention: none of these.
                56..=73 => false,
                MODE_SET_MASKED | SUPPATTR_EXCLCREAT | FS_CHARSET_CAP => true,
                CLONE_BLKSIZE | SPACE_FREED | CHANGE_ATTR_TYPE => minor >= 2,
                SEC_LABEL => false,
                MODE_UMASK | XATTR_SUPPORT | OFFLINE => minor >= 2,
                OPEN_ARGUMENTS => minor >= 2,
                // Whether delegations keep times is theirs to say; above are no numbers yet.
                TIME_DELEG_ACCESS | TIME_DELEG_MODIFY => continue,
                _ => false,
            };
            assert_eq!(all.contains(n), due, "{n} {:?} in 4.{minor}", attr::name(n));
        }
    }
}

/// suppattr_exclcreat (RFC 8881 5.8.1.14): exactly what an OPEN with EXCLUSIVE4_1 takes, one by one.
#[tokio::test]
async fn what_an_exclusive_create_takes() {
    use dhow_proto::v4::ops::{CreateHow, OpenClaim, OpenHow, share};
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let told = c.attrs(&root, &[SUPPATTR_EXCLCREAT]).await.suppattr_exclcreat.unwrap();
    let t = Some(SetTime::Client(NfsTime { secs: 5, nanos: 6 }));
    let one = [
        Attrs { size: Some(7), ..Attrs::default() },
        Attrs { mode: Some(0o640), ..Attrs::default() },
        Attrs { owner: Some("7".into()), ..Attrs::default() },
        Attrs { owner_group: Some("8".into()), ..Attrs::default() },
        Attrs { time_access_set: t, ..Attrs::default() },
        Attrs { time_modify_set: t, ..Attrs::default() },
        Attrs { mode_umask: Some(dhow_proto::v4::ModeUmask { mode: 0o666, umask: 0o22 }), ..Attrs::default() },
        Attrs { mode_set_masked: Some(ModeMasked { value: 0, mask: 1 }), ..Attrs::default() },
        Attrs { time_create: Some(NfsTime::default()), ..Attrs::default() },
        Attrs { hidden: Some(true), ..Attrs::default() },
        Attrs { acl: Some(Vec::new()), ..Attrs::default() },
    ];
    let mut taken = Bitmap::EMPTY;
    for (i, attrs) in one.into_iter().enumerate() {
        let (mask, owner) = (attrs.mask(), c.owner(format!("o{i}")));
        let verifier = dhow_proto::v4::Verifier([i as u8; 8]);
        let how = OpenHow::Create(CreateHow::Exclusive41 { verifier, attrs: attrs.into() });
        let claim = OpenClaim::Null(format!("f{i}").into());
        let open = op::open(owner, share::ACCESS_BOTH, share::DENY_NONE, how, claim);
        let res = c.run(&[op::put(&root), open]).await;
        match res.results.last() {
            Some(ResOp::Open(Ok(ok))) => {
                assert_eq!(ok.attrset, mask, "attrset is exact (case B40)");
                taken = taken.or(&mask);
            }
            // 18.16.3: MUST be INVAL, whatever SETATTR would say.
            other => assert!(matches!(other, Some(ResOp::Open(Err(Status::INVAL)))), "{other:?}"),
        }
    }
    assert_eq!(taken, told);
}

/// RFC 8881 18.16.3: a create of any kind applies the attributes that came with it and says so; a second one leaves them
/// alone, if it opens at all.
#[tokio::test]
async fn attributes_of_a_create_are_applied() {
    create_with_attributes(&Srv::start().await).await;
    if dhow_sys::cred::can_switch_identity() {
        let t = crate::tree::Tree::with(&std::env::temp_dir(), |_| {}, |_| {}).await;
        create_with_attributes(&t.srv).await;
    }
}

async fn create_with_attributes(srv: &Srv) {
    use dhow_proto::v4::Verifier;
    use dhow_proto::v4::ops::{CreateHow, OpenClaim, OpenHow, share};
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let (atime, mtime) = (NfsTime { secs: -5, nanos: 6 }, NfsTime { secs: 3_000_000_000, nanos: 7 });
    let first = Attrs {
        size: Some(4097),
        mode: Some(0o4741),
        owner: Some("7".into()),
        owner_group: Some("8".into()),
        time_access_set: Some(SetTime::Client(atime)),
        time_modify_set: Some(SetTime::Client(mtime)),
        ..Attrs::default()
    };
    let other = Attrs { mode: Some(0o600), owner: Some("9".into()), ..Attrs::default() };
    let verifier = Verifier(*b"verifier");
    type Make = fn(Verifier, Fattr) -> CreateHow;
    let kinds: [(&str, Make, Status); 3] = [
        ("unchecked", |_, a| CreateHow::Unchecked(a), Status::OK),
        ("guarded", |_, a| CreateHow::Guarded(a), Status::EXIST),
        ("exclusive", |verifier, attrs| CreateHow::Exclusive41 { verifier, attrs }, Status::OK),
    ];
    for (name, make, again) in kinds {
        let open = |c: &Client, v, attrs: &Attrs| {
            let claim = OpenClaim::Null(name.into());
            let how = OpenHow::Create(make(v, attrs.into()));
            [op::put(&root), op::open(c.owner("o"), share::ACCESS_BOTH, share::DENY_NONE, how, claim), op::getfh()]
        };
        let fh = match &c.ok(&open(&c, verifier, &first)).await[1..] {
            [ResOp::Open(Ok(ok)), ResOp::GetFh(Ok(fh))] => {
                assert_eq!(ok.attrset, first.mask(), "{name}");
                fh.object.clone()
            }
            other => panic!("{other:?}"),
        };
        let wanted = [SIZE, MODE, OWNER, OWNER_GROUP, TIME_ACCESS, TIME_MODIFY];
        let due = c.attrs(&fh, &wanted).await;
        assert_eq!((due.size, due.mode), (Some(4097), Some(0o4741)), "{name}");
        assert_eq!((due.owner.as_deref(), due.owner_group.as_deref()), (Some(&b"7"[..]), Some(&b"8"[..])), "{name}");
        assert_eq!((due.time_access, due.time_modify), (Some(atime), Some(mtime)), "{name}");
        assert_eq!(c.status(&open(&c, verifier, &first)).await, again, "{name}, again");
        if name != "exclusive" {
            assert_eq!(c.status(&open(&c, verifier, &other)).await, again, "{name}, with others");
        } else {
            assert_eq!(c.status(&open(&c, Verifier([0; 8]), &first)).await, Status::EXIST);
        }
        assert_eq!(c.attrs(&fh, &wanted).await, due, "{name}: what is there stays as it is");
    }
    // mode_umask is for creates (RFC 8275 4.2): of each kind, and in an exclusive one too.
    for (n, (name, make, _)) in kinds.into_iter().enumerate() {
        let umask =
            Attrs { mode_umask: Some(dhow_proto::v4::ModeUmask { mode: 0o777, umask: 0o027 }), ..Attrs::default() };
        let claim = OpenClaim::Null(format!("umask{n}").into());
        let how = OpenHow::Create(make(verifier, (&umask).into()));
        let f = c.open(&root, op::open(c.owner("o"), share::ACCESS_BOTH, share::DENY_NONE, how, claim)).await;
        assert_eq!(c.attrs(&f.fh, &[MODE]).await.mode, Some(0o750), "{name}");
    }
}

/// The values of what minor version 2 added, and of what else a test can know (RFC 7862 12.2, RFC 8881 5.8.2).
#[tokio::test]
async fn values_of_minor_version_2() {
    use dhow_proto::v4::ChangeAttrType;
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    c.write(&f, 0, &[1; 50_000]).await;
    let wanted = [
        SPACE_FREED,
        SPACE_USED,
        CHANGE_ATTR_TYPE,
        CLONE_BLKSIZE,
        XATTR_SUPPORT,
        NUMLINKS,
        HOMOGENEOUS,
        FS_CHARSET_CAP,
    ];
    let one = c.attrs(&f.fh, &wanted).await;
    // 12.2.2: what would be freed if it were removed: all of it under its only name, nothing under one of two.
    assert_eq!((one.numlinks, one.space_freed), (Some(1), one.space_used));
    assert!(one.space_freed.unwrap() >= 50_000);
    c.ok(&[op::put(&f.fh), ArgOp::SaveFh, op::put(&root), op::link("twin")]).await;
    let two = c.attrs(&f.fh, &wanted).await;
    assert_eq!((two.numlinks, two.space_freed), (Some(2), Some(0)));
    assert_eq!((one.xattr_support, one.homogeneous), (Some(true), Some(true)));
    assert_eq!(one.fs_charset_cap, Some(1), "names are bytes");
    assert!(one.clone_blksize.unwrap().is_power_of_two());
    // 12.2.3: said only if it is true: a counter goes up by one with each change, a version never down.
    let kind = one.change_attr_type.unwrap();
    let before = c.attrs(&f.fh, &[CHANGE, TIME_METADATA]).await;
    c.ok(&[op::put(&f.fh), op::setattr(Attrs { mode: Some(0o611), ..Attrs::default() })]).await;
    let after = c.attrs(&f.fh, &[CHANGE, TIME_METADATA]).await;
    match kind {
        ChangeAttrType::UNDEFINED => assert_ne!(before.change, after.change),
        _ => assert!(after.change > before.change, "{kind:?}"),
    }
}

/// fs_locations (11.16: the root, and nowhere else), offline and open_arguments (RFC 9754).
#[tokio::test]
async fn locations_and_arguments() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let a = c.attrs(&root, &[FS_LOCATIONS, OFFLINE, OPEN_ARGUMENTS]).await;
    let locations = a.fs_locations.unwrap();
    assert!(locations.root.0.is_empty() && locations.locations.is_empty(), "{locations:?}");
    assert_eq!(a.offline, Some(false));
    let args = a.open_arguments.unwrap();
    assert_eq!(args.share_access, Bitmap::of(&[1, 2, 3]));
    assert_eq!(args.share_deny, Bitmap::of(&[0, 1, 2, 3]));
    assert_eq!(args.open_claim, Bitmap::of(&[0, 1, 2, 4, 5]), "all but what outlives a restart of the client");
    assert_eq!(args.create_mode, Bitmap::of(&[0, 1, 2, 3]));
    // What is set by nobody is not settable.
    for attrs in [Attrs { offline: Some(true), ..Attrs::default() }, Attrs { fileid: Some(2), ..Attrs::default() }] {
        assert_eq!(set(&mut c, &root, attrs).await.0, Status::INVAL);
    }
}

/// Over a directory of this machine: times as far as its filesystem has them (case B18), birth times, space, counts,
/// names that are no UTF-8 (cases B14, B15), and numbers that are the same wherever they are shown (case B09).
#[tokio::test]
async fn of_a_real_filesystem() {
    use std::os::unix::fs::MetadataExt;
    for base in [std::env::temp_dir(), "/dev/shm".into()] {
        if !base.is_dir() {
            continue;
        }
        let t = crate::tree::Tree::with(&base, |_| {}, |_| {}).await;
        let mut c = t.srv.client("c").await;
        let root = c.walk("").await;
        let f = c.create(&root, "f").await;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
        let a = c.attrs(&f.fh, &[TIME_CREATE, FILES_AVAIL, FILES_FREE, FILES_TOTAL, SPACE_AVAIL, SPACE_TOTAL]).await;
        assert!((now - a.time_create.unwrap().secs).abs() < 600, "a birth time");
        assert!(a.space_avail.unwrap() <= a.space_total.unwrap() && a.files_avail <= a.files_total);
        // Before 1970, past 2038, past 2106: to the nanosecond, or to what the filesystem has; never another year.
        for secs in [-315_619_200, -14_182_980, 2_208_988_800, 5_000_000_000] {
            let time = NfsTime { secs, nanos: 250_000_000 };
            let both = Some(SetTime::Client(time));
            let attrs = Attrs { time_access_set: both, time_modify_set: both, ..Attrs::default() };
            assert_eq!(set(&mut c, &f.fh, attrs).await.0, Status::OK, "{secs} on {}", base.display());
            let got = c.attrs(&f.fh, &[TIME_MODIFY, TIME_ACCESS]).await;
            assert_eq!((got.time_modify, got.time_access), (Some(time), Some(time)), "{secs} on {}", base.display());
            let local = std::fs::metadata(t.path("export/f")).unwrap();
            assert_eq!((local.mtime(), local.mtime_nsec()), (secs, 250_000_000));
        }
        // Far outside of any filesystem's range: the server says what it came to, or that it cannot.
        let far = Some(SetTime::Client(NfsTime { secs: i64::MAX / 2, nanos: 0 }));
        let (status, _) = set(&mut c, &f.fh, Attrs { time_modify_set: far, ..Attrs::default() }).await;
        assert!(matches!(status, Status::OK | Status::INVAL), "{status:?}");
        c.ok(&[op::put(&f.fh), op::getattr(&[TIME_MODIFY])]).await;
        let names: [&[u8]; 4] = [b"\xe9", b"\xe8", b"\xff\xfe", "日本".as_bytes()];
        for name in names {
            let open = c.create(&root, name).await;
            c.close(&open).await;
        }
        let res =
            c.ok(&[op::put(&root), op::readdir(0, Default::default(), 32_768, &[FILEID, MOUNTED_ON_FILEID])]).await;
        let Some(ResOp::Readdir(Ok(page))) = res.last() else { panic!("{res:?}") };
        for name in names {
            let entry = page.entries.iter().find(|e| e.name == name).expect("byte for byte");
            let res = c.ok(&[op::put(&root), op::lookup(name), op::getattr(&[FILEID, MOUNTED_ON_FILEID])]).await;
            let Some(ResOp::Getattr(Ok(got))) = res.last() else { panic!("{res:?}") };
            assert_eq!(got.attrs.fileid, entry.attrs.fileid);
            assert_eq!(got.attrs.mounted_on_fileid, entry.attrs.mounted_on_fileid);
        }
    }
}

/// RFC 8881 18.30.3: `attrsset` tells what was set, also if the operation failed half-way.
#[tokio::test]
async fn a_setattr_that_fails_half_way_tells_what_was_set() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    let set = async |c: &mut Client| {
        let attrs = Attrs { mode: Some(0o600), ..Attrs::default() };
        match c.run(&[op::put(&f.fh), op::setattr(attrs)]).await.results.pop() {
            Some(ResOp::Setattr(res)) => (res.status, res.attrsset),
            other => panic!("{other:?}"),
        }
    };
    srv.fault.once(Call::SetAttr, Action::FailAfter(ErrorKind::NoSpace));
    assert_eq!(set(&mut c).await, (Status::NOSPC, Bitmap::of(&[attr::MODE])));
    srv.fault.once(Call::SetAttr, Action::Fail(ErrorKind::NoSpace));
    assert_eq!(set(&mut c).await, (Status::NOSPC, Bitmap::default()));
}

/// An attribute that this object cannot have: Linux keeps no mode of a symbolic link (RFC 8881 15.1.15.1).
#[tokio::test]
async fn an_attribute_that_an_object_has_not() {
    let home = tempfile::tempdir().unwrap();
    let local = Arc::new(Local::open(Options::new(home.path())).unwrap());
    let srv = Srv::over(local, MemFs::with(memfs::Options::default()), |config| {
        config.exports[0].options = open_to_all();
    })
    .await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    c.ok(&[op::put(&root), op::create(CreateType::Link("target".into()), "l", Attrs::default())]).await;
    let link = c.walk("l").await;
    let attrs = Attrs { mode: Some(0o600), ..Attrs::default() };
    assert_eq!(c.status(&[op::put(&link), op::setattr(attrs)]).await, Status::ATTRNOTSUPP);
}

/// Case B09: in a tree with hard links, directories and several exports every object has a number of its own within its
/// filesystem, the same in listings and by GETATTR, and at least one link.
#[tokio::test]
async fn numbers_of_a_whole_tree() {
    use crate::common::{config, open_to_all, start};
    use dhow_server::ExportConfig;
    use dhow_testkit::MemFs;
    use dhow_testkit::memfs::Options;
    use std::collections::HashMap;
    let export = |path: &str, id| ExportConfig {
        path: path.into(),
        backend: MemFs::with(Options { id, ..Options::default() }),
        options: open_to_all(),
    };
    let (_running, addr) = start(config(vec![export("/one", 1), export("/two/deep", 2)])).await;
    let mut c = Client::connect(addr, Default::default()).await;
    for top in ["one", "two/deep"] {
        let at = c.walk(top).await;
        for i in 0..3 {
            let d = c.mkdir(&at, format!("d{i}")).await;
            for j in 0..3 {
                let f = c.create(&d, format!("f{j}")).await;
                c.ok(&[op::put(&f.fh), ArgOp::SaveFh, op::put(&at), op::link(format!("l{i}{j}"))]).await;
                c.close(&f).await;
            }
        }
    }
    let root = c.walk("").await;
    let mut todo = vec![root];
    let mut seen: HashMap<(u64, u64, u64), FileHandle> = HashMap::new();
    while let Some(dir) = todo.pop() {
        let wanted = [TYPE, FSID, FILEID, MOUNTED_ON_FILEID, NUMLINKS, FILEHANDLE];
        let list = c.ok(&[op::put(&dir), op::readdir(0, Default::default(), 1 << 16, &wanted)]).await.pop();
        let Some(ResOp::Readdir(Ok(page))) = list else { panic!("{list:?}") };
        assert!(page.eof);
        let mut names = std::collections::HashSet::new();
        for entry in page.entries {
            let fh = entry.attrs.filehandle.clone().unwrap();
            assert_eq!(c.attrs(&fh, &wanted).await, entry.attrs, "{:?}", entry.name);
            let a = &entry.attrs;
            assert!(a.numlinks.unwrap() >= 1, "{:?}", entry.name);
            let fsid = a.fsid.unwrap();
            let key = (fsid.major, fsid.minor, a.fileid.unwrap());
            assert_eq!(seen.entry(key).or_insert(fh.clone()), &fh, "{:?}: two objects of one number", entry.name);
            // What getdents shows is the number of the name's place (5.8.2.19): one for each name that is no link.
            if a.numlinks == Some(1) || a.file_type == Some(dhow_proto::v4::FileType::DIR) {
                assert!(names.insert(a.mounted_on_fileid.unwrap()), "{:?}", entry.name);
            }
            if a.file_type == Some(dhow_proto::v4::FileType::DIR) {
                todo.push(fh);
            }
        }
    }
    assert_eq!(seen.len(), 3 + 2 * (3 + 9), "directories of the pseudo-root, of the trees, and files");
}
