//! Processes of this same binary, whose processor time is counted apart from ours.

use crate::exit::{Failure, Outcome};
use crate::scratch::Scratch;
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// Clock ticks per second in `/proc` (USER_HZ): 100 on every Linux architecture that Rust knows.
const TICKS: f64 = 100.0;
/// How long a child may take to get ready.
const START: Duration = Duration::from_secs(30);

/// A child that listens.
pub struct Server {
    child: Child,
    /// Its temporary files: it may end without a chance to remove them.
    _scratch: Scratch,
    /// Where.
    pub addr: SocketAddr,
}

impl Server {
    /// Starts this binary with `args` and waits for its line `ready: listening on ADDR`.
    ///
    /// # Errors
    /// The child did not get ready; what it said is on standard error.
    pub async fn start<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Outcome<Self> {
        let program = std::env::current_exe().map_err(|e| Failure::failed(format!("cannot find this program: {e}")))?;
        let scratch = Scratch::in_or_temp(None, "dhow-bench-server")?;
        let mut command = Command::new(program);
        command.args(args).env("TMPDIR", &*scratch).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        // Where nobody drops it: when this process ends.
        dhow_sys::netns::die_with_spawning_thread(command.as_std_mut());
        let mut child = command.spawn().map_err(|e| Failure::failed(format!("cannot start the server: {e}")))?;
        let addr = tokio::time::timeout(START, ready(&mut child)).await.ok().flatten();
        let Some(addr) = addr else {
            let _ = child.kill().await;
            return Err(Failure::failed("the server to be measured did not start"));
        };
        Ok(Self { child, _scratch: scratch, addr })
    }

    /// Processor time that the child has used, user and system, in seconds.
    pub fn cpu_seconds(&self) -> f64 {
        let Some(pid) = self.child.id() else { return 0.0 };
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        parse_cpu(&stat).unwrap_or(0.0)
    }

    /// Resident memory of the child, bytes.
    pub fn resident(&self) -> u64 {
        let Some(pid) = self.child.id() else { return 0 };
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
        let kib = line.and_then(|l| l.split_whitespace().next()).and_then(|n| n.parse::<u64>().ok());
        kib.unwrap_or(0) * 1024
    }

    /// Ends it as a user would, by SIGTERM.
    pub async fn stop(mut self) {
        let pid = self.child.id().and_then(|p| i32::try_from(p).ok()).and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            // Gone already is as good.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        if tokio::time::timeout(Duration::from_secs(10), self.child.wait()).await.is_err() {
            let _ = self.child.kill().await;
        }
    }
}

/// User and system time of a line of `/proc/PID/stat`, in seconds.
fn parse_cpu(stat: &str) -> Option<f64> {
    // utime and stime are the 14th and 15th field.
    let mut fields = crate::scratch::fields(stat)?.skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS)
}

async fn ready(child: &mut Child) -> Option<SocketAddr> {
    let mut lines = BufReader::new(child.stdout.take()?).lines();
    while let Some(line) = lines.next_line().await.ok()? {
        if let Some(addr) = line.strip_prefix("ready: listening on ") {
            let addr = addr.split(',').next()?.parse().ok()?;
            // Whatever else it prints must find a reader.
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return Some(addr);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_found_behind_any_name() {
        let stat = "12 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 1 0";
        assert_eq!(parse_cpu(stat), Some(3.0));
        assert_eq!(parse_cpu("12 (a"), None);
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        assert!(parse_cpu(&own).is_some());
    }
}
