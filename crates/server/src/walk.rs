//! Ways through the namespace: from the pseudo-root into exports and back (RFC 8881 7).

use crate::errmap::IntoStatus;
use crate::v4::{Fh, OpCx};
use dhow_proto::v4::Status;
use dhow_vfs::{Attr, Cx, ErrorKind, Name, Node};

/// The root of the namespace.
pub(crate) async fn root(cx: &OpCx) -> Result<Fh, Status> {
    let pseudo = cx.server.exports.pseudo();
    let node = pseudo.backend.root(&Cx::root()).await.or_status()?;
    match cx.server.exports.mounted_at(&node.handle) {
        Some(_) => cross(cx, node).await.map(|(fh, _)| fh),
        None => cx.enter(pseudo, node.handle, Status::WRONGSEC),
    }
}

/// Looks a name up in the current directory, and crosses into an export that lies there.
pub(crate) async fn lookup(cx: &OpCx, dir: &Fh, name: &Name) -> Result<(Fh, Attr), Status> {
    if let Some(found) = below_root_export(cx, dir, name).await {
        return found;
    }
    let backend = dir.backend();
    let node = match backend.try_lookup(&dir.user, &dir.handle, name) {
        Some(node) => node.or_status()?,
        None => backend.lookup(&dir.user, &dir.handle, name).await.or_status()?,
    };
    if dir.export.is_pseudo() { cross(cx, node).await } else { Ok((dir.sibling(node.handle), node.attr)) }
}

/// A name in the root directory of an export under which the pseudo-root goes on (exports `/` and `/a`): what leads to
/// an export hides what the outer export has under that name, as a mount would.
async fn below_root_export(cx: &OpCx, dir: &Fh, name: &Name) -> Option<Result<(Fh, Attr), Status>> {
    if dir.export.is_pseudo() || !dir.export.is_root(&dir.handle) {
        return None;
    }
    let exports = &cx.server.exports;
    let pseudo = exports.pseudo();
    match pseudo.backend.try_lookup(&Cx::root(), exports.mount_of(&dir.export), name)? {
        Ok(node) => Some(cross(cx, node).await),
        Err(_) => None,
    }
}

/// From a directory of the pseudo-root to the root of the export that lies there, if one does.
///
/// An export that is closed to the caller is ACCESS.
pub(crate) async fn cross(cx: &OpCx, node: Node) -> Result<(Fh, Attr), Status> {
    let exports = &cx.server.exports;
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
        let exports = &cx.server.exports;
        from = cx.enter(exports.pseudo(), exports.mount_of(&dir.export).clone(), Status::ACCESS)?;
    }
    // The directory above may be the place of an export in its turn (exports `/` and `/a`).
    let node = from.backend().parent(&from.user, &from.handle).await.or_status()?;
    cross(cx, node).await.map(|(fh, _)| fh)
}

/// Whether a directory without a parent is the root of its export, and not one that was removed.
async fn is_root(dir: &Fh) -> bool {
    dir.export.is_root(&dir.handle) || dir.export.root(&dir.user).await.is_ok_and(|node| node.handle == dir.handle)
}

/// Both handles must lie in one export for LINK and RENAME.
pub(crate) fn same_filesystem(a: &Fh, b: &Fh) -> Result<(), Status> {
    if a.same_export(b) { Ok(()) } else { Err(Status::XDEV) }
}
