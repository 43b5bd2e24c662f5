//! Delegations of files (RFC 8881 10.2 to 10.5): given with an OPEN, recalled, returned, revoked.
//!
//! A delegation lies in the stripe of its file, so that everything that conflicts with it is judged under the same
//! mutex as the OPEN that would grant it: which of two racing requests comes first is decided in one step, together
//! with the stateid that is returned.
//!
//! States: *held* → *recalled* (the client has been, or is being, asked for it; usable) → gone. A recall that is not
//! heeded in a lease time ends in *revoked*: the stateid stays, so that the client can be told (DELEG_REVOKED), until it
//! frees it; it stands in nobody's way. Before *gone* and *revoked* lies *ending*: no new I/O, the old is waited for
//! ([`DelegEnd`]). Whoever ends a delegation gives up what guards it at the backend before the commit, and only the
//! commit lets others in.
//!
//! Invariants:
//!
//! * A delegation that is not revoked is in `delegs`, in its file's list and in its client's `states`, or in none of
//!   them; one that is revoked is in `delegs` and in its client's `states`.
//! * At most one for each client and file. Beside a write delegation there is no other, and no open of another client;
//!   beside read delegations no other client has the file open for writing, or is about to.
//! * A recall is handed out to be sent once: the step that marks it recalled returns it.
//! * While a [`crate::Change`] or a write under a special stateid is under way, none is granted on that file.

use crate::State;
use crate::admin::{Memory, RevokedKind};
use crate::client::Client;
use crate::file::{Stripe, in_nobodys_way};
use crate::ids::{Kind, StateKey, check_seqid};
use crate::io::{Drain, IoGate};
use crate::types::*;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How long after a recall for a conflict no delegation of the file is given: it would be recalled again.
///
/// Also after another client changed its names. Linux believes in a name for as long as it holds a delegation of the file it
/// found there (RFC 8881 10.4 promises nothing of names), and opens it by its filehandle: had it cached the old name before,
/// it would go on with the old file. It caches names for a minute at most (acdirmax).
const CONTENDED: Duration = Duration::from_secs(65);

/// Files of one stripe that are remembered as contended.
const MAX_CONTENDED: usize = 1024;

/// A client that writes back under a recalled delegation gets so many lease times.
const PATIENCE: u32 = 5;

/// At most once in this time is one client asked to give delegations up for want of room.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// What a delegation allows its holder to believe (RFC 8881 10.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DelegKind {
    /// Nobody else changes the file.
    Read,
    /// Nobody else uses the file.
    Write,
}

/// Why no delegation is given.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WhyNot {
    /// Others use the file, or did just now (WND4_CONTENTION).
    Contention,
    /// Too many, or no working path for the recall (WND4_RESOURCE).
    Resource,
    /// The client holds one of this kind on the file.
    Held(DelegKind),
}

/// What somebody wants to do with a file that a delegation may stand against (RFC 8881 10.4.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Use {
    /// OPEN with this access and these deny bits.
    Open {
        /// Access.
        access: Share,
        /// Denied to others.
        deny: Share,
    },
    /// READ and the like under a special stateid.
    Read,
    /// WRITE and the like under a special stateid.
    Write,
    /// SETATTR, REMOVE, RENAME, LINK.
    Change,
    /// LOCKT: the holder of a write delegation may hold locks that nobody knows of (RFC 8881 10.4.2).
    TestLock,
}

/// A delegation to be recalled: the step that yields it has marked it so, and nobody else will send this recall.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Recall {
    /// Whose.
    pub client: ClientId,
    /// Which.
    pub stateid: Stateid,
    /// Session, sequence id and slot of the OPEN that granted it, whose reply the recall must not overtake.
    pub granted_by: Option<(SessionId, u32, u32)>,
}

/// A delegation offered with the commit of an OPEN.
#[derive(Debug)]
pub struct Offer<T> {
    /// Which kind.
    pub kind: DelegKind,
    /// What I/O under its stateid goes through, and what guards it at the backend.
    pub token: T,
    /// Something at the backend guards it that writing by the holder itself would break.
    pub guarded: bool,
    /// See [`Recall::granted_by`].
    pub granted_by: Option<(SessionId, u32, u32)>,
    /// The file's change attribute, of a time when the open was there already.
    pub change: u64,
    /// The client reclaims it: neither limits nor earlier contention count.
    pub reclaim: bool,
    /// It is to be given back at once (a reclaim of what would not be granted any more).
    pub recalled: bool,
    /// Now.
    pub now: Time,
}

/// Which delegation, and under which conditions.
#[derive(Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) kind: DelegKind,
    /// Opens in the making that are the caller's own.
    pub(crate) own: usize,
    pub(crate) reclaim: bool,
    pub(crate) now: Time,
}

/// What became of an offer.
#[derive(Debug)]
pub enum Delegated<T> {
    /// There was none.
    NotOffered,
    /// Granted.
    Granted(Stateid),
    /// Not granted; the token is to be closed.
    Refused(WhyNot, T),
}

/// The holder of a write delegation, to be asked by CB_GETATTR.
#[derive(Debug)]
pub struct Holder<T> {
    /// Who.
    pub client: ClientId,
    /// The delegation.
    pub stateid: Stateid,
    /// Its token.
    pub token: T,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Held,
    /// Since when; and when it was last used for writing.
    Recalled(Time, Time),
    Revoked,
}

/// A delegation.
#[derive(Debug)]
pub(crate) struct Deleg<T> {
    pub(crate) file: FileKey,
    pub(crate) client: Arc<Client>,
    kind: DelegKind,
    phase: Phase,
    /// Takes no new I/O.
    pub(crate) closing: bool,
    /// None once it is revoked.
    pub(crate) token: Option<T>,
    /// Copy-notify stateids asked with it.
    pub(crate) notifies: Vec<StateKey>,
    pub(crate) gate: Arc<IoGate>,
    guarded: bool,
    granted_by: Option<(SessionId, u32, u32)>,
    /// The change attribute as of the grant (`sc` in RFC 8881 10.4.3), whether the holder has modified the file, and the
    /// last value told to others.
    granted_change: u64,
    modified: bool,
    told_change: u64,
    counted: Option<Counted>,
}

/// One delegation, counted for its client and in all.
#[derive(Debug)]
struct Counted {
    client: Arc<Client>,
    total: Arc<DelegCounts>,
    kind: DelegKind,
}

/// Delegations of all stripes, to be asked without a lock.
#[derive(Debug, Default)]
pub(crate) struct DelegCounts {
    all: AtomicUsize,
    write: AtomicUsize,
}

impl Counted {
    fn new(client: &Arc<Client>, total: &Arc<DelegCounts>, kind: DelegKind) -> Self {
        client.delegs.fetch_add(1, Ordering::SeqCst);
        total.all.fetch_add(1, Ordering::SeqCst);
        if kind == DelegKind::Write {
            total.write.fetch_add(1, Ordering::SeqCst);
        }
        Self { client: client.clone(), total: total.clone(), kind }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.client.delegs.fetch_sub(1, Ordering::SeqCst);
        self.total.all.fetch_sub(1, Ordering::SeqCst);
        if self.kind == DelegKind::Write {
            self.total.write.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl<T> Deleg<T> {
    /// Its kind, and whether it was recalled.
    pub(crate) fn shown(&self) -> (DelegKind, bool) {
        (self.kind, matches!(self.phase, Phase::Recalled(..)))
    }

    fn conflicts(&self, client: ClientId, usage: Use) -> bool {
        let own = self.client.id() == client;
        let write = self.kind == DelegKind::Write;
        match usage {
            // What guards a read delegation from local programs would be broken by our own opening for writing.
            Use::Open { access, .. } if own => self.guarded && access.write(),
            Use::Write if own => self.guarded && !write,
            _ if own => false,
            Use::Open { access, deny } => write || access.write() || deny.read(),
            Use::Read | Use::TestLock => write,
            Use::Write | Use::Change => true,
        }
    }

    fn recall(&mut self, key: &StateKey, now: Time) -> Option<Recall> {
        if self.phase != Phase::Held {
            return None;
        }
        self.phase = Phase::Recalled(now, now);
        Some(Recall { client: self.client.id(), stateid: key.stateid(1), granted_by: self.granted_by })
    }
}

impl<T: Clone> Stripe<T> {
    /// Judges `usage` of a file against its delegations; marks those that stand in the way as recalled.
    pub(crate) fn deleg_conflict(
        &mut self,
        file: &FileKey,
        client: ClientId,
        usage: Use,
        now: Time,
    ) -> Result<(), Refused> {
        let Some(f) = self.files.get(file) else { return Ok(()) };
        if f.delegs.is_empty() {
            return Ok(());
        }
        let keys: SmallVec<[StateKey; 4]> = f.delegs.iter().copied().collect();
        let (mut recalls, mut courtesy, mut blocked) = (Vec::new(), None, false);
        for key in keys {
            let Some(d) = self.delegs.get_mut(&key).filter(|d| d.conflicts(client, usage)) else { continue };
            if in_nobodys_way(&d.client, now) {
                courtesy = Some(d.client.id());
                continue;
            }
            blocked = true;
            recalls.extend(d.recall(&key, now));
        }
        if blocked {
            self.contend(file, None, now);
            return Err(Refused::Delegated(recalls));
        }
        courtesy.map_or(Ok(()), |id| Err(Refused::Courtesy(id)))
    }

    /// For a while no delegation of `file` is given to any client `but` this one.
    pub(crate) fn contend(&mut self, file: &FileKey, but: Option<ClientId>, now: Time) {
        if self.contended.len() >= MAX_CONTENDED {
            self.contended.retain(|_, c| c.until > now);
        }
        // An earlier reason that still holds, for others than this one, makes it hold for all.
        let but = but.filter(|_| self.contended.get(file).is_none_or(|c| c.until <= now || c.but == but));
        if self.contended.len() < MAX_CONTENDED {
            self.contended.insert(file.clone(), Contended { until: now + CONTENDED, but });
        }
    }

    /// Takes a delegation out of all tables.
    pub(crate) fn remove_deleg(&mut self, key: &StateKey, effects: &mut Effects<T>) -> bool {
        let Some(d) = self.delegs.remove(key) else { return false };
        d.client.states.lock().remove(key);
        self.not_lost(&d);
        if d.phase == Phase::Revoked {
            d.client.revoked.fetch_sub(1, Ordering::SeqCst);
        }
        for n in &d.notifies {
            self.notifies.remove(n);
        }
        self.unlist(&d.file, key);
        effects.extend(d.token.map(Effect::Close));
        true
    }

    /// A delegation is gone that the client's record may call revoked: it stays so only if there is another such.
    fn not_lost(&self, d: &Deleg<T>) {
        if d.client.lost.lock().now.is_empty() {
            return;
        }
        let same = |k: &StateKey| {
            self.delegs.get(k).is_some_and(|other| other.phase == Phase::Revoked && other.file == d.file)
        };
        if !d.client.states.lock().iter().any(same) {
            d.client.lost.lock().forget(&d.file);
        }
    }

    fn unlist(&mut self, file: &FileKey, key: &StateKey) {
        if let Some(f) = self.files.get_mut(file) {
            f.delegs.retain(|k| k != key);
        }
        self.drop_if_idle(file);
    }

    /// A client's delegation of a file that is not revoked.
    pub(crate) fn delegation_of(&self, file: &FileKey, client: ClientId) -> Option<StateKey> {
        let own = |key: &&StateKey| self.delegs.get(key).is_some_and(|d| d.client.id() == client);
        self.files.get(file)?.delegs.iter().find(own).copied()
    }

    /// Whether a client holds a write delegation of a file.
    pub(crate) fn holds_for_writing(&self, client: &Client, file: &FileKey) -> bool {
        let key = self.delegation_of(file, client.id());
        key.and_then(|key| self.delegs.get(&key)).is_some_and(|d| d.kind == DelegKind::Write)
    }

    /// The token of a delegation that is not revoked.
    pub(crate) fn deleg_token(&self, key: &StateKey) -> Option<&T> {
        self.delegs.get(key).and_then(|d| d.token.as_ref())
    }

    /// Leave to do I/O under a delegation: its token and gate, or why not.
    pub(crate) fn deleg_io(
        &mut self,
        key: &StateKey,
        client: &Client,
        file: &FileKey,
        stateid: &Stateid,
        kind: IoKind,
        now: Time,
    ) -> Result<(T, Arc<IoGate>), Status> {
        let missing = self.missing(key, client.id());
        let d = self.delegs.get_mut(key).ok_or(missing)?;
        if d.client.id() != client.id() || d.file != *file {
            return Err(Status::BAD_STATEID);
        }
        check_seqid(stateid.seqid, 1)?;
        if d.phase == Phase::Revoked {
            return Err(Status::DELEG_REVOKED);
        }
        if d.closing {
            return Err(Status::DELAY);
        }
        if kind == IoKind::Write {
            if d.kind == DelegKind::Read {
                return Err(Status::OPENMODE);
            }
            if let Phase::Recalled(_, used) = &mut d.phase {
                *used = now;
            }
        }
        let token = d.token.clone().ok_or(Status::DELEG_REVOKED)?;
        Ok((token, d.gate.clone()))
    }

    /// By right of a delegation (CLAIM_DELEGATE_CUR, CLAIM_DELEG_CUR_FH): whether `stateid` is one that covers `access`
    /// (RFC 8881 18.16.3).
    pub(crate) fn deleg_claim(
        &self,
        client: &Client,
        file: &FileKey,
        stateid: &Stateid,
        access: Share,
    ) -> Result<(), Status> {
        let key = StateKey::parse(&stateid.other);
        let d = self.delegs.get(&key).filter(|_| key.is(Kind::Deleg)).ok_or(self.missing(&key, client.id()))?;
        if d.client.id() != client.id() || d.file != *file {
            return Err(Status::BAD_STATEID);
        }
        check_seqid(stateid.seqid, 1)?;
        match d.phase {
            Phase::Revoked => Err(Status::DELEG_REVOKED),
            _ if d.closing => Err(Status::DELAY),
            _ if d.kind == DelegKind::Read && access.write() => Err(Status::INVAL),
            _ => Ok(()),
        }
    }
}

/// Why a file gets no delegation for a while.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contended {
    until: Time,
    /// Who may have one all the same.
    but: Option<ClientId>,
}

/// The end of a delegation under way: it takes no new I/O. Dropping it before the commit lets it go on.
#[must_use = "dropping the plan keeps the delegation"]
#[derive(Debug)]
pub struct DelegEnd<'a, T: Clone + Send> {
    state: &'a State<T>,
    key: StateKey,
    file: FileKey,
    gate: Arc<IoGate>,
    token: T,
    how: How,
    done: bool,
}

/// How a delegation ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Returned,
    /// Revoked, for its recall was not heeded.
    Late,
    /// Revoked, for an administrator wants it.
    ByAdmin(Memory),
}

impl<T: Clone + Send> DelegEnd<'_, T> {
    /// Waits for the I/O under the delegation.
    pub fn drain(&self) -> Drain {
        Drain::new(vec![self.gate.clone()])
    }

    /// Its client does not return it: it is revoked.
    pub fn revokes(&self) -> bool {
        self.how != How::Returned
    }

    /// Of which file.
    pub fn file(&self) -> &FileKey {
        &self.file
    }

    /// The client's record, which tells that this delegation is revoked: to be durable before the commit lets others in
    /// (RFC 8881 8.4.3, 10.2.1).
    pub fn record(&self) -> Option<ClientRecord> {
        let stripe = self.state.stripe(&self.file).lock();
        stripe.delegs.get(&self.key).map(|d| d.client.losing(self.file.clone()))
    }

    /// The token: what guards the delegation at the backend is to be given up before the commit.
    pub fn token(&self) -> &T {
        &self.token
    }

    /// Ends it: who waits for that may go on.
    pub fn commit(mut self) -> Effects<T> {
        self.done = true;
        let mut effects = Vec::new();
        let mut guard = self.state.stripe(&self.file).lock();
        let stripe = &mut *guard;
        if self.how != How::Late {
            let client = stripe.delegs.get(&self.key).map(|d| d.client.clone());
            stripe.remove_deleg(&self.key, &mut effects);
            if let (Some(client), How::ByAdmin(memory)) = (client, self.how) {
                stripe.remember_revoked(&client, &[(self.key, RevokedKind::Delegation)], memory);
                // The record goes on to say so.
                client.lost.lock().taken.insert(self.file.clone());
            }
            return effects;
        }
        if let Some(d) = stripe.delegs.get_mut(&self.key) {
            d.phase = Phase::Revoked;
            d.closing = false;
            d.counted = None;
            d.client.revoked.fetch_add(1, Ordering::SeqCst);
            effects.extend(d.token.take().map(Effect::Close));
            for n in std::mem::take(&mut d.notifies) {
                stripe.notifies.remove(&n);
            }
        }
        stripe.unlist(&self.file, &self.key);
        effects
    }
}

impl<T: Clone + Send> Drop for DelegEnd<'_, T> {
    fn drop(&mut self) {
        if !self.done
            && let Some(d) = self.state.stripe(&self.file).lock().delegs.get_mut(&self.key)
            && !d.client.is_dying()
        {
            d.closing = false;
        }
    }
}

impl<T: Clone + Send> State<T> {
    /// Delegations that are held, of both kinds.
    pub fn delegations(&self) -> usize {
        self.deleg_counts.all.load(Ordering::SeqCst)
    }

    /// Write delegations that are held.
    pub fn write_delegations(&self) -> usize {
        self.deleg_counts.write.load(Ordering::SeqCst)
    }

    /// Whether a delegation could be given.
    pub(crate) fn may_grant(
        &self,
        stripe: &Stripe<T>,
        file: &FileKey,
        client: &Client,
        ask: Ask,
    ) -> Result<(), WhyNot> {
        let Ask { kind, own, reclaim, now } = ask;
        if !reclaim {
            if self.delegations() >= self.limits().delegations
                || client.delegs.load(Ordering::SeqCst) >= self.limits().delegations_per_client
            {
                self.hits.delegations.add();
                return Err(WhyNot::Resource);
            }
            if stripe.contended.get(file).is_some_and(|c| c.until > now && c.but != Some(client.id())) {
                return Err(WhyNot::Contention);
            }
        }
        // One that was revoked, and not freed, is not to be mixed up with another after a restart.
        if !reclaim && client.lost(file) {
            return Err(WhyNot::Contention);
        }
        // A reclaim is granted, and recalled by the reply (10.2.1).
        if !reclaim && !client.can_be_called() {
            return Err(WhyNot::Resource);
        }
        let Some(f) = stripe.files.get(file) else { return Ok(()) };
        let mut others = false;
        for d in f.delegs.iter().filter_map(|k| stripe.delegs.get(k)) {
            if d.client.id() == client.id() {
                return Err(WhyNot::Held(d.kind));
            }
            others = true;
            if kind == DelegKind::Write || d.kind == DelegKind::Write || d.phase != Phase::Held {
                return Err(WhyNot::Contention);
            }
        }
        let write = kind == DelegKind::Write;
        if f.reserved > own || f.changing > 0 || (write && others) || Arc::strong_count(&stripe.special_writes) > 1 {
            return Err(WhyNot::Contention);
        }
        let theirs = |key: &StateKey| stripe.opens.get(key).is_some_and(|o| write || o.access.write());
        let contended = f.by_owner.iter().any(|(o, key)| o.client != client.id() && theirs(key));
        if contended { Err(WhyNot::Contention) } else { Ok(()) }
    }

    /// Grants what is offered, if that can be; the caller holds the stripe and has just made the open.
    pub(crate) fn grant_offer(
        &self,
        stripe: &mut Stripe<T>,
        file: &FileKey,
        client: &Arc<Client>,
        offer: Offer<T>,
    ) -> Delegated<T> {
        let ask = Ask { kind: offer.kind, own: 0, reclaim: offer.reclaim, now: offer.now };
        if let Err(why) = self.may_grant(stripe, file, client, ask) {
            return Delegated::Refused(why, offer.token);
        }
        let key = self.ids.state(Kind::Deleg, self.ids.stripe(file.as_bytes()));
        {
            let mut states = client.states.lock();
            if client.is_dying() {
                return Delegated::Refused(WhyNot::Resource, offer.token);
            }
            states.insert(key);
        }
        let phase = if offer.recalled { Phase::Recalled(offer.now, offer.now) } else { Phase::Held };
        let deleg = Deleg {
            file: file.clone(),
            client: client.clone(),
            kind: offer.kind,
            phase,
            closing: false,
            token: Some(offer.token),
            notifies: Vec::new(),
            gate: Arc::new(IoGate::default()),
            guarded: offer.guarded,
            granted_by: offer.granted_by,
            granted_change: offer.change,
            modified: false,
            told_change: offer.change,
            counted: Some(Counted::new(client, &self.deleg_counts, offer.kind)),
        };
        stripe.delegs.insert(key, deleg);
        stripe.file_mut(file).delegs.push(key);
        Delegated::Granted(key.stateid(1))
    }

    /// Whether `client` may use `file` so, as far as delegations of others go. A request that the state does not judge
    /// otherwise (LOCKT) asks here; one that changes the file takes a [`crate::Change`].
    ///
    /// # Errors
    ///
    /// A delegation stands in the way, or a client whose lease has ended.
    pub fn check_delegations(&self, client: &Client, file: &FileKey, usage: Use, now: Time) -> Result<(), Refused> {
        if self.delegations() == 0 {
            return Ok(());
        }
        self.stripe(file).lock().deleg_conflict(file, client.id(), usage, now)
    }

    /// A local program is about to write to `file`: all its delegations are recalled. Also: clients among their holders
    /// whose lease has ended, to be retired.
    pub fn recall_file(&self, file: &FileKey, now: Time) -> (Vec<Recall>, Vec<ClientId>) {
        let mut guard = self.stripe(file).lock();
        let stripe = &mut *guard;
        let (mut recalls, mut over) = (Vec::new(), Vec::new());
        let keys: Vec<_> = stripe.files.get(file).map(|f| f.delegs.to_vec()).unwrap_or_default();
        for key in &keys {
            let Some(d) = stripe.delegs.get_mut(key) else { continue };
            if in_nobodys_way(&d.client, now) {
                over.push(d.client.id());
            } else {
                recalls.extend(d.recall(key, now));
            }
        }
        if !keys.is_empty() {
            stripe.contend(file, None, now);
        }
        (recalls, over)
    }

    /// Recalls one delegation, for whatever reason; `None` if that was done already, or it is gone.
    pub fn recall(&self, stateid: &Stateid, now: Time) -> Option<Recall> {
        let key = StateKey::parse(&stateid.other);
        let mut stripe = self.stripe_of(&key)?.lock();
        stripe.delegs.get_mut(&key)?.recall(&key, now)
    }

    /// The token of a delegation that is not over: for its filehandle.
    pub fn delegation(&self, stateid: &Stateid) -> Option<T> {
        let key = StateKey::parse(&stateid.other);
        self.stripe_of(&key)?.lock().deleg_token(&key).cloned()
    }

    /// Whether `client` may reclaim its delegation of `file` (CLAIM_PREVIOUS with a delegation).
    ///
    /// # Errors
    ///
    /// RECLAIM_BAD: it was revoked, and the server restarted before the client had said that it knows (RFC 8881 10.2.1).
    pub fn may_reclaim_delegation(&self, client: &Client, file: &FileKey) -> Result<(), Status> {
        if client.lost(file) { Err(Status::RECLAIM_BAD) } else { Ok(()) }
    }

    /// DELEGRETURN (RFC 8881 18.6). Await [`DelegEnd::drain`], give up what guards it, then commit.
    ///
    /// # Errors
    ///
    /// BAD_STATEID, OLD_STATEID, DELEG_REVOKED, DELAY (its end is under way already).
    pub fn plan_delegreturn(
        &self,
        client: &Client,
        file: &FileKey,
        stateid: &Stateid,
    ) -> Result<DelegEnd<'_, T>, Status> {
        let key = StateKey::parse(&stateid.other);
        if !key.is(Kind::Deleg) || stateid.is_special() {
            return Err(Status::BAD_STATEID);
        }
        let mut stripe = self.stripe(file).lock();
        let d = stripe.delegs.get(&key).ok_or(stripe.missing(&key, client.id()))?;
        if d.client.id() != client.id() || d.file != *file {
            return Err(Status::BAD_STATEID);
        }
        check_seqid(stateid.seqid, 1)?;
        self.end_deleg(&mut stripe, key, How::Returned)
    }

    /// Begins to revoke a delegation whose recall was not heeded: see [`Effect::Revoke`].
    ///
    /// # Errors
    ///
    /// BAD_STATEID (it is gone), DELEG_REVOKED, DELAY (its end is under way).
    pub fn plan_revoke(&self, stateid: &Stateid) -> Result<DelegEnd<'_, T>, Status> {
        let key = StateKey::parse(&stateid.other);
        let mut stripe = self.stripe_of(&key).ok_or(Status::BAD_STATEID)?.lock();
        self.end_deleg(&mut stripe, key, How::Late)
    }

    /// Begins to take a delegation from its client, recalled or not (RFC 8881 8.5): as [`State::plan_revoke`].
    pub(crate) fn plan_revoke_deleg(&self, key: StateKey, memory: Memory) -> Result<DelegEnd<'_, T>, Status> {
        let mut stripe = self.stripe_of(&key).ok_or(Status::BAD_STATEID)?.lock();
        self.end_deleg(&mut stripe, key, How::ByAdmin(memory))
    }

    fn end_deleg(&self, stripe: &mut Stripe<T>, key: StateKey, how: How) -> Result<DelegEnd<'_, T>, Status> {
        let d = stripe.delegs.get_mut(&key).ok_or(Status::BAD_STATEID)?;
        if d.phase == Phase::Revoked {
            return Err(Status::DELEG_REVOKED);
        }
        if d.closing {
            return Err(Status::DELAY);
        }
        let token = d.token.clone().ok_or(Status::DELEG_REVOKED)?;
        d.closing = true;
        let (file, gate) = (d.file.clone(), d.gate.clone());
        Ok(DelegEnd { state: self, key, file, gate, token, how, done: false })
    }

    /// The client other than `client` that holds a write delegation of `file`, to be asked for size and change
    /// (RFC 8881 10.4.3).
    ///
    /// # Errors
    ///
    /// It is a client whose lease has ended: what it changed and did not send is lost with it.
    pub fn write_holder(
        &self,
        client: Option<ClientId>,
        file: &FileKey,
        now: Time,
    ) -> Result<Option<Holder<T>>, Refused> {
        if self.write_delegations() == 0 {
            return Ok(None);
        }
        let stripe = self.stripe(file).lock();
        let Some(f) = stripe.files.get(file) else { return Ok(None) };
        let theirs = |d: &&Deleg<T>| d.kind == DelegKind::Write && Some(d.client.id()) != client;
        let found = f.delegs.iter().find_map(|key| stripe.delegs.get(key).filter(theirs).map(|d| (key, d)));
        let Some((key, d)) = found else { return Ok(None) };
        if in_nobodys_way(&d.client, now) {
            return Err(Refused::Courtesy(d.client.id()));
        }
        let holder = |token| Holder { client: d.client.id(), stateid: key.stateid(1), token };
        Ok(d.token.clone().map(holder))
    }

    /// What the holder of a write delegation said of the file (RFC 8881 10.4.3): its change attribute as others are to
    /// see it, if the file is modified. `actual_*` is what the backend says, and what counts once the delegation is gone.
    pub fn observed(
        &self,
        stateid: &Stateid,
        change: Option<u64>,
        size: u64,
        actual_change: u64,
        actual_size: u64,
    ) -> Option<u64> {
        let key = StateKey::parse(&stateid.other);
        let mut stripe = self.stripe_of(&key)?.lock();
        let d = stripe.delegs.get_mut(&key).filter(|d| d.phase != Phase::Revoked)?;
        d.modified |= change.is_some_and(|c| c != d.granted_change) || size != actual_size;
        if !d.modified {
            return None;
        }
        // Greater each time, for the holder may have changed the file again in between.
        d.told_change = d.told_change.max(actual_change).wrapping_add(1);
        Some(d.told_change)
    }

    /// TEST_STATEID of a delegation.
    pub(crate) fn test_deleg(&self, client: &Client, stateid: &Stateid) -> Status {
        let key = StateKey::parse(&stateid.other);
        let Some(stripe) = self.stripe_of(&key) else { return Status::BAD_STATEID };
        let stripe = stripe.lock();
        match stripe.delegs.get(&key) {
            Some(d) if d.client.id() == client.id() => match check_seqid(stateid.seqid, 1) {
                Err(status) => status,
                Ok(()) if d.phase == Phase::Revoked => Status::DELEG_REVOKED,
                Ok(()) => Status::OK,
            },
            _ => Status::BAD_STATEID,
        }
    }

    /// FREE_STATEID of a delegation: one that was revoked is forgotten (RFC 8881 18.38).
    pub(crate) fn free_deleg(&self, client: &Client, stateid: &Stateid) -> Result<(), Status> {
        match self.test_deleg(client, stateid) {
            Status::DELEG_REVOKED => {}
            Status::OK => return Err(Status::LOCKS_HELD),
            status => return Err(status),
        }
        let key = StateKey::parse(&stateid.other);
        let mut none = Vec::new();
        if let Some(stripe) = self.stripe_of(&key) {
            stripe.lock().remove_deleg(&key, &mut none);
        }
        debug_assert!(none.is_empty(), "a revoked delegation has no token");
        Ok(())
    }

    /// What time does to delegations: those whose recall was not heeded for a lease time are to be revoked (RFC 8881
    /// 10.4.5); a client that still writes back gets longer. When there are nearly too many, clients are asked to give
    /// some up (20.6).
    pub(crate) fn tick_delegs(&self, now: Time, effects: &mut Effects<T>) {
        if self.delegations() == 0 {
            return;
        }
        let lease = self.limits().lease;
        let mut clients: std::collections::BTreeMap<ClientId, Arc<Client>> = std::collections::BTreeMap::new();
        for stripe in &self.stripes {
            let mut stripe = stripe.lock();
            for (key, d) in &stripe.delegs {
                if let Phase::Recalled(since, used) = d.phase
                    && !d.closing
                    && (now.since(used) > lease || now.since(since) > lease * PATIENCE)
                {
                    effects.push(Effect::Revoke(key.stateid(1)));
                }
                if d.phase != Phase::Revoked {
                    clients.entry(d.client.id()).or_insert_with(|| d.client.clone());
                }
            }
            if !stripe.contended.is_empty() {
                stripe.contended.retain(|_, c| c.until > now);
            }
        }
        let near = |n: usize, limit: usize| n.saturating_mul(8) >= limit.saturating_mul(7) && n > 1;
        let all = near(self.delegations(), self.limits().delegations);
        // Of all clients, those with more than their share give something up.
        let share = self.limits().delegations / clients.len().max(1);
        for (id, c) in clients {
            let n = c.delegs.load(Ordering::SeqCst);
            let asked = (all && n > 1 && n * 2 > share) || near(n, self.limits().delegations_per_client);
            if asked && c.ask_again(now, ASK_AGAIN) {
                effects.push(Effect::RecallAny { client: id, keep: (n / 2) as u32 });
            }
        }
    }
}
