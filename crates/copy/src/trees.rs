//! Making and removing whole trees.

use crate::endpoint::{Endpoint, Entry, Kind};
use crate::progress::Cancel;
use crate::{Error, ErrorKind, Result};
use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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
/// objects were removed; what could not be is told to `failed`, and the rest is removed all the same. A lost server and a
/// stop are told once and end the work.
pub async fn remove_tree(
    place: &dyn Endpoint,
    path: &Path,
    cancel: &Cancel,
    failed: &(dyn Fn(&Error) + Send + Sync),
) -> u64 {
    let removal = Removal { place, cancel, failed, removed: AtomicU64::new(0), halt: AtomicBool::new(false) };
    removal.dir(path).await;
    removal.removed.into_inner()
}

/// A removal under way.
struct Removal<'a> {
    place: &'a dyn Endpoint,
    cancel: &'a Cancel,
    failed: &'a (dyn Fn(&Error) + Send + Sync),
    removed: AtomicU64,
    /// Nothing new is begun.
    halt: AtomicBool,
}

impl Removal<'_> {
    fn failed(&self, e: &Error) {
        // What is in flight fails for the same reason; once is enough.
        if !e.is_fatal() || !self.halt.swap(true, Ordering::Relaxed) {
            (self.failed)(e);
        }
    }

    /// Returns whether the directory is gone.
    fn dir<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            for pass in 1.. {
                let done = match self.content(path).await {
                    Ok(true) => self.cancel.run(self.place.remove_dir(path)).await,
                    Ok(false) => return false,
                    Err(e) => Err(e),
                };
                match done {
                    Ok(()) => break,
                    // Entries that a listing missed because others vanished while it went on, or that are new.
                    Err(e) if e.kind == ErrorKind::NotEmpty && pass < PASSES => {}
                    Err(e) => {
                        self.failed(&e);
                        return false;
                    }
                }
            }
            self.removed.fetch_add(1, Ordering::Relaxed);
            true
        })
    }

    /// Returns whether all that is in it is gone.
    async fn content(&self, path: &Path) -> Result<bool> {
        let mut all_gone = true;
        let mut pages = self.cancel.run(self.place.list(path)).await?;
        while let Some(page) = self.cancel.run(pages.next()).await? {
            let jobs: Vec<BoxFuture<'_, bool>> =
                page.into_iter().map(|entry| -> BoxFuture<'_, bool> { Box::pin(self.entry(path, entry)) }).collect();
            let results: Vec<bool> = stream::iter(jobs).buffer_unordered(REMOVALS_IN_FLIGHT).collect().await;
            all_gone &= results.into_iter().all(|gone| gone);
            if self.halt.load(Ordering::Relaxed) {
                return Ok(false);
            }
        }
        Ok(all_gone)
    }

    /// Returns whether the entry is gone.
    async fn entry(&self, dir: &Path, entry: Entry) -> bool {
        if self.halt.load(Ordering::Relaxed) {
            return false;
        }
        let path = dir.join(OsStr::from_bytes(&entry.name));
        if entry.meta.as_ref().is_ok_and(|m| m.kind == Kind::Dir) {
            return self.dir(&path).await;
        }
        match self.cancel.run(self.place.remove(&path)).await {
            Ok(()) => {
                self.removed.fetch_add(1, Ordering::Relaxed);
                true
            }
            Err(e) if e.kind == ErrorKind::NotFound => true,
            Err(e) => {
                self.failed(&e);
                false
            }
        }
    }
}
