//! [`Costs`]: the policy of copies between servers, with a clock.

use crate::policy::{Decision, MinSize, Model, UNKNOWN_MIN, Way};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Chooses between the two ways of a copy between servers, and learns from every copy. One for a process.
#[derive(Debug, Default)]
pub struct Costs {
    min: MinSize,
    model: Mutex<Model>,
    /// Copies that run, by pair.
    flying: Mutex<HashMap<String, u32>>,
}

/// A copy that runs.
#[derive(Debug)]
pub(crate) struct Flight<'a> {
    costs: &'a Costs,
    pair: &'a str,
    since: Instant,
    /// Copies of the pair that ran at its start, itself included.
    beside: u32,
}

impl Costs {
    /// From `min` on copies are offloaded; `model`: what is known already.
    pub fn new(min: MinSize, model: Model) -> Self {
        Self { min, model: Mutex::new(model), flying: Mutex::default() }
    }

    /// What has been learned.
    pub fn model(&self) -> Model {
        self.model.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn choose(&self, pair: &str, bytes: u64) -> Decision {
        let model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        match self.min {
            MinSize::Auto => model.choose(pair, bytes, now()),
            MinSize::Bytes(min) => fixed(min, bytes, model.choose(pair, bytes, now())),
        }
    }

    /// A copy begins.
    pub(crate) fn begin<'a>(&'a self, pair: &'a str) -> Flight<'a> {
        let mut flying = self.flying.lock().unwrap_or_else(PoisonError::into_inner);
        let beside = flying.entry(pair.to_owned()).or_default();
        *beside += 1;
        Flight { costs: self, pair, since: Instant::now(), beside: *beside }
    }
}

/// The choice where nothing is remembered.
pub(crate) fn without_memory(bytes: u64) -> Decision {
    fixed(UNKNOWN_MIN, bytes, Model::default().choose("", bytes, 0))
}

fn fixed(min: u64, bytes: u64, model: Decision) -> Decision {
    let (way, how) = if bytes >= min { (Way::Inter, "at least") } else { (Way::ReadWrite, "smaller than") };
    Decision { way, why: format!("the file is {how} {min} bytes"), ..model }
}

impl Flight<'_> {
    /// It is done. Copies that run side by side share the links: each is charged with its part of the time.
    pub(crate) fn landed(self, way: Way, bytes: u64) {
        let beside = {
            let flying = self.costs.flying.lock().unwrap_or_else(PoisonError::into_inner);
            flying.get(self.pair).copied().unwrap_or(1)
        };
        let share = f64::from(self.beside.max(1) + beside.max(1)) / 2.0;
        let seconds = self.since.elapsed().as_secs_f64() / share;
        let mut model = self.costs.model.lock().unwrap_or_else(PoisonError::into_inner);
        model.learn(self.pair, way, bytes, seconds, now());
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut flying = self.costs.flying.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(n) = flying.get_mut(self.pair) {
            *n -= 1;
            if *n == 0 {
                flying.remove(self.pair);
            }
        }
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_size_is_kept_to() {
        let costs = Costs::new(MinSize::Bytes(100), Model::default());
        assert_eq!(costs.choose("a>b", 99).way, Way::ReadWrite);
        assert_eq!(costs.choose("a>b", 100).way, Way::Inter);
        assert_eq!(without_memory(UNKNOWN_MIN).way, Way::Inter);
        assert_eq!(without_memory(UNKNOWN_MIN - 1).way, Way::ReadWrite);
    }

    #[test]
    fn flights_are_counted_and_learned_from() {
        let costs = Costs::default();
        let (a, b) = (costs.begin("a>b"), costs.begin("a>b"));
        assert_eq!(b.beside, 2);
        std::thread::sleep(std::time::Duration::from_millis(2));
        a.landed(Way::Inter, 1000);
        drop(b);
        assert!(costs.flying.lock().unwrap().is_empty());
        assert!(costs.choose("a>b", 1000).inter.is_some());
    }
}
