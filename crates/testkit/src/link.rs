//! [`link`]: both ends of a connection with latency and bandwidth, in one process and in tokio's time: under paused
//! time a round trip of a second costs nothing.

use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// What a link is like, the same in both directions.
#[derive(Clone, Copy, Debug)]
pub struct LinkOptions {
    /// Time from one end to the other: half a round trip.
    pub latency: Duration,
    /// Bytes in a second; 0 is no limit.
    pub bandwidth: u64,
    /// Bytes under way or unread in one direction before a writer has to wait.
    pub window: usize,
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self { latency: Duration::ZERO, bandwidth: 0, window: 4 << 20 }
    }
}

#[derive(Default)]
struct Pipe {
    /// What is under way, with the time when it arrives.
    flying: VecDeque<(Instant, Bytes)>,
    held: usize,
    /// When the last byte written so far leaves the sender.
    busy_until: Option<Instant>,
    /// The writer has shut its side down, or is gone.
    ended: bool,
    /// The reader is gone.
    deaf: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

#[derive(Default)]
struct Shared {
    pipes: [Pipe; 2],
    cut: bool,
    reset: bool,
}

impl Shared {
    fn wake(&mut self) {
        for pipe in &mut self.pipes {
            for waker in [pipe.reader.take(), pipe.writer.take()].into_iter().flatten() {
                waker.wake();
            }
        }
    }
}

/// One end.
pub struct LinkEnd {
    shared: Arc<Mutex<Shared>>,
    /// The pipe that this end writes to; it reads from the other.
    out: usize,
    options: LinkOptions,
    timer: Option<Pin<Box<Sleep>>>,
}

/// Breaks a link.
#[derive(Clone)]
pub struct LinkControl(Arc<Mutex<Shared>>);

impl LinkControl {
    /// Nothing arrives any more, in either direction, and nobody is told.
    pub fn cut(&self) {
        self.0.lock().cut = true;
    }

    /// What was under way and what comes later arrives again.
    pub fn heal(&self) {
        let mut shared = self.0.lock();
        shared.cut = false;
        shared.wake();
    }

    /// Both ends see the connection reset; what was under way is lost.
    pub fn reset(&self) {
        let mut shared = self.0.lock();
        shared.reset = true;
        shared.wake();
    }
}

/// Two ends of a connection, and what breaks it.
pub fn link(options: LinkOptions) -> (LinkEnd, LinkEnd, LinkControl) {
    let shared = Arc::new(Mutex::new(Shared::default()));
    let end = |out| LinkEnd { shared: shared.clone(), out, options, timer: None };
    (end(0), end(1), LinkControl(shared.clone()))
}

fn reset() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

impl AsyncRead for LinkEnd {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            let mut shared = this.shared.lock();
            if shared.reset {
                return Poll::Ready(Err(reset()));
            }
            let cut = shared.cut;
            let pipe = &mut shared.pipes[1 - this.out];
            let due = pipe.flying.front().map(|f| f.0);
            pipe.reader = Some(cx.waker().clone());
            match due {
                _ if cut => return Poll::Pending,
                None if pipe.ended => return Poll::Ready(Ok(())),
                None => return Poll::Pending,
                Some(due) if due <= Instant::now() => {
                    let mut read = 0;
                    while let Some((due, data)) = pipe.flying.front_mut() {
                        let n = data.len().min(buf.remaining());
                        if n == 0 || *due > Instant::now() {
                            break;
                        }
                        buf.put_slice(&data[..n]);
                        data.advance(n);
                        read += n;
                        if data.is_empty() {
                            pipe.flying.pop_front();
                        }
                    }
                    pipe.held -= read;
                    if let Some(writer) = pipe.writer.take() {
                        writer.wake();
                    }
                    return Poll::Ready(Ok(()));
                }
                Some(due) => {
                    drop(shared);
                    let timer = this.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
                    if timer.deadline() != due {
                        timer.as_mut().reset(due);
                    }
                    if timer.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    this.timer = None;
                }
            }
        }
    }
}

impl AsyncWrite for LinkEnd {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let mut shared = this.shared.lock();
        if shared.reset {
            return Poll::Ready(Err(reset()));
        }
        let options = this.options;
        let pipe = &mut shared.pipes[this.out];
        if pipe.ended || pipe.deaf {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let n = data.len().min(options.window.saturating_sub(pipe.held));
        if n == 0 && !data.is_empty() {
            pipe.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let mut leaves = Instant::now().max(pipe.busy_until.unwrap_or_else(Instant::now));
        if let Some(nanos) = (n as u64).saturating_mul(1_000_000_000).checked_div(options.bandwidth) {
            leaves += Duration::from_nanos(nanos);
        }
        pipe.busy_until = Some(leaves);
        pipe.held += n;
        pipe.flying.push_back((leaves + options.latency, Bytes::copy_from_slice(&data[..n])));
        if let Some(reader) = pipe.reader.take() {
            reader.wake();
        }
        Poll::Ready(Ok(n))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut shared = self.shared.lock();
        shared.pipes[self.out].ended = true;
        shared.wake();
        Poll::Ready(Ok(()))
    }
}

impl Drop for LinkEnd {
    fn drop(&mut self) {
        let mut shared = self.shared.lock();
        shared.pipes[self.out].ended = true;
        shared.pipes[1 - self.out].deaf = true;
        shared.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test(start_paused = true)]
    async fn latency_and_bandwidth_take_their_time() {
        let latency = Duration::from_millis(100);
        let (mut a, mut b, _) = link(LinkOptions { latency, bandwidth: 1000, ..LinkOptions::default() });
        let start = Instant::now();
        a.write_all(&[1; 500]).await.unwrap();
        a.write_all(&[2; 500]).await.unwrap();
        let mut buf = [0; 500];
        b.read_exact(&mut buf).await.unwrap();
        assert_eq!((start.elapsed().as_millis() / 10, buf[499]), (60, 1));
        b.read_exact(&mut buf).await.unwrap();
        assert_eq!((start.elapsed().as_millis() / 10, buf[0]), (110, 2));
        drop(a);
        assert_eq!(b.read(&mut buf).await.unwrap(), 0);
        assert!(b.write_all(b"x").await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_cut_holds_everything_until_it_heals_and_a_reset_ends_it() {
        let (mut a, mut b, control) = link(LinkOptions::default());
        control.cut();
        a.write_all(b"late").await.unwrap();
        let mut buf = [0; 4];
        let waited = tokio::time::timeout(Duration::from_secs(3600), b.read_exact(&mut buf)).await;
        assert!(waited.is_err());
        control.heal();
        b.read_exact(&mut buf).await.unwrap();
        assert_eq!(&buf, b"late");
        control.reset();
        assert_eq!(b.read(&mut buf).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(a.write(b"x").await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_window_makes_the_writer_wait() {
        let (mut a, mut b, _) = link(LinkOptions { window: 10, ..LinkOptions::default() });
        a.write_all(&[0; 10]).await.unwrap();
        let more = tokio::time::timeout(Duration::from_secs(60), a.write_all(b"x")).await;
        assert!(more.is_err());
        let mut buf = [0; 5];
        b.read_exact(&mut buf).await.unwrap();
        a.write_all(b"x").await.unwrap();
    }
}
