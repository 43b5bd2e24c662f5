//! Owners by name (RFC 8881 5.9), and users of more groups than a credential holds (case B37).

use crate::common::Srv;
use dhow_proto::v4::attr::*;
use dhow_proto::v4::ops::SetattrArgs;
use dhow_proto::v4::{ArgOp, Attrs, Fattr, FileHandle, ResOp, Stateid, Status};
use dhow_server::{IdConfig, NameService};
use dhow_testkit::memfs::Options;
use dhow_testkit::wire::{Client, op};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Users ada (1000) and bob (1001), group staff (50); ada is in groups 100 to 139.
#[derive(Default)]
struct People {
    broken: AtomicBool,
}

impl People {
    fn answer<T>(&self, answer: Option<T>) -> io::Result<Option<T>> {
        if self.broken.load(Ordering::Relaxed) { Err(io::Error::other("broken")) } else { Ok(answer) }
    }
}

impl NameService for People {
    fn user_id(&self, name: &str) -> io::Result<Option<u32>> {
        self.answer([("ada", 1000), ("bob", 1001)].into_iter().find(|u| u.0 == name).map(|u| u.1))
    }

    fn group_id(&self, name: &str) -> io::Result<Option<u32>> {
        self.answer((name == "staff").then_some(50))
    }

    fn user_name(&self, uid: u32) -> io::Result<Option<String>> {
        self.answer([("ada", 1000), ("bob", 1001)].into_iter().find(|u| u.1 == uid).map(|u| u.0.to_owned()))
    }

    fn group_name(&self, gid: u32) -> io::Result<Option<String>> {
        self.answer((gid == 50).then(|| "staff".to_owned()))
    }

    fn groups_of(&self, uid: u32) -> io::Result<Option<Vec<u32>>> {
        self.answer((uid == 1000).then(|| (100..140).collect()))
    }
}

async fn serve(change: impl FnOnce(&mut IdConfig)) -> (Srv, Arc<People>) {
    let people = Arc::new(People::default());
    let mut ids = IdConfig { service: Some(people.clone()), keep_unknown: Duration::ZERO, ..IdConfig::default() };
    change(&mut ids);
    (Srv::with(Options::default(), |config| config.ids = ids).await, people)
}

async fn owners(c: &mut Client, fh: &FileHandle) -> (String, String) {
    let a = c.attrs(fh, &[OWNER, OWNER_GROUP]).await;
    let text = |b: Option<bytes::Bytes>| String::from_utf8(b.unwrap().to_vec()).unwrap();
    (text(a.owner), text(a.owner_group))
}

async fn chown(c: &mut Client, fh: &FileHandle, owner: &'static str, group: &'static str) -> Status {
    let attrs = Attrs { owner: Some(owner.into()), owner_group: Some(group.into()), ..Attrs::default() };
    let args = SetattrArgs { stateid: Stateid::ANONYMOUS, attrs: Fattr::from(attrs) };
    match c.run(&[op::put(fh), ArgOp::Setattr(args)]).await.results.pop() {
        Some(ResOp::Setattr(res)) => res.status,
        other => panic!("{other:?}"),
    }
}

/// RFC 8881 5.9: `name@domain` out and in, numbers always in, and out for whom nobody knows.
#[tokio::test]
async fn names_both_ways() {
    let (srv, people) = serve(|ids| ids.domain = Some("example.net".into())).await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await.fh;
    assert_eq!(chown(&mut c, &f, "ada@example.net", "staff@Example.Net").await, Status::OK);
    assert_eq!(owners(&mut c, &f).await, ("ada@example.net".into(), "staff@example.net".into()));
    assert_eq!(chown(&mut c, &f, "1001", "77").await, Status::OK);
    assert_eq!(owners(&mut c, &f).await, ("bob@example.net".into(), "77".into()));
    for (owner, group) in [
        ("carol@example.net", "50"),
        ("ada@example.org", "50"),
        ("ada", "50"),
        ("1000", "wheel@example.net"),
        ("nobody", "50"),
        ("01000", "50"),
    ] {
        assert_eq!(chown(&mut c, &f, owner, group).await, Status::BADOWNER, "{owner} {group}");
    }
    assert_eq!(owners(&mut c, &f).await, ("bob@example.net".into(), "77".into()), "nothing was changed");
    // In listings too.
    let res = c.ok(&[op::put(&root), op::readdir(0, Default::default(), 8192, &[OWNER])]).await.pop();
    let Some(ResOp::Readdir(Ok(page))) = res else { panic!("{res:?}") };
    assert_eq!(page.entries[0].attrs.owner.as_deref(), Some(&b"bob@example.net"[..]));
    // A service that fails costs names, no more.
    people.broken.store(true, Ordering::Relaxed);
    assert_eq!(chown(&mut c, &f, "12", "13").await, Status::OK);
    assert_eq!(owners(&mut c, &f).await, ("12".into(), "13".into()));
    assert!(srv.running.shared().failed_look_ups() > 0);
}

/// The default: numbers, whatever names there are.
#[tokio::test]
async fn numbers_by_default() {
    let (srv, _) = serve(|_| {}).await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await.fh;
    assert_eq!(chown(&mut c, &f, "1000", "50").await, Status::OK);
    assert_eq!(owners(&mut c, &f).await, ("1000".into(), "50".into()));
    assert_eq!(chown(&mut c, &f, "ada@example.net", "50").await, Status::BADOWNER);
}

/// Case B37: a directory that only group 120 may use. The credential cannot name it among 16; the look-up does.
#[tokio::test]
async fn groups_beyond_sixteen() {
    for lookup in [false, true] {
        let (srv, people) = serve(|ids| ids.lookup_groups = lookup).await;
        let mut admin = srv.client("admin").await;
        let root = admin.walk("").await;
        let d = admin.mkdir(&root, "team").await;
        let attrs = Attrs { mode: Some(0o070), owner_group: Some("120".into()), ..Attrs::default() };
        admin.ok(&[op::put(&d), op::setattr(attrs)]).await;
        let wire: Vec<u32> = (100..116).collect();
        let mut ada = srv.client_as("ada", 1000, 1000, &wire).await;
        let reach = async |c: &mut Client| c.status(&[op::put(&d), op::lookup("none")]).await;
        let fits = if lookup { Status::NOENT } else { Status::ACCESS };
        assert_eq!(reach(&mut ada).await, fits);
        // A user whom nobody knows keeps the groups of the credential.
        let mut stranger = srv.client_as("s", 4000, 1, &[120]).await;
        assert_eq!(reach(&mut stranger).await, Status::NOENT);
        // One who is known has those of the server, not what the credential claims.
        people.broken.store(true, Ordering::Relaxed);
        let mut other = srv.client_as("o", 4001, 1, &[120]).await;
        assert_eq!(reach(&mut other).await, Status::NOENT, "a look-up that fails locks nobody out");
        assert_eq!(reach(&mut ada).await, fits, "and what is known is known");
    }
}

/// Case K20: a service of names that does not answer holds up the calls that need it, for a bounded time, and no others;
/// their slots come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_hangs_holds_no_slot_for_ever() {
    /// Answers nobody until it is let go.
    #[derive(Default)]
    struct Stuck(std::sync::Mutex<bool>, std::sync::Condvar);

    impl Stuck {
        fn wait<T>(&self, answer: T) -> io::Result<Option<T>> {
            let mut free = self.0.lock().unwrap();
            while !*free {
                free = self.1.wait(free).unwrap();
            }
            Ok(Some(answer))
        }
    }

    impl NameService for Stuck {
        fn user_id(&self, _: &str) -> io::Result<Option<u32>> {
            self.wait(1000)
        }
        fn group_id(&self, _: &str) -> io::Result<Option<u32>> {
            self.wait(50)
        }
        fn user_name(&self, _: u32) -> io::Result<Option<String>> {
            self.wait("ada".to_owned())
        }
        fn group_name(&self, _: u32) -> io::Result<Option<String>> {
            self.wait("staff".to_owned())
        }
        fn groups_of(&self, _: u32) -> io::Result<Option<Vec<u32>>> {
            self.wait(vec![50])
        }
    }

    let stuck = Arc::new(Stuck::default());
    let ids = IdConfig {
        service: Some(stuck.clone()),
        domain: Some("example.net".into()),
        keep_unknown: Duration::ZERO,
        patience: Duration::from_millis(300),
        ..IdConfig::default()
    };
    let srv = Srv::with(Options::default(), |config| config.ids = ids).await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await.fh;
    let mut sent = Vec::new();
    for slot in 1..9 {
        sent.push(c.send(slot, &[op::put(&f), op::getattr(&[OWNER, OWNER_GROUP])]).await);
    }
    let set = Attrs { owner: Some("ada@example.net".into()), ..Attrs::default() };
    let setting = c.send(9, &[op::put(&f), op::setattr(set.clone())]).await;
    for _ in 0..50 {
        c.ok(&[op::put(&f), op::getattr(&[SIZE, MODE])]).await;
    }
    // Numbers instead of names, and a refusal, after a while.
    for xid in sent {
        match c.wait(xid).await.results.pop() {
            Some(ResOp::Getattr(Ok(ok))) => assert_eq!(ok.attrs.owner.as_deref(), Some(&b"0"[..])),
            other => panic!("{other:?}"),
        }
    }
    let refused = c.wait(setting).await.status;
    assert!(matches!(refused, Status::DELAY | Status::BADOWNER), "{refused:?}");
    *stuck.0.lock().unwrap() = true;
    stuck.1.notify_all();
    for slot in 1..10 {
        let mut status = Status::DELAY;
        for _ in 0..500 {
            let xid = c.send(slot, &[op::put(&f), op::setattr(set.clone())]).await;
            status = c.wait(xid).await.status;
            if status.is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(status, Status::OK, "slot {slot}");
    }
    assert_eq!(owners(&mut c, &f).await.0, "ada@example.net");
}
