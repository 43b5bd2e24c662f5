//! Copying from memory to memory with two processors: one thread reads ahead while the other writes.
//!
//! Between files of tmpfs `copy_file_range` spends most of its time under the destination's lock, finding pages for it,
//! and little on moving bytes; a thread that has the source's bytes ready takes the rest of the work off the writer.
//! About an eighth faster than the call in the kernel, for more processor time (docs/performance.md), so it is
//! done only for a copy that has the machine's other processors to itself as far as copies go.
//!
//! The reader lives for one call of [`copy`]. A few buffers go round between the two; either one's end is seen by the
//! other when a channel closes. What is reported as copied is what was written, from the start, without a gap.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::mpsc::sync_channel;
use std::thread::{Builder, available_parallelism};

use dhow_sys::pool::AlignedPool;
use dhow_sys::{Errno, io};

use crate::mover::write_all;

/// Bytes of one read: several fit into a processor's shared cache.
const BLOCK: usize = 512 << 10;
/// Buffers that go round.
const BLOCKS: usize = 4;
/// Shorter copies are not worth a thread.
pub(crate) const MIN: u64 = 8 << 20;

/// Whether there is a second processor to read with.
pub(crate) fn has_processor() -> bool {
    static MORE: OnceLock<bool> = OnceLock::new();
    *MORE.get_or_init(|| available_parallelism().is_ok_and(|n| n.get() > 1))
}

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Relayed {
    /// Bytes that were written from the start of the range.
    pub done: u64,
    /// What ended it before the range's end; nothing if the source has ended.
    pub error: Option<Errno>,
}

/// Copies up to `len` bytes; `None` if no thread could be had, and nothing was done.
///
/// The caller has the right to both files by their descriptors. The writes are made on the calling thread.
pub(crate) fn copy(src: &OwnedFd, from: u64, dst: &OwnedFd, to: u64, len: u64, pool: &AlignedPool) -> Option<Relayed> {
    let (give, empty) = sync_channel(BLOCKS);
    let (fill, full) = sync_channel(BLOCKS);
    for _ in 0..BLOCKS {
        // There is room for all of them.
        let _ = give.send(pool.take(BLOCK));
    }
    // The channels' ends go with this closure: the reader must see them close before it is waited for.
    std::thread::scope(move |scope| {
        let reader = move || {
            let mut done = 0;
            while done < len
                && let Ok(mut buf) = empty.recv()
            {
                let want = usize::try_from(len - done).unwrap_or(BLOCK).min(BLOCK);
                let read = io::pread(src, buf.get_mut(..want).unwrap_or_default(), from + done);
                let more = matches!(read, Ok(1..));
                done += *read.as_ref().unwrap_or(&0) as u64;
                if fill.send(read.map(|n| (buf, n))).is_err() || !more {
                    break;
                }
            }
        };
        Builder::new().name("dhow-relay".into()).spawn_scoped(scope, reader).ok()?;
        let mut done = 0;
        while let Ok(read) = full.recv() {
            let (buf, n) = match read {
                Ok(read) => read,
                Err(e) => return Some(Relayed { done, error: Some(e) }),
            };
            let (written, end) = write_all(dst, buf.get(..n).unwrap_or_default(), to + done);
            done += written as u64;
            if let Err(e) = end {
                return Some(Relayed { done, error: Some(e) });
            }
            // The reader may have ended.
            let _ = give.send(buf);
        }
        Some(Relayed { done, error: None })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, OpenOptions};
    use std::io::Read;
    use std::os::unix::fs::FileExt;

    fn source(dir: &tempfile::TempDir, len: usize) -> (std::path::PathBuf, Vec<u8>) {
        let mut data = (0..60_007u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>().repeat(len / 240_028 + 1);
        data.truncate(len);
        let path = dir.path().join("src");
        std::fs::write(&path, &data).unwrap();
        (path, data)
    }

    fn target(dir: &tempfile::TempDir) -> (std::path::PathBuf, OwnedFd) {
        let path = dir.path().join("dst");
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path).unwrap();
        (path, file.into())
    }

    #[test]
    fn ranges_of_many_blocks_at_odd_places() {
        let dir = tempfile::tempdir().unwrap();
        let pool = AlignedPool::new(1 << 20);
        let (src, data) = source(&dir, 7 * BLOCK + 1234);
        let src: OwnedFd = File::open(src).unwrap().into();
        for (from, to, len) in [(0, 0, data.len()), (3, 77, data.len() - 3), (BLOCK - 1, 0, 2), (5, 1, BLOCK)] {
            let (path, dst) = target(&dir);
            let moved = copy(&src, from as u64, &dst, to as u64, len as u64, &pool).unwrap();
            assert_eq!((moved.done, moved.error), (len as u64, None));
            let mut got = Vec::new();
            File::open(path).unwrap().read_to_end(&mut got).unwrap();
            assert!(got[..to].iter().all(|b| *b == 0) && got[to..] == data[from..from + len], "{from} {to} {len}");
        }
        // A source that is shorter than it was said to be: its end, and no error.
        let (_, dst) = target(&dir);
        let moved = copy(&src, 0, &dst, 0, u64::from(u32::MAX), &pool).unwrap();
        assert_eq!((moved.done, moved.error), (data.len() as u64, None));
    }

    /// Whoever ends first, the other ends too, and the count is that of what was written.
    #[test]
    fn errors_of_either_side_end_both() {
        let dir = tempfile::tempdir().unwrap();
        let pool = AlignedPool::new(1 << 20);
        let (path, data) = source(&dir, 20 * BLOCK);
        let len = data.len() as u64;
        let readable: OwnedFd = File::open(&path).unwrap().into();
        let moved = copy(&readable, 0, &readable, 0, len, &pool).unwrap();
        assert_eq!((moved.done, moved.error), (0, Some(Errno::BADF)), "a destination that cannot be written");
        let (_, dst) = target(&dir);
        let unreadable: OwnedFd = OpenOptions::new().write(true).open(&path).unwrap().into();
        let moved = copy(&unreadable, 0, &dst, 0, len, &pool).unwrap();
        assert_eq!((moved.done, moved.error), (0, Some(Errno::BADF)), "a source that cannot be read");
        // Past what an offset can be: the part before that is written and counted.
        let to = (i64::MAX as u64) - 3;
        let (_, dst) = target(&dir);
        let moved = copy(&readable, 0, &dst, to, len, &pool).unwrap();
        assert!(moved.error.is_some() && moved.done < len, "{moved:?}");
        let _ = File::from(dst).write_at(b"x", 0);
    }
}
