//! The machine under the server: a filesystem and records of clients that outlive it, and a power supply that fails
//! ([`Power`]). What was not synced is gone then, and nothing that this life of the server does later has an effect.

use bytes::Bytes;
use dhow_client::{Dialer, ReadHalf, WriteHalf};
use dhow_server::store::{MemoryStore, StableStore};
use dhow_server::{ExportConfig, ExportOptions, Identity, Running, Server, ServerConfig, Squash};
use dhow_testkit::{Dice, Fault, LinkControl, LinkOptions, MemFs, Power, Trace, link};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// From one end of a link to the other.
pub const LATENCY: Duration = Duration::from_millis(20);
pub const LEASE: Duration = Duration::from_secs(90);

/// The records of clients as one life of the server sees them.
struct Records(Arc<MemoryStore>, Arc<Power>);

impl Records {
    fn change<T>(&self, what: &str, change: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let off = || io::Error::other("the power is off");
        if !self.1.step(what, false) {
            return Err(off());
        }
        let done = change();
        // Whoever is told now is told by nobody.
        if self.1.step(what, true) { done } else { Err(off()) }
    }
}

impl StableStore for Records {
    fn clients(&self) -> io::Result<Vec<(bytes::Bytes, bytes::Bytes)>> {
        self.0.clients()
    }

    fn put(&self, records: &[(bytes::Bytes, bytes::Bytes)]) -> io::Result<()> {
        self.change("put", || self.0.put(records))
    }

    fn forget(&self, owners: &[bytes::Bytes]) -> io::Result<()> {
        self.change("forget", || self.0.forget(owners))
    }

    fn value(&self, name: &str, make: &mut dyn FnMut() -> io::Result<Vec<u8>>) -> io::Result<bytes::Bytes> {
        self.change("value", || self.0.value(name, make))
    }

    fn count_start(&self) -> io::Result<u32> {
        self.change("count_start", || self.0.count_start())
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
    /// What each life of the server has of its own is drawn from it.
    dice: Mutex<Dice>,
    pub trace: Arc<Trace>,
    life: Mutex<Option<Arc<Life>>>,
    /// Clients that are cut off.
    silent: Mutex<Vec<usize>>,
}

impl Machine {
    pub fn new(mut dice: Dice) -> Arc<Self> {
        let mut identity = Identity::ephemeral().unwrap();
        dice.fill(&mut identity.handle_key);
        (identity.major_id, identity.scope) = (Bytes::from_static(b"a machine"), Bytes::from_static(b"a machine"));
        Arc::new(Self {
            fs: MemFs::new(),
            store: Arc::default(),
            identity,
            dice: Mutex::new(dice),
            trace: Trace::new(),
            life: Mutex::default(),
            silent: Mutex::default(),
        })
    }

    /// Boots: the power stays on for so many steps. `None` if it went before the server was up.
    pub async fn boot(&self, steps: u64) -> Option<Arc<Life>> {
        let power = Power::new(self.fs.clone(), steps, self.trace.clone(), || {});
        let watch = power.clone();
        let backend = Fault::watched(self.fs.clone(), Arc::new(move |call, after| watch.step(call, after)));
        let fault = backend.clone();
        let options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
        let mut config = ServerConfig::in_memory(vec![ExportConfig { path: "/".into(), backend, options }]).unwrap();
        config.identity = self.identity.clone();
        {
            let mut dice = self.dice.lock().unwrap();
            config.identity.instance = dice.next() as u32;
            dice.fill(&mut config.identity.secret);
        }
        let boot = tokio::time::Instant::now();
        config.wall = Arc::new(move || std::time::UNIX_EPOCH + Duration::from_secs(1 << 30) + boot.elapsed());
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
        if life.power.is_off() || self.silent.lock().unwrap().contains(&who) {
            return Err(refused());
        }
        let (ours, theirs, control) = link(LinkOptions { latency: LATENCY, ..LinkOptions::default() });
        if !life.power.plug(who, control) {
            return Err(refused());
        }
        life.running.serve_stream(theirs, None);
        let (read, write) = tokio::io::split(ours);
        Ok((Box::new(read), Box::new(write)))
    }

    fn links_of(&self, who: usize) -> Vec<LinkControl> {
        let life = self.life.lock().unwrap().clone();
        life.map_or_else(Vec::new, |life| life.power.links_of(who))
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
