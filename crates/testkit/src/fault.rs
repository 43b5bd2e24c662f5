//! [`Fault`]: a decorator that delays, fails or holds the calls of a backend, and counts them.

use async_trait::async_trait;
use bytes::Bytes;
use dhow_vfs::{
    Access, AclSet, Attr, Backend, Caps, Committed, CopySource, CreateHow, Created, Cx, DirChange, DirPage, ErrorKind,
    FsStat, Handle, IoRef, LockKind, LockOwner, LockRange, Made, Make, Name, Node, ObjectId, OpenFile, OpenHow,
    PageLimit, Quota, ReadData, Removed, Renamed, Result, SeekTo, Seeked, SetAttr, SetDone, Stability, WriteVerifier,
    WriterNotice, Written, XattrSet,
};
use parking_lot::Mutex;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// A method of [`Backend`]; its `try_` form counts with it.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    Root,
    GetAttr,
    SetAttr,
    Access,
    Lookup,
    Parent,
    ReadLink,
    Create,
    Make,
    Link,
    Remove,
    Rename,
    ReadDir,
    Open,
    Reopen,
    Read,
    Write,
    Commit,
    StartWriteback,
    Allocate,
    Deallocate,
    Seek,
    CloneRange,
    CopyRange,
    Lock,
    Unlock,
    TestLock,
    StatFs,
    Acl,
    Quota,
    GetXattr,
    SetXattr,
    ListXattr,
    RemoveXattr,
    Close,
}

/// Number of kinds of calls.
const CALLS: usize = Call::Close as usize + 1;

/// What happens to a call.
#[derive(Clone)]
pub enum Action {
    /// It waits so long (tokio's time, so that paused time costs nothing), then runs.
    Delay(Duration),
    /// It fails and does nothing.
    Fail(ErrorKind),
    /// It does its work, then fails.
    FailAfter(ErrorKind),
    /// It waits until the gate is opened, then runs.
    Hold(Gate),
}

/// Holds calls until it is opened. Clones are one gate.
#[derive(Clone)]
pub struct Gate(Arc<(watch::Sender<bool>, watch::Sender<usize>)>);

impl Gate {
    /// A closed gate.
    pub fn new() -> Self {
        Self(Arc::new((watch::Sender::new(false), watch::Sender::new(0))))
    }

    /// Lets every call go, also those that come later.
    pub fn open(&self) {
        self.0.0.send_replace(true);
    }

    /// Waits until `count` calls have come to the gate, those counted that were let go or dropped since.
    pub async fn arrived(&self, count: usize) {
        let mut seen = self.0.1.subscribe();
        // The sender lives as long as `self`.
        let _ = seen.wait_for(|n| *n >= count).await;
    }

    /// Calls that have come so far.
    pub fn count(&self) -> usize {
        *self.0.1.borrow()
    }

    async fn pass(&self) {
        self.0.1.send_modify(|n| *n += 1);
        let mut open = self.0.0.subscribe();
        let _ = open.wait_for(|open| *open).await;
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

struct Rule {
    call: Call,
    handle: Option<Handle>,
    action: Action,
    left: u64,
}

/// Sees every call: before it is done (`false`), and after it was (`true`). Says whether it goes on: if not, it never
/// ends. What is told after the work cannot stop the result.
pub type Watch = Arc<dyn Fn(Call, bool) -> bool + Send + Sync>;

/// A backend whose calls can be delayed, failed and held. Tokens of opens are the inner backend's.
pub struct Fault {
    inner: Arc<dyn Backend>,
    rules: Mutex<Vec<Rule>>,
    chaos: Mutex<Option<Chaos>>,
    watch: Option<Watch>,
    counts: [AtomicU64; CALLS],
}

/// Random trouble.
struct Chaos {
    seed: u64,
    percent: u64,
}

impl Chaos {
    fn action(&mut self) -> Option<Action> {
        const KINDS: [ErrorKind; 8] = [
            ErrorKind::Io,
            ErrorKind::NoSpace,
            ErrorKind::Stale,
            ErrorKind::Access,
            ErrorKind::NotFound,
            ErrorKind::Fault,
            ErrorKind::Busy,
            ErrorKind::Quota,
        ];
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let r = self.seed >> 33;
        if r % 100 >= self.percent {
            return None;
        }
        let kind = KINDS[(r / 100) as usize % KINDS.len()];
        Some(match r / 1000 % 4 {
            0 => Action::Fail(kind),
            1 => Action::FailAfter(kind),
            _ => Action::Delay(Duration::from_micros(r / 4000 % 2000)),
        })
    }
}

impl Fault {
    /// Wraps `inner`; nothing happens until a rule is added.
    pub fn new(inner: Arc<dyn Backend>) -> Arc<Self> {
        Self::build(inner, None)
    }

    /// Wraps `inner` and lets `watch` see every call.
    pub fn watched(inner: Arc<dyn Backend>, watch: Watch) -> Arc<Self> {
        Self::build(inner, Some(watch))
    }

    fn build(inner: Arc<dyn Backend>, watch: Option<Watch>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            rules: Mutex::default(),
            chaos: Mutex::default(),
            watch,
            counts: [const { AtomicU64::new(0) }; CALLS],
        })
    }

    /// Every such call from now on meets `action`.
    pub fn always(&self, call: Call, action: Action) {
        self.rule(call, None, action, u64::MAX);
    }

    /// The next such call meets `action`.
    pub fn once(&self, call: Call, action: Action) {
        self.rule(call, None, action, 1);
    }

    /// The next `times` such calls on `handle` (any object, if `None`) meet `action`. For calls with a directory and a
    /// name it is the directory, for a copy the destination.
    pub fn rule(&self, call: Call, handle: Option<Handle>, action: Action, times: u64) {
        self.rules.lock().push(Rule { call, handle, action, left: times });
    }

    /// Holds every such call until the gate that is returned is opened.
    pub fn hold(&self, call: Call) -> Gate {
        let gate = Gate::new();
        self.always(call, Action::Hold(gate.clone()));
        gate
    }

    /// From now on so many of a hundred calls that meet no rule are delayed a little, fail, or fail after their work; 0
    /// ends it. A close never fails.
    pub fn chaos(&self, seed: u64, percent: u64) {
        *self.chaos.lock() = (percent > 0).then_some(Chaos { seed, percent });
    }

    /// Takes the rules for `call` back.
    pub fn clear(&self, call: Call) {
        self.rules.lock().retain(|r| r.call != call);
    }

    /// Calls so far, failed and held ones included.
    pub fn count(&self, call: Call) -> u64 {
        self.counts[call as usize].load(Ordering::Relaxed)
    }

    fn tally(&self, call: Call) {
        self.counts[call as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn has_rule(&self, call: Call) -> bool {
        self.watch.is_some()
            || self.chaos.lock().is_some()
            || self.rules.lock().iter().any(|r| r.call == call && r.left > 0)
    }

    /// Meets the first rule that fits; says which error the call ends with once it is done.
    async fn meet(&self, call: Call, handle: Option<&Handle>) -> Result<Fate> {
        self.tally(call);
        let after = self.watch.clone().map(|watch| (watch, call));
        if let Some((watch, _)) = &after
            && !watch(call, false)
        {
            std::future::pending::<()>().await;
        }
        let action = {
            let mut rules = self.rules.lock();
            let fits =
                |r: &&mut Rule| r.call == call && r.left > 0 && (r.handle.is_none() || r.handle.as_ref() == handle);
            rules.iter_mut().find(fits).map(|rule| {
                rule.left -= 1;
                rule.action.clone()
            })
        };
        let action = action.or_else(|| self.chaos.lock().as_mut().and_then(Chaos::action));
        match action {
            None => {}
            Some(Action::Delay(time)) => tokio::time::sleep(time).await,
            Some(Action::Fail(kind)) => return Err(kind.into()),
            Some(Action::FailAfter(kind)) => return Ok(Fate { error: Some(kind), after }),
            Some(Action::Hold(gate)) => gate.pass().await,
        }
        Ok(Fate { error: None, after })
    }
}

/// What becomes of a call once it has done its work.
struct Fate {
    error: Option<ErrorKind>,
    after: Option<(Watch, Call)>,
}

/// The result of a call, unless a rule wants it to fail.
fn end<T>(done: Result<T>, fate: Fate) -> Result<T> {
    if let Some((watch, call)) = fate.after {
        watch(call, true);
    }
    match fate.error {
        Some(kind) => Err(kind.into()),
        None => done,
    }
}

#[async_trait]
impl Backend for Fault {
    fn as_any(&self) -> &dyn Any {
        self.inner.as_any()
    }

    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn object_id(&self, handle: &Handle) -> ObjectId {
        self.inner.object_id(handle)
    }

    fn write_verifier(&self) -> WriteVerifier {
        self.inner.write_verifier()
    }

    fn try_getattr(&self, cx: &Cx, handle: &Handle) -> Option<Result<Attr>> {
        let done = if self.has_rule(Call::GetAttr) { None } else { self.inner.try_getattr(cx, handle) };
        done.inspect(|_| self.tally(Call::GetAttr))
    }

    fn try_lookup(&self, cx: &Cx, dir: &Handle, name: &Name) -> Option<Result<Node>> {
        let done = if self.has_rule(Call::Lookup) { None } else { self.inner.try_lookup(cx, dir, name) };
        done.inspect(|_| self.tally(Call::Lookup))
    }

    fn try_read(&self, cx: &Cx, file: IoRef<'_>, offset: u64, len: u32) -> Option<Result<ReadData>> {
        let done = if self.has_rule(Call::Read) { None } else { self.inner.try_read(cx, file, offset, len) };
        done.inspect(|_| self.tally(Call::Read))
    }

    async fn close(&self, open: OpenFile) {
        // A close cannot fail; delays and gates hold for it.
        let fate = self.meet(Call::Close, None).await;
        self.inner.close(open).await;
        let _ = fate.map(|fate| end(Ok(()), fate));
    }

    async fn root(&self, cx: &Cx) -> Result<Node> {
        let fail = self.meet(Call::Root, None).await?;
        end(self.inner.root(cx).await, fail)
    }

    async fn getattr(&self, cx: &Cx, handle: &Handle) -> Result<Attr> {
        let fail = self.meet(Call::GetAttr, Some(handle)).await?;
        end(self.inner.getattr(cx, handle).await, fail)
    }

    async fn setattr(&self, cx: &Cx, handle: &Handle, open: Option<&OpenFile>, set: &SetAttr) -> Result<SetDone> {
        let fate = self.meet(Call::SetAttr, Some(handle)).await?;
        let done = self.inner.setattr(cx, handle, open, set).await;
        let applied = done.as_ref().ok().map(|done| done.applied.clone());
        // One that fails after its work has set what it set.
        end(done, fate).map_err(|e| match applied {
            Some(applied) => e.after(applied),
            None => e,
        })
    }

    async fn access(&self, cx: &Cx, handle: &Handle, want: Access) -> Result<Access> {
        let fail = self.meet(Call::Access, Some(handle)).await?;
        end(self.inner.access(cx, handle, want).await, fail)
    }

    async fn lookup(&self, cx: &Cx, dir: &Handle, name: &Name) -> Result<Node> {
        let fail = self.meet(Call::Lookup, Some(dir)).await?;
        end(self.inner.lookup(cx, dir, name).await, fail)
    }

    async fn parent(&self, cx: &Cx, dir: &Handle) -> Result<Node> {
        let fail = self.meet(Call::Parent, Some(dir)).await?;
        end(self.inner.parent(cx, dir).await, fail)
    }

    async fn readlink(&self, cx: &Cx, handle: &Handle) -> Result<Bytes> {
        let fail = self.meet(Call::ReadLink, Some(handle)).await?;
        end(self.inner.readlink(cx, handle).await, fail)
    }

    async fn create(&self, cx: &Cx, dir: &Handle, name: &Name, how: &CreateHow) -> Result<Created> {
        let fail = self.meet(Call::Create, Some(dir)).await?;
        end(self.inner.create(cx, dir, name, how).await, fail)
    }

    async fn make(&self, cx: &Cx, dir: &Handle, name: &Name, what: &Make, set: &SetAttr) -> Result<Made> {
        let fail = self.meet(Call::Make, Some(dir)).await?;
        end(self.inner.make(cx, dir, name, what, set).await, fail)
    }

    async fn link(&self, cx: &Cx, file: &Handle, dir: &Handle, name: &Name) -> Result<DirChange> {
        let fail = self.meet(Call::Link, Some(dir)).await?;
        end(self.inner.link(cx, file, dir, name).await, fail)
    }

    async fn remove(&self, cx: &Cx, dir: &Handle, name: &Name) -> Result<Removed> {
        let fail = self.meet(Call::Remove, Some(dir)).await?;
        end(self.inner.remove(cx, dir, name).await, fail)
    }

    async fn rename(&self, cx: &Cx, from: &Handle, old: &Name, to: &Handle, new: &Name) -> Result<Renamed> {
        let fail = self.meet(Call::Rename, Some(from)).await?;
        end(self.inner.rename(cx, from, old, to, new).await, fail)
    }

    async fn readdir(&self, cx: &Cx, dir: &Handle, cookie: u64, limit: PageLimit) -> Result<DirPage> {
        let fail = self.meet(Call::ReadDir, Some(dir)).await?;
        end(self.inner.readdir(cx, dir, cookie, limit).await, fail)
    }

    async fn open(&self, cx: &Cx, handle: &Handle, how: &OpenHow) -> Result<OpenFile> {
        let fail = self.meet(Call::Open, Some(handle)).await?;
        end(self.inner.open(cx, handle, how).await, fail)
    }

    async fn reopen(&self, cx: &Cx, open: &OpenFile, how: &OpenHow) -> Result<OpenFile> {
        let fail = self.meet(Call::Reopen, None).await?;
        end(self.inner.reopen(cx, open, how).await, fail)
    }

    async fn read(&self, cx: &Cx, file: IoRef<'_>, offset: u64, len: u32) -> Result<ReadData> {
        let fail = self.meet(Call::Read, Some(file.handle)).await?;
        end(self.inner.read(cx, file, offset, len).await, fail)
    }

    async fn write(&self, cx: &Cx, file: IoRef<'_>, offset: u64, data: Bytes, want: Stability) -> Result<Written> {
        let fail = self.meet(Call::Write, Some(file.handle)).await?;
        end(self.inner.write(cx, file, offset, data, want).await, fail)
    }

    async fn commit(&self, cx: &Cx, file: IoRef<'_>, offset: u64, len: u64) -> Result<Committed> {
        let fail = self.meet(Call::Commit, Some(file.handle)).await?;
        end(self.inner.commit(cx, file, offset, len).await, fail)
    }

    async fn start_writeback(&self, cx: &Cx, file: IoRef<'_>, offset: u64, len: u64) {
        // A failure shows at the commit, as with a real filesystem.
        if self.meet(Call::StartWriteback, Some(file.handle)).await.is_ok() {
            self.inner.start_writeback(cx, file, offset, len).await;
        }
    }

    async fn allocate(&self, cx: &Cx, file: IoRef<'_>, offset: u64, len: u64) -> Result<()> {
        let fail = self.meet(Call::Allocate, Some(file.handle)).await?;
        end(self.inner.allocate(cx, file, offset, len).await, fail)
    }

    async fn deallocate(&self, cx: &Cx, file: IoRef<'_>, offset: u64, len: u64) -> Result<()> {
        let fail = self.meet(Call::Deallocate, Some(file.handle)).await?;
        end(self.inner.deallocate(cx, file, offset, len).await, fail)
    }

    async fn seek(&self, cx: &Cx, file: IoRef<'_>, offset: u64, to: SeekTo) -> Result<Seeked> {
        let fail = self.meet(Call::Seek, Some(file.handle)).await?;
        end(self.inner.seek(cx, file, offset, to).await, fail)
    }

    async fn clone_range(&self, cx: &Cx, src: CopySource<'_>, dst: IoRef<'_>, dst_offset: u64, len: u64) -> Result<()> {
        let fail = self.meet(Call::CloneRange, Some(dst.handle)).await?;
        end(self.inner.clone_range(cx, src, dst, dst_offset, len).await, fail)
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
        let fail = self.meet(Call::CopyRange, Some(dst.handle)).await?;
        end(self.inner.copy_range(cx, src, dst, dst_offset, len, chunk).await, fail)
    }

    async fn lock(&self, cx: &Cx, file: IoRef<'_>, owner: &LockOwner, range: LockRange, kind: LockKind) -> Result<()> {
        let fail = self.meet(Call::Lock, Some(file.handle)).await?;
        end(self.inner.lock(cx, file, owner, range, kind).await, fail)
    }

    async fn unlock(&self, cx: &Cx, file: IoRef<'_>, owner: &LockOwner, range: LockRange) -> Result<()> {
        let fail = self.meet(Call::Unlock, Some(file.handle)).await?;
        end(self.inner.unlock(cx, file, owner, range).await, fail)
    }

    async fn test_lock(
        &self,
        cx: &Cx,
        file: IoRef<'_>,
        owner: &LockOwner,
        range: LockRange,
        kind: LockKind,
    ) -> Result<Option<(LockRange, LockKind)>> {
        let fail = self.meet(Call::TestLock, Some(file.handle)).await?;
        end(self.inner.test_lock(cx, file, owner, range, kind).await, fail)
    }

    fn locks_reach_beyond(&self) -> bool {
        self.inner.locks_reach_beyond()
    }

    async fn watch_writers(&self, handle: &Handle, notice: WriterNotice) -> Result<dhow_vfs::Watch> {
        self.inner.watch_writers(handle, notice).await
    }

    async fn statfs(&self, cx: &Cx, handle: &Handle) -> Result<FsStat> {
        let fail = self.meet(Call::StatFs, Some(handle)).await?;
        end(self.inner.statfs(cx, handle).await, fail)
    }

    async fn path_of(&self, handle: &Handle) -> Option<std::path::PathBuf> {
        self.inner.path_of(handle).await
    }

    async fn quota(&self, cx: &Cx, handle: &Handle, uid: u32) -> Result<Quota> {
        let fail = self.meet(Call::Quota, Some(handle)).await?;
        end(self.inner.quota(cx, handle, uid).await, fail)
    }

    async fn acl(&self, cx: &Cx, handle: &Handle) -> Result<AclSet> {
        let fail = self.meet(Call::Acl, Some(handle)).await?;
        end(self.inner.acl(cx, handle).await, fail)
    }

    async fn getxattr(&self, cx: &Cx, handle: &Handle, name: &[u8]) -> Result<Bytes> {
        let fail = self.meet(Call::GetXattr, Some(handle)).await?;
        end(self.inner.getxattr(cx, handle, name).await, fail)
    }

    async fn setxattr(&self, cx: &Cx, handle: &Handle, name: &[u8], value: &[u8], how: XattrSet) -> Result<DirChange> {
        let fail = self.meet(Call::SetXattr, Some(handle)).await?;
        end(self.inner.setxattr(cx, handle, name, value, how).await, fail)
    }

    async fn listxattr(&self, cx: &Cx, handle: &Handle) -> Result<Vec<Bytes>> {
        let fail = self.meet(Call::ListXattr, Some(handle)).await?;
        end(self.inner.listxattr(cx, handle).await, fail)
    }

    async fn removexattr(&self, cx: &Cx, handle: &Handle, name: &[u8]) -> Result<DirChange> {
        let fail = self.meet(Call::RemoveXattr, Some(handle)).await?;
        end(self.inner.removexattr(cx, handle, name).await, fail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemFs;

    #[tokio::test(start_paused = true)]
    async fn rules_delay_fail_and_hold() {
        let fault = Fault::new(MemFs::new());
        let cx = Cx::root();
        let root = fault.root(&cx).await.unwrap().handle;
        fault.once(Call::GetAttr, Action::Fail(ErrorKind::Io));
        assert!(fault.try_getattr(&cx, &root).is_none(), "a rule takes the fast path away");
        assert_eq!(fault.getattr(&cx, &root).await.unwrap_err().kind(), ErrorKind::Io);
        assert!(fault.try_getattr(&cx, &root).unwrap().is_ok());
        assert_eq!(fault.count(Call::GetAttr), 2);

        fault.always(Call::StatFs, Action::Delay(Duration::from_secs(1000)));
        let before = tokio::time::Instant::now();
        fault.statfs(&cx, &root).await.unwrap();
        assert!(before.elapsed() >= Duration::from_secs(1000));

        let gate = fault.hold(Call::GetAttr);
        let held = tokio::spawn({
            let (fault, cx, root) = (fault.clone(), cx.clone(), root.clone());
            async move { fault.getattr(&cx, &root).await }
        });
        gate.arrived(1).await;
        assert!(!held.is_finished());
        gate.open();
        assert!(held.await.unwrap().is_ok());

        let name = Name::new(Bytes::from_static(b"d")).unwrap();
        fault.once(Call::Make, Action::FailAfter(ErrorKind::Io));
        fault.make(&cx, &root, &name, &Make::Directory, &SetAttr::default()).await.unwrap_err();
        assert!(fault.lookup(&cx, &root, &name).await.is_ok(), "the work was done");
    }
}
