//! Sends records: a queue, written with as few system calls as may be.
//!
//! Whoever sends pushes to the queue and then, if nobody is writing, writes at once on its own thread; one vectored
//! write takes all that is queued. When the transport takes no more, the connection's writer task goes on.

use crate::metrics::add;
use crate::{Charge, NetShared};
use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use tokio::io::AsyncWrite;
use tokio::sync::Notify;

/// Buffers per vectored write; the kernel takes 1024, more than a few dozen gain nothing.
const SLICES: usize = 64;

/// A piece of what is to be written.
enum Piece {
    /// What is left of a record mark.
    Mark([u8; 4], u8),
    /// Data; with the last piece of a record goes its charge.
    Data { data: Bytes, _charge: Charge },
}

impl Piece {
    fn left(&self) -> &[u8] {
        match self {
            Self::Mark(mark, from) => mark.get(usize::from(*from)..).unwrap_or_default(),
            Self::Data { data, .. } => data,
        }
    }

    fn advance(&mut self, n: usize) {
        match self {
            Self::Mark(_, from) => *from += n as u8,
            Self::Data { data, .. } => data.advance(n),
        }
    }
}

/// The writing end: only its holder writes.
struct Out {
    io: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    pieces: VecDeque<Piece>,
    /// The writer task waits for the transport: nobody else may poll it, or the task's waker would be lost.
    blocked: bool,
}

/// The queue of records to be written on one connection.
pub(crate) struct WriteQueue {
    queue: Mutex<Vec<Piece>>,
    out: Mutex<Out>,
    bytes: AtomicUsize,
    high: usize,
    closed: AtomicBool,
    task: Notify,
    room: Notify,
    shared: Arc<NetShared>,
}

impl WriteQueue {
    pub(crate) fn new(io: Box<dyn AsyncWrite + Send + Unpin>, high: usize, shared: Arc<NetShared>) -> Self {
        Self {
            queue: Mutex::default(),
            out: Mutex::new(Out { io: Some(io), pieces: VecDeque::new(), blocked: false }),
            bytes: AtomicUsize::new(0),
            high,
            closed: AtomicBool::new(false),
            task: Notify::new(),
            room: Notify::new(),
            shared,
        }
    }

    /// Queues a record, and writes if nobody else does. An error means that the transport failed.
    pub(crate) fn send(&self, segments: Vec<Bytes>, charge: Charge) -> io::Result<()> {
        if self.push(segments, charge) { self.write_now() } else { Ok(()) }
    }

    /// Queues a record and leaves the writing to the writer task, which takes what else is ready by then.
    pub(crate) fn send_soon(&self, segments: Vec<Bytes>, charge: Charge) {
        if self.push(segments, charge) {
            self.task.notify_one();
        }
    }

    fn push(&self, segments: Vec<Bytes>, charge: Charge) -> bool {
        if self.closed.load(Ordering::Acquire) {
            return false;
        }
        let len: usize = segments.iter().map(Bytes::len).sum();
        self.bytes.fetch_add(len + 4, Ordering::AcqRel);
        add(&self.shared.metrics.records_out, 1);
        add(&self.shared.metrics.bytes_out, len as u64);
        {
            let mut queue = self.queue.lock();
            queue.push(Piece::Mark(dhow_rpc::record_mark(len), 0));
            let mut charge = Some(charge);
            let last = segments.len().saturating_sub(1);
            for (i, data) in segments.into_iter().enumerate() {
                let _charge = if i == last { charge.take().unwrap_or_default() } else { Charge::none() };
                queue.push(Piece::Data { data, _charge });
            }
        }
        true
    }

    /// Bytes that wait to be written.
    pub(crate) fn waiting(&self) -> usize {
        self.bytes.load(Ordering::Acquire)
    }

    /// Whether the peer is behind so far that nothing more should be asked for on its behalf.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting() > self.high && !self.closed.load(Ordering::Acquire)
    }

    /// Waits until at most `max` bytes wait, or the connection is closed.
    pub(crate) async fn drained_to(&self, max: usize) {
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            if self.waiting() <= max || self.closed.load(Ordering::Acquire) {
                return;
            }
            room.await;
        }
    }

    /// Something waits for the peer to take its replies: counts that.
    pub(crate) fn stalled(&self) {
        add(&self.shared.metrics.write_stalls, 1);
    }

    /// Waits until half of the high-water mark is free.
    pub(crate) async fn room(&self) {
        self.stalled();
        self.drained_to(self.high / 2).await;
    }

    /// Drops what waits and the transport with it.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.task.notify_one();
        self.room.notify_waiters();
        // If somebody is writing, they find `closed` set when they are done.
        self.clear_if_free();
    }

    fn clear_if_free(&self) {
        if let Some(mut out) = self.out.try_lock() {
            self.clear(&mut out);
        }
    }

    fn clear(&self, out: &mut Out) {
        out.pieces.clear();
        out.blocked = false;
        self.queue.lock().clear();
        self.bytes.store(0, Ordering::Release);
        if let Some(mut io) = out.io.take() {
            // For TCP this is a shutdown(2), which never waits.
            let _ = Pin::new(&mut io).poll_shutdown(&mut Context::from_waker(Waker::noop()));
        }
    }

    fn write_now(&self) -> io::Result<()> {
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            let Some(mut out) = self.out.try_lock() else { return Ok(()) };
            if out.blocked {
                return Ok(());
            }
            if self.flush(&mut out, &mut cx)?.is_pending() {
                out.blocked = true;
                drop(out);
                self.task.notify_one();
                return Ok(());
            }
            drop(out);
            // One who found the lock taken may have pushed after the last look at the queue, or closed.
            let closed = self.closed.load(Ordering::Acquire);
            if closed {
                self.clear_if_free();
            }
            if closed || self.queue.lock().is_empty() {
                return Ok(());
            }
        }
    }

    /// Goes on writing where senders had to stop. Ends when the connection is closed.
    pub(crate) async fn run(&self) -> io::Result<()> {
        loop {
            self.task.notified().await;
            // Tasks that are ready to run may have more to send: one write for all of them.
            tokio::task::yield_now().await;
            loop {
                poll_fn(|cx| {
                    // Held by others for as long as a system call at most: nobody holds it across a wait.
                    let mut out = self.out.lock();
                    match self.flush(&mut out, cx) {
                        Ok(done) => {
                            out.blocked = done.is_pending();
                            done.map(Ok)
                        }
                        Err(e) => Poll::Ready(Err(e)),
                    }
                })
                .await?;
                if self.closed.load(Ordering::Acquire) {
                    return Ok(());
                }
                if self.queue.lock().is_empty() {
                    break;
                }
            }
        }
    }

    /// Writes until nothing is left or the transport takes no more.
    fn flush(&self, out: &mut Out, cx: &mut Context<'_>) -> io::Result<Poll<()>> {
        loop {
            if self.closed.load(Ordering::Acquire) {
                self.clear(out);
                return Ok(Poll::Ready(()));
            }
            out.pieces.extend(self.queue.lock().drain(..));
            let Some(io) = out.io.as_mut() else { return Ok(Poll::Ready(())) };
            if out.pieces.is_empty() {
                return match Pin::new(io).poll_flush(cx) {
                    Poll::Ready(done) => done.map(Poll::Ready),
                    Poll::Pending => Ok(Poll::Pending),
                };
            }
            let mut slices = [IoSlice::new(&[]); SLICES];
            let mut count = 0;
            for (slot, piece) in slices.iter_mut().zip(&out.pieces) {
                *slot = IoSlice::new(piece.left());
                count += 1;
            }
            let slices = slices.get(..count).unwrap_or_default();
            match Pin::new(io).poll_write_vectored(cx, slices) {
                Poll::Pending => return Ok(Poll::Pending),
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(n) => {
                    let n = n?;
                    add(&self.shared.metrics.writes, 1);
                    advance(&mut out.pieces, n);
                    let before = self.bytes.fetch_sub(n, Ordering::AcqRel);
                    if before.saturating_sub(n) <= self.high / 2 {
                        self.room.notify_waiters();
                    }
                }
            }
        }
    }
}

/// Takes `n` written bytes off the front.
fn advance(pieces: &mut VecDeque<Piece>, mut n: usize) {
    while let Some(front) = pieces.front_mut() {
        let left = front.left().len();
        if left > n {
            front.advance(n);
            return;
        }
        n -= left;
        pieces.pop_front();
    }
}
