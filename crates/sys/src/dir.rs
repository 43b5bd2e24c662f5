//! Reading directories by `getdents64(2)` from any position.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use rustix::fs::{FileType, RawDir, SeekFrom};

use crate::{Errno, Result, retry};

/// One entry, borrowed from the reader's buffer.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Inode number as the directory has it: at a mount point that of the directory mounted over.
    pub ino: u64,
    /// Position *behind* this entry (`d_off`): seek here to go on with the next. Opaque, not counted.
    pub next: u64,
    /// Type, or [`FileType::Unknown`] where the filesystem does not say.
    pub kind: FileType,
    /// The name.
    pub name: &'a [u8],
}

/// What the visitor of [`read_from`] wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// The next entry, please.
    More,
    /// Stop here.
    Stop,
}

/// Hands the entries of `dir` from position `from` on (0 is the beginning) to `visit`, `.` and `..` included.
///
/// `dir` must be open for reading; its position is moved, so one descriptor serves one caller at a time.
/// `buffer` takes the kernel's records: 32 KiB is a good size, under 280 bytes is too small for a long name.
/// Returns true when the end of the directory was reached.
///
/// # Errors
/// `EINVAL` for a position that the filesystem cannot take, or a buffer too small for the next entry.
pub fn read_from(
    dir: impl AsFd,
    from: u64,
    buffer: &mut [MaybeUninit<u8>],
    mut visit: impl FnMut(Entry<'_>) -> Flow,
) -> Result<bool> {
    let dir = dir.as_fd();
    i64::try_from(from).map_err(|_| Errno::INVAL)?;
    rustix::fs::seek(dir, SeekFrom::Start(from))?;
    let mut raw = RawDir::new(dir, buffer);
    loop {
        let entry = match raw.next() {
            None => return Ok(true),
            Some(Err(Errno::INTR)) => continue,
            Some(entry) => entry?,
        };
        let entry = Entry {
            ino: entry.ino(),
            next: entry.next_entry_cookie(),
            kind: entry.file_type(),
            name: entry.file_name().to_bytes(),
        };
        if visit(entry) == Flow::Stop {
            return Ok(false);
        }
    }
}

/// True if the directory has no entries but `.` and `..`.
///
/// # Errors
/// Those of the read.
pub fn is_empty(dir: impl AsFd) -> Result<bool> {
    let dir = dir.as_fd();
    let mut buffer = [MaybeUninit::uninit(); 1024];
    let mut found = false;
    retry(|| {
        read_from(dir, 0, &mut buffer, |e| {
            found = e.name != b"." && e.name != b"..";
            if found { Flow::Stop } else { Flow::More }
        })
    })?;
    Ok(!found)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;
    use crate::testdir::TestDir;

    #[test]
    fn every_page_goes_on_after_the_cookie() {
        // case B03: the union of pages is the directory, without repeats.
        for dir in TestDir::each() {
            let wanted: BTreeSet<Vec<u8>> = (0..3000).map(|n| format!("file-{n:05}").into_bytes()).collect();
            for name in &wanted {
                fs::write(dir.join(std::str::from_utf8(name).unwrap()), b"").unwrap();
            }
            let fd = dir.fd();
            let mut buffer = vec![MaybeUninit::uninit(); 4096];
            let mut got = Vec::new();
            let (mut at, mut done) = (0, false);
            while !done {
                let mut left = 7;
                done = read_from(&fd, at, &mut buffer, |e| {
                    if left == 0 {
                        return Flow::Stop;
                    }
                    left -= 1;
                    at = e.next;
                    if !e.name.starts_with(b".") {
                        assert!(e.ino != 0);
                        assert!(matches!(e.kind, FileType::RegularFile | FileType::Unknown));
                        got.push(e.name.to_vec());
                    }
                    Flow::More
                })
                .unwrap();
            }
            assert_eq!(got.len(), wanted.len());
            assert_eq!(got.into_iter().collect::<BTreeSet<_>>(), wanted);
            assert!(!is_empty(&fd).unwrap());
        }
    }

    #[test]
    fn empty_directories_and_bad_positions() {
        for dir in TestDir::each() {
            assert!(is_empty(dir.fd()).unwrap());
            let mut buffer = vec![MaybeUninit::uninit(); 4096];
            assert_eq!(read_from(dir.fd(), u64::MAX, &mut buffer, |_| Flow::More).unwrap_err(), Errno::INVAL);
            let mut small = vec![MaybeUninit::uninit(); 8];
            assert_eq!(read_from(dir.fd(), 0, &mut small, |_| Flow::More).unwrap_err(), Errno::INVAL);
        }
    }
}
