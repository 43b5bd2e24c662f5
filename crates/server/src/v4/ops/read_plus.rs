//! READ_PLUS (RFC 7862 15.10): data and holes in turn.

use super::getattr;
use super::read::{data, reserve};
use crate::errmap;
use crate::v4::{OpCx, OpResult, stateid};
use dhow_proto::v4::ops::{ReadPlusArgs, ReadPlusContent, ReadPlusOk};
use dhow_vfs::{ErrorKind, SeekTo};

/// Pieces in one reply: beyond that the client asks again, which costs less than it saves.
const MOST_PIECES: usize = 32;

pub(crate) async fn run(cx: &mut OpCx, args: ReadPlusArgs) -> OpResult<ReadPlusOk> {
    let count = args.count.min(cx.server.limits().max_io);
    reserve(cx, count).await;
    let grant = stateid::grant_read(cx, cx.current()?, args.stateid).await?;
    let fh = grant.fh();
    let attr = getattr::plain(fh).await?;
    getattr::regular(attr.kind)?;
    // Holes cost nothing to send, but RFC 7862 15.10.3 counts them too.
    let end = args.offset.saturating_add(count.into()).min(attr.size);
    let mut contents = Vec::new();
    let mut at = args.offset;
    while at < end && contents.len() < MOST_PIECES {
        let hole_until = match seek(fh, &grant, at, SeekTo::Data).await? {
            Some(data) => data.min(end),
            None => end,
        };
        if hole_until > at {
            contents.push(ReadPlusContent::Hole { offset: at, length: hole_until - at });
            at = hole_until;
            continue;
        }
        let until = seek(fh, &grant, at, SeekTo::Hole).await?.unwrap_or(end).clamp(at + 1, end);
        let len = u32::try_from(until - at).unwrap_or(u32::MAX);
        let got = data(fh.backend().as_ref(), &fh.user, grant.io(), at, len).await?.data;
        if got.is_empty() {
            // The file became shorter meanwhile.
            return Ok(ReadPlusOk { eof: true, contents });
        }
        let next = at + got.len() as u64;
        contents.push(ReadPlusContent::Data { offset: at, data: got });
        at = next;
    }
    Ok(ReadPlusOk { eof: at >= attr.size, contents })
}

/// Where data or a hole begins; `None` if there is no more data. A backend that cannot tell has nothing but data.
async fn seek(fh: &crate::v4::Fh, grant: &stateid::Grant, at: u64, to: SeekTo) -> OpResult<Option<u64>> {
    match fh.backend().seek(&fh.user, grant.io(), at, to).await {
        Ok(found) if found.eof && to == SeekTo::Data => Ok(None),
        Ok(found) => Ok(Some(found.offset)),
        Err(e) if e.kind() == ErrorKind::NotSupported => Ok(if to == SeekTo::Data { Some(at) } else { None }),
        Err(e) if e.kind() == ErrorKind::Range => Ok(None),
        Err(e) => Err(errmap::status(&e)),
    }
}
