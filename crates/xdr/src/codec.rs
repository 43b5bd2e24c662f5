//! The traits of values that have an encoding, and their implementations for basic types.

use bytes::Bytes;

use crate::{Reader, Result, Writer};

/// A value that can be written. Encoding does not fail: limits are checked where values are made.
pub trait Encode {
    /// Appends the value.
    fn encode(&self, w: &mut Writer);

    /// The value alone, in one piece.
    fn to_bytes(&self) -> Bytes {
        let mut w = Writer::new();
        self.encode(&mut w);
        w.into_bytes()
    }
}

/// A value that can be read without further knowledge.
pub trait Decode: Sized {
    /// Reads the value.
    fn decode(r: &mut Reader) -> Result<Self>;

    /// Reads a value that must fill `buf` entirely.
    fn from_bytes(buf: Bytes) -> Result<Self> {
        let mut r = Reader::new(buf);
        let v = Self::decode(&mut r)?;
        r.finish()?;
        Ok(v)
    }
}

/// A variable-length value; the reader must say how long it may be.
pub trait DecodeMax: Sized {
    /// Reads the value: at most `max` bytes of opaque data, or `max` elements of an array.
    fn decode_max(r: &mut Reader, max: usize) -> Result<Self>;
}

macro_rules! basic {
    ($($ty:ident)*) => {$(
        impl Encode for $ty {
            #[inline]
            fn encode(&self, w: &mut Writer) {
                w.$ty(*self);
            }
        }
        impl Decode for $ty {
            #[inline]
            fn decode(r: &mut Reader) -> Result<Self> {
                r.$ty()
            }
        }
    )*};
}

basic!(u32 i32 u64 i64 bool);

impl Encode for () {
    fn encode(&self, _: &mut Writer) {}
}

impl Decode for () {
    fn decode(_: &mut Reader) -> Result<Self> {
        Ok(())
    }
}

impl<const N: usize> Encode for [u8; N] {
    fn encode(&self, w: &mut Writer) {
        w.fixed(self);
    }
}

impl<const N: usize> Decode for [u8; N] {
    fn decode(r: &mut Reader) -> Result<Self> {
        r.fixed_array()
    }
}

impl Encode for Bytes {
    fn encode(&self, w: &mut Writer) {
        w.payload(self.clone());
    }
}

impl DecodeMax for Bytes {
    fn decode_max(r: &mut Reader, max: usize) -> Result<Self> {
        r.opaque(max)
    }
}

impl<T: Encode> Encode for Vec<T> {
    fn encode(&self, w: &mut Writer) {
        w.array(self, |w, v| v.encode(w));
    }
}

impl<T: Decode> DecodeMax for Vec<T> {
    fn decode_max(r: &mut Reader, max: usize) -> Result<Self> {
        r.array(max, T::decode)
    }
}

impl<T: Encode> Encode for Option<T> {
    fn encode(&self, w: &mut Writer) {
        w.optional(self.as_ref(), |w, v| v.encode(w));
    }
}

impl<T: Decode> Decode for Option<T> {
    fn decode(r: &mut Reader) -> Result<Self> {
        r.optional(T::decode)
    }
}

impl<A: Encode, B: Encode> Encode for (A, B) {
    fn encode(&self, w: &mut Writer) {
        self.0.encode(w);
        self.1.encode(w);
    }
}

impl<A: Decode, B: Decode> Decode for (A, B) {
    fn decode(r: &mut Reader) -> Result<Self> {
        Ok((A::decode(r)?, B::decode(r)?))
    }
}

impl<T: Encode> Encode for Box<T> {
    fn encode(&self, w: &mut Writer) {
        (**self).encode(w);
    }
}

impl<T: Decode> Decode for Box<T> {
    fn decode(r: &mut Reader) -> Result<Self> {
        T::decode(r).map(Box::new)
    }
}
