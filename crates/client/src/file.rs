//! An open file: reading, writing, and what goes with it.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use dhow_proto::v4::ops::{
    AllocateArgs, CloseArgs, CommitArgs, DataContent, IoAdviseArgs, Locker, ReadArgs, ReadOk, RenameArgs, SeekArgs,
    SeekOk, SetattrArgs, WriteArgs, WriteOk,
};
use dhow_proto::v4::{ArgOp, Attrs, Bitmap, FileHandle, OpNum, ResOp, StableHow, Stateid, Status, Verifier, optable};
use dhow_session::classify::{Class, classify};
use parking_lot::Mutex;

use crate::deleg::Delegation;
use crate::fs::{STAT, Tail, putfh};
use crate::opens::{self, OpenState};
use crate::{Client, Error, Fs, Lost, Place, Result};

/// Times one call has an open repaired before it is taken for lost: a server that forgets it as often is not to be
/// asked for ever.
pub(crate) const MOST_REPAIRS: u32 = 4;

/// How long a CLOSE is tried for that nobody waits for: as long as a server may say that it is to come later.
const IN_BACKGROUND: Duration = Duration::from_secs(300);

/// Makes an operation name the newest version of its stateid (seqid 0, RFC 8881 section 8.2.2).
fn take_newest(op: &mut ArgOp) {
    let stateid = match op {
        ArgOp::Read(a) => &mut a.stateid,
        ArgOp::Write(a) => &mut a.stateid,
        ArgOp::Setattr(a) => &mut a.stateid,
        ArgOp::Seek(a) => &mut a.stateid,
        ArgOp::Allocate(a) | ArgOp::Deallocate(a) => &mut a.stateid,
        ArgOp::IoAdvise(a) => &mut a.stateid,
        ArgOp::Close(a) => &mut a.open_stateid,
        ArgOp::Locku(a) => &mut a.lock_stateid,
        ArgOp::Lock(a) => match &mut a.locker {
            Locker::New(new) => &mut new.open_stateid,
            Locker::Existing(existing) => &mut existing.lock_stateid,
        },
        _ => return,
    };
    if !stateid.is_special() {
        stateid.seqid = 0;
    }
}

/// Runs operations that carry the stateid of `open` on its file. When the stateid was replaced meanwhile (the server
/// restarted, and the open was reclaimed), they are built again; when the server does not know it, what is left of the
/// open is found out first. With the generation of the stateids that were sent.
pub(crate) async fn run_on(
    fs: &Fs,
    open: &Arc<OpenState>,
    cache: bool,
    build: impl Fn(Stateid) -> Vec<ArgOp>,
) -> Result<(Tail, u64)> {
    run_closing(fs, (open, None), cache, build).await
}

/// As [`run_on`]; the second CLOSE among the operations, if there is one, is of the open `other`.
async fn run_closing(
    fs: &Fs,
    (open, other): (&Arc<OpenState>, Option<&Arc<OpenState>>),
    cache: bool,
    build: impl Fn(Stateid) -> Vec<ArgOp>,
) -> Result<(Tail, u64)> {
    let inner = fs.client().inner();
    let (mut newest, mut repairs) = (false, 0);
    loop {
        opens::settle(inner, open).await?;
        let (stateid, generation) = open.stateid()?;
        let mut ops = vec![putfh(&open.fh)];
        ops.extend(build(stateid));
        if newest {
            ops.iter_mut().for_each(take_newest);
        }
        watch_size(open, &ops);
        let sent_at = inner.now();
        let closed = ops.iter().filter(|op| op.op() == OpNum::CLOSE).count();
        let closes = std::iter::once(open).chain(other).take(closed).map(Arc::clone).collect();
        let mut res = match fs.call_closing(ops, cache, closes).await {
            // Nobody knows what became of that CLOSE, but since it was built the open was reclaimed: the server holds it.
            Err(Error::OutcomeUnknown { op: OpNum::CLOSE })
                if repairs < MOST_REPAIRS && open.generation() != generation =>
            {
                repairs += 1;
                continue;
            }
            res => res?,
        };
        match classify(res.status) {
            Class::StateLost => {
                if repairs == MOST_REPAIRS || !fs.restore(open, (generation, sent_at), res.status).await? {
                    // It may have been found to be lost just now.
                    open.stateid()?;
                    return Err(Error::StateLost { what: Lost::Open, status: res.status });
                }
                repairs += 1;
            }
            // An answer to a request of ours that moved it on was lost to us, or is on its way.
            Class::StateBehind if !newest => newest = true,
            _ if res.results.is_empty() => return Err(Error::status(OpNum::PUTFH, res.status)),
            _ => return Ok((Tail { results: res.results.split_off(1), status: res.status }, generation)),
        }
    }
}

/// What changes the file in a way that its size is not known from: a delegation must not tell an old one.
fn watch_size(open: &OpenState, ops: &[ArgOp]) {
    let Some(delegation) = open.delegation() else { return };
    let known = |op: &ArgOp| matches!(op, ArgOp::Write(_) | ArgOp::Setattr(_));
    let changes = |op: &ArgOp| optable::lookup(op.op()).is_some_and(|info| info.modifies());
    if ops.iter().any(|op| changes(op) && !known(op)) {
        delegation.forget_size();
    }
}

/// CLOSE of an open that is lost to us: the server may hold it. What it says no longer matters.
async fn close_lost(fs: &Fs, open: &Arc<OpenState>) {
    if let (Some(_), Some(open_stateid)) = (open.loss(), open.closing_stateid()) {
        let ops = vec![putfh(&open.fh), ArgOp::Close(CloseArgs { seqid: 0, open_stateid })];
        let _ = Box::pin(fs.call_closing(ops, true, vec![Arc::clone(open)])).await;
    }
}

/// An open file.
///
/// Close it with [`File::close`], which reports errors; dropping it sends the CLOSE in the background.
#[derive(Debug)]
pub struct File {
    fs: Fs,
    pub(crate) open: Arc<OpenState>,
    attrs: Mutex<Attrs>,
    dir: Option<FileHandle>,
    pub(crate) lock_owner: Bytes,
    /// Lock operations of one open go one after another: each needs the stateid that the one before returned.
    pub(crate) locking: Arc<tokio::sync::Mutex<()>>,
}

impl File {
    pub(crate) fn new(fs: Fs, open: Arc<OpenState>) -> Self {
        let lock_owner = fs.client().inner().opens.new_owner();
        Self { fs, open, attrs: Mutex::default(), dir: None, lock_owner, locking: Arc::default() }
    }

    pub(crate) fn set_attrs(&self, attrs: Attrs) {
        if let Some(fsid) = attrs.fsid {
            self.open.set_fsid(fsid);
        }
        *self.attrs.lock() = attrs;
    }

    pub(crate) fn set_dir(&mut self, dir: FileHandle) {
        self.dir = Some(dir);
    }

    /// The directory that it was created in, if it was opened with [`Create::New`](crate::Create::New).
    pub fn dir(&self) -> Option<&FileHandle> {
        self.dir.as_ref()
    }

    /// The tree it was opened in.
    pub fn fs(&self) -> &Fs {
        &self.fs
    }

    /// Its handle.
    pub fn fh(&self) -> &FileHandle {
        &self.open.fh
    }

    /// Its attributes when it was opened, or at the last [`File::stat`].
    pub fn attrs(&self) -> Attrs {
        self.attrs.lock().clone()
    }

    /// Its size as last seen, in bytes.
    pub fn size(&self) -> u64 {
        self.attrs.lock().size.unwrap_or(0)
    }

    /// The stateid of the open, for operations of your own. After a restart of the server it is of no use until the file
    /// is open again, for which calls of this library wait.
    ///
    /// # Errors
    ///
    /// When the open is lost or closed.
    pub fn stateid(&self) -> Result<Stateid> {
        if let Some(delegation) = self.open.delegation() {
            delegation.forget_size();
        }
        Ok(self.open.stateid()?.0)
    }

    /// The delegation that the server gave with the open, if one was asked for
    /// ([`OpenOptions::delegation`](crate::OpenOptions::delegation)).
    pub fn delegation(&self) -> Option<Arc<Delegation>> {
        self.open.delegation()
    }

    /// Most bytes of one READ and one WRITE: the session's and the filesystem's limits.
    ///
    /// # Errors
    ///
    /// When there is no session.
    pub async fn io_limits(&self) -> Result<(u32, u32)> {
        let (read, write) = self.fs.client().io_limits().await?;
        let attrs = self.attrs.lock();
        let fit = |limit: u32, attr: Option<u64>| match attr {
            Some(most) if most > 0 => limit.min(u32::try_from(most).unwrap_or(u32::MAX)),
            _ => limit,
        };
        Ok((fit(read, attrs.maxread), fit(write, attrs.maxwrite)))
    }

    /// Runs operations that carry the open's stateid on the file: [`run_on`].
    pub(crate) async fn run(&self, cache: bool, build: impl Fn(Stateid) -> Vec<ArgOp>) -> Result<Tail> {
        run_on(&self.fs, &self.open, cache, build).await.map(|(tail, _)| tail)
    }

    async fn one(&self, cache: bool, build: impl Fn(Stateid) -> ArgOp) -> Result<ResOp> {
        let build = |stateid| vec![build(self.open.io_stateid(&self.lock_owner, stateid))];
        let mut tail = self.run(cache, build).await?;
        match (tail.status.is_ok(), tail.results.pop()) {
            (true, Some(res)) => Ok(res),
            (true, None) => Err(Error::protocol("an operation was not answered")),
            (false, Some(res)) => Err(Error::status(res.op(), tail.status)),
            (false, None) => Err(Error::status(OpNum::PUTFH, tail.status)),
        }
    }

    /// One READ of at most `count` bytes, cut to what one READ may carry. The data can be shorter than asked for
    /// without being at the end of the file.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn read_at(&self, offset: u64, count: u32) -> Result<ReadOk> {
        let count = count.min(self.io_limits().await?.0);
        let res = self.one(false, |stateid| ArgOp::Read(ReadArgs { stateid, offset, count })).await?;
        match res {
            ResOp::Read(Ok(ok)) if ok.data.is_empty() && !ok.eof && count > 0 => {
                // RFC 8881 section 18.22.3: only at the end of the file may there be nothing.
                Err(Error::protocol("READ returned nothing and no end"))
            }
            ResOp::Read(Ok(ok)) => Ok(ok),
            _ => Err(Error::protocol("no READ in the reply")),
        }
    }

    /// Reads `count` bytes, or all up to the end of the file, in as many READs as it takes, one after another.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn read_full_at(&self, offset: u64, count: u32) -> Result<ReadOk> {
        let first = self.read_at(offset, count).await?;
        let mut have = first.data.len();
        if first.eof || have >= count as usize {
            return Ok(first);
        }
        // Grows with what arrives, not by what was asked for.
        let mut all = BytesMut::from(&first.data[..]);
        let mut eof = false;
        while !eof && have < count as usize {
            let more = self.read_at(offset + have as u64, count - have as u32).await?;
            have += more.data.len();
            all.extend_from_slice(&more.data);
            eof = more.eof;
        }
        Ok(ReadOk { eof, data: all.freeze() })
    }

    /// One WRITE of `data`, cut to what one WRITE may carry: look at the count. Data that was not written with
    /// FILE_SYNC is safe after [`File::commit`] returned the same verifier.
    ///
    /// # Errors
    ///
    /// The server's: NOSPC, DQUOT, FBIG and so on.
    pub async fn write_at(&self, offset: u64, data: Bytes, stable: StableHow) -> Result<WriteOk> {
        let most = self.io_limits().await?.1 as usize;
        let data = data.slice(..data.len().min(most));
        let sent = data.len();
        let res =
            self.one(false, |stateid| ArgOp::Write(WriteArgs { stateid, offset, stable, data: data.clone() })).await?;
        match res {
            ResOp::Write(Ok(ok)) if ok.count == 0 && sent > 0 => {
                Err(Error::protocol("WRITE wrote nothing and gave no reason"))
            }
            ResOp::Write(Ok(ok)) => {
                if let Some(delegation) = self.open.delegation() {
                    delegation.wrote(offset.saturating_add(ok.count.into()));
                }
                Ok(ok)
            }
            _ => Err(Error::protocol("no WRITE in the reply")),
        }
    }

    /// Writes all of `data` in as many WRITEs as it takes, one after another. The result says how safe the least safe
    /// part is, and holds the one verifier of all parts.
    ///
    /// # Errors
    ///
    /// The server's; [`Error::WritesLost`] when the verifier changed between unstable parts.
    pub async fn write_all_at(&self, offset: u64, data: Bytes, stable: StableHow) -> Result<WriteOk> {
        let mut all = self.write_at(offset, data.clone(), stable).await?;
        let mut done = all.count as usize;
        while done < data.len() {
            let part = self.write_at(offset + done as u64, data.slice(done..), stable).await?;
            done += part.count as usize;
            all.committed = all.committed.min(part.committed);
            if part.verifier != all.verifier && all.committed == StableHow::UNSTABLE {
                return Err(Error::WritesLost);
            }
            all.verifier = part.verifier;
        }
        all.count = u32::try_from(done).unwrap_or(u32::MAX);
        Ok(all)
    }

    /// Makes unstable writes of a range safe (0, 0: the whole file) and returns the verifier: equal to that of the
    /// writes, or they were lost and must be written again.
    ///
    /// # Errors
    ///
    /// The server's; what was written is then in doubt.
    pub async fn commit(&self, offset: u64, count: u32) -> Result<Verifier> {
        match self.one(false, |_| ArgOp::Commit(CommitArgs { offset, count })).await? {
            ResOp::Commit(Ok(ok)) => Ok(ok.verifier),
            _ => Err(Error::protocol("no COMMIT in the reply")),
        }
    }

    /// The attributes now.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn stat(&self) -> Result<Attrs> {
        let attrs = self.fs.getattr(self.fh(), STAT).await?;
        let mut kept = self.attrs.lock();
        let (maxread, maxwrite) = (kept.maxread, kept.maxwrite);
        *kept = Attrs { maxread, maxwrite, ..attrs.clone() };
        Ok(attrs)
    }

    /// Changes attributes; a size needs the file open for writing.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn setattr(&self, attrs: &Attrs) -> Result<()> {
        self.one(true, |stateid| ArgOp::Setattr(SetattrArgs { stateid, attrs: attrs.into() })).await?;
        if let Some(size) = attrs.size {
            self.attrs.lock().size = Some(size);
            if let Some(delegation) = self.open.delegation() {
                delegation.resized(size);
            }
        }
        Ok(())
    }

    /// Changes the size.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn set_size(&self, size: u64) -> Result<()> {
        self.setattr(&Attrs { size: Some(size), ..Attrs::default() }).await
    }

    /// Finds the next data or hole at or after `offset` (RFC 7862 section 15.11). At the end of the file a hole is
    /// assumed.
    ///
    /// # Errors
    ///
    /// NXIO when `offset` is beyond the end, or no data follows; NOTSUPP.
    pub async fn seek(&self, offset: u64, what: DataContent) -> Result<SeekOk> {
        match self.one(false, |stateid| ArgOp::Seek(SeekArgs { stateid, offset, what })).await? {
            ResOp::Seek(Ok(ok)) if !ok.eof && ok.offset < offset => Err(Error::protocol("SEEK went backwards")),
            ResOp::Seek(Ok(ok)) => Ok(ok),
            _ => Err(Error::protocol("no SEEK in the reply")),
        }
    }

    /// Reserves space for a range (RFC 7862 section 15.1).
    ///
    /// # Errors
    ///
    /// NOSPC, NOTSUPP, others of the server.
    pub async fn allocate(&self, offset: u64, length: u64) -> Result<()> {
        self.one(true, |stateid| ArgOp::Allocate(AllocateArgs { stateid, offset, length })).await.map(|_| ())
    }

    /// Makes a hole of a range (RFC 7862 section 15.4).
    ///
    /// # Errors
    ///
    /// NOTSUPP, others of the server.
    pub async fn deallocate(&self, offset: u64, length: u64) -> Result<()> {
        self.one(true, |stateid| ArgOp::Deallocate(AllocateArgs { stateid, offset, length })).await.map(|_| ())
    }

    /// Tells the server how a range will be used (RFC 7862 section 15.5); the hints it heeds.
    ///
    /// # Errors
    ///
    /// NOTSUPP, others of the server.
    pub async fn advise(&self, offset: u64, count: u64, hints: Bitmap) -> Result<Bitmap> {
        let advise = |stateid| ArgOp::IoAdvise(IoAdviseArgs { stateid, offset, count, hints });
        match self.one(false, advise).await? {
            ResOp::IoAdvise(Ok(ok)) => Ok(ok.hints),
            _ => Err(Error::protocol("no IO_ADVISE in the reply")),
        }
    }

    /// Closes the file. Unstable writes are not committed by this.
    ///
    /// # Errors
    ///
    /// The server's. [`Error::StateLost`] when the open, its share reservation or a lock that was not unlocked is lost,
    /// or is found to be lost by this: others may have used the file in the meantime. It says so also where an earlier
    /// call did; the file is closed all the same. A plain open (no lock, no DENY) that the server no longer knows counts
    /// as closed. A file that is dropped instead tells nobody.
    pub async fn close(self) -> Result<()> {
        self.close_with(None, &[], None).await.0.map(|_| ())
    }

    /// COMMIT of the whole file and CLOSE in one round trip; the verifier of the COMMIT.
    ///
    /// # Errors
    ///
    /// As [`File::commit`] and [`File::close`]; the file is closed in any case.
    pub async fn commit_and_close(self) -> Result<Verifier> {
        let commit = ArgOp::Commit(CommitArgs { offset: 0, count: 0 });
        let verifier = self.close_with(Some(commit), &[], None).await.0?;
        verifier.ok_or_else(|| Error::protocol("no COMMIT in the reply"))
    }

    /// CLOSE, the attributes `set` if there are any, and RENAME within `dir`: what gives a finished file its name, in one
    /// round trip. Unstable writes are not committed by this: [`File::commit`] and look at the verifier before.
    ///
    /// # Errors
    ///
    /// Those of [`File::close`], after which nothing else has been done; those of SETATTR, after which the file is closed
    /// and has its old name; those of RENAME. [`Error::Status`] says which operation it was.
    pub async fn close_as(self, set: Option<&Attrs>, dir: &FileHandle, old: Bytes, new: Bytes) -> Result<()> {
        self.finish(None, set, dir, old, new).await.0
    }

    /// As [`File::close_as`], with the CLOSE of another file of this client, the source of a copy, in the same round trip.
    /// The second result is that of closing `other`, which is closed whatever becomes of the first.
    pub async fn close_both_as(
        self,
        other: File,
        set: Option<&Attrs>,
        dir: &FileHandle,
        old: Bytes,
        new: Bytes,
    ) -> (Result<()>, Result<()>) {
        self.finish(Some(other), set, dir, old, new).await
    }

    async fn finish(
        self,
        other: Option<File>,
        set: Option<&Attrs>,
        dir: &FileHandle,
        old: Bytes,
        new: Bytes,
    ) -> (Result<()>, Result<()>) {
        let set = set.map(|attrs| ArgOp::Setattr(SetattrArgs { stateid: Stateid::ANONYMOUS, attrs: attrs.into() }));
        let mut named: Vec<ArgOp> = set.into_iter().collect();
        named.extend([putfh(dir), ArgOp::SaveFh, ArgOp::Rename(RenameArgs { old_name: old, new_name: new })]);
        let (fs, fh) = (self.fs.clone(), self.fh().clone());
        let mut after = named.clone();
        let mut both = false;
        if let Some(other) = &other {
            other.release_delegation().await;
        }
        // Behind everything else: what goes wrong before leaves it to a CLOSE of its own. With its handle and ours there
        // are four operations more.
        if let Some((other, open_stateid)) = other.as_ref().and_then(|o| Some((o, o.stateid().ok()?)))
            && fs.room().await.is_ok_and(|room| room >= named.len() + 4)
        {
            after.extend([putfh(other.fh()), ArgOp::Close(CloseArgs { seqid: 0, open_stateid })]);
            both = true;
        }
        let with = other.as_ref().filter(|_| both).map(|o| &o.open);
        let (closed, rest) = self.close_with(None, &after, with).await;
        both &= rest.as_ref().is_some_and(|tail| tail.status.is_ok());
        let named = match (closed, rest) {
            (Err(e), _) => Err(e),
            (Ok(_), Some(tail)) if tail.status.is_ok() || tail.results.len() > named.len() => Ok(()),
            (Ok(_), Some(tail)) if !matches!(classify(tail.status), Class::Delay | Class::Grace) => Err(tail.error()),
            // CLOSE must not be sent twice, so the client did not come back by itself; or the open was lost.
            (Ok(_), _) => {
                let mut ops = vec![putfh(&fh)];
                ops.extend(named);
                match fs.call(ops, true).await {
                    Ok(res) if res.status.is_ok() => Ok(()),
                    Ok(res) => Err(Client::stopped(&res)),
                    Err(e) => Err(e),
                }
            }
        };
        let other_closed = match other {
            Some(other) if both => {
                fs.client().inner().opens.remove(&other.open);
                Ok(())
            }
            Some(other) => other.close().await,
            None => Ok(()),
        };
        (named, other_closed)
    }

    /// Before the file is closed: a delegation without an open would be kept for nothing.
    async fn release_delegation(&self) {
        if let Some(delegation) = self.open.delegation()
            && let Err(e) = Box::pin(delegation.give_back()).await
        {
            tracing::debug!(error = %e, "cannot return a delegation");
        }
    }

    /// CLOSE with one operation before it and others behind it. What came of the first; and of the others, if they were
    /// sent with a CLOSE that succeeded.
    /// The last of the others may be the CLOSE of `other`.
    async fn close_with(
        self,
        before: Option<ArgOp>,
        after: &[ArgOp],
        other: Option<&Arc<OpenState>>,
    ) -> (Result<Option<Verifier>>, Option<Tail>) {
        let build = |with: Option<&ArgOp>, open_stateid, after: &[ArgOp]| {
            let mut ops: Vec<ArgOp> = with.cloned().into_iter().collect();
            ops.push(ArgOp::Close(CloseArgs { seqid: 0, open_stateid }));
            ops.extend_from_slice(after);
            ops
        };
        self.release_delegation().await;
        self.open.begin_close();
        let mut first_error = None;
        let mut verifier = None;
        let mut rest = None;
        let mut with = before.as_ref();
        let outcome = loop {
            let done = match self.open.owed() {
                // It could not be reclaimed: the server has nothing to close.
                Some(status) => Err(Error::StateLost { what: Lost::Open, status }),
                None => run_closing(&self.fs, (&self.open, other), true, |stateid| build(with, stateid, after)).await,
            };
            let mut tail = match done {
                Ok((tail, _)) => tail,
                Err(Error::StateLost { status, .. }) => {
                    close_lost(&self.fs, &self.open).await;
                    break Box::pin(self.gone(with, status)).await.map(|alone| verifier = alone);
                }
                // Asked for again in another session, and not known any more: it was closed the first time, or lost. What
                // the COMMIT before it said then is not known.
                Err(Error::OutcomeUnknown { op: OpNum::CLOSE }) => {
                    break Box::pin(self.gone(with, Status::BAD_STATEID)).await.map(|alone| verifier = alone);
                }
                // What comes behind the CLOSE cannot be asked for again, but the CLOSE must be.
                Err(e @ Error::OutcomeUnknown { .. }) => {
                    let again = run_on(&self.fs, &self.open, true, |stateid| build(None, stateid, &[]));
                    if let Err(e) = Box::pin(again).await {
                        tracing::debug!(error = %e, "cannot close a file again");
                    }
                    break Err(e);
                }
                // The caller waits no more. What is dropped now is closed in the background.
                Err(e @ Error::TimedOut(_)) => return (Err(e), None),
                Err(e) => break Err(e),
            };
            if let Some(ResOp::Commit(Ok(ok))) = tail.results.first() {
                verifier = Some(ok.verifier);
            }
            let close_at = with.iter().len();
            if let Some(ResOp::Close(Ok(_))) = tail.results.get(close_at) {
                rest = Some(Tail { results: tail.results.split_off(close_at + 1), status: tail.status });
                break Ok(());
            }
            let closing = tail.results.len() > close_at;
            match tail.status {
                Status::OK => break Err(Error::protocol("no CLOSE in the reply")),
                Status::LOCKS_HELD if closing => {
                    // RFC 8881 section 18.2.3: a server may insist on locks being freed first.
                    if let Err(e) = self.unlock_all().await {
                        break Err(e);
                    }
                    with = None;
                }
                _ if closing || with.is_none() => break Err(tail.error()),
                // COMMIT failed, so CLOSE was not reached.
                _ => {
                    first_error = Some(tail.error());
                    with = None;
                }
            }
        };
        self.fs.client().inner().opens.remove(&self.open);
        let done = outcome.and_then(|()| first_error.map_or(Ok(verifier), Err));
        (done, rest)
    }

    /// What is to be done when the server does not know the open, for this reason: tells of what was lost by it, or
    /// sends the COMMIT.
    async fn gone(&self, commit: Option<&ArgOp>, status: Status) -> Result<Option<Verifier>> {
        match opens::closing_loss(self.fs.client().inner(), &self.open, status).await {
            Some((what, status)) => Err(Error::StateLost { what, status }),
            None => self.alone(commit).await,
        }
    }

    /// The COMMIT of a file whose CLOSE has nothing more to do; its verifier.
    async fn alone(&self, commit: Option<&ArgOp>) -> Result<Option<Verifier>> {
        let Some(commit) = commit else { return Ok(None) };
        let res = self.fs.call(vec![putfh(self.fh()), commit.clone()], true).await?;
        match res.results.last() {
            Some(ResOp::Commit(Ok(ok))) => Ok(Some(ok.verifier)),
            _ => Err(Client::stopped(&res)),
        }
    }

    /// As a place, for calls that take one.
    pub fn place(&self) -> Place {
        Place::Handle(self.fh().clone())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if self.open.is_closed() {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (fs, open) = (self.fs.clone().in_background(), Arc::clone(&self.open));
        open.begin_close();
        runtime.spawn(async move {
            let inner = fs.client().inner();
            let closed = async {
                if let Some(delegation) = open.delegation() {
                    let _ = delegation.give_back().await;
                }
                let close = |open_stateid| vec![ArgOp::Close(CloseArgs { seqid: 0, open_stateid })];
                let done = match open.owed() {
                    // The server has nothing to close.
                    Some(_) => Ok(()),
                    None => run_on(&fs, &open, true, close).await.map(drop),
                };
                if let Err(e) = done {
                    tracing::debug!(error = %e, "cannot close a file that was dropped");
                    close_lost(&fs, &open).await;
                }
            };
            // A client that is dropped too ends when this does.
            let most = inner.config.call_timeout.map_or(IN_BACKGROUND, |limit| limit.max(IN_BACKGROUND));
            let _ = tokio::time::timeout(most, closed).await;
            inner.opens.remove(&open);
        });
    }
}
