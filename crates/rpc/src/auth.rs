//! Credentials and verifiers (RFC 5531 section 8.2 and appendix A).

use bytes::Bytes;
use dhow_xdr::{Decode, Encode, Error, Reader, Result, Writer, xdr_enum};
use smallvec::SmallVec;

use crate::MAX_AUTH_BYTES;

/// Most supplementary groups an AUTH_SYS credential carries (RFC 5531 appendix A).
pub const MAX_GIDS: usize = 16;

/// Longest machine name in an AUTH_SYS credential in bytes (RFC 5531 appendix A).
pub const MAX_MACHINE_NAME: usize = 255;

xdr_enum! {
    /// Authentication flavor (RFC 5531 section 8.2, RFC 9289 section 4.1).
    pub enum Flavor {
        /// No authentication.
        NONE = 0x0,
        /// User and group numbers, unverified.
        SYS = 0x1,
        /// Short-hand of an AUTH_SYS credential; not offered here.
        SHORT = 0x2,
        /// Diffie-Hellman; not offered here.
        DH = 0x3,
        /// GSS-API (RFC 2203).
        RPCSEC_GSS = 0x6,
        /// Probe for RPC with TLS (RFC 9289).
        TLS = 0x7,
    }

    /// Why authentication failed (RFC 5531 section 9, `auth_stat`).
    pub enum AuthStat {
        /// Success.
        OK = 0,
        /// Bad credential (seal broken).
        BADCRED = 1,
        /// The client must begin a new session.
        REJECTEDCRED = 2,
        /// Bad verifier (seal broken).
        BADVERF = 3,
        /// Verifier expired or replayed.
        REJECTEDVERF = 4,
        /// Rejected for security reasons.
        TOOWEAK = 5,
        /// Bogus response verifier (client side).
        INVALIDRESP = 6,
        /// Reason unknown (client side).
        FAILED = 7,
        /// Kerberos generic error.
        KERB_GENERIC = 8,
        /// Time of credential expired.
        TIMEEXPIRE = 9,
        /// Problem with the ticket file.
        TKT_FILE = 10,
        /// Cannot decode the authenticator.
        DECODE = 11,
        /// Wrong net address in the ticket.
        NET_ADDR = 12,
        /// No credentials for the user (RFC 2203).
        RPCSEC_GSS_CREDPROBLEM = 13,
        /// Problem with the context (RFC 2203).
        RPCSEC_GSS_CTXPROBLEM = 14,
    }
}

/// A credential or verifier as it stands on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpaqueAuth {
    /// How `body` is to be read.
    pub flavor: Flavor,
    /// At most [`MAX_AUTH_BYTES`] bytes.
    pub body: Bytes,
}

impl OpaqueAuth {
    /// AUTH_NONE with an empty body.
    pub const NONE: Self = Self { flavor: Flavor::NONE, body: Bytes::new() };
}

impl Encode for OpaqueAuth {
    fn encode(&self, w: &mut Writer) {
        self.flavor.encode(w);
        w.opaque(&self.body);
    }
}

impl Decode for OpaqueAuth {
    fn decode(r: &mut Reader) -> Result<Self> {
        Ok(Self { flavor: Flavor::decode(r)?, body: r.opaque(MAX_AUTH_BYTES)? })
    }
}

/// The body of an AUTH_SYS credential (RFC 5531 appendix A).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AuthSys {
    /// Arbitrary number of the caller.
    pub stamp: u32,
    /// Name of the caller's machine, at most 255 bytes.
    pub machine: Bytes,
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary groups, at most [`MAX_GIDS`].
    pub gids: SmallVec<[u32; MAX_GIDS]>,
}

impl Encode for AuthSys {
    fn encode(&self, w: &mut Writer) {
        w.u32(self.stamp);
        w.opaque(&self.machine);
        w.u32(self.uid);
        w.u32(self.gid);
        w.array(&self.gids, |w, g| w.u32(*g));
    }
}

impl Decode for AuthSys {
    fn decode(r: &mut Reader) -> Result<Self> {
        let stamp = r.u32()?;
        let machine = r.opaque(MAX_MACHINE_NAME)?;
        let (uid, gid) = (r.u32()?, r.u32()?);
        let count = r.len_prefix("AUTH_SYS groups", MAX_GIDS)?;
        let gids = (0..count).map(|_| r.u32()).collect::<Result<_>>()?;
        Ok(Self { stamp, machine, uid, gid, gids })
    }
}

/// A credential that was read as far as this crate understands it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// Nobody in particular.
    None,
    /// Numbers, taken on trust.
    Sys(AuthSys),
    /// Any other flavor, left to its own layer (RPCSEC_GSS, the AUTH_TLS probe) or to be refused.
    Other(OpaqueAuth),
}

impl Credential {
    /// Reads the body of `auth`.
    ///
    /// # Errors
    ///
    /// The answer to give: BADCRED when the body does not parse, has more than 16 groups (case B37: never truncated,
    /// since a group left out could be the one that denies access), or has bytes left over.
    pub fn parse(auth: OpaqueAuth) -> Result<Self, AuthStat> {
        match auth.flavor {
            Flavor::NONE => Ok(Self::None),
            Flavor::SYS => match AuthSys::from_bytes(auth.body) {
                Ok(sys) => Ok(Self::Sys(sys)),
                Err(_) => Err(AuthStat::BADCRED),
            },
            _ => Ok(Self::Other(auth)),
        }
    }

    /// The flavor on the wire.
    pub fn flavor(&self) -> Flavor {
        match self {
            Self::None => Flavor::NONE,
            Self::Sys(_) => Flavor::SYS,
            Self::Other(auth) => auth.flavor,
        }
    }

    /// The wire form.
    ///
    /// # Errors
    ///
    /// [`Error::TooLong`] for an AUTH_SYS credential with more than 16 groups or a machine name over 255 bytes: the
    /// caller decides what to do about it, and nothing is dropped silently.
    pub fn to_opaque(&self) -> Result<OpaqueAuth> {
        match self {
            Self::None => Ok(OpaqueAuth::NONE),
            Self::Sys(sys) => {
                check("AUTH_SYS groups", sys.gids.len(), MAX_GIDS)?;
                check("AUTH_SYS machine name", sys.machine.len(), MAX_MACHINE_NAME)?;
                Ok(OpaqueAuth { flavor: Flavor::SYS, body: sys.to_bytes() })
            }
            Self::Other(auth) => Ok(auth.clone()),
        }
    }
}

fn check(what: &'static str, len: usize, limit: usize) -> Result<()> {
    if len > limit {
        return Err(Error::TooLong { what, len: u32::try_from(len).unwrap_or(u32::MAX), limit });
    }
    Ok(())
}
