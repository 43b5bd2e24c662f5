//! Asynchronous copies.

use crate::common::*;
use dhow_state::*;
use std::time::Duration;

#[test]
fn a_copy_is_counted_while_its_ticket_lives() {
    // Cases K01, K06.
    let s = server_with(Limits { copies: 3, copies_per_client: 2, ..limits() }, &[]);
    let (a, b) = (C::new(&s, "a", t(0)), C::new(&s, "b", t(0)));
    let one = s.copy_begin(&a.me).unwrap();
    let two = s.copy_begin(&a.me).unwrap();
    assert!(s.copy_begin(&a.me).is_none(), "per client");
    let three = s.copy_begin(&b.me).unwrap();
    assert!(s.copy_begin(&b.me).is_none(), "in all");
    assert_eq!(s.copies_running(), 3);
    drop(one);
    assert!(two.complete(Status::OK, t(1)).is_some());
    s.copy_cancel(&b.me, &three.stateid()).unwrap();
    assert_eq!(s.copies_running(), 1, "a cancelled copy runs until its task notices");
    assert!(three.is_cancelled() && ready(three.cancelled()));
    assert_eq!(three.complete(Status::OK, t(1)), None, "no CB_OFFLOAD after OFFLOAD_CANCEL, RFC 7862 15.8");
    assert_eq!(s.copies_running(), 0);
    assert!(!a.me.has_state() && !b.me.has_state());
}

#[test]
fn status_is_there_until_the_callback_was_answered_and_for_its_time() {
    // RFC 7862 15.9, case K03.
    let s = server_with(Limits { finished_copy_time: Duration::from_secs(90), ..limits() }, &[]);
    let mut a = C::new(&s, "a", t(0));
    let b = C::new(&s, "b", t(0));
    let ticket = s.copy_begin(&a.me).unwrap();
    let id = ticket.stateid();
    assert_ne!(id.seqid, 0);
    ticket.set_bytes(1000);
    assert_eq!(s.copy_status(&a.me, &id), Ok(CopyStatus { bytes: 1000, complete: None }));
    assert_eq!(s.copy_status(&b.me, &id), Err(Status::BAD_STATEID));
    assert_eq!(s.test_stateid(&a.me, &id), Status::OK);
    assert_eq!(s.free_stateid(&a.me, &id), Err(Status::LOCKS_HELD));
    ticket.set_bytes(2000);
    assert_eq!(ticket.complete(Status::NOSPC, t(10)), Some(id));
    let done = Ok(CopyStatus { bytes: 2000, complete: Some(Status::NOSPC) });
    a.renew(t(80)).unwrap();
    s.tick(t(150));
    assert_eq!(s.copy_status(&a.me, &id), done, "not acknowledged: kept longer");
    s.copy_acknowledged(&a.me, &id);
    s.tick(t(100));
    assert_eq!(s.copy_status(&a.me, &id), done);
    s.tick(t(101));
    assert_eq!(s.copy_status(&a.me, &id), Err(Status::BAD_STATEID));
}

#[test]
fn a_client_that_goes_takes_its_copies_along() {
    // Cases K07, K08.
    let s = server();
    let a = C::new(&s, "a", t(0));
    let tickets: Vec<_> = (0..10).map(|_| s.copy_begin(&a.me).unwrap()).collect();
    tickets[0].set_bytes(1);
    let done = s.copy_begin(&a.me).unwrap();
    done.complete(Status::OK, t(0)).unwrap();
    s.tick(t(LEASE + 1));
    assert!(!tickets[0].is_cancelled(), "it may come back");
    s.tick(t(2 * LEASE + 1));
    assert!(tickets.iter().all(CopyTicket::is_cancelled));
    retire(&s, a.id, t(2 * LEASE + 1)).unwrap();
    drop(tickets);
    assert_eq!(s.copies_running(), 0);
    assert_eq!(s.counts().clients, 0);
}

#[test]
fn finished_copies_are_bounded() {
    let s = server_with(Limits { finished_copies_per_client: 4, ..limits() }, &[]);
    let a = C::new(&s, "a", t(0));
    let ids: Vec<_> = (0..20).map(|i| s.copy_begin(&a.me).unwrap().complete(Status::OK, t(i)).unwrap()).collect();
    let kept = ids.iter().filter(|i| s.copy_status(&a.me, i).is_ok()).count();
    assert_eq!(kept, 4);
    assert!(s.copy_status(&a.me, &ids[19]).is_ok(), "the oldest go first");
}

#[test]
fn shutdown_cancels_all() {
    let s = server();
    let a = C::new(&s, "a", t(0));
    let ticket = s.copy_begin(&a.me).unwrap();
    assert!(!ready(ticket.cancelled()));
    s.cancel_all_copies();
    assert!(ready(ticket.cancelled()));
}
