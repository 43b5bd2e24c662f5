//! The [`Backend`] trait: what a filesystem must offer to be served.
//!
//! Calls are async and take `&self`; many run at once. A call that would wait (cold data, fsync, the network) yields;
//! the `try_` forms answer at once or say `None`, and exist for the calls that come most often.
//!
//! Open files: OPEN, CLOSE and locks are backend calls from the start, so that a backend which is itself a client of
//! another server can forward them. An [`OpenFile`] is the backend's own token, one per OPEN that the server granted;
//! the server hands it back with every READ and WRITE of that open, and to [`Backend::close`].

use crate::{
    Access, AclSet, Attr, Cx, DirChange, ErrorKind, FileKind, FsStat, Handle, Name, ObjectId, Quota, Result, SetAttr,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Write verifier (RFC 8881 18.32): changes whenever written, uncommitted data may have been lost.
pub type WriteVerifier = [u8; 8];

/// What a backend can do; asked once when the export is opened.
#[derive(Clone, Debug)]
pub struct Caps {
    /// Every change is refused.
    pub read_only: bool,
    /// Hard links.
    pub links: bool,
    /// Symbolic links.
    pub symlinks: bool,
    /// Devices, sockets and FIFOs can be created.
    pub special: bool,
    /// Extended attributes of users (RFC 8276).
    pub xattrs: bool,
    /// [`Backend::quota`] works.
    pub quotas: bool,
    /// [`Backend::acl`] works, and [`SetAttr::acl`] can be set.
    pub acls: bool,
    /// [`Backend::clone_range`] works.
    pub clone: bool,
    /// Alignment of a clone, bytes; 0 if there is no clone.
    pub clone_block: u32,
    /// [`Backend::allocate`] and [`Backend::deallocate`] work.
    pub sparse: bool,
    /// Largest file, bytes.
    pub max_file_size: u64,
    /// Most links of one object.
    pub max_links: u32,
    /// Names differ by case.
    pub case_sensitive: bool,
    /// The change attribute never repeats and grows with the time of the change (change_attr_type, RFC 7862 12.2.3).
    pub change_is_time: bool,
    /// Whether nobody changes the tree but through this server, so that [`DirChange::atomic`] can be true and
    /// delegations can be granted.
    pub exclusive: bool,
    /// Resolution of times, nanoseconds.
    pub time_delta_nanos: u32,
}

/// A handle and the attributes of its object.
#[derive(Clone, Debug)]
pub struct Node {
    /// Names the object.
    pub handle: Handle,
    /// Its attributes, taken when the handle was found.
    pub attr: Attr,
}

/// A backend's token of one open file. Cheap to clone; the last [`Backend::close`] ends it.
#[derive(Clone)]
pub struct OpenFile(pub Arc<dyn Any + Send + Sync>);

impl OpenFile {
    /// Wraps a backend's own type.
    pub fn new<T: Any + Send + Sync>(inner: T) -> Self {
        Self(Arc::new(inner))
    }

    /// The backend's own type back; `None` for a token of another backend.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OpenFile")
    }
}

/// The file that a READ, WRITE or the like means: by handle, and by the open under which it runs, if there is one
/// (a special stateid and NFSv3 have none; then permissions are checked at the call).
#[derive(Clone, Copy, Debug)]
pub struct IoRef<'a> {
    /// The file.
    pub handle: &'a Handle,
    /// The open, if any.
    pub open: Option<&'a OpenFile>,
}

/// Access of an open: any of read and write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct OpenAccess {
    /// Reading.
    pub read: bool,
    /// Writing.
    pub write: bool,
}

/// What an open denies to others (share reservation).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Deny {
    /// Others' reading.
    pub read: bool,
    /// Others' writing.
    pub write: bool,
}

/// How to open.
#[derive(Clone, Debug, Default)]
pub struct OpenHow {
    /// Access wanted.
    pub access: OpenAccess,
    /// Access denied to others.
    pub deny: Deny,
    /// Opaque identity of client and open-owner, for backends that forward opens.
    pub owner: Bytes,
    /// The client reclaims an open that it had before the server's restart: the file need not have a name any more.
    /// Permissions count as ever: who may reclaim is known, but not what they had open.
    pub reclaim: bool,
}

/// How to create a regular file.
#[derive(Clone, Debug, Default)]
pub struct CreateHow {
    /// Attributes of the new file.
    pub set: SetAttr,
    /// Exclusive create: a later create of the same name with the same verifier finds this file and succeeds with
    /// `fresh == false`; with another verifier it is [`ErrorKind::Exists`]. Holds across a restart for as long as a
    /// client may retry (case B11), and leaves no trace in the file's times.
    pub verifier: Option<[u8; 8]>,
}

/// A created regular file.
#[derive(Clone, Debug)]
pub struct Created {
    /// The file.
    pub node: Node,
    /// Open for reading and writing whatever its mode says (case B01).
    pub open: OpenFile,
    /// Change of the directory.
    pub change: DirChange,
    /// `false`: found again by its verifier.
    pub fresh: bool,
    /// The attributes of the request that were applied (for attrset).
    pub applied: SetAttr,
}

/// What to make other than a regular file.
#[derive(Clone, Debug)]
pub enum Make {
    /// A directory.
    Directory,
    /// A symbolic link with this target.
    Symlink(Bytes),
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
    /// A block device (major, minor).
    Block(u32, u32),
    /// A character device (major, minor).
    Char(u32, u32),
}

impl Make {
    /// The kind of object that it makes.
    pub fn kind(&self) -> FileKind {
        match self {
            Make::Directory => FileKind::Directory,
            Make::Symlink(_) => FileKind::Symlink,
            Make::Fifo => FileKind::Fifo,
            Make::Socket => FileKind::Socket,
            Make::Block(..) => FileKind::Block,
            Make::Char(..) => FileKind::Char,
        }
    }
}

/// A made object.
#[derive(Clone, Debug)]
pub struct Made {
    /// The object.
    pub node: Node,
    /// Change of the directory.
    pub change: DirChange,
    /// The attributes of the request that were applied.
    pub applied: SetAttr,
}

/// A removed entry.
#[derive(Clone, Debug)]
pub struct Removed {
    /// Change of the directory.
    pub change: DirChange,
    /// The object the name led to, if it was looked up on the way.
    pub handle: Option<Handle>,
    /// Links it has left; 0 means that it is gone once the last open is closed.
    pub nlink: u32,
}

/// A renamed entry.
#[derive(Clone, Debug)]
pub struct Renamed {
    /// Change of the directory the name left.
    pub from: DirChange,
    /// Change of the directory it went to.
    pub to: DirChange,
    /// The object that the new name led to before, if there was one.
    pub replaced: Option<Handle>,
}

/// An entry of a directory.
#[derive(Clone, Debug)]
pub struct DirEntry {
    /// Its name.
    pub name: Bytes,
    /// Where the listing continues after it. Never 0, 1 or 2, and below 2^63.
    pub cookie: u64,
    /// Number of the object (the directory it is mounted on, for a mount point).
    pub fileid: u64,
    /// The object, when asked for. An error here concerns this entry only (rdattr_error, case B40).
    pub node: Option<std::result::Result<Node, ErrorKind>>,
}

/// How much of a directory to return.
#[derive(Clone, Copy, Debug)]
pub struct PageLimit {
    /// At most this many entries, at least 1.
    pub entries: usize,
    /// Stop once names amount to so many bytes (at least one entry is returned all the same).
    pub name_bytes: usize,
    /// Whether [`DirEntry::node`] is wanted.
    pub nodes: bool,
}

/// A part of a directory.
#[derive(Clone, Debug, Default)]
pub struct DirPage {
    /// The entries, without `.` and `..`.
    pub entries: Vec<DirEntry>,
    /// Nothing follows the last entry.
    pub eof: bool,
    /// Cookie verifier: constant for as long as cookies are honoured (case B04).
    pub verifier: [u8; 8],
}

/// Data read.
#[derive(Clone, Debug)]
pub struct ReadData {
    /// The data; shorter than asked only at the end of the file or when the backend chose so.
    pub data: Bytes,
    /// The end of the file was reached.
    pub eof: bool,
}

/// How stable data is (stable_how4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stability {
    /// May be lost until committed.
    Unstable,
    /// Data and what is needed to find it again are stable.
    DataSync,
    /// Data and all metadata are stable.
    FileSync,
}

/// Data written.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// Bytes written, from the start of the data.
    pub count: u32,
    /// How stable they are: at least as asked.
    pub stability: Stability,
    /// The verifier in force.
    pub verifier: WriteVerifier,
}

/// Result of a commit.
#[derive(Clone, Copy, Debug)]
pub struct Committed {
    /// The verifier in force.
    pub verifier: WriteVerifier,
}

/// What SEEK looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTo {
    /// The next byte of data.
    Data,
    /// The next byte of a hole (the end of the file counts as one).
    Hole,
}

/// Where SEEK came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seeked {
    /// No more data: for [`SeekTo::Data`], nothing was found (RFC 7862 15.11).
    pub eof: bool,
    /// Offset found, bytes; the file's size when nothing was.
    pub offset: u64,
}

/// The source of a copy: it may belong to another backend of this server.
#[derive(Clone)]
pub struct CopySource<'a> {
    /// The backend that the source belongs to.
    pub backend: &'a Arc<dyn Backend>,
    /// In whose name it is read. Not always who writes: two exports may squash one caller differently.
    pub cx: &'a Cx,
    /// The file.
    pub io: IoRef<'a>,
    /// First byte.
    pub offset: u64,
}

/// A byte range of a lock: `len` 0 is not allowed, `u64::MAX` is to the end of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRange {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// Shared or exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Shared (READ_LT).
    Read,
    /// Exclusive (WRITE_LT).
    Write,
}

/// Opaque identity of client and lock-owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockOwner(pub Bytes);

/// How to set an extended attribute (RFC 8276 8.4.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrSet {
    /// Create or replace.
    Either,
    /// Only create.
    Create,
    /// Only replace.
    Replace,
}

/// Result of SETATTR.
#[derive(Clone, Debug)]
pub struct SetDone {
    /// Attributes afterwards.
    pub attr: Attr,
    /// What was applied.
    pub applied: SetAttr,
}

/// Called, once at most and from any thread, when somebody beyond the server is about to write to a watched file. It
/// must not wait.
pub type WriterNotice = Arc<dyn Fn() + Send + Sync>;

/// What a backend keeps of a watch.
pub trait Watching: Send + Sync {
    /// Ends it: whoever waits to write may go on. Ending it twice is harmless.
    fn end(&self);

    /// Whether somebody wants to write.
    fn is_broken(&self) -> bool;
}

/// A watch for writers beyond this server ([`Backend::watch_writers`]); ended by [`Watch::end`], or with its last clone.
#[derive(Clone)]
pub struct Watch(Arc<dyn Watching>);

impl Watch {
    /// Wraps a backend's own type, whose drop ends the watch.
    pub fn new(inner: impl Watching + 'static) -> Self {
        Self(Arc::new(inner))
    }

    /// Ends it: whoever waits to write may go on.
    pub fn end(&self) {
        self.0.end();
    }

    /// Whether somebody wants to write: the notice was, or is being, given.
    pub fn is_broken(&self) -> bool {
        self.0.is_broken()
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_broken() { "Watch(broken)" } else { "Watch" })
    }
}

/// A filesystem that can be served. The module's header and the crate's invariants belong to the contract.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// For telling two backends of one kind apart in [`Backend::copy_range`].
    fn as_any(&self) -> &dyn Any;

    /// What it can do.
    fn caps(&self) -> &Caps;

    /// The identity of the object behind `handle`; pure, no I/O.
    fn object_id(&self, handle: &Handle) -> ObjectId {
        ObjectId::new(handle.as_bytes())
    }

    /// The write verifier in force.
    fn write_verifier(&self) -> WriteVerifier;

    /// The root of the export.
    async fn root(&self, cx: &Cx) -> Result<Node>;

    /// Attributes, if they can be had without waiting.
    fn try_getattr(&self, _cx: &Cx, _handle: &Handle) -> Option<Result<Attr>> {
        None
    }

    /// Attributes. Needs no permission on the object itself.
    async fn getattr(&self, cx: &Cx, handle: &Handle) -> Result<Attr>;

    /// Sets attributes; with `open`, a change of size runs under that open's access instead of the file's mode.
    /// All or nothing where the filesystem allows; else what was applied before an error stays.
    async fn setattr(&self, cx: &Cx, handle: &Handle, open: Option<&OpenFile>, set: &SetAttr) -> Result<SetDone>;

    /// Which of the rights `want` the user has.
    async fn access(&self, cx: &Cx, handle: &Handle, want: Access) -> Result<Access>;

    /// Looks a name up, if that can be done without waiting.
    fn try_lookup(&self, _cx: &Cx, _dir: &Handle, _name: &Name) -> Option<Result<Node>> {
        None
    }

    /// Looks a name up in a directory. Never follows symbolic links, never leaves the export.
    async fn lookup(&self, cx: &Cx, dir: &Handle, name: &Name) -> Result<Node>;

    /// The directory that holds the directory `dir`; [`ErrorKind::NotFound`] for the root of the export.
    async fn parent(&self, cx: &Cx, dir: &Handle) -> Result<Node>;

    /// Target of a symbolic link, at its exact length.
    async fn readlink(&self, cx: &Cx, handle: &Handle) -> Result<Bytes>;

    /// Creates a regular file that is not there; [`ErrorKind::Exists`] otherwise (but see [`CreateHow::verifier`]).
    /// Durable in directory and inode when it returns, if the backend was told to keep metadata so.
    async fn create(&self, cx: &Cx, dir: &Handle, name: &Name, how: &CreateHow) -> Result<Created>;

    /// Makes a directory, a symbolic link or a special file.
    async fn make(&self, cx: &Cx, dir: &Handle, name: &Name, what: &Make, set: &SetAttr) -> Result<Made>;

    /// Adds a link to `file`.
    async fn link(&self, cx: &Cx, file: &Handle, dir: &Handle, name: &Name) -> Result<DirChange>;

    /// Removes a name, of a file or of an empty directory.
    async fn remove(&self, cx: &Cx, dir: &Handle, name: &Name) -> Result<Removed>;

    /// Renames, replacing what the new name led to (RFC 8881 18.26: same kinds only, a directory must be empty; two
    /// names of one object: nothing happens).
    async fn rename(&self, cx: &Cx, from: &Handle, old: &Name, to: &Handle, new: &Name) -> Result<Renamed>;

    /// Lists a directory from `cookie` (0: the start). A cookie stays good while the directory changes: every name
    /// that stays is returned exactly once in a whole listing (cases B03, K28).
    async fn readdir(&self, cx: &Cx, dir: &Handle, cookie: u64, limit: PageLimit) -> Result<DirPage>;

    /// Opens a regular file as the user, by mode and ACL as a local open does; only a reclaim by the file's owner is
    /// never refused. (The owner override of cases B01 and B02 is elsewhere: the open that [`Backend::create`] returns
    /// has all access, and the owner's READ and WRITE without an open need no bits.) Never opens devices or FIFOs.
    async fn open(&self, cx: &Cx, handle: &Handle, how: &OpenHow) -> Result<OpenFile>;

    /// Changes the access and deny bits of an open to these: on OPEN_DOWNGRADE, and when an OPEN of the same owner
    /// adds to it (then permissions are checked as by [`Backend::open`]).
    async fn reopen(&self, cx: &Cx, open: &OpenFile, how: &OpenHow) -> Result<OpenFile>;

    /// Ends an open. Never fails; what could not be written was reported before.
    async fn close(&self, open: OpenFile);

    /// Reads, if no disk and no network must be waited for.
    fn try_read(&self, _cx: &Cx, _file: IoRef<'_>, _offset: u64, _len: u32) -> Option<Result<ReadData>> {
        None
    }

    /// Reads up to `len` bytes. At and past the end of the file: no data and `eof` (case B20).
    async fn read(&self, cx: &Cx, file: IoRef<'_>, offset: u64, len: u32) -> Result<ReadData>;

    /// Writes `data`, at least as stably as `want`.
    async fn write(&self, cx: &Cx, file: IoRef<'_>, offset: u64, data: Bytes, want: Stability) -> Result<Written>;

    /// Makes written data (and metadata) of a range stable; `len` 0 is to the end. A failure changes the verifier.
    async fn commit(&self, cx: &Cx, file: IoRef<'_>, offset: u64, len: u64) -> Result<Committed>;

    /// Begins to write out what a range has in memory, so that a later [`Backend::commit`] has less to wait for. Promises
    /// nothing and tells of no failure: that is the matter of the commit.
    async fn start_writeback(&self, _cx: &Cx, _file: IoRef<'_>, _offset: u64, _len: u64) {}

    /// Reserves space for a range, extending the file if need be (RFC 7862 15.1).
    async fn allocate(&self, _cx: &Cx, _file: IoRef<'_>, _offset: u64, _len: u64) -> Result<()> {
        Err(ErrorKind::NotSupported.into())
    }

    /// Makes a range a hole; the size stays (RFC 7862 15.4).
    async fn deallocate(&self, _cx: &Cx, _file: IoRef<'_>, _offset: u64, _len: u64) -> Result<()> {
        Err(ErrorKind::NotSupported.into())
    }

    /// Finds data or a hole at or after `offset`. Past the end: [`ErrorKind::Range`] (the server answers NXIO).
    async fn seek(&self, _cx: &Cx, _file: IoRef<'_>, _offset: u64, _to: SeekTo) -> Result<Seeked> {
        Err(ErrorKind::NotSupported.into())
    }

    /// Shares a range of `src` with this backend's file `dst`, atomically (CLONE); `len` 0 is to the end of the
    /// source. [`ErrorKind::Invalid`] if unaligned or past the end, [`ErrorKind::CrossDevice`] if the two cannot share.
    async fn clone_range(
        &self,
        _cx: &Cx,
        _src: CopySource<'_>,
        _dst: IoRef<'_>,
        _dst_offset: u64,
        _len: u64,
    ) -> Result<()> {
        Err(ErrorKind::NotSupported.into())
    }

    /// Copies the start of a range and says how many bytes (data and holes) are now right from `dst_offset` on; 0
    /// only at the source's end. Does at most about `chunk` bytes of real work, but may do all of `len` at once if
    /// that costs nothing (a reflink). Holes stay holes, and old data of `dst` opposite a hole is gone. Unstable.
    /// [`ErrorKind::NotSupported`]: these two backends cannot; the caller reads and writes.
    async fn copy_range(
        &self,
        _cx: &Cx,
        _src: CopySource<'_>,
        _dst: IoRef<'_>,
        _dst_offset: u64,
        _len: u64,
        _chunk: u64,
    ) -> Result<u64> {
        Err(ErrorKind::NotSupported.into())
    }

    /// Takes a byte-range lock, without waiting; [`ErrorKind::Locked`] if it is taken. The server has already
    /// checked its own table, so a backend that nobody reaches but through the server has nothing to do.
    async fn lock(&self, _cx: &Cx, _file: IoRef<'_>, _o: &LockOwner, _r: LockRange, _k: LockKind) -> Result<()> {
        Ok(())
    }

    /// Gives a byte range up.
    async fn unlock(&self, _cx: &Cx, _file: IoRef<'_>, _owner: &LockOwner, _range: LockRange) -> Result<()> {
        Ok(())
    }

    /// Whether a lock could be taken: `Ok(None)` if so, else what stands against it.
    async fn test_lock(
        &self,
        _cx: &Cx,
        _file: IoRef<'_>,
        _owner: &LockOwner,
        _range: LockRange,
        _kind: LockKind,
    ) -> Result<Option<(LockRange, LockKind)>> {
        Ok(None)
    }

    /// Whether [`Backend::lock`] knows of locks of others than the callers of this server: their end is not told.
    fn locks_reach_beyond(&self) -> bool {
        false
    }

    /// Watches for programs beyond this server that open the file for writing or truncate it: each has to wait, as long
    /// as the system lets it, until the watch has ended, and `notice` is given first. A writer of this server breaks it
    /// too, and is answered with [`ErrorKind::Delay`]. Changes of names and attributes are not watched. Needed for
    /// delegations (RFC 8881 10.4) unless the backend is [`Caps::exclusive`].
    ///
    /// [`ErrorKind::Locked`]: somebody has the file open for writing. [`ErrorKind::NotSupported`]: this cannot be had.
    async fn watch_writers(&self, _handle: &Handle, _notice: WriterNotice) -> Result<Watch> {
        Err(ErrorKind::NotSupported.into())
    }

    /// Space and file counts of the filesystem that `handle` lies on.
    async fn statfs(&self, cx: &Cx, handle: &Handle) -> Result<FsStat>;

    /// Where an object lies now, as a path from the root of the tree: for people to read, not to be relied upon. `None` if
    /// that cannot be told.
    async fn path_of(&self, _handle: &Handle) -> Option<std::path::PathBuf> {
        None
    }

    /// The quota of a user on the filesystem that `handle` lies on.
    async fn quota(&self, _cx: &Cx, _handle: &Handle, _uid: u32) -> Result<Quota> {
        Err(ErrorKind::NotSupported.into())
    }

    /// The access control lists of an object. Needs no permission on the object itself.
    async fn acl(&self, _cx: &Cx, _handle: &Handle) -> Result<AclSet> {
        Err(ErrorKind::NotSupported.into())
    }

    /// Value of the extended attribute `name` (without the `user.` prefix).
    async fn getxattr(&self, _cx: &Cx, _handle: &Handle, _name: &[u8]) -> Result<Bytes> {
        Err(ErrorKind::NotSupported.into())
    }

    /// Sets an extended attribute; returns the change attribute before and after.
    async fn setxattr(
        &self,
        _cx: &Cx,
        _handle: &Handle,
        _name: &[u8],
        _value: &[u8],
        _how: XattrSet,
    ) -> Result<DirChange> {
        Err(ErrorKind::NotSupported.into())
    }

    /// Names of all extended attributes that users may see, without prefix.
    async fn listxattr(&self, _cx: &Cx, _handle: &Handle) -> Result<Vec<Bytes>> {
        Err(ErrorKind::NotSupported.into())
    }

    /// Removes an extended attribute; returns the change attribute before and after.
    async fn removexattr(&self, _cx: &Cx, _handle: &Handle, _name: &[u8]) -> Result<DirChange> {
        Err(ErrorKind::NotSupported.into())
    }
}
