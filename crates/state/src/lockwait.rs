//! Who waits for a lock: blocking LOCKs that were denied (RFC 8881 9.6, 20.11).
//!
//! The server does not hold a request back: it answers DENIED, remembers who asked, and tells that one when its turn
//! comes (CB_NOTIFY_LOCK). For a short time from then on nobody else gets what the waiter asked for, so that those who
//! poll fastest do not starve it. The list is in the order of asking. An entry goes when its lock is granted, when it had
//! its chance and did not take it, or when it has not asked again for a lease time; an owner that is denied again keeps
//! its place. Nothing depends on a waiter that is forgotten: its client polls as well.

use crate::State;
use crate::client::Client;
use crate::file::Stripe;
use crate::lockset::{Held, LockKind, Range, conflicting};
use crate::types::*;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a waiter that was told has the lock to itself.
const FAIRNESS: Duration = Duration::from_secs(2);

/// Waiters of one file.
const MAX_WAITERS: usize = 1024;

/// One that waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    owner: OwnerKey,
    client: Arc<Client>,
    range: Range,
    kind: LockKind,
    asked: Time,
    /// Since when it has the lock to itself.
    told: Option<Time>,
}

/// A client to be told that a lock it waits for may be had.
#[derive(Debug)]
pub struct LockNotice<T> {
    /// The client.
    pub client: ClientId,
    /// Its bytes of the lock-owner.
    pub owner: Bytes,
    /// An open of the file by that client: for the filehandle.
    pub open: T,
}

impl Waiter {
    fn reserves(&self, now: Time) -> bool {
        self.told.is_some_and(|t| now.since(t) <= FAIRNESS) && !self.client.is_dying()
    }
}

impl<T: Clone + Send> State<T> {
    /// The reservation of a waiter that stands against a lock.
    pub(crate) fn reserved_lock(
        stripe: &Stripe<T>,
        file: &FileKey,
        owner: &OwnerKey,
        range: Range,
        kind: LockKind,
        now: Time,
    ) -> Option<Held<OwnerKey>> {
        let f = stripe.files.get(file)?;
        let held = |w: &Waiter| Held { range: w.range, kind: w.kind, owner: w.owner.clone() };
        f.waiters.iter().filter(|w| w.reserves(now)).map(held).find(|h| conflicting(h, owner, range, kind))
    }

    /// Remembers a denied blocking LOCK.
    pub(crate) fn enlist(
        &self,
        stripe: &mut Stripe<T>,
        file: &FileKey,
        client: &Arc<Client>,
        (owner, range, kind): (&OwnerKey, Range, LockKind),
        now: Time,
    ) {
        let f = stripe.file_mut(file);
        if let Some(w) = f.waiters.iter_mut().find(|w| w.owner == *owner && w.range == range && w.kind == kind) {
            w.asked = now;
            return;
        }
        if f.waiters.len() >= MAX_WAITERS {
            self.hits.lock_waiters.add();
            return;
        }
        let (owner, client) = (owner.clone(), client.clone());
        f.waiters.push(Waiter { owner, client, range, kind, asked: now, told: None });
        self.waiting.fetch_add(1, Ordering::SeqCst);
    }

    /// An owner got what it waited for.
    pub(crate) fn delist(&self, stripe: &mut Stripe<T>, file: &FileKey, owner: &OwnerKey, range: Range) {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        if let Some(f) = stripe.files.get_mut(file) {
            let before = f.waiters.len();
            f.waiters.retain(|w| w.owner != *owner || w.range != range);
            self.waiting.fetch_sub(before - f.waiters.len(), Ordering::SeqCst);
        }
    }

    /// Waiters of all files.
    pub fn lock_waiters(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Locks of `file` were given up: who may have a try now, in the order of asking. Call it after every end of a lock.
    pub fn wake_waiters(&self, file: &FileKey, now: Time) -> Vec<LockNotice<T>> {
        if self.lock_waiters() == 0 {
            return Vec::new();
        }
        let mut stripe = self.stripe(file).lock();
        let notices = self.wake(&mut stripe, file, now);
        stripe.drop_if_idle(file);
        notices
    }

    fn wake(&self, stripe: &mut Stripe<T>, file: &FileKey, now: Time) -> Vec<LockNotice<T>> {
        let Some(f) = stripe.files.get_mut(file) else { return Vec::new() };
        let before = f.waiters.len();
        let lease = self.limits().lease;
        f.waiters.retain(|w| {
            let missed = w.told.is_some() && !w.reserves(now);
            !missed && !w.client.is_dying() && now.since(w.asked) <= lease
        });
        self.waiting.fetch_sub(before - f.waiters.len(), Ordering::SeqCst);
        let mut ahead: Vec<Held<OwnerKey>> = Vec::new();
        let mut out = Vec::new();
        for w in &mut f.waiters {
            let mine = Held { range: w.range, kind: w.kind, owner: w.owner.clone() };
            // Those who wait longer come first, told or not.
            let blocked = f.locks.conflicts(&w.owner, w.range, w.kind).next().is_some()
                || ahead.iter().any(|a| conflicting(a, &w.owner, w.range, w.kind));
            ahead.push(mine);
            if blocked || w.told.is_some() {
                continue;
            }
            let open = f.by_owner.iter().find(|(o, _)| o.client == w.owner.client);
            if let Some(open) = open.and_then(|(_, key)| stripe.opens.get(key)) {
                w.told = Some(now);
                let (client, owner) = (w.owner.client, w.owner.owner.clone());
                out.push(LockNotice { client, owner, open: open.token.clone() });
            }
        }
        out
    }

    /// Waiters that had their chance make room for the next.
    pub(crate) fn tick_waiters(&self, now: Time, effects: &mut Effects<T>) {
        if self.lock_waiters() == 0 {
            return;
        }
        for stripe in &self.stripes {
            let mut stripe = stripe.lock();
            let waited: Vec<_> =
                stripe.files.iter().filter(|(_, f)| !f.waiters.is_empty()).map(|(k, _)| k.clone()).collect();
            for file in waited {
                effects.extend(self.wake(&mut stripe, &file, now).into_iter().map(Effect::NotifyLock));
                stripe.drop_if_idle(&file);
            }
        }
    }
}
