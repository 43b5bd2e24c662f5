//! The slot table of a fore channel: exactly-once semantics as a plain data structure (RFC 8881 2.10.6.1).
//!
//! States of a slot: *empty* (never used, or retired by a shrink), *busy* (a request runs), *done* (its reply is kept,
//! or was not asked to be). Invariants:
//!
//! * A refused request changes nothing (2.10.6.1.2, case B25).
//! * The sequence id of a slot only ever becomes the next one; a slot that was retired and granted again also accepts
//!   1 (case K21), for the client may have forgotten it.
//! * A busy slot leaves that state exactly once, by [`SlotTable::finish`]; the owner of a token sees to it (case K20).
//! * A cached reply is never changed; it goes when the client's next request on the slot shows that it was seen.
//!
//! Shrinking: the target falls at once; slots above it are retired only when the client shows, by a new request on a
//! slot whose last reply carried the new target (or by its answer to CB_RECALL_SLOT), that it knows, and names no higher slot as outstanding. Until then
//! they are served.

use crate::types::{Reply, Status};

#[derive(Debug)]
enum Use {
    Empty,
    Busy,
    Done(Option<Reply>),
}

#[derive(Debug)]
struct Slot {
    seqid: u32,
    state: Use,
    /// Digest of the request last admitted.
    digest: u64,
    /// Generation of the target that the last admitted request's reply carried.
    generation: u32,
    /// Retired since it was last used: sequence id 1 is good too.
    retired: bool,
}

impl Slot {
    const NEW: Self = Self { seqid: 0, state: Use::Empty, digest: 0, generation: 0, retired: false };
}

/// What a request on a slot turned out to be.
#[derive(Debug)]
pub(crate) enum Admit {
    /// To be executed; the slot is busy.
    Fresh,
    /// Executed before: this was the answer.
    Replay(Reply),
    /// Executed before; the answer was not kept.
    Uncached,
    /// A retry of what still runs.
    InProgress,
}

/// The table.
#[derive(Debug)]
pub(crate) struct SlotTable {
    /// Filled as slots are used.
    slots: Vec<Slot>,
    /// Slots below this are accepted (enforced highest slot id + 1).
    granted: u32,
    /// What the client should keep to (target highest slot id + 1).
    target: u32,
    /// The most that was ever granted.
    most: u32,
    generation: u32,
    /// The generation of the target that the client was told by a callback.
    told: Option<u32>,
    /// The highest slot that requests named as in use since the last [`SlotTable::busiest`].
    busiest: u32,
    cached_bytes: u64,
}

impl SlotTable {
    /// A table of `granted` (at least one) slots.
    pub(crate) fn new(granted: u32) -> Self {
        let granted = granted.max(1);
        Self {
            slots: Vec::new(),
            granted,
            target: granted,
            most: granted,
            generation: 0,
            told: None,
            busiest: 0,
            cached_bytes: 0,
        }
    }

    /// The highest slot id accepted.
    pub(crate) fn highest(&self) -> u32 {
        self.granted - 1
    }

    /// The highest slot id wanted.
    pub(crate) fn target_highest(&self) -> u32 {
        self.target - 1
    }

    /// Bytes of replies kept.
    pub(crate) fn cached_bytes(&self) -> u64 {
        self.cached_bytes
    }

    /// Judges a request (RFC 8881 18.46.3).
    ///
    /// # Errors
    ///
    /// BADSLOT, BAD_HIGH_SLOT, SEQ_MISORDERED, SEQ_FALSE_RETRY; nothing has changed then.
    pub(crate) fn admit(&mut self, slot: u32, seqid: u32, highest: u32, digest: u64) -> Result<Admit, Status> {
        if slot >= self.granted {
            return Err(Status::BADSLOT);
        }
        // A client that lags behind a shrink may still name slots that were granted once; nothing above those.
        if highest >= self.most {
            return Err(Status::BAD_HIGH_SLOT);
        }
        let index = slot as usize;
        let s = self.slots.get(index).unwrap_or(&Slot::NEW);
        let next = seqid == s.seqid.wrapping_add(1) || (s.retired && seqid == 1);
        match &s.state {
            Use::Busy if seqid == s.seqid => {
                return if digest == s.digest { Ok(Admit::InProgress) } else { Err(Status::SEQ_FALSE_RETRY) };
            }
            Use::Busy => return Err(Status::SEQ_MISORDERED),
            Use::Done(reply) if seqid == s.seqid => {
                return match reply {
                    _ if digest != s.digest => Err(Status::SEQ_FALSE_RETRY),
                    Some(r) => Ok(Admit::Replay(r.clone())),
                    None => Ok(Admit::Uncached),
                };
            }
            _ if !next => return Err(Status::SEQ_MISORDERED),
            Use::Empty | Use::Done(_) => {}
        }
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || Slot::NEW);
        }
        let generation = self.generation;
        let Some(s) = self.slots.get_mut(index) else { return Err(Status::SERVERFAULT) };
        let knows_target = s.generation == generation || self.told == Some(generation);
        if let Use::Done(Some(old)) = std::mem::replace(&mut s.state, Use::Busy) {
            self.cached_bytes -= size(&old);
        }
        (s.seqid, s.digest, s.generation, s.retired) = (seqid, digest, generation, false);
        self.busiest = self.busiest.max(slot).max(highest.min(self.granted - 1));
        if knows_target && self.target < self.granted && highest < self.target {
            self.retire_above_target();
        }
        Ok(Admit::Fresh)
    }

    /// The client answered a CB_RECALL_SLOT with the present target: its next request shows what it still uses.
    pub(crate) fn told(&mut self) {
        self.told = Some(self.generation);
    }

    /// Whether the client has come down to the target.
    pub(crate) fn settled(&self) -> bool {
        self.granted == self.target
    }

    /// The highest slot in use since the last call of this.
    pub(crate) fn busiest(&mut self) -> u32 {
        std::mem::take(&mut self.busiest)
    }

    fn retire_above_target(&mut self) {
        while self.granted > self.target {
            if let Some(s) = self.slots.get_mut(self.granted as usize - 1) {
                match std::mem::replace(&mut s.state, Use::Empty) {
                    Use::Busy => {
                        s.state = Use::Busy;
                        return;
                    }
                    Use::Done(Some(old)) => self.cached_bytes -= size(&old),
                    Use::Done(None) | Use::Empty => {}
                }
                s.retired = s.seqid != 0;
            }
            self.granted -= 1;
        }
    }

    /// The request on `slot` is done; `reply` is kept for retries, `None` if it need not or cannot be.
    pub(crate) fn finish(&mut self, slot: u32, reply: Option<Reply>) {
        if let Some(s) = self.slots.get_mut(slot as usize)
            && matches!(s.state, Use::Busy)
        {
            self.cached_bytes += reply.as_ref().map_or(0, size);
            s.state = Use::Done(reply);
        }
    }

    /// Asks for `count` slots (at least one) from now on: more are granted at once, fewer when the client has heard.
    pub(crate) fn resize(&mut self, count: u32) {
        let count = count.max(1);
        if count < self.target {
            self.generation = self.generation.wrapping_add(1);
        }
        self.target = count;
        self.granted = self.granted.max(count);
        self.most = self.most.max(count);
    }
}

fn size(r: &Reply) -> u64 {
    r.iter().map(|b| b.len() as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn reply(s: &'static str) -> Reply {
        Reply::from([Bytes::from_static(s.as_bytes())])
    }

    fn fresh(t: &mut SlotTable, slot: u32, seqid: u32) {
        assert!(matches!(t.admit(slot, seqid, slot, 1), Ok(Admit::Fresh)), "slot {slot} seqid {seqid}");
    }

    #[test]
    fn first_request_of_a_slot_has_sequence_id_one() {
        // RFC 8881 18.36.3.
        let mut t = SlotTable::new(4);
        for bad in [0, 2, u32::MAX] {
            assert_eq!(t.admit(0, bad, 0, 1).unwrap_err(), Status::SEQ_MISORDERED);
        }
        fresh(&mut t, 0, 1);
    }

    #[test]
    fn a_retry_gets_the_kept_reply_and_a_false_one_is_found_out() {
        // RFC 8881 2.10.6.1.3, case B25.
        let mut t = SlotTable::new(4);
        fresh(&mut t, 0, 1);
        assert!(matches!(t.admit(0, 1, 0, 1), Ok(Admit::InProgress)));
        assert_eq!(t.admit(0, 2, 0, 1).unwrap_err(), Status::SEQ_MISORDERED);
        t.finish(0, Some(reply("one")));
        for _ in 0..3 {
            assert!(matches!(t.admit(0, 1, 0, 1), Ok(Admit::Replay(r)) if r == reply("one")));
        }
        assert_eq!(t.admit(0, 1, 0, 2).unwrap_err(), Status::SEQ_FALSE_RETRY);
        assert!(matches!(t.admit(0, 1, 0, 1), Ok(Admit::Replay(_))), "a refused request leaves the slot alone");
        assert_eq!(t.cached_bytes(), 3);
        fresh(&mut t, 0, 2);
        assert_eq!(t.cached_bytes(), 0);
        t.finish(0, None);
        assert!(matches!(t.admit(0, 2, 0, 1), Ok(Admit::Uncached)));
        assert_eq!(t.admit(0, 1, 0, 1).unwrap_err(), Status::SEQ_MISORDERED);
    }

    #[test]
    fn sequence_ids_wrap_to_zero() {
        // RFC 8881 2.10.6.1.
        let mut t = SlotTable::new(1);
        fresh(&mut t, 0, 1);
        t.finish(0, None);
        t.slots[0].seqid = u32::MAX;
        fresh(&mut t, 0, 0);
        t.finish(0, None);
        fresh(&mut t, 0, 1);
    }

    #[test]
    fn slots_out_of_range_are_refused() {
        let mut t = SlotTable::new(4);
        assert_eq!(t.admit(4, 1, 4, 1).unwrap_err(), Status::BADSLOT);
        assert_eq!(t.admit(0, 1, 4, 1).unwrap_err(), Status::BAD_HIGH_SLOT);
        assert_eq!((t.highest(), t.target_highest()), (3, 3));
    }

    #[test]
    fn shrinks_when_the_client_has_heard_and_grows_again() {
        // RFC 8881 2.10.6.1, case K21.
        let mut t = SlotTable::new(4);
        for slot in 0..4 {
            fresh(&mut t, slot, 1);
            t.finish(slot, Some(reply("old")));
        }
        t.resize(2);
        assert_eq!((t.highest(), t.target_highest()), (3, 1));
        // Not yet told: this request's *reply* tells it.
        fresh(&mut t, 0, 2);
        t.finish(0, None);
        assert_eq!(t.highest(), 3);
        assert!(matches!(t.admit(3, 1, 3, 1), Ok(Admit::Replay(_))), "a retry above the target still works");
        // Told, but it names a higher slot as outstanding.
        assert!(matches!(t.admit(0, 3, 3, 1), Ok(Admit::Fresh)));
        t.finish(0, None);
        assert_eq!(t.highest(), 3);
        fresh(&mut t, 0, 4);
        t.finish(0, None);
        assert_eq!(t.highest(), 1);
        assert_eq!(t.admit(3, 2, 3, 1).unwrap_err(), Status::BADSLOT);
        // Granted again: both 1 and the next sequence id start it.
        t.resize(4);
        fresh(&mut t, 2, 1);
        t.finish(2, None);
        fresh(&mut t, 3, 2);
        t.finish(3, None);
        assert_eq!(t.admit(2, 3, 2, 1).unwrap_err(), Status::SEQ_MISORDERED);
        fresh(&mut t, 2, 2);
    }

    #[test]
    fn a_busy_slot_is_not_retired() {
        let mut t = SlotTable::new(4);
        fresh(&mut t, 3, 1);
        t.resize(1);
        for seqid in 1..4 {
            fresh(&mut t, 0, seqid);
            t.finish(0, None);
        }
        assert_eq!(t.highest(), 3);
        t.finish(3, Some(reply("late")));
        fresh(&mut t, 0, 4);
        assert_eq!((t.highest(), t.cached_bytes()), (0, 0));
    }

    proptest! {
        /// A client that keeps to the rules, on a network that repeats requests, sees each executed exactly once.
        #[test]
        fn each_request_is_executed_exactly_once(steps in prop::collection::vec((0u32..4, 0u8..4, any::<bool>()), 1..200)) {
            let mut t = SlotTable::new(4);
            let mut last: HashMap<u32, u32> = HashMap::new();
            let mut executed: HashMap<(u32, u32), u32> = HashMap::new();
            let mut busy: HashMap<u32, bool> = HashMap::new();
            for (slot, action, keep) in steps {
                let seq = last.get(&slot).copied().unwrap_or(0);
                let is_busy = busy.get(&slot).copied().unwrap_or(false);
                match action {
                    0 if !is_busy => {
                        prop_assert!(matches!(t.admit(slot, seq + 1, 3, u64::from(seq) + 1), Ok(Admit::Fresh)));
                        last.insert(slot, seq + 1);
                        *executed.entry((slot, seq + 1)).or_default() += 1;
                        busy.insert(slot, true);
                    }
                    1 if is_busy => {
                        t.finish(slot, keep.then(|| reply("r")));
                        busy.insert(slot, false);
                    }
                    2 if seq > 0 => match t.admit(slot, seq, 3, u64::from(seq)) {
                        Ok(Admit::Fresh) => prop_assert!(false, "executed twice"),
                        Ok(Admit::InProgress) => prop_assert!(is_busy),
                        Ok(Admit::Replay(_) | Admit::Uncached) => prop_assert!(!is_busy),
                        Err(e) => prop_assert!(false, "{e}"),
                    },
                    3 => {
                        let bad = t.admit(slot, seq.wrapping_add(2), 3, 9);
                        prop_assert_eq!(bad.unwrap_err(), Status::SEQ_MISORDERED);
                    }
                    _ => {}
                }
            }
            prop_assert!(executed.values().all(|n| *n == 1));
        }
    }
}
