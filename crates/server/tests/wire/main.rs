//! The whole server over a raw connection, one module per area.

// A helper outside of a test function is as much a test as the function.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod acls;
mod admin;
mod attrs;
mod backchannel;
mod changes;
mod chaos;
mod common;
mod compound;
mod concurrency;
mod copy;
mod deleg;
mod ends;
mod faults;
mod gates;
mod handles;
mod hostile;
mod ids;
mod io;
mod limits;
mod local_locks;
mod locks;
mod namelocks;
mod names;
mod opens;
mod quotas;
mod readdir;
mod rpc;
mod sessions;
mod sparse;
mod squash;
mod storm;
mod tree;
mod wishes;
mod xattrs;
