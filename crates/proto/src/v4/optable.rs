//! The operation table: where each operation may appear, what it needs, which errors it may return.
//!
//! Sources: RFC 8881 section 15.2 (table 12), 17 (table 16), 18; RFC 7862 section 11.2 (table 2), 13; RFC 8276
//! section 8.4.5. The error sets are those of the tables, with these differences:
//!
//! * The tables leave out this or that member of [`GENERAL`] or [`SESSION`] for a few operations without a reason
//!   (SERVERFAULT for LOCKT, REP_TOO_BIG for IO_ADVISE, everything for GETFH). Any operation can meet those
//!   conditions, so all have both groups, apart from the ones that work without a session.
//! * NOTSUPP is allowed for every operation that is not REQUIRED; table 12 says so case by case, RFC 8276 forgets
//!   SETXATTR and REMOVEXATTR, table 2 forgets COPY and COPY_NOTIFY.
//! * COPY may return OFFLOAD_NO_REQS (RFC 7862 section 15.2.2 gives it a body; the table lacks it).
//! * READ may return PARTNER_NO_AUTH, as READ_PLUS does: both serve copy-notify stateids (RFC 7862 section 4.10).
//! * SEEK may return NXIO (RFC 7862 section 15.11.3 demands it past the end of the file; the table lacks it).
//! * LISTXATTRS may return TOOSMALL (RFC 8276 section 8.4.3.3; the table lacks it).

use super::errors::Errors;
use super::{OpNum, Status};

/// Where an operation may stand in a COMPOUND (RFC 8881 section 2.10.2, 16.2.3, 18).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// First, and nowhere else: SEQUENCE. Elsewhere the answer is SEQUENCE_POS.
    First,
    /// Alone in its COMPOUND, without SEQUENCE: BIND_CONN_TO_SESSION. Otherwise NOT_ONLY_OP.
    Alone,
    /// After SEQUENCE; or first, and then alone (else NOT_ONLY_OP).
    AloneOrInSession,
    /// After SEQUENCE. First, the answer is OP_NOT_IN_SESSION.
    InSession,
    /// Anywhere, since it fails anyway.
    Anywhere,
    /// Not in NFSv4.1 and later: mandatory not to implement, NOTSUPP.
    Never,
}

/// What the table says about an operation.
#[derive(Debug)]
pub struct OpInfo {
    /// The number.
    pub op: OpNum,
    /// The name in RFC 7863, without `OP_`.
    pub name: &'static str,
    /// First minor version that has it.
    pub min_minor: u32,
    /// Where it may stand.
    pub position: Position,
    flags: u8,
    errors: Errors,
}

const CURRENT: u8 = 0x1;
const SAVED: u8 = 0x2;
const IDEMPOTENT: u8 = 0x4;
const MODIFIES: u8 = 0x8;

impl OpInfo {
    /// Whether it fails with NOFILEHANDLE when there is no current filehandle.
    pub fn needs_current_fh(&self) -> bool {
        self.flags & CURRENT != 0
    }

    /// Whether it fails with NOFILEHANDLE when there is no saved filehandle.
    pub fn needs_saved_fh(&self) -> bool {
        self.flags & SAVED != 0
    }

    /// Whether doing it twice with the same arguments is the same as doing it once, reply included. Operations that
    /// create or end state are not.
    pub fn is_idempotent(&self) -> bool {
        self.flags & IDEMPOTENT != 0
    }

    /// Whether it changes the filesystem whatever its arguments, so that a read-only export refuses it with ROFS.
    /// OPEN is not among them: that depends on its arguments.
    pub fn modifies(&self) -> bool {
        self.flags & MODIFIES != 0
    }

    /// Whether it is REQUIRED, RECOMMENDED or OPTIONAL rather than mandatory not to implement.
    pub fn may_be_served(&self) -> bool {
        self.position != Position::Never
    }

    /// Whether the RFCs let it return `status`.
    pub fn allows(&self, status: Status) -> bool {
        match status {
            Status::OK => self.may_be_served() && self.op != OpNum::ILLEGAL,
            _ => self.errors.contain(status),
        }
    }

    /// All errors it may return.
    pub fn errors(&self) -> impl Iterator<Item = Status> {
        self.errors.iter()
    }

    /// `status` itself when it is allowed, otherwise the nearest status that is: filesystems report errors that the
    /// protocol does not foresee for an operation (EPERM for writing an immutable file, ENOSPC for a removal).
    pub fn nearest(&self, status: Status) -> Status {
        if self.allows(status) {
            return status;
        }
        let alternatives: &[Status] = match status {
            Status::PERM => &[Status::ACCESS],
            Status::ACCESS => &[Status::PERM],
            Status::ROFS => &[Status::ACCESS],
            Status::DQUOT => &[Status::NOSPC, Status::IO],
            Status::ISDIR => &[Status::WRONG_TYPE, Status::INVAL],
            // Where a directory was due, a link is none.
            Status::SYMLINK => &[Status::NOTDIR, Status::WRONG_TYPE, Status::INVAL],
            Status::NOTDIR => &[Status::WRONG_TYPE, Status::INVAL],
            Status::WRONG_TYPE => &[Status::INVAL],
            Status::NOENT => &[Status::STALE],
            Status::FILE_OPEN => &[Status::DELAY],
            // Not DELAY: the reservation of another may last, and the client would ask for as long.
            Status::LOCKED => &[Status::SHARE_DENIED, Status::ACCESS],
            Status::MLINK | Status::FBIG => &[Status::NOSPC, Status::IO],
            Status::BADNAME | Status::BADCHAR | Status::NAMETOOLONG => &[Status::INVAL],
            Status::BADTYPE => &[Status::INVAL],
            Status::DELEG_REVOKED => &[Status::BAD_STATEID],
            Status::NXIO | Status::NOSPC => &[Status::IO],
            _ => &[],
        };
        self.errors.nearest(alternatives, if self.allows(Status::SERVERFAULT) { Status::SERVERFAULT } else { status })
    }
}

/// The entry of an operation; `None` means OP_ILLEGAL.
pub fn lookup(op: OpNum) -> Option<&'static OpInfo> {
    TABLE.binary_search_by_key(&op, |info| info.op).ok().and_then(|i| TABLE.get(i))
}

/// As [`lookup`], for one minor version: an operation that came later is as illegal as an unknown one (RFC 8881
/// section 15.1.3.4).
pub fn lookup_minor(op: OpNum, minor: u32) -> Option<&'static OpInfo> {
    lookup(op).filter(|info| info.min_minor <= minor)
}

/// Whether `op` may return `status` in minor version `minor`.
pub fn allows(op: OpNum, minor: u32, status: Status) -> bool {
    lookup_minor(op, minor).is_some_and(|info| info.allows(status))
}

/// Errors of COMPOUND itself, when it has no results (RFC 8881 section 16.2.4).
pub const COMPOUND_ERRORS: &[Status] = &[
    Status::BADCHAR,
    Status::BADXDR,
    Status::DELAY,
    Status::INVAL,
    Status::MINOR_VERS_MISMATCH,
    Status::SERVERFAULT,
    Status::TOO_MANY_OPS,
    Status::REP_TOO_BIG,
    Status::REP_TOO_BIG_TO_CACHE,
    Status::REQ_TOO_BIG,
];

/// Errors of every operation.
pub const GENERAL: &[Status] = &[
    Status::BADXDR,
    Status::DEADSESSION,
    Status::DELAY,
    Status::REP_TOO_BIG,
    Status::REP_TOO_BIG_TO_CACHE,
    Status::REQ_TOO_BIG,
    Status::RETRY_UNCACHED_REP,
    Status::SERVERFAULT,
    Status::TOO_MANY_OPS,
];

/// Errors of every operation that needs a session.
pub const SESSION: &[Status] = &[Status::OP_NOT_IN_SESSION];

/// Errors of operations on the current or saved filehandle.
const FILEHANDLE: &[Status] = &[Status::FHEXPIRED, Status::MOVED, Status::NOFILEHANDLE, Status::STALE];

/// Errors of operations with a stateid.
const STATEID: &[Status] = &[Status::ADMIN_REVOKED, Status::BAD_STATEID, Status::EXPIRED, Status::OLD_STATEID];

/// Errors of operations that a server need not have.
const OPTIONAL: &[Status] = &[Status::NOTSUPP];

macro_rules! table {
    ($(
        $op:ident $minor:literal $position:ident [$($flag:ident)*] { $($group:ident)* } { $($error:ident)* };
    )*) => {
        /// Every operation of NFSv4.1 and 4.2, by number.
        pub static TABLE: &[OpInfo] = &[$(
            OpInfo {
                op: OpNum::$op,
                name: stringify!($op),
                min_minor: $minor,
                position: Position::$position,
                flags: 0 $(| $flag)*,
                errors: Errors(&[$($group,)* &[$(Status::$error),*]]),
            },
        )*];
    };
}

// Name, first minor version, position, [needs and kind], {groups of errors}, {further errors}.
table! {
    ACCESS 1 InSession [CURRENT IDEMPOTENT] { GENERAL SESSION FILEHANDLE } { ACCESS INVAL IO };
    CLOSE 1 InSession [CURRENT] { GENERAL SESSION FILEHANDLE STATEID } { LOCKS_HELD WRONG_CRED };
    COMMIT 1 InSession [CURRENT IDEMPOTENT] { GENERAL SESSION FILEHANDLE } {
        ACCESS IO ISDIR SYMLINK WRONG_TYPE
    };
    CREATE 1 InSession [CURRENT MODIFIES] { GENERAL SESSION FILEHANDLE } {
        ACCESS ATTRNOTSUPP BADCHAR BADNAME BADOWNER BADTYPE DQUOT EXIST INVAL IO MLINK NAMETOOLONG NOSPC
        NOTDIR PERM ROFS UNSAFE_COMPOUND
    };
    DELEGPURGE 1 InSession [] { GENERAL SESSION OPTIONAL } { WRONG_CRED };
    DELEGRETURN 1 InSession [CURRENT] { GENERAL SESSION FILEHANDLE STATEID OPTIONAL } {
        DELEG_REVOKED INVAL WRONG_CRED
    };
    GETATTR 1 InSession [CURRENT IDEMPOTENT] { GENERAL SESSION FILEHANDLE } {
        ACCESS GRACE INVAL IO WRONG_TYPE
    };
    GETFH 1 InSession [CURRENT IDEMPOTENT] { GENERAL SESSION FILEHANDLE } {};
    LINK 1 InSession [CURRENT SAVED MODIFIES] { GENERAL SESSION FILEHANDLE OPTIONAL } {
        ACCESS BADCHAR BADNAME DQUOT EXIST FILE_OPEN GRACE INVAL IO ISDIR MLINK NAMETOOLONG NOSPC NOTDIR
        ROFS SYMLINK WRONGSEC WRONG_TYPE XDEV
    };
    LOCK 1 InSession [CURRENT] { GENERAL SESSION FILEHANDLE STATEID } {
        ACCESS BAD_RANGE DEADLOCK DENIED GRACE INVAL ISDIR LOCK_NOTSUPP LOCK_RANGE NO_GRACE OPENMODE
        RECLAIM_BAD RECLAIM_CONFLICT ROFS SYMLINK WRONG_CRED WRONG_TYPE
    };
    LOCKT 1 InSession [CURRENT IDEMPOTENT] { GENERAL SESSION FILEHANDLE } {
        ACCESS BAD_RANGE DENIED GRACE INVAL ISDIR LOCK_RANGE ROFS SYMLINK WRONG_CRED WRONG_TYPE
    };
    LOCKU 1 InSession [CURRENT] { GENERAL SESSION FILEHANDLE STATEID } {
        ACCESS BAD_RANGE INVAL LOCK_RANGE WRONG_CRED
    };
    LOOKUP 1 InSession [CURRENT IDEMPOTENT] { GENERAL SESSION FILEHANDLE } {
        ACCESS BADCHAR BADNAME INVAL IO NAMETOOLONG NOENT NOTDIR SYMLINK WRONGSEC
    };
    LOOKUPP 1 InSession [CURRENT IDEMPOTENT] { GENERAL SESSION FILEHANDLE } {
        ACCESS IO NOENT NOTDIR SYMLINK WRONGSEC
    };
    NVERIFY 1 InSession [CURRENT IDEMPOTENT] { GENERAL SESSION FILEHANDLE } {
        ACCESS ATTRNOTSUPP BADCHAR GRACE INVAL IO SAME UNKNOWN_LAYOUTTYPE WRONG_TYPE
    };
    OPEN 1 InSession [CURRENT] { GENERAL SESSION FILEHANDLE STATEID } {
        ACCESS ATTRNOTSUPP BADCHAR BADNAME BADOWNER DELEG_ALREADY_WANTED DELEG_REVOKED DQUOT EXIST FBIG
        GRACE INVAL IO ISDIR NAMETOOLONG NOENT NOSPC NOTDIR NO_GRACE PERM RECLAIM_BAD RECLAIM_CONFLICT ROFS
        SHARE_DENIED SYMLINK UNSAFE_COMPOUND WRONGSEC WRONG_TYPE
    };
    OPENATTR 1 InSession [CURRENT MODIFIES] { GENERAL SESSION FILEHANDLE OPTIONAL } {
        ACCESS DQUOT IO NOENT NOSPC ROFS UNSAFE_COMPOUND WRONG_TYPE
    };
    OPEN_CONFIRM 1 Never [] {} { NOTSUPP };
    OPEN_DOWNGRADE 1 InSession [CURRENT] { GENERAL SESSION FILEHANDLE STATEID } { INVAL ROFS WRONG_CRED };
    PUTFH 1 InSession [IDEMPOTENT] { GENERAL SESSION } { BADHANDLE MOVED STALE WRONGSEC };
    PUTPUBFH 1 InSession [IDEMPOTENT] { GENERAL SESSION } { WRONGSEC };
    PUTROOTFH 1 InSession [IDEMPOTENT] { GENERAL SESSION } { WRONGSEC };
    READ 1 InSession [CURRENT IDEMPOTENT] { GENERAL SESSION FILEHANDLE STATEID } {
        ACCESS DELEG_REVOKED GRACE INVAL IO ISDIR LOCKED OPENMODE PARTNER_NO_AUTH PNFS_IO_HOLE
        PNFS_NO_LAYOUT SYMLINK WRONG_TYPE
    };
    READDIR 1 InSession [CURRENT IDEMPOTENT] { GENERAL SESSION FILEHANDLE } {
        ACCESS BAD_COOKIE INVAL IO NOTDIR NOT_SAME TOOSMALL
    };
    READLINK 1 InSession [CURRENT IDEMPOTENT] { GENERAL SESSION FILEHANDLE OPTIONAL } {
        ACCESS INVAL IO WRONG_TYPE
    };
    REMOVE 1 InSession [CURRENT MODIFIES] { GENERAL SESSION FILEHANDLE } {
        ACCESS BADCHAR BADNAME FILE_OPEN GRACE INVAL IO NAMETOOLONG NOENT NOTDIR NOTEMPTY ROFS
    };
    RENAME 1 InSession [CURRENT SAVED MODIFIES] { GENERAL SESSION FILEHANDLE } {
        ACCESS BADCHAR BADNAME DQUOT EXIST FILE_OPEN GRACE INVAL IO MLINK NAMETOOLONG NOENT NOSPC NOTDIR
        NOTEMPTY ROFS WRONGSEC XDEV
    };
    RENEW 1 Never [] {} { NOTSUPP };
    RESTOREFH 1 InSession [SAVED IDEMPOTENT] { GENERAL SESSION FILEHANDLE } { WRONGSEC };
    SAVEFH 1 InSession [CURRENT IDEMPOTENT] { GENERAL SESSION FILEHANDLE } {};
    SECINFO 1 InSession [CURRENT IDEMPOTENT] { GENERAL SESSION FILEHANDLE } {
        ACCESS BADCHAR BADNAME INVAL NAMETOOLONG NOENT NOTDIR
    };
    SETATTR 1 InSession [CURRENT IDEMPOTENT MODIFIES] { GENERAL SESSION FILEHANDLE STATEID } {
        ACCESS ATTRNOTSUPP BADCHAR BADOWNER DELEG_REVOKED DQUOT FBIG GRACE INVAL IO LOCKED NOSPC OPENMODE
        PERM ROFS UNKNOWN_LAYOUTTYPE WRONG_TYPE
    };
    SETCLIENTID 1 Never [] {} { NOTSUPP };
    SETCLIENTID_CONFIRM 1 Never [] {} { NOTSUPP };
    VERIFY 1 InSession [CURRENT IDEMPOTENT] { GENERAL SESSION FILEHANDLE } {
        ACCESS ATTRNOTSUPP BADCHAR GRACE INVAL IO NOT_SAME UNKNOWN_LAYOUTTYPE WRONG_TYPE
    };
    WRITE 1 InSession [CURRENT IDEMPOTENT MODIFIES] { GENERAL SESSION FILEHANDLE STATEID } {
        ACCESS DELEG_REVOKED DQUOT FBIG GRACE INVAL IO ISDIR LOCKED NOSPC OPENMODE PNFS_IO_HOLE
        PNFS_NO_LAYOUT ROFS SYMLINK WRONG_TYPE
    };
    RELEASE_LOCKOWNER 1 Never [] {} { NOTSUPP };
    BACKCHANNEL_CTL 1 InSession [IDEMPOTENT] { GENERAL SESSION } { INVAL NOENT };
    BIND_CONN_TO_SESSION 1 Alone [IDEMPOTENT] { GENERAL } { BADSESSION BAD_SESSION_DIGEST INVAL NOT_ONLY_OP };
    EXCHANGE_ID 1 AloneOrInSession [] { GENERAL } {
        BADCHAR CLID_INUSE ENCR_ALG_UNSUPP HASH_ALG_UNSUPP INVAL NOENT NOT_ONLY_OP NOT_SAME
    };
    CREATE_SESSION 1 AloneOrInSession [] { GENERAL } {
        CLID_INUSE INVAL NOENT NOSPC NOT_ONLY_OP SEQ_MISORDERED STALE_CLIENTID TOOSMALL WRONG_CRED
    };
    DESTROY_SESSION 1 AloneOrInSession [] { GENERAL } {
        BACK_CHAN_BUSY BADSESSION CB_PATH_DOWN CONN_NOT_BOUND_TO_SESSION NOT_ONLY_OP STALE_CLIENTID
        WRONG_CRED
    };
    FREE_STATEID 1 InSession [] { GENERAL SESSION } { BAD_STATEID LOCKS_HELD OLD_STATEID WRONG_CRED };
    GET_DIR_DELEGATION 1 InSession [CURRENT] { GENERAL SESSION FILEHANDLE OPTIONAL } {
        ACCESS DIRDELEG_UNAVAIL GRACE INVAL IO NOTDIR
    };
    GETDEVICEINFO 1 InSession [IDEMPOTENT] { GENERAL SESSION OPTIONAL } {
        INVAL NOENT TOOSMALL UNKNOWN_LAYOUTTYPE
    };
    GETDEVICELIST 1 InSession [IDEMPOTENT] { GENERAL SESSION OPTIONAL } {
        BAD_COOKIE FHEXPIRED INVAL IO NOFILEHANDLE NOT_SAME UNKNOWN_LAYOUTTYPE
    };
    LAYOUTCOMMIT 1 InSession [CURRENT] { GENERAL SESSION FILEHANDLE OPTIONAL } {
        ACCESS ADMIN_REVOKED ATTRNOTSUPP BADIOMODE BADLAYOUT DELEG_REVOKED EXPIRED FBIG GRACE INVAL IO ISDIR
        NO_GRACE RECLAIM_BAD RECLAIM_CONFLICT SYMLINK UNKNOWN_LAYOUTTYPE WRONG_CRED
    };
    LAYOUTGET 1 InSession [CURRENT] { GENERAL SESSION FILEHANDLE OPTIONAL } {
        ACCESS ADMIN_REVOKED BADIOMODE BADLAYOUT BAD_STATEID DELEG_REVOKED DQUOT GRACE INVAL IO
        LAYOUTTRYLATER LAYOUTUNAVAILABLE LOCKED NOSPC OLD_STATEID OPENMODE RECALLCONFLICT TOOSMALL
        UNKNOWN_LAYOUTTYPE WRONG_TYPE
    };
    LAYOUTRETURN 1 InSession [CURRENT] { GENERAL SESSION FILEHANDLE STATEID OPTIONAL } {
        DELEG_REVOKED GRACE INVAL ISDIR NO_GRACE UNKNOWN_LAYOUTTYPE WRONG_CRED WRONG_TYPE
    };
    SECINFO_NO_NAME 1 InSession [CURRENT IDEMPOTENT] { GENERAL SESSION FILEHANDLE OPTIONAL } {
        ACCESS INVAL NOENT NOTDIR
    };
    SEQUENCE 1 First [] { GENERAL } {
        BADSESSION BADSLOT BAD_HIGH_SLOT CONN_NOT_BOUND_TO_SESSION SEQUENCE_POS SEQ_FALSE_RETRY
        SEQ_MISORDERED
    };
    SET_SSV 1 InSession [] { GENERAL SESSION } { BAD_SESSION_DIGEST INVAL };
    TEST_STATEID 1 InSession [IDEMPOTENT] { GENERAL SESSION } {};
    WANT_DELEGATION 1 InSession [CURRENT] { GENERAL SESSION FILEHANDLE OPTIONAL } {
        DELEG_ALREADY_WANTED GRACE INVAL IO NO_GRACE RECALLCONFLICT RECLAIM_BAD RECLAIM_CONFLICT WRONG_TYPE
    };
    DESTROY_CLIENTID 1 AloneOrInSession [] { GENERAL } {
        CLIENTID_BUSY NOT_ONLY_OP STALE_CLIENTID WRONG_CRED
    };
    RECLAIM_COMPLETE 1 InSession [] { GENERAL SESSION FILEHANDLE } {
        COMPLETE_ALREADY INVAL WRONG_CRED WRONG_TYPE
    };
    ALLOCATE 2 InSession [CURRENT IDEMPOTENT MODIFIES] { GENERAL SESSION FILEHANDLE STATEID OPTIONAL } {
        ACCESS DELEG_REVOKED DQUOT FBIG GRACE INVAL IO ISDIR NOSPC OPENMODE ROFS SYMLINK WRONG_TYPE
    };
    COPY 2 InSession [CURRENT SAVED MODIFIES] { GENERAL SESSION FILEHANDLE STATEID OPTIONAL } {
        ACCESS DELEG_REVOKED DQUOT FBIG GRACE INVAL IO ISDIR LOCKED NOSPC OFFLOAD_DENIED OFFLOAD_NO_REQS
        OPENMODE PARTNER_NOTSUPP PARTNER_NO_AUTH PNFS_IO_HOLE PNFS_NO_LAYOUT ROFS SYMLINK WRONG_TYPE
    };
    COPY_NOTIFY 2 InSession [CURRENT] { GENERAL SESSION FILEHANDLE STATEID OPTIONAL } {
        ACCESS DELEG_REVOKED GRACE INVAL IO ISDIR LOCKED OPENMODE PNFS_IO_HOLE PNFS_NO_LAYOUT SYMLINK
        WRONG_TYPE
    };
    DEALLOCATE 2 InSession [CURRENT IDEMPOTENT MODIFIES] { GENERAL SESSION FILEHANDLE STATEID OPTIONAL } {
        ACCESS DELEG_REVOKED FBIG GRACE INVAL IO ISDIR OPENMODE ROFS SYMLINK WRONG_TYPE
    };
    IO_ADVISE 2 InSession [CURRENT IDEMPOTENT] { GENERAL SESSION FILEHANDLE STATEID OPTIONAL } {
        ACCESS DELEG_REVOKED FBIG GRACE INVAL IO ISDIR SYMLINK WRONG_TYPE
    };
    LAYOUTERROR 2 InSession [CURRENT IDEMPOTENT] { GENERAL SESSION FILEHANDLE STATEID OPTIONAL } {
        DELEG_REVOKED GRACE INVAL ISDIR NO_GRACE UNKNOWN_LAYOUTTYPE WRONG_CRED WRONG_TYPE
    };
    LAYOUTSTATS 2 InSession [CURRENT IDEMPOTENT] { GENERAL SESSION FILEHANDLE STATEID OPTIONAL } {
        DELEG_REVOKED GRACE INVAL ISDIR NO_GRACE UNKNOWN_LAYOUTTYPE WRONG_CRED WRONG_TYPE
    };
    OFFLOAD_CANCEL 2 InSession [] { GENERAL SESSION STATEID OPTIONAL } { COMPLETE_ALREADY GRACE };
    OFFLOAD_STATUS 2 InSession [IDEMPOTENT] { GENERAL SESSION STATEID OPTIONAL } { COMPLETE_ALREADY GRACE };
    READ_PLUS 2 InSession [CURRENT IDEMPOTENT] { GENERAL SESSION FILEHANDLE STATEID OPTIONAL } {
        ACCESS DELEG_REVOKED GRACE INVAL IO ISDIR LOCKED OPENMODE PARTNER_NO_AUTH PNFS_IO_HOLE
        PNFS_NO_LAYOUT SYMLINK WRONG_TYPE
    };
    SEEK 2 InSession [CURRENT IDEMPOTENT] { GENERAL SESSION FILEHANDLE STATEID OPTIONAL } {
        ACCESS DELEG_REVOKED GRACE INVAL IO ISDIR LOCKED NXIO OPENMODE PNFS_IO_HOLE PNFS_NO_LAYOUT SYMLINK
        UNION_NOTSUPP WRONG_TYPE
    };
    WRITE_SAME 2 InSession [CURRENT IDEMPOTENT MODIFIES] { GENERAL SESSION FILEHANDLE STATEID OPTIONAL } {
        ACCESS DELEG_REVOKED DQUOT FBIG GRACE INVAL IO ISDIR LOCKED NOSPC OPENMODE PNFS_IO_HOLE
        PNFS_NO_LAYOUT ROFS SYMLINK WRONG_TYPE
    };
    CLONE 2 InSession [CURRENT SAVED IDEMPOTENT MODIFIES] { GENERAL SESSION FILEHANDLE STATEID OPTIONAL } {
        ACCESS DELEG_REVOKED DQUOT FBIG GRACE INVAL IO ISDIR NOSPC OPENMODE ROFS SYMLINK WRONG_TYPE XDEV
    };
    GETXATTR 2 InSession [CURRENT IDEMPOTENT] { GENERAL SESSION FILEHANDLE OPTIONAL } {
        ACCESS INVAL IO NAMETOOLONG NOXATTR PERM WRONG_TYPE
    };
    SETXATTR 2 InSession [CURRENT MODIFIES] { GENERAL SESSION FILEHANDLE OPTIONAL } {
        ACCESS BADCHAR DQUOT EXIST INVAL IO NAMETOOLONG NOSPC NOXATTR PERM ROFS WRONG_TYPE XATTR2BIG
    };
    LISTXATTRS 2 InSession [CURRENT IDEMPOTENT] { GENERAL SESSION FILEHANDLE OPTIONAL } {
        ACCESS INVAL IO NAMETOOLONG NOXATTR PERM TOOSMALL WRONG_TYPE
    };
    REMOVEXATTR 2 InSession [CURRENT MODIFIES] { GENERAL SESSION FILEHANDLE OPTIONAL } {
        ACCESS BADCHAR DQUOT EXIST INVAL IO LOCKED NAMETOOLONG NOSPC NOXATTR OLD_STATEID OPENMODE PERM ROFS
        WRONG_TYPE
    };
    ILLEGAL 1 Anywhere [] {} { BADXDR OP_ILLEGAL };
}
