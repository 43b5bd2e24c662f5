//! Listening and connecting over TCP.

use crate::NetShared;
use crate::metrics::add;
use parking_lot::Mutex;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// How to listen.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// Connections that may wait to be accepted.
    pub backlog: u32,
    /// An IPv6 listener takes IPv6 only; otherwise `[::]` takes IPv4 too, where the system allows.
    pub v6_only: bool,
}

impl Default for ListenOptions {
    /// A backlog of 1024, IPv6 apart from IPv4.
    fn default() -> Self {
        Self { backlog: 1024, v6_only: true }
    }
}

/// How many connections may be open at once, in all and from one peer. Listeners that share it count together.
#[derive(Debug)]
pub struct ConnLimit {
    open: Mutex<Open>,
}

#[derive(Debug)]
struct Open {
    most: usize,
    most_of_peer: usize,
    all: usize,
    /// By peer; no entry is kept for a peer without any.
    peers: HashMap<IpAddr, usize>,
}

/// A place among the connections; dropping it gives it back.
#[derive(Debug)]
pub struct ConnPermit {
    limit: Arc<ConnLimit>,
    peer: IpAddr,
}

/// Which limit was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// That of all connections.
    All,
    /// That of the connections of one peer.
    Peer,
}

/// What counts as one peer: an IPv4 address (also one that arrives as IPv6), or the /64 of an IPv6 address, for a host
/// may use any address of its network's.
fn peer_of(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
        v4 => v4,
    }
}

impl ConnLimit {
    /// So many connections in all and from one peer.
    pub fn new(all: usize, per_peer: usize) -> Arc<Self> {
        let open = Open { most: all, most_of_peer: per_peer, all: 0, peers: HashMap::new() };
        Arc::new(Self { open: Mutex::new(open) })
    }

    /// Other limits from now on; connections that are open stay.
    pub fn set(&self, all: usize, per_peer: usize) {
        let mut open = self.open.lock();
        open.most = all;
        open.most_of_peer = per_peer;
    }

    /// A place for a connection from `ip`.
    ///
    /// # Errors
    /// The limit that was reached; that of the peer first, so that one who takes too much is told of its own.
    pub fn admit(self: &Arc<Self>, ip: IpAddr) -> Result<ConnPermit, Full> {
        let peer = peer_of(ip);
        let mut open = self.open.lock();
        if open.peers.get(&peer).copied().unwrap_or(0) >= open.most_of_peer {
            return Err(Full::Peer);
        }
        if open.all >= open.most {
            return Err(Full::All);
        }
        open.all += 1;
        *open.peers.entry(peer).or_default() += 1;
        Ok(ConnPermit { limit: Arc::clone(self), peer })
    }
}

impl Drop for ConnPermit {
    fn drop(&mut self) {
        let mut open = self.limit.open.lock();
        open.all -= 1;
        if let Some(n) = open.peers.get_mut(&self.peer) {
            *n -= 1;
            if *n == 0 {
                open.peers.remove(&self.peer);
            }
        }
    }
}

/// A TCP listener with a limit of connections.
#[derive(Debug)]
pub struct Listener {
    inner: TcpListener,
    limit: Arc<ConnLimit>,
    shared: Arc<NetShared>,
}

impl Listener {
    /// Binds `addr` (port 0: any free one, see [`Listener::local_addr`]), with SO_REUSEADDR. Listeners that are to
    /// share a limit of connections get the same `limit`.
    ///
    /// # Errors
    /// What the system says: address in use, not there, not permitted.
    pub fn bind(
        addr: SocketAddr,
        options: &ListenOptions,
        limit: Arc<ConnLimit>,
        shared: Arc<NetShared>,
    ) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if addr.is_ipv6() {
            socket.set_only_v6(options.v6_only)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&addr.into())?;
        socket.listen(i32::try_from(options.backlog).unwrap_or(i32::MAX))?;
        Ok(Self { inner: TcpListener::from_std(socket.into())?, limit, shared })
    }

    /// The address bound, with the port that was chosen.
    ///
    /// # Errors
    /// What the system says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    /// The next connection, tuned ([`tune`]), with a permit to be kept for as long as it lives. At the limit a new
    /// connection is closed at once and counted: a client that retries is better off than one that hangs.
    ///
    /// # Errors
    /// Those that do not concern a single connection; out of descriptors is retried after a pause.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr, ConnPermit)> {
        loop {
            let (stream, peer) = match self.inner.accept().await {
                Ok(got) => got,
                Err(e) if is_transient(&e) => {
                    tracing::warn!(error = %e, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
                Err(e) => return Err(e),
            };
            let permit = match self.limit.admit(peer.ip()) {
                Ok(permit) => permit,
                Err(full) => {
                    let metrics = &self.shared.metrics;
                    add(if full == Full::Peer { &metrics.refused_peer } else { &metrics.refused }, 1);
                    tracing::debug!(%peer, ?full, "connection limit reached");
                    continue;
                }
            };
            if let Err(e) = tune(&stream) {
                tracing::debug!(%peer, error = %e, "cannot set socket options");
            }
            return Ok((stream, peer, permit));
        }
    }
}

/// Errors of accept(2) that pass: the connection was reset while it waited, or descriptors or memory ran out.
fn is_transient(e: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, OutOfMemory};
    // EMFILE, ENFILE and ENOBUFS have no kind of their own; EPERM (a firewall), ENETDOWN, EHOSTDOWN and the like come
    // from the pending connection.
    matches!(e.kind(), ConnectionAborted | ConnectionReset | Interrupted | OutOfMemory)
        || matches!(e.raw_os_error(), Some(1 | 23 | 24 | 64 | 71 | 92 | 95 | 100 | 101 | 105 | 110 | 112 | 113))
}

/// What every NFS connection wants: no delay (requests are small and latency counts), and keepalive, so that a peer
/// that vanished is noticed within about two minutes.
///
/// # Errors
/// What the system says.
pub fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let alive = TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(15));
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&alive.with_retries(4))?;
    // Keepalive does not run while data is unacknowledged: this bounds that case.
    socket.set_tcp_user_timeout(Some(Duration::from_secs(120)))
}

/// Whether a peer uses a reserved port, below 1024 (the `secure` export option: only root of the client's machine can
/// bind one, for what that is worth).
pub fn is_reserved_port(peer: SocketAddr) -> bool {
    peer.port() != 0 && peer.port() < 1024
}

/// How to connect.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Longest wait for the connection.
    pub timeout: Duration,
    /// Bind a reserved port (665 to 1023) for servers that ask for one; falls back to any port without privilege.
    pub reserved_port: bool,
}

impl Default for ConnectOptions {
    /// 10 s, any port.
    fn default() -> Self {
        Self { timeout: Duration::from_secs(10), reserved_port: false }
    }
}

/// Connects over TCP and tunes the socket ([`tune`]).
///
/// # Errors
/// What the system says, or `TimedOut`.
pub async fn connect(addr: SocketAddr, options: &ConnectOptions) -> io::Result<TcpStream> {
    let stream = tokio::time::timeout(options.timeout, async {
        if options.reserved_port
            && let Some(stream) = connect_reserved(addr).await?
        {
            return Ok(stream);
        }
        TcpStream::connect(addr).await
    });
    let stream = stream.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    tune(&stream)?;
    Ok(stream)
}

/// Tries reserved ports from the top; `None` when the system lets us have none.
async fn connect_reserved(addr: SocketAddr) -> io::Result<Option<TcpStream>> {
    let any: IpAddr = if addr.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    for port in (665..1024).rev() {
        let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        match socket.bind(SocketAddr::new(any, port)) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
            Err(_) => continue,
        }
        match socket.connect(addr).await {
            Ok(stream) => return Ok(Some(stream)),
            Err(e) if matches!(e.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_by_peer_and_given_back() {
        let ip = |s: &str| s.parse::<IpAddr>().unwrap();
        let limit = ConnLimit::new(5, 2);
        let one = [limit.admit(ip("192.0.2.1")).unwrap(), limit.admit(ip("::ffff:192.0.2.1")).unwrap()];
        assert_eq!(limit.admit(ip("192.0.2.1")).unwrap_err(), Full::Peer, "the same host by IPv6");
        let six = [limit.admit(ip("2001:db8::1")).unwrap(), limit.admit(ip("2001:db8::2")).unwrap()];
        assert_eq!(limit.admit(ip("2001:db8::3")).unwrap_err(), Full::Peer, "one /64 is one peer");
        let last = limit.admit(ip("2001:db8:0:1::1")).unwrap();
        assert_eq!(limit.admit(ip("198.51.100.1")).unwrap_err(), Full::All);
        // Other limits count for who comes; who is there stays.
        limit.set(6, 2);
        let more = limit.admit(ip("198.51.100.1")).unwrap();
        limit.set(1, 1);
        assert_eq!(limit.admit(ip("198.51.100.2")).unwrap_err(), Full::All);
        drop((one, more));
        limit.set(5, 2);
        let _again = limit.admit(ip("192.0.2.1")).unwrap();
        drop((six, last));
        assert_eq!(limit.open.lock().peers.len(), 1, "nothing is kept of who has gone");
    }
}
