//! What can be wrong with encoded bytes.

/// Why bytes could not be decoded. In a server each of these means GARBAGE_ARGS or NFS4ERR_BADXDR; none of them says
/// anything about the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The data ended before the value did.
    #[error("data ended before the value did")]
    Eof,
    /// A variable-length value is longer than its limit.
    #[error("{what} of {len} exceeds the limit of {limit}")]
    TooLong {
        /// What was being read.
        what: &'static str,
        /// The length the sender claims, in bytes (opaque) or elements (array).
        len: u32,
        /// The limit that applies, in the same unit.
        limit: usize,
    },
    /// A boolean that is neither 0 nor 1 (RFC 4506 section 4.4).
    #[error("boolean is {0}")]
    BadBool(u32),
    /// The discriminant of a union has no arm, so that the length of what follows is unknown.
    #[error("{what} has no arm for {value}")]
    BadEnum {
        /// The union or enumeration.
        what: &'static str,
        /// The number found.
        value: u32,
    },
    /// A value that is well-formed XDR but breaks a rule of the protocol.
    #[error("invalid {0}")]
    Invalid(&'static str),
    /// Bytes are left after the last value.
    #[error("{0} bytes left after the last value")]
    Trailing(usize),
}
