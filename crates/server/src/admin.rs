//! What an administrator sees of a running server, and does to it. The binary offers it on a socket of its own; here is
//! neither transport nor format.
//!
//! Looking takes the locks that requests take, each for one page of bounded length, and waits for nothing. Taking away
//! goes as the operation of the client would: gate of the file, plan, wait for the I/O, commit, backend
//! (`dhow_state::Revocation`, RFC 8881 8.5). Every wait is bounded; what cannot be done in that time is left as it was
//! and said so ([`AdminError::Busy`]), but for the end of a client, which goes on by itself.
//!
//! A server that stops takes no more orders ([`AdminError::Stopping`]); looking at one that has stopped is harmless, for
//! the state lives as long as somebody looks (case K19).

use crate::exports::{Export, OpenToken};
use crate::gates::GATE_WAIT;
use crate::metrics::ServerMetrics;
use crate::shared::ServerShared;
use dhow_proto::v4::{ClientId, OpNum, Stateid, Status};
use dhow_state::{ClientInfo, CopyInfo, FileKey, Memory, Page, Revocation, StateFilter, StateInfo, Time};
use dhow_vfs::{Cx, Name, ObjectId};
use futures_util::StreamExt;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Entries of one page at most.
pub const PAGE: usize = 1000;

/// How long the look-up of a path may take.
const LOOK_UP: Duration = Duration::from_secs(10);

/// States revoked side by side.
const AT_ONCE: usize = 32;

/// Why an order was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// The server shuts down.
    #[error("the server is stopping")]
    Stopping,
    /// There is no such thing.
    #[error("no such {0}")]
    NotFound(&'static str),
    /// It takes too long; the reason.
    #[error("{0}")]
    Busy(&'static str),
    /// It cannot be, or need not be.
    #[error("{0}")]
    Refused(String),
}

/// A client with where it is connected from.
#[derive(Clone, Debug)]
pub struct ClientView {
    /// What the state knows.
    pub info: ClientInfo,
    /// Peers of its connections, without those of a virtual network.
    pub peers: Vec<SocketAddr>,
}

/// Counters as they were at some time.
#[derive(Debug, Default)]
pub(crate) struct Baseline {
    at: Time,
    values: BTreeMap<String, u64>,
}

/// Counters since they were last reset.
#[derive(Clone, Debug)]
pub struct Counters {
    /// Time since then, or since the start.
    pub since: Duration,
    /// By name, those that are not 0.
    pub values: BTreeMap<String, u64>,
}

impl ServerShared {
    fn takes_orders(&self) -> Result<(), AdminError> {
        if *self.closing.borrow() { Err(AdminError::Stopping) } else { Ok(()) }
    }

    /// Clients from behind `after`, at most `most` and [`PAGE`].
    pub fn admin_clients(&self, after: Option<ClientId>, most: usize) -> Page<ClientView> {
        let page = self.state.admin_clients(after, most.min(PAGE), self.now());
        let conns = self.conns.lock();
        let view = |info: ClientInfo| {
            let peers = info.conns.iter().filter_map(|c| conns.get(&c.0)?.peer).collect();
            ClientView { info, peers }
        };
        Page { items: page.items.into_iter().map(view).collect(), more: page.more }
    }

    /// Opens, locks and delegations from behind `after`, at most `most` and [`PAGE`].
    pub fn admin_states(
        &self,
        filter: &StateFilter,
        after: Option<&Stateid>,
        most: usize,
    ) -> Page<StateInfo<OpenToken>> {
        self.state.admin_states(filter, after, most.min(PAGE))
    }

    /// Asynchronous copies from behind `after`, at most `most` and [`PAGE`].
    pub fn admin_copies(&self, after: Option<&Stateid>, most: usize) -> Page<CopyInfo> {
        self.state.admin_copies(after, most.min(PAGE))
    }

    /// The file at a path of the server's namespace, as state is kept by it. Symbolic links are not followed.
    ///
    /// # Errors
    /// There is none, or the export does not answer.
    pub async fn admin_file(&self, path: &str) -> Result<FileKey, AdminError> {
        let exports = self.exports();
        let rest_of = |export: &Arc<Export>| {
            let rest = path.strip_prefix(export.path.trim_end_matches('/'))?;
            (rest.is_empty() || rest.starts_with('/')).then(|| rest.to_owned())
        };
        let holding = exports.list().iter().filter_map(|e| Some((Arc::clone(e), rest_of(e)?)));
        let (export, rest) = holding.max_by_key(|(e, _)| e.path.len()).ok_or(AdminError::NotFound("export"))?;
        let walk = async {
            let cx = Cx::root();
            let failed = |e: dhow_vfs::Error| AdminError::Refused(format!("{path}: {e}"));
            let mut node = export.root(&cx).await.map_err(failed)?;
            for part in rest.split('/').filter(|p| !p.is_empty()) {
                let name = Name::new(part.to_owned().into()).map_err(|_| AdminError::NotFound("file"))?;
                node = export.backend.lookup(&cx, &node.handle, &name).await.map_err(failed)?;
            }
            Ok(FileKey::new(export.backend.object_id(&node.handle).as_bytes()))
        };
        tokio::time::timeout(LOOK_UP, walk).await.unwrap_or(Err(AdminError::Busy("the export does not answer")))
    }

    /// Ends a client, whatever its lease says: its sessions, opens, locks, delegations and copies, and its durable record.
    /// It hears BADSESSION, and may come back as a new client.
    ///
    /// # Errors
    /// There is no such client; or it takes long, and goes on by itself.
    pub async fn admin_expire(self: &Arc<Self>, id: ClientId) -> Result<(), AdminError> {
        self.takes_orders()?;
        if !self.state.expire_client(id, self.now()) {
            return Err(AdminError::NotFound("client"));
        }
        tracing::warn!(client = %format_args!("{:#x}", id.0), "ended by the administrator");
        let busy = "its requests still run; it gets no new ones, and its state goes when they end";
        self.clear_the_way(id).await.map_err(|_| AdminError::Busy(busy))
    }

    /// Takes an open (with its locks), the locks of a lock-owner on a file, or a delegation from its client, which learns
    /// of it by ADMIN_REVOKED and SEQ4_STATUS_ADMIN_STATE_REVOKED (RFC 8881 8.5, 18.46.3).
    ///
    /// # Errors
    /// There is no such state; its end is under way; or I/O under it does not end, and then it stays.
    pub async fn admin_revoke(self: &Arc<Self>, stateid: &Stateid) -> Result<(), AdminError> {
        self.takes_orders()?;
        self.take_away(stateid, Memory::UntilFreed).await
    }

    async fn take_away(self: &Arc<Self>, stateid: &Stateid, memory: Memory) -> Result<(), AdminError> {
        const BUSY: AdminError = AdminError::Busy("requests on it still run; it was left as it was");
        let file = self.state.file_of(stateid).ok_or(AdminError::NotFound("open, lock or delegation"))?;
        let object = ObjectId::new(file.as_bytes());
        let gate = self.gates.file(&object).await.map_err(|_| BUSY)?;
        let plan = self.state.plan_admin_revoke(stateid, memory).map_err(|status| match status {
            Status::DELAY => AdminError::Busy("its end is under way"),
            Status::DELEG_REVOKED => AdminError::Refused("it is revoked already".into()),
            _ => AdminError::NotFound("open, lock or delegation"),
        })?;
        match plan {
            Revocation::Locks(effects) => {
                for effect in effects {
                    self.end_state(effect).await;
                }
            }
            Revocation::Open(plan) => {
                // As CLOSE does: waiting for I/O must not hold up the others on this file.
                let gate = if plan.drain().is_done() {
                    gate
                } else {
                    drop(gate);
                    tokio::time::timeout(GATE_WAIT, plan.drain()).await.map_err(|_| BUSY)?;
                    self.gates.file(&object).await.map_err(|_| BUSY)?
                };
                for effect in plan.commit() {
                    self.end_state(effect).await;
                }
                drop(gate);
            }
            Revocation::Delegation(plan) => {
                drop(gate);
                tokio::time::timeout(GATE_WAIT, plan.drain()).await.map_err(|_| BUSY)?;
                self.end_delegation(plan).await.map_err(|_| BUSY)?;
            }
        }
        tracing::warn!(?stateid, "revoked by the administrator");
        Ok(())
    }

    /// Takes all of these from their clients, many at once; how many were taken, and what stood against the others.
    ///
    /// # Errors
    /// The server is stopping.
    pub async fn admin_revoke_all(
        self: &Arc<Self>,
        stateids: Vec<Stateid>,
    ) -> Result<(usize, Vec<AdminError>), AdminError> {
        self.takes_orders()?;
        Ok(self.take_all_away(stateids, Memory::UntilFreed).await)
    }

    pub(crate) async fn take_all_away(
        self: &Arc<Self>,
        stateids: Vec<Stateid>,
        memory: Memory,
    ) -> (usize, Vec<AdminError>) {
        let one = |stateid: Stateid| {
            let shared = Arc::clone(self);
            async move { shared.take_away(&stateid, memory).await }
        };
        let results: Vec<_> = futures_util::stream::iter(stateids).map(one).buffer_unordered(AT_ONCE).collect().await;
        let all = results.len();
        // What went by itself meanwhile is what was wanted.
        let errors = results.into_iter().filter_map(Result::err);
        let failed: Vec<_> = errors.filter(|e| !matches!(e, AdminError::NotFound(_))).collect();
        (all - failed.len(), failed)
    }

    /// Ends a copy that runs; its client is told (CB_OFFLOAD, OFFLOAD_STATUS) that it ended with ADMIN_REVOKED.
    ///
    /// # Errors
    /// No copy that runs has this stateid.
    pub fn admin_cancel_copy(&self, stateid: &Stateid) -> Result<(), AdminError> {
        self.takes_orders()?;
        if !self.state.abort_copy(stateid) {
            return Err(AdminError::NotFound("running copy"));
        }
        tracing::warn!(?stateid, "a copy was ended by the administrator");
        Ok(())
    }

    /// Ends the grace period now: clients that have not reclaimed what they held before the restart lose it.
    ///
    /// # Errors
    /// None runs.
    pub async fn admin_end_grace(self: &Arc<Self>) -> Result<(), AdminError> {
        self.takes_orders()?;
        let Some(effects) = self.state.end_grace() else {
            let over = !self.state.in_grace();
            let why = if over { "no grace period runs" } else { "it is about to end" };
            return Err(AdminError::Refused(why.into()));
        };
        let shared = Arc::clone(self);
        // A task: once begun it is to be ended, whoever waits for it.
        let work = tokio::spawn(async move { shared.carry_out(effects).await });
        let late = AdminError::Busy("the records of clients cannot be removed; it ends when they are");
        tokio::time::timeout(GATE_WAIT, work).await.map_err(|_| late.clone())?.map_err(|_| late)
    }

    /// Counters since the last reset; with `reset`, they count from now on. Those of [`ServerMetrics`] itself only grow.
    pub fn admin_counters(&self, reset: bool) -> Counters {
        let now = self.now();
        let values = self.counters();
        let mut base = self.counted.lock();
        let was = |name: &String| base.values.get(name).copied().unwrap_or(0);
        let grown = values.iter().map(|(name, n)| (name.clone(), n.saturating_sub(was(name))));
        let shown = Counters { since: now.since(base.at), values: grown.filter(|(_, n)| *n > 0).collect() };
        if reset {
            *base = Baseline { at: now, values };
        }
        shown
    }

    fn counters(&self) -> BTreeMap<String, u64> {
        let n = |c: &AtomicU64| c.load(Relaxed);
        let m: &ServerMetrics = &self.metrics;
        let (inter, deleg) = (&m.inter, &m.deleg);
        let mut all: BTreeMap<String, u64> = [
            ("calls", n(&m.calls)),
            ("connections_total", n(&m.connections_total)),
            ("rpc_errors", n(&m.rpc_errors)),
            ("garbage", n(&m.garbage)),
            ("reply_limit_hits", n(&m.reply_limit_hits)),
            ("panics", n(&m.panics)),
            ("bad_handles", n(&m.bad_handles)),
            ("export_refusals", n(&m.export_refusals)),
            ("name_waits", n(&m.name_waits)),
            ("name_wait_ends", n(&m.name_wait_ends)),
            ("failed_look_ups", self.failed_look_ups()),
            ("inter.copies", n(&inter.copies)),
            ("inter.bytes", n(&inter.bytes)),
            ("inter.source_connects", n(&inter.source_connects)),
            ("inter.source_connect_failures", n(&inter.source_connect_failures)),
            ("inter.source_refusals", n(&inter.source_refusals)),
            ("inter.destination_refusals", n(&inter.destination_refusals)),
            ("inter.destination_mismatches", n(&inter.destination_mismatches)),
            ("delegations.read_granted", n(&deleg.read_granted)),
            ("delegations.write_granted", n(&deleg.write_granted)),
            ("delegations.recalls", n(&deleg.recalls)),
            ("delegations.recalls_failed", n(&deleg.recalls_failed)),
            ("delegations.returned", n(&deleg.returned)),
            ("delegations.revoked", n(&deleg.revoked)),
            ("callbacks.recall_any", n(&deleg.recall_any)),
            ("callbacks.recall_slot", n(&deleg.recall_slot)),
            ("callbacks.notify_lock", n(&deleg.notify_lock)),
        ]
        .into_iter()
        .map(|(name, n)| (name.to_owned(), n))
        .collect();
        for op in (0..80).map(OpNum) {
            let counted = m.op(op);
            let name = match (dhow_proto::v4::optable::lookup(op), op.0) {
                (Some(info), _) => info.name,
                // Whatever has no slot of its own.
                (None, 0) => "OTHER",
                (None, _) => continue,
            };
            all.insert(format!("op.{name}"), n(&counted.count));
            all.insert(format!("op.{name}.errors"), n(&counted.errors));
        }
        all.extend(self.limit_hits().into_iter().map(|(name, n)| (format!("hit.{name}"), n)));
        all
    }
}
