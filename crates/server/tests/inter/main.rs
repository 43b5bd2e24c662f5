//! Copies between two servers over loopback TCP (RFC 7862 4.6 to 4.10, 15.2, 15.3, 15.8, 15.9; cases K01 to K17): the
//! destination reads with the client library.

// A helper outside of a test function is as much a test as the function.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

#[allow(dead_code)]
#[path = "../wire/common.rs"]
mod common;
mod destination;
mod faults;
mod outages;
mod shares;
mod source;

use common::Srv;
use dhow_partner::ClientConnector;
use dhow_proto::v4::ops::{CopyArgs, CopyNotifyArgs, CopyNotifyOk, CopyOk, CopyRes, OffloadStatusOk};
use dhow_proto::v4::{ArgOp, FileHandle, NetLoc, ResOp, Stateid, Status};
use dhow_server::ServerConfig;
use dhow_server::copy::netloc::to_netloc;
use dhow_testkit::memfs::Options;
use dhow_testkit::wire::{Client, Open, op};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// Two servers, and a client of both.
struct Pair {
    a: Srv,
    b: Srv,
    ca: Client,
    cb: Client,
}

/// Makes a server take part in copies with those on this host.
fn partner(config: &mut ServerConfig) {
    let here = vec!["127.0.0.1".parse().unwrap(), "127.0.0.2".parse().unwrap()];
    let inter = &mut config.copy.inter;
    inter.enabled = true;
    (inter.sources, inter.destinations) = (here.clone(), here);
    let call_timeout = Duration::from_secs(3);
    inter.connector = Some(Arc::new(ClientConnector { call_timeout, ..ClientConnector::default() }));
}

impl Pair {
    async fn new() -> Self {
        Self::with(|_| {}, |_| {}).await
    }

    /// With changes to the configurations of source and destination.
    async fn with(a: impl FnOnce(&mut ServerConfig), b: impl FnOnce(&mut ServerConfig)) -> Self {
        Self::on(Options::default(), a, b).await
    }

    /// And another filesystem at the destination.
    async fn on(options: Options, a: impl FnOnce(&mut ServerConfig), b: impl FnOnce(&mut ServerConfig)) -> Self {
        let a = Srv::with(Options::default(), |c| {
            partner(c);
            a(c);
        })
        .await;
        let b = Srv::with(Options { id: 2, ..options }, |c| {
            partner(c);
            b(c);
        })
        .await;
        let (ca, cb) = (a.client("c").await, b.client("c").await);
        Self { a, b, ca, cb }
    }

    /// A source of so many MiB, each different, and an empty destination.
    async fn files(&mut self, mib: u64) -> (Open, Open) {
        let (ra, rb) = (self.ca.walk("").await, self.cb.walk("").await);
        let (src, dst) = (self.ca.create(&ra, "src").await, self.cb.create(&rb, "dst").await);
        for i in 0..mib {
            self.ca.write(&src, i * MIB, &vec![i as u8 + 1; MIB as usize]).await;
        }
        (src, dst)
    }

    async fn notify(&mut self, src: &Open) -> Result<CopyNotifyOk, Status> {
        notify(&mut self.ca, &src.fh, src.stateid, to_netloc(self.b.addr)).await
    }

    /// COPY_NOTIFY and COPY of the whole file.
    async fn copy(&mut self, src: &Open, dst: &Open, synchronous: bool) -> Result<CopyOk, Status> {
        let told = self.notify(src).await?;
        let from = (&src.fh, told.stateid);
        copy(&mut self.cb, from, dst, synchronous, told.source_server).await
    }

    /// As [`Pair::copy`], going asynchronous.
    async fn begin(&mut self, src: &Open, dst: &Open) -> Stateid {
        let ok = self.copy(src, dst, false).await.unwrap();
        assert_eq!(ok.response.count, 0, "the total comes later");
        *ok.response.callback_id.first().expect("asynchronous")
    }

    fn equal(&self) -> bool {
        self.a.fs.content_of("src").unwrap() == self.b.fs.content_of("dst").unwrap()
    }

    /// Nothing is left of copies: no ticket, no use of a connection.
    async fn quiet(&self) {
        for _ in 0..500 {
            let sources = self.b.running.shared().source_counts();
            let copies = self.b.running.shared().state.counts().copies;
            if (copies, sources.guards, sources.connecting) == (0, 0, 0) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("something is left of a copy: {:?}", self.b.running.shared().source_counts());
    }

    /// Connections made to sources, attempts included.
    fn connects(&self) -> u64 {
        let m = &self.b.running.shared().metrics.inter;
        m.source_connects.load(Relaxed) + m.source_connect_failures.load(Relaxed)
    }
}

async fn notify(c: &mut Client, fh: &FileHandle, id: Stateid, to: NetLoc) -> Result<CopyNotifyOk, Status> {
    let args = CopyNotifyArgs { src_stateid: id, destination_server: to };
    match c.run(&[op::put(fh), ArgOp::CopyNotify(args)]).await.results.pop() {
        Some(ResOp::CopyNotify(res)) => res,
        other => panic!("{other:?}"),
    }
}

fn copy_op(stateid: Stateid, dst: &Open, synchronous: bool, at: Vec<NetLoc>) -> ArgOp {
    ArgOp::Copy(CopyArgs {
        src_stateid: stateid,
        dst_stateid: dst.stateid,
        src_offset: 0,
        dst_offset: 0,
        count: 0,
        consecutive: true,
        synchronous,
        source_server: at,
    })
}

async fn copy(
    c: &mut Client,
    (fh, stateid): (&FileHandle, Stateid),
    dst: &Open,
    synchronous: bool,
    at: Vec<NetLoc>,
) -> Result<CopyOk, Status> {
    let copy = copy_op(stateid, dst, synchronous, at);
    match c.run(&[op::put(fh), ArgOp::SaveFh, op::put(&dst.fh), copy]).await.results.pop() {
        Some(ResOp::Copy(CopyRes::Ok(ok))) => Ok(ok),
        Some(ResOp::Copy(CopyRes::Err(status))) => Err(status),
        other => panic!("{other:?}"),
    }
}

async fn status_of(c: &mut Client, id: Stateid) -> Result<OffloadStatusOk, Status> {
    match c.run(&[op::offload_status(id)]).await.results.pop() {
        Some(ResOp::OffloadStatus(done)) => done,
        other => panic!("{other:?}"),
    }
}

/// Polls until the copy has ended: bytes and status.
async fn poll(c: &mut Client, id: Stateid) -> (u64, Status) {
    for _ in 0..3000 {
        let now = status_of(c, id).await.expect("a copy that is known");
        if let Some(status) = now.complete.first() {
            return (now.count, *status);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the copy does not end");
}

fn at(addr: SocketAddr) -> Vec<NetLoc> {
    vec![to_netloc(addr)]
}
