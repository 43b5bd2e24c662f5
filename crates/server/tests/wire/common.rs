//! A whole server over a filesystem in memory, on a port of its own.

use dhow_proto::v4::ops::share;
use dhow_proto::v4::{CompoundRes, FileHandle, OpNum, ResOp, Stateid, Status};
use dhow_server::{ExportConfig, ExportOptions, Identity, Running, Server, ServerConfig, Squash};
use dhow_testkit::memfs::{Clock, Options};
use dhow_testkit::wire::{Client, ClientOptions, Open, Wire, op, sys};
use dhow_testkit::{Fault, MemFs};
use dhow_vfs::Backend;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

/// A server, and what it serves at `/`.
pub struct Srv {
    pub running: Watched,
    pub fs: Arc<MemFs>,
    pub fault: Arc<Fault>,
    pub addr: SocketAddr,
}

/// Options of an export that takes every caller for who they say they are.
pub fn open_to_all() -> ExportOptions {
    ExportOptions { squash: Squash::None, ..ExportOptions::default() }
}

pub fn identity() -> Identity {
    Identity::ephemeral().expect("randomness")
}

pub fn config(exports: Vec<ExportConfig>) -> ServerConfig {
    let listen = vec![([127, 0, 0, 1], 0).into()];
    ServerConfig { listen, ..ServerConfig::in_memory(exports).expect("randomness") }
}

/// A server that runs; at its end the test fails if it ever returned a status that the operation table does not allow,
/// also in replies that no test looks at (case B24).
pub struct Watched {
    running: Option<Running>,
    faults: Arc<Mutex<BTreeSet<String>>>,
}

impl Watched {
    pub async fn shutdown(mut self) {
        if let Some(running) = self.running.take() {
            running.shutdown().await;
        }
    }
}

impl Deref for Watched {
    type Target = Running;

    fn deref(&self) -> &Running {
        self.running.as_ref().expect("it runs")
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let faults = self.faults.lock().unwrap();
        if !std::thread::panicking() {
            assert!(faults.is_empty(), "statuses that are not allowed: {faults:?}");
        }
    }
}

/// The guard itself: a status that breaks the table fails the test in which it was sent.
#[test]
#[should_panic(expected = "NOENT")]
fn a_breach_fails_its_test() {
    let breach = dhow_server::breach(2, OpNum::COMMIT, Status::NOENT, Status::NOENT).expect("COMMIT looks no name up");
    drop(Watched { running: None, faults: Arc::new(Mutex::new(BTreeSet::from([breach]))) });
}

/// What counts as one (RFC 8881 15.2, RFC 7862 11): foreign statuses, newer ones, and those that only the table stopped.
#[test]
fn breaches() {
    let breach = dhow_server::breach;
    assert_eq!(breach(2, OpNum::GETATTR, Status::OK, Status::OK), None);
    assert_eq!(breach(2, OpNum::GETATTR, Status::STALE, Status::STALE), None);
    assert!(breach(2, OpNum::GETATTR, Status::EXIST, Status::EXIST).is_some());
    assert!(breach(1, OpNum::GETXATTR, Status::OK, Status::OK).is_some(), "not in that minor version");
    assert!(breach(1, OpNum::READ, Status::OP_ILLEGAL, Status::OP_ILLEGAL).is_some());
    let (meant, sent) = (Status::ROFS, Status::ACCESS);
    assert_eq!(breach(2, OpNum::GETATTR, meant, sent), None, "a filesystem says what it likes");
    assert!(breach(2, OpNum::GETATTR, Status::OLD_STATEID, Status::SERVERFAULT).is_some(), "our own code does not");
}

/// Starts a server on a configuration.
pub async fn start(config: ServerConfig) -> (Watched, SocketAddr) {
    let faults: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let seen = faults.clone();
    let hook = Arc::new(move |minor: u32, op: OpNum, meant: Status, sent: Status| {
        seen.lock().unwrap().extend(dhow_server::breach(minor, op, meant, sent));
    });
    let running = Server::start_observed(config, Some(hook)).await.expect("the server starts");
    let addr = running.addresses()[0];
    (Watched { running: Some(running), faults }, addr)
}

impl Srv {
    /// With the default limits, one export at `/`, nobody squashed.
    pub async fn start() -> Self {
        Self::with(Options::default(), |_| {}).await
    }

    /// With other options of the filesystem, and a configuration to be changed.
    pub async fn with(options: Options, change: impl FnOnce(&mut ServerConfig)) -> Self {
        let fs = MemFs::with(Options { clock: Clock::System, ..options });
        Self::over(fs.clone(), fs, change).await
    }

    /// Over any backend; `fs` is then of no meaning.
    pub async fn over(backend: Arc<dyn Backend>, fs: Arc<MemFs>, change: impl FnOnce(&mut ServerConfig)) -> Self {
        let fault = Fault::new(backend);
        let export = ExportConfig { path: "/".into(), backend: fault.clone(), options: open_to_all() };
        let mut config = config(vec![export]);
        change(&mut config);
        let (running, addr) = start(config).await;
        Self { running, fs, fault, addr }
    }

    /// A connection.
    pub async fn wire(&self) -> Wire {
        Wire::connect(self.addr).await.expect("a connection")
    }

    /// A client of that name, as the superuser.
    pub async fn client(&self, name: &str) -> Client {
        Client::connect(self.addr, ClientOptions::named(name)).await
    }

    /// A client of that name, as another user.
    pub async fn client_as(&self, name: &str, uid: u32, gid: u32, gids: &[u32]) -> Client {
        Client::over(self.wire().await.with_cred(sys(uid, gid, gids)), ClientOptions::named(name)).await
    }
}

/// The status of the last result.
pub fn last(res: &CompoundRes) -> (OpNum, Status) {
    let last = res.results.last().expect("a result");
    (last.op(), last.status())
}

/// READ under the anonymous stateid.
pub async fn read_anon(
    c: &mut Client,
    fh: &FileHandle,
    offset: u64,
    count: u32,
) -> Result<(bytes::Bytes, bool), Status> {
    let res = c.run(&[op::put(fh), op::read(Stateid::ANONYMOUS, offset, count)]).await;
    match res.results.into_iter().next_back() {
        Some(ResOp::Read(read)) => read.map(|ok| (ok.data, ok.eof)),
        other => panic!("{other:?}"),
    }
}

/// Opens a file that is there for reading and writing, as an owner of its own.
pub async fn open_both(c: &mut Client, dir: &FileHandle, name: &str, owner: &str) -> Open {
    let owner = c.owner(owner);
    c.open(dir, op::open_name(owner, share::ACCESS_BOTH, share::DENY_NONE, name)).await
}
