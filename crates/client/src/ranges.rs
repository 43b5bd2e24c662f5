//! Which byte ranges a lock-owner has locked: what must be locked again after a restart of the server.

use dhow_proto::v4::LockType;

/// Disjoint locked ranges, ascending; neighbours of one kind are joined.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<Range>);

/// A locked range from `start` up to, not including, `end`. `end` of [`u64::MAX`] means "to the end of the file".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) exclusive: bool,
}

/// What a request gives up, from `start` up to, not including, `end`. From the moment it is sent others may have been
/// granted it, whether its answer comes or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Given {
    /// LOCKU: everything.
    Unlocked(u64, u64),
    /// LOCK for reading: what was locked for writing.
    Shared(u64, u64),
}

impl Range {
    /// As LOCK gives it: a length of all ones means "to the end".
    pub(crate) fn new(lock_type: LockType, offset: u64, length: u64) -> Self {
        Self { start: offset, end: offset.saturating_add(length), exclusive: lock_type.is_write() }
    }

    pub(crate) fn length(&self) -> u64 {
        if self.end == u64::MAX { u64::MAX } else { self.end - self.start }
    }

    pub(crate) fn lock_type(&self) -> LockType {
        if self.exclusive { LockType::WRITE } else { LockType::READ }
    }
}

impl Ranges {
    /// A new lock replaces what the owner had in its range.
    pub(crate) fn lock(&mut self, new: Range) {
        self.unlock(new.start, new.end);
        let at = self.0.partition_point(|r| r.start < new.start);
        self.0.insert(at, new);
        self.0.dedup_by(|right, left| {
            let joins = left.end == right.start && left.exclusive == right.exclusive;
            if joins {
                left.end = right.end;
            }
            joins
        });
    }

    /// Removes locks between `start` and `end`, cutting those that reach over.
    pub(crate) fn unlock(&mut self, start: u64, end: u64) {
        let mut kept = Vec::with_capacity(self.0.len() + 1);
        for r in &self.0 {
            if r.start < start {
                kept.push(Range { end: r.end.min(start), ..*r });
            }
            if r.end > end {
                kept.push(Range { start: r.start.max(end), ..*r });
            }
        }
        kept.retain(|r| r.start < r.end);
        self.0 = kept;
    }

    /// What is locked exclusively between `start` and `end` is shared from now on.
    fn share(&mut self, start: u64, end: u64) {
        let concerned = self.0.iter().filter(|r| r.start < end && r.end > start);
        let shared = |r: &Range| Range { start: r.start.max(start), end: r.end.min(end), exclusive: false };
        let concerned: Vec<Range> = concerned.map(shared).collect();
        concerned.into_iter().for_each(|r| self.lock(r));
    }

    /// What is left for certain once `given` is on its way to the server.
    pub(crate) fn give(&mut self, given: Given) {
        match given {
            Given::Unlocked(start, end) => self.unlock(start, end),
            Given::Shared(start, end) => self.share(start, end),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Range> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_replace_split_and_join() {
        let mut r = Ranges::default();
        let range = |start, end, exclusive| Range { start, end, exclusive };
        r.lock(Range::new(LockType::WRITE, 0, 100));
        r.lock(Range::new(LockType::READ, 40, 20));
        assert_eq!(r.0, [range(0, 40, true), range(40, 60, false), range(60, 100, true)]);
        r.lock(Range::new(LockType::WRITE, 40, 20));
        assert_eq!(r.0, [range(0, 100, true)]);
        r.unlock(10, 20);
        assert_eq!(r.0, [range(0, 10, true), range(20, 100, true)]);
        r.lock(Range::new(LockType::WRITE, 200, u64::MAX));
        assert_eq!(r.0.last().map(Range::length), Some(u64::MAX));
        r.unlock(0, u64::MAX);
        assert_eq!(r.0, []);
    }

    #[test]
    fn what_is_given_up_is_cut_out_or_shared() {
        let range = |start, end, exclusive| Range { start, end, exclusive };
        let mut r = Ranges(vec![range(0, 10, true), range(20, 30, true)]);
        r.give(Given::Shared(5, 25));
        assert_eq!(r.0, [range(0, 5, true), range(5, 10, false), range(20, 25, false), range(25, 30, true)]);
        r.give(Given::Unlocked(8, u64::MAX));
        assert_eq!(r.0, [range(0, 5, true), range(5, 8, false)]);
        r.give(Given::Shared(5, u64::MAX));
        assert_eq!(r.0, [range(0, 5, true), range(5, 8, false)], "nothing is locked by it");
    }

    #[test]
    fn every_byte_is_as_the_last_call_left_it() {
        let mut r = Ranges::default();
        let mut model = [None; 64];
        let mut x = 12345_u32;
        for _ in 0..2000 {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (a, b) = ((x >> 8) as usize % 64, (x >> 16) as usize % 64);
            let (a, b) = (a.min(b), a.max(b) + 1);
            let kind = [None, Some(false), Some(true)][(x >> 24) as usize % 3];
            model[a..b].fill(kind);
            match kind {
                None => r.unlock(a as u64, b as u64),
                Some(exclusive) => r.lock(Range { start: a as u64, end: b as u64, exclusive }),
            }
            let mut seen = [None; 64];
            for range in r.iter() {
                seen[range.start as usize..range.end as usize].fill(Some(range.exclusive));
            }
            assert_eq!(seen, model);
        }
    }
}
