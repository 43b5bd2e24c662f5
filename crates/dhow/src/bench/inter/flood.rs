//! `dhow bench inter --flood`: what a client that floods both servers with COPY_NOTIFY and COPY does to another one
//! (case K01).
//!
//! ```text
//!   flooder ──► a ══ copies ══► b ◄── flooder      every line is a link of its own, so that what the other client
//!    worker ──► a               b ◄── worker       waits for is the servers, not a link full of somebody's data
//! ```
//!
//! The worker makes small calls one after the other, to both servers, without the flood, with it, and without it again.

use super::site::{Client, Links, Site, copy};
use super::targets::Verdict;
use super::{MB, folders};
use crate::bench::{Spread, data};
use crate::cli::BenchInter;
use crate::exit::{Failure, Outcome};
use crate::output::{say, say_json};
use dhow_client::v4::NetLoc;
use dhow_client::{File, OpenOptions};
use dhow_copy::{Choice, Endpoint, Method};
use dhow_link::{Net, Shape, Topology};
use dhow_server::copy::netloc::to_netloc;
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

/// Copies that the flooder has under way, each begun anew when it has ended: more than a server lets one client have.
const COPIES: usize = 48;
/// Tasks that do nothing but COPY_NOTIFY.
const NOTIFIES: usize = 4;
/// What the worker reads.
const SMALL: u32 = 4096;
/// How long the worker works each time.
const PHASE: Duration = Duration::from_secs(4);
/// Until the flood has risen.
const RISE: Duration = Duration::from_secs(1);
/// How many times its time alone a call may take.
const MOST: f64 = 2.0;

/// Links as drawn above, in a topology that has none yet.
pub fn network(links: &Links, empty: Topology) -> Outcome<Net> {
    let servers = Shape::rate(links.servers).rtt(links.rtt);
    let client = Shape::rate(links.client).rtt(links.client_rtt);
    let hosts = ["a", "b", "client", "worker"].into_iter().fold(empty, Topology::host);
    let ends = [("client", "a"), ("client", "b"), ("worker", "a"), ("worker", "b")];
    let net = ends.into_iter().fold(hosts.link("a", "b", servers), |net, (x, y)| net.link(x, y, client));
    net.start().map_err(Failure::failed)
}

/// What the worker found in one phase: seconds of each call, sorted.
struct Phase(Vec<f64>);

impl Phase {
    fn new(mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        Self(seconds)
    }

    fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len().max(1) as f64
    }

    /// So many of a hundred calls took less.
    fn percentile(&self, of_100: usize) -> f64 {
        self.0.get(self.0.len() * of_100 / 100).or(self.0.last()).copied().unwrap_or(0.0)
    }
}

/// Calls one after the other, of both servers in turn, for [`PHASE`].
async fn work(ends: [&Arc<dyn Endpoint>; 2]) -> Result<Phase, dhow_copy::Error> {
    let (begun, mut seconds) = (Instant::now(), Vec::new());
    while begun.elapsed() < PHASE {
        for end in ends {
            let since = Instant::now();
            end.stat(Path::new("/small")).await?;
            seconds.push(since.elapsed().as_secs_f64());
            let since = Instant::now();
            end.read_small(Path::new("/small"), SMALL).await?;
            seconds.push(since.elapsed().as_secs_f64());
        }
    }
    Ok(Phase::new(seconds))
}

/// The flood, until `stop`: how many copies were made. What is under way then is given up.
async fn flood(client: (&Arc<dyn Endpoint>, &Arc<dyn Endpoint>), lent: &File, to: &NetLoc, stop: &AtomicBool) -> u64 {
    let made = AtomicU64::new(0);
    let made = &made;
    let copies = (0..COPIES).map(|n| async move {
        let name = format!("y{n}");
        loop {
            let only = Choice::Only(Method::Inter);
            // Refused for now, or for good: it comes again at once, as floods do.
            match copy(client.0.clone(), client.1.clone(), "x", &name, only, None).await {
                Ok(_) => drop(made.fetch_add(1, Relaxed)),
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    });
    let notifies = (0..NOTIFIES).map(|_| async {
        loop {
            if lent.copy_notify(to.clone()).await.is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    });
    let over = async {
        while !stop.load(Relaxed) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = over => {}
        _ = futures_util::future::join_all(copies) => {}
        _ = futures_util::future::join_all(notifies) => {}
    }
    made.load(Relaxed)
}

/// Measures.
pub fn measure(args: &BenchInter, _links: &Links, net: &Net, dir: &Path) -> Outcome<Vec<Verdict>> {
    let [a_dir, b_dir] = folders(dir)?;
    let host = |name: &str| net.host(name).map_err(Failure::failed);
    data::make(&a_dir.join("x"), args.sizes.first().copied().unwrap_or(8 * MB), false)?;
    for dir in [&a_dir, &b_dir] {
        data::make(&dir.join("small"), SMALL.into(), false)?;
    }
    let (a, b) = (Site::start(&host("a")?, &a_dir)?, Site::start(&host("b")?, &b_dir)?);
    let flooder = Client::start(net, "client", a.addr, b.addr)?;
    let worker = Client::start(net, "worker", a.addr, b.addr)?;
    let ends = |c: &Client<'_>| -> [Arc<dyn Endpoint>; 2] { [c.from.clone(), c.to.clone()] };
    let ([from, to], [worker_from, worker_to]) = (ends(&flooder), ends(&worker));
    let phase = || -> Outcome<Phase> { Ok(worker.run(work([&worker_from, &worker_to]))??) };
    let lent = flooder.run(flooder.from.fs().open("/x", &OpenOptions::read()))?;
    let lent = lent.map_err(Failure::failed)?;
    let destination = to_netloc(b.addr);
    let before = phase()?;
    let stop = AtomicBool::new(false);
    let (during, made, most) = std::thread::scope(|scope| -> Outcome<(Phase, u64, usize)> {
        let flood = scope.spawn(|| flooder.run(flood((&from, &to), &lent, &destination, &stop)));
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !stop.load(Relaxed) {
                most = most.max(b.running.shared().state.counts().copies);
                std::thread::sleep(Duration::from_millis(20));
            }
            most
        });
        std::thread::sleep(RISE);
        let during = phase();
        stop.store(true, Relaxed);
        let made = flood.join().map_err(|_| Failure::failed("the flood panicked"))??;
        let most = watch.join().map_err(|_| Failure::failed("the watch panicked"))?;
        Ok((during?, made, most))
    })?;
    let after = phase()?;
    let refused = b.running.shared().metrics.inter.copy_limit_hits.load(Relaxed);
    let limit = b.running.shared().state.limits().copies_per_client;
    for (name, phase) in [("before", &before), ("during", &during), ("after", &after)] {
        if args.json {
            say_json(&json!({
                "flood": name,
                "calls": phase.0.len(),
                "mean": Spread::json(phase.mean()),
                "median": Spread::json(phase.percentile(50)),
                "p95": Spread::json(phase.percentile(95)),
                "p99": Spread::json(phase.percentile(99)),
            }));
        } else {
            say(format!(
                "{name:<6} the flood: {} calls, mean {:.2} ms, median {:.2}, 95 % within {:.2}, 99 % within {:.2}",
                phase.0.len(),
                phase.mean() * 1e3,
                phase.percentile(50) * 1e3,
                phase.percentile(95) * 1e3,
                phase.percentile(99) * 1e3,
            ));
        }
    }
    if !args.json {
        say(format!("the flood: {made} copies made, {refused} COPYs put off, {most} copies at once"));
    }
    flooder.run(async { lent.close().await })?.map_err(Failure::failed)?;
    worker.stop();
    flooder.stop();
    b.stop();
    a.stop();
    let over = |of: fn(&Phase) -> f64| of(&during) * 2.0 / (of(&before) + of(&after)).max(1e-9);
    let median = over(|phase| phase.percentile(50));
    Ok(vec![
        Verdict::at_most("mean time of another client's call during a flood over without", over(Phase::mean), MOST),
        Verdict::at_most("median time of another client's call during a flood over without", median, MOST),
        Verdict::at_most("copies of the flooding client at once", most as f64, limit as f64),
    ])
}
