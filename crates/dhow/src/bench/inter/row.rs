//! Rows of the table.

use super::site::Links;
use crate::bench::Spread;
use crate::words::bytes;
use dhow_copy::{FileReport, Method};
use serde_json::{Value, json};

/// What [`Row::cells`] are.
pub const HEAD: [&str; 9] =
    ["size", "method", "copy", "mean s", "stddev", "set-up calls", "round trips", "link use", "gain"];
/// How wide they are at least: rows are printed as they come, before the longest is known.
const WIDTHS: [usize; 9] = [7, 9, 5, 8, 7, 12, 11, 8, 6];

/// The share of a packet that is data, with an MTU of 1500 and time stamps of TCP.
pub const DATA: f64 = 1448.0 / 1500.0;

/// A line of the table.
pub fn line(cells: &[impl AsRef<str>; 9]) -> String {
    let cells = cells.iter().zip(WIDTHS).map(|(cell, width)| format!("{:<width$}", cell.as_ref()));
    cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

/// One method at one size.
#[derive(Debug)]
pub struct Row {
    /// Bytes.
    pub size: u64,
    /// The way.
    pub method: Method,
    /// The first copy of a destination that is not connected to the source; or of a client through whose connections no
    /// data has come yet.
    pub first: bool,
    /// Of each run.
    pub seconds: Vec<f64>,
    /// Calls that setting a session with the source up took, the most of any run.
    pub setup_calls: u64,
    /// Of the client, one after the other, the most of any run.
    pub round_trips: u64,
}

impl Row {
    /// No run yet.
    pub fn new(size: u64, method: Method, first: bool) -> Self {
        Self { size, method, first, seconds: Vec::new(), setup_calls: 0, round_trips: 0 }
    }

    /// Of all runs, seconds.
    pub fn mean(&self) -> f64 {
        self.seconds.iter().sum::<f64>() / self.seconds.len().max(1) as f64
    }

    /// Of the sample.
    pub fn stddev(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.seconds.iter().map(|s| (s - mean).powi(2)).sum();
        (squares / self.seconds.len().saturating_sub(1).max(1) as f64).sqrt()
    }

    /// Counts a run.
    pub fn add(&mut self, report: &FileReport, setup_calls: u64) {
        self.seconds.push(report.elapsed.as_secs_f64());
        self.setup_calls = self.setup_calls.max(setup_calls);
        // Both OPENs are under way at once, and both CLOSEs; everything else waits for what was before it.
        let beside = |op: &str| report.calls.ops.get(op).copied().unwrap_or(0) / 2;
        let trips = report.calls.calls.saturating_sub(beside("OPEN") + beside("CLOSE"));
        self.round_trips = self.round_trips.max(trips);
    }

    /// Share of the narrower link that the data took, in packets with their headers, which is how the emulator counts.
    pub fn link_use(&self, links: &Links) -> f64 {
        self.size as f64 * 8.0 / DATA / self.mean().max(1e-9) / links.narrower() as f64
    }

    /// As documented in docs/cli.md; `baseline`: seconds through the client.
    pub fn json(&self, links: &Links, baseline: f64) -> Value {
        let inter = self.method == Method::Inter;
        json!({
            "size": self.size,
            "method": self.method.name(),
            "first": self.first,
            "mean": Spread::json(self.mean()),
            "stddev": Spread::json(self.stddev()),
            "runs": self.seconds.len(),
            "seconds": self.seconds.iter().map(|s| Spread::json(*s)).collect::<Vec<Value>>(),
            "setup_calls": if inter { json!(self.setup_calls) } else { Value::Null },
            "client_round_trips": if inter { json!(self.round_trips) } else { Value::Null },
            "baseline_link_use": if inter { Value::Null } else { Spread::json(self.link_use(links)) },
            "improvement_percent": if inter { Spread::json(self.improvement(baseline)) } else { Value::Null },
        })
    }

    /// Time saved against `baseline` seconds, per cent.
    pub fn improvement(&self, baseline: f64) -> f64 {
        (baseline - self.mean()) / baseline.max(1e-9) * 100.0
    }

    /// Of the table, under [`HEAD`].
    pub fn cells(&self, links: &Links, baseline: f64) -> [String; 9] {
        let inter = self.method == Method::Inter;
        let only = |when: bool, text: String| if when { text } else { "-".to_owned() };
        [
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn means_and_deviations() {
        let mut row = Row::new(100_000_000, Method::Inter, false);
        row.seconds = vec![1.0, 2.0, 3.0];
        assert_eq!((row.mean(), row.stddev()), (2.0, 1.0));
        assert_eq!(row.improvement(4.0), 50.0);
        let links =
            Links { servers: 1_000_000_000, client: 800_000_000, rtt: Duration::ZERO, client_rtt: Duration::ZERO };
        assert!((row.link_use(&links) - 0.518).abs() < 0.001, "{}", row.link_use(&links));
        row.seconds.truncate(1);
        assert_eq!(row.stddev(), 0.0);
    }

    #[test]
    fn lines_keep_their_columns() {
        let row = Row { seconds: vec![1.0], ..Row::new(4_000_000, Method::Inter, true) };
        let links = Links { servers: 1, client: 1, rtt: Duration::ZERO, client_rtt: Duration::ZERO };
        let (head, line) = (line(&HEAD), line(&row.cells(&links, 2.0)));
        assert_eq!(head.find("method"), line.find("inter"), "{head}\n{line}");
        assert_eq!(head.find("gain"), line.find("+50"), "{head}\n{line}");
    }
}
