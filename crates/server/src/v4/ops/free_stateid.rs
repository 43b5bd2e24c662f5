//! FREE_STATEID (RFC 8881 18.38).

use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::ops::FreeStateidArgs;

pub(crate) fn run(cx: &OpCx, args: &FreeStateidArgs) -> OpResult<()> {
    let stateid = cx.resolve(args.stateid)?;
    cx.server.state.free_stateid(cx.client()?, &stateid)
}
