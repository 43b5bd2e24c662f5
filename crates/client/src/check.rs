//! Replies are not believed: what a reply claims is compared with what was asked (case B22).

use dhow_proto::v4::ops::{CreateHow, OpenHow, ReadPlusContent};
use dhow_proto::v4::{ArgOp, CompoundRes, OpNum, ResOp, Stateid, Status, optable};

use crate::{Error, Result};

/// Checks that `res` is an answer to `ops`: the same operations in the same order, no more of them, an error last and
/// nowhere else, and no more data than was asked for.
pub(crate) fn reply_fits(ops: &[ArgOp], res: &CompoundRes) -> Result<()> {
    let last = res.results.last().map(ResOp::status);
    if last.is_some_and(|s| s != res.status) {
        return Err(Error::protocol("status of the reply is not that of its last operation"));
    }
    if res.status.is_ok() && res.results.len() != ops.len() {
        return Err(Error::protocol("reply leaves operations unanswered"));
    }
    if res.results.len() > ops.len() {
        return Err(Error::protocol("reply answers more operations than were sent"));
    }
    let earlier = res.results.len().saturating_sub(1);
    if res.results.iter().take(earlier).any(|r| !r.status().is_ok()) {
        return Err(Error::protocol("reply goes on after a failed operation"));
    }
    for (arg, res) in ops.iter().zip(&res.results) {
        // A server that does not know the number at all answers with ILLEGAL.
        if res.op() != arg.op() && res.op() != OpNum::ILLEGAL {
            return Err(Error::protocol(format!("reply to {} is one to {}", arg.op(), res.op())));
        }
        let more = match (arg, res) {
            (ArgOp::Read(a), ResOp::Read(Ok(r))) => r.data.len() > a.count as usize,
            (ArgOp::Write(a), ResOp::Write(Ok(r))) => r.count as usize > a.data.len() || r.committed < a.stable,
            (ArgOp::ReadPlus(a), ResOp::ReadPlus(Ok(r))) => {
                let end = a.offset.saturating_add(a.count.into());
                !contents_in_order(a.offset, end, &r.contents)
            }
            (ArgOp::TestStateid(a), ResOp::TestStateid(Ok(r))) => r.status_codes.len() != a.stateids.len(),
            (ArgOp::Copy(a), ResOp::Copy(dhow_proto::v4::ops::CopyRes::Ok(r))) => {
                a.count != 0 && r.response.count > a.count
            }
            (ArgOp::Access(a), ResOp::Access(Ok(r))) => (r.access | r.supported) & !a.access != 0,
            _ => false,
        };
        if more {
            return Err(Error::protocol(format!("reply to {} claims more than was asked", arg.op())));
        }
    }
    Ok(())
}

/// Data may not begin before the range that was asked for nor end after it, nor overlap. A hole may be told to go on
/// beyond the range.
fn contents_in_order(start: u64, end: u64, contents: &[ReadPlusContent]) -> bool {
    let mut at = start;
    contents.iter().all(|content| {
        let (offset, stop) = match content {
            ReadPlusContent::Data { offset, data } => (*offset, offset.checked_add(data.len() as u64)),
            ReadPlusContent::Hole { offset, length } => (*offset, offset.checked_add(*length).map(|s| s.min(end))),
            ReadPlusContent::Other(_) => return false,
        };
        let fits = offset >= at && stop.is_some_and(|s| s <= end && s >= offset);
        at = stop.unwrap_or(at);
        fits
    })
}

/// Whether doing `op` twice does no more than doing it once, as far as a caller is concerned: then it may be sent as a
/// *new* request when the outcome of the first is not known, or when a later operation of its COMPOUND was told to
/// come again.
///
/// Wider than the operation table's "idempotent", which includes the reply: a second OPEN of one owner joins the first,
/// a second CLOSE finds nothing (which the caller takes for done), locks of one owner merge.
pub(crate) fn repeatable(op: &ArgOp) -> bool {
    match op {
        ArgOp::Open(args) => !matches!(args.how, OpenHow::Create(CreateHow::Guarded(_))),
        ArgOp::Close(_) | ArgOp::Lock(_) | ArgOp::Locku(_) | ArgOp::FreeStateid(_) | ArgOp::Delegreturn(_) => true,
        op => optable::lookup(op.op()).is_some_and(optable::OpInfo::is_idempotent),
    }
}

/// Whether `op`, which succeeded, will do so again when its COMPOUND is sent once more because a later operation was told
/// to come again. What ends a stateid will not, unless the OPEN goes with it: what follows is sent without it then. An
/// exclusive create may not (see [`spoiled`]); the caller is given the answer in which it did.
pub(crate) fn succeeds_again(op: &ArgOp) -> bool {
    match op {
        ArgOp::Close(close) => close.open_stateid == Stateid::CURRENT,
        ArgOp::FreeStateid(_) | ArgOp::Delegreturn(_) => false,
        op => repeatable(op),
    }
}

/// The operation of which `res` says nothing, since it may have failed for no other reason than that the same
/// operations were executed before, all or some of them.
///
/// | Operation | Second answer | Because |
/// |---|---|---|
/// | OPEN with exclusive create | EXIST | the server ended between the creation and its note of the verifier, or keeps the verifier in the file's times and a WRITE or SETATTR changed them (RFC 8881 section 18.16.3) |
/// | OPEN that creates | ACCESS, PERM | the file has the mode now that it was made with |
/// | SETATTR | ACCESS, PERM | mode, owner or ACL took the right away |
/// | VERIFY; NVERIFY | NOT_SAME; SAME | what it guards has been done |
/// | CLOSE, DELEGRETURN, FREE_STATEID | BAD_STATEID | the stateid has been given up (of one that was revoked the server says so) |
/// | PUTFH before CLOSE or DELEGRETURN | STALE | that was the last that held a removed file |
pub(crate) fn spoiled(ops: &[ArgOp], res: &CompoundRes) -> Option<OpNum> {
    let (at, status) = (res.results.len().checked_sub(1)?, res.status);
    let modifies =
        |op: &ArgOp| matches!(op, ArgOp::Open(_)) || optable::lookup(op.op()).is_some_and(optable::OpInfo::modifies);
    let refused = matches!(status, Status::ACCESS | Status::PERM);
    let op = ops.get(at)?;
    let by_itself = match op {
        ArgOp::Open(args) => match &args.how {
            OpenHow::NoCreate => false,
            OpenHow::Create(CreateHow::Unchecked(_)) => refused,
            OpenHow::Create(_) => refused || status == Status::EXIST,
        },
        ArgOp::Setattr(_) => refused,
        ArgOp::Verify(_) => status == Status::NOT_SAME && ops.iter().any(modifies),
        ArgOp::Nverify(_) => status == Status::SAME && ops.iter().any(modifies),
        ArgOp::Close(_) | ArgOp::Delegreturn(_) | ArgOp::FreeStateid(_) => status == Status::BAD_STATEID,
        ArgOp::PutFh(_) if status == Status::STALE => {
            let mut after = ops.iter().skip(at);
            return after.find(|op| matches!(op, ArgOp::Close(_) | ArgOp::Delegreturn(_))).map(ArgOp::op);
        }
        _ => false,
    };
    by_itself.then(|| op.op())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use dhow_proto::v4::ops::*;
    use dhow_proto::v4::{StableHow, Status, Verifier};

    use super::*;

    fn read(count: u32) -> ArgOp {
        ArgOp::Read(ReadArgs { stateid: Stateid::ANONYMOUS, offset: 0, count })
    }

    fn data(n: usize) -> ResOp {
        ResOp::Read(Ok(ReadOk { eof: false, data: Bytes::from(vec![0; n]) }))
    }

    fn check(ops: &[ArgOp], status: Status, results: Vec<ResOp>) -> bool {
        reply_fits(ops, &CompoundRes { status, tag: Bytes::new(), results }).is_ok()
    }

    /// Case B22: a READ reply with more data than asked, a WRITE reply that counts more than was sent.
    #[test]
    fn more_than_asked_is_refused() {
        assert!(check(&[read(10)], Status::OK, vec![data(10)]));
        assert!(!check(&[read(10)], Status::OK, vec![data(11)]));
        let write = ArgOp::Write(WriteArgs {
            stateid: Stateid::ANONYMOUS,
            offset: 0,
            stable: StableHow::DATA_SYNC,
            data: Bytes::from_static(b"abc"),
        });
        let wrote = |count, committed| vec![ResOp::Write(Ok(WriteOk { count, committed, verifier: Verifier([0; 8]) }))];
        assert!(check(std::slice::from_ref(&write), Status::OK, wrote(3, StableHow::FILE_SYNC)));
        assert!(!check(std::slice::from_ref(&write), Status::OK, wrote(4, StableHow::FILE_SYNC)));
        assert!(!check(&[write], Status::OK, wrote(3, StableHow::UNSTABLE)), "less stable than asked");
    }

    #[test]
    fn answers_must_match_the_operations() {
        assert!(!check(&[read(1)], Status::OK, vec![]));
        assert!(!check(&[read(1)], Status::OK, vec![data(1), data(1)]));
        assert!(!check(&[read(1)], Status::OK, vec![ResOp::GetFh(Err(Status::IO))]));
        assert!(!check(&[ArgOp::GetFh], Status::OK, vec![data(1)]));
        assert!(check(&[ArgOp::GetFh], Status::STALE, vec![ResOp::GetFh(Err(Status::STALE))]));
        assert!(check(&[ArgOp::GetFh], Status::OP_ILLEGAL, vec![ResOp::Illegal(Err(Status::OP_ILLEGAL))]));
        assert!(!check(&[ArgOp::GetFh, read(1)], Status::OK, vec![ResOp::GetFh(Err(Status::STALE)), data(1)]));
    }

    #[test]
    fn read_plus_contents_stay_in_the_range() {
        use ReadPlusContent::{Data, Hole};
        let d = |offset, n: usize| Data { offset, data: Bytes::from(vec![0; n]) };
        assert!(contents_in_order(10, 20, &[Hole { offset: 10, length: 5 }, d(15, 5)]));
        assert!(contents_in_order(10, 20, &[Hole { offset: 10, length: u64::MAX - 10 }]));
        assert!(!contents_in_order(10, 20, &[d(9, 2)]));
        assert!(!contents_in_order(10, 20, &[d(15, 6)]));
        assert!(!contents_in_order(10, 20, &[d(10, 5), d(14, 2)]));
        assert!(!contents_in_order(10, 20, &[d(u64::MAX, 2)]));
    }

    #[test]
    fn what_may_be_sent_again() {
        assert!(repeatable(&read(1)) && repeatable(&ArgOp::SaveFh) && repeatable(&ArgOp::GetFh));
        let close = |open_stateid| ArgOp::Close(CloseArgs { seqid: 0, open_stateid });
        assert!(repeatable(&close(Stateid::ANONYMOUS)) && succeeds_again(&close(Stateid::CURRENT)));
        assert!(!succeeds_again(&close(Stateid { seqid: 1, other: [7; 12] })) && succeeds_again(&read(1)));
        assert!(!repeatable(&ArgOp::Remove(RemoveArgs { target: Bytes::new() })));
        assert!(!repeatable(&ArgOp::Rename(RenameArgs { old_name: Bytes::new(), new_name: Bytes::new() })));
        let back = ArgOp::Delegreturn(DelegreturnArgs { stateid: Stateid::ANONYMOUS });
        assert!(repeatable(&back) && !succeeds_again(&back));
    }

    /// RFC 8881 sections 18.2, 18.15, 18.16.3, 18.30, 18.31.
    #[test]
    fn what_says_nothing_the_second_time() {
        let says = |ops: &[ArgOp], results: Vec<ResOp>| {
            let status = results.last().unwrap().status();
            spoiled(ops, &CompoundRes { status, tag: Bytes::new(), results })
        };
        let open = |how| {
            ArgOp::Open(OpenArgs {
                seqid: 0,
                share_access: share::ACCESS_WRITE,
                share_deny: share::DENY_NONE,
                owner: crate::opens::state_owner(Bytes::new()),
                how,
                claim: OpenClaim::Null(Bytes::from_static(b"x")),
            })
        };
        let fattr = || dhow_proto::v4::Fattr::from(&dhow_proto::v4::Attrs::default());
        let exclusive = OpenHow::Create(CreateHow::Exclusive41 { verifier: Verifier([1; 8]), attrs: fattr() });
        let failed = |status| vec![ResOp::error(OpNum::OPEN, status)];
        assert_eq!(says(&[open(exclusive.clone())], failed(Status::EXIST)), Some(OpNum::OPEN));
        assert_eq!(says(&[open(exclusive.clone())], failed(Status::ACCESS)), Some(OpNum::OPEN));
        assert_eq!(says(&[open(exclusive)], failed(Status::NOSPC)), None);
        let unchecked = OpenHow::Create(CreateHow::Unchecked(fattr()));
        assert_eq!(says(&[open(unchecked)], failed(Status::ACCESS)), Some(OpNum::OPEN));
        assert_eq!(says(&[open(OpenHow::NoCreate)], failed(Status::ACCESS)), None);
        let (put, close) = (
            ArgOp::PutFh(PutFhArgs { object: dhow_proto::v4::FileHandle(Bytes::from_static(b"h")) }),
            ArgOp::Close(CloseArgs { seqid: 0, open_stateid: Stateid { seqid: 1, other: [7; 12] } }),
        );
        let stale = || vec![ResOp::error(OpNum::PUTFH, Status::STALE)];
        assert_eq!(says(&[put.clone(), close.clone()], stale()), Some(OpNum::CLOSE));
        assert_eq!(says(&[put.clone(), read(1)], stale()), None);
        let gone = vec![ResOp::PutFh(Ok(())), ResOp::error(OpNum::CLOSE, Status::BAD_STATEID)];
        assert_eq!(says(&[put, close], gone), Some(OpNum::CLOSE));
        let guard = ArgOp::Verify(VerifyArgs { attrs: fattr() });
        let differs = || vec![ResOp::error(OpNum::VERIFY, Status::NOT_SAME)];
        let set = ArgOp::Setattr(SetattrArgs { stateid: Stateid::ANONYMOUS, attrs: fattr() });
        assert_eq!(says(&[guard.clone(), set], differs()), Some(OpNum::VERIFY));
        assert_eq!(says(&[guard, read(1)], differs()), None);
    }
}
