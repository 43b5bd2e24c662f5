//! Without a link: clients that work in one directory against clients with a directory each, and the local filesystem
//! under both, which has a lock of its own on each directory.

use super::load::{nothing_done, one};
use super::{Op, site};
use crate::bench::child::Server;
use crate::bench::{Spread, data};
use crate::cli::BenchCreate;
use crate::exit::{Failure, Outcome};
use crate::output::{say, say_json, table};
use crate::words::count;
use bytes::Bytes;
use dhow_client::Client;
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Clients of the server, and threads of the local filesystem.
const CLIENTS: u32 = 8;
/// Calls that a client has in flight.
const DEPTH: u32 = 8;
/// Before anything counts.
const WARM: Duration = Duration::from_millis(500);

/// Who creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Via {
    /// Clients of our server.
    Direct,
    /// Threads on the filesystem itself.
    Local,
    /// As `Local`, with fsync of file and directory after each.
    LocalSynced,
}

struct Row {
    via: Via,
    dirs: u32,
    rates: Vec<f64>,
}

impl Row {
    fn rate(&self) -> Spread {
        Spread::of(self.rates.iter().copied())
    }

    fn synced(&self, args: &BenchCreate) -> bool {
        match self.via {
            Via::Direct => args.metadata_sync,
            Via::Local => false,
            Via::LocalSynced => true,
        }
    }

    fn json(&self, args: &BenchCreate, filesystem: &str) -> Value {
        let rate = self.rate();
        json!({
            "via": if self.via == Via::Direct { "direct" } else { "local" },
            "op": "create",
            "rtt_ms": 0,
            "clients": CLIENTS,
            "writers": if self.via == Via::Direct { CLIENTS * DEPTH } else { CLIENTS },
            "directories": self.dirs,
            "creates_per_second": Spread::json(rate.median),
            "creates_per_second_min": Spread::json(rate.min),
            "creates_per_second_max": Spread::json(rate.max),
            "runs": self.rates.len(),
            "metadata_sync": self.synced(args),
            "filesystem": filesystem,
        })
    }
}

pub fn run(args: &BenchCreate, dir: &Path) -> Outcome {
    let files = dir.join("files");
    std::fs::create_dir(&files)?;
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads.max(2))
        .enable_all()
        .build()
        .map_err(|e| Failure::failed(format!("cannot start threads: {e}")))?;
    let vias = [Via::Direct, Via::Local, Via::LocalSynced];
    let mut rows: Vec<Row> =
        vias.iter().flat_map(|&via| [1, CLIENTS].map(|dirs| Row { via, dirs, rates: Vec::new() })).collect();
    let server = runtime.block_on(server(args, dir, &files))?;
    let mut done = Ok(());
    'runs: for run in 0..args.runs {
        // Each goes before the other as often as after it.
        let order: Vec<usize> = if run % 2 == 0 { (0..rows.len()).collect() } else { (0..rows.len()).rev().collect() };
        for at in order {
            let Some(row) = rows.get_mut(at) else { continue };
            let name = format!("{:?}-{}-{run}", row.via, row.dirs);
            let rate = match row.via {
                Via::Direct => runtime.block_on(clients(&server, &name, row.dirs, args.seconds)),
                via => threads_on(&files.join(&name), row.dirs, via == Via::LocalSynced, args.seconds),
            };
            let cleaned = std::fs::remove_dir_all(files.join(&name));
            match rate {
                Ok(rate) if rate > 0.0 => row.rates.push(rate),
                Ok(_) => {
                    done = Err(nothing_done());
                    break 'runs;
                }
                Err(e) => {
                    done = Err(e);
                    break 'runs;
                }
            }
            cleaned?;
        }
    }
    runtime.block_on(server.stop());
    done?;
    report(args, &rows, &data::filesystem(&files));
    Ok(())
}

fn report(args: &BenchCreate, rows: &[Row], filesystem: &str) {
    let ratio = |via: Via| {
        let of = |dirs| rows.iter().find(|r| r.via == via && r.dirs == dirs).map_or(0.0, |r| r.rate().median);
        of(1) / of(CLIENTS).max(1e-9)
    };
    let (direct, local, synced) = (ratio(Via::Direct), ratio(Via::Local), ratio(Via::LocalSynced));
    if args.json {
        say_json(&json!({
            "rows": rows.iter().map(|r| r.json(args, filesystem)).collect::<Vec<_>>(),
            "one_over_many": Spread::json(direct),
            "one_over_many_local": Spread::json(local),
            "one_over_many_local_synced": Spread::json(synced),
        }));
        return;
    }
    let head = ["creates by", "directories", "per second", "min-max", "synced"];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        let rate = row.rate();
        lines.push(vec![
            match row.via {
                Via::Direct => format!("{CLIENTS} clients of dhow, {DEPTH} calls each"),
                Via::Local | Via::LocalSynced => format!("{CLIENTS} threads, directly"),
            },
            row.dirs.to_string(),
            format!("{:.0}", rate.median),
            format!("{:.0}-{:.0}", rate.min, rate.max),
            if row.synced(args) { "yes" } else { "no" }.into(),
        ]);
    }
    say(table(&lines));
    say(format!(
        "one directory / {CLIENTS} directories: dhow {direct:.2}, filesystem {local:.2}, with fsync {synced:.2}; \
         medians of {} in turns; filesystem: {filesystem}",
        count(args.runs.into(), "run", "runs")
    ));
}

async fn server(args: &BenchCreate, dir: &Path, files: &Path) -> Outcome<Server> {
    let Some(shown) = files.to_str() else {
        return Err(Failure::usage(format!("{}: choose a directory whose path is UTF-8", files.display())));
    };
    let quoted = toml::Value::String(shown.to_owned());
    let mut text = "listen = \"127.0.0.1:0\"\nlog = \"error\"\n".to_owned();
    if let Some(slots) = args.slots {
        text.push_str(&format!("limits.slots_per_session = {slots}\nlimits.slots_min = {}\n", slots.min(16)));
    }
    text.push_str(&format!(
        "[[export]]\nname = \"/\"\ndir = {quoted}\nsquash = \"none\"\nmetadata_sync = {}\n",
        args.metadata_sync
    ));
    let config = dir.join("serve.toml");
    std::fs::write(&config, text)?;
    Server::start(["serve".as_ref(), "--config".as_ref(), config.as_os_str()]).await
}

/// Creates by clients of the server, per second.
async fn clients(server: &Server, name: &str, dirs: u32, time: Duration) -> Outcome<f64> {
    let mut clients: Vec<Client> = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(site::plain(server.addr).await?);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for (index, client) in (0_u32..).zip(&clients) {
        let fs = client.fs();
        if index == 0 {
            fs.mkdir(&name.to_owned(), 0o755).await.map_err(Failure::failed)?;
        }
        let path = format!("{name}/d{}", index % dirs);
        let dir = match fs.mkdir(&path, 0o755).await {
            Ok(dir) => dir.fh,
            Err(e) if e.is(dhow_client::v4::Status::EXIST) => fs.stat(&path).await.map_err(Failure::failed)?.fh,
            Err(e) => return Err(Failure::failed(e)),
        };
        for depth in 0..DEPTH {
            let (fs, dir, stop) = (fs.clone(), dir.clone(), stop.clone());
            tasks.spawn(async move {
                let mut ends = Vec::new();
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) {
                    one(&fs, &dir, Op::Create, index * DEPTH + depth, n, &Bytes::new()).await?;
                    ends.push(Instant::now());
                    n += 1;
                }
                Ok::<_, dhow_client::Error>(ends)
            });
        }
    }
    let begin = Instant::now() + WARM;
    tokio::time::sleep(WARM + time).await;
    stop.store(true, Ordering::Relaxed);
    let mut count = 0;
    while let Some(done) = tasks.join_next().await {
        let ends = done.map_err(Failure::failed)?.map_err(Failure::failed)?;
        count += ends.iter().filter(|at| **at > begin && **at <= begin + time).count();
    }
    for client in &clients {
        client.close().await.map_err(Failure::failed)?;
    }
    Ok(count as f64 / time.as_secs_f64())
}

/// Creates by threads of this process, per second.
fn threads_on(top: &Path, dirs: u32, synced: bool, time: Duration) -> Outcome<f64> {
    for n in 0..dirs {
        std::fs::create_dir_all(top.join(format!("d{n}")))?;
    }
    let begin = Instant::now() + WARM;
    let end = begin + time;
    let work = |index: u32| -> std::io::Result<u64> {
        let dir: PathBuf = top.join(format!("d{}", index % dirs));
        let open_dir = File::open(&dir)?;
        let (mut n, mut count) = (0_u64, 0_u64);
        loop {
            let file = OpenOptions::new().write(true).create_new(true).open(dir.join(format!("c{index}-{n}")))?;
            if synced {
                file.sync_all()?;
                open_dir.sync_all()?;
            }
            drop(file);
            n += 1;
            let now = Instant::now();
            if now > end {
                return Ok(count);
            }
            count += u64::from(now > begin);
        }
    };
    let work = &work;
    let counts: std::io::Result<Vec<u64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CLIENTS).map(|index| scope.spawn(move || work(index))).collect();
        let joined = threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(std::io::Error::other("a panic"))));
        joined.collect()
    });
    Ok(counts?.iter().sum::<u64>() as f64 / time.as_secs_f64())
}
