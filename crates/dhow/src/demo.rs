//! `dhow demo`: a server, a file, and three ways to copy it.

use crate::bench::data;
use crate::cli::Demo;
use crate::config::Config;
use crate::exit::{Failure, Outcome};
use crate::export::Export;
use crate::output::{json_seconds, ops, say, say_json, table};
use crate::place::Places;
use crate::scratch::Scratch;
use crate::settings::Settings;
use crate::words::{bytes, rate};
use dhow_copy::{Choice, Endpoint, ErrorKind, FileReport, Known, Method, Options, Progress, Sync};
use dhow_server::{CommitPolicy, Squash};
use serde_json::json;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Runs the command.
pub async fn run(args: Demo) -> Outcome {
    let dir = Scratch::in_or_temp(args.dir.as_deref(), "dhow-demo")?;
    show(&args, &dir).await
}

async fn show(args: &Demo, dir: &Path) -> Outcome {
    let filesystem = data::filesystem(dir);
    let talk = |line: String| {
        if !args.json {
            say(line);
        }
    };
    talk(format!("making a file of {} with data and holes in {} ({filesystem})", bytes(args.size), dir.display()));
    let (path, size) = (dir.join("file"), args.size);
    tokio::task::spawn_blocking(move || data::make(&path, size, true)).await.map_err(Failure::failed)??;
    // Two views of one directory: COPY must move bytes to be compared, CLONE must be allowed to share them.
    let export = |name: &str, reflink| Export { squash: Squash::None, reflink, ..Export::new(name, dir) };
    let mut server = Settings::default();
    // None of the copies is made durable: like is compared with like.
    server.copy.commit = CommitPolicy::Never;
    let config = Config {
        server,
        listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))],
        exports: vec![export("/own", false), export("/shared", true)],
        ..Config::default()
    };
    let (running, state) = crate::serve::start(config).await?;
    let Some(addr) = running.addresses().first().copied() else {
        return Err(Failure::failed("the server listens nowhere"));
    };
    talk(format!("serving it on {addr}"));
    let reports = Places::with(async |places| {
        let place = places.url(format!("nfs://{addr}/").as_ref()).await?;
        copies(&place.endpoint, dir).await
    });
    let reports = reports.await;
    running.shutdown().await;
    drop(state);
    let reports = reports?;
    print(args, &reports, &filesystem);
    Ok(())
}

/// One copy for each method that the filesystem has, each compared with the file.
async fn copies(endpoint: &Arc<dyn Endpoint>, dir: &Path) -> Outcome<Vec<FileReport>> {
    let mut reports = Vec::new();
    for method in [Method::ReadWrite, Method::Copy, Method::Clone] {
        let root = if method == Method::Clone { "/shared" } else { "/own" };
        let (from, to) = (Path::new(root).join("file"), Path::new(root).join(method.name()));
        let options = Options { method: Choice::Only(method), sync: Sync::No, ..Options::default() };
        let ends = ((endpoint, from.as_path()), (endpoint, to.as_path()));
        match dhow_copy::copy_file(ends.0, ends.1, Known::default(), &options, &Progress::none()).await {
            Ok(report) => {
                verify(dir.join("file"), dir.join(method.name())).await?;
                reports.push(report);
            }
            Err(e) if e.kind == ErrorKind::Unsupported && method == Method::Clone => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(reports)
}

async fn verify(a: PathBuf, b: PathBuf) -> Outcome {
    let shown = b.display().to_string();
    let same = tokio::task::spawn_blocking(move || data::same(&a, &b)).await.map_err(Failure::failed)??;
    if same { Ok(()) } else { Err(Failure::failed(format!("{shown}: the copy differs from its source"))) }
}

fn print(args: &Demo, reports: &[FileReport], filesystem: &str) {
    if args.json {
        let rows: Vec<_> = reports
            .iter()
            .map(|r| {
                json!({
                    "size": r.bytes, "method": r.method.name(), "calls": r.calls.calls, "polls": r.calls.polls,
                    "ops": ops(&r.calls), "seconds": json_seconds(r.elapsed), "durable": r.durable, "verified": true,
                })
            })
            .collect();
        say_json(&json!({"rows": rows, "filesystem": filesystem}));
        return;
    }
    let mut lines = vec![["copied by", "calls", "polls", "seconds", "rate", "bytes equal"].map(str::to_owned).to_vec()];
    for r in reports {
        lines.push(vec![
            match r.method {
                Method::ReadWrite => "reading and writing",
                Method::Copy => "COPY on the server",
                Method::Clone => "CLONE on the server",
                Method::Inter => "COPY between servers",
            }
            .to_owned(),
            r.calls.calls.to_string(),
            r.calls.polls.to_string(),
            format!("{:.3}", r.elapsed.as_secs_f64()),
            rate(r.bytes, r.elapsed),
            "yes".to_owned(),
        ]);
    }
    say("");
    say(table(&lines));
    if !reports.iter().any(|r| r.method == Method::Clone) {
        say(format!("CLONE needs a filesystem that shares blocks, such as btrfs or xfs; this is {filesystem}"));
    }
}
