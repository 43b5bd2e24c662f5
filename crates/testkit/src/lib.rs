//! Helpers for tests and benches: a backend in memory and one that fails on demand, the suite that every backend
//! passes, a raw client for odd and hostile calls, and a link with latency.

// The crate is for tests only: a broken invariant ends the test that broke it.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

pub mod conformance;
pub mod dice;
pub mod fault;
pub mod link;
pub mod memfs;
pub mod port;
pub mod power;
pub mod wire;

pub use dice::Dice;
pub use fault::Fault;
pub use link::{LinkControl, LinkEnd, LinkOptions, link};
pub use memfs::MemFs;
pub use power::{Power, Trace};
