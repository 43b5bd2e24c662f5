//! Several sessions of one client ID, used as one: for servers that grant few slots (RFC 8881 section 2.10.6.1).
//!
//! # States and owners
//!
//! The *primary* session is the one that [`crate::recovery`] keeps alive. *Further* sessions are made by CREATE_SESSION
//! with the same client ID (RFC 8881 section 18.36.3) while requests wait for slots, and destroyed when they were not
//! needed for a while. State belongs to the client ID (section 8.1), so an open made over one session is used over any.
//!
//! A further session is *serving*, then perhaps *retiring* (no new requests; destroyed when the last one has ended),
//! then gone. One that the server dropped is gone at once: its requests go elsewhere. All are gone when the client ID
//! is.
//!
//! # Invariants
//!
//! * No more than [`Limits::slots`] requests are out in all sessions together, and no more than [`Limits::sessions`]
//!   sessions exist or are being made.
//! * A session is asked for only while a request has waited [`PATIENCE`] for a slot, and no more of them than those
//!   that wait can fill: a queue that a near server works off in milliseconds is no reason.
//! * A server that takes slots back (its target falls, or it refuses a slot) asks for restraint: it is not asked for
//!   sessions until it gives them again (case K21).
//!
//! # Failures
//!
//! A server that refuses a further session is not asked again for [`REFUSED`]; requests share what there is.

use core::time::Duration;

use crate::slots::{SlotTable, Ticket};
use crate::{Epoch, Time};

/// How long a request waits for a slot before another session is asked for.
pub const PATIENCE: Duration = Duration::from_millis(20);
/// How long a server that refused a session is not asked for another.
pub const REFUSED: Duration = Duration::from_secs(60);
/// How long no session is asked for after one broke.
pub const BROKEN: Duration = Duration::from_secs(1);
/// Over how long a session must have been superfluous to be destroyed.
pub const IDLE: Duration = Duration::from_secs(60);
/// How often a retiring session is looked at.
const DRAIN: Duration = Duration::from_millis(100);

/// What a client wants at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Requests in flight, in all sessions together; at least 1.
    pub slots: u32,
    /// Sessions, the primary included; at least 1.
    pub sessions: usize,
}

/// What the driver is to do about the number of sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Make so many further sessions, and report each by [`Pool::add`] or [`Pool::failed`].
    Grow(usize),
    /// Destroy this session: it is out of the pool already.
    Destroy(Epoch),
    /// Nothing now; ask again at this time, or when a request begins to wait.
    Wait(Time),
    /// Nothing, until a request begins to wait.
    Rest,
}

#[derive(Debug)]
struct Member {
    table: SlotTable,
    /// Most slots that could ever be used here.
    best: u32,
    retiring: bool,
}

impl Member {
    fn new(table: SlotTable) -> Self {
        Self { best: table.limit(), table, retiring: false }
    }

    fn can_take(&self) -> bool {
        !self.retiring && self.table.has_free()
    }
}

/// The slot tables of all sessions of a client.
#[derive(Debug)]
pub struct Pool {
    limits: Limits,
    primary: Member,
    further: Vec<Member>,
    /// Stands in for the table of a session that is gone: facts about it change nothing.
    gone: SlotTable,
    /// Sessions being made.
    making: usize,
    /// No session is asked for before.
    not_before: Time,
    /// Since when, and the most requests that were out at once since then.
    window: (Time, usize),
}

impl Pool {
    /// A pool without a session.
    pub fn new(limits: Limits) -> Self {
        let limits = Limits { slots: limits.slots.max(1), sessions: limits.sessions.max(1) };
        let none = || SlotTable::new(Epoch(0), 1, 1);
        Self {
            limits,
            primary: Member::new(none()),
            further: Vec::new(),
            gone: none(),
            making: 0,
            not_before: Time::ZERO,
            window: (Time::ZERO, 0),
        }
    }

    /// There is a new primary session, in place of the one before.
    pub fn set_primary(&mut self, epoch: Epoch, granted: u32) {
        self.primary = Member::new(SlotTable::new(epoch, granted, self.limits.slots));
    }

    /// One of the sessions that were asked for is there.
    pub fn add(&mut self, epoch: Epoch, granted: u32, now: Time) {
        self.making = self.making.saturating_sub(1);
        self.further.push(Member::new(SlotTable::new(epoch, granted, self.limits.slots)));
        self.window = (now, self.busy());
    }

    /// One of the sessions that were asked for will not come. `refused`: the server does not want to; else something
    /// broke, and the next may succeed after a moment.
    pub fn failed(&mut self, refused: bool, now: Time) {
        self.making = self.making.saturating_sub(1);
        let pause = if refused { REFUSED } else { BROKEN };
        self.not_before = self.not_before.max(now + pause);
    }

    /// The server dropped a further session: another is not asked for at once. False when it was none, or was gone
    /// before.
    pub fn remove(&mut self, epoch: Epoch, now: Time) -> bool {
        let before = self.further.len();
        self.further.retain(|m| m.table.epoch() != epoch);
        let removed = self.further.len() < before;
        if removed {
            self.not_before = self.not_before.max(now + BROKEN);
        }
        removed
    }

    /// A further session takes no more requests, and is to be destroyed when the last one has ended. False when it is
    /// none, or gone.
    pub fn retire(&mut self, epoch: Epoch) -> bool {
        let member = self.further.iter_mut().find(|m| m.table.epoch() == epoch);
        member.map(|m| m.retiring = true).is_some()
    }

    /// The client ID is gone, and all further sessions with it. What the server refused to that one it may give to the
    /// next.
    pub fn remove_further(&mut self) {
        self.further.clear();
        self.not_before = Time::ZERO;
    }

    /// The primary session.
    pub fn primary(&self) -> &SlotTable {
        &self.primary.table
    }

    /// Whether the session is in use.
    pub fn contains(&self, epoch: Epoch) -> bool {
        self.members().any(|m| m.table.epoch() == epoch)
    }

    /// The table of a session; of one that is gone, a table in which nothing has an effect.
    pub fn table(&mut self, epoch: Epoch) -> &mut SlotTable {
        if self.primary.table.epoch() == epoch {
            return &mut self.primary.table;
        }
        match self.further.iter_mut().find(|m| m.table.epoch() == epoch) {
            Some(member) => &mut member.table,
            None => &mut self.gone,
        }
    }

    /// Sessions, the primary included.
    pub fn sessions(&self) -> usize {
        1 + self.further.len()
    }

    /// Slots that may be used at present, in all sessions.
    pub fn limit(&self) -> u32 {
        let granted: u32 = self.members().filter(|m| !m.retiring).map(|m| m.table.limit()).sum();
        granted.min(self.limits.slots)
    }

    /// Requests that are out.
    pub fn busy(&self) -> usize {
        self.members().map(|m| m.table.busy()).sum()
    }

    /// A slot of the session with the fewest requests, the primary before others; `None` when all are busy.
    pub fn acquire(&mut self) -> Option<Ticket> {
        let busy = self.busy();
        if busy >= self.limits.slots as usize {
            return None;
        }
        let members = core::iter::once(&mut self.primary).chain(&mut self.further);
        let ticket = members.filter(|m| m.can_take()).min_by_key(|m| m.table.busy())?.table.acquire();
        self.window.1 = self.window.1.max(busy + 1);
        ticket
    }

    /// A slot of the primary session: for recovery.
    pub fn acquire_primary(&mut self) -> Option<Ticket> {
        self.primary.table.acquire()
    }

    /// Whether another session may be asked for, now or after a pause, should requests wait. Cheap.
    pub fn may_grow(&self) -> bool {
        let count = self.sessions() + self.making;
        count < self.limits.sessions
            && self.limit() < self.limits.slots
            && !self.members().any(|m| m.table.limit() < m.best)
    }

    /// What to do now. `waiting` requests wait for a slot, the longest since `first`.
    pub fn advise(&mut self, now: Time, waiting: usize, first: Time) -> Advice {
        for member in core::iter::once(&mut self.primary).chain(&mut self.further) {
            member.best = member.best.max(member.table.limit());
            // Every slot in doubt: of no use any more. (The primary's end is for the recovery to see.)
            member.retiring |= member.table.is_exhausted();
        }
        self.primary.retiring = false;
        if let Some(at) = self.further.iter().position(|m| m.retiring && m.table.busy() == 0) {
            return Advice::Destroy(self.further.remove(at).table.epoch());
        }
        if waiting > 0 {
            return self.relieve(now, waiting, first);
        }
        self.retire_idle(now);
        let draining = self.further.iter().any(|m| m.retiring);
        match self.further.is_empty() {
            true => Advice::Rest,
            false if draining => Advice::Wait(now + DRAIN),
            false => Advice::Wait(self.window.0 + IDLE),
        }
    }

    fn relieve(&mut self, now: Time, waiting: usize, first: Time) -> Advice {
        if now < self.not_before {
            return Advice::Wait(self.not_before);
        }
        if now < first + PATIENCE {
            return Advice::Wait(first + PATIENCE);
        }
        if !self.may_grow() {
            // An answer may lift the restraint; it is looked at when the next request begins to wait.
            return if self.making > 0 { Advice::Rest } else { Advice::Wait(now + IDLE) };
        }
        // Those being made will take their share of those that wait.
        let each = self.members().map(|m| m.table.limit()).min().unwrap_or(1).max(1) as usize;
        let wanted = waiting.div_ceil(each).saturating_sub(self.making);
        let room = self.limits.sessions - self.sessions() - self.making;
        let slots = (self.limits.slots - self.limit()) as usize;
        let more = wanted.min(room).min(slots.div_ceil(each).saturating_sub(self.making));
        self.making += more;
        if more == 0 { Advice::Rest } else { Advice::Grow(more) }
    }

    /// Marks the youngest session as superfluous when the others would have done, with a quarter to spare.
    fn retire_idle(&mut self, now: Time) {
        if now < self.window.0 + IDLE {
            return;
        }
        let window = (now, self.busy());
        let peak = core::mem::replace(&mut self.window, window).1;
        let serving: usize = self.members().filter(|m| !m.retiring).map(|m| m.table.limit() as usize).sum();
        if let Some(last) = self.further.iter_mut().rev().find(|m| !m.retiring) {
            let others = serving - last.table.limit() as usize;
            last.retiring = peak <= others - others / 4;
        }
    }

    fn members(&self) -> impl Iterator<Item = &Member> {
        core::iter::once(&self.primary).chain(&self.further)
    }
}

#[cfg(test)]
mod tests;
