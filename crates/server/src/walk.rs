//! Ways through the namespace: from the pseudo-root into exports and back (RFC 8881 7).

use crate::errmap::IntoStatus;
use crate::v4::{Fh, OpCx};
use dhow_proto::v4::Status;
use dhow_vfs::{Attr, Cx, ErrorKind, Name, Node};
use std::time::Duration;

/// How long the listing of a directory waits for an export that lies in it.
const LISTING_WAIT: Duration = Duration::from_secs(2);

/// The root of the namespace.
pub(crate) async fn root(cx: &OpCx) -> Result<Fh, Status> {
    let pseudo = cx.exports.pseudo();
    let node = pseudo.backend.root(&Cx::root()).await.or_status()?;
    match cx.exports.mounted_at(&node.handle) {
        Some(_) => cross(cx, node).await.map(|(fh, _)| fh),
        None => cx.enter(pseudo, node.handle, Status::WRONGSEC),
    }
}

/// Looks a name up in a directory, and crosses into an export that lies there. The place of an export hides what the
/// outer export has under that name, as a mount would; a directory that is only on the way to one does not.
pub(crate) async fn lookup(cx: &OpCx, dir: &Fh, name: &Name) -> Result<(Fh, Attr), Status> {
    let nested = cx.exports.nested(&dir.export, &dir.handle, name);
    if let Some(node) = &nested
        && cx.exports.mounted_at(&node.handle).is_some()
    {
        return cross(cx, node.clone()).await;
    }
    let backend = dir.backend();
    let found = match backend.try_lookup(&dir.user, &dir.handle, name) {
        Some(node) => node,
        None => backend.lookup(&dir.user, &dir.handle, name).await,
    };
    let node = match (found, nested) {
        (Err(e), Some(node)) if e.kind() == ErrorKind::NotFound => return cross(cx, node).await,
        (found, _) => found.or_status()?,
    };
    if dir.export.is_pseudo() { cross(cx, node).await } else { Ok((dir.sibling(node.handle), node.attr)) }
}

/// Refuses to change a name at which a nested export lies: it covers what the outer export has there, as a mount would,
/// and what is moved aside would be open to whom the inner export is closed.
pub(crate) fn not_covered(cx: &OpCx, dir: &Fh, name: &Name, status: Status) -> Result<(), Status> {
    let exports = &cx.exports;
    let nested = exports.nested(&dir.export, &dir.handle, name);
    if nested.is_some_and(|node| exports.mounted_at(&node.handle).is_some()) { Err(status) } else { Ok(()) }
}

/// The root of an export that lies at `name` in a directory of another export or of the pseudo-root, for a listing; one
/// that does not answer soon is DELAY, so that it does not hold up the listing of the others.
pub(crate) async fn mounted(cx: &OpCx, dir: &Fh, name: &Name, node: &Node) -> Option<Result<(Fh, Attr), Status>> {
    let exports = &cx.exports;
    let place = if dir.export.is_pseudo() {
        node.clone()
    } else {
        exports.nested(&dir.export, &dir.handle, name).filter(|n| exports.mounted_at(&n.handle).is_some())?
    };
    let crossed = tokio::time::timeout(LISTING_WAIT, cross(cx, place)).await;
    Some(crossed.unwrap_or(Err(Status::DELAY)))
}

/// From a directory of the pseudo-root to the root of the export that lies there, if one does.
///
/// An export that is closed to the caller is ACCESS.
pub(crate) async fn cross(cx: &OpCx, node: Node) -> Result<(Fh, Attr), Status> {
    let exports = &cx.exports;
    let Some(export) = exports.mounted_at(&node.handle) else {
        let fh = cx.enter(exports.pseudo(), node.handle, Status::ACCESS)?;
        return Ok((fh, node.attr));
    };
    // The handle is learnt below, from the backend; the identity is needed to ask it.
    let fh = cx.enter(export, node.handle, Status::ACCESS)?;
    let root = export.root(&fh.user).await.or_status()?;
    Ok((fh.sibling(root.handle), root.attr))
}

/// The directory above `dir`: out of an export's root into the pseudo-root; NOENT above the root of the namespace.
pub(crate) async fn parent(cx: &OpCx, dir: &Fh) -> Result<Fh, Status> {
    let mut from = dir.clone();
    if !from.export.is_pseudo() {
        match from.backend().parent(&from.user, &from.handle).await {
            Ok(node) => return Ok(from.sibling(node.handle)),
            Err(e) if e.kind() == ErrorKind::NotFound && is_root(&from).await => {}
            Err(e) => return Err(crate::errmap::status(&e)),
        }
        let exports = &cx.exports;
        from = cx.enter(exports.pseudo(), exports.mount_of(&dir.export).clone(), Status::ACCESS)?;
    }
    // The directory above may be in an export in its turn: its root (exports `/` and `/a`), or further down (`/a/b`).
    let node = from.backend().parent(&from.user, &from.handle).await.or_status()?;
    match cx.exports.real(&node.handle) {
        Some((export, handle)) => cx.enter(export, handle.clone(), Status::ACCESS),
        None => cross(cx, node).await.map(|(fh, _)| fh),
    }
}

/// Whether a directory without a parent is the root of its export, and not one that was removed.
async fn is_root(dir: &Fh) -> bool {
    dir.export.is_root(&dir.handle) || dir.export.root(&dir.user).await.is_ok_and(|node| node.handle == dir.handle)
}

/// Both handles must lie in one export for LINK and RENAME.
pub(crate) fn same_filesystem(a: &Fh, b: &Fh) -> Result<(), Status> {
    if a.same_export(b) { Ok(()) } else { Err(Status::XDEV) }
}
