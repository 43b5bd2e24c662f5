//! Bytes from a peer that is broken or malicious must never panic (cases B21, B22).

use bytes::Bytes;
use dhow_proto::v4::cb::{CbCompoundArgs, CbCompoundRes};
use dhow_proto::v4::payload::{read_payload_offset, write_payload_offset};
use dhow_proto::v4::*;
use dhow_xdr::{Decode, Encode};
use proptest::prelude::*;

use crate::{compound, payload, words::words};

fn stable<T: Decode + Encode + PartialEq + std::fmt::Debug>(input: &Bytes) {
    if let Ok(v) = T::from_bytes(input.clone()) {
        assert_eq!(T::from_bytes(v.to_bytes()), Ok(v));
    }
}

fn try_everything(input: &Bytes) {
    stable::<CompoundArgs>(input);
    stable::<CompoundRes>(input);
    stable::<CbCompoundArgs>(input);
    stable::<CbCompoundRes>(input);
    stable::<Attrs>(input);
    if let Ok(fattr) = Fattr::from_bytes(input.clone()) {
        let _ = fattr.parse();
    }
    // The prefix is the caller's; whatever is found may lie beyond it but not before it ends in a sane place.
    if let Some((offset, _)) = write_payload_offset(input) {
        assert!(offset <= input.len() && offset % 4 == 0);
    }
    if let Some((offset, _)) = read_payload_offset(input) {
        assert!(offset <= input.len() && offset % 4 == 0);
    }
}

#[derive(Debug, Clone)]
enum Change {
    Byte(usize, u8),
    Word(usize, u32),
    Cut(usize),
    Double(usize),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let at = 0usize..3000;
    let change = prop_oneof![
        (at.clone(), any::<u8>()).prop_map(|(at, v)| Change::Byte(at, v)),
        (at.clone(), prop_oneof![0u32..80, Just(u32::MAX), Just(1 << 31), any::<u32>()])
            .prop_map(|(at, v)| Change::Word(at, v)),
        at.clone().prop_map(Change::Cut),
        at.prop_map(Change::Double),
    ];
    prop::collection::vec(change, 1..5)
}

fn apply(mut bytes: Vec<u8>, changes: &[Change]) -> Bytes {
    for change in changes {
        let len = bytes.len().max(4);
        bytes.resize(len, 0);
        match *change {
            Change::Byte(at, v) => bytes[at % len] = v,
            Change::Word(at, v) => {
                let at = at % (len / 4) * 4;
                bytes[at..at + 4].copy_from_slice(&v.to_be_bytes());
            }
            Change::Cut(at) => bytes.truncate(at % len),
            Change::Double(at) => bytes.extend_from_within(at % len..),
        }
    }
    bytes.into()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        try_everything(&bytes.into());
    }

    #[test]
    fn random_words(input in words()) {
        try_everything(&input);
    }

    #[test]
    fn mutated_messages(changes in changes(), which in 0usize..4) {
        let message = match which {
            0 => compound::request().to_bytes(),
            1 => compound::reply().to_bytes(),
            2 => payload::call(),
            _ => payload::reply(),
        };
        try_everything(&apply(message.to_vec(), &changes));
    }
}
