//! Quotas: what is used up is DQUOT, told once and where it happened; what is left is shown (RFC 8881 5.8.2.28 to
//! 5.8.2.30, 15.1.4.2; RFC 7862 15.1, 15.2). The quotas are a fake filesystem's: real ones need a kernel that has them.

use crate::common::{Srv, last};
use crate::copy::offloaded;
use dhow_proto::v4::cb::OffloadInfo;
use dhow_proto::v4::ops::{AllocateArgs, CopyRes, CreateType};
use dhow_proto::v4::{ArgOp, Attrs, ResOp, StableHow, Status, attr};
use dhow_testkit::fault::{Action, Call};
use dhow_testkit::memfs::Options;
use dhow_testkit::wire::op;
use dhow_vfs::{ErrorKind, Quota};
use std::time::Duration;

/// Whatever takes space, under a quota that is used up at the backend: DQUOT to the one request that met it, and the next
/// try goes on as if nothing had been.
#[tokio::test]
async fn told_once_by_each_operation() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let (f, g) = (c.create(&root, "f").await, c.create(&root, "g").await);
    c.write(&f, 0, &[7; 8192]).await;
    let put = || op::put(&f.fh);
    let copy = || vec![put(), ArgOp::SaveFh, op::put(&g.fh), op::copy(f.stateid, g.stateid, (0, 0), 8192, true)];
    let clone = || vec![put(), ArgOp::SaveFh, op::put(&g.fh), op::clone(f.stateid, g.stateid, 0, 0, 8192)];
    let grow = Attrs { size: Some(1 << 20), ..Attrs::default() };
    let owner = Attrs { owner: Some("1000".into()), ..Attrs::default() };
    let allocate = AllocateArgs { stateid: f.stateid, offset: 0, length: 1 << 20 };
    let unstable = op::write(f.stateid, 8192, StableHow::UNSTABLE, [8; 4096]);
    let cases: Vec<(Call, Vec<ArgOp>)> = vec![
        (Call::Write, vec![put(), unstable]),
        (Call::Write, vec![put(), op::write(f.stateid, 8192, StableHow::FILE_SYNC, [8; 4096])]),
        (Call::Create, vec![op::put(&root), op::open_create(c.owner("new"), 3, 0, "new", 0o644)]),
        (Call::Make, vec![op::put(&root), op::create(CreateType::Dir, "d", Attrs::default())]),
        (Call::Allocate, vec![put(), ArgOp::Allocate(allocate)]),
        (Call::CopyRange, copy()),
        (Call::CloneRange, clone()),
        (Call::SetAttr, vec![put(), op::setattr_with(f.stateid, grow)]),
        // A file given to somebody whose quota is used up.
        (Call::SetAttr, vec![put(), op::setattr(owner)]),
    ];
    for (call, ops) in cases {
        let num = ops.last().unwrap().op();
        srv.fault.once(call, Action::Fail(ErrorKind::Quota));
        assert_eq!(last(&c.run(&ops).await), (num, Status::DQUOT), "{call:?}");
        assert_eq!(last(&c.run(&ops).await), (num, Status::OK), "{call:?}: told again");
    }
    c.close(&f).await;
}

/// Data that was taken unstable and for which the quota turns out to be used up when it is written back (as over a
/// network filesystem): COMMIT says so, once, and by another verifier, so that the client knows what is lost (18.3).
#[tokio::test]
async fn told_by_commit() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    c.write(&f, 0, b"data").await;
    let commit = [op::put(&f.fh), op::commit(0, 0)];
    srv.fault.once(Call::Commit, Action::Fail(ErrorKind::Quota));
    let status = last(&c.run(&commit).await).1;
    // COMMIT may not say DQUOT (15.2): it is IO there.
    assert!(!dhow_proto::v4::optable::allows(dhow_proto::v4::OpNum::COMMIT, 2, Status::DQUOT));
    assert_eq!(status, Status::IO);
    assert_eq!(last(&c.run(&commit).await).1, Status::OK);
}

/// An asynchronous copy that meets the quota: its end says DQUOT, in one CB_OFFLOAD and to whoever asks.
#[tokio::test]
async fn told_by_the_end_of_a_copy() {
    let srv = Srv::with(Options::default(), |c| c.copy.sync_budget = Duration::ZERO).await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let (f, g) = (c.create(&root, "f").await, c.create(&root, "g").await);
    c.write(&f, 0, &[7; 8192]).await;
    srv.fault.once(Call::CopyRange, Action::Fail(ErrorKind::Quota));
    let copy = op::copy(f.stateid, g.stateid, (0, 0), 8192, false);
    let res = c.run(&[op::put(&f.fh), ArgOp::SaveFh, op::put(&g.fh), copy]).await;
    let stateid = match res.results.last() {
        Some(ResOp::Copy(CopyRes::Ok(ok))) => *ok.response.callback_id.first().expect("asynchronous"),
        // It failed before the copy could become asynchronous: told by COPY itself.
        Some(ResOp::Copy(CopyRes::Err(Status::DQUOT))) => return,
        other => panic!("{other:?}"),
    };
    let (_, _, told) = offloaded(&mut c).await;
    assert_eq!(told.stateid, stateid);
    assert!(matches!(told.info, OffloadInfo::Err { status: Status::DQUOT, bytes_copied: 0 }), "{told:?}");
    match c.ok(&[op::offload_status(stateid)]).await.pop() {
        Some(ResOp::OffloadStatus(Ok(ok))) => assert_eq!(ok.complete, [Status::DQUOT]),
        other => panic!("{other:?}"),
    }
}

/// What is shown is the quota of the file's owner, whoever asks; no more is left than the filesystem has.
#[tokio::test]
async fn what_is_left_is_shown() {
    const MIB: u64 = 1 << 20;
    let quotas = vec![
        (1000, Quota { used: 3 * MIB, hard: Some(10 * MIB), soft: Some(5 * MIB) }),
        (1001, Quota { used: 12 * MIB, hard: Some(10 * MIB), soft: None }),
        (1002, Quota { used: MIB, hard: None, soft: None }),
    ];
    let options = Options { quotas: Some(quotas), max_bytes: 64 * MIB, root_mode: 0o777, ..Options::default() };
    let srv = Srv::with(options, |_| {}).await;
    let mut c = srv.client("c").await;
    let root = c.walk("").await;
    let supported = c.attrs(&root, &[attr::SUPPORTED_ATTRS]).await.supported_attrs.unwrap();
    let all = [attr::QUOTA_USED, attr::QUOTA_AVAIL_HARD, attr::QUOTA_AVAIL_SOFT];
    assert!(all.iter().all(|a| supported.contains(*a)));
    let avail = c.attrs(&root, &[attr::SPACE_AVAIL]).await.space_avail.unwrap();
    for (uid, due) in [
        (1000, (3 * MIB, 7 * MIB, 2 * MIB)),
        (1001, (12 * MIB, 0, 0)),
        (1002, (MIB, avail, avail)),
        // Without a quota: nothing stands in the way but the filesystem's own end.
        (1003, (0, avail, avail)),
    ] {
        let mut user = srv.client_as(&format!("u{uid}"), uid, uid, &[]).await;
        let f = user.create(&root, format!("f{uid}")).await;
        let a = c.attrs(&f.fh, &all).await;
        let shown = (a.quota_used.unwrap(), a.quota_avail_hard.unwrap(), a.quota_avail_soft.unwrap());
        // Making the file took a little of the filesystem.
        let close = |a: u64, b: u64| a.abs_diff(b) <= MIB;
        assert!(shown.0 == due.0 && close(shown.1, due.1) && close(shown.2, due.2), "{uid}: {shown:?}");
    }
    // The source of quotas fails: so does the question, once, and only if it is asked.
    srv.fault.once(Call::Quota, Action::Fail(ErrorKind::Io));
    assert_eq!(c.status(&[op::put(&root), op::getattr(&[attr::SIZE])]).await, Status::OK);
    assert_eq!(c.status(&[op::put(&root), op::getattr(&[attr::QUOTA_USED])]).await, Status::IO);
    assert_eq!(c.status(&[op::put(&root), op::getattr(&[attr::QUOTA_USED])]).await, Status::OK);
}
