//! Access control lists: NFSv4's (RFC 8881 6.2) and POSIX's, each from the other. Pure.
//!
//! What is stored and enforced is the POSIX list. Its NFSv4 form grants every user exactly the same single rights:
//! entries of one kind come before those that stand behind them in POSIX, and what a more special entry lacks but a
//! later one grants is denied in between. (POSIX wants several rights asked for at once in one entry; NFSv4 has no such
//! rule. A member of two groups may see both rights allowed and be refused an open for both.)
//!
//! The way back follows 6.2.1: "the server must not accept ACLs that appear to make access to the file more restrictive
//! than it really is". Rights of each class are what the list grants to it alone (6.3.2); then every kind of user that
//! the two forms can tell apart is compared. Where POSIX would grant what the list denies, the list is refused; where it
//! grants less, the list is taken and shows itself narrower when it is read. It is enough to compare users with no, one
//! and two of the groups that are named: in NFSv4 the first entry decides about a right, and it belongs to one of them.
//!
//! Inheritance: an entry to be inherited must say so for files and for directories, as the default list of POSIX knows
//! one kind of it.

use dhow_proto::v4::Status;
use dhow_vfs::acl::{EXECUTE, READ, WRITE};
use dhow_vfs::{AclEntry, AclSet, AclTag, PosixAcl};
use std::collections::{BTreeMap, BTreeSet};

/// ACE4_ACCESS_ALLOWED_ACE_TYPE.
pub(crate) const ALLOW: u32 = 0;
/// ACE4_ACCESS_DENIED_ACE_TYPE.
pub(crate) const DENY: u32 = 1;
/// ACL4_SUPPORT_ALLOW_ACL and ACL4_SUPPORT_DENY_ACL (6.2.1.2).
pub(crate) const SUPPORT: u32 = 0x3;

const FILE_INHERIT: u32 = 0x01;
const DIRECTORY_INHERIT: u32 = 0x02;
const INHERIT_ONLY: u32 = 0x08;
/// ACE4_IDENTIFIER_GROUP.
pub(crate) const IDENTIFIER_GROUP: u32 = 0x40;
const INHERITED: u32 = 0x80;
const INHERIT: u32 = FILE_INHERIT | DIRECTORY_INHERIT;
/// NO_PROPAGATE, and the two of audits and alarms: known, and not to be had here.
const KNOWN_FLAGS: u32 = 0xff;

const READ_DATA: u32 = 0x1;
const WRITE_DATA: u32 = 0x2;
const APPEND_DATA: u32 = 0x4;
const EXECUTE_FILE: u32 = 0x20;
const DELETE_CHILD: u32 = 0x40;
const READ_ATTRIBUTES: u32 = 0x80;
const WRITE_ATTRIBUTES: u32 = 0x100;
const READ_ACL: u32 = 0x2_0000;
const WRITE_ACL: u32 = 0x4_0000;
const WRITE_OWNER: u32 = 0x8_0000;
const SYNCHRONIZE: u32 = 0x10_0000;
const KNOWN_MASK: u32 = 0x1f_07ff;

/// What everybody may, whatever a list says.
const ANYBODY: u32 = READ_ATTRIBUTES | READ_ACL | SYNCHRONIZE;
/// What the owner may besides.
const OWNERS: u32 = WRITE_ATTRIBUTES | WRITE_ACL;

/// Entries of a list that is set, at most: as many as fit into one extended attribute, and room for the denials.
pub(crate) const MAX_ACES: usize = 1024;

/// Whom an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Who {
    /// OWNER@.
    Owner,
    /// GROUP@.
    OwnerGroup,
    /// EVERYONE@: really everyone.
    Everyone,
    /// A user.
    User(u32),
    /// A group.
    Group(u32),
}

/// An entry whose name has become a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// [`ALLOW`] or [`DENY`]; or another type, to be refused.
    pub kind: u32,
    /// Flags.
    pub flags: u32,
    /// Rights.
    pub mask: u32,
    /// Whom.
    pub who: Who,
}

/// The rights that three bits stand for.
fn rights(perm: u8, dir: bool) -> u32 {
    let mut mask = 0;
    if perm & READ != 0 {
        mask |= READ_DATA;
    }
    if perm & WRITE != 0 {
        mask |= WRITE_DATA | APPEND_DATA | if dir { DELETE_CHILD } else { 0 };
    }
    if perm & EXECUTE != 0 {
        mask |= EXECUTE_FILE;
    }
    mask
}

/// One POSIX list as NFSv4 entries, each with `flags`.
fn list(acl: &PosixAcl, dir: bool, flags: u32, out: &mut Vec<Entry>) {
    let group_flag = |who| if matches!(who, Who::Group(_)) { IDENTIFIER_GROUP } else { 0 };
    let allow = |who, perm| {
        let more = ANYBODY | if who == Who::Owner { OWNERS } else { 0 };
        Entry { kind: ALLOW, flags: flags | group_flag(who), mask: rights(perm, dir) | more, who }
    };
    let deny = |who, perm: u8| {
        let entry = Entry { kind: DENY, flags: flags | group_flag(who), mask: rights(perm, dir), who };
        (perm != 0).then_some(entry)
    };
    let (owner, other) = (acl.perm(AclTag::Owner), acl.perm(AclTag::Other));
    let (mut users, mut groups) = (Vec::new(), Vec::new());
    for entry in acl.entries() {
        let perm = entry.perm & acl.mask();
        match entry.tag {
            AclTag::User(uid) => users.push((Who::User(uid), perm)),
            AclTag::OwnerGroup => groups.push((Who::OwnerGroup, perm)),
            AclTag::Group(gid) => groups.push((Who::Group(gid), perm)),
            AclTag::Owner | AclTag::Mask | AclTag::Other => {}
        }
    }
    // What later entries grant, that these must not get from them.
    let by_groups = groups.iter().fold(other, |all, (_, perm)| all | perm);
    let by_users = users.iter().fold(by_groups, |all, (_, perm)| all | perm);
    out.extend(deny(Who::Owner, !owner & by_users));
    out.push(allow(Who::Owner, owner));
    for (who, perm) in users {
        out.extend(deny(who, !perm & by_groups));
        out.push(allow(who, perm));
    }
    out.extend(groups.iter().map(|(who, perm)| allow(*who, *perm)));
    // Behind all that groups are allowed: a member of several has what any of them has.
    out.extend(groups.iter().filter_map(|(who, perm)| deny(*who, !perm & other)));
    out.push(allow(Who::Everyone, other));
}

/// The lists of an object as one NFSv4 list.
pub(crate) fn to_nfs(acl: &AclSet, dir: bool) -> Vec<Entry> {
    let mut out = Vec::new();
    list(&acl.access, dir, 0, &mut out);
    if let Some(default) = acl.default.as_ref().filter(|_| dir) {
        list(default, dir, INHERIT | INHERIT_ONLY, &mut out);
    }
    out
}

/// For each right, and each whom, the first entry that mentions it.
struct Index {
    /// Rights in the order of [`PARTS`]: which entry, and whether it allows.
    first: BTreeMap<Who, [Option<(usize, bool)>; PARTS.len()]>,
}

/// The rights that are looked at one by one, and the bit that each is a part of; none for those that users, or owners,
/// always have here.
const PARTS: [(u32, u8); 10] = [
    (READ_DATA, READ),
    (WRITE_DATA, WRITE),
    (APPEND_DATA, WRITE),
    (DELETE_CHILD, WRITE),
    (EXECUTE_FILE, EXECUTE),
    (READ_ATTRIBUTES, 0),
    (READ_ACL, 0),
    (WRITE_ATTRIBUTES, 0),
    (WRITE_ACL, 0),
    (WRITE_OWNER, 0),
];

impl Index {
    fn new(entries: &[Entry]) -> Self {
        let mut first: BTreeMap<Who, [Option<(usize, bool)>; PARTS.len()]> = BTreeMap::new();
        for (i, entry) in entries.iter().enumerate() {
            let of = first.entry(entry.who).or_default();
            for (slot, (right, _)) in of.iter_mut().zip(PARTS) {
                if slot.is_none() && entry.mask & right != 0 {
                    *slot = Some((i, entry.kind == ALLOW));
                }
            }
        }
        Self { first }
    }

    /// What the list says of each right to somebody who is all of `whom`, and everyone: allowed, denied, or nothing.
    fn verdicts(&self, whom: &[Who]) -> [Option<bool>; PARTS.len()] {
        let mut best: [Option<(usize, bool)>; PARTS.len()] = Default::default();
        for who in whom.iter().chain([&Who::Everyone]) {
            let Some(of) = self.first.get(who) else { continue };
            for (slot, found) in best.iter_mut().zip(of) {
                if let Some(found) = found
                    && slot.is_none_or(|(i, _)| found.0 < i)
                {
                    *slot = Some(*found);
                }
            }
        }
        best.map(|b| b.map(|(_, allowed)| allowed))
    }

    /// The bits whose every part somebody has (6.3.2). A directory's DELETE_CHILD need not be mentioned (6.2.1.3.2).
    fn perm(&self, whom: &[Who], dir: bool) -> u8 {
        let mut perm = READ | WRITE | EXECUTE;
        for (verdict, (right, bit)) in self.verdicts(whom).into_iter().zip(PARTS) {
            let has = match right {
                DELETE_CHILD => !dir || verdict != Some(false),
                _ => verdict == Some(true),
            };
            if !has {
                perm &= !bit;
            }
        }
        perm
    }

    /// Whether a right of `rights` is denied to somebody.
    fn denies(&self, whom: &[Who], rights: u32) -> bool {
        let all = self.verdicts(whom).into_iter().zip(PARTS);
        all.into_iter().any(|(verdict, (right, _))| rights & right != 0 && verdict == Some(false))
    }
}

/// One POSIX list from NFSv4 entries.
fn from_list(entries: &[Entry], dir: bool) -> Result<PosixAcl, Status> {
    let index = Index::new(entries);
    let named = |user: bool| {
        let of = move |who: &Who| matches!(who, Who::User(_)) == user && matches!(who, Who::User(_) | Who::Group(_));
        index.first.keys().copied().filter(of).collect::<BTreeSet<_>>()
    };
    let (users, groups) = (named(true), named(false));
    let mut posix = Vec::new();
    let mut perms = BTreeMap::new();
    let mut add = |tag, whom: Option<Who>| {
        let perm = index.perm(whom.as_slice(), dir);
        posix.push(AclEntry { tag, perm });
        if let Some(who) = whom {
            perms.insert(who, perm);
        }
        perm
    };
    add(AclTag::Owner, Some(Who::Owner));
    let mut mask = add(AclTag::OwnerGroup, Some(Who::OwnerGroup));
    let other = add(AclTag::Other, None);
    for who in users.iter().chain(&groups) {
        match who {
            Who::User(uid) => mask |= add(AclTag::User(*uid), Some(*who)),
            Who::Group(gid) => mask |= add(AclTag::Group(*gid), Some(*who)),
            _ => {}
        }
    }
    if !users.is_empty() || !groups.is_empty() {
        posix.push(AclEntry { tag: AclTag::Mask, perm: mask });
    }
    // Nobody may have more than the list says.
    let perm_of = |who: &Who| perms.get(who).copied().unwrap_or_default();
    // Nor can anybody be kept from looking, or an owner from changing attributes.
    let fits = |whom: &[Who], perm: u8| {
        let always = READ_ATTRIBUTES | READ_ACL | if whom.contains(&Who::Owner) { OWNERS | WRITE_OWNER } else { 0 };
        index.perm(whom, dir) & perm == perm && !index.denies(whom, always)
    };
    let groups: Vec<Who> = [Who::OwnerGroup].into_iter().chain(groups).collect();
    let alone = std::iter::once(None).chain(groups.iter().copied().map(Some));
    for group in alone {
        let with = |who: Who| [Some(who), group].into_iter().flatten().collect::<Vec<_>>();
        let mut fine = fits(&with(Who::Owner), perm_of(&Who::Owner));
        for user in &users {
            fine &= fits(&with(*user), perm_of(user));
            // The owner may be a user who is named, and is the owner then.
            let both: Vec<Who> = [Who::Owner, *user].into_iter().chain(group).collect();
            fine &= fits(&both, perm_of(&Who::Owner));
        }
        fine &= match group {
            None => fits(&[], other),
            Some(group) => groups.iter().all(|second| fits(&[group, *second], perm_of(&group) | perm_of(second))),
        };
        if !fine {
            return Err(Status::ATTRNOTSUPP);
        }
    }
    PosixAcl::new(posix).ok_or(Status::SERVERFAULT)
}

/// The POSIX lists that an NFSv4 list becomes, of an object that is a directory or not.
///
/// # Errors
/// ATTRNOTSUPP: it cannot be kept without granting more than it says, or asks for audits, alarms, or a kind of
/// inheritance that POSIX has not (6.2.1.2, 6.2.1.4); INVAL: bits that nobody knows.
pub(crate) fn from_nfs(entries: &[Entry], dir: bool) -> Result<AclSet, Status> {
    if entries.len() > MAX_ACES {
        return Err(Status::ATTRNOTSUPP);
    }
    let (mut access, mut default) = (Vec::new(), Vec::new());
    for entry in entries {
        if entry.mask & !KNOWN_MASK != 0 || entry.flags & !KNOWN_FLAGS != 0 {
            return Err(Status::INVAL);
        }
        if !matches!(entry.kind, ALLOW | DENY) {
            return Err(Status::ATTRNOTSUPP);
        }
        // The group flag of special names is ignored, and that of inherited entries cleared.
        let flags = entry.flags & !(IDENTIFIER_GROUP | INHERITED);
        let inherited = match flags {
            0 => false,
            INHERIT => true,
            f if f == INHERIT | INHERIT_ONLY => true,
            _ => return Err(Status::ATTRNOTSUPP),
        };
        if inherited && !dir {
            return Err(Status::ATTRNOTSUPP);
        }
        if flags & INHERIT_ONLY == 0 {
            access.push(*entry);
        }
        if inherited {
            default.push(*entry);
        }
    }
    let default = if default.is_empty() { None } else { Some(from_list(&default, dir)?) };
    Ok(AclSet { access: from_list(&access, dir)?, default })
}

#[cfg(test)]
mod tests;
