//! A pool of page-aligned buffers that become [`Bytes`] without a copy.
//!
//! Buffers come in classes of size. A returned buffer waits in its class for the next user; what waits is bounded
//! in bytes, and [`AlignedPool::trim`] gives back what nobody has wanted for a while. Memory is zeroed when it is
//! first allocated and not again: a buffer from the pool holds what its last user left in it, so a user freezes
//! or sends only the part that it has itself written.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;

const ALIGN: usize = 4096;
const KIB: usize = 1024;

/// The sizes of buffers, in bytes. Longer ones are allocated to measure and never kept.
const CLASSES: [usize; 6] = [64 * KIB, 256 * KIB, 1024 * KIB, 1088 * KIB, 4096 * KIB, 4160 * KIB];

/// Memory of one buffer, aligned to a page.
struct Block {
    start: NonNull<u8>,
    size: usize,
}

// SAFETY: a block owns its memory alone, as a `Box<[u8]>` does.
unsafe impl Send for Block {}
// SAFETY: a shared block allows reading only.
unsafe impl Sync for Block {}

impl Block {
    fn layout(size: usize) -> Layout {
        // A request near the whole address space has no layout; no allocator could satisfy it either.
        match Layout::from_size_align(size.max(1), ALIGN) {
            Ok(layout) => layout,
            Err(_) => handle_alloc_error(Layout::new::<u8>()),
        }
    }

    fn new(size: usize) -> Block {
        let layout = Block::layout(size);
        // SAFETY: the layout has a size of at least 1.
        let start = unsafe { alloc_zeroed(layout) };
        match NonNull::new(start) {
            Some(start) => Block { start, size },
            None => handle_alloc_error(layout),
        }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `size` bytes from `start` on are allocated and were initialised by `alloc_zeroed`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.size) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes the access the only one.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.size) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and freed only here.
        unsafe { dealloc(self.start.as_ptr(), Block::layout(self.size)) }
    }
}

struct Idle {
    block: Block,
    since: Instant,
}

#[derive(Default)]
struct Lists {
    /// Idle buffers of each class, the last returned at the end.
    idle: [Vec<Idle>; CLASSES.len()],
    idle_bytes: usize,
    used_bytes: usize,
    allocations: u64,
    takes: u64,
}

struct Shared {
    lists: Mutex<Lists>,
    max_idle_bytes: usize,
}

impl Shared {
    fn lists(&self) -> MutexGuard<'_, Lists> {
        // No code panics with the lists half changed.
        self.lists.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn give_back(&self, block: Block) {
        let mut lists = self.lists();
        lists.used_bytes -= block.size;
        if lists.idle_bytes + block.size <= self.max_idle_bytes
            && let Some(class) = CLASSES.iter().position(|size| *size == block.size)
            && let Some(list) = lists.idle.get_mut(class)
        {
            let size = block.size;
            list.push(Idle { block, since: Instant::now() });
            lists.idle_bytes += size;
        } else {
            // The memory is freed without the lock.
            drop(lists);
            drop(block);
        }
    }
}

/// Figures of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes in buffers that wait for a user.
    pub idle_bytes: usize,
    /// Bytes in buffers that are in use.
    pub used_bytes: usize,
    /// Buffers handed out since the start.
    pub takes: u64,
    /// How many of them had to be allocated.
    pub allocations: u64,
}

/// A pool of page-aligned buffers. Clones share it.
#[derive(Clone)]
pub struct AlignedPool {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for AlignedPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AlignedPool").field("stats", &self.stats()).finish()
    }
}

impl AlignedPool {
    /// A pool that keeps up to `max_idle_bytes` in buffers that nobody uses.
    pub fn new(max_idle_bytes: usize) -> AlignedPool {
        AlignedPool { shared: Arc::new(Shared { lists: Mutex::default(), max_idle_bytes }) }
    }

    /// A buffer of `len` bytes at a page boundary. Its content is whatever its last user left.
    pub fn take(&self, len: usize) -> PooledBuf {
        let class = CLASSES.iter().position(|size| *size >= len);
        let size = class.and_then(|class| CLASSES.get(class)).copied().unwrap_or(len);
        let mut lists = self.shared.lists();
        lists.takes += 1;
        lists.used_bytes += size;
        let idle = class.and_then(|class| lists.idle.get_mut(class)).and_then(Vec::pop);
        let block = match idle {
            Some(idle) => {
                lists.idle_bytes -= size;
                idle.block
            }
            None => {
                lists.allocations += 1;
                drop(lists);
                Block::new(size)
            }
        };
        PooledBuf { block: Some(block), len, pool: self.shared.clone() }
    }

    /// Frees the buffers that have waited for `idle_for` or longer. Call it now and then.
    pub fn trim(&self, idle_for: Duration) {
        let now = Instant::now();
        let mut old = Vec::new();
        let mut lists = self.shared.lists();
        for list in &mut lists.idle {
            // The oldest stand first, since both ends of use are at the end.
            let keep = list.partition_point(|idle| now.duration_since(idle.since) >= idle_for);
            old.extend(list.drain(..keep));
        }
        lists.idle_bytes -= old.iter().map(|idle| idle.block.size).sum::<usize>();
        drop(lists);
    }

    /// The pool's figures.
    pub fn stats(&self) -> PoolStats {
        let lists = self.shared.lists();
        PoolStats {
            idle_bytes: lists.idle_bytes,
            used_bytes: lists.used_bytes,
            takes: lists.takes,
            allocations: lists.allocations,
        }
    }
}

/// A buffer from an [`AlignedPool`]; it returns there when dropped.
pub struct PooledBuf {
    /// `None` only while dropping.
    block: Option<Block>,
    len: usize,
    pool: Arc<Shared>,
}

impl PooledBuf {
    /// The number of bytes that [`PooledBuf::set_len`] can reach.
    pub fn capacity(&self) -> usize {
        self.block.as_ref().map_or(0, |block| block.size)
    }

    /// Makes the buffer shorter or longer, up to its capacity; more is cut to that.
    pub fn set_len(&mut self, len: usize) {
        self.len = len.min(self.capacity());
    }

    /// The bytes of `range` (cut to the length) as [`Bytes`], without a copy. When the last clone and slice of them
    /// is gone the buffer returns to the pool.
    pub fn freeze(self, range: Range<usize>) -> Bytes {
        let end = range.end.min(self.len);
        let start = range.start.min(end);
        if start == end {
            return Bytes::new();
        }
        Bytes::from_owner(Frozen { buf: self, range: start..end })
    }
}

impl std::fmt::Debug for PooledBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PooledBuf").field("len", &self.len).field("capacity", &self.capacity()).finish()
    }
}

impl Deref for PooledBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.block.as_ref().and_then(|block| block.bytes().get(..self.len)).unwrap_or_default()
    }
}

impl DerefMut for PooledBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        self.block.as_mut().and_then(|block| block.bytes_mut().get_mut(..len)).unwrap_or_default()
    }
}

impl Drop for PooledBuf {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.pool.give_back(block);
        }
    }
}

struct Frozen {
    buf: PooledBuf,
    range: Range<usize>,
}

impl AsRef<[u8]> for Frozen {
    fn as_ref(&self) -> &[u8] {
        self.buf.get(self.range.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_come_back() {
        let pool = AlignedPool::new(8 << 20);
        for len in [0, 1, 65_536, 65_537, 1 << 20, (1 << 20) + 1, 5 << 20] {
            let mut buf = pool.take(len);
            assert_eq!(buf.len(), len);
            assert_eq!(buf.as_ptr() as usize % 4096, 0);
            assert!(buf.capacity() >= len);
            buf.fill(7);
        }
        let stats = pool.stats();
        assert_eq!(stats.used_bytes, 0);
        // 64 KiB three times, 256 KiB, 1 MiB, 1088 KiB; the five MiB are not kept.
        assert_eq!((stats.takes, stats.allocations), (7, 5));
        assert_eq!(stats.idle_bytes, (64 + 256 + 1024 + 1088) * KIB);
    }

    #[test]
    fn idle_memory_is_bounded_and_trimmed() {
        let pool = AlignedPool::new(200 * KIB);
        let bufs: Vec<_> = (0..10).map(|_| pool.take(100)).collect();
        assert_eq!(pool.stats().used_bytes, 640 * KIB);
        drop(bufs);
        assert_eq!(pool.stats().idle_bytes, 192 * KIB);
        pool.trim(Duration::from_secs(3600));
        assert_eq!(pool.stats().idle_bytes, 192 * KIB);
        pool.trim(Duration::ZERO);
        assert_eq!(pool.stats(), PoolStats { takes: 10, allocations: 10, ..PoolStats::default() });
    }

    #[test]
    fn frozen_bytes_hold_the_buffer() {
        let pool = AlignedPool::new(1 << 20);
        let mut buf = pool.take(1000);
        buf[..5].copy_from_slice(b"hello");
        let bytes = buf.freeze(1..4);
        assert_eq!(bytes, &b"ell"[..]);
        let slice = bytes.slice(1..);
        drop(bytes);
        assert_eq!(pool.stats().used_bytes, 64 * KIB);
        assert_eq!(slice, &b"ll"[..]);
        drop(slice);
        assert_eq!(pool.stats().used_bytes, 0);
        assert_eq!(pool.take(10).freeze(5..50).len(), 5);
        assert!(pool.take(10).freeze(20..50).is_empty());
    }

    #[test]
    fn length_never_passes_the_capacity() {
        let pool = AlignedPool::new(0);
        let mut buf = pool.take(10);
        buf.set_len(1 << 30);
        assert_eq!(buf.len(), 64 * KIB);
        buf.set_len(3);
        assert_eq!(buf.len(), 3);
        drop(buf);
        assert_eq!(pool.stats().idle_bytes, 0);
    }
}
