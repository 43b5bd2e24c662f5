//! SETATTR (RFC 8881 18.30). A change of size counts as a write: it needs a stateid that allows writing, or a special
//! one, and passes the file's gate so that it does not overlap an OPEN that truncates.

use crate::attrs::{self, SetFor};
use crate::v4::{OpCx, stateid};
use crate::way::Way;
use dhow_proto::v4::attr::ACL;
use dhow_proto::v4::ops::{SetattrArgs, SetattrRes};
use dhow_proto::v4::{Bitmap, Status};
use dhow_state::IoKind;
use dhow_vfs::{ErrorKind, FileKind, SetDone};

pub(crate) async fn run(cx: &OpCx, args: SetattrArgs) -> SetattrRes {
    match set(cx, args).await {
        Ok(attrsset) => SetattrRes { status: Status::OK, attrsset },
        Err(Failed { status, attrsset }) => SetattrRes { status, attrsset },
    }
}

/// Why not, and what was set nevertheless: attributes are set one after the other, and one that fails undoes none of
/// those before (RFC 8881 18.30.3).
struct Failed {
    status: Status,
    attrsset: Bitmap,
}

impl From<Status> for Failed {
    fn from(status: Status) -> Self {
        Self { status, attrsset: Bitmap::default() }
    }
}

fn told(mask: &Bitmap, done: dhow_vfs::Result<SetDone>) -> Result<Bitmap, Failed> {
    match done {
        Ok(done) => Ok(attrs::applied(mask, &done.applied)),
        Err(e) => {
            let attrsset = e.applied().map_or_else(Bitmap::default, |set| attrs::applied(mask, set));
            // Some objects have not all attributes: Linux keeps no mode of a symbolic link (RFC 8881 15.1.15.1).
            let status = match e.kind() {
                ErrorKind::NotSupported => Status::ATTRNOTSUPP,
                _ => crate::errmap::status(&e),
            };
            Err(Failed { status, attrsset })
        }
    }
}

async fn set(cx: &OpCx, args: SetattrArgs) -> Result<Bitmap, Failed> {
    let fh = cx.current()?;
    let mask = &args.attrs.mask;
    // What a list of access means depends on what it is for.
    let kind = if mask.contains(ACL) { super::getattr::plain(fh).await?.kind } else { FileKind::Regular };
    let set = attrs::to_set(&cx.server, &fh.export, cx.minor, &args.attrs, SetFor::Change(kind)).await?;
    // Of attributes too: a holder need not ask for them (RFC 8881 10.4.4).
    let _change = cx.change(fh).await?;
    if set.size.is_none() {
        // The stateid means nothing then (RFC 8881 18.30.3).
        return told(mask, fh.backend().setattr(&fh.user, &fh.handle, None, &set).await);
    }
    if set.size.is_some_and(|size| size > fh.backend().caps().max_file_size) {
        return Err(Status::FBIG.into());
    }
    let mut way = Way::default();
    let (_pass, grant) = loop {
        let pass = cx.file_gate(fh).await?;
        match stateid::try_grant(cx, fh, args.stateid, IoKind::Write) {
            Ok(grant) => break (pass, grant),
            Err(refused) => {
                // The end of a client passes this gate too.
                drop(pass);
                way.clear(&cx.server, refused).await?;
            }
        }
    };
    told(mask, fh.backend().setattr(&fh.user, &fh.handle, grant.io().open, &set).await)
}
