//! A file of one server into a file of another, by the servers (RFC 7862 4.6 to 4.10).
//!
//! ```text
//!   COPY_NOTIFY to the source, naming the destination ──► COPY to the destination, naming the source
//!     ──► CB_OFFLOAD, or OFFLOAD_STATUS with a COMMIT every 10 s (a checkpoint) ──► COMMIT if it is not durable
//! ```
//!
//! What fails half-way (a restart of either side, a lost connection, a loan that ended) is resumed from what is known to
//! be on stable storage: both files are opened again if need be, the source's change attribute, size and times are
//! compared with those at the start, and the rest is asked for with a new loan. A source that changed starts over. When
//! nothing moves any more the outcome is [`Offload::Refused`], so that the caller can take another way.

use crate::endpoint::{Moved, Offload};
use crate::nfs::{NfsSink, NfsSource, failure, is_refusal, without_path};
use crate::within::CancelOnDrop;
use crate::{Error, ErrorKind, Result};
use bytes::Bytes;
use dhow_client::v4::ops::{OffloadArgs, PutFhArgs};
use dhow_client::v4::{ArgOp, Attrs, FileHandle, NetAddr, NetLoc, Stateid, Status, Verifier};
use dhow_client::{CallOptions, Client, Copied, CopyBegun, CopyOptions, File, OpenOptions, RemoteSource, RunningCopy};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How often what was copied is made durable while the copy goes on.
const CHECKPOINT: Duration = Duration::from_secs(10);
/// Attempts in a row that may fail without a byte copied.
const ATTEMPTS: u32 = 5;
/// The first wait between attempts; it doubles.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// How often a source may change while it is copied.
const CHANGES: u32 = 3;

/// The location of a server for COPY_NOTIFY: a universal address (RFC 5665 5.2.3.3, 5.2.3.4).
pub(crate) fn netloc(addr: SocketAddr) -> NetLoc {
    let ip = addr.ip().to_canonical();
    let [high, low] = addr.port().to_be_bytes();
    let netid = if ip.is_ipv4() { "tcp" } else { "tcp6" };
    NetLoc::Addr(NetAddr { netid: Bytes::from_static(netid.as_bytes()), addr: format!("{ip}.{high}.{low}").into() })
}

/// What makes a source the same as before.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    change: Option<u64>,
    size: Option<u64>,
    mtime: Option<(i64, u32)>,
    fileid: Option<u64>,
}

impl Seen {
    fn of(a: &Attrs) -> Self {
        let mtime = a.time_modify.map(|t| (t.secs, t.nanos));
        Self { change: a.change, size: a.size, mtime, fileid: a.fileid }
    }
}

/// A copy of a whole file.
pub(crate) struct Inter<'a> {
    source: &'a NfsSource,
    sink: &'a NfsSink,
    sync: bool,
    moved: Moved<'a>,
    /// What `moved` was told.
    told: u64,
    seen: Seen,
    size: u64,
    /// Up to here everything is on stable storage, or copied under `unstable`.
    from: u64,
    /// Up to here everything is on stable storage.
    durable: u64,
    /// The last count that the running copy told, from the start of the file.
    count: u64,
    /// The write verifier of what is not on stable storage.
    unstable: Option<Verifier>,
    /// That of the copy that runs.
    running: Option<Verifier>,
    /// The permission to read: of this file, by this stateid.
    loan: Option<Loan>,
}

/// A copy-notify stateid; dropped while it is armed, the source is told to forget it (RFC 7862 4.8).
struct Loan {
    client: Client,
    source: RemoteSource,
    armed: bool,
}

impl Drop for Loan {
    fn drop(&mut self) {
        if self.armed {
            cancel_later(self.client.clone(), self.source.fh.clone(), self.source.stateid);
        }
    }
}

/// OFFLOAD_CANCEL, sent by a task of its own: nobody waits for the answer.
pub(crate) fn cancel_later(client: Client, file: FileHandle, stateid: Stateid) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    runtime.spawn(async move {
        let put = ArgOp::PutFh(PutFhArgs { object: file });
        let ops = vec![put, ArgOp::OffloadCancel(OffloadArgs { stateid })];
        if let Err(e) = client.compound(ops, CallOptions { cache: true, ..CallOptions::default() }).await {
            tracing::debug!(error = %e, "cannot stop a copy at the server");
        }
    });
}

/// Why an attempt ended.
enum Failed {
    /// The client library's error, of the source if `true`.
    Call(dhow_client::Error, bool),
    /// The source ended before the range did, or what was written is lost.
    Again(&'static str),
}

impl<'a> Inter<'a> {
    pub(crate) fn new(source: &'a NfsSource, sink: &'a NfsSink, sync: bool, moved: Moved<'a>) -> Self {
        let seen = Seen::of(&source.file().attrs());
        let size = seen.size.unwrap_or(0);
        Self {
            source,
            sink,
            sync,
            moved,
            told: 0,
            seen,
            size,
            from: 0,
            durable: 0,
            count: 0,
            unstable: None,
            running: None,
            loan: None,
        }
    }

    /// Copies, as often as it takes.
    pub(crate) async fn run(mut self) -> Result<Offload> {
        let (mut failures, mut changes) = (0, 0);
        let mut wait = FIRST_WAIT;
        loop {
            let began = self.durable.max(self.from);
            let why = match self.attempt().await {
                Ok(()) => {
                    // The loan ends with the open file, which is closed next.
                    if let Some(loan) = &mut self.loan {
                        loan.armed = false;
                    }
                    let durable = self.unstable.is_none();
                    return Ok(Offload::Done { bytes: self.from, durable });
                }
                Err(Failed::Call(e, of_source)) => {
                    let refused = e.wire_status().is_some_and(is_inter_refusal);
                    // A copy that had begun may have lost its loan with a source that restarted, before anything was
                    // heard of it: it is asked for once more before that counts as a refusal.
                    let begun = self.running.is_some() && failures == 0;
                    if self.told == 0 && self.count == 0 && self.from == 0 && refused && !begun {
                        return Ok(Offload::Refused(words(&e, of_source)));
                    }
                    if is_final(&e) {
                        return Err(if of_source { failure(&e, self.source.shown.clone()) } else { self.sink.err(&e) });
                    }
                    words(&e, of_source)
                }
                Err(Failed::Again(why)) => why.to_owned(),
            };
            tracing::debug!(file = %self.sink.shown, %why, at = self.count, "a copy between servers broke off");
            // The loan may be what failed; a new one is asked for.
            self.loan = None;
            self.save_progress().await;
            if self.durable.max(self.from) > began {
                (failures, wait) = (0, FIRST_WAIT);
            } else {
                failures += 1;
                if failures >= ATTEMPTS {
                    // Another way begins at the start, on an empty file.
                    self.sink.set_size_now(0).await?;
                    return Ok(Offload::Refused(format!("the servers gave up: {why}")));
                }
                tokio::time::sleep(wait).await;
                wait *= 2;
            }
            if self.revive().await? {
                changes += 1;
                if changes > CHANGES {
                    let words = "changes all the time while it is copied; try again when it is quiet";
                    return Err(Error::with(ErrorKind::Busy, self.source.shown.clone(), words));
                }
            }
        }
    }

    fn tell(&mut self, bytes: u64) {
        if bytes > self.told {
            (self.moved)(bytes - self.told);
            self.told = bytes;
        }
    }

    async fn attempt(&mut self) -> std::result::Result<(), Failed> {
        self.running = None;
        self.count = self.from;
        let options = CopyOptions { synchronous: false, durable: self.sync };
        while self.from < self.size {
            let target = self.sink.file().map_err(|_| Failed::Again("the destination is not open"))?;
            self.lend().await?;
            let Some(loan) = &self.loan else { return Err(Failed::Again("nothing was lent")) };
            let (at, left) = (self.from, self.size - self.from);
            let begun = target.begin_copy_from(&loan.source, at, at, left, &options).await;
            let part = match begun.map_err(|e| Failed::Call(e, false))? {
                CopyBegun::Done(part) => part,
                CopyBegun::Running(copy) => self.wait(copy, &target, at).await?,
            };
            if !part.is_durable() && self.unstable.replace(part.verifier).is_some_and(|old| old != part.verifier) {
                return Err(Failed::Again("the destination restarted"));
            }
            if part.bytes == 0 {
                return Err(Failed::Again("the source ended early"));
            }
            self.from = at + part.bytes.min(left);
            self.count = self.from;
            let now = self.from;
            self.tell(now);
        }
        if let (true, Some(before)) = (self.sync, self.unstable) {
            let target = self.sink.file().map_err(|_| Failed::Again("the destination is not open"))?;
            if target.commit(0, 0).await.map_err(|e| Failed::Call(e, false))? != before {
                return Err(Failed::Again("the destination lost what was not on stable storage"));
            }
            self.unstable = None;
        }
        Ok(())
    }

    /// COPY_NOTIFY, unless there is a loan already.
    async fn lend(&mut self) -> std::result::Result<(), Failed> {
        if self.loan.is_some() {
            return Ok(());
        }
        let file = self.source.file();
        let Some(peer) = self.sink.client().peer() else {
            return Err(Failed::Again("the destination is not connected"));
        };
        let lent = file.copy_notify(netloc(peer)).await.map_err(|e| Failed::Call(e, true))?;
        let client = file.fs().client().clone();
        self.loan = Some(Loan { client, source: RemoteSource::new(&file, lent), armed: true });
        Ok(())
    }

    async fn wait(&mut self, copy: RunningCopy, target: &File, at: u64) -> std::result::Result<Copied, Failed> {
        let guard = CancelOnDrop::new(target.fs().client().clone(), target.fh().clone(), copy.stateid());
        self.running = Some(copy.verifier());
        let all = self.sync;
        let waited = copy.wait_with_checkpoints(CHECKPOINT, |p| {
            self.count = at + p.bytes;
            // Of this and earlier copies: a COMMIT is of the whole file, under one verifier.
            if p.durable && all && self.unstable.is_none_or(|v| Some(v) == self.running) {
                self.durable = self.count;
                tracing::debug!(at = self.durable, "checkpoint of a copy between servers");
            }
            let now = self.count;
            self.tell(now);
        });
        let done = waited.await;
        match done {
            Ok(copied) => {
                guard.disarm();
                self.running = None;
                Ok(copied)
            }
            // Armed still: of a copy that failed there is nothing to stop, but one that was lost sight of may go on.
            Err(e) => Err(Failed::Call(e, false)),
        }
    }

    /// Makes durable what the copy that failed has told of, if the destination still has it.
    async fn save_progress(&mut self) {
        let verifier = match (self.unstable, self.running) {
            (Some(a), Some(b)) if a != b => None,
            (a, b) => a.or(b),
        };
        let known = self.count.max(self.from);
        if let (Some(verifier), Ok(target)) = (verifier, self.sink.file())
            && known > self.durable
            && target.commit(0, 0).await.is_ok_and(|now| now == verifier)
        {
            self.durable = known;
        } else if verifier.is_none() {
            // Everything up to `from` was answered as stable.
            self.durable = self.durable.max(self.from);
        }
        self.from = self.durable;
        self.count = self.durable;
        self.unstable = None;
        self.running = None;
    }

    /// Opens what has to be opened again. Whether the source has changed, so that all begins anew.
    async fn revive(&mut self) -> Result<bool> {
        let now = self.revive_source().await?;
        self.revive_sink().await?;
        if now == self.seen {
            return Ok(false);
        }
        tracing::debug!(file = %self.source.shown, "the source changed while it was copied; it starts over");
        self.size = now.size.unwrap_or(0);
        self.seen = now;
        self.start_over().await?;
        Ok(true)
    }

    async fn start_over(&mut self) -> Result<()> {
        (self.from, self.durable, self.count) = (0, 0, 0);
        self.sink.set_size_now(0).await
    }

    async fn revive_source(&self) -> Result<Seen> {
        let file = self.source.file();
        let shown = || self.source.shown.clone();
        if file.stateid().is_ok()
            && let Ok(attrs) = file.stat().await
            && file.stateid().is_ok()
        {
            return Ok(Seen::of(&attrs));
        }
        let opened = self.source.fs.open(&self.source.place, &OpenOptions::read()).await;
        let opened = opened.map_err(|e| failure(&e, shown()))?;
        let seen = Seen::of(&opened.attrs());
        self.source.replace(opened);
        Ok(seen)
    }

    async fn revive_sink(&mut self) -> Result<()> {
        let file = self.sink.file()?;
        let (mut size, mut same) = (None, false);
        if file.stateid().is_ok()
            && let Ok(attrs) = file.stat().await
            && file.stateid().is_ok()
        {
            (size, same) = (attrs.size, true);
        }
        if !same {
            let before = file.attrs().fileid;
            let options = OpenOptions::read_write().follow(false);
            let opened = self.sink.fs().open(self.sink.temp_place(), &options).await.map_err(|e| self.sink.err(&e))?;
            if opened.attrs().fileid != before {
                let words = "the unfinished file was replaced by somebody else";
                return Err(Error::with(ErrorKind::Stale, self.sink.shown.clone(), words));
            }
            size = opened.attrs().size;
            self.sink.replace(opened);
        }
        // What was said to be durable must be there.
        if size.unwrap_or(0) < self.durable {
            self.start_over().await?;
        }
        Ok(())
    }
}

/// The answers with which a server says that it will not copy this from there; the client may do it itself.
fn is_inter_refusal(status: Status) -> bool {
    is_refusal(status)
        || matches!(
            status,
            Status::PARTNER_NO_AUTH | Status::ACCESS | Status::PERM | Status::OPENMODE | Status::WRONGSEC
        )
}

/// Trying again is no use: it is about the files, not about the way.
fn is_final(e: &dhow_client::Error) -> bool {
    let status = |s: Status| {
        matches!(s, Status::NOSPC | Status::DQUOT | Status::FBIG | Status::ROFS | Status::WRONG_TYPE | Status::ISDIR)
    };
    matches!(e, dhow_client::Error::Closed | dhow_client::Error::Auth(_)) || e.wire_status().is_some_and(status)
}

fn words(e: &dhow_client::Error, of_source: bool) -> String {
    let which = if of_source { "source" } else { "destination" };
    // COPY itself may well be offered, within the server.
    if e.wire_status().is_some_and(|s| matches!(s, Status::NOTSUPP | Status::OP_ILLEGAL)) {
        return format!("{which}: the server does not copy between servers, or is not configured for it");
    }
    format!("{which}: {}", without_path(e))
}

/// The file of one side: replaced when it had to be opened again.
pub(crate) type Shared = Arc<File>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_named_by_universal_addresses() {
        let text = |addr: &str| match netloc(addr.parse().unwrap()) {
            NetLoc::Addr(NetAddr { netid, addr }) => {
                format!("{} {}", String::from_utf8_lossy(&netid), String::from_utf8_lossy(&addr))
            }
            _ => panic!("not an address"),
        };
        // RFC 5665 5.2.3.3 and 5.2.3.4.
        assert_eq!(text("192.0.2.7:2049"), "tcp 192.0.2.7.8.1");
        assert_eq!(text("[2001:db8::7]:20049"), "tcp6 2001:db8::7.78.81");
        assert_eq!(text("[::ffff:192.0.2.7]:2049"), "tcp 192.0.2.7.8.1");
    }
}
