//! An asynchronous client of NFSv4.1 and 4.2 servers, written against the standard (RFC 8881, RFC 7862, RFC 8276).
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use dhow_client::{Client, ClientConfig, NfsUrl};
//!
//! let url: NfsUrl = "nfs://server/export/file".parse()?;
//! let client = Client::connect(ClientConfig::for_url(&url).await?).await?;
//! let node = client.fs().stat(url.path()).await?;
//! println!("{} bytes", node.attrs.size.unwrap_or(0));
//! client.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Layers
//!
//! | | Type | Does |
//! |---|---|---|
//! | files | [`Fs`], [`File`], [`DirStream`], [`ReadStream`], [`WriteStream`], [`RunningCopy`] | paths, names, data, locks, copies: each call as few round trips as can be |
//! | calls | [`Client::compound`] | one COMPOUND, exactly once |
//! | sessions | `dhow-session` | slots, retry, recovery, as pure state machines |
//! | records | `dhow-net` | connections |
//!
//! # Owner, invariants, failures
//!
//! One `Inner` per client holds the sessions' state behind one short lock; nothing awaits while it is held. A task for
//! each connection keeps it connected and bound, one task does recovery, one renews the lease. Every request runs in a
//! task of its own, so that a caller who goes away leaves no slot in doubt.
//!
//! * A request that was sent is repeated with the same bytes in the same slot until it is answered.
//! * After the session itself is lost, requests that may be repeated are; others fail with [`Error::OutcomeUnknown`].
//! * Opens and locks are re-established after a restart of the server before any other request is sent. What cannot be
//!   had again is an error that names it ([`Error::StateLost`]), never silence: the table in `recover.rs`.
//! * What a server claims is compared with what was asked before it is believed.
//! * Nothing is cached here, but session state. Memory is bounded by what callers keep in flight.

mod call;
mod callback;
mod check;
mod client;
mod config;
mod copy;
mod counters;
mod deleg;
mod dir;
mod error;
mod file;
mod fs;
mod inner;
mod inter;
mod links;
mod lock;
mod moved;
mod offload;
mod open;
mod opens;
mod path;
pub mod probe;
mod ranges;
mod recover;
mod rpc;
mod sessions;
mod stream;
mod url;
mod xattr;

pub use client::{CallOptions, Client, SessionInfo};
pub use config::{ClientConfig, Dialer, ReadHalf, WriteHalf, auth_sys, own_credential};
pub use copy::{Copied, CopyBegun, CopyOptions, CopyProgress, RunningCopy};
pub use counters::{Counters, Snapshot};
pub use deleg::{Delegation, DelegationState, Hold, WantDelegation};
pub use dir::{DirStream, entry_error};
pub use error::{Error, Lost, Result};
pub use file::File;
pub use fs::{Fs, Node, STAT};
pub use inter::RemoteSource;
pub use lock::is_locked;
pub use open::{Create, OpenOptions, PutOptions};
pub use path::Place;
pub use stream::{Pipeline, ReadStream, WriteStream};
pub use url::{DEFAULT_PORT, NfsUrl, UrlError};

pub use dhow_proto::v4;
