//! Byte-range locks (RFC 8881 sections 18.10 to 18.12).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dhow_proto::v4::ops::{
    ExistLockOwner, LockArgs, LockDenied, LockRes, Locker, LocktArgs, LocktRes, LockuArgs, OpenToLockOwner,
};
use dhow_proto::v4::{ArgOp, LockType, ResOp, Status, TO_EOF};
use dhow_session::backoff::{Backoff, Policy};

use crate::file::run_on;
use crate::opens::{self, OpenState, state_owner};
use crate::ranges::{Given, Range};
use crate::{Error, File, Fs, Result};

/// How often a lock that others hold is tried again, unless the server says before that it is free.
const POLL: Policy = Policy { first: Duration::from_millis(50), max: Duration::from_secs(5), give_up_after: None };

impl File {
    /// Locks a range (`length` [`TO_EOF`]: to the end of the file, however long) for this file handle. `None` when it
    /// was granted, otherwise the lock that is in the way.
    ///
    /// When this future is dropped, or waits for too long, the lock may be granted all the same: [`File::unlock`] waits
    /// until that is known, and closing the file frees it.
    ///
    /// # Errors
    ///
    /// OPENMODE when the file is not open for what the lock protects; others of the server. [`Error::StateLost`] when
    /// an earlier lock of this file was lost.
    pub async fn try_lock(&self, exclusive: bool, offset: u64, length: u64) -> Result<Option<LockDenied>> {
        let kind = if exclusive { LockType::WRITE } else { LockType::READ };
        self.lock_as(&self.lock_owner, kind, offset, length).await
    }

    /// As [`File::try_lock`], but waits until the lock is granted.
    ///
    /// # Errors
    ///
    /// As [`File::try_lock`], but not because somebody holds a lock; DEADLOCK where a server finds one.
    pub async fn lock(&self, exclusive: bool, offset: u64, length: u64) -> Result<()> {
        let kind = if exclusive { LockType::WRITEW } else { LockType::READW };
        let inner = self.fs().client().inner();
        let mut backoff = Backoff::new(POLL, inner.next_seed());
        loop {
            // Asked for before the try, so that a wake-up in between is not missed.
            let freed = inner.lock_freed.notified();
            if self.lock_as(&self.lock_owner, kind, offset, length).await?.is_none() {
                return Ok(());
            }
            let wait = backoff.next_wait().unwrap_or(POLL.max);
            let _ = tokio::time::timeout(wait, freed).await;
        }
    }

    /// As [`File::try_lock`], on behalf of a lock-owner of your choice: one for each process that a mount serves.
    ///
    /// # Errors
    ///
    /// As [`File::try_lock`].
    pub async fn lock_as(&self, owner: &Bytes, kind: LockType, offset: u64, length: u64) -> Result<Option<LockDenied>> {
        let one_at_a_time = Arc::clone(&self.locking).lock_owned().await;
        let (open, owner) = (Arc::clone(&self.open), owner.clone());
        let work = move |fs| async move {
            let _one_at_a_time = one_at_a_time;
            if !kind.is_write() {
                open.begin_to_give(&owner, Given::Shared(offset, offset.saturating_add(length)));
            }
            let done = lock_on(&fs, &open, &owner, (kind, offset, length)).await;
            open.end_giving(&owner, in_doubt(&done));
            done
        };
        self.fs().to_its_end(work).await
    }

    /// Unlocks a range.
    ///
    /// # Errors
    ///
    /// The server's; [`Error::StateLost`] when a lock of this file was lost, so that others may have held it.
    pub async fn unlock(&self, offset: u64, length: u64) -> Result<()> {
        self.unlock_as(&self.lock_owner, offset, length).await
    }

    /// As [`File::unlock`], for a lock-owner of your choice. Without a lock there is nothing to do.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn unlock_as(&self, owner: &Bytes, offset: u64, length: u64) -> Result<()> {
        let one_at_a_time = Arc::clone(&self.locking).lock_owned().await;
        let (open, owner) = (Arc::clone(&self.open), owner.clone());
        let work = move |fs| async move {
            let _one_at_a_time = one_at_a_time;
            open.begin_to_give(&owner, Given::Unlocked(offset, offset.saturating_add(length)));
            let done = unlock_on(&fs, &open, &owner, (offset, length)).await;
            open.end_giving(&owner, in_doubt(&done));
            done
        };
        self.fs().to_its_end(work).await
    }

    pub(crate) async fn unlock_all(&self) -> Result<()> {
        self.unlock(0, TO_EOF).await
    }

    /// The lock that would be in the way of one on this range, if any; nothing is locked.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn test_lock(&self, exclusive: bool, offset: u64, length: u64) -> Result<Option<LockDenied>> {
        let lock_type = if exclusive { LockType::WRITE } else { LockType::READ };
        let owner = state_owner(self.lock_owner.clone());
        let tail = self
            .run(false, |_| vec![ArgOp::Lockt(LocktArgs { lock_type, offset, length, owner: owner.clone() })])
            .await?;
        match tail.results.last() {
            Some(ResOp::Lockt(LocktRes::Ok)) => Ok(None),
            Some(ResOp::Lockt(LocktRes::Denied(denied))) => Ok(Some(denied.clone())),
            _ => Err(tail.error()),
        }
    }
}

/// Whether nobody knows if the server executed what failed.
fn in_doubt<T>(done: &Result<T>) -> bool {
    matches!(done, Err(e) if !matches!(e, Error::Status { .. }))
}

async fn lock_on(
    fs: &Fs,
    open: &Arc<OpenState>,
    owner: &Bytes,
    (lock_type, offset, length): (LockType, u64, u64),
) -> Result<Option<LockDenied>> {
    let inner = fs.client().inner();
    loop {
        let sent_at = inner.now();
        let build = |open_stateid| {
            let locker = match open.lock_held(owner) {
                Some(held) => Locker::Existing(ExistLockOwner { lock_stateid: held.stateid, lock_seqid: 0 }),
                None => Locker::New(OpenToLockOwner {
                    open_seqid: 0,
                    open_stateid,
                    lock_seqid: 0,
                    lock_owner: state_owner(owner.clone()),
                }),
            };
            vec![ArgOp::Lock(LockArgs { lock_type, reclaim: false, offset, length, locker })]
        };
        let (tail, generation) = run_on(fs, open, true, build).await?;
        match tail.results.last() {
            Some(ResOp::Lock(LockRes::Ok(stateid))) => {
                let range = Range::new(lock_type, offset, length);
                // Granted before the server lost it, and unknown when what was held was reclaimed: not held.
                if !open.update_lock(owner, (*stateid, generation), |r| r.lock(range)) {
                    continue;
                }
                if inner.answered_late(sent_at) {
                    // Granted so long ago that it may have been taken since.
                    opens::examine(inner, open).await?;
                    open.stateid()?;
                }
                return Ok(None);
            }
            Some(ResOp::Lock(LockRes::Denied(denied))) => return Ok(Some(denied.clone())),
            _ => return Err(tail.error()),
        }
    }
}

async fn unlock_on(fs: &Fs, open: &Arc<OpenState>, owner: &Bytes, (offset, length): (u64, u64)) -> Result<()> {
    // Of a file whose locks are lost that is to be heard.
    open.stateid()?;
    if open.lock_held(owner).is_none() {
        return Ok(());
    }
    loop {
        let build = |_| {
            let held = open.lock_held(owner);
            let unlock = held.map(|held| LockuArgs {
                lock_type: LockType::WRITE,
                seqid: 0,
                lock_stateid: held.stateid,
                offset,
                length,
            });
            unlock.map(ArgOp::Locku).into_iter().collect()
        };
        let (tail, generation) = run_on(fs, open, true, build).await?;
        match tail.results.last() {
            Some(ResOp::Locku(Ok(ok))) => {
                let end = offset.saturating_add(length);
                if open.update_lock(owner, (ok.lock_stateid, generation), |r| r.unlock(offset, end)) {
                    return Ok(());
                }
                // Reclaimed meanwhile with what was to be unlocked.
            }
            None if tail.status.is_ok() => return Ok(()),
            _ => return Err(tail.error()),
        }
    }
}

/// Whether an error says that somebody else holds a lock.
pub fn is_locked(e: &Error) -> bool {
    e.is(Status::LOCKED) || e.is(Status::DENIED)
}
