//! The operation table (RFC 8881 section 15.2 and 17; case B24).

use dhow_proto::v4::optable::{COMPOUND_ERRORS, GENERAL, Position, SESSION, TABLE, allows, lookup, lookup_minor};
use dhow_proto::v4::{OpNum, Status};

#[test]
fn every_operation_has_one_entry_in_order() {
    assert_eq!(TABLE.len(), OpNum::ALL.len());
    assert!(TABLE.is_sorted_by(|a, b| a.op < b.op));
    for op in OpNum::ALL.iter().copied() {
        let info = lookup(op).unwrap();
        assert_eq!((info.op, Some(info.name)), (op, op.name()));
    }
    for unknown in [0, 1, 2, 76, 10043, 10045, u32::MAX] {
        assert!(lookup(OpNum(unknown)).is_none());
    }
}

#[test]
fn errors_are_known_and_listed_once() {
    for info in TABLE {
        let errors: Vec<_> = info.errors().collect();
        for (i, e) in errors.iter().enumerate() {
            assert!(e.name().is_some() && !e.is_ok(), "{}: {e}", info.name);
            assert!(!errors[..i].contains(e), "{}: {e} twice", info.name);
        }
    }
}

#[test]
fn minor_versions() {
    // RFC 8881 section 15.1.3.4: what a minor version does not have is illegal there.
    for op in OpNum::ALL {
        let since_42 = (59..=75).contains(&op.0);
        assert_eq!(lookup_minor(*op, 1).is_none(), since_42, "{op}");
        assert!(lookup_minor(*op, 2).is_some());
        assert!(lookup_minor(*op, 0).is_none());
    }
    assert!(allows(OpNum::SEEK, 2, Status::UNION_NOTSUPP));
    assert!(!allows(OpNum::SEEK, 1, Status::UNION_NOTSUPP));
}

#[test]
fn mandatory_not_to_implement() {
    // RFC 8881 table 16.
    for op in
        [OpNum::OPEN_CONFIRM, OpNum::RELEASE_LOCKOWNER, OpNum::RENEW, OpNum::SETCLIENTID, OpNum::SETCLIENTID_CONFIRM]
    {
        let info = lookup(op).unwrap();
        assert!(!info.may_be_served());
        assert_eq!(info.errors().collect::<Vec<_>>(), [Status::NOTSUPP]);
        assert!(!info.allows(Status::OK));
    }
    assert_eq!(TABLE.iter().filter(|i| !i.may_be_served()).count(), 5);
    assert!(!allows(OpNum::ILLEGAL, 1, Status::OK));
    assert!(allows(OpNum::ILLEGAL, 1, Status::OP_ILLEGAL));
}

#[test]
fn positions() {
    // RFC 8881 sections 18.34.3, 18.35.3, 18.36.3, 18.37.3, 18.46.3, 18.50.3; case B24.
    let at = |position| -> Vec<_> { TABLE.iter().filter(|i| i.position == position).map(|i| i.op).collect() };
    assert_eq!(at(Position::First), [OpNum::SEQUENCE]);
    assert_eq!(at(Position::Alone), [OpNum::BIND_CONN_TO_SESSION]);
    let alone_or_in_session =
        [OpNum::EXCHANGE_ID, OpNum::CREATE_SESSION, OpNum::DESTROY_SESSION, OpNum::DESTROY_CLIENTID];
    assert_eq!(at(Position::AloneOrInSession), alone_or_in_session);
    for info in TABLE {
        let only = matches!(info.position, Position::Alone | Position::AloneOrInSession);
        assert_eq!(info.allows(Status::NOT_ONLY_OP), only, "{}", info.name);
        let in_session = info.position == Position::InSession;
        assert_eq!(info.allows(SESSION[0]), in_session, "{}", info.name);
        assert_eq!(info.allows(Status::SEQUENCE_POS), info.position == Position::First);
    }
}

#[test]
fn errors_of_minor_version_0_are_gone() {
    // RFC 8881 section 15.1 marks them; case B24.
    for status in [
        Status::RESOURCE,
        Status::BAD_SEQID,
        Status::STALE_STATEID,
        Status::LEASE_MOVED,
        Status::RESTOREFH,
        Status::MINOR_VERS_MISMATCH,
    ] {
        assert!(TABLE.iter().all(|i| !i.allows(status)), "{status}");
    }
}

#[test]
fn rows_read_off_the_rfcs() {
    use Status as S;
    let row = |op, yes: &[S], no: &[S]| {
        for s in yes {
            assert!(allows(op, 2, *s), "{op} may return {s}");
        }
        for s in no {
            assert!(!allows(op, 2, *s), "{op} must not return {s}");
        }
    };
    row(OpNum::ACCESS, &[S::ACCESS, S::INVAL, S::IO, S::STALE], &[S::PERM, S::NOTDIR, S::NOENT]);
    row(OpNum::CLOSE, &[S::LOCKS_HELD, S::BAD_STATEID, S::OLD_STATEID], &[S::ACCESS, S::INVAL, S::IO]);
    row(OpNum::CREATE, &[S::BADTYPE, S::EXIST, S::ATTRNOTSUPP, S::PERM], &[S::NOENT, S::ISDIR]);
    row(OpNum::LINK, &[S::XDEV, S::ISDIR, S::MLINK], &[S::PERM, S::NOENT, S::NOTEMPTY]);
    row(OpNum::LOCK, &[S::DENIED, S::NO_GRACE, S::BAD_RANGE, S::OPENMODE], &[S::IO, S::LOCKED]);
    row(OpNum::LOOKUP, &[S::NOENT, S::SYMLINK, S::NOTDIR], &[S::ISDIR, S::PERM, S::BAD_STATEID]);
    row(OpNum::OPEN, &[S::SHARE_DENIED, S::GRACE, S::ISDIR, S::SYMLINK], &[S::LOCKED, S::NOTSUPP]);
    row(OpNum::PUTFH, &[S::BADHANDLE, S::STALE, S::WRONGSEC], &[S::NOFILEHANDLE, S::ACCESS]);
    row(OpNum::READ, &[S::OPENMODE, S::LOCKED, S::ISDIR], &[S::NOSPC, S::ROFS, S::PERM]);
    row(OpNum::READDIR, &[S::BAD_COOKIE, S::NOT_SAME, S::TOOSMALL], &[S::ISDIR, S::NOENT]);
    row(OpNum::REMOVE, &[S::NOTEMPTY, S::FILE_OPEN], &[S::NOSPC, S::PERM, S::ISDIR, S::XDEV]);
    row(OpNum::RENAME, &[S::XDEV, S::EXIST, S::NOTEMPTY], &[S::ISDIR, S::PERM]);
    row(OpNum::SETATTR, &[S::FBIG, S::BADOWNER, S::PERM, S::OPENMODE], &[S::ISDIR, S::EXIST]);
    row(OpNum::WRITE, &[S::NOSPC, S::DQUOT, S::FBIG, S::ROFS], &[S::PERM, S::EXIST]);
    row(OpNum::CREATE_SESSION, &[S::SEQ_MISORDERED, S::TOOSMALL], &[S::BADSESSION]);
    row(OpNum::SEQUENCE, &[S::SEQ_FALSE_RETRY, S::BADSLOT, S::BAD_HIGH_SLOT], &[S::NOT_ONLY_OP]);
    row(OpNum::RECLAIM_COMPLETE, &[S::COMPLETE_ALREADY], &[S::GRACE]);
    row(OpNum::COPY, &[S::OFFLOAD_NO_REQS, S::PARTNER_NOTSUPP, S::NOTSUPP], &[S::XDEV, S::EXIST]);
    row(OpNum::CLONE, &[S::XDEV, S::NOTSUPP], &[S::LOCKED, S::OFFLOAD_NO_REQS]);
    row(OpNum::OFFLOAD_STATUS, &[S::COMPLETE_ALREADY, S::NOTSUPP], &[S::NOFILEHANDLE]);
    row(OpNum::SETXATTR, &[S::NOXATTR, S::XATTR2BIG, S::NOTSUPP], &[S::NOENT]);
    row(OpNum::LISTXATTRS, &[S::TOOSMALL], &[S::ROFS]);
}

#[test]
fn filehandles_needed() {
    for info in TABLE {
        if info.needs_current_fh() || info.needs_saved_fh() {
            assert!(info.allows(Status::NOFILEHANDLE), "{}", info.name);
        }
        if info.modifies() {
            assert!(info.allows(Status::ROFS) && info.needs_current_fh(), "{}", info.name);
        }
    }
    let saved: Vec<_> = TABLE.iter().filter(|i| i.needs_saved_fh()).map(|i| i.op).collect();
    assert_eq!(saved, [OpNum::LINK, OpNum::RENAME, OpNum::RESTOREFH, OpNum::COPY, OpNum::CLONE]);
    assert!(!lookup(OpNum::RESTOREFH).unwrap().needs_current_fh());
    assert!(lookup(OpNum::WRITE).unwrap().is_idempotent());
    assert!(!lookup(OpNum::OPEN).unwrap().is_idempotent());
}

#[test]
fn the_nearest_allowed_status() {
    for info in TABLE.iter().filter(|i| i.may_be_served() && i.op != OpNum::ILLEGAL) {
        for status in Status::ALL.iter().copied().chain([Status(12345)]) {
            let nearest = info.nearest(status);
            assert!(info.allows(nearest), "{}: {status} became {nearest}", info.name);
            assert_eq!(nearest == Status::OK, status == Status::OK);
        }
    }
    let nearest = |op, s| lookup(op).unwrap().nearest(s);
    assert_eq!(nearest(OpNum::WRITE, Status::PERM), Status::ACCESS);
    assert_eq!(nearest(OpNum::REMOVE, Status::NOSPC), Status::IO);
    assert_eq!(nearest(OpNum::LOOKUP, Status::RESOURCE), Status::SERVERFAULT);
    assert_eq!(nearest(OpNum::RENEW, Status::NOTSUPP), Status::NOTSUPP);
}

#[test]
fn errors_of_compound_itself() {
    assert!(COMPOUND_ERRORS.contains(&Status::MINOR_VERS_MISMATCH));
    assert!(COMPOUND_ERRORS.iter().all(|s| s.name().is_some()));
    assert!(GENERAL.contains(&Status::DELAY));
}
