//! Lets a server read from other servers with the client library: what plugs [`dhow_client`] into the server's
//! [`SourceConnector`] (inter-server COPY, RFC 7862 4.6). Neither crate knows the other.
//!
//! One [`dhow_client::Client`] is one session with one source; it reconnects and recovers by itself. Every call has a
//! limit, after which the source counts as lost. Files are read with the credential of the user who asked for the copy,
//! as it came; the session itself belongs to the user this process runs as.

use async_trait::async_trait;
use dhow_client::{CallOptions, Client, ClientConfig, Error};
use dhow_proto::v4::ops::{DataContent, GetattrArgs, PutFhArgs, ReadArgs, SeekArgs};
use dhow_proto::v4::{ArgOp, Bitmap, FileHandle, FileType, ResOp, Status, attr};
use dhow_rpc::Credential;
use dhow_server::copy::{SourceAttr, SourceConnection, SourceConnector, SourceData, SourceFailure, SourceFile};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Bytes around the data of a READ reply.
const AROUND_DATA: u32 = 1024;

/// Connects with the client library.
#[derive(Clone, Debug)]
pub struct ClientConnector {
    /// How long a call may take, reconnection and recovery included, before the source counts as lost.
    pub call_timeout: Duration,
    /// How long a connection attempt may take.
    pub connect_timeout: Duration,
    /// Largest READ, bytes.
    pub max_io: u32,
}

impl Default for ClientConnector {
    /// One minute for a call, 10 s to connect, 1 MiB.
    fn default() -> Self {
        Self { call_timeout: Duration::from_secs(60), connect_timeout: Duration::from_secs(10), max_io: 1 << 20 }
    }
}

#[async_trait]
impl SourceConnector for ClientConnector {
    async fn connect(&self, addr: SocketAddr) -> Result<Arc<dyn SourceConnection>, String> {
        let mut config = ClientConfig::new(addr.to_string(), vec![addr]);
        config.call_timeout = Some(self.call_timeout);
        config.connect_timeout = self.connect_timeout;
        config.max_io = self.max_io;
        // Many servers serve ports below 1024 only; without the privilege it is any port.
        config.reserved_port = true;
        // A copy-notify stateid is of version 4.2.
        config.minor_versions = vec![2];
        let client = Client::connect(config).await.map_err(|e| e.to_string())?;
        let session = client.session_info().await.map_err(|e| e.to_string())?;
        let most = session.max_response_size.saturating_sub(AROUND_DATA).min(self.max_io);
        // Whole pages, where there is more than one.
        let max_read = if most > 4096 { most - most % 4096 } else { most.max(512) };
        let calls = client.counters().snapshot();
        Ok(Arc::new(ClientConnection { client, max_read, setup_calls: calls.setup + calls.connects }))
    }
}

/// A session with a source.
#[derive(Debug)]
struct ClientConnection {
    client: Client,
    max_read: u32,
    setup_calls: u64,
}

/// What an error of the client library means for a copy.
fn failure(error: &Error) -> SourceFailure {
    match (error, error.wire_status()) {
        (_, Some(status)) => SourceFailure::Status(status),
        // It will not have this user; the session is as good as before.
        (Error::Auth(_), None) => SourceFailure::Status(Status::ACCESS),
        (_, None) => SourceFailure::Lost(error.to_string()),
    }
}

impl ClientConnection {
    /// One operation on the file, as the user.
    async fn on_file(&self, file: &SourceFile, op: ArgOp) -> Result<ResOp, SourceFailure> {
        let credential =
            Credential::parse(file.credential.clone()).map_err(|_| SourceFailure::Status(Status::ACCESS))?;
        let options = CallOptions { credential: Some(Arc::new(credential)), ..CallOptions::default() };
        let object = FileHandle(file.handle.clone());
        let mut res = self
            .client
            .compound(vec![ArgOp::PutFh(PutFhArgs { object }), op], options)
            .await
            .map_err(|e| failure(&e))?;
        res.status.ok().map_err(SourceFailure::Status)?;
        res.results.pop().ok_or_else(|| SourceFailure::Lost("an empty reply".into()))
    }
}

fn odd(res: &ResOp) -> SourceFailure {
    SourceFailure::Lost(format!("{} in the place of another result", res.op()))
}

#[async_trait]
impl SourceConnection for ClientConnection {
    async fn read(&self, file: &SourceFile, offset: u64, count: u32) -> Result<SourceData, SourceFailure> {
        match self.on_file(file, ArgOp::Read(ReadArgs { stateid: file.stateid, offset, count })).await? {
            ResOp::Read(Ok(ok)) => Ok(SourceData { data: ok.data, eof: ok.eof }),
            other => Err(odd(&other)),
        }
    }

    async fn attributes(&self, file: &SourceFile) -> Result<SourceAttr, SourceFailure> {
        let attr_request = Bitmap::of(&[attr::TYPE, attr::SIZE, attr::SPACE_USED]);
        match self.on_file(file, ArgOp::Getattr(GetattrArgs { attr_request })).await? {
            ResOp::Getattr(Ok(ok)) => {
                let (Some(kind), Some(size)) = (ok.attrs.file_type, ok.attrs.size) else {
                    return Err(SourceFailure::Lost("attributes without type or size".into()));
                };
                Ok(SourceAttr { regular: kind == FileType::REG, size, used: ok.attrs.space_used })
            }
            other => Err(odd(&other)),
        }
    }

    async fn seek(&self, file: &SourceFile, offset: u64, hole: bool) -> Result<Option<u64>, SourceFailure> {
        let what = if hole { DataContent::HOLE } else { DataContent::DATA };
        match self.on_file(file, ArgOp::Seek(SeekArgs { stateid: file.stateid, offset, what })).await {
            // Data that is not there: nothing but a hole up to the end. A hole is there always: that behind the end.
            Ok(ResOp::Seek(Ok(ok))) => Ok((hole || !ok.eof).then_some(ok.offset)),
            Ok(other) => Err(odd(&other)),
            Err(SourceFailure::Status(Status::NXIO)) => Ok(None),
            Err(other) => Err(other),
        }
    }

    fn max_read(&self) -> u32 {
        self.max_read
    }

    fn is_alive(&self) -> bool {
        self.client.ended().is_none()
    }

    fn setup_calls(&self) -> u64 {
        self.setup_calls
    }

    async fn close(&self) {
        // The source finds out by the lease, if it is not to be told.
        let _ = self.client.close().await;
    }
}
