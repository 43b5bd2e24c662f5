//! DESTROY_SESSION (RFC 8881 18.37).

use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::Status;
use dhow_proto::v4::ops::DestroySessionArgs;

pub(crate) fn run(cx: &OpCx, args: &DestroySessionArgs) -> OpResult<()> {
    let own = cx.slot.as_ref().is_some_and(|s| s.session().id() == args.session_id);
    if own && cx.index + 1 != cx.request.ops {
        // It "MUST be the final operation" then (18.37.3).
        return Err(Status::NOT_ONLY_OP);
    }
    cx.server.state.destroy_session(cx.conn_id(), args.session_id)
}
