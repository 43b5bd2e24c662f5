//! CLONE and COPY inside one server, synchronous and asynchronous (RFC 7862 sections 4, 15.2, 15.8, 15.9, 15.13).

use std::time::Duration;

use dhow_proto::v4::cb::OffloadInfo;
use dhow_proto::v4::ops::{CloneArgs, CommitArgs, CopyArgs, CopyOk, CopyRes, OffloadArgs, OffloadStatusOk};
use dhow_proto::v4::{ArgOp, FileHandle, OpNum, ResOp, StableHow, Stateid, Status, Verifier};
use dhow_session::classify::{Class, classify};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::file::MOST_REPAIRS;
use crate::fs::putfh;
use crate::{Client, Error, File, Fs, Lost, Result, opens};

/// When an asynchronous copy is asked how far it is: soon, for the sake of a progress bar, then seldom. Completion is
/// told by CB_OFFLOAD; polling is for the case that it is lost (case K02).
const FIRST_POLLS: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(1)];
const LATER_POLLS: Duration = Duration::from_secs(3);

/// Polls in a row that may fail before a copy is given up.
const MOST_FAILURES: u32 = 5;

/// How to copy.
#[derive(Debug, Clone, Default)]
pub struct CopyOptions {
    /// The reply must come after the copy. Otherwise the server decides, and a long copy goes on after its reply.
    pub synchronous: bool,
    /// Have the data on stable storage at the end. With `synchronous` the COMMIT rides in the same call; otherwise it
    /// is sent at the end unless the server says that it is not needed.
    pub durable: bool,
}

/// What a copy did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// Bytes copied: from the start of the range, without gaps. Less than asked for at the end of the source, or where
    /// the server stopped early.
    pub bytes: u64,
    /// How safe they are.
    pub committed: StableHow,
    /// Verifier of unstable data.
    pub verifier: Verifier,
}

impl Copied {
    /// Whether the data survives a crash of the server.
    pub fn is_durable(&self) -> bool {
        self.committed != StableHow::UNSTABLE
    }
}

/// How far a running copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyProgress {
    /// Bytes copied so far: from the start of the range, without gaps.
    pub bytes: u64,
    /// They are on stable storage.
    pub durable: bool,
}

/// A copy that was begun.
#[derive(Debug)]
pub enum CopyBegun {
    /// It is finished.
    Done(Copied),
    /// It goes on at the server.
    Running(RunningCopy),
}

/// A copy that goes on at the server after the reply.
///
/// Dropping it leaves the copy running; [`RunningCopy::cancel`] stops it.
#[derive(Debug)]
pub struct RunningCopy {
    fs: Fs,
    target: FileHandle,
    stateid: Stateid,
    /// What the COPY reply said: the verifier that a later COMMIT is to be compared with.
    begun: Copied,
    /// Bytes that it may come to.
    most: u64,
    done: oneshot::Receiver<OffloadInfo>,
}

impl File {
    /// Makes a range of `target` share the blocks of a range of this file, at once and whatever its size (CLONE).
    /// `count` 0: to the end of this file.
    ///
    /// # Errors
    ///
    /// NOTSUPP; INVAL when the range is not aligned to `clone_blksize` or goes past the end; XDEV; others of the
    /// server.
    pub async fn clone_to(&self, src_offset: u64, target: &File, dst_offset: u64, count: u64) -> Result<()> {
        let build = |src_stateid, dst_stateid| {
            vec![ArgOp::Clone(CloneArgs { src_stateid, dst_stateid, src_offset, dst_offset, count })]
        };
        self.with_target(target, build).await.map(|_| ())
    }

    /// As [`File::clone_to`], and on stable storage at the end: a COMMIT of the whole of `target` rides in the same call.
    ///
    /// # Errors
    ///
    /// As [`File::clone_to`] and [`File::commit`].
    pub async fn clone_durably(&self, src_offset: u64, target: &File, dst_offset: u64, count: u64) -> Result<()> {
        let build = |src_stateid, dst_stateid| {
            vec![
                ArgOp::Clone(CloneArgs { src_stateid, dst_stateid, src_offset, dst_offset, count }),
                ArgOp::Commit(CommitArgs { offset: 0, count: 0 }),
            ]
        };
        self.with_target(target, build).await.map(|_| ())
    }

    /// Begins a copy of a range of this file to `target` by the server (COPY). `count` 0: to the end of this file.
    ///
    /// # Errors
    ///
    /// NOTSUPP, OFFLOAD_NO_REQS when it can only be done asynchronously and that was excluded; INVAL for one file as
    /// both; NOSPC; others of the server.
    pub async fn begin_copy(
        &self,
        src_offset: u64,
        target: &File,
        dst_offset: u64,
        count: u64,
        options: &CopyOptions,
    ) -> Result<CopyBegun> {
        let build = |src_stateid, dst_stateid| {
            let source_server = Vec::new();
            let (consecutive, synchronous) = (true, options.synchronous);
            copy_ops(
                CopyArgs {
                    src_stateid,
                    dst_stateid,
                    src_offset,
                    dst_offset,
                    count,
                    consecutive,
                    synchronous,
                    source_server,
                },
                options,
            )
        };
        // Held until the reply is dealt with: its completion may come first.
        let offloads = &target.fs().client().inner().offloads;
        let _unanswered = offloads.begin();
        let results = self.with_target(target, build).await?;
        begun(target, results, options, most(src_offset, dst_offset, count))
    }

    /// Copies a range of this file to `target` by the server, to the end: waits for asynchronous copies, goes on after
    /// short ones, and commits when `options` ask for it and the server has not done so. `progress` is told the bytes
    /// copied so far. `count` 0: to the end of this file.
    ///
    /// # Errors
    ///
    /// As [`File::begin_copy`]; [`Error::CopyLost`] and [`Error::WritesLost`] when the server restarted meanwhile. What
    /// `progress` was told last may have been copied.
    pub async fn copy_to(
        &self,
        src_offset: u64,
        target: &File,
        dst_offset: u64,
        count: u64,
        options: &CopyOptions,
        mut progress: impl FnMut(u64),
    ) -> Result<Copied> {
        let mut all = Copied { bytes: 0, committed: StableHow::FILE_SYNC, verifier: Verifier::default() };
        let mut unstable = None;
        loop {
            let left = if count == 0 { 0 } else { count - all.bytes };
            let (from, to) = (src_offset + all.bytes, dst_offset + all.bytes);
            let part = match Box::pin(self.begin_copy(from, target, to, left, options)).await? {
                CopyBegun::Done(part) => part,
                CopyBegun::Running(copy) => Box::pin(copy.wait(|n| progress(all.bytes + n))).await?,
            };
            all.bytes += part.bytes;
            all.verifier = part.verifier;
            all.committed = all.committed.min(part.committed);
            if !part.is_durable() && unstable.replace(part.verifier).is_some_and(|before| before != part.verifier) {
                return Err(Error::WritesLost);
            }
            progress(all.bytes);
            // Nothing more means that the source has ended. A range to the end takes one more call only after a copy
            // that stopped short of what was the end.
            let ended = part.bytes == 0 || (count != 0 && all.bytes >= count);
            if ended || (count == 0 && src_offset + all.bytes >= self.size()) {
                break;
            }
        }
        if options.durable && !all.is_durable() {
            let verifier = target.commit(0, 0).await?;
            if unstable.is_some_and(|before| before != verifier) {
                return Err(Error::WritesLost);
            }
            all = Copied { committed: StableHow::FILE_SYNC, verifier, ..all };
        }
        Ok(all)
    }

    /// Runs operations with this file as saved and `target` as current filehandle, and both open stateids.
    async fn with_target(&self, target: &File, build: impl Fn(Stateid, Stateid) -> Vec<ArgOp>) -> Result<Vec<ResOp>> {
        let inner = self.fs().client().inner();
        let mut repairs = 0;
        loop {
            opens::settle(inner, &self.open).await?;
            opens::settle(inner, &target.open).await?;
            let sent_at = inner.now();
            let (src, src_generation) = self.open.stateid()?;
            let (dst, dst_generation) = target.open.stateid()?;
            let mut ops = vec![putfh(self.fh()), ArgOp::SaveFh, putfh(target.fh())];
            ops.extend(build(src, dst));
            let mut res = target.fs().call(ops, true).await?;
            if res.status.is_ok() {
                return Ok(res.results.split_off(3));
            }
            if classify(res.status) != Class::StateLost {
                return Err(Client::stopped(&res));
            }
            // The server does not say which of the two it means.
            repairs += 1;
            let source = self.fs().restore(&self.open, (src_generation, sent_at), res.status).await?;
            let target_too = target.fs().restore(&target.open, (dst_generation, sent_at), res.status).await?;
            if repairs > MOST_REPAIRS || !(source || target_too) {
                self.open.stateid()?;
                target.open.stateid()?;
                return Err(Error::StateLost { what: Lost::Open, status: res.status });
            }
        }
    }
}

/// COPY, and the COMMIT that rides with it.
pub(crate) fn copy_ops(copy: CopyArgs, options: &CopyOptions) -> Vec<ArgOp> {
    let mut ops = vec![ArgOp::Copy(copy)];
    if options.synchronous && options.durable {
        ops.push(ArgOp::Commit(CommitArgs { offset: 0, count: 0 }));
    }
    ops
}

/// Bytes that a copy can come to at most; `count` 0: to the end of the source.
pub(crate) fn most(src_offset: u64, dst_offset: u64, count: u64) -> u64 {
    if count == 0 { u64::MAX - src_offset.max(dst_offset) } else { count }
}

/// A server that says it copied more than it was asked to is not to be believed in the rest either.
fn believable(copied: Copied, most: u64) -> Result<Copied> {
    if copied.bytes > most {
        return Err(Error::protocol("COPY was answered with more bytes than were asked for"));
    }
    Ok(copied)
}

/// What the results of [`copy_ops`] say. `most`: of [`most`].
pub(crate) fn begun(target: &File, results: Vec<ResOp>, options: &CopyOptions, most: u64) -> Result<CopyBegun> {
    let (mut copy, mut commit) = (None, None);
    for res in results {
        match res {
            ResOp::Copy(CopyRes::Ok(ok)) => copy = Some(ok),
            ResOp::Commit(Ok(ok)) => commit = Some(ok.verifier),
            _ => {}
        }
    }
    let CopyOk { response, .. } = copy.ok_or_else(|| Error::protocol("no COPY in the reply"))?;
    let begun = Copied { bytes: response.count, committed: response.committed, verifier: response.verifier };
    match response.callback_id.first() {
        Some(stateid) if stateid.is_special() || options.synchronous => {
            Err(Error::protocol("COPY was answered with a copy that cannot be"))
        }
        Some(stateid) => Ok(CopyBegun::Running(RunningCopy {
            done: target.fs().client().inner().offloads.expect(*stateid),
            fs: target.fs().clone(),
            target: target.fh().clone(),
            stateid: *stateid,
            begun: Copied { bytes: 0, ..begun },
            most,
        })),
        None => match believable(begun, most).map(|_| commit)? {
            Some(verifier) if !begun.is_durable() && verifier != begun.verifier => Err(Error::WritesLost),
            Some(verifier) => Ok(CopyBegun::Done(Copied { committed: StableHow::FILE_SYNC, verifier, ..begun })),
            None => Ok(CopyBegun::Done(begun)),
        },
    }
}

impl RunningCopy {
    /// Names the copy.
    pub fn stateid(&self) -> Stateid {
        self.stateid
    }

    /// The write verifier under which it writes.
    pub fn verifier(&self) -> Verifier {
        self.begun.verifier
    }

    /// Asks how far the copy is (OFFLOAD_STATUS).
    ///
    /// # Errors
    ///
    /// BAD_STATEID when the server does not know the copy (any more).
    pub async fn poll(&self) -> Result<OffloadStatusOk> {
        Ok(ask(&self.fs, &self.target, self.stateid, false).await?.0)
    }

    /// Waits for the end, by callback or by polling, whichever tells first. `progress` is told the bytes copied so far.
    ///
    /// # Errors
    ///
    /// What stopped the copy; [`Error::CopyLost`] when the server forgot it.
    pub async fn wait(self, mut progress: impl FnMut(u64)) -> Result<Copied> {
        self.watch(None, |so_far| progress(so_far.bytes)).await
    }

    /// As [`RunningCopy::wait`], and every `checkpoint` a COMMIT rides with the question how far the copy is: when both
    /// succeed and the write verifier is that of the copy, the bytes told are on stable storage.
    ///
    /// # Errors
    ///
    /// As [`RunningCopy::wait`]; [`Error::WritesLost`] when the write verifier changed.
    pub async fn wait_with_checkpoints(
        self,
        checkpoint: Duration,
        progress: impl FnMut(CopyProgress),
    ) -> Result<Copied> {
        self.watch(Some(checkpoint), progress).await
    }

    async fn watch(mut self, checkpoint: Option<Duration>, mut progress: impl FnMut(CopyProgress)) -> Result<Copied> {
        let mut polls = FIRST_POLLS.into_iter();
        let mut failures = 0;
        let mut last_checkpoint = Instant::now();
        loop {
            let wait = polls.next().unwrap_or(LATER_POLLS);
            tokio::select! {
                biased;
                told = &mut self.done => return self.told(told),
                () = tokio::time::sleep(wait) => {}
            }
            let commit = checkpoint.is_some_and(|every| last_checkpoint.elapsed() >= every);
            if commit {
                last_checkpoint = Instant::now();
            }
            // A COMMIT may take long; the end of the copy need not wait for it.
            let (fs, target, stateid) = (self.fs.clone(), self.target.clone(), self.stateid);
            let asked = tokio::select! {
                biased;
                told = &mut self.done => return self.told(told),
                asked = ask(&fs, &target, stateid, commit) => asked,
            };
            match asked {
                Ok((OffloadStatusOk { count, complete }, committed)) => {
                    failures = 0;
                    if committed.is_some_and(|verifier| verifier != self.begun.verifier) {
                        return Err(Error::WritesLost);
                    }
                    let so_far = believable(Copied { bytes: count, ..self.begun }, self.most)?.bytes;
                    progress(CopyProgress { bytes: so_far, durable: committed.is_some() });
                    match complete.first() {
                        None => {}
                        Some(&Status::OK) => {
                            // How safe the data is stands in the callback alone; it may just be on its way.
                            return match self.told_now() {
                                Some(info) => self.outcome(&info),
                                None => Ok(Copied { bytes: count, committed: StableHow::UNSTABLE, ..self.begun }),
                            };
                        }
                        Some(&status) => return Err(Error::status(OpNum::COPY, status)),
                    }
                }
                Err(Error::Status { status, .. }) if classify(status) == Class::StateLost => {
                    // Forgotten: either its end was told just now, or the server restarted.
                    return match self.told_now() {
                        Some(info) => self.outcome(&info),
                        None => Err(Error::CopyLost),
                    };
                }
                // Without OFFLOAD_STATUS the callback alone tells.
                Err(e) if e.is(Status::NOTSUPP) => {}
                Err(e) => {
                    failures += 1;
                    if failures > MOST_FAILURES || matches!(e, Error::Closed) {
                        return Err(e);
                    }
                }
            }
        }
    }

    fn told(&self, told: Result<OffloadInfo, oneshot::error::RecvError>) -> Result<Copied> {
        match told {
            Ok(info) => self.outcome(&info),
            Err(_) => Err(Error::CopyLost),
        }
    }

    /// Stops the copy (OFFLOAD_CANCEL). What was copied stays.
    ///
    /// # Errors
    ///
    /// The server's; not when the copy was finished already.
    pub async fn cancel(self) -> Result<()> {
        let cancel = ArgOp::OffloadCancel(OffloadArgs { stateid: self.stateid });
        let res = self.fs.call(vec![putfh(&self.target), cancel], true).await?;
        match res.status {
            Status::OK | Status::BAD_STATEID => Ok(()),
            _ => Err(Client::stopped(&res)),
        }
    }

    fn told_now(&mut self) -> Option<OffloadInfo> {
        self.done.try_recv().ok()
    }

    fn outcome(&self, info: &OffloadInfo) -> Result<Copied> {
        match info {
            OffloadInfo::Ok(response) => {
                let (bytes, committed, verifier) = (response.count, response.committed, response.verifier);
                believable(Copied { bytes, committed, verifier }, self.most)
            }
            OffloadInfo::Err { status, .. } => Err(Error::status(OpNum::COPY, *status)),
        }
    }
}

/// OFFLOAD_STATUS, and COMMIT in the same call when wanted: the verifier, if that succeeded.
async fn ask(
    fs: &Fs,
    target: &FileHandle,
    stateid: Stateid,
    commit: bool,
) -> Result<(OffloadStatusOk, Option<Verifier>)> {
    let mut ops = vec![putfh(target), ArgOp::OffloadStatus(OffloadArgs { stateid })];
    if commit {
        ops.push(ArgOp::Commit(CommitArgs { offset: 0, count: 0 }));
    }
    let res = fs.call(ops, false).await?;
    let (mut status, mut committed) = (None, None);
    for result in &res.results {
        match result {
            ResOp::OffloadStatus(Ok(ok)) => status = Some(ok.clone()),
            ResOp::Commit(Ok(ok)) => committed = Some(ok.verifier),
            _ => {}
        }
    }
    match status {
        // A COMMIT that failed makes no checkpoint; what is wrong shows at the end of the copy again.
        Some(status) => Ok((status, committed)),
        None if res.status.is_ok() => Err(Error::protocol("no OFFLOAD_STATUS in the reply")),
        None => Err(Client::stopped(&res)),
    }
}

impl Drop for RunningCopy {
    fn drop(&mut self) {
        self.fs.client().inner().offloads.forget(self.stateid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever a server says, sums of offsets and counts stay within 64 bits.
    #[test]
    fn more_than_was_asked_for_is_not_believed() {
        let copied = |bytes| Copied { bytes, committed: StableHow::UNSTABLE, verifier: Verifier::default() };
        assert_eq!(most(5, 7, 100), 100);
        assert_eq!(believable(copied(100), 100).unwrap().bytes, 100);
        assert!(matches!(believable(copied(101), 100), Err(Error::Protocol(_))));
        for (src, dst) in [(0, 0), (5, 7), (7, 5), (u64::MAX, 0), (0, u64::MAX)] {
            let most = most(src, dst, 0);
            assert!(src.checked_add(most).is_some() && dst.checked_add(most).is_some());
        }
        assert!(believable(copied(u64::MAX), most(1, 0, 0)).is_err());
    }
}
