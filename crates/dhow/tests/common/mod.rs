//! The built binary, and a server of it.

#![allow(dead_code, clippy::unwrap_used, clippy::indexing_slicing)]

use serde_json::Value;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A command of the binary.
pub fn dhow<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dhow"));
    command.args(args).stdin(Stdio::null()).env_remove("DHOW_LOG");
    command
}

/// Runs it to its end.
pub fn run<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Output {
    dhow(args).output().unwrap()
}

/// Runs it, and insists that all went well. Returns standard output.
pub fn ok<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> String {
    let out = run(args);
    let (stdout, stderr) = (text(&out.stdout), text(&out.stderr));
    assert!(out.status.success(), "{:?}\n{stdout}\n{stderr}", out.status);
    stdout
}

/// Runs it with `--json` among the arguments, and reads what it printed.
pub fn json<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Value {
    serde_json::from_str(&ok(args)).unwrap()
}

/// Runs it, and insists that it fails with this code and says so in one line on standard error, which is returned
/// without `error: `.
pub fn fails<A: AsRef<OsStr>>(code: i32, args: impl IntoIterator<Item = A>) -> String {
    let out = run(args);
    let stderr = text(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "{}\n{stderr}", text(&out.stdout));
    let lines: Vec<&str> = stderr.lines().filter(|l| !l.starts_with("warning: ")).collect();
    assert_eq!(lines.len(), 1, "not one line: {stderr}");
    lines[0].strip_prefix("error: ").unwrap_or_else(|| panic!("{stderr}")).to_owned()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A server of the binary that exports a temporary directory at `/data` (and read-only at `/ro`).
pub struct Server {
    pub child: Child,
    pub addr: String,
    /// The exported directory.
    pub dir: PathBuf,
    _port: tokio::net::TcpSocket,
    _temp: tempfile::TempDir,
}

impl Server {
    pub fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), &[])
    }

    pub fn start_in(temp: tempfile::TempDir, more: &[&str]) -> Self {
        let dir = temp.path().join("data");
        std::fs::create_dir_all(&dir).unwrap();
        let export = |name: &str, option: &str| format!("--export=/{name}={},no_root_squash{option}", dir.display());
        let state = format!("--state-dir={}", temp.path().join("state").display());
        let (port, listen) = reserved();
        let args = ["serve".to_owned(), export("data", ""), export("ro", ",ro"), format!("--listen={listen}"), state];
        let mut child = dhow(args.iter().map(String::as_str).chain(more.iter().copied()))
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let addr = ready(&mut child);
        Self { child, addr, dir, _port: port, _temp: temp }
    }

    /// The URL of a file below `/data`.
    pub fn url(&self, path: &str) -> String {
        format!("nfs://{}/data/{path}", self.addr)
    }

    /// Sends a signal.
    pub fn signal(child: &Child, name: &str) {
        let pid = child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where a server is to listen that will be killed and started again there: while the socket lives, the kernel gives the
/// port to nobody else in between.
pub fn reserved() -> (tokio::net::TcpSocket, String) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let addr = socket.local_addr().unwrap().to_string();
    (socket, addr)
}

/// Waits until a server is ready, and returns where it listens.
pub fn ready(child: &mut Child) -> String {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = lines.find_map(|l| l.unwrap().strip_prefix("ready: listening on ").map(str::to_owned));
    ready.expect("the server did not get ready")
}

/// Names in a directory, sorted.
pub fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(dir).unwrap().map(|e| text(e.unwrap().file_name().as_encoded_bytes())).collect();
    names.sort();
    names
}
