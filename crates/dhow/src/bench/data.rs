//! Files to be measured with, and whether a copy is one.

use dhow_copy::{Error, Source};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

const PIECE: usize = 1 << 20;

/// Fills `buf` with bytes that no filesystem can shrink, different for each `seed`.
fn fill(buf: &mut [u8], seed: u64) {
    // splitmix64: every seed starts somewhere else.
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for chunk in buf.chunks_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        let bytes = z.to_le_bytes();
        if let Some(part) = bytes.get(..chunk.len()) {
            chunk.copy_from_slice(part);
        }
    }
}

/// Makes a file of `size` bytes. With `holes`, every fourth MiB and the last of it are holes.
///
/// # Errors
/// Those of the filesystem.
pub fn make(path: &Path, size: u64, holes: bool) -> io::Result<()> {
    let file = File::create(path)?;
    file.set_len(size)?;
    let mut buf = vec![0; PIECE];
    let pieces = size.div_ceil(PIECE as u64);
    for piece in 0..pieces {
        let at = piece * PIECE as u64;
        let len = (size - at).min(PIECE as u64) as usize;
        if holes && (piece % 4 == 3 || piece + 1 == pieces) {
            continue;
        }
        let part = buf.get_mut(..len).unwrap_or_default();
        fill(part, piece);
        file.write_all_at(part, at)?;
    }
    (&file).flush()?;
    // What follows is measured without the writing back of this file.
    file.sync_all()
}

/// Whether two local files have the same bytes.
///
/// # Errors
/// Those of the filesystem.
pub fn same(a: &Path, b: &Path) -> io::Result<bool> {
    let (a, b) = (File::open(a)?, File::open(b)?);
    let size = a.metadata()?.len();
    if size != b.metadata()?.len() {
        return Ok(false);
    }
    let (mut x, mut y) = (vec![0; PIECE], vec![0; PIECE]);
    let mut at = 0;
    while at < size {
        let len = (size - at).min(PIECE as u64) as usize;
        let (x, y) = (x.get_mut(..len).unwrap_or_default(), y.get_mut(..len).unwrap_or_default());
        a.read_exact_at(x, at)?;
        b.read_exact_at(y, at)?;
        if x != y {
            return Ok(false);
        }
        at += len as u64;
    }
    Ok(true)
}

/// Whether two open files have the same bytes, read through their endpoints.
///
/// # Errors
/// Those of reading.
pub async fn same_sources(a: &dyn Source, b: &dyn Source) -> Result<bool, Error> {
    let size = a.meta().size;
    if size != b.meta().size {
        return Ok(false);
    }
    let mut at = 0;
    while at < size {
        let len = (size - at).min(u64::from(a.chunk().min(b.chunk()))) as u32;
        let (x, y) = futures_util::future::try_join(a.read(at, len), b.read(at, len)).await?;
        if x != y || x.is_empty() {
            return Ok(false);
        }
        at += x.len() as u64;
    }
    Ok(true)
}

/// The type of the filesystem that `path` lies on.
pub fn filesystem(path: &Path) -> String {
    use dhow_sys::open;
    let magic = File::open(path).ok().and_then(|f| open::statfs(&f).ok()).map_or(0, |s| s.magic);
    match magic {
        open::EXT4_MAGIC => "ext4".into(),
        open::XFS_MAGIC => "xfs".into(),
        open::BTRFS_MAGIC => "btrfs".into(),
        open::TMPFS_MAGIC => "tmpfs".into(),
        other => format!("{other:#x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_made_and_compared() {
        let dir = crate::output::temporary_dir(&std::env::temp_dir(), "dhow-test").unwrap();
        let (a, b) = (dir.join("a"), dir.join("b"));
        make(&a, (9 << 20) + 5, true).unwrap();
        make(&b, (9 << 20) + 5, true).unwrap();
        assert!(same(&a, &b).unwrap());
        File::options().write(true).open(&b).unwrap().write_all_at(b"x", 7 << 20).unwrap();
        assert!(!same(&a, &b).unwrap());
        make(&b, 9 << 20, false).unwrap();
        assert!(!same(&a, &b).unwrap());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
