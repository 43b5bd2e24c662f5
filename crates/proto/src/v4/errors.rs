//! The errors that an entry of a table of operations allows, as both tables have them.

use super::Status;

/// Groups of errors that many entries share, and those of the entry itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Errors(pub(super) &'static [&'static [Status]]);

impl Errors {
    /// Whether `status`, an error, is among them.
    pub(super) fn contain(self, status: Status) -> bool {
        self.0.iter().any(|group| group.contains(&status))
    }

    /// All of them.
    pub(super) fn iter(self) -> impl Iterator<Item = Status> {
        self.0.iter().flat_map(|group| group.iter().copied())
    }

    /// What to answer in place of an error that is not among them: the first of `instead` that is, or `last`.
    pub(super) fn nearest(self, instead: &[Status], last: Status) -> Status {
        instead.iter().copied().find(|status| self.contain(*status)).unwrap_or(last)
    }
}
