//! TEST_STATEID and FREE_STATEID (RFC 8881 18.48, 18.38).

use crate::State;
use crate::client::Client;
use crate::ids::{Kind, StateKey, check_seqid};
use crate::types::*;

impl<T: Clone + Send> State<T> {
    /// What using `stateid` would come to, the current filehandle and the kind of state aside: OK, BAD_STATEID,
    /// OLD_STATEID, DELEG_REVOKED or ADMIN_REVOKED. State of a client whose lease ended and that was in the way is gone together with the client, so
    /// EXPIRED does not arise.
    pub fn test_stateid(&self, client: &Client, stateid: &Stateid) -> Status {
        if stateid.is_special() {
            return Status::BAD_STATEID;
        }
        let key = StateKey::parse(&stateid.other);
        if self.is_revoked(client, &key) {
            return Status::ADMIN_REVOKED;
        }
        if key.is(Kind::Copy) {
            return self.test_copy(client, stateid);
        }
        if key.is(Kind::Notify) {
            return self.test_notify(client, stateid);
        }
        if key.is(Kind::Deleg) {
            return self.test_deleg(client, stateid);
        }
        let Some(stripe) = self.stripe_of(&key) else { return Status::BAD_STATEID };
        let stripe = stripe.lock();
        let (owner, seqid) = if let Some(l) = stripe.locks.get(&key) {
            (l.owner.client, l.seqid)
        } else if let Some(o) = stripe.opens.get(&key) {
            (o.client.id(), o.seqid)
        } else {
            return Status::BAD_STATEID;
        };
        if owner != client.id() {
            return Status::BAD_STATEID;
        }
        check_seqid(stateid.seqid, seqid).err().unwrap_or(Status::OK)
    }

    /// Frees lock state that holds no lock, a copy-notify stateid, or what was revoked (RFC 8881 8.5).
    ///
    /// # Errors
    ///
    /// LOCKS_HELD (an open, a lock state with locks, a delegation, a copy that runs), BAD_STATEID, OLD_STATEID.
    pub fn free_stateid(&self, client: &Client, stateid: &Stateid) -> Result<(), Status> {
        if !stateid.is_special() && self.forget_revoked(client, &StateKey::parse(&stateid.other)) {
            return Ok(());
        }
        if !stateid.is_special() && StateKey::parse(&stateid.other).is(Kind::Deleg) {
            return self.free_deleg(client, stateid);
        }
        match self.test_stateid(client, stateid) {
            Status::OK => {}
            s => return Err(s),
        }
        let key = StateKey::parse(&stateid.other);
        if key.is(Kind::Notify) {
            return self.notify_cancel(client, stateid);
        }
        if !key.is(Kind::Lock) {
            return Err(Status::LOCKS_HELD);
        }
        let mut guard = self.stripe_of(&key).ok_or(Status::BAD_STATEID)?.lock();
        let stripe = &mut *guard;
        let l = stripe.locks.get(&key).ok_or(Status::BAD_STATEID)?;
        let open = stripe.opens.get_mut(&l.open).ok_or(Status::BAD_STATEID)?;
        if stripe.files.get(&open.file).is_some_and(|f| f.locks.has(&l.owner)) {
            return Err(Status::LOCKS_HELD);
        }
        open.client.count_locks(1, 0);
        open.lock_states.retain(|k| *k != key);
        stripe.locks.remove(&key);
        Ok(())
    }
}
