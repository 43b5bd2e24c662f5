//! Random input that decodes often: XDR is a sequence of words, most of them small (statuses, counts, booleans,
//! discriminants). What such words decode to is a random value of the type.

use bytes::Bytes;
use dhow_xdr::{Reader, Result};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

/// Words of a message.
pub fn words() -> impl Strategy<Value = Bytes> {
    let word = prop_oneof![
        8 => Just(0u32),
        5 => Just(1u32),
        3 => 2u32..9,
        2 => 9u32..40,
        2 => any::<u32>(),
    ];
    prop::collection::vec(word, 100..140)
        .prop_map(|words| words.into_iter().flat_map(u32::to_be_bytes).collect::<Vec<u8>>().into())
}

/// `n` values that `decode` finds in random words. Fails when they are too rare, so that no test passes because
/// nothing was tested.
pub fn samples<T>(n: usize, what: &str, decode: impl Fn(&mut Reader) -> Result<T>) -> Vec<T> {
    let mut runner = TestRunner::deterministic();
    let strategy = words();
    let mut found = Vec::new();
    for _ in 0..20_000 {
        let words = strategy.new_tree(&mut runner).unwrap().current();
        found.extend(decode(&mut Reader::new(words)));
        if found.len() == n {
            return found;
        }
    }
    panic!("{what}: only {} of {n} samples", found.len());
}
