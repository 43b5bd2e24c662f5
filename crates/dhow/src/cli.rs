//! The command line.

use crate::words::{parse_mode, parse_size};
use clap::error::{ContextKind, ContextValue};
use clap::{Args, Parser, Subcommand, ValueEnum};
use dhow_copy::MinSize;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// NFS in user space: serve directories, copy inside servers, look at what servers offer.
#[derive(Debug, Parser)]
#[command(name = "dhow", version, max_term_width = 100, disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve directories to NFSv4.1 and 4.2 clients.
    Serve(Serve),
    /// Copy files and trees between servers and local directories.
    #[command(after_help = URLS)]
    Cp(Cp),
    /// List directories.
    #[command(after_help = URLS)]
    Ls(Ls),
    /// Show the attributes of files.
    #[command(after_help = URLS)]
    Stat(Stat),
    /// Write files to standard output.
    #[command(after_help = URLS)]
    Cat(Cat),
    /// Write standard input, or a local file, to a file on a server.
    #[command(after_help = URLS)]
    Put(Put),
    /// Make directories.
    #[command(after_help = URLS)]
    Mkdir(Mkdir),
    /// Remove files and trees.
    #[command(after_help = URLS)]
    Rm(Rm),
    /// Rename files and directories within a server.
    #[command(after_help = URLS)]
    Mv(Mv),
    /// Make hard and symbolic links.
    #[command(after_help = URLS)]
    Ln(Ln),
    /// Find out what a server offers.
    #[command(after_help = URLS)]
    Probe(Probe),
    /// Look at a running server of this machine, and give it orders.
    Admin(Admin),
    /// Show in under a minute what copying inside a server saves.
    Demo(Demo),
    /// Measure.
    #[command(subcommand)]
    Bench(Bench),
    /// Emulated links: what they carry on this machine, and programs on hosts that they join. Needs root.
    Link(dhow_link::cli::LinkArgs),
    /// Write completions for a shell to standard output.
    Completions {
        /// Which shell.
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Write a manual page to standard output.
    Man {
        /// Of this command, such as `cp` or `admin expire` [default: of dhow itself].
        command: Option<String>,
        /// Write the pages of all commands to this directory instead.
        #[arg(long, value_name = "DIR", conflicts_with = "command")]
        dir: Option<PathBuf>,
    },
}

const URLS: &str = "A URL is nfs://HOST[:PORT]/PATH; the port is 2049 if none is given.";

/// `dhow serve`.
#[derive(Debug, Args)]
pub struct Serve {
    /// Directory to export at `/`.
    pub dir: Option<PathBuf>,
    /// Export DIR as /NAME; options: ro, rw, root_squash, no_root_squash, all_squash, anonuid=N, anongid=N,
    /// clients=NET, secure, crossmnt, fsid=N, metadata_sync=BOOL, exclusive, local_writers=yes|no,
    /// delegations=off|read|all, local_locks, copy.reflink=auto|never.
    #[arg(long = "export", value_name = "/NAME=DIR[,OPTION...]")]
    pub exports: Vec<String>,
    /// Configuration file (TOML, see docs/configuration.md). Options of the command line go before it.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address and port to listen on, as often as wanted; port 0 is any free one (default: all addresses, port 2049).
    #[arg(long = "listen", value_name = "ADDR:PORT")]
    pub listen: Vec<String>,
    /// Where keys and client records lie [default: by port, see docs/operating.md].
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// What to log: error, warn, info, debug, trace, or a filter such as dhow_server=debug [default: warn].
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<String>,
}

/// `dhow admin`.
#[derive(Debug, Args)]
pub struct Admin {
    /// State directory of the server [default: by --config, or by port].
    #[arg(long, value_name = "DIR", global = true)]
    pub state_dir: Option<PathBuf>,
    /// The server's configuration file.
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// The server's port, which its default state directory is named after [default: 2049].
    #[arg(long, value_name = "N", global = true)]
    pub port: Option<u16>,
    /// Print one JSON object instead of text.
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do.
    #[command(subcommand)]
    pub order: Order,
}

/// What `dhow admin` does.
#[derive(Debug, Subcommand)]
pub enum Order {
    /// Show what is served, and how much state there is.
    Status,
    /// List clients: addresses, age of the lease, opens, locks, delegations, copies.
    Clients,
    /// List opens, locks and delegations.
    State {
        /// Of this client.
        #[arg(long, value_name = "CLIENT")]
        client: Option<String>,
        /// Of this file, by its path as clients see it: /data/a.txt.
        #[arg(long, value_name = "PATH")]
        file: Option<String>,
    },
    /// End a client: its sessions, opens, locks, delegations and copies. It may come back as a new one.
    Expire {
        /// Which.
        client: String,
    },
    /// Take opens, locks or delegations from their clients, which are told.
    Revoke {
        /// Which.
        #[arg(value_name = "STATEID", required_unless_present = "file", conflicts_with = "file")]
        stateids: Vec<String>,
        /// All opens and delegations of this file, by its path as clients see it.
        #[arg(long, value_name = "PATH")]
        file: Option<String>,
        /// With --file: of this client alone.
        #[arg(long, value_name = "CLIENT", requires = "file")]
        client: Option<String>,
    },
    /// End the grace period after a restart: who has not reclaimed by now loses what it held.
    EndGrace,
    /// Show what was counted since the start or the last reset; what is 0 is left out.
    Counters {
        /// Count from now on.
        #[arg(long)]
        reset: bool,
    },
    /// List asynchronous copies.
    Copies,
    /// End a copy that runs; its client is told.
    CancelCopy {
        /// Which.
        stateid: String,
    },
    /// Read the configuration anew, as SIGHUP does, and wait until it is in force.
    Reload,
}

/// Reads `auto` or a size.
pub fn parse_min_size(text: &str) -> Result<MinSize, String> {
    if text == "auto" { Ok(MinSize::Auto) } else { parse_size(text).map(MinSize::Bytes) }
}

/// Reads a time such as `10s` or `500ms`; a number alone is seconds, as the name of `--seconds` has it.
pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    if text.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return dhow_link::parse_time(&format!("{text}s"));
    }
    dhow_link::parse_time(text)
}

/// How the bytes of a copy may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MethodArg {
    /// On one server CLONE, else COPY; between servers what is faster; else reading and writing.
    Auto,
    /// Sharing blocks, or fail.
    Clone,
    /// Copying inside the server, or fail.
    Copy,
    /// Copying from server to server, or fail.
    Inter,
    /// Through this program.
    Readwrite,
}

/// `dhow cp`.
#[derive(Debug, Args)]
#[command(override_usage = "dhow cp [OPTIONS] SRC... DST")]
pub struct Cp {
    /// What to copy, and where to: the last is a file, or a directory for several.
    #[arg(required = true, num_args = 2.., value_name = "SRC... DST")]
    pub paths: Vec<OsString>,
    /// Copy directories with all that is in them.
    #[arg(short, long, short_alias = 'R')]
    pub recursive: bool,
    /// Keep mode and times, and the owner when run by root.
    #[arg(short, long)]
    pub preserve: bool,
    /// With -p or -a, leave the owner alone also when run by root.
    #[arg(long)]
    pub no_owner: bool,
    /// Everything: -r, -p and hard links.
    #[arg(short, long)]
    pub archive: bool,
    /// With -r, names of one file stay names of one file.
    #[arg(long)]
    pub hard_links: bool,
    /// How the bytes may move.
    #[arg(long, value_enum, default_value = "auto")]
    pub method: MethodArg,
    /// Between two servers: from which size on they copy by themselves; `auto`: what was measured decides [default: the
    /// environment's DHOW_INTER_MIN_SIZE, else auto].
    #[arg(long, value_name = "BYTES|auto", value_parser = parse_min_size)]
    pub inter_min_size: Option<MinSize>,
    /// Say for each file between two servers which way it takes, and why.
    #[arg(long)]
    pub explain: bool,
    /// Make the copies durable [default on servers].
    #[arg(long, overrides_with = "no_sync")]
    pub sync: bool,
    /// Do not wait until copies are on stable storage [default on local files].
    #[arg(long, overrides_with = "sync")]
    pub no_sync: bool,
    /// With -r, how many files are copied at the same time; of small ones, eight times as many.
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub jobs: u16,
    /// Say nothing but errors.
    #[arg(short, long)]
    pub quiet: bool,
    /// Name each file when it is copied.
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// `dhow ls`. Its `-h` is that of ls(1), so help is `--help` alone.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Ls {
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    pub help: Option<bool>,
    /// What to list.
    #[arg(required = true, value_name = "URL")]
    pub urls: Vec<OsString>,
    /// Mode, links, owner, size and time too.
    #[arg(short)]
    pub long: bool,
    /// Names that begin with a dot too.
    #[arg(short, long)]
    pub all: bool,
    /// Directories themselves, not what is in them.
    #[arg(short, long)]
    pub directory: bool,
    /// What is in directories below too.
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Sizes as 1.5G, with -l.
    #[arg(short = 'h', long)]
    pub human_readable: bool,
    /// Newest first.
    #[arg(short = 't', overrides_with = "by_size")]
    pub by_time: bool,
    /// Largest first. Of -t and -S the last counts.
    #[arg(short = 'S', overrides_with = "by_time")]
    pub by_size: bool,
    /// The other way round.
    #[arg(short = 'r', long)]
    pub reverse: bool,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

/// `dhow stat`.
#[derive(Debug, Args)]
pub struct Stat {
    /// What to look at.
    #[arg(required = true, value_name = "URL")]
    pub urls: Vec<OsString>,
    /// Follow symbolic links.
    #[arg(short = 'L', long)]
    pub dereference: bool,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

/// `dhow cat`.
#[derive(Debug, Args)]
pub struct Cat {
    /// What to write out.
    #[arg(required = true, value_name = "URL")]
    pub urls: Vec<OsString>,
    /// Print what was done as JSON, on standard error, since standard output has the data.
    #[arg(long)]
    pub json: bool,
}

/// `dhow put`.
#[derive(Debug, Args)]
#[command(override_usage = "dhow put [OPTIONS] [FILE|-] URL")]
pub struct Put {
    /// A local file, or `-` for standard input; left out: standard input. Then the file to write.
    #[arg(required = true, num_args = 1..=2, value_name = "[FILE|-] URL")]
    pub paths: Vec<OsString>,
    /// Permission bits of the new file, in octal.
    #[arg(short, long, value_name = "MODE", value_parser = parse_mode)]
    pub mode: Option<u32>,
    /// Do not wait until the file is on stable storage.
    #[arg(long)]
    pub no_sync: bool,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// `dhow mkdir`.
#[derive(Debug, Args)]
pub struct Mkdir {
    /// What to make.
    #[arg(required = true, value_name = "URL")]
    pub urls: Vec<OsString>,
    /// Make the directories above too; those that exist are no error.
    #[arg(short, long)]
    pub parents: bool,
    /// Permission bits, in octal.
    #[arg(short, long, value_name = "MODE", value_parser = parse_mode)]
    pub mode: Option<u32>,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

/// `dhow rm`.
#[derive(Debug, Args)]
pub struct Rm {
    /// What to remove.
    #[arg(required = true, value_name = "URL")]
    pub urls: Vec<OsString>,
    /// Directories with all that is in them.
    #[arg(short, long, short_alias = 'R')]
    pub recursive: bool,
    /// What is not there is no error.
    #[arg(short, long)]
    pub force: bool,
    /// Empty directories too.
    #[arg(short, long)]
    pub dir: bool,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

/// `dhow mv`.
#[derive(Debug, Args)]
#[command(override_usage = "dhow mv [OPTIONS] URL... DST")]
pub struct Mv {
    /// What to rename, and its new name, or a directory.
    #[arg(required = true, num_args = 2.., value_name = "URL... DST")]
    pub paths: Vec<OsString>,
    /// Replace what has the new name (this is the default).
    #[arg(short, long, overrides_with = "no_clobber")]
    pub force: bool,
    /// Leave alone what has the new name.
    #[arg(short, long, overrides_with = "force")]
    pub no_clobber: bool,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

/// `dhow ln`.
#[derive(Debug, Args)]
#[command(override_usage = "dhow ln [OPTIONS] TARGET URL")]
pub struct Ln {
    /// An existing file (with -s: any text), and the URL of the link.
    #[arg(required = true, num_args = 2, value_names = ["TARGET", "URL"])]
    pub paths: Vec<OsString>,
    /// Make a symbolic link with the text TARGET.
    #[arg(short, long)]
    pub symbolic: bool,
    /// Replace what has the name of the link.
    #[arg(short, long)]
    pub force: bool,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

/// `dhow probe`.
#[derive(Debug, Args)]
pub struct Probe {
    /// A directory on the server; a temporary directory is made and removed in it, if it can be.
    #[arg(value_name = "URL")]
    pub url: OsString,
    /// Change nothing on the server: try only what needs no file.
    #[arg(long)]
    pub read_only: bool,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// `dhow demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// Where the files lie [default: the directory for temporary files].
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Size of the file that is copied.
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    pub size: u64,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// `dhow bench`.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Copies on one server by each method, side by side: calls, seconds, processor time.
    Copy(BenchCopy),
    /// Copies between two servers over emulated links, by the servers and through the client. Needs root.
    Inter(BenchInter),
    /// Processor time of the server per byte of READ and WRITE, against a bare loop that reads and sends.
    Cpu(BenchCpu),
    /// Creates, renames and removes in one directory over a long link, by few writers and by many. Needs root, but for
    /// --server and --rtt 0.
    #[command(after_help = BENCH_CREATE)]
    Create(BenchCreate),
    /// What `bench cpu` compares with.
    #[command(hide = true)]
    Bare(Bare),
}

const BENCH_CREATE: &str = "Rows: operations per second by so many writers, each of which waits for an answer before it \
asks again, beside the limit of writers / round trip. Then a tree of small files, to the server and back, beside copying \
it one file at a time. With --rtt 0: eight clients in one directory and in eight, and the same by eight threads on the \
filesystem itself.";

/// `dhow bench create`.
#[derive(Debug, Args)]
pub struct BenchCreate {
    /// Round trip of the emulated link between client and server; 0: no link at all.
    #[arg(long, value_name = "T", default_value = "200ms", value_parser = dhow_link::parse_time)]
    pub rtt: Duration,
    /// Numbers of writers, separated by commas.
    #[arg(
        long, value_name = "N,...", default_value = "1,10,100,500", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    pub writers: Vec<u32>,
    /// What they do, separated by commas.
    #[arg(
        long,
        value_name = "OP,...",
        value_enum,
        value_delimiter = ',',
        default_value = "create,put,mkdir,rename,remove"
    )]
    pub ops: Vec<crate::bench::create::Op>,
    /// Measure this directory of a running server over whatever link there is, instead of a server that is started.
    #[arg(long, value_name = "URL", conflicts_with_all = ["rtt", "dir", "slots", "metadata_sync"])]
    pub server: Option<OsString>,
    /// Where the served files lie [default: /dev/shm if it is there].
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Slots that the server grants to a session [default: as many as are asked for].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=2048))]
    pub slots: Option<u32>,
    /// The export's setting of that name: changes of names are on stable storage before they are answered.
    #[arg(long, value_name = "BOOL", default_value = "true", action = clap::ArgAction::Set)]
    pub metadata_sync: bool,
    /// How long each row is measured, after a warm-up of a second and ten round trips.
    #[arg(long, value_name = "T", default_value = "10s", value_parser = parse_seconds)]
    pub seconds: Duration,
    /// How often each row is measured.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub runs: u16,
    /// Files of the tree that is copied; 0: none is.
    #[arg(long, value_name = "N", default_value = "2000", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub tree: u32,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    pub json: bool,
}

/// The bare loops of `dhow bench cpu`.
#[derive(Debug, Args)]
pub struct Bare {
    /// The file that is sent, or written.
    pub file: PathBuf,
    /// Receive and write instead of reading and sending.
    #[arg(long)]
    pub receive: bool,
    /// Offsets wrap around after so many bytes.
    #[arg(long)]
    pub span: u64,
    /// Bytes sent to each connection.
    #[arg(long)]
    pub total: u64,
}

/// `dhow bench copy`.
#[derive(Debug, Args)]
pub struct BenchCopy {
    /// Size of the file, as often as wanted [default: 512M].
    #[arg(long = "size", value_name = "SIZE", value_parser = parse_size)]
    pub sizes: Vec<u64>,
    /// Where the served files lie [default: a temporary directory].
    #[arg(long, value_name = "DIR", conflicts_with = "server")]
    pub dir: Option<PathBuf>,
    /// Measure this directory of a running server instead of one that is started for it.
    #[arg(long, value_name = "URL")]
    pub server: Option<OsString>,
    /// How often each method runs; they take turns, and medians are shown.
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub runs: u16,
    /// Which rows: durable at their end, not durable, or both.
    #[arg(long, value_enum, default_value = "both")]
    pub durable: Durable,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// Which rows a bench makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Durable {
    /// COMMIT or FILE_SYNC included.
    Yes,
    /// Left to the server's memory.
    No,
    /// One after the other.
    Both,
}

impl Durable {
    /// The rows, by whether they are durable.
    pub fn rows(self) -> &'static [bool] {
        match self {
            Self::Yes => &[true],
            Self::No => &[false],
            Self::Both => &[false, true],
        }
    }
}

/// `dhow bench inter`.
#[derive(Debug, Args)]
pub struct BenchInter {
    /// Size of the file, as often as wanted [default: 4, 8, 16, 32, 64, 128, 256, 512 and 1000 MB].
    #[arg(long = "size", value_name = "SIZE", value_parser = parse_size)]
    pub sizes: Vec<u64>,
    /// Rate of the servers' links.
    #[arg(long, value_name = "RATE", default_value = "200M", value_parser = dhow_link::parse_rate)]
    pub link: u64,
    /// Round trip between the servers.
    #[arg(long, value_name = "T", default_value = "1ms", value_parser = dhow_link::parse_time)]
    pub rtt: Duration,
    /// Rate of the client's link [default: that of the servers'].
    #[arg(long, value_name = "RATE", value_parser = dhow_link::parse_rate)]
    pub client_link: Option<u64>,
    /// Round trip between the client and each server [default: that between the servers].
    #[arg(long, value_name = "T", value_parser = dhow_link::parse_time)]
    pub client_rtt: Option<Duration>,
    /// Congestion control of all hosts.
    #[arg(long, value_name = "NAME", default_value = "reno")]
    pub congestion: String,
    /// How often each way runs, in turns.
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub runs: u16,
    /// Where the files lie [default: /dev/shm if it is there].
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Copies of mixed sizes, as `--method auto` chooses and by each way alone, instead of the table.
    #[arg(long)]
    pub auto: bool,
    /// How many copies `--auto` makes in each way.
    #[arg(long, value_name = "N", default_value = "50", requires = "auto", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub copies: u16,
    /// What a flood of COPY_NOTIFY and COPY does to the calls of another client, instead of the table.
    #[arg(long, conflicts_with = "auto")]
    pub flood: bool,
    /// Do not check first that the emulator carries the rates here. The result does not count then.
    #[arg(long)]
    pub no_check: bool,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// `dhow bench cpu`.
#[derive(Debug, Args)]
pub struct BenchCpu {
    /// Bytes that each row moves.
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = parse_size)]
    pub size: u64,
    /// Where the served file lies [default: /dev/shm if it is there, else a temporary directory].
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// How often each row runs; they take turns, and medians are shown.
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub runs: u16,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// What clap found wrong, in one line with the remedy.
pub fn one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let usage = text.lines().find_map(|l| l.trim().strip_prefix("Usage: "));
        return match usage.and_then(|u| u.split_once(" <COMMAND>")) {
            Some((command, _)) if command != "dhow" => format!("name a command; {command} --help lists them"),
            _ => "name a command, such as serve or cp; dhow --help lists them".into(),
        };
    }
    if error.kind() == clap::error::ErrorKind::TooFewValues
        && let Some(ContextValue::String(what)) = error.get(ContextKind::InvalidArg)
        && let Some(ContextValue::Number(least)) = error.get(ContextKind::MinValues)
        && let Some(ContextValue::Number(given)) = error.get(ContextKind::ActualNumValues)
    {
        // clap names a list as often as it has values at least.
        let what = what.trim_start_matches('<').split('>').next().unwrap_or_default();
        return format!("{what}: {least} names are needed, {given} was given");
    }
    if error.kind() == clap::error::ErrorKind::MissingRequiredArgument
        && let Some(usage) = text.lines().find_map(|l| l.trim().strip_prefix("Usage: "))
    {
        return format!("something is missing: {usage}");
    }
    let mut first = Vec::new();
    let mut tips = Vec::new();
    let mut in_first = true;
    for line in text.lines() {
        let line = line.trim();
        if line.is_empty() {
            in_first = false;
        } else if let Some(tip) = line.strip_prefix("tip: ") {
            tips.push(tip.to_owned());
        } else if in_first {
            first.push(line.to_owned());
        }
    }
    let mut message = first.join(" ");
    if let Some(rest) = message.strip_prefix("error: ") {
        message = rest.to_owned();
    }
    for tip in tips {
        message.push_str("; ");
        message.push_str(&tip);
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn mistakes_are_one_line() {
        let line = |args: &[&str]| one_line(&Cli::try_parse_from(args).unwrap_err());
        assert_eq!(
            line(&["dhow", "serve", "--exprt", "/a=/b"]),
            "unexpected argument '--exprt' found; a similar argument exists: '--export'"
        );
        assert_eq!(line(&["dhow", "cp", "a"]), "SRC... DST: 2 names are needed, 1 was given");
        assert_eq!(line(&["dhow", "cp"]), "something is missing: dhow cp [OPTIONS] SRC... DST");
        assert_eq!(line(&["dhow", "cat"]), "something is missing: dhow cat <URL>...");
        assert_eq!(line(&["dhow", "admin", "revoke"]), "something is missing: dhow admin revoke <STATEID>...");
        assert_eq!(line(&["dhow", "bench"]), "name a command; dhow bench --help lists them");
        assert!(line(&["dhow"]).ends_with("; dhow --help lists them"));
        assert!(line(&["dhow", "bench", "copy", "--size", "big"]).contains("write for example 4096, 64K, 512M or 2G"));
        assert!(line(&["dhow", "sevre"]).contains("'serve'"));
        assert!(!line(&["dhow", "cp", "--method", "fast", "a", "b"]).contains('\n'));
    }

    #[test]
    fn flags_as_people_type_them() {
        let Command::Ls(ls) = Cli::try_parse_from(["dhow", "ls", "-lahR", "nfs://h/"]).unwrap().command else {
            panic!("ls")
        };
        assert!(ls.long && ls.all && ls.human_readable && ls.recursive);
        let Command::Ls(ls) = Cli::try_parse_from(["dhow", "ls", "-lStrd", "nfs://h/"]).unwrap().command else {
            panic!("ls")
        };
        assert!(ls.by_time && !ls.by_size, "as with ls, the last counts");
        let Command::Cp(cp) = Cli::try_parse_from(["dhow", "cp", "-rp", "a", "b", "nfs://h/c"]).unwrap().command else {
            panic!("cp")
        };
        assert!(cp.recursive && cp.preserve && cp.paths.len() == 3 && cp.jobs == 64);
        let Command::Rm(rm) = Cli::try_parse_from(["dhow", "rm", "-rf", "nfs://h/c"]).unwrap().command else {
            panic!("rm")
        };
        assert!(rm.recursive && rm.force);
        for (text, millis) in [("2", 2000), ("1.5s", 1500), ("200ms", 200)] {
            assert_eq!(parse_seconds(text), Ok(Duration::from_millis(millis)));
        }
        assert!(parse_seconds("2m").is_err() && parse_seconds("").is_err());
    }
}
