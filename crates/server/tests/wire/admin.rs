//! What an administrator takes away, as its clients see it, and reloads (RFC 8881 8.5, 18.38, 18.46.3, 18.48; case K19).

use crate::common::{Srv, config, open_to_all, start};
use dhow_proto::v4::cb::{CbArgOp, OffloadInfo};
use dhow_proto::v4::ops::{
    CopyRes, Delegation, DelegreturnArgs, FreeStateidArgs, OpenClaim, OpenHow, TestStateidArgs, seq4_status, share,
};
use dhow_proto::v4::{ArgOp, CompoundRes, FileHandle, LockType, ResOp, StableHow, Stateid, Status};
use dhow_server::admin::AdminError;
use dhow_server::{CopyConfig, Delegations, ExportConfig, ExportOptions, IdConfig, Reload, ReloadError, ServerLimits};
use dhow_state::{ClientId, Detail, StateFilter};
use dhow_testkit::MemFs;
use dhow_testkit::fault::{Action, Call, Gate};
use dhow_testkit::memfs::Options;
use dhow_testkit::wire::{Client, Open, op};
use dhow_vfs::Backend;
use std::sync::Arc;
use std::time::Duration;

/// The flags of a SEQUENCE.
async fn flags(c: &mut Client) -> u32 {
    match c.run(&[]).await.results.first() {
        Some(ResOp::Sequence(Ok(seq))) => seq.status_flags,
        other => panic!("{other:?}"),
    }
}

async fn revoked(c: &mut Client) -> bool {
    flags(c).await & seq4_status::ADMIN_STATE_REVOKED != 0
}

async fn test_stateids(c: &mut Client, stateids: &[Stateid]) -> Vec<Status> {
    let ask = ArgOp::TestStateid(TestStateidArgs { stateids: stateids.to_vec() });
    match c.ok(&[ask]).await.pop() {
        Some(ResOp::TestStateid(Ok(ok))) => ok.status_codes,
        other => panic!("{other:?}"),
    }
}

async fn free(c: &mut Client, stateid: Stateid) -> Status {
    c.status(&[ArgOp::FreeStateid(FreeStateidArgs { stateid })]).await
}

fn lock_stateid(res: &CompoundRes) -> Stateid {
    match res.results.last() {
        Some(ResOp::Lock(dhow_proto::v4::ops::LockRes::Ok(stateid))) => *stateid,
        other => panic!("{other:?}"),
    }
}

async fn lock(c: &mut Client, f: &Open, owner: &str, offset: u64, len: u64) -> Stateid {
    let owner = c.owner(owner);
    lock_stateid(&c.run(&[op::put(&f.fh), op::lock_new(f.stateid, owner, LockType::WRITE, offset, len)]).await)
}

fn id_of(c: &Client) -> ClientId {
    c.id
}

/// A request that is under way: its backend's call is held until the gate is opened.
async fn held(srv: &Srv, call: Call, c: &mut Client, ops: &[ArgOp]) -> (Gate, u32) {
    let gate = Gate::new();
    srv.fault.once(call, Action::Hold(gate.clone()));
    let sent = c.send(0, ops).await;
    gate.arrived(1).await;
    (gate, sent)
}

async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    for _ in 0..1000 {
        if done().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{what} did not come");
}

/// 8.5: an open that is taken away is ADMIN_REVOKED wherever it is used, with the locks taken through it; the client is
/// told by each SEQUENCE until it has freed the stateids; others may have the file meanwhile.
#[tokio::test]
async fn an_open_is_taken_away() {
    let srv = Srv::start().await;
    let (mut a, mut b) = (srv.client("a").await, srv.client("b").await);
    let root = a.walk("").await;
    let owner = a.owner("o");
    let f = a.open(&root, op::open_create(owner, share::ACCESS_BOTH, share::DENY_BOTH, "f", 0o666)).await;
    a.write(&f, 0, b"data").await;
    let held = lock(&mut a, &f, "l", 0, 10).await;
    let shared = Arc::clone(srv.running.shared());
    let all = shared.admin_states(&StateFilter::default(), None, 100);
    assert_eq!(all.items.len(), 2);
    let shown: Vec<_> = all.items.iter().map(|s| (s.stateid, s.client)).collect();
    assert!(shown.contains(&(f.stateid, id_of(&a))) && shown.contains(&(held, id_of(&a))), "{shown:?}");
    let taken = op::open_name(b.owner("o"), share::ACCESS_BOTH, 0, "f");
    assert_eq!(b.status(&[op::put(&root), taken.clone()]).await, Status::SHARE_DENIED);
    assert!(!revoked(&mut a).await);

    shared.admin_revoke(&f.stateid).await.unwrap();
    assert_eq!(shared.admin_revoke(&f.stateid).await, Err(AdminError::NotFound("open, lock or delegation")));
    assert!(revoked(&mut a).await && !revoked(&mut b).await);
    assert_eq!(b.status(&[op::put(&root), taken]).await, Status::OK, "nothing stands in the way");
    assert_eq!(test_stateids(&mut a, &[f.stateid, held]).await, [Status::ADMIN_REVOKED; 2]);
    assert_eq!(test_stateids(&mut b, &[f.stateid]).await, [Status::BAD_STATEID], "not its own");
    assert_eq!(free(&mut b, f.stateid).await, Status::BAD_STATEID);
    let put = op::put(&f.fh);
    for use_of_it in [
        op::read(f.stateid, 0, 4),
        op::write(f.stateid, 0, StableHow::UNSTABLE, b"x"),
        op::write(held, 0, StableHow::UNSTABLE, b"x"),
        op::close(f.stateid),
        op::downgrade(f.stateid, share::ACCESS_READ, 0),
        op::lock_new(f.stateid, a.owner("m"), LockType::READ, 0, 1),
        op::lock_more(held, LockType::WRITE, 20, 1),
        op::locku(held, 0, 1),
        op::seek(f.stateid, 0, dhow_proto::v4::ops::DataContent::DATA),
    ] {
        assert_eq!(a.status(&[put.clone(), use_of_it.clone()]).await, Status::ADMIN_REVOKED, "{use_of_it:?}");
    }
    // 18.38: freed one by one; then they never were.
    assert_eq!(free(&mut a, held).await, Status::OK);
    assert!(revoked(&mut a).await);
    assert_eq!(free(&mut a, f.stateid).await, Status::OK);
    assert!(!revoked(&mut a).await);
    assert_eq!(a.status(&[put, op::read(f.stateid, 0, 4)]).await, Status::BAD_STATEID);
    // The same owner may open again.
    let again = op::open_name(a.owner("o"), share::ACCESS_READ, 0, "f");
    let again = a.open(&root, again).await;
    a.close(&again).await;
}

/// The locks of one lock-owner are taken away; the open stays, and another's lock is granted.
#[tokio::test]
async fn locks_are_taken_away() {
    let srv = Srv::start().await;
    let (mut a, mut b) = (srv.client("a").await, srv.client("b").await);
    let root = a.walk("").await;
    let f = a.create(&root, "f").await;
    let (held, other) = (lock(&mut a, &f, "l", 0, 10).await, lock(&mut a, &f, "m", 100, 1).await);
    let g = b.open(&root, op::open_name(b.owner("o"), share::ACCESS_BOTH, 0, "f")).await;
    let wanted = op::lock_new(g.stateid, b.owner("l"), LockType::WRITE, 5, 1);
    assert_eq!(b.status(&[op::put(&g.fh), wanted.clone()]).await, Status::DENIED);
    let shared = srv.running.shared();
    let file = shared.admin_file("/f").await.unwrap();
    let filter = StateFilter { file: Some(file), client: Some(id_of(&a)) };
    let of_file = shared.admin_states(&filter, None, 10);
    let ranges = of_file.items.iter().find_map(|s| match &s.detail {
        Detail::Lock { ranges, count: 1 } if s.stateid == held => Some(ranges[0].0.offset_length()),
        _ => None,
    });
    assert_eq!((of_file.items.len(), ranges), (3, Some((0, 10))));
    shared.admin_revoke(&held).await.unwrap();
    assert_eq!(b.status(&[op::put(&g.fh), wanted]).await, Status::OK);
    assert_eq!(test_stateids(&mut a, &[held, other, f.stateid]).await, [Status::ADMIN_REVOKED, Status::OK, Status::OK]);
    assert_eq!(free(&mut a, held).await, Status::OK);
    assert!(!revoked(&mut a).await);
    a.write(&f, 0, b"goes on").await;
    a.close(&f).await;
}

/// A delegation is taken away without a recall: its use is ADMIN_REVOKED, and what it stood against goes on.
#[tokio::test]
async fn a_delegation_is_taken_away() {
    let srv = Srv::with(Options::default(), |c| c.exports[0].options.delegations = Delegations::All).await;
    let mut a = srv.client("a").await;
    let root = a.walk("").await;
    let how = share::ACCESS_BOTH | share::WANT_WRITE_DELEG;
    let open = op::open_create(a.owner("o"), how, 0, "f", 0o666);
    let results = a.ok(&[op::put(&root), open, op::getfh()]).await;
    let (stateid, given, fh) = results.iter().fold((None, None, None), |(s, d, f), r| match r {
        ResOp::Open(Ok(ok)) => match &ok.delegation {
            Delegation::Write(w) => (Some(ok.stateid), Some(w.stateid), f),
            other => panic!("{other:?}"),
        },
        ResOp::GetFh(Ok(ok)) => (s, d, Some(ok.object.clone())),
        _ => (s, d, f),
    });
    let (stateid, given, fh): (Stateid, Stateid, FileHandle) = (stateid.unwrap(), given.unwrap(), fh.unwrap());
    srv.running.shared().admin_revoke(&given).await.unwrap();
    assert!(a.wire.callbacks.is_empty(), "nobody was asked");
    // The Linux client looks through its delegations when it hears the latter.
    let both = seq4_status::ADMIN_STATE_REVOKED | seq4_status::RECALLABLE_STATE_REVOKED;
    assert_eq!(flags(&mut a).await & both, both);
    assert_eq!(test_stateids(&mut a, &[given, stateid]).await, [Status::ADMIN_REVOKED, Status::OK]);
    let put = op::put(&fh);
    assert_eq!(a.status(&[put.clone(), op::read(given, 0, 1)]).await, Status::ADMIN_REVOKED);
    let back = ArgOp::Delegreturn(DelegreturnArgs { stateid: given });
    assert_eq!(a.status(&[put.clone(), back]).await, Status::ADMIN_REVOKED);
    let claim = OpenClaim::DelegCurFh(given);
    let by_it = op::open(a.owner("p"), share::ACCESS_READ, 0, OpenHow::NoCreate, claim);
    assert_eq!(a.status(&[put.clone(), by_it]).await, Status::ADMIN_REVOKED);
    assert_eq!(free(&mut a, given).await, Status::OK);
    assert_eq!(flags(&mut a).await & both, 0);
    assert_eq!(a.status(&[put, op::read(stateid, 0, 1)]).await, Status::OK);
    assert_eq!(srv.running.shared().state.delegations(), 0);
}

/// A WRITE that is under way when its open is taken away ends as it would have; the revocation waits for it, holding up
/// nobody else on the file.
#[tokio::test]
async fn io_under_way_ends_first() {
    let srv = Srv::start().await;
    let (mut a, mut b) = (srv.client("a").await, srv.client("b").await);
    let root = a.walk("").await;
    let f = a.create(&root, "f").await;
    let write = [op::put(&f.fh), op::write(f.stateid, 0, StableHow::UNSTABLE, b"slow")];
    let (gate, sent) = held(&srv, Call::Write, &mut a, &write).await;
    let shared = Arc::clone(srv.running.shared());
    let stateid = f.stateid;
    let order = tokio::spawn(async move { shared.admin_revoke(&stateid).await });
    // From when the order is seen the open takes no new I/O; others open and close the file.
    until("the revocation", async || {
        let status = b.status(&[op::put(&f.fh), op::read(Stateid::ANONYMOUS, 0, 1)]).await;
        assert_eq!(status, Status::OK);
        let g = b.open(&root, op::open_name(b.owner("o"), share::ACCESS_READ, 0, "f")).await;
        b.close(&g).await;
        true
    })
    .await;
    assert!(!order.is_finished());
    gate.open();
    assert_eq!(a.wait(sent).await.status, Status::OK);
    order.await.unwrap().unwrap();
    assert_eq!(a.status(&[op::put(&f.fh), op::close(f.stateid)]).await, Status::ADMIN_REVOKED);
    assert_eq!(&srv.fs.content_of("f").unwrap()[..], b"slow");
}

/// A client is ended: BADSESSION; what it held is free at once; it comes back as a new one.
#[tokio::test]
async fn a_client_is_ended() {
    let srv = Srv::start().await;
    let (mut a, mut b) = (srv.client("a").await, srv.client("b").await);
    let root = a.walk("").await;
    let owner = a.owner("o");
    a.open(&root, op::open_create(owner, share::ACCESS_BOTH, share::DENY_BOTH, "f", 0o666)).await;
    let shared = srv.running.shared();
    let seen = shared.admin_clients(None, 10);
    let mine = seen.items.iter().find(|v| v.info.id == id_of(&a)).unwrap();
    assert_eq!((mine.info.opens, mine.info.sessions, mine.peers.len()), (1, 1, 1), "{mine:?}");
    assert!(mine.info.confirmed && mine.info.lease_age < Duration::from_secs(60) && mine.info.owner.0 == "a");
    // Pages: each once, in order.
    let first = shared.admin_clients(None, 1);
    let second = shared.admin_clients(first.items.last().map(|v| v.info.id), 1);
    assert!(first.more && !second.more && first.items[0].info.id < second.items[0].info.id);

    shared.admin_expire(id_of(&a)).await.unwrap();
    assert_eq!(shared.admin_expire(id_of(&a)).await, Err(AdminError::NotFound("client")));
    let xid = a.send(0, &[op::put(&root)]).await;
    assert_eq!(a.wait(xid).await.status, Status::BADSESSION);
    b.open(&root, op::open_name(b.owner("o"), share::ACCESS_BOTH, share::DENY_BOTH, "f")).await;
    let mut again = srv.client("a").await;
    assert_ne!(id_of(&again), id_of(&a));
    assert_eq!(again.status(&[op::put(&root)]).await, Status::OK);
}

/// A copy that runs is ended: its client hears of it, with the bytes that were copied.
#[tokio::test]
async fn a_copy_is_ended() {
    let srv = Srv::with(Options::default(), |c| {
        c.copy = CopyConfig { sync_budget: Duration::ZERO, ..CopyConfig::default() };
    })
    .await;
    let mut a = srv.client("a").await;
    let root = a.walk("").await;
    let (src, dst) = (a.create(&root, "src").await, a.create(&root, "dst").await);
    a.write(&src, 0, &[7; 4096]).await;
    let gate = Gate::new();
    srv.fault.once(Call::CopyRange, Action::Hold(gate.clone()));
    let copy = op::copy(src.stateid, dst.stateid, (0, 0), 4096, false);
    let res = a.run(&[op::put(&src.fh), ArgOp::SaveFh, op::put(&dst.fh), copy]).await;
    let Some(ResOp::Copy(CopyRes::Ok(ok))) = res.results.last() else { panic!("{res:?}") };
    let stateid = *ok.response.callback_id.first().expect("asynchronous");
    let shared = srv.running.shared();
    let running = shared.admin_copies(None, 10);
    assert_eq!(running.items.iter().map(|c| (c.stateid, c.complete)).collect::<Vec<_>>(), [(stateid, None)]);
    shared.admin_cancel_copy(&stateid).unwrap();
    gate.open();
    let call = a.wire.callback().await;
    let Some(CbArgOp::Offload(told)) = call.compound().ops.pop() else { panic!() };
    assert!(matches!(told.info, OffloadInfo::Err { status: Status::ADMIN_REVOKED, .. }), "{told:?}");
    assert_eq!(told.stateid, stateid);
    assert_eq!(shared.admin_cancel_copy(&stateid), Err(AdminError::NotFound("running copy")));
    match a.ok(&[op::offload_status(stateid)]).await.pop() {
        Some(ResOp::OffloadStatus(Ok(ok))) => assert_eq!(ok.complete, [Status::ADMIN_REVOKED]),
        other => panic!("{other:?}"),
    }
}

/// Counters are shown since the last reset; those of the server itself never go back.
#[tokio::test]
async fn counters_are_reset() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let shared = srv.running.shared();
    let before = shared.admin_counters(true);
    assert!(before.values["op.EXCHANGE_ID"] == 1 && before.values["calls"] > 2, "{before:?}");
    assert!(!shared.admin_counters(false).values.contains_key("op.EXCHANGE_ID"));
    c.status(&[op::put(&root), op::lookup("nothing")]).await;
    let after = shared.admin_counters(false).values;
    assert_eq!((after["op.LOOKUP"], after["op.LOOKUP.errors"]), (1, 1));
}

/// Case K19: orders while the server stops, and after it has: refused, and nothing falls over.
#[tokio::test]
async fn orders_during_and_after_the_stop() {
    let srv = Srv::start().await;
    let mut a = srv.client("a").await;
    let root = a.walk("").await;
    let f = a.create(&root, "f").await;
    let write = [op::put(&f.fh), op::write(f.stateid, 0, StableHow::UNSTABLE, b"slow")];
    let (gate, sent) = held(&srv, Call::Write, &mut a, &write).await;
    let shared = Arc::clone(srv.running.shared());
    let Srv { running, fs, .. } = srv;
    let stop = tokio::spawn(running.shutdown());
    until("the stop", async || shared.admin_cancel_copy(&f.stateid) == Err(AdminError::Stopping)).await;
    let (id, stateid) = (id_of(&a), f.stateid);
    let refused = async |shared: &Arc<dhow_server::ServerShared>| {
        assert_eq!(shared.admin_revoke(&stateid).await, Err(AdminError::Stopping));
        assert_eq!(shared.admin_expire(id).await, Err(AdminError::Stopping));
        assert_eq!(shared.admin_end_grace().await, Err(AdminError::Stopping));
        assert!(matches!(shared.reload(reload(vec![export("/", &fs)])).await, Err(ReloadError::Stopping)));
        assert_eq!(shared.admin_clients(None, 10).items.len(), 1);
        assert_eq!(shared.admin_states(&StateFilter::default(), None, 10).items.len(), 1);
    };
    refused(&shared).await;
    gate.open();
    a.wait(sent).await;
    stop.await.unwrap();
    refused(&shared).await;
}

fn export(path: &str, fs: &Arc<MemFs>) -> ExportConfig {
    let backend: Arc<dyn Backend> = fs.clone();
    ExportConfig { path: path.into(), backend, options: open_to_all() }
}

fn reload(exports: Vec<ExportConfig>) -> Reload {
    Reload {
        exports,
        limits: ServerLimits::default(),
        state: dhow_state::Limits::default(),
        copy: CopyConfig::default(),
        ids: IdConfig::default(),
    }
}

/// A reload: an export comes, one goes, one gets other options; clients and what they have open on the rest stay.
#[tokio::test]
async fn exports_are_reloaded() {
    let fs = |id| MemFs::with(Options { id, ..Options::default() });
    let (stays, goes, comes) = (fs(1), fs(2), fs(3));
    let (running, addr) = start(config(vec![export("/stays", &stays), export("/goes", &goes)])).await;
    let mut a = Client::connect(addr, dhow_testkit::wire::ClientOptions::named("a")).await;
    let (here, there) = (a.walk("stays").await, a.walk("goes").await);
    let f = a.create(&here, "f").await;
    let g = a.create(&there, "g").await;
    let root = a.walk("").await;
    let change = [dhow_proto::v4::attr::CHANGE];
    let before = a.attrs(&root, &change).await.change;
    let shared = running.shared();

    // What cannot be changes nothing.
    let twice = vec![export("/stays", &stays), export("/stays", &goes)];
    assert!(matches!(shared.reload(reload(twice)).await, Err(ReloadError::Exports(_))));
    let mut delegations = vec![export("/stays", &stays)];
    delegations[0].options.delegations = Delegations::Read;
    assert!(
        matches!(shared.reload(reload(delegations)).await, Err(ReloadError::Delegations(path)) if path == "/stays")
    );
    a.write(&g, 0, b"there").await;

    let mut read_only = export("/stays", &stays);
    read_only.options.read_only = true;
    let done = shared.reload(reload(vec![read_only, export("/comes", &comes)])).await.unwrap();
    assert_eq!((done.added, done.removed, done.revoked), (vec!["/comes".to_owned()], vec!["/goes".to_owned()], 1));
    assert_ne!(a.attrs(&root, &change).await.change, before, "what the root leads to has changed");
    // Gone: its handles are STALE, and the client is told that what it held there was taken.
    assert_eq!(a.status(&[op::put(&there)]).await, Status::STALE);
    assert_eq!(a.status(&[op::put(&g.fh), op::close(g.stateid)]).await, Status::STALE);
    assert_eq!(a.status(&[op::put(&root), op::lookup("goes")]).await, Status::NOENT);
    assert!(revoked(&mut a).await);
    assert_eq!(test_stateids(&mut a, &[f.stateid, g.stateid]).await, [Status::OK, Status::ADMIN_REVOKED]);
    assert_eq!(free(&mut a, g.stateid).await, Status::OK);
    assert!(!revoked(&mut a).await);
    // There, with other rules.
    let write = [op::put(&f.fh), op::write(f.stateid, 0, StableHow::UNSTABLE, b"x")];
    assert_eq!(a.status(&write).await, Status::ROFS);
    assert_eq!(a.status(&[op::put(&f.fh), op::read(f.stateid, 0, 1)]).await, Status::OK);
    let new = a.walk("comes").await;
    a.create(&new, "h").await;
    // Back again, and writable; the open has outlived it all.
    let done = shared.reload(reload(vec![export("/stays", &stays), export("/goes", &goes)])).await.unwrap();
    assert_eq!((done.added, done.removed), (vec!["/goes".to_owned()], vec!["/comes".to_owned()]));
    assert_eq!(a.status(&write).await, Status::OK);
    assert_eq!(a.status(&[op::put(&there)]).await, Status::OK, "the same handle as before");
    a.close(&f).await;
}

/// Networks of a reload count for the next request; limits for the next one who would pass them.
#[tokio::test]
async fn networks_and_limits_are_reloaded() {
    let fs = MemFs::new();
    let (running, addr) = start(config(vec![export("/", &fs)])).await;
    let mut a = Client::connect(addr, dhow_testkit::wire::ClientOptions::named("a")).await;
    let root = a.walk("").await;
    a.create(&root, "f").await;
    let shared = running.shared();
    let mut new = reload(vec![export("/", &fs)]);
    new.exports[0].options = ExportOptions { clients: vec!["192.0.2.0/24".parse().unwrap()], ..open_to_all() };
    shared.reload(new).await.unwrap();
    assert_eq!(a.status(&[op::put(&root)]).await, Status::STALE);
    let mut new = reload(vec![export("/", &fs)]);
    new.state.opens_per_client = 1;
    new.state.lease = Duration::from_secs(7);
    let lease = shared.state.limits().lease;
    shared.reload(new).await.unwrap();
    assert_eq!(shared.state.limits().lease, lease, "as clients were told");
    let second = op::open_name(a.owner("p"), share::ACCESS_READ, 0, "f");
    assert_eq!(a.status(&[op::put(&root), second.clone()]).await, Status::SERVERFAULT);
    shared.reload(reload(vec![export("/", &fs)])).await.unwrap();
    assert_eq!(a.status(&[op::put(&root), second]).await, Status::OK);
}

/// Delegations that the new options would not give are recalled; the opens beside them stay.
#[tokio::test]
async fn delegations_are_recalled_by_a_reload() {
    let fs = MemFs::new();
    let with = |which| {
        let mut export = export("/", &fs);
        export.options.delegations = which;
        export
    };
    let (running, addr) = start(config(vec![with(Delegations::All)])).await;
    let mut a = Client::connect(addr, dhow_testkit::wire::ClientOptions::named("a")).await;
    let root = a.walk("").await;
    let how = share::ACCESS_READ | share::WANT_READ_DELEG;
    let open = op::open_create(a.owner("o"), how, 0, "f", 0o666);
    let results = a.ok(&[op::put(&root), open]).await;
    let Some(ResOp::Open(Ok(ok))) = results.last() else { panic!("{results:?}") };
    let Delegation::Read(given) = &ok.delegation else { panic!("{ok:?}") };
    running.shared().reload(reload(vec![with(Delegations::All)])).await.unwrap();
    assert_eq!(a.status(&[op::put(&root)]).await, Status::OK);
    assert!(a.wire.callbacks.is_empty(), "nothing has changed");
    running.shared().reload(reload(vec![with(Delegations::Off)])).await.unwrap();
    let call = a.wire.callback().await;
    match call.compound().ops.pop() {
        Some(CbArgOp::Recall(recall)) => assert_eq!(recall.stateid, given.stateid),
        other => panic!("{other:?}"),
    }
    let again = op::open_name(a.owner("p"), how, 0, "f");
    let results = a.ok(&[op::put(&root), again]).await;
    let Some(ResOp::Open(Ok(ok))) = results.last() else { panic!("{results:?}") };
    assert!(!matches!(ok.delegation, Delegation::Read(_)), "{ok:?}");
}

/// An OPEN that began before its export went, and ends after: what it got is taken away too.
#[tokio::test]
async fn a_request_that_began_before_the_reload() {
    let srv = Srv::with(Options::default(), |_| {}).await;
    let mut a = srv.client("a").await;
    let root = a.walk("").await;
    let f = a.create(&root, "f").await;
    a.close(&f).await;
    let late = [op::put(&root), op::open_name(a.owner("o"), share::ACCESS_READ, 0, "f")];
    let (gate, sent) = held(&srv, Call::Open, &mut a, &late).await;
    let shared = Arc::clone(srv.running.shared());
    let other = MemFs::new();
    let order = tokio::spawn(async move { shared.reload(reload(vec![export("/other", &other)])).await });
    let mut b = srv.client("b").await;
    until("the reload", async || b.status(&[op::put(&root)]).await == Status::STALE).await;
    gate.open();
    let res = a.wait(sent).await;
    let Some(ResOp::Open(Ok(ok))) = res.results.last() else { panic!("{res:?}") };
    order.await.unwrap().unwrap();
    until("the end of it", async || revoked(&mut a).await).await;
    assert_eq!(free(&mut a, ok.stateid).await, Status::OK);
    assert_eq!(srv.running.shared().state.counts().opens, 0);
}
