//! Encoding and limits (RFC 4506, case B22).

use bytes::Bytes;
use dhow_xdr::{Decode, DecodeMax, Encode, Error, Reader, Writer, padding, xdr_enum, xdr_struct};
use proptest::prelude::*;

xdr_enum! {
    /// Test.
    pub enum Kind { ONE = 1, TWO = 2 }
}

xdr_struct! {
    /// Test.
    pub struct Sample {
        /// Test.
        pub kind: Kind,
        /// Test.
        pub name: Bytes[max 16],
        /// Test.
        pub list: Vec<u64>[max 3],
        /// Test.
        pub opt: Option<i64>,
        /// Test.
        pub fixed: [u8; 5],
        /// Test.
        pub flag: bool,
    }
}

fn reader(bytes: &[u8]) -> Reader {
    Reader::new(Bytes::copy_from_slice(bytes))
}

#[test]
fn exact_bytes() {
    // RFC 4506 sections 4.1 to 4.19, written out by hand.
    let v = Sample {
        kind: Kind(7),
        name: Bytes::from_static(b"abcde"),
        list: vec![1, u64::MAX],
        opt: Some(-2),
        fixed: *b"vwxyz",
        flag: true,
    };
    let expected: &[u8] = &[
        0, 0, 0, 7, // kind
        0, 0, 0, 5, b'a', b'b', b'c', b'd', b'e', 0, 0, 0, // name
        0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 255, 255, 255, 255, 255, 255, 255, 255, // list
        0, 0, 0, 1, 255, 255, 255, 255, 255, 255, 255, 254, // opt
        b'v', b'w', b'x', b'y', b'z', 0, 0, 0, // fixed
        0, 0, 0, 1, // flag
    ];
    assert_eq!(v.to_bytes(), expected);
    assert_eq!(Sample::from_bytes(Bytes::from_static(expected)), Ok(v));
}

#[test]
fn limits_are_checked_before_anything_else() {
    // Case B22: lengths that no record could hold.
    let huge = [0xff, 0xff, 0xff, 0xff];
    let too_long = |limit| Error::TooLong { what: "opaque", len: u32::MAX, limit };
    assert_eq!(reader(&huge).opaque(128), Err(too_long(128)));
    assert_eq!(reader(&huge).opaque(usize::MAX), Err(Error::Eof));
    assert_eq!(
        Vec::<u64>::decode_max(&mut reader(&huge), 10),
        Err(Error::TooLong { what: "array", len: u32::MAX, limit: 10 })
    );
    // Would reserve 32 GiB if the length were believed.
    assert_eq!(Vec::<u64>::decode_max(&mut reader(&huge), usize::MAX), Err(Error::Eof));
    // An array of elements without bytes must not loop for ever or allocate either.
    let mut calls = 0;
    let r = reader(&[0, 0, 0, 4]).array(4, |_| {
        calls += 1;
        Ok(())
    });
    assert_eq!((r.map(|v| v.len()), calls), (Ok(4), 4));
}

#[test]
fn reading_past_the_end() {
    assert_eq!(reader(&[0, 0, 0]).u32(), Err(Error::Eof));
    assert_eq!(reader(&[0; 7]).u64(), Err(Error::Eof));
    assert_eq!(reader(&[0; 4]).fixed(5), Err(Error::Eof));
    // The data is there, its padding is not.
    assert_eq!(reader(b"\0\0\0\x05abcde\0\0").opaque(9), Err(Error::Eof));
    assert_eq!(reader(b"abcde\0\0").fixed_array::<5>(), Err(Error::Eof));
    assert_eq!(reader(&[0, 0, 0, 2]).bool(), Err(Error::BadBool(2)));
    assert_eq!(reader(&[0; 3]).skip(4), Err(Error::Eof));
    let mut r = reader(&[0; 12]);
    assert_eq!(r.u32(), Ok(0));
    assert_eq!(r.finish(), Err(Error::Trailing(8)));
    assert_eq!(r.rest().len(), 8);
    assert_eq!(r.finish(), Ok(()));
}

#[test]
fn a_number_that_is_not_there_is_not_consumed() {
    let mut r = reader(&[0, 0, 0, 1, 0, 0]);
    assert_eq!(r.u64(), Err(Error::Eof));
    assert_eq!(r.u32(), Ok(1));
}

#[test]
fn padding_may_be_anything() {
    assert_eq!(reader(b"\0\0\0\x01a\xff\xff\xff").opaque(4).unwrap(), &b"a"[..]);
}

#[test]
fn opaque_data_is_a_slice_of_the_input() {
    let input = Bytes::from(vec![0, 0, 0, 4, 1, 2, 3, 4]);
    let data = Reader::new(input.clone()).opaque(4).unwrap();
    assert_eq!(data.as_ptr(), input[4..].as_ptr());
}

#[test]
fn sub_reader_ends_where_it_should() {
    let mut r = reader(b"\0\0\0\x01abcd\0\0\0\x02");
    let mut sub = r.take(6).unwrap();
    assert_eq!((sub.u32(), sub.u32()), (Ok(1), Err(Error::Eof)));
    assert_eq!(r.u32(), Ok(2)); // after the padding of the six bytes
}

#[test]
fn payload_is_not_copied() {
    let data = Bytes::from(vec![7; 1001]);
    let mut w = Writer::new();
    w.u32(1);
    w.payload(data.clone());
    w.u32(2);
    w.payload(Bytes::from_static(b"xyz"));
    assert_eq!(w.len(), 4 + 4 + 1004 + 4 + 8);
    let segments = w.into_segments();
    assert_eq!(segments.len(), 3);
    assert_eq!(segments[0], [0, 0, 0, 1, 0, 0, 3, 233].as_slice());
    assert_eq!(segments[1].as_ptr(), data.as_ptr());
    assert_eq!(segments[2], b"\0\0\0\0\0\0\x02\0\0\0\x03xyz\0".as_slice());
}

#[test]
fn patch_and_truncate_with_payloads() {
    let big = Bytes::from(vec![9; 300]);
    let mut w = Writer::new();
    let count = w.placeholder();
    w.payload(big.clone());
    let mark = w.mark();
    w.payload(big.clone());
    w.u64(5);
    assert_eq!(mark.offset(), 4 + 4 + 300);
    w.truncate(mark);
    assert_eq!(w.len(), 308);
    assert!(w.patch_u32(count, 0xabcd));
    assert!(!w.patch_u32(mark, 1), "nothing stands at the mark any more");
    w.u32(3);
    let all = w.into_bytes();
    assert_eq!(&all[..8], [0, 0, 0xab, 0xcd, 0, 0, 1, 44]);
    assert_eq!(&all[308..], [0, 0, 0, 3]);
}

#[test]
fn nested_and_parts_and_append() {
    let big = Bytes::from(vec![1; 257]);
    let mut w = Writer::new();
    w.nested(|w| {
        w.raw(big.clone());
        w.fixed(b"");
    });
    let mut other = Writer::new();
    other.u32(8);
    other.payload_parts([big.clone(), big.clone(), Bytes::from_static(b"z")]);
    w.append(other);
    let mut r = Reader::new(w.into_bytes());
    assert_eq!(r.opaque(999).unwrap(), big);
    assert_eq!(r.u32(), Ok(8));
    let parts = r.opaque(999).unwrap();
    assert_eq!((parts.len(), parts[514]), (515, b'z'));
    assert_eq!(r.finish(), Ok(()));
}

#[derive(Debug, Clone)]
enum Step {
    U32(u32),
    U64(u64),
    Opaque(Vec<u8>),
    Payload(Vec<u8>),
    Bool(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        any::<u32>().prop_map(Step::U32),
        any::<u64>().prop_map(Step::U64),
        prop::collection::vec(any::<u8>(), 0..9).prop_map(Step::Opaque),
        prop::collection::vec(any::<u8>(), 0..600).prop_map(Step::Payload),
        any::<bool>().prop_map(Step::Bool),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read(steps in prop::collection::vec(step(), 0..20)) {
        let mut w = Writer::new();
        for s in &steps {
            match s {
                Step::U32(v) => w.u32(*v),
                Step::U64(v) => w.u64(*v),
                Step::Opaque(v) => w.opaque(v),
                Step::Payload(v) => w.payload(Bytes::copy_from_slice(v)),
                Step::Bool(v) => w.bool(*v),
            }
        }
        let len = w.len();
        let bytes: Vec<u8> = w.into_segments().concat();
        prop_assert_eq!(bytes.len(), len);
        prop_assert_eq!(padding(len), 0);
        let mut r = Reader::new(bytes.into());
        for s in &steps {
            match s {
                Step::U32(v) => prop_assert_eq!(r.u32(), Ok(*v)),
                Step::U64(v) => prop_assert_eq!(r.u64(), Ok(*v)),
                Step::Opaque(v) | Step::Payload(v) => prop_assert_eq!(&r.opaque(600).unwrap()[..], &v[..]),
                Step::Bool(v) => prop_assert_eq!(r.bool(), Ok(*v)),
            }
        }
        prop_assert_eq!(r.finish(), Ok(()));
    }

    #[test]
    fn any_bytes_decode_or_fail(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        if let Ok(v) = Sample::from_bytes(bytes.into()) {
            prop_assert_eq!(Sample::from_bytes(v.to_bytes()), Ok(v));
        }
    }
}
