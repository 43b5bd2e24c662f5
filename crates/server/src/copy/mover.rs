//! Moves the bytes of one copy: a loop over [`Backend::copy_range`] with a fall-back of reading and writing.
//!
//! The loop knows nothing of stateids, replies or clients. It is told to stop through [`Progress`] and looks there
//! between two chunks, so that a cancel takes effect within one chunk. The count it reports is always the contiguous
//! prefix of the range that is right in the destination, data and holes.

use super::writeback::Writeback;
use bytes::Bytes;
use dhow_vfs::{Backend, CopySource, Cx, Error, ErrorKind, Handle, IoRef, OpenFile, SeekTo, Stability, WriteVerifier};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// One end of a copy: a file, and in whose name it is read or written.
#[derive(Clone)]
pub struct Side {
    /// The backend the file belongs to.
    pub backend: Arc<dyn Backend>,
    /// The user, as the export maps it.
    pub cx: Cx,
    /// The file.
    pub handle: Handle,
    /// The open that the request's stateid stands for; none for a special stateid.
    pub open: Option<OpenFile>,
}

impl Side {
    pub(super) fn io(&self) -> IoRef<'_> {
        IoRef { handle: &self.handle, open: self.open.as_ref() }
    }
}

/// What to copy: `len` is already resolved against the source's size.
#[derive(Clone)]
pub struct Range {
    /// First byte in the source.
    pub src_offset: u64,
    /// First byte in the destination.
    pub dst_offset: u64,
    /// Bytes.
    pub len: u64,
    /// The destination is to be written out while the copy goes on.
    pub write_out: bool,
}

/// Seen by the mover, by OFFLOAD_STATUS and by whoever stops the copy.
#[derive(Debug, Default)]
pub struct Progress {
    copied: AtomicU64,
    stop: AtomicU8,
}

const GO: u8 = 0;
const PAUSE: u8 = 1;
const CANCEL: u8 = 2;

impl Progress {
    /// Bytes of the contiguous prefix that are in the destination.
    pub fn copied(&self) -> u64 {
        self.copied.load(Ordering::Acquire)
    }

    /// Sets the bytes of the prefix: for movers of other kinds.
    pub(super) fn set_copied(&self, n: u64) {
        self.copied.store(n, Ordering::Release);
    }

    /// Asks the mover to end after the present chunk with what it has. A cancel is not taken back by this.
    pub fn end_slice(&self) {
        let _ = self.stop.compare_exchange(GO, PAUSE, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Asks the mover to end after the present chunk; nothing will be reported to the client.
    pub fn cancel(&self) {
        self.stop.store(CANCEL, Ordering::Release);
    }

    /// Whether the copy was cancelled.
    pub fn cancelled(&self) -> bool {
        self.stop.load(Ordering::Acquire) == CANCEL
    }

    /// Whether the mover was asked to end, by either call.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire) != GO
    }
}

/// How a run of the mover ended.
#[derive(Debug)]
pub struct Moved {
    /// Bytes of the contiguous prefix.
    pub copied: u64,
    /// The whole range was copied, or the source ended before it did.
    pub complete: bool,
    /// What ended it early, if that was an error.
    pub error: Option<Error>,
}

/// Bytes of real work between two looks at [`Progress`]: long enough that the look costs nothing, short enough that a
/// cancel is prompt and other work gets its turn.
pub const CHUNK: u64 = 8 << 20;

/// Size of the reads and writes of the fall-back, bytes.
const RW_CHUNK: u32 = 1 << 20;

/// Copies `range` from `src` to `dst` until done, stopped, or failed.
pub async fn run(src: &Side, dst: &Side, range: &Range, progress: &Progress) -> Moved {
    let mut fallback = false;
    let mut writeback = Writeback::new(dst, range);
    loop {
        let done = progress.copied();
        writeback.reached(done);
        if done >= range.len {
            return Moved { copied: done, complete: true, error: None };
        }
        // A slice that ends before its first chunk would tell the client that the source has ended.
        if progress.cancelled() || done > 0 && progress.stopped() {
            return Moved { copied: done, complete: false, error: None };
        }
        let step = async {
            if fallback {
                return read_write(src, dst, range, done).await;
            }
            let offset = range.src_offset + done;
            let source = CopySource { backend: &src.backend, cx: &src.cx, io: src.io(), offset };
            dst.backend.copy_range(&dst.cx, source, dst.io(), range.dst_offset + done, range.len - done, CHUNK).await
        };
        let step = writeback.beside(step).await;
        match step {
            // The source was cut short while we copied: that is its end now.
            Ok(0) => return Moved { copied: done, complete: true, error: None },
            // A backend that says more than it was asked for is wrong; the client must not hear of it.
            Ok(n) => progress.copied.store(done + n.min(range.len - done), Ordering::Release),
            Err(e) if !fallback && matches!(e.kind(), ErrorKind::NotSupported | ErrorKind::CrossDevice) => {
                fallback = true;
            }
            // A caller who waits no longer passes the delay on to the client.
            Err(e) if e.kind() == ErrorKind::Delay && !progress.stopped() => {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            Err(e) => return Moved { copied: done, complete: false, error: Some(e) },
        }
    }
}

/// One step of the fall-back at `done`: a hole is made, or up to [`RW_CHUNK`] bytes are read and written. Returns the
/// bytes now right; 0 at the source's end.
async fn read_write(src: &Side, dst: &Side, range: &Range, done: u64) -> Result<u64, Error> {
    let from = range.src_offset + done;
    let to = range.dst_offset + done;
    let left = range.len - done;
    let mut want = left.min(u64::from(RW_CHUNK));
    match src.backend.seek(&src.cx, src.io(), from, SeekTo::Data).await {
        // Nothing but a hole until the end of the file, or until data.
        Ok(found) if found.eof || found.offset > from => {
            let size = src.backend.getattr(&src.cx, &src.handle).await?.size;
            let end = if found.eof { size } else { found.offset };
            let hole = end.saturating_sub(from).min(left);
            if hole == 0 {
                return Ok(0);
            }
            match make_hole(dst, to, hole).await {
                Ok(()) => return Ok(hole),
                Err(e) if e.kind() == ErrorKind::NotSupported => {}
                Err(e) => return Err(e),
            }
        }
        Ok(_) => match src.backend.seek(&src.cx, src.io(), from, SeekTo::Hole).await {
            Ok(hole) if hole.offset > from => want = want.min(hole.offset - from),
            _ => {}
        },
        // Past the end.
        Err(e) if e.kind() == ErrorKind::Range => return Ok(0),
        Err(e) if e.kind() == ErrorKind::NotSupported => {}
        Err(e) => return Err(e),
    }
    let want = u32::try_from(want).unwrap_or(RW_CHUNK);
    let read = src.backend.read(&src.cx, src.io(), from, want).await?;
    write_all(dst, to, read.data).await
}

/// Makes `len` bytes at `offset` of the destination read as zeros without writing them, growing the file to hold them.
async fn make_hole(dst: &Side, offset: u64, len: u64) -> Result<(), Error> {
    let size = dst.backend.getattr(&dst.cx, &dst.handle).await?.size;
    if offset < size {
        dst.backend.deallocate(&dst.cx, dst.io(), offset, len.min(size - offset)).await?;
    }
    let end = offset.checked_add(len).ok_or(ErrorKind::FileTooBig)?;
    if end > size {
        let set = dhow_vfs::SetAttr { size: Some(end), ..Default::default() };
        dst.backend.setattr(&dst.cx, &dst.handle, dst.open.as_ref(), &set).await?;
    }
    Ok(())
}

/// Writes all of `data`, unstably.
pub(super) async fn write_all(dst: &Side, offset: u64, mut data: Bytes) -> Result<u64, Error> {
    let mut written = 0;
    while !data.is_empty() {
        let w = dst.backend.write(&dst.cx, dst.io(), offset + written, data.clone(), Stability::Unstable).await?;
        if w.count == 0 {
            return Err(ErrorKind::Io.into());
        }
        written += u64::from(w.count);
        data = data.slice((w.count as usize).min(data.len())..);
    }
    Ok(written)
}

/// Makes what was copied durable (data *and* metadata: what FILE_SYNC promises, RFC 8881 18.32).
///
/// # Errors
/// Those of the backend's commit; the verifier has then changed.
pub async fn make_durable(dst: &Side) -> Result<WriteVerifier, Error> {
    dst.backend.commit(&dst.cx, dst.io(), 0, 0).await.map(|c| c.verifier)
}
