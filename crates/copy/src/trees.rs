//! Making and removing whole trees.

use crate::endpoint::{Endpoint, Kind};
use crate::progress::Cancel;
use crate::{Error, ErrorKind, Result};
use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Objects of one directory that are removed at the same time.
const REMOVALS_IN_FLIGHT: usize = 32;
/// How often a directory that is not empty after its removal is looked at again.
const PASSES: usize = 3;

/// Makes the directory `path` and those above it that are missing. Returns how many were made.
///
/// # Errors
/// When something else than a directory is in the way.
pub async fn make_dirs(to: &dyn Endpoint, path: &Path, mode: u32) -> Result<u64> {
    let mut missing = Vec::new();
    let mut at = path;
    loop {
        match to.stat_followed(at).await {
            Ok(meta) if meta.kind == Kind::Dir => break,
            Ok(_) => return Err(Error::new(ErrorKind::NotDirectory, to.shown(at))),
            Err(e) if e.kind == ErrorKind::NotFound => missing.push(at),
            Err(e) => return Err(e),
        }
        match at.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => at = parent,
            _ => break,
        }
    }
    let mut made = 0;
    let last = path;
    for path in missing.into_iter().rev() {
        // The owner must be able to go on below; only the last one gets exactly the mode asked for.
        let mode = if path == last { mode } else { mode | 0o300 };
        match to.make_dir(path, mode).await {
            Ok(_) => made += 1,
            // Somebody else was faster.
            Err(e) if e.kind == ErrorKind::Exists => {}
            Err(e) => return Err(e),
        }
    }
    Ok(made)
}

/// Removes `path`, a directory with all that is in it. Symbolic links are removed, not followed. Returns how many
/// objects were removed; what could not be is told to `failed`, and the rest is removed all the same.
pub async fn remove_tree(
    place: &dyn Endpoint,
    path: &Path,
    cancel: &Cancel,
    failed: &(dyn Fn(&Error) + Send + Sync),
) -> u64 {
    let removed = AtomicU64::new(0);
    remove_dir(place, path, cancel, failed, &removed).await;
    removed.into_inner()
}

/// Returns whether the directory is gone.
fn remove_dir<'a>(
    place: &'a dyn Endpoint,
    path: &'a Path,
    cancel: &'a Cancel,
    failed: &'a (dyn Fn(&Error) + Send + Sync),
    removed: &'a AtomicU64,
) -> BoxFuture<'a, bool> {
    Box::pin(async move {
        for pass in 1.. {
            let all_gone = match remove_content(place, path, cancel, failed, removed).await {
                Ok(all_gone) => all_gone,
                Err(e) => {
                    failed(&e);
                    return false;
                }
            };
            if !all_gone {
                return false;
            }
            match cancel.run(place.remove_dir(path)).await {
                Ok(()) => break,
                // Entries that a listing missed because others vanished while it went on, or that are new.
                Err(e) if e.kind == ErrorKind::NotEmpty && pass < PASSES => {}
                Err(e) => {
                    failed(&e);
                    return false;
                }
            }
        }
        removed.fetch_add(1, Ordering::Relaxed);
        true
    })
}

async fn remove_content(
    place: &dyn Endpoint,
    path: &Path,
    cancel: &Cancel,
    failed: &(dyn Fn(&Error) + Send + Sync),
    removed: &AtomicU64,
) -> Result<bool> {
    let mut all_gone = true;
    let mut pages = cancel.run(place.list(path)).await?;
    while let Some(page) = cancel.run(pages.next()).await? {
        let jobs: Vec<BoxFuture<'_, bool>> = page
            .into_iter()
            .map(|entry| -> BoxFuture<'_, bool> {
                Box::pin(async move {
                    let path = path.join(OsStr::from_bytes(&entry.name));
                    if entry.meta.as_ref().is_ok_and(|m| m.kind == Kind::Dir) {
                        return remove_dir(place, &path, cancel, failed, removed).await;
                    }
                    match cancel.run(place.remove(&path)).await {
                        Ok(()) => {
                            removed.fetch_add(1, Ordering::Relaxed);
                            true
                        }
                        Err(e) if e.kind == ErrorKind::NotFound => true,
                        Err(e) => {
                            failed(&e);
                            false
                        }
                    }
                })
            })
            .collect();
        let results: Vec<bool> = stream::iter(jobs).buffer_unordered(REMOVALS_IN_FLIGHT).collect().await;
        all_gone &= results.into_iter().all(|gone| gone);
    }
    Ok(all_gone)
}
