//! Call and reply headers (RFC 5531 section 9).

use dhow_xdr::{Decode, Encode, Error, Reader, Result, Writer, xdr_enum, xdr_struct};

use crate::auth::{AuthStat, OpaqueAuth};
use crate::{Credential, RPC_VERSION};

const CALL: u32 = 0;
const REPLY: u32 = 1;
const MSG_ACCEPTED: u32 = 0;
const MSG_DENIED: u32 = 1;
const RPC_MISMATCH: u32 = 0;
const AUTH_ERROR: u32 = 1;

xdr_enum! {
    /// What became of an accepted call.
    pub enum AcceptStat {
        /// Executed; the results follow.
        SUCCESS = 0,
        /// The program is not here.
        PROG_UNAVAIL = 1,
        /// The program is here, in other versions.
        PROG_MISMATCH = 2,
        /// The program has no such procedure.
        PROC_UNAVAIL = 3,
        /// The arguments do not decode.
        GARBAGE_ARGS = 4,
        /// Memory or the like ran out.
        SYSTEM_ERR = 5,
    }
}

xdr_struct! {
    /// What is called, and by whom.
    pub struct CallBody {
        /// Program number.
        pub prog: u32,
        /// Program version.
        pub vers: u32,
        /// Procedure number.
        pub proc: u32,
        /// Credential, not yet looked into: see [`Credential::parse`].
        pub cred: OpaqueAuth,
        /// Verifier.
        pub verf: OpaqueAuth,
    }
}

/// The header of a call. The procedure's arguments follow it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallHeader {
    /// Transaction number; the reply repeats it.
    pub xid: u32,
    /// RPC version; anything but 2 is answered by RPC_MISMATCH and then [`CallHeader::body`] is `None`, since the rest
    /// cannot be understood.
    pub rpcvers: u32,
    /// The rest, for version 2.
    pub body: Option<CallBody>,
}

impl CallHeader {
    /// A version 2 call without verifier.
    ///
    /// # Errors
    ///
    /// As [`Credential::to_opaque`].
    pub fn new(xid: u32, prog: u32, vers: u32, proc: u32, cred: &Credential) -> Result<Self> {
        let cred = cred.to_opaque()?;
        let body = CallBody { prog, vers, proc, cred, verf: OpaqueAuth::NONE };
        Ok(Self { xid, rpcvers: RPC_VERSION, body: Some(body) })
    }
}

impl Encode for CallHeader {
    fn encode(&self, w: &mut Writer) {
        w.u32(self.xid);
        w.u32(CALL);
        w.u32(self.rpcvers);
        if let Some(body) = &self.body {
            body.encode(w);
        }
    }
}

impl Decode for CallHeader {
    fn decode(r: &mut Reader) -> Result<Self> {
        let xid = r.u32()?;
        expect(r, "RPC message type", CALL)?;
        let rpcvers = r.u32()?;
        let body = if rpcvers == RPC_VERSION { Some(CallBody::decode(r)?) } else { None };
        Ok(Self { xid, rpcvers, body })
    }
}

/// The header of a reply. When its body is [`ReplyBody::Accepted`] with SUCCESS, results follow it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplyHeader {
    /// That of the call.
    pub xid: u32,
    /// Outcome.
    pub body: ReplyBody,
}

/// Every state a reply can be in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplyBody {
    /// The server took the call; for SUCCESS the results follow.
    Accepted {
        /// The server's verifier.
        verf: OpaqueAuth,
        /// Any status but PROG_MISMATCH.
        stat: AcceptStat,
    },
    /// The program exists in versions `low` to `high` only.
    ProgMismatch {
        /// The server's verifier.
        verf: OpaqueAuth,
        /// Lowest version served.
        low: u32,
        /// Highest version served.
        high: u32,
    },
    /// The server does not speak the RPC version of the call.
    RpcMismatch {
        /// Lowest RPC version.
        low: u32,
        /// Highest RPC version.
        high: u32,
    },
    /// The caller could not be authenticated.
    AuthError(AuthStat),
}

impl ReplyHeader {
    /// The header before the results of a successful call, with an AUTH_NONE verifier.
    pub fn success(xid: u32) -> Self {
        accepted_reply(xid, AcceptStat::SUCCESS)
    }

    /// Whether results follow.
    pub fn is_success(&self) -> bool {
        matches!(self.body, ReplyBody::Accepted { stat: AcceptStat::SUCCESS, .. })
    }
}

/// A reply of an accepted call with an AUTH_NONE verifier.
pub fn accepted_reply(xid: u32, stat: AcceptStat) -> ReplyHeader {
    ReplyHeader { xid, body: ReplyBody::Accepted { verf: OpaqueAuth::NONE, stat } }
}

/// A reply that denies a call for reasons of authentication.
pub fn denied_reply(xid: u32, why: AuthStat) -> ReplyHeader {
    ReplyHeader { xid, body: ReplyBody::AuthError(why) }
}

impl Encode for ReplyHeader {
    fn encode(&self, w: &mut Writer) {
        w.u32(self.xid);
        w.u32(REPLY);
        match &self.body {
            ReplyBody::Accepted { verf, stat } => {
                w.u32(MSG_ACCEPTED);
                verf.encode(w);
                stat.encode(w);
            }
            ReplyBody::ProgMismatch { verf, low, high } => {
                w.u32(MSG_ACCEPTED);
                verf.encode(w);
                AcceptStat::PROG_MISMATCH.encode(w);
                w.u32(*low);
                w.u32(*high);
            }
            ReplyBody::RpcMismatch { low, high } => {
                w.u32(MSG_DENIED);
                w.u32(RPC_MISMATCH);
                w.u32(*low);
                w.u32(*high);
            }
            ReplyBody::AuthError(why) => {
                w.u32(MSG_DENIED);
                w.u32(AUTH_ERROR);
                why.encode(w);
            }
        }
    }
}

impl Decode for ReplyHeader {
    fn decode(r: &mut Reader) -> Result<Self> {
        let xid = r.u32()?;
        expect(r, "RPC message type", REPLY)?;
        let body = match r.u32()? {
            MSG_ACCEPTED => {
                let verf = OpaqueAuth::decode(r)?;
                match AcceptStat::decode(r)? {
                    AcceptStat::PROG_MISMATCH => ReplyBody::ProgMismatch { verf, low: r.u32()?, high: r.u32()? },
                    stat => ReplyBody::Accepted { verf, stat },
                }
            }
            MSG_DENIED => match r.u32()? {
                RPC_MISMATCH => ReplyBody::RpcMismatch { low: r.u32()?, high: r.u32()? },
                AUTH_ERROR => ReplyBody::AuthError(AuthStat::decode(r)?),
                value => return Err(Error::BadEnum { what: "reject_stat", value }),
            },
            value => return Err(Error::BadEnum { what: "reply_stat", value }),
        };
        Ok(Self { xid, body })
    }
}

fn expect(r: &mut Reader, what: &'static str, wanted: u32) -> Result<()> {
    match r.u32()? {
        value if value == wanted => Ok(()),
        value => Err(Error::BadEnum { what, value }),
    }
}

/// Whether a message is a call, by its first eight bytes: transaction number and type. `None` when neither.
pub fn is_call(r: &Reader) -> Option<bool> {
    let mut r = r.clone();
    r.u32().ok()?;
    match r.u32().ok()? {
        CALL => Some(true),
        REPLY => Some(false),
        _ => None,
    }
}
