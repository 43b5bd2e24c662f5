//! File attributes: numbers, values, and their encoding (RFC 8881 section 5, RFC 7862 section 12).

use bytes::Bytes;
use dhow_xdr::{Decode, Encode, Error, Reader, Result, Writer};

use super::types::*;
use super::{Bitmap, MAX_ARRAY, NO_LIMIT, Status};

/// Name of the error when a mask has an attribute whose length we do not know ([`Error::BadEnum`]).
pub const UNKNOWN: &str = "attribute";

macro_rules! attributes {
    ($( $(#[$meta:meta])* $num:literal $konst:ident $field:ident : $ty:ty $([max $max:expr])? ; )*) => {
        $(
            #[doc = concat!("Number of the attribute `", stringify!($field), "`.")]
            pub const $konst: u32 = $num;
        )*

        /// Every attribute whose value this crate can read and write.
        pub const KNOWN: Bitmap = Bitmap::of(&[$( $num ),*]);

        /// Name of an attribute, for messages.
        pub fn name(number: u32) -> Option<&'static str> {
            match number {
                $( $num => Some(stringify!($field)), )*
                _ => None,
            }
        }

        /// Values of attributes; those not given are `None`.
        #[derive(Debug, Clone, PartialEq, Eq, Default)]
        pub struct Attrs {
            $( $(#[$meta])* pub $field: Option<$ty>, )*
        }

        impl Attrs {
            /// The attributes that have a value.
            pub fn mask(&self) -> Bitmap {
                let mut mask = Bitmap::EMPTY;
                $( if self.$field.is_some() { mask.set($num); } )*
                mask
            }

            fn encode_one(&self, number: u32, w: &mut Writer) {
                match number {
                    $( $num => if let Some(v) = &self.$field { v.encode(w) }, )*
                    _ => {}
                }
            }

            fn decode_one(&mut self, number: u32, r: &mut Reader) -> Result<()> {
                match number {
                    $( $num => self.$field = Some(dhow_xdr::xdr_field!(r, $ty $(, $max)?)), )*
                    value => return Err(Error::BadEnum { what: UNKNOWN, value }),
                }
                Ok(())
            }
        }
    };
}

attributes! {
    /// Attributes the filesystem supports.
    0 SUPPORTED_ATTRS supported_attrs: Bitmap;
    /// Type of the file.
    1 TYPE file_type: FileType;
    /// How filehandles expire: `FH4_*` bits, 0 for persistent.
    2 FH_EXPIRE_TYPE fh_expire_type: u32;
    /// Changes whenever data or metadata change.
    3 CHANGE change: u64;
    /// Size in bytes.
    4 SIZE size: u64;
    /// Hard links are supported.
    5 LINK_SUPPORT link_support: bool;
    /// Symbolic links are supported.
    6 SYMLINK_SUPPORT symlink_support: bool;
    /// The file has named attributes.
    7 NAMED_ATTR named_attr: bool;
    /// Filesystem of the file.
    8 FSID fsid: FsId;
    /// Two different handles name two different files.
    9 UNIQUE_HANDLES unique_handles: bool;
    /// Lease in seconds.
    10 LEASE_TIME lease_time: u32;
    /// Why the attributes of a READDIR entry could not be had.
    11 RDATTR_ERROR rdattr_error: Status;
    /// Access control list.
    12 ACL acl: Vec<Ace>[max MAX_ARRAY];
    /// Types of access control entries supported: `ACL4_SUPPORT_*` bits.
    13 ACLSUPPORT aclsupport: u32;
    /// Changed since the last backup.
    14 ARCHIVE archive: bool;
    /// Times can be set.
    15 CANSETTIME cansettime: bool;
    /// Names differing in case alone are the same.
    16 CASE_INSENSITIVE case_insensitive: bool;
    /// The case of names is kept.
    17 CASE_PRESERVING case_preserving: bool;
    /// Only the privileged change the owner.
    18 CHOWN_RESTRICTED chown_restricted: bool;
    /// The file's handle.
    19 FILEHANDLE filehandle: FileHandle;
    /// Number unique in the filesystem.
    20 FILEID fileid: u64;
    /// File slots this user may use.
    21 FILES_AVAIL files_avail: u64;
    /// Free file slots.
    22 FILES_FREE files_free: u64;
    /// All file slots.
    23 FILES_TOTAL files_total: u64;
    /// Where else the filesystem is.
    24 FS_LOCATIONS fs_locations: FsLocations;
    /// Hidden in the sense of Windows.
    25 HIDDEN hidden: bool;
    /// All files of the filesystem support the same attributes.
    26 HOMOGENEOUS homogeneous: bool;
    /// Largest file size in bytes.
    27 MAXFILESIZE maxfilesize: u64;
    /// Most links to a file.
    28 MAXLINK maxlink: u32;
    /// Longest name in bytes.
    29 MAXNAME maxname: u32;
    /// Largest READ in bytes.
    30 MAXREAD maxread: u64;
    /// Largest WRITE in bytes.
    31 MAXWRITE maxwrite: u64;
    /// MIME type.
    32 MIMETYPE mimetype: Bytes[max NO_LIMIT];
    /// Permission bits, set-id and sticky bits.
    33 MODE mode: u32;
    /// Names that are too long are refused rather than cut.
    34 NO_TRUNC no_trunc: bool;
    /// Number of hard links.
    35 NUMLINKS numlinks: u32;
    /// Owner, `user@domain` or a number.
    36 OWNER owner: Bytes[max NO_LIMIT];
    /// Group, `group@domain` or a number.
    37 OWNER_GROUP owner_group: Bytes[max NO_LIMIT];
    /// Bytes until the hard quota.
    38 QUOTA_AVAIL_HARD quota_avail_hard: u64;
    /// Bytes until the soft quota.
    39 QUOTA_AVAIL_SOFT quota_avail_soft: u64;
    /// Bytes counted against the quota.
    40 QUOTA_USED quota_used: u64;
    /// Device numbers.
    41 RAWDEV rawdev: SpecData;
    /// Bytes this user may use.
    42 SPACE_AVAIL space_avail: u64;
    /// Free bytes.
    43 SPACE_FREE space_free: u64;
    /// All bytes.
    44 SPACE_TOTAL space_total: u64;
    /// Bytes of storage the file uses.
    45 SPACE_USED space_used: u64;
    /// System file in the sense of Windows.
    46 SYSTEM system: bool;
    /// Last access.
    47 TIME_ACCESS time_access: NfsTime;
    /// Last access, to be set.
    48 TIME_ACCESS_SET time_access_set: SetTime;
    /// Last backup.
    49 TIME_BACKUP time_backup: NfsTime;
    /// Creation.
    50 TIME_CREATE time_create: NfsTime;
    /// Smallest step of times.
    51 TIME_DELTA time_delta: NfsTime;
    /// Last change of metadata.
    52 TIME_METADATA time_metadata: NfsTime;
    /// Last change of data.
    53 TIME_MODIFY time_modify: NfsTime;
    /// Last change of data, to be set.
    54 TIME_MODIFY_SET time_modify_set: SetTime;
    /// `fileid` of the directory a filesystem is mounted on.
    55 MOUNTED_ON_FILEID mounted_on_fileid: u64;
    /// Delay of notifications about a directory.
    56 DIR_NOTIF_DELAY dir_notif_delay: NfsTime;
    /// Delay of notifications about entries.
    57 DIRENT_NOTIF_DELAY dirent_notif_delay: NfsTime;
    /// Layout types of the filesystem; empty without pNFS.
    62 FS_LAYOUT_TYPES fs_layout_types: Vec<u32>[max MAX_ARRAY];
    /// Layout types of the file; empty without pNFS.
    64 LAYOUT_TYPES layout_types: Vec<u32>[max MAX_ARRAY];
    /// Preferred block size of layouts in bytes.
    65 LAYOUT_BLKSIZE layout_blksize: u32;
    /// Preferred alignment of layouts in bytes.
    66 LAYOUT_ALIGNMENT layout_alignment: u32;
    /// Some bits of the mode, to be set.
    74 MODE_SET_MASKED mode_set_masked: ModeMasked;
    /// Attributes that EXCLUSIVE4_1 creation can set.
    75 SUPPATTR_EXCLCREAT suppattr_exclcreat: Bitmap;
    /// What the filesystem does about character sets: `FSCHARSET_CAP4_*` bits.
    76 FS_CHARSET_CAP fs_charset_cap: u32;
    /// Alignment that CLONE needs, in bytes.
    77 CLONE_BLKSIZE clone_blksize: u32;
    /// Bytes that removing the file would free.
    78 SPACE_FREED space_freed: u64;
    /// How `change` behaves.
    79 CHANGE_ATTR_TYPE change_attr_type: ChangeAttrType;
    /// Mode and umask of a new file, to be set (RFC 8275).
    81 MODE_UMASK mode_umask: ModeUmask;
    /// Extended attributes are supported (RFC 8276).
    82 XATTR_SUPPORT xattr_support: bool;
    /// The file's data is elsewhere, slow to get (RFC 9754).
    83 OFFLINE offline: bool;
    /// Access time kept by the holder of a delegation, to be set (RFC 9754).
    84 TIME_DELEG_ACCESS time_deleg_access: NfsTime;
    /// Modify time kept by the holder of a delegation, to be set (RFC 9754).
    85 TIME_DELEG_MODIFY time_deleg_modify: NfsTime;
    /// What OPEN understands (RFC 9754).
    86 OPEN_ARGUMENTS open_arguments: OpenArguments;
}

// Numbers of attributes that exist but have no value here, because nobody serves them.

/// Number of the attribute `dacl`.
pub const DACL: u32 = 58;
/// Number of the attribute `sacl`.
pub const SACL: u32 = 59;
/// Number of the attribute `change_policy`.
pub const CHANGE_POLICY: u32 = 60;
/// Number of the attribute `fs_status`.
pub const FS_STATUS: u32 = 61;
/// Number of the attribute `layout_hint`.
pub const LAYOUT_HINT: u32 = 63;
/// Number of the attribute `fs_locations_info`.
pub const FS_LOCATIONS_INFO: u32 = 67;
/// Number of the attribute `mdsthreshold`.
pub const MDSTHRESHOLD: u32 = 68;
/// Number of the attribute `retention_get`.
pub const RETENTION_GET: u32 = 69;
/// Number of the attribute `retention_set`.
pub const RETENTION_SET: u32 = 70;
/// Number of the attribute `retentevt_get`.
pub const RETENTEVT_GET: u32 = 71;
/// Number of the attribute `retentevt_set`.
pub const RETENTEVT_SET: u32 = 72;
/// Number of the attribute `retention_hold`.
pub const RETENTION_HOLD: u32 = 73;
/// Number of the attribute `sec_label`.
pub const SEC_LABEL: u32 = 80;

/// Attributes that can only be set; GETATTR of one is INVAL (RFC 8881 section 5.5).
pub const WRITE_ONLY: Bitmap = Bitmap::of(&[
    TIME_ACCESS_SET,
    TIME_MODIFY_SET,
    RETENTION_SET,
    RETENTEVT_SET,
    MODE_SET_MASKED,
    MODE_UMASK,
    LAYOUT_HINT,
]);

/// Attributes that SETATTR can change: read-write and write-only ones (RFC 8881 table 4 and 5, RFC 8275).
pub const SETTABLE: Bitmap = Bitmap::of(&[
    SIZE,
    ACL,
    ARCHIVE,
    HIDDEN,
    MIMETYPE,
    MODE,
    OWNER,
    OWNER_GROUP,
    SYSTEM,
    TIME_ACCESS_SET,
    TIME_BACKUP,
    TIME_CREATE,
    TIME_MODIFY_SET,
    DACL,
    SACL,
    LAYOUT_HINT,
    RETENTION_SET,
    RETENTEVT_SET,
    RETENTION_HOLD,
    MODE_SET_MASKED,
    SEC_LABEL,
    MODE_UMASK,
    TIME_DELEG_ACCESS,
    TIME_DELEG_MODIFY,
]);

impl Attrs {
    /// Writes those attributes that are in `wanted` and have a value (`fattr4`): mask, then values in the order of
    /// their numbers.
    pub fn encode_fattr(&self, wanted: &Bitmap, w: &mut Writer) {
        let mask = self.mask().and(wanted);
        mask.encode(w);
        w.nested(|w| mask.iter().for_each(|n| self.encode_one(n, w)));
    }

    /// Reads a `fattr4`.
    ///
    /// # Errors
    ///
    /// [`Error::BadEnum`] of [`UNKNOWN`] with the number of an attribute whose length is not known.
    pub fn decode_fattr(r: &mut Reader) -> Result<Self> {
        Fattr::decode(r)?.parse_xdr()
    }
}

impl Encode for Attrs {
    fn encode(&self, w: &mut Writer) {
        self.encode_fattr(&KNOWN, w);
    }
}

impl Decode for Attrs {
    fn decode(r: &mut Reader) -> Result<Self> {
        Self::decode_fattr(r)
    }
}

/// Attributes as they stand on the wire (`fattr4`), not looked into yet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fattr {
    /// Which attributes.
    pub mask: Bitmap,
    /// Their values one after another (`attrlist4`).
    pub values: Bytes,
}

impl Fattr {
    /// The values.
    ///
    /// # Errors
    ///
    /// The status that a server answers: [`Status::ATTRNOTSUPP`] for an attribute nobody knows here,
    /// [`Status::BADXDR`] when the values do not decode or bytes are left over.
    pub fn parse(&self) -> Result<Attrs, Status> {
        self.parse_xdr().map_err(|e| match e {
            Error::BadEnum { what: UNKNOWN, .. } => Status::ATTRNOTSUPP,
            _ => Status::BADXDR,
        })
    }

    fn parse_xdr(&self) -> Result<Attrs> {
        let mut attrs = Attrs::default();
        let mut r = Reader::new(self.values.clone());
        for number in self.mask.iter() {
            attrs.decode_one(number, &mut r)?;
        }
        r.finish()?;
        Ok(attrs)
    }
}

impl From<&Attrs> for Fattr {
    fn from(attrs: &Attrs) -> Self {
        let mask = attrs.mask();
        let mut w = Writer::new();
        mask.iter().for_each(|n| attrs.encode_one(n, &mut w));
        Self { mask, values: w.into_bytes() }
    }
}

impl From<Attrs> for Fattr {
    fn from(attrs: Attrs) -> Self {
        Self::from(&attrs)
    }
}

impl Encode for Fattr {
    fn encode(&self, w: &mut Writer) {
        self.mask.encode(w);
        w.opaque(&self.values);
    }
}

impl Decode for Fattr {
    fn decode(r: &mut Reader) -> Result<Self> {
        Ok(Self { mask: Bitmap::decode(r)?, values: r.opaque(NO_LIMIT)? })
    }
}
