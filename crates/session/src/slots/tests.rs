//! Tests of the slot table, against a simple model of a server's slots.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn table(granted: u32) -> SlotTable {
    SlotTable::new(Epoch(1), granted, 1024)
}

fn done(highest: u32) -> End {
    End::Executed { highest, target: highest }
}

/// RFC 8881 section 2.10.6.1: the first sequence id of a slot is 1, the lowest free slot is used, and the highest
/// outstanding slot is told.
#[test]
fn lowest_slot_first_and_highest_told() {
    let mut t = table(4);
    let a = t.acquire().unwrap();
    let b = t.acquire().unwrap();
    let c = t.acquire().unwrap();
    assert_eq!((a.slot, a.seqid, a.highest), (0, 1, 0));
    assert_eq!((c.slot, c.seqid, c.highest), (2, 1, 2));
    assert!(t.complete(&b, done(3)));
    let d = t.acquire().unwrap();
    assert_eq!((d.slot, d.seqid, d.highest), (1, 2, 2));
    assert!(t.acquire().is_some());
    assert!(t.acquire().is_none());
}

/// RFC 8881 section 2.10.6.1.2: an error of SEQUENCE leaves the slot's sequence id alone (case B25).
#[test]
fn an_error_of_sequence_does_not_move_the_slot() {
    let mut t = table(1);
    let a = t.acquire().unwrap();
    assert!(t.complete(&a, End::NotExecuted));
    assert_eq!(t.acquire().unwrap().seqid, 1);
}

#[test]
fn sequence_ids_wrap_to_zero() {
    let mut t = table(1);
    let a = t.acquire().unwrap();
    t.complete(&a, done(0));
    t.slots[0].seqid = u32::MAX;
    let b = t.acquire().unwrap();
    assert_eq!(b.seqid, u32::MAX);
    t.complete(&b, done(0));
    assert_eq!(t.acquire().unwrap().seqid, 0);
}

#[test]
fn facts_of_another_session_or_a_second_answer_change_nothing() {
    let mut t = table(2);
    let a = t.acquire().unwrap();
    assert!(!t.complete(&Ticket { epoch: Epoch(0), ..a }, done(1)));
    assert!(t.complete(&a, done(1)));
    assert!(!t.complete(&a, done(1)));
    let b = t.acquire().unwrap();
    assert!(!t.complete(&a, End::Unknown), "the late answer of the slot's earlier request");
    assert!(t.complete(&b, done(1)));
}

/// A slot whose outcome is unknown is never used again (RFC 8881 section 2.10.6.2).
#[test]
fn an_unknown_outcome_retires_the_slot() {
    let mut t = table(2);
    let a = t.acquire().unwrap();
    let b = t.acquire().unwrap();
    t.complete(&a, End::Unknown);
    t.complete(&b, End::Unknown);
    assert!(t.acquire().is_none());
    assert!(t.is_exhausted());
}

/// Case K21: shrink and grow by target and by the enforced limit.
#[test]
fn the_table_shrinks_and_grows_as_the_server_says() {
    let mut t = table(8);
    let all: Vec<_> = std::iter::from_fn(|| t.acquire()).collect();
    assert_eq!(all.len(), 8);
    t.complete(&all[0], End::Executed { highest: 7, target: 1 });
    // Sent before the change: these say nothing about the present wish.
    for ticket in &all[1..] {
        t.complete(ticket, done(7));
    }
    assert_eq!(t.limit(), 2);
    let a = t.acquire().unwrap();
    let b = t.acquire().unwrap();
    assert!(t.acquire().is_none());
    t.complete(&a, done(15));
    assert_eq!(t.limit(), 16);
    t.complete(&b, done(1));
    assert_eq!(t.limit(), 16, "b was sent before the table grew");
}

/// Case K21: the first use of a slot that was withdrawn and granted again continues the count; when the server refuses
/// that, it has started afresh at 1.
#[test]
fn a_slot_granted_again_tries_both_sequence_ids() {
    let mut t = table(2);
    let a = t.acquire().unwrap();
    let b = t.acquire().unwrap();
    t.complete(&b, done(1));
    t.complete(&a, done(0));
    let a = t.acquire().unwrap();
    t.complete(&a, done(1));
    let _a = t.acquire().unwrap();
    let b = t.acquire().unwrap();
    assert_eq!((b.slot, b.seqid), (1, 2));
    let again = t.renumber(&b).unwrap();
    assert_eq!((again.slot, again.seqid), (1, 1));
    assert!(t.renumber(&again).is_none(), "only once");
    assert!(!t.complete(&b, done(1)), "the first number is dead");
    assert!(t.complete(&again, done(1)));
    assert_eq!(t.acquire().unwrap().seqid, 2);
}

#[test]
fn a_slot_that_was_never_withdrawn_is_not_renumbered() {
    let mut t = table(2);
    let a = t.acquire().unwrap();
    t.complete(&a, done(1));
    let a = t.acquire().unwrap();
    assert!(t.renumber(&a).is_none());
}

#[test]
fn badslot_lowers_the_limit_but_never_to_nothing() {
    let mut t = table(4);
    let all: Vec<_> = std::iter::from_fn(|| t.acquire()).collect();
    t.complete(&all[3], End::Refused);
    assert_eq!(t.limit(), 3);
    t.complete(&all[0], End::Refused);
    assert_eq!(t.limit(), 3);
    t.complete(&all[1], End::Refused);
    assert_eq!(t.limit(), 1);
}

#[test]
fn recall_slot_lowers_the_target() {
    let mut t = table(64);
    t.recall(3);
    assert_eq!(t.limit(), 4);
    t.recall(u32::MAX);
    assert_eq!(t.limit(), 64);
}

#[test]
fn the_own_limit_holds_against_a_generous_server() {
    let mut t = SlotTable::new(Epoch(1), u32::MAX, 3);
    let all: Vec<_> = std::iter::from_fn(|| t.acquire()).collect();
    assert_eq!(all.len(), 3);
    t.complete(&all[0], done(u32::MAX));
    assert_eq!(t.limit(), 3);
}

/// A server's slots: the sequence id last executed on each; a slot above the limit may be forgotten.
#[derive(Default)]
struct Server {
    last: BTreeMap<u32, u32>,
    limit: u32,
    forgets: bool,
}

impl Server {
    fn execute(&mut self, t: &Ticket) -> bool {
        let last = self.last.entry(t.slot).or_insert(0);
        if t.seqid != last.wrapping_add(1) {
            return false;
        }
        *last = t.seqid;
        true
    }

    /// The client has been told the limit, and has nothing outstanding above it.
    fn retire(&mut self) {
        if self.forgets {
            self.last.retain(|slot, _| *slot <= self.limit);
        }
    }
}

#[derive(Debug, Clone)]
enum Move {
    Send,
    Answer(usize),
    RefuseSequence(usize),
    Resize(u32),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        4 => Just(Move::Send),
        4 => any::<usize>().prop_map(Move::Answer),
        1 => any::<usize>().prop_map(Move::RefuseSequence),
        1 => (0_u32..200).prop_map(Move::Resize),
    ];
    proptest::collection::vec(one, 0..400)
}

proptest! {
    /// Whatever order answers come in, and however the server resizes, every request is accepted by the server with
    /// the sequence id it expects, no slot has two requests, and no slot is ever stuck.
    #[test]
    fn every_request_is_in_sequence(moves in moves(), forgets: bool) {
        let mut t = SlotTable::new(Epoch(1), 100, 150);
        let mut server = Server { limit: 99, forgets, ..Server::default() };
        let mut out: Vec<Ticket> = Vec::new();
        let answer = |t: &mut SlotTable, server: &mut Server, mut ticket: Ticket| {
            if !server.execute(&ticket) {
                ticket = t.renumber(&ticket).expect("a refused number has an alternative");
                assert!(server.execute(&ticket), "and that one is right");
            }
            assert!(t.complete(&ticket, done(server.limit)));
        };
        for m in moves {
            match m {
                Move::Send => {
                    let free = t.busy() < t.limit() as usize;
                    let got = t.acquire();
                    if let Some(new) = got {
                        prop_assert!(out.iter().all(|o| o.slot != new.slot));
                        prop_assert!(new.slot < t.limit());
                        let highest = out.iter().map(|o| o.slot).chain([new.slot]).max();
                        prop_assert_eq!(Some(new.highest), highest);
                        out.push(new);
                    } else {
                        // Requests on slots above a lowered limit are busy without taking a usable slot.
                        prop_assert!(!free || out.iter().any(|o| o.slot >= t.limit()));
                    }
                }
                Move::Answer(n) if !out.is_empty() => {
                    let ticket = out.swap_remove(n % out.len());
                    answer(&mut t, &mut server, ticket);
                    if out.iter().all(|o| o.slot <= server.limit) {
                        server.retire();
                    }
                }
                Move::RefuseSequence(n) if !out.is_empty() => {
                    let ticket = out.swap_remove(n % out.len());
                    prop_assert!(t.complete(&ticket, End::NotExecuted));
                }
                Move::Resize(limit) => server.limit = limit,
                _ => {}
            }
            prop_assert_eq!(t.busy(), out.len());
        }
        for ticket in out {
            answer(&mut t, &mut server, ticket);
        }
        prop_assert_eq!(t.busy(), 0);
        prop_assert!(t.acquire().is_some());
    }
}
