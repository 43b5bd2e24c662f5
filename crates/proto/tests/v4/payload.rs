//! Finding payloads in the first bytes of a record.

use bytes::Bytes;
use dhow_proto::NFS_PROGRAM;
use dhow_proto::v4::ops::*;
use dhow_proto::v4::payload::{read_payload_offset, write_payload_offset};
use dhow_proto::v4::*;
use dhow_rpc::{AuthSys, CallHeader, Credential, Flavor, OpaqueAuth, ReplyHeader};
use dhow_xdr::{Encode, Writer};

const DATA: &[u8] = b"0123456789012345678901234567890123456789";

fn getattr() -> ArgOp {
    ArgOp::Getattr(GetattrArgs { attr_request: Bitmap::of(&[attr::SIZE, attr::TIME_MODIFY]) })
}

fn call_with(cred: &Credential, ops: Vec<ArgOp>) -> Bytes {
    let mut w = Writer::new();
    CallHeader::new(1, NFS_PROGRAM, VERSION, PROC_COMPOUND, cred).unwrap().encode(&mut w);
    CompoundArgs { tag: Bytes::from_static(b"12345"), minorversion: 2, ops }.encode(&mut w);
    w.into_bytes()
}

fn sys() -> Credential {
    Credential::Sys(AuthSys {
        stamp: 0,
        machine: Bytes::from_static(b"machine"),
        uid: 1,
        gid: 2,
        gids: (0..16).collect(),
    })
}

fn write_ops() -> Vec<ArgOp> {
    let mut ops = compound_start();
    ops.push(ArgOp::Write(WriteArgs {
        stateid: Stateid::ANONYMOUS,
        offset: 77,
        stable: StableHow::UNSTABLE,
        data: Bytes::from_static(DATA),
    }));
    ops.push(getattr());
    ops
}

fn compound_start() -> Vec<ArgOp> {
    let attrs = Attrs { size: Some(1), owner: Some(Bytes::from_static(b"me")), ..Attrs::default() };
    vec![
        ArgOp::Sequence(SequenceArgs {
            session_id: SessionId([1; 16]),
            sequence_id: 1,
            slot_id: 0,
            highest_slot_id: 0,
            cache_this: false,
        }),
        ArgOp::PutRootFh,
        ArgOp::SaveFh,
        ArgOp::Lookup(LookupArgs { name: Bytes::from_static(b"dir") }),
        ArgOp::Lookupp,
        ArgOp::RestoreFh,
        ArgOp::PutFh(PutFhArgs { object: FileHandle(Bytes::from_static(b"handle-of-file")) }),
        ArgOp::GetFh,
        ArgOp::Access(AccessArgs { access: 1 }),
        ArgOp::Verify(VerifyArgs { attrs: attrs.into() }),
        getattr(),
    ]
}

pub fn call() -> Bytes {
    call_with(&sys(), write_ops())
}

pub fn reply() -> Bytes {
    reply_with(ResOp::Read(Ok(ReadOk { eof: true, data: Bytes::from_static(DATA) })))
}

fn reply_with(last: ResOp) -> Bytes {
    let attrs = Box::new(Attrs { size: Some(1), change: Some(2), ..Attrs::default() });
    let mut w = Writer::new();
    ReplyHeader::success(1).encode(&mut w);
    CompoundRes {
        status: Status::OK,
        tag: Bytes::from_static(b"123"),
        results: vec![
            ResOp::Sequence(Ok(SequenceOk {
                session_id: SessionId([1; 16]),
                sequence_id: 1,
                slot_id: 0,
                highest_slot_id: 0,
                target_highest_slot_id: 0,
                status_flags: 0,
            })),
            ResOp::PutRootFh(Ok(())),
            ResOp::SaveFh(Ok(())),
            ResOp::Lookup(Ok(())),
            ResOp::PutFh(Ok(())),
            ResOp::GetFh(Ok(GetFhOk { object: FileHandle(Bytes::from_static(b"12345")) })),
            ResOp::Access(Ok(AccessOk { supported: 1, access: 1 })),
            ResOp::Verify(Ok(())),
            ResOp::Getattr(Ok(GetattrOk { attrs })),
            last,
        ],
    }
    .encode(&mut w);
    w.into_bytes()
}

/// `find` must find `DATA` as soon as the length before it is there, and nothing earlier.
fn found_at_its_place(record: &Bytes, find: impl Fn(&[u8]) -> Option<(usize, usize)>) {
    let (offset, len) = find(record).unwrap();
    assert_eq!(&record[offset..offset + len], DATA);
    for end in 0..record.len() {
        let expected = (end >= offset).then_some((offset, len));
        assert_eq!(find(&record[..end]), expected, "prefix of {end}");
    }
}

#[test]
fn data_of_a_write() {
    found_at_its_place(&call(), write_payload_offset);
    found_at_its_place(&call_with(&Credential::None, write_ops()), write_payload_offset);
}

#[test]
fn data_of_a_read() {
    found_at_its_place(&reply(), read_payload_offset);
    let plus = |contents| reply_with(ResOp::ReadPlus(Ok(ReadPlusOk { eof: true, contents })));
    let data = ReadPlusContent::Data { offset: 5, data: Bytes::from_static(DATA) };
    let hole = ReadPlusContent::Hole { offset: 0, length: 5 };
    found_at_its_place(&plus(vec![data.clone(), hole.clone()]), read_payload_offset);
    assert_eq!(read_payload_offset(&plus(vec![hole, data])), None);
    assert_eq!(read_payload_offset(&plus(vec![])), None);
}

#[test]
fn messages_without_payload() {
    assert_eq!(write_payload_offset(&call_with(&sys(), compound_start())), None);
    assert_eq!(write_payload_offset(&reply()), None);
    assert_eq!(read_payload_offset(&call()), None);
    // An operation that is not skipped comes first.
    let commit = ArgOp::Commit(CommitArgs { offset: 0, count: 0 });
    let ops = [vec![commit], write_ops()].concat();
    assert_eq!(write_payload_offset(&call_with(&sys(), ops)), None);
    assert_eq!(read_payload_offset(&reply_with(ResOp::Read(Err(Status::IO)))), None);
    // Under RPCSEC_GSS the arguments may be wrapped.
    let gss = OpaqueAuth { flavor: Flavor::RPCSEC_GSS, body: Bytes::from_static(b"1234") };
    assert_eq!(write_payload_offset(&call_with(&Credential::Other(gss), write_ops())), None);
    // Other programs, versions, procedures.
    for word in [2, 3, 4, 5] {
        let mut other = call().to_vec();
        other[word * 4 + 3] ^= 1;
        assert_eq!(write_payload_offset(&other), None, "word {word}");
    }
}

#[test]
fn a_claimed_length_is_only_reported() {
    // Case B22: the caller compares it with the record.
    let mut record = call().to_vec();
    let (offset, _) = write_payload_offset(&record).unwrap();
    record[offset - 4..offset].copy_from_slice(&[0xff; 4]);
    assert_eq!(write_payload_offset(&record), Some((offset, u32::MAX as usize)));
}
