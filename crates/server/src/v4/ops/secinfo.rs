//! SECINFO and SECINFO_NO_NAME (RFC 8881 18.29, 18.45): the flavors that an object can be used with.

use crate::errmap::IntoStatus;
use crate::v4::{OpCx, OpResult};
use crate::walk;
use dhow_proto::v4::Status;
use dhow_proto::v4::ops::{Secinfo, SecinfoArgs, SecinfoNoNameArgs, SecinfoOk, SecinfoStyle};
use dhow_rpc::Flavor;
use dhow_vfs::{FileKind, Name};

/// The same everywhere: numbers on trust, or nobody (who is the anonymous user then).
fn flavors() -> SecinfoOk {
    SecinfoOk { flavors: vec![Secinfo::Flavor(Flavor::SYS), Secinfo::Flavor(Flavor::NONE)] }
}

pub(crate) async fn run(cx: &mut OpCx, args: SecinfoArgs) -> OpResult<SecinfoOk> {
    let name = Name::new(args.name).or_status()?;
    let dir = cx.current()?.clone();
    walk::lookup(cx, &dir, &name).await?;
    // Consumed (2.6.3.1.1.8): the client has to say anew what it means.
    cx.clear_current();
    Ok(flavors())
}

pub(crate) async fn run_no_name(cx: &mut OpCx, args: SecinfoNoNameArgs) -> OpResult<SecinfoOk> {
    let fh = cx.current()?.clone();
    match args.style {
        SecinfoStyle::CURRENT_FH => {
            fh.backend().getattr(&fh.user, &fh.handle).await.or_status()?;
        }
        SecinfoStyle::PARENT => {
            let attr = fh.backend().getattr(&fh.user, &fh.handle).await.or_status()?;
            if attr.kind != FileKind::Directory {
                return Err(Status::NOTDIR);
            }
            walk::parent(cx, &fh).await?;
        }
        _ => return Err(Status::INVAL),
    }
    cx.clear_current();
    Ok(flavors())
}
