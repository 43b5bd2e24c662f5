//! Several sessions of one client ID, at a server that grants few slots to each (RFC 8881 sections 2.10.6.1 and
//! 18.36; C5).

use crate::common::{Place, config};
use crate::script::{self, Act};
use bytes::Bytes;
use dhow_client::v4::ops::{CreateSessionOk, RemoveArgs, RemoveOk};
use dhow_client::v4::{ArgOp, OpNum, ResOp, SessionId, StableHow, Status};
use dhow_client::{CallOptions, Client, Create, Error, Fs, OpenOptions, PutOptions};
use dhow_server::Running;
use dhow_testkit::fault::Call;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use tokio::task::JoinHandle;

/// Slots that the server grants to a session.
const GRANTED: u32 = 8;

async fn stingy(place: &Place, addr: Option<SocketAddr>) -> Running {
    let addr = addr.unwrap_or(([127, 0, 0, 1], 0).into());
    place
        .start_at(addr, |c| {
            c.state.slots_per_session = GRANTED;
            c.state.slots_min = GRANTED;
        })
        .await
}

fn puts(fs: &Fs, names: std::ops::Range<usize>) -> Vec<JoinHandle<()>> {
    names
        .map(|n| {
            let fs = fs.clone();
            tokio::spawn(async move {
                let name = format!("f{n}");
                let via = Some(Bytes::from(format!(".f{n}.part")));
                let options = PutOptions { via, ..PutOptions::default() };
                fs.put(&name, Bytes::from(name.clone()), &options).await.unwrap();
            })
        })
        .collect()
}

async fn all(tasks: Vec<JoinHandle<()>>) {
    for task in tasks {
        task.await.unwrap();
    }
}

/// Everything is there once, and nothing else.
async fn only(fs: &Fs, count: usize) {
    for n in 0..count {
        assert_eq!(fs.get(&format!("f{n}"), 100).await.unwrap().unwrap().1, format!("f{n}"));
    }
    let names = fs.readdir("/", dhow_client::STAT).await.unwrap().collect().await.unwrap();
    assert_eq!(names.len(), count, "{names:?}");
}

/// Fifty creates are in flight together at a server that grants 8 slots to a session, in no more sessions than that
/// takes; and each is one call.
#[tokio::test]
async fn few_slots_are_made_up_for_by_further_sessions() {
    let place = Place::new();
    let running = stingy(&place, None).await;
    let client = Client::connect(config(running.addresses()[0])).await.unwrap();
    let fs = client.fs();
    assert_eq!(client.session_info().await.unwrap().slots, GRANTED);
    let before = client.counters().snapshot();
    let gate = place.fault.hold(Call::Create);
    let tasks = puts(&fs, 0..50);
    gate.arrived(50).await;
    let info = client.session_info().await;
    gate.open();
    all(tasks).await;
    let info = info.unwrap();
    assert_eq!(info.sessions, 7, "{info:?}");
    assert_eq!((info.connections, info.slots), (7, 7 * GRANTED), "{info:?}");
    let spent = client.counters().snapshot().since(&before);
    assert_eq!((spent.calls, spent.ops.get("OPEN")), (50, Some(&50)), "{spent:?}");
    only(&fs, 50).await;
    // State belongs to the client ID: an open is used over whichever session is free.
    let file = Arc::new(fs.open("f0", &OpenOptions::read_write()).await.unwrap());
    let writes: Vec<_> = (0..40_u64)
        .map(|n| {
            let file = file.clone();
            tokio::spawn(async move {
                file.write_all_at(n, Bytes::from_static(b"x"), StableHow::UNSTABLE).await.unwrap();
            })
        })
        .collect();
    all(writes).await;
    Arc::into_inner(file).unwrap().close().await.unwrap();
    // DESTROY_CLIENTID succeeds only when every session was destroyed (RFC 8881 section 18.50.3).
    client.close().await.unwrap();
    running.shutdown().await;
}

/// The cap of the configuration holds, and those that wait are served by what comes free.
#[tokio::test]
async fn no_more_sessions_than_configured() {
    let place = Place::new();
    let running = stingy(&place, None).await;
    let mut config = config(running.addresses()[0]);
    config.sessions = 2;
    let client = Client::connect(config).await.unwrap();
    let gate = place.fault.hold(Call::Create);
    let tasks = puts(&client.fs(), 0..50);
    gate.arrived(2 * GRANTED as usize).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(gate.count(), 2 * GRANTED as usize);
    gate.open();
    all(tasks).await;
    assert_eq!(client.session_info().await.unwrap().sessions, 2);
    only(&client.fs(), 50).await;
    client.close().await.unwrap();
    running.shutdown().await;
}

/// Section 2.10.6.2: all connections of all sessions break while requests are out; each request is executed once.
#[tokio::test]
async fn broken_connections_of_all_sessions_lose_nothing() {
    let place = Place::new();
    let running = stingy(&place, None).await;
    let client = Client::connect(config(running.addresses()[0])).await.unwrap();
    let gate = place.fault.hold(Call::Create);
    let tasks = puts(&client.fs(), 0..50);
    gate.arrived(50).await;
    client.break_connections();
    gate.open();
    all(tasks).await;
    assert!(client.counters().snapshot().resent >= 50);
    only(&client.fs(), 50).await;
    client.close().await.unwrap();
    running.shutdown().await;
}

/// The server restarts while several sessions exist: all of them are gone with the client ID, opens come back, and
/// further sessions are made again. No file is left under a passing name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_sessions_outlive_restarts() {
    let mut place = Place::new();
    place.grace = Duration::from_millis(300);
    let mut running = stingy(&place, None).await;
    let addr = running.addresses()[0];
    let client = Client::connect(config(addr)).await.unwrap();
    let held = client.fs().open("held", &OpenOptions::read_write().create(Create::IfMissing, 0o644)).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..40)
        .map(|n| {
            let (fs, stop) = (client.fs(), stop.clone());
            tokio::spawn(async move {
                let mut unknown = 0;
                while !stop.load(Relaxed) {
                    let via = Some(Bytes::from(format!(".w{n}.part")));
                    let options = PutOptions { via, ..PutOptions::default() };
                    match fs.put(&format!("w{n}"), Bytes::from_static(b"data"), &options).await {
                        Ok(_) => {}
                        // A RENAME whose session went down with it: nobody can know.
                        Err(Error::OutcomeUnknown { .. }) => unknown += 1,
                        Err(e) => panic!("{e}"),
                    }
                }
                unknown
            })
        })
        .collect();
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        running.shutdown().await;
        running = stingy(&place, Some(addr)).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    stop.store(true, Relaxed);
    for worker in workers {
        worker.await.unwrap();
    }
    held.write_all_at(0, Bytes::from_static(b"still open"), StableHow::FILE_SYNC).await.unwrap();
    held.close().await.unwrap();
    let names = client.fs().readdir("/", dhow_client::STAT).await.unwrap().collect().await.unwrap();
    let parts: Vec<_> = names.iter().filter(|e| e.name.starts_with(b".")).collect();
    assert!(parts.is_empty(), "{parts:?}");
    // And it still grows when it must.
    let gate = place.fault.hold(Call::Create);
    let tasks = puts(&client.fs(), 0..30);
    gate.arrived(30).await;
    gate.open();
    all(tasks).await;
    client.close().await.unwrap();
    running.shutdown().await;
}

fn removes(client: &Client, count: usize) -> Vec<JoinHandle<()>> {
    (0..count)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                let ops = vec![ArgOp::PutRootFh, ArgOp::Remove(RemoveArgs { target: Bytes::from_static(b"x") })];
                let options = CallOptions { cache: true, ..CallOptions::default() };
                assert_eq!(client.compound(ops, options).await.unwrap().status, Status::OK);
            })
        })
        .collect()
}

fn slowly_removed(req: &script::Req) -> Option<Act> {
    let remove = req.ops.iter().any(|op| op.op() == OpNum::REMOVE);
    remove.then(|| {
        // Slow enough that the queue is worth another session.
        std::thread::sleep(Duration::from_millis(4));
        Act::Ops(vec![ResOp::PutRootFh(Ok(())), ResOp::Remove(Ok(RemoveOk { cinfo: Default::default() }))])
    })
}

fn create_session(req: &script::Req) -> bool {
    req.ops.iter().any(|op| op.op() == OpNum::CREATE_SESSION)
}

/// A server that has no second session to give serves everything over the first, and is not asked again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_session_is_no_error() {
    let asked = Arc::new(AtomicU32::new(0));
    let count = asked.clone();
    let server = script::start(move |req| {
        if create_session(req) && count.fetch_add(1, Relaxed) > 0 {
            return Some(Act::Ops(vec![ResOp::error(OpNum::CREATE_SESSION, Status::NOSPC)]));
        }
        slowly_removed(req)
    })
    .await;
    let client = Client::connect(config(server.addr)).await.unwrap();
    all(removes(&client, 100)).await;
    let asked = asked.load(Relaxed);
    assert!((2..=7).contains(&asked), "{asked} CREATE_SESSIONs");
    assert_eq!(client.session_info().await.unwrap().sessions, 1);
}

/// Section 2.10.13.1.4: BADSESSION in a further session concerns that session alone. What was refused there is done
/// elsewhere, the client ID is not touched.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_further_session_that_is_lost_is_done_without() {
    let further = SessionId([8; 16]);
    let (made, refused) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (m, r) = (made.clone(), refused.clone());
    let server = script::start(move |req| {
        if create_session(req) && m.fetch_add(1, Relaxed) > 0 {
            let Some(ResOp::CreateSession(Ok(ok))) = script::default_result(&req.ops[0]) else { return None };
            return Some(Act::Ops(vec![ResOp::CreateSession(Ok(CreateSessionOk { session_id: further, ..ok }))]));
        }
        if req.sequence.as_ref().is_some_and(|s| s.session_id == further) {
            r.fetch_add(1, Relaxed);
            return Some(Act::Sequence(Status::BADSESSION));
        }
        slowly_removed(req)
    })
    .await;
    let client = Client::connect(config(server.addr)).await.unwrap();
    all(removes(&client, 150)).await;
    assert!(refused.load(Relaxed) > 0, "{} sessions were made", made.load(Relaxed));
    let exchanges = server.log.setup.lock().unwrap().iter().filter(|op| op.op() == OpNum::EXCHANGE_ID).count();
    assert_eq!(exchanges, 1);
    assert_eq!(client.session_info().await.unwrap().session_id, script::SESSION);
}
