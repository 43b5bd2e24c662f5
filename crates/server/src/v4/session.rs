//! What SEQUENCE gives to the COMPOUND loop.

use bytes::Bytes;
use dhow_proto::v4::Status;
use dhow_proto::v4::ops::SequenceOk;
use std::sync::Arc;

/// A reply that can be sent again: the COMPOUND result from its status on, without RPC header.
pub(crate) type Reply = Arc<[Bytes]>;

/// What a SEQUENCE turned out to be.
pub(crate) enum Sequenced {
    /// A new request: go on.
    Fresh(SequenceOk, Session),
    /// A retry: send this again.
    Replay(Reply),
    /// A retry whose reply was not kept: SEQUENCE succeeds, what follows it is RETRY_UNCACHED_REP.
    Uncached(SequenceOk),
}

/// The session of a COMPOUND.
pub(crate) struct Session {
    /// Largest reply in bytes, RPC header included, and what to answer when it does not fit (REP_TOO_BIG, or
    /// REP_TOO_BIG_TO_CACHE when the client wants the reply kept).
    pub max_reply: (usize, Status),
    /// To be called once at the end, with the reply.
    pub done: Box<dyn FnOnce(Reply) + Send + Sync>,
}
