//! `dhow bench inter --auto`: does the choice between the two ways cost anything?
//!
//! A row of copies of mixed sizes is made three times, in turns: always by the servers, always through the client, and as
//! `auto` chooses, which knows nothing at first. The servers are connected before anything is timed, since the fixed
//! copies would connect them for `auto` or the other way round.

use super::site::{Client, Links, Site};
use super::targets::Verdict;
use super::{MB, folders};
use crate::bench::{Spread, data};
use crate::cli::BenchInter;
use crate::exit::{Failure, Outcome};
use crate::output::{say, say_json};
use dhow_copy::{Choice, Costs, Method};
use dhow_link::Net;
use serde_json::json;
use std::path::Path;
use std::sync::Arc;

/// Sizes of the copies, one after the other, over and over.
const MIX: [u64; 9] = [4 * MB, 8 * MB, 64 * MB, 128 * MB, 16 * MB, MB, 32 * MB, 256 * MB, 2 * MB];
/// `auto` may take so many times what the better fixed choice takes.
const ENOUGH: f64 = 1.05;

/// One way, over all copies.
struct Sum {
    name: &'static str,
    choice: Choice,
    costs: Option<Arc<Costs>>,
    seconds: f64,
    /// Copies made by the servers.
    direct: u64,
}

/// Makes the copies.
pub fn measure(args: &BenchInter, _links: &Links, net: &Net, dir: &Path) -> Outcome<Vec<Verdict>> {
    let [a_dir, b_dir] = folders(dir)?;
    let host = |name: &str| net.host(name).map_err(Failure::failed);
    let (a, b) = (Site::start(&host("a")?, &a_dir)?, Site::start(&host("b")?, &b_dir)?);
    let client = Client::start(net, "client", a.addr, b.addr)?;
    let sizes: &[u64] = if args.sizes.is_empty() { &MIX } else { &args.sizes };
    let name = |size: u64| format!("x{size}");
    for &size in sizes {
        data::make(&a_dir.join(name(size)), size, false)?;
    }
    let only = |name, method| Sum { name, choice: Choice::Only(method), costs: None, seconds: 0.0, direct: 0 };
    let mut sums = [
        only("inter", Method::Inter),
        only("readwrite", Method::ReadWrite),
        Sum { name: "auto", choice: Choice::Auto, costs: Some(Arc::new(Costs::default())), seconds: 0.0, direct: 0 },
    ];
    let y = b_dir.join("y");
    let smallest = name(sizes.iter().copied().min().unwrap_or(MB));
    for method in [Method::Inter, Method::ReadWrite] {
        client.copy(&smallest, "y", Choice::Only(method), None)?;
        std::fs::remove_file(&y)?;
    }
    for (n, &size) in sizes.iter().cycle().take(args.copies.into()).enumerate() {
        for turn in 0..sums.len() {
            let at = (n + turn) % sums.len();
            let Some(sum) = sums.get_mut(at) else { continue };
            let report = client.copy(&name(size), "y", sum.choice, sum.costs.clone())?;
            sum.seconds += report.elapsed.as_secs_f64();
            sum.direct += u64::from(report.method == Method::Inter);
            std::fs::remove_file(&y)?;
        }
    }
    client.stop();
    b.stop();
    a.stop();
    for sum in &sums {
        if args.json {
            let seconds = Spread::json(sum.seconds);
            say_json(&json!({ "way": sum.name, "copies": args.copies, "seconds": seconds, "by_servers": sum.direct }));
        } else {
            say(format!(
                "{:<9} {} copies of mixed sizes, {} by the servers: {:.3} s",
                sum.name, args.copies, sum.direct, sum.seconds
            ));
        }
    }
    let [inter, readwrite, auto] = &sums;
    let better = inter.seconds.min(readwrite.seconds).max(1e-9);
    Ok(vec![Verdict::at_most("time of `auto` over time of the better fixed choice", auto.seconds / better, ENOUGH)])
}
