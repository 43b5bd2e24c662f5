//! Servers that come one after the other over the same files and the same durable records.

use bytes::Bytes;
use dhow_proto::v4::ops::{OpenClaim, OpenHow, share};
use dhow_proto::v4::{ArgOp, DelegationType, FileHandle, LockType, ResOp, StateOwner, Stateid, Status};
use dhow_server::store::{MemoryStore, StableStore};
use dhow_server::{Delegations, ExportConfig, ExportOptions, Identity, Running, Server, ServerConfig, Squash};
use dhow_testkit::MemFs;
use dhow_testkit::wire::{Client, ClientOptions, Open, Wire, op};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What outlives a server.
pub struct Place {
    pub fs: Arc<MemFs>,
    pub store: Arc<dyn StableStore>,
    pub identity: Identity,
    pub lease: Duration,
    pub grace: Duration,
    pub delegations: Delegations,
}

impl Place {
    pub fn new() -> Self {
        Self {
            fs: MemFs::new(),
            store: Arc::new(MemoryStore::default()),
            identity: Identity::ephemeral().unwrap(),
            lease: Duration::from_secs(90),
            grace: Duration::from_secs(90),
            delegations: Delegations::Off,
        }
    }

    /// The next instance.
    pub async fn start(&self) -> Running {
        self.start_at(vec![([127, 0, 0, 1], 0).into()]).await
    }

    /// The next instance, without a listener: for connections in the same process, and paused time.
    pub async fn start_unbound(&self) -> Running {
        self.start_at(Vec::new()).await
    }

    async fn start_at(&self, listen: Vec<std::net::SocketAddr>) -> Running {
        let options = ExportOptions { squash: Squash::None, delegations: self.delegations, ..ExportOptions::default() };
        let export = ExportConfig { path: "/".into(), backend: self.fs.clone(), options };
        let mut config = ServerConfig::in_memory(vec![export]).unwrap();
        let fresh = Identity::ephemeral().unwrap();
        config.listen = listen;
        config.identity = Identity { instance: fresh.instance, secret: fresh.secret, ..self.identity.clone() };
        config.store = self.store.clone();
        config.state.lease = self.lease;
        config.state.grace = self.grace;
        Server::start(config).await.unwrap()
    }

    pub fn recorded(&self) -> Vec<Bytes> {
        self.store.clients().unwrap().into_iter().map(|(owner, _)| owner).collect()
    }
}

pub async fn client(server: &Running, name: &str) -> Client {
    Client::connect(server.addresses()[0], ClientOptions::named(name)).await
}

/// A client that has something to reclaim.
pub async fn returning(server: &Running, name: &str) -> Client {
    let options = ClientOptions { reclaim_complete: false, ..ClientOptions::named(name) };
    Client::over(Wire::connect(server.addresses()[0]).await.unwrap(), options).await
}

pub fn reclaim(owner: StateOwner, access: u32, deny: u32) -> ArgOp {
    op::open(owner, access, deny, OpenHow::NoCreate, OpenClaim::Previous(DelegationType::NONE))
}

pub fn open_fh(owner: StateOwner, access: u32, deny: u32) -> ArgOp {
    op::open(owner, access, deny, OpenHow::NoCreate, OpenClaim::Fh)
}

/// Opens by handle; the stateid or the status.
pub async fn open(c: &mut Client, fh: &FileHandle, what: ArgOp) -> Result<Stateid, Status> {
    let res = c.run(&[op::put(fh), what]).await;
    match res.results.into_iter().next_back() {
        Some(ResOp::Open(open)) => open.map(|ok| ok.stateid),
        other => panic!("{other:?}"),
    }
}

/// Locks the whole file for writing.
pub async fn lock(c: &mut Client, open: &Open, reclaim: bool) -> Status {
    let mut lock = op::lock_new(open.stateid, c.owner("locker"), LockType::WRITE, 0, u64::MAX);
    if let ArgOp::Lock(args) = &mut lock {
        args.reclaim = reclaim;
    }
    c.status(&[op::put(&open.fh), lock]).await
}

/// Tries until `f` says something else than DELAY or GRACE; only against hangs is there a bound.
pub async fn patiently<F>(mut f: F) -> Status
where
    F: AsyncFnMut() -> Status,
{
    let begun = Instant::now();
    loop {
        match f().await {
            Status::DELAY | Status::GRACE if begun.elapsed() < Duration::from_secs(60) => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            other => return other,
        }
    }
}

pub const RW: u32 = share::ACCESS_BOTH;
