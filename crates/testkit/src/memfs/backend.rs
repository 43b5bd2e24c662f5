//! The [`Backend`] of [`MemFs`].

use super::tree::{MAX_LINKS, R, W, X};
use super::{BLOCK, Data, MemFs, MemOpen, ROOT, Tree};
use async_trait::async_trait;
use bytes::Bytes;
use dhow_vfs::{
    Access, Attr, Backend, Caps, Committed, CopySource, CreateHow, Created, Cred, Cx, Deny, DirChange, DirEntry,
    DirPage, ErrorKind, FileKind, FsStat, Handle, IoRef, Made, Make, Name, Node, OpenAccess, OpenFile, OpenHow,
    PageLimit, Quota, ReadData, Removed, Renamed, Result, SeekTo, Seeked, SetAttr, SetDone, Stability, Time,
    WriteVerifier, Written, XattrSet,
};
use parking_lot::MutexGuard;
use std::any::Any;
use std::sync::atomic::Ordering;

/// Longest name and value of an extended attribute, bytes: those of Linux.
const XATTR_NAME_MAX: usize = 250;
const XATTR_VALUE_MAX: usize = 65_536;

/// How a file is open that was just made: for whom is not told.
fn created() -> OpenHow {
    let access = OpenAccess { read: true, write: true };
    OpenHow { access, deny: Deny::default(), owner: Bytes::new(), reclaim: false }
}

impl MemFs {
    pub(super) fn ino_of(&self, handle: &Handle) -> Result<u64> {
        let (id, rest) = handle.as_bytes().split_first_chunk::<8>().ok_or(ErrorKind::BadHandle)?;
        let (ino, _) = rest.split_first_chunk::<8>().ok_or(ErrorKind::BadHandle)?;
        if u64::from_be_bytes(*id) != self.options.id || handle.as_bytes().len() != self.options.handle_len {
            return Err(ErrorKind::BadHandle.into());
        }
        Ok(u64::from_be_bytes(*ino))
    }

    fn node(&self, tree: &Tree, ino: u64) -> Result<Node> {
        let attr = tree.get(ino)?.attr(self.options.id, ino);
        Ok(Node { handle: self.handle(ino).ok_or(ErrorKind::Fault)?, attr })
    }

    fn now(&self, tree: &mut Tree) -> Time {
        self.options.clock.now(&mut tree.ticks)
    }

    /// Runs a change of a directory, and says its change attribute before and after.
    fn around<T>(
        &self,
        tree: &mut Tree,
        dir: u64,
        body: impl FnOnce(&mut Tree) -> Result<T>,
    ) -> Result<(T, DirChange)> {
        let before = tree.get(dir)?.change;
        let done = body(tree)?;
        let after = tree.get(dir).map_or(before, |d| d.change);
        Ok((done, DirChange { before, after, atomic: self.options.exclusive }))
    }

    fn opened(&self, tree: &mut Tree, ino: u64, how: OpenHow) -> Result<OpenFile> {
        tree.get_mut(ino)?.opens += 1;
        tree.last_open += 1;
        let (id, OpenAccess { read, write }) = (tree.last_open, how.access);
        tree.opens.insert(id, (ino, how));
        Ok(OpenFile::new(MemOpen { tree: self.tree.clone(), id, ino, read, write }))
    }

    /// The file meant, once `want` is allowed: by the open, if there is one, else by the mode.
    fn io(&self, tree: &Tree, cx: &Cx, file: IoRef<'_>, want: u32) -> Result<u64> {
        let ino = self.ino_of(file.handle)?;
        let inode = tree.get(ino)?;
        inode.want_regular()?;
        let allowed = match file.open {
            Some(open) => {
                let open = open.get::<MemOpen>().ok_or(ErrorKind::Fault)?;
                if open.ino != ino {
                    return Err(ErrorKind::Fault.into());
                }
                (want & R == 0 || open.read) && (want & W == 0 || open.write)
            }
            // Who may execute a file may read it, as a client must to execute it (RFC 8881 18.22.3).
            None => inode.permits_io(&cx.cred, want) || (want == R && inode.permits(&cx.cred, X)),
        };
        if allowed { Ok(ino) } else { Err(ErrorKind::Access.into()) }
    }

    /// Room for what a write of `offset..end` adds, within all limits.
    fn room(&self, tree: &Tree, ino: u64, offset: u64, end: u64) -> Result<()> {
        if end > self.options.max_file_size {
            return Err(ErrorKind::FileTooBig.into());
        }
        let adds = tree.get(ino)?.data.would_add(offset, end).saturating_mul(BLOCK);
        if tree.used.saturating_add(adds) > self.options.max_bytes {
            return Err(ErrorKind::NoSpace.into());
        }
        Ok(())
    }

    fn room_for_object(&self, tree: &Tree) -> Result<()> {
        if tree.inodes.len() as u64 >= self.options.max_files { Err(ErrorKind::NoSpace.into()) } else { Ok(()) }
    }

    /// Changes the content of a file, and keeps count of the space in use.
    fn change<T>(&self, tree: &mut Tree, ino: u64, cred: &Cred, body: impl FnOnce(&mut Data) -> T) -> Result<T> {
        let now = self.now(tree);
        let inode = tree.get_mut(ino)?;
        let before = inode.data.used();
        let done = body(&mut inode.data);
        let after = inode.data.used();
        inode.drop_set_id(cred);
        tree.used = tree.used + after - before;
        tree.bump(ino, now, true);
        Ok(done)
    }

    /// Makes a range stable; the failures that [`MemFs::fail_syncs`] ordered change the verifier.
    fn make_stable(&self, tree: &mut Tree, ino: u64, offset: u64, end: u64) -> Result<()> {
        if tree.failing_syncs > 0 {
            tree.failing_syncs -= 1;
            self.new_verifier();
            return Err(ErrorKind::Io.into());
        }
        let inode = tree.get_mut(ino)?;
        inode.synced.sync_from(&inode.data, offset, end);
        tree.sync_metadata();
        Ok(())
    }

    /// Content of the source of a copy, if it is a file of such a filesystem.
    fn source(&self, tree: &Tree, src: CopySource<'_>, other: ErrorKind) -> Result<Data> {
        let fs = src.backend.as_any().downcast_ref::<Self>().ok_or(other)?;
        if std::ptr::eq(fs, self) {
            let ino = self.io(tree, src.cx, src.io, R)?;
            return Ok(tree.get(ino)?.data.clone());
        }
        Err(other.into())
    }

    fn read_now(&self, tree: &Tree, cx: &Cx, file: IoRef<'_>, offset: u64, len: u32) -> Result<ReadData> {
        let ino = self.io(tree, cx, file, R)?;
        let data = &tree.get(ino)?.data;
        let bytes = data.read(offset, u64::from(len));
        Ok(ReadData { eof: offset.saturating_add(bytes.len() as u64) >= data.size, data: bytes })
    }

    fn lookup_now(&self, tree: &Tree, cx: &Cx, dir: &Handle, name: &Name) -> Result<Node> {
        let dir = tree.dir(self.ino_of(dir)?, &cx.cred, X)?;
        let &(ino, _) = dir.names.get(name.as_bytes()).ok_or(ErrorKind::NotFound)?;
        self.node(tree, ino)
    }

    fn xattr_change(
        &self,
        cx: &Cx,
        handle: &Handle,
        body: impl FnOnce(&mut super::Inode) -> Result<()>,
    ) -> Result<DirChange> {
        let mut tree = self.tree.lock();
        let ino = self.ino_of(handle)?;
        let inode = tree.get(ino)?;
        if !matches!(inode.kind, FileKind::Regular | FileKind::Directory) {
            return Err(ErrorKind::Perm.into());
        }
        if !inode.permits(&cx.cred, W) {
            return Err(ErrorKind::Access.into());
        }
        let now = self.now(&mut tree);
        let ((), change) = self.around(&mut tree, ino, |tree| {
            body(tree.get_mut(ino)?)?;
            tree.bump(ino, now, false);
            Ok(())
        })?;
        Ok(change)
    }

    fn fast(&self) -> Option<MutexGuard<'_, Tree>> {
        self.options.fast.then(|| self.tree.lock())
    }
}

#[async_trait]
impl Backend for MemFs {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn write_verifier(&self) -> WriteVerifier {
        self.verifier.load(Ordering::SeqCst).to_be_bytes()
    }

    async fn root(&self, _cx: &Cx) -> Result<Node> {
        self.node(&self.tree.lock(), ROOT)
    }

    fn try_getattr(&self, _cx: &Cx, handle: &Handle) -> Option<Result<Attr>> {
        let tree = self.fast()?;
        Some(self.ino_of(handle).and_then(|ino| Ok(tree.get(ino)?.attr(self.options.id, ino))))
    }

    async fn getattr(&self, _cx: &Cx, handle: &Handle) -> Result<Attr> {
        let ino = self.ino_of(handle)?;
        Ok(self.tree.lock().get(ino)?.attr(self.options.id, ino))
    }

    async fn setattr(&self, cx: &Cx, handle: &Handle, open: Option<&OpenFile>, set: &SetAttr) -> Result<SetDone> {
        let mut tree = self.tree.lock();
        let ino = self.ino_of(handle)?;
        if set.size.is_some_and(|s| s > self.options.max_file_size) {
            return Err(ErrorKind::FileTooBig.into());
        }
        let io = open.and_then(|o| o.get::<MemOpen>()).is_some_and(|o| o.ino == ino && o.write);
        let now = self.now(&mut tree);
        tree.set(ino, io, set, &cx.cred, now)?;
        Ok(SetDone { attr: tree.get(ino)?.attr(self.options.id, ino), applied: SetAttr { umask: None, ..set.clone() } })
    }

    async fn access(&self, cx: &Cx, handle: &Handle, want: Access) -> Result<Access> {
        let tree = self.tree.lock();
        let inode = tree.get(self.ino_of(handle)?)?;
        let dir = inode.kind == FileKind::Directory;
        let mut have = 0;
        if inode.permits(&cx.cred, R) {
            have |= Access::READ | Access::XAREAD | Access::XALIST;
        }
        if inode.permits(&cx.cred, W) {
            have |= Access::XAWRITE;
        }
        match dir {
            true if inode.permits(&cx.cred, W | X) => have |= Access::MODIFY | Access::EXTEND | Access::DELETE,
            false if inode.permits(&cx.cred, W) => have |= Access::MODIFY | Access::EXTEND,
            _ => {}
        }
        if inode.permits(&cx.cred, X) {
            have |= if dir { Access::LOOKUP } else { Access::EXECUTE };
        }
        Ok(Access(want.0 & have))
    }

    fn try_lookup(&self, cx: &Cx, dir: &Handle, name: &Name) -> Option<Result<Node>> {
        let tree = self.fast()?;
        Some(self.lookup_now(&tree, cx, dir, name))
    }

    async fn lookup(&self, cx: &Cx, dir: &Handle, name: &Name) -> Result<Node> {
        self.lookup_now(&self.tree.lock(), cx, dir, name)
    }

    async fn parent(&self, cx: &Cx, dir: &Handle) -> Result<Node> {
        let tree = self.tree.lock();
        match self.ino_of(dir)? {
            ROOT => Err(ErrorKind::NotFound.into()),
            ino => self.node(&tree, tree.dir(ino, &cx.cred, X)?.parent),
        }
    }

    async fn readlink(&self, _cx: &Cx, handle: &Handle) -> Result<Bytes> {
        let tree = self.tree.lock();
        let inode = tree.get(self.ino_of(handle)?)?;
        match inode.kind {
            FileKind::Symlink => Ok(inode.target.clone()),
            _ => Err(ErrorKind::Invalid.into()),
        }
    }

    async fn create(&self, cx: &Cx, dir: &Handle, name: &Name, how: &CreateHow) -> Result<Created> {
        let mut tree = self.tree.lock();
        let dir = self.ino_of(dir)?;
        if how.set.size.is_some_and(|s| s > self.options.max_file_size) {
            return Err(ErrorKind::FileTooBig.into());
        }
        if let Some(verifier) = how.verifier
            && let Some(&(ino, _)) = tree.dir(dir, &cx.cred, X)?.names.get(name.as_bytes())
        {
            let inode = tree.get(ino)?;
            if inode.kind != FileKind::Regular || inode.verifier != Some(verifier) {
                return Err(ErrorKind::Exists.into());
            }
            if !inode.permits_io(&cx.cred, R | W) {
                return Err(ErrorKind::Access.into());
            }
            let change = tree.get(dir)?.change;
            let open = self.opened(&mut tree, ino, created())?;
            let change = DirChange { before: change, after: change, atomic: self.options.exclusive };
            return Ok(Created { node: self.node(&tree, ino)?, open, change, fresh: false, applied: how.set.clone() });
        }
        self.room_for_object(&tree)?;
        let now = self.now(&mut tree);
        let ((ino, applied), change) = self
            .around(&mut tree, dir, |tree| tree.add(dir, name, (FileKind::Regular, 0o600), &how.set, &cx.cred, now))?;
        tree.get_mut(ino)?.verifier = how.verifier;
        let open = self.opened(&mut tree, ino, created())?;
        Ok(Created { node: self.node(&tree, ino)?, open, change, fresh: true, applied })
    }

    async fn make(&self, cx: &Cx, dir: &Handle, name: &Name, what: &Make, set: &SetAttr) -> Result<Made> {
        let mut tree = self.tree.lock();
        let dir = self.ino_of(dir)?;
        let (kind, mode) = match what {
            Make::Directory => (FileKind::Directory, 0o700),
            Make::Symlink(_) => (FileKind::Symlink, 0o777),
            Make::Fifo => (FileKind::Fifo, 0o600),
            Make::Socket => (FileKind::Socket, 0o600),
            Make::Block(..) => (FileKind::Block, 0o600),
            Make::Char(..) => (FileKind::Char, 0o600),
        };
        if matches!(what, Make::Block(..) | Make::Char(..)) && cx.cred.uid != 0 {
            return Err(ErrorKind::Perm.into());
        }
        if let Make::Symlink(target) = what {
            if target.is_empty() || target.contains(&0) {
                return Err(ErrorKind::Invalid.into());
            }
            if target.len() >= 4096 {
                return Err(ErrorKind::NameTooLong.into());
            }
        }
        self.room_for_object(&tree)?;
        let now = self.now(&mut tree);
        let ((ino, applied), change) =
            self.around(&mut tree, dir, |tree| tree.add(dir, name, (kind, mode), set, &cx.cred, now))?;
        let inode = tree.get_mut(ino)?;
        match what {
            Make::Symlink(target) => (inode.target, inode.mode) = (target.clone(), 0o777),
            Make::Block(a, b) | Make::Char(a, b) => inode.rdev = (*a, *b),
            _ => {}
        }
        Ok(Made { node: self.node(&tree, ino)?, change, applied })
    }

    async fn link(&self, cx: &Cx, file: &Handle, dir: &Handle, name: &Name) -> Result<DirChange> {
        let mut tree = self.tree.lock();
        let (file, dir) = (self.ino_of(file)?, self.ino_of(dir)?);
        let inode = tree.get(file)?;
        if inode.kind == FileKind::Directory {
            return Err(ErrorKind::IsDir.into());
        }
        if tree.dir(dir, &cx.cred, X)?.names.contains_key(name.as_bytes()) {
            return Err(ErrorKind::Exists.into());
        }
        if inode.nlink == 0 {
            return Err(ErrorKind::NotFound.into());
        }
        if inode.nlink >= MAX_LINKS {
            return Err(ErrorKind::TooManyLinks.into());
        }
        tree.dir(dir, &cx.cred, W | X)?;
        let now = self.now(&mut tree);
        let ((), change) = self.around(&mut tree, dir, |tree| {
            let bytes = Bytes::copy_from_slice(name.as_bytes());
            tree.get_mut(dir)?.dir.put(&bytes, file);
            tree.get_mut(file)?.nlink += 1;
            tree.bump(dir, now, true);
            tree.bump(file, now, false);
            Ok(())
        })?;
        Ok(change)
    }

    async fn remove(&self, cx: &Cx, dir: &Handle, name: &Name) -> Result<Removed> {
        let mut tree = self.tree.lock();
        let dir = self.ino_of(dir)?;
        let &(ino, _) = tree.dir(dir, &cx.cred, X)?.names.get(name.as_bytes()).ok_or(ErrorKind::NotFound)?;
        tree.may_take(dir, ino, &cx.cred)?;
        let inode = tree.get(ino)?;
        let is_dir = inode.kind == FileKind::Directory;
        if !inode.dir.names.is_empty() {
            return Err(ErrorKind::NotEmpty.into());
        }
        let now = self.now(&mut tree);
        let (nlink, change) = self.around(&mut tree, dir, |tree| {
            let parent = tree.get_mut(dir)?;
            parent.dir.take(name.as_bytes());
            parent.nlink -= u32::from(is_dir);
            tree.bump(dir, now, true);
            Ok(tree.unlink(ino, now))
        })?;
        Ok(Removed { change, handle: self.handle(ino), nlink })
    }

    async fn rename(&self, cx: &Cx, from: &Handle, old: &Name, to: &Handle, new: &Name) -> Result<Renamed> {
        let mut tree = self.tree.lock();
        let (from, to) = (self.ino_of(from)?, self.ino_of(to)?);
        let cred = &cx.cred;
        tree.get(to)?.want_dir()?;
        let &(ino, _) = tree.dir(from, cred, X)?.names.get(old.as_bytes()).ok_or(ErrorKind::NotFound)?;
        let over = tree.dir(to, cred, X)?.names.get(new.as_bytes()).map(|e| e.0);
        let moved_dir = tree.get(ino)?.kind == FileKind::Directory;
        if moved_dir && tree.is_within(to, ino) {
            return Err(ErrorKind::Invalid.into());
        }
        let atomic = self.options.exclusive;
        let before = (tree.get(from)?.change, tree.get(to)?.change);
        if over == Some(ino) {
            let same = |c| DirChange { before: c, after: c, atomic };
            return Ok(Renamed { from: same(before.0), to: same(before.1), replaced: None });
        }
        tree.may_take(from, ino, cred)?;
        if tree.get(to)?.nlink == 0 {
            return Err(ErrorKind::NotFound.into());
        }
        if !tree.get(to)?.permits(cred, W | X) {
            return Err(ErrorKind::Access.into());
        }
        // The entry `..` of the directory changes.
        if moved_dir && from != to && !tree.get(ino)?.permits(cred, W) {
            return Err(ErrorKind::Access.into());
        }
        if let Some(over) = over {
            let target = tree.get(over)?;
            match (moved_dir, target.kind == FileKind::Directory) {
                (true, false) => return Err(ErrorKind::NotDir.into()),
                (false, true) => return Err(ErrorKind::IsDir.into()),
                (true, true) if !target.dir.names.is_empty() => return Err(ErrorKind::NotEmpty.into()),
                _ => tree.may_take(to, over, cred)?,
            }
        }
        let now = self.now(&mut tree);
        let source = tree.get_mut(from)?;
        source.dir.take(old.as_bytes());
        source.nlink -= u32::from(moved_dir);
        let target = tree.get_mut(to)?;
        target.dir.put(&Bytes::copy_from_slice(new.as_bytes()), ino);
        target.nlink = target.nlink + u32::from(moved_dir) - u32::from(moved_dir && over.is_some());
        if moved_dir {
            tree.get_mut(ino)?.dir.parent = to;
        }
        if let Some(over) = over {
            tree.unlink(over, now);
        }
        tree.bump(ino, now, false);
        tree.bump(from, now, true);
        if to != from {
            tree.bump(to, now, true);
        }
        Ok(Renamed {
            from: DirChange { before: before.0, after: tree.get(from)?.change, atomic },
            to: DirChange { before: before.1, after: tree.get(to)?.change, atomic },
            replaced: over.and_then(|o| self.handle(o)),
        })
    }

    async fn readdir(&self, cx: &Cx, dir: &Handle, cookie: u64, limit: PageLimit) -> Result<DirPage> {
        let tree = self.tree.lock();
        let dir = tree.dir(self.ino_of(dir)?, &cx.cred, R)?;
        let mut page = DirPage { eof: true, verifier: self.options.id.to_be_bytes(), ..DirPage::default() };
        let mut bytes = 0;
        for (&cookie, name) in dir.order.range(cookie.saturating_add(1)..) {
            if !page.entries.is_empty() && (page.entries.len() >= limit.entries || bytes >= limit.name_bytes) {
                page.eof = false;
                break;
            }
            let Some(&(ino, _)) = dir.names.get(name) else { continue };
            bytes += name.len();
            let node = limit.nodes.then(|| self.node(&tree, ino).map_err(|e| e.kind()));
            page.entries.push(DirEntry { name: name.clone(), cookie, fileid: ino, node });
        }
        Ok(page)
    }

    async fn open(&self, cx: &Cx, handle: &Handle, how: &OpenHow) -> Result<OpenFile> {
        let mut tree = self.tree.lock();
        let ino = self.ino_of(handle)?;
        let inode = tree.get(ino)?;
        inode.want_regular()?;
        if !may_open(inode, &cx.cred, how.access, how.reclaim) {
            return Err(ErrorKind::Access.into());
        }
        self.opened(&mut tree, ino, how.clone())
    }

    async fn reopen(&self, cx: &Cx, open: &OpenFile, how: &OpenHow) -> Result<OpenFile> {
        let mut tree = self.tree.lock();
        let had = open.get::<MemOpen>().ok_or(ErrorKind::Fault)?;
        let inode = tree.get(had.ino)?;
        let more = OpenAccess { read: how.access.read && !had.read, write: how.access.write && !had.write };
        if !may_open(inode, &cx.cred, more, false) {
            return Err(ErrorKind::Access.into());
        }
        self.opened(&mut tree, had.ino, how.clone())
    }

    async fn close(&self, open: OpenFile) {
        drop(open);
    }

    fn try_read(&self, cx: &Cx, file: IoRef<'_>, offset: u64, len: u32) -> Option<Result<ReadData>> {
        let tree = self.fast()?;
        Some(self.read_now(&tree, cx, file, offset, len))
    }

    async fn read(&self, cx: &Cx, file: IoRef<'_>, offset: u64, len: u32) -> Result<ReadData> {
        self.read_now(&self.tree.lock(), cx, file, offset, len)
    }

    async fn write(&self, cx: &Cx, file: IoRef<'_>, offset: u64, data: Bytes, want: Stability) -> Result<Written> {
        let mut tree = self.tree.lock();
        let ino = self.io(&tree, cx, file, W)?;
        let count = u32::try_from(data.len()).map_err(|_| ErrorKind::Invalid)?;
        let end = offset.checked_add(data.len() as u64).ok_or(ErrorKind::FileTooBig)?;
        if count > 0 {
            self.room(&tree, ino, offset, end)?;
            self.change(&mut tree, ino, &cx.cred, |d| d.write(offset, &data))?;
        }
        if want != Stability::Unstable {
            self.make_stable(&mut tree, ino, offset, end)?;
        }
        Ok(Written { count, stability: want, verifier: self.write_verifier() })
    }

    async fn commit(&self, cx: &Cx, file: IoRef<'_>, offset: u64, len: u64) -> Result<Committed> {
        let mut tree = self.tree.lock();
        let ino = match file.open {
            Some(_) => self.ino_of(file.handle)?,
            None => self.io(&tree, cx, file, W).or_else(|_| self.io(&tree, cx, file, R))?,
        };
        tree.get(ino)?.want_regular()?;
        let end = if len == 0 { u64::MAX } else { offset.saturating_add(len) };
        self.make_stable(&mut tree, ino, offset, end)?;
        Ok(Committed { verifier: self.write_verifier() })
    }

    async fn allocate(&self, cx: &Cx, file: IoRef<'_>, offset: u64, len: u64) -> Result<()> {
        let mut tree = self.tree.lock();
        let ino = self.io(&tree, cx, file, W)?;
        let end = offset.checked_add(len).filter(|_| len > 0).ok_or(ErrorKind::Invalid)?;
        self.room(&tree, ino, offset, end)?;
        self.change(&mut tree, ino, &cx.cred, |d| d.allocate(offset, end))?;
        tree.get_mut(ino)?.synced.allocate(offset, end);
        Ok(())
    }

    async fn deallocate(&self, cx: &Cx, file: IoRef<'_>, offset: u64, len: u64) -> Result<()> {
        let mut tree = self.tree.lock();
        let ino = self.io(&tree, cx, file, W)?;
        let end = offset.checked_add(len).filter(|_| len > 0).ok_or(ErrorKind::Invalid)?;
        self.change(&mut tree, ino, &cx.cred, |d| d.punch(offset, end))?;
        tree.get_mut(ino)?.synced.punch(offset, end);
        Ok(())
    }

    async fn seek(&self, cx: &Cx, file: IoRef<'_>, offset: u64, to: SeekTo) -> Result<Seeked> {
        let tree = self.tree.lock();
        let ino = self.io(&tree, cx, file, R)?;
        let data = &tree.get(ino)?.data;
        if offset >= data.size {
            return Err(ErrorKind::Range.into());
        }
        Ok(match to {
            SeekTo::Hole => Seeked { eof: false, offset: data.next_hole(offset) },
            SeekTo::Data => match data.next_data(offset) {
                Some(offset) => Seeked { eof: false, offset },
                None => Seeked { eof: true, offset: data.size },
            },
        })
    }

    async fn clone_range(&self, cx: &Cx, src: CopySource<'_>, dst: IoRef<'_>, dst_offset: u64, len: u64) -> Result<()> {
        if !self.options.clone {
            return Err(ErrorKind::NotSupported.into());
        }
        let mut tree = self.tree.lock();
        let ino = self.io(&tree, cx, dst, W)?;
        let (offset, source) = (src.offset, src.io.handle.clone());
        let from = self.source(&tree, src, ErrorKind::CrossDevice)?;
        let len = match len {
            0 => from.size.checked_sub(offset).ok_or(ErrorKind::Invalid)?,
            len => len,
        };
        let src_end = offset.checked_add(len).filter(|&e| e <= from.size).ok_or(ErrorKind::Invalid)?;
        let dst_end = dst_offset.checked_add(len).ok_or(ErrorKind::Invalid)?;
        let to_end = src_end == from.size && dst_end >= tree.get(ino)?.data.size;
        let aligned = |n: u64| n.is_multiple_of(BLOCK);
        if !aligned(offset) || !aligned(dst_offset) || !(aligned(len) || to_end) {
            return Err(ErrorKind::Invalid.into());
        }
        if self.ino_of(&source)? == ino && offset < dst_end && dst_offset < src_end {
            return Err(ErrorKind::Invalid.into());
        }
        if len == 0 {
            return Ok(());
        }
        self.room(&tree, ino, dst_offset, dst_end)?;
        self.change(&mut tree, ino, &cx.cred, |d| d.share_from(&from, offset, dst_offset, len))
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
        let mut tree = self.tree.lock();
        let ino = self.io(&tree, cx, dst, W)?;
        let offset = src.offset;
        let from = self.source(&tree, src, ErrorKind::NotSupported)?;
        let len = len.min(from.size.saturating_sub(offset));
        if len == 0 {
            return Ok(0);
        }
        let end = dst_offset.checked_add(len).ok_or(ErrorKind::FileTooBig)?;
        // What fits the next chunk must have room; holes need none.
        self.room(&tree, ino, dst_offset, dst_offset + len.min(chunk.max(1)))?;
        if end > self.options.max_file_size {
            return Err(ErrorKind::FileTooBig.into());
        }
        self.change(&mut tree, ino, &cx.cred, |d| d.copy_from(&from, offset, dst_offset, len, chunk))
    }

    async fn statfs(&self, _cx: &Cx, handle: &Handle) -> Result<FsStat> {
        let tree = self.tree.lock();
        tree.get(self.ino_of(handle)?)?;
        let free = self.options.max_bytes.saturating_sub(tree.used);
        let files_free = self.options.max_files.saturating_sub(tree.inodes.len() as u64);
        Ok(FsStat {
            total: self.options.max_bytes,
            free,
            avail: free,
            files_total: self.options.max_files,
            files_free,
            files_avail: files_free,
        })
    }

    async fn quota(&self, _cx: &Cx, _handle: &Handle, uid: u32) -> Result<Quota> {
        let all = self.options.quotas.as_ref().ok_or(ErrorKind::NotSupported)?;
        Ok(all.iter().find(|(user, _)| *user == uid).map(|(_, quota)| *quota).unwrap_or_default())
    }

    async fn getxattr(&self, cx: &Cx, handle: &Handle, name: &[u8]) -> Result<Bytes> {
        let tree = self.tree.lock();
        let inode = tree.get(self.ino_of(handle)?)?;
        if !inode.permits(&cx.cred, R) {
            return Err(ErrorKind::Access.into());
        }
        inode.xattrs.get(name).cloned().ok_or_else(|| ErrorKind::NoXattr.into())
    }

    async fn setxattr(&self, cx: &Cx, handle: &Handle, name: &[u8], value: &[u8], how: XattrSet) -> Result<DirChange> {
        if name.is_empty() || name.contains(&0) {
            return Err(ErrorKind::Invalid.into());
        }
        if name.len() > XATTR_NAME_MAX {
            return Err(ErrorKind::NameTooLong.into());
        }
        if value.len() > XATTR_VALUE_MAX {
            return Err(ErrorKind::XattrTooBig.into());
        }
        self.xattr_change(cx, handle, |inode| match (how, inode.xattrs.contains_key(name)) {
            (XattrSet::Create, true) => Err(ErrorKind::Exists.into()),
            (XattrSet::Replace, false) => Err(ErrorKind::NoXattr.into()),
            _ => {
                inode.xattrs.insert(Bytes::copy_from_slice(name), Bytes::copy_from_slice(value));
                Ok(())
            }
        })
    }

    async fn listxattr(&self, cx: &Cx, handle: &Handle) -> Result<Vec<Bytes>> {
        let tree = self.tree.lock();
        let inode = tree.get(self.ino_of(handle)?)?;
        if !inode.permits(&cx.cred, R) {
            return Err(ErrorKind::Access.into());
        }
        Ok(inode.xattrs.keys().cloned().collect())
    }

    async fn removexattr(&self, cx: &Cx, handle: &Handle, name: &[u8]) -> Result<DirChange> {
        self.xattr_change(cx, handle, |inode| match inode.xattrs.remove(name) {
            Some(_) => Ok(()),
            None => Err(ErrorKind::NoXattr.into()),
        })
    }
}

/// Whether the user may open: reading also who may execute (RFC 8881 18.22.3); the owner always, in a reclaim.
fn may_open(inode: &super::Inode, cred: &Cred, access: OpenAccess, owner_may: bool) -> bool {
    let owner = owner_may && inode.uid == cred.uid;
    let read = owner || inode.permits(cred, R) || inode.permits(cred, X);
    (!access.read || read) && (!access.write || owner || inode.permits(cred, W))
}
