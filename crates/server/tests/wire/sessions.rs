//! Client IDs, sessions, slots (RFC 8881 2.10, 18.35 to 18.37, 18.46, 18.50).

use crate::common::{Srv, last, open_both};
use bytes::Bytes;
use dhow_proto::v4::ops::{
    BindConnToSessionArgs, ChannelAttrs, ChannelDirFromClient, ExchangeIdOk, ReclaimCompleteArgs, SequenceArgs,
    StateProtectArgs, exchgid, share,
};
use dhow_proto::v4::{ArgOp, ClientId, CompoundRes, OpNum, ResOp, SessionId, Stateid, Status, Verifier};
use dhow_testkit::fault::{Action, Call};
use dhow_testkit::wire::{Client, ClientOptions, Wire, check, op, sys};
use dhow_vfs::ErrorKind;
use std::time::Duration;

async fn exchange(w: &mut Wire, options: &ClientOptions) -> Result<ExchangeIdOk, Status> {
    let res = w.compound(options.minor, &[options.exchange_id()]).await;
    match res.results.into_iter().next() {
        Some(ResOp::ExchangeId(done)) => done,
        other => panic!("{other:?}"),
    }
}

async fn create(w: &mut Wire, options: &ClientOptions, id: ClientId, seq: u32) -> CompoundRes {
    w.compound(options.minor, &[options.create_session(id, seq)]).await
}

fn session_of(res: &CompoundRes) -> SessionId {
    match res.results.first() {
        Some(ResOp::CreateSession(Ok(ok))) => ok.session_id,
        other => panic!("{other:?}"),
    }
}

fn mkdir(name: &str) -> Vec<ArgOp> {
    vec![op::root(), op::mkdir(name)]
}

/// RFC 8881 18.35.
#[tokio::test]
async fn exchange_id() {
    let srv = Srv::start().await;
    let mut w = srv.wire().await;
    let mut o = ClientOptions::named("a");
    let first = exchange(&mut w, &o).await.unwrap();
    assert_eq!(first.flags & exchgid::CONFIRMED_R, 0, "nothing is confirmed yet");
    assert!(first.flags & exchgid::MASK_PNFS == exchgid::USE_NON_PNFS, "{:#x}", first.flags);
    assert!(create(&mut w, &o, first.client_id, first.sequence_id).await.status.is_ok());
    let again = exchange(&mut w, &o).await.unwrap();
    assert_eq!(again.client_id, first.client_id);
    assert_ne!(again.flags & exchgid::CONFIRMED_R, 0);
    assert_eq!((&again.server_owner, &again.server_scope), (&first.server_owner, &first.server_scope));
    let other = exchange(&mut w, &ClientOptions::named("b")).await.unwrap();
    assert_ne!(other.client_id, first.client_id);

    for flags in [exchgid::CONFIRMED_R, 0x0000_0010, 0x0800_0000] {
        o.exchange_flags = flags;
        assert_eq!(exchange(&mut w, &o).await.unwrap_err(), Status::INVAL, "flags {flags:#x}");
    }
    // An update of a client record that is not there, or was made by another incarnation.
    let update =
        |name: &str| ClientOptions { exchange_flags: exchgid::UPD_CONFIRMED_REC_A, ..ClientOptions::named(name) };
    assert_eq!(exchange(&mut w, &update("nobody")).await.unwrap_err(), Status::NOENT);
    let reborn = ClientOptions { verifier: Verifier(*b"another!"), ..update("a") };
    assert_eq!(exchange(&mut w, &reborn).await.unwrap_err(), Status::NOT_SAME);
    assert_eq!(exchange(&mut w, &update("a")).await.unwrap().client_id, first.client_id);
}

/// RFC 8881 18.35.3: state protection that is not offered: SP4_MACH_CRED needs RPCSEC_GSS at the call itself, SP4_SSV
/// algorithms that both have.
#[tokio::test]
async fn state_protection_is_refused() {
    use dhow_proto::v4::ops::{Oid, SsvParams, StateProtectOps};
    let srv = Srv::start().await;
    let mut w = srv.wire().await;
    let o = ClientOptions::named("a");
    let ops = || StateProtectOps { must_enforce: Default::default(), must_allow: Default::default() };
    let ssv = |hash_algs: Vec<Oid>, encr_algs: Vec<Oid>, window| {
        StateProtectArgs::Ssv(SsvParams { ops: ops(), hash_algs, encr_algs, window, num_gss_handles: 0 })
    };
    // Object identifiers of SHA-256 and AES-128-CBC.
    let sha = || vec![Oid { bytes: Bytes::from_static(b"\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x01") }];
    let aes = || vec![Oid { bytes: Bytes::from_static(b"\x06\x09\x60\x86\x48\x01\x65\x03\x04\x01\x02") }];
    for (how, due) in [
        (StateProtectArgs::MachCred(ops()), Status::INVAL),
        (ssv(vec![], vec![], 1), Status::INVAL),
        (ssv(sha(), aes(), 0), Status::INVAL),
        (ssv(sha(), aes(), 4), Status::ENCR_ALG_UNSUPP),
    ] {
        let ArgOp::ExchangeId(mut args) = o.exchange_id() else { unreachable!() };
        args.state_protect = how;
        assert_eq!(w.compound(2, &[ArgOp::ExchangeId(args)]).await.status, due);
    }
    // Wishes that are no protection are taken, and not granted (18.35.3: a server may clear them).
    let wishes = ClientOptions {
        exchange_flags: exchgid::SUPP_MOVED_REFER | exchgid::SUPP_MOVED_MIGR | exchgid::BIND_PRINC_STATEID,
        ..o.clone()
    };
    let ok = exchange(&mut w, &wishes).await.unwrap();
    assert_eq!(ok.flags & exchgid::BIND_PRINC_STATEID, 0);
    assert_eq!(ok.state_protect, dhow_proto::v4::ops::StateProtectRes::None);
}

/// RFC 8881 18.36.
#[tokio::test]
async fn create_session() {
    let srv = Srv::start().await;
    let mut w = srv.wire().await;
    let o = ClientOptions::named("a");
    assert_eq!(create(&mut w, &o, ClientId(0x1234), 1).await.status, Status::STALE_CLIENTID);
    let id = exchange(&mut w, &o).await.unwrap();
    let (c, s) = (id.client_id, id.sequence_id);
    for wrong in [s.wrapping_add(1), s.wrapping_add(2), s.wrapping_sub(1)] {
        assert_eq!(create(&mut w, &o, c, wrong).await.status, Status::SEQ_MISORDERED, "{wrong} when {s} is due");
    }
    let first = create(&mut w, &o, c, s).await;
    assert!(first.status.is_ok());
    assert_eq!(create(&mut w, &o, c, s).await, first, "a retry gets the same reply (18.36.4)");
    let second = create(&mut w, &o, c, s.wrapping_add(1)).await;
    assert_ne!(session_of(&second), session_of(&first));
    assert_eq!(create(&mut w, &o, c, s).await.status, Status::SEQ_MISORDERED);

    // Channels that nothing could go through.
    let small = |f: fn(&mut ChannelAttrs)| {
        let mut o = o.clone();
        f(&mut o.fore);
        o
    };
    let mut next = s.wrapping_add(2);
    for o in [small(|c| c.max_request_size = 20), small(|c| c.max_response_size = 0)] {
        let status = create(&mut w, &o, c, next).await.status;
        assert_eq!(status, Status::TOOSMALL, "{:?}", o.fore);
        next = next.wrapping_add(1);
    }
    // Undefined flags.
    let odd = ClientOptions { session_flags: 0x10, ..o.clone() };
    let status = create(&mut w, &odd, c, next).await.status;
    assert_eq!(status, Status::INVAL);
}

/// RFC 8881 18.36.3: nothing is raised above what the client offers, slots up to 2048 are granted.
#[tokio::test]
async fn negotiation() {
    let srv = Srv::start().await;
    for (i, slots) in [1, 16, 1024, 2048, 100_000].into_iter().enumerate() {
        let mut o = ClientOptions::named(format!("c{i}"));
        o.fore.max_requests = slots;
        o.fore.max_operations = 16;
        o.fore.max_response_size_cached = 2048;
        let back = o.back.clone();
        let c = Client::connect(srv.addr, o.clone()).await;
        let (fore, granted_back) = (&c.session.granted.fore_chan, &c.session.granted.back_chan);
        assert_eq!(fore.max_requests, slots.min(2048), "slots");
        assert!(fore.max_request_size <= o.fore.max_request_size);
        assert!(fore.max_response_size <= o.fore.max_response_size);
        assert!(fore.max_response_size_cached <= 2048);
        assert!(fore.max_operations >= 8);
        assert_eq!(fore.header_pad_size, 0);
        assert_eq!(granted_back.max_operations, back.max_operations, "MUST NOT be changed");
        assert_eq!(granted_back.max_requests, back.max_requests, "MUST NOT be changed");
    }
}

/// Case B24, RFC 8881 18.34 to 18.37, 18.50: not beside other operations.
#[tokio::test]
async fn operations_that_stand_alone() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let o = ClientOptions::named("other");
    let bind = BindConnToSessionArgs { session_id: c.session.id(), dir: ChannelDirFromClient::FORE, use_rdma: false };
    let alone = [
        o.exchange_id(),
        o.create_session(c.id, 2),
        op::destroy_session(c.session.id()),
        op::destroy_client(c.id),
        ArgOp::BindConnToSession(bind),
    ];
    for first in alone {
        let what = first.op();
        let res = c.wire.compound(2, &[first, op::root()]).await;
        assert_eq!(last(&res), (what, Status::NOT_ONLY_OP));
        assert_eq!(res.results.len(), 1);
    }
    // BIND_CONN_TO_SESSION not even in a session.
    let res = c.run(&[ArgOp::BindConnToSession(bind_args(&c))]).await;
    assert_eq!(last(&res), (OpNum::BIND_CONN_TO_SESSION, Status::NOT_ONLY_OP));
    // The others may, and do what they do.
    assert!(c.status(&[o.exchange_id()]).await.is_ok());
}

fn bind_args(c: &Client) -> BindConnToSessionArgs {
    BindConnToSessionArgs { session_id: c.session.id(), dir: ChannelDirFromClient::FORE, use_rdma: false }
}

/// RFC 8881 18.46.3: first, and nowhere else.
#[tokio::test]
async fn position_of_sequence() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let second = ArgOp::Sequence(SequenceArgs {
        session_id: c.session.id(),
        sequence_id: 1,
        slot_id: 5,
        highest_slot_id: 5,
        cache_this: false,
    });
    let res = c.run(&[second, op::root()]).await;
    assert_eq!(last(&res), (OpNum::SEQUENCE, Status::SEQUENCE_POS));
    for first in [op::root(), op::getfh(), op::getattr(&[1])] {
        let what = first.op();
        let res = c.wire.compound(2, &[first]).await;
        assert_eq!(last(&res), (what, Status::OP_NOT_IN_SESSION));
    }
}

/// RFC 8881 18.46 and 2.10.6.1: slots and sequence ids; an error of SEQUENCE leaves the slot alone (case B25).
#[tokio::test]
async fn sequence_errors() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let slots = c.session.granted.fore_chan.max_requests;
    let good = SequenceArgs {
        session_id: c.session.id(),
        sequence_id: c.session.next[3],
        slot_id: 3,
        highest_slot_id: slots - 1,
        cache_this: true,
    };
    let seq = |f: &dyn Fn(&mut SequenceArgs)| {
        let mut s = good.clone();
        f(&mut s);
        ArgOp::Sequence(s)
    };
    let due = good.sequence_id;
    let bad: [(ArgOp, Status); 8] = [
        (seq(&|s| s.session_id = SessionId([9; 16])), Status::BADSESSION),
        (seq(&|s| s.slot_id = slots), Status::BADSLOT),
        (seq(&|s| s.slot_id = u32::MAX), Status::BADSLOT),
        (seq(&|s| s.highest_slot_id = slots), Status::BAD_HIGH_SLOT),
        (seq(&|s| s.sequence_id = due + 1), Status::SEQ_MISORDERED),
        (seq(&|s| s.sequence_id = due.wrapping_sub(2)), Status::SEQ_MISORDERED),
        (seq(&|s| s.sequence_id = u32::MAX / 2), Status::SEQ_MISORDERED),
        (seq(&|s| s.session_id.0[15] ^= 1), Status::BADSESSION),
    ];
    for (sequence, status) in bad {
        let res = c.wire.compound(2, &[sequence.clone(), op::root()]).await;
        assert_eq!(last(&res), (OpNum::SEQUENCE, status), "{sequence:?}");
        assert_eq!(res.results.len(), 1);
    }
    let res = c.wire.compound(2, &[ArgOp::Sequence(good), op::root()]).await;
    assert!(res.status.is_ok(), "the slot is where it was: {:?}", res.status);
    match &res.results[0] {
        ResOp::Sequence(Ok(ok)) => assert_eq!((ok.slot_id, ok.sequence_id, ok.session_id), (3, due, c.session.id())),
        other => panic!("{other:?}"),
    }
}

/// RFC 8881 2.10.6.2: a retry gets the reply of the first time, and nothing is done twice.
#[tokio::test]
async fn replay() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let request = c.sequenced(0, &mkdir("d"));
    let first = c.wire.compound(2, &request).await;
    assert!(first.status.is_ok());
    for _ in 0..10 {
        assert_eq!(c.wire.compound(2, &request).await, first);
    }
    // On another connection of the session.
    let mut other = srv.wire().await;
    assert_eq!(other.compound(2, &request).await, first);
    assert_eq!(srv.fault.count(Call::Make), 1);
    // A failure is replayed as well.
    let request = c.sequenced(0, &mkdir("d"));
    let failed = c.wire.compound(2, &request).await;
    assert_eq!(failed.status, Status::EXIST);
    srv.fs.handle_of("d").unwrap();
    let remove = vec![op::root(), op::remove("d")];
    let xid = c.send(1, &remove).await;
    assert!(c.wait(xid).await.status.is_ok());
    assert_eq!(c.wire.compound(2, &request).await, failed, "although it would succeed now");
}

/// Case B25: a slot and sequence id with other operations is a false retry, and the reply kept stays what it was.
#[tokio::test]
async fn false_retry() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let request = c.sequenced(0, &mkdir("d"));
    let first = c.wire.compound(2, &request).await;
    let sequence = request[0].clone();
    for ops in [
        vec![sequence.clone(), op::root(), op::mkdir("e")],
        vec![sequence.clone(), op::root()],
        vec![sequence.clone(), op::root(), op::mkdir("d"), op::getfh()],
        vec![sequence.clone(), op::root(), op::remove("d")],
    ] {
        let res = c.wire.compound(2, &ops).await;
        assert_eq!(last(&res), (OpNum::SEQUENCE, Status::SEQ_FALSE_RETRY), "{ops:?}");
    }
    // By another user (2.10.6.1.3.1: MUST).
    c.wire.cred = sys(1234, 1234, &[]);
    assert_eq!(last(&c.wire.compound(2, &request).await), (OpNum::SEQUENCE, Status::SEQ_FALSE_RETRY));
    c.wire.cred = sys(0, 0, &[]);
    assert_eq!(c.wire.compound(2, &request).await, first);
    assert!(srv.fs.handle_of("e").is_none());
}

/// RFC 8881 2.10.6.1.3: a reply that was not to be cached.
#[tokio::test]
async fn uncached_replay() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let sequence = ArgOp::Sequence(c.session.sequence(0, false));
    let request = [sequence, op::root(), op::mkdir("d")];
    let first = c.wire.compound(2, &request).await;
    assert!(first.status.is_ok());
    let again = c.wire.compound(2, &request).await;
    if again != first {
        assert_eq!(last(&again), (OpNum::PUTROOTFH, Status::RETRY_UNCACHED_REP));
        assert_eq!(again.results.len(), 2);
        assert_eq!(again.results[0].status(), Status::OK, "MUST NOT be SEQUENCE");
    }
    assert_eq!(srv.fault.count(Call::Make), 1);
    assert!(c.status(&mkdir("e")).await.is_ok(), "the slot has advanced by one");
}

/// Case B25: a thousand copies of one request on two connections while it runs: it runs once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn duplicates_while_in_progress() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let mut other = srv.wire().await;
    let gate = srv.fault.hold(Call::Make);
    let request = c.sequenced(0, &mkdir("d"));
    let mut xids = vec![c.wire.send_compound(2, &request).await];
    gate.arrived(1).await;
    let mut other_xids = Vec::new();
    for _ in 0..500 {
        xids.push(c.wire.send_compound(2, &request).await);
        other_xids.push(other.send_compound(2, &request).await);
    }
    // The server has seen them all once it answers a call that came after them.
    let xid = c.send(1, &[op::root()]).await;
    assert!(c.wait(xid).await.status.is_ok());
    assert!(other.null().await.header.is_success());
    gate.open();
    let first = c.wire.compound_reply(2, xids.remove(0)).await;
    assert!(first.status.is_ok());
    let mut replies = Vec::new();
    for xid in xids {
        replies.push(c.wire.compound_reply(2, xid).await);
    }
    for xid in other_xids {
        replies.push(other.compound_reply(2, xid).await);
    }
    for reply in replies {
        // DELAY while it runs (2.10.6.2), or the reply itself for what came late or waited.
        assert!(reply == first || last(&reply) == (OpNum::SEQUENCE, Status::DELAY), "{reply:?}");
    }
    assert_eq!(srv.fault.count(Call::Make), 1);
    assert_eq!(other.compound(2, &request).await, first);
}

/// An admitted request runs to its end although its connection dies, and the retry on another finds its reply.
#[tokio::test]
async fn a_request_outlives_its_connection() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let gate = srv.fault.hold(Call::Make);
    let request = c.sequenced(0, &mkdir("d"));
    c.wire.send_compound(2, &request).await;
    gate.arrived(1).await;
    c.wire = srv.wire().await;
    gate.open();
    let mut res = c.wire.compound(2, &request).await;
    for _ in 0..500 {
        if last(&res) != (OpNum::SEQUENCE, Status::DELAY) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        res = c.wire.compound(2, &request).await;
    }
    assert!(res.status.is_ok(), "{res:?}");
    assert_eq!(srv.fault.count(Call::Make), 1);
}

/// Case K20: slots come back whatever becomes of the operations.
#[tokio::test]
async fn slots_come_back_after_failures() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    for kind in [ErrorKind::Delay, ErrorKind::Io, ErrorKind::Fault, ErrorKind::NoSpace, ErrorKind::Stale] {
        srv.fault.once(Call::Make, Action::Fail(kind));
        assert!(!c.status(&mkdir("d")).await.is_ok());
        srv.fault.once(Call::Make, Action::FailAfter(kind));
        assert!(!c.status(&mkdir("d")).await.is_ok());
        c.ok(&[op::root(), op::remove("d")]).await;
    }
    c.ok(&mkdir("d")).await;
}

/// Case B25, RFC 8881 2.10.6.4: limits of the session; a request that is too big is told so, and a smaller one with
/// the same sequence id is taken.
#[tokio::test]
async fn session_limits() {
    let srv = Srv::start().await;
    let mut o = ClientOptions::named("c");
    o.fore.max_operations = 8;
    o.fore.max_request_size = 4096;
    o.fore.max_response_size = 4096;
    o.fore.max_response_size_cached = 1024;
    let mut c = Client::connect(srv.addr, o).await;
    let fore = c.session.granted.fore_chan.clone();
    let root = root(&mut c).await;
    let f = c.create(&root, "f").await;

    // Operations.
    let request = c.sequenced(0, &vec![op::root(); fore.max_operations as usize]);
    let res = c.wire.compound(2, &request).await;
    assert_eq!(res.status, Status::TOO_MANY_OPS, "MUST (18.36.3)");
    resend(&mut c, &request, &res).await;

    // Request.
    let big = op::write(f.stateid, 0, dhow_proto::v4::StableHow::UNSTABLE, vec![1; fore.max_request_size as usize]);
    let request = c.sequenced(0, &[op::put(&f.fh), big]);
    let res = c.wire.compound(2, &request).await;
    assert_eq!(res.status, Status::REQ_TOO_BIG);
    resend(&mut c, &request, &res).await;

    // Reply: a READ may be cut short to what fits, or refused.
    c.ok(&[op::put(&f.fh), op::setattr_with(f.stateid, size(100_000))]).await;
    let sequence = ArgOp::Sequence(c.session.sequence(0, false));
    let res = c.wire.compound(2, &[sequence, op::put(&f.fh), op::read(f.stateid, 0, 90_000)]).await;
    match res.results.last() {
        Some(ResOp::Read(Ok(ok))) => assert!(ok.data.len() < 4096 && !ok.data.is_empty()),
        Some(ResOp::Read(Err(status))) => assert_eq!(*status, Status::REP_TOO_BIG),
        other => panic!("{other:?}"),
    }
    let names = vec![op::getattr(&[0, 1, 3, 4, 19, 20]); 7];
    let mut many = vec![op::root()];
    many.extend(names.iter().take(5).cloned());
    c.ok(&many).await;

    // A reply that is to be cached, and too large for that.
    c.ok(&[
        op::root(),
        op::create(dhow_proto::v4::ops::CreateType::Link(Bytes::from(vec![b't'; 1500])), "l", Default::default()),
    ])
    .await;
    let sequence = ArgOp::Sequence(c.session.sequence(0, true));
    let res = c.wire.compound(2, &[sequence, op::root(), op::lookup("l"), ArgOp::Readlink]).await;
    assert_eq!(last(&res), (OpNum::READLINK, Status::REP_TOO_BIG_TO_CACHE));
    let sequence = ArgOp::Sequence(c.session.sequence(0, false));
    let res = c.wire.compound(2, &[sequence, op::root(), op::lookup("l"), ArgOp::Readlink]).await;
    assert!(res.status.is_ok(), "not to be cached, it fits: {:?}", res.status);
}

/// RFC 8881 2.10.6.1.2, 2.10.6.4: where not even the result of SEQUENCE fits, SEQUENCE itself is refused, and the slot
/// is what it was.
#[tokio::test]
async fn a_reply_that_cannot_hold_sequence_leaves_the_slot_alone() {
    let srv = Srv::start().await;
    let mut o = ClientOptions::named("c");
    o.fore.max_response_size_cached = 64;
    o.reclaim_complete = false;
    let mut c = Client::connect(srv.addr, o).await;
    let before = c.session.sequence(0, true);
    for _ in 0..2 {
        let res = c.wire.compound(2, &[ArgOp::Sequence(before.clone()), op::root()]).await;
        assert_eq!(last(&res), (OpNum::SEQUENCE, Status::REP_TOO_BIG_TO_CACHE));
    }
    let uncached = SequenceArgs { cache_this: false, ..before };
    let res = c.wire.compound(2, &[ArgOp::Sequence(uncached), op::root()]).await;
    assert!(res.status.is_ok(), "{:?}", res.status);
}

fn size(size: u64) -> dhow_proto::v4::Attrs {
    dhow_proto::v4::Attrs { size: Some(size), ..Default::default() }
}

async fn root(c: &mut Client) -> dhow_proto::v4::FileHandle {
    c.walk("").await
}

/// After a refusal by SEQUENCE the same sequence id is good for a smaller request; after one by a later operation it
/// is used up. Either way the slot goes on (case B25).
async fn resend(c: &mut Client, request: &[ArgOp], refused: &CompoundRes) {
    if last(refused).0 == OpNum::SEQUENCE {
        let res = c.wire.compound(2, &[request[0].clone(), op::root()]).await;
        assert!(res.status.is_ok(), "the sequence id was not used: {:?}", res.status);
    }
    assert!(c.status(&[op::root()]).await.is_ok(), "the slot goes on");
}

/// RFC 8881 2.10.3.1: a connection becomes a session's by use, or by BIND_CONN_TO_SESSION.
#[tokio::test]
async fn connections_of_a_session() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    for i in 0..16 {
        let mut w = srv.wire().await;
        if i % 2 == 0 {
            let res = w.compound(2, &[ArgOp::BindConnToSession(bind_args(&c))]).await;
            match res.results.first() {
                Some(ResOp::BindConnToSession(Ok(ok))) => assert_eq!(ok.session_id, c.session.id()),
                other => panic!("{other:?}"),
            }
        }
        let request = c.sequenced(i, &[op::root(), op::getfh()]);
        assert!(w.compound(2, &request).await.status.is_ok());
    }
    let mut unknown = bind_args(&c);
    unknown.session_id = SessionId([3; 16]);
    let res = c.wire.compound(2, &[ArgOp::BindConnToSession(unknown)]).await;
    assert_eq!(res.status, Status::BADSESSION);
}

/// RFC 8881 18.37 and 18.50.
#[tokio::test]
async fn the_end_of_sessions_and_clients() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let mut w = srv.wire().await;
    assert_eq!(w.compound(2, &[op::destroy_client(c.id)]).await.status, Status::CLIENTID_BUSY);
    assert_eq!(w.compound(2, &[op::destroy_session(SessionId([1; 16]))]).await.status, Status::BADSESSION);
    let id = c.session.id();
    let res = c.wire.compound(2, &[op::destroy_session(id)]).await;
    assert!(res.status.is_ok(), "{:?}", res.status);
    assert_eq!(c.status(&[op::root()]).await, Status::BADSESSION);
    assert_eq!(c.wire.compound(2, &[op::destroy_session(id)]).await.status, Status::BADSESSION);
    assert!(w.compound(2, &[op::destroy_client(c.id)]).await.status.is_ok());
    assert_eq!(w.compound(2, &[op::destroy_client(c.id)]).await.status, Status::STALE_CLIENTID);
    assert_eq!(w.compound(2, &[op::destroy_client(ClientId(77))]).await.status, Status::STALE_CLIENTID);
}

/// RFC 8881 18.35.4 and 8.4.2.1: a client that starts anew loses the sessions and state of its former self.
#[tokio::test]
async fn a_reborn_client() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = root(&mut c).await;
    let f = c.create(&root, "f").await;
    assert!(srv.fs.open_count() > 0);
    let reborn = ClientOptions { verifier: Verifier(*b"reborn!!"), ..ClientOptions::named("c") };
    let mut w = srv.wire().await;
    let id = exchange(&mut w, &reborn).await.unwrap();
    assert_ne!(id.client_id, c.id);
    assert!(c.status(&[op::put(&f.fh), op::read(f.stateid, 0, 1)]).await.is_ok(), "until it is confirmed");
    let res = create(&mut w, &reborn, id.client_id, id.sequence_id).await;
    assert!(res.status.is_ok(), "{:?}", res.status);
    assert_eq!(c.status(&[op::root()]).await, Status::BADSESSION);
    // State goes at once or soon.
    for _ in 0..500 {
        if srv.fs.open_count() == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} opens of the former self are left", srv.fs.open_count());
}

/// RFC 8881 18.35.5: another principal cannot take a client over while it holds state.
#[tokio::test]
async fn another_principal() {
    let srv = Srv::start().await;
    let mut c = srv.client_as("c", 1000, 1000, &[]).await;
    let root = root(&mut c).await;
    c.create(&root, "f").await;
    let mut w = srv.wire().await.with_cred(sys(2000, 2000, &[]));
    for verifier in [ClientOptions::default().verifier, Verifier(*b"not mine")] {
        let o = ClientOptions { verifier, ..ClientOptions::named("c") };
        assert_eq!(exchange(&mut w, &o).await.unwrap_err(), Status::CLID_INUSE);
    }
    assert!(c.status(&[op::root()]).await.is_ok());
}

/// RFC 8881 18.51.
#[tokio::test]
async fn reclaim_complete() {
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let again = [ArgOp::ReclaimComplete(ReclaimCompleteArgs { one_fs: false })];
    assert_eq!(c.status(&again).await, Status::COMPLETE_ALREADY);
    assert_eq!(
        c.status(&[ArgOp::ReclaimComplete(ReclaimCompleteArgs { one_fs: true })]).await,
        Status::NOFILEHANDLE,
        "of one filesystem: the current filehandle says which"
    );
    // Before it, nothing new is granted (18.51.3).
    let mut o = ClientOptions::named("early");
    o.reclaim_complete = false;
    let mut early = Client::connect(srv.addr, o).await;
    let owner = early.owner("o");
    let open = op::open_create(owner, share::ACCESS_BOTH, 0, "f", 0o644);
    assert_eq!(early.status(&[op::root(), open.clone()]).await, Status::GRACE);
    assert!(early.status(&[ArgOp::ReclaimComplete(ReclaimCompleteArgs { one_fs: false })]).await.is_ok());
    assert!(early.status(&[op::root(), open]).await.is_ok());
}

/// State belongs to a client: another one's stateids mean nothing.
#[tokio::test]
async fn stateids_of_others() {
    let srv = Srv::start().await;
    let (mut a, mut b) = (srv.client("a").await, srv.client("b").await);
    let root = root(&mut a).await;
    let f = a.create(&root, "f").await;
    assert_eq!(b.status(&[op::put(&f.fh), op::read(f.stateid, 0, 1)]).await, Status::BAD_STATEID);
    assert_eq!(b.status(&[op::put(&f.fh), op::close(f.stateid)]).await, Status::BAD_STATEID);
    let g = open_both(&mut b, &root, "f", "o").await;
    assert!(b.status(&[op::put(&g.fh), op::read(g.stateid, 0, 1)]).await.is_ok());
    assert_eq!(a.status(&[op::put(&g.fh), op::read(g.stateid, 0, 1)]).await, Status::BAD_STATEID);
}

/// Sessions of many clients at once (case B46).
#[tokio::test]
async fn many_clients() {
    let srv = Srv::start().await;
    let mut clients = Vec::new();
    for i in 0..100 {
        let mut c = srv.client(&format!("client {i}")).await;
        c.ok(&mkdir(&format!("d{i}"))).await;
        clients.push(c);
    }
    for (i, c) in clients.iter_mut().enumerate() {
        c.ok(&[op::root(), op::lookup(format!("d{i}")), op::getfh()]).await;
    }
}

/// A whole slot table in flight, as large as there are, answered in any order.
#[tokio::test]
async fn every_slot_at_once() {
    let srv = Srv::start().await;
    let mut o = ClientOptions::named("c");
    o.fore.max_requests = 2048;
    let mut c = Client::connect(srv.addr, o).await;
    let slots = c.session.granted.fore_chan.max_requests;
    assert_eq!(slots, 2048);
    let gate = srv.fault.hold(Call::Make);
    let mut xids = Vec::new();
    for slot in 0..slots {
        xids.push(c.send(slot, &mkdir(&format!("d{slot}"))).await);
    }
    gate.arrived(slots as usize).await;
    gate.open();
    for xid in xids {
        let res = c.wait(xid).await;
        check(&res, 2);
        assert!(res.status.is_ok());
    }
}

/// TEST_STATEID and FREE_STATEID (RFC 8881 18.48, 18.38).
#[tokio::test]
async fn testing_and_freeing_stateids() {
    use dhow_proto::v4::ops::{FreeStateidArgs, TestStateidArgs};
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = root(&mut c).await;
    let f = c.create(&root, "f").await;
    let later = Stateid { seqid: f.stateid.seqid + 5, ..f.stateid };
    let unknown = Stateid { seqid: 1, other: [0x5a; 12] };
    let stateids = vec![f.stateid, unknown, later, Stateid { seqid: 0, ..f.stateid }];
    let res = c.ok(&[ArgOp::TestStateid(TestStateidArgs { stateids })]).await;
    match &res[0] {
        ResOp::TestStateid(Ok(ok)) => {
            let due = [Status::OK, Status::BAD_STATEID, Status::BAD_STATEID, Status::OK];
            assert_eq!(ok.status_codes, due);
        }
        other => panic!("{other:?}"),
    }
    let free = |stateid| [ArgOp::FreeStateid(FreeStateidArgs { stateid })];
    assert_eq!(c.status(&free(f.stateid)).await, Status::LOCKS_HELD, "an open is not freed but closed");
    assert_eq!(c.status(&free(unknown)).await, Status::BAD_STATEID);
    c.close(&f).await;
    assert_eq!(c.status(&free(f.stateid)).await, Status::BAD_STATEID);
}

/// RFC 8881 18.48, 18.38, 8.2.4: stateids of locks, special ones, older ones; nothing of it changes anything.
#[tokio::test]
async fn testing_every_kind_of_stateid() {
    use dhow_proto::v4::LockType;
    use dhow_proto::v4::ops::{FreeStateidArgs, LockRes, TestStateidArgs};
    let srv = Srv::start().await;
    let mut c = srv.client("c").await;
    let root = root(&mut c).await;
    let f = c.create(&root, "f").await;
    let lock = op::lock_new(f.stateid, c.owner("l"), LockType::WRITE, 0, 10);
    let l = match c.ok(&[op::put(&f.fh), lock]).await.pop() {
        Some(ResOp::Lock(LockRes::Ok(l))) => l,
        other => panic!("{other:?}"),
    };
    let l = match c.ok(&[op::put(&f.fh), op::lock_more(l, LockType::WRITE, 20, 10)]).await.pop() {
        Some(ResOp::Lock(LockRes::Ok(l))) => l,
        other => panic!("{other:?}"),
    };
    let older = Stateid { seqid: l.seqid - 1, ..l };
    let stateids = vec![
        l,
        older,
        Stateid { seqid: 0, ..l },
        Stateid::ANONYMOUS,
        Stateid::READ_BYPASS,
        Stateid::CURRENT,
        Stateid::INVALID,
    ];
    let expect = vec![
        Status::OK,
        Status::OLD_STATEID,
        Status::OK,
        Status::BAD_STATEID,
        Status::BAD_STATEID,
        Status::BAD_STATEID,
        Status::BAD_STATEID,
    ];
    for _ in 0..2 {
        match c.ok(&[ArgOp::TestStateid(TestStateidArgs { stateids: stateids.clone() })]).await.pop() {
            Some(ResOp::TestStateid(Ok(ok))) => assert_eq!(ok.status_codes, expect),
            other => panic!("{other:?}"),
        }
    }
    match c.ok(&[ArgOp::TestStateid(TestStateidArgs { stateids: vec![] })]).await.pop() {
        Some(ResOp::TestStateid(Ok(ok))) => assert!(ok.status_codes.is_empty()),
        other => panic!("{other:?}"),
    }
    let mut other = srv.client("other").await;
    match other.ok(&[ArgOp::TestStateid(TestStateidArgs { stateids: vec![l] })]).await.pop() {
        Some(ResOp::TestStateid(Ok(ok))) => assert_eq!(ok.status_codes, [Status::BAD_STATEID], "another client's"),
        other => panic!("{other:?}"),
    }
    let free = |stateid| [ArgOp::FreeStateid(FreeStateidArgs { stateid })];
    assert_eq!(other.status(&free(l)).await, Status::BAD_STATEID);
    assert_eq!(c.status(&free(older)).await, Status::OLD_STATEID);
    assert_eq!(c.status(&free(l)).await, Status::LOCKS_HELD);
    for special in [Stateid::ANONYMOUS, Stateid::READ_BYPASS, Stateid::INVALID] {
        assert_eq!(c.status(&free(special)).await, Status::BAD_STATEID);
    }
    c.close(&f).await;
    assert_eq!(c.status(&free(l)).await, Status::BAD_STATEID, "CLOSE freed it");
}

/// Cases B26 and K23: what tells retries apart is the session's slot, under every flavor of security: two clients on one
/// address with one transaction number each get their own reply, and a retry under that number on a new connection
/// repeats nothing.
#[tokio::test]
async fn transaction_numbers_mean_nothing() {
    let srv = Srv::start().await;
    for (n, cred) in [dhow_rpc::Credential::None, sys(0, 0, &[]), sys(1000, 1000, &[5, 6])].into_iter().enumerate() {
        let over = async |name: &str| {
            let wire = srv.wire().await.with_cred(cred.clone());
            Client::over(wire, ClientOptions::named(format!("{name} {n}"))).await
        };
        let (mut a, mut b) = (over("a").await, over("b").await);
        let before = srv.fault.count(Call::Make);
        let opaque = cred.to_opaque().unwrap();
        let mut first = Vec::new();
        let requests = [a.sequenced(0, &mkdir(&format!("a{n}"))), b.sequenced(0, &mkdir(&format!("b{n}")))];
        for (c, ops) in [&mut a, &mut b].into_iter().zip(&requests) {
            let args = dhow_testkit::wire::compound_bytes(2, ops);
            let (prog, vers, proc) = (dhow_proto::NFS_PROGRAM, dhow_proto::v4::VERSION, dhow_proto::v4::PROC_COMPOUND);
            // Twice on one connection, and once on a new one: all under the same number.
            c.wire.send_call_as(7, opaque.clone(), prog, vers, proc, &args).await;
            let reply = c.wire.compound_reply(2, 7).await;
            assert!(reply.status.is_ok(), "{reply:?}");
            c.wire.send_call_as(7, opaque.clone(), prog, vers, proc, &args).await;
            assert_eq!(c.wire.compound_reply(2, 7).await, reply);
            c.wire = srv.wire().await.with_cred(cred.clone());
            c.wire.send_call_as(7, opaque.clone(), prog, vers, proc, &args).await;
            assert_eq!(c.wire.compound_reply(2, 7).await, reply, "byte for byte");
            first.push(reply);
        }
        assert_ne!(first[0], first[1]);
        assert_eq!(srv.fault.count(Call::Make), before + 2, "each was done once");
    }
}

/// RFC 8881 18.36.3: what a session does not have is not granted: no persistent replies, no RDMA; a back channel if the
/// client wants one.
#[tokio::test]
async fn flags_of_a_session() {
    use dhow_proto::v4::ops::create_session as flag;
    let srv = Srv::start().await;
    for (n, (asked, due)) in [
        (0, 0),
        (flag::CONN_BACK_CHAN, flag::CONN_BACK_CHAN),
        (flag::PERSIST, 0),
        (flag::CONN_RDMA | flag::CONN_BACK_CHAN, flag::CONN_BACK_CHAN),
        (flag::PERSIST | flag::CONN_RDMA | flag::CONN_BACK_CHAN, flag::CONN_BACK_CHAN),
    ]
    .into_iter()
    .enumerate()
    {
        let o = ClientOptions { session_flags: asked, ..ClientOptions::named(format!("c{n}")) };
        let c = Client::connect(srv.addr, o).await;
        assert_eq!(c.session.granted.flags, due, "asked for {asked:#x}");
    }
}

/// RFC 8881 18.37.3: within its own session last and nowhere else, within another one anywhere; from a connection that is
/// not the session's not at all.
#[tokio::test]
async fn where_a_session_may_be_destroyed() {
    let srv = Srv::start().await;
    let o = ClientOptions::named("c");
    let mut c = Client::connect(srv.addr, o.clone()).await;
    let destroy = |c: &Client| op::destroy_session(c.session.id());
    let own = destroy(&c);
    assert_eq!(last(&c.run(&[own.clone(), op::root()]).await), (OpNum::DESTROY_SESSION, Status::NOT_ONLY_OP));
    let mut stranger = srv.wire().await;
    let res = stranger.compound(2, std::slice::from_ref(&own)).await;
    assert_eq!(last(&res), (OpNum::DESTROY_SESSION, Status::CONN_NOT_BOUND_TO_SESSION));
    assert!(c.status(&[op::root()]).await.is_ok(), "it is still there");
    // Another session of the same client, on the same connection: destroyed in the middle of a COMPOUND of the first.
    let next = c.exchanged.sequence_id.wrapping_add(1);
    let second = session_of(&create(&mut c.wire, &o, c.id, next).await);
    let res = c.ok(&[op::root(), op::destroy_session(second), op::getfh()]).await;
    assert_eq!(res.len(), 3);
    assert_eq!(last(&c.run(&[op::destroy_session(second)]).await), (OpNum::DESTROY_SESSION, Status::BADSESSION));
    c.ok(&[op::root(), own]).await;
    assert_eq!(c.status(&[op::root()]).await, Status::BADSESSION);
}
