//! `dhow bench inter`: copies between two servers, by the servers and through the client, over emulated links.

use super::{Spread, data};
use crate::cli::BenchInter;
use crate::config::Config;
use crate::exit::{Failure, Outcome, warn};
use crate::export::Export;
use crate::output::{say, say_json, table, temporary_dir};
use crate::serve::StateDir;
use crate::settings::Settings;
use crate::words::bytes;
use dhow_client::NfsUrl;
use dhow_copy::{Choice, Endpoint, Error, ErrorKind, FileReport, Known, Method, NfsEndpoint, Options, Progress, Sync};
use dhow_link::{Host, Net, Shape, Topology, calibrate};
use dhow_server::{Running, Squash};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::runtime::Runtime;

const MB: u64 = 1_000_000;
/// Sizes of the published tables.
const SIZES: [u64; 9] = [4 * MB, 8 * MB, 16 * MB, 32 * MB, 64 * MB, 128 * MB, 256 * MB, 512 * MB, 1000 * MB];
/// How often a new destination makes its first copy of each size.
const FIRSTS: u16 = 3;
/// By what rates are multiplied when the emulator does not carry them here, and how often.
const LOWER: f64 = 0.8;
const LOWERINGS: u32 = 12;

/// What the links are set to, bits per second and round trips.
#[derive(Clone, Copy, Debug)]
struct Links {
    servers: u64,
    client: u64,
    rtt: Duration,
    client_rtt: Duration,
}

impl Links {
    fn of(args: &BenchInter) -> Self {
        let client = args.client_link.unwrap_or(args.link);
        Self { servers: args.link, client, rtt: args.rtt, client_rtt: args.client_rtt.unwrap_or(args.rtt) }
    }

    /// Everybody has an access link to one router. Half of a round trip between two hosts is the delay of two links.
    fn start(&self) -> Outcome<Net> {
        let server = self.rtt / 4;
        let client = (self.client_rtt / 2).saturating_sub(server);
        let shape = |rate, delay| Shape::rate(rate).delay(delay);
        let hosts = [
            ("a", shape(self.servers, server)),
            ("b", shape(self.servers, server)),
            ("client", shape(self.client, client)),
        ];
        Topology::new().star("router", hosts).start().map_err(Failure::failed)
    }

    /// Bits per second of the narrower one.
    fn narrower(&self) -> u64 {
        self.servers.min(self.client)
    }
}

/// A server in a host of the emulated network, with threads of its own.
struct Site {
    running: Running,
    /// Held for as long as the server runs.
    _state: StateDir,
    runtime: Runtime,
    addr: SocketAddr,
}

fn runtime() -> Outcome<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .map_err(|e| Failure::failed(format!("cannot start threads: {e}")))
}

impl Site {
    fn start(host: &Host<'_>, dir: &Path) -> Outcome<Self> {
        let networks = "10.77.0.0/16".parse().map_err(Failure::failed)?;
        let mut server = Settings::default();
        server.copy.inter.enabled = true;
        server.copy.inter.sources = vec![networks];
        server.copy.inter.destinations = vec![networks];
        let config = Config {
            server,
            listen: vec![SocketAddr::from((host.addr(), 0))],
            exports: vec![Export { squash: Squash::None, ..Export::new("/", dir) }],
            ..Config::default()
        };
        host.run(|| {
            let runtime = runtime()?;
            let (running, state) = runtime.block_on(crate::serve::start(config))?;
            let Some(addr) = running.addresses().first().copied() else {
                return Err(Failure::failed("the server listens nowhere"));
            };
            Ok(Self { running, _state: state, runtime, addr })
        })
        .map_err(Failure::failed)?
    }

    /// Calls made to set sessions with sources up.
    fn setup_calls(&self) -> u64 {
        self.running.shared().metrics.inter.source_setup_calls.load(Relaxed)
    }

    fn stop(self) {
        self.runtime.block_on(self.running.shutdown());
        self.runtime.shutdown_timeout(Duration::from_secs(5));
    }
}

/// The client's host, threads and endpoints.
struct Client<'n> {
    host: Host<'n>,
    runtime: Runtime,
    from: Arc<NfsEndpoint>,
    to: Arc<NfsEndpoint>,
}

impl<'n> Client<'n> {
    fn start(net: &'n Net, a: SocketAddr, b: SocketAddr) -> Outcome<Self> {
        let host = net.host("client").map_err(Failure::failed)?;
        let runtime = host.run(runtime).map_err(Failure::failed)??;
        let connect = |addr: SocketAddr| -> Outcome<Arc<NfsEndpoint>> {
            let url: NfsUrl = format!("nfs://{addr}/").parse().map_err(Failure::failed)?;
            let connected = host.run(|| runtime.block_on(NfsEndpoint::connect(&url))).map_err(Failure::failed)?;
            Ok(Arc::new(connected?))
        };
        let (from, to) = (connect(a)?, connect(b)?);
        Ok(Self { host, runtime, from, to })
    }

    fn copy(&self, method: Method) -> Outcome<FileReport> {
        let from: Arc<dyn Endpoint> = self.from.clone();
        let to: Arc<dyn Endpoint> = self.to.clone();
        let work = async {
            let meta = from.stat(Path::new("/x")).await?;
            let known = Known { source: Some(&meta), replaced: None };
            let options = Options { method: Choice::Only(method), sync: Sync::Yes, ..Options::default() };
            let ends = ((&from, Path::new("/x")), (&to, Path::new("/y")));
            dhow_copy::copy_file(ends.0, ends.1, known, &options, &Progress::none()).await
        };
        let done = self.host.run(|| self.runtime.block_on(work)).map_err(Failure::failed)?;
        Ok(done?)
    }

    fn stop(self) {
        // The server finds out by the lease, if it is not told.
        let _ = self.host.run(|| {
            self.runtime.block_on(async {
                self.from.close().await;
                self.to.close().await;
            });
        });
        self.runtime.shutdown_timeout(Duration::from_secs(5));
    }
}

/// One method at one size.
#[derive(Debug)]
struct Row {
    size: u64,
    method: Method,
    first: bool,
    seconds: Vec<f64>,
    setup_calls: u64,
    round_trips: u64,
}

impl Row {
    fn new(size: u64, method: Method, first: bool) -> Self {
        Self { size, method, first, seconds: Vec::new(), setup_calls: 0, round_trips: 0 }
    }

    fn mean(&self) -> f64 {
        self.seconds.iter().sum::<f64>() / self.seconds.len().max(1) as f64
    }

    /// Of the sample.
    fn stddev(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.seconds.iter().map(|s| (s - mean).powi(2)).sum();
        (squares / self.seconds.len().saturating_sub(1).max(1) as f64).sqrt()
    }

    fn add(&mut self, report: &FileReport, setup_calls: u64) {
        self.seconds.push(report.elapsed.as_secs_f64());
        self.setup_calls = self.setup_calls.max(setup_calls);
        // Both OPENs are under way at once, and both CLOSEs; everything else waits for what was before it.
        let beside = |op: &str| report.calls.ops.get(op).copied().unwrap_or(0) / 2;
        let trips = report.calls.calls.saturating_sub(beside("OPEN") + beside("CLOSE"));
        self.round_trips = self.round_trips.max(trips);
    }

    /// Share of the narrower link that the data took.
    fn link_use(&self, links: &Links) -> f64 {
        self.size as f64 * 8.0 / self.mean().max(1e-9) / links.narrower() as f64
    }

    fn json(&self, links: &Links, baseline: f64) -> Value {
        let inter = self.method == Method::Inter;
        json!({
            "size": self.size,
            "method": self.method.name(),
            "first": self.first,
            "mean": Spread::json(self.mean()),
            "stddev": Spread::json(self.stddev()),
            "runs": self.seconds.len(),
            "setup_calls": if inter { json!(self.setup_calls) } else { Value::Null },
            "client_round_trips": if inter { json!(self.round_trips) } else { Value::Null },
            "baseline_link_use": if inter { Value::Null } else { Spread::json(self.link_use(links)) },
            "improvement_percent": if inter { Spread::json(self.improvement(baseline)) } else { Value::Null },
        })
    }

    fn improvement(&self, baseline: f64) -> f64 {
        (baseline - self.mean()) / baseline.max(1e-9) * 100.0
    }

    fn cells(&self, links: &Links, baseline: f64) -> Vec<String> {
        let inter = self.method == Method::Inter;
        let only = |when: bool, text: String| if when { text } else { "-".to_owned() };
        vec![
            bytes(self.size),
            self.method.name().into(),
            if self.first { "first" } else { "later" }.into(),
            format!("{:.3}", self.mean()),
            format!("{:.3}", self.stddev()),
            only(inter, self.setup_calls.to_string()),
            only(inter, self.round_trips.to_string()),
            only(!inter, format!("{:.0} %", self.link_use(links) * 100.0)),
            only(inter, format!("{:+.0} %", self.improvement(baseline))),
        ]
    }
}

/// Runs the command.
pub async fn run(args: BenchInter) -> Outcome {
    // It runs threads and runtimes of its own, in other network namespaces.
    tokio::task::spawn_blocking(move || on_links(&args)).await.map_err(Failure::failed)?
}

fn on_links(args: &BenchInter) -> Outcome {
    let (links, net, carried) = calibrated(args)?;
    let shm = Path::new("/dev/shm");
    let base = args.dir.clone().unwrap_or_else(|| if shm.is_dir() { shm.into() } else { std::env::temp_dir() });
    let dir = temporary_dir(&base, "dhow-bench").map_err(Failure::failed)?;
    let done = measure(args, &links, &net, &dir);
    if let Err(e) = std::fs::remove_dir_all(&dir) {
        warn(format!("{}: {e}", dir.display()));
    }
    print(args, &links, carried, &done?);
    Ok(())
}

/// The network, with rates that the emulator carries: lowered until it does. Also the share that it carried.
fn calibrated(args: &BenchInter) -> Outcome<(Links, Net, Option<f64>)> {
    let mut links = Links::of(args);
    for _ in 0..LOWERINGS {
        let net = links.start()?;
        if args.no_check {
            return Ok((links, net, None));
        }
        let found = calibrate(&net, calibrate::Options::default()).map_err(Failure::failed)?;
        let worst = found.worst().unwrap_or(1.0);
        if found.is_enough() {
            return Ok((links, net, Some(worst)));
        }
        drop(net);
        let rate = format!("{:.0} Mbit/s", links.servers as f64 / 1e6);
        let lower = |rate: u64| ((rate as f64 * LOWER) as u64).max(dhow_link::MIN_RATE);
        (links.servers, links.client) = (lower(links.servers), lower(links.client));
        warn(format!("the emulator carries {:.0} % of {rate} here; the rate is lowered", worst * 100.0));
    }
    Err(Failure::failed("this machine is too busy: the emulator does not carry even a small part of these rates"))
}

fn measure(args: &BenchInter, links: &Links, net: &Net, dir: &Path) -> Outcome<Vec<Row>> {
    let (a_dir, b_dir) = (dir.join("a"), dir.join("b"));
    std::fs::create_dir(&a_dir)?;
    std::fs::create_dir(&b_dir)?;
    let host = |name: &str| net.host(name).map_err(Failure::failed);
    let a = Site::start(&host("a")?, &a_dir)?;
    let mut rows = Vec::new();
    let sizes: &[u64] = if args.sizes.is_empty() { &SIZES } else { &args.sizes };
    for &size in sizes {
        data::make(&a_dir.join("x"), size, false)?;
        rows.extend(one_size(args, net, &a, &host("b")?, size, (&a_dir.join("x"), &b_dir.join("y")))?);
        if !args.json
            && let Some(row) = rows.last()
        {
            let rate = Spread::of(row.seconds.iter().map(|s| size as f64 * 8.0 / s / 1e6));
            say(format!(
                "{}: {} Mbit/s through the client of {}",
                bytes(size),
                rate.median as u64,
                links.narrower() / MB
            ));
        }
    }
    a.stop();
    Ok(rows)
}

/// First copies to servers that are new, then later ones in turns with those through the client.
fn one_size(
    args: &BenchInter,
    net: &Net,
    a: &Site,
    b_host: &Host<'_>,
    size: u64,
    (x, y): (&Path, &PathBuf),
) -> Outcome<[Row; 3]> {
    let b_dir = y.parent().unwrap_or(Path::new("/"));
    let mut first = Row::new(size, Method::Inter, true);
    let mut later = Row::new(size, Method::Inter, false);
    let mut through = Row::new(size, Method::ReadWrite, false);
    let firsts = args.runs.min(FIRSTS);
    for n in 1..=firsts {
        let b = Site::start(b_host, b_dir)?;
        let client = Client::start(net, a.addr, b.addr)?;
        let once = |row: &mut Row| -> Outcome {
            let before = b.setup_calls();
            let report = client.copy(row.method)?;
            row.add(&report, b.setup_calls() - before);
            if row.seconds.len() == 1 && !data::same(x, y)? {
                let words = format!("the copy by {} differs from its source", row.method);
                return Err(Error::with(ErrorKind::Io, y.display().to_string(), words).into());
            }
            Ok(std::fs::remove_file(y)?)
        };
        once(&mut first)?;
        if n == firsts {
            for run in 0..args.runs {
                // Each goes before the other as often as after it.
                let turns = if run % 2 == 0 { [&mut later, &mut through] } else { [&mut through, &mut later] };
                turns.into_iter().try_for_each(once)?;
            }
        }
        client.stop();
        b.stop();
    }
    Ok([first, later, through])
}

fn print(args: &BenchInter, links: &Links, carried: Option<f64>, rows: &[Row]) {
    let baseline = |size: u64| {
        let row = rows.iter().find(|r| r.size == size && r.method == Method::ReadWrite);
        row.map_or(0.0, Row::mean)
    };
    if args.json {
        say_json(&json!({
            "link": links.servers,
            "client_link": links.client,
            "rtt": Spread::json(links.rtt.as_secs_f64()),
            "client_rtt": Spread::json(links.client_rtt.as_secs_f64()),
            "carried": carried.map(Spread::json),
            "rows": rows.iter().map(|r| r.json(links, baseline(r.size))).collect::<Vec<_>>(),
        }));
        return;
    }
    let head = ["size", "method", "copy", "mean s", "stddev", "set-up calls", "round trips", "link use", "gain"];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    lines.extend(rows.iter().map(|r| r.cells(links, baseline(r.size))));
    say(table(&lines));
    let checked = carried.map_or("not checked".to_owned(), |c| format!("{:.0} % carried, all links busy", c * 100.0));
    say(format!(
        "links of the servers {} Mbit/s, round trip {} ms; of the client {} Mbit/s, {} ms; {checked}",
        links.servers / MB,
        links.rtt.as_secs_f64() * 1e3,
        links.client / MB,
        links.client_rtt.as_secs_f64() * 1e3,
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_and_deviations() {
        let mut row = Row::new(100 * MB, Method::Inter, false);
        row.seconds = vec![1.0, 2.0, 3.0];
        assert_eq!((row.mean(), row.stddev()), (2.0, 1.0));
        assert_eq!(row.improvement(4.0), 50.0);
        let links = Links { servers: 1000 * MB, client: 800 * MB, rtt: Duration::ZERO, client_rtt: Duration::ZERO };
        assert_eq!(row.link_use(&links), 0.5);
        row.seconds.truncate(1);
        assert_eq!(row.stddev(), 0.0);
    }
}
