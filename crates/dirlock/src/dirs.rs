//! What the updates of a namespace claim: the table of the crate's header, in code.

use crate::table::{Claim, Locks, Mode};

/// What can be claimed. `D` identifies a directory, `N` is a name in it, `F` a filesystem.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key<D, N, F> {
    /// A directory as a whole.
    Directory(D),
    /// A name in a directory.
    Name(D, N),
    /// The moves of directories from one directory to another in a filesystem.
    Moves(F),
}

/// Locks of a namespace.
pub type DirLocks<D, N, F> = Locks<Key<D, N, F>>;

/// What one update claims.
#[derive(Clone, Debug)]
pub struct Claims<D, N, F>(Vec<Claim<Key<D, N, F>>>);

impl<D: Clone, N, F> Claims<D, N, F> {
    /// Of an update of one name.
    pub fn name(dir: D, name: N) -> Self {
        Self(vec![
            Claim { key: Key::Directory(dir.clone()), mode: Mode::Shared },
            Claim { key: Key::Name(dir, name), mode: Mode::Exclusive },
        ])
    }

    /// Of an update of two names, which may be one.
    pub fn names(a: (D, N), b: (D, N)) -> Self {
        let mut both = Self::name(a.0, a.1);
        both.0.extend(Self::name(b.0, b.1).0);
        both
    }

    /// And a directory is removed.
    #[must_use]
    pub fn removing(mut self, dir: D) -> Self {
        self.0.push(Claim { key: Key::Directory(dir), mode: Mode::Exclusive });
        self
    }

    /// And a directory moves to another directory.
    #[must_use]
    pub fn moving(mut self, filesystem: F) -> Self {
        self.0.push(Claim { key: Key::Moves(filesystem), mode: Mode::Exclusive });
        self
    }

    /// For [`Locks::request`].
    pub fn into_vec(self) -> Vec<Claim<Key<D, N, F>>> {
        self.0
    }
}
