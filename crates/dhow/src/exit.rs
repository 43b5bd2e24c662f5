//! How the program ends: exit codes, and errors as the user reads them.

use std::fmt;
use std::io::Write as _;

/// Exit codes, as docs/cli.md lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Some or all of the work failed.
    Failed = 1,
    /// The command line or the configuration is wrong; nothing was done.
    Usage = 2,
    /// The server cannot be reached, or does not speak the protocol.
    Unreachable = 3,
    /// Stopped by an interrupt (128 + SIGINT, as shells have it).
    Interrupted = 130,
}

/// Why the program ends without success. A message may be empty when everything was said already.
#[derive(Debug)]
pub struct Failure {
    /// What the process exits with.
    pub code: Code,
    /// One line for the user.
    pub message: String,
}

impl Failure {
    /// The work failed.
    pub fn failed(message: impl fmt::Display) -> Self {
        Self { code: Code::Failed, message: message.to_string() }
    }

    /// The user asked for something that cannot be.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self { code: Code::Usage, message: message.to_string() }
    }

    /// The work failed, and each failure was printed where it happened.
    pub fn told() -> Self {
        Self { code: Code::Failed, message: String::new() }
    }
}

impl From<dhow_copy::Error> for Failure {
    fn from(e: dhow_copy::Error) -> Self {
        let code = match e.kind {
            dhow_copy::ErrorKind::Unreachable => Code::Unreachable,
            dhow_copy::ErrorKind::Cancelled => Code::Interrupted,
            _ => Code::Failed,
        };
        Self { code, message: e.to_string() }
    }
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Self {
        Self::failed(e)
    }
}

/// What every command returns.
pub type Outcome<T = ()> = Result<T, Failure>;

/// Says on standard error that something failed, in one line.
pub fn complain(message: impl fmt::Display) {
    line(format!("error: {message}\n"));
}

/// Says on standard error what the user should know.
pub fn warn(message: impl fmt::Display) {
    line(format!("warning: {message}\n"));
}

/// Writes a line in one call, so that what another process says meanwhile does not get into it.
fn line(line: String) {
    // Nobody is there to be told that nobody is there to be told.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}
