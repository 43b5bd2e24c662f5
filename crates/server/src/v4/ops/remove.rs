//! REMOVE (RFC 8881 18.25): a name, of a file or of an empty directory. A file that is open stays usable for those who
//! have it open, and is not removed if one of them denies writing to others; who holds a delegation of it returns that first (10.4.4).

use crate::errmap::IntoStatus;
use crate::v4::{OpCx, OpResult, change_info};
use crate::walk;
use crate::way::Way;
use dhow_proto::v4::Status;
use dhow_proto::v4::ops::{RemoveArgs, RemoveOk};
use dhow_vfs::Name;

pub(crate) async fn run(cx: &OpCx, args: RemoveArgs) -> OpResult<RemoveOk> {
    let dir = cx.current()?;
    let name = Name::new(args.target).or_status()?;
    walk::not_covered(cx, dir, &name, Status::FILE_OPEN)?;
    let mut way = Way::default();
    loop {
        let names = cx.lock_removal(dir, &name).await?;
        let leave = match cx.try_remove_named(dir, &name).await {
            Ok(leave) => leave,
            Err(refused) => {
                drop(names);
                way.clear(&cx.server, refused).await?;
                continue;
            }
        };
        let removed = dir.backend().remove(&dir.user, &dir.handle, &name).await.or_status()?;
        cx.name_changed(&leave)?;
        return Ok(RemoveOk { cinfo: change_info(removed.change) });
    }
}
