//! The table of callback operations: which minor version has them, and which errors a client may return for each (RFC
//! 8881 section 15.3, table 13; RFC 7862 section 11.3, table 3).
//!
//! As in [`super::optable`], every operation has the errors that any may meet: the tables leave out SERVERFAULT for
//! CB_LAYOUTRECALL, CB_RECALL_ANY, CB_RECALL_SLOT and CB_SEQUENCE without a reason.

use super::errors::Errors;
use super::optable::SESSION;
use super::{CbOpNum, Status};

/// What the table says about a callback operation.
#[derive(Debug)]
pub struct CbOpInfo {
    /// The number.
    pub op: CbOpNum,
    /// First minor version that has it.
    pub min_minor: u32,
    errors: Errors,
}

/// Errors of every callback operation but CB_ILLEGAL.
const GENERAL: &[Status] = &[
    Status::BADXDR,
    Status::DELAY,
    Status::REP_TOO_BIG,
    Status::REP_TOO_BIG_TO_CACHE,
    Status::REQ_TOO_BIG,
    Status::RETRY_UNCACHED_REP,
    Status::SERVERFAULT,
    Status::TOO_MANY_OPS,
];

impl CbOpInfo {
    /// Whether the RFCs let a client return `status`.
    pub fn allows(&self, status: Status) -> bool {
        match status {
            Status::OK => self.op != CbOpNum::ILLEGAL,
            _ => self.errors.contain(status),
        }
    }

    /// All errors it may return.
    pub fn errors(&self) -> impl Iterator<Item = Status> {
        self.errors.iter()
    }

    /// `status` itself if it is allowed, otherwise SERVERFAULT (for CB_ILLEGAL, OP_ILLEGAL).
    pub fn nearest(&self, status: Status) -> Status {
        if self.allows(status) { status } else { self.errors.nearest(&[Status::SERVERFAULT], Status::OP_ILLEGAL) }
    }
}

macro_rules! table {
    ($( $op:ident $minor:literal { $($group:ident)* } { $($error:ident)* }; )*) => {
        /// Every callback operation of NFSv4.1 and 4.2, by number.
        pub static TABLE: &[CbOpInfo] = &[$(
            CbOpInfo {
                op: CbOpNum::$op,
                min_minor: $minor,
                errors: Errors(&[$($group,)* &[$(Status::$error),*]]),
            },
        )*];
    };
}

table! {
    GETATTR 1 { GENERAL SESSION } { BADHANDLE INVAL };
    RECALL 1 { GENERAL SESSION } { BADHANDLE BAD_STATEID };
    LAYOUTRECALL 1 { GENERAL SESSION } {
        BADHANDLE BADIOMODE BAD_STATEID INVAL NOMATCHING_LAYOUT NOTSUPP UNKNOWN_LAYOUTTYPE WRONG_TYPE
    };
    NOTIFY 1 { GENERAL SESSION } { BADHANDLE BAD_STATEID INVAL NOTSUPP };
    PUSH_DELEG 1 { GENERAL SESSION } { BADHANDLE INVAL NOTSUPP REJECT_DELEG WRONG_TYPE };
    RECALL_ANY 1 { GENERAL SESSION } { INVAL };
    RECALLABLE_OBJ_AVAIL 1 { GENERAL SESSION } { INVAL NOTSUPP };
    RECALL_SLOT 1 { GENERAL SESSION } { BAD_HIGH_SLOT };
    SEQUENCE 1 { GENERAL } {
        BADSESSION BADSLOT BAD_HIGH_SLOT CONN_NOT_BOUND_TO_SESSION SEQUENCE_POS SEQ_FALSE_RETRY SEQ_MISORDERED
    };
    WANTS_CANCELLED 1 { GENERAL SESSION } { NOTSUPP };
    NOTIFY_LOCK 1 { GENERAL SESSION } { BADHANDLE BAD_STATEID NOTSUPP };
    NOTIFY_DEVICEID 1 { GENERAL SESSION } { INVAL NOTSUPP };
    OFFLOAD 2 { GENERAL SESSION } { BADHANDLE BAD_STATEID };
    ILLEGAL 1 {} { BADXDR OP_ILLEGAL };
}

/// The entry of an operation in a minor version; `None` means CB_ILLEGAL.
pub fn lookup_minor(op: CbOpNum, minor: u32) -> Option<&'static CbOpInfo> {
    let at = TABLE.binary_search_by_key(&op, |info| info.op).ok()?;
    TABLE.get(at).filter(|info| info.min_minor <= minor)
}

/// Whether a client may return `status` for `op` in minor version `minor`.
pub fn allows(op: CbOpNum, minor: u32, status: Status) -> bool {
    lookup_minor(op, minor).is_some_and(|info| info.allows(status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_callback_has_one_entry_in_order_with_errors_that_are_known() {
        assert!(TABLE.is_sorted_by(|a, b| a.op < b.op));
        assert_eq!(TABLE.len(), CbOpNum::ALL.len());
        for info in TABLE {
            assert!(info.errors().all(|e| e.name().is_some() && !e.is_ok()), "{:?}", info.op);
            let mut all: Vec<_> = info.errors().collect();
            all.sort();
            all.dedup();
            assert_eq!(all.len(), info.errors().count(), "{:?}: one twice", info.op);
            for status in Status::ALL.iter().copied().chain([Status(12345)]) {
                assert!(info.allows(info.nearest(status)));
            }
        }
    }

    #[test]
    fn rows_read_off_the_rfcs() {
        // RFC 8881 table 13, RFC 7862 table 3.
        use Status as S;
        for (op, yes, no) in [
            (CbOpNum::GETATTR, &[S::BADHANDLE, S::INVAL][..], &[S::BAD_STATEID, S::NOTSUPP][..]),
            (CbOpNum::RECALL, &[S::BADHANDLE, S::BAD_STATEID], &[S::INVAL, S::NOTSUPP]),
            (CbOpNum::RECALL_ANY, &[S::INVAL], &[S::BADHANDLE, S::NOTSUPP]),
            (CbOpNum::RECALL_SLOT, &[S::BAD_HIGH_SLOT], &[S::INVAL, S::BADSLOT]),
            (CbOpNum::SEQUENCE, &[S::SEQ_MISORDERED, S::SEQUENCE_POS], &[S::OP_NOT_IN_SESSION, S::INVAL]),
            (CbOpNum::NOTIFY_LOCK, &[S::NOTSUPP, S::BADHANDLE], &[S::INVAL]),
            (CbOpNum::OFFLOAD, &[S::BAD_STATEID, S::DELAY], &[S::NOTSUPP, S::INVAL]),
            (CbOpNum::ILLEGAL, &[S::OP_ILLEGAL, S::BADXDR], &[S::OK, S::SERVERFAULT]),
        ] {
            assert!(yes.iter().all(|s| allows(op, 2, *s)), "{op:?}");
            assert!(!no.iter().any(|s| allows(op, 2, *s)), "{op:?}");
        }
        assert!(!allows(CbOpNum::OFFLOAD, 1, S::OK), "a callback of minor version 2");
        assert!(lookup_minor(CbOpNum(3000), 2).is_none());
    }
}
