//! Byte-range locks.

use bytes::Bytes;
use dhow_xdr::{Decode, Encode, Reader, Result, Writer, xdr_struct};

use crate::v4::{ClientId, LockType, OpRes, StateOwner, Stateid, Status, TO_EOF};

xdr_struct! {
    /// First lock of a lock-owner in a file (`open_to_lock_owner4`).
    pub struct OpenToLockOwner {
        /// Ignored in NFSv4.1.
        pub open_seqid: u32,
        /// The open.
        pub open_stateid: Stateid,
        /// Ignored in NFSv4.1.
        pub lock_seqid: u32,
        /// The new lock-owner.
        pub lock_owner: StateOwner,
    }

    /// Further locks of a lock-owner (`exist_lock_owner4`).
    pub struct ExistLockOwner {
        /// The lock-owner's stateid in this file.
        pub lock_stateid: Stateid,
        /// Ignored in NFSv4.1.
        pub lock_seqid: u32,
    }

    /// LOCK (RFC 8881 section 18.10).
    pub struct LockArgs {
        /// Shared or exclusive, waiting or not.
        pub lock_type: LockType,
        /// After a restart of the server.
        pub reclaim: bool,
        /// Start in bytes.
        pub offset: u64,
        /// Length in bytes; all ones for "to the end".
        pub length: u64,
        /// On behalf of whom.
        pub locker: Locker,
    }

    /// The lock that is in the way (`LOCK4denied`).
    pub struct LockDenied {
        /// Its start.
        pub offset: u64,
        /// Its length.
        pub length: u64,
        /// Its type.
        pub lock_type: LockType,
        /// Its owner.
        pub owner: StateOwner,
    }

    /// LOCKT (RFC 8881 section 18.11).
    pub struct LocktArgs {
        /// Shared or exclusive.
        pub lock_type: LockType,
        /// Start in bytes.
        pub offset: u64,
        /// Length in bytes; all ones for "to the end".
        pub length: u64,
        /// Locks of this owner are not in the way.
        pub owner: StateOwner,
    }

    /// LOCKU (RFC 8881 section 18.12).
    pub struct LockuArgs {
        /// Not used by the server.
        pub lock_type: LockType,
        /// Ignored in NFSv4.1.
        pub seqid: u32,
        /// The lock-owner's stateid.
        pub lock_stateid: Stateid,
        /// Start in bytes.
        pub offset: u64,
        /// Length in bytes; all ones for "to the end".
        pub length: u64,
    }

    /// Result of LOCKU.
    pub struct LockuOk {
        /// The lock-owner's stateid afterwards.
        pub lock_stateid: Stateid,
    }
}

/// On behalf of whom a LOCK is (`locker4`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Locker {
    /// A lock-owner without locks in this file.
    New(OpenToLockOwner),
    /// A lock-owner with a stateid.
    Existing(ExistLockOwner),
}

impl Encode for Locker {
    fn encode(&self, w: &mut Writer) {
        match self {
            Self::New(new) => {
                w.bool(true);
                new.encode(w);
            }
            Self::Existing(existing) => {
                w.bool(false);
                existing.encode(w);
            }
        }
    }
}

impl Decode for Locker {
    fn decode(r: &mut Reader) -> Result<Self> {
        if r.bool()? {
            OpenToLockOwner::decode(r).map(Self::New)
        } else {
            ExistLockOwner::decode(r).map(Self::Existing)
        }
    }
}

impl LockDenied {
    /// Stands for a conflict nobody can describe: the whole file, an owner without a name.
    const UNKNOWN: Self = Self {
        offset: 0,
        length: TO_EOF,
        lock_type: LockType::WRITE,
        owner: StateOwner { client: ClientId(0), owner: Bytes::new() },
    };
}

/// Result of LOCK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockRes {
    /// Granted; the lock-owner's stateid afterwards.
    Ok(Stateid),
    /// [`Status::DENIED`].
    Denied(LockDenied),
    /// Any other status; DENIED here is sent as a conflict nobody can describe.
    Err(Status),
}

/// Result of LOCKT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocktRes {
    /// Nothing is in the way.
    Ok,
    /// [`Status::DENIED`].
    Denied(LockDenied),
    /// Any other status; DENIED here is sent as a conflict nobody can describe.
    Err(Status),
}

impl OpRes for LockRes {
    fn status(&self) -> Status {
        match self {
            Self::Ok(_) => Status::OK,
            Self::Denied(_) => Status::DENIED,
            Self::Err(status) => *status,
        }
    }

    fn error(status: Status) -> Self {
        match status {
            Status::DENIED => Self::Denied(LockDenied::UNKNOWN),
            status => Self::Err(status),
        }
    }

    fn encode_res(&self, w: &mut Writer) {
        self.status().encode(w);
        match self {
            Self::Ok(stateid) => stateid.encode(w),
            Self::Denied(denied) => denied.encode(w),
            Self::Err(Status::DENIED) => LockDenied::UNKNOWN.encode(w),
            Self::Err(_) => {}
        }
    }

    fn decode_res(r: &mut Reader) -> Result<Self> {
        match Status::decode(r)? {
            Status::OK => Stateid::decode(r).map(Self::Ok),
            Status::DENIED => LockDenied::decode(r).map(Self::Denied),
            status => Ok(Self::Err(status)),
        }
    }
}

impl OpRes for LocktRes {
    fn status(&self) -> Status {
        match self {
            Self::Ok => Status::OK,
            Self::Denied(_) => Status::DENIED,
            Self::Err(status) => *status,
        }
    }

    fn error(status: Status) -> Self {
        match status {
            Status::DENIED => Self::Denied(LockDenied::UNKNOWN),
            status => Self::Err(status),
        }
    }

    fn encode_res(&self, w: &mut Writer) {
        self.status().encode(w);
        match self {
            Self::Denied(denied) => denied.encode(w),
            Self::Err(Status::DENIED) => LockDenied::UNKNOWN.encode(w),
            Self::Ok | Self::Err(_) => {}
        }
    }

    fn decode_res(r: &mut Reader) -> Result<Self> {
        match Status::decode(r)? {
            Status::OK => Ok(Self::Ok),
            Status::DENIED => LockDenied::decode(r).map(Self::Denied),
            status => Ok(Self::Err(status)),
        }
    }
}
