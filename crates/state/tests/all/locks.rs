//! LOCK, LOCKT, LOCKU, TEST_STATEID, FREE_STATEID.

use crate::common::*;
use dhow_state::LockKind::{Read, Write};
use dhow_state::*;

struct Two {
    s: S,
    a: C,
    b: C,
    ao: Stateid,
    bo: Stateid,
}

fn two() -> Two {
    let s = server();
    let (a, b) = (C::new(&s, "a", t(0)), C::new(&s, "b", t(0)));
    let ao = a.open("f", "o", Share::BOTH, Share::NONE, t(0)).unwrap();
    let bo = b.open("f", "o", Share::BOTH, Share::NONE, t(0)).unwrap();
    Two { s, a, b, ao, bo }
}

fn new<'a>(open: &'a Stateid, owner: &'a bytes::Bytes) -> Locker<'a> {
    Locker::New { open, owner }
}

#[test]
fn a_conflict_names_the_holder() {
    // RFC 8881 18.10.3.
    let x = two();
    let o = bytes("l");
    let l = x.a.lock("f", new(&x.ao, &o), range(10, 19), Write, t(0)).unwrap();
    assert_eq!(l.seqid, 1);
    let held = Held { range: range(10, 19), kind: Write, owner: OwnerKey { client: x.a.id, owner: o.clone() } };
    let denied = LockRefused::Denied(held);
    assert_eq!(x.b.lock("f", new(&x.bo, &o), range(0, u64::MAX), Read, t(0)).unwrap_err(), denied);
    assert_eq!(x.s.test_lock(&x.b.me, &file("f"), &o, range(19, 19), Read, t(0)), Err(denied));
    assert_eq!(x.s.test_lock(&x.a.me, &file("f"), &o, range(19, 19), Write, t(0)), Ok(()), "its own");
    assert!(x.b.lock("f", new(&x.bo, &o), range(20, u64::MAX), Write, t(0)).is_ok());
    let l = x.a.unlock("f", &l, range(15, 19)).unwrap();
    assert_eq!(l.seqid, 2);
    assert!(x.b.lock("f", new(&x.bo, &o), range(15, 19), Write, t(0)).is_ok());
}

#[test]
fn lock_state_is_one_for_each_open_and_lock_owner() {
    // RFC 8881 18.10.3.
    let x = two();
    let (o, p) = (bytes("l"), bytes("m"));
    let first = x.a.lock("f", new(&x.ao, &o), range(0, 0), Read, t(0)).unwrap();
    let again = x.a.lock("f", new(&x.ao, &o), range(5, 5), Read, t(0)).unwrap();
    assert_eq!((again.other, again.seqid), (first.other, 2), "a client may say `new` again");
    let more = x.a.lock("f", Locker::Existing(&again), range(7, 7), Write, t(0)).unwrap();
    assert_eq!((more.other, more.seqid), (first.other, 3));
    assert_eq!(
        x.a.lock("f", Locker::Existing(&again), range(8, 8), Write, t(0)).unwrap_err(),
        Status::OLD_STATEID.into()
    );
    assert_ne!(x.a.lock("f", new(&x.ao, &p), range(20, 20), Write, t(0)).unwrap().other, first.other);
    for wrong in [x.ao, Stateid::ANONYMOUS, x.bo] {
        assert_eq!(
            x.a.lock("f", Locker::Existing(&wrong), range(9, 9), Write, t(0)).unwrap_err(),
            Status::BAD_STATEID.into()
        );
    }
    assert_eq!(
        x.b.lock("f", Locker::Existing(&more), range(9, 9), Write, t(0)).unwrap_err(),
        Status::BAD_STATEID.into()
    );
    assert_eq!(x.b.unlock("f", &more, range(9, 9)).unwrap_err(), Status::BAD_STATEID);
}

#[test]
fn the_open_must_allow_the_lock() {
    let s = server();
    let c = C::new(&s, "c", t(0));
    let (r, w) = (
        c.open("f", "r", Share::READ, Share::NONE, t(0)).unwrap(),
        c.open("f", "w", Share::WRITE, Share::NONE, t(0)).unwrap(),
    );
    let o = bytes("l");
    assert_eq!(c.lock("f", new(&r, &o), range(0, 0), Write, t(0)).unwrap_err(), Status::OPENMODE.into());
    assert_eq!(c.lock("f", new(&w, &o), range(0, 0), Read, t(0)).unwrap_err(), Status::OPENMODE.into());
    assert!(c.lock("f", new(&r, &o), range(0, 0), Read, t(0)).is_ok());
    assert!(c.lock("f", new(&w, &o), range(0, 0), Write, t(0)).is_ok(), "the same owner through another open");
}

#[test]
fn io_under_a_lock_stateid_is_io_under_its_open() {
    let x = two();
    let o = bytes("l");
    let l = x.a.lock("f", new(&x.ao, &o), range(0, 0), Read, t(0)).unwrap();
    let io = x.a.io("f", &l, IoKind::Write, t(0)).unwrap();
    let plan = x.s.plan_close(&x.a.me, &file("f"), &x.ao);
    assert!(!ready(plan.unwrap().drain()));
    drop(io);
}

#[test]
fn close_frees_the_locks_taken_through_it() {
    // RFC 8881 18.2.3: the server's choice; case B28.
    let x = two();
    let o = bytes("l");
    let l = x.a.lock("f", new(&x.ao, &o), range(0, u64::MAX), Write, t(0)).unwrap();
    let effects = x.a.close("f", &x.ao).unwrap();
    assert!(matches!(&effects[..], [Effect::Unlock { open: 1, owner, .. }, Effect::Close(1)] if owner.owner == o));
    assert!(x.b.lock("f", new(&x.bo, &o), range(0, u64::MAX), Write, t(0)).is_ok());
    assert_eq!(x.a.unlock("f", &l, range(0, 0)).unwrap_err(), Status::BAD_STATEID);
    assert_eq!(x.s.counts().lock_states, 1);
}

#[test]
fn locks_through_two_opens_stay_until_the_last_is_closed() {
    // RFC 8881 9.5.
    let s = server();
    let c = C::new(&s, "c", t(0));
    let p = c.open("f", "p", Share::BOTH, Share::NONE, t(0)).unwrap();
    let q = c.open("f", "q", Share::BOTH, Share::NONE, t(0)).unwrap();
    let o = bytes("l");
    c.lock("f", new(&p, &o), range(0, 0), Write, t(0)).unwrap();
    c.lock("f", new(&q, &o), range(9, 9), Write, t(0)).unwrap();
    assert_eq!(c.close("f", &p).unwrap().len(), 1, "close alone");
    assert_eq!(c.close("f", &q).unwrap().len(), 2, "unlock and close");
}

#[test]
fn pending_locks_count() {
    let x = two();
    let (f, o) = (file("f"), bytes("l"));
    let req = LockRequest { file: &f, locker: new(&x.ao, &o), range: range(0, 9), kind: Write, claim: Claim::New };
    let plan = x.s.plan_lock(&x.a.me, &req, t(0)).unwrap();
    assert_eq!(x.b.lock("f", new(&x.bo, &o), range(9, 9), Read, t(0)).unwrap_err(), Status::DELAY.into());
    assert!(x.b.lock("f", new(&x.bo, &o), range(10, 10), Read, t(0)).is_ok());
    drop(plan);
    assert!(x.b.lock("f", new(&x.bo, &o), range(9, 9), Read, t(0)).is_ok());
    // A lock whose open is closed before the commit is none.
    let plan = x.s.plan_lock(&x.a.me, &req, t(0));
    assert!(matches!(plan, Err(LockRefused::Denied(_))));
    let req = LockRequest { range: range(50, 60), ..req };
    let plan = x.s.plan_lock(&x.a.me, &req, t(0)).unwrap();
    x.a.close("f", &x.ao).unwrap();
    assert_eq!(plan.commit().unwrap_err(), Status::BAD_STATEID);
    assert!(x.b.lock("f", new(&x.bo, &o), range(0, u64::MAX), Write, t(0)).is_ok());
}

#[test]
fn a_lock_of_an_ended_lease_yields() {
    // Case B32.
    let x = two();
    let o = bytes("l");
    x.a.lock("f", new(&x.ao, &o), range(0, 9), Write, t(0)).unwrap();
    let mut b = x.b;
    let late = t(LEASE + 1);
    b.renew(t(50)).unwrap();
    b.renew(late).unwrap();
    let want = |now| b.lock("f", new(&x.bo, &o), range(5, 5), Write, now);
    assert_eq!(want(late).unwrap_err(), LockRefused::Courtesy(x.a.id));
    assert_eq!(x.s.test_lock(&b.me, &file("f"), &o, range(5, 5), Read, late), Err(LockRefused::Courtesy(x.a.id)));
    let (effects, _) = retire(&x.s, x.a.id, late).unwrap();
    assert!(matches!(effects[..], [Effect::Unlock { .. }, Effect::Close(_)]));
    assert!(want(late).is_ok());
}

#[test]
fn test_and_free_stateid() {
    // RFC 8881 18.48, 18.38.
    let x = two();
    let o = bytes("l");
    let test = |s: &Stateid| x.s.test_stateid(&x.a.me, s);
    let l = x.a.lock("f", new(&x.ao, &o), range(0, 9), Write, t(0)).unwrap();
    assert_eq!((test(&x.ao), test(&l)), (Status::OK, Status::OK));
    for special in [Stateid::ANONYMOUS, Stateid::READ_BYPASS, Stateid::CURRENT, Stateid::INVALID, x.bo] {
        assert_eq!(test(&special), Status::BAD_STATEID);
    }
    let free = |s: &Stateid| x.s.free_stateid(&x.a.me, s);
    assert_eq!(free(&x.ao), Err(Status::LOCKS_HELD));
    assert_eq!(free(&l), Err(Status::LOCKS_HELD));
    let l2 = x.a.unlock("f", &l, range(0, 100)).unwrap();
    assert_eq!((test(&l), free(&l)), (Status::OLD_STATEID, Err(Status::OLD_STATEID)));
    assert_eq!(free(&l2), Ok(()));
    assert_eq!((test(&l2), free(&l2)), (Status::BAD_STATEID, Err(Status::BAD_STATEID)));
    assert!(x.a.lock("f", new(&x.ao, &o), range(0, 9), Write, t(0)).is_ok());
}

#[test]
fn locks_of_a_file_are_bounded() {
    let s = server_with(Limits { locks_per_file: 10, ..limits() }, &[]);
    let c = C::new(&s, "c", t(0));
    let open = c.open("f", "o", Share::BOTH, Share::NONE, t(0)).unwrap();
    let o = bytes("l");
    let mut n = 0;
    while c.lock("f", new(&open, &o), range(n * 2, n * 2), Write, t(0)).is_ok() {
        n += 1;
        assert!(n <= 10);
    }
    assert_eq!(c.lock("f", new(&open, &o), range(100, 100), Write, t(0)).unwrap_err(), Status::SERVERFAULT.into());
}

#[test]
fn locks_of_a_client_are_bounded_and_counted_exactly() {
    let s = server_with(Limits { locks_per_client: 20, ..limits() }, &[]);
    let c = C::new(&s, "c", t(0));
    let o = bytes("l");
    let fill = |f: &str| {
        let open = c.open(f, "o", Share::BOTH, Share::NONE, t(0)).unwrap();
        let mut n = 0;
        while c.lock(f, new(&open, &o), range(n * 2, n * 2), Write, t(0)).is_ok() {
            n += 1;
            assert!(n <= 20);
        }
        (open, n)
    };
    let (a, n) = fill("a");
    assert!(n > 10);
    let (b, none) = fill("b");
    assert_eq!(none, 0, "all files count together");
    c.close("a", &a).unwrap();
    c.close("b", &b).unwrap();
    for _ in 0..5 {
        // Freed by close, by unlock, by free: what was taken comes back.
        let (open, m) = fill("b");
        assert_eq!(m, n);
        c.close("b", &open).unwrap();
    }
    let open = c.open("b", "o", Share::BOTH, Share::NONE, t(0)).unwrap();
    for _ in 0..50 {
        let l = c.lock("b", new(&open, &o), range(0, 9), Write, t(0)).unwrap();
        let l = c.unlock("b", &l, range(3, 5)).unwrap();
        let l = c.unlock("b", &l, range(0, 9)).unwrap();
        s.free_stateid(&c.me, &l).unwrap();
    }
}
