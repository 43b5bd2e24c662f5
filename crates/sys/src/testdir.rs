//! Directories for tests: one on the disk filesystem of the temporary directory, one on tmpfs.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::open;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A directory that is removed when the value goes.
pub struct TestDir {
    path: PathBuf,
}

impl TestDir {
    fn under(base: &Path) -> TestDir {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("dhow-sys-{}-{n}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        TestDir { path }
    }

    /// On the filesystem of the temporary directory (usually ext4).
    pub fn disk() -> TestDir {
        TestDir::under(&std::env::temp_dir())
    }

    /// One directory on each filesystem that tests should cover.
    pub fn each() -> Vec<TestDir> {
        let mut all = vec![TestDir::disk()];
        if Path::new("/dev/shm").is_dir() {
            all.push(TestDir::under(Path::new("/dev/shm")));
        }
        all
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// A readable descriptor of the directory.
    pub fn fd(&self) -> OwnedFd {
        std::fs::File::open(&self.path).unwrap().into()
    }

    /// An `O_PATH` descriptor of an entry.
    pub fn o_path(&self, name: &str) -> OwnedFd {
        open::path_beneath(self.fd(), name.as_bytes(), open::Crossing::Refused).unwrap()
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// True if tests that switch identity can run; says why when they cannot.
pub fn can_switch() -> bool {
    let yes = crate::cred::can_switch_identity();
    if !yes {
        println!("skipped: this process may not change its fsuid");
    }
    yes
}
