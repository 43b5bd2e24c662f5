//! The client library against the server of this project, and against scripted servers that misbehave.

// A broken expectation ends the test.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod admin;
mod common;
mod conformance;
mod copies;
mod crash;
mod deleg;
mod distrust;
mod goodbye;
mod lost;
mod moved;
mod once;
mod restart;
mod revoked;
mod script;
mod sessions;
mod trips;
