//! Counters of one direction of a link.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::line::Fate;

/// Counters that the mover adds to and anybody reads.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    offered_packets: AtomicU64,
    offered_bytes: AtomicU64,
    delivered_packets: AtomicU64,
    delivered_bytes: AtomicU64,
    lost: AtomicU64,
    full: AtomicU64,
    cut: AtomicU64,
    no_memory: AtomicU64,
    refused: AtomicU64,
    late_packets: AtomicU64,
    latest: AtomicU64,
}

/// Deliveries later than this count as late.
pub const LATE: Duration = Duration::from_millis(1);

impl Counters {
    pub(crate) fn offered(&self, packets: u32, bytes: u64) {
        self.offered_packets.fetch_add(packets.into(), Relaxed);
        self.offered_bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn fate(&self, fate: Fate, packets: u64) {
        let counter = match fate {
            Fate::OnItsWay => return,
            Fate::Lost => &self.lost,
            Fate::Full => &self.full,
            Fate::Cut => &self.cut,
            Fate::NoMemory => &self.no_memory,
        };
        counter.fetch_add(packets, Relaxed);
    }

    /// A packet handed on, `late` nanoseconds after it was due.
    pub(crate) fn delivered(&self, packets: u32, bytes: u64, late: u64) {
        self.delivered_packets.fetch_add(packets.into(), Relaxed);
        self.delivered_bytes.fetch_add(bytes, Relaxed);
        if u128::from(late) > LATE.as_nanos() {
            self.late_packets.fetch_add(packets.into(), Relaxed);
        }
        self.latest.fetch_max(late, Relaxed);
    }

    /// A packet that the host at the end would not take.
    pub(crate) fn refused(&self, packets: u32) {
        self.refused.fetch_add(packets.into(), Relaxed);
    }

    pub(crate) fn read(&self) -> Counts {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        Counts {
            at: Instant::now(),
            offered_packets: get(&self.offered_packets),
            offered_bytes: get(&self.offered_bytes),
            delivered_packets: get(&self.delivered_packets),
            delivered_bytes: get(&self.delivered_bytes),
            lost: get(&self.lost),
            full: get(&self.full),
            cut: get(&self.cut),
            no_memory: get(&self.no_memory),
            refused: get(&self.refused),
            late_packets: get(&self.late_packets),
            latest: Duration::from_nanos(get(&self.latest)),
        }
    }
}

/// What one direction of a link has carried and dropped. Packets and bytes are those of the wire: IP packets of at
/// most the MTU, also where the kernel handed several over in one piece.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    /// When the counters were read.
    pub at: Instant,
    /// Packets that came to the link.
    pub offered_packets: u64,
    /// Their bytes.
    pub offered_bytes: u64,
    /// Packets handed to the other end.
    pub delivered_packets: u64,
    /// Their bytes.
    pub delivered_bytes: u64,
    /// Packets lost as asked for.
    pub lost: u64,
    /// Packets dropped because too much was waiting.
    pub full: u64,
    /// Packets that met a cut.
    pub cut: u64,
    /// Packets dropped because the emulator held as much as it may: the emulation was not true then.
    pub no_memory: u64,
    /// Packets that the host at the end would not take: the emulation was not true then.
    pub refused: u64,
    /// Packets delivered more than [`LATE`] after they were due.
    pub late_packets: u64,
    /// The latest delivery since the start.
    pub latest: Duration,
}

impl Counts {
    /// Bits a second delivered between an earlier reading and this one; 0 when no time has passed.
    pub fn rate_since(&self, earlier: &Counts) -> f64 {
        let seconds = self.at.saturating_duration_since(earlier.at).as_secs_f64();
        let bytes = self.delivered_bytes.saturating_sub(earlier.delivered_bytes);
        if seconds > 0.0 { bytes as f64 * 8.0 / seconds } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_add_up() {
        let counters = Counters::default();
        let before = counters.read();
        counters.offered(3, 4500);
        counters.delivered(2, 3000, 2_000_000);
        counters.delivered(1, 1500, 10);
        counters.fate(Fate::Lost, 4);
        counters.fate(Fate::Full, 5);
        counters.fate(Fate::Cut, 6);
        counters.fate(Fate::NoMemory, 7);
        counters.fate(Fate::OnItsWay, 100);
        counters.refused(8);
        let mut after = counters.read();
        assert_eq!((after.offered_packets, after.offered_bytes), (3, 4500));
        assert_eq!((after.delivered_packets, after.delivered_bytes), (3, 4500));
        assert_eq!((after.lost, after.full, after.cut, after.no_memory, after.refused), (4, 5, 6, 7, 8));
        assert_eq!((after.late_packets, after.latest), (2, Duration::from_millis(2)));
        after.at = before.at + Duration::from_secs(2);
        assert!((after.rate_since(&before) - 18_000.0).abs() < 1e-6);
        assert_eq!(before.rate_since(&before), 0.0);
    }
}
