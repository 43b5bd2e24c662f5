//! Finds payloads.
