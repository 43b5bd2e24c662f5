//! READLINK (RFC 8881 18.24).

use crate::errmap::IntoStatus;
use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::ops::ReadlinkOk;

pub(crate) async fn run(cx: &OpCx) -> OpResult<ReadlinkOk> {
    let fh = cx.current()?;
    let link = fh.backend().readlink(&fh.user, &fh.handle).await.or_status()?;
    Ok(ReadlinkOk { link })
}
