//! READ, WRITE, COMMIT (RFC 8881 18.22, 18.32, 18.3).

use crate::common::{Srv, last, read_anon};
use dhow_proto::v4::attr::{MODE, SIZE};
use dhow_proto::v4::ops::{CreateType, IoAdviseArgs, advise, share};
use dhow_proto::v4::{ArgOp, Attrs, Bitmap, OpNum, ResOp, StableHow, Stateid, Status, Verifier};
use dhow_testkit::fault::Call;
use dhow_testkit::memfs::Options;
use dhow_testkit::wire::{Client, Open, op, sys};

async fn file(c: &mut Client, data: &[u8]) -> Open {
    let root = c.walk("").await;
    let open = c.create(&root, "f").await;
    if !data.is_empty() {
        c.write(&open, 0, data).await;
    }
    open
}

/// Case B20: count, end and data agree at and past the end of the file.
#[tokio::test]
async fn ends() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let f = file(&mut c, &[7; 100]).await;
    for (offset, count, due) in [
        (0, 100, 100),
        (0, 4096, 100),
        (50, 4096, 50),
        (50, 50, 50),
        (99, 1, 1),
        (100, 1, 0),
        (101, 1, 0),
        (1 << 40, 4096, 0),
        ((1 << 63) - 1, 1, 0),
        (1 << 63, 1, 0),
        (u64::MAX, 1, 0),
        (u64::MAX, u32::MAX, 0),
    ] {
        let (data, eof) = c.read(&f, offset, count).await;
        assert_eq!(data.len(), due, "{count} bytes at {offset}");
        assert!(eof, "{count} bytes at {offset} reach the end");
    }
    let (data, eof) = c.read(&f, 0, 99).await;
    assert_eq!((data.len(), eof), (99, false));
    let (data, eof) = c.read(&f, 10, 0).await;
    assert_eq!((data.len(), eof), (0, false), "nothing was asked for");
}

/// Case B21: a READ of 4 GiB is cut, not refused and no fault.
#[tokio::test]
async fn huge_reads() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let f = file(&mut c, b"x").await;
    c.ok(&[op::put(&f.fh), op::setattr_with(f.stateid, Attrs { size: Some(64 << 20), ..Attrs::default() })]).await;
    for count in [1 << 20, 1 << 24, u32::MAX] {
        let sequence = ArgOp::Sequence(c.session.sequence(0, false));
        let res = c.wire.compound(2, &[sequence, op::put(&f.fh), op::read(f.stateid, 0, count)]).await;
        match res.results.last() {
            Some(ResOp::Read(Ok(ok))) => assert!(!ok.eof && !ok.data.is_empty() && ok.data.len() <= 1 << 20),
            Some(ResOp::Read(Err(Status::REP_TOO_BIG))) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// What is written is read, at any size and offset, in any order.
#[tokio::test]
async fn contents() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let f = file(&mut c, b"").await;
    let mut model = vec![0_u8; 3 << 20];
    let mut size = 0;
    let mut seed = 0x9e37_79b9_u64;
    for round in 0..60_u8 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let offset = (seed >> 33) as usize % (2 << 20);
        let len = match round % 4 {
            0 => 1 << 20,
            1 => 4096,
            2 => 1,
            _ => (seed >> 20) as usize % 100_000,
        };
        let data = vec![round + 1; len];
        c.write(&f, offset as u64, &data).await;
        model[offset..offset + len].copy_from_slice(&data);
        size = size.max(offset + len);
    }
    let mut got = Vec::new();
    loop {
        let (data, eof) = c.read(&f, got.len() as u64, 300_000).await;
        got.extend_from_slice(&data);
        if eof {
            break;
        }
    }
    assert!(got == model[..size]);
}

async fn write(
    c: &mut Client,
    f: &Open,
    at: u64,
    how: StableHow,
    data: &[u8],
) -> Result<(u32, StableHow, Verifier), Status> {
    match c.run(&[op::put(&f.fh), op::write(f.stateid, at, how, data)]).await.results.pop() {
        Some(ResOp::Write(done)) => done.map(|ok| (ok.count, ok.committed, ok.verifier)),
        other => panic!("{other:?}"),
    }
}

async fn commit(c: &mut Client, f: &Open, offset: u64, count: u32) -> Result<Verifier, Status> {
    match c.run(&[op::put(&f.fh), op::commit(offset, count)]).await.results.pop() {
        Some(ResOp::Commit(done)) => done.map(|ok| ok.verifier),
        other => panic!("{other:?}"),
    }
}

/// Cases B30 and K25: WRITE and COMMIT return one verifier, at least as stable as asked, and it changes when data may
/// have been lost.
#[tokio::test]
async fn stability() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let f = file(&mut c, b"").await;
    let mut verifiers = Vec::new();
    for how in [StableHow::UNSTABLE, StableHow::DATA_SYNC, StableHow::FILE_SYNC] {
        let (count, committed, verifier) = write(&mut c, &f, 0, how, b"stable").await.unwrap();
        assert_eq!(count, 6);
        assert!(committed >= how);
        verifiers.push(verifier);
    }
    for (offset, count) in [(0, 0), (0, 6), (3, 1), (1000, 1), (u64::MAX - 10, 0)] {
        verifiers.push(commit(&mut c, &f, offset, count).await.unwrap());
    }
    let first = verifiers[0];
    assert!(verifiers.iter().all(|v| *v == first), "{verifiers:?}");

    write(&mut c, &f, 0, StableHow::UNSTABLE, b"LOSE").await.unwrap();
    srv.fs.crash();
    assert_eq!(srv.fs.content_of("f").unwrap(), "stable");
    let second = commit(&mut c, &f, 0, 0).await.unwrap();
    assert_ne!(second, first, "the client must learn that it has to write again");

    write(&mut c, &f, 0, StableHow::UNSTABLE, b"again").await.unwrap();
    srv.fs.fail_syncs(1);
    assert_eq!(commit(&mut c, &f, 0, 0).await.unwrap_err(), Status::IO);
    let third = commit(&mut c, &f, 0, 0).await.unwrap();
    assert_ne!(third, second, "case B30");
    srv.fs.fail_syncs(1);
    assert_eq!(write(&mut c, &f, 0, StableHow::FILE_SYNC, b"x").await.unwrap_err(), Status::IO);
    assert_ne!(write(&mut c, &f, 0, StableHow::UNSTABLE, b"x").await.unwrap().2, third);
}

/// COMMIT of ranges that make no sense (18.3.3), and a WRITE of nothing (18.32.3).
#[tokio::test]
async fn odd_ranges() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let f = file(&mut c, b"abc").await;
    let status = commit(&mut c, &f, u64::MAX, u32::MAX).await;
    assert!(matches!(status, Ok(_) | Err(Status::INVAL)), "offset + count past 2^64: {status:?}");
    let (count, _, _) = write(&mut c, &f, 1, StableHow::UNSTABLE, b"").await.unwrap();
    assert_eq!(count, 0);
    let (count, _, _) = write(&mut c, &f, 1 << 40, StableHow::UNSTABLE, b"").await.unwrap();
    assert_eq!(count, 0);
    assert_eq!(c.attrs(&f.fh, &[SIZE]).await.size, Some(3), "a WRITE of nothing changes nothing");
    for offset in [u64::MAX, u64::MAX - 1, 1 << 63] {
        let status = write(&mut c, &f, offset, StableHow::UNSTABLE, b"xyz").await.unwrap_err();
        assert!(matches!(status, Status::FBIG | Status::INVAL), "{offset:#x}: {status:?}");
    }
    let res = c.run(&[op::put(&f.fh), op::write(f.stateid, 0, StableHow(3), b"x")]).await;
    assert!(matches!(last(&res).1, Status::BADXDR | Status::INVAL), "{:?}", last(&res));
}

/// RFC 8881 18.22.3, 18.32.3: what is no regular file.
#[tokio::test]
async fn not_a_file() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    c.ok(&[op::root(), op::mkdir("d")]).await;
    c.ok(&[op::root(), op::create(CreateType::Link("x".into()), "l", Attrs::default())]).await;
    c.ok(&[op::root(), op::create(CreateType::Fifo, "p", Attrs::default())]).await;
    for (name, due) in [("d", Status::ISDIR), ("l", Status::SYMLINK), ("p", Status::WRONG_TYPE)] {
        let ops = [
            op::read(Stateid::ANONYMOUS, 0, 1),
            op::write(Stateid::ANONYMOUS, 0, StableHow::UNSTABLE, b"x"),
            op::commit(0, 0),
        ];
        for io in ops {
            let res = c.run(&[op::root(), op::lookup(name), io.clone()]).await;
            let (op, status) = last(&res);
            assert_eq!(op, io.op());
            assert!(status == due || status == Status::WRONG_TYPE || status == Status::INVAL, "{name}: {status:?}");
            assert!(!status.is_ok());
        }
    }
}

/// RFC 8881 8.2.3: special stateids, by the mode of the file; the owner may always (case B02).
#[tokio::test]
async fn special_stateids() {
    let srv = Srv::start().await;
    let mut c = srv.client_as("c", 1000, 1000, &[]).await;
    let f = file(&mut c, b"data").await;
    c.close(&f).await;
    for stateid in [Stateid::ANONYMOUS, Stateid::READ_BYPASS] {
        let res = c.ok(&[op::put(&f.fh), op::read(stateid, 0, 10)]).await;
        assert!(matches!(&res[1], ResOp::Read(Ok(ok)) if &ok.data[..] == b"data"));
    }
    c.ok(&[op::put(&f.fh), op::write(Stateid::ANONYMOUS, 0, StableHow::UNSTABLE, b"D")]).await;
    c.ok(&[op::put(&f.fh), op::setattr(Attrs { mode: Some(0), ..Attrs::default() })]).await;
    assert_eq!(read_anon(&mut c, &f.fh, 0, 4).await.unwrap().0, "Data");
    c.ok(&[op::put(&f.fh), op::write(Stateid::ANONYMOUS, 1, StableHow::UNSTABLE, b"A")]).await;
    c.wire.cred = sys(1001, 1001, &[]);
    assert_eq!(read_anon(&mut c, &f.fh, 0, 4).await.unwrap_err(), Status::ACCESS);
    let write = op::write(Stateid::ANONYMOUS, 0, StableHow::UNSTABLE, b"x");
    assert_eq!(c.status(&[op::put(&f.fh), write]).await, Status::ACCESS);
    // Half special: neither.
    let odd = Stateid { seqid: 7, other: [0; 12] };
    let invalid = Stateid::INVALID;
    for stateid in [odd, invalid] {
        assert_eq!(c.status(&[op::put(&f.fh), op::read(stateid, 0, 1)]).await, Status::BAD_STATEID);
    }
}

/// RFC 8881 9.1.2: the stateid's mode decides, and the file it belongs to.
#[tokio::test]
async fn wrong_stateids() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let f = file(&mut c, b"data").await;
    let g = c.create(&root, "g").await;
    let owner = c.owner("reader");
    let r = c.open(&root, op::open_name(owner, share::ACCESS_READ, 0, "f")).await;
    let owner = c.owner("writer");
    let w = c.open(&root, op::open_name(owner, share::ACCESS_WRITE, 0, "f")).await;
    let put = op::put(&f.fh);
    let write = |s| op::write(s, 0, StableHow::UNSTABLE, b"x");
    assert_eq!(c.status(&[put.clone(), write(r.stateid)]).await, Status::OPENMODE);
    // A READ under a write-only open may be let through (18.22.3) but is better refused by nobody.
    let status = c.status(&[put.clone(), op::read(w.stateid, 0, 1)]).await;
    assert!(matches!(status, Status::OK | Status::OPENMODE));
    let trunc = Attrs { size: Some(0), ..Attrs::default() };
    assert_eq!(c.status(&[put.clone(), op::setattr_with(r.stateid, trunc)]).await, Status::OPENMODE);
    assert_eq!(c.status(&[op::put(&g.fh), op::read(f.stateid, 0, 1)]).await, Status::BAD_STATEID, "of another file");
    let later = Stateid { seqid: f.stateid.seqid + 1, ..f.stateid };
    assert_eq!(c.status(&[put.clone(), op::read(later, 0, 1)]).await, Status::BAD_STATEID);
    let latest = Stateid { seqid: 0, ..f.stateid };
    assert!(c.status(&[put.clone(), op::read(latest, 0, 1)]).await.is_ok(), "8.2.2: 0 is the latest");
    let mut forged = f.stateid;
    forged.other[11] ^= 1;
    assert_eq!(c.status(&[put.clone(), op::read(forged, 0, 1)]).await, Status::BAD_STATEID);
    c.close(&f).await;
    assert_eq!(c.status(&[put, op::read(f.stateid, 0, 1)]).await, Status::BAD_STATEID);
}

/// Case B01: the open of a create writes whatever the mode says, and goes on to when the mode changes.
#[tokio::test]
async fn the_open_counts_not_the_mode() {
    let srv = Srv::start().await;
    let mut c = srv.client_as("c", 1000, 1000, &[]).await;
    let root = c.walk("").await;
    let owner = c.owner("git");
    let f = c.open(&root, op::open_create(owner, share::ACCESS_BOTH, 0, "pack", 0o444)).await;
    c.write(&f, 0, b"pack").await;
    c.ok(&[op::put(&f.fh), op::setattr(Attrs { mode: Some(0o400), ..Attrs::default() })]).await;
    let owner = c.owner("again");
    let r = c.open(&root, op::open_name(owner, share::ACCESS_READ, 0, "pack")).await;
    assert_eq!(c.read(&r, 0, 10).await.0, "pack");
    c.write(&f, 4, b"!").await;
    c.close(&r).await;
    c.close(&f).await;
    assert_eq!(c.attrs(&f.fh, &[MODE]).await.mode, Some(0o400));
}

/// No space: the error comes once, at the write, and what was there stays.
#[tokio::test]
async fn no_space() {
    let srv = Srv::with(Options { max_bytes: 1 << 20, ..Options::default() }, |_| {}).await;
    let mut c = srv.client("c").await;
    let f = file(&mut c, &[1; 1000]).await;
    let data = vec![2; 900_000];
    write(&mut c, &f, 0, StableHow::UNSTABLE, &data).await.unwrap();
    assert_eq!(write(&mut c, &f, 1 << 20, StableHow::UNSTABLE, &data).await.unwrap_err(), Status::NOSPC);
    assert_eq!(c.read(&f, 0, 10).await.0, &[2; 10][..]);
    commit(&mut c, &f, 0, 0).await.unwrap();
}

/// Case B52: reading first does not stop a write after, nor does a size of 0 that came before any OPEN.
#[tokio::test]
async fn reading_then_writing() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let f = file(&mut c, b"abc").await;
    read_anon(&mut c, &f.fh, 0, 3).await.unwrap();
    c.ok(&[op::put(&f.fh), op::write(Stateid::ANONYMOUS, 0, StableHow::FILE_SYNC, b"xyz")]).await;
    c.ok(&[op::put(&f.fh), op::setattr(Attrs { size: Some(0), ..Attrs::default() })]).await;
    c.ok(&[op::put(&f.fh), op::write(Stateid::ANONYMOUS, 0, StableHow::UNSTABLE, b"0123456789"), op::commit(0, 0)])
        .await;
    assert_eq!(read_anon(&mut c, &f.fh, 0, 100).await.unwrap().0, "0123456789");
}

/// Several operations with data in one COMPOUND.
#[tokio::test]
async fn many_in_one() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let f = file(&mut c, b"").await;
    let mut ops = vec![op::put(&f.fh)];
    for i in 0..20_u64 {
        ops.push(op::write(f.stateid, i * 1000, StableHow::UNSTABLE, vec![i as u8; 1000]));
    }
    ops.push(op::commit(0, 0));
    ops.push(op::getattr(&[SIZE]));
    let res = c.ok(&ops).await;
    assert_eq!(res.len(), ops.len());
    let mut ops = vec![op::put(&f.fh)];
    ops.extend((0..20_u64).map(|i| op::read(f.stateid, i * 1000, 1000)));
    for (i, res) in c.ok(&ops).await.iter().skip(1).enumerate() {
        assert!(matches!(res, ResOp::Read(Ok(ok)) if ok.data == vec![i as u8; 1000] && ok.eof == (i == 19)));
    }
    assert!(srv.fault.count(Call::Write) == 20);
    assert_eq!(last(&c.run(&[op::put(&f.fh), op::commit(0, 0)]).await), (OpNum::COMMIT, Status::OK));
}

/// IO_ADVISE (RFC 7862 15.5): the stateid is checked, and a hint that is not honoured is not claimed to be.
#[tokio::test]
async fn advice() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let f = file(&mut c, b"x").await;
    let ask = |stateid| {
        let hints = Bitmap::of(&[advise::SEQUENTIAL, advise::WILLNEED]);
        vec![op::put(&f.fh), ArgOp::IoAdvise(IoAdviseArgs { stateid, offset: 0, count: 0, hints })]
    };
    let res = c.ok(&ask(f.stateid)).await;
    assert!(matches!(res.last(), Some(ResOp::IoAdvise(Ok(ok))) if ok.hints == Bitmap::EMPTY), "{res:?}");
    let made_up = Stateid { seqid: 1, other: [9; 12] };
    assert_eq!(c.status(&ask(made_up)).await, Status::BAD_STATEID);
    c.close(&f).await;
    let status = c.status(&ask(f.stateid)).await;
    assert!(matches!(status, Status::BAD_STATEID | Status::OLD_STATEID), "{status:?}");
}
