//! Sessions: the fore channel's slots, bound connections, the back channel (RFC 8881 2.10).
//!
//! A session is owned by its client and found through a sharded table; a SEQUENCE locks that shard for a moment and
//! then its session alone. States: *live*, *dead* (destroyed; requests that were admitted run to their end, nothing
//! new is admitted). Requests are admitted by [`State::sequence`], which yields a [`SlotToken`]; while a token lives
//! the slot is busy and the client's lease cannot end.

use crate::backchannel::BackChannel;
use crate::client::Client;
use crate::slots::{Admit, SlotTable};
use crate::types::{ConnId, Effect, Effects, Reply, SessionId, Status, Time};
use crate::{HitCount, Limits, State};
use dhow_proto::v4::ops::{
    BackchannelCtlArgs, BindConnToSessionArgs, BindConnToSessionOk, ChannelAttrs, ChannelDirFromClient,
    ChannelDirFromServer, SequenceArgs, SequenceOk, seq4_status,
};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the sessions share.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    /// Reply-cache memory promised, bytes.
    promised: AtomicU64,
    /// Connections that made room for another one of their session.
    pub(crate) conn_hits: HitCount,
}

/// What a slot may come to hold: the largest cached reply, and what a slot takes by itself.
fn slot_cost(max_cached: u32) -> u64 {
    u64::from(max_cached) + 256
}

impl Budget {
    /// How many slots of `each` bytes a session that asks for `wanted` gets: an eighth of what is left at most, but
    /// never less than the smaller of what it wants and `min`.
    pub(crate) fn slots(&self, wanted: u32, each: u32, limits: &Limits) -> u32 {
        let left = limits.cached_bytes.saturating_sub(self.promised.load(Ordering::Relaxed));
        let fair = u32::try_from(left / 8 / slot_cost(each)).unwrap_or(u32::MAX);
        wanted.min(limits.slots_per_session).min(fair.max(limits.slots_min)).max(1)
    }

    fn add(&self, n: u64) {
        self.promised.fetch_add(n, Ordering::Relaxed);
    }

    fn sub(&self, n: u64) {
        self.promised.fetch_sub(n, Ordering::Relaxed);
    }

    /// Bytes promised.
    pub(crate) fn promised(&self) -> u64 {
        self.promised.load(Ordering::Relaxed)
    }
}

/// A connection bound to a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) conn: ConnId,
    pub(crate) fore: bool,
    pub(crate) back: bool,
}

pub(crate) struct Inner {
    pub(crate) dead: bool,
    pub(crate) slots: SlotTable,
    /// Slots that the client asked for at first: growing stops there.
    pub(crate) wanted: u32,
    pub(crate) conns: SmallVec<[Bound; 4]>,
    pub(crate) back: BackChannel,
    /// Bytes taken from the budget.
    promised: u64,
}

/// A session.
pub struct Session {
    id: SessionId,
    client: Arc<Client>,
    minor: u32,
    fore: ChannelAttrs,
    budget: Arc<Budget>,
    pub(crate) inner: Mutex<Inner>,
}

impl Session {
    pub(crate) fn new(
        id: SessionId,
        client: Arc<Client>,
        minor: u32,
        fore: ChannelAttrs,
        wanted: u32,
        back: BackChannel,
        budget: Arc<Budget>,
    ) -> Self {
        let promised = u64::from(fore.max_requests) * slot_cost(fore.max_response_size_cached);
        budget.add(promised);
        let slots = SlotTable::new(fore.max_requests);
        let inner = Inner { dead: false, slots, wanted, conns: SmallVec::new(), back, promised };
        Self { id, client, minor, fore, budget, inner: Mutex::new(inner) }
    }

    /// Its id.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// The client it belongs to.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// The minor version it was created with; callbacks use it too.
    pub fn minor(&self) -> u32 {
        self.minor
    }

    /// What was negotiated for the fore channel (RFC 8881 18.36): the request loop enforces sizes and counts.
    pub fn fore(&self) -> &ChannelAttrs {
        &self.fore
    }

    /// Whether a connection is bound to its back channel.
    pub fn has_callback_path(&self) -> bool {
        self.inner.lock().has_back()
    }

    /// Asks the client to keep to `count` slots from now on (fewer or, up to what it wanted at first, more).
    pub fn resize(&self, count: u32) {
        let mut inner = self.inner.lock();
        let count = count.min(inner.wanted);
        inner.slots.resize(count);
        self.rebudget(&mut inner);
    }

    /// CB_RECALL_SLOT was answered: the client knows the target (RFC 8881 20.8.3).
    pub fn slots_recalled(&self) {
        self.inner.lock().slots.told();
    }

    fn rebudget(&self, inner: &mut Inner) {
        let now = u64::from(inner.slots.highest() + 1) * slot_cost(self.fore.max_response_size_cached);
        if now > inner.promised {
            self.budget.add(now - inner.promised);
        } else {
            self.budget.sub(inner.promised - now);
        }
        inner.promised = now;
    }

    /// Binds, implicitly or by request; returns whether that is new. The oldest connection makes room.
    pub(crate) fn bind(&self, inner: &mut Inner, conn: ConnId, fore: bool, back: bool, limits: &Limits) -> bool {
        if let Some(b) = inner.conns.iter_mut().find(|b| b.conn == conn) {
            b.fore |= fore;
            if back && !b.back {
                b.back = true;
                self.client.called(true);
                self.client.back_conns.fetch_add(1, Ordering::SeqCst);
            }
            return false;
        }
        if inner.conns.len() >= limits.conns_per_session {
            self.budget.conn_hits.add();
            // Rather one that carries no callbacks.
            let i = inner.conns.iter().position(|b| !b.back).unwrap_or(0);
            let old = inner.conns.remove(i);
            self.forget_back(old);
        }
        if back {
            self.client.called(true);
            self.client.back_conns.fetch_add(1, Ordering::SeqCst);
        }
        inner.conns.push(Bound { conn, fore, back });
        true
    }

    fn forget_back(&self, b: Bound) {
        if b.back {
            self.client.back_conns.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// A connection is gone.
    pub(crate) fn unbind(&self, conn: ConnId) {
        let mut inner = self.inner.lock();
        if let Some(i) = inner.conns.iter().position(|b| b.conn == conn) {
            let old = inner.conns.remove(i);
            self.forget_back(old);
        }
    }

    /// Callbacks do not get through on this connection: it is the client's to bind another (or this one again).
    pub(crate) fn unbind_back(&self, conn: ConnId) {
        let mut inner = self.inner.lock();
        if let Some(b) = inner.conns.iter_mut().find(|b| b.conn == conn)
            && b.back
        {
            b.back = false;
            self.client.back_conns.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Ends it; returns the connections that were bound.
    pub(crate) fn destroy(&self) -> SmallVec<[ConnId; 4]> {
        let mut inner = self.inner.lock();
        inner.dead = true;
        self.budget.sub(std::mem::take(&mut inner.promised));
        let conns = std::mem::take(&mut inner.conns);
        conns.iter().for_each(|b| self.forget_back(*b));
        conns.iter().map(|b| b.conn).collect()
    }

    /// Status flags of a SEQUENCE reply (RFC 8881 18.46.3). CB_PATH_DOWN is told only to a client that had a back
    /// channel once: one that never wanted callbacks has nothing to repair.
    fn flags(&self, inner: &Inner) -> u32 {
        let mut flags = 0;
        if self.client.had_back.load(Ordering::Relaxed) {
            if self.client.back_conns.load(Ordering::SeqCst) == 0 {
                flags |= seq4_status::CB_PATH_DOWN;
            }
            if inner.back.usable() && !inner.has_back() {
                flags |= seq4_status::CB_PATH_DOWN_SESSION;
            }
        }
        if inner.back.faulty() {
            flags |= seq4_status::BACKCHANNEL_FAULT;
        }
        // (Of what an administrator took away too: a client looks through its delegations only when it hears this.)
        if self.client.revoked.load(Ordering::Relaxed) + self.client.admin_delegs.load(Ordering::Relaxed) > 0 {
            flags |= seq4_status::RECALLABLE_STATE_REVOKED;
        }
        if self.client.admin_revoked.load(Ordering::Relaxed) > 0 {
            flags |= seq4_status::ADMIN_STATE_REVOKED;
        }
        flags
    }

    fn answer(&self, inner: &Inner, args: &SequenceArgs) -> SequenceOk {
        SequenceOk {
            session_id: self.id,
            sequence_id: args.sequence_id,
            slot_id: args.slot_id,
            highest_slot_id: inner.slots.highest(),
            target_highest_slot_id: inner.slots.target_highest(),
            status_flags: self.flags(inner),
        }
    }
}

impl Inner {
    pub(crate) fn has_back(&self) -> bool {
        self.conns.iter().any(|b| b.back)
    }

    pub(crate) fn is_bound(&self, conn: ConnId) -> bool {
        self.conns.iter().any(|b| b.conn == conn)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {:?}", self.id, self.client)
    }
}

/// What a COMPOUND that begins with SEQUENCE is.
#[derive(Debug)]
pub enum Sequence {
    /// New: execute it, then complete the token.
    Fresh(SlotToken),
    /// A retry: send this COMPOUND result again, under the XID of the retry.
    Replay(Reply),
    /// A retry whose reply was not kept: answer SEQUENCE with this and the operation after it, if there is one, with
    /// RETRY_UNCACHED_REP (RFC 8881 2.10.6.1.3).
    Uncached(SequenceOk),
    /// A retry of a request that still runs: answer SEQUENCE with DELAY (RFC 8881 2.10.6.2).
    InProgress,
}

/// A slot in use by an admitted request. Dropping it without [`SlotToken::complete`] (the task died) frees the slot
/// all the same; a retry is then told that the reply was not kept, for the request may have been executed (case K20).
#[must_use = "the slot stays busy until the token is completed or dropped"]
pub struct SlotToken {
    session: Arc<Session>,
    slot: u32,
    cache: bool,
    reply: SequenceOk,
    done: bool,
}

impl SlotToken {
    /// The session.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// The client.
    pub fn client(&self) -> &Arc<Client> {
        &self.session.client
    }

    /// Result of the SEQUENCE.
    pub fn result(&self) -> &SequenceOk {
        &self.reply
    }

    /// Whether the client wants the whole reply kept.
    pub fn cache_this(&self) -> bool {
        self.cache
    }

    /// Largest reply, bytes with RPC header: the cache's bound too, if the reply is to be kept. Past it the operation
    /// that does not fit answers REP_TOO_BIG, or REP_TOO_BIG_TO_CACHE (RFC 8881 2.10.6.4).
    pub fn max_reply(&self) -> (u32, Status) {
        let fore = &self.session.fore;
        if self.cache && fore.max_response_size_cached < fore.max_response_size {
            (fore.max_response_size_cached, Status::REP_TOO_BIG_TO_CACHE)
        } else {
            (fore.max_response_size, Status::REP_TOO_BIG)
        }
    }

    /// Sequence id and slot, for the referring calls of a callback (RFC 8881 2.10.6.3).
    pub fn call_id(&self) -> (SessionId, u32, u32) {
        (self.session.id, self.reply.sequence_id, self.slot)
    }

    /// Ends the request: keeps `reply` (the COMPOUND result without RPC header) for retries if the client asked for
    /// that, frees the slot and renews the lease (RFC 8881 8.3).
    pub fn complete(mut self, reply: Reply, now: Time) {
        let keep = self.cache.then_some(reply);
        self.finish(keep, Some(now));
    }

    fn finish(&mut self, reply: Option<Reply>, now: Option<Time>) {
        if !std::mem::replace(&mut self.done, true) {
            let mut inner = self.session.inner.lock();
            inner.slots.finish(self.slot, reply);
            drop(inner);
            self.session.client.leave(now);
        }
    }
}

impl Drop for SlotToken {
    fn drop(&mut self) {
        self.finish(None, None);
    }
}

impl fmt::Debug for SlotToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlotToken({}:{} of {:?})", self.slot, self.reply.sequence_id, self.session)
    }
}

impl<T: Clone + Send> State<T> {
    /// Judges a SEQUENCE (RFC 8881 18.46). `digest` covers the whole COMPOUND and the user that it runs as, so that a
    /// false retry is found out (2.10.6.1.3.1); it need not be secret, but keyed, lest a client makes two requests
    /// that agree.
    ///
    /// Admission renews the lease and binds the connection to the fore channel (2.10.3.1: SP4_NONE).
    ///
    /// # Errors
    ///
    /// BADSESSION, BADSLOT, BAD_HIGH_SLOT, SEQ_MISORDERED, SEQ_FALSE_RETRY. Nothing has changed then.
    pub fn sequence(&self, conn: ConnId, args: &SequenceArgs, digest: u64, now: Time) -> Result<Sequence, Status> {
        let session = self.session(args.session_id).ok_or(Status::BADSESSION)?;
        // The lease first: once entered, the client cannot begin to die for want of renewal.
        if !session.client.enter(now) {
            return Err(Status::BADSESSION);
        }
        let (result, new) = self.admit(&session, conn, args, digest);
        if new {
            self.note_conn(conn, session.id);
        }
        match result {
            Ok(Sequence::Fresh(mut token)) => {
                token.done = false;
                Ok(Sequence::Fresh(token))
            }
            other => {
                session.client.leave(None);
                other
            }
        }
    }

    fn admit(
        &self,
        session: &Arc<Session>,
        conn: ConnId,
        args: &SequenceArgs,
        digest: u64,
    ) -> (Result<Sequence, Status>, bool) {
        let mut inner = session.inner.lock();
        if inner.dead {
            return (Err(Status::BADSESSION), false);
        }
        let admit = match inner.slots.admit(args.slot_id, args.sequence_id, args.highest_slot_id, digest) {
            Ok(a) => a,
            Err(e) => return (Err(e), false),
        };
        let new = session.bind(&mut inner, conn, true, false, &self.limits());
        let seq = match admit {
            Admit::Replay(r) => Sequence::Replay(r),
            Admit::Uncached => Sequence::Uncached(session.answer(&inner, args)),
            Admit::InProgress => Sequence::InProgress,
            Admit::Fresh => {
                self.grow(session, &mut inner, args.highest_slot_id);
                if inner.slots.settled() {
                    session.rebudget(&mut inner);
                }
                let reply = session.answer(&inner, args);
                let (slot, cache) = (args.slot_id, args.cache_this);
                // `done` until the lock is released: dropping the token takes it.
                Sequence::Fresh(SlotToken { session: session.clone(), slot, cache, reply, done: true })
            }
        };
        (Ok(seq), new)
    }

    /// When the memory promised to replies runs short, sessions that do not use what they were granted give half of the
    /// rest back: the target falls with the next SEQUENCE, and CB_RECALL_SLOT tells those that are idle (RFC 8881 20.8).
    pub(crate) fn tick_slots(&self, effects: &mut Effects<T>) {
        if self.budget.promised() < self.limits().cached_bytes / 8 * 7 {
            return;
        }
        for shard in &self.sessions {
            let sessions: Vec<_> = shard.lock().values().cloned().collect();
            for session in sessions {
                let mut inner = session.inner.lock();
                let used = inner.slots.busiest() + 1;
                let target = inner.slots.target_highest() + 1;
                let less = (used.max(target / 2)).max(self.limits().slots_min);
                if inner.dead || !inner.slots.settled() || less >= target {
                    continue;
                }
                inner.slots.resize(less);
                self.hits.slots.add();
                if inner.has_back() {
                    effects.push(Effect::RecallSlot { session: session.id(), target: less - 1 });
                }
            }
        }
    }

    /// A client that uses all it was granted, and wanted more, gets more as memory allows.
    fn grow(&self, session: &Session, inner: &mut Inner, highest: u32) {
        let target = inner.slots.target_highest() + 1;
        if highest + 1 < target || target >= inner.wanted || inner.slots.highest() + 1 != target {
            return;
        }
        let each = session.fore.max_response_size_cached;
        let more = self.budget.slots(inner.wanted.min(target.saturating_mul(2)), each, &self.limits());
        if more > target {
            inner.slots.resize(more);
            session.rebudget(inner);
        }
    }

    /// BIND_CONN_TO_SESSION (RFC 8881 18.34). RDMA mode is not offered.
    ///
    /// # Errors
    ///
    /// BADSESSION; INVAL for a direction that is none, or that takes a channel away.
    pub fn bind_conn(
        &self,
        conn: ConnId,
        args: &BindConnToSessionArgs,
        now: Time,
    ) -> Result<BindConnToSessionOk, Status> {
        let session = self.session(args.session_id).ok_or(Status::BADSESSION)?;
        let (fore, back) = match args.dir {
            ChannelDirFromClient::FORE => (true, false),
            ChannelDirFromClient::BACK => (false, true),
            ChannelDirFromClient::FORE_OR_BOTH | ChannelDirFromClient::BACK_OR_BOTH => (true, true),
            _ => return Err(Status::INVAL),
        };
        if !session.client.renew(now) {
            return Err(Status::BADSESSION);
        }
        let new = {
            let mut inner = session.inner.lock();
            if inner.dead {
                return Err(Status::BADSESSION);
            }
            // A session made without a usable back channel has none to bind to.
            if !inner.back.usable() {
                return match args.dir {
                    ChannelDirFromClient::FORE | ChannelDirFromClient::FORE_OR_BOTH => {
                        let new = session.bind(&mut inner, conn, true, false, &self.limits());
                        drop(inner);
                        if new {
                            self.note_conn(conn, session.id);
                        }
                        Ok(bound(args, true, false))
                    }
                    _ => Err(Status::INVAL),
                };
            }
            // "Demanding changes to the set of channels": adding one is what a client does whose connection was bound
            // by its first SEQUENCE, and is granted; a connection bound to both cannot be narrowed.
            if let Some(b) = inner.conns.iter().find(|b| b.conn == conn)
                && ((b.fore && !fore && b.back) || (b.back && !back))
            {
                return Err(Status::INVAL);
            }
            session.client.had_back.fetch_or(back, Ordering::Relaxed);
            session.bind(&mut inner, conn, fore, back, &self.limits())
        };
        if new {
            self.note_conn(conn, session.id);
        }
        Ok(bound(args, fore, back))
    }

    /// BACKCHANNEL_CTL (RFC 8881 18.33).
    ///
    /// # Errors
    ///
    /// NOENT if only RPCSEC_GSS handles are given: the server has none.
    pub fn backchannel_ctl(&self, session: &Session, args: &BackchannelCtlArgs) -> Result<(), Status> {
        session.inner.lock().back.control(args.cb_program, &args.sec_parms)
    }

    /// A connection is closed: it carries no session's requests or callbacks any more.
    pub fn conn_closed(&self, conn: ConnId) {
        let ids = self.conns.lock().remove(&conn).unwrap_or_default();
        for id in ids {
            if let Some(s) = self.session(id) {
                s.unbind(conn);
            }
        }
    }

    pub(crate) fn note_conn(&self, conn: ConnId, session: SessionId) {
        let mut conns = self.conns.lock();
        let ids = conns.entry(conn).or_default();
        if !ids.contains(&session) {
            ids.push(session);
        }
    }
}

fn bound(args: &BindConnToSessionArgs, fore: bool, back: bool) -> BindConnToSessionOk {
    let dir = match (fore, back) {
        (true, true) => ChannelDirFromServer::BOTH,
        (_, false) => ChannelDirFromServer::FORE,
        (false, true) => ChannelDirFromServer::BACK,
    };
    BindConnToSessionOk { session_id: args.session_id, dir, use_rdma: false }
}
