//! The machine under the server: a filesystem, a disk for the durable records, and a power supply that fails.
//!
//! The power ([`Power`]) goes before or after a call of the filesystem, a write or a sync of the disk under the server's
//! store. From that instant on filesystem calls of this life of the server never end, its disk fails, its connections are
//! reset. What was not synced is gone: all of it in the filesystem, any part of it on the disk (writes that were not
//! synced may be kept, dropped or torn).

use dhow_server::store::{FileStore, StableStore, identity};
use dhow_server::{Delegations, ExportConfig, ExportOptions, Running, Server, ServerConfig, Squash};
use dhow_testkit::wire::Wire;
use dhow_testkit::{Dice, Fault, LinkOptions, MemFs, Power, Trace, link};
use parking_lot::Mutex;
use redb::StorageBackend;
use std::io;
use std::sync::Arc;
use std::time::Duration;

pub const LEASE: Duration = Duration::from_secs(90);
pub const GRACE: Duration = Duration::from_secs(90);

/// A sector of the disk: the unit in which an unsynced write may be torn.
const SECTOR: usize = 512;

enum Pending {
    Write(usize, Vec<u8>),
    Len(usize),
}

#[derive(Default)]
struct DiskState {
    synced: Vec<u8>,
    live: Vec<u8>,
    pending: Vec<Pending>,
    /// The file has its name: until then a start makes it anew.
    named: bool,
}

fn apply(image: &mut Vec<u8>, pending: Pending) {
    match pending {
        Pending::Len(len) => image.resize(len, 0),
        Pending::Write(at, data) => {
            if image.len() < at + data.len() {
                image.resize(at + data.len(), 0);
            }
            image[at..at + data.len()].copy_from_slice(&data);
        }
    }
}

/// A file on a disk that may lose power.
#[derive(Default)]
pub struct Disk(Mutex<DiskState>);

impl Disk {
    fn crash(&self, dice: &mut Dice) {
        let mut disk = self.0.lock();
        let disk = &mut *disk;
        for pending in std::mem::take(&mut disk.pending) {
            match pending {
                // A length is metadata: it is there, or it is not.
                Pending::Len(_) if dice.one_in(2) => apply(&mut disk.synced, pending),
                Pending::Len(_) => {}
                Pending::Write(at, data) => {
                    let whole = dice.roll(3);
                    for (n, sector) in data.chunks(SECTOR).enumerate() {
                        if whole == 1 || whole == 2 && dice.one_in(2) {
                            apply(&mut disk.synced, Pending::Write(at + n * SECTOR, sector.to_vec()));
                        }
                    }
                }
            }
        }
        disk.live = disk.synced.clone();
    }
}

/// The disk as one life of the server sees it.
struct Plugged {
    disk: Arc<Disk>,
    power: Arc<Power>,
}

impl std::fmt::Debug for Plugged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Plugged")
    }
}

impl Plugged {
    fn step(&self, what: &str, after: bool) -> Result<(), io::Error> {
        if self.power.step(what, after) { Ok(()) } else { Err(io::Error::other("the power is off")) }
    }
}

impl StorageBackend for Plugged {
    fn len(&self) -> Result<u64, io::Error> {
        Ok(self.disk.0.lock().live.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        if self.power.is_off() {
            return Err(io::Error::other("the power is off"));
        }
        let disk = self.disk.0.lock();
        let at = offset as usize;
        match disk.live.get(at..at + out.len()) {
            Some(data) => out.copy_from_slice(data),
            None => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        self.step("length of the disk", false)?;
        let mut disk = self.disk.0.lock();
        disk.live.resize(len as usize, 0);
        disk.pending.push(Pending::Len(len as usize));
        Ok(())
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        self.step("sync of the disk", false)?;
        {
            let mut disk = self.disk.0.lock();
            let disk = &mut *disk;
            for pending in std::mem::take(&mut disk.pending) {
                apply(&mut disk.synced, pending);
            }
        }
        self.step("sync of the disk", true)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.step("write of the disk", false)?;
        let mut disk = self.disk.0.lock();
        let at = offset as usize;
        if disk.live.len() < at + data.len() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        disk.live[at..at + data.len()].copy_from_slice(data);
        disk.pending.push(Pending::Write(at, data.to_vec()));
        Ok(())
    }
}

/// The server's own store, asked in place, so that virtual time and the order of things do not depend on threads.
struct InPlace(FileStore, Mutex<Dice>);

impl StableStore for InPlace {
    fn clients(&self) -> io::Result<Vec<(bytes::Bytes, bytes::Bytes)>> {
        self.0.clients()
    }

    fn put(&self, records: &[(bytes::Bytes, bytes::Bytes)]) -> io::Result<()> {
        self.0.put(records)
    }

    fn forget(&self, owners: &[bytes::Bytes]) -> io::Result<()> {
        self.0.forget(owners)
    }

    fn value(&self, name: &str, make: &mut dyn FnMut() -> io::Result<Vec<u8>>) -> io::Result<bytes::Bytes> {
        // Random in earnest otherwise, which nobody could repeat.
        self.0.value(name, &mut || {
            let mut value = make()?;
            let hex = |b: &u8| b.is_ascii_hexdigit();
            let text = value.iter().all(hex);
            self.1.lock().fill(&mut value);
            if text {
                value.iter_mut().for_each(|b| *b = b"0123456789abcdef"[usize::from(*b % 16)]);
            }
            Ok(value)
        })
    }

    fn count_start(&self) -> io::Result<u32> {
        self.0.count_start()
    }

    fn may_block(&self) -> bool {
        false
    }
}

/// What outlives the server.
pub struct Machine {
    pub fs: Arc<MemFs>,
    disk: Arc<Disk>,
    pub trace: Arc<Trace>,
}

/// A life of the server.
pub struct Life {
    pub running: Running,
    pub power: Arc<Power>,
    pub began: tokio::time::Instant,
}

impl Machine {
    pub fn new() -> Self {
        Self { fs: MemFs::new(), disk: Arc::default(), trace: Trace::new() }
    }

    /// Boots: the power stays on for so many steps. `None` if it went before the server was up.
    pub async fn boot(&self, steps: u64, dice: &mut Dice) -> Option<Life> {
        let (mut dice, disk, torn) = (dice.fork(), self.disk.clone(), Mutex::new(dice.fork()));
        let power = Power::new(self.fs.clone(), steps, self.trace.clone(), move || disk.crash(&mut torn.lock()));
        let up = self.up(&power, &mut dice).await;
        match up {
            Ok(running) if !power.is_off() => Some(Life { running, power, began: tokio::time::Instant::now() }),
            Err(e) if !power.is_off() => panic!("the server does not start after a crash: {e}"),
            _ => None,
        }
    }

    async fn up(&self, power: &Arc<Power>, dice: &mut Dice) -> Result<Running, Box<dyn std::error::Error>> {
        let (disk, plug) = (self.disk.clone(), power.clone());
        let medium = move || Plugged { disk: disk.clone(), power: plug.clone() };
        // As `FileStore::open` does it by another name for the file.
        if !self.disk.0.lock().named {
            *self.disk.0.lock() = DiskState::default();
            drop(FileStore::over(medium.clone(), "the new records")?);
            let synced = power.step("name of the disk", false);
            self.disk.0.lock().named = synced;
        }
        let store: Arc<dyn StableStore> =
            Arc::new(InPlace(FileStore::over(medium, "the records")?, Mutex::new(dice.fork())));
        let mut identity = identity(&store)?;
        dice.fill(&mut identity.secret);
        let watch = power.clone();
        let backend = Fault::watched(self.fs.clone(), Arc::new(move |call, after| watch.step(call, after)));
        let delegations = Delegations::All;
        let options = ExportOptions { squash: Squash::None, delegations, ..ExportOptions::default() };
        let mut config =
            ServerConfig::in_memory(vec![ExportConfig { path: "/".into(), backend, options }]).expect("randomness");
        config.identity = identity;
        let boot = tokio::time::Instant::now();
        config.wall = Arc::new(move || std::time::UNIX_EPOCH + Duration::from_secs(1 << 30) + boot.elapsed());
        config.store = store;
        config.state.lease = LEASE;
        config.state.grace = GRACE;
        // In every other life a copy is asynchronous if its client lets it be.
        if dice.one_in(2) {
            config.copy.sync_budget = Duration::ZERO;
        }
        Ok(Server::start(config).await?)
    }
}

impl Life {
    /// A connection; it ends with the power.
    pub fn connect(&self) -> Wire {
        let (ours, theirs, control) = link(LinkOptions::default());
        self.power.plug(0, control);
        self.running.serve_stream(theirs, None);
        let mut wire = Wire::new(ours);
        wire.patience = Duration::from_secs(3600);
        wire
    }
}
