//! Copies of files and of trees of files over an [`Endpoint`]: a server's export, or local files.
//!
//! | Module | What is in it |
//! |---|---|
//! | `endpoint` | the [`Endpoint`] trait, what it opens ([`Source`]) and makes ([`Sink`]) |
//! | `local`, `nfs` | the two endpoints |
//! | `inter` | from one server to another, by the servers: loans, checkpoints, resume |
//! | [`policy`], `costs` | whether that is faster than through this process: the model, and its clock |
//! | `file` | one file: method, temporary name, durability |
//! | `pipeline` | bytes through this process |
//! | `other` | symbolic links, special files, hard links: made beside what they replace, then renamed |
//! | `tree`, `trees` | copying, making and removing trees: many objects in flight |
//! | `progress` | events, and how to stop |
//!
//! Nothing here prints. A new file is written under a temporary name (`.name.dhow-XXXXXXXX`) in the directory where
//! it will be and renamed when it is complete, so that its final name never leads to half a file; on failure, or when
//! the caller stops the copy, the temporary name is removed. One that is killed may leave it behind. The names are drawn
//! at random and never used again, so that two copies to one name cannot meet; hence nobody can tell a leftover from a copy
//! that is under way, and none is removed unasked.

mod costs;
mod endpoint;
mod error;
mod file;
mod inter;
mod local;
mod nfs;
mod other;
mod pipeline;
pub mod policy;
mod progress;
mod temp;
mod tree;
mod trees;
mod within;

pub use costs::Costs;
pub use endpoint::{
    Calls, Endpoint, Entry, Kind, Meta, Method, Moved, Offload, Pages, SetMeta, Sink, Source, Synced, Time,
};
pub use error::{Error, ErrorKind, Result};
pub use file::{Choice, FileReport, Known, Options, Sync, calls_of, copy_file};
pub use local::{Local, is_superuser, umask};
pub use nfs::NfsEndpoint;
pub use other::copy_other;
pub use pipeline::{WINDOW, drain, fill};
pub use policy::{Decision, MinSize, Model, Way};
pub use progress::{Cancel, Event, Progress, Stop};
pub use tree::{TreeOptions, TreeReport, copy_tree};
pub use trees::{make_dirs, remove_tree};
