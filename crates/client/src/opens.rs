//! Open files and their locks, as far as they must outlive a restart of the server (RFC 8881 section 8.4.2). What is
//! done when they are lost stands in the table of [`crate::recover`].
//!
//! # States
//!
//! An open is *good*, *owed* (refused as a reclaim, to be opened anew after RECLAIM_COMPLETE), *lost* (for good: every
//! use says so, by [`Error::StateLost`], CLOSE included) or closed. An owed open is settled by a task of its own: a
//! server may want it to wait until the grace period is over, and that holds up nobody but calls about this file (RFC
//! 8881 sections 8.4.2.1 and 18.51.3: after RECLAIM_COMPLETE it is an ordinary OPEN). Its generation counts how often its stateids were replaced: an
//! answer to a request of an earlier generation changes nothing.
//!
//! An open whose CLOSE is out ([`Out`]) when the server loses its state is not reclaimed: the server may have closed it
//! before, and granted to somebody else what it denied or had locked. It is *left*. Nor is one that is lost: it can only
//! be closed, and others may have had what it promised.
//!
//! An open is *guarded* when its holder relies on what others cannot do meanwhile: it denies something, or holds
//! byte-range locks. What a plain open promises is as true after it was opened anew; what a guarded one promised may
//! have been broken in between, so it is never opened anew but lost.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use dhow_proto::v4::ops::{
    CloseArgs, ExistLockOwner, FreeStateidArgs, LockArgs, LockRes, Locker, OpenArgs, OpenClaim, OpenHow,
    OpenToLockOwner, PutFhArgs, TestStateidArgs, share,
};
use dhow_proto::v4::{ArgOp, ClientId, DelegationType, FileHandle, FsId, OpNum, ResOp, StateOwner, Stateid, Status};
use dhow_rpc::Credential;
use dhow_session::classify::{Class, classify};
use parking_lot::Mutex;

use crate::call::Request;
use crate::deleg::{self, Delegation};
use crate::inner::{Inner, Session};
use crate::ranges::{Given, Ranges};
use crate::{Error, Lost, Result};

/// All opens of a client that are not closed.
#[derive(Debug, Default)]
pub(crate) struct Opens {
    /// In the order in which they came: in that they are reclaimed.
    table: Mutex<(u64, BTreeMap<u64, Weak<OpenState>>)>,
}

/// One open file.
#[derive(Debug)]
pub(crate) struct OpenState {
    id: u64,
    pub(crate) fh: FileHandle,
    /// The filesystem it is in, when known.
    fsid: OnceLock<FsId>,
    /// The open-owner: one for each open, so that closing one file handle leaves others alone.
    owner: Bytes,
    access: u32,
    deny: u32,
    cred: Option<Arc<Credential>>,
    held: Mutex<Held>,
    delegation: Mutex<Option<Arc<Delegation>>>,
    /// One looks for what is left of it at a time.
    examining: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Held {
    stateid: Stateid,
    /// Counts re-establishments: a failure of an earlier stateid says nothing about the present one.
    generation: u64,
    /// What of it is lost, and why: it cannot be used any more.
    lost: Option<(Lost, Status)>,
    /// It could not be reclaimed for this reason, and is to be opened anew once RECLAIM_COMPLETE was sent.
    owed: Option<Status>,
    closed: bool,
    /// It is being closed: what the server knows no more is not to be opened anew.
    closing: bool,
    /// A CLOSE was sent, and it is not known that it was not executed.
    out: Option<Out>,
    /// By lock-owner.
    locks: BTreeMap<Bytes, LockHeld>,
}

/// CLOSEs that may have been executed.
#[derive(Debug, Clone, Copy)]
struct Out {
    /// Requests that hold one: what is known of one says nothing of another, for which its caller has stopped waiting.
    requests: u32,
    /// The lease had not run out when the first was sent: whatever happened to the server before, others had been granted
    /// nothing until then (a grace period is as long as a lease, RFC 8881 section 8.4.2.1).
    in_time: bool,
    /// The server lost its state meanwhile, and the open was not reclaimed.
    left: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct LockHeld {
    pub(crate) stateid: Stateid,
    pub(crate) ranges: Ranges,
    /// What a request that is on its way gives up. Others may have it as soon as the server has seen that, so it is not
    /// reclaimed: it would be taken from them (RFC 8881 section 8.4.2.1).
    given: Option<Given>,
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
        let held = Held {
            stateid,
            generation: 0,
            lost: None,
            owed: None,
            closed: false,
            closing: false,
            out: None,
            locks: BTreeMap::new(),
        };
        let (held, delegation, examining) = (Mutex::new(held), Mutex::default(), tokio::sync::Mutex::default());
        let open = Arc::new(OpenState {
            id,
            fh,
            fsid: OnceLock::new(),
            owner,
            access,
            deny,
            cred,
            held,
            delegation,
            examining,
        });
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
            Some((what, status)) => Err(Error::StateLost { what, status }),
            None => Ok((held.stateid, held.generation)),
        }
    }

    /// The stateid for I/O of a lock-owner: that of its locks while it has any, whatever version of it is current, so
    /// that the loss of a lock is seen by the next READ or WRITE (RFC 8881 sections 8.2.5 and 9.1.2).
    pub(crate) fn io_stateid(&self, owner: &[u8], open_stateid: Stateid) -> Stateid {
        let held = self.held.lock();
        match held.locks.get(owner) {
            Some(lock) if !lock.ranges.is_empty() => Stateid { seqid: 0, ..lock.stateid },
            _ => open_stateid,
        }
    }

    /// The stateid to close with: also of an open that counts as lost, since the server may hold it all the same.
    pub(crate) fn closing_stateid(&self) -> Option<Stateid> {
        let held = self.held.lock();
        (!held.closed).then_some(held.stateid)
    }

    /// It is used no more: a CLOSE is about to be sent.
    pub(crate) fn begin_close(&self) {
        self.held.lock().closing = true;
    }

    /// A request with a CLOSE is being sent for the first time. `in_time`: the lease has not run out.
    pub(crate) fn close_goes_out(&self, in_time: bool) {
        self.held.lock().out.get_or_insert(Out { requests: 0, in_time, left: false }).requests += 1;
    }

    /// The CLOSE of such a request was not executed.
    pub(crate) fn close_came_back(&self) {
        let mut held = self.held.lock();
        if let Some(out) = &mut held.out {
            out.requests = out.requests.saturating_sub(1);
            // Of one that was not reclaimed nothing is left to be closed.
            if out.requests == 0 && !out.left {
                held.out = None;
            }
        }
    }

    /// What was sent is not known not to have closed it. True when it is so: then it is not to be reclaimed.
    fn leave(&self) -> bool {
        let mut held = self.held.lock();
        match &mut held.out {
            Some(out) => {
                out.left = true;
                true
            }
            None => false,
        }
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

    /// Notes a change of the lock state that the server confirmed to a request of this generation. False when the state
    /// was replaced since: by what was known before, so the change is to be asked for again.
    pub(crate) fn update_lock(
        &self,
        owner: &Bytes,
        (stateid, generation): (Stateid, u64),
        change: impl FnOnce(&mut Ranges),
    ) -> bool {
        let mut held = self.held.lock();
        if held.generation != generation {
            return false;
        }
        let lock = held.locks.entry(owner.clone()).or_insert_with(|| LockHeld {
            stateid,
            ranges: Ranges::default(),
            given: None,
        });
        // Replies overtake each other; of one state the higher seqid is the later (RFC 8881 section 8.2.2).
        if lock.stateid.other != stateid.other || stateid.seqid.wrapping_sub(lock.stateid.seqid) < 1 << 31 {
            lock.stateid = stateid;
        }
        change(&mut lock.ranges);
        true
    }

    /// A request that gives something up is about to be sent.
    pub(crate) fn begin_to_give(&self, owner: &[u8], given: Given) {
        if let Some(lock) = self.held.lock().locks.get_mut(owner) {
            lock.given = Some(given);
        }
    }

    /// That request has ended. `in_doubt`: nobody knows whether it was executed, so what it was to give up is not counted
    /// on any more; the server may hold it until the next LOCKU or CLOSE.
    pub(crate) fn end_giving(&self, owner: &[u8], in_doubt: bool) {
        if let Some(lock) = self.held.lock().locks.get_mut(owner)
            && let Some(given) = lock.given.take()
            && in_doubt
        {
            lock.ranges.give(given);
        }
    }

    /// The filesystem it is in, when known.
    pub(crate) fn fsid(&self) -> Option<FsId> {
        self.fsid.get().copied()
    }

    pub(crate) fn set_fsid(&self, fsid: FsId) {
        // It does not change while it is open.
        let _ = self.fsid.set(fsid);
    }

    /// The delegation that came with it.
    pub(crate) fn delegation(&self) -> Option<Arc<Delegation>> {
        self.delegation.lock().clone()
    }

    pub(crate) fn set_delegation(&self, delegation: Option<Arc<Delegation>>) {
        *self.delegation.lock() = delegation;
    }

    fn lose(&self, inner: &Inner, what: Lost, status: Status) {
        let mut held = self.held.lock();
        if held.lost.is_none() {
            held.lost = Some((what, status));
            tracing::warn!(server = %inner.config.server, %status, "{what} of an open file is lost");
        }
    }

    /// What its holder relies on that others may not do meanwhile, if anything.
    fn guard(&self) -> Option<Lost> {
        let held = self.held.lock();
        match held.locks.values().any(|l| !l.ranges.is_empty()) {
            true => Some(Lost::Lock),
            false => (self.deny != share::DENY_NONE).then_some(Lost::Share),
        }
    }

    /// It was reclaimed, and is known under this stateid now; the generation that this begins.
    fn reclaimed(&self, stateid: Stateid) -> u64 {
        let mut held = self.held.lock();
        held.stateid = stateid;
        held.generation += 1;
        held.owed = None;
        held.generation
    }

    /// It was opened anew under this stateid, unless something else replaced the stateid since the generation `expected`.
    /// False when it is being closed, which may have been done without this one.
    fn renewed(&self, stateid: Stateid, expected: Option<u64>) -> bool {
        let mut held = self.held.lock();
        if held.closing || held.closed {
            return false;
        }
        if expected.is_none_or(|generation| generation == held.generation) {
            held.locks.clear();
            held.stateid = stateid;
            held.generation += 1;
            held.owed = None;
        }
        true
    }

    /// The server revoked everything: there is nothing to reclaim. To be opened anew.
    fn revoked(&self) {
        self.held.lock().owed = Some(Status::EXPIRED);
        if let Some(delegation) = self.delegation() {
            delegation.lose();
        }
    }

    /// Why it could not be reclaimed, until it is opened anew or lost.
    pub(crate) fn owed(&self) -> Option<Status> {
        self.held.lock().owed
    }

    /// What of it is lost.
    pub(crate) fn loss(&self) -> Option<(Lost, Status)> {
        self.held.lock().lost
    }

    fn is_closing(&self) -> bool {
        let held = self.held.lock();
        held.closing || held.closed
    }

    fn is_lost(&self) -> bool {
        self.held.lock().lost.is_some()
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

    pub(crate) fn request(&self, ops: Vec<ArgOp>, session: Option<&Arc<Session>>) -> Request {
        // Kept by the server, so that a retry over another connection gets the answer.
        Request { cache: true, cred: self.cred.clone(), internal: session.map(Arc::clone), ..Request::new(ops) }
    }

    /// Opens the file again under its old handle; the new stateid.
    async fn reopen(
        &self,
        inner: &Arc<Inner>,
        session: Option<&Arc<Session>>,
        claim: OpenClaim,
    ) -> Result<Result<Stateid, Status>> {
        let reclaim = matches!(claim, OpenClaim::Previous(_));
        let ops = vec![ArgOp::PutFh(PutFhArgs { object: self.fh.clone() }), self.open_op(claim)];
        let res = match own_failure(inner.execute_patiently(self.request(ops, session)).await)? {
            Ok(res) => res,
            Err(status) => return Ok(Err(status)),
        };
        Ok(match res.results.last() {
            Some(ResOp::Open(Ok(ok))) => {
                match (self.delegation().filter(|_| reclaim), deleg::granted(&ok.delegation)) {
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
    async fn reclaim_locks(
        &self,
        inner: &Arc<Inner>,
        session: &Arc<Session>,
        (stateid, generation): (Stateid, u64),
    ) -> Result<()> {
        let relocked = self.relock(inner, session, (stateid, generation)).await?;
        // A request that was built meanwhile has the new stateid of the open and old ones of locks.
        self.held.lock().generation += 1;
        if let Err(status) = relocked {
            self.lose(inner, Lost::Lock, status);
        }
        Ok(())
    }

    async fn relock(
        &self,
        inner: &Arc<Inner>,
        session: &Arc<Session>,
        (stateid, generation): (Stateid, u64),
    ) -> Result<Result<(), Status>> {
        let locks: Vec<_> = self.held.lock().locks.iter().map(|(o, l)| (o.clone(), l.clone())).collect();
        for (owner, held) in locks {
            let mut known: Option<Stateid> = None;
            let mut ranges = held.ranges;
            if let Some(given) = held.given {
                ranges.give(given);
            }
            if self.is_closing() {
                // CLOSE frees all of them.
                ranges = Ranges::default();
            }
            for range in ranges.iter() {
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
                let res = match own_failure(inner.execute_patiently(self.request(ops, Some(session))).await)? {
                    Ok(res) => res,
                    Err(status) => return Ok(Err(status)),
                };
                match res.results.last() {
                    Some(ResOp::Lock(LockRes::Ok(stateid))) => known = Some(*stateid),
                    _ => return Ok(Err(res.status)),
                }
            }
            match known {
                Some(stateid) => {
                    self.update_lock(&owner, (stateid, generation), |r| *r = ranges);
                }
                None => {
                    self.held.lock().locks.remove(&owner);
                }
            }
        }
        Ok(Ok(()))
    }
}

/// What went wrong with a request about one open: the open's own misfortune, as a status, or (the outer error) one of
/// the session or of the whole client.
fn own_failure<T>(done: Result<T>) -> Result<Result<T, Status>> {
    match done {
        Ok(done) => Ok(Ok(done)),
        // The user's credential is refused: others may go on.
        Err(Error::Auth(_)) => Ok(Err(Status::ACCESS)),
        Err(Error::Argument(_)) => Ok(Err(Status::INVAL)),
        Err(Error::Moved { .. }) => Ok(Err(Status::MOVED)),
        Err(Error::Protocol(_) | Error::OutcomeUnknown { .. }) => Ok(Err(Status::SERVERFAULT)),
        Err(Error::Status { status, .. }) if !matches!(status, Status::BADSESSION | Status::DEADSESSION) => {
            Ok(Err(status))
        }
        Err(e) => Err(e),
    }
}

/// The server revoked all state of this client (RFC 8881 section 18.46.3, EXPIRED_ALL_STATE_REVOKED): whatever it would
/// take for a reclaim is not to be reclaimed, since others may have had it.
pub(crate) fn all_revoked(inner: &Inner) {
    inner.opens.all().iter().for_each(|open| open.revoked());
}

/// Reclaims every open and its locks after the client ID changed (RFC 8881 section 8.4.2.1). What the server refuses to
/// give back that way is left for [`reopen_all`].
///
/// # Errors
///
/// When the session went away again meanwhile: everything is to be done once more.
pub(crate) async fn reclaim_all(inner: &Arc<Inner>, session: &Arc<Session>) -> Result<()> {
    for open in inner.opens.all() {
        if open.is_closed() || open.owed().is_some() {
            continue;
        }
        if open.is_lost() || open.leave() {
            if let Some(delegation) = open.delegation() {
                delegation.lose();
            }
            continue;
        }
        let held = open.delegation().map_or(DelegationType::NONE, |d| d.claim());
        let previous = OpenClaim::Previous(held);
        match open.reopen(inner, Some(session), previous).await? {
            Ok(stateid) => {
                let generation = open.reclaimed(stateid);
                open.reclaim_locks(inner, session, (stateid, generation)).await?;
            }
            Err(status) => {
                open.held.lock().owed = Some(status);
                if let Some(delegation) = open.delegation() {
                    delegation.lose();
                }
            }
        }
    }
    Ok(())
}

/// Sees to what could not be reclaimed: the server did not restart but has dropped us, or its grace period is over, or
/// it refused. Only after RECLAIM_COMPLETE, before which an OPEN is answered by GRACE (RFC 8881 section 18.51.3). Guarded
/// opens are lost at once, plain ones are opened anew, each in a task of its own.
pub(crate) fn settle_all(inner: &Arc<Inner>) {
    for open in inner.opens.all() {
        match (open.owed(), open.guard()) {
            (None, _) => {}
            (Some(status), Some(what)) => {
                open.held.lock().owed = None;
                open.lose(inner, what, status);
            }
            (Some(_), None) => {
                let inner = Arc::clone(inner);
                tokio::spawn(async move { settle(&inner, &open).await });
            }
        }
    }
}

/// Waits until an open that could not be reclaimed is opened anew or lost, and does it if nobody else does.
///
/// # Errors
///
/// When the client has ended.
pub(crate) async fn settle(inner: &Arc<Inner>, open: &OpenState) -> Result<()> {
    if open.owed().is_none() || open.is_closing() {
        return Ok(());
    }
    let _one_at_a_time = open.examining.lock().await;
    inner.session().await?;
    match open.owed() {
        Some(status) if !open.is_closing() => open.anew(inner, (None, status)).await,
        _ => Ok(()),
    }
}

impl OpenState {
    /// Opens it anew after its stateid was lost for the reason `why`, or counts it as lost. `generation`: that of the
    /// stateid which was lost.
    async fn anew(&self, inner: &Arc<Inner>, (generation, why): (Option<u64>, Status)) -> Result<()> {
        let lost = match self.guard() {
            Some(what) => (what, why),
            None if self.is_lost() => return Ok(()),
            None => match self.reopen(inner, None, OpenClaim::Fh).await? {
                Ok(stateid) if self.renewed(stateid, generation) => return Ok(()),
                Ok(stateid) => {
                    // Its CLOSE was sent without this.
                    let close = ArgOp::Close(CloseArgs { seqid: 0, open_stateid: stateid });
                    let ops = vec![ArgOp::PutFh(PutFhArgs { object: self.fh.clone() }), close];
                    return own_failure(inner.execute_patiently(self.request(ops, None)).await).map(drop);
                }
                Err(status) => (Lost::Open, status),
            },
        };
        self.held.lock().owed = None;
        self.lose(inner, lost.0, lost.1);
        Ok(())
    }
}

/// What one stateid of an open is.
enum Of {
    Open,
    Lock(Bytes),
    Delegation(Arc<Delegation>),
}

/// Whether a stateid of which a server says this is of no use any more.
fn is_gone(status: Status) -> bool {
    classify(status) == Class::StateLost
}

/// Whether the server remembers a stateid for no other reason than that its loss was not acknowledged.
pub(crate) fn is_revoked(status: Status) -> bool {
    matches!(status, Status::EXPIRED | Status::ADMIN_REVOKED | Status::DELEG_REVOKED)
}

/// FREE_STATEID: acknowledges the loss of a stateid (RFC 8881 section 18.38).
pub(crate) async fn acknowledge(inner: &Arc<Inner>, stateid: Stateid) -> Result<()> {
    let free = ArgOp::FreeStateid(FreeStateidArgs { stateid });
    match inner.execute_patiently(Request::new(vec![free])).await {
        // Asked for again, and not known any more: it was freed the first time.
        Ok(_) | Err(Error::OutcomeUnknown { op: OpNum::FREE_STATEID }) => Ok(()),
        Err(e) => Err(e),
    }
}

/// What of an open is gone.
struct Tested {
    found: bool,
    generation: u64,
    of_open: Option<Status>,
    of_lock: Option<Status>,
}

/// Asks what is left of an open, and acknowledges what was revoked (RFC 8881 sections 18.38 and 18.48).
async fn test(inner: &Arc<Inner>, open: &OpenState) -> Result<Tested> {
    let (generation, mut asked) = {
        let held = open.held.lock();
        let locks = held.locks.iter().map(|(owner, l)| (l.stateid, Of::Lock(owner.clone())));
        let asked: Vec<_> = std::iter::once((held.stateid, Of::Open)).chain(locks).collect();
        (held.generation, asked)
    };
    let mut tested = Tested { found: false, generation, of_open: None, of_lock: None };
    asked.extend(open.delegation().and_then(|d| Some((d.to_test()?, Of::Delegation(d)))));
    let stateids = asked.iter().map(|(stateid, _)| *stateid).collect();
    let test = ArgOp::TestStateid(TestStateidArgs { stateids });
    let res = inner.execute_patiently(open.request(vec![test], None)).await?;
    let Some(ResOp::TestStateid(Ok(ok))) = res.results.first() else { return Ok(tested) };
    for ((stateid, of), status) in asked.iter().zip(&ok.status_codes) {
        if !is_gone(*status) {
            continue;
        }
        tested.found = true;
        match of {
            Of::Open => tested.of_open = Some(*status),
            Of::Lock(owner) => {
                let mut held = open.held.lock();
                if held.generation == generation {
                    let ranges = held.locks.get(owner).is_some_and(|l| !l.ranges.is_empty());
                    // A lock state without locks protects nothing.
                    if ranges {
                        tested.of_lock = Some(*status);
                    } else {
                        held.locks.remove(owner);
                    }
                }
            }
            // The open goes on without it (RFC 8881 section 10.4.6).
            Of::Delegation(delegation) => delegation.lose_if(*stateid),
        }
        if is_revoked(*status) {
            acknowledge(inner, *stateid).await?;
        }
    }
    Ok(tested)
}

/// Asks what is left of an open, acknowledges what was revoked, and opens it anew or counts it as lost. Whether anything
/// was gone.
///
/// # Errors
///
/// When the server cannot be asked.
pub(crate) async fn examine(inner: &Arc<Inner>, open: &OpenState) -> Result<bool> {
    let _one_at_a_time = open.examining.lock().await;
    if open.is_closing() || open.is_lost() {
        return Ok(false);
    }
    if let Some(status) = open.owed() {
        // Nothing is left of it.
        open.anew(inner, (None, status)).await?;
        return Ok(true);
    }
    let Tested { found, generation, of_open, of_lock } = test(inner, open).await?;
    if open.generation() != generation || open.is_closing() {
        return Ok(found);
    }
    match (of_lock, of_open) {
        (Some(status), _) => open.lose(inner, Lost::Lock, status),
        // Somebody decided that this client is not to have it.
        (None, Some(Status::ADMIN_REVOKED)) => open.lose(inner, Lost::Open, Status::ADMIN_REVOKED),
        (None, Some(status)) => open.anew(inner, (Some(generation), status)).await?,
        (None, None) => {}
    }
    Ok(found)
}

/// What its holder is to be told of an open of which CLOSE said `status`: that it is not known. What was revoked is
/// acknowledged. Where a CLOSE was sent before of which nothing is known, that may be why: then something was lost only if
/// the server lost its state, and that CLOSE was not sent in time. A plain open that is gone is closed, and nobody could
/// tell the difference.
pub(crate) async fn closing_loss(inner: &Arc<Inner>, open: &OpenState, status: Status) -> Option<(Lost, Status)> {
    let (guard, owed) = (open.guard(), open.owed());
    let before = open.held.lock().out.filter(|out| out.left || status == Status::BAD_STATEID);
    match before {
        // Whatever became of the CLOSE.
        _ if open.is_lost() => {}
        Some(out) => {
            if let (true, false, Some(what)) = (out.left || owed.is_some(), out.in_time, guard) {
                open.lose(inner, what, status);
            }
        }
        None => {
            // Who opens it anew may have to wait for long.
            let tested = match owed {
                Some(_) => None,
                None => {
                    let _one_at_a_time = open.examining.lock().await;
                    test(inner, open).await.ok()
                }
            };
            let (of_open, of_lock) = tested.map_or((None, None), |t| (t.of_open, t.of_lock));
            let status = owed.or(of_open).unwrap_or(status);
            match (of_lock, guard) {
                (Some(status), _) => open.lose(inner, Lost::Lock, status),
                (None, _) if status == Status::ADMIN_REVOKED => open.lose(inner, Lost::Open, status),
                (None, Some(what)) => open.lose(inner, what, status),
                (None, None) => {}
            }
        }
    }
    open.loss()
}

/// [`examine`]s every open; whether anything was gone.
pub(crate) async fn examine_all(inner: &Arc<Inner>) -> Result<bool> {
    let mut found = false;
    for open in inner.opens.all() {
        // Of one that is being opened anew all is known.
        if open.owed().is_none() {
            found |= examine(inner, &open).await?;
        }
    }
    Ok(found)
}

/// Closes what is still open, before the client ID is destroyed.
pub(crate) async fn close_all(inner: &Arc<Inner>) {
    for open in inner.opens.all() {
        open.begin_close();
        if let Some(stateid) = open.closing_stateid() {
            let close = ArgOp::Close(CloseArgs { seqid: 0, open_stateid: stateid });
            let ops = vec![ArgOp::PutFh(PutFhArgs { object: open.fh.clone() }), close];
            let closes = vec![Arc::clone(&open)];
            let _ = inner.execute_patiently(Request { closes, ..open.request(ops, None) }).await;
        }
        inner.opens.remove(&open);
    }
}
