//! Read-only as a decorator: every change is refused before the inner backend hears of it.

use crate::{
    Access, AclSet, Attr, Backend, Caps, Committed, CreateHow, Created, Cx, DirChange, DirPage, ErrorKind, FsStat,
    Handle, IoRef, LockKind, LockOwner, LockRange, Made, Make, Name, Node, ObjectId, OpenFile, OpenHow, PageLimit,
    Quota, ReadData, Removed, Renamed, Result, SeekTo, Seeked, SetAttr, SetDone, Stability, WriteVerifier, Written,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::any::Any;
use std::sync::Arc;

/// A backend that only reads.
pub struct ReadOnly {
    inner: Arc<dyn Backend>,
    caps: Caps,
}

impl ReadOnly {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        let caps = Caps { read_only: true, ..inner.caps().clone() };
        Self { inner, caps }
    }
}

const RO: ErrorKind = ErrorKind::ReadOnly;

#[async_trait]
impl Backend for ReadOnly {
    // The inner backend's: a copy out of a read-only export is as good as any.
    fn as_any(&self) -> &dyn Any {
        self.inner.as_any()
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn object_id(&self, handle: &Handle) -> ObjectId {
        self.inner.object_id(handle)
    }

    fn write_verifier(&self) -> WriteVerifier {
        self.inner.write_verifier()
    }

    async fn root(&self, cx: &Cx) -> Result<Node> {
        self.inner.root(cx).await
    }

    fn try_getattr(&self, cx: &Cx, handle: &Handle) -> Option<Result<Attr>> {
        self.inner.try_getattr(cx, handle)
    }

    async fn getattr(&self, cx: &Cx, handle: &Handle) -> Result<Attr> {
        self.inner.getattr(cx, handle).await
    }

    async fn setattr(&self, _: &Cx, _: &Handle, _: Option<&OpenFile>, _: &SetAttr) -> Result<SetDone> {
        Err(RO.into())
    }

    async fn access(&self, cx: &Cx, handle: &Handle, want: Access) -> Result<Access> {
        const CHANGES: u32 = Access::MODIFY | Access::EXTEND | Access::DELETE | Access::XAWRITE;
        self.inner.access(cx, handle, Access(want.0 & !CHANGES)).await
    }

    fn try_lookup(&self, cx: &Cx, dir: &Handle, name: &Name) -> Option<Result<Node>> {
        self.inner.try_lookup(cx, dir, name)
    }

    async fn lookup(&self, cx: &Cx, dir: &Handle, name: &Name) -> Result<Node> {
        self.inner.lookup(cx, dir, name).await
    }

    async fn parent(&self, cx: &Cx, dir: &Handle) -> Result<Node> {
        self.inner.parent(cx, dir).await
    }

    async fn readlink(&self, cx: &Cx, handle: &Handle) -> Result<Bytes> {
        self.inner.readlink(cx, handle).await
    }

    async fn create(&self, _: &Cx, _: &Handle, _: &Name, _: &CreateHow) -> Result<Created> {
        Err(RO.into())
    }

    async fn make(&self, _: &Cx, _: &Handle, _: &Name, _: &Make, _: &SetAttr) -> Result<Made> {
        Err(RO.into())
    }

    async fn link(&self, _: &Cx, _: &Handle, _: &Handle, _: &Name) -> Result<DirChange> {
        Err(RO.into())
    }

    async fn remove(&self, _: &Cx, _: &Handle, _: &Name) -> Result<Removed> {
        Err(RO.into())
    }

    async fn rename(&self, _: &Cx, _: &Handle, _: &Name, _: &Handle, _: &Name) -> Result<Renamed> {
        Err(RO.into())
    }

    async fn readdir(&self, cx: &Cx, dir: &Handle, cookie: u64, limit: PageLimit) -> Result<DirPage> {
        self.inner.readdir(cx, dir, cookie, limit).await
    }

    async fn open(&self, cx: &Cx, handle: &Handle, how: &OpenHow) -> Result<OpenFile> {
        if how.access.write {
            return Err(RO.into());
        }
        self.inner.open(cx, handle, how).await
    }

    async fn reopen(&self, cx: &Cx, open: &OpenFile, how: &OpenHow) -> Result<OpenFile> {
        if how.access.write {
            return Err(RO.into());
        }
        self.inner.reopen(cx, open, how).await
    }

    async fn close(&self, open: OpenFile) {
        self.inner.close(open).await;
    }

    fn try_read(&self, cx: &Cx, file: IoRef<'_>, offset: u64, len: u32) -> Option<Result<ReadData>> {
        self.inner.try_read(cx, file, offset, len)
    }

    async fn read(&self, cx: &Cx, file: IoRef<'_>, offset: u64, len: u32) -> Result<ReadData> {
        self.inner.read(cx, file, offset, len).await
    }

    async fn write(&self, _: &Cx, _: IoRef<'_>, _: u64, _: Bytes, _: Stability) -> Result<Written> {
        Err(RO.into())
    }

    async fn commit(&self, cx: &Cx, file: IoRef<'_>, offset: u64, len: u64) -> Result<Committed> {
        self.inner.commit(cx, file, offset, len).await
    }

    async fn allocate(&self, _: &Cx, _: IoRef<'_>, _: u64, _: u64) -> Result<()> {
        Err(RO.into())
    }

    async fn deallocate(&self, _: &Cx, _: IoRef<'_>, _: u64, _: u64) -> Result<()> {
        Err(RO.into())
    }

    async fn seek(&self, cx: &Cx, file: IoRef<'_>, offset: u64, to: SeekTo) -> Result<Seeked> {
        self.inner.seek(cx, file, offset, to).await
    }

    async fn clone_range(&self, _: &Cx, _: crate::CopySource<'_>, _: IoRef<'_>, _: u64, _: u64) -> Result<()> {
        Err(RO.into())
    }

    async fn copy_range(&self, _: &Cx, _: crate::CopySource<'_>, _: IoRef<'_>, _: u64, _: u64, _: u64) -> Result<u64> {
        Err(RO.into())
    }

    async fn lock(&self, cx: &Cx, file: IoRef<'_>, o: &LockOwner, r: LockRange, k: LockKind) -> Result<()> {
        self.inner.lock(cx, file, o, r, k).await
    }

    async fn unlock(&self, cx: &Cx, file: IoRef<'_>, owner: &LockOwner, range: LockRange) -> Result<()> {
        self.inner.unlock(cx, file, owner, range).await
    }

    async fn test_lock(
        &self,
        cx: &Cx,
        file: IoRef<'_>,
        owner: &LockOwner,
        range: LockRange,
        kind: LockKind,
    ) -> Result<Option<(LockRange, LockKind)>> {
        self.inner.test_lock(cx, file, owner, range, kind).await
    }

    fn locks_reach_beyond(&self) -> bool {
        self.inner.locks_reach_beyond()
    }

    async fn watch_writers(&self, handle: &Handle, notice: crate::WriterNotice) -> Result<crate::Watch> {
        self.inner.watch_writers(handle, notice).await
    }

    async fn statfs(&self, cx: &Cx, handle: &Handle) -> Result<FsStat> {
        self.inner.statfs(cx, handle).await
    }

    async fn path_of(&self, handle: &Handle) -> Option<std::path::PathBuf> {
        self.inner.path_of(handle).await
    }

    async fn quota(&self, cx: &Cx, handle: &Handle, uid: u32) -> Result<Quota> {
        self.inner.quota(cx, handle, uid).await
    }

    async fn acl(&self, cx: &Cx, handle: &Handle) -> Result<AclSet> {
        self.inner.acl(cx, handle).await
    }

    async fn getxattr(&self, cx: &Cx, handle: &Handle, name: &[u8]) -> Result<Bytes> {
        self.inner.getxattr(cx, handle, name).await
    }

    async fn setxattr(&self, _: &Cx, _: &Handle, _: &[u8], _: &[u8], _: crate::XattrSet) -> Result<DirChange> {
        Err(RO.into())
    }

    async fn listxattr(&self, cx: &Cx, handle: &Handle) -> Result<Vec<Bytes>> {
        self.inner.listxattr(cx, handle).await
    }

    async fn removexattr(&self, _: &Cx, _: &Handle, _: &[u8]) -> Result<DirChange> {
        Err(RO.into())
    }
}
