//! LOCK (RFC 8881 18.10). A blocking lock is answered as the others are: the client asks again (9.6), and is told when
//! that is worth while (20.11).

use super::lock_common::{backend_range, denied, denied_beyond, kind_of, wrong_type};
use crate::reaper::owner_bytes;
use crate::v4::{OpCx, OpResult};
use crate::way::Way;
use dhow_proto::v4::ops::{LockArgs, LockRes, Locker as WireLocker};
use dhow_proto::v4::{LockType, Status};
use dhow_state::{Claim, LockRefused, LockRequest, Locker, Range, Refused};
use dhow_vfs::{ErrorKind, IoRef, LockOwner};

pub(crate) async fn run(cx: &mut OpCx, args: LockArgs) -> LockRes {
    match lock(cx, args).await {
        Ok(res) => res,
        Err(Status::BAD_STATEID) => LockRes::Err(wrong_type(cx).await.unwrap_or(Status::BAD_STATEID)),
        Err(status) => LockRes::Err(status),
    }
}

async fn lock(cx: &mut OpCx, args: LockArgs) -> OpResult<LockRes> {
    let range = Range::new(args.offset, args.length)?;
    let kind = kind_of(args.lock_type)?;
    let fh = cx.current()?.clone();
    let (key, client) = (fh.key(), cx.client()?.clone());
    let stateid = match &args.locker {
        WireLocker::New(n) => cx.state_arg(n.open_stateid)?,
        WireLocker::Existing(e) => cx.state_arg(e.lock_stateid)?,
    };
    let locker = match &args.locker {
        WireLocker::New(n) => Locker::New { open: &stateid, owner: &n.lock_owner.owner },
        WireLocker::Existing(_) => Locker::Existing(&stateid),
    };
    let claim = if args.reclaim { Claim::Reclaim } else { Claim::New };
    let request = LockRequest { file: &key, locker, range, kind, claim };
    let waits = matches!(args.lock_type, LockType::READW | LockType::WRITEW) && client.can_be_called();
    let server = cx.server.clone();
    let mut way = Way::default();
    let (plan, _gate) = loop {
        let gate = cx.file_gate(&fh).await?;
        match server.state.plan_lock_or_wait(&client, &request, waits, server.now()) {
            Ok(plan) => break (plan, gate),
            Err(LockRefused::Status(status)) => return Err(status),
            Err(LockRefused::Denied(held)) => return Ok(LockRes::Denied(denied(&held))),
            Err(LockRefused::Courtesy(id)) => {
                // That client's end passes this gate too.
                drop(gate);
                way.clear(&server, Refused::Courtesy(id)).await?;
            }
        }
    };
    let open = plan.open().clone();
    let (io, owner) = (IoRef { handle: &fh.handle, open: Some(&open.file) }, LockOwner(owner_bytes(plan.owner())));
    let (theirs, theirs_kind) = backend_range(range, kind);
    if let Err(e) = fh.backend().lock(&fh.user, io, &owner, theirs, theirs_kind).await {
        if e.kind() != ErrorKind::Locked {
            return Err(crate::errmap::status(&e));
        }
        if claim == Claim::Reclaim {
            // Somebody beyond this server took it while it was down (RFC 8881 8.4.2.1).
            return Err(Status::RECLAIM_CONFLICT);
        }
        // Whose it is, is not known; where it is, perhaps.
        let held = fh.backend().test_lock(&fh.user, io, &owner, theirs, theirs_kind).await.ok().flatten();
        return Ok(LockRes::Denied(denied_beyond(held.unwrap_or((theirs, theirs_kind)))));
    }
    match plan.commit() {
        Ok(stateid) => {
            cx.set_stateid(stateid);
            // A lock that became a shared one may let others in.
            server.wake_lockers(&key);
            Ok(LockRes::Ok(stateid))
        }
        Err(status) => {
            let _ = fh.backend().unlock(&fh.user, io, &owner, theirs).await;
            Err(status)
        }
    }
}
