//! A server's tree of files: finding objects, and operations on names.

use std::sync::Arc;

use bytes::Bytes;
use dhow_proto::v4::ops::{
    AccessArgs, CreateArgs, CreateType, GetattrArgs, LinkArgs, PutFhArgs, RemoveArgs, RenameArgs, SetattrArgs,
};
use dhow_proto::v4::{ArgOp, Attrs, Bitmap, CompoundRes, FileHandle, FileType, OpNum, ResOp, Stateid, Status, attr};
use dhow_rpc::Credential;
use dhow_session::Time;

use crate::call::{Caller, Request};
use crate::opens::{self, OpenState};
use crate::path::{Walk, steps};
use crate::{Client, Error, Place, Result, client};

/// Symbolic links followed in one path, as Linux does.
const MOST_LINKS: u32 = 40;

/// The attributes that `stat` shows.
pub const STAT: Bitmap = Bitmap::of(&[
    attr::TYPE,
    attr::CHANGE,
    attr::SIZE,
    attr::FSID,
    attr::FILEID,
    attr::MODE,
    attr::NUMLINKS,
    attr::OWNER,
    attr::OWNER_GROUP,
    attr::RAWDEV,
    attr::SPACE_USED,
    attr::TIME_ACCESS,
    attr::TIME_METADATA,
    attr::TIME_MODIFY,
    attr::MOUNTED_ON_FILEID,
]);

/// What is asked for when a file is opened: also how much one READ or WRITE may carry.
pub(crate) const OPENED: Bitmap = STAT.with(attr::MAXREAD).with(attr::MAXWRITE);

/// The attributes of a filesystem that matter to its users: limits and free space.
const FS_INFO: Bitmap = Bitmap::of(&[
    attr::SUPPORTED_ATTRS,
    attr::FSID,
    attr::MAXREAD,
    attr::MAXWRITE,
    attr::MAXFILESIZE,
    attr::MAXNAME,
    attr::MAXLINK,
    attr::CASE_INSENSITIVE,
    attr::FILES_AVAIL,
    attr::FILES_FREE,
    attr::FILES_TOTAL,
    attr::SPACE_AVAIL,
    attr::SPACE_FREE,
    attr::SPACE_TOTAL,
    attr::CLONE_BLKSIZE,
    attr::XATTR_SUPPORT,
    attr::SUPPATTR_EXCLCREAT,
    attr::TIME_DELTA,
    attr::CHANGE_ATTR_TYPE,
]);

/// An object that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its handle.
    pub fh: FileHandle,
    /// Its attributes, as far as asked for and supported.
    pub attrs: Attrs,
}

impl Node {
    /// Its type, when known.
    pub fn file_type(&self) -> Option<FileType> {
        self.attrs.file_type
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.attrs.file_type == Some(FileType::DIR)
    }
}

/// A server's tree as one user sees it. Cheap to clone.
///
/// All paths begin at the root of this tree: the server's root, or the directory that [`Fs::subtree`] was given.
/// Symbolic links are followed here, not by the server; methods named `..._nolink` do not follow the last one.
#[derive(Debug, Clone)]
pub struct Fs {
    client: Client,
    credential: Option<Arc<Credential>>,
    root: Option<FileHandle>,
    /// Set in a task of its own, which is followed to its end: who waits for it.
    caller: Option<Caller>,
}

/// What came of the operations after a walk.
#[derive(Debug)]
pub(crate) struct Tail {
    pub(crate) results: Vec<ResOp>,
    pub(crate) status: Status,
}

impl Tail {
    /// An error when an operation failed.
    pub(crate) fn ok(self, place: &Place) -> Result<Self> {
        if self.status.is_ok() { Ok(self) } else { Err(self.error().at(place.shown())) }
    }

    pub(crate) fn error(&self) -> Error {
        Error::status(self.results.last().map_or(OpNum::SEQUENCE, ResOp::op), self.status)
    }

    pub(crate) fn fh(&self) -> Result<FileHandle> {
        let found = self.results.iter().find_map(|r| match r {
            ResOp::GetFh(Ok(ok)) => Some(ok.object.clone()),
            _ => None,
        });
        found.filter(|fh| !fh.0.is_empty()).ok_or_else(|| Error::protocol("no filehandle in the reply"))
    }

    pub(crate) fn attrs(&mut self) -> Result<Attrs> {
        let found = self.results.iter_mut().find_map(|r| match r {
            ResOp::Getattr(Ok(ok)) => Some(std::mem::take(&mut *ok.attrs)),
            _ => None,
        });
        found.ok_or_else(|| Error::protocol("no attributes in the reply"))
    }

    pub(crate) fn node(&mut self) -> Result<Node> {
        Ok(Node { fh: self.fh()?, attrs: self.attrs()? })
    }
}

pub(crate) fn getattr(mask: Bitmap) -> ArgOp {
    ArgOp::Getattr(GetattrArgs { attr_request: mask })
}

pub(crate) fn putfh(fh: &FileHandle) -> ArgOp {
    ArgOp::PutFh(PutFhArgs { object: fh.clone() })
}

impl Fs {
    pub(crate) fn new(client: Client, credential: Option<Arc<Credential>>) -> Self {
        Self { client, credential, root: None, caller: None }
    }

    /// The client underneath.
    pub fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn credential(&self) -> Option<Arc<Credential>> {
        self.credential.clone()
    }

    /// The tree below a directory; `..` does not lead out of it by itself, but symbolic links on the server may hold
    /// any number of them, so this is a convenience and no jail.
    ///
    /// # Errors
    ///
    /// When there is no such directory.
    pub async fn subtree(&self, place: impl Into<Place>) -> Result<Self> {
        let place = place.into();
        let node = self.stat(&place).await?;
        if !node.is_dir() {
            return Err(Error::status(OpNum::LOOKUP, Status::NOTDIR).at(place.shown()));
        }
        Ok(Self { root: Some(node.fh), ..self.clone() })
    }

    pub(crate) async fn call(&self, ops: Vec<ArgOp>, cache: bool) -> Result<CompoundRes> {
        self.call_closing(ops, cache, Vec::new()).await
    }

    /// As [`Fs::call`], for operations among which are CLOSEs: of the opens `closes`, in this order.
    pub(crate) async fn call_closing(
        &self,
        ops: Vec<ArgOp>,
        cache: bool,
        closes: Vec<Arc<OpenState>>,
    ) -> Result<CompoundRes> {
        let request = Request { cache, cred: self.credential.clone(), closes, ..Request::new(ops) };
        match self.caller.clone() {
            None => self.client.run(request, true).await,
            Some(caller) => self.client.follow(Request { caller, ..request }).await,
        }
    }

    /// Runs `work`, which takes state from the server or gives it back, in a task that ends only when it is known what
    /// came of it, whatever becomes of this future.
    pub(crate) async fn to_its_end<T, F>(&self, work: impl FnOnce(Self) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let fs = self.clone();
        self.client.to_its_end(|caller| work(Self { caller: Some(caller), ..fs })).await
    }

    /// This tree for calls in a task of their own, which nobody waits for: no time-out ends them.
    pub(crate) fn in_background(self) -> Self {
        Self { caller: Some(Caller::default()), ..self }
    }

    /// This tree for calls whose callers may go away.
    pub(crate) fn plain(self) -> Self {
        Self { caller: None, ..self }
    }

    /// A request with the stateid of `open`, as it was in `generation`, was answered by `status`, which says that the
    /// server does not know it. Waits for the recovery that may be under way, or has one begun, or finds out what is
    /// left of the open. True when it is worth another try.
    pub(crate) async fn restore(
        &self,
        open: &OpenState,
        (generation, sent_at): (u64, Time),
        status: Status,
    ) -> Result<bool> {
        let inner = self.client.inner();
        inner.session().await?;
        if open.generation() != generation {
            return Ok(true);
        }
        if status == Status::STALE_STATEID {
            // Of an earlier instance of a server that has kept the session (RFC 8881 section 15.1.16.5).
            inner.reclaim_needed(sent_at);
            inner.session().await?;
            return Ok(open.generation() != generation);
        }
        let found = opens::examine(inner, open).await?;
        Ok(open.generation() != generation || (found && open.stateid().is_ok()))
    }

    /// Operations that fit a COMPOUND beside SEQUENCE.
    pub(crate) async fn room(&self) -> Result<usize> {
        let session = self.client.inner().session().await?;
        Ok(session.fore.max_operations.saturating_sub(1) as usize)
    }

    /// Finds an object, following symbolic links, with the attributes of [`STAT`]. One round trip unless there are
    /// links on the way.
    ///
    /// # Errors
    ///
    /// The server's, with the part of the path where it failed; [`Error::TooManyLinks`].
    pub async fn stat(&self, place: impl Into<Place>) -> Result<Node> {
        self.find(&place.into(), true, STAT).await
    }

    /// As [`Fs::stat`], but a symbolic link at the end is not followed.
    ///
    /// # Errors
    ///
    /// As [`Fs::stat`].
    pub async fn stat_nolink(&self, place: impl Into<Place>) -> Result<Node> {
        self.find(&place.into(), false, STAT).await
    }

    /// As [`Fs::stat`], with attributes of your choice.
    ///
    /// # Errors
    ///
    /// As [`Fs::stat`].
    pub async fn getattr(&self, place: impl Into<Place>, mask: Bitmap) -> Result<Attrs> {
        Ok(self.find(&place.into(), true, mask).await?.attrs)
    }

    /// Limits and free space of the filesystem an object is in, with its supported attributes.
    ///
    /// # Errors
    ///
    /// As [`Fs::stat`].
    pub async fn statfs(&self, place: impl Into<Place>) -> Result<Attrs> {
        let place = place.into();
        match self.find(&place, true, FS_INFO).await {
            // Attributes that a server does not support are to be left out of its answer (RFC 8881 section 18.7.3);
            // some refuse the question when it names one of a later minor version.
            Err(e) if e.is(Status::INVAL) => {
                let supported = self.find(&place, true, Bitmap::of(&[attr::SUPPORTED_ATTRS])).await?.attrs;
                let known = supported.supported_attrs.unwrap_or(Bitmap::EMPTY);
                Ok(self.find(&place, true, FS_INFO.and(&known)).await?.attrs)
            }
            found => Ok(found?.attrs),
        }
    }

    /// Walks to `place`, expanding symbolic links.
    pub(crate) async fn find(&self, place: &Place, follow: bool, mask: Bitmap) -> Result<Node> {
        let mut walk = place.walk(self.root.as_ref());
        let mask = mask.with(attr::TYPE);
        let mut links = 0;
        let too_many = || Error::TooManyLinks(place.shown());
        // PUTFH, GETFH and GETATTR go with the look-ups.
        let most = self.room().await?.saturating_sub(3).max(1);
        loop {
            let rest = walk.steps.split_off(walk.steps.len().min(most));
            let mut ops = walk.ops();
            ops.extend([ArgOp::GetFh, getattr(mask)]);
            let mut res = self.call(ops, false).await.map_err(|e| e.at(place.shown()))?;
            if res.status.is_ok() {
                let node = Tail { results: std::mem::take(&mut res.results), status: res.status }.node()?;
                let is_link = node.attrs.file_type == Some(FileType::LNK);
                if is_link && (follow || !rest.is_empty()) {
                    links += 1;
                    if links > MOST_LINKS {
                        return Err(too_many());
                    }
                    let target = self.readlink_at(&node.fh).await.map_err(|e| e.at(place.shown()))?;
                    walk.steps.pop();
                    self.expand(&mut walk, &target);
                    walk.steps.extend(rest);
                } else if rest.is_empty() {
                    return Ok(node);
                } else {
                    walk = Walk { start: Some(node.fh), steps: rest };
                }
                continue;
            }
            // Operation 0 was PUTFH, so operation n was step n - 1; before it, n - 1 steps had been taken.
            let failed = res.results.len().saturating_sub(1);
            let taken = failed.saturating_sub(1);
            if !matches!(res.status, Status::SYMLINK | Status::NOTDIR) || taken == 0 || taken > walk.steps.len() {
                return Err(Client::stopped(&res).at(place.shown()));
            }
            links += 1;
            if links > MOST_LINKS {
                return Err(too_many());
            }
            let after = walk.steps.split_off(taken);
            let mut ops = walk.ops();
            ops.push(ArgOp::Readlink);
            let mut link = self.call(ops, false).await?;
            let target = match Client::take(&mut link, OpNum::READLINK) {
                Ok(ResOp::Readlink(Ok(ok))) => ok.link,
                // No link after all: what the walk said stands.
                _ => return Err(Client::stopped(&res).at(place.shown())),
            };
            walk.steps.pop();
            self.expand(&mut walk, &target);
            walk.steps.extend(after);
            walk.steps.extend(rest);
        }
    }

    /// `walk` leads to the directory of a link with this text: leads on to where the link points.
    fn expand(&self, walk: &mut Walk, target: &[u8]) {
        if target.starts_with(b"/") {
            *walk = Walk { start: self.root.clone(), steps: Vec::new() };
        }
        let at_root = walk.steps.is_empty() && walk.start == self.root;
        walk.steps.extend(steps(target, at_root));
    }

    /// Runs `tail` with the directory (or other object) `place` as current filehandle, in one round trip when nothing
    /// is in the way. A symbolic link at `place` is followed.
    pub(crate) async fn run_at(&self, place: &Place, tail: Vec<ArgOp>, cache: bool) -> Result<Tail> {
        let walk = place.walk(self.root.as_ref());
        let mut ops = walk.ops();
        let before = ops.len();
        if before + tail.len() <= self.room().await? {
            ops.extend(tail.iter().cloned());
            let mut res = self.call(ops, cache).await.map_err(|e| e.at(place.shown()))?;
            let failed = res.results.len().saturating_sub(1);
            let suspect =
                !walk.steps.is_empty() && failed <= before && matches!(res.status, Status::SYMLINK | Status::NOTDIR);
            if !suspect {
                if !res.status.is_ok() && failed < before {
                    return Err(Client::stopped(&res).at(place.shown()));
                }
                return Ok(Tail { results: res.results.split_off(before), status: res.status });
            }
        }
        // Boxed here and below: the detour would otherwise take its room in every future.
        let node = Box::pin(self.find(place, true, Bitmap::of(&[attr::TYPE]))).await?;
        let mut ops = vec![putfh(&node.fh)];
        ops.extend(tail);
        let mut res = self.call(ops, cache).await.map_err(|e| e.at(place.shown()))?;
        if res.results.len() <= 1 && !res.status.is_ok() {
            return Err(Client::stopped(&res).at(place.shown()));
        }
        Ok(Tail { results: res.results.split_off(1), status: res.status })
    }

    /// Runs `tail` with `from` as saved and `to` as current filehandle. `follow_from`: whether `from` may be a
    /// symbolic link that is to be followed.
    pub(crate) async fn run_between(
        &self,
        from: &Place,
        to: &Place,
        tail: Vec<ArgOp>,
        follow_from: bool,
    ) -> Result<Tail> {
        let (source, target) = (from.walk(self.root.as_ref()), to.walk(self.root.as_ref()));
        let mut ops = source.ops();
        ops.push(ArgOp::SaveFh);
        ops.extend(target.ops());
        let before = ops.len();
        if before + tail.len() <= self.room().await? {
            ops.extend(tail.iter().cloned());
            let mut res = self.call(ops, true).await?;
            let failed = res.results.len().saturating_sub(1);
            let suspect = failed <= before && matches!(res.status, Status::SYMLINK | Status::NOTDIR);
            if !suspect {
                if !res.status.is_ok() && failed < before {
                    let place = if failed < source.steps.len() + 2 { from } else { to };
                    return Err(Client::stopped(&res).at(place.shown()));
                }
                return Ok(Tail { results: res.results.split_off(before), status: res.status });
            }
        }
        let mask = Bitmap::of(&[attr::TYPE]);
        let source = Box::pin(self.find(from, follow_from, mask)).await?;
        let target = Box::pin(self.find(to, true, mask)).await?;
        let mut ops = vec![putfh(&source.fh), ArgOp::SaveFh, putfh(&target.fh)];
        ops.extend(tail);
        let mut res = self.call(ops, true).await?;
        if res.results.len() <= 3 && !res.status.is_ok() {
            return Err(Client::stopped(&res).at(to.shown()));
        }
        Ok(Tail { results: res.results.split_off(3), status: res.status })
    }

    async fn readlink_at(&self, fh: &FileHandle) -> Result<Bytes> {
        let mut res = self.call(vec![putfh(fh), ArgOp::Readlink], false).await?;
        match Client::take(&mut res, OpNum::READLINK)? {
            ResOp::Readlink(Ok(ok)) => Ok(ok.link),
            _ => Err(Error::protocol("no link text in the reply")),
        }
    }

    /// The text of a symbolic link.
    ///
    /// # Errors
    ///
    /// INVAL or WRONG_TYPE when it is none.
    pub async fn readlink(&self, place: impl Into<Place>) -> Result<Bytes> {
        let place = place.into();
        let node = self.find(&place, false, Bitmap::of(&[attr::TYPE])).await?;
        self.readlink_at(&node.fh).await.map_err(|e| e.at(place.shown()))
    }

    /// Makes a directory with `mode`.
    ///
    /// # Errors
    ///
    /// EXIST when the name is taken, whatever by; others of the server.
    pub async fn mkdir(&self, place: impl Into<Place>, mode: u32) -> Result<Node> {
        let attrs = Attrs { mode: Some(mode & 0o7777), ..Attrs::default() };
        self.create(&place.into(), CreateType::Dir, &attrs).await
    }

    /// Makes a symbolic link with the text `target`.
    ///
    /// # Errors
    ///
    /// As [`Fs::mkdir`].
    pub async fn symlink(&self, place: impl Into<Place>, target: impl AsRef<[u8]>) -> Result<Node> {
        let text = Bytes::copy_from_slice(target.as_ref());
        self.create(&place.into(), CreateType::Link(text), &Attrs::default()).await
    }

    /// Makes a FIFO, socket or device.
    ///
    /// # Errors
    ///
    /// As [`Fs::mkdir`]; PERM where devices are for the privileged.
    pub async fn mknod(&self, place: impl Into<Place>, kind: CreateType, mode: u32) -> Result<Node> {
        let attrs = Attrs { mode: Some(mode & 0o7777), ..Attrs::default() };
        self.create(&place.into(), kind, &attrs).await
    }

    async fn create(&self, place: &Place, kind: CreateType, attrs: &Attrs) -> Result<Node> {
        let (dir, name) = place.split()?;
        let create = ArgOp::Create(CreateArgs { kind, name, attrs: attrs.into() });
        let tail = vec![create, ArgOp::GetFh, getattr(STAT)];
        self.run_at(&dir, tail, true).await?.ok(place)?.node()
    }

    /// Removes a file, or an empty directory: NFSv4 has one operation for both.
    ///
    /// # Errors
    ///
    /// NOENT, NOTEMPTY, others of the server.
    pub async fn remove(&self, place: impl Into<Place>) -> Result<()> {
        let place = place.into();
        let (dir, target) = place.split()?;
        self.run_at(&dir, vec![ArgOp::Remove(RemoveArgs { target })], true).await?.ok(&place)?;
        Ok(())
    }

    /// Gives an object another name, in place of what has that name.
    ///
    /// # Errors
    ///
    /// EXIST or NOTEMPTY when the target is a directory that cannot be replaced; XDEV; others of the server.
    pub async fn rename(&self, from: impl Into<Place>, to: impl Into<Place>) -> Result<()> {
        let (from, to) = (from.into(), to.into());
        let (from_dir, old_name) = from.split()?;
        let (to_dir, new_name) = to.split()?;
        let tail = vec![ArgOp::Rename(RenameArgs { old_name, new_name })];
        self.run_between(&from_dir, &to_dir, tail, true).await?.ok(&from)?;
        Ok(())
    }

    /// Gives a file a second name. A symbolic link at `from` is not followed.
    ///
    /// # Errors
    ///
    /// EXIST, XDEV, MLINK, others of the server.
    pub async fn link(&self, from: impl Into<Place>, to: impl Into<Place>) -> Result<()> {
        let (from, to) = (from.into(), to.into());
        let (dir, new_name) = to.split()?;
        self.run_between(&from, &dir, vec![ArgOp::Link(LinkArgs { new_name })], false).await?.ok(&to)?;
        Ok(())
    }

    /// Changes attributes, among them the size (of a file that is not open).
    ///
    /// # Errors
    ///
    /// The server's; earlier attributes may have been set when it is about a later one.
    pub async fn setattr(&self, place: impl Into<Place>, attrs: &Attrs) -> Result<()> {
        self.set_attributes(&place.into(), attrs, true).await
    }

    /// As [`Fs::setattr`], of a symbolic link itself.
    ///
    /// # Errors
    ///
    /// As [`Fs::setattr`].
    pub async fn setattr_nolink(&self, place: impl Into<Place>, attrs: &Attrs) -> Result<()> {
        self.set_attributes(&place.into(), attrs, false).await
    }

    async fn set_attributes(&self, place: &Place, attrs: &Attrs, follow: bool) -> Result<()> {
        let node = match place {
            Place::Handle(fh) => Node { fh: fh.clone(), attrs: Attrs::default() },
            place => self.find(place, follow, Bitmap::of(&[attr::TYPE])).await?,
        };
        let set = ArgOp::Setattr(SetattrArgs { stateid: Stateid::ANONYMOUS, attrs: attrs.into() });
        let res = self.call(vec![putfh(&node.fh), set], true).await?;
        if res.status.is_ok() { Ok(()) } else { Err(Client::stopped(&res).at(place.shown())) }
    }

    /// Which of the access bits `wanted` (RFC 8881 section 18.1) the user has.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn access(&self, place: impl Into<Place>, wanted: u32) -> Result<u32> {
        let place = place.into();
        let check = ArgOp::Access(AccessArgs { access: wanted });
        let mut tail = self.run_at(&place, vec![getattr(Bitmap::of(&[attr::TYPE])), check.clone()], false).await?;
        // ACCESS of a symbolic link succeeds, and says nothing about what it points to.
        if tail.attrs().is_ok_and(|a| a.file_type == Some(FileType::LNK)) {
            let node = Box::pin(self.find(&place, true, Bitmap::EMPTY)).await?;
            tail = Box::pin(self.run_at(&Place::Handle(node.fh), vec![check], false)).await?;
        }
        match tail.ok(&place)?.results.last() {
            Some(ResOp::Access(Ok(ok))) => Ok(ok.access & ok.supported),
            _ => Err(Error::protocol("no ACCESS in the reply")),
        }
    }

    /// Finds an entry of a directory. Symbolic links are not followed.
    ///
    /// # Errors
    ///
    /// NOENT, others of the server.
    pub async fn lookup(&self, dir: &FileHandle, name: impl AsRef<[u8]>) -> Result<Node> {
        let name = client::name(name)?;
        self.find(&Place::Entry(dir.clone(), name), false, STAT).await
    }
}
