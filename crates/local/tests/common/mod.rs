//! Trees to test on: one on the disk filesystem of the temporary directory, one on tmpfs.
#![allow(dead_code, clippy::unwrap_used)]

pub mod mount;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use dhow_local::{Local, Options};
use dhow_vfs::*;
use tempfile::TempDir;

/// A tree, and where it lies.
pub struct Tree {
    pub dir: TempDir,
    pub state: TempDir,
    pub local: Local,
    pub root: Handle,
}

pub fn name(text: &str) -> Name {
    Name::new(Bytes::copy_from_slice(text.as_bytes())).unwrap()
}

pub fn user(uid: u32) -> Cx {
    Cx::new(Cred::user(uid, uid))
}

pub fn root() -> Cx {
    Cx::root()
}

/// The kind of the error of a call that must fail.
#[track_caller]
pub fn fails<T>(result: Result<T>) -> ErrorKind {
    match result {
        Ok(_) => panic!("the call should have failed"),
        Err(e) => e.kind(),
    }
}

/// Asks again for as long as the answer is DELAY, as a client does.
pub async fn patiently(tree: &Tree, handle: &Handle) -> Result<Attr> {
    settled(async || tree.local.getattr(&root(), handle).await).await
}

/// What a call comes to when it is asked again after DELAY, as clients do: without kernel handles an object that is
/// not at hand is looked for in the background first.
pub async fn settled<T>(mut call: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    for _ in 0..500 {
        match call().await {
            Err(e) if e.kind() == ErrorKind::Delay => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
            other => return other,
        }
    }
    panic!("DELAY for five seconds");
}

/// Directories on the filesystems that tests should cover.
pub fn bases() -> Vec<PathBuf> {
    let mut all = vec![std::env::temp_dir()];
    let shm = Path::new("/dev/shm");
    if shm.is_dir() {
        all.push(shm.to_owned());
    }
    all
}

impl Tree {
    pub async fn at(base: &Path, change: impl FnOnce(&mut Options)) -> Tree {
        let dir = tempfile::Builder::new().prefix("dhow-local-").tempdir_in(base).unwrap();
        let state = tempfile::Builder::new().prefix("dhow-state-").tempdir_in(base).unwrap();
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let mut options = Options::new(dir.path());
        options.state_dir = Some(state.path().to_owned());
        change(&mut options);
        let local = Local::open(options).unwrap();
        let root = local.root(&Cx::root()).await.unwrap().handle;
        Tree { dir, state, local, root }
    }

    /// One tree on each filesystem.
    pub async fn each() -> Vec<Tree> {
        let mut all = Vec::new();
        for base in bases() {
            all.push(Tree::at(&base, |_| {}).await);
        }
        all
    }

    /// On the disk.
    pub async fn disk() -> Tree {
        Tree::at(&std::env::temp_dir(), |_| {}).await
    }

    /// The same tree as after a restart of the server.
    pub async fn restart(self, change: impl FnOnce(&mut Options)) -> Tree {
        let Tree { dir, state, local, .. } = self;
        drop(local);
        // The task that tidies up may hold it for a moment.
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        let mut options = Options::new(dir.path());
        options.state_dir = Some(state.path().to_owned());
        change(&mut options);
        let local = Local::open(options).unwrap();
        let root = local.root(&Cx::root()).await.unwrap().handle;
        Tree { dir, state, local, root }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn shared(&self) -> Arc<dyn Backend> {
        Arc::new(self.local.clone())
    }

    /// Creates a file as `cx` and closes it.
    pub async fn file(&self, cx: &Cx, at: &Handle, text: &str, mode: u32) -> Handle {
        let how = CreateHow { set: SetAttr { mode: Some(mode), ..SetAttr::default() }, verifier: None };
        let made = self.local.create(cx, at, &name(text), &how).await.unwrap();
        self.local.close(made.open).await;
        made.node.handle
    }

    pub async fn mkdir(&self, cx: &Cx, at: &Handle, text: &str, mode: u32) -> Handle {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        self.local.make(cx, at, &name(text), &Make::Directory, &set).await.unwrap().node.handle
    }

    pub async fn lookup(&self, cx: &Cx, at: &Handle, text: &str) -> Result<Node> {
        self.local.lookup(cx, at, &name(text)).await
    }

    pub async fn write(&self, cx: &Cx, handle: &Handle, offset: u64, data: &[u8]) -> Result<Written> {
        let io = IoRef { handle, open: None };
        self.local.write(cx, io, offset, Bytes::copy_from_slice(data), Stability::Unstable).await
    }

    pub async fn read(&self, cx: &Cx, handle: &Handle, offset: u64, len: u32) -> Result<ReadData> {
        self.local.read(cx, IoRef { handle, open: None }, offset, len).await
    }

    pub async fn open(&self, cx: &Cx, handle: &Handle, read: bool, write: bool) -> Result<OpenFile> {
        let how = OpenHow { access: OpenAccess { read, write }, ..OpenHow::default() };
        self.local.open(cx, handle, &how).await
    }

    /// Whether calls act as the users who make them; says so when not, as the test cannot say much then.
    pub fn switches(&self) -> bool {
        let yes = self.local.report().switches_identity;
        if !yes {
            println!("skipped: the process may not act as other users");
        }
        yes
    }

    /// Lists a directory page by page.
    pub async fn list(&self, at: &Handle, limit: PageLimit) -> Vec<DirEntry> {
        let mut all = Vec::new();
        let mut cookie = 0;
        let mut verifier = None;
        loop {
            let page = self.local.readdir(&Cx::root(), at, cookie, limit).await.unwrap();
            assert_eq!(*verifier.get_or_insert(page.verifier), page.verifier, "case B04");
            assert!(page.entries.len() <= limit.entries);
            assert!(page.eof || !page.entries.is_empty(), "a page must advance");
            if let Some(last) = page.entries.last() {
                cookie = last.cookie;
            }
            all.extend(page.entries);
            if page.eof {
                return all;
            }
        }
    }
}
