//! What a client does: opens, locks, data, names, and nothing for a long time.

use crate::actor::{Actor, LATE};
use crate::ledger::{BLOCKS, Change, FILES, Held, Kind, Standing, UNITS};
use crate::session::Gone;
use dhow_proto::v4::ops::{CopyRes, CreateType, LockRes};
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
        let status = match self.dice.roll(100) {
            0..22 => self.some_open().await?,
            22..30 => self.some_close().await?,
            30..34 => self.some_downgrade().await?,
            34..46 => self.some_lock().await?,
            46..51 => self.some_unlock().await?,
            51..68 => self.some_write().await?,
            68..74 => self.some_commit().await?,
            74..79 => self.some_copy().await?,
            79..83 => self.some_read().await?,
            83..97 => self.some_change().await?,
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
        let (against, own, complete) = {
            let mut ledger = self.ledger.borrow_mut();
            let against = ledger.share_against(self.me, file, access, deny);
            ledger.wanted(&against);
            let own = ledger.accounts[self.me].held.get(&file).cloned();
            // An open conflicts with the same owner's too (RFC 8881 9.7).
            let own_stands = own.as_ref().is_some_and(|h| access & h.deny != 0 || deny & h.access != 0);
            (against, own_stands, ledger.all_complete())
        };
        let got = self.open(file, access, deny).await?;
        let mut ledger = self.ledger.borrow_mut();
        match got {
            Ok(stateid) => {
                assert!(!own, "an OPEN was granted against the same owner's");
                let now = ledger.share_against(self.me, file, access, deny);
                ledger.granted_over("an OPEN", self.me, &now);
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
                if !own {
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
            op::copy(src_id, dst_id, offsets, BLOCK, true),
        ];
        let (status, results) = self.call(false, &ops).await?;
        let Some(ResOp::Copy(CopyRes::Ok(ok))) = results.last() else {
            assert!(matches!(status, Status::IO | Status::BADSESSION | Status::DELAY), "COPY: {status:?} {results:?}");
            return Ok(status);
        };
        let mut ledger = self.ledger.borrow_mut();
        let account = &mut ledger.accounts[self.me];
        if ok.response.count != BLOCK || !ok.response.callback_id.is_empty() {
            // A source that ends before the block, or one of no bytes: only what was there before is certain.
            return Ok(Status::OK);
        }
        account.cells[dst][to].live = Some(stamp);
        if ok.response.committed == StableHow::UNSTABLE {
            account.unstable.push((dst, to, stamp, ok.response.verifier));
            ledger.tally.add("unstable copy");
        } else {
            account.cells[dst][to].settle(stamp);
            ledger.tally.add("stable copy");
        }
        ledger.verifier(ok.response.verifier);
        Ok(Status::OK)
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
        let pick = |of: &[&str], dice: &mut crate::dice::Dice| (*dice.pick(of)).to_owned();
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
