//! Record marking on byte streams (RFC 5531 section 11), as a state machine that holds no data.

/// Top bit of a fragment header: this is the last fragment of the record.
const LAST_FRAGMENT: u32 = 0x8000_0000;

/// Most fragments in one record. Nothing that speaks NFS sends more than a few; a peer that sends 1-byte fragments
/// by the million costs us more than it (case B22).
pub const MAX_FRAGMENTS: u32 = 64;

/// Header of a record of `len` bytes sent as one fragment. Lengths of 2 GiB and more cannot be expressed; limits far
/// below that hold everywhere in this project.
pub const fn record_mark(len: usize) -> [u8; 4] {
    debug_assert!(len < LAST_FRAGMENT as usize);
    (len as u32 | LAST_FRAGMENT).to_be_bytes()
}

/// Why a connection must be closed: after any of these the stream is out of step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The record would exceed the limit. Found before any of the fragment's data was received.
    #[error("record of {len} bytes or more exceeds the limit of {limit}")]
    TooLarge {
        /// Bytes of the record announced so far.
        len: u64,
        /// The limit.
        limit: usize,
    },
    /// More than [`MAX_FRAGMENTS`] fragments, or a fragment without data that is not the last.
    #[error("record in too many or empty fragments")]
    Fragments,
    /// A record without data.
    #[error("empty record")]
    Empty,
}

/// What [`RecordReader`] needs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// A fragment header of four bytes; give it to [`RecordReader::header`].
    Header,
    /// This many bytes of data; tell [`RecordReader::received`] as they arrive.
    Data(usize),
    /// The record is complete; [`RecordReader::restart`] begins the next.
    Complete,
}

/// Follows the fragments of one record after another.
///
/// The caller moves the bytes; this type only says how many are wanted and refuses records that are too large before
/// the caller allocates anything for them.
#[derive(Debug, Clone)]
pub struct RecordReader {
    limit: usize,
    /// Data of this record received so far.
    have: usize,
    /// Data of the current fragment still to come.
    left: usize,
    last: bool,
    fragments: u32,
}

impl RecordReader {
    /// Starts before the first record; records of more than `limit` bytes are refused.
    pub fn new(limit: usize) -> Self {
        Self { limit, have: 0, left: 0, last: false, fragments: 0 }
    }

    /// Changes the limit, from the next fragment header on.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// What is wanted now.
    pub fn next(&self) -> Next {
        match (self.left, self.last) {
            (0, true) => Next::Complete,
            (0, false) => Next::Header,
            (left, _) => Next::Data(left),
        }
    }

    /// Takes a fragment header and returns how many bytes of data follow (never 0).
    ///
    /// # Errors
    ///
    /// See [`RecordError`]; the connection is then of no further use.
    pub fn header(&mut self, header: [u8; 4]) -> Result<usize, RecordError> {
        let word = u32::from_be_bytes(header);
        let last = word & LAST_FRAGMENT != 0;
        let len = (word & !LAST_FRAGMENT) as usize;
        self.fragments += 1;
        let total = self.have as u64 + len as u64;
        if total > self.limit as u64 {
            return Err(RecordError::TooLarge { len: total, limit: self.limit });
        }
        if len == 0 {
            // An empty last fragment after data would be harmless, but nobody sends it.
            return Err(if last && self.have == 0 { RecordError::Empty } else { RecordError::Fragments });
        }
        if self.fragments > MAX_FRAGMENTS {
            return Err(RecordError::Fragments);
        }
        self.left = len;
        self.last = last;
        Ok(len)
    }

    /// Notes that `n` bytes of data have arrived; more than were wanted count as what was wanted.
    pub fn received(&mut self, n: usize) {
        let n = n.min(self.left);
        self.left -= n;
        self.have += n;
    }

    /// Bytes of data of this record received so far.
    pub fn len(&self) -> usize {
        self.have
    }

    /// Whether no data of this record has arrived yet.
    pub fn is_empty(&self) -> bool {
        self.have == 0
    }

    /// Whether the current fragment is the record's last, so that [`RecordReader::len`] plus the wanted data is the
    /// size of the whole record.
    pub fn is_last_fragment(&self) -> bool {
        self.last
    }

    /// Begins the next record.
    pub fn restart(&mut self) {
        *self = Self::new(self.limit);
    }
}
