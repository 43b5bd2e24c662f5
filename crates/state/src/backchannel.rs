//! The back channel of a session: calls from the server to the client (RFC 8881 2.10.3.1, 20.9).
//!
//! A callback takes a slot and a connection ([`State::callback`]) and ends in one of three ways: the client answered
//! ([`CbToken::answered`]), the connection broke ([`CbToken::retry`]: the same call must go out again on another
//! connection of the session, 2.10.6.2), or it was given up. A call given up leaves its slot in doubt (did the client
//! see the sequence id?), so the slot is not used again; when all are, the channel is *faulty* and SEQUENCE says so
//! until the client makes a new session.

use crate::State;
use crate::session::Session;
use crate::types::{ClientId, ConnId, SessionId, Status};
use bytes::Bytes;
use dhow_proto::v4::ops::{CallbackSec, ChannelAttrs};
use std::sync::Arc;

#[derive(Clone, Copy, Debug)]
struct CbSlot {
    seqid: u32,
    busy: bool,
    /// In doubt.
    lost: bool,
}

/// The back channel of one session.
#[derive(Debug)]
pub(crate) struct BackChannel {
    attrs: ChannelAttrs,
    program: u32,
    /// The first kind of credential that we can send; `None`: there is no back channel.
    sec: Option<CallbackSec>,
    slots: Vec<CbSlot>,
}

impl BackChannel {
    pub(crate) fn new(attrs: ChannelAttrs, program: u32, sec: &[CallbackSec], max_slots: u32) -> Self {
        let n = attrs.max_requests.min(max_slots) as usize;
        let slots = vec![CbSlot { seqid: 0, busy: false, lost: false }; n];
        let big_enough = attrs.max_operations >= 2 && attrs.max_request_size >= MIN_CB_REQUEST && n > 0;
        Self { attrs, program, sec: if big_enough { usable(sec) } else { None }, slots }
    }

    pub(crate) fn usable(&self) -> bool {
        self.sec.is_some()
    }

    pub(crate) fn faulty(&self) -> bool {
        self.usable() && self.slots.iter().all(|s| s.lost)
    }

    pub(crate) fn control(&mut self, program: u32, sec: &[CallbackSec]) -> Result<(), Status> {
        // An empty list adds nothing and changes the program only.
        if !sec.is_empty() {
            self.sec = Some(usable(sec).ok_or(Status::NOENT)?);
        }
        self.program = program;
        Ok(())
    }

    fn take(&mut self) -> Option<(u32, u32, u32)> {
        let i = self.slots.iter().position(|s| !s.busy && !s.lost)?;
        let s = self.slots.get_mut(i)?;
        s.busy = true;
        s.seqid = s.seqid.wrapping_add(1);
        let seqid = s.seqid;
        let highest = self.slots.iter().rposition(|s| s.busy).unwrap_or(i);
        Some((i as u32, seqid, highest as u32))
    }

    fn put(&mut self, slot: u32, seen: Seen) {
        if let Some(s) = self.slots.get_mut(slot as usize) {
            s.busy = false;
            match seen {
                Seen::Yes => {}
                Seen::No => s.seqid = s.seqid.wrapping_sub(1),
                Seen::Unknown => s.lost = true,
            }
        }
    }
}

/// Smallest `ca_maxrequestsize` of a back channel that a CB_COMPOUND of CB_SEQUENCE and one operation with a handle
/// and a stateid fits into.
pub(crate) const MIN_CB_REQUEST: u32 = 512;

fn usable(sec: &[CallbackSec]) -> Option<CallbackSec> {
    let mut sec = sec.iter().find(|s| matches!(s, CallbackSec::None | CallbackSec::Sys(_))).cloned();
    if let Some(CallbackSec::Sys(sys)) = &mut sec {
        // Lest the whole record that it came in stays in memory with the session.
        sys.machine = Bytes::copy_from_slice(&sys.machine);
    }
    sec
}

enum Seen {
    Yes,
    No,
    Unknown,
}

/// A callback under way. Dropping it without a result gives the call up.
#[must_use = "a callback ends by an answer, a retry, or is given up"]
#[derive(Debug)]
pub struct CbToken {
    session: Arc<Session>,
    conn: ConnId,
    slot: u32,
    seqid: u32,
    highest: u32,
    program: u32,
    sec: CallbackSec,
    max_request: u32,
    done: bool,
}

impl CbToken {
    /// The session.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// The connection to send on.
    pub fn conn(&self) -> ConnId {
        self.conn
    }

    /// The slot.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// The sequence id.
    pub fn sequence_id(&self) -> u32 {
        self.seqid
    }

    /// The highest slot with a callback outstanding.
    pub fn highest_slot(&self) -> u32 {
        self.highest
    }

    /// RPC program number.
    pub fn program(&self) -> u32 {
        self.program
    }

    /// The credential to use.
    pub fn sec(&self) -> &CallbackSec {
        &self.sec
    }

    /// Largest call, bytes with RPC header.
    pub fn max_request(&self) -> u32 {
        self.max_request
    }

    /// CB_SEQUENCE was answered with success: the sequence id is used up.
    pub fn answered(mut self) {
        self.end(Seen::Yes);
    }

    /// The client refused CB_SEQUENCE, or the call never left: the sequence id was not used (RFC 8881 20.9.3).
    pub fn refused(mut self) {
        self.end(Seen::No);
    }

    /// The connection broke (or did not answer) before the answer came: it leaves the back channel, and the same
    /// call goes out on another connection of the session, if there is one.
    ///
    /// Returns whether there is one; if not, wait for one and ask again, or drop the token.
    pub fn retry(&mut self) -> bool {
        self.session.unbind_back(self.conn);
        let other = self.session.inner.lock().conns.iter().find(|b| b.back).map(|b| b.conn);
        if let Some(conn) = other {
            self.conn = conn;
        }
        other.is_some()
    }

    fn end(&mut self, seen: Seen) {
        if !std::mem::replace(&mut self.done, true) {
            self.session.inner.lock().back.put(self.slot, seen);
        }
    }
}

impl Drop for CbToken {
    fn drop(&mut self) {
        self.end(Seen::Unknown);
    }
}

/// Why a callback cannot be sent now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CbUnavailable {
    /// There is no such client or session.
    NoClient,
    /// No connection is bound to a back channel.
    PathDown,
    /// All slots are in use: try again when one is free.
    Busy,
}

impl<T: Clone + Send> State<T> {
    /// Takes a slot and a connection for a callback to `client`, on the session `prefer` if that has a path.
    ///
    /// # Errors
    ///
    /// See [`CbUnavailable`].
    pub fn callback(&self, client: ClientId, prefer: Option<SessionId>) -> Result<CbToken, CbUnavailable> {
        let mut sessions = self.sessions_of(client).ok_or(CbUnavailable::NoClient)?;
        sessions.sort_by_key(|s| Some(s.id()) != prefer);
        let mut why = CbUnavailable::PathDown;
        for session in sessions {
            match self.callback_on(&session) {
                Ok(token) => return Ok(token),
                Err(CbUnavailable::Busy) => why = CbUnavailable::Busy,
                Err(_) => {}
            }
        }
        Err(why)
    }

    /// As [`State::callback`], on this session and no other.
    ///
    /// # Errors
    ///
    /// See [`CbUnavailable`].
    pub fn callback_on(&self, session: &Arc<Session>) -> Result<CbToken, CbUnavailable> {
        let mut inner = session.inner.lock();
        if inner.dead {
            return Err(CbUnavailable::NoClient);
        }
        let conn = inner.conns.iter().find(|b| b.back).map(|b| b.conn).ok_or(CbUnavailable::PathDown)?;
        let sec = inner.back.sec.clone().ok_or(CbUnavailable::PathDown)?;
        let (program, max_request) = (inner.back.program, inner.back.attrs.max_request_size);
        let (slot, seqid, highest) = inner.back.take().ok_or(CbUnavailable::Busy)?;
        drop(inner);
        let session = session.clone();
        Ok(CbToken { session, conn, slot, seqid, highest, program, sec, max_request, done: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel(slots: u32) -> BackChannel {
        let attrs = ChannelAttrs {
            header_pad_size: 0,
            max_request_size: 4096,
            max_response_size: 4096,
            max_response_size_cached: 0,
            max_operations: 2,
            max_requests: slots,
            rdma_ird: vec![],
        };
        BackChannel::new(attrs, 0x4000_0000, &[CallbackSec::None], 16)
    }

    #[test]
    fn sequence_ids_start_at_one_and_count_answers() {
        // RFC 8881 18.36.4, 20.9.
        let mut b = channel(2);
        assert_eq!(b.take(), Some((0, 1, 0)));
        assert_eq!(b.take(), Some((1, 1, 1)));
        assert_eq!(b.take(), None);
        b.put(0, Seen::Yes);
        assert_eq!(b.take(), Some((0, 2, 1)));
        b.put(0, Seen::No);
        assert_eq!(b.take(), Some((0, 2, 1)), "a refused CB_SEQUENCE does not use the sequence id up");
    }

    #[test]
    fn a_lost_call_takes_its_slot_along() {
        let mut b = channel(1);
        assert!(b.take().is_some());
        assert!(!b.faulty());
        b.put(0, Seen::Unknown);
        assert_eq!(b.take(), None);
        assert!(b.faulty());
    }

    #[test]
    fn only_credentials_that_can_be_sent_make_a_channel() {
        let attrs = channel(1).attrs;
        assert!(!BackChannel::new(attrs.clone(), 1, &[], 16).usable());
        let small = ChannelAttrs { max_request_size: 100, ..attrs };
        assert!(!BackChannel::new(small, 1, &[CallbackSec::None], 16).usable());
    }
}
