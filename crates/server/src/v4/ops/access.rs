//! ACCESS (RFC 8881 18.1, RFC 8276 8.5).

use crate::errmap::IntoStatus;
use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::ops::{AccessArgs, AccessOk};
use dhow_vfs::Access;

const BASIC: u32 = Access::READ | Access::LOOKUP | Access::MODIFY | Access::EXTEND | Access::DELETE | Access::EXECUTE;
const XATTR: u32 = Access::XAREAD | Access::XAWRITE | Access::XALIST;

pub(crate) async fn run(cx: &OpCx, args: AccessArgs) -> OpResult<AccessOk> {
    let fh = cx.current()?;
    let xattrs = cx.minor >= 2 && fh.backend().caps().xattrs;
    let supported = args.access & if xattrs { BASIC | XATTR } else { BASIC };
    let got = fh.backend().access(&fh.user, &fh.handle, Access(supported)).await.or_status()?;
    Ok(AccessOk { supported, access: got.0 & supported })
}
