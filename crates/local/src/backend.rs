//! [`Local`]: where each call of the trait is placed.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use dhow_vfs::{
    Access, AclSet, Attr, Backend, Caps, Committed, CopySource, CreateHow, Created, Cx, DirChange, DirPage, ErrorKind,
    FsStat, Handle, IoRef, LockKind, LockOwner, LockRange, Made, Make, Name, Node, OpenAccess, OpenFile, OpenHow,
    PageLimit, Quota, ReadData, Removed, Renamed, Result, SeekTo, Seeked, SetAttr, SetDone, Stability, Watch,
    WriteVerifier, WriterNotice, Written, XattrSet,
};

use crate::inner::{Inner, Place, Report};
use crate::inode::Inode;
use crate::io::LocalOpen;
use crate::locks::of_open;
use crate::mover::End;
use crate::options::{OpenError, Options};
use crate::sync::{Lane, Target};

/// Unstable writes up to this size are made on the runtime's threads.
const SHORT_WRITE: usize = 64 << 10;
/// The same where nothing is waited for, some 0.3 ms for each mebibyte.
const LONG_WRITE: usize = 4 << 20;

/// A local directory tree.
#[derive(Clone)]
pub struct Local {
    inner: Arc<Inner>,
}

/// How syncs were shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncCounts {
    /// Requests to make something durable.
    pub requests: u64,
    /// Syncs of files, directories and whole filesystems.
    pub syncs: u64,
}

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Local").field("options", &self.inner.options).finish_non_exhaustive()
    }
}

impl Local {
    /// Opens a tree. Call it on the runtime that will serve it: a small task that tidies up every two seconds is
    /// started there, and ends with the last clone. The umask of the process becomes 0, since modes are the clients'.
    ///
    /// # Errors
    /// The directory cannot be read, or the state directory not be written.
    pub fn open(options: Options) -> std::result::Result<Local, OpenError> {
        dhow_sys::proc::clear_umask();
        let inner = Arc::new(Inner::open(options)?);
        let weak = Arc::downgrade(&inner);
        tokio::spawn(async move {
            let mut every = tokio::time::interval(Duration::from_secs(2));
            every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                every.tick().await;
                let Some(inner) = weak.upgrade() else { return };
                // It closes files and appends to a log.
                let _ = tokio::task::spawn_blocking(move || inner.sweep()).await;
            }
        });
        Ok(Local { inner })
    }

    /// What the tree can do with the privileges of the process.
    pub fn report(&self) -> Report {
        self.inner.report()
    }

    /// How often somebody asked for changes to be made durable, and how many syncs that took: they share.
    pub fn sync_counts(&self) -> SyncCounts {
        let mut counts = SyncCounts::default();
        for fs in self.inner.filesystems.read().iter() {
            let (requests, syncs) = fs.syncer.counts();
            counts.requests += requests;
            counts.syncs += syncs;
        }
        counts
    }

    /// The object behind an [`IoRef`].
    async fn io_inode(&self, io: &IoRef<'_>) -> Result<Arc<Inode>> {
        match io.open.map(OpenFile::get::<LocalOpen>) {
            Some(Some(open)) if open.inode.handle == *io.handle => Ok(open.inode.clone()),
            Some(_) => Err(ErrorKind::Invalid.into()),
            None => self.inner.inode(io.handle).await,
        }
    }

    /// The end of a copy that lies in this tree.
    async fn end(&self, cx: &Cx, io: &IoRef<'_>, offset: u64, write: bool) -> Result<End> {
        let inode = self.io_inode(io).await?;
        let (user, open, file) = (cx.cred.clone(), io.open.cloned(), inode.clone());
        let open_fd = move |inner: &Arc<Inner>| inner.data_fd(&user, &file, open.as_ref(), write);
        let fd = self.inner.run(Inner::short(&inode.fs), open_fd).await?;
        Ok(End { inode, fd, offset })
    }

    async fn space(&self, cx: &Cx, file: IoRef<'_>, offset: u64, len: u64, reserve: bool) -> Result<()> {
        let inode = self.io_inode(&file).await?;
        let (user, open, target) = (cx.cred.clone(), file.open.cloned(), inode.clone());
        self.inner
            .run(Place::Pool, move |inner| {
                let fd = inner.data_fd(&user, &target, open.as_ref(), true)?;
                inner.space(&user, &target, &fd, offset, len, reserve)
            })
            .await?;
        // The reply has no verifier: what it says must last (RFC 7862 15.1, 15.4).
        if self.inner.options.metadata_sync { self.inner.commit_inode(&inode).await } else { Ok(()) }
    }
}

#[async_trait]
impl Backend for Local {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn caps(&self) -> &Caps {
        &self.inner.caps
    }

    fn write_verifier(&self) -> WriteVerifier {
        self.inner.verifier.bytes()
    }

    async fn root(&self, _cx: &Cx) -> Result<Node> {
        let root = self.inner.root.clone();
        self.inner
            .run(Inner::short(&root.fs.clone()), move |inner| {
                let stat = root.stat()?;
                Ok(inner.node(&root, &stat))
            })
            .await
    }

    fn try_getattr(&self, _cx: &Cx, handle: &Handle) -> Option<Result<Attr>> {
        let inode = self.inner.inodes.get(handle)?;
        inode.fs.fast.then(|| self.inner.attr_of(&inode))
    }

    async fn getattr(&self, _cx: &Cx, handle: &Handle) -> Result<Attr> {
        let inode = self.inner.inode(handle).await?;
        self.inner.run(Inner::short(&inode.fs.clone()), move |inner| inner.attr_of(&inode)).await
    }

    async fn setattr(&self, cx: &Cx, handle: &Handle, open: Option<&OpenFile>, set: &SetAttr) -> Result<SetDone> {
        let inode = self.inner.inode(handle).await?;
        let place = if set.size.is_some() { Place::Pool } else { Inner::update(&inode.fs) };
        let (user, open, set, target) = (cx.cred.clone(), open.cloned(), set.clone(), inode.clone());
        let done = self
            .inner
            .run(place, move |inner| {
                let applied = inner.setattr(&user, &target, open.as_ref(), &set)?;
                Ok(SetDone { attr: inner.attr_of(&target)?, applied })
            })
            .await?;
        if done.applied != SetAttr::default() {
            self.inner.settle(&[&inode]).await?;
        }
        Ok(done)
    }

    async fn access(&self, cx: &Cx, handle: &Handle, want: Access) -> Result<Access> {
        let inode = self.inner.inode(handle).await?;
        let user = cx.cred.clone();
        self.inner.run(Inner::short(&inode.fs.clone()), move |inner| inner.access(&user, &inode, want)).await
    }

    fn try_lookup(&self, cx: &Cx, dir: &Handle, name: &Name) -> Option<Result<Node>> {
        let dir = self.inner.inodes.get(dir)?;
        if !dir.fs.fast {
            return None;
        }
        match self.inner.lookup(&cx.cred, &dir, name, true) {
            Err(e) if e.kind() == ErrorKind::Delay => None,
            result => Some(result.map(|(inode, stat)| self.inner.node(&inode, &stat))),
        }
    }

    async fn lookup(&self, cx: &Cx, dir: &Handle, name: &Name) -> Result<Node> {
        if let Some(result) = self.try_lookup(cx, dir, name) {
            return result;
        }
        let dir = self.inner.inode(dir).await?;
        let (user, name) = (cx.cred.clone(), name.clone());
        self.inner
            .run(Place::Pool, move |inner| {
                let (inode, stat) = inner.lookup(&user, &dir, &name, false)?;
                Ok(inner.node(&inode, &stat))
            })
            .await
    }

    async fn parent(&self, cx: &Cx, dir: &Handle) -> Result<Node> {
        let dir = self.inner.inode(dir).await?;
        let user = cx.cred.clone();
        self.inner
            .run(Inner::short(&dir.fs.clone()), move |inner| {
                let (inode, stat) = inner.parent(&user, &dir)?;
                Ok(inner.node(&inode, &stat))
            })
            .await
    }

    async fn readlink(&self, _cx: &Cx, handle: &Handle) -> Result<Bytes> {
        let inode = self.inner.inode(handle).await?;
        if inode.kind != dhow_vfs::FileKind::Symlink {
            return Err(ErrorKind::Invalid.into());
        }
        self.inner
            .run(Inner::short(&inode.fs.clone()), move |_| {
                inode.stat()?;
                dhow_sys::node::readlink(&inode.path).map(Bytes::from).map_err(crate::error::sys)
            })
            .await
    }

    async fn create(&self, cx: &Cx, dir: &Handle, name: &Name, how: &CreateHow) -> Result<Created> {
        let dir = self.inner.inode(dir).await?;
        let (user, name, how, at) = (cx.cred.clone(), name.clone(), how.clone(), dir.clone());
        let new = self
            .inner
            .run(Inner::update(&dir.fs), move |inner| {
                let new = inner.create(&user, &at, &name, &how.set, how.verifier)?;
                inner.open_data(&user, &new.inode, true)?;
                Ok(new)
            })
            .await?;
        // What the log speaks of does not outlive a crash on such a filesystem.
        let log = new.log.filter(|_| self.inner.options.metadata_sync && !dir.fs.volatile);
        let together = log.is_some() && self.inner.log_takes_along(&dir.fs);
        let settle = async {
            if together {
                Ok(())
            } else if new.sync_inode {
                self.inner.settle(&[&new.inode, &dir]).await
            } else {
                self.inner.settle(&[&dir]).await
            }
        };
        let sync_log = async {
            match log.zip(Handle::new(b"exclusive creates")) {
                Some((log, key)) => {
                    let fs = &self.inner.root.fs;
                    self.inner.sync_in(fs, Lane::File(key.clone()), vec![Target::File(key, log)]).await
                }
                None => Ok(()),
            }
        };
        tokio::try_join!(settle, sync_log)?;
        Ok(Created {
            node: self.inner.node(&new.inode, &new.stat),
            open: OpenFile::new(new.open),
            change: new.change,
            fresh: new.fresh,
            applied: new.applied,
        })
    }

    async fn make(&self, cx: &Cx, dir: &Handle, name: &Name, what: &Make, set: &SetAttr) -> Result<Made> {
        let dir = self.inner.inode(dir).await?;
        let (user, name, what, set, at) = (cx.cred.clone(), name.clone(), what.clone(), set.clone(), dir.clone());
        let new =
            self.inner.run(Inner::update(&dir.fs), move |inner| inner.make(&user, &at, &name, &what, &set)).await?;
        if new.sync_inode {
            self.inner.settle(&[&new.inode, &dir]).await?;
        } else {
            self.inner.settle(&[&dir]).await?;
        }
        Ok(Made { node: self.inner.node(&new.inode, &new.stat), change: new.change, applied: new.applied })
    }

    async fn link(&self, cx: &Cx, file: &Handle, dir: &Handle, name: &Name) -> Result<DirChange> {
        let file = self.inner.inode(file).await?;
        let dir = self.inner.inode(dir).await?;
        let (user, name, at, linked) = (cx.cred.clone(), name.clone(), dir.clone(), file.clone());
        let change = self
            .inner
            .run(Inner::update(&dir.fs), move |inner| {
                linked.stat()?;
                inner.link(&user, &linked, &at, &name)
            })
            .await?;
        // The file counts its links.
        if dir.fs.dir_sync_covers_new {
            self.inner.settle(&[&dir]).await?;
        } else {
            self.inner.settle(&[&file, &dir]).await?;
        }
        Ok(change)
    }

    async fn remove(&self, cx: &Cx, dir: &Handle, name: &Name) -> Result<Removed> {
        let dir = self.inner.inode(dir).await?;
        let (user, name, at) = (cx.cred.clone(), name.clone(), dir.clone());
        let gone = self.inner.run(Inner::update(&dir.fs), move |inner| inner.remove(&user, &at, &name)).await?;
        self.inner.settle(&[&dir]).await?;
        Ok(Removed { change: gone.change, handle: Some(gone.handle), nlink: gone.nlink })
    }

    async fn rename(&self, cx: &Cx, from: &Handle, old: &Name, to: &Handle, new: &Name) -> Result<Renamed> {
        let from = self.inner.inode(from).await?;
        let to = self.inner.inode(to).await?;
        let (user, old, new) = (cx.cred.clone(), old.clone(), new.clone());
        let (a, b) = (from.clone(), to.clone());
        let moved =
            self.inner.run(Inner::update(&from.fs), move |inner| inner.rename(&user, &a, &old, &b, &new)).await?;
        if from.handle == to.handle {
            self.inner.settle(&[&from]).await?;
        } else {
            self.inner.settle(&[&to, &from]).await?;
        }
        Ok(Renamed { from: moved.from, to: moved.to, replaced: moved.replaced })
    }

    async fn readdir(&self, cx: &Cx, dir: &Handle, cookie: u64, limit: PageLimit) -> Result<DirPage> {
        let dir = self.inner.inode(dir).await?;
        let user = cx.cred.clone();
        self.inner.run(Place::Pool, move |inner| inner.readdir(&user, &dir, cookie, limit)).await
    }

    async fn open(&self, cx: &Cx, handle: &Handle, how: &OpenHow) -> Result<OpenFile> {
        let inode = self.inner.inode(handle).await?;
        let (user, access, reclaim) = (cx.cred.clone(), how.access, how.reclaim);
        self.inner
            .run(Inner::short(&inode.fs.clone()), move |inner| inner.open_file(&user, &inode, access, reclaim))
            .await
    }

    async fn reopen(&self, cx: &Cx, open: &OpenFile, how: &OpenHow) -> Result<OpenFile> {
        let old = open.get::<LocalOpen>().ok_or(ErrorKind::Invalid)?;
        let (inode, user, access) = (old.inode.clone(), cx.cred.clone(), how.access);
        let more = OpenAccess { read: access.read && !old.access.read, write: access.write && !old.access.write };
        self.inner
            .run(Inner::short(&inode.fs.clone()), move |inner| {
                if more.read || more.write {
                    inner.may_io(&user, &inode, more, false)?;
                }
                inner.open_data(&user, &inode, access.write)?;
                Ok(OpenFile::new(LocalOpen::new(&inode, access)))
            })
            .await
    }

    async fn close(&self, open: OpenFile) {
        let inode = open.get::<LocalOpen>().map(|open| open.inode.clone());
        drop(open);
        if let Some(inode) = inode {
            // The last close of a removed file frees its space.
            if inode.stat().is_err_and(|e| e.kind() == ErrorKind::Stale) {
                self.inner.dirty.lock().remove(&inode.handle);
                self.inner.inodes.forget(&inode.handle);
            }
        }
    }

    fn try_read(&self, cx: &Cx, file: IoRef<'_>, offset: u64, len: u32) -> Option<Result<ReadData>> {
        let inode = match file.open.map(OpenFile::get::<LocalOpen>) {
            Some(Some(open)) if open.inode.handle == *file.handle => open.inode.clone(),
            Some(_) => return Some(Err(ErrorKind::Invalid.into())),
            None => self.inner.inodes.get(file.handle)?,
        };
        self.inner.read_now(&cx.cred, &inode, file.open, offset, len)
    }

    async fn read(&self, cx: &Cx, file: IoRef<'_>, offset: u64, len: u32) -> Result<ReadData> {
        if let Some(result) = self.try_read(cx, file, offset, len) {
            return result;
        }
        let inode = self.io_inode(&file).await?;
        let (user, open) = (cx.cred.clone(), file.open.cloned());
        self.inner.run(Place::Pool, move |inner| inner.read(&user, &inode, open.as_ref(), offset, len)).await
    }

    async fn write(&self, cx: &Cx, file: IoRef<'_>, offset: u64, data: Bytes, want: Stability) -> Result<Written> {
        let inode = self.io_inode(&file).await?;
        let want = if self.inner.too_many_dirty() { Stability::FileSync } else { want };
        // The verifier of before: a loss that comes to light after the write concerns its data too.
        let verifier = self.inner.verifier.bytes();
        let (user, open) = (cx.cred.clone(), file.open.cloned());
        let large = data.len() > SHORT_WRITE;
        let turn = if large { inode.turn().await } else { None };
        // A large write is cheapest while the data is in the cache of the processor that received it, so it is made here
        // if it surely waits for nothing: because all data is in memory and nobody keeps the file's lock for long, or
        // because the kernel is told not to wait. There is one at a time for each file, so that a file takes no thread
        // from everybody else.
        let here = !large || data.len() <= LONG_WRITE && !inode.is_changing();
        let place = if here { Inner::update(&inode.fs) } else { Place::Pool };
        let (place, done) = match place {
            Place::Here if large && !inode.fs.volatile => {
                (Place::Pool, self.inner.write_now(&cx.cred, &inode, file.open, offset, &data)?)
            }
            place => (place, 0),
        };
        let count = if done == data.len() {
            done as u32
        } else {
            let (target, rest) = (inode.clone(), data.slice(done..));
            let written = self.inner.run(place, move |inner| {
                let _turn = turn;
                let fd = inner.data_fd(&user, &target, open.as_ref(), true)?;
                inner.write(&user, &target, &fd, offset + done as u64, &rest)
            });
            match written.await {
                Ok(count) => done as u32 + count,
                // It comes again with the next try.
                Err(_) if done > 0 => done as u32,
                Err(e) => return Err(e),
            }
        };
        if want == Stability::Unstable {
            return Ok(Written { count, stability: want, verifier });
        }
        // One fsync, shared with others who wait for the same file, serves DATA_SYNC and FILE_SYNC.
        self.inner.commit_inode(&inode).await?;
        Ok(Written { count, stability: Stability::FileSync, verifier })
    }

    async fn commit(&self, _cx: &Cx, file: IoRef<'_>, _offset: u64, _len: u64) -> Result<Committed> {
        let inode = self.io_inode(&file).await?;
        inode.must_be_file()?;
        // Without unstable data there is nothing to wait for.
        if inode.is_dirty() {
            self.inner.commit_inode(&inode).await?;
        }
        // The verifier of after: an earlier fsync of this file may just have been told of lost data in our place.
        Ok(Committed { verifier: self.inner.verifier.bytes() })
    }

    async fn start_writeback(&self, cx: &Cx, file: IoRef<'_>, offset: u64, len: u64) {
        let Ok(inode) = self.io_inode(&file).await else { return };
        if inode.fs.volatile {
            return;
        }
        let (user, open) = (cx.cred.clone(), file.open.cloned());
        let begun = self.inner.run(Place::Pool, move |inner| {
            let fd = inner.data_fd(&user, &inode, open.as_ref(), true)?;
            dhow_sys::io::start_writeback(&fd, offset, len).map_err(crate::error::sys)
        });
        if let Err(e) = begun.await {
            tracing::debug!("cannot begin to write out a file: {e}");
        }
    }

    async fn allocate(&self, cx: &Cx, file: IoRef<'_>, offset: u64, len: u64) -> Result<()> {
        self.space(cx, file, offset, len, true).await
    }

    async fn deallocate(&self, cx: &Cx, file: IoRef<'_>, offset: u64, len: u64) -> Result<()> {
        self.space(cx, file, offset, len, false).await
    }

    async fn seek(&self, cx: &Cx, file: IoRef<'_>, offset: u64, to: SeekTo) -> Result<Seeked> {
        let end = self.end(cx, &file, offset, false).await?;
        self.inner.run(Place::Pool, move |inner| inner.seek(&end.inode, &end.fd, offset, to)).await
    }

    async fn clone_range(&self, cx: &Cx, src: CopySource<'_>, dst: IoRef<'_>, dst_offset: u64, len: u64) -> Result<()> {
        let from = src.backend.as_any().downcast_ref::<Local>().ok_or(ErrorKind::CrossDevice)?;
        let from = from.end(src.cx, &src.io, src.offset, false).await?;
        let to = self.end(cx, &dst, dst_offset, true).await?;
        let (user, inode) = (cx.cred.clone(), to.inode.clone());
        self.inner
            .run(Place::Pool, move |inner| {
                let len = if len == 0 { from.inode.stat()?.size.saturating_sub(from.offset) } else { len };
                inner.clone_range(&user, &from, &to, len)
            })
            .await?;
        // The reply has no verifier (RFC 7862 15.13).
        if self.inner.options.metadata_sync { self.inner.commit_inode(&inode).await } else { Ok(()) }
    }

    async fn copy_range(
        &self,
        cx: &Cx,
        src: CopySource<'_>,
        dst: IoRef<'_>,
        dst_offset: u64,
        len: u64,
        chunk: u64,
    ) -> Result<u64> {
        let from = src.backend.as_any().downcast_ref::<Local>().ok_or(ErrorKind::NotSupported)?;
        let from = from.end(src.cx, &src.io, src.offset, false).await?;
        let to = self.end(cx, &dst, dst_offset, true).await?;
        let user = cx.cred.clone();
        let permit = self.inner.copies.clone().acquire_owned().await;
        let inner = self.inner.clone();
        let work = tokio::task::spawn_blocking(move || {
            let moved = inner.copy_range(&user, &from, &to, len, chunk);
            drop(permit);
            moved
        });
        work.await.unwrap_or_else(|e| {
            tracing::error!("a copy panicked: {e}");
            Err(ErrorKind::Fault.into())
        })
    }

    async fn lock(&self, _: &Cx, file: IoRef<'_>, owner: &LockOwner, range: LockRange, kind: LockKind) -> Result<()> {
        if !self.inner.options.local_locks {
            return Ok(());
        }
        let inode = self.io_inode(&file).await?;
        let (open, owner) = (file.open.cloned(), owner.clone());
        self.inner
            .run(Inner::short(&inode.fs.clone()), move |inner| inner.lock(&inode, open.as_ref(), &owner, range, kind))
            .await
    }

    async fn unlock(&self, _: &Cx, file: IoRef<'_>, owner: &LockOwner, range: LockRange) -> Result<()> {
        // Without the object at hand nobody holds a lock on it.
        let Some(inode) = of_open(&file).filter(|_| self.inner.options.local_locks) else { return Ok(()) };
        let owner = owner.clone();
        self.inner.run(Inner::short(&inode.fs.clone()), move |inner| inner.unlock(&inode, &owner, range)).await
    }

    async fn test_lock(
        &self,
        _: &Cx,
        file: IoRef<'_>,
        owner: &LockOwner,
        range: LockRange,
        kind: LockKind,
    ) -> Result<Option<(LockRange, LockKind)>> {
        if !self.inner.options.local_locks {
            return Ok(None);
        }
        let inode = self.io_inode(&file).await?;
        let owner = owner.clone();
        self.inner.run(Inner::short(&inode.fs.clone()), move |inner| inner.test_lock(&inode, &owner, range, kind)).await
    }

    fn locks_reach_beyond(&self) -> bool {
        self.inner.options.local_locks
    }

    async fn watch_writers(&self, handle: &Handle, notice: WriterNotice) -> Result<Watch> {
        let inode = self.inner.inode(handle).await?;
        let place = Inner::short(&inode.fs.clone());
        self.inner.run(place, move |inner| inner.watch_writers(&inode, notice)).await
    }

    async fn statfs(&self, _cx: &Cx, handle: &Handle) -> Result<FsStat> {
        let inode = self.inner.inode(handle).await?;
        self.inner.run(Inner::short(&inode.fs.clone()), move |inner| inner.statfs(&inode)).await
    }

    async fn path_of(&self, handle: &Handle) -> Option<std::path::PathBuf> {
        let inode = self.inner.inode(handle).await.ok()?;
        let found = self.inner.run(Inner::short(&inode.fs.clone()), move |inner| {
            let at = |fd: &OwnedFd| dhow_sys::open::path_of(fd).map_err(crate::error::sys);
            Ok((at(&inner.root.path)?, at(&inode.path)?))
        });
        let (root, path) = found.await.ok()?;
        path.strip_prefix(root).ok().map(std::path::Path::to_path_buf)
    }

    async fn quota(&self, _cx: &Cx, handle: &Handle, uid: u32) -> Result<Quota> {
        let inode = self.inner.inode(handle).await?;
        // The server's own question: a user may not ask for another's quota.
        self.inner
            .run(Inner::short(&inode.fs.clone()), move |_| {
                let quota = dhow_sys::quota::of_user(&inode.fs.root, uid).map_err(crate::error::sys)?;
                let limit = |bytes: u64| (bytes != 0).then_some(bytes);
                Ok(Quota { used: quota.used, hard: limit(quota.hard), soft: limit(quota.soft) })
            })
            .await
    }

    async fn acl(&self, _cx: &Cx, handle: &Handle) -> Result<AclSet> {
        let inode = self.inner.inode(handle).await?;
        self.inner.run(Inner::short(&inode.fs.clone()), move |inner| inner.acl(&inode)).await
    }

    async fn getxattr(&self, cx: &Cx, handle: &Handle, name: &[u8]) -> Result<Bytes> {
        let inode = self.inner.inode(handle).await?;
        let (user, name) = (cx.cred.clone(), name.to_vec());
        self.inner.run(Inner::short(&inode.fs.clone()), move |inner| inner.getxattr(&user, &inode, &name)).await
    }

    async fn setxattr(&self, cx: &Cx, handle: &Handle, name: &[u8], value: &[u8], how: XattrSet) -> Result<DirChange> {
        let inode = self.inner.inode(handle).await?;
        let (user, name, value, target) = (cx.cred.clone(), name.to_vec(), value.to_vec(), inode.clone());
        let change = self
            .inner
            .run(Inner::update(&inode.fs), move |inner| inner.setxattr(&user, &target, &name, &value, how))
            .await?;
        self.inner.settle(&[&inode]).await?;
        Ok(change)
    }

    async fn listxattr(&self, _cx: &Cx, handle: &Handle) -> Result<Vec<Bytes>> {
        let inode = self.inner.inode(handle).await?;
        self.inner.run(Inner::short(&inode.fs.clone()), move |inner| inner.listxattr(&inode)).await
    }

    async fn removexattr(&self, cx: &Cx, handle: &Handle, name: &[u8]) -> Result<DirChange> {
        let inode = self.inner.inode(handle).await?;
        let (user, name, target) = (cx.cred.clone(), name.to_vec(), inode.clone());
        let change =
            self.inner.run(Inner::update(&inode.fs), move |inner| inner.removexattr(&user, &target, &name)).await?;
        self.inner.settle(&[&inode]).await?;
        Ok(change)
    }
}
