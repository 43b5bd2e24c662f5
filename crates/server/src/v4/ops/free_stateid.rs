//! FREE_STATEID (RFC 8881 18.38).

use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::ops::FreeStateidArgs;

pub(crate) async fn run(cx: &OpCx, args: &FreeStateidArgs) -> OpResult<()> {
    let stateid = cx.resolve(args.stateid)?;
    cx.server.state.free_stateid(cx.client()?, &stateid)?;
    // A delegation that was revoked: the client knows by now.
    cx.server.update_record(cx.client()?).await;
    Ok(())
}
