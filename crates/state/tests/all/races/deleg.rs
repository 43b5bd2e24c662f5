//! Delegations in the races: granted with an OPEN, recalled by whatever conflicts, returned, revoked when their time is
//! up, freed, used, asked about (RFC 8881 10.2 to 10.4, 18.6, 18.38, 20.1).
//!
//! SETATTR, REMOVE, RENAME and LINK are one thing to the state: a [`Change`] that spans the backend's call. A recall must
//! come out of exactly one step, with the stateid that was granted; whatever comes later finds the delegation recalled.

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DelegOp {
    /// OPEN, with a delegation offered at its commit.
    Offer { c: usize, access: u32, kind: DelegKind, guarded: bool },
    /// OPEN by right of a delegation (CLAIM_DELEG_CUR_FH).
    Claim { c: usize, access: u32 },
    /// DELEGRETURN.
    Return { c: usize },
    /// SETATTR, RENAME, LINK.
    Change { c: usize },
    /// REMOVE, and RENAME onto the name.
    Remove { c: usize },
    /// An administrator takes it away.
    Take { c: usize },
    /// READ or WRITE under a special stateid.
    Special { c: usize, write: bool },
    /// LOCKT.
    TestLock { c: usize },
    /// GETATTR, for which the holder of a write delegation is asked; it says whether it has changed the file.
    GetAttr { c: usize, changed: bool },
    /// READ or WRITE under the delegation.
    Io { c: usize, write: bool },
    /// A local program is about to write.
    LocalWriter,
    /// A lease time passes: what was recalled before is revoked.
    Overdue,
    /// FREE_STATEID.
    Free { c: usize },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Held,
    /// Since when, and used for writing when.
    Recalled(Time, Time),
    Revoked,
}

pub struct RefDeleg {
    pub c: usize,
    pub closing: bool,
    pub io: usize,
    pub token: u32,
    other: [u8; 12],
    kind: DelegKind,
    guarded: bool,
    phase: Phase,
    modified: bool,
    told: u64,
}

impl RefDeleg {
    pub fn revoked(&self) -> bool {
        self.phase == Phase::Revoked
    }

    /// What the holder was promised that this would break (RFC 8881 10.4, 10.4.4).
    fn against(&self, c: usize, usage: Use) -> bool {
        let write = self.kind == DelegKind::Write;
        if self.c == c {
            return self.guarded
                && match usage {
                    Use::Open { access, .. } => access.write(),
                    Use::Write => !write,
                    _ => false,
                };
        }
        match usage {
            Use::Open { access, deny } => write || access.write() || deny.read(),
            Use::Read | Use::TestLock => write,
            Use::Write | Use::Change => true,
        }
    }
}

/// The delegations, oldest first, those that were revoked among them; changes and writes that keep new ones back; and
/// until when the file counts as contended; and who lost one to an administrator.
#[derive(Default)]
pub struct Delegs(pub Vec<RefDeleg>, usize, usize, Time, [bool; 2]);

impl Delegs {
    pub fn of(&mut self, c: usize) -> impl Iterator<Item = &mut RefDeleg> {
        self.0.iter_mut().filter(move |d| d.c == c)
    }

    pub fn live(&self, c: usize) -> Option<&RefDeleg> {
        self.0.iter().find(|d| d.c == c && !d.revoked())
    }

    fn find(&mut self, other: [u8; 12]) -> Option<&mut RefDeleg> {
        self.0.iter_mut().find(|d| d.other == other)
    }

    /// The first half of an end: its token, or why not.
    fn ending(&mut self, other: [u8; 12], missing: Status) -> Result<u32, Status> {
        match self.find(other) {
            None => Err(missing),
            Some(d) if d.revoked() => Err(Status::DELEG_REVOKED),
            Some(d) if d.closing => Err(Status::DELAY),
            Some(d) => {
                d.closing = true;
                Ok(d.token)
            }
        }
    }

    /// CLAIM_DELEG_CUR_FH (18.16.3), of the youngest that the client knows of.
    pub fn claim(&self, c: usize, access: u32, missing: Status) -> Result<(), Status> {
        match self.0.iter().rfind(|d| d.c == c) {
            None => Err(missing),
            Some(d) if d.revoked() => Err(Status::DELEG_REVOKED),
            Some(d) if d.closing => Err(Status::DELAY),
            Some(d) if d.kind == DelegKind::Read && access & 2 != 0 => Err(Status::INVAL),
            Some(_) => Ok(()),
        }
    }
}

impl Reference {
    pub(super) fn deleg_conflict(&mut self, c: usize, usage: Use, now: Time) -> Result<(), Refused> {
        let (mut recalls, mut blocked, mut courtesy) = (Vec::new(), false, None);
        let (gone, ids) = (self.expired || self.dying, self.ids);
        for d in self.delegs.0.iter_mut().filter(|d| !d.revoked() && d.against(c, usage)) {
            if d.c == 0 && gone {
                courtesy = Some(ids[0]);
                continue;
            }
            blocked = true;
            recalls.extend(recall(d, &ids, now));
        }
        if blocked {
            self.delegs.3 = now + Duration::from_secs(65);
            return Err(Refused::Delegated(recalls));
        }
        courtesy.map_or(Ok(()), |id| Err(Refused::Courtesy(id)))
    }

    /// Whether a delegation is given, with so many opens in the making that are the client's own.
    fn may_delegate(&self, c: usize, kind: DelegKind, own: usize, now: Time) -> Result<(), WhyNot> {
        let write = kind == DelegKind::Write;
        // Of what was taken away none is given: it is not to be mixed up with another after a restart.
        if self.delegs.3 > now || self.delegs.4[c] {
            return Err(WhyNot::Contention);
        }
        for d in self.delegs.0.iter().filter(|d| !d.revoked()) {
            if d.c == c {
                return Err(WhyNot::Held(d.kind));
            }
            if write || d.kind == DelegKind::Write || d.phase != Phase::Held {
                return Err(WhyNot::Contention);
            }
        }
        let theirs = self.opens.iter().any(|(other, o)| *other != c && (write || o.access & 2 != 0));
        let busy = self.opening.len() > own || self.delegs.1 > 0 || self.delegs.2 > 0;
        if theirs || busy { Err(WhyNot::Contention) } else { Ok(()) }
    }
}

fn recall(d: &mut RefDeleg, ids: &[ClientId; 3], now: Time) -> Option<Recall> {
    (d.phase == Phase::Held).then(|| {
        d.phase = Phase::Recalled(now, now);
        Recall { client: ids[d.c], stateid: Stateid { seqid: 1, other: d.other }, granted_by: None }
    })
}

/// How a delegation ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Returned,
    Late,
    Taken,
}

pub enum DelegHalf<'a> {
    Return(DelegEnd<'a, u32>, [u8; 12]),
    Take(DelegEnd<'a, u32>, [u8; 12]),
    Revoke(Vec<(DelegEnd<'a, u32>, [u8; 12])>),
    Change(Change<'a, u32>),
    Remove(Change<'a, u32>),
    Special(IoToken<u32>, bool),
    Io(IoToken<u32>, [u8; 12]),
    GetAttr(Holder<u32>, bool),
}

/// What the server's own attributes say: the change attribute is that of the grant, for the holder's data is its own.
const CHANGE: u64 = 100;

impl DelegOp {
    /// Decided in one step: there is no second half.
    pub fn is_one_step(self) -> bool {
        matches!(self, Self::TestLock { .. } | Self::LocalWriter | Self::Free { .. })
    }
}

impl<'a> Race<'a> {
    pub(super) fn plan_deleg(&mut self, by: usize, op: DelegOp) -> Option<Half<'a>> {
        let (s, f, now) = (self.s, file("f"), self.now);
        let half = match op {
            DelegOp::Offer { c, access, kind, guarded } => {
                let there = self.m.opens.get(&c).map(|o| o.other);
                let plan = self.plan_open(by, Op::Deleg(op), c, (access, 0), Claim::New)?;
                assert_eq!(plan.may_delegate(kind, false, now), self.m.may_delegate(c, kind, 1, now), "{op:?}");
                let token = self.token();
                let (granted_by, change, reclaim, recalled) = (None, CHANGE, false, false);
                let offer = Offer { kind, token, guarded, granted_by, change, reclaim, recalled, now };
                return Some(Half::Open(plan, c, there, Some(offer)));
            }
            DelegOp::Claim { c, access } => {
                let known = self.known(c)?;
                if self.m.delegs.0.iter().rfind(|d| d.c == c).is_some_and(|d| d.other != known.other) {
                    return None;
                }
                let there = self.m.opens.get(&c).map(|o| o.other);
                let plan = self.plan_open(by, Op::Deleg(op), c, (access, 0), Claim::Delegated(known))?;
                return Some(Half::Open(plan, c, there, None));
            }
            DelegOp::Return { c } => {
                let known = self.known(c)?;
                let missing = self.m.missing(c, known.other);
                let want = self.m.delegs.ending(known.other, missing);
                let got = s.plan_delegreturn(&self.clients[c].me, &f, &known);
                assert_eq!(got.as_ref().map(|p| *p.token()).map_err(|e| *e), want, "{op:?}");
                DelegHalf::Return(got.ok()?, known.other)
            }
            DelegOp::Take { c } => {
                let known = self.known(c)?;
                let want = self.m.delegs.ending(known.other, Status::BAD_STATEID);
                let got = match s.plan_admin_revoke(&known, Memory::UntilFreed) {
                    Ok(Revocation::Delegation(plan)) => Ok(plan),
                    Err(status) => Err(status),
                    other => panic!("{other:?}"),
                };
                assert_eq!(got.as_ref().map(|p| *p.token()).map_err(|e| *e), want, "{op:?}");
                DelegHalf::Take(got.ok()?, known.other)
            }
            DelegOp::Remove { c } => {
                let denied = self.m.share(2, 0).map_err(|e| match e {
                    Refused::Status(Status::SHARE_DENIED) => Status::FILE_OPEN.into(),
                    other => other,
                });
                let want = denied.and_then(|()| self.m.deleg_conflict(c, Use::Change, now));
                let got = s.begin_removal(&self.clients[c].me, &f, now);
                assert_eq!(got.as_ref().map(|_| ()).map_err(Clone::clone), want, "{op:?}");
                self.m.delegs.1 += usize::from(want.is_ok());
                self.m.removing += usize::from(want.is_ok());
                DelegHalf::Remove(got.ok()?)
            }
            DelegOp::Change { c } => {
                let want = self.m.deleg_conflict(c, Use::Change, now);
                let got = s.begin_change(&self.clients[c].me, &f, now);
                assert_eq!(got.as_ref().map(|_| ()).map_err(Clone::clone), want, "{op:?}");
                self.m.delegs.1 += usize::from(want.is_ok());
                DelegHalf::Change(got.ok()?)
            }
            DelegOp::Special { c, write } => {
                let (kind, bits, usage) =
                    if write { (IoKind::Write, 2, Use::Write) } else { (IoKind::Read, 1, Use::Read) };
                let denied = self.m.share(bits, 0).map_err(|e| match e {
                    Refused::Status(Status::SHARE_DENIED) => Status::LOCKED.into(),
                    other => other,
                });
                let want = denied.and_then(|()| self.m.deleg_conflict(c, usage, now));
                let got = s.begin_io(&self.clients[c].me, &f, &Stateid::ANONYMOUS, kind, now);
                assert_eq!(got.as_ref().map(|_| ()).map_err(Clone::clone), want, "{op:?}");
                self.m.delegs.2 += usize::from(want.is_ok() && write);
                DelegHalf::Special(got.ok()?, write)
            }
            DelegOp::TestLock { c } => {
                let want = self.m.deleg_conflict(c, Use::TestLock, now);
                assert_eq!(s.check_delegations(&self.clients[c].me, &f, Use::TestLock, now), want, "{op:?}");
                return None;
            }
            DelegOp::GetAttr { c, changed } => {
                let holder = self.m.delegs.0.iter().find(|d| d.c != c && !d.revoked() && d.kind == DelegKind::Write);
                let gone = self.m.expired || self.m.dying;
                let want = match holder {
                    Some(d) if d.c == 0 && gone => Err(Refused::Courtesy(self.m.ids[0])),
                    other => Ok(other.map(|d| (self.m.ids[d.c], Stateid { seqid: 1, other: d.other }, d.token))),
                };
                let got = s.write_holder(Some(self.clients[c].id), &f, now);
                let told = got.as_ref().map(|h| h.as_ref().map(|h| (h.client, h.stateid, h.token)));
                assert_eq!(told.map_err(Clone::clone), want, "{op:?}");
                DelegHalf::GetAttr(got.ok()??, changed)
            }
            DelegOp::Io { c, write } => {
                let known = self.known(c)?;
                let missing = self.m.missing(c, known.other);
                let want = match self.m.delegs.find(known.other) {
                    None => Err(missing),
                    Some(d) if d.revoked() => Err(Status::DELEG_REVOKED),
                    Some(d) if d.closing => Err(Status::DELAY),
                    Some(d) if write && d.kind == DelegKind::Read => Err(Status::OPENMODE),
                    Some(d) => {
                        d.io += 1;
                        if let Phase::Recalled(_, used) = &mut d.phase
                            && write
                        {
                            *used = now;
                        }
                        Ok(Some(d.token))
                    }
                };
                let kind = if write { IoKind::Write } else { IoKind::Read };
                let got = s.begin_io(&self.clients[c].me, &f, &known, kind, now);
                let told = got.as_ref().map(|io| io.open().copied()).map_err(Clone::clone);
                assert_eq!(told, want.map_err(Into::into), "{op:?}");
                DelegHalf::Io(got.ok()?, known.other)
            }
            DelegOp::LocalWriter => {
                let gone = self.m.expired || self.m.dying;
                let ids = self.m.ids;
                let (mut recalls, mut over, mut any) = (Vec::new(), Vec::new(), false);
                for d in self.m.delegs.0.iter_mut().filter(|d| !d.revoked()) {
                    any = true;
                    match d.c == 0 && gone {
                        true => over.push(ids[0]),
                        false => recalls.extend(recall(d, &ids, now)),
                    }
                }
                if any {
                    self.m.delegs.3 = now + Duration::from_secs(65);
                }
                assert_eq!(s.recall_file(&f, now), (recalls, over), "{op:?}");
                return None;
            }
            DelegOp::Overdue => {
                self.pass(now + Duration::from_secs(LEASE + 1));
                let (now, lease) = (self.now, Duration::from_secs(LEASE));
                // Only while there is one does time look at them.
                if self.m.delegs.3 <= now && self.m.delegs.0.iter().any(|d| !d.revoked()) {
                    // Forgotten, also for an offer of before.
                    self.m.delegs.3 = t(0);
                }
                let over = |d: &&mut RefDeleg| match d.phase {
                    Phase::Recalled(since, used) => {
                        !d.closing && (now.since(used) > lease || now.since(since) > lease * 5)
                    }
                    _ => false,
                };
                let mut want: Vec<[u8; 12]> = Vec::new();
                for d in self.m.delegs.0.iter_mut().filter(over) {
                    d.closing = true;
                    want.push(d.other);
                }
                let revoke = |e| if let Effect::Revoke(stateid) = e { Some(stateid.other) } else { None };
                let mut got: Vec<_> = s.tick(now).into_iter().filter_map(revoke).collect();
                got.sort_unstable();
                want.sort_unstable();
                assert_eq!(got, want, "a recall that was not heeded (RFC 8881 10.4.5)");
                let plan = |other| (s.plan_revoke(&Stateid { seqid: 1, other }).expect("it was overdue"), other);
                DelegHalf::Revoke(got.into_iter().map(plan).collect())
            }
            DelegOp::Free { c } => {
                let known = self.known(c)?;
                let missing = self.m.missing(c, known.other);
                let want = match self.m.delegs.find(known.other) {
                    None if missing == Status::ADMIN_REVOKED => Ok(()),
                    None => Err(Status::BAD_STATEID),
                    Some(d) if d.revoked() => Ok(()),
                    Some(_) => Err(Status::LOCKS_HELD),
                };
                assert_eq!(s.free_stateid(&self.clients[c].me, &known), want, "{op:?}");
                if want.is_ok() {
                    self.m.delegs.0.retain(|d| d.other != known.other);
                    self.m.taken.retain(|(_, (other, _))| *other != known.other);
                }
                return None;
            }
        };
        Some(Half::Deleg(half))
    }

    /// The delegation that the client was given last.
    fn known(&self, c: usize) -> Option<Stateid> {
        Some(self.known_deleg[c]).filter(|k| *k != Stateid::default())
    }

    /// What became of the offer with an OPEN that was just granted.
    pub(super) fn delegated(&mut self, c: usize, offered: Option<(DelegKind, bool, u32, Time)>, got: Delegated<u32>) {
        let Some((kind, guarded, token, now)) = offered else {
            assert!(matches!(got, Delegated::NotOffered), "{got:?}");
            return;
        };
        match (got, self.m.may_delegate(c, kind, 0, now)) {
            (Delegated::Granted(stateid), Ok(())) => {
                assert_eq!(stateid.seqid, 1);
                self.known_deleg[c] = stateid;
                let (other, phase) = (stateid.other, Phase::Held);
                let (closing, io, modified, told) = (false, 0, false, CHANGE);
                self.m.delegs.0.push(RefDeleg { c, closing, io, token, other, kind, guarded, phase, modified, told });
            }
            (Delegated::Refused(why, back), Err(want)) => assert_eq!((why, back), (want, token)),
            (got, want) => panic!("an offer of {kind:?}: {got:?}, the reference says {want:?}"),
        }
    }

    pub(super) fn end_deleg(&mut self, half: DelegHalf<'a>, done: bool) {
        match half {
            DelegHalf::Return(plan, other) => self.end_one(plan, other, done, End::Returned),
            DelegHalf::Take(plan, other) => self.end_one(plan, other, done, End::Taken),
            DelegHalf::Revoke(plans) => {
                for (plan, other) in plans {
                    self.end_one(plan, other, done, End::Late);
                }
            }
            DelegHalf::Change(change) => {
                drop(change);
                self.m.delegs.1 -= 1;
            }
            DelegHalf::Remove(change) => {
                drop(change);
                self.m.delegs.1 -= 1;
                self.m.removing -= 1;
            }
            DelegHalf::Special(io, write) => {
                drop(io);
                self.m.delegs.2 -= usize::from(write);
            }
            DelegHalf::Io(io, other) => {
                drop(io);
                if let Some(d) = self.m.delegs.find(other) {
                    d.io -= 1;
                }
            }
            DelegHalf::GetAttr(holder, changed) => {
                let want = self.m.delegs.find(holder.stateid.other).filter(|d| !d.revoked()).and_then(|d| {
                    d.modified |= changed;
                    d.modified.then(|| {
                        d.told += 1;
                        d.told
                    })
                });
                let theirs = if changed { CHANGE + 1 } else { CHANGE };
                let got = self.s.observed(&holder.stateid, Some(theirs), 5, CHANGE, 5);
                assert_eq!(got, want, "the change attribute that others see (RFC 8881 10.4.3)");
            }
        }
    }

    fn end_one(&mut self, plan: DelegEnd<'a, u32>, other: [u8; 12], done: bool, how: End) {
        let dying = self.m.dying;
        let there = self.m.delegs.find(other);
        let idle = there.as_ref().is_none_or(|d| d.io == 0);
        assert_eq!(plan.drain().is_done(), idle, "the end of a delegation waits for I/O, and for nothing else");
        if !(done && idle) {
            drop(plan);
            if let Some(d) = there {
                d.closing = d.c == 0 && dying;
            }
            return;
        }
        let token = there.as_ref().map(|d| d.token);
        let effects = plan.commit();
        assert!(effects.len() == usize::from(token.is_some()), "{effects:?}");
        assert!(effects.iter().all(|e| matches!(e, Effect::Close(t) if Some(*t) == token)), "{effects:?}");
        match there {
            Some(d) if how == End::Late => (d.phase, d.closing) = (Phase::Revoked, false),
            Some(d) if how == End::Taken => {
                let c = d.c;
                self.m.delegs.4[c] = true;
                self.m.delegs.0.retain(|d| d.other != other);
                self.m.take(c, [(other, None)]);
            }
            _ => self.m.delegs.0.retain(|d| d.other != other),
        }
    }

    pub(super) fn compare_delegs(&self) {
        let (counts, delegs) = (self.s.counts(), &self.m.delegs.0);
        let live: Vec<_> = delegs.iter().filter(|d| !d.revoked()).collect();
        let write: Vec<_> = live.iter().filter(|d| d.kind == DelegKind::Write).collect();
        assert_eq!((counts.delegations, counts.write_delegations), (live.len(), write.len()));
        for w in write {
            assert_eq!(live.len(), 1, "another delegation beside one for writing (RFC 8881 10.4)");
            assert!(self.m.opens.keys().all(|c| *c == w.c), "an open of another client beside a write delegation");
        }
        for d in delegs {
            let stateid = Stateid { seqid: 1, other: d.other };
            let want = if d.revoked() { Status::DELEG_REVOKED } else { Status::OK };
            assert_eq!(self.s.test_stateid(&self.clients[d.c].me, &stateid), want, "TEST_STATEID");
            assert_eq!(self.s.test_stateid(&self.clients[1 - d.c].me, &stateid), Status::BAD_STATEID);
        }
        for c in 0..2 {
            if let Some(known) = self.known(c)
                && !delegs.iter().any(|d| d.other == known.other)
            {
                assert_eq!(self.s.test_stateid(&self.clients[c].me, &known), self.m.missing(c, known.other));
            }
        }
    }
}
