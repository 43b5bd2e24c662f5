//! The form of a client's durable record: its key is the client's owner string, its value says what of it is not to be
//! reclaimed (RFC 8881 8.4.3). No time stands in it, so that no clock can make it wrong.
//!
//! The first byte is the version. 1: nothing was revoked. 2: delegations of these files were, each a length (16 bits) and
//! the file's key. 3: more than are named. Of a value that is not understood nothing is believed: as 3.

use bytes::{BufMut, Bytes, BytesMut};
use dhow_state::{ClientOwnerId, ClientRecord, FileKey, Revoked};

const PLAIN: u8 = 1;
const FILES: u8 = 2;
const ALL: u8 = 3;

/// Key and value.
pub(crate) fn write(record: ClientRecord) -> (Bytes, Bytes) {
    let ClientRecord { owner, revoked } = record;
    let mut value = BytesMut::new();
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
    let revoked = match value.split_first() {
        Some((&PLAIN, [])) => Some(Revoked::default()),
        Some((&FILES, rest)) => files(rest),
        _ => None,
    };
    let revoked = revoked.unwrap_or_else(|| Revoked { all: true, ..Revoked::default() });
    ClientRecord { owner: ClientOwnerId(owner.clone()), revoked }
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
        let (key, value) = write(ClientRecord { owner: owner.clone(), revoked });
        let record = read(&key, &value);
        assert_eq!(record.owner, owner);
        record.revoked
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
        for value in [&[][..], &[0], &[1, 1], &[2, 0], &[2, 0, 5, 1], &[9, 9, 9]] {
            let record = read(&owner, &Bytes::copy_from_slice(value));
            assert!(record.revoked.all, "{value:?}");
        }
        assert!(read(&owner, &Bytes::from_static(&[1])).revoked.is_empty());
    }
}
