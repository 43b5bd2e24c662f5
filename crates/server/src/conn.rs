//! One connection: from records to tasks.

use crate::dispatch;
use crate::metrics::count;
use crate::shared::{Run, ServerShared};
use dhow_net::{CallHandler, Connection, Record};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What the server knows of one connection.
#[derive(Debug)]
pub struct ConnCx {
    /// Its number, never used again.
    pub id: u64,
    /// The connection: callbacks go out here.
    pub conn: Connection,
    /// The peer; `None` on a virtual network.
    pub peer: Option<SocketAddr>,
    /// The address of this server that the peer used; `None` on a virtual network.
    pub local: Option<SocketAddr>,
    /// Transaction number of the next callback.
    xid: AtomicU32,
    calls: Arc<Semaphore>,
    limit: usize,
}

impl ConnCx {
    pub(crate) fn new(conn: Connection, local: Option<SocketAddr>, calls: usize) -> Self {
        let limit = calls.clamp(1, Semaphore::MAX_PERMITS);
        let calls = Arc::new(Semaphore::new(limit));
        Self { id: conn.id(), peer: conn.peer(), local, conn, xid: AtomicU32::new(1), calls, limit }
    }

    /// Calls of this connection that run now.
    pub fn calls_running(&self) -> usize {
        self.limit - self.calls.available_permits()
    }

    /// A transaction number for a callback on this connection.
    pub fn next_xid(&self) -> u32 {
        self.xid.fetch_add(1, Ordering::Relaxed)
    }
}

/// Takes the calls of one connection and starts a task for each.
pub(crate) struct Calls {
    pub server: Arc<ServerShared>,
    pub conn: Arc<ConnCx>,
}

impl CallHandler for Calls {
    async fn call(&self, _conn: &Connection, record: Record) {
        let permit = match Arc::clone(&self.conn.calls).try_acquire_owned() {
            Ok(permit) => Some(permit),
            Err(_) => {
                count(&self.server.metrics.call_limit_hits);
                Arc::clone(&self.conn.calls).acquire_owned().await.ok()
            }
        };
        let held = Held { _permit: permit, _run: self.server.running.start() };
        let (server, conn) = (Arc::clone(&self.server), Arc::clone(&self.conn));
        // A task of its own, tied to nothing: a request that was admitted to a slot runs to its end even if the
        // connection dies, and a slow one delays only itself (case B44).
        tokio::spawn(dispatch::handle(server, conn, record, held));
    }
}

/// What a running call holds of the limits.
pub(crate) struct Held {
    _permit: Option<OwnedSemaphorePermit>,
    _run: Run,
}
