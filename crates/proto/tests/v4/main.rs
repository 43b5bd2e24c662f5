//! Tests of the NFSv4 codecs, in one binary to keep builds short.

// Helpers of tests are not seen as tests by the lints.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod attrs;
mod compound;
mod hostile;
mod ops;
mod optable;
mod payload;
mod words;
