//! Identifiers: made from counters through a keyed hash, so that they are unique, reproducible in tests, and not to be
//! guessed by whoever does not know the secret.
//!
//! "other" of a stateid, 12 bytes: kind (1..), stripe, 16 bits of the server instance, and 64 bits of which the upper 40
//! count and the lower 24 are a keyed hash of the rest. So a look-up needs no table but that of the stripe, and no
//! "other" is ever used twice within one instance (RFC 8881 8.2.4).

use crate::types::{ClientId, SessionId, Stateid};
use siphasher::sip::SipHasher13;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

/// What makes one server instance different from the next: from these values, everything else follows.
#[derive(Clone, Copy)]
pub struct Identity {
    /// Different for every start of the server; the upper half of client IDs.
    pub instance: u32,
    /// Random; whoever knows it can guess session ids.
    pub secret: [u8; 16],
}

/// Number of stripes of the file table.
pub(crate) const STRIPES: usize = 64;

/// The keyed hash. Its key is not printed.
#[derive(Clone, Copy)]
pub(crate) struct Keyed {
    k0: u64,
    k1: u64,
}

impl std::fmt::Debug for Keyed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keyed")
    }
}

impl Keyed {
    pub(crate) fn new(secret: &[u8; 16]) -> Self {
        let v = u128::from_le_bytes(*secret);
        Self { k0: v as u64, k1: (v >> 64) as u64 }
    }

    pub(crate) fn hash(&self, domain: u8, bytes: &[u8]) -> u64 {
        let mut h = SipHasher13::new_with_keys(self.k0, self.k1);
        h.write_u8(domain);
        h.write(bytes);
        h.finish()
    }
}

impl BuildHasher for Keyed {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.k0, self.k1)
    }
}

/// A hash map that a client cannot flood with chosen keys.
pub(crate) type Map<K, V> = std::collections::HashMap<K, V, Keyed>;

/// What a stateid stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    Open = 1,
    Lock = 2,
    Copy = 4,
    Notify = 8,
    Deleg = 16,
}

/// A parsed "other".
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct StateKey {
    kind: u8,
    pub(crate) stripe: u8,
    instance: u16,
    id: u64,
}

impl StateKey {
    pub(crate) fn parse(other: &[u8; 12]) -> Self {
        let [kind, stripe, i0, i1, id @ ..] = *other;
        Self { kind, stripe, instance: u16::from_be_bytes([i0, i1]), id: u64::from_be_bytes(id) }
    }

    pub(crate) fn is(&self, kind: Kind) -> bool {
        self.kind == kind as u8
    }

    pub(crate) fn other(&self) -> [u8; 12] {
        let mut out = [0; 12];
        let [kind, stripe, inst @ ..] = &mut out;
        *kind = self.kind;
        *stripe = self.stripe;
        let (a, b) = inst.split_at_mut(2);
        a.copy_from_slice(&self.instance.to_be_bytes());
        b.copy_from_slice(&self.id.to_be_bytes());
        out
    }

    pub(crate) fn stateid(&self, seqid: u32) -> Stateid {
        Stateid { seqid, other: self.other() }
    }
}

/// Makes identifiers.
pub(crate) struct Ids {
    keyed: Keyed,
    instance: u32,
    next: AtomicU64,
    next_client: AtomicU64,
}

impl Ids {
    pub(crate) fn new(identity: &Identity) -> Self {
        Self {
            keyed: Keyed::new(&identity.secret),
            instance: identity.instance,
            next: AtomicU64::new(1),
            next_client: AtomicU64::new(1),
        }
    }

    pub(crate) fn keyed(&self) -> Keyed {
        self.keyed
    }

    fn count(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// A client ID that this instance has not given before, recognizable as of this instance.
    pub(crate) fn client(&self) -> ClientId {
        let n = self.next_client.fetch_add(1, Ordering::Relaxed);
        ClientId(u64::from(self.instance) << 32 | (n & 0xffff_ffff))
    }

    pub(crate) fn session(&self, client: ClientId) -> SessionId {
        let n = self.count().to_be_bytes();
        let mut out = [0; 16];
        let (a, b) = out.split_at_mut(8);
        a.copy_from_slice(&client.0.to_be_bytes());
        b.copy_from_slice(&self.keyed.hash(1, &n).to_be_bytes());
        SessionId(out)
    }

    pub(crate) fn state(&self, kind: Kind, stripe: u8) -> StateKey {
        let n = self.count();
        let tag = self.keyed.hash(2 + kind as u8, &n.to_be_bytes()) & 0xff_ffff;
        StateKey { kind: kind as u8, stripe, instance: self.instance as u16, id: n << 24 | tag }
    }

    /// The key of a copy-notify stateid: all but kind and stripe is a keyed hash, 80 bits that nobody can guess.
    pub(crate) fn notify(&self, stripe: u8) -> StateKey {
        let n = self.count().to_be_bytes();
        let (instance, id) = (self.keyed.hash(64, &n) as u16, self.keyed.hash(65, &n));
        StateKey { kind: Kind::Notify as u8, stripe, instance, id }
    }

    pub(crate) fn stripe(&self, key: &[u8]) -> u8 {
        (self.keyed.hash(0, key) % STRIPES as u64) as u8
    }
}

/// The seqid that follows `seqid`: never 0 (RFC 8881 8.2.2).
pub(crate) fn next_seqid(seqid: u32) -> u32 {
    if seqid == u32::MAX { 1 } else { seqid + 1 }
}

/// Checks the seqid of a stateid against the current one (RFC 8881 8.2.2): 0 fits always; a lower one is old, a higher
/// one is bad. Which of the two is lower is decided on the circle, for seqids wrap.
pub(crate) fn check_seqid(given: u32, current: u32) -> Result<(), dhow_proto::v4::Status> {
    use dhow_proto::v4::Status;
    if given == 0 || given == current {
        Ok(())
    } else if (current.wrapping_sub(given) as i32) > 0 {
        Err(Status::OLD_STATEID)
    } else {
        Err(Status::BAD_STATEID)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dhow_proto::v4::Status;

    const ID: Identity = Identity { instance: 7, secret: [3; 16] };

    #[test]
    fn others_round_trip_and_are_never_special() {
        let ids = Ids::new(&ID);
        let mut seen = std::collections::HashSet::new();
        for i in 0..1000_u32 {
            let k = ids.state(if i % 2 == 0 { Kind::Open } else { Kind::Lock }, (i % 64) as u8);
            assert_eq!(StateKey::parse(&k.other()), k);
            assert!(!k.stateid(1).is_special());
            assert!(seen.insert(k.other()), "used twice (RFC 8881 8.2.4)");
        }
    }

    #[test]
    fn client_ids_name_their_instance() {
        assert_eq!(Ids::new(&ID).client().0 >> 32, 7);
    }

    #[test]
    fn seqids_are_ordered_on_a_circle() {
        // RFC 8881 8.2.2.
        assert_eq!(check_seqid(0, 5), Ok(()));
        assert_eq!(check_seqid(5, 5), Ok(()));
        assert_eq!(check_seqid(4, 5), Err(Status::OLD_STATEID));
        assert_eq!(check_seqid(6, 5), Err(Status::BAD_STATEID));
        assert_eq!(check_seqid(u32::MAX, 1), Err(Status::OLD_STATEID));
        assert_eq!(check_seqid(1, u32::MAX), Err(Status::BAD_STATEID));
        assert_eq!(next_seqid(u32::MAX), 1);
    }
}
