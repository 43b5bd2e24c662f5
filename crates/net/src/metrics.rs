//! Counters of the transport.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of the transport. Each only grows; reading them is not a consistent snapshot.
#[derive(Debug, Default)]
pub struct NetMetrics {
    /// Records received.
    pub records_in: AtomicU64,
    /// Bytes of records received.
    pub bytes_in: AtomicU64,
    /// Records sent.
    pub records_out: AtomicU64,
    /// Bytes of records handed to the transport.
    pub bytes_out: AtomicU64,
    /// System calls (or their like) that wrote.
    pub writes: AtomicU64,
    /// Large records whose payload was found and page-aligned.
    pub aligned: AtomicU64,
    /// Records of more than one fragment.
    pub fragmented: AtomicU64,
    /// Connections closed because a record was too large or malformed.
    pub bad_records: AtomicU64,
    /// Connections closed because a record stayed incomplete.
    pub partial_timeouts: AtomicU64,
    /// Times a record had to wait for budget.
    pub budget_waits: AtomicU64,
    /// Times that reading stopped, or a large reply was not begun, because the peer did not take its replies.
    pub write_stalls: AtomicU64,
    /// Replies nobody waited for.
    pub late_replies: AtomicU64,
    /// Connections refused by the limit of all.
    pub refused: AtomicU64,
    /// Connections refused by the limit of one peer's.
    pub refused_peer: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}
