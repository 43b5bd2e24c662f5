//! `dhow bench copy`: the methods side by side, in turns, against one server.

use super::child::Server;
use super::{Spread, data};
use crate::cli::BenchCopy;
use crate::exit::{Failure, Outcome, warn};
use crate::output::{ops, say, say_json, table};
use crate::place::{Place, Places};
use crate::scratch::Scratch;
use crate::words::{bytes, count};
use dhow_copy::{Calls, Choice, Endpoint, ErrorKind, Known, Method, Options, Progress, Sync};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const DEFAULT_SIZE: u64 = 512 << 20;

/// A row of the table: one method at one size.
struct Row {
    size: u64,
    method: Method,
    durable: bool,
    calls: Calls,
    seconds: Vec<Duration>,
    client_cpu: Vec<Duration>,
    server_cpu: Vec<f64>,
}

impl Row {
    fn json(&self) -> Value {
        let seconds = Spread::of_times(self.seconds.iter().copied());
        let client = Spread::of_times(self.client_cpu.iter().copied());
        let mut row = json!({
            "size": self.size,
            "method": self.method.name(),
            "durable": self.durable,
            "calls": self.calls.calls,
            "polls": self.calls.polls,
            "ops": ops(&self.calls),
            "seconds": Spread::json(seconds.median),
            "seconds_min": Spread::json(seconds.min),
            "seconds_max": Spread::json(seconds.max),
            "client_cpu_seconds": Spread::json(client.median),
            "runs": self.seconds.len(),
        });
        if let Some(map) = row.as_object_mut()
            && !self.server_cpu.is_empty()
        {
            let server = Spread::of(self.server_cpu.iter().copied());
            map.insert("server_cpu_seconds".into(), Spread::json(server.median));
        }
        row
    }

    fn cells(&self) -> Vec<String> {
        let seconds = Spread::of_times(self.seconds.iter().copied());
        let client = Spread::of_times(self.client_cpu.iter().copied());
        let server = match self.server_cpu.is_empty() {
            true => "-".into(),
            false => format!("{:.2}", Spread::of(self.server_cpu.iter().copied()).median),
        };
        vec![
            bytes(self.size),
            self.method.name().into(),
            if self.durable { "yes" } else { "no" }.into(),
            self.calls.calls.to_string(),
            self.calls.polls.to_string(),
            format!("{:.3}", seconds.median),
            format!("{:.3}-{:.3}", seconds.min, seconds.max),
            format!("{}/s", bytes((self.size as f64 / seconds.median.max(1e-6)) as u64)),
            format!("{:.2}", client.median),
            server,
        ]
    }
}

/// Where copies are made by a method.
struct Site {
    endpoint: Arc<dyn Endpoint>,
    /// For COPY and read/write, which must take their own space.
    own_space: PathBuf,
    /// For CLONE.
    shared: PathBuf,
    /// The same directory on this host, if it is here.
    local: Option<PathBuf>,
    /// What rows it is for.
    durable: bool,
    /// The server, if it is ours.
    server: Option<Server>,
}

impl Site {
    fn dir(&self, method: Method) -> &Path {
        if method == Method::Clone { &self.shared } else { &self.own_space }
    }
}

/// Runs the command.
pub async fn run(args: BenchCopy) -> Outcome {
    Places::with(async |places| match &args.server {
        Some(url) => against(&args, url, places).await,
        None => with_child(&args, places).await,
    })
    .await
}

/// Starts servers in processes of their own: one that makes copies durable, one that leaves that to clients.
async fn with_child(args: &BenchCopy, places: &mut Places) -> Outcome {
    let dir = Scratch::in_or_temp(args.dir.as_deref(), "dhow-bench")?;
    on_children(args, places, &dir).await
}

async fn on_children(args: &BenchCopy, places: &mut Places, dir: &Path) -> Outcome {
    let files = dir.join("files");
    std::fs::create_dir(&files)?;
    let mut sites = Vec::new();
    for &durable in args.durable.rows() {
        let commit = if durable { "auto" } else { "never" };
        let server = server_on(dir, &files, commit).await?;
        let place: Place = places.url(format!("nfs://{}/", server.addr).as_ref()).await?;
        sites.push(Site {
            endpoint: place.endpoint,
            own_space: "/own".into(),
            shared: "/shared".into(),
            local: Some(files.clone()),
            durable,
            server: Some(server),
        });
    }
    let done = measure(args, &sites, &data::filesystem(&files)).await;
    for site in sites {
        if let Some(server) = site.server {
            server.stop().await;
        }
    }
    done
}

/// A server that shows `files` twice: where copies share blocks if they can, and where they never do. Its configuration
/// is put into `dir`.
pub async fn server_on(dir: &Path, files: &Path, commit: &str) -> Outcome<Server> {
    let Some(shown) = files.to_str() else {
        return Err(Failure::usage(format!("{}: choose a directory whose path is UTF-8", files.display())));
    };
    let quoted = toml::Value::String(shown.to_owned());
    let text = format!(
        "listen = \"127.0.0.1:0\"\nlog = \"error\"\ncopy.commit = \"{commit}\"\n\
         [[export]]\nname = \"/shared\"\ndir = {quoted}\nsquash = \"none\"\n\
         [[export]]\nname = \"/own\"\ndir = {quoted}\nsquash = \"none\"\ncopy.reflink = \"never\"\n"
    );
    let config = dir.join(format!("{commit}.toml"));
    std::fs::write(&config, text)?;
    Server::start(["serve".as_ref(), "--config".as_ref(), config.as_os_str()]).await
}

/// Measures a running server, in a directory of its own that is removed afterwards.
async fn against(args: &BenchCopy, url: &OsString, places: &mut Places) -> Outcome {
    let place = places.url(url).await?;
    let dir = place.path.join(format!("dhow-bench-{}", std::process::id()));
    place.endpoint.make_dir(&dir, 0o700).await?;
    let sites: Vec<Site> = args
        .durable
        .rows()
        .iter()
        .map(|&durable| Site {
            endpoint: place.endpoint.clone(),
            own_space: dir.clone(),
            shared: dir.clone(),
            local: None,
            durable,
            server: None,
        })
        .collect();
    let done = measure(args, &sites, "the server's").await;
    let failed = |e: &dhow_copy::Error| warn(e);
    dhow_copy::remove_tree(&*place.endpoint, &dir, &dhow_copy::Cancel::never(), &failed).await;
    done
}

async fn measure(args: &BenchCopy, sites: &[Site], filesystem: &str) -> Outcome {
    let sizes = if args.sizes.is_empty() { vec![DEFAULT_SIZE] } else { args.sizes.clone() };
    let mut rows = Vec::new();
    let mut clones = true;
    for &size in &sizes {
        let Some(first) = sites.first() else { break };
        make_source(first, size).await?;
        for site in sites {
            rows.extend(turns(args, site, size, &mut clones).await?);
        }
        first.endpoint.remove(&first.own_space.join("source")).await?;
    }
    if !clones {
        warn("no rows for clone: the filesystem cannot share blocks");
    }
    if args.json {
        let rows: Vec<Value> = rows.iter().map(Row::json).collect();
        say_json(&json!({"rows": rows, "filesystem": filesystem}));
        return Ok(());
    }
    let head =
        ["size", "method", "durable", "calls", "polls", "seconds", "min-max", "rate", "client cpu", "server cpu"];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    lines.extend(rows.iter().map(Row::cells));
    say(table(&lines));
    say(format!("medians of {} in turns; filesystem: {filesystem}", count(args.runs.into(), "run", "runs")));
    Ok(())
}

async fn make_source(site: &Site, size: u64) -> Outcome {
    if let Some(local) = &site.local {
        let path = local.join("source");
        return tokio::task::spawn_blocking(move || data::make(&path, size, false))
            .await
            .map_err(Failure::failed)?
            .map_err(|e| Failure::failed(format!("cannot make the file to copy: {e}")));
    }
    let dir = Scratch::in_or_temp(None, "dhow-bench")?;
    let path = dir.join("source");
    let made = {
        let path = path.clone();
        tokio::task::spawn_blocking(move || data::make(&path, size, false)).await.map_err(Failure::failed)?
    };
    let sent = match made {
        Ok(()) => {
            let here: Arc<dyn Endpoint> = Arc::new(dhow_copy::Local::new());
            let to = site.own_space.join("source");
            let (from, to) = ((&here, path.as_path()), (&site.endpoint, to.as_path()));
            dhow_copy::copy_file(from, to, Known::default(), &Options::default(), &Progress::none()).await.map(drop)
        }
        Err(e) => Err(dhow_copy::Error::io(&e, path.display().to_string())),
    };
    sent.map_err(Failure::from)
}

/// Each method once in turn, as often as asked for.
async fn turns(args: &BenchCopy, site: &Site, size: u64, clones: &mut bool) -> Outcome<Vec<Row>> {
    let methods = [Method::ReadWrite, Method::Copy, Method::Clone];
    let new = |method| Row {
        size,
        method,
        durable: site.durable,
        calls: Calls::default(),
        seconds: Vec::new(),
        client_cpu: Vec::new(),
        server_cpu: Vec::new(),
    };
    let mut rows = methods.map(new);
    for run in 0..args.runs {
        for row in &mut rows {
            if row.method == Method::Clone && !*clones {
                continue;
            }
            match once(site, row, run == 0).await {
                Ok(()) => {}
                Err(e) if e.kind == ErrorKind::Unsupported && row.method == Method::Clone => *clones = false,
                Err(e) => return Err(e.into()),
            }
        }
    }
    Ok(rows.into_iter().filter(|r| !r.seconds.is_empty()).collect())
}

async fn once(site: &Site, row: &mut Row, verify: bool) -> dhow_copy::Result<()> {
    let dir = site.dir(row.method);
    let (from, to) = (dir.join("source"), dir.join("copy"));
    let options = Options {
        method: Choice::Only(row.method),
        sync: if site.durable { Sync::Yes } else { Sync::No },
        ..Options::default()
    };
    let server = site.server.as_ref();
    let server_before = server.map(Server::cpu_seconds);
    let client_before = dhow_sys::proc::process_cpu_time().total();
    let here = (&site.endpoint, from.as_path());
    let there = (&site.endpoint, to.as_path());
    let report = dhow_copy::copy_file(here, there, Known::default(), &options, &Progress::none()).await?;
    row.client_cpu.push(dhow_sys::proc::process_cpu_time().total().saturating_sub(client_before));
    if let (Some(server), Some(before)) = (server, server_before) {
        row.server_cpu.push(server.cpu_seconds() - before);
    }
    row.seconds.push(report.elapsed);
    row.durable = report.durable;
    // The worst run counts.
    if report.calls.calls + report.calls.polls >= row.calls.calls + row.calls.polls {
        row.calls = report.calls;
    }
    if verify && !is_copy(site, &from, &to).await? {
        let words = format!("the copy by {} differs from its source", row.method);
        return Err(dhow_copy::Error::with(ErrorKind::Io, site.endpoint.shown(&to), words));
    }
    site.endpoint.remove(&to).await
}

async fn is_copy(site: &Site, from: &Path, to: &Path) -> dhow_copy::Result<bool> {
    if let Some(local) = &site.local {
        let (a, b) = (local.join("source"), local.join("copy"));
        let shown = b.display().to_string();
        return match tokio::task::spawn_blocking(move || data::same(&a, &b)).await {
            Ok(same) => same.map_err(|e| dhow_copy::Error::io(&e, shown)),
            Err(e) => Err(dhow_copy::Error::with(ErrorKind::Io, shown, e.to_string())),
        };
    }
    let a = site.endpoint.open(from).await?;
    let b = site.endpoint.open(to).await?;
    let same = data::same_sources(&*a, &*b).await;
    a.close().await?;
    b.close().await?;
    same
}
