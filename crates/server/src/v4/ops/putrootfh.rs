//! PUTROOTFH (RFC 8881 18.21): the root of the namespace: the pseudo-root, or the export at `/`.

use crate::v4::{OpCx, OpResult};
use crate::walk;

pub(crate) async fn run(cx: &mut OpCx) -> OpResult<()> {
    let fh = walk::root(cx).await?;
    cx.set_current(fh);
    Ok(())
}
