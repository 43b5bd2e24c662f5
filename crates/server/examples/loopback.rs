//! What the server itself costs: a filesystem in memory behind it, the loopback before it, pipelined calls.
//!
//! `cargo run --release -p dhow-server --example loopback [seconds]`

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::print_stdout)]

use dhow_net::{ConnOptions, ConnectOptions, Connection, NetShared, NoCalls, connect};
use dhow_proto::NFS_PROGRAM;
use dhow_proto::v4::ops::{SequenceArgs, share};
use dhow_proto::v4::{ArgOp, CompoundArgs, PROC_COMPOUND, StableHow, VERSION, attr};
use dhow_rpc::CallHeader;
use dhow_server::{ExportConfig, ExportOptions, Server, ServerConfig, Squash};
use dhow_testkit::MemFs;
use dhow_testkit::wire::{Client, ClientOptions, op, sys};
use dhow_xdr::{Encode, Writer};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

#[tokio::main]
async fn main() {
    let secs = std::env::args().nth(1).map_or(2, |s| s.parse().unwrap());
    let options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
    let export = ExportConfig { path: "/e".into(), backend: MemFs::new(), options };
    let mut config = ServerConfig::in_memory(vec![export]).unwrap();
    config.listen = vec!["127.0.0.1:0".parse().unwrap()];
    let server = Server::start(config).await.unwrap();
    let addr = server.addresses()[0];
    let mut c = Client::connect(addr, ClientOptions::named("bench")).await;
    let dir = c.walk("/e").await;
    let owner = c.owner("bench");
    let file = c.open(&dir, op::open_create(owner, share::ACCESS_BOTH, share::DENY_NONE, "f", 0o644)).await;
    for i in 0..64 {
        c.write(&file, i * MIB as u64, &vec![1; MIB]).await;
    }
    let fh = file.fh.clone();
    let small =
        move |_: u64| vec![op::put(&fh), op::getattr(&[attr::SIZE, attr::CHANGE, attr::MODE, attr::TIME_MODIFY])];
    let (fh, id) = (file.fh.clone(), file.stateid);
    let read = move |i: u64| vec![op::put(&fh), op::read(id, (i % 64) * MIB as u64, MIB as u32)];
    let (fh, data) = (file.fh.clone(), vec![2u8; MIB]);
    let write = move |i: u64| vec![op::put(&fh), op::write(id, (i % 64) * MIB as u64, StableHow::UNSTABLE, &data)];
    let time = Duration::from_secs(secs);
    for (what, conns, depth, bytes, ops) in [
        ("GETATTR", 1, 1, 0, Arc::new(small.clone()) as Ops),
        ("GETATTR", 1, 16, 0, Arc::new(small.clone())),
        ("GETATTR", 4, 16, 0, Arc::new(small)),
        ("READ 1 MiB", 1, 1, MIB, Arc::new(read.clone())),
        ("READ 1 MiB", 1, 8, MIB, Arc::new(read.clone())),
        ("READ 1 MiB", 4, 4, MIB, Arc::new(read)),
        ("WRITE 1 MiB", 1, 1, MIB, Arc::new(write.clone())),
        ("WRITE 1 MiB", 1, 8, MIB, Arc::new(write.clone())),
        ("WRITE 1 MiB", 4, 4, MIB, Arc::new(write)),
    ] {
        let cpu = cpu_time();
        let (done, took) = run(addr, &mut c, conns, depth, time, ops).await;
        let cpu = (cpu_time() - cpu).as_secs_f64() * 1e6 / done as f64;
        let rate = done as f64 / took.as_secs_f64();
        let gib = rate * bytes as f64 / f64::from(1 << 30);
        println!("{what:12} {conns} connections x {depth:2} deep: {rate:9.0}/s {gib:6.2} GiB/s {cpu:8.1} us CPU each");
    }
}

/// Processor time of this process, client side included: steadier than rates where others use the machine.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

type Ops = Arc<dyn Fn(u64) -> Vec<ArgOp> + Send + Sync>;

async fn run(addr: SocketAddr, c: &mut Client, conns: u32, depth: u32, time: Duration, ops: Ops) -> (u64, Duration) {
    let shared = NetShared::new(1 << 30, 64 << 20);
    let done = Arc::new(AtomicU64::new(0));
    let begun = Instant::now();
    let mut tasks = Vec::new();
    for conn in 0..conns {
        let stream = connect(addr, &ConnectOptions::default()).await.unwrap();
        let (r, w) = stream.into_split();
        let options = ConnOptions { budget: 1 << 28, ..ConnOptions::default() };
        let (connection, driver) = Connection::new(r, w, None, &options, shared.clone());
        tokio::spawn(async move { driver.run(&NoCalls).await });
        for d in 0..depth {
            let slot = conn * depth + d;
            let (connection, ops, done) = (connection.clone(), ops.clone(), done.clone());
            let (session_id, mut next) = (c.session.id(), c.session.next[slot as usize]);
            tasks.push(tokio::spawn(async move {
                let mut n = u64::from(slot);
                while begun.elapsed() < time {
                    let xid = slot << 20 | (next & 0xf_ffff);
                    let sequence = SequenceArgs {
                        session_id,
                        sequence_id: next,
                        slot_id: slot,
                        highest_slot_id: 63,
                        cache_this: false,
                    };
                    let mut all = vec![ArgOp::Sequence(sequence)];
                    all.extend(ops(n));
                    let mut w = Writer::new();
                    let header = CallHeader::new(xid, NFS_PROGRAM, VERSION, PROC_COMPOUND, &sys(0, 0, &[])).unwrap();
                    header.encode(&mut w);
                    CompoundArgs { tag: Default::default(), minorversion: 2, ops: all }.encode(&mut w);
                    let reply = connection.call(xid, w.into_segments()).await.unwrap();
                    // RPC reply header, then the status of the COMPOUND.
                    assert_eq!(reply.bytes[24..28], [0; 4], "a call failed");
                    done.fetch_add(1, Relaxed);
                    n += 1;
                    next = next.wrapping_add(1);
                }
                (slot, next)
            }));
        }
    }
    for t in tasks {
        let (slot, next) = t.await.unwrap();
        c.session.next[slot as usize] = next;
    }
    (done.load(Relaxed), begun.elapsed())
}
