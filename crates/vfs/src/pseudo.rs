//! The pseudo-root: a read-only tree of directories that leads to the exports (RFC 8881 7.3).
//!
//! A handle is the number of a directory, derived from its path, so that it is the same after a restart with the same
//! exports. What lies at an export's place is not here: the server crosses into the export when a look-up returns a
//! directory that is marked as one ([`Pseudo::export_at`]).

use crate::{
    Access, Attr, Backend, Caps, Committed, CreateHow, Created, Cx, DirChange, DirEntry, DirPage, ErrorKind, FileKind,
    FsId, FsStat, Handle, IoRef, Made, Make, Name, Node, OpenFile, OpenHow, PageLimit, ReadData, Removed, Renamed,
    Result, SetAttr, SetDone, Stability, Time, WriteVerifier, Written,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::any::Any;
use std::collections::{BTreeMap, HashMap};

/// One directory of the pseudo-root.
#[derive(Debug)]
struct Dir {
    parent: u64,
    entries: BTreeMap<Bytes, u64>,
    export: Option<usize>,
}

/// The tree that leads to the exports.
#[derive(Debug)]
pub struct Pseudo {
    dirs: HashMap<u64, Dir>,
    caps: Caps,
    started: Time,
}

/// Why a pseudo-root could not be built.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PseudoError {
    /// An export path with an empty, too long or dotted component.
    #[error("export path '{0}' is not a path of plain names starting with '/'")]
    BadPath(String),
    /// Two exports at one place.
    #[error("two exports at '{0}'")]
    Twice(String),
    /// Two paths with one number; renaming either helps.
    #[error("export paths '{0}' and another have the same 64-bit number; rename one of them")]
    Collision(String),
}

/// Number of the root directory.
const ROOT: u64 = 1;

/// FNV-1a: a stable, documented hash, for numbers that must be equal after a restart and on every node.
fn path_number(path: &[u8]) -> u64 {
    let h = path.iter().fold(0xcbf2_9ce4_8422_2325_u64, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    // Cookies must stay below 2^63 and above 2, and 1 is the root.
    (h >> 1).max(16)
}

impl Pseudo {
    /// A tree with a place for each of the export paths (`/`, `/proj`, `/a/b`), `started` being its directories' times.
    ///
    /// # Errors
    /// As [`PseudoError`] says.
    pub fn new(paths: &[&str], started: Time) -> std::result::Result<Self, PseudoError> {
        let mut dirs = HashMap::new();
        dirs.insert(ROOT, Dir { parent: ROOT, entries: BTreeMap::new(), export: None });
        for (index, path) in paths.iter().enumerate() {
            let bad = || PseudoError::BadPath((*path).to_owned());
            let rest = path.strip_prefix('/').ok_or_else(bad)?;
            let mut at = ROOT;
            let mut so_far = String::new();
            for part in rest.split('/').filter(|_| !rest.is_empty()) {
                let name = Bytes::copy_from_slice(part.as_bytes());
                Name::new(name.clone()).map_err(|_| bad())?;
                so_far.push('/');
                so_far.push_str(part);
                let number = path_number(so_far.as_bytes());
                let dir = dirs.get_mut(&at).ok_or_else(bad)?;
                if dir.entries.get(&name) != Some(&number) {
                    dir.entries.insert(name, number);
                    let new = Dir { parent: at, entries: BTreeMap::new(), export: None };
                    if dirs.insert(number, new).is_some() {
                        return Err(PseudoError::Collision(so_far));
                    }
                }
                at = number;
            }
            let dir = dirs.get_mut(&at).ok_or_else(bad)?;
            if dir.export.replace(index).is_some() {
                return Err(PseudoError::Twice((*path).to_owned()));
            }
        }
        let caps = Caps {
            acls: false,
            quotas: false,
            read_only: true,
            links: true,
            symlinks: true,
            special: false,
            xattrs: false,
            clone: false,
            clone_block: 0,
            sparse: false,
            max_file_size: i64::MAX as u64,
            max_links: 32000,
            case_sensitive: true,
            change_is_time: false,
            exclusive: true,
            time_delta_nanos: 1,
        };
        Ok(Self { dirs, caps, started })
    }

    /// Which export (by its place in the list given to [`Pseudo::new`]) lies at this directory.
    pub fn export_at(&self, handle: &Handle) -> Option<usize> {
        self.dir(handle).ok().and_then(|(_, d)| d.export)
    }

    /// The handle of the directory of `path`, and of the directory above it with the name in it.
    pub fn place_of(&self, path: &str) -> Option<(Handle, Handle)> {
        let mut at = ROOT;
        for part in path.split('/').filter(|p| !p.is_empty()) {
            at = *self.dirs.get(&at)?.entries.get(part.as_bytes())?;
        }
        let parent = self.dirs.get(&at)?.parent;
        Some((handle(at)?, handle(parent)?))
    }

    /// The number that stands for `handle`'s directory (mounted_on_fileid of the export there).
    pub fn fileid(handle: &Handle) -> Option<u64> {
        Some(u64::from_be_bytes(handle.as_bytes().try_into().ok()?))
    }

    fn dir(&self, handle: &Handle) -> Result<(u64, &Dir)> {
        let number = Self::fileid(handle).ok_or(ErrorKind::BadHandle)?;
        // A directory that led to an export which is no longer configured.
        self.dirs.get(&number).map(|d| (number, d)).ok_or_else(|| ErrorKind::Stale.into())
    }

    fn attr(&self, number: u64, dir: &Dir) -> Attr {
        let subdirs = u32::try_from(dir.entries.len()).unwrap_or(u32::MAX - 2);
        Attr {
            kind: FileKind::Directory,
            mode: 0o555,
            nlink: 2 + subdirs,
            uid: 0,
            gid: 0,
            size: 4096,
            used: 0,
            rdev: (0, 0),
            fsid: FsId { major: 0, minor: 0 },
            fileid: number,
            mounted_on_fileid: number,
            change: (self.started.secs as u64).wrapping_mul(1_000_000_000).wrapping_add(u64::from(self.started.nanos)),
            atime: self.started,
            mtime: self.started,
            ctime: self.started,
            btime: None,
        }
    }

    fn node(&self, number: u64) -> Result<Node> {
        let dir = self.dirs.get(&number).ok_or(ErrorKind::Stale)?;
        Ok(Node { handle: handle(number).ok_or(ErrorKind::Fault)?, attr: self.attr(number, dir) })
    }
}

fn handle(number: u64) -> Option<Handle> {
    Handle::new(&number.to_be_bytes())
}

#[async_trait]
impl Backend for Pseudo {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn write_verifier(&self) -> WriteVerifier {
        [0; 8]
    }

    async fn root(&self, _cx: &Cx) -> Result<Node> {
        self.node(ROOT)
    }

    fn try_getattr(&self, _cx: &Cx, handle: &Handle) -> Option<Result<Attr>> {
        Some(self.dir(handle).map(|(n, d)| self.attr(n, d)))
    }

    async fn getattr(&self, _cx: &Cx, handle: &Handle) -> Result<Attr> {
        self.dir(handle).map(|(n, d)| self.attr(n, d))
    }

    async fn setattr(&self, _: &Cx, _: &Handle, _: Option<&OpenFile>, _: &SetAttr) -> Result<SetDone> {
        Err(ErrorKind::ReadOnly.into())
    }

    async fn access(&self, _cx: &Cx, handle: &Handle, want: Access) -> Result<Access> {
        self.dir(handle)?;
        Ok(Access(want.0 & (Access::READ | Access::LOOKUP)))
    }

    fn try_lookup(&self, _cx: &Cx, dir: &Handle, name: &Name) -> Option<Result<Node>> {
        Some(self.dir(dir).and_then(|(_, d)| match d.entries.get(name.as_bytes()) {
            Some(&n) => self.node(n),
            None => Err(ErrorKind::NotFound.into()),
        }))
    }

    async fn lookup(&self, cx: &Cx, dir: &Handle, name: &Name) -> Result<Node> {
        self.try_lookup(cx, dir, name).unwrap_or_else(|| Err(ErrorKind::Fault.into()))
    }

    async fn parent(&self, _cx: &Cx, dir: &Handle) -> Result<Node> {
        match self.dir(dir)? {
            (ROOT, _) => Err(ErrorKind::NotFound.into()),
            (_, d) => self.node(d.parent),
        }
    }

    async fn readlink(&self, _cx: &Cx, _handle: &Handle) -> Result<Bytes> {
        Err(ErrorKind::Invalid.into())
    }

    async fn create(&self, _: &Cx, _: &Handle, _: &Name, _: &CreateHow) -> Result<Created> {
        Err(ErrorKind::ReadOnly.into())
    }

    async fn make(&self, _: &Cx, _: &Handle, _: &Name, _: &Make, _: &SetAttr) -> Result<Made> {
        Err(ErrorKind::ReadOnly.into())
    }

    async fn link(&self, _: &Cx, _: &Handle, _: &Handle, _: &Name) -> Result<DirChange> {
        Err(ErrorKind::ReadOnly.into())
    }

    async fn remove(&self, _: &Cx, _: &Handle, _: &Name) -> Result<Removed> {
        Err(ErrorKind::ReadOnly.into())
    }

    async fn rename(&self, _: &Cx, _: &Handle, _: &Name, _: &Handle, _: &Name) -> Result<Renamed> {
        Err(ErrorKind::ReadOnly.into())
    }

    async fn readdir(&self, _cx: &Cx, dir: &Handle, cookie: u64, limit: PageLimit) -> Result<DirPage> {
        let (_, dir) = self.dir(dir)?;
        // Cookies are the numbers of the directories, so the listing goes by number.
        let mut order: Vec<(u64, &Bytes)> = dir.entries.iter().map(|(name, &n)| (n, name)).collect();
        order.sort_unstable_by_key(|e| e.0);
        let mut page = DirPage { eof: true, ..DirPage::default() };
        let mut bytes = 0;
        for (number, name) in order.into_iter().filter(|e| e.0 > cookie) {
            if !page.entries.is_empty() && (page.entries.len() >= limit.entries || bytes >= limit.name_bytes) {
                page.eof = false;
                break;
            }
            bytes += name.len();
            let node = limit.nodes.then(|| self.node(number).map_err(|e| e.kind()));
            page.entries.push(DirEntry { name: name.clone(), cookie: number, fileid: number, node });
        }
        Ok(page)
    }

    async fn open(&self, _: &Cx, handle: &Handle, _: &OpenHow) -> Result<OpenFile> {
        self.dir(handle)?;
        Err(ErrorKind::IsDir.into())
    }

    async fn reopen(&self, _: &Cx, _: &OpenFile, _: &OpenHow) -> Result<OpenFile> {
        Err(ErrorKind::IsDir.into())
    }

    async fn close(&self, _open: OpenFile) {}

    async fn read(&self, _: &Cx, file: IoRef<'_>, _: u64, _: u32) -> Result<ReadData> {
        self.dir(file.handle)?;
        Err(ErrorKind::IsDir.into())
    }

    async fn write(&self, _: &Cx, _: IoRef<'_>, _: u64, _: Bytes, _: Stability) -> Result<Written> {
        Err(ErrorKind::ReadOnly.into())
    }

    async fn commit(&self, _: &Cx, _: IoRef<'_>, _: u64, _: u64) -> Result<Committed> {
        Err(ErrorKind::IsDir.into())
    }

    async fn statfs(&self, _: &Cx, _: &Handle) -> Result<FsStat> {
        Ok(FsStat::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Time = Time { secs: 1_700_000_000, nanos: 5 };

    #[test]
    fn numbers_are_those_of_the_path() {
        let a = Pseudo::new(&["/a/b", "/c"], T).unwrap();
        let b = Pseudo::new(&["/c", "/d", "/a/b"], T).unwrap();
        assert_eq!(a.place_of("/a/b"), b.place_of("/a/b"));
        let place = a.place_of("/a/b").unwrap().0;
        assert_eq!(a.export_at(&place), Some(0));
        assert_eq!(b.export_at(&place), Some(2));
    }

    #[test]
    fn bad_paths_are_named() {
        for bad in ["a", "/a//b", "/a/../b", "/a/"] {
            assert_eq!(Pseudo::new(&[bad], T).unwrap_err(), PseudoError::BadPath(bad.into()), "{bad}");
        }
        assert_eq!(Pseudo::new(&["/a", "/a"], T).unwrap_err(), PseudoError::Twice("/a".into()));
        assert!(Pseudo::new(&["/", "/a"], T).is_ok());
    }
}
