//! BACKCHANNEL_CTL (RFC 8881 18.33).

use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::Status;
use dhow_proto::v4::ops::BackchannelCtlArgs;

pub(crate) fn run(cx: &OpCx, args: &BackchannelCtlArgs) -> OpResult<()> {
    let slot = cx.slot.as_ref().ok_or(Status::OP_NOT_IN_SESSION)?;
    cx.server.state.backchannel_ctl(slot.session(), args)
}
