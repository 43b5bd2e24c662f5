//! Copy-notify stateids (RFC 7862 4.8, 15.3; cases K10, K12, K13).

use crate::common::*;
use dhow_state::*;

fn notify(s: &S, c: &C, f: &str, stateid: &Stateid, now: Time) -> Result<Stateid, Status> {
    s.notify_begin(&c.me, &file(f), stateid, |open| open + 1000, now)
}

#[test]
fn it_reads_one_file_for_whoever_has_it() {
    let s = server();
    let (a, b) = (C::new(&s, "a", t(0)), C::new(&s, "b", t(0)));
    let open = a.open("f", "o", Share::READ, Share::NONE, t(0)).unwrap();
    let id = notify(&s, &a, "f", &open, t(0)).unwrap();
    assert_ne!(id.seqid, 0);
    assert!(State::<u32>::is_copy_notify(&id) && !State::<u32>::is_copy_notify(&open));
    let io = s.notify_io(&file("f"), &id, t(1)).unwrap();
    let opened = *io.open().unwrap();
    assert_eq!(io.behalf(), Some(&(opened + 1000)), "as COPY_NOTIFY left it");
    drop(io);
    assert_eq!(s.notify_io(&file("g"), &id, t(1)).unwrap_err(), Status::BAD_STATEID, "another file");
    assert_eq!(s.notify_io(&file("f"), &open, t(1)).unwrap_err(), Status::BAD_STATEID, "no copy-notify stateid");
    assert_eq!(s.notify_io(&file("f"), &Stateid { seqid: 2, ..id }, t(1)).unwrap_err(), Status::BAD_STATEID);
    // It is the stateid of nothing else, not even for its owner.
    for kind in [IoKind::Read, IoKind::Write] {
        assert_eq!(a.io("f", &id, kind, t(1)).unwrap_err(), Status::BAD_STATEID.into());
    }
    assert_eq!(a.close("f", &id).unwrap_err(), Status::BAD_STATEID);
    assert_eq!(notify(&s, &a, "f", &id, t(1)), Err(Status::BAD_STATEID));
    // Its owner may test, cancel and free it.
    assert_eq!((s.test_stateid(&a.me, &id), s.test_stateid(&b.me, &id)), (Status::OK, Status::BAD_STATEID));
    assert_eq!(s.notify_cancel(&b.me, &id), Err(Status::BAD_STATEID));
    assert_eq!(s.free_stateid(&b.me, &id), Err(Status::BAD_STATEID));
    s.notify_cancel(&a.me, &id).unwrap();
    assert_eq!(s.notify_io(&file("f"), &id, t(1)).unwrap_err(), Status::BAD_STATEID);
    let id = notify(&s, &a, "f", &open, t(1)).unwrap();
    s.free_stateid(&a.me, &id).unwrap();
    assert_eq!(s.notifies(), 0);
}

#[test]
fn it_needs_an_open_for_reading() {
    // Case K12.
    let s = server();
    let (a, b) = (C::new(&s, "a", t(0)), C::new(&s, "b", t(0)));
    let open = a.open("f", "o", Share::READ, Share::NONE, t(0)).unwrap();
    for special in [Stateid::ANONYMOUS, Stateid::READ_BYPASS, Stateid::CURRENT, Stateid::INVALID] {
        assert_eq!(notify(&s, &a, "f", &special, t(0)), Err(Status::BAD_STATEID));
    }
    assert_eq!(notify(&s, &b, "f", &open, t(0)), Err(Status::BAD_STATEID), "another client");
    assert_eq!(notify(&s, &a, "g", &open, t(0)), Err(Status::BAD_STATEID), "another file");
    let w = a.open("w", "o", Share::WRITE, Share::NONE, t(0)).unwrap();
    assert_eq!(notify(&s, &a, "w", &w, t(0)), Err(Status::OPENMODE));
    let again = a.open("f", "o", Share::READ, Share::NONE, t(0)).unwrap();
    assert_eq!(notify(&s, &a, "f", &open, t(0)), Err(Status::OLD_STATEID));
    notify(&s, &a, "f", &again, t(0)).unwrap();
    assert_eq!(s.notifies(), 1);
}

#[test]
fn it_ends_with_its_parent_but_not_under_a_use() {
    // Cases K10, K13.
    let s = server();
    let a = C::new(&s, "a", t(0));
    let open = a.open("f", "o", Share::READ, Share::NONE, t(0)).unwrap();
    let id = notify(&s, &a, "f", &open, t(0)).unwrap();
    let other = notify(&s, &a, "f", &open, t(0)).unwrap();
    assert_ne!(id, other);
    let io = s.notify_io(&file("f"), &id, t(1)).unwrap();
    let plan = s.plan_close(&a.me, &file("f"), &open).unwrap();
    assert!(!plan.drain().is_done(), "CLOSE waits for the use");
    assert_eq!(s.notify_io(&file("f"), &other, t(1)).unwrap_err(), Status::DELAY);
    // Cancelled while in use: the use goes on.
    s.notify_cancel(&a.me, &id).unwrap();
    assert!(!plan.drain().is_done());
    drop(io);
    assert!(plan.drain().is_done());
    let _ = plan.commit();
    assert_eq!(s.notify_io(&file("f"), &other, t(1)).unwrap_err(), Status::BAD_STATEID);
    assert_eq!((s.notifies(), s.test_stateid(&a.me, &other)), (0, Status::BAD_STATEID));
    // The end of the client.
    let open = a.open("f", "o", Share::READ, Share::NONE, t(1)).unwrap();
    let id = notify(&s, &a, "f", &open, t(1)).unwrap();
    let _ = a.open("f", "other", Share::READ, Share::NONE, t(1)).unwrap();
    assert!(retire(&s, a.id, t(LEASE + 2)).is_some());
    assert_eq!(s.notify_io(&file("f"), &id, t(2)).unwrap_err(), Status::BAD_STATEID);
    assert_eq!(s.notifies(), 0);
}

#[test]
fn it_lives_for_the_lease_time_after_its_last_use() {
    let s = server();
    let mut a = C::new(&s, "a", t(0));
    let open = a.open("f", "o", Share::READ, Share::NONE, t(0)).unwrap();
    let id = notify(&s, &a, "f", &open, t(0)).unwrap();
    a.renew(t(80)).unwrap();
    let io = s.notify_io(&file("f"), &id, t(LEASE)).unwrap();
    a.renew(t(2 * LEASE)).unwrap();
    s.tick(t(3 * LEASE));
    assert_eq!(s.notifies(), 1, "in use");
    drop(io);
    drop(s.notify_io(&file("f"), &id, t(4 * LEASE)).unwrap());
    a.renew(t(5 * LEASE)).unwrap();
    s.tick(t(5 * LEASE));
    assert_eq!(s.notifies(), 1);
    // Not ticked yet, but over.
    assert_eq!(s.notify_io(&file("f"), &id, t(5 * LEASE + 1)).unwrap_err(), Status::BAD_STATEID);
    assert_eq!(s.notifies(), 0);
    let _ = notify(&s, &a, "f", &open, t(5 * LEASE)).unwrap();
    a.renew(t(6 * LEASE)).unwrap();
    s.tick(t(6 * LEASE + 1));
    assert_eq!(s.notifies(), 0);
}

#[test]
fn they_are_bounded() {
    let limits = Limits { copy_notifies_per_open: 3, copy_notifies_per_client: 5, copy_notifies: 7, ..limits() };
    let s = server_with(limits, &[]);
    let (a, b) = (C::new(&s, "a", t(0)), C::new(&s, "b", t(0)));
    let open = |c: &C, f: &str| c.open(f, "o", Share::READ, Share::NONE, t(0)).unwrap();
    let (f, g) = (open(&a, "f"), open(&a, "g"));
    let ids: Vec<_> = (0..10).map(|i| notify(&s, &a, "f", &f, t(i)).unwrap()).collect();
    assert_eq!(s.notifies(), 3, "the oldest made room");
    assert_eq!(s.test_stateid(&a.me, &ids[6]), Status::BAD_STATEID);
    assert_eq!(s.test_stateid(&a.me, &ids[7]), Status::OK);
    // Those in use do not make room.
    let used: Vec<_> = ids[7..].iter().map(|id| s.notify_io(&file("f"), id, t(10)).unwrap()).collect();
    assert_eq!(notify(&s, &a, "f", &f, t(10)), Err(Status::DELAY));
    drop(used);
    for _ in 0..2 {
        notify(&s, &a, "g", &g, t(10)).unwrap();
    }
    assert_eq!(notify(&s, &a, "g", &g, t(10)), Err(Status::DELAY), "per client");
    let f = open(&b, "f");
    for _ in 0..2 {
        notify(&s, &b, "f", &f, t(10)).unwrap();
    }
    assert_eq!(notify(&s, &b, "f", &f, t(10)), Err(Status::DELAY), "in all");
    assert_eq!(s.limit_hits().copy_notifies.count(), 3);
    assert_eq!(s.counts().copy_notifies, 7);
}

#[test]
fn they_cannot_be_guessed_from_others() {
    let s = server();
    let a = C::new(&s, "a", t(0));
    let open = a.open("f", "o", Share::READ, Share::NONE, t(0)).unwrap();
    let ids: Vec<_> = (0..50).map(|_| notify(&s, &a, "f", &open, t(0)).unwrap()).collect();
    // Ten bytes of each differ from those of the one before in about half of their bits.
    for pair in ids.windows(2) {
        let bits: u32 = pair[0].other[2..].iter().zip(&pair[1].other[2..]).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert!((15..65).contains(&bits), "{bits} of 80 bits differ");
    }
}

/// Case K10: use, cancel, CLOSE and expiry of the same stateids from several threads; every count returns to zero.
#[test]
fn everything_at_once() {
    let s = server();
    let owner = C::new(&s, "a", t(0));
    let ids = std::sync::Mutex::new(Vec::<Stateid>::new());
    std::thread::scope(|threads| {
        for n in 0..2 {
            let (s, owner, ids) = (&s, &owner, &ids);
            threads.spawn(move || {
                for i in 0..2000_u64 {
                    let Ok(open) = owner.open("f", &format!("o{n}"), Share::READ, Share::NONE, t(i)) else { continue };
                    for _ in 0..3 {
                        if let Ok(id) = notify(s, owner, "f", &open, t(i)) {
                            ids.lock().unwrap().push(id);
                        }
                    }
                    if let Some(id) = ids.lock().unwrap().first() {
                        let _ = s.notify_cancel(&owner.me, id);
                    }
                    // DELAY while a use is under way elsewhere is not to be: CLOSE waits for it.
                    let plan = s.plan_close(&owner.me, &file("f"), &open).unwrap();
                    while !plan.drain().is_done() {
                        std::thread::yield_now();
                    }
                    let _ = plan.commit();
                    let mut ids = ids.lock().unwrap();
                    if ids.len() > 8 {
                        ids.drain(..4);
                    }
                }
            });
            threads.spawn(move || {
                for i in 0..4000_u64 {
                    let id = ids.lock().unwrap().get(i as usize % 8).copied();
                    if let Some(id) = id
                        && let Ok(io) = s.notify_io(&file("f"), &id, t(i))
                    {
                        assert!(io.open().is_some() && io.behalf().is_some());
                    }
                    if i % 64 == 0 {
                        s.tick(t(i / 64));
                    }
                }
            });
        }
    });
    let counts = s.counts();
    assert_eq!((counts.copy_notifies, counts.opens, counts.files), (0, 0, 0));
}
