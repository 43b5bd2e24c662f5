//! GETATTR (RFC 8881 18.7).

use crate::attrs::{self, Object};
use crate::errmap::IntoStatus;
use crate::v4::{Fh, OpCx, OpResult};
use dhow_proto::v4::ops::{GetattrArgs, GetattrOk};
use dhow_proto::v4::{Attrs, Bitmap, Status, attr as a};
use dhow_vfs::{Attr, FileKind};

/// What the holder of a write delegation may know better (RFC 8881 10.4.3).
const HELD: Bitmap = Bitmap::of(&[a::CHANGE, a::SIZE, a::TIME_MODIFY, a::TIME_METADATA]);

pub(crate) async fn run(cx: &OpCx, args: GetattrArgs) -> OpResult<GetattrOk> {
    attrs::must_be_readable(&args.attr_request)?;
    let attrs = of(cx, cx.current()?, &args.attr_request).await?;
    Ok(GetattrOk { attrs })
}

/// The `wanted` attributes of an object; what is asked of its filesystem only if need be.
pub(crate) async fn of(cx: &OpCx, fh: &Fh, wanted: &Bitmap) -> OpResult<Box<Attrs>> {
    let mut attr = plain(fh).await?;
    if !wanted.and(&HELD).is_empty() {
        attr = cx.undelegated(fh, attr).await?;
    }
    let more = attrs::look_up(&cx.server, fh, &attr, wanted, None).await?;
    Ok(attrs::collect(&cx.server, cx.minor, Object { fh, attr: &attr, more: &more }, wanted))
}

/// Whether it is a regular file, as every operation on data demands (RFC 8881 15.1.2).
pub(crate) fn regular(kind: FileKind) -> OpResult<()> {
    match kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(Status::ISDIR),
        FileKind::Symlink => Err(Status::SYMLINK),
        _ => Err(Status::WRONG_TYPE),
    }
}

/// What the backend says of an object.
pub(crate) async fn plain(fh: &Fh) -> OpResult<Attr> {
    match fh.backend().try_getattr(&fh.user, &fh.handle) {
        Some(attr) => attr.or_status(),
        None => fh.backend().getattr(&fh.user, &fh.handle).await.or_status(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_other_than_regular() {
        assert_eq!(regular(FileKind::Regular), Ok(()));
        assert_eq!(regular(FileKind::Directory), Err(Status::ISDIR));
        assert_eq!(regular(FileKind::Symlink), Err(Status::SYMLINK));
        assert_eq!(regular(FileKind::Fifo), Err(Status::WRONG_TYPE));
    }
}
