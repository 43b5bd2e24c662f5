//! Bandwidth limits.

use tokio::sync::Mutex;
use tokio::time::{Duration, Instant};

/// By how much a wake-up that came late is made up for; longer than that nobody asked.
const SLACK: Duration = Duration::from_millis(20);

/// Lets so many bytes pass in a second. Who asks stands in a queue, so nobody is overtaken; who gives up leaves it and
/// has used nothing, so that copies which are begun and cancelled do not hold up the others; and nothing is saved up
/// while nobody asks.
#[derive(Debug)]
pub struct Throttle {
    /// Bytes per second; 0 is no limit.
    rate: u64,
    /// When the next may pass. Held by the first of the queue while it waits.
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
        let mut next = self.next.lock().await;
        if let Some(at) = *next {
            tokio::time::sleep_until(at).await;
        }
        let takes = Duration::from_secs_f64(bytes as f64 / self.rate as f64);
        // From when it might have passed, not from when it was woken: the rate is kept on the whole.
        let now = Instant::now();
        let from = next.filter(|at| now.saturating_duration_since(*at) <= SLACK).unwrap_or(now);
        *next = Some(from + takes);
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

    #[tokio::test(start_paused = true)]
    async fn who_gives_up_has_used_nothing() {
        let limit = Throttle::new(1000);
        limit.pass(1000).await;
        let begun = Instant::now();
        for _ in 0..1000 {
            let mut waiting = std::pin::pin!(limit.pass(1000));
            assert!(futures_util::poll!(&mut waiting).is_pending());
        }
        limit.pass(1000).await;
        assert_eq!(begun.elapsed().as_millis() / 10, 100, "as if nobody else had asked");
    }
}
