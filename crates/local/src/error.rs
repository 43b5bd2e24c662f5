//! From error numbers of the kernel to kinds of errors.

use dhow_sys::Errno;
use dhow_vfs::{Error, ErrorKind};

/// The kind that an error number means in most calls.
pub(crate) fn kind(e: Errno) -> ErrorKind {
    match e {
        Errno::NOENT => ErrorKind::NotFound,
        Errno::EXIST => ErrorKind::Exists,
        Errno::ACCESS => ErrorKind::Access,
        Errno::PERM => ErrorKind::Perm,
        Errno::NOTDIR => ErrorKind::NotDir,
        Errno::ISDIR => ErrorKind::IsDir,
        Errno::LOOP => ErrorKind::Symlink,
        Errno::NOTEMPTY => ErrorKind::NotEmpty,
        Errno::INVAL => ErrorKind::Invalid,
        Errno::NAMETOOLONG => ErrorKind::NameTooLong,
        Errno::ILSEQ => ErrorKind::BadName,
        Errno::NOSPC => ErrorKind::NoSpace,
        Errno::DQUOT => ErrorKind::Quota,
        Errno::ROFS => ErrorKind::ReadOnly,
        Errno::STALE => ErrorKind::Stale,
        Errno::FBIG => ErrorKind::FileTooBig,
        Errno::MLINK => ErrorKind::TooManyLinks,
        Errno::XDEV => ErrorKind::CrossDevice,
        Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY => ErrorKind::NotSupported,
        // Out of descriptors or memory, or a lease that is being broken: it may pass.
        Errno::AGAIN | Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS => ErrorKind::Delay,
        Errno::BUSY | Errno::TXTBSY => ErrorKind::Busy,
        Errno::NODATA => ErrorKind::NoXattr,
        Errno::TOOBIG => ErrorKind::XattrTooBig,
        Errno::OVERFLOW | Errno::RANGE | Errno::NXIO => ErrorKind::Range,
        _ => ErrorKind::Io,
    }
}

/// An error with its usual kind.
pub(crate) fn sys(e: Errno) -> Error {
    Error::with_source(kind(e), e.into())
}

/// An error whose kind the call knows better.
pub(crate) fn as_kind(kind: ErrorKind, e: Errno) -> Error {
    Error::with_source(kind, e.into())
}
