//! Properties: every user has the same rights in both forms, and never more than a list that was accepted says.

use super::*;
use proptest::prelude::*;

const OWNER: u32 = 0;
const GROUP: u32 = 10;

/// What an NFSv4 list grants a user, by 6.2.1: entry after entry, for one right at a time.
fn granted(entries: &[Entry], right: u32, uid: u32, gids: &[u32]) -> Option<bool> {
    for e in entries {
        let is = match e.who {
            Who::Owner => uid == OWNER,
            Who::OwnerGroup => gids.contains(&GROUP),
            Who::Everyone => true,
            Who::User(u) => uid == u,
            Who::Group(g) => gids.contains(&g),
        };
        if is && e.flags & INHERIT_ONLY == 0 && e.mask & right != 0 {
            return Some(e.kind == ALLOW);
        }
    }
    None
}

fn bits(entries: &[Entry], dir: bool, uid: u32, gids: &[u32]) -> u8 {
    let has = |right| granted(entries, right, uid, gids) == Some(true);
    let delete = !dir || granted(entries, DELETE_CHILD, uid, gids) != Some(false);
    let mut perm = 0;
    if has(READ_DATA) {
        perm |= READ;
    }
    if has(WRITE_DATA) && has(APPEND_DATA) && delete {
        perm |= WRITE;
    }
    if has(EXECUTE_FILE) {
        perm |= EXECUTE;
    }
    perm
}

/// Few ids, so that they meet: users 0 (the owner) to 3, groups 10 (the object's) to 13.
fn posix() -> impl Strategy<Value = PosixAcl> {
    let named = prop::collection::btree_map((any::<bool>(), 0..4u32), 0..8u8, 0..5);
    (0..8u8, 0..8u8, 0..8u8, 0..8u8, named, any::<bool>()).prop_map(|(owner, group, other, mask, named, with_mask)| {
        let mut entries = vec![
            AclEntry { tag: AclTag::Owner, perm: owner },
            AclEntry { tag: AclTag::OwnerGroup, perm: group },
            AclEntry { tag: AclTag::Other, perm: other },
        ];
        if !named.is_empty() || with_mask {
            entries.push(AclEntry { tag: AclTag::Mask, perm: mask });
        }
        for ((user, id), perm) in named {
            let tag = if user { AclTag::User(id) } else { AclTag::Group(10 + id) };
            entries.push(AclEntry { tag, perm });
        }
        PosixAcl::new(entries).unwrap()
    })
}

fn who() -> impl Strategy<Value = Who> {
    prop_oneof![
        Just(Who::Owner),
        Just(Who::OwnerGroup),
        Just(Who::Everyone),
        (0..4u32).prop_map(Who::User),
        (10..14u32).prop_map(Who::Group),
    ]
}

fn nfs() -> impl Strategy<Value = Vec<Entry>> {
    let part = prop::sample::subsequence(vec![READ_DATA, WRITE_DATA, APPEND_DATA, EXECUTE_FILE, DELETE_CHILD], 1..=5);
    let entry = (prop::bool::weighted(0.7), part, who()).prop_map(|(allow, parts, who)| Entry {
        kind: if allow { ALLOW } else { DENY },
        flags: if matches!(who, Who::Group(_)) { IDENTIFIER_GROUP } else { 0 },
        mask: parts.into_iter().sum(),
        who,
    });
    prop::collection::vec(entry, 0..7)
}

/// Every user there is to tell apart.
fn everybody() -> impl Iterator<Item = (u32, Vec<u32>)> {
    (0..5u32).flat_map(|uid| {
        (0..16u32).map(move |set| (uid, (0..4).filter(|g| set & (1 << g) != 0).map(|g| 10 + g).collect()))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    /// 6.2.1, 6.3.2: the NFSv4 form grants what the POSIX list grants, to everybody.
    #[test]
    fn the_nfs_form_grants_the_same(acl in posix(), dir: bool) {
        let set = AclSet { access: acl.clone(), default: None };
        let entries = to_nfs(&set, dir);
        for (uid, gids) in everybody() {
            prop_assert_eq!(bits(&entries, dir, uid, &gids), acl.granted(OWNER, GROUP, uid, &gids), "{} {:?}", uid, gids);
        }
        // Everybody may look, and the owner may change attributes; nobody is shown rights that they have not.
        for e in &entries {
            prop_assert_eq!(e.mask & !KNOWN_MASK, 0);
            prop_assert!(e.kind == DENY || e.mask & ANYBODY == ANYBODY);
        }
    }

    /// What we show can be set again, and means the same.
    #[test]
    fn there_and_back(access in posix(), default in prop::option::of(posix()), dir: bool) {
        let set = AclSet { access, default: default.filter(|_| dir) };
        let back = from_nfs(&to_nfs(&set, dir), dir).unwrap();
        prop_assert_eq!(back.default.is_some(), set.default.is_some());
        let pairs = [(Some(&set.access), Some(&back.access)), (set.default.as_ref(), back.default.as_ref())];
        for (a, b) in pairs {
            let (Some(a), Some(b)) = (a, b) else { continue };
            for (uid, gids) in everybody() {
                prop_assert_eq!(a.granted(OWNER, GROUP, uid, &gids), b.granted(OWNER, GROUP, uid, &gids));
            }
        }
        // A second time nothing changes at all.
        prop_assert_eq!(to_nfs(&back, dir), to_nfs(&from_nfs(&to_nfs(&back, dir), dir).unwrap(), dir));
    }

    /// 6.2.1: a list that is accepted never grants more than it says.
    #[test]
    fn never_more_than_the_list_says(entries in nfs(), dir: bool) {
        if let Ok(set) = from_nfs(&entries, dir) {
            for (uid, gids) in everybody() {
                let posix = set.access.granted(OWNER, GROUP, uid, &gids);
                let says = bits(&entries, dir, uid, &gids);
                prop_assert_eq!(posix & !says, 0, "{} {:?}: {:?}", uid, gids, set);
            }
        }
    }
}

fn ace(kind: u32, who: Who, mask: u32) -> Entry {
    let flags = if matches!(who, Who::Group(_)) { IDENTIFIER_GROUP } else { 0 };
    Entry { kind, flags, mask, who }
}

const R: u32 = READ_DATA;
const W: u32 = WRITE_DATA | APPEND_DATA;
const X: u32 = EXECUTE_FILE;

#[test]
fn what_modes_look_like() {
    let shown = |mode| {
        let set = AclSet { access: PosixAcl::from_mode(mode), default: None };
        to_nfs(&set, false).iter().map(|e| (e.kind, e.who, e.mask & (R | W | X))).collect::<Vec<_>>()
    };
    assert_eq!(shown(0o644), [(ALLOW, Who::Owner, R | W), (ALLOW, Who::OwnerGroup, R), (ALLOW, Who::Everyone, R)]);
    assert_eq!(
        shown(0o406),
        [
            (DENY, Who::Owner, W),
            (ALLOW, Who::Owner, R),
            (ALLOW, Who::OwnerGroup, 0),
            (DENY, Who::OwnerGroup, R | W),
            (ALLOW, Who::Everyone, R | W)
        ]
    );
}

/// What `nfs4_setfacl -a` makes: one entry put in front of what was there.
#[test]
fn an_entry_in_front_is_taken() {
    let set = AclSet { access: PosixAcl::from_mode(0o640), default: None };
    let mut entries = vec![ace(ALLOW, Who::User(1), R | W)];
    entries.extend(to_nfs(&set, false));
    let taken = from_nfs(&entries, false).unwrap();
    assert_eq!(taken.access.perm(AclTag::User(1)), READ | WRITE);
    assert_eq!((taken.access.perm(AclTag::OwnerGroup), taken.access.mask()), (READ, READ | WRITE));
    assert_eq!(taken.access.perm(AclTag::Other), 0);
}

/// 6.2.1: a denial that POSIX would not honour is refused.
#[test]
fn a_denial_that_cannot_be_kept_is_refused() {
    // A member of group 11 must not write, not even as user 1.
    let entries = [ace(DENY, Who::Group(11), W), ace(ALLOW, Who::User(1), W), ace(ALLOW, Who::Everyone, R)];
    assert_eq!(from_nfs(&entries, false), Err(Status::ATTRNOTSUPP));
    for mask in [READ_ATTRIBUTES, READ_ACL] {
        assert_eq!(from_nfs(&[ace(DENY, Who::User(1), mask)], false), Err(Status::ATTRNOTSUPP));
    }
    assert_eq!(from_nfs(&[ace(DENY, Who::Owner, WRITE_ACL)], false), Err(Status::ATTRNOTSUPP));
    // DELETE_CHILD alone cannot be denied in a directory whose entries may be changed: then writing is not granted.
    let entries = [ace(DENY, Who::Everyone, DELETE_CHILD), ace(ALLOW, Who::Everyone, R | W | X)];
    assert_eq!(from_nfs(&entries, true).unwrap().access, PosixAcl::from_mode(0o555));
}

#[test]
fn kinds_and_flags() {
    let with = |kind, flags| [Entry { kind, flags, mask: R, who: Who::Everyone }];
    assert_eq!(from_nfs(&with(2, 0), false), Err(Status::ATTRNOTSUPP), "audit");
    assert_eq!(from_nfs(&with(3, 0), false), Err(Status::ATTRNOTSUPP), "alarm");
    assert_eq!(from_nfs(&with(ALLOW, 0x100), false), Err(Status::INVAL));
    assert_eq!(from_nfs(&[ace(ALLOW, Who::Everyone, 0x8000)], false), Err(Status::INVAL));
    for flags in [FILE_INHERIT, DIRECTORY_INHERIT, INHERIT_ONLY, 4, INHERIT | 4, 0x10, 0x20] {
        assert_eq!(from_nfs(&with(ALLOW, flags), true), Err(Status::ATTRNOTSUPP), "{flags:#x}");
    }
    assert_eq!(from_nfs(&with(ALLOW, INHERIT), false), Err(Status::ATTRNOTSUPP), "a file gives nothing on (6.2.1.4.1)");
    let both = from_nfs(&with(ALLOW, INHERIT | INHERITED), true).unwrap();
    assert_eq!(both, AclSet { access: PosixAcl::from_mode(0o444), default: Some(PosixAcl::from_mode(0o444)) });
    let only = from_nfs(&with(ALLOW, INHERIT | INHERIT_ONLY), true).unwrap();
    assert_eq!(only, AclSet { access: PosixAcl::from_mode(0), default: Some(PosixAcl::from_mode(0o444)) });
    assert_eq!(from_nfs(&[], false).unwrap().access, PosixAcl::from_mode(0), "an empty list grants nothing");
    assert_eq!(from_nfs(&vec![with(ALLOW, 0)[0]; MAX_ACES + 1], false), Err(Status::ATTRNOTSUPP));
}
