//! SEQUENCE (RFC 8881 18.46): admits the request to a slot. What follows from that (going on, replaying, refusing the
//! rest) is the COMPOUND loop's.

use crate::metrics::count;
use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::Status;
use dhow_proto::v4::ops::SequenceArgs;
use dhow_state::Sequence;

pub(crate) fn run(cx: &OpCx, args: &SequenceArgs) -> OpResult<Sequence> {
    let state = &cx.server.state;
    // Before admission, so that a refused request leaves the slot alone (RFC 8881 2.10.6.1.2, case B25).
    let session = state.session(args.session_id).ok_or(Status::BADSESSION)?;
    let fore = session.fore();
    if cx.request.len > fore.max_request_size as usize {
        return Err(Status::REQ_TOO_BIG);
    }
    if cx.request.ops > fore.max_operations {
        count(&cx.server.metrics.op_limit_hits);
        return Err(Status::TOO_MANY_OPS);
    }
    state.sequence(cx.conn_id(), args, cx.request.digest, cx.server.now())
}
