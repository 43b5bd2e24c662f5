//! Data: READ, WRITE, COMMIT, READ_PLUS, SEEK, ALLOCATE, DEALLOCATE, IO_ADVISE.

use bytes::Bytes;
use dhow_xdr::{Decode, Encode, Reader, Result, Writer, xdr_enum, xdr_struct};

use crate::v4::{Bitmap, MAX_ARRAY, NO_LIMIT, StableHow, Stateid, Verifier};

/// Hints of IO_ADVISE (`IO_ADVISE_type4`, RFC 7862 section 15.5).
pub mod advise {
    /// No advice.
    pub const NORMAL: u32 = 0;
    /// From low to high offsets.
    pub const SEQUENTIAL: u32 = 1;
    /// From high to low offsets.
    pub const SEQUENTIAL_BACKWARDS: u32 = 2;
    /// In no order.
    pub const RANDOM: u32 = 3;
    /// Soon.
    pub const WILLNEED: u32 = 4;
    /// Soon, if it costs nothing.
    pub const WILLNEED_OPPORTUNISTIC: u32 = 5;
    /// Not soon.
    pub const DONTNEED: u32 = 6;
    /// Once only.
    pub const NOREUSE: u32 = 7;
    /// Will be read.
    pub const READ: u32 = 8;
    /// Will be written.
    pub const WRITE: u32 = 9;
    /// Near its first use.
    pub const INIT_PROXIMITY: u32 = 10;
}

xdr_enum! {
    /// Data or hole (`data_content4`).
    pub enum DataContent {
        /// Data.
        DATA = 0,
        /// A hole, which reads as zeros.
        HOLE = 1,
    }
}

xdr_struct! {
    /// READ (RFC 8881 section 18.22).
    pub struct ReadArgs {
        /// An open, lock, delegation, copy-notify or special stateid.
        pub stateid: Stateid,
        /// Start in bytes.
        pub offset: u64,
        /// Most bytes wanted.
        pub count: u32,
    }

    /// Result of READ.
    pub struct ReadOk {
        /// The data reaches the end of the file.
        pub eof: bool,
        /// The data, kept by reference both ways.
        pub data: Bytes[max NO_LIMIT],
    }

    /// WRITE (RFC 8881 section 18.32).
    pub struct WriteArgs {
        /// An open, lock, delegation or special stateid.
        pub stateid: Stateid,
        /// Start in bytes.
        pub offset: u64,
        /// How safe the data must be before the reply.
        pub stable: StableHow,
        /// The data, kept by reference both ways.
        pub data: Bytes[max NO_LIMIT],
    }

    /// Result of WRITE.
    pub struct WriteOk {
        /// Bytes written.
        pub count: u32,
        /// How safe they are.
        pub committed: StableHow,
        /// Changes when unstable data may have been lost.
        pub verifier: Verifier,
    }

    /// COMMIT (RFC 8881 section 18.3).
    pub struct CommitArgs {
        /// Start in bytes.
        pub offset: u64,
        /// Length in bytes; 0 for "to the end".
        pub count: u32,
    }

    /// Result of COMMIT.
    pub struct CommitOk {
        /// To be compared with that of each WRITE.
        pub verifier: Verifier,
    }

    /// READ_PLUS (RFC 7862 section 15.10).
    pub struct ReadPlusArgs {
        /// As in READ.
        pub stateid: Stateid,
        /// Start in bytes.
        pub offset: u64,
        /// Most bytes wanted, holes included.
        pub count: u32,
    }

    /// Result of READ_PLUS.
    pub struct ReadPlusOk {
        /// The contents reach the end of the file.
        pub eof: bool,
        /// Data and holes in ascending order.
        pub contents: Vec<ReadPlusContent>[max MAX_ARRAY],
    }

    /// SEEK (RFC 7862 section 15.11).
    pub struct SeekArgs {
        /// As in READ.
        pub stateid: Stateid,
        /// Where to begin.
        pub offset: u64,
        /// What to look for.
        pub what: DataContent,
    }

    /// Result of SEEK.
    pub struct SeekOk {
        /// Nothing more of that kind before the end of the file.
        pub eof: bool,
        /// Where it was found.
        pub offset: u64,
    }

    /// ALLOCATE (RFC 7862 section 15.1) and DEALLOCATE (section 15.4).
    pub struct AllocateArgs {
        /// As in WRITE.
        pub stateid: Stateid,
        /// Start in bytes.
        pub offset: u64,
        /// Length in bytes.
        pub length: u64,
    }

    /// IO_ADVISE (RFC 7862 section 15.5).
    pub struct IoAdviseArgs {
        /// As in READ.
        pub stateid: Stateid,
        /// Start in bytes.
        pub offset: u64,
        /// Length in bytes; 0 for "to the end".
        pub count: u64,
        /// Numbers of [`advise`].
        pub hints: Bitmap,
    }

    /// Result of IO_ADVISE.
    pub struct IoAdviseOk {
        /// Those hints the server honours.
        pub hints: Bitmap,
    }
}

/// A piece of a READ_PLUS result (`read_plus_content`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadPlusContent {
    /// Data.
    Data {
        /// Start in bytes.
        offset: u64,
        /// The data, kept by reference both ways.
        data: Bytes,
    },
    /// A hole.
    Hole {
        /// Start in bytes.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
    /// A kind of content nobody knows; it has no body.
    Other(DataContent),
}

impl Encode for ReadPlusContent {
    fn encode(&self, w: &mut Writer) {
        match self {
            Self::Data { offset, data } => {
                DataContent::DATA.encode(w);
                w.u64(*offset);
                w.payload(data.clone());
            }
            Self::Hole { offset, length } => {
                DataContent::HOLE.encode(w);
                w.u64(*offset);
                w.u64(*length);
            }
            Self::Other(kind) => kind.encode(w),
        }
    }
}

impl Decode for ReadPlusContent {
    fn decode(r: &mut Reader) -> Result<Self> {
        Ok(match DataContent::decode(r)? {
            DataContent::DATA => Self::Data { offset: r.u64()?, data: r.opaque(NO_LIMIT)? },
            DataContent::HOLE => Self::Hole { offset: r.u64()?, length: r.u64()? },
            kind => Self::Other(kind),
        })
    }
}
