//! GETXATTR, SETXATTR, LISTXATTRS, REMOVEXATTR (RFC 8276 8.4). Names come and go without the `user.` prefix.

use crate::errmap::IntoStatus;
use crate::exports::OpenToken;
use crate::v4::{Fh, OpCx, OpResult, change_info};
use bytes::Bytes;
use dhow_proto::v4::ops::{
    GetxattrArgs, GetxattrOk, ListxattrsArgs, ListxattrsOk, RemovexattrArgs, SetxattrArgs, SetxattrOption,
    XattrChangeOk,
};
use dhow_proto::v4::{ByteStrings, Status};
use dhow_state::Change;
use dhow_vfs::XattrSet;

/// XATTR_NAME_MAX of Linux without `user.`.
const NAME_MAX: usize = 250;

/// GETXATTR.
pub(crate) async fn get(cx: &OpCx, args: GetxattrArgs) -> OpResult<GetxattrOk> {
    let fh = with_xattrs(cx)?;
    check(&args.name)?;
    let value = fh.backend().getxattr(&fh.user, &fh.handle, &args.name).await.or_status()?;
    Ok(GetxattrOk { value })
}

/// SETXATTR.
pub(crate) async fn set(cx: &OpCx, args: SetxattrArgs) -> OpResult<XattrChangeOk> {
    let fh = with_xattrs(cx)?;
    check(&args.name)?;
    let how = match args.option {
        SetxattrOption::EITHER => XattrSet::Either,
        SetxattrOption::CREATE => XattrSet::Create,
        SetxattrOption::REPLACE => XattrSet::Replace,
        _ => return Err(Status::INVAL),
    };
    let _change = change(cx, fh).await?;
    let change = fh.backend().setxattr(&fh.user, &fh.handle, &args.name, &args.value, how).await.or_status()?;
    Ok(XattrChangeOk { cinfo: change_info(change) })
}

/// LISTXATTRS: the cookie counts the names that were listed.
pub(crate) async fn list(cx: &OpCx, args: ListxattrsArgs) -> OpResult<ListxattrsOk> {
    // Cookie, count, end-of-list flag.
    const FIXED: usize = 16;
    let fh = with_xattrs(cx)?;
    let room = (args.maxcount as usize).min(cx.room).checked_sub(FIXED).ok_or(Status::TOOSMALL)?;
    let mut all = fh.backend().listxattr(&fh.user, &fh.handle).await.or_status()?;
    // An order of our own, so that a cookie means the same as long as the names are the same.
    all.sort_unstable();
    let from = usize::try_from(args.cookie).unwrap_or(usize::MAX).min(all.len());
    let mut used = 0;
    let names: Vec<Bytes> = all
        .iter()
        .skip(from)
        .take_while(|name| {
            used += 4 + name.len() + dhow_xdr::padding(name.len());
            used <= room
        })
        .cloned()
        .collect();
    if names.is_empty() && from < all.len() {
        return Err(Status::TOOSMALL);
    }
    let next = from + names.len();
    Ok(ListxattrsOk { cookie: next as u64, names: ByteStrings(names), eof: next >= all.len() })
}

/// REMOVEXATTR.
pub(crate) async fn remove(cx: &OpCx, args: RemovexattrArgs) -> OpResult<XattrChangeOk> {
    let fh = with_xattrs(cx)?;
    check(&args.name)?;
    let _change = change(cx, fh).await?;
    let change = fh.backend().removexattr(&fh.user, &fh.handle, &args.name).await.or_status()?;
    Ok(XattrChangeOk { cinfo: change_info(change) })
}

/// As [`OpCx::change`]; RFC 8276 8.4 has no GRACE.
async fn change<'a>(cx: &'a OpCx, fh: &Fh) -> OpResult<Option<Change<'a, OpenToken>>> {
    cx.change(fh).await.map_err(|status| if status == Status::GRACE { Status::DELAY } else { status })
}

fn with_xattrs(cx: &OpCx) -> OpResult<&Fh> {
    let fh = cx.current()?;
    if fh.backend().caps().xattrs { Ok(fh) } else { Err(Status::NOTSUPP) }
}

fn check(name: &[u8]) -> OpResult<()> {
    match name.len() {
        0 => Err(Status::INVAL),
        1..=NAME_MAX if name.contains(&0) => Err(Status::INVAL),
        1..=NAME_MAX => Ok(()),
        _ => Err(Status::NAMETOOLONG),
    }
}
