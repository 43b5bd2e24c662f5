//! `dhow bench create`: updates of one directory over a long link, by few writers and by many; small trees; and, without
//! a link, one directory against several.
//!
//! A writer is a loop that makes one call after the other. With N writers and a round trip of T no client can make more
//! than N / T calls of a round trip each: that is the limit which rows are compared with.

mod load;
mod near;
mod site;
mod tree;

use super::Spread;
use crate::cli::BenchCreate;
use crate::exit::{Failure, Outcome};
use crate::output::{say, say_json, table};
use crate::scratch::Scratch;
use clap::ValueEnum;
use load::{Load, Measured};
use serde_json::{Value, json};
use site::Site;
use std::time::Duration;

/// What a writer does again and again. Each is one COMPOUND.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Op {
    /// A new empty file: OPEN (exclusive) and CLOSE.
    Create,
    /// A new file of 4 KiB: OPEN of a passing name, WRITE, CLOSE, RENAME.
    Put,
    /// A new directory.
    Mkdir,
    /// Another name for a file.
    Rename,
    /// Removing what `create` made.
    Remove,
}

impl Op {
    fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Put => "put",
            Self::Mkdir => "mkdir",
            Self::Rename => "rename",
            Self::Remove => "remove",
        }
    }
}

/// One operation by so many writers.
struct Row {
    op: Op,
    writers: u32,
    runs: Vec<Measured>,
    slots: u32,
    sessions: usize,
}

impl Row {
    fn rate(&self) -> Spread {
        Spread::of(self.runs.iter().map(|m| m.per_second))
    }

    fn of(&self, figure: impl Fn(&Measured) -> f64) -> f64 {
        Spread::of(self.runs.iter().map(figure)).median
    }

    fn limit(&self, rtt: Duration) -> f64 {
        f64::from(self.writers) / rtt.as_secs_f64().max(1e-6)
    }

    fn json(&self, setting: &Setting) -> Value {
        let (rate, limit) = (self.rate(), self.limit(setting.rtt));
        json!({
            "via": "direct",
            "op": self.op.name(),
            "rtt_ms": Spread::json(setting.rtt.as_secs_f64() * 1e3),
            "writers": self.writers,
            "creates_per_second": Spread::json(rate.median),
            "creates_per_second_min": Spread::json(rate.min),
            "creates_per_second_max": Spread::json(rate.max),
            "limit": Spread::json(limit),
            "share_of_limit": Spread::json(rate.median / limit),
            "calls_per_create": Spread::json(self.of(|m| m.calls_per_op)),
            "p50_ms": Spread::json(self.of(|m| m.p50.as_secs_f64() * 1e3)),
            "p99_ms": Spread::json(self.of(|m| m.p99.as_secs_f64() * 1e3)),
            "sessions": self.sessions,
            "slots": self.slots,
            "runs": self.runs.len(),
            "metadata_sync": setting.metadata_sync,
            "filesystem": setting.filesystem,
        })
    }

    fn cells(&self, setting: &Setting) -> Vec<String> {
        let (rate, limit) = (self.rate().median, self.limit(setting.rtt));
        vec![
            self.op.name().into(),
            self.writers.to_string(),
            format!("{rate:.1}"),
            format!("{limit:.0}"),
            format!("{:.0} %", rate / limit * 100.0),
            format!("{:.2}", self.of(|m| m.calls_per_op)),
            format!("{:.1}", self.of(|m| m.p50.as_secs_f64() * 1e3)),
            format!("{:.1}", self.of(|m| m.p99.as_secs_f64() * 1e3)),
            format!("{} ({})", self.slots, self.sessions),
        ]
    }
}

/// What all rows have in common.
struct Setting {
    rtt: Duration,
    /// `null` where the server is another one's.
    metadata_sync: Value,
    filesystem: String,
}

/// Runs the command.
pub async fn run(args: BenchCreate) -> Outcome {
    // It runs threads and runtimes of its own, in other network namespaces.
    tokio::task::spawn_blocking(move || everything(&args)).await.map_err(Failure::failed)?
}

fn everything(args: &BenchCreate) -> Outcome {
    if let Some(url) = &args.server {
        let site = Site::running(url)?;
        return far(args, site);
    }
    let dir = Scratch::in_or_memory(args.dir.as_deref(), "dhow-bench")?;
    if args.rtt.is_zero() {
        near::run(args, &dir)
    } else {
        let net = site::network(args.rtt)?;
        Site::own(args, &net, &dir).and_then(|site| far(args, site))
    }
}

/// The rows over a link.
fn far(args: &BenchCreate, site: Site<'_>) -> Outcome {
    let done = rows(args, &site).and_then(|rows| Ok((rows, tree::rows(args, &site)?)));
    let setting = site.setting(args);
    site.stop();
    let (rows, trees) = done?;
    if args.json {
        say_json(&json!({
            "rows": rows.iter().map(|r| r.json(&setting)).collect::<Vec<_>>(),
            "trees": trees.iter().map(|t| t.json(&setting)).collect::<Vec<_>>(),
        }));
        return Ok(());
    }
    let head =
        ["operation", "writers", "per second", "limit", "share", "calls", "p50 ms", "p99 ms", "slots (sessions)"];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    lines.extend(rows.iter().map(|r| r.cells(&setting)));
    say(table(&lines));
    if !trees.is_empty() {
        let head = ["tree", "files", "seconds", "files/s", "calls per file"];
        let mut lines = vec![head.map(str::to_owned).to_vec()];
        lines.extend(trees.iter().map(tree::Tree::cells));
        say(table(&lines));
    }
    say(format!(
        "one directory; round trip {:.1} ms; metadata_sync: {}; filesystem: {}; limit: writers / round trip",
        setting.rtt.as_secs_f64() * 1e3,
        setting.metadata_sync,
        setting.filesystem
    ));
    Ok(())
}

fn rows(args: &BenchCreate, site: &Site<'_>) -> Outcome<Vec<Row>> {
    let mut rows = Vec::new();
    for &writers in &args.writers {
        let mut of_writers: Vec<Row> = Vec::new();
        for run in 0..args.runs {
            // A client of its own, so that each begins with one session.
            let client = site.client()?;
            let dir = format!("d{writers}-{run}");
            let load = Load::new(&client, site.root(), &dir, writers, site.rtt(args), args.seconds)?;
            let measured = client.block_on(load.all(&args.ops))??;
            for (op, measured) in measured {
                let row = match of_writers.iter_mut().find(|r| r.op == op) {
                    Some(row) => row,
                    None => {
                        of_writers.push(Row { op, writers, runs: Vec::new(), slots: 0, sessions: 0 });
                        let Some(row) = of_writers.last_mut() else { continue };
                        row
                    }
                };
                (row.slots, row.sessions) = (measured.slots, measured.sessions);
                row.runs.push(measured);
            }
            site.clean(&client, &dir);
            client.stop();
        }
        rows.extend(of_writers);
    }
    Ok(rows)
}
