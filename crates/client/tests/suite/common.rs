//! Servers over files in memory that come one after the other at one address.

use dhow_client::{Client, ClientConfig};
use dhow_server::store::{MemoryStore, StableStore};
use dhow_server::{ExportConfig, ExportOptions, Identity, Running, Server, ServerConfig, Squash};
use dhow_testkit::memfs::{Clock, Options};
use dhow_testkit::port::Reserved;
use dhow_testkit::{Fault, MemFs};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// What outlives a server.
pub struct Place {
    pub fs: Arc<MemFs>,
    pub fault: Arc<Fault>,
    pub store: Arc<dyn StableStore>,
    pub identity: Identity,
    pub lease: Duration,
    pub grace: Duration,
    pub port: Reserved,
}

impl Place {
    pub fn new() -> Self {
        let fs = MemFs::with(Options { clock: Clock::System, ..Options::default() });
        Self {
            fault: Fault::new(fs.clone()),
            fs,
            store: Arc::new(MemoryStore::default()),
            identity: Identity::ephemeral().unwrap(),
            port: Reserved::new(),
            lease: Duration::from_secs(90),
            grace: Duration::from_secs(20),
        }
    }

    /// The next instance, at `addr` (port 0: where all instances are, one after the other).
    pub async fn start_at(&self, addr: SocketAddr, change: impl FnOnce(&mut ServerConfig)) -> Running {
        let options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
        let export = ExportConfig { path: "/".into(), backend: self.fault.clone(), options };
        let mut config = ServerConfig::in_memory(vec![export]).unwrap();
        let fresh = Identity::ephemeral().unwrap();
        config.listen = vec![if addr.port() == 0 { self.port.addr() } else { addr }];
        config.identity = Identity { instance: fresh.instance, secret: fresh.secret, ..self.identity.clone() };
        config.store = self.store.clone();
        config.state.lease = self.lease;
        config.state.grace = self.grace;
        change(&mut config);
        Server::start(config).await.unwrap()
    }

    pub async fn start(&self) -> Running {
        self.start_at(([127, 0, 0, 1], 0).into(), |_| {}).await
    }
}

pub fn config(addr: SocketAddr) -> ClientConfig {
    let mut config = ClientConfig::new(addr.to_string(), vec![addr]);
    // Bounds hangs; nothing depends on it otherwise.
    config.call_timeout = Some(Duration::from_secs(60));
    config.credential = dhow_client::auth_sys(0, 0, []);
    config
}

pub async fn connect(addr: SocketAddr) -> Client {
    Client::connect(config(addr)).await.unwrap()
}

/// A server and a client of it.
pub async fn pair() -> (Place, Running, Client) {
    let place = Place::new();
    let running = place.start().await;
    let client = connect(running.addresses()[0]).await;
    (place, running, client)
}
