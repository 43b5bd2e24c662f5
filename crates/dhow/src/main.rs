//! The `dhow` binary: arguments, configuration, wiring, printing. What it does is in the libraries.

mod admin;
mod bench;
mod cli;
mod config;
mod costs;
mod cp;
mod demo;
mod exit;
mod export;
mod files;
mod live;
mod ls;
mod manual;
mod output;
mod people;
mod place;
mod probe;
mod scratch;
mod serve;
mod settings;
mod value;
mod words;

use clap::Parser;
use cli::{Bench, Cli, Command};
use exit::{Code, Outcome, complain};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // Help and version are no mistakes.
        Err(e) if !e.use_stderr() => {
            let _ = e.print();
            return ExitCode::SUCCESS;
        }
        Err(e) => {
            complain(cli::one_line(&e));
            return ExitCode::from(Code::Usage as u8);
        }
    };
    match run(cli.command) {
        Ok(()) if output::is_broken() => ExitCode::from(Code::Failed as u8),
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                complain(&failure.message);
            }
            ExitCode::from(failure.code as u8)
        }
    }
}

fn run(command: Command) -> Outcome {
    match &command {
        Command::Link(args) => return link(args),
        Command::Completions { shell } => return manual::completions(*shell),
        Command::Man { command, dir } => return manual::man(command.as_deref(), dir.as_deref()),
        _ => {}
    }
    if matches!(command, Command::Serve(_) | Command::Demo(_) | Command::Bench(Bench::Inter(_))) {
        serve::prepare_process();
    }
    // System calls on what is in memory run on these threads, so there are more of them than processors.
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads((2 * cores).max(4))
        .enable_all()
        .build()
        .map_err(|e| exit::Failure::failed(format!("cannot start threads: {e}")))?;
    if !matches!(command, Command::Serve(_)) {
        serve::log_to_stderr(None)?;
    }
    let done = runtime.block_on(async {
        match command {
            Command::Serve(args) => serve::run(args).await,
            Command::Cp(args) => cp::run(args).await,
            Command::Ls(args) => ls::ls(args).await,
            Command::Stat(args) => ls::stat(args).await,
            Command::Cat(args) => files::cat(args).await,
            Command::Put(args) => files::put(args).await,
            Command::Mkdir(args) => files::mkdir(args).await,
            Command::Rm(args) => files::rm(args).await,
            Command::Mv(args) => files::mv(args).await,
            Command::Ln(args) => files::ln(args).await,
            Command::Probe(args) => probe::run(args).await,
            Command::Demo(args) => scratch::unless_interrupted(demo::run(args)).await,
            Command::Admin(args) => admin::run(args).await,
            // Done above, without a runtime.
            Command::Link(_) | Command::Completions { .. } | Command::Man { .. } => Ok(()),
            Command::Bench(Bench::Copy(args)) => scratch::unless_interrupted(bench::copy::run(args)).await,
            Command::Bench(Bench::Inter(args)) => scratch::unless_interrupted(bench::inter::run(args)).await,
            Command::Bench(Bench::Create(args)) => scratch::unless_interrupted(bench::create::run(args)).await,
            Command::Bench(Bench::Cpu(args)) => scratch::unless_interrupted(bench::cpu::run(args)).await,
            Command::Bench(Bench::Bare(args)) => bench::bare::run(&args),
        }
    });
    // A read of standard input that nobody waits for any more must not hold the process.
    runtime.shutdown_background();
    done
}

/// `dhow link`, which needs no runtime. What it found wanting is its exit code.
fn link(args: &dhow_link::cli::LinkArgs) -> Outcome {
    match dhow_link::cli::run(args, &mut std::io::stdout().lock()) {
        Ok(0) => Ok(()),
        Ok(_) => Err(exit::Failure::told()),
        Err(e) => Err(exit::Failure::failed(e)),
    }
}
