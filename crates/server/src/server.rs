//! Start, run, stop.

use crate::config::ServerConfig;
use crate::conn::{Calls, ConnCx};
use crate::exports::{ExportError, Exports};
use crate::reaper;
use crate::shared::{Choices, ServerShared, StatusHook};
use dhow_net::{CloseReason, ConnOptions, ConnPermit, Connection, ListenOptions, Listener};
use dhow_proto::v4::payload;
use dhow_state::{ConnId, State};
use dhow_vfs::Time;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How long exports are waited for at the start.
pub(crate) const WARM_UP: Duration = Duration::from_secs(2);

/// How long an unused receive buffer is kept.
const BUFFER_IDLE: Duration = Duration::from_secs(60);

/// Bytes of headers around the payload of the largest record accepted.
const HEADERS: usize = 64 << 10;

/// Bytes that a session allows around the largest payload: RPC header, SEQUENCE, handle, and some operations more.
const AROUND_IO: u32 = 4096;

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The exports make no sense together.
    #[error(transparent)]
    Exports(#[from] ExportError),
    /// An address cannot be listened on.
    #[error("cannot listen on {addr}: {source}")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// The durable records cannot be read.
    #[error("cannot read the records of clients: {0}")]
    Store(#[source] io::Error),
}

/// Starts servers.
#[derive(Debug)]
pub struct Server;

impl Server {
    /// Starts a server; it runs until [`Running::shutdown`].
    ///
    /// # Errors
    /// As [`StartError`] says; nothing runs then.
    pub async fn start(config: ServerConfig) -> Result<Running, StartError> {
        Self::start_observed(config, None).await
    }

    /// As [`Server::start`], with a hook that sees the status of every operation. For tests.
    ///
    /// # Errors
    /// As [`StartError`] says; nothing runs then.
    pub async fn start_observed(config: ServerConfig, hook: Option<StatusHook>) -> Result<Running, StartError> {
        let ServerConfig { listen, exports, limits, mut state, copy, ids, identity, store, wall } = config;
        // A session must be able to carry the largest READ and WRITE that the attributes promise.
        let largest = limits.max_io.saturating_add(AROUND_IO);
        state.max_request = state.max_request.max(largest);
        state.max_reply = state.max_reply.max(largest);
        let exports = Exports::new(exports, file_time(wall()))?;
        let id = dhow_state::Identity { instance: identity.instance, secret: identity.secret };
        let previous = reaper::records(&store).await.map_err(StartError::Store)?;
        let state = State::new(state, &id, previous, dhow_state::Time::default());
        let shared =
            Arc::new(ServerShared::new(Choices { limits, copy, ids, wall }, identity, exports, state, store, hook));
        let mut listeners = Vec::with_capacity(listen.len());
        for &addr in &listen {
            // `[::]` takes IPv4 clients too, unless IPv4 has a listener of its own on that port.
            let v6_only = listen.iter().any(|other| other.is_ipv4() && other.port() == addr.port());
            let options = ListenOptions { v6_only, ..ListenOptions::default() };
            let listener = Listener::bind(addr, &options, Arc::clone(&shared.admission), Arc::clone(&shared.net))
                .map_err(|source| StartError::Listen { addr, source })?;
            listeners.push(listener);
        }
        let addresses = listeners
            .iter()
            .map(|l| l.local_addr())
            .collect::<io::Result<Vec<_>>>()
            .map_err(|source| StartError::Listen { addr: SocketAddr::from(([0, 0, 0, 0], 0)), source })?;
        let _ = shared.listening.set(addresses.clone());
        shared.exports().warm(WARM_UP).await;
        let stop = watch::Sender::new(false);
        let mut tasks = JoinSet::new();
        for listener in listeners {
            let (shared, stop) = (Arc::clone(&shared), stop.subscribe());
            tasks.spawn(accept(listener, shared, stop));
        }
        tasks.spawn(reaper::run(Arc::clone(&shared)));
        tasks.spawn(give_back_buffers(Arc::clone(&shared)));
        tasks.spawn(crate::pressure::tell(Arc::clone(&shared)));
        tracing::info!(?addresses, exports = shared.exports().list().len(), "serving");
        Ok(Running { shared, addresses, stop, tasks })
    }
}

/// A server that runs. Dropping it stops the listeners and leaves connections to end by themselves. In a debug build its
/// end is a panic if it ever returned a status that the operation table does not allow, so that no test passes over one.
pub struct Running {
    shared: Arc<ServerShared>,
    addresses: Vec<SocketAddr>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Running {
    /// The addresses listened on, with the ports chosen.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What the parts of the server share: counters, exports, connections.
    pub fn shared(&self) -> &Arc<ServerShared> {
        &self.shared
    }

    /// Serves a stream that did not come over a listener (a virtual network, TLS): returns at once; the connection
    /// is served until it ends.
    pub fn serve_stream<S>(&self, stream: S, peer: Option<SocketAddr>)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (read, write) = tokio::io::split(stream);
        serve(&self.shared, read, write, (peer, None), None);
    }

    /// Takes no more connections and requests, waits (for a bounded time) for those that run, sends their replies and
    /// closes.
    pub async fn shutdown(mut self) {
        self.stop.send_replace(true);
        self.shared.closing.send_replace(true);
        self.tasks.shutdown().await;
        let drain = self.shared.limits().drain;
        // Bounded by the client library; most often there is nothing to close.
        let _ = tokio::time::timeout(drain, self.shared.partners.shut()).await;
        let conns: Vec<Arc<ConnCx>> = self.shared.conns.lock().values().cloned().collect();
        for c in &conns {
            c.conn.stop_reading();
        }
        // Their clients lose them with this instance anyway, and start over from what is durable.
        self.shared.state.cancel_all_copies();
        let drained = tokio::time::timeout(drain, async {
            self.shared.running.idle().await;
            self.shared.partners.drained().await;
            for c in &conns {
                c.conn.flush().await;
            }
        });
        if drained.await.is_err() {
            tracing::warn!(running = self.shared.running.count(), "requests still ran at shutdown");
        }
        for c in &conns {
            c.conn.close(CloseReason::Local("server shut down"));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if cfg!(debug_assertions) && !std::thread::panicking() {
            let breaches = self.shared.metrics.breaches.load(Relaxed);
            assert!(breaches == 0, "{breaches} results had a status that is not in the operation table");
        }
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// Frees receive buffers that nobody has wanted for a while: a quiet server holds none.
async fn give_back_buffers(shared: Arc<ServerShared>) {
    loop {
        tokio::time::sleep(BUFFER_IDLE / 2).await;
        shared.net.pool.trim(BUFFER_IDLE);
    }
}

async fn accept(listener: Listener, shared: Arc<ServerShared>, mut stop: watch::Receiver<bool>) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|s| *s) => return,
        };
        match accepted {
            Ok((stream, peer, permit)) => {
                let local = stream.local_addr().ok();
                let (read, write) = stream.into_split();
                serve(&shared, read, write, (Some(peer), local), Some(permit));
            }
            Err(error) => {
                tracing::error!(%error, "listener failed");
                return;
            }
        }
    }
}

/// Serves one connection, in a task of its own.
fn serve<R, W>(
    shared: &Arc<ServerShared>,
    read: R,
    write: W,
    (peer, local): (Option<SocketAddr>, Option<SocketAddr>),
    permit: Option<ConnPermit>,
) where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let limits = shared.limits();
    let options = ConnOptions {
        max_record: limits.max_io as usize + HEADERS,
        budget: limits.request_bytes_per_connection,
        write_high: limits.reply_bytes_per_connection,
        reply_budget: limits.reply_bytes_per_connection,
        partial_timeout: limits.partial_timeout,
        payload: Some(Arc::new(payload::write_payload_offset)),
    };
    let (conn, driver) = Connection::new(read, write, peer, &options, Arc::clone(&shared.net));
    let cx = Arc::new(ConnCx::new(conn, local, limits.calls_per_connection));
    shared.conns.lock().insert(cx.id, Arc::clone(&cx));
    shared.metrics.connections_total.fetch_add(1, Relaxed);
    shared.metrics.connections.fetch_add(1, Relaxed);
    tracing::debug!(conn = cx.id, ?peer, "connected");
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        let calls = Calls::new(Arc::clone(&shared), Arc::clone(&cx));
        driver.run(&calls).await;
        // After a drain the connection outlives its reader.
        let why = cx.conn.closed().await;
        tracing::debug!(conn = cx.id, %why, "disconnected");
        shared.conns.lock().remove(&cx.id);
        shared.state.conn_closed(ConnId(cx.id));
        shared.metrics.connections.fetch_sub(1, Relaxed);
        drop(permit);
    });
}

/// A time of the clock on the wall as one of a file; of before 1970, that.
pub(crate) fn file_time(wall: SystemTime) -> Time {
    let since = wall.duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { secs: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanos: since.subsec_nanos() }
}
