//! Copy-notify stateids: what COPY_NOTIFY gives out, so that another server may read one file (RFC 7862 4.8, 15.3).
//!
//! An entry belongs to the open or delegation it was asked with (its parent) and lies in the same stripe, so that
//! everything which ends that (CLOSE, DELEGRETURN, the end of the client) ends it in the same locked step (cases K10, K13). It is honoured for
//! reading that one file, from whatever client it comes: who knows the stateid is taken for the server that the owner
//! named. So it must not be guessed: 80 of its 96 bits are a keyed hash. It does not work as the stateid of anything
//! else, and only its owner can cancel or test it.
//!
//! It lives for the lease time after its last use. A use that began holds an [`IoToken`] on the parent: CLOSE waits for
//! it, and time does not end an entry that is in use. Counts go up and down with the entries, on every path.

use crate::State;
use crate::client::Client;
use crate::file::Stripe;
use crate::ids::{Kind, StateKey, check_seqid};
use crate::io::{IoGate, IoToken};
use crate::types::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A copy-notify stateid.
#[derive(Debug)]
pub(crate) struct Notify<T> {
    pub(crate) parent: StateKey,
    file: FileKey,
    /// In whose name it is used: what the server gave.
    behalf: T,
    expires: Time,
    /// Uses hold a clone.
    in_use: Arc<()>,
    counted: Counted,
}

impl<T> Notify<T> {
    fn used(&self) -> bool {
        Arc::strong_count(&self.in_use) > 1
    }
}

/// One entry, counted for its client and in all.
#[derive(Debug)]
struct Counted {
    client: Arc<Client>,
    total: Arc<AtomicUsize>,
}

impl Counted {
    fn new(client: &Arc<Client>, total: &Arc<AtomicUsize>) -> Self {
        client.notifies.fetch_add(1, Ordering::Relaxed);
        total.fetch_add(1, Ordering::Relaxed);
        Self { client: client.clone(), total: total.clone() }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.client.notifies.fetch_sub(1, Ordering::Relaxed);
        self.total.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What an entry may belong to.
struct Parent<'a, T> {
    client: &'a Arc<Client>,
    file: &'a FileKey,
    token: &'a T,
    gate: &'a Arc<IoGate>,
    closing: bool,
    reads: bool,
    seqid: u32,
    notifies: &'a Vec<StateKey>,
}

impl<T: Clone> Stripe<T> {
    fn parent(&self, key: &StateKey) -> Option<Parent<'_, T>> {
        if key.is(Kind::Deleg) {
            let d = self.delegs.get(key)?;
            let (client, file, gate, closing) = (&d.client, &d.file, &d.gate, d.closing);
            let (token, notifies) = (d.token.as_ref()?, &d.notifies);
            return Some(Parent { client, file, token, gate, closing, reads: true, seqid: 1, notifies });
        }
        let o = self.opens.get(key)?;
        Some(Parent {
            client: &o.client,
            file: &o.file,
            token: &o.token,
            gate: &o.gate,
            closing: o.closing,
            reads: o.access.read(),
            seqid: o.seqid,
            notifies: &o.notifies,
        })
    }

    fn entries(&mut self, parent: &StateKey) -> Option<&mut Vec<StateKey>> {
        if parent.is(Kind::Deleg) {
            self.delegs.get_mut(parent).map(|d| &mut d.notifies)
        } else {
            self.opens.get_mut(parent).map(|o| &mut o.notifies)
        }
    }

    /// Takes an entry out, and out of its parent's list.
    fn remove_notify(&mut self, key: &StateKey) {
        if let Some(n) = self.notifies.remove(key)
            && let Some(entries) = self.entries(&n.parent)
        {
            entries.retain(|k| k != key);
        }
    }

    /// Room for one more under this open: the one that ends first and is not in use goes, if need be.
    fn trim_notifies(&mut self, parent: &StateKey, most: usize) {
        let Some(entries) = self.parent(parent).map(|p| p.notifies) else { return };
        if entries.len() < most {
            return;
        }
        let idle = entries.iter().filter_map(|k| self.notifies.get(k).filter(|n| !n.used()).map(|n| (n, k)));
        if let Some(oldest) = idle.min_by_key(|(n, _)| n.expires).map(|(_, k)| *k) {
            self.remove_notify(&oldest);
        }
    }
}

impl<T: Clone + Send> State<T> {
    /// Whether `stateid` has the form of a copy-notify stateid; says nothing about there being one.
    pub fn is_copy_notify(stateid: &Stateid) -> bool {
        !stateid.is_special() && StateKey::parse(&stateid.other).is(Kind::Notify)
    }

    /// COPY_NOTIFY (RFC 7862 15.3): a stateid by which another server may read `file` until `now` plus the lease time,
    /// and longer while it does. `stateid` is that of an open, a lock or a delegation of `client`; `behalf` makes, from the token of
    /// that open, what uses are to go by.
    ///
    /// # Errors
    ///
    /// BAD_STATEID (also for the special stateids, case K12), OLD_STATEID, OPENMODE; DELAY if there are too many or the
    /// open is about to be closed.
    pub fn notify_begin(
        &self,
        client: &Arc<Client>,
        file: &FileKey,
        stateid: &Stateid,
        behalf: impl FnOnce(&T) -> T,
        now: Time,
    ) -> Result<Stateid, Status> {
        if stateid.is_special() {
            return Err(Status::BAD_STATEID);
        }
        let key = StateKey::parse(&stateid.other);
        let mut guard = self.stripe_of(&key).ok_or(Status::BAD_STATEID)?.lock();
        let stripe = &mut *guard;
        let (parent, seqid) = match key {
            k if k.is(Kind::Open) || k.is(Kind::Deleg) => (k, None),
            k if k.is(Kind::Lock) => {
                let l = stripe.locks.get(&k).ok_or(stripe.missing(&k, client.id()))?;
                (l.open, Some(l.seqid))
            }
            _ => return Err(Status::BAD_STATEID),
        };
        let open = stripe.parent(&parent).ok_or(stripe.missing(&parent, client.id()))?;
        if open.client.id() != client.id() || *open.file != *file {
            return Err(Status::BAD_STATEID);
        }
        check_seqid(stateid.seqid, seqid.unwrap_or(open.seqid))?;
        if open.closing {
            return Err(Status::DELAY);
        }
        if !open.reads {
            return Err(Status::OPENMODE);
        }
        let behalf = behalf(open.token);
        stripe.trim_notifies(&parent, self.limits().copy_notifies_per_open);
        let of_open = stripe.parent(&parent).map_or(0, |p| p.notifies.len());
        if of_open >= self.limits().copy_notifies_per_open
            || client.notifies.load(Ordering::Relaxed) >= self.limits().copy_notifies_per_client
            || self.notify_total.load(Ordering::Relaxed) >= self.limits().copy_notifies
        {
            self.hits.copy_notifies.add();
            return Err(Status::DELAY);
        }
        // 80 bits of a hash: the same twice is not to be expected, but costs nothing to be sure of.
        let id = loop {
            let id = self.ids.notify(parent.stripe);
            if !stripe.notifies.contains_key(&id) {
                break id;
            }
        };
        let entry = Notify {
            parent,
            file: file.clone(),
            behalf,
            expires: now + self.limits().lease,
            in_use: Arc::new(()),
            counted: Counted::new(client, &self.notify_total),
        };
        stripe.notifies.insert(id, entry);
        if let Some(entries) = stripe.entries(&parent) {
            entries.push(id);
        }
        Ok(id.stateid(1))
    }

    /// Leave to read `file` under a copy-notify stateid, whoever asks; renews it. [`IoToken::behalf`] tells in whose
    /// name.
    ///
    /// # Errors
    ///
    /// BAD_STATEID (there is none, its time is up, it is of another file), OLD_STATEID, OPENMODE (the open was
    /// downgraded), DELAY (it is being closed).
    pub fn notify_io(&self, file: &FileKey, stateid: &Stateid, now: Time) -> Result<IoToken<T>, Status> {
        let key = StateKey::parse(&stateid.other);
        if !key.is(Kind::Notify) || stateid.is_special() {
            return Err(Status::BAD_STATEID);
        }
        let mut guard = self.stripe_of(&key).ok_or(Status::BAD_STATEID)?.lock();
        let stripe = &mut *guard;
        let entry = stripe.notifies.get_mut(&key).filter(|n| n.file == *file).ok_or(Status::BAD_STATEID)?;
        check_seqid(stateid.seqid, 1)?;
        if entry.expires < now && !entry.used() {
            stripe.remove_notify(&key);
            return Err(Status::BAD_STATEID);
        }
        entry.expires = entry.expires.max(now + self.limits().lease);
        let (parent, behalf, in_use) = (entry.parent, entry.behalf.clone(), entry.in_use.clone());
        let open = stripe.parent(&parent).ok_or(Status::BAD_STATEID)?;
        if open.closing {
            return Err(Status::DELAY);
        }
        if !open.reads {
            return Err(Status::OPENMODE);
        }
        Ok(IoToken::on_behalf(open.token.clone(), open.gate.clone(), behalf, in_use))
    }

    /// OFFLOAD_CANCEL at the source (RFC 7862 15.8), or FREE_STATEID: it is honoured no more. Uses that began go on.
    ///
    /// # Errors
    ///
    /// BAD_STATEID (also for whoever is not its owner), OLD_STATEID.
    pub fn notify_cancel(&self, client: &Client, stateid: &Stateid) -> Result<(), Status> {
        match self.test_notify(client, stateid) {
            Status::OK => {}
            status => return Err(status),
        }
        let key = StateKey::parse(&stateid.other);
        let stripe = self.stripe_of(&key).ok_or(Status::BAD_STATEID)?;
        stripe.lock().remove_notify(&key);
        Ok(())
    }

    pub(crate) fn test_notify(&self, client: &Client, stateid: &Stateid) -> Status {
        let key = StateKey::parse(&stateid.other);
        let Some(stripe) = self.stripe_of(&key) else { return Status::BAD_STATEID };
        let stripe = stripe.lock();
        match stripe.notifies.get(&key) {
            Some(n) if n.counted.client.id() == client.id() => {
                check_seqid(stateid.seqid, 1).err().unwrap_or(Status::OK)
            }
            _ => Status::BAD_STATEID,
        }
    }

    /// Copy-notify stateids that are honoured.
    pub fn notifies(&self) -> usize {
        self.notify_total.load(Ordering::Relaxed)
    }

    /// Those whose time is up go, unless they are in use; use renews them.
    pub(crate) fn tick_notifies(&self, now: Time) {
        if self.notifies() == 0 {
            return;
        }
        for stripe in &self.stripes {
            let mut stripe = stripe.lock();
            let mut over = Vec::new();
            for (key, n) in &mut stripe.notifies {
                if n.used() {
                    n.expires = n.expires.max(now + self.limits().lease);
                } else if n.expires < now {
                    over.push(*key);
                }
            }
            over.iter().for_each(|k| stripe.remove_notify(k));
        }
    }
}
