//! Further sessions of the client ID, for servers that grant few slots: made, tended and destroyed as
//! [`dhow_session::pool`] says.
//!
//! # Owner
//!
//! The recovery task does it while nothing is to be recovered, since CREATE_SESSIONs of one client ID share one sequence
//! and go one after the other (RFC 8881 section 18.36.4). Only connecting, which may take long, is done beside it.
//!
//! # Failures
//!
//! What goes wrong with a further session is never an error of anybody's request: the session is given up, requests
//! that were on it are judged one by one as after any loss of a session, and those that wait use the sessions left.

use std::sync::Arc;
use std::time::Duration;

use dhow_net::Connection;
use dhow_proto::v4::ops::DestroySessionArgs;
use dhow_proto::v4::{ArgOp, ClientId, Status};
use dhow_session::pool::Advice;

use crate::inner::{Home, Inner, Link, Session};
use crate::recover::{Created, alone, create_session, session};
use crate::{links, rpc};

/// How long the destruction of a session may take before it is left to the server.
const GOODBYE: Duration = Duration::from_secs(5);

/// Does what the pool advises, then waits until there may be something to do for the recovery task.
pub(crate) async fn tend(inner: &Arc<Inner>) {
    let dialled = inner.dialled.lock().pop();
    if let Some(conn) = dialled {
        return make(inner, conn).await;
    }
    let now = inner.now();
    let advice = {
        let mut state = inner.state.lock();
        while state.waiters.front().is_some_and(|w| w.tx.is_closed()) {
            state.waiters.pop_front();
        }
        let (waiting, first) = (state.waiters.len(), state.waiters.front().map_or(now, |w| w.since));
        let advice = state.pool.advise(now, waiting, first);
        state.growth_watched = waiting > 0 && matches!(advice, Advice::Wait(_)) && state.pool.may_grow();
        advice
    };
    match advice {
        Advice::Grow(more) => {
            for _ in 0..more {
                tokio::spawn(dial(Arc::clone(inner)));
            }
        }
        Advice::Destroy(epoch) => {
            let session = inner.state.lock().session_of(epoch);
            if let Some(session) = session {
                tracing::debug!(server = %inner.config.server, ?epoch, "a session is not needed any more");
                destroy(inner, &session).await;
            }
            // Only now its connection is let go.
            inner.state.lock().further.retain(|s| s.epoch != epoch);
            inner.changed();
        }
        Advice::Wait(until) => {
            tokio::select! {
                biased;
                () = inner.kick.notified() => {}
                () = tokio::time::sleep(until.saturating_sub(now)) => {}
            }
        }
        Advice::Rest => inner.kick.notified().await,
    }
}

/// Connects for a further session, and hands the connection to the recovery task.
async fn dial(inner: Arc<Inner>) {
    match links::dial(&inner.config).await {
        Ok(stream) => {
            let conn = links::start(&inner, stream);
            inner.dialled.lock().push(conn);
        }
        Err(e) => {
            tracing::debug!(server = %inner.config.server, error = %e, "cannot connect for a further session");
            let now = inner.now();
            inner.state.lock().pool.failed(false, now);
        }
    }
    inner.kick.notify_one();
}

/// Makes a further session on `conn`.
async fn make(inner: &Arc<Inner>, conn: Connection) {
    let further = {
        let state = inner.state.lock();
        state.recovery.further()
    };
    let give_up = |why: &str, refused: bool| {
        tracing::debug!(server = %inner.config.server, why, "no further session");
        let now = inner.now();
        inner.state.lock().pool.failed(refused, now);
        conn.close(dhow_net::CloseReason::Local("no further session"));
    };
    let Some((clientid, sequence)) = further else { return give_up("the client ID is being recovered", false) };
    // Recovery must not wait for a server that has gone quiet; an answer that is given up is as good as lost.
    let asked = create_session(inner, &conn, ClientId(clientid), sequence);
    let Ok(answer) = tokio::time::timeout(inner.config.connect_timeout, asked).await else {
        return give_up("no answer to CREATE_SESSION", true);
    };
    let (id, fore, back) = match answer {
        Ok(Created::Session { id, fore, back }) => (id, fore, back),
        Ok(Created::Refused(status)) => {
            inner.state.lock().recovery.further_created((clientid, sequence), Err(status));
            return give_up(&status.to_string(), !matches!(status, Status::DELAY | Status::STALE_CLIENTID));
        }
        Err(e) => return give_up(&e.to_string(), false),
    };
    let now = inner.now();
    let made = {
        let mut state = inner.state.lock();
        let epoch = state.recovery.further_created((clientid, sequence), Ok(()));
        let like_primary = state.session.as_ref().is_some_and(|p| {
            fore.max_request_size >= p.fore.max_request_size
                && fore.max_response_size >= p.fore.max_response_size
                && fore.max_response_size_cached >= p.fore.max_response_size_cached
                && fore.max_operations >= p.fore.max_operations
        });
        match epoch {
            // Requests are cut to what the primary session takes, and must go through any.
            Some(epoch) if like_primary => {
                let slots = fore.max_requests;
                let session = session(epoch, state.minor, (id, fore, back));
                state.pool.add(epoch, slots, now);
                state.further.push(session);
                tracing::debug!(server = %inner.config.server, ?epoch, slots, "further session created");
                Ok(epoch)
            }
            epoch => Err((state.minor, epoch.is_some())),
        }
    };
    match made {
        Ok(epoch) => {
            let link = Link::new(Home::Further(epoch), true);
            inner.add_link(Arc::clone(&link));
            tokio::spawn(links::keep(Arc::downgrade(inner), link, Some(conn)));
            inner.serve_waiters();
        }
        Err((minor, too_small)) => {
            let op = ArgOp::DestroySession(DestroySessionArgs { session_id: id });
            let told = rpc::alone(&conn, inner.next_xid(), &inner.config.credential, minor, op);
            let _ = tokio::time::timeout(GOODBYE, told).await;
            give_up("it would be of no use", too_small);
        }
    }
}

/// Tells the server to forget a session, as far as it can be told: over one of its own connections (RFC 8881 section
/// 18.37.3).
pub(crate) async fn destroy(inner: &Inner, session: &Session) {
    let Some(conn) = inner.pick_bound(session.epoch) else { return };
    let told = async {
        for _ in 0..10 {
            let op = ArgOp::DestroySession(DestroySessionArgs { session_id: session.id });
            match alone(inner, &conn, op).await {
                Ok(res) if res.status() == Status::DELAY || res.status() == Status::BACK_CHAN_BUSY => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Ok(_) => return,
                Err(e) => return tracing::debug!(error = %e, "cannot destroy a session"),
            }
        }
    };
    if tokio::time::timeout(GOODBYE, told).await.is_err() {
        tracing::debug!("the server does not answer to DESTROY_SESSION");
    }
}
