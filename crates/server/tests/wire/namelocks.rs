//! What updates of names wait for, and what they do not (C5; the rules are those of `dhow_dirlock`).

use crate::common::Srv;
use dhow_proto::v4::{ArgOp, FileHandle, ResOp, Status, Verifier};
use dhow_testkit::fault::{Action, Call, Gate};
use dhow_testkit::wire::{Client, ClientOptions, op};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Waits until `count` updates have had to wait for another.
async fn waits(srv: &Srv, count: u64) {
    let metrics = &srv.running.shared().metrics;
    for _ in 0..3000 {
        if metrics.name_waits.load(Relaxed) >= count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} waits, not {count}", metrics.name_waits.load(Relaxed));
}

fn waited(srv: &Srv) -> u64 {
    srv.running.shared().metrics.name_waits.load(Relaxed)
}

fn create(c: &Client, dir: &FileHandle, name: &str) -> Vec<ArgOp> {
    vec![op::put(dir), op::open_create(c.owner(name), 3, 0, name, 0o644)]
}

fn rename(from: &FileHandle, old: &str, to: &FileHandle, new: &str) -> Vec<ArgOp> {
    vec![op::put(from), ArgOp::SaveFh, op::put(to), op::rename(old, new)]
}

/// A remove of a directory waits for the create in it, and says so; a create that comes later waits for the remove.
#[tokio::test]
async fn a_removed_directory_has_no_update_inside() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let d = c.mkdir(&root, "d").await;
    let creating = srv.fault.hold(Call::Create);
    let first = c.send(1, &create(&c, &d, "f")).await;
    creating.arrived(1).await;
    srv.fault.clear(Call::Create);
    let removing = c.send(2, &[op::put(&root), op::remove("d")]).await;
    waits(&srv, 1).await;
    // Others are not in this: names beside it, and listings and looks inside it.
    c.ok(&[op::put(&root), op::mkdir("e")]).await;
    c.ok(&[op::put(&d), op::readdir(0, Verifier::default(), 4096, &[])]).await;
    assert_eq!(c.status(&[op::put(&d), op::lookup("g")]).await, Status::NOENT);
    creating.open();
    assert!(c.wait(first).await.status.is_ok());
    assert_eq!(c.wait(removing).await.status, Status::NOTEMPTY);

    c.ok(&[op::put(&d), op::remove("f")]).await;
    let removing = srv.fault.hold(Call::Remove);
    let gone = c.send(1, &[op::put(&root), op::remove("d")]).await;
    removing.arrived(1).await;
    srv.fault.clear(Call::Remove);
    let before = waited(&srv);
    let late = c.send(2, &create(&c, &d, "f")).await;
    let moved = c.send(3, &rename(&root, "e", &d, "e")).await;
    waits(&srv, before + 2).await;
    removing.open();
    assert!(c.wait(gone).await.status.is_ok());
    for xid in [late, moved] {
        let status = c.wait(xid).await.status;
        assert!(matches!(status, Status::NOENT | Status::STALE), "{status:?}");
    }
    c.ok(&[op::put(&root), op::lookup("e")]).await;
}

/// The directory that a rename replaces is removed, and nothing is made in it meanwhile.
#[tokio::test]
async fn a_replaced_directory_has_no_update_inside() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let (_, d) = (c.mkdir(&root, "new").await, c.mkdir(&root, "d").await);
    let creating = srv.fault.hold(Call::Create);
    let first = c.send(1, &create(&c, &d, "f")).await;
    creating.arrived(1).await;
    let replacing = c.send(2, &rename(&root, "new", &root, "d")).await;
    waits(&srv, 1).await;
    creating.open();
    assert!(c.wait(first).await.status.is_ok());
    let status = c.wait(replacing).await.status;
    assert!(matches!(status, Status::EXIST | Status::NOTEMPTY), "{status:?}");
}

/// Directories move to other directories one at a time, so that two moves do not make a cycle together; files do not
/// wait, nor do renames within a directory.
#[tokio::test]
async fn directories_move_one_at_a_time() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let (a, b) = (c.mkdir(&root, "a").await, c.mkdir(&root, "b").await);
    let (x, y) = (c.mkdir(&a, "x").await, c.mkdir(&b, "y").await);
    c.create(&a, "file").await;
    let moving = Gate::new();
    srv.fault.rule(Call::Rename, None, Action::Hold(moving.clone()), 1);
    // Each is harmless by itself; together they would be a cycle that hangs in nothing.
    let first = c.send(1, &rename(&root, "a", &y, "a")).await;
    moving.arrived(1).await;
    let second = c.send(2, &rename(&root, "b", &x, "b")).await;
    waits(&srv, 1).await;
    c.ok(&rename(&a, "file", &b, "file")).await;
    c.ok(&rename(&a, "x", &a, "z")).await;
    assert_eq!(waited(&srv), 1);
    moving.open();
    assert!(c.wait(first).await.status.is_ok());
    assert_eq!(c.wait(second).await.status, Status::INVAL);
    c.walk("b/y/a/z").await;
}

/// Two names in either order, and one name twice: nobody waits for ever (K26).
#[tokio::test]
async fn renames_across_each_other() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let (a, b) = (c.mkdir(&root, "a").await, c.mkdir(&root, "b").await);
    c.create(&a, "n").await;
    srv.fault.always(Call::Rename, Action::Delay(Duration::from_millis(1)));
    let mut xids = Vec::new();
    for i in 0..60 {
        let (from, to) = if i % 2 == 0 { (&a, &b) } else { (&b, &a) };
        xids.push(c.send(i, &rename(from, "n", if i % 3 == 0 { from } else { to }, "n")).await);
    }
    for xid in xids {
        let status = c.wait(xid).await.status;
        assert!(matches!(status, Status::OK | Status::NOENT), "{status:?}");
    }
    let mut found = 0;
    for dir in [&a, &b] {
        found += usize::from(c.status(&[op::put(dir), op::lookup("n")]).await.is_ok());
    }
    assert_eq!(found, 1);
}

/// A wait ends with the client: when a new incarnation takes its place, its place in the queue is free.
#[tokio::test]
async fn a_wait_ends_with_the_client() {
    let srv = Srv::start().await;
    let (mut a, mut b, mut other) = (srv.client("a").await, srv.client("b").await, srv.client("other").await);
    let root = a.walk("").await;
    let creating = srv.fault.hold(Call::Create);
    let first = a.send(1, &create(&a, &root, "n")).await;
    creating.arrived(1).await;
    srv.fault.clear(Call::Create);
    let _never_answered = b.send(1, &create(&b, &root, "n")).await;
    waits(&srv, 1).await;
    let third = other.send(1, &[op::put(&root), op::remove("n")]).await;
    waits(&srv, 2).await;
    let reborn = ClientOptions { verifier: Verifier(*b"reborn  "), ..ClientOptions::named("b") };
    let _b = Client::connect(srv.addr, reborn).await;
    let ends = &srv.running.shared().metrics.name_wait_ends;
    for _ in 0..3000 {
        if ends.load(Relaxed) == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(ends.load(Relaxed), 1, "the wait went on without its client");
    creating.open();
    assert!(a.wait(first).await.status.is_ok());
    assert!(other.wait(third).await.status.is_ok(), "those behind it go on");
}

/// A wait is bounded by the lease if that is short, and ends in DELAY.
#[tokio::test]
async fn a_wait_ends_in_delay() {
    let srv = Srv::with(Default::default(), |config| config.state.lease = Duration::from_millis(300)).await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let creating = srv.fault.hold(Call::Create);
    let first = c.send(1, &create(&c, &root, "n")).await;
    creating.arrived(1).await;
    assert_eq!(c.status(&[op::put(&root), op::remove("n")]).await, Status::DELAY);
    creating.open();
    assert!(c.wait(first).await.status.is_ok());
    c.ok(&[op::put(&root), op::remove("n")]).await;
}

/// An OPEN of a name that is removed before the file is open finds what the name leads to then (RFC 8881 18.16: not
/// STALE, which speaks of the current filehandle).
#[tokio::test]
async fn an_open_that_is_overtaken_by_a_remove() {
    for create in [true, false] {
        let srv = Srv::start().await;
        let mut c = srv.client("c").await;
        let root = c.walk("").await;
        let made = c.create(&root, "f").await;
        c.close(&made).await;
        let opening = Gate::new();
        srv.fault.rule(Call::Open, None, Action::Hold(opening.clone()), 1);
        let owner = c.owner("o");
        let open = match create {
            true => op::open_create(owner, 3, 0, "f", 0o644),
            false => op::open_name(owner, 3, 0, "f"),
        };
        let open = c.send(1, &[op::put(&root), open, op::getfh()]).await;
        opening.arrived(1).await;
        c.ok(&[op::put(&root), op::remove("f")]).await;
        opening.open();
        let res = c.wait(open).await;
        if create {
            assert!(matches!(res.results.last(), Some(ResOp::GetFh(Ok(fh))) if fh.object != made.fh), "{res:?}");
        } else {
            assert_eq!(res.status, Status::NOENT);
        }
    }
}

/// A wait outlives its connection: the request is carried out in its turn, and its client hears of it on another one,
/// once, by asking again in the slot (RFC 8881 2.10.6.2).
#[tokio::test]
async fn a_wait_outlives_its_connection() {
    let srv = Srv::start().await;
    let (mut a, mut b) = (srv.client("a").await, srv.client("b").await);
    let root = a.walk("").await;
    let creating = srv.fault.hold(Call::Create);
    let first = a.send(1, &create(&a, &root, "n")).await;
    creating.arrived(1).await;
    srv.fault.clear(Call::Create);
    let request = b.sequenced(0, &[op::put(&root), op::remove("n")]);
    b.wire.send_compound(2, &request).await;
    waits(&srv, 1).await;
    b.wire = srv.wire().await;
    // It waits still: asked again meanwhile, it is told so (2.10.6.1.3), or waits for that answer too.
    let again = b.wire.send_compound(2, &request).await;
    creating.open();
    assert!(a.wait(first).await.status.is_ok());
    let mut res = b.wire.compound_reply(2, again).await;
    for _ in 0..3000 {
        if res.status != Status::DELAY {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        res = b.wire.compound(2, &request).await;
    }
    assert!(res.status.is_ok(), "{res:?}");
    assert_eq!(srv.fault.count(Call::Remove), 1, "it was done once");
    assert_eq!(a.status(&[op::put(&root), op::lookup("n")]).await, Status::NOENT);
    assert_eq!(waited(&srv), 1);
}
