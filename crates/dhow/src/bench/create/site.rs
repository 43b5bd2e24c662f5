//! Where the server is and where its clients run: at the two ends of an emulated link, or as they are.

use super::Setting;
use crate::bench::data;
use crate::cli::BenchCreate;
use crate::config::Config;
use crate::exit::{Failure, Outcome, warn};
use crate::export::Export;
use crate::serve::StateDir;
use crate::settings::Settings;
use dhow_client::{Client, ClientConfig, Fs, NfsUrl};
use dhow_copy::NfsEndpoint;
use dhow_link::{Host, Net, Shape, Topology};
use dhow_server::{Running, Squash};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Round trips that are measured where nobody says how long one is.
const PINGS: usize = 5;

/// A client and a server with nothing but time between them.
pub fn network(rtt: Duration) -> Outcome<Net> {
    let hosts = Topology::new().host("client").host("server");
    hosts.link("client", "server", Shape::default().rtt(rtt)).start().map_err(Failure::failed)
}

fn runtime() -> Outcome<Runtime> {
    let threads = std::thread::available_parallelism().map_or(2, usize::from).max(2);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2 * threads)
        .enable_all()
        .build()
        .map_err(|e| Failure::failed(format!("cannot start threads: {e}")))
}

/// A server of the bench's own.
struct Own {
    running: Running,
    /// Held for as long as the server runs.
    _state: StateDir,
    runtime: Runtime,
    files: PathBuf,
}

/// A server, and the way to it.
pub struct Site<'n> {
    own: Option<Own>,
    /// Where clients run; here if nowhere else.
    host: Option<Host<'n>>,
    url: NfsUrl,
    /// Measured, where the server is not ours.
    rtt: Option<Duration>,
}

/// A client with threads of its own at the client's end.
pub struct At<'s> {
    runtime: Runtime,
    host: Option<Host<'s>>,
    pub endpoint: Arc<NfsEndpoint>,
}

impl<'n> Site<'n> {
    /// Starts a server at the far end of `net`, over `dir`.
    pub fn own(args: &BenchCreate, net: &'n Net, dir: &Path) -> Outcome<Self> {
        let files = dir.join("files");
        std::fs::create_dir(&files)?;
        let mut server = Settings::default();
        if let Some(slots) = args.slots {
            server.state.slots_per_session = slots;
            server.state.slots_min = server.state.slots_min.min(slots);
        }
        let host = net.host("server").map_err(Failure::failed)?;
        let export = Export { squash: Squash::None, metadata_sync: args.metadata_sync, ..Export::new("/", &files) };
        let config = Config {
            server,
            listen: vec![SocketAddr::from((host.addr(), 0))],
            exports: vec![export],
            ..Config::default()
        };
        let started = host.run(|| {
            let runtime = runtime()?;
            let (running, state) = runtime.block_on(crate::serve::start(config))?;
            Ok::<_, Failure>((running, state, runtime))
        });
        let (running, state, runtime) = started.map_err(Failure::failed)??;
        let Some(addr) = running.addresses().first().copied() else {
            return Err(Failure::failed("the server listens nowhere"));
        };
        let url = format!("nfs://{addr}/").parse().map_err(Failure::failed)?;
        let client = net.host("client").map_err(Failure::failed)?;
        let own = Own { running, _state: state, runtime, files };
        Ok(Self { own: Some(own), host: Some(client), url, rtt: None })
    }

    /// A server that runs, and a directory of it.
    pub fn running(url: &OsString) -> Outcome<Self> {
        let url = crate::place::parse_url(url)?;
        let mut site = Self { own: None, host: None, url, rtt: None };
        let at = site.client()?;
        let mut pings = Vec::new();
        for _ in 0..PINGS {
            pings.push(at.block_on(at.client().ping())?.map_err(Failure::failed)?);
        }
        at.stop();
        pings.sort();
        site.rtt = pings.get(PINGS / 2).copied();
        Ok(site)
    }

    /// A new client of the server.
    pub fn client(&self) -> Outcome<At<'_>> {
        let start = || {
            let runtime = runtime()?;
            let endpoint = runtime.block_on(NfsEndpoint::connect(&self.url))?;
            Ok::<_, Failure>((runtime, Arc::new(endpoint)))
        };
        let (runtime, endpoint) = match &self.host {
            Some(host) => host.run(start).map_err(Failure::failed)?,
            None => start(),
        }?;
        Ok(At { runtime, host: self.host, endpoint })
    }

    /// The directory in which the bench makes its own.
    pub fn root(&self) -> &[u8] {
        self.url.path()
    }

    /// The round trip.
    pub fn rtt(&self, args: &BenchCreate) -> Duration {
        self.rtt.unwrap_or(args.rtt)
    }

    /// What rows are to say of it.
    pub fn setting(&self, args: &BenchCreate) -> Setting {
        Setting {
            rtt: self.rtt(args),
            metadata_sync: if self.own.is_some() { json!(args.metadata_sync) } else { Value::Null },
            filesystem: self.own.as_ref().map_or("the server's".into(), |own| data::filesystem(&own.files)),
        }
    }

    /// Removes a directory of the bench with all that is in it.
    pub fn clean(&self, at: &At<'_>, dir: &str) {
        if let Some(own) = &self.own {
            if let Err(e) = std::fs::remove_dir_all(own.files.join(dir)) {
                warn(format!("{dir}: {e}"));
            }
            return;
        }
        let path = Path::new(std::ffi::OsStr::new(&*String::from_utf8_lossy(self.root()))).join(dir);
        let never = dhow_copy::Cancel::never();
        let failed = |e: &dhow_copy::Error| warn(e);
        let _ = at.block_on(dhow_copy::remove_tree(&*at.endpoint, &path, &never, &failed));
    }

    /// Ends the server, if it is ours.
    pub fn stop(self) {
        if let Some(own) = self.own {
            own.runtime.block_on(own.running.shutdown());
            own.runtime.shutdown_timeout(Duration::from_secs(5));
        }
    }
}

impl At<'_> {
    /// Runs `work` at the client's end.
    pub fn block_on<T: Send>(&self, work: impl Future<Output = T> + Send) -> Outcome<T> {
        match &self.host {
            Some(host) => host.run(|| self.runtime.block_on(work)).map_err(Failure::failed),
            None => Ok(self.runtime.block_on(work)),
        }
    }

    /// The client library's client.
    pub fn client(&self) -> &Client {
        self.endpoint.client()
    }

    /// The server's tree.
    pub fn fs(&self) -> Fs {
        self.endpoint.fs().clone()
    }

    /// Says goodbye.
    pub fn stop(self) {
        // The server finds out by the lease, if it is not told.
        let _ = self.block_on(self.endpoint.close());
        self.runtime.shutdown_timeout(Duration::from_secs(5));
    }
}

/// A client without an endpoint around it.
pub async fn plain(addr: SocketAddr) -> Outcome<Client> {
    Client::connect(ClientConfig::new(addr.to_string(), vec![addr])).await.map_err(Failure::failed)
}
