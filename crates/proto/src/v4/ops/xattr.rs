//! Extended attributes (RFC 8276 section 8.4).

use bytes::Bytes;
use dhow_xdr::{xdr_enum, xdr_struct};

use crate::v4::{ByteStrings, ChangeInfo, NO_LIMIT};

xdr_enum! {
    /// Whether SETXATTR may create or replace.
    pub enum SetxattrOption {
        /// Either.
        EITHER = 0,
        /// Must not exist.
        CREATE = 1,
        /// Must exist.
        REPLACE = 2,
    }
}

xdr_struct! {
    /// GETXATTR (RFC 8276 section 8.4.1).
    pub struct GetxattrArgs {
        /// Name without the `user.` prefix.
        pub name: Bytes[max NO_LIMIT],
    }

    /// Result of GETXATTR.
    pub struct GetxattrOk {
        /// The value.
        pub value: Bytes[max NO_LIMIT],
    }

    /// SETXATTR (RFC 8276 section 8.4.2).
    pub struct SetxattrArgs {
        /// May create or replace.
        pub option: SetxattrOption,
        /// Name without the `user.` prefix.
        pub name: Bytes[max NO_LIMIT],
        /// The value.
        pub value: Bytes[max NO_LIMIT],
    }

    /// Result of SETXATTR and REMOVEXATTR.
    pub struct XattrChangeOk {
        /// The file.
        pub cinfo: ChangeInfo,
    }

    /// LISTXATTRS (RFC 8276 section 8.4.3).
    pub struct ListxattrsArgs {
        /// 0 at first, then that of the last result.
        pub cookie: u64,
        /// Most bytes of the result.
        pub maxcount: u32,
    }

    /// Result of LISTXATTRS.
    pub struct ListxattrsOk {
        /// Where to go on.
        pub cookie: u64,
        /// Names without the `user.` prefix.
        pub names: ByteStrings,
        /// There are no more.
        pub eof: bool,
    }

    /// REMOVEXATTR (RFC 8276 section 8.4.4).
    pub struct RemovexattrArgs {
        /// Name without the `user.` prefix.
        pub name: Bytes[max NO_LIMIT],
    }
}
