//! Listing directories.

use std::collections::{HashSet, VecDeque};

use dhow_proto::v4::ops::{DirEntry, ReaddirArgs, ReaddirOk};
use dhow_proto::v4::{ArgOp, Bitmap, FileHandle, FileType, OpNum, ResOp, Status, Verifier, attr};

use crate::fs::{getattr, putfh};
use crate::{Client, Error, Fs, Place, Result};

/// Bytes of one page that are asked for, as far as the session's replies allow.
const PAGE_BYTES: u32 = 256 << 10;
/// Bytes of a reply beside the entries.
const AROUND: u32 = 512;
/// Entries of one directory after which something must be wrong with the server: far more than any filesystem holds
/// well, and the bound of what remembering cookies may cost.
const MOST_PAGES: usize = 1 << 20;

/// The entries of a directory, page by page; made by [`Fs::readdir`].
///
/// Neither `.` nor `..` is among them. A directory that changes meanwhile may show an entry or not, but never one
/// twice, if the server keeps its promises.
#[derive(Debug)]
pub struct DirStream {
    fs: Fs,
    place: Place,
    fh: FileHandle,
    mask: Bitmap,
    page: VecDeque<DirEntry>,
    cookie: u64,
    verifier: Verifier,
    eof: bool,
    /// Where pages ended so far: coming back to one means going in circles (case B50).
    ends: HashSet<u64>,
}

impl Fs {
    /// Lists a directory with the attributes `mask` of each entry. The first page comes with the walk in one round
    /// trip. A symbolic link at the end of `place` is followed.
    ///
    /// # Errors
    ///
    /// NOTDIR, ACCESS, others of the server.
    pub async fn readdir(&self, place: impl Into<Place>, mask: Bitmap) -> Result<DirStream> {
        let place = place.into();
        // With it an entry whose attributes cannot be had says why, and does not fail the page (RFC 8881 section
        // 5.8.1.12).
        let mask = mask.with(attr::RDATTR_ERROR);
        let first = readdir_op(0, Verifier::default(), mask, self.page_bytes().await?);
        let tail = vec![ArgOp::GetFh, getattr(Bitmap::of(&[attr::TYPE])), first.clone()];
        let mut tail = self.run_at(&place, tail, false).await?;
        let linked = tail.attrs().is_ok_and(|a| a.file_type == Some(FileType::LNK));
        if linked {
            let node = Box::pin(self.find(&place, true, Bitmap::EMPTY)).await?;
            tail = Box::pin(self.run_at(&Place::Handle(node.fh), vec![ArgOp::GetFh, first], false)).await?;
        }
        let mut tail = tail.ok(&place)?;
        let fh = tail.fh()?;
        let Some(ResOp::Readdir(Ok(page))) = tail.results.pop() else {
            return Err(Error::protocol("no READDIR in the reply"));
        };
        let mut stream = DirStream {
            fs: self.clone(),
            place,
            fh,
            mask,
            page: VecDeque::new(),
            cookie: 0,
            verifier: Verifier::default(),
            eof: false,
            ends: HashSet::from([0]),
        };
        stream.accept(page)?;
        Ok(stream)
    }

    async fn page_bytes(&self) -> Result<u32> {
        let session = self.client().inner().session().await?;
        Ok(session.fore.max_response_size.saturating_sub(AROUND).clamp(512, PAGE_BYTES))
    }
}

fn readdir_op(cookie: u64, verifier: Verifier, mask: Bitmap, maxcount: u32) -> ArgOp {
    // RFC 8881 section 18.23.3: dircount is a hint about names alone; not less than maxcount means "no matter".
    ArgOp::Readdir(ReaddirArgs { cookie, verifier, dircount: maxcount, maxcount, attr_request: mask })
}

impl DirStream {
    /// The directory's handle.
    pub fn fh(&self) -> &FileHandle {
        &self.fh
    }

    /// The next entry; `None` at the end.
    ///
    /// # Errors
    ///
    /// The server's; [`Error::Protocol`] when it goes in circles or sends names that cannot be.
    pub async fn next(&mut self) -> Result<Option<DirEntry>> {
        loop {
            if let Some(entry) = self.page.pop_front() {
                return Ok(Some(entry));
            }
            if self.eof {
                return Ok(None);
            }
            self.turn().await?;
        }
    }

    /// The rest of the entries.
    ///
    /// # Errors
    ///
    /// As [`DirStream::next`].
    pub async fn collect(mut self) -> Result<Vec<DirEntry>> {
        let mut all = Vec::new();
        loop {
            all.extend(self.page.drain(..));
            if self.eof {
                return Ok(all);
            }
            self.turn().await?;
        }
    }

    async fn turn(&mut self) -> Result<()> {
        let bytes = self.fs.page_bytes().await?;
        let op = readdir_op(self.cookie, self.verifier, self.mask, bytes);
        let mut res = self.fs.call(vec![putfh(&self.fh), op], false).await?;
        match Client::take(&mut res, OpNum::READDIR) {
            Ok(ResOp::Readdir(Ok(page))) => self.accept(page),
            Ok(_) => Err(Error::protocol("no READDIR in the reply")),
            Err(e) => Err(e.at(self.place.shown())),
        }
    }

    fn accept(&mut self, page: ReaddirOk) -> Result<()> {
        if let Some(entry) = page.entries.iter().find(|e| !possible(&e.name)) {
            return Err(Error::protocol(format!("a directory entry named {:?}", String::from_utf8_lossy(&entry.name))));
        }
        match page.entries.last() {
            Some(last) => {
                if !page.eof && (!self.ends.insert(last.cookie) || self.ends.len() > MOST_PAGES) {
                    return Err(Error::protocol("READDIR goes in circles: its cookies do not advance"));
                }
                self.cookie = last.cookie;
            }
            // RFC 8881 section 18.23.4: a page without entries is TOOSMALL, not success, unless it is the last.
            None if !page.eof => return Err(Error::protocol("READDIR returned no entries and no end")),
            None => {}
        }
        self.verifier = page.verifier;
        self.eof = page.eof;
        self.page.extend(page.entries);
        Ok(())
    }
}

/// Whether a name may be used to make a local file of: a hostile server must not lead a copy out of its directory.
fn possible(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0)
}

/// Why the attributes of an entry could not be had, if they could not.
pub fn entry_error(entry: &DirEntry) -> Option<Status> {
    entry.attrs.rdattr_error.filter(|s| !s.is_ok())
}
