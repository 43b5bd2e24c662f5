//! What was acknowledged, by whom, and what therefore must hold after a crash.
//!
//! Rules by which it is kept. What a client holds counts from the reply that grants it to the *sending* of the call that
//! gives it up (afterwards nobody knows, so nobody may rely on either). A block's content is the last acknowledged stable
//! write, or anything that was sent after that. Names are the model's, or the model's with the one change in flight.

use crate::power::LEASE;
use dhow_proto::v4::{FileHandle, Stateid, Verifier};
use std::collections::{BTreeMap, HashSet};
use tokio::time::Instant;

pub const ACTORS: usize = 4;
pub const FILES: usize = 4;
/// Blocks of each actor in each file.
pub const BLOCKS: usize = 3;
/// Units that locks are taken in.
pub const UNITS: usize = 12;

/// One block: what a crash may leave in it.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    pub stable: u64,
    /// Sent after the stable one, oldest first; not known to be stable.
    pub later: Vec<u64>,
    /// What a READ must tell; `None`: a write failed, nobody knows.
    pub live: Option<u64>,
}

impl Cell {
    /// What was sent up to `stamp` is stable.
    pub fn settle(&mut self, stamp: u64) {
        if let Some(at) = self.later.iter().position(|s| *s == stamp) {
            self.later.drain(..=at);
            self.stable = stamp;
        }
    }
}

/// An open file of an actor.
#[derive(Clone, Debug)]
pub struct Held {
    pub access: u32,
    pub deny: u32,
    /// Values that were asked for, which OPEN_DOWNGRADE may go back to.
    pub asked: Vec<(u32, u32)>,
    pub stateid: Stateid,
    pub lock: Option<Stateid>,
    /// 0: not locked, 1: shared, 2: exclusive.
    pub units: [u8; UNITS],
}

impl Held {
    fn stands_against(&self, access: u32, deny: u32) -> bool {
        access & self.deny != 0 || deny & self.access != 0
    }

    fn locks_against(&self, units: std::ops::Range<usize>, exclusive: bool) -> bool {
        self.units[units].iter().any(|u| *u == 2 || *u == 1 && exclusive)
    }
}

/// A delegation of an actor: from the reply that grants it to the sending of the DELEGRETURN.
#[derive(Clone, Copy, Debug)]
pub struct HeldDeleg {
    pub stateid: Stateid,
    pub write: bool,
    /// The client was asked for it.
    pub recalled: bool,
    /// Since when, at the earliest, the server knows that somebody wants what it stands against.
    pub wanted: Option<Instant>,
    /// The server may have revoked it in an earlier life.
    pub doubtful: bool,
}

impl HeldDeleg {
    /// RFC 8881 10.4.
    fn stands_against(&self, access: u32, deny: u32) -> bool {
        self.write || access & 2 != 0 || deny & 1 != 0
    }

    /// Whether it may have been revoked by now (10.4.5): its recall was not heeded in a lease time.
    pub fn may_be_revoked(&self) -> bool {
        let slack = std::time::Duration::from_secs(1);
        self.doubtful || self.wanted.is_some_and(|t| t.elapsed() + slack > LEASE)
    }
}

/// Whether the server must let an actor reclaim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It has no durable record, for certain.
    No,
    /// It may have one: a reply that would tell was lost.
    Perhaps,
    /// It has one.
    Yes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Link,
    Dir,
}

/// A change of names.
#[derive(Clone, Debug)]
pub enum Change {
    Make(String, Kind),
    Remove(String),
    Rename(String, String),
    Mode(String, u32),
}

impl Account {
    /// Whether the server may find that it has nothing that keeps it (what was revoked does not).
    pub fn may_have_nothing(&self) -> bool {
        self.held.is_empty() && self.delegs.values().all(HeldDeleg::may_be_revoked)
    }
}

pub type Names = BTreeMap<String, (Kind, u32)>;

impl Change {
    pub fn apply(&self, names: &mut Names) {
        match self {
            Self::Make(name, kind) => {
                names.insert(name.clone(), (*kind, if *kind == Kind::Dir { 0o755 } else { 0o777 }));
            }
            Self::Remove(name) => {
                names.remove(name);
            }
            Self::Rename(old, new) => {
                if let Some(what) = names.remove(old) {
                    names.insert(new.clone(), what);
                }
            }
            Self::Mode(name, mode) => {
                if let Some(what) = names.get_mut(name) {
                    what.1 = *mode;
                }
            }
        }
    }
}

/// What the ledger says of one actor.
pub struct Account {
    pub standing: Standing,
    /// By file.
    pub held: BTreeMap<usize, Held>,
    pub delegs: BTreeMap<usize, HeldDeleg>,
    /// Delegations that were revoked for certain, which it has not freed: not to be reclaimed.
    pub lost: BTreeMap<usize, HeldDeleg>,
    /// What it held once and somebody else may have had since: not to be reclaimed.
    pub ghosts: BTreeMap<usize, Held>,
    /// The server may have ended this client already: somebody asked for what it held when its lease had ended.
    pub unsure: bool,
    /// When the server heard of it last (the sending of the last answered call); `None`: not in this life.
    pub heard: Option<Instant>,
    /// A call of it is under way, which may give state or take it.
    pub busy: bool,
    /// It has sent RECLAIM_COMPLETE in this life (answered or not), and had the answer.
    pub complete_sent: bool,
    pub complete: bool,
    /// By file and block.
    pub cells: Vec<[Cell; BLOCKS]>,
    /// Unstable writes that were answered: file, block, stamp, verifier.
    pub unstable: Vec<(usize, usize, u64, Verifier)>,
    pub names: Names,
    pub flight: Option<Change>,
}

/// What happened, for the coverage that the test asserts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally(pub BTreeMap<&'static str, u64>);

impl Tally {
    pub fn add(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }
}

pub struct Ledger {
    pub accounts: Vec<Account>,
    pub files: Vec<FileHandle>,
    pub dirs: Vec<FileHandle>,
    /// The stranger's file.
    pub stranger: Option<FileHandle>,
    /// Clients that may have a record and never come back.
    pub strays: usize,
    /// Such of this life.
    pub new_strays: usize,
    /// Write verifiers of earlier lives.
    pub old_verifiers: HashSet<[u8; 8]>,
    /// Of this life.
    pub verifiers: HashSet<[u8; 8]>,
    pub began: Instant,
    pub next_stamp: u64,
    pub tally: Tally,
}

impl Ledger {
    pub fn new() -> Self {
        let account = || Account {
            standing: Standing::No,
            held: BTreeMap::new(),
            delegs: BTreeMap::new(),
            lost: BTreeMap::new(),
            ghosts: BTreeMap::new(),
            unsure: false,
            heard: None,
            busy: false,
            complete_sent: false,
            complete: false,
            cells: (0..FILES).map(|_| Default::default()).collect(),
            unstable: Vec::new(),
            names: Names::new(),
            flight: None,
        };
        Self {
            accounts: (0..ACTORS).map(|_| account()).collect(),
            files: Vec::new(),
            dirs: Vec::new(),
            stranger: None,
            strays: 0,
            new_strays: 0,
            old_verifiers: HashSet::new(),
            verifiers: HashSet::new(),
            began: Instant::now(),
            next_stamp: 1,
            tally: Tally::default(),
        }
    }

    pub fn stamp(&mut self) -> u64 {
        self.next_stamp += 1;
        self.next_stamp
    }

    /// A verifier came with a reply: none of an earlier life's (RFC 8881 18.32.4).
    pub fn verifier(&mut self, v: Verifier) {
        assert!(!self.old_verifiers.contains(&v.0), "the write verifier is one from before a crash");
        self.verifiers.insert(v.0);
    }

    pub fn expired(&self, who: usize) -> bool {
        // A second of room: when exactly the server heard is its own business.
        self.accounts[who].heard.is_none_or(|t| t.elapsed() + std::time::Duration::from_secs(1) > LEASE)
    }

    /// Whose state an OPEN or LOCK stands against.
    fn against(&self, me: usize, file: usize, test: impl Fn(&Held) -> bool) -> Vec<usize> {
        (0..ACTORS).filter(|a| *a != me && self.accounts[*a].held.get(&file).is_some_and(&test)).collect()
    }

    pub fn share_against(&self, me: usize, file: usize, access: u32, deny: u32) -> Vec<usize> {
        self.against(me, file, |h| h.stands_against(access, deny))
    }

    pub fn lock_against(&self, me: usize, file: usize, units: std::ops::Range<usize>, exclusive: bool) -> Vec<usize> {
        self.against(me, file, |h| h.locks_against(units.clone(), exclusive))
    }

    /// Something is about to be asked for that these hold: those whose lease has ended may lose all they have.
    pub fn wanted(&mut self, of: &[usize]) {
        for a in of {
            if self.expired(*a) {
                self.accounts[*a].unsure = true;
            }
        }
    }

    /// It was granted although these hold it: their leases must have ended, and everything of theirs is gone.
    pub fn granted_over(&mut self, what: &str, me: usize, of: &[usize]) {
        for a in of {
            assert!(
                self.expired(*a),
                "{what} was granted to {me} although {a} holds against it: {:?}",
                self.accounts[*a].held
            );
            self.tally.add("taken from a client whose lease had ended");
            self.bury(*a);
        }
    }

    /// All that an actor held is lost to it, and its record is gone.
    pub fn bury(&mut self, who: usize) {
        let account = &mut self.accounts[who];
        let held = std::mem::take(&mut account.held);
        account.ghosts.extend(held);
        account.delegs.clear();
        account.lost.clear();
        account.standing = Standing::No;
        account.unsure = false;
    }

    /// Whose delegations an OPEN stands against.
    fn delegs_against(&self, me: usize, file: usize, access: u32, deny: u32) -> Vec<usize> {
        let against =
            |a: &usize| *a != me && self.accounts[*a].delegs.get(&file).is_some_and(|d| d.stands_against(access, deny));
        (0..ACTORS).filter(against).collect()
    }

    /// An OPEN is about to be sent, which recalls what it stands against.
    ///
    /// Whether there is any: then it waits a little, and its holder may open the file meanwhile.
    pub fn wanted_delegs(&mut self, me: usize, file: usize, access: u32, deny: u32) -> bool {
        let against = self.delegs_against(me, file, access, deny);
        for a in &against {
            let a = *a;
            let expired = self.expired(a);
            let account = &mut self.accounts[a];
            account.unsure |= expired;
            let deleg = account.delegs.get_mut(&file).expect("it is held");
            deleg.wanted.get_or_insert_with(Instant::now);
        }
        !against.is_empty()
    }

    /// It was granted: each such delegation was revoked, or its client has ended.
    pub fn granted_over_delegs(&mut self, what: &str, me: usize, file: usize, access: u32, deny: u32) {
        for a in self.delegs_against(me, file, access, deny) {
            let deleg = self.accounts[a].delegs[&file];
            let expired = self.expired(a);
            if deleg.may_be_revoked() {
                self.lose(a, file);
                self.accounts[a].unsure |= expired;
            } else {
                assert!(expired, "{what} was granted to {me} although {a} holds a delegation: {deleg:?}");
                self.tally.add("taken from a client whose lease had ended");
                self.bury(a);
            }
        }
    }

    /// A delegation was revoked, for certain.
    pub fn lose(&mut self, who: usize, file: usize) {
        let account = &mut self.accounts[who];
        if let Some(deleg) = account.delegs.remove(&file) {
            account.lost.insert(file, deleg);
            self.tally.add("delegation revoked");
        }
    }

    /// A delegation was granted: there is nobody whom it would exclude (RFC 8881 10.4).
    pub fn delegated(&mut self, me: usize, file: usize, write: bool) {
        for a in (0..ACTORS).filter(|a| *a != me) {
            let account = &self.accounts[a];
            let open = account.held.get(&file).is_some_and(|h| write || h.access & 2 != 0);
            let deleg = account.delegs.get(&file).filter(|d| write || d.write);
            if open || deleg.is_some_and(|d| !d.may_be_revoked()) {
                // It was ended, or did not come back in time after the restart.
                let gone = self.expired(a) && (account.unsure || account.heard.is_none());
                assert!(gone, "a delegation was given to {me} beside what {a} holds: {:?}, {deleg:?}", account.held);
                self.bury(a);
            } else if deleg.is_some() {
                self.lose(a, file);
            }
        }
    }

    /// A refusal must have a reason: these hold it, or a call is under way that may have taken it, or not given it up.
    pub fn refusal_is_due(&self, what: &str, me: usize, of: &[usize]) {
        let busy = (0..ACTORS).any(|a| a != me && self.accounts[a].busy);
        assert!(busy || !of.is_empty(), "{what} was refused to {me} although nobody holds against it");
    }

    /// Everybody who may have a record of the life before has said RECLAIM_COMPLETE, and had the answer.
    pub fn all_complete(&self) -> bool {
        self.strays == 0 && self.accounts.iter().all(|a| a.complete || a.standing == Standing::No)
    }

    /// Somebody who has a record has not said so, for certain.
    pub fn somebody_reclaims(&self) -> bool {
        self.accounts.iter().any(|a| a.standing == Standing::Yes && !a.complete_sent && !a.unsure && a.heard.is_none())
    }
}
