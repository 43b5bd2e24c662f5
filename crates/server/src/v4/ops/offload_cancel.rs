//! OFFLOAD_CANCEL (RFC 7862 15.8): ends an asynchronous copy within one chunk, no CB_OFFLOAD follows; or takes a
//! COPY_NOTIFY back (4.10).

use crate::exports::OpenToken;
use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::ops::OffloadArgs;
use dhow_state::State;

pub(crate) fn run(cx: &OpCx, args: &OffloadArgs) -> OpResult<()> {
    if State::<OpenToken>::is_copy_notify(&args.stateid) {
        return cx.server.state.notify_cancel(cx.client()?, &args.stateid);
    }
    cx.server.state.copy_cancel(cx.client()?, &args.stateid)
}
