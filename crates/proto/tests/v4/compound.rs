//! COMPOUND as a whole (RFC 8881 section 16.2).

use bytes::Bytes;
use dhow_proto::v4::cb::{CbCompoundHeader, CbCompoundRes, CbResOp};
use dhow_proto::v4::ops::*;
use dhow_proto::v4::*;
use dhow_xdr::{Decode, Encode, Error, Reader, Writer};

pub fn request() -> CompoundArgs {
    let name = Bytes::from_static(b"name");
    CompoundArgs {
        tag: Bytes::from_static(b"tag"),
        minorversion: 2,
        ops: vec![
            ArgOp::Sequence(SequenceArgs {
                session_id: SessionId([1; 16]),
                sequence_id: 1,
                slot_id: 0,
                highest_slot_id: 0,
                cache_this: false,
            }),
            ArgOp::PutFh(PutFhArgs { object: FileHandle(Bytes::from_static(b"handle")) }),
            ArgOp::Lookup(LookupArgs { name: name.clone() }),
            ArgOp::Setattr(SetattrArgs {
                stateid: Stateid::ANONYMOUS,
                attrs: Attrs { size: Some(9), owner: Some(name.clone()), ..Attrs::default() }.into(),
            }),
            ArgOp::Readdir(ReaddirArgs {
                cookie: 0,
                verifier: Verifier([0; 8]),
                dircount: 0,
                maxcount: 4096,
                attr_request: Bitmap::of(&[attr::FILEID, attr::TYPE]),
            }),
            ArgOp::TestStateid(TestStateidArgs { stateids: vec![Stateid::ANONYMOUS; 3] }),
            ArgOp::Write(WriteArgs {
                stateid: Stateid::ANONYMOUS,
                offset: 0,
                stable: StableHow::UNSTABLE,
                data: Bytes::from(vec![1; 500]),
            }),
            ArgOp::GetFh,
        ],
    }
}

pub fn reply() -> CompoundRes {
    let attrs = Attrs { fileid: Some(5), file_type: Some(FileType::REG), ..Attrs::default() };
    CompoundRes {
        status: Status::NOENT,
        tag: Bytes::from_static(b"tag"),
        results: vec![
            ResOp::PutFh(Ok(())),
            ResOp::Readdir(Ok(ReaddirOk {
                verifier: Verifier([2; 8]),
                entries: (0..5)
                    .map(|cookie| DirEntry { cookie, name: Bytes::from_static(b"entry"), attrs: attrs.clone() })
                    .collect(),
                eof: true,
            })),
            ResOp::Getattr(Ok(GetattrOk { attrs: Box::new(attrs) })),
            ResOp::Read(Ok(ReadOk { eof: false, data: Bytes::from(vec![3; 300]) })),
            ResOp::ReadPlus(Ok(ReadPlusOk {
                eof: true,
                contents: vec![
                    ReadPlusContent::Data { offset: 0, data: Bytes::from_static(b"data") },
                    ReadPlusContent::Hole { offset: 4, length: 100 },
                    ReadPlusContent::Other(DataContent(2)),
                ],
            })),
            ResOp::TestStateid(Ok(TestStateidOk { status_codes: vec![Status::OK; 3] })),
            ResOp::Lookup(Err(Status::NOENT)),
        ],
    }
}

#[test]
fn whole_messages_round_trip() {
    assert_eq!(CompoundArgs::from_bytes(request().to_bytes()), Ok(request()));
    assert_eq!(CompoundRes::from_bytes(reply().to_bytes()), Ok(reply()));
}

#[test]
fn a_server_reads_operation_by_operation() {
    let mut r = Reader::new(request().to_bytes());
    let header = CompoundHeader::decode(&mut r).unwrap();
    assert_eq!((&header.tag[..], header.minorversion, header.numops), (&b"tag"[..], 2, 8));
    for expected in request().ops {
        let op = OpNum::decode(&mut r).unwrap();
        assert_eq!(ArgOp::decode_body(op, &mut r), Ok(expected));
    }
    assert_eq!(r.finish(), Ok(()));
    assert_eq!(
        header.to_bytes(),
        request().to_bytes().slice(..header.to_bytes().len()),
        "a client may write header and operations apart"
    );
}

#[test]
fn tags_are_limited() {
    let mut w = Writer::new();
    w.opaque(&[b'x'; OPAQUE_LIMIT + 1]);
    w.u64(0);
    assert!(matches!(CompoundHeader::from_bytes(w.into_bytes()), Err(Error::TooLong { .. })));
}

#[test]
fn nothing_is_read_after_a_failure() {
    // Some servers announce more results than they send once an operation has failed.
    let mut w = Writer::new();
    Status::NOENT.encode(&mut w);
    w.opaque(b"");
    w.u32(3);
    ResOp::PutRootFh(Ok(())).encode(&mut w);
    ResOp::Lookup(Err(Status::NOENT)).encode(&mut w);
    let short = w.into_bytes();
    let expected = [ResOp::PutRootFh(Ok(())), ResOp::Lookup(Err(Status::NOENT))];
    assert_eq!(CompoundRes::from_bytes(short.clone()).unwrap().results, expected);
    let long = [&short[..], b"rubbish"].concat();
    assert_eq!(CompoundRes::from_bytes(long.into()).unwrap().results, expected);
    // But a reply that ends in success must be whole.
    let cut = short.slice(..short.len() - 8);
    assert_eq!(CompoundRes::from_bytes(cut), Err(Error::Eof));
}

#[test]
fn reply_without_results() {
    let res = CompoundRes { status: Status::MINOR_VERS_MISMATCH, tag: Bytes::new(), results: vec![] };
    assert_eq!(CompoundRes::from_bytes(res.to_bytes()), Ok(res));
}

#[test]
fn counts_are_rumours() {
    // Case B22: 2^32 - 1 operations or results announced, none sent.
    let args = [0, 0, 0, 0, 0, 0, 0, 2, 255, 255, 255, 255];
    assert_eq!(CompoundArgs::from_bytes(Bytes::copy_from_slice(&args)), Err(Error::Eof));
    let res = [0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255];
    let res = CompoundRes::from_bytes(Bytes::copy_from_slice(&res));
    assert!(matches!(res, Err(Error::TooLong { len: u32::MAX, .. })));
    // An array of 2^31 stateids.
    let mut w = Writer::new();
    w.u32(1 << 31);
    let stateids = TestStateidArgs::from_bytes(w.into_bytes());
    assert!(matches!(stateids, Err(Error::TooLong { .. })));
}

#[test]
fn callback_replies() {
    let res = CbCompoundRes {
        status: Status::DELAY,
        tag: Bytes::new(),
        results: vec![CbResOp::RecallSlot(Ok(())), CbResOp::Recall(Err(Status::DELAY))],
    };
    assert_eq!(CbCompoundRes::from_bytes(res.to_bytes()), Ok(res));
    let header = [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 4];
    let header = CbCompoundHeader::from_bytes(Bytes::copy_from_slice(&header)).unwrap();
    assert_eq!((header.minorversion, header.callback_ident, header.numops), (1, 9, 4));
}
