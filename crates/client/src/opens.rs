//! Open files and their locks, as far as they must outlive a restart of the server (RFC 8881 section 8.4.2).

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use dhow_proto::v4::ops::{
    CloseArgs, ExistLockOwner, FreeStateidArgs, LockArgs, LockRes, Locker, OpenArgs, OpenClaim, OpenHow,
    OpenToLockOwner, PutFhArgs, TestStateidArgs, share,
};
use dhow_proto::v4::{ArgOp, ClientId, DelegationType, FileHandle, ResOp, StateOwner, Stateid, Status};
use dhow_rpc::Credential;
use parking_lot::Mutex;

use crate::call::Request;
use crate::deleg::{self, Delegation};
use crate::inner::{Inner, Session};
use crate::ranges::Ranges;
use crate::{Error, Result};

/// All opens of a client that are not closed.
#[derive(Debug, Default)]
pub(crate) struct Opens {
    table: Mutex<(u64, HashMap<u64, Weak<OpenState>>)>,
}

/// One open file.
#[derive(Debug)]
pub(crate) struct OpenState {
    id: u64,
    pub(crate) fh: FileHandle,
    /// The open-owner: one for each open, so that closing one file handle leaves others alone.
    owner: Bytes,
    access: u32,
    deny: u32,
    cred: Option<Arc<Credential>>,
    held: Mutex<Held>,
    delegation: Mutex<Option<Arc<Delegation>>>,
}

#[derive(Debug)]
struct Held {
    stateid: Stateid,
    /// Counts re-establishments: a failure of an earlier stateid says nothing about the present one.
    generation: u64,
    /// Why it cannot be used any more.
    lost: Option<Status>,
    /// It could not be reclaimed, and is to be opened anew once RECLAIM_COMPLETE was sent.
    reopen: bool,
    closed: bool,
    /// By lock-owner.
    locks: HashMap<Bytes, LockHeld>,
}

#[derive(Debug, Clone)]
pub(crate) struct LockHeld {
    pub(crate) stateid: Stateid,
    pub(crate) ranges: Ranges,
}

/// An open-owner for a new open.
pub(crate) fn state_owner(owner: Bytes) -> StateOwner {
    StateOwner { client: ClientId(0), owner }
}

impl Opens {
    /// An owner that no other open of this client has.
    pub(crate) fn new_owner(&self) -> Bytes {
        let mut table = self.table.lock();
        table.0 += 1;
        Bytes::from(format!("dhow-{:x}", table.0))
    }

    pub(crate) fn add(
        &self,
        fh: FileHandle,
        owner: Bytes,
        (access, deny): (u32, u32),
        cred: Option<Arc<Credential>>,
        stateid: Stateid,
    ) -> Arc<OpenState> {
        let mut table = self.table.lock();
        table.0 += 1;
        let id = table.0;
        let held = Held { stateid, generation: 0, lost: None, reopen: false, closed: false, locks: HashMap::new() };
        let (held, delegation) = (Mutex::new(held), Mutex::default());
        let open = Arc::new(OpenState { id, fh, owner, access, deny, cred, held, delegation });
        table.1.insert(id, Arc::downgrade(&open));
        open
    }

    pub(crate) fn remove(&self, open: &OpenState) {
        open.held.lock().closed = true;
        self.table.lock().1.remove(&open.id);
    }

    pub(crate) fn all(&self) -> Vec<Arc<OpenState>> {
        self.table.lock().1.values().filter_map(Weak::upgrade).collect()
    }
}

impl OpenState {
    /// The stateid and its generation.
    ///
    /// # Errors
    ///
    /// When the open is lost or closed.
    pub(crate) fn stateid(&self) -> Result<(Stateid, u64)> {
        let held = self.held.lock();
        match held.lost {
            _ if held.closed => Err(Error::Argument("the file is closed".into())),
            Some(status) => Err(Error::StateLost { status }),
            None => Ok((held.stateid, held.generation)),
        }
    }

    /// The stateid to close with: also of an open that counts as lost, since the server may hold it all the same.
    pub(crate) fn closing_stateid(&self) -> Option<Stateid> {
        let held = self.held.lock();
        (!held.closed).then_some(held.stateid)
    }

    /// Whether the file was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.held.lock().closed
    }

    /// The generation at present.
    pub(crate) fn generation(&self) -> u64 {
        self.held.lock().generation
    }

    /// The open's lock state for `owner`, if it has one.
    pub(crate) fn lock_held(&self, owner: &[u8]) -> Option<LockHeld> {
        self.held.lock().locks.get(owner).cloned()
    }

    /// Notes a change of the lock state that the server confirmed.
    pub(crate) fn update_lock(&self, owner: &Bytes, stateid: Stateid, change: impl FnOnce(&mut Ranges)) {
        let mut held = self.held.lock();
        let lock = held.locks.entry(owner.clone()).or_insert_with(|| LockHeld { stateid, ranges: Ranges::default() });
        // Replies overtake each other; of one state the higher seqid is the later (RFC 8881 section 8.2.2).
        if lock.stateid.other != stateid.other || stateid.seqid.wrapping_sub(lock.stateid.seqid) < 1 << 31 {
            lock.stateid = stateid;
        }
        change(&mut lock.ranges);
    }

    /// The delegation that came with it.
    pub(crate) fn delegation(&self) -> Option<Arc<Delegation>> {
        self.delegation.lock().clone()
    }

    pub(crate) fn set_delegation(&self, delegation: Option<Arc<Delegation>>) {
        *self.delegation.lock() = delegation;
    }

    fn lose(&self, status: Status) {
        self.held.lock().lost = Some(status);
    }

    fn reestablished(&self, stateid: Stateid) {
        let mut held = self.held.lock();
        held.stateid = stateid;
        held.generation += 1;
        held.lost = None;
        held.reopen = false;
    }

    fn open_op(&self, claim: OpenClaim) -> ArgOp {
        // A reclaim says by its claim what was held.
        let wish = match claim {
            OpenClaim::Previous(DelegationType::READ | DelegationType::WRITE) => share::WANT_NO_PREFERENCE,
            _ => share::WANT_NO_DELEG,
        };
        ArgOp::Open(OpenArgs {
            seqid: 0,
            share_access: self.access | wish,
            share_deny: self.deny,
            owner: state_owner(self.owner.clone()),
            how: OpenHow::NoCreate,
            claim,
        })
    }

    fn request(&self, ops: Vec<ArgOp>, session: Option<&Arc<Session>>) -> Request {
        Request { cred: self.cred.clone(), internal: session.map(Arc::clone), ..Request::new(ops) }
    }

    /// Opens the file again under its old handle; the new stateid.
    async fn reopen(
        &self,
        inner: &Arc<Inner>,
        session: Option<&Arc<Session>>,
        claim: OpenClaim,
    ) -> Result<Result<Stateid, Status>> {
        let ops = vec![ArgOp::PutFh(PutFhArgs { object: self.fh.clone() }), self.open_op(claim)];
        let res = inner.execute_patiently(self.request(ops, session)).await?;
        Ok(match res.results.last() {
            Some(ResOp::Open(Ok(ok))) => {
                match (self.delegation(), deleg::granted(&ok.delegation)) {
                    (Some(delegation), got) => delegation.reclaimed(got),
                    // Not asked for.
                    (None, Some((stateid, ..))) => inner.delegations.recall(inner, self.fh.clone(), stateid),
                    (None, None) => {}
                }
                Ok(ok.stateid)
            }
            _ => Err(res.status),
        })
    }

    /// Reclaims locks. When one cannot be had back, somebody else may change what it protected: the open counts as
    /// lost.
    async fn reclaim_locks(&self, inner: &Arc<Inner>, session: &Arc<Session>, stateid: Stateid) -> Result<()> {
        if !self.relock(inner, session, stateid).await? {
            tracing::warn!(server = %inner.config.server, "locks of an open file are lost");
            self.lose(Status::RECLAIM_BAD);
        }
        Ok(())
    }

    async fn relock(&self, inner: &Arc<Inner>, session: &Arc<Session>, stateid: Stateid) -> Result<bool> {
        let locks: Vec<_> = self.held.lock().locks.iter().map(|(o, l)| (o.clone(), l.clone())).collect();
        for (owner, held) in locks {
            let mut known: Option<Stateid> = None;
            for range in held.ranges.iter() {
                let locker = match known {
                    None => Locker::New(OpenToLockOwner {
                        open_seqid: 0,
                        open_stateid: stateid,
                        lock_seqid: 0,
                        lock_owner: state_owner(owner.clone()),
                    }),
                    Some(lock_stateid) => Locker::Existing(ExistLockOwner { lock_stateid, lock_seqid: 0 }),
                };
                let lock = LockArgs {
                    lock_type: range.lock_type(),
                    reclaim: true,
                    offset: range.start,
                    length: range.length(),
                    locker,
                };
                let ops = vec![ArgOp::PutFh(PutFhArgs { object: self.fh.clone() }), ArgOp::Lock(lock)];
                let res = inner.execute_patiently(self.request(ops, Some(session))).await?;
                match res.results.last() {
                    Some(ResOp::Lock(LockRes::Ok(stateid))) => known = Some(*stateid),
                    _ => return Ok(false),
                }
            }
            match known {
                Some(stateid) => self.update_lock(&owner, stateid, |_| {}),
                None => {
                    self.held.lock().locks.remove(&owner);
                }
            }
        }
        Ok(true)
    }
}

/// Reclaims every open and its locks after the client ID changed (RFC 8881 section 8.4.2.1). What the server refuses to
/// give back that way is left for [`reopen_all`].
///
/// # Errors
///
/// When the session went away again meanwhile: everything is to be done once more.
pub(crate) async fn reclaim_all(inner: &Arc<Inner>, session: &Arc<Session>) -> Result<()> {
    for open in inner.opens.all() {
        if open.is_closed() {
            continue;
        }
        let held = open.delegation().map_or(DelegationType::NONE, |d| d.claim());
        let previous = OpenClaim::Previous(held);
        match open.reopen(inner, Some(session), previous).await? {
            Ok(stateid) => {
                open.reestablished(stateid);
                open.reclaim_locks(inner, session, stateid).await?;
            }
            Err(_) => {
                open.held.lock().reopen = true;
                if let Some(delegation) = open.delegation() {
                    delegation.lose();
                }
            }
        }
    }
    Ok(())
}

/// Opens anew what could not be reclaimed: the server did not restart but has dropped us, or its grace period is over.
/// Only after RECLAIM_COMPLETE, before which such an OPEN is answered by GRACE (RFC 8881 section 18.51.3). Files are as
/// good as before by that; locks only if they can be had again, and even then somebody may have held them in between,
/// so a file with locks counts as lost.
///
/// # Errors
///
/// As [`reclaim_all`].
pub(crate) async fn reopen_all(inner: &Arc<Inner>, session: &Arc<Session>) -> Result<()> {
    for open in inner.opens.all() {
        if open.is_closed() || !open.held.lock().reopen {
            continue;
        }
        match open.reopen(inner, Some(session), OpenClaim::Fh).await? {
            Ok(stateid) => {
                let had_locks = open.held.lock().locks.values().any(|l| l.ranges.iter().next().is_some());
                open.reestablished(stateid);
                open.held.lock().locks.clear();
                if had_locks {
                    tracing::warn!(server = %inner.config.server, "locks of an open file are lost");
                    open.lose(Status::RECLAIM_BAD);
                }
            }
            Err(status) => {
                tracing::warn!(server = %inner.config.server, %status, "an open file could not be re-established");
                open.lose(status);
            }
        }
    }
    Ok(())
}

/// Asks which stateids were revoked and acknowledges the loss (RFC 8881 sections 18.38 and 18.48).
pub(crate) async fn test_all(inner: &Arc<Inner>) -> Result<()> {
    for open in inner.opens.all() {
        let mut stateids: Vec<Stateid> = vec![open.held.lock().stateid];
        stateids.extend(open.held.lock().locks.values().map(|l| l.stateid));
        let delegation = open.delegation().and_then(|d| Some((d.to_test()?, d)));
        stateids.extend(delegation.iter().map(|(stateid, _)| *stateid));
        let test = ArgOp::TestStateid(TestStateidArgs { stateids: stateids.clone() });
        let res = inner.execute_patiently(open.request(vec![test], None)).await?;
        let Some(ResOp::TestStateid(Ok(ok))) = res.results.first() else { continue };
        for (stateid, status) in stateids.iter().zip(&ok.status_codes) {
            if !matches!(*status, Status::EXPIRED | Status::ADMIN_REVOKED | Status::DELEG_REVOKED) {
                continue;
            }
            match &delegation {
                // The open goes on without it (RFC 8881 section 10.4.6).
                Some((of_delegation, delegation)) if of_delegation == stateid => delegation.lose(),
                _ => open.lose(*status),
            }
            let free = ArgOp::FreeStateid(FreeStateidArgs { stateid: *stateid });
            inner.execute_patiently(open.request(vec![free], None)).await?;
        }
    }
    Ok(())
}

/// Closes what is still open, before the client ID is destroyed.
pub(crate) async fn close_all(inner: &Arc<Inner>) {
    for open in inner.opens.all() {
        if let Some(stateid) = open.closing_stateid() {
            let close = ArgOp::Close(CloseArgs { seqid: 0, open_stateid: stateid });
            let ops = vec![ArgOp::PutFh(PutFhArgs { object: open.fh.clone() }), close];
            let _ = inner.execute_patiently(open.request(ops, None)).await;
        }
        inner.opens.remove(&open);
    }
}
