//! Moves the bytes of a copy from another server into a file of this one.
//!
//! ```text
//!   SEEK ahead ──► pieces: data (up to one READ), holes ──► up to WINDOW at once: wait for memory and bandwidth,
//!                                                            READ there, WRITE here ──► in order: the prefix grows
//! ```
//!
//! Pieces end in any order and are counted in their own, so the count is always the contiguous prefix of the range; a
//! piece after a failed one may have been written, which the protocol allows. To stop, no piece is begun, READs under
//! way are given up and WRITEs under way are waited for: when [`run`] returns nothing of it touches the file any more.
//!
//! How much is under way follows the link ([`Pace`]): READs that wait for each other on a slow one must not take so long
//! that the source counts as lost.
//!
//! Holes cost a SEEK or two each and no data: where the destination has something there it is punched out, and the
//! file grows to its length in the end. A source that does not answer SEEK, or whose file takes all the storage of its
//! length, has nothing but data.

use super::mover::{Progress, Range, Side, write_all};
use super::partners::InUse;
use super::rate::Throttle;
use super::source::{SourceConnection, SourceFailure, SourceFile};
use super::writeback::Writeback;
use crate::errmap;
use crate::shared::ServerShared;
use bytes::Bytes;
use dhow_proto::v4::Status;
use dhow_vfs::{ErrorKind, SetAttr};
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::FuturesOrdered;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Instant;

/// Pieces of one copy under way at once, at first and at most.
const FIRST_WINDOW: usize = 4;
const WINDOW: usize = 16;
/// Bytes of a piece that are never gone below.
const LEAST_PIECE: u32 = 64 << 10;
/// Bytes of one piece at most, whatever the source would give.
pub(crate) const MOST_PIECE: u32 = 1 << 20;
/// How often somebody who wants the copy to stop is looked for.
const LOOK: Duration = Duration::from_millis(20);
/// How long a slice may go on when it should end but has nothing yet.
const EMPTY_SLICE: Duration = Duration::from_secs(15);

/// The source of a copy.
pub(crate) struct Pull {
    /// The server, for what all copies share.
    pub server: Arc<ServerShared>,
    /// The connection.
    pub source: InUse,
    /// The file there.
    pub file: SourceFile,
    /// It may have holes.
    pub sparse: bool,
    /// First byte there, first byte here, bytes.
    pub range: Range,
}

/// How it ended.
#[derive(Debug)]
pub(crate) struct Pulled {
    /// Bytes of the contiguous prefix.
    pub copied: u64,
    /// The whole range, or up to the source's end.
    pub complete: bool,
    /// The source ended before the range did.
    pub short: bool,
    /// What ended it early, if that was an error.
    pub error: Option<Status>,
}

/// One piece that is done.
struct Done {
    len: u64,
    /// What its READ took, if there was one.
    took: Option<Duration>,
    /// Bytes of it that are in place, from its start.
    good: u64,
    eof: bool,
    error: Option<Fault>,
}

#[derive(Debug)]
enum Fault {
    Here(Status),
    There(SourceFailure),
}

/// Where the next data lies: a hole up to `data`, then data up to `end`.
struct Extent {
    data: u64,
    end: u64,
}

/// How many pieces are under way, and how large they are: so that no READ takes more than a part of the time after which
/// the source counts as lost.
#[derive(Debug, PartialEq, Eq)]
struct Pace {
    window: usize,
    piece: u32,
    slow: Duration,
}

impl Pace {
    /// Of pieces of `most` bytes; `timeout`: what a READ may take.
    fn new(most: u32, timeout: Duration) -> Self {
        Self { window: FIRST_WINDOW, piece: most, slow: timeout / 8 }
    }

    /// A READ took so long. One that was short of it by far lets one more be under way.
    fn learn(&mut self, took: Duration) {
        if took > self.slow {
            if self.window == 1 {
                self.piece = (self.piece / 2).max(LEAST_PIECE.min(self.piece));
            }
            self.window = (self.window / 2).max(1);
        } else if took < self.slow / 4 {
            self.window = (self.window + 1).min(WINDOW);
        }
    }
}

type Pieces<'a> = FuturesOrdered<BoxFuture<'a, Done>>;

/// What a status of the source means for the client of this server (RFC 7862 11.1.2, 15.2).
fn partner_status(status: Status) -> Status {
    match status {
        Status::NOTSUPP | Status::OP_ILLEGAL | Status::MINOR_VERS_MISMATCH => Status::PARTNER_NOTSUPP,
        Status::WRONG_TYPE | Status::ISDIR | Status::SYMLINK | Status::INVAL => Status::WRONG_TYPE,
        Status::STALE | Status::BADHANDLE | Status::FHEXPIRED | Status::NOENT => Status::STALE,
        Status::ACCESS | Status::PERM => Status::ACCESS,
        Status::DELAY | Status::GRACE | Status::LOCKED => Status::DELAY,
        Status::BAD_STATEID
        | Status::OLD_STATEID
        | Status::EXPIRED
        | Status::ADMIN_REVOKED
        | Status::OPENMODE
        | Status::PARTNER_NO_AUTH
        | Status::WRONGSEC
        | Status::WRONG_CRED => Status::PARTNER_NO_AUTH,
        _ => Status::IO,
    }
}

/// What a failure of the source is for the client: before anything was copied it may well do the work itself.
pub(crate) fn client_status(failure: &SourceFailure, copied: u64) -> Status {
    match failure {
        SourceFailure::Status(status) => partner_status(*status),
        SourceFailure::Lost(_) if copied == 0 => Status::OFFLOAD_DENIED,
        SourceFailure::Lost(_) => Status::IO,
    }
}

/// Copies until done, stopped, or failed.
pub(crate) async fn run(pull: &Pull, dst: &Side, progress: &Progress) -> Pulled {
    let before = match dst.backend.getattr(&dst.cx, &dst.handle).await {
        Ok(attr) => attr.size,
        Err(e) => return Pulled { copied: 0, complete: false, short: false, error: Some(errmap::status(&e)) },
    };
    let mut pulled = pieces(pull, dst, progress, before).await;
    // A hole at the end makes the file no longer by itself; the writes are over.
    if pull.sparse
        && pulled.copied > 0
        && let Err(e) = grow(dst, pull.range.dst_offset + pulled.copied).await
    {
        pulled.error.get_or_insert(errmap::status(&e));
        pulled.complete = false;
        // Only what the file holds was copied: a hole beyond its end is not there.
        let size = dst.backend.getattr(&dst.cx, &dst.handle).await.map_or(0, |attr| attr.size);
        pulled.copied = pulled.copied.min(size.saturating_sub(pull.range.dst_offset));
        progress.set_copied(pulled.copied);
    }
    pulled
}

async fn pieces(pull: &Pull, dst: &Side, progress: &Progress, size_before: u64) -> Pulled {
    let connection: &dyn SourceConnection = pull.source.connection().as_ref();
    let own_rate = Throttle::new(pull.server.copy().inter.bandwidth);
    let most = connection.max_read().clamp(4096, MOST_PIECE);
    let mut pace = Pace::new(most, pull.server.copy().inter.source_timeout);
    let range = &pull.range;
    let abandon = watch::Sender::new(false);
    let front = watch::Sender::new(0);
    let mut flying: Pieces<'_> = FuturesOrdered::new();
    let mut seeking: Option<BoxFuture<'_, Result<Extent, SourceFailure>>> = None;
    // Offsets within the range: what is begun, and up to where it is known to be data.
    let (mut begun, mut known) = (0, if pull.sparse { 0 } else { range.len });
    let mut out = Pulled { copied: 0, complete: false, short: false, error: None };
    let mut stopping = false;
    let mut asked: Option<Instant> = None;
    let mut writeback = Writeback::new(dst, range);
    loop {
        writeback.reached(out.copied);
        while !stopping && begun < known && flying.len() < pace.window {
            let len = u32::try_from(known - begun).unwrap_or(u32::MAX).min(pace.piece);
            let (abandon, front) = (abandon.subscribe(), front.subscribe());
            let fetch = Fetch { pull, dst, own_rate: &own_rate, at: begun, len, abandon, front };
            flying.push_back(fetch.run().boxed());
            begun += u64::from(len);
        }
        if !stopping && begun == known && known < range.len && seeking.is_none() {
            seeking = Some(extent(connection, &pull.file, range.src_offset + begun).boxed());
        }
        if flying.is_empty() && seeking.is_none() {
            return out;
        }
        let found = async {
            match &mut seeking {
                Some(seeking) => seeking.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            // First, so that it is begun however fast pieces come.
            () = writeback.ended() => {}
            Some(done) = flying.next(), if !flying.is_empty() => {
                if let Some(took) = done.took {
                    pace.learn(took);
                }
                out.copied += done.good;
                // A hole is there when what follows it is, or the file has grown to its end.
                if done.took.is_some() {
                    progress.set_copied(out.copied);
                }
                front.send_replace(out.copied);
                if done.good == done.len {
                    out.complete = out.copied == range.len;
                } else {
                    // What follows is not contiguous with it, or lies beyond the source's end.
                    match done.error {
                        Some(fault) => out.error = Some(judge(pull, &fault, out.copied)),
                        None if done.eof => (out.complete, out.short) = (true, true),
                        // Given up; or nothing was read, and that was not the end.
                        None if !stopping => out.error = Some(Status::IO),
                        None => {}
                    }
                    abandon.send_replace(true);
                    drain(&mut flying).await;
                    return out;
                }
            }
            found = found => {
                seeking = None;
                match found {
                    Ok(Extent { data, end }) => {
                        let data = data.saturating_sub(range.src_offset).clamp(begun, range.len);
                        if data > begun {
                            let (at, len) = (range.dst_offset + begun, data - begun);
                            flying.push_back(hole(dst, at, len, size_before, abandon.subscribe()).boxed());
                            begun = data;
                        }
                        known = end.saturating_sub(range.src_offset).clamp(data, range.len);
                    }
                    Err(failure) => {
                        // In its turn, after the READs under way.
                        let error = Some(Fault::There(failure));
                        let failed = Done { len: range.len - begun, took: None, good: 0, eof: false, error };
                        flying.push_back(std::future::ready(failed).boxed());
                        begun = range.len;
                        known = range.len;
                    }
                }
            }
            () = tokio::time::sleep(LOOK) => {}
        }
        if progress.stopped() && !stopping {
            let since = *asked.get_or_insert_with(Instant::now);
            let cancelled = progress.cancelled();
            // A slice that ends before its first piece would tell the client that the source has ended.
            if cancelled || out.copied > 0 || since.elapsed() > EMPTY_SLICE {
                if out.copied == 0 && !cancelled {
                    out.error = Some(Status::DELAY);
                }
                stopping = true;
                seeking = None;
                abandon.send_replace(true);
            }
        }
    }
}

async fn drain(flying: &mut Pieces<'_>) {
    while flying.next().await.is_some() {}
}

/// Logs a fault, gives a dead connection up, and says what the client is told.
fn judge(pull: &Pull, fault: &Fault, copied: u64) -> Status {
    match fault {
        Fault::Here(status) => *status,
        Fault::There(failure) => {
            tracing::debug!(?failure, copied, "a copy failed at its source");
            if let SourceFailure::Lost(why) = failure {
                tracing::info!(source = ?pull.source.connection(), %why, "lost the source of a copy");
                pull.source.broken();
            }
            client_status(failure, copied)
        }
    }
}

/// Where data lies from `at` on. A source that cannot tell has nothing but data.
async fn extent(source: &dyn SourceConnection, file: &SourceFile, at: u64) -> Result<Extent, SourceFailure> {
    // Mostly there is data at once: ask for its end in the same round trip.
    let (data, hole) = tokio::join!(source.seek(file, at, false), source.seek(file, at, true));
    let data = match data {
        Ok(Some(data)) => data.max(at),
        // A hole up to the end.
        Ok(None) => return Ok(Extent { data: u64::MAX, end: u64::MAX }),
        Err(SourceFailure::Lost(why)) => return Err(SourceFailure::Lost(why)),
        // Whatever is wrong with the file or the stateid shows with READ.
        Err(SourceFailure::Status(_)) => return Ok(Extent { data: at, end: u64::MAX }),
    };
    let hole = if data > at { source.seek(file, data, true).await } else { hole };
    match hole {
        Ok(end) => Ok(Extent { data, end: end.unwrap_or(u64::MAX).max(data.saturating_add(1)) }),
        Err(SourceFailure::Lost(why)) => Err(SourceFailure::Lost(why)),
        Err(SourceFailure::Status(_)) => Ok(Extent { data, end: u64::MAX }),
    }
}

/// One piece of data.
struct Fetch<'a> {
    pull: &'a Pull,
    dst: &'a Side,
    own_rate: &'a Throttle,
    /// Offset within the range.
    at: u64,
    len: u32,
    abandon: watch::Receiver<bool>,
    /// Up to where the range is done: the piece that begins there is the one that all others wait for.
    front: watch::Receiver<u64>,
}

impl Fetch<'_> {
    async fn run(mut self) -> Done {
        let mut done = Done { len: self.len.into(), took: None, good: 0, eof: false, error: None };
        let mut abandon = self.abandon.clone();
        let _room = tokio::select! {
            biased;
            _ = abandon.wait_for(|a| *a) => return done,
            room = self.room() => room,
        };
        while done.good < done.len {
            let want = u32::try_from(done.len - done.good).unwrap_or(self.len);
            let from = self.pull.range.src_offset + self.at + done.good;
            let since = Instant::now();
            let read = tokio::select! {
                biased;
                _ = self.abandon.wait_for(|a| *a) => return done,
                read = self.pull.source.connection().read(&self.pull.file, from, want) => read,
            };
            let read = match read {
                Ok(read) => read,
                Err(failure) => {
                    done.error = Some(Fault::There(failure));
                    return done;
                }
            };
            done.took = done.took.max(Some(since.elapsed()));
            // More than was asked for is not to be believed.
            let data: Bytes = read.data.slice(..read.data.len().min(want as usize));
            done.eof = read.eof;
            if data.is_empty() {
                return done;
            }
            match write_all(self.dst, self.pull.range.dst_offset + self.at + done.good, data).await {
                Ok(n) => {
                    done.good += n;
                    self.pull.server.metrics.inter.bytes.fetch_add(n, Relaxed);
                }
                Err(e) => {
                    done.error = Some(Fault::Here(errmap::status(&e)));
                    return done;
                }
            }
            if done.eof {
                return done;
            }
        }
        done
    }

    /// Waits for memory and bandwidth.
    async fn room(&self) -> Option<OwnedSemaphorePermit> {
        let partners = &self.pull.server.partners;
        let mut front = self.front.clone();
        let first = async {
            // An error means that nobody waits for this piece any more.
            let _ = front.wait_for(|done| *done >= self.at).await;
        };
        let room = partners.room(self.len, first).await;
        self.own_rate.pass(self.len.into()).await;
        partners.total.pass(self.len.into()).await;
        room
    }
}

/// A hole: what the destination had there goes; its size stays.
async fn hole(dst: &Side, offset: u64, len: u64, size_before: u64, abandon: watch::Receiver<bool>) -> Done {
    let mut done = Done { len, took: None, good: len, eof: false, error: None };
    let there = size_before.saturating_sub(offset).min(len);
    if there == 0 {
        return done;
    }
    let punched = match dst.backend.deallocate(&dst.cx, dst.io(), offset, there).await {
        Err(e) if e.kind() == ErrorKind::NotSupported => zeros(dst, offset, there, &abandon).await,
        other => other.map(|()| there),
    };
    match punched {
        Ok(zeroed) if zeroed < there => done.good = zeroed,
        Ok(_) => {}
        Err(e) => (done.good, done.error) = (0, Some(Fault::Here(errmap::status(&e)))),
    }
    done
}

/// Writes zeros, until done or given up; how many.
async fn zeros(dst: &Side, offset: u64, len: u64, abandon: &watch::Receiver<bool>) -> Result<u64, dhow_vfs::Error> {
    let block = Bytes::from(vec![0; usize::try_from(len.min(1 << 20)).unwrap_or(1 << 20)]);
    let mut at = 0;
    while at < len && !*abandon.borrow() {
        let n = usize::try_from(len - at).unwrap_or(usize::MAX).min(block.len());
        at += write_all(dst, offset + at, block.slice(..n)).await?;
    }
    Ok(at)
}

async fn grow(dst: &Side, to: u64) -> Result<(), dhow_vfs::Error> {
    if dst.backend.getattr(&dst.cx, &dst.handle).await?.size < to {
        let set = SetAttr { size: Some(to), ..SetAttr::default() };
        dst.backend.setattr(&dst.cx, &dst.handle, dst.open.as_ref(), &set).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u32 = 1 << 20;

    /// What is under way over a link of so many bytes per second, when it has settled.
    fn settled(rate: f64, timeout: Duration) -> (Pace, Duration) {
        let mut pace = Pace::new(MIB, timeout);
        let mut took = Duration::ZERO;
        for _ in 0..200 {
            // All that is under way passes before the last of it.
            took = Duration::from_secs_f64(pace.window as f64 * f64::from(pace.piece) / rate);
            pace.learn(took);
        }
        (pace, took)
    }

    #[test]
    fn a_slow_link_gets_less_to_carry_at_once() {
        let minute = Duration::from_secs(60);
        assert_eq!(settled(1e9, minute).0, Pace { window: WINDOW, piece: MIB, slow: minute / 8 });
        for rate in [1e7, 1e6, 1e5, 1e4] {
            let (pace, took) = settled(rate, minute);
            assert!(took < minute / 4, "{rate} bytes per second: {took:?} {pace:?}");
            assert!(pace.window >= 1 && pace.piece >= LEAST_PIECE);
        }
        // Not even the smallest piece fits: then it is as it is.
        let (pace, _) = settled(100.0, minute);
        assert_eq!((pace.window, pace.piece), (1, LEAST_PIECE));
        let tiny = Pace::new(4096, minute);
        let mut slow = Pace::new(4096, minute);
        (0..50).for_each(|_| slow.learn(minute));
        assert_eq!((slow.window, slow.piece), (1, tiny.piece));
    }
}
