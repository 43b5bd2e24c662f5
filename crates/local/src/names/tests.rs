//! Names: order of steps, change attributes, and others at the same name.

use super::*;
use crate::Options;
use bytes::Bytes;
use dhow_vfs::SetAttr;
use std::sync::Barrier;

fn name(n: &str) -> Name {
    Name::new(Bytes::copy_from_slice(n.as_bytes())).unwrap()
}

fn tree(exclusive: bool) -> (tempfile::TempDir, Arc<Inner>) {
    let home = tempfile::tempdir().unwrap();
    let mut options = Options::new(home.path());
    options.exclusive = exclusive;
    let inner = Arc::new(Inner::open(options).unwrap());
    (home, inner)
}

/// RFC 8881 3.3.4: `atomic` only with nobody else in between, whatever it was that the other changed.
#[test]
fn overlapping_changes_are_not_atomic() {
    let (_home, inner) = tree(true);
    let (user, dir) = (Cred::root(), inner.root.clone());
    let alone = inner.create(&user, &dir, &name("a"), &SetAttr::default(), None).unwrap().change;
    assert!(alone.atomic && alone.before < alone.after);
    let next = inner.remove(&user, &dir, &name("a")).unwrap().change;
    assert!(next.atomic);
    assert_eq!(alone.after, next.before, "nothing happened in between");

    // One within the other, one after the other, one that failed: none is atomic but the last.
    let outer = Update::begin(&dir).unwrap();
    let inside = inner.create(&user, &dir, &name("b"), &SetAttr::default(), None).unwrap().change;
    let outer = outer.end(true).unwrap();
    assert!(!inside.atomic && !outer.atomic);
    let (first, second) = (Update::begin(&dir).unwrap(), Update::begin(&dir).unwrap());
    assert!(!first.end(true).unwrap().atomic);
    assert!(!second.end(true).unwrap().atomic);
    let failing = Update::begin(&dir).unwrap();
    assert!(inner.remove(&user, &dir, &name("not there")).is_err());
    assert!(!failing.end(true).unwrap().atomic);
    assert!(inner.remove(&user, &dir, &name("b")).unwrap().change.atomic);

    // Changes of the directory itself count as well: of its attributes, its extended attributes, its place.
    let sub = inner.make(&user, &dir, &name("sub"), &Make::Directory, &SetAttr::default()).unwrap().inode;
    let update = Update::begin(&sub).unwrap();
    inner.setattr(&user, &sub, None, &SetAttr { mode: Some(0o711), ..SetAttr::default() }).unwrap();
    assert!(!update.end(true).unwrap().atomic);
    let update = Update::begin(&sub).unwrap();
    inner.rename(&user, &dir, &name("sub"), &dir, &name("moved")).unwrap();
    assert!(!update.end(true).unwrap().atomic);
    assert!(Update::begin(&sub).unwrap().end(true).unwrap().atomic);
    assert_eq!(dir.updates.lock().0, 0);
}

/// Case B11 (RFC 8881 18.16.3) over a crash: wherever between the steps of an exclusive create the server is killed, the
/// client that repeats it has its file, another one is told that the name is taken, and nothing is left of a file that
/// had no name yet.
#[test]
fn an_exclusive_create_is_known_wherever_the_server_is_killed() {
    let (home, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let start = || {
        let mut options = Options::new(home.path());
        options.state_dir = Some(state.path().to_owned());
        Arc::new(Inner::open(options).unwrap())
    };
    let (user, set) = (Cred::root(), SetAttr { mode: Some(0o640), ..SetAttr::default() });
    let steps = ["nothing", "made", "logged", "named", "all"];
    for (n, step) in steps.iter().enumerate() {
        let (file, verifier) = (name(step), [n as u8; 8]);
        // What is written stays when the process is killed; what it had in memory goes with it.
        let killed = start();
        let dir = killed.root.clone();
        let made = killed.nameless(&user, &dir, 0o640);
        let (fd, handle) = made.expect("this test needs a filesystem that has files without a name");
        match n {
            0 | 1 => {}
            2 => drop(killed.remember(&handle, verifier)),
            3 => {
                drop(killed.remember(&handle, verifier));
                killed.give_name(&user, &dir, &file, &fd).unwrap();
            }
            _ => assert!(killed.create(&user, &dir, &file, &set, Some(verifier)).unwrap().fresh),
        }
        drop((fd, dir, killed));
        assert_eq!(home.path().join(step).exists(), n >= 3, "{step}");

        let server = start();
        let dir = server.root.clone();
        if n >= 3 {
            let other = server.create(&user, &dir, &file, &set, Some([99; 8]));
            assert_eq!(other.err().map(|e| e.kind()), Some(ErrorKind::Exists), "{step}");
        }
        let again = server.create(&user, &dir, &file, &set, Some(verifier)).unwrap();
        assert_eq!(again.fresh, n < 3, "{step}");
        // Attributes too are those of the whole create.
        assert_eq!(again.stat.mode & 0o7777, 0o640, "{step}");
        assert_eq!(again.stat.nlink, 1);
    }
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), steps.len());
}

/// A name that somebody takes between the look and the link: told as ever, and what was made for nothing is forgotten.
/// Without files that have no name, creates go by the name.
#[test]
fn names_that_are_taken_meanwhile_and_filesystems_without_nameless_files() {
    let (home, inner) = tree(false);
    let (user, dir) = (Cred::root(), inner.root.clone());
    let (fd, handle) = inner.nameless(&user, &dir, 0o600).unwrap();
    std::fs::write(home.path().join("a"), b"").unwrap();
    inner.remember(&handle, [1; 8]);
    assert_eq!(inner.give_name(&user, &dir, &name("a"), &fd), Err(Errno::EXIST));
    let taken = inner.create(&user, &dir, &name("a"), &SetAttr::default(), Some([1; 8]));
    assert_eq!(taken.err().map(|e| e.kind()), Some(ErrorKind::Exists));
    assert!(!dir.fs.no_nameless.load(Ordering::Relaxed), "an EXIST says nothing of the filesystem");

    // Who asks again and again writes no more records; a name that is free ends that.
    let records = || inner.exclusive.len();
    let before = records();
    for n in 0..10 {
        let taken = inner.create(&user, &dir, &name("a"), &SetAttr::default(), Some([n; 8]));
        assert_eq!(taken.err().map(|e| e.kind()), Some(ErrorKind::Exists));
    }
    assert_eq!(records(), before);
    assert!(dir.taken.load(Ordering::Relaxed));
    inner.create(&user, &dir, &name("free"), &SetAttr::default(), Some([1; 8])).unwrap();
    assert!(!dir.taken.load(Ordering::Relaxed));
    assert_eq!(records(), before + 1);

    // What people see of an open file is its name.
    let made = inner.create(&user, &dir, &name("seen"), &SetAttr::default(), Some([2; 8])).unwrap();
    assert_eq!(open::path_of(&made.inode.path).unwrap(), home.path().canonicalize().unwrap().join("seen"));

    dir.fs.no_nameless.store(true, Ordering::Relaxed);
    let made = inner.create(&user, &dir, &name("b"), &SetAttr::default(), Some([3; 8])).unwrap();
    let again = inner.create(&user, &dir, &name("b"), &SetAttr::default(), Some([3; 8])).unwrap();
    assert!(made.fresh && !again.fresh && made.inode.handle == again.inode.handle);
    let taken = inner.create(&user, &dir, &name("b"), &SetAttr::default(), Some([4; 8]));
    assert_eq!(taken.err().map(|e| e.kind()), Some(ErrorKind::Exists));
}

/// Case B11: a lock file that others make and remove all the time. The record comes before the name even then, so that a
/// kill finds no file without its verifier.
#[test]
fn a_name_that_comes_and_goes_is_never_created_by_its_name() {
    let (home, inner) = tree(false);
    let (user, dir) = (Cred::root(), inner.root.clone());
    let path = home.path().join("lock");
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let other = {
        let (stop, path) = (stop.clone(), path.clone());
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let _ = std::fs::File::create_new(&path);
                let _ = std::fs::remove_file(&path);
            }
        })
    };
    for n in 0..2000_u32 {
        let mut verifier = [7; 8];
        verifier[..4].copy_from_slice(&n.to_be_bytes());
        match inner.create_nameless(&user, &dir, &name("lock"), 0o600, verifier) {
            Nameless::Made(inode, ..) => assert_eq!(inner.exclusive.get(&inode.handle), Some(verifier)),
            Nameless::Taken => {}
            Nameless::Impossible | Nameless::Refused => {
                panic!("a name that is taken or free is no reason to create by the name")
            }
        }
        match inner.create(&user, &dir, &name("lock"), &SetAttr::default(), Some(verifier)) {
            Ok(made) => assert_eq!(inner.exclusive.get(&made.inode.handle), Some(verifier)),
            // However soon the other removes it.
            Err(e) => assert_eq!(e.kind(), ErrorKind::Exists),
        }
    }
    stop.store(true, Ordering::Relaxed);
    other.join().unwrap();
}

/// A program of this machine removes what was made before the create has come to its end: as if it came a moment later.
/// What was opened is open, and no create says that something is stale.
#[test]
fn what_is_removed_at_once_was_made() {
    let (home, inner) = tree(false);
    let (user, dir) = (Cred::root(), inner.root.clone());
    let set = SetAttr { mode: Some(0o640), size: Some(3), ..SetAttr::default() };
    let path = home.path().join("f");
    for verifier in [None, Some([1; 8])] {
        let update = Update::begin(&dir).unwrap();
        let made = inner.create_named(&user, &dir, &name("f"), 0o640).unwrap().unwrap();
        std::fs::remove_file(&path).unwrap();
        let new = inner.finish_new(&user, &dir, made, &set, (verifier, None), update).unwrap();
        assert!(new.fresh && new.stat.nlink == 0 && new.change.before < new.change.after);
        // For as long as it is open it goes on.
        assert_eq!(new.inode.stat().unwrap().size, 3);
        inner.open_data(&user, &new.inode, true).unwrap();
        let inode = new.inode.clone();
        drop(new);
        assert_eq!(inode.stat().unwrap_err().kind(), ErrorKind::Stale);
    }
    // Found again by its verifier, and removed then.
    let verifier = Some([2; 8]);
    drop(inner.create(&user, &dir, &name("f"), &set, verifier).unwrap());
    let found = inner.made_before(&user, &dir, &name("f"), [2; 8]).unwrap();
    std::fs::remove_file(&path).unwrap();
    let again = inner.find_again(&user, found, &set, Update::begin(&dir).unwrap()).unwrap();
    assert_eq!((again.fresh, again.stat.nlink), (false, 0));
    assert!(inner.create(&user, &dir, &name("f"), &set, verifier).unwrap().fresh);
    // Of other kinds.
    let sub = inner.make(&user, &dir, &name("sub"), &Make::Directory, &SetAttr::default()).unwrap().inode;
    std::fs::remove_dir(home.path().join("sub")).unwrap();
    let set = SetAttr { mode: Some(0o1777), ..SetAttr::default() };
    let update = Update::begin(&dir).unwrap();
    inner.finish_node(&user, &dir, sub.clone(), &set, update).unwrap();
    assert_eq!(sub.stat().unwrap_err().kind(), ErrorKind::Stale);
}

/// As above, with somebody who is quick: a request is told of a name that is taken, and of nothing else. Another kind of
/// object in its place is not taken for what was made.
#[test]
fn objects_that_others_remove_and_replace() {
    let (home, inner) = tree(false);
    let (user, dir) = (Cred::root(), inner.root.clone());
    let path = home.path().join("lock");
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let other = {
        let (stop, path) = (stop.clone(), path.clone());
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let _ = std::fs::remove_dir(&path);
                let _ = std::fs::remove_file(&path);
                let _ = std::fs::File::create_new(&path);
                let _ = std::fs::remove_file(&path);
            }
        })
    };
    let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    for _ in 0..2000 {
        for what in [Make::Directory, Make::Symlink(Bytes::from_static(b"to")), Make::Fifo] {
            match inner.make(&user, &dir, &name("lock"), &what, &set) {
                Ok(made) => assert_eq!(made.inode.kind, what.kind()),
                Err(e) => assert!(matches!(e.kind(), ErrorKind::Exists | ErrorKind::Delay), "{e:?}"),
            }
        }
        match inner.create(&user, &dir, &name("lock"), &set, None) {
            Ok(made) => assert_eq!(made.inode.kind, FileKind::Regular),
            Err(e) => assert_eq!(e.kind(), ErrorKind::Exists),
        }
    }
    stop.store(true, Ordering::Relaxed);
    other.join().unwrap();
}

/// A directory in which files can be given no name says nothing of others, and one file says nothing of a directory.
#[test]
fn one_directory_without_nameless_files_is_no_other() {
    let (home, inner) = tree(false);
    let (user, dir) = (Cred::root(), inner.root.clone());
    let make = |n: &str| inner.make(&user, &dir, &name(n), &Make::Directory, &SetAttr::default()).unwrap().inode;
    let (odd, sub) = (make("odd"), make("sub"));
    let nameless = |at: &Arc<Inode>, n: &str, v: u8| match inner.create_nameless(&user, at, &name(n), 0o600, [v; 8]) {
        Nameless::Made(..) => Some(true),
        Nameless::Impossible => Some(false),
        Nameless::Taken | Nameless::Refused => None,
    };
    // Nothing links a directory: the EPERM of an odd object.
    let fd = std::fs::File::open(home.path().join("sub")).unwrap().into();
    assert_eq!(inner.give_name(&user, &odd, &name("x"), &fd), Err(Errno::PERM));
    assert_eq!(nameless(&odd, "x", 1), Some(true));
    odd.no_nameless.store(true, Ordering::Relaxed);
    assert_eq!((nameless(&odd, "y", 2), nameless(&sub, "y", 3)), (Some(false), Some(true)));
    // By its name then, and found again all the same.
    let made = inner.create(&user, &odd, &name("z"), &SetAttr::default(), Some([4; 8])).unwrap();
    let again = inner.create(&user, &odd, &name("z"), &SetAttr::default(), Some([4; 8])).unwrap();
    assert!(made.fresh && !again.fresh && made.inode.handle == again.inode.handle);
}

/// Without the promise that nobody else changes the tree, nothing is atomic.
#[test]
fn nothing_is_atomic_in_a_shared_tree() {
    let (_home, inner) = tree(false);
    let change = inner.create(&Cred::root(), &inner.root, &name("a"), &SetAttr::default(), None).unwrap().change;
    assert!(!change.atomic && change.before < change.after);
}

/// Many at once: for each thread the values only grow, no two updates end with one value, and what is called atomic
/// overlaps nothing.
#[test]
fn change_attributes_only_grow() {
    let (_home, inner) = tree(true);
    let barrier = Arc::new(Barrier::new(5));
    let threads: Vec<_> = (0..4)
        .map(|t| {
            let (inner, barrier) = (inner.clone(), barrier.clone());
            std::thread::spawn(move || {
                barrier.wait();
                let mut changes = Vec::new();
                for n in 0..100 {
                    let name = name(&format!("{t}-{n}"));
                    let made = inner.create(&Cred::root(), &inner.root, &name, &SetAttr::default(), None).unwrap();
                    changes.push(made.change);
                }
                changes
            })
        })
        .collect();
    barrier.wait();
    // Somebody who looks meanwhile: the same value is never given out with fewer entries after more.
    // By ctime: the kernel sets mtime a moment later, and one who looks in between sees the older one with it.
    let mut seen: (u64, open::Time) = (0, inner.root.stat().unwrap().ctime);
    for _ in 0..2000 {
        let (stat, change) = inner.root.stat_change().unwrap();
        assert!(change >= seen.0, "it went back");
        assert!(change > seen.0 || stat.ctime == seen.1, "one value for two states");
        seen = (change, stat.ctime);
    }
    let mut all: Vec<DirChange> = Vec::new();
    for thread in threads {
        let changes = thread.join().unwrap();
        assert!(changes.is_sorted_by(|a, b| a.after <= b.before), "{changes:?}");
        all.extend(changes);
    }
    assert!(all.iter().all(|c| c.before < c.after));
    for atomic in all.iter().filter(|c| c.atomic) {
        let inside = all.iter().filter(|c| c.after > atomic.before && c.after < atomic.after).count();
        assert_eq!(inside, 0, "{atomic:?}");
    }
}
