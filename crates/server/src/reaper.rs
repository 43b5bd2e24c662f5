//! What time and ended leases do to state, and the carrying out of effects.
//!
//! One task ticks the state once a second. Retiring a client is a task of its own: it waits for the client's I/O, then
//! removes the durable record, then frees the state, file by file under the files' gates (RFC 8881 8.4.3: in this order). If the record cannot be removed
//! the state stays, and the next tick tries again: nothing is granted on the strength of a removal that did not happen.

use crate::exports::OpenToken;
use crate::gates::GATE_WAIT;
use crate::records;
use crate::shared::ServerShared;
use crate::store::StableStore;
use bytes::{BufMut, Bytes, BytesMut};
use dhow_proto::v4::{ClientId, Status};
use dhow_state::{Client, ClientRecord, DelegEnd, Effect, Effects, FileKey, Holds, OwnerKey, Retire};
use dhow_vfs::{Cx, IoRef, LockOwner, LockRange, ObjectId};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often the state is told the time.
const TICK: Duration = Duration::from_secs(1);

/// The records of the previous instance.
///
/// # Errors
/// The store cannot be read.
pub(crate) async fn records(store: &Arc<dyn StableStore>) -> io::Result<Vec<ClientRecord>> {
    let all = ask(store, |store| store.clients()).await?;
    Ok(all.iter().map(|(owner, value)| records::read(owner, value)).collect())
}

/// Ticks for ever.
pub(crate) async fn run(shared: Arc<ServerShared>) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        shared.partners.tick(shared.now());
        let effects = shared.state.tick(shared.now());
        shared.carry_out(effects).await;
    }
}

/// Asks the store, off the runtime's threads if that may take long.
async fn ask<T: Send + 'static>(
    store: &Arc<dyn StableStore>,
    f: impl FnOnce(&dyn StableStore) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    if !store.may_block() {
        return f(store.as_ref());
    }
    let store = Arc::clone(store);
    tokio::task::spawn_blocking(move || f(store.as_ref())).await.unwrap_or_else(|e| Err(io::Error::other(e)))
}

/// The bytes by which a backend knows an open-owner or lock-owner.
pub(crate) fn owner_bytes(owner: &OwnerKey) -> Bytes {
    let mut out = BytesMut::with_capacity(8 + owner.owner.len());
    out.put_u64(owner.client.0);
    out.put_slice(&owner.owner);
    out.freeze()
}

impl ServerShared {
    /// Gives opens and locks back to their backend, and tells those who wait for the locks.
    pub(crate) async fn end_state(self: &Arc<Self>, effect: Effect<OpenToken>) {
        match effect {
            Effect::Close(token) => token.export.backend.close(token.file).await,
            Effect::Unlock { file, open, owner } => {
                let io = IoRef { handle: &open.handle, open: Some(&open.file) };
                let all = LockRange { offset: 0, len: u64::MAX };
                let owner = LockOwner(owner_bytes(&owner));
                if let Err(error) = open.export.backend.unlock(&Cx::root(), io, &owner, all).await {
                    tracing::warn!(%error, "backend did not give locks up");
                }
                self.wake_lockers(&file);
            }
            other => tracing::error!(?other, "not an effect of the end of state"),
        }
    }
}

impl ServerShared {
    /// Carries effects out, in order.
    pub(crate) async fn carry_out(self: &Arc<Self>, effects: Effects<OpenToken>) {
        for effect in effects {
            match effect {
                Effect::Retire(id) => {
                    let shared = Arc::clone(self);
                    tokio::spawn(async move { shared.retire(id).await });
                }
                Effect::EndGrace(owners) => {
                    let count = owners.len();
                    let keys: Vec<Bytes> = owners.into_iter().map(|o| o.0).collect();
                    // Without this nothing new may be granted: insist.
                    while let Err(error) = {
                        let keys = keys.clone();
                        ask(&self.store, move |store| store.forget(&keys)).await
                    } {
                        tracing::error!(%error, "cannot end the grace period");
                        tokio::time::sleep(TICK).await;
                    }
                    self.state.grace_over();
                    tracing::info!(did_not_come_back = count, "grace period is over: time is up");
                }
                Effect::Revoke(stateid) => {
                    let shared = Arc::clone(self);
                    tokio::spawn(async move { shared.revoke(stateid).await });
                }
                Effect::RecallAny { client, keep } => {
                    let shared = Arc::clone(self);
                    tokio::spawn(async move { shared.recall_any(client, keep).await });
                }
                Effect::RecallSlot { session, target } => {
                    let shared = Arc::clone(self);
                    tokio::spawn(async move { shared.recall_slot(session, target).await });
                }
                Effect::NotifyLock(notice) => {
                    tokio::spawn(Arc::clone(self).notify_lock(notice));
                }
                Effect::GraceEnded => tracing::info!("grace period is over: every client has reclaimed"),
                other => self.end_state(other).await,
            }
        }
    }

    /// Retires a client, to the end; nothing happens if it came back or somebody else is at it.
    pub(crate) async fn retire(self: &Arc<Self>, id: ClientId) {
        let Some(retire) = self.state.retire(id, self.now()) else { return };
        retire.drain().await;
        if let Some(owner) = retire.forget() {
            let key = owner.0.clone();
            if let Err(error) = ask(&self.store, move |store| store.forget(&[key])).await {
                tracing::error!(%error, "cannot remove the record of a client; its state stays for now");
                return;
            }
        }
        if !self.free_files(&retire).await {
            tracing::debug!(client = ?retire.client(), "files are crowded; the rest of its state goes later");
            return;
        }
        tracing::debug!(client = ?retire.client(), "retired");
        for effect in retire.finish() {
            self.end_state(effect).await;
        }
    }

    /// Frees the state of a client file by file, opens, locks and delegation together, under each file's gate: whoever
    /// passes it next finds both the state and the backend's side free. Files whose gate is held are left for last and then waited for together, so that a stuck
    /// one holds up nothing but itself. Whether all were freed.
    async fn free_files(self: &Arc<Self>, retire: &Retire<'_, OpenToken>) -> bool {
        let free = async |file: &FileKey, wait: Duration| {
            let pass = self.gates.files.pass(&ObjectId::new(file.as_bytes()), wait).await;
            let Ok(_pass) = pass else { return false };
            // Before others are let in: what watches for writers would hold them up.
            if let Some(watch) = retire.delegation(file).and_then(|t| t.watch) {
                watch.end();
            }
            for effect in retire.free(file) {
                self.end_state(effect).await;
            }
            self.delegations_gone.notify_waiters();
            true
        };
        let mut crowded = Vec::new();
        for file in retire.files() {
            if !free(&file, Duration::ZERO).await {
                crowded.push(file);
            }
        }
        let waits = futures_util::future::join_all(crowded.iter().map(|file| free(file, GATE_WAIT)));
        waits.await.into_iter().all(|freed| freed)
    }

    /// Retires a client whose state is in somebody's way, and waits for that, but not for ever.
    ///
    /// # Errors
    /// DELAY: it takes longer.
    pub(crate) async fn clear_the_way(self: &Arc<Self>, id: ClientId) -> Result<(), Status> {
        let shared = Arc::clone(self);
        // A task, so that giving up the wait does not give up the work.
        let work = tokio::spawn(async move { shared.retire(id).await });
        match tokio::time::timeout(GATE_WAIT, work).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Status::DELAY),
        }
    }

    /// Makes the record of a client durable, if it is not: before its first state (RFC 8881 8.4.3), and before the first
    /// of each kind that `holds` names.
    ///
    /// # Errors
    /// DELAY: the store failed (and the log says how).
    pub(crate) async fn ensure_recorded(&self, client: &Client, holds: Holds) -> Result<(), Status> {
        if client.needs_record(holds).is_none() {
            return Ok(());
        }
        let _turn = self.recording.lock().await;
        let Some(record) = client.needs_record(holds) else { return Ok(()) };
        let holds = record.holds;
        match self.put(record).await {
            Ok(()) => {
                client.recorded(holds);
                if self.store_fails.swap(false, Ordering::Relaxed) {
                    tracing::warn!("the state directory takes records again");
                }
                Ok(())
            }
            Err(error) => {
                // One line, not one for every try of every client.
                if !self.store_fails.swap(true, Ordering::Relaxed) {
                    tracing::error!(
                        %error,
                        "cannot record clients in the state directory: new clients get no opens and locks until it has \
                         room; those recorded before go on"
                    );
                }
                Err(Status::DELAY)
            }
        }
    }

    async fn put(&self, record: ClientRecord) -> io::Result<()> {
        let record = records::write(record);
        ask(&self.store, move |store| store.put(&[record])).await
    }

    /// Makes durable that a delegation is revoked, before others are let in: its holder may not reclaim it after a
    /// restart (RFC 8881 8.4.3, 10.2.1).
    ///
    /// # Errors
    /// DELAY: the store failed (and the log says how).
    pub(crate) async fn record_revocation(&self, plan: &DelegEnd<'_, OpenToken>) -> Result<(), Status> {
        // One at a time, so that a record is never replaced by an older one.
        let _turn = self.recording.lock().await;
        let Some(record) = plan.record() else { return Ok(()) };
        self.put(record).await.map_err(|error| {
            tracing::error!(%error, "cannot record in the state directory that a delegation is revoked: it stays for now");
            Status::DELAY
        })
    }

    /// The client knows what was revoked (FREE_STATEID, RECLAIM_COMPLETE): its record need not say so any more. If that
    /// cannot be stored, it may have to do without a delegation after the next restart.
    pub(crate) async fn update_record(&self, client: &Client) {
        if !client.has_outdated_record() {
            return;
        }
        let _turn = self.recording.lock().await;
        if let Some(record) = client.outdated_record()
            && let Err(error) = self.put(record).await
        {
            tracing::warn!(%error, ?client, "cannot update the record of a client");
        }
    }
}
