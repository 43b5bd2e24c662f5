//! The one place where a backend's error becomes a status. What an operation may not return is turned into the
//! nearest status that it may, by the operation table, when the COMPOUND loop takes the result.

use dhow_proto::v4::Status;
use dhow_vfs::{Error, ErrorKind, NameError};

/// The status that tells a client of `kind`.
pub fn status_of(kind: ErrorKind) -> Status {
    use ErrorKind as E;
    match kind {
        E::NotFound => Status::NOENT,
        E::Exists => Status::EXIST,
        E::Access => Status::ACCESS,
        E::Perm => Status::PERM,
        E::NotDir => Status::NOTDIR,
        E::IsDir => Status::ISDIR,
        E::Symlink => Status::SYMLINK,
        E::WrongType => Status::WRONG_TYPE,
        E::NotEmpty => Status::NOTEMPTY,
        E::Invalid => Status::INVAL,
        E::NameTooLong => Status::NAMETOOLONG,
        E::BadName => Status::BADNAME,
        E::NoSpace => Status::NOSPC,
        E::Quota => Status::DQUOT,
        E::ReadOnly => Status::ROFS,
        E::Stale => Status::STALE,
        // A handle passed its MAC, so the backend made it once: for the client it is a file that is gone.
        E::BadHandle => Status::STALE,
        E::Io => Status::IO,
        E::FileTooBig => Status::FBIG,
        E::TooManyLinks => Status::MLINK,
        E::CrossDevice => Status::XDEV,
        E::NotSupported => Status::NOTSUPP,
        E::Delay => Status::DELAY,
        E::BadCookie => Status::BAD_COOKIE,
        E::Busy => Status::FILE_OPEN,
        E::Locked => Status::LOCKED,
        E::NoXattr => Status::NOXATTR,
        E::XattrTooBig => Status::XATTR2BIG,
        E::Range => Status::INVAL,
        E::Fault => Status::SERVERFAULT,
        // A kind that this version of the server does not know.
        _ => Status::SERVERFAULT,
    }
}

/// Whether a backend's error, or a name that is none, can have led to this status: then the operation at hand may have
/// to say it otherwise.
pub(crate) fn is_of_backend(status: Status) -> bool {
    use ErrorKind as E;
    const KINDS: &[ErrorKind] = &[
        E::NotFound,
        E::Exists,
        E::Access,
        E::Perm,
        E::NotDir,
        E::IsDir,
        E::Symlink,
        E::WrongType,
        E::NotEmpty,
        E::Invalid,
        E::NameTooLong,
        E::BadName,
        E::NoSpace,
        E::Quota,
        E::ReadOnly,
        E::Stale,
        E::Io,
        E::FileTooBig,
        E::TooManyLinks,
        E::CrossDevice,
        E::NotSupported,
        E::Delay,
        E::BadCookie,
        E::Busy,
        E::Locked,
        E::NoXattr,
        E::XattrTooBig,
        E::Fault,
    ];
    status == Status::BADCHAR || KINDS.iter().any(|kind| status_of(*kind) == status)
}

/// As [`status_of`]; logs what an administrator should know of.
pub fn status(error: &Error) -> Status {
    match error.kind() {
        ErrorKind::Io | ErrorKind::Fault => tracing::error!(%error, "backend failed"),
        _ => tracing::debug!(%error, "backend refused"),
    }
    status_of(error.kind())
}

/// The status for bytes that are no name (RFC 8881 14.5, cases B14, B17).
pub fn name_status(error: NameError) -> Status {
    match error {
        NameError::Empty => Status::INVAL,
        NameError::TooLong => Status::NAMETOOLONG,
        NameError::BadChar => Status::BADCHAR,
        NameError::Dots => Status::BADNAME,
    }
}

/// Makes a status of errors.
pub(crate) trait IntoStatus<T> {
    /// The value, or the status that tells the client of the error.
    fn or_status(self) -> Result<T, Status>;
}

impl<T> IntoStatus<T> for dhow_vfs::Result<T> {
    fn or_status(self) -> Result<T, Status> {
        self.map_err(|e| status(&e))
    }
}

impl<T> IntoStatus<T> for Result<T, NameError> {
    fn or_status(self) -> Result<T, Status> {
        self.map_err(name_status)
    }
}
