//! A whole file in one COMPOUND: PUTFH of the directory, SAVEFH, OPEN of a passing name, WRITE, VERIFY, CLOSE, RESTOREFH,
//! RENAME.
//!
//! # Failures
//!
//! | What fails | What is left |
//! |---|---|
//! | the walk | nothing was made |
//! | OPEN | nothing; or, if a later part was told to come again (DELAY), the file of the time before: it is closed, a passing name is removed, and where that stood in its own way (a mode without write access) all is asked for once more |
//! | WRITE, SETATTR, VERIFY (a short WRITE), CLOSE | the open is closed; a passing name is removed |
//! | RENAME | the passing name is removed |
//! | the connection | nothing: the same request is asked for again in its slot |
//! | the session, with the request in it; the caller's time | nobody knows how far it came: the passing name is removed if it is there, after the server can be reached again |
//! | this process, before it knows | the passing name may stay: whole or in part, closed by the server at the latest with the lease. Nobody can tell it from that of a put which is under way, so nothing removes it unasked; whoever chooses passing names should make them known by their form |

use std::time::Duration;

use bytes::Bytes;
use dhow_proto::v4::ops::{
    CloseArgs, OpenArgs, OpenClaim, RemoveArgs, RenameArgs, SetattrArgs, VerifyArgs, WriteArgs, WriteOk, share,
};
use dhow_proto::v4::{ArgOp, Attrs, FileHandle, OpNum, ResOp, Stateid, Status, attr};

use dhow_session::classify::{Class, classify};

use super::{Create, OpenOptions, PutOptions, found_open};
use crate::fs::{Tail, putfh};
use crate::opens::state_owner;
use crate::{Error, Fs, Place, Result};

/// How long the answer waits for a clean-up after an outcome that nobody knows.
const CLEAN_UP: Duration = Duration::from_secs(5);

impl Fs {
    /// Makes an empty file, or finds one: OPEN and CLOSE in one round trip. With `new` the name must be free; a retry
    /// after a lost reply finds its own file and succeeds (EXCLUSIVE4_1, RFC 8881 section 18.16.3).
    ///
    /// # Errors
    ///
    /// EXIST with `new`; [`Error::OutcomeUnknown`] where that may be the file of this call; others of the server.
    pub async fn make_file(&self, place: impl Into<Place>, mode: u32, new: bool) -> Result<FileHandle> {
        let place = place.into();
        let (dir, name) = place.split()?;
        let options = OpenOptions::write().create(if new { Create::New } else { Create::IfMissing }, mode);
        let open = OpenArgs {
            seqid: 0,
            share_access: share::ACCESS_WRITE | share::WANT_NO_DELEG,
            share_deny: share::DENY_NONE,
            owner: state_owner(self.client().inner().opens.new_owner()),
            how: self.how(&options),
            claim: OpenClaim::Null(name),
        };
        let close = CloseArgs { seqid: 0, open_stateid: Stateid::CURRENT };
        let tail = self.run_at(&dir, vec![ArgOp::Open(open), ArgOp::GetFh, ArgOp::Close(close)], true).await;
        let tail = tail.map_err(|e| e.at(place.shown()))?;
        let Some(opened) = found_open(&tail) else { return Err(tail.error().at(place.shown())) };
        let fh = tail.fh()?;
        self.return_delegation(&fh, &opened.delegation);
        if !tail.status.is_ok() {
            let close = ArgOp::Close(CloseArgs { seqid: 0, open_stateid: opened.stateid });
            let closed = Box::pin(self.call(vec![putfh(&fh), close], false)).await;
            // Nothing is wrong with the file when only CLOSE was told to come later.
            let late = matches!(tail.results.last(), Some(ResOp::Close(_)))
                && matches!(classify(tail.status), Class::Delay | Class::Grace);
            if !late || !closed.is_ok_and(|res| res.status.is_ok()) {
                return Err(tail.error().at(place.shown()));
            }
        }
        if new && !opened.attrset.contains(attr::MODE) {
            // The server could not take the mode together with the verifier.
            let attrs = Attrs { mode: Some(mode & 0o7777), ..Attrs::default() };
            Box::pin(self.setattr(&fh, &attrs)).await?;
        }
        Ok(fh)
    }
}

/// How often a passing name that stands in its own way is removed.
const TRIES: u32 = 3;

/// What came of asking once.
enum Attempt {
    Done(FileHandle, WriteOk),
    OpenRefused(Error),
    /// What was made was removed; asked for once more it may be done.
    Again(Error),
}

/// One call of [`Fs::put`].
pub(super) struct Put {
    fs: Fs,
    dir: Place,
    place: Place,
    ops: Vec<ArgOp>,
    via: Option<Bytes>,
    len: usize,
    /// Its mode lets nobody open it for writing.
    unwritable: bool,
}

impl Put {
    pub(super) async fn new(fs: &Fs, place: Place, data: Bytes, options: &PutOptions) -> Result<Self> {
        let (dir, name) = place.split()?;
        let written = options.via.clone().unwrap_or_else(|| name.clone());
        let (_, most) = fs.client().io_limits().await?;
        let path_bytes = place.shown().len() + written.len() + 512;
        if data.len() + path_bytes > most as usize {
            return Err(Error::Argument(format!("{} bytes do not fit one call", data.len()).into()));
        }
        if options.new && options.via.is_some() {
            return Err(Error::Argument("RENAME replaces: it cannot make a name only if that is free".into()));
        }
        let create = if options.new { Create::New } else { Create::IfMissing };
        let open = OpenOptions::write().create(create, options.mode).truncate(true);
        let owner = fs.client().inner().opens.new_owner();
        let len = data.len();
        let mut ops: Vec<ArgOp> = options.via.iter().map(|_| ArgOp::SaveFh).collect();
        ops.extend([
            ArgOp::Open(OpenArgs {
                seqid: 0,
                share_access: share::ACCESS_WRITE | share::WANT_NO_DELEG,
                share_deny: share::DENY_NONE,
                owner: state_owner(owner),
                how: fs.how(&open),
                claim: OpenClaim::Null(written.clone()),
            }),
            ArgOp::GetFh,
            ArgOp::Write(WriteArgs { stateid: Stateid::CURRENT, offset: 0, stable: options.stable, data }),
        ]);
        if let Some(attrs) = &options.attrs {
            ops.push(ArgOp::Setattr(SetattrArgs { stateid: Stateid::CURRENT, attrs: attrs.into() }));
        }
        if options.via.is_some() {
            let whole = Attrs { size: Some(len as u64), ..Attrs::default() };
            ops.push(ArgOp::Verify(VerifyArgs { attrs: (&whole).into() }));
        }
        ops.push(ArgOp::Close(CloseArgs { seqid: 0, open_stateid: Stateid::CURRENT }));
        if options.via.is_some() {
            ops.extend([ArgOp::RestoreFh, ArgOp::Rename(RenameArgs { old_name: written, new_name: name })]);
        }
        let later = options.attrs.as_ref().and_then(|attrs| attrs.mode);
        let unwritable = later.unwrap_or(options.mode) & 0o200 == 0;
        Ok(Self { fs: fs.clone(), dir, place, ops, via: options.via.clone(), len, unwritable })
    }

    pub(super) async fn run(self) -> Result<(FileHandle, WriteOk)> {
        let mut tries = 0;
        loop {
            tries += 1;
            let refused = match self.attempt().await? {
                Attempt::Done(fh, wrote) => return Ok((fh, wrote)),
                Attempt::OpenRefused(e) => e,
                Attempt::Again(_) if tries < TRIES => continue,
                Attempt::Again(e) => return Err(e),
            };
            let own = match self.remove() {
                Some(remove) => Box::pin(self.fs.run_at(&self.dir, vec![remove], true)).await,
                None => return Err(refused),
            };
            let in_the_way = refused.is(Status::ACCESS) || refused.is(Status::PERM);
            if tries == TRIES || !in_the_way || !own.is_ok_and(|tail| tail.status.is_ok()) {
                return Err(refused);
            }
        }
    }

    async fn attempt(&self) -> Result<Attempt> {
        let tail = match self.fs.run_at(&self.dir, self.ops.clone(), true).await {
            Ok(tail) => tail,
            Err(e) => {
                // A status is an answer: of the walk, before anything was made.
                if self.via.is_some() && e.wire_status().is_none() {
                    self.remove_some_time().await;
                }
                return Err(e.at(self.place.shown()));
            }
        };
        let Some(opened) = found_open(&tail) else {
            return Ok(Attempt::OpenRefused(tail.error().at(self.place.shown())));
        };
        let fh = tail.fh()?;
        self.fs.return_delegation(&fh, &opened.delegation);
        let closed = tail.results.iter().any(|r| matches!(r, ResOp::Close(Ok(_))));
        if !closed {
            // A WRITE (or what came after it) that failed leaves the file open.
            let close = ArgOp::Close(CloseArgs { seqid: 0, open_stateid: opened.stateid });
            let _ = self.fs.call(vec![putfh(&fh), close], false).await;
        }
        let wrote = found_write(&tail);
        let short = wrote.as_ref().is_some_and(|w| w.count as usize != self.len);
        if let (true, false, Some(wrote)) = (tail.status.is_ok(), short, wrote) {
            return Ok(Attempt::Done(fh, wrote));
        }
        // WRITE does not say why it wrote less; what it says next time, when nothing fits any more, is this.
        let e = if short { Error::status(OpNum::WRITE, Status::NOSPC) } else { tail.error() };
        let e = e.at(self.place.shown());
        let Some(remove) = self.remove() else { return Err(e) };
        let removed = self.fs.run_at(&self.dir, vec![remove], true).await.is_ok_and(|tail| tail.status.is_ok());
        // The repetition found the file of the time before, with a mode that does not let it be opened again.
        let own_way = self.unwritable && removed && matches!(classify(tail.status), Class::Delay | Class::Grace);
        if own_way { Ok(Attempt::Again(e)) } else { Err(e) }
    }

    fn remove(&self) -> Option<ArgOp> {
        self.via.clone().map(|target| ArgOp::Remove(RemoveArgs { target }))
    }

    /// Removes the passing name, if it is there, however long the server stays away. Waits for that a little.
    async fn remove_some_time(&self) {
        let Some(remove) = self.remove() else { return };
        let (fs, dir) = (self.fs.clone(), self.dir.clone());
        let removed = tokio::spawn(async move {
            // The outcome of the removal itself may be unknown: it is asked again.
            for _ in 0..3 {
                match fs.run_at(&dir, vec![remove.clone()], true).await {
                    Err(Error::OutcomeUnknown { .. }) => {}
                    _ => return,
                }
            }
        });
        let _ = tokio::time::timeout(CLEAN_UP, removed).await;
    }
}

fn found_write(tail: &Tail) -> Option<WriteOk> {
    tail.results.iter().find_map(|r| match r {
        ResOp::Write(Ok(ok)) => Some(ok.clone()),
        _ => None,
    })
}
