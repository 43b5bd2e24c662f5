//! LINK (RFC 8881 18.9): a new name in the current directory for the saved file.

use crate::errmap::IntoStatus;
use crate::v4::{OpCx, OpResult, change_info};
use crate::walk;
use dhow_proto::v4::Status;
use dhow_proto::v4::ops::{LinkArgs, LinkOk};
use dhow_vfs::Name;

pub(crate) async fn run(cx: &OpCx, args: LinkArgs) -> OpResult<LinkOk> {
    let (file, dir) = (cx.saved()?, cx.current()?);
    walk::same_filesystem(file, dir)?;
    let name = Name::new(args.new_name).or_status()?;
    walk::not_covered(cx, dir, &name, Status::EXIST)?;
    let _change = cx.change(file).await?;
    let _name = cx.lock_name(dir, &name).await?;
    let change = dir.backend().link(&dir.user, &file.handle, &dir.handle, &name).await.or_status()?;
    Ok(LinkOk { cinfo: change_info(change) })
}
