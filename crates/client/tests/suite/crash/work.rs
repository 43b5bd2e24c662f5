//! What is done through the library.

use super::ledger::{BLOCKS, Ledger, NAMES, RANGES};
use bytes::Bytes;
use dhow_client::v4::{StableHow, Status};
use dhow_client::{Client, CopyOptions, Create, Error, File, Lost, OpenOptions, PutOptions};
use dhow_testkit::Dice;
use std::cell::{Cell, RefCell};
use std::time::Duration;

pub const BLOCK: u64 = 512;
/// Bytes from one range of the shared file to the next.
const RANGE: u64 = 16;

pub fn filled(stamp: u64) -> Bytes {
    Bytes::from(stamp.to_be_bytes().repeat(BLOCK as usize / 8))
}

/// The stamp that all of a block is of; 0 where there is nothing.
pub fn stamp_of(block: &[u8]) -> u64 {
    let word = |b: &[u8]| b.try_into().map_or(0, u64::from_be_bytes);
    let first = block.get(..8).map_or(0, word);
    assert!(block.chunks(8).all(|b| word(b) == first), "a block of two writes");
    assert!(first == 0 || block.len() == BLOCK as usize, "a block that is cut short");
    first
}

pub fn rw() -> OpenOptions {
    OpenOptions::read_write().create(Create::IfMissing, 0o644)
}

/// A server that has said "later" for minutes, which several crashes in a row make it do: the step is left.
fn later(e: &Error) -> bool {
    e.is(Status::GRACE) || e.is(Status::DELAY)
}

/// One worker: everything it does is one after the other.
pub struct Worker<'a> {
    pub who: usize,
    pub client: Client,
    pub ledger: &'a RefCell<Ledger>,
    pub dice: Dice,
    pub stop: &'a Cell<bool>,
}

impl Worker<'_> {
    fn add(&self, what: &'static str) {
        self.ledger.borrow_mut().tally.add(what);
    }

    async fn pause(&mut self) -> bool {
        tokio::time::sleep(Duration::from_millis(self.dice.roll(3000))).await;
        !self.stop.get()
    }

    /// Data in a file that stays open.
    pub async fn data(mut self) {
        let fs = self.client.fs();
        let (name, copy_name) = (format!("w{}", self.who), format!("c{}", self.who));
        let mut file = fs.open(&name, &rw()).await.unwrap();
        let copy = fs.open(&copy_name, &rw()).await.unwrap();
        let mut unstable = Vec::new();
        while self.pause().await {
            match self.dice.roll(10) {
                0..5 => self.write(&file, &mut unstable).await,
                5 | 6 => self.commit(&file, &mut unstable).await,
                7 => self.read(&file).await,
                8 => self.copy(&file, &copy).await,
                _ => {
                    file.close().await.unwrap();
                    file = fs.open(&name, &rw()).await.unwrap();
                    self.add("close and open");
                }
            }
        }
        file.close().await.unwrap();
        copy.close().await.unwrap();
    }

    async fn write(&mut self, file: &File, unstable: &mut Vec<(usize, u64, dhow_client::v4::Verifier)>) {
        let block = self.dice.roll(BLOCKS as u64) as usize;
        let how = if self.dice.roll(3) == 0 { StableHow::FILE_SYNC } else { StableHow::UNSTABLE };
        let stamp = {
            let mut ledger = self.ledger.borrow_mut();
            let stamp = ledger.stamp();
            ledger.accounts[self.who].blocks[block].later.push(stamp);
            stamp
        };
        match file.write_all_at(block as u64 * BLOCK, filled(stamp), how).await {
            Ok(wrote) if wrote.committed == StableHow::UNSTABLE => unstable.push((block, stamp, wrote.verifier)),
            Ok(_) => {
                self.ledger.borrow_mut().accounts[self.who].blocks[block].settle(&stamp);
                unstable.retain(|u| u.0 != block);
                self.add("stable write");
            }
            Err(e) => assert!(later(&e), "WRITE: {e}"),
        }
    }

    async fn commit(&mut self, file: &File, unstable: &mut Vec<(usize, u64, dhow_client::v4::Verifier)>) {
        let now = match file.commit(0, 0).await {
            Ok(now) => now,
            Err(e) => return assert!(later(&e), "COMMIT: {e}"),
        };
        for (block, stamp, verifier) in std::mem::take(unstable) {
            if verifier == now {
                self.ledger.borrow_mut().accounts[self.who].blocks[block].settle(&stamp);
                self.add("committed write");
            } else {
                self.add("loss of an unstable write reported");
            }
        }
    }

    async fn read(&mut self, file: &File) {
        let block = self.dice.roll(BLOCKS as u64) as usize;
        match file.read_full_at(block as u64 * BLOCK, BLOCK as u32).await {
            Ok(read) => {
                let found = stamp_of(&read.data);
                let ledger = self.ledger.borrow();
                let cell = &ledger.accounts[self.who].blocks[block];
                assert!(cell.may_be(&found), "READ tells {found}: {cell:?}");
            }
            Err(e) => assert!(later(&e), "READ: {e}"),
        }
    }

    async fn copy(&mut self, file: &File, copy: &File) {
        // Of something that is certain to be there.
        let stamp = {
            let mut ledger = self.ledger.borrow_mut();
            let stamp = ledger.stamp();
            ledger.accounts[self.who].blocks[0].later.push(stamp);
            stamp
        };
        match file.write_all_at(0, filled(stamp), StableHow::FILE_SYNC).await {
            Ok(_) => self.ledger.borrow_mut().accounts[self.who].blocks[0].settle(&stamp),
            Err(e) => return assert!(later(&e), "WRITE: {e}"),
        }
        self.ledger.borrow_mut().accounts[self.who].copy.later.push(stamp);
        let options = CopyOptions { synchronous: self.dice.roll(2) == 0, durable: true };
        match file.copy_to(0, copy, 0, BLOCK, &options, |_| {}).await {
            Ok(copied) => {
                assert!(copied.is_durable() && copied.bytes == BLOCK, "{copied:?}");
                self.ledger.borrow_mut().accounts[self.who].copy.settle(&stamp);
                self.add("durable copy");
            }
            Err(Error::CopyLost | Error::WritesLost | Error::OutcomeUnknown { .. }) => self.add("copy in doubt"),
            Err(e) => assert!(later(&e), "COPY: {e}"),
        }
    }

    /// Whole files, and their names.
    pub async fn names(mut self) {
        let fs = self.client.fs();
        let path = |n: usize, who: usize| format!("d{who}/n{n}");
        while self.pause().await {
            let (a, b) = (self.dice.roll(NAMES as u64) as usize, self.dice.roll(NAMES as u64) as usize);
            let unclear = {
                let ledger = self.ledger.borrow();
                let names = &ledger.accounts[self.who].names;
                [a, b].into_iter().find(|n| !names[*n].is_certain())
            };
            if let Some(n) = unclear {
                self.look(&path(n, self.who), n).await;
                continue;
            }
            let there = |n: usize| self.ledger.borrow().accounts[self.who].names[n].stable;
            let change: Vec<(usize, Option<u64>)> = match (self.dice.roll(4), there(a)) {
                (0, Some(_)) => vec![(a, None)],
                (1, Some(stamp)) if a != b => vec![(a, None), (b, Some(stamp))],
                _ => vec![(a, Some(self.ledger.borrow_mut().stamp()))],
            };
            for (n, value) in &change {
                self.ledger.borrow_mut().accounts[self.who].names[*n].later.push(*value);
            }
            let done = match change[..] {
                [(n, Some(stamp))] => {
                    let via = Some(Bytes::from(format!(".n{n}.part")));
                    let options = PutOptions { via, ..PutOptions::default() };
                    fs.put(&path(n, self.who), filled(stamp), &options).await.map(drop)
                }
                [(n, None)] => fs.remove(&path(n, self.who)).await,
                _ => fs.rename(&path(a, self.who), &path(b, self.who)).await,
            };
            match done {
                Ok(()) => {
                    for (n, value) in change {
                        self.ledger.borrow_mut().accounts[self.who].names[n].settle_all(value);
                    }
                    self.add("names changed");
                }
                Err(Error::OutcomeUnknown { .. }) => self.add("names in doubt"),
                Err(e) => assert!(later(&e), "names: {e}"),
            }
        }
    }

    /// Finds out what became of a name.
    async fn look(&mut self, path: &str, n: usize) {
        let found = match self.client.fs().get(path, 2 * BLOCK as u32).await {
            Ok(got) => Some(stamp_of(&got.expect("it is short").1)),
            Err(e) if e.is(Status::NOENT) => None,
            Err(e) => return assert!(later(&e), "{path}: {e}"),
        };
        let mut ledger = self.ledger.borrow_mut();
        let cell = &mut ledger.accounts[self.who].names[n];
        assert!(cell.may_be(&found), "{path} is {found:?}: {cell:?}");
        cell.settle_all(found);
    }

    /// Locks in a file that all clients share, and counters under them.
    pub async fn locks(mut self) {
        let fs = self.client.fs();
        let mut file = fs.open("shared", &rw()).await.unwrap();
        while self.pause().await {
            let held: Vec<usize> = self.ledger.borrow().accounts[self.who].claims.ranges.iter().copied().collect();
            let done = match (self.dice.roll(4), held.is_empty()) {
                (_, true) | (0, _) => {
                    let free: Vec<usize> = (0..RANGES).filter(|r| !held.contains(r)).collect();
                    match free.is_empty() {
                        true => Ok(()),
                        false => {
                            let range = *self.dice.pick(&free);
                            self.lock(&file, range).await
                        }
                    }
                }
                (1, _) => self.unlock(&file, held[0]).await,
                _ => self.count(&file, held[0]).await,
            };
            match done {
                Ok(()) => {}
                Err(Error::StateLost { what: Lost::Lock, .. }) => {
                    self.ledger.borrow_mut().told(self.who);
                    // It says so once more.
                    let closed = file.close().await;
                    assert!(matches!(closed, Err(Error::StateLost { what: Lost::Lock, .. })), "{closed:?}");
                    file = fs.open("shared", &rw()).await.unwrap();
                }
                Err(e) => assert!(later(&e), "shared: {e}"),
            }
        }
        self.ledger.borrow_mut().accounts[self.who].claims = Default::default();
        match file.close().await {
            Ok(()) | Err(Error::StateLost { what: Lost::Lock, .. }) => {}
            Err(e) => panic!("CLOSE: {e}"),
        }
    }

    async fn lock(&mut self, file: &File, range: usize) -> Result<(), Error> {
        let granted = file.try_lock(true, range as u64 * RANGE, RANGE).await?.is_none();
        let mut ledger = self.ledger.borrow_mut();
        if granted {
            ledger.done_under(self.who);
            ledger.granted(self.who, range);
        } else {
            ledger.tally.add("lock denied");
        }
        Ok(())
    }

    async fn unlock(&mut self, file: &File, range: usize) -> Result<(), Error> {
        // From here on others may have it.
        self.ledger.borrow_mut().accounts[self.who].claims.ranges.remove(&range);
        file.unlock(range as u64 * RANGE, RANGE).await
    }

    /// Read, add one, write: what a lock is for.
    async fn count(&mut self, file: &File, range: usize) -> Result<(), Error> {
        let at = range as u64 * RANGE;
        let read = file.read_full_at(at, 8).await?;
        let word: [u8; 8] = read.data[..].try_into().unwrap_or_default();
        let found = u64::from_be_bytes(word);
        {
            let mut ledger = self.ledger.borrow_mut();
            ledger.done_under(self.who);
            let counter = &mut ledger.counters[range];
            assert!(counter.may_be(&found), "the counter under a lock is {found}: {counter:?}");
            counter.settle_all(found);
            counter.later.push(found + 1);
        }
        let next = Bytes::copy_from_slice(&(found + 1).to_be_bytes());
        file.write_all_at(at, next, StableHow::FILE_SYNC).await?;
        let mut ledger = self.ledger.borrow_mut();
        ledger.done_under(self.who);
        ledger.counters[range].settle(&(found + 1));
        ledger.tally.add("counted under a lock");
        Ok(())
    }
}
