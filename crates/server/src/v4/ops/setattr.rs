//! SETATTR (RFC 8881 18.30). A change of size counts as a write: it needs a stateid that allows writing, or a special
//! one, and passes the file's gate so that it does not overlap an OPEN that truncates.

use crate::attrs::{self, SetFor};
use crate::errmap::IntoStatus;
use crate::v4::{OpCx, OpResult, stateid};
use dhow_proto::v4::attr::ACL;
use dhow_proto::v4::ops::{SetattrArgs, SetattrRes};
use dhow_proto::v4::{Bitmap, OpRes, Status};
use dhow_state::IoKind;
use dhow_vfs::FileKind;

pub(crate) async fn run(cx: &OpCx, args: SetattrArgs) -> SetattrRes {
    match set(cx, args).await {
        Ok(attrsset) => SetattrRes { status: Status::OK, attrsset },
        // Backends apply all or nothing where they can; what they applied before an error they do not tell, and a
        // client that is told too little looks again.
        Err(status) => OpRes::error(status),
    }
}

async fn set(cx: &OpCx, args: SetattrArgs) -> OpResult<Bitmap> {
    let fh = cx.current()?;
    let mask = &args.attrs.mask;
    // What a list of access means depends on what it is for.
    let kind = if mask.contains(ACL) { super::getattr::plain(fh).await?.kind } else { FileKind::Regular };
    let set = attrs::to_set(&cx.server, &fh.export, cx.minor, &args.attrs, SetFor::Change(kind)).await?;
    // Of attributes too: a holder need not ask for them (RFC 8881 10.4.4).
    let _change = cx.change(fh).await?;
    if set.size.is_none() {
        // The stateid means nothing then (RFC 8881 18.30.3).
        let done = fh.backend().setattr(&fh.user, &fh.handle, None, &set).await.or_status()?;
        return Ok(attrs::applied(mask, &done.applied));
    }
    if set.size.is_some_and(|size| size > fh.backend().caps().max_file_size) {
        return Err(Status::FBIG);
    }
    // Once before the gate, so that clients whose lease has ended are out of the way: their end passes the gate too.
    drop(stateid::grant(cx, fh, args.stateid, IoKind::Write).await?);
    let _pass = cx.file_gate(fh).await?;
    let grant = stateid::grant(cx, fh, args.stateid, IoKind::Write).await?;
    let done = fh.backend().setattr(&fh.user, &fh.handle, grant.io().open, &set).await.or_status()?;
    Ok(attrs::applied(mask, &done.applied))
}
