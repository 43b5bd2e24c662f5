//! DELEGRETURN (RFC 8881 18.6). It passes the file's gate, which nobody holds who waits for a delegation; I/O under it is
//! waited for before.

use crate::gates::GATE_WAIT;
use crate::metrics::count;
use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::Status;
use dhow_proto::v4::ops::DelegreturnArgs;

pub(crate) async fn run(cx: &OpCx, args: DelegreturnArgs) -> OpResult<()> {
    let fh = cx.current()?.clone();
    let stateid = cx.resolve(args.stateid)?;
    let server = cx.server.clone();
    let plan = server.state.plan_delegreturn(cx.client()?, &fh.key(), &stateid)?;
    if tokio::time::timeout(GATE_WAIT, plan.drain()).await.is_err() {
        return Err(Status::DELAY);
    }
    server.end_delegation(plan).await?;
    count(&server.metrics.deleg.returned);
    Ok(())
}
