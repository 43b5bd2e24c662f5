//! A sequenced request from slot to answer: exactly once, whatever happens to connections (RFC 8881 section 2.10.6).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use dhow_proto::v4::ops::{CopyRes, SequenceArgs};
use dhow_proto::v4::{ArgOp, CompoundRes, OpNum, ResOp, Status};
use dhow_rpc::Credential;
use dhow_session::Time;
use dhow_session::backoff::{Backoff, Policy};
use dhow_session::call::{Call, SequenceOk, Verdict};
use dhow_session::classify::{Class, classify};
use dhow_session::slots::Ticket;
use dhow_session::status_flags::Actions;
use tokio::sync::Notify;

use crate::check::{repeatable, reply_fits, spoiled, succeeds_again};
use crate::counters::{add, rank};
use crate::inner::{Inner, Session};
use crate::opens::OpenState;
use crate::{Error, Result, moved, opens, rpc};

/// Sessions one request may outlive before something must be wrong with the server.
const MOST_SESSIONS: u32 = 16;
/// Connections that may break over what a server sent while one request was on them; it need not be the one at fault.
const MOST_BROKEN: u32 = 8;
/// Times a request may be moved to another slot, or its connection bound again.
const MOST_MOVES: u32 = 64;

/// How long after a new client ID was taken up the server is not believed that all state is revoked once more: that takes
/// it a lease.
const START_OVER_AGAIN: Duration = Duration::from_secs(1);

/// A request that is not tied to a slot yet.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) ops: Vec<ArgOp>,
    /// Ask the server to keep the reply for a retry.
    pub(crate) cache: bool,
    pub(crate) cred: Option<Arc<Credential>>,
    /// Of the recovery itself: sent in this session though requests wait.
    pub(crate) internal: Option<Arc<Session>>,
    /// Says when nobody wants the answer any more.
    pub(crate) caller: Caller,
    /// The opens that its CLOSEs are of, in their order: told when it goes out, and when it is known not to have closed
    /// them.
    pub(crate) closes: Vec<Arc<OpenState>>,
    /// They were told that it went out.
    pub(crate) out: AtomicBool,
    /// It belongs to setting up the session, and is counted there.
    pub(crate) setup: bool,
}

impl Request {
    /// Not cached, as the client's own user, of a caller who stays.
    pub(crate) fn new(ops: Vec<ArgOp>) -> Self {
        Self {
            ops,
            cache: false,
            cred: None,
            internal: None,
            caller: Caller::default(),
            closes: Vec::new(),
            out: AtomicBool::new(false),
            setup: false,
        }
    }

    /// It is about to be sent. `in_time`: the lease has not run out.
    fn goes_out(&self, in_time: bool) {
        if !self.out.swap(true, Ordering::AcqRel) {
            self.closes.iter().for_each(|open| open.close_goes_out(in_time));
        }
    }

    /// What is known of it now, unless an earlier attempt is in doubt: how many of its CLOSEs were executed.
    fn came_back(&self, closed: usize) {
        if self.out.swap(false, Ordering::AcqRel) {
            self.closes.iter().skip(closed).for_each(|open| open.close_came_back());
        }
    }
}

/// Whether a caller is still there. A request that was sent must be followed to its end all the same; one that waits
/// for a slot or a session need not be: callers that come and give up while a server is away leave nothing behind.
#[derive(Debug, Clone, Default)]
pub(crate) struct Caller(Arc<(AtomicBool, Notify)>);

impl Caller {
    /// The caller has gone away.
    pub(crate) fn leave(&self) {
        self.0.0.store(true, Ordering::Release);
        self.0.1.notify_waiters();
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.0.0.load(Ordering::Acquire)
    }

    /// Waits until the caller goes away.
    pub(crate) async fn gone(&self) {
        loop {
            let left = self.0.1.notified();
            if self.is_gone() {
                return;
            }
            left.await;
        }
    }
}

/// Tells a request when its caller's future is dropped.
pub(crate) struct Leaving(pub(crate) Caller);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// How one attempt within one session ended.
enum Attempt {
    Answer(CompoundRes),
    /// The session is over; this request may have been executed.
    SessionOver {
        maybe_executed: bool,
    },
}

impl Inner {
    /// Sends a request, and again as the session's rules ask, until there is an answer. To be run in a task of its
    /// own: a request that was sent must be followed to its end, or its slot is lost.
    ///
    /// An answer to a repetition in another session that may owe its error to the first execution ([`spoiled`]) is none:
    /// [`Error::OutcomeUnknown`].
    pub(crate) async fn execute(self: &Arc<Self>, request: Request) -> Result<CompoundRes> {
        let mut doubt = false;
        let res = self.execute_once(&request, &mut doubt).await?;
        known(&request, res, doubt)
    }

    /// As [`Inner::execute`], but the answer is returned as it is. `doubt` becomes true when the operations may have
    /// been executed before the execution that was answered.
    async fn execute_once(self: &Arc<Self>, request: &Request, doubt: &mut bool) -> Result<CompoundRes> {
        match request.setup {
            true => add(&self.counters.setup, 1),
            false => self.counters.call(request.ops.iter().map(ArgOp::op)),
        }
        for _ in 0..MOST_SESSIONS {
            let session = match &request.internal {
                Some(session) => Arc::clone(session),
                None => tokio::select! {
                    biased;
                    session = self.session() => session?,
                    () = request.caller.gone() => return Err(Error::Closed),
                },
            };
            let attempt = self.attempt(&session, request).await;
            if !*doubt {
                match &attempt {
                    Ok(Attempt::Answer(res)) if res.status == Status::RETRY_UNCACHED_REP => {}
                    Ok(Attempt::Answer(res)) => request.came_back(closes_done(res)),
                    Ok(Attempt::SessionOver { maybe_executed: false }) => request.came_back(0),
                    Ok(Attempt::SessionOver { .. }) | Err(_) => {}
                }
            }
            match attempt? {
                // A retry of a request whose reply the server did not keep: it was executed (section 2.10.6.1.3).
                Attempt::Answer(res) if res.status == Status::RETRY_UNCACHED_REP => {
                    *doubt = true;
                    // A reclaim that was done is done again: it finds what it made.
                    if request.internal.is_none() && !request.ops.iter().all(repeatable) {
                        return Err(Error::OutcomeUnknown { op: main_op(&request.ops) });
                    }
                }
                Attempt::Answer(res) => return Ok(res),
                Attempt::SessionOver { maybe_executed } => {
                    *doubt |= maybe_executed;
                    if request.internal.is_some() {
                        return Err(Error::status(main_op(&request.ops), Status::BADSESSION));
                    }
                    if maybe_executed && !request.ops.iter().all(repeatable) {
                        return Err(Error::OutcomeUnknown { op: main_op(&request.ops) });
                    }
                }
            }
        }
        Err(Error::protocol("the server drops every session as soon as it is used"))
    }

    async fn attempt(self: &Arc<Self>, primary: &Session, request: &Request) -> Result<Attempt> {
        let mut moves = 0;
        let mut broken = 0;
        'slot: loop {
            let internal = request.internal.is_some();
            let Some((ticket, session)) = self.acquire(primary.epoch, internal, &request.caller).await? else {
                return Ok(Attempt::SessionOver { maybe_executed: false });
            };
            let (epoch, session) = (session.epoch, &*session);
            let mut call = Call::new(ticket, self.next_seed());
            let mut encoded = match self.encode(session, request, &ticket) {
                Ok(encoded) => encoded,
                Err(e) => {
                    self.with_table(epoch, |t| call.give_up(t, Status::REQ_TOO_BIG));
                    return Err(e);
                }
            };
            let mut first = true;
            loop {
                let Some(conn) = self.connection(session, internal).await? else {
                    let maybe_executed = call.maybe_executed();
                    self.with_table(epoch, |t| call.give_up(t, Status::BADSESSION));
                    return Ok(Attempt::SessionOver { maybe_executed });
                };
                conn.room().await;
                let sent_at = self.now();
                if !request.closes.is_empty() {
                    request.goes_out(!self.state.lock().lease.maybe_expired(sent_at));
                }
                if !std::mem::take(&mut first) {
                    add(&self.counters.resent, 1);
                }
                call.sent();
                let record = match conn.call(encoded.xid, encoded.segments.clone()).await {
                    Ok(record) => record.bytes,
                    Err(e) => {
                        if e == dhow_net::CallError::XidInUse {
                            // 2^32 calls ago: that one is still unanswered on this connection. Nothing was sent.
                            call.not_sent();
                            tokio::task::yield_now().await;
                        }
                        // A reply that breaks the record protocol breaks it again when it is replayed.
                        if let dhow_net::CallError::Closed(
                            why @ (dhow_net::CloseReason::Protocol(_) | dhow_net::CloseReason::PartialTimeout),
                        ) = &e
                        {
                            broken += 1;
                            if broken > MOST_BROKEN {
                                self.with_table(epoch, |t| call.give_up(t, Status::SERVERFAULT));
                                return Err(Error::protocol(why.to_string()));
                            }
                            tokio::time::sleep(Duration::from_millis(10) * broken).await;
                        }
                        call.connection_lost();
                        continue;
                    }
                };
                let (answer, result) = match self.read_reply(&conn, &call, session, request, record, sent_at) {
                    Ok(read) => read,
                    Err(e) => {
                        // Not even SEQUENCE can be made out. A refusal by RPC was not executed; after anything else
                        // nobody knows.
                        if !matches!(e, Error::Protocol(_)) {
                            call.not_sent();
                        }
                        self.with_table(epoch, |t| call.give_up(t, Status::SERVERFAULT));
                        return Err(e);
                    }
                };
                match self.with_table(epoch, |t| call.answered(t, answer)) {
                    Verdict::Accept => {
                        self.state.lock().lease.renewed(sent_at);
                        return result.map(Attempt::Answer);
                    }
                    Verdict::ResendSame(wait) => {
                        add(&self.counters.delays, 1);
                        tokio::time::sleep(wait).await;
                    }
                    Verdict::Renumbered => {
                        encoded = self.encode(session, request, call.ticket())?;
                    }
                    Verdict::AnotherSlot if moves < MOST_MOVES => {
                        moves += 1;
                        continue 'slot;
                    }
                    Verdict::AnotherSlot => {
                        return Err(Error::protocol("the server refuses every slot that it granted"));
                    }
                    Verdict::Bind => {
                        moves += 1;
                        if moves > MOST_MOVES {
                            self.with_table(epoch, |t| call.give_up(t, Status::CONN_NOT_BOUND_TO_SESSION));
                            return Err(Error::status(OpNum::SEQUENCE, Status::CONN_NOT_BOUND_TO_SESSION));
                        }
                        self.unbind(&conn);
                    }
                    Verdict::SessionLost { maybe_executed } => {
                        self.session_lost(epoch);
                        return Ok(Attempt::SessionOver { maybe_executed });
                    }
                    Verdict::Refused(status) => return Err(Error::status(OpNum::SEQUENCE, status)),
                    // The recovery begins again with another session.
                    Verdict::Unknown(_) if internal => {
                        self.abandon(epoch);
                        return Ok(Attempt::SessionOver { maybe_executed: true });
                    }
                    Verdict::Unknown(_) => return Err(Error::OutcomeUnknown { op: main_op(&request.ops) }),
                }
            }
        }
    }

    /// A connection of the session. `None` when the session is over.
    async fn connection(&self, session: &Session, internal: bool) -> Result<Option<dhow_net::Connection>> {
        self.when(|inner| {
            if let Some(conn) = inner.pick_bound(session.epoch) {
                return Some(Ok(Some(conn)));
            }
            if let Some(e) = inner.failure() {
                return Some(Err(e));
            }
            let state = inner.state.lock();
            let recovery = &state.recovery;
            let usable = if internal { recovery.holds(session.epoch) } else { recovery.is_ready() };
            let primary = state.pool.primary().epoch() == session.epoch;
            let over = !state.pool.contains(session.epoch) || (primary && !usable);
            over.then_some(Ok(None))
        })
        .await
    }

    fn encode(&self, session: &Session, request: &Request, ticket: &Ticket) -> Result<rpc::Encoded> {
        let count = request.ops.len() as u32 + 1;
        if count > session.fore.max_operations {
            return Err(Error::Argument(
                format!("{count} operations in one call; the server allows {}", session.fore.max_operations).into(),
            ));
        }
        let sequence = SequenceArgs {
            session_id: session.id,
            sequence_id: ticket.seqid,
            slot_id: ticket.slot,
            highest_slot_id: ticket.highest,
            // A server that keeps next to nothing would rather fail the request than not keep its reply.
            cache_this: request.cache && session.fore.max_response_size_cached >= 1024,
        };
        let cred = request.cred.as_deref().unwrap_or(&self.config.credential);
        let encoded = rpc::compound(self.next_xid(), cred, session.minor, Some(sequence), &request.ops)?;
        if encoded.len > session.fore.max_request_size as usize {
            let limit = session.fore.max_request_size;
            return Err(Error::Argument(format!("a call of {} bytes; the server allows {limit}", encoded.len).into()));
        }
        Ok(encoded)
    }

    /// What SEQUENCE said, and the rest of the reply without it. The second is an error when the rest is rubbish: the
    /// slot is in order all the same.
    #[allow(clippy::type_complexity)]
    fn read_reply(
        &self,
        conn: &dhow_net::Connection,
        call: &Call,
        session: &Session,
        request: &Request,
        record: Bytes,
        sent_at: Time,
    ) -> Result<(Result<SequenceOk, Status>, Result<CompoundRes>)> {
        let (sequence, rest) = match rpc::result(record.clone()) {
            Ok(mut res) if !res.results.is_empty() => match res.results.remove(0) {
                ResOp::Sequence(sequence) => {
                    let fits = if sequence.is_ok() { reply_fits(&request.ops, &res) } else { Ok(()) };
                    (sequence, fits.map(|()| res))
                }
                other => return Err(Error::protocol(format!("reply begins with {}", other.op()))),
            },
            // Without results the whole COMPOUND was refused before SEQUENCE.
            Ok(res) if !res.status.is_ok() => return Err(Error::status(OpNum::SEQUENCE, res.status)),
            Ok(_) => return Err(Error::protocol("reply without results")),
            Err(e @ Error::Protocol(_)) => match rpc::sequence_only(record) {
                Some(sequence) => (sequence, Err(e)),
                None => return Err(e),
            },
            Err(e) => return Err(e),
        };
        if let Err(e) = &rest {
            tracing::warn!(server = %self.config.server, error = %e, "bad reply");
        }
        let sequence = match sequence {
            Ok(sequence) => sequence,
            Err(status) => return Ok((Err(status), rest)),
        };
        let ticket = call.ticket();
        if (sequence.session_id, sequence.slot_id, sequence.sequence_id) != (session.id, ticket.slot, ticket.seqid) {
            // Not the answer to this call: the stream cannot be trusted any more.
            conn.close(dhow_net::CloseReason::Protocol("reply of another slot".to_owned()));
            return Err(Error::protocol("SEQUENCE was answered for another slot"));
        }
        self.heed(session, sequence.status_flags, sent_at);
        let ok = SequenceOk { highest: sequence.highest_slot_id, target: sequence.target_highest_slot_id };
        Ok((Ok(ok), rest))
    }

    /// Does what the status flags ask for (RFC 8881 section 18.46.3).
    fn heed(&self, session: &Session, flags: u32, sent_at: Time) {
        let actions = Actions::of(flags);
        if actions.is_empty() {
            return;
        }
        tracing::debug!(server = %self.config.server, flags = %format!("{flags:#x}"), "the server asks for something");
        // The client ID is that of all sessions.
        let started_over = actions.new_client && {
            let mut state = self.state.lock();
            // A server that says so of every new client ID must not make this one ask for them without end.
            let due = state.started_over.is_none_or(|last| sent_at >= last + START_OVER_AGAIN);
            let news = due && state.spokesman(session.epoch).is_some_and(|epoch| state.recovery.start_over(epoch));
            if news {
                state.started_over = Some(self.now());
            }
            news
        };
        if started_over {
            opens::all_revoked(self);
            self.state_lost();
            self.kick.notify_one();
            self.changed();
        } else if actions.reclaim && self.state.lock().spokesman(session.epoch).is_some() {
            self.reclaim_needed(sent_at);
        }
        if actions.replace_session {
            self.abandon(session.epoch);
        }
        if actions.test_stateids {
            self.revoked.notify_one();
        }
        if actions.find_moved {
            self.moved.notify_one();
        }
        if actions.bind_backchannel {
            self.want_backchannel(session.epoch, sent_at);
        }
    }

    /// Executes `request` and, while the server answers "later" to an operation before which nothing has happened that
    /// must not happen twice, waits and sends it again as a new request.
    ///
    /// When a repetition stops at an operation that succeeded the time before, the caller gets that earlier answer, with
    /// its "later", if it holds an open (to be used or closed) or if it is why the repetition stopped ([`spoiled`]).
    ///
    /// What is answered by MOVED becomes an error that says where to, unless an open is owed a CLOSE.
    pub(crate) async fn execute_patiently(self: &Arc<Self>, request: Request) -> Result<CompoundRes> {
        let res = self.patiently(&request).await?;
        if res.status == Status::MOVED && request.internal.is_none() && !opens_file(&res) {
            return Err(moved::error(self, &request, &res).await);
        }
        Ok(res)
    }

    async fn patiently(self: &Arc<Self>, request: &Request) -> Result<CompoundRes> {
        let mut backoff: Option<Backoff> = None;
        let mut doubt = false;
        let mut earlier: Option<CompoundRes> = None;
        loop {
            let res = match (self.execute_once(request, &mut doubt).await, earlier.take()) {
                // Nobody waits any more, but what was opened is owed a CLOSE.
                (Err(Error::Closed), Some(before)) if opens_file(&before) => return Ok(before),
                (Err(e), _) => return Err(e),
                // It came less far.
                (Ok(res), Some(before)) if !res.status.is_ok() && res.results.len() < before.results.len() => {
                    match classify(res.status) {
                        Class::Delay | Class::Grace => before,
                        _ if opens_file(&before) || spoiled(&request.ops, &res).is_some() => return Ok(before),
                        _ => return known(request, res, doubt),
                    }
                }
                (Ok(res), _) => res,
            };
            let policy = match classify(res.status) {
                Class::Delay => Policy::DELAY,
                Class::Grace => Policy::GRACE,
                _ => return known(request, res, doubt),
            };
            let done = res.results.len().saturating_sub(1);
            if !request.ops.iter().take(done).all(succeeds_again) {
                return Ok(res);
            }
            add(&self.counters.delays, 1);
            let backoff = backoff.get_or_insert_with(|| Backoff::new(policy, self.next_seed()));
            match backoff.next_wait() {
                Some(_) if request.caller.is_gone() => return Ok(res),
                Some(wait) => {
                    let op = res.results.last().map(ResOp::op);
                    tracing::debug!(?op, status = %res.status, ?wait, "the server asks to come again");
                    tokio::time::sleep(wait).await;
                    earlier = Some(res);
                }
                None => return Ok(res),
            }
        }
    }
}

/// The answer to a request, unless it is one to a repetition and tells nothing of what the first execution did.
fn known(request: &Request, res: CompoundRes, doubt: bool) -> Result<CompoundRes> {
    match spoiled(&request.ops, &res).filter(|_| doubt) {
        Some(op) => Err(Error::OutcomeUnknown { op }),
        None => Ok(res),
    }
}

/// The CLOSEs that an answer tells of as done.
fn closes_done(res: &CompoundRes) -> usize {
    res.results.iter().filter(|r| matches!(r, ResOp::Close(Ok(_)))).count()
}

/// Whether an answer holds an open.
fn opens_file(res: &CompoundRes) -> bool {
    res.results.iter().any(|r| matches!(r, ResOp::Open(Ok(_))))
}

/// The operation a request is about.
pub(crate) fn main_op(ops: &[ArgOp]) -> OpNum {
    ops.iter().map(ArgOp::op).rev().max_by_key(|op| rank(*op)).unwrap_or(OpNum::SEQUENCE)
}

/// The bytes of file data in an answer.
pub(crate) fn data_bytes(res: &CompoundRes) -> u64 {
    let data = res.results.iter().map(|r| match r {
        ResOp::Read(Ok(ok)) => ok.data.len() as u64,
        ResOp::ReadPlus(Ok(ok)) => ok
            .contents
            .iter()
            .map(|c| match c {
                dhow_proto::v4::ops::ReadPlusContent::Data { data, .. } => data.len() as u64,
                _ => 0,
            })
            .sum(),
        ResOp::Copy(CopyRes::Ok(_)) => 0,
        _ => 0,
    });
    data.sum()
}
