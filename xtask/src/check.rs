//! The gate: the steps in order, each timed, and a summary at the end.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::{deps, lab, peers, scan, words};

/// What a step came to.
enum Outcome {
    Passed,
    Failed,
    /// Not run, and why, in one line.
    LeftOut(String),
}

type Run = fn(&Path) -> Result<Outcome>;

struct Step {
    name: &'static str,
    /// Part of `--fast`.
    fast: bool,
    run: Run,
}

const STEPS: [Step; 16] = [
    Step { name: "format", fast: true, run: format },
    Step { name: "unsafe", fast: true, run: |root| listed(&scan::unsafe_code(root)?) },
    Step { name: "purity", fast: true, run: |root| listed(&scan::purity(root)?) },
    Step { name: "wall clock", fast: true, run: |root| listed(&scan::wall_clock(root)?) },
    Step { name: "direction", fast: true, run: |root| listed(&scan::direction(root)?) },
    Step { name: "words", fast: true, run: |root| listed(&words::forbidden(root)?) },
    Step { name: "licences", fast: true, run: |root| listed(&deps::licences(root)?) },
    Step { name: "scripts", fast: true, run: scripts },
    Step { name: "clippy", fast: true, run: clippy },
    Step { name: "tests", fast: true, run: tests },
    Step { name: "doctests", fast: false, run: doctests },
    Step { name: "docs", fast: false, run: docs },
    Step { name: "advisories", fast: false, run: advisories },
    Step { name: "release", fast: false, run: release },
    Step { name: "peers", fast: false, run: peers_step },
    Step { name: "lab", fast: false, run: lab_step },
];

/// The steps' names, in order.
pub fn step_names() -> Vec<&'static str> {
    STEPS.iter().map(|step| step.name).collect()
}

/// Which steps to run.
#[derive(Debug, Default)]
pub struct Options {
    fast: bool,
    no_lab: bool,
    only: Vec<String>,
}

impl Options {
    /// Reads the arguments after `check`.
    ///
    /// # Errors
    /// An unknown option or step.
    pub fn parse(args: &[String]) -> Result<Self> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--fast" => options.fast = true,
                "--no-lab" => options.no_lab = true,
                "--only" => options.only.push(args.next().context("--only wants a step")?.clone()),
                other => bail!("check has no option '{other}' (--fast, --no-lab, --only STEP)"),
            }
        }
        if let Some(unknown) = options.only.iter().find(|o| !step_names().contains(&o.as_str())) {
            bail!("there is no step '{unknown}'; the steps are {}", step_names().join(", "));
        }
        Ok(options)
    }

    fn wants(&self, step: &Step) -> bool {
        if !self.only.is_empty() {
            return self.only.iter().any(|o| o == step.name);
        }
        (step.fast || !self.fast) && !(self.no_lab && ["lab", "peers", "release"].contains(&step.name))
    }
}

/// Runs the steps; true when none failed.
///
/// # Errors
/// None at present: a step that cannot run counts as failed.
pub fn run(root: &Path, options: &Options) -> Result<bool> {
    let mut rows = Vec::new();
    for step in STEPS.iter().filter(|step| options.wants(step)) {
        println!("== {}", step.name);
        let started = Instant::now();
        let outcome = (step.run)(root).unwrap_or_else(|error| {
            println!("{}: {error:#}", step.name);
            Outcome::Failed
        });
        if let Outcome::LeftOut(why) = &outcome {
            println!("{} left out: {why}", step.name);
        }
        rows.push((step.name, outcome, started.elapsed().as_secs_f64()));
    }
    println!("== summary");
    for (name, outcome, seconds) in &rows {
        match outcome {
            Outcome::Passed => println!("{name:<12} ok       {seconds:7.1} s"),
            Outcome::Failed => println!("{name:<12} FAILED   {seconds:7.1} s"),
            Outcome::LeftOut(why) => println!("{name:<12} left out {seconds:7.1} s  {why}"),
        }
    }
    let failed: Vec<&str> =
        rows.iter().filter(|(_, o, _)| matches!(o, Outcome::Failed)).map(|(name, ..)| *name).collect();
    if failed.is_empty() {
        println!("check: passed");
    } else {
        println!("check: FAILED: {}", failed.join(", "));
    }
    Ok(failed.is_empty())
}

fn outcome(ok: bool) -> Outcome {
    if ok { Outcome::Passed } else { Outcome::Failed }
}

/// Prints what a scan found, a line each.
fn listed(found: &[String]) -> Result<Outcome> {
    for line in found {
        println!("{line}");
    }
    Ok(outcome(found.is_empty()))
}

fn cargo(root: &Path, args: &[&str], env: &[(&str, &str)]) -> Result<Outcome> {
    let status = Command::new("cargo")
        .current_dir(root)
        .args(args)
        .envs(env.iter().copied())
        .status()
        .with_context(|| format!("cargo {}", args.join(" ")))?;
    Ok(outcome(status.success()))
}

fn has(tool: &str) -> bool {
    Command::new(tool).arg("--version").output().is_ok_and(|o| o.status.success())
}

fn format(root: &Path) -> Result<Outcome> {
    cargo(root, &["fmt", "--all", "--check"], &[])
}

fn clippy(root: &Path) -> Result<Outcome> {
    cargo(root, &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])
}

/// Unit and integration tests.
fn tests(root: &Path) -> Result<Outcome> {
    if has("cargo-nextest") {
        return cargo(root, &["nextest", "run", "--workspace", "--no-fail-fast"], &[]);
    }
    cargo(root, &["test", "--workspace", "--all-targets", "--no-fail-fast"], &[])
}

fn doctests(root: &Path) -> Result<Outcome> {
    cargo(root, &["test", "--workspace", "--doc"], &[])
}

fn docs(root: &Path) -> Result<Outcome> {
    cargo(root, &["doc", "--workspace", "--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")])
}

fn advisories(root: &Path) -> Result<Outcome> {
    Ok(match deps::advisories(root)? {
        Some(ok) => outcome(ok),
        None => Outcome::LeftOut("cargo-deny is not installed".to_owned()),
    })
}

fn scripts(root: &Path) -> Result<Outcome> {
    if !has("shellcheck") {
        return Ok(Outcome::LeftOut("shellcheck is not installed".to_owned()));
    }
    let status = Command::new("shellcheck")
        .current_dir(root)
        .args(["--external-sources", "--severity=warning", ".ci/run"])
        .args(lab::scripts(root)?)
        .status()
        .context("shellcheck")?;
    Ok(outcome(status.success()))
}

/// The binary that the lab runs; a step of its own so that its time is not the lab's.
fn release(root: &Path) -> Result<Outcome> {
    if let Some(why) = lab::why_not(root)? {
        return Ok(Outcome::LeftOut(format!("only the lab needs it; {why}")));
    }
    Ok(outcome(lab::build_binary(root)?))
}

/// The client library against servers of other people.
fn peers_step(root: &Path) -> Result<Outcome> {
    if let Some(why) = peers::why_not()? {
        return Ok(Outcome::LeftOut(why));
    }
    Ok(outcome(peers::run(root)?))
}

fn lab_step(root: &Path) -> Result<Outcome> {
    if let Some(why) = lab::why_not(root)? {
        return Ok(Outcome::LeftOut(why));
    }
    Ok(outcome(lab::run(root, &lab::Options::default())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(args: &[&str]) -> Vec<&'static str> {
        let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
        let options = Options::parse(&args).unwrap();
        STEPS.iter().filter(|s| options.wants(s)).map(|s| s.name).collect()
    }

    #[test]
    fn options_choose_steps() {
        assert_eq!(wanted(&[]), step_names());
        assert!(!wanted(&["--no-lab"]).contains(&"lab"));
        assert!(wanted(&["--fast"]).contains(&"tests") && !wanted(&["--fast"]).contains(&"docs"));
        assert_eq!(wanted(&["--only", "words", "--only", "format"]), ["format", "words"]);
        assert!(Options::parse(&["--only".to_owned(), "nothing".to_owned()]).is_err());
    }
}
