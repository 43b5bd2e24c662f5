//! Headers, credentials and record marking (RFC 5531; cases B22, B37).

use bytes::Bytes;
use dhow_rpc::auth::MAX_GIDS;
use dhow_rpc::message::is_call;
use dhow_rpc::record::{MAX_FRAGMENTS, Next};
use dhow_rpc::{
    AcceptStat, AuthStat, AuthSys, CallHeader, Credential, Flavor, OpaqueAuth, RecordError, RecordReader, ReplyBody,
    ReplyHeader, accepted_reply, denied_reply, record_mark,
};
use dhow_xdr::{Decode, Encode, Error, Reader, Writer};
use proptest::prelude::*;

fn sys(groups: u32) -> AuthSys {
    AuthSys { stamp: 1, machine: Bytes::from_static(b"host"), uid: 1000, gid: 100, gids: (0..groups).collect() }
}

#[test]
fn call_in_exact_bytes() {
    // RFC 5531 section 9 and appendix A.
    let header = CallHeader::new(0x1234, 100003, 4, 1, &Credential::Sys(sys(2))).unwrap();
    let expected: &[u8] = &[
        0, 0, 0x12, 0x34, 0, 0, 0, 0, 0, 0, 0, 2, // xid, CALL, version
        0, 1, 0x86, 0xa3, 0, 0, 0, 4, 0, 0, 0, 1, // NFS 4 COMPOUND
        0, 0, 0, 1, 0, 0, 0, 32, // AUTH_SYS, 32 bytes
        0, 0, 0, 1, 0, 0, 0, 4, b'h', b'o', b's', b't', // stamp, machine
        0, 0, 3, 232, 0, 0, 0, 100, // uid, gid
        0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, // gids
        0, 0, 0, 0, 0, 0, 0, 0, // verifier
    ];
    assert_eq!(header.to_bytes(), expected);
    let back = CallHeader::from_bytes(Bytes::from_static(expected)).unwrap();
    assert_eq!(back, header);
    assert_eq!(Credential::parse(back.body.unwrap().cred), Ok(Credential::Sys(sys(2))));
    assert_eq!(is_call(&Reader::new(Bytes::from_static(expected))), Some(true));
}

#[test]
fn replies_in_exact_bytes() {
    let ok = [0, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(ReplyHeader::success(9).to_bytes(), &ok[..]);
    let denied = [0, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 5];
    assert_eq!(denied_reply(9, AuthStat::TOOWEAK).to_bytes(), &denied[..]);
}

#[test]
fn every_reply_state_round_trips() {
    let verf = OpaqueAuth { flavor: Flavor::NONE, body: Bytes::from_static(b"STARTTLS") };
    let mut replies = vec![
        ReplyHeader { xid: 1, body: ReplyBody::ProgMismatch { verf: verf.clone(), low: 3, high: 4 } },
        ReplyHeader { xid: 2, body: ReplyBody::RpcMismatch { low: 2, high: 2 } },
        ReplyHeader { xid: 3, body: ReplyBody::Accepted { verf, stat: AcceptStat::SUCCESS } },
        accepted_reply(4, AcceptStat(77)),
    ];
    replies.extend(AcceptStat::ALL.iter().filter(|s| **s != AcceptStat::PROG_MISMATCH).map(|s| accepted_reply(5, *s)));
    replies.extend(AuthStat::ALL.iter().map(|s| denied_reply(6, *s)));
    for reply in replies {
        assert_eq!(ReplyHeader::from_bytes(reply.to_bytes()), Ok(reply.clone()));
        let success = ReplyBody::Accepted { verf: OpaqueAuth::NONE, stat: AcceptStat::SUCCESS };
        assert_eq!(reply.is_success(), reply.body == success || reply.xid == 3);
    }
}

#[test]
fn other_rpc_version_is_seen_without_its_body() {
    let call = Bytes::from_static(&[0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 3, 1, 2]);
    let header = CallHeader::decode(&mut Reader::new(call)).unwrap();
    assert_eq!((header.xid, header.rpcvers, header.body), (7, 3, None));
}

#[test]
fn sixteen_groups_but_not_seventeen() {
    // Case B37.
    let full = Credential::Sys(sys(MAX_GIDS as u32));
    assert_eq!(Credential::parse(full.to_opaque().unwrap()), Ok(full));
    let over = OpaqueAuth { flavor: Flavor::SYS, body: sys(17).to_bytes() };
    assert_eq!(Credential::parse(over), Err(AuthStat::BADCRED));
    let too_long = Error::TooLong { what: "AUTH_SYS groups", len: 17, limit: 16 };
    assert_eq!(Credential::Sys(sys(17)).to_opaque(), Err(too_long));
}

#[test]
fn trailing_bytes_in_a_credential() {
    let mut w = Writer::new();
    sys(1).encode(&mut w);
    w.u32(0);
    let auth = OpaqueAuth { flavor: Flavor::SYS, body: w.into_bytes() };
    assert_eq!(Credential::parse(auth), Err(AuthStat::BADCRED));
}

#[test]
fn credential_bodies_over_400_bytes() {
    let mut w = Writer::new();
    w.u32(0);
    w.opaque(&[0; 401]);
    assert!(matches!(OpaqueAuth::from_bytes(w.into_bytes()), Err(Error::TooLong { .. })));
}

#[test]
fn other_flavors_are_kept() {
    for flavor in [Flavor::TLS, Flavor::RPCSEC_GSS, Flavor(390_003)] {
        let auth = OpaqueAuth { flavor, body: Bytes::from_static(b"xx") };
        let cred = Credential::parse(auth.clone()).unwrap();
        assert_eq!((cred.flavor(), cred.to_opaque()), (flavor, Ok(auth)));
    }
}

#[test]
fn one_fragment() {
    let mut r = RecordReader::new(1000);
    assert_eq!(r.next(), Next::Header);
    assert_eq!(r.header(record_mark(10)), Ok(10));
    assert!(r.is_last_fragment());
    r.received(4);
    assert_eq!(r.next(), Next::Data(6));
    r.received(6);
    assert_eq!((r.next(), r.len()), (Next::Complete, 10));
    r.restart();
    assert_eq!((r.next(), r.is_empty()), (Next::Header, true));
}

#[test]
fn several_fragments_and_the_limit_over_all_of_them() {
    let mut r = RecordReader::new(10);
    assert_eq!(r.header([0, 0, 0, 6]), Ok(6));
    assert!(!r.is_last_fragment());
    r.received(6);
    assert_eq!(r.next(), Next::Header);
    assert_eq!(r.clone().header([0x80, 0, 0, 4]), Ok(4));
    assert_eq!(r.header([0x80, 0, 0, 5]), Err(RecordError::TooLarge { len: 11, limit: 10 }));
}

#[test]
fn hostile_marks() {
    // Case B22: 2 GiB - 1 in the last fragment, fragments of one byte, fragments of none.
    let mut r = RecordReader::new(1 << 20);
    let huge = RecordError::TooLarge { len: 0x7fff_ffff, limit: 1 << 20 };
    assert_eq!(r.header([0xff; 4]), Err(huge));
    let mut r = RecordReader::new(1 << 20);
    for _ in 0..MAX_FRAGMENTS {
        assert_eq!(r.header([0, 0, 0, 1]), Ok(1));
        r.received(1);
    }
    assert_eq!(r.header([0, 0, 0, 1]), Err(RecordError::Fragments));
    assert_eq!(RecordReader::new(9).header([0; 4]), Err(RecordError::Fragments));
    assert_eq!(RecordReader::new(9).header([0x80, 0, 0, 0]), Err(RecordError::Empty));
}

proptest! {
    #[test]
    fn any_bytes_are_a_header_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0u8..2) {
        // Let half of them look like version 2 messages, so that the inner parts are reached.
        let mut start = vec![0, 0, 0, 1, 0, 0, 0, kind, 0, 0, 0, 2];
        start.extend(&bytes);
        for input in [bytes, start] {
            let input = Bytes::from(input);
            let mut r = Reader::new(input.clone());
            if let Ok(header) = CallHeader::decode(&mut r) {
                prop_assert_eq!(CallHeader::from_bytes(header.to_bytes()), Ok(header.clone()));
                if let Some(body) = header.body {
                    let _ = Credential::parse(body.cred);
                }
            }
            if let Ok(header) = ReplyHeader::decode(&mut Reader::new(input)) {
                prop_assert_eq!(ReplyHeader::from_bytes(header.to_bytes()), Ok(header));
            }
        }
    }

    #[test]
    fn records_never_exceed_the_limit(marks in prop::collection::vec(any::<u32>(), 0..100), limit in 0usize..5000) {
        let mut r = RecordReader::new(limit);
        for mark in marks {
            match r.next() {
                Next::Complete => r.restart(),
                Next::Data(n) => r.received(n),
                Next::Header => {
                    // Small sizes, so that many are accepted.
                    if r.header((mark & 0x8000_03ff).to_be_bytes()).is_err() {
                        break;
                    }
                }
            }
            prop_assert!(r.len() <= limit);
        }
    }
}
