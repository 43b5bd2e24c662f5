//! Copies between local files: content, holes, attributes, what is left after a failure.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use dhow_copy::{
    Choice, Endpoint, ErrorKind, Event, Kind, Known, Local, Method, Options, Progress, Stop, Time, TreeOptions,
    copy_file, copy_tree,
};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

const MIB: usize = 1 << 20;

fn local() -> Arc<dyn Endpoint> {
    Arc::new(Local::new())
}

/// 9 MiB and a bit with data at 1..3 and 6..7 MiB and a hole at the end.
fn sparse(path: &Path) -> Vec<u8> {
    let mut bytes = vec![0u8; 9 * MIB + 123];
    let file = fs::File::create(path).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    for (start, end) in [(MIB, 3 * MIB), (6 * MIB, 7 * MIB)] {
        for (i, b) in bytes[start..end].iter_mut().enumerate() {
            *b = (i * 31 % 251) as u8 + 1;
        }
        file.write_all_at(&bytes[start..end], start as u64).unwrap();
    }
    bytes
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn each_method_copies_bytes_and_holes() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    let bytes = sparse(&from);
    let place = local();
    for method in [Choice::Auto, Choice::Only(Method::Copy), Choice::Only(Method::ReadWrite)] {
        let to = dir.path().join("to");
        fs::write(&to, b"old and longer lived").unwrap();
        let moved = Arc::new(AtomicI64::new(0));
        let sum = moved.clone();
        let progress = Progress::new(move |event| {
            if let Event::Moved(n) = event {
                sum.fetch_add(n, Ordering::Relaxed);
            }
        });
        let options = Options { method, ..Options::default() };
        let report = copy_file((&place, &from), (&place, &to), Known::default(), &options, &progress).await.unwrap();
        assert_eq!(report.bytes, bytes.len() as u64, "{method:?}");
        assert_eq!(fs::read(&to).unwrap(), bytes, "{method:?}");
        assert!(fs::metadata(&to).unwrap().blocks() * 512 < 5 * MIB as u64, "{method:?}: holes were filled");
        assert!(moved.load(Ordering::Relaxed) >= 3 * MIB as i64, "{method:?}");
        assert!(!report.durable);
        assert_eq!(names(dir.path()), ["from", "to"], "{method:?}");
    }
}

#[tokio::test]
async fn durable_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("a"), dir.path().join("b"));
    fs::write(&from, b"x").unwrap();
    let options = Options { sync: dhow_copy::Sync::Yes, ..Options::default() };
    let place = local();
    let report = copy_file((&place, &from), (&place, &to), Known::default(), &options, &Progress::none()).await;
    assert!(report.unwrap().durable);
}

#[tokio::test]
async fn a_refused_method_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("a"), Path::new("/dev/shm"));
    fs::write(&from, vec![1; 5000]).unwrap();
    let target = tempfile::tempdir_in(to).unwrap();
    let place = local();
    let options = Options { method: Choice::Only(Method::Clone), ..Options::default() };
    let to = target.path().join("b");
    // tmpfs shares no blocks, and never with another filesystem.
    let error =
        copy_file((&place, &from), (&place, &to), Known::default(), &options, &Progress::none()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unsupported);
    assert!(error.to_string().ends_with("use --method auto"), "{error}");
    assert!(names(target.path()).is_empty());
}

#[tokio::test]
async fn a_stopped_copy_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::write(&from, vec![7; 64 * MIB]).unwrap();
    let place = local();
    for method in [Method::Copy, Method::ReadWrite] {
        let (stop, cancel) = Stop::new();
        let progress = Progress::new(move |event| {
            if let Event::Started { .. } = event {
                stop.stop();
            }
        });
        let options = Options { method: Choice::Only(method), cancel, ..Options::default() };
        let to = dir.path().join("to");
        let done = copy_file((&place, &from), (&place, &to), Known::default(), &options, &progress).await;
        assert_eq!(done.unwrap_err().kind, ErrorKind::Cancelled);
        assert_eq!(names(dir.path()), ["from"]);
    }
}

#[tokio::test]
async fn odd_sources_and_destinations_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    fs::write(&a, b"a").unwrap();
    fs::hard_link(&a, &b).unwrap();
    let place = local();
    let none = Progress::none();
    let options = Options::default();
    let meta = place.stat(&b).await.unwrap();
    let known = Known { source: None, replaced: Some(&meta) };
    let same = copy_file((&place, &a), (&place, &b), known, &options, &none).await.unwrap_err();
    assert_eq!(same.kind, ErrorKind::Same);
    let absent = dir.path().join("absent");
    let error = copy_file((&place, &absent), (&place, &b), Known::default(), &options, &none).await.unwrap_err();
    assert_eq!(error.to_string(), format!("{}: no such file or directory", absent.display()));
    let error = copy_file((&place, dir.path()), (&place, &b), Known::default(), &options, &none).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::IsDirectory);
    // A FIFO is neither opened for reading, which would wait, nor replaced.
    let fifo = dir.path().join("fifo");
    place.make_special(&fifo, Kind::Fifo, 0o600).await.unwrap();
    let error = copy_file((&place, &fifo), (&place, &b), Known::default(), &options, &none).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotRegular);
    let meta = place.stat(&fifo).await.unwrap();
    let known = Known { source: None, replaced: Some(&meta) };
    let error = copy_file((&place, &a), (&place, &fifo), known, &options, &none).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotRegular);
    assert_eq!(fs::read(&b).unwrap(), b"a");
}

fn tree(root: &Path) {
    fs::create_dir_all(root.join("sub/deeper")).unwrap();
    for i in 0..300 {
        fs::write(root.join(format!("sub/f{i}")), format!("content {i}").repeat(i)).unwrap();
    }
    sparse(&root.join("sub/deeper/sparse"));
    fs::write(root.join("empty"), b"").unwrap();
    fs::write(root.join(std::ffi::OsStr::from_bytes(b"odd \xff name")), b"odd").unwrap();
    symlink("sub/f7", root.join("link")).unwrap();
    symlink("nowhere", root.join("dangling")).unwrap();
    fs::hard_link(root.join("sub/f9"), root.join("also9")).unwrap();
    fs::set_permissions(root.join("sub/deeper"), fs::Permissions::from_mode(0o551)).unwrap();
    fs::set_permissions(root.join("sub/f3"), fs::Permissions::from_mode(0o4711)).unwrap();
}

#[tokio::test]
async fn a_tree_is_copied_with_all_it_holds() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    tree(&from);
    let place = local();
    place.make_special(&from.join("fifo"), Kind::Fifo, 0o640).await.unwrap();
    let old = Time { secs: -3600, nanos: 750_000_000 };
    let set = dhow_copy::SetMeta { mtime: Some(old), atime: Some(old), ..Default::default() };
    place.set_meta(&from.join("sub/f5"), &set).await.unwrap();
    place.set_meta(&from.join("dangling"), &set).await.unwrap();
    place.set_meta(&from.join("sub"), &set).await.unwrap();
    let options =
        TreeOptions { copy: Options { preserve: true, ..Options::default() }, files_in_flight: 16, hard_links: true };
    let report = copy_tree((&place, &from), (&place, &to), &options, &Progress::none()).await.unwrap();
    assert_eq!((report.failed, report.dirs, report.others), (0, 3, 4), "{:?}", report.errors);
    assert_eq!(report.files, 300 + 3);
    for i in 0..300 {
        let name = format!("sub/f{i}");
        assert_eq!(fs::read(to.join(&name)).unwrap(), fs::read(from.join(&name)).unwrap());
    }
    let name = "sub/deeper/sparse";
    assert_eq!(fs::read(to.join(name)).unwrap(), fs::read(from.join(name)).unwrap());
    assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("sub/f7"));
    assert_eq!(fs::read_link(to.join("dangling")).unwrap(), Path::new("nowhere"));
    assert!(fs::symlink_metadata(to.join("fifo")).unwrap().file_type().is_fifo());
    assert_eq!(fs::metadata(to.join("also9")).unwrap().ino(), fs::metadata(to.join("sub/f9")).unwrap().ino());
    assert_eq!(fs::metadata(to.join("sub/deeper")).unwrap().mode() & 0o7777, 0o551);
    assert_eq!(fs::metadata(to.join("sub/f3")).unwrap().mode() & 0o7777, 0o4711);
    // Times before 1970 keep their nanoseconds counted forwards (case B18).
    for name in ["sub/f5", "dangling", "sub"] {
        assert_eq!(place.stat(&to.join(name)).await.unwrap().mtime, old, "{name}");
    }
}

#[tokio::test]
async fn one_failure_does_not_stop_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    tree(&from);
    fs::create_dir_all(to.join("empty")).unwrap();
    fs::write(to.join("link"), b"in the way").unwrap();
    let place = local();
    let report = copy_tree((&place, &from), (&place, &to), &TreeOptions::default(), &Progress::none()).await.unwrap();
    assert_eq!(report.failed, 1, "{:?}", report.errors);
    assert_eq!(report.errors[0].to_string(), format!("{}: is a directory", to.join("empty").display()));
    assert_eq!(report.files, 300 + 3);
    assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("sub/f7"));
    assert_eq!(fs::metadata(to.join("sub/deeper")).unwrap().mode() & 0o7777, 0o551);
    let leftovers = names(&to).into_iter().filter(|n| n.contains(".dhow-")).count();
    assert_eq!(leftovers, 0);
}

#[tokio::test]
async fn a_tree_is_not_copied_into_itself() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    tree(&from);
    let place = local();
    let to = from.join("sub/copy");
    let report = copy_tree((&place, &from), (&place, &to), &TreeOptions::default(), &Progress::none()).await.unwrap();
    assert_eq!(report.failed, 1);
    assert_eq!(report.errors[0].kind, ErrorKind::Same);
    assert!(!to.join("sub/copy").exists());
    let same = copy_tree((&place, &from), (&place, &from), &TreeOptions::default(), &Progress::none()).await;
    assert_eq!(same.unwrap_err().kind, ErrorKind::Same);
}

/// A server may list one name as a link and as a directory: what is in the directory is not written where the link leads.
/// The root of the copy may be behind a link, for the user named that.
#[tokio::test]
async fn nothing_is_written_behind_a_link() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to, outside) = (dir.path().join("from"), dir.path().join("to"), dir.path().join("outside"));
    tree(&from);
    for made in [&to, &outside] {
        fs::create_dir(made).unwrap();
    }
    symlink(&outside, to.join("sub")).unwrap();
    symlink(&to, dir.path().join("named")).unwrap();
    let place = local();
    let named = dir.path().join("named");
    let mut options = TreeOptions::default();
    options.copy.preserve = true;
    let report = copy_tree((&place, &from), (&place, &named), &options, &Progress::none()).await.unwrap();
    assert_eq!((report.failed, report.errors[0].kind), (1, ErrorKind::NotDirectory), "{:?}", report.errors);
    assert_eq!(report.errors[0].place, named.join("sub").to_str().unwrap());
    assert!(names(&outside).is_empty());
    assert!(names(&to).len() > 1, "the others are there");
}

#[tokio::test]
async fn trees_are_made_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let place = local();
    let deep = dir.path().join("a/b/c");
    assert_eq!(dhow_copy::make_dirs(&*place, &deep, 0o755).await.unwrap(), 3);
    assert_eq!(dhow_copy::make_dirs(&*place, &deep, 0o755).await.unwrap(), 0);
    fs::write(deep.join("f"), b"").unwrap();
    let error = dhow_copy::make_dirs(&*place, &deep.join("f/g"), 0o755).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotDirectory);
    let from = dir.path().join("from");
    tree(&from);
    fs::set_permissions(from.join("sub/deeper"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(dir.path().join("precious"), b"").unwrap();
    symlink(dir.path(), from.join("up")).unwrap();
    let failed = |e: &dhow_copy::Error| panic!("{e}");
    let removed = dhow_copy::remove_tree(&*place, &from, &Default::default(), &failed).await;
    assert_eq!(removed, 3 + 300 + 3 + 3 + 1);
    assert!(!from.exists() && dir.path().join("precious").exists());
}
