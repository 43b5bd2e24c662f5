//! State over restarts and ended leases, of whole servers.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod clock;
mod common;
mod courtesy;
mod faults;
mod recovery;
mod small_disk;
