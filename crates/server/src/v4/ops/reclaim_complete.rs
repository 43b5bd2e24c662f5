//! RECLAIM_COMPLETE (RFC 8881 18.51).

use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::ops::ReclaimCompleteArgs;

pub(crate) async fn run(cx: &OpCx, args: ReclaimCompleteArgs) -> OpResult<()> {
    if args.one_fs {
        // A filesystem that was not migrated: nothing to do, but it takes a current filehandle (18.51.3).
        cx.current()?;
        return Ok(());
    }
    let effects = cx.server.state.reclaim_complete(cx.client()?)?;
    cx.server.update_record(cx.client()?).await;
    cx.server.carry_out(effects).await;
    Ok(())
}
