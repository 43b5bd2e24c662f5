//! The server over a directory of this machine: nothing that a client sends leads out of it.

use crate::common::{Srv, last};
use crate::hostile::{Fuzz, Rng, still_well};
use dhow_local::{Local, Options};
use dhow_proto::v4::ops::CreateType;
use dhow_proto::v4::{ArgOp, Attrs, StableHow, Stateid, Status};
use dhow_testkit::MemFs;
use dhow_testkit::wire::op;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// A home with the export in it, and beside the export what nobody may reach.
pub struct Tree {
    home: TempDir,
    pub srv: Srv,
}

impl Tree {
    async fn serve() -> Self {
        Self::with(&std::env::temp_dir(), |_| {}, |_| {}).await
    }

    /// On a filesystem of one's choice, with other options.
    pub async fn with(
        base: &Path,
        change: impl FnOnce(&mut Options),
        config: impl FnOnce(&mut dhow_server::ServerConfig),
    ) -> Self {
        let home = tempfile::Builder::new().prefix("dhow-wire-").tempdir_in(base).unwrap();
        for dir in ["export", "state", "outside"] {
            fs::create_dir(home.path().join(dir)).unwrap();
        }
        fs::set_permissions(home.path().join("export"), PermissionsExt::from_mode(0o777)).unwrap();
        fs::set_permissions(home.path().join("outside"), PermissionsExt::from_mode(0o777)).unwrap();
        fs::write(home.path().join("outside/secret"), "secret").unwrap();
        let mut options = Options::new(home.path().join("export"));
        options.state_dir = Some(home.path().join("state"));
        change(&mut options);
        let local = Arc::new(Local::open(options).unwrap());
        let srv = Srv::over(local, MemFs::new(), config).await;
        Self { home, srv }
    }

    pub fn path(&self, below: &str) -> PathBuf {
        self.home.path().join(below)
    }

    fn outside_is_untouched(&self) {
        let names: Vec<_> = fs::read_dir(self.path("outside")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["secret"]);
        assert_eq!(fs::read_to_string(self.path("outside/secret")).unwrap(), "secret");
        let mut names: Vec<_> = fs::read_dir(self.home.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["export", "outside", "state"]);
    }
}

/// Names and links that point out of the export.
#[tokio::test]
async fn ways_out() {
    let t = Tree::serve().await;
    let mut c = t.srv.client("c").await;
    let root = c.walk("").await;
    symlink("../outside", t.path("export/link")).unwrap();
    symlink(t.path("outside/secret"), t.path("export/file-link")).unwrap();
    c.mkdir(&root, "d").await;
    for name in ["..", ".", "../outside", "d/../../outside", "/etc/passwd", "link/secret"] {
        let status = c.status(&[op::put(&root), op::lookup(name)]).await;
        assert!(matches!(status, Status::BADNAME | Status::BADCHAR), "{name}: {status:?}");
    }
    assert_eq!(c.status(&[op::put(&root), op::lookup("link"), op::lookup("secret")]).await, Status::SYMLINK);
    assert_eq!(c.status(&[op::put(&root), ArgOp::Lookupp]).await, Status::NOENT);
    assert_eq!(c.status(&[op::put(&root), op::lookup("d"), ArgOp::Lookupp, ArgOp::Lookupp]).await, Status::NOENT);
    let owner = c.owner("o");
    let open = op::open_create(owner, 3, 0, "file-link", 0o644);
    assert_eq!(c.status(&[op::put(&root), open]).await, Status::SYMLINK);
    let link = c.walk("file-link").await;
    for io in [op::read(Stateid::ANONYMOUS, 0, 10), op::write(Stateid::ANONYMOUS, 0, StableHow::UNSTABLE, b"x")] {
        let res = c.run(&[op::put(&link), io]).await;
        assert!(!last(&res).1.is_ok());
    }
    let size = Attrs { size: Some(0), ..Attrs::default() };
    assert!(!c.status(&[op::put(&link), op::setattr(size)]).await.is_ok());
    // A mode set through a link would be that of what it points to.
    c.status(&[op::put(&link), op::setattr(Attrs { mode: Some(0o777), ..Attrs::default() })]).await;
    c.ok(&[op::put(&root), op::create(CreateType::Link("../../..".into()), "up", Attrs::default())]).await;
    assert_eq!(c.status(&[op::put(&root), op::lookup("up"), op::mkdir("x")]).await, Status::NOTDIR);
    t.outside_is_untouched();
}

/// A directory that somebody moves out of the export while a client stands in it leads nowhere from there.
#[tokio::test]
async fn moved_out() {
    let t = Tree::serve().await;
    let mut c = t.srv.client("c").await;
    let root = c.walk("").await;
    let d = c.mkdir(&root, "d").await;
    let e = c.mkdir(&d, "e").await;
    fs::create_dir(t.path("outside/inner")).unwrap();
    fs::rename(t.path("export/d"), t.path("outside/inner/d")).unwrap();
    for ops in [
        vec![op::put(&d), ArgOp::Lookupp, op::lookup("d")],
        vec![op::put(&d), ArgOp::Lookupp, ArgOp::Lookupp, op::lookup("secret")],
        vec![op::put(&e), ArgOp::Lookupp, ArgOp::Lookupp, ArgOp::Lookupp, op::lookup("secret")],
    ] {
        let status = c.status(&ops).await;
        assert!(!status.is_ok(), "{ops:?}");
    }
    fs::rename(t.path("outside/inner/d"), t.path("export/d")).unwrap();
    fs::remove_dir(t.path("outside/inner")).unwrap();
    c.ok(&[op::put(&d), ArgOp::Lookupp, op::lookup("d")]).await;
    t.outside_is_untouched();
}

/// Random requests at real files.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn random_requests() {
    let t = Tree::serve().await;
    let mut r = Rng::new(77);
    let mut good = t.srv.client("good").await;
    symlink("../outside", t.path("export/n0")).unwrap();
    symlink("../outside/secret", t.path("export/n1")).unwrap();
    let mut bad = [Fuzz::new(&t.srv, "bad", 0).await, Fuzz::new(&t.srv, "worse", 1000).await];
    for b in &mut bad {
        b.pool.span = 1 << 20;
    }
    for round in 0..1500 {
        bad[round % 2].round(&t.srv, &mut r, round % 3 == 0).await;
        if round % 500 == 499 {
            still_well(&t.srv, &mut good, round).await;
        }
    }
    t.outside_is_untouched();
}
