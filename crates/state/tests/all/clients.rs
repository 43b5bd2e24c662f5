//! EXCHANGE_ID, CREATE_SESSION, DESTROY_*, leases.

use crate::common::*;
use dhow_proto::v4::ops::{ChannelAttrs, CreateSessionArgs, create_session};
use dhow_state::*;

fn confirm(s: &S, e: &ExchangedId, uid: u32, now: Time) -> CreatedSession {
    s.create_session(ConnId(9), 2, &session_args(e.client, e.sequence_id), &who(uid), now).unwrap()
}

#[test]
fn a_new_owner_gets_a_client_id_and_a_retry_another() {
    // RFC 8881 18.35.4, items 1 and 4.
    let s = server();
    let a = s.exchange_id(&exchange("c", 1, 0), t(0)).unwrap();
    assert!(!a.confirmed);
    let b = s.exchange_id(&exchange("c", 1, 0), t(1)).unwrap();
    assert_ne!(a.client, b.client, "an unconfirmed record is replaced");
    let stale = s.create_session(ConnId(9), 1, &session_args(a.client, 1), &who(0), t(1));
    assert_eq!(stale.unwrap_err(), Status::STALE_CLIENTID);
    confirm(&s, &b, 0, t(1));
    assert_eq!(s.client_count(), 1);
}

#[test]
fn the_same_client_again_finds_its_id_confirmed() {
    // RFC 8881 18.35.4, item 2: trunking, or a retry.
    let s = server();
    let a = s.exchange_id(&exchange("c", 1, 0), t(0)).unwrap();
    confirm(&s, &a, 0, t(0));
    let again = s.exchange_id(&exchange("c", 1, 0), t(1)).unwrap();
    assert_eq!((again.client, again.confirmed, again.sequence_id), (a.client, true, 2));
}

#[test]
fn a_restarted_client_keeps_its_old_state_until_it_confirms() {
    // RFC 8881 18.35.4, item 5; 18.36.4.
    let s = server();
    let old = C::new(&s, "c", t(0));
    let sid = old.open("f", "o", Share::READ, Share::NONE, t(0)).unwrap();
    let new = s.exchange_id(&exchange("c", 2, 0), t(1)).unwrap();
    assert!(!new.confirmed && new.retire.is_none());
    assert!(old.io("f", &sid, IoKind::Read, t(1)).is_ok(), "the old incarnation is untouched");
    let done = confirm(&s, &new, 0, t(1));
    assert_eq!(done.retire, Some(old.id));
    assert!(old.me.is_dying());
    assert!(old.open("g", "o", Share::READ, Share::NONE, t(1)).is_err(), "the old incarnation takes no new state");
    let (effects, forget) = retire(&s, old.id, t(1)).unwrap();
    assert!(matches!(effects[..], [Effect::Close(1)]));
    assert_eq!(forget, None, "the record belongs to the owner, who is back");
    assert!(s.client(new.client).unwrap().needs_record(Holds::ALL).is_none(), "and is inherited");
    assert_eq!(s.test_stateid(&old.me, &sid), Status::BAD_STATEID);
}

#[test]
fn another_principal_collides_only_with_live_state() {
    // RFC 8881 18.35.4, item 3.
    let s = server();
    let a = C::new(&s, "c", t(0));
    let sid = a.open("f", "o", Share::READ, Share::NONE, t(0)).unwrap();
    assert_eq!(s.exchange_id(&exchange("c", 1, 5), t(1)).unwrap_err(), Status::CLID_INUSE);
    a.close("f", &sid).unwrap();
    let b = s.exchange_id(&exchange("c", 1, 5), t(2)).unwrap();
    assert_eq!(b.retire, Some(a.id), "no state: the record gives way");
    assert_ne!(b.client, a.id);
}

#[test]
fn another_principal_wins_against_an_ended_lease() {
    let s = server();
    let a = C::new(&s, "c", t(0));
    a.open("f", "o", Share::READ, Share::NONE, t(0)).unwrap();
    let b = s.exchange_id(&exchange("c", 1, 5), t(LEASE + 1)).unwrap();
    assert_eq!(b.retire, Some(a.id));
    // Until the old one's durable record is gone the new one cannot be confirmed: else it could lose its own.
    let early = s.create_session(ConnId(3), 1, &session_args(b.client, 1), &who(5), t(LEASE + 1));
    assert_eq!(early.unwrap_err(), Status::DELAY);
    let (_, forget) = retire(&s, a.id, t(LEASE + 1)).unwrap();
    assert_eq!(forget, Some(owner_id("c")));
    s.create_session(ConnId(3), 1, &session_args(b.client, 1), &who(5), t(LEASE + 1)).unwrap();
}

#[test]
fn updates_need_a_confirmed_record_of_the_same_incarnation_and_principal() {
    // RFC 8881 18.35.4, items 6 to 9.
    let s = server();
    let update = |v, uid| s.exchange_id(&ExchangeId { update: true, ..exchange("c", v, uid) }, t(1));
    assert_eq!(update(1, 0).unwrap_err(), Status::NOENT);
    let a = s.exchange_id(&exchange("c", 1, 0), t(0)).unwrap();
    assert_eq!(update(1, 0).unwrap_err(), Status::NOENT, "not confirmed");
    confirm(&s, &a, 0, t(0));
    assert_eq!(update(2, 0).unwrap_err(), Status::NOT_SAME);
    assert_eq!(update(1, 7).unwrap_err(), Status::PERM);
    let ok = update(1, 0).unwrap();
    assert_eq!((ok.client, ok.confirmed), (a.client, true));
}

#[test]
fn create_session_has_a_reply_cache_of_its_own() {
    // RFC 8881 18.36.4, phases 1 and 2.
    let s = server();
    let e = s.exchange_id(&exchange("c", 1, 0), t(0)).unwrap();
    let run = |seq| s.create_session(ConnId(1), 2, &session_args(e.client, seq), &who(0), t(0));
    assert_eq!(run(0).unwrap_err(), Status::SEQ_MISORDERED, "the contrived reply");
    assert_eq!(run(2).unwrap_err(), Status::SEQ_MISORDERED);
    let first = run(1).unwrap();
    assert_eq!(run(1).unwrap().ok, first.ok, "a retry makes no second session");
    assert_eq!(run(3).unwrap_err(), Status::SEQ_MISORDERED);
    assert_ne!(run(2).unwrap().ok.session_id, first.ok.session_id);
    assert_eq!(s.counts().sessions, 2);
}

#[test]
fn a_failed_create_session_is_cached_and_confirms_nothing() {
    let s = server();
    let e = s.exchange_id(&exchange("c", 1, 0), t(0)).unwrap();
    let bad = CreateSessionArgs { flags: 0x80, ..session_args(e.client, 1) };
    for _ in 0..2 {
        assert_eq!(s.create_session(ConnId(1), 2, &bad, &who(0), t(0)).unwrap_err(), Status::INVAL);
    }
    assert!(s.client(e.client).is_none(), "not confirmed");
    s.create_session(ConnId(1), 2, &session_args(e.client, 2), &who(0), t(0)).unwrap();
}

#[test]
fn another_principal_cannot_confirm() {
    // RFC 8881 18.36.4, phase 3; the slot is left alone.
    let s = server();
    let e = s.exchange_id(&exchange("c", 1, 0), t(0)).unwrap();
    let args = session_args(e.client, 1);
    assert_eq!(s.create_session(ConnId(1), 2, &args, &who(1), t(0)).unwrap_err(), Status::CLID_INUSE);
    s.create_session(ConnId(1), 2, &args, &who(0), t(0)).unwrap();
}

#[test]
fn channel_attributes_are_negotiated() {
    // RFC 8881 18.36.3.
    let s = server();
    let e = s.exchange_id(&exchange("c", 1, 0), t(0)).unwrap();
    let huge = ChannelAttrs {
        max_request_size: u32::MAX,
        max_response_size: u32::MAX,
        max_response_size_cached: u32::MAX,
        max_operations: u32::MAX,
        max_requests: 100_000,
        ..channel(1)
    };
    let args = CreateSessionArgs { fore_chan: huge.clone(), back_chan: huge, ..session_args(e.client, 1) };
    let ok = s.create_session(ConnId(1), 2, &args, &who(0), t(0)).unwrap().ok;
    let l = limits();
    assert_eq!(ok.fore_chan.max_request_size, l.max_request);
    assert_eq!(ok.fore_chan.max_response_size_cached, l.max_cached_reply);
    assert_eq!(ok.fore_chan.max_operations, l.max_ops);
    assert_eq!(ok.fore_chan.max_requests, 2048);
    assert_eq!((ok.back_chan.max_operations, ok.back_chan.max_requests), (u32::MAX, 100_000), "MUST NOT change");
    assert_eq!(ok.flags, create_session::CONN_BACK_CHAN);

    for (i, small) in
        [ChannelAttrs { max_request_size: 20, ..channel(1) }, ChannelAttrs { max_response_size: 20, ..channel(1) }]
            .into_iter()
            .enumerate()
    {
        let args = CreateSessionArgs { fore_chan: small, ..session_args(e.client, 2 + i as u32) };
        assert_eq!(s.create_session(ConnId(1), 2, &args, &who(0), t(0)).unwrap_err(), Status::TOOSMALL);
    }
}

#[test]
fn persistence_and_rdma_are_not_granted() {
    let s = server();
    let e = s.exchange_id(&exchange("c", 1, 0), t(0)).unwrap();
    let flags = create_session::PERSIST | create_session::CONN_RDMA;
    let args = CreateSessionArgs { flags, ..session_args(e.client, 1) };
    assert_eq!(s.create_session(ConnId(1), 2, &args, &who(0), t(0)).unwrap().ok.flags, 0);
}

#[test]
fn unconfirmed_records_go_after_a_lease_and_make_room() {
    // RFC 8881 18.35.4: "SHOULD be removed".
    let s = server_with(Limits { unconfirmed_clients: 10, ..limits() }, &[]);
    for i in 0..50 {
        s.exchange_id(&exchange(&format!("c{i}"), 1, 0), t(i)).unwrap();
        assert!(s.client_count() <= 10);
    }
    assert!(s.tick(t(49 + LEASE)).is_empty());
    assert_eq!(s.client_count(), 1, "the last one is not a lease old");
    s.tick(t(50 + LEASE));
    assert_eq!(s.client_count(), 0);
}

#[test]
fn too_many_clients_wait_and_idle_ones_give_way() {
    let s = server_with(Limits { clients: 2, ..limits() }, &[]);
    let a = C::new(&s, "a", t(0));
    a.open("f", "o", Share::READ, Share::NONE, t(0)).unwrap();
    let mut b = C::new(&s, "b", t(80));
    assert_eq!(s.exchange_id(&exchange("x", 1, 0), t(100)).unwrap_err(), Status::DELAY);
    b.renew(t(100)).unwrap();
    let effects = s.tick(t(101));
    assert!(matches!(effects[..], [Effect::Retire(id)] if id == a.id), "courtesy ends when room is short");
    retire(&s, a.id, t(101)).unwrap();
    s.exchange_id(&exchange("x", 1, 0), t(101)).unwrap();
}

#[test]
fn destroy_clientid_needs_an_idle_client() {
    // RFC 8881 18.50.3.
    let s = server();
    let a = C::new(&s, "a", t(0));
    let sid = a.open("f", "o", Share::READ, Share::NONE, t(0)).unwrap();
    assert_eq!(s.destroy_client(ClientId(12345), None, t(0)).unwrap_err(), Status::STALE_CLIENTID);
    assert_eq!(s.destroy_client(a.id, None, t(0)).unwrap_err(), Status::CLIENTID_BUSY);
    a.close("f", &sid).unwrap();
    assert_eq!(s.destroy_client(a.id, None, t(0)).unwrap_err(), Status::CLIENTID_BUSY, "it has a session");
    s.destroy_session(a.conn, a.session).unwrap();
    assert_eq!(s.destroy_client(a.id, Some(a.id), t(0)).unwrap_err(), Status::CLIENTID_BUSY, "its own");
    assert_eq!(s.destroy_client(a.id, None, t(0)), Ok(Some(a.id)));
    let (effects, forget) = retire(&s, a.id, t(0)).unwrap();
    assert!(effects.is_empty());
    assert_eq!(forget, Some(owner_id("a")));
    assert_eq!(s.client_count(), 0);
    assert_eq!(s.destroy_client(a.id, None, t(0)).unwrap_err(), Status::STALE_CLIENTID);
}

#[test]
fn courtesy_keeps_state_until_somebody_wants_it() {
    // Case B32.
    let s = server();
    let mut a = C::new(&s, "a", t(0));
    let sid = a.open("f", "o", Share::BOTH, Share::WRITE, t(0)).unwrap();
    let mut b = C::new(&s, "b", t(0));
    assert_eq!(b.open("f", "o", Share::WRITE, Share::NONE, t(10)).unwrap_err(), Status::SHARE_DENIED.into());
    b.renew(t(LEASE)).unwrap();
    assert!(s.tick(t(LEASE + 10)).is_empty(), "nobody wants it: kept");
    assert!(s.tick(t(3600)).iter().all(|e| !matches!(e, Effect::Retire(id) if *id == a.id)));
    // It comes back, and all is as it was.
    a.renew(t(3600)).unwrap();
    assert!(a.io("f", &sid, IoKind::Write, t(3600)).is_ok());
    assert!(s.retire(a.id, t(3600)).is_none(), "its lease runs");

    // Now somebody wants it.
    let b = C::new(&s, "b2", t(3600 + LEASE));
    let wants = |now| b.open("f", "o", Share::WRITE, Share::NONE, now);
    assert_eq!(wants(t(3600 + LEASE + 1)).unwrap_err(), Refused::Courtesy(a.id));
    let (effects, forget) = retire(&s, a.id, t(3600 + LEASE + 1)).unwrap();
    assert!(matches!(effects[..], [Effect::Close(1)]));
    assert_eq!(forget, Some(owner_id("a")), "it may not reclaim after a restart, RFC 8881 8.4.3");
    assert!(wants(t(3600 + LEASE + 1)).is_ok());
    assert_eq!(a.renew(t(3600 + LEASE + 2)).unwrap_err(), Status::BADSESSION);
}

#[test]
fn clients_without_state_go_with_their_lease_others_after_the_courtesy_time() {
    let s = server_with(Limits { courtesy: std::time::Duration::from_secs(1000), ..limits() }, &[]);
    let a = C::new(&s, "a", t(0));
    let b = C::new(&s, "b", t(0));
    b.open("f", "o", Share::READ, Share::NONE, t(0)).unwrap();
    assert!(s.tick(t(LEASE)).is_empty());
    assert!(matches!(s.tick(t(LEASE + 1))[..], [Effect::Retire(id)] if id == a.id));
    retire(&s, a.id, t(LEASE + 1)).unwrap();
    assert!(s.tick(t(LEASE + 1000)).is_empty());
    assert!(matches!(s.tick(t(LEASE + 1001))[..], [Effect::Retire(id)] if id == b.id));
}

#[test]
fn a_retire_that_was_dropped_is_taken_up_again() {
    let s = server();
    let a = C::new(&s, "a", t(0));
    a.open("f", "o", Share::READ, Share::NONE, t(0)).unwrap();
    let first = s.retire(a.id, t(1000)).unwrap();
    assert!(s.retire(a.id, t(1000)).is_none(), "one at a time");
    drop(first);
    assert!(matches!(s.tick(t(1000))[..], [Effect::Retire(id)] if id == a.id));
    assert_eq!(retire(&s, a.id, t(1000)).unwrap().0.len(), 1);
    assert_eq!(s.counts().opens, 0);
}

#[test]
fn a_lease_does_not_end_under_a_running_request() {
    // RFC 8881 8.3.
    let s = server();
    let mut a = C::new(&s, "a", t(0));
    a.open("f", "o", Share::READ, Share::BOTH, t(0)).unwrap();
    let token = a.begin(0, t(1)).unwrap();
    let b = C::new(&s, "b", t(500));
    assert_eq!(b.open("f", "o", Share::READ, Share::NONE, t(500)).unwrap_err(), Status::SHARE_DENIED.into());
    token.complete(Reply::from([]), t(500));
    assert_eq!(b.open("f", "o", Share::READ, Share::NONE, t(501)).unwrap_err(), Status::SHARE_DENIED.into());
    assert_eq!(b.open("f", "o", Share::READ, Share::NONE, t(501 + LEASE)).unwrap_err(), Refused::Courtesy(a.id));
}
