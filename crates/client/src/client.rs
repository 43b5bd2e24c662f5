//! The client: one server, one client ID, a session over several connections, further sessions where slots are few.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dhow_proto::v4::ops::{DestroyClientidArgs, DestroySessionArgs, ExchangeIdOk};
use dhow_proto::v4::{ArgOp, CompoundRes, OpNum, ResOp, SessionId, Status};
use dhow_rpc::Credential;

use crate::call::{Caller, Leaving, Request, data_bytes};
use crate::counters::{Counters, add};
use crate::inner::Inner;
use crate::{ClientConfig, Error, Fs, Result, links, moved, opens, recover, rpc, sessions};

/// Bytes around the data of a READ reply or WRITE call: headers, a credential of full size, SEQUENCE, PUTFH.
const AROUND_DATA: u32 = 1024;
const PAGE: u32 = 4096;

/// A client of one server. Cheap to clone; all clones share one client ID and its sessions.
///
/// Background tasks keep connections, lease and session alive for as long as a clone exists. [`Client::close`] says
/// goodbye to the server; without it, the server finds out by the lease.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
    _last: Arc<LastOne>,
}

/// Ends the background tasks when the last [`Client`] is dropped.
struct LastOne(Arc<Inner>);

impl Drop for LastOne {
    fn drop(&mut self) {
        self.0.fail(Error::Closed);
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({})", self.inner.config.server)
    }
}

/// How a COMPOUND is to be sent.
#[derive(Debug, Clone)]
pub struct CallOptions {
    /// Have the server keep the reply, so that a retry over a new connection gets it: for requests that change
    /// something. The reply must then be small (4 KiB).
    pub cache: bool,
    /// Wait and send again when the server answers DELAY or GRACE and nothing before that answer forbids it; and ask for
    /// the new place when it answers MOVED ([`Error::Moved`]).
    pub patient: bool,
    /// Whose call it is; the client's own when `None`.
    pub credential: Option<Arc<Credential>>,
}

impl Default for CallOptions {
    /// Not cached, patient, the client's own credential.
    fn default() -> Self {
        Self { cache: false, patient: true, credential: None }
    }
}

/// What the server and the session are like.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SessionInfo {
    /// Name of the (primary) session.
    pub session_id: SessionId,
    /// Minor version in use.
    pub minor_version: u32,
    /// Slots that may be used at present, in all sessions together.
    pub slots: u32,
    /// Sessions: more than one while the server grants few slots to each and there is more to do.
    pub sessions: usize,
    /// Largest request in bytes.
    pub max_request_size: u32,
    /// Largest reply in bytes.
    pub max_response_size: u32,
    /// Operations in one COMPOUND, SEQUENCE included.
    pub max_operations: u32,
    /// Length of the lease.
    pub lease: Duration,
    /// Connections that are up and bound, of all sessions.
    pub connections: usize,
    /// What EXCHANGE_ID replied: identity, roles, implementation of the server.
    pub server: Option<ExchangeIdOk>,
}

impl Client {
    /// Connects, and establishes client ID and session.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when no address can be reached, [`Error::Unsupported`] when the server speaks none of the versions
    /// offered, [`Error::TimedOut`] when it does not answer within three times the connect time-out.
    pub async fn connect(config: ClientConfig) -> Result<Self> {
        let nonce = match config.instance {
            Some(instance) => instance,
            None => {
                let mut nonce = [0; 8];
                getrandom::fill(&mut nonce).map_err(|e| Error::Argument(format!("no randomness: {e}").into()))?;
                u64::from_be_bytes(nonce)
            }
        };
        let first = links::dial(&config).await?;
        let patience = config.connect_timeout * 3;
        let inner = Arc::new(Inner::new(config, nonce));
        let client = Self { inner: Arc::clone(&inner), _last: Arc::new(LastOne(Arc::clone(&inner))) };
        let mut first = Some(links::start(&inner, first));
        for link in inner.links() {
            tokio::spawn(links::keep(Arc::downgrade(&inner), link, first.take()));
        }
        tokio::spawn(recover::run(Arc::downgrade(&inner)));
        match tokio::time::timeout(patience, inner.session()).await {
            Ok(ready) => ready?,
            Err(_) => return Err(Error::TimedOut(patience)),
        };
        tokio::spawn(recover::renew(Arc::downgrade(&inner)));
        tokio::spawn(recover::watch_revoked(Arc::downgrade(&inner)));
        tokio::spawn(moved::watch(Arc::downgrade(&inner)));
        Ok(client)
    }

    /// Whether both are handles of one client: of one session, whose stateids are good for both.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// The server's files, seen as the client's own user.
    pub fn fs(&self) -> Fs {
        Fs::new(self.clone(), None)
    }

    /// The server's files, seen as another user.
    pub fn fs_as(&self, credential: Credential) -> Fs {
        Fs::new(self.clone(), Some(Arc::new(credential)))
    }

    /// Sends `ops` as one COMPOUND, with SEQUENCE before them, exactly once: a lost connection is made again and the
    /// request repeated in its slot. The results are those of `ops`, without SEQUENCE. An operation that failed is not
    /// an error here: look at [`CompoundRes::status`].
    ///
    /// Cancel safe: a request that was sent is followed to its end whatever happens to this future.
    ///
    /// # Errors
    ///
    /// [`Error::OutcomeUnknown`] when a session was lost with this request in it and it could not be sent again without
    /// harm; [`Error::TimedOut`]; others when no answer can be had at all.
    pub async fn compound(&self, ops: Vec<ArgOp>, options: CallOptions) -> Result<CompoundRes> {
        let request = Request { cache: options.cache, cred: options.credential, ..Request::new(ops) };
        self.run(request, options.patient).await
    }

    /// As [`Client::compound`].
    pub(crate) async fn run(&self, request: Request, patient: bool) -> Result<CompoundRes> {
        let sent = data_sent(&request.ops);
        let inner = Arc::clone(&self.inner);
        let work = |caller| async move {
            let request = Request { caller, ..request };
            if patient { inner.execute_patiently(request).await } else { inner.execute(request).await }
        };
        let res = self.to_its_end(work).await?;
        self.count_data(sent, &res);
        Ok(res)
    }

    /// Runs `work` in a task that goes on when the caller of this has gone away or has waited for as long as a call may
    /// wait; the task is told of that.
    pub(crate) async fn to_its_end<T, F>(&self, work: impl FnOnce(Caller) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let caller = Caller::default();
        let _leaving = Leaving(caller.clone());
        let task = tokio::spawn(work(caller));
        let joined = match self.inner.config.call_timeout {
            Some(limit) => tokio::time::timeout(limit, task).await.map_err(|_| Error::TimedOut(limit))?,
            None => task.await,
        };
        // A task that does not come back went down with the runtime.
        joined.unwrap_or(Err(Error::Closed))
    }

    /// As [`Client::compound`], patiently, for work that runs in a task of its own: there is nobody to give up waiting
    /// but the request's caller.
    pub(crate) async fn follow(&self, request: Request) -> Result<CompoundRes> {
        let sent = data_sent(&request.ops);
        let res = self.inner.execute_patiently(request).await?;
        self.count_data(sent, &res);
        Ok(res)
    }

    fn count_data(&self, sent: usize, res: &CompoundRes) {
        add(&self.inner.counters.bytes_written, sent as u64);
        add(&self.inner.counters.bytes_read, data_bytes(res));
    }

    /// The address of the server that the client is connected to at present.
    pub fn peer(&self) -> Option<std::net::SocketAddr> {
        self.inner.links().iter().find_map(|l| l.live.lock().as_ref().and_then(|l| l.conn.peer()))
    }

    /// Why no more calls can be made: the client was closed, or failed for good. A lost connection is no such reason.
    pub fn ended(&self) -> Option<Error> {
        self.inner.failure()
    }

    /// Counters of calls and bytes.
    pub fn counters(&self) -> &Counters {
        &self.inner.counters
    }

    /// What the present session is like; waits for one.
    ///
    /// # Errors
    ///
    /// When the client is closed or has failed.
    pub async fn session_info(&self) -> Result<SessionInfo> {
        recover::learn_lease(&self.inner).await?;
        self.session_begun().await
    }

    /// As [`Client::session_info`], without a round trip for the length of the lease, which may not be the server's yet.
    ///
    /// # Errors
    ///
    /// As [`Client::session_info`].
    pub async fn session_begun(&self) -> Result<SessionInfo> {
        let session = self.inner.session().await?;
        let (slots, sessions, lease) = {
            let state = self.inner.state.lock();
            (state.pool.limit(), state.pool.sessions(), state.lease.length())
        };
        let links = self.inner.links();
        let bound: Vec<_> = links.iter().filter_map(|l| l.live.lock().as_ref().map(|l| l.bound)).collect();
        let connections = {
            let state = self.inner.state.lock();
            bound.into_iter().filter(|epoch| state.pool.contains(*epoch)).count()
        };
        Ok(SessionInfo {
            session_id: session.id,
            minor_version: session.minor,
            slots,
            max_request_size: session.fore.max_request_size,
            max_response_size: session.fore.max_response_size,
            max_operations: session.fore.max_operations,
            lease,
            connections,
            sessions,
            server: self.inner.server.lock().clone(),
        })
    }

    /// How the client was set up.
    pub fn config(&self) -> &ClientConfig {
        &self.inner.config
    }

    /// Closes open files, destroys the session and the client ID (RFC 8881 sections 18.37 and 18.50), and ends the
    /// background tasks. The client is closed afterwards, whatever this returns.
    ///
    /// # Errors
    ///
    /// When the server could not be told; it will find out by the lease.
    pub async fn close(&self) -> Result<()> {
        if self.inner.is_closed() {
            return Ok(());
        }
        let limit = self.inner.config.connect_timeout;
        let told = tokio::time::timeout(limit, self.say_goodbye()).await.unwrap_or(Err(Error::TimedOut(limit)));
        self.inner.fail(Error::Closed);
        told
    }

    async fn say_goodbye(&self) -> Result<()> {
        let inner = &self.inner;
        opens::close_all(inner).await;
        let session = inner.session().await?;
        let Some(client_id) = inner.clientid() else { return Ok(()) };
        let conn = inner.pick_bound(session.epoch).ok_or(Error::Closed)?;
        // From here on nothing of the recovery may make a new session.
        let further = {
            let mut state = inner.state.lock();
            state.recovery.close();
            state.further.clone()
        };
        let ends = further.iter().map(|session| sessions::destroy(inner, session));
        futures_util::future::join_all(ends).await;
        let ops = [
            ArgOp::DestroySession(DestroySessionArgs { session_id: session.id }),
            ArgOp::DestroyClientid(DestroyClientidArgs { client_id }),
        ];
        for op in ops {
            let name = op.op();
            let mut tries = 0;
            loop {
                inner.counters.call([name].into_iter());
                let xid = inner.next_xid();
                let res = rpc::alone(&conn, xid, &inner.config.credential, session.minor, op.clone()).await?;
                match res.status() {
                    Status::OK | Status::BADSESSION | Status::STALE_CLIENTID => break,
                    // Another request is just leaving its slot.
                    Status::DELAY | Status::CLIENTID_BUSY | Status::BACK_CHAN_BUSY if tries < 20 => {
                        tries += 1;
                        tokio::time::sleep(Duration::from_millis(20 * tries)).await;
                    }
                    // A server that wants SEQUENCE on a connection before it believes that it belongs to the session.
                    Status::CONN_NOT_BOUND_TO_SESSION if name == OpNum::DESTROY_SESSION => {
                        let ops = vec![op.clone()];
                        let request = Request { internal: Some(Arc::clone(&session)), ..Request::new(ops) };
                        let status = match inner.execute(request).await {
                            Ok(res) => res.status,
                            Err(Error::Status { status, .. }) => status,
                            Err(e) => return Err(e),
                        };
                        match status {
                            Status::OK | Status::BADSESSION => break,
                            // RFC 8881 section 2.10.3.1 has SEQUENCE associate the connection. A server that will not
                            // (NFS-Ganesha, once 16 connections of the session have come and gone) leaves no way to
                            // destroy it; nothing is open in it, and it ends with the lease.
                            Status::CONN_NOT_BOUND_TO_SESSION => {
                                tracing::debug!(server = %inner.config.server, "the session is left to its lease");
                                return Ok(());
                            }
                            status => return Err(Error::status(name, status)),
                        }
                    }
                    status => return Err(Error::status(name, status)),
                }
            }
        }
        Ok(())
    }

    /// One NULL call over the first connection: the round-trip time.
    ///
    /// # Errors
    ///
    /// When the connection is down.
    pub async fn ping(&self) -> Result<Duration> {
        let conn = self.inner.pick_primary().ok_or(Error::Closed)?;
        let call = rpc::null(self.inner.next_xid(), dhow_proto::v4::VERSION)?;
        let start = std::time::Instant::now();
        let record = conn.call(call.xid, call.segments).await.map_err(|e| rpc::lost(&conn, &e))?;
        rpc::accepted(record.bytes)?;
        Ok(start.elapsed())
    }

    /// Closes all connections, as a network failure would; the client makes new ones and goes on. For tests.
    pub fn break_connections(&self) {
        for link in self.inner.links() {
            if let Some(live) = link.live.lock().as_ref() {
                live.conn.close(dhow_net::CloseReason::Local("broken on purpose"));
            }
        }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Largest READ and WRITE that fit the session's records.
    pub(crate) async fn io_limits(&self) -> Result<(u32, u32)> {
        let session = self.inner.session().await?;
        let fit = |size: u32| {
            let most = size.saturating_sub(AROUND_DATA).clamp(512, self.inner.config.max_io);
            // Whole pages, where there is more than one.
            if most > PAGE { most - most % PAGE } else { most }
        };
        Ok((fit(session.fore.max_response_size), fit(session.fore.max_request_size)))
    }

    /// The result of operation `index` of a COMPOUND, or the error that stopped it.
    pub(crate) fn take(res: &mut CompoundRes, op: OpNum) -> Result<ResOp> {
        if res.status.is_ok() {
            let at = res.results.iter().position(|r| r.op() == op);
            return match at {
                Some(at) => Ok(res.results.remove(at)),
                None => Err(Error::protocol(format!("no {op} in the reply"))),
            };
        }
        Err(Self::stopped(res))
    }

    /// The error of a COMPOUND that stopped.
    pub(crate) fn stopped(res: &CompoundRes) -> Error {
        let op = res.results.last().map_or(OpNum::SEQUENCE, ResOp::op);
        Error::status(op, res.status)
    }
}

/// The bytes of file data in a call.
fn data_sent(ops: &[ArgOp]) -> usize {
    ops.iter().map(|op| if let ArgOp::Write(w) = op { w.data.len() } else { 0 }).sum()
}

/// A name as an argument: not empty, no slash, no zero byte, not `.` or `..`.
pub(crate) fn name(name: impl AsRef<[u8]>) -> Result<Bytes> {
    let name = name.as_ref();
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0) {
        let shown = String::from_utf8_lossy(name);
        return Err(Error::Argument(format!("{shown:?} is not a name of a file").into()));
    }
    Ok(Bytes::copy_from_slice(name))
}
