//! Attributes and bitmaps (RFC 8881 section 3.2, 5).

use bytes::Bytes;
use dhow_proto::v4::attr::{self, Attrs, Fattr, KNOWN};
use dhow_proto::v4::{Bitmap, FileType, FsId, NfsTime, SetTime, Status};
use dhow_xdr::{Decode, Encode, Error, Writer};
use proptest::prelude::*;

use crate::words::samples;

/// A value of each attribute, encoded.
fn one_of_each() -> Vec<(u32, Bytes)> {
    let one = |n: u32| {
        let found = samples(1, attr::name(n).unwrap(), |r| {
            // The value may have any length that fits exactly.
            let words = r.rest();
            (0..words.len() / 4)
                .map(|len| Fattr { mask: Bitmap::of(&[n]), values: words.slice(..len * 4) })
                .find_map(|fattr| fattr.parse().ok())
                .ok_or(Error::Invalid("value"))
        });
        (n, Fattr::from(&found[0]).values)
    };
    KNOWN.iter().map(one).collect()
}

fn join(values: &[(u32, Bytes)], wanted: &Bitmap) -> Fattr {
    let chosen: Vec<_> = values.iter().filter(|(n, _)| wanted.contains(*n)).collect();
    Fattr {
        mask: chosen.iter().map(|(n, _)| *n).collect(),
        values: chosen.iter().flat_map(|(_, v)| v.iter().copied()).collect::<Vec<_>>().into(),
    }
}

#[test]
fn any_subset_is_written_in_the_order_of_numbers() {
    let values = one_of_each();
    let all = join(&values, &KNOWN).parse().unwrap();
    assert_eq!(all.mask(), KNOWN);
    proptest!(|(words in prop::array::uniform3(any::<u32>()))| {
        let wanted: Bitmap =
            (0..96).filter(|n| words[*n as usize / 32] >> (n % 32) & 1 == 1).collect();
        let expected = join(&values, &wanted);
        let mut w = Writer::new();
        all.encode_fattr(&wanted, &mut w);
        let bytes = w.into_bytes();
        prop_assert_eq!(&bytes, &expected.to_bytes());
        let back = Attrs::from_bytes(bytes).unwrap();
        prop_assert_eq!(back.mask(), wanted.and(&KNOWN));
        prop_assert_eq!(Fattr::from(&back), expected);
    });
}

#[test]
fn attributes_in_exact_bytes() {
    let attrs = Attrs {
        file_type: Some(FileType::DIR),
        size: Some(0x0102030405),
        fsid: Some(FsId { major: 1, minor: 2 }),
        mode: Some(0o755),
        owner: Some(Bytes::from_static(b"alice")),
        time_modify: Some(NfsTime { secs: -1, nanos: 5 }),
        ..Attrs::default()
    };
    #[rustfmt::skip]
    let expected: &[u8] = &[
        0, 0, 0, 2, 0, 0, 1, 0b1_0010, 0, 0x20, 0, 0b1_0010, // 1, 4, 8 and 33, 36, 53
        0, 0, 0, 56,
        0, 0, 0, 2,
        0, 0, 0, 1, 2, 3, 4, 5,
        0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2,
        0, 0, 1, 0o355,
        0, 0, 0, 5, b'a', b'l', b'i', b'c', b'e', 0, 0, 0,
        255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 5,
    ];
    assert_eq!(attrs.to_bytes(), expected);
    assert_eq!(Attrs::from_bytes(Bytes::from_static(expected)), Ok(attrs));
}

#[test]
fn values_that_do_not_fit_their_mask() {
    let fattr = |bits: &[u32], len: usize| Fattr { mask: Bitmap::of(bits), values: Bytes::from(vec![0; len]) };
    assert!(fattr(&[attr::SIZE], 8).parse().is_ok());
    assert_eq!(fattr(&[attr::SIZE], 4).parse(), Err(Status::BADXDR));
    assert_eq!(fattr(&[attr::SIZE], 12).parse(), Err(Status::BADXDR));
    assert_eq!(fattr(&[], 4).parse(), Err(Status::BADXDR));
    // Attributes without a codec: RFC 8881 section 5.5 asks for ATTRNOTSUPP when they are set.
    for n in [attr::SEC_LABEL, attr::DACL, 95, 255] {
        assert_eq!(fattr(&[n], 4).parse(), Err(Status::ATTRNOTSUPP));
        let error = Error::BadEnum { what: attr::UNKNOWN, value: n };
        assert_eq!(Attrs::from_bytes(fattr(&[n], 4).to_bytes()), Err(error));
    }
}

#[test]
fn times_to_set() {
    let server = Attrs { time_modify_set: Some(SetTime::Server), ..Attrs::default() };
    assert_eq!(Fattr::from(&server).values, [0; 4].as_slice());
    let time = NfsTime { secs: 1, nanos: 2 };
    let client = Attrs { time_access_set: Some(SetTime::Client(time)), ..Attrs::default() };
    let bytes = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2];
    assert_eq!(Fattr::from(&client).values, bytes.as_slice());
    let bad = Fattr { mask: server.mask(), values: Bytes::from_static(&[0, 0, 0, 2]) };
    assert_eq!(bad.parse(), Err(Status::BADXDR));
}

#[test]
fn kinds_of_attributes() {
    // Case B40: what can only be set must not be offered to GETATTR.
    assert!(attr::WRITE_ONLY.is_subset(&attr::SETTABLE));
    for readable in [attr::SIZE, attr::MODE, attr::OWNER, attr::TIME_MODIFY] {
        assert!(!attr::WRITE_ONLY.contains(readable));
    }
    assert!(!attr::SETTABLE.contains(attr::TIME_MODIFY));
    assert_eq!(attr::name(attr::OWNER_GROUP), Some("owner_group"));
    assert_eq!(attr::name(200), None);
}

#[test]
fn bitmap_operations() {
    let a = Bitmap::of(&[0, 31, 32, 95, 255, 256, 9999]);
    assert_eq!(a.iter().collect::<Vec<_>>(), [0, 31, 32, 95, 255]);
    assert_eq!(a.len(), 5);
    assert!(!a.contains(256) && a.contains(255));
    let b = Bitmap::of(&[31, 33]);
    assert_eq!(a.and(&b), Bitmap::of(&[31]));
    assert_eq!(a.or(&b).len(), 6);
    assert_eq!(b.minus(&a), Bitmap::of(&[33]));
    assert!(a.and(&b).is_subset(&b) && !b.is_subset(&a));
    assert_eq!(a.without(255).without(31).with(1).len(), 4);
    assert_eq!(format!("{b:?}"), "{31, 33}");
    assert!(Bitmap::EMPTY.is_empty());
}

#[test]
fn bitmap_on_the_wire() {
    let wire = |words: &[u32]| -> Bytes {
        let count = words.len() as u32;
        std::iter::once(count).chain(words.iter().copied()).flat_map(u32::to_be_bytes).collect::<Vec<_>>().into()
    };
    assert_eq!(Bitmap::EMPTY.to_bytes(), wire(&[]));
    assert_eq!(Bitmap::of(&[1, 33]).to_bytes(), wire(&[2, 2]));
    // Zero words at the end mean nothing, however many.
    let mut long = vec![2, 2];
    long.resize(64, 0);
    assert_eq!(Bitmap::from_bytes(wire(&long)), Ok(Bitmap::of(&[1, 33])));
    long[8] = 1;
    assert!(matches!(Bitmap::from_bytes(wire(&long)), Err(Error::TooLong { .. })));
    // Case B22.
    assert!(matches!(Bitmap::from_bytes(wire(&[0; 65])), Err(Error::TooLong { .. })));
}

proptest! {
    #[test]
    fn bitmaps_round_trip(bits in prop::collection::btree_set(0u32..256, 0..40)) {
        let map: Bitmap = bits.iter().copied().collect();
        prop_assert_eq!(map.iter().collect::<Vec<_>>(), bits.into_iter().collect::<Vec<_>>());
        prop_assert_eq!(Bitmap::from_bytes(map.to_bytes()), Ok(map));
    }
}
