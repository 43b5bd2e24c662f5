//! The machine under the server: a filesystem and records of clients that outlive it, and a power supply that fails at a
//! step of its work. What was not synced is gone then, and nothing that this life of the server does later has an effect.

use dhow_client::{Dialer, ReadHalf, WriteHalf};
use dhow_server::store::{MemoryStore, StableStore};
use dhow_server::{ExportConfig, ExportOptions, Identity, Running, Server, ServerConfig, Squash};
use dhow_testkit::{Fault, LinkControl, LinkOptions, MemFs, link};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;

/// From one end of a link to the other.
pub const LATENCY: Duration = Duration::from_millis(20);
pub const LEASE: Duration = Duration::from_secs(90);

struct Supply {
    off: bool,
    /// Steps until the power goes.
    left: u64,
    /// By client.
    links: Vec<(usize, LinkControl)>,
}

/// The power of one life of the server.
pub struct Power {
    fs: Arc<MemFs>,
    supply: Mutex<Supply>,
    gone: Notify,
}

impl Power {
    pub fn is_off(&self) -> bool {
        self.supply.lock().unwrap().off
    }

    fn step(&self, after: bool) -> bool {
        let mut supply = self.supply.lock().unwrap();
        if supply.off {
            return false;
        }
        supply.left -= 1;
        if supply.left == 0 {
            self.go(&mut supply);
        }
        after || !supply.off
    }

    fn go(&self, supply: &mut Supply) {
        supply.off = true;
        self.fs.crash();
        supply.links.iter().for_each(|(_, l)| l.reset());
        self.gone.notify_waiters();
    }

    pub fn cut(&self) {
        let mut supply = self.supply.lock().unwrap();
        if !supply.off {
            self.go(&mut supply);
        }
    }

    pub async fn off(&self) {
        loop {
            let gone = self.gone.notified();
            tokio::pin!(gone);
            gone.as_mut().enable();
            if self.is_off() {
                return;
            }
            gone.await;
        }
    }
}

/// The records of clients as one life of the server sees them.
struct Records(Arc<MemoryStore>, Arc<Power>);

impl Records {
    fn change<T>(&self, change: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let off = || io::Error::other("the power is off");
        if !self.1.step(false) {
            return Err(off());
        }
        let done = change();
        // Whoever is told now is told by nobody.
        if self.1.step(true) { done } else { Err(off()) }
    }
}

impl StableStore for Records {
    fn clients(&self) -> io::Result<Vec<(bytes::Bytes, bytes::Bytes)>> {
        self.0.clients()
    }

    fn put(&self, records: &[(bytes::Bytes, bytes::Bytes)]) -> io::Result<()> {
        self.change(|| self.0.put(records))
    }

    fn forget(&self, owners: &[bytes::Bytes]) -> io::Result<()> {
        self.change(|| self.0.forget(owners))
    }

    fn value(&self, name: &str, make: &mut dyn FnMut() -> io::Result<Vec<u8>>) -> io::Result<bytes::Bytes> {
        self.change(|| self.0.value(name, make))
    }

    fn count_start(&self) -> io::Result<u32> {
        self.change(|| self.0.count_start())
    }

    fn may_block(&self) -> bool {
        false
    }
}

/// A life of the server.
pub struct Life {
    pub running: Running,
    pub power: Arc<Power>,
    fault: Arc<Fault>,
}

/// What outlives the server.
pub struct Machine {
    pub fs: Arc<MemFs>,
    store: Arc<MemoryStore>,
    identity: Identity,
    life: Mutex<Option<Arc<Life>>>,
    /// Clients that are cut off.
    silent: Mutex<Vec<usize>>,
}

impl Machine {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            fs: MemFs::new(),
            store: Arc::default(),
            identity: Identity::ephemeral().unwrap(),
            life: Mutex::default(),
            silent: Mutex::default(),
        })
    }

    /// Boots: the power stays on for so many steps. `None` if it went before the server was up.
    pub async fn boot(&self, steps: u64) -> Option<Arc<Life>> {
        let supply = Supply { off: false, left: steps, links: Vec::new() };
        let power = Arc::new(Power { fs: self.fs.clone(), supply: Mutex::new(supply), gone: Notify::new() });
        let watch = power.clone();
        let backend = Fault::watched(self.fs.clone(), Arc::new(move |_, after| watch.step(after)));
        let fault = backend.clone();
        let options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
        let mut config = ServerConfig::in_memory(vec![ExportConfig { path: "/".into(), backend, options }]).unwrap();
        let fresh = Identity::ephemeral().unwrap();
        config.identity = Identity { instance: fresh.instance, secret: fresh.secret, ..self.identity.clone() };
        config.store = Arc::new(Records(self.store.clone(), power.clone()));
        config.state.lease = LEASE;
        config.state.grace = LEASE;
        let up = tokio::select! {
            biased;
            () = power.off() => return None,
            up = Server::start(config) => up,
        };
        match up {
            Ok(running) if !power.is_off() => {
                let life = Arc::new(Life { running, power, fault });
                *self.life.lock().unwrap() = Some(life.clone());
                Some(life)
            }
            Err(e) if !power.is_off() => panic!("the server does not start after a crash: {e}"),
            _ => None,
        }
    }

    fn connect(&self, who: usize) -> io::Result<(ReadHalf, WriteHalf)> {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let life = self.life.lock().unwrap().clone().ok_or_else(refused)?;
        let mut supply = life.power.supply.lock().unwrap();
        if supply.off || self.silent.lock().unwrap().contains(&who) {
            return Err(refused());
        }
        let (ours, theirs, control) = link(LinkOptions { latency: LATENCY, ..LinkOptions::default() });
        supply.links.push((who, control));
        life.running.serve_stream(theirs, None);
        let (read, write) = tokio::io::split(ours);
        Ok((Box::new(read), Box::new(write)))
    }

    fn links_of(&self, who: usize) -> Vec<LinkControl> {
        let life = self.life.lock().unwrap().clone();
        let of = |l: Arc<Life>| {
            let supply = l.power.supply.lock().unwrap();
            supply.links.iter().filter(|(w, _)| *w == who).map(|(_, c)| c.clone()).collect()
        };
        life.map_or_else(Vec::new, of)
    }

    /// The faults of the filesystem in this life.
    pub fn fault(&self) -> Arc<Fault> {
        self.life.lock().unwrap().as_ref().expect("it runs").fault.clone()
    }

    /// Nothing of this client reaches the server any more.
    pub fn silence(&self, who: usize) {
        self.silent.lock().unwrap().push(who);
        self.links_of(who).iter().for_each(LinkControl::cut);
    }

    /// It does again: also what was under way all the time (`late`), or over new connections only.
    pub fn heal(&self, who: usize, late: bool) {
        self.silent.lock().unwrap().retain(|w| *w != who);
        for link in self.links_of(who) {
            if late { link.heal() } else { link.reset() }
        }
    }
}

/// How one client reaches the server that runs at the time.
pub struct Plug(pub Arc<Machine>, pub usize);

impl std::fmt::Debug for Plug {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Plug({})", self.1)
    }
}

impl Dialer for Plug {
    fn dial(&self) -> BoxFuture<'static, io::Result<(ReadHalf, WriteHalf)>> {
        std::future::ready(self.0.connect(self.1)).boxed()
    }
}
