//! A bounded XDR reader and writer (RFC 4506), without I/O.
//!
//! Three rules shape this crate:
//!
//! * A length read from the wire is compared with a named limit *and* with the bytes at hand before anything is
//!   allocated or sliced.
//! * Opaque data is never copied on the way in ([`Reader`] hands out slices of the record) and large opaque data is
//!   never copied on the way out ([`Writer`] keeps references and yields a list of buffers).
//! * Enumerations are open: a number nobody knows survives decoding and encoding ([`xdr_enum!`]).

mod codec;
mod error;
mod macros;
mod reader;
mod writer;

pub use codec::{Decode, DecodeMax, Encode};
pub use error::Error;
pub use reader::Reader;
pub use writer::{Mark, Writer};

/// The types that the macros of this crate name; not for other use.
#[doc(hidden)]
pub mod private {
    pub use core::fmt;
}

/// Result of decoding.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Number of zero bytes that follow `len` bytes of opaque data (RFC 4506 section 4.9).
pub const fn padding(len: usize) -> usize {
    len.wrapping_neg() & 3
}
