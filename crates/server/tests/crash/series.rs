//! One machine and its clients over many crashes.

use crate::actor::{Actor, EARLY, LATE};
use crate::ledger::{ACTORS, BLOCKS, FILES, Kind, Ledger, Names, Standing, Tally};
use crate::power::{Life, Machine};
use crate::session::{Conn, Gone};
use crate::stranger::Stranger;
use crate::work::{BLOCK, offset_of};
use bytes::Bytes;
use dhow_proto::v4::{FileHandle, ResOp};
use dhow_testkit::Dice;
use dhow_testkit::wire::op;
use dhow_vfs::{Backend, CreateHow, Cx, Make, Name, SetAttr};
use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::cell::RefCell;
use std::time::Duration;

struct Naming(u64, RefCell<u64>);

impl Drop for Naming {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("series with DHOW_CRASH_SEED={}, crash {}", self.0, self.1.borrow());
        }
    }
}

/// What happened in each step, and when.
pub type Steps = Vec<(Duration, String)>;

/// Runs one series in a runtime of its own, in paused time.
pub fn run(seed: u64, crashes: u64) -> (Tally, Steps) {
    let naming = Naming(seed, RefCell::new(0));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let done = runtime.block_on(series(Dice::new(seed), crashes, &naming));
    // What is left of dead servers must not hold the thread up.
    runtime.shutdown_background();
    done
}

fn name(text: &str) -> Name {
    Name::new(Bytes::copy_from_slice(text.as_bytes())).unwrap()
}

async fn prepare(machine: &Machine) {
    let (cx, fs) = (Cx::root(), &machine.fs);
    let root = fs.root(&cx).await.unwrap().handle;
    let files = (0..FILES).map(|f| format!("s{f}")).chain(["stranger".to_owned()]);
    for file in files {
        let made = fs.create(&cx, &root, &name(&file), &CreateHow::default()).await.unwrap();
        fs.close(made.open).await;
    }
    for dir in 0..ACTORS {
        fs.make(&cx, &root, &name(&format!("d{dir}")), &Make::Directory, &SetAttr::default()).await.unwrap();
    }
    fs.sync();
}

async fn series(mut dice: Dice, crashes: u64, naming: &Naming) -> (Tally, Steps) {
    let machine = Machine::new();
    prepare(&machine).await;
    let ledger = RefCell::new(Ledger::new());
    let mut incarnations = [1; ACTORS];
    for crash in 0..crashes {
        *naming.1.borrow_mut() = crash;
        // Some lives are short, so that crashes also hit the start and the grace period.
        let steps = match dice.roll(4) {
            0 => 1 + dice.roll(60),
            1 => 1 + dice.roll(300),
            _ => 100 + dice.roll(900),
        };
        let Some(life) = machine.boot(steps, &mut dice).await else {
            ledger.borrow_mut().tally.add("crash while the server starts");
            let found = all_names(&machine).await;
            check(&machine, &mut ledger.borrow_mut(), found);
            continue;
        };
        ledger.borrow_mut().began = life.began;
        let quiet = one_life(&life, &ledger, &mut incarnations, &mut dice, crash).await.is_ok();
        life.power.cut();
        {
            let mut ledger = ledger.borrow_mut();
            let in_grace = life.began.elapsed() < EARLY && !ledger.all_complete();
            ledger.tally.add(match (quiet, in_grace) {
                (true, _) => "crash in quiet",
                (false, true) => "crash in grace",
                (false, false) => "crash at work",
            });
            end_of_life(&life, &mut ledger);
        }
        drop(life);
        let found = all_names(&machine).await;
        check(&machine, &mut ledger.borrow_mut(), found);
    }
    (ledger.into_inner().tally, machine.trace.steps())
}

/// The handles of what `prepare` made, once; they must do for all lives to come.
async fn handles(life: &Life, ledger: &RefCell<Ledger>) -> Result<(), Gone> {
    if ledger.borrow().stranger.is_some() {
        return Ok(());
    }
    let mut conn = Conn::open(life, "setup", 1).await?;
    let mut find = async |name: String| -> Result<FileHandle, Gone> {
        let (_, mut results) = conn.run(&[op::root(), op::lookup(&name), op::getfh()]).await?;
        match results.pop() {
            Some(ResOp::GetFh(Ok(fh))) => Ok(fh.object),
            other => panic!("{name}: {other:?}"),
        }
    };
    let (mut files, mut dirs) = (Vec::new(), Vec::new());
    for f in 0..FILES {
        files.push(find(format!("s{f}")).await?);
    }
    for d in 0..ACTORS {
        dirs.push(find(format!("d{d}")).await?);
    }
    let stranger = find("stranger".into()).await?;
    let mut ledger = ledger.borrow_mut();
    (ledger.files, ledger.dirs, ledger.stranger) = (files, dirs, Some(stranger));
    Ok(())
}

/// Everybody works; `Ok`: all are done and the power is still on.
async fn one_life(
    life: &Life,
    ledger: &RefCell<Ledger>,
    incarnations: &mut [u64; ACTORS],
    dice: &mut Dice,
    crash: u64,
) -> Result<(), Gone> {
    handles(life, ledger).await?;
    let file = ledger.borrow().stranger.clone().expect("it is known");
    let mut stranger =
        Stranger { life, ledger, dice: dice.fork(), name: format!("stranger {crash}"), file, recorded: false };
    let mut actors = Vec::new();
    for (me, incarnation) in incarnations.iter().enumerate() {
        // Some come late, some not at all in this life.
        let arrives = match dice.roll(12) {
            0 | 1 => None,
            2 => Some(Duration::from_secs(100 + dice.roll(30))),
            _ => Some(Duration::from_millis(dice.roll(20_000))),
        };
        let Some(arrives) = arrives else { continue };
        let actor = Actor { me, dice: dice.fork(), life, ledger, conn: None, incarnation: *incarnation };
        actors.push((actor, arrives, 10 + dice.roll(60)));
    }
    let mut work: FuturesUnordered<_> =
        actors.iter_mut().map(|(a, arrives, steps)| a.live(*arrives, *steps).boxed_local()).collect();
    work.push(stranger.live(dice.roll(20)).boxed_local());
    let all = async {
        while let Some(done) = work.next().await {
            done?;
        }
        Ok(())
    };
    // Who sleeps when the power goes need not wake up first.
    let done = tokio::select! {
        biased;
        () = life.power.off() => Err(Gone),
        done = all => done,
    };
    drop(work);
    for (actor, ..) in &actors {
        incarnations[actor.me] = actor.incarnation;
    }
    if stranger.recorded {
        ledger.borrow_mut().new_strays += 1;
    }
    if done.is_ok() && dice.one_in(2) {
        // Nobody is heard of for a while.
        tokio::time::sleep(Duration::from_secs(dice.roll(300))).await;
    }
    done
}

/// What the end of a life means for those who were not heard of in it.
fn end_of_life(life: &Life, ledger: &mut Ledger) {
    let elapsed = life.began.elapsed();
    for who in 0..ACTORS {
        let account = &ledger.accounts[who];
        if !account.complete && account.heard.is_none() {
            // Grace ended without it, durably (RFC 8881 8.4.3); around the end nobody can tell.
            if elapsed > LATE {
                ledger.bury(who);
            } else if elapsed > EARLY {
                ledger.accounts[who].unsure =
                    !ledger.accounts[who].held.is_empty() || !ledger.accounts[who].delegs.is_empty();
                if ledger.accounts[who].standing == Standing::Yes {
                    ledger.accounts[who].standing = Standing::Perhaps;
                }
            }
        }
        // Who holds nothing goes with its lease.
        let gone = ledger.expired(who) && ledger.accounts[who].may_have_nothing();
        let account = &mut ledger.accounts[who];
        if gone && account.standing == Standing::Yes {
            account.standing = Standing::Perhaps;
        }
        if account.busy && account.standing == Standing::No {
            account.standing = Standing::Perhaps;
        }
        account.heard = None;
        account.busy = false;
        account.complete = false;
        account.complete_sent = false;
        account.unstable.clear();
        for deleg in account.delegs.values_mut() {
            deleg.doubtful = deleg.may_be_revoked();
            deleg.wanted = None;
        }
    }
    if elapsed > LATE {
        ledger.strays = 0;
    }
    ledger.strays += std::mem::take(&mut ledger.new_strays);
    let seen = std::mem::take(&mut ledger.verifiers);
    ledger.old_verifiers.extend(seen);
}

/// What is there after a crash is what was acknowledged, and nothing that was not sent.
fn check(machine: &Machine, ledger: &mut Ledger, found: Vec<Names>) {
    for file in 0..FILES {
        let content = machine.fs.content_of(&format!("s{file}")).expect("a file that was there is gone");
        for who in 0..ACTORS {
            for block in 0..BLOCKS {
                let at = offset_of(who, block) as usize;
                let end = (at + BLOCK as usize).min(content.len());
                let bytes = content.get(at..end).unwrap_or_default();
                let word = |b: &[u8]| u64::from_be_bytes(b.try_into().unwrap_or_default());
                let found = bytes.get(..8).map_or(0, word);
                let cell = &mut ledger.accounts[who].cells[file][block];
                assert!(bytes.chunks(8).all(|b| word(b) == found), "a block of two writes");
                assert!(
                    found == cell.stable || cell.later.contains(&found),
                    "block {block} of {who} in file {file} is {found} after the crash: {cell:?}"
                );
                assert!(cell.stable == 0 || bytes.len() == BLOCK as usize, "a stable block is cut short");
                *cell = crate::ledger::Cell { stable: found, later: Vec::new(), live: (found != 0).then_some(found) };
            }
        }
    }
    for (who, found) in found.into_iter().enumerate() {
        let account = &mut ledger.accounts[who];
        let mut after = account.names.clone();
        if let Some(change) = account.flight.take() {
            change.apply(&mut after);
        }
        assert!(
            found == account.names || found == after,
            "names of {who} after the crash: {found:?}; acknowledged {:?}, or {after:?}",
            account.names
        );
        account.names = found;
    }
}

async fn all_names(machine: &Machine) -> Vec<Names> {
    let mut all = Vec::new();
    for who in 0..ACTORS {
        all.push(names(machine, who).await);
    }
    all
}

async fn names(machine: &Machine, who: usize) -> Names {
    let cx = Cx::root();
    let dir = machine.fs.handle_of(&format!("d{who}")).expect("a directory that was there is gone");
    let limit = dhow_vfs::PageLimit { entries: 1000, name_bytes: 1 << 20, nodes: true };
    let page = machine.fs.readdir(&cx, &dir, 0, limit).await.unwrap();
    assert!(page.eof);
    let entry = |e: dhow_vfs::DirEntry| {
        let attr = e.node.expect("asked for").expect("an entry without an object").attr;
        let kind = if attr.kind == dhow_vfs::FileKind::Directory { Kind::Dir } else { Kind::Link };
        (String::from_utf8(e.name.to_vec()).unwrap(), (kind, attr.mode))
    };
    page.entries.into_iter().map(entry).collect()
}
