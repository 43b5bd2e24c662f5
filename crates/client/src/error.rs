//! What can go wrong, in a user's words.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dhow_proto::v4::{OpNum, Status};

use crate::NfsUrl;
use crate::moved::Places;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed. Cheap to clone, since one cause may fail many calls.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server answered with an error: a fact about the object or the request.
    #[error("{}{}", Subject(.path), explain(*.status, *.op))]
    Status {
        /// The operation that failed.
        op: OpNum,
        /// The status it returned.
        status: Status,
        /// The path concerned, where there is one.
        path: Option<Bytes>,
    },

    /// The session was lost while this request was under way, and it is not known whether the server did it. Repeating
    /// it could do it twice.
    #[error("the server lost the session; whether {op} was done is not known")]
    OutcomeUnknown {
        /// Main operation of the request.
        op: OpNum,
    },

    /// What this open file stood for could not be re-established after the server lost it, or was revoked. The file can
    /// be closed and opened again, but others may have used it meanwhile.
    #[error("{what} of this open file is lost; others may have used the file since ({status})")]
    StateLost {
        /// What of it.
        what: Lost,
        /// What the server said.
        status: Status,
    },

    /// The filesystem is at another server now, or always was (a referral). Nothing is followed: connect there.
    #[error("{}moved to {}, which is not followed ({op}: MOVED)", Subject(.path), Places(.to))]
    Moved {
        /// The operation that was refused.
        op: OpNum,
        /// Where it is, as far as the server says: the root of the filesystem there.
        to: Arc<[NfsUrl]>,
        /// The path concerned, where there is one.
        path: Option<Bytes>,
    },

    /// Unstable data was lost by the server (its write verifier changed): write it again.
    #[error("the server restarted and lost data that was not yet on stable storage; write it again")]
    WritesLost,

    /// An asynchronous copy is known to the server no more, and how it ended was never told.
    #[error("the server forgot the copy; how far it got is not known")]
    CopyLost,

    /// The client was closed.
    #[error("the connection to the server was closed")]
    Closed,

    /// No answer in time. The request may still be executed.
    #[error("no answer from the server within {} s", .0.as_secs())]
    TimedOut(Duration),

    /// The server sent something that breaks the protocol.
    #[error("the server broke the protocol: {0}")]
    Protocol(Arc<str>),

    /// The server speaks another protocol or version.
    #[error("{0}")]
    Unsupported(Arc<str>),

    /// The server rejects the credential.
    #[error("the server refused the credential: {0}")]
    Auth(dhow_rpc::AuthStat),

    /// No connection.
    #[error("cannot reach {server}: {cause}")]
    Io {
        /// Host and port.
        server: Arc<str>,
        /// The system's error.
        cause: Arc<std::io::Error>,
    },

    /// Symbolic links lead around in circles, or over more than 40 steps.
    #[error("{}: too many levels of symbolic links", Show(.0))]
    TooManyLinks(Bytes),

    /// An argument that cannot be sent: a name with a slash, a path without a last component.
    #[error("{0}")]
    Argument(Arc<str>),
}

/// What of an open file was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// The open itself: it can neither be reclaimed nor opened anew.
    Open,
    /// The share reservation (DENY): somebody may have opened the file for what it denied.
    Share,
    /// A byte-range lock: somebody else may have held it.
    Lock,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "the state",
            Self::Share => "the share reservation",
            Self::Lock => "a byte-range lock",
        })
    }
}

impl Error {
    pub(crate) fn protocol(what: impl Into<Arc<str>>) -> Self {
        Self::Protocol(what.into())
    }

    pub(crate) fn status(op: OpNum, status: Status) -> Self {
        Self::Status { op, status, path: None }
    }

    /// Adds the path that was being worked on, unless there is one already.
    #[must_use]
    pub fn at(self, place: impl AsRef<[u8]>) -> Self {
        match self {
            Self::Status { op, status, path: None } => {
                Self::Status { op, status, path: Some(Bytes::copy_from_slice(place.as_ref())) }
            }
            Self::Moved { op, to, path: None } => {
                Self::Moved { op, to, path: Some(Bytes::copy_from_slice(place.as_ref())) }
            }
            other => other,
        }
    }

    /// The error without the path that was being worked on.
    #[must_use]
    pub fn without_path(self) -> Self {
        match self {
            Self::Status { op, status, .. } => Self::Status { op, status, path: None },
            Self::Moved { op, to, .. } => Self::Moved { op, to, path: None },
            other => other,
        }
    }

    /// The server's status, when that is what failed.
    pub fn wire_status(&self) -> Option<Status> {
        match self {
            Self::Status { status, .. } | Self::StateLost { status, .. } => Some(*status),
            Self::Moved { .. } => Some(Status::MOVED),
            _ => None,
        }
    }

    /// Whether the server answered with this status.
    pub fn is(&self, status: Status) -> bool {
        self.wire_status() == Some(status)
    }
}

impl From<dhow_xdr::Error> for Error {
    fn from(e: dhow_xdr::Error) -> Self {
        Self::protocol(format!("reply does not decode: {e}"))
    }
}

struct Subject<'a>(&'a Option<Bytes>);

impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(path) => write!(f, "{}: ", Show(path)),
            None => Ok(()),
        }
    }
}

/// A path for people: what is not UTF-8 or not printable is escaped.
struct Show<'a>(&'a Bytes);

impl fmt::Display for Show<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c.is_control() { write!(f, "{}", c.escape_default())? } else { write!(f, "{c}")? }
            }
            for b in chunk.invalid() {
                write!(f, "\\x{b:02x}")?;
            }
        }
        Ok(())
    }
}

fn explain(status: Status, op: OpNum) -> String {
    let words = match status {
        Status::PERM => "operation not permitted",
        Status::NOENT => "no such file or directory",
        Status::IO => "input/output error on the server",
        Status::ACCESS => "permission denied",
        Status::EXIST => "exists already",
        Status::XDEV => "on different filesystems",
        Status::NOTDIR => "not a directory",
        Status::ISDIR => "is a directory",
        Status::INVAL => "invalid argument",
        Status::FBIG => "file too large",
        Status::NOSPC => "no space left on the server",
        Status::ROFS => "read-only filesystem",
        Status::MLINK => "too many links",
        Status::NAMETOOLONG => "name too long",
        Status::NOTEMPTY => "directory not empty",
        Status::DQUOT => "quota used up",
        Status::STALE => "the file is gone from the server (stale handle)",
        // The answer to a number that the server does not know (RFC 8881 section 18.52): it has not the name either.
        Status::OP_ILLEGAL if op == OpNum::ILLEGAL => {
            return "the server does not know this operation; it is newer than the minor version used".into();
        }
        Status::NOTSUPP | Status::OP_ILLEGAL => return format!("the server does not support {op}"),
        Status::DELAY => "the server is busy with this file and gave no answer for a long time",
        Status::GRACE => "the server is in its grace period after a restart",
        Status::DENIED | Status::LOCKED => "locked by another process",
        Status::SHARE_DENIED => "opened by another process that shares it with nobody",
        Status::MOVED => "moved to another server, which is not followed",
        Status::WRONGSEC => "the server wants another security flavor here",
        Status::SYMLINK => "is a symbolic link",
        Status::WRONG_TYPE => "wrong type of file",
        Status::OFFLOAD_DENIED => "the server may not copy from there",
        Status::NOXATTR => "no such extended attribute",
        Status::XATTR2BIG => "extended attribute too big",
        status => return format!("{op} failed: {status}"),
    };
    format!("{words} ({op}: {status})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_path_reason_and_operation() {
        let e = Error::status(OpNum::OPEN, Status::ACCESS).at(b"dir/f\xff\n");
        assert_eq!(e.to_string(), "dir/f\\xff\\n: permission denied (OPEN: ACCESS)");
        assert!(e.is(Status::ACCESS) && !e.is(Status::NOENT));
        let e = Error::status(OpNum::CLONE, Status::NOTSUPP);
        assert_eq!(e.to_string(), "the server does not support CLONE");
        let e = Error::status(OpNum::ILLEGAL, Status::OP_ILLEGAL);
        assert!(e.to_string().starts_with("the server does not know this operation"), "{e}");
        let e = Error::status(OpNum::LOCK, Status(77)).at("x").at("y");
        assert_eq!(e.to_string(), "x: LOCK failed: Status(77)");
    }
}
