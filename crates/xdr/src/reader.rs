//! A cursor over one received message.

use bytes::Bytes;

use crate::{Error, Result, padding};

/// Reads XDR values from a [`Bytes`].
///
/// Opaque values are slices that share the memory of the input. Non-zero padding bytes are accepted: RFC 4506 asks
/// senders to write zeros, but no information hides there and some implementations send what was in the buffer.
#[derive(Debug, Clone)]
pub struct Reader {
    buf: Bytes,
    pos: usize,
}

impl Reader {
    /// A reader at the start of `buf`.
    pub fn new(buf: Bytes) -> Self {
        Self { buf, pos: 0 }
    }

    /// Bytes not read yet.
    pub fn remaining(&self) -> usize {
        self.buf.len() - self.pos
    }

    /// Bytes read so far, from the start of this reader's input.
    pub fn position(&self) -> usize {
        self.pos
    }

    /// The next four bytes as an unsigned integer.
    #[inline]
    pub fn u32(&mut self) -> Result<u32> {
        let v = self.peek_u32()?;
        self.pos += 4;
        Ok(v)
    }

    /// As [`Reader::u32`], without moving on.
    #[inline]
    pub fn peek_u32(&self) -> Result<u32> {
        let b = self.buf.get(self.pos..).and_then(|b| b.first_chunk::<4>());
        b.map(|b| u32::from_be_bytes(*b)).ok_or(Error::Eof)
    }

    /// A signed 32-bit integer.
    #[inline]
    pub fn i32(&mut self) -> Result<i32> {
        Ok(self.u32()? as i32)
    }

    /// An unsigned 64-bit integer ("unsigned hyper").
    #[inline]
    pub fn u64(&mut self) -> Result<u64> {
        let b = self.buf.get(self.pos..).and_then(|b| b.first_chunk::<8>());
        let v = b.map(|b| u64::from_be_bytes(*b)).ok_or(Error::Eof)?;
        self.pos += 8;
        Ok(v)
    }

    /// A signed 64-bit integer ("hyper").
    #[inline]
    pub fn i64(&mut self) -> Result<i64> {
        Ok(self.u64()? as i64)
    }

    /// A boolean; any number but 0 and 1 is an error.
    #[inline]
    pub fn bool(&mut self) -> Result<bool> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            n => Err(Error::BadBool(n)),
        }
    }

    /// Fixed-length opaque data of `len` bytes and its padding.
    pub fn fixed(&mut self, len: usize) -> Result<Bytes> {
        let end = self.end_of(len)?;
        let data = self.buf.slice(self.pos..self.pos + len);
        self.pos = end;
        Ok(data)
    }

    /// Fixed-length opaque data into an array.
    pub fn fixed_array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let end = self.end_of(N)?;
        let data = self.buf.get(self.pos..).and_then(|b| b.first_chunk::<N>()).ok_or(Error::Eof)?;
        let data = *data;
        self.pos = end;
        Ok(data)
    }

    /// Variable-length opaque data (or a string) of at most `max` bytes, as a slice of the input.
    pub fn opaque(&mut self, max: usize) -> Result<Bytes> {
        let len = self.len_prefix("opaque", max)?;
        self.fixed(len)
    }

    /// Moves past variable-length opaque data of at most `max` bytes; returns its length.
    pub fn skip_opaque(&mut self, max: usize) -> Result<usize> {
        let len = self.len_prefix("opaque", max)?;
        self.pos = self.end_of(len)?;
        Ok(len)
    }

    /// Moves past `len` bytes (no padding is added).
    pub fn skip(&mut self, len: usize) -> Result<()> {
        if len > self.remaining() {
            return Err(Error::Eof);
        }
        self.pos += len;
        Ok(())
    }

    /// A variable-length array of at most `max` elements, each read by `f`.
    ///
    /// Room is reserved for the number of elements the remaining bytes can hold (at least four bytes each) and for
    /// 64 KiB at first, never for the number the sender claims.
    pub fn array<T>(&mut self, max: usize, mut f: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let len = self.len_prefix("array", max)?;
        let first = 0x1_0000 / size_of::<T>().max(1);
        let mut out = Vec::with_capacity(len.min(self.remaining() / 4).min(first));
        for _ in 0..len {
            out.push(f(self)?);
        }
        Ok(out)
    }

    /// The element count of a variable-length array, checked against `max`. `what` names the array in the error.
    pub fn len_prefix(&mut self, what: &'static str, max: usize) -> Result<usize> {
        let len = self.u32()?;
        if len as usize > max {
            return Err(Error::TooLong { what, len, limit: max });
        }
        Ok(len as usize)
    }

    /// Optional data (RFC 4506 section 4.19).
    pub fn optional<T>(&mut self, f: impl FnOnce(&mut Self) -> Result<T>) -> Result<Option<T>> {
        if self.bool()? { f(self).map(Some) } else { Ok(None) }
    }

    /// A reader over exactly the next `len` bytes, which this reader moves past (with their padding).
    pub fn take(&mut self, len: usize) -> Result<Reader> {
        self.fixed(len).map(Reader::new)
    }

    /// The bytes not read yet, as a slice of the input; this reader is then at its end.
    pub fn rest(&mut self) -> Bytes {
        let rest = self.buf.slice(self.pos..);
        self.pos = self.buf.len();
        rest
    }

    /// The bytes of the input between two positions of this reader (see [`Reader::position`]); empty when out of range.
    pub fn span(&self, start: usize, end: usize) -> Bytes {
        if start > end || end > self.buf.len() {
            return Bytes::new();
        }
        self.buf.slice(start..end)
    }

    /// Succeeds when everything was read.
    pub fn finish(&self) -> Result<()> {
        match self.remaining() {
            0 => Ok(()),
            n => Err(Error::Trailing(n)),
        }
    }

    /// Position after `len` bytes and padding, when that many bytes are there.
    fn end_of(&self, len: usize) -> Result<usize> {
        let room = self.remaining();
        if len > room || padding(len) > room - len {
            return Err(Error::Eof);
        }
        Ok(self.pos + len + padding(len))
    }
}

impl From<Bytes> for Reader {
    fn from(buf: Bytes) -> Self {
        Self::new(buf)
    }
}
