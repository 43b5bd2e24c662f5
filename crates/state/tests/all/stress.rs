//! Many threads at once: whatever happens, everything that was taken comes back.

use crate::common::*;
use dhow_state::*;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// A small generator: reproducible, one for each thread.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// One client's life: requests on its slots, opens, I/O, locks, copies; then it goes, one way or another.
fn live(s: &S, name: &str, now: &AtomicU64, coming: &RwLock<()>, dice: &mut Dice) {
    let time = || Time(now.fetch_add(1_000_000, Ordering::SeqCst));
    let mut c = {
        // On a machine that is busy elsewhere, leases would end between two calls of who comes.
        let _quiet = coming.read();
        C::new(s, name, time())
    };
    let mut opens: Vec<(String, Stateid)> = Vec::new();
    for _ in 0..40 {
        let slot = dice.roll(8) as u32;
        let Ok(token) = c.begin(slot, time()) else { return };
        match dice.roll(6) {
            0 | 1 => {
                let f = format!("f{}", dice.roll(4));
                let share = |n| Share::from_bits(n as u32).unwrap();
                let (access, deny) = (share(1 + dice.roll(3)), share(dice.roll(8) % 4 * dice.roll(2)));
                match c.open(&f, &format!("o{}", dice.roll(2)), access, deny, time()) {
                    Ok(sid) => {
                        opens.retain(|(_, o)| o.other != sid.other);
                        opens.push((f, sid));
                    }
                    Err(Refused::Courtesy(id)) => _ = retire_waiting(s, id, time()),
                    Err(Refused::Delegated(_)) => panic!("none is given"),
                    Err(Refused::Status(e)) => {
                        assert!(matches!(e, Status::SHARE_DENIED | Status::DELAY | Status::DEADSESSION), "{e}")
                    }
                }
            }
            2 => {
                if let Some((f, sid)) = opens.pop()
                    && let Ok(plan) = s.plan_close(&c.me, &file(&f), &sid)
                {
                    plan.commit();
                }
            }
            3 => {
                if let Some((f, sid)) = opens.last() {
                    let io = c.io(f, sid, IoKind::Read, time());
                    thread::yield_now();
                    drop(io);
                }
            }
            4 => {
                if let Some((f, sid)) = opens.last() {
                    let (o, first) = (bytes("l"), dice.roll(100));
                    let locker = Locker::New { open: sid, owner: &o };
                    let _ = c.lock(f, locker, range(first, first + dice.roll(20)), LockKind::Write, time());
                }
            }
            _ => {
                if let Some(ticket) = s.copy_begin(&c.me) {
                    ticket.set_bytes(1);
                    if dice.roll(2) == 0 {
                        ticket.complete(Status::OK, time());
                    }
                }
            }
        }
        match dice.roll(4) {
            0 => drop(token),
            _ => token.complete(Reply::from([bytes("reply")]), time()),
        }
    }
    match dice.roll(3) {
        0 => {
            let _ = s.destroy_session(c.conn, c.session);
        }
        1 => {
            // Reborn: the old state goes.
            let e = ExchangeId { verifier: Verifier([2; 8]), ..exchange(name, 2, 0) };
            if let Ok(got) = s.exchange_id(&e, time())
                && let Ok(made) = s.create_session(ConnId(1), 1, &session_args(got.client, 1), &who(0), time())
                && let Some(old) = made.retire
            {
                retire_waiting(s, old, time());
            }
        }
        _ => s.conn_closed(c.conn),
    }
}

/// Retires, waiting for I/O of other threads.
fn retire_waiting(s: &S, id: ClientId, now: Time) -> bool {
    let Some(r) = s.retire(id, now) else { return false };
    let drain = r.drain();
    while !drain.is_done() {
        thread::yield_now();
    }
    r.finish();
    true
}

#[test]
fn everything_comes_back() {
    let s = server();
    let now = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    let coming = RwLock::new(());
    thread::scope(|scope| {
        let workers: Vec<_> = (0..6_u64)
            .map(|w| {
                let (s, now, coming) = (&s, &now, &coming);
                scope.spawn(move || {
                    let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ (w + 1));
                    for i in 0..60 {
                        live(s, &format!("w{w}.{i}"), now, coming, &mut dice);
                    }
                })
            })
            .collect();
        let (s, now, done, coming) = (&s, &now, &done, &coming);
        let reaper = scope.spawn(move || {
            while !done.load(Ordering::SeqCst) {
                // Leases end while others work.
                let (t, effects) = {
                    let _alone = coming.write();
                    let t = Time(now.fetch_add(20_000_000_000, Ordering::SeqCst));
                    (t, s.tick(t))
                };
                for e in effects {
                    if let Effect::Retire(id) = e {
                        retire_waiting(s, id, t);
                    }
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        let ended: Vec<_> = workers.into_iter().map(|w| w.join()).collect();
        // Also where one of them failed: else the reaper would go on for ever.
        done.store(true, Ordering::SeqCst);
        reaper.join().unwrap();
        ended.into_iter().for_each(|w| w.unwrap());
    });
    let end = Time(now.load(Ordering::SeqCst)) + Duration::from_secs(3 * 24 * 3600);
    for _ in 0..3 {
        for e in s.tick(end) {
            if let Effect::Retire(id) = e {
                assert!(retire_waiting(&s, id, end));
            }
        }
    }
    let left = s.counts();
    assert_eq!(left, Counts::default(), "something is left");
}
