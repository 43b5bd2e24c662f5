//! Copies within one server: CLONE and COPY of a whole file (RFC 7862 sections 15.13 and 15.2).

use crate::endpoint::Moved;
use crate::inter;
use crate::nfs::{is_refusal, without_path};
use dhow_client::v4::{FileHandle, Stateid};
use dhow_client::{Client, Copied, CopyBegun, CopyOptions, File, RunningCopy};

/// CLONE of a whole file, durable with `sync`.
pub(crate) async fn clone_all(source: &File, target: &File, sync: bool) -> dhow_client::Result<()> {
    // CLONE says nothing of stability and has no verifier: a COMMIT after it covers it, in the same call.
    if sync { source.clone_durably(0, target, 0, 0).await } else { source.clone_to(0, target, 0, 0).await }
}

/// A COPY of a whole file, in as many calls as the server makes of it.
pub(crate) struct Copying<'a> {
    pub(crate) source: &'a File,
    pub(crate) target: &'a File,
    pub(crate) sync: bool,
    pub(crate) moved: Moved<'a>,
    pub(crate) told: u64,
}

impl Copying<'_> {
    fn tell(&mut self, bytes: u64) {
        if bytes > self.told {
            (self.moved)(bytes - self.told);
            self.told = bytes;
        }
    }

    /// Returns bytes and whether they are durable.
    pub(crate) async fn run(&mut self, size: u64) -> dhow_client::Result<(u64, bool)> {
        let options = CopyOptions { synchronous: false, durable: self.sync };
        let (mut bytes, mut unstable) = (0, None);
        while bytes < size {
            let part = match self.source.begin_copy(bytes, self.target, bytes, size - bytes, &options).await {
                Ok(CopyBegun::Done(part)) => part,
                Ok(CopyBegun::Running(copy)) => self.wait(copy, bytes).await?,
                // Refused in the middle is no refusal: another method would begin anew (case K30).
                Err(e) if bytes > 0 && e.wire_status().is_some_and(is_refusal) => {
                    let words = format!("the server stopped in the middle of a copy: {}", without_path(&e));
                    return Err(dhow_client::Error::Protocol(words.into()));
                }
                Err(e) => return Err(e),
            };
            if !part.is_durable() && unstable.replace(part.verifier).is_some_and(|before| before != part.verifier) {
                return Err(dhow_client::Error::WritesLost);
            }
            // The source became shorter: what is there is what is copied.
            if part.bytes == 0 {
                break;
            }
            bytes += part.bytes;
            self.tell(bytes);
        }
        if let (true, Some(before)) = (self.sync, unstable) {
            if self.target.commit(0, 0).await? != before {
                return Err(dhow_client::Error::WritesLost);
            }
            return Ok((bytes, true));
        }
        Ok((bytes, unstable.is_none() && bytes > 0))
    }

    async fn wait(&mut self, copy: RunningCopy, before: u64) -> dhow_client::Result<Copied> {
        let (client, target) = (self.target.fs().client().clone(), self.target.fh().clone());
        let guard = CancelOnDrop::new(client, target, copy.stateid());
        let done = copy.wait(|n| self.tell(before + n)).await;
        guard.disarm();
        done
    }
}

/// Stops a copy at the server when nobody waits for it any more.
pub(crate) struct CancelOnDrop {
    client: Client,
    target: FileHandle,
    stateid: Stateid,
    armed: bool,
}

impl CancelOnDrop {
    pub(crate) fn new(client: Client, target: FileHandle, stateid: Stateid) -> Self {
        Self { client, target, stateid, armed: true }
    }

    pub(crate) fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if self.armed {
            inter::cancel_later(self.client.clone(), self.target.clone(), self.stateid);
        }
    }
}
