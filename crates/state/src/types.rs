//! Small types that the modules of this crate share.

use bytes::Bytes;
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::{Add, BitAnd, BitOr, Sub};
use std::sync::Arc;
use std::time::Duration;

pub use dhow_proto::v4::{ClientId, SessionId, Stateid, Status, Verifier};

/// A moment: nanoseconds since some start that the caller chose. Never goes back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    /// The moment `secs` seconds after the start.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs * 1_000_000_000)
    }

    /// Whole milliseconds since the start.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Time passed since `earlier`; zero if that lies ahead.
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, d: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Time {
    type Output = Self;

    fn sub(self, d: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}s", self.0 as f64 / 1e9)
    }
}

/// A connection, numbered by the server; numbers are never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(pub u64);

/// What file state is kept by: the bytes of the object's identity, the same for every handle of one object.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileKey(SmallVec<[u8; 48]>);

impl FileKey {
    /// A key made of `bytes`.
    pub fn new(bytes: &[u8]) -> Self {
        Self(SmallVec::from_slice(bytes))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for FileKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileKey(")?;
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))?;
        f.write_str(")")
    }
}

/// Who asked, as far as ownership of a client ID goes: flavor and user, encoded by the server so that two requests
/// of one principal give equal bytes. Compared for equality only.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Principal(pub Bytes);

/// An open-owner or lock-owner: the client and the client's bytes for it (RFC 8881 9.1.4).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OwnerKey {
    /// The client, as its session tells; never the client ID inside the owner on the wire.
    pub client: ClientId,
    /// The client's bytes.
    pub owner: Bytes,
}

/// Access of an open, or what an open denies: any of reading and writing, in the protocol's bits
/// (OPEN4_SHARE_ACCESS_* and OPEN4_SHARE_DENY_*, RFC 8881 9.7).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Share(u8);

impl Share {
    /// Neither.
    pub const NONE: Self = Self(0);
    /// Reading.
    pub const READ: Self = Self(1);
    /// Writing.
    pub const WRITE: Self = Self(2);
    /// Both.
    pub const BOTH: Self = Self(3);

    /// From the protocol's bits; `None` if any other bit is set.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        if bits <= 3 { Some(Self(bits as u8)) } else { None }
    }

    /// The protocol's bits.
    pub const fn bits(self) -> u32 {
        self.0 as u32
    }

    /// Whether reading is in it.
    pub const fn read(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether writing is in it.
    pub const fn write(self) -> bool {
        self.0 & 2 != 0
    }

    /// Whether nothing is in it.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether all of `other` is in it.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any of `other` is in it.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for Share {
    type Output = Self;

    fn bitor(self, o: Self) -> Self {
        Self(self.0 | o.0)
    }
}

impl BitAnd for Share {
    type Output = Self;

    fn bitand(self, o: Self) -> Self {
        Self(self.0 & o.0)
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            0 => "-",
            1 => "R",
            2 => "W",
            _ => "RW",
        })
    }
}

/// What a READ, WRITE or the like is about to do with file data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IoKind {
    /// READ, READ_PLUS, SEEK, source of COPY and CLONE.
    Read,
    /// WRITE, SETATTR of size, ALLOCATE, DEALLOCATE, target of COPY and CLONE.
    Write,
}

impl IoKind {
    /// The access that it needs.
    pub const fn needs(self) -> Share {
        match self {
            Self::Read => Share::READ,
            Self::Write => Share::WRITE,
        }
    }
}

/// The state of one file and owner that must be given back to the backend: a value, carried out by the server.
#[derive(Debug)]
#[non_exhaustive]
pub enum Effect<T> {
    /// End an open: hand the token to the backend's `close`.
    Close(T),
    /// Give up all locks of `owner` on the file; comes before the [`Effect::Close`] of the open they were taken with.
    Unlock {
        /// The file.
        file: FileKey,
        /// A token of an open of the file.
        open: T,
        /// Whose locks.
        owner: OwnerKey,
    },
    /// The lease of this client ended and its state stands in the way, or it never came back, or it was replaced:
    /// run [`crate::State::retire`] for it.
    Retire(ClientId),
    /// A recalled delegation was not returned in time: revoke it by [`crate::State::plan_revoke`].
    Revoke(Stateid),
    /// There are nearly too many delegations: ask the client to keep so many (CB_RECALL_ANY, RFC 8881 20.6).
    RecallAny {
        /// Whom.
        client: ClientId,
        /// How many it may keep.
        keep: u32,
    },
    /// Memory for replies runs short: ask for a smaller slot table (CB_RECALL_SLOT, RFC 8881 20.8).
    RecallSlot {
        /// Of which session.
        session: SessionId,
        /// The highest slot that is to be used.
        target: u32,
    },
    /// A lock may be had by one who waits for it (CB_NOTIFY_LOCK, RFC 8881 20.11).
    NotifyLock(crate::LockNotice<T>),
    /// The grace period's time is up: remove the durable records of these client owners (RFC 8881 8.4.3), then call
    /// [`crate::State::grace_over`].
    EndGrace(Vec<ClientOwnerId>),
    /// The grace period is over; nothing to do but to say so.
    GraceEnded,
}

/// What is to be done; the order matters.
pub type Effects<T> = Vec<Effect<T>>;

/// The string by which a client calls itself (`co_ownerid`), at most 1024 bytes; the key of durable records.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientOwnerId(pub Bytes);

impl fmt::Debug for ClientOwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// A durable record of a client that holds state: after a restart it may reclaim (RFC 8881 8.4.2.1).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientRecord {
    /// Who.
    pub owner: ClientOwnerId,
    /// What it may hold.
    pub holds: Holds,
    /// What of it is not to be reclaimed.
    pub revoked: Revoked,
}

/// What a client holds, or has held since it is recorded, that stands against others who change a file or its names. After
/// a restart this tells which changes must wait until it has reclaimed (RFC 8881 8.4.2.1, "summary information"). Only ever
/// more: what it gave back is not worth a write to the record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Holds(u8);

impl Holds {
    /// Neither.
    pub const NONE: Self = Self(0);
    /// Delegations.
    pub const DELEGATIONS: Self = Self(1);
    /// Opens that deny writing to others, which keep names (RFC 8881 18.25.4).
    pub const DENIALS: Self = Self(2);
    /// Both.
    pub const ALL: Self = Self(3);

    /// Of a stored byte; `None` if it has unknown bits.
    pub fn from_bits(bits: u8) -> Option<Self> {
        (bits & !Self::ALL.0 == 0).then_some(Self(bits))
    }

    /// To be stored.
    pub fn bits(self) -> u8 {
        self.0
    }

    /// Whether all of `other` is in it.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// This, if the condition holds.
    pub fn when(self, condition: bool) -> Self {
        if condition { self } else { Self::NONE }
    }
}

impl std::ops::BitOr for Holds {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Files of which a client's delegation was revoked, and it has not said that it knows (FREE_STATEID): after a restart it
/// must not reclaim those delegations, for somebody else may have had the file (RFC 8881 8.4.3, 10.2.1).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Revoked {
    /// These; at most [`Revoked::MANY`].
    pub files: BTreeSet<FileKey>,
    /// There were more: none is to be reclaimed.
    pub all: bool,
}

impl Revoked {
    /// So many files are remembered one by one.
    pub const MANY: usize = 256;

    /// Nothing was revoked.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && !self.all
    }

    /// Whether the delegation of `file` was.
    pub fn contains(&self, file: &FileKey) -> bool {
        self.all || self.files.contains(file)
    }

    /// One more.
    pub fn insert(&mut self, file: FileKey) {
        if self.files.len() < Self::MANY {
            self.files.insert(file);
        } else {
            self.all = true;
        }
    }
}

/// Why a request that would take or use state is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum Refused {
    /// Answer this.
    Status(Status),
    /// State of a client whose lease has ended stands in the way (case B32): run [`crate::State::retire`] for it,
    /// then ask again.
    Courtesy(ClientId),
    /// Delegations stand in the way: send these recalls (those that nobody has sent yet), and answer DELAY unless they
    /// are returned soon (RFC 8881 10.4.4).
    Delegated(Vec<crate::Recall>),
}

impl From<Status> for Refused {
    fn from(s: Status) -> Self {
        Self::Status(s)
    }
}

/// A cached reply: the buffers of the COMPOUND result, from its status on (the RPC header is not in it, for a retry
/// may come with another XID). Shared, never copied, never changed (case B25).
pub type Reply = Arc<[Bytes]>;
