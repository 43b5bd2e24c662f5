//! What is no regular file and no directory: symbolic links, FIFOs, sockets, devices; and further names of files.
//!
//! What is under the name before stays there until the new object can take its place: that is made under a temporary
//! name and renamed. A directory is never replaced, although NFS would remove an empty one (RFC 8881 18.25), and rename
//! over one of another kind is refused by the server.

use crate::endpoint::{Endpoint, Kind, Meta, file_name};
use crate::file::{Known, Options, replaceable};
use crate::{Error, ErrorKind, Result, temp};
use std::path::Path;
use std::sync::Arc;

/// Makes the symbolic link or special file `from`, whose attributes are `known.source`, anew as `to`.
///
/// # Errors
/// The first error of either side; what was under the name is there still then.
pub async fn copy_other(
    from: (&Arc<dyn Endpoint>, &Path),
    to: (&Arc<dyn Endpoint>, &Path),
    known: Known<'_>,
    options: &Options,
) -> Result<()> {
    let meta = match known.source {
        Some(meta) => *meta,
        None => from.0.stat(from.1).await?,
    };
    let endpoint = &**to.0;
    let Some(old) = known.replaced else { return make(from, &meta, endpoint, to.1, options).await };
    let shown = endpoint.shown(to.1);
    match old.kind {
        // One may stand for another, as with files.
        Kind::Dir | Kind::File | Kind::Symlink => replaceable((&meta, from), (to, &shown), Some(old))?,
        _ if from.0.same_place(endpoint) && old.id == meta.id => {
            return Err(Error::with(ErrorKind::Same, shown, format!("is the same file as {}", from.0.shown(from.1))));
        }
        _ => {}
    }
    let beside = temp::beside(to.1, file_name(endpoint, to.1)?);
    let done = match make(from, &meta, endpoint, &beside, options).await {
        Ok(()) => endpoint.rename(&beside, to.1).await,
        Err(e) => Err(e),
    };
    settle(endpoint, done, &beside, shown).await
}

async fn make(
    from: (&Arc<dyn Endpoint>, &Path),
    meta: &Meta,
    to: &dyn Endpoint,
    path: &Path,
    options: &Options,
) -> Result<()> {
    let mut set = options.kept(meta);
    match meta.kind {
        Kind::Symlink => {
            let target = from.0.read_link(from.1).await?;
            to.make_link(path, &target).await?;
            set.mode = None;
        }
        kind => to.make_special(path, kind, options.mode_at_first(meta, None)).await?,
    }
    if set.is_empty() { Ok(()) } else { to.set_meta(path, &set).await }
}

/// Makes `path` a further name of the file `existing`.
///
/// # Errors
/// As [`copy_other`].
pub(crate) async fn link(to: &dyn Endpoint, existing: &Path, path: &Path) -> Result<()> {
    match to.hard_link(existing, path).await {
        Err(e) if e.kind == ErrorKind::Exists => {}
        done => return done,
    }
    let (file, old) = (to.stat(existing).await?, to.stat(path).await?);
    if old.id == file.id {
        return Ok(());
    }
    let shown = to.shown(path);
    match old.kind {
        Kind::File | Kind::Symlink => {}
        Kind::Dir => return Err(Error::new(ErrorKind::IsDirectory, shown)),
        _ => return Err(Error::with(ErrorKind::NotRegular, shown, "is not a regular file; not replaced")),
    }
    let beside = temp::beside(path, file_name(to, path)?);
    let done = match to.hard_link(existing, &beside).await {
        Ok(()) => to.rename(&beside, path).await,
        Err(e) => Err(e),
    };
    settle(to, done, &beside, shown).await
}

/// Removes what may have been made when it could not take its place, and names that place.
async fn settle(to: &dyn Endpoint, done: Result<()>, beside: &Path, shown: String) -> Result<()> {
    let Err(e) = done else { return Ok(()) };
    match to.remove(beside).await {
        Ok(()) => {}
        Err(e) if e.kind == ErrorKind::NotFound => {}
        Err(e) => tracing::warn!(file = %beside.display(), error = %e, "cannot remove an unfinished link"),
    }
    let place = if e.place == to.shown(beside) { shown } else { e.place };
    Err(Error { place, ..e })
}
