//! OPEN, OPEN_DOWNGRADE, CLOSE, I/O.

use crate::common::*;
use dhow_state::*;

const R: Share = Share::READ;
const W: Share = Share::WRITE;
const RW: Share = Share::BOTH;
const N: Share = Share::NONE;

#[test]
fn an_open_by_the_same_owner_adds_to_the_first() {
    // RFC 8881 9.9.
    let s = server();
    let c = C::new(&s, "c", t(0));
    let a = c.open("f", "o", R, N, t(0)).unwrap();
    assert_eq!(a.seqid, 1);
    assert_eq!(c.io("f", &a, IoKind::Write, t(0)).unwrap_err(), Status::OPENMODE.into());
    let plan = c.plan("f", "o", W, N, t(0)).unwrap();
    assert_eq!((plan.existing(), plan.access()), (Some(&1), RW));
    let done = plan.commit(2).unwrap();
    assert_eq!((done.stateid.other, done.stateid.seqid, done.replaced), (a.other, 2, Some(1)));
    assert_eq!(c.io("f", &a, IoKind::Write, t(0)).unwrap_err(), Status::OLD_STATEID.into());
    let io = c.io("f", &Stateid { seqid: 0, ..a }, IoKind::Write, t(0)).unwrap();
    assert_eq!(io.open(), Some(&2));
    drop(io);
    assert_eq!(s.counts().opens, 1);
    // "The increment is required in cases in which the upgrade results in no change to the open mode."
    assert_eq!(c.open("f", "o", R, N, t(0)).unwrap().seqid, 3);
    // Another owner is another open.
    assert_ne!(c.open("f", "p", R, N, t(0)).unwrap().other, a.other);
}

#[test]
fn reservations_count_until_they_are_dropped() {
    // RFC 8881 9.7, and between plan and commit.
    let s = server();
    let (a, b) = (C::new(&s, "a", t(0)), C::new(&s, "b", t(0)));
    let plan = a.plan("f", "o", RW, W, t(0)).unwrap();
    assert_eq!(b.open("f", "o", W, N, t(0)).unwrap_err(), Status::DELAY.into());
    drop(plan);
    assert_eq!(s.counts().files, 0);
    let sid = a.open("f", "o", RW, W, t(0)).unwrap();
    assert_eq!(b.open("f", "o", W, N, t(0)).unwrap_err(), Status::SHARE_DENIED.into());
    assert_eq!(b.open("f", "o", R, R, t(0)).unwrap_err(), Status::SHARE_DENIED.into());
    assert!(b.open("f", "o", R, N, t(0)).is_ok());
    assert_eq!(a.open("f", "o2", W, N, t(0)).unwrap_err(), Status::SHARE_DENIED.into(), "own opens count too");
    a.close("f", &sid).unwrap();
    assert!(b.open("f", "o", W, N, t(0)).is_ok());
}

#[test]
fn special_stateids_meet_share_reservations() {
    // RFC 8881 8.2.3.
    let s = server();
    let (a, b) = (C::new(&s, "a", t(0)), C::new(&s, "b", t(0)));
    for k in [IoKind::Read, IoKind::Write] {
        assert!(b.io("f", &Stateid::ANONYMOUS, k, t(0)).unwrap().open().is_none());
    }
    a.open("f", "o", R, RW, t(0)).unwrap();
    for sid in [Stateid::ANONYMOUS, Stateid::READ_BYPASS] {
        assert_eq!(b.io("f", &sid, IoKind::Write, t(0)).unwrap_err(), Status::LOCKED.into());
    }
    assert_eq!(b.io("f", &Stateid::ANONYMOUS, IoKind::Read, t(0)).unwrap_err(), Status::LOCKED.into());
    assert!(b.io("f", &Stateid::READ_BYPASS, IoKind::Read, t(0)).is_ok());
    for sid in [Stateid::INVALID, Stateid::CURRENT, Stateid { seqid: 5, other: [0xff; 12] }] {
        assert_eq!(b.io("f", &sid, IoKind::Read, t(0)).unwrap_err(), Status::BAD_STATEID.into());
    }
}

#[test]
fn a_stateid_is_good_for_its_client_and_file_only() {
    // RFC 8881 8.2.4.
    let s = server();
    let (a, b) = (C::new(&s, "a", t(0)), C::new(&s, "b", t(0)));
    let sid = a.open("f", "o", R, N, t(0)).unwrap();
    let bad = Refused::from(Status::BAD_STATEID);
    assert_eq!(b.io("f", &sid, IoKind::Read, t(0)).unwrap_err(), bad);
    assert_eq!(a.io("g", &sid, IoKind::Read, t(0)).unwrap_err(), bad);
    assert_eq!(a.io("f", &Stateid { seqid: 2, ..sid }, IoKind::Read, t(0)).unwrap_err(), bad);
    let mut forged = sid;
    for i in 0..12 {
        forged.other[i] ^= 0x40;
        assert_eq!(a.io("f", &forged, IoKind::Read, t(0)).unwrap_err(), bad, "byte {i}");
        forged.other[i] ^= 0x40;
    }
    assert_eq!(b.close("f", &sid).unwrap_err(), Status::BAD_STATEID);
    a.close("f", &sid).unwrap();
    assert_eq!(a.io("f", &sid, IoKind::Read, t(0)).unwrap_err(), bad);
    assert_eq!(a.close("f", &sid).unwrap_err(), Status::BAD_STATEID);
    assert_eq!(s.counts().files, 0);
}

#[test]
fn downgrades_go_to_what_was_asked_for() {
    // RFC 8881 18.18.
    let s = server();
    let (a, b) = (C::new(&s, "a", t(0)), C::new(&s, "b", t(0)));
    a.open("f", "o", R, N, t(0)).unwrap();
    let sid = a.open("f", "o", RW, W, t(0)).unwrap();
    let key = file("f");
    let down = |sid: &Stateid, acc, deny| s.plan_downgrade(&a.me, &key, sid, acc, deny);
    assert_eq!(down(&sid, W, N).unwrap_err(), Status::INVAL, "never opened for writing alone");
    assert_eq!(down(&sid, N, N).unwrap_err(), Status::INVAL);
    assert_eq!(down(&sid, R, R).unwrap_err(), Status::INVAL);
    assert_eq!(b.open("f", "o", W, N, t(0)).unwrap_err(), Status::SHARE_DENIED.into());
    let done = down(&sid, R, N).unwrap().commit(9).unwrap();
    assert_eq!((done.stateid.seqid, done.replaced), (3, Some(1)));
    assert_eq!(down(&sid, R, N).unwrap_err(), Status::OLD_STATEID);
    assert!(b.open("f", "o", W, N, t(0)).is_ok());
    assert_eq!(a.io("f", &done.stateid, IoKind::Write, t(0)).unwrap_err(), Status::OPENMODE.into());
    assert_eq!(down(&done.stateid, RW, N).unwrap_err(), Status::INVAL, "given up is given up");
}

#[test]
fn close_waits_for_io_and_takes_no_more() {
    let s = server();
    let c = C::new(&s, "c", t(0));
    let sid = c.open("f", "o", RW, N, t(0)).unwrap();
    let io = c.io("f", &sid, IoKind::Write, t(0)).unwrap();
    let key = file("f");
    {
        let plan = s.plan_close(&c.me, &key, &sid).unwrap();
        assert!(!ready(plan.drain()));
        assert_eq!(c.io("f", &sid, IoKind::Read, t(0)).unwrap_err(), Status::DELAY.into());
        assert_eq!(c.open("f", "o", R, N, t(0)).unwrap_err(), Status::DELAY.into());
    }
    // Given up: open as before.
    let second = c.io("f", &sid, IoKind::Read, t(0)).unwrap();
    let plan = s.plan_close(&c.me, &key, &sid).unwrap();
    drop(io);
    assert!(!ready(plan.drain()));
    assert_eq!(second.into_open(), Some(1), "a copy takes the file along, not the leave");
    assert!(ready(plan.drain()));
    assert!(matches!(plan.commit()[..], [Effect::Close(1)]));
}

#[test]
fn an_open_is_not_committed_for_a_client_that_is_gone() {
    let s = server();
    let c = C::new(&s, "c", t(0));
    let plan = c.plan("f", "o", R, N, t(0)).unwrap();
    let new = s.exchange_id(&exchange("c", 2, 0), t(0)).unwrap();
    let made = s.create_session(ConnId(4), 1, &session_args(new.client, 1), &who(0), t(0)).unwrap();
    assert_eq!(made.retire, Some(c.id));
    assert_eq!(plan.commit(5).unwrap_err(), (Status::DEADSESSION, 5), "the token comes back to be closed");
    retire(&s, c.id, t(0)).unwrap();
    assert_eq!((s.counts().opens, s.counts().files), (0, 0));
}

#[test]
fn nothing_is_committed_before_the_client_is_recorded() {
    // RFC 8881 8.4.3.
    let s = server();
    let e = s.exchange_id(&exchange("c", 1, 0), t(0)).unwrap();
    s.create_session(ConnId(1), 1, &session_args(e.client, 1), &who(0), t(0)).unwrap();
    let me = s.client(e.client).unwrap();
    let _ = s.reclaim_complete(&me).unwrap();
    let record = |holds| Some(ClientRecord { owner: owner_id("c"), holds, revoked: Revoked::default() });
    assert_eq!(me.needs_record(Holds::NONE), record(Holds::NONE));
    let (f, o) = (file("f"), bytes("o"));
    let req = OpenRequest { file: &f, owner: &o, access: R, deny: N, claim: Claim::New };
    let plan = s.plan_open(&me, &req, t(0)).unwrap();
    assert_eq!(plan.commit(1).unwrap_err().0, Status::SERVERFAULT);
    me.recorded(Holds::NONE);
    assert_eq!(me.needs_record(Holds::NONE), None);
    assert!(s.plan_open(&me, &req, t(0)).unwrap().commit(1).is_ok());
    // What stands against changes after a restart is recorded before it is there (8.4.2.1).
    assert_eq!(me.needs_record(Holds::DENIALS), record(Holds::DENIALS));
    let (g, deny) = (file("g"), OpenRequest { deny: W, ..req.clone() });
    let deny = OpenRequest { file: &g, ..deny };
    assert_eq!(s.plan_open(&me, &deny, t(0)).unwrap().commit(1).unwrap_err().0, Status::SERVERFAULT);
    me.recorded(Holds::DENIALS);
    assert!(s.plan_open(&me, &deny, t(0)).unwrap().commit(1).is_ok());
    assert_eq!(me.needs_record(Holds::DELEGATIONS), record(Holds::ALL), "a record says ever more");
}

#[test]
fn opens_are_bounded() {
    let s = server_with(Limits { opens_per_client: 3, ..limits() }, &[]);
    let c = C::new(&s, "c", t(0));
    for i in 0..3 {
        c.open(&format!("f{i}"), "o", R, N, t(0)).unwrap();
    }
    assert_eq!(c.open("more", "o", R, N, t(0)).unwrap_err(), Status::SERVERFAULT.into());
    assert_eq!(s.limit_hits().opens.count(), 1);
    assert!(C::new(&s, "d", t(0)).open("more", "o", R, N, t(0)).is_ok(), "others are not concerned");
}

#[test]
fn opens_of_all_are_bounded_and_ended_leases_make_room() {
    let s = server_with(Limits { opens: 3, ..limits() }, &[]);
    let (a, mut b) = (C::new(&s, "a", t(0)), C::new(&s, "b", t(0)));
    for i in 0..3 {
        a.open(&format!("f{i}"), "o", R, N, t(0)).unwrap();
    }
    b.renew(t(80)).unwrap();
    assert_eq!(b.open("more", "o", R, N, t(100)).unwrap_err(), Status::DELAY.into());
    for e in s.tick(t(100)) {
        let Effect::Retire(id) = e else { panic!() };
        assert_eq!(id, a.id);
        assert_eq!(retire(&s, id, t(100)).unwrap().0.len(), 3);
    }
    let sid = b.open("more", "o", R, N, t(100)).unwrap();
    for _ in 0..5 {
        b.close("more", &sid).ok();
        assert!(b.open("more", "o", R, N, t(100)).is_ok());
    }
}

/// What a client sends is a slice of its whole record, a megabyte at most: none of that may stay in memory for as long
/// as an owner of a few bytes does (cases B22, B46).
#[test]
fn owners_do_not_keep_the_record_they_came_in() {
    let s = server();
    let record = bytes("padding client open lock padding");
    let part = |name: &str| {
        let at = record.windows(name.len()).position(|w| w == name.as_bytes()).unwrap();
        record.slice(at..at + name.len())
    };
    let id = ClientOwnerId(part("client"));
    let got = s.exchange_id(&ExchangeId { owner: id, ..exchange("", 1, 0) }, t(0)).unwrap();
    s.create_session(ConnId(1), 2, &session_args(got.client, 1), &who(0), t(0)).unwrap();
    let me = s.client(got.client).unwrap();
    me.recorded(Holds::ALL);
    let _ = s.reclaim_complete(&me).unwrap();
    let f = file("f");
    let open = {
        let req = OpenRequest { file: &f, owner: &part("open"), access: RW, deny: N, claim: Claim::New };
        s.plan_open(&me, &req, t(0)).unwrap().commit(1).unwrap().stateid
    };
    {
        let (owner, range) = (part("lock"), range(0, 9));
        let locker = Locker::New { open: &open, owner: &owner };
        let req = LockRequest { file: &f, locker, range, kind: LockKind::Write, claim: Claim::New };
        let _ = s.plan_lock(&me, &req, t(0)).unwrap().commit().unwrap();
    }
    assert_eq!((s.counts().opens, me.owner()), (1, &ClientOwnerId(bytes("client"))));
    assert!(record.is_unique(), "something of the state still holds the record");
}

#[test]
fn what_is_open_and_denies_writing_is_not_to_be_removed() {
    // RFC 8881 18.25.4; a client whose lease has ended is asked to leave (case B32).
    let s = server();
    let (a, mut b) = (C::new(&s, "a", t(0)), C::new(&s, "b", t(0)));
    let me = b.me.clone();
    let goes = |f: &str, now| s.begin_removal(&me, &file(f), now).map(drop);
    assert!(s.begin_unseen_removal().is_some());
    a.open("g", "o", RW, N, t(0)).unwrap();
    assert!(goes("g", t(0)).is_ok(), "an open alone keeps nothing");
    assert!(a.open("g", "reader", R, R, t(0)).is_err());
    assert!(s.begin_unseen_removal().is_some());
    let sid = a.open("f", "o", R, W, t(0)).unwrap();
    assert!(s.begin_unseen_removal().is_none());
    assert_eq!(goes("f", t(0)), Err(Status::FILE_OPEN.into()));
    assert!(s.begin_change(&me, &file("f"), t(0)).is_ok(), "it may have another name");
    assert!(goes("g", t(0)).is_ok());
    b.renew(t(50)).unwrap();
    let late = t(LEASE + 1);
    b.renew(late).unwrap();
    assert_eq!(goes("f", late), Err(Refused::Courtesy(a.id)));
    let mut a = a;
    a.renew(late).unwrap();
    assert_eq!(goes("f", late), Err(Status::FILE_OPEN.into()));
    a.close("f", &sid).unwrap();
    assert!(goes("f", late).is_ok());
    assert_eq!(s.counts().files, 1, "nothing is left of removals");
}

#[test]
fn a_removal_and_an_open_that_denies_see_each_other() {
    // RFC 8881 18.25.4, in every order of the halves (with all else under way: `races`).
    let s = server();
    let (a, b) = (C::new(&s, "a", t(0)), C::new(&s, "b", t(0)));
    // The first that denies, while a file goes that nobody looked at; others are not concerned.
    let unseen = s.begin_unseen_removal().unwrap();
    assert_eq!(a.open("f", "o", R, W, t(0)), Err(Status::DELAY.into()));
    a.open("f", "o", R, R, t(0)).unwrap();
    assert!(s.begin_unseen_removal().is_none(), "from now on files are looked at");
    drop(unseen);
    a.open("g", "o", R, W, t(0)).unwrap();
    // A removal under way.
    let going = s.begin_removal(&b.me, &file("h"), t(0)).unwrap();
    assert_eq!(a.open("h", "o", R, W, t(0)), Err(Status::DELAY.into()));
    a.open("h", "another", R, N, t(0)).unwrap();
    let second = s.begin_removal(&b.me, &file("h"), t(0)).unwrap();
    drop(going);
    assert_eq!(a.open("h", "o", R, W, t(0)), Err(Status::DELAY.into()), "of two names, one still goes");
    drop(second);
    // An OPEN under way.
    let plan = a.plan("h", "o", R, W, t(0)).unwrap();
    assert_eq!(s.begin_removal(&b.me, &file("h"), t(0)).map(drop), Err(Status::DELAY.into()));
    plan.commit(1).unwrap();
    assert_eq!(s.begin_removal(&b.me, &file("h"), t(0)).map(drop), Err(Status::FILE_OPEN.into()));
}
