//! The form of a client's durable record: its key is the client's owner string, its value says what of it is not to be
//! reclaimed (RFC 8881 8.4.3). No time stands in it, so that no clock can make it wrong.
//!
//! ```text
//! value := 4 holds(1) what              what the client may hold that stands against changes by others: the bits of `Holds`
//!        | what                         of earlier versions, which did not say: it may hold anything
//! what  := 1                            nothing was revoked
//!        | 2 { length(2) file key }*    delegations of these files were
//!        | 3                            of more files than are named
//! ```
//!
//! Of a value that is not understood nothing is believed: it may hold anything, and all was revoked.

use bytes::{BufMut, Bytes, BytesMut};
use dhow_state::{ClientOwnerId, ClientRecord, FileKey, Holds, Revoked};

const HOLDS: u8 = 4;

const PLAIN: u8 = 1;
const FILES: u8 = 2;
const ALL: u8 = 3;

/// Key and value.
pub(crate) fn write(record: ClientRecord) -> (Bytes, Bytes) {
    let ClientRecord { owner, holds, revoked } = record;
    let mut value = BytesMut::new();
    value.put_slice(&[HOLDS, holds.bits()]);
    if revoked.all {
        value.put_u8(ALL);
    } else if revoked.files.is_empty() {
        value.put_u8(PLAIN);
    } else {
        value.put_u8(FILES);
        for file in &revoked.files {
            let key = file.as_bytes();
            value.put_u16(u16::try_from(key.len()).unwrap_or(u16::MAX));
            value.put_slice(key);
        }
    }
    (owner.0, value.freeze())
}

/// The record of a key and value.
pub(crate) fn read(owner: &Bytes, value: &Bytes) -> ClientRecord {
    let (holds, what) = match value.split_first_chunk() {
        Some(([HOLDS, bits], what)) => (Holds::from_bits(*bits), what),
        _ => (None, &value[..]),
    };
    let revoked = match what.split_first() {
        Some((&PLAIN, [])) => Some(Revoked::default()),
        Some((&FILES, rest)) => files(rest),
        _ => None,
    };
    let revoked = revoked.unwrap_or_else(|| Revoked { all: true, ..Revoked::default() });
    ClientRecord { owner: ClientOwnerId(owner.clone()), holds: holds.unwrap_or(Holds::ALL), revoked }
}

fn files(mut rest: &[u8]) -> Option<Revoked> {
    let mut revoked = Revoked::default();
    while let Some((len, more)) = rest.split_first_chunk::<2>() {
        let (key, after) = more.split_at_checked(usize::from(u16::from_be_bytes(*len)))?;
        revoked.insert(FileKey::new(key));
        rest = after;
    }
    rest.is_empty().then_some(revoked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn back(revoked: Revoked) -> Revoked {
        let owner = ClientOwnerId(Bytes::from_static(b"c"));
        let mut found = Vec::new();
        for holds in [Holds::NONE, Holds::DELEGATIONS, Holds::ALL] {
            let (key, value) = write(ClientRecord { owner: owner.clone(), holds, revoked: revoked.clone() });
            let record = read(&key, &value);
            assert_eq!((&record.owner, record.holds), (&owner, holds));
            found.push(record.revoked);
        }
        found.dedup();
        assert_eq!(found.len(), 1);
        found.remove(0)
    }

    #[test]
    fn what_is_written_is_read() {
        let mut some = Revoked::default();
        assert_eq!(back(some.clone()), some);
        for n in 0..Revoked::MANY {
            some.insert(FileKey::new(&vec![7; n % 100 + 1]));
            some.insert(FileKey::new(format!("file {n}").as_bytes()));
            assert!(back(some.clone()).contains(&FileKey::new(b"file 0")));
        }
        assert!(some.all && back(some).contains(&FileKey::new(b"any other")));
    }

    #[test]
    fn what_is_not_understood_revokes_all() {
        let owner = Bytes::from_static(b"c");
        let values =
            [&[][..], &[0], &[1, 1], &[2, 0], &[2, 0, 5, 1], &[9, 9, 9], &[4], &[4, 3], &[4, 3, 9], &[4, 255, 2, 0]];
        for value in values {
            let record = read(&owner, &Bytes::copy_from_slice(value));
            assert!(record.revoked.all && record.holds == Holds::ALL, "{value:?}");
        }
        let unknown = read(&owner, &Bytes::from_static(&[4, 4, 1]));
        assert!(unknown.holds == Holds::ALL && unknown.revoked.is_empty());
    }

    #[test]
    fn records_of_before_may_hold_anything() {
        let owner = Bytes::from_static(b"c");
        let plain = read(&owner, &Bytes::from_static(&[1]));
        assert!(plain.revoked.is_empty() && plain.holds == Holds::ALL);
        let files = read(&owner, &Bytes::from_static(&[2, 0, 1, b'f']));
        assert!(files.revoked.contains(&FileKey::new(b"f")) && !files.revoked.all && files.holds == Holds::ALL);
    }
}
