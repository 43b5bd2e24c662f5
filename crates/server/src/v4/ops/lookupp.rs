//! LOOKUPP (RFC 8881 18.14): the directory above, out of an export into the pseudo-root; NOENT at the very root.

use super::getattr;
use crate::v4::{OpCx, OpResult};
use crate::walk;
use dhow_proto::v4::Status;
use dhow_vfs::FileKind;

pub(crate) async fn run(cx: &mut OpCx) -> OpResult<()> {
    let fh = cx.current()?;
    match getattr::plain(fh).await?.kind {
        FileKind::Directory => {}
        FileKind::Symlink => return Err(Status::SYMLINK),
        _ => return Err(Status::NOTDIR),
    }
    let parent = walk::parent(cx, fh).await?;
    cx.set_current(parent);
    Ok(())
}
