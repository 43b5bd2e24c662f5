//! What is served: exports, and the pseudo-root that leads to them.

use crate::config::{ExportConfig, ExportOptions};
use crate::copy::partners::Behalf;
use crate::fh::{Place, export_id};
use dhow_vfs::pseudo::{Pseudo, PseudoError};
use dhow_vfs::{Backend, Cx, FsId, Handle, Name, Node, ObjectId, OpenFile, PageLimit, Time, Watch, readonly::ReadOnly};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// One export, or the pseudo-root.
pub struct Export {
    /// Its id in filehandles; 0 for the pseudo-root.
    pub id: u32,
    /// Where it lies in the namespace.
    pub path: String,
    /// What is served; refuses changes if the export is read-only.
    pub backend: Arc<dyn Backend>,
    /// Options.
    pub options: ExportOptions,
    /// What handles of it begin with.
    pub place: Place,
    /// The directory of the pseudo-root that it lies at, and its number.
    mount: (Handle, u64),
    root: OnceLock<Handle>,
    /// Another export lies below this one's place.
    nests: bool,
    /// What was configured, without what `backend` may wrap around it: the same as long as the export is there.
    origin: Arc<dyn Backend>,
}

impl Export {
    /// Whether this is the pseudo-root.
    pub fn is_pseudo(&self) -> bool {
        self.place == Place::Pseudo
    }

    /// Whether both are one export, whose options may have been changed in between.
    pub(crate) fn same_origin(&self, other: &Self) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.origin), Arc::as_ptr(&other.origin))
    }

    /// The root directory: asks the backend once to learn the handle, and each time for the attributes.
    ///
    /// # Errors
    /// The backend's.
    pub async fn root(&self, cx: &Cx) -> dhow_vfs::Result<Node> {
        let node = self.backend.root(cx).await?;
        let _ = self.root.set(node.handle.clone());
        Ok(node)
    }

    /// Whether `handle` is that of the root directory, as far as is known.
    pub fn is_root(&self, handle: &Handle) -> bool {
        self.root.get() == Some(handle)
    }

    /// What clients are told for `mounted_on_fileid` of the root directory.
    pub fn mounted_on(&self) -> u64 {
        self.mount.1
    }

    /// What clients are told for a filesystem of this export: distinct from those of other exports, and never that of
    /// the pseudo-root, so that clients notice every crossing (RFC 8881 7.7). Constant over restarts.
    pub fn fsid(&self, fsid: FsId) -> FsId {
        if self.is_pseudo() {
            return fsid;
        }
        match (FsId { major: fsid.major ^ (u64::from(self.id) << 32), ..fsid }) {
            FsId { major: 0, minor: 0 } => FsId { major: 1, minor: 0 },
            other => other,
        }
    }
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Export({:?}, {:#010x})", self.path, self.id)
    }
}

/// An open file as the server keeps it in its state: the token, and whose it is.
#[derive(Clone, Debug)]
pub struct OpenToken {
    /// The export it was opened through.
    pub export: Arc<Export>,
    /// The file.
    pub handle: Handle,
    /// The backend's token.
    pub file: OpenFile,
    /// The user who opened it: an OPEN by another one that adds to it is checked anew.
    pub uid: u32,
    /// Of a copy-notify stateid: in whose name it is used.
    pub behalf: Option<Arc<Behalf>>,
    /// Of a delegation: what tells of local writers.
    pub watch: Option<Watch>,
}

/// Why exports cannot be served together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The paths make no tree.
    #[error(transparent)]
    Pseudo(#[from] PseudoError),
    /// Two paths with the same 32-bit number.
    #[error("export paths '{0}' and '{1}' have the same number in filehandles; rename one of them")]
    Collision(String, String),
}

/// Directories of exports and their counterparts in the pseudo-root.
#[derive(Default)]
struct Ways {
    down: HashMap<(u32, ObjectId), Handle>,
    up: HashMap<Handle, (u32, Handle)>,
}

/// A directory of an export on the way to one nested in it.
struct Way {
    export: u32,
    object: ObjectId,
    handle: Handle,
    place: Handle,
}

/// All exports.
pub struct Exports {
    pseudo: Arc<Export>,
    tree: Arc<Pseudo>,
    list: Vec<Arc<Export>>,
    by_id: HashMap<u32, Arc<Export>>,
    /// Directories inside of exports through which the way to a nested export leads. Found at the start.
    ways: OnceLock<Ways>,
}

impl Exports {
    /// Builds the pseudo-root; `started` gives the times of its directories.
    ///
    /// # Errors
    /// Paths that are no paths, or that collide.
    pub fn new(configs: Vec<ExportConfig>, started: Time) -> Result<Self, ExportError> {
        let paths: Vec<&str> = configs.iter().map(|c| c.path.as_str()).collect();
        let tree = Arc::new(Pseudo::new(&paths, started)?);
        let none = || (Handle::new(&[]), 0);
        let mut list = Vec::with_capacity(configs.len());
        let mut by_id: HashMap<u32, Arc<Export>> = HashMap::new();
        let paths: Vec<String> = configs.iter().map(|c| c.path.clone()).collect();
        for config in configs {
            let below = format!("{}/", config.path.trim_end_matches('/'));
            let nests = paths.iter().any(|p| *p != config.path && p.starts_with(&below));
            let id = export_id(&config.path);
            let mount = tree.place_of(&config.path).map_or_else(none, |(h, _)| {
                let number = Pseudo::fileid(&h).unwrap_or(0);
                (Some(h), number)
            });
            let (Some(handle), number) = mount else { continue };
            let origin = Arc::clone(&config.backend);
            let backend: Arc<dyn Backend> = match config.options.read_only {
                true => Arc::new(ReadOnly::new(config.backend)),
                false => config.backend,
            };
            let export = Arc::new(Export {
                id,
                path: config.path,
                backend,
                options: config.options,
                place: Place::Export(id),
                mount: (handle, number),
                root: OnceLock::new(),
                nests,
                origin,
            });
            if let Some(other) = by_id.insert(id, Arc::clone(&export)) {
                return Err(ExportError::Collision(other.path.clone(), export.path.clone()));
            }
            list.push(export);
        }
        let root = Handle::new(&1u64.to_be_bytes());
        let pseudo = Arc::new(Export {
            id: 0,
            path: String::new(),
            backend: Arc::clone(&tree) as Arc<dyn Backend>,
            // Everybody may look at the way to the exports, as whoever they say they are.
            options: ExportOptions { squash: crate::config::Squash::None, ..ExportOptions::default() },
            place: Place::Pseudo,
            mount: (root.ok_or(PseudoError::BadPath(String::new()))?, 1),
            root: OnceLock::new(),
            nests: false,
            origin: Arc::clone(&tree) as Arc<dyn Backend>,
        });
        Ok(Self { pseudo, tree, list, by_id, ways: OnceLock::new() })
    }

    /// The pseudo-root.
    pub fn pseudo(&self) -> &Arc<Export> {
        &self.pseudo
    }

    /// All exports, without the pseudo-root.
    pub fn list(&self) -> &[Arc<Export>] {
        &self.list
    }

    /// The export a handle belongs to; `None` if it is not configured any more.
    pub fn at(&self, place: Place) -> Option<&Arc<Export>> {
        match place {
            Place::Pseudo => Some(&self.pseudo),
            Place::Export(id) => self.by_id.get(&id),
        }
    }

    /// The export that lies at a directory of the pseudo-root.
    pub fn mounted_at(&self, pseudo_dir: &Handle) -> Option<&Arc<Export>> {
        self.tree.export_at(pseudo_dir).and_then(|i| self.list.get(i))
    }

    /// The directory of the pseudo-root that an export lies at.
    pub fn mount_of<'a>(&self, export: &'a Export) -> &'a Handle {
        &export.mount.0
    }

    /// What of the pseudo-root lies at `name` in a directory of an export, if the way to a nested export leads there: a
    /// place of an export, or a directory on the way to one.
    pub(crate) fn nested(&self, export: &Export, dir: &Handle, name: &Name) -> Option<Node> {
        if !export.nests {
            return None;
        }
        let place = if export.is_root(dir) {
            &export.mount.0
        } else {
            self.ways.get()?.down.get(&(export.id, export.backend.object_id(dir)))?
        };
        self.tree.try_lookup(&Cx::root(), place, name)?.ok()
    }

    /// The directory of an export that stands at a place of the pseudo-root which is no export's own place, but on the
    /// way to one.
    pub(crate) fn real(&self, pseudo_dir: &Handle) -> Option<(&Arc<Export>, &Handle)> {
        let (export, handle) = self.ways.get()?.up.get(pseudo_dir)?;
        Some((self.by_id.get(export)?, handle))
    }

    /// Learns the roots of all exports, so that `mounted_on_fileid` is right from the start, and the ways through
    /// exports to those nested in them. An export that does not answer is not waited for: it learns its root when
    /// somebody crosses into it.
    pub(crate) async fn warm(&self, limit: Duration) {
        let all = self.list.iter().map(|export| async {
            match tokio::time::timeout(limit, self.learn(export)).await {
                Ok(Ok(ways)) => ways,
                Ok(Err(error)) => {
                    tracing::warn!(path = %export.path, %error, "export cannot be reached yet");
                    Vec::new()
                }
                Err(_) => {
                    tracing::warn!(path = %export.path, "export does not answer yet");
                    Vec::new()
                }
            }
        });
        let mut ways = Ways::default();
        for way in futures_util::future::join_all(all).await.into_iter().flatten() {
            ways.up.insert(way.place.clone(), (way.export, way.handle));
            ways.down.insert((way.export, way.object), way.place);
        }
        let _ = self.ways.set(ways);
    }

    async fn learn(&self, export: &Export) -> dhow_vfs::Result<Vec<Way>> {
        let cx = Cx::root();
        let root = export.root(&cx).await?;
        let mut found = Vec::new();
        let mut todo = if export.nests { vec![(export.mount.0.clone(), root.handle)] } else { Vec::new() };
        while let Some((place, real)) = todo.pop() {
            let limit = PageLimit { entries: usize::MAX, name_bytes: usize::MAX, nodes: true };
            for entry in self.tree.readdir(&cx, &place, 0, limit).await?.entries {
                let (Some(Ok(node)), Ok(name)) = (entry.node, Name::new(entry.name)) else { continue };
                if self.mounted_at(&node.handle).is_some() {
                    continue;
                }
                // Where the directory is not there, the pseudo-root's own stands in for it.
                if let Ok(there) = export.backend.lookup(&cx, &real, &name).await {
                    let object = export.backend.object_id(&there.handle);
                    let (handle, place) = (there.handle.clone(), node.handle.clone());
                    found.push(Way { export: export.id, object, handle, place });
                    todo.push((node.handle, there.handle));
                }
            }
        }
        Ok(found)
    }
}

impl fmt::Debug for Exports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.list).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(path: &str) -> ExportConfig {
        let backend = Arc::new(Pseudo::new(&[], Time::default()).unwrap());
        ExportConfig { path: path.to_owned(), backend, options: ExportOptions::default() }
    }

    #[test]
    fn paths_with_one_number_are_refused() {
        let mut seen = HashMap::new();
        let (a, b) = (0..)
            .find_map(|i: u32| {
                let path = format!("/{i}");
                seen.insert(export_id(&path), path.clone()).map(|other| (other, path))
            })
            .unwrap();
        let refused = Exports::new(vec![config(&a), config(&b)], Time::default()).unwrap_err();
        assert!(matches!(refused, ExportError::Collision(x, y) if (&x, &y) == (&a, &b)));
        assert!(Exports::new(vec![config(&a)], Time::default()).is_ok());
    }

    #[test]
    fn filesystems_of_exports_are_told_apart() {
        // RFC 8881 7.7; case B09. Neither may look like the pseudo-root, whose fsid is 0.
        let exports = Exports::new(vec![config("/a"), config("/b")], Time::default()).unwrap();
        let [a, b] = exports.list() else { panic!() };
        for fsid in [FsId::default(), FsId { major: u64::from(a.id) << 32, minor: 0 }, FsId { major: 7, minor: 9 }] {
            assert_ne!(a.fsid(fsid), b.fsid(fsid));
            assert_ne!(a.fsid(fsid), FsId::default());
            assert_eq!(exports.pseudo().fsid(fsid), fsid);
        }
    }
}
