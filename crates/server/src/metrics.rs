//! Counters of a server: plain atomics, for an exporter to read.

use dhow_proto::v4::{OpNum, Status};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Operation numbers below this have a slot of their own.
const OPS: usize = 80;

/// Counters of one operation.
#[derive(Debug, Default)]
pub struct OpMetrics {
    /// Executions.
    pub count: AtomicU64,
    /// Executions that failed.
    pub errors: AtomicU64,
    /// Nanoseconds in all.
    pub nanos: AtomicU64,
}

/// Counters of inter-server copies.
#[derive(Debug, Default)]
pub struct InterMetrics {
    /// Copies begun from another server.
    pub copies: AtomicU64,
    /// Bytes read from other servers and written here.
    pub bytes: AtomicU64,
    /// Connections made to sources.
    pub source_connects: AtomicU64,
    /// Attempts that failed.
    pub source_connect_failures: AtomicU64,
    /// Calls that setting those connections' sessions up took.
    pub source_setup_calls: AtomicU64,
    /// Sources that are not allowed.
    pub source_refusals: AtomicU64,
    /// Copies put off because as many sources were connected as may be.
    pub source_limit_hits: AtomicU64,
    /// Copies refused because too many run: those that `copy.max_total` counts and that were between servers.
    pub copy_limit_hits: AtomicU64,
    /// COPY_NOTIFYs for destinations that are not allowed.
    pub destination_refusals: AtomicU64,
    /// Reads from another address than the destination that was named.
    pub destination_mismatches: AtomicU64,
}

/// Counters of delegations and of other callbacks.
#[derive(Debug, Default)]
pub struct DelegMetrics {
    /// Read delegations given.
    pub read_granted: AtomicU64,
    /// Write delegations given.
    pub write_granted: AtomicU64,
    /// Recalls begun (CB_RECALL).
    pub recalls: AtomicU64,
    /// Tries of a recall that came to nothing.
    pub recalls_failed: AtomicU64,
    /// Delegations returned (DELEGRETURN).
    pub returned: AtomicU64,
    /// Delegations revoked because they were not returned in time.
    pub revoked: AtomicU64,
    /// Local programs that wanted to write to a delegated file.
    pub local_writers: AtomicU64,
    /// Holders of write delegations asked for attributes (CB_GETATTR).
    pub cb_getattrs: AtomicU64,
    /// Clients asked to give delegations up (CB_RECALL_ANY).
    pub recall_any: AtomicU64,
    /// Clients asked to use fewer slots (CB_RECALL_SLOT).
    pub recall_slot: AtomicU64,
    /// Clients told of a lock that may be had (CB_NOTIFY_LOCK).
    pub notify_lock: AtomicU64,
}

/// Counters of a server. Each only grows, but for `calls_running` and `connections`.
#[derive(Debug)]
pub struct ServerMetrics {
    ops: [OpMetrics; OPS],
    /// Calls taken.
    pub calls: AtomicU64,
    /// Calls that run now.
    pub calls_running: AtomicU64,
    /// Connections now.
    pub connections: AtomicU64,
    /// Connections since the start.
    pub connections_total: AtomicU64,
    /// Calls refused at the RPC level: program, version, procedure, credential.
    pub rpc_errors: AtomicU64,
    /// Calls whose arguments did not decode.
    pub garbage: AtomicU64,
    /// Times the limit of calls per connection held reading back.
    pub call_limit_hits: AtomicU64,
    /// Requests with too many operations.
    pub op_limit_hits: AtomicU64,
    /// Replies that did not fit the session's limits.
    pub reply_limit_hits: AtomicU64,
    /// Panics caught.
    pub panics: AtomicU64,
    /// Results whose status the operation table does not allow: faults of this server.
    pub breaches: AtomicU64,
    /// Filehandles that nobody here made.
    pub bad_handles: AtomicU64,
    /// Uses of an export refused by client network or port.
    pub export_refusals: AtomicU64,
    /// Times an update had to wait for another one of the same name, or of a directory as a whole.
    pub name_waits: AtomicU64,
    /// Of those, waits that ended in DELAY: they took too long, or the client was gone.
    pub name_wait_ends: AtomicU64,
    /// Of copies between servers.
    pub inter: InterMetrics,
    /// Of delegations and callbacks.
    pub deleg: DelegMetrics,
}

impl Default for ServerMetrics {
    fn default() -> Self {
        Self {
            ops: std::array::from_fn(|_| OpMetrics::default()),
            calls: AtomicU64::new(0),
            calls_running: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            connections_total: AtomicU64::new(0),
            rpc_errors: AtomicU64::new(0),
            garbage: AtomicU64::new(0),
            call_limit_hits: AtomicU64::new(0),
            op_limit_hits: AtomicU64::new(0),
            reply_limit_hits: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            breaches: AtomicU64::new(0),
            bad_handles: AtomicU64::new(0),
            export_refusals: AtomicU64::new(0),
            name_waits: AtomicU64::new(0),
            name_wait_ends: AtomicU64::new(0),
            inter: InterMetrics::default(),
            deleg: DelegMetrics::default(),
        }
    }
}

impl ServerMetrics {
    /// Counters of an operation; illegal ones share those of number 0.
    pub fn op(&self, op: OpNum) -> &OpMetrics {
        let [other, ..] = &self.ops;
        self.ops.get(op.0 as usize).unwrap_or(other)
    }

    /// Counts an execution.
    pub(crate) fn record(&self, op: OpNum, status: Status, took: Duration) {
        let m = self.op(op);
        m.count.fetch_add(1, Relaxed);
        if !status.is_ok() {
            m.errors.fetch_add(1, Relaxed);
        }
        m.nanos.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
