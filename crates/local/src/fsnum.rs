//! Small numbers for filesystems.
//!
//! A handle begins with the number of its filesystem. It must be the same after a reboot, when device numbers may
//! have moved, so it is derived from what the filesystem says of itself (its type and its 64-bit id, which ext4, xfs
//! and btrfs make from their UUID and btrfs also from the subvolume). The number is a hash of that, moved on if another
//! filesystem has it already; only to remember such moves is a file needed.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

use parking_lot::Mutex;

/// Gives each key a number of its own, the same one for ever.
pub trait FsNumbers: Send + Sync {
    /// The number of `key`, never 0.
    ///
    /// # Errors
    /// The table cannot be kept.
    fn number(&self, key: &[u8]) -> io::Result<u32>;
}

/// FNV-1a, folded to 32 bits: a stable, documented hash.
fn hash(key: &[u8]) -> u32 {
    let h = key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    ((h ^ (h >> 32)) as u32).max(1)
}

/// Numbers that are the hash alone: nothing is kept, two filesystems may collide with a chance of 1 in 4 billion.
#[derive(Clone, Copy, Debug, Default)]
pub struct HashedFsNumbers;

impl FsNumbers for HashedFsNumbers {
    fn number(&self, key: &[u8]) -> io::Result<u32> {
        Ok(hash(key))
    }
}

/// Numbers kept in a text file: one line for each filesystem, its number and its key in hexadecimal.
#[derive(Debug)]
pub struct FileFsNumbers {
    inner: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    file: File,
    by_key: HashMap<Vec<u8>, u32>,
}

impl FileFsNumbers {
    /// Opens or makes the table. Lines that cannot be read are ignored.
    ///
    /// # Errors
    /// The file cannot be opened or read.
    pub fn open(path: &Path) -> io::Result<FileFsNumbers> {
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let by_key = text.lines().filter_map(parse_line).collect();
        Ok(FileFsNumbers { inner: Mutex::new(Table { file, by_key }) })
    }
}

fn parse_line(line: &str) -> Option<(Vec<u8>, u32)> {
    let (number, key) = line.split_once(' ')?;
    let key: Option<Vec<u8>> =
        key.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect();
    Some((key?, number.parse().ok().filter(|n| *n != 0)?))
}

impl FsNumbers for FileFsNumbers {
    fn number(&self, key: &[u8]) -> io::Result<u32> {
        let mut table = self.inner.lock();
        if let Some(number) = table.by_key.get(key) {
            return Ok(*number);
        }
        let mut number = hash(key);
        while table.by_key.values().any(|taken| *taken == number) {
            number = number.wrapping_add(1).max(1);
        }
        let hex: String = key.iter().map(|b| format!("{b:02x}")).collect();
        // A line is short enough to be appended whole. It is synced because handles made with it outlive a crash.
        table.file.write_all(format!("{number} {hex}\n").as_bytes())?;
        table.file.sync_data()?;
        table.by_key.insert(key.to_vec(), number);
        Ok(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_and_differ() {
        let path = std::env::temp_dir().join(format!("dhow-fsnum-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let first = FileFsNumbers::open(&path).unwrap();
        let a = first.number(b"a").unwrap();
        assert_eq!(a, HashedFsNumbers.number(b"a").unwrap());
        assert_ne!(first.number(b"b").unwrap(), a);
        drop(first);
        // Another filesystem had the number first: ours moves on, and stays there.
        std::fs::write(&path, format!("{a} 7a\nrubbish\n0 00\n")).unwrap();
        for _ in 0..2 {
            let table = FileFsNumbers::open(&path).unwrap();
            assert_eq!(table.number(b"z").unwrap(), a);
            assert_eq!(table.number(b"a").unwrap(), a.wrapping_add(1));
        }
        std::fs::remove_file(&path).unwrap();
    }
}
