//! OPEN, CLOSE, OPEN_DOWNGRADE.

use bytes::Bytes;
use dhow_xdr::{Decode, Encode, Error, Reader, Result, Writer, xdr_enum, xdr_struct};

use crate::v4::{Ace, Bitmap, ChangeInfo, DelegationType, Fattr, NO_LIMIT, StateOwner, Stateid, Verifier};

/// Bits of `share_access` and `share_deny` (RFC 8881 section 18.16).
pub mod share {
    /// Open for reading.
    pub const ACCESS_READ: u32 = 0x1;
    /// Open for writing.
    pub const ACCESS_WRITE: u32 = 0x2;
    /// Open for both.
    pub const ACCESS_BOTH: u32 = 0x3;
    /// Deny nothing.
    pub const DENY_NONE: u32 = 0x0;
    /// Deny reading to others.
    pub const DENY_READ: u32 = 0x1;
    /// Deny writing to others.
    pub const DENY_WRITE: u32 = 0x2;
    /// Deny both.
    pub const DENY_BOTH: u32 = 0x3;
    /// The bits of `share_access` that say which delegation is wanted.
    pub const WANT_DELEG_MASK: u32 = 0xff00;
    /// No preference.
    pub const WANT_NO_PREFERENCE: u32 = 0x0000;
    /// A read delegation is wanted.
    pub const WANT_READ_DELEG: u32 = 0x0100;
    /// A write delegation is wanted.
    pub const WANT_WRITE_DELEG: u32 = 0x0200;
    /// Any delegation is wanted.
    pub const WANT_ANY_DELEG: u32 = 0x0300;
    /// No delegation is wanted.
    pub const WANT_NO_DELEG: u32 = 0x0400;
    /// Earlier wishes are withdrawn.
    pub const WANT_CANCEL: u32 = 0x0500;
    /// Tell the client when a delegation can be had.
    pub const WANT_SIGNAL_DELEG_WHEN_RESRC_AVAIL: u32 = 0x1_0000;
    /// Push a delegation when nobody contends.
    pub const WANT_PUSH_DELEG_WHEN_UNCONTENDED: u32 = 0x2_0000;
    /// Timestamps are to be delegated too (RFC 9754).
    pub const WANT_DELEG_TIMESTAMPS: u32 = 0x10_0000;
    /// Either an open stateid or a delegation is enough (RFC 9754).
    pub const WANT_OPEN_XOR_DELEGATION: u32 = 0x20_0000;
}

/// Bits of `rflags` in the result of OPEN.
pub mod open_result {
    /// OPEN_CONFIRM is needed; never set in NFSv4.1.
    pub const CONFIRM: u32 = 0x02;
    /// Byte-range locks are POSIX locks.
    pub const LOCKTYPE_POSIX: u32 = 0x04;
    /// The file stays when it is removed while open, over a restart too.
    pub const PRESERVE_UNLINKED: u32 = 0x08;
    /// CB_NOTIFY_LOCK may come.
    pub const MAY_NOTIFY_LOCK: u32 = 0x20;
}

xdr_enum! {
    /// Why a delegation was not given (`why_no_delegation4`).
    pub enum WhyNoDelegation {
        /// Not wanted.
        NOT_WANTED = 0,
        /// Others use the file.
        CONTENTION = 1,
        /// Resources ran out.
        RESOURCE = 2,
        /// Not for files of this type.
        NOT_SUPP_FTYPE = 3,
        /// No write delegations for files of this type.
        WRITE_DELEG_NOT_SUPP_FTYPE = 4,
        /// No upgrade.
        NOT_SUPP_UPGRADE = 5,
        /// No downgrade.
        NOT_SUPP_DOWNGRADE = 6,
        /// The wish was withdrawn.
        CANCELLED = 7,
        /// A directory.
        IS_DIR = 8,
    }
}

xdr_struct! {
    /// OPEN (RFC 8881 section 18.16).
    pub struct OpenArgs {
        /// Ignored in NFSv4.1.
        pub seqid: u32,
        /// Access bits and delegation wishes of [`share`].
        pub share_access: u32,
        /// Deny bits of [`share`].
        pub share_deny: u32,
        /// The open-owner.
        pub owner: StateOwner,
        /// Whether and how to create.
        pub how: OpenHow,
        /// Which file, by which right.
        pub claim: OpenClaim,
    }

    /// Result of OPEN.
    pub struct OpenOk {
        /// Of the open.
        pub stateid: Stateid,
        /// The directory.
        pub cinfo: ChangeInfo,
        /// Bits of [`open_result`].
        pub rflags: u32,
        /// Attributes set at creation.
        pub attrset: Bitmap,
        /// A delegation, or why there is none.
        pub delegation: Delegation,
    }

    /// CLOSE (RFC 8881 section 18.2).
    pub struct CloseArgs {
        /// Ignored in NFSv4.1.
        pub seqid: u32,
        /// The open.
        pub open_stateid: Stateid,
    }

    /// Result of CLOSE.
    pub struct CloseOk {
        /// Of no use; [`Stateid::INVALID`] is what a server should send.
        pub open_stateid: Stateid,
    }

    /// OPEN_DOWNGRADE (RFC 8881 section 18.18).
    pub struct OpenDowngradeArgs {
        /// The open.
        pub open_stateid: Stateid,
        /// Ignored in NFSv4.1.
        pub seqid: u32,
        /// Access bits to keep.
        pub share_access: u32,
        /// Deny bits to keep.
        pub share_deny: u32,
    }

    /// Result of OPEN_DOWNGRADE.
    pub struct OpenDowngradeOk {
        /// The open afterwards.
        pub open_stateid: Stateid,
    }

    /// A read delegation.
    pub struct ReadDelegation {
        /// Of the delegation.
        pub stateid: Stateid,
        /// It is recalled already (reclaims only).
        pub recall: bool,
        /// Who needs no ACCESS to open.
        pub permissions: Ace,
    }

    /// A write delegation.
    pub struct WriteDelegation {
        /// Of the delegation.
        pub stateid: Stateid,
        /// It is recalled already (reclaims only).
        pub recall: bool,
        /// How much may be written before data must go to the server at close.
        pub space_limit: SpaceLimit,
        /// Who needs no ACCESS to open.
        pub permissions: Ace,
    }
}

/// How to create (`createhow4`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CreateHow {
    /// Use an existing file.
    Unchecked(Fattr),
    /// Refuse an existing file.
    Guarded(Fattr),
    /// Exclusive, without attributes.
    Exclusive(Verifier),
    /// Exclusive, with attributes.
    Exclusive41 {
        /// Kept with the file, to recognise a retry.
        verifier: Verifier,
        /// Attributes of [`crate::v4::Attrs::suppattr_exclcreat`] at most.
        attrs: Fattr,
    },
}

/// Whether and how to create (`openflag4`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenHow {
    /// The file must exist.
    NoCreate,
    /// Create it.
    Create(CreateHow),
}

impl Encode for OpenHow {
    fn encode(&self, w: &mut Writer) {
        let Self::Create(how) = self else {
            return w.u32(0);
        };
        w.u32(1);
        match how {
            CreateHow::Unchecked(attrs) => {
                w.u32(0);
                attrs.encode(w);
            }
            CreateHow::Guarded(attrs) => {
                w.u32(1);
                attrs.encode(w);
            }
            CreateHow::Exclusive(verifier) => {
                w.u32(2);
                verifier.encode(w);
            }
            CreateHow::Exclusive41 { verifier, attrs } => {
                w.u32(3);
                verifier.encode(w);
                attrs.encode(w);
            }
        }
    }
}

impl Decode for OpenHow {
    fn decode(r: &mut Reader) -> Result<Self> {
        match r.u32()? {
            0 => return Ok(Self::NoCreate),
            1 => {}
            value => return Err(Error::BadEnum { what: "opentype4", value }),
        }
        Ok(Self::Create(match r.u32()? {
            0 => CreateHow::Unchecked(Fattr::decode(r)?),
            1 => CreateHow::Guarded(Fattr::decode(r)?),
            2 => CreateHow::Exclusive(Verifier::decode(r)?),
            3 => CreateHow::Exclusive41 { verifier: Verifier::decode(r)?, attrs: Fattr::decode(r)? },
            value => return Err(Error::BadEnum { what: "createmode4", value }),
        }))
    }
}

/// Which file is opened, and by which right (`open_claim4`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenClaim {
    /// A name in the current directory.
    Null(Bytes),
    /// Reclaim of the current file after a restart, with the delegation held.
    Previous(DelegationType),
    /// A name, by right of a delegation.
    DelegateCur {
        /// The delegation.
        stateid: Stateid,
        /// The name.
        file: Bytes,
    },
    /// A name, by right of a delegation of an earlier client instance.
    DelegatePrev(Bytes),
    /// The current file.
    Fh,
    /// The current file, by right of a delegation.
    DelegCurFh(Stateid),
    /// The current file, by right of a delegation of an earlier client instance.
    DelegPrevFh,
}

impl OpenClaim {
    /// Whether the current filehandle is the file itself rather than its directory.
    pub fn is_by_handle(&self) -> bool {
        matches!(self, Self::Previous(_) | Self::Fh | Self::DelegCurFh(_) | Self::DelegPrevFh)
    }
}

impl Encode for OpenClaim {
    fn encode(&self, w: &mut Writer) {
        match self {
            Self::Null(file) => {
                w.u32(0);
                w.opaque(file);
            }
            Self::Previous(delegation) => {
                w.u32(1);
                delegation.encode(w);
            }
            Self::DelegateCur { stateid, file } => {
                w.u32(2);
                stateid.encode(w);
                w.opaque(file);
            }
            Self::DelegatePrev(file) => {
                w.u32(3);
                w.opaque(file);
            }
            Self::Fh => w.u32(4),
            Self::DelegCurFh(stateid) => {
                w.u32(5);
                stateid.encode(w);
            }
            Self::DelegPrevFh => w.u32(6),
        }
    }
}

impl Decode for OpenClaim {
    fn decode(r: &mut Reader) -> Result<Self> {
        Ok(match r.u32()? {
            0 => Self::Null(r.opaque(NO_LIMIT)?),
            1 => Self::Previous(DelegationType::decode(r)?),
            2 => Self::DelegateCur { stateid: Stateid::decode(r)?, file: r.opaque(NO_LIMIT)? },
            3 => Self::DelegatePrev(r.opaque(NO_LIMIT)?),
            4 => Self::Fh,
            5 => Self::DelegCurFh(Stateid::decode(r)?),
            6 => Self::DelegPrevFh,
            value => return Err(Error::BadEnum { what: "open_claim_type4", value }),
        })
    }
}

/// How much may be written under a write delegation (`nfs_space_limit4`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpaceLimit {
    /// Until the file has this size in bytes.
    Size(u64),
    /// This many blocks.
    Blocks {
        /// Number of blocks.
        count: u32,
        /// Bytes in a block.
        size: u32,
    },
}

impl Encode for SpaceLimit {
    fn encode(&self, w: &mut Writer) {
        match *self {
            Self::Size(size) => {
                w.u32(1);
                w.u64(size);
            }
            Self::Blocks { count, size } => {
                w.u32(2);
                w.u32(count);
                w.u32(size);
            }
        }
    }
}

impl Decode for SpaceLimit {
    fn decode(r: &mut Reader) -> Result<Self> {
        match r.u32()? {
            1 => r.u64().map(Self::Size),
            2 => Ok(Self::Blocks { count: r.u32()?, size: r.u32()? }),
            value => Err(Error::BadEnum { what: "limit_by4", value }),
        }
    }
}

/// The delegation part of the result of OPEN (`open_delegation4`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delegation {
    /// None, without a reason.
    None,
    /// For reading.
    Read(ReadDelegation),
    /// For writing.
    Write(WriteDelegation),
    /// None because others use the file.
    Contention {
        /// One will be pushed later.
        will_push: bool,
    },
    /// None because resources ran out.
    Resource {
        /// The client will be told when there is one.
        will_signal: bool,
    },
    /// None for this reason, which is neither CONTENTION nor RESOURCE.
    NoneExt(WhyNoDelegation),
}

impl Encode for Delegation {
    fn encode(&self, w: &mut Writer) {
        match self {
            Self::None => DelegationType::NONE.encode(w),
            Self::Read(read) => {
                DelegationType::READ.encode(w);
                read.encode(w);
            }
            Self::Write(write) => {
                DelegationType::WRITE.encode(w);
                write.encode(w);
            }
            Self::Contention { will_push } => {
                DelegationType::NONE_EXT.encode(w);
                WhyNoDelegation::CONTENTION.encode(w);
                w.bool(*will_push);
            }
            Self::Resource { will_signal } => {
                DelegationType::NONE_EXT.encode(w);
                WhyNoDelegation::RESOURCE.encode(w);
                w.bool(*will_signal);
            }
            Self::NoneExt(why) => {
                DelegationType::NONE_EXT.encode(w);
                why.encode(w);
                // The two reasons with an argument have variants of their own; keep the stream in step anyway.
                if matches!(*why, WhyNoDelegation::CONTENTION | WhyNoDelegation::RESOURCE) {
                    w.bool(false);
                }
            }
        }
    }
}

impl Decode for Delegation {
    fn decode(r: &mut Reader) -> Result<Self> {
        Ok(match DelegationType::decode(r)? {
            DelegationType::NONE => Self::None,
            DelegationType::READ => Self::Read(ReadDelegation::decode(r)?),
            DelegationType::WRITE => Self::Write(WriteDelegation::decode(r)?),
            DelegationType::NONE_EXT => match WhyNoDelegation::decode(r)? {
                WhyNoDelegation::CONTENTION => Self::Contention { will_push: r.bool()? },
                WhyNoDelegation::RESOURCE => Self::Resource { will_signal: r.bool()? },
                why => Self::NoneExt(why),
            },
            DelegationType(value) => {
                return Err(Error::BadEnum { what: "open_delegation_type4", value });
            }
        })
    }
}
