//! The table of clients: EXCHANGE_ID, CREATE_SESSION, DESTROY_SESSION, DESTROY_CLIENTID, RECLAIM_COMPLETE, and what time
//! does to clients.
//!
//! One mutex guards the table; nothing of the hot path takes it. For one client owner there is at most one confirmed
//! and at most one unconfirmed record (RFC 8881 18.35.4, item 5). A client that dies leaves the owner's entry at once,
//! so that a new instance can be made, but stays in the table by its ID until it is retired. While its durable record
//! is still to be removed, no new instance of its owner is confirmed: else the removal could hit the new one's record.

use crate::backchannel::{BackChannel, MIN_CB_REQUEST};
use crate::client::Client;
use crate::ids::{Keyed, Map};
use crate::session::Session;
use crate::types::*;
use crate::{Limits, State};
use bytes::Bytes;
use dhow_proto::v4::ops::{ChannelAttrs, CreateSessionArgs, CreateSessionOk, create_session};
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(crate) struct Record {
    pub(crate) client: Arc<Client>,
    pub(crate) confirmed: bool,
    created: Time,
    /// The reply cache of CREATE_SESSION: one slot (RFC 8881 18.36.4).
    cs_seqid: u32,
    cs_reply: Result<CreateSessionOk, Status>,
    pub(crate) sessions: Vec<Arc<Session>>,
    /// Dying: its durable record is to be removed.
    forget: bool,
}

#[derive(Clone, Copy, Default)]
struct Incarnations {
    confirmed: Option<ClientId>,
    unconfirmed: Option<ClientId>,
}

/// The table.
pub(crate) struct Clients {
    pub(crate) by_id: Map<ClientId, Record>,
    by_owner: Map<ClientOwnerId, Incarnations>,
    /// Owners whose record is being removed.
    forgetting: Map<ClientOwnerId, usize>,
    unconfirmed: usize,
}

impl Clients {
    pub(crate) fn new(keyed: Keyed) -> Self {
        Self {
            by_id: Map::with_hasher(keyed),
            by_owner: Map::with_hasher(keyed),
            forgetting: Map::with_hasher(keyed),
            unconfirmed: 0,
        }
    }

    fn confirmed(&self, owner: &ClientOwnerId) -> Option<&Record> {
        self.by_id.get(&self.by_owner.get(owner)?.confirmed?)
    }

    pub(crate) fn remove_unconfirmed(&mut self, owner: &ClientOwnerId) {
        if let Some(e) = self.by_owner.get_mut(owner)
            && let Some(id) = e.unconfirmed.take()
        {
            if e.confirmed.is_none() {
                self.by_owner.remove(owner);
            }
            self.by_id.remove(&id);
            self.unconfirmed -= 1;
        }
    }

    fn oldest_unconfirmed(&self) -> Option<ClientOwnerId> {
        let r = self.by_id.values().filter(|r| !r.confirmed).min_by_key(|r| (r.created, r.client.id()))?;
        Some(r.client.owner().clone())
    }

    /// A client dies: it leaves its owner's entry.
    pub(crate) fn detach(&mut self, id: ClientId, forget: bool) {
        let Some(r) = self.by_id.get_mut(&id) else { return };
        let owner = r.client.owner().clone();
        r.forget = forget;
        if forget {
            *self.forgetting.entry(owner.clone()).or_default() += 1;
        }
        if let Some(e) = self.by_owner.get_mut(&owner)
            && e.confirmed == Some(id)
        {
            e.confirmed = None;
            if e.unconfirmed.is_none() {
                self.by_owner.remove(&owner);
            }
        }
    }
}

/// What EXCHANGE_ID asks, as far as the state is concerned.
#[derive(Clone, Debug)]
pub struct ExchangeId {
    /// `co_ownerid`.
    pub owner: ClientOwnerId,
    /// `co_verifier`.
    pub verifier: Verifier,
    /// Who asks.
    pub principal: Principal,
    /// EXCHGID4_FLAG_UPD_CONFIRMED_REC_A is set.
    pub update: bool,
}

/// What EXCHANGE_ID answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExchangedId {
    /// The client ID.
    pub client: ClientId,
    /// Sequence id for the next CREATE_SESSION.
    pub sequence_id: u32,
    /// Whether the client ID is confirmed (EXCHGID4_FLAG_CONFIRMED_R).
    pub confirmed: bool,
    /// Run [`State::retire`] for this one.
    pub retire: Option<ClientId>,
}

/// What CREATE_SESSION answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CreatedSession {
    /// The result.
    pub ok: CreateSessionOk,
    /// The earlier incarnation that this one replaces: run [`State::retire`] for it before the reply goes out.
    pub retire: Option<ClientId>,
}

/// Smallest request and reply of a fore channel: RPC header with an empty credential, and a COMPOUND of SEQUENCE alone.
const MIN_REQUEST: u32 = 88;
const MIN_REPLY: u32 = 80;

fn negotiate_fore(a: &ChannelAttrs, l: &Limits) -> Result<ChannelAttrs, Status> {
    if a.max_request_size < MIN_REQUEST || a.max_response_size < MIN_REPLY {
        return Err(Status::TOOSMALL);
    }
    if a.max_requests == 0 || a.max_operations == 0 {
        return Err(Status::INVAL);
    }
    let max_response_size = a.max_response_size.min(l.max_reply);
    Ok(ChannelAttrs {
        header_pad_size: 0,
        max_request_size: a.max_request_size.min(l.max_request),
        max_response_size,
        max_response_size_cached: a.max_response_size_cached.min(l.max_cached_reply).min(max_response_size),
        max_operations: a.max_operations.min(l.max_ops),
        max_requests: a.max_requests,
        rdma_ird: Vec::new(),
    })
}

/// The server must not change the counts of the back channel, and must not raise its sizes (RFC 8881 18.36.3).
fn negotiate_back(a: &ChannelAttrs, wanted: bool) -> Result<ChannelAttrs, Status> {
    if wanted && (a.max_request_size < MIN_CB_REQUEST || a.max_response_size < MIN_REPLY || a.max_operations < 2) {
        return Err(Status::TOOSMALL);
    }
    Ok(ChannelAttrs { header_pad_size: 0, rdma_ird: Vec::new(), ..a.clone() })
}

impl<T: Clone + Send> State<T> {
    /// EXCHANGE_ID (RFC 8881 18.35.4; the numbers of the scenarios are those there).
    ///
    /// # Errors
    ///
    /// INVAL (owner too long), NOENT, NOT_SAME, PERM, CLID_INUSE; DELAY when there are too many clients.
    pub fn exchange_id(&self, args: &ExchangeId, now: Time) -> Result<ExchangedId, Status> {
        if args.owner.0.len() > dhow_proto::v4::OPAQUE_LIMIT {
            return Err(Status::INVAL);
        }
        let mut t = self.clients.lock();
        let mut retire = None;
        let confirmed = t.confirmed(&args.owner).map(|r| (r.client.clone(), r.cs_seqid));
        if args.update {
            // 6 to 9.
            let Some((c, cs_seqid)) = confirmed else { return Err(Status::NOENT) };
            if c.verifier() != args.verifier {
                return Err(Status::NOT_SAME);
            }
            if *c.principal() != args.principal {
                return Err(Status::PERM);
            }
            return Ok(ExchangedId {
                client: c.id(),
                sequence_id: cs_seqid.wrapping_add(1),
                confirmed: true,
                retire: None,
            });
        }
        if let Some((c, cs_seqid)) = confirmed {
            if *c.principal() != args.principal {
                // 3: collision.
                if c.has_state() && !c.is_expired(now) {
                    return Err(Status::CLID_INUSE);
                }
                if c.kill(now) {
                    t.detach(c.id(), c.is_recorded());
                    retire = Some(c.id());
                }
            } else if c.verifier() == args.verifier {
                // 2: retry, or trunking. An unconfirmed record of another incarnation gives way (5, last bullet).
                t.remove_unconfirmed(&args.owner);
                return Ok(ExchangedId {
                    client: c.id(),
                    sequence_id: cs_seqid.wrapping_add(1),
                    confirmed: true,
                    retire: None,
                });
            }
            // 5: restart. The confirmed record stays until the new one is confirmed.
        }
        // 4: an unconfirmed record is replaced. 1: new.
        t.remove_unconfirmed(&args.owner);
        if t.unconfirmed >= self.limits().unconfirmed_clients
            && let Some(owner) = t.oldest_unconfirmed()
        {
            self.hits.unconfirmed_clients.add();
            t.remove_unconfirmed(&owner);
        }
        if t.by_id.len() >= self.limits().clients {
            self.pressed.store(true, Ordering::Relaxed);
            self.hits.clients.add();
            return Err(Status::DELAY);
        }
        let id = self.ids.client();
        // Copied: the request's bytes are a slice of its whole record, which would stay in memory with the client.
        let (owner, principal) = (ClientOwnerId(Bytes::copy_from_slice(&args.owner.0)), args.principal.clone());
        let client = Client::new(id, owner.clone(), args.verifier, principal, self.limits().lease, now);
        let record = Record {
            client: Arc::new(client),
            confirmed: false,
            created: now,
            cs_seqid: 0,
            cs_reply: Err(Status::SEQ_MISORDERED),
            sessions: Vec::new(),
            forget: false,
        };
        t.by_id.insert(id, record);
        t.by_owner.entry(owner).or_default().unconfirmed = Some(id);
        t.unconfirmed += 1;
        Ok(ExchangedId { client: id, sequence_id: 1, confirmed: false, retire })
    }

    /// CREATE_SESSION (RFC 8881 18.36.4). The connection is bound to the fore channel, and to the back channel if
    /// asked. `minor` is the minor version of the COMPOUND.
    ///
    /// # Errors
    ///
    /// STALE_CLIENTID, SEQ_MISORDERED, CLID_INUSE, INVAL, TOOSMALL, NOSPC (too many sessions), DELAY (the previous
    /// incarnation's end is not finished; nothing has changed).
    pub fn create_session(
        &self,
        conn: ConnId,
        minor: u32,
        args: &CreateSessionArgs,
        principal: &Principal,
        now: Time,
    ) -> Result<CreatedSession, Status> {
        let done = self.create_session_locked(conn, minor, args, principal, now)?;
        self.note_conn(conn, done.ok.session_id);
        Ok(done)
    }

    fn create_session_locked(
        &self,
        conn: ConnId,
        minor: u32,
        args: &CreateSessionArgs,
        principal: &Principal,
        now: Time,
    ) -> Result<CreatedSession, Status> {
        let mut guard = self.clients.lock();
        let t = &mut *guard;
        // 1: look-up.
        let r = t.by_id.get_mut(&args.client_id).filter(|r| !r.client.is_dying()).ok_or(Status::STALE_CLIENTID)?;
        // 2: sequence.
        if args.sequence == r.cs_seqid {
            return r.cs_reply.clone().map(|ok| CreatedSession { ok, retire: None });
        }
        if args.sequence != r.cs_seqid.wrapping_add(1) {
            return Err(Status::SEQ_MISORDERED);
        }
        // 3, the part that refuses. Somebody else's request does not touch the slot.
        if r.client.principal() != principal {
            return Err(Status::CLID_INUSE);
        }
        if !r.confirmed && t.forgetting.contains_key(r.client.owner()) {
            return Err(Status::DELAY);
        }
        r.cs_seqid = args.sequence;
        // 4 before the rest of 3: "once the session is successfully created, the replacement is committed".
        let (session, back_chan) = match self.make_session(r, minor, args) {
            Ok(s) => s,
            Err(e) => {
                r.cs_reply = Err(e);
                return Err(e);
            }
        };
        let back = args.flags & create_session::CONN_BACK_CHAN != 0;
        {
            let mut inner = session.inner.lock();
            let back = back && inner.back.usable();
            session.client().had_back.fetch_or(back, Ordering::Relaxed);
            session.bind(&mut inner, conn, true, back, &self.limits());
        }
        let flags = if session.has_callback_path() { create_session::CONN_BACK_CHAN } else { 0 };
        let ok = CreateSessionOk {
            session_id: session.id(),
            sequence: args.sequence,
            flags,
            fore_chan: session.fore().clone(),
            back_chan,
        };
        r.cs_reply = Ok(ok.clone());
        r.sessions.push(session.clone());
        r.client.renew(now);
        self.insert_session(session);
        let mut retire = None;
        if !std::mem::replace(&mut r.confirmed, true) {
            let client = r.client.clone();
            t.unconfirmed -= 1;
            if let Some(before) = self.grace.lock().before(client.owner()) {
                client.recorded(before.holds);
                client.lost.lock().before = before.revoked.clone();
            }
            let e = t.by_owner.entry(client.owner().clone()).or_default();
            let old = e.confirmed.replace(client.id());
            e.unconfirmed = None;
            // The record belongs to the owner: the new incarnation inherits it.
            if let Some(old) = old.and_then(|id| t.by_id.get(&id)).map(|r| r.client.clone())
                && old.kill(now)
            {
                if old.is_recorded() {
                    client.recorded(old.holds());
                    client.lost.lock().outdated = !old.lost.lock().is_empty();
                }
                t.detach(old.id(), false);
                retire = Some(old.id());
            }
        }
        Ok(CreatedSession { ok, retire })
    }

    fn make_session(
        &self,
        r: &Record,
        minor: u32,
        args: &CreateSessionArgs,
    ) -> Result<(Arc<Session>, ChannelAttrs), Status> {
        let known = create_session::PERSIST | create_session::CONN_BACK_CHAN | create_session::CONN_RDMA;
        if args.flags & !known != 0 {
            return Err(Status::INVAL);
        }
        if r.sessions.len() >= self.limits().sessions_per_client
            || self.session_count.load(Ordering::Relaxed) >= self.limits().sessions
        {
            self.hits.sessions.add();
            return Err(Status::NOSPC);
        }
        let mut fore = negotiate_fore(&args.fore_chan, &self.limits())?;
        let back_chan = negotiate_back(&args.back_chan, args.flags & create_session::CONN_BACK_CHAN != 0)?;
        let wanted = fore.max_requests.min(self.limits().slots_per_session);
        let asked = fore.max_requests;
        fore.max_requests = self.budget.slots(wanted, fore.max_response_size_cached, &self.limits());
        if fore.max_requests < asked {
            self.hits.slots.add();
        }
        let back = BackChannel::new(back_chan.clone(), args.cb_program, &args.sec_parms, self.limits().callback_slots);
        let id = self.ids.session(r.client.id());
        let session = Session::new(id, r.client.clone(), minor, fore, wanted, back, self.budget.clone());
        Ok((Arc::new(session), back_chan))
    }

    /// DESTROY_SESSION (RFC 8881 18.37). A connection that is not bound to the session may destroy it only if none is
    /// (the client lost them all). Requests of the session that still run finish, and their replies are sent.
    ///
    /// # Errors
    ///
    /// BADSESSION, CONN_NOT_BOUND_TO_SESSION.
    pub fn destroy_session(&self, conn: ConnId, id: SessionId) -> Result<(), Status> {
        let session = self.session(id).ok_or(Status::BADSESSION)?;
        {
            let inner = session.inner.lock();
            if !inner.conns.is_empty() && !inner.is_bound(conn) {
                return Err(Status::CONN_NOT_BOUND_TO_SESSION);
            }
        }
        {
            let mut t = self.clients.lock();
            if let Some(r) = t.by_id.get_mut(&session.client().id()) {
                r.sessions.retain(|s| s.id() != id);
            }
        }
        self.end_session(&session);
        Ok(())
    }

    pub(crate) fn end_session(&self, session: &Session) {
        self.remove_session(session.id());
        let conns = session.destroy();
        let mut table = self.conns.lock();
        for c in conns {
            if let Some(ids) = table.get_mut(&c) {
                ids.retain(|i| *i != session.id());
                if ids.is_empty() {
                    table.remove(&c);
                }
            }
        }
    }

    /// DESTROY_CLIENTID (RFC 8881 18.50); `own` is the client of the SEQUENCE before it, if there is one. On success
    /// run [`State::retire`] for the client before the reply goes out, if one is named.
    ///
    /// # Errors
    ///
    /// STALE_CLIENTID, CLIENTID_BUSY.
    pub fn destroy_client(&self, id: ClientId, own: Option<ClientId>, now: Time) -> Result<Option<ClientId>, Status> {
        let mut t = self.clients.lock();
        let r = t.by_id.get(&id).filter(|r| !r.client.is_dying()).ok_or(Status::STALE_CLIENTID)?;
        let client = r.client.clone();
        if own == Some(id) || ((!r.sessions.is_empty() || client.has_state()) && !client.is_expired(now)) {
            return Err(Status::CLIENTID_BUSY);
        }
        if !r.confirmed {
            t.remove_unconfirmed(client.owner());
            return Ok(None);
        }
        if client.kill(now) {
            t.detach(id, client.is_recorded());
        }
        Ok(Some(id))
    }

    /// RECLAIM_COMPLETE, for all filesystems (RFC 8881 18.51); with `rca_one_fs` there is nothing to do here.
    ///
    /// # Errors
    ///
    /// COMPLETE_ALREADY.
    pub fn reclaim_complete(&self, client: &Client) -> Result<Effects<T>, Status> {
        if client.reclaim_complete.swap(true, Ordering::SeqCst) {
            return Err(Status::COMPLETE_ALREADY);
        }
        client.lost.lock().agreed();
        let ended = self.grace.lock().complete(client.owner());
        if ended {
            self.grace_active.store(false, Ordering::SeqCst);
        }
        Ok(if ended { vec![Effect::GraceEnded] } else { Vec::new() })
    }

    /// Whether the grace period runs.
    pub fn in_grace(&self) -> bool {
        self.grace_active.load(Ordering::SeqCst)
    }

    /// What clients of the instance before may yet reclaim that stands against changes of files and names.
    pub fn may_be_reclaimed(&self) -> Holds {
        if self.in_grace() { self.grace.lock().holds() } else { Holds::NONE }
    }

    /// The records of [`Effect::EndGrace`] are removed, durably: the grace period is over.
    pub fn grace_over(&self) {
        let unfinished = {
            let mut grace = self.grace.lock();
            let unfinished = grace.over();
            self.grace_active.store(false, Ordering::SeqCst);
            unfinished
        };
        let t = self.clients.lock();
        for owner in unfinished {
            if let Some(r) = t.confirmed(&owner) {
                r.client.unrecorded();
            }
        }
    }

    /// Sessions of a client; `None` if there is no such client.
    pub(crate) fn sessions_of(&self, id: ClientId) -> Option<Vec<Arc<Session>>> {
        self.clients.lock().by_id.get(&id).map(|r| r.sessions.clone())
    }

    /// The client of this ID, if it is known and confirmed.
    pub fn client(&self, id: ClientId) -> Option<Arc<Client>> {
        self.clients.lock().by_id.get(&id).filter(|r| r.confirmed).map(|r| r.client.clone())
    }

    /// Number of client records, dying ones included.
    pub fn client_count(&self) -> usize {
        self.clients.lock().by_id.len()
    }

    /// What time does to clients: unconfirmed records go after a lease (RFC 8881 18.35.4), clients whose lease ended
    /// go at once if they hold nothing, after the courtesy time, or when clients are too many.
    pub(crate) fn tick_clients(&self, now: Time, effects: &mut Effects<T>) {
        let pressed = self.pressed.swap(false, Ordering::Relaxed);
        let mut t = self.clients.lock();
        let stale: Vec<_> = t
            .by_id
            .values()
            .filter(|r| !r.confirmed && now.since(r.created) > self.limits().lease)
            .map(|r| r.client.owner().clone())
            .collect();
        stale.iter().for_each(|o| t.remove_unconfirmed(o));
        let mut ids: Vec<_> = t
            .by_id
            .values()
            .filter(|r| r.confirmed)
            .filter(|r| {
                let c = &r.client;
                let late = now.since(c.lease_end()) > self.limits().courtesy;
                c.is_dying() && !c.retiring.load(Ordering::SeqCst)
                    || c.is_expired(now) && (late || pressed || !c.has_state())
            })
            .map(|r| r.client.id())
            .collect();
        drop(t);
        ids.sort();
        effects.extend(ids.into_iter().map(Effect::Retire));
    }

    /// Begins to retire: see [`State::retire`].
    pub(crate) fn start_retire(&self, id: ClientId, now: Time) -> Option<(Arc<Client>, Vec<Arc<Session>>, bool)> {
        let mut t = self.clients.lock();
        let client = t.by_id.get(&id).filter(|r| r.confirmed)?.client.clone();
        if !client.is_dying() {
            if !client.kill_if_expired(now) {
                return None;
            }
            t.detach(id, client.is_recorded());
        }
        if client.retiring.swap(true, Ordering::SeqCst) {
            return None;
        }
        let r = t.by_id.get_mut(&id)?;
        Some((client, std::mem::take(&mut r.sessions), r.forget))
    }

    /// The end of a retired client.
    pub(crate) fn end_retire(&self, client: &Client) {
        let mut t = self.clients.lock();
        if let Some(r) = t.by_id.remove(&client.id())
            && r.forget
            && let Some(n) = t.forgetting.get_mut(client.owner())
        {
            *n -= 1;
            if *n == 0 {
                t.forgetting.remove(client.owner());
            }
        }
    }
}
