//! LOOKUP (RFC 8881 18.13): one name; crosses into exports.

use crate::errmap::IntoStatus;
use crate::v4::{OpCx, OpResult};
use crate::walk;
use dhow_proto::v4::ops::LookupArgs;
use dhow_vfs::Name;

pub(crate) async fn run(cx: &mut OpCx, args: LookupArgs) -> OpResult<()> {
    let name = Name::new(args.name).or_status()?;
    let (fh, _) = walk::lookup(cx, cx.current()?, &name).await?;
    cx.set_current(fh);
    Ok(())
}
