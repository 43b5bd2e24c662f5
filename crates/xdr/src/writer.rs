//! Builds one message as a list of buffers.

use bytes::{BufMut, Bytes, BytesMut};

use crate::padding;

/// Payloads shorter than this are copied: a separate buffer costs more than the copy.
const COPY_BELOW: usize = 256;

/// Builds an XDR message.
///
/// All small values go to one contiguous buffer; a large payload is kept by reference together with the place where
/// it belongs. That makes patching and rolling back cheap, and data never moves until the socket takes it.
#[derive(Debug, Default)]
pub struct Writer {
    small: BytesMut,
    /// Payloads with the offset in `small` before which each belongs; offsets never decrease.
    refs: Vec<(usize, Bytes)>,
    ref_bytes: usize,
}

/// A place in a [`Writer`]: roll back to it with [`Writer::truncate`], or overwrite a number that was written there
/// with [`Writer::patch_u32`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    small: usize,
    refs: usize,
    ref_bytes: usize,
}

impl Mark {
    /// Distance from the start of the message in bytes.
    pub fn offset(self) -> usize {
        self.small + self.ref_bytes
    }
}

impl Writer {
    /// An empty message.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty message with room for `capacity` bytes of small values.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { small: BytesMut::with_capacity(capacity), ..Self::default() }
    }

    /// Bytes written so far, payloads included.
    pub fn len(&self) -> usize {
        self.small.len() + self.ref_bytes
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends an unsigned 32-bit integer.
    #[inline]
    pub fn u32(&mut self, v: u32) {
        self.small.put_u32(v);
    }

    /// Appends a signed 32-bit integer.
    #[inline]
    pub fn i32(&mut self, v: i32) {
        self.small.put_i32(v);
    }

    /// Appends an unsigned 64-bit integer.
    #[inline]
    pub fn u64(&mut self, v: u64) {
        self.small.put_u64(v);
    }

    /// Appends a signed 64-bit integer.
    #[inline]
    pub fn i64(&mut self, v: i64) {
        self.small.put_i64(v);
    }

    /// Appends a boolean.
    #[inline]
    pub fn bool(&mut self, v: bool) {
        self.u32(v.into());
    }

    /// Appends a length or element count. XDR lengths have 32 bits; nothing this project sends comes near that limit.
    #[inline]
    pub fn count(&mut self, n: usize) {
        debug_assert!(u32::try_from(n).is_ok());
        self.u32(n as u32);
    }

    /// Appends fixed-length opaque data: bytes and padding, no length. Copies.
    pub fn fixed(&mut self, data: &[u8]) {
        self.small.put_slice(data);
        self.pad(data.len());
    }

    /// Appends variable-length opaque data: length, bytes, padding. Copies.
    pub fn opaque(&mut self, data: &[u8]) {
        self.count(data.len());
        self.fixed(data);
    }

    /// Appends variable-length opaque data (length, bytes, padding), keeping large data by reference.
    pub fn payload(&mut self, data: Bytes) {
        let len = data.len();
        self.count(len);
        self.raw(data);
        self.pad(len);
    }

    /// As [`Writer::payload`] for data in several pieces that form *one* opaque value.
    pub fn payload_parts(&mut self, parts: impl IntoIterator<Item = Bytes>) {
        let mark = self.placeholder();
        let start = self.len();
        for part in parts {
            self.raw(part);
        }
        let len = self.len() - start;
        self.patch_u32(mark, len as u32);
        self.pad(len);
    }

    /// Appends bytes that are encoded already: no length, no padding. Large ones are kept by reference.
    pub fn raw(&mut self, data: Bytes) {
        if data.len() < COPY_BELOW {
            self.small.put_slice(&data);
        } else {
            self.ref_bytes += data.len();
            self.refs.push((self.small.len(), data));
        }
    }

    /// Appends another message without copying its payloads.
    pub fn append(&mut self, other: Writer) {
        let base = self.small.len();
        self.small.put_slice(&other.small);
        self.ref_bytes += other.ref_bytes;
        self.refs.extend(other.refs.into_iter().map(|(at, data)| (base + at, data)));
    }

    /// An array: the count, then each element by `f`.
    pub fn array<T>(&mut self, items: &[T], mut f: impl FnMut(&mut Self, &T)) {
        self.count(items.len());
        for item in items {
            f(self, item);
        }
    }

    /// Optional data (RFC 4506 section 4.19).
    pub fn optional<T>(&mut self, value: Option<T>, f: impl FnOnce(&mut Self, T)) {
        self.bool(value.is_some());
        if let Some(v) = value {
            f(self, v);
        }
    }

    /// The present end of the message.
    pub fn mark(&self) -> Mark {
        Mark { small: self.small.len(), refs: self.refs.len(), ref_bytes: self.ref_bytes }
    }

    /// Appends a zero to be overwritten later by [`Writer::patch_u32`] (a count, a status, a length).
    pub fn placeholder(&mut self) -> Mark {
        let mark = self.mark();
        self.u32(0);
        mark
    }

    /// Overwrites the four small bytes at `mark`. Returns false, changing nothing, when they were rolled back.
    pub fn patch_u32(&mut self, mark: Mark, v: u32) -> bool {
        match self.small.get_mut(mark.small..).and_then(|b| b.first_chunk_mut::<4>()) {
            Some(place) => {
                *place = v.to_be_bytes();
                true
            }
            None => false,
        }
    }

    /// Appends an opaque value whose content `f` encodes; its length is patched in afterwards.
    pub fn nested<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        let mark = self.placeholder();
        let start = self.len();
        let out = f(self);
        let len = self.len() - start;
        self.patch_u32(mark, len as u32);
        self.pad(len);
        out
    }

    /// Removes everything written since `mark`. A mark beyond the end changes nothing.
    pub fn truncate(&mut self, mark: Mark) {
        if mark.small <= self.small.len() && mark.refs <= self.refs.len() {
            self.small.truncate(mark.small);
            self.refs.truncate(mark.refs);
            self.ref_bytes = mark.ref_bytes;
        }
    }

    /// The message as buffers to be sent one after another.
    pub fn into_segments(self) -> Vec<Bytes> {
        let small = self.small.freeze();
        let mut out = Vec::with_capacity(self.refs.len() * 2 + 1);
        let mut from = 0;
        for (at, data) in self.refs {
            if at > from {
                out.push(small.slice(from..at));
            }
            out.push(data);
            from = at;
        }
        if small.len() > from {
            out.push(small.slice(from..));
        }
        out
    }

    /// The message in one piece; copies when there are payloads by reference.
    pub fn into_bytes(self) -> Bytes {
        if self.refs.is_empty() {
            return self.small.freeze();
        }
        let mut out = BytesMut::with_capacity(self.len());
        for segment in self.into_segments() {
            out.put_slice(&segment);
        }
        out.freeze()
    }

    fn pad(&mut self, len: usize) {
        self.small.put_bytes(0, padding(len));
    }
}
