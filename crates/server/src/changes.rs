//! Leave to change a file or its names, as far as state of others goes: delegations (RFC 8881 10.4.4), opens that deny
//! writing (18.25.4, 18.26.4), and what may yet be reclaimed of both (8.4.2.1). The rules, and that they are one step with
//! the state, are in `dhow_state`'s `change`; here is when a file must be looked at, and who waits.
//!
//! Only regular files are opened, so only those have state that stands against anything: other objects are let through
//! without, in the grace period too.

use crate::exports::OpenToken;
use crate::shared::ServerShared;
use crate::v4::{Fh, OpCx};
use crate::way::Way;
use dhow_proto::v4::Status;
use dhow_state::{Change, Refused, Unseen};
use dhow_vfs::{FileKind, Name};

/// Leave to end a name.
#[must_use = "dropping it lets others in again"]
pub(crate) struct Leave<'a> {
    /// Of a file that state could stand against.
    change: Option<Change<'a, OpenToken>>,
    /// Of whatever it is.
    _unseen: Option<Unseen<'a>>,
}

impl<'a> Leave<'a> {
    fn of(change: Option<Change<'a, OpenToken>>) -> Self {
        Self { change, _unseen: None }
    }

    /// Leave to change what has that name, if anything has.
    pub fn change(&self) -> Option<&Change<'a, OpenToken>> {
        self.change.as_ref()
    }
}

impl ServerShared {
    /// Whether a change has to be judged at all: delegations are given, held, or may be reclaimed.
    fn judges_changes(&self) -> bool {
        self.delegates() || self.state.has_delegations()
    }
}

impl OpCx {
    /// Leave to change a file, with a short wait for what stands in the way; the caller holds no gate and no lock. `None`
    /// where nothing can.
    ///
    /// # Errors
    /// DELAY, GRACE.
    pub async fn change(&self, fh: &Fh) -> Result<Option<Change<'_, OpenToken>>, Status> {
        if !self.server.judges_changes() {
            return Ok(None);
        }
        let mut way = Way::default();
        loop {
            match self.server.state.begin_change(self.client()?, &fh.key(), self.server.now()) {
                Ok(change) => return Ok(Some(change)),
                Err(Refused::Status(Status::GRACE)) => {
                    // Asked only now: in the grace period alone does it matter.
                    let node = fh.backend().getattr(&fh.user, &fh.handle).await;
                    return match node {
                        Ok(attr) if attr.kind != FileKind::Regular => Ok(None),
                        _ => Err(Status::GRACE),
                    };
                }
                Err(refused) => way.clear(&self.server, refused).await?,
            }
        }
    }

    /// Leave to give what `name` leads to, if it leads to anything, another name. The caller holds the name's lock, gives
    /// it back, and then waits for what stands in the way.
    ///
    /// # Errors
    /// What stands in the way.
    pub async fn try_change_named(&self, dir: &Fh, name: &Name) -> Result<Leave<'_>, Refused> {
        if !self.server.judges_changes() {
            return Ok(Leave::of(None));
        }
        let Some(file) = self.file_at(dir, name).await else { return Ok(Leave::of(None)) };
        self.server.state.begin_change(self.client()?, &file.key(), self.server.now()).map(|c| Leave::of(Some(c)))
    }

    /// As [`OpCx::try_change_named`], for a name that is to go: not while what it leads to is open to somebody who denies
    /// writing to others.
    ///
    /// # Errors
    /// FILE_OPEN; as [`OpCx::try_change_named`].
    pub async fn try_remove_named(&self, dir: &Fh, name: &Name) -> Result<Leave<'_>, Refused> {
        // POSIX clients deny nothing: for them the name is not looked up once more.
        if !self.server.judges_changes()
            && let Some(unseen) = self.server.state.begin_unseen_removal()
        {
            return Ok(Leave { change: None, _unseen: Some(unseen) });
        }
        let Some(file) = self.file_at(dir, name).await else { return Ok(Leave::of(None)) };
        self.server.state.begin_removal(self.client()?, &file.key(), self.server.now()).map(|c| Leave::of(Some(c)))
    }

    /// The regular file that a name leads to. Whatever stands in the way of looking, the operation itself will say.
    async fn file_at(&self, dir: &Fh, name: &Name) -> Option<Fh> {
        let backend = dir.backend();
        let found = match backend.try_lookup(&dir.user, &dir.handle, name) {
            Some(found) => found,
            None => backend.lookup(&dir.user, &dir.handle, name).await,
        };
        found.ok().filter(|node| node.attr.kind == FileKind::Regular).map(|node| dir.sibling(node.handle))
    }

    /// What had a name has lost it, or has another.
    pub fn name_changed(&self, leave: &Leave<'_>) -> Result<(), Status> {
        if let Some(change) = leave.change().filter(|_| self.server.delegates()) {
            change.names_changed(self.client()?, self.server.now());
        }
        Ok(())
    }
}
