//! LOCK, LOCKT, LOCKU (RFC 8881 18.10 to 18.12): plan, (the backend's lock), commit.
//!
//! Lock state is one for each open and lock-owner; the ranges are kept by lock-owner and file, so that one lock-owner
//! never conflicts with itself, through whichever open it locks. Blocking locks (READW_LT, WRITEW_LT) are answered as
//! the others are; who was denied is remembered, and told when to ask again (9.6, `lockwait`).

use crate::State;
use crate::client::Client;
use crate::file::{LockState, PendingLock, in_nobodys_way};
use crate::ids::{Kind, StateKey, check_seqid, next_seqid};
use crate::lockset::{Held, LockKind, Range, conflicting};
use crate::open::Claim;
use crate::types::*;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Who locks.
#[derive(Clone, Debug)]
pub enum Locker<'a> {
    /// A lock-owner that may have no lock state yet, through an open.
    New {
        /// The open.
        open: &'a Stateid,
        /// The client's bytes of the lock-owner.
        owner: &'a Bytes,
    },
    /// A lock-owner by its lock state.
    Existing(&'a Stateid),
}

/// What a LOCK wants.
#[derive(Clone, Debug)]
pub struct LockRequest<'a> {
    /// The file.
    pub file: &'a FileKey,
    /// Who locks.
    pub locker: Locker<'a>,
    /// What.
    pub range: Range,
    /// Shared or exclusive.
    pub kind: LockKind,
    /// By which right.
    pub claim: Claim,
}

/// Why a lock is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum LockRefused {
    /// Answer this.
    Status(Status),
    /// See [`Refused::Courtesy`].
    Courtesy(ClientId),
    /// DENIED: this lock stands against it.
    Denied(Held<OwnerKey>),
}

impl From<Status> for LockRefused {
    fn from(s: Status) -> Self {
        Self::Status(s)
    }
}

/// A LOCK that was found possible; a reservation.
#[must_use = "dropping the plan takes the reservation back"]
#[derive(Debug)]
pub struct LockPlan<'a, T: Clone + Send> {
    state: &'a State<T>,
    client: Arc<Client>,
    file: FileKey,
    open: StateKey,
    token: T,
    owner: OwnerKey,
    range: Range,
    kind: LockKind,
    id: u64,
}

impl<T: Clone + Send> LockPlan<'_, T> {
    /// The open it goes through.
    pub fn open(&self) -> &T {
        &self.token
    }

    /// The lock-owner with its client.
    pub fn owner(&self) -> &OwnerKey {
        &self.owner
    }

    /// Takes the lock; the lock stateid.
    ///
    /// # Errors
    ///
    /// BAD_STATEID (the open was closed meanwhile), ADMIN_REVOKED, DELAY (it is being closed), DEADSESSION (the client is gone).
    pub fn commit(self) -> Result<Stateid, Status> {
        let mut guard = self.state.stripe(&self.file).lock();
        let stripe = &mut *guard;
        if self.client.is_dying() {
            return Err(Status::DEADSESSION);
        }
        let missing = stripe.missing(&self.open, self.client.id());
        let open = stripe.opens.get_mut(&self.open).ok_or(missing)?;
        if open.closing {
            // A CLOSE waits for I/O; it may yet give up.
            return Err(Status::DELAY);
        }
        let client = open.client.clone();
        let known =
            open.lock_states.iter().copied().find(|k| stripe.locks.get(k).is_some_and(|l| l.owner == self.owner));
        let key = known.unwrap_or_else(|| {
            let key = self.state.ids.state(Kind::Lock, self.open.stripe);
            open.lock_states.push(key);
            stripe.locks.insert(key, LockState { open: self.open, owner: self.owner.clone(), seqid: 0 });
            client.count_locks(0, 1);
            key
        });
        let state = stripe.locks.get_mut(&key).ok_or(Status::SERVERFAULT)?;
        state.seqid = next_seqid(state.seqid);
        let stateid = key.stateid(state.seqid);
        if let Some(f) = stripe.files.get_mut(&self.file) {
            let before = f.locks.len();
            f.locks.lock(&self.owner, self.range, self.kind);
            client.count_locks(before, f.locks.len());
        }
        self.state.delist(stripe, &self.file, &self.owner, self.range);
        Ok(stateid)
    }
}

impl<T: Clone + Send> Drop for LockPlan<'_, T> {
    fn drop(&mut self) {
        let mut stripe = self.state.stripe(&self.file).lock();
        if let Some(f) = stripe.files.get_mut(&self.file) {
            f.pending.retain(|p| p.id != self.id);
        }
        stripe.drop_if_idle(&self.file);
    }
}

/// A LOCKU that was found possible.
#[must_use = "a plan does nothing unless it is committed"]
#[derive(Debug)]
pub struct UnlockPlan<'a, T: Clone + Send> {
    state: &'a State<T>,
    file: FileKey,
    key: StateKey,
    token: T,
    owner: OwnerKey,
    range: Range,
}

impl<T: Clone + Send> UnlockPlan<'_, T> {
    /// The open it goes through.
    pub fn open(&self) -> &T {
        &self.token
    }

    /// The lock-owner with its client.
    pub fn owner(&self) -> &OwnerKey {
        &self.owner
    }

    /// Frees the range; the lock stateid.
    ///
    /// # Errors
    ///
    /// BAD_STATEID, ADMIN_REVOKED: the state is gone meanwhile.
    pub fn commit(self) -> Result<Stateid, Status> {
        let mut guard = self.state.stripe(&self.file).lock();
        let stripe = &mut *guard;
        let missing = stripe.missing(&self.key, self.owner.client);
        let state = stripe.locks.get_mut(&self.key).ok_or(missing)?;
        state.seqid = next_seqid(state.seqid);
        let stateid = self.key.stateid(state.seqid);
        let client = stripe.opens.get(&state.open).map(|o| o.client.clone());
        if let (Some(f), Some(client)) = (stripe.files.get_mut(&self.file), client) {
            let before = f.locks.len();
            f.locks.unlock(&self.owner, self.range);
            client.count_locks(before, f.locks.len());
        }
        Ok(stateid)
    }
}

impl<T: Clone + Send> State<T> {
    /// Plans a LOCK.
    ///
    /// # Errors
    ///
    /// BAD_STATEID, OLD_STATEID, ADMIN_REVOKED, OPENMODE (shared needs an open for reading, exclusive one for writing, as POSIX has
    /// it), GRACE, NO_GRACE, SERVERFAULT (too many locks or lock-owners), DELAY (the conflict is with a lock in the
    /// making); DENIED; or a client whose lease has ended stands in the way.
    pub fn plan_lock(
        &self,
        client: &Arc<Client>,
        req: &LockRequest<'_>,
        now: Time,
    ) -> Result<LockPlan<'_, T>, LockRefused> {
        self.plan_lock_or_wait(client, req, false, now)
    }

    /// As [`State::plan_lock`]; with `wait` one that is denied is remembered, to be told when its turn comes
    /// ([`State::wake_waiters`], RFC 8881 9.6).
    ///
    /// # Errors
    ///
    /// As [`State::plan_lock`].
    pub fn plan_lock_or_wait(
        &self,
        client: &Arc<Client>,
        req: &LockRequest<'_>,
        wait: bool,
        now: Time,
    ) -> Result<LockPlan<'_, T>, LockRefused> {
        self.check_grace(client, req.claim)?;
        let mut guard = self.stripe(req.file).lock();
        let stripe = &mut *guard;
        let (open_key, owner) = match &req.locker {
            Locker::New { open, owner } => {
                let (key, _) = self.find_open(stripe, client, req.file, open)?;
                // Copied, lest the whole record stays in memory with the lock.
                (key, OwnerKey { client: client.id(), owner: Bytes::copy_from_slice(owner) })
            }
            Locker::Existing(stateid) => {
                let key = StateKey::parse(&stateid.other);
                let l = stripe.locks.get(&key).ok_or(stripe.missing(&key, client.id()))?;
                let known = l.owner.client == client.id();
                if !known {
                    return Err(Status::BAD_STATEID.into());
                }
                check_seqid(stateid.seqid, l.seqid)?;
                (l.open, l.owner.clone())
            }
        };
        let open = stripe.opens.get(&open_key).filter(|o| o.file == *req.file).ok_or(Status::BAD_STATEID)?;
        if open.closing {
            return Err(Status::DELAY.into());
        }
        let needs = match req.kind {
            LockKind::Read => Share::READ,
            LockKind::Write => Share::WRITE,
        };
        if !open.access.contains(needs) {
            return Err(Status::OPENMODE.into());
        }
        // A lock splits one range in three at most, and may need a lock state.
        if client.locks.load(Ordering::Relaxed) + 3 > self.limits().locks_per_client {
            self.hits.locks.add();
            return Err(Status::SERVERFAULT.into());
        }
        let token = open.token.clone();
        let has_state = open.lock_states.iter().any(|k| stripe.locks.get(k).is_some_and(|l| l.owner == owner));
        if !has_state && open.lock_states.len() >= self.limits().lock_owners_per_open {
            self.hits.lock_owners.add();
            return Err(Status::SERVERFAULT.into());
        }
        let id = stripe.next;
        stripe.next += 1;
        let file = stripe.file_mut(req.file);
        if file.locks.len() + file.pending.len() + 2 > self.limits().locks_per_file {
            self.hits.locks.add();
            return Err(Status::SERVERFAULT.into());
        }
        if file.pending.iter().any(|p| conflicting(&p.held, &owner, req.range, req.kind)) {
            return Err(Status::DELAY.into());
        }
        let reserved = match req.claim {
            Claim::Reclaim => None,
            _ => Self::reserved_lock(stripe, req.file, &owner, req.range, req.kind, now).map(LockRefused::Denied),
        };
        let refused = self.lock_conflict(stripe, req.file, &owner, req.range, req.kind, now).or(reserved);
        if let Some(refused) = refused {
            if wait && matches!(refused, LockRefused::Denied(_)) {
                self.enlist(stripe, req.file, client, (&owner, req.range, req.kind), now);
            }
            return Err(refused);
        }
        let held = Held { range: req.range, kind: req.kind, owner: owner.clone() };
        stripe.file_mut(req.file).pending.push(PendingLock { id, held });
        Ok(LockPlan {
            state: self,
            client: client.clone(),
            file: req.file.clone(),
            open: open_key,
            token,
            owner,
            range: req.range,
            kind: req.kind,
            id,
        })
    }

    /// What stands against a lock: somebody's lock, or one of a client whose lease has ended.
    fn lock_conflict(
        &self,
        stripe: &crate::file::Stripe<T>,
        file: &FileKey,
        owner: &OwnerKey,
        range: Range,
        kind: LockKind,
        now: Time,
    ) -> Option<LockRefused> {
        let f = stripe.files.get(file)?;
        let mut courtesy = None;
        for held in f.locks.conflicts(owner, range, kind) {
            let holder = f
                .by_owner
                .iter()
                .find(|(o, _)| o.client == held.owner.client)
                .and_then(|(_, k)| stripe.opens.get(k))
                .map(|o| &o.client);
            match holder {
                Some(c) if in_nobodys_way(c, now) => courtesy = Some(LockRefused::Courtesy(c.id())),
                _ => return Some(LockRefused::Denied(held.clone())),
            }
        }
        courtesy
    }

    /// LOCKT: whether `owner` could lock the range (RFC 8881 18.11). The file need not be open.
    ///
    /// # Errors
    ///
    /// DENIED, GRACE; or a client whose lease has ended stands in the way.
    pub fn test_lock(
        &self,
        client: &Client,
        file: &FileKey,
        owner: &Bytes,
        range: Range,
        kind: LockKind,
        now: Time,
    ) -> Result<(), LockRefused> {
        if self.in_grace() {
            return Err(Status::GRACE.into());
        }
        let owner = OwnerKey { client: client.id(), owner: owner.clone() };
        let stripe = self.stripe(file).lock();
        self.lock_conflict(&stripe, file, &owner, range, kind, now).map_or(Ok(()), Err)
    }

    /// Plans a LOCKU (RFC 8881 18.12). Unlocking what is not locked succeeds.
    ///
    /// # Errors
    ///
    /// BAD_STATEID, OLD_STATEID, ADMIN_REVOKED, DELAY, SERVERFAULT (the split would make too many ranges).
    pub fn plan_unlock(
        &self,
        client: &Client,
        file: &FileKey,
        stateid: &Stateid,
        range: Range,
    ) -> Result<UnlockPlan<'_, T>, Status> {
        let key = StateKey::parse(&stateid.other);
        let stripe = self.stripe(file).lock();
        let mine = stripe.locks.get(&key).filter(|l| l.owner.client == client.id());
        let l = mine.ok_or(stripe.missing(&key, client.id()))?;
        let open = stripe.opens.get(&l.open).filter(|o| o.file == *file).ok_or(Status::BAD_STATEID)?;
        check_seqid(stateid.seqid, l.seqid)?;
        if open.closing {
            return Err(Status::DELAY);
        }
        if stripe.files.get(file).is_some_and(|f| f.locks.len() > self.limits().locks_per_file) {
            self.hits.locks.add();
            return Err(Status::SERVERFAULT);
        }
        Ok(UnlockPlan {
            state: self,
            file: file.clone(),
            key,
            token: open.token.clone(),
            owner: l.owner.clone(),
            range,
        })
    }
}
