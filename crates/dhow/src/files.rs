//! `dhow cat`, `put`, `mkdir`, `rm`, `mv`, `ln`.

use crate::cli::{Cat, Ln, Mkdir, Mv, Put, Rm};
use crate::cp::stop_on_interrupt;
use crate::exit::{Code, Failure, Outcome, complain};
use crate::output::{Bar, json_seconds, ops, say, say_json};
use crate::place::{Place, Places, check_urls};
use crate::words::{bytes, rate, seconds};
use dhow_copy::{
    Cancel, Choice, Endpoint, Error, ErrorKind, Kind, Known, Local, Method, Options, Progress, SetMeta, Sync, Synced,
};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// What happened to each argument; errors are told at once, the others go on.
#[derive(Default)]
struct Tally {
    done: Vec<String>,
    failed: Vec<Error>,
    /// What ended the work, if something did: the server is lost, or the user stopped it.
    fatal: Option<Code>,
}

impl Tally {
    fn add(&mut self, place: String, result: dhow_copy::Result<()>) {
        match result {
            Ok(()) => self.done.push(place),
            Err(e) => {
                complain(&e);
                if e.is_fatal() && self.fatal.is_none() {
                    self.fatal = Some(Failure::from(e.clone()).code);
                }
                self.failed.push(e);
            }
        }
    }

    /// `what`: the name of the list in JSON.
    fn end(self, what: &str, json: bool) -> Outcome {
        if json {
            let errors: Vec<Value> =
                self.failed.iter().map(|e| json!({"path": e.place, "error": e.to_string()})).collect();
            say_json(&json!({what: self.done, "errors": errors}));
        }
        match (self.failed.is_empty(), self.fatal) {
            (true, _) => Ok(()),
            (false, Some(code)) => Err(Failure { code, ..Failure::told() }),
            (false, None) => Err(Failure::told()),
        }
    }
}

/// `dhow cat`.
pub async fn cat(args: Cat) -> Outcome {
    check_urls(&args.urls)?;
    Places::with(async |places| cat_in(&args, places).await).await
}

async fn cat_in(args: &Cat, places: &mut Places) -> Outcome {
    let mut tally = Tally::default();
    let mut total = 0;
    let start = Instant::now();
    let mut out = tokio::io::stdout();
    for url in &args.urls {
        let place = places.url(url).await?;
        let done: dhow_copy::Result<()> = async {
            let source = place.endpoint.open(&place.path).await?;
            let drained = dhow_copy::drain(&*source, &mut out, "standard output", &Progress::none()).await;
            source.close().await?;
            total += drained?;
            Ok(())
        }
        .await;
        match done {
            // `dhow cat | head`: it has what it wants.
            Err(e) if e.kind == ErrorKind::Unread => return Err(Failure::told()),
            done => tally.add(place.shown(), done),
        }
    }
    if args.json {
        eprintln!("{}", json!({"bytes": total, "seconds": json_seconds(start.elapsed())}));
    }
    tally.end("files", false)
}

/// `dhow put`.
pub async fn put(args: Put) -> Outcome {
    Places::with(async |places| put_in(&args, places).await).await
}

async fn put_in(args: &Put, places: &mut Places) -> Outcome {
    let (from, to) = match args.paths.as_slice() {
        [to] => (OsString::from("-"), to),
        [from, to] => (from.clone(), to),
        _ => return Err(Failure::usage("name a file to write")),
    };
    let to = places.url(to).await?;
    if to.is_dir {
        return Err(Failure::usage(format!("{}: name a file, not a directory", to.shown())));
    }
    let cancel = stop_on_interrupt();
    let before = to.endpoint.calls();
    let start = Instant::now();
    let done =
        if from == "-" { put_stream(args, &to, &cancel).await } else { put_file(args, &from, &to, cancel).await };
    let (elapsed, calls) = (start.elapsed(), to.endpoint.calls().since(&before));
    let n = done?;
    if args.json {
        say_json(&json!({
            "method": "readwrite", "bytes": n, "seconds": json_seconds(elapsed), "calls": calls.calls,
            "polls": calls.polls, "ops": ops(&calls), "durable": !args.no_sync,
        }));
    } else {
        say(format!("wrote {} in {} ({})", bytes(n), seconds(elapsed), rate(n, elapsed)));
    }
    Ok(())
}

async fn put_file(args: &Put, from: &OsString, to: &Place, cancel: Cancel) -> dhow_copy::Result<u64> {
    let local: Arc<dyn Endpoint> = Arc::new(Local::new());
    let path = Path::new(from);
    let meta = local.stat_followed(path).await?;
    let replaced = match to.endpoint.stat(&to.path).await {
        Ok(meta) => Some(meta),
        Err(e) if e.kind == ErrorKind::NotFound => None,
        Err(e) => return Err(e),
    };
    let options = Options {
        method: Choice::Only(Method::ReadWrite),
        mode: args.mode,
        sync: if args.no_sync { Sync::No } else { Sync::Yes },
        umask: dhow_copy::umask(),
        cancel,
        ..Options::default()
    };
    let bar = Bar::new(!args.json, meta.size);
    let known = Known { source: Some(&meta), replaced: replaced.as_ref() };
    let report =
        dhow_copy::copy_file((&local, path), (&to.endpoint, &to.path), known, &options, &bar.progress(false)).await;
    bar.clear();
    Ok(report?.bytes)
}

async fn put_stream(args: &Put, to: &Place, cancel: &Cancel) -> dhow_copy::Result<u64> {
    let mode = args.mode.unwrap_or(0o666 & !dhow_copy::umask());
    let sink = to.endpoint.create(&to.path, mode & 0o777).await?;
    let write = async {
        let mut input = tokio::io::stdin();
        let n = dhow_copy::fill(&mut input, &*sink, "standard input", &Progress::none()).await?;
        if args.no_sync || sink.sync().await? == Synced::Durable {
            return Ok(n);
        }
        // What was read from a pipe cannot be read again.
        Err(Error::new(ErrorKind::DataLost, to.shown()))
    };
    match cancel.run(write).await {
        Ok(n) => {
            sink.finish(&SetMeta { mode: args.mode, ..SetMeta::default() }).await?;
            Ok(n)
        }
        Err(e) => {
            sink.abandon().await;
            Err(e)
        }
    }
}

/// `dhow mkdir`.
pub async fn mkdir(args: Mkdir) -> Outcome {
    check_urls(&args.urls)?;
    Places::with(async |places| mkdir_in(&args, places).await).await
}

async fn mkdir_in(args: &Mkdir, places: &mut Places) -> Outcome {
    let mut tally = Tally::default();
    let mode = args.mode.unwrap_or(0o777 & !dhow_copy::umask());
    for url in &args.urls {
        let place = places.url(url).await?;
        let made = if args.parents {
            dhow_copy::make_dirs(&*place.endpoint, &place.path, mode).await.map(drop)
        } else {
            place.endpoint.make_dir(&place.path, mode).await.map(drop)
        };
        tally.add(place.shown(), made);
    }
    tally.end("made", args.json)
}

/// `dhow rm`.
pub async fn rm(args: Rm) -> Outcome {
    check_urls(&args.urls)?;
    Places::with(async |places| rm_in(&args, places).await).await
}

async fn rm_in(args: &Rm, places: &mut Places) -> Outcome {
    let mut tally = Tally::default();
    let cancel = stop_on_interrupt();
    let mut objects = 0;
    for url in &args.urls {
        let place = places.url(url).await?;
        match remove(&place, args, &cancel, &mut tally).await {
            Ok(n) => {
                objects += n;
                if n > 0 {
                    tally.done.push(place.shown());
                }
            }
            Err(e) if args.force && e.kind == ErrorKind::NotFound => {}
            Err(e) => tally.add(place.shown(), Err(e)),
        }
        if cancel.is_cancelled() {
            break;
        }
    }
    tracing::debug!(objects, "removed");
    tally.end("removed", args.json)
}

async fn remove(place: &Place, args: &Rm, cancel: &Cancel, tally: &mut Tally) -> dhow_copy::Result<u64> {
    let meta = place.endpoint.stat(&place.path).await?;
    if meta.kind != Kind::Dir {
        place.endpoint.remove(&place.path).await?;
        return Ok(1);
    }
    if place.path.file_name().is_none() {
        return Err(Error::with(ErrorKind::Permission, place.shown(), "is the root of the server; not removed"));
    }
    if args.recursive {
        let errors = std::sync::Mutex::new(Vec::new());
        let failed = |e: &Error| {
            if let Ok(mut errors) = errors.lock() {
                errors.push(e.clone());
            }
        };
        let n = dhow_copy::remove_tree(&*place.endpoint, &place.path, cancel, &failed).await;
        let errors = errors.into_inner().unwrap_or_default();
        let complete = errors.is_empty();
        for e in errors {
            tally.add(place.shown(), Err(e));
        }
        return Ok(if complete { n } else { 0 });
    }
    if args.dir {
        place.endpoint.remove_dir(&place.path).await?;
        return Ok(1);
    }
    Err(Error::with(ErrorKind::IsDirectory, place.shown(), "is a directory; remove it with -r"))
}

/// `dhow mv`.
pub async fn mv(args: Mv) -> Outcome {
    check_urls(&args.paths)?;
    Places::with(async |places| mv_in(&args, places).await).await
}

async fn mv_in(args: &Mv, places: &mut Places) -> Outcome {
    let Some((to, sources)) = args.paths.split_last() else {
        return Err(Failure::usage("name a source and a new name"));
    };
    let mut tally = Tally::default();
    let to = places.url(to).await?;
    let into = match to.endpoint.stat_followed(&to.path).await {
        Ok(meta) => meta.kind == Kind::Dir,
        Err(e) if e.kind == ErrorKind::NotFound => false,
        Err(e) => return Err(e.into()),
    };
    if !into && sources.len() > 1 {
        return Err(Failure::usage(format!("{}: several files are moved into a directory; this is none", to.shown())));
    }
    for source in sources {
        let from = places.url(source).await?;
        let mut target = to.path.clone();
        if into && let Some(name) = from.path.file_name() {
            target.push(name);
        }
        let moved = async {
            if !from.endpoint.same_place(&*to.endpoint) {
                let words = format!("is on another server than {}; use dhow cp -a and dhow rm -r", to.shown());
                return Err(Error::with(ErrorKind::Unsupported, from.shown(), words));
            }
            if args.no_clobber && exists(&*to.endpoint, &target).await? {
                return Ok(());
            }
            from.endpoint.rename(&from.path, &target).await
        };
        tally.add(from.shown(), moved.await);
    }
    tally.end("moved", args.json)
}

async fn exists(endpoint: &dyn Endpoint, path: &Path) -> dhow_copy::Result<bool> {
    match endpoint.stat(path).await {
        Ok(_) => Ok(true),
        Err(e) if e.kind == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// Numbers links that wait to be renamed over an old one.
static LINKS: AtomicU64 = AtomicU64::new(0);

/// `dhow ln`.
pub async fn ln(args: Ln) -> Outcome {
    Places::with(async |places| ln_in(&args, places).await).await
}

async fn ln_in(args: &Ln, places: &mut Places) -> Outcome {
    let [target, link] = args.paths.as_slice() else {
        return Err(Failure::usage("name a target and a link"));
    };
    let mut tally = Tally::default();
    let mut link = places.url(link).await?;
    let existing = if args.symbolic { None } else { Some(places.url(target).await?) };
    let name = Path::new(target).file_name();
    if link.endpoint.stat_followed(&link.path).await.is_ok_and(|m| m.kind == Kind::Dir)
        && let Some(name) = name
    {
        link.path.push(name);
    }
    let made = async {
        if let Some(existing) = &existing
            && !existing.endpoint.same_place(&*link.endpoint)
        {
            let words = "is on another server; a hard link cannot lead there, a symbolic one (-s) can";
            return Err(Error::with(ErrorKind::Unsupported, existing.shown(), words));
        }
        let make = async |path: &Path| match &existing {
            Some(existing) => link.endpoint.hard_link(&existing.path, path).await,
            None => link.endpoint.make_link(path, target.as_bytes()).await,
        };
        match make(&link.path).await {
            Err(e) if args.force && e.kind == ErrorKind::Exists => {
                // Made beside it and renamed over it: there is a link at every moment.
                let n = LINKS.fetch_add(1, Ordering::Relaxed);
                let beside = link.path.with_file_name(format!(".ln.dhow-{}-{n}", std::process::id()));
                make(&beside).await?;
                let renamed = link.endpoint.rename(&beside, &link.path).await;
                // A rename of one name of a file onto another of it does nothing and leaves both.
                match link.endpoint.remove(&beside).await {
                    Ok(()) => {}
                    Err(e) if e.kind == ErrorKind::NotFound => {}
                    Err(e) => return renamed.and(Err(e)),
                }
                renamed
            }
            other => other,
        }
    };
    let made = made.await;
    tally.add(link.shown(), made);
    tally.end("made", args.json)
}
