//! PUTFH (RFC 8881 18.19): sets the current filehandle. The object is not looked at: that it is gone shows with the
//! operation that uses it.

use crate::metrics::count;
use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::Status;
use dhow_proto::v4::ops::PutFhArgs;

/// `saves_next`: SAVEFH follows, so that the handle may be that of another server, the source of a copy: then it must
/// not be refused (RFC 7862 15.2.3).
pub(crate) fn run(cx: &mut OpCx, args: PutFhArgs, saves_next: bool) -> OpResult<()> {
    match cx.open_handle(&args.object.0) {
        Ok(fh) => cx.set_current(fh),
        Err(_) if saves_next && cx.server.copy().inter.enabled => cx.set_foreign(args.object.0),
        Err(status) => {
            if status == Status::BADHANDLE {
                count(&cx.server.metrics.bad_handles);
            }
            return Err(status);
        }
    }
    Ok(())
}
