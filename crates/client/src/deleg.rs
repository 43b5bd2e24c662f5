//! Delegations, from the client's side (RFC 8881 10.2 to 10.5, 20.1, 20.2, 20.6).
//!
//! The library keeps nothing by itself, so it asks for no delegation unless [`OpenOptions::delegation`] does; what a
//! server gives unasked goes back at once. A delegation that was asked for belongs to its [`File`]:
//!
//! * [`Delegation::hold`] keeps it from going back while its user still has something to do with it: to write back what
//!   it keeps, or to let go of what it believes. [`Delegation::recalled`] tells when to come to an end. Without a hold a
//!   recall is answered by DELEGRETURN at once; with one, when the last hold is gone.
//! * Every open and lock of the library is known to the server as well, so nothing has to be claimed before the return.
//! * It goes back when its file is closed, and to CB_RECALL_ANY those that nobody holds go first to come first.
//! * After a restart of the server it is reclaimed with its open; one that the server grants as recalled goes back. If it
//!   cannot be reclaimed, or was revoked, it is *lost*: [`Delegation::state`] says so, and the open goes on.
//!
//! CB_GETATTR asks the holder of a write delegation for size and change. The library writes through, so the size is what
//! its WRITEs and SETATTRs made it; a user that keeps data back says so by [`Delegation::set_modified`]. After an
//! operation of which the library cannot tell the size (a copy, an allocation, operations of the user's own under the
//! stateid) it answers DELAY, and the server recalls.
//!
//! A recall may overtake the reply to the OPEN that granted the delegation. Then it is returned, and what the OPEN brings
//! later is known to be gone already.
//!
//! [`OpenOptions::delegation`]: crate::OpenOptions::delegation
//! [`File`]: crate::File

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use dhow_proto::v4::cb::rca4;
use dhow_proto::v4::ops::{Delegation as Granted, DelegreturnArgs, PutFhArgs, share};
use dhow_proto::v4::{ArgOp, Attrs, Bitmap, DelegationType, FileHandle, OpNum, Stateid, Status, attr};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::call::Request;
use crate::inner::Inner;
use crate::{Error, opens};

/// Recalls remembered that came before their OPEN's reply.
const MAX_EARLY: usize = 256;

/// Which delegation to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WantDelegation {
    /// One for reading: nobody else changes the file while it is held.
    Read,
    /// One for writing: nobody else uses the file while it is held.
    Write,
    /// Whichever the server gives.
    Any,
}

impl WantDelegation {
    pub(crate) fn bits(self) -> u32 {
        match self {
            Self::Read => share::WANT_READ_DELEG,
            Self::Write => share::WANT_WRITE_DELEG,
            Self::Any => share::WANT_ANY_DELEG,
        }
    }
}

/// What became of a delegation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DelegationState {
    /// Held.
    Held,
    /// Held, and asked for: finish, and let go of holds.
    Recalled,
    /// Returned.
    Returned,
    /// Revoked (perhaps while it was being returned), or not reclaimed after a restart: what was believed by it may be
    /// wrong since.
    Lost,
}

/// A delegation.
#[derive(Debug)]
pub struct Delegation {
    fh: FileHandle,
    inner: Weak<Inner>,
    state: watch::Sender<DelegationState>,
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    stateid: Stateid,
    write: bool,
    holds: usize,
    /// The DELEGRETURN is on its way, or done.
    returning: bool,
    change: u64,
    /// `None`: something may have changed it that does not tell.
    size: Option<u64>,
    modified: bool,
}

/// Keeps a delegation from being returned. What is believed by right of it holds while this lives.
#[derive(Debug)]
pub struct Hold(Arc<Delegation>);

/// All delegations of a client.
#[derive(Debug, Default)]
pub(crate) struct Delegations {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// By "other" of the stateid; and the order in which they came.
    held: HashMap<[u8; 12], (u64, Arc<Delegation>)>,
    next: u64,
    early: VecDeque<[u8; 12]>,
}

/// The stateid, whether it is for writing, and whether it is recalled already.
pub(crate) fn granted(delegation: &Granted) -> Option<(Stateid, bool, bool)> {
    match delegation {
        Granted::Read(d) => Some((d.stateid, false, d.recall)),
        Granted::Write(d) => Some((d.stateid, true, d.recall)),
        _ => None,
    }
}

/// PUTFH and DELEGRETURN.
pub(crate) fn giving_back(fh: &FileHandle, stateid: Stateid) -> Vec<ArgOp> {
    vec![ArgOp::PutFh(PutFhArgs { object: fh.clone() }), ArgOp::Delegreturn(DelegreturnArgs { stateid })]
}

impl Delegations {
    /// A delegation that came with an OPEN that asked for one. `None` if its recall came first.
    pub(crate) fn add(
        &self,
        inner: &Arc<Inner>,
        fh: &FileHandle,
        (stateid, write): (Stateid, bool),
        attrs: &Attrs,
    ) -> Option<Arc<Delegation>> {
        let mut table = self.table.lock();
        let early = table.early.len();
        table.early.retain(|other| *other != stateid.other);
        if table.early.len() != early {
            return None;
        }
        let held = Held {
            stateid,
            write,
            holds: 0,
            returning: false,
            change: attrs.change.unwrap_or(0),
            size: attrs.size,
            modified: false,
        };
        let (fh, inner, state) = (fh.clone(), Arc::downgrade(inner), watch::Sender::new(DelegationState::Held));
        let delegation = Arc::new(Delegation { fh, inner, state, held: Mutex::new(held) });
        table.next += 1;
        let next = table.next;
        table.held.insert(stateid.other, (next, delegation.clone()));
        Some(delegation)
    }

    /// CB_RECALL.
    pub(crate) fn recall(&self, inner: &Arc<Inner>, fh: FileHandle, stateid: Stateid) {
        let known = {
            let mut table = self.table.lock();
            let known = table.held.get(&stateid.other).map(|(_, d)| d.clone());
            if known.is_none() {
                if table.early.len() >= MAX_EARLY {
                    table.early.pop_front();
                }
                table.early.push_back(stateid.other);
            }
            known
        };
        match known {
            Some(delegation) => delegation.recall(),
            // Given unasked, or its OPEN is not answered yet: nothing is kept by it.
            None => give_back_later(inner, giving_back(&fh, stateid), None),
        }
    }

    /// CB_RECALL_ANY: all but `keep` of the types that `mask` names, the oldest first.
    pub(crate) fn recall_any(&self, keep: u32, mask: &Bitmap) {
        let mut all: Vec<_> = self.table.lock().held.values().cloned().collect();
        all.retain(|(_, d)| {
            let kind = if d.held.lock().write { rca4::WDATA_DLG } else { rca4::RDATA_DLG };
            mask.contains(kind)
        });
        // Those that nobody holds cost nothing.
        all.sort_by_key(|(n, d)| (d.held.lock().holds > 0, *n));
        let more = all.len().saturating_sub(keep as usize);
        all.iter().take(more).for_each(|(_, d)| d.recall());
    }

    /// CB_GETATTR: size and change of a file that is held for writing.
    pub(crate) fn attributes(&self, fh: &FileHandle, wanted: &Bitmap) -> Result<Box<Attrs>, Status> {
        let found = self.table.lock().held.values().map(|(_, d)| d.clone()).find(|d| d.fh == *fh);
        let delegation = found.ok_or(Status::BADHANDLE)?;
        let held = delegation.held.lock();
        if !held.write {
            return Err(Status::BADHANDLE);
        }
        let mut attrs = Box::<Attrs>::default();
        if wanted.contains(attr::CHANGE) {
            // Greater than at the grant if data is held back (RFC 8881 10.4.3).
            attrs.change = Some(held.change.wrapping_add(u64::from(held.modified)));
        }
        if wanted.contains(attr::SIZE) {
            attrs.size = Some(held.size.ok_or(Status::DELAY)?);
        }
        Ok(attrs)
    }

    fn remove(&self, stateid: &Stateid) {
        self.table.lock().held.remove(&stateid.other);
    }
}

/// Sends what [`giving_back`] says, and acknowledges the loss of a delegation that was revoked before (RFC 8881 section
/// 18.38: until then the server remembers it, and sets RECALLABLE_STATE_REVOKED). Whether it was there to be returned.
pub(crate) async fn give_back(inner: &Arc<Inner>, ops: Vec<ArgOp>) -> crate::Result<bool> {
    let stateid = ops.iter().find_map(|op| match op {
        ArgOp::Delegreturn(args) => Some(args.stateid),
        _ => None,
    });
    let res = match inner.execute_patiently(Request::new(ops)).await {
        // Asked for again, and not known any more: it went back the first time.
        Err(Error::OutcomeUnknown { op: OpNum::DELEGRETURN }) => return Ok(true),
        done => done?,
    };
    match stateid {
        Some(stateid) if opens::is_revoked(res.status) => {
            opens::acknowledge(inner, stateid).await?;
            Ok(false)
        }
        _ => Ok(true),
    }
}

/// Returns a delegation in the background; `of`: whose it was.
pub(crate) fn give_back_later(inner: &Arc<Inner>, ops: Vec<ArgOp>, of: Option<Arc<Delegation>>) {
    let inner = Arc::clone(inner);
    tokio::spawn(async move {
        match give_back(&inner, ops).await {
            Ok(true) => {}
            Ok(false) => of.iter().for_each(|d| d.was_revoked()),
            Err(e) => tracing::debug!(error = %e, "cannot return a delegation"),
        }
    });
}

impl Delegation {
    /// The file.
    pub fn fh(&self) -> &FileHandle {
        &self.fh
    }

    /// Its stateid, for READ, WRITE and SETATTR of your own.
    pub fn stateid(&self) -> Stateid {
        self.forget_size();
        self.held.lock().stateid
    }

    /// Whether it is for writing.
    pub fn is_write(&self) -> bool {
        self.held.lock().write
    }

    /// What became of it.
    pub fn state(&self) -> DelegationState {
        *self.state.borrow()
    }

    /// Waits until it is recalled, returned or lost; says which.
    pub async fn recalled(&self) -> DelegationState {
        let mut changes = self.state.subscribe();
        match changes.wait_for(|s| *s != DelegationState::Held).await {
            Ok(state) => *state,
            // The sender is ours.
            Err(_) => DelegationState::Lost,
        }
    }

    /// Keeps it from being returned; `None` if it is recalled or gone.
    pub fn hold(self: &Arc<Self>) -> Option<Hold> {
        let mut held = self.held.lock();
        if held.returning || self.state() != DelegationState::Held {
            return None;
        }
        held.holds += 1;
        drop(held);
        Some(Hold(Arc::clone(self)))
    }

    /// Says what others are to be told of the file (CB_GETATTR): data is held back, and the file is `size` bytes long
    /// with it. `None`: all is written back.
    pub fn set_modified(&self, size: Option<u64>) {
        let mut held = self.held.lock();
        held.modified = size.is_some();
        if size.is_some() {
            held.size = size;
        }
    }

    /// The library wrote up to here.
    pub(crate) fn wrote(&self, end: u64) {
        let mut held = self.held.lock();
        held.size = held.size.map(|size| size.max(end));
    }

    /// The library set the size.
    pub(crate) fn resized(&self, size: u64) {
        self.held.lock().size = Some(size);
    }

    /// Something that does not tell may have changed the size.
    pub(crate) fn forget_size(&self) {
        self.held.lock().size = None;
    }

    /// Returns it now, whoever holds it; nothing happens if that was done.
    ///
    /// # Errors
    ///
    /// The server's, or of the way to it.
    pub async fn give_back(&self) -> crate::Result<()> {
        let (Some(inner), Some(ops)) = (self.inner.upgrade(), self.begin_return(true)) else { return Ok(()) };
        if !give_back(&inner, ops).await? {
            self.was_revoked();
        }
        Ok(())
    }

    /// It was gone before it was returned.
    fn was_revoked(&self) {
        self.state.send_replace(DelegationState::Lost);
    }

    /// The operations that return it, once; `None` if that was begun, or somebody holds it.
    fn begin_return(&self, anyway: bool) -> Option<Vec<ArgOp>> {
        let ops = {
            let mut held = self.held.lock();
            if held.returning || self.state() == DelegationState::Lost || (held.holds > 0 && !anyway) {
                return None;
            }
            held.returning = true;
            giving_back(&self.fh, held.stateid)
        };
        self.end(DelegationState::Returned);
        Some(ops)
    }

    fn end(&self, how: DelegationState) {
        let stateid = self.held.lock().stateid;
        if let Some(inner) = self.inner.upgrade() {
            inner.delegations.remove(&stateid);
        }
        self.state.send_replace(how);
    }

    fn recall(self: &Arc<Self>) {
        self.state.send_if_modified(|s| {
            let first = *s == DelegationState::Held;
            if first {
                *s = DelegationState::Recalled;
            }
            first
        });
        self.return_if_free();
    }

    fn return_if_free(self: &Arc<Self>) {
        if let (Some(inner), Some(ops)) = (self.inner.upgrade(), self.begin_return(false)) {
            give_back_later(&inner, ops, Some(Arc::clone(self)));
        }
    }

    /// For CLAIM_PREVIOUS: what is held of the file.
    pub(crate) fn claim(&self) -> DelegationType {
        let held = self.held.lock();
        match self.state() {
            DelegationState::Held | DelegationState::Recalled if !held.returning => {
                if held.write {
                    DelegationType::WRITE
                } else {
                    DelegationType::READ
                }
            }
            _ => DelegationType::NONE,
        }
    }

    /// The reply to a reclaim: what it gave back, if anything.
    pub(crate) fn reclaimed(self: &Arc<Self>, got: Option<(Stateid, bool, bool)>) {
        let Some((stateid, write, recall)) = got else { return self.lose() };
        let old = {
            let mut held = self.held.lock();
            held.write = write;
            std::mem::replace(&mut held.stateid, stateid)
        };
        if let Some(inner) = self.inner.upgrade() {
            let mut table = inner.delegations.table.lock();
            table.held.remove(&old.other);
            table.next += 1;
            let next = table.next;
            table.held.insert(stateid.other, (next, Arc::clone(self)));
        }
        if recall || self.state() == DelegationState::Recalled {
            self.recall();
        }
    }

    /// Revoked, or not to be had again.
    pub(crate) fn lose(&self) {
        if self.state() != DelegationState::Returned {
            self.end(DelegationState::Lost);
        }
    }

    /// The server said that this stateid is gone.
    pub(crate) fn lose_if(&self, stateid: Stateid) {
        if self.held.lock().stateid == stateid {
            self.lose();
        }
    }

    /// The stateid, for TEST_STATEID.
    pub(crate) fn to_test(&self) -> Option<Stateid> {
        let held = self.held.lock();
        let gone = held.returning || self.state() == DelegationState::Lost;
        (!gone).then_some(held.stateid)
    }
}

impl Hold {
    /// The delegation.
    pub fn delegation(&self) -> &Arc<Delegation> {
        &self.0
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let last = {
            let mut held = self.0.held.lock();
            held.holds -= 1;
            held.holds == 0
        };
        if last && self.0.state() == DelegationState::Recalled {
            self.0.return_if_free();
        }
    }
}
