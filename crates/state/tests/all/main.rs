//! The state machines together, under virtual time.

mod clients;
mod common;
mod copies;
mod files;
mod locks;
mod model;
mod recovery;
mod sessions;
