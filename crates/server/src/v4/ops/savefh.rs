//! SAVEFH (RFC 8881 18.28): saves the current filehandle and stateid.

use crate::v4::{OpCx, OpResult};

pub(crate) fn run(cx: &mut OpCx) -> OpResult<()> {
    cx.save()
}
