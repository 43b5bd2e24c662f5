//! ALLOCATE, DEALLOCATE, SEEK (RFC 7862 15.1, 15.4, 15.11).

use crate::common::{Srv, last};
use dhow_proto::v4::attr::{SIZE, SPACE_USED};
use dhow_proto::v4::ops::{AllocateArgs, CreateType, DataContent, SeekOk, share};
use dhow_proto::v4::{ArgOp, OpNum, ResOp, Stateid, Status};
use dhow_testkit::fault::{Action, Call};
use dhow_testkit::memfs::Options;
use dhow_testkit::wire::{Client, Open, op};
use dhow_vfs::ErrorKind;

const KIB: u64 = 1024;

fn allocate(stateid: Stateid, offset: u64, length: u64) -> ArgOp {
    ArgOp::Allocate(AllocateArgs { stateid, offset, length })
}

fn deallocate(stateid: Stateid, offset: u64, length: u64) -> ArgOp {
    ArgOp::Deallocate(AllocateArgs { stateid, offset, length })
}

async fn file(c: &mut Client) -> Open {
    let root = c.walk("").await;
    c.create(&root, "f").await
}

async fn seek(c: &mut Client, f: &Open, offset: u64, what: DataContent) -> Result<SeekOk, Status> {
    match c.run(&[op::put(&f.fh), op::seek(f.stateid, offset, what)]).await.results.pop() {
        Some(ResOp::Seek(done)) => done,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn seeking() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let f = file(&mut c).await;
    // Hole, data, hole, data.
    c.write(&f, 64 * KIB, &[1; 8192]).await;
    c.write(&f, 256 * KIB, &[2; 100]).await;
    let size = 256 * KIB + 100;
    let at = |offset| SeekOk { eof: false, offset };
    assert_eq!(seek(&mut c, &f, 0, DataContent::DATA).await, Ok(at(64 * KIB)));
    assert_eq!(seek(&mut c, &f, 0, DataContent::HOLE).await, Ok(at(0)));
    assert_eq!(seek(&mut c, &f, 64 * KIB + 5, DataContent::DATA).await, Ok(at(64 * KIB + 5)));
    assert_eq!(seek(&mut c, &f, 64 * KIB + 5, DataContent::HOLE).await, Ok(at(72 * KIB)));
    assert_eq!(seek(&mut c, &f, 72 * KIB, DataContent::DATA).await, Ok(at(256 * KIB)));
    let end = seek(&mut c, &f, 256 * KIB + 1, DataContent::HOLE).await.unwrap();
    assert_eq!(end.offset, size, "the end counts as a hole");
    for offset in [size, size + 1, 1 << 60, u64::MAX] {
        for what in [DataContent::DATA, DataContent::HOLE] {
            assert_eq!(seek(&mut c, &f, offset, what).await.unwrap_err(), Status::NXIO, "{offset}");
        }
    }
    // No more data: eof, and no error (15.11.3).
    c.ok(&[op::put(&f.fh), allocate(f.stateid, 0, 1)]).await;
    c.ok(&[
        op::put(&f.fh),
        op::setattr_with(f.stateid, dhow_proto::v4::Attrs { size: Some(1 << 20), ..Default::default() }),
    ])
    .await;
    assert!(seek(&mut c, &f, 512 * KIB, DataContent::DATA).await.unwrap().eof);
    let odd = seek(&mut c, &f, 0, DataContent(7)).await.unwrap_err();
    assert!(matches!(odd, Status::UNION_NOTSUPP | Status::INVAL | Status::BADXDR), "{odd:?}");
}

#[tokio::test]
async fn allocating_and_deallocating() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let f = file(&mut c).await;
    c.write(&f, 0, b"abc").await;
    c.ok(&[op::put(&f.fh), allocate(f.stateid, 0, 100_000)]).await;
    let a = c.attrs(&f.fh, &[SIZE, SPACE_USED]).await;
    assert_eq!(a.size, Some(100_000));
    assert!(a.space_used.unwrap() >= 100_000);
    let (data, _) = c.read(&f, 0, 100_000).await;
    assert!(&data[..3] == b"abc" && data[3..].iter().all(|&b| b == 0) && data.len() == 100_000);
    c.ok(&[op::put(&f.fh), deallocate(f.stateid, 0, 1 << 40)]).await;
    let a = c.attrs(&f.fh, &[SIZE, SPACE_USED]).await;
    assert_eq!(a.size, Some(100_000), "the size stays (15.4.3)");
    assert!(a.space_used.unwrap() < 8192);
    assert!(c.read(&f, 0, 3).await.0.iter().all(|&b| b == 0));
}

/// Ranges that make no sense, wrong modes (case K29), wrong objects.
#[tokio::test]
async fn refusals() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    let owner = c.owner("reader");
    let r = c.open(&root, op::open_name(owner, share::ACCESS_READ, 0, "f")).await;
    c.ok(&[op::put(&root), op::mkdir("d")]).await;
    let d = c.walk("d").await;
    type Make = fn(Stateid, u64, u64) -> ArgOp;
    for make in [allocate as Make, deallocate as Make] {
        for (offset, length) in [(0, 0), (u64::MAX, 2), (1 << 63, 1 << 63)] {
            let res = c.run(&[op::put(&f.fh), make(f.stateid, offset, length)]).await;
            let (_, status) = last(&res);
            assert!(
                matches!(status, Status::INVAL | Status::FBIG) || (length == 0 && status.is_ok()),
                "{offset} {length}: {status:?}"
            );
        }
        assert_eq!(c.status(&[op::put(&f.fh), make(r.stateid, 0, 10)]).await, Status::OPENMODE, "case K29");
        let bogus = Stateid { seqid: 1, other: [9; 12] };
        assert_eq!(c.status(&[op::put(&f.fh), make(bogus, 0, 10)]).await, Status::BAD_STATEID);
        let res = c.run(&[op::put(&d), make(Stateid::ANONYMOUS, 0, 10)]).await;
        assert!(matches!(last(&res).1, Status::WRONG_TYPE | Status::ISDIR | Status::INVAL), "{:?}", last(&res));
    }
    assert_eq!(c.attrs(&f.fh, &[SIZE]).await.size, Some(0));
    let res = c.run(&[op::put(&d), op::seek(Stateid::ANONYMOUS, 0, DataContent::DATA)]).await;
    assert!(
        matches!(last(&res), (OpNum::SEEK, Status::WRONG_TYPE | Status::ISDIR | Status::INVAL)),
        "{:?}",
        last(&res)
    );
}

/// What is reserved has room; what has none is refused, and nothing is done.
#[tokio::test]
async fn no_space() {
    let srv = Srv::with(Options { max_bytes: 1 << 20, ..Options::default() }, |_| {}).await;
    let mut c = srv.client("c").await;
    let f = file(&mut c).await;
    assert_eq!(c.status(&[op::put(&f.fh), allocate(f.stateid, 0, 2 << 20)]).await, Status::NOSPC);
    assert_eq!(c.attrs(&f.fh, &[SIZE]).await.size, Some(0));
    c.ok(&[op::put(&f.fh), allocate(f.stateid, 0, 1 << 20)]).await;
    c.write(&f, 0, &vec![1; 1 << 20]).await;
}

/// READ_PLUS (RFC 7862 15.10): data and holes, in order and without gaps, up to the count or the end; a hole is told as
/// one.
#[tokio::test]
async fn read_plus() {
    use dhow_proto::v4::ops::{ReadPlusArgs, ReadPlusContent};
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let f = file(&mut c).await;
    c.write(&f, 64 * KIB, &[1; 8192]).await;
    c.write(&f, 256 * KIB, &[2; 100]).await;
    let size = 256 * KIB + 100;
    let model = srv.fs.content_of("f").unwrap();
    let mut holes = 0;
    for (offset, count) in
        [(0, 1_u32 << 20), (0, 100), (65 * KIB, 1 << 20), (70_000, 10), (size - 1, 5), (size, 5), (u64::MAX, 5)]
    {
        let mut at: u64 = offset;
        let end = offset.saturating_add(u64::from(count)).min(size);
        loop {
            let left = u32::try_from(end.saturating_sub(at)).unwrap().max(1);
            let args = ReadPlusArgs { stateid: f.stateid, offset: at, count: left };
            let sequence = ArgOp::Sequence(c.session.sequence(0, false));
            let res = c.wire.compound(2, &[sequence, op::put(&f.fh), ArgOp::ReadPlus(args)]).await;
            let ok = match res.results.into_iter().next_back() {
                Some(ResOp::ReadPlus(Ok(ok))) => ok,
                other => panic!("{other:?}"),
            };
            for piece in ok.contents {
                match piece {
                    ReadPlusContent::Data { offset, data } => {
                        assert_eq!(offset, at);
                        assert!(data == model[at as usize..at as usize + data.len()]);
                        at += data.len() as u64;
                    }
                    ReadPlusContent::Hole { offset, length } => {
                        assert_eq!(offset, at);
                        assert!(model[at as usize..(at + length) as usize].iter().all(|&b| b == 0));
                        holes += length;
                        at += length;
                    }
                    ReadPlusContent::Other(kind) => panic!("{kind:?}"),
                }
            }
            assert_eq!(ok.eof, at >= size, "at {at}");
            if at >= end {
                break;
            }
        }
    }
    assert!(holes >= (64 + 184) * KIB, "{holes} bytes of holes were told as such");
    // What it is not for (15.10.2), and what it needs.
    let ask = |stateid| ArgOp::ReadPlus(ReadPlusArgs { stateid, offset: 0, count: 10 });
    let root = c.walk("").await;
    let owner = c.owner("writer");
    let w = c.open(&root, op::open_name(owner, share::ACCESS_WRITE, 0, "f")).await;
    // A READ under an open for writing is let through or is OPENMODE (RFC 8881 18.22.3); both operations agree.
    let read = c.status(&[op::put(&f.fh), op::read(w.stateid, 0, 1)]).await;
    assert_eq!(c.status(&[op::put(&f.fh), ask(w.stateid)]).await, read);
    assert!(matches!(read, Status::OK | Status::OPENMODE));
    assert_eq!(c.status(&[op::put(&f.fh), ask(Stateid { seqid: 1, other: [9; 12] })]).await, Status::BAD_STATEID);
    assert_eq!(c.status(&[op::put(&root), ask(Stateid::ANONYMOUS)]).await, Status::ISDIR);
    srv.fault.once(Call::Seek, Action::Fail(ErrorKind::Io));
    assert_eq!(c.status(&[op::put(&f.fh), ask(f.stateid)]).await, Status::IO);
    // A filesystem that cannot tell holes has nothing but data.
    srv.fault.always(Call::Seek, Action::Fail(ErrorKind::NotSupported));
    match c.ok(&[op::put(&f.fh), ask(f.stateid)]).await.pop() {
        Some(ResOp::ReadPlus(Ok(ok))) => {
            assert!(matches!(&ok.contents[..], [ReadPlusContent::Data { offset: 0, data }] if data.len() == 10));
        }
        other => panic!("{other:?}"),
    }
}

/// IO_ADVISE (RFC 7862 15.5.3): no hint and no contradiction of hints is an error, and no range is; what it needs is a
/// file and a stateid of it.
#[tokio::test]
async fn io_advise() {
    use dhow_proto::v4::Bitmap;
    use dhow_proto::v4::ops::IoAdviseArgs;
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    let owner = c.owner("writer");
    let w = c.open(&root, op::open_name(owner, share::ACCESS_WRITE, 0, "f")).await;
    let all: Vec<u32> = (0..=11).chain([40, 63]).collect();
    let advise = |stateid, offset, count, hints: &[u32]| {
        ArgOp::IoAdvise(IoAdviseArgs { stateid, offset, count, hints: Bitmap::of(hints) })
    };
    for stateid in [f.stateid, w.stateid, Stateid::ANONYMOUS, Stateid { seqid: 0, ..f.stateid }] {
        for hints in [&[][..], &[1, 3], &all] {
            for (offset, count) in [(0, 0), (5, 10), (1 << 40, 1), (u64::MAX, u64::MAX)] {
                match c.ok(&[op::put(&f.fh), advise(stateid, offset, count, hints)]).await.pop() {
                    Some(ResOp::IoAdvise(Ok(ok))) => {
                        assert!(ok.hints.is_subset(&Bitmap::of(hints)), "{hints:?}: {:?}", ok.hints);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    let bogus = Stateid { seqid: 1, other: [9; 12] };
    assert_eq!(c.status(&[op::put(&f.fh), advise(bogus, 0, 0, &[1])]).await, Status::BAD_STATEID);
    c.ok(&[op::put(&root), op::mkdir("d")]).await;
    c.ok(&[op::put(&root), op::create(CreateType::Link("x".into()), "l", Default::default())]).await;
    c.ok(&[op::put(&root), op::create(CreateType::Fifo, "p", Default::default())]).await;
    for (name, due) in [("d", Status::ISDIR), ("l", Status::SYMLINK), ("p", Status::WRONG_TYPE)] {
        let other = c.walk(name).await;
        assert_eq!(c.status(&[op::put(&other), advise(Stateid::ANONYMOUS, 0, 0, &[1])]).await, due, "{name}");
    }
    assert_eq!(c.status(&[advise(f.stateid, 0, 0, &[1])]).await, Status::NOFILEHANDLE);
    c.close(&f).await;
    assert_eq!(c.status(&[op::put(&f.fh), advise(f.stateid, 0, 0, &[1])]).await, Status::BAD_STATEID);
}

/// READ and READ_PLUS cut themselves to what the session's replies may have, or are refused (RFC 8881 2.10.6.4).
#[tokio::test]
async fn small_sessions() {
    use dhow_proto::v4::ops::ReadPlusArgs;
    use dhow_testkit::wire::ClientOptions;
    let srv = Srv::start().await;
    let mut o = ClientOptions::named("c");
    o.fore.max_response_size = 4096;
    let mut c = Client::connect(srv.addr, o).await;
    let f = file(&mut c).await;
    for i in 0..100 {
        c.write(&f, i * 1000, &[1; 1000]).await;
    }
    let plus = ArgOp::ReadPlus(ReadPlusArgs { stateid: f.stateid, offset: 0, count: 90_000 });
    for ask in [op::read(f.stateid, 0, 90_000), plus] {
        let sequence = ArgOp::Sequence(c.session.sequence(0, false));
        let res = c.wire.compound(2, &[sequence, op::put(&f.fh), ask]).await;
        assert!(dhow_xdr::Encode::to_bytes(&res).len() <= 4096);
        assert!(matches!(res.status, Status::OK | Status::REP_TOO_BIG | Status::NOTSUPP), "{:?}", res.status);
        c.ok(&[op::root()]).await;
    }
}
