//! RENAME (RFC 8881 18.26): from the saved directory to the current one.

use crate::errmap::IntoStatus;
use crate::v4::{OpCx, OpResult, change_info};
use crate::walk;
use dhow_proto::v4::Status;
use dhow_proto::v4::ops::{RenameArgs, RenameOk};
use dhow_vfs::{ErrorKind, Name};

pub(crate) async fn run(cx: &OpCx, args: RenameArgs) -> OpResult<RenameOk> {
    let (from, to) = (cx.saved()?, cx.current()?);
    let (old, new) = (Name::new(args.old_name).or_status()?, Name::new(args.new_name).or_status()?);
    walk::same_filesystem(from, to)?;
    walk::not_covered(cx, from, &old, Status::FILE_OPEN)?;
    walk::not_covered(cx, to, &new, Status::EXIST)?;
    let _names = cx.lock_rename((from, &old), (to, &new)).await?;
    let done = to.backend().rename(&to.user, &from.handle, &old, &to.handle, &new).await;
    // A file over a directory is EXIST (18.26.3); RENAME has no ISDIR.
    let done = match done {
        Err(e) if e.kind() == ErrorKind::IsDir => return Err(Status::EXIST),
        done => done.or_status()?,
    };
    Ok(RenameOk { source_cinfo: change_info(done.from), target_cinfo: change_info(done.to) })
}
