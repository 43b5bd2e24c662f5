//! Whether bytes between two servers go directly or through this process: a model of what each way costs, per pair of
//! servers, learned from copies that were made.
//!
//! **Model.** A copy of `n` bytes costs `setup + n / rate` seconds either way, and the direct way `connect` more when
//! the destination is not connected to the source (after [`COLD_AFTER`] without a copy). Set-up and rate are fitted to
//! the copies seen by least squares in which older copies count less (`DECAY`).
//!
//! **Choice.** The way that is cheaper by the model. As long as only one way was tried, the other one is tried as soon
//! as a file comes that is small (`TRIAL`), or cheap to copy beside all the time that was spent already (`BUDGET`); so
//! is a way that was not seen for [`STALE_AFTER`], or only with much smaller or larger files. After a copy that took longer than the other way is expected to, the next one of like
//! size takes the other way: the slower way is never taken twice running.
//!
//! Nothing here reads a clock or a file: times are handed in, and [`Model::to_text`] is what may be kept.

use std::collections::BTreeMap;
use std::fmt;

/// What the past counts for when a further copy is seen.
const DECAY: f64 = 0.85;
/// Seconds after which the destination may have closed its connection to the source (its idle time is 15 minutes).
pub const COLD_AFTER: u64 = 840;
/// Seconds after which what is known of a way is old.
pub const STALE_AFTER: u64 = 3600;
/// Which part of all time spent a trial may cost, if the other way takes four times as long as the known one.
const BUDGET: f64 = 0.04;
const FEARED: f64 = 4.0;
/// Files of up to this size are good for trying a way that was never taken, whatever was spent.
const TRIAL: u64 = 8 << 20;
/// Files below this go through this process while nothing is known: set-up would cost more than it saves.
pub const UNKNOWN_MIN: u64 = 1 << 20;
/// A file so many times larger or smaller than any that went a way tells more about that way than those did.
const UNLIKE: u64 = 4;
/// Pairs that are remembered.
const PAIRS: usize = 256;
/// A copy that took longer than the other way's estimate by more than this was the slower way, and by so many times what
/// copies of that way stray from their estimates: on a busy machine a single copy says little.
const SLOWER: f64 = 1.05;
const STRAYS: f64 = 2.0;
/// What a further copy counts for in how far copies stray.
const STRAY_WEIGHT: f64 = 0.2;

/// The two ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The destination reads from the source.
    Inter,
    /// Through this process.
    ReadWrite,
}

impl Way {
    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Self::Inter => Self::ReadWrite,
            Self::ReadWrite => Self::Inter,
        }
    }

    /// As the method is called on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inter => "inter",
            Self::ReadWrite => "readwrite",
        }
    }
}

/// From which size on copies between servers are offloaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MinSize {
    /// As the model says.
    #[default]
    Auto,
    /// From so many bytes.
    Bytes(u64),
}

impl std::str::FromStr for MinSize {
    type Err = String;

    /// `auto`, or a number of bytes.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            other => {
                other.parse().map(Self::Bytes).map_err(|_| format!("`{other}`: write `auto` or a number of bytes"))
            }
        }
    }
}

/// What was chosen, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The way.
    pub way: Way,
    /// Why, in a sentence without a full stop.
    pub why: String,
    /// Seconds that the direct way is expected to take, if that is known.
    pub inter: Option<f64>,
    /// Seconds through this process.
    pub readwrite: Option<f64>,
}

/// Sums for fitting `seconds = setup + bytes * slope`, older ones weighted less.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Fit {
    n: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
    /// The smallest and the largest copy, bytes.
    least: u64,
    most: u64,
    /// When the last copy was seen.
    last: u64,
    /// How far copies stray from what was expected of them, as a share of that. Not kept: it is that of now.
    stray: f64,
}

impl Fit {
    fn known(&self) -> bool {
        self.n > 0.0
    }

    fn add(&mut self, bytes: u64, seconds: f64, other: &Self, now: u64) {
        // Of sizes like those seen before, or it is the guess that was wrong.
        let alike = self.least / 2 <= bytes && bytes / 2 <= self.most;
        if let Some(expected) = self.cost(other, bytes).filter(|e| alike && *e > 0.0) {
            let stray = ((seconds - expected) / expected).abs().min(1.0);
            self.stray += STRAY_WEIGHT * (stray - self.stray);
        }
        // Weighted by 1 / cost in effect: a relative error of a small copy counts as much as one of a large copy.
        let w = 1.0 / seconds.max(1e-4).powi(2);
        let x = bytes as f64 / 1e6;
        for sum in [&mut self.n, &mut self.x, &mut self.y, &mut self.xx, &mut self.xy] {
            *sum *= DECAY;
        }
        self.n += w;
        self.x += w * x;
        self.y += w * seconds;
        self.xx += w * x * x;
        self.xy += w * x * seconds;
        self.least = if self.most == 0 { bytes } else { self.least.min(bytes) };
        self.most = self.most.max(bytes);
        self.last = now;
    }

    /// Whether sizes differ enough to tell set-up from rate.
    fn is_spread(&self) -> bool {
        let mean = self.x / self.n.max(f64::MIN_POSITIVE);
        let var = self.xx / self.n.max(f64::MIN_POSITIVE) - mean * mean;
        var > 1e-3 * mean * mean
    }

    /// Set-up seconds, and seconds per 10^6 bytes. Sizes that are all alike do not tell one from the other: then the
    /// rate is taken to be that of the `other` way, as far as that is possible, else half of the time is set-up.
    fn line(&self, other: &Self) -> Option<(f64, f64)> {
        if !self.known() {
            return None;
        }
        let (mx, my) = (self.x / self.n, self.y / self.n);
        if mx <= 0.0 {
            return Some((my, 0.0));
        }
        if !self.is_spread() {
            let most = my / mx;
            let slope = match other.is_spread().then(|| other.line(self)).flatten() {
                Some((_, slope)) => slope.min(most),
                None => most / 2.0,
            };
            return Some(((my - slope * mx).max(0.0), slope));
        }
        let var = self.xx / self.n - mx * mx;
        let cov = self.xy / self.n - mx * my;
        let slope = (cov / var).max(0.0);
        let setup = my - slope * mx;
        if setup >= 0.0 {
            return Some((setup, slope));
        }
        // Through the origin.
        Some((0.0, (self.xy / self.xx).max(0.0)))
    }

    fn cost(&self, other: &Self, bytes: u64) -> Option<f64> {
        self.line(other).map(|(setup, slope)| setup + slope * bytes as f64 / 1e6)
    }
}

/// A copy that took longer than the other way should have.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Regret {
    way: Way,
    bytes: u64,
    seconds: f64,
    /// How many times the other way's estimate is too much.
    most: f64,
}

/// What is known of a pair.
#[derive(Clone, Debug, Default, PartialEq)]
struct Pair {
    inter: Fit,
    readwrite: Fit,
    /// What connecting the servers costs, seconds; measured when the connection was cold.
    connect: Option<f64>,
    /// Seconds spent on copies so far.
    spent: f64,
    regret: Option<Regret>,
}

impl Pair {
    fn fit(&self, way: Way) -> &Fit {
        match way {
            Way::Inter => &self.inter,
            Way::ReadWrite => &self.readwrite,
        }
    }

    fn is_cold(&self, now: u64) -> bool {
        !self.inter.known() || now.saturating_sub(self.inter.last) >= COLD_AFTER
    }

    fn cost(&self, way: Way, bytes: u64, now: u64) -> Option<f64> {
        let cost = self.fit(way).cost(self.fit(way.other()), bytes)?;
        let cold = way == Way::Inter && self.is_cold(now);
        Some(cost + if cold { self.connect.unwrap_or(0.0) } else { 0.0 })
    }

    fn last(&self) -> u64 {
        self.inter.last.max(self.readwrite.last)
    }
}

/// What is known of all pairs. A pair is named by a text without spaces.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    pairs: BTreeMap<String, Pair>,
}

impl Model {
    /// Chooses for a file of `bytes` at `now`, in seconds since any fixed time.
    pub fn choose(&self, pair: &str, bytes: u64, now: u64) -> Decision {
        let unknown = Pair::default();
        let known = self.pairs.get(pair).unwrap_or(&unknown);
        let (inter, readwrite) = (known.cost(Way::Inter, bytes, now), known.cost(Way::ReadWrite, bytes, now));
        let decide = |way, why: String| Decision { way, why, inter, readwrite };
        match (inter, readwrite) {
            (None, None) if bytes < UNKNOWN_MIN => decide(
                Way::ReadWrite,
                format!("nothing is known of these servers, and the file is smaller than {UNKNOWN_MIN} bytes"),
            ),
            (None, None) => {
                decide(Way::Inter, "nothing is known of these servers; the direct way is tried first".into())
            }
            (Some(cost), None) => Self::only(known, Way::Inter, bytes, cost, decide),
            (None, Some(cost)) => Self::only(known, Way::ReadWrite, bytes, cost, decide),
            (Some(a), Some(b)) => {
                let (best, cost, worse) = if a <= b { (Way::Inter, a, b) } else { (Way::ReadWrite, b, a) };
                if let Some(Regret { way, bytes: then, seconds, most }) = known.regret
                    && way == best
                    && bytes / 2 <= then
                    && then / 2 <= bytes
                    && known.cost(way.other(), then, now).is_some_and(|other| seconds > most * other)
                {
                    let why =
                        format!("the last copy of this size took longer by {} than the other way should", way.name());
                    return decide(way.other(), why);
                }
                let fit = known.fit(best.other());
                let old = now.saturating_sub(fit.last) >= STALE_AFTER;
                let unlike = bytes / UNLIKE > fit.most || bytes.saturating_mul(UNLIKE) < fit.least;
                let small = unlike && (UNKNOWN_MIN..=TRIAL).contains(&bytes);
                if small || (old || unlike) && worse <= BUDGET * known.spent {
                    let what = if unlike { "with files of such a size" } else { "for an hour" };
                    return decide(best.other(), format!("it was not measured {what}, and a trial is cheap"));
                }
                decide(best, format!("expected to take {} instead of {}", Seconds(cost), Seconds(worse)))
            }
        }
    }

    /// One way was tried so far.
    fn only(known: &Pair, way: Way, bytes: u64, cost: f64, decide: impl Fn(Way, String) -> Decision) -> Decision {
        if (UNKNOWN_MIN..=TRIAL).contains(&bytes) || FEARED * cost <= BUDGET * known.spent {
            return decide(way.other(), "it was never tried between these servers, and a trial is cheap now".into());
        }
        decide(way, "the other way was never tried between these servers, and a trial would cost too much yet".into())
    }

    /// Learns of a copy that was made at `now`.
    pub fn learn(&mut self, pair: &str, way: Way, bytes: u64, seconds: f64, now: u64) {
        if bytes == 0 || !seconds.is_finite() || seconds <= 0.0 || pair.contains(char::is_whitespace) {
            return;
        }
        if !self.pairs.contains_key(pair) && self.pairs.len() >= PAIRS {
            self.forget_oldest();
        }
        let known = self.pairs.entry(pair.to_owned()).or_default();
        known.spent += seconds;
        let other = known.cost(way.other(), bytes, now);
        let most = SLOWER + STRAYS * known.fit(way).stray;
        known.regret = other.filter(|other| seconds > most * other).map(|_| Regret { way, bytes, seconds, most });
        let (inter, readwrite) = (known.inter, known.readwrite);
        let cold = known.is_cold(now);
        match way {
            Way::Inter if cold && known.inter.known() => {
                // What is over the usual cost went into connecting.
                let over = (seconds - known.inter.cost(&known.readwrite, bytes).unwrap_or(seconds)).max(0.0);
                known.connect = Some(known.connect.map_or(over, |old| (old + over) / 2.0));
                known.inter.last = now;
            }
            Way::Inter => {
                // The very first copy connected too, which cannot be told from the rest: it counts until there is a second.
                if known.inter.known() && known.connect.is_none() {
                    let first = known.inter;
                    known.inter = Fit::default();
                    known.inter.add(bytes, seconds, &readwrite, now);
                    let mean = (first.x / first.n, first.y / first.n);
                    let warm = known.inter.cost(&known.readwrite, (mean.0 * 1e6) as u64).unwrap_or(mean.1);
                    known.connect = Some((mean.1 - warm).max(0.0));
                } else {
                    known.inter.add(bytes, seconds, &readwrite, now);
                }
            }
            Way::ReadWrite => known.readwrite.add(bytes, seconds, &inter, now),
        }
    }

    fn forget_oldest(&mut self) {
        let oldest = self.pairs.iter().min_by_key(|(_, p)| p.last()).map(|(name, _)| name.clone());
        if let Some(name) = oldest {
            self.pairs.remove(&name);
        }
    }

    /// As text: a line for each pair.
    pub fn to_text(&self) -> String {
        let mut out = String::from("dhow-costs 1\n");
        for (name, p) in &self.pairs {
            let fit = |f: &Fit| format!("{} {} {} {} {} {} {} {}", f.n, f.x, f.y, f.xx, f.xy, f.least, f.most, f.last);
            let connect = p.connect.map_or_else(|| "-".to_owned(), |c| c.to_string());
            out.push_str(&format!("{name} {} {} {connect} {}\n", fit(&p.inter), fit(&p.readwrite), p.spent));
        }
        out
    }

    /// What [`Model::to_text`] made. Lines that do not parse are left out: the worst that can follow is a trial.
    pub fn from_text(text: &str) -> Self {
        let mut lines = text.lines();
        if lines.next() != Some("dhow-costs 1") {
            return Self::default();
        }
        Self { pairs: lines.filter_map(parse).take(PAIRS).collect() }
    }

    /// Takes over what `other` knows of pairs that it saw later.
    pub fn merge(&mut self, other: &Self) {
        for (name, theirs) in &other.pairs {
            match self.pairs.get(name) {
                Some(ours) if ours.last() >= theirs.last() => {}
                _ => {
                    self.pairs.insert(name.clone(), theirs.clone());
                }
            }
        }
        while self.pairs.len() > PAIRS {
            self.forget_oldest();
        }
    }
}

fn parse(line: &str) -> Option<(String, Pair)> {
    let mut words = line.split(' ');
    let name = words.next().filter(|name| !name.is_empty())?.to_owned();
    fn number<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<f64> {
        words.next()?.parse().ok().filter(|n: &f64| n.is_finite() && *n >= 0.0)
    }
    fn fit<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<Fit> {
        let [n, x, y, xx, xy] = [number(words)?, number(words)?, number(words)?, number(words)?, number(words)?];
        let mut whole = || words.next()?.parse().ok();
        let (least, most, last) = (whole()?, whole()?, whole()?);
        Some(Fit { n, x, y, xx, xy, least, most, last, stray: 0.0 })
    }
    let inter = fit(&mut words)?;
    let readwrite = fit(&mut words)?;
    let connect = match words.next()? {
        "-" => None,
        text => Some(text.parse().ok().filter(|n: &f64| n.is_finite() && *n >= 0.0)?),
    };
    let spent = number(&mut words)?;
    words.next().is_none().then_some((name, Pair { inter, readwrite, connect, spent, regret: None }))
}

/// Seconds for people.
struct Seconds(f64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1.0 { write!(f, "{:.0} ms", self.0 * 1e3) } else { write!(f, "{:.1} s", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    /// Two servers: what each way costs in seconds.
    struct World {
        inter: (f64, f64),
        connect: f64,
        readwrite: (f64, f64),
    }

    impl World {
        fn cost(&self, way: Way, bytes: u64, cold: bool) -> f64 {
            let (setup, rate) = if way == Way::Inter { self.inter } else { self.readwrite };
            let connect = if way == Way::Inter && cold { self.connect } else { 0.0 };
            setup + connect + bytes as f64 / rate
        }

        /// Copies files of mixed sizes; seconds by the policy, always direct, never direct.
        fn run(&self, model: &mut Model, copies: usize, noise: f64) -> (f64, f64, f64) {
            let sizes = [4, 8, 64, 128, 16, 1, 32, 256, 2];
            let (mut auto, mut inter, mut readwrite) = (0.0, 0.0, 0.0);
            let (mut warm, mut now, mut seed) = (false, 1000, 1u64);
            let mut same = (None, 0);
            for i in 0..copies {
                let bytes = sizes[i % sizes.len()] * MB;
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let shake = 1.0 + noise * ((seed >> 40) as f64 / (1 << 24) as f64 - 0.5);
                let way = model.choose("a>b", bytes, now).way;
                let took = self.cost(way, bytes, !warm) * shake;
                warm |= way == Way::Inter;
                now += took as u64 + 1;
                model.learn("a>b", way, bytes, took, now);
                auto += took;
                inter += self.cost(Way::Inter, bytes, i == 0) * shake;
                readwrite += self.cost(Way::ReadWrite, bytes, false) * shake;
                same = if same.0 == Some(way) { (same.0, same.1 + 1) } else { (Some(way), 1) };
            }
            (auto, inter, readwrite)
        }
    }

    /// Over 50 copies of mixed sizes not more than 5 % slower than the better fixed choice.
    #[test]
    fn the_policy_is_near_the_better_fixed_choice() {
        let worlds = [
            // Equal links; the client far away; a narrow client link; narrow link between the servers; costly set-up.
            World { inter: (0.02, 110e6), connect: 0.1, readwrite: (0.02, 110e6) },
            World { inter: (0.3, 110e6), connect: 0.1, readwrite: (0.4, 90e6) },
            World { inter: (0.02, 110e6), connect: 0.1, readwrite: (0.02, 10e6) },
            World { inter: (0.02, 30e6), connect: 0.1, readwrite: (0.02, 110e6) },
            World { inter: (0.5, 110e6), connect: 0.5, readwrite: (0.01, 100e6) },
        ];
        for (n, world) in worlds.iter().enumerate() {
            for noise in [0.0, 0.04] {
                let (auto, inter, readwrite) = world.run(&mut Model::default(), 50, noise);
                let best = inter.min(readwrite);
                // Where the first trial was the wrong way, that one copy is paid for once.
                let first = (world.cost(Way::Inter, 4 * MB, true) - world.cost(Way::ReadWrite, 4 * MB, false)).max(0.0);
                assert!(auto <= 1.05 * best + first, "world {n}: {auto:.2} instead of {best:.2}");
            }
        }
    }

    /// Nor on a machine so busy that each copy takes up to a quarter more or less.
    #[test]
    fn noise_does_not_drive_the_policy_back_and_forth() {
        for (inter, readwrite) in [(110e6, 97e6), (97e6, 110e6), (110e6, 80e6)] {
            let world = World { inter: (0.02, inter), connect: 0.1, readwrite: (0.02, readwrite) };
            let (auto, a, b) = world.run(&mut Model::default(), 200, 0.5);
            assert!(auto <= 1.05 * a.min(b), "{inter} {readwrite}: {auto:.2} instead of {:.2}", a.min(b));
        }
    }

    /// A known pair never goes the slower way twice running.
    #[test]
    fn the_slower_way_is_not_taken_twice_running() {
        let mut model = Model::default();
        for i in 0..5 {
            model.learn("a>b", Way::Inter, 64 * MB, 1.0, 100 + i);
            model.learn("a>b", Way::ReadWrite, 64 * MB, 1.2, 100 + i);
        }
        assert_eq!(model.choose("a>b", 64 * MB, 110).way, Way::Inter);
        // The link between the servers has become slow; the average does not show it yet.
        model.learn("a>b", Way::Inter, 64 * MB, 1.3, 111);
        assert_eq!(model.choose("a>b", 64 * MB, 112).way, Way::ReadWrite);
        assert_eq!(model.choose("a>b", 64 * MB, 112).way, Way::ReadWrite, "asking changes nothing");
        model.learn("a>b", Way::ReadWrite, 64 * MB, 1.1, 113);
        let next = model.choose("a>b", 64 * MB, 114);
        assert!(next.inter.is_some() && next.readwrite.is_some());
    }

    #[test]
    fn unknown_pairs_and_fixed_sizes() {
        let model = Model::default();
        assert_eq!(model.choose("a>b", 4096, 0).way, Way::ReadWrite);
        assert_eq!(model.choose("a>b", 4 * MB, 0).way, Way::Inter);
        assert!(model.choose("a>b", 4 * MB, 0).why.contains("nothing is known"));
        assert_eq!("auto".parse(), Ok(MinSize::Auto));
        assert_eq!("1048576".parse(), Ok(MinSize::Bytes(1 << 20)));
        assert!("much".parse::<MinSize>().is_err());
    }

    #[test]
    fn connecting_is_told_from_copying() {
        let mut model = Model::default();
        model.learn("a>b", Way::Inter, 4 * MB, 1.04, 10);
        model.learn("a>b", Way::Inter, 4 * MB, 0.04, 11);
        model.learn("a>b", Way::ReadWrite, 4 * MB, 0.1, 12);
        let warm = model.choose("a>b", 4 * MB, 13);
        assert_eq!(warm.way, Way::Inter);
        assert!(warm.inter.unwrap() < 0.05, "{warm:?}");
        // After the idle time it has to connect again, which costs a second.
        let cold = model.choose("a>b", 4 * MB, 11 + COLD_AFTER);
        assert_eq!(cold.way, Way::ReadWrite);
        assert!((cold.inter.unwrap() - 1.04).abs() < 0.01, "{cold:?}");
        assert_eq!(model.choose("a>b", 400 * MB, 11 + COLD_AFTER).way, Way::Inter);
    }

    #[test]
    fn what_is_kept_comes_back() {
        let mut model = Model::default();
        model.learn("a:2049>b:2049", Way::Inter, 4 * MB, 0.5, 10);
        model.learn("a:2049>b:2049", Way::Inter, 8 * MB, 0.25, 11);
        model.learn("a:2049>b:2049", Way::ReadWrite, 4 * MB, 0.125, 12);
        let mut back = Model::from_text(&model.to_text());
        let decide = |m: &Model| m.choose("a:2049>b:2049", 64 * MB, 20);
        assert_eq!(decide(&back), decide(&model));
        assert_eq!(Model::from_text("dhow-costs 2\nx"), Model::default());
        let hostile =
            "dhow-costs 1\n\nx\na>b NaN 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 - 1\na>b -1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 - 1\n";
        assert_eq!(Model::from_text(hostile), Model::default());
        let mut newer = Model::default();
        newer.learn("c>d", Way::Inter, MB, 1.0, 5);
        back.merge(&newer);
        assert_eq!(back.pairs.len(), 2);
        for i in 0..1000 {
            back.learn(&format!("{i}>x"), Way::Inter, MB, 1.0, i);
        }
        assert!(back.pairs.len() <= PAIRS);
    }
}
