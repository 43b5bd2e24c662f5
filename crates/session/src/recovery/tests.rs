//! Tests of recovery against a small model of a server.

use proptest::prelude::*;

use super::*;

fn identity(clientid: u64, sequence: u32, confirmed: bool) -> Result<ClientIdentity, Status> {
    Ok(ClientIdentity { clientid, sequence, confirmed })
}

fn ready() -> Recovery {
    let mut r = Recovery::new(1);
    assert_eq!(r.step(), Step::ExchangeId { incarnation: 0 });
    assert_eq!(r.exchanged(identity(7, 1, false)), After::Now);
    assert_eq!(r.step(), Step::CreateSession { clientid: 7, sequence: 1 });
    assert_eq!(r.created(Ok(())), After::Now);
    assert_eq!(r.step(), Step::ReclaimComplete, "RFC 8881 section 18.51: also with nothing to reclaim");
    assert_eq!(r.completed(Ok(())), After::Now);
    assert!(r.is_ready());
    r
}

/// RFC 8881 section 2.10.13.1.4: loss of the session alone loses no state.
#[test]
fn a_lost_session_is_made_again_and_nothing_reclaimed() {
    let mut r = ready();
    assert!(r.session_lost(Epoch(1)));
    assert!(!r.session_lost(Epoch(1)), "a hundred requests report the same loss");
    assert_eq!(r.step(), Step::CreateSession { clientid: 7, sequence: 2 });
    r.created(Ok(()));
    assert!(r.is_ready());
    assert_eq!(r.epoch(), Epoch(2));
    assert!(!r.session_lost(Epoch(1)), "a late answer to a request of the old session");
}

/// RFC 8881 section 8.4.2: a restarted server does not know the client ID; state is reclaimed before RECLAIM_COMPLETE.
#[test]
fn a_restarted_server_gets_reclaims_before_reclaim_complete() {
    let mut r = ready();
    r.session_lost(Epoch(1));
    assert!(matches!(r.created(Err(Status::STALE_CLIENTID)), After::Wait(_)));
    assert_eq!(r.step(), Step::ExchangeId { incarnation: 0 });
    r.exchanged(identity(8, 5, false));
    assert_eq!(r.step(), Step::CreateSession { clientid: 8, sequence: 5 });
    r.created(Ok(()));
    assert_eq!(r.step(), Step::Reclaim);
    r.reclaimed();
    assert_eq!(r.step(), Step::ReclaimComplete);
    r.completed(Err(Status::COMPLETE_ALREADY));
    assert!(r.is_ready());
}

/// RFC 8881 section 18.35.3: with EXCHGID4_FLAG_CONFIRMED_R the sequence in the reply is to be ignored.
#[test]
fn a_confirmed_identity_keeps_our_count() {
    let mut r = ready();
    r.client_lost(Epoch(1));
    r.exchanged(identity(7, 99, true));
    assert_eq!(r.step(), Step::CreateSession { clientid: 7, sequence: 2 });
    r.created(Ok(()));
    assert!(r.is_ready(), "same client ID: state is there, RECLAIM_COMPLETE was sent");
}

#[test]
fn the_server_may_restart_again_while_we_reclaim() {
    let mut r = ready();
    r.client_lost(Epoch(1));
    r.exchanged(identity(8, 1, false));
    r.created(Ok(()));
    assert_eq!(r.step(), Step::Reclaim);
    assert!(r.client_lost(Epoch(2)));
    r.exchanged(identity(9, 1, false));
    r.created(Ok(()));
    assert_eq!(r.step(), Step::Reclaim, "what was to be reclaimed still is");
}

#[test]
fn losing_all_state_starts_a_new_incarnation() {
    let mut r = ready();
    assert!(r.start_over(Epoch(1)));
    assert_eq!(r.step(), Step::ExchangeId { incarnation: 1 });
    r.exchanged(identity(12, 1, false));
    r.created(Ok(()));
    assert_eq!(r.step(), Step::Reclaim);
}

#[test]
fn a_persistent_session_over_a_restart_reclaims_in_place() {
    let mut r = ready();
    assert!(r.reclaim_needed(Epoch(1)));
    assert!(!r.reclaim_needed(Epoch(1)));
    assert_eq!((r.step(), r.epoch()), (Step::Reclaim, Epoch(1)));
    r.reclaimed();
    assert_eq!(r.step(), Step::ReclaimComplete);
}

#[test]
fn refusals_for_good_end_it_and_temporary_ones_wait() {
    let mut r = Recovery::new(1);
    assert!(matches!(r.exchanged(Err(Status::DELAY)), After::Wait(_)));
    assert_eq!(r.exchanged(Err(Status::MINOR_VERS_MISMATCH)), After::Now);
    assert_eq!(r.step(), Step::Failed(Status::MINOR_VERS_MISMATCH));
    let mut r = ready();
    r.close();
    assert_eq!(r.step(), Step::Closed);
    assert!(!r.session_lost(Epoch(1)));
}

/// A server that answers STALE_CLIENTID to every CREATE_SESSION is not asked in a tight loop, and not for ever.
#[test]
fn going_in_circles_waits_longer_and_ends() {
    let mut r = Recovery::new(1);
    let mut waited = core::time::Duration::ZERO;
    let mut rounds = 0;
    while !matches!(r.step(), Step::Failed(_)) {
        r.exchanged(identity(1, 1, false));
        if let After::Wait(wait) = r.created(Err(Status::STALE_CLIENTID)) {
            waited += wait;
        }
        rounds += 1;
        assert!(rounds < 1000);
    }
    assert!(waited >= core::time::Duration::from_secs(60));
}

/// Client records of a server, as far as EXCHANGE_ID and CREATE_SESSION see them.
#[derive(Default)]
struct Server {
    next: u64,
    /// Client ID, sequence it expects next, confirmed.
    record: Option<(u64, u32, bool)>,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    None,
    Delay,
    /// The server does it, but its answer is lost with the connection.
    AnswerLost,
    Restart,
    SessionGone,
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        6 => Just(Fault::None),
        1 => Just(Fault::Delay),
        1 => Just(Fault::AnswerLost),
        1 => Just(Fault::Restart),
        1 => Just(Fault::SessionGone),
    ]
}

impl Server {
    fn exchange(&mut self) -> Result<ClientIdentity, Status> {
        let (clientid, sequence, confirmed) = *self.record.get_or_insert_with(|| {
            self.next += 1;
            (self.next, 1, false)
        });
        identity(clientid, if confirmed { 0 } else { sequence }, confirmed)
    }

    fn create(&mut self, clientid: u64, sequence: u32) -> Result<(), Status> {
        match &mut self.record {
            Some((id, expected, confirmed)) if *id == clientid => {
                if sequence == *expected {
                    *expected += 1;
                    *confirmed = true;
                    Ok(())
                } else if sequence + 1 == *expected {
                    Ok(())
                } else {
                    Err(Status::SEQ_MISORDERED)
                }
            }
            _ => Err(Status::STALE_CLIENTID),
        }
    }
}

proptest! {
    /// Whatever is lost on the way, the client ends ready, with RECLAIM_COMPLETE sent under its client ID, and with
    /// reclaims done whenever the client ID changed.
    #[test]
    fn recovery_converges(faults in proptest::collection::vec(fault(), 0..60), seed: u64) {
        let mut server = Server::default();
        let mut r = Recovery::new(seed);
        let mut faults = faults.into_iter();
        let (mut completed_for, mut state_for) = (None, None);
        for _ in 0..400 {
            let fault = faults.next().unwrap_or(Fault::None);
            let epoch = r.epoch();
            match fault {
                Fault::Restart => server.record = None,
                Fault::SessionGone => { r.session_lost(epoch); }
                _ => {}
            }
            match (r.step(), fault) {
                (Step::Ready, _) => {
                    // Any request finds out.
                    let known = server.record.map(|(id, _, _)| id) == r.clientid();
                    if !known {
                        r.session_lost(epoch);
                    } else if faults.len() == 0 {
                        break;
                    }
                }
                (Step::ExchangeId { .. }, Fault::Delay) => { r.exchanged(Err(Status::DELAY)); }
                (Step::ExchangeId { .. }, Fault::AnswerLost) => { let _ = server.exchange(); }
                (Step::ExchangeId { .. }, _) => { r.exchanged(server.exchange()); }
                (Step::CreateSession { .. }, Fault::Delay) => { r.created(Err(Status::DELAY)); }
                (Step::CreateSession { clientid, sequence }, Fault::AnswerLost) => {
                    let _ = server.create(clientid, sequence);
                }
                (Step::CreateSession { clientid, sequence }, _) => { r.created(server.create(clientid, sequence)); }
                (Step::Reclaim, _) => {
                    state_for = r.clientid();
                    r.reclaimed();
                }
                (Step::ReclaimComplete, _) if server.record.is_none() => {
                    r.session_lost(epoch);
                }
                (Step::ReclaimComplete, _) => {
                    if state_for.is_none() {
                        state_for = r.clientid();
                    }
                    completed_for = r.clientid();
                    r.completed(Ok(()));
                }
                (Step::Failed(status), _) => prop_assert!(false, "failed: {status}"),
                (Step::Closed, _) => prop_assert!(false),
            }
        }
        prop_assert!(r.is_ready());
        prop_assert_eq!(completed_for, r.clientid());
        prop_assert_eq!(state_for, r.clientid());
    }
}

/// The server restarts again while requests of the recovery are under way: they must learn that their session is gone,
/// for nothing else ends them (RFC 8881 section 8.4.2.1).
#[test]
fn what_the_recovery_sends_ends_with_its_session() {
    for to_complete in [false, true] {
        let mut r = ready();
        r.client_lost(Epoch(1));
        assert!(!r.holds(Epoch(1)));
        r.exchanged(identity(8, 5, false));
        assert!(!r.holds(Epoch(1)));
        r.created(Ok(()));
        if to_complete {
            r.reclaimed();
        }
        assert!(r.holds(Epoch(2)) && !r.holds(Epoch(1)), "its own requests may be sent");
        assert!(r.session_lost(Epoch(2)), "the connection could not be bound: BADSESSION");
        assert!(!r.holds(Epoch(2)));
    }
    // A client that is being closed still says goodbye in its session, and learns of no loss any more.
    let mut r = ready();
    r.close();
    assert!(r.holds(Epoch(1)) && !r.session_lost(Epoch(1)) && r.step() == Step::Closed);
}

/// RFC 8881 section 18.36.4: one sequence for all CREATE_SESSIONs of a client ID; an answer that was lost comes again.
#[test]
fn further_sessions_share_the_sequence_of_the_client_id() {
    let mut server = Server::default();
    let mut r = Recovery::new(7);
    assert_eq!(r.further(), None);
    r.exchanged(server.exchange());
    let Step::CreateSession { clientid, sequence } = r.step() else { panic!("{:?}", r.step()) };
    r.created(server.create(clientid, sequence));
    assert_eq!(r.further(), None, "RECLAIM_COMPLETE comes first");
    r.completed(Ok(()));
    let first = r.epoch();
    let asked = r.further().unwrap();
    assert_eq!(asked, (clientid, sequence + 1));
    // The answer is lost; the session is lost; the next CREATE_SESSION is a retry of that one.
    server.create(asked.0, asked.1).unwrap();
    assert!(r.session_lost(first));
    assert_eq!(r.further(), None);
    assert_eq!(r.step(), Step::CreateSession { clientid, sequence: sequence + 1 });
    r.created(server.create(clientid, sequence + 1));
    assert!(r.is_ready());
    let primary = r.epoch();
    let asked = r.further().unwrap();
    assert_eq!(asked.1, sequence + 2);
    let answer = server.create(asked.0, asked.1);
    let further = r.further_created(asked, answer).unwrap();
    assert!(further > primary && r.epoch() == primary);
    assert_eq!(r.further_created(asked, Ok(())), None, "told twice");
    // What is said of a further session is no news of the primary one.
    assert!(!r.session_lost(further));
    assert!(r.is_ready());
    let asked = r.further().unwrap();
    assert_eq!(r.further_created(asked, Err(Status::STALE_CLIENTID)), None);
    assert!(matches!(r.step(), Step::ExchangeId { .. }));
}
