//! What a link does to packets, and how to write it.

use std::fmt;
use std::time::Duration;

use crate::{Error, Result};

/// How much may wait for a link before it drops what comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueLimit {
    /// As much as passes in the round trip of the link and in 50 ms at least: a well-dimensioned router.
    Auto,
    /// As much as passes in this time at the rate of the link.
    Time(Duration),
    /// This many bytes.
    Bytes(u64),
}

/// One direction of a link. [`Shape::default`] is a wire: no limit, no delay, no loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Bits a second, counted in IP packets (what goes before and after them on a real wire is not counted);
    /// `None` for no limit.
    pub rate: Option<u64>,
    /// How long each packet is on its way once it has been sent; 10 s at most.
    pub delay: Duration,
    /// Added to the delay: evenly distributed from 0 to this; 10 s at most.
    pub jitter: Duration,
    /// Whether jitter may change the order of packets.
    pub reorder: bool,
    /// Which share of packets is lost, from 0 to 1, each independently of the others. A lost packet has used the link.
    pub loss: f64,
    /// How much may wait. A packet that finds nobody waiting is always taken.
    pub queue: QueueLimit,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            rate: None,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            reorder: false,
            loss: 0.0,
            queue: QueueLimit::Auto,
        }
    }
}

/// The longest delay, and the longest jitter.
pub const MAX_DELAY: Duration = Duration::from_secs(10);
/// The slowest rate: a packet of 64 KiB takes 65 s.
pub const MIN_RATE: u64 = 8_000;

impl Shape {
    /// This many bits a second, all else as a wire.
    pub fn rate(bits_per_second: u64) -> Shape {
        Shape { rate: Some(bits_per_second), ..Shape::default() }
    }

    /// With half of a round-trip time as the delay: both directions shaped so give the round trip.
    #[must_use]
    pub fn rtt(self, rtt: Duration) -> Shape {
        Shape { delay: rtt / 2, ..self }
    }

    /// With a delay.
    #[must_use]
    pub fn delay(self, delay: Duration) -> Shape {
        Shape { delay, ..self }
    }

    /// With jitter.
    #[must_use]
    pub fn jitter(self, jitter: Duration) -> Shape {
        Shape { jitter, ..self }
    }

    /// With loss, as a share from 0 to 1.
    #[must_use]
    pub fn loss(self, loss: f64) -> Shape {
        Shape { loss, ..self }
    }

    /// With a limit of what may wait.
    #[must_use]
    pub fn queue(self, queue: QueueLimit) -> Shape {
        Shape { queue, ..self }
    }

    /// Refuses what cannot be emulated.
    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |text: String| Err(Error::Topology(text));
        if self.rate.is_some_and(|rate| rate < MIN_RATE) {
            return wrong(format!("a rate under {MIN_RATE} bit/s"));
        }
        if self.delay > MAX_DELAY || self.jitter > MAX_DELAY {
            return wrong(format!("a delay or jitter over {MAX_DELAY:?}"));
        }
        if !(0.0..=1.0).contains(&self.loss) {
            return wrong(format!("a loss of {}, which is not from 0 to 1", self.loss));
        }
        Ok(())
    }

    /// How long `bytes` take to send.
    pub(crate) fn send_time(&self, bytes: u64) -> u64 {
        let Some(rate) = self.rate else { return 0 };
        let nanos = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(rate.max(1));
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }

    /// The limit of the queue as a time, in nanoseconds.
    pub(crate) fn queue_time(&self) -> u64 {
        match self.queue {
            QueueLimit::Auto => nanos(self.delay).saturating_mul(2).max(50_000_000),
            QueueLimit::Time(time) => nanos(time),
            QueueLimit::Bytes(bytes) => self.send_time(bytes),
        }
    }
}

/// Nanoseconds of a duration.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Reads a rate such as `100M`, `1Gbit`, `2.5g`, `64kbit/s`, `1000000`: bits a second, decimal multiples.
///
/// # Errors
/// A text that says what is wrong.
pub fn parse_rate(text: &str) -> std::result::Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let short = lower.trim_end_matches("/s").trim_end_matches("bps").trim_end_matches("bit");
    let (number, factor) = match short.char_indices().next_back() {
        Some((at, 'k')) => (short.get(..at), 1e3),
        Some((at, 'm')) => (short.get(..at), 1e6),
        Some((at, 'g')) => (short.get(..at), 1e9),
        _ => (Some(short), 1.0),
    };
    let number: f64 = number.and_then(|n| n.parse().ok()).ok_or_else(|| format!("'{text}' is not a rate like 100M"))?;
    let rate = number * factor;
    if rate.is_finite() && rate >= MIN_RATE as f64 && rate <= 1e12 {
        Ok(rate as u64)
    } else {
        Err(format!("'{text}': a rate is from 8k to 1000G"))
    }
}

/// Reads a time such as `200ms`, `1.5s`, `50us`.
///
/// # Errors
/// A text that says what is wrong.
pub fn parse_time(text: &str) -> std::result::Result<Duration, String> {
    let trimmed = text.trim();
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let found = units.iter().find_map(|(unit, factor)| {
        let number: f64 = trimmed.strip_suffix(unit)?.trim().parse().ok()?;
        Some(number * factor)
    });
    let seconds = if trimmed == "0" { Some(0.0) } else { found };
    match seconds {
        Some(seconds) if (0.0..=86_400.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        Some(_) => Err(format!("'{text}' is out of range")),
        None => Err(format!("'{text}' is not a time like 200ms")),
    }
}

/// Reads a share such as `1%` or `0.01`.
///
/// # Errors
/// A text that says what is wrong.
pub fn parse_share(text: &str) -> std::result::Result<f64, String> {
    let (number, factor) = text.trim().strip_suffix('%').map_or((text.trim(), 1.0), |n| (n, 0.01));
    let share = number.parse::<f64>().map_err(|_| format!("'{text}' is not a share like 1% or 0.01"))? * factor;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err(format!("'{text}' is not from 0 to 100%")) }
}

/// A rate as people write it.
#[derive(Clone, Copy, Debug)]
pub struct Rate(pub f64);

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            r if r >= 1e9 => format!("{:.2} Gbit/s", r / 1e9),
            r if r >= 1e6 => format!("{:.1} Mbit/s", r / 1e6),
            r => format!("{:.0} kbit/s", r / 1e3),
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        for (text, rate) in [
            ("100M", 100_000_000),
            ("1Gbit", 1_000_000_000),
            ("2.5g", 2_500_000_000),
            ("64kbit/s", 64_000),
            ("10 mbps".replace(' ', "").as_str(), 10_000_000),
            ("1000000", 1_000_000),
        ] {
            assert_eq!(parse_rate(text), Ok(rate), "{text}");
        }
        for text in ["", "M", "fast", "1k", "-5M", "nan", "1e30"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_and_shares() {
        assert_eq!(parse_time("200ms"), Ok(Duration::from_millis(200)));
        assert_eq!(parse_time("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_time("50us"), Ok(Duration::from_micros(50)));
        assert_eq!(parse_time("0"), Ok(Duration::ZERO));
        for text in ["", "5", "ms", "-1s", "1e9s"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
        assert_eq!(parse_share("0.25"), Ok(0.25));
        assert_eq!(parse_share("50%"), Ok(0.5));
        assert!(parse_share("101%").is_err());
        assert!(parse_share("nan").is_err());
    }

    #[test]
    fn times_of_sending() {
        let shape = Shape::rate(8_000_000);
        assert_eq!(shape.send_time(1000), 1_000_000);
        assert_eq!(Shape::default().send_time(1 << 40), 0);
        assert_eq!(shape.queue_time(), 50_000_000);
        assert_eq!(shape.rtt(Duration::from_millis(200)).queue_time(), 200_000_000);
        assert_eq!(shape.queue(QueueLimit::Bytes(2000)).queue_time(), 2_000_000);
        assert_eq!(shape.queue(QueueLimit::Time(Duration::from_millis(7))).queue_time(), 7_000_000);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(Shape::rate(100).check().is_err());
        assert!(Shape::default().delay(Duration::from_secs(11)).check().is_err());
        assert!(Shape::default().loss(1.5).check().is_err());
        assert!(Shape::default().loss(f64::NAN).check().is_err());
        assert!(Shape::rate(1_000_000).loss(1.0).check().is_ok());
    }
}
