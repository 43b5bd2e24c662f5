//! What a client may wish for with OPEN and what it is told (RFC 8881 18.16.3, RFC 9754), and what becomes of a recall
//! that the client answers with an error (RFC 8881 10.4.5, 20.2).

use crate::common::Srv;
use crate::deleg::{R, RW, allow, answer_with, called, file, give_back, given, holder, make, open, serve, try_open};
use dhow_proto::v4::cb::{CbArgOp, CbResOp};
use dhow_proto::v4::ops::{Delegation, LockRes, OpenClaim, OpenHow, WhyNoDelegation as Why, open_result, share};
use dhow_proto::v4::{ArgOp, Attrs, CbOpNum, FileHandle, LockType, ResOp, Stateid, Status, attr as a};
use dhow_server::Delegations;
use dhow_testkit::memfs::Options;
use dhow_testkit::wire::{Client, op};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Opens, says what was given, and gives it all back.
async fn ask(c: &mut Client, root: &FileHandle, name: &str, access: u32) -> Delegation {
    let (ok, fh) = open(c, root, name, access).await;
    if let Delegation::Read(_) | Delegation::Write(_) = &ok.delegation {
        c.ok(&give_back(&fh, given(&ok.delegation))).await;
    }
    c.ok(&[op::put(&fh), op::close(ok.stateid)]).await;
    ok.delegation
}

fn kind(d: &Delegation) -> &'static str {
    match d {
        Delegation::Read(_) => "read",
        Delegation::Write(_) => "write",
        _ => "none",
    }
}

/// RFC 8881 18.16.3: each wish with each access, under each option of the export: what is wanted is given whatever the
/// access is, or a reason is; no reason without a wish.
#[tokio::test]
async fn every_wish_with_every_access() {
    const W: u32 = share::ACCESS_WRITE;
    for allowed in [Delegations::Off, Delegations::Read, Delegations::All] {
        let srv = serve(allowed).await;
        let (mut maker, root) = file(&srv).await;
        let mut c = holder(&srv, "c").await;
        for (n, access) in [R, W, RW].into_iter().enumerate() {
            for (m, wish) in [
                share::WANT_NO_PREFERENCE,
                share::WANT_READ_DELEG,
                share::WANT_WRITE_DELEG,
                share::WANT_ANY_DELEG,
                share::WANT_NO_DELEG,
                share::WANT_CANCEL,
            ]
            .into_iter()
            .enumerate()
            {
                let name = format!("f{n}{m}");
                let made = make(&mut maker, &root, &name).await;
                maker.close(&made).await;
                let got = ask(&mut c, &root, &name, access | wish).await;
                let wanted = match wish {
                    share::WANT_READ_DELEG => "read",
                    share::WANT_WRITE_DELEG => "write",
                    share::WANT_NO_DELEG | share::WANT_CANCEL => "none",
                    _ if access == R => "read",
                    _ => "write",
                };
                let due = match allowed {
                    Delegations::Off => "none",
                    Delegations::Read if wanted == "write" => "none",
                    _ => wanted,
                };
                let what = format!("{allowed:?}: wish {wish:#x} with access {access}: {got:?}");
                assert_eq!(kind(&got), due, "{what}");
                let why = match (wish, due) {
                    (_, "read" | "write") => continue,
                    (share::WANT_NO_PREFERENCE, _) => Delegation::None,
                    (share::WANT_NO_DELEG, _) => Delegation::NoneExt(Why::NOT_WANTED),
                    (share::WANT_CANCEL, _) => Delegation::NoneExt(Why::CANCELLED),
                    _ if allowed == Delegations::Off => Delegation::NoneExt(Why::NOT_SUPP_FTYPE),
                    _ => Delegation::NoneExt(Why::WRITE_DELEG_NOT_SUPP_FTYPE),
                };
                assert_eq!(got, why, "{what}");
            }
        }
    }
}

/// RFC 8881 18.16.3: to be signalled or pushed one later is never promised, so it need not be kept; one wish at a time;
/// no change of kind in place.
#[tokio::test]
async fn wishes_for_later_and_for_more() {
    let srv = serve(Delegations::All).await;
    let (mut other, root) = file(&srv).await;
    let later = share::WANT_SIGNAL_DELEG_WHEN_RESRC_AVAIL | share::WANT_PUSH_DELEG_WHEN_UNCONTENDED;
    let mut c = holder(&srv, "c").await;
    for access in [R, R | share::WANT_READ_DELEG, R | share::WANT_ANY_DELEG] {
        assert_eq!(kind(&ask(&mut c, &root, "f", access | later).await), "read", "{access:#x}");
    }
    let (ok, fh) = open(&mut c, &root, "f", RW | share::WANT_WRITE_DELEG).await;
    let d = given(&ok.delegation);
    let again = open(&mut c, &root, "f", R | share::WANT_READ_DELEG).await.0.delegation;
    assert_eq!(again, Delegation::NoneExt(Why::NOT_SUPP_DOWNGRADE));
    let again = open(&mut c, &root, "f", R | share::WANT_ANY_DELEG).await.0.delegation;
    assert_eq!(again, Delegation::NoneExt(Why::NOT_WANTED), "it has what it wants");
    c.ok(&give_back(&fh, d)).await;
    let (theirs, _) = open(&mut other, &root, "f", RW | share::WANT_NO_DELEG).await;
    let wished = open(&mut c, &root, "f", R | share::WANT_READ_DELEG | later).await.0.delegation;
    assert_eq!(wished, Delegation::Contention { will_push: false });
    other.ok(&[op::put(&fh), op::close(theirs.stateid)]).await;
    let owner = c.owner("odd");
    for odd in [0x0600, 0x0700, 0x0f00, 0xff00] {
        let req = op::open_name(owner.clone(), R | odd, 0, "f");
        assert_eq!(c.status(&[op::put(&root), req]).await, Status::INVAL, "{odd:#x}");
    }
}

/// A claim by right of a delegation brings no other one, and says so if one was wished for.
#[tokio::test]
async fn wishes_with_other_claims() {
    let srv = serve(Delegations::All).await;
    let (_maker, root) = file(&srv).await;
    let mut c = holder(&srv, "c").await;
    let (ok, fh) = open(&mut c, &root, "f", R).await;
    let d = given(&ok.delegation);
    for (wish, due) in [
        (share::WANT_NO_PREFERENCE, Delegation::None),
        (share::WANT_ANY_DELEG, Delegation::NoneExt(Why::NOT_WANTED)),
        (share::WANT_NO_DELEG, Delegation::NoneExt(Why::NOT_WANTED)),
    ] {
        for claim in [OpenClaim::DelegCurFh(d), OpenClaim::DelegateCur { stateid: d, file: "f".into() }] {
            let at = if claim.is_by_handle() { &fh } else { &root };
            let by = op::open(c.owner("by"), R | wish, 0, OpenHow::NoCreate, claim);
            assert_eq!(try_open(&mut c, at, by).await.unwrap().0.delegation, due, "{wish:#x}");
        }
    }
}

/// RFC 9754 is offered for `open_arguments` alone: a client that asks for delegated times, or for an open or a
/// delegation, gets both of the plain kind, and times stay the server's (case K31).
#[tokio::test]
async fn delegated_times_are_not_given() {
    let srv = serve(Delegations::All).await;
    let (mut b, root) = file(&srv).await;
    let mut c = holder(&srv, "c").await;
    let wish = RW | share::WANT_WRITE_DELEG | share::WANT_DELEG_TIMESTAMPS | share::WANT_OPEN_XOR_DELEGATION;
    let (ok, fh) = open(&mut c, &root, "f", wish).await;
    let d = given(&ok.delegation);
    assert!(matches!(ok.delegation, Delegation::Write(_)) && !ok.stateid.is_special(), "both, of the plain kind");
    assert_eq!(ok.rflags & !(open_result::LOCKTYPE_POSIX | open_result::MAY_NOTIFY_LOCK), 0);
    let all = c.attrs(&fh, &[a::SUPPORTED_ATTRS, a::OPEN_ARGUMENTS, a::TIME_MODIFY]).await;
    let supported = all.supported_attrs.unwrap();
    assert!(!supported.contains(a::TIME_DELEG_ACCESS) && !supported.contains(a::TIME_DELEG_MODIFY));
    let wants = all.open_arguments.unwrap().share_access_want;
    assert!(!wants.contains(20) && !wants.contains(21), "neither is advertised: {wants:?}");
    let set =
        dhow_proto::v4::Fattr { mask: dhow_proto::v4::Bitmap::of(&[a::TIME_DELEG_MODIFY]), values: vec![0; 12].into() };
    let set = ArgOp::Setattr(dhow_proto::v4::ops::SetattrArgs { stateid: d, attrs: set });
    assert_eq!(c.status(&[op::put(&fh), set]).await, Status::ATTRNOTSUPP);
    // A reader asks the holder for size and change alone; the times it sees never go back.
    let before = all.time_modify.unwrap();
    let xid = b.send(0, &[op::put(&fh), op::getattr(&[a::SIZE, a::CHANGE, a::TIME_MODIFY])]).await;
    let (call, asked) = called(&mut c).await;
    let CbArgOp::Getattr(args) = asked else { panic!("{asked:?}") };
    assert!(args.attr_request.is_subset(&dhow_proto::v4::Bitmap::of(&[a::SIZE, a::CHANGE])), "{:?}", args.attr_request);
    let attrs = Box::new(Attrs { change: Some(u64::MAX / 2), size: Some(9), ..Attrs::default() });
    let answer = CbResOp::Getattr(Ok(dhow_proto::v4::cb::CbGetattrOk { attrs }));
    answer_with(&mut c, &call, answer).await;
    match b.wait(xid).await.results.pop() {
        Some(ResOp::Getattr(Ok(ok))) => assert!(ok.attrs.time_modify.unwrap() >= before && ok.attrs.size == Some(9)),
        other => panic!("{other:?}"),
    }
    c.ok(&give_back(&fh, d)).await;
}

/// RFC 8881 20.2, 10.4.5: a client that answers a recall with an error has not returned the delegation: after DELAY it is
/// asked again, after BAD_STATEID and BADHANDLE too, for a while; then a lease time ends it.
#[tokio::test]
async fn recalls_that_are_answered_by_errors() {
    for status in [Status::DELAY, Status::BAD_STATEID, Status::BADHANDLE, Status::SERVERFAULT] {
        let srv = Srv::with(Options::default(), |c| {
            allow(Delegations::All)(c);
            c.state.lease = Duration::from_secs(2);
        })
        .await;
        let (mut b, root) = file(&srv).await;
        let mut c = holder(&srv, "c").await;
        let (ok, fh) = open(&mut c, &root, "f", RW).await;
        let d = given(&ok.delegation);
        let theirs = [op::put(&fh), op::setattr(Attrs { mode: Some(0o600), ..Attrs::default() })];
        let xid = b.send(0, &theirs).await;
        let mut asked = 0;
        let answered = tokio::time::timeout(Duration::from_secs(60), async {
            loop {
                let (call, what) = called(&mut c).await;
                assert!(matches!(what, CbArgOp::Recall(args) if args.stateid == d));
                asked += 1;
                if asked == 2 {
                    break c.wire.answer(&call).await;
                }
                answer_with(&mut c, &call, CbResOp::error(CbOpNum::RECALL, status)).await;
            }
        });
        answered.await.unwrap_or_else(|_| panic!("{status:?} ended the recall"));
        // Answered at last; returned, or revoked a lease time after the first recall.
        assert_eq!(b.wait(xid).await.status, Status::DELAY);
        let done = c.status(&give_back(&fh, d)).await;
        assert!(matches!(done, Status::OK | Status::DELEG_REVOKED), "{status:?}: {done:?}");
        assert_eq!(crate::deleg::patiently(&mut b, &theirs).await, Status::OK, "{status:?}");
    }
}

/// RFC 8881 9.6, 20.11: who has waited for longest is told first, and the lock is kept for it; who is told and does not
/// come loses its turn.
#[tokio::test]
async fn waiters_are_served_in_order() {
    let srv = Srv::start().await;
    let (mut a, root) = file(&srv).await;
    let (fa, fh) = open(&mut a, &root, "f", RW).await;
    let lock = |c: &Client, open: Stateid| [op::put(&fh), op::lock_new(open, c.owner("l"), LockType::WRITEW, 0, 9)];
    let held = match a.ok(&lock(&a, fa.stateid)).await.pop() {
        Some(ResOp::Lock(LockRes::Ok(stateid))) => stateid,
        other => panic!("{other:?}"),
    };
    let (mut b, mut c) = (holder(&srv, "b").await, holder(&srv, "c").await);
    let (fb, fc) = (open(&mut b, &root, "f", RW).await.0.stateid, open(&mut c, &root, "f", RW).await.0.stateid);
    assert_eq!(b.status(&lock(&b, fb)).await, Status::DENIED);
    assert_eq!(c.status(&lock(&c, fc)).await, Status::DENIED);
    a.ok(&[op::put(&fh), op::locku(held, 0, 9)]).await;
    let (call, told) = called(&mut b).await;
    assert!(matches!(&told, CbArgOp::NotifyLock(args) if args.fh == fh && args.lock_owner == b.owner("l")), "{told:?}");
    b.wire.answer(&call).await;
    assert_eq!(c.status(&lock(&c, fc)).await, Status::DENIED, "it asks again, and it is not its turn");
    let told = &srv.running.shared().metrics.deleg.notify_lock;
    assert_eq!(told.load(Relaxed), 1, "one at a time");
    // The first does not come: the second is told when that is plain.
    let (call, told) = called(&mut c).await;
    assert!(matches!(&told, CbArgOp::NotifyLock(args) if args.lock_owner == c.owner("l")), "{told:?}");
    c.wire.answer(&call).await;
    c.ok(&lock(&c, fc)).await;
}
