//! Tests of the pool: its rules one by one, then a simulated client and server under virtual time.

use std::collections::{BTreeSet, BinaryHeap, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::slots::End;

const MS: Duration = Duration::from_millis(1);

fn pool(slots: u32, sessions: usize, granted: u32) -> Pool {
    let mut pool = Pool::new(Limits { slots, sessions });
    pool.set_primary(Epoch(1), granted);
    pool
}

fn done(highest: u32) -> End {
    End::Executed { highest, target: highest }
}

fn fill(pool: &mut Pool) -> Vec<Ticket> {
    std::iter::from_fn(|| pool.acquire()).collect()
}

#[test]
fn requests_are_spread_and_bounded_by_the_own_limit() {
    let mut p = pool(6, 4, 4);
    p.add(Epoch(2), 4, Time::ZERO);
    let tickets = fill(&mut p);
    assert_eq!(tickets.len(), 6, "our own limit");
    assert_eq!(tickets.iter().filter(|t| t.epoch == Epoch(1)).count(), 3);
    assert_eq!(tickets[0].epoch, Epoch(1), "the primary comes first");
    assert_eq!(p.limit(), 6);
}

/// Another session only after somebody waited, and as many as those who wait can fill.
#[test]
fn sessions_are_asked_for_by_those_who_wait() {
    let mut p = pool(1024, 16, 64);
    let now = 1000 * MS;
    assert_eq!(p.advise(now, 36, now), Advice::Wait(now + PATIENCE));
    assert_eq!(p.advise(now + PATIENCE, 36, now), Advice::Grow(1));
    assert_eq!(p.advise(now + PATIENCE, 36, now), Advice::Rest, "one is on its way");
    assert_eq!(p.advise(now + PATIENCE, 200, now), Advice::Grow(3), "four in all for 200");
    assert_eq!(p.advise(now + PATIENCE, 0, now), Advice::Rest);
    for n in 2..=5 {
        p.add(Epoch(n), 64, now);
    }
    assert_eq!((p.sessions(), p.limit()), (5, 320));
}

#[test]
fn neither_more_sessions_nor_more_slots_than_wanted() {
    let mut p = pool(1024, 3, 1);
    assert_eq!(p.advise(PATIENCE, 500, Time::ZERO), Advice::Grow(2));
    p.add(Epoch(2), 1, PATIENCE);
    p.add(Epoch(3), 1, PATIENCE);
    assert!(!p.may_grow());
    let mut p = pool(100, 16, 64);
    assert_eq!(p.advise(PATIENCE, 500, Time::ZERO), Advice::Grow(1), "64 of the 100 are there");
    let mut p = pool(64, 16, 64);
    assert!(matches!(p.advise(PATIENCE, 500, Time::ZERO), Advice::Wait(_)));
}

/// Case K21: a server that takes slots back is not asked for sessions.
#[test]
fn a_server_that_withdraws_slots_is_left_alone() {
    let mut p = pool(1024, 16, 64);
    let a = p.acquire().unwrap();
    p.table(Epoch(1)).complete(&a, done(15));
    assert!(matches!(p.advise(PATIENCE, 500, Time::ZERO), Advice::Wait(_)));
    let a = p.acquire().unwrap();
    p.table(Epoch(1)).complete(&a, done(63));
    assert!(matches!(p.advise(PATIENCE, 500, Time::ZERO), Advice::Grow(_)));
    // One that grants few at first and more when they are used is used to the full first.
    let mut p = pool(1024, 16, 16);
    let a = p.acquire().unwrap();
    p.table(Epoch(1)).complete(&a, done(1023));
    assert!(matches!(p.advise(PATIENCE, 500, Time::ZERO), Advice::Wait(_)), "all that we want is there");
}

#[test]
fn a_refusal_is_respected() {
    let mut p = pool(1024, 16, 8);
    assert_eq!(p.advise(PATIENCE, 8, Time::ZERO), Advice::Grow(1));
    p.failed(true, PATIENCE);
    assert_eq!(p.advise(2 * PATIENCE, 8, Time::ZERO), Advice::Wait(PATIENCE + REFUSED));
    assert_eq!(p.advise(PATIENCE + REFUSED, 8, Time::ZERO), Advice::Grow(1));
}

#[test]
fn what_is_not_needed_is_destroyed_when_it_has_drained() {
    let mut p = pool(1024, 16, 4);
    p.add(Epoch(2), 4, Time::ZERO);
    let tickets = fill(&mut p);
    let there = tickets.iter().find(|t| t.epoch == Epoch(2)).copied().unwrap();
    for t in tickets.iter().filter(|t| **t != there) {
        p.table(t.epoch).complete(t, done(3));
    }
    assert_eq!(p.advise(IDLE, 0, Time::ZERO), Advice::Wait(2 * IDLE), "eight were out in this time");
    let a = p.acquire().unwrap();
    assert_eq!(p.advise(2 * IDLE, 0, Time::ZERO), Advice::Wait(2 * IDLE + DRAIN), "one is still out there");
    assert_eq!(p.limit(), 4);
    assert!(fill(&mut p).iter().all(|t| t.epoch == Epoch(1)));
    p.table(Epoch(2)).complete(&there, done(3));
    assert_eq!(p.advise(2 * IDLE + DRAIN, 0, Time::ZERO), Advice::Destroy(Epoch(2)));
    assert_eq!(p.advise(2 * IDLE + DRAIN, 0, Time::ZERO), Advice::Rest);
    assert!(p.table(a.epoch).complete(&a, done(3)));
}

/// Late answers of a session that is gone, and a session of which every slot is in doubt.
#[test]
fn lost_sessions_leave_nothing_behind() {
    let mut p = pool(1024, 16, 1);
    p.add(Epoch(2), 1, Time::ZERO);
    let tickets = fill(&mut p);
    assert!(p.remove(Epoch(2), Time::ZERO) && !p.remove(Epoch(2), Time::ZERO) && !p.contains(Epoch(2)));
    assert!(!p.table(Epoch(2)).complete(&tickets[1], done(0)));
    assert_eq!(p.busy(), 1);
    p.add(Epoch(3), 1, Time::ZERO);
    let t = p.acquire().unwrap();
    p.table(Epoch(3)).complete(&t, End::Unknown);
    assert_eq!(p.advise(Time::ZERO, 0, Time::ZERO), Advice::Destroy(Epoch(3)));
    assert_eq!(p.sessions(), 1);
}

/// What one run of [`simulate`] came to.
struct Run {
    executed: usize,
    sessions: usize,
    most_out: usize,
}

/// `writers` closed loops over a link of `rtt` to a server that grants `granted` slots to each session, for `time`.
fn simulate(writers: usize, granted: u32, rtt: Duration, time: Duration) -> Run {
    #[derive(PartialEq, Eq, PartialOrd, Ord)]
    enum Event {
        Answer(u64, u32),
        Session,
        Look,
    }
    let mut p = pool(1024, 16, granted);
    let mut events: BinaryHeap<std::cmp::Reverse<(Time, u64, Event)>> = BinaryHeap::new();
    let mut out: std::collections::BTreeMap<(u64, u32), Ticket> = Default::default();
    let mut waiting: VecDeque<Time> = (0..writers).map(|_| Time::ZERO).collect();
    let (mut now, mut order, mut next, mut executed, mut most_out) = (Time::ZERO, 0, 2, 0, 0);
    let mut look = Time::ZERO;
    loop {
        while !waiting.is_empty()
            && let Some(t) = p.acquire()
        {
            waiting.pop_front();
            order += 1;
            assert!(out.insert((t.epoch.0, t.slot), t).is_none(), "one request to a slot");
            events.push(std::cmp::Reverse((now + rtt, order, Event::Answer(t.epoch.0, t.slot))));
        }
        most_out = most_out.max(out.len());
        order += 1;
        match p.advise(now, waiting.len(), waiting.front().copied().unwrap_or(now)) {
            Advice::Grow(n) => {
                // Connect, then one CREATE_SESSION after the other.
                for i in 1..=n {
                    order += 1;
                    events.push(std::cmp::Reverse((now + rtt * (1 + i as u32), order, Event::Session)));
                }
            }
            // One look is enough, unless an earlier one is wanted.
            Advice::Wait(at) if at > now && (look <= now || at < look) => {
                look = at;
                events.push(std::cmp::Reverse((at, order, Event::Look)));
            }
            _ => {}
        }
        let Some(std::cmp::Reverse((at, _, event))) = events.pop() else { break };
        if at > time {
            break;
        }
        now = at;
        match event {
            Event::Answer(epoch, slot) => {
                let t = out.remove(&(epoch, slot)).unwrap();
                assert!(p.table(t.epoch).complete(&t, done(granted - 1)));
                executed += 1;
                waiting.push_back(now);
            }
            Event::Session => {
                p.add(Epoch(next), granted, now);
                next += 1;
            }
            Event::Look => {}
        }
    }
    Run { executed, sessions: p.sessions(), most_out }
}

/// Published: 121 creates/s with 100 writers over 200 ms. With 64 slots to a session the limit is still 500/s.
#[test]
fn few_slots_do_not_limit_many_writers_over_a_long_link() {
    let rtt = 200 * MS;
    for (writers, granted, sessions) in [(100, 64, 2), (500, 64, 8), (10, 64, 1), (100, 1024, 1), (100, 8, 13)] {
        let run = simulate(writers, granted, rtt, 30 * Duration::from_secs(1));
        assert_eq!(run.most_out, writers, "{writers} writers, {granted} slots");
        assert_eq!(run.sessions, sessions, "{writers} writers, {granted} slots");
        let limit = writers * 150;
        assert!(run.executed * 100 >= limit * 90, "{} of {limit}", run.executed);
    }
}

/// On a short link the queue moves on before patience ends: more sessions would gain nothing.
#[test]
fn a_near_server_needs_no_further_sessions() {
    let run = simulate(100, 16, MS, 5 * Duration::from_secs(1));
    assert_eq!(run.sessions, 1);
}

#[derive(Debug, Clone)]
enum Op {
    Acquire,
    Finish(prop::sample::Index, u8, u32),
    Advise(usize, u64),
    Add(u32),
    Fail(bool),
    Lose(prop::sample::Index),
    Primary(u32),
    Clear,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => Just(Op::Acquire),
        6 => (any::<prop::sample::Index>(), 0..4_u8, 0..12_u32).prop_map(|(i, e, h)| Op::Finish(i, e, h)),
        4 => (0..40_usize, 0..90_000_u64).prop_map(|(w, t)| Op::Advise(w, t)),
        3 => (1..12_u32).prop_map(Op::Add),
        1 => any::<bool>().prop_map(Op::Fail),
        1 => any::<prop::sample::Index>().prop_map(Op::Lose),
        1 => (1..12_u32).prop_map(Op::Primary),
        1 => Just(Op::Clear),
    ]
}

proptest! {
    /// Case K21, for several sessions: whatever is granted, withdrawn and lost, no slot is given out twice, no limit is
    /// exceeded, and the count of what is out is right.
    #[test]
    fn no_slot_twice_and_no_limit_exceeded(ops in prop::collection::vec(op(), 0..200), slots in 1..30_u32, sessions in 1..5_usize) {
        let mut p = pool(slots, sessions, 4);
        let (mut now, mut next, mut asked) = (Time::ZERO, 2, 0_usize);
        let mut out: Vec<Ticket> = Vec::new();
        for op in ops {
            match op {
                Op::Acquire => {
                    if let Some(t) = p.acquire() {
                        prop_assert!(p.contains(t.epoch));
                        prop_assert!(out.iter().all(|o| (o.epoch, o.slot) != (t.epoch, t.slot)), "{t:?} is out already");
                        out.push(t);
                    }
                }
                Op::Finish(_, _, _) if out.is_empty() => {}
                Op::Finish(at, how, highest) => {
                    let t = out.swap_remove(at.index(out.len()));
                    let end = [done(highest), End::NotExecuted, End::Refused, End::Unknown][how as usize];
                    let there = p.contains(t.epoch);
                    prop_assert_eq!(p.table(t.epoch).complete(&t, end), there);
                }
                Op::Advise(waiting, ms) => {
                    now += MS * ms as u32;
                    match p.advise(now, waiting, now.saturating_sub(PATIENCE)) {
                        Advice::Grow(n) => {
                            prop_assert!(n > 0 && waiting > 0);
                            asked += n;
                        }
                        Advice::Destroy(epoch) => {
                            prop_assert!(!p.contains(epoch) && epoch != p.primary().epoch());
                            prop_assert!(out.iter().all(|t| t.epoch != epoch), "destroyed with a request in it");
                        }
                        Advice::Wait(_) | Advice::Rest => {}
                    }
                }
                Op::Add(granted) if asked > 0 => {
                    asked -= 1;
                    p.add(Epoch(next), granted, now);
                    next += 1;
                }
                Op::Fail(refused) if asked > 0 => {
                    asked -= 1;
                    p.failed(refused, now);
                }
                Op::Add(_) | Op::Fail(_) => {}
                Op::Lose(at) => {
                    let known: Vec<_> = p.further.iter().map(|m| m.table.epoch()).collect();
                    if !known.is_empty() {
                        p.remove(known[at.index(known.len())], now);
                    }
                }
                Op::Primary(granted) => {
                    p.set_primary(Epoch(next), granted);
                    next += 1;
                }
                Op::Clear => p.remove_further(),
            }
            let epochs: BTreeSet<_> = p.members().map(|m| m.table.epoch()).collect();
            prop_assert_eq!(epochs.len(), p.sessions());
            prop_assert!(p.sessions() + p.making <= sessions, "too many sessions");
            prop_assert_eq!(p.busy(), out.iter().filter(|t| p.contains(t.epoch)).count());
            prop_assert!(p.busy() <= slots as usize);
        }
    }
}
