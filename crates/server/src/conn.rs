//! One connection: from records to tasks.
//!
//! Each call has a task of its own, tied to nothing, so that requests of a connection run side by side. A call that
//! came in a large record, which is most often a WRITE, is begun on the reader's own task: its data was received a
//! moment ago and lies in this processor's cache, and a write to memory that follows at once costs far less than one
//! that another thread makes (docs/performance.md). As soon as such a call would wait for anything it gets its task,
//! and the reader goes on: a backend that would make a thread wait does so in the blocking pool, never here.

use crate::dispatch;
use crate::metrics::count;
use crate::shared::{Run, ServerShared};
use dhow_net::{CallHandler, Connection, Record, SHARED_BELOW};
use futures_util::FutureExt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of large records that one reader deals with before others get their turn.
const TURN: usize = 4 << 20;

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
    /// Bytes of the large records that were begun here since the reader last gave up its thread.
    begun: AtomicUsize,
}

impl Calls {
    pub(crate) fn new(server: Arc<ServerShared>, conn: Arc<ConnCx>) -> Self {
        Self { server, conn, begun: AtomicUsize::new(0) }
    }
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
        let size = record.bytes.len();
        if size > SHARED_BELOW {
            let mut call = Box::pin(dispatch::handle(server, conn, record, held));
            // Asked once. What it waits for learns of the new task when that asks again, for the first time.
            if (&mut call).now_or_never().is_none() {
                tokio::spawn(call);
            }
            // One who sends without a pause must not keep this thread from everybody else.
            if self.begun.fetch_add(size, Ordering::Relaxed) + size >= TURN {
                self.begun.store(0, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
            return;
        }
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
