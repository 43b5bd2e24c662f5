//! Handles and object identities.

use smallvec::SmallVec;
use std::fmt;

/// The longest handle a backend may make, in bytes. The server adds a version, the export and a keyed MAC (24 bytes)
/// and stays within NFS4_FHSIZE, 128 (RFC 8881 3.2).
pub const HANDLE_MAX: usize = 104;

/// A backend's name for an object: opaque bytes, stable across renames and restarts.
///
/// The server protects it by a MAC, so a backend may trust a handle that it is given to be one that it made once.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(SmallVec<[u8; 40]>);

impl Handle {
    /// Wraps `bytes`; `None` if there are more than [`HANDLE_MAX`].
    pub fn new(bytes: &[u8]) -> Option<Self> {
        (bytes.len() <= HANDLE_MAX).then(|| Self(SmallVec::from_slice(bytes)))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle(")?;
        for b in &self.0 {
            write!(f, "{b:02x}")?;
        }
        write!(f, ")")
    }
}

/// What state (opens, locks, delegations) is kept by: equal for two handles exactly if they name one object, also
/// when they were reached through two exports.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ObjectId(SmallVec<[u8; 40]>);

impl ObjectId {
    /// An identity made of `bytes`.
    pub fn new(bytes: &[u8]) -> Self {
        Self(SmallVec::from_slice(bytes))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}
