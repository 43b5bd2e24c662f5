//! CLOSE (RFC 8881 18.2). Waits for the I/O under the open, then frees it together with its locks.

use crate::gates::GATE_WAIT;
use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::ops::{CloseArgs, CloseOk};
use dhow_proto::v4::{Stateid, Status};

pub(crate) async fn run(cx: &mut OpCx, args: CloseArgs) -> OpResult<CloseOk> {
    let fh = cx.current()?.clone();
    // One of the two operations that take the current stateid with its seqid (8.2.3).
    let stateid = cx.resolve(args.open_stateid)?;
    let server = cx.server.clone();
    let gate = cx.file_gate(&fh).await?;
    let plan = server.state.plan_close(cx.client()?, &fh.key(), &stateid)?;
    let gate = if plan.drain().is_done() {
        gate
    } else {
        // Waiting for a WRITE that is stuck must not hold up the others on this file. Meanwhile the open counts in every
        // check, and who wants to change it is told DELAY.
        drop(gate);
        if tokio::time::timeout(GATE_WAIT, plan.drain()).await.is_err() {
            return Err(Status::DELAY);
        }
        cx.file_gate(&fh).await?
    };
    let effects = plan.commit();
    // Under the gate: an OPEN that comes next finds the backend's side closed too.
    server.carry_out(effects).await;
    drop(gate);
    cx.set_stateid(Stateid::INVALID);
    // Of no use to the client, and not to be used (18.2.4).
    Ok(CloseOk { open_stateid: Stateid::INVALID })
}
