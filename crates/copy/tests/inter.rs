//! Copies between two servers by the servers (RFC 7862 4.6), over links that are cut: resumed, and whole. And what they
//! cost in calls.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use dhow_client::NfsUrl;
use dhow_copy::{
    Choice, Endpoint, Event, FileReport, Known, Method, NfsEndpoint, Options, Progress, Result, SetMeta, copy_file,
};
use dhow_partner::ClientConnector;
use dhow_server::{ExportConfig, ExportOptions, Running, Server, ServerConfig, Squash};
use dhow_testkit::link::{LinkControl, LinkOptions, link};
use dhow_testkit::{MemFs, memfs};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};

const MIB: usize = 1 << 20;
/// How long the destination of a link that is cut waits for one answer of the source.
const CALL_TIMEOUT: Duration = Duration::from_millis(700);

/// A server over files in memory, and an endpoint connected to it.
struct Site {
    fs: Arc<MemFs>,
    server: Running,
    place: Arc<dyn Endpoint>,
}

async fn site(id: u64, change: impl FnOnce(&mut ServerConfig)) -> Site {
    let fs = MemFs::with(memfs::Options { id, ..memfs::Options::default() });
    let options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
    let export = ExportConfig { path: "/".into(), backend: fs.clone(), options };
    let mut config = ServerConfig::in_memory(vec![export]).unwrap();
    config.listen = vec![([127, 0, 0, 1], 0).into()];
    let inter = &mut config.copy.inter;
    inter.enabled = true;
    (inter.sources, inter.destinations) = (vec!["127.0.0.1".parse().unwrap()], vec!["127.0.0.1".parse().unwrap()]);
    inter.connector = Some(Arc::new(ClientConnector::default()));
    change(&mut config);
    let server = Server::start(config).await.unwrap();
    let url: NfsUrl = format!("nfs://{}/", server.addresses()[0]).parse().unwrap();
    let place = Arc::new(NfsEndpoint::connect(&url).await.unwrap());
    Site { fs, server, place }
}

/// Connections to the address that is returned lead over one virtual link each to where `to` says.
async fn detour(to: Arc<Mutex<Option<SocketAddr>>>) -> (SocketAddr, Arc<Mutex<Vec<LinkControl>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let links: Arc<Mutex<Vec<LinkControl>>> = Arc::default();
    let all = links.clone();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let to = to.lock().unwrap().unwrap();
            let (mut here, mut there, control) = link(LinkOptions::default());
            all.lock().unwrap().push(control);
            tokio::spawn(async move {
                let Ok(mut far) = TcpStream::connect(to).await else { return };
                let _ = tokio::join!(
                    tokio::io::copy_bidirectional(&mut near, &mut here),
                    tokio::io::copy_bidirectional(&mut there, &mut far)
                );
            });
        }
    });
    (addr, links)
}

async fn put(site: &Site, path: &str, data: &[u8]) {
    let sink = site.place.create(Path::new(path), 0o644).await.unwrap();
    for (i, part) in data.chunks(MIB).enumerate() {
        sink.write((i * MIB) as u64, part.to_vec().into()).await.unwrap();
    }
    sink.sync().await.unwrap();
    sink.finish(&SetMeta::default()).await.unwrap();
}

fn data(mib: usize) -> Vec<u8> {
    (0..mib * MIB + 99).map(|i| (i * 7 % 251) as u8 + 1).collect()
}

async fn copy(a: &Site, b: &Site, method: Method, progress: &Progress) -> Result<FileReport> {
    let meta = a.place.stat(Path::new("/x")).await?;
    let known = Known { source: Some(&meta), replaced: None };
    let options = Options { method: Choice::Only(method), ..Options::default() };
    copy_file((&a.place, Path::new("/x")), (&b.place, Path::new("/y")), known, &options, progress).await
}

/// The link between the servers is cut for longer than a call may take, in the middle; after it is healed the copy goes
/// on by itself from where it was, and not one byte goes through the client.
#[tokio::test]
async fn a_cut_link_is_survived() {
    let to = Arc::new(Mutex::new(None));
    let (named, links) = detour(to.clone()).await;
    let a = site(1, |a| a.copy.inter.addresses = vec![named]).await;
    *to.lock().unwrap() = Some(a.server.addresses()[0]);
    let slow = |b: &mut ServerConfig| {
        b.copy.inter.bandwidth = 8 << 20;
        b.copy.sync_budget = Duration::from_millis(50);
        let connector = ClientConnector { call_timeout: CALL_TIMEOUT, ..ClientConnector::default() };
        b.copy.inter.connector = Some(Arc::new(connector));
    };
    let b = site(2, slow).await;
    let bytes = data(16);
    put(&a, "/x", &bytes).await;
    let moved = Arc::new(AtomicI64::new(0));
    let sum = moved.clone();
    let progress = Progress::new(move |event| {
        if let Event::Moved(n) = event {
            sum.fetch_add(n, Ordering::Relaxed);
        }
    });
    let metrics = &b.server.shared().metrics.inter;
    let disturb = async {
        let begun = Instant::now();
        while metrics.bytes.load(Ordering::Relaxed) < 4 << 20 {
            assert!(begun.elapsed() < Duration::from_secs(60), "the copy does not begin");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        links.lock().unwrap().iter().for_each(LinkControl::cut);
        tokio::time::sleep(CALL_TIMEOUT * 3).await;
        links.lock().unwrap().iter().for_each(LinkControl::heal);
    };
    let (report, ()) = tokio::join!(copy(&a, &b, Method::Inter, &progress), disturb);
    let report = report.unwrap();
    assert_eq!((report.method, report.bytes, report.durable), (Method::Inter, bytes.len() as u64, true));
    assert!(report.calls.ops["COPY"] >= 2, "it was not interrupted: {:?}", report.calls);
    assert!(!report.calls.ops.contains_key("READ") && !report.calls.ops.contains_key("WRITE"), "{:?}", report.calls);
    assert!(b.fs.content_of("/y").unwrap() == bytes);
    assert_eq!(moved.load(Ordering::Relaxed), bytes.len() as i64);
    // Not all of it was copied twice.
    assert!(metrics.bytes.load(Ordering::Relaxed) < 2 * bytes.len() as u64);
    assert_eq!(b.fs.open_count() + a.fs.open_count(), 0);
}

/// What a copy costs: at most six calls of the client whatever the size, and a later copy makes no set-up call.
#[tokio::test]
async fn calls_of_a_first_and_of_a_later_copy() {
    let (a, b) = (site(1, |_| {}).await, site(2, |_| {}).await);
    let setup = || b.server.shared().metrics.inter.source_setup_calls.load(Ordering::Relaxed);
    let mut before = 0;
    for (n, mib) in [1, 1, 9, 1].into_iter().enumerate() {
        let bytes = data(mib);
        put(&a, "/x", &bytes).await;
        let report = copy(&a, &b, Method::Inter, &Progress::none()).await.unwrap();
        assert_eq!(setup() > before, n == 0, "copy {n}: {} set-up calls", setup() - before);
        before = setup();
        // OPEN and CLOSE of both, COPY_NOTIFY, COPY; the new name rides with CLOSE.
        let calls = &report.calls;
        assert_eq!(calls.calls - calls.polls, 6, "{calls:?}");
        assert!(b.fs.content_of("/y").unwrap() == bytes);
    }
    // Through the client, as many as there are pieces and six more, COMMIT among them.
    let bytes = data(1);
    put(&a, "/x", &bytes).await;
    let pieces = Arc::new(AtomicU64::new(0));
    let count = pieces.clone();
    let progress = Progress::new(move |event| {
        if let Event::Moved(n) = event
            && n > 0
        {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    let report = copy(&a, &b, Method::ReadWrite, &progress).await.unwrap();
    assert_eq!(report.calls.calls, 2 * pieces.load(Ordering::Relaxed) + 5, "{:?}", report.calls);
    assert!(pieces.load(Ordering::Relaxed) >= 16, "small pieces, so that both links are busy");
    assert!(b.fs.content_of("/y").unwrap() == bytes);
}
