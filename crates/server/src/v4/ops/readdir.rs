//! READDIR (RFC 8881 18.23). Written entry by entry, within the client's limit; the backend is asked for as many entries
//! as are likely to fit.

use super::read::reserve;
use crate::attrs::{self, Object};
use crate::errmap::{self, IntoStatus};
use crate::v4::{Fh, OpCx};
use crate::walk;
use bytes::Bytes;
use dhow_proto::v4::attr::{FILEID, RDATTR_ERROR};
use dhow_proto::v4::ops::{ReaddirArgs, ReaddirWriter};
use dhow_proto::v4::{Attrs, Bitmap, OpRes, Status, Verifier};
use dhow_vfs::{Attr, DirEntry, DirPage, ErrorKind, FsStat, Name, Node, PageLimit};
use dhow_xdr::{Encode, Reader, Writer};

/// Bytes of an entry of which nothing is known yet: cookie, a middling name, a usual set of attributes.
const TYPICAL_ENTRY: usize = 160;
/// Entries asked of the backend at once, at most.
const MOST_ENTRIES: usize = 1024;
/// The smallest result: verifier, end mark, EOF flag.
const EMPTY: u32 = 16;

/// A result that is encoded already.
pub(crate) struct Encoded(Result<Bytes, Status>);

impl OpRes for Encoded {
    fn status(&self) -> Status {
        self.0.as_ref().err().copied().unwrap_or(Status::OK)
    }

    fn error(status: Status) -> Self {
        Self(Err(status))
    }

    fn encode_res(&self, w: &mut Writer) {
        self.status().encode(w);
        if let Ok(body) = &self.0 {
            w.raw(body.clone());
        }
    }

    fn decode_res(r: &mut Reader) -> dhow_xdr::Result<Self> {
        Ok(Self(Ok(r.rest())))
    }
}

pub(crate) async fn run(cx: &mut OpCx, args: ReaddirArgs) -> Encoded {
    Encoded(list(cx, args).await)
}

async fn list(cx: &mut OpCx, args: ReaddirArgs) -> Result<Bytes, Status> {
    // A listing may be as large as a READ: a peer that does not take it waits here (case B46).
    reserve(cx, args.maxcount.min(cx.server.limits().max_io)).await;
    let cx: &OpCx = cx;
    let dir = cx.current()?;
    // 1 and 2 stand for "." and "..", which are not listed (RFC 8881 18.23.3, case K28).
    if matches!(args.cookie, 1 | 2) || args.cookie > i64::MAX as u64 {
        return Err(Status::BAD_COOKIE);
    }
    if args.maxcount < EMPTY {
        return Err(Status::TOOSMALL);
    }
    attrs::must_be_readable(&args.attr_request)?;
    let maxcount = usize::try_from(args.maxcount).unwrap_or(usize::MAX);
    // What the session leaves: less than the client asked for is a shorter listing.
    let room = maxcount.min(cx.room).min(cx.server.limits().max_io as usize);
    let wanted = args.attr_request.and(&attrs::supported(&dir.export, cx.minor));
    let mut listing = Listing::new(cx, dir, wanted);
    let mut out = Writer::with_capacity(room.min(32 << 10));
    let mut limit = u32::try_from(room).unwrap_or(u32::MAX);
    if room < maxcount {
        limit = limit.max(EMPTY);
    }
    let mut cookie = args.cookie;
    let mut writer: Option<ReaddirWriter> = None;
    let eof = 'pages: loop {
        let page = listing.page(cookie, room.saturating_sub(out.len()), out.len(), &writer).await?;
        let verifier = Verifier(page.verifier);
        if writer.is_none() && args.cookie != 0 && args.verifier != verifier {
            return Err(Status::NOT_SAME);
        }
        let writer = writer.get_or_insert_with(|| ReaddirWriter::new(&mut out, verifier, args.dircount, limit));
        let empty = page.entries.is_empty();
        for entry in page.entries {
            let Some(attrs) = listing.attrs(&entry).await? else { continue };
            if !writer.push(&mut out, entry.cookie, &entry.name, |w| attrs.encode_fattr(&wanted, w)) {
                break 'pages false;
            }
            cookie = entry.cookie;
        }
        if page.eof || empty {
            break true;
        }
    };
    let Some(writer) = writer else { return Err(Status::SERVERFAULT) };
    if writer.entries() == 0 && !eof {
        // Not even one entry fits: the client's limit is to blame, or the session's.
        return Err(if room < maxcount { Status::REP_TOO_BIG } else { Status::TOOSMALL });
    }
    writer.finish(&mut out, eof);
    Ok(out.into_bytes())
}

/// One READDIR under way.
struct Listing<'a> {
    cx: &'a OpCx,
    dir: &'a Fh,
    wanted: Bitmap,
    nodes: bool,
    /// Space and file counts, once for all entries of this filesystem.
    stat: Option<FsStat>,
}

impl<'a> Listing<'a> {
    fn new(cx: &'a OpCx, dir: &'a Fh, wanted: Bitmap) -> Self {
        // A mount point's own number stands in its entry; anything more needs the object.
        let nodes = !wanted.is_subset(&attrs::OF_ENTRY);
        Self { cx, dir, wanted, nodes, stat: None }
    }

    async fn page(
        &self,
        cookie: u64,
        room: usize,
        written: usize,
        writer: &Option<ReaddirWriter>,
    ) -> Result<DirPage, Status> {
        let so_far = writer.as_ref().map_or(0, ReaddirWriter::entries);
        let each = written.checked_div(so_far).unwrap_or(TYPICAL_ENTRY);
        let entries = (room / each.max(1) + 1).min(MOST_ENTRIES);
        let limit = PageLimit { entries, name_bytes: room.max(1), nodes: self.nodes };
        self.dir.backend().readdir(&self.dir.user, &self.dir.handle, cookie, limit).await.or_status()
    }

    /// The attributes of an entry; `None` if it vanished meanwhile. One that cannot be read fails alone if the client
    /// asked for rdattr_error, the whole listing otherwise (RFC 8881 5.8.1.12, case B40).
    async fn attrs(&mut self, entry: &DirEntry) -> Result<Option<Box<Attrs>>, Status> {
        let found = match &entry.node {
            None => {
                let mut attrs = Box::<Attrs>::default();
                attrs.mounted_on_fileid = Some(entry.fileid);
                attrs.rdattr_error = Some(Status::OK);
                return Ok(Some(attrs));
            }
            Some(Ok(node)) => match self.mounted(entry, node).await {
                Some(crossed) => crossed,
                None => Ok((self.dir.sibling(node.handle.clone()), node.attr.clone())),
            },
            Some(Err(ErrorKind::NotFound | ErrorKind::Stale)) => return Ok(None),
            Some(Err(kind)) => Err(errmap::status_of(*kind)),
        };
        let found = match found {
            Ok((fh, attr)) => self.collect(&fh, &attr).await,
            Err(status) => Err(status),
        };
        match found {
            Ok(attrs) => Ok(Some(attrs)),
            Err(status) if self.wanted.contains(RDATTR_ERROR) => {
                let mut attrs = Box::<Attrs>::default();
                attrs.rdattr_error = Some(status);
                attrs.fileid = self.wanted.contains(FILEID).then_some(entry.fileid);
                attrs.mounted_on_fileid = Some(entry.fileid);
                Ok(Some(attrs))
            }
            Err(status) => Err(status),
        }
    }

    /// An export that lies at the entry shows its root's attributes (RFC 8881 18.23.3).
    async fn mounted(&self, entry: &DirEntry, node: &Node) -> Option<Result<(Fh, Attr), Status>> {
        let name = Name::new(entry.name.clone()).ok()?;
        walk::mounted(self.cx, self.dir, &name, node).await
    }

    async fn collect(&mut self, fh: &Fh, attr: &Attr) -> Result<Box<Attrs>, Status> {
        let known = self.stat.filter(|_| fh.same_export(self.dir));
        let more = attrs::look_up(&self.cx.server, fh, attr, &self.wanted, known).await?;
        if fh.same_export(self.dir) {
            self.stat = more.stat;
        }
        Ok(attrs::collect(&self.cx.server, self.cx.minor, Object { fh, attr, more: &more }, &self.wanted))
    }
}
