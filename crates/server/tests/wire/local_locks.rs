//! Locks that reach local programs (`local_locks`): theirs and ours conflict both ways (RFC 8881 9.1.4.3, 18.10).

use crate::tree::Tree;
use dhow_proto::v4::ops::{LockDenied, LockRes, LocktRes};
use dhow_proto::v4::{FileHandle, LockType, ResOp, Stateid};
use dhow_testkit::wire::{Client, Open, op};
use rustix::fs::{FlockOperation, fcntl_lock};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const R: LockType = LockType::READ;
const W: LockType = LockType::WRITE;

async fn serve() -> Tree {
    Tree::with(&std::env::temp_dir(), |o| o.local_locks = true, |_| {}).await
}

async fn lock(c: &mut Client, fh: &FileHandle, op: dhow_proto::v4::ArgOp) -> Result<Stateid, LockRes> {
    match c.run(&[op::put(fh), op]).await.results.pop() {
        Some(ResOp::Lock(LockRes::Ok(stateid))) => Ok(stateid),
        Some(ResOp::Lock(other)) => Err(other),
        other => panic!("{other:?}"),
    }
}

async fn test(c: &mut Client, f: &Open, kind: LockType, at: u64, len: u64) -> LocktRes {
    let owner = c.owner("tester");
    match c.run(&[op::put(&f.fh), op::lockt(owner, kind, at, len)]).await.results.pop() {
        Some(ResOp::Lockt(done)) => done,
        other => panic!("{other:?}"),
    }
}

/// A local program that holds an `fcntl` lock of a whole file: this test's binary, run again.
struct Program(Child, BufReader<std::process::ChildStdout>);

/// Does nothing unless [`Program`] runs it.
#[test]
fn program() {
    let Ok(path) = std::env::var("DHOW_TEST_LOCK") else { return };
    let file = open(Path::new(&path));
    let how = FlockOperation::NonBlockingLockExclusive;
    let answer = if fcntl_lock(&file, how).is_ok() { "locked" } else { "refused" };
    println!("\n{answer}");
    std::io::stdout().flush().unwrap();
    // Until the parent closes our standard input.
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

impl Program {
    fn run(path: &Path) -> (Self, bool) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "local_locks::program", "--nocapture", "--test-threads=1"])
            .env("DHOW_TEST_LOCK", path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while out.read_line(&mut line).unwrap() > 0 {
            match line.trim_end() {
                "locked" => return (Self(child, out), true),
                "refused" => return (Self(child, out), false),
                _ => line.clear(),
            }
        }
        let ended = child.wait();
        panic!("the program says nothing: {ended:?}");
    }

    fn end(mut self) {
        drop(self.0.stdin.take());
        // What it says at its end is of no interest, but must find a reader.
        let _ = std::io::copy(&mut self.1, &mut std::io::sink());
        let _ = self.0.wait();
    }
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn takes(file: &File, how: FlockOperation) -> bool {
    fcntl_lock(file, how).is_ok()
}

/// A lock of a client keeps a program out, and the other way round; LOCKT shows the program's lock.
#[tokio::test]
async fn both_ways() {
    let t = serve().await;
    let mut c = t.srv.client("c").await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    let path = t.path("export/f");
    let owner = c.owner("locker");
    let mine = lock(&mut c, &f.fh, op::lock_new(f.stateid, owner.clone(), W, 0, u64::MAX)).await.unwrap();
    let (program, locked) = Program::run(&path);
    assert!(!locked, "a client holds it");
    program.end();
    // Split and downgraded: what is free is free, what is shared is shared.
    c.ok(&[op::put(&f.fh), op::locku(mine, 10, 10)]).await;
    let seqid = |n| Stateid { seqid: n, ..mine };
    let more = lock(&mut c, &f.fh, op::lock_more(seqid(mine.seqid + 1), R, 0, 10)).await.unwrap();
    let local = open(&path);
    let range = |start, len| dhow_sys_range(start, len);
    assert!(ofd(&local, Some(true), range(10, 10)).is_ok());
    assert!(ofd(&local, Some(false), range(0, 10)).is_ok());
    assert!(ofd(&local, Some(true), range(0, 1)).is_err());
    assert!(ofd(&local, Some(false), range(20, 1)).is_err());
    // The program shares what we wanted for ourselves: no upgrade, and the lock stays as it was.
    match lock(&mut c, &f.fh, op::lock_more(more, W, 0, 10)).await.unwrap_err() {
        LockRes::Denied(LockDenied { offset, length, lock_type, owner }) => {
            assert_eq!((offset, length, lock_type), (0, 10, R));
            assert!(owner.owner.is_empty(), "a local program has no name in the protocol");
        }
        other => panic!("{other:?}"),
    }
    assert!(ofd(&local, Some(true), range(0, 1)).is_err(), "still shared");
    drop(local);
    let more = lock(&mut c, &f.fh, op::lock_more(more, W, 0, 10)).await.unwrap();
    c.ok(&[op::put(&f.fh), op::locku(more, 0, u64::MAX)]).await;

    let (program, locked) = Program::run(&path);
    assert!(locked, "all was given up");
    match test(&mut c, &f, R, 5, 5).await {
        LocktRes::Denied(LockDenied { offset, length, lock_type, .. }) => {
            assert_eq!((offset, length, lock_type), (0, u64::MAX, W));
        }
        other => panic!("{other:?}"),
    }
    let other = c.owner("other");
    let refused = lock(&mut c, &f.fh, op::lock_new(f.stateid, other.clone(), W, 5, 5)).await.unwrap_err();
    assert!(matches!(refused, LockRes::Denied(_)), "{refused:?}");
    program.end();
    lock(&mut c, &f.fh, op::lock_new(f.stateid, other, W, 5, 5)).await.unwrap();
    assert!(matches!(test(&mut c, &f, R, 0, 5).await, LocktRes::Ok));
}

fn dhow_sys_range(start: u64, len: u64) -> dhow_sys::lock::LockRange {
    dhow_sys::lock::LockRange { start, len }
}

fn ofd(file: &File, exclusive: Option<bool>, range: dhow_sys::lock::LockRange) -> dhow_sys::Result<()> {
    use dhow_sys::lock::LockKind;
    let kind = exclusive.map(|e| if e { LockKind::Exclusive } else { LockKind::Shared });
    dhow_sys::lock::ofd_lock(file, kind, range)
}

/// Two lock-owners of one client do not share a lock here either (9.1.4.3), and the locks of one go with its CLOSE.
#[tokio::test]
async fn owners_and_close() {
    let t = serve().await;
    let mut c = t.srv.client("c").await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    let (a, b) = (c.owner("a"), c.owner("b"));
    let sa = lock(&mut c, &f.fh, op::lock_new(f.stateid, a, R, 0, 10)).await.unwrap();
    lock(&mut c, &f.fh, op::lock_new(f.stateid, b, R, 0, 10)).await.unwrap();
    let local = open(&t.path("export/f"));
    c.ok(&[op::put(&f.fh), op::locku(sa, 0, 10)]).await;
    assert!(!takes(&local, FlockOperation::NonBlockingLockExclusive), "the other owner still shares it");
    // This server frees the locks of an open with it (18.2.3).
    c.close(&f).await;
    assert!(takes(&local, FlockOperation::NonBlockingLockExclusive));
}

/// What a client held is free for local programs when the client is gone (RFC 8881 18.50).
#[tokio::test]
async fn gone_with_the_client() {
    let t = serve().await;
    let mut c = t.srv.client("c").await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    let owner = c.owner("locker");
    lock(&mut c, &f.fh, op::lock_new(f.stateid, owner, W, 0, u64::MAX)).await.unwrap();
    let local = open(&t.path("export/f"));
    assert!(!takes(&local, FlockOperation::NonBlockingLockExclusive));
    // The same client after its own restart: what it had is given up.
    let mut options = dhow_testkit::wire::ClientOptions::named("c");
    options.verifier = dhow_proto::v4::Verifier([9; 8]);
    let again = Client::connect(t.srv.addr, options).await;
    for _ in 0..500 {
        if takes(&local, FlockOperation::NonBlockingLockExclusive) {
            drop(again);
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the lock of a client that is gone keeps local programs out");
}

/// The default: local programs do not hear of locks.
#[tokio::test]
async fn off_by_default() {
    let t = Tree::with(&std::env::temp_dir(), |_| {}, |_| {}).await;
    let mut c = t.srv.client("c").await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    let owner = c.owner("locker");
    lock(&mut c, &f.fh, op::lock_new(f.stateid, owner, W, 0, u64::MAX)).await.unwrap();
    assert!(takes(&open(&t.path("export/f")), FlockOperation::NonBlockingLockExclusive));
}

/// A restart (8.4.2.1): the kernel's locks end with the server; a program that takes one meanwhile has it, and the
/// client's reclaim is a conflict. When it lets go the client gets its lock back, and the program is kept out again.
#[tokio::test]
async fn a_restart_in_between() {
    use dhow_proto::v4::DelegationType;
    use dhow_proto::v4::ops::{LockArgs, Locker, OpenClaim, OpenHow, OpenToLockOwner, share};
    use dhow_server::store::MemoryStore;
    let (dir, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = std::sync::Arc::new(MemoryStore::default());
    let identity = crate::common::identity();
    let start = async || {
        let mut options = dhow_local::Options::new(dir.path());
        (options.state_dir, options.local_locks) = (Some(state.path().to_owned()), true);
        let backend = std::sync::Arc::new(dhow_local::Local::open(options).unwrap());
        let export = dhow_server::ExportConfig { path: "/".into(), backend, options: crate::common::open_to_all() };
        let mut config = crate::common::config(vec![export]);
        let fresh = crate::common::identity();
        config.identity = dhow_server::Identity { instance: fresh.instance, secret: fresh.secret, ..identity.clone() };
        config.store = store.clone();
        crate::common::start(config).await
    };
    let (server, addr) = start().await;
    let mut c = Client::connect(addr, dhow_testkit::wire::ClientOptions::named("c")).await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    let owner = c.owner("locker");
    lock(&mut c, &f.fh, op::lock_new(f.stateid, owner, W, 0, u64::MAX)).await.unwrap();
    let local = open(&dir.path().join("f"));
    assert!(!takes(&local, FlockOperation::NonBlockingLockExclusive));
    drop(c);
    server.shutdown().await;
    // The backend ends with its last task.
    let mut free = false;
    for _ in 0..500 {
        free = takes(&local, FlockOperation::NonBlockingLockExclusive);
        if free {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert!(free, "the server is gone, and its lock is not");

    let (_server, addr) = start().await;
    let options =
        dhow_testkit::wire::ClientOptions { reclaim_complete: false, ..dhow_testkit::wire::ClientOptions::named("c") };
    let mut c = Client::connect(addr, options).await;
    let opener = c.owner("owner");
    let claim = OpenClaim::Previous(DelegationType::NONE);
    let reclaim = op::open(opener, share::ACCESS_BOTH, share::DENY_NONE, OpenHow::NoCreate, claim);
    let stateid = match c.ok(&[op::put(&f.fh), reclaim]).await.pop() {
        Some(ResOp::Open(Ok(ok))) => ok.stateid,
        other => panic!("{other:?}"),
    };
    let lock_owner = c.owner("locker");
    let reclaim = || {
        let new =
            OpenToLockOwner { open_seqid: 0, open_stateid: stateid, lock_seqid: 0, lock_owner: lock_owner.clone() };
        let (offset, length) = (0, u64::MAX);
        dhow_proto::v4::ArgOp::Lock(LockArgs { lock_type: W, reclaim: true, offset, length, locker: Locker::New(new) })
    };
    match lock(&mut c, &f.fh, reclaim()).await {
        Err(LockRes::Err(status)) => assert_eq!(status, dhow_proto::v4::Status::RECLAIM_CONFLICT),
        other => panic!("{other:?}"),
    }
    assert!(takes(&local, FlockOperation::NonBlockingUnlock));
    lock(&mut c, &f.fh, reclaim()).await.unwrap();
    assert!(!takes(&local, FlockOperation::NonBlockingLockExclusive));
}
