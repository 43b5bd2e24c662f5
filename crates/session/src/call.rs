//! What becomes of one request that was sent with SEQUENCE (RFC 8881 section 2.10.6).

use core::time::Duration;

use dhow_proto::v4::Status;

use crate::backoff::{Backoff, Policy};
use crate::slots::{End, SlotTable, Ticket};

/// Follows one request from its first transmission to its end.
///
/// The driver keeps the encoded request as long as this object lives, since [`Verdict::ResendSame`] means *the same
/// bytes*: the server recognises a retry by slot and sequence id and may compare the rest (SEQ_FALSE_RETRY).
#[derive(Debug, Clone)]
pub struct Call {
    ticket: Ticket,
    /// Transmissions whose answer is not known. One that was answered by an error of SEQUENCE is not among them.
    unanswered: u32,
    backoff: Backoff,
}

/// What the driver has to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// SEQUENCE succeeded: the slot is free again and the results of the other operations count.
    Accept,
    /// Send the same bytes again, after this time, on any connection of the session.
    ResendSame(Duration),
    /// Encode SEQUENCE again from the new ticket ([`Call::ticket`]), leave the rest, and send at once.
    Renumbered,
    /// Not executed; the slot is given back. Take another slot and send.
    AnotherSlot,
    /// Bind the connection (BIND_CONN_TO_SESSION), then send the same bytes.
    Bind,
    /// The session is gone. `maybe_executed`: an earlier transmission may have had its effect.
    SessionLost {
        /// Whether the request may have been executed.
        maybe_executed: bool,
    },
    /// SEQUENCE failed for good with this status; not executed, the slot is free.
    Refused(Status),
    /// Nobody can say whether the request was executed; the slot is lost, the session goes on.
    Unknown(Status),
}

/// What SEQUENCE replied when it succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceOk {
    /// `sr_highest_slotid`.
    pub highest: u32,
    /// `sr_target_highest_slotid`.
    pub target: u32,
}

impl Call {
    /// A request about to be sent with `ticket`. `seed` spreads its waits.
    pub fn new(ticket: Ticket, seed: u64) -> Self {
        Self { ticket, unanswered: 0, backoff: Backoff::new(Policy::DELAY, seed) }
    }

    /// Slot and sequence id to send with.
    pub fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    /// The request has been handed to a connection.
    pub fn sent(&mut self) {
        self.unanswered += 1;
    }

    /// Whether the server may have executed the request, as far as is known now.
    pub fn maybe_executed(&self) -> bool {
        self.unanswered > 0
    }

    /// The connection was lost before an answer came. The request keeps its slot; send the same bytes on another
    /// connection.
    pub fn connection_lost(&self) -> Verdict {
        Verdict::ResendSame(Duration::ZERO)
    }

    /// The request could not be handed to a connection after all (undoes [`Call::sent`]).
    pub fn not_sent(&mut self) {
        self.unanswered = self.unanswered.saturating_sub(1);
    }

    /// SEQUENCE answered. Frees the slot in `table` where the verdict says so.
    pub fn answered(&mut self, table: &mut SlotTable, answer: Result<SequenceOk, Status>) -> Verdict {
        let status = match answer {
            Ok(SequenceOk { highest, target }) => {
                table.complete(&self.ticket, End::Executed { highest, target });
                return Verdict::Accept;
            }
            Err(status) => status,
        };
        // This transmission was not executed. An earlier one, of which only the reply was lost, may have been.
        self.not_sent();
        let doubtful = self.maybe_executed();
        match status {
            // For a retry, DELAY means "the original is still in progress" (section 2.10.6.2). RFC 8881 allows
            // SEQ_MISORDERED there too.
            Status::DELAY => self.wait_or(table, status),
            Status::SEQ_MISORDERED if doubtful => self.wait_or(table, status),
            Status::SEQ_MISORDERED => match table.renumber(&self.ticket) {
                Some(ticket) => {
                    self.ticket = ticket;
                    Verdict::Renumbered
                }
                // Our count and the server's differ: the slot is of no further use, the request was not executed.
                None => {
                    table.complete(&self.ticket, End::Unknown);
                    Verdict::AnotherSlot
                }
            },
            Status::BADSESSION | Status::DEADSESSION | Status::STALE_CLIENTID => {
                table.complete(&self.ticket, End::Unknown);
                Verdict::SessionLost { maybe_executed: doubtful }
            }
            Status::CONN_NOT_BOUND_TO_SESSION => Verdict::Bind,
            Status::BADSLOT | Status::BAD_HIGH_SLOT if !doubtful => {
                let end = if status == Status::BADSLOT { End::Refused } else { End::NotExecuted };
                table.complete(&self.ticket, end);
                Verdict::AnotherSlot
            }
            _ => self.give_up(table, status),
        }
    }

    /// The driver stops waiting for this request. When it may have been executed its slot is lost: a slot is not given
    /// to another request before the outcome of this one is known.
    pub fn give_up(&mut self, table: &mut SlotTable, status: Status) -> Verdict {
        if self.maybe_executed() {
            table.complete(&self.ticket, End::Unknown);
            Verdict::Unknown(status)
        } else {
            table.complete(&self.ticket, End::NotExecuted);
            Verdict::Refused(status)
        }
    }

    fn wait_or(&mut self, table: &mut SlotTable, status: Status) -> Verdict {
        match self.backoff.next_wait() {
            Some(wait) => Verdict::ResendSame(wait),
            None => self.give_up(table, status),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Epoch;

    const OK: Result<SequenceOk, Status> = Ok(SequenceOk { highest: 0, target: 0 });

    fn one() -> (SlotTable, Call) {
        let mut table = SlotTable::new(Epoch(1), 1, 1);
        let mut call = Call::new(table.acquire().unwrap(), 7);
        call.sent();
        (table, call)
    }

    #[test]
    fn a_lost_reply_is_asked_for_with_the_same_slot_and_sequence_id() {
        let (mut table, mut call) = one();
        let before = *call.ticket();
        assert_eq!(call.connection_lost(), Verdict::ResendSame(Duration::ZERO));
        assert!(table.acquire().is_none(), "the slot stays with the request");
        call.sent();
        assert_eq!(*call.ticket(), before);
        assert_eq!(call.answered(&mut table, OK), Verdict::Accept);
        assert_eq!(table.acquire().unwrap().seqid, 2);
    }

    /// RFC 8881 section 2.10.6.2: DELAY to a retry means that the original is still in progress.
    #[test]
    fn delay_keeps_slot_and_bytes_also_for_a_retry() {
        let (mut table, mut call) = one();
        call.sent();
        for status in [Status::DELAY, Status::SEQ_MISORDERED, Status::DELAY] {
            assert!(matches!(call.answered(&mut table, Err(status)), Verdict::ResendSame(_)));
            assert!(call.maybe_executed());
            assert!(table.acquire().is_none());
            call.sent();
        }
        assert_eq!(call.answered(&mut table, OK), Verdict::Accept);
    }

    #[test]
    fn delay_ends_some_day() {
        let (mut table, mut call) = one();
        let end = loop {
            match call.answered(&mut table, Err(Status::DELAY)) {
                Verdict::ResendSame(_) => call.sent(),
                other => break other,
            }
        };
        assert_eq!(end, Verdict::Refused(Status::DELAY));
        assert_eq!(table.acquire().unwrap().seqid, 1);
    }

    #[test]
    fn session_loss_tells_whether_the_request_may_have_run() {
        let (mut table, mut call) = one();
        assert_eq!(call.answered(&mut table, Err(Status::BADSESSION)), Verdict::SessionLost { maybe_executed: false });
        let (mut table, mut call) = one();
        call.sent();
        assert_eq!(call.answered(&mut table, Err(Status::BADSESSION)), Verdict::SessionLost { maybe_executed: true });
    }

    #[test]
    fn misordered_at_first_sight_loses_the_slot_not_the_request() {
        let mut table = SlotTable::new(Epoch(1), 2, 2);
        let mut call = Call::new(table.acquire().unwrap(), 7);
        call.sent();
        assert_eq!(call.answered(&mut table, Err(Status::SEQ_MISORDERED)), Verdict::AnotherSlot);
        assert_eq!(table.lost(), 1);
        assert_eq!(table.acquire().unwrap().slot, 1);
    }

    /// RFC 8881 section 2.10.6.1: a slot beyond the server's table is not used again.
    #[test]
    fn badslot_sends_elsewhere() {
        let mut table = SlotTable::new(Epoch(1), 2, 2);
        let _first = table.acquire().unwrap();
        let mut call = Call::new(table.acquire().unwrap(), 7);
        call.sent();
        assert_eq!(call.answered(&mut table, Err(Status::BADSLOT)), Verdict::AnotherSlot);
        assert_eq!(table.limit(), 1);
        assert!(table.acquire().is_none());
    }

    #[test]
    fn a_retry_refused_for_good_is_an_unknown_outcome() {
        let (mut table, mut call) = one();
        call.sent();
        let v = call.answered(&mut table, Err(Status::SEQ_FALSE_RETRY));
        assert_eq!(v, Verdict::Unknown(Status::SEQ_FALSE_RETRY));
        assert!(table.is_exhausted());
        let (mut table, mut call) = one();
        assert_eq!(call.answered(&mut table, Err(Status::REQ_TOO_BIG)), Verdict::Refused(Status::REQ_TOO_BIG));
        assert!(table.acquire().is_some());
    }
}
