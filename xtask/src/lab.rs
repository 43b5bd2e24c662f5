//! Runs the scenarios of `lab/scenarios` in Linux guests and prints one line per check.

mod scenario;
pub mod verdict;

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use scenario::Plan;
use verdict::{Known, Tally};

/// Longest that making the guest's root file system (and unpacking a kernel) may take.
const BUILD_SECONDS: &str = "900";

/// Programs of the client library that scenarios run.
const EXAMPLES: [&str; 2] = ["conformance", "ledger"];

/// How much more time a scenario has with `--long`.
const LONGER: u32 = 8;

/// Where the server under test runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Server {
    /// `dhow serve` on this machine, beside the guest.
    #[default]
    Beside,
    /// `dhow serve` in the guest.
    Inside,
    /// The kernel's server in the guest.
    Knfsd,
}

impl Server {
    fn name(self) -> &'static str {
        match self {
            Self::Beside => "dhow",
            Self::Inside => "inside",
            Self::Knfsd => "knfsd",
        }
    }
}

/// What to run, and how.
#[derive(Debug, Default)]
pub struct Options {
    list: bool,
    long: bool,
    server: Server,
    jobs: usize,
    keep: Option<PathBuf>,
    binary: Option<PathBuf>,
    names: Vec<String>,
}

impl Options {
    /// Reads the arguments after `lab`.
    ///
    /// # Errors
    /// An unknown option, or one without its value.
    pub fn parse(args: &[String]) -> Result<Self> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} wants a value"));
            match arg.as_str() {
                "--list" => options.list = true,
                "--long" => options.long = true,
                "--jobs" => options.jobs = value()?.parse().context("--jobs wants a number")?,
                "--keep" => options.keep = Some(PathBuf::from(value()?)),
                "--binary" => options.binary = Some(PathBuf::from(value()?)),
                "--server" => {
                    options.server = match value()?.as_str() {
                        "dhow" => Server::Beside,
                        "inside" => Server::Inside,
                        "knfsd" => Server::Knfsd,
                        other => bail!("there is no server '{other}' (dhow, inside, knfsd)"),
                    }
                }
                name if !name.starts_with('-') => options.names.push(name.to_owned()),
                other => bail!("lab has no option '{other}'; see `cargo xtask help`"),
            }
        }
        Ok(options)
    }
}

/// Every script of the lab, for shellcheck.
///
/// # Errors
/// A folder that cannot be read.
pub fn scripts(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for folder in ["lab", "lab/demo", "lab/scenarios"] {
        for entry in fs::read_dir(root.join(folder)).with_context(|| folder.to_owned())? {
            let path = entry?.path();
            let text = fs::read_to_string(&path).unwrap_or_default();
            if text.starts_with("#!/bin/bash") || text.starts_with("# shellcheck shell=bash") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Why the lab cannot run on this machine, if it cannot.
///
/// # Errors
/// When `id` cannot be run.
pub fn why_not(root: &Path) -> Result<Option<String>> {
    let id = Command::new("id").arg("-u").output().context("id -u")?;
    if String::from_utf8_lossy(&id.stdout).trim() != "0" {
        return Ok(Some("it needs root".to_owned()));
    }
    if !Path::new("/etc/debian_version").exists() {
        return Ok(Some("it needs Debian (the guest is made with apt)".to_owned()));
    }
    let prebuilt = std::env::var_os("LAB_PREBUILT").map_or_else(|| root.join("lab/prebuilt"), PathBuf::from);
    let archive = !prebuilt.as_os_str().is_empty() && prebuilt.join("uml.tar.xz").exists();
    if archive || cache().is_some_and(|c| c.join("kernel/uml/linux").exists()) {
        return Ok(None);
    }
    Ok(Some(
        "no guest kernel is built and LAB_PREBUILT points at none; `lab/vm-build` compiles one in 10 minutes"
            .to_owned(),
    ))
}

/// Where lab/lib.sh keeps what is built.
fn cache() -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    var("LAB_CACHE").or_else(|| {
        let base = var("XDG_CACHE_HOME").or_else(|| Some(var("HOME")?.join(".cache")))?;
        Some(base.join("nfs-lab"))
    })
}

/// Builds the binaries that the scenarios run.
///
/// # Errors
/// When cargo cannot be run.
pub fn build_binary(root: &Path) -> Result<bool> {
    let build = |args: &[&str]| -> Result<bool> {
        let args = [&["build", "--release"], args].concat();
        Ok(Command::new("cargo").current_dir(root).args(args).status().context("cargo build")?.success())
    };
    let examples = EXAMPLES.iter().flat_map(|name| ["--example", *name]);
    let examples: Vec<&str> = ["--package", "dhow-client"].into_iter().chain(examples).collect();
    Ok(build(&["--package", "dhow"])? && build(&examples)?)
}

/// Where cargo puts what it builds.
pub fn target_dir(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// Runs the scenarios; true when no check failed that was not known to.
///
/// # Errors
/// When the lab or the binary cannot be built, or a scenario named does not exist.
pub fn run(root: &Path, options: &Options) -> Result<bool> {
    let scenarios = scenario::all(&root.join("lab/scenarios"))?;
    if options.list {
        for s in &scenarios {
            println!("{:<10} {} [{}]", s.name, s.title, s.runs.join(" "));
        }
        return Ok(true);
    }
    let mut plans = scenario::select(&scenarios, &options.names)?;
    // Against the kernel's server most scenarios run nothing of ours.
    let binary = match &options.binary {
        Some(given) => Some(given.clone()),
        None if plans.iter().all(|p| options.server == Server::Knfsd && !p.scenario.client) => None,
        None => {
            ensure!(build_binary(root)?, "the binary does not build");
            Some(target_dir(root).join("release/dhow"))
        }
    };
    build_lab(root)?;
    let work = Work::new(root, binary.as_deref())?;
    plans.retain(|plan| match work.lacking(plan, options.server) {
        Some(why) => {
            println!("left out  {}: {why}", plan.label());
            false
        }
        None => true,
    });
    let known = Known::read(&root.join("lab/KNOWN_FAILURES"), options.server)?;
    let started = Instant::now();
    let tally = Mutex::new(Tally::default());
    let runs = plans.len();
    // A guest is mostly one busy process: one for each of this machine's cores, and beside them one of those that wait.
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let jobs = if options.jobs == 0 { cores.min(4) } else { options.jobs };
    let (idle, busy): (VecDeque<_>, VecDeque<_>) = plans.into_iter().partition(|plan| plan.scenario.idle);
    let queues = [Mutex::new(busy), Mutex::new(idle)];
    let work_off = |queues: &[Queue<'_>]| {
        while let Some(plan) = next(queues) {
            let one = work.run(root, &plan, options, &known);
            tally.lock().unwrap_or_else(PoisonError::into_inner).add(&one);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| work_off(&queues));
        }
        if options.jobs != 1 {
            scope.spawn(|| work_off(&queues[1..]));
        }
    });
    let tally = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("lab: {runs} runs, {tally}, {:.0} s", started.elapsed().as_secs_f64());
    for name in &tally.failed {
        println!("lab: failed: {name}");
    }
    ensure!(runs > 0 || options.names.is_empty(), "none of the scenarios named can run");
    Ok(tally.failed.is_empty())
}

/// Plans that wait for a guest.
type Queue<'a> = Mutex<VecDeque<Plan<'a>>>;

/// From the first queue that has one.
fn next<'a>(queues: &[Queue<'a>]) -> Option<Plan<'a>> {
    queues.iter().find_map(|queue| queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front())
}

/// Makes the guest's kernel and root file system where they are missing.
fn build_lab(root: &Path) -> Result<()> {
    let started = Instant::now();
    let output = Command::new("timeout")
        .args(["--kill-after=5", BUILD_SECONDS])
        .arg(root.join("lab/vm-build"))
        .stdin(Stdio::null())
        .output()
        .context("lab/vm-build")?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines.get(lines.len().saturating_sub(15)..).unwrap_or_default();
        bail!("lab/vm-build: {}\n{}", output.status, tail.join("\n"));
    }
    println!("lab: guest ready ({:.0} s)", started.elapsed().as_secs_f64());
    Ok(())
}

/// The folder of one call of `cargo xtask lab`; removed at its end.
struct Work {
    dir: PathBuf,
    serves: bool,
    client: bool,
}

impl Work {
    /// Lays out what the guests see at /share: the helpers, the scenarios, the binary.
    fn new(root: &Path, built: Option<&Path>) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("dhow-lab.{}", std::process::id()));
        let share = dir.join("share");
        fs::create_dir_all(share.join("scenarios")).with_context(|| share.display().to_string())?;
        for (from, to) in [
            ("lab/demo/guest-lib.sh", "guest-lib.sh"),
            ("lab/beside", "beside"),
            ("lab/scenario-lib.sh", "scenario-lib.sh"),
            ("lab/server-lib.sh", "server-lib.sh"),
        ] {
            fs::copy(root.join(from), share.join(to)).with_context(|| from.to_owned())?;
        }
        for entry in fs::read_dir(root.join("lab/scenarios"))? {
            let file = entry?;
            fs::copy(file.path(), share.join("scenarios").join(file.file_name()))?;
        }
        let binary = share.join("dhow");
        if let Some(built) = built {
            fs::copy(built, &binary).with_context(|| built.display().to_string())?;
            // The programs of the client library lie beside it, if they were built.
            for name in EXAMPLES {
                let program = built.with_file_name("examples").join(name);
                if program.exists() {
                    fs::copy(&program, share.join(name)).with_context(|| program.display().to_string())?;
                }
            }
        }
        lend_git(&share.join("git"))?;
        let has = |command: &str, word: &str| {
            let output = Command::new(&binary).args([command, "--help"]).output();
            output.is_ok_and(|o| o.status.success() && String::from_utf8_lossy(&o.stdout).contains(word))
        };
        Ok(Self { serves: has("serve", "--listen"), client: has("ls", "Usage"), dir })
    }

    /// What a run wants and this binary has not.
    fn lacking(&self, plan: &Plan<'_>, server: Server) -> Option<&'static str> {
        if plan.scenario.serves && server != Server::Knfsd && !self.serves {
            return Some("this build of dhow has no `serve`");
        }
        (plan.scenario.client && !self.client).then_some("this build of dhow has no client commands")
    }

    /// Boots one guest, runs one scenario in it and says how each check went.
    fn run(&self, root: &Path, plan: &Plan<'_>, options: &Options, known: &Known) -> Tally {
        let label = plan.label();
        let folder = self.dir.join(&label);
        let mut tally = Tally::default();
        let ran = self.boot(root, plan, options, known, &folder, &mut tally);
        if let Err(error) = ran {
            tally.fail(known, &label, "run", &format!("{error:#}"));
        }
        if let Some(keep) = &options.keep {
            let _ = fs::create_dir_all(keep);
            for file in
                ["guest.log", "kernel.log", "beside.log"].iter().map(|f| folder.join(f)).chain(server_logs(&folder))
            {
                let name = file.file_name().unwrap_or_default().to_string_lossy();
                let _ = fs::copy(&file, keep.join(format!("{label}.{name}")));
            }
        }
        tally
    }

    fn boot(
        &self,
        root: &Path,
        plan: &Plan<'_>,
        options: &Options,
        known: &Known,
        folder: &Path,
        tally: &mut Tally,
    ) -> Result<()> {
        let label = plan.label();
        for sub in ["out", "base"] {
            fs::create_dir_all(folder.join(sub)).with_context(|| folder.display().to_string())?;
        }
        let server = plan.place(options.server);
        let beside = match plan.scenario {
            s if s.outside => "outside",
            s if s.serves && server == Server::Beside => "serve",
            _ => "idle",
        };
        let beside_log = folder.join("beside.log");
        let started = Instant::now();
        let long = if options.long { "1" } else { "" };
        let seconds = plan.scenario.timeout * if options.long { LONGER } else { 1 };
        let mut child = Command::new(root.join("lab/vm-run"))
            .args(["--timeout", &seconds.to_string(), "--mem", &plan.scenario.mem])
            .arg("--share")
            .arg(self.dir.join("share"))
            .arg("--out")
            .arg(folder.join("out"))
            .args(["--beside", &format!("exec bash '{}/lab/beside' {beside}", root.display()), "--beside-log"])
            .arg(&beside_log)
            .arg("--console-log")
            .arg(folder.join("kernel.log"))
            .args(["--", "env", &format!("LAB_SERVER={}", server.name()), &format!("LAB_VERS={}", plan.version())])
            .args([&format!("LAB_FS={}", plan.fs()), &format!("LAB_LONG={long}"), "bash"])
            .arg(format!("/share/scenarios/{}.sh", plan.scenario.name))
            .env("LAB_FS", plan.fs())
            .env("LAB_LONG", long)
            .env("LAB_BASE", folder.join("base"))
            .env("LAB_OUT", folder.join("out"))
            .env("LAB_SHARE", self.dir.join("share"))
            .env("LAB_SCENARIO", &plan.scenario.name)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("lab/vm-run")?;
        let mut stderr = child.stderr.take().context("no standard error")?;
        let stdout = child.stdout.take().context("no standard output")?;
        let errors = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        let (mut log, mut announced) = (String::new(), Vec::new());
        let mut ended = false;
        for line in BufReader::new(stdout).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).trim_end_matches('\r').to_owned();
            match line.strip_prefix("@@ ") {
                Some("end") => ended = true,
                Some(report) => match report.strip_prefix("announce ") {
                    Some(text) => announced.push(text.to_owned()),
                    None => tally.report(known, &label, report),
                },
                None => {}
            }
            log.push_str(&line);
            log.push('\n');
        }
        let status = child.wait()?;
        let errors = errors.join().unwrap_or_default();
        fs::write(folder.join("guest.log"), format!("{log}== standard error\n{errors}"))?;
        let server_logs: Vec<_> = server_logs(folder).into_iter().map(|file| (read_text(&file), file)).collect();
        for (text, file) in &server_logs {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            for line in faults(text, &announced) {
                tally.fail(known, &label, "server", &format!("{name}: {line}"));
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        if !ended || !status.success() && tally.failed.is_empty() {
            let printed = [format!("{log}{errors}"), read_text(&beside_log)];
            for text in printed.iter().chain(server_logs.iter().map(|(text, _)| text)) {
                let lines: Vec<&str> = text.lines().collect();
                for line in lines.get(lines.len().saturating_sub(40)..).unwrap_or_default() {
                    println!("    | {line}");
                }
            }
            let why = if ended { "every check passed, and yet" } else { "the scenario did not reach its end:" };
            tally.fail(known, &label, "run", &format!("{why} {status} after {seconds:.0} s"));
        }
        println!("          {label}: {seconds:.0} s");
        Ok(())
    }
}

fn read_text(file: &Path) -> String {
    String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).into_owned()
}

/// What servers printed, beside the guest or in it: every `*.log` that the run left in the folder of its results.
fn server_logs(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.join("out")).into_iter().flatten().flatten();
    let mut logs: Vec<_> = entries.map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "log")).collect();
    logs.sort();
    logs
}

/// Lines of a server's log that tell of a fault of its own, whatever the checks said, a few of them: panics, and errors
/// that the scenario did not announce. In `2026-01-01T00:00:00Z ERROR module: text` the second word is the level.
fn faults<'a>(log: &'a str, announced: &[String]) -> Vec<&'a str> {
    const ALWAYS: [&str; 2] = ["a status that is not in the table", "panicked"];
    let always = |line: &str| ALWAYS.iter().any(|fault| line.contains(fault));
    let error = |line: &str| line.split_whitespace().nth(1) == Some("ERROR");
    let expected = |line: &str| announced.iter().any(|text| line.contains(text.as_str()));
    log.lines().filter(|line| always(line) || error(line) && !expected(line)).take(3).collect()
}

/// The guest has no git of its own: it borrows this machine's, which is one binary under several names.
fn lend_git(folder: &Path) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join("git")).find(|file| file.is_file());
    let Some(git) = found else { return Ok(()) };
    fs::create_dir_all(folder)?;
    for name in ["git", "git-upload-pack", "git-receive-pack"] {
        fs::copy(&git, folder.join(name)).with_context(|| git.display().to_string())?;
    }
    Ok(())
}

impl Drop for Work {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[cfg(test)]
mod tests {
    use super::faults;

    #[test]
    fn a_fault_of_the_server_is_found_in_its_log() {
        let log = "== 10:00:00 start\n\
            2026-01-01T00:00:00Z  INFO dhow: ready\n\
            2026-01-01T00:00:00Z ERROR dhow_server: a status that is not in the table breach=COMMIT may not return NOENT\n\
            2026-01-01T00:00:00Z ERROR dhow_local: an fsync failed: No space left on device\n\
            thread 'a' panicked at src/lib.rs:1\nok\n";
        assert_eq!(faults(log, &[]).len(), 3);
        let announced = ["an fsync failed", "not in the table", "thread"].map(str::to_owned);
        let left = faults(log, &announced);
        assert_eq!(left.len(), 2, "a panic cannot be announced: {left:?}");
        assert!(faults("2026-01-01T00:00:00Z  INFO serving\n2026-01-01T00:00:00Z  WARN ERROR\n", &[]).is_empty());
    }
}
