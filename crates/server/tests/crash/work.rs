//! What a client does: opens, locks, data, names, and nothing for a long time.

use crate::actor::{Actor, LATE, given, granted};
use crate::ledger::{BLOCKS, Change, FILES, Held, HeldDeleg, Kind, Standing, UNITS};
use crate::session::Gone;
use dhow_proto::v4::cb::{CbArgOp, OffloadInfo};
use dhow_proto::v4::ops::{
    CopyRes, CreateType, Delegation, DelegreturnArgs, FreeStateidArgs, LockRes, OpenClaim, OpenHow, WriteResponse,
    share,
};
use dhow_proto::v4::{ArgOp, Attrs, ResOp, StableHow, Stateid, Status};
use dhow_testkit::wire::op;
use std::time::Duration;

/// Bytes of a block.
pub const BLOCK: u64 = 4096;

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

pub fn filled(stamp: u64) -> Vec<u8> {
    stamp.to_be_bytes().repeat(BLOCK as usize / 8)
}

/// Where an actor's block lies in a file: those of different actors never touch.
pub fn offset_of(actor: usize, block: usize) -> u64 {
    (block * crate::ledger::ACTORS + actor) as u64 * BLOCK
}

impl Actor<'_> {
    /// One thing; `false`: the session is gone.
    pub async fn step(&mut self) -> Result<bool, Gone> {
        // More often than by chance, if it was asked for.
        let asked = self.asked_for() && self.dice.one_in(3);
        let status = match self.dice.roll(100) {
            _ if asked => self.some_delegation().await?,
            0..22 => self.some_open().await?,
            22..30 => self.some_close().await?,
            30..34 => self.some_downgrade().await?,
            34..46 => self.some_lock().await?,
            46..51 => self.some_unlock().await?,
            51..68 => self.some_write().await?,
            68..74 => self.some_commit().await?,
            74..79 => self.some_copy().await?,
            79..83 => self.some_read().await?,
            83..91 => self.some_change().await?,
            91..97 => self.some_delegation().await?,
            97 => self.reboot().await?,
            _ => self.silence().await?,
        };
        Ok(status != Status::BADSESSION)
    }

    fn held(&self) -> Vec<(usize, Held)> {
        self.ledger.borrow().accounts[self.me].held.iter().map(|(f, h)| (*f, h.clone())).collect()
    }

    /// GRACE is due only as long as somebody may reclaim.
    fn grace_is_due(&self, all_complete: bool) {
        assert!(!all_complete, "GRACE although every client has sent RECLAIM_COMPLETE (RFC 8881 18.51.4)");
        assert!(self.life.began.elapsed() < LATE, "GRACE although its time is over");
    }

    async fn some_open(&mut self) -> Result<Status, Gone> {
        let file = self.dice.roll(FILES as u64) as usize;
        let access = 1 + self.dice.roll(3) as u32;
        let deny = if self.dice.one_in(4) { 1 + self.dice.roll(3) as u32 } else { 0 };
        let (against, own, waits, complete) = {
            let mut ledger = self.ledger.borrow_mut();
            let against = ledger.share_against(self.me, file, access, deny);
            ledger.wanted(&against);
            let waits = ledger.wanted_delegs(self.me, file, access, deny);
            let own = ledger.accounts[self.me].held.get(&file).cloned();
            // An open conflicts with the same owner's too (RFC 8881 9.7).
            let own_stands = own.as_ref().is_some_and(|h| access & h.deny != 0 || deny & h.access != 0);
            (against, own_stands, waits, ledger.all_complete())
        };
        let want = if self.dice.one_in(2) { share::WANT_ANY_DELEG } else { share::WANT_NO_DELEG };
        let got = self.open(file, access, deny, want).await?;
        let mut ledger = self.ledger.borrow_mut();
        match got {
            Ok(open) => {
                let stateid = open.stateid;
                assert!(!own, "an OPEN was granted against the same owner's");
                let now = ledger.share_against(self.me, file, access, deny);
                ledger.granted_over("an OPEN", self.me, &now);
                ledger.granted_over_delegs("an OPEN", self.me, file, access, deny);
                let account = &mut ledger.accounts[self.me];
                account.standing = Standing::Yes;
                let held = account.held.entry(file).or_insert_with(|| Held {
                    access: 0,
                    deny: 0,
                    asked: Vec::new(),
                    stateid,
                    lock: None,
                    units: [0; UNITS],
                });
                held.access |= access;
                held.deny |= deny;
                held.asked.push((access, deny));
                held.stateid = stateid;
                ledger.tally.add("open");
                if let Some((stateid, recalled)) = given(&open.delegation) {
                    let write = matches!(open.delegation, Delegation::Write(_));
                    ledger.delegated(self.me, file, write);
                    let (wanted, doubtful) = (None, false);
                    let deleg = HeldDeleg { stateid, write, recalled, wanted, doubtful };
                    ledger.accounts[self.me].delegs.insert(file, deleg);
                    ledger.tally.add(if write { "write delegation" } else { "read delegation" });
                }
                Ok(Status::OK)
            }
            Err(Status::GRACE) => {
                drop(ledger);
                self.grace_is_due(complete);
                self.ledger.borrow_mut().tally.add("GRACE for a known client");
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(Status::GRACE)
            }
            Err(Status::SHARE_DENIED) => {
                if !own && !waits {
                    ledger.refusal_is_due("an OPEN", self.me, &against);
                }
                ledger.tally.add("share denied");
                Ok(Status::SHARE_DENIED)
            }
            Err(status @ (Status::DELAY | Status::BADSESSION)) => Ok(status),
            Err(other) => panic!("OPEN: {other:?}"),
        }
    }

    async fn some_close(&mut self) -> Result<Status, Gone> {
        let held = self.held();
        if held.is_empty() {
            return Ok(Status::OK);
        }
        let (file, held) = self.dice.pick(&held).clone();
        // From here on nobody knows whether it is held.
        self.ledger.borrow_mut().accounts[self.me].held.remove(&file);
        let put = op::put(&self.fh(file));
        loop {
            match self.call(true, &[put.clone(), op::close(held.stateid)]).await?.0 {
                Status::DELAY => tokio::time::sleep(Duration::from_millis(200)).await,
                status @ (Status::OK | Status::BADSESSION) => return Ok(status),
                other => panic!("CLOSE: {other:?}"),
            }
        }
    }

    async fn some_downgrade(&mut self) -> Result<Status, Gone> {
        let held = self.held();
        let Some((file, held)) = held.into_iter().find(|(_, h)| h.asked.len() > 1 && h.lock.is_none()) else {
            return Ok(Status::OK);
        };
        let (access, deny) = held.asked[0];
        {
            let mut ledger = self.ledger.borrow_mut();
            let mine = ledger.accounts[self.me].held.get_mut(&file).expect("it is held");
            (mine.access, mine.deny) = (access, deny);
            mine.asked.truncate(1);
        }
        let put = op::put(&self.fh(file));
        let (status, results) = self.call(true, &[put, op::downgrade(held.stateid, access, deny)]).await?;
        match results.last() {
            Some(ResOp::OpenDowngrade(Ok(ok))) => {
                let mut ledger = self.ledger.borrow_mut();
                ledger.accounts[self.me].held.get_mut(&file).expect("it is held").stateid = ok.open_stateid;
                ledger.tally.add("downgrade");
            }
            _ if status == Status::BADSESSION => {}
            _ if status == Status::DELAY => {
                self.ledger.borrow_mut().accounts[self.me].held.insert(file, held);
            }
            other => panic!("OPEN_DOWNGRADE: {other:?}"),
        }
        Ok(status)
    }

    async fn some_lock(&mut self) -> Result<Status, Gone> {
        let held = self.held();
        if held.is_empty() {
            return Ok(Status::OK);
        }
        let (file, held) = self.dice.pick(&held).clone();
        let exclusive = held.access == 2 || held.access == 3 && self.dice.one_in(2);
        let start = self.dice.roll(UNITS as u64 - 1) as usize;
        let units = start..start + 1 + self.dice.roll((UNITS - start) as u64) as usize;
        let new = if exclusive { 2 } else { 1 };
        let (against, complete) = {
            let mut ledger = self.ledger.borrow_mut();
            let against = ledger.lock_against(self.me, file, units.clone(), exclusive);
            ledger.wanted(&against);
            // What the call may change is only held as far as it is before and afterwards.
            let mine = ledger.accounts[self.me].held.get_mut(&file).expect("it is held");
            mine.units[units.clone()].iter_mut().for_each(|u| *u = (*u).min(new));
            (against, ledger.all_complete())
        };
        let res = self.lock(file, units.clone(), exclusive, false).await?;
        let mut ledger = self.ledger.borrow_mut();
        match res {
            LockRes::Ok(_) => {
                let now = ledger.lock_against(self.me, file, units.clone(), exclusive);
                ledger.granted_over("a LOCK", self.me, &now);
                if let Some(mine) = ledger.accounts[self.me].held.get_mut(&file) {
                    mine.units[units].fill(new);
                }
                ledger.tally.add("lock");
                Ok(Status::OK)
            }
            refused => {
                if let Some(mine) = ledger.accounts[self.me].held.get_mut(&file) {
                    mine.units = held.units;
                }
                match refused {
                    LockRes::Denied(_) => {
                        ledger.refusal_is_due("a LOCK", self.me, &against);
                        ledger.tally.add("lock denied");
                        Ok(Status::DENIED)
                    }
                    LockRes::Err(Status::GRACE) => {
                        drop(ledger);
                        self.grace_is_due(complete);
                        Ok(Status::GRACE)
                    }
                    LockRes::Err(Status::BADSESSION) => Ok(Status::BADSESSION),
                    other => panic!("LOCK: {other:?}"),
                }
            }
        }
    }

    async fn some_unlock(&mut self) -> Result<Status, Gone> {
        let Some((file, lock)) = self.held().into_iter().find_map(|(f, h)| Some((f, h.lock?))) else {
            return Ok(Status::OK);
        };
        let start = self.dice.roll(UNITS as u64 / 2) as usize;
        let units = start..start + UNITS / 2;
        if let Some(mine) = self.ledger.borrow_mut().accounts[self.me].held.get_mut(&file) {
            mine.units[units.clone()].fill(0);
        }
        loop {
            match self.unlock(file, lock, units.clone()).await? {
                Status::DELAY => tokio::time::sleep(Duration::from_millis(200)).await,
                status @ (Status::OK | Status::BADSESSION) => return Ok(status),
                other => panic!("LOCKU: {other:?}"),
            }
        }
    }

    /// A file that this actor may write to, by its open.
    fn writable(&mut self) -> Option<(usize, Stateid)> {
        let open: Vec<_> = self.held().into_iter().filter(|(_, h)| h.access & 2 != 0).collect();
        (!open.is_empty()).then(|| self.dice.pick(&open).clone()).map(|(f, h)| (f, h.stateid))
    }

    async fn some_write(&mut self) -> Result<Status, Gone> {
        let Some((file, stateid)) = self.writable() else { return Ok(Status::OK) };
        let block = self.dice.roll(BLOCKS as u64) as usize;
        let how =
            *self.dice.pick(&[StableHow::UNSTABLE, StableHow::UNSTABLE, StableHow::DATA_SYNC, StableHow::FILE_SYNC]);
        let stamp = {
            let mut ledger = self.ledger.borrow_mut();
            let stamp = ledger.stamp();
            let cell = &mut ledger.accounts[self.me].cells[file][block];
            cell.later.push(stamp);
            cell.live = None;
            stamp
        };
        if self.dice.one_in(20) {
            // The next sync fails: the error is answered, the verifier changes, and the data counts as unwritten.
            self.life.power.fs().fail_syncs(1);
            self.ledger.borrow_mut().tally.add("a sync that failed");
        }
        let write = op::write(stateid, offset_of(self.me, block), how, filled(stamp));
        let put = op::put(&self.fh(file));
        let (status, results) = self.call(false, &[put, write]).await?;
        let Some(ResOp::Write(Ok(ok))) = results.last() else {
            assert!(matches!(status, Status::IO | Status::BADSESSION | Status::DELAY), "WRITE: {status:?}");
            return Ok(status);
        };
        assert_eq!(u64::from(ok.count), BLOCK);
        let mut ledger = self.ledger.borrow_mut();
        ledger.verifier(ok.verifier);
        assert!(how == StableHow::UNSTABLE || ok.committed != StableHow::UNSTABLE, "less stable than asked for");
        let account = &mut ledger.accounts[self.me];
        account.cells[file][block].live = Some(stamp);
        match ok.committed {
            StableHow::UNSTABLE => account.unstable.push((file, block, stamp, ok.verifier)),
            _ => {
                account.cells[file][block].settle(stamp);
                ledger.tally.add("stable write");
            }
        }
        Ok(Status::OK)
    }

    async fn some_commit(&mut self) -> Result<Status, Gone> {
        let Some(file) = self.ledger.borrow().accounts[self.me].unstable.first().map(|u| u.0) else {
            return Ok(Status::OK);
        };
        let put = op::put(&self.fh(file));
        let (status, results) = self.call(false, &[put, op::commit(0, 0)]).await?;
        let Some(ResOp::Commit(Ok(ok))) = results.last() else {
            assert!(matches!(status, Status::IO | Status::BADSESSION), "COMMIT: {status:?}");
            return Ok(status);
        };
        let mut ledger = self.ledger.borrow_mut();
        ledger.verifier(ok.verifier);
        let account = &mut ledger.accounts[self.me];
        let (mine, rest) = std::mem::take(&mut account.unstable).into_iter().partition::<Vec<_>, _>(|u| u.0 == file);
        account.unstable = rest;
        let mut same = true;
        for (file, block, stamp, verifier) in mine {
            // With another verifier the data must be sent again (18.3.4).
            if verifier == ok.verifier {
                account.cells[file][block].settle(stamp);
            } else {
                same = false;
            }
        }
        ledger.tally.add(if same { "commit" } else { "commit with another verifier" });
        Ok(Status::OK)
    }

    /// COPY of one of its blocks to another file: sometimes to the end of the source, which makes it durable.
    async fn some_copy(&mut self) -> Result<Status, Gone> {
        let Some((dst, dst_id)) = self.writable() else { return Ok(Status::OK) };
        let Some((src, src_id)) =
            self.held().into_iter().find(|(f, h)| *f != dst && h.access & 1 != 0).map(|(f, h)| (f, h.stateid))
        else {
            return Ok(Status::OK);
        };
        let (from, to) = (self.dice.roll(BLOCKS as u64) as usize, self.dice.roll(BLOCKS as u64) as usize);
        let Some(stamp) = self.ledger.borrow().accounts[self.me].cells[src][from].live else { return Ok(Status::OK) };
        {
            let mut ledger = self.ledger.borrow_mut();
            let cell = &mut ledger.accounts[self.me].cells[dst][to];
            cell.later.push(stamp);
            cell.live = None;
        }
        let offsets = (offset_of(self.me, from), offset_of(self.me, to));
        let ops = [
            op::put(&self.fh(src)),
            ArgOp::SaveFh,
            op::put(&self.fh(dst)),
            op::copy(src_id, dst_id, offsets, BLOCK, self.dice.one_in(2)),
        ];
        let (status, results) = self.call(false, &ops).await?;
        let Some(ResOp::Copy(CopyRes::Ok(ok))) = results.last() else {
            assert!(matches!(status, Status::IO | Status::BADSESSION | Status::DELAY), "COPY: {status:?} {results:?}");
            return Ok(status);
        };
        let mut response = ok.response.clone();
        if let Some(id) = ok.response.callback_id.first() {
            match self.end_of_copy(*id).await? {
                Some(done) => response = done,
                // It failed, or the session went: nobody knows what of it is there.
                None => return Ok(Status::OK),
            }
            self.ledger.borrow_mut().tally.add("asynchronous copy");
        }
        let mut ledger = self.ledger.borrow_mut();
        let account = &mut ledger.accounts[self.me];
        if response.count != BLOCK {
            // A source that ends before the block, or one of no bytes: only what was there before is certain.
            return Ok(Status::OK);
        }
        account.cells[dst][to].live = Some(stamp);
        if response.committed == StableHow::UNSTABLE {
            account.unstable.push((dst, to, stamp, response.verifier));
            ledger.tally.add("unstable copy");
        } else {
            account.cells[dst][to].settle(stamp);
            ledger.tally.add("stable copy");
        }
        ledger.verifier(response.verifier);
        Ok(Status::OK)
    }

    /// Waits for the CB_OFFLOAD of a copy (RFC 7862 16.1): its result, unless it failed.
    async fn end_of_copy(&mut self, id: Stateid) -> Result<Option<WriteResponse>, Gone> {
        for _ in 0..200 {
            for call in self.callbacks() {
                if let CbArgOp::Offload(args) = call
                    && args.stateid.other == id.other
                {
                    return Ok(match args.info {
                        OffloadInfo::Ok(response) => Some(response),
                        OffloadInfo::Err { .. } => None,
                    });
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            // Also reads what came.
            if self.call(false, &[]).await?.0 == Status::BADSESSION {
                return Ok(None);
            }
        }
        panic!("{} hears nothing of a copy", self.me)
    }

    /// Looks at the callbacks that came: recalls go to the ledger, the others come back.
    fn callbacks(&mut self) -> Vec<CbArgOp> {
        let calls = self.conn.as_mut().map(|c| c.called()).unwrap_or_default();
        let mut ledger = self.ledger.borrow_mut();
        let account = &mut ledger.accounts[self.me];
        for call in &calls {
            if let CbArgOp::Recall(args) = call {
                account.delegs.values_mut().filter(|d| d.stateid.other == args.stateid.other).for_each(|d| {
                    d.recalled = true;
                });
            }
        }
        calls
    }

    fn asked_for(&mut self) -> bool {
        self.callbacks();
        self.ledger.borrow().accounts[self.me].delegs.values().any(|d| d.recalled)
    }

    /// Something with a delegation: give it back, look at it, open by right of it; or learn that one was revoked.
    async fn some_delegation(&mut self) -> Result<Status, Gone> {
        self.callbacks();
        let (delegs, lost) = {
            let ledger = self.ledger.borrow();
            (ledger.accounts[self.me].delegs.clone(), ledger.accounts[self.me].lost.clone())
        };
        if let Some((file, deleg)) = lost.into_iter().next()
            && self.dice.one_in(3)
        {
            let put = op::put(&self.fh(file));
            let status = self.call(false, &[put, op::read(deleg.stateid, 0, 10)]).await?.0;
            if status == Status::BADSESSION {
                return Ok(status);
            }
            // A stateid of an earlier life is not known any more.
            assert!(matches!(status, Status::DELEG_REVOKED | Status::BAD_STATEID), "READ by it: {status:?}");
            return if status == Status::DELEG_REVOKED { self.free(file, deleg.stateid).await } else { Ok(status) };
        }
        let delegs: Vec<_> = delegs.into_iter().collect();
        if delegs.is_empty() {
            return Ok(Status::OK);
        }
        let (file, deleg) = *self.dice.pick(&delegs);
        let put = op::put(&self.fh(file));
        if self.dice.one_in(3) {
            // RFC 8881 18.16.3: an open that the delegation covers asks nobody.
            let access = if deleg.write { 3 } else { 1 };
            let own = self.ledger.borrow().accounts[self.me].held.get(&file).cloned();
            if own.is_none_or(|h| h.deny == 0) {
                return self.open_by(file, deleg, access).await;
            }
        }
        if !deleg.recalled && self.dice.one_in(2) {
            return Ok(Status::OK);
        }
        self.ledger.borrow_mut().accounts[self.me].delegs.remove(&file);
        loop {
            let back = ArgOp::Delegreturn(DelegreturnArgs { stateid: deleg.stateid });
            match self.call(true, &[put.clone(), back]).await?.0 {
                Status::DELAY => tokio::time::sleep(Duration::from_millis(200)).await,
                Status::OK => {
                    self.ledger.borrow_mut().tally.add("delegation returned");
                    return Ok(Status::OK);
                }
                Status::DELEG_REVOKED => {
                    assert!(deleg.may_be_revoked(), "revoked although nobody waited so long: {deleg:?}");
                    self.ledger.borrow_mut().tally.add("delegation revoked");
                    return self.free(file, deleg.stateid).await;
                }
                Status::BADSESSION => {
                    // It was not judged.
                    self.ledger.borrow_mut().accounts[self.me].delegs.insert(file, deleg);
                    return Ok(Status::BADSESSION);
                }
                other => panic!("DELEGRETURN: {other:?}"),
            }
        }
    }

    /// FREE_STATEID of a delegation that was revoked: from its sending on the record may be clean of it.
    async fn free(&mut self, file: usize, stateid: Stateid) -> Result<Status, Gone> {
        self.ledger.borrow_mut().accounts[self.me].lost.remove(&file);
        let status = self.call(false, &[ArgOp::FreeStateid(FreeStateidArgs { stateid })]).await?.0;
        assert!(matches!(status, Status::OK | Status::BADSESSION), "FREE_STATEID: {status:?}");
        Ok(status)
    }

    async fn open_by(&mut self, file: usize, deleg: HeldDeleg, access: u32) -> Result<Status, Gone> {
        let owner = op::owner(self.conn.as_ref().expect("a session").id, "open-owner");
        let open = op::open(owner, access, 0, OpenHow::NoCreate, OpenClaim::DelegCurFh(deleg.stateid));
        let (status, results) = self.call(true, &[op::put(&self.fh(file)), open]).await?;
        let mut ledger = self.ledger.borrow_mut();
        match (status, granted(&results)) {
            (Status::OK, Some(open)) => {
                let against = ledger.share_against(self.me, file, access, 0);
                ledger.granted_over("an OPEN by a delegation", self.me, &against);
                let account = &mut ledger.accounts[self.me];
                let held = account.held.entry(file).or_insert_with(|| Held {
                    access: 0,
                    deny: 0,
                    asked: Vec::new(),
                    stateid: open.stateid,
                    lock: None,
                    units: [0; UNITS],
                });
                held.access |= access;
                held.asked.push((access, 0));
                held.stateid = open.stateid;
                ledger.tally.add("open by right of a delegation");
            }
            (Status::DELEG_REVOKED, _) => {
                assert!(deleg.may_be_revoked(), "revoked although nobody waited so long: {deleg:?}");
                ledger.lose(self.me, file);
            }
            // A client that denies reading or writing may stand beside a read delegation.
            (Status::SHARE_DENIED, _) => {
                let against = ledger.share_against(self.me, file, access, 0);
                ledger.refusal_is_due("an OPEN by a delegation", self.me, &against);
            }
            (Status::DELAY | Status::BADSESSION, _) => {}
            other => panic!("OPEN by a delegation: {other:?}"),
        }
        Ok(status)
    }

    async fn some_read(&mut self) -> Result<Status, Gone> {
        let Some((file, held)) = self.held().into_iter().find(|(_, h)| h.access & 1 != 0) else {
            return Ok(Status::OK);
        };
        let block = self.dice.roll(BLOCKS as u64) as usize;
        let Some(stamp) = self.ledger.borrow().accounts[self.me].cells[file][block].live else { return Ok(Status::OK) };
        let put = op::put(&self.fh(file));
        let read = op::read(held.stateid, offset_of(self.me, block), BLOCK as u32);
        let (status, results) = self.call(false, &[put, read]).await?;
        match results.last() {
            Some(ResOp::Read(Ok(ok))) => {
                assert!(ok.data == filled(stamp), "READ tells something else than was written")
            }
            _ => assert!(matches!(status, Status::BADSESSION | Status::DELAY), "READ: {status:?}"),
        }
        Ok(status)
    }

    async fn some_change(&mut self) -> Result<Status, Gone> {
        let names = self.ledger.borrow().accounts[self.me].names.clone();
        let there: Vec<String> = names.keys().cloned().collect();
        let free: Vec<&str> = NAMES.into_iter().filter(|n| !names.contains_key(*n)).collect();
        let pick = |of: &[&str], dice: &mut dhow_testkit::Dice| (*dice.pick(of)).to_owned();
        let change = match self.dice.roll(5) {
            0 | 1 if !free.is_empty() => {
                let kind = if self.dice.one_in(2) { Kind::Dir } else { Kind::Link };
                Change::Make(pick(&free, &mut self.dice), kind)
            }
            2 if !there.is_empty() => Change::Remove(self.dice.pick(&there).clone()),
            3 if !there.is_empty() && !free.is_empty() => {
                let to = pick(&free, &mut self.dice);
                Change::Rename(self.dice.pick(&there).clone(), to)
            }
            _ => match names.iter().find(|(_, what)| what.0 == Kind::Dir) {
                // The mode of a symbolic link is nobody's to change.
                Some((name, _)) => Change::Mode(name.clone(), 0o700 | self.dice.roll(0o100) as u32),
                None => return Ok(Status::OK),
            },
        };
        let dir = op::put(&self.ledger.borrow().dirs[self.me]);
        let ops = match &change {
            Change::Make(name, Kind::Dir) => vec![dir, op::mkdir(name)],
            // An OPEN that creates would take state too: that is another step's business.
            Change::Make(name, Kind::Link) => {
                let link = CreateType::Link("target".into());
                vec![dir, op::create(link, name, Attrs::default())]
            }
            Change::Remove(name) => vec![dir, op::remove(name)],
            Change::Rename(old, new) => vec![dir.clone(), ArgOp::SaveFh, dir, op::rename(old, new)],
            Change::Mode(name, mode) => {
                vec![dir, op::lookup(name), op::setattr(Attrs { mode: Some(*mode), ..Attrs::default() })]
            }
        };
        self.ledger.borrow_mut().accounts[self.me].flight = Some(change);
        let status = self.call(false, &ops).await?.0;
        let mut ledger = self.ledger.borrow_mut();
        let account = &mut ledger.accounts[self.me];
        match status {
            Status::OK => {
                let change = account.flight.take().expect("the change in flight");
                change.apply(&mut account.names);
                ledger.tally.add("names changed");
            }
            Status::BADSESSION | Status::DELAY => account.flight = None,
            other => panic!("{:?}: {other:?}", account.flight),
        }
        Ok(status)
    }

    /// The client is started anew while the server runs: its state goes with CREATE_SESSION (RFC 8881 18.35.4, case 5).
    async fn reboot(&mut self) -> Result<Status, Gone> {
        {
            let mut ledger = self.ledger.borrow_mut();
            let account = &mut ledger.accounts[self.me];
            account.held.clear();
            account.ghosts.clear();
            account.delegs.clear();
            account.lost.clear();
            account.busy = true;
            account.unsure = false;
            ledger.tally.add("client rebooted");
        }
        self.incarnation += 1;
        let name = format!("actor {}", self.me);
        self.conn = Some(crate::session::Conn::open(self.life, &name, self.incarnation).await?);
        let status = self.call(false, &[crate::session::COMPLETE]).await?.0;
        assert_eq!(status, Status::OK, "RECLAIM_COMPLETE of a new incarnation");
        Ok(Status::OK)
    }

    /// Cut off for long: the lease ends, what it holds stays until somebody wants it (courtesy).
    async fn silence(&mut self) -> Result<Status, Gone> {
        tokio::time::sleep(Duration::from_secs(60 + self.dice.roll(200))).await;
        let status = self.call(false, &[]).await?.0;
        self.ledger.borrow_mut().tally.add("silent for long");
        Ok(status)
    }
}
