//! Basic types (RFC 8881 section 3, RFC 7863).

use std::fmt;

use bytes::Bytes;
use dhow_xdr::{Decode, DecodeMax, Encode, Error, Reader, Result, Writer, xdr_enum, xdr_struct};

use super::{FH_SIZE, MAX_ARRAY, NO_LIMIT, OPAQUE_LIMIT};

macro_rules! fixed_opaque {
    ($( $(#[$meta:meta])* $name:ident($len:expr); )*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub [u8; $len]);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($name), "("))?;
                hex(f, &self.0)?;
                f.write_str(")")
            }
        }

        impl Encode for $name {
            fn encode(&self, w: &mut Writer) {
                w.fixed(&self.0);
            }
        }

        impl Decode for $name {
            fn decode(r: &mut Reader) -> Result<Self> {
                r.fixed_array().map(Self)
            }
        }
    )*};
}

fixed_opaque! {
    /// Names a session (`sessionid4`).
    SessionId(16);
    /// Opaque value compared for equality only (`verifier4`).
    Verifier(8);
}

fn hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|b| write!(f, "{b:02x}"))
}

/// Names a client instance (`clientid4`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ClientId(pub u64);

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientId({:#018x})", self.0)
    }
}

impl Encode for ClientId {
    fn encode(&self, w: &mut Writer) {
        w.u64(self.0);
    }
}

impl Decode for ClientId {
    fn decode(r: &mut Reader) -> Result<Self> {
        r.u64().map(Self)
    }
}

/// Names open, lock, delegation or copy state (`stateid4`, RFC 8881 section 8.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stateid {
    /// Counts changes of the state; 0 means "the most recent".
    pub seqid: u32,
    /// Tells one state from another.
    pub other: [u8; 12],
}

/// The special stateids (RFC 8881 section 8.2.3).
impl Stateid {
    /// All zeros: no open at all. READ and WRITE are checked against share reservations.
    pub const ANONYMOUS: Self = Self { seqid: 0, other: [0; 12] };
    /// All ones: as [`Stateid::ANONYMOUS`], and a READ may bypass share reservations.
    pub const READ_BYPASS: Self = Self { seqid: u32::MAX, other: [0xff; 12] };
    /// Stands for the current stateid of the COMPOUND.
    pub const CURRENT: Self = Self { seqid: 1, other: [0; 12] };
    /// What the current stateid is when there is none; never valid as an argument.
    pub const INVALID: Self = Self { seqid: u32::MAX, other: [0; 12] };

    /// Whether the value is reserved: "other" is all zeros or all ones.
    pub fn is_special(&self) -> bool {
        self.other == [0; 12] || self.other == [0xff; 12]
    }
}

impl fmt::Debug for Stateid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stateid({}:", self.seqid)?;
        hex(f, &self.other)?;
        f.write_str(")")
    }
}

impl Encode for Stateid {
    fn encode(&self, w: &mut Writer) {
        w.u32(self.seqid);
        w.fixed(&self.other);
    }
}

impl Decode for Stateid {
    fn decode(r: &mut Reader) -> Result<Self> {
        Ok(Self { seqid: r.u32()?, other: r.fixed_array()? })
    }
}

/// Names a file (`nfs_fh4`): at most [`FH_SIZE`] bytes. Whoever makes one keeps to that.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct FileHandle(pub Bytes);

impl fmt::Debug for FileHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileHandle(")?;
        hex(f, &self.0)?;
        f.write_str(")")
    }
}

impl Encode for FileHandle {
    fn encode(&self, w: &mut Writer) {
        w.opaque(&self.0);
    }
}

impl Decode for FileHandle {
    fn decode(r: &mut Reader) -> Result<Self> {
        r.opaque(FH_SIZE).map(Self)
    }
}

xdr_enum! {
    /// Type of a file (`nfs_ftype4`).
    pub enum FileType {
        /// Regular file.
        REG = 1,
        /// Directory.
        DIR = 2,
        /// Block device.
        BLK = 3,
        /// Character device.
        CHR = 4,
        /// Symbolic link.
        LNK = 5,
        /// Socket.
        SOCK = 6,
        /// FIFO.
        FIFO = 7,
        /// Directory of named attributes.
        ATTRDIR = 8,
        /// Named attribute.
        NAMEDATTR = 9,
    }

    /// How safe written data must be, or is (`stable_how4`).
    pub enum StableHow {
        /// In memory.
        UNSTABLE = 0,
        /// The data and what is needed to find it are on stable storage.
        DATA_SYNC = 1,
        /// The data and all metadata are on stable storage.
        FILE_SYNC = 2,
    }

    /// Type of a byte-range lock (`nfs_lock_type4`).
    pub enum LockType {
        /// Shared.
        READ = 1,
        /// Exclusive.
        WRITE = 2,
        /// Shared, and the client would wait.
        READW = 3,
        /// Exclusive, and the client would wait.
        WRITEW = 4,
    }

    /// Type of a delegation (`open_delegation_type4`).
    pub enum DelegationType {
        /// No delegation, without a reason.
        NONE = 0,
        /// Nobody else writes.
        READ = 1,
        /// Nobody else opens.
        WRITE = 2,
        /// No delegation, with a reason.
        NONE_EXT = 3,
    }

    /// How the change attribute behaves (`change_attr_type4`, RFC 7862 section 12.2.3).
    pub enum ChangeAttrType {
        /// Grows with each change.
        MONOTONIC_INCR = 0,
        /// Grows by one with each change.
        VERSION_COUNTER = 1,
        /// As VERSION_COUNTER, but not under pNFS.
        VERSION_COUNTER_NOPNFS = 2,
        /// Derived from time_metadata.
        TIME_METADATA = 3,
        /// Only equality means anything.
        UNDEFINED = 4,
    }
}

impl LockType {
    /// Whether the lock is exclusive.
    pub fn is_write(self) -> bool {
        self == Self::WRITE || self == Self::WRITEW
    }

    /// Whether the client means to wait for it.
    pub fn is_blocking(self) -> bool {
        self == Self::READW || self == Self::WRITEW
    }
}

/// A point in time, or a span (`nfstime4`): since 1970-01-01 00:00 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NfsTime {
    /// Seconds.
    pub secs: i64,
    /// Nanoseconds, added to the seconds; 999,999,999 at most in a valid time.
    pub nanos: u32,
}

impl Encode for NfsTime {
    fn encode(&self, w: &mut Writer) {
        w.i64(self.secs);
        w.u32(self.nanos);
    }
}

impl Decode for NfsTime {
    fn decode(r: &mut Reader) -> Result<Self> {
        Ok(Self { secs: r.i64()?, nanos: r.u32()? })
    }
}

/// What to set a time to (`settime4`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SetTime {
    /// The server's present time.
    Server,
    /// This time.
    Client(NfsTime),
}

impl Encode for SetTime {
    fn encode(&self, w: &mut Writer) {
        match self {
            Self::Server => w.u32(0),
            Self::Client(time) => {
                w.u32(1);
                time.encode(w);
            }
        }
    }
}

impl Decode for SetTime {
    fn decode(r: &mut Reader) -> Result<Self> {
        match r.u32()? {
            1 => NfsTime::decode(r).map(Self::Client),
            0 => Ok(Self::Server),
            value => Err(Error::BadEnum { what: "time_how4", value }),
        }
    }
}

macro_rules! small_struct {
    ($( $(#[$meta:meta])* $name:ident { $( $(#[$fmeta:meta])* $field:ident : $ty:ident ),* $(,)? } )*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name {
            $( $(#[$fmeta])* pub $field: $ty, )*
        }

        impl Encode for $name {
            fn encode(&self, w: &mut Writer) {
                $( self.$field.encode(w); )*
            }
        }

        impl Decode for $name {
            fn decode(r: &mut Reader) -> Result<Self> {
                Ok(Self { $( $field: $ty::decode(r)?, )* })
            }
        }
    )*};
}

small_struct! {
    /// Device numbers (`specdata4`).
    SpecData {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    }

    /// Names a filesystem on one server (`fsid4`).
    FsId {
        /// First half.
        major: u64,
        /// Second half.
        minor: u64,
    }

    /// Change attribute of a directory around an operation (`change_info4`).
    ChangeInfo {
        /// Whether nothing else could change the directory between the two readings.
        atomic: bool,
        /// Before the operation.
        before: u64,
        /// After it.
        after: u64,
    }

    /// Some bits of a mode (`mode_masked4`).
    ModeMasked {
        /// Values of the bits.
        value: u32,
        /// Which bits to change.
        mask: u32,
    }

    /// A mode to be restricted by a umask (`mode_umask4`, RFC 8275 section 5).
    ModeUmask {
        /// Mode before the umask.
        mode: u32,
        /// The umask, for directories without a default ACL.
        umask: u32,
    }
}

xdr_struct! {
    /// An open-owner or lock-owner (`state_owner4`).
    #[derive(Hash)]
    pub struct StateOwner {
        /// Ignored in NFSv4.1: the session tells the client.
        pub client: ClientId,
        /// Chosen by the client.
        pub owner: Bytes[max OPAQUE_LIMIT],
    }

    /// An access control entry (`nfsace4`, RFC 8881 section 6.2.1).
    #[derive(Hash)]
    pub struct Ace {
        /// Allow, deny, audit or alarm.
        pub ace_type: u32,
        /// Inheritance and kind of `who`.
        pub flags: u32,
        /// The permissions concerned.
        pub mask: u32,
        /// A user, a group or a special name such as `OWNER@`.
        pub who: Bytes[max NO_LIMIT],
    }

    /// A network address (`netaddr4`, RFC 5665).
    #[derive(Hash)]
    pub struct NetAddr {
        /// Network id: `tcp`, `tcp6`.
        pub netid: Bytes[max OPAQUE_LIMIT],
        /// Universal address.
        pub addr: Bytes[max OPAQUE_LIMIT],
    }

    /// Who implemented the peer (`nfs_impl_id4`).
    pub struct ImplId {
        /// DNS domain of the implementer.
        pub domain: Bytes[max NO_LIMIT],
        /// Product.
        pub name: Bytes[max NO_LIMIT],
        /// Date of the build.
        pub date: NfsTime,
    }

    /// Where a filesystem also is (`fs_location4`).
    pub struct FsLocation {
        /// Host names or addresses.
        pub servers: ByteStrings,
        /// Path there.
        pub root: ByteStrings,
    }

    /// `fs_locations4` (RFC 8881 section 11.16).
    pub struct FsLocations {
        /// Path of the filesystem in this server's namespace.
        pub root: ByteStrings,
        /// Where else it is.
        pub locations: Vec<FsLocation>[max MAX_ARRAY],
    }

    /// What the server supports in OPEN (`open_arguments4`, RFC 9754 section 4).
    pub struct OpenArguments {
        /// Access bits.
        pub share_access: super::Bitmap,
        /// Deny bits.
        pub share_deny: super::Bitmap,
        /// Bits that ask for delegations.
        pub share_access_want: super::Bitmap,
        /// Claim types.
        pub open_claim: super::Bitmap,
        /// Create modes.
        pub create_mode: super::Bitmap,
    }
}

/// An array of strings: a path (`pathname4`) or host names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ByteStrings(pub Vec<Bytes>);

impl Encode for ByteStrings {
    fn encode(&self, w: &mut Writer) {
        w.array(&self.0, |w, s| w.opaque(s));
    }
}

impl Decode for ByteStrings {
    fn decode(r: &mut Reader) -> Result<Self> {
        Self::decode_max(r, MAX_ARRAY)
    }
}

impl DecodeMax for ByteStrings {
    fn decode_max(r: &mut Reader, max: usize) -> Result<Self> {
        r.array(max, |r| r.opaque(NO_LIMIT)).map(Self)
    }
}

/// Where a server is (`netloc4`, RFC 7862 section 4.7).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum NetLoc {
    /// A host name.
    Name(Bytes),
    /// A URL.
    Url(Bytes),
    /// An address and port.
    Addr(NetAddr),
}

impl Encode for NetLoc {
    fn encode(&self, w: &mut Writer) {
        match self {
            Self::Name(name) => {
                w.u32(1);
                w.opaque(name);
            }
            Self::Url(url) => {
                w.u32(2);
                w.opaque(url);
            }
            Self::Addr(addr) => {
                w.u32(3);
                addr.encode(w);
            }
        }
    }
}

impl Decode for NetLoc {
    fn decode(r: &mut Reader) -> Result<Self> {
        match r.u32()? {
            1 => r.opaque(NO_LIMIT).map(Self::Name),
            2 => r.opaque(NO_LIMIT).map(Self::Url),
            3 => NetAddr::decode(r).map(Self::Addr),
            value => Err(Error::BadEnum { what: "netloc_type4", value }),
        }
    }
}
