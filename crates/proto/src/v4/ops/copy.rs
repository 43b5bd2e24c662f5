//! Copies: COPY, COPY_NOTIFY, OFFLOAD_STATUS, OFFLOAD_CANCEL, CLONE.

use dhow_xdr::{Decode, Encode, Reader, Result, Writer, xdr_struct};

use crate::v4::{MAX_ARRAY, NetLoc, NfsTime, OpRes, StableHow, Stateid, Status, Verifier};

xdr_struct! {
    /// COPY (RFC 7862 section 15.2): saved is the source, current the destination. When the source is on another
    /// server, saved is that server's handle.
    pub struct CopyArgs {
        /// Of the source; from COPY_NOTIFY when the source is on another server.
        pub src_stateid: Stateid,
        /// Of the destination.
        pub dst_stateid: Stateid,
        /// Start in the source in bytes.
        pub src_offset: u64,
        /// Start in the destination in bytes.
        pub dst_offset: u64,
        /// Length in bytes; 0 for "to the end of the source".
        pub count: u64,
        /// The bytes must be copied in order.
        pub consecutive: bool,
        /// The reply must come after the copy.
        pub synchronous: bool,
        /// Where the source is; empty for this server.
        pub source_server: Vec<NetLoc>[max 256],
    }

    /// What of the requirements is met, or can be met (`copy_requirements4`).
    #[derive(Copy)]
    pub struct CopyRequirements {
        /// In order.
        pub consecutive: bool,
        /// Before the reply.
        pub synchronous: bool,
    }

    /// What was written (`write_response4`).
    pub struct WriteResponse {
        /// Names the copy when it runs on after the reply; at most one.
        pub callback_id: Vec<Stateid>[max 1],
        /// Bytes written.
        pub count: u64,
        /// How safe they are.
        pub committed: StableHow,
        /// As in WRITE.
        pub verifier: Verifier,
    }

    /// Result of COPY.
    pub struct CopyOk {
        /// What was written.
        pub response: WriteResponse,
        /// How it was done.
        pub requirements: CopyRequirements,
    }

    /// COPY_NOTIFY (RFC 7862 section 15.3): current is the source.
    pub struct CopyNotifyArgs {
        /// Of the source.
        pub src_stateid: Stateid,
        /// Which server will read.
        pub destination_server: NetLoc,
    }

    /// Result of COPY_NOTIFY.
    pub struct CopyNotifyOk {
        /// How long the destination may wait before its first READ.
        pub lease_time: NfsTime,
        /// For the destination's READs.
        pub stateid: Stateid,
        /// Where to read, the best first.
        pub source_server: Vec<NetLoc>[max MAX_ARRAY],
    }

    /// OFFLOAD_CANCEL (RFC 7862 section 15.8) and OFFLOAD_STATUS (section 15.9).
    pub struct OffloadArgs {
        /// Names the copy.
        pub stateid: Stateid,
    }

    /// Result of OFFLOAD_STATUS.
    pub struct OffloadStatusOk {
        /// Bytes written so far.
        pub count: u64,
        /// Outcome of a finished copy; at most one.
        pub complete: Vec<Status>[max 1],
    }

    /// CLONE (RFC 7862 section 15.13): saved is the source, current the destination.
    pub struct CloneArgs {
        /// Of the source.
        pub src_stateid: Stateid,
        /// Of the destination.
        pub dst_stateid: Stateid,
        /// Start in the source in bytes.
        pub src_offset: u64,
        /// Start in the destination in bytes.
        pub dst_offset: u64,
        /// Length in bytes; 0 for "to the end of the source".
        pub count: u64,
    }
}

impl CopyRequirements {
    /// Neither.
    pub const NONE: Self = Self { consecutive: false, synchronous: false };
}

/// Result of COPY.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyRes {
    /// Done or begun.
    Ok(CopyOk),
    /// [`Status::OFFLOAD_NO_REQS`]: these requirements could be met.
    NoReqs(CopyRequirements),
    /// Any other status; OFFLOAD_NO_REQS here is sent with [`CopyRequirements::NONE`].
    Err(Status),
}

impl OpRes for CopyRes {
    fn status(&self) -> Status {
        match self {
            Self::Ok(_) => Status::OK,
            Self::NoReqs(_) => Status::OFFLOAD_NO_REQS,
            Self::Err(status) => *status,
        }
    }

    fn error(status: Status) -> Self {
        match status {
            Status::OFFLOAD_NO_REQS => Self::NoReqs(CopyRequirements { consecutive: true, synchronous: false }),
            status => Self::Err(status),
        }
    }

    fn encode_res(&self, w: &mut Writer) {
        self.status().encode(w);
        match self {
            Self::Ok(ok) => ok.encode(w),
            Self::NoReqs(requirements) => requirements.encode(w),
            Self::Err(Status::OFFLOAD_NO_REQS) => CopyRequirements::NONE.encode(w),
            Self::Err(_) => {}
        }
    }

    fn decode_res(r: &mut Reader) -> Result<Self> {
        match Status::decode(r)? {
            Status::OK => CopyOk::decode(r).map(Self::Ok),
            Status::OFFLOAD_NO_REQS => CopyRequirements::decode(r).map(Self::NoReqs),
            status => Ok(Self::Err(status)),
        }
    }
}
