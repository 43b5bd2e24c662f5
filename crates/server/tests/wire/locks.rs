//! Byte-range locks (RFC 8881 9, 18.10 to 18.12).

use crate::common::{Srv, last, open_both};
use dhow_proto::v4::ops::{FreeStateidArgs, LockDenied, LockRes, LocktRes, share};
use dhow_proto::v4::{ArgOp, FileHandle, LockType, ResOp, StateOwner, Stateid, Status};
use dhow_testkit::wire::{Client, Open, op};

const R: LockType = LockType::READ;
const W: LockType = LockType::WRITE;

async fn lock(c: &mut Client, fh: &FileHandle, lock: ArgOp) -> Result<Stateid, LockRes> {
    match c.run(&[op::put(fh), lock]).await.results.pop() {
        Some(ResOp::Lock(LockRes::Ok(stateid))) => Ok(stateid),
        Some(ResOp::Lock(other)) => Err(other),
        other => panic!("{other:?}"),
    }
}

async fn test(c: &mut Client, fh: &FileHandle, owner: StateOwner, kind: LockType, at: u64, len: u64) -> LocktRes {
    match c.run(&[op::put(fh), op::lockt(owner, kind, at, len)]).await.results.pop() {
        Some(ResOp::Lockt(done)) => done,
        other => panic!("{other:?}"),
    }
}

async fn two(srv: &Srv) -> (Client, Open, Client, Open) {
    let (mut a, mut b) = (srv.client("a").await, srv.client("b").await);
    let root = a.walk("").await;
    let f = a.create(&root, "f").await;
    let g = open_both(&mut b, &root, "f", "owner").await;
    (a, f, b, g)
}

/// Conflicts between clients, and what a denial tells.
#[tokio::test]
async fn conflicts() {
    let srv = Srv::start().await;
    let (mut a, f, mut b, g) = two(&srv).await;
    let (la, lb) = (a.owner("locker"), b.owner("locker"));
    let mine = lock(&mut a, &f.fh, op::lock_new(f.stateid, la.clone(), W, 100, 50)).await.unwrap();
    assert_eq!(mine.seqid, 1);
    assert_ne!(mine.other, f.stateid.other);
    for (kind, at, len) in [(W, 100, 50), (R, 149, 1), (W, 0, 101), (R, 0, u64::MAX), (W, 120, u64::MAX)] {
        match lock(&mut b, &g.fh, op::lock_new(g.stateid, lb.clone(), kind, at, len)).await.unwrap_err() {
            LockRes::Denied(LockDenied { offset, length, lock_type, owner }) => {
                assert_eq!((offset, length, lock_type), (100, 50, W));
                assert_eq!(owner, la);
            }
            other => panic!("{kind:?} {at} {len}: {other:?}"),
        }
        assert!(matches!(test(&mut b, &g.fh, lb.clone(), kind, at, len).await, LocktRes::Denied(_)));
    }
    assert!(matches!(test(&mut a, &f.fh, la, W, 100, 50).await, LocktRes::Ok), "one's own is none in the way");
    for (at, len) in [(0, 100), (150, 10), (200, u64::MAX)] {
        assert!(matches!(test(&mut b, &g.fh, lb.clone(), W, at, len).await, LocktRes::Ok));
    }
    let theirs = lock(&mut b, &g.fh, op::lock_new(g.stateid, lb, W, 0, 100)).await.unwrap();
    a.ok(&[op::put(&f.fh), op::locku(mine, 0, u64::MAX)]).await;
    lock(&mut b, &g.fh, op::lock_more(theirs, W, 100, u64::MAX)).await.unwrap();
}

/// Shared locks share; splitting, merging, upgrading within one owner (9.3 to 9.5).
#[tokio::test]
async fn shared_and_split() {
    let srv = Srv::start().await;
    let (mut a, f, mut b, g) = two(&srv).await;
    let (la, lb) = (a.owner("l"), b.owner("l"));
    let mut s = lock(&mut a, &f.fh, op::lock_new(f.stateid, la.clone(), R, 0, 100)).await.unwrap();
    let sb = lock(&mut b, &g.fh, op::lock_new(g.stateid, lb.clone(), R, 50, 100)).await.unwrap();
    // An upgrade where the other reads is refused and changes nothing; where nobody does, it works.
    assert!(matches!(lock(&mut a, &f.fh, op::lock_more(s, W, 0, 100)).await.unwrap_err(), LockRes::Denied(_)));
    let next = lock(&mut a, &f.fh, op::lock_more(s, W, 0, 50)).await.unwrap();
    assert_eq!((next.other, next.seqid), (s.other, s.seqid + 1));
    assert_eq!(a.status(&[op::put(&f.fh), op::locku(s, 0, 1)]).await, Status::OLD_STATEID);
    s = next;
    // A hole in the middle.
    match a.ok(&[op::put(&f.fh), op::locku(s, 20, 10)]).await.pop() {
        Some(ResOp::Locku(Ok(ok))) => assert_eq!(ok.lock_stateid.seqid, s.seqid + 1),
        other => panic!("{other:?}"),
    }
    assert!(matches!(test(&mut b, &g.fh, lb.clone(), W, 20, 10).await, LocktRes::Ok));
    for at in [19, 30] {
        assert!(matches!(test(&mut b, &g.fh, lb.clone(), R, at, 1).await, LocktRes::Denied(_)), "byte {at}");
    }
    assert!(matches!(test(&mut b, &g.fh, lb.clone(), R, 60, 1).await, LocktRes::Ok), "there a shared one is left");
    // Unlocking what is not locked is no error.
    b.ok(&[op::put(&g.fh), op::locku(sb, 1000, 5)]).await;
}

/// RFC 8881 18.10.3: lengths of 0 and past 2^64; the last bytes of all.
#[tokio::test]
async fn ranges() {
    let srv = Srv::start().await;
    let (mut a, f, mut b, g) = two(&srv).await;
    let owner = a.owner("l");
    for (at, len) in [(0, 0), (5, 0), (u64::MAX, 2), (2, u64::MAX - 1), (1 << 63, (1 << 63) + 1)] {
        let due = LockRes::Err(Status::INVAL);
        let new = op::lock_new(f.stateid, owner.clone(), W, at, len);
        assert_eq!(lock(&mut a, &f.fh, new).await.unwrap_err(), due, "{at} {len}");
        assert_eq!(test(&mut a, &f.fh, owner.clone(), W, at, len).await, LocktRes::Err(Status::INVAL));
    }
    let s = lock(&mut a, &f.fh, op::lock_new(f.stateid, owner, W, u64::MAX - 1, 1)).await.unwrap();
    assert_eq!(a.status(&[op::put(&f.fh), op::locku(s, 3, 0)]).await, Status::INVAL);
    let lb = b.owner("l");
    assert!(matches!(test(&mut b, &g.fh, lb.clone(), W, u64::MAX - 1, u64::MAX).await, LocktRes::Denied(_)));
    assert!(matches!(test(&mut b, &g.fh, lb.clone(), W, u64::MAX - 2, 1).await, LocktRes::Ok));
    assert!(matches!(test(&mut b, &g.fh, lb, W, u64::MAX, u64::MAX).await, LocktRes::Ok), "the byte after it");
}

/// RFC 8881 18.10.3: the mode of the open, kinds of stateids, what is no file.
#[tokio::test]
async fn refusals() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    let owner = c.owner("reader");
    let r = c.open(&root, op::open_name(owner, share::ACCESS_READ, 0, "f")).await;
    let owner = c.owner("writer");
    let w = c.open(&root, op::open_name(owner, share::ACCESS_WRITE, 0, "f")).await;
    let l = c.owner("l");
    let new = |s, k| op::lock_new(s, l.clone(), k, 0, 10);
    assert_eq!(lock(&mut c, &f.fh, new(r.stateid, W)).await.unwrap_err(), LockRes::Err(Status::OPENMODE));
    assert_eq!(lock(&mut c, &f.fh, new(w.stateid, R)).await.unwrap_err(), LockRes::Err(Status::OPENMODE));
    for bad in [Stateid::ANONYMOUS, Stateid::READ_BYPASS, Stateid { seqid: 1, other: [7; 12] }] {
        assert_eq!(lock(&mut c, &f.fh, new(bad, R)).await.unwrap_err(), LockRes::Err(Status::BAD_STATEID));
        let more = op::lock_more(bad, R, 0, 1);
        assert_eq!(lock(&mut c, &f.fh, more).await.unwrap_err(), LockRes::Err(Status::BAD_STATEID));
        assert_eq!(c.status(&[op::put(&f.fh), op::locku(bad, 0, 1)]).await, Status::BAD_STATEID);
    }
    // An open's stateid is no lock's, and the other way round.
    let more = op::lock_more(f.stateid, R, 0, 1);
    assert_eq!(lock(&mut c, &f.fh, more).await.unwrap_err(), LockRes::Err(Status::BAD_STATEID));
    let s = lock(&mut c, &f.fh, new(f.stateid, W)).await.unwrap();
    assert_eq!(c.status(&[op::put(&f.fh), op::close(s)]).await, Status::BAD_STATEID);
    let odd = op::lock_more(s, LockType(9), 0, 1);
    assert!(matches!(lock(&mut c, &f.fh, odd).await.unwrap_err(), LockRes::Err(Status::INVAL | Status::BADXDR)));
    assert!(matches!(test(&mut c, &root, l.clone(), W, 0, 1).await, LocktRes::Err(Status::ISDIR)));
    // A reclaim when there was no restart.
    let ArgOp::Lock(mut args) = op::lock_new(f.stateid, c.owner("m"), W, 100, 1) else { unreachable!() };
    args.reclaim = true;
    assert_eq!(lock(&mut c, &f.fh, ArgOp::Lock(args)).await.unwrap_err(), LockRes::Err(Status::NO_GRACE));
}

/// Blocking locks are answered at once: the client asks again, or is called back (9.6).
#[tokio::test]
async fn blocking_locks_do_not_block() {
    let srv = Srv::start().await;
    let (mut a, f, mut b, g) = two(&srv).await;
    let (la, lb) = (a.owner("l"), b.owner("l"));
    let s = lock(&mut a, &f.fh, op::lock_new(f.stateid, la, LockType::WRITEW, 0, 10)).await.unwrap();
    let waiting = op::lock_new(g.stateid, lb.clone(), LockType::WRITEW, 0, 10);
    for _ in 0..3 {
        assert!(matches!(lock(&mut b, &g.fh, waiting.clone()).await.unwrap_err(), LockRes::Denied(_)));
    }
    a.ok(&[op::put(&f.fh), op::locku(s, 0, 10)]).await;
    lock(&mut b, &g.fh, waiting).await.unwrap();
}

/// CLOSE releases, or says that locks are held (18.2.3); FREE_STATEID frees a lock stateid without locks (18.38).
#[tokio::test]
async fn the_end_of_locks() {
    let srv = Srv::start().await;
    let (mut a, f, mut b, g) = two(&srv).await;
    let (la, lb) = (a.owner("l"), b.owner("l"));
    let s = lock(&mut a, &f.fh, op::lock_new(f.stateid, la.clone(), W, 0, 10)).await.unwrap();
    let free = |s| [ArgOp::FreeStateid(FreeStateidArgs { stateid: s })];
    assert_eq!(a.status(&free(s)).await, Status::LOCKS_HELD);
    a.ok(&[op::put(&f.fh), op::locku(s, 0, u64::MAX)]).await;
    assert!(a.status(&free(Stateid { seqid: 0, ..s })).await.is_ok());
    let more = op::lock_more(s, W, 0, 10);
    assert_eq!(lock(&mut a, &f.fh, more).await.unwrap_err(), LockRes::Err(Status::BAD_STATEID));

    let s = lock(&mut a, &f.fh, op::lock_new(f.stateid, la, W, 0, 10)).await.unwrap();
    match a.status(&[op::put(&f.fh), op::close(f.stateid)]).await {
        Status::OK => {}
        Status::LOCKS_HELD => {
            a.ok(&[op::put(&f.fh), op::locku(s, 0, u64::MAX)]).await;
            a.close(&f).await;
        }
        other => panic!("{other:?}"),
    }
    lock(&mut b, &g.fh, op::lock_new(g.stateid, lb, W, 0, 10)).await.unwrap();
    assert_eq!(a.status(&[op::put(&f.fh), op::locku(s, 0, 1)]).await, Status::BAD_STATEID);
}

/// I/O under a lock's stateid; locks are advisory between those who have the file open (9.1.2, 9.1.4).
#[tokio::test]
async fn io_under_locks() {
    use dhow_proto::v4::StableHow;
    let srv = Srv::start().await;
    let (mut a, f, mut b, g) = two(&srv).await;
    let owner = a.owner("l");
    let s = lock(&mut a, &f.fh, op::lock_new(f.stateid, owner, W, 0, 100)).await.unwrap();
    a.ok(&[op::put(&f.fh), op::write(s, 0, StableHow::UNSTABLE, b"x"), op::read(s, 0, 1)]).await;
    b.ok(&[op::put(&g.fh), op::read(g.stateid, 0, 1)]).await;
    let res = a.run(&[op::put(&f.fh), op::read(Stateid { seqid: s.seqid + 1, ..s }, 0, 1)]).await;
    assert_eq!(last(&res).1, Status::BAD_STATEID);
}

/// A client that goes leaves its locks to others (DESTROY_CLIENTID needs them gone; a new incarnation drops them).
#[tokio::test]
async fn a_reborn_client_drops_its_locks() {
    use dhow_proto::v4::Verifier;
    use dhow_testkit::wire::ClientOptions;
    let srv = Srv::start().await;
    let (mut a, f, mut b, g) = two(&srv).await;
    let (la, lb) = (a.owner("l"), b.owner("l"));
    lock(&mut a, &f.fh, op::lock_new(f.stateid, la, W, 0, 10)).await.unwrap();
    let reborn = ClientOptions { verifier: Verifier(*b"reborn!!"), ..ClientOptions::named("a") };
    let _a2 = Client::connect(srv.addr, reborn).await;
    let mut got = lock(&mut b, &g.fh, op::lock_new(g.stateid, lb.clone(), W, 0, 10)).await;
    for _ in 0..500 {
        if got.is_ok() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        got = lock(&mut b, &g.fh, op::lock_new(g.stateid, lb.clone(), W, 0, 10)).await;
    }
    panic!("the lock of the former self is still held");
}

/// Many ranges of one file, many owners.
#[tokio::test]
async fn many_locks() {
    let srv = Srv::start().await;
    let (mut a, f, mut b, g) = two(&srv).await;
    let owner = a.owner("l");
    let mut s = lock(&mut a, &f.fh, op::lock_new(f.stateid, owner, W, 0, 1)).await.unwrap();
    for i in 1..500 {
        s = lock(&mut a, &f.fh, op::lock_more(s, W, i * 10, 1)).await.unwrap();
    }
    for i in 0..100 {
        let owner = b.owner(format!("l{i}"));
        lock(&mut b, &g.fh, op::lock_new(g.stateid, owner, R, i * 10 + 1, 5)).await.unwrap();
    }
    let owner = b.owner("m");
    assert!(matches!(test(&mut b, &g.fh, owner, W, 4990, 1).await, LocktRes::Denied(_)));
    a.ok(&[op::put(&f.fh), op::locku(s, 0, u64::MAX)]).await;
}

/// Case K22: the denial of a lock whose holder has the longest owner there may be (1024 bytes, RFC 8881 3.3.17) is kept
/// whole, and replayed whole.
#[tokio::test]
async fn the_longest_owner_is_replayed() {
    let srv = Srv::start().await;
    let (mut a, f, mut b, g) = two(&srv).await;
    let owner = StateOwner { owner: vec![b'o'; 1024].into(), ..a.owner("") };
    lock(&mut a, &f.fh, op::lock_new(f.stateid, owner.clone(), W, 0, 10)).await.unwrap();
    let request = b.sequenced(0, &[op::put(&g.fh), op::lock_new(g.stateid, b.owner("me"), W, 0, 10)]);
    let first = b.wire.compound(2, &request).await;
    match first.results.last() {
        Some(ResOp::Lock(LockRes::Denied(denied))) => assert_eq!(denied.owner.owner, owner.owner),
        other => panic!("{other:?}"),
    }
    for _ in 0..3 {
        assert_eq!(b.wire.compound(2, &request).await, first);
    }
}

/// Case B28: the locks of an open end with it, and their stateid: one that is used again after CLOSE and another OPEN is
/// BAD_STATEID (RFC 8881 18.2.3, 8.2.4), and nothing is locked by it; a LOCK by way of the new open is taken at once.
#[tokio::test]
async fn a_lock_stateid_ends_with_its_open() {
    let srv = Srv::start().await;
    let (mut a, f, mut b, g) = two(&srv).await;
    let root = a.walk("").await;
    let owner = a.owner("l");
    let old = lock(&mut a, &f.fh, op::lock_new(f.stateid, owner.clone(), W, 0, 10)).await.unwrap();
    let old = match a.ok(&[op::put(&f.fh), op::locku(old, 0, 10)]).await.pop() {
        Some(ResOp::Locku(Ok(ok))) => ok.lock_stateid,
        other => panic!("{other:?}"),
    };
    a.close(&f).await;
    let again = open_both(&mut a, &root, "f", "owner").await;
    for stateid in [old, Stateid { seqid: 0, ..old }] {
        let more = op::lock_more(stateid, W, 0, 10);
        assert_eq!(lock(&mut a, &f.fh, more).await.unwrap_err(), LockRes::Err(Status::BAD_STATEID));
        assert_eq!(a.status(&[op::put(&f.fh), op::locku(stateid, 0, 10)]).await, Status::BAD_STATEID);
    }
    let theirs = b.owner("m");
    assert!(matches!(test(&mut b, &g.fh, theirs.clone(), W, 0, 10).await, LocktRes::Ok));
    lock(&mut a, &f.fh, op::lock_new(again.stateid, owner, W, 0, 10)).await.unwrap();
    assert!(matches!(test(&mut b, &g.fh, theirs, W, 0, 10).await, LocktRes::Denied(_)));
}

/// RFC 8881 18.10 to 18.12: what is no regular file has no locks, whatever the stateid.
#[tokio::test]
async fn locks_of_what_is_no_file() {
    use dhow_proto::v4::ops::CreateType;
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    c.mkdir(&root, "d").await;
    c.ok(&[op::put(&root), op::create(CreateType::Link("x".into()), "l", Default::default())]).await;
    c.ok(&[op::put(&root), op::create(CreateType::Fifo, "p", Default::default())]).await;
    let l = c.owner("l");
    for (name, due) in [("d", Status::ISDIR), ("l", Status::SYMLINK), ("p", Status::WRONG_TYPE)] {
        let fh = c.walk(name).await;
        for stateid in [f.stateid, Stateid { seqid: 1, other: [7; 12] }] {
            let new = op::lock_new(stateid, l.clone(), W, 0, 1);
            assert_eq!(lock(&mut c, &fh, new).await.unwrap_err(), LockRes::Err(due), "{name}");
            // LOCKU has no word for the type (15.2).
            let status = c.status(&[op::put(&fh), op::locku(stateid, 0, 1)]).await;
            assert!(matches!(status, Status::INVAL | Status::BAD_STATEID), "{name}: {status:?}");
        }
        assert_eq!(test(&mut c, &fh, l.clone(), W, 0, 1).await, LocktRes::Err(due), "{name}");
    }
}
