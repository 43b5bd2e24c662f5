//! NFS version 4, minor versions 1 and 2.
//!
//! Arguments and results of every operation stand in [`ops`], one module per group; [`ArgOp`] and [`ResOp`] join them
//! for COMPOUND. Conventions:
//!
//! * A result whose error carries no body is `Result<XxxOk, Status>`; others have a type of their own. All of them
//!   implement [`OpRes`].
//! * Names, link texts and owners are [`bytes::Bytes`]: NFS asks for UTF-8 but files have bytes.
//! * Attributes in arguments are kept as [`Fattr`], unparsed, because an attribute nobody knows there means
//!   [`Status::ATTRNOTSUPP`] and not a decoding error; attributes in results are [`Attrs`].

pub mod attr;
mod bitmap;
pub mod cb;
pub mod cbtable;
mod compound;
mod errors;
mod opnum;
pub mod ops;
pub mod optable;
pub mod payload;
mod status;
mod types;

pub use attr::{Attrs, Fattr};
pub use bitmap::Bitmap;
pub use compound::{ArgOp, CompoundArgs, CompoundHeader, CompoundRes, OpRes, ResOp};
pub use opnum::{CbOpNum, OpNum};
pub use status::Status;
pub use types::*;

/// Version number of NFSv4 in RPC calls.
pub const VERSION: u32 = 4;

/// Procedure that does nothing.
pub const PROC_NULL: u32 = 0;

/// Procedure that carries a sequence of operations.
pub const PROC_COMPOUND: u32 = 1;

/// Largest filehandle in bytes (`NFS4_FHSIZE`).
pub const FH_SIZE: usize = 128;

/// Largest owner, client owner, server scope in bytes (`NFS4_OPAQUE_LIMIT`).
pub const OPAQUE_LIMIT: usize = 1024;

/// For opaque values without a limit of their own: they are slices of a record whose size is limited already.
pub const NO_LIMIT: usize = u32::MAX as usize;

/// Limit of arrays whose elements are decoded into memory and for which the RFC names none. Far above what anybody
/// sends; a record of some MiB must not turn into an allocation many times its size.
pub const MAX_ARRAY: usize = 0x1_0000;

/// The largest offset or length: "to the end of the file" in lock ranges and the like (`NFS4_UINT64_MAX`).
pub const TO_EOF: u64 = u64::MAX;
