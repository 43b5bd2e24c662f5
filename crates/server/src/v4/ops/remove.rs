//! REMOVE (RFC 8881 18.25): a name, of a file or of an empty directory. A file that is open stays usable for those who
//! have it open.

use crate::errmap::IntoStatus;
use crate::v4::{OpCx, OpResult, change_info};
use crate::walk;
use dhow_proto::v4::Status;
use dhow_proto::v4::ops::{RemoveArgs, RemoveOk};
use dhow_vfs::Name;

pub(crate) async fn run(cx: &OpCx, args: RemoveArgs) -> OpResult<RemoveOk> {
    let dir = cx.current()?;
    let name = Name::new(args.target).or_status()?;
    walk::not_covered(cx, dir, &name, Status::FILE_OPEN)?;
    let _names = cx.lock_removal(dir, &name).await?;
    let removed = dir.backend().remove(&dir.user, &dir.handle, &name).await.or_status()?;
    Ok(RemoveOk { cinfo: change_info(removed.change) })
}
