//! Has the destination of a copy written out while the copy runs, so that making it durable at the end does not begin
//! with all of it still in memory: the storage works beside the link, or beside the copying.
//!
//! One call is under way at most, and takes all that has been copied since the last: storage that is slower than the
//! copy gets few large calls. It begins with [`STEP`] bytes, so that short copies have none of it. Nobody waits for a
//! call: when the copy ends it is left to itself, and the commit waits for the storage as it must anyhow. Failures are
//! the commit's to tell.

use super::mover::{Range, Side};
use futures_util::future::{BoxFuture, FutureExt};

/// Bytes that must have been copied since the last call.
pub(super) const STEP: u64 = 8 << 20;

/// Writes out the contiguous prefix of one copy.
pub(super) struct Writeback<'a> {
    dst: &'a Side,
    /// Where the copy begins in the destination.
    offset: u64,
    /// Bytes of the prefix for which it was asked already.
    asked: u64,
    under_way: Option<BoxFuture<'a, ()>>,
    off: bool,
}

impl<'a> Writeback<'a> {
    pub(super) fn new(dst: &'a Side, range: &Range) -> Self {
        Self { dst, offset: range.dst_offset, asked: 0, under_way: None, off: !range.write_out }
    }

    /// The prefix has `copied` bytes now.
    pub(super) fn reached(&mut self, copied: u64) {
        let new = copied.saturating_sub(self.asked);
        if self.off || self.under_way.is_some() || new < STEP {
            return;
        }
        let (dst, at) = (self.dst, self.offset + self.asked);
        self.asked = copied;
        self.under_way = Some(async move { dst.backend.start_writeback(&dst.cx, dst.io(), at, new).await }.boxed());
    }

    /// Does `work` with the call under way beside it.
    pub(super) async fn beside<T>(&mut self, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                // First, so that it is begun however fast the work is done.
                () = self.ended() => {}
                done = &mut work => return done,
            }
        }
    }

    /// Ends when the call under way does; never, if there is none. Dropping the future loses nothing.
    pub(super) async fn ended(&mut self) {
        match &mut self.under_way {
            Some(call) => call.await,
            None => std::future::pending().await,
        }
        self.under_way = None;
    }
}
