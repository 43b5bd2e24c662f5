//! The border between the protocol and storage.
//!
//! [`Backend`] is what a filesystem must offer to be served: one documented promise per method. It knows nothing of
//! XDR and nothing of NFS status codes; the server maps [`ErrorKind`] to a status in one place. Credentials are a
//! parameter of every call ([`Cx`]), names are bytes, handles name *objects* and not paths.
//!
//! ```text
//! server ──► Backend (trait) ◄── local, re-export, pseudo-root, decorators (read-only, fault)
//! ```
//!
//! Invariants that every backend keeps:
//!
//! 1. A [`Handle`] stays valid across renames of the object and its parents, and across a restart of the server.
//! 2. Stability is never overstated: [`Stability::FileSync`] is answered only after data *and* metadata are on stable
//!    storage; the write verifier changes whenever written data may have been lost (restart, failed fsync).
//! 3. A call with credentials of a user never does what the user could not do, apart from the *owner override*
//!    that [`Backend::open`] tells of.
//! 4. Dropping the future of a call may leave its work done or undone, never half done in a way that a later call
//!    would notice, and never with another user's identity on the thread.

pub mod acl;
pub mod attr;
pub mod backend;
pub mod cred;
pub mod error;
pub mod handle;
pub mod name;
pub mod pseudo;
pub mod readonly;

pub use acl::{AclEntry, AclSet, AclTag, PosixAcl};
pub use attr::{Access, Attr, DirChange, FileKind, FsId, FsStat, Quota, SetAttr, SetTime, Time};
pub use backend::{
    Backend, Caps, Committed, CopySource, CreateHow, Created, Deny, DirEntry, DirPage, IoRef, LockKind, LockOwner,
    LockRange, Made, Make, Node, OpenAccess, OpenFile, OpenHow, PageLimit, ReadData, Removed, Renamed, SeekTo, Seeked,
    SetDone, Stability, Watch, Watching, WriteVerifier, WriterNotice, Written, XattrSet,
};
pub use cred::{Cred, Cx};
pub use error::{Error, ErrorKind, Result};
pub use handle::{HANDLE_MAX, Handle, ObjectId};
pub use name::{NAME_MAX, Name, NameError};
