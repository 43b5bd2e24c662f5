//! Names of directory entries: bytes, never re-coded (cases B14, B15).

use bytes::Bytes;
use std::fmt;

/// The longest name of a directory entry, in bytes.
pub const NAME_MAX: usize = 255;

/// One component of a path: 1 to [`NAME_MAX`] bytes, no `/`, no NUL, neither `.` nor `..`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Bytes);

/// Why bytes are no [`Name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// No bytes at all (RFC 8881: INVAL).
    #[error("empty name")]
    Empty,
    /// Longer than [`NAME_MAX`] (NAMETOOLONG).
    #[error("name longer than 255 bytes")]
    TooLong,
    /// Holds `/` or NUL (BADCHAR).
    #[error("name holds '/' or NUL")]
    BadChar,
    /// `.` or `..` (BADNAME).
    #[error("name is '.' or '..'")]
    Dots,
}

impl Name {
    /// Checks `bytes` and wraps them.
    ///
    /// # Errors
    /// As [`NameError`] says; emptiness is looked at first, then length, then content.
    pub fn new(bytes: Bytes) -> Result<Self, NameError> {
        if bytes.is_empty() {
            return Err(NameError::Empty);
        }
        if bytes.len() > NAME_MAX {
            return Err(NameError::TooLong);
        }
        if bytes.iter().any(|&b| b == b'/' || b == 0) {
            return Err(NameError::BadChar);
        }
        if &bytes[..] == b"." || &bytes[..] == b".." {
            return Err(NameError::Dots);
        }
        Ok(Self(bytes))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_names_case_b17_b14() {
        let n = |b: &[u8]| Name::new(Bytes::copy_from_slice(b));
        assert_eq!(n(b""), Err(NameError::Empty));
        assert!(n(&[b'a'; 255]).is_ok());
        assert_eq!(n(&[b'a'; 256]), Err(NameError::TooLong));
        assert_eq!(n(b"a/b"), Err(NameError::BadChar));
        assert_eq!(n(b"a\0b"), Err(NameError::BadChar));
        assert_eq!(n(b"."), Err(NameError::Dots));
        assert_eq!(n(b".."), Err(NameError::Dots));
        assert!(n(b"...").is_ok());
        assert_eq!(n(b"\xff\xfe").unwrap().as_bytes(), b"\xff\xfe");
    }
}
