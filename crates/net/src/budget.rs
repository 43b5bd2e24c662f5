//! Byte budgets.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes per permit: semaphores count in 32 bits.
const UNIT: usize = 256;

/// A number of bytes that may be in use at once. Cheap to clone; clones share the budget.
#[derive(Clone, Debug)]
pub struct Budget {
    permits: Arc<Semaphore>,
    total: u32,
    waiting: Arc<AtomicUsize>,
}

/// Counts one that waits.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Budget {
    /// A budget of `bytes`, rounded up to 256.
    pub fn new(bytes: usize) -> Self {
        let total = u32::try_from(bytes.div_ceil(UNIT).clamp(1, Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
        Self { permits: Arc::new(Semaphore::new(total as usize)), total, waiting: Arc::default() }
    }

    /// Takes `bytes` if that many are free. More than the whole budget counts as the whole budget, so that nothing
    /// waits for ever.
    pub fn try_take(&self, bytes: usize) -> Option<Charge> {
        let permit = Arc::clone(&self.permits).try_acquire_many_owned(self.units(bytes)).ok()?;
        Some(Charge { permits: [Some(permit), None] })
    }

    /// Takes `bytes`, waiting in line for them. After [`Budget::close`] nothing is counted any more.
    pub async fn take(&self, bytes: usize) -> Charge {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting);
        let permit = Arc::clone(&self.permits).acquire_many_owned(self.units(bytes)).await.ok();
        Charge { permits: [permit, None] }
    }

    /// Bytes free now.
    pub fn free(&self) -> usize {
        self.permits.available_permits() * UNIT
    }

    /// Whether somebody waits for bytes that others hold.
    pub fn pressed(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Bytes in all.
    pub fn total(&self) -> usize {
        self.total as usize * UNIT
    }

    /// Wakes all who wait and counts nothing from now on.
    pub fn close(&self) {
        self.permits.close();
    }

    fn units(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).min(self.total)
    }
}

/// Bytes taken from one or two budgets, given back on drop.
#[derive(Debug, Default)]
#[must_use = "dropping a charge gives its bytes back"]
pub struct Charge {
    permits: [Option<OwnedSemaphorePermit>; 2],
}

impl Charge {
    /// Nothing taken.
    pub fn none() -> Self {
        Self::default()
    }

    /// Two charges in one. At most one budget each.
    pub(crate) fn join(mut self, other: Charge) -> Charge {
        let [first, second] = other.permits;
        for permit in [first, second].into_iter().flatten() {
            if let Some(slot) = self.permits.iter_mut().find(|p| p.is_none()) {
                *slot = Some(permit);
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bytes_come_back_and_large_requests_do_not_wait_for_ever() {
        let b = Budget::new(1024);
        let all = b.take(1 << 40).await;
        assert_eq!(b.free(), 0);
        assert!(b.try_take(1).is_none());
        drop(all);
        assert_eq!(b.free(), 1024);
        let (x, y) = (b.try_take(512).unwrap(), Budget::new(9).try_take(9).unwrap());
        drop(x.join(y));
        assert_eq!(b.free(), 1024);
    }
}
