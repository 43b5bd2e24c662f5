//! BIND_CONN_TO_SESSION (RFC 8881 18.34).

use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::ops::{BindConnToSessionArgs, BindConnToSessionOk};

pub(crate) fn run(cx: &OpCx, args: &BindConnToSessionArgs) -> OpResult<BindConnToSessionOk> {
    cx.server.state.bind_conn(cx.conn_id(), args, cx.server.now())
}
