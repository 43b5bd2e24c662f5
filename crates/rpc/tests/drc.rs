//! The duplicate-request cache (case B26).

use std::time::Duration;

use dhow_rpc::drc::{Begin, CallKey, DuplicateCache, Limits, checksum};
use proptest::prelude::*;

const NOW: Duration = Duration::from_secs(1000);

fn key(client: &str, xid: u32, args: &[u8]) -> CallKey {
    let client = client.as_bytes().into();
    CallKey { client, xid, prog: 100003, vers: 3, proc: 9, checksum: checksum(args) }
}

fn limits(entries: usize, bytes: usize) -> Limits {
    Limits { entries, bytes, max_age: Duration::from_secs(60) }
}

#[test]
fn a_retransmission_gets_the_first_reply() {
    let mut cache = DuplicateCache::new(Limits::default());
    let k = key("10.0.0.1:700", 5, b"mkdir a");
    assert_eq!(cache.begin(&k, NOW), Begin::Run);
    assert_eq!(cache.begin(&k, NOW), Begin::InProgress);
    cache.finish(&k, "done", 4, NOW);
    assert_eq!(cache.begin(&k, NOW), Begin::Replay("done"));
    // A second end of the same call changes nothing.
    cache.finish(&k, "again", 5, NOW);
    assert_eq!((cache.begin(&k, NOW), cache.bytes()), (Begin::Replay("done"), 4));
}

#[test]
fn same_number_but_another_call() {
    let mut cache = DuplicateCache::new(Limits::default());
    let first = key("10.0.0.1:700", 5, b"mkdir a");
    cache.begin(&first, NOW);
    cache.finish(&first, "a", 1, NOW);
    // Another client behind the same address, other arguments, another procedure.
    assert_eq!(cache.begin(&key("10.0.0.1:701", 5, b"mkdir a"), NOW), Begin::Run);
    assert_eq!(cache.begin(&key("10.0.0.1:700", 5, b"mkdir b"), NOW), Begin::Run);
    assert_eq!(cache.begin(&CallKey { proc: 12, ..first }, NOW), Begin::Run);
    assert_ne!(checksum(b""), checksum(b"\0"));
}

#[test]
fn an_aborted_call_runs_again() {
    let mut cache = DuplicateCache::<()>::new(Limits::default());
    let k = key("c", 1, b"");
    cache.begin(&k, NOW);
    cache.abort(&k);
    assert_eq!(cache.begin(&k, NOW), Begin::Run);
}

#[test]
fn the_oldest_reply_makes_room_but_running_calls_do_not() {
    let mut cache = DuplicateCache::new(limits(2, 100));
    let keys: Vec<_> = (0..4).map(|i| key("c", i, b"")).collect();
    cache.begin(&keys[0], NOW);
    cache.begin(&keys[1], NOW);
    assert_eq!(cache.begin(&keys[2], NOW), Begin::Full);
    cache.finish(&keys[0], 0, 10, NOW);
    assert_eq!(cache.begin(&keys[2], NOW), Begin::Run);
    assert_eq!(cache.begin(&keys[1], NOW), Begin::InProgress);
    assert_eq!((cache.len(), cache.bytes()), (2, 0));
}

#[test]
fn replies_are_bounded_in_bytes_and_age() {
    let mut cache = DuplicateCache::new(limits(10, 100));
    let keys: Vec<_> = (0..3).map(|i| key("c", i, b"")).collect();
    for (i, k) in keys.iter().enumerate() {
        cache.begin(k, NOW);
        cache.finish(k, i, 40, NOW);
    }
    assert_eq!((cache.len(), cache.bytes()), (2, 80));
    assert_eq!(cache.begin(&keys[0], NOW), Begin::Run);
    cache.finish(&keys[0], 9, 101, NOW); // too large to keep
    assert_eq!(cache.begin(&keys[0], NOW), Begin::Run);
    cache.abort(&keys[0]);
    let later = NOW + Duration::from_secs(61);
    assert_eq!(cache.begin(&keys[2], later), Begin::Run);
    assert_eq!(cache.bytes(), 0);
}

proptest! {
    #[test]
    fn never_over_its_limits(steps in prop::collection::vec((0u32..12, 0u8..3, 0usize..60), 0..200)) {
        let limits = limits(6, 100);
        let mut cache = DuplicateCache::new(limits);
        let mut model = std::collections::HashSet::new();
        for (i, (xid, what, bytes)) in steps.into_iter().enumerate() {
            let k = key("c", xid, b"");
            let now = NOW + Duration::from_secs(i as u64);
            match what {
                0 => match cache.begin(&k, now) {
                    Begin::Run => prop_assert!(model.insert(xid), "two copies of one call run at once"),
                    Begin::InProgress => prop_assert!(model.contains(&xid)),
                    Begin::Replay(reply) => prop_assert_eq!(reply, xid),
                    Begin::Full => prop_assert_eq!(model.len(), limits.entries),
                },
                1 => {
                    cache.finish(&k, xid, bytes, now);
                    model.remove(&xid);
                }
                _ => {
                    cache.abort(&k);
                    model.remove(&xid);
                }
            }
            prop_assert!(cache.len() <= limits.entries && cache.bytes() <= limits.bytes);
            prop_assert!(cache.len() >= model.len());
        }
    }
}
