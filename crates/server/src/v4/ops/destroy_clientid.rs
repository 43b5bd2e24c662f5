//! DESTROY_CLIENTID (RFC 8881 18.50).

use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::ops::DestroyClientidArgs;

pub(crate) async fn run(cx: &OpCx, args: DestroyClientidArgs) -> OpResult<()> {
    let own = cx.slot.as_ref().map(|s| s.client().id());
    match cx.server.state.destroy_client(args.client_id, own, cx.server.now())? {
        Some(id) => cx.server.clear_the_way(id).await,
        None => Ok(()),
    }
}
