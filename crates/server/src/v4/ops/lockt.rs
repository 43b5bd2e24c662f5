//! LOCKT (RFC 8881 18.11).

use super::lock_common::{backend_range, denied, denied_beyond, kind_of, wrong_type};
use crate::errmap::IntoStatus;
use crate::reaper::owner_bytes;
use crate::v4::{OpCx, OpResult};
use crate::way::Way;
use dhow_proto::v4::ops::{LocktArgs, LocktRes};
use dhow_state::{LockRefused, OwnerKey, Range, Refused};
use dhow_vfs::{IoRef, LockOwner};

pub(crate) async fn run(cx: &mut OpCx, args: LocktArgs) -> LocktRes {
    test(cx, args).await.unwrap_or_else(LocktRes::Err)
}

async fn test(cx: &mut OpCx, args: LocktArgs) -> OpResult<LocktRes> {
    let range = Range::new(args.offset, args.length)?;
    let kind = kind_of(args.lock_type)?;
    if let Some(status) = wrong_type(cx).await {
        return Err(status);
    }
    let fh = cx.current()?.clone();
    let (key, client) = (fh.key(), cx.client()?.clone());
    let server = cx.server.clone();
    let mut way = Way::default();
    cx.no_local_locks(&fh, &mut way).await?;
    loop {
        match server.state.test_lock(&client, &key, &args.owner.owner, range, kind, server.now()) {
            Ok(()) => break,
            Err(LockRefused::Status(status)) => return Err(status),
            Err(LockRefused::Denied(held)) => return Ok(LocktRes::Denied(denied(&held))),
            Err(LockRefused::Courtesy(id)) => way.clear(&server, Refused::Courtesy(id)).await?,
        }
    }
    // Nobody here; perhaps somebody beyond this server, whose name is not known.
    let owner = OwnerKey { client: client.id(), owner: args.owner.owner };
    let io = IoRef { handle: &fh.handle, open: None };
    let (theirs, theirs_kind) = backend_range(range, kind);
    let owner = LockOwner(owner_bytes(&owner));
    Ok(match fh.backend().test_lock(&fh.user, io, &owner, theirs, theirs_kind).await.or_status()? {
        None => LocktRes::Ok,
        Some(held) => LocktRes::Denied(denied_beyond(held)),
    })
}
