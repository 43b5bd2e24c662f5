//! `dhow bench inter`: copies between two servers, by the servers and through the client, over emulated links.
//!
//! Rows are printed as they come; at the end each target is said to be met or not, with the figure it was judged by.
//! [`auto`] measures the choice between the two ways, [`flood`] what copies do to others.

mod auto;
mod flood;
mod row;
mod site;
mod targets;

use super::data;
use crate::cli::BenchInter;
use crate::exit::{Failure, Outcome, warn};
use crate::output::{say, say_json};
use crate::scratch::Scratch;
use dhow_copy::{Choice, Error, ErrorKind, Method};
use dhow_link::{Host, Net, Topology, calibrate};
use row::{HEAD, Row, line};
use serde_json::{Value, json};
use site::{Client, Links, Site};
use std::path::Path;
use targets::Verdict;

const MB: u64 = 1_000_000;
/// Sizes of the published tables.
const SIZES: [u64; 9] = [4 * MB, 8 * MB, 16 * MB, 32 * MB, 64 * MB, 128 * MB, 256 * MB, 512 * MB, 1000 * MB];
/// How often a new destination makes its first copy of each size, and of sizes of which connecting is a small part.
const FIRSTS: u16 = 3;
const FIRSTS_OF_LARGE: u16 = 1;
const LARGE: u64 = 128 * MB;
/// By what rates are multiplied when the emulator does not carry them here, and how often.
const LOWER: f64 = 0.8;
const LOWERINGS: u32 = 12;

/// Runs the command.
pub async fn run(args: BenchInter) -> Outcome {
    // It runs threads and runtimes of its own, in other network namespaces.
    tokio::task::spawn_blocking(move || on_links(&args)).await.map_err(Failure::failed)?
}

fn on_links(args: &BenchInter) -> Outcome {
    let make = if args.flood { flood::network } else { Links::start };
    let (links, net, before) = calibrated(args, make)?;
    let dir = Scratch::in_or_memory(args.dir.as_deref(), "dhow-bench")?;
    if !args.json {
        say(described(&links));
    }
    let done = if args.flood {
        flood::measure(args, &links, &net, &dir)
    } else if args.auto {
        auto::measure(args, &links, &net, &dir)
    } else {
        measure(args, &links, &net, &dir)
    };
    drop(dir);
    let mut verdicts = done?;
    let after = if args.no_check { None } else { Some(carried(&net)?.0) };
    verdicts.push(targets::emulator(before, after));
    if args.json {
        say_json(&json!({
            "link": links.servers,
            "client_link": links.client,
            "rtt": links.rtt.as_secs_f64(),
            "client_rtt": links.client_rtt.as_secs_f64(),
            "carried": before,
            "carried_after": after,
            "targets": verdicts.iter().map(Verdict::json).collect::<Vec<Value>>(),
        }));
    } else {
        verdicts.iter().for_each(|v| say(v.line()));
    }
    Ok(())
}

fn described(links: &Links) -> String {
    format!(
        "links of the servers {} Mbit/s, round trip {} ms; of the client {} Mbit/s, {} ms",
        links.servers / MB,
        links.rtt.as_secs_f64() * 1e3,
        links.client / MB,
        links.client_rtt.as_secs_f64() * 1e3,
    )
}

/// Which share of its rate the worst link carries now, all of them busy, and whether that is enough.
fn carried(net: &Net) -> Outcome<(f64, bool)> {
    let found = calibrate(net, calibrate::Options::default()).map_err(Failure::failed)?;
    Ok((found.worst().unwrap_or(1.0), found.is_enough()))
}

/// The network, with rates that the emulator carries: lowered until it does. Also the share that it carried.
fn calibrated(
    args: &BenchInter,
    make: impl Fn(&Links, Topology) -> Outcome<Net>,
) -> Outcome<(Links, Net, Option<f64>)> {
    let mut links = Links::of(args);
    for _ in 0..LOWERINGS {
        let empty = Topology::new().sysctl("net/ipv4/tcp_congestion_control", args.congestion.as_str());
        let net = make(&links, empty)?;
        if args.no_check {
            return Ok((links, net, None));
        }
        let (worst, enough) = carried(&net)?;
        if enough {
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

/// The folders of both servers.
fn folders(dir: &Path) -> Outcome<[std::path::PathBuf; 2]> {
    let folders = [dir.join("a"), dir.join("b")];
    folders.iter().try_for_each(std::fs::create_dir)?;
    Ok(folders)
}

fn measure(args: &BenchInter, links: &Links, net: &Net, dir: &Path) -> Outcome<Vec<Verdict>> {
    let [a_dir, b_dir] = folders(dir)?;
    let host = |name: &str| net.host(name).map_err(Failure::failed);
    let a = Site::start(&host("a")?, &a_dir)?;
    let mut rows = Vec::new();
    let sizes: &[u64] = if args.sizes.is_empty() { &SIZES } else { &args.sizes };
    if !args.json {
        say(line(&HEAD));
    }
    for &size in sizes {
        data::make(&a_dir.join("x"), size, false)?;
        let of_size = one_size(args, net, &a, &host("b")?, size, (&a_dir.join("x"), &b_dir))?;
        let baseline = of_size.last().map_or(0.0, Row::mean);
        for row in &of_size {
            if args.json { say_json(&row.json(links, baseline)) } else { say(line(&row.cells(links, baseline))) }
        }
        rows.extend(of_size);
    }
    a.stop();
    Ok(targets::of_rows(links, &rows))
}

/// First copies of a client and a destination that are new, by the servers and then through the client, whose
/// connections have carried no data before; then later ones in turns.
fn one_size(
    args: &BenchInter,
    net: &Net,
    a: &Site,
    b_host: &Host<'_>,
    size: u64,
    (x, b_dir): (&Path, &Path),
) -> Outcome<[Row; 4]> {
    let y = b_dir.join("y");
    let mut first = Row::new(size, Method::Inter, true);
    let mut later = Row::new(size, Method::Inter, false);
    let mut first_through = Row::new(size, Method::ReadWrite, true);
    let mut through = Row::new(size, Method::ReadWrite, false);
    let firsts = args.runs.min(if size < LARGE { FIRSTS } else { FIRSTS_OF_LARGE });
    for n in 1..=firsts {
        let b = Site::start(b_host, b_dir)?;
        let client = Client::start(net, "client", a.addr, b.addr)?;
        let once = |row: &mut Row| -> Outcome {
            let before = b.setup_calls();
            let report = client.copy("x", "y", Choice::Only(row.method), None)?;
            row.add(&report, b.setup_calls() - before);
            if row.seconds.len() == 1 && !data::same(x, &y)? {
                let words = format!("the copy by {} differs from its source", row.method);
                return Err(Error::with(ErrorKind::Io, y.display().to_string(), words).into());
            }
            Ok(std::fs::remove_file(&y)?)
        };
        once(&mut first)?;
        once(&mut first_through)?;
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
    Ok([first, later, first_through, through])
}
