//! Opens, closes, locks and ended leases on one file, in random order, against a simple reference.

use crate::common::*;
use dhow_state::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Step {
    Open { client: usize, owner: u8, access: u32, deny: u32 },
    Close { client: usize, owner: u8 },
    Lock { client: usize, owner: u8, first: u64, len: u64, write: bool },
    Unlock { client: usize, owner: u8, first: u64, len: u64 },
    Pass { secs: u64 },
    Renew { client: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let c = 0usize..3;
    let o = 0u8..2;
    prop_oneof![
        4 => (c.clone(), o.clone(), 1u32..4, 0u32..4).prop_map(|(client, owner, access, deny)| Step::Open { client, owner, access, deny }),
        2 => (c.clone(), o.clone()).prop_map(|(client, owner)| Step::Close { client, owner }),
        4 => (c.clone(), o.clone(), 0u64..8, 1u64..5, any::<bool>())
            .prop_map(|(client, owner, first, len, write)| Step::Lock { client, owner, first, len, write }),
        2 => (c.clone(), o, 0u64..8, 1u64..5)
            .prop_map(|(client, owner, first, len)| Step::Unlock { client, owner, first, len }),
        1 => (1u64..70).prop_map(|secs| Step::Pass { secs }),
        2 => c.prop_map(|client| Step::Renew { client }),
    ]
}

#[derive(Clone, Default)]
struct Ref {
    access: u32,
    deny: u32,
    stateid: Stateid,
    lock: Option<Stateid>,
    cells: [u8; 12],
}

type Key = (usize, u8);

fn conflicts(m: &BTreeMap<Key, Ref>, access: u32, deny: u32) -> Vec<usize> {
    m.iter().filter(|(_, r)| access & r.deny != 0 || deny & r.access != 0).map(|(k, _)| k.0).collect()
}

fn lock_conflicts(m: &BTreeMap<Key, Ref>, me: Key, a: usize, b: usize, write: bool) -> Vec<usize> {
    m.iter()
        .filter(|(k, r)| **k != me && r.cells[a..b].iter().any(|c| *c == 2 || (*c == 1 && write)))
        .map(|(k, _)| k.0)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn one_file(steps in prop::collection::vec(step(), 1..60)) {
        let s = server();
        let mut now = t(0);
        let mut generation = 0;
        let mut clients: Vec<C> = (0..3).map(|i| C::new(&s, &format!("c{i}"), now)).collect();
        let mut m: BTreeMap<Key, Ref> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Pass { secs } => now = now + std::time::Duration::from_secs(secs),
                Step::Renew { client } => {
                    if clients[client].renew(now) == Err(Status::BADSESSION) {
                        generation += 1;
                        clients[client] = C::new(&s, &format!("c{client}.{generation}"), now);
                        prop_assert!(m.keys().all(|k| k.0 != client), "state of a retired client is left");
                    }
                }
                Step::Open { client, owner, access, deny } => {
                    if clients[client].me.is_dying() || clients[client].me.is_expired(now) {
                        continue;
                    }
                    loop {
                        let got = clients[client].open("f", &format!("o{owner}"),
                            Share::from_bits(access).unwrap(), Share::from_bits(deny).unwrap(), now);
                        let against = conflicts(&m, access, deny);
                        match got {
                            Ok(stateid) => {
                                prop_assert!(against.is_empty());
                                let r = m.entry((client, owner)).or_default();
                                prop_assert!(r.access == 0 || (r.stateid.other == stateid.other && r.stateid.seqid + 1 == stateid.seqid));
                                r.access |= access;
                                r.deny |= deny;
                                r.stateid = stateid;
                                break;
                            }
                            Err(Refused::Status(Status::SHARE_DENIED)) => {
                                prop_assert!(against.iter().any(|c| !clients[*c].me.is_expired(now)));
                                break;
                            }
                            Err(Refused::Courtesy(id)) => {
                                prop_assert!(against.iter().all(|c| clients[*c].me.is_expired(now)));
                                retire(&s, id, now).unwrap();
                                m.retain(|k, _| clients[k.0].id != id);
                            }
                            Err(e) => prop_assert!(false, "{e:?}"),
                        }
                    }
                }
                Step::Close { client, owner } => {
                    if let Some(r) = m.remove(&(client, owner)) {
                        clients[client].close("f", &r.stateid).unwrap();
                    }
                }
                Step::Lock { client, owner, first, len, write } => {
                    let Some(r) = m.get(&(client, owner)).cloned() else { continue };
                    if clients[client].me.is_expired(now) {
                        continue;
                    }
                    let (a, b) = (first as usize, (first + len) as usize);
                    let kind = if write { LockKind::Write } else { LockKind::Read };
                    let lo = bytes(&format!("l{owner}"));
                    loop {
                        let locker = match &r.lock {
                            Some(l) => Locker::Existing(l),
                            None => Locker::New { open: &r.stateid, owner: &lo },
                        };
                        let got = clients[client].lock("f", locker, Range::new(first, len).unwrap(), kind, now);
                        let against = lock_conflicts(&m, (client, owner), a, b, write);
                        match got {
                            Ok(stateid) => {
                                prop_assert!(against.is_empty());
                                let r = m.get_mut(&(client, owner)).unwrap();
                                r.lock = Some(stateid);
                                r.cells[a..b].fill(if write { 2 } else { 1 });
                                break;
                            }
                            Err(LockRefused::Status(Status::OPENMODE)) => {
                                let needed = if write { 2 } else { 1 };
                                prop_assert!(r.access & needed == 0);
                                break;
                            }
                            Err(LockRefused::Denied(held)) => {
                                let holder = clients.iter().position(|c| c.id == held.owner.client).unwrap();
                                prop_assert!(against.contains(&holder) && !clients[holder].me.is_expired(now));
                                break;
                            }
                            Err(LockRefused::Courtesy(id)) => {
                                prop_assert!(against.iter().all(|c| clients[*c].me.is_expired(now)));
                                retire(&s, id, now).unwrap();
                                m.retain(|k, _| clients[k.0].id != id);
                            }
                            Err(e) => prop_assert!(false, "{e:?}"),
                        }
                    }
                }
                Step::Unlock { client, owner, first, len } => {
                    let Some(r) = m.get_mut(&(client, owner)) else { continue };
                    let Some(l) = r.lock else { continue };
                    r.lock = Some(clients[client].unlock("f", &l, Range::new(first, len).unwrap()).unwrap());
                    r.cells[first as usize..(first + len) as usize].fill(0);
                }
            }
            let counts = s.counts();
            prop_assert_eq!(counts.opens, m.len());
            prop_assert_eq!(counts.files, usize::from(!m.is_empty()));
            prop_assert_eq!(counts.lock_states, m.values().filter(|r| r.lock.is_some()).count());
        }
    }
}
