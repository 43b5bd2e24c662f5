//! Two servers and a client on emulated links.

use crate::cli::BenchInter;
use crate::config::Config;
use crate::exit::{Failure, Outcome};
use crate::export::Export;
use crate::serve::StateDir;
use crate::settings::Settings;
use dhow_client::NfsUrl;
use dhow_copy::{Choice, Costs, Endpoint, FileReport, Known, NfsEndpoint, Options, Progress, Sync};
use dhow_link::{Host, Net, Shape, Topology};
use dhow_server::{Running, Squash};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::runtime::Runtime;

/// What the links are set to, bits per second and round trips.
#[derive(Clone, Copy, Debug)]
pub struct Links {
    /// Of the servers, bits per second.
    pub servers: u64,
    /// Of the client.
    pub client: u64,
    /// Round trip between the servers.
    pub rtt: Duration,
    /// Round trip between the client and each server.
    pub client_rtt: Duration,
}

impl Links {
    /// As the command line says.
    pub fn of(args: &BenchInter) -> Self {
        let client = args.client_link.unwrap_or(args.link);
        Self { servers: args.link, client, rtt: args.rtt, client_rtt: args.client_rtt.unwrap_or(args.rtt) }
    }

    /// Everybody has an access link to one router. Half of a round trip between two hosts is the delay of two links.
    pub fn start(&self, empty: Topology) -> Outcome<Net> {
        let server = self.rtt / 4;
        let client = (self.client_rtt / 2).saturating_sub(server);
        let shape = |rate, delay| Shape::rate(rate).delay(delay);
        let hosts = [
            ("a", shape(self.servers, server)),
            ("b", shape(self.servers, server)),
            ("client", shape(self.client, client)),
        ];
        empty.star("router", hosts).start().map_err(Failure::failed)
    }

    /// Bits per second of the narrower one.
    pub fn narrower(&self) -> u64 {
        self.servers.min(self.client)
    }
}

/// A server in a host of the emulated network, with threads of its own.
pub struct Site {
    /// The server.
    pub running: Running,
    /// Held for as long as the server runs.
    _state: StateDir,
    runtime: Runtime,
    /// Where it listens.
    pub addr: SocketAddr,
}

fn runtime() -> Outcome<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .map_err(|e| Failure::failed(format!("cannot start threads: {e}")))
}

impl Site {
    /// Serves `dir` on `host`.
    pub fn start(host: &Host<'_>, dir: &Path) -> Outcome<Self> {
        let networks = "10.77.0.0/16".parse().map_err(Failure::failed)?;
        let mut server = Settings::default();
        server.copy.inter.enabled = true;
        server.copy.inter.sources = vec![networks];
        server.copy.inter.destinations = vec![networks];
        let config = Config {
            server,
            listen: vec![SocketAddr::from((host.addr(), 0))],
            exports: vec![Export { squash: Squash::None, ..Export::new("/", dir) }],
            ..Config::default()
        };
        host.run(|| {
            let runtime = runtime()?;
            let (running, state) = runtime.block_on(crate::serve::start(config))?;
            let Some(addr) = running.addresses().first().copied() else {
                return Err(Failure::failed("the server listens nowhere"));
            };
            Ok(Self { running, _state: state, runtime, addr })
        })
        .map_err(Failure::failed)?
    }

    /// Calls made to set sessions with sources up.
    pub fn setup_calls(&self) -> u64 {
        self.running.shared().metrics.inter.source_setup_calls.load(Relaxed)
    }

    /// Ends it.
    pub fn stop(self) {
        self.runtime.block_on(self.running.shutdown());
        self.runtime.shutdown_timeout(Duration::from_secs(5));
    }
}

/// The client's host, threads and endpoints.
pub struct Client<'n> {
    host: Host<'n>,
    runtime: Runtime,
    /// The source.
    pub from: Arc<NfsEndpoint>,
    /// The destination.
    pub to: Arc<NfsEndpoint>,
}

impl<'n> Client<'n> {
    /// On the host `name`, connected to both servers.
    pub fn start(net: &'n Net, name: &str, a: SocketAddr, b: SocketAddr) -> Outcome<Self> {
        let host = net.host(name).map_err(Failure::failed)?;
        let runtime = host.run(runtime).map_err(Failure::failed)??;
        let connect = |addr: SocketAddr| -> Outcome<Arc<NfsEndpoint>> {
            let url: NfsUrl = format!("nfs://{addr}/").parse().map_err(Failure::failed)?;
            let connected = host.run(|| runtime.block_on(NfsEndpoint::connect(&url))).map_err(Failure::failed)?;
            Ok(Arc::new(connected?))
        };
        let (from, to) = (connect(a)?, connect(b)?);
        Ok(Self { host, runtime, from, to })
    }

    /// Runs `work` with the threads of this client.
    pub fn run<T: Send>(&self, work: impl Future<Output = T> + Send) -> Outcome<T> {
        self.host.run(|| self.runtime.block_on(work)).map_err(Failure::failed)
    }

    /// Copies `/x` of the source to `/y` of the destination, durably.
    pub fn copy(&self, x: &str, y: &str, method: Choice, costs: Option<Arc<Costs>>) -> Outcome<FileReport> {
        Ok(self.run(copy(self.from.clone(), self.to.clone(), x, y, method, costs))??)
    }

    /// Says goodbye.
    pub fn stop(self) {
        // The server finds out by the lease, if it is not told.
        let _ = self.host.run(|| {
            self.runtime.block_on(async {
                self.from.close().await;
                self.to.close().await;
            });
        });
        self.runtime.shutdown_timeout(Duration::from_secs(5));
    }
}

/// As [`Client::copy`].
pub async fn copy(
    from: Arc<dyn Endpoint>,
    to: Arc<dyn Endpoint>,
    x: &str,
    y: &str,
    method: Choice,
    costs: Option<Arc<Costs>>,
) -> Result<FileReport, dhow_copy::Error> {
    let (x, y) = (Path::new("/").join(x), Path::new("/").join(y));
    let meta = from.stat(&x).await?;
    let known = Known { source: Some(&meta), replaced: None };
    let options = Options { method, sync: Sync::Yes, costs, ..Options::default() };
    dhow_copy::copy_file((&from, &x), (&to, &y), known, &options, &Progress::none()).await
}
