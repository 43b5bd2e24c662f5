//! RPC messages and records (RFC 5531).

use crate::common::Srv;
use bytes::Bytes;
use dhow_proto::NFS_PROGRAM;
use dhow_proto::v4::{PROC_COMPOUND, PROC_NULL, VERSION};
use dhow_rpc::{AcceptStat, AuthStat, CallHeader, Flavor, OpaqueAuth, ReplyBody};
use dhow_testkit::wire::{Wire, call_bytes, op, sys};
use dhow_xdr::{Encode, Writer};

fn null(xid: u32) -> Vec<u8> {
    call_bytes(xid, OpaqueAuth::NONE, NFS_PROGRAM, VERSION, PROC_NULL, &[])
}

async fn answers(wire: &mut Wire) {
    assert!(wire.null().await.header.is_success());
}

fn accepted(body: &ReplyBody) -> AcceptStat {
    match body {
        ReplyBody::Accepted { stat, .. } => *stat,
        other => panic!("{other:?}"),
    }
}

/// RFC 5531 section 9: each way in which a call can miss its procedure.
#[tokio::test]
async fn calls_that_miss() {
    let srv = Srv::start().await;
    let mut w = srv.wire().await;
    let xid = w.send_call(NFS_PROGRAM + 1, VERSION, PROC_NULL, &[]).await;
    assert_eq!(accepted(&w.reply(xid).await.header.body), AcceptStat::PROG_UNAVAIL);
    for vers in [0, 2, 3, 5, u32::MAX] {
        let xid = w.send_call(NFS_PROGRAM, vers, PROC_NULL, &[]).await;
        match w.reply(xid).await.header.body {
            ReplyBody::ProgMismatch { low, high, .. } => assert_eq!((low, high), (4, 4)),
            other => panic!("version {vers}: {other:?}"),
        }
    }
    for proc in [2, 3, u32::MAX] {
        let xid = w.send_call(NFS_PROGRAM, VERSION, proc, &[]).await;
        assert_eq!(accepted(&w.reply(xid).await.header.body), AcceptStat::PROC_UNAVAIL);
    }
    answers(&mut w).await;
}

/// RFC 5531 section 9: another RPC version.
#[tokio::test]
async fn rpc_version_3() {
    let srv = Srv::start().await;
    let mut w = srv.wire().await;
    let call = CallHeader { xid: 77, rpcvers: 3, body: None }.to_bytes();
    w.send_record(&call).await.unwrap();
    assert_eq!(w.reply(77).await.header.body, ReplyBody::RpcMismatch { low: 2, high: 2 });
    answers(&mut w).await;
}

/// RFC 5531 section 11: a record comes in any fragments, and bytes in any pieces.
#[tokio::test]
async fn fragments() {
    let srv = Srv::start().await;
    let mut w = srv.wire().await;
    let call = null(1);
    w.send_fragments(&call.chunks(4).collect::<Vec<_>>()).await.unwrap();
    assert!(w.reply(1).await.header.is_success());
    let call = null(2);
    w.send_fragments(&[&call[..1], &call[1..39], &call[39..]]).await.unwrap();
    assert!(w.reply(2).await.header.is_success());
    // Byte by byte, each in a segment of its own.
    let mut bytes = dhow_rpc::record_mark(call.len()).to_vec();
    bytes.extend(null(3));
    for b in bytes {
        w.send_raw(&[b]).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert!(w.reply(3).await.header.is_success());
    // Two records in one write.
    let mut two = Vec::new();
    for xid in [4, 5] {
        two.extend(dhow_rpc::record_mark(call.len()));
        two.extend(null(xid));
    }
    w.send_raw(&two).await.unwrap();
    assert!(w.reply(5).await.header.is_success());
    assert!(w.reply(4).await.header.is_success());
}

/// Case B22: what cannot be a record ends the connection at once, and no other.
#[tokio::test]
async fn streams_that_are_no_records() {
    let srv = Srv::start().await;
    let mut other = srv.wire().await;
    let huge = 0xffff_ffff_u32.to_be_bytes();
    let almost = 0x7fff_ffff_u32.to_be_bytes();
    let mut crumbs = Vec::new();
    for _ in 0..100_000 {
        crumbs.extend([0, 0, 0, 1, 0xaa]);
    }
    let streams: [(&str, &[u8]); 6] = [
        ("2 GiB - 1, last", &huge),
        ("2 GiB - 1, not last", &almost),
        ("a web browser", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("1-byte fragments", &crumbs),
        ("empty fragments", &[0; 40_000]),
        ("empty records", &[0x80, 0, 0, 0].repeat(10_000)),
    ];
    for (what, bytes) in streams {
        let mut w = srv.wire().await;
        // The server may close in the middle of it.
        let _ = w.send_raw(bytes).await;
        w.closed().await;
        assert!(other.null().await.header.is_success(), "after {what}");
    }
}

/// Case B22: sizes above the limit are refused by the record's header, sizes at it are taken.
#[tokio::test]
async fn the_largest_record() {
    let srv = Srv::start().await;
    let limit = srv.running.shared().limits().max_io as usize + (64 << 10);
    let mut w = srv.wire().await;
    let mut call = null(9);
    call.resize(limit, 0);
    w.send_record(&call).await.unwrap();
    // What follows the arguments of NULL is no concern of ours; the record was taken.
    assert_eq!(w.reply(9).await.header.xid, 9);
    let mut w = srv.wire().await;
    w.send_raw(&dhow_rpc::record_mark(limit + 1)).await.unwrap();
    w.closed().await;
}

/// Messages that end within the header, are replies, or neither call nor reply.
#[tokio::test]
async fn broken_headers() {
    let srv = Srv::start().await;
    let good = null(3);
    for len in 1..good.len() {
        let mut w = srv.wire().await;
        w.send_record(&good[..len]).await.unwrap();
        // Refused by a reply, or by closing; a call on a connection that is open still works.
        if let Some(reply) = w.try_null().await {
            assert!(reply);
        }
    }
    let mut stray = Writer::new();
    dhow_rpc::ReplyHeader::success(4711).encode(&mut stray);
    let mut w = srv.wire().await;
    w.send_record(&stray.into_bytes()).await.unwrap();
    let _ = w.try_null().await;
    let mut w = srv.wire().await;
    w.send_record(&[0, 0, 0, 1, 0, 0, 0, 2]).await.unwrap();
    let _ = w.try_null().await;
    answers(&mut srv.wire().await).await;
}

trait TryNull {
    async fn try_null(&mut self) -> Option<bool>;
}

impl TryNull for Wire {
    /// Whether a call succeeds; `None` if the connection is closed.
    async fn try_null(&mut self) -> Option<bool> {
        let xid = self.xid();
        if self.send_record(&null(xid)).await.is_err() {
            return None;
        }
        self.try_reply(xid).await.map(|r| r.header.is_success())
    }
}

/// RFC 5531 section 9 and 8.2: credentials that are not taken.
#[tokio::test]
async fn credentials() {
    let srv = Srv::start().await;
    let mut w = srv.wire().await;
    let groups: Vec<u32> = (1..=16).collect();
    w.cred = sys(1, 1, &groups);
    answers(&mut w).await;

    let good = w.cred.to_opaque().unwrap().body;
    let patched = |at: usize, value: u32, more: usize| {
        let mut body = good.to_vec();
        body[at..at + 4].copy_from_slice(&value.to_be_bytes());
        body.resize(body.len() + more, 0);
        OpaqueAuth { flavor: Flavor::SYS, body: body.into() }
    };
    // stamp, length and bytes of the machine name, uid, gid, number of groups.
    let count_at = 4 + 4 + 8 + 8;
    let bad = [
        ("17 groups (case B37)", patched(count_at, 17, 4)),
        ("2^31 groups (case B22)", patched(count_at, 1 << 31, 0)),
        ("fewer groups than said", OpaqueAuth { flavor: Flavor::SYS, body: good.slice(..good.len() - 4) }),
        ("a machine name of 256 bytes", patched(4, 256, 0)),
        ("no body", OpaqueAuth { flavor: Flavor::SYS, body: Bytes::new() }),
    ];
    for (i, (what, auth)) in bad.into_iter().enumerate() {
        let xid = 100 + i as u32;
        w.send_call_as(xid, auth, NFS_PROGRAM, VERSION, PROC_COMPOUND, &[]).await;
        assert_eq!(w.reply(xid).await.header.body, ReplyBody::AuthError(AuthStat::BADCRED), "{what}");
    }
    for flavor in [2, 3, 6, 7, 99, 390_003, u32::MAX] {
        let auth = OpaqueAuth { flavor: Flavor(flavor), body: Bytes::from_static(&[0; 8]) };
        let xid = 1000 + flavor % 1000;
        w.send_call_as(xid, auth, NFS_PROGRAM, VERSION, PROC_COMPOUND, &[]).await;
        assert!(matches!(w.reply(xid).await.header.body, ReplyBody::AuthError(_)), "flavor {flavor}");
    }
    // A body longer than any may be.
    let mut w2 = srv.wire().await;
    let auth = OpaqueAuth { flavor: Flavor::SYS, body: vec![0; 404].into() };
    w2.send_call_as(1, auth, NFS_PROGRAM, VERSION, PROC_NULL, &[]).await;
    if let Some(reply) = w2.try_reply(1).await {
        assert!(reply.refusal().is_some());
    }
    answers(&mut w).await;
}

/// COMPOUND arguments that do not decode at all: GARBAGE_ARGS (RFC 5531 section 9).
#[tokio::test]
async fn garbage_arguments() {
    let srv = Srv::start().await;
    let mut w = srv.wire().await;
    let lies: [&[u8]; 4] = [
        &[],
        &[0, 0, 0, 1],
        // A tag of 2^31 bytes.
        &[0x80, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0],
        &[0, 0, 0, 0, 0, 0, 0, 1],
    ];
    for args in lies {
        let xid = w.send_call(NFS_PROGRAM, VERSION, PROC_COMPOUND, args).await;
        assert_eq!(accepted(&w.reply(xid).await.header.body), AcceptStat::GARBAGE_ARGS, "{args:?}");
    }
    answers(&mut w).await;
}

/// A peer that leaves a record half sent is cut off; others are not disturbed (case B22).
#[tokio::test]
async fn half_a_record() {
    let srv = Srv::with(Default::default(), |c| c.limits.partial_timeout = std::time::Duration::from_millis(200)).await;
    let mut idle = srv.wire().await;
    let mut w = srv.wire().await;
    w.send_raw(&[0x80, 0, 0, 40, 1, 2, 3]).await.unwrap();
    w.closed().await;
    // An idle connection between two records is no such case.
    answers(&mut idle).await;
}

/// The same transaction number twice at once: two calls, two replies. Sessions, not numbers, tell retries apart.
#[tokio::test]
async fn equal_transaction_numbers() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let first = c.sequenced(0, &[op::root(), op::getfh()]);
    let second = c.sequenced(1, &[op::root(), op::mkdir("d")]);
    let cred = c.wire.cred.to_opaque().unwrap();
    for ops in [&first, &second] {
        let args = dhow_testkit::wire::compound_bytes(2, ops);
        c.wire.send_call_as(5, cred.clone(), NFS_PROGRAM, VERSION, PROC_COMPOUND, &args).await;
    }
    let (a, b) = (c.wire.compound_reply(2, 5).await, c.wire.compound_reply(2, 5).await);
    assert!(a.status.is_ok() && b.status.is_ok());
    assert!(srv.fs.handle_of("d").is_some());
}

/// A client that goes away in the middle of everything leaves nothing behind.
#[tokio::test]
async fn connections_come_and_go() {
    let srv = Srv::start().await;
    for i in 0..200_usize {
        let mut w = srv.wire().await;
        let call = null(1);
        w.send_raw(&dhow_rpc::record_mark(call.len())).await.unwrap();
        w.send_raw(&call[..i % call.len()]).await.unwrap();
    }
    let mut w = srv.wire().await;
    answers(&mut w).await;
    // Wait, with a bound, until the server has noticed.
    for _ in 0..1000 {
        if srv.running.shared().conns.lock().len() <= 1 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{} connections are left", srv.running.shared().conns.lock().len());
}

/// Case B22: peers that announce large records and dawdle hold the server's whole budget, and nobody up: small requests
/// have a budget of their own, and for large ones the dawdlers are cut off.
#[tokio::test]
async fn dawdlers_harm_only_themselves() {
    let srv = Srv::with(Default::default(), |c| {
        c.limits.request_bytes = 4 << 20;
        c.limits.request_bytes_per_connection = 2 << 20;
    })
    .await;
    let mut c = srv.client("good").await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    let mut bad = Vec::new();
    for i in 0..16_u32 {
        let mut w = srv.wire().await;
        // Half of them announce one record, the others the first of many fragments.
        let mark = (1_u32 << 20) | (i % 2) << 31;
        w.send_raw(&mark.to_be_bytes()).await.unwrap();
        w.send_raw(&[0; 2000]).await.unwrap();
        bad.push(w);
    }
    for _ in 0..20 {
        c.ok(&[op::put(&f.fh), op::getattr(&[dhow_proto::v4::attr::SIZE])]).await;
    }
    c.write(&f, 0, &vec![7; 500_000]).await;
    // One that sends a byte now and then is no better.
    let trickle = tokio::spawn(async move {
        loop {
            for w in &mut bad {
                let _ = w.send_raw(&[0]).await;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    });
    c.write(&f, 500_000, &vec![8; 500_000]).await;
    trickle.abort();
    assert_eq!(srv.fs.content_of("f").unwrap().len(), 1_000_000);
}

/// Over IPv6 as over IPv4, where the machine has it.
#[tokio::test]
async fn ipv6() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return;
    }
    let srv = Srv::with(Default::default(), |c| c.listen.push("[::1]:0".parse().unwrap())).await;
    let addr = *srv.running.addresses().iter().find(|a| a.is_ipv6()).expect("an address of IPv6");
    let mut c = dhow_testkit::wire::Client::connect(addr, Default::default()).await;
    c.ok(&[op::root(), op::mkdir("d")]).await;
    answers(&mut srv.wire().await).await;
}
