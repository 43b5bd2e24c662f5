//! OFFLOAD_STATUS (RFC 7862 15.9): how far an asynchronous copy is, or how it ended.

use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::ops::{OffloadArgs, OffloadStatusOk};

pub(crate) fn run(cx: &OpCx, args: &OffloadArgs) -> OpResult<OffloadStatusOk> {
    let status = cx.server.state.copy_status(cx.client()?, &args.stateid)?;
    Ok(OffloadStatusOk { count: status.bytes, complete: status.complete.into_iter().collect() })
}
