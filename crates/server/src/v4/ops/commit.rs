//! COMMIT (RFC 8881 18.3).

use crate::errmap::IntoStatus;
use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::ops::{CommitArgs, CommitOk};
use dhow_proto::v4::{Status, Verifier};
use dhow_vfs::IoRef;

pub(crate) async fn run(cx: &OpCx, args: CommitArgs) -> OpResult<CommitOk> {
    let fh = cx.current()?;
    args.offset.checked_add(args.count.into()).ok_or(Status::INVAL)?;
    let io = IoRef { handle: &fh.handle, open: None };
    let done = fh.backend().commit(&fh.user, io, args.offset, args.count.into()).await.or_status()?;
    Ok(CommitOk { verifier: Verifier(done.verifier) })
}
