//! SEQUENCE (RFC 8881 18.46): admits the request to a slot. What follows from that (going on, replaying, refusing the
//! rest) is the COMPOUND loop's.

use crate::metrics::count;
use crate::v4::compound::BARE;
use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::Status;
use dhow_proto::v4::ops::SequenceArgs;
use dhow_state::Sequence;

/// Bytes of the result: operation, status, session, and five numbers.
const RESULT: usize = 8 + 16 + 20;

/// `written`: bytes of the reply before this result.
pub(crate) fn run(cx: &OpCx, args: &SequenceArgs, written: usize) -> OpResult<Sequence> {
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
    // A reply that cannot even hold this result and a bare error of the next operation, for its long tag or the
    // client's small limits (2.10.6.4).
    let least = written + RESULT + if cx.request.ops > 1 { BARE } else { 0 };
    if least > fore.max_response_size as usize {
        return Err(Status::REP_TOO_BIG);
    }
    if args.cache_this && least > fore.max_response_size_cached as usize {
        return Err(Status::REP_TOO_BIG_TO_CACHE);
    }
    state.sequence(cx.conn_id(), args, cx.request.digest, cx.server.now())
}
