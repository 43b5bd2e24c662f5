//! PUTFH (RFC 8881 18.19): sets the current filehandle. The object is not looked at: that it is gone shows with the
//! operation that uses it.

use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::ops::PutFhArgs;

pub(crate) fn run(cx: &mut OpCx, args: PutFhArgs) -> OpResult<()> {
    let fh = cx.open_handle(&args.object.0)?;
    cx.set_current(fh);
    Ok(())
}
