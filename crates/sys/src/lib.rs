//! Safe wrappers of the system calls that Dhow makes: the one crate of the workspace that may use `unsafe`.
//!
//! There is no policy here. Every function makes one system call, or the few that form one step, and reports
//! what the kernel said as a [`rustix::io::Errno`] ([`Errno`]). Calls that were interrupted by a signal are made
//! again. Names are bytes; a name with a NUL byte in it is refused with `EINVAL` before any system call.
//!
//! | Module | What it wraps |
//! |---|---|
//! | [`handle`] | `name_to_handle_at`, `open_by_handle_at` |
//! | [`open`] | `openat2`, opening again through `/proc/self/fd`, `statx` |
//! | [`cred`] | the identity of a thread, capabilities |
//! | [`io`] | reading, writing, syncing, copying, allocating |
//! | [`dir`] | `getdents64` from a cookie |
//! | [`node`] | making, linking, renaming, removing; attributes of objects |
//! | [`xattr`] | extended attributes |
//! | [`lock`] | leases, open file description locks |
//! | [`names`] | users and groups by name and number |
//! | [`pool`] | page-aligned buffers that become [`bytes::Bytes`] without a copy |
//! | [`ifaddr`] | addresses of network interfaces |
//! | [`netns`] | network namespaces, TUN interfaces |
//! | [`proc`] | resource limits, I/O priority, memory and processor time used |
//! | [`quota`] | quotas of users |
//!
//! Objects are held by `O_PATH` descriptors where possible. Such a descriptor cannot be read or written, but
//! every wrapper that needs an open file says so, and [`open::reopen`] makes one.

#![allow(unsafe_code)]

pub mod cred;
pub mod dir;
pub mod handle;
pub mod ifaddr;
pub mod io;
pub mod lock;
pub mod names;
pub mod netns;
pub mod node;
pub mod open;
pub mod pool;
pub mod proc;
pub mod quota;
pub mod xattr;

#[cfg(test)]
mod testdir;

pub use rustix::io::Errno;

/// What every wrapper returns.
pub type Result<T> = std::result::Result<T, Errno>;

/// Turns the result of a raw system call into a `Result`, reading `errno`.
pub(crate) fn check(result: libc::c_long) -> Result<libc::c_long> {
    if result < 0 { Err(last_errno()) } else { Ok(result) }
}

/// The error of the last failed libc call of this thread.
pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Makes `call` again for as long as a signal interrupts it.
pub(crate) fn retry<T>(mut call: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}
