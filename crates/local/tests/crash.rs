//! What a reply promised is there after a crash: the disk is looked at as it is when the reply comes.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bytes::Bytes;
use common::mount::Mount;
use common::*;
use dhow_vfs::*;

/// Filesystems of which a copy can be mounted beside the original, and how.
const KINDS: [(&str, u64, &str); 2] = [("ext4", 64, "loop"), ("xfs", 320, "loop,nouuid")];

struct Crash<'a> {
    mount: &'a Mount,
    options: &'a str,
    tree: &'a Tree,
}

impl Crash<'_> {
    /// Looks at what a crash now would leave of the tree.
    fn look<T>(&self, look: impl FnOnce(&Path) -> T) -> T {
        let copy = self.mount.after_crash(self.options);
        let below = self.tree.dir.path().strip_prefix(self.mount.path()).unwrap();
        look(&copy.path().join(below))
    }
}

#[tokio::test]
async fn replies_about_names_and_attributes_are_durable() {
    for (kind, mib, options) in KINDS {
        let Some(mount) = Mount::image(kind, mib) else { continue };
        let tree = Tree::at(mount.path(), |_| {}).await;
        let (local, top, cx) = (&tree.local, &tree.root, root());
        let crash = Crash { mount: &mount, options, tree: &tree };

        let how = CreateHow { set: SetAttr { mode: Some(0o640), ..SetAttr::default() }, verifier: Some([7; 8]) };
        let made = local.create(&cx, top, &name("file"), &how).await.unwrap();
        crash.look(|at| assert_eq!(std::fs::metadata(at.join("file")).unwrap().mode() & 0o777, 0o640, "{kind}"));
        local.close(made.open).await;
        let file = made.node.handle;

        let set = SetAttr { mode: Some(0o750), uid: Some(1000), ..SetAttr::default() };
        let dir = local.make(&cx, top, &name("dir"), &Make::Directory, &set).await.unwrap().node.handle;
        crash.look(|at| assert_eq!(std::fs::metadata(at.join("dir")).unwrap().uid(), 1000));

        let what = Make::Symlink(Bytes::from_static(b"target"));
        let link = local.make(&cx, top, &name("link"), &what, &SetAttr::default()).await.unwrap().node.handle;
        crash.look(|at| assert_eq!(std::fs::read_link(at.join("link")).unwrap(), Path::new("target")));

        // Attributes of an object that cannot be opened.
        let set = SetAttr { uid: Some(5), ..SetAttr::default() };
        local.setattr(&cx, &link, None, &set).await.unwrap();
        crash.look(|at| assert_eq!(std::fs::symlink_metadata(at.join("link")).unwrap().uid(), 5));

        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        local.setattr(&cx, &file, None, &set).await.unwrap();
        crash.look(|at| assert_eq!(std::fs::metadata(at.join("file")).unwrap().mode() & 0o777, 0o600));

        // Of a file with data that nobody has committed.
        tree.write(&cx, &file, 0, &vec![1; 1 << 20]).await.unwrap();
        let set = SetAttr { mode: Some(0o604), ..SetAttr::default() };
        local.setattr(&cx, &file, None, &set).await.unwrap();
        crash.look(|at| assert_eq!(std::fs::metadata(at.join("file")).unwrap().mode() & 0o777, 0o604));

        local.link(&cx, &file, &dir, &name("second")).await.unwrap();
        crash.look(|at| assert_eq!(std::fs::metadata(at.join("dir/second")).unwrap().nlink(), 2));

        local.rename(&cx, &dir, &name("second"), top, &name("third")).await.unwrap();
        crash.look(|at| assert!(at.join("third").exists() && !at.join("dir/second").exists()));

        local.remove(&cx, top, &name("third")).await.unwrap();
        crash.look(|at| assert!(!at.join("third").exists() && at.join("file").exists()));

        local.setxattr(&cx, &file, b"a", b"value", XattrSet::Create).await.unwrap();
        crash.look(|at| {
            let file = std::fs::File::open(at.join("file")).unwrap();
            let mut value = [0; 16];
            assert_eq!(rustix::fs::fgetxattr(&file, "user.a", &mut value), Ok(5));
        });

        let io = IoRef { handle: &file, open: None };
        local.commit(&cx, io, 0, 0).await.unwrap();
        crash.look(|at| assert!(std::fs::read(at.join("file")).unwrap() == vec![1; 1 << 20]));

        let data = Bytes::from(vec![2; 5000]);
        for want in [Stability::DataSync, Stability::FileSync] {
            let at = if want == Stability::DataSync { 0 } else { 1 << 20 };
            let done = local.write(&cx, io, at, data.clone(), want).await.unwrap();
            assert!(done.stability >= want && done.count == 5000);
            crash.look(|dir| {
                let got = std::fs::read(dir.join("file")).unwrap();
                assert!(got[at as usize..at as usize + 5000] == data[..]);
            });
        }

        local.deallocate(&cx, io, 0, 1 << 20).await.unwrap();
        crash.look(|at| assert!(std::fs::read(at.join("file")).unwrap()[..1 << 20].iter().all(|b| *b == 0)));
    }
}

#[tokio::test]
async fn without_metadata_sync_a_crash_may_lose_names() {
    // That the test above can fail at all: nothing here is synced, and the journal is written every few seconds only.
    for (kind, mib, options) in KINDS {
        let Some(mount) = Mount::image(kind, mib) else { continue };
        let tree = Tree::at(mount.path(), |o| o.metadata_sync = false).await;
        let crash = Crash { mount: &mount, options, tree: &tree };
        let mut lost = 0;
        for n in 0..5 {
            tree.file(&root(), &tree.root, &format!("f{n}"), 0o644).await;
            lost += u32::from(!crash.look(|at| at.join(format!("f{n}")).exists()));
        }
        assert!(lost > 0, "{kind}: every name was on the disk at once");
    }
}

/// C5: creates that share syncs are durable all the same, each when its reply comes: in one directory and in several,
/// exclusive ones whose log lies in the same filesystem or in another, with attributes that are set after the create.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_creates_at_once_are_durable() {
    let bare: &[&str] = &["-O", "^has_journal"];
    for (kind, mib, options, mkfs) in [KINDS[0], KINDS[1]]
        .map(|(kind, mib, options)| (kind, mib, options, &[][..]))
        .into_iter()
        .chain([("ext4", 64, "loop", bare)])
    {
        for log_inside in [true, false] {
            let Some(mount) = Mount::image_with(kind, mib, mkfs) else { continue };
            let outside = tempfile::tempdir().unwrap();
            let tree = Tree::at(mount.path(), |o| {
                // By default it lies beside the tree.
                if !log_inside {
                    o.state_dir = Some(outside.path().to_owned());
                }
            })
            .await;
            let crash = Crash { mount: &mount, options, tree: &tree };
            let mut dirs = Vec::new();
            for d in 0..4 {
                dirs.push(tree.mkdir(&root(), &tree.root, &format!("d{d}"), 0o755).await);
            }
            let made: Vec<_> = (0..64_u32)
                .map(|n| {
                    let (local, dir) = (tree.local.clone(), dirs[n as usize % 4].clone());
                    tokio::spawn(async move {
                        let uid = (n % 3 == 0).then_some(1000 + n);
                        let set = SetAttr { mode: Some(0o640), uid, ..SetAttr::default() };
                        let verifier = (n % 8 < 4).then(|| u64::from(n).to_be_bytes());
                        let how = CreateHow { set, verifier };
                        let made = local.create(&root(), &dir, &name(&format!("f{n}")), &how).await.unwrap();
                        local.close(made.open).await;
                    })
                })
                .collect();
            for task in made {
                task.await.unwrap();
            }
            crash.look(|path| {
                for n in 0..64_u32 {
                    let found = std::fs::symlink_metadata(path.join(format!("d{}/f{n}", n % 4)));
                    let found = found.unwrap_or_else(|e| panic!("{kind} {mkfs:?} {log_inside}: f{n}: {e}"));
                    assert_eq!(found.mode() & 0o7777, 0o640, "{kind} {mkfs:?} {log_inside}: f{n}");
                    if n % 3 == 0 {
                        assert_eq!(found.uid(), 1000 + n, "{kind} {mkfs:?} {log_inside}: f{n}");
                    }
                }
            });
        }
    }
}
