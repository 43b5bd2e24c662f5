//! A thousand crashes of the server, in virtual time (RFC 8881 8.4.2, 8.4.3, 10.2.1, 18.3, 18.32, 18.51; cases B06, B31, B32).
//!
//! A few clients work against the whole server, over a filesystem in memory and a disk for the durable records. The power
//! goes at a random step of the filesystem's or the disk's work; what was not synced is lost. After each crash the
//! clients come back and the ledger of what was acknowledged to them is held against what is there. `ledger` says what
//! must hold, `power` what a crash is, `actor` and `work` what the clients do.
//!
//! `DHOW_CRASHES` sets the number of crashes, `DHOW_CRASH_SEED` runs one series alone: a failure prints its seed.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod actor;
mod ledger;
mod power;
mod series;
mod session;
mod stranger;
mod work;

use ledger::Tally;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Crashes in one series: one machine, from empty.
const IN_A_SERIES: u64 = 25;

/// What must have happened at least once in a thousand crashes, or they prove little.
const SEEN: &[&str] = &[
    "open reclaimed",
    "lock reclaimed",
    "late reclaim refused",
    "reclaim refused to who may have been ended",
    "taken from a client whose lease had ended",
    "session lost with the lease",
    "client rebooted",
    "GRACE for a known client",
    "stranger got GRACE",
    "stranger got NO_GRACE",
    "grace ended early",
    "share denied",
    "lock denied",
    "downgrade",
    "stable write",
    "commit",
    "commit with another verifier",
    "a sync that failed",
    "stable copy",
    "unstable copy",
    "asynchronous copy",
    "read delegation",
    "write delegation",
    "delegation returned",
    "delegation revoked",
    "read delegation reclaimed",
    "write delegation reclaimed",
    "open by right of a delegation",
    "reclaim of a revoked delegation refused",
    "names changed",
    "crash while the server starts",
    "crash in grace",
    "crash at work",
    "crash in quiet",
];

#[test]
fn nothing_acknowledged_is_lost_in_a_thousand_crashes() {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let crashes = number("DHOW_CRASHES").unwrap_or(1000);
    let alone = number("DHOW_CRASH_SEED");
    let all = alone.map_or(crashes.div_ceil(IN_A_SERIES), |_| 1);
    let next = AtomicU64::new(0);
    let total = Mutex::new(Tally::default());
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(4);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= all {
                        return;
                    }
                    let (tally, _) = series::run(alone.unwrap_or(n), IN_A_SERIES);
                    let mut total = total.lock().unwrap();
                    for (what, count) in tally.0 {
                        *total.0.entry(what).or_default() += count;
                    }
                }
            });
        }
    });
    let total = total.into_inner().unwrap();
    println!("{total:#?}");
    if alone.is_none() && crashes >= 1000 {
        for what in SEEN {
            assert!(total.0.contains_key(what), "in {crashes} crashes it never happened: {what}");
        }
    }
}

/// A failure is of use only if its seed shows it again: two runs of one seed are the same, step by step.
#[test]
fn a_seed_fixes_the_whole_run() {
    let (first, again) = (series::run(7, 6), series::run(7, 6));
    assert!(first.1.len() > 500, "{} steps", first.1.len());
    if let Some(place) = dhow_testkit::power::parting(&first.1, &again.1) {
        panic!("two runs of one seed part {place}");
    }
    assert_eq!(first.0.0, again.0.0);
}
