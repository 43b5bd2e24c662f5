//! Delegations, from the server's side: what to offer with an OPEN, recalls, revocation, and who waits for what
//! (RFC 8881 10.2 to 10.5, 20.1, 20.2, 20.6). The rules are in `dhow_state`; here is what needs the network, the backend
//! or a clock.
//!
//! **Who conflicts waits a little.** A request that a delegation stands against has the recall sent and waits for at most
//! half a second for the delegation to come back, then it is judged again; if it is not back yet the answer is DELAY
//! and the client asks again (10.4.4); see `crate::way`.
//!
//! **Local programs.** On a backend that others may change too, a read delegation is given only together with a watch
//! for local writers ([`dhow_vfs::Backend::watch_writers`]); a write delegation is not given at all. The watch lives in
//! the delegation's token and is ended before the state says that the delegation is gone, so that whoever is let in by
//! that is not held up by it.
//!
//! **A recall** is sent until the client has answered it, over whatever connections it binds. What decides is the time:
//! a lease time after the recall the delegation is revoked (10.4.5), answered or not.

use crate::callback::{self, CallbackError};
use crate::config::Delegations;
use crate::exports::OpenToken;
use crate::gates::GATE_WAIT;
use crate::metrics::count;
use crate::reaper::owner_bytes;
use crate::server::file_time;
use crate::shared::ServerShared;
use crate::v4::{Fh, OpCx};
use crate::way::Way;
use bytes::Bytes;
use dhow_proto::v4::cb::{
    CbArgOp, CbGetattrArgs, CbNotifyLockArgs, CbRecallAnyArgs, CbRecallArgs, CbRecallSlotArgs, CbResOp, rca4,
};
use dhow_proto::v4::ops::{Delegation, OpenClaim, ReadDelegation, SpaceLimit, WhyNoDelegation, WriteDelegation, share};
use dhow_proto::v4::{Ace, Bitmap, ClientId, DelegationType, FileHandle, SessionId, StateOwner, Stateid, Status, attr};
use dhow_state::{DelegEnd, DelegKind, Delegated, Holder, LockNotice, Offer, OpenPlan, OwnerKey, Recall, Use, WhyNot};
use dhow_vfs::{Attr, Deny, ErrorKind, ObjectId, OpenAccess, OpenHow};
use std::sync::Arc;
use std::time::Duration;

/// Pause between two tries of a recall that got no answer.
const RECALL_PAUSE: Duration = Duration::from_secs(1);

/// How often a client may say that it knows no such delegation before it is believed to be lost.
const UNKNOWN: u32 = 3;

/// How long a GETATTR waits for the holder of a write delegation.
const GETATTR_WAIT: Duration = Duration::from_secs(2);

/// What is to be offered with an OPEN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    kind: DelegKind,
    reclaim: bool,
}

/// Which delegation an OPEN may get: by its wishes (RFC 8881 18.16.3, `share_access`), what it claims, and the options
/// of the export.
///
/// # Errors
/// What to answer instead.
pub(crate) fn wanted(
    allowed: Delegations,
    exclusive: bool,
    share_access: u32,
    claim: &OpenClaim,
) -> Result<Wanted, Delegation> {
    let wish = share_access & share::WANT_DELEG_MASK;
    match claim {
        OpenClaim::Null(_) | OpenClaim::Fh => {}
        OpenClaim::Previous(DelegationType::READ) => return Ok(Wanted { kind: DelegKind::Read, reclaim: true }),
        OpenClaim::Previous(DelegationType::WRITE) => return Ok(Wanted { kind: DelegKind::Write, reclaim: true }),
        // By right of a delegation: there is one already.
        _ if wish == share::WANT_NO_PREFERENCE => return Err(Delegation::None),
        _ => return Err(Delegation::NoneExt(WhyNoDelegation::NOT_WANTED)),
    }
    let writes = share_access & share::ACCESS_WRITE != 0;
    let kind = match wish {
        share::WANT_NO_DELEG => return Err(Delegation::NoneExt(WhyNoDelegation::NOT_WANTED)),
        share::WANT_CANCEL => return Err(Delegation::NoneExt(WhyNoDelegation::CANCELLED)),
        share::WANT_READ_DELEG => DelegKind::Read,
        share::WANT_WRITE_DELEG => DelegKind::Write,
        _ if writes => DelegKind::Write,
        _ => DelegKind::Read,
    };
    let none = |why| Err(if wish == share::WANT_NO_PREFERENCE { Delegation::None } else { Delegation::NoneExt(why) });
    match (allowed, kind) {
        (Delegations::Off, _) => none(WhyNoDelegation::NOT_SUPP_FTYPE),
        // Local programs count: nothing tells of a local reader or of one that looks at attributes.
        (Delegations::Read, DelegKind::Write) => none(WhyNoDelegation::WRITE_DELEG_NOT_SUPP_FTYPE),
        (Delegations::All, DelegKind::Write) if !exclusive => none(WhyNoDelegation::WRITE_DELEG_NOT_SUPP_FTYPE),
        // Its own open for writing would break what watches for local writers.
        (_, DelegKind::Read) if writes && !exclusive => Err(refusal(wish, WhyNot::Contention)),
        _ => Ok(Wanted { kind, reclaim: false }),
    }
}

/// What to answer when the state directory has no room to say that the client has one.
pub(crate) fn no_room(share_access: u32) -> Delegation {
    refusal(share_access, WhyNot::Resource)
}

/// What to answer when no delegation is given: a reason, if one was wished for.
fn refusal(wish: u32, why: WhyNot) -> Delegation {
    if wish & share::WANT_DELEG_MASK == share::WANT_NO_PREFERENCE {
        return Delegation::None;
    }
    match why {
        WhyNot::Contention => Delegation::Contention { will_push: false },
        WhyNot::Resource => Delegation::Resource { will_signal: false },
        WhyNot::Held(DelegKind::Read) if wish & share::WANT_DELEG_MASK == share::WANT_WRITE_DELEG => {
            Delegation::NoneExt(WhyNoDelegation::NOT_SUPP_UPGRADE)
        }
        WhyNot::Held(DelegKind::Write) if wish & share::WANT_DELEG_MASK == share::WANT_READ_DELEG => {
            Delegation::NoneExt(WhyNoDelegation::NOT_SUPP_DOWNGRADE)
        }
        // It has what it wants.
        WhyNot::Held(_) => Delegation::NoneExt(WhyNoDelegation::NOT_WANTED),
    }
}

/// Prepares what is offered together with an open that is about to be committed: a token of its own (the delegation may
/// outlive the open), and the watch for local writers.
///
/// # Errors
/// What to answer instead.
pub(crate) async fn offer(
    cx: &OpCx,
    fh: &Fh,
    plan: &OpenPlan<'_, OpenToken>,
    wanted: Wanted,
    share_access: u32,
) -> Result<Offer<OpenToken>, Delegation> {
    let (server, backend) = (&cx.server, fh.backend());
    let Wanted { kind, reclaim } = wanted;
    let no = |why| refusal(share_access, why);
    plan.may_delegate(kind, reclaim, server.now()).map_err(no)?;
    let exclusive = backend.caps().exclusive;
    let allowed = match (fh.export.options.delegations, kind) {
        (Delegations::Off, _) | (Delegations::Read, DelegKind::Write) => false,
        (_, DelegKind::Write) => exclusive,
        (_, DelegKind::Read) => true,
    };
    let watch = if exclusive || !allowed || kind == DelegKind::Write {
        None
    } else {
        match watch(server, fh).await {
            Ok(watch) => Some(watch),
            // What was held before the restart is given back in an orderly way.
            Err(_) if reclaim => None,
            Err(e) if e.kind() == ErrorKind::Locked => return Err(no(WhyNot::Contention)),
            Err(error) => {
                tracing::debug!(%error, "local writers cannot be watched for: no delegation");
                return Err(no(WhyNot::Resource));
            }
        }
    };
    let guarded = watch.is_some();
    // RFC 8881 10.2.1: a reclaim of what would not be granted, for whatever reason, is granted and recalled.
    let reachable = cx.client().is_ok_and(|c| c.can_be_called());
    let recalled = reclaim && (!allowed || !reachable || (!exclusive && !guarded));
    let how = OpenHow {
        access: OpenAccess { read: true, write: kind == DelegKind::Write },
        deny: Deny::default(),
        owner: owner_bytes(&OwnerKey { client: plan.owner().client, owner: Bytes::from_static(b"delegation") }),
        reclaim,
    };
    let file = backend.open(&fh.user, &fh.handle, &how).await.map_err(|_| no(WhyNot::Resource))?;
    let token = OpenToken {
        export: fh.export.clone(),
        handle: fh.handle.clone(),
        file,
        uid: fh.user.cred.uid,
        behalf: None,
        watch,
    };
    let change = match kind {
        DelegKind::Read => 0,
        DelegKind::Write => match backend.getattr(&fh.user, &fh.handle).await {
            Ok(attr) => attr.change,
            Err(_) => {
                backend.close(token.file).await;
                return Err(no(WhyNot::Resource));
            }
        },
    };
    let granted_by = cx.slot.as_ref().map(|s| s.call_id());
    Ok(Offer { kind, token, guarded, granted_by, change, reclaim, recalled, now: server.now() })
}

async fn watch(server: &Arc<ServerShared>, fh: &Fh) -> dhow_vfs::Result<dhow_vfs::Watch> {
    let (weak, file, runtime) = (Arc::downgrade(server), fh.key(), tokio::runtime::Handle::current());
    let notice = move || {
        if let Some(server) = weak.upgrade() {
            let file = file.clone();
            runtime.spawn(async move { server.local_writer(&file) });
        }
    };
    fh.backend().watch_writers(&fh.handle, Arc::new(notice)).await
}

/// The delegation part of the reply to OPEN.
pub(crate) async fn answer(
    cx: &OpCx,
    fh: &Fh,
    (kind, recall): (DelegKind, bool),
    share_access: u32,
    deleg: Delegated<OpenToken>,
) -> Delegation {
    match deleg {
        Delegated::NotOffered => Delegation::None,
        Delegated::Refused(why, token) => {
            fh.backend().close(token.file).await;
            refusal(share_access, why)
        }
        Delegated::Granted(stateid) => {
            let server = &cx.server;
            // A local writer that came between the watch and the commit found nothing to recall.
            if server.state.delegation(&stateid).and_then(|t| t.watch).is_some_and(|w| w.is_broken()) {
                server.local_writer(&fh.key());
            }
            // Nobody is told that they may open without asking: ACCESS tells clients that.
            let permissions = Ace { ace_type: 0, flags: 0, mask: 0, who: Bytes::new() };
            match kind {
                DelegKind::Read => {
                    count(&server.metrics.deleg.read_granted);
                    Delegation::Read(ReadDelegation { stateid, recall, permissions })
                }
                DelegKind::Write => {
                    count(&server.metrics.deleg.write_granted);
                    // No space is set aside: data goes to the server at CLOSE, so that ENOSPC is told in time.
                    let space_limit = SpaceLimit::Size(0);
                    Delegation::Write(WriteDelegation { stateid, recall, space_limit, permissions })
                }
            }
        }
    }
}

impl ServerShared {
    /// Whether any export gives delegations.
    pub(crate) fn delegates(&self) -> bool {
        self.delegates
    }

    /// Sends recalls, each in a task of its own.
    pub(crate) fn send_recalls(self: &Arc<Self>, recalls: Vec<Recall>) {
        for recall in recalls {
            count(&self.metrics.deleg.recalls);
            let server = Arc::clone(self);
            tokio::spawn(async move { server.recall(recall).await });
        }
    }

    async fn recall(self: Arc<Self>, recall: Recall) {
        let Recall { client, stateid, granted_by } = recall;
        let mut unknown = 0;
        while let Some(token) = self.state.delegation(&stateid) {
            let fh = self.wire_handle(&token);
            drop(token);
            let op = CbArgOp::Recall(CbRecallArgs { stateid, truncate: false, fh });
            match callback::call(&self, client, granted_by, op).await {
                Ok(_) => return self.note_call(client, true),
                Err(CallbackError::NoClient) => return,
                Err(CallbackError::Refused(Status::BAD_STATEID | Status::BADHANDLE)) => {
                    // Perhaps it has not seen the reply to its OPEN yet; perhaps it never will.
                    unknown += 1;
                    if unknown >= UNKNOWN {
                        count(&self.metrics.deleg.recalls_failed);
                        return;
                    }
                }
                Err(error) => {
                    tracing::debug!(?error, ?client, "a delegation cannot be recalled yet");
                    count(&self.metrics.deleg.recalls_failed);
                    self.note_call(client, false);
                }
            }
            tokio::time::sleep(RECALL_PAUSE).await;
        }
    }

    fn note_call(&self, client: ClientId, answered: bool) {
        if let Some(client) = self.state.client(client) {
            client.called(answered);
        }
    }

    fn wire_handle(&self, token: &OpenToken) -> FileHandle {
        FileHandle(self.handles.encode(token.export.place, &token.handle).into())
    }

    /// A local program is about to write to a file.
    pub(crate) fn local_writer(self: &Arc<Self>, file: &dhow_state::FileKey) {
        let (recalls, over) = self.state.recall_file(file, self.now());
        if !recalls.is_empty() {
            count(&self.metrics.deleg.local_writers);
        }
        self.send_recalls(recalls);
        for id in over {
            let server = Arc::clone(self);
            tokio::spawn(async move { server.retire(id).await });
        }
    }

    /// Ends a delegation whose I/O is done, under its file's gate: first what guards it, then the state, then the
    /// backend's open. Who waits for that holds no gate (`crate::way`).
    ///
    /// # Errors
    /// DELAY: the file is crowded, and the delegation goes on.
    pub(crate) async fn end_delegation(self: &Arc<Self>, plan: DelegEnd<'_, OpenToken>) -> Result<(), Status> {
        let object = ObjectId::new(plan.file().as_bytes());
        let _pass = self.gates.file(&object).await.map_err(|_| Status::DELAY)?;
        if plan.revokes() {
            self.record_revocation(&plan).await?;
        }
        if let Some(watch) = &plan.token().watch {
            watch.end();
        }
        let effects = plan.commit();
        self.delegations_gone.notify_waiters();
        for effect in effects {
            self.end_state(effect).await;
        }
        Ok(())
    }

    /// Revokes a delegation whose recall was not heeded (RFC 8881 10.4.5).
    pub(crate) async fn revoke(self: &Arc<Self>, stateid: Stateid) {
        let Ok(plan) = self.state.plan_revoke(&stateid) else { return };
        if tokio::time::timeout(GATE_WAIT, plan.drain()).await.is_err() {
            return;
        }
        if self.end_delegation(plan).await.is_ok() {
            count(&self.metrics.deleg.revoked);
            tracing::warn!(?stateid, "a delegation was not returned in time and is revoked");
        }
    }

    /// CB_RECALL_ANY: there are nearly too many delegations.
    pub(crate) async fn recall_any(self: &Arc<Self>, client: ClientId, keep: u32) {
        count(&self.metrics.deleg.recall_any);
        let type_mask = Bitmap::of(&[rca4::RDATA_DLG, rca4::WDATA_DLG]);
        let op = CbArgOp::RecallAny(CbRecallAnyArgs { objects_to_keep: keep, type_mask });
        if let Err(error) = callback::call(self, client, None, op).await {
            tracing::debug!(?error, ?client, "cannot ask for delegations");
        }
    }

    /// CB_RECALL_SLOT: the client of a session should use fewer slots.
    pub(crate) async fn recall_slot(self: &Arc<Self>, id: SessionId, target: u32) {
        let Some(session) = self.state.session(id) else { return };
        count(&self.metrics.deleg.recall_slot);
        let op = CbArgOp::RecallSlot(CbRecallSlotArgs { target_highest_slot_id: target });
        match callback::call_on(self, &session, op).await {
            Ok(_) => session.slots_recalled(),
            Err(error) => tracing::debug!(?error, "cannot ask for a smaller slot table"),
        }
    }

    /// CB_NOTIFY_LOCK: a lock may be had. Best effort: the client asks again by itself.
    pub(crate) async fn notify_lock(self: Arc<Self>, notice: LockNotice<OpenToken>) {
        count(&self.metrics.deleg.notify_lock);
        let LockNotice { client, owner, open } = notice;
        let fh = self.wire_handle(&open);
        // As above.
        drop(open);
        let lock_owner = StateOwner { client, owner };
        let op = CbArgOp::NotifyLock(CbNotifyLockArgs { fh, lock_owner });
        if let Err(error) = callback::call(&self, client, None, op).await {
            tracing::debug!(?error, "cannot tell of a free lock");
        }
    }

    /// Locks of a file were given up: tells those whose turn it is.
    pub(crate) fn wake_lockers(self: &Arc<Self>, file: &dhow_state::FileKey) {
        for notice in self.state.wake_waiters(file, self.now()) {
            tokio::spawn(Arc::clone(self).notify_lock(notice));
        }
    }

    /// Asks the holder of a write delegation for size and change (RFC 8881 10.4.3, 20.1): the attributes as others are
    /// to see them.
    async fn ask_holder(self: &Arc<Self>, holder: Holder<OpenToken>, mut attr: Attr) -> Result<Attr, Status> {
        let Holder { client, stateid, token } = holder;
        let fh = self.wire_handle(&token);
        // Not kept while the holder is asked: what is closed meanwhile is to be closed.
        drop(token);
        count(&self.metrics.deleg.cb_getattrs);
        let attr_request = Bitmap::of(&[attr::CHANGE, attr::SIZE]);
        let op = CbArgOp::Getattr(CbGetattrArgs { fh, attr_request });
        let server = Arc::clone(self);
        // A task of its own: a call that is not waited for any longer must still end in order.
        let call = tokio::spawn(async move { callback::call(&server, client, None, op).await });
        let told = match tokio::time::timeout(GETATTR_WAIT, call).await {
            Ok(Ok(Ok(CbResOp::Getattr(Ok(ok))))) => ok.attrs,
            _ => {
                // It may have the file changed, and does not say how: only its return tells.
                self.send_recalls(self.state.recall(&stateid, self.now()).into_iter().collect());
                return Err(Status::DELAY);
            }
        };
        let size = told.size.unwrap_or(attr.size);
        if let Some(change) = self.state.observed(&stateid, told.change, size, attr.change, attr.size) {
            let now = file_time((self.wall)());
            (attr.size, attr.change) = (size, change);
            attr.mtime = attr.mtime.max(now);
            attr.ctime = attr.ctime.max(now);
        }
        Ok(attr)
    }
}

impl OpCx {
    /// Attributes of a file as this client is to see them, although another may hold it changed.
    ///
    /// # Errors
    /// DELAY: the holder of a write delegation does not say.
    pub async fn undelegated(&self, fh: &Fh, attr: Attr) -> Result<Attr, Status> {
        if self.server.state.write_delegations() == 0 {
            return Ok(attr);
        }
        let client = self.slot.as_ref().map(|s| s.client().id());
        let mut way = Way::default();
        loop {
            match self.server.state.write_holder(client, &fh.key(), self.server.now()) {
                Ok(None) => return Ok(attr),
                Ok(Some(holder)) => return Box::pin(self.server.ask_holder(holder, attr)).await,
                Err(refused) => Box::pin(way.clear(&self.server, refused)).await?,
            }
        }
    }

    /// LOCKT: the holder of a write delegation may hold locks that nobody knows of.
    ///
    /// # Errors
    /// DELAY.
    pub async fn no_local_locks(&self, fh: &Fh, way: &mut Way) -> Result<(), Status> {
        loop {
            match self.server.state.check_delegations(self.client()?, &fh.key(), Use::TestLock, self.server.now()) {
                Ok(()) => return Ok(()),
                Err(refused) => way.clear(&self.server, refused).await?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn null() -> OpenClaim {
        OpenClaim::Null(Bytes::from_static(b"f"))
    }

    #[test]
    fn wishes_are_granted_or_declined_with_a_reason() {
        // RFC 8881 18.16.3: a reason if a wish was sent, plain NONE if not.
        use Delegations::{All, Off, Read};
        let ask = |allowed, exclusive, bits| wanted(allowed, exclusive, bits, &null());
        let yes = |kind| Ok(Wanted { kind, reclaim: false });
        let no = |why| Err(Delegation::NoneExt(why));
        for allowed in [Off, Read, All] {
            assert_eq!(ask(allowed, true, share::WANT_NO_DELEG | 1), no(WhyNoDelegation::NOT_WANTED));
            assert_eq!(ask(allowed, true, share::WANT_CANCEL | 1), no(WhyNoDelegation::CANCELLED));
        }
        assert_eq!(ask(Off, true, 1), Err(Delegation::None));
        assert_eq!(ask(Off, true, share::WANT_ANY_DELEG | 1), no(WhyNoDelegation::NOT_SUPP_FTYPE));
        for exclusive in [true, false] {
            assert_eq!(ask(Read, exclusive, 1), yes(DelegKind::Read));
            assert_eq!(ask(Read, exclusive, share::WANT_ANY_DELEG | 1), yes(DelegKind::Read));
            assert_eq!(ask(Read, exclusive, 3), Err(Delegation::None));
            let write = ask(Read, exclusive, share::WANT_WRITE_DELEG | 3);
            assert_eq!(write, no(WhyNoDelegation::WRITE_DELEG_NOT_SUPP_FTYPE));
        }
        assert_eq!(ask(All, true, 3), yes(DelegKind::Write));
        assert_eq!(ask(All, true, 1), yes(DelegKind::Read));
        assert_eq!(ask(All, true, share::WANT_READ_DELEG | 3), yes(DelegKind::Read));
        assert_eq!(ask(All, false, 3), Err(Delegation::None), "local programs count");
        let contended = Err(Delegation::Contention { will_push: false });
        assert_eq!(ask(All, false, share::WANT_READ_DELEG | 3), contended, "its own writing breaks the watch");
    }

    #[test]
    fn reclaims_are_offered_whatever_the_option_says_and_claims_by_delegation_never() {
        // RFC 8881 9.1.4.1, 18.16.3.
        let previous = OpenClaim::Previous(DelegationType::READ);
        let offered = wanted(Delegations::Off, false, 1, &previous);
        assert_eq!(offered, Ok(Wanted { kind: DelegKind::Read, reclaim: true }));
        let none = OpenClaim::Previous(DelegationType::NONE);
        assert_eq!(wanted(Delegations::All, true, 3, &none), Err(Delegation::None));
        let by = OpenClaim::DelegCurFh(Stateid::ANONYMOUS);
        assert_eq!(wanted(Delegations::All, true, 3, &by), Err(Delegation::None));
    }

    #[test]
    fn no_change_of_kind_in_place() {
        // RFC 8881 18.16.3.
        let says = |wish, held| refusal(wish, WhyNot::Held(held));
        let (read, write) = (share::WANT_READ_DELEG, share::WANT_WRITE_DELEG);
        assert_eq!(says(write, DelegKind::Read), Delegation::NoneExt(WhyNoDelegation::NOT_SUPP_UPGRADE));
        assert_eq!(says(read, DelegKind::Write), Delegation::NoneExt(WhyNoDelegation::NOT_SUPP_DOWNGRADE));
        assert_eq!(says(0, DelegKind::Write), Delegation::None);
    }
}
