//! Copies from one server to another (RFC 7862 sections 4.6 to 4.10 and 15.3): the source lends a stateid, the
//! destination reads with it.

use dhow_proto::v4::ops::{CopyArgs, CopyNotifyArgs, CopyNotifyOk};
use dhow_proto::v4::{ArgOp, FileHandle, NetLoc, OpNum, ResOp, Stateid, Status};

use crate::copy::{begun, copy_ops, most};
use crate::fs::putfh;
use crate::{CopyBegun, CopyOptions, Error, File, Result};

/// A file on another server, as COPY names it: what the source answered to [`File::copy_notify`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteSource {
    /// Its handle there.
    pub fh: FileHandle,
    /// The copy-notify stateid.
    pub stateid: Stateid,
    /// Where the destination may read, the best first; all or some of those that the source named.
    pub servers: Vec<NetLoc>,
}

impl RemoteSource {
    /// The file `file`, lent by `lent`.
    pub fn new(file: &File, lent: CopyNotifyOk) -> Self {
        Self { fh: file.fh().clone(), stateid: lent.stateid, servers: lent.source_server }
    }
}

impl File {
    /// Lends this file, open for reading, to the server `destination` (COPY_NOTIFY). Closing the file ends the loan, and
    /// so does [`File::cancel_notify`].
    ///
    /// # Errors
    ///
    /// NOTSUPP, OPENMODE, others of the server; a reply that names no server to read from.
    pub async fn copy_notify(&self, destination: NetLoc) -> Result<CopyNotifyOk> {
        let mut tail = self
            .run(true, |src_stateid| {
                let destination_server = destination.clone();
                vec![ArgOp::CopyNotify(CopyNotifyArgs { src_stateid, destination_server })]
            })
            .await?;
        match tail.results.pop() {
            Some(ResOp::CopyNotify(Ok(ok))) if ok.source_server.is_empty() => {
                Err(Error::protocol("COPY_NOTIFY names no server to read from"))
            }
            Some(ResOp::CopyNotify(Ok(ok))) => Ok(ok),
            _ if tail.status.is_ok() => Err(Error::protocol("no COPY_NOTIFY in the reply")),
            Some(res) => Err(Error::status(res.op(), tail.status)),
            None => Err(tail.error()),
        }
    }

    /// Ends a loan (OFFLOAD_CANCEL sent to the source, RFC 7862 section 4.8).
    ///
    /// # Errors
    ///
    /// BAD_STATEID when it has ended already; others of the server.
    pub async fn cancel_notify(&self, lent: Stateid) -> Result<()> {
        let cancel = |_| vec![ArgOp::OffloadCancel(dhow_proto::v4::ops::OffloadArgs { stateid: lent })];
        let tail = self.run(true, cancel).await?;
        tail.status.ok().map_err(|_| tail.error())
    }

    /// Has the server of this file, open for writing, begin to copy a range of a file on another server into it.
    /// `count` 0: to the end of the source.
    ///
    /// # Errors
    ///
    /// NOTSUPP (also when the server will not even take the source's handle), OFFLOAD_DENIED when the server may not or cannot read there, PARTNER_NO_AUTH; others of the server.
    pub async fn begin_copy_from(
        &self,
        source: &RemoteSource,
        src_offset: u64,
        dst_offset: u64,
        count: u64,
        options: &CopyOptions,
    ) -> Result<CopyBegun> {
        // Held until the reply is dealt with: its completion may come first.
        let offloads = &self.fs().client().inner().offloads;
        let _unanswered = offloads.begin();
        let tail = self
            .run(true, |dst_stateid| {
                let copy = CopyArgs {
                    src_stateid: source.stateid,
                    dst_stateid,
                    src_offset,
                    dst_offset,
                    count,
                    consecutive: true,
                    synchronous: options.synchronous,
                    source_server: source.servers.clone(),
                };
                // The source's handle means nothing here; PUTFH before SAVEFH may not check it (section 15.2.3).
                let mut ops = vec![putfh(&source.fh), ArgOp::SaveFh, putfh(self.fh())];
                ops.extend(copy_ops(copy, options));
                ops
            })
            .await?;
        // Only a server that copies from others lets PUTFH have a handle that is not its own.
        let stopped_at_source = matches!(tail.results.as_slice(), [ResOp::PutFh(Err(_))]);
        if stopped_at_source && matches!(tail.status, Status::BADHANDLE | Status::STALE) {
            return Err(Error::status(OpNum::COPY, Status::NOTSUPP));
        }
        if !tail.status.is_ok() {
            return Err(tail.error());
        }
        begun(self, tail.results, options, most(src_offset, dst_offset, count))
    }
}
