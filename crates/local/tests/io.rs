//! Data: reading, writing, committing, holes, copies, exclusive creates.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use std::os::unix::fs::MetadataExt;
use std::time::SystemTime;

use bytes::Bytes;
use common::*;
use dhow_local::Reflink;
use dhow_vfs::*;

#[tokio::test]
async fn reads_agree_with_the_size_case_b20() {
    for tree in Tree::each().await {
        let f = tree.file(&root(), &tree.root, "f", 0o644).await;
        tree.write(&root(), &f, 0, &[b'x'; 100]).await.unwrap();
        let read = async |offset, len| {
            let got = tree.read(&root(), &f, offset, len).await.unwrap();
            (got.data.len(), got.eof)
        };
        assert_eq!(read(50, 4096).await, (50, true));
        assert_eq!(read(0, 100).await, (100, true));
        assert_eq!(read(0, 99).await, (99, false));
        assert_eq!(read(100, 1).await, (0, true));
        assert_eq!(read(99, 1).await, (1, true));
        assert_eq!(read(1 << 63, 4096).await, (0, true));
        assert_eq!(read(u64::MAX, u32::MAX).await, (0, true));
        assert_eq!(read(10, 0).await, (0, false));
        assert_eq!(read(100, 0).await, (0, true));
        // A count that no file has costs no memory.
        assert_eq!(read(0, u32::MAX).await, (100, true));
        let d = tree.mkdir(&root(), &tree.root, "d", 0o755).await;
        assert_eq!(fails(tree.read(&root(), &d, 0, 1).await), ErrorKind::IsDir);
        assert_eq!(fails(tree.write(&root(), &d, 0, b"x").await), ErrorKind::IsDir);
    }
}

/// What a future comes to when it is asked once; given up if that is nothing.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut cx) {
        std::task::Poll::Ready(done) => Some(done),
        std::task::Poll::Pending => None,
    }
}

/// Where all data is in memory a large write is made on the thread that asks. Of many to one file only one is, so that a
/// file which is busy for long takes no thread of the runtime from others (case B44).
#[test]
fn large_writes_to_memory_are_made_at_once() {
    let Some(shm) = bases().into_iter().find(|base| base.starts_with("/dev/shm")) else { return };
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.max_blocking_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let (tree, disk) = (Tree::at(&shm, |_| {}).await, Tree::disk().await);
        let f = tree.file(&root(), &tree.root, "f", 0o644).await;
        let g = tree.file(&root(), &tree.root, "g", 0o644).await;
        let d = disk.file(&root(), &disk.root, "d", 0o644).await;
        let write = |tree: &Tree, file: &Handle, size: usize| {
            let (local, file) = (tree.local.clone(), file.clone());
            async move {
                let io = IoRef { handle: &file, open: None };
                let done = local.write(&root(), io, 0, Bytes::from(vec![7; size]), Stability::Unstable).await;
                done.unwrap().count as usize
            }
        };
        // The only thread of the pool is taken from here on.
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let taken = tokio::task::spawn_blocking(move || wait.recv());
        const MIB: usize = 1 << 20;
        assert_eq!(at_once(write(&tree, &f, MIB)), Some(MIB));
        // Some filesystems on disks can be told not to wait; ext4 cannot.
        if disk.local.report().fs_magic == dhow_sys::open::EXT4_MAGIC {
            assert_eq!(at_once(write(&disk, &d, MIB)), None, "a disk may have to be waited for");
        }
        // So long that it goes to the pool, where it is under way until the end.
        let long = tokio::spawn(write(&tree, &f, 5 * MIB));
        tokio::task::yield_now().await;
        assert_eq!(at_once(write(&tree, &f, MIB)), None, "the file is busy");
        assert_eq!(at_once(write(&tree, &g, MIB)), Some(MIB), "another is not");
        release.send(()).unwrap();
        taken.await.unwrap().unwrap();
        assert_eq!(long.await.unwrap(), 5 * MIB);
        // What waits in line may be given up; then the file is free again.
        let free = async {
            while at_once(write(&tree, &f, MIB)).is_none() {
                tokio::task::yield_now().await
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(60), free).await.expect("nothing is counted for ever");
    });
}

#[tokio::test]
async fn cold_data_is_read_from_the_disk() {
    let tree = Tree::disk().await;
    let data: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    std::fs::write(tree.path("f"), &data).unwrap();
    let file = std::fs::File::open(tree.path("f")).unwrap();
    file.sync_all().unwrap();
    let f = tree.lookup(&root(), &tree.root, "f").await.unwrap().handle;
    tree.read(&root(), &f, 0, 1).await.unwrap();
    // Drop it from the page cache.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    for (offset, len) in [(0, 3_000_000), (1_000_000, 1 << 20), (2_999_000, 5000)] {
        let got = tree.read(&root(), &f, offset, len).await.unwrap();
        let end = data.len().min(offset as usize + len as usize);
        assert!(got.data == data[offset as usize..end]);
        assert_eq!(got.eof, end == data.len());
    }
    // All of it is in memory now, so that it can be had at once.
    let io = IoRef { handle: &f, open: None };
    let now = tree.local.try_read(&root(), io, 0, 3_000_000).expect("in memory").unwrap();
    assert!(now.data == data && now.eof);
}

#[tokio::test]
async fn read_then_write_then_truncate_case_b52() {
    for tree in Tree::each().await {
        std::fs::write(tree.path("f"), b"0123456789").unwrap();
        let f = tree.lookup(&root(), &tree.root, "f").await.unwrap().handle;
        assert_eq!(tree.read(&root(), &f, 0, 4).await.unwrap().data, "0123");
        tree.write(&root(), &f, 0, b"abc").await.unwrap();
        assert_eq!(std::fs::read(tree.path("f")).unwrap(), b"abc3456789");
        // Truncate by a handle that nobody has opened, and write.
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        let done = tree.local.setattr(&root(), &f, None, &set).await.unwrap();
        assert_eq!((done.attr.size, done.applied), (0, set));
        tree.write(&root(), &f, 0, &[b'z'; 10]).await.unwrap();
        let io = IoRef { handle: &f, open: None };
        let done = tree.local.commit(&root(), io, 0, 0).await.unwrap();
        assert_eq!(done.verifier, tree.local.write_verifier());
        assert_eq!(tree.read(&root(), &f, 0, 100).await.unwrap().data, "zzzzzzzzzz");
        let set = SetAttr { size: Some(1 << 62), ..SetAttr::default() };
        let huge = tree.local.setattr(&root(), &f, None, &set).await;
        // ext4 has a smaller limit, tmpfs has none; neither may lose the file.
        if let Err(e) = huge {
            assert_eq!(e.kind(), ErrorKind::FileTooBig);
        }
        assert_eq!(fails(tree.write(&root(), &f, u64::MAX - 1, b"abc").await), ErrorKind::FileTooBig);
        assert_eq!(fails(tree.write(&root(), &f, i64::MAX as u64, b"abc").await), ErrorKind::FileTooBig);
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        assert_eq!(fails(tree.local.setattr(&root(), &tree.root, None, &set).await), ErrorKind::IsDir);
    }
}

#[tokio::test]
async fn stability_is_as_asked_at_least() {
    for tree in Tree::each().await {
        let f = tree.file(&root(), &tree.root, "f", 0o644).await;
        let io = IoRef { handle: &f, open: None };
        let verifier = tree.local.write_verifier();
        for want in [Stability::Unstable, Stability::DataSync, Stability::FileSync] {
            for len in [0usize, 10, 200_000] {
                let data = Bytes::from(vec![7; len]);
                let done = tree.local.write(&root(), io, 0, data, want).await.unwrap();
                assert!(done.stability >= want);
                assert_eq!((done.count as usize, done.verifier), (len, verifier));
            }
        }
        assert_eq!(tree.local.commit(&root(), io, 0, 0).await.unwrap().verifier, verifier);
        let d = tree.mkdir(&root(), &tree.root, "d", 0o755).await;
        let dir = IoRef { handle: &d, open: None };
        assert_eq!(fails(tree.local.commit(&root(), dir, 0, 0).await), ErrorKind::IsDir);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_writers_and_commits_of_one_file() {
    let tree = std::sync::Arc::new(Tree::disk().await);
    let f = tree.file(&root(), &tree.root, "f", 0o644).await;
    let mut tasks = Vec::new();
    for writer in 0..16u64 {
        let (tree, f) = (tree.clone(), f.clone());
        tasks.push(tokio::spawn(async move {
            let io = IoRef { handle: &f, open: None };
            for n in 0..16u64 {
                let data = Bytes::from(vec![writer as u8; 70_000]);
                let want = if n % 4 == 3 { Stability::FileSync } else { Stability::Unstable };
                let done = tree.local.write(&root(), io, (writer * 16 + n) * 70_000, data, want).await.unwrap();
                assert_eq!(done.count, 70_000);
            }
            tree.local.commit(&root(), io, 0, 0).await.unwrap();
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let data = std::fs::read(tree.path("f")).unwrap();
    assert_eq!(data.len(), 256 * 70_000);
    for (n, part) in data.chunks(70_000).enumerate() {
        assert!(part.iter().all(|b| usize::from(*b) == n / 16));
    }
}

#[tokio::test]
async fn space_of_the_filesystem() {
    for tree in Tree::each().await {
        let space = tree.local.statfs(&root(), &tree.root).await.unwrap();
        assert!(space.total >= space.free && space.free >= space.avail && space.files_total >= space.files_free);
        assert!(space.total > 0);
    }
}

#[tokio::test]
async fn a_program_just_written_can_be_run_here() {
    let tree = Tree::disk().await;
    let how = CreateHow { set: SetAttr { mode: Some(0o755), ..SetAttr::default() }, verifier: None };
    let made = tree.local.create(&root(), &tree.root, &name("prog"), &how).await.unwrap();
    let io = IoRef { handle: &made.node.handle, open: Some(&made.open) };
    let program = Bytes::from(std::fs::read("/bin/true").unwrap());
    tree.local.write(&root(), io, 0, program, Stability::Unstable).await.unwrap();
    tree.local.commit(&root(), io, 0, 0).await.unwrap();
    tree.local.close(made.open).await;
    runs_soon(&tree.path("prog")).await;
}

/// Runs a program. It may be busy for a moment: another test's child inherits every descriptor until it has become
/// another program itself.
async fn runs_soon(program: &std::path::Path) {
    for _ in 0..300 {
        match std::process::Command::new(program).status() {
            Ok(status) => return assert!(status.success()),
            Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ExecutableFileBusy),
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("busy for half a minute");
}

#[tokio::test]
async fn a_program_written_without_an_open_can_be_run_soon() {
    // As NFSv3 writes: nobody says when it is done, so the descriptor goes when it has not been used for a while.
    let tree = Tree::disk().await;
    let f = tree.file(&root(), &tree.root, "prog", 0o755).await;
    tree.write(&root(), &f, 0, &std::fs::read("/bin/true").unwrap()).await.unwrap();
    let io = IoRef { handle: &f, open: None };
    tree.local.commit(&root(), io, 0, 0).await.unwrap();
    runs_soon(&tree.path("prog")).await;
}

#[tokio::test]
async fn exclusive_create_case_b11() {
    for tree in Tree::each().await {
        let set = SetAttr { mode: Some(0o640), ..SetAttr::default() };
        let how = |verifier: &[u8; 8]| CreateHow { set: set.clone(), verifier: Some(*verifier) };
        let text = name("x");
        let first = tree.local.create(&user(1000), &tree.root, &text, &how(b"12345678")).await.unwrap();
        assert!(first.fresh);
        let again = tree.local.create(&user(1000), &tree.root, &text, &how(b"12345678")).await.unwrap();
        assert!(!again.fresh);
        assert_eq!(again.node.handle, first.node.handle);
        assert_eq!(again.applied, set);
        let io = IoRef { handle: &again.node.handle, open: Some(&again.open) };
        tree.local.write(&user(1000), io, 0, Bytes::from_static(b"x"), Stability::Unstable).await.unwrap();
        let other = tree.local.create(&user(1000), &tree.root, &text, &how(b"12345679")).await;
        assert_eq!(fails(other), ErrorKind::Exists);
        let plain = tree.local.create(&user(1000), &tree.root, &text, &CreateHow::default()).await;
        assert_eq!(fails(plain), ErrorKind::Exists);
        // The times are real, and stay so without a SETATTR.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64;
        let attr = tree.local.getattr(&root(), &first.node.handle).await.unwrap();
        for time in [attr.atime, attr.mtime, attr.ctime] {
            assert!((now - time.secs).abs() < 60, "{time:?}");
        }
        // The retry may come after a restart, of a client whose first reply was lost.
        let handle = first.node.handle.clone();
        tree.local.close(first.open).await;
        tree.local.close(again.open).await;
        let tree = tree.restart(|_| {}).await;
        let third = tree.local.create(&user(1000), &tree.root, &text, &how(b"12345678")).await.unwrap();
        assert!(!third.fresh);
        assert_eq!(third.node.handle, handle);
        if tree.switches() {
            let stranger = tree.local.create(&user(1001), &tree.root, &text, &how(b"12345678")).await;
            assert_eq!(fails(stranger), ErrorKind::Exists);
        }
        // Another file of that name is another file.
        tree.local.remove(&root(), &tree.root, &text).await.unwrap();
        std::fs::write(tree.path("x"), b"").unwrap();
        let other = tree.local.create(&root(), &tree.root, &text, &how(b"12345678")).await;
        assert_eq!(fails(other), ErrorKind::Exists);
    }
}

#[tokio::test]
async fn create_applies_attributes() {
    for tree in Tree::each().await {
        let time = Time { secs: -1, nanos: 5 };
        let set = SetAttr {
            mode: Some(0o600),
            size: Some(1000),
            mtime: Some(SetTime::To(time)),
            atime: Some(SetTime::Now),
            ..SetAttr::default()
        };
        let how = CreateHow { set: set.clone(), verifier: None };
        let made = tree.local.create(&user(1000), &tree.root, &name("f"), &how).await.unwrap();
        assert_eq!((made.node.attr.size, made.node.attr.mtime, made.node.attr.mode), (1000, time, 0o600));
        assert_eq!(made.applied, set);
        assert!(made.fresh);
    }
}

const MIB: u64 = 1 << 20;

#[tokio::test]
async fn holes() {
    for tree in Tree::each().await {
        let f = tree.file(&root(), &tree.root, "f", 0o644).await;
        let io = IoRef { handle: &f, open: None };
        tree.write(&root(), &f, MIB, &vec![1; MIB as usize]).await.unwrap();
        let set = SetAttr { size: Some(4 * MIB), ..SetAttr::default() };
        tree.local.setattr(&root(), &f, None, &set).await.unwrap();
        let seek = async |offset, to| tree.local.seek(&root(), io, offset, to).await.map_err(|e| e.kind());
        assert_eq!(seek(0, SeekTo::Data).await, Ok(Seeked { eof: false, offset: MIB }));
        assert_eq!(seek(MIB + 5, SeekTo::Data).await, Ok(Seeked { eof: false, offset: MIB + 5 }));
        assert_eq!(seek(MIB, SeekTo::Hole).await, Ok(Seeked { eof: false, offset: 2 * MIB }));
        assert_eq!(seek(2 * MIB, SeekTo::Data).await, Ok(Seeked { eof: true, offset: 4 * MIB }));
        assert_eq!(seek(4 * MIB, SeekTo::Data).await, Err(ErrorKind::Range));
        assert_eq!(seek(u64::MAX, SeekTo::Hole).await, Err(ErrorKind::Range));
        tree.local.deallocate(&root(), io, MIB, MIB).await.unwrap();
        assert_eq!(seek(0, SeekTo::Data).await, Ok(Seeked { eof: true, offset: 4 * MIB }));
        assert_eq!(tree.local.getattr(&root(), &f).await.unwrap().size, 4 * MIB);
        tree.local.allocate(&root(), io, 3 * MIB, 2 * MIB).await.unwrap();
        let attr = tree.local.getattr(&root(), &f).await.unwrap();
        assert_eq!(attr.size, 5 * MIB);
        assert!(attr.used >= 2 * MIB);
        assert_eq!(fails(tree.local.allocate(&root(), io, u64::MAX, 2).await), ErrorKind::Invalid);
        assert_eq!(fails(tree.local.allocate(&root(), io, 1 << 63, 2).await), ErrorKind::FileTooBig);
        if tree.switches() {
            assert_eq!(fails(tree.local.allocate(&user(1000), io, 0, 10).await), ErrorKind::Access);
            assert_eq!(fails(tree.local.deallocate(&user(1000), io, 0, 10).await), ErrorKind::Access);
        }
    }
}

/// A file of data, a hole, data that ends in the middle of a block, and a hole at the end.
fn pattern() -> Vec<u8> {
    let mut data = vec![0u8; (3 * MIB) as usize];
    data[..MIB as usize].fill(b'a');
    data[(2 * MIB) as usize..(2 * MIB) as usize + 12_345].fill(b'b');
    data
}

fn write_pattern(path: &std::path::Path) {
    use std::os::unix::fs::FileExt;
    let data = pattern();
    let file = std::fs::File::create(path).unwrap();
    file.write_all_at(&data[..MIB as usize], 0).unwrap();
    file.write_all_at(&data[(2 * MIB) as usize..(2 * MIB) as usize + 12_345], 2 * MIB).unwrap();
    file.set_len(3 * MIB).unwrap();
}

/// Copies as the server does: until it is all done.
#[allow(clippy::too_many_arguments)]
async fn copy(from: &Tree, src: &Handle, at: u64, to: &Tree, dst: &Handle, to_at: u64, len: u64, chunk: u64) -> u64 {
    let (backend, cx) = (from.shared(), root());
    let mut done = 0;
    while done < len {
        let io = IoRef { handle: src, open: None };
        let source = CopySource { backend: &backend, cx: &cx, io, offset: at + done };
        let target = IoRef { handle: dst, open: None };
        let n = to.local.copy_range(&root(), source, target, to_at + done, len - done, chunk).await.unwrap();
        if n == 0 {
            break;
        }
        done += n;
    }
    done
}

#[tokio::test]
async fn copies_keep_holes_and_clear_old_data_case_b35() {
    for base in bases() {
        for reflink in [Reflink::Auto, Reflink::Never] {
            let tree = Tree::at(&base, |o| o.reflink = reflink).await;
            write_pattern(&tree.path("src"));
            let src = tree.lookup(&root(), &tree.root, "src").await.unwrap().handle;
            for (n, chunk) in [1, 5000, 1 << 16, u64::MAX].into_iter().enumerate() {
                // A chunk of one byte would take three million calls: the first part of it will do.
                let len = if chunk == 1 { 300 } else { 3 * MIB };
                std::fs::write(tree.path(&format!("dst{n}")), vec![b'o'; (3 * MIB) as usize + 77]).unwrap();
                let dst = tree.lookup(&root(), &tree.root, &format!("dst{n}")).await.unwrap().handle;
                assert_eq!(copy(&tree, &src, 0, &tree, &dst, 0, len, chunk).await, len);
                let got = std::fs::read(tree.path(&format!("dst{n}"))).unwrap();
                assert_eq!(got.len(), (3 * MIB) as usize + 77);
                assert!(got[..len as usize] == pattern()[..len as usize], "chunk {chunk}");
                assert!(got[len as usize..].iter().all(|b| *b == b'o'));
                if len == 3 * MIB {
                    let used = std::fs::metadata(tree.path(&format!("dst{n}"))).unwrap().blocks() * 512;
                    assert!(used < 2 * MIB, "holes take {used} bytes");
                }
            }
            // Into an empty file: its size comes out right though it ends in a hole.
            let new = tree.file(&root(), &tree.root, "new", 0o644).await;
            assert_eq!(copy(&tree, &src, 0, &tree, &new, 0, u64::MAX, 1 << 20).await, 3 * MIB);
            assert!(std::fs::read(tree.path("new")).unwrap() == pattern());
            let used = std::fs::metadata(tree.path("new")).unwrap().blocks() * 512;
            assert!(used < 2 * MIB, "holes take {used} bytes");
            // Odd offsets, and a part past the end of the source.
            let odd = tree.file(&root(), &tree.root, "odd", 0o644).await;
            assert_eq!(copy(&tree, &src, 2 * MIB + 345, &tree, &odd, 7, u64::MAX - 4 * MIB, 999).await, MIB - 345);
            let got = std::fs::read(tree.path("odd")).unwrap();
            assert_eq!(got.len() as u64, MIB - 345 + 7);
            assert!(got[..7].iter().all(|b| *b == 0) && got[7..] == pattern()[(2 * MIB) as usize + 345..]);
            assert_eq!(copy(&tree, &src, 3 * MIB, &tree, &odd, 0, 10, 10).await, 0);
            assert_eq!(copy(&tree, &src, u64::MAX, &tree, &odd, 0, 10, 10).await, 0);
        }
    }
}

/// Large copies, which take another way within memory; several at once, and into themselves.
#[tokio::test]
async fn large_copies_are_right_however_many_run() {
    use std::os::unix::fs::FileExt;
    for tree in Tree::each().await {
        let len = 40 * MIB + 4321;
        // No power of two divides the length of what is repeated.
        let mut data = (0..60_007u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>().repeat(200);
        data.truncate(len as usize);
        let file = std::fs::File::create(tree.path("src")).unwrap();
        file.write_all_at(&data, 0).unwrap();
        // With a hole in the second half, which is to stay one.
        file.set_len(60 * MIB).unwrap();
        let src = tree.lookup(&root(), &tree.root, "src").await.unwrap().handle;
        let one = async |n: usize| {
            let dst = tree.file(&root(), &tree.root, &format!("dst{n}"), 0o644).await;
            let chunk = [1, 8, 64][n] * MIB;
            assert_eq!(copy(&tree, &src, n as u64, &tree, &dst, 0, u64::MAX, chunk).await, 60 * MIB - n as u64);
        };
        one(0).await;
        tokio::join!(one(1), one(2));
        for n in 0..3 {
            let path = tree.path(&format!("dst{n}"));
            let got = std::fs::read(&path).unwrap();
            assert!(got[..data.len() - n] == data[n..] && got[data.len() - n..].iter().all(|b| *b == 0), "{n}");
            assert!(std::fs::metadata(&path).unwrap().blocks() * 512 < 42 * MIB, "the hole is kept");
        }
        // The end of a file to the start of it, as far as the two do not meet.
        assert_eq!(copy(&tree, &src, 20 * MIB, &tree, &src, 0, 20 * MIB, 8 * MIB).await, 20 * MIB);
        let got = std::fs::read(tree.path("src")).unwrap();
        let half = (20 * MIB) as usize;
        assert!(got[..half] == data[half..2 * half] && got[half..data.len()] == data[half..]);
    }
}

#[tokio::test]
async fn copies_between_two_trees() {
    let all = Tree::each().await;
    for from in &all {
        write_pattern(&from.path("src"));
        let src = from.lookup(&root(), &from.root, "src").await.unwrap().handle;
        for to in &all {
            let text = format!("from-{}", from.dir.path().file_name().unwrap().to_str().unwrap());
            let dst = to.file(&root(), &to.root, &text, 0o644).await;
            assert_eq!(copy(from, &src, 0, to, &dst, 0, 3 * MIB, 1 << 20).await, 3 * MIB);
            assert!(std::fs::read(to.path(&text)).unwrap() == pattern());
        }
    }
}

#[tokio::test]
async fn copies_need_both_rights() {
    let tree = Tree::disk().await;
    if !tree.switches() {
        return;
    }
    let src = tree.file(&user(1000), &tree.root, "src", 0o600).await;
    tree.write(&user(1000), &src, 0, b"data").await.unwrap();
    let dst = tree.file(&user(1001), &tree.root, "dst", 0o600).await;
    let backend = tree.shared();
    for who in [user(1000), user(1001)] {
        let source = CopySource { backend: &backend, cx: &who, io: IoRef { handle: &src, open: None }, offset: 0 };
        let target = IoRef { handle: &dst, open: None };
        assert_eq!(fails(tree.local.copy_range(&who, source.clone(), target, 0, 4, 4).await), ErrorKind::Access);
        assert_eq!(fails(tree.local.clone_range(&who, source, target, 0, 4).await), ErrorKind::Access);
    }
    // Each end in the name of its own user, as when two exports squash one caller differently (case B38).
    let io = IoRef { handle: &src, open: None };
    let target = IoRef { handle: &dst, open: None };
    let (reader, writer) = (user(1000), user(1001));
    let source = CopySource { backend: &backend, cx: &reader, io, offset: 0 };
    assert_eq!(tree.local.copy_range(&writer, source, target, 0, 4, 4).await.unwrap(), 4);
    let source = CopySource { backend: &backend, cx: &writer, io, offset: 0 };
    assert_eq!(fails(tree.local.copy_range(&root(), source, target, 0, 4, 4).await), ErrorKind::Access);
}

#[tokio::test]
async fn clones_work_or_say_why_not() {
    for tree in Tree::each().await {
        write_pattern(&tree.path("src"));
        let src = tree.lookup(&root(), &tree.root, "src").await.unwrap().handle;
        let dst = tree.file(&root(), &tree.root, "dst", 0o644).await;
        let backend = tree.shared();
        let clone = async |offset, to, len| {
            let io = IoRef { handle: &src, open: None };
            let source = CopySource { backend: &backend, cx: &root(), io, offset };
            tree.local.clone_range(&root(), source, IoRef { handle: &dst, open: None }, to, len).await
        };
        // Past the end of the source, whatever the filesystem can do (case B35).
        assert_eq!(fails(clone(0, 0, 4 * MIB).await), ErrorKind::Invalid);
        assert_eq!(fails(clone(u64::MAX, 0, 4 * MIB).await), ErrorKind::Invalid);
        match clone(0, 0, 0).await {
            Ok(()) => assert!(std::fs::read(tree.path("dst")).unwrap() == pattern()),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::NotSupported);
                assert!(!tree.local.caps().clone);
            }
        }
    }
}
