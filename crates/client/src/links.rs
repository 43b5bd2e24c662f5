//! Connections: made, bound to the session, and made again when they break.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use dhow_net::{ConnectOptions, Connection};
use dhow_proto::v4::ops::{BindConnToSessionArgs, ChannelDirFromClient};
use dhow_proto::v4::{ArgOp, OpNum, ResOp, Status};
use dhow_session::Epoch;
use dhow_session::backoff::{Backoff, Policy};
use tokio::net::TcpStream;

use crate::callback::Callbacks;
use crate::counters::add;
use crate::inner::{Inner, Live, Session};
use crate::{ClientConfig, Error, Result, rpc};

/// Connects to the first address that answers.
pub(crate) async fn dial(config: &ClientConfig) -> Result<TcpStream> {
    let options = ConnectOptions { timeout: config.connect_timeout, reserved_port: config.reserved_port };
    let mut last = std::io::Error::new(std::io::ErrorKind::NotFound, "the host name has no address");
    for addr in &config.addrs {
        match dhow_net::connect(*addr, &options).await {
            Ok(stream) => return Ok(stream),
            Err(e) => last = e,
        }
    }
    Err(Error::Io { server: config.server.as_str().into(), cause: last.into() })
}

/// Puts a stream to use: its reader runs in a task of its own. Not bound to any session yet.
pub(crate) fn start(inner: &Arc<Inner>, stream: TcpStream) -> Connection {
    let peer = stream.peer_addr().ok();
    let (read, write) = stream.into_split();
    let (conn, driver) = Connection::new(read, write, peer, &inner.conn_options, Arc::clone(&inner.net));
    let callbacks = Callbacks::new(Arc::downgrade(inner));
    tokio::spawn(async move {
        let why = driver.run(&callbacks).await;
        tracing::debug!(%why, "connection ended");
    });
    add(&inner.counters.connects, 1);
    conn
}

/// Keeps link `index` connected for as long as the client lives. `first`: a connection that is there already.
pub(crate) async fn keep(inner: Weak<Inner>, index: usize, first: Option<Connection>) {
    let mut given = first;
    let mut backoff: Option<Backoff> = None;
    loop {
        let Some(strong) = inner.upgrade().filter(|i| !i.is_closed()) else { return };
        let conn = match given.take() {
            Some(conn) => conn,
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
        publish(&strong, index, Some(Live { conn: conn.clone(), bound: Epoch(0) }));
        let was_of_use = tend(&strong, index, &conn).await;
        publish(&strong, index, None);
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

fn publish(inner: &Inner, index: usize, live: Option<Live>) {
    if let Some(link) = inner.links.get(index) {
        *link.lock() = live;
    }
    // Closed meanwhile: nobody else will close it.
    if inner.is_closed()
        && let Some(live) = inner.links.get(index).and_then(|l| l.lock().take())
    {
        live.conn.close(dhow_net::CloseReason::Local("client closed"));
    }
    inner.changed();
}

/// Binds the connection to each new session, until it is closed. Whether it was ever bound to one.
async fn tend(inner: &Arc<Inner>, index: usize, conn: &Connection) -> bool {
    let mut was_bound = false;
    loop {
        let wanted = inner.when(|inner| {
            let live = inner.links.get(index).and_then(|l| l.lock().clone())?;
            let state = inner.state.lock();
            let session = state.session.clone()?;
            was_bound |= live.bound == session.epoch;
            let back = index == 0 && inner.backchannel_wanted.load(Ordering::Relaxed) == 1;
            (live.bound != session.epoch || back).then_some(session)
        });
        let session = tokio::select! {
            _ = conn.closed() => return was_bound,
            session = wanted => session,
        };
        let bound = tokio::select! {
            _ = conn.closed() => return was_bound,
            bound = bind(inner, conn, &session) => bound,
        };
        if index == 0 {
            inner.backchannel_wanted.store(0, Ordering::Relaxed);
        }
        match bound {
            Ok(()) => inner.bound(conn, session.epoch),
            Err(Error::Status { status: Status::BADSESSION | Status::DEADSESSION, .. }) => {
                inner.session_lost(session.epoch);
                // Until the recovery has made another, there is nothing to bind to.
                tokio::select! {
                    _ = conn.closed() => return was_bound,
                    () = inner.when(|i| (i.state.lock().table.epoch() != session.epoch).then_some(())) => {}
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
