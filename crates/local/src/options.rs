//! What can be chosen for a tree, and why one cannot be opened.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use dhow_sys::pool::AlignedPool;

use crate::fsnum::{FsNumbers, HashedFsNumbers};

/// Whether copies may share blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Reflink {
    /// Wherever the filesystem can.
    #[default]
    Auto,
    /// Never: a copy takes its own space.
    Never,
}

/// How handles are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum HandleMode {
    /// Directly if the process may, else by hints.
    #[default]
    Auto,
    /// By hints, even if the process may open them directly.
    Walk,
    /// Without kernel handles: by inode number and birth time, found by hints.
    Numbers,
}

/// What can be chosen for one tree. Start from [`Options::new`].
#[derive(Clone)]
pub struct Options {
    /// The directory that clients see as the root of the export.
    pub path: PathBuf,
    /// Where hints and verifiers of exclusive creates are kept. Without it they last as long as the process.
    pub state_dir: Option<PathBuf>,
    /// Numbers of filesystems; share one table between all exports of a server.
    pub numbers: Arc<dyn FsNumbers>,
    /// The filesystem id that clients see for the root's filesystem, instead of a derived one.
    pub fsid: Option<u64>,
    /// Enter filesystems that are mounted below the root.
    pub crossmnt: bool,
    /// Changes of names and attributes are on stable storage before the reply.
    pub metadata_sync: bool,
    /// Nobody changes the tree but through this server.
    pub exclusive: bool,
    /// Byte-range locks of clients are locks for local programs too, and theirs for clients.
    pub local_locks: bool,
    /// Whether copies may share blocks.
    pub reflink: Reflink,
    /// How handles are opened.
    pub handles: HandleMode,
    /// How many unused objects are kept at hand (each holds a descriptor or two); 0: a quarter of the limit of
    /// descriptors, 65 536 at most.
    pub max_cached: usize,
    /// How many calls of this tree may wait in the blocking pool at once.
    pub blocking: usize,
    /// How many pieces of copies of this tree may be under way at once.
    pub copies: usize,
    /// How many hints are kept in memory (about 200 bytes each).
    pub max_hints: usize,
    /// Buffers for reads; share one pool between all exports and the network.
    pub buffers: AlignedPool,
}

impl Options {
    /// Defaults for the tree at `path`: safe ones, with no state kept over a restart.
    pub fn new(path: impl Into<PathBuf>) -> Options {
        Options {
            path: path.into(),
            state_dir: None,
            numbers: Arc::new(HashedFsNumbers),
            fsid: None,
            crossmnt: false,
            metadata_sync: true,
            exclusive: false,
            local_locks: false,
            reflink: Reflink::Auto,
            handles: HandleMode::Auto,
            max_cached: 0,
            blocking: 64,
            copies: 4,
            max_hints: 1 << 20,
            buffers: AlignedPool::new(64 << 20),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("path", &self.path)
            .field("state_dir", &self.state_dir)
            .field("fsid", &self.fsid)
            .field("crossmnt", &self.crossmnt)
            .field("metadata_sync", &self.metadata_sync)
            .field("exclusive", &self.exclusive)
            .field("local_locks", &self.local_locks)
            .field("reflink", &self.reflink)
            .field("handles", &self.handles)
            .finish_non_exhaustive()
    }
}

/// Why a tree cannot be served: what was tried, on which path, and what came of it.
#[derive(Debug)]
pub struct OpenError {
    what: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl OpenError {
    pub(crate) fn new(what: &'static str, path: impl Into<PathBuf>, source: impl Into<io::Error>) -> OpenError {
        OpenError { what, path: path.into(), source: source.into() }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}: {}", self.what, self.path.display(), self.source)
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}
