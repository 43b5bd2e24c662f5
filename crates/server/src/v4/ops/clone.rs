//! CLONE (RFC 7862 15.13): lets the current file share a range of the saved one, atomically.
//!
//! The reply has no word on stability and the client sends no COMMIT after it, so the clone is made durable first.

use super::copy::regular_size;
use crate::errmap::status;
use crate::v4::stateid::grant;
use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::Status;
use dhow_proto::v4::ops::CloneArgs;
use dhow_state::IoKind;
use dhow_vfs::CopySource;

pub(crate) async fn run(cx: &OpCx, args: &CloneArgs) -> OpResult<()> {
    let (src, dst) = (cx.saved()?.clone(), cx.current()?.clone());
    let size = regular_size(&src).await?;
    regular_size(&dst).await?;
    let caps = dst.backend().caps();
    if !caps.clone {
        return Err(Status::NOTSUPP);
    }
    let read = grant(cx, &src, args.src_stateid, IoKind::Read).await?;
    let write = grant(cx, &dst, args.dst_stateid, IoKind::Write).await?;
    let end = args.src_offset.checked_add(args.count).ok_or(Status::INVAL)?;
    if args.src_offset > size || end > size {
        return Err(Status::INVAL);
    }
    let len = if args.count == 0 { size - args.src_offset } else { args.count };
    let block = u64::from(caps.clone_block.max(1));
    let whole_blocks = len.is_multiple_of(block) || args.src_offset + len == size;
    if !args.src_offset.is_multiple_of(block) || !args.dst_offset.is_multiple_of(block) || !whole_blocks {
        return Err(Status::INVAL);
    }
    let dst_end = args.dst_offset.checked_add(len).ok_or(Status::INVAL)?;
    let overlap = args.src_offset < dst_end && args.dst_offset < args.src_offset + len;
    if src.key() == dst.key() && overlap {
        return Err(Status::INVAL);
    }
    if len == 0 {
        return Ok(());
    }
    let source = CopySource { backend: src.backend(), cx: &src.user, io: read.io(), offset: args.src_offset };
    let backend = dst.backend();
    backend.clone_range(&dst.user, source, write.io(), args.dst_offset, len).await.map_err(|e| status(&e))?;
    backend.commit(&dst.user, write.io(), args.dst_offset, len).await.map_err(|e| status(&e))?;
    Ok(())
}
