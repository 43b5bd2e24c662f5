//! A link that is cut for longer than a call may take and healed; restarts of either server; a parent that expires:
//! what is told is right, and the rest can be copied from there (RFC 7862 4.6, 4.8, 15.9; cases B35, K13).

use crate::{MIB, Pair, at, copy, partner, poll, status_of};
use dhow_proto::v4::ops::{CopyArgs, CopyRes, OpenClaim, OpenHow, ReclaimCompleteArgs, share};
use dhow_proto::v4::{ArgOp, DelegationType, NetLoc, ResOp, Stateid, Status};
use dhow_server::store::{MemoryStore, StableStore};
use dhow_server::{ExportConfig, ExportOptions, Identity, Running, Server, ServerConfig, Squash};
use dhow_testkit::link::{LinkControl, LinkOptions, link};
use dhow_testkit::memfs::{Clock, Options};
use dhow_testkit::port::Reserved;
use dhow_testkit::wire::{Client, ClientOptions, Open, Wire, op};
use dhow_testkit::{Fault, MemFs};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};

/// How long the destination waits for one answer of the source, in these tests.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);
/// Against hangs.
const LONG: Duration = Duration::from_secs(60);

/// An address at which connections lead over one virtual link each to `to`; all links are cut and healed together.
struct Detour {
    addr: SocketAddr,
    links: Arc<parking_lot::Mutex<(bool, Vec<LinkControl>)>>,
}

impl Detour {
    async fn to(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let links: Arc<parking_lot::Mutex<(bool, Vec<LinkControl>)>> = Arc::default();
        let all = links.clone();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let all = all.clone();
                tokio::spawn(async move {
                    let (mut here, mut there, control) = link(LinkOptions::default());
                    {
                        let mut all = all.lock();
                        if all.0 {
                            control.cut();
                        }
                        all.1.push(control);
                    }
                    let Ok(mut far) = TcpStream::connect(to).await else { return };
                    let _ = tokio::join!(
                        tokio::io::copy_bidirectional(&mut near, &mut here),
                        tokio::io::copy_bidirectional(&mut there, &mut far)
                    );
                });
            }
        });
        Self { addr, links }
    }

    fn cut(&self) {
        let mut links = self.links.lock();
        links.0 = true;
        links.1.iter().for_each(LinkControl::cut);
    }

    fn heal(&self) {
        let mut links = self.links.lock();
        links.0 = false;
        links.1.iter().for_each(LinkControl::heal);
    }
}

/// Waits until the copy has so many bytes.
async fn until(c: &mut Client, id: Stateid, bytes: u64) {
    let begun = Instant::now();
    while status_of(c, id).await.unwrap().count < bytes {
        assert!(begun.elapsed() < LONG, "the copy does not get on");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// COPY of what lies behind `from`, to its end; bytes and status.
async fn rest(
    c: &mut Client,
    (src, loan): (&Open, Stateid),
    dst: &Open,
    from: u64,
    there: Vec<NetLoc>,
) -> (u64, Status) {
    let args = CopyArgs {
        src_stateid: loan,
        dst_stateid: dst.stateid,
        src_offset: from,
        dst_offset: from,
        count: 0,
        consecutive: true,
        synchronous: false,
        source_server: there,
    };
    let ops = [op::put(&src.fh), ArgOp::SaveFh, op::put(&dst.fh), ArgOp::Copy(args)];
    match c.run(&ops).await.results.pop() {
        Some(ResOp::Copy(CopyRes::Ok(ok))) => match ok.response.callback_id.first() {
            Some(id) => poll(c, *id).await,
            None => (ok.response.count, Status::OK),
        },
        Some(ResOp::Copy(CopyRes::Err(status))) => (0, status),
        other => panic!("{other:?}"),
    }
}

/// Slow enough to be disturbed in the middle.
fn slow(b: &mut ServerConfig) {
    b.copy.sync_budget = Duration::from_millis(20);
    b.copy.inter.bandwidth = 8 * MIB;
    let connector = dhow_partner::ClientConnector { call_timeout: CALL_TIMEOUT, ..Default::default() };
    b.copy.inter.connector = Some(Arc::new(connector));
}

/// Cut for longer than a call may take: the copy ends with what is there, nothing hangs, and once the link is healed the
/// rest comes over a connection that is made anew.
#[tokio::test]
async fn a_link_is_cut_for_long() {
    let mut p = Pair::with(|_| {}, slow).await;
    let detour = Detour::to(p.a.addr).await;
    let (src, dst) = p.files(16).await;
    let loan = p.notify(&src).await.unwrap().stateid;
    let ok = copy(&mut p.cb, (&src.fh, loan), &dst, false, at(detour.addr)).await.unwrap();
    let id = *ok.response.callback_id.first().expect("asynchronous");
    until(&mut p.cb, id, 2 * MIB).await;
    detour.cut();
    let (count, status) = tokio::time::timeout(LONG, poll(&mut p.cb, id)).await.expect("it does not hang");
    assert_eq!(status, Status::IO);
    assert!((2 * MIB..16 * MIB).contains(&count), "{count}");
    p.quiet().await;
    assert_eq!(p.b.running.shared().source_counts().ready, 0, "a connection that is worth nothing is not kept");
    // Still cut: told in bounded time, without a byte.
    let (none, status) =
        tokio::time::timeout(LONG, rest(&mut p.cb, (&src, loan), &dst, count, at(detour.addr))).await.unwrap();
    assert_eq!((none, status), (0, Status::OFFLOAD_DENIED));
    detour.heal();
    let (more, status) = rest(&mut p.cb, (&src, loan), &dst, count, at(detour.addr)).await;
    assert_eq!((count + more, status), (16 * MIB, Status::OK));
    assert!(p.equal());
    p.quiet().await;
}

/// Cut for less than that: the copy goes on by itself, in the same session.
#[tokio::test]
async fn a_link_is_cut_for_a_moment() {
    let long = |b: &mut ServerConfig| {
        slow(b);
        let connector = dhow_partner::ClientConnector { call_timeout: LONG, ..Default::default() };
        b.copy.inter.connector = Some(Arc::new(connector));
    };
    let mut p = Pair::with(|_| {}, long).await;
    let detour = Detour::to(p.a.addr).await;
    let (src, dst) = p.files(8).await;
    let loan = p.notify(&src).await.unwrap().stateid;
    let ok = copy(&mut p.cb, (&src.fh, loan), &dst, false, at(detour.addr)).await.unwrap();
    let id = *ok.response.callback_id.first().expect("asynchronous");
    until(&mut p.cb, id, MIB).await;
    detour.cut();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(status_of(&mut p.cb, id).await.unwrap().complete.is_empty());
    detour.heal();
    assert_eq!(poll(&mut p.cb, id).await, (8 * MIB, Status::OK));
    assert!(p.equal());
    assert_eq!(p.connects(), 1);
}

/// What outlives a server.
struct Home {
    fs: Arc<MemFs>,
    fault: Arc<Fault>,
    store: Arc<dyn StableStore>,
    identity: Identity,
    /// Where it is found.
    addr: SocketAddr,
    _port: Reserved,
}

impl Home {
    fn new(id: u64) -> Self {
        let fs = MemFs::with(Options { clock: Clock::System, id, ..Options::default() });
        let fault = Fault::new(fs.clone());
        let store = Arc::new(MemoryStore::default());
        let port = Reserved::new();
        Self { fs, fault, store, identity: Identity::ephemeral().unwrap(), addr: port.addr(), _port: port }
    }

    /// The next instance, where the one before was.
    async fn start(&mut self, change: impl FnOnce(&mut ServerConfig)) -> Running {
        let options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
        let export = ExportConfig { path: "/".into(), backend: self.fault.clone(), options };
        let mut config = ServerConfig::in_memory(vec![export]).unwrap();
        let fresh = Identity::ephemeral().unwrap();
        config.listen = vec![self.addr];
        config.identity = Identity { instance: fresh.instance, secret: fresh.secret, ..self.identity.clone() };
        config.store = self.store.clone();
        partner(&mut config);
        change(&mut config);
        Server::start(config).await.unwrap()
    }
}

/// The client comes back to a server that restarted: its file is open again, grace is over.
async fn return_to(addr: SocketAddr, file: &Open, access: u32) -> (Client, Open) {
    let options = ClientOptions { reclaim_complete: false, ..ClientOptions::named("c") };
    let mut c = Client::over(Wire::connect(addr).await.unwrap(), options).await;
    let claim = OpenClaim::Previous(DelegationType::NONE);
    let owner = c.owner("owner");
    let opened = c.ok(&[op::put(&file.fh), op::open(owner, access, share::DENY_NONE, OpenHow::NoCreate, claim)]).await;
    let Some(ResOp::Open(Ok(ok))) = opened.last() else { panic!("{opened:?}") };
    let file = Open { fh: file.fh.clone(), stateid: ok.stateid };
    c.ok(&[ArgOp::ReclaimComplete(ReclaimCompleteArgs { one_fs: false })]).await;
    (c, file)
}

/// Two servers that can restart, a client of each, and a file of so many MiB.
async fn homes(mib: u64) -> (Home, Home, Running, Running, Client, Client, Open, Open) {
    let (mut home_a, mut home_b) = (Home::new(1), Home::new(2));
    let (a, b) = (home_a.start(|_| {}).await, home_b.start(slow).await);
    let mut ca = Client::connect(home_a.addr, ClientOptions::named("c")).await;
    let mut cb = Client::connect(home_b.addr, ClientOptions::named("c")).await;
    let (ra, rb) = (ca.walk("").await, cb.walk("").await);
    let (src, dst) = (ca.create(&ra, "src").await, cb.create(&rb, "dst").await);
    for i in 0..mib {
        ca.write(&src, i * MIB, &vec![i as u8 + 1; MIB as usize]).await;
    }
    (home_a, home_b, a, b, ca, cb, src, dst)
}

fn same(a: &Home, b: &Home) -> bool {
    a.fs.content_of("src").unwrap() == b.fs.content_of("dst").unwrap()
}

/// The destination restarts: its copies are unknown, which says nothing of their data, and the verifier is another; the
/// loan of the source still stands, and a copy under it makes the file whole.
#[tokio::test]
async fn the_destination_restarts() {
    let (home_a, mut home_b, a, b, mut ca, mut cb, src, dst) = homes(16).await;
    let loan = crate::notify(&mut ca, &src.fh, src.stateid, at(home_b.addr)[0].clone()).await.unwrap().stateid;
    let begun = copy(&mut cb, (&src.fh, loan), &dst, false, at(home_a.addr)).await.unwrap();
    let id = *begun.response.callback_id.first().expect("asynchronous");
    until(&mut cb, id, 2 * MIB).await;
    tokio::time::timeout(LONG, b.shutdown()).await.expect("a running copy does not hold the end up");
    // What was not stable is gone, as after a crash.
    home_b.fs.crash();
    let b = home_b.start(slow).await;
    let (mut cb, dst) = return_to(home_b.addr, &dst, share::ACCESS_BOTH).await;
    assert_eq!(status_of(&mut cb, id).await.unwrap_err(), Status::BAD_STATEID);
    // Nothing of the first copy is on stable storage for sure, so all of it is copied.
    let (count, status) = rest(&mut cb, (&src, loan), &dst, 0, at(home_a.addr)).await;
    assert_eq!((count, status), (16 * MIB, Status::OK));
    assert!(same(&home_a, &home_b));
    let again = copy(&mut cb, (&src.fh, loan), &dst, true, at(home_a.addr)).await.unwrap();
    assert_ne!(again.response.verifier, begun.response.verifier, "RFC 8881 18.32.3");
    // Everything is let go: at the source the loan goes with its parent.
    ca.close(&src).await;
    cb.close(&dst).await;
    assert_eq!(a.shared().state.counts().copy_notifies, 0);
    assert_eq!(b.shared().state.counts().copies, 0);
    a.shutdown().await;
    b.shutdown().await;
}

/// The source restarts: its loans are unknown, the copy ends with what is there; with a new loan the rest is copied.
#[tokio::test]
async fn the_source_restarts() {
    let (mut home_a, home_b, a, b, ca, mut cb, src, dst) = homes(16).await;
    let mut ca = ca;
    let loan = crate::notify(&mut ca, &src.fh, src.stateid, at(home_b.addr)[0].clone()).await.unwrap().stateid;
    let begun = copy(&mut cb, (&src.fh, loan), &dst, false, at(home_a.addr)).await.unwrap();
    let id = *begun.response.callback_id.first().expect("asynchronous");
    until(&mut cb, id, 2 * MIB).await;
    drop(ca);
    a.shutdown().await;
    home_a.fs.restart();
    let a = home_a.start(|_| {}).await;
    let (count, status) = tokio::time::timeout(LONG, poll(&mut cb, id)).await.expect("it does not hang");
    assert!((2 * MIB..16 * MIB).contains(&count), "{count}");
    assert!(matches!(status, Status::PARTNER_NO_AUTH | Status::IO), "{status:?}");
    let (all, part) = (home_a.fs.content_of("src").unwrap(), home_b.fs.content_of("dst").unwrap());
    assert!(all[..count as usize] == part[..count as usize], "what is told is right");
    let (mut ca, src) = return_to(home_a.addr, &src, share::ACCESS_BOTH).await;
    // The old one opens nothing any more.
    let (none, status) = rest(&mut cb, (&src, loan), &dst, count, at(home_a.addr)).await;
    assert_eq!((none, status), (0, Status::PARTNER_NO_AUTH));
    let loan = crate::notify(&mut ca, &src.fh, src.stateid, at(home_b.addr)[0].clone()).await.unwrap().stateid;
    let (more, status) = rest(&mut cb, (&src, loan), &dst, count, at(home_a.addr)).await;
    assert_eq!((count + more, status), (16 * MIB, Status::OK));
    assert!(same(&home_a, &home_b));
    assert_eq!(b.shared().state.counts().copies, 0);
    a.shutdown().await;
    b.shutdown().await;
}

/// The client that lent the file falls silent, and somebody else wants it: its lease is over, and the loan with it
/// (case K13).
#[tokio::test]
async fn the_parent_expires() {
    let mut p = Pair::with(|a| a.state.lease = Duration::from_millis(500), slow).await;
    let root = p.ca.walk("").await;
    let (src, dst) = p.files(16).await;
    let owner = p.ca.owner("jealous");
    let mut other = p.a.client("other").await;
    let id = p.begin(&src, &dst).await;
    until(&mut p.cb, id, MIB).await;
    // `ca` says nothing any more. Until then its open, and the loan, stand in the way of nobody who would not conflict.
    let theirs = op::open_name(owner, share::ACCESS_WRITE, share::DENY_READ, "src");
    let begun = Instant::now();
    while other.status(&[op::put(&root), theirs.clone()]).await != Status::OK {
        assert!(begun.elapsed() < LONG);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (count, status) = poll(&mut p.cb, id).await;
    assert!(count < 16 * MIB, "{count}");
    assert_eq!(status, Status::PARTNER_NO_AUTH);
    assert_eq!(p.a.running.shared().state.counts().copy_notifies, 0);
    p.quiet().await;
}
