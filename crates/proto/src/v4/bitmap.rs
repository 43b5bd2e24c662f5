//! Sets of small numbers: attributes, hints, types to recall.

use dhow_xdr::{Decode, Encode, Error, Reader, Result, Writer};

/// Words kept: numbers 0 to 255. The highest attribute assigned today is below 96.
const WORDS: usize = 8;

/// Most words accepted from the wire, when all beyond [`WORDS`] are zero.
const MAX_WIRE_WORDS: usize = 64;

/// A set of numbers from 0 to 255 (`bitmap4`, RFC 8881 section 3.2).
///
/// Encodes without trailing zero words. Decodes up to 64 words, of which those beyond the eighth must be zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Bitmap {
    words: [u32; WORDS],
}

impl Bitmap {
    /// The empty set.
    pub const EMPTY: Self = Self { words: [0; WORDS] };

    /// The set of `bits`; numbers of 256 and more are left out.
    pub const fn of(bits: &[u32]) -> Self {
        let mut set = Self::EMPTY;
        let mut i = 0;
        #[allow(clippy::indexing_slicing)] // i < len; iterators are not const
        while i < bits.len() {
            set = set.with(bits[i]);
            i += 1;
        }
        set
    }

    /// This set and `bit`.
    pub const fn with(mut self, bit: u32) -> Self {
        if let Some((word, mask)) = place(bit) {
            #[allow(clippy::indexing_slicing)] // place() returns word < WORDS
            {
                self.words[word] |= mask;
            }
        }
        self
    }

    /// This set without `bit`.
    pub const fn without(mut self, bit: u32) -> Self {
        if let Some((word, mask)) = place(bit) {
            #[allow(clippy::indexing_slicing)] // place() returns word < WORDS
            {
                self.words[word] &= !mask;
            }
        }
        self
    }

    /// Adds `bit`.
    pub fn set(&mut self, bit: u32) {
        *self = self.with(bit);
    }

    /// Removes `bit`.
    pub fn clear(&mut self, bit: u32) {
        *self = self.without(bit);
    }

    /// Whether `bit` is in the set.
    pub const fn contains(&self, bit: u32) -> bool {
        match place(bit) {
            #[allow(clippy::indexing_slicing)] // place() returns word < WORDS
            Some((word, mask)) => self.words[word] & mask != 0,
            None => false,
        }
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        *self == Self::EMPTY
    }

    /// How many numbers are in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// The numbers that are in both sets.
    pub fn and(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a & b)
    }

    /// The numbers that are in either set.
    pub fn or(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a | b)
    }

    /// The numbers of this set that are not in the other.
    pub fn minus(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a & !b)
    }

    /// Whether every number of this set is in the other.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.minus(other).is_empty()
    }

    /// The numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + use<> {
        let words = self.words;
        (0u32..).zip(words).flat_map(|(i, mut word)| {
            std::iter::from_fn(move || {
                if word == 0 {
                    return None;
                }
                let bit = word.trailing_zeros();
                word &= word - 1;
                Some(i * 32 + bit)
            })
        })
    }

    fn zip(&self, other: &Self, f: impl Fn(u32, u32) -> u32) -> Self {
        let mut out = *self;
        for (a, b) in out.words.iter_mut().zip(other.words) {
            *a = f(*a, b);
        }
        out
    }
}

const fn place(bit: u32) -> Option<(usize, u32)> {
    let word = (bit / 32) as usize;
    if word < WORDS { Some((word, 1 << (bit % 32))) } else { None }
}

impl FromIterator<u32> for Bitmap {
    fn from_iter<I: IntoIterator<Item = u32>>(bits: I) -> Self {
        bits.into_iter().fold(Self::EMPTY, Self::with)
    }
}

impl std::fmt::Debug for Bitmap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl Encode for Bitmap {
    fn encode(&self, w: &mut Writer) {
        let used = WORDS - self.words.iter().rev().take_while(|w| **w == 0).count();
        w.count(used);
        for word in self.words.iter().take(used) {
            w.u32(*word);
        }
    }
}

impl Decode for Bitmap {
    fn decode(r: &mut Reader) -> Result<Self> {
        let count = r.len_prefix("bitmap", MAX_WIRE_WORDS)?;
        let mut set = Self::EMPTY;
        for i in 0..count {
            let word = r.u32()?;
            match set.words.get_mut(i) {
                Some(place) => *place = word,
                None if word == 0 => {}
                None => {
                    return Err(Error::TooLong { what: "bitmap", len: count as u32, limit: WORDS });
                }
            }
        }
        Ok(set)
    }
}
