//! Bandwidth limits.

use parking_lot::Mutex;
use tokio::time::{Duration, Instant};

/// Lets so many bytes pass in a second. Who asks is given a time: those before it have it to themselves, so nobody is
/// overtaken, and nothing is saved up while nobody asks.
#[derive(Debug)]
pub struct Throttle {
    /// Bytes per second; 0 is no limit.
    rate: u64,
    next: Mutex<Option<Instant>>,
}

impl Throttle {
    /// A limit of `rate` bytes per second; 0 is none.
    pub fn new(rate: u64) -> Self {
        Self { rate, next: Mutex::new(None) }
    }

    /// Waits until `bytes` may pass.
    pub async fn pass(&self, bytes: u64) {
        if self.rate == 0 {
            return;
        }
        let takes = Duration::from_secs_f64(bytes as f64 / self.rate as f64);
        let at = {
            let mut next = self.next.lock();
            let at = next.map_or_else(Instant::now, |n| n.max(Instant::now()));
            *next = Some(at + takes);
            at
        };
        tokio::time::sleep_until(at).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn bytes_take_their_time() {
        let limit = Throttle::new(1000);
        let begun = Instant::now();
        for _ in 0..5 {
            limit.pass(500).await;
        }
        assert_eq!(begun.elapsed().as_millis() / 10, 200, "the first passes at once");
        tokio::time::sleep(Duration::from_secs(100)).await;
        let begun = Instant::now();
        limit.pass(500).await;
        limit.pass(500).await;
        assert_eq!(begun.elapsed().as_millis() / 10, 50, "nothing was saved up");
        let begun = Instant::now();
        Throttle::new(0).pass(u64::MAX).await;
        assert!(begun.elapsed().is_zero());
    }
}
