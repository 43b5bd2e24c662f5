//! Slots of the back channel, where the client is the replier (RFC 8881 sections 2.10.6 and 20.9).

use bytes::Bytes;
use dhow_proto::v4::Status;

/// What to do with a callback whose CB_SEQUENCE was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// Execute it, then [`BackSlots::finish`].
    New,
    /// It was executed before: send this reply again.
    Replay(Bytes),
    /// Answer CB_SEQUENCE with this status; the slot is unchanged.
    Refuse(Status),
}

#[derive(Debug, Clone, Default)]
struct Slot {
    /// Sequence id of the last callback admitted; 0 before the first.
    seqid: u32,
    running: bool,
    reply: Option<Bytes>,
}

/// The slot table of one session's back channel. Replies are small, so every one is cached, whatever
/// `csa_cachethis` says.
#[derive(Debug, Clone)]
pub struct BackSlots {
    slots: Vec<Slot>,
}

impl BackSlots {
    /// A table of `count` slots (`ca_maxrequests` of the back channel, as the server replied).
    pub fn new(count: u32) -> Self {
        Self { slots: vec![Slot::default(); count.clamp(1, 1024) as usize] }
    }

    /// Highest slot id of the table.
    pub fn highest(&self) -> u32 {
        self.slots.len() as u32 - 1
    }

    /// Whether the callback on `slot` with `seqid` is new.
    pub fn begin(&mut self, slot: u32, seqid: u32) -> Admission {
        let Some(slot) = self.slots.get_mut(slot as usize) else {
            return Admission::Refuse(Status::BADSLOT);
        };
        if seqid == slot.seqid && (slot.running || slot.reply.is_some()) {
            // A duplicate of a callback in progress: "the replier SHOULD deal with the issue by returning
            // NFS4ERR_DELAY" (section 2.10.6.2).
            return slot.reply.clone().map_or(Admission::Refuse(Status::DELAY), Admission::Replay);
        }
        if slot.running {
            // "A requester MUST wait for a reply to a request before using the slot for another request."
            return Admission::Refuse(Status::DELAY);
        }
        if seqid != slot.seqid.wrapping_add(1) {
            return Admission::Refuse(Status::SEQ_MISORDERED);
        }
        slot.seqid = seqid;
        slot.running = true;
        slot.reply = None;
        Admission::New
    }

    /// The callback admitted on `slot` was executed and answered with `reply`.
    pub fn finish(&mut self, slot: u32, reply: Bytes) {
        if let Some(slot) = self.slots.get_mut(slot as usize).filter(|s| s.running) {
            slot.running = false;
            slot.reply = Some(reply);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Bytes = Bytes::from_static(b"a");

    /// RFC 8881 section 2.10.6.1, with the client as replier.
    #[test]
    fn a_callback_is_executed_once() {
        let mut b = BackSlots::new(2);
        assert_eq!(b.highest(), 1);
        assert_eq!(b.begin(0, 1), Admission::New);
        assert_eq!(b.begin(0, 1), Admission::Refuse(Status::DELAY));
        assert_eq!(b.begin(0, 2), Admission::Refuse(Status::DELAY));
        assert_eq!(b.begin(1, 1), Admission::New, "slots are independent");
        b.finish(0, A);
        assert_eq!(b.begin(0, 1), Admission::Replay(A));
        assert_eq!(b.begin(0, 3), Admission::Refuse(Status::SEQ_MISORDERED));
        assert_eq!(b.begin(0, 0), Admission::Refuse(Status::SEQ_MISORDERED));
        assert_eq!(b.begin(0, 2), Admission::New);
        assert_eq!(b.begin(2, 1), Admission::Refuse(Status::BADSLOT));
    }

    #[test]
    fn a_first_sequence_id_other_than_one_is_refused() {
        let mut b = BackSlots::new(1);
        assert_eq!(b.begin(0, 0), Admission::Refuse(Status::SEQ_MISORDERED));
        assert_eq!(b.begin(0, 2), Admission::Refuse(Status::SEQ_MISORDERED));
    }

    #[test]
    fn silly_sizes_are_bounded() {
        assert_eq!(BackSlots::new(0).highest(), 0);
        assert!(BackSlots::new(u32::MAX).highest() < 2048);
    }
}
