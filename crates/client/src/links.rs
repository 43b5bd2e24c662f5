//! Connections: made, bound to the session, and made again when they break.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use dhow_net::{ConnOptions, ConnectOptions, Connection, Driver, NetShared};
use dhow_proto::v4::ops::{BindConnToSessionArgs, ChannelDirFromClient};
use dhow_proto::v4::{ArgOp, OpNum, ResOp, Status};
use dhow_session::Epoch;
use dhow_session::backoff::{Backoff, Policy};
use tokio::net::TcpStream;

use crate::callback::Callbacks;
use crate::counters::add;
use crate::inner::{Home, Inner, Link, Live, Session};
use crate::{ClientConfig, Error, ReadHalf, Result, WriteHalf, rpc};

/// How long a connection whose session is gone waits for the answers to what was sent on it.
const RETIRE: std::time::Duration = std::time::Duration::from_secs(10);

/// How long a server that misses a back channel is not given one again: it may say so for ever.
const BIND_AGAIN: std::time::Duration = std::time::Duration::from_secs(5);

/// A connection that nothing was sent on yet.
pub(crate) enum Dialled {
    Tcp(TcpStream),
    Other(ReadHalf, WriteHalf),
}

impl Dialled {
    /// Puts it to use as a connection of records.
    pub(crate) fn connect(self, options: &ConnOptions, shared: Arc<NetShared>) -> (Connection, Driver) {
        match self {
            Self::Tcp(stream) => {
                let peer = stream.peer_addr().ok();
                let (read, write) = stream.into_split();
                Connection::new(read, write, peer, options, shared)
            }
            Self::Other(read, write) => Connection::new(read, write, None, options, shared),
        }
    }
}

/// Connects to the first address that answers.
pub(crate) async fn dial(config: &ClientConfig) -> Result<Dialled> {
    let unreachable = |cause: std::io::Error| Error::Io { server: config.server.as_str().into(), cause: cause.into() };
    if let Some(dialer) = &config.dialer {
        let dialled = tokio::time::timeout(config.connect_timeout, dialer.dial()).await;
        let (read, write) = dialled.unwrap_or_else(|e| Err(e.into())).map_err(unreachable)?;
        return Ok(Dialled::Other(read, write));
    }
    let options = ConnectOptions { timeout: config.connect_timeout, reserved_port: config.reserved_port };
    let mut last = std::io::Error::new(std::io::ErrorKind::NotFound, "the host name has no address");
    for addr in &config.addrs {
        match dhow_net::connect(*addr, &options).await {
            Ok(stream) => return Ok(Dialled::Tcp(stream)),
            Err(e) => last = e,
        }
    }
    Err(unreachable(last))
}

/// Puts a stream to use: its reader runs in a task of its own. Not bound to any session yet.
pub(crate) fn start(inner: &Arc<Inner>, stream: Dialled) -> Connection {
    let (conn, driver) = stream.connect(&inner.conn_options, Arc::clone(&inner.net));
    let callbacks = Callbacks::new(Arc::downgrade(inner));
    tokio::spawn(async move {
        let why = driver.run(&callbacks).await;
        tracing::debug!(%why, "connection ended");
    });
    add(&inner.counters.connects, 1);
    conn
}

/// Keeps a link connected for as long as the client, or the further session it is for, lives. `first`: a connection
/// that is there already.
pub(crate) async fn keep(inner: Weak<Inner>, link: Arc<Link>, first: Option<Connection>) {
    let mut given = first;
    let mut backoff: Option<Backoff> = None;
    loop {
        let Some(strong) = inner.upgrade().filter(|i| !i.is_closed()) else { return };
        if is_superfluous(&strong, &link) {
            strong.remove_link(&link);
            return;
        }
        let mut bound = Epoch(0);
        let conn = match given.take() {
            Some(conn) => {
                // CREATE_SESSION was sent on it (RFC 8881 section 18.36.3).
                if let Home::Further(epoch) = link.home {
                    bound = epoch;
                }
                conn
            }
            None => match dial(&strong.config).await {
                Ok(stream) => start(&strong, stream),
                Err(e) => {
                    let wait = backoff
                        .get_or_insert_with(|| Backoff::new(Policy::RECONNECT, strong.next_seed()))
                        .next_wait()
                        .unwrap_or(Policy::RECONNECT.max);
                    tracing::debug!(server = %strong.config.server, error = %e, ?wait, "cannot connect");
                    drop(strong);
                    tokio::time::sleep(wait).await;
                    continue;
                }
            },
        };
        publish(&strong, &link, Some(Live { conn: conn.clone(), bound }));
        let was_of_use = tend(&strong, &link, &conn).await;
        if is_superfluous(&strong, &link) {
            strong.remove_link(&link);
            retire(&conn).await;
            return;
        }
        publish(&strong, &link, None);
        // A server that accepts and hangs up at once is not to be asked in a tight loop.
        if was_of_use {
            backoff = None;
        } else {
            let b = backoff.get_or_insert_with(|| Backoff::new(Policy::RECONNECT, strong.next_seed()));
            let wait = b.next_wait().unwrap_or(Policy::RECONNECT.max);
            if strong.is_closed() {
                return;
            }
            drop(strong);
            tokio::time::sleep(wait).await;
        }
    }
}

/// The further session that the link is for is gone.
fn is_superfluous(inner: &Inner, link: &Link) -> bool {
    match link.home {
        Home::Primary => false,
        Home::Further(epoch) => inner.state.lock().session_of(epoch).is_none(),
    }
}

/// Closes the connection of a session that is gone, when the requests on it have had their answers.
async fn retire(conn: &Connection) {
    let until = tokio::time::Instant::now() + RETIRE;
    while conn.pending() > 0 && !conn.is_closed() && tokio::time::Instant::now() < until {
        tokio::time::sleep(RETIRE / 100).await;
    }
    conn.close(dhow_net::CloseReason::Local("its session is gone"));
}

fn publish(inner: &Inner, link: &Link, live: Option<Live>) {
    *link.live.lock() = live;
    // Closed meanwhile: nobody else will close it.
    if inner.is_closed()
        && let Some(live) = link.live.lock().take()
    {
        live.conn.close(dhow_net::CloseReason::Local("client closed"));
    }
    inner.changed();
}

/// Binds the connection to each new session, until it is closed. Whether it was ever bound to one.
async fn tend(inner: &Arc<Inner>, link: &Link, conn: &Connection) -> bool {
    let mut was_bound = false;
    loop {
        let wanted = inner.when(|inner| {
            let live = link.live.lock().clone()?;
            let state = inner.state.lock();
            let session = match link.home {
                Home::Primary => state.session.clone()?,
                Home::Further(epoch) => match state.session_of(epoch) {
                    Some(session) => session,
                    None => return Some(None),
                },
            };
            was_bound |= live.bound == session.epoch;
            let back = link.back_wanted.load(Ordering::Relaxed);
            (live.bound != session.epoch || back).then_some(Some(session))
        });
        let session = tokio::select! {
            biased;
            _ = conn.closed() => return was_bound,
            session = wanted => session,
        };
        let Some(session) = session else { return was_bound };
        let bound = tokio::select! {
            biased;
            _ = conn.closed() => return was_bound,
            bound = bind(inner, conn, &session) => bound,
        };
        if link.back_wanted.swap(false, Ordering::Relaxed) {
            *link.back_again.lock() = inner.now() + BIND_AGAIN;
        }
        match bound {
            Ok(()) => inner.bound(conn, session.epoch),
            Err(Error::Status { status: Status::BADSESSION | Status::DEADSESSION, .. }) => {
                inner.session_lost(session.epoch);
                // Until the recovery has made another, there is nothing to bind to.
                tokio::select! {
                    biased;
                    _ = conn.closed() => return was_bound,
                    () = inner.when(|i| (!i.state.lock().pool.contains(session.epoch)).then_some(())) => {}
                }
            }
            // The connection went down with it.
            Err(Error::Io { .. }) => {
                conn.closed().await;
                return was_bound;
            }
            Err(e) => {
                // The first SEQUENCE associates a connection by itself where no state protection asks for more (RFC
                // 8881 section 2.10.3.1); only callbacks need the operation.
                tracing::debug!(error = %e, "BIND_CONN_TO_SESSION failed; relying on SEQUENCE");
                inner.bound(conn, session.epoch);
            }
        }
    }
}

async fn bind(inner: &Inner, conn: &Connection, session: &Session) -> Result<()> {
    let op = ArgOp::BindConnToSession(BindConnToSessionArgs {
        session_id: session.id,
        dir: ChannelDirFromClient::FORE_OR_BOTH,
        use_rdma: false,
    });
    inner.counters.call([op.op()].into_iter());
    let res = rpc::alone(conn, inner.next_xid(), &inner.config.credential, session.minor, op).await?;
    match res {
        ResOp::BindConnToSession(Ok(_)) => Ok(()),
        res => Err(Error::status(OpNum::BIND_CONN_TO_SESSION, res.status())),
    }
}
