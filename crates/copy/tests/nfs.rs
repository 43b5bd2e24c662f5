//! Copies to, from and inside a server over files in memory: calls, durability, what is left after a failure.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use dhow_client::NfsUrl;
use dhow_copy::{
    Choice, Endpoint, Error, ErrorKind, Event, FileReport, Known, Local, Method, NfsEndpoint, Options, Progress,
    Result, Stop, Sync, TreeOptions, copy_file, copy_tree,
};
use dhow_server::{ExportConfig, ExportOptions, Running, Server, ServerConfig, Squash};
use dhow_testkit::fault::{Action, Call, Gate};
use dhow_testkit::{Fault, MemFs, memfs};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

const MIB: usize = 1 << 20;

/// A server over files in memory, and an endpoint connected to it.
struct Bed {
    fs: Arc<MemFs>,
    fault: Arc<Fault>,
    server: Running,
    place: Arc<dyn Endpoint>,
}

async fn bed(options: memfs::Options, change: impl FnOnce(&mut ServerConfig)) -> Bed {
    let fs = MemFs::with(options);
    let fault = Fault::new(fs.clone());
    let export = ExportConfig {
        path: "/".into(),
        backend: fault.clone(),
        options: ExportOptions { squash: Squash::None, ..ExportOptions::default() },
    };
    let mut config = ServerConfig::in_memory(vec![export]).unwrap();
    config.listen = vec![([127, 0, 0, 1], 0).into()];
    change(&mut config);
    let server = Server::start(config).await.unwrap();
    let url: NfsUrl = format!("nfs://{}/", server.addresses()[0]).parse().unwrap();
    let place = Arc::new(NfsEndpoint::connect(&url).await.unwrap());
    Bed { fs, fault, server, place }
}

impl Bed {
    async fn plain() -> Self {
        bed(memfs::Options::default(), |_| {}).await
    }

    /// Puts a file there.
    async fn put(&self, path: &str, data: Vec<u8>) {
        let sink = self.place.create(Path::new(path), 0o644).await.unwrap();
        for (i, part) in data.chunks(MIB).enumerate() {
            // Zeroes stay holes.
            if part.iter().any(|b| *b != 0) {
                sink.write((i * MIB) as u64, part.to_vec().into()).await.unwrap();
            }
        }
        sink.set_size(data.len() as u64).await.unwrap();
        sink.sync().await.unwrap();
        sink.finish(&dhow_copy::SetMeta::default()).await.unwrap();
    }

    async fn copy(&self, from: &str, to: &str, options: &Options, progress: &Progress) -> Result<FileReport> {
        let ends = ((&self.place, Path::new(from)), (&self.place, Path::new(to)));
        copy_file(ends.0, ends.1, Known::default(), options, progress).await
    }

    async fn names(&self) -> Vec<String> {
        let mut pages = self.place.list(Path::new("/")).await.unwrap();
        let mut names = Vec::new();
        while let Some(page) = pages.next().await.unwrap() {
            names.extend(page.into_iter().map(|e| String::from_utf8_lossy(&e.name).into_owned()));
        }
        names.sort();
        names
    }
}

fn only(method: Method) -> Options {
    Options { method: Choice::Only(method), ..Options::default() }
}

/// 5 MiB and a bit, the third MiB and the last bit zeroes.
fn data() -> Vec<u8> {
    let mut data: Vec<u8> = (0..5 * MIB + 17).map(|i| (i * 7 % 255) as u8 + 1).collect();
    data[2 * MIB..3 * MIB].fill(0);
    data[5 * MIB..].fill(0);
    data
}

#[tokio::test]
async fn each_method_and_its_calls() {
    let bed = Bed::plain().await;
    bed.put("/a", data()).await;
    for (options, method, most, ops) in [
        (Options::default(), Method::Clone, 4, ["CLONE", "COMMIT"]),
        (only(Method::Clone), Method::Clone, 4, ["CLONE", "COMMIT"]),
        (only(Method::Copy), Method::Copy, 4, ["COPY", "RENAME"]),
        (Options { preserve: true, ..only(Method::Copy) }, Method::Copy, 4, ["COPY", "SETATTR"]),
        (only(Method::ReadWrite), Method::ReadWrite, 30, ["READ", "WRITE"]),
    ] {
        let report = bed.copy("/a", "/b", &options, &Progress::none()).await.unwrap();
        assert_eq!((report.method, report.bytes), (method, data().len() as u64));
        assert!(report.durable && report.calls.calls <= most, "{method}: {:?}", report.calls);
        assert!(ops.iter().all(|op| report.calls.ops.contains_key(op)), "{method}: {:?}", report.calls);
        assert_eq!(bed.fs.content_of("/b").unwrap(), data(), "{method}");
        // Nothing of it is lost by a crash.
        bed.fs.crash();
        assert_eq!(bed.fs.content_of("/b").unwrap(), data(), "{method}");
        let used = bed.place.stat(Path::new("/b")).await.unwrap().used;
        assert!(used < 4 * MIB as u64 + 8192, "{method}: holes were filled, {used}");
        assert_eq!(bed.fs.open_count(), 0, "{method}");
    }
    assert_eq!(bed.names().await, ["a", "b"]);
    bed.server.shutdown().await;
}

#[tokio::test]
async fn without_clone_it_is_copied_and_clone_is_not_tried_again() {
    let bed = bed(memfs::Options { clone: false, ..memfs::Options::default() }, |_| {}).await;
    bed.put("/a", data()).await;
    let first = bed.copy("/a", "/b", &Options::default(), &Progress::none()).await.unwrap();
    assert_eq!((first.method, first.refused[0].0), (Method::Copy, Method::Clone));
    assert_eq!(first.calls.calls, 5, "{:?}", first.calls);
    let second = bed.copy("/a", "/c", &Options::default(), &Progress::none()).await.unwrap();
    assert_eq!((second.method, second.calls.calls), (Method::Copy, 4), "{:?}", second.calls);
    let refused = bed.copy("/a", "/d", &only(Method::Clone), &Progress::none()).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unsupported);
    assert_eq!(bed.names().await, ["a", "b", "c"]);
}

/// RFC 8881 18.32: a COMMIT with another verifier than the WRITEs had means that they may be lost.
#[tokio::test]
async fn lost_writes_are_written_again() {
    let bed = Bed::plain().await;
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    std::fs::write(&from, data()).unwrap();
    let local: Arc<dyn Endpoint> = Arc::new(Local::new());
    let moved = Arc::new(AtomicI64::new(0));
    let sum = moved.clone();
    let progress = Progress::new(move |event| {
        if let Event::Moved(n) = event {
            sum.fetch_add(n, Ordering::Relaxed);
        }
    });
    let gate = bed.fault.hold(Call::Commit);
    let options = Options::default();
    let copy = copy_file((&local, &from), (&bed.place, Path::new("/to")), Known::default(), &options, &progress);
    let crash = async {
        gate.arrived(1).await;
        bed.fs.crash();
        gate.open();
    };
    let (report, ()) = tokio::join!(copy, crash);
    assert!(report.unwrap().durable);
    bed.fs.crash();
    assert_eq!(bed.fs.content_of("/to").unwrap(), data());
    assert_eq!(bed.fault.count(Call::Commit), 2);
    // The bar went back by what was lost.
    assert_eq!(moved.load(Ordering::Relaxed), data().len() as i64);
}

#[tokio::test]
async fn a_failure_at_any_step_leaves_nothing() {
    for (call, method) in [
        (Call::Create, Method::ReadWrite),
        (Call::Read, Method::ReadWrite),
        (Call::Write, Method::ReadWrite),
        (Call::Commit, Method::ReadWrite),
        (Call::Rename, Method::ReadWrite),
        (Call::CopyRange, Method::Copy),
        (Call::CloneRange, Method::Clone),
    ] {
        let bed = Bed::plain().await;
        bed.put("/a", data()).await;
        bed.put("/b", b"before".to_vec()).await;
        bed.fault.always(call, Action::Fail(dhow_vfs::ErrorKind::Io));
        let error = bed.copy("/a", "/b", &only(method), &Progress::none()).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Io, "{call:?}: {error}");
        assert!(error.place.ends_with("/b") || call == Call::Read, "{call:?}: {error}");
        assert_eq!(bed.names().await, ["a", "b"], "{call:?}");
        assert_eq!(bed.fs.content_of("/b").unwrap(), &b"before"[..], "{call:?}");
        assert_eq!(bed.fs.open_count(), 0, "{call:?}");
    }
}

/// Case K30: a server that says "not supported" in the middle of a copy has failed: another method would begin anew over
/// what is there.
#[tokio::test]
async fn a_refusal_in_the_middle_is_no_refusal() {
    // Copies are made in slices: none may go on after its answer.
    let slices = |config: &mut ServerConfig| {
        config.state.copies_per_client = 0;
        config.copy.sync_budget = Duration::from_millis(1);
    };
    let bed = bed(memfs::Options { clone: false, ..memfs::Options::default() }, slices).await;
    bed.put("/a", (0..20 * MIB).map(|i| (i % 253) as u8 + 1).collect()).await;
    bed.fault.always(Call::CopyRange, Action::Delay(Duration::from_millis(50)));
    let fault = bed.fault.clone();
    let progress = Progress::new(move |event| {
        if let Event::Moved(n) = event
            && n > 0
        {
            fault.always(Call::GetAttr, Action::Fail(dhow_vfs::ErrorKind::NotSupported));
        }
    });
    let before = bed.place.calls();
    let error = bed.copy("/a", "/b", &Options::default(), &progress).await.unwrap_err();
    let calls = bed.place.calls().since(&before);
    assert!(error.to_string().contains("in the middle"), "{error}");
    assert!(!calls.ops.contains_key("READ") && !calls.ops.contains_key("WRITE"), "{calls:?}");
    bed.fault.clear(Call::GetAttr);
    assert!(!bed.names().await.contains(&"b".to_owned()), "no part of a file under its name");
}

#[tokio::test]
async fn a_stopped_copy_stops_at_the_server() {
    let bed = bed(memfs::Options::default(), |config| config.copy.sync_budget = Duration::ZERO).await;
    bed.put("/a", data()).await;
    let gate = bed.fault.hold(Call::CopyRange);
    let (stop, cancel) = Stop::new();
    let options = Options { cancel, ..only(Method::Copy) };
    let none = Progress::none();
    let copy = bed.copy("/a", "/b", &options, &none);
    let stopping = async {
        gate.arrived(1).await;
        // The COPY has been answered when the client polls.
        while bed.place.calls().polls == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stop.stop();
        while !bed.place.calls().ops.contains_key("OFFLOAD_CANCEL") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        gate.open();
    };
    let (done, ()) = tokio::join!(copy, stopping);
    assert_eq!(done.unwrap_err().kind, ErrorKind::Cancelled);
    assert_eq!(bed.names().await, ["a"]);
}

#[tokio::test]
async fn small_files_take_one_call_each() {
    let bed = Bed::plain().await;
    let dir = tempfile::tempdir().unwrap();
    for i in 0..40 {
        std::fs::write(dir.path().join(format!("f{i}")), vec![i as u8; 100 * i]).unwrap();
    }
    let local: Arc<dyn Endpoint> = Arc::new(Local::new());
    let (options, none) = (TreeOptions::default(), Progress::none());
    let there = copy_tree((&local, dir.path()), (&bed.place, Path::new("/t")), &options, &none).await.unwrap();
    assert_eq!((there.files, there.failed, there.durable), (40, 0, true), "{:?}", there.errors);
    // One more for the directory.
    assert_eq!(there.calls.calls, 41, "{:?}", there.calls);
    let back = dir.path().join("back");
    let report = copy_tree((&bed.place, Path::new("/t")), (&local, &back), &options, &none).await.unwrap();
    assert_eq!((report.files, report.failed), (40, 0), "{:?}", report.errors);
    // A look at the root, and its listing.
    assert!(report.calls.calls <= 43, "{:?}", report.calls);
    for i in 0..40 {
        assert_eq!(std::fs::read(back.join(format!("f{i}"))).unwrap(), vec![i as u8; 100 * i]);
    }
    assert_eq!(bed.fs.open_count(), 0);
}

#[tokio::test]
async fn a_full_server_is_told_once() {
    let bed = bed(memfs::Options { max_bytes: 2 * MIB as u64, ..memfs::Options::default() }, |_| {}).await;
    let dir = tempfile::tempdir().unwrap();
    for i in 0..30 {
        std::fs::write(dir.path().join(format!("f{i}")), vec![1; MIB]).unwrap();
    }
    let local: Arc<dyn Endpoint> = Arc::new(Local::new());
    let told: Arc<std::sync::Mutex<Vec<Error>>> = Arc::default();
    let list = told.clone();
    let progress = Progress::new(move |event| {
        if let Event::Failed(e) = event {
            list.lock().unwrap().push(e.clone());
        }
    });
    let options = TreeOptions { files_in_flight: 4, ..TreeOptions::default() };
    let to = (&bed.place, Path::new("/t"));
    let report = copy_tree((&local, dir.path()), to, &options, &progress).await.unwrap();
    let told = told.lock().unwrap().clone();
    assert_eq!((told.len(), told[0].kind), (1, ErrorKind::NoSpace), "{told:?}");
    assert!(report.failed >= 1 && report.files <= 2);
    let mut pages = bed.place.list(Path::new("/t")).await.unwrap();
    while let Some(page) = pages.next().await.unwrap() {
        assert!(page.iter().all(|e| !e.name.starts_with(b".")), "unfinished files were left: {page:?}");
    }
}

#[tokio::test]
async fn not_durable_when_not_asked() {
    let bed = bed(memfs::Options::default(), |config| config.copy.commit = dhow_server::CommitPolicy::Never).await;
    bed.put("/a", data()).await;
    for method in [Method::ReadWrite, Method::Copy] {
        let options = Options { sync: Sync::No, ..only(method) };
        let report = bed.copy("/a", "/b", &options, &Progress::none()).await.unwrap();
        assert!(!report.durable, "{method}");
        assert!(!report.calls.ops.contains_key("COMMIT"), "{method}: {:?}", report.calls);
    }
    // Asked for, the client commits what the server leaves.
    let report = bed.copy("/a", "/b", &only(Method::Copy), &Progress::none()).await.unwrap();
    assert!(report.durable && report.calls.ops.contains_key("COMMIT"));
}

/// C1: at most 6 calls at any size, the COMMIT that a server leaves to the client and the attributes included.
#[tokio::test]
async fn at_most_six_calls_when_the_client_commits() {
    for sync_budget in [Duration::from_secs(10), Duration::ZERO] {
        let bed = bed(memfs::Options { clone: false, ..memfs::Options::default() }, |config| {
            config.copy.commit = dhow_server::CommitPolicy::Never;
            config.copy.sync_budget = sync_budget;
        });
        let bed = bed.await;
        bed.put("/a", data()).await;
        // The first time CLONE is tried as well, which this server does not offer.
        let auto = Options { preserve: true, ..Options::default() };
        let copy = |preserve| Options { preserve, ..only(Method::Copy) };
        for (options, calls) in [(auto, 6), (copy(false), 5), (copy(true), 5)] {
            let preserve = options.preserve;
            let report = bed.copy("/a", "/b", &options, &Progress::none()).await.unwrap();
            assert_eq!((report.durable, report.method), (true, Method::Copy), "{sync_budget:?}");
            assert_eq!(report.calls.calls, calls, "{sync_budget:?}: {:?}", report.calls);
            assert_eq!(report.calls.ops.contains_key("SETATTR"), preserve);
            bed.fs.crash();
            assert_eq!(bed.fs.content_of("/b").unwrap(), data());
        }
        assert_eq!(bed.fs.open_count(), 0);
    }
}

/// RFC 7862 15.2.3, RFC 8881 18.3.3: a COMMIT with another verifier than that of the COPY means that it may be lost. That
/// is seen before the file gets its name.
#[tokio::test]
async fn a_lost_copy_never_gets_the_final_name() {
    let bed = bed(memfs::Options::default(), |config| config.copy.commit = dhow_server::CommitPolicy::Never).await;
    bed.put("/a", data()).await;
    bed.put("/b", b"before".to_vec()).await;
    let renames = bed.fault.count(Call::Rename);
    let gate = bed.fault.hold(Call::Commit);
    let (options, none) = (only(Method::Copy), Progress::none());
    let copy = bed.copy("/a", "/b", &options, &none);
    let crash = async {
        gate.arrived(1).await;
        bed.fs.crash();
        assert_eq!(bed.fs.content_of("/b").unwrap(), &b"before"[..]);
        assert_eq!(bed.fault.count(Call::Rename), renames);
        gate.open();
    };
    let (report, ()) = tokio::join!(copy, crash);
    assert!(report.unwrap().durable);
    assert_eq!(bed.fault.count(Call::Rename), renames + 1);
    bed.fs.crash();
    assert_eq!(bed.fs.content_of("/b").unwrap(), data());
    assert_eq!(bed.names().await, ["a", "b"]);
}

/// The CLOSEs of both files and the RENAME travel together; a server that asks to come again with the RENAME must not be sent the CLOSE again
/// (RFC 8881 15.1.1.3), and what fails behind the CLOSE is told as what it is.
#[tokio::test]
async fn what_follows_the_close_is_sent_again_without_it() {
    let bed = Bed::plain().await;
    bed.put("/a", data()).await;
    for (call, preserve) in [(Call::Rename, false), (Call::Rename, true), (Call::SetAttr, true)] {
        bed.fault.once(call, Action::Fail(dhow_vfs::ErrorKind::Delay));
        let options = Options { preserve, ..only(Method::Copy) };
        let report = bed.copy("/a", "/b", &options, &Progress::none()).await.unwrap();
        // That of the target once; that of the source, which was behind the refusal, once more by itself.
        assert_eq!(report.calls.ops["CLOSE"], 3, "{call:?}: {:?}", report.calls);
        assert_eq!(bed.fs.content_of("/b").unwrap(), data());
        assert_eq!(bed.fs.open_count(), 0);
    }
    bed.fault.once(Call::SetAttr, Action::Fail(dhow_vfs::ErrorKind::NoSpace));
    let options = Options { preserve: true, ..only(Method::Copy) };
    let error = bed.copy("/a", "/c", &options, &Progress::none()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::NoSpace, "{error}");
    assert_eq!((bed.names().await, bed.fs.open_count()), (vec!["a".to_owned(), "b".to_owned()], 0));
}

/// C5: small files of a tree go to the server hundreds at a time, and so do symbolic links and further names of files.
#[tokio::test]
async fn hundreds_of_small_files_are_in_flight() {
    let bed = Bed::plain().await;
    let dir = tempfile::tempdir().unwrap();
    for kind in ["files", "links", "names"] {
        std::fs::create_dir(dir.path().join(kind)).unwrap();
    }
    for i in 0..600 {
        std::fs::write(dir.path().join(format!("files/{i}")), [7; 10]).unwrap();
        std::os::unix::fs::symlink("target", dir.path().join(format!("links/{i}"))).unwrap();
        std::fs::hard_link(dir.path().join("files/0"), dir.path().join(format!("names/{i}"))).unwrap();
    }
    let local: Arc<dyn Endpoint> = Arc::new(Local::new());
    let options = TreeOptions { hard_links: true, ..TreeOptions::default() };
    for (kind, call) in [("files", Call::Create), ("links", Call::Make), ("names", Call::Link)] {
        let from = dir.path().join(kind);
        let to = Path::new("/").join(kind);
        // The directory is there: it is not what is held.
        bed.place.make_dir(&to, 0o755).await.unwrap();
        let held = Gate::new();
        bed.fault.rule(call, bed.fs.handle_of(kind), Action::Hold(held.clone()), u64::MAX);
        let none = Progress::none();
        let copy = copy_tree((&local, &from), (&bed.place, &to), &options, &none);
        let watch = async {
            held.arrived(500).await;
            held.open();
        };
        let together = tokio::time::timeout(Duration::from_secs(60), async { tokio::join!(copy, watch).0 });
        let report = together.await.unwrap_or_else(|_| panic!("{kind}: {} are in flight", held.count())).unwrap();
        assert_eq!((report.failed, report.files + report.others), (0, 600), "{:?}", report.errors);
    }
    assert_eq!(bed.fs.open_count(), 0);
}

/// A tree deeper than the stack is removed, and what cannot be removed keeps only what is above it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deep_trees_are_removed() {
    const DEPTH: usize = 300;
    const STACK: usize = 512 << 10;
    let bed = Bed::plain().await;
    let mut path = std::path::PathBuf::from("/deep");
    for _ in 0..DEPTH {
        bed.place.make_dir(&path, 0o755).await.unwrap();
        path.push("d");
    }
    let never = dhow_copy::Cancel::never();
    let (runtime, place) = (tokio::runtime::Handle::current(), bed.place.clone());
    let small = std::thread::Builder::new().stack_size(STACK).spawn(move || {
        let (never, none) = (dhow_copy::Cancel::never(), |e: &Error| panic!("{e}"));
        runtime.block_on(dhow_copy::remove_tree(&*place, Path::new("/deep"), &never, &none))
    });
    let removed = tokio::task::spawn_blocking(|| small.unwrap().join().unwrap()).await.unwrap();
    assert_eq!(removed, DEPTH as u64);
    for dir in ["/t", "/t/a", "/t/a/b", "/t/c", "/t/c/e"] {
        bed.place.make_dir(Path::new(dir), 0o755).await.unwrap();
    }
    for i in 0..270 {
        let (path, set) = (format!("/t/c/{i}"), dhow_copy::SetMeta::default());
        bed.place.write_small(Path::new(&path), vec![1].into(), 0o644, &set, false).await.unwrap();
    }
    bed.put("/t/a/b/kept", vec![1]).await;
    let b = bed.fs.handle_of("t/a/b").unwrap();
    bed.fault.rule(Call::Remove, Some(b), Action::Fail(dhow_vfs::ErrorKind::Perm), 1);
    let told = std::sync::Mutex::new(Vec::new());
    let failed = |e: &Error| told.lock().unwrap().push(e.to_string());
    assert_eq!(dhow_copy::remove_tree(&*bed.place, Path::new("/t"), &never, &failed).await, 272);
    let told = told.into_inner().unwrap();
    assert!(told.len() == 1 && told[0].contains("/t/a/b/kept: permission denied"), "{told:?}");
    assert!(bed.fs.handle_of("t/a/b/kept").is_some() && bed.fs.handle_of("t/c").is_none());
}
