//! Grace and reclaim (RFC 8881 8.4.2.1, 9.11, 18.51; case B31).

use crate::common::*;
use dhow_state::*;

fn reclaim(c: &C, f: &str, claim: Claim, now: Time) -> Result<Stateid, Refused> {
    let (f, o) = (file(f), bytes("o"));
    let req = OpenRequest { file: &f, owner: &o, access: Share::BOTH, deny: Share::NONE, claim };
    Ok(c.s.plan_open(&c.me, &req, now)?.commit(1).unwrap().stateid)
}

#[test]
fn a_fresh_server_grants_at_once() {
    let s = server();
    assert!(!s.in_grace());
    let c = C::new(&s, "c", t(0));
    assert!(c.open("f", "o", Share::READ, Share::NONE, t(0)).is_ok());
    assert_eq!(reclaim(&c, "g", Claim::Reclaim, t(0)).unwrap_err(), Status::NO_GRACE.into());
}

#[test]
fn new_state_waits_for_reclaim_complete() {
    // RFC 8881 18.51.3.
    let s = server();
    let c = C::reclaiming(&s, "c", t(0));
    assert_eq!(c.open("f", "o", Share::READ, Share::NONE, t(0)).unwrap_err(), Status::GRACE.into());
    assert!(s.reclaim_complete(&c.me).unwrap().is_empty());
    assert!(c.open("f", "o", Share::READ, Share::NONE, t(0)).is_ok());
    assert_eq!(s.reclaim_complete(&c.me).unwrap_err(), Status::COMPLETE_ALREADY);
}

#[test]
fn known_clients_reclaim_and_the_last_ends_grace() {
    let s = server_with(limits(), &["a", "b"]);
    assert!(s.in_grace());
    let a = C::reclaiming(&s, "a", t(1));
    let stranger = C::new(&s, "x", t(1));
    assert_eq!(stranger.open("f", "o", Share::READ, Share::NONE, t(1)).unwrap_err(), Status::GRACE.into());
    assert_eq!(reclaim(&stranger, "f", Claim::Reclaim, t(1)).unwrap_err(), Status::NO_GRACE.into());
    let sid = reclaim(&a, "f", Claim::Reclaim, t(1)).unwrap();
    assert_eq!(reclaim(&a, "g", Claim::New, t(1)).unwrap_err(), Status::GRACE.into());

    // I/O: under the reclaimed open; not under a special stateid, for somebody may still reclaim a deny.
    assert!(a.io("f", &sid, IoKind::Write, t(1)).is_ok());
    assert_eq!(a.io("f", &Stateid::ANONYMOUS, IoKind::Write, t(1)).unwrap_err(), Status::GRACE.into());

    // Locks.
    let (f, o) = (file("f"), bytes("l"));
    let locker = Locker::New { open: &sid, owner: &o };
    let req = LockRequest { file: &f, locker, range: range(0, 9), kind: LockKind::Write, claim: Claim::New };
    assert_eq!(s.plan_lock(&a.me, &req, t(1)).unwrap_err(), Status::GRACE.into());
    assert_eq!(s.test_lock(&stranger.me, &f, &o, range(0, 0), LockKind::Read, t(1)), Err(Status::GRACE.into()));
    let req = LockRequest { claim: Claim::Reclaim, ..req };
    let lock = s.plan_lock(&a.me, &req, t(1)).unwrap().commit().unwrap();
    assert_eq!(lock.seqid, 1);

    assert!(s.reclaim_complete(&a.me).unwrap().is_empty());
    assert_eq!(reclaim(&a, "h", Claim::Reclaim, t(2)).unwrap_err(), Status::NO_GRACE.into());
    let b = C::reclaiming(&s, "b", t(3));
    assert!(matches!(s.reclaim_complete(&b.me).unwrap()[..], [Effect::GraceEnded]));
    assert!(!s.in_grace());
    assert!(stranger.open("f", "o", Share::READ, Share::NONE, t(3)).is_ok());
}

#[test]
fn time_up_forgets_those_who_did_not_finish_before_it_grants() {
    // RFC 8881 8.4.3: the client that was cut off may not reclaim at the restart after this one.
    let s = server_with(limits(), &["a", "b"]);
    let a = C::reclaiming(&s, "a", t(1));
    reclaim(&a, "f", Claim::Reclaim, t(1)).unwrap();
    let x = C::new(&s, "x", t(80));
    let effects = s.tick(t(90));
    assert!(matches!(&effects[..], [Effect::EndGrace(o)] if *o == [owner_id("a"), owner_id("b")]));
    assert_eq!(x.open("g", "o", Share::READ, Share::NONE, t(90)).unwrap_err(), Status::GRACE.into());
    assert_eq!(reclaim(&a, "g", Claim::Reclaim, t(90)).unwrap_err(), Status::NO_GRACE.into());
    s.grace_over();
    assert!(x.open("g", "o", Share::READ, Share::NONE, t(90)).is_ok());
    assert!(a.me.needs_record(Holds::NONE).is_some(), "what it reclaimed is protected again once it is recorded");
    assert!(s.reclaim_complete(&a.me).unwrap().is_empty());
}

#[test]
fn a_client_that_comes_back_is_known_to_be_recorded() {
    let s = server_with(limits(), &["a"]);
    let e = s.exchange_id(&exchange("a", 1, 0), t(0)).unwrap();
    s.create_session(ConnId(1), 1, &session_args(e.client, 1), &who(0), t(0)).unwrap();
    let a = s.client(e.client).unwrap();
    assert!(a.needs_record(Holds::NONE).is_none());
    assert!(a.needs_record(Holds::DENIALS).is_some(), "its record does not say so yet");
    s.destroy_session(ConnId(1), s.session(SessionId::default()).map_or_else(|| only_session(&s, &a), |x| x.id()))
        .unwrap();
    assert_eq!(s.destroy_client(e.client, None, t(0)), Ok(Some(e.client)));
    assert_eq!(
        retire(&s, e.client, t(0)).unwrap().1,
        Some(owner_id("a")),
        "so that the next start has no grace for it"
    );
}

fn only_session(s: &S, c: &Client) -> SessionId {
    let cb = s.callback(c.id(), None).unwrap();
    let id = cb.session().id();
    cb.refused();
    id
}

/// A read delegation that was given with an OPEN, in whatever way.
fn delegated(c: &C, f: &str, claim: Claim, now: Time) -> Result<Stateid, Refused> {
    let (file, owner) = (file(f), bytes("o"));
    let req = OpenRequest { file: &file, owner: &owner, access: Share::READ, deny: Share::NONE, claim };
    let plan = c.s.plan_open(&c.me, &req, now)?;
    let reclaim = claim == Claim::Reclaim;
    let (kind, granted_by) = (DelegKind::Read, None);
    let offer = Offer { kind, token: 9, guarded: false, granted_by, change: 0, reclaim, recalled: false, now };
    match plan.commit_with(1, Some(offer)).unwrap().deleg {
        Delegated::Granted(stateid) => Ok(stateid),
        other => panic!("{other:?}"),
    }
}

fn revoke(s: &S, d: &Stateid) -> ClientRecord {
    let plan = s.plan_revoke(d).unwrap();
    assert!(plan.revokes());
    let record = plan.record().unwrap();
    assert!(plan.commit().len() == 1);
    record
}

#[test]
fn what_was_revoked_is_in_the_record_until_the_client_knows() {
    // RFC 8881 8.4.3, 10.2.1, 18.38.
    let s = server();
    let (a, b) = (C::new(&s, "a", t(0)), C::new(&s, "b", t(0)));
    let (f, g) = (delegated(&a, "f", Claim::New, t(1)).unwrap(), delegated(&a, "g", Claim::New, t(1)).unwrap());
    assert!(matches!(b.open("f", "o", Share::WRITE, Share::NONE, t(2)), Err(Refused::Delegated(_))));
    let record = revoke(&s, &f);
    assert_eq!(record.owner, owner_id("a"));
    assert_eq!(record.revoked.files.iter().cloned().collect::<Vec<_>>(), [file("f")]);
    assert!(revoke(&s, &g).revoked.contains(&file("f")), "both by now");
    assert!(!a.me.has_outdated_record());
    s.free_stateid(&a.me, &f).unwrap();
    let record = a.me.outdated_record().unwrap();
    assert_eq!(record.revoked.files.into_iter().collect::<Vec<_>>(), [file("g")]);
    assert_eq!(a.me.outdated_record(), None, "told once");
    s.free_stateid(&a.me, &g).unwrap();
    assert!(a.me.outdated_record().unwrap().revoked.is_empty());
}

#[test]
fn a_revocation_that_was_not_recorded_does_not_stay() {
    let s = server();
    let a = C::new(&s, "a", t(0));
    let d = delegated(&a, "f", Claim::New, t(1)).unwrap();
    let plan = s.plan_revoke(&d).unwrap();
    assert!(plan.record().is_some());
    // The store failed. Then the client returns it after all.
    drop(plan);
    let back = s.plan_delegreturn(&a.me, &file("f"), &d).unwrap();
    assert!(!back.revokes());
    back.commit();
    assert!(a.me.outdated_record().unwrap().revoked.is_empty());
}

#[test]
fn a_revoked_delegation_is_not_reclaimed_and_all_else_is() {
    // RFC 8881 8.4.3, 10.2.1.
    let mut revoked = Revoked::default();
    revoked.insert(file("f"));
    let previous = vec![ClientRecord { owner: owner_id("a"), holds: Holds::DELEGATIONS, revoked }];
    let s = std::sync::Arc::new(State::new(limits(), &Identity { instance: 2, secret: [7; 16] }, previous, t(0)));
    let a = C::reclaiming(&s, "a", t(0));
    assert_eq!(s.may_reclaim_delegation(&a.me, &file("f")), Err(Status::RECLAIM_BAD));
    s.may_reclaim_delegation(&a.me, &file("g")).unwrap();
    let g = delegated(&a, "g", Claim::Reclaim, t(1)).unwrap();
    let (f, owner) = (file("f"), bytes("o"));
    let req = OpenRequest { file: &f, owner: &owner, access: Share::BOTH, deny: Share::NONE, claim: Claim::Reclaim };
    s.plan_open(&a.me, &req, t(1)).unwrap().commit(1).unwrap();
    // By right of what was reclaimed, also in grace (10.2.1); by right of nothing, not.
    let more = |f: &FileKey, owner: &str, d: Stateid| {
        let owner = bytes(owner);
        let claim = Claim::Delegated(d);
        let req = OpenRequest { file: f, owner: &owner, access: Share::READ, deny: Share::NONE, claim };
        s.plan_open(&a.me, &req, t(1)).map(|plan| plan.commit(1).unwrap().stateid)
    };
    more(&file("g"), "another", g).unwrap();
    assert_eq!(more(&file("h"), "another", g).unwrap_err(), Refused::Status(Status::BAD_STATEID));
    // The record says so until the client has reclaimed.
    assert!(!a.me.has_outdated_record());
    let _ = s.reclaim_complete(&a.me).unwrap();
    assert!(a.me.outdated_record().unwrap().revoked.is_empty());
    s.may_reclaim_delegation(&a.me, &file("f")).unwrap();
}

#[test]
fn a_record_that_revokes_all_leaves_opens() {
    let revoked = Revoked { all: true, ..Revoked::default() };
    let previous = vec![ClientRecord { owner: owner_id("a"), holds: Holds::ALL, revoked }];
    let s = std::sync::Arc::new(State::new(limits(), &Identity { instance: 2, secret: [7; 16] }, previous, t(0)));
    let a = C::reclaiming(&s, "a", t(0));
    assert_eq!(s.may_reclaim_delegation(&a.me, &file("any")), Err(Status::RECLAIM_BAD));
    let (f, owner) = (file("any"), bytes("o"));
    let req = OpenRequest { file: &f, owner: &owner, access: Share::READ, deny: Share::NONE, claim: Claim::Reclaim };
    s.plan_open(&a.me, &req, t(1)).unwrap().commit(1).unwrap();
}

#[test]
fn changes_in_grace_wait_for_what_the_records_know_of() {
    // RFC 8881 8.4.2.1, 10.2.1.
    let record = |owner: &str, holds| ClientRecord { owner: owner_id(owner), holds, revoked: Revoked::default() };
    let start = |records: Vec<ClientRecord>| {
        std::sync::Arc::new(State::new(limits(), &Identity { instance: 2, secret: [7; 16] }, records, t(0)))
    };
    let grace: Result<(), Refused> = Err(Status::GRACE.into());
    // Nobody held anything that stands against a change.
    let s = start(vec![record("a", Holds::NONE), record("b", Holds::NONE)]);
    let stranger = C::new(&s, "x", t(0));
    assert!(s.in_grace() && !s.has_delegations());
    assert!(s.begin_unseen_removal().is_some());
    assert!(s.begin_change(&stranger.me, &file("f"), t(1)).is_ok());
    assert!(s.begin_removal(&stranger.me, &file("f"), t(1)).is_ok());

    // One may have held delegations, another denied writing.
    let s = start(vec![record("a", Holds::DELEGATIONS), record("b", Holds::DENIALS), record("c", Holds::NONE)]);
    let (a, b) = (C::reclaiming(&s, "a", t(0)), C::reclaiming(&s, "b", t(0)));
    let c = C::reclaiming(&s, "c", t(0));
    let change = |by: &C, f: &str| s.begin_change(&by.me, &file(f), t(1)).map(drop);
    let removal = |by: &C, f: &str| s.begin_removal(&by.me, &file(f), t(1)).map(drop);
    assert!(s.has_delegations() && s.begin_unseen_removal().is_none());
    assert_eq!((change(&b, "f"), removal(&b, "f")), (grace.clone(), grace.clone()));
    assert_eq!((change(&a, "f"), removal(&a, "f")), (Ok(()), grace.clone()), "its own delegation is not in its way");
    // Beside an open for writing nobody else held one; beside one for reading they may have.
    reclaim(&c, "w", Claim::Reclaim, t(1)).unwrap();
    let (r, owner) = (file("r"), bytes("o"));
    let req = OpenRequest { file: &r, owner: &owner, access: Share::READ, deny: Share::NONE, claim: Claim::Reclaim };
    s.plan_open(&c.me, &req, t(1)).unwrap().commit(1).unwrap();
    assert_eq!((change(&c, "w"), change(&c, "r"), removal(&c, "w")), (Ok(()), grace.clone(), grace.clone()));
    // What was reclaimed stands against it as ever, what was not does not any more.
    let d = delegated(&a, "d", Claim::Reclaim, t(1)).unwrap();
    let _ = s.reclaim_complete(&a.me).unwrap();
    assert!(matches!(change(&b, "d"), Err(Refused::Delegated(_))));
    let back = s.plan_delegreturn(&a.me, &file("d"), &d).unwrap();
    back.commit();
    assert_eq!((change(&b, "f"), removal(&b, "f")), (Ok(()), grace));
    let _ = s.reclaim_complete(&b.me).unwrap();
    assert!(s.in_grace(), "c has not finished");
    assert_eq!((removal(&a, "f"), removal(&c, "f")), (Ok(()), Ok(())));
}
