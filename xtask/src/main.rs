//! The project's own commands, run as `cargo xtask COMMAND`: the gate (`check`) and the lab (`lab`).

mod check;
mod deps;
mod lab;
mod manifest;
mod peers;
mod scan;
mod source;
mod words;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

const HELP: &str = "\
The project's own commands.

cargo xtask check [--fast] [--no-lab] [--only STEP]...
    The gate: every step below, then a summary with seconds per step. Exit status 1 if a step failed.
      --fast       leave out doctests, docs, advisories and the lab
      --no-lab     leave out the lab
      --only STEP  this step alone (repeat for more)
    Steps: STEPS

cargo xtask lab [--list] [--long] [--server dhow|inside|knfsd] [--jobs N] [--keep DIR]
                [--binary FILE] [SCENARIO[@RUN]]...
    Boots Linux guests and runs lab/scenarios/*.sh in them, all that apply or those named.
      --list       the scenarios with their titles, without running any
      --long       more work, more crashes: minutes for each run instead of seconds
      --server S   who serves: dhow (the default: `dhow serve` on this machine beside the guest),
                   inside (`dhow serve` within the guest), knfsd (the kernel's server within the
                   guest, to see what a check says of it)
      --jobs N     guests at a time (default: the number of cores, at most 4)
      --keep DIR   keep what each run printed, and its server's log, in DIR
      --binary F   run this binary instead of building dhow in release

cargo xtask help
    This text.
";

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs the command of the arguments; false when a check failed.
fn run() -> Result<bool> {
    let mut args = std::env::args().skip(1);
    let command = args.next().unwrap_or_else(|| "help".to_owned());
    let rest: Vec<String> = args.collect();
    let root = root()?;
    match command.as_str() {
        "check" => check::run(&root, &check::Options::parse(&rest)?),
        "lab" => lab::run(&root, &lab::Options::parse(&rest)?),
        "help" | "--help" | "-h" => {
            print!("{}", HELP.replace("STEPS", &check::step_names().join(", ")));
            Ok(true)
        }
        other => anyhow::bail!("there is no command '{other}'; `cargo xtask help` lists them"),
    }
}

/// The project's top folder: the parent of this package's.
fn root() -> Result<PathBuf> {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map(Path::to_path_buf)
        .context("the xtask package has no parent folder")
}
