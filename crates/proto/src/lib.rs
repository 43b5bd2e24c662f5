//! Wire types, codecs and the operation table of NFSv4.1 and 4.2.
//!
//! Sources: RFC 8881 (4.1), RFC 7862 and 7863 (4.2), RFC 8276 (extended attributes), RFC 8275 (umask), RFC 9754 (open
//! arguments). This crate describes; it does not behave: what an operation *does* is the server's and the client's.

pub mod v4;

/// Program number of NFS (RFC 7863).
pub const NFS_PROGRAM: u32 = 100003;

/// Lower bound of program numbers a client may choose for its callbacks; the number in RFC 7863's description.
pub const NFS4_CALLBACK_PROGRAM: u32 = 0x4000_0000;
