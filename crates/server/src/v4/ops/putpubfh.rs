//! PUTPUBFH (RFC 8881 18.20): the public filehandle, which is the root (as RFC 8881 4.1.2 allows).

use crate::v4::{OpCx, OpResult, ops::putrootfh};

pub(crate) async fn run(cx: &mut OpCx) -> OpResult<()> {
    putrootfh::run(cx).await
}
