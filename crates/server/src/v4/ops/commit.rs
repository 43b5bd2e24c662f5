//! COMMIT (RFC 8881 18.3).

use crate::errmap::IntoStatus;
use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::Verifier;
use dhow_proto::v4::ops::{CommitArgs, CommitOk};
use dhow_vfs::IoRef;

pub(crate) async fn run(cx: &OpCx, args: CommitArgs) -> OpResult<CommitOk> {
    let fh = cx.current()?;
    // COMMIT has no INVAL: a range that goes on past 2^64 goes on to the end of the file.
    let fits = args.offset.checked_add(args.count.into()).is_some();
    let count = if fits { args.count.into() } else { 0 };
    let io = IoRef { handle: &fh.handle, open: None };
    let done = fh.backend().commit(&fh.user, io, args.offset, count).await.or_status()?;
    Ok(CommitOk { verifier: Verifier(done.verifier) })
}
