//! SEQUENCE, bound connections, the back channel.

use crate::common::*;
use bytes::Bytes;
use dhow_proto::v4::ops::{
    BackchannelCtlArgs, BindConnToSessionArgs, CallbackSec, ChannelDirFromClient, ChannelDirFromServer,
    CreateSessionArgs, GssCbHandles, seq4_status,
};
use dhow_state::*;

fn reply(s: &'static str) -> Reply {
    Reply::from([Bytes::from_static(s.as_bytes())])
}

#[test]
fn a_retry_on_another_connection_gets_the_same_buffers() {
    // RFC 8881 2.10.6.2, case B25.
    let s = server();
    let mut c = C::new(&s, "c", t(0));
    let args = c.args(0);
    let token = c.begin(0, t(0)).unwrap();
    assert_eq!((token.result().sequence_id, token.result().slot_id), (1, 0));
    let busy = s.sequence(ConnId(77), &args, 1, t(0));
    assert!(matches!(busy, Ok(Sequence::InProgress)));
    let answer = reply("answer");
    token.complete(answer.clone(), t(0));
    for _ in 0..3 {
        match s.sequence(ConnId(77), &args, 1, t(0)) {
            Ok(Sequence::Replay(r)) => assert!(std::ptr::eq(r[0].as_ptr(), answer[0].as_ptr()), "shared, not copied"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(s.sequence(c.conn, &args, 2, t(0)).unwrap_err(), Status::SEQ_FALSE_RETRY);
}

#[test]
fn a_request_whose_task_died_frees_its_slot() {
    // Case K20.
    let s = server();
    let mut c = C::new(&s, "c", t(0));
    let args = c.args(3);
    drop(c.begin(3, t(0)).unwrap());
    assert!(matches!(s.sequence(c.conn, &args, 1, t(0)), Ok(Sequence::Uncached(ok)) if ok.slot_id == 3));
    c.begin(3, t(0)).unwrap().complete(reply("x"), t(0));
    assert!(c.me.is_expired(t(LEASE + 1)), "no request counts as running");
}

#[test]
fn a_reply_that_was_not_to_be_kept_is_not() {
    // RFC 8881 2.10.6.1.3.
    let s = server();
    let c = C::new(&s, "c", t(0));
    let args = dhow_proto::v4::ops::SequenceArgs { cache_this: false, ..c.args(0) };
    let Ok(Sequence::Fresh(token)) = s.sequence(c.conn, &args, 5, t(0)) else { panic!() };
    assert_eq!(token.max_reply(), (1 << 20, Status::REP_TOO_BIG));
    token.complete(reply("big"), t(0));
    assert!(matches!(s.sequence(c.conn, &args, 5, t(0)), Ok(Sequence::Uncached(_))));
    assert_eq!(s.counts().reply_cache, 0);
}

#[test]
fn refused_requests_renew_nothing_and_bind_nothing() {
    // RFC 8881 18.46.3, 2.10.6.1.2.
    let s = server();
    let c = C::new(&s, "c", t(0));
    let mut args = c.args(0);
    args.sequence_id = 7;
    assert_eq!(s.sequence(ConnId(50), &args, 1, t(80)).unwrap_err(), Status::SEQ_MISORDERED);
    let wrong = dhow_proto::v4::ops::SequenceArgs { session_id: SessionId([9; 16]), ..args };
    assert_eq!(s.sequence(ConnId(50), &wrong, 1, t(80)).unwrap_err(), Status::BADSESSION);
    assert_eq!(s.destroy_session(ConnId(50), c.session).unwrap_err(), Status::CONN_NOT_BOUND_TO_SESSION);
}

#[test]
fn a_session_dies_on_a_connection_of_its_own_or_when_it_has_none() {
    // RFC 8881 18.37.3.
    let s = server();
    let mut c = C::new(&s, "c", t(0));
    let running = c.begin(0, t(0)).unwrap();
    assert_eq!(s.destroy_session(ConnId(50), c.session).unwrap_err(), Status::CONN_NOT_BOUND_TO_SESSION);
    s.conn_closed(c.conn);
    s.destroy_session(ConnId(50), c.session).unwrap();
    assert_eq!(s.destroy_session(ConnId(50), c.session).unwrap_err(), Status::BADSESSION);
    assert_eq!(c.begin(1, t(0)).unwrap_err(), Status::BADSESSION);
    running.complete(reply("late"), t(0));
    assert_eq!(s.counts().sessions, 0);
    assert_eq!(s.counts().reply_cache_promised, 0);
}

#[test]
fn connections_bind_by_use_and_by_request() {
    // RFC 8881 18.34.3, 2.10.3.1.
    let s = server();
    let c = C::new(&s, "c", t(0));
    let bind = |conn, dir| {
        let args = BindConnToSessionArgs { session_id: c.session, dir, use_rdma: false };
        s.bind_conn(conn, &args, t(0)).map(|ok| ok.dir)
    };
    assert_eq!(bind(ConnId(1), ChannelDirFromClient::FORE), Ok(ChannelDirFromServer::FORE));
    assert_eq!(bind(ConnId(1), ChannelDirFromClient::FORE_OR_BOTH), Ok(ChannelDirFromServer::BOTH));
    assert_eq!(bind(ConnId(1), ChannelDirFromClient::FORE), Err(Status::INVAL), "takes the back channel away");
    assert_eq!(bind(ConnId(2), ChannelDirFromClient::BACK), Ok(ChannelDirFromServer::BACK));
    assert_eq!(bind(ConnId(3), ChannelDirFromClient::BACK_OR_BOTH), Ok(ChannelDirFromServer::BOTH));
    assert_eq!(bind(ConnId(4), ChannelDirFromClient(5)), Err(Status::INVAL));
    let args =
        BindConnToSessionArgs { session_id: SessionId([1; 16]), dir: ChannelDirFromClient::FORE, use_rdma: false };
    assert_eq!(s.bind_conn(ConnId(4), &args, t(0)).unwrap_err(), Status::BADSESSION);
}

#[test]
fn a_lost_back_channel_is_told_until_one_is_bound() {
    // RFC 8881 18.46.3.
    let s = server();
    let mut c = C::new(&s, "c", t(0));
    let flags = |c: &mut C| {
        let token = c.begin(0, t(0)).unwrap();
        let flags = token.result().status_flags;
        token.complete(reply(""), t(0));
        flags
    };
    assert_eq!(flags(&mut c), 0);
    s.conn_closed(c.conn);
    c.conn = ConnId(500);
    assert_eq!(flags(&mut c), seq4_status::CB_PATH_DOWN | seq4_status::CB_PATH_DOWN_SESSION);
    assert_eq!(s.callback(c.id, None).unwrap_err(), CbUnavailable::PathDown);
    let dir = ChannelDirFromClient::FORE_OR_BOTH;
    s.bind_conn(c.conn, &BindConnToSessionArgs { session_id: c.session, dir, use_rdma: false }, t(0)).unwrap();
    assert_eq!(flags(&mut c), 0);
}

#[test]
fn a_client_that_never_wanted_callbacks_is_not_told_of_their_loss() {
    let s = server();
    let e = s.exchange_id(&exchange("c", 1, 0), t(0)).unwrap();
    let args = CreateSessionArgs { flags: 0, ..session_args(e.client, 1) };
    let made = s.create_session(ConnId(1), 1, &args, &who(0), t(0)).unwrap();
    let args = dhow_proto::v4::ops::SequenceArgs {
        session_id: made.ok.session_id,
        sequence_id: 1,
        slot_id: 0,
        highest_slot_id: 0,
        cache_this: false,
    };
    let Ok(Sequence::Fresh(token)) = s.sequence(ConnId(1), &args, 1, t(0)) else { panic!() };
    assert_eq!(token.result().status_flags, 0);
    assert_eq!(s.callback(e.client, None).unwrap_err(), CbUnavailable::PathDown);
}

#[test]
fn a_callback_goes_out_again_with_the_same_sequence_id() {
    // RFC 8881 2.10.6.2, case K02.
    let s = server();
    let c = C::new(&s, "c", t(0));
    let dir = ChannelDirFromClient::BACK;
    s.bind_conn(ConnId(2), &BindConnToSessionArgs { session_id: c.session, dir, use_rdma: false }, t(0)).unwrap();
    let mut cb = s.callback(c.id, Some(c.session)).unwrap();
    assert_eq!((cb.conn(), cb.slot(), cb.sequence_id(), cb.program()), (c.conn, 0, 1, 0x4000_0000));
    assert!(cb.retry());
    assert_eq!((cb.conn(), cb.slot(), cb.sequence_id()), (ConnId(2), 0, 1));
    assert!(!cb.retry(), "no third connection");
    cb.answered();
    assert!(!c.s.session(c.session).unwrap().has_callback_path());
    assert_eq!(s.callback(ClientId(1), None).unwrap_err(), CbUnavailable::NoClient);
}

#[test]
fn callback_slots_are_bounded_by_what_the_client_offers() {
    let s = server();
    let c = C::new(&s, "c", t(0));
    let all: Vec<_> = (0..4).map(|_| s.callback(c.id, None).unwrap()).collect();
    assert_eq!(s.callback(c.id, None).unwrap_err(), CbUnavailable::Busy);
    all.into_iter().for_each(CbToken::answered);
    let again = s.callback(c.id, None).unwrap();
    assert_eq!(again.sequence_id(), 2);
}

#[test]
fn backchannel_ctl_changes_the_program() {
    // RFC 8881 18.33.
    let s = server();
    let c = C::new(&s, "c", t(0));
    let session = s.session(c.session).unwrap();
    let gss = GssCbHandles { service: 1, handle_from_server: Bytes::new(), handle_from_client: Bytes::new() };
    let args = BackchannelCtlArgs { cb_program: 7, sec_parms: vec![CallbackSec::Gss(gss)] };
    assert_eq!(s.backchannel_ctl(&session, &args), Err(Status::NOENT));
    let args = BackchannelCtlArgs { cb_program: 7, sec_parms: vec![CallbackSec::None] };
    s.backchannel_ctl(&session, &args).unwrap();
    let cb = s.callback(c.id, None).unwrap();
    assert_eq!(cb.program(), 7);
    cb.answered();
}

#[test]
fn a_session_that_got_less_than_it_wanted_grows_by_use() {
    // RFC 8881 2.10.6.1; capability: slots up to 2048.
    let small = Limits { cached_bytes: 8 * 64 * (4096 + 256), slots_min: 4, ..limits() };
    let s = server_with(small, &[]);
    let e = s.exchange_id(&exchange("c", 1, 0), t(0)).unwrap();
    let args = CreateSessionArgs { fore_chan: channel(1024), ..session_args(e.client, 1) };
    let made = s.create_session(ConnId(1), 1, &args, &who(0), t(0)).unwrap();
    assert_eq!(made.ok.fore_chan.max_requests, 64, "an eighth of the memory");
    let mut target = 63;
    for seq in 1..=10 {
        let args = dhow_proto::v4::ops::SequenceArgs {
            session_id: made.ok.session_id,
            sequence_id: seq,
            slot_id: 0,
            highest_slot_id: target,
            cache_this: false,
        };
        let Ok(Sequence::Fresh(token)) = s.sequence(ConnId(1), &args, 1, t(0)) else { panic!() };
        let ok = token.result();
        assert!(ok.target_highest_slot_id >= target && ok.highest_slot_id >= ok.target_highest_slot_id);
        target = ok.target_highest_slot_id;
        token.complete(reply(""), t(0));
    }
    assert!(s.counts().reply_cache_promised <= 8 * 64 * (4096 + 256));
}

#[test]
fn many_sessions_share_the_reply_memory() {
    let s = server_with(Limits { cached_bytes: 1 << 20, slots_min: 2, sessions_per_client: 64, ..limits() }, &[]);
    let e = s.exchange_id(&exchange("c", 1, 0), t(0)).unwrap();
    let mut last = u32::MAX;
    for i in 1..=64 {
        let args = CreateSessionArgs { fore_chan: channel(1024), ..session_args(e.client, i) };
        let slots = s.create_session(ConnId(1), 1, &args, &who(0), t(0)).unwrap().ok.fore_chan.max_requests;
        assert!(slots >= 2 && slots <= last);
        last = slots;
    }
    assert_eq!(last, 2);
    // A client that wants no replies kept gets no slots for nothing either.
    let other = s.exchange_id(&exchange("d", 1, 0), t(0)).unwrap();
    let fore = dhow_proto::v4::ops::ChannelAttrs { max_response_size_cached: 0, ..channel(2048) };
    let args = CreateSessionArgs { fore_chan: fore, ..session_args(other.client, 1) };
    assert!(s.create_session(ConnId(1), 1, &args, &who(0), t(0)).unwrap().ok.fore_chan.max_requests < 2048);
    let args = session_args(e.client, 65);
    assert_eq!(s.create_session(ConnId(1), 1, &args, &who(0), t(0)).unwrap_err(), Status::NOSPC);
}
