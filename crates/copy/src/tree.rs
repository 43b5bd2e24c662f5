//! Trees of files: directories before their content, many files in flight, errors of one file do not stop the others.

use crate::endpoint::{Calls, Endpoint, Kind, Meta, Method, SetMeta};
use crate::file::{FileReport, Known, Options, calls_of, copy_file};
use crate::other::{copy_other, link};
use crate::progress::{Event, Progress};
use crate::{Error, ErrorKind, Result};
use futures_util::stream::{self, StreamExt};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;

/// Directories that are made and listed at the same time.
const DIRS_IN_FLIGHT: usize = 64;
/// Objects that wait for their turn.
const QUEUE: usize = 1024;
/// Errors that a report names; the others are counted.
const ERRORS_NAMED: usize = 1000;
/// Attributes of directories set at the same time.
const SETS_IN_FLIGHT: usize = 64;
/// How many small files count as one: they are a call or two each, and far servers take hundreds at once. A large file
/// keeps many calls in flight by itself.
const SMALL_FILES: u32 = 8;

/// How to copy a tree.
#[derive(Clone, Debug)]
pub struct TreeOptions {
    /// How to copy each file.
    pub copy: Options,
    /// Files copied at the same time, at least 1; eight times as many of those that go in one call
    /// ([`Endpoint::small_limit`]), symbolic links and the like.
    pub files_in_flight: usize,
    /// Make names of one file in the source names of one file in the copy.
    pub hard_links: bool,
}

impl Default for TreeOptions {
    fn default() -> Self {
        Self { copy: Options::default(), files_in_flight: 64, hard_links: false }
    }
}

/// How the copy of a tree went.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TreeReport {
    /// Regular files copied.
    pub files: u64,
    /// Directories made or found.
    pub dirs: u64,
    /// Symbolic links, special files and further hard links made.
    pub others: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// Files and bytes by method.
    pub by_method: BTreeMap<Method, (u64, u64)>,
    /// Methods that were tried first for a file and why they would not do, the first reason of each.
    pub refused: BTreeMap<Method, String>,
    /// Whether every file was on stable storage at its end.
    pub durable: bool,
    /// From the first call to the last.
    pub elapsed: Duration,
    /// Calls made by the clients of both sides.
    pub calls: Calls,
    /// What failed; the first thousand.
    pub errors: Vec<Error>,
    /// How many failed in all.
    pub failed: u64,
}

/// Filesystem and number.
type FileId = (u64, u64, u64);

struct Walk {
    from: Arc<dyn Endpoint>,
    to: Arc<dyn Endpoint>,
    options: Options,
    progress: Progress,
    /// The root of the copy, when it lies where the source lies: it must not be copied into itself.
    root: Option<FileId>,
    /// Nothing new is begun.
    halt: AtomicBool,
}

struct DirJob {
    from: PathBuf,
    to: PathBuf,
    meta: Meta,
    depth: usize,
}

/// What remains to be done to a directory when its content is complete.
struct DirEnd {
    to: PathBuf,
    set: SetMeta,
    depth: usize,
}

struct Job {
    from: PathBuf,
    to: PathBuf,
    meta: Meta,
    /// The directory was made by us: nothing can be in the way.
    fresh: bool,
}

enum Copied {
    File { method: Method, bytes: u64, durable: bool, refused: Vec<(Method, String)> },
    Other,
}

/// Copies the directory `from` with all that is in it to the name `to`, which may exist as a directory.
///
/// Symbolic links and special files are made anew as what they are. What fails is in the report, and was told as
/// [`Event::Failed`]; a full disk, a lost server and a stop end the work early.
///
/// # Errors
/// Only when nothing could be begun: the source cannot be read, the destination cannot be made.
pub async fn copy_tree(
    from: (&Arc<dyn Endpoint>, &Path),
    to: (&Arc<dyn Endpoint>, &Path),
    options: &TreeOptions,
    progress: &Progress,
) -> Result<TreeReport> {
    let before = calls_of(&**from.0, &**to.0);
    let start = Instant::now();
    let meta = from.0.stat_followed(from.1).await?;
    if meta.kind != Kind::Dir {
        return Err(Error::new(ErrorKind::NotDirectory, from.0.shown(from.1)));
    }
    let (root_fresh, root_meta) = make_dir(&**to.0, to.1, &meta, &options.copy, true).await?;
    let same_place = from.0.same_place(&**to.0);
    if same_place && root_meta.id == meta.id {
        return Err(Error::with(
            ErrorKind::Same,
            to.0.shown(to.1),
            format!("is the same directory as {}", from.0.shown(from.1)),
        ));
    }
    let walk = Arc::new(Walk {
        from: from.0.clone(),
        to: to.0.clone(),
        options: Options { many: true, ..options.copy.clone() },
        progress: progress.clone(),
        root: same_place.then_some(root_meta.id),
        halt: AtomicBool::new(false),
    });
    let root = DirJob { from: from.1.to_owned(), to: to.1.to_owned(), meta, depth: 0 };
    let mut run = Run {
        walk: walk.clone(),
        report: TreeReport { durable: options.copy.syncs(&**to.0), ..TreeReport::default() },
        fatal: HashSet::new(),
        linked: options.hard_links.then(HashMap::new),
        links: Vec::new(),
        ends: Vec::new(),
        files_in_flight: options.files_in_flight.max(1),
    };
    run.all(root, root_fresh).await;
    run.finish().await;
    let mut report = run.report;
    report.elapsed = start.elapsed();
    report.calls = calls_of(&**from.0, &**to.0).since(&before);
    Ok(report)
}

/// Makes a directory for a copy of `meta`, or finds one. Returns whether it is new, and its attributes.
///
/// A symbolic link to a directory is one only where the user named it (`root`). Below, a link may be of the source's
/// making: a server that lists a name twice, as a link and as a directory, would have us write where the link leads.
async fn make_dir(to: &dyn Endpoint, path: &Path, meta: &Meta, options: &Options, root: bool) -> Result<(bool, Meta)> {
    // We write into it whatever its final mode is; that is set when its content is complete.
    let mode = (meta.mode & 0o777 & !options.umask) | 0o700;
    match to.make_dir(path, mode).await {
        Ok(made) => return Ok((true, made)),
        Err(e) if e.kind == ErrorKind::Exists => {}
        Err(e) => return Err(e),
    }
    let there = if root { to.stat_followed(path).await? } else { to.stat(path).await? };
    if there.kind != Kind::Dir {
        return Err(Error::with(ErrorKind::NotDirectory, to.shown(path), "exists and is not a directory"));
    }
    Ok((false, there))
}

struct Run {
    walk: Arc<Walk>,
    report: TreeReport,
    /// Kinds of errors that were told once and need not be told for every file.
    fatal: HashSet<ErrorKind>,
    /// The first name in the copy of each file with several names; one that could not be copied has none.
    linked: Option<HashMap<FileId, PathBuf>>,
    /// Further names of these.
    links: Vec<Job>,
    ends: Vec<DirEnd>,
    files_in_flight: usize,
}

impl Run {
    async fn all(&mut self, root: DirJob, root_fresh: bool) {
        let (tx, mut rx) = mpsc::channel::<Job>(QUEUE);
        let small = self.walk.from.small_limit().max(self.walk.to.small_limit());
        let room = u32::try_from(self.files_in_flight).unwrap_or(u32::MAX).min(u32::MAX / SMALL_FILES) * SMALL_FILES;
        let room = Arc::new(Semaphore::new(room as usize));
        let take = |job: &Job| {
            let is_small = job.meta.kind != Kind::File || job.meta.size <= u64::from(small);
            room.clone().try_acquire_many_owned(if is_small { 1 } else { SMALL_FILES }).ok()
        };
        // One for which there is no room yet.
        let mut next: Option<Job> = None;
        let mut waiting = vec![(root, Some(root_fresh))];
        let mut dirs = JoinSet::new();
        let mut files = JoinSet::new();
        loop {
            while dirs.len() < DIRS_IN_FLIGHT
                && let Some((job, made)) = waiting.pop()
            {
                dirs.spawn(directory(self.walk.clone(), job, made, tx.clone()));
            }
            while let Some(job) = next.take().or_else(|| rx.try_recv().ok()) {
                match take(&job) {
                    Some(room) => self.begin(job, room, &mut files),
                    None => {
                        next = Some(job);
                        break;
                    }
                }
            }
            if dirs.is_empty() && files.is_empty() {
                break;
            }
            tokio::select! {
                Some(done) = dirs.join_next(), if !dirs.is_empty() => match done {
                    Ok(found) => {
                        self.report.dirs += u64::from(found.end.is_some());
                        self.ends.extend(found.end);
                        for error in found.errors {
                            self.failed(error);
                        }
                        if !self.walk.halt.load(Ordering::Relaxed) {
                            waiting.extend(found.dirs.into_iter().map(|job| (job, None)));
                        }
                    }
                    Err(e) => self.failed(Error::with(ErrorKind::Io, "", e.to_string())),
                },
                Some(done) = files.join_next(), if !files.is_empty() => match done {
                    Ok((id, done)) => {
                        // Its other names must not become names of what was there before.
                        if done.is_err()
                            && let Some(linked) = &mut self.linked
                        {
                            linked.remove(&id);
                        }
                        self.copied(done);
                    }
                    Err(e) => self.failed(Error::with(ErrorKind::Io, "", e.to_string())),
                },
                Some(job) = rx.recv(), if next.is_none() && !dirs.is_empty() => next = Some(job),
            }
        }
    }

    fn begin(&mut self, job: Job, room: OwnedSemaphorePermit, files: &mut JoinSet<(FileId, Result<Copied>)>) {
        if self.walk.halt.load(Ordering::Relaxed) {
            return;
        }
        if let Some(linked) = &mut self.linked
            && job.meta.nlink > 1
            && job.meta.kind == Kind::File
        {
            if linked.contains_key(&job.meta.id) {
                self.links.push(job);
                return;
            }
            linked.insert(job.meta.id, job.to.clone());
        }
        let id = job.meta.id;
        let copy = one(self.walk.clone(), job);
        files.spawn(async move {
            let _room = room;
            (id, copy.await)
        });
    }

    fn copied(&mut self, done: Result<Copied>) {
        match done {
            Ok(Copied::File { method, bytes, durable, refused }) => {
                for (method, why) in refused {
                    self.report.refused.entry(method).or_insert(why);
                }
                self.report.files += 1;
                self.report.bytes += bytes;
                self.report.durable &= durable;
                let by = self.report.by_method.entry(method).or_default();
                by.0 += 1;
                by.1 += bytes;
            }
            Ok(Copied::Other) => self.report.others += 1,
            Err(e) => self.failed(e),
        }
    }

    fn failed(&mut self, error: Error) {
        self.report.failed += 1;
        if error.is_fatal() {
            self.walk.halt.store(true, Ordering::Relaxed);
            // The files in flight fail for the same reason; once is enough.
            if !self.fatal.insert(error.kind) {
                return;
            }
        }
        self.walk.progress.tell(Event::Failed(&error));
        if self.report.errors.len() < ERRORS_NAMED {
            self.report.errors.push(error);
        }
    }

    /// What can be done only when all files are there: hard links, then the attributes of directories.
    async fn finish(&mut self) {
        if self.walk.halt.load(Ordering::Relaxed) {
            return;
        }
        let walk = self.walk.clone();
        self.further_names().await;
        if walk.halt.load(Ordering::Relaxed) {
            return;
        }
        // The deepest first: a directory that its mode closes comes after what is in it.
        let mut by_depth: BTreeMap<usize, Vec<DirEnd>> = BTreeMap::new();
        for end in std::mem::take(&mut self.ends) {
            if !end.set.is_empty() {
                by_depth.entry(end.depth).or_default().push(end);
            }
        }
        for (_, ends) in by_depth.into_iter().rev() {
            let to = &walk.to;
            let sets = stream::iter(ends).map(|end| async move {
                // The root alone may be behind a link.
                if end.depth == 0 {
                    return to.set_meta_followed(&end.to, &end.set).await;
                }
                to.set_meta(&end.to, &end.set).await
            });
            let results: Vec<_> = sets.buffer_unordered(SETS_IN_FLIGHT).collect().await;
            for error in results.into_iter().filter_map(Result::err) {
                self.failed(error);
            }
        }
    }

    /// The further names of files that have several, all at the same time.
    async fn further_names(&mut self) {
        let walk = self.walk.clone();
        let mut pairs = Vec::new();
        for job in std::mem::take(&mut self.links) {
            let id = job.meta.id;
            let Some(linked) = &mut self.linked else { return };
            if let Some(first) = linked.get(&id) {
                pairs.push((first.clone(), job.to));
                continue;
            }
            // The first name could not be made: this one is a copy of its own, and the first for the others.
            let path = job.to.clone();
            let done = one(walk.clone(), job).await;
            if done.is_ok() {
                linked.insert(id, path);
            }
            self.copied(done);
        }
        let links = stream::iter(pairs).map(|(first, path)| {
            let walk = &walk;
            async move {
                if walk.halt.load(Ordering::Relaxed) {
                    return None;
                }
                let stopped = walk.options.cancel.is_cancelled();
                Some(if stopped { Err(Error::cancelled()) } else { link(&*walk.to, &first, &path).await })
            }
        });
        let mut links = pin!(links.buffer_unordered(self.files_in_flight * SMALL_FILES as usize));
        while let Some(done) = links.next().await {
            if let Some(done) = done {
                self.copied(done.map(|()| Copied::Other));
            }
        }
    }
}

#[derive(Default)]
struct Found {
    dirs: Vec<DirJob>,
    end: Option<DirEnd>,
    errors: Vec<Error>,
}

/// Makes one directory and hands out what is in it. `made`: it exists already; whether it is new.
async fn directory(walk: Arc<Walk>, job: DirJob, made: Option<bool>, queue: mpsc::Sender<Job>) -> Found {
    let mut found = Found::default();
    if let Err(e) = fill_directory(&walk, job, made, &queue, &mut found).await {
        found.errors.push(e);
    }
    found
}

async fn fill_directory(
    walk: &Walk,
    job: DirJob,
    made: Option<bool>,
    queue: &mpsc::Sender<Job>,
    found: &mut Found,
) -> Result<()> {
    let cancel = &walk.options.cancel;
    if Some(job.meta.id) == walk.root {
        let words = "is the directory that the copy goes to; not copied into itself";
        return Err(Error::with(ErrorKind::Same, walk.from.shown(&job.from), words));
    }
    let fresh = match made {
        Some(fresh) => fresh,
        None => cancel.run(make_dir(&*walk.to, &job.to, &job.meta, &walk.options, false)).await?.0,
    };
    let mut set = walk.options.kept(&job.meta);
    let mode = job.meta.mode & 0o777 & !walk.options.umask;
    if !walk.options.preserve && fresh && mode & 0o700 != 0o700 {
        set.mode = Some(mode);
    }
    found.end = Some(DirEnd { to: job.to.clone(), set, depth: job.depth });
    let mut pages = cancel.run(walk.from.list(&job.from)).await?;
    while let Some(page) = cancel.run(pages.next()).await? {
        let (mut files, mut bytes) = (0, 0);
        for entry in &page {
            if let Ok(Meta { kind: Kind::File, size, .. }) = entry.meta {
                files += 1;
                bytes += size;
            }
        }
        walk.progress.found(files, bytes);
        for entry in page {
            let name = OsStr::from_bytes(&entry.name);
            let (from, to) = (job.from.join(name), job.to.join(name));
            match entry.meta {
                Ok(meta) if meta.kind == Kind::Dir => {
                    found.dirs.push(DirJob { from, to, meta, depth: job.depth + 1 });
                }
                Ok(meta) => {
                    if queue.send(Job { from, to, meta, fresh }).await.is_err() {
                        return Ok(());
                    }
                }
                Err(e) => found.errors.push(e),
            }
        }
        if walk.halt.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(())
}

async fn one(walk: Arc<Walk>, job: Job) -> Result<Copied> {
    if walk.options.cancel.is_cancelled() {
        return Err(Error::cancelled());
    }
    let replaced = if job.fresh {
        None
    } else {
        match walk.to.stat(&job.to).await {
            Ok(meta) => Some(meta),
            Err(e) if e.kind == ErrorKind::NotFound => None,
            Err(e) => return Err(e),
        }
    };
    let known = Known { source: Some(&job.meta), replaced: replaced.as_ref() };
    let (from, to) = ((&walk.from, job.from.as_path()), (&walk.to, job.to.as_path()));
    if job.meta.kind == Kind::File {
        let report = copy_file(from, to, known, &walk.options, &walk.progress).await?;
        let FileReport { method, bytes, durable, refused, .. } = report;
        return Ok(Copied::File { method, bytes, durable, refused });
    }
    copy_other(from, to, known, &walk.options).await?;
    Ok(Copied::Other)
}
