//! When to renew the lease (RFC 8881 section 8.3).

use core::time::Duration;

use crate::Time;

/// Follows one client ID's lease. Any successful SEQUENCE renews it, so a busy client never needs a renewal of its
/// own.
///
/// The lease counts from when the server *executed* the request, which the client cannot know; the time of *sending* is
/// the safe bound.
#[derive(Debug, Clone)]
pub struct Lease {
    length: Duration,
    renewed: Time,
}

impl Lease {
    /// A lease of `length` (attribute `lease_time`) that was renewed by a request sent at `sent`.
    pub fn new(length: Duration, sent: Time) -> Self {
        Self { length: length.max(Duration::from_secs(1)), renewed: sent }
    }

    /// Length of the lease.
    pub fn length(&self) -> Duration {
        self.length
    }

    /// The server's lease length became known, or changed.
    pub fn set_length(&mut self, length: Duration) {
        self.length = length.max(Duration::from_secs(1));
    }

    /// A SEQUENCE sent at `sent` succeeded. Replies come in any order: only the latest counts.
    pub fn renewed(&mut self, sent: Time) {
        self.renewed = self.renewed.max(sent);
    }

    /// When a renewal should be sent at the latest: half the lease leaves room for a reconnect and one more try.
    pub fn due(&self) -> Time {
        self.renewed + self.length / 2
    }

    /// When the server may take the client's state away unless a renewal reaches it before.
    pub fn expires(&self) -> Time {
        self.renewed + self.length
    }

    /// How long to sleep until a renewal is due; zero when it is.
    pub fn until_due(&self, now: Time) -> Duration {
        self.due().saturating_sub(now)
    }

    /// Whether the lease may have expired: state must be taken as doubtful until a SEQUENCE says otherwise.
    pub fn maybe_expired(&self, now: Time) -> bool {
        now >= self.expires()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn renewal_counts_from_sending_and_never_backwards() {
        let mut lease = Lease::new(90 * S, 10 * S);
        assert_eq!(lease.due(), 55 * S);
        lease.renewed(40 * S);
        lease.renewed(20 * S);
        assert_eq!((lease.due(), lease.expires()), (85 * S, 130 * S));
        assert_eq!(lease.until_due(80 * S), 5 * S);
        assert_eq!(lease.until_due(200 * S), Duration::ZERO);
        assert!(!lease.maybe_expired(129 * S) && lease.maybe_expired(130 * S));
    }

    #[test]
    fn a_lease_of_zero_does_not_spin() {
        let lease = Lease::new(Duration::ZERO, S);
        assert!(lease.until_due(S) >= Duration::from_millis(500));
    }
}
