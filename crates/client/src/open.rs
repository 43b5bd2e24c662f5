//! Opening and creating files.

use bytes::Bytes;
use dhow_proto::v4::ops::{
    CloseArgs, CreateHow, Delegation, OpenArgs, OpenClaim, OpenHow, OpenOk, ReadArgs, SetattrArgs, WriteOk, share,
};
use dhow_proto::v4::{ArgOp, Attrs, Fattr, FileHandle, ResOp, StableHow, Stateid, Status, Verifier, attr};

use crate::deleg::{self, WantDelegation};
use crate::fs::{OPENED, STAT, Tail, getattr, putfh};
use crate::opens::{self, state_owner};
use dhow_session::classify::{Class, classify};

use crate::{Error, File, Fs, Node, Place, Result};

mod put;

use put::Put;

/// Links followed by OPEN: each costs a round trip.
const MOST_LINKS: u32 = 40;

/// How to open a file. Start from [`OpenOptions::read`], [`OpenOptions::write`] or [`OpenOptions::read_write`].
#[derive(Debug, Clone)]
pub struct OpenOptions {
    access: u32,
    deny: u32,
    create: Create,
    truncate: bool,
    mode: u32,
    follow: bool,
    delegation: Option<WantDelegation>,
}

/// What to do about a file that is not there, or is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Create {
    /// It must be there.
    Never,
    /// Create it if it is not there.
    IfMissing,
    /// It must not be there. A retry after a lost reply finds its own file and succeeds (EXCLUSIVE4_1). Where a server
    /// does not recognise it (it restarted, and had not noted whose file it is), EXIST would say nothing:
    /// [`Error::OutcomeUnknown`].
    New,
}

impl OpenOptions {
    /// For reading a file that exists.
    pub fn read() -> Self {
        Self {
            access: share::ACCESS_READ,
            deny: share::DENY_NONE,
            create: Create::Never,
            truncate: false,
            mode: 0o666,
            follow: true,
            delegation: None,
        }
    }

    /// For writing a file that exists.
    pub fn write() -> Self {
        Self { access: share::ACCESS_WRITE, ..Self::read() }
    }

    /// For reading and writing a file that exists.
    pub fn read_write() -> Self {
        Self { access: share::ACCESS_BOTH, ..Self::read() }
    }

    /// Whether to create the file, and with which mode. The mode is taken as it is: there is no umask here.
    #[must_use]
    pub fn create(mut self, create: Create, mode: u32) -> Self {
        self.create = create;
        self.mode = mode;
        self
    }

    /// Empty the file if it exists.
    #[must_use]
    pub fn truncate(mut self, truncate: bool) -> Self {
        self.truncate = truncate;
        self
    }

    /// What others may not do while the file is open: bits of [`share`].
    #[must_use]
    pub fn deny(mut self, deny: u32) -> Self {
        self.deny = deny;
        self
    }

    /// Asks for a delegation ([`File::delegation`]); by default none is wanted.
    #[must_use]
    pub fn delegation(mut self, want: WantDelegation) -> Self {
        self.delegation = Some(want);
        self
    }

    /// Whether to open what a symbolic link points to (the default) or refuse it.
    #[must_use]
    pub fn follow(mut self, follow: bool) -> Self {
        self.follow = follow;
        self
    }
}

/// How [`Fs::put`] writes.
#[derive(Debug, Clone)]
pub struct PutOptions {
    /// Mode of a file that is created.
    pub mode: u32,
    /// The name must be free.
    pub new: bool,
    /// How safe the data must be when the call returns.
    pub stable: StableHow,
    /// Write under this name in the same directory first, then rename: nobody ever sees half a file under its final
    /// name. A process that ends before it knows what came of its call may leave this name behind.
    pub via: Option<Bytes>,
    /// Attributes to give the file when it is written, before it gets its final name.
    pub attrs: Option<Attrs>,
}

impl Default for PutOptions {
    /// Mode 0644, replacing what is there, on stable storage, directly.
    fn default() -> Self {
        Self { mode: 0o644, new: false, stable: StableHow::FILE_SYNC, via: None, attrs: None }
    }
}

impl Fs {
    /// Opens a file: one round trip when nothing is in the way.
    ///
    /// An open that is granted after this future was dropped, or had waited for too long, is closed again.
    ///
    /// # Errors
    ///
    /// NOENT, ACCESS, EXIST, ISDIR, SHARE_DENIED, others of the server.
    pub async fn open(&self, place: impl Into<Place>, options: &OpenOptions) -> Result<File> {
        let (place, options) = (place.into(), options.clone());
        self.to_its_end(|fs| async move { fs.open_here(place, &options).await }).await
    }

    async fn open_here(&self, mut place: Place, options: &OpenOptions) -> Result<File> {
        let shown = place.shown();
        let mut links = 0;
        loop {
            let (at, claim) = match place.split() {
                Ok((dir, name)) => (dir, OpenClaim::Null(name)),
                Err(_) if matches!(place, Place::Handle(_)) => (place.clone(), OpenClaim::Fh),
                // "/" and the like are no files; the server says so better than we could.
                Err(_) => (Place::Handle(Box::pin(self.stat(&place)).await?.fh), OpenClaim::Fh),
            };
            let by_name = matches!(claim, OpenClaim::Null(_));
            match self.open_once(&at, claim, options).await {
                Err(e) if by_name && options.follow && e.is(Status::SYMLINK) => {
                    links += 1;
                    if links > MOST_LINKS || options.create == Create::New {
                        return Err(if links > MOST_LINKS { Error::TooManyLinks(shown) } else { e.at(shown) });
                    }
                    place = Box::pin(self.behind_link(&place)).await?;
                }
                done => return done.map_err(|e| e.at(shown)),
            }
        }
    }

    /// Where a symbolic link points, as a place whose last name may not exist yet.
    async fn behind_link(&self, place: &Place) -> Result<Place> {
        let (dir, _) = place.split()?;
        let target = self.readlink(place).await?;
        let at = target.iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
        let (head, last) = (target.slice(..at), target.slice(at..));
        let base = if target.starts_with(b"/") { Place::Path(Bytes::new()) } else { dir };
        let base = self.find(&base, true, STAT).await?.fh;
        let parent = if head.is_empty() {
            base
        } else {
            let from = if target.starts_with(b"/") { Place::Path(head) } else { Place::Entry(base, head) };
            self.find(&from, true, STAT).await?.fh
        };
        Ok(Place::Entry(parent, last))
    }

    async fn open_once(&self, at: &Place, claim: OpenClaim, options: &OpenOptions) -> Result<File> {
        let opens = &self.client().inner().opens;
        let owner = opens.new_owner();
        let exclusive = options.create == Create::New;
        let open = ArgOp::Open(OpenArgs {
            seqid: 0,
            share_access: options.access | options.delegation.map_or(share::WANT_NO_DELEG, WantDelegation::bits),
            share_deny: options.deny,
            owner: state_owner(owner.clone()),
            how: self.how(options),
            claim,
        });
        // A file that is made under one name is often given another: the directory's handle saves the way back.
        let mut tail = if exclusive { vec![ArgOp::GetFh] } else { Vec::new() };
        tail.extend([open, ArgOp::GetFh]);
        // With UNCHECKED creation the size is part of OPEN; an open file is emptied under its own stateid.
        if options.truncate && options.create == Create::Never {
            tail.push(set_size_zero());
        }
        tail.push(getattr(OPENED));
        let (losses, sent_at) = (self.client().inner().losses(), self.client().inner().now());
        let mut tail = self.run_at(at, tail, true).await?;
        let mut dir = None;
        if exclusive && let Some(ResOp::GetFh(Ok(_))) = tail.results.first() {
            dir = Some(tail.fh()?);
            tail.results.remove(0);
        }
        let Some(ResOp::Open(Ok(ok))) = tail.results.first().cloned() else {
            return Err(if tail.status.is_ok() { Error::protocol("no OPEN in the reply") } else { tail.error() });
        };
        let mut file = self.opened(&tail, owner, options, &ok)?;
        let late = matches!(tail.results.last(), Some(ResOp::Getattr(Err(_))))
            && matches!(classify(tail.status), Class::Delay | Class::Grace);
        let attrs = match tail.status {
            Status::OK => tail.attrs(),
            // It cannot be opened once more: that may find its own file in the way.
            _ if late => Box::pin(self.getattr(file.fh(), OPENED)).await,
            _ => Err(tail.error()),
        };
        let attrs = match attrs {
            Ok(attrs) => attrs,
            Err(e) => {
                // Opened, but what came after failed: the open is owed a CLOSE.
                self.return_delegation(file.fh(), &ok.delegation);
                let _ = Box::pin(file.close()).await;
                return Err(e);
            }
        };
        match deleg::granted(&ok.delegation).filter(|_| options.delegation.is_some()) {
            None => self.return_delegation(file.fh(), &ok.delegation),
            Some((stateid, write, _)) => {
                let inner = self.client().inner();
                let delegation = inner.delegations.add(inner, file.fh(), (stateid, write), &attrs);
                file.open.set_delegation(delegation);
            }
        }
        file.set_attrs(attrs);
        if self.client().inner().losses() != losses || self.client().inner().answered_late(sent_at) {
            // The server lost state while this was under way, or could have: it may have been granted before, and is
            // not among what was reclaimed.
            Box::pin(opens::examine(self.client().inner(), &file.open)).await?;
            file.stateid()?;
        }
        if let Some(dir) = dir {
            file.set_dir(dir);
        }
        if exclusive && !ok.attrset.contains(attr::MODE) {
            // The server could not take the mode together with the verifier (RFC 8881 section 18.16.3).
            let attrs = Attrs { mode: Some(options.mode & 0o7777), ..Attrs::default() };
            Box::pin(file.setattr(&attrs)).await?;
        }
        Ok(file)
    }

    fn opened(&self, tail: &Tail, owner: Bytes, options: &OpenOptions, ok: &OpenOk) -> Result<File> {
        let fh = tail.fh()?;
        let shares = (options.access, options.deny);
        let open = self.client().inner().opens.add(fh, owner, shares, self.credential(), ok.stateid);
        Ok(File::new(self.clone().plain(), open))
    }

    fn how(&self, options: &OpenOptions) -> OpenHow {
        let mut attrs = Attrs { mode: Some(options.mode & 0o7777), ..Attrs::default() };
        match options.create {
            Create::Never => OpenHow::NoCreate,
            Create::IfMissing => {
                attrs.size = options.truncate.then_some(0);
                OpenHow::Create(CreateHow::Unchecked((&attrs).into()))
            }
            Create::New => {
                let mut verifier = [0; 8];
                let inner = self.client().inner();
                // Unique is enough, and it must not be drawn twice for one file.
                verifier.copy_from_slice(&(inner.nonce ^ inner.next_seed()).to_be_bytes());
                OpenHow::Create(CreateHow::Exclusive41 { verifier: Verifier(verifier), attrs: Fattr::from(&attrs) })
            }
        }
    }

    /// None was asked for and nothing is kept under one; a server that gives one all the same gets it back.
    pub(crate) fn return_delegation(&self, fh: &FileHandle, delegation: &Delegation) {
        let Some((stateid, ..)) = deleg::granted(delegation) else { return };
        deleg::give_back_later(self.client().inner(), deleg::giving_back(fh, stateid), None);
    }

    /// Writes a whole file in one round trip: OPEN, WRITE, CLOSE and, with [`PutOptions::via`], RENAME. For data that
    /// fits one WRITE; longer data takes [`File`].
    ///
    /// Returns the handle and what WRITE said. With less than FILE_SYNC a COMMIT is still owed.
    ///
    /// With `via` nothing is ever seen under the final name but the whole file: VERIFY before RENAME stops the COMPOUND
    /// when WRITE wrote less than it was given. The call is followed to its end, clean-up included, also when this
    /// future is dropped.
    ///
    /// # Errors
    ///
    /// The server's. The file that was begun is closed; it is removed when it was only the `via` of another name, and
    /// otherwise stays as it is. When the outcome is unknown ([`Error::OutcomeUnknown`], [`Error::TimedOut`]) the `via`
    /// is removed as soon as the server can be reached, while this client lives. With `new` that is also the answer where
    /// the server finds the name taken and it may be by this call, whose first execution got no reply.
    pub async fn put(
        &self,
        place: impl Into<Place>,
        data: Bytes,
        options: &PutOptions,
    ) -> Result<(FileHandle, WriteOk)> {
        let put = Put::new(self, place.into(), data, options).await?;
        if options.via.is_none() {
            return put.run().await;
        }
        // A task that does not come back went down with the runtime.
        tokio::spawn(put.run()).await.unwrap_or(Err(Error::Closed))
    }

    /// Reads a whole file of at most `most` bytes in one round trip (OPEN, READ, CLOSE). `None` when it is longer;
    /// then it takes a [`File`].
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn get(&self, place: impl Into<Place>, most: u32) -> Result<Option<(Node, Bytes)>> {
        let place = place.into();
        let (largest, _) = self.client().io_limits().await?;
        let (dir, name) = place.split()?;
        let open = ArgOp::Open(OpenArgs {
            seqid: 0,
            share_access: share::ACCESS_READ | share::WANT_NO_DELEG,
            share_deny: share::DENY_NONE,
            owner: state_owner(self.client().inner().opens.new_owner()),
            how: OpenHow::NoCreate,
            claim: OpenClaim::Null(name),
        });
        let room = largest.saturating_sub(2048).max(512);
        let ops = vec![
            open,
            ArgOp::GetFh,
            ArgOp::Read(ReadArgs { stateid: Stateid::CURRENT, offset: 0, count: most.min(room) }),
            ArgOp::Close(CloseArgs { seqid: 0, open_stateid: Stateid::CURRENT }),
            getattr(STAT),
        ];
        let mut tail = self.run_at(&dir, ops, false).await?;
        let Some(opened) = found_open(&tail) else {
            let e = tail.error();
            if e.is(Status::SYMLINK) {
                let target = Box::pin(self.behind_link(&place)).await?;
                return Box::pin(self.get(target, most)).await;
            }
            return Err(e.at(place.shown()));
        };
        let fh = tail.fh()?;
        self.return_delegation(&fh, &opened.delegation);
        if !tail.results.iter().any(|r| matches!(r, ResOp::Close(Ok(_)))) {
            let close = ArgOp::Close(CloseArgs { seqid: 0, open_stateid: opened.stateid });
            let _ = Box::pin(self.call(vec![putfh(&fh), close], false)).await;
        }
        if !tail.status.is_ok() {
            return Err(tail.error().at(place.shown()));
        }
        let attrs = tail.attrs()?;
        let read = tail.results.into_iter().find_map(|r| match r {
            ResOp::Read(Ok(ok)) => Some(ok),
            _ => None,
        });
        let read = read.ok_or_else(|| Error::protocol("no READ in the reply"))?;
        Ok(read.eof.then_some((Node { fh, attrs }, read.data)))
    }
}

fn set_size_zero() -> ArgOp {
    let attrs = Attrs { size: Some(0), ..Attrs::default() };
    ArgOp::Setattr(SetattrArgs { stateid: Stateid::CURRENT, attrs: (&attrs).into() })
}

fn found_open(tail: &Tail) -> Option<OpenOk> {
    tail.results.iter().find_map(|r| match r {
        ResOp::Open(Ok(ok)) => Some(ok.clone()),
        _ => None,
    })
}
