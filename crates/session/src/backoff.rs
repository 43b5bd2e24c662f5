//! Waiting times that grow: for DELAY and GRACE answers and for reconnecting.

use core::time::Duration;

/// How waiting times grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// First wait.
    pub first: Duration,
    /// Longest single wait.
    pub max: Duration,
    /// Sum of waits after which [`Backoff::next_wait`] gives up. `None`: never.
    pub give_up_after: Option<Duration>,
}

impl Policy {
    /// For NFS4ERR_DELAY: usually a recall or a slow disk, over in milliseconds; at times a staging of minutes.
    pub const DELAY: Self = Self {
        first: Duration::from_millis(15),
        max: Duration::from_secs(5),
        give_up_after: Some(Duration::from_secs(300)),
    };

    /// For NFS4ERR_GRACE: the server's grace period is about one lease (RFC 8881 section 8.4.2), commonly 90 s.
    pub const GRACE: Self = Self {
        first: Duration::from_millis(300),
        max: Duration::from_secs(5),
        give_up_after: Some(Duration::from_secs(300)),
    };

    /// For connecting again. The caller decides when to give up.
    pub const RECONNECT: Self =
        Self { first: Duration::from_millis(50), max: Duration::from_secs(10), give_up_after: None };
}

/// One run of waits, doubling from [`Policy::first`] to [`Policy::max`], each shortened at random by up to a quarter so
/// that many requests refused together do not return together.
#[derive(Debug, Clone)]
pub struct Backoff {
    policy: Policy,
    next: Duration,
    waited: Duration,
    random: u64,
}

impl Backoff {
    /// Starts a run. Equal seeds give equal waits.
    pub fn new(policy: Policy, seed: u64) -> Self {
        Self { policy, next: policy.first, waited: Duration::ZERO, random: seed }
    }

    /// How long to wait now; `None` when the policy says to give up.
    pub fn next_wait(&mut self) -> Option<Duration> {
        if self.policy.give_up_after.is_some_and(|limit| self.waited >= limit) {
            return None;
        }
        let full = self.next;
        self.next = full.saturating_mul(2).min(self.policy.max);
        let cut = full / 4;
        let wait = full - cut.mul_f64(self.fraction());
        self.waited = self.waited.saturating_add(wait);
        Some(wait)
    }

    /// Sum of the waits handed out.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Something succeeded: the next wait is short again.
    pub fn reset(&mut self) {
        self.next = self.policy.first;
        self.waited = Duration::ZERO;
    }

    /// A number in 0..1 (SplitMix64).
    fn fraction(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        (z >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn waits_stay_in_bounds_and_end(seed: u64, first_ms in 1_u64..500, max_ms in 1_u64..5000, limit_ms in 0_u64..60_000) {
            let ms = Duration::from_millis;
            let policy = Policy { first: ms(first_ms), max: ms(max_ms.max(first_ms)), give_up_after: Some(ms(limit_ms)) };
            let mut b = Backoff::new(policy, seed);
            let mut sum = Duration::ZERO;
            let mut full = policy.first;
            while let Some(wait) = b.next_wait() {
                prop_assert!(wait <= full && wait + ms(1) >= full - full / 4, "{wait:?} of {full:?}");
                sum += wait;
                full = (full * 2).min(policy.max);
            }
            prop_assert!(sum >= ms(limit_ms) && sum <= ms(limit_ms) + policy.max);
            prop_assert_eq!(sum, b.waited());
        }
    }

    #[test]
    fn different_seeds_spread() {
        let waits: std::collections::HashSet<_> =
            (0..100).filter_map(|seed| Backoff::new(Policy::DELAY, seed).next_wait()).collect();
        assert!(waits.len() > 90);
    }

    #[test]
    fn a_success_starts_over() {
        let mut b = Backoff::new(Policy::RECONNECT, 1);
        for _ in 0..20 {
            assert!(b.next_wait().is_some());
        }
        b.reset();
        assert!(b.next_wait().unwrap() <= Policy::RECONNECT.first);
    }
}
