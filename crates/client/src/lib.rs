//! Placeholder, filled in by the commits that follow.
