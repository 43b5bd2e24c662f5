//! Changes of files and names against what others hold: opens that deny writing (RFC 8881 18.25.4, 18.26.4), delegations
//! (10.4). What may yet be reclaimed of both is in the tests of restarts. In virtual time.

use crate::deleg::{R, allow, give_back, given, make, open, try_open};
use crate::gates::Virtual;
use dhow_proto::v4::ops::{Delegation, OpenClaim, OpenHow, share};
use dhow_proto::v4::{ArgOp, FileHandle, Status};
use dhow_server::Delegations;
use dhow_testkit::fault::Call;
use dhow_testkit::wire::{Client, Open, op};
use std::time::Duration;

/// OPEN by handle, wishing for no delegation.
fn by_handle(c: &Client, owner: &str, deny: u32) -> ArgOp {
    op::open(c.owner(owner), share::ACCESS_BOTH | share::WANT_NO_DELEG, deny, OpenHow::NoCreate, OpenClaim::Fh)
}

async fn tries(c: &mut Client, f: &Open, owner: &str, deny: u32) -> Status {
    let open = by_handle(c, owner, deny);
    c.status(&[op::put(&f.fh), open]).await
}

/// REMOVE, and RENAME of another file onto the name.
fn endings(root: &FileHandle) -> [(Call, Vec<ArgOp>); 2] {
    let rename = vec![op::put(root), ArgOp::SaveFh, op::rename("spare", "f")];
    [(Call::Remove, vec![op::put(root), op::remove("f")]), (Call::Rename, rename)]
}

/// A name that is going, at whatever moment, is not that of a file that somebody was just granted to keep: an OPEN that
/// denies writing is not granted between the look and the removal. The first such OPEN of all is no exception, though
/// until then removals do not look at their files.
#[tokio::test(start_paused = true)]
async fn nobody_is_let_deny_writing_while_the_name_goes() {
    for denied_before in [false, true] {
        for which in 0..2 {
            let v = Virtual::start().await;
            let (mut a, mut b) = (v.client("a").await, v.client("b").await);
            let root = a.walk("").await;
            let f = make(&mut a, &root, "f").await;
            let g = make(&mut b, &root, "spare").await;
            b.close(&g).await;
            if denied_before {
                let owner = b.owner("d");
                let create = op::open_create(owner, share::ACCESS_BOTH, share::DENY_WRITE, "other", 0o644);
                let other = b.open(&root, create).await;
                b.close(&other).await;
            }
            let (call, ending) = endings(&root).into_iter().nth(which).unwrap();
            let stuck = v.fault.hold(call);
            let going = b.send(1, &ending).await;
            stuck.arrived(1).await;
            a.close(&f).await;
            assert_eq!(tries(&mut a, &f, "o", share::DENY_WRITE).await, Status::DELAY, "{call:?} {denied_before}");
            assert_eq!(tries(&mut a, &f, "o", share::DENY_BOTH).await, Status::DELAY);
            // Nobody else waits, and what keeps no name may be denied.
            assert_eq!(tries(&mut a, &f, "plain", 0).await, Status::OK);
            stuck.open();
            assert_eq!(b.wait(going).await.status, Status::OK);
            // The file has no name any more that could go.
            let last = a.create(&root, "last").await;
            a.close(&last).await;
            assert_eq!(tries(&mut a, &last, "o", share::DENY_WRITE).await, Status::OK, "{call:?} {denied_before}");
        }
    }
}

/// The other way round: while an OPEN that denies writing is under way the name does not go; nor when it is granted.
#[tokio::test(start_paused = true)]
async fn no_name_goes_while_somebody_is_let_deny_writing() {
    for which in 0..2 {
        let v = Virtual::start().await;
        let (mut a, mut b) = (v.client("a").await, v.client("b").await);
        let root = a.walk("").await;
        for name in ["f", "spare"] {
            let made = make(&mut a, &root, name).await;
            a.close(&made).await;
        }
        let f = b.walk("f").await;
        let (_, ending) = endings(&root).into_iter().nth(which).unwrap();
        let stuck = v.fault.hold(Call::Open);
        let open = by_handle(&a, "o", share::DENY_WRITE);
        let opening = a.send(1, &[op::put(&f), open]).await;
        stuck.arrived(1).await;
        assert_eq!(b.status(&ending).await, Status::DELAY, "it may yet be granted");
        stuck.open();
        assert_eq!(a.wait(opening).await.status, Status::OK);
        assert_eq!(b.status(&ending).await, Status::FILE_OPEN);
        assert_eq!(a.status(&ending).await, Status::FILE_OPEN, "whoever has it");
    }
}

/// RFC 8881 10.4 promises nothing of names, and yet Linux believes in one as long as it holds a delegation of the file: for
/// a while after a RENAME, or after a REMOVE of one name of two, only who did it is given one. For who is asked for it
/// anew then, the new name is the only one it knows.
#[tokio::test(start_paused = true)]
async fn who_may_not_know_of_a_new_name_gets_no_delegation_for_a_while() {
    let v = Virtual::with(allow(Delegations::All)).await;
    let (mut a, mut b) = (v.client("a").await, v.client("b").await);
    let root = a.walk("").await;
    let f = make(&mut a, &root, "f").await;
    a.close(&f).await;
    let contended = |d: &Delegation| matches!(d, Delegation::Contention { .. });
    let wish = R | share::WANT_READ_DELEG;
    let mut name = "f";
    let steps: [(&str, Vec<ArgOp>); 3] = [
        ("g", vec![op::put(&root), ArgOp::SaveFh, op::rename("f", "g")]),
        (
            "g",
            vec![
                op::put(&root),
                ArgOp::SaveFh,
                op::rename("g", "h"),
                op::put(&f.fh),
                ArgOp::SaveFh,
                op::put(&root),
                op::link("g"),
            ],
        ),
        ("h", vec![op::put(&root), op::remove("g")]),
    ];
    for (after, change) in steps {
        // Before, both may have one.
        for c in [&mut a, &mut b] {
            let (ok, fh) = open(c, &root, name, wish).await;
            c.ok(&give_back(&fh, given(&ok.delegation))).await;
            c.close(&Open { fh, stateid: ok.stateid }).await;
        }
        b.ok(&change).await;
        name = after;
        let (ok, fh) = open(&mut a, &root, name, wish).await;
        assert!(contended(&ok.delegation), "{:?}", ok.delegation);
        a.close(&Open { fh, stateid: ok.stateid }).await;
        let (ok, fh) = open(&mut b, &root, name, wish).await;
        b.ok(&give_back(&fh, given(&ok.delegation))).await;
        b.close(&Open { fh, stateid: ok.stateid }).await;
        // By its handle too, which Linux would use.
        let by = op::open(a.owner("owner"), wish, 0, OpenHow::NoCreate, OpenClaim::Fh);
        let (ok, fh) = try_open(&mut a, &f.fh, by).await.unwrap();
        assert!(contended(&ok.delegation), "{:?}", ok.delegation);
        a.close(&Open { fh, stateid: ok.stateid }).await;
        // Names are believed in for a minute at most.
        tokio::time::sleep(Duration::from_secs(66)).await;
    }
}
