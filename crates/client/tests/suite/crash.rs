//! Crashes of the server in virtual time, under a workload through the library (RFC 8881 sections 8.4.2, 8.4.3, 18.3,
//! 18.32; cases B06, B31, B32).
//!
//! The clients live on over all crashes, and some are cut off for a while. What was acknowledged to them is held against
//! what is there after each crash: nothing stable is missing, no lock is held twice, what is done under a lock that is
//! lost fails, and no open that promises nothing more is ever lost. At the end nothing is left behind: no passing names,
//! no open that the client does not know (which DESTROY_CLIENTID would tell).
//!
//! `DHOW_CLIENT_CRASHES` sets the number of crashes, `DHOW_CLIENT_CRASH_SEED` runs one series alone: a failure prints its
//! seed.

mod expiry;
mod ledger;
mod power;
mod work;

use dhow_client::{Client, ClientConfig};
use dhow_testkit::Dice;
use dhow_testkit::power::parting;
use futures_util::FutureExt;
use futures_util::future::join_all;
use ledger::{CLIENTS, Ledger, NAMES, Tally};
use power::{LEASE, Machine, Plug};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;
use work::{BLOCK, Worker, stamp_of};

/// Crashes in one series.
const IN_A_SERIES: u64 = 25;

/// What must have happened at least once in two hundred crashes, or they prove little.
const SEEN: &[&str] = &[
    "close and open",
    "committed write",
    "copy in doubt",
    "counted under a lock",
    "crash at work",
    "crash while the server starts",
    "durable copy",
    "lock",
    "lock denied",
    "lock taken from who was cut off",
    "loss of a lock reported",
    "loss of an unstable write reported",
    "names changed",
    "names in doubt",
    "stable write",
];

struct Naming(u64, Cell<u64>);

impl Drop for Naming {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("series with DHOW_CLIENT_CRASH_SEED={}, crash {}", self.0, self.1.get());
        }
    }
}

#[test]
fn nothing_acknowledged_by_the_library_is_lost() {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let crashes = number("DHOW_CLIENT_CRASHES").unwrap_or(50);
    let alone = number("DHOW_CLIENT_CRASH_SEED");
    let seeds = alone.map_or(0..crashes.div_ceil(IN_A_SERIES), |seed| seed..seed + 1);
    let mut total = Tally::default();
    for seed in seeds {
        for (what, count) in run(seed, IN_A_SERIES).0.0 {
            *total.0.entry(what).or_default() += count;
        }
    }
    println!("{:#?}", total.0);
    if alone.is_none() && crashes >= 200 {
        for what in SEEN {
            assert!(total.0.contains_key(what), "in {crashes} crashes it never happened: {what}");
        }
    }
}

/// What happened in each step, and when.
type Steps = Vec<(Duration, String)>;

fn run(seed: u64, crashes: u64) -> (Tally, Steps) {
    let naming = Naming(seed, Cell::new(0));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let done = runtime.block_on(series(Dice::new(seed), crashes, &naming));
    // What is left of dead servers must not hold the thread up.
    runtime.shutdown_background();
    done
}

/// A failure is of use only if its seed shows it again: two runs of one seed are the same, step by step.
#[test]
fn a_seed_fixes_the_whole_run() {
    let (first, again) = (run(7, 6), run(7, 6));
    assert!(first.1.len() > 500, "{} steps", first.1.len());
    if let Some(where_) = parting(&first.1, &again.1) {
        panic!("two runs of one seed part {where_}");
    }
    assert_eq!(first.0.0, again.0.0);
}

async fn connect(machine: &Arc<Machine>, who: usize, dice: &mut Dice) -> Client {
    let mut config = ClientConfig::new(format!("server of {who}"), Vec::new());
    config.dialer = Some(Arc::new(Plug(machine.clone(), who)));
    config.owner = Some(format!("client {who}").into());
    config.instance = Some(dice.next());
    config.credential = dhow_client::auth_sys(0, 0, []);
    config.call_timeout = None;
    config.connections = 1 + who % 2;
    Client::connect(config).await.unwrap()
}

async fn series(mut dice: Dice, crashes: u64, naming: &Naming) -> (Tally, Steps) {
    let machine = Machine::new(dice.fork());
    let life = machine.boot(u64::MAX).await.unwrap();
    let (ledger, stop) = (RefCell::new(Ledger::new()), Cell::new(false));
    let mut clients = Vec::new();
    for who in 0..CLIENTS {
        let client = connect(&machine, who, &mut dice).await;
        client.fs().mkdir(&format!("d{who}"), 0o755).await.unwrap();
        clients.push(client);
    }
    machine.fs.sync();
    let mut workers = Vec::new();
    for (who, client) in clients.iter().enumerate() {
        let mut worker = || Worker { who, client: client.clone(), ledger: &ledger, dice: dice.fork(), stop: &stop };
        let (data, names, locks) = (worker(), worker(), worker());
        workers.extend([data.data().boxed_local(), names.names().boxed_local(), locks.locks().boxed_local()]);
    }
    let (for_lives, for_cuts) = (dice.fork(), dice.fork());
    let lives = async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        life.power.cut();
        lives(&machine, &ledger, (for_lives, crashes), naming).await;
        stop.set(true);
    };
    let work = async {
        tokio::join!(lives, join_all(workers));
    };
    tokio::select! {
        biased;
        () = work => {}
        () = cut_off(&machine, &ledger, for_cuts, &stop) => unreachable!("it does not end"),
    }
    farewell(&ledger, clients).await;
    (ledger.into_inner().tally, machine.trace.steps())
}

/// One life of the server after the other; the last one goes on.
async fn lives(machine: &Arc<Machine>, ledger: &RefCell<Ledger>, (mut dice, crashes): (Dice, u64), naming: &Naming) {
    for crash in 0..crashes {
        naming.1.set(crash);
        check(machine, &ledger.borrow());
        if dice.roll(3) == 0 {
            tokio::time::sleep(Duration::from_millis(dice.roll(20_000))).await;
        }
        // Some lives are short, so that crashes also hit the start and the grace period.
        let steps = match dice.roll(4) {
            0 => 1 + dice.roll(30),
            1 => 1 + dice.roll(300),
            _ => 100 + dice.roll(2000),
        };
        let Some(life) = machine.boot(steps).await else {
            ledger.borrow_mut().tally.add("crash while the server starts");
            continue;
        };
        let quiet = Duration::from_secs(30 + dice.roll(600));
        let at_work = tokio::time::timeout(quiet, life.power.off()).await.is_ok();
        life.power.cut();
        ledger.borrow_mut().tally.add(if at_work { "crash at work" } else { "crash after a while" });
    }
    check(machine, &ledger.borrow());
    machine.boot(u64::MAX).await.expect("it starts");
    tokio::time::sleep(Duration::from_secs(300)).await;
}

/// Cuts clients off, one after the other.
async fn cut_off(machine: &Machine, ledger: &RefCell<Ledger>, mut dice: Dice, stop: &Cell<bool>) {
    loop {
        tokio::time::sleep(Duration::from_secs(20 + dice.roll(100))).await;
        if stop.get() {
            continue;
        }
        let (who, long) = (dice.roll(CLIENTS as u64) as usize, dice.roll(2) == 0);
        let length = Duration::from_secs(if long { 100 + dice.roll(200) } else { dice.roll(40) });
        if length + Duration::from_secs(2) > LEASE {
            // Locks asked for before and answered late are void as well.
            ledger.borrow_mut().accounts[who].claims.void = true;
        }
        machine.silence(who);
        tokio::time::sleep(length).await;
        machine.heal(who, dice.roll(2) == 0);
        ledger.borrow_mut().tally.add(if long { "cut off for long" } else { "cut off" });
    }
}

/// What is there is what was acknowledged, or something that was sent since.
fn check(machine: &Machine, ledger: &Ledger) {
    let content = |path: String| machine.fs.content_of(&path);
    for (who, account) in ledger.accounts.iter().enumerate() {
        let file = content(format!("w{who}")).unwrap_or_default();
        for (n, cell) in account.blocks.iter().enumerate() {
            let at = (n * BLOCK as usize).min(file.len());
            let found = stamp_of(&file[at..file.len().min(at + BLOCK as usize)]);
            assert!(cell.may_be(&found), "block {n} of {who} is {found} after the crash: {cell:?}");
        }
        let copy = stamp_of(&content(format!("c{who}")).unwrap_or_default());
        assert!(account.copy.may_be(&copy), "the copy of {who} is {copy} after the crash: {:?}", account.copy);
        for (n, cell) in account.names.iter().enumerate() {
            let found = content(format!("d{who}/n{n}")).map(|c| stamp_of(&c));
            assert!(cell.may_be(&found), "name {n} of {who} is {found:?} after the crash: {cell:?}");
        }
    }
    let shared = content("shared".to_owned()).unwrap_or_default();
    for (n, counter) in ledger.counters.iter().enumerate() {
        let word = shared.get(16 * n..16 * n + 8).map_or(0, |b| u64::from_be_bytes(b.try_into().unwrap()));
        assert!(counter.may_be(&word), "counter {n} is {word} after the crash: {counter:?}");
    }
}

/// The end, as every client sees it.
async fn farewell(ledger: &RefCell<Ledger>, clients: Vec<Client>) {
    for (who, client) in clients.into_iter().enumerate() {
        let dir = format!("d{who}");
        let entries = client.fs().readdir(&dir, dhow_client::STAT).await.unwrap().collect().await.unwrap();
        let names: Vec<_> = entries.iter().map(|e| String::from_utf8_lossy(&e.name).into_owned()).collect();
        assert!(names.iter().all(|n| !n.starts_with('.')), "left behind: {names:?}");
        for n in 0..NAMES {
            let there = names.contains(&format!("n{n}"));
            let ledger = ledger.borrow();
            let cell = &ledger.accounts[who].names[n];
            assert!(!cell.is_certain() || cell.stable.is_some() == there, "name {n} of {who}: {cell:?}, {names:?}");
        }
        client.close().await.unwrap();
    }
}
