//! Status codes.

use dhow_xdr::xdr_enum;

xdr_enum! {
    /// Result of an operation (`nfsstat4`: RFC 8881 section 15.1, RFC 7862 section 11.1, RFC 8276 section 8.3).
    pub enum Status {
        /// Success.
        OK = 0,
        /// Not owner, or not privileged.
        PERM = 1,
        /// No such file or directory.
        NOENT = 2,
        /// I/O error that retrying will not cure.
        IO = 5,
        /// No such device.
        NXIO = 6,
        /// Permission denied.
        ACCESS = 13,
        /// The target exists.
        EXIST = 17,
        /// Another filesystem.
        XDEV = 18,
        /// Not a directory.
        NOTDIR = 20,
        /// Is a directory.
        ISDIR = 21,
        /// Argument is invalid or not supported here.
        INVAL = 22,
        /// File would exceed the largest size.
        FBIG = 27,
        /// No space left.
        NOSPC = 28,
        /// Filesystem or export is read-only.
        ROFS = 30,
        /// Too many hard links.
        MLINK = 31,
        /// Name is too long.
        NAMETOOLONG = 63,
        /// Directory is not empty.
        NOTEMPTY = 66,
        /// Quota is used up.
        DQUOT = 69,
        /// The file of the handle is gone.
        STALE = 70,
        /// The handle makes no sense here.
        BADHANDLE = 10001,
        /// READDIR cookie cannot be used.
        BAD_COOKIE = 10003,
        /// Operation is not supported.
        NOTSUPP = 10004,
        /// Reply does not fit the size the caller gave.
        TOOSMALL = 10005,
        /// Error without a better name.
        SERVERFAULT = 10006,
        /// Type cannot be created.
        BADTYPE = 10007,
        /// Try again later.
        DELAY = 10008,
        /// NVERIFY found the attributes equal.
        SAME = 10009,
        /// A lock is in the way.
        DENIED = 10010,
        /// State expired with the lease.
        EXPIRED = 10011,
        /// A mandatory lock is in the way.
        LOCKED = 10012,
        /// Only reclaims, during grace.
        GRACE = 10013,
        /// Volatile handle expired.
        FHEXPIRED = 10014,
        /// A share reservation is in the way.
        SHARE_DENIED = 10015,
        /// Wrong security flavor here.
        WRONGSEC = 10016,
        /// Client ID in use by another principal.
        CLID_INUSE = 10017,
        /// Out of resources; minor version 0 only.
        RESOURCE = 10018,
        /// Filesystem is not here (any more).
        MOVED = 10019,
        /// No current filehandle.
        NOFILEHANDLE = 10020,
        /// Minor version is not served.
        MINOR_VERS_MISMATCH = 10021,
        /// Client ID is unknown.
        STALE_CLIENTID = 10022,
        /// Stateid of an earlier server instance.
        STALE_STATEID = 10023,
        /// Stateid sequence number is behind.
        OLD_STATEID = 10024,
        /// Stateid is unknown.
        BAD_STATEID = 10025,
        /// Owner sequence number is wrong; minor version 0 only.
        BAD_SEQID = 10026,
        /// VERIFY found a difference.
        NOT_SAME = 10027,
        /// Lock range cannot be split or joined.
        LOCK_RANGE = 10028,
        /// Is a symbolic link.
        SYMLINK = 10029,
        /// No saved filehandle.
        RESTOREFH = 10030,
        /// A filesystem with state has moved.
        LEASE_MOVED = 10031,
        /// Attribute is not supported.
        ATTRNOTSUPP = 10032,
        /// Reclaim outside grace.
        NO_GRACE = 10033,
        /// Reclaim was not allowed.
        RECLAIM_BAD = 10034,
        /// Reclaim conflicts with other state.
        RECLAIM_CONFLICT = 10035,
        /// Arguments do not decode.
        BADXDR = 10036,
        /// Locks are held.
        LOCKS_HELD = 10037,
        /// Stateid does not allow this access.
        OPENMODE = 10038,
        /// Owner name cannot be mapped.
        BADOWNER = 10039,
        /// Character is not supported.
        BADCHAR = 10040,
        /// Name is not supported.
        BADNAME = 10041,
        /// Range exceeds what the server supports.
        BAD_RANGE = 10042,
        /// Lock cannot be changed atomically.
        LOCK_NOTSUPP = 10043,
        /// No such operation.
        OP_ILLEGAL = 10044,
        /// Blocking lock would deadlock.
        DEADLOCK = 10045,
        /// Open file is in the way.
        FILE_OPEN = 10046,
        /// State was revoked by the administrator.
        ADMIN_REVOKED = 10047,
        /// Callbacks do not get through.
        CB_PATH_DOWN = 10048,
        /// Layout iomode is bad.
        BADIOMODE = 10049,
        /// Layout is bad.
        BADLAYOUT = 10050,
        /// Digest of SET_SSV is wrong.
        BAD_SESSION_DIGEST = 10051,
        /// No such session.
        BADSESSION = 10052,
        /// Slot is out of range.
        BADSLOT = 10053,
        /// RECLAIM_COMPLETE was sent before.
        COMPLETE_ALREADY = 10054,
        /// Connection is not bound to the session.
        CONN_NOT_BOUND_TO_SESSION = 10055,
        /// The delegation was asked for before.
        DELEG_ALREADY_WANTED = 10056,
        /// Callbacks are outstanding.
        BACK_CHAN_BUSY = 10057,
        /// Layout cannot be had now.
        LAYOUTTRYLATER = 10058,
        /// Layout cannot be had.
        LAYOUTUNAVAILABLE = 10059,
        /// Client has no such layout.
        NOMATCHING_LAYOUT = 10060,
        /// Layout is being recalled.
        RECALLCONFLICT = 10061,
        /// Layout type is unknown.
        UNKNOWN_LAYOUTTYPE = 10062,
        /// Slot sequence number is out of order.
        SEQ_MISORDERED = 10063,
        /// SEQUENCE stands elsewhere than first.
        SEQUENCE_POS = 10064,
        /// Request exceeds the channel limit.
        REQ_TOO_BIG = 10065,
        /// Reply would exceed the channel limit.
        REP_TOO_BIG = 10066,
        /// Reply would exceed the limit for cached replies.
        REP_TOO_BIG_TO_CACHE = 10067,
        /// Retry of a request whose reply was not kept.
        RETRY_UNCACHED_REP = 10068,
        /// Compound would be unsafe to retry.
        UNSAFE_COMPOUND = 10069,
        /// More operations than the channel allows.
        TOO_MANY_OPS = 10070,
        /// Operation needs SEQUENCE before it.
        OP_NOT_IN_SESSION = 10071,
        /// Hash algorithm is not supported.
        HASH_ALG_UNSUPP = 10072,
        /// Client still has state.
        CLIENTID_BUSY = 10074,
        /// I/O to a hole of a sparse layout.
        PNFS_IO_HOLE = 10075,
        /// Same slot and sequence number, other request.
        SEQ_FALSE_RETRY = 10076,
        /// Highest slot number is out of range.
        BAD_HIGH_SLOT = 10077,
        /// Session is being destroyed.
        DEADSESSION = 10078,
        /// Encryption algorithm is not supported.
        ENCR_ALG_UNSUPP = 10079,
        /// I/O without a layout.
        PNFS_NO_LAYOUT = 10080,
        /// Operation must stand alone here.
        NOT_ONLY_OP = 10081,
        /// Credential may not do this to the state.
        WRONG_CRED = 10082,
        /// Object has the wrong type.
        WRONG_TYPE = 10083,
        /// Directory delegation cannot be had.
        DIRDELEG_UNAVAIL = 10084,
        /// Client rejects the delegation.
        REJECT_DELEG = 10085,
        /// Layout must be returned first.
        RETURNCONFLICT = 10086,
        /// Delegation was revoked.
        DELEG_REVOKED = 10087,
        /// Inter-server copy is not supported.
        PARTNER_NOTSUPP = 10088,
        /// Servers cannot authenticate each other.
        PARTNER_NO_AUTH = 10089,
        /// Arm of a union is not supported.
        UNION_NOTSUPP = 10090,
        /// Copy is not allowed.
        OFFLOAD_DENIED = 10091,
        /// Label format is not supported.
        WRONG_LFS = 10092,
        /// Label is incorrect.
        BADLABEL = 10093,
        /// Copy requirements cannot be met.
        OFFLOAD_NO_REQS = 10094,
        /// Extended attribute does not exist (RFC 8276).
        NOXATTR = 10095,
        /// Extended attribute is too big (RFC 8276).
        XATTR2BIG = 10096,
    }
}

impl Status {
    /// Whether the operation succeeded.
    #[inline]
    pub fn is_ok(self) -> bool {
        self == Self::OK
    }

    /// `Ok(())` for success, the status itself otherwise.
    #[inline]
    pub fn ok(self) -> Result<(), Status> {
        if self.is_ok() { Ok(()) } else { Err(self) }
    }
}

impl std::error::Error for Status {}
