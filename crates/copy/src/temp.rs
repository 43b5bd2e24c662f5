//! Names of unfinished files.

use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Longest name that every filesystem takes, bytes.
const NAME_MAX: usize = 255;

/// A name for the unfinished file that will become `name`: `.name.dhow-XXXXXXXX`, hidden and in the same directory,
/// so that the rename at the end stays within one filesystem.
pub fn name(name: &OsStr) -> OsString {
    // Seeded by the system's randomness: two programs that copy to one name do not meet.
    let random = RandomState::new().build_hasher().finish();
    let tail = format!(".dhow-{:08x}", random as u32);
    let room = NAME_MAX - 1 - tail.len();
    let bytes = name.as_bytes();
    let mut out = Vec::with_capacity(NAME_MAX);
    out.push(b'.');
    out.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
    out.extend_from_slice(tail.as_bytes());
    OsString::from_vec(out)
}

/// The path of the unfinished file beside `path`.
pub fn beside(path: &Path, file_name: &OsStr) -> PathBuf {
    path.with_file_name(name(file_name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_names_are_hidden_short_and_different() {
        let a = name(OsStr::new("data.bin"));
        assert!(a.as_bytes().starts_with(b".data.bin.dhow-"));
        assert_ne!(a, name(OsStr::new("data.bin")));
        let long = "x".repeat(255);
        assert_eq!(name(OsStr::new(&long)).len(), 255);
        assert_eq!(beside(Path::new("/a/b"), OsStr::new("b")).parent(), Some(Path::new("/a")));
    }
}
