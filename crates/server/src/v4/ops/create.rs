//! CREATE (RFC 8881 18.4): directories, symbolic links and special files. Regular files are OPEN's.

use crate::attrs::{self, SetFor};
use crate::errmap::IntoStatus;
use crate::v4::{OpCx, OpResult, change_info};
use crate::walk;
use dhow_proto::v4::Status;
use dhow_proto::v4::ops::{CreateArgs, CreateOk, CreateType};
use dhow_vfs::{Make, Name};

pub(crate) async fn run(cx: &mut OpCx, args: CreateArgs) -> OpResult<CreateOk> {
    let dir = cx.current()?;
    let what = match args.kind {
        CreateType::Dir => Make::Directory,
        // RFC 8881 18.4.3: a link text of no length is INVAL; longer ones are the filesystem's to judge (case B17).
        CreateType::Link(text) if text.is_empty() || text.contains(&0) => return Err(Status::INVAL),
        CreateType::Link(text) => Make::Symlink(text),
        CreateType::Block(dev) => Make::Block(dev.major, dev.minor),
        CreateType::Char(dev) => Make::Char(dev.major, dev.minor),
        CreateType::Socket => Make::Socket,
        CreateType::Fifo => Make::Fifo,
        CreateType::Other(_) => return Err(Status::BADTYPE),
    };
    let name = Name::new(args.name).or_status()?;
    let purpose = if matches!(what, Make::Directory) { SetFor::CreateDirectory } else { SetFor::Create };
    let mut set = attrs::to_set(&cx.server, &dir.export, cx.minor, &args.attrs, purpose).await?;
    if set.size.take().is_some() {
        return Err(Status::INVAL);
    }
    walk::not_covered(cx, dir, &name, Status::EXIST)?;
    let _name = cx.lock_name(dir, &name).await?;
    let made = dir.backend().make(&dir.user, &dir.handle, &name, &what, &set).await.or_status()?;
    let attrset = attrs::applied(&args.attrs.mask, &made.applied);
    let fh = dir.sibling(made.node.handle);
    cx.set_current(fh);
    Ok(CreateOk { cinfo: change_info(made.change), attrset })
}
