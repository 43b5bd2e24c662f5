//! Keeps a book of all that a server acknowledged as stable, while somebody crashes that server, and compares.
//!
//! ```text
//! ledger nfs://HOST[:PORT]/DIRECTORY STOPFILE
//! ```
//!
//! Works until STOPFILE is there, in a directory of its own that it leaves behind; then prints one line for each
//! worker and each thing that was not as the book says. Exit code 1 when there was one. The server may go away and
//! come back as often as it likes: every call waits for it.
//!
//! What the book says, and its invariants:
//!
//! * **Data.** A block of a file holds a version not older than the last that was acknowledged (FILE_SYNC, or COMMIT
//!   with the verifier of the WRITEs; RFC 8881 sections 18.3 and 18.32) and not newer than the last that was sent. What
//!   a lost COMMIT left in doubt is written again.
//! * **Names.** Creates, removals, renames, links and attributes are stable once answered (RFC 8881 section 1.7.3.2 by
//!   way of 18.x). A call whose outcome is not known ([`Error::OutcomeUnknown`]) was done or was not: the tree is
//!   one of the two, and nothing else.
//! * **Locks.** Of two clients that want one lock at most one has it at any time (case B31), and a count that is kept
//!   under it loses nothing.

// Worker numbers and blocks made a line above.
#![allow(clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use dhow_client::v4::{Attrs, FileType, StableHow};
use dhow_client::{Client, ClientConfig, Create, Error, File, Fs, NfsUrl, OpenOptions, PutOptions, STAT};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 48;

macro_rules! ensure {
    ($cond:expr, $($why:tt)+) => {
        if !$cond { return Err(format!($($why)+).into()); }
    };
}

/// Numbers that look random, the same every time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % below
    }
}

/// What all workers share.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// A worker found a fault.
    fault: tokio::sync::Notify,
    faulty: AtomicBool,
    /// Who has the lock, as far as the two clients know; 0: nobody.
    holder: AtomicU32,
    /// How often the counter under the lock was acknowledged to have grown.
    counted: AtomicU64,
}

impl Shared {
    /// On a slow machine a worker goes on until it has done something that is worth an audit.
    fn over(&self, enough: bool) -> bool {
        self.stop.load(Ordering::Relaxed) && (enough || self.faulty.load(Ordering::Relaxed))
    }
}

// ---------------------------------------------------------------------------------------------------------------- data

/// Every word says which file, block and version it is of, so that a piece of another version shows.
fn block(file: u64, block: u64, version: u64) -> Bytes {
    let mut out = BytesMut::with_capacity(BLOCK as usize);
    for _ in 0..BLOCK / 8 {
        out.put_u64(file << 56 | block << 40 | version);
    }
    out.freeze()
}

struct DataBook {
    number: u64,
    sent: Vec<u64>,
    acked: Vec<u64>,
}

impl DataBook {
    fn next(&mut self, n: u64) -> Bytes {
        self.sent[n as usize] += 1;
        block(self.number, n, self.sent[n as usize])
    }

    fn acknowledge(&mut self, n: u64) {
        self.acked[n as usize] = self.sent[n as usize];
    }

    /// Nothing older than acknowledged, nothing that was never sent.
    fn audit(&self, n: u64, found: &[u8]) -> Result<(), Failure> {
        let (acked, sent) = (self.acked[n as usize], self.sent[n as usize]);
        let mut words = found.chunks(8).map(|w| w.try_into().map(u64::from_be_bytes).unwrap_or(u64::MAX));
        ensure!(found.len() as u64 == BLOCK || acked == 0, "file {} block {n}: {} bytes", self.number, found.len());
        let wanted = |w: u64| {
            let (head, version) = (w >> 40, w & ((1 << 40) - 1));
            (w == 0 && acked == 0) || head == self.number << 16 | n && (acked.max(1)..=sent.max(1)).contains(&version)
        };
        match words.find(|w| !wanted(*w)) {
            None => Ok(()),
            Some(w) => {
                Err(format!("file {} block {n}: {w:#018x}, acknowledged {acked}, sent {sent}", self.number).into())
            }
        }
    }
}

async fn data(fs: Fs, number: u64, shared: Arc<Shared>) -> Result<String, Failure> {
    let mut dice = Dice(0x9e37 + number);
    let mut book = DataBook { number, sent: vec![0; BLOCKS as usize], acked: vec![0; BLOCKS as usize] };
    let name = format!("data{number}");
    let file = fs.open(&name, &OpenOptions::read_write().create(Create::IfMissing, 0o644)).await?;
    let (mut rounds, mut again) = (0_u64, 0_u64);
    while !shared.over(rounds >= 3) {
        rounds += 1;
        match dice.roll(4) {
            0 => {
                let n = dice.roll(BLOCKS);
                let done = file.write_all_at(n * BLOCK, book.next(n), StableHow::FILE_SYNC).await?;
                ensure!(done.committed >= StableHow::FILE_SYNC, "FILE_SYNC became {}", done.committed);
                book.acknowledge(n);
            }
            1 => {
                let n = dice.roll(BLOCKS);
                let found = file.read_full_at(n * BLOCK, BLOCK as u32).await?;
                book.audit(n, &found.data)?;
            }
            _ => {
                let mut some: Vec<u64> = (0..8).map(|_| dice.roll(BLOCKS)).collect();
                some.sort_unstable();
                some.dedup();
                again += unstable(&file, &mut book, &some).await?;
            }
        }
    }
    file.close().await?;
    let file = fs.open(&name, &OpenOptions::read()).await?;
    for n in 0..BLOCKS {
        book.audit(n, &file.read_full_at(n * BLOCK, BLOCK as u32).await?.data)?;
    }
    file.close().await?;
    ensure!(rounds >= 3, "only {rounds} rounds");
    Ok(format!("{rounds} rounds, {} versions, {again} commits had to be done again", book.acked.iter().sum::<u64>()))
}

/// Unstable writes and a commit, as often as it takes; how often it took another time.
async fn unstable(file: &File, book: &mut DataBook, some: &[u64]) -> Result<u64, Failure> {
    let mut again = 0;
    let mut data: Vec<Bytes> = some.iter().map(|n| book.next(*n)).collect();
    loop {
        let writes = some.iter().zip(&data).map(|(n, d)| file.write_all_at(n * BLOCK, d.clone(), StableHow::UNSTABLE));
        let mut verifiers = Vec::new();
        for write in futures_util::future::join_all(writes).await {
            verifiers.push(write?.verifier);
        }
        let verifier = file.commit(0, 0).await?;
        if verifiers.iter().all(|v| *v == verifier) {
            some.iter().for_each(|n| book.acknowledge(*n));
            return Ok(again);
        }
        again += 1;
        ensure!(again < 1000, "the verifier never stays");
        data = some.iter().map(|n| book.next(*n)).collect();
    }
}

// --------------------------------------------------------------------------------------------------------------- names

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    File { text: Bytes, mode: u32 },
    Link(String),
    Dir,
}

/// A directory as it ought to be: names of inodes, for hard links are two names of one.
#[derive(Debug, Clone, Default)]
struct Tree {
    names: BTreeMap<String, usize>,
    inodes: Vec<Kind>,
}

/// What can be seen of it: for each name what it is, and how many names that has.
type View = BTreeMap<String, (Kind, usize)>;

#[derive(Debug, Clone)]
enum Change {
    Put(String, Bytes),
    Mkdir(String),
    Symlink(String, String),
    Link(String, String),
    Rename(String, String),
    Remove(String),
    Mode(String, u32),
}

impl Tree {
    fn view(&self) -> View {
        let count = |i: usize| self.names.values().filter(|n| **n == i).count();
        self.names.iter().map(|(name, i)| (name.clone(), (self.inodes[*i].clone(), count(*i)))).collect()
    }

    fn add(&mut self, name: &str, kind: Kind) {
        self.inodes.push(kind);
        self.names.insert(name.to_owned(), self.inodes.len() - 1);
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Put(name, text) => self.add(name, Kind::File { text: text.clone(), mode: 0o644 }),
            Change::Mkdir(name) => self.add(name, Kind::Dir),
            Change::Symlink(name, to) => self.add(name, Kind::Link(to.clone())),
            Change::Link(from, to) => {
                self.names.insert(to.clone(), self.names[from]);
            }
            Change::Rename(from, to) => {
                // Renaming one name of a file over another name of it changes nothing.
                if self.names.get(to) != self.names.get(from)
                    && let Some(i) = self.names.remove(from)
                {
                    self.names.insert(to.clone(), i);
                }
            }
            Change::Remove(name) => {
                self.names.remove(name);
            }
            Change::Mode(name, new) => {
                if let Kind::File { mode, .. } = &mut self.inodes[self.names[name]] {
                    *mode = *new;
                }
            }
        }
    }

    /// A change that the server has to grant.
    fn choose(&self, dice: &mut Dice, serial: u64) -> Change {
        let files: Vec<&String> =
            self.names.iter().filter(|(_, i)| matches!(self.inodes[**i], Kind::File { .. })).map(|(n, _)| n).collect();
        let all: Vec<&String> = self.names.keys().collect();
        let new = format!("n{serial}");
        if self.names.len() > 30 {
            return Change::Remove(all[dice.roll(all.len() as u64) as usize].clone());
        }
        if files.len() >= 2 {
            let one = files[dice.roll(files.len() as u64) as usize].clone();
            let two = files[dice.roll(files.len() as u64) as usize].clone();
            match dice.roll(9) {
                0 => return Change::Link(one, new),
                1 => return Change::Rename(all[dice.roll(all.len() as u64) as usize].clone(), new),
                2 | 3 => return Change::Rename(one, two),
                4 => return Change::Remove(all[dice.roll(all.len() as u64) as usize].clone()),
                5 => return Change::Mode(one, 0o600 | dice.roll(0o100) as u32),
                _ => {}
            }
        }
        match dice.roll(4) {
            0 => Change::Mkdir(new),
            1 => Change::Symlink(new, format!("to/{serial}")),
            _ => Change::Put(new, Bytes::from(serial.to_string().repeat(1 + dice.roll(900) as usize))),
        }
    }
}

async fn perform(fs: &Fs, dir: &str, change: &Change) -> Result<(), Error> {
    let at = |name: &String| format!("{dir}/{name}");
    match change {
        Change::Put(name, text) => {
            let options = PutOptions { new: true, ..PutOptions::default() };
            fs.put(&at(name), text.clone(), &options).await.map(drop)
        }
        Change::Mkdir(name) => fs.mkdir(&at(name), 0o755).await.map(drop),
        Change::Symlink(name, to) => fs.symlink(&at(name), to).await.map(drop),
        Change::Link(from, to) => fs.link(&at(from), &at(to)).await,
        Change::Rename(from, to) => fs.rename(&at(from), &at(to)).await,
        Change::Remove(name) => fs.remove(&at(name)).await,
        Change::Mode(name, mode) => fs.setattr(&at(name), &Attrs { mode: Some(*mode), ..Attrs::default() }).await,
    }
}

async fn observe(fs: &Fs, dir: &str) -> Result<View, Failure> {
    let mut seen = View::new();
    for entry in fs.readdir(dir, STAT).await?.collect().await? {
        let name = String::from_utf8(entry.name.to_vec())?;
        let path = format!("{dir}/{name}");
        let (kind, links) = match entry.attrs.file_type {
            Some(FileType::DIR) => (Kind::Dir, 1),
            Some(FileType::LNK) => (Kind::Link(String::from_utf8(fs.readlink(&path).await?.to_vec())?), 1),
            _ => {
                let (_, text) = fs.get(&path, 1 << 16).await?.ok_or("longer than ever written")?;
                let mode = entry.attrs.mode.ok_or("no mode")? & 0o7777;
                (Kind::File { text, mode }, entry.attrs.numlinks.ok_or("no numlinks")? as usize)
            }
        };
        ensure!(seen.insert(name.clone(), (kind, links)).is_none(), "{path} is listed twice");
    }
    Ok(seen)
}

/// In what two views differ, in short.
fn difference(wanted: &View, found: &View) -> String {
    let names: std::collections::BTreeSet<&String> = wanted.keys().chain(found.keys()).collect();
    let mut odd = names.into_iter().filter(|n| wanted.get(*n) != found.get(*n)).map(|n| {
        let short = |v: Option<&(Kind, usize)>| match v {
            None => "nothing".to_owned(),
            Some((Kind::File { text, mode }, links)) => {
                let head = String::from_utf8_lossy(&text[..text.len().min(12)]).into_owned();
                format!("a file of {} bytes '{head}', mode {mode:o}, {links} names", text.len())
            }
            Some((other, _)) => format!("{other:?}"),
        };
        format!("{n}: wanted {}, found {}", short(wanted.get(n)), short(found.get(n)))
    });
    let first: Vec<String> = odd.by_ref().take(3).collect();
    format!("{} and {} more", first.join("; "), odd.count())
}

async fn names(fs: Fs, number: u64, shared: Arc<Shared>) -> Result<String, Failure> {
    let (mut dice, mut tree) = (Dice(0x51f + number), Tree::default());
    let dir = format!("names{number}");
    match fs.mkdir(&dir, 0o755).await {
        // Made all the same, if the server went away meanwhile.
        Ok(_) | Err(Error::OutcomeUnknown { .. }) => {}
        Err(e) => return Err(e.into()),
    }
    let (mut done, mut unknown) = (0_u64, 0_u64);
    while !shared.over(done >= 3) {
        let change = tree.choose(&mut dice, done + unknown);
        match perform(&fs, &dir, &change).await {
            Ok(()) => {
                tree.apply(&change);
                done += 1;
            }
            Err(Error::OutcomeUnknown { .. }) => {
                unknown += 1;
                let mut after = tree.clone();
                after.apply(&change);
                let found = observe(&fs, &dir).await?;
                // A file that was made and not yet written, when the server died.
                let begun = matches!(&change, Change::Put(name, _)
                    if matches!(found.get(name), Some((Kind::File { text, .. }, 1)) if text.is_empty()));
                if begun && let Change::Put(name, _) = &change {
                    after = tree.clone();
                    after.apply(&Change::Put(name.clone(), Bytes::new()));
                }
                if found == after.view() {
                    tree = after;
                } else {
                    ensure!(found == tree.view(), "{dir}, after {change:?}: {}", difference(&tree.view(), &found));
                }
            }
            Err(e) => return Err(format!("{dir}: {change:?}: {e}; {} done", done).into()),
        }
        if dice.roll(60) == 0 {
            let found = observe(&fs, &dir).await?;
            ensure!(found == tree.view(), "{dir}: {}", difference(&tree.view(), &found));
        }
    }
    let found = observe(&fs, &dir).await?;
    ensure!(found == tree.view(), "{dir} in the end: {}", difference(&tree.view(), &found));
    ensure!(done >= 3, "only {done} changes");
    Ok(format!("{done} changes, {unknown} whose outcome was not known, {} names", found.len()))
}

// --------------------------------------------------------------------------------------------------------------- locks

/// A client that takes the lock, counts and lets go, again and again.
async fn locks(fs: Fs, me: u32, shared: Arc<Shared>) -> Result<String, Failure> {
    let mut dice = Dice(0xabc + u64::from(me));
    let file = fs.open("count", &OpenOptions::read_write().create(Create::IfMissing, 0o644)).await?;
    let mut had = 0;
    while !shared.over(had > 0) {
        if file.try_lock(true, 0, 100).await?.is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        }
        let before = shared.holder.swap(me, Ordering::SeqCst);
        ensure!(before == 0, "client {me} was granted the lock that client {before} holds");
        let found = file.read_full_at(0, 8).await?.data;
        let count = found[..].try_into().map(u64::from_be_bytes).unwrap_or(0);
        let acked = shared.counted.load(Ordering::SeqCst);
        ensure!(count == acked, "the count is {count}, acknowledged were {acked}");
        let new = Bytes::copy_from_slice(&(count + 1).to_be_bytes());
        file.write_all_at(0, new, StableHow::FILE_SYNC).await?;
        shared.counted.store(count + 1, Ordering::SeqCst);
        had += 1;
        // Long enough for a crash to fall in here often.
        tokio::time::sleep(Duration::from_millis(dice.roll(60))).await;
        let mine = shared.holder.swap(0, Ordering::SeqCst);
        ensure!(mine == me, "client {mine} was granted the lock that client {me} holds");
        file.unlock(0, 100).await?;
        tokio::time::sleep(Duration::from_millis(dice.roll(10))).await;
    }
    file.close().await?;
    ensure!(had > 0, "the lock was never had");
    Ok(format!("had the lock {had} times"))
}

// ----------------------------------------------------------------------------------------------------------------- all

async fn connect(url: &NfsUrl) -> Result<Client, Failure> {
    let mut config = ClientConfig::for_url(url).await?;
    config.call_timeout = Some(Duration::from_secs(150));
    Ok(Client::connect(config).await?)
}

type Worker = tokio::task::JoinHandle<Result<String, Failure>>;

/// Runs a worker, and tells of its fault at once.
fn watched(shared: &Arc<Shared>, work: impl Future<Output = Result<String, Failure>> + Send + 'static) -> Worker {
    let shared = shared.clone();
    tokio::spawn(async move {
        let end = work.await;
        if let Err(e) = &end {
            eprintln!("fault: {e}");
            shared.faulty.store(true, Ordering::Relaxed);
            shared.fault.notify_one();
        }
        end
    })
}

/// Works until `stop` becomes true and audits; the lines of the report, and whether all was as the book says.
///
/// # Errors
///
/// When the server cannot be reached in the beginning.
pub async fn run(url: &NfsUrl, stop: impl Future<Output = ()>) -> Result<(Vec<String>, bool), Failure> {
    let shared = Arc::new(Shared::default());
    let clients = [connect(url).await?, connect(url).await?, connect(url).await?];
    let top = clients[0].fs().subtree(url.path()).await?;
    let work = format!("ledger-{}", std::process::id());
    top.mkdir(&work, 0o755).await?;
    let mut places = Vec::new();
    for client in &clients {
        places.push(client.fs().subtree(url.path()).await?.subtree(&work).await?);
    }
    let mut workers = Vec::new();
    for n in 1..=3 {
        workers.push((format!("data {n}"), watched(&shared, data(places[0].clone(), n, shared.clone()))));
    }
    for n in 1..=2 {
        workers.push((format!("names {n}"), watched(&shared, names(places[n as usize].clone(), n, shared.clone()))));
    }
    for n in 1..=2_u32 {
        workers.push((format!("lock {n}"), watched(&shared, locks(places[n as usize].clone(), n, shared.clone()))));
    }
    // After a fault no more crashes: what the server says of it is then the last of its log.
    tokio::select! {
        () = stop => {}
        () = shared.fault.notified() => {}
    }
    shared.stop.store(true, Ordering::Relaxed);
    let (mut lines, mut good) = (Vec::new(), true);
    for (name, worker) in workers {
        match worker.await? {
            Ok(note) => lines.push(format!("ok   {name}: {note}")),
            Err(e) => {
                good = false;
                lines.push(format!("FAIL {name}: {e}"));
            }
        }
    }
    for client in clients {
        let counts = client.counters().snapshot();
        lines.push(format!(
            "     {} calls, {} sent again, {} connections",
            counts.calls, counts.resent, counts.connects
        ));
        client.close().await?;
    }
    Ok((lines, good))
}

#[tokio::main]
async fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::from_env("DHOW_LOG");
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, stopfile] = &args[..] else {
        eprintln!("usage: ledger nfs://HOST[:PORT]/DIRECTORY STOPFILE");
        return ExitCode::from(2);
    };
    let url: NfsUrl = match url.parse() {
        Ok(url) => url,
        Err(e) => {
            eprintln!("ledger: the URL {e}");
            return ExitCode::from(2);
        }
    };
    let told = async {
        while !std::path::Path::new(stopfile).exists() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    match run(&url, told).await {
        Ok((lines, good)) => {
            lines.iter().for_each(|line| println!("{line}"));
            if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(e) => {
            println!("FAIL {e}");
            ExitCode::FAILURE
        }
    }
}
