//! Errors of the filesystem reach the client as the right status, once (cases B30, B50; RFC 8881 15.1, 18.3, 18.32).

use crate::common::{Srv, last};
use crate::tree::Tree;
use dhow_local::Local;
use dhow_proto::v4::ops::*;
use dhow_proto::v4::{ArgOp, Attrs, LockType, OpNum, ResOp, StableHow, Status, Verifier};
use dhow_testkit::MemFs;
use dhow_testkit::fault::{Action, Call};
use dhow_testkit::wire::{Client, Open, op};
use dhow_vfs::ErrorKind;
use std::process::Command;
use std::sync::Arc;

/// Every call that changes something or reads, under every error that a disk, a quota or a mount can have: the status
/// that says so where the operation has it, the nearest where it has not; and the next try succeeds.
#[tokio::test]
async fn each_error_once() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    c.write(&f, 0, b"data").await;
    let mode = || op::setattr(Attrs { mode: Some(0o600), ..Attrs::default() });
    let size = || op::setattr_with(f.stateid, Attrs { size: Some(9), ..Attrs::default() });
    let mkdir = |n: &str| op::create(CreateType::Dir, n, Attrs { mode: Some(0o755), ..Attrs::default() });
    let write = || op::write(f.stateid, 0, StableHow::UNSTABLE, b"x");
    let spare = c.create(&root, "spare").await;
    c.ok(&[op::put(&root), op::create(CreateType::Link("x".into()), "link", Attrs::default())]).await;
    let link = c.walk("link").await;
    let deep = c.mkdir(&root, "deep").await;
    let range = AllocateArgs { stateid: f.stateid, offset: 0, length: 4 };
    let two = |last| vec![op::put(&f.fh), ArgOp::SaveFh, op::put(&spare.fh), last];
    let xattr = SetxattrArgs { option: SetxattrOption::EITHER, name: "a".into(), value: "v".into() };
    let cut = CreateHow::Unchecked(Attrs { size: Some(0), ..Attrs::default() }.into());
    let truncating = op::open(c.owner("cutter"), 3, 0, OpenHow::Create(cut), OpenClaim::Null("f".into()));
    let cases: Vec<(Call, Vec<ArgOp>)> = vec![
        (Call::Write, vec![op::put(&f.fh), write()]),
        (Call::Read, vec![op::put(&f.fh), op::read(f.stateid, 0, 10)]),
        (Call::Commit, vec![op::put(&f.fh), op::commit(0, 0)]),
        (Call::SetAttr, vec![op::put(&f.fh), mode()]),
        (Call::SetAttr, vec![op::put(&f.fh), size()]),
        (Call::Make, vec![op::put(&root), mkdir("d")]),
        (Call::Create, vec![op::put(&root), op::open_create(c.owner("o2"), 3, 0, "g", 0o644)]),
        (Call::Link, vec![op::put(&f.fh), ArgOp::SaveFh, op::put(&root), op::link("l")]),
        (Call::Rename, vec![op::put(&root), ArgOp::SaveFh, op::put(&root), op::rename("l", "m")]),
        (Call::Remove, vec![op::put(&root), op::remove("m")]),
        (Call::ReadDir, vec![op::put(&root), op::readdir(0, Verifier::default(), 4096, &[])]),
        (Call::Open, vec![op::put(&root), op::open_name(c.owner("o3"), 1, 0, "f")]),
        (Call::GetAttr, vec![op::put(&f.fh), op::getattr(&[dhow_proto::v4::attr::SIZE])]),
        (Call::StatFs, vec![op::put(&f.fh), op::getattr(&[dhow_proto::v4::attr::SPACE_FREE])]),
        (Call::Access, vec![op::put(&f.fh), op::access(1)]),
        (Call::Lookup, vec![op::put(&root), op::lookup("f")]),
        (Call::ReadLink, vec![op::put(&link), ArgOp::Readlink]),
        (Call::Parent, vec![op::put(&deep), ArgOp::Lookupp]),
        (Call::Allocate, vec![op::put(&f.fh), ArgOp::Allocate(range.clone())]),
        (Call::Deallocate, vec![op::put(&f.fh), ArgOp::Deallocate(range)]),
        (Call::Seek, vec![op::put(&f.fh), op::seek(f.stateid, 0, DataContent::HOLE)]),
        (Call::CloneRange, two(op::clone(f.stateid, spare.stateid, 0, 0, 0))),
        (Call::CopyRange, two(op::copy(f.stateid, spare.stateid, (0, 0), 0, true))),
        (Call::SetXattr, vec![op::put(&f.fh), ArgOp::Setxattr(xattr)]),
        (Call::GetXattr, vec![op::put(&f.fh), ArgOp::Getxattr(GetxattrArgs { name: "a".into() })]),
        (Call::ListXattr, vec![op::put(&f.fh), ArgOp::Listxattrs(ListxattrsArgs { cookie: 0, maxcount: 1000 })]),
        (Call::RemoveXattr, vec![op::put(&f.fh), ArgOp::Removexattr(RemovexattrArgs { name: "a".into() })]),
        // An OPEN that truncates a file that is there, and one more of an owner that has it open.
        (Call::SetAttr, vec![op::put(&root), truncating]),
        (Call::Reopen, vec![op::put(&root), op::open_name(c.owner("owner"), 1, 0, "f")]),
    ];
    for (call, ops) in cases {
        let num = ops.last().unwrap().op();
        for (kind, due) in [
            (ErrorKind::NoSpace, Status::NOSPC),
            (ErrorKind::Quota, Status::DQUOT),
            (ErrorKind::Io, Status::IO),
            (ErrorKind::ReadOnly, Status::ROFS),
            (ErrorKind::Stale, Status::STALE),
        ] {
            srv.fault.once(call, Action::Fail(kind));
            let res = c.run(&ops).await;
            srv.fault.clear(call);
            let (at, status) = last(&res);
            assert_eq!(at, num, "{call:?} {kind:?}: {res:?}");
            if num == OpNum::OPEN && kind == ErrorKind::Stale {
                // A name whose file was removed meanwhile is looked up again: what it leads to now is opened.
                assert_eq!(status, Status::OK, "{num:?} under {kind:?}");
                continue;
            }
            if dhow_proto::v4::optable::allows(num, 2, due) {
                assert_eq!(status, due, "{num:?} under {kind:?}");
            } else {
                assert!(!status.is_ok() && status != Status::DELAY, "{num:?} under {kind:?}: {status:?}");
            }
        }
        c.ok(&ops).await;
    }
}

/// An error of LOCK or LOCKU, which have no word for a disk's, is told all the same, and the state is what it was; CLOSE
/// has done its work whatever the filesystem says of it.
#[tokio::test]
async fn errors_of_locks_leave_the_state_alone() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    let new = op::lock_new(f.stateid, c.owner("l"), LockType::WRITE, 0, 10);
    let tester = op::lockt(c.owner("m"), LockType::WRITE, 0, 10);
    for kind in [ErrorKind::NoSpace, ErrorKind::Io, ErrorKind::Stale, ErrorKind::ReadOnly] {
        srv.fault.once(Call::Lock, Action::Fail(kind));
        let refused = c.status(&[op::put(&f.fh), new.clone()]).await;
        assert!(!matches!(refused, Status::OK | Status::DENIED | Status::DELAY), "{kind:?}: {refused:?}");
        c.ok(&[op::put(&f.fh), tester.clone()]).await;
    }
    let held = match c.ok(&[op::put(&f.fh), new]).await.pop() {
        Some(ResOp::Lock(LockRes::Ok(held))) => held,
        other => panic!("{other:?}"),
    };
    srv.fault.once(Call::Unlock, Action::Fail(ErrorKind::Io));
    let refused = c.status(&[op::put(&f.fh), op::locku(held, 0, 10)]).await;
    assert!(!matches!(refused, Status::OK | Status::DELAY), "{refused:?}");
    assert_eq!(c.status(&[op::put(&f.fh), tester.clone()]).await, Status::DENIED, "still held");
    c.ok(&[op::put(&f.fh), op::locku(held, 0, 10)]).await;
    srv.fault.once(Call::TestLock, Action::Fail(ErrorKind::Io));
    let refused = c.status(&[op::put(&f.fh), tester.clone()]).await;
    assert!(!matches!(refused, Status::OK | Status::DENIED), "{refused:?}");
    c.ok(&[op::put(&f.fh), tester]).await;
    c.close(&f).await;
    assert_eq!(srv.fs.open_count(), 0);
}

/// Cases B30 and K25, on every path that ends in a sync: WRITE that asks for stability, COMMIT, COPY and CLONE: the error
/// is told, once, and the verifier is another from then on.
#[tokio::test]
async fn every_failed_sync_changes_the_verifier() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let (f, g) = (c.create(&root, "f").await, c.create(&root, "g").await);
    c.write(&f, 0, &[7; 8192]).await;
    let mut before = commit(&mut c, &f).await.unwrap();
    let write = |how| vec![op::put(&f.fh), op::write(f.stateid, 0, how, b"x")];
    let two = |last| vec![op::put(&f.fh), ArgOp::SaveFh, op::put(&g.fh), last];
    for ops in [
        write(StableHow::DATA_SYNC),
        write(StableHow::FILE_SYNC),
        vec![op::put(&f.fh), op::commit(0, 0)],
        two(op::clone(f.stateid, g.stateid, 0, 0, 0)),
        two(op::copy(f.stateid, g.stateid, (0, 0), 0, true)),
    ] {
        let num = ops.last().unwrap().op();
        srv.fs.fail_syncs(1);
        let res = c.run(&ops).await;
        match res.results.last() {
            // A copy is there, but may not be said to be stable.
            Some(ResOp::Copy(CopyRes::Ok(ok))) => assert_eq!(ok.response.committed, StableHow::UNSTABLE),
            last => assert_eq!(last.map(ResOp::status), Some(Status::IO), "{num:?}"),
        }
        let after = commit(&mut c, &f).await.unwrap();
        assert_ne!(after, before, "{num:?}");
        before = after;
        c.ok(&ops).await;
        assert_eq!(commit(&mut c, &f).await.unwrap(), before, "{num:?}: told once");
    }
    srv.fs.crash();
    assert_eq!(
        srv.fs.content_of("g").unwrap()[..],
        srv.fs.content_of("f").unwrap()[..],
        "what was said to be stable is"
    );
}

async fn commit(c: &mut Client, f: &Open) -> Result<Verifier, Status> {
    match c.run(&[op::put(&f.fh), op::commit(0, 0)]).await.results.pop() {
        Some(ResOp::Commit(res)) => res.map(|ok| ok.verifier),
        other => panic!("{other:?}"),
    }
}

async fn write(c: &mut Client, f: &Open, at: u64, data: &[u8], how: StableHow) -> Result<(u32, Verifier), Status> {
    match c.run(&[op::put(&f.fh), op::write(f.stateid, at, how, data)]).await.results.pop() {
        Some(ResOp::Write(res)) => res.map(|ok| (ok.count, ok.verifier)),
        other => panic!("{other:?}"),
    }
}

/// Case B30: a COMMIT whose fsync failed says IO, and the verifier is another from then on, in WRITE and COMMIT alike.
#[tokio::test]
async fn a_failed_commit_changes_the_verifier() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    let (_, before) = write(&mut c, &f, 0, b"lost", StableHow::UNSTABLE).await.unwrap();
    assert_eq!(commit(&mut c, &f).await, Ok(before));
    srv.fs.fail_syncs(1);
    write(&mut c, &f, 0, b"lost", StableHow::UNSTABLE).await.unwrap();
    assert_eq!(commit(&mut c, &f).await, Err(Status::IO));
    let (_, after) = write(&mut c, &f, 0, b"again", StableHow::UNSTABLE).await.unwrap();
    assert_ne!(after, before);
    assert_eq!(commit(&mut c, &f).await, Ok(after));
}

/// A filesystem of a few megabytes that runs full (case B50): every byte that was answered for is there, the rest is
/// NOSPC, once; with room made, writing goes on.
#[tokio::test]
async fn a_real_filesystem_runs_full() {
    let home = tempfile::Builder::new().prefix("dhow-full-").tempdir().unwrap();
    let (image, at) = (home.path().join("image"), home.path().join("mnt"));
    std::fs::File::create(&image).unwrap().set_len(8 << 20).unwrap();
    std::fs::create_dir(&at).unwrap();
    let run = |command: &mut Command| command.output().is_ok_and(|o| o.status.success());
    if !run(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image))
        || !run(Command::new("mount").args(["-o", "loop"]).args([&image, &at]))
    {
        println!("skipped: no ext4 can be made or mounted here");
        return;
    }
    struct Unmount(std::path::PathBuf);
    impl Drop for Unmount {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("-l").arg(&self.0).output();
        }
    }
    let _mounted = Unmount(at.clone());
    std::os::unix::fs::chown(&at, Some(1000), Some(1000)).unwrap();
    let local = Arc::new(Local::open(dhow_local::Options::new(&at)).unwrap());
    let srv = Srv::over(local, MemFs::new(), |_| {}).await;
    let mut c = srv.client_as("c", 1000, 1000, &[]).await;
    let root = c.walk("").await;
    let (f, spare) = (c.create(&root, "f").await, c.create(&root, "spare").await);
    write(&mut c, &spare, 0, &vec![1; 512 << 10], StableHow::FILE_SYNC).await.unwrap();
    let chunk = vec![7; 64 << 10];
    let mut size = 0;
    let full = loop {
        match write(&mut c, &f, size, &chunk, StableHow::FILE_SYNC).await {
            Ok((count, _)) => size += u64::from(count),
            Err(status) => break status,
        }
        assert!(size < 16 << 20, "more than there is room for");
    };
    assert_eq!(full, Status::NOSPC);
    assert_eq!(commit(&mut c, &f).await.err(), None, "it was told once");
    let (data, _) = c.read(&f, 0, 1 << 16).await;
    assert!(data.iter().all(|b| *b == 7) && !data.is_empty());
    assert_eq!(std::fs::metadata(at.join("f")).unwrap().len(), size);
    c.ok(&[op::put(&root), op::remove("spare")]).await;
    c.close(&spare).await;
    for _ in 0..200 {
        // The space comes back when the last descriptor goes.
        if write(&mut c, &f, size, &chunk, StableHow::FILE_SYNC).await.is_ok() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("there is room, and no write succeeds");
}

/// A directory that somebody removes on the server is STALE for who holds its handle, and a read-only mount is ROFS.
#[tokio::test]
async fn gone_and_read_only() {
    let t = Tree::with(&std::env::temp_dir(), |_| {}, |_| {}).await;
    let mut c = t.srv.client("c").await;
    let root = c.walk("").await;
    let d = c.mkdir(&root, "d").await;
    std::fs::remove_dir(t.path("export/d")).unwrap();
    let size = op::getattr(&[dhow_proto::v4::attr::SIZE]);
    assert_eq!(c.status(&[op::put(&d), size]).await, Status::STALE);
    let open = op::open_create(c.owner("o"), 3, 0, "f", 0o644);
    assert_eq!(c.status(&[op::put(&d), open]).await, Status::STALE);
}
