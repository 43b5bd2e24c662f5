//! A copy as a job: one task that moves the bytes, makes them durable when that was decided, and publishes how it
//! ended.
//!
//! ```text
//!            spawn                      the range is done, or an error
//!   COPY ───────────► moving ─────────────────────────────► [making durable] ──► ended
//!                       │  ▲                                                       │
//!          end_slice()  │  └── the reply says "asynchronous": nothing changes      └─► reply of COPY, or CB_OFFLOAD
//!          cancel()     ▼      for the job, only for who waits for it
//!                     ended (a prefix)
//! ```
//!
//! The job does not know whether its COPY was answered already. It starts at once; the operation waits for it up to
//! the budget, and then either turns it into an asynchronous copy by giving it a stateid, or ends it with the prefix it
//! has. So no estimate is needed of how long a copy will take, and an asynchronous copy has lost no time.
//!
//! Failures: a panic in the mover drops the sender, which a waiter sees as [`Ending`] with SERVERFAULT. If fsync fails
//! the ending says so and never claims FILE_SYNC; the backend has changed its verifier by then. If the verifier changed
//! while an unstable copy ran, the *old* one is reported, so that the client's COMMIT shows it that data may be gone.

use super::mover::{self, Progress, Range, Side};
use super::pull::{self, Pull};
use crate::errmap::status;
use dhow_proto::v4::{StableHow, Status, Verifier};
use std::sync::Arc;
use tokio::sync::watch;

/// How a copy ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// OK, or what ended it early.
    pub status: Status,
    /// Bytes of the contiguous prefix that are in the destination.
    pub copied: u64,
    /// How stable they are.
    pub committed: StableHow,
    /// The write verifier they were written under.
    pub verifier: Verifier,
}

/// When the end of a copy is made durable (`copy.commit`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CommitPolicy {
    /// When it reaches the end of the source, or (asynchronous ones) when no other copy writes to the file: then the
    /// client needs no COMMIT. Else unstable: the client sends many copies and commits once.
    #[default]
    Auto,
    /// Every copy.
    Always,
    /// None: the client commits.
    Never,
}

/// A running or ended copy.
#[derive(Clone)]
pub struct Job {
    /// Counter and stop flag.
    pub progress: Arc<Progress>,
    ending: watch::Receiver<Option<Ending>>,
}

impl Job {
    /// Starts to copy. `durable` is asked after the last byte, with whether the source's end was reached.
    pub fn spawn(src: Side, dst: Side, range: Range, durable: impl FnOnce(bool) -> bool + Send + 'static) -> Self {
        Self::start(|progress| async move {
            let before = dst.backend.write_verifier();
            let moved = mover::run(&src, &dst, &range, &progress).await;
            let failed = moved.error.as_ref().map_or(Status::OK, status);
            let end = range.src_offset + moved.copied;
            let reached_end =
                || async move { src.backend.getattr(&src.cx, &src.handle).await.is_ok_and(|attr| end >= attr.size) };
            let done = (moved.complete, moved.copied, failed);
            conclude(&dst, &range, done, reached_end(), before, durable).await
        })
    }

    /// Starts to copy from another server, whose file has `size` bytes; as [`Job::spawn`] otherwise.
    pub(crate) fn pull(pull: Pull, dst: Side, size: u64, durable: impl FnOnce(bool) -> bool + Send + 'static) -> Self {
        Self::start(move |progress| async move {
            let before = dst.backend.write_verifier();
            let pulled = pull::run(&pull, &dst, &progress).await;
            let reached_end = pulled.short || pull.range.src_offset + pulled.copied >= size;
            let done = (pulled.complete, pulled.copied, pulled.error.unwrap_or(Status::OK));
            conclude(&dst, &pull.range, done, std::future::ready(reached_end), before, durable).await
        })
    }

    fn start<F: Future<Output = Ending> + Send + 'static>(work: impl FnOnce(Arc<Progress>) -> F) -> Self {
        let progress = Arc::new(Progress::default());
        let (tx, rx) = watch::channel(None);
        let work = work(progress.clone());
        tokio::spawn(async move {
            tx.send_replace(Some(work.await));
        });
        Self { progress, ending: rx }
    }

    /// The ending, once there is one.
    pub fn ended(&self) -> Option<Ending> {
        let ending = self.ending.borrow().clone();
        // The task is gone and left nothing: it panicked.
        ending.or_else(|| self.ending.has_changed().is_err().then(|| self.broken()))
    }

    /// Waits for the ending. Dropping the future leaves the job alone.
    pub async fn wait(&mut self) -> Ending {
        match self.ending.wait_for(Option::is_some).await.map(|e| e.clone()) {
            Ok(Some(ending)) => ending,
            Ok(None) | Err(_) => self.broken(),
        }
    }

    fn broken(&self) -> Ending {
        Ending {
            status: Status::SERVERFAULT,
            copied: self.progress.copied(),
            committed: StableHow::UNSTABLE,
            verifier: Verifier::default(),
        }
    }
}

/// The ending of a copy that moved its bytes: whether all of them, how many, what went wrong.
async fn conclude(
    dst: &Side,
    range: &Range,
    (complete, copied, status_so_far): (bool, u64, Status),
    reached_end: impl Future<Output = bool>,
    before: dhow_vfs::WriteVerifier,
    durable: impl FnOnce(bool) -> bool,
) -> Ending {
    let mut ending =
        Ending { status: status_so_far, copied, committed: StableHow::UNSTABLE, verifier: Verifier(before) };
    if !complete || copied == 0 && range.len > 0 {
        return ending;
    }
    if durable(reached_end.await) {
        match mover::make_durable(dst).await {
            Ok(verifier) if verifier == before => ending.committed = StableHow::FILE_SYNC,
            // A failed fsync of somebody else meanwhile: part of this data may have been lost with it.
            Ok(_) => {}
            Err(e) => ending.status = status(&e),
        }
    }
    ending
}
