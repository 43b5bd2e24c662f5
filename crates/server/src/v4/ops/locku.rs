//! LOCKU (RFC 8881 18.12).

use super::lock_common::{backend_range, kind_of, wrong_type};
use crate::errmap::IntoStatus;
use crate::reaper::owner_bytes;
use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::Status;
use dhow_proto::v4::ops::{LockuArgs, LockuOk};
use dhow_state::Range;
use dhow_vfs::{IoRef, LockOwner};

pub(crate) async fn run(cx: &mut OpCx, args: LockuArgs) -> OpResult<LockuOk> {
    match unlock(cx, args).await {
        Err(Status::BAD_STATEID) => Err(wrong_type(cx).await.unwrap_or(Status::BAD_STATEID)),
        other => other,
    }
}

async fn unlock(cx: &mut OpCx, args: LockuArgs) -> OpResult<LockuOk> {
    let range = Range::new(args.offset, args.length)?;
    let kind = kind_of(args.lock_type)?;
    let fh = cx.current()?.clone();
    let stateid = cx.state_arg(args.lock_stateid)?;
    let server = cx.server.clone();
    let _gate = cx.file_gate(&fh).await?;
    let plan = server.state.plan_unlock(cx.client()?, &fh.key(), &stateid, range)?;
    let open = plan.open().clone();
    let io = IoRef { handle: &fh.handle, open: Some(&open.file) };
    let owner = LockOwner(owner_bytes(plan.owner()));
    fh.backend().unlock(&fh.user, io, &owner, backend_range(range, kind).0).await.or_status()?;
    let stateid = plan.commit()?;
    server.wake_lockers(&fh.key());
    cx.set_stateid(stateid);
    Ok(LockuOk { lock_stateid: stateid })
}
