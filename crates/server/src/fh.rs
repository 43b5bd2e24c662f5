//! Filehandles on the wire.
//!
//! ```text
//! 0        1     2    3     4..8        8..n             n..n+8
//! version  zero  one  kind  export id   backend handle   MAC
//! ```
//!
//! The first three bytes are what a Linux server takes for the head of a handle of its own, of an export that it does
//! not have: as the destination of an inter-server COPY it lets a source's handle pass only if it looks STALE to it,
//! not if it looks BADHANDLE.
//!
//! The MAC is SipHash-2-4 of all that comes before it, keyed from the state directory: nobody can make a handle up, so
//! a backend may trust what it is given. A handle of the wrong shape or MAC is BADHANDLE; one of an export that is not
//! there any more is STALE. Handles are the same after a restart (cases B06, B07): nothing in them depends on time,
//! place or order of the exports.

use dhow_vfs::Handle;
use siphasher::sip::SipHasher24;
use std::hash::Hasher;

const VERSION: u8 = 1;
/// To a Linux server: "the next four bytes are the number of an export".
const FSID_NUMBER: u8 = 1;
const HEAD: usize = 8;
const MAC: usize = 8;

/// What a handle leads into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The pseudo-root.
    Pseudo,
    /// The export with this id.
    Export(u32),
}

/// Makes and checks filehandles.
#[derive(Clone)]
pub struct HandleCodec {
    key: [u8; 16],
}

impl HandleCodec {
    /// With the key of the state directory.
    pub fn new(key: [u8; 16]) -> Self {
        Self { key }
    }

    /// The wire form: at most 120 bytes.
    pub fn encode(&self, place: Place, handle: &Handle) -> Vec<u8> {
        let (kind, export) = match place {
            Place::Pseudo => (0, 0),
            Place::Export(id) => (1, id),
        };
        let mut out = Vec::with_capacity(HEAD + handle.as_bytes().len() + MAC);
        out.extend([VERSION, 0, FSID_NUMBER, kind]);
        out.extend(export.to_be_bytes());
        out.extend(handle.as_bytes());
        let mac = self.mac(&out);
        out.extend(mac);
        out
    }

    /// The parts of a handle that this server (or one with the same key) made; `None` for any other bytes.
    pub fn decode(&self, wire: &[u8]) -> Option<(Place, Handle)> {
        let (body, mac) = wire.split_last_chunk::<MAC>()?;
        if self.mac(body) != *mac {
            return None;
        }
        let (head, handle) = body.split_first_chunk::<HEAD>()?;
        let [VERSION, 0, FSID_NUMBER, kind, export @ ..] = *head else { return None };
        let place = match (kind, u32::from_be_bytes(export)) {
            (0, 0) => Place::Pseudo,
            (1, id) => Place::Export(id),
            _ => return None,
        };
        Some((place, Handle::new(handle)?))
    }

    fn mac(&self, bytes: &[u8]) -> [u8; MAC] {
        let mut h = SipHasher24::new_with_key(&self.key);
        h.write(bytes);
        h.finish().to_be_bytes()
    }
}

/// The id of an export: FNV-1a of its path, stable and documented because handles carry it.
pub fn export_id(path: &str) -> u32 {
    path.bytes().fold(0x811c_9dc5, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_forgery_case_b21() {
        let codec = HandleCodec::new([7; 16]);
        for len in [0, 1, 40, dhow_vfs::HANDLE_MAX] {
            let handle = Handle::new(&vec![0xa5; len]).unwrap();
            for place in [Place::Pseudo, Place::Export(0), Place::Export(u32::MAX)] {
                let wire = codec.encode(place, &handle);
                assert!(wire.len() <= 128);
                assert_eq!(codec.decode(&wire), Some((place, handle.clone())));
                for bit in 0..wire.len() * 8 {
                    let mut forged = wire.clone();
                    forged[bit / 8] ^= 1 << (bit % 8);
                    assert_eq!(codec.decode(&forged), None, "bit {bit}");
                }
                assert_eq!(codec.decode(&wire[..wire.len() - 1]), None);
                assert_eq!(HandleCodec::new([8; 16]).decode(&wire), None, "another key");
            }
        }
        for len in [0, 1, 7, 8, 10, 15, 16, 64, 65, 128] {
            assert_eq!(codec.decode(&vec![0; len]), None, "{len} zero bytes");
        }
    }

    #[test]
    fn export_ids_never_change() {
        // Written down: a change of the function would make every handle stale.
        assert_eq!(export_id("/"), 0x2a0c_975e);
        assert_eq!(export_id("/proj"), export_id("/proj"));
        assert_ne!(export_id("/proj"), export_id("/proj2"));
    }
}
