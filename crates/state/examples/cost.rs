//! What the hot calls of the state cost: nanoseconds each, one thread and two.
//!
//! `cargo run --release -p dhow-state --example cost`

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::print_stdout)]

use bytes::Bytes;
use dhow_proto::v4::ops::{CallbackSec, ChannelAttrs, CreateSessionArgs, SequenceArgs};
use dhow_state::*;
use std::sync::Arc;
use std::time::Instant;

const N: u32 = 1_000_000;

fn client(s: &State<u32>, name: &str) -> (Arc<Client>, SessionId) {
    let now = Time::default();
    let owner = ClientOwnerId(Bytes::copy_from_slice(name.as_bytes()));
    let principal = Principal(Bytes::new());
    let id = ExchangeId { owner, verifier: Verifier::default(), principal: principal.clone(), update: false };
    let id = s.exchange_id(&id, now).unwrap().client;
    let chan = ChannelAttrs {
        header_pad_size: 0,
        max_request_size: 1 << 20,
        max_response_size: 1 << 20,
        max_response_size_cached: 4096,
        max_operations: 16,
        max_requests: 64,
        rdma_ird: vec![],
    };
    let args = CreateSessionArgs {
        client_id: id,
        sequence: 1,
        flags: 2,
        fore_chan: chan.clone(),
        back_chan: chan,
        cb_program: 1,
        sec_parms: vec![CallbackSec::None],
    };
    let made = s.create_session(ConnId(1), 2, &args, &principal, now).unwrap();
    let c = s.client(id).unwrap();
    c.recorded(dhow_state::Holds::ALL);
    let _ = s.reclaim_complete(&c).unwrap();
    (c, made.ok.session_id)
}

fn report(what: &str, begun: Instant) {
    println!("{what:<40} {:>7.1} ns", begun.elapsed().as_nanos() as f64 / f64::from(N));
}

fn hot(s: &State<u32>, name: &str, print: bool) {
    let (c, session_id) = client(s, name);
    let reply = Reply::from([Bytes::from_static(&[0; 200])]);
    let begun = Instant::now();
    for i in 0..N {
        let args =
            SequenceArgs { session_id, sequence_id: i + 1, slot_id: 0, highest_slot_id: 0, cache_this: i % 2 == 0 };
        let Ok(Sequence::Fresh(t)) = s.sequence(ConnId(1), &args, 1, Time(u64::from(i))) else { panic!() };
        t.complete(reply.clone(), Time(u64::from(i)));
    }
    if print {
        report("SEQUENCE and its completion", begun);
    }
    let (f, o) = (FileKey::new(name.as_bytes()), Bytes::from_static(b"owner"));
    let req = OpenRequest { file: &f, owner: &o, access: Share::BOTH, deny: Share::NONE, claim: Claim::New };
    let stateid = s.plan_open(&c, &req, Time::default()).unwrap().commit(1).unwrap().stateid;
    let begun = Instant::now();
    for _ in 0..N {
        drop(s.begin_io(&c, &f, &stateid, IoKind::Read, Time::default()).unwrap());
    }
    if print {
        report("leave for a READ, and giving it back", begun);
    }
    let begun = Instant::now();
    for i in 0..N {
        let f = FileKey::new(&i.to_be_bytes());
        let req = OpenRequest { file: &f, ..req.clone() };
        let sid = s.plan_open(&c, &req, Time::default()).unwrap().commit(1).unwrap().stateid;
        drop(s.plan_close(&c, &f, &sid).unwrap().commit());
    }
    if print {
        report("OPEN and CLOSE of a file", begun);
    }
}

fn main() {
    let s = State::new(Limits::default(), &Identity { instance: 1, secret: [7; 16] }, vec![], Time::default());
    println!("one thread");
    hot(&s, "a", true);
    println!("two threads, two clients");
    std::thread::scope(|t| {
        t.spawn(|| hot(&s, "b", false));
        hot(&s, "c", true);
    });
}
