//! Client IDs, sessions, stateid housekeeping.

use bytes::Bytes;
use dhow_rpc::AuthSys;
use dhow_xdr::{Decode, Encode, Error, Reader, Result, Writer, xdr_enum, xdr_struct};

use crate::v4::{Bitmap, ClientId, ImplId, MAX_ARRAY, NO_LIMIT, OPAQUE_LIMIT, SessionId, Stateid, Status, Verifier};

/// Flags of EXCHANGE_ID (RFC 8881 section 18.35).
pub mod exchgid {
    /// The client follows referrals.
    pub const SUPP_MOVED_REFER: u32 = 0x0000_0001;
    /// The client follows migration.
    pub const SUPP_MOVED_MIGR: u32 = 0x0000_0002;
    /// Fencing operations are supported (RFC 7862).
    pub const SUPP_FENCE_OPS: u32 = 0x0000_0004;
    /// Stateids belong to the principal.
    pub const BIND_PRINC_STATEID: u32 = 0x0000_0100;
    /// Not a pNFS server.
    pub const USE_NON_PNFS: u32 = 0x0001_0000;
    /// A pNFS metadata server.
    pub const USE_PNFS_MDS: u32 = 0x0002_0000;
    /// A pNFS data server.
    pub const USE_PNFS_DS: u32 = 0x0004_0000;
    /// All three roles.
    pub const MASK_PNFS: u32 = 0x0007_0000;
    /// Update of a confirmed record; arguments only.
    pub const UPD_CONFIRMED_REC_A: u32 = 0x4000_0000;
    /// The client ID is confirmed; results only.
    pub const CONFIRMED_R: u32 = 0x8000_0000;
    /// All flags allowed in arguments.
    pub const MASK_ARGS: u32 =
        SUPP_MOVED_REFER | SUPP_MOVED_MIGR | SUPP_FENCE_OPS | BIND_PRINC_STATEID | MASK_PNFS | UPD_CONFIRMED_REC_A;
}

/// Flags of CREATE_SESSION (RFC 8881 section 18.36).
pub mod create_session {
    /// The reply cache survives restarts.
    pub const PERSIST: u32 = 0x1;
    /// This connection also carries callbacks.
    pub const CONN_BACK_CHAN: u32 = 0x2;
    /// This connection goes to RDMA mode.
    pub const CONN_RDMA: u32 = 0x4;
}

/// Status flags of SEQUENCE (RFC 8881 section 18.46.3).
pub mod seq4_status {
    /// No callback path at all.
    pub const CB_PATH_DOWN: u32 = 0x0001;
    /// GSS contexts of the back channel expire soon.
    pub const CB_GSS_CONTEXTS_EXPIRING: u32 = 0x0002;
    /// GSS contexts of the back channel have expired.
    pub const CB_GSS_CONTEXTS_EXPIRED: u32 = 0x0004;
    /// The lease expired and all state is gone.
    pub const EXPIRED_ALL_STATE_REVOKED: u32 = 0x0008;
    /// The lease expired and some state is gone.
    pub const EXPIRED_SOME_STATE_REVOKED: u32 = 0x0010;
    /// The administrator revoked state.
    pub const ADMIN_STATE_REVOKED: u32 = 0x0020;
    /// Recallable state was revoked.
    pub const RECALLABLE_STATE_REVOKED: u32 = 0x0040;
    /// A filesystem moved with its leases.
    pub const LEASE_MOVED: u32 = 0x0080;
    /// The server restarted: reclaim.
    pub const RESTART_RECLAIM_NEEDED: u32 = 0x0100;
    /// No callback path in this session.
    pub const CB_PATH_DOWN_SESSION: u32 = 0x0200;
    /// The back channel is broken.
    pub const BACKCHANNEL_FAULT: u32 = 0x0400;
    /// A device id changed.
    pub const DEVID_CHANGED: u32 = 0x0800;
    /// A device id was deleted.
    pub const DEVID_DELETED: u32 = 0x1000;
}

xdr_enum! {
    /// Channels a client asks for (`channel_dir_from_client4`).
    pub enum ChannelDirFromClient {
        /// Fore channel.
        FORE = 0x1,
        /// Back channel.
        BACK = 0x2,
        /// Fore, both if possible.
        FORE_OR_BOTH = 0x3,
        /// Back, both if possible.
        BACK_OR_BOTH = 0x7,
    }

    /// Channels a server grants (`channel_dir_from_server4`).
    pub enum ChannelDirFromServer {
        /// Fore channel.
        FORE = 0x1,
        /// Back channel.
        BACK = 0x2,
        /// Both.
        BOTH = 0x3,
    }
}

const SP4_NONE: u32 = 0;
const SP4_MACH_CRED: u32 = 1;
const SP4_SSV: u32 = 2;

xdr_struct! {
    /// Names a client over its restarts (`client_owner4`).
    #[derive(Hash)]
    pub struct ClientOwner {
        /// Differs in each instance of the client.
        pub verifier: Verifier,
        /// The same in all of them.
        pub owner_id: Bytes[max OPAQUE_LIMIT],
    }

    /// Names a server over its addresses (`server_owner4`, RFC 8881 section 2.10.5).
    #[derive(Hash)]
    pub struct ServerOwner {
        /// With the same major: whether sessions can be shared.
        pub minor_id: u64,
        /// Whether client IDs are the same.
        pub major_id: Bytes[max OPAQUE_LIMIT],
    }

    /// Operations under state protection.
    pub struct StateProtectOps {
        /// Must use the protection.
        pub must_enforce: Bitmap,
        /// May use it.
        pub must_allow: Bitmap,
    }

    /// Parameters of SP4_SSV asked for.
    pub struct SsvParams {
        /// Operations protected.
        pub ops: StateProtectOps,
        /// Hash algorithms.
        pub hash_algs: Vec<Oid>[max 64],
        /// Encryption algorithms.
        pub encr_algs: Vec<Oid>[max 64],
        /// Versions of the SSV kept.
        pub window: u32,
        /// GSS handles wanted.
        pub num_gss_handles: u32,
    }

    /// Parameters of SP4_SSV granted.
    pub struct SsvInfo {
        /// Operations protected.
        pub ops: StateProtectOps,
        /// Index of the hash algorithm.
        pub hash_alg: u32,
        /// Index of the encryption algorithm.
        pub encr_alg: u32,
        /// Length of the SSV in bytes.
        pub ssv_len: u32,
        /// Versions of the SSV kept.
        pub window: u32,
        /// GSS handles.
        pub handles: Vec<Oid>[max 64],
    }

    /// EXCHANGE_ID (RFC 8881 section 18.35).
    pub struct ExchangeIdArgs {
        /// Who asks.
        pub client_owner: ClientOwner,
        /// Bits of [`exchgid`].
        pub flags: u32,
        /// State protection wanted.
        pub state_protect: StateProtectArgs,
        /// Implementation of the client; at most one.
        pub impl_id: Vec<ImplId>[max 1],
    }

    /// Result of EXCHANGE_ID.
    pub struct ExchangeIdOk {
        /// For CREATE_SESSION.
        pub client_id: ClientId,
        /// For the next CREATE_SESSION.
        pub sequence_id: u32,
        /// Bits of [`exchgid`].
        pub flags: u32,
        /// State protection granted.
        pub state_protect: StateProtectRes,
        /// Which server this is.
        pub server_owner: ServerOwner,
        /// Within it, handles and server owners are comparable.
        pub server_scope: Bytes[max OPAQUE_LIMIT],
        /// Implementation of the server; at most one.
        pub impl_id: Vec<ImplId>[max 1],
    }

    /// Limits of a channel (`channel_attrs4`).
    pub struct ChannelAttrs {
        /// RDMA header padding in bytes.
        pub header_pad_size: u32,
        /// Largest request in bytes, RPC headers included.
        pub max_request_size: u32,
        /// Largest reply in bytes.
        pub max_response_size: u32,
        /// Largest reply kept for retries in bytes.
        pub max_response_size_cached: u32,
        /// Most operations in a COMPOUND.
        pub max_operations: u32,
        /// Number of slots.
        pub max_requests: u32,
        /// RDMA; at most one.
        pub rdma_ird: Vec<u32>[max 1],
    }

    /// CREATE_SESSION (RFC 8881 section 18.36).
    pub struct CreateSessionArgs {
        /// From EXCHANGE_ID.
        pub client_id: ClientId,
        /// From EXCHANGE_ID, or one more than that of the last CREATE_SESSION.
        pub sequence: u32,
        /// Bits of [`create_session`].
        pub flags: u32,
        /// Limits of requests of the client.
        pub fore_chan: ChannelAttrs,
        /// Limits of callbacks.
        pub back_chan: ChannelAttrs,
        /// RPC program number of callbacks.
        pub cb_program: u32,
        /// How callbacks may be authenticated.
        pub sec_parms: Vec<CallbackSec>[max 64],
    }

    /// Result of CREATE_SESSION.
    pub struct CreateSessionOk {
        /// The new session.
        pub session_id: SessionId,
        /// That of the request.
        pub sequence: u32,
        /// Bits of [`create_session`] granted.
        pub flags: u32,
        /// Limits granted.
        pub fore_chan: ChannelAttrs,
        /// Limits granted.
        pub back_chan: ChannelAttrs,
    }

    /// BIND_CONN_TO_SESSION (RFC 8881 section 18.34).
    pub struct BindConnToSessionArgs {
        /// The session.
        pub session_id: SessionId,
        /// Channels wanted.
        pub dir: ChannelDirFromClient,
        /// Whether to use RDMA mode.
        pub use_rdma: bool,
    }

    /// Result of BIND_CONN_TO_SESSION.
    pub struct BindConnToSessionOk {
        /// The session.
        pub session_id: SessionId,
        /// Channels granted.
        pub dir: ChannelDirFromServer,
        /// Whether RDMA mode is on.
        pub use_rdma: bool,
    }

    /// BACKCHANNEL_CTL (RFC 8881 section 18.33).
    pub struct BackchannelCtlArgs {
        /// RPC program number of callbacks.
        pub cb_program: u32,
        /// How callbacks may be authenticated.
        pub sec_parms: Vec<CallbackSec>[max 64],
    }

    /// DESTROY_SESSION (RFC 8881 section 18.37).
    pub struct DestroySessionArgs {
        /// The session.
        pub session_id: SessionId,
    }

    /// DESTROY_CLIENTID (RFC 8881 section 18.50).
    pub struct DestroyClientidArgs {
        /// The client ID.
        pub client_id: ClientId,
    }

    /// RECLAIM_COMPLETE (RFC 8881 section 18.51).
    pub struct ReclaimCompleteArgs {
        /// For the filesystem of the current filehandle alone.
        pub one_fs: bool,
    }

    /// SEQUENCE (RFC 8881 section 18.46).
    pub struct SequenceArgs {
        /// The session.
        pub session_id: SessionId,
        /// One more than the slot's last.
        pub sequence_id: u32,
        /// The slot.
        pub slot_id: u32,
        /// Highest slot with a request outstanding.
        pub highest_slot_id: u32,
        /// Keep the whole reply for a retry.
        pub cache_this: bool,
    }

    /// Result of SEQUENCE.
    pub struct SequenceOk {
        /// That of the request.
        pub session_id: SessionId,
        /// That of the request.
        pub sequence_id: u32,
        /// That of the request.
        pub slot_id: u32,
        /// Highest slot the server accepts now.
        pub highest_slot_id: u32,
        /// Highest slot the client should use.
        pub target_highest_slot_id: u32,
        /// Bits of [`seq4_status`].
        pub status_flags: u32,
    }

    /// FREE_STATEID (RFC 8881 section 18.38).
    pub struct FreeStateidArgs {
        /// The stateid.
        pub stateid: Stateid,
    }

    /// TEST_STATEID (RFC 8881 section 18.48).
    pub struct TestStateidArgs {
        /// Stateids to test.
        pub stateids: Vec<Stateid>[max MAX_ARRAY],
    }

    /// Result of TEST_STATEID.
    pub struct TestStateidOk {
        /// One status for each stateid.
        pub status_codes: Vec<Status>[max MAX_ARRAY],
    }

    /// GSS handles of callbacks.
    pub struct GssCbHandles {
        /// None 1, integrity 2, privacy 3.
        pub service: u32,
        /// Server's handle.
        pub handle_from_server: Bytes[max NO_LIMIT],
        /// Client's handle.
        pub handle_from_client: Bytes[max NO_LIMIT],
    }

    /// An object identifier (`sec_oid4`) or a GSS handle.
    pub struct Oid {
        /// Its bytes.
        pub bytes: Bytes[max NO_LIMIT],
    }
}

/// How callbacks may be authenticated (`callback_sec_parms4`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallbackSec {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS with this credential.
    Sys(AuthSys),
    /// RPCSEC_GSS.
    Gss(GssCbHandles),
}

impl Encode for CallbackSec {
    fn encode(&self, w: &mut Writer) {
        match self {
            Self::None => w.u32(0),
            Self::Sys(sys) => {
                w.u32(1);
                sys.encode(w);
            }
            Self::Gss(gss) => {
                w.u32(6);
                gss.encode(w);
            }
        }
    }
}

impl Decode for CallbackSec {
    fn decode(r: &mut Reader) -> Result<Self> {
        match r.u32()? {
            0 => Ok(Self::None),
            1 => AuthSys::decode(r).map(Self::Sys),
            6 => GssCbHandles::decode(r).map(Self::Gss),
            value => Err(Error::BadEnum { what: "callback_sec_parms4", value }),
        }
    }
}

macro_rules! state_protect {
    ($( $(#[$meta:meta])* $name:ident($ssv:ident); )*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $name {
            /// None.
            None,
            /// By the machine credential.
            MachCred(StateProtectOps),
            /// By a secret shared with the server.
            Ssv($ssv),
        }

        impl Encode for $name {
            fn encode(&self, w: &mut Writer) {
                match self {
                    Self::None => w.u32(SP4_NONE),
                    Self::MachCred(ops) => {
                        w.u32(SP4_MACH_CRED);
                        ops.encode(w);
                    }
                    Self::Ssv(ssv) => {
                        w.u32(SP4_SSV);
                        ssv.encode(w);
                    }
                }
            }
        }

        impl Decode for $name {
            fn decode(r: &mut Reader) -> Result<Self> {
                match r.u32()? {
                    SP4_NONE => Ok(Self::None),
                    SP4_MACH_CRED => StateProtectOps::decode(r).map(Self::MachCred),
                    SP4_SSV => $ssv::decode(r).map(Self::Ssv),
                    value => Err(Error::BadEnum { what: "state_protect_how4", value }),
                }
            }
        }
    )*};
}

state_protect! {
    /// State protection asked for (`state_protect4_a`).
    StateProtectArgs(SsvParams);
    /// State protection granted (`state_protect4_r`).
    StateProtectRes(SsvInfo);
}
