//! Counts of calls and bytes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use dhow_proto::v4::OpNum;

/// Operation numbers that have a counter of their own: all that are assigned.
const OPS: usize = 80;

/// Counters of one client; they only grow. Take a [`Snapshot`] before and after, and subtract.
#[derive(Debug)]
pub struct Counters {
    /// RPC calls by their main operation.
    calls: [AtomicU64; OPS],
    /// Operations, whatever call they were in.
    ops: [AtomicU64; OPS],
    pub(crate) polls: AtomicU64,
    pub(crate) setup: AtomicU64,
    pub(crate) resent: AtomicU64,
    pub(crate) delays: AtomicU64,
    pub(crate) callbacks: AtomicU64,
    pub(crate) connects: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
}

/// The state of [`Counters`] at one moment, or the difference of two.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// RPC calls, without those in `polls` and `setup`. A call that was sent again after a connection was lost counts
    /// once.
    pub calls: u64,
    /// Those calls by their main operation, as RFC 7863 spells it: a call that opens, writes and closes is an OPEN.
    pub by_op: BTreeMap<&'static str, u64>,
    /// Operations inside those calls, SEQUENCE left out.
    pub ops: BTreeMap<&'static str, u64>,
    /// Calls that only asked how far a copy got (OFFLOAD_STATUS).
    pub polls: u64,
    /// Calls of session set-up, renewal and tear-down.
    pub setup: u64,
    /// Transmissions beyond the first of each call.
    pub resent: u64,
    /// Answers that said "later" (DELAY, GRACE).
    pub delays: u64,
    /// Callbacks received.
    pub callbacks: u64,
    /// Connections made.
    pub connects: u64,
    /// Bytes of file data received by READ and READ_PLUS.
    pub bytes_read: u64,
    /// Bytes of file data sent by WRITE.
    pub bytes_written: u64,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            calls: std::array::from_fn(|_| AtomicU64::new(0)),
            ops: std::array::from_fn(|_| AtomicU64::new(0)),
            polls: AtomicU64::new(0),
            setup: AtomicU64::new(0),
            resent: AtomicU64::new(0),
            delays: AtomicU64::new(0),
            callbacks: AtomicU64::new(0),
            connects: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
        }
    }
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}

impl Counters {
    /// A call with these operations (SEQUENCE not among them) is about to be sent for the first time.
    pub(crate) fn call(&self, ops: impl Iterator<Item = OpNum>) {
        let mut main = OpNum::SEQUENCE;
        let mut list = smallvec::SmallVec::<[OpNum; 16]>::new();
        for op in ops {
            list.push(op);
            if rank(op) > rank(main) {
                main = op;
            }
        }
        match main {
            OpNum::OFFLOAD_STATUS => return add(&self.polls, 1),
            main if rank(main) == 0 => return add(&self.setup, 1),
            main => self.calls.get(main.0 as usize).into_iter().for_each(|c| add(c, 1)),
        }
        for op in list {
            self.ops.get(op.0 as usize).into_iter().for_each(|c| add(c, 1));
        }
    }

    /// The present state. Not a consistent cut while calls are being made.
    pub fn snapshot(&self) -> Snapshot {
        let read = |table: &[AtomicU64; OPS]| -> BTreeMap<&'static str, u64> {
            table
                .iter()
                .zip(0_u32..)
                .filter_map(|(c, n)| Some((OpNum(n).name()?, c.load(Relaxed))))
                .filter(|(_, n)| *n > 0)
                .collect()
        };
        let by_op = read(&self.calls);
        Snapshot {
            calls: by_op.values().sum(),
            by_op,
            ops: read(&self.ops),
            polls: self.polls.load(Relaxed),
            setup: self.setup.load(Relaxed),
            resent: self.resent.load(Relaxed),
            delays: self.delays.load(Relaxed),
            callbacks: self.callbacks.load(Relaxed),
            connects: self.connects.load(Relaxed),
            bytes_read: self.bytes_read.load(Relaxed),
            bytes_written: self.bytes_written.load(Relaxed),
        }
    }
}

impl Snapshot {
    /// What happened between `earlier` and this snapshot.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let map = |now: &BTreeMap<&'static str, u64>, then: &BTreeMap<&'static str, u64>| {
            now.iter()
                .map(|(op, n)| (*op, n.saturating_sub(then.get(op).copied().unwrap_or(0))))
                .filter(|(_, n)| *n > 0)
                .collect()
        };
        Self {
            calls: self.calls.saturating_sub(earlier.calls),
            by_op: map(&self.by_op, &earlier.by_op),
            ops: map(&self.ops, &earlier.ops),
            polls: self.polls.saturating_sub(earlier.polls),
            setup: self.setup.saturating_sub(earlier.setup),
            resent: self.resent.saturating_sub(earlier.resent),
            delays: self.delays.saturating_sub(earlier.delays),
            callbacks: self.callbacks.saturating_sub(earlier.callbacks),
            connects: self.connects.saturating_sub(earlier.connects),
            bytes_read: self.bytes_read.saturating_sub(earlier.bytes_read),
            bytes_written: self.bytes_written.saturating_sub(earlier.bytes_written),
        }
    }

    /// The sum of this and `other`, for work that two clients did together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let map = |a: &BTreeMap<&'static str, u64>, b: &BTreeMap<&'static str, u64>| {
            let mut sum = a.clone();
            for (op, n) in b {
                *sum.entry(op).or_default() += n;
            }
            sum
        };
        Self {
            calls: self.calls + other.calls,
            by_op: map(&self.by_op, &other.by_op),
            ops: map(&self.ops, &other.ops),
            polls: self.polls + other.polls,
            setup: self.setup + other.setup,
            resent: self.resent + other.resent,
            delays: self.delays + other.delays,
            callbacks: self.callbacks + other.callbacks,
            connects: self.connects + other.connects,
            bytes_read: self.bytes_read + other.bytes_read,
            bytes_written: self.bytes_written + other.bytes_written,
        }
    }
}

/// How much an operation says about what a call is for. 0: session housekeeping.
pub(crate) fn rank(op: OpNum) -> u8 {
    match op {
        OpNum::SEQUENCE
        | OpNum::EXCHANGE_ID
        | OpNum::CREATE_SESSION
        | OpNum::DESTROY_SESSION
        | OpNum::DESTROY_CLIENTID
        | OpNum::BIND_CONN_TO_SESSION
        | OpNum::BACKCHANNEL_CTL
        | OpNum::RECLAIM_COMPLETE => 0,
        OpNum::PUTFH | OpNum::PUTROOTFH | OpNum::PUTPUBFH | OpNum::SAVEFH | OpNum::RESTOREFH => 1,
        OpNum::GETFH => 2,
        OpNum::LOOKUP | OpNum::LOOKUPP => 4,
        OpNum::GETATTR => 3,
        OpNum::COMMIT => 5,
        OpNum::CLOSE => 6,
        OpNum::ACCESS | OpNum::READLINK | OpNum::VERIFY | OpNum::NVERIFY => 7,
        OpNum::COPY | OpNum::CLONE => 12,
        OpNum::OPEN => 10,
        _ => 9,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_once_by_their_main_operation() {
        let c = Counters::default();
        let before = c.snapshot();
        c.call([OpNum::PUTROOTFH, OpNum::LOOKUP, OpNum::OPEN, OpNum::WRITE, OpNum::CLOSE].into_iter());
        c.call([OpNum::PUTFH, OpNum::SAVEFH, OpNum::PUTFH, OpNum::COPY, OpNum::COMMIT].into_iter());
        c.call([OpNum::PUTFH, OpNum::OFFLOAD_STATUS].into_iter());
        c.call([].into_iter());
        c.call([OpNum::RECLAIM_COMPLETE].into_iter());
        let s = c.snapshot().since(&before);
        assert_eq!((s.calls, s.polls, s.setup), (2, 1, 2));
        assert_eq!(s.by_op, BTreeMap::from([("OPEN", 1), ("COPY", 1)]));
        assert_eq!(s.ops["PUTFH"], 2);
        assert_eq!(s.ops["COMMIT"], 1);
        assert_eq!(s.plus(&s).calls, 4);
        assert_eq!(s.since(&s), Snapshot::default());
    }
}
