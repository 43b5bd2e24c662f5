//! What can go wrong with a copy, in words that a user can act on.

use std::fmt;
use std::io;

/// The kinds of failure that callers tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no such object.
    NotFound,
    /// Something of that name is there already.
    Exists,
    /// A part of the path is not a directory.
    NotDirectory,
    /// A directory stands where a file was expected.
    IsDirectory,
    /// The directory is not empty.
    NotEmpty,
    /// The user may not do that.
    Permission,
    /// No space, or the quota is used up.
    NoSpace,
    /// The filesystem or the export is read-only.
    ReadOnly,
    /// A name or a path is too long, or has bytes that are not allowed.
    BadName,
    /// Too many symbolic links on the way.
    Loop,
    /// The file is larger than the filesystem allows.
    TooBig,
    /// The endpoint, or this pair of endpoints, does not offer that.
    Unsupported,
    /// Source and destination are the same file, or one lies in the other.
    Same,
    /// It is not a regular file.
    NotRegular,
    /// The object was removed by somebody else while it was in use.
    Stale,
    /// The server lost written data before it was committed, more often than it was sent again.
    DataLost,
    /// The server cannot be reached, or does not speak the protocol.
    Unreachable,
    /// The caller stopped the copy.
    Cancelled,
    /// A file or a lock is in use by somebody else.
    Busy,
    /// Nobody reads what is written (a pipe whose reader has gone).
    Unread,
    /// Anything else.
    Io,
}

impl ErrorKind {
    fn words(self) -> &'static str {
        match self {
            Self::NotFound => "no such file or directory",
            Self::Exists => "already exists",
            Self::NotDirectory => "not a directory",
            Self::IsDirectory => "is a directory",
            Self::NotEmpty => "directory not empty",
            Self::Permission => "permission denied",
            Self::NoSpace => "no space left (or quota used up)",
            Self::ReadOnly => "read-only filesystem",
            Self::BadName => "name too long or not allowed",
            Self::Loop => "too many symbolic links",
            Self::TooBig => "file too large for the destination",
            Self::Unsupported => "not supported here",
            Self::Same => "source and destination are the same",
            Self::NotRegular => "not a regular file",
            Self::Stale => "was removed while in use",
            Self::DataLost => "the server restarted again and again before the data was safe; copy it once more",
            Self::Unreachable => "server not reachable",
            Self::Cancelled => "stopped",
            Self::Busy => "in use by somebody else",
            Self::Unread => "nobody reads it any more",
            Self::Io => "input/output error",
        }
    }
}

/// A failure, with the path or URL that it concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What kind of failure.
    pub kind: ErrorKind,
    /// The path or URL that it concerns, as the user wrote it; empty if there is none.
    pub place: String,
    /// More to say than the kind does.
    pub detail: Option<String>,
}

impl Error {
    /// A failure of `kind` at `place`.
    pub fn new(kind: ErrorKind, place: impl Into<String>) -> Self {
        Self { kind, place: place.into(), detail: None }
    }

    /// The same with words of its own in place of the kind's.
    pub fn with(kind: ErrorKind, place: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { kind, place: place.into(), detail: Some(detail.into()) }
    }

    /// An error of a local system call at `place`.
    pub fn io(error: &io::Error, place: impl Into<String>) -> Self {
        use dhow_sys::Errno;
        let kind = match Errno::from_io_error(error) {
            Some(Errno::NOENT) => ErrorKind::NotFound,
            Some(Errno::EXIST) => ErrorKind::Exists,
            Some(Errno::NOTDIR) => ErrorKind::NotDirectory,
            Some(Errno::ISDIR) => ErrorKind::IsDirectory,
            Some(Errno::NOTEMPTY) => ErrorKind::NotEmpty,
            Some(Errno::ACCESS | Errno::PERM) => ErrorKind::Permission,
            Some(Errno::NOSPC | Errno::DQUOT) => ErrorKind::NoSpace,
            Some(Errno::ROFS) => ErrorKind::ReadOnly,
            Some(Errno::NAMETOOLONG) => ErrorKind::BadName,
            Some(Errno::LOOP) => ErrorKind::Loop,
            Some(Errno::FBIG) => ErrorKind::TooBig,
            Some(Errno::OPNOTSUPP | Errno::NOSYS | Errno::XDEV) => ErrorKind::Unsupported,
            Some(Errno::STALE) => ErrorKind::Stale,
            Some(Errno::PIPE) => ErrorKind::Unread,
            Some(Errno::BUSY | Errno::TXTBSY) => ErrorKind::Busy,
            _ => {
                return Self::with(ErrorKind::Io, place, error.to_string());
            }
        };
        Self::new(kind, place)
    }

    /// An error number of `dhow-sys` at `place`.
    pub fn errno(error: dhow_sys::Errno, place: impl Into<String>) -> Self {
        Self::io(&io::Error::from(error), place)
    }

    /// The caller stopped it.
    pub fn cancelled() -> Self {
        Self::new(ErrorKind::Cancelled, "")
    }

    /// Whether further files of the same tree would fail for the same reason, so that going on is pointless.
    pub fn is_fatal(&self) -> bool {
        matches!(self.kind, ErrorKind::Cancelled | ErrorKind::NoSpace | ErrorKind::Unreachable)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.place.is_empty() {
            write!(f, "{}: ", self.place)?;
        }
        f.write_str(self.detail.as_deref().unwrap_or(self.kind.words()))
    }
}

impl std::error::Error for Error {}

/// What everything here returns.
pub type Result<T> = std::result::Result<T, Error>;
