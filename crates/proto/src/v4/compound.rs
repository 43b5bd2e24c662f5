//! COMPOUND (RFC 8881 section 16.2): arguments and results of all operations joined.

use bytes::Bytes;
use dhow_xdr::{Decode, Encode, Error, Reader, Result, Writer};

use super::ops::*;
use super::{NO_LIMIT, OPAQUE_LIMIT, OpNum, Status};

/// Most results accepted in one reply; far more than any session allows operations.
const MAX_RESULTS: usize = 1024;

/// A result of an operation: its status, and the body that goes with it.
pub trait OpRes: Sized {
    /// The status.
    fn status(&self) -> Status;

    /// The result of a failure. When the status has a body, it gets one that says nothing.
    fn error(status: Status) -> Self;

    /// Appends status and body.
    fn encode_res(&self, w: &mut Writer);

    /// Reads status and body.
    fn decode_res(r: &mut Reader) -> Result<Self>;
}

impl<T: Encode + Decode> OpRes for Result<T, Status> {
    fn status(&self) -> Status {
        match self {
            Ok(_) => Status::OK,
            Err(status) => *status,
        }
    }

    fn error(status: Status) -> Self {
        debug_assert!(!status.is_ok());
        Err(status)
    }

    fn encode_res(&self, w: &mut Writer) {
        self.status().encode(w);
        if let Ok(body) = self {
            body.encode(w);
        }
    }

    fn decode_res(r: &mut Reader) -> Result<Self> {
        match Status::decode(r)? {
            Status::OK => T::decode(r).map(Ok),
            status => Ok(Err(status)),
        }
    }
}

macro_rules! operations {
    (
        $(#[$arg_meta:meta])* $arg_enum:ident, $(#[$res_meta:meta])* $res_enum:ident, $num:ident;
        arguments { $( $konst:ident $op:ident($args:ty) -> $res:ty; )* }
        no arguments { $( $konst0:ident $op0:ident -> $res0:ty; )* }
    ) => {
        $(#[$arg_meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $arg_enum {
            $( #[doc = concat!("Arguments of ", stringify!($konst), ".")] $op($args), )*
            $( #[doc = concat!(stringify!($konst0), ", which has no arguments.")] $op0, )*
        }

        impl $arg_enum {
            /// The operation.
            pub fn op(&self) -> $num {
                match self {
                    $( Self::$op(_) => $num::$konst, )*
                    $( Self::$op0 => $num::$konst0, )*
                }
            }

            /// Reads the arguments of `op`, whose number was read already.
            ///
            /// # Errors
            ///
            /// [`Error::BadEnum`] for an operation without codec here.
            pub fn decode_body(op: $num, r: &mut Reader) -> Result<Self> {
                Ok(match op {
                    $( $num::$konst => Self::$op(Decode::decode(r)?), )*
                    $( $num::$konst0 => Self::$op0, )*
                    $num(value) => return Err(Error::BadEnum { what: "operation", value }),
                })
            }
        }

        impl Encode for $arg_enum {
            fn encode(&self, w: &mut Writer) {
                self.op().encode(w);
                match self {
                    $( Self::$op(args) => args.encode(w), )*
                    $( Self::$op0 => {} )*
                }
            }
        }

        impl Decode for $arg_enum {
            fn decode(r: &mut Reader) -> Result<Self> {
                let op = $num::decode(r)?;
                Self::decode_body(op, r)
            }
        }

        $(#[$res_meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $res_enum {
            $( #[doc = concat!("Result of ", stringify!($konst), ".")] $op($res), )*
            $( #[doc = concat!("Result of ", stringify!($konst0), ".")] $op0($res0), )*
            /// Failure of an operation without codec here (ILLEGAL among them).
            Other($num, Status),
        }

        impl $res_enum {
            /// The operation.
            pub fn op(&self) -> $num {
                match self {
                    $( Self::$op(_) => $num::$konst, )*
                    $( Self::$op0(_) => $num::$konst0, )*
                    Self::Other(op, _) => *op,
                }
            }

            /// The status.
            pub fn status(&self) -> Status {
                match self {
                    $( Self::$op(res) => res.status(), )*
                    $( Self::$op0(res) => res.status(), )*
                    Self::Other(_, status) => *status,
                }
            }

            /// The result of `op` when it fails with `status`.
            pub fn error(op: $num, status: Status) -> Self {
                match op {
                    $( $num::$konst => Self::$op(OpRes::error(status)), )*
                    $( $num::$konst0 => Self::$op0(OpRes::error(status)), )*
                    op => Self::Other(op, status),
                }
            }
        }

        impl Encode for $res_enum {
            fn encode(&self, w: &mut Writer) {
                self.op().encode(w);
                match self {
                    $( Self::$op(res) => res.encode_res(w), )*
                    $( Self::$op0(res) => res.encode_res(w), )*
                    Self::Other(_, status) => status.encode(w),
                }
            }
        }

        impl Decode for $res_enum {
            fn decode(r: &mut Reader) -> Result<Self> {
                Ok(match $num::decode(r)? {
                    $( $num::$konst => Self::$op(OpRes::decode_res(r)?), )*
                    $( $num::$konst0 => Self::$op0(OpRes::decode_res(r)?), )*
                    op => match Status::decode(r)? {
                        Status::OK => {
                            return Err(Error::BadEnum { what: "operation", value: op.0 });
                        }
                        status => Self::Other(op, status),
                    },
                })
            }
        }
    };
}

pub(crate) use operations;

operations! {
    /// An operation with its arguments (`nfs_argop4`).
    ArgOp,
    /// An operation with its result (`nfs_resop4`).
    ResOp,
    OpNum;
    arguments {
        ACCESS Access(AccessArgs) -> Result<AccessOk, Status>;
        CLOSE Close(CloseArgs) -> Result<CloseOk, Status>;
        COMMIT Commit(CommitArgs) -> Result<CommitOk, Status>;
        CREATE Create(CreateArgs) -> Result<CreateOk, Status>;
        DELEGPURGE Delegpurge(DelegpurgeArgs) -> Result<(), Status>;
        DELEGRETURN Delegreturn(DelegreturnArgs) -> Result<(), Status>;
        GETATTR Getattr(GetattrArgs) -> Result<GetattrOk, Status>;
        LINK Link(LinkArgs) -> Result<LinkOk, Status>;
        LOCK Lock(LockArgs) -> LockRes;
        LOCKT Lockt(LocktArgs) -> LocktRes;
        LOCKU Locku(LockuArgs) -> Result<LockuOk, Status>;
        LOOKUP Lookup(LookupArgs) -> Result<(), Status>;
        NVERIFY Nverify(VerifyArgs) -> Result<(), Status>;
        OPEN Open(OpenArgs) -> Result<OpenOk, Status>;
        OPENATTR Openattr(OpenattrArgs) -> Result<(), Status>;
        OPEN_DOWNGRADE OpenDowngrade(OpenDowngradeArgs) -> Result<OpenDowngradeOk, Status>;
        PUTFH PutFh(PutFhArgs) -> Result<(), Status>;
        READ Read(ReadArgs) -> Result<ReadOk, Status>;
        READDIR Readdir(ReaddirArgs) -> Result<ReaddirOk, Status>;
        REMOVE Remove(RemoveArgs) -> Result<RemoveOk, Status>;
        RENAME Rename(RenameArgs) -> Result<RenameOk, Status>;
        SECINFO Secinfo(SecinfoArgs) -> Result<SecinfoOk, Status>;
        SETATTR Setattr(SetattrArgs) -> SetattrRes;
        VERIFY Verify(VerifyArgs) -> Result<(), Status>;
        WRITE Write(WriteArgs) -> Result<WriteOk, Status>;
        BACKCHANNEL_CTL BackchannelCtl(BackchannelCtlArgs) -> Result<(), Status>;
        BIND_CONN_TO_SESSION BindConnToSession(BindConnToSessionArgs)
            -> Result<BindConnToSessionOk, Status>;
        EXCHANGE_ID ExchangeId(ExchangeIdArgs) -> Result<ExchangeIdOk, Status>;
        CREATE_SESSION CreateSession(CreateSessionArgs) -> Result<CreateSessionOk, Status>;
        DESTROY_SESSION DestroySession(DestroySessionArgs) -> Result<(), Status>;
        FREE_STATEID FreeStateid(FreeStateidArgs) -> Result<(), Status>;
        SECINFO_NO_NAME SecinfoNoName(SecinfoNoNameArgs) -> Result<SecinfoOk, Status>;
        SEQUENCE Sequence(SequenceArgs) -> Result<SequenceOk, Status>;
        TEST_STATEID TestStateid(TestStateidArgs) -> Result<TestStateidOk, Status>;
        DESTROY_CLIENTID DestroyClientid(DestroyClientidArgs) -> Result<(), Status>;
        RECLAIM_COMPLETE ReclaimComplete(ReclaimCompleteArgs) -> Result<(), Status>;
        ALLOCATE Allocate(AllocateArgs) -> Result<(), Status>;
        COPY Copy(CopyArgs) -> CopyRes;
        COPY_NOTIFY CopyNotify(CopyNotifyArgs) -> Result<CopyNotifyOk, Status>;
        DEALLOCATE Deallocate(AllocateArgs) -> Result<(), Status>;
        IO_ADVISE IoAdvise(IoAdviseArgs) -> Result<IoAdviseOk, Status>;
        OFFLOAD_CANCEL OffloadCancel(OffloadArgs) -> Result<(), Status>;
        OFFLOAD_STATUS OffloadStatus(OffloadArgs) -> Result<OffloadStatusOk, Status>;
        READ_PLUS ReadPlus(ReadPlusArgs) -> Result<ReadPlusOk, Status>;
        SEEK Seek(SeekArgs) -> Result<SeekOk, Status>;
        CLONE Clone(CloneArgs) -> Result<(), Status>;
        GETXATTR Getxattr(GetxattrArgs) -> Result<GetxattrOk, Status>;
        SETXATTR Setxattr(SetxattrArgs) -> Result<XattrChangeOk, Status>;
        LISTXATTRS Listxattrs(ListxattrsArgs) -> Result<ListxattrsOk, Status>;
        REMOVEXATTR Removexattr(RemovexattrArgs) -> Result<XattrChangeOk, Status>;
    }
    no arguments {
        GETFH GetFh -> Result<GetFhOk, Status>;
        LOOKUPP Lookupp -> Result<(), Status>;
        PUTPUBFH PutPubFh -> Result<(), Status>;
        PUTROOTFH PutRootFh -> Result<(), Status>;
        READLINK Readlink -> Result<ReadlinkOk, Status>;
        RESTOREFH RestoreFh -> Result<(), Status>;
        SAVEFH SaveFh -> Result<(), Status>;
        ILLEGAL Illegal -> Result<(), Status>;
    }
}

/// What stands before the operations of a request. A server reads it, then one operation number and its arguments
/// after another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompoundHeader {
    /// Free text, returned in the reply; at most [`OPAQUE_LIMIT`] bytes.
    pub tag: Bytes,
    /// Minor version.
    pub minorversion: u32,
    /// Number of operations the client claims to send.
    pub numops: u32,
}

impl Decode for CompoundHeader {
    fn decode(r: &mut Reader) -> Result<Self> {
        Ok(Self { tag: r.opaque(OPAQUE_LIMIT)?, minorversion: r.u32()?, numops: r.u32()? })
    }
}

impl Encode for CompoundHeader {
    fn encode(&self, w: &mut Writer) {
        w.opaque(&self.tag);
        w.u32(self.minorversion);
        w.u32(self.numops);
    }
}

/// A request (`COMPOUND4args`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompoundArgs {
    /// Free text.
    pub tag: Bytes,
    /// Minor version.
    pub minorversion: u32,
    /// The operations.
    pub ops: Vec<ArgOp>,
}

impl Encode for CompoundArgs {
    fn encode(&self, w: &mut Writer) {
        w.opaque(&self.tag);
        w.u32(self.minorversion);
        self.ops.encode(w);
    }
}

impl Decode for CompoundArgs {
    fn decode(r: &mut Reader) -> Result<Self> {
        let header = CompoundHeader::decode(r)?;
        let ops = (0..header.numops).map(|_| ArgOp::decode(r)).collect::<Result<_>>()?;
        Ok(Self { tag: header.tag, minorversion: header.minorversion, ops })
    }
}

/// A reply (`COMPOUND4res`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompoundRes {
    /// Status of the last operation.
    pub status: Status,
    /// That of the request.
    pub tag: Bytes,
    /// Results up to and including the first failure.
    pub results: Vec<ResOp>,
}

impl Encode for CompoundRes {
    fn encode(&self, w: &mut Writer) {
        self.status.encode(w);
        w.opaque(&self.tag);
        self.results.encode(w);
    }
}

impl Decode for CompoundRes {
    /// Reads results up to the first failure; nothing can follow it, and what a server may have put there is ignored.
    fn decode(r: &mut Reader) -> Result<Self> {
        let status = Status::decode(r)?;
        let tag = r.opaque(NO_LIMIT)?;
        let count = r.len_prefix("COMPOUND results", MAX_RESULTS)?;
        let mut results = Vec::with_capacity(count.min(r.remaining() / 8).min(16));
        for _ in 0..count {
            let res = ResOp::decode(r)?;
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
