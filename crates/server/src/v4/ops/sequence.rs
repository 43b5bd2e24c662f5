//! SEQUENCE (RFC 8881 18.46).

use crate::v4::session::Sequenced;
use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::Status;
use dhow_proto::v4::ops::SequenceArgs;

pub(crate) fn run(_cx: &mut OpCx, _args: SequenceArgs) -> OpResult<Sequenced> {
    // No session can be made yet, so none is known.
    Err(Status::BADSESSION)
}
