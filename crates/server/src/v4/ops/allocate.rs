//! ALLOCATE and DEALLOCATE (RFC 7862 15.1, 15.4).

use crate::errmap::IntoStatus;
use crate::v4::{OpCx, OpResult, stateid};
use dhow_proto::v4::Status;
use dhow_proto::v4::ops::AllocateArgs;
use dhow_state::IoKind;

/// ALLOCATE: reserves space.
pub(crate) async fn allocate(cx: &OpCx, args: AllocateArgs) -> OpResult<()> {
    let grant = grant(cx, &args).await?;
    let fh = grant.fh();
    fh.backend().allocate(&fh.user, grant.io(), args.offset, args.length).await.or_status()
}

/// DEALLOCATE: makes a hole.
pub(crate) async fn deallocate(cx: &OpCx, args: AllocateArgs) -> OpResult<()> {
    let grant = grant(cx, &args).await?;
    let fh = grant.fh();
    fh.backend().deallocate(&fh.user, grant.io(), args.offset, args.length).await.or_status()
}

async fn grant(cx: &OpCx, args: &AllocateArgs) -> OpResult<stateid::Grant> {
    let fh = cx.current()?;
    if !fh.backend().caps().sparse {
        return Err(Status::NOTSUPP);
    }
    let end = args.offset.checked_add(args.length).filter(|_| args.length > 0).ok_or(Status::INVAL)?;
    if end > fh.backend().caps().max_file_size {
        return Err(Status::FBIG);
    }
    stateid::grant(cx, fh, args.stateid, IoKind::Write).await
}
