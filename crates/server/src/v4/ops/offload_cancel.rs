//! OFFLOAD_CANCEL (RFC 7862 15.8): ends an asynchronous copy within one chunk; no CB_OFFLOAD follows.

use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::ops::OffloadArgs;

pub(crate) fn run(cx: &OpCx, args: &OffloadArgs) -> OpResult<()> {
    cx.server.state.copy_cancel(cx.client()?, &args.stateid)
}
