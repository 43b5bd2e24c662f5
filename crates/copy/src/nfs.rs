//! An NFS server, through the client library.

use crate::endpoint::{
    Endpoint, Entry, Kind, Meta, Method, Moved, Offload, Pages, SetMeta, Sink, Source, Synced, Time, file_name,
};
use crate::inter::{Inter, Shared};
use crate::within::{Copying, clone_all};
use crate::{Calls, Error, ErrorKind, Result, temp};
use async_trait::async_trait;
use bytes::Bytes;
use dhow_client::v4::ops::{CreateType, DataContent};
use dhow_client::v4::{Attrs, FileHandle, FileType, NfsTime, OpNum, SetTime, SpecData, StableHow, Status, Verifier};
use dhow_client::{
    Client, ClientConfig, Create, DirStream, File, Fs, NfsUrl, Node, OpenOptions, Place, PutOptions, STAT,
};
use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Entries of a page of a listing.
const PAGE: usize = 256;
/// Files of up to so many bytes are read in one call and written in one.
const SMALL: u32 = 64 << 10;
/// Directories whose handles are remembered.
const DIRS: usize = 4096;
/// How long a server that would not copy from another one is not asked again.
const REFUSAL: Duration = Duration::from_secs(60);
/// Names tried for an unfinished file while the server loses the outcome of creating it.
const CREATE_TRIES: u32 = 3;
/// How long the removal of such a name may take.
const CLEAN_UP: Duration = Duration::from_secs(5);

/// A server that files are copied from or to. Paths are those of its one tree, from the root.
pub struct NfsEndpoint {
    fs: Fs,
    /// `host:port`, or `host` with the usual port, for messages.
    url: NfsUrl,
    /// `so_major_id` and `server_scope`: equal for two addresses of one server (RFC 8881 2.10.5).
    identity: Option<(Bytes, Bytes)>,
    /// Handles of directories that were looked at: what is below them is reached without walking again.
    dirs: Mutex<HashMap<PathBuf, FileHandle>>,
    /// What this server turned out not to do, by filesystem.
    cannot: Mutex<HashSet<(Method, (u64, u64))>>,
    /// From which servers this one would not copy, since when, and why.
    refusals: Mutex<HashMap<String, (Instant, String)>>,
    no_seek: Arc<AtomicBool>,
    /// Largest file that fits one call, bytes.
    small: u32,
    minor_version: u32,
}

impl NfsEndpoint {
    /// Connects to the server of `url` as the user of this process.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`], with what the user can do about it.
    pub async fn connect(url: &NfsUrl) -> Result<Self> {
        let place = url.authority();
        let config = ClientConfig::for_url(url).await.map_err(|e| {
            Error::with(ErrorKind::Unreachable, place.clone(), format!("cannot find the address of the server: {e}"))
        })?;
        let client = Client::connect(config).await.map_err(|e| failure(&e, place.clone()))?;
        let info = client.session_begun().await.map_err(|e| failure(&e, place.clone()))?;
        let identity = info.server.map(|s| (s.server_owner.major_id, s.server_scope));
        Ok(Self {
            fs: client.fs(),
            url: url.clone(),
            identity,
            dirs: Mutex::default(),
            cannot: Mutex::default(),
            refusals: Mutex::default(),
            minor_version: info.minor_version,
            no_seek: Arc::default(),
            // Beside the data a call has names and headers.
            small: info.max_request_size.min(info.max_response_size).saturating_sub(16 << 10).min(SMALL),
        })
    }

    /// The tree of the server.
    pub fn fs(&self) -> &Fs {
        &self.fs
    }

    /// The client underneath.
    pub fn client(&self) -> &Client {
        self.fs.client()
    }

    /// Whether both lead to one server, be it under two names.
    pub fn same_server(&self, other: &Self) -> bool {
        self.identity.is_some() && self.identity == other.identity
    }

    /// Ends the session.
    pub async fn close(&self) {
        if let Err(e) = self.client().close().await {
            // The server ends it when the lease runs out.
            tracing::debug!(error = %e, "cannot end the session");
        }
    }

    fn err(&self, path: &Path) -> impl FnOnce(dhow_client::Error) -> Error {
        let shown = self.shown(path);
        move |e| failure(&e, shown)
    }

    /// The object at `path`, by the handle of its directory if that is known.
    fn place(&self, path: &Path) -> Place {
        if let Some((dir, name)) = self.known_dir(path) {
            return Place::Entry(dir, name);
        }
        Place::Path(Bytes::copy_from_slice(path.as_os_str().as_bytes()))
    }

    fn known_dir(&self, path: &Path) -> Option<(FileHandle, Bytes)> {
        let (parent, name) = (path.parent()?, path.file_name()?);
        let dirs = self.dirs.lock().unwrap_or_else(PoisonError::into_inner);
        dirs.get(parent).map(|fh| (fh.clone(), Bytes::copy_from_slice(name.as_bytes())))
    }

    fn remember(&self, path: &Path, node: &Node) {
        if node.is_dir() {
            let mut dirs = self.dirs.lock().unwrap_or_else(PoisonError::into_inner);
            if dirs.len() >= DIRS {
                dirs.clear();
            }
            dirs.insert(path.to_owned(), node.fh.clone());
        }
    }

    /// A directory got another name, or is gone.
    fn forget_dirs(&self) {
        self.dirs.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Copies from another server.
    async fn pull(&self, from: &NfsSource, to: &NfsSink, sync: bool, moved: Moved<'_>) -> Result<Offload> {
        if from.meta.size == 0 {
            return Ok(Offload::Done { bytes: 0, durable: false });
        }
        {
            let refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((since, why)) = refusals.get(&from.authority)
                && since.elapsed() < REFUSAL
            {
                return Ok(Offload::Refused(why.clone()));
            }
        }
        let done = Inter::new(from, to, sync, moved).run().await;
        if let Ok(Offload::Refused(why)) = &done {
            let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
            refusals.insert(from.authority.clone(), (Instant::now(), why.clone()));
        }
        done
    }

    async fn rename_within(&self, from: &Path, to: &Path) -> Result<()> {
        self.fs.rename(self.place(from), self.place(to)).await.map_err(self.err(to))
    }
}

impl std::fmt::Debug for NfsEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NfsEndpoint({})", self.url.authority())
    }
}

/// An error of the client library, in this crate's words.
pub(crate) fn failure(error: &dhow_client::Error, place: impl Into<String>) -> Error {
    use dhow_client::Error as E;
    let kind = match error {
        E::Status { status, .. } => match *status {
            Status::NOENT => ErrorKind::NotFound,
            Status::EXIST => ErrorKind::Exists,
            Status::NOTDIR => ErrorKind::NotDirectory,
            Status::ISDIR => ErrorKind::IsDirectory,
            Status::NOTEMPTY => ErrorKind::NotEmpty,
            // What stops the superuser is most often that the server takes him for nobody.
            Status::ACCESS | Status::PERM if crate::is_superuser() => {
                let words = "permission denied; servers take root for nobody, unless they export with no_root_squash";
                return Error::with(ErrorKind::Permission, place, words);
            }
            Status::ACCESS | Status::PERM => ErrorKind::Permission,
            Status::NOSPC | Status::DQUOT => ErrorKind::NoSpace,
            Status::ROFS => ErrorKind::ReadOnly,
            Status::NAMETOOLONG | Status::BADNAME | Status::BADCHAR => ErrorKind::BadName,
            Status::FBIG => ErrorKind::TooBig,
            Status::STALE => ErrorKind::Stale,
            Status::LOCKED | Status::SHARE_DENIED | Status::FILE_OPEN => ErrorKind::Busy,
            Status::WRONG_TYPE => ErrorKind::NotRegular,
            status if is_refusal(status) => {
                return Error::with(ErrorKind::Unsupported, place, without_path(error));
            }
            _ => return Error::with(ErrorKind::Io, place, without_path(error)),
        },
        E::TooManyLinks(_) => ErrorKind::Loop,
        E::WritesLost | E::CopyLost => ErrorKind::DataLost,
        E::Auth(_) => return Error::with(ErrorKind::Permission, place, error.to_string()),
        E::Argument(_) => return Error::with(ErrorKind::BadName, place, error.to_string()),
        // It names the server itself.
        E::Io { .. } => return Error::with(ErrorKind::Unreachable, "", error.to_string()),
        E::Closed | E::TimedOut(_) | E::Unsupported(_) => {
            return Error::with(ErrorKind::Unreachable, place, error.to_string());
        }
        _ => return Error::with(ErrorKind::Io, place, error.to_string()),
    };
    Error::new(kind, place)
}

/// Statuses that say "not this way" and nothing about the file: another method may work.
pub(crate) fn is_refusal(status: Status) -> bool {
    matches!(
        status,
        Status::NOTSUPP
            | Status::OP_ILLEGAL
            | Status::XDEV
            | Status::INVAL
            | Status::OFFLOAD_DENIED
            | Status::OFFLOAD_NO_REQS
            | Status::UNION_NOTSUPP
            | Status::WRONG_LFS
            | Status::PARTNER_NOTSUPP
    )
}

/// The message without the path, which is put before it in another form.
pub(crate) fn without_path(error: &dhow_client::Error) -> String {
    error.clone().without_path().to_string()
}

fn time(t: Option<NfsTime>) -> Time {
    t.map_or(Time::default(), |t| Time { secs: t.secs, nanos: t.nanos })
}

/// Owners are numbers as text with AUTH_SYS (RFC 8881 5.9); a name from elsewhere means nothing here.
fn id(text: Option<&Bytes>) -> Option<u32> {
    std::str::from_utf8(text?).ok()?.parse().ok()
}

fn meta_of(a: &Attrs) -> Meta {
    let device = a.rawdev.map_or((0, 0), |d| (d.major, d.minor));
    let kind = match a.file_type {
        Some(FileType::DIR) => Kind::Dir,
        Some(FileType::LNK) => Kind::Symlink,
        Some(FileType::FIFO) => Kind::Fifo,
        Some(FileType::SOCK) => Kind::Socket,
        Some(FileType::BLK) => Kind::Block(device.0, device.1),
        Some(FileType::CHR) => Kind::Char(device.0, device.1),
        _ => Kind::File,
    };
    let size = a.size.unwrap_or(0);
    let fsid = a.fsid.map_or((0, 0), |f| (f.major, f.minor));
    Meta {
        kind,
        mode: a.mode.unwrap_or(0) & 0o7777,
        uid: id(a.owner.as_ref()),
        gid: id(a.owner_group.as_ref()),
        size,
        used: a.space_used.unwrap_or(size),
        nlink: a.numlinks.unwrap_or(1),
        id: (fsid.0, fsid.1, a.fileid.unwrap_or(0)),
        atime: time(a.time_access),
        mtime: time(a.time_modify),
        ctime: time(a.time_metadata),
    }
}

fn attrs_of(set: &SetMeta) -> Attrs {
    let time = |t: Option<Time>| t.map(|t| SetTime::Client(NfsTime { secs: t.secs, nanos: t.nanos }));
    let owner = |id: Option<u32>| id.map(|id| Bytes::from(id.to_string()));
    Attrs {
        mode: set.mode,
        owner: owner(set.uid),
        owner_group: owner(set.gid),
        time_access_set: time(set.atime),
        time_modify_set: time(set.mtime),
        ..Attrs::default()
    }
}

/// A failure to set attributes, which is often one to set the owner.
fn set_failure(error: &dhow_client::Error, set: &SetMeta, place: String) -> Error {
    let denied = error.is(Status::PERM) || error.is(Status::ACCESS) || error.is(Status::BADOWNER);
    if denied && (set.uid.is_some() || set.gid.is_some()) {
        let words = "the server does not let this user set the owner; use --no-owner, or export with no_root_squash";
        return Error::with(ErrorKind::Permission, place, words);
    }
    failure(error, place)
}

pub(crate) struct NfsSource {
    file: RwLock<Shared>,
    meta: Meta,
    chunk: u32,
    pub(crate) shown: String,
    pub(crate) fs: Fs,
    pub(crate) place: Place,
    /// The server.
    authority: String,
    /// The server cannot say where holes are.
    no_seek: Arc<AtomicBool>,
}

impl NfsSource {
    /// The file, open.
    pub(crate) fn file(&self) -> Shared {
        Arc::clone(&self.file.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// It had to be opened again.
    pub(crate) fn replace(&self, file: File) {
        *self.file.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(file);
    }
}

#[async_trait]
impl Source for NfsSource {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn chunk(&self) -> u32 {
        self.chunk
    }

    async fn read(&self, offset: u64, len: u32) -> Result<Bytes> {
        let read = self.file().read_full_at(offset, len).await;
        Ok(read.map_err(|e| failure(&e, self.shown.clone()))?.data)
    }

    async fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>> {
        let size = self.meta.size;
        if offset >= size {
            return Ok(None);
        }
        // No holes: no need to ask for them.
        if self.meta.used >= size || self.no_seek.load(Ordering::Relaxed) {
            return Ok(Some(offset..size));
        }
        let file = self.file();
        let start = match file.seek(offset, DataContent::DATA).await {
            Ok(found) if found.eof || found.offset >= size => return Ok(None),
            Ok(found) => found.offset,
            // No data follows (RFC 7862 15.11.3).
            Err(e) if e.is(Status::NXIO) => return Ok(None),
            Err(e) if e.wire_status().is_some_and(is_refusal) => {
                self.no_seek.store(true, Ordering::Relaxed);
                return Ok(Some(offset..size));
            }
            Err(e) => return Err(failure(&e, self.shown.clone())),
        };
        let end = match file.seek(start, DataContent::HOLE).await {
            Ok(found) if found.offset > start => found.offset.min(size),
            _ => size,
        };
        Ok(Some(start..end))
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }

    async fn close(self: Box<Self>) -> Result<()> {
        let shown = self.shown;
        let file = self.file.into_inner().unwrap_or_else(PoisonError::into_inner);
        match Arc::into_inner(file) {
            Some(file) => file.close().await.map_err(|e| failure(&e, shown)),
            // Somebody uses it still, who was told to stop: it is closed when that has ended.
            None => Ok(()),
        }
    }
}

/// Under which write verifier the data lies that is not known to be stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unstable {
    Nothing,
    Under(Verifier),
    /// The verifier changed in between: some of it is lost.
    Lost,
}

async fn close(file: Option<File>) -> dhow_client::Result<()> {
    match file {
        Some(file) => file.close().await,
        None => Ok(()),
    }
}

pub(crate) struct NfsSink {
    file: RwLock<Option<Shared>>,
    fs: Fs,
    /// Of the directory, if it is known.
    dir: Option<FileHandle>,
    temp: PathBuf,
    path: PathBuf,
    places: (Place, Place),
    chunk: u32,
    pub(crate) shown: String,
    unstable: Mutex<Unstable>,
}

impl NfsSink {
    /// The file, open.
    pub(crate) fn file(&self) -> Result<Shared> {
        let file = self.file.read().unwrap_or_else(PoisonError::into_inner).clone();
        file.ok_or_else(|| Error::with(ErrorKind::Io, self.shown.clone(), "the file is closed"))
    }

    /// It had to be opened again.
    pub(crate) fn replace(&self, file: File) {
        *self.file.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(file));
    }

    fn take(&mut self) -> Option<Shared> {
        self.file.get_mut().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn client(&self) -> &Client {
        self.fs.client()
    }

    pub(crate) fn fs(&self) -> &Fs {
        &self.fs
    }

    /// The unfinished file.
    pub(crate) fn temp_place(&self) -> &Place {
        &self.places.0
    }

    pub(crate) async fn set_size_now(&self, size: u64) -> Result<()> {
        self.file()?.set_size(size).await.map_err(|e| self.err(&e))
    }

    pub(crate) fn err(&self, e: &dhow_client::Error) -> Error {
        failure(e, self.shown.clone())
    }

    /// Notes that data was written under `verifier`.
    fn note(&self, committed: StableHow, verifier: Verifier) {
        if committed == StableHow::FILE_SYNC {
            return;
        }
        let mut unstable = self.unstable.lock().unwrap_or_else(PoisonError::into_inner);
        *unstable = match *unstable {
            Unstable::Nothing => Unstable::Under(verifier),
            Unstable::Under(old) if old == verifier => Unstable::Under(old),
            Unstable::Under(_) | Unstable::Lost => Unstable::Lost,
        };
    }

    /// CLOSE, the attributes and the name in one call. What is durable was settled before, by [`Sink::sync`]: a file
    /// whose data was lost never gets as far as its final name.
    /// The CLOSE of `source`, a file of the same server, rides along. The second result is that of closing it.
    async fn settle(&mut self, set: &SetMeta, source: Option<File>) -> (Result<()>, dhow_client::Result<()>) {
        let Some(file) = self.take() else {
            let gone = Error::with(ErrorKind::Io, self.shown.clone(), "the file is closed");
            return (Err(gone), close(source).await);
        };
        let (fh, dir) = (file.fh().clone(), file.dir().or(self.dir.as_ref()).cloned());
        let (file, dir) = match (Arc::into_inner(file), dir) {
            (Some(file), Some(dir)) => (file, dir),
            // It had to be opened again meanwhile, by its handle; or somebody uses it still.
            (file, _) => return tokio::join!(self.in_steps(file, &fh, set), close(source)),
        };
        let attrs = (!set.is_empty()).then(|| attrs_of(set));
        let name = |path: &Path| Bytes::copy_from_slice(path.file_name().unwrap_or_default().as_bytes());
        let names = (name(&self.temp), name(&self.path));
        let (done, closed) = match source {
            Some(source) => file.close_both_as(source, attrs.as_ref(), &dir, names.0, names.1).await,
            None => (file.close_as(attrs.as_ref(), &dir, names.0, names.1).await, Ok(())),
        };
        let done = done.map_err(|e| match e {
            dhow_client::Error::Status { op: OpNum::SETATTR, .. } => set_failure(&e, set, self.shown.clone()),
            e => self.err(&e),
        });
        (done, closed)
    }

    /// As [`NfsSink::settle`], in a call for each step.
    async fn in_steps(&self, file: Option<File>, fh: &FileHandle, set: &SetMeta) -> Result<()> {
        close(file).await.map_err(|e| self.err(&e))?;
        if !set.is_empty() {
            let done = self.fs.setattr(fh, &attrs_of(set)).await;
            done.map_err(|e| set_failure(&e, set, self.shown.clone()))?;
        }
        self.fs.rename(&self.places.0, &self.places.1).await.map_err(|e| self.err(&e))
    }

    async fn remove(&mut self) {
        if let Some(file) = self.take().and_then(Arc::into_inner) {
            // A file that could not be closed can be removed all the same.
            let _ = file.close().await;
        }
        match self.fs.remove(&self.places.0).await {
            Ok(()) => {}
            Err(e) => tracing::warn!(file = %self.temp.display(), error = %e, "cannot remove an unfinished file"),
        }
    }
}

#[async_trait]
impl Sink for NfsSink {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn chunk(&self) -> u32 {
        self.chunk
    }

    async fn write(&self, offset: u64, data: Bytes) -> Result<()> {
        let done = self.file()?.write_all_at(offset, data, StableHow::UNSTABLE).await;
        match done {
            Ok(ok) => self.note(ok.committed, ok.verifier),
            Err(dhow_client::Error::WritesLost) => {
                *self.unstable.lock().unwrap_or_else(PoisonError::into_inner) = Unstable::Lost;
            }
            Err(e) => return Err(self.err(&e)),
        }
        Ok(())
    }

    async fn set_size(&self, size: u64) -> Result<()> {
        self.set_size_now(size).await
    }

    async fn sync(&self) -> Result<Synced> {
        let unstable = {
            let mut unstable = self.unstable.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *unstable, Unstable::Nothing)
        };
        match unstable {
            Unstable::Nothing => Ok(Synced::Durable),
            Unstable::Lost => Ok(Synced::Lost),
            Unstable::Under(verifier) => {
                let now = self.file()?.commit(0, 0).await.map_err(|e| self.err(&e))?;
                Ok(if now == verifier { Synced::Durable } else { Synced::Lost })
            }
        }
    }

    async fn finish(mut self: Box<Self>, set: &SetMeta) -> Result<()> {
        let (done, _) = self.settle(set, None).await;
        if done.is_err() {
            self.remove().await;
        }
        done
    }

    async fn finish_with(mut self: Box<Self>, set: &SetMeta, source: Box<dyn Source>) -> (Result<()>, Result<()>) {
        let same = source.as_any().downcast_ref::<NfsSource>().is_some_and(|s| s.fs.client().is(self.client()));
        if !same {
            return tokio::join!(self.finish(set), source.close());
        }
        let Ok(source) = source.into_any().downcast::<NfsSource>() else { return (self.finish(set).await, Ok(())) };
        let NfsSource { file, shown, .. } = *source;
        // As in `close` of a source: somebody may use it still.
        let file = Arc::into_inner(file.into_inner().unwrap_or_else(PoisonError::into_inner));
        let (done, closed) = self.settle(set, file).await;
        if done.is_err() {
            self.remove().await;
        }
        (done, closed.map_err(|e| failure(&e, shown)))
    }

    async fn abandon(mut self: Box<Self>) {
        self.remove().await;
    }
}

struct NfsPages {
    stream: DirStream,
    shown: String,
    ended: bool,
}

#[async_trait]
impl Pages for NfsPages {
    async fn next(&mut self) -> Result<Option<Vec<Entry>>> {
        let mut page = Vec::new();
        while !self.ended && page.len() < PAGE {
            let Some(entry) = self.stream.next().await.map_err(|e| failure(&e, self.shown.clone()))? else {
                self.ended = true;
                break;
            };
            let meta = match entry.attrs.rdattr_error.filter(|s| !s.is_ok()) {
                None => Ok(meta_of(&entry.attrs)),
                Some(status) => {
                    let e = dhow_client::Error::Status { op: OpNum::READDIR, status, path: None };
                    let name = String::from_utf8_lossy(&entry.name).into_owned();
                    Err(failure(&e, format!("{}/{name}", self.shown.trim_end_matches('/'))))
                }
            };
            page.push(Entry { name: entry.name, meta });
        }
        Ok((!page.is_empty()).then_some(page))
    }
}

#[async_trait]
impl Endpoint for NfsEndpoint {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn same_place(&self, other: &dyn Endpoint) -> bool {
        // One client for both sides: its stateids are the server's.
        other.as_any().downcast_ref::<Self>().is_some_and(|other| std::ptr::eq(self, other))
    }

    fn durable_by_default(&self) -> bool {
        true
    }

    fn shown(&self, path: &Path) -> String {
        let path = Bytes::copy_from_slice(path.as_os_str().as_bytes());
        NfsUrl::new(self.url.host(), self.url.port(), path).to_string()
    }

    fn calls(&self) -> Calls {
        let now = self.client().counters().snapshot();
        Calls { calls: now.calls, polls: now.polls, ops: now.ops }
    }

    async fn stat(&self, path: &Path) -> Result<Meta> {
        let node = self.fs.stat_nolink(self.place(path)).await.map_err(self.err(path))?;
        self.remember(path, &node);
        Ok(meta_of(&node.attrs))
    }

    async fn stat_followed(&self, path: &Path) -> Result<Meta> {
        let node = self.fs.stat(self.place(path)).await.map_err(self.err(path))?;
        self.remember(path, &node);
        Ok(meta_of(&node.attrs))
    }

    async fn list(&self, dir: &Path) -> Result<Box<dyn Pages>> {
        let stream = self.fs.readdir(self.place(dir), STAT).await.map_err(self.err(dir))?;
        Ok(Box::new(NfsPages { stream, shown: self.shown(dir), ended: false }))
    }

    async fn read_link(&self, path: &Path) -> Result<Bytes> {
        self.fs.readlink(self.place(path)).await.map_err(self.err(path))
    }

    async fn open(&self, path: &Path) -> Result<Box<dyn Source>> {
        let file = self.fs.open(self.place(path), &OpenOptions::read()).await.map_err(self.err(path))?;
        let chunk = file.io_limits().await.map_err(self.err(path))?.0;
        let meta = meta_of(&file.attrs());
        Ok(Box::new(NfsSource {
            file: RwLock::new(Arc::new(file)),
            meta,
            chunk,
            shown: self.shown(path),
            fs: self.fs.clone(),
            place: self.place(path),
            authority: self.url.authority(),
            no_seek: self.no_seek.clone(),
        }))
    }

    async fn create(&self, path: &Path, mode: u32) -> Result<Box<dyn Sink>> {
        let options = OpenOptions::read_write().create(Create::New, mode & 0o777);
        let mut tries = 0;
        let (temp, places, file) = loop {
            tries += 1;
            let temp = temp::beside(path, file_name(self, path)?);
            let places = (self.place(&temp), self.place(path));
            let e = match self.fs.open(&places.0, &options).await {
                Ok(file) => break (temp, places, file),
                Err(e) => e,
            };
            // The file may be there, under a name that nobody else would choose.
            let unknown = matches!(e, dhow_client::Error::OutcomeUnknown { .. });
            let made = match &e {
                dhow_client::Error::Status { op, .. } => matches!(*op, OpNum::GETFH | OpNum::SETATTR | OpNum::GETATTR),
                dhow_client::Error::TimedOut(_) => true,
                _ => unknown,
            };
            if made {
                let _ = tokio::time::timeout(CLEAN_UP, self.fs.remove(&places.0)).await;
            }
            if !unknown || tries == CREATE_TRIES {
                return Err(self.err(path)(e));
            }
        };
        let chunk = file.io_limits().await.map_err(self.err(path))?.1;
        Ok(Box::new(NfsSink {
            file: RwLock::new(Some(Arc::new(file))),
            fs: self.fs.clone(),
            dir: self.known_dir(path).map(|d| d.0),
            temp,
            path: path.to_owned(),
            places,
            chunk,
            shown: self.shown(path),
            unstable: Mutex::new(Unstable::Nothing),
        }))
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn small_limit(&self) -> u32 {
        self.small
    }

    async fn read_small(&self, path: &Path, limit: u32) -> Result<Option<(Meta, Bytes)>> {
        let got = self.fs.get(self.place(path), limit).await.map_err(self.err(path))?;
        Ok(got.map(|(node, data)| (meta_of(&node.attrs), data)))
    }

    async fn write_small(&self, path: &Path, data: Bytes, mode: u32, set: &SetMeta, sync: bool) -> Result<()> {
        let name = temp::name(file_name(self, path)?);
        let options = PutOptions {
            mode: mode & 0o777,
            new: false,
            stable: if sync { StableHow::FILE_SYNC } else { StableHow::UNSTABLE },
            via: Some(Bytes::copy_from_slice(name.as_bytes())),
            attrs: (!set.is_empty()).then(|| attrs_of(set)),
        };
        match self.fs.put(self.place(path), data, &options).await {
            Ok(_) => Ok(()),
            Err(e @ dhow_client::Error::Status { op: OpNum::SETATTR, .. }) => {
                Err(set_failure(&e, set, self.shown(path)))
            }
            Err(e) => Err(self.err(path)(e)),
        }
    }

    async fn make_dir(&self, path: &Path, mode: u32) -> Result<Meta> {
        // The root of the server.
        if path.file_name().is_none() {
            return Err(Error::new(ErrorKind::Exists, self.shown(path)));
        }
        let node = self.fs.mkdir(self.place(path), mode).await.map_err(self.err(path))?;
        self.remember(path, &node);
        Ok(meta_of(&node.attrs))
    }

    async fn make_link(&self, path: &Path, target: &[u8]) -> Result<()> {
        self.fs.symlink(self.place(path), target).await.map(drop).map_err(self.err(path))
    }

    async fn make_special(&self, path: &Path, kind: Kind, mode: u32) -> Result<()> {
        let kind = match kind {
            Kind::Fifo => CreateType::Fifo,
            Kind::Socket => CreateType::Socket,
            Kind::Block(major, minor) => CreateType::Block(SpecData { major, minor }),
            Kind::Char(major, minor) => CreateType::Char(SpecData { major, minor }),
            Kind::File | Kind::Dir | Kind::Symlink => return Err(Error::new(ErrorKind::Unsupported, self.shown(path))),
        };
        self.fs.mknod(self.place(path), kind, mode).await.map(drop).map_err(self.err(path))
    }

    async fn hard_link(&self, existing: &Path, path: &Path) -> Result<()> {
        match self.fs.link(self.place(existing), self.place(path)).await.map_err(self.err(path)) {
            // The server does not say which of the two names it misses.
            Err(e) if e.kind == ErrorKind::NotFound => {
                self.stat(existing).await?;
                Err(e)
            }
            other => other,
        }
    }

    async fn set_meta(&self, path: &Path, set: &SetMeta) -> Result<()> {
        let done = self.fs.setattr_nolink(self.place(path), &attrs_of(set)).await;
        done.map_err(|e| set_failure(&e, set, self.shown(path)))
    }

    async fn set_meta_followed(&self, path: &Path, set: &SetMeta) -> Result<()> {
        let done = self.fs.setattr(self.place(path), &attrs_of(set)).await;
        done.map_err(|e| set_failure(&e, set, self.shown(path)))
    }

    async fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let renamed = self.rename_within(from, to).await;
        self.forget_dirs();
        match renamed {
            // The server does not say which of the two names it misses.
            Err(e) if e.kind == ErrorKind::NotFound => {
                self.stat(from).await?;
                Err(e)
            }
            other => other,
        }
    }

    async fn remove(&self, path: &Path) -> Result<()> {
        self.fs.remove(self.place(path)).await.map_err(self.err(path))
    }

    async fn remove_dir(&self, path: &Path) -> Result<()> {
        let removed = self.fs.remove(self.place(path)).await.map_err(self.err(path));
        self.dirs.lock().unwrap_or_else(PoisonError::into_inner).remove(path);
        removed
    }

    fn pulls_from(&self, from: &dyn Endpoint) -> Option<String> {
        let from = from.as_any().downcast_ref::<Self>()?;
        if std::ptr::eq(self, from) || self.minor_version < 2 || from.minor_version < 2 {
            return None;
        }
        Some(format!("{}>{}", from.url.authority(), self.url.authority()))
    }

    async fn offload(
        &self,
        method: Method,
        source: &dyn Source,
        sink: &dyn Sink,
        sync: bool,
        moved: Moved<'_>,
    ) -> Result<Offload> {
        let (Some(from), Some(to)) =
            (source.as_any().downcast_ref::<NfsSource>(), sink.as_any().downcast_ref::<NfsSink>())
        else {
            return Ok(Offload::Refused("only one of the files is on the server".into()));
        };
        let same = Arc::ptr_eq(&from.no_seek, &self.no_seek);
        match method {
            Method::Inter if same => return Ok(Offload::Refused("both files are on one server".into())),
            Method::Inter => return self.pull(from, to, sync, moved).await,
            _ if !same => return Ok(Offload::Refused("the files are on two servers".into())),
            _ => {}
        }
        let fsid = (from.meta.id.0, from.meta.id.1);
        if self.cannot.lock().unwrap_or_else(PoisonError::into_inner).contains(&(method, fsid)) {
            return Ok(Offload::Refused(format!("the server does not offer {method} here")));
        }
        let (source, target) = (&*from.file(), &*to.file()?);
        let size = from.meta.size;
        let done = match method {
            // A range of nothing cannot be told from "to the end".
            _ if size == 0 => Ok((0, false)),
            Method::Clone => clone_all(source, target, sync).await.map(|()| (size, sync)),
            Method::Copy => Copying { source, target, sync, moved, told: 0 }.run(size).await,
            Method::Inter | Method::ReadWrite => return Ok(Offload::Refused("not an offload".into())),
        };
        match done {
            Ok((bytes, durable)) => {
                if method == Method::Clone {
                    moved(bytes);
                }
                Ok(Offload::Done { bytes, durable })
            }
            Err(e) if e.wire_status().is_some_and(is_refusal) => {
                if e.is(Status::NOTSUPP) || e.is(Status::OP_ILLEGAL) {
                    self.cannot.lock().unwrap_or_else(PoisonError::into_inner).insert((method, fsid));
                }
                Ok(Offload::Refused(without_path(&e)))
            }
            Err(e) => Err(to.err(&e)),
        }
    }
}
