//! Copies inside the server: COPY, CLONE, OFFLOAD_STATUS, OFFLOAD_CANCEL and CB_OFFLOAD (RFC 7862 sections 4, 15.2,
//! 15.8, 15.9, 15.13, 16.1).
//!
//! * [`mover`]: the loop that moves bytes; knows no protocol.
//! * [`job`]: one copy as a task, from its start to its durable end.
//! * `offload`: a job that outlives its COPY: stateid, progress, CB_OFFLOAD.
//!
//! * `pull`: the loop that moves bytes from another server; `partners`: connections to other servers, and what is
//!   allowed; [`source`]: what a client library must offer for that; `netloc`, `rate`: addresses, bandwidth;
//!   `addresses`: where destinations find this server.
//! * `writeback`: both movers have the destination written out while they go on.
//!
//! The operations are in `v4/ops/` like all others. Who owns what: the job's task owns both ends of the copy (open
//! files by the backend's tokens); an asynchronous copy's ticket (`dhow_state::CopyTicket`) belongs to the task in
//! `offload` alone, so the number of running copies is right on every path (case K06). A copy that became
//! asynchronous holds no I/O token, or CLOSE would wait for its end: it goes on under the rights that were checked at
//! its start, as the protocol's copy stateid outlives the open (RFC 7862 4.8).

pub mod addresses;
pub mod job;
pub mod mover;
pub mod netloc;
pub(crate) mod offload;
pub(crate) mod on_file;
pub mod partners;
pub(crate) mod pull;
pub mod rate;
pub mod source;
mod writeback;

pub use job::CommitPolicy;
pub use partners::{CheckDestination, InterConfig};
pub use source::{SourceAttr, SourceConnection, SourceConnector, SourceData, SourceFailure, SourceFile};

use std::time::Duration;

/// Settings of copies.
#[derive(Clone, Debug)]
pub struct CopyConfig {
    /// How long a COPY may take before it becomes asynchronous, or answers with what it has.
    pub sync_budget: Duration,
    /// A source range past the end of the file is INVAL (RFC 7862 15.2.3), not a short copy (what Linux does).
    pub strict_eof: bool,
    /// Whether the end of a copy is made durable.
    pub commit: CommitPolicy,
    /// Copies between servers.
    pub inter: InterConfig,
}

impl Default for CopyConfig {
    fn default() -> Self {
        Self {
            sync_budget: Duration::from_secs(1),
            strict_eof: false,
            commit: CommitPolicy::Auto,
            inter: InterConfig::default(),
        }
    }
}
