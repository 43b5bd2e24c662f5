//! A local directory tree as a [`dhow_vfs::Backend`].
//!
//! | Module | What it holds |
//! |---|---|
//! | [`options`] | what can be chosen, and the errors of opening a tree |
//! | [`fsnum`] | small numbers for filesystems, the same after a reboot |
//! | `fs` | one mounted filesystem: how its objects are named and opened |
//! | `handle` | the bytes of a handle |
//! | `inode` | one object that is in use: descriptors, change attribute; the cache of them |
//! | `inner` | the shared heart: credentials, placing work, durability |
//! | `resolve` | how a handle becomes an object |
//! | `hints` | finding objects again without the privilege to open by handle |
//! | `attr`, `setattr` | attributes |
//! | `acl` | access control lists in the kernel's form |
//! | `rights` | what users may do, asked once and remembered |
//! | `names` | everything that happens to a name in a directory |
//! | `readdir` | listing |
//! | `io` | open, read, write, commit, space |
//! | `leases` | watches for local programs that want to write |
//! | `locks` | byte-range locks shared with local programs |
//! | `mover` | cloning and copying ranges |
//! | `xattr` | extended attributes |
//! | `sync` | fsync shared by those who wait for it |
//! | `exclusive` | verifiers of exclusive creates |
//!
//! # How an object is named
//!
//! A handle is the number of a filesystem and the kernel's own handle (`name_to_handle_at`), so it names the object
//! and not its path. With `CAP_DAC_READ_SEARCH` it is opened directly. Without, a table of *hints* (parent and name,
//! kept in the state directory) says where the object was last seen, a walk from the root goes there and compares the
//! handle at every step; a miss starts one scan of the tree in the background, during which the answer is DELAY, and
//! after which an object that was not found is STALE. Where the filesystem has no handles, inode number and birth time
//! stand in.
//!
//! Handles are trusted because the server signs them. An object that a local user moves out of the export stays
//! reachable by handles that clients already hold, as it does with the kernel's server; [`dhow_vfs::Backend::parent`]
//! never leads out, since it verifies that the way up ends at the root of the export.
//!
//! Mount points below the root are entered with `crossmnt` only. Without it the entry is listed with the number of the
//! directory that is mounted over, and looking it up answers `Access`.
//!
//! # How work is placed
//!
//! On ext4, xfs, btrfs and tmpfs, system calls that work on what is in memory are made right here, on the runtime's
//! thread. What may wait for a disk (cold data, cold names, fsync, truncation, large writes, listings, and every update
//! while an fsync is under way, since it may have to wait for the journal) goes to the blocking pool, and so does everything on any other filesystem, so many at a time as the export allows: one hung
//! mount cannot take all threads. Copies have an allowance of their own and a low I/O priority.
//!
//! # Who acts
//!
//! If the process may change identity, every call that the user's rights decide runs under a guard that makes the
//! thread that user for file accesses ([`dhow_sys::cred::CredGuard`]); it never crosses an await. What only asks for a
//! right (search a directory, read it, read a file) asks the kernel as the user once and remembers the answer. Opening
//! by handle happens as the process. Where the mode says no, the owner may read and write data all the same (cases
//! B01, B02). Descriptors are opened as the process, shared by all users of a file, and carry no permission: I/O
//! without an open is checked per user. Writes run with the user's uid, so that set-id bits are cleared and quotas and
//! reserved space count. If the process may not change identity, everything acts as the process's own user.
//!
//! # What is stable when
//!
//! With `metadata_sync` every change of a name or an attribute is on stable storage before the reply: one fsync of the
//! directory and, where needed, of the object, shared by all who wait at the time. A failed fsync changes the write
//! verifier. A file with unstable data is kept open until a COMMIT succeeds, so that no write error is lost.

mod acl;
mod attr;
mod backend;
mod error;
mod exclusive;
mod fs;
pub mod fsnum;
mod handle;
mod hints;
mod inner;
mod inode;
mod io;
mod leases;
mod locks;
mod mover;
mod names;
pub mod options;
mod readdir;
mod relay;
mod resolve;
mod rights;
mod setattr;
mod sync;
mod xattr;

pub use backend::{Local, SyncCounts};
pub use fsnum::{FileFsNumbers, FsNumbers, HashedFsNumbers};
pub use inner::Report;
pub use options::{HandleMode, OpenError, Options, Reflink};
