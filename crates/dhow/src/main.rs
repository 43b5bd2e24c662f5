//! The `dhow` binary.
fn main() {}
