//! What an administrator sees of the state, and takes away (RFC 8881 8.5: "because of administrative intervention").
//!
//! Looking: pages of bounded length, each made under the same short locks that requests take; a page is no snapshot of
//! the whole, only of each entry. Nothing here waits.
//!
//! Taking away: one open with its lock states, the locks of one lock-owner on one file, one delegation, one copy, one
//! client. It goes plan, wait, commit like the operation that the client itself would send (CLOSE, LOCKU, DELEGRETURN);
//! what differs is what stays: the stateid is *revoked* until the client frees it (FREE_STATEID) or ends. Meanwhile each
//! use of it is ADMIN_REVOKED and SEQUENCE says ADMIN_STATE_REVOKED (18.46.3). It stands in nobody's way.
//!
//! A lock state goes with its open: what a client has freed or closed takes the revoked stateids of the locks that were taken
//! through it along. (The Linux client, seen with 7.2, forgets the stateids of locks when it hears of a revocation, before it
//! could test and free them; it would hear of them for ever, and take all its locks for lost each time.)
//! A delegation that is taken away shows as RECALLABLE_STATE_REVOKED too: that is what the same client looks through its
//! delegations for.
//!
//! Where the client cannot name the file any more (its export is gone, so that CLOSE too ends at PUTFH), it may have
//! given the open up without a word, and would hear of it for ever: such a stateid is forgotten after some lease times,
//! in each of which the client has heard of it ([`Memory::Leases`]).
//!
//! Invariant: a revoked stateid is in `Stripe::revoked`, in its client's `states`, and counted in the client's
//! `admin_revoked`, or in none of them; it is in no other table.

use crate::State;
use crate::client::Client;
use crate::clients::Record;
use crate::copies::Phase;
use crate::deleg::{DelegEnd, DelegKind};
use crate::file::Stripe;
use crate::ids::{Kind, StateKey};
use crate::lockset::{LockKind, Range};
use crate::open::ClosePlan;
use crate::types::*;
use bytes::Bytes;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Revoked stateids that are remembered of one client; of more the client hears BAD_STATEID.
const REMEMBERED: usize = 65_536;

/// Ranges shown of one lock-owner.
const RANGES: usize = 64;

/// Lease times that [`Memory::Leases`] means.
const LEASES: u32 = 2;

/// How long a revoked stateid is remembered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// Until the client frees it (RFC 8881 18.46.3).
    UntilFreed,
    /// So, but for two lease times at most.
    Leases,
}

/// A stateid that was taken away; counted for its client while it lives.
#[derive(Debug)]
pub(crate) struct Revoked {
    client: Arc<Client>,
    memory: Memory,
    kind: RevokedKind,
    /// When time was first told of it.
    since: Option<Time>,
}

/// A stateid that is taken away.
pub(crate) type Taken = (StateKey, RevokedKind);

/// What a stateid that was taken away stood for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RevokedKind {
    Open,
    /// The locks of a lock-owner, by the open that they were taken through.
    Lock(StateKey),
    Delegation,
}

impl Revoked {
    fn new(client: &Arc<Client>, memory: Memory, kind: RevokedKind) -> Self {
        client.admin_revoked.fetch_add(1, Ordering::SeqCst);
        if kind == RevokedKind::Delegation {
            client.admin_delegs.fetch_add(1, Ordering::SeqCst);
        }
        Self { client: client.clone(), memory, kind, since: None }
    }
}

impl Drop for Revoked {
    fn drop(&mut self) {
        self.client.admin_revoked.fetch_sub(1, Ordering::SeqCst);
        if self.kind == RevokedKind::Delegation {
            self.client.admin_delegs.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Some entries of a list, in order, and whether there are more behind them.
#[derive(Clone, Debug)]
pub struct Page<I> {
    /// The entries.
    pub items: Vec<I>,
    /// More follow: ask again with the last of these.
    pub more: bool,
}

/// A client as an administrator sees it.
#[derive(Clone, Debug)]
pub struct ClientInfo {
    /// Its client ID.
    pub id: ClientId,
    /// What it calls itself.
    pub owner: ClientOwnerId,
    /// It has had a session (RFC 8881 18.35).
    pub confirmed: bool,
    /// It is being retired.
    pub dying: bool,
    /// Its lease has ended; it is kept out of courtesy.
    pub expired: bool,
    /// Time since its lease was renewed.
    pub lease_age: Duration,
    /// It may take state: RECLAIM_COMPLETE was sent.
    pub reclaim_complete: bool,
    /// A connection is bound to a back channel.
    pub back_channel: bool,
    /// Its sessions.
    pub sessions: usize,
    /// Connections bound to them.
    pub conns: Vec<ConnId>,
    /// Opens.
    pub opens: usize,
    /// Ranges locked, and lock states.
    pub locks: usize,
    /// Delegations.
    pub delegations: usize,
    /// Asynchronous copies that run.
    pub copies: usize,
    /// Copy-notify stateids.
    pub copy_notifies: usize,
    /// Revoked stateids that it has not freed, delegations that it did not return among them.
    pub revoked: usize,
}

/// What a stateid stands for.
#[derive(Clone, Debug)]
pub enum Detail {
    /// An open.
    Open {
        /// Access.
        access: Share,
        /// What is denied to others.
        deny: Share,
        /// Its lock states.
        lock_states: usize,
    },
    /// The locks of a lock-owner.
    Lock {
        /// The first of its ranges on the file.
        ranges: Vec<(Range, LockKind)>,
        /// How many there are.
        count: usize,
    },
    /// A delegation.
    Delegation {
        /// Of which kind.
        kind: DelegKind,
        /// The client was asked to return it.
        recalled: bool,
    },
}

/// An open, a lock state or a delegation.
#[derive(Clone, Debug)]
pub struct StateInfo<T> {
    /// Its stateid.
    pub stateid: Stateid,
    /// Whose it is.
    pub client: ClientId,
    /// The client's bytes of the open-owner or lock-owner; empty for a delegation.
    pub owner: Bytes,
    /// The file.
    pub file: FileKey,
    /// The server's token of the open (of a lock: of the open it was taken through).
    pub token: T,
    /// The rest.
    pub detail: Detail,
}

/// Which state to show.
#[derive(Clone, Debug, Default)]
pub struct StateFilter {
    /// Of this client alone.
    pub client: Option<ClientId>,
    /// Of this file alone.
    pub file: Option<FileKey>,
}

/// An asynchronous copy.
#[derive(Clone, Debug)]
pub struct CopyInfo {
    /// Its stateid.
    pub stateid: Stateid,
    /// Whose it is.
    pub client: ClientId,
    /// Bytes written so far.
    pub bytes: u64,
    /// How it ended; `None` while it runs.
    pub complete: Option<Status>,
}

/// State to be taken from a client. Wait for the I/O under it, then commit; dropping it before lets it go on.
#[must_use = "dropping the plan takes nothing away"]
#[derive(Debug)]
pub enum Revocation<'a, T: Clone + Send> {
    /// An open, with its lock states.
    Open(ClosePlan<'a, T>),
    /// A delegation: what guards it is to be given up before the commit.
    Delegation(DelegEnd<'a, T>),
    /// Locks: there is nothing to wait for, and these were taken away at once.
    Locks(Effects<T>),
}

impl<T> Stripe<T> {
    /// Why there is nothing under this stateid: it was revoked, or never was.
    pub(crate) fn missing(&self, key: &StateKey, client: ClientId) -> Status {
        match self.revoked.get(key) {
            Some(r) if r.client.id() == client => Status::ADMIN_REVOKED,
            _ => Status::BAD_STATEID,
        }
    }

    /// An open and its lock states.
    pub(crate) fn stateids_of(&self, key: &StateKey) -> Option<(Arc<Client>, Vec<Taken>)> {
        let open = self.opens.get(key)?;
        let locks = open.lock_states.iter().map(|lock| (*lock, RevokedKind::Lock(*key)));
        Some((open.client.clone(), std::iter::once((*key, RevokedKind::Open)).chain(locks).collect()))
    }

    /// An open is freed or closed: nobody asks for locks taken through it any more.
    pub(crate) fn forget_locks_through(&mut self, open: &StateKey) {
        if self.revoked.is_empty() {
            return;
        }
        self.revoked.retain(|key, r| {
            let through = r.kind == RevokedKind::Lock(*open);
            if through {
                r.client.states.lock().remove(key);
            }
            !through
        });
    }

    /// Stateids that are in no other table any more are revoked, as far as their client is concerned.
    pub(crate) fn remember_revoked(&mut self, client: &Arc<Client>, keys: &[Taken], memory: Memory) {
        // Under this lock, so that a retire that begins now either sees them or is seen here.
        let mut states = client.states.lock();
        if client.is_dying() {
            return;
        }
        for (key, kind) in keys {
            if client.admin_revoked.load(Ordering::SeqCst) >= REMEMBERED {
                return;
            }
            states.insert(*key);
            self.revoked.insert(*key, Revoked::new(client, memory, *kind));
        }
    }
}

/// The `most` smallest of `keys`, in order, and whether there are more.
fn smallest<K: Ord>(keys: impl Iterator<Item = K>, most: usize) -> (Vec<K>, bool) {
    let (mut heap, mut more) = (BinaryHeap::new(), false);
    for key in keys {
        heap.push(key);
        if heap.len() > most {
            heap.pop();
            more = true;
        }
    }
    (heap.into_sorted_vec(), more)
}

impl<T: Clone + Send> State<T> {
    pub(crate) fn is_revoked(&self, client: &Client, key: &StateKey) -> bool {
        let Some(stripe) = self.stripe_of(key) else { return false };
        stripe.lock().missing(key, client.id()) == Status::ADMIN_REVOKED
    }

    /// FREE_STATEID of what was revoked (RFC 8881 18.38); whether it was.
    pub(crate) fn forget_revoked(&self, client: &Client, key: &StateKey) -> bool {
        let Some(stripe) = self.stripe_of(key) else { return false };
        let mut stripe = stripe.lock();
        let revoked = stripe.missing(key, client.id()) == Status::ADMIN_REVOKED;
        if revoked {
            stripe.revoked.remove(key);
            client.states.lock().remove(key);
            stripe.forget_locks_through(key);
        }
        revoked
    }

    /// Clients in the order of their IDs, from behind `after`, at most `most`.
    pub fn admin_clients(&self, after: Option<ClientId>, most: usize, now: Time) -> Page<ClientInfo> {
        let lease = self.limits().lease;
        let (records, more) = {
            let t = self.clients.lock();
            let behind = t.by_id.keys().copied().filter(|id| after.is_none_or(|a| *id > a));
            let (ids, more) = smallest(behind, most);
            let record = |id: &ClientId| {
                let Record { client, confirmed, sessions, .. } = t.by_id.get(id)?;
                Some((client.clone(), *confirmed, sessions.clone()))
            };
            (ids.iter().filter_map(record).collect::<Vec<_>>(), more)
        };
        let info = |(c, confirmed, sessions): (Arc<Client>, bool, Vec<Arc<crate::Session>>)| {
            let mut conns: Vec<ConnId> = Vec::new();
            for session in &sessions {
                conns.extend(session.inner.lock().conns.iter().map(|b| b.conn));
            }
            conns.sort_unstable();
            conns.dedup();
            let n = |count: &std::sync::atomic::AtomicUsize| count.load(Ordering::SeqCst);
            ClientInfo {
                id: c.id(),
                owner: c.owner().clone(),
                confirmed,
                dying: c.is_dying(),
                expired: c.is_expired(now),
                lease_age: now.since(c.lease_end() - lease),
                reclaim_complete: c.reclaim_complete.load(Ordering::SeqCst),
                back_channel: c.back_conns.load(Ordering::SeqCst) > 0,
                sessions: sessions.len(),
                conns,
                opens: n(&c.opens),
                locks: n(&c.locks),
                delegations: n(&c.delegs),
                copies: n(&c.copies),
                copy_notifies: n(&c.notifies),
                revoked: n(&c.admin_revoked) + n(&c.revoked),
            }
        };
        Page { items: records.into_iter().map(info).collect(), more }
    }

    /// Opens, lock states and delegations that `filter` lets through, from behind `after`, at most `most`.
    pub fn admin_states(&self, filter: &StateFilter, after: Option<&Stateid>, most: usize) -> Page<StateInfo<T>> {
        let after = after.map(|s| StateKey::parse(&s.other));
        let only = filter.file.as_ref().map(|f| self.ids.stripe(f.as_bytes()));
        let mut page = Page { items: Vec::new(), more: false };
        for (index, stripe) in self.stripes.iter().enumerate() {
            let before = after.is_some_and(|a| index < usize::from(a.stripe));
            if before || only.is_some_and(|o| usize::from(o) != index) {
                continue;
            }
            let stripe = stripe.lock();
            let wanted = |client: ClientId, file: &FileKey| {
                filter.client.is_none_or(|c| c == client) && filter.file.as_ref().is_none_or(|f| f == file)
            };
            let opens = stripe.opens.iter().filter(|(_, o)| wanted(o.client.id(), &o.file)).map(|(k, _)| *k);
            let locks = stripe.locks.iter().filter_map(|(k, l)| {
                let open = stripe.opens.get(&l.open)?;
                wanted(l.owner.client, &open.file).then_some(*k)
            });
            let delegs = stripe.delegs.iter().filter(|(_, d)| d.token.is_some() && wanted(d.client.id(), &d.file));
            let all = opens.chain(locks).chain(delegs.map(|(k, _)| *k));
            let left = most - page.items.len();
            // Within a stripe, and so in the whole list, in the order of the keys.
            let behind = all.filter(|k| after.is_none_or(|a| k.stripe != a.stripe || *k > a));
            let (keys, more) = smallest(behind, left);
            page.items.extend(keys.iter().filter_map(|k| stripe.describe(k)));
            if more {
                page.more = true;
                break;
            }
        }
        page
    }

    /// Opens and delegations whose token `wanted` picks. It runs under a lock: it must not wait for anything.
    pub fn states_where(&self, wanted: impl Fn(&T) -> bool) -> Vec<Stateid> {
        let mut found = Vec::new();
        for stripe in &self.stripes {
            let stripe = stripe.lock();
            let opens = stripe.opens.iter().filter(|(_, o)| wanted(&o.token)).map(|(k, _)| k);
            let delegs = stripe.delegs.iter().filter(|(_, d)| d.token.as_ref().is_some_and(&wanted)).map(|(k, _)| k);
            found.extend(opens.chain(delegs).map(|k| k.stateid(0)));
        }
        found
    }

    /// The file of an open, a lock state or a delegation; `None` if there is no such state.
    pub fn file_of(&self, stateid: &Stateid) -> Option<FileKey> {
        let key = StateKey::parse(&stateid.other);
        let stripe = self.stripe_of(&key)?.lock();
        let open = stripe.locks.get(&key).map_or(key, |l| l.open);
        let of_open = stripe.opens.get(&open).map(|o| o.file.clone());
        of_open.or_else(|| stripe.delegs.get(&key).map(|d| d.file.clone()))
    }

    /// What time does to revoked stateids: see [`Memory`].
    pub(crate) fn tick_revoked(&self, now: Time) {
        let most = self.limits().lease * LEASES;
        for stripe in &self.stripes {
            let mut stripe = stripe.lock();
            if stripe.revoked.is_empty() {
                continue;
            }
            stripe.revoked.retain(|key, r| {
                let since = *r.since.get_or_insert(now);
                let keep = r.memory == Memory::UntilFreed || now.since(since) <= most;
                if !keep {
                    r.client.states.lock().remove(key);
                }
                keep
            });
        }
    }

    /// Takes state from its client; the caller keeps other changes of the file's state away meanwhile.
    ///
    /// # Errors
    ///
    /// BAD_STATEID (there is no such state), DELEG_REVOKED (that was done), DELAY (its end is under way).
    pub fn plan_admin_revoke(&self, stateid: &Stateid, memory: Memory) -> Result<Revocation<'_, T>, Status> {
        let key = StateKey::parse(&stateid.other);
        match key {
            _ if stateid.is_special() => Err(Status::BAD_STATEID),
            k if k.is(Kind::Open) => self.plan_revoke_open(k, memory).map(Revocation::Open),
            k if k.is(Kind::Deleg) => self.plan_revoke_deleg(k, memory).map(Revocation::Delegation),
            k if k.is(Kind::Lock) => self.revoke_locks(k, memory).map(Revocation::Locks),
            _ => Err(Status::BAD_STATEID),
        }
    }

    /// All that one lock-owner has locked on a file, through whichever open, and its lock states there.
    fn revoke_locks(&self, key: StateKey, memory: Memory) -> Result<Effects<T>, Status> {
        let mut guard = self.stripe_of(&key).ok_or(Status::BAD_STATEID)?.lock();
        let stripe = &mut *guard;
        let state = stripe.locks.get(&key).ok_or(Status::BAD_STATEID)?;
        let owner = state.owner.clone();
        let open = stripe.opens.get(&state.open).ok_or(Status::BAD_STATEID)?;
        let (file, token, client) = (open.file.clone(), open.token.clone(), open.client.clone());
        let mut gone = Vec::new();
        let opens: Vec<StateKey> =
            stripe.files.get(&file).map_or_else(Vec::new, |f| f.by_owner.values().copied().collect());
        for key in opens {
            let (Some(open), locks) = (stripe.opens.get_mut(&key), &mut stripe.locks) else { continue };
            open.lock_states.retain(|k| {
                let theirs = locks.get(k).is_some_and(|l| l.owner == owner);
                if theirs {
                    locks.remove(k);
                    gone.push((*k, RevokedKind::Lock(key)));
                }
                !theirs
            });
        }
        client.count_locks(gone.len(), 0);
        let mut effects = Vec::new();
        if let Some(f) = stripe.files.get_mut(&file) {
            let before = f.locks.len();
            if f.locks.release(&owner) {
                client.count_locks(before, f.locks.len());
                effects.push(Effect::Unlock { file, open: token, owner });
            }
        }
        stripe.remember_revoked(&client, &gone, memory);
        Ok(effects)
    }

    /// Ends a client whatever its lease says: run [`State::retire`] for it. Its sessions are gone then (BADSESSION), and
    /// what it held with them. Whether there is such a client.
    pub fn expire_client(&self, id: ClientId, now: Time) -> bool {
        let mut t = self.clients.lock();
        let Some(r) = t.by_id.get(&id).filter(|r| !r.client.is_dying()) else { return false };
        let client = r.client.clone();
        if !r.confirmed {
            t.remove_unconfirmed(client.owner());
        } else if client.kill(now) {
            t.detach(id, client.is_recorded());
        }
        true
    }

    /// Ends the grace period before its time: who has not reclaimed by now loses what it held. `None` if none runs.
    /// Carry the effects out: it is over when the records are removed (RFC 8881 8.4.3).
    pub fn end_grace(&self) -> Option<Effects<T>> {
        let owners = self.grace.lock().tick(Time(u64::MAX))?;
        Some(vec![Effect::EndGrace(owners)])
    }

    /// Copies in the order of their stateids, from behind `after`, at most `most`.
    pub fn admin_copies(&self, after: Option<&Stateid>, most: usize) -> Page<CopyInfo> {
        let after = after.map(|s| StateKey::parse(&s.other));
        let copies = self.copies.lock();
        let (keys, more) = smallest(copies.all.keys().copied().filter(|k| after.is_none_or(|a| *k > a)), most);
        let info = |key: &StateKey| {
            let copy = copies.all.get(key)?;
            let complete = match copy.phase {
                Phase::Running => None,
                Phase::Finished { status, .. } => Some(status),
            };
            let bytes = copy.shared.bytes.load(Ordering::Relaxed);
            Some(CopyInfo { stateid: key.stateid(1), client: copy.client.id(), bytes, complete })
        };
        Page { items: keys.iter().filter_map(info).collect(), more }
    }

    /// Ends a copy that runs: it stops soon, its status is ADMIN_REVOKED, and its client is told so as of any other end.
    /// Whether there is such a copy.
    pub fn abort_copy(&self, stateid: &Stateid) -> bool {
        let copies = self.copies.lock();
        let copy = copies.all.get(&StateKey::parse(&stateid.other));
        let running = copy.filter(|c| matches!(c.phase, Phase::Running));
        running.map(|c| c.shared.abort()).is_some()
    }
}

impl<T: Clone> Stripe<T> {
    fn describe(&self, key: &StateKey) -> Option<StateInfo<T>> {
        if let Some(l) = self.locks.get(key) {
            let open = self.opens.get(&l.open)?;
            let held = || self.files.get(&open.file).into_iter().flat_map(|f| f.locks.iter());
            let own = || held().filter(|h| h.owner == l.owner);
            let ranges = own().take(RANGES).map(|h| (h.range, h.kind)).collect();
            return Some(StateInfo {
                stateid: key.stateid(l.seqid),
                client: l.owner.client,
                owner: l.owner.owner.clone(),
                file: open.file.clone(),
                token: open.token.clone(),
                detail: Detail::Lock { ranges, count: own().count() },
            });
        }
        if let Some(o) = self.opens.get(key) {
            return Some(StateInfo {
                stateid: key.stateid(o.seqid),
                client: o.client.id(),
                owner: o.owner.clone(),
                file: o.file.clone(),
                token: o.token.clone(),
                detail: Detail::Open { access: o.access, deny: o.deny, lock_states: o.lock_states.len() },
            });
        }
        let d = self.delegs.get(key)?;
        let (kind, recalled) = d.shown();
        Some(StateInfo {
            stateid: key.stateid(1),
            client: d.client.id(),
            owner: Bytes::new(),
            file: d.file.clone(),
            token: d.token.clone()?,
            detail: Detail::Delegation { kind, recalled },
        })
    }
}
