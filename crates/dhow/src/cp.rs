//! `dhow cp`.

use crate::cli::{Cp, MethodArg, parse_min_size};
use crate::costs;
use crate::exit::{Code, Failure, Outcome, complain};
use crate::output::{Bar, json_seconds, ops, printable, say, say_json};
use crate::place::{Place, Places, parse_url};
use crate::words::{bytes, count, rate, seconds};
use dhow_copy::{
    Calls, Cancel, Choice, Costs, Error, ErrorKind, Event, FileReport, Kind, Known, Meta, Method, MinSize, Options,
    Progress, Stop, Sync, TreeOptions, TreeReport,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Runs the command.
pub async fn run(args: Cp) -> Outcome {
    Places::with(async |places| copy(&args, places).await).await
}

/// Stops the work on SIGINT and SIGTERM; a second SIGINT ends the process.
pub fn stop_on_interrupt() -> Cancel {
    let (stop, cancel) = Stop::new();
    tokio::spawn(async move {
        crate::serve::interrupted().await;
        stop.stop();
        crate::serve::interrupted().await;
        std::process::exit(Code::Interrupted as i32);
    });
    cancel
}

/// What was done, over all sources.
#[derive(Default)]
struct Sum {
    files: u64,
    dirs: u64,
    others: u64,
    bytes: u64,
    by_method: BTreeMap<Method, (u64, u64)>,
    calls: Calls,
    failed: Vec<Error>,
    failures: u64,
    durable: bool,
    /// A tree was copied, or several files: a summary is worth more than one file's line.
    many: bool,
    /// The first reason of each method that would not do.
    refused: BTreeMap<Method, String>,
}

impl Sum {
    fn file(&mut self, report: FileReport) {
        self.files += 1;
        self.bytes += report.bytes;
        self.durable &= report.durable;
        self.calls.add(&report.calls);
        let by = self.by_method.entry(report.method).or_default();
        by.0 += 1;
        by.1 += report.bytes;
        self.refuse(report.refused);
    }

    fn refuse(&mut self, reasons: impl IntoIterator<Item = (Method, String)>) {
        for (method, why) in reasons {
            self.refused.entry(method).or_insert(why);
        }
    }

    fn tree(&mut self, report: TreeReport) {
        self.files += report.files;
        self.dirs += report.dirs;
        self.others += report.others;
        self.bytes += report.bytes;
        self.durable &= report.durable;
        self.calls.add(&report.calls);
        for (method, (files, bytes)) in report.by_method {
            let by = self.by_method.entry(method).or_default();
            by.0 += files;
            by.1 += bytes;
        }
        self.refuse(report.refused);
        self.failures += report.failed;
        self.failed.extend(report.errors);
        self.many = true;
    }

    fn fail(&mut self, error: Error) {
        self.failures += 1;
        self.failed.push(error);
    }

    fn method(&self) -> &'static str {
        let mut methods = self.by_method.keys();
        match (methods.next(), methods.next()) {
            (Some(one), None) => one.name(),
            (Some(_), Some(_)) => "mixed",
            (None, _) => "none",
        }
    }

    fn json(&self, elapsed: Duration) -> Value {
        let by_method: serde_json::Map<String, Value> = self
            .by_method
            .iter()
            .map(|(m, (files, bytes))| (m.name().to_owned(), json!({"files": files, "bytes": bytes})))
            .collect();
        let refused: serde_json::Map<String, Value> =
            self.refused.iter().map(|(m, why)| (m.name().to_owned(), json!(why))).collect();
        json!({
            "method": self.method(),
            "bytes": self.bytes,
            "seconds": json_seconds(elapsed),
            "calls": self.calls.calls,
            "polls": self.calls.polls,
            "ops": ops(&self.calls),
            "durable": self.durable && self.files > 0,
            "files": self.files,
            "directories": self.dirs,
            "others": self.others,
            "by_method": by_method,
            "refused": refused,
            "failed": self.failures,
            "errors": self.failed.iter().map(|e| json!({"path": e.place, "error": e.to_string()})).collect::<Vec<_>>(),
        })
    }

    fn text(&self, elapsed: Duration) -> String {
        let what = if self.many {
            let mut parts = vec![count(self.files, "file", "files")];
            if self.dirs > 0 {
                parts.push(count(self.dirs, "directory", "directories"));
            }
            if self.others > 0 {
                parts.push(count(self.others, "link or special file", "links and special files"));
            }
            format!("{}, {}", parts.join(", "), bytes(self.bytes))
        } else {
            bytes(self.bytes)
        };
        let how = match self.by_method.len() {
            0 => String::new(),
            1 => format!(" by {}", self.method()),
            _ => {
                let parts: Vec<_> = self.by_method.iter().map(|(m, (_, b))| format!("{} by {m}", bytes(*b))).collect();
                format!(" ({})", parts.join(", "))
            }
        };
        let mut line = format!("copied {what}{how} in {} ({})", seconds(elapsed), rate(self.bytes, elapsed));
        if self.calls.calls > 0 {
            line.push_str(&format!(", {}", count(self.calls.calls, "call", "calls")));
        }
        if self.calls.polls > 0 {
            line.push_str(&format!(" and {}", count(self.calls.polls, "poll", "polls")));
        }
        if self.durable && self.files > 0 {
            line.push_str(", durable");
        }
        // That a server cannot share blocks is its nature; that two servers do not copy can mostly be mended.
        if let Some(why) = self.refused.get(&Method::Inter) {
            line.push_str(&format!("; not by inter: {why}"));
        }
        line
    }
}

/// The options of the library that the arguments ask for.
fn options(args: &Cp, costs: Arc<Costs>, cancel: Cancel) -> Options {
    Options {
        method: match args.method {
            MethodArg::Auto => Choice::Auto,
            MethodArg::Clone => Choice::Only(Method::Clone),
            MethodArg::Copy => Choice::Only(Method::Copy),
            MethodArg::Inter => Choice::Only(Method::Inter),
            MethodArg::Readwrite => Choice::Only(Method::ReadWrite),
        },
        preserve: args.preserve || args.archive,
        owner: dhow_copy::is_superuser() && !args.no_owner,
        sync: match (args.sync, args.no_sync) {
            (true, _) => Sync::Yes,
            (_, true) => Sync::No,
            _ => Sync::Default,
        },
        mode: None,
        many: false,
        umask: dhow_copy::umask(),
        costs: Some(costs),
        cancel,
    }
}

/// From which size on servers copy by themselves: the option, else the environment.
fn min_size(args: &Cp) -> Outcome<MinSize> {
    const NAME: &str = "DHOW_INTER_MIN_SIZE";
    match (args.inter_min_size, std::env::var(NAME)) {
        (Some(min), _) => Ok(min),
        (None, Ok(text)) if !text.is_empty() => {
            parse_min_size(&text).map_err(|e| Failure::usage(format!("{NAME}: {e}")))
        }
        _ => Ok(MinSize::Auto),
    }
}

/// Decisions that were told, for `--explain --json`; the first thousand.
#[derive(Clone, Default)]
struct Explained(Arc<Mutex<Vec<Value>>>);

impl Explained {
    /// Passes everything on to `progress`, and with `--explain` tells decisions.
    fn hear(&self, progress: Progress, bar: &Bar, args: &Cp) -> Progress {
        if !args.explain {
            return progress;
        }
        let (list, bar, as_json) = (self.0.clone(), bar.clone(), args.json);
        Progress::new(move |event| {
            if let Event::Decided { place, decision } = &event {
                if as_json {
                    let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
                    if list.len() < 1000 {
                        list.push(json!({
                            "path": place, "method": decision.way.name(), "why": decision.why,
                            "inter_seconds": decision.inter, "readwrite_seconds": decision.readwrite,
                        }));
                    }
                } else {
                    let name = printable(place.as_bytes());
                    bar.above(|| say(format!("{name}: {}: {}", decision.way.name(), decision.why)));
                }
            }
            progress.tell(event);
        })
    }

    fn json(&self) -> Value {
        Value::Array(std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

async fn copy(args: &Cp, places: &mut Places) -> Outcome {
    let (to, sources, first) = match args.paths.split_last() {
        Some((to, sources @ [first, ..])) => (to, sources, first),
        _ => return Err(Failure::usage("name a source and a destination")),
    };
    for argument in &args.paths {
        if argument.to_str().is_some_and(dhow_client::NfsUrl::is_url) {
            parse_url(argument)?;
        }
    }
    places.connect(std::iter::once(to).chain(sources)).await?;
    let to = places.get(to).await?;
    let recursive = args.recursive || args.archive;
    // What is asked of the first source and of the destination is asked at once.
    let from = places.get(first).await?;
    let (to_found, meta) = futures_util::future::join(found(&to), look(&from, recursive)).await;
    let to_found = to_found?;
    let mut looked_at = Some((from, meta));
    let into = to_found.meta.is_some_and(|m| m.kind == Kind::Dir);
    if !into && sources.len() > 1 {
        return Err(Failure::usage(format!("{}: several files are copied into a directory; this is none", to.shown())));
    }
    if !into && to.is_dir && !(args.recursive || args.archive) {
        return Err(Failure::failed(format!("{}: no such directory; make it with dhow mkdir", to.shown())));
    }
    let kept = costs::Kept::load();
    let known = Arc::new(Costs::new(min_size(args)?, kept.model.clone()));
    let tree = TreeOptions {
        copy: options(args, known.clone(), stop_on_interrupt()),
        files_in_flight: usize::from(args.jobs),
        hard_links: args.hard_links || args.archive,
    };
    let bar = Bar::new(!args.json && !args.quiet, 0);
    let explained = Explained::default();
    let progress = explained.hear(bar.progress(args.verbose && !args.json), &bar, args);
    let mut sum = Sum { durable: true, many: sources.len() > 1, ..Sum::default() };
    let start = Instant::now();
    let mut code = Code::Failed;
    for source in sources {
        let (from, meta) = match looked_at.take() {
            Some(first) => first,
            None => {
                let from = places.get(source).await?;
                let meta = look(&from, recursive).await;
                (from, meta)
            }
        };
        let done = match meta {
            Ok(meta) => one((&from, meta), (&to, &to_found), recursive, &tree, &progress, &mut sum).await,
            Err(e) => Err(e),
        };
        if let Err(e) = done {
            bar.above(|| complain(&e));
            let stop = e.is_fatal();
            code = Failure::from(e.clone()).code;
            sum.fail(e);
            if stop {
                break;
            }
        }
    }
    let elapsed = start.elapsed();
    bar.clear();
    kept.store(known.model());
    if let Some(fatal) = sum.failed.iter().find(|e| e.is_fatal()) {
        code = Failure::from(fatal.clone()).code;
    }
    if args.json {
        let mut report = sum.json(elapsed);
        if let (true, Some(map)) = (args.explain, report.as_object_mut()) {
            map.insert("decisions".into(), explained.json());
        }
        say_json(&report);
    } else if !args.quiet && (sum.files > 0 || sum.failures == 0) {
        say(sum.text(elapsed));
    }
    match sum.failures {
        0 => Ok(()),
        n if sum.many => {
            let files = count(n, "object was", "objects were");
            let rest = if sum.failed.iter().any(Error::is_fatal) { "; others were not tried" } else { "" };
            Err(Failure { code, message: format!("{files} not copied{rest}") })
        }
        _ => Err(Failure { code, ..Failure::told() }),
    }
}

/// What there is at the destination.
struct Found {
    /// The name itself.
    itself: Option<Meta>,
    /// What it leads to.
    meta: Option<Meta>,
}

/// Looks at the destination, in one round trip unless it is a symbolic link.
async fn found(place: &Place) -> dhow_copy::Result<Found> {
    let itself = if place.is_dir { None } else { if_any(place.endpoint.stat(&place.path).await)? };
    let meta = match itself {
        None if !place.is_dir => None,
        Some(meta) if meta.kind != Kind::Symlink => Some(meta),
        _ => if_any(place.endpoint.stat_followed(&place.path).await)?,
    };
    Ok(Found { itself, meta })
}

/// `None` if nothing is there.
fn if_any(meta: dhow_copy::Result<Meta>) -> dhow_copy::Result<Option<Meta>> {
    match meta {
        Ok(meta) => Ok(Some(meta)),
        Err(e) if e.kind == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Looks at a source. With -r a symbolic link stays one; without, it is followed, as cp(1) does.
async fn look(from: &Place, recursive: bool) -> dhow_copy::Result<Meta> {
    if recursive && !from.is_dir {
        from.endpoint.stat(&from.path).await
    } else {
        from.endpoint.stat_followed(&from.path).await
    }
}

async fn one(
    (from, meta): (&Place, Meta),
    (to, there): (&Place, &Found),
    recursive: bool,
    options: &TreeOptions,
    progress: &Progress,
    sum: &mut Sum,
) -> dhow_copy::Result<()> {
    let mut target = to.path.clone();
    let mut replaced = there.meta;
    let mut is_named = true;
    if replaced.is_some_and(|m| m.kind == Kind::Dir) {
        // Content goes into the directory itself.
        if let Some(name) = from.path.file_name().filter(|_| !from.is_content) {
            target.push(name);
            replaced = None;
            is_named = false;
        }
    }
    if replaced.is_none() || meta.kind != Kind::Dir {
        // Of the name itself: a symbolic link is replaced, not written through.
        replaced = match is_named && !to.is_dir {
            true => there.itself,
            false => if_any(to.endpoint.stat(&target).await)?,
        };
    }
    let (from_at, to_at) = ((&from.endpoint, from.path.as_path()), (&to.endpoint, target.as_path()));
    match meta.kind {
        Kind::Dir if recursive => sum.tree(dhow_copy::copy_tree(from_at, to_at, options, progress).await?),
        Kind::Dir => {
            return Err(Error::with(ErrorKind::IsDirectory, from.shown(), "is a directory; copy it with -r"));
        }
        kind if recursive && kind != Kind::File => {
            let known = Known { source: Some(&meta), replaced: replaced.as_ref() };
            dhow_copy::copy_other(from_at, to_at, known, &options.copy).await?;
            sum.others += 1;
            sum.many = true;
        }
        _ => {
            progress.found(1, meta.size);
            let known = Known { source: Some(&meta), replaced: replaced.as_ref() };
            sum.file(dhow_copy::copy_file(from_at, to_at, known, &options.copy, progress).await?);
        }
    }
    Ok(())
}
