//! VERIFY and NVERIFY (RFC 8881 18.31, 18.15): compare attributes.

use super::getattr;
use crate::attrs;
use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::Status;
use dhow_proto::v4::attr::{RDATTR_ERROR, WRITE_ONLY};
use dhow_proto::v4::ops::VerifyArgs;

/// VERIFY: NOT_SAME unless all are equal.
pub(crate) async fn verify(cx: &OpCx, args: VerifyArgs) -> OpResult<()> {
    if equal(cx, args).await? { Ok(()) } else { Err(Status::NOT_SAME) }
}

/// NVERIFY: SAME if all are equal.
pub(crate) async fn nverify(cx: &OpCx, args: VerifyArgs) -> OpResult<()> {
    if equal(cx, args).await? { Err(Status::SAME) } else { Ok(()) }
}

async fn equal(cx: &OpCx, args: VerifyArgs) -> OpResult<bool> {
    let fh = cx.current()?;
    let mask = args.attrs.mask;
    if mask.contains(RDATTR_ERROR) || !mask.and(&WRITE_ONLY).is_empty() {
        return Err(Status::INVAL);
    }
    if !mask.is_subset(&attrs::supported(&fh.export, cx.minor)) {
        return Err(Status::ATTRNOTSUPP);
    }
    let theirs = args.attrs.parse()?;
    Ok(theirs == *getattr::of(cx, fh, &mask).await?)
}
