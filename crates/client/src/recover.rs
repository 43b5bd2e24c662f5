//! Carries out what the recovery state machine asks for: client ID, session, reclaims. One task for each client.
//!
//! # What is done about lost state
//!
//! Owners: `dhow_session::recovery` decides about client ID and session, this module sends what it asks for, `opens`
//! knows opens, locks and what became of them, `deleg` delegations. *Plain* and *guarded* opens: see `opens`. Errors
//! name what is lost ([`Error::StateLost`] with [`Lost`](crate::Lost)) and stay until the file is closed; nothing that was
//! lost is ever had again behind the caller's back unless that makes no difference to what the caller relies on.
//!
//! | The server says | Session, client ID | Opens and locks | Delegations | The caller sees |
//! |---|---|---|---|---|
//! | BADSESSION, DEADSESSION | new session of the same client ID | left as they are | left | nothing; OutcomeUnknown for a request that may have been done and must not be done twice |
//! | STALE_CLIENTID, or a client ID that is another one (a restart; or it dropped us) | new client ID and session; RECLAIM_COMPLETE | reclaimed (CLAIM_PREVIOUS, LOCK with reclaim) | reclaimed with their opens | nothing |
//! | RESTART_RECLAIM_NEEDED, STALE_STATEID (restarted, session kept) | kept; RECLAIM_COMPLETE | reclaimed | reclaimed | nothing |
//! | any refusal of a reclaim: NO_GRACE, RECLAIM_BAD, RECLAIM_CONFLICT, STALE, the credential | — | plain: opened anew by handle after RECLAIM_COMPLETE, while calls about other files go on; guarded, or refused again: lost | lost | StateLost with the server's reason |
//! | EXPIRED_ALL_STATE_REVOKED | new client ID under a new verifier | nothing is reclaimed; plain: opened anew; guarded: lost | lost | StateLost (EXPIRED) |
//! | EXPIRED_SOME_STATE_REVOKED, ADMIN_STATE_REVOKED, RECALLABLE_STATE_REVOKED | kept | all are tested (TEST_STATEID), the revoked acknowledged (FREE_STATEID), then as the next two rows; again after 1 s and, while nothing is found, ever more seldom | lost | as the next two rows |
//! | EXPIRED, BAD_STATEID, DELEG_REVOKED of one stateid | kept | plain: opened anew; guarded: lost | lost; the open goes on | StateLost |
//! | ADMIN_REVOKED of one stateid | kept | lost, plain or not: somebody decided so | lost | StateLost |
//! | OLD_STATEID | kept | asked again with seqid 0, the newest | — | nothing |
//! | GRACE, DELAY | kept | asked again, for up to 300 s of waiting | — | nothing, then the status |
//! | CONN_NOT_BOUND_TO_SESSION | the connection is bound again | — | — | nothing |
//! | SEQ_MISORDERED to SEQUENCE | the slot is not used any more; without slots, another session | — | — | nothing; OutcomeUnknown where an earlier transmission is in doubt |
//! | SEQ_MISORDERED to CREATE_SESSION | new client ID under a new verifier | as after a refused reclaim | | |
//! | BACKCHANNEL_FAULT | no new requests, what is out ends, DESTROY_SESSION, new session | left | left | nothing |
//! | CB_PATH_DOWN, CB_PATH_DOWN_SESSION | the connection is bound to the back channel, every 5 s at most | left | subject to revocation | nothing |
//! | LEASE_MOVED | kept; every filesystem with an open file is asked, until the flag is cleared: [`crate::moved`] | left | left | Moved from what has moved |
//! | CB_GSS_…, DEVID_… | nothing: neither GSS nor pNFS is used | | | |
//!
//! What may have been given up before the state was lost, and so been granted to others since, is not reclaimed: an open
//! whose CLOSE is out, a lock whose LOCKU is out (see `opens`), a delegation that is being returned; nor is an open that
//! is lost already.
//!
//! CLOSE of an open that is lost says StateLost too, whether an earlier call said so or not, and so does one that finds a
//! guarded open gone: a caller who was told of no error had what was promised until the end.
//!
//! A lock or an open with DENY that was granted by an answer older than a lease, or while state was being lost, is tested
//! before the caller hears of it. I/O of a lock-owner carries the stateid of its locks, so that a lock that is lost by
//! itself stops the next READ or WRITE. A copy that runs at the server is lost with the client ID (CopyLost).
//!
//! Unstable data is not kept here: what was not committed under the verifier of its WRITE is for the caller to write
//! again ([`Error::WritesLost`]; [`File::commit`](crate::File::commit) returns the verifier). COMMIT of a lost open is
//! refused by StateLost, so that nobody takes it for done.
//!
//! What goes wrong with one open (its user's credential is refused, its reply makes no sense) is that open's loss; the
//! client ends only when client ID or session cannot be had at all.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use dhow_net::Connection;
use dhow_proto::NFS4_CALLBACK_PROGRAM;
use dhow_proto::v4::ops::{
    CallbackSec, ChannelAttrs, ClientOwner, CreateSessionArgs, ExchangeIdArgs, ExchangeIdOk, GetattrArgs,
    ReclaimCompleteArgs, StateProtectArgs, StateProtectRes, create_session, exchgid,
};
use dhow_proto::v4::{ArgOp, Bitmap, ClientId, ImplId, NfsTime, OpNum, ResOp, SessionId, Status, Verifier, attr};
use dhow_rpc::{AuthSys, Credential};
use dhow_session::Epoch;
use dhow_session::backchannel::BackSlots;
use dhow_session::recovery::{After, ClientIdentity, Step};
use parking_lot::Mutex;

use crate::call::Request;
use crate::inner::{Inner, OVERHEAD, Session};
use crate::{Error, Result, opens, rpc, sessions};

/// Bytes of a reply that the server is asked to keep for a retry: enough for anything that is not data.
const CACHED: u32 = 4096;
/// Operations in one COMPOUND that are asked for.
const MAX_OPS: u32 = 64;
/// Callbacks in flight that are offered.
const BACK_SLOTS: u32 = 16;

/// How long stateids are not tested again after they were, at first and at last.
const REVOKED_AGAIN: Duration = Duration::from_secs(1);
const REVOKED_SELDOM: Duration = Duration::from_secs(64);

/// How long a session that was given up waits for the answers that are still due in it.
const DRAIN: Duration = Duration::from_secs(5);

/// Runs until the client is closed.
pub(crate) async fn run(inner: Weak<Inner>) {
    loop {
        let Some(inner) = inner.upgrade() else { return };
        let step = inner.state.lock().recovery.step();
        let done = match step {
            Step::Closed => return,
            Step::Failed(status) => {
                inner.fail(Error::status(OpNum::EXCHANGE_ID, status));
                return;
            }
            Step::Ready => {
                inner.changed();
                inner.serve_waiters();
                sessions::tend(&inner).await;
                continue;
            }
            Step::ExchangeId { incarnation } => exchange_id(&inner, incarnation).await,
            Step::CreateSession { clientid, sequence } => create(&inner, ClientId(clientid), sequence).await,
            Step::Reclaim => reclaim(&inner).await,
            Step::ReclaimComplete => reclaim_complete(&inner).await,
        };
        match done {
            Ok(After::Now) => {}
            Ok(After::Wait(wait)) => tokio::time::sleep(wait).await,
            // The connection broke: ask again on the next one. Its maker waits between attempts.
            Err(Error::Io { .. }) => tokio::time::sleep(Duration::from_millis(20)).await,
            // The session is gone again: the state machine knows, and says what comes next.
            Err(Error::Status { status: Status::BADSESSION | Status::DEADSESSION, .. }) => {}
            Err(e) => {
                inner.fail(e);
                return;
            }
        }
    }
}

/// Any connection of the primary session.
async fn connection(inner: &Inner) -> Result<Connection> {
    inner
        .when(|inner| match inner.pick_primary() {
            Some(conn) => Some(Ok(conn)),
            None => inner.failure().map(Err),
        })
        .await
}

pub(crate) async fn alone(inner: &Inner, conn: &Connection, op: ArgOp) -> Result<ResOp> {
    inner.counters.call([op.op()].into_iter());
    let minor = inner.state.lock().minor;
    rpc::alone(conn, inner.next_xid(), &inner.config.credential, minor, op).await
}

async fn exchange_id(inner: &Arc<Inner>, incarnation: u32) -> Result<After> {
    let conn = connection(inner).await?;
    let instance = inner.nonce.wrapping_add(u64::from(incarnation));
    let op = ArgOp::ExchangeId(ExchangeIdArgs {
        client_owner: ClientOwner { verifier: Verifier(instance.to_be_bytes()), owner_id: owner(inner) },
        flags: exchgid::USE_NON_PNFS,
        state_protect: StateProtectArgs::None,
        impl_id: vec![ImplId {
            domain: Bytes::from_static(b"dhow.invalid"),
            name: Bytes::from_static(concat!("dhow ", env!("CARGO_PKG_VERSION")).as_bytes()),
            date: NfsTime::default(),
        }],
    });
    let status = match alone(inner, &conn, op).await {
        Ok(ResOp::ExchangeId(Ok(ok))) => return exchanged(inner, &ok),
        Ok(res) => res.status(),
        Err(Error::Status { status, .. }) => status,
        Err(e) => return Err(e),
    };
    if status == Status::MINOR_VERS_MISMATCH {
        let mut state = inner.state.lock();
        let offered = &inner.config.minor_versions;
        let next = offered.iter().skip_while(|m| **m != state.minor).nth(1);
        return match next {
            Some(minor) => {
                state.minor = *minor;
                Ok(After::Now)
            }
            None => {
                let names: Vec<_> = offered.iter().map(|m| format!("4.{m}")).collect();
                Err(Error::Unsupported(format!("the server does not speak NFS version {}", names.join(" or ")).into()))
            }
        };
    }
    Ok(inner.state.lock().recovery.exchanged(Err(status)))
}

fn exchanged(inner: &Inner, ok: &ExchangeIdOk) -> Result<After> {
    if ok.state_protect != StateProtectRes::None {
        return Err(Error::protocol("the server granted a state protection that was not asked for"));
    }
    *inner.server.lock() = Some(ok.clone());
    let identity = ClientIdentity {
        clientid: ok.client_id.0,
        sequence: ok.sequence_id,
        confirmed: ok.flags & exchgid::CONFIRMED_R != 0,
    };
    let mut state = inner.state.lock();
    if !(identity.confirmed && state.recovery.clientid() == Some(identity.clientid)) {
        state.drop_further();
        // Nothing is known to the server under the new client ID, copies neither: nobody would tell of their end.
        inner.state_lost();
        inner.offloads.lose_all();
        state.abandoned = None;
    }
    Ok(state.recovery.exchanged(Ok(identity)))
}

/// The client owner: unique to this instance unless one was given.
fn owner(inner: &Inner) -> Bytes {
    match &inner.config.owner {
        Some(owner) => owner.clone(),
        None => {
            let (host, pid) = (crate::config::host_name(), std::process::id());
            Bytes::from(format!("dhow {host} {pid} {:016x}", inner.nonce))
        }
    }
}

/// What CREATE_SESSION came to.
pub(crate) enum Created {
    /// A session, with limits that are no more than was asked for.
    Session {
        id: SessionId,
        fore: ChannelAttrs,
        back: ChannelAttrs,
    },
    Refused(Status),
}

/// Sends CREATE_SESSION on `conn`. The arguments are the same for every session of this client: see
/// [`dhow_session::recovery::Recovery::further`].
pub(crate) async fn create_session(
    inner: &Inner,
    conn: &Connection,
    client_id: ClientId,
    sequence: u32,
) -> Result<Created> {
    let size = inner.config.max_io + OVERHEAD;
    let fore = ChannelAttrs {
        header_pad_size: 0,
        max_request_size: size,
        max_response_size: size,
        max_response_size_cached: CACHED,
        max_operations: MAX_OPS,
        max_requests: inner.config.slots.max(1),
        rdma_ird: Vec::new(),
    };
    let back = ChannelAttrs {
        max_request_size: OVERHEAD,
        max_response_size: OVERHEAD,
        max_response_size_cached: CACHED,
        max_operations: 16,
        max_requests: BACK_SLOTS,
        ..fore.clone()
    };
    let sys = match &inner.config.credential {
        Credential::Sys(sys) => sys.clone(),
        _ => AuthSys { stamp: 0, machine: Bytes::new(), uid: 0, gid: 0, gids: Default::default() },
    };
    let op = ArgOp::CreateSession(CreateSessionArgs {
        client_id,
        sequence,
        flags: create_session::CONN_BACK_CHAN,
        fore_chan: fore,
        back_chan: back,
        cb_program: NFS4_CALLBACK_PROGRAM,
        sec_parms: vec![CallbackSec::Sys(sys)],
    });
    let ok = match alone(inner, conn, op).await {
        Ok(ResOp::CreateSession(Ok(ok))) => ok,
        Ok(res) => return Ok(Created::Refused(res.status())),
        Err(Error::Status { status, .. }) => return Ok(Created::Refused(status)),
        Err(e) => return Err(e),
    };
    if ok.sequence != sequence {
        return Err(Error::protocol("CREATE_SESSION was answered with another sequence"));
    }
    let fore = ChannelAttrs {
        max_request_size: ok.fore_chan.max_request_size.min(size),
        max_response_size: ok.fore_chan.max_response_size.min(size),
        max_response_size_cached: ok.fore_chan.max_response_size_cached.min(CACHED),
        max_operations: ok.fore_chan.max_operations.min(MAX_OPS),
        ..ok.fore_chan
    };
    Ok(Created::Session { id: ok.session_id, fore, back: ok.back_chan })
}

/// A session in the client's terms.
pub(crate) fn session(
    epoch: Epoch,
    minor: u32,
    (id, fore, back): (SessionId, ChannelAttrs, ChannelAttrs),
) -> Arc<Session> {
    let back = Mutex::new(BackSlots::new(back.max_requests.min(BACK_SLOTS)));
    Arc::new(Session { epoch, id, minor, fore, back })
}

/// Destroys the session that was given up, once the requests in it have had their answers (RFC 8881 section 18.46.3,
/// BACKCHANNEL_FAULT). A server that leaves them unanswered is left with it.
async fn destroy_abandoned(inner: &Arc<Inner>) {
    let Some(session) = inner.state.lock().abandoned.take() else { return };
    let drained = async {
        while inner.state.lock().pool.table(session.epoch).busy() > 0 {
            tokio::time::sleep(DRAIN / 100).await;
        }
    };
    let _ = tokio::time::timeout(DRAIN, drained).await;
    sessions::destroy(inner, &session).await;
}

async fn create(inner: &Arc<Inner>, client_id: ClientId, sequence: u32) -> Result<After> {
    destroy_abandoned(inner).await;
    let conn = connection(inner).await?;
    let (id, fore, back) = match create_session(inner, &conn, client_id, sequence).await? {
        Created::Session { id, fore, back } => (id, fore, back),
        Created::Refused(status) => return Ok(inner.state.lock().recovery.created(Err(status))),
    };
    // Below this not even a path of a few names can be looked up.
    if fore.max_request_size < 1024 || fore.max_response_size < 1024 || fore.max_operations < 4 {
        return Err(Error::Unsupported("the server grants sessions too small to work with".into()));
    }
    let slots = fore.max_requests;
    let epoch = {
        let mut state = inner.state.lock();
        let after = state.recovery.created(Ok(()));
        let epoch = state.recovery.epoch();
        state.pool.set_primary(epoch, slots);
        state.session = Some(session(epoch, state.minor, (id, fore, back)));
        debug_assert_eq!(after, After::Now);
        epoch
    };
    tracing::debug!(server = %inner.config.server, ?epoch, slots, "session created");
    // This connection belongs to the new session by itself (section 18.36.3); the others bind themselves.
    inner.bound(&conn, epoch);
    Ok(After::Now)
}

fn current(inner: &Inner) -> Result<Arc<Session>> {
    inner.state.lock().session.clone().ok_or(Error::status(OpNum::SEQUENCE, Status::BADSESSION))
}

async fn reclaim(inner: &Arc<Inner>) -> Result<After> {
    let session = current(inner)?;
    opens::reclaim_all(inner, &session).await?;
    inner.state.lock().recovery.reclaimed();
    Ok(After::Now)
}

async fn reclaim_complete(inner: &Arc<Inner>) -> Result<After> {
    let session = current(inner)?;
    let ops = vec![ArgOp::ReclaimComplete(ReclaimCompleteArgs { one_fs: false })];
    let request = Request { cache: true, internal: Some(Arc::clone(&session)), ..Request::new(ops) };
    let res = inner.execute(request).await?;
    if matches!(res.status, Status::OK | Status::COMPLETE_ALREADY | Status::NOTSUPP) {
        opens::settle_all(inner);
    }
    let now = inner.now();
    let mut state = inner.state.lock();
    state.reclaimed_at = now;
    Ok(state.recovery.completed(res.status.ok()))
}

/// Asks how long the lease is, once in each session.
pub(crate) async fn learn_lease(inner: &Arc<Inner>) -> Result<()> {
    let _one_at_a_time = inner.lease_asked.lock().await;
    let epoch = inner.session().await?.epoch;
    if inner.state.lock().lease_known == epoch {
        return Ok(());
    }
    let attr_request = Bitmap::of(&[attr::LEASE_TIME]);
    let ops = vec![ArgOp::PutRootFh, ArgOp::Getattr(GetattrArgs { attr_request })];
    let res = inner.execute_patiently(Request { setup: true, ..Request::new(ops) }).await?;
    let mut state = inner.state.lock();
    if let Some(ResOp::Getattr(Ok(ok))) = res.results.last()
        && let Some(seconds) = ok.attrs.lease_time
    {
        state.lease.set_length(Duration::from_secs(seconds.into()));
    }
    state.lease_known = epoch;
    Ok(())
}

/// Renews the lease whenever nothing else has done it for half its length.
pub(crate) async fn renew(inner: Weak<Inner>) {
    loop {
        let Some(strong) = inner.upgrade().filter(|i| !i.is_closed()) else { return };
        let done = match learn_lease(&strong).await {
            Ok(()) => {
                let wait = strong.state.lock().lease.until_due(strong.now());
                if wait.is_zero() {
                    strong.execute(Request::new(Vec::new())).await.map(|_| ())
                } else {
                    // Wakes early when the client is closed.
                    let closed = strong.when(|i| i.is_closed().then_some(()));
                    tokio::select! { biased; () = closed => return, () = tokio::time::sleep(wait) => Ok(()) }
                }
            }
            Err(e) => Err(e),
        };
        match done {
            Ok(()) => {}
            Err(Error::Closed) => return,
            Err(e) => {
                tracing::debug!(error = %e, "cannot renew the lease");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// Looks after revoked state whenever the server says that there is some.
pub(crate) async fn watch_revoked(inner: Weak<Inner>) {
    let mut pause = REVOKED_AGAIN;
    loop {
        let Some(strong) = inner.upgrade().filter(|i| !i.is_closed()) else { return };
        strong.revoked.notified().await;
        // The flag stays set until all is acknowledged: do not ask after each reply, and the less so when it is about
        // nothing that is known here.
        pause = match opens::examine_all(&strong).await {
            Ok(true) => REVOKED_AGAIN,
            Ok(false) => (pause * 2).min(REVOKED_SELDOM),
            Err(e) => {
                tracing::debug!(error = %e, "cannot test stateids");
                REVOKED_AGAIN
            }
        };
        drop(strong);
        tokio::time::sleep(pause).await;
    }
}
