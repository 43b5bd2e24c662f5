//! The end of a client that may still hold state: its lease ended and it is in the way (case B32) or away for long, it
//! was replaced by a new incarnation, or it was destroyed.
//!
//! Order, each step of which the next one needs: the client dies (no request of it is admitted, no state added) and its
//! sessions go; its opens take no new I/O and the old is waited for ([`Retire::drain`]); its durable record goes
//! ([`Retire::forget`]: before anything is granted that it stood against, RFC 8881 8.4.3); its opens and delegations go,
//! file by file ([`Retire::free`]), then it goes itself ([`Retire::finish`]). Until it is freed, state counts in every
//! conflict check.

use crate::State;
use crate::client::Client;
use crate::ids::StateKey;
use crate::io::Drain;
use crate::types::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A client on its way out. Dropping this before [`Retire::finish`] leaves the rest to the next [`State::tick`].
#[must_use = "the client's state stays until the retire is finished"]
#[derive(Debug)]
pub struct Retire<'a, T: Clone + Send> {
    state: &'a State<T>,
    client: Arc<Client>,
    forget: bool,
}

impl<T: Clone + Send> Retire<'_, T> {
    /// The client.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// The durable record to be removed before [`Retire::finish`], if there is one.
    pub fn forget(&self) -> Option<&ClientOwnerId> {
        self.forget.then(|| self.client.owner())
    }

    /// Waits for the client's I/O.
    pub fn drain(&self) -> Drain {
        let mut gates = Vec::new();
        for key in self.keys() {
            if let Some(stripe) = self.state.stripe_of(&key) {
                let mut stripe = stripe.lock();
                if let Some(o) = stripe.opens.get_mut(&key) {
                    o.closing = true;
                    gates.push(o.gate.clone());
                }
                if let Some(d) = stripe.delegs.get_mut(&key) {
                    d.closing = true;
                    gates.push(d.gate.clone());
                }
            }
        }
        Drain::new(gates)
    }

    fn keys(&self) -> Vec<StateKey> {
        let mut keys: Vec<_> = self.client.states.lock().iter().copied().collect();
        keys.sort();
        keys
    }

    /// The files that the client has open or holds a delegation of: their state can be freed one by one, each under
    /// whatever the caller holds against other changes of that file.
    pub fn files(&self) -> Vec<FileKey> {
        let mut files: Vec<FileKey> = Vec::new();
        for key in self.keys() {
            if let Some(stripe) = self.state.stripe_of(&key) {
                let stripe = stripe.lock();
                files.extend(stripe.opens.get(&key).map(|o| o.file.clone()));
                // One that was revoked is in nobody's way, and goes with the client.
                files.extend(stripe.delegs.get(&key).filter(|d| d.token.is_some()).map(|d| d.file.clone()));
            }
        }
        files.sort_unstable();
        files.dedup();
        files
    }

    /// The token of its delegation of one file: what guards that at the backend is to be given up before
    /// [`Retire::free`] lets others in.
    pub fn delegation(&self, file: &FileKey) -> Option<T> {
        let stripe = self.state.stripe(file).lock();
        let key = stripe.delegation_of(file, self.client.id())?;
        stripe.deleg_token(&key).cloned()
    }

    /// Frees the client's opens, locks and delegation of one file, in one step. Its I/O must be waited for and its record
    /// forgotten.
    pub fn free(&self, file: &FileKey) -> Effects<T> {
        let mut effects = Vec::new();
        let mut stripe = self.state.stripe(file).lock();
        let own = |(owner, key): (&OwnerKey, &StateKey)| (owner.client == self.client.id()).then_some(*key);
        let mut keys: Vec<_> =
            stripe.files.get(file).map_or_else(Vec::new, |f| f.by_owner.iter().filter_map(own).collect());
        keys.sort();
        for key in keys {
            let removed = stripe.remove_open(&key, &mut effects);
            self.state.opens.fetch_sub(usize::from(removed), Ordering::Relaxed);
        }
        if let Some(key) = stripe.delegation_of(file, self.client.id()) {
            stripe.remove_deleg(&key, &mut effects);
        }
        effects
    }

    /// Frees all state that the client still has; it is gone afterwards.
    pub fn finish(self) -> Effects<T> {
        let mut effects = Vec::new();
        for key in self.keys() {
            if let Some(stripe) = self.state.stripe_of(&key) {
                let mut stripe = stripe.lock();
                let removed = stripe.remove_open(&key, &mut effects);
                stripe.remove_deleg(&key, &mut effects);
                stripe.revoked.remove(&key);
                drop(stripe);
                self.state.opens.fetch_sub(usize::from(removed), Ordering::Relaxed);
            }
        }
        self.state.forget_copies(&self.client);
        self.state.end_retire(&self.client);
        effects
    }
}

impl<T: Clone + Send> Drop for Retire<'_, T> {
    fn drop(&mut self) {
        self.client.retiring.store(false, Ordering::SeqCst);
    }
}

impl<T: Clone + Send> State<T> {
    /// Begins to retire a client: one that was killed (replaced, destroyed), or whose lease has ended and of which no
    /// request runs. `None` if there is nothing to do: it came back, is gone, or somebody else is at it (then answer
    /// DELAY to whoever it stands in the way of).
    pub fn retire(&self, id: ClientId, now: Time) -> Option<Retire<'_, T>> {
        let (client, sessions, forget) = self.start_retire(id, now)?;
        let retire = Retire { state: self, client, forget };
        sessions.iter().for_each(|s| self.end_session(s));
        self.cancel_copies(&retire.client);
        Some(retire)
    }
}
