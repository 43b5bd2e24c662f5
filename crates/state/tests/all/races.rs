//! Races on one file: OPEN, CLOSE, OPEN_DOWNGRADE, LOCK, LOCKU, I/O, REMOVE, the end of a client, an administrator who takes
//! state away, and delegations (`deleg`), cut at the point where the server does its I/O (plan, then commit or give up), in
//! every order, against a reference that knows one thing at a time (`reference`; RFC 8881 8.2.2 to 8.2.5, 8.5, 9.5, 9.7,
//! 9.9, 10.2 to 10.4, 18.2, 18.6, 18.10, 18.12, 18.16, 18.18, 18.25.4, 18.38;
//! ARCHITECTURE.md, rule 2).
//!
//! What is decided and the stateid that is returned must be one step: whatever order the halves come in, each answer is
//! the one that the reference gives at that moment, with that seqid; and afterwards nothing of a plan is left.
//!
//! All pairs of operations are run in all orders with all endings; three to five at once in random ones.

mod deleg;
mod reference;

use crate::common::*;
use deleg::{DelegHalf, DelegOp, Delegs};
use dhow_state::*;
use proptest::prelude::*;
use reference::{RefOpen, Reference, seqid, share};
use std::collections::BTreeMap;
use std::time::Duration;

const CELLS: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Open {
        c: usize,
        access: u32,
        deny: u32,
    },
    Close {
        c: usize,
    },
    Downgrade {
        c: usize,
        access: u32,
    },
    Lock {
        c: usize,
        first: usize,
        write: bool,
    },
    Unlock {
        c: usize,
    },
    Io {
        c: usize,
        write: bool,
    },
    /// The lease of client 0 has ended, and the client is retired.
    End,
    /// An administrator takes the open away, with its lock states.
    TakeOpen {
        c: usize,
    },
    /// An administrator takes the locks away.
    TakeLocks {
        c: usize,
    },
    /// FREE_STATEID of the open.
    Free {
        c: usize,
    },
    Deleg(DelegOp),
}

const OPS: &[Op] = &[
    Op::Open { c: 0, access: 1, deny: 0 },
    Op::Open { c: 0, access: 2, deny: 1 },
    Op::Open { c: 1, access: 3, deny: 0 },
    Op::Open { c: 1, access: 1, deny: 2 },
    Op::Close { c: 0 },
    Op::Close { c: 1 },
    Op::Downgrade { c: 0, access: 1 },
    Op::Lock { c: 0, first: 0, write: true },
    Op::Lock { c: 0, first: 2, write: false },
    Op::Lock { c: 1, first: 1, write: true },
    Op::Unlock { c: 0 },
    Op::Io { c: 0, write: true },
    Op::Io { c: 1, write: false },
    Op::End,
    Op::TakeOpen { c: 0 },
    Op::TakeLocks { c: 0 },
    Op::Free { c: 0 },
    Op::Deleg(DelegOp::Remove { c: 0 }),
    Op::Deleg(DelegOp::Remove { c: 1 }),
    Op::Deleg(DelegOp::Take { c: 0 }),
    Op::Deleg(DelegOp::Take { c: 1 }),
    Op::Deleg(DelegOp::Offer { c: 0, access: 1, kind: DelegKind::Read, guarded: true }),
    Op::Deleg(DelegOp::Offer { c: 0, access: 3, kind: DelegKind::Write, guarded: false }),
    Op::Deleg(DelegOp::Offer { c: 1, access: 1, kind: DelegKind::Read, guarded: false }),
    Op::Deleg(DelegOp::Claim { c: 0, access: 1 }),
    Op::Deleg(DelegOp::Return { c: 0 }),
    Op::Deleg(DelegOp::Return { c: 1 }),
    Op::Deleg(DelegOp::Change { c: 0 }),
    Op::Deleg(DelegOp::Change { c: 1 }),
    Op::Deleg(DelegOp::Special { c: 1, write: true }),
    Op::Deleg(DelegOp::Special { c: 1, write: false }),
    Op::Deleg(DelegOp::TestLock { c: 1 }),
    Op::Deleg(DelegOp::GetAttr { c: 1, changed: true }),
    Op::Deleg(DelegOp::GetAttr { c: 1, changed: false }),
    Op::Deleg(DelegOp::Io { c: 0, write: true }),
    Op::Deleg(DelegOp::Io { c: 0, write: false }),
    Op::Deleg(DelegOp::LocalWriter),
    Op::Deleg(DelegOp::Overdue),
    Op::Deleg(DelegOp::Free { c: 0 }),
];

/// What stands when the race begins.
#[derive(Clone, Copy, Debug)]
enum Start {
    Nothing,
    /// Client 0 has opened for both, in two steps, and locked the first cells.
    Held,
    /// That, and client 1 has opened for reading.
    Shared,
    /// Both clients have opened for reading and hold a read delegation.
    Readers,
    /// Client 0 has opened for both, locked the first cells, and holds a write delegation.
    Writer,
    /// That, and it was recalled.
    Recalled,
}

const STARTS: [Start; 6] = [Start::Nothing, Start::Held, Start::Shared, Start::Readers, Start::Writer, Start::Recalled];

/// An operation between its halves.
enum Half<'a> {
    Open(OpenPlan<'a, u32>, usize, Option<[u8; 12]>, Option<Offer<u32>>),
    /// By its client, or taken away.
    Close(ClosePlan<'a, u32>, usize, [u8; 12], bool),
    Downgrade(DowngradePlan<'a, u32>, usize, u32, [u8; 12], u32),
    Lock(LockPlan<'a, u32>, usize, usize, bool, [u8; 12]),
    Unlock(UnlockPlan<'a, u32>, usize, [u8; 12]),
    Io(IoToken<u32>, usize, [u8; 12]),
    End(Retire<'a, u32>),
    Deleg(DelegHalf<'a>),
}

struct Race<'a> {
    s: &'a S,
    clients: &'a [C; 2],
    m: Reference,
    now: Time,
    /// What each client knows of its stateids since the start.
    known: [Stateid; 2],
    known_lock: [Stateid; 2],
    known_deleg: [Stateid; 2],
    next_token: u32,
    renewals: u32,
}

impl<'a> Race<'a> {
    fn token(&mut self) -> u32 {
        self.next_token += 1;
        self.next_token
    }

    /// Runs an operation by itself.
    fn alone(&mut self, op: Op) {
        let half = self.plan(usize::MAX, op);
        if let Some(half) = half {
            self.end(usize::MAX, half, true);
        }
    }

    /// Time passes, and everybody who can still renews the lease.
    fn pass(&mut self, now: Time) {
        self.now = now;
        self.renewals += 1;
        for (i, c) in self.clients.iter().enumerate() {
            if i == 0 && self.m.expired {
                continue;
            }
            match self.s.sequence(c.conn, &c.args(self.renewals), 1, now).unwrap() {
                Sequence::Fresh(slot) => slot.complete(Reply::from([]), now),
                other => panic!("{other:?}"),
            }
        }
    }

    /// The first half of an OPEN.
    fn plan_open(&mut self, by: usize, op: Op, c: usize, bits: (u32, u32), claim: Claim) -> Option<OpenPlan<'a, u32>> {
        let (s, f) = (self.s, file("f"));
        let (access, deny) = bits;
        let claims = if let Claim::Delegated(d) = &claim { Some(d.other) } else { None };
        let want = self.m.open(c, access, deny, claims, self.now);
        let (me, owner) = (&self.clients[c].me, bytes("o"));
        let req = OpenRequest { file: &f, owner: &owner, access: share(access), deny: share(deny), claim };
        match s.plan_open(me, &req, self.now) {
            Ok(plan) => {
                assert!(want.is_ok(), "{op:?} is planned, the reference says {want:?}");
                assert_eq!(plan.existing().copied(), self.m.opens.get(&c).map(|o| o.token));
                self.m.opening.insert(by, (c, access, deny));
                Some(plan)
            }
            Err(got) => {
                assert_eq!(Err(got), want, "{op:?} is refused");
                None
            }
        }
    }

    /// The first half.
    fn plan(&mut self, by: usize, op: Op) -> Option<Half<'a>> {
        let (s, f) = (self.s, file("f"));
        match op {
            Op::Open { c, access, deny } => {
                let there = self.m.opens.get(&c).map(|o| o.other);
                let plan = self.plan_open(by, op, c, (access, deny), Claim::New)?;
                Some(Half::Open(plan, c, there, None))
            }
            Op::Deleg(op) => self.plan_deleg(by, op),
            Op::Close { c } => {
                let want = self.m.find(c, &self.known[c]).map(|_| ());
                match s.plan_close(&self.clients[c].me, &f, &self.known[c]) {
                    Ok(plan) => {
                        assert_eq!(want, Ok(()), "{op:?}");
                        let o = self.m.opens.get_mut(&c).unwrap();
                        o.closing = true;
                        Some(Half::Close(plan, c, o.other, false))
                    }
                    Err(got) => {
                        assert_eq!(Err(got), want, "{op:?}");
                        None
                    }
                }
            }
            Op::Downgrade { c, access } => {
                let want = self.m.find(c, &self.known[c]).and_then(|o| {
                    let within = o.asked.iter().filter(|(a, _)| a & !access == 0).fold(0, |sum, (a, _)| sum | a);
                    let deny = o.asked.iter().any(|(_, d)| *d == 0);
                    if within == access && deny { Ok((o.other, o.seqid)) } else { Err(Status::INVAL) }
                });
                match s.plan_downgrade(&self.clients[c].me, &f, &self.known[c], share(access), Share::NONE) {
                    Ok(plan) => {
                        let (other, seqid) = want.unwrap_or_else(|e| panic!("{op:?} is planned, not {e:?}"));
                        assert_eq!(*plan.open(), self.m.opens[&c].token);
                        Some(Half::Downgrade(plan, c, access, other, seqid))
                    }
                    Err(got) => {
                        assert_eq!(Some(got), want.err(), "{op:?}");
                        None
                    }
                }
            }
            Op::Lock { c, first, write } => {
                let owner = bytes("l");
                let has = self.known_lock[c] != Stateid::default();
                let (found, locker) = if has {
                    (self.m.find_lock(c, &self.known_lock[c]), Locker::Existing(&self.known_lock[c]))
                } else {
                    (self.m.find(c, &self.known[c]), Locker::New { open: &self.known[c], owner: &owner })
                };
                let want = match found {
                    Ok(o) => self.m.lock(c, o, first, write).map(|()| o.other),
                    Err(e) => Err(e.into()),
                };
                let range = range(first as u64, first as u64 + 1);
                let kind = if write { LockKind::Write } else { LockKind::Read };
                let req = LockRequest { file: &f, locker, range, kind, claim: Claim::New };
                match s.plan_lock(&self.clients[c].me, &req, self.now) {
                    Ok(plan) => {
                        let open = want.unwrap_or_else(|e| panic!("{op:?} is planned, not {e:?}"));
                        self.m.locking.insert(by, (c, first, write));
                        Some(Half::Lock(plan, c, first, write, open))
                    }
                    Err(got) => {
                        let same = match (&got, want.as_ref().err()) {
                            (LockRefused::Denied(held), Some(LockRefused::Status(Status::DENIED))) => {
                                held.owner.client == self.clients[1 - c].id
                            }
                            (LockRefused::Courtesy(id), Some(LockRefused::Courtesy(_))) => *id == self.clients[0].id,
                            (a, Some(b)) => a == b,
                            _ => false,
                        };
                        assert!(same, "{op:?}: refused with {got:?}, the reference says {want:?}");
                        None
                    }
                }
            }
            Op::Unlock { c } => {
                let want = self.m.find_lock(c, &self.known_lock[c]).map(|o| o.lock.unwrap().0);
                match s.plan_unlock(&self.clients[c].me, &f, &self.known_lock[c], range(0, CELLS as u64)) {
                    Ok(plan) => {
                        let lock = want.unwrap_or_else(|e| panic!("{op:?} is planned, not {e:?}"));
                        Some(Half::Unlock(plan, c, lock))
                    }
                    Err(got) => {
                        assert_eq!(Some(got), want.err(), "{op:?}");
                        None
                    }
                }
            }
            Op::Io { c, write } => {
                let (kind, needs) = if write { (IoKind::Write, 2) } else { (IoKind::Read, 1) };
                let want = match self.m.find(c, &self.known[c]) {
                    Ok(o) if o.access & needs == 0 => Err(Status::OPENMODE),
                    other => other.map(|o| o.other),
                };
                // All zeros is the anonymous stateid, which is checked elsewhere.
                if self.known[c] == Stateid::default() {
                    return None;
                }
                match s.begin_io(&self.clients[c].me, &f, &self.known[c], kind, self.now) {
                    Ok(io) => {
                        let open = want.unwrap_or_else(|e| panic!("{op:?} begins, not {e:?}"));
                        let o = self.m.opens.get_mut(&c).unwrap();
                        o.io += 1;
                        assert_eq!(io.open().copied(), Some(o.token), "the token of the open as it is now");
                        Some(Half::Io(io, c, open))
                    }
                    Err(got) => {
                        assert_eq!(got, Refused::Status(want.expect_err("I/O is refused")), "{op:?}");
                        None
                    }
                }
            }
            Op::TakeOpen { c } => {
                let there = self.m.opens.get_mut(&c);
                let stateid = there.as_ref().map_or(self.known[c], |o| Stateid { seqid: 1, other: o.other });
                if stateid == Stateid::default() {
                    return None;
                }
                let want = match there {
                    None => Err(Status::BAD_STATEID),
                    Some(o) if o.closing => Err(Status::DELAY),
                    Some(o) => {
                        o.closing = true;
                        Ok(())
                    }
                };
                match s.plan_admin_revoke(&stateid, Memory::UntilFreed) {
                    Ok(Revocation::Open(plan)) => {
                        assert_eq!(want, Ok(()), "{op:?}");
                        Some(Half::Close(plan, c, stateid.other, true))
                    }
                    got => {
                        assert_eq!(got.map(|_| ()).unwrap_err(), want.unwrap_err(), "{op:?}");
                        None
                    }
                }
            }
            Op::TakeLocks { c } => {
                let there = self.m.opens.get(&c).and_then(|o| o.lock);
                let stateid = there.map_or(self.known_lock[c], |(other, _)| Stateid { seqid: 1, other });
                if stateid == Stateid::default() {
                    return None;
                }
                match s.plan_admin_revoke(&stateid, Memory::UntilFreed) {
                    Ok(Revocation::Locks(effects)) => {
                        let (other, _) = there.expect("there are such locks");
                        let locked = self.m.cells[c].iter().any(|l| *l > 0);
                        let token = self.m.opens[&c].token;
                        assert_eq!(effects.len(), usize::from(locked));
                        let unlocks = |e: &Effect<u32>| matches!(e, Effect::Unlock { open, .. } if *open == token);
                        assert!(effects.iter().all(unlocks), "{effects:?}");
                        self.m.cells[c] = [0; CELLS];
                        self.m.opens.get_mut(&c).unwrap().lock = None;
                        let open = self.m.opens[&c].other;
                        self.m.take(c, [(other, Some(open))]);
                    }
                    got => {
                        assert_eq!(got.map(|_| ()).unwrap_err(), Status::BAD_STATEID, "{op:?}");
                        assert_eq!(there, None);
                    }
                }
                None
            }
            Op::Free { c } => {
                let known = self.known[c];
                if known == Stateid::default() {
                    return None;
                }
                let want = match self.m.opens.get(&c).filter(|o| o.other == known.other) {
                    Some(o) => Err(seqid(known.seqid, o.seqid).err().unwrap_or(Status::LOCKS_HELD)),
                    None if self.m.missing(c, known.other) == Status::ADMIN_REVOKED => Ok(()),
                    None => Err(Status::BAD_STATEID),
                };
                assert_eq!(s.free_stateid(&self.clients[c].me, &known), want, "{op:?}");
                if want.is_ok() {
                    self.m.taken.retain(|(_, (other, open))| *other != known.other && *open != Some(known.other));
                }
                None
            }
            Op::End => {
                if !self.m.expired {
                    self.m.expired = true;
                    self.pass(self.now + Duration::from_secs(1000));
                }
                let retire = s.retire(self.clients[0].id, self.now)?;
                self.m.dying = true;
                drop(retire.drain());
                if let Some(o) = self.m.opens.get_mut(&0) {
                    o.closing = true;
                }
                self.m.delegs.of(0).for_each(|d| d.closing = true);
                Some(Half::End(retire))
            }
        }
    }

    /// The second half: done, or given up.
    fn end(&mut self, by: usize, half: Half<'a>, done: bool) {
        match half {
            Half::Open(plan, c, planned, offer) => {
                let (_, access, deny) = self.m.opening.remove(&by).unwrap();
                if !done {
                    return;
                }
                let token = self.token();
                let there = self.m.opens.get(&c);
                let want = if there.map(|o| o.other) != planned || there.is_some_and(|o| o.closing) {
                    Err(Status::DELAY)
                } else if c == 0 && self.m.dying {
                    Err(Status::DEADSESSION)
                } else {
                    Ok(())
                };
                let offered = offer.as_ref().map(|o| (o.kind, o.guarded, o.token, o.now));
                match plan.commit_with(token, offer) {
                    Ok(made) => {
                        assert_eq!(want, Ok(()), "an OPEN is granted");
                        let o = self.m.opens.entry(c).or_insert_with(|| RefOpen {
                            other: made.stateid.other,
                            seqid: 0,
                            access: 0,
                            deny: 0,
                            asked: Vec::new(),
                            closing: false,
                            io: 0,
                            token: 0,
                            lock: None,
                        });
                        assert_eq!(made.replaced, (o.token != 0).then_some(o.token));
                        (o.access, o.deny) = (o.access | access, o.deny | deny);
                        o.asked.push((access, deny));
                        o.seqid += 1;
                        o.token = token;
                        assert_eq!(made.stateid, Stateid { seqid: o.seqid, other: o.other }, "RFC 8881 8.2.2");
                        self.delegated(c, offered, made.deleg);
                    }
                    Err((got, back, offer)) => {
                        assert_eq!((Err(got), back), (want, token), "an OPEN is refused");
                        assert_eq!(offer.map(|o| o.token), offered.map(|o| o.2), "to be closed too");
                    }
                }
            }
            Half::Close(plan, c, other, taken) => {
                let there = self.m.opens.get(&c).filter(|o| o.other == other);
                let idle = there.is_none_or(|o| o.io == 0);
                assert_eq!(plan.drain().is_done(), idle, "CLOSE waits for I/O, and for nothing else");
                if done && idle {
                    let gone = there.map(|o| o.token);
                    let locked = there.is_some() && self.m.cells[c].iter().any(|l| *l > 0);
                    let lock = there.and_then(|o| o.lock).map(|l| l.0);
                    self.check_gone(plan.commit(), gone, locked);
                    if gone.is_some() {
                        self.m.close(c);
                        if taken {
                            self.m.take(c, [(other, None)].into_iter().chain(lock.map(|l| (l, Some(other)))));
                        }
                    }
                } else {
                    drop(plan);
                    let dying = c == 0 && self.m.dying;
                    if let Some(o) = self.m.opens.get_mut(&c).filter(|o| o.other == other) {
                        o.closing = dying;
                    }
                }
            }
            Half::Downgrade(plan, c, access, other, seqid) => {
                if !done {
                    return;
                }
                let token = self.token();
                let same = |o: &&mut RefOpen| o.other == other && o.seqid == seqid && !o.closing;
                match (plan.commit(token), self.m.opens.get_mut(&c).filter(same)) {
                    (Ok(done), Some(o)) => {
                        (o.access, o.deny, o.seqid) = (access, 0, o.seqid + 1);
                        o.asked.retain(|(a, d)| a & !access == 0 && *d == 0);
                        assert_eq!(done.replaced, Some(std::mem::replace(&mut o.token, token)));
                        assert_eq!(done.stateid, Stateid { seqid: o.seqid, other });
                    }
                    (Err((Status::DELAY, back)), None) => assert_eq!(back, token),
                    (got, _) => panic!("OPEN_DOWNGRADE: {got:?}"),
                }
            }
            Half::Lock(plan, c, first, write, open) => {
                self.m.locking.remove(&by);
                if !done {
                    return;
                }
                let missing = self.m.missing(c, open);
                let there = self.m.opens.get_mut(&c).filter(|o| o.other == open);
                let want = match &there {
                    _ if c == 0 && self.m.dying => Err(Status::DEADSESSION),
                    None => Err(missing),
                    Some(o) if o.closing => Err(Status::DELAY),
                    Some(_) => Ok(()),
                };
                match plan.commit() {
                    Ok(stateid) => {
                        assert_eq!(want, Ok(()), "a LOCK is granted");
                        let lock = there.unwrap().lock.get_or_insert((stateid.other, 0));
                        lock.1 += 1;
                        assert_eq!(stateid, Stateid { seqid: lock.1, other: lock.0 });
                        self.m.cells[c][first..first + 2].fill(if write { 2 } else { 1 });
                    }
                    Err(got) => assert_eq!(Err(got), want, "a LOCK is refused"),
                }
            }
            Half::Unlock(plan, c, lock) => {
                if !done {
                    return;
                }
                let missing = self.m.missing(c, lock);
                let there = self.m.opens.get_mut(&c).and_then(|o| o.lock.as_mut()).filter(|l| l.0 == lock);
                match (plan.commit(), there) {
                    (Ok(stateid), Some(l)) => {
                        l.1 += 1;
                        assert_eq!(stateid, Stateid { seqid: l.1, other: l.0 });
                        self.m.cells[c] = [0; CELLS];
                    }
                    (Err(got), None) => assert_eq!(got, missing, "LOCKU"),
                    (got, _) => panic!("LOCKU: {got:?}"),
                }
            }
            Half::Io(io, c, open) => {
                drop(io);
                if let Some(o) = self.m.opens.get_mut(&c).filter(|o| o.other == open) {
                    o.io -= 1;
                }
            }
            Half::End(retire) => {
                let idle = self.m.opens.get(&0).is_none_or(|o| o.io == 0) && self.m.delegs.of(0).all(|d| d.io == 0);
                assert_eq!(retire.drain().is_done(), idle);
                if !(done && idle) {
                    return;
                }
                let gone = self.m.opens.get(&0).map(|o| o.token);
                let locked = self.m.cells[0].iter().any(|l| *l > 0);
                let deleg = self.m.delegs.live(0).map(|d| d.token);
                let files = retire.files();
                assert_eq!(files.is_empty(), gone.is_none() && deleg.is_none());
                let guards: Vec<u32> = files.iter().filter_map(|f| retire.delegation(f)).collect();
                assert_eq!(guards, Vec::from_iter(deleg), "what guards it is given up before others are let in");
                let mut by_file: Effects<u32> = files.iter().flat_map(|f| retire.free(f)).collect();
                if deleg.is_some() {
                    assert!(matches!(by_file.pop(), Some(Effect::Close(t)) if Some(t) == deleg));
                }
                self.check_gone(by_file, gone, locked);
                assert!(retire.finish().is_empty(), "all was freed by file");
                self.m.close(0);
                self.m.delegs.0.retain(|d| d.c != 0);
                self.m.taken.retain(|(c, _)| *c != 0);
            }
            Half::Deleg(half) => self.end_deleg(half, done),
        }
    }

    /// What must be done about an open that is gone: its locks are given up, then its token is closed, once.
    fn check_gone(&self, effects: Effects<u32>, token: Option<u32>, locked: bool) {
        let mut left = effects.into_iter();
        if locked {
            assert!(matches!(left.next(), Some(Effect::Unlock { open, .. }) if Some(open) == token));
        }
        if token.is_some() {
            assert!(matches!(left.next(), Some(Effect::Close(t)) if Some(t) == token));
        }
        assert!(left.next().is_none());
    }

    /// The state is the reference's, seen through what a third client could get.
    fn compare(&mut self, third: &C) {
        let counts = self.s.counts();
        assert_eq!(counts.opens, self.m.opens.len());
        assert_eq!(counts.lock_states, self.m.opens.values().filter(|o| o.lock.is_some()).count());
        let delegs = self.m.delegs.0.iter().filter(|d| !d.revoked());
        assert_eq!(counts.files, usize::from(!self.m.opens.is_empty() || delegs.count() > 0));
        self.compare_delegs();
        for (c, (other, _)) in &self.m.taken {
            let stateid = Stateid { seqid: 1, other: *other };
            assert_eq!(self.s.test_stateid(&self.clients[*c].me, &stateid), Status::ADMIN_REVOKED, "TEST_STATEID");
            assert_eq!(self.s.test_stateid(&self.clients[1 - *c].me, &stateid), Status::BAD_STATEID);
        }
        for access in 1..4 {
            for deny in 0..4 {
                let want = self.m.open(2, access, deny, None, self.now);
                let got = third.plan("f", "o", share(access), share(deny), self.now).map(drop);
                assert_eq!(got, want, "an OPEN of a third client for {access} against {deny}");
            }
        }
        for cell in 0..CELLS {
            for (write, kind) in [(false, LockKind::Read), (true, LockKind::Write)] {
                let free = (0..2).all(|c| self.m.cells[c][cell] == 0 || self.m.cells[c][cell] == 1 && !write);
                let at = range(cell as u64, cell as u64);
                let got = self.s.test_lock(&third.me, &file("f"), &bytes("x"), at, kind, self.now);
                assert_eq!(got.is_ok(), free, "cell {cell}, {kind:?}: {got:?}");
            }
        }
    }
}

/// Runs one race: `order` names whose turn it is (each operation has two), `done` which second halves are not given up.
fn race(start: Start, exact: bool, ops: &[Op], order: &[usize], done: &[bool]) {
    let s = server();
    let clients = [C::new(&s, "0", t(0)), C::new(&s, "1", t(0))];
    let mut race = Race {
        s: &s,
        clients: &clients,
        m: Reference::default(),
        now: t(0),
        known: Default::default(),
        known_lock: Default::default(),
        known_deleg: Default::default(),
        next_token: 0,
        renewals: 0,
    };
    race.m.ids = [clients[0].id, clients[1].id, ClientId(0)];
    match start {
        Start::Nothing => {}
        Start::Held | Start::Shared => {
            race.alone(Op::Open { c: 0, access: 1, deny: 0 });
            race.alone(Op::Open { c: 0, access: 2, deny: 0 });
        }
        Start::Readers => {
            race.alone(Op::Deleg(DelegOp::Offer { c: 0, access: 1, kind: DelegKind::Read, guarded: false }));
            race.alone(Op::Deleg(DelegOp::Offer { c: 1, access: 1, kind: DelegKind::Read, guarded: false }));
            race.known[1] = Stateid { seqid: 1, other: race.m.opens[&1].other };
        }
        Start::Writer | Start::Recalled => {
            race.alone(Op::Deleg(DelegOp::Offer { c: 0, access: 3, kind: DelegKind::Write, guarded: false }));
        }
    }
    if !matches!(start, Start::Nothing) {
        race.known[0] = Stateid { seqid: race.m.opens[&0].seqid, other: race.m.opens[&0].other };
    }
    if !matches!(start, Start::Nothing | Start::Readers) {
        race.alone(Op::Lock { c: 0, first: 0, write: true });
        let lock = race.m.opens[&0].lock.unwrap();
        race.known_lock[0] = Stateid { seqid: lock.1, other: lock.0 };
    }
    if matches!(start, Start::Recalled) {
        race.alone(Op::Deleg(DelegOp::LocalWriter));
    }
    if matches!(start, Start::Shared) {
        race.alone(Op::Open { c: 1, access: 1, deny: 0 });
        race.known[1] = Stateid { seqid: race.m.opens[&1].seqid, other: race.m.opens[&1].other };
    }
    if !exact {
        // "The most recent", RFC 8881 8.2.2.
        race.known.iter_mut().chain(&mut race.known_lock).for_each(|k| k.seqid = 0);
    }
    let mut halves: Vec<Option<Half<'_>>> = ops.iter().map(|_| None).collect();
    let mut turns = vec![0; ops.len()];
    for &i in order {
        turns[i] += 1;
        if turns[i] == 1 {
            halves[i] = race.plan(i, ops[i]);
        } else if let Some(half) = halves[i].take() {
            race.end(i, half, done[i]);
        }
    }
    // In a server that watches, a third client would be there all along; here it must not renew anything.
    let third = C::new(&s, "2", race.now);
    race.m.ids[2] = third.id;
    race.compare(&third);
}

/// All orders of two turns each.
fn orders(n: usize) -> Vec<Vec<usize>> {
    fn go(left: &mut Vec<usize>, sofar: &mut Vec<usize>, all: &mut Vec<Vec<usize>>) {
        if left.iter().all(|l| *l == 0) {
            all.push(sofar.clone());
            return;
        }
        for i in 0..left.len() {
            if left[i] > 0 {
                left[i] -= 1;
                sofar.push(i);
                go(left, sofar, all);
                sofar.pop();
                left[i] += 1;
            }
        }
    }
    let mut all = Vec::new();
    go(&mut vec![2; n], &mut Vec::new(), &mut all);
    all
}

/// Runs a race; a failure says which.
fn named(start: Start, exact: bool, ops: &[Op], order: &[usize], done: &[bool]) {
    let run = || race(start, exact, ops, order, done);
    if let Err(e) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
        eprintln!("in the race {start:?} {exact} {ops:?} {order:?} {done:?}");
        std::panic::resume_unwind(e);
    }
}

/// Whether there is nothing between the halves of an operation, and nothing to give up.
fn one_step(op: Op) -> bool {
    match op {
        Op::TakeLocks { .. } | Op::Free { .. } => true,
        Op::Deleg(op) => op.is_one_step(),
        _ => false,
    }
}

/// Every pair of operations, from `starts`, in all orders with all endings; `which` chooses the pairs.
fn every_pair(starts: &[Start], exact: bool, which: impl Fn(Op, Op) -> bool) -> usize {
    let orders = orders(2);
    assert_eq!(orders.len(), 6);
    let mut races = 0;
    for start in starts {
        for (i, a) in OPS.iter().enumerate() {
            // The orders have each pair both ways round.
            for b in OPS[i..].iter().filter(|b| which(*a, **b)) {
                let ops = [*a, *b];
                for order in &orders {
                    let together = |i| order.windows(2).any(|w| w == [i, i]);
                    if (0..2).any(|i| one_step(ops[i]) && !together(i)) {
                        continue;
                    }
                    // Two that are both given up leave nothing to see that one does not.
                    for done in [[true, true], [true, false], [false, true]] {
                        if (0..2).all(|i| done[i] || !one_step(ops[i])) {
                            named(*start, exact, &ops, order, &done);
                            races += 1;
                        }
                    }
                }
            }
        }
    }
    races
}

fn is_deleg(op: Op) -> bool {
    // A removal is a matter of opens as well.
    matches!(op, Op::Deleg(op) if !matches!(op, DelegOp::Remove { .. }))
}

#[test]
fn every_pair_in_every_order() {
    let starts = [Start::Nothing, Start::Held, Start::Shared];
    let races = every_pair(&starts, false, |a, b| !is_deleg(a) && !is_deleg(b));
    // 17 operations with two halves each, and those that have one.
    assert!(races > 3 * 153 * 18, "{races}");
    // What the seqid says is a matter of who sends one.
    let sends = |op| !matches!(op, Op::TakeOpen { .. } | Op::TakeLocks { .. } | Op::Deleg(_));
    let races = every_pair(&starts, true, |a, b| sends(a) && sends(b));
    assert!(races > 3 * 105 * 18, "{races}");
}

#[test]
fn every_pair_with_a_delegation_in_every_order() {
    let with = |a, b| is_deleg(a) || is_deleg(b);
    let mut races = every_pair(&[Start::Readers, Start::Writer, Start::Recalled], false, with);
    // Where there is none yet, one must come first.
    let offers = |a, b| [a, b].iter().any(|op| matches!(op, Op::Deleg(DelegOp::Offer { .. })));
    races += every_pair(&[Start::Nothing, Start::Held], false, offers);
    assert!(races > 10_000, "{races}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn three_to_five_in_random_orders(
        start in prop::sample::select(&STARTS[..]),
        exact in any::<bool>(),
        ops in prop::collection::vec((prop::sample::select(OPS), any::<bool>()), 3..=5),
        shuffle in prop::collection::vec(any::<u32>(), 10),
    ) {
        let mut order: Vec<usize> = (0..ops.len()).flat_map(|i| [i, i]).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, shuffle[i] as usize % (i + 1));
        }
        // A plan that is given up is the rarer case.
        let done: Vec<bool> = ops.iter().map(|(_, given_up)| !given_up).collect();
        let ops: Vec<Op> = ops.iter().map(|(op, _)| *op).collect();
        race(start, exact, &ops, &order, &done);
    }
}
