//! What a server offers, found out without changing anything.

use std::time::Duration;

use bytes::Bytes;
use dhow_proto::NFS_PROGRAM;
use dhow_proto::v4::ops::{
    AllocateArgs, CloneArgs, CopyArgs, CopyNotifyArgs, DataContent, GetxattrArgs, IoAdviseArgs, ListxattrsArgs,
    OffloadArgs, ReadPlusArgs, SeekArgs,
};
use dhow_proto::v4::{ArgOp, Bitmap, CompoundHeader, NetLoc, OpNum, PROC_COMPOUND, Stateid, Status, VERSION};
use dhow_rpc::{AcceptStat, CallHeader, Credential, ReplyBody, ReplyHeader};
use dhow_xdr::{Decode, Encode, Reader, Writer};

use crate::fs::putfh;
use crate::{CallOptions, Client, ClientConfig, Error, Place, Result, links, rpc};

/// How a server treats an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// It is executed, or refused for a reason that has to do with its arguments.
    Yes,
    /// It is not known to the server, or not offered here.
    No,
    /// The answer allows no conclusion.
    Unclear(Status),
}

/// Which versions a server answers to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Versions {
    /// Major versions of NFS other than 4, of 2 and 3.
    pub majors: Vec<u32>,
    /// Minor versions of NFSv4.
    pub minors: Vec<u32>,
    /// Round-trip time of an empty call: the shortest of three.
    pub round_trip: Duration,
}

/// Asks for versions 2 and 3 by a NULL call, and for minor versions 0 to 3 by an empty COMPOUND: no state is made at
/// the server.
///
/// # Errors
///
/// When it cannot be reached, or hangs up.
pub async fn versions(config: &ClientConfig) -> Result<Versions> {
    let stream = links::dial(config).await?;
    let shared = std::sync::Arc::new(dhow_net::NetShared::default());
    let options = dhow_net::ConnOptions::default();
    let (conn, driver) = stream.connect(&options, shared);
    let reader = tokio::spawn(async move { driver.run(&dhow_net::NoCalls).await });
    let asked = tokio::time::timeout(config.connect_timeout, ask_versions(&conn)).await;
    conn.close(dhow_net::CloseReason::Local("probe done"));
    let _ = reader.await;
    asked.unwrap_or(Err(Error::TimedOut(config.connect_timeout)))
}

async fn ask_versions(conn: &dhow_net::Connection) -> Result<Versions> {
    let mut found = Versions { round_trip: Duration::MAX, ..Versions::default() };
    for xid in 1..=3 {
        let call = rpc::null(xid, VERSION)?;
        let start = std::time::Instant::now();
        conn.call(xid, call.segments).await.map_err(|e| rpc::lost(conn, &e))?;
        found.round_trip = found.round_trip.min(start.elapsed());
    }
    for major in [2, 3] {
        let call = rpc::null(10 + major, major)?;
        let reply = conn.call(call.xid, call.segments).await.map_err(|e| rpc::lost(conn, &e))?;
        let header = ReplyHeader::decode(&mut Reader::new(reply.bytes))?;
        if header.is_success() {
            found.majors.push(major);
        }
    }
    for minor in 0..=3 {
        let xid = 20 + minor;
        let mut w = Writer::new();
        let header = CallHeader::new(xid, NFS_PROGRAM, VERSION, PROC_COMPOUND, &Credential::None)?;
        header.encode(&mut w);
        CompoundHeader { tag: Bytes::new(), minorversion: minor, numops: 0 }.encode(&mut w);
        let reply = conn.call(xid, vec![w.into_bytes()]).await.map_err(|e| rpc::lost(conn, &e))?;
        let mut r = Reader::new(reply.bytes);
        let header = ReplyHeader::decode(&mut r)?;
        match header.body {
            // An empty COMPOUND of a version that is served is fine (RFC 8881 section 16.2.3), or refused for another
            // reason than its version.
            ReplyBody::Accepted { stat: AcceptStat::SUCCESS, .. } => {
                if Status::decode(&mut r)? != Status::MINOR_VERS_MISMATCH {
                    found.minors.push(minor);
                }
            }
            _ => break,
        }
    }
    Ok(found)
}

/// Tries each optional operation of minor version 2, and extended attributes, on the directory `place` with arguments
/// that no server can execute (a directory where a file is needed, a stateid of nothing): a server that knows the
/// operation complains about those, another one about the operation.
///
/// # Errors
///
/// When there is no such directory, or no session.
pub async fn operations(client: &Client, place: impl Into<Place>) -> Result<Vec<(OpNum, Support)>> {
    let fs = client.fs();
    let dir = fs.stat(place).await?;
    let nothing = Stateid { seqid: 1, other: *b"dhow probe.." };
    let any = Stateid::ANONYMOUS;
    let span = AllocateArgs { stateid: any, offset: 0, length: 0 };
    let address = NetLoc::Name(Bytes::from_static(b"probe.invalid"));
    let tries = vec![
        ArgOp::Allocate(AllocateArgs { length: 1, ..span.clone() }),
        ArgOp::Deallocate(AllocateArgs { length: 1, ..span }),
        ArgOp::Seek(SeekArgs { stateid: any, offset: 0, what: DataContent::DATA }),
        ArgOp::ReadPlus(ReadPlusArgs { stateid: any, offset: 0, count: 1 }),
        ArgOp::IoAdvise(IoAdviseArgs { stateid: any, offset: 0, count: 0, hints: Bitmap::of(&[0]) }),
        ArgOp::Copy(CopyArgs {
            src_stateid: nothing,
            dst_stateid: nothing,
            src_offset: 0,
            dst_offset: 0,
            count: 1,
            consecutive: true,
            synchronous: true,
            source_server: Vec::new(),
        }),
        ArgOp::CopyNotify(CopyNotifyArgs { src_stateid: nothing, destination_server: address }),
        ArgOp::OffloadStatus(OffloadArgs { stateid: nothing }),
        ArgOp::OffloadCancel(OffloadArgs { stateid: nothing }),
        ArgOp::Clone(CloneArgs { src_stateid: nothing, dst_stateid: nothing, src_offset: 0, dst_offset: 0, count: 1 }),
        ArgOp::Getxattr(GetxattrArgs { name: Bytes::from_static(b"dhow.probe") }),
        ArgOp::Listxattrs(ListxattrsArgs { cookie: 0, maxcount: 4096 }),
    ];
    let mut found = Vec::new();
    for op in tries {
        let name = op.op();
        let ops = vec![putfh(&dir.fh), ArgOp::SaveFh, putfh(&dir.fh), op];
        let options = CallOptions { patient: false, ..CallOptions::default() };
        let res = client.compound(ops, options).await?;
        let support = match res.status {
            Status::NOTSUPP | Status::OP_ILLEGAL | Status::UNION_NOTSUPP => Support::No,
            Status::DELAY | Status::SERVERFAULT | Status::RESOURCE => Support::Unclear(res.status),
            _ if res.results.last().map(dhow_proto::v4::ResOp::op) == Some(name) => Support::Yes,
            status => Support::Unclear(status),
        };
        found.push((name, support));
    }
    Ok(found)
}
