//! The state directory fails, and time does odd things (RFC 8881 8.3, 8.4.3; case B32).

use crate::common::*;
use bytes::Bytes;
use dhow_proto::v4::Status;
use dhow_proto::v4::ops::share;
use dhow_server::store::{MemoryStore, StableStore};
use dhow_testkit::wire::{Client, ClientOptions, Wire, op};
use dhow_testkit::{LinkOptions, link};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tracing::field::{Field, Visit};

/// A store on a disk that can be full.
#[derive(Default)]
struct Full {
    inner: MemoryStore,
    full: AtomicBool,
}

impl Full {
    fn room(&self) -> io::Result<()> {
        if self.full.load(SeqCst) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl StableStore for Full {
    fn clients(&self) -> io::Result<Vec<(Bytes, Bytes)>> {
        self.inner.clients()
    }

    fn put(&self, records: &[(Bytes, Bytes)]) -> io::Result<()> {
        self.room()?;
        self.inner.put(records)
    }

    fn forget(&self, owners: &[Bytes]) -> io::Result<()> {
        self.room()?;
        self.inner.forget(owners)
    }

    fn value(&self, name: &str, make: &mut dyn FnMut() -> io::Result<Vec<u8>>) -> io::Result<Bytes> {
        self.inner.value(name, make)
    }

    fn count_start(&self) -> io::Result<u32> {
        self.inner.count_start()
    }

    fn may_block(&self) -> bool {
        false
    }
}

/// Keeps the errors and warnings that are logged.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!("{}={value:?} ", field.name()));
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

pub async fn works(c: &mut Client, name: &str) {
    let root = c.walk("/").await;
    let f = c.create(&root, name).await;
    c.write(&f, 0, b"data").await;
    assert_eq!(lock(c, &f, false).await, Status::OK);
    c.close(&f).await;
}

/// A full state directory refuses new clients, says so in one line, and harms no old ones; when there is room again,
/// everybody is served.
#[tokio::test]
async fn a_full_state_directory_refuses_new_clients_alone() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let store = Arc::new(Full::default());
    let place = Place { store: store.clone(), ..Place::new() };
    let server = place.start().await;
    let mut old = client(&server, "old").await;
    works(&mut old, "f").await;
    let fh = old.walk("f").await;
    store.full.store(true, SeqCst);
    let mut new = client(&server, "new").await;
    for _ in 0..5 {
        let owner = new.owner("o");
        assert_eq!(open(&mut new, &fh, open_fh(owner, RW, share::DENY_NONE)).await, Err(Status::DELAY));
        works(&mut old, "g").await;
    }
    // What needs no record is served.
    assert_eq!(new.status(&[op::put(&fh), op::getattr(&[])]).await, Status::OK);
    assert_eq!(place.recorded(), ["old"]);
    let lines = log.0.lock().unwrap().clone();
    assert_eq!(lines.len(), 1, "one line: {lines:?}");
    assert!(lines[0].contains("state directory") && lines[0].contains("new clients"), "{}", lines[0]);
    store.full.store(false, SeqCst);
    works(&mut new, "h").await;
    assert_eq!(place.recorded(), ["new", "old"]);
}

/// A record that cannot be removed keeps the state it protects: nothing is granted on the strength of a removal that did
/// not happen (RFC 8881 8.4.3).
#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_removed_keeps_its_state() {
    let store = Arc::new(Full::default());
    let place = Place { store: store.clone(), ..Place::new() };
    let server = place.start_unbound().await;
    let (mut a, mut b) = (near(&server, "a").await, near(&server, "b").await);
    let root = a.walk("/").await;
    let owner = a.owner("o");
    let f = a.open(&root, op::open_create(owner, RW, share::DENY_BOTH, "f", 0o644)).await;
    works(&mut b, "g").await;
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_secs(30)).await;
        b.ok(&[]).await;
    }
    store.full.store(true, SeqCst);
    let owner = b.owner("o");
    // Not at once: a task tries to end the client.
    for _ in 0..5 {
        let got = open(&mut b, &f.fh, open_fh(owner.clone(), RW, share::DENY_NONE)).await;
        assert_eq!(got, Err(Status::DELAY));
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    assert!(place.recorded().contains(&Bytes::from_static(b"a")));
    store.full.store(false, SeqCst);
    let got = patiently(async || {
        open(&mut b, &f.fh, open_fh(owner.clone(), RW, share::DENY_NONE)).await.err().unwrap_or(Status::OK)
    });
    assert_eq!(got.await, Status::OK);
    assert_eq!(place.recorded(), ["b"]);
}

/// A client over a virtual link: for paused time.
pub async fn near(server: &dhow_server::Running, name: &str) -> Client {
    let (ours, theirs, _) = link(LinkOptions::default());
    server.serve_stream(theirs, None);
    let mut wire = Wire::new(ours);
    wire.patience = Duration::from_secs(24 * 3600);
    Client::over(wire, ClientOptions::named(name)).await
}

/// Courtesy in full (case B32): after many leases of silence everything is as it was as long as nobody wants it; after
/// the courtesy time it is gone, with its record.
#[tokio::test(start_paused = true)]
async fn courtesy_lasts_as_long_as_it_says() {
    let place = Place::new();
    let server = place.start_unbound().await;
    let mut a = near(&server, "a").await;
    let root = a.walk("/").await;
    let f = a.create(&root, "f").await;
    assert_eq!(lock(&mut a, &f, false).await, Status::OK);
    // Ten hours: four hundred leases.
    tokio::time::sleep(Duration::from_secs(10 * 3600)).await;
    a.write(&f, 0, b"still mine").await;
    // Others that want nothing of it do not end it.
    let mut b = near(&server, "b").await;
    works(&mut b, "g").await;
    let owner = b.owner("o");
    let fb = open(&mut b, &f.fh, open_fh(owner, RW, share::DENY_NONE)).await.unwrap();
    a.write(&f, 0, b"still mine").await;
    // Alive again: what it holds stands.
    let fb = dhow_testkit::wire::Open { fh: f.fh.clone(), stateid: fb };
    assert_eq!(lock(&mut b, &fb, false).await, Status::DENIED);
    // A day and a lease without a word: gone.
    for _ in 0..(25 * 60) {
        tokio::time::sleep(Duration::from_secs(60)).await;
        b.ok(&[]).await;
    }
    assert_eq!(place.recorded(), ["b"]);
    assert_eq!(a.status(&[op::root()]).await, Status::BADSESSION);
    assert_eq!(lock(&mut b, &fb, false).await, Status::OK);
}
