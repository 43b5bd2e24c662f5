//! What a server needs of a client to read from another server: implemented outside, so that the server knows no client.

use async_trait::async_trait;
use bytes::Bytes;
use dhow_proto::v4::{Stateid, Status};
use dhow_rpc::OpaqueAuth;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// Makes connections to other servers.
#[async_trait]
pub trait SourceConnector: Send + Sync + fmt::Debug {
    /// Connects to a server and makes a session with it. The caller gives up after a while by dropping the future.
    ///
    /// # Errors
    /// What went wrong, for the log.
    async fn connect(&self, addr: SocketAddr) -> Result<Arc<dyn SourceConnection>, String>;
}

/// A file on another server, and in whose name it is read.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// Its filehandle there.
    pub handle: Bytes,
    /// The copy-notify stateid.
    pub stateid: Stateid,
    /// The credential of the user who asked for the copy, as it came.
    pub credential: OpaqueAuth,
}

/// Why something could not be had from another server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceFailure {
    /// It answered with this.
    Status(Status),
    /// It did not answer, or not by the rules; the connection is worth nothing any more. The text is for the log.
    Lost(String),
}

/// Attributes of a file on another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceAttr {
    /// It is a regular file.
    pub regular: bool,
    /// Bytes.
    pub size: u64,
    /// Bytes of storage that it takes: less than its size if it has holes. `None` if not known.
    pub used: Option<u64>,
}

/// Bytes of a file on another server.
#[derive(Clone, Debug)]
pub struct SourceData {
    /// At most what was asked for; less only at the end or because the server gives no more at once.
    pub data: Bytes,
    /// The file ends with them.
    pub eof: bool,
}

/// A session with another server. Calls may be made at once, as many as its owner likes; they wait for reconnection
/// and recovery, within bounds.
#[async_trait]
pub trait SourceConnection: Send + Sync + fmt::Debug {
    /// READ.
    ///
    /// # Errors
    /// As [`SourceFailure`] says.
    async fn read(&self, file: &SourceFile, offset: u64, count: u32) -> Result<SourceData, SourceFailure>;

    /// GETATTR.
    ///
    /// # Errors
    /// As [`SourceFailure`] says.
    async fn attributes(&self, file: &SourceFile) -> Result<SourceAttr, SourceFailure>;

    /// SEEK to data (or to a hole) at or after `offset`; `None` if there is none up to the end (NXIO, or end of file
    /// for data).
    ///
    /// # Errors
    /// As [`SourceFailure`] says; NOTSUPP where the server cannot tell.
    async fn seek(&self, file: &SourceFile, offset: u64, hole: bool) -> Result<Option<u64>, SourceFailure>;

    /// Bytes of one READ at most; known since the session was made.
    fn max_read(&self) -> u32;

    /// Whether it is worth using: not closed, not failed for good.
    fn is_alive(&self) -> bool;

    /// Calls that were made to set the session up, from the first to the last before files could be read, connections
    /// included.
    fn setup_calls(&self) -> u64;

    /// Says goodbye to the server and closes; in bounded time.
    async fn close(&self);
}
