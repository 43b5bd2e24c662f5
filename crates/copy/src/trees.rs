//! Making and removing whole trees.

use crate::endpoint::{Endpoint, Entry, Kind, Meta, Pages};
use crate::progress::Cancel;
use crate::{Error, ErrorKind, Result};
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Steps under way at the same time: a far server takes hundreds at once.
const REMOVALS_IN_FLIGHT: usize = 256;
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
    let mut removal = Removal { failed, dirs: HashMap::new(), next: 0, todo: Vec::new(), removed: 0, halt: false };
    removal.add(path.to_owned(), None);
    let mut running = FuturesUnordered::new();
    loop {
        while !removal.halt
            && running.len() < REMOVALS_IN_FLIGHT
            && let Some(work) = removal.todo.pop()
        {
            running.push(run(place, cancel, work));
        }
        match running.next().await {
            Some(done) => removal.done(done),
            None => return removal.removed,
        }
    }
}

/// A step. Directories are known by number; the path is that of the object.
enum Work {
    /// The next page of a directory, the first if there is no listing yet.
    Page(usize, PathBuf, Option<Box<dyn Pages>>),
    /// Something in a directory that is none itself.
    Entry(usize, PathBuf),
    /// A directory that should be empty.
    Dir(usize, PathBuf),
}

/// A page, `None` after the last, and the listing that goes on.
type Listed = (Box<dyn Pages>, Option<Vec<Entry>>);

enum Done {
    Page(usize, Result<Listed>),
    Entry(usize, Result<()>),
    Dir(usize, Result<()>),
}

async fn run(place: &dyn Endpoint, cancel: &Cancel, work: Work) -> Done {
    match work {
        Work::Page(dir, path, pages) => {
            let page = async {
                let mut pages = match pages {
                    Some(pages) => pages,
                    None => place.list(&path).await?,
                };
                let page = pages.next().await?;
                Ok((pages, page))
            };
            Done::Page(dir, cancel.run(page).await)
        }
        Work::Entry(dir, path) => Done::Entry(dir, cancel.run(place.remove(&path)).await),
        Work::Dir(dir, path) => Done::Dir(dir, cancel.run(place.remove_dir(&path)).await),
    }
}

/// A directory that is being removed.
struct Dir {
    path: PathBuf,
    parent: Option<usize>,
    /// Steps in it that are not done, subdirectories among them.
    below: usize,
    /// Something in it stays.
    stays: bool,
    /// How often it was listed.
    passes: usize,
}

/// A removal under way: what is known, and what is to be done next. A list of steps and no recursion, for trees may be
/// deeper than a stack.
struct Removal<'a> {
    failed: &'a (dyn Fn(&Error) + Send + Sync),
    dirs: HashMap<usize, Dir>,
    next: usize,
    /// The last comes first: what is begun is ended before more is listed.
    todo: Vec<Work>,
    removed: u64,
    /// Nothing new is begun.
    halt: bool,
}

impl Removal<'_> {
    fn add(&mut self, path: PathBuf, parent: Option<usize>) {
        let number = self.next;
        self.next += 1;
        self.todo.push(Work::Page(number, path.clone(), None));
        self.dirs.insert(number, Dir { path, parent, below: 1, stays: false, passes: 1 });
    }

    fn fail(&mut self, e: &Error) {
        // What is in flight fails for the same reason; once is enough.
        if !e.is_fatal() || !std::mem::replace(&mut self.halt, true) {
            (self.failed)(e);
        }
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Page(number, Ok((pages, Some(page)))) => self.page(number, pages, page),
            Done::Page(number, Ok((_, None))) => self.step(number, false),
            Done::Page(number, Err(e)) => {
                self.fail(&e);
                self.step(number, true);
            }
            Done::Entry(number, result) => {
                let gone = match result {
                    Ok(()) => {
                        self.removed += 1;
                        true
                    }
                    Err(e) if e.kind == ErrorKind::NotFound => true,
                    Err(e) => {
                        self.fail(&e);
                        false
                    }
                };
                self.step(number, !gone);
            }
            Done::Dir(number, result) => self.removed_dir(number, result),
        }
    }

    fn page(&mut self, number: usize, pages: Box<dyn Pages>, page: Vec<Entry>) {
        let Some(dir) = self.dirs.get_mut(&number) else { return };
        let path = dir.path.clone();
        dir.below += page.len();
        self.todo.push(Work::Page(number, path.clone(), Some(pages)));
        for entry in page {
            let path = path.join(OsStr::from_bytes(&entry.name));
            match entry.meta {
                Ok(Meta { kind: Kind::Dir, .. }) => self.add(path, Some(number)),
                _ => self.todo.push(Work::Entry(number, path)),
            }
        }
    }

    /// A step in a directory is done; `stays`: something is left of it. When it was the last, the directory itself is due,
    /// or stays too, and that is a step in its parent.
    fn step(&mut self, number: usize, stays: bool) {
        let (mut number, mut stays) = (number, stays);
        loop {
            let Some(dir) = self.dirs.get_mut(&number) else { return };
            dir.below -= 1;
            dir.stays |= stays;
            if dir.below > 0 {
                return;
            }
            if !dir.stays {
                return self.todo.push(Work::Dir(number, dir.path.clone()));
            }
            let parent = self.dirs.remove(&number).and_then(|dir| dir.parent);
            let Some(parent) = parent else { return };
            (number, stays) = (parent, true);
        }
    }

    fn removed_dir(&mut self, number: usize, result: Result<()>) {
        let Some(dir) = self.dirs.get_mut(&number) else { return };
        let stays = match result {
            Ok(()) => {
                self.removed += 1;
                false
            }
            // Entries that a listing missed because others vanished while it went on, or that are new.
            Err(e) if e.kind == ErrorKind::NotEmpty && dir.passes < PASSES => {
                (dir.below, dir.passes) = (1, dir.passes + 1);
                return self.todo.push(Work::Page(number, dir.path.clone(), None));
            }
            Err(e) => {
                self.fail(&e);
                true
            }
        };
        if let Some(parent) = self.dirs.remove(&number).and_then(|dir| dir.parent) {
            self.step(parent, stays);
        }
    }
}
