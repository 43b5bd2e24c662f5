//! Delegations (RFC 8881 10.2 to 10.5, 18.6): what is granted, recalled, returned and revoked, under virtual time.

use crate::common::*;
use dhow_state::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

fn offer(kind: DelegKind, now: Time) -> Offer<u32> {
    Offer { kind, token: 9, guarded: false, granted_by: None, change: 100, reclaim: false, recalled: false, now }
}

/// OPEN with an offer: the open, and the delegation or why there is none.
fn open(
    c: &C,
    f: &str,
    owner: &str,
    access: Share,
    kind: DelegKind,
    now: Time,
) -> Result<(Stateid, Result<Stateid, WhyNot>), Refused> {
    let plan = c.plan(f, owner, access, Share::NONE, now)?;
    let may = plan.may_delegate(kind, false, now);
    let done = plan.commit_with(1, Some(offer(kind, now))).unwrap();
    let deleg = match done.deleg {
        Delegated::Granted(stateid) => Ok(stateid),
        Delegated::Refused(why, token) => {
            assert_eq!(token, 9, "the token comes back, to be closed");
            Err(why)
        }
        Delegated::NotOffered => panic!("one was offered"),
    };
    assert_eq!(may.err(), deleg.err(), "nobody came between");
    Ok((done.stateid, deleg))
}

fn give_back(c: &C, f: &str, stateid: &Stateid) -> Result<Effects<u32>, Status> {
    let plan = c.s.plan_delegreturn(&c.me, &file(f), stateid)?;
    assert!(plan.drain().is_done());
    assert_eq!(*plan.token(), 9);
    Ok(plan.commit())
}

fn blocked<T: std::fmt::Debug>(r: Result<T, Refused>) -> Vec<Recall> {
    match r {
        Err(Refused::Delegated(recalls)) => recalls,
        other => panic!("{other:?}"),
    }
}

struct Two {
    s: S,
    a: C,
    b: C,
}

fn two() -> Two {
    let s = server();
    let (a, b) = (C::new(&s, "a", t(0)), C::new(&s, "b", t(0)));
    Two { s, a, b }
}

use DelegKind::{Read, Write};

#[test]
fn readers_share_and_a_writer_recalls_them_all_once() {
    // RFC 8881 10.4, 10.4.4.
    let x = two();
    let c = C::new(&x.s, "c", t(0));
    let (_, da) = open(&x.a, "f", "o", Share::READ, Read, t(1)).unwrap();
    let (_, db) = open(&x.b, "f", "o", Share::READ, Read, t(1)).unwrap();
    let (da, db) = (da.unwrap(), db.unwrap());
    assert_eq!((x.s.delegations(), x.s.write_delegations()), (2, 0));
    let mut recalls = blocked(c.open("f", "o", Share::WRITE, Share::NONE, t(2)));
    recalls.sort_by_key(|r| r.client);
    assert_eq!(recalls.iter().map(|r| (r.client, r.stateid)).collect::<Vec<_>>(), [(x.a.id, da), (x.b.id, db)]);
    assert_eq!(blocked(c.open("f", "o", Share::WRITE, Share::NONE, t(3))), [], "each is sent once");
    // Recalled, it can still be used, and gives others the right to nothing.
    drop(x.a.io("f", &da, IoKind::Read, t(3)).unwrap());
    assert!(matches!(give_back(&x.a, "f", &da).unwrap()[..], [Effect::Close(9)]));
    assert_eq!(blocked(c.open("f", "o", Share::WRITE, Share::NONE, t(3))), []);
    give_back(&x.b, "f", &db).unwrap();
    c.open("f", "o", Share::WRITE, Share::NONE, t(3)).unwrap();
    assert_eq!(give_back(&x.b, "f", &db).unwrap_err(), Status::BAD_STATEID);
    assert_eq!(x.s.delegations(), 0);
}

#[test]
fn a_write_delegation_keeps_everybody_else_out() {
    // RFC 8881 10.4, 10.4.2, 10.4.4.
    let x = two();
    let (_, d) = open(&x.a, "f", "o", Share::BOTH, Write, t(1)).unwrap();
    let d = d.unwrap();
    let now = t(2);
    // The holder itself is not kept out.
    x.a.open("f", "p", Share::BOTH, Share::NONE, now).unwrap();
    drop(x.a.io("f", &Stateid::ANONYMOUS, IoKind::Write, now).unwrap());
    drop(x.s.begin_change(&x.a.me, &file("f"), now).unwrap());
    x.s.check_delegations(&x.a.me, &file("f"), Use::TestLock, now).unwrap();
    // Others are, each in turn; the first sends the recall.
    assert_eq!(blocked(x.s.check_delegations(&x.b.me, &file("f"), Use::TestLock, now)).len(), 1);
    assert_eq!(blocked(x.b.open("f", "o", Share::READ, Share::NONE, now)), []);
    assert_eq!(blocked(x.b.io("f", &Stateid::ANONYMOUS, IoKind::Read, now)), []);
    assert_eq!(blocked(x.b.io("f", &Stateid::READ_BYPASS, IoKind::Read, now)), []);
    assert_eq!(blocked(x.b.io("f", &Stateid::ANONYMOUS, IoKind::Write, now)), []);
    assert_eq!(blocked(x.s.begin_change(&x.b.me, &file("f"), now)), []);
    give_back(&x.a, "f", &d).unwrap();
    x.b.open("f", "o", Share::READ, Share::NONE, now).unwrap();
}

#[test]
fn a_read_delegation_stands_against_writing_and_denying_only() {
    let x = two();
    let (_, d) = open(&x.a, "f", "o", Share::READ, Read, t(1)).unwrap();
    d.unwrap();
    x.b.open("f", "o", Share::READ, Share::WRITE, t(1)).unwrap();
    drop(x.b.io("f", &Stateid::ANONYMOUS, IoKind::Read, t(1)).unwrap());
    x.s.check_delegations(&x.b.me, &file("f"), Use::TestLock, t(1)).unwrap();
    assert_eq!(
        blocked(
            x.b.open("g", "o", Share::READ, Share::NONE, t(1))
                .map_or_else(Err, |_| { x.b.s.begin_change(&x.b.me, &file("f"), t(1)).map(|_| ()) })
        )
        .len(),
        1
    );
    // Who denies reading to others stands against what the holder may do without asking.
    let (_, e) = open(&x.a, "h", "o", Share::READ, Read, t(1)).unwrap();
    let id = x.a.s.test_stateid(&x.a.me, &e.unwrap());
    assert_eq!(id, Status::OK);
    let own = x.a.close("h", &x.a.open("h", "o", Share::READ, Share::NONE, t(1)).unwrap()).unwrap();
    assert_eq!(own.len(), 1);
    assert_eq!(blocked(x.b.open("h", "o", Share::READ, Share::READ, t(1))).len(), 1);
}

#[test]
fn nothing_is_granted_against_others_or_without_a_path() {
    // RFC 8881 10.2, 10.4.
    let x = two();
    x.b.open("w", "o", Share::WRITE, Share::NONE, t(1)).unwrap();
    assert_eq!(open(&x.a, "w", "o", Share::READ, Read, t(1)).unwrap().1, Err(WhyNot::Contention));
    x.b.open("r", "o", Share::READ, Share::NONE, t(1)).unwrap();
    assert_eq!(open(&x.a, "r", "o", Share::BOTH, Write, t(1)).unwrap().1, Err(WhyNot::Contention));
    assert!(open(&x.a, "r", "p", Share::READ, Read, t(1)).unwrap().1.is_ok(), "its own writing open is no matter");
    // A write, or a change, under way.
    let write = x.b.io("s", &Stateid::ANONYMOUS, IoKind::Write, t(1)).unwrap();
    assert_eq!(open(&x.a, "s", "o", Share::READ, Read, t(1)).unwrap().1, Err(WhyNot::Contention));
    drop(write);
    open(&x.a, "s", "o", Share::READ, Read, t(1)).unwrap().1.unwrap();
    let change = x.s.begin_change(&x.b.me, &file("c"), t(1)).unwrap();
    assert_eq!(open(&x.a, "c", "o", Share::READ, Read, t(1)).unwrap().1, Err(WhyNot::Contention));
    drop(change);
    open(&x.a, "c", "o", Share::READ, Read, t(1)).unwrap().1.unwrap();
    // An open of another that is in the making.
    let plan = x.b.plan("m", "o", Share::READ, Share::NONE, t(1)).unwrap();
    assert_eq!(open(&x.a, "m", "o", Share::READ, Read, t(1)).unwrap().1, Err(WhyNot::Contention));
    drop(plan);
    // One for each client and file.
    assert_eq!(open(&x.a, "s", "o", Share::READ, Read, t(1)).unwrap().1, Err(WhyNot::Held(Read)));
    assert_eq!(open(&x.a, "s", "o", Share::BOTH, Write, t(1)).unwrap().1, Err(WhyNot::Held(Read)));
    // No callbacks, no delegations: until one is answered, or a connection is bound.
    x.a.me.called(false);
    assert_eq!(open(&x.a, "n", "o", Share::READ, Read, t(1)).unwrap().1, Err(WhyNot::Resource));
    x.a.me.called(true);
    x.s.conn_closed(x.a.conn);
    assert_eq!(open(&x.a, "n", "o", Share::READ, Read, t(1)).unwrap().1, Err(WhyNot::Resource));
}

#[test]
fn what_was_recalled_is_not_given_again_at_once() {
    let x = two();
    let (o, d) = open(&x.a, "f", "o", Share::READ, Read, t(1)).unwrap();
    assert_eq!(blocked(x.b.open("f", "o", Share::WRITE, Share::NONE, t(2))).len(), 1);
    give_back(&x.a, "f", &d.unwrap()).unwrap();
    x.a.close("f", &o).unwrap();
    assert_eq!(open(&x.a, "f", "o", Share::READ, Read, t(3)).unwrap().1, Err(WhyNot::Contention));
    assert!(open(&x.a, "f", "p", Share::READ, Read, t(68)).unwrap().1.is_ok());
}

#[test]
fn limits_are_kept_and_clients_are_asked_before_they_are_reached() {
    // RFC 8881 20.6.
    let s = server_with(Limits { delegations: 16, delegations_per_client: 8, ..limits() }, &[]);
    let a = C::new(&s, "a", t(0));
    let mut held = Vec::new();
    for i in 0..8 {
        let f = format!("f{i}");
        held.push((f.clone(), open(&a, &f, "o", Share::READ, Read, t(1)).unwrap().1.unwrap()));
    }
    assert_eq!(open(&a, "g", "o", Share::READ, Read, t(1)).unwrap().1, Err(WhyNot::Resource));
    assert!(s.limit_hits().delegations.count() > 0);
    let asks = |now| {
        let all = s.tick(now);
        all.into_iter().filter(|e| matches!(e, Effect::RecallAny { client, keep: 4 } if *client == a.id)).count()
    };
    assert_eq!(asks(t(2)), 1);
    assert_eq!(asks(t(3)), 0, "not again and again");
    for (f, d) in held.drain(..4) {
        give_back(&a, &f, &d).unwrap();
    }
    assert_eq!(asks(t(30)), 0);
}

#[test]
fn a_recall_that_is_not_heeded_ends_in_revocation() {
    // RFC 8881 10.4.5, 10.4.6, 18.38, 18.48.
    let mut x = two();
    let (o, d) = open(&x.a, "f", "o", Share::BOTH, Write, t(1)).unwrap();
    let d = d.unwrap();
    assert_eq!(blocked(x.s.begin_change(&x.b.me, &file("f"), t(10))).len(), 1);
    assert_eq!(x.s.free_stateid(&x.a.me, &d), Err(Status::LOCKS_HELD));
    let revokes = |s: &S, now| s.tick(now).into_iter().filter(|e| matches!(e, Effect::Revoke(i) if *i == d)).count();
    x.a.renew(t(80)).unwrap();
    assert_eq!(revokes(&x.s, t(10 + LEASE)), 0, "it has a lease time");
    // Writing back gives it longer.
    drop(x.a.io("f", &d, IoKind::Write, t(90)).unwrap());
    x.a.renew(t(120)).unwrap();
    assert_eq!(revokes(&x.s, t(11 + LEASE)), 0);
    x.a.renew(t(180)).unwrap();
    assert_eq!(revokes(&x.s, t(91 + LEASE)), 1);
    let plan = x.s.plan_revoke(&d).unwrap();
    // Under way: no new I/O, and nobody else is let in yet.
    assert_eq!(x.a.io("f", &d, IoKind::Read, t(181)).unwrap_err(), Refused::from(Status::DELAY));
    assert_eq!(blocked(x.s.begin_change(&x.b.me, &file("f"), t(181))), []);
    assert!(matches!(plan.commit()[..], [Effect::Close(9)]));
    drop(x.s.begin_change(&x.b.me, &file("f"), t(181)).unwrap());
    assert_eq!(x.s.delegations(), 0);
    // The client is told, finds out which, and frees it; the open goes on.
    let flags = |c: &mut C, now| c.begin(0, now).unwrap().result().status_flags;
    let revoked = dhow_proto::v4::ops::seq4_status::RECALLABLE_STATE_REVOKED;
    assert_eq!(flags(&mut x.a, t(182)) & revoked, revoked);
    assert_eq!(flags(&mut x.b, t(182)) & revoked, 0);
    assert_eq!(x.s.test_stateid(&x.a.me, &d), Status::DELEG_REVOKED);
    assert_eq!(x.s.test_stateid(&x.b.me, &d), Status::BAD_STATEID);
    assert_eq!(x.a.io("f", &d, IoKind::Write, t(182)).unwrap_err(), Refused::from(Status::DELEG_REVOKED));
    assert_eq!(give_back(&x.a, "f", &d).unwrap_err(), Status::DELEG_REVOKED);
    drop(x.a.io("f", &o, IoKind::Write, t(182)).unwrap());
    assert_eq!(x.s.free_stateid(&x.b.me, &d), Err(Status::BAD_STATEID));
    x.s.free_stateid(&x.a.me, &d).unwrap();
    assert_eq!(x.s.test_stateid(&x.a.me, &d), Status::BAD_STATEID);
    assert_eq!(flags(&mut x.a, t(183)) & revoked, 0);
}

#[test]
fn writing_back_does_not_put_the_end_off_for_ever() {
    let x = two();
    let (_, d) = open(&x.a, "f", "o", Share::BOTH, Write, t(0)).unwrap();
    let d = d.unwrap();
    assert_eq!(blocked(x.s.begin_change(&x.b.me, &file("f"), t(0))).len(), 1);
    for i in 1..20 {
        drop(x.a.io("f", &d, IoKind::Write, t(i * LEASE / 2)).unwrap());
        if x.s.tick(t(i * LEASE / 2)).iter().any(|e| matches!(e, Effect::Revoke(_))) {
            return assert!(i > 8, "{i}");
        }
    }
    panic!("never revoked");
}

#[test]
fn clients_whose_lease_has_ended_are_in_nobodys_way() {
    // Case B32.
    let mut x = two();
    let (_, d) = open(&x.a, "f", "o", Share::BOTH, Write, t(1)).unwrap();
    d.unwrap();
    let late = t(2 + LEASE);
    x.b.renew(late).unwrap();
    assert_eq!(x.b.open("f", "o", Share::READ, Share::NONE, late).unwrap_err(), Refused::Courtesy(x.a.id));
    assert_eq!(x.s.begin_change(&x.b.me, &file("f"), late).unwrap_err(), Refused::Courtesy(x.a.id));
    assert_eq!(x.s.recall_file(&file("f"), late), (vec![], vec![x.a.id]), "a local writer does not wait either");
    assert_eq!(x.s.write_holder(Some(x.b.id), &file("f"), late).unwrap_err(), Refused::Courtesy(x.a.id));
    let r = x.s.retire(x.a.id, late).unwrap();
    assert_eq!(r.files(), [file("f")]);
    assert_eq!(r.delegation(&file("f")), Some(9), "what guards it is given up first");
    assert_eq!(r.free(&file("f")).len(), 2);
    assert!(r.finish().is_empty());
    assert_eq!((x.s.delegations(), x.s.counts().files), (0, 0));
    x.b.open("f", "o", Share::READ, Share::NONE, late).unwrap();
}

#[test]
fn its_stateid_reads_writes_and_opens() {
    // RFC 8881 8.2.5, 9.1.2, 18.16.3.
    let x = two();
    let (o, d) = open(&x.a, "f", "o", Share::READ, Read, t(1)).unwrap();
    let d = d.unwrap();
    assert_eq!(d.seqid, 1);
    x.a.close("f", &o).unwrap();
    let token = x.a.io("f", &d, IoKind::Read, t(1)).unwrap();
    assert_eq!(token.open(), Some(&9), "it outlives the open");
    assert_eq!(x.a.io("f", &d, IoKind::Write, t(1)).unwrap_err(), Refused::from(Status::OPENMODE));
    let bad = Refused::from(Status::BAD_STATEID);
    assert_eq!(x.b.io("f", &d, IoKind::Read, t(1)).unwrap_err(), bad);
    assert_eq!(x.a.io("g", &d, IoKind::Read, t(1)).unwrap_err(), bad);
    assert_eq!(x.a.io("f", &Stateid { seqid: 2, ..d }, IoKind::Read, t(1)).unwrap_err(), bad);
    drop(x.a.io("f", &Stateid { seqid: 0, ..d }, IoKind::Read, t(1)).unwrap());
    let by = |c: &C, stateid, access| {
        let (f, owner) = (file("f"), bytes("p"));
        let claim = Claim::Delegated(stateid);
        let req = OpenRequest { file: &f, owner: &owner, access, deny: Share::NONE, claim };
        c.s.plan_open(&c.me, &req, t(2)).map(|plan| plan.commit(1).unwrap().stateid)
    };
    assert_eq!(by(&x.a, d, Share::WRITE).unwrap_err(), Refused::from(Status::INVAL));
    assert_eq!(by(&x.b, d, Share::READ).unwrap_err(), bad);
    // Also while it is being recalled: that is what it is for.
    assert_eq!(x.s.recall(&d, t(2)).map(|r| r.client), Some(x.a.id));
    assert_eq!(x.s.recall(&d, t(2)), None);
    by(&x.a, d, Share::READ).unwrap();
    // DELEGRETURN waits for the I/O under it.
    let plan = x.s.plan_delegreturn(&x.a.me, &file("f"), &d).unwrap();
    assert!(!plan.drain().is_done());
    assert_eq!(x.s.plan_delegreturn(&x.a.me, &file("f"), &d).unwrap_err(), Status::DELAY);
    drop(plan);
    drop(token);
    give_back(&x.a, "f", &d).unwrap();
    assert_eq!(by(&x.a, d, Share::READ).unwrap_err(), bad);
}

#[test]
fn copies_between_servers_may_rest_on_it() {
    // RFC 7862 15.3; cases K10, K13.
    let x = two();
    let (o, d) = open(&x.a, "f", "o", Share::READ, Read, t(1)).unwrap();
    let d = d.unwrap();
    x.a.close("f", &o).unwrap();
    let notify = |stateid: &Stateid| x.s.notify_begin(&x.a.me, &file("f"), stateid, |t| t + 1, t(2));
    assert_eq!(x.s.notify_begin(&x.b.me, &file("f"), &d, |t| t + 1, t(2)).unwrap_err(), Status::BAD_STATEID);
    let n = notify(&d).unwrap();
    let token = x.s.notify_io(&file("f"), &n, t(3)).unwrap();
    assert_eq!((token.open(), token.behalf()), (Some(&9), Some(&10)));
    let end = x.s.plan_delegreturn(&x.a.me, &file("f"), &d).unwrap();
    assert!(!end.drain().is_done(), "its return waits for the reading");
    drop(token);
    end.commit();
    assert_eq!(x.s.notify_io(&file("f"), &n, t(3)).unwrap_err(), Status::BAD_STATEID);
    assert_eq!((x.s.notifies(), notify(&d).unwrap_err()), (0, Status::BAD_STATEID));
    // Revocation ends it as well.
    let (_, e) = open(&x.a, "g", "o", Share::READ, Read, t(4)).unwrap();
    let e = e.unwrap();
    x.s.notify_begin(&x.a.me, &file("g"), &e, |t| t + 1, t(4)).unwrap();
    x.s.plan_revoke(&e).unwrap().commit();
    assert_eq!(x.s.notifies(), 0);
}

#[test]
fn a_guarded_one_yields_to_its_holders_own_writing() {
    // What watches for local writers would be broken by it.
    let x = two();
    let plan = x.a.plan("f", "o", Share::READ, Share::NONE, t(1)).unwrap();
    let guarded = Offer { guarded: true, ..offer(Read, t(1)) };
    let Delegated::Granted(d) = plan.commit_with(1, Some(guarded)).unwrap().deleg else { panic!() };
    assert_eq!(blocked(x.a.open("f", "p", Share::WRITE, Share::NONE, t(1))).len(), 1);
    assert_eq!(blocked(x.a.io("f", &Stateid::ANONYMOUS, IoKind::Write, t(1))), []);
    x.a.open("f", "q", Share::READ, Share::NONE, t(1)).unwrap();
    drop(x.s.begin_change(&x.a.me, &file("f"), t(1)).unwrap());
    give_back(&x.a, "f", &d).unwrap();
}

#[test]
fn reclaimed_in_grace_only() {
    // RFC 8881 9.11, 10.2.1.
    let s = server_with(limits(), &["a"]);
    let a = C::reclaiming(&s, "a", t(1));
    let (f, owner) = (file("f"), bytes("o"));
    let req = OpenRequest { file: &f, owner: &owner, access: Share::READ, deny: Share::NONE, claim: Claim::Reclaim };
    let plan = s.plan_open(&a.me, &req, t(1)).unwrap();
    plan.may_delegate(Read, true, t(1)).unwrap();
    let again = Offer { reclaim: true, recalled: true, ..offer(Read, t(1)) };
    let Delegated::Granted(d) = plan.commit_with(1, Some(again)).unwrap().deleg else { panic!() };
    // Recalled as it was granted: no CB_RECALL is due, but its return is.
    assert_eq!(s.recall(&d, t(1)), None);
    let _ = s.reclaim_complete(&a.me).unwrap();
    assert_eq!(s.plan_open(&a.me, &req, t(2)).unwrap_err(), Refused::from(Status::NO_GRACE));
    assert!(s.tick(t(2 + LEASE)).iter().any(|e| matches!(e, Effect::Revoke(i) if *i == d)));
}

#[test]
fn others_see_the_file_change_at_its_holder() {
    // RFC 8881 10.4.3: greater each time, once it is modified.
    let x = two();
    let (_, d) = open(&x.a, "f", "o", Share::BOTH, Write, t(1)).unwrap();
    let d = d.unwrap();
    let own = x.s.write_holder(Some(x.a.id), &file("f"), t(1)).unwrap();
    assert!(own.is_none(), "the holder is not asked about itself");
    let holder = x.s.write_holder(Some(x.b.id), &file("f"), t(1)).unwrap().unwrap();
    assert_eq!((holder.client, holder.stateid, holder.token), (x.a.id, d, 9));
    assert_eq!(x.s.observed(&d, Some(100), 5, 100, 5), None);
    assert_eq!(x.s.observed(&d, Some(101), 5, 100, 5), Some(101));
    assert_eq!(x.s.observed(&d, Some(101), 5, 100, 5), Some(102), "it may have changed again");
    assert_eq!(x.s.observed(&d, Some(100), 5, 200, 5), Some(201), "modified it stays");
    let (_, e) = open(&x.a, "g", "o", Share::BOTH, Write, t(1)).unwrap();
    assert_eq!(x.s.observed(&e.unwrap(), Some(100), 6, 100, 5), Some(101), "the size alone tells, too");
}

/// What may happen, in any order; plans stay open across other steps.
#[derive(Clone, Debug)]
enum Step {
    Plan { client: usize, access: u32, kind: bool },
    Commit { nth: usize, offered: bool },
    Drop { nth: usize },
    Close { nth: usize },
    Return { nth: usize, drop: bool },
    Finish { nth: usize },
    Change { client: usize },
    Unchange,
    Special { client: usize, write: bool },
    Unspecial,
    LocalWriter,
    Pass { secs: u64 },
    Renew { client: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let c = 0usize..3;
    prop_oneof![
        5 => (c.clone(), 1u32..4, any::<bool>()).prop_map(|(client, access, kind)| Step::Plan { client, access, kind }),
        6 => (0usize..4, prop::bool::weighted(0.8)).prop_map(|(nth, offered)| Step::Commit { nth, offered }),
        1 => (0usize..4).prop_map(|nth| Step::Drop { nth }),
        3 => (0usize..8).prop_map(|nth| Step::Close { nth }),
        3 => (0usize..4, prop::bool::weighted(0.2)).prop_map(|(nth, drop)| Step::Return { nth, drop }),
        4 => (0usize..4).prop_map(|nth| Step::Finish { nth }),
        2 => c.clone().prop_map(|client| Step::Change { client }),
        2 => Just(Step::Unchange),
        1 => (c.clone(), any::<bool>()).prop_map(|(client, write)| Step::Special { client, write }),
        2 => Just(Step::Unspecial),
        1 => Just(Step::LocalWriter),
        2 => (1u64..60).prop_map(|secs| Step::Pass { secs }),
        3 => c.prop_map(|client| Step::Renew { client }),
    ]
}

/// The reference: who holds what of one file.
#[derive(Default)]
struct Model {
    /// Delegations by client: stateid, kind, recalled.
    held: BTreeMap<usize, (Stateid, DelegKind, bool)>,
    /// Opens: client, owner, access, stateid.
    opens: Vec<(usize, u32, u32, Stateid)>,
    revoked: Vec<(usize, Stateid)>,
}

impl Model {
    /// Whom a use by `client` must wait for.
    fn against(&self, client: usize, write: bool, change: bool) -> Vec<usize> {
        let stands = |kind: DelegKind| kind == Write || write || change;
        self.held.iter().filter(|(c, d)| **c != client && stands(d.1)).map(|(c, _)| *c).collect()
    }

    /// What delegations promise their holders (RFC 8881 10.4).
    fn check(&self) -> Result<(), String> {
        for (c, (_, kind, _)) in &self.held {
            let others = self.held.keys().any(|o| o != c);
            if *kind == Write && others {
                return Err(format!("a write delegation of {c} is not alone"));
            }
            let theirs = |o: &&(usize, u32, u32, Stateid)| o.0 != *c && (*kind == Write || o.2 & 2 != 0);
            if let Some(o) = self.opens.iter().find(theirs) {
                return Err(format!("{c} holds {kind:?} beside {o:?}"));
            }
        }
        Ok(())
    }

    fn recalled(&mut self, recalls: &[Recall]) -> Result<(), String> {
        for r in recalls {
            let d = self.held.values_mut().find(|d| d.0 == r.stateid).ok_or("a recall of what is gone")?;
            if std::mem::replace(&mut d.2, true) {
                return Err("recalled twice".into());
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// OPEN, CLOSE, recalls, DELEGRETURN, revocation, changes, special stateids and ended leases on one file, with plans
    /// that stay open while others go on: at every moment what was answered holds.
    #[test]
    fn one_file_under_any_schedule(steps in prop::collection::vec(step(), 1..80)) {
        let s = server();
        let key = file("f");
        let mut now = t(0);
        let clients: Vec<C> = (0..3).map(|i| C::new(&s, &format!("c{i}"), now)).collect();
        let mut alive = [true; 3];
        let mut clients = clients;
        let mut m = Model::default();
        let (mut plans, mut ends, mut changes, mut specials) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut owners = 0u32;
        // Retires a client that is in the way; its plans must be gone for it to be free of effects.
        macro_rules! gone {
            ($id:expr) => {{
                let i = clients.iter().position(|c| c.id == $id).unwrap();
                prop_assert!(clients[i].me.is_expired(now) || clients[i].me.is_dying(), "retired although alive");
                ends.retain(|e: &(usize, Stateid, bool, DelegEnd<'_, u32>)| e.0 != i);
                let r = s.retire($id, now);
                if let Some(r) = r {
                    prop_assert!(ready(r.drain()));
                    r.finish();
                }
                alive[i] = false;
                m.held.remove(&i);
                m.opens.retain(|o| o.0 != i);
                m.revoked.retain(|o| o.0 != i);
            }};
        }
        for step in steps {
            match step {
                Step::Plan { client, access, kind } if alive[client] && !clients[client].me.is_expired(now) => {
                    let kind = if kind && access & 2 != 0 { Write } else { Read };
                    owners += 1;
                    let share = Share::from_bits(access).unwrap();
                    let (f, owner) = (key.clone(), bytes(&format!("o{owners}")));
                    let req = OpenRequest { file: &f, owner: &owner, access: share, deny: Share::NONE, claim: Claim::New };
                    let against = m.against(client, access & 2 != 0, false);
                    match s.plan_open(&clients[client].me, &req, now) {
                        Ok(plan) => {
                            prop_assert!(against.is_empty(), "let in against {:?}", against);
                            plans.push((client, owners, access, kind, plan));
                        }
                        Err(Refused::Delegated(recalls)) => {
                            prop_assert!(!against.is_empty());
                            m.recalled(&recalls).map_err(TestCaseError::fail)?;
                        }
                        Err(Refused::Courtesy(id)) => gone!(id),
                        Err(e) => prop_assert!(false, "{e:?}"),
                    }
                }
                Step::Commit { nth, offered } if nth < plans.len() => {
                    let (client, owner, access, kind, plan) = plans.remove(nth);
                    let offer = offered.then(|| offer(kind, now));
                    match plan.commit_with(1, offer) {
                        Ok(done) => {
                            prop_assert!(alive[client]);
                            m.opens.push((client, owner, access, done.stateid));
                            if let Delegated::Granted(d) = done.deleg {
                                prop_assert!(changes.is_empty(), "granted during a change");
                                prop_assert!(!specials.iter().any(|(w, _)| *w), "granted during a write");
                                prop_assert!(m.held.insert(client, (d, kind, false)).is_none());
                            }
                        }
                        Err((status, ..)) => prop_assert!(!alive[client], "{status}"),
                    }
                }
                Step::Drop { nth } if nth < plans.len() => drop(plans.remove(nth)),
                Step::Close { nth } if nth < m.opens.len() => {
                    let (client, _, _, stateid) = m.opens.remove(nth);
                    clients[client].close("f", &stateid).unwrap();
                }
                Step::Return { nth, drop } => {
                    let Some((client, d)) = m.held.iter().nth(nth).map(|(c, d)| (*c, d.0)) else { continue };
                    match s.plan_delegreturn(&clients[client].me, &key, &d) {
                        Ok(plan) if drop => std::mem::drop(plan),
                        Ok(plan) => ends.push((client, d, false, plan)),
                        Err(status) => {
                            prop_assert!(status == Status::DELAY && ends.iter().any(|e| e.1 == d), "{status}");
                        }
                    }
                }
                Step::Finish { nth } if nth < ends.len() => {
                    let (client, d, revoke, plan) = ends.remove(nth);
                    plan.commit();
                    prop_assert_eq!(m.held.remove(&client).map(|h| h.0), Some(d));
                    if revoke {
                        m.revoked.push((client, d));
                    }
                }
                Step::Change { client } if alive[client] && !clients[client].me.is_expired(now) => {
                    let against = m.against(client, false, true);
                    match s.begin_change(&clients[client].me, &key, now) {
                        Ok(change) => {
                            prop_assert!(against.is_empty());
                            changes.push(change);
                        }
                        Err(Refused::Delegated(recalls)) => {
                            prop_assert!(!against.is_empty());
                            m.recalled(&recalls).map_err(TestCaseError::fail)?;
                        }
                        Err(Refused::Courtesy(id)) => gone!(id),
                        Err(e) => prop_assert!(false, "{e:?}"),
                    }
                }
                Step::Unchange => _ = changes.pop(),
                Step::Special { client, write } if alive[client] && !clients[client].me.is_expired(now) => {
                    let kind = if write { IoKind::Write } else { IoKind::Read };
                    let against = m.against(client, write, false);
                    match clients[client].io("f", &Stateid::ANONYMOUS, kind, now) {
                        Ok(io) => {
                            prop_assert!(against.is_empty());
                            specials.push((write, io));
                        }
                        Err(Refused::Delegated(recalls)) => {
                            prop_assert!(!against.is_empty());
                            m.recalled(&recalls).map_err(TestCaseError::fail)?;
                        }
                        Err(Refused::Courtesy(id)) => gone!(id),
                        Err(e) => prop_assert!(false, "{e:?}"),
                    }
                }
                Step::Unspecial => _ = specials.pop(),
                Step::LocalWriter => {
                    let (recalls, over) = s.recall_file(&key, now);
                    m.recalled(&recalls).map_err(TestCaseError::fail)?;
                    for id in over {
                        gone!(id);
                    }
                    prop_assert!(m.held.values().all(|d| d.2), "not all were recalled");
                }
                Step::Pass { secs } => {
                    now = now + Duration::from_secs(secs);
                    for effect in s.tick(now) {
                        match effect {
                            Effect::Revoke(d) => {
                                let c = m.held.iter().find(|(_, h)| h.0 == d).map(|(c, h)| (*c, h.2));
                                let Some((client, recalled)) = c else { panic!("revokes what is gone") };
                                prop_assert!(recalled, "revokes what was not recalled");
                                ends.push((client, d, true, s.plan_revoke(&d).unwrap()));
                            }
                            Effect::Retire(id) => gone!(id),
                            _ => {}
                        }
                    }
                }
                Step::Renew { client } if alive[client] => {
                    let renewed = clients[client].renew(now).is_ok();
                    prop_assert!(renewed || clients[client].me.is_dying());
                }
                _ => {}
            }
            m.check().map_err(TestCaseError::fail)?;
            prop_assert_eq!(s.delegations(), m.held.len());
            prop_assert_eq!(s.write_delegations(), m.held.values().filter(|d| d.1 == Write).count());
            prop_assert_eq!(s.counts().opens, m.opens.len());
            for (client, d) in &m.revoked {
                prop_assert_eq!(s.test_stateid(&clients[*client].me, d), Status::DELEG_REVOKED);
            }
        }
        // Whatever happened, everything comes back.
        drop((plans, changes, specials));
        ends.clear();
        for (client, d) in m.revoked.drain(..) {
            s.free_stateid(&clients[client].me, &d).unwrap();
        }
        for (client, (d, ..)) in std::mem::take(&mut m.held) {
            clients[client].s.plan_delegreturn(&clients[client].me, &key, &d).unwrap().commit();
        }
        for (client, _, _, stateid) in m.opens.drain(..) {
            clients[client].close("f", &stateid).unwrap();
        }
        prop_assert_eq!((s.delegations(), s.counts().files, s.counts().opens), (0, 0, 0));
    }
}

#[test]
fn who_changed_a_name_alone_is_given_a_delegation_for_a_while() {
    // RFC 8881 10.4 says nothing of names, and yet Linux believes in one as long as it holds a delegation.
    let x = two();
    let change = x.s.begin_change(&x.b.me, &file("f"), t(1)).unwrap();
    change.names_changed(&x.b.me, t(1));
    drop(change);
    let (opened, none) = open(&x.a, "f", "o", Share::READ, Read, t(2)).unwrap();
    assert_eq!(none, Err(WhyNot::Contention));
    let (_, d) = open(&x.b, "f", "o", Share::READ, Read, t(2)).unwrap();
    give_back(&x.b, "f", &d.unwrap()).unwrap();
    x.a.close("f", &opened).unwrap();
    // A second change, by the other: for nobody, then.
    let change = x.s.begin_change(&x.a.me, &file("f"), t(3)).unwrap();
    change.names_changed(&x.a.me, t(3));
    drop(change);
    for c in [&x.a, &x.b] {
        assert_eq!(open(c, "f", "p", Share::READ, Read, t(67)).unwrap().1, Err(WhyNot::Contention));
    }
    let (_, d) = open(&x.a, "f", "q", Share::READ, Read, t(69)).unwrap();
    assert!(d.is_ok(), "it is over");
}
