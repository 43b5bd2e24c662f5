//! Many READs or WRITEs in flight, with bounded memory.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use dhow_proto::v4::{StableHow, Verifier};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesOrdered, FuturesUnordered};

use crate::{Error, File, Result};

/// How much to keep in flight.
#[derive(Debug, Clone, Copy)]
pub struct Pipeline {
    /// Bytes asked for and not yet delivered, or sent and not yet answered. At least one chunk is always allowed.
    pub window: u64,
    /// Bytes of one READ or WRITE; cut to what the server allows.
    pub chunk: u32,
}

impl Default for Pipeline {
    /// 16 calls of 1 MiB.
    fn default() -> Self {
        Self { window: 16 << 20, chunk: 1 << 20 }
    }
}

/// The content of a range of a file, in order; made by [`File::read_stream`].
pub struct ReadStream {
    file: Arc<File>,
    /// What has not been asked for yet.
    rest: Range<u64>,
    pipeline: Pipeline,
    in_flight: u64,
    reads: FuturesOrdered<BoxFuture<'static, (u64, u32, Result<dhow_proto::v4::ops::ReadOk>)>>,
    ended: bool,
}

impl std::fmt::Debug for ReadStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadStream").field("rest", &self.rest).field("in_flight", &self.in_flight).finish()
    }
}

impl File {
    /// Reads a range with many READs in flight. The range may reach beyond the end of the file.
    ///
    /// # Errors
    ///
    /// When there is no session.
    pub async fn read_stream(self: &Arc<Self>, range: Range<u64>, pipeline: Pipeline) -> Result<ReadStream> {
        let chunk = pipeline.chunk.clamp(1, self.io_limits().await?.0);
        Ok(ReadStream {
            file: Arc::clone(self),
            rest: range,
            pipeline: Pipeline { chunk, ..pipeline },
            in_flight: 0,
            reads: FuturesOrdered::new(),
            ended: false,
        })
    }

    /// Writes with many WRITEs in flight.
    ///
    /// # Errors
    ///
    /// When there is no session.
    pub async fn write_stream(self: &Arc<Self>, pipeline: Pipeline, stable: StableHow) -> Result<WriteStream> {
        let chunk = pipeline.chunk.clamp(1, self.io_limits().await?.1);
        Ok(WriteStream {
            file: Arc::clone(self),
            pipeline: Pipeline { chunk, ..pipeline },
            stable,
            in_flight: 0,
            writes: FuturesUnordered::new(),
            unstable: None,
            written: 0,
        })
    }
}

impl ReadStream {
    /// The next piece: its offset and its data, never empty. `None` at the end of the range or of the file.
    ///
    /// # Errors
    ///
    /// The server's; the stream is then of no further use.
    pub async fn next(&mut self) -> Result<Option<(u64, Bytes)>> {
        loop {
            self.fill();
            let Some((offset, asked, read)) = self.reads.next().await else { return Ok(None) };
            self.in_flight -= u64::from(asked);
            let read = match read {
                Ok(read) => read,
                Err(e) => {
                    self.stop();
                    return Err(e);
                }
            };
            if read.eof {
                // Reads beyond it are in flight; they would return nothing.
                self.stop();
            }
            if !read.data.is_empty() {
                return Ok(Some((offset, read.data)));
            }
            if self.ended {
                return Ok(None);
            }
        }
    }

    fn stop(&mut self) {
        self.ended = true;
        self.rest.start = self.rest.end;
        self.reads.clear();
        self.in_flight = 0;
    }

    fn fill(&mut self) {
        while self.rest.start < self.rest.end && (self.in_flight == 0 || self.fits()) {
            let offset = self.rest.start;
            let count = u32::try_from(self.rest.end - offset).unwrap_or(u32::MAX).min(self.pipeline.chunk);
            self.rest.start += u64::from(count);
            self.in_flight += u64::from(count);
            let file = Arc::clone(&self.file);
            // The call runs in a task of its own as soon as it is polled once; FuturesOrdered polls all of them.
            self.reads.push_back(Box::pin(async move { (offset, count, file.read_full_at(offset, count).await) }));
        }
    }

    fn fits(&self) -> bool {
        self.in_flight + u64::from(self.pipeline.chunk) <= self.pipeline.window
    }
}

/// Writes to a file with many WRITEs in flight; made by [`File::write_stream`].
pub struct WriteStream {
    file: Arc<File>,
    pipeline: Pipeline,
    stable: StableHow,
    in_flight: u64,
    writes: FuturesUnordered<BoxFuture<'static, (u64, Result<dhow_proto::v4::ops::WriteOk>)>>,
    /// The verifier of the unstable writes so far.
    unstable: Option<Verifier>,
    written: u64,
}

impl std::fmt::Debug for WriteStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WriteStream").field("written", &self.written).field("in_flight", &self.in_flight).finish()
    }
}

impl WriteStream {
    /// Sends `data` for `offset`, waiting while the window is full. An error may belong to an earlier piece.
    ///
    /// # Errors
    ///
    /// The server's; [`Error::WritesLost`]. The stream is then of no further use.
    pub async fn push(&mut self, offset: u64, data: Bytes) -> Result<()> {
        let mut at = 0;
        while at < data.len() {
            let end = data.len().min(at + self.pipeline.chunk as usize);
            let piece = data.slice(at..end);
            let len = piece.len() as u64;
            while self.in_flight > 0 && self.in_flight + len > self.pipeline.window {
                self.one_done().await?;
            }
            self.in_flight += len;
            let (file, stable, start) = (Arc::clone(&self.file), self.stable, offset + at as u64);
            // Spawned, since nobody polls the pieces while the caller prepares the next.
            let task = tokio::spawn(async move { file.write_all_at(start, piece, stable).await });
            self.writes.push(Box::pin(async move { (len, task.await.unwrap_or(Err(Error::Closed))) }));
            at = end;
        }
        Ok(())
    }

    /// Takes the answer of one write; false when none is out. After an error nothing is out any more, so that the file
    /// can be closed.
    async fn one_done(&mut self) -> Result<bool> {
        let Some((len, wrote)) = self.writes.next().await else { return Ok(false) };
        self.in_flight -= len;
        let taken = wrote.and_then(|wrote| self.note(&wrote));
        if taken.is_err() {
            while self.writes.next().await.is_some() {}
            self.in_flight = 0;
        }
        taken.map(|()| true)
    }

    fn note(&mut self, wrote: &dhow_proto::v4::ops::WriteOk) -> Result<()> {
        self.written += u64::from(wrote.count);
        if wrote.committed == StableHow::UNSTABLE
            && self.unstable.replace(wrote.verifier).is_some_and(|before| before != wrote.verifier)
        {
            return Err(Error::WritesLost);
        }
        Ok(())
    }

    /// Waits for all writes; with `durable`, also until they are on stable storage. Returns the bytes written.
    ///
    /// # Errors
    ///
    /// The server's; [`Error::WritesLost`] when the server lost unstable data: write it all again.
    pub async fn finish(mut self, durable: bool) -> Result<u64> {
        while self.one_done().await? {}
        if let (true, Some(verifier)) = (durable, self.unstable)
            && self.file.commit(0, 0).await? != verifier
        {
            return Err(Error::WritesLost);
        }
        Ok(self.written)
    }

    /// The verifier of unstable writes that a COMMIT of your own must match; `None` when all are safe already.
    /// Meaningful after all writes were answered: see [`WriteStream::drain`].
    pub fn unstable_verifier(&self) -> Option<Verifier> {
        self.unstable
    }

    /// Waits for all writes sent so far.
    ///
    /// # Errors
    ///
    /// As [`WriteStream::push`].
    pub async fn drain(&mut self) -> Result<()> {
        while self.one_done().await? {}
        Ok(())
    }
}
