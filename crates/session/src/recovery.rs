//! What has to be re-established, in which order (RFC 8881 sections 2.10.13.1.4, 8.4.2, 18.35, 18.36, 18.51).

use dhow_proto::v4::Status;

use crate::Epoch;
use crate::backoff::{Backoff, Policy};

/// What the driver has to do next to make the session usable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Send EXCHANGE_ID. The verifier must depend on `incarnation`: another one makes the server drop what it still
    /// holds for this client (section 18.35.4, "client restart").
    ExchangeId {
        /// Counts from 0.
        incarnation: u32,
    },
    /// Send CREATE_SESSION with these.
    CreateSession {
        /// `csa_clientid`.
        clientid: u64,
        /// `csa_sequence`.
        sequence: u32,
    },
    /// Re-establish opens and locks, then call [`Recovery::reclaimed`].
    Reclaim,
    /// Send RECLAIM_COMPLETE with `rca_one_fs` false.
    ReclaimComplete,
    /// Nothing: requests may be sent.
    Ready,
    /// The server refuses this client for good.
    Failed(Status),
    /// The client was closed.
    Closed,
}

/// What to do after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// Do [`Recovery::step`] now.
    Now,
    /// Wait so long first.
    Wait(core::time::Duration),
}

/// What EXCHANGE_ID replied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientIdentity {
    /// `eir_clientid`.
    pub clientid: u64,
    /// `eir_sequenceid`; meaningful unless `confirmed`.
    pub sequence: u32,
    /// `EXCHGID4_FLAG_CONFIRMED_R`.
    pub confirmed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    NoClient,
    NoSession,
    Reclaiming,
    Completing,
    Ready,
    Failed(Status),
    Closed,
}

/// Client ID and session of one client at one server.
///
/// The driver repeats: look at [`Recovery::step`], do it, report the answer. While it is not [`Step::Ready`], requests
/// wait. An answer that was lost with its connection is simply asked for again: EXCHANGE_ID is idempotent and
/// CREATE_SESSION has a sequence number of its own.
#[derive(Debug, Clone)]
pub struct Recovery {
    phase: Phase,
    /// Of the primary session.
    epoch: Epoch,
    /// The last one given to any session.
    last_epoch: Epoch,
    incarnation: u32,
    clientid: Option<u64>,
    /// `csa_sequence` of the next CREATE_SESSION.
    sequence: u32,
    /// The client ID is another one than that under which state was established.
    state_lost: bool,
    /// RECLAIM_COMPLETE was not yet sent under this client ID. Until it is, OPENs are answered by GRACE.
    completion_owed: bool,
    backoff: Backoff,
}

impl Recovery {
    /// A client that has talked to nobody yet. `seed` spreads its waits.
    pub fn new(seed: u64) -> Self {
        Self {
            phase: Phase::NoClient,
            epoch: Epoch(0),
            last_epoch: Epoch(0),
            incarnation: 0,
            clientid: None,
            sequence: 1,
            state_lost: false,
            completion_owed: true,
            backoff: Backoff::new(Policy::DELAY, seed),
        }
    }

    /// What to do now.
    pub fn step(&self) -> Step {
        match (self.phase, self.clientid) {
            (Phase::NoSession, Some(clientid)) => Step::CreateSession { clientid, sequence: self.sequence },
            (Phase::NoClient | Phase::NoSession, _) => Step::ExchangeId { incarnation: self.incarnation },
            (Phase::Reclaiming, _) => Step::Reclaim,
            (Phase::Completing, _) => Step::ReclaimComplete,
            (Phase::Ready, _) => Step::Ready,
            (Phase::Failed(status), _) => Step::Failed(status),
            (Phase::Closed, _) => Step::Closed,
        }
    }

    /// The present session; 0 before the first.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The client ID, once there is one.
    pub fn clientid(&self) -> Option<u64> {
        self.clientid
    }

    /// Whether requests may be sent.
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// Whether the session of `epoch` is the present one and not known to be lost: requests of the recovery itself, and
    /// the last ones of a client that is being closed, may be sent in it. Once it is lost they must end, since nothing
    /// but the recovery, which waits for them, makes another.
    pub fn holds(&self, epoch: Epoch) -> bool {
        epoch == self.epoch && !matches!(self.phase, Phase::NoClient | Phase::NoSession | Phase::Failed(_))
    }

    /// EXCHANGE_ID was answered.
    pub fn exchanged(&mut self, answer: Result<ClientIdentity, Status>) -> After {
        if self.phase != Phase::NoClient {
            return After::Now;
        }
        let identity = match answer {
            Ok(identity) => identity,
            Err(status) => return self.refused(status),
        };
        // A confirmed ID that we had before is the old record: its CREATE_SESSION sequence is ours to count ("the
        // client MUST ignore eir_sequenceid"), and its state is intact.
        let same = identity.confirmed && self.clientid == Some(identity.clientid);
        if !same {
            self.state_lost = self.state_lost || self.epoch > Epoch(0);
            self.completion_owed = true;
            self.sequence = identity.sequence;
        }
        self.clientid = Some(identity.clientid);
        self.advance(Phase::NoSession)
    }

    /// CREATE_SESSION was answered. After a success [`Recovery::epoch`] is that of the new session.
    pub fn created(&mut self, answer: Result<(), Status>) -> After {
        if self.phase != Phase::NoSession {
            return After::Now;
        }
        match answer {
            Ok(()) => {
                self.sequence = self.sequence.wrapping_add(1);
                self.epoch = self.next_epoch();
                let next = match (self.state_lost, self.completion_owed) {
                    (true, _) => Phase::Reclaiming,
                    (false, true) => Phase::Completing,
                    (false, false) => Phase::Ready,
                };
                self.advance(next)
            }
            // Gone, or our count of sequences and the server's differ: begin with the client ID.
            Err(Status::STALE_CLIENTID) => self.advance(Phase::NoClient),
            Err(Status::SEQ_MISORDERED) => {
                // The same (confirmed) ID would come back with the same wrong count: become a new client.
                self.incarnation += 1;
                self.clientid = None;
                self.phase = Phase::NoClient;
                self.wait(Status::SEQ_MISORDERED)
            }
            Err(status) => self.refused(status),
        }
    }

    /// `csa_clientid` and `csa_sequence` of a further session of the client ID; `None` unless requests may be sent.
    ///
    /// CREATE_SESSIONs of one client ID share one sequence (RFC 8881 section 18.36.4), so whoever sends one for a
    /// further session takes no [`Recovery::step`] before it was answered, or its connection is lost. An answer that
    /// was lost comes again to the next CREATE_SESSION, which is a retry then, whatever session it was meant for: no two
    /// are ever taken for one, since the first was never used. That needs equal arguments for all of them.
    pub fn further(&self) -> Option<(u64, u32)> {
        let clientid = self.clientid.filter(|_| self.phase == Phase::Ready)?;
        Some((clientid, self.sequence))
    }

    /// CREATE_SESSION for a further session, with what [`Recovery::further`] said, was answered: its epoch. `None` when
    /// there is no session, or none that is of use.
    pub fn further_created(&mut self, (clientid, sequence): (u64, u32), answer: Result<(), Status>) -> Option<Epoch> {
        if self.clientid != Some(clientid) || self.sequence != sequence {
            return None;
        }
        match answer {
            Ok(()) => {
                self.sequence = self.sequence.wrapping_add(1);
                // Whether the client ID is still there is being found out; what comes of it decides over all sessions.
                (self.phase != Phase::NoClient).then(|| self.next_epoch())
            }
            Err(Status::STALE_CLIENTID) => {
                self.client_lost(self.epoch);
                None
            }
            Err(_) => None,
        }
    }

    fn next_epoch(&mut self) -> Epoch {
        self.last_epoch.0 += 1;
        self.last_epoch
    }

    /// All state that could be re-established is.
    pub fn reclaimed(&mut self) {
        if self.phase == Phase::Reclaiming {
            self.state_lost = false;
            self.phase = if self.completion_owed { Phase::Completing } else { Phase::Ready };
        }
    }

    /// RECLAIM_COMPLETE was answered.
    pub fn completed(&mut self, answer: Result<(), Status>) -> After {
        if self.phase != Phase::Completing {
            return After::Now;
        }
        match answer {
            // A server without the notion of grace may not know the operation; nothing then waits for it.
            Ok(()) | Err(Status::COMPLETE_ALREADY | Status::NOTSUPP) => {
                self.completion_owed = false;
                self.advance(Phase::Ready)
            }
            Err(status) => self.refused(status),
        }
    }

    /// A request sent in `epoch` was told that its session is gone (BADSESSION, DEADSESSION), or the driver wants
    /// another session. Returns whether this is news.
    pub fn session_lost(&mut self, epoch: Epoch) -> bool {
        self.fall_back(epoch, Phase::NoSession)
    }

    /// A request sent in `epoch` was told that the client ID is gone (STALE_CLIENTID). Returns whether this is news.
    pub fn client_lost(&mut self, epoch: Epoch) -> bool {
        self.fall_back(epoch, Phase::NoClient)
    }

    /// The server holds nothing any more for this client (EXPIRED_ALL_STATE_REVOKED): start over as a restarted client
    /// would. Returns whether this is news.
    pub fn start_over(&mut self, epoch: Epoch) -> bool {
        let news = self.fall_back(epoch, Phase::NoClient);
        if news {
            self.incarnation += 1;
            self.clientid = None;
        }
        news
    }

    /// The server restarted but kept the session, and waits for reclaims (RESTART_RECLAIM_NEEDED). Returns whether this
    /// is news.
    pub fn reclaim_needed(&mut self, epoch: Epoch) -> bool {
        if epoch != self.epoch || self.phase != Phase::Ready {
            return false;
        }
        self.state_lost = true;
        self.completion_owed = true;
        self.phase = Phase::Reclaiming;
        true
    }

    /// No more steps.
    pub fn close(&mut self) {
        self.phase = Phase::Closed;
    }

    fn fall_back(&mut self, epoch: Epoch, to: Phase) -> bool {
        // During Reclaiming and Completing requests of the recovery itself are under way, and may learn of a loss.
        let current = epoch == self.epoch && matches!(self.phase, Phase::Ready | Phase::Reclaiming | Phase::Completing);
        if current {
            self.phase = to;
        }
        current
    }

    fn refused(&mut self, status: Status) -> After {
        match status {
            Status::DELAY | Status::GRACE | Status::CLID_INUSE => self.wait(status),
            Status::BADSESSION | Status::DEADSESSION => self.advance(Phase::NoSession),
            Status::STALE_CLIENTID => self.advance(Phase::NoClient),
            status => {
                self.phase = Phase::Failed(status);
                After::Now
            }
        }
    }

    fn wait(&mut self, status: Status) -> After {
        match self.backoff.next_wait() {
            Some(wait) => After::Wait(wait),
            None => {
                self.phase = Phase::Failed(status);
                After::Now
            }
        }
    }

    /// Two answers that send the machine back and forth must not make it spin: only reaching `Ready` resets the waits.
    fn advance(&mut self, to: Phase) -> After {
        let backwards = matches!(
            (self.phase, to),
            (Phase::NoSession, Phase::NoClient)
                | (Phase::Reclaiming | Phase::Completing, Phase::NoSession | Phase::NoClient)
        );
        self.phase = to;
        if to == Phase::Ready {
            self.backoff.reset();
        }
        if backwards { self.wait(Status::DELAY) } else { After::Now }
    }
}

#[cfg(test)]
mod tests;
