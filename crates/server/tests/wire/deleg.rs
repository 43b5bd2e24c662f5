//! Delegations and the callbacks that go with them (RFC 8881 10.2 to 10.5, 18.6, 20.1, 20.2, 20.6, 20.8, 20.11).

use crate::common::{Srv, last};
use crate::tree::Tree;
use dhow_proto::v4::cb::{CbArgOp, CbCompoundRes, CbGetattrOk, CbRecallArgs, CbResOp};
use dhow_proto::v4::ops::{
    Delegation, DelegreturnArgs, FreeStateidArgs, LockRes, OpenClaim, OpenHow, OpenOk, TestStateidArgs,
    WhyNoDelegation, open_result, seq4_status, share,
};
use dhow_proto::v4::{
    ArgOp, Attrs, CbOpNum, DelegationType, FileHandle, LockType, ResOp, StableHow, Stateid, Status, attr as a,
};
use dhow_rpc::ReplyHeader;
use dhow_server::{Delegations, ServerConfig};
use dhow_testkit::memfs::Options;
use dhow_testkit::wire::{CallBack, Callbacks, Client, ClientOptions, Open, op};
use dhow_xdr::{Encode, Writer};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

pub const R: u32 = share::ACCESS_READ;
pub const RW: u32 = share::ACCESS_BOTH;

pub fn allow(which: Delegations) -> impl FnOnce(&mut ServerConfig) {
    move |c| c.exports[0].options.delegations = which
}

pub async fn serve(which: Delegations) -> Srv {
    Srv::with(Options::default(), allow(which)).await
}

/// A client that answers callbacks only when the test does.
pub async fn holder(srv: &Srv, name: &str) -> Client {
    let mut c = srv.client(name).await;
    c.wire.on_callback = Callbacks::Keep;
    c
}

pub async fn try_open(c: &mut Client, fh: &FileHandle, open: ArgOp) -> Result<(OpenOk, FileHandle), Status> {
    let res = c.run(&[op::put(fh), open, op::getfh()]).await;
    let mut results = res.results.into_iter().skip(2);
    match (results.next(), results.next()) {
        (Some(ResOp::Open(Ok(ok))), Some(ResOp::GetFh(Ok(fh)))) => Ok((ok, fh.object)),
        (Some(ResOp::Open(Err(status))), None) => Err(status),
        other => panic!("{other:?}"),
    }
}

pub async fn open(c: &mut Client, dir: &FileHandle, name: &str, access: u32) -> (OpenOk, FileHandle) {
    let owner = c.owner("owner");
    try_open(c, dir, op::open_name(owner, access, 0, name)).await.unwrap()
}

pub fn given(d: &Delegation) -> Stateid {
    match d {
        Delegation::Read(d) => d.stateid,
        Delegation::Write(d) => d.stateid,
        other => panic!("{other:?}"),
    }
}

pub fn give_back(fh: &FileHandle, stateid: Stateid) -> [ArgOp; 2] {
    [op::put(fh), ArgOp::Delegreturn(DelegreturnArgs { stateid })]
}

/// The next callback's operation, unanswered.
pub async fn called(c: &mut Client) -> (CallBack, CbArgOp) {
    let call = tokio::time::timeout(Duration::from_secs(20), c.wire.callback()).await.expect("a callback");
    let op = call.compound().ops.pop().unwrap();
    (call, op)
}

pub async fn recalled(c: &mut Client) -> CbRecallArgs {
    match called(c).await {
        (call, CbArgOp::Recall(args)) => {
            c.wire.answer(&call).await;
            args
        }
        other => panic!("{other:?}"),
    }
}

pub async fn answer_with(c: &mut Client, call: &CallBack, last: CbResOp) {
    let mut res: CbCompoundRes = call.success();
    res.status = last.status();
    *res.results.last_mut().unwrap() = last;
    let mut w = Writer::new();
    ReplyHeader::success(call.header.xid).encode(&mut w);
    res.encode(&mut w);
    c.wire.send_record(&w.into_bytes()).await.unwrap();
}

/// Asks again while the answer is DELAY, as a client does.
pub async fn patiently(c: &mut Client, ops: &[ArgOp]) -> Status {
    for _ in 0..300 {
        match c.status(ops).await {
            Status::DELAY => tokio::time::sleep(Duration::from_millis(20)).await,
            other => return other,
        }
    }
    panic!("DELAY without end");
}

pub async fn file(srv: &Srv) -> (Client, FileHandle) {
    let mut c = srv.client("maker").await;
    let root = c.walk("").await;
    let f = make(&mut c, &root, "f").await;
    c.write(&f, 0, b"data").await;
    c.close(&f).await;
    (c, root)
}

/// Creates a file without taking a delegation of it.
pub async fn make(c: &mut Client, root: &FileHandle, name: &str) -> Open {
    let owner = c.owner("maker");
    c.open(root, op::open_create(owner, RW | share::WANT_NO_DELEG, 0, name, 0o644)).await
}

/// 10.4, 18.16.3: what is granted for what is asked, and the reasons if nothing is.
#[tokio::test]
async fn granted_and_declined() {
    let srv = serve(Delegations::All).await;
    let (_maker, root) = file(&srv).await;
    let mut c = holder(&srv, "c").await;
    let (ok, fh) = open(&mut c, &root, "f", R).await;
    let Delegation::Read(d) = &ok.delegation else { panic!("{:?}", ok.delegation) };
    assert!(!d.recall && d.stateid.seqid == 1 && d.stateid.other != ok.stateid.other);
    assert_ne!(ok.rflags & open_result::MAY_NOTIFY_LOCK, 0);
    // One is enough; the wish for another kind is told apart.
    let (again, _) = open(&mut c, &root, "f", R | share::WANT_WRITE_DELEG).await;
    assert_eq!(again.delegation, Delegation::NoneExt(WhyNoDelegation::NOT_SUPP_UPGRADE));
    c.ok(&give_back(&fh, d.stateid)).await;
    assert_eq!(c.status(&give_back(&fh, d.stateid)).await, Status::BAD_STATEID);
    for (wish, why) in
        [(share::WANT_NO_DELEG, WhyNoDelegation::NOT_WANTED), (share::WANT_CANCEL, WhyNoDelegation::CANCELLED)]
    {
        assert_eq!(open(&mut c, &root, "f", R | wish).await.0.delegation, Delegation::NoneExt(why));
    }
    let mut other = srv.client("other").await;
    let (theirs, _) = open(&mut other, &root, "f", RW | share::WANT_NO_DELEG).await;
    assert_eq!(open(&mut c, &root, "f", R).await.0.delegation, Delegation::None);
    let wished = open(&mut c, &root, "f", R | share::WANT_ANY_DELEG).await.0.delegation;
    assert_eq!(wished, Delegation::Contention { will_push: false });
    other.ok(&[op::put(&fh), op::close(theirs.stateid)]).await;
    // For writing.
    let (ok, _) = open(&mut c, &root, "f", RW).await;
    assert!(matches!(ok.delegation, Delegation::Write(_)), "{:?}", ok.delegation);
    assert_eq!(srv.running.shared().state.write_delegations(), 1);
    // Without a back channel there is none.
    let mute = ClientOptions { session_flags: 0, ..ClientOptions::named("mute") };
    let mut mute = Client::connect(srv.addr, mute).await;
    make(&mut mute, &root, "g").await;
    let (ok, _) = open(&mut mute, &root, "g", R | share::WANT_READ_DELEG).await;
    assert_eq!(ok.delegation, Delegation::Resource { will_signal: false });
    assert_eq!(ok.rflags & open_result::MAY_NOTIFY_LOCK, 0);
}

/// Off by default: an export gives none unless it is told to.
#[tokio::test]
async fn off_unless_configured() {
    let srv = Srv::start().await;
    let (mut c, root) = file(&srv).await;
    assert_eq!(open(&mut c, &root, "f", R).await.0.delegation, Delegation::None);
    let (ok, _) = open(&mut c, &root, "f", R | share::WANT_READ_DELEG).await;
    assert_eq!(ok.delegation, Delegation::NoneExt(WhyNoDelegation::NOT_SUPP_FTYPE));
    let srv = serve(Delegations::Read).await;
    let (mut c, root) = file(&srv).await;
    let (ok, _) = open(&mut c, &root, "f", RW | share::WANT_WRITE_DELEG).await;
    assert_eq!(ok.delegation, Delegation::NoneExt(WhyNoDelegation::WRITE_DELEG_NOT_SUPP_FTYPE));
}

/// 10.4.4, 20.2: each conflicting operation of another recalls; it succeeds at once if the return comes at once.
#[tokio::test]
async fn conflicts_recall() {
    let srv = serve(Delegations::All).await;
    let (mut b, root) = file(&srv).await;
    let owner = b.owner("b");
    let mode = |mode| op::setattr(Attrs { mode: Some(mode), ..Attrs::default() });
    let fh = b.walk("f").await;
    let size = op::setattr(Attrs { size: Some(2), ..Attrs::default() });
    let write = op::write(Stateid::ANONYMOUS, 0, StableHow::UNSTABLE, b"x");
    let rename = |from, to| vec![op::put(&root), ArgOp::SaveFh, op::put(&root), op::rename(from, to)];
    let open = |access, deny| op::open_name(owner.clone(), access | share::WANT_NO_DELEG, deny, "f");
    let cases: Vec<(u32, Vec<ArgOp>)> = vec![
        (R, vec![op::put(&root), open(share::ACCESS_WRITE, 0)]),
        (R, vec![op::put(&fh), mode(0o640)]),
        (R, vec![op::put(&fh), size]),
        (R, vec![op::put(&fh), write]),
        (R, vec![op::put(&fh), ArgOp::SaveFh, op::put(&root), op::link("l")]),
        (R, rename("f", "g")),
        (R, rename("g", "f")),
        (RW, vec![op::put(&root), open(R, 0)]),
        (RW, vec![op::put(&fh), op::read(Stateid::ANONYMOUS, 0, 10)]),
        (RW, vec![op::put(&fh), op::lockt(owner.clone(), LockType::READ, 0, 1)]),
        (RW, vec![op::put(&root), op::remove("f")]),
    ];
    for (i, (access, ops)) in cases.into_iter().enumerate() {
        // A client of its own each time, for a file that was contended is left alone for a while... by renaming it anew.
        let name = format!("a{i}");
        let mut a = holder(&srv, &name).await;
        let fresh = i != 6;
        if fresh && i > 0 {
            b.run(&[op::put(&root), op::remove("f")]).await;
            let made = make(&mut b, &root, "f").await;
            b.close(&made).await;
        }
        let at = if i == 6 { "g" } else { "f" };
        if i == 6 {
            b.run(&[op::put(&root), op::remove("g")]).await;
            let made = make(&mut b, &root, "g").await;
            b.close(&made).await;
        }
        let now = b.walk(at).await;
        let owner = a.owner("a");
        let (ok, fh) = try_open(&mut a, &root, op::open_name(owner, access, 0, at)).await.unwrap();
        assert_eq!(fh, now);
        let d = given(&ok.delegation);
        a.ok(&[op::put(&fh), op::close(ok.stateid)]).await;
        let ops: Vec<_> = ops
            .into_iter()
            .map(|o| match o {
                ArgOp::PutFh(p) if p.object != root => op::put(&fh),
                other => other,
            })
            .collect();
        let recalls = srv.running.shared().metrics.deleg.recalls.load(Relaxed);
        let xid = b.send(0, &ops).await;
        let args = recalled(&mut a).await;
        assert_eq!((args.stateid, &args.fh, args.truncate), (d, &fh, false), "case {i}");
        a.ok(&give_back(&fh, d)).await;
        let res = b.wait(xid).await;
        match res.status {
            Status::DELAY => assert!(patiently(&mut b, &ops).await.is_ok(), "case {i}"),
            status => assert!(status.is_ok(), "case {i}: {:?}", last(&res)),
        }
        assert_eq!(srv.running.shared().metrics.deleg.recalls.load(Relaxed), recalls + 1, "case {i}: recalled once");
        if let Some(ResOp::Open(Ok(open))) = res.results.last() {
            b.ok(&[op::put(&fh), op::close(open.stateid)]).await;
        }
    }
}

/// A holder that takes its time: the other is told DELAY, by right of the delegation the holder opens, writes back and
/// returns it, then the other sees the data (10.4.4, 18.16.3).
#[tokio::test]
async fn the_holder_finishes_first() {
    let srv = serve(Delegations::All).await;
    let (mut b, root) = file(&srv).await;
    let mut a = holder(&srv, "a").await;
    let (ok, fh) = open(&mut a, &root, "f", RW).await;
    let d = given(&ok.delegation);
    let owner = b.owner("b");
    let theirs = [op::put(&root), op::open_name(owner, R | share::WANT_NO_DELEG, 0, "f")];
    let xid = b.send(0, &theirs).await;
    recalled(&mut a).await;
    assert_eq!(b.wait(xid).await.status, Status::DELAY);
    let by = |c: &Client, claim| op::open(c.owner("local"), RW, 0, OpenHow::NoCreate, claim);
    let claim = by(&a, OpenClaim::DelegCurFh(d));
    let (local, _) = try_open(&mut a, &fh, claim).await.unwrap();
    assert_eq!(local.delegation, Delegation::None);
    let claim = by(&a, OpenClaim::DelegateCur { stateid: d, file: "f".into() });
    let (local, _) = try_open(&mut a, &root, claim).await.unwrap();
    a.ok(&[op::put(&fh), op::write(d, 0, StableHow::UNSTABLE, b"DATA")]).await;
    let lock = op::lock_new(local.stateid, a.owner("l"), LockType::WRITE, 0, 4);
    a.ok(&[op::put(&fh), lock]).await;
    a.ok(&give_back(&fh, d)).await;
    assert_eq!(patiently(&mut b, &theirs).await, Status::OK);
    match b.ok(&[op::put(&fh), op::read(Stateid::ANONYMOUS, 0, 10)]).await.pop() {
        Some(ResOp::Read(Ok(ok))) => assert_eq!(ok.data, b"DATA"[..]),
        other => panic!("{other:?}"),
    }
    let claim = by(&a, OpenClaim::DelegCurFh(d));
    assert_eq!(try_open(&mut a, &fh, claim).await.unwrap_err(), Status::BAD_STATEID);
    let claim = by(&a, OpenClaim::DelegPrevFh);
    assert_eq!(try_open(&mut a, &fh, claim).await.unwrap_err(), Status::RECLAIM_BAD);
}

/// What its stateid is good for (8.2, 18.22, 18.30, 18.32, 18.38, 18.48).
#[tokio::test]
async fn its_stateid() {
    let srv = serve(Delegations::All).await;
    let (mut b, root) = file(&srv).await;
    let mut a = holder(&srv, "a").await;
    let (ok, fh) = open(&mut a, &root, "f", RW).await;
    let d = given(&ok.delegation);
    a.ok(&[op::put(&fh), op::close(ok.stateid)]).await;
    a.ok(&[op::put(&fh), op::write(d, 4, StableHow::FILE_SYNC, b"more"), op::read(d, 0, 8)]).await;
    a.ok(&[op::put(&fh), op::setattr_with(d, Attrs { size: Some(6), ..Attrs::default() })]).await;
    assert_eq!(a.attrs(&fh, &[a::SIZE]).await.size, Some(6));
    assert_eq!(b.status(&[op::put(&fh), op::write(d, 0, StableHow::UNSTABLE, b"x")]).await, Status::BAD_STATEID);
    assert_eq!(b.status(&give_back(&fh, d)).await, Status::BAD_STATEID);
    assert_eq!(a.status(&give_back(&root, d)).await, Status::BAD_STATEID);
    let test = ArgOp::TestStateid(TestStateidArgs { stateids: vec![d] });
    match a.ok(&[test]).await.pop() {
        Some(ResOp::TestStateid(Ok(ok))) => assert_eq!(ok.status_codes, [Status::OK]),
        other => panic!("{other:?}"),
    }
    let free = ArgOp::FreeStateid(FreeStateidArgs { stateid: d });
    assert_eq!(a.status(std::slice::from_ref(&free)).await, Status::LOCKS_HELD);
    a.ok(&give_back(&fh, d)).await;
    assert_eq!(a.status(&[free]).await, Status::BAD_STATEID);
}

/// 10.4.3, 20.1: who looks at a file that is changed at its holder sees it changed, and changed again.
#[tokio::test]
async fn attributes_of_a_file_that_is_changed_elsewhere() {
    let srv = serve(Delegations::All).await;
    let (mut b, root) = file(&srv).await;
    let mut a = holder(&srv, "a").await;
    let (ok, fh) = open(&mut a, &root, "f", RW).await;
    let d = given(&ok.delegation);
    let bits = [a::CHANGE, a::SIZE, a::TIME_MODIFY];
    let own = a.attrs(&fh, &bits).await;
    let (change, mtime) = (own.change.unwrap(), own.time_modify.unwrap());
    let ask = async |a: &mut Client, b: &mut Client, change, size| {
        let xid = b.send(0, &[op::put(&fh), op::getattr(&bits)]).await;
        let (call, asked) = called(a).await;
        let CbArgOp::Getattr(args) = asked else { panic!("{asked:?}") };
        assert_eq!(args.fh, fh);
        let attrs = Box::new(Attrs { change: Some(change), size: Some(size), ..Attrs::default() });
        answer_with(a, &call, CbResOp::Getattr(Ok(CbGetattrOk { attrs }))).await;
        match b.wait(xid).await.results.pop() {
            Some(ResOp::Getattr(Ok(ok))) => *ok.attrs,
            other => panic!("{other:?}"),
        }
    };
    let seen = ask(&mut a, &mut b, change, 4).await;
    assert_eq!((seen.change, seen.size, seen.time_modify), (Some(change), Some(4), Some(mtime)), "not modified");
    let seen = ask(&mut a, &mut b, change + 1, 9).await;
    assert_eq!(seen.size, Some(9));
    assert!(seen.change > Some(change) && seen.time_modify >= Some(mtime));
    let again = ask(&mut a, &mut b, change + 1, 9).await;
    assert!(again.change > seen.change, "it may have changed in between");
    // What the holder cannot have changed is not asked for.
    assert!(b.attrs(&fh, &[a::MODE]).await.mode.is_some());
    assert!(a.wire.callbacks.is_empty());
    // A holder that cannot say loses it.
    let xid = b.send(0, &[op::put(&fh), op::getattr(&bits)]).await;
    let (call, _) = called(&mut a).await;
    answer_with(&mut a, &call, CbResOp::error(CbOpNum::GETATTR, Status::BADHANDLE)).await;
    assert_eq!(b.wait(xid).await.status, Status::DELAY);
    assert_eq!(recalled(&mut a).await.stateid, d);
    a.ok(&give_back(&fh, d)).await;
    assert_eq!(patiently(&mut b, &[op::put(&fh), op::getattr(&bits)]).await, Status::OK);
}

/// 10.4.5: a recall that is answered but not heeded ends in revocation after a lease time; the client is told by its
/// next SEQUENCE, and frees the stateid.
#[tokio::test]
async fn revoked_when_not_returned() {
    let srv = Srv::with(Options::default(), |c| {
        allow(Delegations::All)(c);
        c.state.lease = Duration::from_secs(2);
    })
    .await;
    let (mut b, root) = file(&srv).await;
    let mut a = holder(&srv, "a").await;
    let (ok, fh) = open(&mut a, &root, "f", RW).await;
    let d = given(&ok.delegation);
    let theirs = [op::put(&fh), op::setattr(Attrs { mode: Some(0o600), ..Attrs::default() })];
    assert_eq!(b.status(&theirs).await, Status::DELAY);
    recalled(&mut a).await;
    let mut revoked = false;
    for _ in 0..300 {
        let res = a.run(&[]).await;
        let Some(ResOp::Sequence(Ok(seq))) = res.results.first() else { panic!("{res:?}") };
        b.run(&[]).await;
        if seq.status_flags & seq4_status::RECALLABLE_STATE_REVOKED != 0 {
            revoked = true;
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(revoked);
    assert_eq!(patiently(&mut b, &theirs).await, Status::OK);
    let write = [op::put(&fh), op::write(d, 0, StableHow::UNSTABLE, b"late")];
    assert_eq!(a.status(&write).await, Status::DELEG_REVOKED);
    assert_eq!(a.status(&give_back(&fh, d)).await, Status::DELEG_REVOKED);
    let test = ArgOp::TestStateid(TestStateidArgs { stateids: vec![d, ok.stateid] });
    match a.ok(&[test]).await.pop() {
        Some(ResOp::TestStateid(Ok(done))) => assert_eq!(done.status_codes, [Status::DELEG_REVOKED, Status::OK]),
        other => panic!("{other:?}"),
    }
    a.ok(&[ArgOp::FreeStateid(FreeStateidArgs { stateid: d })]).await;
    let res = a.run(&[]).await;
    let Some(ResOp::Sequence(Ok(seq))) = res.results.first() else { panic!("{res:?}") };
    assert_eq!(seq.status_flags & seq4_status::RECALLABLE_STATE_REVOKED, 0);
    assert_eq!(srv.running.shared().metrics.deleg.revoked.load(Relaxed), 1);
}

/// Case B32: who is gone holds nothing up. Nor does a client that comes back as a new one.
#[tokio::test]
async fn the_holder_is_gone() {
    let srv = Srv::with(Options::default(), |c| {
        allow(Delegations::All)(c);
        c.state.lease = Duration::from_secs(1);
    })
    .await;
    let (mut b, root) = file(&srv).await;
    let mut a = holder(&srv, "a").await;
    let (ok, fh) = open(&mut a, &root, "f", RW).await;
    given(&ok.delegation);
    drop(a);
    for _ in 0..8 {
        tokio::time::sleep(Duration::from_millis(250)).await;
        b.run(&[]).await;
    }
    let theirs = [op::put(&fh), op::setattr(Attrs { mode: Some(0o600), ..Attrs::default() })];
    assert_eq!(patiently(&mut b, &theirs).await, Status::OK);
    assert_eq!(srv.running.shared().state.delegations(), 0);
}

/// A local program that writes recalls a read delegation, and waits until it is back (docs/delegations.md).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_programs_count() {
    let t = Tree::with(&std::env::temp_dir(), |_| {}, allow(Delegations::All)).await;
    let path = t.path("export/f");
    std::fs::write(&path, "old").unwrap();
    let mut a = holder(&t.srv, "a").await;
    let root = a.walk("").await;
    // Write delegations are not given where others may change the tree.
    let (ok, fh) = open(&mut a, &root, "f", RW | share::WANT_ANY_DELEG).await;
    assert_eq!(ok.delegation, Delegation::NoneExt(WhyNoDelegation::WRITE_DELEG_NOT_SUPP_FTYPE));
    a.ok(&[op::put(&fh), op::close(ok.stateid)]).await;
    let (ok, _) = open(&mut a, &root, "f", R | share::WANT_READ_DELEG).await;
    let d = given(&ok.delegation);
    // A program that reads is no matter.
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
    let theirs = path.clone();
    let writer = std::thread::spawn(move || std::fs::write(theirs, "new").unwrap());
    assert_eq!(recalled(&mut a).await.stateid, d);
    assert!(!writer.is_finished(), "it waits for the delegation");
    match a.ok(&[op::put(&fh), op::read(d, 0, 10)]).await.pop() {
        Some(ResOp::Read(Ok(ok))) => assert_eq!(ok.data, b"old"[..]),
        other => panic!("{other:?}"),
    }
    a.ok(&give_back(&fh, d)).await;
    tokio::task::spawn_blocking(move || writer.join().unwrap()).await.unwrap();
    assert_eq!(t.srv.running.shared().metrics.deleg.local_writers.load(Relaxed), 1);
    // While a program has it open for writing there is none.
    let held = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    let mut c = holder(&t.srv, "c").await;
    let (ok, _) = open(&mut c, &root, "f", R | share::WANT_READ_DELEG).await;
    assert_eq!(ok.delegation, Delegation::Contention { will_push: false });
    drop(held);
}

/// The holder of a watched read delegation opens for writing itself: it returns the delegation first, as others make it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ones_own_writing_where_local_programs_count() {
    let t = Tree::with(&std::env::temp_dir(), |_| {}, allow(Delegations::Read)).await;
    std::fs::write(t.path("export/f"), "old").unwrap();
    let mut a = holder(&t.srv, "a").await;
    let root = a.walk("").await;
    let (ok, fh) = open(&mut a, &root, "f", R | share::WANT_READ_DELEG).await;
    let d = given(&ok.delegation);
    let writing = [op::put(&root), op::open_name(a.owner("w"), RW, 0, "f")];
    let xid = a.send(1, &writing).await;
    recalled(&mut a).await;
    a.ok(&give_back(&fh, d)).await;
    let first = a.wait(xid).await.status;
    assert!(first.is_ok() || first == Status::DELAY);
    if !first.is_ok() {
        assert_eq!(patiently(&mut a, &writing).await, Status::OK);
    }
    a.ok(&[op::put(&fh), op::write(Stateid::ANONYMOUS, 0, StableHow::FILE_SYNC, b"new")]).await;
    assert_eq!(std::fs::read_to_string(t.path("export/f")).unwrap(), "new");
}

/// 9.11, 10.2.1: after a restart delegations are reclaimed with their opens; where they would not be given any more they
/// come marked as recalled.
#[tokio::test]
async fn reclaimed_after_a_restart() {
    for now in [Delegations::All, Delegations::Off] {
        let (mut identity, mut store) = (None, None);
        let srv = Srv::with(Options::default(), |c| {
            allow(Delegations::All)(c);
            identity = Some(c.identity.clone());
            store = Some(c.store.clone());
        })
        .await;
        let (maker, root) = file(&srv).await;
        let mut a = holder(&srv, "a").await;
        let (ok, fh) = open(&mut a, &root, "f", R).await;
        given(&ok.delegation);
        drop((a, maker));
        let fs = srv.fs.clone();
        srv.running.shutdown().await;
        let srv = Srv::over(fs.clone(), fs, |c| {
            allow(now)(c);
            c.identity = identity.clone().unwrap();
            c.identity.instance += 1;
            c.store = store.clone().unwrap();
            c.state.grace = Duration::from_secs(30);
        })
        .await;
        let options = ClientOptions { reclaim_complete: false, ..ClientOptions::named("a") };
        let mut a = Client::connect(srv.addr, options).await;
        let claim = OpenClaim::Previous(DelegationType::READ);
        let again = op::open(a.owner("owner"), R, 0, OpenHow::NoCreate, claim);
        let (ok, _) = try_open(&mut a, &fh, again).await.unwrap();
        let Delegation::Read(d) = &ok.delegation else { panic!("{:?}", ok.delegation) };
        assert_eq!(d.recall, now == Delegations::Off);
        a.ok(&[op::put(&fh), op::read(d.stateid, 0, 4)]).await;
        a.ok(&give_back(&fh, d.stateid)).await;
    }
}

/// 20.11, 9.6: who waits for a lock is told when it may be had, and nobody else gets it first.
#[tokio::test]
async fn waiters_for_locks_are_told() {
    let srv = Srv::start().await;
    let (mut a, root) = file(&srv).await;
    let (fa, fh) = open(&mut a, &root, "f", RW).await;
    let (mut b, mut c) = (holder(&srv, "b").await, srv.client("c").await);
    let (fb, _) = open(&mut b, &root, "f", RW).await;
    let (fc, _) = open(&mut c, &root, "f", RW).await;
    let lock = |c: &Client, open: Stateid, kind| [op::put(&fh), op::lock_new(open, c.owner("l"), kind, 0, 9)];
    let held = match a.ok(&lock(&a, fa.stateid, LockType::WRITE)).await.pop() {
        Some(ResOp::Lock(LockRes::Ok(stateid))) => stateid,
        other => panic!("{other:?}"),
    };
    let wait = lock(&b, fb.stateid, LockType::WRITEW);
    assert_eq!(b.status(&wait).await, Status::DENIED);
    a.ok(&[op::put(&fh), op::locku(held, 0, 9)]).await;
    match called(&mut b).await {
        (call, CbArgOp::NotifyLock(args)) => {
            assert_eq!((&args.fh, args.lock_owner), (&fh, b.owner("l")));
            b.wire.answer(&call).await;
        }
        other => panic!("{other:?}"),
    }
    let barge = lock(&c, fc.stateid, LockType::WRITE);
    assert_eq!(c.status(&barge).await, Status::DENIED, "it is the other's turn");
    b.ok(&wait).await;
    // A CLOSE frees locks too.
    let wait = lock(&c, fc.stateid, LockType::READW);
    assert_eq!(c.status(&wait).await, Status::DENIED);
    b.ok(&[op::put(&fh), op::close(fb.stateid)]).await;
    assert!(matches!(called(&mut c).await, (_, CbArgOp::NotifyLock(_))));
    c.ok(&wait).await;
}

/// 20.6: near the limit clients are asked to give some up.
#[tokio::test]
async fn recall_any_near_the_limit() {
    let srv = Srv::with(Options::default(), |c| {
        allow(Delegations::Read)(c);
        c.state.delegations = 8;
    })
    .await;
    let mut a = holder(&srv, "a").await;
    let root = a.walk("").await;
    for i in 0..9 {
        let f = make(&mut a, &root, &format!("f{i}")).await;
        a.close(&f).await;
        let (ok, _) = open(&mut a, &root, &format!("f{i}"), R | share::WANT_READ_DELEG).await;
        assert_eq!(matches!(ok.delegation, Delegation::Read(_)), i < 8, "{i}: {:?}", ok.delegation);
    }
    match called(&mut a).await {
        (call, CbArgOp::RecallAny(args)) => {
            assert_eq!(args.objects_to_keep, 4);
            a.wire.answer(&call).await;
        }
        other => panic!("{other:?}"),
    }
    assert!(srv.running.shared().state.limit_hits().delegations.count() > 0);
}

/// 20.8, case K21: when memory for replies runs short a session is asked for a smaller table, and comes down to it.
#[tokio::test]
async fn recall_slot_when_memory_runs_short() {
    let srv = Srv::with(Options::default(), |c| {
        c.state.cached_bytes = 1 << 20;
        c.state.slots_min = 8;
    })
    .await;
    let mut a = holder(&srv, "a").await;
    assert!(a.session.granted.fore_chan.max_requests >= 16, "{}", a.session.granted.fore_chan.max_requests);
    let mut crowd = Vec::new();
    for i in 0..40 {
        crowd.push(srv.client(&format!("c{i}")).await);
    }
    let target = match called(&mut a).await {
        (call, CbArgOp::RecallSlot(args)) => {
            a.wire.answer(&call).await;
            args.target_highest_slot_id
        }
        other => panic!("{other:?}"),
    };
    assert!(target < a.session.granted.fore_chan.max_requests - 1);
    a.session.granted.fore_chan.max_requests = target + 1;
    let mut seen = (0, 0);
    for _ in 0..200 {
        let res = a.run(&[]).await;
        let Some(ResOp::Sequence(Ok(seq))) = res.results.first() else { panic!("{res:?}") };
        seen = (seq.highest_slot_id, seq.target_highest_slot_id);
        if seen.0 <= target {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(seen.0 <= target && seen.1 <= target, "{seen:?}");
}
