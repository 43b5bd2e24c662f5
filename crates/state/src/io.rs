//! Tokens of I/O under a stateid, and waiting until none is left.
//!
//! READ, WRITE and the like hold an [`IoToken`] while they work. CLOSE, OPEN_DOWNGRADE and the end of a client refuse
//! new ones and wait ([`Drain`]) for the old, before others see the state freed. Taking a token locks a stripe for a
//! moment; giving it back locks nothing unless somebody waits.

use crate::State;
use crate::client::Client;
use crate::deleg::Use;
use crate::ids::{Kind, StateKey, check_seqid};
use crate::types::*;
use parking_lot::Mutex;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

/// Counts I/O under one open. Tokens are taken and the gate is shut under the stripe's mutex; given back without.
#[derive(Debug, Default)]
pub(crate) struct IoGate {
    count: AtomicUsize,
    waiting: Mutex<Vec<Waker>>,
}

impl IoGate {
    fn enter(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    fn leave(&self) {
        if self.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            let wakers = std::mem::take(&mut *self.waiting.lock());
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

/// Done when no I/O is left under some opens that take no new I/O.
#[derive(Debug, Default)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Drain {
    gates: Vec<Arc<IoGate>>,
}

impl Drain {
    pub(crate) fn new(gates: Vec<Arc<IoGate>>) -> Self {
        Self { gates }
    }

    /// Whether there is nothing to wait for.
    pub fn is_done(&self) -> bool {
        self.gates.iter().all(|g| g.count.load(Ordering::SeqCst) == 0)
    }
}

impl Future for Drain {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(gate) = self.gates.last() {
            if gate.count.load(Ordering::SeqCst) > 0 {
                {
                    let mut waiting = gate.waiting.lock();
                    if !waiting.iter().any(|w| w.will_wake(cx.waker())) {
                        waiting.push(cx.waker().clone());
                    }
                }
                // Again, for the last token may have gone before the waker was there.
                if gate.count.load(Ordering::SeqCst) > 0 {
                    return Poll::Pending;
                }
            }
            self.gates.pop();
        }
        Poll::Ready(())
    }
}

/// Leave to do I/O; the state it rests on stays as it is while the token lives. Long work (an asynchronous copy) must
/// not hold one, else CLOSE waits for its end: it takes the open out with [`IoToken::into_open`].
#[must_use = "dropping the token ends the leave"]
pub struct IoToken<T> {
    open: Option<T>,
    gate: Option<Arc<IoGate>>,
    /// Of a copy-notify stateid: in whose name, and that it is in use.
    behalf: Option<(T, Arc<()>)>,
    /// Of a write under a special stateid: no delegation is given meanwhile.
    _special: Option<Arc<()>>,
}

impl<T> IoToken<T> {
    /// The open it goes through; `None` for a special stateid.
    pub fn open(&self) -> Option<&T> {
        self.open.as_ref()
    }

    /// Leave under a copy-notify stateid; the caller holds the stripe of the open.
    pub(crate) fn on_behalf(open: T, gate: Arc<IoGate>, behalf: T, in_use: Arc<()>) -> Self {
        gate.enter();
        Self { open: Some(open), gate: Some(gate), behalf: Some((behalf, in_use)), _special: None }
    }

    /// Under a copy-notify stateid: what COPY_NOTIFY left, to act in the name of who sent it.
    pub fn behalf(&self) -> Option<&T> {
        self.behalf.as_ref().map(|(t, _)| t)
    }

    /// Gives the leave back but keeps the open file.
    pub fn into_open(mut self) -> Option<T> {
        self.open.take()
    }
}

impl<T> Drop for IoToken<T> {
    fn drop(&mut self) {
        if let Some(g) = self.gate.take() {
            g.leave();
        }
    }
}

impl<T> fmt::Debug for IoToken<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.open.is_some() { "IoToken(open)" } else { "IoToken(special)" })
    }
}

impl<T: Clone + Send> State<T> {
    /// Leave for `kind` of I/O on `file` under `stateid`: of an open, of a lock (its open counts), of a delegation, or
    /// special. The
    /// current stateid is replaced by the caller.
    ///
    /// A READ under an open for writing only is refused: no client we know of needs it, and the backend's file is open
    /// for writing only (cases B34, K29).
    ///
    /// # Errors
    ///
    /// BAD_STATEID, OLD_STATEID, OPENMODE, DELEG_REVOKED, ADMIN_REVOKED; LOCKED if an open denies this to a special stateid (RFC 8881 8.2.3); GRACE
    /// for a special stateid while somebody may still reclaim an open that denies it (case B31).
    pub fn begin_io(
        &self,
        client: &Arc<Client>,
        file: &FileKey,
        stateid: &Stateid,
        kind: IoKind,
        now: Time,
    ) -> Result<IoToken<T>, Refused> {
        if stateid.is_special() {
            return self.begin_special(client, file, stateid, kind, now);
        }
        let key = StateKey::parse(&stateid.other);
        let stripe = self.stripe_of(&key).ok_or(Status::BAD_STATEID)?;
        let mut stripe = stripe.lock();
        if key.is(Kind::Deleg) {
            let (token, gate) = stripe.deleg_io(&key, client, file, stateid, kind, now)?;
            gate.enter();
            return Ok(IoToken { open: Some(token), gate: Some(gate), behalf: None, _special: None });
        }
        let missing = stripe.missing(&key, client.id());
        let (open_key, seqid) = match key {
            k if k.is(Kind::Open) => (k, None),
            k if k.is(Kind::Lock) => {
                let l = stripe.locks.get(&k).ok_or(missing)?;
                (l.open, Some(l.seqid))
            }
            _ => return Err(Status::BAD_STATEID.into()),
        };
        let open = stripe.opens.get(&open_key).ok_or(missing)?;
        if open.client.id() != client.id() || open.file != *file {
            return Err(Status::BAD_STATEID.into());
        }
        check_seqid(stateid.seqid, seqid.unwrap_or(open.seqid))?;
        if open.closing {
            return Err(Status::DELAY.into());
        }
        if !open.access.contains(kind.needs()) {
            return Err(Status::OPENMODE.into());
        }
        open.gate.enter();
        Ok(IoToken { open: Some(open.token.clone()), gate: Some(open.gate.clone()), behalf: None, _special: None })
    }

    fn begin_special(
        &self,
        client: &Client,
        file: &FileKey,
        stateid: &Stateid,
        kind: IoKind,
        now: Time,
    ) -> Result<IoToken<T>, Refused> {
        let bypass = *stateid == Stateid::READ_BYPASS;
        if !bypass && *stateid != Stateid::ANONYMOUS {
            return Err(Status::BAD_STATEID.into());
        }
        if !(bypass && kind == IoKind::Read) {
            if self.in_grace() {
                return Err(Status::GRACE.into());
            }
            let stripe = self.stripe(file).lock();
            if let Some(f) = stripe.files.get(file) {
                stripe.share_conflict(f, kind.needs(), Share::NONE, now).map_err(|e| match e {
                    Refused::Status(Status::SHARE_DENIED) => Refused::Status(Status::LOCKED),
                    other => other,
                })?;
            }
        }
        // RFC 8881 10.4.4: also a READ or WRITE under a special stateid recalls.
        if kind == IoKind::Read && self.write_delegations() == 0 {
            return Ok(IoToken { open: None, gate: None, behalf: None, _special: None });
        }
        let mut stripe = self.stripe(file).lock();
        let usage = if kind == IoKind::Read { Use::Read } else { Use::Write };
        stripe.deleg_conflict(file, client.id(), usage, now)?;
        let special = (kind == IoKind::Write).then(|| stripe.special_writes.clone());
        Ok(IoToken { open: None, gate: None, behalf: None, _special: special })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::task::Wake;

    struct Flag(AtomicBool);

    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn the_last_token_wakes_who_waits() {
        let gate = Arc::new(IoGate::default());
        gate.enter();
        gate.enter();
        let flag = Arc::new(Flag(AtomicBool::new(false)));
        let waker = Waker::from(flag.clone());
        let mut cx = Context::from_waker(&waker);
        let mut drain = Box::pin(Drain::new(vec![gate.clone()]));
        assert!(drain.as_mut().poll(&mut cx).is_pending());
        gate.leave();
        assert!(!flag.0.load(Ordering::SeqCst));
        gate.leave();
        assert!(flag.0.load(Ordering::SeqCst));
        assert!(drain.as_mut().poll(&mut cx).is_ready());
    }
}
