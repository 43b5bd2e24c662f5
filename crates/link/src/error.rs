//! What can go wrong.

use std::io;

use dhow_sys::Errno;

/// Why an emulated network could not be made or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process may not make namespaces or TUN interfaces, or the kernel has none.
    #[error(
        "{what}: {error}: emulated links need root (CAP_SYS_ADMIN and CAP_NET_ADMIN), network namespaces and /dev/net/tun"
    )]
    NotPermitted {
        /// The step that failed.
        what: &'static str,
        /// What the kernel said.
        error: Errno,
    },
    /// The topology makes no sense; the text says how.
    #[error("{0}")]
    Topology(String),
    /// There is no host or link of this name.
    #[error("no {0} in the emulated network")]
    Unknown(String),
    /// A step of setting up or measuring failed.
    #[error("{what}: {error}")]
    Io {
        /// The step that failed.
        what: &'static str,
        /// What the system said.
        error: io::Error,
    },
    /// The thread that moves packets, or that keeps a host, has ended.
    #[error("the emulator has stopped")]
    Stopped,
}

/// What the functions of this crate return.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Names the step that failed.
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |error| Error::Io { what, error }
    }

    /// As [`Error::io`], with the errors of missing rights and missing devices told apart.
    pub(crate) fn setup(what: &'static str) -> impl FnOnce(Errno) -> Error {
        move |error| match error {
            Errno::PERM | Errno::ACCESS | Errno::NOENT | Errno::NODEV | Errno::NXIO | Errno::NOSYS => {
                Error::NotPermitted { what, error }
            }
            other => Error::Io { what, error: other.into() },
        }
    }
}
