//! GETFH (RFC 8881 18.8): the current filehandle.

use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::FileHandle;
use dhow_proto::v4::ops::GetFhOk;

pub(crate) fn run(cx: &OpCx) -> OpResult<GetFhOk> {
    let fh = cx.current()?;
    Ok(GetFhOk { object: FileHandle(cx.wire_handle(fh.export.place, &fh.handle)) })
}
