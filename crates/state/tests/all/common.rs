//! A server's state, a clock, and clients that keep to the rules.

use bytes::Bytes;
use dhow_proto::v4::ops::{CallbackSec, ChannelAttrs, CreateSessionArgs, SequenceArgs, create_session};
use dhow_state::*;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Tokens of open files are numbers here.
pub type S = Arc<State<u32>>;

pub const LEASE: u64 = 90;

pub fn t(secs: u64) -> Time {
    Time::from_secs(secs)
}

pub fn limits() -> Limits {
    Limits { lease: Duration::from_secs(LEASE), ..Limits::default() }
}

pub fn server() -> S {
    server_with(limits(), &[])
}

pub fn server_with(limits: Limits, previous: &[&str]) -> S {
    let record = |o: &&str| ClientRecord { owner: owner_id(o), holds: Holds::NONE, revoked: Revoked::default() };
    let records = previous.iter().map(record).collect();
    Arc::new(State::new(limits, &Identity { instance: 1, secret: [7; 16] }, records, t(0)))
}

pub fn owner_id(s: &str) -> ClientOwnerId {
    ClientOwnerId(Bytes::copy_from_slice(s.as_bytes()))
}

pub fn who(uid: u32) -> Principal {
    Principal(Bytes::copy_from_slice(&uid.to_be_bytes()))
}

pub fn bytes(s: &str) -> Bytes {
    Bytes::copy_from_slice(s.as_bytes())
}

pub fn file(s: &str) -> FileKey {
    FileKey::new(s.as_bytes())
}

pub fn exchange(owner: &str, verifier: u8, uid: u32) -> ExchangeId {
    ExchangeId { owner: owner_id(owner), verifier: Verifier([verifier; 8]), principal: who(uid), update: false }
}

pub fn channel(slots: u32) -> ChannelAttrs {
    ChannelAttrs {
        header_pad_size: 0,
        max_request_size: 1 << 20,
        max_response_size: 1 << 20,
        max_response_size_cached: 4096,
        max_operations: 16,
        max_requests: slots,
        rdma_ird: vec![],
    }
}

pub fn session_args(client: ClientId, sequence: u32) -> CreateSessionArgs {
    CreateSessionArgs {
        client_id: client,
        sequence,
        flags: create_session::CONN_BACK_CHAN,
        fore_chan: channel(8),
        back_chan: channel(4),
        cb_program: 0x4000_0000,
        sec_parms: vec![CallbackSec::None],
    }
}

/// A client with a session on connection `conn`.
pub struct C {
    pub s: S,
    pub id: ClientId,
    pub session: SessionId,
    pub conn: ConnId,
    pub me: Arc<Client>,
    next: [u32; 8],
}

impl C {
    /// EXCHANGE_ID, CREATE_SESSION, RECLAIM_COMPLETE; its record is durable.
    pub fn new(s: &S, owner: &str, now: Time) -> Self {
        let c = Self::reclaiming(s, owner, now);
        let _ = s.reclaim_complete(&c.me).unwrap();
        c
    }

    /// As [`C::new`], before its RECLAIM_COMPLETE.
    pub fn reclaiming(s: &S, owner: &str, now: Time) -> Self {
        let got = s.exchange_id(&exchange(owner, 1, 0), now).unwrap();
        let conn = ConnId(got.client.0 & 0xffff | 0x1_0000);
        let made = s.create_session(conn, 2, &session_args(got.client, got.sequence_id), &who(0), now).unwrap();
        assert_eq!(made.retire, None);
        let me = s.client(got.client).unwrap();
        me.recorded(Holds::ALL);
        Self { s: s.clone(), id: got.client, session: made.ok.session_id, conn, me, next: [1; 8] }
    }

    pub fn args(&self, slot: u32) -> SequenceArgs {
        SequenceArgs {
            session_id: self.session,
            sequence_id: self.next[slot as usize],
            slot_id: slot,
            highest_slot_id: slot,
            cache_this: true,
        }
    }

    /// A new request on a slot.
    pub fn begin(&mut self, slot: u32, now: Time) -> Result<SlotToken, Status> {
        let args = self.args(slot);
        match self.s.sequence(self.conn, &args, u64::from(args.sequence_id), now)? {
            Sequence::Fresh(token) => {
                self.next[slot as usize] += 1;
                Ok(token)
            }
            other => panic!("{other:?}"),
        }
    }

    /// A whole request that does nothing.
    pub fn renew(&mut self, now: Time) -> Result<(), Status> {
        self.begin(0, now)?.complete(Reply::from([]), now);
        Ok(())
    }

    pub fn plan(
        &self,
        f: &str,
        owner: &str,
        access: Share,
        deny: Share,
        now: Time,
    ) -> Result<OpenPlan<'_, u32>, Refused> {
        let (f, owner) = (file(f), bytes(owner));
        let req = OpenRequest { file: &f, owner: &owner, access, deny, claim: Claim::New };
        self.s.plan_open(&self.me, &req, now)
    }

    pub fn open(&self, f: &str, owner: &str, access: Share, deny: Share, now: Time) -> Result<Stateid, Refused> {
        Ok(self.plan(f, owner, access, deny, now)?.commit(1).unwrap().stateid)
    }

    pub fn close(&self, f: &str, stateid: &Stateid) -> Result<Effects<u32>, Status> {
        let plan = self.s.plan_close(&self.me, &file(f), stateid)?;
        assert!(plan.drain().is_done());
        Ok(plan.commit())
    }

    pub fn io(&self, f: &str, stateid: &Stateid, kind: IoKind, now: Time) -> Result<IoToken<u32>, Refused> {
        self.s.begin_io(&self.me, &file(f), stateid, kind, now)
    }

    pub fn lock(
        &self,
        f: &str,
        locker: Locker<'_>,
        range: Range,
        kind: LockKind,
        now: Time,
    ) -> Result<Stateid, LockRefused> {
        let f = file(f);
        let req = LockRequest { file: &f, locker, range, kind, claim: Claim::New };
        Ok(self.s.plan_lock(&self.me, &req, now)?.commit()?)
    }

    pub fn unlock(&self, f: &str, stateid: &Stateid, range: Range) -> Result<Stateid, Status> {
        self.s.plan_unlock(&self.me, &file(f), stateid, range)?.commit()
    }
}

/// Polls once.
pub fn ready(f: impl Future<Output = ()>) -> bool {
    let f = std::pin::pin!(f);
    f.poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
}

/// Retires a client to the end; the effects, and the record that was to be forgotten.
pub fn retire(s: &S, id: ClientId, now: Time) -> Option<(Effects<u32>, Option<ClientOwnerId>)> {
    let r = s.retire(id, now)?;
    assert!(ready(r.drain()));
    let forget = r.forget().cloned();
    Some((r.finish(), forget))
}

pub fn range(first: u64, last: u64) -> Range {
    Range { first, last }
}
