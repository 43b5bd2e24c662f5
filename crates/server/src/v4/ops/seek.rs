//! SEEK (RFC 7862 15.11).

use crate::errmap;
use crate::v4::{OpCx, OpResult, stateid};
use dhow_proto::v4::Status;
use dhow_proto::v4::ops::{DataContent, SeekArgs, SeekOk};
use dhow_vfs::{ErrorKind, SeekTo};

pub(crate) async fn run(cx: &OpCx, args: SeekArgs) -> OpResult<SeekOk> {
    let to = match args.what {
        DataContent::DATA => SeekTo::Data,
        DataContent::HOLE => SeekTo::Hole,
        _ => return Err(Status::UNION_NOTSUPP),
    };
    let grant = stateid::grant_read(cx, cx.current()?, args.stateid).await;
    // SEEK has no word for a destination that is not the right one.
    let grant = grant.map_err(|s| if s == Status::PARTNER_NO_AUTH { Status::ACCESS } else { s })?;
    let fh = grant.fh();
    match fh.backend().seek(&fh.user, grant.io(), args.offset, to).await {
        Ok(found) => Ok(SeekOk { eof: found.eof, offset: found.offset }),
        // Past the end (RFC 7862 15.11.3).
        Err(e) if e.kind() == ErrorKind::Range => Err(Status::NXIO),
        Err(e) => Err(errmap::status(&e)),
    }
}
