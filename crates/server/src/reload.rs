//! Other exports, limits and settings while the server runs.
//!
//! All or nothing: what is wanted is checked first, and where it cannot be, everything stays as it was. What is served
//! is one value ([`Exports`]) that is swapped as a whole; a COMPOUND keeps the one it began with.
//!
//! * An export that stays (the same backend) goes on with its options of now: squash, networks, ports, read-only. Who is
//!   shut out by them hears STALE for its handles, as one that never had them would.
//! * An export that is gone: its handles are STALE, and so is CLOSE of what is open on it. So what clients hold of it is
//!   taken away ([`crate::admin`], RFC 8881 8.5): they learn of it by SEQ4_STATUS_ADMIN_STATE_REVOKED. Requests that began
//!   before the swap may still open files; when the last of them has ended what they got is taken away too.
//! * Delegations that the new options would not give are recalled. None is given where none was possible at the start:
//!   whether a request has to look for delegations is decided then.
//! * Copies between files go on under the rights that they began with.
//!
//! Owner of it all: one task at a time, under `ServerShared::reloading`.

use crate::config::{Delegations, ExportConfig, ServerLimits};
use crate::copy::CopyConfig;
use crate::exports::{Export, ExportError, Exports, OpenToken};
use crate::ids::IdConfig;
use crate::server::{WARM_UP, file_time};
use crate::shared::ServerShared;
use dhow_state::{Limits, Memory};
use std::sync::Arc;
use std::time::Duration;

/// How long the state of exports that are gone is waited for; the rest goes on by itself.
const SWEEP: Duration = Duration::from_secs(5);

/// How often it is looked whether requests that began before the swap have ended.
const LOOK: Duration = Duration::from_millis(50);

/// What is to be in force.
pub struct Reload {
    /// What is served. Where the backend is the same object as before, the export is the same.
    pub exports: Vec<ExportConfig>,
    /// Limits of transport and requests. `max_io` and `request_bytes` stay as they were.
    pub limits: ServerLimits,
    /// Limits of state; see [`dhow_state::State::set_limits`] for what stays.
    pub state: Limits,
    /// Settings of copies. What connections to sources were set up with stays as it was.
    pub copy: CopyConfig,
    /// Names of users and groups; the service stays.
    pub ids: IdConfig,
}

/// What was changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Paths of exports that are new.
    pub added: Vec<String>,
    /// Paths of exports that are gone.
    pub removed: Vec<String>,
    /// Opens and delegations that were on those.
    pub revoked: usize,
}

/// Why everything stays as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReloadError {
    /// The server shuts down.
    #[error("the server is stopping")]
    Stopping,
    /// The exports make no sense together.
    #[error(transparent)]
    Exports(#[from] ExportError),
    /// See the module's header.
    #[error("export {0}: delegations can be turned on at the start only, unless another export had them then")]
    Delegations(String),
}

impl ServerShared {
    /// Puts other exports, limits and settings in force.
    ///
    /// # Errors
    /// As [`ReloadError`] says; nothing has changed then.
    pub async fn reload(self: &Arc<Self>, new: Reload) -> Result<Reloaded, ReloadError> {
        let _one = self.reloading.lock().await;
        if *self.closing.borrow() {
            return Err(ReloadError::Stopping);
        }
        let Reload { exports, limits, state, copy, ids } = new;
        let wants = exports.iter().find(|e| e.options.delegations != Delegations::Off);
        if let Some(export) = wants.filter(|_| !self.delegates()) {
            return Err(ReloadError::Delegations(export.path.clone()));
        }
        // Times of the pseudo-root's directories, so that clients notice that what is in them is another thing.
        let exports = Exports::new(exports, file_time((self.wall)()))?;
        exports.warm(WARM_UP).await;
        self.settle(limits, state, copy, ids);
        let old = self.swap_exports(exports);
        let new = self.exports();
        let has = |list: &Exports, e: &Export| list.list().iter().any(|other| other.same_origin(e));
        let paths = |from: &Exports, without: &Exports| -> Vec<String> {
            from.list().iter().filter(|e| !has(without, e)).map(|e| e.path.clone()).collect()
        };
        let mut done = Reloaded { added: paths(&new, &old), removed: paths(&old, &new), revoked: 0 };
        self.recall_unwanted(&new);
        let gone: Vec<Arc<Export>> = old.list().iter().filter(|e| !has(&new, e)).cloned().collect();
        drop(new);
        if !gone.is_empty() {
            let sweep = tokio::spawn(sweep(Arc::clone(self), old, gone));
            done.revoked = match tokio::time::timeout(SWEEP, sweep).await {
                Ok(swept) => swept.unwrap_or(0),
                Err(_) => {
                    tracing::warn!("requests on exports that are gone still run; what they hold goes when they end");
                    0
                }
            };
        }
        tracing::info!(added = ?done.added, removed = ?done.removed, revoked = done.revoked, "reloaded");
        Ok(done)
    }

    fn settle(&self, limits: ServerLimits, state: Limits, copy: CopyConfig, ids: IdConfig) {
        self.admission.set(limits.connections, limits.connections_per_peer);
        let old = self.limits();
        let (max_io, request_bytes) = (old.max_io, old.request_bytes);
        self.store_limits(ServerLimits { max_io, request_bytes, ..limits });
        self.state.set_limits(state);
        let mut copy = copy;
        let inter = &self.copy().inter;
        copy.inter.connector = inter.connector.clone();
        copy.inter.interfaces = inter.interfaces;
        self.store_copy(copy);
        self.ids.configure(ids);
    }

    /// Recalls delegations of exports that give none any more, or fewer.
    fn recall_unwanted(self: &Arc<Self>, new: &Exports) {
        let unwanted = |token: &OpenToken| {
            let now = new.list().iter().find(|e| e.same_origin(&token.export));
            now.is_some_and(|e| {
                let (now, then) = (e.options.delegations, token.export.options.delegations);
                now != Delegations::All && now != then
            })
        };
        let now = self.now();
        let held = self.state.states_where(unwanted);
        self.send_recalls(held.iter().filter_map(|stateid| self.state.recall(stateid, now)).collect());
    }
}

/// Takes away what is held of exports that are gone; again when the last request that knew `old` has ended. How much was
/// taken away.
async fn sweep(shared: Arc<ServerShared>, old: Arc<Exports>, gone: Vec<Arc<Export>>) -> usize {
    let of_gone = |token: &OpenToken| gone.iter().any(|e| e.same_origin(&token.export));
    let (mut taken, failed) = shared.take_all_away(shared.state.states_where(of_gone), Memory::Leases).await;
    for error in failed {
        tracing::warn!(%error, "state of an export that is gone");
    }
    // This task's own is the last one.
    while Arc::strong_count(&old) > 1 && !*shared.closing.borrow() {
        tokio::time::sleep(LOOK).await;
    }
    taken += shared.take_all_away(shared.state.states_where(of_gone), Memory::Leases).await.0;
    taken
}
