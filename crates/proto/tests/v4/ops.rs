//! Arguments and results of each operation: round trips, and bytes written by hand from RFC 7863.

use bytes::Bytes;
use dhow_proto::v4::cb::{CbArgOp, CbCompoundArgs, CbOffloadArgs, CbResOp, OffloadInfo};
use dhow_proto::v4::ops::*;
use dhow_proto::v4::*;
use dhow_xdr::{Decode, Encode, Error, Reader, Writer};

use crate::words::samples;

/// Operations without argument codecs, because they are answered by NOTSUPP whatever they say.
const UNSERVED: &[OpNum] = &[
    OpNum::OPEN_CONFIRM,
    OpNum::RENEW,
    OpNum::SETCLIENTID,
    OpNum::SETCLIENTID_CONFIRM,
    OpNum::RELEASE_LOCKOWNER,
    OpNum::GET_DIR_DELEGATION,
    OpNum::GETDEVICEINFO,
    OpNum::GETDEVICELIST,
    OpNum::LAYOUTCOMMIT,
    OpNum::LAYOUTGET,
    OpNum::LAYOUTRETURN,
    OpNum::SET_SSV,
    OpNum::WANT_DELEGATION,
    OpNum::LAYOUTERROR,
    OpNum::LAYOUTSTATS,
    OpNum::WRITE_SAME,
];

const UNSERVED_CB: &[CbOpNum] = &[
    CbOpNum::LAYOUTRECALL,
    CbOpNum::NOTIFY,
    CbOpNum::PUSH_DELEG,
    CbOpNum::RECALLABLE_OBJ_AVAIL,
    CbOpNum::WANTS_CANCELLED,
    CbOpNum::NOTIFY_DEVICEID,
];

fn round_trip<T: Encode + Decode + PartialEq + std::fmt::Debug>(v: &T) {
    let bytes = v.to_bytes();
    assert_eq!(bytes.len() % 4, 0);
    assert_eq!(T::from_bytes(bytes.clone()).as_ref(), Ok(v));
    // No proper prefix is a value: every length is checked.
    if bytes.len() > 4 {
        assert!(T::from_bytes(bytes.slice(..bytes.len() - 4)).is_err(), "{v:?}");
    }
}

#[test]
fn arguments_of_every_operation_round_trip() {
    for op in OpNum::ALL.iter().copied() {
        if UNSERVED.contains(&op) {
            let error = Error::BadEnum { what: "operation", value: op.0 };
            assert_eq!(ArgOp::decode_body(op, &mut Reader::new(Bytes::new())), Err(error));
            continue;
        }
        for args in samples(40, &op.to_string(), |r| ArgOp::decode_body(op, r)) {
            assert_eq!(args.op(), op);
            round_trip(&args);
        }
    }
}

#[test]
fn results_of_every_operation_round_trip() {
    for op in OpNum::ALL.iter().copied().filter(|op| !UNSERVED.contains(op)) {
        let decode = |r: &mut Reader| {
            let mut w = Writer::new();
            op.encode(&mut w);
            w.raw(r.rest());
            ResOp::decode(&mut Reader::new(w.into_bytes()))
        };
        let decode_ok = |r: &mut Reader| {
            let res = decode(r)?;
            if res.status().is_ok() { Ok(res) } else { Err(Error::Invalid("status")) }
        };
        let mut all = samples(40, &op.to_string(), decode);
        all.extend(samples(40, &op.to_string(), decode_ok));
        all.extend([Status::DENIED, Status::OFFLOAD_NO_REQS, Status(99)].map(|s| ResOp::error(op, s)));
        for res in all {
            assert_eq!(res.op(), op);
            round_trip(&res);
        }
    }
}

#[test]
fn failures_of_unserved_operations_round_trip() {
    for op in UNSERVED.iter().copied().chain([OpNum(9999)]) {
        let res = ResOp::error(op, Status::NOTSUPP);
        assert_eq!(res, ResOp::Other(op, Status::NOTSUPP));
        round_trip(&res);
        // Success would have a body of unknown length.
        assert!(ResOp::from_bytes((op, Status::OK).to_bytes()).is_err());
    }
}

#[test]
fn callbacks_round_trip() {
    for op in CbOpNum::ALL.iter().copied() {
        if UNSERVED_CB.contains(&op) {
            let error = Error::BadEnum { what: "operation", value: op.0 };
            assert_eq!(CbArgOp::decode_body(op, &mut Reader::new(Bytes::new())), Err(error));
            round_trip(&CbResOp::error(op, Status::NOTSUPP));
            continue;
        }
        for args in samples(40, &op.to_string(), |r| CbArgOp::decode_body(op, r)) {
            round_trip(&args);
        }
        let decode = |r: &mut Reader| {
            let mut w = Writer::new();
            op.encode(&mut w);
            w.raw(r.rest());
            CbResOp::decode(&mut Reader::new(w.into_bytes()))
        };
        for res in samples(40, &op.to_string(), decode) {
            round_trip(&res);
        }
    }
}

fn stateid(seqid: u32, fill: u8) -> Stateid {
    Stateid { seqid, other: [fill; 12] }
}

/// Bytes from words and pieces.
macro_rules! wire {
    ($($part:expr),* $(,)?) => {{
        let mut out: Vec<u8> = Vec::new();
        $( out.extend_from_slice(&Part::from($part).0); )*
        out
    }};
}

struct Part(Vec<u8>);

impl From<i32> for Part {
    fn from(v: i32) -> Self {
        Part(v.to_be_bytes().to_vec())
    }
}

impl From<u64> for Part {
    fn from(v: u64) -> Self {
        Part(v.to_be_bytes().to_vec())
    }
}

impl<const N: usize> From<&[u8; N]> for Part {
    fn from(v: &[u8; N]) -> Self {
        Part(v.to_vec())
    }
}

#[test]
fn sequence_in_exact_bytes() {
    // RFC 8881 section 18.46.1, 18.46.2.
    let args = ArgOp::Sequence(SequenceArgs {
        session_id: SessionId(*b"0123456789abcdef"),
        sequence_id: 7,
        slot_id: 2,
        highest_slot_id: 3,
        cache_this: true,
    });
    assert_eq!(args.to_bytes(), wire![53, b"0123456789abcdef", 7, 2, 3, 1]);
    let res = ResOp::Sequence(Ok(SequenceOk {
        session_id: SessionId(*b"0123456789abcdef"),
        sequence_id: 7,
        slot_id: 2,
        highest_slot_id: 3,
        target_highest_slot_id: 4,
        status_flags: seq4_status::RESTART_RECLAIM_NEEDED,
    }));
    assert_eq!(res.to_bytes(), wire![53, 0, b"0123456789abcdef", 7, 2, 3, 4, 0x100]);
    let error = ResOp::error(OpNum::SEQUENCE, Status::BADSESSION);
    assert_eq!(error.to_bytes(), wire![53, 10052]);
}

#[test]
fn open_in_exact_bytes() {
    // RFC 8881 section 18.16.1: exclusive creation with a mode, by name.
    let attrs = Attrs { mode: Some(0o640), ..Attrs::default() };
    let args = ArgOp::Open(OpenArgs {
        seqid: 0,
        share_access: share::ACCESS_BOTH | share::WANT_NO_DELEG,
        share_deny: share::DENY_NONE,
        owner: StateOwner { client: ClientId(5), owner: Bytes::from_static(b"me") },
        how: OpenHow::Create(CreateHow::Exclusive41 { verifier: Verifier(*b"verifier"), attrs: attrs.into() }),
        claim: OpenClaim::Null(Bytes::from_static(b"file")),
    });
    let expected = wire![
        18,
        0,
        0x403,
        0,
        5u64,
        2,
        b"me\0\0", // seqid, access, deny, owner
        1,
        3,
        b"verifier",
        2,
        0,
        2,
        4,
        0o640, // create, exclusive, mask of two words, mode
        0,
        4,
        b"file", // claim
    ];
    assert_eq!(args.to_bytes(), expected);

    // Section 18.16.2: no delegation because of contention.
    let res = ResOp::Open(Ok(OpenOk {
        stateid: stateid(1, 0xaa),
        cinfo: ChangeInfo { atomic: true, before: 8, after: 9 },
        rflags: open_result::LOCKTYPE_POSIX,
        attrset: Bitmap::of(&[attr::SIZE, attr::MODE]),
        delegation: Delegation::Contention { will_push: false },
    }));
    let expected = wire![
        18,
        0,
        1,
        &[0xaa; 12],
        1,
        8u64,
        9u64,
        4, // stateid, cinfo, rflags
        2,
        0x10,
        2,
        3,
        1,
        0, // attrset, NONE_EXT, CONTENTION, false
    ];
    assert_eq!(res.to_bytes(), expected);
}

#[test]
fn read_and_write_in_exact_bytes() {
    // RFC 8881 section 18.22, 18.32.
    let read = ArgOp::Read(ReadArgs { stateid: stateid(0, 1), offset: 1 << 40, count: 4096 });
    assert_eq!(read.to_bytes(), wire![25, 0, &[1; 12], 1u64 << 40, 4096]);
    let data = Bytes::from_static(b"hello");
    let read = ResOp::Read(Ok(ReadOk { eof: true, data: data.clone() }));
    assert_eq!(read.to_bytes(), wire![25, 0, 1, 5, b"hello\0\0\0"]);
    let write = ArgOp::Write(WriteArgs { stateid: stateid(0, 1), offset: 3, stable: StableHow::FILE_SYNC, data });
    assert_eq!(write.to_bytes(), wire![38, 0, &[1; 12], 3u64, 2, 5, b"hello\0\0\0"]);
    let write = ResOp::Write(Ok(WriteOk { count: 5, committed: StableHow::UNSTABLE, verifier: Verifier([9; 8]) }));
    assert_eq!(write.to_bytes(), wire![38, 0, 5, 0, &[9; 8]]);
}

#[test]
fn large_data_is_not_copied() {
    let data = Bytes::from(vec![5; 100_001]);
    let mut w = Writer::new();
    ResOp::Read(Ok(ReadOk { eof: false, data: data.clone() })).encode(&mut w);
    let segments = w.into_segments();
    assert!(segments.iter().any(|s| s.as_ptr() == data.as_ptr()));

    let write = ArgOp::Write(WriteArgs { stateid: Stateid::ANONYMOUS, offset: 0, stable: StableHow::UNSTABLE, data });
    let wire = write.to_bytes();
    let ArgOp::Write(back) = ArgOp::from_bytes(wire.clone()).unwrap() else { panic!() };
    assert!(wire.as_ptr_range().contains(&back.data.as_ptr()));
}

#[test]
fn lock_denied_in_exact_bytes() {
    // RFC 8881 section 18.10.2: the one error of LOCK that has a body.
    let denied = LockDenied {
        offset: 10,
        length: TO_EOF,
        lock_type: LockType::WRITE,
        owner: StateOwner { client: ClientId(1), owner: Bytes::from_static(b"abcd") },
    };
    let body = wire![10u64, u64::MAX, 2, 1u64, 4, b"abcd"];
    let lock = ResOp::Lock(LockRes::Denied(denied.clone()));
    assert_eq!(lock.to_bytes(), [wire![12, 10010], body.clone()].concat());
    let lockt = ResOp::Lockt(LocktRes::Denied(denied));
    assert_eq!(lockt.to_bytes(), [wire![13, 10010], body].concat());
    assert_eq!(ResOp::Lockt(LocktRes::Ok).to_bytes(), wire![13, 0]);
}

#[test]
fn setattr_has_its_mask_in_failure_too() {
    // RFC 8881 section 18.30.2.
    let res = ResOp::error(OpNum::SETATTR, Status::PERM);
    assert_eq!(res.to_bytes(), wire![34, 1, 0]);
    let partly = SetattrRes { status: Status::DQUOT, attrsset: Bitmap::of(&[attr::SIZE]) };
    assert_eq!(ResOp::Setattr(partly).to_bytes(), wire![34, 69, 1, 0x10]);
}

#[test]
fn copy_in_exact_bytes() {
    // RFC 7862 section 15.2.1, 15.2.2, from another server.
    let args = ArgOp::Copy(CopyArgs {
        src_stateid: stateid(1, 1),
        dst_stateid: stateid(2, 2),
        src_offset: 3,
        dst_offset: 4,
        count: 0,
        consecutive: true,
        synchronous: false,
        source_server: vec![NetLoc::Addr(NetAddr {
            netid: Bytes::from_static(b"tcp"),
            addr: Bytes::from_static(b"10.0.0.1.8.1"),
        })],
    });
    let expected = wire![
        60,
        1,
        &[1; 12],
        2,
        &[2; 12],
        3u64,
        4u64,
        0u64,
        1,
        0, // stateids, offsets, count, flags
        1,
        3,
        3,
        b"tcp\0",
        12,
        b"10.0.0.1.8.1", // one netloc: address
    ];
    assert_eq!(args.to_bytes(), expected);

    let response = WriteResponse {
        callback_id: vec![stateid(1, 7)],
        count: 0,
        committed: StableHow::UNSTABLE,
        verifier: Verifier([3; 8]),
    };
    let requirements = CopyRequirements { consecutive: true, synchronous: false };
    let res = ResOp::Copy(CopyRes::Ok(CopyOk { response: response.clone(), requirements }));
    let expected = wire![60, 0, 1, 1, &[7; 12], 0u64, 0, &[3; 8], 1, 0];
    assert_eq!(res.to_bytes(), expected);
    let refused = ResOp::Copy(CopyRes::NoReqs(requirements));
    assert_eq!(refused.to_bytes(), wire![60, 10094, 1, 0]);

    // RFC 7862 section 16.1.
    let offload = |info| {
        let fh = FileHandle(Bytes::from_static(b"fh01"));
        CbArgOp::Offload(CbOffloadArgs { fh, stateid: stateid(1, 7), info })
    };
    let failed = offload(OffloadInfo::Err { status: Status::NOSPC, bytes_copied: 77 });
    let start = wire![15, 4, b"fh01", 1, &[7; 12]];
    assert_eq!(failed.to_bytes(), [start.clone(), wire![28, 77u64]].concat());
    let done = offload(OffloadInfo::Ok(WriteResponse { callback_id: vec![], ..response }));
    assert_eq!(done.to_bytes(), [start, wire![0, 0, 0u64, 0, &[3; 8]]].concat());
}

#[test]
fn callback_compound_in_exact_bytes() {
    // RFC 8881 section 20: the unused identifier stands between minor version and operations.
    let args = CbCompoundArgs { tag: Bytes::new(), minorversion: 2, ops: vec![CbArgOp::Illegal] };
    assert_eq!(args.to_bytes(), wire![0, 2, 0, 1, 10044]);
    round_trip(&args);
}

#[test]
fn stateids() {
    // RFC 8881 section 8.2.3.
    assert_eq!(Stateid::ANONYMOUS.to_bytes(), [0; 16].as_slice());
    assert_eq!(Stateid::READ_BYPASS.to_bytes(), [0xff; 16].as_slice());
    assert_eq!(Stateid::CURRENT.to_bytes(), wire![1, &[0; 12]]);
    assert_eq!(Stateid::INVALID.to_bytes(), wire![-1, &[0; 12]]);
    assert!(Stateid::CURRENT.is_special() && !stateid(0, 1).is_special());
}

#[test]
fn filehandles_of_up_to_128_bytes() {
    // Case B21.
    for len in [0, 1, 10, 64, 65, 127, 128] {
        round_trip(&ArgOp::PutFh(PutFhArgs { object: FileHandle(vec![1; len].into()) }));
    }
    let over = FileHandle(vec![1; 129].into()).to_bytes();
    let error = Error::TooLong { what: "opaque", len: 129, limit: 128 };
    assert_eq!(FileHandle::from_bytes(over), Err(error));
}

#[test]
fn names_and_numbers_in_messages() {
    assert_eq!(format!("{} {:?}", Status::NOENT, Status(4242)), "NOENT Status(4242)");
    assert_eq!(OpNum(18).to_string(), "OPEN");
    assert_eq!(format!("{:?}", Verifier(*b"\0\x01\x02\x03\x04\x05\x06\xff")), "Verifier(00010203040506ff)");
    assert_eq!(format!("{:?}", ClientId(0x1f)), "ClientId(0x000000000000001f)");
    assert_eq!(Status::OK.ok(), Ok(()));
    assert_eq!(Status::IO.ok(), Err(Status::IO));
}

#[test]
fn readdir_entry_by_entry() {
    let attrs = |n| Attrs { fileid: Some(n), ..Attrs::default() };
    let entry = |n: u64, name: &'static [u8]| DirEntry { cookie: n, name: Bytes::from_static(name), attrs: attrs(n) };
    let expected =
        ReaddirOk { verifier: Verifier([1; 8]), entries: vec![entry(3, b"a"), entry(4, b"bbbbb")], eof: false };
    let want = Bitmap::of(&[attr::FILEID]);
    let size = expected.to_bytes().len() as u32;
    // maxcount counts everything from the verifier to EOF (RFC 8881 section 18.23.3): one byte less and the second
    // entry does not fit.
    for (maxcount, dircount, n) in
        [(size, 0, 2), (size - 1, 0, 1), (9999, 16 + 20, 2), (9999, 16 + 19, 1), (9999, 1, 1), (20, 0, 0)]
    {
        let mut w = Writer::new();
        w.u32(0xfeed); // something in front
        let mut dir = ReaddirWriter::new(&mut w, expected.verifier, dircount, maxcount);
        let pushed = expected
            .entries
            .iter()
            .take_while(|e| dir.push(&mut w, e.cookie, &e.name, |w| e.attrs.encode_fattr(&want, w)));
        assert_eq!(pushed.count(), n, "{maxcount} {dircount}");
        assert_eq!(dir.entries(), n);
        dir.finish(&mut w, false);
        let got = ReaddirOk::from_bytes(w.into_bytes().slice(4..)).unwrap();
        assert_eq!(got, ReaddirOk { entries: expected.entries[..n].to_vec(), ..expected.clone() });
    }
}

#[test]
fn a_status_with_a_body_never_goes_without_it() {
    let denied = ResOp::Lock(LockRes::Err(Status::DENIED)).to_bytes();
    assert!(matches!(ResOp::from_bytes(denied), Ok(ResOp::Lock(LockRes::Denied(_)))));
    let denied = ResOp::Lockt(LocktRes::Err(Status::DENIED)).to_bytes();
    assert!(matches!(ResOp::from_bytes(denied), Ok(ResOp::Lockt(LocktRes::Denied(_)))));
    let refused = ResOp::Copy(CopyRes::Err(Status::OFFLOAD_NO_REQS)).to_bytes();
    assert_eq!(ResOp::from_bytes(refused), Ok(ResOp::Copy(CopyRes::NoReqs(CopyRequirements::NONE))));
}
