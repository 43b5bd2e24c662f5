//! Arguments and results of the operations, one module per group.
//!
//! Field names are those of RFC 7863 without their prefixes. "Current" and "saved" mean the current and the saved
//! filehandle.

mod copy;
mod dir;
mod io;
mod lock;
mod misc;
mod open;
mod session;
mod xattr;

pub use copy::*;
pub use dir::*;
pub use io::*;
pub use lock::*;
pub use misc::*;
pub use open::*;
pub use session::*;
pub use xattr::*;
