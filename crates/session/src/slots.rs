//! The slot table of the fore channel (RFC 8881 section 2.10.6.1).

use crate::Epoch;

const WORD: usize = 64;

/// Where a slot is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Busy,
    /// Its last request's outcome will never be known, so neither is the sequence id the server expects.
    Lost,
}

#[derive(Debug, Clone)]
struct Slot {
    state: State,
    /// Sequence id of the request that is on the slot, or of the next one when it is free.
    seqid: u32,
    /// Generation of the limits when the request was sent: see [`SlotTable::complete`].
    generation: u64,
    /// The server withdrew the slot since its last use, and may have forgotten its sequence id.
    withdrawn: bool,
}

/// The right to send one request: slot, sequence id, and what SEQUENCE says of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a slot that is acquired must be given back"]
pub struct Ticket {
    /// Session it belongs to.
    pub epoch: Epoch,
    /// `sa_slotid`.
    pub slot: u32,
    /// `sa_sequenceid`.
    pub seqid: u32,
    /// `sa_highest_slotid`: the highest slot with a request outstanding, this one included.
    pub highest: u32,
}

/// How a request on a slot ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// SEQUENCE succeeded: the sequence id is used up. With the reply's `sr_highest_slotid` and
    /// `sr_target_highest_slotid`.
    Executed {
        /// Highest slot the server accepts from now on.
        highest: u32,
        /// Highest slot the server wishes to see used.
        target: u32,
    },
    /// The server said, by an error of SEQUENCE, that it did not execute the request; or it was never sent.
    NotExecuted,
    /// As `NotExecuted`, and the slot is beyond the server's table (BADSLOT).
    Refused,
    /// Nobody can find out. The slot stays out of use.
    Unknown,
}

/// Which slots are busy, and how many there are.
///
/// The table grows and shrinks as the server says (case K21): `sr_highest_slotid` is a hard limit,
/// `sr_target_highest_slotid` a wish that "the requester must always comply with". Replies overtake each other, so a
/// reply changes the limits only if its request was sent after their last change.
#[derive(Debug, Clone)]
pub struct SlotTable {
    epoch: Epoch,
    slots: Vec<Slot>,
    /// One bit per slot: not to be handed out (busy or lost).
    taken: Vec<u64>,
    busy: usize,
    lost: usize,
    /// Highest slot the server accepts.
    accepted: u32,
    /// Highest slot the server wishes.
    target: u32,
    /// No slot above this is used, whatever the server offers.
    own_limit: u32,
    generation: u64,
}

impl SlotTable {
    /// A new session's table: the server granted `granted` slots (`ca_maxrequests`, at least 1), of which at most `most`
    /// are ever used.
    pub fn new(epoch: Epoch, granted: u32, most: u32) -> Self {
        let highest = granted.max(1) - 1;
        Self {
            epoch,
            slots: Vec::new(),
            taken: Vec::new(),
            busy: 0,
            lost: 0,
            accepted: highest,
            target: highest,
            own_limit: most.max(1) - 1,
            generation: 0,
        }
    }

    /// The session this table belongs to.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Slots with a request on them.
    pub fn busy(&self) -> usize {
        self.busy
    }

    /// Slots out of use for ever.
    pub fn lost(&self) -> usize {
        self.lost
    }

    /// How many slots may be used at present.
    pub fn limit(&self) -> u32 {
        self.highest_allowed() + 1
    }

    /// Whether a slot is free.
    pub fn has_free(&self) -> bool {
        self.lowest_free().is_some()
    }

    /// Whether every slot that may be used is lost: only a new session helps.
    pub fn is_exhausted(&self) -> bool {
        self.lost > 0 && self.busy == 0 && self.lowest_free().is_none()
    }

    /// The lowest free slot ("the requester SHOULD use the lowest available slot"), or `None` when all are busy.
    pub fn acquire(&mut self) -> Option<Ticket> {
        let index = self.lowest_free()?;
        while self.slots.len() <= index {
            // "The first time a slot is used, the requester MUST specify a sequence ID of one."
            self.slots.push(Slot { state: State::Free, seqid: 1, generation: 0, withdrawn: false });
        }
        let slot = self.slots.get_mut(index)?;
        slot.state = State::Busy;
        slot.generation = self.generation;
        let seqid = slot.seqid;
        self.set_taken(index, true);
        self.busy += 1;
        Some(Ticket { epoch: self.epoch, slot: index as u32, seqid, highest: self.highest_busy() })
    }

    /// The request of `ticket` has ended. Tickets of other sessions, and tickets given back before, change nothing and
    /// return false.
    pub fn complete(&mut self, ticket: &Ticket, end: End) -> bool {
        if ticket.epoch != self.epoch {
            return false;
        }
        let index = ticket.slot as usize;
        let Some(slot) = self.slots.get_mut(index) else { return false };
        if slot.state != State::Busy || slot.seqid != ticket.seqid {
            return false;
        }
        let sent_in = slot.generation;
        slot.state = State::Free;
        match end {
            End::Executed { .. } => {
                slot.seqid = slot.seqid.wrapping_add(1);
                slot.withdrawn = false;
            }
            End::NotExecuted => {}
            End::Refused => slot.withdrawn = true,
            End::Unknown => slot.state = State::Lost,
        }
        self.busy -= 1;
        match end {
            End::Unknown => self.lost += 1,
            _ => self.set_taken(index, false),
        }
        if let End::Executed { highest, target } = end {
            self.note_withdrawn(highest.min(target));
        }
        match end {
            End::Executed { highest, target } if sent_in == self.generation => self.set_limits(highest, target),
            // Slot 0 exists in every session; refusing it can only be a mistake, and must not end all progress.
            End::Refused if ticket.slot > 0 && ticket.slot <= self.accepted => {
                self.set_limits(ticket.slot - 1, self.target.min(ticket.slot - 1));
            }
            _ => {}
        }
        true
    }

    /// The server refused the sequence id of `ticket` (SEQ_MISORDERED) although the request was sent only once. When it
    /// had withdrawn the slot in between, it may have started it afresh: the ticket to send the same request with
    /// instead.
    ///
    /// The order of the attempts matters: *old + 1* first, 1 second. A server that kept the slot could take 1 for a
    /// retry of the request that once had it, and answer with that one's reply; a server that forgot the slot refuses
    /// *old + 1*, which harms nothing.
    pub fn renumber(&mut self, ticket: &Ticket) -> Option<Ticket> {
        if ticket.epoch != self.epoch {
            return None;
        }
        let slot = self.slots.get_mut(ticket.slot as usize)?;
        if slot.state != State::Busy || slot.seqid != ticket.seqid || !slot.withdrawn || slot.seqid == 1 {
            return None;
        }
        slot.seqid = 1;
        slot.withdrawn = false;
        Some(Ticket { seqid: 1, highest: self.highest_busy(), ..*ticket })
    }

    /// CB_RECALL_SLOT: the server wishes `target` as the highest slot (RFC 8881 section 20.8).
    pub fn recall(&mut self, target: u32) {
        self.set_limits(self.accepted, target);
    }

    fn set_limits(&mut self, accepted: u32, target: u32) {
        if (accepted, target) == (self.accepted, self.target) {
            return;
        }
        self.accepted = accepted;
        self.target = target;
        self.generation += 1;
        self.note_withdrawn(accepted.min(target));
    }

    /// The server has told us, be it in a reply that came too late to change the limits, that it keeps nothing above
    /// `highest`.
    fn note_withdrawn(&mut self, highest: u32) {
        for slot in self.slots.iter_mut().skip((highest as usize).saturating_add(1)) {
            slot.withdrawn = true;
        }
    }

    fn highest_allowed(&self) -> u32 {
        self.accepted.min(self.target).min(self.own_limit)
    }

    fn lowest_free(&self) -> Option<usize> {
        let highest = self.highest_allowed() as usize;
        let known = self.taken.iter().enumerate().find(|(_, word)| **word != u64::MAX);
        let index = match known {
            Some((at, word)) => at * WORD + word.trailing_ones() as usize,
            None => self.taken.len() * WORD,
        };
        (index <= highest).then_some(index)
    }

    /// Lost slots count: the server may still be busy with them.
    fn highest_busy(&self) -> u32 {
        let last = self.taken.iter().enumerate().rev().find(|(_, word)| **word != 0);
        last.map_or(0, |(at, word)| (at * WORD) as u32 + word.ilog2())
    }

    fn set_taken(&mut self, index: usize, taken: bool) {
        let (at, bit) = (index / WORD, 1_u64 << (index % WORD));
        if self.taken.len() <= at {
            self.taken.resize(at + 1, 0);
        }
        if let Some(word) = self.taken.get_mut(at) {
            *word = if taken { *word | bit } else { *word & !bit };
        }
    }
}

#[cfg(test)]
mod tests;
