//! IO_ADVISE (RFC 7862 15.5): the object and the stateid are checked; no hint is honoured, and the reply says so.

use super::getattr;
use crate::v4::{OpCx, OpResult, stateid};
use dhow_proto::v4::Bitmap;
use dhow_proto::v4::ops::{IoAdviseArgs, IoAdviseOk};
use dhow_state::IoKind;

pub(crate) async fn run(cx: &OpCx, args: IoAdviseArgs) -> OpResult<IoAdviseOk> {
    let fh = cx.current()?;
    getattr::regular(getattr::plain(fh).await?.kind)?;
    // Advice about a file open for writing only is as good as any: either access will do.
    if stateid::grant(cx, fh, args.stateid, IoKind::Read).await.is_err() {
        stateid::grant(cx, fh, args.stateid, IoKind::Write).await?;
    }
    Ok(IoAdviseOk { hints: Bitmap::EMPTY })
}
