#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

//! Records over an in-memory stream: framing, alignment, limits, order, back-pressure, closing.

use bytes::Bytes;
use dhow_net::{
    CallError, CallHandler, Charge, CloseReason, ConnOptions, Connection, NetShared, NoCalls, PAGE, Record,
};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;

fn msg(xid: u32, kind: u32, body: &[u8]) -> Vec<u8> {
    let mut m = xid.to_be_bytes().to_vec();
    m.extend(kind.to_be_bytes());
    m.extend(body);
    m
}

fn framed(m: &[u8]) -> Vec<u8> {
    let mut out = (m.len() as u32 | 0x8000_0000).to_be_bytes().to_vec();
    out.extend(m);
    out
}

async fn read_record(io: &mut DuplexStream) -> Vec<u8> {
    let len = io.read_u32().await.unwrap() & 0x7fff_ffff;
    let mut buf = vec![0; len as usize];
    io.read_exact(&mut buf).await.unwrap();
    buf
}

/// Hands records to the test.
struct Collect(mpsc::UnboundedSender<Record>);

impl CallHandler for Collect {
    async fn call(&self, _conn: &Connection, record: Record) {
        self.0.send(record).unwrap();
    }
}

struct Rig {
    conn: Connection,
    far: DuplexStream,
    calls: mpsc::UnboundedReceiver<Record>,
    end: tokio::task::JoinHandle<CloseReason>,
    shared: Arc<NetShared>,
}

fn rig(options: ConnOptions, pipe: usize) -> Rig {
    let shared = Arc::new(NetShared::default());
    let (near, far) = tokio::io::duplex(pipe);
    let (r, w) = tokio::io::split(near);
    let (conn, driver) = Connection::new(r, w, None, &options, Arc::clone(&shared));
    let (tx, calls) = mpsc::unbounded_channel();
    let end = tokio::spawn(async move { driver.run(&Collect(tx)).await });
    Rig { conn, far, calls, end, shared }
}

#[tokio::test]
async fn small_and_large_records_arrive_whole_in_any_chunking() {
    for chunk in [1, 7, 1000, 1 << 20] {
        let mut rig = rig(ConnOptions::default(), 1 << 16);
        let sizes = [8, 100, 1020, 1024, 16 << 10, (16 << 10) + 1, 100_000, 9, (1 << 20) + 200];
        let sent: Vec<Vec<u8>> =
            sizes.iter().enumerate().map(|(i, n)| msg(i as u32, 0, &vec![i as u8; n - 8])).collect();
        let all: Vec<u8> = sent.iter().flat_map(|m| framed(m)).collect();
        let feed = tokio::spawn(async move {
            // One-byte chunks for the small ones only: a megabyte byte by byte proves no more.
            let (slow, fast) = all.split_at(if chunk < 1000 { 3000 } else { 0 });
            for c in slow.chunks(chunk).chain(fast.chunks(chunk.max(1000))) {
                rig.far.write_all(c).await.unwrap();
            }
            rig.far
        });
        for want in &sent {
            assert_eq!(rig.calls.recv().await.unwrap().bytes, want[..]);
        }
        drop(feed.await.unwrap());
        assert_eq!(rig.end.await.unwrap(), CloseReason::Peer);
        let all = rig.shared.budget.total();
        assert_eq!(rig.shared.budget.free(), all, "every charge came back");
    }
}

#[tokio::test]
async fn payload_of_a_large_record_starts_on_a_page() {
    let find = |head: &[u8]| {
        assert!(head.len() >= 512);
        (head[8] == 7).then_some((300, 65536))
    };
    let options = ConnOptions { payload: Some(Arc::new(find)), ..ConnOptions::default() };
    let mut rig = rig(options, 1 << 16);
    for tag in [7, 8, 7] {
        let mut body = vec![tag; 292];
        body.extend((0..65536u32).map(|i| (i % 251) as u8));
        let m = msg(1, 0, &body);
        rig.far.write_all(&framed(&m)).await.unwrap();
        let got = rig.calls.recv().await.unwrap();
        assert_eq!(got.bytes, m[..]);
        if tag == 7 {
            assert_eq!(got.bytes[300..].as_ptr().align_offset(PAGE), 0);
        }
    }
    assert_eq!(rig.shared.metrics.aligned.load(Relaxed), 2);
}

#[tokio::test]
async fn bad_record_marks_close_the_connection_case_b22() {
    let long = (1u32 << 20) + (65 << 10);
    let empties = [0u32; 4].iter().flat_map(|m| m.to_be_bytes()).collect::<Vec<u8>>();
    let tiny: Vec<u8> = (0..200).flat_map(|_| [0, 0, 0, 1, 0xaa]).collect();
    let cases: [(&str, Vec<u8>); 5] = [
        ("2 GiB - 1", 0xffff_ffffu32.to_be_bytes().to_vec()),
        ("above the limit", (long | 0x8000_0000).to_be_bytes().to_vec()),
        ("empty record", 0x8000_0000u32.to_be_bytes().to_vec()),
        ("empty fragments", empties),
        ("fragments of one byte without end", tiny),
    ];
    for (what, bytes) in cases {
        let mut rig = rig(ConnOptions::default(), 1 << 16);
        // The peer may be cut off while it is still sending.
        let _ = rig.far.write_all(&bytes).await;
        assert!(matches!(rig.end.await.unwrap(), CloseReason::Protocol(_)), "{what}");
        assert_eq!(rig.shared.metrics.bad_records.load(Relaxed), 1, "{what}");
    }
}

#[tokio::test]
async fn fragments_are_joined() {
    let mut rig = rig(ConnOptions::default(), 1 << 16);
    let m = msg(5, 0, &[9; 50_000]);
    let mut wire = Vec::new();
    let parts: Vec<&[u8]> = m.chunks(20_000).collect();
    for (i, p) in parts.iter().enumerate() {
        let last = if i + 1 == parts.len() { 0x8000_0000 } else { 0 };
        wire.extend((p.len() as u32 | last).to_be_bytes());
        wire.extend(*p);
    }
    wire.extend(framed(&msg(6, 0, b"next")));
    let far = tokio::spawn(async move {
        rig.far.write_all(&wire).await.unwrap();
        rig.far
    });
    assert_eq!(rig.calls.recv().await.unwrap().bytes, m[..]);
    assert_eq!(rig.calls.recv().await.unwrap().bytes, msg(6, 0, b"next")[..]);
    drop(far.await);
}

#[tokio::test(start_paused = true)]
async fn a_record_left_incomplete_is_cut_off_and_silence_is_not() {
    let mut rig = rig(ConnOptions::default(), 1 << 16);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(!rig.conn.is_closed(), "an idle connection may stay");
    rig.far.write_all(&framed(&msg(1, 0, b"abcd"))[..9]).await.unwrap();
    assert_eq!(rig.end.await.unwrap(), CloseReason::PartialTimeout);
    assert_eq!(rig.shared.budget.free(), rig.shared.budget.total());
}

#[tokio::test]
async fn replies_find_their_calls_in_any_order() {
    let mut rig = rig(ConnOptions::default(), 1 << 16);
    let calls: Vec<_> = (1..=3).map(|x| (x, rig.conn.call(x, vec![msg(x, 0, b"ask").into()]))).collect();
    assert_eq!(rig.conn.call(2, vec![msg(2, 0, b"ask").into()]).await.unwrap_err(), CallError::XidInUse);
    for x in 1..=3 {
        assert_eq!(read_record(&mut rig.far).await, msg(x, 0, b"ask"));
    }
    for x in [3, 1, 2, 77] {
        rig.far.write_all(&framed(&msg(x, 1, &x.to_be_bytes()))).await.unwrap();
    }
    for (x, call) in calls {
        assert_eq!(call.await.unwrap().bytes, msg(x, 1, &x.to_be_bytes())[..]);
    }
    assert_eq!(rig.conn.pending(), 0);
    // A call that is given up leaves nothing behind, and its late reply harms nobody.
    drop(rig.conn.call(9, vec![msg(9, 0, b"").into()]));
    assert_eq!(rig.conn.pending(), 0);
    rig.far.write_all(&framed(&msg(9, 1, b""))).await.unwrap();
    rig.far.write_all(&framed(&msg(4, 0, b"call"))).await.unwrap();
    assert_eq!(rig.calls.recv().await.unwrap().bytes, msg(4, 0, b"call")[..]);
    assert_eq!(rig.shared.metrics.late_replies.load(Relaxed), 2);
}

#[tokio::test]
async fn closing_wakes_all_who_wait() {
    let rig = rig(ConnOptions { reply_budget: 4096, ..ConnOptions::default() }, 64);
    let pending: Vec<_> = (0..10).map(|x| rig.conn.call(x, vec![msg(x, 0, &[0; 100]).into()])).collect();
    let held = rig.conn.reserve(4096).await;
    let waiter = tokio::spawn({
        let conn = rig.conn.clone();
        async move {
            let _all = conn.reserve(4096).await;
            conn.flush().await;
        }
    });
    drop(rig.far);
    for call in pending {
        assert!(matches!(call.await.unwrap_err(), CallError::Closed(_)));
    }
    waiter.await.unwrap();
    drop(held);
    let why = rig.end.await.unwrap();
    assert_eq!(rig.conn.closed().await, why);
    assert!(matches!(rig.conn.call(1, vec![]).await.unwrap_err(), CallError::Closed(_)));
}

/// Answers every call with 100 kB.
struct Answer;

impl CallHandler for Answer {
    async fn call(&self, conn: &Connection, record: Record) {
        let xid = u32::from_be_bytes(record.bytes[..4].try_into().unwrap());
        let reply = vec![Bytes::from(msg(xid, 1, &[])), Bytes::from(vec![3; 100_000])];
        conn.send(reply, Charge::none());
    }
}

// The clock stands still until everybody waits: the time-out below means that nothing goes on any more.
#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_read_is_held_back_case_b46() {
    let shared = Arc::new(NetShared::default());
    let (near, mut far) = tokio::io::duplex(4096);
    let (r, w) = tokio::io::split(near);
    let options = ConnOptions { write_high: 250_000, ..ConnOptions::default() };
    let (conn, driver) = Connection::new(r, w, None, &options, Arc::clone(&shared));
    tokio::spawn(async move { driver.run(&Answer).await });
    // Calls go in until the connection refuses to read more of them: replies wait by then.
    let mut sent = 0u32;
    while tokio::time::timeout(Duration::from_millis(300), far.write_all(&framed(&msg(sent, 0, &[0; 2000]))))
        .await
        .is_ok()
    {
        sent += 1;
        assert!(sent < 100, "not held back");
    }
    assert!(conn.waiting_bytes() < 250_000 + 110_000, "{} bytes wait", conn.waiting_bytes());
    assert!(shared.metrics.write_stalls.load(Relaxed) > 0);
    // Once it reads, everything comes. The call that was cut short by the time-out stays incomplete.
    for x in 0..sent {
        let got = read_record(&mut far).await;
        assert_eq!((got.len(), &got[..4]), (100_008, &x.to_be_bytes()[..]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_connections_call_each_other_at_once() {
    struct Echo;
    impl CallHandler for Echo {
        async fn call(&self, conn: &Connection, record: Record) {
            let conn = conn.clone();
            tokio::spawn(async move {
                let mut reply = record.bytes.to_vec();
                reply[7] = 1;
                conn.send(vec![reply.into()], record.charge);
            });
        }
    }
    let shared = Arc::new(NetShared::default());
    let (a, b) = tokio::io::duplex(10_000);
    let mut conns = Vec::new();
    for side in [a, b] {
        let (r, w) = tokio::io::split(side);
        let (conn, driver) = Connection::new(r, w, None, &ConnOptions::default(), Arc::clone(&shared));
        tokio::spawn(async move { driver.run(&Echo).await });
        conns.push(conn);
    }
    let mut tasks = Vec::new();
    for conn in conns.clone() {
        for t in 0..4u32 {
            let conn = conn.clone();
            tasks.push(tokio::spawn(async move {
                for i in 0..500u32 {
                    let xid = t * 1000 + i;
                    let body = vec![t as u8; (i as usize * 37) % 20_000];
                    let got = conn.call(xid, vec![msg(xid, 0, &[]).into(), body.clone().into()]).await.unwrap();
                    assert_eq!(got.bytes, msg(xid, 1, &body)[..]);
                }
            }));
        }
    }
    for t in tasks {
        t.await.unwrap();
    }
    conns[0].close(CloseReason::Local("done"));
    conns[1].closed().await;
}

#[tokio::test]
async fn draining_answers_what_was_taken() {
    let mut rig = rig(ConnOptions::default(), 64);
    rig.far.write_all(&framed(&msg(1, 0, b"x"))).await.unwrap();
    rig.calls.recv().await.unwrap();
    rig.conn.stop_reading();
    assert_eq!(rig.end.await.unwrap(), CloseReason::Local("stopped reading"));
    rig.conn.send(vec![msg(1, 1, &[5; 1000]).into()], Charge::none());
    let conn = rig.conn.clone();
    let flushed = tokio::spawn(async move {
        conn.flush().await;
        conn.close(CloseReason::Local("shut down"));
    });
    assert_eq!(read_record(&mut rig.far).await, msg(1, 1, &[5; 1000]));
    flushed.await.unwrap();
    assert_eq!(rig.far.read(&mut [0; 8]).await.unwrap(), 0, "then the stream ends");
}

#[tokio::test]
async fn an_unhandled_message_type_closes() {
    let mut rig = rig(ConnOptions::default(), 64);
    rig.far.write_all(&framed(&msg(1, 2, b""))).await.unwrap();
    assert!(matches!(rig.end.await.unwrap(), CloseReason::Protocol(_)));
    let _ = NoCalls;
}
