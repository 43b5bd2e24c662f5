//! OPEN, OPEN_DOWNGRADE and CLOSE: plan, (I/O by the server), commit.
//!
//! A plan checks and reserves under the stripe's mutex and is a token: dropping it takes the reservation back; while
//! it lives every conflict check counts it. The commit is one step: it gives the stateid, or gives the server's token
//! back if the ground has moved (the client was retired meanwhile). The server passes opens, closes and locks of one
//! file through a gate, so two plans of one file and owner at once are rare; they are answered with DELAY.

use crate::State;
use crate::admin::Memory;
use crate::client::Client;
use crate::deleg::{Ask, DelegKind, Delegated, Offer, Use, WhyNot};
use crate::file::{Open, Stripe};
use crate::ids::{Kind, StateKey, check_seqid, next_seqid};
use crate::io::{Drain, IoGate};
use crate::types::*;
use bytes::Bytes;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Which right an OPEN or LOCK claims.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// New state.
    New,
    /// State that the client had before the server's restart (CLAIM_PREVIOUS, the reclaim flag of LOCK).
    Reclaim,
    /// By right of a delegation that the client holds (CLAIM_DELEGATE_CUR, CLAIM_DELEG_CUR_FH).
    Delegated(Stateid),
}

/// What an OPEN wants.
#[derive(Clone, Debug)]
pub struct OpenRequest<'a> {
    /// The file.
    pub file: &'a FileKey,
    /// The client's bytes of the open-owner.
    pub owner: &'a Bytes,
    /// Access, not empty.
    pub access: Share,
    /// What others are denied.
    pub deny: Share,
    /// By which right.
    pub claim: Claim,
}

/// An OPEN that was found possible; a reservation.
#[must_use = "dropping the plan takes the reservation back"]
#[derive(Debug)]
pub struct OpenPlan<'a, T: Clone + Send> {
    state: &'a State<T>,
    client: Arc<Client>,
    file: FileKey,
    owner: OwnerKey,
    access: Share,
    deny: Share,
    existing: Option<(StateKey, T, Share, Share)>,
    done: bool,
}

impl<T: Clone + Send> OpenPlan<'_, T> {
    /// The open of this owner that the new one adds to (RFC 8881 9.9).
    pub fn existing(&self) -> Option<&T> {
        self.existing.as_ref().map(|(_, t, ..)| t)
    }

    /// Access afterwards: together with what was there.
    pub fn access(&self) -> Share {
        self.existing.as_ref().map_or(self.access, |(_, _, a, _)| *a | self.access)
    }

    /// Deny bits afterwards.
    pub fn deny(&self) -> Share {
        self.existing.as_ref().map_or(self.deny, |(_, _, _, d)| *d | self.deny)
    }

    /// The open-owner with its client.
    pub fn owner(&self) -> &OwnerKey {
        &self.owner
    }

    /// Whether a delegation of this kind could be given together with the open, as things are now.
    ///
    /// # Errors
    ///
    /// Why not.
    pub fn may_delegate(&self, kind: DelegKind, reclaim: bool, now: Time) -> Result<(), WhyNot> {
        let stripe = self.state.stripe(&self.file).lock();
        self.state.may_grant(&stripe, &self.file, &self.client, Ask { kind, own: 1, reclaim, now })
    }

    /// Makes the open. `token` is what I/O under the stateid goes through from now on; the token it supersedes, if there
    /// is one, comes back.
    ///
    /// # Errors
    ///
    /// The token back, to be closed, with DEADSESSION (the client is gone), DELAY (the open it would add to is gone or
    /// new), or SERVERFAULT (the client's record is not durable: the caller's mistake, see [`Client::needs_record`]).
    pub fn commit(self, token: T) -> Result<Committed<T>, (Status, T)> {
        self.commit_with(token, None).map_err(|(status, token, _)| (status, token))
    }

    /// As [`OpenPlan::commit`], with a delegation if that can be: open and delegation are there in one step.
    ///
    /// # Errors
    ///
    /// As [`OpenPlan::commit`]; the offer comes back too.
    pub fn commit_with(mut self, token: T, offer: Option<Offer<T>>) -> Result<Committed<T>, NotOpened<T>> {
        self.done = true;
        let mut guard = self.state.stripe(&self.file).lock();
        let stripe = &mut *guard;
        let file = stripe.file_mut(&self.file);
        file.reserved -= 1;
        file.share.sub(self.access, self.deny);
        let there = file.by_owner.get(&self.owner).copied();
        let planned = self.existing.as_ref().map(|(k, ..)| *k);
        let holds = Holds::DENIALS.when(self.deny.write()) | Holds::DELEGATIONS.when(offer.is_some());
        let refuse = if !self.client.is_recorded_with(holds) {
            Some(Status::SERVERFAULT)
        } else if there != planned || there.is_some_and(|k| stripe.opens.get(&k).is_none_or(|o| o.closing)) {
            Some(Status::DELAY)
        } else {
            None
        };
        if let Some(status) = refuse {
            stripe.drop_if_idle(&self.file);
            return Err((status, token, offer));
        }
        let result = match there {
            Some(key) => self.add(stripe, key, token),
            None => self.insert(stripe, token),
        };
        match result {
            Ok(mut done) => {
                if let Some(offer) = offer {
                    done.deleg = self.state.grant_offer(stripe, &self.file, &self.client, offer);
                }
                Ok(done)
            }
            Err((status, token)) => {
                stripe.drop_if_idle(&self.file);
                Err((status, token, offer))
            }
        }
    }

    fn add(&self, stripe: &mut Stripe<T>, key: StateKey, token: T) -> Result<Committed<T>, (Status, T)> {
        if self.client.is_dying() {
            return Err((Status::DEADSESSION, token));
        }
        let Some(open) = stripe.opens.get_mut(&key) else { return Err((Status::DELAY, token)) };
        let (old_access, old_deny) = (open.access, open.deny);
        open.access = old_access | self.access;
        open.deny = old_deny | self.deny;
        open.asked_access |= 1 << self.access.bits();
        open.asked_deny |= 1 << self.deny.bits();
        open.seqid = next_seqid(open.seqid);
        let replaced = std::mem::replace(&mut open.token, token);
        let (access, deny, stateid) = (open.access, open.deny, key.stateid(open.seqid));
        if let Some(f) = stripe.files.get_mut(&self.file) {
            f.share.sub(old_access, old_deny);
            f.share.add(access, deny);
        }
        Ok(Committed { stateid, replaced: Some(replaced), deleg: Delegated::NotOffered })
    }

    fn insert(&self, stripe: &mut Stripe<T>, token: T) -> Result<Committed<T>, (Status, T)> {
        let key = self.state.ids.state(Kind::Open, self.state.ids.stripe(self.file.as_bytes()));
        {
            // Under this lock, so that a retire that begins now either sees the open or is seen here.
            let mut states = self.client.states.lock();
            if self.client.is_dying() {
                return Err((Status::DEADSESSION, token));
            }
            states.insert(key);
        }
        self.client.opens.fetch_add(1, Ordering::SeqCst);
        self.state.opens.fetch_add(1, Ordering::Relaxed);
        let open = Open {
            file: self.file.clone(),
            client: self.client.clone(),
            owner: self.owner.owner.clone(),
            seqid: 1,
            access: self.access,
            deny: self.deny,
            asked_access: 1 << self.access.bits(),
            asked_deny: 1 << self.deny.bits(),
            token,
            gate: Arc::new(IoGate::default()),
            closing: false,
            lock_states: SmallVec::new(),
            notifies: Vec::new(),
        };
        let file = stripe.file_mut(&self.file);
        file.share.add(self.access, self.deny);
        file.by_owner.insert(self.owner.clone(), key);
        stripe.opens.insert(key, open);
        Ok(Committed { stateid: key.stateid(1), replaced: None, deleg: Delegated::NotOffered })
    }
}

impl<T: Clone + Send> Drop for OpenPlan<'_, T> {
    fn drop(&mut self) {
        if !self.done {
            let mut stripe = self.state.stripe(&self.file).lock();
            let file = stripe.file_mut(&self.file);
            file.reserved -= 1;
            file.share.sub(self.access, self.deny);
            stripe.drop_if_idle(&self.file);
        }
    }
}

/// Why an open was not committed, its token, and what was offered with it: both to be closed.
pub type NotOpened<T> = (Status, T, Option<Offer<T>>);

/// A committed open.
#[derive(Debug)]
pub struct Committed<T> {
    /// Its stateid.
    pub stateid: Stateid,
    /// The token before it was superseded: not to be closed, for the open goes on.
    pub replaced: Option<T>,
    /// The delegation that was offered with it.
    pub deleg: Delegated<T>,
}

/// An OPEN_DOWNGRADE that was found possible. Nothing is reserved: what it gives up is given up at the commit.
#[must_use = "a plan does nothing unless it is committed"]
#[derive(Debug)]
pub struct DowngradePlan<'a, T: Clone + Send> {
    state: &'a State<T>,
    key: StateKey,
    file: FileKey,
    owner: OwnerKey,
    token: T,
    access: Share,
    deny: Share,
    seqid: u32,
}

impl<T: Clone + Send> DowngradePlan<'_, T> {
    /// The open as it is.
    pub fn open(&self) -> &T {
        &self.token
    }

    /// The open-owner with its client.
    pub fn owner(&self) -> &OwnerKey {
        &self.owner
    }

    /// Makes it so; see [`OpenPlan::commit`] for `token` and the errors.
    pub fn commit(self, token: T) -> Result<Committed<T>, (Status, T)> {
        let mut guard = self.state.stripe(&self.file).lock();
        let stripe = &mut *guard;
        let Some(open) = stripe.opens.get_mut(&self.key).filter(|o| !o.closing && o.seqid == self.seqid) else {
            return Err((Status::DELAY, token));
        };
        let (old_access, old_deny) = (open.access, open.deny);
        open.access = self.access;
        open.deny = self.deny;
        // What was asked for and is not covered any more counts no longer.
        for v in 0..=3_u8 {
            let within = |whole: Share| Share::from_bits(u32::from(v)).is_some_and(|s| whole.contains(s));
            if !within(self.access) {
                open.asked_access &= !(1 << v);
            }
            if !within(self.deny) {
                open.asked_deny &= !(1 << v);
            }
        }
        open.seqid = next_seqid(open.seqid);
        let replaced = std::mem::replace(&mut open.token, token);
        let stateid = self.key.stateid(open.seqid);
        if let Some(f) = stripe.files.get_mut(&self.file) {
            f.share.sub(old_access, old_deny);
            f.share.add(self.access, self.deny);
        }
        Ok(Committed { stateid, replaced: Some(replaced), deleg: Delegated::NotOffered })
    }
}

/// Whether `want` is the union of some of the values asked for (bit v of `asked`: value v). The empty value is only
/// if it was asked for itself.
fn is_union(want: Share, asked: u8) -> bool {
    let parts = (0..=3).filter(|v| asked & (1 << v) != 0).filter_map(Share::from_bits).filter(|s| want.contains(*s));
    let mut any = false;
    let sum = parts.fold(Share::NONE, |a, s| {
        any = true;
        a | s
    });
    any && sum == want
}

/// A CLOSE under way: the open takes no new I/O. Dropping it before the commit opens it again.
#[must_use = "dropping the plan keeps the file open"]
#[derive(Debug)]
pub struct ClosePlan<'a, T: Clone + Send> {
    state: &'a State<T>,
    key: StateKey,
    file: FileKey,
    gate: Arc<IoGate>,
    /// An administrator wants it: the client is to learn that its stateids are revoked.
    revoke: Option<Memory>,
    done: bool,
}

impl<T: Clone + Send> ClosePlan<'_, T> {
    /// Waits for the I/O under the open.
    pub fn drain(&self) -> Drain {
        Drain::new(vec![self.gate.clone()])
    }

    /// Frees the open, its lock states and the locks taken through it, as the Linux server does (RFC 8881 18.2.3 lets
    /// us choose); the reply carries [`Stateid::INVALID`].
    pub fn commit(mut self) -> Effects<T> {
        self.done = true;
        let mut effects = Vec::new();
        let mut stripe = self.state.stripe(&self.file).lock();
        let known = self.revoke.and_then(|memory| Some((stripe.stateids_of(&self.key)?, memory)));
        let removed = stripe.remove_open(&self.key, &mut effects);
        if let Some(((client, keys), memory)) = known {
            stripe.remember_revoked(&client, &keys, memory);
        }
        drop(stripe);
        self.state.opens.fetch_sub(usize::from(removed), Ordering::Relaxed);
        effects
    }
}

impl<T: Clone + Send> Drop for ClosePlan<'_, T> {
    fn drop(&mut self) {
        if !self.done
            && let Some(o) = self.state.stripe(&self.file).lock().opens.get_mut(&self.key)
            && !o.client.is_dying()
        {
            o.closing = false;
        }
    }
}

impl<T: Clone + Send> State<T> {
    /// Plans an OPEN (RFC 8881 18.16): grace, limits, share reservations (9.7).
    ///
    /// # Errors
    ///
    /// INVAL (no access), GRACE, NO_GRACE, SHARE_DENIED, DELAY, SERVERFAULT (too many opens), DEADSESSION (the client
    /// is being retired); or a client whose lease has ended stands in the way (case B32), or a delegation.
    pub fn plan_open(
        &self,
        client: &Arc<Client>,
        req: &OpenRequest<'_>,
        now: Time,
    ) -> Result<OpenPlan<'_, T>, Refused> {
        if req.access.is_empty() {
            return Err(Status::INVAL.into());
        }
        self.check_grace(client, req.claim)?;
        if client.opens.load(Ordering::Relaxed) >= self.limits().opens_per_client {
            self.hits.opens.add();
            return Err(Status::SERVERFAULT.into());
        }
        if self.opens.load(Ordering::Relaxed) >= self.limits().opens {
            // Clients whose lease has ended make room.
            self.pressed.store(true, Ordering::Relaxed);
            self.hits.opens.add();
            return Err(Status::DELAY.into());
        }
        if client.is_dying() {
            return Err(Status::DEADSESSION.into());
        }
        // Copied: the request's bytes are a slice of its whole record, which would stay in memory with the open.
        let owner = OwnerKey { client: client.id(), owner: Bytes::copy_from_slice(req.owner) };
        let mut guard = self.stripe(req.file).lock();
        let stripe = &mut *guard;
        let mut existing = None;
        if let Some(f) = stripe.files.get(req.file) {
            stripe.share_conflict(f, req.access, req.deny, now)?;
            if req.deny.write() && f.removing > 0 {
                return Err(Status::DELAY.into());
            }
            if let Some(key) = f.by_owner.get(&owner)
                && let Some(o) = stripe.opens.get(key)
            {
                if o.closing {
                    return Err(Status::DELAY.into());
                }
                existing = Some((*key, o.token.clone(), o.access, o.deny));
            }
        }
        if let Claim::Delegated(stateid) = &req.claim {
            stripe.deleg_claim(client, req.file, stateid, req.access)?;
        }
        // The count changes under the file's stripe, so none of this file is missed.
        if self.delegations() > 0 {
            let usage = Use::Open { access: req.access, deny: req.deny };
            stripe.deleg_conflict(req.file, client.id(), usage, now)?;
        }
        if req.deny.write() && self.denies_too_early() {
            return Err(Status::DELAY.into());
        }
        let file = stripe.file_mut(req.file);
        file.share.add(req.access, req.deny);
        file.reserved += 1;
        Ok(OpenPlan {
            state: self,
            client: client.clone(),
            file: req.file.clone(),
            owner,
            access: req.access,
            deny: req.deny,
            existing,
            done: false,
        })
    }

    /// Whether the grace rules let `client` take state now: for OPENs that create, to be asked before the file is made.
    ///
    /// # Errors
    ///
    /// GRACE, NO_GRACE, DEADSESSION (the client is being retired).
    pub fn may_take_state(&self, client: &Client, claim: Claim) -> Result<(), Status> {
        self.check_grace(client, claim)?;
        if client.is_dying() { Err(Status::DEADSESSION) } else { Ok(()) }
    }

    /// RFC 8881 8.4.2.1, 18.51.3: no new state in grace, nor before the client's RECLAIM_COMPLETE; reclaims in grace
    /// only, by clients that are known, before their RECLAIM_COMPLETE. Opens by right of a delegation, which in grace is
    /// one that was reclaimed, at any time (10.2.1).
    pub(crate) fn check_grace(&self, client: &Client, claim: Claim) -> Result<(), Status> {
        if matches!(claim, Claim::Delegated(_)) {
            return Ok(());
        }
        if claim != Claim::Reclaim && !self.in_grace() {
            // The common case, without a lock.
            let complete = client.reclaim_complete.load(Ordering::SeqCst);
            return if complete { Ok(()) } else { Err(Status::GRACE) };
        }
        let grace = self.grace.lock();
        match claim {
            Claim::Reclaim if client.reclaim_complete.load(Ordering::SeqCst) => Err(Status::NO_GRACE),
            Claim::Reclaim => grace.may_reclaim(client.owner()),
            _ if grace.active() || !client.reclaim_complete.load(Ordering::SeqCst) => Err(Status::GRACE),
            Claim::New | Claim::Delegated(_) => Ok(()),
        }
    }

    /// Finds the open of `stateid` (RFC 8881 8.2.4).
    pub(crate) fn find_open<'s>(
        &self,
        stripe: &'s mut Stripe<T>,
        client: &Client,
        file: &FileKey,
        stateid: &Stateid,
    ) -> Result<(StateKey, &'s mut Open<T>), Status> {
        let key = StateKey::parse(&stateid.other);
        if !key.is(Kind::Open) {
            return Err(Status::BAD_STATEID);
        }
        let missing = stripe.missing(&key, client.id());
        let open = stripe.opens.get_mut(&key).ok_or(missing)?;
        if open.client.id() != client.id() || open.file != *file {
            return Err(Status::BAD_STATEID);
        }
        check_seqid(stateid.seqid, open.seqid)?;
        if open.closing {
            return Err(Status::DELAY);
        }
        Ok((key, open))
    }

    /// Plans an OPEN_DOWNGRADE (RFC 8881 18.18).
    ///
    /// # Errors
    ///
    /// BAD_STATEID, OLD_STATEID, INVAL (no access, or no union of what was asked for), DELAY.
    pub fn plan_downgrade(
        &self,
        client: &Arc<Client>,
        file: &FileKey,
        stateid: &Stateid,
        access: Share,
        deny: Share,
    ) -> Result<DowngradePlan<'_, T>, Status> {
        if access.is_empty() {
            return Err(Status::INVAL);
        }
        let mut stripe = self.stripe(file).lock();
        let (key, open) = self.find_open(&mut stripe, client, file, stateid)?;
        if !is_union(access, open.asked_access) || !is_union(deny, open.asked_deny) {
            return Err(Status::INVAL);
        }
        Ok(DowngradePlan {
            state: self,
            key,
            file: file.clone(),
            owner: OwnerKey { client: client.id(), owner: open.owner.clone() },
            token: open.token.clone(),
            access,
            deny,
            seqid: open.seqid,
        })
    }

    /// Plans a CLOSE (RFC 8881 18.2): from here on the open takes no new I/O. Await [`ClosePlan::drain`], then commit.
    ///
    /// # Errors
    ///
    /// BAD_STATEID, OLD_STATEID, ADMIN_REVOKED, DELAY (another CLOSE of it is under way).
    pub fn plan_close(
        &self,
        client: &Arc<Client>,
        file: &FileKey,
        stateid: &Stateid,
    ) -> Result<ClosePlan<'_, T>, Status> {
        let mut stripe = self.stripe(file).lock();
        let (key, open) = self.find_open(&mut stripe, client, file, stateid)?;
        open.closing = true;
        Ok(ClosePlan { state: self, key, file: file.clone(), gate: open.gate.clone(), revoke: None, done: false })
    }

    /// Plans to take an open from its client (RFC 8881 8.5): as [`State::plan_close`].
    pub(crate) fn plan_revoke_open(&self, key: StateKey, memory: Memory) -> Result<ClosePlan<'_, T>, Status> {
        let mut stripe = self.stripe_of(&key).ok_or(Status::BAD_STATEID)?.lock();
        let open = stripe.opens.get_mut(&key).ok_or(Status::BAD_STATEID)?;
        if std::mem::replace(&mut open.closing, true) {
            return Err(Status::DELAY);
        }
        let (file, gate) = (open.file.clone(), open.gate.clone());
        Ok(ClosePlan { state: self, key, file, gate, revoke: Some(memory), done: false })
    }

    /// Whether anybody but `client` has the file open, or denies `access` to it: for SETATTR, REMOVE and RENAME rules
    /// of other protocols and for deciding on delegations later.
    pub fn is_open(&self, file: &FileKey) -> bool {
        self.stripe(file).lock().files.get(file).is_some_and(|f| !f.by_owner.is_empty())
    }

    pub(crate) fn stripe(&self, file: &FileKey) -> &Mutex<Stripe<T>> {
        let i = self.ids.stripe(file.as_bytes()) as usize;
        // The hash is below STRIPES, the length of the array.
        #[allow(clippy::indexing_slicing)]
        &self.stripes[i]
    }

    pub(crate) fn stripe_of(&self, key: &StateKey) -> Option<&Mutex<Stripe<T>>> {
        self.stripes.get(usize::from(key.stripe))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unions_of_what_was_asked_for() {
        // RFC 8881 18.18.3.
        let asked = |v: &[u32]| v.iter().fold(0_u8, |a, b| a | 1 << b);
        assert!(is_union(Share::READ, asked(&[1, 2])));
        assert!(is_union(Share::BOTH, asked(&[1, 2])));
        assert!(is_union(Share::BOTH, asked(&[3])));
        assert!(!is_union(Share::READ, asked(&[3])), "never opened for reading alone");
        assert!(!is_union(Share::NONE, asked(&[1])));
        assert!(is_union(Share::NONE, asked(&[0, 1])));
    }
}
