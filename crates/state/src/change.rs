//! Changes of a file and its names: SETATTR, LINK, RENAME, REMOVE.
//!
//! Two things stand against one: a delegation of another client, which is recalled (RFC 8881 10.4.4), and, against the
//! end of a name (REMOVE, a RENAME onto it), an open that denies writing to others, whoever has it (18.25.4, 18.26.4).
//! Both are judged in one step under the stripe of the file, and that step leaves a reservation, the [`Change`]: while it
//! lives no delegation is given, and while a removal lives nobody is let deny writing: that OPEN is told DELAY. So whatever
//! order the halves of an OPEN and a REMOVE come in, the file that is open so keeps its name, and neither waits for the
//! other's gate while it holds something that a third one wants.
//!
//! **Where nobody has ever denied anything**, which is what POSIX clients do, a removal need not know its file: it leaves
//! an [`Unseen`]. The first OPEN that denies writing says so *before* it looks for such, and a removal is counted *before*
//! it looks whether anybody has said so; so at least one of the two sees the other.
//!
//! **In the grace period** a client may yet reclaim what stands against the change (8.4.2.1, 10.2.1). It is refused with
//! GRACE if, by the durable records, another client that has not finished may have held a delegation, or, for a removal,
//! any client an open that denies writing. Not so if the client that changes has reclaimed what nobody else's delegation can
//! have stood beside: an open for writing, or a write delegation.

use crate::State;
use crate::client::Client;
use crate::deleg::Use;
use crate::file::Stripe;
use crate::types::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Something that changes a file or its names is under way: no delegation of it is given meanwhile, and if it ends a name,
/// nobody is let deny writing.
#[must_use = "dropping it lets others in again"]
#[derive(Debug)]
pub struct Change<'a, T: Clone + Send> {
    state: &'a State<T>,
    file: FileKey,
    removes: bool,
}

impl<T: Clone + Send> Change<'_, T> {
    /// The file has another name now, or one less: for a while no other client than `by` is given a delegation of it.
    pub fn names_changed(&self, by: &Client, now: Time) {
        self.state.stripe(&self.file).lock().contend(&self.file, Some(by.id()), now);
    }
}

impl<T: Clone + Send> Drop for Change<'_, T> {
    fn drop(&mut self) {
        let mut stripe = self.state.stripe(&self.file).lock();
        if let Some(f) = stripe.files.get_mut(&self.file) {
            f.changing = f.changing.saturating_sub(1);
            f.removing = f.removing.saturating_sub(usize::from(self.removes));
        }
        stripe.drop_if_idle(&self.file);
    }
}

/// The removal of a name is under way, of a file that was not looked at.
#[must_use = "dropping it lets others in again"]
#[derive(Debug)]
pub struct Unseen<'a>(&'a AtomicUsize);

impl<'a> Unseen<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Unseen<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<T: Clone> Stripe<T> {
    /// Whether the client has what no delegation of another can have stood beside.
    fn has_it_alone(&self, client: &Client, file: &FileKey) -> bool {
        let Some(f) = self.files.get(file) else { return false };
        let writes = |key| self.opens.get(key).is_some_and(|o| o.access.write());
        f.by_owner.iter().any(|(owner, key)| owner.client == client.id() && writes(key))
            || self.holds_for_writing(client, file)
    }
}

impl<T: Clone + Send> State<T> {
    /// SETATTR, LINK or RENAME of `file` by `client`: recalls what stands against it, and keeps new delegations back until
    /// the token is dropped.
    ///
    /// # Errors
    ///
    /// A delegation stands in the way, or a client whose lease has ended; GRACE.
    pub fn begin_change(&self, client: &Client, file: &FileKey, now: Time) -> Result<Change<'_, T>, Refused> {
        self.begin(client, file, false, now)
    }

    /// As [`State::begin_change`], for a change that ends a name of `file`: not while an open of it denies writing to
    /// others, and none is let in that does until the token is dropped.
    ///
    /// # Errors
    ///
    /// FILE_OPEN, DELAY (such an OPEN is under way); as of [`State::begin_change`].
    pub fn begin_removal(&self, client: &Client, file: &FileKey, now: Time) -> Result<Change<'_, T>, Refused> {
        self.begin(client, file, true, now)
    }

    fn begin(&self, client: &Client, file: &FileKey, removes: bool, now: Time) -> Result<Change<'_, T>, Refused> {
        // Before the stripe, as the order of locks has it. Less by the time it is used, never more.
        let (delegation, denial) = if self.in_grace() {
            let grace = self.grace.lock();
            let denial = removes && grace.holds().contains(Holds::DENIALS);
            (grace.may_bring_delegation(file, client.owner()), denial)
        } else {
            (false, false)
        };
        let mut stripe = self.stripe(file).lock();
        if removes && let Some(f) = stripe.files.get(file) {
            stripe.share_conflict(f, Share::WRITE, Share::NONE, now).map_err(|e| match e {
                Refused::Status(Status::SHARE_DENIED) => Refused::Status(Status::FILE_OPEN),
                other => other,
            })?;
        }
        if denial || (delegation && !stripe.has_it_alone(client, file)) {
            return Err(Status::GRACE.into());
        }
        stripe.deleg_conflict(file, client.id(), Use::Change, now)?;
        let f = stripe.file_mut(file);
        f.changing += 1;
        f.removing += usize::from(removes);
        drop(stripe);
        Ok(Change { state: self, file: file.clone(), removes })
    }

    /// Leave to end the name of a file that is not looked at, as far as opens go. `None`: somebody has denied writing, or may
    /// reclaim that, so that the file must be known: [`State::begin_removal`].
    pub fn begin_unseen_removal(&self) -> Option<Unseen<'_>> {
        let unseen = Unseen::new(&self.unseen);
        let seen = self.denied.load(Ordering::SeqCst) || self.may_be_reclaimed().contains(Holds::DENIALS);
        (!seen).then_some(unseen)
    }

    /// Whether a change has to know its file for the sake of delegations, where none are given: some are held, or may be
    /// reclaimed.
    pub fn has_delegations(&self) -> bool {
        self.delegations() > 0 || self.may_be_reclaimed().contains(Holds::DELEGATIONS)
    }

    /// An OPEN is about to deny writing to others: whether it must come again, for names are going whose files nobody
    /// looked at.
    pub(crate) fn denies_too_early(&self) -> bool {
        self.denied.store(true, Ordering::SeqCst);
        self.unseen.load(Ordering::SeqCst) > 0
    }
}
