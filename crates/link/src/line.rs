//! One direction of a link as a machine without a clock: packets go in at a time, and come out at a time.
//!
//! The rate is kept by a virtual clock: a packet leaves when the one before it has left and its own bits have been
//! sent, then travels for the delay. How late the caller looks does not add up: a queue that is never empty sends at
//! exactly the rate. What waits is known from the virtual clock too, so that there is no second queue.

use std::collections::VecDeque;

use crate::packet::Packet;
use crate::shape::{QueueLimit, Shape, nanos};

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It will come out.
    OnItsWay,
    /// The link lost it.
    Lost,
    /// Too much was waiting.
    Full,
    /// The link is cut.
    Cut,
    /// The emulator holds as much as it may.
    NoMemory,
}

/// Packets that an automatic limit always has room for.
const AUTO_PACKETS: u64 = 16;
/// What a packet costs besides its bytes.
const PACKET_COST: u64 = 128;

/// One direction of a link. Times are nanoseconds since some moment.
#[derive(Debug)]
pub(crate) struct Line {
    shape: Shape,
    cut: bool,
    mtu: u32,
    /// When the last bit of the last packet has been sent.
    free_at: u64,
    /// When the last packet comes out.
    last_due: u64,
    held: VecDeque<(u64, Packet)>,
    random: SplitMix,
}

impl Line {
    pub(crate) fn new(shape: Shape, mtu: u32, seed: u64) -> Line {
        Line { shape, cut: false, mtu, free_at: 0, last_due: 0, held: VecDeque::new(), random: SplitMix(seed) }
    }

    /// Changes what happens to packets from now on; those on their way keep their times, but a cut link loses them.
    /// Returns how many packets that were, and adds what they held to `budget`.
    pub(crate) fn set(&mut self, now: u64, shape: Shape, cut: bool, budget: &mut u64) -> u64 {
        self.shape = shape;
        self.cut = cut;
        let mut gone = 0;
        if cut {
            self.free_at = now;
            self.last_due = now;
            for (_, packet) in self.held.drain(..) {
                gone += u64::from(packet.segments);
                *budget += cost(&packet);
            }
        }
        gone
    }

    /// Takes a packet that arrives at `now`, if what it needs is left in `budget`.
    pub(crate) fn offer(&mut self, now: u64, packet: Packet, budget: &mut u64) -> Fate {
        if self.cut {
            return Fate::Cut;
        }
        let send = self.shape.send_time(packet.wire);
        let waits = self.free_at.saturating_sub(now);
        if waits > 0 && waits.saturating_add(send) > self.queue_time() {
            return Fate::Full;
        }
        let Some(left) = budget.checked_sub(cost(&packet)) else { return Fate::NoMemory };
        let sent = now.max(self.free_at).saturating_add(send);
        self.free_at = sent;
        if self.is_lost(packet.segments) {
            return Fate::Lost;
        }
        *budget = left;
        let mut due = sent.saturating_add(nanos(self.shape.delay)).saturating_add(self.jitter());
        if self.shape.reorder {
            let at = self.held.partition_point(|(other, _)| *other <= due);
            self.held.insert(at, (due, packet));
        } else {
            // Neither jitter nor a shorter delay set in between lets a packet overtake.
            due = due.max(self.last_due);
            self.held.push_back((due, packet));
        }
        self.last_due = self.last_due.max(due);
        Fate::OnItsWay
    }

    /// When the next packet comes out.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.held.front().map(|(due, _)| *due)
    }

    /// The next packet that is due by `now`, and when it was due.
    pub(crate) fn take(&mut self, now: u64, budget: &mut u64) -> Option<(u64, Packet)> {
        if self.next_due()? > now {
            return None;
        }
        let (due, packet) = self.held.pop_front()?;
        *budget += cost(&packet);
        Some((due, packet))
    }

    fn queue_time(&self) -> u64 {
        let time = self.shape.queue_time();
        if self.shape.queue == QueueLimit::Auto {
            return time.max(self.shape.send_time(AUTO_PACKETS * u64::from(self.mtu)));
        }
        time
    }

    /// A run of segments is lost when any of them is: it cannot lose a part.
    fn is_lost(&mut self, segments: u32) -> bool {
        if self.shape.loss <= 0.0 {
            return false;
        }
        let all_pass = (1.0 - self.shape.loss).powi(i32::try_from(segments).unwrap_or(i32::MAX));
        self.random.share() >= all_pass
    }

    fn jitter(&mut self) -> u64 {
        let most = nanos(self.shape.jitter);
        if most == 0 { 0 } else { (self.random.share() * most as f64) as u64 }
    }
}

fn cost(packet: &Packet) -> u64 {
    packet.data.capacity() as u64 + PACKET_COST
}

/// Steele, Lea and Flood's SplitMix64: small, good enough for loss and jitter, and the same for the same seed.
#[derive(Debug)]
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Evenly distributed in 0..1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::*;

    const MS: u64 = 1_000_000;

    fn packet(wire: u64) -> Packet {
        numbered(wire, 0)
    }

    fn numbered(wire: u64, number: u8) -> Packet {
        Packet { data: vec![number; wire as usize], wire, segments: 1, to: Ipv4Addr::LOCALHOST }
    }

    fn drain(line: &mut Line) -> Vec<(u64, u8)> {
        let mut budget = 0;
        std::iter::from_fn(|| line.take(u64::MAX, &mut budget)).map(|(due, p)| (due, p.data[0])).collect()
    }

    #[test]
    fn packets_are_paced_and_delayed() {
        // 8 Mbit/s: 1000 bytes take 1 ms.
        let mut line = Line::new(Shape::rate(8_000_000).delay(Duration::from_millis(20)), 1500, 1);
        let mut budget = 1 << 20;
        for _ in 0..3 {
            assert_eq!(line.offer(5 * MS, packet(1000), &mut budget), Fate::OnItsWay);
        }
        assert!(budget < (1 << 20) - 3000);
        assert_eq!(line.next_due(), Some(26 * MS));
        assert!(line.take(26 * MS - 1, &mut budget).is_none());
        let dues: Vec<_> = std::iter::from_fn(|| line.take(100 * MS, &mut budget)).map(|(due, _)| due).collect();
        assert_eq!(dues, [26 * MS, 27 * MS, 28 * MS]);
        assert_eq!(budget, 1 << 20);
        // After a pause nothing is made up for.
        line.offer(200 * MS, packet(1000), &mut budget);
        assert_eq!(line.next_due(), Some(221 * MS));
    }

    #[test]
    fn a_full_queue_drops() {
        let shape = Shape::rate(8_000_000).queue(QueueLimit::Bytes(2500));
        let mut line = Line::new(shape, 1500, 1);
        let mut budget = 1 << 20;
        let fates: Vec<_> = (0..4).map(|_| line.offer(0, packet(1000), &mut budget)).collect();
        // One is being sent and 1000 bytes wait; the third would make 3000 bytes.
        assert_eq!(fates, [Fate::OnItsWay, Fate::OnItsWay, Fate::Full, Fate::Full]);
        assert_eq!(line.offer(MS, packet(1000), &mut budget), Fate::OnItsWay);
        // A packet larger than the limit passes when nobody waits.
        assert_eq!(line.offer(50 * MS, packet(9000), &mut budget), Fate::OnItsWay);
        assert_eq!(line.offer(50 * MS, packet(1), &mut budget), Fate::Full);
    }

    #[test]
    fn an_automatic_queue_has_room_for_large_packets() {
        let mut line = Line::new(Shape::rate(1_000_000), 65_000, 1);
        let mut budget = 1 << 24;
        let taken = (0..20).filter(|_| line.offer(0, packet(65_000), &mut budget) == Fate::OnItsWay).count();
        assert_eq!(taken, 16);
    }

    #[test]
    fn memory_is_bounded() {
        let mut line = Line::new(Shape::default().delay(Duration::from_secs(1)), 1500, 1);
        let mut budget = 3 * (1000 + PACKET_COST);
        let fates: Vec<_> = (0..4).map(|_| line.offer(0, packet(1000), &mut budget)).collect();
        assert_eq!(fates.last(), Some(&Fate::NoMemory));
        assert_eq!(budget, 0);
    }

    #[test]
    fn jitter_keeps_the_order_unless_told() {
        let shape = Shape::default().delay(Duration::from_millis(10)).jitter(Duration::from_millis(10));
        for reorder in [false, true] {
            let mut line = Line::new(Shape { reorder, ..shape }, 1500, 7);
            let mut budget = 1 << 20;
            for number in 0..100 {
                line.offer(u64::from(number) * MS / 10, numbered(1000, number), &mut budget);
            }
            let out = drain(&mut line);
            assert_eq!(out.len(), 100);
            assert!(out.is_sorted_by_key(|(due, _)| *due));
            assert!(out.iter().all(|(due, n)| (10 * MS..=30 * MS).contains(&(due - u64::from(*n) * MS / 10))));
            assert_eq!(out.is_sorted_by_key(|(_, number)| *number), !reorder);
        }
    }

    #[test]
    fn a_shorter_delay_overtakes_nobody() {
        let mut line = Line::new(Shape::default().delay(Duration::from_millis(100)), 1500, 1);
        let mut budget = 1 << 20;
        line.offer(0, numbered(1000, 1), &mut budget);
        assert_eq!(line.set(MS, Shape::default(), false, &mut budget), 0);
        line.offer(MS, numbered(1000, 2), &mut budget);
        assert_eq!(drain(&mut line), [(100 * MS, 1), (100 * MS, 2)]);
    }

    #[test]
    fn loss_is_near_what_was_asked_and_uses_the_link() {
        let mut line = Line::new(Shape::rate(8_000_000_000).loss(0.1), 1500, 3);
        let mut budget = 1 << 30;
        let lost = (0..10_000).filter(|i| line.offer(i * MS, packet(1000), &mut budget) == Fate::Lost).count();
        assert!((800..1200).contains(&lost), "{lost}");
        let mut all = Line::new(Shape::rate(8_000_000).loss(1.0), 1500, 3);
        assert_eq!(all.offer(0, packet(1000), &mut budget), Fate::Lost);
        assert_eq!(all.free_at, MS);
        // A run of 40 segments fares as 40 packets do, in one.
        let mut line = Line::new(Shape::default().loss(0.1), 1500, 3);
        let run = |_: &i32| Packet { segments: 40, ..packet(1000) };
        let lost = (0..1000).filter(|i| line.offer(0, run(i), &mut budget) == Fate::Lost).count();
        assert!((970..1000).contains(&lost), "{lost}");
    }

    #[test]
    fn a_cut_loses_what_is_on_its_way() {
        let shape = Shape::default().delay(Duration::from_millis(100));
        let mut line = Line::new(shape, 1500, 1);
        let mut budget = 1 << 20;
        line.offer(0, packet(1000), &mut budget);
        line.offer(0, packet(1000), &mut budget);
        assert_eq!(line.set(MS, shape, true, &mut budget), 2);
        assert_eq!(budget, 1 << 20);
        assert_eq!(line.offer(2 * MS, packet(1000), &mut budget), Fate::Cut);
        assert_eq!(line.set(3 * MS, shape, false, &mut budget), 0);
        assert_eq!(line.offer(4 * MS, packet(1000), &mut budget), Fate::OnItsWay);
        assert_eq!(line.next_due(), Some(104 * MS));
    }

    #[test]
    fn the_same_seed_gives_the_same_fates() {
        let fates = |seed| {
            let mut line = Line::new(Shape::default().loss(0.5), 1500, seed);
            let mut budget = 1 << 30;
            (0..64).map(|_| line.offer(0, packet(100), &mut budget)).collect::<Vec<_>>()
        };
        assert_eq!(fates(5), fates(5));
        assert_ne!(fates(5), fates(6));
    }
}
