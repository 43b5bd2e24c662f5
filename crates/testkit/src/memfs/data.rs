//! Sparse content of a file: blocks that are there, and holes between them.

use bytes::{Bytes, BytesMut};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Granularity of holes and of clones, bytes.
pub const BLOCK: u64 = 4096;

type Block = Arc<[u8; BLOCK as usize]>;

/// Content of one file. A clone shares blocks and copies one only when it is written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Data {
    /// Size in bytes.
    pub size: u64,
    blocks: BTreeMap<u64, Block>,
}

/// The parts of `offset..end` that lie in one block each: (block, start in it, bytes).
fn pieces(offset: u64, end: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (block, start) = (at / BLOCK, at % BLOCK);
        let len = (BLOCK - start).min(end - at);
        at += len;
        Some((block, start as usize, len as usize))
    })
}

impl Data {
    /// Bytes of storage in use.
    pub fn used(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK
    }

    /// Blocks that a write of `offset..end` would add.
    pub fn would_add(&self, offset: u64, end: u64) -> u64 {
        if offset >= end {
            return 0;
        }
        let (first, last) = (offset / BLOCK, (end - 1) / BLOCK);
        (last - first + 1) - self.blocks.range(first..=last).count() as u64
    }

    /// Up to `len` bytes from `offset`, cut at the end of the file.
    pub fn read(&self, offset: u64, len: u64) -> Bytes {
        let end = offset.saturating_add(len).min(self.size);
        let mut out = BytesMut::with_capacity(end.saturating_sub(offset) as usize);
        for (block, start, len) in pieces(offset, end) {
            match self.blocks.get(&block) {
                Some(b) => out.extend_from_slice(&b[start..start + len]),
                None => out.resize(out.len() + len, 0),
            }
        }
        out.freeze()
    }

    /// Writes `data` at `offset`.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let mut rest = data;
        for (block, start, len) in pieces(offset, offset + data.len() as u64) {
            let (now, later) = rest.split_at(len);
            let b = self.blocks.entry(block).or_insert_with(|| Arc::new([0; BLOCK as usize]));
            Arc::make_mut(b)[start..start + len].copy_from_slice(now);
            rest = later;
        }
        if !data.is_empty() {
            self.size = self.size.max(offset + data.len() as u64);
        }
    }

    /// Makes `offset..end` a hole where whole blocks allow, and zero elsewhere. The size stays.
    pub fn punch(&mut self, offset: u64, end: u64) {
        let touched: Vec<u64> = match end.checked_sub(1) {
            Some(last) if offset < end => self.blocks.range(offset / BLOCK..=last / BLOCK).map(|(&n, _)| n).collect(),
            _ => return,
        };
        for n in touched {
            let from = (n * BLOCK).max(offset) - n * BLOCK;
            let to = ((n + 1) * BLOCK).min(end) - n * BLOCK;
            if from == 0 && (to == BLOCK || n * BLOCK + to >= self.size) {
                self.blocks.remove(&n);
            } else if let Some(b) = self.blocks.get_mut(&n) {
                Arc::make_mut(b)[from as usize..to as usize].fill(0);
            }
        }
    }

    /// Sets the size; what lay beyond it is gone, also for a later growth.
    pub fn resize(&mut self, size: u64) {
        if size < self.size {
            let old = self.size;
            self.size = size;
            self.punch(size, old.next_multiple_of(BLOCK));
        }
        self.size = size;
    }

    /// Gives every block of `offset..end` storage, and the file at least the size `end`.
    pub fn allocate(&mut self, offset: u64, end: u64) {
        for (block, ..) in pieces(offset, end) {
            self.blocks.entry(block).or_insert_with(|| Arc::new([0; BLOCK as usize]));
        }
        self.size = self.size.max(end);
    }

    /// The next byte of data at or after `offset` and below the size.
    pub fn next_data(&self, offset: u64) -> Option<u64> {
        let (&n, _) = self.blocks.range(offset / BLOCK..).next()?;
        Some((n * BLOCK).max(offset)).filter(|&o| o < self.size)
    }

    /// The next byte of a hole at or after `offset`; the size, if there is none before.
    pub fn next_hole(&self, offset: u64) -> u64 {
        let mut n = offset / BLOCK;
        while self.blocks.contains_key(&n) {
            n += 1;
        }
        (n * BLOCK).max(offset).min(self.size)
    }

    /// Makes `len` bytes at `to` what they are at `from` in `src`, holes included, and stops after about `work` bytes
    /// of data. Says how many bytes are right.
    pub fn copy_from(&mut self, src: &Self, from: u64, to: u64, len: u64, work: u64) -> u64 {
        let len = len.min(src.size.saturating_sub(from));
        let (mut done, mut worked) = (0, 0);
        while done < len && (worked < work || worked == 0) {
            let at = from + done;
            let data = src.next_data(at).unwrap_or(u64::MAX).min(from + len);
            if data > at {
                self.punch(to + done, to + (data - from));
                done = data - from;
            } else {
                let step = (BLOCK - at % BLOCK).min(len - done);
                self.write(to + done, &src.read(at, step));
                done += step;
                worked += step;
            }
            self.size = self.size.max(to + done);
        }
        done
    }

    /// Shares whole blocks with `src`: all three numbers are multiples of [`BLOCK`], but for `len` at the end of `src`.
    pub fn share_from(&mut self, src: &Self, from: u64, to: u64, len: u64) {
        self.punch(to, to + len.next_multiple_of(BLOCK));
        let shared: Vec<(u64, Block)> =
            src.blocks.range(from / BLOCK..(from + len).div_ceil(BLOCK)).map(|(&n, b)| (n, b.clone())).collect();
        for (n, b) in shared {
            self.blocks.insert(n - from / BLOCK + to / BLOCK, b);
        }
        self.size = self.size.max(to + len);
    }

    /// Takes over the blocks of `live` that touch `offset..end`, and as much of its size.
    pub fn sync_from(&mut self, live: &Self, offset: u64, end: u64) {
        if offset < end {
            let (first, last) = (offset / BLOCK, (end - 1) / BLOCK);
            let gone: Vec<u64> = self.blocks.range(first..=last).map(|(&n, _)| n).collect();
            for n in gone {
                self.blocks.remove(&n);
            }
            for (&n, b) in live.blocks.range(first..=last) {
                self.blocks.insert(n, b.clone());
            }
        }
        self.size = if end >= live.size { live.size } else { self.size.max(end) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_and_data_are_found() {
        let mut d = Data::default();
        d.write(3 * BLOCK + 10, b"x");
        assert_eq!(d.next_data(0), Some(3 * BLOCK));
        assert_eq!(d.next_hole(0), 0);
        assert_eq!(d.next_hole(3 * BLOCK), d.size);
        assert_eq!(d.next_data(d.size), None);
        assert_eq!(d.read(3 * BLOCK + 9, 100).as_ref(), b"\0x");
        assert_eq!(d.used(), BLOCK);
    }

    #[test]
    fn shrinking_forgets_what_lay_beyond() {
        let mut d = Data::default();
        d.write(0, &[7; 10_000]);
        d.resize(5000);
        d.resize(10_000);
        assert_eq!(d.read(4999, 3).as_ref(), &[7, 0, 0]);
        assert!(d.read(5000, 5000).iter().all(|&b| b == 0));
    }

    #[test]
    fn a_copy_stops_after_its_work_but_passes_holes() {
        let mut src = Data::default();
        src.write(0, &[1; BLOCK as usize]);
        src.write(1000 * BLOCK, &[2; 2 * BLOCK as usize]);
        let mut dst = Data::default();
        dst.write(0, &[9; 20 * BLOCK as usize]);
        let done = dst.copy_from(&src, 0, 0, u64::MAX, 2 * BLOCK);
        assert_eq!(done, 1001 * BLOCK);
        assert_eq!(dst.read(BLOCK, 19 * BLOCK).iter().filter(|&&b| b != 0).count(), 0, "old data opposite a hole");
        assert_eq!(dst.used(), 2 * BLOCK);
    }
}
