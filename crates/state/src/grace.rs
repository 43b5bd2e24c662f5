//! The grace period after a restart (RFC 8881 8.4.2.1).
//!
//! States: *none* (the server starts without records: nobody can have anything to reclaim, so there is nothing to wait
//! for), *running* (clients of the previous instance reclaim; nobody takes new state), *ending* (time is up: records
//! of clients that did not finish are being forgotten, durably, before anything that could conflict with what they
//! held is granted: RFC 8881 8.4.3), *over*. It is running until every client of the previous instance has sent
//! RECLAIM_COMPLETE, or time is up.
//!
//! Locks, opens and I/O without an open wait for its end. Changes of files and names (SETATTR, REMOVE, RENAME, LINK), which
//! only a delegation or an open that denies writing stands against, wait only while a client that may have held such has
//! not finished: the records tell ([`Holds`]), as RFC 8881 8.4.2.1 lets a server do.

use crate::types::{ClientOwnerId, ClientRecord, FileKey, Holds, Revoked, Status, Time};
use std::collections::HashMap;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Running,
    Ending,
    Over,
}

/// The state machine.
#[derive(Debug)]
pub(crate) struct Grace {
    phase: Phase,
    end: Time,
    /// Clients of the previous instance that have not sent RECLAIM_COMPLETE.
    pending: HashMap<ClientOwnerId, Before>,
}

/// What the record of a client says, of the instance before.
#[derive(Debug)]
pub(crate) struct Before {
    /// What it may have held.
    pub(crate) holds: Holds,
    /// What of that it may not reclaim.
    pub(crate) revoked: Revoked,
}

impl Grace {
    pub(crate) fn new(previous: impl IntoIterator<Item = ClientRecord>, end: Time) -> Self {
        let pending: HashMap<_, _> =
            previous.into_iter().map(|r| (r.owner, Before { holds: r.holds, revoked: r.revoked })).collect();
        let phase = if pending.is_empty() { Phase::Over } else { Phase::Running };
        Self { phase, end, pending }
    }

    /// Whether new state is refused.
    pub(crate) fn active(&self) -> bool {
        self.phase != Phase::Over
    }

    /// Whether `owner` has a record of the previous instance and may still reclaim.
    pub(crate) fn knows(&self, owner: &ClientOwnerId) -> bool {
        self.pending.contains_key(owner)
    }

    /// The record of `owner`; `None` if it has none, or has finished.
    pub(crate) fn before(&self, owner: &ClientOwnerId) -> Option<&Before> {
        self.pending.get(owner)
    }

    /// What clients may yet reclaim.
    pub(crate) fn holds(&self) -> Holds {
        self.pending.values().fold(Holds::NONE, |all, b| all | b.holds)
    }

    /// Whether another client than `but` may yet reclaim a delegation of `file`.
    pub(crate) fn may_bring_delegation(&self, file: &FileKey, but: &ClientOwnerId) -> bool {
        let may = |b: &Before| b.holds.contains(Holds::DELEGATIONS) && !b.revoked.contains(file);
        self.pending.iter().any(|(owner, b)| owner != but && may(b))
    }

    /// May `owner` reclaim? RFC 8881 9.11, case B31.
    pub(crate) fn may_reclaim(&self, owner: &ClientOwnerId) -> Result<(), Status> {
        match self.phase {
            Phase::Running if self.knows(owner) => Ok(()),
            _ => Err(Status::NO_GRACE),
        }
    }

    /// RECLAIM_COMPLETE; `true` if that ends the grace period.
    pub(crate) fn complete(&mut self, owner: &ClientOwnerId) -> bool {
        self.pending.remove(owner);
        let ends = self.phase == Phase::Running && self.pending.is_empty();
        if ends {
            self.phase = Phase::Over;
        }
        ends
    }

    /// Time passes; `Some` when it is up: the records to forget, then [`Grace::over`].
    pub(crate) fn tick(&mut self, now: Time) -> Option<Vec<ClientOwnerId>> {
        if self.phase != Phase::Running || now < self.end {
            return None;
        }
        self.phase = Phase::Ending;
        let mut owners: Vec<_> = self.pending.keys().cloned().collect();
        owners.sort();
        Some(owners)
    }

    /// The records are forgotten.
    pub(crate) fn over(&mut self) -> Vec<ClientOwnerId> {
        self.phase = Phase::Over;
        std::mem::take(&mut self.pending).into_keys().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn owner(s: &'static str) -> ClientOwnerId {
        ClientOwnerId(Bytes::from_static(s.as_bytes()))
    }

    fn record(s: &'static str) -> ClientRecord {
        ClientRecord { owner: owner(s), holds: Holds::NONE, revoked: Revoked::default() }
    }

    #[test]
    fn a_fresh_server_has_no_grace_period() {
        let g = Grace::new([], Time::from_secs(90));
        assert!(!g.active());
        assert_eq!(g.may_reclaim(&owner("a")), Err(Status::NO_GRACE));
    }

    #[test]
    fn what_may_be_reclaimed_is_what_the_unfinished_may_hold() {
        // RFC 8881 8.4.2.1.
        let mut lost = Revoked::default();
        lost.insert(FileKey::new(b"lost"));
        let a = ClientRecord { holds: Holds::DELEGATIONS, revoked: lost, ..record("a") };
        let mut g = Grace::new([a, ClientRecord { holds: Holds::DENIALS, ..record("b") }], Time::from_secs(90));
        assert_eq!(g.holds(), Holds::ALL);
        let may = |g: &Grace, f: &str, but| g.may_bring_delegation(&FileKey::new(f.as_bytes()), &owner(but));
        assert!(may(&g, "f", "b") && may(&g, "f", "stranger"));
        assert!(!may(&g, "f", "a"), "nobody is in the way of himself");
        assert!(!may(&g, "lost", "b"), "that one was revoked");
        g.complete(&owner("a"));
        assert!(!may(&g, "f", "b"));
        assert_eq!(g.holds(), Holds::DENIALS);
        g.complete(&owner("b"));
        assert_eq!(g.holds(), Holds::NONE);
    }

    #[test]
    fn ends_early_when_all_are_done() {
        // RFC 8881 18.51.4, case B31.
        let mut g = Grace::new([record("a"), record("b")], Time::from_secs(90));
        assert!(g.active());
        assert_eq!(g.may_reclaim(&owner("a")), Ok(()));
        assert_eq!(g.may_reclaim(&owner("stranger")), Err(Status::NO_GRACE));
        assert!(!g.complete(&owner("stranger")));
        assert!(!g.complete(&owner("a")));
        assert_eq!(g.may_reclaim(&owner("a")), Err(Status::NO_GRACE), "RFC 8881 18.51.3");
        assert!(g.complete(&owner("b")));
        assert!(!g.active());
    }

    #[test]
    fn time_up_forgets_before_it_grants() {
        // RFC 8881 8.4.3.
        let mut g = Grace::new([record("b"), record("a")], Time::from_secs(90));
        assert_eq!(g.tick(Time::from_secs(89)), None);
        assert_eq!(g.tick(Time::from_secs(90)), Some(vec![owner("a"), owner("b")]));
        assert!(g.active(), "nothing is granted before the records are gone");
        assert_eq!(g.may_reclaim(&owner("a")), Err(Status::NO_GRACE));
        assert_eq!(g.tick(Time::from_secs(91)), None);
        g.over();
        assert!(!g.active());
    }
}
