//! `dhow bench cpu`: what a byte costs the server's processor, against the bare loops of `bare`.

use super::child::Server;
use super::copy::server_on;
use super::{Spread, data};
use crate::cli::BenchCpu;
use crate::exit::{Failure, Outcome};
use crate::output::{say, say_json, table};
use crate::place::Places;
use crate::scratch::Scratch;
use crate::words::{bytes, count};
use bytes::Bytes;
use dhow_copy::Endpoint;
use futures_util::stream::{FuturesUnordered, StreamExt};
use serde_json::json;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PIECE: u64 = 1 << 20;
/// Bytes of the file that is read, or written, again and again: it stays in memory.
const SPAN: u64 = 256 << 20;
/// Requests in flight.
const DEPTH: usize = 16;

/// One way to move bytes, and what it took.
struct Row {
    name: &'static str,
    bare: bool,
    cpu: Vec<f64>,
    seconds: Vec<Duration>,
}

/// Runs the command.
pub async fn run(args: BenchCpu) -> Outcome {
    let dir = Scratch::in_or_memory(args.dir.as_deref(), "dhow-bench")?;
    measure(&args, &dir).await
}

async fn measure(args: &BenchCpu, dir: &Path) -> Outcome {
    let files = dir.join("files");
    std::fs::create_dir(&files)?;
    let path = files.join("source");
    tokio::task::spawn_blocking(move || data::make(&path, SPAN, false)).await.map_err(Failure::failed)??;
    let total = args.size.next_multiple_of(PIECE);
    let server = server_on(dir, &files, "auto").await?;
    let sender = bare(files.join("source"), false, total).await?;
    let receiver = bare(files.join("bare"), true, total).await?;
    let url = format!("nfs://{}/", server.addr);
    let rows = Places::with(async |places| {
        let endpoint = places.url(url.as_ref()).await?.endpoint;
        turns(args, &*endpoint, total, &server, &sender, &receiver).await
    });
    let rows = rows.await;
    let memory = server.resident();
    server.stop().await;
    sender.stop().await;
    receiver.stop().await;
    report(args, &rows?, total, memory, &data::filesystem(&files));
    Ok(())
}

async fn turns(
    args: &BenchCpu,
    endpoint: &dyn Endpoint,
    total: u64,
    server: &Server,
    sender: &Server,
    receiver: &Server,
) -> Outcome<[Row; 4]> {
    let new = |name, bare| Row { name, bare, cpu: Vec::new(), seconds: Vec::new() };
    let mut rows = [new("read", false), new("read", true), new("write", false), new("write", true)];
    for _ in 0..args.runs {
        for row in &mut rows {
            let measured = match (row.name, row.bare) {
                (_, false) => server,
                ("read", true) => sender,
                _ => receiver,
            };
            let before = measured.cpu_seconds();
            let start = Instant::now();
            match (row.name, row.bare) {
                ("read", false) => read(endpoint, total).await?,
                ("read", true) => drain(sender, total).await?,
                (_, false) => write(endpoint, total).await?,
                (_, true) => pour(receiver, total).await?,
            }
            row.seconds.push(start.elapsed());
            row.cpu.push(measured.cpu_seconds() - before);
        }
    }
    Ok(rows)
}

fn report(args: &BenchCpu, rows: &[Row], total: u64, memory: u64, filesystem: &str) {
    let per_byte = |row: &Row| Spread::of(row.cpu.iter().map(|c| c * 1e9 / total as f64));
    let ratio = |name: &str| {
        let of = |bare| rows.iter().find(|r| r.name == name && r.bare == bare).map_or(0.0, |r| per_byte(r).median);
        of(false) / of(true).max(1e-9)
    };
    if args.json {
        let list: Vec<_> = rows
            .iter()
            .map(|row| {
                let (cpu, seconds) = (per_byte(row), Spread::of_times(row.seconds.iter().copied()));
                json!({
                    "direction": row.name, "server": if row.bare { "bare" } else { "dhow" }, "bytes": total,
                    "cpu_ns_per_byte": Spread::json(cpu.median), "cpu_ns_per_byte_min": Spread::json(cpu.min),
                    "cpu_ns_per_byte_max": Spread::json(cpu.max), "seconds": Spread::json(seconds.median),
                })
            })
            .collect();
        say_json(&json!({
            "rows": list, "read_ratio": Spread::json(ratio("read")), "write_ratio": Spread::json(ratio("write")),
            "server_resident_bytes": memory, "filesystem": filesystem,
        }));
        return;
    }
    let head = ["direction", "server", "cpu ns/byte", "min-max", "seconds", "rate"];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        let (cpu, seconds) = (per_byte(row), Spread::of_times(row.seconds.iter().copied()));
        lines.push(vec![
            row.name.to_owned(),
            if row.bare { "bare loop" } else { "dhow" }.to_owned(),
            format!("{:.3}", cpu.median),
            format!("{:.3}-{:.3}", cpu.min, cpu.max),
            format!("{:.3}", seconds.median),
            format!("{}/s", bytes((total as f64 / seconds.median.max(1e-6)) as u64)),
        ]);
    }
    say(table(&lines));
    say(format!(
        "dhow / bare loop: read {:.2}, write {:.2}; medians of {} in turns; filesystem: {filesystem}",
        ratio("read"),
        ratio("write"),
        count(args.runs.into(), "run", "runs")
    ));
}

async fn bare(file: PathBuf, receive: bool, total: u64) -> Outcome<Server> {
    let mut args = vec![
        OsString::from("bench"),
        OsString::from("bare"),
        OsString::from(format!("--span={SPAN}")),
        OsString::from(format!("--total={total}")),
        file.into_os_string(),
    ];
    if receive {
        args.push("--receive".into());
    }
    Server::start(args).await
}

/// Reads through NFS, with [`DEPTH`] requests in flight, and drops the bytes.
async fn read(endpoint: &dyn Endpoint, total: u64) -> dhow_copy::Result<()> {
    let source = endpoint.open(Path::new("/own/source")).await?;
    let piece = u64::from(source.chunk()).min(PIECE);
    let mut running = FuturesUnordered::new();
    let mut next = 0;
    loop {
        while running.len() < DEPTH && next < total {
            running.push(source.read(next % SPAN, piece as u32));
            next += piece;
        }
        match running.next().await {
            Some(data) => drop(data?),
            None => break,
        }
    }
    drop(running);
    source.close().await
}

/// Writes through NFS, with [`DEPTH`] requests in flight, not durably.
async fn write(endpoint: &dyn Endpoint, total: u64) -> dhow_copy::Result<()> {
    let sink = endpoint.create(Path::new("/own/target"), 0o600).await?;
    let piece = u64::from(sink.chunk()).min(PIECE);
    let mut buf = dhow_sys::pool::AlignedPool::new(0).take(piece as usize);
    buf.fill(0x5a);
    let data: Bytes = buf.freeze(0..piece as usize);
    let mut running = FuturesUnordered::new();
    let mut next = 0;
    loop {
        while running.len() < DEPTH && next < total {
            running.push(sink.write(next % SPAN, data.clone()));
            next += piece;
        }
        match running.next().await {
            Some(done) => done?,
            None => break,
        }
    }
    drop(running);
    sink.abandon().await;
    Ok(())
}

/// Takes what the bare sender sends.
async fn drain(sender: &Server, total: u64) -> Outcome {
    let mut stream = TcpStream::connect(sender.addr).await?;
    let mut buf = vec![0; PIECE as usize];
    let mut left = total;
    while left > 0 {
        match stream.read(&mut buf).await? {
            0 => return Err(Failure::failed("the bare loop ended early")),
            n => left = left.saturating_sub(n as u64),
        }
    }
    Ok(())
}

/// Sends to the bare receiver, and waits until it has taken everything.
async fn pour(receiver: &Server, total: u64) -> Outcome {
    let mut stream = TcpStream::connect(receiver.addr).await?;
    let buf = vec![0x5a; PIECE as usize];
    let mut left = total;
    while left > 0 {
        stream.write_all(&buf).await?;
        left = left.saturating_sub(PIECE);
    }
    stream.shutdown().await?;
    // The receiver closes its side when it has written the last byte.
    while stream.read(&mut [0; 64]).await? > 0 {}
    Ok(())
}
