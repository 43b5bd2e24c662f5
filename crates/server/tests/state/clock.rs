//! The clock on the wall is set forward and back by years under a server, and between its lives: leases, grace, courtesy,
//! recalls and the durable records go by steady time alone (RFC 8881 8.3, 8.4.2, 10.4.5; case B32).

use crate::common::*;
use crate::faults::near;
use dhow_proto::v4::ops::{Delegation, OpenClaim, OpenHow, ReclaimCompleteArgs, share};
use dhow_proto::v4::{ArgOp, Status, attr};
use dhow_server::{Delegations, ExportConfig, ExportOptions, Identity, Running, Server, ServerConfig, Squash};
use dhow_testkit::memfs::{Clock, Options};
use dhow_testkit::wire::{Callbacks, Client, ClientOptions, Open, Wire, op};
use dhow_testkit::{LinkOptions, MemFs, link};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::time::{Duration, SystemTime};

const YEAR: i64 = 365 * 24 * 3600;
const DONE: ArgOp = ArgOp::ReclaimComplete(ReclaimCompleteArgs { one_fs: false });

/// A clock that is set at will: seconds since 1970.
#[derive(Clone)]
struct Wall(Arc<AtomicI64>);

impl Wall {
    fn new() -> Self {
        Self(Arc::new(AtomicI64::new(1_800_000_000)))
    }

    fn step(&self, secs: i64) {
        self.0.fetch_add(secs, SeqCst);
    }

    fn now(&self) -> SystemTime {
        let secs = self.0.load(SeqCst);
        let by = Duration::from_secs(secs.unsigned_abs());
        if secs < 0 { SystemTime::UNIX_EPOCH - by } else { SystemTime::UNIX_EPOCH + by }
    }
}

/// As [`Place`], with such a clock for the server and for its filesystem.
struct Clocked {
    place: Place,
    wall: Wall,
}

impl Clocked {
    fn new() -> Self {
        let wall = Wall::new();
        let files = wall.clone();
        let now = move || dhow_vfs::Time { secs: files.0.load(SeqCst), nanos: 0 };
        let clock = Clock::Of(Arc::new(now));
        Self { place: Place { fs: MemFs::with(Options { clock, ..Options::default() }), ..Place::new() }, wall }
    }

    async fn start(&self) -> Running {
        let options = ExportOptions { squash: Squash::None, delegations: Delegations::All, ..ExportOptions::default() };
        let export = ExportConfig { path: "/".into(), backend: self.place.fs.clone(), options };
        let mut config = ServerConfig::in_memory(vec![export]).unwrap();
        let fresh = Identity::ephemeral().unwrap();
        config.identity = Identity { instance: fresh.instance, secret: fresh.secret, ..self.place.identity.clone() };
        config.store = self.place.store.clone();
        let wall = self.wall.clone();
        config.wall = Arc::new(move || wall.now());
        Server::start(config).await.unwrap()
    }
}

async fn seconds(n: u64) {
    tokio::time::sleep(Duration::from_secs(n)).await;
}

async fn returning_near(server: &Running, name: &str) -> Client {
    let (ours, theirs, _) = link(LinkOptions::default());
    server.serve_stream(theirs, None);
    let mut wire = Wire::new(ours);
    wire.patience = Duration::from_secs(24 * 3600);
    Client::over(wire, ClientOptions { reclaim_complete: false, ..ClientOptions::named(name) }).await
}

/// Tries an OPEN for both that a deny mode or a delegation may stand against.
async fn tries(c: &mut Client, f: &Open) -> Status {
    let owner = c.owner("o");
    let access = RW | share::WANT_NO_DELEG;
    match open(c, &f.fh, open_fh(owner, access, 0)).await {
        Ok(stateid) => {
            c.close(&Open { fh: f.fh.clone(), stateid }).await;
            Status::OK
        }
        Err(status) => status,
    }
}

const STEPS: [i64; 6] = [10 * YEAR, -10 * YEAR, 3600, -3600, -70 * YEAR, 200 * YEAR];

/// A client that is heard of keeps everything, and one that is silent loses it after a lease time to who wants it: neither
/// sooner nor later, whatever the clock does.
#[tokio::test(start_paused = true)]
async fn leases_and_recalls_do_not_look_at_the_clock_on_the_wall() {
    for step in STEPS {
        let here = Clocked::new();
        let server = here.start().await;
        let (mut a, mut b) = (near(&server, "a").await, near(&server, "b").await);
        a.wire.on_callback = Callbacks::Keep;
        let root = a.walk("/").await;
        let owner = a.owner("o");
        let denied = op::open_create(owner, RW | share::WANT_NO_DELEG, share::DENY_BOTH, "f", 0o644);
        let f = a.open(&root, denied).await;
        let owner = a.owner("o");
        let g = a.open(&root, op::open_create(owner, RW | share::WANT_NO_DELEG, 0, "g", 0o644)).await;
        a.close(&g).await;
        let owner = a.owner("o");
        let open = op::open(owner, RW | share::WANT_WRITE_DELEG, 0, OpenHow::NoCreate, OpenClaim::Fh);
        let given = a.run(&[op::put(&g.fh), open]).await;
        let Some(dhow_proto::v4::ResOp::Open(Ok(given))) = given.results.last() else { panic!("{given:?}") };
        assert!(matches!(given.delegation, Delegation::Write(_)), "{given:?}");
        // Heard of every 30 seconds, for five leases, and the clock jumps each time.
        for _ in 0..15 {
            here.wall.step(step);
            seconds(30).await;
            a.ok(&[]).await;
            assert_eq!(tries(&mut b, &f).await, Status::SHARE_DENIED, "a step of {step} s");
        }
        // A recall that is not heeded: nothing before a lease time, the end after it.
        assert_eq!(tries(&mut b, &g).await, Status::DELAY);
        for _ in 0..8 {
            here.wall.step(step);
            seconds(10).await;
            a.ok(&[]).await;
            assert_eq!(tries(&mut b, &g).await, Status::DELAY, "revoked too early, with steps of {step} s");
        }
        seconds(15).await;
        a.ok(&[]).await;
        assert_eq!(tries(&mut b, &g).await, Status::OK, "not revoked, with steps of {step} s");
        // Silence: all stays for a lease time, and is anybody's after it.
        here.wall.step(step);
        for _ in 0..8 {
            seconds(10).await;
            here.wall.step(step);
            assert_eq!(tries(&mut b, &f).await, Status::SHARE_DENIED, "expired too early, with steps of {step} s");
        }
        here.wall.step(-step);
        seconds(15).await;
        assert_eq!(tries(&mut b, &f).await, Status::OK, "not expired, with steps of {step} s");
        // The filesystem's times do show the clock.
        let now = here.place.fs.content_of("f").map(|_| b.attrs(&f.fh, &[attr::TIME_MODIFY]));
        assert!(now.unwrap().await.time_modify.is_some());
    }
}

/// The clock is set while the server is down and in its grace: the records stand, what they allow is reclaimed, grace is
/// kept for its whole time and then ends.
#[tokio::test(start_paused = true)]
async fn grace_and_records_do_not_look_at_the_clock_on_the_wall() {
    for step in STEPS {
        let here = Clocked::new();
        let server = here.start().await;
        let mut a = near(&server, "a").await;
        let root = a.walk("/").await;
        let owner = a.owner("owner");
        let f = op::open_create(owner, RW | share::WANT_NO_DELEG, share::DENY_WRITE, "f", 0o644);
        let f = a.open(&root, f).await;
        assert_eq!(lock(&mut a, &f, false).await, Status::OK);
        let records = here.place.store.clients().unwrap();
        server.shutdown().await;

        here.wall.step(step);
        let server = here.start().await;
        assert_eq!(here.place.store.clients().unwrap(), records);
        let mut b = near(&server, "b").await;
        assert_eq!(tries(&mut b, &f).await, Status::GRACE);
        here.wall.step(step);
        seconds(60).await;
        assert_eq!(tries(&mut b, &f).await, Status::GRACE, "grace ended early, with steps of {step} s");
        let mut a = returning_near(&server, "a").await;
        let owner = a.owner("owner");
        let stateid = open(&mut a, &f.fh, reclaim(owner, RW, share::DENY_WRITE)).await.unwrap();
        let again = Open { fh: f.fh.clone(), stateid };
        assert_eq!(lock(&mut a, &again, true).await, Status::OK);
        a.ok(&[DONE]).await;
        assert_eq!(tries(&mut b, &f).await, Status::SHARE_DENIED, "everybody is back: grace is over");
        server.shutdown().await;

        // Nobody comes back: grace lasts its time, and ends.
        here.wall.step(-2 * step);
        let server = here.start().await;
        let mut c = near(&server, "c").await;
        for _ in 0..8 {
            seconds(10).await;
            here.wall.step(step);
            assert_eq!(tries(&mut c, &f).await, Status::GRACE, "grace ended early, with steps of {step} s");
        }
        here.wall.step(-step);
        seconds(15).await;
        assert_eq!(tries(&mut c, &f).await, Status::OK, "grace does not end, with steps of {step} s");
        // RFC 8881 8.4.3: who did not come back may not reclaim after the next restart either.
        assert_eq!(here.place.recorded(), ["c"]);
    }
}
