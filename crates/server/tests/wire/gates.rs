//! What is stuck on a file holds up its own callers only, and the end of a client keeps to the file's order
//! (ARCHITECTURE.md, rules 3 and 4; case B22). In virtual time: a wait of a minute costs nothing.

use crate::common::open_to_all;
use dhow_proto::v4::ops::{CreateHow, OpenClaim, OpenHow, share};
use dhow_proto::v4::{ArgOp, Attrs, Fattr, FileHandle, LockType, Stateid, Status, Verifier};
use dhow_server::{ExportConfig, Running, Server, ServerConfig};
use dhow_testkit::fault::Call;
use dhow_testkit::wire::{Client, ClientOptions, Open, Wire, op};
use dhow_testkit::{Fault, LinkOptions, MemFs, link};
use std::sync::Arc;
use std::time::Duration;

pub struct Virtual {
    running: Running,
    pub fs: Arc<MemFs>,
    pub fault: Arc<Fault>,
}

impl Virtual {
    pub async fn start() -> Self {
        Self::with(|_| {}).await
    }

    /// With a configuration to be changed.
    pub async fn with(change: impl FnOnce(&mut ServerConfig)) -> Self {
        let fs = MemFs::new();
        let fault = Fault::new(fs.clone());
        let export = ExportConfig { path: "/".into(), backend: fault.clone(), options: open_to_all() };
        let mut config = ServerConfig::in_memory(vec![export]).unwrap();
        change(&mut config);
        let running = Server::start(config).await.unwrap();
        Self { running, fs, fault }
    }

    pub async fn client(&self, name: &str) -> Client {
        self.incarnation(name, 1).await
    }

    async fn incarnation(&self, name: &str, n: u64) -> Client {
        let (ours, theirs, _) = link(LinkOptions::default());
        self.running.serve_stream(theirs, None);
        let mut wire = Wire::new(ours);
        wire.patience = Duration::from_secs(3600);
        let options = ClientOptions { verifier: Verifier(n.to_be_bytes()), ..ClientOptions::named(name) };
        Client::over(wire, options).await
    }
}

fn open_fh(c: &Client, owner: &str, access: u32, deny: u32) -> ArgOp {
    op::open(c.owner(owner), access | share::WANT_NO_DELEG, deny, OpenHow::NoCreate, OpenClaim::Fh)
}

fn create(c: &Client, name: &str, deny: u32) -> ArgOp {
    let attrs = Fattr::from(Attrs { mode: Some(0o644), ..Attrs::default() });
    let how = OpenHow::Create(CreateHow::Unchecked(attrs));
    op::open(
        c.owner("owner"),
        share::ACCESS_BOTH | share::WANT_NO_DELEG,
        deny,
        how,
        OpenClaim::Null(name.to_owned().into()),
    )
}

async fn file(c: &mut Client, name: &str, deny: u32) -> Open {
    let root = c.walk("").await;
    let open = create(c, name, deny);
    c.open(&root, open).await
}

fn lock(c: &Client, open: &Open, stateid: Stateid) -> [ArgOp; 2] {
    [op::put(&open.fh), op::lock_new(stateid, c.owner("l"), LockType::WRITE, 0, 10)]
}

async fn opened(c: &mut Client, fh: &FileHandle, owner: &str) -> Stateid {
    let open = open_fh(c, owner, share::ACCESS_BOTH, 0);
    let open = c.open(fh, open).await;
    open.stateid
}

/// A CLOSE waits for a WRITE that is stuck (RFC 8881 8.2.4 leaves no I/O under a stateid that is gone); others open, lock
/// and close the same file meanwhile.
#[tokio::test(start_paused = true)]
async fn a_close_that_waits_for_a_stuck_write_holds_nobody_else_up() {
    let v = Virtual::start().await;
    let (mut a, mut b) = (v.client("a").await, v.client("b").await);
    let f = file(&mut a, "f", 0).await;
    let stuck = v.fault.hold(Call::Write);
    let write =
        a.send(1, &[op::put(&f.fh), op::write(f.stateid, 0, dhow_proto::v4::StableHow::UNSTABLE, b"slow")]).await;
    stuck.arrived(1).await;
    let close = a.send(2, &[op::put(&f.fh), op::close(f.stateid)]).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    let began = tokio::time::Instant::now();
    let stateid = opened(&mut b, &f.fh, "o").await;
    assert_eq!(b.status(&lock(&b, &f, stateid)).await, Status::OK);
    b.close(&Open { fh: f.fh.clone(), stateid }).await;
    assert!(began.elapsed() < Duration::from_secs(1), "others waited for {:?}", began.elapsed());
    // The open that is being closed takes nothing new: DELAY, at once.
    let lock_late = lock(&a, &f, f.stateid);
    let late = a.send(3, &lock_late).await;
    assert_eq!(a.wait(late).await.status, Status::DELAY);
    stuck.open();
    assert_eq!(a.wait(write).await.status, Status::OK);
    assert_eq!(a.wait(close).await.status, Status::OK);
    assert_eq!(v.fs.open_count(), 0);
}

/// The same with a WRITE that never ends: the CLOSE is told DELAY in the end, and the file is open as before.
#[tokio::test(start_paused = true)]
async fn a_close_gives_up_and_the_file_stays_open() {
    let v = Virtual::start().await;
    let mut a = v.client("a").await;
    let f = file(&mut a, "f", 0).await;
    let stuck = v.fault.hold(Call::Write);
    a.send(1, &[op::put(&f.fh), op::write(f.stateid, 0, dhow_proto::v4::StableHow::UNSTABLE, b"slow")]).await;
    stuck.arrived(1).await;
    assert_eq!(a.status(&[op::put(&f.fh), op::close(f.stateid)]).await, Status::DELAY);
    let more = lock(&a, &f, f.stateid);
    assert_eq!(a.status(&more).await, Status::OK, "the open is what it was");
}

/// A client is replaced by its next incarnation while a call of somebody else is stuck on one of its files: its other
/// files are free at once, this one when the call is done, and the new incarnation is not kept waiting for ever.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_client_keeps_to_the_order_of_each_file() {
    let v = Virtual::start().await;
    let (mut a, mut b) = (v.client("a").await, v.client("b").await);
    let (f, g) = (file(&mut a, "f", 0).await, file(&mut a, "g", share::DENY_BOTH).await);
    assert_eq!(a.status(&lock(&a, &f, f.stateid)).await, Status::OK);
    let stuck = v.fault.hold(Call::Open);
    let open = open_fh(&b, "o", share::ACCESS_BOTH, 0);
    let waiting = b.send(1, &[op::put(&f.fh), open]).await;
    stuck.arrived(1).await;
    let began = tokio::time::Instant::now();
    // RFC 8881 18.35.4, case 5: the state of before goes with the new incarnation's CREATE_SESSION.
    let mut again = v.incarnation("a", 2).await;
    assert!(began.elapsed() <= Duration::from_secs(20), "bounded");
    v.fault.clear(Call::Open);
    let stateid = opened(&mut again, &g.fh, "new").await;
    again.close(&Open { fh: g.fh.clone(), stateid }).await;
    assert_eq!(v.fs.open_count(), 1, "f is still the old incarnation's: its gate is held");
    stuck.open();
    assert_eq!(b.wait(waiting).await.status, Status::OK);
    // The next tick ends the rest.
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(v.fs.open_count(), 1, "b's alone");
    let stateid = opened(&mut again, &f.fh, "new").await;
    assert_eq!(again.status(&lock(&again, &f, stateid)).await, Status::OK, "the lock of before is gone");
}

/// State and the backend's side go together: who comes next to the file finds both free, not one of the two.
#[tokio::test(start_paused = true)]
async fn nobody_passes_between_the_state_and_the_backend() {
    let v = Virtual::start().await;
    let (mut a, mut b) = (v.client("a").await, v.client("b").await);
    let f = file(&mut a, "f", share::DENY_BOTH).await;
    let closing = v.fault.hold(Call::Close);
    let again = tokio::spawn({
        let (ours, theirs, _) = link(LinkOptions::default());
        v.running.serve_stream(theirs, None);
        let mut wire = Wire::new(ours);
        wire.patience = Duration::from_secs(3600);
        let options = ClientOptions { verifier: Verifier([2; 8]), ..ClientOptions::named("a") };
        async move { Client::over(wire, options).await }
    });
    closing.arrived(1).await;
    let open = open_fh(&b, "o", share::ACCESS_BOTH, 0);
    let early = b.status(&[op::put(&f.fh), open.clone()]).await;
    assert_eq!(early, Status::DELAY, "the backend has not closed yet");
    closing.open();
    again.await.unwrap();
    assert_eq!(b.status(&[op::put(&f.fh), open]).await, Status::OK);
    assert_eq!(v.fs.open_count(), 1);
}

/// A client whose lease has ended is cleared out of the way of who holds no gate meanwhile: OPEN, LOCK, SETATTR of the
/// size (case B32).
#[tokio::test(start_paused = true)]
async fn a_lease_that_ended_is_out_of_the_way_at_once() {
    let v = Virtual::start().await;
    for what in ["open", "lock", "size"] {
        let (mut a, mut b) = (v.client("a").await, v.client("b").await);
        let deny = if what == "lock" { 0 } else { share::DENY_BOTH };
        let f = file(&mut a, what, deny).await;
        assert_eq!(a.status(&lock(&a, &f, f.stateid)).await, Status::OK);
        for _ in 0..4 {
            tokio::time::sleep(Duration::from_secs(30)).await;
            b.ok(&[]).await;
        }
        let began = tokio::time::Instant::now();
        match what {
            "open" => assert_eq!(b.status(&[op::put(&f.fh), open_fh(&b, "o", 3, 0)]).await, Status::OK),
            "lock" => {
                let stateid = opened(&mut b, &f.fh, "o").await;
                assert_eq!(b.status(&lock(&b, &f, stateid)).await, Status::OK);
            }
            _ => {
                let size = Attrs { size: Some(0), ..Attrs::default() };
                assert_eq!(b.status(&[op::put(&f.fh), op::setattr(size)]).await, Status::OK);
            }
        }
        assert!(began.elapsed() < Duration::from_secs(1), "{what} waited for {:?}", began.elapsed());
    }
}
