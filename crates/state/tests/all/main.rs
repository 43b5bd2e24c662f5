//! The state machines together, under virtual time.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod admin;
mod clients;
mod common;
mod copies;
mod deleg;
mod files;
mod locks;
mod lockwait;
mod model;
mod notify;
mod races;
mod recovery;
mod sessions;
mod stress;
