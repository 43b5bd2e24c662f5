//! Bytes through this process: many reads and writes in flight, holes kept, memory bounded.

use crate::endpoint::{Sink, Source};
use crate::progress::Progress;
use crate::{Error, Result};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesOrdered, FuturesUnordered, StreamExt};
use std::ops::Range;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes in flight of one file: 16 pieces of 1 MiB.
pub const WINDOW: u64 = 16 << 20;

/// The pieces of a file's data, extent by extent.
struct Pieces<'a> {
    source: &'a dyn Source,
    chunk: u64,
    /// What is left of the current extent.
    left: Range<u64>,
}

impl<'a> Pieces<'a> {
    async fn next(mut self) -> Result<Step<'a>> {
        while self.left.is_empty() {
            match self.source.next_data(self.left.end).await? {
                Some(range) => self.left = range,
                None => return Ok(Step::Ended),
            }
        }
        let end = self.left.end.min(self.left.start.saturating_add(self.chunk));
        let piece = self.left.start..end;
        self.left.start = end;
        Ok(Step::Found(self, piece))
    }
}

/// What one of the concurrent steps of [`pump`] came to.
enum Step<'a> {
    /// The next piece of data.
    Found(Pieces<'a>, Range<u64>),
    /// No data follows.
    Ended,
    /// Of this piece so many bytes were there, and are written.
    Moved(Range<u64>, u64),
}

/// Copies the data of `source` into `sink`, which is empty. Returns the size of the result.
///
/// A piece is read and then written, each by one call; as many pieces as [`WINDOW`] holds are under way at once, and
/// the next extent is looked for meanwhile. `apart`: the two are in different places, with a link to each.
pub(crate) async fn pump<'a>(
    source: &'a dyn Source,
    sink: &'a dyn Sink,
    apart: bool,
    progress: &'a Progress,
) -> Result<u64> {
    let size = source.meta().size;
    let chunk = piece(u64::from(source.chunk().min(sink.chunk()).max(4096)), size, apart);
    let depth = depth(chunk);
    let mut running: FuturesUnordered<BoxFuture<'a, Result<Step<'a>>>> = FuturesUnordered::new();
    let mut idle = Some(Pieces { source, chunk, left: 0..0 });
    let mut written = 0;
    // The file became shorter while it was read: what is there is what is copied.
    let mut short = false;
    loop {
        if running.len() < depth
            && !short
            && let Some(pieces) = idle.take()
        {
            running.push(Box::pin(pieces.next()));
        }
        let Some(step) = running.next().await else { break };
        match step? {
            Step::Found(pieces, piece) => {
                idle = Some(pieces);
                running.push(Box::pin(move_piece(source, sink, piece)));
            }
            Step::Ended => {}
            Step::Moved(piece, moved) => {
                progress.moved(moved);
                if moved > 0 {
                    written = written.max(piece.start + moved);
                }
                short |= moved < piece.end - piece.start;
            }
        }
    }
    if short {
        return Ok(written);
    }
    if written < size {
        // A hole at the end.
        sink.set_size(size).await?;
    }
    Ok(written.max(size))
}

/// Parts that a file is cut into at least when it goes from one link to another.
const PARTS: u64 = 128;
/// The smallest piece that is made to that end.
const LEAST_PIECE: u64 = 32 << 10;

/// Bytes of a piece, `chunk` at most. A piece is sent when it has come whole, so of two links one is idle for as long
/// as a piece takes, at the start and at the end: of a small file, pieces should be small. Within one place there is
/// one link, and nothing is gained for the calls.
fn piece(chunk: u64, size: u64, apart: bool) -> u64 {
    if !apart {
        return chunk;
    }
    (size / PARTS).next_power_of_two().max(LEAST_PIECE).min(chunk)
}

/// How many pieces are under way at once.
fn depth(chunk: u64) -> usize {
    usize::try_from(WINDOW / chunk.max(1)).unwrap_or(1).clamp(8, 256)
}

async fn move_piece<'a>(source: &'a dyn Source, sink: &'a dyn Sink, piece: Range<u64>) -> Result<Step<'a>> {
    let mut at = piece.start;
    while at < piece.end {
        // A piece is a chunk at most, and a chunk is a `u32`.
        let len = u32::try_from(piece.end - at).unwrap_or(u32::MAX);
        let data = source.read(at, len).await?;
        if data.is_empty() {
            break;
        }
        let n = data.len() as u64;
        sink.write(at, data).await?;
        at += n;
    }
    let moved = at - piece.start;
    Ok(Step::Moved(piece, moved))
}

/// A stream of bytes to be cut into pieces.
struct Input<'a> {
    reader: &'a mut (dyn AsyncRead + Send + Unpin),
    place: &'a str,
    chunk: usize,
    offset: u64,
}

enum FillStep<'a> {
    Read(Input<'a>, Bytes),
    Written(u64),
}

impl<'a> Input<'a> {
    async fn next(mut self) -> Result<FillStep<'a>> {
        let mut buf = Vec::with_capacity(self.chunk);
        let mut limited = (&mut *self.reader).take(self.chunk as u64);
        limited.read_to_end(&mut buf).await.map_err(|e| Error::io(&e, self.place))?;
        self.offset += buf.len() as u64;
        Ok(FillStep::Read(self, Bytes::from(buf)))
    }
}

/// Writes what `input` yields, up to its end, into `sink`. Returns the bytes.
///
/// # Errors
/// The first of either side; an error of `input` names `place`.
pub async fn fill<'a>(
    input: &'a mut (dyn AsyncRead + Send + Unpin),
    sink: &'a dyn Sink,
    place: &'a str,
    progress: &Progress,
) -> Result<u64> {
    let chunk = sink.chunk().max(4096) as usize;
    let depth = depth(chunk as u64);
    let mut running: FuturesUnordered<BoxFuture<'a, Result<FillStep<'a>>>> = FuturesUnordered::new();
    let mut idle = Some(Input { reader: input, place, chunk, offset: 0 });
    let mut total = 0;
    loop {
        if running.len() < depth
            && let Some(input) = idle.take()
        {
            running.push(Box::pin(input.next()));
        }
        let Some(step) = running.next().await else { break };
        match step? {
            FillStep::Read(input, data) => {
                let n = data.len() as u64;
                let at = input.offset - n;
                // A short piece is the last.
                if data.len() == chunk {
                    idle = Some(input);
                }
                if n > 0 {
                    running.push(Box::pin(async move {
                        sink.write(at, data).await?;
                        Ok(FillStep::Written(n))
                    }));
                }
            }
            FillStep::Written(n) => {
                total += n;
                progress.moved(n);
            }
        }
    }
    Ok(total)
}

/// Writes the whole of `source` to `output`, in order, reading ahead. Returns the bytes.
pub async fn drain(
    source: &dyn Source,
    output: &mut (dyn AsyncWrite + Send + Unpin),
    place: &str,
    progress: &Progress,
) -> Result<u64> {
    let chunk = source.chunk().max(4096);
    let depth = depth(u64::from(chunk));
    let size = source.meta().size;
    let mut running = FuturesOrdered::new();
    let mut next = 0u64;
    let mut total = 0u64;
    loop {
        // One piece at least: a file of size 0 (as in /proc) may have content all the same.
        while running.len() < depth && (next < size || next == 0) {
            running.push_back(source.read(next, chunk));
            next += u64::from(chunk);
        }
        let Some(data) = running.next().await else { break };
        let data = data?;
        output.write_all(&data).await.map_err(|e| Error::io(&e, place))?;
        total += data.len() as u64;
        progress.moved(data.len() as u64);
        if data.len() < chunk as usize {
            break;
        }
    }
    output.flush().await.map_err(|e| Error::io(&e, place))?;
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_files_go_from_link_to_link_in_small_pieces() {
        const MIB: u64 = 1 << 20;
        assert_eq!(piece(MIB, 4 * MIB, true), MIB / 32);
        assert_eq!(piece(MIB, 32_000_000, true), MIB / 4);
        assert_eq!(piece(MIB, 128 * MIB, true), MIB);
        assert_eq!(piece(MIB, u64::MAX >> 1, true), MIB);
        assert_eq!(piece(MIB, 4 * MIB, false), MIB);
        assert_eq!(piece(8 << 10, 4 * MIB, true), 8 << 10, "never more than the servers take");
        assert_eq!(piece(4096, 0, true), 4096);
    }
}
