//! Errors of a backend: a small closed set of kinds, each with the cause that led to it.

use crate::SetAttr;
use std::{fmt, io};

/// Result of a backend call.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, in the terms in which a client can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No such name, or no such object behind a name.
    NotFound,
    /// The name is taken.
    Exists,
    /// The credentials do not allow it (EACCES).
    Access,
    /// Only the owner or a privileged user may do it (EPERM).
    Perm,
    /// A directory was needed.
    NotDir,
    /// A directory is there where a file was needed.
    IsDir,
    /// A symbolic link is there where a file was needed.
    Symlink,
    /// Neither a file nor a directory: a device, a socket, a FIFO.
    WrongType,
    /// The directory to be removed or replaced holds entries.
    NotEmpty,
    /// An argument makes no sense for this object.
    Invalid,
    /// The name is longer than the filesystem takes.
    NameTooLong,
    /// The name holds bytes that this backend refuses.
    BadName,
    /// No space left on the device.
    NoSpace,
    /// The user's quota is used up.
    Quota,
    /// The filesystem or the export is read-only.
    ReadOnly,
    /// The handle was good once; its object is gone.
    Stale,
    /// The handle is none of ours.
    BadHandle,
    /// The medium failed.
    Io,
    /// The file would become larger than the filesystem allows.
    FileTooBig,
    /// The object has as many links as the filesystem allows.
    TooManyLinks,
    /// The two objects lie on different filesystems.
    CrossDevice,
    /// This backend, or the filesystem under it, has no such operation.
    NotSupported,
    /// Not now: the caller should try again in a moment.
    Delay,
    /// The directory cookie cannot be continued from.
    BadCookie,
    /// A running program, or a mount, holds the object.
    Busy,
    /// A lock or a share reservation of somebody else stands against it.
    Locked,
    /// There is no extended attribute of that name.
    NoXattr,
    /// The extended attribute is larger than the filesystem takes.
    XattrTooBig,
    /// The number does not fit (an id, a time).
    Range,
    /// A fault of our own; the log tells more.
    Fault,
}

/// An error of a backend: a kind, and what caused it.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    source: Option<io::Error>,
    applied: Option<Box<SetAttr>>,
}

impl Error {
    /// An error of `kind` with no further cause.
    pub fn new(kind: ErrorKind) -> Self {
        Self { kind, source: None, applied: None }
    }

    /// An error of `kind` caused by `source`.
    pub fn with_source(kind: ErrorKind, source: io::Error) -> Self {
        Self { kind, source: Some(source), applied: None }
    }

    /// The error came after these attributes were set: the client is told of them (RFC 8881 18.30.3).
    pub fn after(mut self, applied: SetAttr) -> Self {
        self.applied = Some(Box::new(applied));
        self
    }

    /// Attributes that were set before the error.
    pub fn applied(&self) -> Option<&SetAttr> {
        self.applied.as_deref()
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self::new(kind)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Some(s) => write!(f, "{:?}: {s}", self.kind),
            None => write!(f, "{:?}", self.kind),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|e| e as _)
    }
}
