//! Does the emulator carry what it promises on this machine, now? All links busy at once, and round trips.

use std::io;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::load::{self, Load, Pair, accept, connect};
use crate::shape::Rate;
use crate::{Counts, Error, Host, Net, Result, Shape};

/// The share of its nominal rate that a direction must carry for a measurement over it to count.
pub const ENOUGH: f64 = 0.95;

/// How to calibrate.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long rates are measured.
    pub time: Duration,
    /// How long the load runs before that; the longest round trip is added twice, and twenty times where TCP has to find
    /// the rate of the way by itself.
    pub warm_up: Duration,
    /// Round trips measured for each pair of hosts, before the load.
    pub round_trips: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options { time: Duration::from_secs(3), warm_up: Duration::from_secs(1), round_trips: 10 }
    }
}

/// One direction of a link under load.
#[derive(Clone, Debug, Serialize)]
pub struct LinkRow {
    /// Where it starts.
    pub from: String,
    /// Where it ends.
    pub to: String,
    /// The MTU in bytes.
    pub mtu: u32,
    /// The rate it was given, in bits a second.
    pub nominal: Option<u64>,
    /// The most that this load can bring to it, given the other links: the rate to be measured against.
    pub expected: Option<f64>,
    /// What it carried, in bits of IP packets a second.
    pub carried: f64,
    /// `carried / expected`.
    pub ratio: Option<f64>,
    /// Packets dropped by its full queue: the load is a little more than the link carries.
    pub full: u64,
    /// Packets delivered more than a millisecond late.
    pub late: u64,
    /// Packets delivered.
    pub packets: u64,
    /// Packets dropped by the emulator's own limits: 0, or the emulation was not true.
    pub failed: u64,
}

/// Round trips between two hosts without load, by a byte sent and sent back over TCP.
#[derive(Clone, Debug, Serialize)]
pub struct RttRow {
    /// The host that asks.
    pub from: String,
    /// The host that answers.
    pub to: String,
    /// What the delays of the links add up to, in microseconds; jitter comes on top.
    pub configured_us: f64,
    /// The shortest, in microseconds.
    pub least_us: f64,
    /// The median, in microseconds.
    pub median_us: f64,
    /// The longest, in microseconds.
    pub most_us: f64,
}

/// What [`calibrate`] found.
#[derive(Clone, Debug, Serialize)]
pub struct Calibration {
    /// Both directions of every link.
    pub links: Vec<LinkRow>,
    /// Every pair of hosts that the load used, both ways.
    pub round_trips: Vec<RttRow>,
    /// What programs received in all, in bits a second.
    pub goodput: f64,
    /// Packets that hosts' interfaces dropped because the emulator did not read them in time.
    pub unread: u64,
    /// Whether runs of TCP segments stayed in one piece.
    pub offload: bool,
}

impl Calibration {
    /// The smallest share of its expected rate that any direction carried; `None` when no link has a rate.
    pub fn worst(&self) -> Option<f64> {
        self.links.iter().filter_map(|row| row.ratio).min_by(f64::total_cmp)
    }

    /// Whether measurements over these links count: every direction carries at least [`ENOUGH`] of its rate, and the
    /// emulator dropped nothing of its own.
    pub fn is_enough(&self) -> bool {
        let failed: u64 = self.links.iter().map(|row| row.failed).sum();
        self.worst().is_none_or(|worst| worst >= ENOUGH) && failed == 0 && self.unread == 0
    }

    /// A table for people.
    pub fn table(&self) -> String {
        let offload = if self.offload { "runs of segments in one piece" } else { "packets one by one" };
        let mut text = format!("{offload}; programs received {} in all\n", Rate(self.goodput));
        text += &format!(
            "{:<16}{:>7}{:>15}{:>15}{:>8}{:>10}{:>8}{:>8}{:>8}\n",
            "link", "mtu", "expected", "carried", "ratio", "packets", "full", "late", "failed"
        );
        for row in &self.links {
            let expected = row.expected.map_or("-".to_owned(), |rate| Rate(rate).to_string());
            let ratio = row.ratio.map_or("-".to_owned(), |ratio| format!("{:.1}%", ratio * 100.0));
            text += &format!(
                "{:<16}{:>7}{:>15}{:>15}{:>8}{:>10}{:>8}{:>8}{:>8}\n",
                format!("{} > {}", row.from, row.to),
                row.mtu,
                expected,
                Rate(row.carried),
                ratio,
                row.packets,
                row.full,
                row.late,
                row.failed
            );
        }
        text += &format!("{:<16}{:>13}{:>13}{:>13}{:>13}\n", "round trip", "configured", "least", "median", "most");
        for row in &self.round_trips {
            let times = [row.configured_us, row.least_us, row.median_us, row.most_us];
            let shown = times.map(|us| format!("{:>13}", format!("{:.3} ms", us / 1000.0)));
            text += &format!("{:<16}{}\n", format!("{} > {}", row.from, row.to), shown.concat());
        }
        if self.unread > 0 {
            text += &format!("{} packets were not read in time\n", self.unread);
        }
        text
    }
}

/// Measures round trips between the hosts, then loads all links at once.
///
/// Two hosts send to each other. Of more, each sends to the next, in a ring, and then to the one before, so that every
/// direction of an access link has data of one sender; where links differ, the row of a direction is from the ring
/// that can bring more to it. The links' loss, jitter and queues are what they are set to.
///
/// The load are datagrams at a pace of their own, a little above the rate of the way: TCP would leave links idle at
/// times, for reasons of its congestion control, and the emulator is to be measured. Only where no link of a way has a
/// rate, TCP finds out what passes.
///
/// # Errors
/// [`Error::Topology`] for fewer than two hosts that reach each other; [`Error::Io`] when a connection fails.
pub fn calibrate(net: &Net, options: Options) -> Result<Calibration> {
    let phases = phases(net);
    if phases.is_empty() {
        return Err(Error::Topology("no two hosts reach each other".to_owned()));
    }
    let round_trips = all_round_trips(net, &phases, options.round_trips.max(1))?;
    let longest = round_trips.iter().map(|row| row.median_us).fold(0.0, f64::max);
    let unread_before = unread(net)?;
    let mut links: Vec<LinkRow> = Vec::new();
    let mut goodput = 0.0_f64;
    for pairs in &phases {
        let load = Load::start(net, pairs)?;
        let rounds = if load.finds_its_rate() { 20.0 } else { 2.0 };
        thread::sleep(options.warm_up + Duration::from_secs_f64(longest * rounds / 1e6));
        let before = counts(net);
        let (received, start) = (load.received.load(Relaxed), Instant::now());
        thread::sleep(options.time);
        let after = counts(net);
        let rate = (load.received.load(Relaxed) - received) as f64 * 8.0 / start.elapsed().as_secs_f64();
        goodput = goodput.max(rate);
        load.stop()?;
        let rows = rows(net, &expected(net, pairs), &before, &after);
        if links.is_empty() {
            links = rows;
        } else {
            links.iter_mut().zip(rows).for_each(|(kept, row)| kept.merge(row));
        }
    }
    let unread = unread(net)? - unread_before;
    Ok(Calibration { links, round_trips, goodput, unread, offload: net.offload_is_on() })
}

impl LinkRow {
    /// Takes the other row where more was expected, or as much and less came; failures count in either.
    fn merge(&mut self, other: LinkRow) {
        let failed = self.failed + other.failed;
        let [mine, theirs] = [&*self, &other].map(|row| (row.expected.unwrap_or(0.0), -row.carried));
        if theirs > mine {
            *self = other;
        }
        self.failed = failed;
    }
}

/// The counters of all directions.
fn counts(net: &Net) -> Vec<Counts> {
    net.links().flat_map(|link| link.counts()).collect()
}

fn rows(net: &Net, expected: &[Option<f64>], before: &[Counts], after: &[Counts]) -> Vec<LinkRow> {
    let mut rows = Vec::new();
    for link in net.links() {
        let [first, second] = link.ends();
        let ends = [(first, second), (second, first)];
        for (((from, to), shape), direction) in ends.into_iter().zip(link.shapes()).zip(link.directions()) {
            let (Some(before), Some(after)) = (before.get(direction), after.get(direction)) else { continue };
            let expected = expected.get(direction).copied().flatten();
            let carried = after.rate_since(before);
            rows.push(LinkRow {
                from: from.to_owned(),
                to: to.to_owned(),
                mtu: link.mtu(),
                nominal: shape.rate,
                expected,
                carried,
                ratio: expected.map(|expected| carried / expected),
                full: after.full - before.full,
                late: after.late_packets - before.late_packets,
                packets: after.delivered_packets - before.delivered_packets,
                failed: after.no_memory - before.no_memory + after.refused - before.refused,
            });
        }
    }
    rows
}

fn unread(net: &Net) -> Result<u64> {
    net.hosts().map(|host| host.unread()).sum()
}

/// Who sends to whom, first and afterwards.
fn phases(net: &Net) -> Vec<Vec<Pair<'_>>> {
    let hosts: Vec<Host<'_>> = net.hosts().collect();
    let next = hosts.iter().cycle().skip(1);
    let reach = |(from, to): &Pair<'_>| from.name() != to.name() && !net.way(from.name(), to.name()).is_empty();
    let ring: Vec<Pair<'_>> = hosts.iter().copied().zip(next.copied()).filter(reach).collect();
    let back: Vec<Pair<'_>> = ring.iter().map(|(from, to)| (*to, *from)).filter(reach).collect();
    // Of two hosts the ring is both directions already.
    let phases = if hosts.len() == 2 { vec![ring] } else { vec![ring, back] };
    phases.into_iter().filter(|pairs| !pairs.is_empty()).collect()
}

/// What each direction has to deliver: what the flows bring to it, as far as its rate goes, less what it is told to lose.
fn expected(net: &Net, pairs: &[Pair<'_>]) -> Vec<Option<f64>> {
    let shapes: Vec<Shape> = net.links().flat_map(|link| link.shapes()).collect();
    let mut brought = vec![0.0_f64; shapes.len()];
    for (from, to) in pairs {
        // As the load does, so that what a flow brings to its narrowest link is no less than that one's rate.
        let mut flow = load::rate_of_way(net, from.name(), to.name()).unwrap_or(f64::INFINITY);
        for at in net.way(from.name(), to.name()) {
            let (Some(sum), Some(shape)) = (brought.get_mut(at), shapes.get(at)) else { continue };
            *sum += flow;
            flow = passes(flow, shape);
        }
    }
    let delivered = |(shape, sum): (&Shape, f64)| shape.rate.map(|_| passes(sum, shape)).filter(|rate| *rate > 0.0);
    shapes.iter().zip(brought).map(delivered).collect()
}

/// What comes out of a direction of what is brought to it, both in bits a second.
fn passes(brought: f64, shape: &Shape) -> f64 {
    shape.rate.map_or(brought, |rate| brought.min(rate as f64)) * (1.0 - shape.loss)
}

/// Measures between all pairs at the same time: a byte now and then is no load.
fn all_round_trips(net: &Net, phases: &[Vec<Pair<'_>>], count: u32) -> Result<Vec<RttRow>> {
    thread::scope(|scope| {
        let threads: Vec<_> =
            phases.iter().flatten().map(|pair| scope.spawn(move || round_trips(net, *pair, count))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(Err(Error::Stopped))).collect()
    })
}

fn round_trips(net: &Net, (from, to): Pair<'_>, count: u32) -> Result<RttRow> {
    let listener = to.run(|| TcpListener::bind((to.addr(), 0)))?.map_err(Error::io("listening"))?;
    let port = listener.local_addr().map_err(Error::io("listening"))?.port();
    let times = thread::scope(|scope| {
        let echo = scope.spawn(move || -> io::Result<()> {
            let mut stream = accept(&listener)?;
            let mut byte = [0];
            while stream.read(&mut byte)? > 0 {
                stream.write_all(&byte)?;
            }
            Ok(())
        });
        let asked = from.run(|| -> io::Result<Vec<f64>> {
            let mut stream = connect(to.addr(), port)?;
            let mut times = Vec::new();
            for _ in 0..count {
                let start = Instant::now();
                stream.write_all(&[1])?;
                stream.read_exact(&mut [0])?;
                times.push(start.elapsed().as_secs_f64() * 1e6);
            }
            Ok(times)
        });
        let echoed = echo.join().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()));
        let mut times = asked?.map_err(Error::io("measuring round trips"))?;
        echoed.map_err(Error::io("measuring round trips"))?;
        times.sort_by(f64::total_cmp);
        Ok::<_, Error>(times)
    })?;
    let delays = |from: &str, to: &str| net.path(from, to).iter().map(delay_us).sum::<f64>();
    let at = |place: usize| times.get(place).copied().unwrap_or_default();
    Ok(RttRow {
        from: from.name().to_owned(),
        to: to.name().to_owned(),
        configured_us: delays(from.name(), to.name()) + delays(to.name(), from.name()),
        least_us: at(0),
        median_us: at(times.len() / 2),
        most_us: at(times.len().saturating_sub(1)),
    })
}

fn delay_us(shape: &Shape) -> f64 {
    shape.delay.as_secs_f64() * 1e6
}
