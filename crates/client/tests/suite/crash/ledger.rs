//! What was acknowledged to the callers of the library, and what therefore must hold.

use std::collections::{BTreeMap, BTreeSet};

/// Something with a value that is on stable storage, and others that were sent since and may have got there.
#[derive(Clone, Debug)]
pub struct Cell<T> {
    pub stable: T,
    /// Oldest first.
    pub later: Vec<T>,
}

impl<T: Clone + PartialEq + std::fmt::Debug> Cell<T> {
    pub fn new(stable: T) -> Self {
        Self { stable, later: Vec::new() }
    }

    /// What was sent up to this is stable.
    pub fn settle(&mut self, value: &T) {
        if let Some(at) = self.later.iter().rposition(|v| v == value) {
            self.stable = value.clone();
            self.later.drain(..=at);
        }
    }

    /// The last one sent has got there, and none of the others any more.
    pub fn settle_all(&mut self, value: T) {
        *self = Self::new(value);
    }

    pub fn may_be(&self, value: &T) -> bool {
        self.stable == *value || self.later.contains(value)
    }

    pub fn is_certain(&self) -> bool {
        self.later.is_empty()
    }
}

pub const CLIENTS: usize = 3;
pub const BLOCKS: usize = 4;
pub const NAMES: usize = 4;
/// Ranges of the shared file that are locked.
pub const RANGES: usize = 3;

/// What one client believes to hold.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    pub ranges: BTreeSet<usize>,
    /// It was cut off for so long that the server may have given them to others; it may be told so.
    pub void: bool,
    /// Somebody was given one: it must be told so before it does anything under them.
    pub taken: bool,
}

pub struct Account {
    /// Blocks of its file.
    pub blocks: [Cell<u64>; BLOCKS],
    /// Of its copy: one block.
    pub copy: Cell<u64>,
    /// Names in its directory: what the file says, if there is one.
    pub names: [Cell<Option<u64>>; NAMES],
    pub claims: Claims,
}

#[derive(Default)]
pub struct Tally(pub BTreeMap<&'static str, u64>);

impl Tally {
    pub fn add(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }
}

pub struct Ledger {
    pub accounts: Vec<Account>,
    /// Counters in the ranges of the shared file.
    pub counters: [Cell<u64>; RANGES],
    pub next: u64,
    pub tally: Tally,
}

impl Ledger {
    pub fn new() -> Self {
        let account = |_| Account {
            blocks: std::array::from_fn(|_| Cell::new(0)),
            copy: Cell::new(0),
            names: std::array::from_fn(|_| Cell::new(None)),
            claims: Claims::default(),
        };
        Self {
            accounts: (0..CLIENTS).map(account).collect(),
            counters: std::array::from_fn(|_| Cell::new(0)),
            next: 0,
            tally: Tally::default(),
        }
    }

    pub fn stamp(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A lock was granted.
    pub fn granted(&mut self, who: usize, range: usize) {
        for other in (0..CLIENTS).filter(|o| *o != who) {
            let claims = &mut self.accounts[other].claims;
            if claims.ranges.contains(&range) && !claims.taken {
                assert!(claims.void, "range {range} was granted to {who} although {other} holds it");
                claims.taken = true;
                self.tally.add("lock taken from who was cut off");
            }
        }
        self.accounts[who].claims.ranges.insert(range);
        self.tally.add("lock");
    }

    /// Something was done under a lock, and nobody said that it is lost.
    pub fn done_under(&mut self, who: usize) {
        let claims = &mut self.accounts[who].claims;
        assert!(!claims.taken, "{who} was not told that its lock is lost");
        claims.void = false;
    }

    /// The library said that a lock is lost.
    pub fn told(&mut self, who: usize) {
        let claims = std::mem::take(&mut self.accounts[who].claims);
        assert!(claims.void, "{who} lost a lock although it was there all the time: {claims:?}");
        self.tally.add("loss of a lock reported");
    }
}
