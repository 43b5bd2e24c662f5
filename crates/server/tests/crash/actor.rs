//! One client: it comes back after a crash, reclaims, and works until the power goes.

use crate::ledger::{Held, HeldDeleg, Ledger, Standing, UNITS};
use crate::power::Life;
use crate::session::{COMPLETE, Conn, Gone};
use dhow_proto::v4::ops::{Delegation, LockRes, OpenClaim, OpenHow, OpenOk, share};
use dhow_proto::v4::{ArgOp, DelegationType, FileHandle, LockType, ResOp, Stateid, Status};
use dhow_testkit::Dice;
use dhow_testkit::wire::op;
use std::cell::RefCell;
use std::ops::Range;
use std::time::Duration;
use tokio::time::Instant;

/// Bytes of a unit of locks.
const UNIT: u64 = 10;

/// When the end of the grace period is certainly still to come, and when it is certainly over.
pub const EARLY: Duration = Duration::from_secs(85);
pub const LATE: Duration = Duration::from_secs(97);

pub struct Actor<'a> {
    pub me: usize,
    pub dice: Dice,
    pub life: &'a Life,
    pub ledger: &'a RefCell<Ledger>,
    pub conn: Option<Conn>,
    /// Its incarnation, kept over lives by the caller.
    pub incarnation: u64,
}

fn kind(exclusive: bool) -> LockType {
    if exclusive { LockType::WRITE } else { LockType::READ }
}

fn bytes_of(units: &Range<usize>) -> (u64, u64) {
    (units.start as u64 * UNIT, units.len() as u64 * UNIT)
}

/// What a reclaim or the like came to.
pub fn opened(results: &[ResOp]) -> Option<Stateid> {
    results.iter().find_map(|r| match r {
        ResOp::Open(Ok(ok)) => Some(ok.stateid),
        _ => None,
    })
}

pub fn granted(results: &[ResOp]) -> Option<OpenOk> {
    results.iter().find_map(|r| match r {
        ResOp::Open(Ok(ok)) => Some(ok.clone()),
        _ => None,
    })
}

/// The stateid of a delegation, and whether it comes recalled.
pub fn given(d: &Delegation) -> Option<(Stateid, bool)> {
    match d {
        Delegation::Read(d) => Some((d.stateid, d.recall)),
        Delegation::Write(d) => Some((d.stateid, d.recall)),
        _ => None,
    }
}

fn kind_of(write: bool) -> DelegationType {
    if write { DelegationType::WRITE } else { DelegationType::READ }
}

impl Actor<'_> {
    fn name(&self) -> String {
        format!("actor {}", self.me)
    }

    pub fn fh(&self, file: usize) -> FileHandle {
        self.ledger.borrow().files[file].clone()
    }

    fn owner(&self) -> dhow_proto::v4::StateOwner {
        op::owner(self.conn.as_ref().expect("a session").id, "open-owner")
    }

    /// A call; the ledger hears that the server has heard of this client. `state`: it may give state or take it.
    pub async fn call(&mut self, state: bool, ops: &[ArgOp]) -> Result<(Status, Vec<ResOp>), Gone> {
        let sent = Instant::now();
        self.ledger.borrow_mut().accounts[self.me].busy = state;
        let done = self.conn.as_mut().expect("a session").run(ops).await?;
        let mut ledger = self.ledger.borrow_mut();
        let account = &mut ledger.accounts[self.me];
        account.busy = false;
        if done.0 != Status::BADSESSION {
            account.heard = Some(sent);
        }
        Ok(done)
    }

    /// The whole life of this client.
    pub async fn live(&mut self, arrive_after: Duration, steps: u64) -> Result<(), Gone> {
        tokio::time::sleep(arrive_after).await;
        self.arrive().await?;
        for _ in 0..steps {
            tokio::time::sleep(Duration::from_millis(self.dice.roll(4000))).await;
            if !self.step().await? {
                self.lost();
                self.arrive().await?;
            }
        }
        Ok(())
    }

    /// The session is gone although the server goes on: the lease had ended.
    fn lost(&mut self) {
        let mut ledger = self.ledger.borrow_mut();
        let account = &mut ledger.accounts[self.me];
        assert!(
            account.unsure || account.may_have_nothing(),
            "{} lost its session although nobody wanted what it held: {:?}, {:?}",
            self.me,
            account.held,
            account.delegs
        );
        if account.standing == Standing::Yes {
            account.standing = Standing::Perhaps;
        }
        account.heard = None;
        account.unsure |= !account.held.is_empty() || !account.delegs.is_empty();
        self.conn = None;
        ledger.tally.add("session lost with the lease");
    }

    /// Comes (back): a session, reclaims, RECLAIM_COMPLETE (RFC 8881 8.4.2.1, 18.51).
    async fn arrive(&mut self) -> Result<(), Gone> {
        if self.dice.one_in(16) {
            // The client itself was started anew: it knows of nothing that it had.
            self.incarnation += 1;
            let mut ledger = self.ledger.borrow_mut();
            ledger.accounts[self.me].held.clear();
            ledger.accounts[self.me].ghosts.clear();
            ledger.accounts[self.me].delegs.clear();
            ledger.accounts[self.me].lost.clear();
            ledger.tally.add("client rebooted");
        }
        self.conn = Some(Conn::open(self.life, &self.name(), self.incarnation).await?);
        let elapsed = self.life.began.elapsed();
        let expected = {
            let mut ledger = self.ledger.borrow_mut();
            if elapsed > LATE {
                ledger.bury(self.me);
            }
            let account = &ledger.accounts[self.me];
            if account.unsure || elapsed > EARLY { Standing::Perhaps } else { account.standing }
        };
        self.ledger.borrow_mut().accounts[self.me].heard = Some(Instant::now());
        let (held, mut delegs) = {
            let ledger = self.ledger.borrow();
            (ledger.accounts[self.me].held.clone(), ledger.accounts[self.me].delegs.clone())
        };
        if !held.is_empty() || !delegs.is_empty() {
            assert_ne!(expected, Standing::No, "something is held without a record");
            // Before its RECLAIM_COMPLETE a client gets nothing new (18.51.3).
            if self.dice.one_in(3) {
                let new = op::open(self.owner(), share::ACCESS_READ, 0, OpenHow::NoCreate, OpenClaim::Fh);
                let put = op::put(&self.fh(0));
                let status = self.call(false, &[put, new]).await?.0;
                assert_eq!(status, Status::GRACE, "an OPEN before RECLAIM_COMPLETE");
            }
            let mut first = true;
            // A delegation without an open comes back with one that is closed again (10.2.1).
            let alone: Vec<usize> = delegs.keys().copied().filter(|f| !held.contains_key(f)).collect();
            let all = held.into_iter().map(|(f, h)| (f, Some(h))).chain(alone.into_iter().map(|f| (f, None)));
            for (file, held) in all {
                let back = self.reclaim(file, held.as_ref(), delegs.remove(&file)).await?;
                match back {
                    Ok(()) => self.ledger.borrow_mut().tally.add("open reclaimed"),
                    Err(status) => {
                        assert_eq!(status, Status::NO_GRACE, "the refusal of a reclaim");
                        assert!(first && expected == Standing::Perhaps, "{} may not reclaim, but it must", self.me);
                        let mut ledger = self.ledger.borrow_mut();
                        ledger.bury(self.me);
                        ledger.tally.add("reclaim refused to who may have been ended");
                        break;
                    }
                }
                first = false;
            }
        }
        self.ledger.borrow_mut().accounts[self.me].unsure = false;
        self.reclaim_what_was_revoked(expected).await?;
        // What somebody else may have had meanwhile: RFC 8881 8.4.3.
        let ghosts = std::mem::take(&mut self.ledger.borrow_mut().accounts[self.me].ghosts);
        for (file, held) in ghosts {
            // The record may be there for what was reclaimed or opened since; then the server cannot know better.
            if self.ledger.borrow().accounts[self.me].standing == Standing::No {
                let refused = self.reclaim_open(file, held.access, held.deny, DelegationType::NONE).await?;
                assert_eq!(refused.err(), Some(Status::NO_GRACE), "{} reclaims what it lost: {held:?}", self.me);
                self.ledger.borrow_mut().tally.add("late reclaim refused");
            }
        }
        self.ledger.borrow_mut().accounts[self.me].complete_sent = true;
        let status = self.call(false, &[COMPLETE]).await?.0;
        assert_eq!(status, Status::OK, "RECLAIM_COMPLETE");
        self.ledger.borrow_mut().accounts[self.me].complete = true;
        if self.dice.one_in(4) {
            let late = self.reclaim_open(0, share::ACCESS_READ, 0, DelegationType::NONE).await?;
            assert_eq!(late.err(), Some(Status::NO_GRACE), "a reclaim after RECLAIM_COMPLETE (18.51.3)");
            assert_eq!(self.call(false, &[COMPLETE]).await?.0, Status::COMPLETE_ALREADY);
        }
        Ok(())
    }

    /// OPEN with CLAIM_PREVIOUS: what came of it.
    async fn reclaim_open(
        &mut self,
        file: usize,
        access: u32,
        deny: u32,
        deleg: DelegationType,
    ) -> Result<Result<OpenOk, Status>, Gone> {
        let claim = OpenClaim::Previous(deleg);
        let open = op::open(self.owner(), access, deny, OpenHow::NoCreate, claim);
        let put = op::put(&self.fh(file));
        loop {
            let (status, results) = self.call(true, &[put.clone(), open.clone()]).await?;
            match status {
                Status::DELAY => tokio::time::sleep(Duration::from_millis(200)).await,
                Status::OK => return Ok(Ok(granted(&results).expect("an open"))),
                status => return Ok(Err(status)),
            }
        }
    }

    /// Reclaims what the server revoked before its restart, as a client does that was not told (10.2.1).
    async fn reclaim_what_was_revoked(&mut self, expected: Standing) -> Result<(), Gone> {
        let lost = std::mem::take(&mut self.ledger.borrow_mut().accounts[self.me].lost);
        for (file, deleg) in lost {
            if self.life.began.elapsed() > EARLY || self.ledger.borrow().accounts[self.me].delegs.contains_key(&file) {
                continue;
            }
            let got = self.reclaim_open(file, share::ACCESS_READ, 0, kind_of(deleg.write)).await?;
            match got {
                Err(Status::RECLAIM_BAD) => {
                    self.ledger.borrow_mut().tally.add("reclaim of a revoked delegation refused");
                }
                Err(Status::NO_GRACE) if expected != Standing::Yes => {}
                other => panic!("{} reclaims a delegation that was revoked: {other:?}", self.me),
            }
        }
        Ok(())
    }

    /// Reclaims an open and its locks, and a delegation with it.
    async fn reclaim(
        &mut self,
        file: usize,
        held: Option<&Held>,
        deleg: Option<HeldDeleg>,
    ) -> Result<Result<(), Status>, Gone> {
        let (access, deny) = held.map_or((share::ACCESS_READ, 0), |h| (h.access, h.deny));
        let wanted = deleg.map_or(DelegationType::NONE, |d| kind_of(d.write));
        let mut got = self.reclaim_open(file, access, deny, wanted).await?;
        if got == Err(Status::RECLAIM_BAD) {
            let doubtful = deleg.is_some_and(|d| d.doubtful);
            assert!(doubtful, "{} may not reclaim a delegation that was not revoked: {deleg:?}", self.me);
            {
                let mut ledger = self.ledger.borrow_mut();
                ledger.accounts[self.me].delegs.remove(&file);
                ledger.tally.add("reclaim of a revoked delegation refused");
            }
            if held.is_none() {
                return Ok(Ok(()));
            }
            got = self.reclaim_open(file, access, deny, DelegationType::NONE).await?;
        } else if let (Ok(open), Some(deleg)) = (&got, deleg) {
            let (stateid, recalled) = given(&open.delegation)
                .unwrap_or_else(|| panic!("{} gets no delegation back (10.2.1): {open:?}, {deleg:?}", self.me));
            let mut ledger = self.ledger.borrow_mut();
            let (write, wanted, doubtful) = (deleg.write, None, false);
            let back = HeldDeleg { stateid, write, recalled, wanted, doubtful };
            ledger.accounts[self.me].delegs.insert(file, back);
            ledger.tally.add(if write { "write delegation reclaimed" } else { "read delegation reclaimed" });
        }
        let stateid = match got {
            Ok(open) => open.stateid,
            Err(status) => return Ok(Err(status)),
        };
        let Some(held) = held else {
            let put = op::put(&self.fh(file));
            while self.call(true, &[put.clone(), op::close(stateid)]).await?.0 == Status::DELAY {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            return Ok(Ok(()));
        };
        self.ledger.borrow_mut().granted_over_delegs("a reclaimed open", self.me, file, access, deny);
        {
            let mut ledger = self.ledger.borrow_mut();
            let against = ledger.share_against(self.me, file, held.access, held.deny);
            ledger.granted_over("a reclaimed open", self.me, &against);
            let mine = ledger.accounts[self.me].held.get_mut(&file).expect("what is reclaimed");
            mine.stateid = stateid;
            mine.lock = None;
            mine.asked = vec![(held.access, held.deny)];
        }
        let mut at = 0;
        while at < UNITS {
            let what = held.units[at];
            let end = (at..UNITS).find(|u| held.units[*u] != what).unwrap_or(UNITS);
            let units = at..end;
            at = end;
            if what == 0 {
                continue;
            }
            match self.lock(file, units.clone(), what == 2, true).await? {
                LockRes::Ok(_) => self.ledger.borrow_mut().tally.add("lock reclaimed"),
                other => panic!("{} cannot reclaim a lock of a reclaimed open: {other:?}", self.me),
            }
        }
        Ok(Ok(()))
    }

    /// LOCK; a stateid that comes is noted, the units are the caller's to note.
    pub async fn lock(
        &mut self,
        file: usize,
        units: Range<usize>,
        exclusive: bool,
        reclaim: bool,
    ) -> Result<LockRes, Gone> {
        let held = self.ledger.borrow().accounts[self.me].held[&file].clone();
        let (offset, length) = bytes_of(&units);
        let owner = op::owner(self.conn.as_ref().expect("a session").id, "lock-owner");
        let mut lock = match held.lock {
            None => op::lock_new(held.stateid, owner, kind(exclusive), offset, length),
            Some(l) => op::lock_more(l, kind(exclusive), offset, length),
        };
        if let ArgOp::Lock(args) = &mut lock {
            args.reclaim = reclaim;
        }
        let put = op::put(&self.fh(file));
        loop {
            let (status, mut results) = self.call(true, &[put.clone(), lock.clone()]).await?;
            match (status, results.pop()) {
                (Status::DELAY, _) => tokio::time::sleep(Duration::from_millis(200)).await,
                (_, Some(ResOp::Lock(res))) => {
                    if let LockRes::Ok(stateid) = &res
                        && let Some(held) = self.ledger.borrow_mut().accounts[self.me].held.get_mut(&file)
                    {
                        held.lock = Some(*stateid);
                    }
                    return Ok(res);
                }
                (status, _) => return Ok(LockRes::Err(status)),
            }
        }
    }

    /// LOCKU.
    pub async fn unlock(&mut self, file: usize, lock: Stateid, units: Range<usize>) -> Result<Status, Gone> {
        let (offset, length) = bytes_of(&units);
        let put = op::put(&self.fh(file));
        let (status, results) = self.call(true, &[put, op::locku(lock, offset, length)]).await?;
        if let Some(ResOp::Locku(Ok(ok))) = results.last()
            && let Some(held) = self.ledger.borrow_mut().accounts[self.me].held.get_mut(&file)
        {
            held.lock = Some(ok.lock_stateid);
        }
        Ok(status)
    }

    pub async fn open(
        &mut self,
        file: usize,
        access: u32,
        deny: u32,
        want: u32,
    ) -> Result<Result<OpenOk, Status>, Gone> {
        let open = op::open(self.owner(), access | want, deny, OpenHow::NoCreate, OpenClaim::Fh);
        let put = op::put(&self.fh(file));
        let (status, results) = self.call(true, &[put, open]).await?;
        Ok(granted(&results).ok_or(status))
    }
}
