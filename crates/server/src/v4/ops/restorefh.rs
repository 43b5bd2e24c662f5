//! RESTOREFH (RFC 8881 18.27): brings the saved filehandle and stateid back.

use crate::v4::{OpCx, OpResult};

pub(crate) fn run(cx: &mut OpCx) -> OpResult<()> {
    cx.restore()
}
