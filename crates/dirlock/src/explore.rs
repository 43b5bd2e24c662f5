//! The lock manager under chosen schedules: shuttle runs the tasks one at a time and decides at every lock and every
//! await who goes on, at random or with few preemptions (PCT, which finds a bug of depth d with a known probability).
//! A schedule in which nobody can go on is reported as a deadlock, which is also what a lost wake-up looks like.
//!
//! `DHOW_EXPLORE=N` runs N times as many schedules (cases C5, K26).

use crate::{Claim, Claims, DirLocks, Held, Key, Mode};
use shuttle::future::{block_on, spawn, yield_now};
use shuttle::rand::{Rng, thread_rng};
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;

type K = Key<u8, u8, u8>;
type Dirs = DirLocks<u8, u8, u8>;

fn explore(schedules: usize, f: impl Fn() + Send + Sync + 'static) {
    let more = std::env::var("DHOW_EXPLORE").ok().and_then(|n| n.parse::<usize>().ok()).unwrap_or(1).max(1);
    let f = Arc::new(f);
    let g = f.clone();
    shuttle::check_random(move || f(), schedules * more);
    for depth in [2, 3] {
        let g = g.clone();
        shuttle::check_pct(move || g(), schedules * more / 2, depth);
    }
}

/// What tasks hold and wait for, as they see it from outside. Its mutex is no point of switching.
#[derive(Default)]
struct World {
    holding: Vec<(u64, Vec<Claim<K>>)>,
    waiting: Vec<(u64, Vec<Claim<K>>)>,
}

fn conflict(a: &[Claim<K>], b: &[Claim<K>]) -> bool {
    let both = |x: &Claim<K>, y: &Claim<K>| x.key == y.key && (x.mode, y.mode) != (Mode::Shared, Mode::Shared);
    a.iter().any(|x| b.iter().any(|y| both(x, y)))
}

/// Requests, and holds what it does against the rules; gives up after `patience` polls.
async fn take(locks: &Dirs, world: &Mutex<World>, claims: Vec<Claim<K>>, patience: usize) -> Option<(u64, Held<K>)> {
    let request = locks.request(claims.clone());
    let ticket = request.ticket();
    world.lock().unwrap().waiting.push((ticket, claims.clone()));
    let mut request = pin!(request);
    let mut polls = 0;
    let held = std::future::poll_fn(|cx| match request.as_mut().poll(cx) {
        Poll::Ready(held) => Poll::Ready(Some(held)),
        Poll::Pending if polls == patience => Poll::Ready(None),
        Poll::Pending => {
            polls += 1;
            if patience != usize::MAX {
                // Asked again without being woken, as a timer or another branch of a select would.
                cx.waker().wake_by_ref();
            }
            Poll::Pending
        }
    })
    .await;
    let mut world = world.lock().unwrap();
    world.waiting.retain(|(t, _)| *t != ticket);
    let held = held?;
    for (other, theirs) in &world.holding {
        assert!(!conflict(&claims, theirs), "{ticket} and {other} hold {claims:?} and {theirs:?}");
    }
    for (other, theirs) in &world.waiting {
        assert!(*other > ticket || !conflict(&claims, theirs), "{ticket} overtook {other}");
    }
    world.holding.push((ticket, claims));
    Some((ticket, held))
}

fn give(world: &Mutex<World>, (ticket, held): (u64, Held<K>)) {
    world.lock().unwrap().holding.retain(|(t, _)| *t != ticket);
    drop(held);
}

fn some_update() -> Vec<Claim<K>> {
    let mut r = thread_rng();
    let mut name = || (r.gen_range(0..2), r.gen_range(0..2));
    let (a, b) = (name(), name());
    let claims = match r.gen_range(0..6) {
        0 | 1 => Claims::name(a.0, a.1),
        2 => Claims::names(a, b),
        3 => Claims::name(2, a.1).removing(a.0),
        4 => Claims::names(a, b).moving(0),
        _ => Claims::names((2, a.1), b).moving(0).removing(a.0),
    };
    claims.into_vec()
}

/// Updates of all kinds, some of which give up or are dropped while they wait: nobody holds what excludes another,
/// nobody overtakes, everybody comes through, and nothing is left.
#[test]
fn any_updates() {
    explore(1500, || {
        let locks = Dirs::new();
        let world = Arc::new(Mutex::new(World::default()));
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let (locks, world) = (locks.clone(), world.clone());
                spawn(async move {
                    for _ in 0..3 {
                        let patience = match thread_rng().gen_range(0..4) {
                            0 => thread_rng().gen_range(0..3),
                            _ => usize::MAX,
                        };
                        let Some(held) = take(&locks, &world, some_update(), patience).await else { continue };
                        locks.check();
                        yield_now().await;
                        give(&world, held);
                        locks.check();
                    }
                })
            })
            .collect();
        block_on(async {
            for task in tasks {
                task.await.unwrap();
            }
        });
        assert_eq!((locks.requests(), locks.keys()), (0, 0), "something is left");
    });
}

/// A task that is aborted anywhere, waiting or holding, leaves nothing behind and holds nobody up.
#[test]
fn aborted_anywhere() {
    explore(800, || {
        let locks = Dirs::new();
        let busy = |locks: &Dirs| {
            let locks = locks.clone();
            spawn(async move {
                for _ in 0..3 {
                    let _held = locks.request(some_update()).await;
                    yield_now().await;
                }
            })
        };
        let doomed = [busy(&locks), busy(&locks)];
        let others = [busy(&locks), busy(&locks)];
        block_on(async {
            for task in doomed {
                yield_now().await;
                task.abort();
                let _ = task.await;
            }
            for task in others {
                task.await.unwrap();
            }
        });
        assert_eq!((locks.requests(), locks.keys()), (0, 0), "something is left");
    });
}

/// Rule 1: different names of one directory are all held at once, whatever the schedule: each task waits, holding its
/// name, until all do.
#[test]
fn different_names_never_wait() {
    explore(300, || {
        let locks = Dirs::new();
        let barrier = Arc::new(shuttle::sync::Barrier::new(4));
        let threads: Vec<_> = (0..4)
            .map(|n| {
                let (locks, barrier) = (locks.clone(), barrier.clone());
                shuttle::thread::spawn(move || {
                    let Ok(_held) = locks.request(Claims::name(0, n).into_vec()).now() else { panic!("it waits") };
                    barrier.wait();
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(locks.keys(), 0);
    });
}

/// Rule 3: somebody who wants the directory as a whole gets it although names in it are taken again and again, and waits
/// for no more of them than came before.
#[test]
fn a_whole_directory_is_not_starved() {
    explore(300, || {
        let locks = Dirs::new();
        let first = block_on(locks.request(Claims::name(0, 0).into_vec()));
        let whole = locks.request(Claims::name(1, 0).removing(0).into_vec());
        let late: Vec<_> = (1..4).map(|n| locks.request(Claims::name(0, n).into_vec())).collect();
        let thread = shuttle::thread::spawn(move || drop(first));
        let held = block_on(whole);
        let late: Vec<_> = late.into_iter().map(|request| request.now()).collect();
        assert!(late.iter().all(Result::is_err), "it was overtaken");
        drop(held);
        for request in late {
            let Err(request) = request else { continue };
            drop(block_on(request));
        }
        thread.join().unwrap();
        assert_eq!(locks.keys(), 0);
    });
}

/// A namespace whose operations look first and act later, as a backend without locks of its own would: what keeps it
/// whole are the claims alone.
struct Tree {
    /// Parent of each directory, while it exists; 0 is the root.
    parent: Vec<Option<u8>>,
}

impl Tree {
    fn is_below(&self, mut dir: u8, above: u8) -> bool {
        for _ in 0..self.parent.len() + 1 {
            if dir == above {
                return true;
            }
            match self.parent[dir as usize] {
                Some(parent) if dir != 0 => dir = parent,
                _ => return false,
            }
        }
        true
    }

    fn is_empty(&self, dir: u8) -> bool {
        self.parent.iter().skip(1).all(|p| *p != Some(dir))
    }
}

/// Removes, creates and moves of directories that check and then act, with a switch in between: no orphan, no cycle
/// (rules 4 and 5). Each directory is known by its number, which serves as its name wherever it is.
#[test]
fn checks_hold_until_the_act() {
    explore(1200, || {
        let locks = Dirs::new();
        let tree = Arc::new(Mutex::new(Tree { parent: vec![Some(0), Some(0), Some(0), Some(1), None] }));
        let tasks: Vec<_> = (0..3)
            .map(|_| {
                let (locks, tree) = (locks.clone(), tree.clone());
                spawn(async move {
                    for _ in 0..3 {
                        let (dir, to) = (thread_rng().gen_range(1..5u8), thread_rng().gen_range(0..5u8));
                        let at = tree.lock().unwrap().parent[dir as usize];
                        match (at, thread_rng().gen_range(0..3)) {
                            // Made anew in `to`. One number is one directory, so its making has a name of its own, too.
                            (None, _) => {
                                let _held = locks.request(Claims::names((9, dir), (to, dir)).into_vec()).await;
                                let fits = {
                                    let tree = tree.lock().unwrap();
                                    tree.parent[dir as usize].is_none() && tree.parent[to as usize].is_some()
                                };
                                yield_now().await;
                                if fits {
                                    tree.lock().unwrap().parent[dir as usize] = Some(to);
                                }
                            }
                            (Some(from), 0) => {
                                let claims = Claims::names((9, dir), (from, dir)).removing(dir);
                                let _held = locks.request(claims.into_vec()).await;
                                let fits = {
                                    let tree = tree.lock().unwrap();
                                    tree.parent[dir as usize] == Some(from) && tree.is_empty(dir)
                                };
                                yield_now().await;
                                if fits {
                                    tree.lock().unwrap().parent[dir as usize] = None;
                                }
                            }
                            (Some(from), _) => {
                                let claims = Claims::names((from, dir), (to, dir)).moving(0);
                                let _held = locks.request(claims.into_vec()).await;
                                let fits = {
                                    let tree = tree.lock().unwrap();
                                    let there = tree.parent[to as usize].is_some();
                                    there && tree.parent[dir as usize] == Some(from) && !tree.is_below(to, dir)
                                };
                                yield_now().await;
                                if fits {
                                    tree.lock().unwrap().parent[dir as usize] = Some(to);
                                }
                            }
                        }
                    }
                })
            })
            .collect();
        block_on(async {
            for task in tasks {
                task.await.unwrap();
            }
        });
        let tree = tree.lock().unwrap();
        for dir in 1..5 {
            let Some(parent) = tree.parent[dir] else { continue };
            assert!(tree.parent[parent as usize].is_some(), "{dir} is an orphan of {parent}: {:?}", tree.parent);
            assert!(tree.is_below(dir as u8, 0) && !tree.is_below(parent, dir as u8), "a cycle: {:?}", tree.parent);
        }
        assert_eq!((locks.requests(), locks.keys()), (0, 0));
    });
}

/// One key claimed twice counts once, in the stronger mode: a rename out of the directory that it replaces.
#[test]
fn a_key_claimed_twice() {
    // Nothing runs beside it: any schedule will do.
    shuttle::check_random(
        || {
            let locks = Dirs::new();
            let held = block_on(locks.request(Claims::names((1, 0), (0, 1)).removing(1).moving(0).into_vec()));
            assert!(locks.request(Claims::name(1, 7).into_vec()).now().is_err());
            assert!(locks.request(Claims::name(0, 7).into_vec()).now().is_ok());
            drop(held);
            assert!(locks.request(Claims::name(1, 7).into_vec()).now().is_ok());
            assert_eq!((locks.requests(), locks.keys()), (0, 0));
        },
        1,
    );
}
