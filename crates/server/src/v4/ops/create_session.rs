//! CREATE_SESSION (RFC 8881 18.36): a client confirms its client ID and gets a session.

use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::ops::{CreateSessionArgs, CreateSessionOk};
use dhow_state::Principal;

pub(crate) async fn run(cx: &OpCx, args: CreateSessionArgs) -> OpResult<CreateSessionOk> {
    let server = &cx.server;
    let principal = Principal(cx.caller.principal());
    let done = server.state.create_session(cx.conn_id(), cx.minor, &args, &principal, server.now())?;
    if let Some(old) = done.retire {
        // The earlier incarnation's locks are free when the client has its answer (18.35.4, item 5), unless I/O takes
        // long: then whoever wants them is told DELAY. The session is made in any case.
        let _ = server.clear_the_way(old).await;
    }
    Ok(done.ok)
}
