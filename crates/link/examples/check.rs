//! The command of the library as a program: `cargo run --release -p dhow-link --example check -- check --rate 100M`.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use dhow_link::cli::{LinkArgs, run};

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    link: LinkArgs,
}

fn main() -> ExitCode {
    let program = Program::parse();
    match run(&program.link, &mut io::stdout().lock()) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            let _ = writeln!(io::stderr(), "dhow-link: {error}");
            ExitCode::FAILURE
        }
    }
}
