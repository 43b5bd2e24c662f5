//! A connection that calls and is called.

use crate::metrics::add;
use crate::writer::WriteQueue;
use crate::{Budget, Charge, ConnOptions, NetShared, ReadError, Record, RecordReader};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, oneshot, watch};

/// Messages of up to this size may wait a moment for others to share a system call with, bytes. Larger ones are better
/// copied to the socket by the threads that made them.
pub const SHARED_BELOW: usize = 16 << 10;

const CALL: u32 = 0;
const REPLY: u32 = 1;

/// Why a connection is closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// The peer ended the stream between two records.
    #[error("closed by the peer")]
    Peer,
    /// This side closed it.
    #[error("closed: {0}")]
    Local(&'static str),
    /// The peer broke the rules of records, or sent what is neither call nor reply.
    #[error("peer broke the record protocol: {0}")]
    Protocol(String),
    /// A record stayed incomplete for too long.
    #[error("record stayed incomplete for too long")]
    PartialTimeout,
    /// The transport failed.
    #[error("transport failed: {0}")]
    Io(String),
}

/// Why a call got no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The connection closed before the reply came. Whether the call was executed is not known.
    #[error(transparent)]
    Closed(#[from] CloseReason),
    /// A call with this transaction number is pending already; nothing was sent.
    #[error("transaction number is in use")]
    XidInUse,
}

/// Takes the calls that come in on a connection.
pub trait CallHandler: Send + Sync + 'static {
    /// A call came in: a whole record, its RPC message type being CALL. Nothing more is read from the connection
    /// until the future ends: that is the back-pressure, so it should start the work (in a task of its own) and end.
    /// Answer by [`Connection::send`].
    fn call(&self, conn: &Connection, record: Record) -> impl Future<Output = ()> + Send;
}

/// For clients that take no calls: they are dropped.
#[derive(Clone, Copy, Debug)]
pub struct NoCalls;

impl CallHandler for NoCalls {
    async fn call(&self, _conn: &Connection, _record: Record) {}
}

struct Inner {
    id: u64,
    peer: Option<SocketAddr>,
    writer: WriteQueue,
    replies: Budget,
    /// In order: those who are told of the end are told in that.
    pending: Mutex<BTreeMap<u32, oneshot::Sender<Record>>>,
    closed: OnceLock<CloseReason>,
    /// Wakes those who wait for the end, in the order in which they came.
    gone: Notify,
    stop: watch::Sender<bool>,
    shared: Arc<NetShared>,
}

/// A handle of a connection. Cheap to clone; closing is explicit ([`Connection::close`]), or happens when the
/// [`Driver`] ends.
#[derive(Clone)]
pub struct Connection(Arc<Inner>);

/// The reading side of a connection, to be run in a task.
pub struct Driver {
    conn: Connection,
    reader: RecordReader<Box<dyn AsyncRead + Send + Unpin>>,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Connection {
    /// Makes a connection of the two halves of a byte stream. Nothing is read until [`Driver::run`] is polled;
    /// sending and calling work from the start (a reply needs the driver).
    ///
    /// Halves come from [`tokio::net::TcpStream::into_split`] or [`tokio::io::split`].
    pub fn new<R, W>(
        read: R,
        write: W,
        peer: Option<SocketAddr>,
        options: &ConnOptions,
        shared: Arc<NetShared>,
    ) -> (Self, Driver)
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let conn = Self(Arc::new(Inner {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            peer,
            writer: WriteQueue::new(Box::new(write), options.write_high, Arc::clone(&shared)),
            replies: Budget::new(options.reply_budget),
            pending: Mutex::default(),
            closed: OnceLock::new(),
            gone: Notify::new(),
            stop: watch::Sender::new(false),
            shared: Arc::clone(&shared),
        }));
        let read: Box<dyn AsyncRead + Send + Unpin> = Box::new(read);
        let reader = RecordReader::new(read, options, shared);
        (conn.clone(), Driver { conn, reader })
    }

    /// A number that no other connection of this process has.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// The peer's address, where the transport has one.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.0.peer
    }

    /// Sends one message (a reply, or a call whose reply nobody waits for): a list of buffers, without record mark.
    /// Never waits; a closed connection drops it. `charge` is given back when the message has been written.
    pub fn send(&self, segments: Vec<Bytes>, charge: Charge) {
        if let Err(e) = self.0.writer.send(segments, charge) {
            self.close(CloseReason::Io(e.to_string()));
        }
    }

    /// As [`Connection::send`], but leaves the writing to the connection's own task, so that messages which others are
    /// about to send share a system call with this one. Needs the [`Driver`] to run.
    pub fn send_soon(&self, segments: Vec<Bytes>, charge: Charge) {
        self.0.writer.send_soon(segments, charge);
    }

    /// Sends a call and returns the future of its reply record: at once, or (a small call on a busy connection) together
    /// with others that are about to be sent. `xid` must be what the message begins with. Dropping the future gives the reply up; the call may still be executed.
    ///
    /// One who sends many large calls should wait for [`Connection::room`] before each.
    pub fn call(&self, xid: u32, segments: Vec<Bytes>) -> PendingCall {
        let (tx, rx) = oneshot::channel();
        let mut rx = Some(rx);
        let busy = {
            use std::collections::btree_map::Entry;
            let mut pending = self.0.pending.lock();
            match pending.entry(xid) {
                Entry::Occupied(_) => rx = None,
                Entry::Vacant(place) => _ = place.insert(tx),
            }
            pending.len() > 1
        };
        if self.is_closed() {
            // The sweep that goes with closing may have come before the insertion.
            self.0.pending.lock().clear();
        } else if rx.is_some() {
            if busy && segments.iter().map(Bytes::len).sum::<usize>() <= SHARED_BELOW {
                self.send_soon(segments, Charge::none());
            } else {
                self.send(segments, Charge::none());
            }
        }
        PendingCall { conn: self.clone(), xid, rx }
    }

    /// Calls that wait for a reply.
    pub fn pending(&self) -> usize {
        self.0.pending.lock().len()
    }

    /// Waits while more bytes wait to be written than [`ConnOptions::write_high`]; ends at once when closed.
    pub async fn room(&self) {
        if self.0.writer.is_full() {
            self.0.writer.room().await;
        }
    }

    /// Takes `bytes` of the connection's budget for large replies, waiting until the peer has taken earlier ones.
    /// Hand the charge to [`Connection::send`]. Ends at once when the connection is closed.
    pub async fn reserve(&self, bytes: usize) -> Charge {
        match self.0.replies.try_take(bytes) {
            Some(charge) => charge,
            None => {
                self.0.writer.stalled();
                self.0.replies.take(bytes).await
            }
        }
    }

    /// Waits until everything sent so far was handed to the transport, or the connection is closed.
    pub async fn flush(&self) {
        self.0.writer.drained_to(0).await;
    }

    /// Bytes that wait to be written.
    pub fn waiting_bytes(&self) -> usize {
        self.0.writer.waiting()
    }

    /// No more calls are taken: [`Driver::run`] ends, but what is being executed can still be answered until
    /// [`Connection::close`].
    pub fn stop_reading(&self) {
        self.0.stop.send_replace(true);
    }

    /// Closes: pending calls fail, waiters wake, what waits to be written is dropped. Only the first reason counts.
    pub fn close(&self, why: CloseReason) {
        if self.0.closed.set(why).is_ok() {
            self.0.gone.notify_waiters();
            self.0.writer.close();
            self.0.replies.close();
            self.0.pending.lock().clear();
        }
    }

    /// Whether the connection is closed.
    pub fn is_closed(&self) -> bool {
        self.0.closed.get().is_some()
    }

    /// Waits until the connection is closed, and says why.
    pub async fn closed(&self) -> CloseReason {
        loop {
            let gone = self.0.gone.notified();
            if let Some(why) = self.0.closed.get() {
                return why.clone();
            }
            gone.await;
        }
    }

    fn reply(&self, xid: u32, record: Record) {
        let waiter = self.0.pending.lock().remove(&xid);
        if waiter.is_none_or(|w| w.send(record).is_err()) {
            add(&self.0.shared.metrics.late_replies, 1);
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({}, {:?})", self.0.id, self.0.peer)
    }
}

impl PartialEq for Connection {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for Connection {}

impl Driver {
    /// Reads until the connection ends: hands calls to `handler`, replies to those who wait. Returns why it ended.
    ///
    /// Unless it ended by [`Connection::stop_reading`], the connection is closed then. Dropping the future closes it
    /// too.
    pub async fn run<H: CallHandler>(self, handler: &H) -> CloseReason {
        let Self { conn, mut reader } = self;
        let mut guard = CloseOnDrop(Some(conn.clone()));
        let mut stop = conn.0.stop.subscribe();
        let why = tokio::select! {
            biased;
            why = conn.closed() => why,
            _ = stop.wait_for(|s| *s) => {
                // What is being executed is still answered: someone must go on writing.
                guard.0 = None;
                let conn = conn.clone();
                tokio::spawn(async move {
                    tokio::select! {
                        biased;
                        _ = conn.closed() => {}
                        wrote = conn.0.writer.run() => if let Err(e) = wrote {
                            conn.close(CloseReason::Io(e.to_string()));
                        }
                    }
                });
                return CloseReason::Local("stopped reading");
            }
            wrote = conn.0.writer.run() => match wrote {
                Ok(()) => CloseReason::Local("closed"),
                Err(e) => CloseReason::Io(e.to_string()),
            },
            why = read_all(&conn, &mut reader, handler) => why,
        };
        guard.0 = None;
        conn.close(why);
        conn.closed().await
    }
}

/// Closes a connection whose driver was dropped.
struct CloseOnDrop(Option<Connection>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let Some(conn) = self.0.take() {
            conn.close(CloseReason::Local("dropped"));
        }
    }
}

async fn read_all<H: CallHandler>(
    conn: &Connection,
    reader: &mut RecordReader<Box<dyn AsyncRead + Send + Unpin>>,
    handler: &H,
) -> CloseReason {
    loop {
        let record = match reader.next().await {
            Ok(Some(record)) => record,
            Ok(None) => return CloseReason::Peer,
            Err(ReadError::PartialTimeout) => return CloseReason::PartialTimeout,
            Err(ReadError::Io(e)) => return CloseReason::Io(e.to_string()),
            Err(e) => return CloseReason::Protocol(e.to_string()),
        };
        match head(&record.bytes) {
            Some((_, CALL)) => {
                conn.room().await;
                handler.call(conn, record).await;
            }
            Some((xid, REPLY)) => conn.reply(xid, record),
            _ => return CloseReason::Protocol("neither call nor reply".to_owned()),
        }
    }
}

/// Transaction number and message type (RFC 5531 section 9).
fn head(record: &[u8]) -> Option<(u32, u32)> {
    let (xid, rest) = record.split_first_chunk::<4>()?;
    let kind = rest.first_chunk::<4>()?;
    Some((u32::from_be_bytes(*xid), u32::from_be_bytes(*kind)))
}

/// The reply to a [`Connection::call`], to be awaited.
#[derive(Debug)]
pub struct PendingCall {
    conn: Connection,
    xid: u32,
    /// `None`: the transaction number was in use.
    rx: Option<oneshot::Receiver<Record>>,
}

impl Future for PendingCall {
    type Output = Result<Record, CallError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(rx) = self.rx.as_mut() else { return Poll::Ready(Err(CallError::XidInUse)) };
        Pin::new(rx).poll(cx).map(|got| {
            got.map_err(|_| {
                let why = self.conn.0.closed.get().cloned();
                CallError::Closed(why.unwrap_or(CloseReason::Local("dropped")))
            })
        })
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        let Some(rx) = self.rx.as_mut() else { return };
        // Once answered the number may be in use again, by a call whose receiver is open.
        rx.close();
        let mut pending = self.conn.0.pending.lock();
        if pending.get(&self.xid).is_some_and(oneshot::Sender::is_closed) {
            pending.remove(&self.xid);
        }
    }
}
