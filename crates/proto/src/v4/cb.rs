//! Callbacks from server to client (RFC 8881 section 20, RFC 7862 section 16).

use bytes::Bytes;
use dhow_xdr::{Decode, Encode, Error, Reader, Result, Writer, xdr_struct};

use super::compound::{OpRes, operations};
use super::ops::WriteResponse;
use super::{
    Attrs, Bitmap, CbOpNum, FileHandle, MAX_ARRAY, NO_LIMIT, OPAQUE_LIMIT, SessionId, StateOwner, Stateid, Status,
};

/// Version number of the callback program.
pub const CB_VERSION: u32 = 1;

/// Procedure that does nothing.
pub const CB_PROC_NULL: u32 = 0;

/// Procedure that carries a sequence of callback operations.
pub const CB_PROC_COMPOUND: u32 = 1;

/// Types in CB_RECALL_ANY (RFC 8881 section 20.6).
pub mod rca4 {
    /// Read delegations.
    pub const RDATA_DLG: u32 = 0;
    /// Write delegations.
    pub const WDATA_DLG: u32 = 1;
    /// Directory delegations.
    pub const DIR_DLG: u32 = 2;
}

xdr_struct! {
    /// A request of the client that a callback refers to (`referring_call4`).
    #[derive(Copy)]
    pub struct ReferringCall {
        /// Its sequence number.
        pub sequence_id: u32,
        /// Its slot.
        pub slot_id: u32,
    }

    /// Referring calls of one session.
    pub struct ReferringCallList {
        /// The session.
        pub session_id: SessionId,
        /// The calls.
        pub calls: Vec<ReferringCall>[max MAX_ARRAY],
    }

    /// CB_SEQUENCE (RFC 8881 section 20.9).
    pub struct CbSequenceArgs {
        /// The session.
        pub session_id: SessionId,
        /// One more than the slot's last.
        pub sequence_id: u32,
        /// The slot.
        pub slot_id: u32,
        /// Highest slot with a callback outstanding.
        pub highest_slot_id: u32,
        /// Keep the whole reply for a retry.
        pub cache_this: bool,
        /// Requests whose replies the client must have seen before it acts.
        pub referring_call_lists: Vec<ReferringCallList>[max MAX_ARRAY],
    }

    /// Result of CB_SEQUENCE.
    pub struct CbSequenceOk {
        /// That of the request.
        pub session_id: SessionId,
        /// That of the request.
        pub sequence_id: u32,
        /// That of the request.
        pub slot_id: u32,
        /// Highest slot the client accepts now.
        pub highest_slot_id: u32,
        /// Highest slot the server should use.
        pub target_highest_slot_id: u32,
    }

    /// CB_GETATTR (RFC 8881 section 20.1).
    pub struct CbGetattrArgs {
        /// The file.
        pub fh: FileHandle,
        /// `size` and `change` at most.
        pub attr_request: Bitmap,
    }

    /// Result of CB_GETATTR.
    pub struct CbGetattrOk {
        /// The attributes as the holder of the delegation sees them.
        pub attrs: Box<Attrs>,
    }

    /// CB_RECALL (RFC 8881 section 20.2).
    pub struct CbRecallArgs {
        /// The delegation.
        pub stateid: Stateid,
        /// The file is to be truncated: do not write data back.
        pub truncate: bool,
        /// The file.
        pub fh: FileHandle,
    }

    /// CB_RECALL_ANY (RFC 8881 section 20.6).
    pub struct CbRecallAnyArgs {
        /// How many the client may keep.
        pub objects_to_keep: u32,
        /// Numbers of [`rca4`].
        pub type_mask: Bitmap,
    }

    /// CB_RECALL_SLOT (RFC 8881 section 20.8).
    pub struct CbRecallSlotArgs {
        /// Highest slot the client should use.
        pub target_highest_slot_id: u32,
    }

    /// CB_NOTIFY_LOCK (RFC 8881 section 20.11).
    pub struct CbNotifyLockArgs {
        /// The file.
        pub fh: FileHandle,
        /// Who was waiting.
        pub lock_owner: StateOwner,
    }

    /// CB_OFFLOAD (RFC 7862 section 16.1).
    pub struct CbOffloadArgs {
        /// The destination file.
        pub fh: FileHandle,
        /// Names the copy.
        pub stateid: Stateid,
        /// Outcome.
        pub info: OffloadInfo,
    }
}

/// Outcome of a copy (`offload_info4`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OffloadInfo {
    /// Done.
    Ok(WriteResponse),
    /// Failed.
    Err {
        /// Why.
        status: Status,
        /// Bytes copied before that.
        bytes_copied: u64,
    },
}

impl Encode for OffloadInfo {
    fn encode(&self, w: &mut Writer) {
        match self {
            Self::Ok(response) => {
                Status::OK.encode(w);
                response.encode(w);
            }
            Self::Err { status, bytes_copied } => {
                status.encode(w);
                w.u64(*bytes_copied);
            }
        }
    }
}

impl Decode for OffloadInfo {
    fn decode(r: &mut Reader) -> Result<Self> {
        match Status::decode(r)? {
            Status::OK => WriteResponse::decode(r).map(Self::Ok),
            status => Ok(Self::Err { status, bytes_copied: r.u64()? }),
        }
    }
}

operations! {
    /// A callback operation with its arguments (`nfs_cb_argop4`).
    CbArgOp,
    /// A callback operation with its result (`nfs_cb_resop4`).
    CbResOp,
    CbOpNum;
    arguments {
        GETATTR Getattr(CbGetattrArgs) -> Result<CbGetattrOk, Status>;
        RECALL Recall(CbRecallArgs) -> Result<(), Status>;
        RECALL_ANY RecallAny(CbRecallAnyArgs) -> Result<(), Status>;
        RECALL_SLOT RecallSlot(CbRecallSlotArgs) -> Result<(), Status>;
        SEQUENCE Sequence(CbSequenceArgs) -> Result<CbSequenceOk, Status>;
        NOTIFY_LOCK NotifyLock(CbNotifyLockArgs) -> Result<(), Status>;
        OFFLOAD Offload(CbOffloadArgs) -> Result<(), Status>;
    }
    no arguments {
        ILLEGAL Illegal -> Result<(), Status>;
    }
}

/// What stands before the operations of a callback. A client reads it, then one operation number and its arguments
/// after another, and stops at one it does not serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CbCompoundHeader {
    /// Free text, returned in the reply.
    pub tag: Bytes,
    /// Minor version.
    pub minorversion: u32,
    /// Not used in NFSv4.1.
    pub callback_ident: u32,
    /// Number of operations.
    pub numops: u32,
}

impl Decode for CbCompoundHeader {
    fn decode(r: &mut Reader) -> Result<Self> {
        Ok(Self { tag: r.opaque(OPAQUE_LIMIT)?, minorversion: r.u32()?, callback_ident: r.u32()?, numops: r.u32()? })
    }
}

/// A callback (`CB_COMPOUND4args`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CbCompoundArgs {
    /// Free text.
    pub tag: Bytes,
    /// Minor version.
    pub minorversion: u32,
    /// The operations.
    pub ops: Vec<CbArgOp>,
}

impl Encode for CbCompoundArgs {
    fn encode(&self, w: &mut Writer) {
        w.opaque(&self.tag);
        w.u32(self.minorversion);
        w.u32(0); // callback_ident, of use to NFSv4.0 alone
        self.ops.encode(w);
    }
}

impl Decode for CbCompoundArgs {
    fn decode(r: &mut Reader) -> Result<Self> {
        let header = CbCompoundHeader::decode(r)?;
        let ops = (0..header.numops).map(|_| CbArgOp::decode(r)).collect::<Result<_>>()?;
        Ok(Self { tag: header.tag, minorversion: header.minorversion, ops })
    }
}

/// The reply to a callback (`CB_COMPOUND4res`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CbCompoundRes {
    /// Status of the last operation.
    pub status: Status,
    /// That of the request.
    pub tag: Bytes,
    /// Results up to and including the first failure.
    pub results: Vec<CbResOp>,
}

impl Encode for CbCompoundRes {
    fn encode(&self, w: &mut Writer) {
        self.status.encode(w);
        w.opaque(&self.tag);
        self.results.encode(w);
    }
}

impl Decode for CbCompoundRes {
    /// Reads results up to the first failure; what follows it is ignored.
    fn decode(r: &mut Reader) -> Result<Self> {
        let status = Status::decode(r)?;
        let tag = r.opaque(NO_LIMIT)?;
        let count = r.len_prefix("CB_COMPOUND results", 64)?;
        let mut results = Vec::new();
        for _ in 0..count {
            let res = CbResOp::decode(r)?;
            let failed = !res.status().is_ok();
            results.push(res);
            if failed {
                r.rest();
                break;
            }
        }
        Ok(Self { status, tag, results })
    }
}
