//! What the races are compared with: opens, locks and removals of one file, known one thing at a time (RFC 8881 8.2, 9.5,
//! 9.7, 18.25.4). Delegations are in [`Delegs`].

use super::*;

pub(super) struct RefOpen {
    pub(super) other: [u8; 12],
    pub(super) seqid: u32,
    pub(super) access: u32,
    pub(super) deny: u32,
    pub(super) asked: Vec<(u32, u32)>,
    pub(super) closing: bool,
    pub(super) io: usize,
    pub(super) token: u32,
    pub(super) lock: Option<([u8; 12], u32)>,
}

/// A stateid that was taken away, and of locks the open's.
pub(super) type Taken = ([u8; 12], Option<[u8; 12]>);

/// The reference.
#[derive(Default)]
pub(super) struct Reference {
    /// One open-owner and one lock-owner for each client.
    pub(super) opens: BTreeMap<usize, RefOpen>,
    pub(super) cells: [[u8; CELLS]; 2],
    /// Opens and locks in the making, by who makes them.
    pub(super) opening: BTreeMap<usize, (usize, u32, u32)>,
    pub(super) locking: BTreeMap<usize, (usize, usize, bool)>,
    pub(super) delegs: Delegs,
    /// Removals of the file's name under way.
    pub(super) removing: usize,
    /// Stateids that an administrator took away and their client has not freed; those of locks with the open that they were
    /// taken through, with which they go.
    pub(super) taken: Vec<(usize, Taken)>,
    pub(super) ids: [ClientId; 3],
    pub(super) expired: bool,
    pub(super) dying: bool,
}

pub(super) fn share(bits: u32) -> Share {
    Share::from_bits(bits).unwrap()
}

impl Reference {
    pub(super) fn may_go(&self, c: usize) -> bool {
        c == 0 && (self.expired || self.dying)
    }

    /// Why there is nothing under a stateid of a client.
    pub(super) fn missing(&self, c: usize, other: [u8; 12]) -> Status {
        let taken = self.taken.iter().any(|(by, (taken, _))| (*by, *taken) == (c, other));
        if taken { Status::ADMIN_REVOKED } else { Status::BAD_STATEID }
    }

    /// An administrator took these from a client, which is not on its way out.
    pub(super) fn take(&mut self, c: usize, others: impl IntoIterator<Item = Taken>) {
        if c != 0 || !self.dying {
            self.taken.extend(others.into_iter().map(|taken| (c, taken)));
        }
    }

    /// `claims` names the delegation by whose right it is.
    pub(super) fn open(
        &mut self,
        c: usize,
        access: u32,
        deny: u32,
        claims: Option<[u8; 12]>,
        now: Time,
    ) -> Result<(), Refused> {
        if c == 0 && self.dying {
            return Err(Status::DEADSESSION.into());
        }
        self.share(access, deny)?;
        // RFC 8881 18.25.4: who denies writing keeps the name, and this one is going.
        if deny & 2 != 0 && self.removing > 0 {
            return Err(Status::DELAY.into());
        }
        if self.opens.get(&c).is_some_and(|o| o.closing) {
            return Err(Status::DELAY.into());
        }
        if let Some(other) = claims {
            let missing = self.missing(c, other);
            self.delegs.claim(c, access, missing)?;
        }
        self.deleg_conflict(c, Use::Open { access: share(access), deny: share(deny) }, now)
    }

    /// Share reservations (RFC 8881 9.7).
    pub(super) fn share(&self, access: u32, deny: u32) -> Result<(), Refused> {
        let stands = |a: u32, d: u32| access & d != 0 || deny & a != 0;
        let against: Vec<usize> =
            self.opens.iter().filter(|(_, o)| stands(o.access, o.deny)).map(|(c, _)| *c).collect();
        if against.iter().any(|c| !self.may_go(*c)) {
            return Err(Status::SHARE_DENIED.into());
        }
        if !against.is_empty() {
            return Err(Refused::Courtesy(self.ids[0]));
        }
        let making = self.opening.values().any(|(_, a, d)| stands(*a, *d));
        if making { Err(Status::DELAY.into()) } else { Ok(()) }
    }

    /// The open of a stateid that a client has from before.
    pub(super) fn find(&self, c: usize, known: &Stateid) -> Result<&RefOpen, Status> {
        let there = self.opens.get(&c).filter(|o| o.other == known.other);
        let o = there.ok_or(self.missing(c, known.other))?;
        seqid(known.seqid, o.seqid)?;
        if o.closing { Err(Status::DELAY) } else { Ok(o) }
    }

    pub(super) fn find_lock(&self, c: usize, known: &Stateid) -> Result<&RefOpen, Status> {
        let of = |o: &&RefOpen| o.lock.is_some_and(|l| l.0 == known.other);
        let o = self.opens.get(&c).filter(of).ok_or(self.missing(c, known.other))?;
        seqid(known.seqid, o.lock.unwrap().1)?;
        if o.closing { Err(Status::DELAY) } else { Ok(o) }
    }

    pub(super) fn lock(&self, c: usize, o: &RefOpen, first: usize, write: bool) -> Result<(), LockRefused> {
        if o.access & if write { 2 } else { 1 } == 0 {
            return Err(Status::OPENMODE.into());
        }
        let range = first..first + 2;
        let meets = |f: usize| f < range.end && first < f + 2;
        if self.locking.values().any(|(by, f, w)| *by != c && meets(*f) && (*w || write)) {
            return Err(Status::DELAY.into());
        }
        if self.cells[1 - c][range].iter().any(|l| *l == 2 || *l == 1 && write) {
            return Err(if self.may_go(1 - c) { LockRefused::Courtesy(self.ids[0]) } else { Status::DENIED.into() });
        }
        Ok(())
    }

    pub(super) fn close(&mut self, c: usize) {
        if let Some(gone) = self.opens.remove(&c) {
            self.taken.retain(|(_, (_, open))| *open != Some(gone.other));
        }
        self.cells[c] = [0; CELLS];
    }
}

pub(super) fn seqid(given: u32, now: u32) -> Result<(), Status> {
    match given {
        0 => Ok(()),
        n if n == now => Ok(()),
        n if n < now => Err(Status::OLD_STATEID),
        _ => Err(Status::BAD_STATEID),
    }
}
