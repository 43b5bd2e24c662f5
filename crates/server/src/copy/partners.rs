//! The other servers of inter-server copies (RFC 7862 4.6 to 4.10): settings, connections to sources, who may read.
//!
//! Connections are kept in [`dhow_state::sources`], by address and port, and shared by everything that reads from that
//! server. Connecting is a task of its own: a COPY that gives up waiting does not give up the attempt, so the next one
//! finds it further on. Nothing is sent to an address before [`super::netloc::allowed`] has said yes to it.

use super::addresses::{Interfaces, Known};
use super::netloc;
use super::pull::MOST_PIECE;
use super::rate::Throttle;
use super::source::{SourceConnection, SourceConnector};
use crate::metrics::{InterMetrics, count};
use crate::netmatch::NetMatch;
use crate::shared::ServerShared;
use dhow_proto::v4::{NetLoc, Status};
use dhow_state::sources::{Acquired, ConnectTicket, Source, SourceCounts, SourceError, Sources};
use dhow_vfs::Cx;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

/// What happens to a READ under a copy-notify stateid from another address than the named one
/// (`copy.check_destination`, RFC 7862 4.9.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CheckDestination {
    /// Nothing: servers with several addresses may use any.
    Off,
    /// It is counted and logged.
    #[default]
    Warn,
    /// It is refused; so is COPY_NOTIFY for a destination whose address cannot be told.
    Enforce,
}

/// Settings of inter-server copies.
#[derive(Clone, Debug)]
pub struct InterConfig {
    /// Whether they are offered at all (`copy.inter_server`).
    pub enabled: bool,
    /// Servers that may be read from. Empty: none.
    pub sources: Vec<NetMatch>,
    /// Servers that clients may name as destinations. Empty: none.
    pub destinations: Vec<NetMatch>,
    /// Addresses under which destinations reach this server, the best first. Empty: as `copy::addresses` says.
    pub addresses: Vec<SocketAddr>,
    /// Tells the addresses of the interfaces, for listeners of all addresses; `None`: only what clients use is named.
    pub interfaces: Option<Interfaces>,
    /// Whether who reads is who was named.
    pub check_destination: CheckDestination,
    /// How long a connection to a source stays after its last use.
    pub source_idle: Duration,
    /// How long a COPY waits for a connection that somebody else makes.
    pub source_wait: Duration,
    /// How long connecting may take.
    pub source_connect: Duration,
    /// How long one call to a source may take, its reconnection included, before the source counts as lost: what the
    /// connector is to be made with.
    pub source_timeout: Duration,
    /// Sources connected at once.
    pub max_sources: usize,
    /// Bytes per second of one copy; 0: no limit.
    pub bandwidth: u64,
    /// Bytes per second of all copies; 0: no limit.
    pub bandwidth_total: u64,
    /// Bytes in memory, of all copies.
    pub buffer: usize,
    /// Makes the connections. Without it the server can be a source only.
    pub connector: Option<Arc<dyn SourceConnector>>,
}

impl Default for InterConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            sources: Vec::new(),
            destinations: Vec::new(),
            addresses: Vec::new(),
            interfaces: None,
            check_destination: CheckDestination::default(),
            source_idle: Duration::from_secs(900),
            source_wait: Duration::from_secs(20),
            source_connect: Duration::from_secs(10),
            source_timeout: Duration::from_secs(60),
            max_sources: 64,
            bandwidth: 0,
            bandwidth_total: 0,
            buffer: 256 << 20,
            connector: None,
        }
    }
}

/// In whose name a copy-notify stateid is used, and by whom.
#[derive(Debug)]
pub struct Behalf {
    /// The user who sent COPY_NOTIFY, as the export maps it.
    pub user: Arc<Cx>,
    /// The destination that was named, if its address can be told.
    pub destination: Option<IpAddr>,
}

impl Behalf {
    /// Whether `peer` may use the stateid.
    ///
    /// # Errors
    /// PARTNER_NO_AUTH.
    pub(crate) fn check(&self, shared: &ServerShared, peer: Option<SocketAddr>) -> Result<(), Status> {
        let copy = shared.copy();
        let inter = &copy.inter;
        let Some(peer) = peer.map(|p| p.ip().to_canonical()) else { return Ok(()) };
        let fits = match self.destination {
            Some(named) => named == peer,
            // Named by a name: at least it must be one of those allowed.
            None if !netloc::allowed(&inter.destinations, peer) => return Err(Status::PARTNER_NO_AUTH),
            None => true,
        };
        if fits || inter.check_destination == CheckDestination::Off {
            return Ok(());
        }
        // A copy is many reads: one line is enough for a while.
        if shared.metrics.inter.destination_mismatches.fetch_add(1, Relaxed).is_multiple_of(1024) {
            tracing::warn!(%peer, named = ?self.destination, "a copy reads from another address than was named");
        }
        match inter.check_destination {
            CheckDestination::Enforce => Err(Status::PARTNER_NO_AUTH),
            _ => Ok(()),
        }
    }
}

type Connection = Arc<dyn SourceConnection>;

/// A connection to a source, in use.
pub(crate) type InUse = Source<SocketAddr, Connection>;

/// Bytes that one permit of the buffer stands for.
const UNIT: u32 = 64 << 10;

/// Addresses of one COPY that are tried.
const MOST_TRIES: usize = 4;

/// What all inter-server copies share.
#[derive(Debug)]
pub(crate) struct Partners {
    sources: Sources<SocketAddr, Connection>,
    buffer: Arc<Semaphore>,
    units: u32,
    /// A part of the memory in which a copy may have the piece that it waits for, so that sources which are slow to
    /// answer, or silent, do not stop the copies from others.
    reserve: Arc<Semaphore>,
    reserved: u32,
    /// The bandwidth of all copies.
    pub total: Throttle,
    /// Addresses of this machine.
    pub interfaces: Known,
}

impl Partners {
    pub fn new(config: &InterConfig) -> Self {
        let all = (config.buffer / UNIT as usize).clamp(1, 1 << 24);
        let reserved = Some(all / 4).filter(|n| *n >= MOST_PIECE.div_ceil(UNIT) as usize).unwrap_or(0);
        let units = all - reserved;
        Self {
            reserve: Arc::new(Semaphore::new(reserved)),
            reserved: u32::try_from(reserved).unwrap_or(u32::MAX),
            sources: Sources::new(config.source_idle, config.max_sources),
            buffer: Arc::new(Semaphore::new(units)),
            units: u32::try_from(units).unwrap_or(u32::MAX),
            total: Throttle::new(config.bandwidth_total),
            interfaces: Known::default(),
        }
    }

    /// Memory for `bytes`, waited for. `first` ends when this is the piece that its copy waits for.
    pub async fn room(&self, bytes: u32, first: impl Future<Output = ()>) -> Option<OwnedSemaphorePermit> {
        let units = bytes.div_ceil(UNIT);
        let reserve = async {
            if self.reserved == 0 {
                std::future::pending::<()>().await;
            }
            first.await;
            Arc::clone(&self.reserve).acquire_many_owned(units.min(self.reserved)).await
        };
        tokio::select! {
            biased;
            room = Arc::clone(&self.buffer).acquire_many_owned(units.min(self.units)) => room.ok(),
            room = reserve => room.ok(),
        }
    }

    pub fn counts(&self) -> SourceCounts {
        self.sources.counts()
    }

    /// Closes connections that were unused for long.
    pub fn tick(&self, now: dhow_state::Time) {
        for idle in self.sources.tick(now) {
            tracing::debug!(?idle, "connection to a source was idle for long");
            tokio::spawn(async move { idle.close().await });
        }
    }

    /// Hands out nothing any more, and closes what is not in use.
    pub async fn shut(&self) {
        let close = self.sources.shut().into_iter().map(|c| async move { c.close().await });
        futures_util::future::join_all(close).await;
    }

    /// Waits for the last use.
    pub async fn drained(&self) {
        self.sources.drained().await;
    }
}

/// A connection to the first of these places that is allowed and can be reached.
///
/// # Errors
/// OFFLOAD_DENIED: there is none. DELAY: it takes long, or too many sources are connected.
pub(crate) async fn reach(shared: &Arc<ServerShared>, places: &[NetLoc]) -> Result<(InUse, SocketAddr), Status> {
    let copy = shared.copy();
    let inter = &copy.inter;
    let connector = inter.connector.as_ref().ok_or(Status::NOTSUPP)?;
    let deadline = Instant::now() + inter.source_wait;
    let mut tries = 0;
    for addr in places.iter().filter_map(netloc::from_netloc) {
        if !netloc::allowed(&inter.sources, addr.ip()) {
            count(&shared.metrics.inter.source_refusals);
            tracing::info!(%addr, "a copy wants a source that copy.sources does not allow");
            continue;
        }
        if tries == MOST_TRIES {
            break;
        }
        tries += 1;
        match one(shared, connector, addr, deadline).await {
            Ok(source) => return Ok((source, addr)),
            Err(Status::DELAY) => return Err(Status::DELAY),
            Err(_) => {}
        }
    }
    Err(Status::OFFLOAD_DENIED)
}

async fn one(
    shared: &Arc<ServerShared>,
    connector: &Arc<dyn SourceConnector>,
    addr: SocketAddr,
    deadline: Instant,
) -> Result<InUse, Status> {
    for _ in 0..3 {
        let acquired = shared.partners.sources.acquire(&addr).map_err(|e| {
            if matches!(e, SourceError::Full) {
                count(&shared.metrics.inter.source_limit_hits);
            }
            answer(&e)
        })?;
        let source = match acquired {
            Acquired::Ready(source) => source,
            Acquired::Wait(waiting) => match tokio::time::timeout_at(deadline, waiting.outcome()).await {
                Ok(outcome) => outcome.map_err(|e| answer(&e))?,
                Err(_) => return Err(Status::DELAY),
            },
            Acquired::Connect(mut ticket) => {
                if let Some(unused) = ticket.take_evicted() {
                    tracing::debug!(?unused, "the connection to a source makes room for another");
                    tokio::spawn(async move { unused.close().await });
                }
                let (tx, rx) = oneshot::channel();
                tokio::spawn(connect(Arc::clone(shared), Arc::clone(connector), addr, ticket, tx));
                match tokio::time::timeout_at(deadline, rx).await {
                    Ok(Ok(source)) => source,
                    Ok(Err(_)) => return Err(Status::OFFLOAD_DENIED),
                    Err(_) => return Err(Status::DELAY),
                }
            }
        };
        if source.connection().is_alive() {
            return Ok(source);
        }
        source.broken();
    }
    Err(Status::DELAY)
}

fn answer(error: &SourceError) -> Status {
    match error {
        SourceError::Failed(_) => Status::OFFLOAD_DENIED,
        SourceError::Shut | SourceError::Full => Status::DELAY,
    }
}

/// Connects, and tells all who wait. Whoever began it gets the connection through `tx`, or, having gone, leaves it idle.
async fn connect(
    shared: Arc<ServerShared>,
    connector: Arc<dyn SourceConnector>,
    addr: SocketAddr,
    ticket: ConnectTicket<SocketAddr, Connection>,
    tx: oneshot::Sender<InUse>,
) {
    let metrics: &InterMetrics = &shared.metrics.inter;
    let limit = shared.copy().inter.source_connect;
    let outcome = tokio::time::timeout(limit, connector.connect(addr)).await;
    match outcome.unwrap_or_else(|_| Err(format!("no answer in {limit:?}"))) {
        Ok(connection) => {
            count(&metrics.source_connects);
            metrics.source_setup_calls.fetch_add(connection.setup_calls(), Relaxed);
            match ticket.ready(connection) {
                Ok(source) => drop(tx.send(source)),
                Err(unwanted) => unwanted.close().await,
            }
        }
        Err(why) => {
            count(&metrics.source_connect_failures);
            tracing::info!(%addr, %why, "cannot connect to the source of a copy");
            ticket.failed(&why);
        }
    }
}
