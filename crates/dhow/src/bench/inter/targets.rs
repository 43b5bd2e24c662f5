//! What the figures should be, and whether they are.

use super::row::{DATA, Row};
use super::site::Links;
use crate::bench::Spread;
use crate::words::bytes;
use dhow_copy::Method;
use dhow_link::calibrate::ENOUGH;
use serde_json::{Value, json};

const MB: u64 = 1_000_000;
/// Sizes from which the narrower link of the client counts.
const FROM: u64 = 32 * MB;
/// A copy through the client takes six round trips besides its bytes, and a far link some ten more until TCP has found
/// its rate: in copies of fewer round trips than this, what is used of a link says nothing of the pipeline.
const SHORT: f64 = 150.0;
/// Round trips of a client that is far away.
const TRIPS: f64 = 6.0;

/// One target, judged by the run that was worst for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// What is wanted.
    pub target: String,
    /// The worst figure, if there was one to judge by.
    pub found: Option<f64>,
    /// Of this size.
    pub size: Option<u64>,
    /// The least it may be; the most if `at_most`.
    pub wanted: f64,
    /// `wanted` is an upper bound.
    pub at_most: bool,
}

impl Verdict {
    /// A figure of `found` where `wanted` is the most it may be.
    pub fn at_most(target: &str, found: f64, wanted: f64) -> Self {
        Self { target: target.into(), found: Some(found), size: None, wanted, at_most: true }
    }

    /// The worst of `figures`, each of a size.
    fn worst(target: &str, figures: impl Iterator<Item = (u64, f64)>, wanted: f64, at_most: bool) -> Option<Self> {
        let worse = |a: &(u64, f64), b: &(u64, f64)| if at_most { b.1.total_cmp(&a.1) } else { a.1.total_cmp(&b.1) };
        let (size, found) = figures.min_by(worse)?;
        Some(Self { target: target.into(), found: Some(found), size: Some(size), wanted, at_most })
    }

    /// Whether it is met.
    pub fn is_met(&self) -> bool {
        self.found.is_some_and(|found| if self.at_most { found <= self.wanted } else { found >= self.wanted })
    }

    /// For people.
    pub fn line(&self) -> String {
        let word = match self.found {
            None => "open",
            Some(_) if self.is_met() => "pass",
            Some(_) => "FAIL",
        };
        let bound = if self.at_most { "at most" } else { "at least" };
        let found = self.found.map_or("not measured".to_owned(), |found| format!("{found:.2}"));
        let size = self.size.map_or(String::new(), |size| format!(" at {}", bytes(size)));
        format!("{word}  {}: {found}{size} ({bound} {:.2})", self.target, self.wanted)
    }

    /// For programs.
    pub fn json(&self) -> Value {
        json!({
            "target": self.target,
            "found": self.found.map(Spread::json),
            "size": self.size,
            "wanted": Spread::json(self.wanted),
            "bound": if self.at_most { "at most" } else { "at least" },
            "pass": self.is_met(),
        })
    }
}

/// Whether the links were what they claim to be, before and after everything else. Else nothing counts.
pub fn emulator(before: Option<f64>, after: Option<f64>) -> Verdict {
    let found = before.zip(after).map(|(a, b)| a.min(b));
    let target = "share of their rate that the emulated links carry, all busy, before and after".to_owned();
    Verdict { target, found, size: None, wanted: ENOUGH, at_most: false }
}

/// The targets of copies of several sizes.
pub fn of_rows(links: &Links, rows: &[Row]) -> Vec<Verdict> {
    let later = || rows.iter().filter(|r| r.method == Method::Inter && !r.first);
    let through = || rows.iter().filter(|r| r.method == Method::ReadWrite && !r.first);
    let takes = |r: &&Row| r.size as f64 * 8.0 / links.narrower() as f64 / links.client_rtt.as_secs_f64().max(1e-9);
    let pairs = || later().filter_map(|l| Some((l, through().find(|t| t.size == l.size)?)));
    let mut verdicts = vec![
        Verdict::worst(
            "share of the narrower link that copies through the client use, where they take 150 round trips or more",
            through().filter(|r| takes(r) >= SHORT).map(|r| (r.size, r.link_use(links))),
            0.9,
            false,
        ),
        Verdict::worst("set-up calls of a later copy", later().map(|r| (r.size, r.setup_calls as f64)), 0.0, true),
    ];
    if links.client >= links.servers {
        verdicts.push(Verdict::worst(
            "time by the servers over time through the client, on equal links",
            pairs().map(|(l, t)| (l.size, l.mean() / t.mean().max(1e-9))),
            1.05,
            true,
        ));
    } else {
        verdicts.push(Verdict::worst(
            "time through the client over time by the servers, from 32 MB, where the client's link is narrower",
            pairs().filter(|(l, _)| l.size >= FROM).map(|(l, t)| (l.size, t.mean() / l.mean().max(1e-9))),
            0.9 * links.servers as f64 / links.client.max(1) as f64,
            false,
        ));
    }
    if links.client_rtt > links.rtt {
        let rtt = links.client_rtt.as_secs_f64();
        let trips = |r: &Row| (r.mean() - r.size as f64 * 8.0 / (links.servers as f64 * DATA)) / rtt;
        verdicts.push(Verdict::worst(
            "client round trips that a copy by the servers takes over its size / rate of data",
            later().map(|r| (r.size, trips(r))),
            TRIPS,
            true,
        ));
    }
    verdicts.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn row(size: u64, method: Method, seconds: f64) -> Row {
        Row { seconds: vec![seconds], ..Row::new(size * MB, method, false) }
    }

    fn links(client: u64, client_ms: u64) -> Links {
        let rtt = Duration::from_millis(1);
        Links { servers: 800 * MB, client: client * MB, rtt, client_rtt: Duration::from_millis(client_ms) }
    }

    fn met(links: &Links, rows: &[Row]) -> Vec<bool> {
        of_rows(links, rows).iter().map(Verdict::is_met).collect()
    }

    #[test]
    fn each_target_is_judged_by_its_worst_size() {
        // 100 MB/s is the whole link, and a round trip takes a millisecond: 20 MB take two hundred.
        let good = [
            row(100, Method::Inter, 1.04),
            row(100, Method::ReadWrite, 1.05),
            row(20, Method::Inter, 0.21),
            row(20, Method::ReadWrite, 0.21),
        ];
        assert_eq!(met(&links(800, 1), &good), [true, true, true]);
        let mut slow = good;
        if let Some(last) = slow.last_mut() {
            last.seconds = vec![0.4];
        }
        let verdicts = of_rows(&links(800, 1), &slow);
        let first = verdicts.first().unwrap();
        assert_eq!((first.is_met(), first.size), (false, Some(20 * MB)));
        assert!((first.found.unwrap() * DATA - 0.5).abs() < 1e-9, "{first:?}");
        assert!(first.line().starts_with("FAIL") && first.line().contains("0.52"), "{}", first.line());
        let mut cold = [row(100, Method::Inter, 2.0), row(100, Method::ReadWrite, 1.05)];
        cold[0].setup_calls = 3;
        assert_eq!(met(&links(800, 1), &cold), [true, false, false]);
        // What is over in a few round trips cannot use a link.
        assert_eq!(met(&links(800, 1), &[row(4, Method::ReadWrite, 0.2)]), [] as [bool; 0]);
    }

    #[test]
    fn a_narrow_and_far_client() {
        let rows = |inter, through| [row(200, Method::Inter, inter), row(200, Method::ReadWrite, through)];
        // Four times narrower: 3.6 is wanted; and six times 50 ms beside 2.07 s.
        assert_eq!(met(&links(200, 50), &rows(2.2, 8.4)), [true, true, true, true]);
        assert_eq!(met(&links(200, 50), &rows(2.5, 8.8)), [true, true, false, false]);
        // Small files do not count for the first.
        let small = [row(4, Method::Inter, 0.3), row(4, Method::ReadWrite, 0.3)];
        assert_eq!(met(&links(200, 50), &small), [true, true], "set-up calls and round trips");
    }

    #[test]
    fn what_was_not_checked_is_open() {
        assert_eq!(emulator(None, None).line().split(' ').next(), Some("open"));
        assert!(emulator(Some(0.99), Some(0.96)).is_met() && !emulator(Some(0.99), Some(0.9)).is_met());
    }
}
