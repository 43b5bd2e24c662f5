//! Directories: LOOKUP, CREATE, REMOVE, RENAME, READDIR.

use bytes::Bytes;
use dhow_xdr::{Decode, Encode, Mark, Reader, Result, Writer, padding, xdr_struct};

use crate::v4::{Attrs, Bitmap, ChangeInfo, Fattr, FileType, NO_LIMIT, SpecData, Verifier};

xdr_struct! {
    /// LOOKUP (RFC 8881 section 18.13).
    pub struct LookupArgs {
        /// Name in the current directory.
        pub name: Bytes[max NO_LIMIT],
    }

    /// CREATE (RFC 8881 section 18.4): anything but regular files.
    pub struct CreateArgs {
        /// What to create.
        pub kind: CreateType,
        /// Name in the current directory.
        pub name: Bytes[max NO_LIMIT],
        /// Attributes of the new object.
        pub attrs: Fattr,
    }

    /// Result of CREATE.
    pub struct CreateOk {
        /// The directory.
        pub cinfo: ChangeInfo,
        /// Attributes that were set.
        pub attrset: Bitmap,
    }

    /// REMOVE (RFC 8881 section 18.25).
    pub struct RemoveArgs {
        /// Name in the current directory.
        pub target: Bytes[max NO_LIMIT],
    }

    /// Result of REMOVE.
    pub struct RemoveOk {
        /// The directory.
        pub cinfo: ChangeInfo,
    }

    /// RENAME (RFC 8881 section 18.26): from the saved directory to the current one.
    pub struct RenameArgs {
        /// Name in the saved directory.
        pub old_name: Bytes[max NO_LIMIT],
        /// Name in the current directory.
        pub new_name: Bytes[max NO_LIMIT],
    }

    /// Result of RENAME.
    pub struct RenameOk {
        /// The saved directory.
        pub source_cinfo: ChangeInfo,
        /// The current directory.
        pub target_cinfo: ChangeInfo,
    }

    /// READDIR (RFC 8881 section 18.23).
    pub struct ReaddirArgs {
        /// 0 at first, then that of the last entry.
        pub cookie: u64,
        /// That of the last result.
        pub verifier: Verifier,
        /// Hint: most bytes of names and cookies.
        pub dircount: u32,
        /// Most bytes of the result.
        pub maxcount: u32,
        /// Attributes wanted of each entry.
        pub attr_request: Bitmap,
    }
}

/// What CREATE creates (`createtype4`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CreateType {
    /// A symbolic link with this text.
    Link(Bytes),
    /// A block device.
    Block(SpecData),
    /// A character device.
    Char(SpecData),
    /// A socket.
    Socket,
    /// A FIFO.
    Fifo,
    /// A directory.
    Dir,
    /// Anything else, which a server answers by BADTYPE.
    Other(FileType),
}

impl CreateType {
    /// The type of the object.
    pub fn file_type(&self) -> FileType {
        match self {
            Self::Link(_) => FileType::LNK,
            Self::Block(_) => FileType::BLK,
            Self::Char(_) => FileType::CHR,
            Self::Socket => FileType::SOCK,
            Self::Fifo => FileType::FIFO,
            Self::Dir => FileType::DIR,
            Self::Other(file_type) => *file_type,
        }
    }
}

impl Encode for CreateType {
    fn encode(&self, w: &mut Writer) {
        self.file_type().encode(w);
        match self {
            Self::Link(text) => w.opaque(text),
            Self::Block(dev) | Self::Char(dev) => dev.encode(w),
            Self::Socket | Self::Fifo | Self::Dir | Self::Other(_) => {}
        }
    }
}

impl Decode for CreateType {
    fn decode(r: &mut Reader) -> Result<Self> {
        Ok(match FileType::decode(r)? {
            FileType::LNK => Self::Link(r.opaque(NO_LIMIT)?),
            FileType::BLK => Self::Block(SpecData::decode(r)?),
            FileType::CHR => Self::Char(SpecData::decode(r)?),
            FileType::SOCK => Self::Socket,
            FileType::FIFO => Self::Fifo,
            FileType::DIR => Self::Dir,
            file_type => Self::Other(file_type),
        })
    }
}

/// An entry of a directory (`entry4`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// Where to go on after this entry.
    pub cookie: u64,
    /// Its name.
    pub name: Bytes,
    /// Its attributes.
    pub attrs: Attrs,
}

/// Result of READDIR. A server rather writes it entry by entry: see [`ReaddirWriter`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReaddirOk {
    /// For the next READDIR.
    pub verifier: Verifier,
    /// The entries.
    pub entries: Vec<DirEntry>,
    /// There are no more.
    pub eof: bool,
}

impl Encode for ReaddirOk {
    fn encode(&self, w: &mut Writer) {
        self.verifier.encode(w);
        for entry in &self.entries {
            w.bool(true);
            w.u64(entry.cookie);
            w.opaque(&entry.name);
            entry.attrs.encode(w);
        }
        w.bool(false);
        w.bool(self.eof);
    }
}

impl Decode for ReaddirOk {
    fn decode(r: &mut Reader) -> Result<Self> {
        let verifier = Verifier::decode(r)?;
        let mut entries = Vec::new();
        while r.bool()? {
            let cookie = r.u64()?;
            let name = r.opaque(NO_LIMIT)?;
            entries.push(DirEntry { cookie, name, attrs: Attrs::decode(r)? });
        }
        Ok(Self { verifier, entries, eof: r.bool()? })
    }
}

/// Writes the body of a successful READDIR entry by entry, within the limits of the request.
///
/// `maxcount` bounds the whole body: verifier, entries, end mark and EOF flag (RFC 8881 section 18.23.3). `dircount`
/// bounds names and cookies with their lengths, but is a hint: the first entry is never refused because of it.
#[derive(Debug)]
pub struct ReaddirWriter {
    start: Mark,
    maxcount: usize,
    dircount: usize,
    names: usize,
    entries: usize,
}

/// Bytes of the end mark and the EOF flag.
const READDIR_TAIL: usize = 8;

impl ReaddirWriter {
    /// Writes the verifier. `dircount` 0 means no hint.
    pub fn new(w: &mut Writer, verifier: Verifier, dircount: u32, maxcount: u32) -> Self {
        let start = w.mark();
        verifier.encode(w);
        let dircount = if dircount == 0 { usize::MAX } else { dircount as usize };
        Self { start, maxcount: maxcount as usize, dircount, names: 0, entries: 0 }
    }

    /// Appends an entry; `attrs` writes its `fattr4`. Returns false, and leaves the message as it was, when there is
    /// no room for it.
    pub fn push(&mut self, w: &mut Writer, cookie: u64, name: &[u8], attrs: impl FnOnce(&mut Writer)) -> bool {
        let names = self.names + 12 + name.len() + padding(name.len());
        if self.entries > 0 && names > self.dircount {
            return false;
        }
        let before = w.mark();
        w.bool(true);
        w.u64(cookie);
        w.opaque(name);
        attrs(w);
        if w.len() - self.start.offset() + READDIR_TAIL > self.maxcount {
            w.truncate(before);
            return false;
        }
        self.names = names;
        self.entries += 1;
        true
    }

    /// Number of entries so far. When it is 0 at the end and there was an entry to write, the answer is TOOSMALL.
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Writes the end mark and the EOF flag.
    pub fn finish(self, w: &mut Writer, eof: bool) {
        w.bool(false);
        w.bool(eof);
    }
}
