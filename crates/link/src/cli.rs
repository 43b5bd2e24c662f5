//! The emulator as a command: a check of what it carries here, and programs run on emulated hosts.
//!
//! Nothing is printed: text goes to the writer handed in.

use std::io::Write;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};

use crate::calibrate::{Options, calibrate};
use crate::{Error, LinkSpec, Net, Offload, QueueLimit, Result, Shape, Topology};
use crate::{parse_rate, parse_share, parse_time};

/// Arguments of the command.
#[derive(Args, Debug)]
pub struct LinkArgs {
    #[command(subcommand)]
    command: LinkCommand,
}

#[derive(Subcommand, Debug)]
enum LinkCommand {
    /// Load emulated links with bulk TCP and show what they carry on this machine
    Check(CheckArgs),
    /// Run a program on each of several emulated hosts
    Run(RunArgs),
}

#[derive(Args, Debug)]
struct CheckArgs {
    #[command(flatten)]
    shape: ShapeArgs,
    /// Hosts: two share one link, more have an access link each to a router
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=50))]
    hosts: u32,
    /// How long to measure
    #[arg(long, default_value = "3s", value_parser = parse_time)]
    time: Duration,
    /// How long the load runs before that
    #[arg(long, default_value = "1s", value_parser = parse_time)]
    warm_up: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct RunArgs {
    #[command(flatten)]
    shape: ShapeArgs,
    /// A host and the shell command to run on it; the environment has ADDR_<NAME> for every host.
    /// When the last command ends, the others are killed
    #[arg(long = "host", value_name = "NAME=COMMAND", required = true)]
    hosts: Vec<String>,
}

/// What the links are like. With two hosts there is one link; with more, each has one of these to a router, and the
/// round-trip time is between any two hosts.
#[derive(Args, Debug)]
struct ShapeArgs {
    /// Bits a second in each direction, such as 100M; no limit unless given
    #[arg(long, value_parser = parse_rate)]
    rate: Option<u64>,
    /// Round-trip time between two hosts, such as 50ms
    #[arg(long, default_value = "0", value_parser = parse_time)]
    rtt: Duration,
    /// Random time added to each delay, from 0 to this
    #[arg(long, default_value = "0", value_parser = parse_time)]
    jitter: Duration,
    /// Share of packets lost on each link, such as 0.1%
    #[arg(long, default_value = "0", value_parser = parse_share)]
    loss: f64,
    /// How long packets may wait for a link; the round trip of the link and 50 ms at least unless given
    #[arg(long, value_parser = parse_time)]
    queue: Option<Duration>,
    /// The largest IP packet, in bytes
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(576..=65_535))]
    mtu: u32,
    /// Move packets one by one, or runs of TCP segments in one piece
    #[arg(long, value_parser = ["auto", "on", "off"], default_value = "auto")]
    offload: String,
    /// Congestion control of all hosts
    #[arg(long, default_value = "reno")]
    congestion: String,
}

impl ShapeArgs {
    fn topology(&self, hosts: &[&str]) -> Topology {
        let links_on_the_way = if hosts.len() > 2 { 4 } else { 2 };
        let shape = Shape {
            rate: self.rate,
            delay: self.rtt / links_on_the_way,
            jitter: self.jitter,
            reorder: false,
            loss: self.loss,
            queue: self.queue.map_or(QueueLimit::Auto, QueueLimit::Time),
        };
        let spec = LinkSpec::from(shape).mtu(self.mtu);
        let offload = match self.offload.as_str() {
            "on" => Offload::On,
            "off" => Offload::Off,
            _ => Offload::Auto,
        };
        let topology =
            Topology::new().offload(offload).sysctl("net/ipv4/tcp_congestion_control", self.congestion.as_str());
        match hosts {
            [a, b] => topology.host(a).host(b).link(a, b, spec),
            _ => topology.star("hub", hosts.iter().map(|name| (*name, spec))),
        }
    }
}

/// How often programs are looked at.
const POLL: Duration = Duration::from_millis(20);

/// Runs the command; the result is the exit status for the process: 0, or 1 when the check says that measurements over
/// these links would not count, or that of the last program.
///
/// # Errors
/// Those of [`Topology::start`] and [`calibrate`]; [`Error::Io`] when `out` cannot be written.
pub fn run(args: &LinkArgs, out: &mut dyn Write) -> Result<u8> {
    match &args.command {
        LinkCommand::Check(check) => run_check(check, out),
        LinkCommand::Run(run) => run_programs(run),
    }
}

fn run_check(args: &CheckArgs, out: &mut dyn Write) -> Result<u8> {
    let names: Vec<String> = (1..=args.hosts).map(|n| format!("h{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let net = args.shape.topology(&names).start()?;
    let found = calibrate(&net, Options { time: args.time, warm_up: args.warm_up, ..Options::default() })?;
    let text = if args.json {
        let json = serde_json::to_string(&found).map_err(|error| Error::Io { what: "JSON", error: error.into() })?;
        json + "\n"
    } else {
        found.table()
    };
    out.write_all(text.as_bytes()).map_err(Error::io("writing"))?;
    Ok(u8::from(!found.is_enough()))
}

fn run_programs(args: &RunArgs) -> Result<u8> {
    let split = |text: &String| text.split_once('=').map(|(name, program)| (name.to_owned(), program.to_owned()));
    let programs: Vec<(String, String)> = args.hosts.iter().filter_map(split).collect();
    if programs.len() != args.hosts.len() || programs.len() < 2 {
        return Err(Error::Topology("give at least two hosts, each as NAME=COMMAND".to_owned()));
    }
    let names: Vec<&str> = programs.iter().map(|(name, _)| name.as_str()).collect();
    let net = args.shape.topology(&names).start()?;
    let addresses: Vec<(String, String)> = net
        .hosts()
        .map(|host| {
            let name = host.name().to_ascii_uppercase().replace('-', "_");
            (format!("ADDR_{name}"), host.addr().to_string())
        })
        .collect();
    let mut running = Running(Vec::new());
    for (name, program) in &programs {
        let mut command = Command::new("sh");
        command.arg("-c").arg(program).envs(addresses.iter().map(|(name, value)| (name, value)));
        running.0.push(net.host(name)?.command(command)?);
    }
    let status = running.wait_for_last(&net)?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// Programs that are killed and waited for when this is dropped.
struct Running(Vec<Child>);

impl Running {
    fn wait_for_last(&mut self, _net: &Net) -> Result<ExitStatus> {
        loop {
            if let Some(last) = self.0.last_mut()
                && let Some(status) = last.try_wait().map_err(Error::io("waiting for a program"))?
            {
                return Ok(status);
            }
            thread::sleep(POLL);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let until = Instant::now() + Duration::from_secs(5);
        for child in &mut self.0 {
            // One that has ended already cannot be killed.
            let _ = child.kill();
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
                thread::sleep(POLL);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser, Debug)]
    struct Whole {
        #[command(flatten)]
        link: LinkArgs,
    }

    fn parse(args: &[&str]) -> std::result::Result<LinkArgs, clap::Error> {
        Whole::try_parse_from([&["link"], args].concat()).map(|whole| whole.link)
    }

    #[test]
    fn arguments_become_a_topology() {
        let args = parse(&["check", "--rate", "100M", "--rtt", "40ms", "--loss", "1%", "--mtu", "9000"]).unwrap();
        let LinkCommand::Check(check) = args.command else { panic!() };
        let two = check.shape.topology(&["a", "b"]);
        assert_eq!(two.links.len(), 1);
        assert_eq!(two.links[0].spec.there.delay, Duration::from_millis(20));
        assert_eq!(two.links[0].spec.mtu, 9000);
        // Four links on the way there and back.
        let three = check.shape.topology(&["a", "b", "c"]);
        assert_eq!(three.links.len(), 3);
        assert_eq!(three.links[0].spec.back.delay, Duration::from_millis(10));
        assert_eq!(three.links[0].spec.back.loss, 0.01);
        assert_eq!(three.links[0].spec.back.rate, Some(100_000_000));
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(parse(&["check", "--rate", "fast"]).is_err());
        assert!(parse(&["check", "--mtu", "100"]).is_err());
        assert!(parse(&["check", "--hosts", "1"]).is_err());
        assert!(parse(&["run"]).is_err());
        let one = parse(&["run", "--host", "a=true"]).unwrap();
        assert!(matches!(run(&one, &mut Vec::new()), Err(Error::Topology(_))));
        let without = parse(&["run", "--host", "a", "--host", "b"]).unwrap();
        assert!(matches!(run(&without, &mut Vec::new()), Err(Error::Topology(_))));
    }
}
