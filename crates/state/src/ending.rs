//! Waiting for the end of a client: what waits on its behalf (for a name that others update) should not go on waiting
//! once nobody is there to be answered.

use crate::client::Client;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Who is to be woken when a client begins to die. Leaf lock.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    waiting: Mutex<(u64, BTreeMap<u64, Waker>)>,
}

impl Ending {
    /// The client is dying: whoever looks from now on sees that by itself.
    pub(crate) fn wake(&self) {
        let waiting = std::mem::take(&mut self.waiting.lock().1);
        waiting.into_values().for_each(Waker::wake);
    }
}

/// Done when the client begins to die: it was replaced or destroyed, or its lease ended (which a request of its own that
/// runs puts off, RFC 8881 8.3).
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct End {
    client: Arc<Client>,
    place: Option<u64>,
}

impl Client {
    /// Waits for its end.
    pub fn end(self: &Arc<Self>) -> End {
        End { client: Arc::clone(self), place: None }
    }
}

impl Future for End {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let waker = cx.waker().clone();
        let (place, old) = {
            let mut waiting = self.client.ending.waiting.lock();
            let place = self.place.unwrap_or_else(|| {
                waiting.0 += 1;
                waiting.0
            });
            (place, waiting.1.insert(place, waker))
        };
        // Not under the lock: it may end a task that waits here too.
        drop(old);
        self.place = Some(place);
        // After the waker is there, so that an end in between is not missed.
        if self.client.is_dying() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let old = self.client.ending.waiting.lock().1.remove(&place);
            drop(old);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{ClientId, ClientOwnerId, Principal, Time, Verifier};
    use bytes::Bytes;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;
    use std::time::Duration;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// C5: a wait ends with the client's lease.
    #[test]
    fn waiters_hear_of_the_end_and_leave_nothing() {
        let owner = ClientOwnerId(Bytes::from_static(b"c"));
        let who = Principal(Bytes::new());
        let client =
            Client::new(ClientId(1), owner, Verifier::default(), who, Duration::from_secs(10), Time::default());
        let client = Arc::new(client);
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let mut cx = Context::from_waker(&waker);
        let (mut a, mut b, mut c) = (client.end(), client.end(), client.end());
        for end in [&mut a, &mut b, &mut c] {
            assert!(Pin::new(&mut *end).poll(&mut cx).is_pending());
            assert!(Pin::new(end).poll(&mut cx).is_pending(), "asked twice it waits once");
        }
        drop(c);
        assert_eq!(client.ending.waiting.lock().1.len(), 2);
        assert!(!client.kill_if_expired(Time::from_secs(5)));
        assert_eq!(count.0.load(Ordering::SeqCst), 0);
        assert!(client.kill_if_expired(Time::from_secs(11)));
        assert_eq!(count.0.load(Ordering::SeqCst), 2);
        assert!(Pin::new(&mut a).poll(&mut cx).is_ready());
        assert!(Pin::new(&mut client.end()).poll(&mut cx).is_ready());
        drop((a, b));
        assert!(client.ending.waiting.lock().1.is_empty());
    }
}
