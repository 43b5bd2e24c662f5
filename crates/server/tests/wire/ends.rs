//! The end of a client under many schedules: its lease ends, or it comes back as another incarnation, while others want
//! what it holds (RFC 8881 8.4.3, 10.4.4, 18.35.4, 18.50; RFC 7862 15.3; ARCHITECTURE.md, rule 3; case B32).
//!
//! In virtual time, with delays in the backend that differ from schedule to schedule. What is promised: nobody gets to the
//! backend with what the state of somebody else stands against, so state and the backend's side of opens and delegations
//! end together; everybody gets in at last; and nothing is left of the client: no open, lock, delegation, copy-notify
//! stateid, record.

use crate::common::open_to_all;
use crate::hostile;
use dhow_proto::v4::ops::{CopyNotifyArgs, Delegation, DelegreturnArgs, OpenClaim, OpenHow, share};
use dhow_proto::v4::{ArgOp, Attrs, FileHandle, LockType, NetLoc, ResOp, Stateid, Status, Verifier};
use dhow_server::store::{MemoryStore, StableStore};
use dhow_server::{Delegations, ExportConfig, Running, Server, ServerConfig};
use dhow_testkit::fault::{Action, Call};
use dhow_testkit::wire::{Callbacks, Client, ClientOptions, Wire, op};
use dhow_testkit::{Fault, LinkOptions, MemFs, link};
use dhow_vfs::OpenHow as BackendHow;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep};

const FILES: usize = 3;
const SCHEDULES: u64 = 120;
/// What a file is opened for by right of a stateid that this test holds only for a moment.
const RW: u32 = share::ACCESS_BOTH;

/// Chance that can be repeated.
struct Rng(hostile::Rng);

impl Rng {
    fn new(seed: u64) -> Self {
        Self(hostile::Rng::new(seed))
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0.below(n as usize) as u64
    }
}

/// How often what was seen, so that the schedules are known to meet what they are for.
type Seen = Arc<Mutex<BTreeMap<&'static str, u64>>>;

fn saw(seen: &Seen, what: &'static str) {
    *seen.lock().unwrap().entry(what).or_default() += 1;
}

struct World {
    running: Running,
    fs: Arc<MemFs>,
    store: Arc<dyn StableStore>,
    breaches: Arc<Mutex<Vec<String>>>,
    seen: Seen,
}

/// Whether one open or delegation, as the backend knows it, excludes another.
fn excludes(a: &BackendHow, b: &BackendHow) -> bool {
    let (client, owner) = a.owner.split_at_checked(8).unwrap_or_default();
    if a.owner.is_empty() || b.owner.is_empty() || b.owner.starts_with(client) {
        return false;
    }
    let delegation = owner == b"delegation" && (a.access.write || b.access.write);
    delegation || a.deny.read && b.access.read || a.deny.write && b.access.write
}

impl World {
    async fn start(rng: &mut Rng, seen: Seen) -> Self {
        let fs = MemFs::new();
        let breaches: Arc<Mutex<Vec<String>>> = Arc::default();
        let (looked, found) = (fs.clone(), breaches.clone());
        let watch = move |call, after| {
            if matches!(call, Call::Open | Call::Reopen) && after {
                let opens = looked.opens();
                for (file, a) in &opens {
                    for (_, b) in opens.iter().filter(|(other, b)| other == file && excludes(a, b)) {
                        found.lock().unwrap().push(format!("{b:?} beside {a:?}"));
                    }
                }
            }
            true
        };
        let fault = Fault::watched(fs.clone(), Arc::new(watch));
        for call in [Call::Open, Call::Close, Call::GetAttr, Call::Lock, Call::Unlock] {
            if rng.below(3) > 0 {
                fault.always(call, Action::Delay(Duration::from_micros(rng.below(40_000))));
            }
        }
        let mut options = open_to_all();
        options.delegations = Delegations::All;
        let export = ExportConfig { path: "/".into(), backend: fault, options };
        let mut config = ServerConfig::in_memory(vec![export]).unwrap();
        let store: Arc<dyn StableStore> = Arc::new(MemoryStore::default());
        config.store = store.clone();
        let inter = &mut config.copy.inter;
        inter.enabled = true;
        inter.destinations = vec!["127.0.0.1".parse().unwrap()];
        inter.addresses = vec!["127.0.0.1:2049".parse().unwrap()];
        let running = Server::start(config).await.unwrap();
        Self { running, fs, store, breaches, seen }
    }

    async fn client(&self, name: &str, incarnation: u64) -> Client {
        let (ours, theirs, _) = link(LinkOptions::default());
        self.running.serve_stream(theirs, None);
        let mut wire = Wire::new(ours);
        wire.patience = Duration::from_secs(3600);
        let options = ClientOptions { verifier: Verifier(incarnation.to_be_bytes()), ..ClientOptions::named(name) };
        Client::over(wire, options).await
    }
}

async fn open(c: &mut Client, fh: &FileHandle, access: u32, deny: u32) -> Result<(Stateid, Option<Stateid>), Status> {
    let open = op::open(c.owner("owner"), access, deny, OpenHow::NoCreate, OpenClaim::Fh);
    match c.run(&[op::put(fh), open]).await.results.pop() {
        Some(ResOp::Open(Ok(ok))) => {
            let deleg = match ok.delegation {
                Delegation::Read(d) => Some(d.stateid),
                Delegation::Write(d) => Some(d.stateid),
                _ => None,
            };
            Ok((ok.stateid, deleg))
        }
        Some(ResOp::Open(Err(status))) => Err(status),
        other => panic!("{other:?}"),
    }
}

/// What the client that is to end holds of a file.
async fn hold(w: &World, c: &mut Client, fh: &FileHandle, rng: &mut Rng) {
    let (access, deny) = match rng.below(4) {
        0 => (RW | share::WANT_NO_DELEG, share::DENY_BOTH),
        1 => (RW | share::WANT_WRITE_DELEG, 0),
        2 => (share::ACCESS_READ | share::WANT_READ_DELEG, 0),
        _ => (RW | share::WANT_NO_DELEG, share::DENY_WRITE),
    };
    let (stateid, deleg) = open(c, fh, access, deny).await.unwrap();
    if access & share::ACCESS_WRITE != 0 && rng.below(2) == 0 {
        let lock = op::lock_new(stateid, c.owner("l"), LockType::WRITE, 0, 10);
        assert_eq!(c.status(&[op::put(fh), lock]).await, Status::OK);
        saw(&w.seen, "a lock");
    }
    if deleg.is_some() {
        saw(&w.seen, "a delegation");
    }
    if rng.below(2) == 0 {
        let src_stateid = deleg.unwrap_or(stateid);
        let args = CopyNotifyArgs { src_stateid, destination_server: NetLoc::Name("there".into()) };
        assert_eq!(c.status(&[op::put(fh), ArgOp::CopyNotify(args)]).await, Status::OK);
        saw(&w.seen, "a copy-notify stateid");
    }
    if deleg.is_some() && rng.below(3) == 0 {
        // The delegation may stay alone.
        assert_eq!(c.status(&[op::put(fh), op::close(stateid)]).await, Status::OK);
    }
}

/// One thing that somebody else wants of a file, tried once.
async fn want(c: &mut Client, root: &FileHandle, (file, fh): (usize, &FileHandle), what: u64) -> Status {
    let deny = if what == 1 { share::DENY_BOTH } else { 0 };
    let status = match what {
        0..=2 => {
            let wish = if what == 2 { share::WANT_ANY_DELEG } else { share::WANT_NO_DELEG };
            match open(c, fh, RW | wish, deny).await {
                Ok((stateid, deleg)) => {
                    if let Some(stateid) = deleg {
                        let back = ArgOp::Delegreturn(DelegreturnArgs { stateid });
                        assert_eq!(c.status(&[op::put(fh), back]).await, Status::OK);
                    }
                    assert_eq!(c.status(&[op::put(fh), op::close(stateid)]).await, Status::OK);
                    Status::OK
                }
                Err(status) => status,
            }
        }
        3 => c.status(&[op::put(fh), op::setattr(Attrs { size: Some(0), ..Attrs::default() })]).await,
        4 => c.status(&[op::put(fh), op::setattr(Attrs { mode: Some(0o600), ..Attrs::default() })]).await,
        5 => {
            let (old, new) = (format!("f{file}"), format!("g{file}"));
            let rename = |a: &str, b: &str| [op::put(root), ArgOp::SaveFh, op::put(root), op::rename(a, b)];
            match c.status(&rename(&old, &new)).await {
                Status::OK => loop {
                    match c.status(&rename(&new, &old)).await {
                        Status::DELAY => sleep(Duration::from_millis(100)).await,
                        status => break status,
                    }
                },
                // The other one has it under its other name just now.
                Status::NOENT => Status::DELAY,
                status => status,
            }
        }
        6 => c.status(&[op::put(fh), op::getattr(&[dhow_proto::v4::attr::SIZE])]).await,
        _ => c.status(&[op::put(fh), op::lockt(c.owner("x"), LockType::WRITE, 0, 5)]).await,
    };
    match status {
        Status::OK | Status::DELAY | Status::FILE_OPEN | Status::SHARE_DENIED | Status::LOCKED | Status::DENIED => {
            status
        }
        other => panic!("what {what}: {other:?}"),
    }
}

/// Wants one thing after the other until all were had.
async fn wanting(w: &World, mut c: Client, root: &FileHandle, files: &[FileHandle], mut rng: Rng) -> Client {
    let mut wants: Vec<(usize, u64)> = (0..4).map(|_| (rng.below(FILES as u64) as usize, rng.below(8))).collect();
    // At last everything of everybody.
    wants.extend((0..FILES).map(|f| (f, 1)));
    for (file, what) in wants {
        let began = Instant::now();
        loop {
            match want(&mut c, root, (file, &files[file]), what).await {
                Status::OK => break,
                Status::DELAY => saw(&w.seen, "DELAY"),
                _ => saw(&w.seen, "denied"),
            }
            assert!(began.elapsed() < Duration::from_secs(900), "never gets in: {what} on {file}");
            sleep(Duration::from_micros(rng.below(3_000_000))).await;
        }
        if began.elapsed() > Duration::from_secs(60) {
            saw(&w.seen, "waited for the end");
        }
    }
    c
}

async fn schedule(seed: u64, seen: Seen) {
    let mut rng = Rng::new(seed);
    let w = World::start(&mut rng, seen).await;
    let mut a = w.client("a", 1).await;
    a.wire.on_callback = Callbacks::Keep;
    let (mut b, c) = (w.client("b", 1).await, w.client("c", 1).await);
    let root = b.walk("").await;
    let mut files = Vec::new();
    for f in 0..FILES {
        let owner = b.owner("maker");
        let made = b.open(&root, op::open_create(owner, RW | share::WANT_NO_DELEG, 0, format!("f{f}"), 0o666)).await;
        b.close(&made).await;
        files.push(made.fh);
    }
    for fh in &files {
        hold(&w, &mut a, fh, &mut rng).await;
    }
    // With state it cannot be destroyed (RFC 8881 18.50).
    let others = b.status(&[op::destroy_client(a.id)]).await;
    assert_eq!(others, Status::CLIENTID_BUSY);
    let end = async {
        sleep(Duration::from_micros(rng.below(20_000_000))).await;
        if w.running.shared().state.delegations() > 0 && w.running.shared().metrics.deleg.recalls.load(Relaxed) > 0 {
            saw(&w.seen, "ended while one was being recalled");
        }
        if rng.below(2) == 0 {
            // RFC 8881 18.35.4, case 5.
            saw(&w.seen, "another incarnation");
            let again = w.client("a", 2).await;
            return Some(again);
        }
        saw(&w.seen, "silence");
        if rng.below(2) == 0 {
            // Heard of once more, about when its lease ends.
            sleep(Duration::from_secs(60 + rng.below(40))).await;
            match a.status(&[]).await {
                Status::OK => saw(&w.seen, "it was still there"),
                Status::BADSESSION => saw(&w.seen, "it was gone"),
                other => panic!("{other:?}"),
            }
        }
        None
    };
    let (rb, rc) = (Rng::new(seed ^ 0xb), Rng::new(seed ^ 0xc));
    let (again, b, c) = tokio::join!(end, wanting(&w, b, &root, &files, rb), wanting(&w, c, &root, &files, rc));
    let state = &w.running.shared().state;
    let began = Instant::now();
    loop {
        let n = state.counts();
        if (n.opens, n.lock_states, n.delegations, n.copy_notifies, n.files) == (0, 0, 0, 0, 0)
            && w.fs.open_count() == 0
        {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "left: {n:?}, {:?}", w.fs.opens());
        sleep(Duration::from_millis(100)).await;
    }
    let breaches = w.breaches.lock().unwrap().clone();
    assert!(breaches.is_empty(), "{breaches:?}");
    let recorded = w.store.clients().unwrap().iter().any(|(owner, _)| owner == "a");
    // It belongs to the next incarnation, if there is one.
    assert!(again.is_some() || !recorded, "what was lost may not be reclaimed");
    drop((again, b, c));
}

/// `DHOW_ENDS_SEED` runs one schedule alone.
#[tokio::test(start_paused = true)]
async fn nobody_gets_in_before_the_end_and_nothing_is_left_after_it() {
    struct Naming(u64);
    impl Drop for Naming {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("DHOW_ENDS_SEED={}", self.0);
            }
        }
    }
    let alone = std::env::var("DHOW_ENDS_SEED").ok().and_then(|s| s.parse().ok());
    let seen = Seen::default();
    for seed in alone.map_or(0..SCHEDULES, |s| s..s + 1) {
        let _naming = Naming(seed);
        schedule(seed, seen.clone()).await;
    }
    let seen = seen.lock().unwrap().clone();
    println!("{seen:#?}");
    if alone.is_none() {
        for what in [
            "a lock",
            "a delegation",
            "a copy-notify stateid",
            "DELAY",
            "denied",
            "waited for the end",
            "ended while one was being recalled",
            "another incarnation",
            "silence",
            "it was still there",
            "it was gone",
        ] {
            assert!(seen.contains_key(what), "in {SCHEDULES} schedules never: {what}");
        }
    }
}
