//! [`Endpoint`]: a place that files are copied from or to.
//!
//! Paths are absolute or relative as the endpoint likes them, bytes as the filesystem has them. Nothing here follows
//! a symbolic link at the end of a path unless it says so.

use crate::{Error, Result};
use async_trait::async_trait;
use bytes::Bytes;
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;

/// How the bytes of a file move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Method {
    /// Source and destination share blocks: CLONE (RFC 7862 15.13), or a reflink of local files.
    Clone,
    /// The side that holds both files copies: COPY (RFC 7862 15.2), or `copy_file_range` of local files.
    Copy,
    /// The destination's server reads from the source's server: COPY between servers (RFC 7862 4.6).
    Inter,
    /// The bytes go through this process.
    ReadWrite,
}

impl Method {
    /// The name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Clone => "clone",
            Self::Copy => "copy",
            Self::Inter => "inter",
            Self::ReadWrite => "readwrite",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Seconds and nanoseconds since 1970; `nanos` counts forwards, also before 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds, negative before 1970.
    pub secs: i64,
    /// Nanoseconds, 0 to 999,999,999.
    pub nanos: u32,
}

/// Type of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Regular file.
    File,
    /// Directory.
    Dir,
    /// Symbolic link.
    Symlink,
    /// FIFO.
    Fifo,
    /// Socket.
    Socket,
    /// Block device, (major, minor).
    Block(u32, u32),
    /// Character device, (major, minor).
    Char(u32, u32),
}

/// Attributes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Type.
    pub kind: Kind,
    /// Permission and set-id bits.
    pub mode: u32,
    /// Owner; `None` where the server gives a name that is no number.
    pub uid: Option<u32>,
    /// Group, as `uid`.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: u64,
    /// Bytes of storage in use; less than `size` where there are holes.
    pub used: u64,
    /// Number of links.
    pub nlink: u32,
    /// What tells the object from all others of this endpoint: filesystem and number.
    pub id: (u64, u64, u64),
    /// Last access.
    pub atime: Time,
    /// Last change of data.
    pub mtime: Time,
    /// Last change of metadata.
    pub ctime: Time,
}

/// Attributes to be given to an object; `None` leaves one alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetMeta {
    /// Permission and set-id bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last access.
    pub atime: Option<Time>,
    /// Last change of data.
    pub mtime: Option<Time>,
}

impl SetMeta {
    /// Whether there is nothing to set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: Bytes,
    /// Its attributes, or why they cannot be had.
    pub meta: Result<Meta>,
}

/// The pages of a listing.
#[async_trait]
pub trait Pages: Send {
    /// The next entries, without `.` and `..`; `None` after the last.
    async fn next(&mut self) -> Result<Option<Vec<Entry>>>;
}

/// A file open for reading.
#[async_trait]
pub trait Source: Send + Sync {
    /// For an endpoint to know its own.
    fn as_any(&self) -> &dyn Any;
    /// Attributes at the time of the open.
    fn meta(&self) -> &Meta;
    /// Largest read that is one call, bytes.
    fn chunk(&self) -> u32;
    /// Reads `len` bytes at `offset`; less only at the end of the file.
    async fn read(&self, offset: u64, len: u32) -> Result<Bytes>;
    /// The next range of data at or after `offset`; `None` when only a hole follows. An endpoint that cannot tell
    /// says that everything is data.
    async fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>>;
    /// For endpoints that know their own kind and take it.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
    /// Closes it.
    async fn close(self: Box<Self>) -> Result<()>;
}

/// What [`Sink::sync`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synced {
    /// All that was written is on stable storage.
    Durable,
    /// The server lost some of it (its write verifier changed, RFC 8881 18.32): write it again.
    Lost,
}

/// A new file under a temporary name, open for writing. Dropping it without [`Sink::finish`] or [`Sink::abandon`]
/// may leave the temporary name behind.
#[async_trait]
pub trait Sink: Send + Sync {
    /// For an endpoint to know its own.
    fn as_any(&self) -> &dyn Any;
    /// Largest write that is one call, bytes.
    fn chunk(&self) -> u32;
    /// Writes all of `data` at `offset`.
    async fn write(&self, offset: u64, data: Bytes) -> Result<()>;
    /// Sets the size.
    async fn set_size(&self, size: u64) -> Result<()>;
    /// Makes what was written durable.
    async fn sync(&self) -> Result<Synced>;
    /// Sets attributes, closes and gives the file its name, replacing what had it.
    async fn finish(self: Box<Self>, set: &SetMeta) -> Result<()>;
    /// [`Sink::finish`] and [`Source::close`] together; the results of both. An endpoint that holds both files may need
    /// fewer steps for that.
    async fn finish_with(self: Box<Self>, set: &SetMeta, source: Box<dyn Source>) -> (Result<()>, Result<()>) {
        tokio::join!(self.finish(set), source.close())
    }
    /// Closes and removes the file.
    async fn abandon(self: Box<Self>);
}

/// The outcome of asking an endpoint to move bytes by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offload {
    /// It did.
    Done {
        /// Bytes of the file that were copied.
        bytes: u64,
        /// Whether they are on stable storage.
        durable: bool,
    },
    /// It cannot, for this pair of files, and nothing was written; why, in a few words.
    Refused(String),
}

/// Calls made, by a client of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// RPC calls without session set-up, lease renewal and polls.
    pub calls: u64,
    /// Polls of a running copy (COMPOUNDs with OFFLOAD_STATUS).
    pub polls: u64,
    /// Operations by name, SEQUENCE and session set-up left out.
    pub ops: BTreeMap<&'static str, u64>,
}

impl Calls {
    /// What was added since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut ops = self.ops.clone();
        for (name, n) in &earlier.ops {
            if let Some(now) = ops.get_mut(name) {
                *now = now.saturating_sub(*n);
            }
        }
        ops.retain(|_, n| *n > 0);
        Self { calls: self.calls.saturating_sub(earlier.calls), polls: self.polls.saturating_sub(earlier.polls), ops }
    }

    /// Adds `other`'s.
    pub fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.polls += other.polls;
        for (name, n) in &other.ops {
            *self.ops.entry(name).or_default() += n;
        }
    }
}

/// What an endpoint reports about bytes moved while an offloaded copy runs; the argument is what was added.
pub type Moved<'a> = &'a (dyn Fn(u64) + Send + Sync);

/// A place that files are copied from or to.
#[async_trait]
pub trait Endpoint: Send + Sync + 'static {
    /// For an endpoint to know its own kind.
    fn as_any(&self) -> &dyn Any;

    /// Whether `other` reaches the same files: object ids can be compared and copies offloaded.
    fn same_place(&self, other: &dyn Endpoint) -> bool;

    /// Whether files are written durably unless the caller says otherwise: a server's are, local ones are not.
    fn durable_by_default(&self) -> bool;

    /// A path as the user would write it.
    fn shown(&self, path: &Path) -> String;

    /// Calls made so far; all zero where none are counted.
    fn calls(&self) -> Calls;

    /// Attributes of the object itself.
    async fn stat(&self, path: &Path) -> Result<Meta>;

    /// Attributes of what a symbolic link leads to.
    async fn stat_followed(&self, path: &Path) -> Result<Meta>;

    /// Lists a directory.
    async fn list(&self, dir: &Path) -> Result<Box<dyn Pages>>;

    /// Target of a symbolic link.
    async fn read_link(&self, path: &Path) -> Result<Bytes>;

    /// Opens a regular file, following a symbolic link.
    async fn open(&self, path: &Path) -> Result<Box<dyn Source>>;

    /// Makes a file that will be called `path`, under a temporary name in the same directory.
    async fn create(&self, path: &Path, mode: u32) -> Result<Box<dyn Sink>>;

    /// Whether there is a network in between.
    fn is_remote(&self) -> bool {
        false
    }

    /// Up to how many bytes [`Endpoint::read_small`] and [`Endpoint::write_small`] are shorter ways than opening and
    /// creating; 0 if they never are.
    fn small_limit(&self) -> u32 {
        0
    }

    /// Reads a whole regular file in as few calls as can be, following a symbolic link; `None` if it has more than
    /// `limit` bytes.
    async fn read_small(&self, path: &Path, limit: u32) -> Result<Option<(Meta, Bytes)>>;

    /// Writes a whole file in as few calls as can be, with the promises of [`Sink`]: temporary name, rename,
    /// durable with `sync`.
    async fn write_small(&self, path: &Path, data: Bytes, mode: u32, set: &SetMeta, sync: bool) -> Result<()>;

    /// Makes a directory, and returns its attributes.
    async fn make_dir(&self, path: &Path, mode: u32) -> Result<Meta>;

    /// Makes a symbolic link.
    async fn make_link(&self, path: &Path, target: &[u8]) -> Result<()>;

    /// Makes a FIFO, socket or device.
    async fn make_special(&self, path: &Path, kind: Kind, mode: u32) -> Result<()>;

    /// Gives the file `existing` a second name.
    async fn hard_link(&self, existing: &Path, path: &Path) -> Result<()>;

    /// Sets attributes of the object itself.
    async fn set_meta(&self, path: &Path, set: &SetMeta) -> Result<()>;

    /// Sets attributes of what a symbolic link leads to.
    async fn set_meta_followed(&self, path: &Path, set: &SetMeta) -> Result<()>;

    /// Renames, replacing what has the new name.
    async fn rename(&self, from: &Path, to: &Path) -> Result<()>;

    /// Removes anything but a directory.
    async fn remove(&self, path: &Path) -> Result<()>;

    /// Removes an empty directory.
    async fn remove_dir(&self, path: &Path) -> Result<()>;

    /// Whether this endpoint's server may be asked to read from the server of `from`, another one: the name of the pair,
    /// for what is remembered of it.
    fn pulls_from(&self, _from: &dyn Endpoint) -> Option<String> {
        None
    }

    /// Asks this endpoint to move the bytes of `source`, which it may know, into its own `sink` by `method` (never
    /// [`Method::ReadWrite`]). With `sync` the result is made durable where that costs no further call.
    async fn offload(
        &self,
        method: Method,
        source: &dyn Source,
        sink: &dyn Sink,
        sync: bool,
        moved: Moved<'_>,
    ) -> Result<Offload>;
}

/// The last name of `path`.
pub(crate) fn file_name<'a>(endpoint: &dyn Endpoint, path: &'a Path) -> Result<&'a std::ffi::OsStr> {
    path.file_name().ok_or_else(|| {
        Error::with(crate::ErrorKind::IsDirectory, endpoint.shown(path), "is a directory; name a file in it")
    })
}
