//! The back channel (RFC 8881 2.10.3.1, 18.33, 18.34, 20.9), tried by the ends of asynchronous copies.

use crate::common::Srv;
use crate::copy::{begin, big, offloaded, slow};
use dhow_proto::v4::ops::{
    BackchannelCtlArgs, BindConnToSessionArgs, CallbackSec, ChannelDirFromClient, ChannelDirFromServer, GssCbHandles,
    seq4_status,
};
use dhow_proto::v4::{ArgOp, ResOp, Status};
use dhow_rpc::{AuthSys, Credential};
use dhow_testkit::fault::Call;
use dhow_testkit::wire::{Callbacks, Client, ClientOptions, Wire, op};

const DOWN: u32 = seq4_status::CB_PATH_DOWN | seq4_status::CB_PATH_DOWN_SESSION;

async fn flags(c: &mut Client) -> u32 {
    match c.run(&[]).await.results.pop() {
        Some(ResOp::Sequence(Ok(ok))) => ok.status_flags,
        other => panic!("{other:?}"),
    }
}

async fn bind(wire: &mut Wire, c: &Client, dir: ChannelDirFromClient) -> ChannelDirFromServer {
    let args = BindConnToSessionArgs { session_id: c.session.id(), dir, use_rdma: false };
    match wire.compound(2, &[ArgOp::BindConnToSession(args)]).await.results.pop() {
        Some(ResOp::BindConnToSession(Ok(ok))) => {
            assert!(!ok.use_rdma);
            ok.dir
        }
        other => panic!("{other:?}"),
    }
}

/// RFC 8881 18.34.3: what is asked for, and what may be had.
#[tokio::test]
async fn directions() {
    let srv = Srv::start().await;
    let c = srv.client("c").await;
    for (dir, due) in [
        (ChannelDirFromClient::FORE, &[ChannelDirFromServer::FORE][..]),
        (ChannelDirFromClient::BACK, &[ChannelDirFromServer::BACK]),
        (ChannelDirFromClient::FORE_OR_BOTH, &[ChannelDirFromServer::FORE, ChannelDirFromServer::BOTH]),
        (ChannelDirFromClient::BACK_OR_BOTH, &[ChannelDirFromServer::BACK, ChannelDirFromServer::BOTH]),
    ] {
        let mut w = srv.wire().await;
        assert!(due.contains(&bind(&mut w, &c, dir).await), "{dir:?}");
        // The same again is no error.
        assert!(due.contains(&bind(&mut w, &c, dir).await), "{dir:?}");
    }
    // RDMA is asked for and not to be had.
    let mut w = srv.wire().await;
    let rdma = BindConnToSessionArgs { session_id: c.session.id(), dir: ChannelDirFromClient::FORE, use_rdma: true };
    match w.compound(2, &[ArgOp::BindConnToSession(rdma)]).await.results.pop() {
        Some(ResOp::BindConnToSession(Ok(ok))) => assert!(!ok.use_rdma),
        other => panic!("{other:?}"),
    }
    let mut w = srv.wire().await;
    let odd = BindConnToSessionArgs { session_id: c.session.id(), dir: ChannelDirFromClient(9), use_rdma: false };
    assert!(!w.compound(2, &[ArgOp::BindConnToSession(odd)]).await.status.is_ok());
}

/// RFC 8881 18.46.3: the client learns that its back channel is gone, until it has one again; then the callback that
/// waited comes over the new connection (case K02).
#[tokio::test]
async fn a_lost_path_is_told_and_replaced() {
    let (srv, gate) = slow(|_| {}).await;
    let mut c = srv.client("c").await;
    assert_eq!(flags(&mut c).await & DOWN, 0);
    let (src, dst) = big(&srv, &mut c).await;
    let id = begin(&mut c, &src, &dst).await;
    c.wire = srv.wire().await;
    let mut seen = 0;
    for _ in 0..500 {
        seen = flags(&mut c).await & DOWN;
        if seen != 0 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_ne!(seen, 0, "a client that had a back channel is told that it has none");
    gate.open();
    let mut wire = srv.wire().await;
    let dir = bind(&mut wire, &c, ChannelDirFromClient::BACK_OR_BOTH).await;
    assert_ne!(dir, ChannelDirFromServer::FORE);
    c.wire = wire;
    assert_eq!(flags(&mut c).await & DOWN, 0);
    let (_, _, done) = offloaded(&mut c).await;
    assert_eq!(done.stateid, id);
}

/// A session that never had one is not told that it is missing.
#[tokio::test]
async fn none_wanted() {
    let srv = Srv::start().await;
    let o = ClientOptions { session_flags: 0, ..ClientOptions::named("c") };
    let mut c = Client::connect(srv.addr, o).await;
    assert_eq!(c.session.granted.flags & dhow_proto::v4::ops::create_session::CONN_BACK_CHAN, 0);
    assert_eq!(flags(&mut c).await & seq4_status::CB_PATH_DOWN, 0);
}

/// RFC 8881 18.33: another program and another credential from now on.
#[tokio::test]
async fn backchannel_ctl() {
    let (srv, gate) = slow(|_| {}).await;
    let mut c = srv.client("c").await;
    let (src, dst) = big(&srv, &mut c).await;
    let sys = AuthSys { stamp: 5, machine: "client".into(), uid: 77, gid: 88, gids: Default::default() };
    let args = BackchannelCtlArgs { cb_program: 0x4000_1234, sec_parms: vec![CallbackSec::Sys(sys.clone())] };
    c.ok(&[ArgOp::BackchannelCtl(args)]).await;
    // A GSS handle that is not there: MUST be NOENT, and nothing is changed by it.
    let gss = GssCbHandles { service: 1, handle_from_server: "none".into(), handle_from_client: "none".into() };
    let args = BackchannelCtlArgs { cb_program: 0x4000_9999, sec_parms: vec![CallbackSec::Gss(gss)] };
    assert_eq!(c.status(&[ArgOp::BackchannelCtl(args)]).await, Status::NOENT);
    begin(&mut c, &src, &dst).await;
    gate.open();
    let (call, ..) = offloaded(&mut c).await;
    let body = call.header.body.expect("RPC version 2");
    assert_eq!((body.prog, body.vers), (0x4000_1234, 1));
    assert_eq!(Credential::parse(body.cred), Ok(Credential::Sys(sys)));
}

/// RFC 8881 20.9, 2.10.6.1: sequence ids of a slot grow by one; no slot beyond what the client offers; one slot is
/// enough for many callbacks.
#[tokio::test]
async fn slots_of_the_back_channel() {
    for slots in [1, 4] {
        let (srv, gate) = slow(|_| {}).await;
        let mut o = ClientOptions::named("c");
        o.back.max_requests = slots;
        let mut c = Client::connect(srv.addr, o).await;
        let (src, dst) = big(&srv, &mut c).await;
        let mut ids = Vec::new();
        for _ in 0..6 {
            ids.push(begin(&mut c, &src, &dst).await);
        }
        c.wire.on_callback = Callbacks::Keep;
        gate.open();
        srv.fault.clear(Call::CopyRange);
        let mut due = vec![1; slots as usize];
        while !ids.is_empty() {
            let (call, sequence, done) = offloaded(&mut c).await;
            assert!(sequence.slot_id < slots && sequence.highest_slot_id < slots, "{sequence:?}");
            assert_eq!(sequence.sequence_id, due[sequence.slot_id as usize], "slot {}", sequence.slot_id);
            assert_eq!(sequence.session_id, c.session.id());
            due[sequence.slot_id as usize] += 1;
            ids.retain(|id| *id != done.stateid);
            c.wire.answer(&call).await;
        }
    }
}

/// A client that answers nonsense, or an error, to its callbacks loses nothing but them.
#[tokio::test]
async fn odd_answers() {
    use dhow_proto::v4::cb::{CbCompoundRes, CbResOp};
    use dhow_rpc::{AcceptStat, ReplyHeader, accepted_reply};
    use dhow_xdr::Encode;
    let results =
        |status| CbCompoundRes { status, tag: Default::default(), results: vec![CbResOp::Sequence(Err(status))] };
    let with = |xid, res: CbCompoundRes| [ReplyHeader::success(xid).to_bytes(), res.to_bytes()].concat();
    type Answer = Box<dyn Fn(u32) -> Vec<u8>>;
    let answers: Vec<Answer> = vec![
        Box::new(move |xid| with(xid, results(Status::BADSESSION))),
        Box::new(move |xid| with(xid, results(Status::SEQ_MISORDERED))),
        Box::new(move |xid| with(xid, CbCompoundRes { status: Status::OK, tag: Default::default(), results: vec![] })),
        Box::new(|xid| accepted_reply(xid, AcceptStat::PROG_UNAVAIL).to_bytes().to_vec()),
        Box::new(|xid| accepted_reply(xid, AcceptStat::GARBAGE_ARGS).to_bytes().to_vec()),
        Box::new(|xid| [&ReplyHeader::success(xid).to_bytes()[..], &[0xff; 40]].concat()),
        Box::new(|xid| ReplyHeader::success(xid).to_bytes().to_vec()),
    ];
    for (i, answer) in answers.into_iter().enumerate() {
        let (srv, gate) = slow(|_| {}).await;
        let mut c = srv.client("c").await;
        let (src, dst) = big(&srv, &mut c).await;
        c.wire.on_callback = Callbacks::Keep;
        let id = begin(&mut c, &src, &dst).await;
        gate.open();
        let (call, ..) = offloaded(&mut c).await;
        c.wire.send_record(&answer(call.header.xid)).await.unwrap();
        for _ in 0..5 {
            c.ok(&[op::root()]).await;
        }
        match c.run(&[op::offload_status(id)]).await.results.pop() {
            Some(ResOp::OffloadStatus(Ok(now))) => assert_eq!(now.complete, [Status::OK], "answer {i}"),
            Some(ResOp::OffloadStatus(Err(status))) => assert_eq!(status, Status::BAD_STATEID, "answer {i}"),
            other => panic!("{other:?}"),
        }
    }
}
