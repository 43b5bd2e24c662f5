//! The whole server over a raw connection, one module per area.

mod attrs;
mod chaos;
mod common;
mod compound;
mod concurrency;
mod copy;
mod handles;
mod hostile;
mod io;
mod locks;
mod names;
mod opens;
mod readdir;
mod rpc;
mod sessions;
mod sparse;
mod squash;
mod xattrs;
