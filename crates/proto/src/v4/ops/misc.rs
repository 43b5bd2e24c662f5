//! Filehandles, attributes, access checks, security information, delegations to return.

use bytes::Bytes;
use dhow_rpc::Flavor;
use dhow_xdr::{Decode, Encode, Reader, Result, Writer, xdr_enum, xdr_struct};

use crate::v4::{Attrs, Bitmap, ChangeInfo, ClientId, Fattr, FileHandle, MAX_ARRAY, NO_LIMIT, OpRes, Stateid, Status};

/// Bits of ACCESS (RFC 8881 section 18.1, RFC 8276 section 8.5).
pub mod access {
    /// Read data, or list a directory.
    pub const READ: u32 = 0x001;
    /// Look up a name in a directory.
    pub const LOOKUP: u32 = 0x002;
    /// Change data or entries that exist.
    pub const MODIFY: u32 = 0x004;
    /// Append data or add entries.
    pub const EXTEND: u32 = 0x008;
    /// Delete an entry.
    pub const DELETE: u32 = 0x010;
    /// Execute.
    pub const EXECUTE: u32 = 0x020;
    /// Read extended attributes.
    pub const XAREAD: u32 = 0x040;
    /// Write extended attributes.
    pub const XAWRITE: u32 = 0x080;
    /// List extended attributes.
    pub const XALIST: u32 = 0x100;
}

xdr_struct! {
    /// ACCESS (RFC 8881 section 18.1).
    pub struct AccessArgs {
        /// Bits of [`access`] to check.
        pub access: u32,
    }

    /// Result of ACCESS.
    pub struct AccessOk {
        /// Bits the server could check.
        pub supported: u32,
        /// Bits that are granted.
        pub access: u32,
    }

    /// PUTFH (RFC 8881 section 18.19).
    pub struct PutFhArgs {
        /// The new current filehandle.
        pub object: FileHandle,
    }

    /// Result of GETFH (RFC 8881 section 18.8).
    pub struct GetFhOk {
        /// The current filehandle.
        pub object: FileHandle,
    }

    /// GETATTR (RFC 8881 section 18.7).
    pub struct GetattrArgs {
        /// Attributes wanted.
        pub attr_request: Bitmap,
    }

    /// Result of GETATTR.
    pub struct GetattrOk {
        /// Those wanted that are supported.
        pub attrs: Box<Attrs>,
    }

    /// SETATTR (RFC 8881 section 18.30).
    pub struct SetattrArgs {
        /// Needed to change the size.
        pub stateid: Stateid,
        /// New values.
        pub attrs: Fattr,
    }

    /// Result of SETATTR, in success and failure.
    pub struct SetattrRes {
        /// Outcome.
        pub status: Status,
        /// Attributes that were set, even when a later one failed.
        pub attrsset: Bitmap,
    }

    /// VERIFY and NVERIFY (RFC 8881 section 18.31, 18.15).
    pub struct VerifyArgs {
        /// Values to compare with.
        pub attrs: Fattr,
    }

    /// DELEGPURGE (RFC 8881 section 18.5).
    pub struct DelegpurgeArgs {
        /// Ignored in NFSv4.1.
        pub client: ClientId,
    }

    /// DELEGRETURN (RFC 8881 section 18.6).
    pub struct DelegreturnArgs {
        /// The delegation.
        pub stateid: Stateid,
    }

    /// SECINFO (RFC 8881 section 18.29).
    pub struct SecinfoArgs {
        /// Name in the current directory.
        pub name: Bytes[max NO_LIMIT],
    }

    /// SECINFO_NO_NAME (RFC 8881 section 18.45).
    pub struct SecinfoNoNameArgs {
        /// Of what.
        pub style: SecinfoStyle,
    }

    /// Result of SECINFO and SECINFO_NO_NAME; the current filehandle is gone afterwards.
    pub struct SecinfoOk {
        /// Flavors in the order of the server's preference.
        pub flavors: Vec<Secinfo>[max MAX_ARRAY],
    }

    /// OPENATTR (RFC 8881 section 18.17).
    pub struct OpenattrArgs {
        /// Create the directory when there is none.
        pub create_dir: bool,
    }

    /// LINK (RFC 8881 section 18.9): saved is the file, current the directory.
    pub struct LinkArgs {
        /// The new name.
        pub new_name: Bytes[max NO_LIMIT],
    }

    /// Result of LINK.
    pub struct LinkOk {
        /// The directory.
        pub cinfo: ChangeInfo,
    }

    /// Result of READLINK (RFC 8881 section 18.24).
    pub struct ReadlinkOk {
        /// The link's text.
        pub link: Bytes[max NO_LIMIT],
    }

    /// A GSS security triple (`rpcsec_gss_info`).
    pub struct GssInfo {
        /// Mechanism.
        pub oid: Bytes[max NO_LIMIT],
        /// Quality of protection.
        pub qop: u32,
        /// None 1, integrity 2, privacy 3.
        pub service: u32,
    }
}

xdr_enum! {
    /// Whose security SECINFO_NO_NAME asks for.
    pub enum SecinfoStyle {
        /// The current object's.
        CURRENT_FH = 0,
        /// Its parent's.
        PARENT = 1,
    }
}

/// A security flavor that may be used (`secinfo4`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Secinfo {
    /// A flavor without parameters.
    Flavor(Flavor),
    /// RPCSEC_GSS with a mechanism.
    Gss(GssInfo),
}

impl Encode for Secinfo {
    fn encode(&self, w: &mut Writer) {
        match self {
            Self::Flavor(flavor) => flavor.encode(w),
            Self::Gss(info) => {
                Flavor::RPCSEC_GSS.encode(w);
                info.encode(w);
            }
        }
    }
}

impl Decode for Secinfo {
    fn decode(r: &mut Reader) -> Result<Self> {
        match Flavor::decode(r)? {
            Flavor::RPCSEC_GSS => GssInfo::decode(r).map(Self::Gss),
            flavor => Ok(Self::Flavor(flavor)),
        }
    }
}

impl OpRes for SetattrRes {
    fn status(&self) -> Status {
        self.status
    }

    fn error(status: Status) -> Self {
        Self { status, attrsset: Bitmap::EMPTY }
    }

    fn encode_res(&self, w: &mut Writer) {
        self.encode(w);
    }

    fn decode_res(r: &mut Reader) -> Result<Self> {
        Self::decode(r)
    }
}
