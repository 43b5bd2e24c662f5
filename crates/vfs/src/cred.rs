//! Who asks.

use bytes::Bytes;
use smallvec::SmallVec;

/// A user's identity as the backend is to act: after squashing and group look-up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cred {
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Supplementary groups; never cut short silently (case B37).
    pub groups: SmallVec<[u32; 16]>,
}

impl Cred {
    /// The superuser, with no supplementary groups. For the server's own work (the root of an export, clean-up).
    pub fn root() -> Self {
        Self { uid: 0, gid: 0, groups: SmallVec::new() }
    }

    /// A user with no supplementary groups.
    pub fn user(uid: u32, gid: u32) -> Self {
        Self { uid, gid, groups: SmallVec::new() }
    }

    /// Whether `gid` is the primary or a supplementary group.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// The context of one backend call.
#[derive(Clone, Debug)]
pub struct Cx {
    /// The identity to act with.
    pub cred: Cred,
    /// The credential as it came over the wire (RPC flavor and body), for backends that forward it (re-export).
    pub wire: Option<(u32, Bytes)>,
}

impl Cx {
    /// A context for `cred` with no wire credential.
    pub fn new(cred: Cred) -> Self {
        Self { cred, wire: None }
    }

    /// The server's own work.
    pub fn root() -> Self {
        Self::new(Cred::root())
    }
}
