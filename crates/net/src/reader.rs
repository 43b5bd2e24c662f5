//! Receives records.

use crate::metrics::add;
use crate::{Budget, Charge, ConnOptions, NetShared, PAGE};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use dhow_rpc::record::{RecordError, RecordReader as Marks};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::Instant;

/// Given the first bytes of a record (512 or more, or all of it), finds the payload: its offset in the record and its
/// length. `None` when there is none, or when it cannot be told; only alignment depends on it.
pub type PayloadFinder = Arc<dyn Fn(&[u8]) -> Option<(usize, usize)> + Send + Sync>;

/// First read of an idle connection, and of one that receives large records: little of a payload is received into
/// the wrong place.
const HEAD: usize = 1024;
/// Bytes of a large record that the payload finder gets to see at least.
const FINDER_MIN: usize = 512;
/// Largest read when small records come quickly.
const MAX_READ: usize = 64 << 10;
/// Records above this size get a buffer of their own.
const SMALL: usize = 16 << 10;
/// Speed below which an incomplete record is not waited for, bytes per second.
const MIN_RATE: usize = 16 << 10;

/// How long a record may get on with nothing while others wait for the bytes that it holds.
const STALL: Duration = Duration::from_secs(1);

/// One record: an RPC message without its record marks.
#[derive(Debug)]
pub struct Record {
    /// The message, contiguous.
    pub bytes: Bytes,
    /// What it was charged with.
    pub charge: Charge,
}

/// Why no more records can be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The record mark was refused (too large, empty, too many fragments).
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The stream ended inside a record.
    #[error("stream ended inside a record")]
    Truncated,
    /// A record stayed incomplete for too long.
    #[error("record stayed incomplete for too long")]
    PartialTimeout,
    /// The transport failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Reads one record after another from a byte stream.
///
/// Small records are slices of a shared read buffer, so that one read serves many of them; a large one is received
/// into one page-aligned buffer of its own, shifted so that its payload begins on a page boundary.
pub struct RecordReader<R> {
    io: R,
    marks: Marks,
    buf: BytesMut,
    read_size: usize,
    budget: Budget,
    shared: Arc<NetShared>,
    max_record: usize,
    partial_timeout: Duration,
    payload: Option<PayloadFinder>,
}

/// How a peer sends a record that is charged already.
struct Pace<'a> {
    budget: &'a Budget,
    deadline: Instant,
    begun: Instant,
    received: usize,
}

impl<'a> Pace<'a> {
    fn new(budget: &'a Budget, deadline: Instant) -> Self {
        Self { budget, deadline, begun: Instant::now(), received: 0 }
    }

    /// Waits for one read: until the deadline, or, while others wait for the bytes that this record holds, for as long
    /// as it comes at [`MIN_RATE`] at least. A peer that dawdles harms only itself (case B22).
    async fn keep<T>(&mut self, read: impl Future<Output = io::Result<T>>) -> Result<T, ReadError> {
        tokio::pin!(read);
        loop {
            let seconds = usize::try_from(self.begun.elapsed().as_secs()).unwrap_or(usize::MAX);
            if self.budget.pressed() && self.received < seconds.saturating_mul(MIN_RATE) {
                return Err(ReadError::PartialTimeout);
            }
            let look = (Instant::now() + STALL).min(self.deadline);
            match tokio::time::timeout_at(look, &mut read).await {
                Ok(done) => return Ok(done?),
                Err(_) if Instant::now() >= self.deadline => return Err(ReadError::PartialTimeout),
                Err(_) => {}
            }
        }
    }
}

impl<R: AsyncRead + Unpin> RecordReader<R> {
    /// Reads from `io` under the limits of `options`.
    pub fn new(io: R, options: &ConnOptions, shared: Arc<NetShared>) -> Self {
        Self {
            io,
            marks: Marks::new(options.max_record),
            buf: BytesMut::new(),
            read_size: HEAD,
            budget: Budget::new(options.budget),
            shared,
            max_record: options.max_record,
            partial_timeout: options.partial_timeout,
            payload: options.payload.clone(),
        }
    }

    /// The next record; `None` when the stream has ended between records. Not to be called again after an error, and
    /// not cancel-safe: a dropped call may lose the place in the stream.
    ///
    /// # Errors
    /// As [`ReadError`] says; the stream is of no further use.
    pub async fn next(&mut self) -> Result<Option<Record>, ReadError> {
        let got = self.record().await;
        let m = &self.shared.metrics;
        match &got {
            Ok(Some(record)) => {
                add(&m.records_in, 1);
                add(&m.bytes_in, record.bytes.len() as u64);
            }
            Err(ReadError::Record(_)) => add(&m.bad_records, 1),
            Err(ReadError::PartialTimeout) => add(&m.partial_timeouts, 1),
            _ => {}
        }
        got
    }

    async fn record(&mut self) -> Result<Option<Record>, ReadError> {
        self.marks.restart();
        if self.buf.is_empty() && !self.read_more(1).await? {
            return Ok(None);
        }
        let len = self.header(Instant::now() + self.partial_timeout).await?;
        let deadline = Instant::now() + self.partial_timeout + Duration::from_secs((len / MIN_RATE) as u64);
        if !self.marks.is_last_fragment() {
            return self.fragments(len, deadline).await.map(Some);
        }
        if len > SMALL {
            return self.large(len, deadline).await.map(Some);
        }
        // Received first: until it is whole it takes no more than the connection's read buffer, and nobody's share.
        self.fill(len, deadline).await?;
        let charge = self.charge(len).await;
        Ok(Some(Record { bytes: self.buf.split_to(len).freeze(), charge }))
    }

    /// Takes a fragment header off the stream; returns the fragment's length.
    async fn header(&mut self, deadline: Instant) -> Result<usize, ReadError> {
        self.fill(4, deadline).await?;
        let Some(&header) = self.buf.first_chunk::<4>() else { return Err(ReadError::Truncated) };
        self.buf.advance(4);
        Ok(self.marks.header(header)?)
    }

    /// A record of one fragment in a buffer of its own.
    async fn large(&mut self, len: usize, deadline: Instant) -> Result<Record, ReadError> {
        self.read_size = HEAD;
        self.fill(len.min(FINDER_MIN), deadline).await?;
        let have = self.buf.len().min(len);
        let head = self.buf.get(..have).unwrap_or_default();
        let shift = match self.payload.as_ref().and_then(|find| find(head)) {
            Some((offset, size)) if offset < len && size >= PAGE => {
                add(&self.shared.metrics.aligned, 1);
                offset.wrapping_neg() % PAGE
            }
            _ => 0,
        };
        let charge = self.charge(len).await;
        let mut own = self.shared.pool.take(shift + len);
        let place = own.get_mut(shift..).unwrap_or_default();
        let (start, mut rest) = place.split_at_mut_checked(have).ok_or(ReadError::Truncated)?;
        self.buf.copy_to_slice(start);
        let (io, mut pace) = (&mut self.io, Pace::new(&self.shared.budget, deadline));
        while !rest.is_empty() {
            match pace.keep(io.read(rest)).await? {
                0 => return Err(ReadError::Truncated),
                n => {
                    pace.received += n;
                    rest = rest.get_mut(n..).unwrap_or_default();
                }
            }
        }
        Ok(Record { bytes: own.freeze(shift..shift + len), charge })
    }

    /// A record of several fragments: rare, so copied together. Charged with the largest size from the start, since
    /// two such records that each wait for more budget could wait for each other.
    async fn fragments(&mut self, first: usize, deadline: Instant) -> Result<Record, ReadError> {
        add(&self.shared.metrics.fragmented, 1);
        let deadline = deadline + Duration::from_secs((self.max_record / MIN_RATE) as u64);
        let charge = self.charge(self.max_record).await;
        let shared = Arc::clone(&self.shared);
        let mut pace = Pace::new(&shared.budget, deadline);
        let mut out = BytesMut::with_capacity(first.min(MAX_READ));
        let mut len = first;
        loop {
            while len > 0 {
                if self.buf.is_empty() && !pace.keep(self.read_more(1)).await? {
                    return Err(ReadError::Truncated);
                }
                let n = self.buf.len().min(len);
                pace.received += n;
                out.put((&mut self.buf).take(n));
                self.marks.received(n);
                len -= n;
            }
            if self.marks.is_last_fragment() {
                return Ok(Record { bytes: out.freeze(), charge });
            }
            while self.buf.len() < 4 {
                if !pace.keep(self.read_more(4 - self.buf.len())).await? {
                    return Err(ReadError::Truncated);
                }
            }
            len = self.header(deadline).await?;
        }
    }

    /// Has at least `n` bytes in the buffer.
    async fn fill(&mut self, n: usize, deadline: Instant) -> Result<(), ReadError> {
        while self.buf.len() < n {
            let more = self.read_more(n - self.buf.len());
            if !tokio::time::timeout_at(deadline, more).await.map_err(|_| ReadError::PartialTimeout)?? {
                return Err(ReadError::Truncated);
            }
        }
        Ok(())
    }

    /// One read into the buffer, of at least room for `want`; whether anything came.
    async fn read_more(&mut self, want: usize) -> io::Result<bool> {
        let size = self.read_size.max(want);
        if self.buf.is_empty() {
            // Lets go of a chunk that handed-out records still hold; also what keeps an idle connection small.
            self.buf = BytesMut::with_capacity(size);
        } else {
            self.buf.reserve(size);
        }
        let n = self.io.read_buf(&mut (&mut self.buf).limit(size)).await?;
        if n == size {
            self.read_size = (size * 2).clamp(HEAD, MAX_READ);
        } else if n < self.read_size / 4 {
            self.read_size = (self.read_size / 2).max(HEAD);
        }
        Ok(n > 0)
    }

    /// Charges both budgets, the connection's first.
    async fn charge(&mut self, len: usize) -> Charge {
        let all = if len > SMALL { &self.shared.budget } else { &self.shared.small_budget };
        let own = &self.budget;
        match (own.try_take(len), all.try_take(len)) {
            (Some(a), Some(b)) => return a.join(b),
            (a, b) => drop((a, b)),
        }
        add(&self.shared.metrics.budget_waits, 1);
        let first = own.take(len).await;
        first.join(all.take(len).await)
    }
}
