//! READ (RFC 8881 18.22). The data travels by reference from the backend to the socket.

use crate::errmap::IntoStatus;
use crate::v4::{OpCx, OpResult, stateid};
use dhow_proto::v4::ops::{ReadArgs, ReadOk};
use dhow_vfs::{Cx, IoRef, ReadData};

/// Replies from this size on are charged to the connection's budget before the data is read.
const CHARGED_FROM: u32 = 64 << 10;

pub(crate) async fn run(cx: &mut OpCx, args: ReadArgs) -> OpResult<ReadOk> {
    let count = args.count.min(cx.server.limits().max_io);
    reserve(cx, count).await;
    let grant = stateid::grant_read(cx, cx.current()?, args.stateid).await?;
    let fh = grant.fh();
    let ReadData { data, eof } = data(fh.backend().as_ref(), &fh.user, grant.io(), args.offset, count).await?;
    Ok(ReadOk { eof, data })
}

/// Charges a large reply, once per COMPOUND: a peer that does not take its replies waits here, holding next to nothing
/// (case B46).
pub(crate) async fn reserve(cx: &mut OpCx, count: u32) {
    if count >= CHARGED_FROM && cx.charge.is_none() {
        cx.charge = Some(cx.conn.conn.reserve(count as usize).await);
    }
}

/// Reads, without waiting if that can be.
pub(crate) async fn data(
    backend: &dyn dhow_vfs::Backend,
    user: &Cx,
    io: IoRef<'_>,
    offset: u64,
    count: u32,
) -> OpResult<ReadData> {
    // No file reaches this far, so reading there says "end of file" as reading further out should (case B20); the
    // system's offsets are signed.
    let offset = offset.min(i64::MAX as u64 - u64::from(count));
    let data = match backend.try_read(user, io, offset, count) {
        Some(data) => data,
        None => backend.read(user, io, offset, count).await,
    };
    let data = data.or_status()?;
    debug_assert!(data.data.len() <= count as usize, "backend read more than asked");
    Ok(data)
}
