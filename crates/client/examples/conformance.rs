//! A round of every call of the client library against a server, with verification: one line for each check.
//!
//! ```text
//! conformance [--minor 1] nfs://HOST[:PORT]/DIRECTORY [ONLY]
//! ```
//!
//! Works in a directory of its own below DIRECTORY and removes it at the end. What a server does not offer is printed
//! as `n/a` and fails nothing; nor does what the minor version asked for does not have. With ONLY, checks whose name lacks
//! it are left out. Exit code 1 when a check failed.

// Ranges of patterns made a line above.
#![allow(clippy::indexing_slicing)]

use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dhow_client::v4::ops::{DataContent, SetxattrOption, access, share};
use dhow_client::v4::{Attrs, FileType, LockType, NfsTime, SetTime, StableHow, Status, TO_EOF};
use dhow_client::{
    Client, ClientConfig, CopyBegun, CopyOptions, Create, Error, Fs, NfsUrl, OpenOptions, Pipeline, PutOptions, STAT,
    probe,
};

type Outcome = Result<String, Box<dyn std::error::Error>>;

struct Round {
    only: Option<String>,
    failed: u32,
    passed: u32,
}

impl Round {
    async fn check(&mut self, name: &str, work: impl Future<Output = Outcome>) {
        if self.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            return;
        }
        let start = Instant::now();
        // Nothing here takes long; a check that hangs must not hang the round.
        let outcome = tokio::time::timeout(Duration::from_secs(150), work).await;
        let ms = start.elapsed().as_millis();
        match outcome {
            Ok(Ok(note)) => {
                self.passed += 1;
                println!("ok   {name:<22} {ms:>6} ms  {note}");
            }
            Ok(Err(e)) => {
                let unsupported = e.downcast_ref::<Error>().is_some_and(not_offered);
                if unsupported {
                    println!("n/a  {name:<22} {ms:>6} ms  {e}");
                } else {
                    self.failed += 1;
                    println!("FAIL {name:<22} {ms:>6} ms  {e}");
                }
            }
            Err(_) => {
                self.failed += 1;
                println!("FAIL {name:<22} {ms:>6} ms  no end after 150 s");
            }
        }
    }
}

macro_rules! ensure {
    ($cond:expr, $($why:tt)+) => {
        if !$cond { return Err(format!($($why)+).into()); }
    };
}

/// Content that differs everywhere, so that a piece in the wrong place shows.
fn pattern(len: usize, seed: u64) -> Bytes {
    let mut x = seed | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        out.extend_from_slice(&x.to_le_bytes());
    }
    out.truncate(len);
    out.into()
}

/// The server has not the operation, or knows no such number (in a minor version before it).
fn not_offered(e: &Error) -> bool {
    e.is(Status::NOTSUPP) || e.is(Status::OP_ILLEGAL)
}

fn is_status<T: std::fmt::Debug>(result: Result<T, Error>, wanted: &[Status]) -> Outcome {
    match result {
        Err(e) if wanted.iter().any(|s| e.is(*s)) => Ok(e.to_string()),
        Err(e) if not_offered(&e) => Err(e.into()),
        other => Err(format!("wanted {wanted:?}, got {other:?}").into()),
    }
}

async fn content(fs: &Fs, path: &str) -> Result<Bytes, Box<dyn std::error::Error>> {
    let file = Arc::new(fs.open(path, &OpenOptions::read()).await?);
    let mut all = Vec::new();
    let mut stream = file.read_stream(0..u64::MAX, Pipeline::default()).await?;
    while let Some((offset, data)) = stream.next().await? {
        ensure!(offset == all.len() as u64, "piece at {offset}, expected {}", all.len());
        all.extend_from_slice(&data);
    }
    drop(stream);
    Arc::into_inner(file).ok_or("file still in use")?.close().await?;
    Ok(all.into())
}

async fn write_file(fs: &Fs, path: &str, data: Bytes) -> Result<(), Box<dyn std::error::Error>> {
    let options = OpenOptions::write().create(Create::IfMissing, 0o644).truncate(true);
    let file = Arc::new(fs.open(path, &options).await?);
    let mut stream = file.write_stream(Pipeline::default(), StableHow::UNSTABLE).await?;
    stream.push(0, data).await?;
    stream.finish(true).await?;
    Arc::into_inner(file).ok_or("file still in use")?.close().await?;
    Ok(())
}

/// Where the round runs.
#[derive(Clone, Copy)]
pub struct At<'a> {
    /// The directory.
    pub url: &'a NfsUrl,
    /// The minor versions to be tried, in order.
    pub minors: &'a [u32],
}

async fn connect(at: At<'_>, change: impl FnOnce(&mut ClientConfig)) -> Result<Client, Box<dyn std::error::Error>> {
    let mut config = ClientConfig::for_url(at.url).await?;
    config.minor_versions = at.minors.to_vec();
    change(&mut config);
    Ok(Client::connect(config).await?)
}

#[tokio::main]
async fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::from_env("DHOW_LOG");
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let mut args = std::env::args().skip(1).peekable();
    let mut minors = vec![2, 1];
    if args.next_if_eq("--minor").is_some() {
        minors = args.next().and_then(|n| n.parse().ok()).into_iter().collect();
    }
    let url: NfsUrl = match args.next().map(|a| a.parse()) {
        Some(Ok(url)) => url,
        Some(Err(e)) => {
            eprintln!("conformance: the URL {e}");
            return ExitCode::from(2);
        }
        None => {
            eprintln!("usage: conformance [--minor N] nfs://HOST[:PORT]/DIRECTORY [ONLY]");
            return ExitCode::from(2);
        }
    };
    match run(At { url: &url, minors: &minors }, args.next()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            println!("FAIL {e}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the round; whether all checks passed.
pub async fn run(at: At<'_>, only: Option<String>) -> Result<bool, Box<dyn std::error::Error>> {
    let url = at.url;
    let client = connect(at, |c| c.connections = 4).await?;
    let info = client.session_info().await?;
    println!(
        "session: 4.{}, {} slots, {} operations, requests {}, replies {}, lease {} s",
        info.minor_version,
        info.slots,
        info.max_operations,
        info.max_request_size,
        info.max_response_size,
        info.lease.as_secs()
    );
    let top = client.fs().subtree(url.path()).await?;
    let work = format!("conformance-{}", std::process::id());
    top.mkdir(&work, 0o755).await?;
    let fs = top.subtree(&work).await?;
    let mut round = Round { only, failed: 0, passed: 0 };

    names(&mut round, &fs).await;
    data(&mut round, &fs).await;
    locks(&mut round, &fs, at, &work).await;
    io_under_locks(&mut round, &fs, at, &work).await;
    sparse_and_copies(&mut round, &fs).await;
    sessions(&mut round, &fs, at).await;

    round
        .check("tidy", async {
            remove_tree(&fs, "").await?;
            top.remove(&work).await?;
            is_status(top.stat(&work).await, &[Status::NOENT])
        })
        .await;
    round
        .check("close", async {
            client.close().await?;
            match client.fs().stat("/").await {
                Err(Error::Closed) => Ok(String::new()),
                other => Err(format!("still usable: {other:?}").into()),
            }
        })
        .await;
    println!("{} passed, {} failed", round.passed, round.failed);
    Ok(round.failed == 0)
}

type Done<'a> = std::pin::Pin<Box<dyn Future<Output = Result<(), Box<dyn std::error::Error>>> + 'a>>;

fn remove_tree<'a>(fs: &'a Fs, path: &'a str) -> Done<'a> {
    Box::pin(async move {
        for entry in fs.readdir(path, STAT).await?.collect().await? {
            let below = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
            if entry.attrs.file_type == Some(FileType::DIR) {
                remove_tree(fs, &below).await?;
            }
            fs.remove(&below).await?;
        }
        Ok(())
    })
}

async fn names(round: &mut Round, fs: &Fs) {
    round.check("ping", async { Ok(format!("{} us", fs.client().ping().await?.as_micros())) }).await;
    round
        .check("stat root", async {
            let node = fs.stat("/").await?;
            ensure!(node.is_dir(), "the root is no directory");
            ensure!(node.attrs.fileid.is_some() && node.attrs.fsid.is_some(), "no fileid or fsid");
            ensure!(node.attrs.numlinks.is_some_and(|n| n >= 1), "nlink 0");
            Ok(String::new())
        })
        .await;
    round
        .check("statfs", async {
            let a = fs.statfs("/").await?;
            ensure!(a.space_total.is_some_and(|n| n > 0), "no space_total");
            Ok(format!("maxread {:?}, maxwrite {:?}, clone_blksize {:?}", a.maxread, a.maxwrite, a.clone_blksize))
        })
        .await;
    round
        .check("mkdir", async {
            let node = fs.mkdir("d", 0o750).await?;
            ensure!(node.attrs.mode.is_some_and(|m| m & 0o7777 == 0o750), "mode {:?}", node.attrs.mode);
            is_status(fs.mkdir("d", 0o750).await, &[Status::EXIST])
        })
        .await;
    round
        .check("lookup", async {
            let d = fs.stat("d").await?;
            let up = fs.stat("d/..").await?;
            ensure!(up.fh == fs.stat("/").await?.fh, "d/.. is not the root");
            fs.mkdir("d/e", 0o755).await?;
            let e = fs.lookup(&d.fh, "e").await?;
            ensure!(e.attrs.fileid == fs.stat("d/e").await?.attrs.fileid, "two ways, two files");
            is_status(fs.lookup(&d.fh, "none").await, &[Status::NOENT])
        })
        .await;
    round
        .check("symlinks", async {
            fs.symlink("link", "d").await?;
            fs.symlink("d/up", "../d/e").await?;
            fs.symlink("abs", "/d/e").await?;
            fs.symlink("loop", "loop").await?;
            fs.symlink("dangling", "nowhere/at/all").await?;
            ensure!(fs.readlink("link").await? == "d", "text of the link");
            ensure!(fs.stat_nolink("link").await?.file_type() == Some(FileType::LNK), "nolink followed");
            let e = fs.stat("d/e").await?.attrs.fileid;
            ensure!(fs.stat("link/up").await?.attrs.fileid == e, "link/up");
            ensure!(fs.stat("abs").await?.attrs.fileid == e, "abs");
            ensure!(fs.stat("link/../link/e/.").await?.attrs.fileid == e, "link/../link/e");
            fs.mkdir("link/up/f", 0o755).await?;
            ensure!(fs.stat("d/e/f").await?.is_dir(), "create below links");
            ensure!(matches!(fs.stat("loop").await, Err(Error::TooManyLinks(_))), "loop");
            ensure!(matches!(fs.stat("loop/x").await, Err(Error::TooManyLinks(_))), "loop/x");
            is_status(fs.stat("dangling").await, &[Status::NOENT])
        })
        .await;
    round
        .check("long path", async {
            let mut path = String::from("deep");
            fs.mkdir(&path, 0o755).await?;
            for n in 0..100 {
                path.push_str(&format!("/{n}"));
                fs.mkdir(&path, 0o755).await?;
            }
            let node = fs.stat(&path).await?;
            ensure!(node.is_dir(), "not a directory");
            is_status(fs.stat(&format!("{path}/x/y")).await, &[Status::NOENT])
        })
        .await;
    round
        .check("names are bytes", async {
            let name = b"\xff\xfe caf\xc3\xa9 \xe9";
            let root = fs.stat("/").await?.fh;
            fs.mkdir((&root, name), 0o755).await?;
            let all = fs.readdir("/", STAT).await?.collect().await?;
            ensure!(all.iter().any(|e| e.name == name[..]), "not listed");
            fs.remove((&root, name)).await?;
            fs.mkdir(&"x".repeat(255), 0o755).await?;
            is_status(fs.mkdir(&"x".repeat(256), 0o755).await, &[Status::NAMETOOLONG])
        })
        .await;
    round
        .check("not a directory", async {
            fs.put("plain", Bytes::from_static(b"x"), &PutOptions::default()).await?;
            is_status(fs.stat("plain/x").await, &[Status::NOTDIR])?;
            is_status(fs.readdir("plain", STAT).await, &[Status::NOTDIR])?;
            is_status(fs.open("d", &OpenOptions::write()).await, &[Status::ISDIR])
        })
        .await;
    round
        .check("readdir 2000", async {
            fs.mkdir("many", 0o755).await?;
            let dir = fs.stat("many").await?.fh;
            let names: Vec<String> = (0..2000).map(|n| format!("file-{n:05}")).collect();
            let mut made = futures_util::stream::FuturesUnordered::new();
            for chunk in names.chunks(100) {
                let (fs, dir) = (fs.clone(), dir.clone());
                made.push(async move {
                    for name in chunk {
                        fs.symlink((&dir, name), "x").await?;
                    }
                    Ok::<_, Error>(())
                });
            }
            use futures_util::StreamExt;
            while let Some(done) = made.next().await {
                done?;
            }
            let mut seen: Vec<_> =
                fs.readdir("many", STAT).await?.collect().await?.into_iter().map(|e| e.name).collect();
            let count = seen.len();
            seen.sort();
            seen.dedup();
            ensure!(count == 2000 && seen.len() == 2000, "{count} entries, {} different", seen.len());
            let mut gone = futures_util::stream::iter(names.iter().map(|n| fs.remove((&dir, n)))).buffer_unordered(64);
            while let Some(done) = gone.next().await {
                done?;
            }
            ensure!(fs.readdir("many", STAT).await?.next().await?.is_none(), "not empty");
            Ok(String::new())
        })
        .await;
    round
        .check("rename, link, remove", async {
            fs.put("a", Bytes::from_static(b"one"), &PutOptions::default()).await?;
            let a = fs.stat("a").await?;
            fs.link("a", "link/b").await?;
            ensure!(fs.stat("d/b").await?.attrs.numlinks == Some(2), "nlink");
            fs.rename("a", "d/e/c").await?;
            ensure!(fs.stat("d/e/c").await?.attrs.fileid == a.attrs.fileid, "another file");
            ensure!(fs.stat(&a.fh).await?.attrs.fileid == a.attrs.fileid, "the handle died of the rename");
            is_status(fs.stat("a").await, &[Status::NOENT])?;
            fs.remove("d/b").await?;
            ensure!(fs.stat("d/e/c").await?.attrs.numlinks == Some(1), "nlink after remove");
            is_status(fs.remove("d").await, &[Status::NOTEMPTY, Status::EXIST])
        })
        .await;
    round
        .check("setattr", async {
            fs.put("attrs", Bytes::from_static(b"12345"), &PutOptions::default()).await?;
            let time = NfsTime { secs: -300_000_000, nanos: 250_000_000 };
            let change = Attrs {
                mode: Some(0o640),
                time_modify_set: Some(SetTime::Client(time)),
                size: Some(3),
                ..Attrs::default()
            };
            fs.setattr("attrs", &change).await?;
            let a = fs.stat("attrs").await?.attrs;
            ensure!(a.mode.is_some_and(|m| m & 0o7777 == 0o640) && a.size == Some(3), "{:?} {:?}", a.mode, a.size);
            let touch = Attrs { time_modify_set: Some(SetTime::Client(time)), ..Attrs::default() };
            fs.setattr("attrs", &touch).await?;
            let modify = fs.stat("attrs").await?.attrs.time_modify;
            ensure!(modify == Some(time), "time {modify:?}");
            Ok(String::new())
        })
        .await;
    round
        .check("access", async {
            let all = access::READ | access::LOOKUP | access::MODIFY | access::EXTEND | access::DELETE;
            let granted = fs.access("link", all).await?;
            ensure!(granted == all, "{granted:#x} of {all:#x}");
            Ok(String::new())
        })
        .await;
    round
        .check("xattrs", async {
            fs.put("xattr", Bytes::new(), &PutOptions::default()).await?;
            fs.setxattr("xattr", "a", Bytes::from_static(b"1"), SetxattrOption::CREATE).await?;
            fs.setxattr("xattr", "b", Bytes::from_static(b"22"), SetxattrOption::EITHER).await?;
            is_status(fs.setxattr("xattr", "a", Bytes::new(), SetxattrOption::CREATE).await, &[Status::EXIST])?;
            ensure!(fs.getxattr("xattr", "b").await? == "22", "value");
            let mut names = fs.listxattrs("xattr").await?;
            names.sort();
            ensure!(names == ["a", "b"], "{names:?}");
            fs.removexattr("xattr", "a").await?;
            is_status(fs.getxattr("xattr", "a").await, &[Status::NOXATTR])
        })
        .await;
}

async fn data(round: &mut Round, fs: &Fs) {
    round
        .check("put and get", async {
            let before = fs.client().counters().snapshot();
            let small = pattern(5000, 1);
            fs.put("small", small.clone(), &PutOptions::default()).await?;
            let got = fs.get("small", 1 << 20).await?.ok_or("longer than it is")?;
            let calls = fs.client().counters().snapshot().since(&before).calls;
            ensure!(got.1 == small && got.0.attrs.size == Some(5000), "content");
            ensure!(calls == 2, "{calls} calls");
            let options = PutOptions { via: Some(Bytes::from_static(b".small.part")), ..PutOptions::default() };
            fs.put("small", pattern(700, 2), &options).await?;
            ensure!(content(fs, "small").await? == pattern(700, 2), "content after rename");
            is_status(fs.stat(".small.part").await, &[Status::NOENT])?;
            let options = PutOptions { new: true, ..PutOptions::default() };
            is_status(fs.put("small", small, &options).await, &[Status::EXIST])
        })
        .await;
    round
        .check("open modes", async {
            is_status(fs.open("nope", &OpenOptions::read()).await, &[Status::NOENT])?;
            let new = OpenOptions::write().create(Create::New, 0o600);
            let file = fs.open("excl", &new).await?;
            ensure!(
                file.attrs().mode.is_none_or(|m| m & 0o7777 == 0o600) || file.stat().await?.mode == Some(0o600),
                "mode"
            );
            file.write_all_at(0, Bytes::from_static(b"abcdef"), StableHow::FILE_SYNC).await?;
            // RFC 8881 section 18.22.3: a server may let a write-only open read.
            match file.read_at(0, 1).await {
                Ok(r) => ensure!(r.data == "a", "read something else"),
                Err(e) => ensure!(e.is(Status::OPENMODE), "{e}"),
            }
            file.close().await?;
            is_status(fs.open("excl", &new).await, &[Status::EXIST])?;
            let mode = fs.stat("excl").await?.attrs.mode;
            ensure!(mode.is_some_and(|m| m & 0o7777 == 0o600), "mode {mode:?}");
            let file = fs.open("excl", &OpenOptions::read_write().truncate(true)).await?;
            ensure!(file.size() == 0 && file.stat().await?.size == Some(0), "not truncated");
            file.close().await?;
            fs.symlink("to-excl", "excl").await?;
            fs.symlink("to-new", "made-through-link").await?;
            fs.open("to-excl", &OpenOptions::read()).await?.close().await?;
            is_status(fs.open("to-excl", &OpenOptions::read().follow(false)).await, &[Status::SYMLINK])?;
            fs.open("to-new", &OpenOptions::write().create(Create::IfMissing, 0o644)).await?.close().await?;
            fs.symlink("d/to-excl", "../link/../excl").await?;
            fs.symlink("d/to-newer", ".././d/e/../newer").await?;
            fs.open("d/to-excl", &OpenOptions::read()).await?.close().await?;
            fs.open("link/to-newer", &OpenOptions::write().create(Create::IfMissing, 0o644)).await?.close().await?;
            ensure!(fs.stat("d/newer").await?.file_type() == Some(FileType::REG), "not made");
            ensure!(fs.get("d/to-excl", 100).await?.is_some(), "get through a link");
            ensure!(fs.stat("made-through-link").await?.file_type() == Some(FileType::REG), "not made");
            Ok(String::new())
        })
        .await;
    round
        .check("share reservations", async {
            let deny = OpenOptions::read().deny(share::DENY_WRITE);
            let first = fs.open("excl", &deny).await?;
            let second = fs.open("excl", &OpenOptions::write()).await;
            let said = is_status(second, &[Status::SHARE_DENIED]);
            first.close().await?;
            fs.open("excl", &OpenOptions::write()).await?.close().await?;
            said
        })
        .await;
    round
        .check("read at the edges", async {
            write_file(fs, "edges", pattern(10_000, 3)).await?;
            let file = fs.open("edges", &OpenOptions::read()).await?;
            let r = file.read_at(9_990, 4096).await?;
            ensure!(r.eof && r.data == pattern(10_000, 3).slice(9_990..), "over the end");
            let r = file.read_at(10_000, 1).await?;
            ensure!(r.eof && r.data.is_empty(), "at the end");
            let r = file.read_at(1 << 40, 100).await?;
            ensure!(r.eof && r.data.is_empty(), "far beyond");
            let r = file.read_full_at(1, 5_000).await?;
            ensure!(r.data == pattern(10_000, 3).slice(1..5_001), "in the middle");
            file.close().await?;
            Ok(String::new())
        })
        .await;
    round
        .check("bulk 24 MiB", async {
            let data = pattern((24 << 20) + 12_345, 4);
            let start = Instant::now();
            write_file(fs, "bulk", data.clone()).await?;
            let wrote = start.elapsed();
            let start = Instant::now();
            ensure!(content(fs, "bulk").await? == data, "content differs");
            let mbs = |t: Duration| data.len() as f64 / 1e6 / t.as_secs_f64();
            Ok(format!("write {:.0} MB/s, read {:.0} MB/s", mbs(wrote), mbs(start.elapsed())))
        })
        .await;
    round
        .check("stability", async {
            let file = fs.open("stable", &OpenOptions::write().create(Create::IfMissing, 0o644)).await?;
            let mut seen = Vec::new();
            for stable in [StableHow::UNSTABLE, StableHow::DATA_SYNC, StableHow::FILE_SYNC] {
                let w = file.write_all_at(0, pattern(4096, 5), stable).await?;
                ensure!(w.committed >= stable, "{stable} became {}", w.committed);
                seen.push(w.verifier);
            }
            seen.push(file.commit(0, 0).await?);
            seen.push(file.commit_and_close().await?);
            seen.dedup();
            ensure!(seen.len() == 1, "verifiers differ: {seen:?}");
            Ok(String::new())
        })
        .await;
    round
        .check("200 files at once", async {
            fs.mkdir("par", 0o755).await?;
            let work = (0..200_u64).map(|n| async move {
                let data = pattern(1000 + n as usize, n);
                let path = format!("par/{n}");
                fs.put(&path, data.clone(), &PutOptions { stable: StableHow::UNSTABLE, ..PutOptions::default() })
                    .await?;
                let got = fs.get(&path, 1 << 16).await?;
                Ok::<_, Error>(got.is_some_and(|g| g.1 == data))
            });
            let done = futures_util::future::join_all(work).await;
            for good in done {
                ensure!(good?, "content differs");
            }
            Ok(String::new())
        })
        .await;
}

async fn locks(round: &mut Round, fs: &Fs, at: At<'_>, work: &str) {
    round
        .check("locks", async {
            let other = connect(at, |_| {}).await?;
            let theirs = other.fs().subtree(at.url.path()).await?.subtree(work).await?;
            let open = OpenOptions::read_write().create(Create::IfMissing, 0o644);
            let (a, b) = (fs.open("locked", &open).await?, theirs.open("locked", &open).await?);
            ensure!(a.try_lock(true, 0, 100).await?.is_none(), "first lock");
            let denied = b.try_lock(true, 50, 10).await?.ok_or("two exclusive locks")?;
            ensure!(denied.lock_type.is_write(), "kind of the lock in the way");
            ensure!(b.test_lock(false, 0, TO_EOF).await?.is_some(), "test found nothing");
            ensure!(a.test_lock(true, 0, TO_EOF).await?.is_none(), "own lock is in the way");
            a.unlock(50, 50).await?;
            ensure!(b.try_lock(true, 50, 10).await?.is_none(), "unlocked half");
            ensure!(b.try_lock(false, 49, 1).await?.is_some(), "locked half");
            let waits = async {
                b.lock(true, 0, 10).await?;
                Ok::<_, Error>(Instant::now())
            };
            let frees = async {
                tokio::time::sleep(Duration::from_millis(200)).await;
                let when = Instant::now();
                a.unlock(0, TO_EOF).await?;
                Ok::<_, Error>(when)
            };
            let (got, freed) = tokio::try_join!(waits, frees)?;
            ensure!(got > freed, "granted before it was free");
            b.close().await?;
            ensure!(a.try_lock(true, 0, TO_EOF).await?.is_none(), "closing did not unlock");
            a.close().await?;
            other.close().await?;
            Ok(format!("granted {} ms after it was free", (got - freed).as_millis()))
        })
        .await;
}

/// I/O with the stateid of a lock (RFC 8881 sections 8.2.5 and 9.1.2), while locks grow, shrink and change their kind.
async fn io_under_locks(round: &mut Round, fs: &Fs, at: At<'_>, work: &str) {
    round
        .check("I/O under locks", async {
            let other = connect(at, |_| {}).await?;
            let theirs = other.fs().subtree(at.url.path()).await?.subtree(work).await?;
            let open = OpenOptions::read_write().create(Create::IfMissing, 0o644);
            let (a, b) = (fs.open("under-locks", &open).await?, theirs.open("under-locks", &open).await?);
            ensure!(a.try_lock(true, 0, 100).await?.is_none() && b.try_lock(true, 100, 100).await?.is_none(), "locks");
            let (mine, other_half) = (pattern(100, 21), pattern(100, 22));
            // Both at once, each in its own range, stable and not.
            let writes = async { a.write_all_at(0, mine.clone(), StableHow::FILE_SYNC).await };
            let others = async { b.write_all_at(100, other_half.clone(), StableHow::UNSTABLE).await };
            let (_, unstable) = tokio::try_join!(writes, others)?;
            ensure!(b.commit(0, 0).await? == unstable.verifier, "the verifier changed");
            ensure!(a.read_full_at(0, 100).await?.data == mine, "own half");
            ensure!(b.read_full_at(100, 100).await?.data == other_half, "the other half");
            // Smaller and larger than the lock: it is the stateid that counts, not the range.
            a.set_size(200).await?;
            ensure!(a.stat().await?.size == Some(200), "size");
            match a.allocate(0, 200).await {
                Err(e) if e.is(Status::NOTSUPP) || e.is(Status::OP_ILLEGAL) => {}
                done => done?,
            }
            ensure!(a.read_full_at(0, 200).await?.eof, "no end");
            // Down to a lock for reading, which others share, and up again when they do not.
            ensure!(a.try_lock(false, 0, 100).await?.is_none(), "down");
            ensure!(b.try_lock(false, 0, 50).await?.is_none(), "not shared");
            ensure!(b.read_full_at(0, 100).await?.data == mine, "read under a shared lock");
            ensure!(a.try_lock(true, 0, 100).await?.is_some(), "up, while it is shared");
            a.write_all_at(60, mine.slice(60..), StableHow::FILE_SYNC).await?;
            b.unlock(0, 50).await?;
            ensure!(a.try_lock(true, 0, 100).await?.is_none(), "up");
            // A hole in the middle is free, its edges are not.
            a.unlock(40, 20).await?;
            ensure!(b.try_lock(true, 40, 20).await?.is_none(), "the middle");
            ensure!(b.try_lock(true, 39, 1).await?.is_some() && b.try_lock(true, 60, 1).await?.is_some(), "the edges");
            let middle = pattern(20, 23);
            b.write_all_at(40, middle.clone(), StableHow::FILE_SYNC).await?;
            a.write_all_at(0, mine.slice(..40), StableHow::FILE_SYNC).await?;
            a.write_all_at(60, mine.slice(60..), StableHow::FILE_SYNC).await?;
            // Two owners of one open keep each other out; the file's I/O goes on under its own.
            let owner = Bytes::from_static(b"another owner");
            ensure!(a.lock_as(&owner, LockType::WRITE, 0, 10).await?.is_some(), "two owners of one open");
            ensure!(a.lock_as(&owner, LockType::WRITE, 300, 10).await?.is_none(), "a lock of its own");
            ensure!(b.test_lock(true, 300, 1).await?.is_some() && a.test_lock(true, 300, 1).await?.is_some(), "seen");
            a.unlock_as(&owner, 300, 10).await?;
            // One who reads alone.
            let reader = theirs.open("under-locks", &OpenOptions::read()).await?;
            ensure!(reader.try_lock(false, 300, 5).await?.is_none(), "lock of a reader");
            ensure!(reader.read_full_at(0, 40).await?.data == mine.slice(..40), "its data");
            is_status(reader.try_lock(true, 300, 5).await, &[Status::OPENMODE])?;
            reader.close().await?;
            // Without locks it is the stateid of the open again.
            a.unlock(0, TO_EOF).await?;
            a.write_all_at(200, middle.clone(), StableHow::FILE_SYNC).await?;
            b.close().await?;
            ensure!(a.try_lock(true, 0, TO_EOF).await?.is_none(), "all of it");
            let all = [&mine[..40], &middle, &mine[60..], &other_half, &middle].concat();
            ensure!(a.read_full_at(0, 1000).await?.data == all, "content");
            // With its lock.
            a.commit_and_close().await?;
            ensure!(content(fs, "under-locks").await? == all, "content in the end");
            other.close().await?;
            Ok(String::new())
        })
        .await;
}

async fn sparse_and_copies(round: &mut Round, fs: &Fs) {
    const MB: u64 = 1 << 20;
    round
        .check("seek", async {
            let open = OpenOptions::read_write().create(Create::IfMissing, 0o644).truncate(true);
            let file = fs.open("sparse", &open).await?;
            file.set_size(8 * MB).await?;
            file.write_all_at(4 * MB, pattern(MB as usize, 6), StableHow::FILE_SYNC).await?;
            let data = file.seek(0, DataContent::DATA).await?;
            let hole = file.seek(4 * MB, DataContent::HOLE).await?;
            file.close().await?;
            // A server that knows no holes calls everything data.
            ensure!(data.offset == 4 * MB || data.offset == 0, "data at {}", data.offset);
            ensure!(hole.offset >= 5 * MB, "hole at {}", hole.offset);
            Ok(format!("data at {}, hole at {}", data.offset, hole.offset))
        })
        .await;
    round
        .check("deallocate", async {
            write_file(fs, "punched", pattern(4 * MB as usize, 7)).await?;
            let file = fs.open("punched", &OpenOptions::read_write()).await?;
            file.deallocate(MB, MB).await?;
            file.close().await?;
            let mut want = pattern(4 * MB as usize, 7).to_vec();
            want[MB as usize..2 * MB as usize].fill(0);
            ensure!(content(fs, "punched").await? == want, "content");
            Ok(String::new())
        })
        .await;
    round
        .check("allocate", async {
            let file = fs.open("reserved", &OpenOptions::write().create(Create::IfMissing, 0o644)).await?;
            file.allocate(0, MB).await?;
            let size = file.stat().await?.size;
            file.close().await?;
            ensure!(size == Some(MB), "size {size:?}");
            Ok(String::new())
        })
        .await;
    round
        .check("clone", async {
            write_file(fs, "source", pattern(16 * MB as usize, 8)).await?;
            let a = fs.open("source", &OpenOptions::read()).await?;
            let b = fs.open("cloned", &OpenOptions::read_write().create(Create::IfMissing, 0o644)).await?;
            let done = a.clone_to(0, &b, 0, 0).await;
            a.close().await?;
            b.close().await?;
            done?;
            ensure!(content(fs, "cloned").await? == pattern(16 * MB as usize, 8), "content");
            Ok(String::new())
        })
        .await;
    for synchronous in [true, false] {
        let name = if synchronous { "copy synchronous" } else { "copy asynchronous" };
        round
            .check(name, async {
                let data = pattern(48 * MB as usize + 17, 9);
                write_file(fs, "source", data.clone()).await?;
                let before = fs.client().counters().snapshot();
                let a = fs.open("source", &OpenOptions::read()).await?;
                let open = OpenOptions::write().create(Create::IfMissing, 0o644).truncate(true);
                let b = fs.open("copied", &open).await?;
                let options = CopyOptions { synchronous, durable: true };
                let mut told = 0;
                let copied = a.copy_to(0, &b, 0, 0, &options, |n| told = n).await;
                a.close().await?;
                b.close().await?;
                let copied = copied?;
                let counts = fs.client().counters().snapshot().since(&before);
                ensure!(copied.bytes == data.len() as u64 && copied.is_durable(), "{copied:?}");
                ensure!(told == copied.bytes, "progress ended at {told}");
                ensure!(content(fs, "copied").await? == data, "content");
                Ok(format!("{} calls, {} polls, {} callbacks", counts.calls, counts.polls, counts.callbacks))
            })
            .await;
    }
    round
        .check("copy a range", async {
            write_file(fs, "copied", pattern(MB as usize, 10)).await?;
            let a = fs.open("source", &OpenOptions::read()).await?;
            let b = fs.open("copied", &OpenOptions::write()).await?;
            let options = CopyOptions::default();
            let copied = a.copy_to(1000, &b, 500, 100_000, &options, |_| {}).await;
            a.close().await?;
            b.close().await?;
            ensure!(copied?.bytes == 100_000, "bytes");
            let mut want = pattern(MB as usize, 10).to_vec();
            want[500..100_500].copy_from_slice(&pattern(101_000, 9)[1000..]);
            ensure!(content(fs, "copied").await? == want, "content");
            Ok(String::new())
        })
        .await;
    round
        .check("copy cancelled", async {
            let a = fs.open("source", &OpenOptions::read()).await?;
            let b = fs.open("stopped", &OpenOptions::write().create(Create::IfMissing, 0o644)).await?;
            let note = match a.begin_copy(0, &b, 0, 0, &CopyOptions::default()).await {
                Ok(CopyBegun::Running(copy)) => {
                    copy.cancel().await?;
                    "cancelled"
                }
                Ok(CopyBegun::Done(_)) => "was done at once",
                Err(e) => {
                    a.close().await?;
                    b.close().await?;
                    return Err(e.into());
                }
            };
            a.close().await?;
            b.close().await?;
            Ok(note.to_owned())
        })
        .await;
    round
        .check("copy of wrong mode", async {
            let a = fs.open("source", &OpenOptions::read()).await?;
            let b = fs.open("copied", &OpenOptions::read()).await?;
            let options = CopyOptions { synchronous: true, durable: false };
            let refused = a.begin_copy(0, &b, 0, 10, &options).await;
            a.close().await?;
            b.close().await?;
            if let Err(e) = &refused
                && e.is(Status::NOTSUPP)
            {
                return Err(e.clone().into());
            }
            is_status(refused.map(|_| ()), &[Status::OPENMODE])
        })
        .await;
}

async fn sessions(round: &mut Round, fs: &Fs, at: At<'_>) {
    let url = at.url;
    round
        .check("exactly once", async {
            // Connections break all the time while names are made and removed: nothing may be done twice or lost.
            fs.mkdir("storm", 0o755).await?;
            let before = fs.client().counters().snapshot();
            let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
            let breaker = {
                let (client, stop) = (fs.client().clone(), Arc::clone(&stop));
                tokio::spawn(async move {
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        tokio::time::sleep(Duration::from_millis(150)).await;
                        client.break_connections();
                    }
                })
            };
            let work = (0..16).map(|n| async move {
                for i in 0..40 {
                    fs.mkdir(&format!("storm/{n}-{i}"), 0o755).await?;
                    fs.rename(&format!("storm/{n}-{i}"), &format!("storm/{n}-{i}-b")).await?;
                    fs.remove(&format!("storm/{n}-{i}-b")).await?;
                }
                Ok::<_, Error>(())
            });
            let done = futures_util::future::join_all(work).await;
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            breaker.await?;
            for one in done {
                one?;
            }
            let counts = fs.client().counters().snapshot().since(&before);
            ensure!(fs.readdir("storm", STAT).await?.next().await?.is_none(), "names are left");
            Ok(format!("{} calls, {} sent again, {} connections", counts.calls, counts.resent, counts.connects))
        })
        .await;
    if let Ok(command) = std::env::var("RESTART") {
        round
            .check("server restart", async {
                let open = OpenOptions::read_write().create(Create::IfMissing, 0o644);
                let file = fs.open("kept", &open).await?;
                file.write_all_at(0, Bytes::from_static(b"before"), StableHow::FILE_SYNC).await?;
                ensure!(file.try_lock(true, 0, 100).await?.is_none(), "lock");
                let shell = move || std::process::Command::new("sh").args(["-c", &command]).status();
                let status = tokio::task::spawn_blocking(shell).await??;
                ensure!(status.success(), "the command failed: {status}");
                let start = Instant::now();
                file.write_all_at(0, Bytes::from_static(b"after!"), StableHow::FILE_SYNC).await?;
                ensure!(file.read_at(0, 10).await?.data == "after!", "content");
                let took = start.elapsed();
                let other = connect(at, |_| {}).await?;
                let theirs = other.fs().open(file.fh(), &OpenOptions::read_write()).await?;
                ensure!(theirs.try_lock(true, 0, 100).await?.is_some(), "the lock is gone");
                theirs.close().await?;
                other.close().await?;
                file.close().await?;
                Ok(format!("goes on after {} ms", took.as_millis()))
            })
            .await;
    }
    round
        .check("minor version 1", async {
            let old = connect(at, |c| c.minor_versions = vec![1]).await?;
            let minor = old.session_info().await?.minor_version;
            ensure!(old.fs().stat(url.path()).await?.is_dir(), "no directory");
            old.close().await?;
            ensure!(minor == 1, "minor {minor}");
            Ok(String::new())
        })
        .await;
    round
        .check("lease is renewed", async {
            let lease = fs.client().session_info().await?.lease;
            if lease > Duration::from_secs(15) {
                return Ok(format!("left out: the lease is {} s", lease.as_secs()));
            }
            let file = fs.open("excl", &OpenOptions::read_write()).await?;
            ensure!(file.try_lock(true, 0, 1).await?.is_none(), "lock");
            tokio::time::sleep(lease + lease / 2).await;
            file.write_all_at(0, Bytes::from_static(b"x"), StableHow::FILE_SYNC).await?;
            file.close().await?;
            Ok(format!("idle for {} s", (lease + lease / 2).as_secs()))
        })
        .await;
    round
        .check("probe", async {
            let mut config = ClientConfig::for_url(url).await?;
            config.connections = 1;
            let versions = probe::versions(&config).await?;
            ensure!(versions.minors.contains(&1), "{versions:?}");
            let ops = probe::operations(fs.client(), url.path()).await?;
            let yes: Vec<_> = ops.iter().filter(|o| o.1 == probe::Support::Yes).map(|o| o.0.to_string()).collect();
            let rest: Vec<_> = ops.iter().filter(|o| o.1 != probe::Support::Yes).collect();
            Ok(format!("{:?} {:?}; {}; not: {rest:?}", versions.majors, versions.minors, yes.join(" ")))
        })
        .await;
}
