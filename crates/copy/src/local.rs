//! Local files, through the runtime's pool of blocking threads.

use crate::endpoint::{
    Endpoint, Entry, Kind, Meta, Method, Moved, Offload, Pages, SetMeta, Sink, Source, Synced, Time, file_name,
};
use crate::{Calls, Error, ErrorKind, Result, temp};
use async_trait::async_trait;
use bytes::Bytes;
use dhow_sys::pool::AlignedPool;
use dhow_sys::{Errno, io as sys};
use rustix::fs::{OFlags, major, minor};
use std::any::Any;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes of one read or write.
const CHUNK: u32 = 1 << 20;
/// Bytes that one `copy_file_range` is asked for: small enough for a progress bar and for a quick stop.
const SLICE: u64 = 64 << 20;
/// Entries of a page of a listing.
const PAGE: usize = 256;
/// Bytes of idle buffers kept: two copies' worth.
const IDLE_BYTES: usize = 32 << 20;

/// The local filesystems.
#[derive(Clone, Debug)]
pub struct Local {
    pool: AlignedPool,
}

impl Default for Local {
    fn default() -> Self {
        Self::new()
    }
}

impl Local {
    /// The local filesystems, with a pool of buffers of its own.
    pub fn new() -> Self {
        Self { pool: AlignedPool::new(IDLE_BYTES) }
    }
}

/// Runs a blocking step on a thread that may wait.
async fn blocking<T: Send + 'static>(step: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(step).await {
        Ok(done) => done,
        // The runtime is going away, or the step panicked; neither has a place to name.
        Err(e) => Err(Error::with(ErrorKind::Io, "", e.to_string())),
    }
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn at<T>(path: &Path, result: io::Result<T>) -> Result<T> {
    result.map_err(|e| Error::io(&e, shown(path)))
}

fn meta_of(m: &fs::Metadata) -> Meta {
    let t = m.file_type();
    let rdev = m.rdev();
    let device = (major(rdev), minor(rdev));
    let kind = if t.is_dir() {
        Kind::Dir
    } else if t.is_symlink() {
        Kind::Symlink
    } else if t.is_fifo() {
        Kind::Fifo
    } else if t.is_socket() {
        Kind::Socket
    } else if t.is_block_device() {
        Kind::Block(device.0, device.1)
    } else if t.is_char_device() {
        Kind::Char(device.0, device.1)
    } else {
        Kind::File
    };
    let time = |secs, nanos: i64| Time { secs, nanos: u32::try_from(nanos).unwrap_or(0) };
    Meta {
        kind,
        mode: m.mode() & 0o7777,
        uid: Some(m.uid()),
        gid: Some(m.gid()),
        size: m.len(),
        used: m.blocks().saturating_mul(512),
        nlink: u32::try_from(m.nlink()).unwrap_or(u32::MAX),
        id: (m.dev(), 0, m.ino()),
        atime: time(m.atime(), m.atime_nsec()),
        mtime: time(m.mtime(), m.mtime_nsec()),
        ctime: time(m.ctime(), m.ctime_nsec()),
    }
}

fn apply(fd: &File, set: &SetMeta, path: &Path) -> Result<()> {
    use dhow_sys::node::{self, SetTime};
    let err = |e| Error::errno(e, shown(path));
    // The owner first: a change of owner clears set-id bits.
    if set.uid.is_some() || set.gid.is_some() {
        node::chown(fd, set.uid, set.gid).map_err(err)?;
    }
    if let Some(mode) = set.mode {
        node::chmod(fd, mode).map_err(err)?;
    }
    if set.atime.is_some() || set.mtime.is_some() {
        let time = |t: Option<Time>| {
            t.map_or(SetTime::Omit, |t| SetTime::To(dhow_sys::open::Time { sec: t.secs, nsec: t.nanos }))
        };
        node::utimens(fd, time(set.atime), time(set.mtime)).map_err(err)?;
    }
    Ok(())
}

/// Holds an object without opening it: a FIFO is not waited for, a symbolic link is not followed.
fn hold(path: &Path) -> Result<File> {
    let flags = (OFlags::PATH | OFlags::NOFOLLOW).bits() as i32;
    at(path, OpenOptions::new().read(true).custom_flags(flags).open(path))
}

struct LocalSource {
    file: Arc<File>,
    path: PathBuf,
    meta: Meta,
    pool: AlignedPool,
}

#[async_trait]
impl Source for LocalSource {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn chunk(&self) -> u32 {
        CHUNK
    }

    async fn read(&self, offset: u64, len: u32) -> Result<Bytes> {
        let (file, path, pool) = (self.file.clone(), self.path.clone(), self.pool.clone());
        blocking(move || {
            let mut buf = pool.take(len as usize);
            let mut filled = 0;
            while let Some(rest) = buf.get_mut(filled..).filter(|r| !r.is_empty()) {
                match sys::pread(&file, rest, offset + filled as u64) {
                    Ok(0) => break,
                    Ok(n) => filled += n,
                    Err(e) => return Err(Error::errno(e, shown(&path))),
                }
            }
            Ok(buf.freeze(0..filled))
        })
        .await
    }

    async fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>> {
        // No holes: no need to ask for them.
        if self.meta.used >= self.meta.size {
            return Ok((offset < self.meta.size).then_some(offset..self.meta.size));
        }
        let (file, path) = (self.file.clone(), self.path.clone());
        blocking(move || next_data(&file, offset, &path)).await
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }

    async fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

fn next_data(file: &File, offset: u64, path: &Path) -> Result<Option<Range<u64>>> {
    let start = match sys::seek_data(file, offset) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // A filesystem that cannot tell: all of it is data.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => offset,
        Err(e) => return Err(Error::errno(e, shown(path))),
    };
    match sys::seek_hole(file, start) {
        Ok(end) if end > start => Ok(Some(start..end)),
        Ok(_) | Err(Errno::NXIO) => Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => {
            let size = at(path, file.metadata())?.len();
            Ok((start < size).then_some(start..size))
        }
        Err(e) => Err(Error::errno(e, shown(path))),
    }
}

struct LocalSink {
    file: Arc<File>,
    temp: PathBuf,
    path: PathBuf,
    /// The temporary name is gone, or has become the final one.
    settled: bool,
}

impl Drop for LocalSink {
    fn drop(&mut self) {
        if !self.settled {
            // Nobody is left to hear of a failure; the name says what it is.
            let _ = fs::remove_file(&self.temp);
        }
    }
}

#[async_trait]
impl Sink for LocalSink {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn chunk(&self) -> u32 {
        CHUNK
    }

    async fn write(&self, offset: u64, data: Bytes) -> Result<()> {
        let (file, path) = (self.file.clone(), self.path.clone());
        blocking(move || {
            let mut done = 0;
            while let Some(rest) = data.get(done..).filter(|r| !r.is_empty()) {
                done += sys::pwrite(&file, rest, offset + done as u64).map_err(|e| Error::errno(e, shown(&path)))?;
            }
            Ok(())
        })
        .await
    }

    async fn set_size(&self, size: u64) -> Result<()> {
        let (file, path) = (self.file.clone(), self.path.clone());
        blocking(move || sys::ftruncate(&file, size).map_err(|e| Error::errno(e, shown(&path)))).await
    }

    async fn sync(&self) -> Result<Synced> {
        let (file, path) = (self.file.clone(), self.path.clone());
        blocking(move || sys::fsync(&file).map_err(|e| Error::errno(e, shown(&path)))).await?;
        Ok(Synced::Durable)
    }

    async fn finish(mut self: Box<Self>, set: &SetMeta) -> Result<()> {
        let set = *set;
        blocking(move || {
            apply(&self.file, &set, &self.path)?;
            at(&self.path, fs::rename(&self.temp, &self.path))?;
            self.settled = true;
            Ok(())
        })
        .await
    }

    async fn abandon(self: Box<Self>) {
        // The drop removes the name; it may wait for a disk.
        let _ = blocking(move || Ok(drop(self))).await;
    }
}

struct LocalPages {
    dir: PathBuf,
    entries: Option<fs::ReadDir>,
}

#[async_trait]
impl Pages for LocalPages {
    async fn next(&mut self) -> Result<Option<Vec<Entry>>> {
        let Some(mut entries) = self.entries.take() else { return Ok(None) };
        let dir = self.dir.clone();
        let (entries, page) = blocking(move || {
            let mut page = Vec::new();
            while page.len() < PAGE {
                let Some(entry) = entries.next() else { break };
                let entry = at(&dir, entry)?;
                let meta = at(&entry.path(), entry.metadata()).map(|m| meta_of(&m));
                page.push(Entry { name: Bytes::from(entry.file_name().into_vec()), meta });
            }
            Ok((entries, page))
        })
        .await?;
        self.entries = Some(entries);
        if page.is_empty() {
            self.entries = None;
            return Ok(None);
        }
        Ok(Some(page))
    }
}

#[async_trait]
impl Endpoint for Local {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn same_place(&self, other: &dyn Endpoint) -> bool {
        other.as_any().is::<Self>()
    }

    fn durable_by_default(&self) -> bool {
        false
    }

    fn shown(&self, path: &Path) -> String {
        shown(path)
    }

    fn calls(&self) -> Calls {
        Calls::default()
    }

    async fn stat(&self, path: &Path) -> Result<Meta> {
        let path = path.to_owned();
        blocking(move || at(&path, fs::symlink_metadata(&path)).map(|m| meta_of(&m))).await
    }

    async fn stat_followed(&self, path: &Path) -> Result<Meta> {
        let path = path.to_owned();
        blocking(move || at(&path, fs::metadata(&path)).map(|m| meta_of(&m))).await
    }

    async fn list(&self, dir: &Path) -> Result<Box<dyn Pages>> {
        let path = dir.to_owned();
        let entries = blocking(move || at(&path, fs::read_dir(&path))).await?;
        Ok(Box::new(LocalPages { dir: dir.to_owned(), entries: Some(entries) }))
    }

    async fn read_link(&self, path: &Path) -> Result<Bytes> {
        let path = path.to_owned();
        blocking(move || Ok(Bytes::from(at(&path, fs::read_link(&path))?.into_os_string().into_vec()))).await
    }

    async fn open(&self, path: &Path) -> Result<Box<dyn Source>> {
        let (path, pool) = (path.to_owned(), self.pool.clone());
        blocking(move || {
            // NONBLOCK: the open of a FIFO returns instead of waiting for a writer.
            let flags = OFlags::NONBLOCK.bits() as i32;
            let file = at(&path, OpenOptions::new().read(true).custom_flags(flags).open(&path))?;
            let meta = meta_of(&at(&path, file.metadata())?);
            match meta.kind {
                Kind::File => {}
                Kind::Dir => return Err(Error::new(ErrorKind::IsDirectory, shown(&path))),
                _ => return Err(Error::new(ErrorKind::NotRegular, shown(&path))),
            }
            Ok(Box::new(LocalSource { file: Arc::new(file), path, meta, pool }) as Box<dyn Source>)
        })
        .await
    }

    async fn create(&self, path: &Path, mode: u32) -> Result<Box<dyn Sink>> {
        let temp = temp::beside(path, file_name(self, path)?);
        let path = path.to_owned();
        blocking(move || {
            let open = OpenOptions::new().read(true).write(true).create_new(true).mode(mode & 0o777).open(&temp);
            // The error names what the user asked for, not the temporary name.
            let file = Arc::new(at(&path, open)?);
            Ok(Box::new(LocalSink { file, temp, path, settled: false }) as Box<dyn Sink>)
        })
        .await
    }

    async fn read_small(&self, path: &Path, limit: u32) -> Result<Option<(Meta, Bytes)>> {
        let source = self.open(path).await?;
        let meta = *source.meta();
        // One byte more than allowed shows a file that grew.
        let data = source.read(0, limit.saturating_add(1)).await?;
        Ok((data.len() <= limit as usize).then_some((meta, data)))
    }

    async fn write_small(&self, path: &Path, data: Bytes, mode: u32, set: &SetMeta, sync: bool) -> Result<()> {
        let sink = self.create(path, mode).await?;
        let written = async {
            sink.write(0, data).await?;
            if sync { sink.sync().await.map(drop) } else { Ok(()) }
        };
        match written.await {
            Ok(()) => sink.finish(set).await,
            Err(e) => {
                sink.abandon().await;
                Err(e)
            }
        }
    }

    async fn make_dir(&self, path: &Path, mode: u32) -> Result<Meta> {
        let path = path.to_owned();
        blocking(move || {
            at(&path, fs::DirBuilder::new().mode(mode).create(&path))?;
            at(&path, fs::symlink_metadata(&path)).map(|m| meta_of(&m))
        })
        .await
    }

    async fn make_link(&self, path: &Path, target: &[u8]) -> Result<()> {
        let (path, target) = (path.to_owned(), std::ffi::OsString::from_vec(target.to_vec()));
        blocking(move || at(&path, std::os::unix::fs::symlink(&target, &path))).await
    }

    async fn make_special(&self, path: &Path, kind: Kind, mode: u32) -> Result<()> {
        use dhow_sys::node::{Special, mknod};
        let what = match kind {
            Kind::Fifo => Special::Fifo,
            Kind::Socket => Special::Socket,
            Kind::Block(a, b) => Special::Block(a, b),
            Kind::Char(a, b) => Special::Char(a, b),
            Kind::File | Kind::Dir | Kind::Symlink => return Err(Error::new(ErrorKind::Unsupported, shown(path))),
        };
        let name = file_name(self, path)?.as_bytes().to_vec();
        let path = path.to_owned();
        blocking(move || {
            let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let dir = hold(dir)?;
            mknod(&dir, &name, what, mode).map_err(|e| Error::errno(e, shown(&path)))
        })
        .await
    }

    async fn hard_link(&self, existing: &Path, path: &Path) -> Result<()> {
        let (existing, path) = (existing.to_owned(), path.to_owned());
        blocking(move || at(&path, fs::hard_link(&existing, &path))).await
    }

    async fn set_meta(&self, path: &Path, set: &SetMeta) -> Result<()> {
        let (path, set) = (path.to_owned(), *set);
        blocking(move || {
            let fd = hold(&path)?;
            let is_link = at(&path, fd.metadata())?.file_type().is_symlink();
            // Linux has no mode of a symbolic link.
            let set = if is_link { SetMeta { mode: None, ..set } } else { set };
            apply(&fd, &set, &path)
        })
        .await
    }

    async fn set_meta_followed(&self, path: &Path, set: &SetMeta) -> Result<()> {
        let (path, set) = (path.to_owned(), *set);
        blocking(move || {
            let flags = OFlags::PATH.bits() as i32;
            let fd = at(&path, OpenOptions::new().read(true).custom_flags(flags).open(&path))?;
            apply(&fd, &set, &path)
        })
        .await
    }

    async fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let (from, to) = (from.to_owned(), to.to_owned());
        blocking(move || {
            fs::rename(&from, &to).map_err(|e| {
                // Which of the two is missing or in the way cannot be seen from the error alone.
                let place = if fs::symlink_metadata(&from).is_err() { &from } else { &to };
                Error::io(&e, shown(place))
            })
        })
        .await
    }

    async fn remove(&self, path: &Path) -> Result<()> {
        let path = path.to_owned();
        blocking(move || at(&path, fs::remove_file(&path))).await
    }

    async fn remove_dir(&self, path: &Path) -> Result<()> {
        let path = path.to_owned();
        blocking(move || at(&path, fs::remove_dir(&path))).await
    }

    async fn offload(
        &self,
        method: Method,
        source: &dyn Source,
        sink: &dyn Sink,
        _sync: bool,
        moved: Moved<'_>,
    ) -> Result<Offload> {
        let (Some(source), Some(sink)) =
            (source.as_any().downcast_ref::<LocalSource>(), sink.as_any().downcast_ref::<LocalSink>())
        else {
            return Ok(Offload::Refused("the two files are not both local".into()));
        };
        let (from, to, meta) = (source.file.clone(), sink.file.clone(), source.meta);
        let (from_path, path) = (source.path.clone(), sink.path.clone());
        match method {
            Method::Clone => {
                let done = blocking(move || match sys::clone_file(&from, &to) {
                    Ok(()) => Ok(Offload::Done { bytes: meta.size, durable: false }),
                    Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY | Errno::NOSYS) => {
                        Ok(Offload::Refused("the filesystem cannot share blocks between these files".into()))
                    }
                    Err(e) => Err(Error::errno(e, shown(&path))),
                })
                .await?;
                if let Offload::Done { bytes, .. } = done {
                    moved(bytes);
                }
                Ok(done)
            }
            Method::Copy => {
                let stop = StopOnDrop(Arc::new(AtomicBool::new(false)));
                let (flag, count) = (stop.0.clone(), Arc::new(AtomicU64::new(0)));
                let counter = count.clone();
                let job = tokio::task::spawn_blocking(move || {
                    copy_ranges(&from, &to, &meta, (&from_path, &path), &flag, &counter)
                });
                tokio::pin!(job);
                let mut told = 0;
                let mut tick = tokio::time::interval(std::time::Duration::from_millis(100));
                let done = loop {
                    tokio::select! {
                        done = &mut job => break done,
                        _ = tick.tick() => {
                            let now = count.load(Ordering::Relaxed);
                            moved(now - told);
                            told = now;
                        }
                    }
                };
                let done = done.unwrap_or_else(|e| Err(Error::with(ErrorKind::Io, "", e.to_string())))?;
                moved(count.load(Ordering::Relaxed) - told);
                Ok(done)
            }
            Method::Inter | Method::ReadWrite => Ok(Offload::Refused("not an offload".into())),
        }
    }
}

/// Tells the copying thread that nobody waits for it any more.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn copy_ranges(
    from: &File,
    to: &File,
    meta: &Meta,
    (from_path, to_path): (&Path, &Path),
    stop: &AtomicBool,
    count: &AtomicU64,
) -> Result<Offload> {
    let mut at = 0;
    let mut end = 0;
    while let Some(range) = next_data(from, at, from_path)? {
        let mut offset = range.start;
        while offset < range.end {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::cancelled());
            }
            let len = (range.end - offset).min(SLICE) as usize;
            match sys::copy_file_range(from, offset, to, offset, len) {
                Ok(0) => break,
                Ok(n) => {
                    offset += n as u64;
                    count.fetch_add(n as u64, Ordering::Relaxed);
                }
                Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) if end == 0 => {
                    return Ok(Offload::Refused("the kernel cannot copy between these files".into()));
                }
                Err(e) => return Err(Error::errno(e, shown(to_path))),
            }
            end = offset;
        }
        at = range.end;
    }
    if end < meta.size {
        sys::ftruncate(to, meta.size).map_err(|e| Error::errno(e, shown(to_path)))?;
    }
    count.store(meta.size, Ordering::Relaxed);
    Ok(Offload::Done { bytes: meta.size, durable: false })
}

/// The umask of this process, without changing it: the kernel tells it in `/proc`.
pub fn umask() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|l| l.strip_prefix("Umask:"));
    mask.and_then(|m| u32::from_str_radix(m.trim(), 8).ok()).unwrap_or(0o022)
}

/// Whether this process acts as the superuser, who may give files away.
pub fn is_superuser() -> bool {
    rustix::process::geteuid().is_root()
}
