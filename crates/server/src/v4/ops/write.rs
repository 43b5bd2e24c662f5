//! WRITE (RFC 8881 18.32). The data is a slice of the record it came in.

use crate::errmap::IntoStatus;
use crate::v4::{OpCx, OpResult, stateid};
use dhow_proto::v4::ops::{WriteArgs, WriteOk};
use dhow_proto::v4::{StableHow, Status, Verifier};
use dhow_state::IoKind;
use dhow_vfs::Stability;

pub(crate) async fn run(cx: &OpCx, args: WriteArgs) -> OpResult<WriteOk> {
    let want = match args.stable {
        StableHow::UNSTABLE => Stability::Unstable,
        StableHow::DATA_SYNC => Stability::DataSync,
        StableHow::FILE_SYNC => Stability::FileSync,
        _ => return Err(Status::INVAL),
    };
    let grant = stateid::grant(cx, cx.current()?, args.stateid, IoKind::Write).await?;
    let fh = grant.fh();
    let end = args.offset.checked_add(args.data.len() as u64).ok_or(Status::INVAL)?;
    if end > fh.backend().caps().max_file_size {
        return Err(Status::FBIG);
    }
    let done = fh.backend().write(&fh.user, grant.io(), args.offset, args.data, want).await.or_status()?;
    Ok(WriteOk { count: done.count, committed: stable_how(done.stability), verifier: Verifier(done.verifier) })
}

/// The wire's name for a stability.
pub(crate) fn stable_how(s: Stability) -> StableHow {
    match s {
        Stability::Unstable => StableHow::UNSTABLE,
        Stability::DataSync => StableHow::DATA_SYNC,
        Stability::FileSync => StableHow::FILE_SYNC,
    }
}
