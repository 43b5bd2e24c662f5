//! Byte-range locks of one file: a plain data structure, with POSIX semantics (RFC 8881 9.1, 18.10, 18.12).
//!
//! Invariants: ranges of one owner never overlap, and touching ranges of one owner and kind are one range; ranges of
//! two owners overlap only if both are shared. The list is sorted by first byte.

use crate::types::Status;

/// A range of bytes, first and last included; `u64::MAX` as last is "to the end of the file, however long it gets".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Range {
    /// First byte.
    pub first: u64,
    /// Last byte.
    pub last: u64,
}

impl Range {
    /// From the wire's offset and length (RFC 8881 18.10.3).
    ///
    /// # Errors
    ///
    /// INVAL for length 0, and if the sum exceeds 64 bits unless the length says "to the end of the file".
    pub fn new(offset: u64, length: u64) -> Result<Self, Status> {
        let last = match length {
            0 => return Err(Status::INVAL),
            u64::MAX => u64::MAX,
            n => offset.checked_add(n).ok_or(Status::INVAL)? - 1,
        };
        Ok(Self { first: offset, last })
    }

    /// The wire's offset and length.
    pub fn offset_length(self) -> (u64, u64) {
        (self.first, if self.last == u64::MAX { u64::MAX } else { self.last - self.first + 1 })
    }

    fn overlaps(self, o: Self) -> bool {
        self.first <= o.last && o.first <= self.last
    }

    /// Overlapping or adjacent.
    fn touches(self, o: Self) -> bool {
        self.first <= o.last.saturating_add(1) && o.first <= self.last.saturating_add(1)
    }
}

/// Shared or exclusive (READ_LT, WRITE_LT).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LockKind {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
}

/// A range that is locked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Held<O> {
    /// The range.
    pub range: Range,
    /// Shared or exclusive.
    pub kind: LockKind,
    /// By whom.
    pub owner: O,
}

/// The locks of one file.
#[derive(Clone, Debug)]
pub struct LockSet<O> {
    held: Vec<Held<O>>,
}

impl<O> Default for LockSet<O> {
    fn default() -> Self {
        Self { held: Vec::new() }
    }
}

impl<O: Clone + Eq> LockSet<O> {
    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether nothing is locked.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// All ranges, sorted by first byte.
    pub fn iter(&self) -> impl Iterator<Item = &Held<O>> {
        self.held.iter()
    }

    /// Whether `owner` holds any lock.
    pub fn has(&self, owner: &O) -> bool {
        self.held.iter().any(|h| h.owner == *owner)
    }

    /// The locks of others that stand against `owner` locking `range`.
    pub fn conflicts<'a>(
        &'a self,
        owner: &'a O,
        range: Range,
        kind: LockKind,
    ) -> impl Iterator<Item = &'a Held<O>> + 'a {
        self.held
            .iter()
            .take_while(move |h| h.range.first <= range.last)
            .filter(move |h| conflicting(h, owner, range, kind))
    }

    /// Locks `range` for `owner`, replacing what it held there. The caller has looked for conflicts.
    pub fn lock(&mut self, owner: &O, mut range: Range, kind: LockKind) {
        self.unlock(owner, range);
        self.held.retain(|h| {
            let joins = h.owner == *owner && h.kind == kind && h.range.touches(range);
            if joins {
                range = Range { first: range.first.min(h.range.first), last: range.last.max(h.range.last) };
            }
            !joins
        });
        let at = self.held.partition_point(|h| h.range.first <= range.first);
        self.held.insert(at, Held { range, kind, owner: owner.clone() });
    }

    /// Unlocks `range` for `owner`; what of its locks lies outside stays.
    pub fn unlock(&mut self, owner: &O, range: Range) {
        let mut tails = Vec::new();
        self.held.retain_mut(|h| {
            if h.owner != *owner || !h.range.overlaps(range) {
                return true;
            }
            if h.range.last > range.last {
                let tail = Range { first: range.last + 1, last: h.range.last };
                tails.push(Held { range: tail, kind: h.kind, owner: h.owner.clone() });
            }
            if h.range.first < range.first {
                h.range.last = range.first - 1;
                return true;
            }
            false
        });
        for t in tails {
            let at = self.held.partition_point(|h| h.range.first <= t.range.first);
            self.held.insert(at, t);
        }
    }

    /// Gives up all locks of `owner`; whether there were any.
    pub fn release(&mut self, owner: &O) -> bool {
        let before = self.held.len();
        self.held.retain(|h| h.owner != *owner);
        self.held.len() < before
    }
}

/// Whether `held` stands against `owner` locking `range`.
pub(crate) fn conflicting<O: Eq>(held: &Held<O>, owner: &O, range: Range, kind: LockKind) -> bool {
    held.owner != *owner && held.range.overlaps(range) && (kind == LockKind::Write || held.kind == LockKind::Write)
}

#[cfg(test)]
mod tests {
    use super::LockKind::{Read, Write};
    use super::*;
    use proptest::prelude::*;

    fn r(first: u64, last: u64) -> Range {
        Range { first, last }
    }

    fn list(s: &LockSet<u8>) -> Vec<(u64, u64, LockKind, u8)> {
        s.iter().map(|h| (h.range.first, h.range.last, h.kind, h.owner)).collect()
    }

    #[test]
    fn wire_ranges() {
        // RFC 8881 18.10.3.
        assert_eq!(Range::new(5, 0), Err(Status::INVAL));
        assert_eq!(Range::new(u64::MAX, 1), Err(Status::INVAL), "the sum exceeds 64 bits");
        assert_eq!(Range::new(1, u64::MAX - 1), Ok(r(1, u64::MAX - 1)));
        assert_eq!(Range::new(2, u64::MAX - 1), Err(Status::INVAL));
        assert_eq!(Range::new(u64::MAX, u64::MAX), Ok(r(u64::MAX, u64::MAX)));
        assert_eq!(Range::new(0, u64::MAX), Ok(r(0, u64::MAX)));
        assert_eq!(Range::new(7, 3), Ok(r(7, 9)));
        for (o, l) in [(0, u64::MAX), (7, 3), (9, u64::MAX), (0, 1)] {
            assert_eq!(Range::new(o, l).unwrap().offset_length(), (o, l));
        }
    }

    #[test]
    fn touching_ranges_of_one_kind_join() {
        let mut s = LockSet::default();
        s.lock(&1, r(0, 9), Write);
        s.lock(&1, r(20, 29), Write);
        s.lock(&1, r(10, 19), Write);
        assert_eq!(list(&s), [(0, 29, Write, 1)]);
        s.lock(&1, r(30, u64::MAX), Read);
        assert_eq!(list(&s), [(0, 29, Write, 1), (30, u64::MAX, Read, 1)]);
    }

    #[test]
    fn unlock_in_the_middle_splits() {
        let mut s = LockSet::default();
        s.lock(&1, r(0, u64::MAX), Write);
        s.unlock(&1, r(10, 19));
        assert_eq!(list(&s), [(0, 9, Write, 1), (20, u64::MAX, Write, 1)]);
        s.unlock(&1, r(0, 0));
        s.unlock(&1, r(u64::MAX, u64::MAX));
        assert_eq!(list(&s), [(1, 9, Write, 1), (20, u64::MAX - 1, Write, 1)]);
        s.unlock(&2, r(0, u64::MAX));
        assert_eq!(s.len(), 2, "another owner's unlock changes nothing");
    }

    #[test]
    fn a_part_changes_kind() {
        // Upgrade and downgrade, RFC 8881 9.3.
        let mut s = LockSet::default();
        s.lock(&1, r(0, 99), Read);
        s.lock(&1, r(40, 59), Write);
        assert_eq!(list(&s), [(0, 39, Read, 1), (40, 59, Write, 1), (60, 99, Read, 1)]);
        s.lock(&1, r(40, 59), Read);
        assert_eq!(list(&s), [(0, 99, Read, 1)]);
    }

    #[test]
    fn conflicts_are_between_owners_only() {
        let mut s = LockSet::default();
        s.lock(&1, r(10, 19), Read);
        s.lock(&2, r(15, 24), Read);
        assert_eq!(s.conflicts(&3, r(0, u64::MAX), Read).count(), 0);
        assert_eq!(s.conflicts(&3, r(0, u64::MAX), Write).count(), 2);
        assert_eq!(s.conflicts(&1, r(0, 14), Write).count(), 0, "one's own lock is no conflict");
        assert_eq!(s.conflicts(&1, r(0, 15), Write).next().map(|h| h.owner), Some(2));
        assert_eq!(s.conflicts(&3, r(25, u64::MAX), Write).count(), 0);
        assert_eq!(s.conflicts(&3, r(0, 9), Write).count(), 0);
        assert!(s.release(&1));
        assert!(!s.release(&1));
        assert!(!s.has(&1) && s.has(&2));
    }

    /// The reference: for each owner one cell for each byte at both ends, and one for all that lies between.
    #[derive(Default)]
    struct Model([[Option<LockKind>; CELLS]; 3]);

    const CELLS: usize = 13;

    /// First byte of a cell.
    fn first(i: usize) -> u64 {
        if i > 6 { u64::MAX - (CELLS - 1 - i) as u64 } else { i as u64 }
    }

    /// The range of some cells.
    fn cells(a: usize, b: usize) -> Range {
        r(first(a), if b == 6 { first(7) - 1 } else { first(b) })
    }

    impl Model {
        fn set(&mut self, o: usize, a: usize, b: usize, k: Option<LockKind>) {
            self.0[o][a..=b].fill(k);
        }

        fn conflict(&self, o: usize, a: usize, b: usize, k: LockKind) -> bool {
            (0..3)
                .filter(|p| *p != o)
                .any(|p| self.0[p][a..=b].iter().flatten().any(|held| k == Write || *held == Write))
        }
    }

    fn check(s: &LockSet<usize>, m: &Model) {
        for o in 0..3 {
            for i in 0..CELLS {
                let cell = s.iter().find(|h| h.owner == o && h.range.overlaps(cells(i, i))).map(|h| h.kind);
                assert_eq!(cell, m.0[o][i], "owner {o} byte {i}");
            }
        }
        let all: Vec<_> = s.iter().collect();
        assert!(all.windows(2).all(|w| w[0].range.first <= w[1].range.first), "sorted");
        for (i, a) in all.iter().enumerate() {
            assert!(a.range.first <= a.range.last);
            for b in &all[i + 1..] {
                assert!(!(a.owner == b.owner && a.range.overlaps(b.range)), "one owner's ranges overlap");
                assert!(
                    !(a.owner == b.owner && a.kind == b.kind && a.range.touches(b.range)),
                    "touching ranges must be one"
                );
            }
        }
    }

    #[test]
    fn two_steps_exhaustively() {
        // Every pair of steps of one owner over six bytes: lock shared, lock exclusive or unlock, any range.
        let steps: Vec<_> =
            (0..6).flat_map(|a| (a..6).flat_map(move |b| [None, Some(Read), Some(Write)].map(|k| (a, b, k)))).collect();
        for x in &steps {
            for y in &steps {
                for z in [(0, 5, Some(Read)), (2, 3, None), (1, 4, Some(Write))] {
                    let (mut s, mut m) = (LockSet::default(), Model::default());
                    for (a, b, k) in [*x, *y, z] {
                        match k {
                            Some(k) => s.lock(&0, cells(a, b), k),
                            None => s.unlock(&0, cells(a, b)),
                        }
                        m.set(0, a, b, k);
                    }
                    check(&s, &m);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_model(steps in prop::collection::vec((0usize..3, 0..CELLS, 0..CELLS, 0u8..3), 1..60)) {
            let (mut s, mut m) = (LockSet::default(), Model::default());
            for (o, a, b, what) in steps {
                let (a, b) = (a.min(b), a.max(b));
                let range = cells(a, b);
                match what {
                    0 => {
                        s.unlock(&o, range);
                        m.set(o, a, b, None);
                    }
                    k => {
                        let kind = if k == 1 { Read } else { Write };
                        let conflict = s.conflicts(&o, range, kind).next().is_some();
                        prop_assert_eq!(conflict, m.conflict(o, a, b, kind));
                        if !conflict {
                            s.lock(&o, range, kind);
                            m.set(o, a, b, Some(kind));
                        }
                    }
                }
                check(&s, &m);
            }
        }
    }
}
