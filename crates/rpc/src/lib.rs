//! ONC RPC version 2 (RFC 5531) without I/O: message headers, credentials, record marking and the duplicate-request
//! cache as a data structure.
//!
//! Nothing here reads a socket or a clock; bytes and time come in as parameters.

pub mod auth;
pub mod drc;

pub mod message;
pub mod record;

pub use auth::{AuthStat, AuthSys, Credential, Flavor, OpaqueAuth};
pub use message::{AcceptStat, CallBody, CallHeader, ReplyBody, ReplyHeader, accepted_reply, denied_reply};
pub use record::{RecordError, RecordReader, record_mark};

/// The only RPC version there is (RFC 5531 section 9).
pub const RPC_VERSION: u32 = 2;

/// Longest body of a credential or verifier in bytes (RFC 5531 section 8.2).
pub const MAX_AUTH_BYTES: usize = 400;
