//! RENAME (RFC 8881 18.26): from the saved directory to the current one.

use crate::changes::Leave;
use crate::errmap::IntoStatus;
use crate::v4::{Fh, OpCx, OpResult, change_info};
use crate::walk;
use crate::way::Way;
use dhow_proto::v4::Status;
use dhow_proto::v4::ops::{RenameArgs, RenameOk};
use dhow_state::Refused;
use dhow_vfs::{ErrorKind, Name};

pub(crate) async fn run(cx: &OpCx, args: RenameArgs) -> OpResult<RenameOk> {
    let (from, to) = (cx.saved()?, cx.current()?);
    let (old, new) = (Name::new(args.old_name).or_status()?, Name::new(args.new_name).or_status()?);
    walk::same_filesystem(from, to)?;
    walk::not_covered(cx, from, &old, Status::FILE_OPEN)?;
    walk::not_covered(cx, to, &new, Status::EXIST)?;
    let mut way = Way::default();
    let (_names, leaves) = loop {
        let names = cx.lock_rename((from, &old), (to, &new)).await?;
        match may_change(cx, (from, &old), (to, &new)).await {
            Ok(leaves) => break (names, leaves),
            Err(refused) => {
                drop(names);
                way.clear(&cx.server, refused).await?;
            }
        }
    };
    let done = to.backend().rename(&to.user, &from.handle, &old, &to.handle, &new).await;
    // A file over a directory is EXIST (18.26.3); RENAME has no ISDIR.
    let done = match done {
        Err(e) if e.kind() == ErrorKind::IsDir => return Err(Status::EXIST),
        done => done.or_status()?,
    };
    for leave in &leaves {
        cx.name_changed(leave)?;
    }
    Ok(RenameOk { source_cinfo: change_info(done.from), target_cinfo: change_info(done.to) })
}

/// Leave to change what is moved, and to end the name of what is replaced.
async fn may_change<'a>(cx: &'a OpCx, old: (&Fh, &Name), new: (&Fh, &Name)) -> Result<[Leave<'a>; 2], Refused> {
    let moved = cx.try_change_named(old.0, old.1).await?;
    Ok([moved, cx.try_remove_named(new.0, new.1).await?])
}
