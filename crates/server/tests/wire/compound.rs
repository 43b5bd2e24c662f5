//! Rules of COMPOUND (RFC 8881 16.2, 15.2) and of the operation table.

use crate::common::{Srv, last};
use dhow_proto::NFS_PROGRAM;
use dhow_proto::v4::optable::{self, Position};
use dhow_proto::v4::{ArgOp, OpNum, PROC_COMPOUND, ResOp, Status, VERSION};
use dhow_testkit::wire::{Client, Reply, op};
use dhow_xdr::{Encode, Writer};

/// A COMPOUND with a raw tail after its operations: `count` of them are claimed.
fn raw(tag: &[u8], minor: u32, count: u32, ops: &[ArgOp], tail: &[u8]) -> Vec<u8> {
    let mut w = Writer::new();
    w.opaque(tag);
    w.u32(minor);
    w.u32(count);
    for op in ops {
        op.encode(&mut w);
    }
    w.fixed(tail);
    w.into_bytes().to_vec()
}

/// SEQUENCE and a raw operation in the session.
async fn with_raw(c: &mut Client, minor: u32, before: &[ArgOp], num: u32, args: &[u8]) -> Reply {
    let mut ops = vec![ArgOp::Sequence(c.session.sequence(0, false))];
    ops.extend_from_slice(before);
    let mut tail = num.to_be_bytes().to_vec();
    tail.extend_from_slice(args);
    let body = raw(b"", minor, ops.len() as u32 + 1, &ops, &tail);
    let xid = c.wire.send_call(NFS_PROGRAM, VERSION, PROC_COMPOUND, &body).await;
    c.wire.reply(xid).await
}

async fn status_of_raw(c: &mut Client, minor: u32, before: &[ArgOp], num: u32, args: &[u8]) -> (OpNum, Status) {
    last(&with_raw(c, minor, before, num, args).await.compound(minor))
}

/// RFC 8881 15.1.3.4, 16.2.3: numbers of no operation, also of one that only a later minor version has.
#[tokio::test]
async fn illegal_operations() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    for num in [0, 1, 2, 77, 100, 999, 10_044, 10_045, u32::MAX] {
        assert_eq!(
            status_of_raw(&mut c, 2, &[], num, &[]).await,
            (OpNum::ILLEGAL, Status::OP_ILLEGAL),
            "operation {num}"
        );
    }
    for num in 59..=75 {
        assert_eq!(status_of_raw(&mut c, 1, &[], num, &[0; 64]).await, (OpNum::ILLEGAL, Status::OP_ILLEGAL));
    }
    assert!(c.status(&[op::root()]).await.is_ok());
}

/// Every number: what is in the table is answered by a status that it allows, with arguments of zeros and with none;
/// what is not, by OP_ILLEGAL. Operations of NFSv4.0 alone are NOTSUPP.
#[tokio::test]
async fn every_operation_number() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    for minor in [1, 2] {
        for num in 0..=90 {
            let info = optable::lookup_minor(OpNum(num), minor);
            // Sessions are ended by none of these: their arguments are zeros.
            for args in [&[][..], &[0; 400]] {
                for before in [&[][..], &[op::root()], &[op::root(), ArgOp::SaveFh]] {
                    let reply = with_raw(&mut c, minor, before, num, args).await;
                    let (got, status) = last(&reply.compound(minor));
                    match info {
                        None => assert_eq!((got, status), (OpNum::ILLEGAL, Status::OP_ILLEGAL), "{num}"),
                        Some(info) if info.position == Position::Never => {
                            assert!(matches!(status, Status::NOTSUPP | Status::BADXDR), "{}: {status:?}", info.name);
                        }
                        Some(info) => assert!(info.allows(status), "{}: {status:?}", info.name),
                    }
                }
            }
        }
    }
    assert!(c.status(&[op::root()]).await.is_ok());
}

/// RFC 8881 15.1.3.2 and chapter 2.7: minor versions that are not served: no results at all.
#[tokio::test]
async fn minor_versions() {
    let srv = Srv::start().await;
    let mut w = srv.wire().await;
    for minor in [0, 3, 4, u32::MAX] {
        let res = w.compound(minor, &[op::root()]).await;
        assert_eq!((res.status, res.results.len()), (Status::MINOR_VERS_MISMATCH, 0), "minor {minor}");
    }
    for minor in [1, 2] {
        let res = w.compound(minor, &[op::root()]).await;
        assert_eq!(res.status, Status::OP_NOT_IN_SESSION);
    }
}

/// RFC 8881 16.2.3: the tag comes back; no operations are no error.
#[tokio::test]
async fn tags_and_emptiness() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    for tag in [&b""[..], b"x", b"a tag of some length", &[b't'; 1024], "ü".as_bytes()] {
        let ops = [ArgOp::Sequence(c.session.sequence(0, false)), op::root()];
        let body = raw(tag, 2, 2, &ops, &[]);
        let xid = c.wire.send_call(NFS_PROGRAM, VERSION, PROC_COMPOUND, &body).await;
        let res = c.wire.compound_reply(2, xid).await;
        assert_eq!(res.tag, tag);
        assert!(res.status.is_ok());
    }
    // Bytes that are no UTF-8: refused with INVAL or passed on, never an ended connection.
    let body = raw(b"\xff\xfe", 2, 0, &[], &[]);
    let xid = c.wire.send_call(NFS_PROGRAM, VERSION, PROC_COMPOUND, &body).await;
    let res = c.wire.compound_reply(2, xid).await;
    assert!(matches!(res.status, Status::OK | Status::INVAL));
    let res = c.wire.compound(2, &[]).await;
    assert_eq!((res.status, res.results.len()), (Status::OK, 0));
    let res = c.run(&[]).await;
    assert_eq!((res.status, res.results.len()), (Status::OK, 1));
}

/// Case B22: counts that lie. Nothing is allocated for them, what was there is answered, and the connection goes on.
#[tokio::test]
async fn counts_that_lie() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    for count in [3, 100, 1 << 20, 1 << 31, u32::MAX] {
        let ops = [ArgOp::Sequence(c.session.sequence(0, false)), op::root()];
        let body = raw(b"", 2, count, &ops, &[]);
        let xid = c.wire.send_call(NFS_PROGRAM, VERSION, PROC_COMPOUND, &body).await;
        let reply = c.wire.reply(xid).await;
        if reply.refusal().is_none() {
            let res = reply.compound(2);
            assert!(matches!(res.status, Status::BADXDR | Status::TOO_MANY_OPS), "{count}: {:?}", res.status);
            if res.results.first().is_some_and(|r| !r.status().is_ok()) {
                // SEQUENCE failed, so its number was not used.
                c.session.next[0] -= 1;
            }
        }
        assert!(c.status(&[op::root()]).await.is_ok(), "after {count}");
    }
    // Outside of a session too.
    for count in [1, 1 << 31, u32::MAX] {
        let body = raw(b"", 2, count, &[], &[]);
        let xid = c.wire.send_call(NFS_PROGRAM, VERSION, PROC_COMPOUND, &body).await;
        let reply = c.wire.reply(xid).await;
        if reply.refusal().is_none() {
            assert!(!reply.compound(2).status.is_ok());
        }
    }
}

/// RFC 8881 15.1.1.1: arguments that end too early, each operation cut at every word: BADXDR for that operation, and
/// what came before it is answered.
#[tokio::test]
async fn arguments_cut_short() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    let owner = c.owner("o");
    let all = [
        op::put(&root),
        op::lookup("name"),
        op::getattr(&[1, 3, 60]),
        op::setattr(dhow_proto::v4::Attrs { mode: Some(0o600), ..Default::default() }),
        op::access(0x3f),
        op::mkdir("x"),
        op::remove("x"),
        op::rename("a", "b"),
        op::link("c"),
        op::readdir(0, Default::default(), 4096, &[1]),
        op::read(f.stateid, 0, 10),
        op::write(f.stateid, 0, dhow_proto::v4::StableHow::UNSTABLE, b"data"),
        op::commit(0, 0),
        op::open_create(owner.clone(), 3, 0, "g", 0o644),
        op::close(f.stateid),
        op::downgrade(f.stateid, 1, 0),
        op::lock_new(f.stateid, owner.clone(), dhow_proto::v4::LockType::WRITE, 0, 1),
        op::lockt(owner, dhow_proto::v4::LockType::WRITE, 0, 1),
        op::locku(f.stateid, 0, 1),
        op::seek(f.stateid, 0, dhow_proto::v4::ops::DataContent::DATA),
        op::clone(f.stateid, f.stateid, 0, 0, 0),
        op::copy(f.stateid, f.stateid, (0, 0), 0, true),
    ];
    for full in all {
        let bytes = full.to_bytes();
        let args = &bytes[4..];
        for cut in (0..args.len()).step_by(4) {
            let got = status_of_raw(&mut c, 2, &[op::put(&f.fh), ArgOp::SaveFh], full.op().0, &args[..cut]).await;
            assert_eq!(got, (full.op(), Status::BADXDR), "cut at {cut}");
        }
    }
    assert!(c.status(&[op::put(&f.fh), op::close(f.stateid)]).await.is_ok(), "nothing was done to the file");
}

/// Case B22: lengths and counts inside of arguments that promise more than there is.
#[tokio::test]
async fn lengths_inside_that_lie() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    for len in [5_u32, 129, 1 << 20, 1 << 31, u32::MAX - 3, u32::MAX] {
        let mut args = len.to_be_bytes().to_vec();
        args.extend([0; 4]);
        for num in [OpNum::LOOKUP, OpNum::PUTFH, OpNum::REMOVE, OpNum::GETATTR, OpNum::LINK, OpNum::SECINFO] {
            let (got, status) = status_of_raw(&mut c, 2, &[op::root(), ArgOp::SaveFh], num.0, &args).await;
            assert_eq!((got, status), (num, Status::BADXDR), "length {len}");
        }
    }
    // An array of 2^31 stateids.
    let (_, status) = status_of_raw(&mut c, 2, &[], OpNum::TEST_STATEID.0, &(1_u32 << 31).to_be_bytes()).await;
    assert_eq!(status, Status::BADXDR);
    // A WRITE that says 4096 bytes and brings none (case B21).
    let mut args = vec![0; 16 + 8];
    args.extend([0, 0, 0, 0]);
    args.extend(4096_u32.to_be_bytes());
    let (_, status) = status_of_raw(&mut c, 2, &[op::root()], OpNum::WRITE.0, &args).await;
    assert_eq!(status, Status::BADXDR);
}

/// RFC 8881 16.2.3: processing ends at the first failure, and the results up to it are returned.
#[tokio::test]
async fn the_first_failure_ends_it() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let res = c.run(&[op::root(), op::mkdir("a"), op::lookup("none"), op::root(), op::mkdir("b")]).await;
    assert_eq!(last(&res), (OpNum::LOOKUP, Status::NOENT));
    assert_eq!(res.results.len(), 4);
    assert!(srv.fs.handle_of("a").is_some() && srv.fs.handle_of("b").is_none());
}

/// RFC 8881 16.2.3.1.1: operations that need a current or saved filehandle and have none (by the table).
#[tokio::test]
async fn missing_filehandles() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    let owner = c.owner("o");
    let all = [
        op::getfh(),
        op::lookup("x"),
        ArgOp::Lookupp,
        ArgOp::SaveFh,
        ArgOp::Readlink,
        op::getattr(&[1]),
        op::setattr(Default::default()),
        op::access(1),
        op::mkdir("x"),
        op::remove("x"),
        op::readdir(0, Default::default(), 4096, &[]),
        op::read(f.stateid, 0, 1),
        op::write(f.stateid, 0, dhow_proto::v4::StableHow::UNSTABLE, b"x"),
        op::commit(0, 0),
        op::open_name(owner.clone(), 1, 0, "f"),
        op::close(f.stateid),
        op::downgrade(f.stateid, 1, 0),
        op::lock_new(f.stateid, owner.clone(), dhow_proto::v4::LockType::WRITE, 0, 1),
        op::lockt(owner, dhow_proto::v4::LockType::WRITE, 0, 1),
        op::locku(f.stateid, 0, 1),
        op::seek(f.stateid, 0, dhow_proto::v4::ops::DataContent::DATA),
        ArgOp::Secinfo(dhow_proto::v4::ops::SecinfoArgs { name: "x".into() }),
        ArgOp::Verify(dhow_proto::v4::ops::VerifyArgs { attrs: Default::default() }),
        ArgOp::Nverify(dhow_proto::v4::ops::VerifyArgs { attrs: Default::default() }),
    ];
    for op in all {
        assert!(optable::lookup(op.op()).unwrap().needs_current_fh());
        let res = c.run(std::slice::from_ref(&op)).await;
        assert_eq!(last(&res), (op.op(), Status::NOFILEHANDLE));
    }
    for op in [ArgOp::RestoreFh, op::link("x"), op::rename("f", "g")] {
        let res = c.run(&[op::root(), op.clone()]).await;
        assert_eq!(last(&res), (op.op(), Status::NOFILEHANDLE), "no saved filehandle");
    }
    assert!(srv.fs.handle_of("f").is_some());
}

/// RFC 8881 16.2.3.1.1 and 18.27, 18.28: saved and restored, handle and stateid.
#[tokio::test]
async fn saving_and_restoring() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    c.ok(&[op::root(), op::mkdir("a"), op::root(), op::mkdir("b")]).await;
    let (a, b) = (c.walk("a").await, c.walk("b").await);
    let ops = [
        op::put(&a),
        ArgOp::SaveFh,
        op::put(&b),
        op::getfh(),
        ArgOp::RestoreFh,
        op::getfh(),
        ArgOp::RestoreFh,
        op::getfh(),
    ];
    let fhs: Vec<_> = c
        .ok(&ops)
        .await
        .into_iter()
        .filter_map(|r| match r {
            ResOp::GetFh(Ok(ok)) => Some(ok.object),
            _ => None,
        })
        .collect();
    assert_eq!(fhs, [b, a.clone(), a]);
    // Neither outlives its COMPOUND.
    assert_eq!(c.status(&[op::getfh()]).await, Status::NOFILEHANDLE);
    assert_eq!(c.status(&[ArgOp::RestoreFh]).await, Status::NOFILEHANDLE);
    let mut ok = c.ok(&[ArgOp::PutPubFh, op::getfh()]).await;
    let public = ok.pop();
    assert_eq!(public, c.ok(&[op::root(), op::getfh()]).await.pop(), "the public filehandle is the root");
}

/// RFC 8881 16.2.3.1.2: the current stateid carries an OPEN to a READ, WRITE and CLOSE of the same COMPOUND.
#[tokio::test]
async fn the_current_stateid() {
    use dhow_proto::v4::{StableHow, Stateid};
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let owner = c.owner("o");
    let ops = [
        op::root(),
        op::open_create(owner.clone(), 3, 0, "f", 0o644),
        op::write(Stateid::CURRENT, 0, StableHow::FILE_SYNC, b"hello"),
        op::read(Stateid::CURRENT, 0, 10),
        op::setattr_with(Stateid::CURRENT, dhow_proto::v4::Attrs { size: Some(4), ..Default::default() }),
        op::close(Stateid::CURRENT),
    ];
    let res = c.ok(&ops).await;
    assert!(matches!(&res[3], ResOp::Read(Ok(ok)) if &ok.data[..] == b"hello"));
    assert_eq!(srv.fs.content_of("f").unwrap(), "hell");
    assert_eq!(srv.fs.open_count(), 0);
    // There is none: BAD_STATEID. A new current filehandle takes it away.
    let root = c.walk("").await;
    let f = c.walk("f").await;
    assert_eq!(c.status(&[op::put(&f), op::read(Stateid::CURRENT, 0, 1)]).await, Status::BAD_STATEID);
    let ops = [op::put(&root), op::open_name(owner.clone(), 1, 0, "f"), op::put(&f), op::read(Stateid::CURRENT, 0, 1)];
    assert_eq!(c.status(&ops).await, Status::BAD_STATEID);
    // SAVEFH and RESTOREFH keep it with its filehandle.
    let ops = [
        op::put(&root),
        op::open_name(owner.clone(), 1, 0, "f"),
        ArgOp::SaveFh,
        op::put(&root),
        ArgOp::RestoreFh,
        op::read(Stateid::CURRENT, 0, 1),
        op::close(Stateid::CURRENT),
    ];
    assert!(c.status(&ops).await.is_ok());
}

/// RFC 8881 16.2.3.1.2, 8.2.3: every operation with a stateid takes the current one, and every operation that returns one
/// sets it; OPEN_DOWNGRADE and CLOSE take it with its seqid, the others as the most recent.
#[tokio::test]
async fn the_current_stateid_of_locks_and_others() {
    use dhow_proto::v4::ops::{AllocateArgs, DataContent, FreeStateidArgs, IoAdviseArgs, LockRes, share};
    use dhow_proto::v4::{LockType, Stateid};
    const NOW: Stateid = Stateid::CURRENT;
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let (o, l) = (c.owner("o"), c.owner("l"));
    let created = c.create(&root, "f").await;
    c.close(&created).await;
    let advise = IoAdviseArgs { stateid: NOW, offset: 0, count: 0, hints: Default::default() };
    let res = c
        .ok(&[
            op::put(&root),
            op::open_name(o.clone(), share::ACCESS_READ, 0, "f"),
            op::put(&root),
            op::open_name(o.clone(), share::ACCESS_BOTH, 0, "f"),
            ArgOp::Allocate(AllocateArgs { stateid: NOW, offset: 0, length: 5 }),
            op::seek(NOW, 0, DataContent::DATA),
            ArgOp::IoAdvise(advise),
            op::lock_new(NOW, l.clone(), LockType::WRITE, 0, 10),
            // Now it is the lock's.
            op::lock_more(NOW, LockType::WRITE, 20, 10),
            op::write(NOW, 0, dhow_proto::v4::StableHow::UNSTABLE, b"data"),
            op::locku(NOW, 0, u64::MAX),
        ])
        .await;
    let ResOp::Locku(Ok(unlocked)) = res.last().unwrap() else { panic!("{res:?}") };
    assert!(matches!(&res[8], ResOp::Lock(LockRes::Ok(s)) if s.seqid + 1 == unlocked.lock_stateid.seqid));
    let ResOp::Open(Ok(open)) = &res[3] else { panic!("{res:?}") };
    // FREE_STATEID takes it, and needs no filehandle; nothing after it has one.
    let res = c
        .ok(&[
            op::put(&created.fh),
            op::lock_more(unlocked.lock_stateid, LockType::WRITE, 0, 1),
            op::locku(NOW, 0, 1),
            ArgOp::FreeStateid(FreeStateidArgs { stateid: NOW }),
        ])
        .await;
    assert_eq!(res.len(), 4);
    // Downgraded and closed by it.
    let down = op::downgrade(NOW, share::ACCESS_READ, share::DENY_NONE);
    let ops = [op::put(&root), op::open_name(o.clone(), share::ACCESS_READ, 0, "f"), down, op::close(NOW)];
    c.ok(&ops).await;
    assert_eq!(srv.fs.open_count(), 0);
    let gone = c.status(&[op::put(&created.fh), op::close(Stateid { seqid: 0, ..open.stateid })]).await;
    assert_eq!(gone, Status::BAD_STATEID);
    // CLOSE leaves the invalid one, and what makes an object current none.
    let after_close = [op::put(&root), op::open_name(o, share::ACCESS_READ, 0, "f"), op::close(NOW), op::close(NOW)];
    assert_eq!(last(&c.run(&after_close).await), (OpNum::CLOSE, Status::BAD_STATEID));
    for first in [op::put(&created.fh), op::lookup("f")] {
        let lock = op::lock_new(NOW, l.clone(), LockType::READ, 0, 1);
        assert_eq!(last(&c.run(&[op::root(), first, lock]).await), (OpNum::LOCK, Status::BAD_STATEID));
    }
}

/// As many operations as the session allows.
#[tokio::test]
async fn the_longest_compound() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let most = c.session.granted.fore_chan.max_operations as usize;
    let mut ops = vec![op::root()];
    ops.resize(most - 1, op::getfh());
    assert_eq!(c.ok(&ops).await.len(), most - 1);
    ops.push(op::getfh());
    let res = c.run(&ops).await;
    assert_eq!(res.status, Status::TOO_MANY_OPS);
    let hits = srv.running.shared().limit_hits();
    assert!(hits.contains(&("limits.operations_per_compound", 1)), "{hits:?}");
}

/// What is not offered says so: NOTSUPP, never a fault and never silence; SET_SSV, which has no NOTSUPP, INVAL for a
/// client without SP4_SSV (RFC 8881 18.47.3).
#[tokio::test]
async fn not_offered() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let zeros = [0; 400];
    let both = [
        OpNum::OPEN_CONFIRM,
        OpNum::RENEW,
        OpNum::SETCLIENTID,
        OpNum::SETCLIENTID_CONFIRM,
        OpNum::RELEASE_LOCKOWNER,
        OpNum::DELEGPURGE,
        OpNum::GET_DIR_DELEGATION,
        OpNum::GETDEVICEINFO,
        OpNum::GETDEVICELIST,
        OpNum::LAYOUTCOMMIT,
        OpNum::LAYOUTGET,
        OpNum::LAYOUTRETURN,
        OpNum::OPENATTR,
        OpNum::WANT_DELEGATION,
    ];
    let later = [OpNum::LAYOUTERROR, OpNum::LAYOUTSTATS, OpNum::WRITE_SAME];
    for minor in [1, 2] {
        for num in both.iter().chain(later.iter().filter(|_| minor == 2)) {
            let got = status_of_raw(&mut c, minor, &[op::root()], num.0, &zeros).await;
            assert_eq!(got, (*num, Status::NOTSUPP), "in 4.{minor}");
        }
        let got = status_of_raw(&mut c, minor, &[], OpNum::SET_SSV.0, &zeros).await;
        assert_eq!(got, (OpNum::SET_SSV, Status::INVAL));
    }
    // Nothing else is missing: every other operation runs, and says what is wrong with its arguments.
    for info in optable::TABLE.iter().filter(|i| i.may_be_served() && i.op != OpNum::ILLEGAL) {
        let (_, status) = status_of_raw(&mut c, 2, &[op::root(), ArgOp::SaveFh, op::root()], info.op.0, &zeros).await;
        let expected = both.contains(&info.op) || later.contains(&info.op);
        assert_eq!(status == Status::NOTSUPP, expected, "{}: {status:?}", info.name);
        assert_ne!(status, Status::SERVERFAULT, "{}", info.name);
    }
}
