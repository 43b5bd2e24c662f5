//! State of files: the tables of one stripe.
//!
//! A stripe owns the files whose key hashes to it and all state of theirs. Invariants:
//!
//! * `File::share` counts the access and deny bits of every open *and reservation*, so that "is there a conflict" is
//!   two comparisons; who conflicts is searched for only if there is one.
//! * An open is in `opens`, in its file's `by_owner`, and in its client's `states`, or in none of them.
//! * A lock state belongs to one open and is in that open's `lock_states`; the ranges belong to the lock-owner.
//! * A file without opens, reservations, delegations, changes under way, pending locks and waiters for locks is not in
//!   the table.
//!
//! Delegations are in `deleg`, waiters for locks in `lockwait`.

use crate::admin::Revoked;
use crate::client::Client;
use crate::deleg::{Contended, Deleg};
use crate::ids::{Keyed, Map, StateKey};
use crate::io::IoGate;
use crate::lockset::{Held, LockSet};
use crate::lockwait::Waiter;
use crate::notify::Notify;
use crate::types::*;
use bytes::Bytes;
use smallvec::SmallVec;
use std::sync::Arc;

/// How many opens have a bit of access or deny.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct ShareCount {
    access: [u32; 2],
    deny: [u32; 2],
}

fn adjust(counts: &mut [u32; 2], share: Share, up: bool) {
    let [r, w] = counts;
    for (n, set) in [(r, share.read()), (w, share.write())] {
        if set {
            *n = if up { *n + 1 } else { n.saturating_sub(1) };
        }
    }
}

fn union(counts: &[u32; 2]) -> Share {
    let [r, w] = counts;
    let read = if *r > 0 { Share::READ } else { Share::NONE };
    let write = if *w > 0 { Share::WRITE } else { Share::NONE };
    read | write
}

impl ShareCount {
    pub(crate) fn add(&mut self, access: Share, deny: Share) {
        adjust(&mut self.access, access, true);
        adjust(&mut self.deny, deny, true);
    }

    pub(crate) fn sub(&mut self, access: Share, deny: Share) {
        adjust(&mut self.access, access, false);
        adjust(&mut self.deny, deny, false);
    }

    /// RFC 8881 9.7: opens of the same owner count too.
    pub(crate) fn conflicts(&self, access: Share, deny: Share) -> bool {
        access.intersects(union(&self.deny)) || deny.intersects(union(&self.access))
    }
}

/// An open: one for each file and open-owner.
#[derive(Debug)]
pub(crate) struct Open<T> {
    pub(crate) file: FileKey,
    pub(crate) client: Arc<Client>,
    pub(crate) owner: Bytes,
    pub(crate) seqid: u32,
    pub(crate) access: Share,
    pub(crate) deny: Share,
    /// Access values that OPENs of it asked for, one bit for each value 0..=3; deny values likewise. OPEN_DOWNGRADE
    /// may only go to a union of these (RFC 8881 18.18).
    pub(crate) asked_access: u8,
    pub(crate) asked_deny: u8,
    pub(crate) token: T,
    pub(crate) gate: Arc<IoGate>,
    /// Takes no new I/O.
    pub(crate) closing: bool,
    pub(crate) lock_states: SmallVec<[StateKey; 1]>,
    /// Copy-notify stateids asked with it.
    pub(crate) notifies: Vec<StateKey>,
}

/// Lock state: one for each open and lock-owner.
#[derive(Debug)]
pub(crate) struct LockState {
    pub(crate) open: StateKey,
    pub(crate) owner: OwnerKey,
    pub(crate) seqid: u32,
}

/// A lock that is being taken: conflict checks see it.
#[derive(Debug)]
pub(crate) struct PendingLock {
    pub(crate) id: u64,
    pub(crate) held: Held<OwnerKey>,
}

/// A file with state.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) by_owner: Map<OwnerKey, StateKey>,
    pub(crate) share: ShareCount,
    /// Opens in the making.
    pub(crate) reserved: usize,
    pub(crate) locks: LockSet<OwnerKey>,
    pub(crate) pending: Vec<PendingLock>,
    /// Those that are not revoked.
    pub(crate) delegs: SmallVec<[StateKey; 1]>,
    /// Changes of the file or its names under way: no delegation is given.
    pub(crate) changing: usize,
    /// Removals of names among them: nobody is let deny writing.
    pub(crate) removing: usize,
    /// In the order of asking.
    pub(crate) waiters: Vec<Waiter>,
}

impl File {
    pub(crate) fn new(keyed: Keyed) -> Self {
        Self {
            by_owner: Map::with_hasher(keyed),
            share: ShareCount::default(),
            reserved: 0,
            locks: LockSet::default(),
            pending: Vec::new(),
            delegs: SmallVec::new(),
            changing: 0,
            removing: 0,
            waiters: Vec::new(),
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.by_owner.is_empty()
            && self.reserved == 0
            && self.pending.is_empty()
            && self.delegs.is_empty()
            && self.changing == 0
            && self.waiters.is_empty()
    }
}

/// A stripe of the file table.
#[derive(Debug)]
pub(crate) struct Stripe<T> {
    pub(crate) files: Map<FileKey, File>,
    pub(crate) opens: Map<StateKey, Open<T>>,
    pub(crate) locks: Map<StateKey, LockState>,
    pub(crate) notifies: Map<StateKey, Notify<T>>,
    pub(crate) delegs: Map<StateKey, Deleg<T>>,
    /// What an administrator took away and its client has not freed yet.
    pub(crate) revoked: Map<StateKey, Revoked>,
    /// Files on which a delegation was recalled for a conflict, or whose names changed: none is given for a while.
    pub(crate) contended: Map<FileKey, Contended>,
    /// Writes under special stateids hold a clone. Of all files of the stripe: they are rare, and one more delegation
    /// that is not given harms nobody.
    pub(crate) special_writes: Arc<()>,
    pub(crate) keyed: Keyed,
    /// Numbers pending locks.
    pub(crate) next: u64,
}

impl<T: Clone> Stripe<T> {
    pub(crate) fn new(keyed: Keyed) -> Self {
        let (files, opens, locks) = (Map::with_hasher(keyed), Map::with_hasher(keyed), Map::with_hasher(keyed));
        Self {
            files,
            opens,
            locks,
            notifies: Map::with_hasher(keyed),
            delegs: Map::with_hasher(keyed),
            revoked: Map::with_hasher(keyed),
            contended: Map::with_hasher(keyed),
            special_writes: Arc::default(),
            keyed,
            next: 0,
        }
    }

    pub(crate) fn file_mut(&mut self, key: &FileKey) -> &mut File {
        let keyed = self.keyed;
        self.files.entry(key.clone()).or_insert_with(|| File::new(keyed))
    }

    pub(crate) fn drop_if_idle(&mut self, key: &FileKey) {
        if self.files.get(key).is_some_and(File::is_idle) {
            self.files.remove(key);
        }
    }

    /// Whether access and deny bits conflict with what is there (RFC 8881 9.7): SHARE_DENIED; DELAY if only with an
    /// open in the making; or the client whose lease has ended and that alone stands in the way.
    pub(crate) fn share_conflict(&self, f: &File, access: Share, deny: Share, now: Time) -> Result<(), Refused> {
        if !f.share.conflicts(access, deny) {
            return Ok(());
        }
        let mut courtesy = None;
        for key in f.by_owner.values() {
            let Some(o) = self.opens.get(key) else { continue };
            if !access.intersects(o.deny) && !deny.intersects(o.access) {
                continue;
            }
            if !in_nobodys_way(&o.client, now) {
                return Err(Status::SHARE_DENIED.into());
            }
            courtesy = Some(o.client.id());
        }
        Err(courtesy.map_or(Refused::Status(Status::DELAY), Refused::Courtesy))
    }

    /// Takes an open out of the tables, with its lock states; what the server must do about it comes out. Whether it was
    /// there.
    pub(crate) fn remove_open(&mut self, key: &StateKey, effects: &mut Effects<T>) -> bool {
        let Some(open) = self.opens.remove(key) else { return false };
        open.client.states.lock().remove(key);
        open.client.opens.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
        self.forget_locks_through(key);
        for n in &open.notifies {
            self.notifies.remove(n);
        }
        let mut gone: SmallVec<[OwnerKey; 1]> = SmallVec::new();
        for l in &open.lock_states {
            if let Some(l) = self.locks.remove(l) {
                open.client.count_locks(1, 0);
                gone.push(l.owner);
            }
        }
        let owner = OwnerKey { client: open.client.id(), owner: open.owner };
        if let Some(f) = self.files.get_mut(&open.file) {
            f.by_owner.remove(&owner);
            f.share.sub(open.access, open.deny);
        }
        for lock_owner in gone {
            // The same lock-owner may hold its locks through another open too (RFC 8881 9.5); then they stay.
            if self.owner_has_state(&open.file, &lock_owner) {
                continue;
            }
            let Some(f) = self.files.get_mut(&open.file) else { continue };
            let before = f.locks.len();
            if f.locks.release(&lock_owner) {
                open.client.count_locks(before, f.locks.len());
                effects.push(Effect::Unlock { file: open.file.clone(), open: open.token.clone(), owner: lock_owner });
            }
        }
        effects.push(Effect::Close(open.token));
        self.drop_if_idle(&open.file);
        true
    }

    fn owner_has_state(&self, file: &FileKey, lock_owner: &OwnerKey) -> bool {
        self.files.get(file).is_some_and(|f| {
            f.by_owner
                .iter()
                .filter(|(o, _)| o.client == lock_owner.client)
                .filter_map(|(_, k)| self.opens.get(k))
                .flat_map(|o| o.lock_states.iter())
                .filter_map(|k| self.locks.get(k))
                .any(|l| l.owner == *lock_owner)
        })
    }
}

/// Whether state of `client` yields to whoever wants it: its lease ended, or it is being retired.
pub(crate) fn in_nobodys_way(client: &Client, now: Time) -> bool {
    client.is_dying() || client.is_expired(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_table() {
        // RFC 8881 9.7, every pair of opens.
        let all = [Share::NONE, Share::READ, Share::WRITE, Share::BOTH];
        for a1 in &all[1..] {
            for d1 in all {
                let mut c = ShareCount::default();
                c.add(*a1, d1);
                for a2 in &all[1..] {
                    for d2 in all {
                        let want = a2.bits() & d1.bits() != 0 || d2.bits() & a1.bits() != 0;
                        assert_eq!(c.conflicts(*a2, d2), want, "{a1:?}/{d1:?} then {a2:?}/{d2:?}");
                    }
                }
                c.sub(*a1, d1);
                assert_eq!(c, ShareCount::default());
            }
        }
    }
}
