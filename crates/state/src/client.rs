//! A client instance: what requests of all its sessions touch, without a lock where that can be.
//!
//! States: *unconfirmed* (made by EXCHANGE_ID), *live* (confirmed by CREATE_SESSION; its lease may have ended, then it
//! is *courteous*: kept, but in nobody's way), *dying* (being retired: no new request, no new state; its state still
//! counts in conflict checks until it is gone), gone. *Dying* is never left but for *gone*.

use crate::ending::Ending;
use crate::ids::StateKey;
use crate::types::{ClientId, ClientOwnerId, ClientRecord, FileKey, Holds, Principal, Revoked, Time, Verifier};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// The lease in one word: bit 63 *dying*, bits 43..63 requests that run, bits 0..43 the end in milliseconds. One word,
/// because "the lease has ended, nobody is at work, so retire" must not interleave with a renewal (RFC 8881 8.3: a
/// lease does not end while a COMPOUND of the client runs).
struct Lease(AtomicU64);

const DYING: u64 = 1 << 63;
const ONE: u64 = 1 << 43;
const TIME: u64 = ONE - 1;

impl Lease {
    fn active(word: u64) -> u64 {
        (word & !DYING) >> 43
    }

    /// Renews and counts a request; `false` if dying.
    fn enter(&self, end: Time) -> bool {
        self.0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |w| {
                // More than a million requests at once: the slot limits are far below; refuse rather than overflow.
                (w & DYING == 0 && Self::active(w) < (1 << 20) - 1)
                    .then(|| (w & !TIME).wrapping_add(ONE) | (w & TIME).max(end.as_millis() & TIME))
            })
            .is_ok()
    }

    fn leave(&self, end: Option<Time>) {
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |w| {
            let end = end.map_or(0, |t| t.as_millis() & TIME);
            (Self::active(w) > 0).then(|| (w & !TIME).wrapping_sub(ONE) | (w & TIME).max(end))
        });
    }

    fn renew(&self, end: Time) -> bool {
        self.enter(end) && {
            self.leave(None);
            true
        }
    }

    fn is_dying(&self) -> bool {
        self.0.load(Ordering::SeqCst) & DYING != 0
    }

    fn ended(&self, now: Time) -> bool {
        let w = self.0.load(Ordering::SeqCst);
        Self::active(w) == 0 && (w & TIME) < now.as_millis()
    }

    fn end(&self) -> Time {
        Time((self.0.load(Ordering::SeqCst) & TIME).saturating_mul(1_000_000))
    }

    /// Begins to die, if the lease has ended (or always, with `force`). `false` if not, or if dying already.
    fn kill(&self, now: Time, force: bool) -> bool {
        self.0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |w| {
                let ended = Self::active(w) == 0 && (w & TIME) < now.as_millis();
                (w & DYING == 0 && (force || ended)).then_some(w | DYING)
            })
            .is_ok()
    }
}

/// A client instance.
pub struct Client {
    id: ClientId,
    owner: ClientOwnerId,
    verifier: Verifier,
    principal: Principal,
    lease_time: Duration,
    lease: Lease,
    /// Its durable record is there.
    recorded: AtomicBool,
    /// What that says of what it may hold: the bits of a [`Holds`].
    holds: AtomicU8,
    /// RECLAIM_COMPLETE was sent.
    pub(crate) reclaim_complete: AtomicBool,
    /// A retire runs; dropping it clears this, so that the next tick starts another.
    pub(crate) retiring: AtomicBool,
    /// (session, connection) pairs bound to a back channel.
    pub(crate) back_conns: AtomicU32,
    /// Some session of it had a back channel once.
    pub(crate) had_back: AtomicBool,
    pub(crate) opens: AtomicUsize,
    /// Ranges it has locked, and its lock states.
    pub(crate) locks: AtomicUsize,
    pub(crate) copies: AtomicUsize,
    pub(crate) notifies: AtomicUsize,
    /// Delegations that it holds, and revoked ones that it has not freed.
    pub(crate) delegs: AtomicUsize,
    pub(crate) revoked: AtomicUsize,
    /// Stateids that an administrator revoked and that it has not freed.
    pub(crate) admin_revoked: AtomicUsize,
    /// Delegations among them.
    pub(crate) admin_delegs: AtomicUsize,
    /// A callback got no answer, and none has since.
    call_failed: AtomicBool,
    /// When it was last asked to give delegations up, nanoseconds.
    asked: AtomicU64,
    /// Opens of this client, for the retire. Leaf lock: taken while a stripe is held.
    pub(crate) states: Mutex<BTreeSet<StateKey>>,
    /// What of its delegations was revoked. Leaf lock: taken while a stripe is held.
    pub(crate) lost: Mutex<Lost>,
    /// Who waits for its end.
    pub(crate) ending: Ending,
}

/// Delegations that a client lost, as far as its record must tell (RFC 8881 8.4.3).
#[derive(Debug, Default)]
pub(crate) struct Lost {
    /// In an earlier life of the server; until the client says that it has reclaimed what it had.
    pub(crate) before: Revoked,
    /// In this one; until it frees them.
    pub(crate) now: Revoked,
    /// In this one, by an administrator: what is freed of these is not known by its file any more, so they stay.
    pub(crate) taken: Revoked,
    /// The record says more than that.
    pub(crate) outdated: bool,
}

impl Lost {
    pub(crate) fn is_empty(&self) -> bool {
        self.before.is_empty() && self.now.is_empty() && self.taken.is_empty()
    }

    /// Client and server agree on what there is (RECLAIM_COMPLETE).
    pub(crate) fn agreed(&mut self) {
        self.outdated |= !std::mem::take(&mut self.before).is_empty();
    }

    /// One was acknowledged, or did not come to pass.
    pub(crate) fn forget(&mut self, file: &FileKey) {
        self.outdated |= self.now.files.remove(file);
    }

    fn all(&self) -> Revoked {
        let mut all = self.before.clone();
        for more in [&self.now, &self.taken] {
            more.files.iter().for_each(|f| all.insert(f.clone()));
            all.all |= more.all;
        }
        all
    }
}

impl Client {
    pub(crate) fn new(
        id: ClientId,
        owner: ClientOwnerId,
        verifier: Verifier,
        principal: Principal,
        lease_time: Duration,
        now: Time,
    ) -> Self {
        let client = Self {
            id,
            owner,
            verifier,
            principal,
            lease_time,
            lease: Lease(AtomicU64::new(0)),
            recorded: AtomicBool::new(false),
            holds: AtomicU8::new(0),
            reclaim_complete: AtomicBool::new(false),
            retiring: AtomicBool::new(false),
            back_conns: AtomicU32::new(0),
            had_back: AtomicBool::new(false),
            opens: AtomicUsize::new(0),
            locks: AtomicUsize::new(0),
            copies: AtomicUsize::new(0),
            notifies: AtomicUsize::new(0),
            delegs: AtomicUsize::new(0),
            revoked: AtomicUsize::new(0),
            admin_revoked: AtomicUsize::new(0),
            admin_delegs: AtomicUsize::new(0),
            call_failed: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            states: Mutex::new(BTreeSet::new()),
            lost: Mutex::default(),
            ending: Ending::default(),
        };
        client.lease.renew(now + lease_time);
        client
    }

    /// Its client ID.
    pub fn id(&self) -> ClientId {
        self.id
    }

    /// What it calls itself.
    pub fn owner(&self) -> &ClientOwnerId {
        &self.owner
    }

    /// Its incarnation.
    pub fn verifier(&self) -> Verifier {
        self.verifier
    }

    /// Who made it.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// The record to be made durable before this client's first state is committed (RFC 8881 8.4.3), and before the first
    /// of each kind that `holds` names; `None` if that was done. Tell [`Client::recorded`] afterwards. Store one at a time,
    /// so that no record is replaced by one that says less.
    pub fn needs_record(&self, holds: Holds) -> Option<ClientRecord> {
        (!self.is_recorded_with(holds)).then(|| ClientRecord { holds: self.holds() | holds, ..self.record() })
    }

    fn record(&self) -> ClientRecord {
        ClientRecord { owner: self.owner.clone(), holds: self.holds(), revoked: self.lost.lock().all() }
    }

    /// What its record says of what it may hold.
    pub(crate) fn holds(&self) -> Holds {
        Holds::from_bits(self.holds.load(Ordering::Acquire)).unwrap_or(Holds::ALL)
    }

    /// Whether [`Client::outdated_record`] has something to tell.
    pub fn has_outdated_record(&self) -> bool {
        self.lost.lock().outdated
    }

    /// The record, if the durable one says that more was revoked than is so by now (FREE_STATEID, RECLAIM_COMPLETE); that
    /// counts as told. Stored or not, it is no worse than before.
    pub fn outdated_record(&self) -> Option<ClientRecord> {
        let outdated = std::mem::take(&mut self.lost.lock().outdated);
        (outdated && self.is_recorded()).then(|| self.record())
    }

    /// The record with one more delegation that is about to be revoked: durable before others are let in.
    pub(crate) fn losing(&self, file: FileKey) -> ClientRecord {
        self.lost.lock().now.insert(file);
        self.record()
    }

    /// Whether it may reclaim a delegation of `file`, as far as its record tells.
    pub(crate) fn lost(&self, file: &FileKey) -> bool {
        let lost = self.lost.lock();
        [&lost.before, &lost.now, &lost.taken].into_iter().any(|revoked| revoked.contains(file))
    }

    /// A record that says so is durable.
    pub fn recorded(&self, holds: Holds) {
        self.holds.fetch_or(holds.bits(), Ordering::AcqRel);
        self.recorded.store(true, Ordering::Release);
    }

    /// Whether the record is durable and says that the client may hold all of `holds`.
    pub(crate) fn is_recorded_with(&self, holds: Holds) -> bool {
        self.is_recorded() && self.holds().contains(holds)
    }

    pub(crate) fn is_recorded(&self) -> bool {
        self.recorded.load(Ordering::Acquire)
    }

    pub(crate) fn unrecorded(&self) {
        self.recorded.store(false, Ordering::Release);
    }

    /// Whether it is being retired: requests of it are refused.
    pub fn is_dying(&self) -> bool {
        self.lease.is_dying()
    }

    /// Whether its lease has ended and none of its requests runs.
    pub fn is_expired(&self, now: Time) -> bool {
        self.lease.ended(now)
    }

    /// When its lease ends, as far as is known now.
    pub fn lease_end(&self) -> Time {
        self.lease.end()
    }

    /// A request begins: renews the lease and keeps it from ending.
    pub(crate) fn enter(&self, now: Time) -> bool {
        self.lease.enter(now + self.lease_time)
    }

    /// A request is done; at `now`, if that is known, the lease is renewed once more (RFC 8881 8.3).
    pub(crate) fn leave(&self, now: Option<Time>) {
        self.lease.leave(now.map(|t| t + self.lease_time));
    }

    pub(crate) fn renew(&self, now: Time) -> bool {
        self.lease.renew(now + self.lease_time)
    }

    pub(crate) fn kill_if_expired(&self, now: Time) -> bool {
        self.told(self.lease.kill(now, false))
    }

    pub(crate) fn kill(&self, now: Time) -> bool {
        self.told(self.lease.kill(now, true))
    }

    /// Tells those who wait for its end.
    fn told(&self, dying: bool) -> bool {
        if dying {
            self.ending.wake();
        }
        dying
    }

    /// Counts ranges and lock states that came and went.
    pub(crate) fn count_locks(&self, before: usize, after: usize) {
        if after >= before {
            self.locks.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.locks.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    /// Whether it holds anything that matters to others: opens (locks need one), delegations or copies.
    pub fn has_state(&self) -> bool {
        let some = |n: &AtomicUsize| n.load(Ordering::SeqCst) > 0;
        some(&self.opens) || some(&self.delegs) || some(&self.copies)
    }

    /// Whether delegations can be recalled from it, as far as is known: a connection is bound to a back channel, and the
    /// last callback was answered.
    pub fn can_be_called(&self) -> bool {
        self.back_conns.load(Ordering::SeqCst) > 0 && !self.call_failed.load(Ordering::SeqCst)
    }

    /// Tells how a callback ended.
    pub fn called(&self, answered: bool) {
        self.call_failed.store(!answered, Ordering::SeqCst);
    }

    /// Whether it is time to ask it for delegations again; then that counts as done.
    pub(crate) fn ask_again(&self, now: Time, every: Duration) -> bool {
        let last = self.asked.load(Ordering::SeqCst);
        (last == 0 || now.since(Time(last)) > every) && {
            self.asked.store(now.0.max(1), Ordering::SeqCst);
            true
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({:#x}, {:?})", self.id.0, self.owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn client() -> Client {
        let owner = ClientOwnerId(Bytes::from_static(b"c"));
        let who = Principal(Bytes::new());
        Client::new(ClientId(1), owner, Verifier::default(), who, Duration::from_secs(10), Time::default())
    }

    #[test]
    fn a_lease_does_not_end_while_a_request_runs() {
        // RFC 8881 8.3.
        let c = client();
        assert!(!c.is_expired(Time::from_secs(10)));
        assert!(c.is_expired(Time::from_secs(11)));
        assert!(c.enter(Time::from_secs(20)), "courtesy: a late client is welcome");
        assert!(!c.is_expired(Time::from_secs(100)));
        assert!(!c.kill_if_expired(Time::from_secs(100)));
        c.leave(Some(Time::from_secs(100)));
        assert!(!c.is_expired(Time::from_secs(109)));
        assert!(c.is_expired(Time::from_secs(111)));
    }

    #[test]
    fn a_dying_client_stays_so() {
        let c = client();
        assert!(c.kill_if_expired(Time::from_secs(11)));
        assert!(!c.kill_if_expired(Time::from_secs(11)), "only one retires it");
        assert!(!c.enter(Time::from_secs(12)));
        assert!(!c.renew(Time::from_secs(12)));
        assert!(c.is_dying());
    }

    #[test]
    fn counting_survives_death() {
        let c = client();
        assert!(c.enter(Time::from_secs(1)) && c.enter(Time::from_secs(1)));
        assert!(c.kill(Time::from_secs(1)));
        c.leave(None);
        c.leave(Some(Time::from_secs(2)));
        c.leave(None);
        assert!(c.is_dying());
    }
}
