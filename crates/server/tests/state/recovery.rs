//! Restarts (RFC 8881 8.4.2; cases B06, B31).

use crate::common::*;
use dhow_proto::v4::ops::{OpenClaim, OpenHow, ReclaimCompleteArgs, open_result, share};
use dhow_proto::v4::ops::{SetxattrArgs, SetxattrOption};
use dhow_proto::v4::{ArgOp, Attrs, DelegationType, FileHandle, LockType, ResOp, StableHow, Stateid, Status};
use dhow_server::Delegations;
use dhow_testkit::wire::{Client, Open, op};
use std::time::Duration;

const DONE: ArgOp = ArgOp::ReclaimComplete(ReclaimCompleteArgs { one_fs: false });

#[tokio::test]
async fn a_client_is_recorded_with_its_first_state_and_forgotten_with_its_client_id() {
    // RFC 8881 8.4.3: before the state is granted; and a server without records has no grace period.
    let place = Place::new();
    let server = place.start().await;
    let mut a = client(&server, "a").await;
    assert!(place.recorded().is_empty(), "no state, no record");
    let root = a.walk("/").await;
    let f = a.create(&root, "f").await;
    assert_eq!(place.recorded(), ["a"]);
    a.close(&f).await;
    let (id, session) = (a.id, a.session.id());
    assert_eq!(a.wire.compound(2, &[op::destroy_session(session)]).await.status, Status::OK);
    assert_eq!(a.wire.compound(2, &[op::destroy_client(id)]).await.status, Status::OK);
    assert!(place.recorded().is_empty());
    server.shutdown().await;
    let server = place.start().await;
    let mut b = client(&server, "b").await;
    let root = b.walk("/").await;
    b.create(&root, "g").await;
}

#[tokio::test]
async fn opens_and_locks_are_reclaimed_before_anybody_else_gets_them() {
    let place = Place::new();
    let server = place.start().await;
    let mut a = client(&server, "a").await;
    let root = a.walk("/").await;
    let f = a.create(&root, "f").await;
    assert_eq!(lock(&mut a, &f, false).await, Status::OK);
    server.shutdown().await;

    let server = place.start().await;
    let mut b = client(&server, "b").await;
    // Handles are the same (case B06); b may look but not take.
    let owner = b.owner("o");
    assert_eq!(open(&mut b, &f.fh, open_fh(owner.clone(), RW, share::DENY_NONE)).await, Err(Status::GRACE));
    assert_eq!(open(&mut b, &f.fh, reclaim(owner.clone(), RW, share::DENY_NONE)).await, Err(Status::NO_GRACE));
    let create = op::open_create(owner.clone(), RW, share::DENY_NONE, "must not be made", 0o644);
    assert_eq!(b.status(&[op::put(&root), create]).await, Status::GRACE);
    assert_eq!(b.status(&[op::put(&root), op::lookup("must not be made")]).await, Status::NOENT);

    let mut a = returning(&server, "a").await;
    let owner_a = a.owner("owner");
    assert_eq!(open(&mut a, &f.fh, open_fh(owner_a.clone(), RW, share::DENY_NONE)).await, Err(Status::GRACE));
    let stateid = open(&mut a, &f.fh, reclaim(owner_a.clone(), RW, share::DENY_NONE)).await.unwrap();
    let f = Open { fh: f.fh, stateid };
    assert_eq!(lock(&mut a, &f, false).await, Status::GRACE);
    assert_eq!(lock(&mut a, &f, true).await, Status::OK);
    a.ok(&[DONE]).await;
    assert_eq!(open(&mut a, &f.fh, reclaim(owner_a, RW, share::DENY_NONE)).await, Err(Status::NO_GRACE));

    // Everybody is back: grace is over at once, and the lock holds.
    let stateid = open(&mut b, &f.fh, open_fh(owner, RW, share::DENY_NONE)).await.unwrap();
    let fb = Open { fh: f.fh.clone(), stateid };
    assert_eq!(lock(&mut b, &fb, false).await, Status::DENIED);
    a.close(&f).await;
    assert_eq!(lock(&mut b, &fb, false).await, Status::OK);
}

#[tokio::test]
async fn who_stays_away_in_grace_cannot_reclaim_at_the_restart_after() {
    // RFC 8881 8.4.3, the edge conditions.
    let mut place = Place::new();
    place.grace = Duration::from_millis(500);
    let server = place.start().await;
    let mut a = client(&server, "a").await;
    let root = a.walk("/").await;
    let f = a.create(&root, "f").await;
    server.shutdown().await;

    let server = place.start().await;
    let mut b = client(&server, "b").await;
    let owner = b.owner("o");
    let got = patiently(async || {
        open(&mut b, &f.fh, open_fh(owner.clone(), RW, share::DENY_BOTH)).await.err().unwrap_or(Status::OK)
    });
    assert_eq!(got.await, Status::OK);
    assert_eq!(place.recorded(), ["b"], "a's record went before b was granted anything");
    server.shutdown().await;

    let server = place.start().await;
    let mut a = returning(&server, "a").await;
    let owner = a.owner("owner");
    assert_eq!(open(&mut a, &f.fh, reclaim(owner, RW, share::DENY_NONE)).await, Err(Status::NO_GRACE));
}

#[tokio::test]
async fn stateids_and_sessions_of_the_instance_before_are_unknown() {
    let place = Place::new();
    let server = place.start().await;
    let mut a = client(&server, "a").await;
    let root = a.walk("/").await;
    let f = a.create(&root, "f").await;
    let session = a.session.clone();
    server.shutdown().await;
    let server = place.start().await;
    let mut a = client(&server, "a").await;
    assert_eq!(a.status(&[op::put(&f.fh), op::read(f.stateid, 0, 10)]).await, Status::BAD_STATEID);
    a.session = session;
    assert_eq!(a.status(&[op::put(&f.fh)]).await, Status::BADSESSION);
}

#[tokio::test]
async fn a_file_removed_while_open_lasts_as_long_as_the_server() {
    // RFC 8881 18.16.3: OPEN4_RESULT_PRESERVE_UNLINKED would promise it over a restart too, and is not given: what has no
    // name may be gone then, and its reclaim says so (STALE). Everything else of the client is reclaimed all the same.
    let place = Place::new();
    let server = place.start().await;
    let mut a = client(&server, "a").await;
    let root = a.walk("/").await;
    let create = op::open_create(a.owner("owner"), RW, share::DENY_NONE, "gone", 0o644);
    let gone = match a.ok(&[op::put(&root), create, op::getfh()]).await.split_off(1).as_slice() {
        [ResOp::Open(Ok(ok)), ResOp::GetFh(Ok(fh))] => {
            assert_eq!(ok.rflags & open_result::PRESERVE_UNLINKED, 0);
            Open { fh: fh.object.clone(), stateid: ok.stateid }
        }
        other => panic!("{other:?}"),
    };
    let kept = a.create(&root, "kept").await;
    a.write(&gone, 0, b"data").await;
    a.ok(&[op::put(&root), op::remove("gone")]).await;
    assert_eq!(a.read(&gone, 0, 10).await.0, "data", "while the server runs it is there");
    server.shutdown().await;
    place.fs.crash();

    let server = place.start().await;
    let mut a = returning(&server, "a").await;
    let owner = a.owner("owner");
    let lost = op::open(owner.clone(), RW, 0, OpenHow::NoCreate, OpenClaim::Previous(DelegationType::NONE));
    assert_eq!(a.status(&[op::put(&gone.fh), lost]).await, Status::STALE);
    let stateid = open(&mut a, &kept.fh, reclaim(owner, RW, share::DENY_NONE)).await.unwrap();
    a.ok(&[DONE]).await;
    a.write(&Open { fh: kept.fh, stateid }, 0, b"more").await;
}

#[tokio::test]
async fn nothing_that_a_reclaim_could_forbid_is_done_in_grace() {
    // RFC 8881 8.4.2.1, case B31: I/O without an open, a truncation, locks and their tests; by whoever has not reclaimed,
    // and by who has, as far as it is not under what was reclaimed. What no reservation can forbid goes on.
    let place = Place::new();
    let server = place.start().await;
    let mut a = client(&server, "a").await;
    let mut other = client(&server, "other").await;
    let root = a.walk("/").await;
    let f = a.create(&root, "f").await;
    a.write(&f, 0, b"data").await;
    a.ok(&[op::put(&f.fh), op::commit(0, 0)]).await;
    // Two clients have something to come back for: grace does not end with the first.
    other.create(&root, "g").await;
    server.shutdown().await;

    let server = place.start().await;
    let (mut a, mut b) = (returning(&server, "a").await, client(&server, "b").await);
    let size = Attrs { size: Some(1), ..Attrs::default() };
    for c in [&mut a, &mut b] {
        let owner = c.owner("l");
        for refused in [
            op::read(Stateid::ANONYMOUS, 0, 4),
            op::write(Stateid::ANONYMOUS, 0, StableHow::UNSTABLE, b"x"),
            op::setattr(size.clone()),
            op::lockt(owner.clone(), LockType::WRITE, 0, 1),
            open_fh(owner.clone(), share::ACCESS_READ, share::DENY_NONE),
        ] {
            let num = refused.op();
            assert_eq!(c.status(&[op::put(&f.fh), refused]).await, Status::GRACE, "{num}");
        }
        c.ok(&[op::put(&root), op::lookup("f"), op::getattr(&[]), op::access(1)]).await;
    }
    let owner = a.owner("owner");
    let stateid = open(&mut a, &f.fh, reclaim(owner, RW, share::DENY_NONE)).await.unwrap();
    let f = Open { fh: f.fh, stateid };
    a.write(&f, 0, b"DATA").await;
    assert_eq!(a.read(&f, 0, 10).await.0, "DATA");
    a.ok(&[op::put(&f.fh), op::setattr_with(stateid, size)]).await;
    a.ok(&[DONE]).await;
    // Done with its reclaims: still no new state, for the other may come back.
    assert_eq!(lock(&mut a, &f, false).await, Status::GRACE);
    let mut other = returning(&server, "other").await;
    other.ok(&[DONE]).await;
    assert_eq!(lock(&mut a, &f, false).await, Status::OK);
    b.ok(&[op::put(&f.fh), op::read(Stateid::ANONYMOUS, 0, 4)]).await;
}

/// Changes of the file `f` and its names, one for each way in which state of others can stand against one; whether each ends
/// the name, and what it answers for GRACE.
fn changes(root: &FileHandle, f: &FileHandle) -> [(Vec<ArgOp>, bool, Status); 6] {
    let from_root = |more: ArgOp| vec![op::put(root), ArgOp::SaveFh, more];
    let mode = Attrs { mode: Some(0o640), ..Attrs::default() };
    let (name, value) = ("a".into(), "b".into());
    let xattr = ArgOp::Setxattr(SetxattrArgs { option: SetxattrOption::EITHER, name, value });
    [
        (vec![op::put(f), op::setattr(mode)], false, Status::GRACE),
        // RFC 8276 8.4.2 has no GRACE.
        (vec![op::put(f), xattr], false, Status::DELAY),
        (vec![op::put(f), ArgOp::SaveFh, op::put(root), op::link("another")], false, Status::GRACE),
        (from_root(op::rename("f", "g")), false, Status::GRACE),
        (from_root(op::rename("spare", "g")), true, Status::GRACE),
        (vec![op::put(root), op::remove("g")], true, Status::GRACE),
    ]
}

/// A file `f`, two names to be changed, and a directory; nobody holds anything.
async fn some_files(place: &Place) {
    let server = place.start().await;
    let mut c = client(&server, "maker").await;
    let root = c.walk("/").await;
    for name in ["f", "spare"] {
        let made = op::open_create(c.owner("o"), RW | share::WANT_NO_DELEG, 0, name, 0o644);
        let made = c.open(&root, made).await;
        c.close(&made).await;
    }
    c.mkdir(&root, "dir").await;
    let (id, session) = (c.id, c.session.id());
    assert_eq!(c.wire.compound(2, &[op::destroy_session(session)]).await.status, Status::OK);
    assert_eq!(c.wire.compound(2, &[op::destroy_client(id)]).await.status, Status::OK);
    server.shutdown().await;
}

/// Opens a file, is recorded for it, and is away.
async fn holds(place: &Place, name: &str, access: u32, deny: u32) -> FileHandle {
    let server = place.start().await;
    let mut c = client(&server, name).await;
    let root = c.walk("/").await;
    let open = c.open(&root, op::open_name(c.owner("owner"), access, deny, "f")).await;
    server.shutdown().await;
    open.fh
}

/// RFC 8881 8.4.2.1: where the records say that nobody who may come back held what stands against them, a restart holds no
/// changes up.
#[tokio::test]
async fn changes_go_on_in_grace_where_nobody_held_what_forbids_them() {
    for delegations in [Delegations::Off, Delegations::All] {
        let mut place = Place::new();
        some_files(&place).await;
        place.delegations = delegations;
        let wish = if delegations == Delegations::All { share::WANT_NO_DELEG } else { 0 };
        let f = holds(&place, "a", RW | wish, share::DENY_READ).await;
        let server = place.start().await;
        let mut b = client(&server, "b").await;
        let owner = b.owner("o");
        assert_eq!(open(&mut b, &f, open_fh(owner, RW, 0)).await, Err(Status::GRACE), "it is grace");
        let root = b.walk("/").await;
        for (change, _, _) in changes(&root, &f) {
            b.ok(&change).await;
        }
    }
}

/// RFC 8881 8.4.2.1, 10.2.1: while a client that may have held delegations has not finished, no change of a file is carried
/// out that would have recalled one; also where none are given any more. Other objects than files have none.
#[tokio::test]
async fn changes_wait_in_grace_for_delegations_that_may_be_reclaimed() {
    for now in [Delegations::All, Delegations::Off] {
        let mut place = Place::new();
        some_files(&place).await;
        place.delegations = Delegations::All;
        let f = holds(&place, "a", share::ACCESS_READ, 0).await;
        place.delegations = now;
        let server = place.start().await;
        let (mut a, mut b) = (returning(&server, "a").await, client(&server, "b").await);
        let root = b.walk("/").await;
        b.ok(&[op::put(&root), ArgOp::SaveFh, op::rename("dir", "moved")]).await;
        let dir = b.walk("/moved").await;
        b.ok(&[op::put(&dir), op::setattr(Attrs { mode: Some(0o750), ..Attrs::default() })]).await;
        b.ok(&[op::put(&root), op::remove("moved")]).await;
        b.mkdir(&root, "new").await;
        let all = changes(&root, &f);
        for (change, _, status) in &all[..4] {
            assert_eq!(b.status(change).await, *status, "{change:?}");
        }
        assert_eq!(b.status(&[op::put(&root), ArgOp::SaveFh, op::rename("spare", "f")]).await, Status::GRACE);
        assert_eq!(b.status(&[op::put(&root), op::remove("f")]).await, Status::GRACE);
        // It is the only one who could have one: nobody else's stands against what it does itself.
        for (change, _, _) in &all[..3] {
            a.ok(change).await;
        }
        let owner = a.owner("owner");
        let claim = OpenClaim::Previous(DelegationType::READ);
        let again = op::open(owner, share::ACCESS_READ, 0, OpenHow::NoCreate, claim);
        open(&mut a, &f, again).await.unwrap();
        assert_eq!(b.status(&all[0].0).await, Status::GRACE, "it may reclaim more");
        a.ok(&[DONE]).await;
        // From now on as ever: it is recalled, though none is given any more.
        assert_eq!(b.status(&all[0].0).await, Status::DELAY);
    }
}

/// RFC 8881 18.25.4, 8.4.2.1: nor is a name ended that a client may keep by an open that it can reclaim; with it or without,
/// all other changes go on.
#[tokio::test]
async fn names_wait_in_grace_for_opens_that_deny_writing() {
    let place = Place::new();
    some_files(&place).await;
    let f = holds(&place, "a", RW, share::DENY_WRITE).await;
    let server = place.start().await;
    let (mut a, mut b) = (returning(&server, "a").await, client(&server, "b").await);
    let root = b.walk("/").await;
    let ends = async |c: &mut Client, want: Status| {
        for (change, ends, _) in changes(&root, &f) {
            if ends {
                assert_eq!(c.status(&change).await, want, "{change:?}");
            }
        }
    };
    for (change, ends, _) in changes(&root, &f) {
        if !ends {
            b.ok(&change).await;
        }
    }
    ends(&mut b, Status::GRACE).await;
    ends(&mut a, Status::GRACE).await;
    let owner = a.owner("owner");
    let stateid = open(&mut a, &f, reclaim(owner, RW, share::DENY_WRITE)).await.unwrap();
    ends(&mut b, Status::FILE_OPEN).await;
    a.ok(&[DONE]).await;
    ends(&mut b, Status::FILE_OPEN).await;
    a.close(&Open { fh: f.clone(), stateid }).await;
    ends(&mut b, Status::OK).await;
}
