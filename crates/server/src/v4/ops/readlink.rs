//! READLINK (RFC 8881 18.24).

use crate::errmap;
use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::Status;
use dhow_proto::v4::ops::ReadlinkOk;
use dhow_vfs::ErrorKind;

pub(crate) async fn run(cx: &OpCx) -> OpResult<ReadlinkOk> {
    let fh = cx.current()?;
    match fh.backend().readlink(&fh.user, &fh.handle).await {
        Ok(link) => Ok(ReadlinkOk { link }),
        // Not a symbolic link (18.24.4).
        Err(e) if e.kind() == ErrorKind::Invalid => Err(Status::WRONG_TYPE),
        Err(e) => Err(errmap::status(&e)),
    }
}
