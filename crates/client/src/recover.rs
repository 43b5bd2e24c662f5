//! Carries out what the recovery state machine asks for: client ID, session, reclaims. One task for each client.

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

async fn create(inner: &Arc<Inner>, client_id: ClientId, sequence: u32) -> Result<After> {
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
        opens::reopen_all(inner, &session).await?;
    }
    let now = inner.now();
    let mut state = inner.state.lock();
    state.reclaimed_at = now;
    Ok(state.recovery.completed(res.status.ok()))
}

/// Asks how long the lease is, once in each session.
pub(crate) async fn learn_lease(inner: &Arc<Inner>) -> Result<()> {
    let epoch = inner.session().await?.epoch;
    if inner.state.lock().lease_known == epoch {
        return Ok(());
    }
    let attr_request = Bitmap::of(&[attr::LEASE_TIME]);
    let ops = vec![ArgOp::PutRootFh, ArgOp::Getattr(GetattrArgs { attr_request })];
    let res = inner.execute_patiently(Request::new(ops)).await?;
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
                    tokio::select! { () = closed => return, () = tokio::time::sleep(wait) => Ok(()) }
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
    loop {
        let Some(strong) = inner.upgrade().filter(|i| !i.is_closed()) else { return };
        strong.revoked.notified().await;
        if let Err(e) = opens::test_all(&strong).await {
            tracing::debug!(error = %e, "cannot test stateids");
        }
        // The flag stays set until all is acknowledged: do not ask after each reply.
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
