//! `dhow bench`: measurements that anybody can repeat.

pub mod bare;
pub mod child;
pub mod copy;
pub mod cpu;
pub mod create;
pub mod data;
pub mod inter;

use std::time::Duration;

/// The middle, the least and the most of some figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The most.
    pub max: f64,
}

impl Spread {
    /// Of at least one figure; of none, zeroes.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let at = |i: usize| sorted.get(i).copied().unwrap_or(0.0);
        let median = if n % 2 == 1 { at(n / 2) } else { (at((n / 2).saturating_sub(1)) + at(n / 2)) / 2.0 };
        Self { median, min: at(0), max: at(n.saturating_sub(1)) }
    }

    /// Of times, in seconds.
    pub fn of_times(times: impl IntoIterator<Item = Duration>) -> Self {
        Self::of(times.into_iter().map(|t| t.as_secs_f64()))
    }

    /// The median with six digits behind the point, for JSON.
    pub fn json(value: f64) -> serde_json::Value {
        serde_json::json!((value * 1e6).round() / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of([4.0, 1.0]).median, 2.5);
        assert_eq!(Spread::of([]).median, 0.0);
    }
}
