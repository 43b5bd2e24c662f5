//! What an administrator sees and takes away (RFC 8881 8.5, 18.38, 18.46.3).

use crate::common::*;
use dhow_state::*;
use std::time::Duration;

fn revoke(s: &S, stateid: &Stateid) -> Result<Effects<u32>, Status> {
    Ok(match s.plan_admin_revoke(stateid, Memory::UntilFreed)? {
        Revocation::Open(plan) => {
            assert!(plan.drain().is_done());
            plan.commit()
        }
        Revocation::Delegation(plan) => plan.commit(),
        Revocation::Locks(effects) => effects,
    })
}

fn flags(c: &mut C, now: Time) -> u32 {
    let token = c.begin(0, now).unwrap();
    let flags = token.result().status_flags;
    token.complete(Reply::from([]), now);
    flags & dhow_proto::v4::ops::seq4_status::ADMIN_STATE_REVOKED
}

/// The end of a client takes what was revoked with it, at whatever time it comes; a client that is ending is told nothing.
#[test]
fn nothing_is_left_behind() {
    for late in [false, true] {
        let s = server();
        let c = C::new(&s, "c", t(1));
        let open = c.open("f", "o", Share::BOTH, Share::NONE, t(1)).unwrap();
        let locker = Locker::New { open: &open, owner: &bytes("l") };
        let lock = c.lock("f", locker, range(0, 9), LockKind::Write, t(1)).unwrap();
        let plan = s.plan_admin_revoke(&open, Memory::UntilFreed).unwrap();
        assert!(matches!(s.plan_admin_revoke(&open, Memory::UntilFreed), Err(Status::DELAY)), "one at a time");
        let Revocation::Open(plan) = plan else { panic!() };
        let mut effects = Vec::new();
        if late {
            assert!(s.expire_client(c.id, t(2)));
            effects.extend(plan.commit());
            assert_eq!(s.admin_clients(None, 9, t(2)).items[0].revoked, 0);
        } else {
            effects.extend(plan.commit());
            assert_eq!(s.test_stateid(&c.me, &lock), Status::ADMIN_REVOKED);
            assert_eq!(s.admin_clients(None, 9, t(2)).items[0].revoked, 2);
            assert!(s.expire_client(c.id, t(2)));
        }
        assert!(!s.expire_client(c.id, t(2)));
        let (more, forget) = retire(&s, c.id, t(2)).unwrap();
        effects.extend(more);
        assert_eq!(forget, Some(owner_id("c")));
        assert!(matches!(&effects[..], [Effect::Unlock { .. }, Effect::Close(1)]), "{effects:?}");
        assert_eq!(s.counts(), Counts::default());
    }
}

/// A plan that is dropped takes nothing away.
#[test]
fn a_revocation_may_be_given_up() {
    let s = server();
    let mut c = C::new(&s, "c", t(1));
    let open = c.open("f", "o", Share::BOTH, Share::NONE, t(1)).unwrap();
    let io = c.io("f", &open, IoKind::Write, t(1)).unwrap();
    let Revocation::Open(plan) = s.plan_admin_revoke(&open, Memory::UntilFreed).unwrap() else { panic!() };
    assert!(!plan.drain().is_done());
    assert_eq!(c.io("f", &open, IoKind::Write, t(1)).unwrap_err(), Refused::Status(Status::DELAY));
    drop(plan);
    drop(io);
    assert!(c.io("f", &open, IoKind::Write, t(1)).is_ok());
    assert_eq!(flags(&mut c, t(1)), 0);
    assert_eq!(revoke(&s, &Stateid::ANONYMOUS).unwrap_err(), Status::BAD_STATEID);
}

/// The locks of a lock-owner go together, through whichever open they were taken (9.5), and nobody else's.
#[test]
fn locks_of_one_owner_through_two_opens() {
    let s = server();
    let (mut a, b) = (C::new(&s, "a", t(1)), C::new(&s, "b", t(1)));
    let one = a.open("f", "o1", Share::BOTH, Share::NONE, t(1)).unwrap();
    let two = a.open("f", "o2", Share::BOTH, Share::NONE, t(1)).unwrap();
    let its = b.open("f", "o", Share::BOTH, Share::NONE, t(1)).unwrap();
    let owner = bytes("l");
    let through = |open| Locker::New { open, owner: &owner };
    let l1 = a.lock("f", through(&one), range(0, 9), LockKind::Write, t(1)).unwrap();
    let l2 = a.lock("f", through(&two), range(20, 29), LockKind::Write, t(1)).unwrap();
    let l3 = b.lock("f", through(&its), range(40, 49), LockKind::Write, t(1)).unwrap();
    let effects = revoke(&s, &l2).unwrap();
    assert!(matches!(&effects[..], [Effect::Unlock { owner, .. }] if owner.client == a.id), "{effects:?}");
    let test = |c: &C, stateid| s.test_stateid(&c.me, stateid);
    assert_eq!((test(&a, &l1), test(&a, &l2)), (Status::ADMIN_REVOKED, Status::ADMIN_REVOKED));
    assert_eq!((test(&a, &one), test(&b, &l3)), (Status::OK, Status::OK));
    assert_eq!(a.unlock("f", &l1, range(0, 9)), Err(Status::ADMIN_REVOKED));
    assert_eq!(b.unlock("f", &l1, range(0, 9)), Err(Status::BAD_STATEID));
    assert_ne!(flags(&mut a, t(1)), 0);
    for l in [&l1, &l2] {
        s.free_stateid(&a.me, l).unwrap();
        assert_eq!(s.free_stateid(&a.me, l), Err(Status::BAD_STATEID));
    }
    assert_eq!(flags(&mut a, t(1)), 0);
    let again = a.lock("f", through(&one), range(0, 9), LockKind::Write, t(1)).unwrap();
    assert_ne!(again.other, l1.other);
    assert_eq!(s.admin_clients(None, 9, t(1)).items[0].locks, 2, "a range and a lock state");
}

/// Locks go with their open: whoever frees it (18.38), or closes it (18.2.3), has done with the locks that were taken through
/// it and taken away, and hears of them no more.
#[test]
fn locks_are_freed_with_their_open() {
    for close in [false, true] {
        let s = server();
        let mut c = C::new(&s, "c", t(1));
        let one = c.open("f", "o1", Share::BOTH, Share::NONE, t(1)).unwrap();
        let two = c.open("f", "o2", Share::BOTH, Share::NONE, t(1)).unwrap();
        let (x, y) = (bytes("x"), bytes("y"));
        let l1 = c.lock("f", Locker::New { open: &one, owner: &x }, range(0, 9), LockKind::Write, t(1)).unwrap();
        let l2 = c.lock("f", Locker::New { open: &two, owner: &y }, range(20, 29), LockKind::Write, t(1)).unwrap();
        revoke(&s, &l2).unwrap();
        if close {
            revoke(&s, &l1).unwrap();
            c.close("f", &one).unwrap();
        } else {
            revoke(&s, &one).unwrap();
            s.free_stateid(&c.me, &one).unwrap();
        }
        let test = |stateid| s.test_stateid(&c.me, stateid);
        assert_eq!((test(&l1), test(&one)), (Status::BAD_STATEID, Status::BAD_STATEID), "close: {close}");
        assert_eq!((test(&l2), test(&two)), (Status::ADMIN_REVOKED, Status::OK), "taken through the other open");
        assert_ne!(flags(&mut c, t(1)), 0);
        s.free_stateid(&c.me, &l2).unwrap();
        assert_eq!(flags(&mut c, t(1)), 0, "close: {close}");
        assert!(s.expire_client(c.id, t(2)));
        retire(&s, c.id, t(2)).unwrap();
        assert_eq!(s.counts(), Counts::default());
    }
}

/// 18.46.3: the client hears of it until it has freed it; but where it cannot name the file any more, for two lease times
/// at most.
#[test]
fn how_long_it_is_remembered() {
    for (memory, after) in [(Memory::UntilFreed, Status::ADMIN_REVOKED), (Memory::Leases, Status::BAD_STATEID)] {
        let s = server();
        let mut c = C::new(&s, "c", t(1));
        let open = c.open("f", "o", Share::BOTH, Share::NONE, t(1)).unwrap();
        let Revocation::Open(plan) = s.plan_admin_revoke(&open, memory).unwrap() else { panic!() };
        plan.commit();
        for time in (2..=2 + 2 * LEASE).step_by(10) {
            c.renew(t(time)).unwrap();
            s.tick(t(time));
            assert_ne!(flags(&mut c, t(time)), 0, "{memory:?} at {time}");
        }
        let late = t(3 + 2 * LEASE);
        s.tick(late);
        assert_eq!(s.test_stateid(&c.me, &open), after, "{memory:?}");
        assert_eq!(flags(&mut c, late) != 0, memory == Memory::UntilFreed);
        assert!(s.expire_client(c.id, late));
        retire(&s, c.id, late).unwrap();
        assert_eq!(s.counts(), Counts::default());
    }
}

/// Pages show everything once, whatever their length; filters hold.
#[test]
fn pages() {
    let s = server();
    let clients: Vec<C> = (0..7).map(|i| C::new(&s, &format!("c{i}"), t(1))).collect();
    let mut all = Vec::new();
    for c in &clients {
        for f in 0..20 {
            let open = c.open(&format!("f{f}"), "o", Share::READ, Share::NONE, t(1)).unwrap();
            all.push(open.other);
            if f % 3 == 0 {
                let locker = Locker::New { open: &open, owner: &bytes("l") };
                all.push(c.lock(&format!("f{f}"), locker, range(f, f), LockKind::Read, t(1)).unwrap().other);
            }
        }
    }
    all.sort_unstable();
    for most in [1, 3, 50, 1000] {
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = s.admin_states(&StateFilter::default(), after.as_ref(), most);
            assert!(page.items.len() <= most);
            seen.extend(page.items.iter().map(|i| i.stateid.other));
            after = page.items.last().map(|i| i.stateid);
            if !page.more {
                break;
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, all, "{most}");
    }
    let filter = StateFilter { client: Some(clients[2].id), file: Some(file("f3")) };
    assert_eq!(s.admin_states(&filter, None, 9).items.len(), 2);
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = s.admin_clients(after, 2, t(31));
        seen.extend(page.items.iter().map(|c| (c.id, c.lease_age, c.opens)));
        after = page.items.last().map(|c| c.id);
        if !page.more {
            break;
        }
    }
    let due: Vec<_> = clients.iter().map(|c| (c.id, Duration::from_secs(30), 20)).collect();
    assert_eq!(seen, due);
}

/// 8.4.2.1: the grace period ends by order as by time, once.
#[test]
fn grace_is_ended() {
    let s = server_with(limits(), &["a", "b"]);
    assert!(s.in_grace());
    let effects = s.end_grace().unwrap();
    let [Effect::EndGrace(owners)] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(owners, &[owner_id("a"), owner_id("b")]);
    assert!(s.in_grace(), "nothing is granted before the records are gone");
    assert!(s.end_grace().is_none() && s.tick(t(1000)).is_empty());
    s.grace_over();
    assert!(!s.in_grace() && s.end_grace().is_none());
}

/// Limits that are lowered count for who comes; what is there stays.
#[test]
fn limits_are_replaced() {
    let s = server();
    let c = C::new(&s, "c", t(1));
    let open = c.open("f", "o", Share::READ, Share::NONE, t(1)).unwrap();
    s.set_limits(Limits { opens_per_client: 1, lease: Duration::from_secs(1), ..limits() });
    assert_eq!(s.limits().lease, Duration::from_secs(LEASE), "as it was promised");
    assert!(c.open("g", "o", Share::READ, Share::NONE, t(1)).is_err());
    assert!(c.io("f", &open, IoKind::Read, t(1)).is_ok());
    s.set_limits(limits());
    assert!(c.open("g", "o", Share::READ, Share::NONE, t(1)).is_ok());
}
