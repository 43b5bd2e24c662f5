//! Waiting for locks (RFC 8881 9.6, 20.11), and slot tables that shrink (2.10.6.1, 20.8; case K21).

use crate::common::*;
use dhow_state::*;

use LockKind::{Read, Write};

struct X {
    s: S,
    c: Vec<C>,
    opens: Vec<Stateid>,
}

fn clients(n: usize) -> X {
    let s = server();
    let c: Vec<_> = (0..n).map(|i| C::new(&s, &format!("c{i}"), t(0))).collect();
    let opens = c.iter().map(|c| c.open("f", "o", Share::BOTH, Share::NONE, t(0)).unwrap()).collect();
    X { s, c, opens }
}

impl X {
    /// A blocking LOCK of the first ten bytes; `None` if it is denied.
    fn wait(&self, i: usize, kind: LockKind, now: Time) -> Option<Stateid> {
        self.ask(i, kind, true, now)
    }

    fn ask(&self, i: usize, kind: LockKind, wait: bool, now: Time) -> Option<Stateid> {
        let (f, owner) = (file("f"), bytes("l"));
        let locker = Locker::New { open: &self.opens[i], owner: &owner };
        let req = LockRequest { file: &f, locker, range: range(0, 9), kind, claim: Claim::New };
        match self.s.plan_lock_or_wait(&self.c[i].me, &req, wait, now) {
            Ok(plan) => Some(plan.commit().unwrap()),
            Err(LockRefused::Denied(_)) => None,
            Err(e) => panic!("{e:?}"),
        }
    }

    fn unlock(&self, i: usize, lock: &Stateid, now: Time) -> Vec<ClientId> {
        self.c[i].unlock("f", lock, range(0, 9)).unwrap();
        self.wake(now)
    }

    fn wake(&self, now: Time) -> Vec<ClientId> {
        let woken = self.s.wake_waiters(&file("f"), now);
        woken
            .into_iter()
            .inspect(|n| assert_eq!((n.owner.as_ref(), n.open), (&b"l"[..], 1)))
            .map(|n| n.client)
            .collect()
    }
}

#[test]
fn the_first_to_ask_is_told_and_has_the_lock_to_itself_for_a_while() {
    let x = clients(4);
    let held = x.wait(0, Write, t(1)).unwrap();
    assert_eq!(x.wait(1, Write, t(1)), None);
    assert_eq!(x.wait(2, Write, t(2)), None);
    assert_eq!(x.wait(1, Write, t(3)), None, "it keeps its place");
    assert_eq!(x.s.lock_waiters(), 2);
    assert_eq!(x.wake(t(3)), [], "nothing is free");
    assert_eq!(x.unlock(0, &held, t(4)), [x.c[1].id]);
    assert_eq!(x.wake(t(4)), [], "told once");
    // Who polls fastest does not get it.
    assert_eq!(x.ask(3, Write, false, t(4)), None);
    assert_eq!(x.wait(2, Write, t(5)), None);
    let held = x.wait(1, Write, t(5)).unwrap();
    assert_eq!(x.unlock(1, &held, t(6)), [x.c[2].id]);
    // It does not come: others may, and the next is told.
    assert_eq!(x.wait(3, Read, t(7)), None);
    let told: Vec<_> =
        x.s.tick(t(9))
            .into_iter()
            .filter_map(|e| match e {
                Effect::NotifyLock(n) => Some(n.client),
                _ => None,
            })
            .collect();
    assert_eq!(told, [x.c[3].id]);
    x.wait(3, Read, t(9)).unwrap();
    assert_eq!(x.s.lock_waiters(), 0);
}

#[test]
fn readers_are_told_together_but_not_past_a_writer() {
    let x = clients(4);
    let held = x.wait(0, Write, t(1)).unwrap();
    for (i, kind) in [(1, Read), (2, Read), (3, Write)] {
        assert_eq!(x.wait(i, kind, t(1)), None);
    }
    assert_eq!(x.unlock(0, &held, t(2)), [x.c[1].id, x.c[2].id]);
    let (a, b) = (x.wait(1, Read, t(2)).unwrap(), x.wait(2, Read, t(2)).unwrap());
    assert_eq!(x.unlock(1, &a, t(3)), []);
    assert_eq!(x.unlock(2, &b, t(3)), [x.c[3].id]);
}

#[test]
fn waiters_are_forgotten_with_their_client_and_when_they_ask_no_more() {
    let x = clients(3);
    let held = x.wait(0, Write, t(1)).unwrap();
    assert_eq!(x.wait(1, Write, t(1)), None);
    assert_eq!(x.wait(2, Write, t(LEASE)), None);
    x.c[0].unlock("f", &held, range(0, 9)).unwrap();
    assert_eq!(x.wake(t(LEASE + 2)), [x.c[2].id], "the first has not asked for a lease time");
    for (i, open) in x.opens.iter().enumerate() {
        x.c[i].close("f", open).unwrap();
    }
    assert_eq!(x.wake(t(LEASE + 10)), []);
    assert_eq!((x.s.lock_waiters(), x.s.counts().files), (0, 0));
}

#[test]
fn a_lock_that_does_not_wait_is_not_remembered() {
    let x = clients(2);
    let held = x.wait(0, Write, t(1)).unwrap();
    assert_eq!(x.ask(1, Write, false, t(1)), None);
    assert_eq!(x.s.lock_waiters(), 0);
    assert_eq!(x.unlock(0, &held, t(2)), []);
}

#[test]
fn slot_tables_shrink_when_memory_runs_short_and_grow_again() {
    // RFC 8881 2.10.6.1, 20.8; case K21: a slot that goes is not served again before the client has shown that it knows.
    let each = 4096 + 256;
    let few = Limits { cached_bytes: each * 8, slots_min: 2, ..limits() };
    let s = server_with(few, &[]);
    let (mut a, b) = (C::new(&s, "a", t(0)), C::new(&s, "b", t(0)));
    let session = s.session(a.session).unwrap();
    session.resize(8);
    s.session(b.session).unwrap().resize(8);
    let targets = |e: Effects<u32>| {
        let mut all: Vec<_> = e
            .into_iter()
            .filter_map(|e| match e {
                Effect::RecallSlot { session, target } => Some((session, target)),
                _ => None,
            })
            .collect();
        all.sort();
        all
    };
    for slot in 0..8 {
        a.begin(slot, t(1)).unwrap().complete(Reply::from([bytes("reply")]), t(1));
    }
    // What was in use since the last look stays.
    let first = targets(s.tick(t(2)));
    assert_eq!(first, [(b.session, 3)], "{first:?}");
    let second = targets(s.tick(t(3)));
    assert_eq!(second, [(a.session, 3)]);
    assert_eq!(targets(s.tick(t(4))), [], "not again before the client came down");
    // By CB_RECALL_SLOT it knows: a request that names no higher slot retires the rest.
    session.slots_recalled();
    let token = a.begin(0, t(5)).unwrap();
    assert_eq!((token.result().highest_slot_id, token.result().target_highest_slot_id), (3, 3));
    token.complete(Reply::from([]), t(5));
    assert_eq!(a.begin(7, t(5)).unwrap_err(), Status::BADSLOT);
    // Grown again it goes on, and starts the slots anew or where they were.
    session.resize(8);
    let token = a.begin(7, t(6)).unwrap();
    assert_eq!((token.result().highest_slot_id, token.result().target_highest_slot_id), (7, 7));
}
