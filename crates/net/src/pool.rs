//! Page-aligned receive buffers that are used again.

use parking_lot::Mutex;
use std::sync::Arc;

/// Alignment of payloads in bytes.
pub const PAGE: usize = 4096;

/// Smallest class of buffers, as a power of two.
const MIN_SHIFT: u32 = 15;
/// Largest class that is kept.
const MAX_SHIFT: u32 = 24;
/// Beyond the power of two: headers before a payload of that size, and the shift that aligns it.
const SLACK: usize = 4 * PAGE;

#[derive(Debug, Default)]
struct Free {
    classes: [Vec<Vec<u8>>; (MAX_SHIFT - MIN_SHIFT + 1) as usize],
    bytes: usize,
}

/// A pool of buffers in size classes. Cheap to clone; clones share the pool.
#[derive(Clone, Debug)]
pub struct BufPool {
    free: Arc<Mutex<Free>>,
    keep: usize,
}

impl BufPool {
    /// Keeps at most `keep` bytes of unused buffers.
    pub fn new(keep: usize) -> Self {
        Self { free: Arc::default(), keep }
    }

    /// A buffer of `len` bytes that starts on a page boundary. Its content is left over from earlier use.
    pub fn get(&self, len: usize) -> PooledBuf {
        let class = class_of(len);
        let reused = {
            let mut free = self.free.lock();
            let got = class.and_then(|c| free.classes.get_mut(c)).and_then(Vec::pop);
            free.bytes -= got.as_ref().map_or(0, Vec::len);
            got
        };
        let size = class.map_or(len, |c| (1usize << (c as u32 + MIN_SHIFT)) + SLACK) + PAGE;
        let mem = reused.unwrap_or_else(|| vec![0; size]);
        let start = mem.as_ptr().align_offset(PAGE).min(PAGE);
        PooledBuf { mem, start, len, class, pool: self.clone() }
    }

    /// Bytes of unused buffers kept now.
    pub fn kept(&self) -> usize {
        self.free.lock().bytes
    }
}

fn class_of(len: usize) -> Option<usize> {
    let shift = len.saturating_sub(SLACK).max(1).next_power_of_two().trailing_zeros().max(MIN_SHIFT);
    (shift <= MAX_SHIFT).then_some((shift - MIN_SHIFT) as usize)
}

/// A buffer of a [`BufPool`]; goes back there on drop.
#[derive(Debug)]
pub struct PooledBuf {
    mem: Vec<u8>,
    start: usize,
    len: usize,
    class: Option<usize>,
    pool: BufPool,
}

impl AsRef<[u8]> for PooledBuf {
    fn as_ref(&self) -> &[u8] {
        self.mem.get(self.start..self.start + self.len).unwrap_or_default()
    }
}

impl AsMut<[u8]> for PooledBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        self.mem.get_mut(self.start..self.start + self.len).unwrap_or_default()
    }
}

impl Drop for PooledBuf {
    fn drop(&mut self) {
        let mem = std::mem::take(&mut self.mem);
        let mut free = self.pool.free.lock();
        if free.bytes + mem.len() > self.pool.keep {
            drop(free);
            return;
        }
        let size = mem.len();
        if let Some(class) = self.class.and_then(|c| free.classes.get_mut(c)) {
            class.push(mem);
            free.bytes += size;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_reused_and_bounded() {
        let pool = BufPool::new(3 << 20);
        for len in [1, 4096, 40_000, (1 << 20) + 9000, 50 << 20] {
            let b = pool.get(len);
            assert_eq!(b.as_ref().len(), len);
            assert_eq!(b.as_ref().as_ptr().align_offset(PAGE), 0);
        }
        assert!(pool.kept() <= 3 << 20 && pool.kept() > 1 << 20);
        let (a, b, c) = (pool.get(1 << 20), pool.get(1 << 20), pool.get(1 << 20));
        drop((a, b, c));
        assert!(pool.kept() <= 3 << 20);
    }
}
