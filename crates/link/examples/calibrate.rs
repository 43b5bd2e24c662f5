//! Measures what the emulator carries on this machine, and prints the table of README.md:
//!
//! `cargo run --release -p dhow-link --example calibrate [-- --quick]`
//!
//! For each MTU and rate, two hosts with a round trip of 10 ms load both directions of their link at once, three times.
//! A row holds the smallest and largest share of the nominal rate that the slower direction carried.

use std::time::Duration;

use dhow_link::calibrate::{ENOUGH, Options};
use dhow_link::{LinkSpec, Offload, Rate, Result, Shape, Topology, calibrate};

struct Case {
    mtu: u32,
    offload: Offload,
    rates: &'static [u64],
}

const M: u64 = 1_000_000;

const CASES: [Case; 4] = [
    Case { mtu: 1500, offload: Offload::Off, rates: &[100 * M, 250 * M, 500 * M, 1000 * M] },
    Case { mtu: 9000, offload: Offload::Off, rates: &[500 * M, 1000 * M, 2000 * M, 4000 * M] },
    Case { mtu: 65_000, offload: Offload::Off, rates: &[1000 * M, 2000 * M, 4000 * M, 8000 * M] },
    Case { mtu: 1500, offload: Offload::On, rates: &[100 * M, 1000 * M, 2000 * M, 4000 * M] },
];

fn main() -> Result<()> {
    let quick = std::env::args().any(|arg| arg == "--quick");
    let (runs, time, warm_up) = if quick {
        (1, Duration::from_secs(1), Duration::from_secs(1))
    } else {
        (3, Duration::from_secs(2), Duration::from_secs(3))
    };
    println!(
        "{:<8}{:<12}{:>15}{:>18}{:>12}{:>24}",
        "MTU", "segments", "nominal", "carried", "counts", "RTT, least-median"
    );
    for case in CASES {
        for rate in case.rates {
            let shape = Shape::rate(*rate).rtt(Duration::from_millis(10));
            let mut ratios = Vec::new();
            let mut trips = Vec::new();
            let mut true_emulation = true;
            for _ in 0..runs {
                let topology = Topology::new().host("a").host("b").link("a", "b", LinkSpec::from(shape).mtu(case.mtu));
                let net = topology.offload(case.offload).start()?;
                let found = calibrate(&net, Options { time, warm_up, ..Options::default() })?;
                ratios.push(found.worst().unwrap_or(0.0));
                trips.extend(found.round_trips.iter().map(|row| (row.least_us, row.median_us)));
                true_emulation &= found.links.iter().all(|row| row.failed == 0) && found.unread == 0;
            }
            let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
            let most = ratios.iter().copied().fold(0.0, f64::max);
            let quickest = trips.iter().map(|(least, _)| *least).fold(f64::INFINITY, f64::min) / 1000.0;
            let median = trips.iter().map(|(_, median)| *median).fold(0.0, f64::max) / 1000.0;
            println!(
                "{:<8}{:<12}{:>15}{:>18}{:>12}{:>24}",
                case.mtu,
                if case.offload == Offload::On { "in runs" } else { "one by one" },
                Rate(*rate as f64),
                format!("{:.1}-{:.1} %", least * 100.0, most * 100.0),
                if least >= ENOUGH && true_emulation { "yes" } else { "no" },
                format!("{quickest:.2}-{median:.2} ms"),
            );
        }
    }
    Ok(())
}
