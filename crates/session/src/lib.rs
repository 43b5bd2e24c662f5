//! The client's half of an NFSv4.1 session as state machines without I/O (RFC 8881 sections 2.10 and 8).
//!
//! | Module | State it owns |
//! |---|---|
//! | [`slots`] | the slot table of the fore channel: which slots are busy, their sequence ids, how many the server grants |
//! | [`pool`] | several sessions of one client ID: which takes the next request, when to make another, when to end one |
//! | [`call`] | what becomes of one request: accepted, sent again as the same bytes, or given up |
//! | [`recovery`] | client ID and session: what has to be re-established, in which order |
//! | [`lease`] | when the lease must be renewed, and when it may have expired |
//! | [`backchannel`] | slots of the back channel: callbacks executed once, answered again from their cache |
//! | [`backoff`] | waiting times for DELAY, GRACE and reconnection |
//! | [`status_flags`] | what the flags in a SEQUENCE reply ask for |
//!
//! # Owner
//!
//! One driver owns all of it behind one short lock: it feeds facts (a reply, a lost connection, the time) and carries
//! out what comes back (send, wait, create a session). Nothing here waits, sends, reads a clock or draws a random
//! number: [`Time`] and seeds are parameters.
//!
//! # Invariants
//!
//! * A slot has at most one request. Its sequence id moves on only when SEQUENCE of that request has succeeded.
//! * A slot whose request may have been executed is never given to another request (RFC 8881 section 2.10.6.2). The
//!   request is repeated, byte for byte, until an answer comes; if that cannot be, the slot stays out of use for the
//!   life of the session.
//! * Facts about an earlier session (a late reply, one of a hundred BADSESSION answers) change nothing: each carries
//!   the [`Epoch`] in which its request was sent.
//! * What the server says of a further session concerns that session alone; what it says of the client ID, over any
//!   session, concerns all.
//! * Exactly one recovery runs at a time, and no new request is sent while one does.
//!
//! # Failures
//!
//! What cannot be repaired here is named and handed up: an outcome that nobody can know any more
//! ([`call::Verdict::SessionLost`] with `maybe_executed`), a server that refuses the client for good
//! ([`recovery::Step::Failed`]).

pub mod backchannel;
pub mod backoff;
pub mod call;
pub mod classify;
pub mod lease;
pub mod pool;
pub mod recovery;
pub mod slots;
pub mod status_flags;

/// A point in time: how long after an arbitrary start that is the same for all calls on one object.
pub type Time = core::time::Duration;

/// Counts the sessions of one client, from 1, further sessions of one client ID included. A fact from an earlier epoch is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u64);
