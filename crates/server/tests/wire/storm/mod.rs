//! A storm of updates in a few directories, by many clients, of the same names and of different ones: create in all
//! modes, unlink, rename within and across, link, mkdir, rmdir, readdir (C5; cases K20, K26, K28).
//!
//! It goes in rounds. In each, some clients do a handful of random operations at once; then all is quiet, the whole
//! tree is looked at, and there must be an order of the round's operations, each at one moment between its call and its
//! reply, in which every reply is right and which leads to the tree that was found ([`linear`], [`model`]). Besides: link
//! counts, no orphan, no cycle, change attributes that only grow and are called atomic only when nothing came between,
//! and listings during the changes that show every name that stayed exactly once.
//!
//! All under a watchdog. `DHOW_STORM_SECONDS` makes it longer, `DHOW_STORM_SEED` another; a failure says its seed.

mod linear;
mod model;

use crate::common::{Srv, open_to_all};
use crate::hostile::Rng;
use bytes::Bytes;
use dhow_local::{Local, Options};
use dhow_proto::v4::attr::{FILEHANDLE, NUMLINKS, TYPE};
use dhow_proto::v4::ops::{CreateHow, OpenClaim, OpenHow};
use dhow_proto::v4::{ArgOp, Attrs, ChangeInfo, Fattr, FileHandle, FileType, ResOp, Status, Verifier};
use dhow_testkit::MemFs;
use dhow_testkit::fault::{Action, Call};
use dhow_testkit::memfs;
use dhow_testkit::wire::{Client, op};
use linear::{Event, Verdict};
use model::{Id, Mode, Node, Op, Reply, Tree};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const CLIENTS: usize = 6;
const OPS: usize = 5;
const NAMES: usize = 3;
/// Names that stay, in the first directory.
const KEPT: usize = 60;
/// Rounds after which the directories are left for new ones, before the tree grows large.
const ROUNDS_IN_ONE_PLACE: u64 = 12;
/// A round takes milliseconds; this is for a round that hangs.
const WATCHDOG: Duration = Duration::from_secs(60);

/// Objects by number, and the clock of calls and replies.
#[derive(Default)]
struct World {
    ids: Mutex<HashMap<FileHandle, Id>>,
    handles: Mutex<Vec<FileHandle>>,
    clock: AtomicU64,
}

impl World {
    fn id(&self, fh: &FileHandle) -> Id {
        let mut ids = self.ids.lock().unwrap();
        if let Some(id) = ids.get(fh) {
            return *id;
        }
        let mut handles = self.handles.lock().unwrap();
        handles.push(fh.clone());
        let id = handles.len() as Id - 1;
        ids.insert(fh.clone(), id);
        id
    }

    fn fh(&self, id: Id) -> FileHandle {
        self.handles.lock().unwrap()[id as usize].clone()
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }
}

/// A change of a directory that a reply told.
#[derive(Clone, Copy, Debug)]
struct Told {
    dir: Id,
    cinfo: ChangeInfo,
    called: u64,
    replied: u64,
}

fn name_of(name: u8) -> String {
    format!("n{name}")
}

/// What one operation said.
struct Said {
    reply: Reply,
    told: Vec<(Id, ChangeInfo)>,
}

async fn run_once(c: &mut Client, world: &World, what: &Op, owner: &str) -> Said {
    let put = |id: Id| op::put(&world.fh(id));
    let ops = match *what {
        Op::Lookup { dir, name } => vec![put(dir), op::lookup(name_of(name)), op::getfh()],
        Op::Mkdir { dir, name } => vec![put(dir), op::mkdir(name_of(name)), op::getfh()],
        Op::Remove { dir, name } => vec![put(dir), op::remove(name_of(name))],
        Op::Link { file, dir, name } => vec![put(file), ArgOp::SaveFh, put(dir), op::link(name_of(name))],
        Op::Rename { from, old, to, new } => {
            vec![put(from), ArgOp::SaveFh, put(to), op::rename(name_of(old), name_of(new))]
        }
        Op::Create { dir, name, mode } => {
            let attrs = Fattr::from(Attrs { mode: Some(0o644), ..Attrs::default() });
            let how = match mode {
                Mode::Unchecked => CreateHow::Unchecked(attrs),
                Mode::Guarded => CreateHow::Guarded(attrs),
                Mode::Exclusive(v) => CreateHow::Exclusive41 { verifier: Verifier(v.to_be_bytes()), attrs },
            };
            let claim = OpenClaim::Null(Bytes::from(name_of(name)));
            vec![put(dir), op::open(c.owner(owner), 3, 0, OpenHow::Create(how), claim), op::getfh()]
        }
    };
    let res = c.run(&ops).await;
    let (mut found, mut told, mut opened) = (None, Vec::new(), None);
    for result in &res.results {
        match (result, *what) {
            (ResOp::GetFh(Ok(fh)), _) => found = Some(fh.object.clone()),
            (ResOp::Open(Ok(ok)), Op::Create { dir, .. }) => {
                opened = Some(ok.stateid);
                told.push((dir, ok.cinfo));
            }
            (ResOp::Create(Ok(ok)), Op::Mkdir { dir, .. }) => told.push((dir, ok.cinfo)),
            (ResOp::Remove(Ok(ok)), Op::Remove { dir, .. }) => told.push((dir, ok.cinfo)),
            (ResOp::Link(Ok(ok)), Op::Link { dir, .. }) => told.push((dir, ok.cinfo)),
            (ResOp::Rename(Ok(ok)), Op::Rename { from, to, .. }) => {
                told.push((from, ok.source_cinfo));
                if from != to {
                    told.push((to, ok.target_cinfo));
                }
            }
            _ => {}
        }
    }
    if let (Some(fh), Some(stateid)) = (&found, opened) {
        c.ok(&[op::put(fh), op::close(stateid)]).await;
    }
    let reply = if res.status.is_ok() { Ok(found.map(|fh| world.id(&fh))) } else { Err(res.status) };
    Said { reply, told }
}

/// Runs an operation, again after DELAY: that one had no effect.
async fn run(c: &mut Client, world: &World, client: usize, what: Op) -> (Event, Vec<Told>) {
    let called = world.tick();
    let mut said = run_once(c, world, &what, &format!("o{client}")).await;
    for _ in 0..200 {
        if said.reply != Err(Status::DELAY) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        said = run_once(c, world, &what, &format!("o{client}")).await;
    }
    let replied = world.tick();
    let told = said.told.iter().map(|(dir, cinfo)| Told { dir: *dir, cinfo: *cinfo, called, replied }).collect();
    (Event { client, called, replied, op: what, reply: said.reply }, told)
}

fn random(r: &mut Rng, dirs: &[Id], files: &[Id], client: usize, count: u64) -> Op {
    let dir = dirs[r.below(dirs.len())];
    let name = r.below(NAMES) as u8;
    let (to, new) = (dirs[r.below(dirs.len())], r.below(NAMES) as u8);
    match r.below(14) {
        0 => Op::Create { dir, name, mode: Mode::Unchecked },
        1 | 2 => Op::Create { dir, name, mode: Mode::Guarded },
        // Two clients with one verifier are one client that asks again.
        3 => Op::Create { dir, name, mode: Mode::Exclusive(count / 4 * 8 + client as u64 / 2) },
        4 | 5 => Op::Mkdir { dir, name },
        6..=8 => Op::Remove { dir, name },
        9 if !files.is_empty() => Op::Link { file: files[r.below(files.len())], dir, name },
        10 => Op::Lookup { dir, name },
        11 => Op::Rename { from: dir, old: name, to: dir, new },
        _ => Op::Rename { from: dir, old: name, to, new },
    }
}

/// All pages of a directory, small ones, with these attributes.
async fn list(c: &mut Client, dir: &FileHandle, bits: &[u32], page: u32) -> Vec<dhow_proto::v4::ops::DirEntry> {
    let (mut cookie, mut verifier, mut all) = (0, Verifier::default(), Vec::new());
    loop {
        let res = c.run(&[op::put(dir), op::readdir(cookie, verifier, page, bits)]).await;
        match res.results.into_iter().next_back() {
            Some(ResOp::Readdir(Ok(ok))) => {
                assert!(ok.eof || !ok.entries.is_empty(), "a listing that does not go on");
                verifier = ok.verifier;
                cookie = ok.entries.last().map_or(cookie, |e| e.cookie);
                all.extend(ok.entries);
                if ok.eof {
                    return all;
                }
            }
            Some(ResOp::Readdir(Err(Status::DELAY))) => tokio::time::sleep(Duration::from_millis(5)).await,
            other => panic!("{other:?}"),
        }
    }
}

/// Listings while names come and go: every name that stays is there exactly once (case K28).
fn every_kept_name_once(listing: &[dhow_proto::v4::ops::DirEntry]) {
    let mut seen: BTreeMap<&[u8], u32> = BTreeMap::new();
    for entry in listing {
        assert!(entry.cookie > 2, "a reserved cookie");
        *seen.entry(&entry.name).or_default() += 1;
    }
    for n in 0..KEPT {
        let name = format!("kept-{n}");
        assert_eq!(seen.remove(name.as_bytes()), Some(1), "{name} is not there once");
    }
    for name in seen.keys() {
        assert!((0..NAMES).any(|n| name_of(n as u8).as_bytes() == *name), "{name:?} was never there");
    }
}

/// The tree as it is when all is quiet: what leads to what, and how many links each object says that it has.
async fn look(c: &mut Client, world: &World, roots: [Id; 2]) -> (BTreeMap<(Id, u8), Id>, BTreeMap<Id, Node>) {
    let (mut names, mut nodes, mut links) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let mut subdirs: BTreeMap<Id, u32> = BTreeMap::new();
    let mut todo = roots.to_vec();
    for root in roots {
        nodes.insert(root, Node { dir: true, verifier: None });
    }
    while let Some(dir) = todo.pop() {
        for entry in list(c, &world.fh(dir), &[TYPE, NUMLINKS, FILEHANDLE], 4096).await {
            if entry.name.starts_with(b"kept-") {
                continue;
            }
            let id = world.id(entry.attrs.filehandle.as_ref().expect("a filehandle"));
            let is_dir = entry.attrs.file_type == Some(FileType::DIR);
            let name = entry.name[1] - b'0';
            assert!(names.insert((dir, name), id).is_none(), "one name twice in a quiet directory");
            links.insert(id, entry.attrs.numlinks.expect("a link count"));
            let seen = nodes.insert(id, Node { dir: is_dir, verifier: None }).is_some();
            if is_dir {
                assert!(!seen, "a directory in two places");
                *subdirs.entry(dir).or_default() += 1;
                todo.push(id);
            }
        }
    }
    for (id, links) in links {
        let named = names.values().filter(|other| **other == id).count() as u32;
        let right = if nodes[&id].dir { 2 + subdirs.get(&id).copied().unwrap_or(0) } else { named };
        assert_eq!(links, right, "links of {id}");
    }
    (names, nodes)
}

/// Change attributes of a round (RFC 8881 3.3.4, 5.8.1.4).
fn changes_are_right(told: &[Told]) {
    for a in told {
        assert!(a.cinfo.before <= a.cinfo.after, "{a:?}");
        for b in told.iter().filter(|b| b.dir == a.dir) {
            if a.replied < b.called {
                assert!(a.cinfo.after <= b.cinfo.before, "it went back: {a:?} then {b:?}");
            }
            let apart = a.cinfo.after <= b.cinfo.before || b.cinfo.after <= a.cinfo.before;
            let same = a.called == b.called || a.cinfo.before == a.cinfo.after || b.cinfo.before == b.cinfo.after;
            assert!(!a.cinfo.atomic || !b.cinfo.atomic || apart || same, "both atomic: {a:?} and {b:?}");
            let inside = b.cinfo.after > a.cinfo.before && b.cinfo.after < a.cinfo.after;
            assert!(!a.cinfo.atomic || !inside || same, "called atomic with another inside: {a:?} and {b:?}");
        }
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// A directory with names that stay, and another.
async fn place(c: &mut Client, world: &World, root: &FileHandle, number: u64) -> [Id; 2] {
    let a = c.mkdir(root, format!("a{number}")).await;
    let b = c.mkdir(root, format!("b{number}")).await;
    for n in 0..KEPT {
        c.mkdir(&a, format!("kept-{n}")).await;
    }
    [world.id(&a), world.id(&b)]
}

fn fresh(roots: [Id; 2]) -> Tree {
    let nodes = roots.iter().map(|id| (*id, Node { dir: true, verifier: None })).collect();
    Tree { nodes, names: BTreeMap::new(), roots: roots.into_iter().collect() }
}

/// Storms over one server, until the time is up.
async fn storm(srv: &Srv, kind: &str) {
    let seed = number("DHOW_STORM_SEED", 1);
    let time = Duration::from_secs(number("DHOW_STORM_SECONDS", 3));
    let world = Arc::new(World::default());
    let mut watcher = srv.client("watcher").await;
    let mut lister = srv.client("lister").await;
    let root = watcher.walk("").await;
    let mut clients = Vec::new();
    for n in 0..CLIENTS {
        clients.push(srv.client(&format!("c{n}")).await);
    }
    let (mut roots, mut tree) = ([0, 0], Tree::default());
    let (begin, mut round, mut undecided, mut atomic, mut done) = (Instant::now(), 0, 0, 0, 0);
    while begin.elapsed() < time || round < 3 {
        let which = format!("{kind}, DHOW_STORM_SEED={seed}, round {round}");
        let one = async {
            if round % ROUNDS_IN_ONE_PLACE == 0 {
                roots = place(&mut watcher, &world, &root, round / ROUNDS_IN_ONE_PLACE).await;
                tree = fresh(roots);
            }
            let r = Rng::new(seed.wrapping_mul(1_000_003).wrapping_add(round));
            let (events, told) = storm_round(&world, &mut clients, &mut lister, roots, &tree, r, round).await;
            let (names, nodes) = look(&mut watcher, &world, roots).await;
            let found = |end: &Tree| {
                let kinds = |nodes: &BTreeMap<Id, Node>| nodes.iter().map(|(id, n)| (*id, n.dir)).collect::<Vec<_>>();
                end.names == names && kinds(&end.nodes) == kinds(&nodes)
            };
            match linear::check(&events, &tree, found) {
                Verdict::Linear(end) => tree = *end,
                Verdict::TooLong => {
                    undecided += 1;
                    tree = Tree { nodes, names, roots: tree.roots.clone() };
                }
                Verdict::NotLinear(order, led) => {
                    let order: Vec<_> = order.iter().map(|i| &events[*i]).collect();
                    panic!(
                        "{which}: no order makes these right:\n{events:#?}\nfrom {tree:?}\nbest:\n{order:#?}\n\
                         leads to {led:?}\nfound {names:?}"
                    );
                }
            }
            // What no name leads to is gone: its handle says so.
            for event in &events {
                if let Ok(Some(id)) = event.reply
                    && !tree.nodes.contains_key(&id)
                {
                    let mut status = Status::DELAY;
                    for _ in 0..200 {
                        status = watcher.status(&[op::put(&world.fh(id)), op::getattr(&[TYPE])]).await;
                        if status != Status::DELAY {
                            break;
                        }
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    assert_eq!(status, Status::STALE, "{which}: {id} is an orphan");
                }
            }
            changes_are_right(&told);
            done += events.len();
            atomic += told.iter().filter(|t| t.cinfo.atomic).count();
        };
        if tokio::time::timeout(WATCHDOG, one).await.is_err() {
            panic!("{which}: it hangs");
        }
        round += 1;
    }
    let waits = srv.running.shared().metrics.name_waits.load(Ordering::Relaxed);
    println!(
        "{kind}: {round} rounds, {done} operations, {waits} waits for names, {atomic} atomic, {undecided} undecided"
    );
    assert!(undecided * 10 <= round, "too much was not decided");
    assert_eq!(srv.running.shared().metrics.name_wait_ends.load(Ordering::Relaxed), 0, "a wait took too long");
}

async fn storm_round(
    world: &Arc<World>,
    clients: &mut Vec<Client>,
    lister: &mut Client,
    roots: [Id; 2],
    tree: &Tree,
    mut r: Rng,
    round: u64,
) -> (Vec<Event>, Vec<Told>) {
    // The two directories more often than what is in them.
    let mut dirs = vec![roots[0], roots[1], roots[0], roots[1]];
    dirs.extend(tree.nodes.iter().filter(|(id, n)| n.dir && !roots.contains(id)).map(|(id, _)| *id).take(4));
    let files: Vec<Id> = tree.nodes.iter().filter(|(_, n)| !n.dir).map(|(id, _)| *id).collect();
    let mut tasks = Vec::new();
    for (n, mut c) in std::mem::take(clients).into_iter().enumerate() {
        let (world, mut dirs, mut files) = (world.clone(), dirs.clone(), files.clone());
        let mut r = Rng::new(r.below(1 << 40) as u64);
        tasks.push(tokio::spawn(async move {
            let (mut events, mut all) = (Vec::new(), Vec::new());
            for _ in 0..OPS {
                let what = random(&mut r, &dirs, &files, n, round);
                let (event, told) = run(&mut c, &world, n, what).await;
                match (what, event.reply) {
                    (Op::Mkdir { .. }, Ok(Some(id))) => dirs.push(id),
                    (Op::Create { .. }, Ok(Some(id))) => files.push(id),
                    _ => {}
                }
                events.push(event);
                all.extend(told);
            }
            (c, events, all)
        }));
    }
    let first = world.fh(roots[0]);
    let (mut events, mut told) = (Vec::new(), Vec::new());
    loop {
        let page = 300 + r.below(1500) as u32;
        every_kept_name_once(&list(lister, &first, &[TYPE], page).await);
        if tasks.iter().all(tokio::task::JoinHandle::is_finished) {
            break;
        }
    }
    for task in tasks {
        let (c, some, more) = task.await.expect("a client's task");
        clients.push(c);
        events.extend(some);
        told.extend(more);
    }
    events.sort_by_key(|e| e.replied);
    (events, told)
}

/// Over a filesystem in memory whose calls take a while, so that everything overlaps.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn in_memory() {
    let srv = Srv::start().await;
    for call in [Call::Lookup, Call::Create, Call::Make, Call::Link, Call::Remove, Call::Rename] {
        srv.fault.always(call, Action::Delay(Duration::from_micros(500)));
    }
    storm(&srv, "MemFs").await;
}

async fn over_local(kind: &str, home: tempfile::TempDir, metadata_sync: bool) {
    for dir in ["export", "state"] {
        std::fs::create_dir(home.path().join(dir)).unwrap();
    }
    let mut options = Options::new(home.path().join("export"));
    options.state_dir = Some(home.path().join("state"));
    options.metadata_sync = metadata_sync;
    // So that `atomic` is said, and can be wrong.
    options.exclusive = true;
    let local = Arc::new(Local::open(options).unwrap());
    let srv = Srv::over(local, MemFs::with(memfs::Options::default()), |config| {
        config.exports[0].options = open_to_all();
    })
    .await;
    storm(&srv, kind).await;
}

/// Over a directory of the disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn on_disk() {
    let home = tempfile::Builder::new().prefix("dhow-storm-").tempdir().unwrap();
    over_local("disk", home, false).await;
}

/// With every change made durable before its reply, which widens each operation by far.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn on_disk_synced() {
    let home = tempfile::Builder::new().prefix("dhow-storm-").tempdir().unwrap();
    over_local("disk, synced", home, true).await;
}

/// Over tmpfs, whose times tick coarsely and whose listings are ordered by coming.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn on_tmpfs() {
    let Ok(home) = tempfile::Builder::new().prefix("dhow-storm-").tempdir_in("/dev/shm") else {
        eprintln!("SKIPPED: there is no /dev/shm");
        return;
    };
    over_local("tmpfs", home, true).await;
}
