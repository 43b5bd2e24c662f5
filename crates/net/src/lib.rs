//! Transport of RPC records over byte streams: listeners, connections, buffers and back-pressure. Knows ONC RPC
//! records and the two kinds of message in them (call and reply), and nothing of NFS.
//!
//! ```text
//! Listener / connect ──► byte stream ──► Connection ─┬─ send(reply)             any task, any order
//!                        (TCP, duplex,               ├─ call(xid, ..) ─► reply  any task
//!                         TLS later)                 └─ Driver::run(handler)    one task: reads, hands calls out
//! ```
//!
//! A connection works both ways at once: each side may call the other (NFS callbacks use the client's connection), so
//! server and client are built on the same [`Connection`].
//!
//! What bounds memory:
//!
//! * A record larger than [`ConnOptions::max_record`] is refused by its header, before anything is allocated.
//! * Every record is charged to a [`Budget`] of the connection and to one of the process *before* it is received; the
//!   [`Charge`] lives in the [`Record`] and is given back when that is dropped.
//! * What waits to be written is bounded by bytes: above [`ConnOptions::write_high`] no more calls are read from that
//!   peer until it has taken enough (case B46).
//! * An idle connection holds no more than a 1 KiB read buffer. A peer that leaves a record half sent is cut off;
//!   soon, if others wait for the bytes that the record holds.

mod budget;
mod conn;
mod listen;
mod metrics;
mod reader;
mod writer;

pub use budget::{Budget, Charge};
pub use conn::{CallError, CallHandler, CloseReason, Connection, Driver, NoCalls, PendingCall, SHARED_BELOW};
pub use listen::{
    ConnLimit, ConnPermit, ConnectOptions, Full, ListenOptions, Listener, connect, is_reserved_port, tune,
};
pub use metrics::NetMetrics;
pub use reader::{PayloadFinder, ReadError, Record, RecordReader};

use dhow_sys::pool::AlignedPool;
use std::sync::Arc;
use std::time::Duration;

/// Alignment of payloads in bytes.
pub const PAGE: usize = 4096;

/// What all connections of a process (or of a server) share.
#[derive(Debug)]
pub struct NetShared {
    /// Page-aligned receive buffers.
    pub pool: AlignedPool,
    /// Bytes of received records that may be held at once, over all connections.
    pub budget: Budget,
    /// The same for records of up to 16 KiB, so that they pass when large ones have taken all there is: an eighth of
    /// [`NetShared::budget`], on top of it.
    pub small_budget: Budget,
    /// Counters.
    pub metrics: NetMetrics,
}

impl NetShared {
    /// With `budget_bytes` for received records and up to `pool_bytes` of unused buffers kept.
    pub fn new(budget_bytes: usize, pool_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            pool: AlignedPool::new(pool_bytes),
            budget: Budget::new(budget_bytes),
            small_budget: Budget::new(budget_bytes / 8),
            metrics: NetMetrics::default(),
        })
    }
}

impl Default for NetShared {
    /// 256 MiB of records, 64 MiB of unused buffers.
    fn default() -> Self {
        Self {
            pool: AlignedPool::new(64 << 20),
            budget: Budget::new(256 << 20),
            small_budget: Budget::new(32 << 20),
            metrics: NetMetrics::default(),
        }
    }
}

/// Limits of one connection.
#[derive(Clone)]
pub struct ConnOptions {
    /// Largest record accepted, in bytes; more closes the connection.
    pub max_record: usize,
    /// Bytes of received records that this connection may hold at once.
    pub budget: usize,
    /// Bytes waiting to be written above which no more calls are read from the peer; reading goes on at half of it.
    pub write_high: usize,
    /// Bytes that may be reserved for large replies at once ([`Connection::reserve`]).
    pub reply_budget: usize,
    /// How long a record may stay incomplete (and one second more for each 16 KiB of it).
    pub partial_timeout: Duration,
    /// Finds the payload of a large record by the first bytes of it, so that the payload can be page-aligned.
    pub payload: Option<PayloadFinder>,
}

impl Default for ConnOptions {
    /// Records of 1 MiB of payload; 16 MiB received, 8 MiB waiting, 16 MiB of replies reserved; 60 s.
    fn default() -> Self {
        Self {
            max_record: (1 << 20) + (64 << 10),
            budget: 16 << 20,
            write_high: 8 << 20,
            reply_budget: 16 << 20,
            partial_timeout: Duration::from_secs(60),
            payload: None,
        }
    }
}

impl std::fmt::Debug for ConnOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnOptions").field("max_record", &self.max_record).field("budget", &self.budget).finish()
    }
}
