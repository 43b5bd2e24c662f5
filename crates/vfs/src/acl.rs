//! POSIX access control lists (the withdrawn draft POSIX.1e, as Linux has it): what a local filesystem enforces.

/// Reading.
pub const READ: u8 = 4;
/// Writing.
pub const WRITE: u8 = 2;
/// Executing, or searching a directory.
pub const EXECUTE: u8 = 1;

/// Whom an entry is about; the order is the one that the kernel wants entries in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AclTag {
    /// The owner of the object.
    Owner,
    /// A user.
    User(u32),
    /// The owning group of the object.
    OwnerGroup,
    /// A group.
    Group(u32),
    /// The most that users and groups (but the owner) can have.
    Mask,
    /// Everybody else.
    Other,
}

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AclEntry {
    /// Whom it is about.
    pub tag: AclTag,
    /// Any of [`READ`], [`WRITE`], [`EXECUTE`].
    pub perm: u8,
}

/// A list: in the order of tags, each tag once; [`AclTag::Owner`], [`AclTag::OwnerGroup`] and [`AclTag::Other`] always
/// there, and [`AclTag::Mask`] if any user or group is named.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PosixAcl(Vec<AclEntry>);

impl PosixAcl {
    /// The list that says what nine permission bits say.
    pub fn from_mode(mode: u32) -> Self {
        let bits = |shift: u32| ((mode >> shift) & 7) as u8;
        Self(vec![
            AclEntry { tag: AclTag::Owner, perm: bits(6) },
            AclEntry { tag: AclTag::OwnerGroup, perm: bits(3) },
            AclEntry { tag: AclTag::Other, perm: bits(0) },
        ])
    }

    /// A list of these entries, in any order; `None` if they are no list: a tag missing, twice, or bits unknown.
    pub fn new(mut entries: Vec<AclEntry>) -> Option<Self> {
        entries.sort_unstable();
        let has = |tag| entries.iter().any(|e| e.tag == tag);
        let twice = entries.windows(2).any(|pair| matches!(pair, [a, b] if a.tag == b.tag));
        let named = entries.iter().any(|e| matches!(e.tag, AclTag::User(_) | AclTag::Group(_)));
        let whole = has(AclTag::Owner) && has(AclTag::OwnerGroup) && has(AclTag::Other);
        let fine = whole && !twice && (!named || has(AclTag::Mask)) && entries.iter().all(|e| e.perm & !7 == 0);
        fine.then_some(Self(entries))
    }

    /// The entries, in order.
    pub fn entries(&self) -> &[AclEntry] {
        &self.0
    }

    /// The bits of an entry, without the mask; 0 if there is none.
    pub fn perm(&self, tag: AclTag) -> u8 {
        self.0.iter().find(|e| e.tag == tag).map_or(0, |e| e.perm)
    }

    /// The mask: all bits if there is none.
    pub fn mask(&self) -> u8 {
        self.0.iter().find(|e| e.tag == AclTag::Mask).map_or(7, |e| e.perm)
    }

    /// Whether it says no more than permission bits can.
    pub fn is_minimal(&self) -> bool {
        self.0.len() == 3
    }

    /// Which single bits a user has, `owner` and `group` being the object's. (Linux wants several bits asked for at
    /// once to be in one entry; a user of two groups may have each bit and yet not both together.)
    pub fn granted(&self, owner: u32, group: u32, uid: u32, gids: &[u32]) -> u8 {
        if uid == owner {
            return self.perm(AclTag::Owner);
        }
        if let Some(entry) = self.0.iter().find(|e| e.tag == AclTag::User(uid)) {
            return entry.perm & self.mask();
        }
        let mut in_group = false;
        let mut bits = 0;
        for entry in &self.0 {
            let gid = match entry.tag {
                AclTag::OwnerGroup => group,
                AclTag::Group(gid) => gid,
                _ => continue,
            };
            if gids.contains(&gid) {
                in_group = true;
                bits |= entry.perm;
            }
        }
        if in_group { bits & self.mask() } else { self.perm(AclTag::Other) }
    }
}

/// The lists of one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AclSet {
    /// Who may use it.
    pub access: PosixAcl,
    /// What objects made in this directory start with.
    pub default: Option<PosixAcl>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_whole_or_none() {
        let e = |tag, perm| AclEntry { tag, perm };
        use AclTag::*;
        let acl = PosixAcl::from_mode(0o640);
        assert_eq!(acl.entries(), [e(Owner, 6), e(OwnerGroup, 4), e(Other, 0)]);
        assert!(acl.is_minimal());
        assert_eq!(PosixAcl::new(vec![e(Other, 0), e(OwnerGroup, 4), e(Owner, 6)]), Some(acl));
        let named = vec![e(Owner, 7), e(User(5), 6), e(OwnerGroup, 5), e(Mask, 4), e(Other, 1)];
        let acl = PosixAcl::new(named.clone()).unwrap();
        assert_eq!(acl.granted(1, 1, 1, &[9]), 7);
        assert_eq!(acl.granted(1, 1, 5, &[1]), 4, "the mask binds named users");
        assert_eq!(acl.granted(1, 1, 6, &[1]), 4, "and groups");
        assert_eq!(acl.granted(1, 1, 6, &[2]), 1);
        let without = |i: usize| [&named[..i], &named[i + 1..]].concat();
        for i in [0, 2, 3, 4] {
            assert_eq!(PosixAcl::new(without(i)), None);
        }
        assert_eq!(PosixAcl::new([named.clone(), vec![e(User(5), 1)]].concat()), None);
        assert_eq!(PosixAcl::new(vec![e(Owner, 8), e(OwnerGroup, 4), e(Other, 0)]), None);
    }
}
