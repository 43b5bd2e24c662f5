//! One file: the choice of the method, the temporary name, durability.

use crate::costs::{self, Costs};
use crate::endpoint::{Calls, Endpoint, Kind, Meta, Method, Offload, SetMeta, Sink, Source, Synced};
use crate::pipeline;
use crate::policy::{Decision, Way};
use crate::progress::{Cancel, Event, Progress};
use crate::{Error, ErrorKind, Result};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often a file is written again after the server lost uncommitted data.
const REWRITES: u32 = 3;

/// Which way the bytes may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The first that works of [`Method::Clone`], [`Method::Copy`], [`Method::ReadWrite`]; between two servers
    /// [`Method::Inter`] or [`Method::ReadWrite`], as [`Options::costs`] says.
    #[default]
    Auto,
    /// This one or none.
    Only(Method),
}

/// Whether results are made durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sync {
    /// As [`Endpoint::durable_by_default`] says.
    #[default]
    Default,
    /// Durable at the end of each file.
    Yes,
    /// As the endpoint keeps it; a crash soon afterwards may lose data.
    No,
}

/// How to copy.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Which way the bytes may take.
    pub method: Choice,
    /// Keep mode and times, and the owner where this user may set it (see [`Options::owner`]).
    pub preserve: bool,
    /// With `preserve`, set owner and group too.
    pub owner: bool,
    /// The mode of new files, whatever the source's is; `None`: as `preserve` and `umask` say.
    pub mode: Option<u32>,
    /// Durability.
    pub sync: Sync,
    /// One of many files: what costs the fewest calls is better than what moves the fewest bytes.
    pub many: bool,
    /// Bits that the mode of new files and directories loses when nothing is preserved.
    pub umask: u32,
    /// What copies between two servers cost; `None`: they are offloaded from 1 MiB on.
    pub costs: Option<Arc<Costs>>,
    /// Stops the copy.
    pub cancel: Cancel,
}

impl Options {
    pub(crate) fn syncs(&self, to: &dyn Endpoint) -> bool {
        match self.sync {
            Sync::Default => to.durable_by_default(),
            Sync::Yes => true,
            Sync::No => false,
        }
    }

    /// The attributes that a copy of `meta` is given at its end.
    pub(crate) fn kept(&self, meta: &Meta) -> SetMeta {
        if !self.preserve {
            return SetMeta { mode: self.mode, ..SetMeta::default() };
        }
        let owner = |id: Option<u32>| id.filter(|_| self.owner);
        SetMeta {
            mode: Some(self.mode.unwrap_or(meta.mode)),
            uid: owner(meta.uid),
            gid: owner(meta.gid),
            atime: Some(meta.atime),
            mtime: Some(meta.mtime),
        }
    }

    /// The mode that a copy of `meta` is created with. When it will be given another owner, nobody else may read it
    /// before it has that.
    pub(crate) fn mode_at_first(&self, meta: &Meta, replaced: Option<&Meta>) -> u32 {
        if let Some(mode) = self.mode {
            mode & 0o777
        } else if self.preserve {
            if self.owner { meta.mode & 0o700 } else { meta.mode & 0o777 }
        } else {
            replaced.map_or(meta.mode & 0o777 & !self.umask, |old| old.mode & 0o777)
        }
    }
}

/// How the copy of one file went.
#[derive(Clone, Debug, PartialEq)]
pub struct FileReport {
    /// How the bytes moved.
    pub method: Method,
    /// Size of the result, bytes.
    pub bytes: u64,
    /// From the first call to the last.
    pub elapsed: Duration,
    /// Calls made by the clients of both sides (of all files copied meanwhile, when there are several).
    pub calls: Calls,
    /// Whether the bytes were on stable storage at the end.
    pub durable: bool,
    /// Why a better method was not taken, for the curious.
    pub refused: Vec<(Method, String)>,
}

/// Calls of two endpoints together, one that is both counted once.
pub fn calls_of(from: &dyn Endpoint, to: &dyn Endpoint) -> Calls {
    let mut calls = to.calls();
    if !from.same_place(to) {
        calls.add(&from.calls());
    }
    calls
}

/// What the caller knows already about the two names.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known<'a> {
    /// Attributes of the source.
    pub source: Option<&'a Meta>,
    /// Attributes of what is at the destination now.
    pub replaced: Option<&'a Meta>,
}

/// Copies the regular file at `from` (a symbolic link is followed) to the name `to`, replacing what is there.
///
/// The new file appears under its name complete or not at all.
///
/// # Errors
/// The first error of either side; the temporary file is gone then, if the endpoint can still be reached.
pub async fn copy_file(
    from: (&Arc<dyn Endpoint>, &Path),
    to: (&Arc<dyn Endpoint>, &Path),
    known: Known<'_>,
    options: &Options,
    progress: &Progress,
) -> Result<FileReport> {
    let before = calls_of(&**from.0, &**to.0);
    let start = Instant::now();
    let shown = to.0.shown(to.1);
    let (method, bytes, durable, refused) = match small(from, (to, &shown), known, options, progress).await? {
        Some(copied) => copied,
        None => whole(from, (to, &shown), known, options, progress).await?,
    };
    let report = FileReport {
        method,
        bytes,
        elapsed: start.elapsed(),
        calls: calls_of(&**from.0, &**to.0).since(&before),
        durable,
        refused,
    };
    progress.tell(Event::Done { place: &shown, report: &report });
    Ok(report)
}

/// A small file goes whole: read in one step, written in one step.
async fn small(
    from: (&Arc<dyn Endpoint>, &Path),
    (to, shown): ((&Arc<dyn Endpoint>, &Path), &str),
    known: Known<'_>,
    options: &Options,
    progress: &Progress,
) -> Result<Option<Copied>> {
    let limit = to.0.small_limit().max(from.0.small_limit());
    let fits = known.source.is_some_and(|m| m.size <= u64::from(limit) && m.used >= m.size);
    // Within one server an offload is worth its calls for a single file, not for each of many small ones.
    let direct = known.source.and_then(|m| decide(to.0.pulls_from(&**from.0).as_deref(), m.size, options));
    let wanted = match options.method {
        Choice::Auto if direct.is_some_and(|d| d.way == Way::Inter) => false,
        Choice::Auto => options.many || !from.0.same_place(&**to.0),
        Choice::Only(method) => method == Method::ReadWrite && options.many,
    };
    if limit == 0 || !fits || !wanted {
        return Ok(None);
    }
    let Some((meta, data)) = options.cancel.run(from.0.read_small(from.1, limit)).await? else { return Ok(None) };
    replaceable((&meta, from), (to, shown), known.replaced)?;
    progress.tell(Event::Started { place: shown, method: Method::ReadWrite });
    let sync = options.syncs(&**to.0);
    let old = known.replaced.filter(|old| old.kind == Kind::File);
    let bytes = data.len() as u64;
    to.0.write_small(to.1, data, options.mode_at_first(&meta, old), &options.kept(&meta), sync).await?;
    progress.moved(bytes);
    Ok(Some((Method::ReadWrite, bytes, sync, Vec::new())))
}

/// Whether the copy may take the place of what is there.
pub(crate) fn replaceable(
    (meta, from): (&Meta, (&Arc<dyn Endpoint>, &Path)),
    (to, shown): ((&Arc<dyn Endpoint>, &Path), &str),
    replaced: Option<&Meta>,
) -> Result<()> {
    let Some(old) = replaced else { return Ok(()) };
    if from.0.same_place(&**to.0) && old.id == meta.id {
        return Err(Error::with(ErrorKind::Same, shown, format!("is the same file as {}", from.0.shown(from.1))));
    }
    match old.kind {
        Kind::File | Kind::Symlink => Ok(()),
        Kind::Dir => Err(Error::new(ErrorKind::IsDirectory, shown)),
        _ => Err(Error::with(ErrorKind::NotRegular, shown, "is not a regular file; not replaced")),
    }
}

type Copied = (Method, u64, bool, Vec<(Method, String)>);

async fn whole(
    from: (&Arc<dyn Endpoint>, &Path),
    (to, shown): ((&Arc<dyn Endpoint>, &Path), &str),
    known: Known<'_>,
    options: &Options,
    progress: &Progress,
) -> Result<Copied> {
    let (source, sink) = open_both(from, (to, shown), known, options).await?;
    let sync = options.syncs(&**to.0);
    let kept = options.kept(source.meta());
    let ends = (&**from.0, &**to.0);
    let moved = options.cancel.run(move_bytes(&*source, &*sink, ends, shown, sync, options, progress)).await;
    match moved {
        Ok(done) => {
            let (finished, closed) = sink.finish_with(&kept, source).await;
            finished?;
            closed?;
            Ok(done)
        }
        Err(e) => {
            // A source that cannot be closed is no worse than what happened.
            let ((), _) = tokio::join!(sink.abandon(), source.close());
            Err(e)
        }
    }
}

/// Opens the source and makes the unfinished file; both at once where they are in different places and enough is known.
async fn open_both(
    from: (&Arc<dyn Endpoint>, &Path),
    (to, shown): ((&Arc<dyn Endpoint>, &Path), &str),
    known: Known<'_>,
    options: &Options,
) -> Result<(Box<dyn Source>, Box<dyn Sink>)> {
    let old = known.replaced.filter(|old| old.kind == Kind::File);
    // The create is not under `run`: one that was dropped half-way could leave a file nobody knows.
    let open = options.cancel.run(from.0.open(from.1));
    let Some(meta) = known.source.filter(|_| !from.0.same_place(&**to.0)) else {
        let source = open.await?;
        replaceable((source.meta(), from), (to, shown), known.replaced)?;
        let sink = to.0.create(to.1, options.mode_at_first(source.meta(), old)).await;
        return match sink {
            Ok(sink) => Ok((source, sink)),
            Err(e) => {
                let _ = source.close().await;
                Err(e)
            }
        };
    };
    replaceable((meta, from), (to, shown), known.replaced)?;
    match tokio::join!(open, to.0.create(to.1, options.mode_at_first(meta, old))) {
        (Ok(source), Ok(sink)) => Ok((source, sink)),
        (Ok(source), Err(e)) => {
            let _ = source.close().await;
            Err(e)
        }
        (Err(e), Ok(sink)) => {
            sink.abandon().await;
            Err(e)
        }
        (Err(e), Err(_)) => Err(e),
    }
}

/// Which ways between two servers are worth trying, and why.
fn decide(pair: Option<&str>, bytes: u64, options: &Options) -> Option<Decision> {
    let pair = pair?;
    Some(match &options.costs {
        Some(costs) => costs.choose(pair, bytes),
        None => costs::without_memory(bytes),
    })
}

async fn move_bytes(
    source: &dyn Source,
    sink: &dyn Sink,
    (from, to): (&dyn Endpoint, &dyn Endpoint),
    shown: &str,
    sync: bool,
    options: &Options,
    progress: &Progress,
) -> Result<Copied> {
    let mut refused = Vec::new();
    let pair = to.pulls_from(from);
    let decision = decide(pair.as_deref(), source.meta().size, options).filter(|_| options.method == Choice::Auto);
    if let Some(decision) = &decision {
        progress.tell(Event::Decided { place: shown, decision });
    }
    let offloads: &[Method] = match (options.method, decision) {
        (Choice::Auto, Some(Decision { way: Way::Inter, .. })) => &[Method::Inter],
        (Choice::Auto, Some(_)) => &[],
        (Choice::Auto, None) => &[Method::Clone, Method::Copy],
        (Choice::Only(Method::Clone), _) => &[Method::Clone],
        (Choice::Only(Method::Copy), _) => &[Method::Copy],
        (Choice::Only(Method::Inter), _) => &[Method::Inter],
        (Choice::Only(Method::ReadWrite), _) => &[],
    };
    let flight = || Some(options.costs.as_ref()?.begin(pair.as_deref()?));
    for &method in offloads {
        let flight = flight();
        for attempt in 0.. {
            let total = AtomicU64::new(0);
            let moved = |bytes| {
                total.fetch_add(bytes, Ordering::Relaxed);
                progress.moved(bytes);
            };
            if attempt == 0 {
                progress.tell(Event::Started { place: shown, method });
            }
            match to.offload(method, source, sink, sync, &moved).await {
                Ok(Offload::Done { bytes, durable }) => {
                    if durable || !sync || sink.sync().await? == Synced::Durable {
                        if let (Some(flight), Method::Inter) = (flight, method) {
                            flight.landed(Way::Inter, bytes);
                        }
                        return Ok((method, bytes, durable || sync, refused));
                    }
                }
                Ok(Offload::Refused(why)) => {
                    refused.push((method, why));
                    take_back(progress, &total);
                    break;
                }
                Err(e) if e.kind == ErrorKind::DataLost && attempt < REWRITES => {}
                Err(e) => return Err(e),
            }
            if attempt >= REWRITES {
                return Err(Error::new(ErrorKind::DataLost, shown));
            }
            take_back(progress, &total);
        }
    }
    if let Choice::Only(method @ (Method::Clone | Method::Copy | Method::Inter)) = options.method {
        let why = refused.pop().map(|r| r.1).unwrap_or_default();
        return Err(Error::with(
            ErrorKind::Unsupported,
            shown,
            format!("cannot be made by {method}: {why}; use --method auto"),
        ));
    }
    progress.tell(Event::Started { place: shown, method: Method::ReadWrite });
    let flight = flight();
    let apart = from.is_remote() && to.is_remote() && !from.same_place(to);
    for _ in 0..=REWRITES {
        let bytes = pipeline::pump(source, sink, apart, progress).await?;
        if !sync || sink.sync().await? == Synced::Durable {
            if let Some(flight) = flight {
                flight.landed(Way::ReadWrite, bytes);
            }
            return Ok((Method::ReadWrite, bytes, sync, refused));
        }
        take_back(progress, &AtomicU64::new(bytes));
    }
    Err(Error::new(ErrorKind::DataLost, shown))
}

fn take_back(progress: &Progress, bytes: &AtomicU64) {
    let bytes = i64::try_from(bytes.load(Ordering::Relaxed)).unwrap_or(0);
    if bytes > 0 {
        progress.tell(Event::Moved(-bytes));
    }
}
