//! `dhow admin` and reloads, by the built binary (case K19): orders, what others may not, peers that say nothing; and
//! what the command line says of itself.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use common::{Server, dhow, fails, json, ok, ready, run, text};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A server of a configuration file that can be changed.
struct Configured {
    child: Child,
    addr: String,
    file: PathBuf,
    state: PathBuf,
    temp: tempfile::TempDir,
}

/// The file: two exports, or other text in place of the second.
fn write_config(temp: &Path, rest: &str) -> PathBuf {
    let file = temp.join("dhow.toml");
    let text = format!(
        "listen = \"127.0.0.1:0\"\nstate_dir = \"{0}/state\"\n{rest}\n\
         [[export]]\nname = \"/data\"\ndir = \"{0}/data\"\nsquash = \"none\"\n",
        temp.display()
    );
    fs::write(&file, text).unwrap();
    file
}

fn export(temp: &Path, name: &str) -> String {
    format!("[[export]]\nname = \"/{name}\"\ndir = \"{}/{name}\"\nsquash = \"none\"\n", temp.display())
}

impl Configured {
    fn start(rest: impl FnOnce(&Path) -> String) -> Self {
        let temp = tempfile::tempdir().unwrap();
        for dir in ["data", "more", "new"] {
            fs::create_dir(temp.path().join(dir)).unwrap();
        }
        let file = write_config(temp.path(), &rest(temp.path()));
        let mut child = dhow(["serve", "--config", file.to_str().unwrap()])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let addr = ready(&mut child);
        let state = temp.path().join("state");
        Self { child, addr, file, state, temp }
    }

    fn admin<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        [&["admin", "--state-dir", self.state.to_str().unwrap()], args].concat()
    }

    fn json(&self, args: &[&str]) -> Value {
        json(self.admin(&[&["--json"], args].concat()))
    }

    fn url(&self, path: &str) -> String {
        format!("nfs://{}/{path}", self.addr)
    }

    /// Waits for a line on standard error.
    fn says(&mut self, part: &str) {
        let lines = BufReader::new(self.child.stderr.as_mut().unwrap()).lines();
        for line in lines {
            let line = line.unwrap();
            if line.contains(part) {
                return;
            }
        }
        panic!("it did not say {part}");
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client that keeps a file open: `dhow put` whose input does not end.
fn holder(url: &str) -> Child {
    let mut child = dhow(["put", "-", url]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(b"data").unwrap();
    child
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..600 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{what} did not come");
}

#[test]
fn clients_and_state_are_shown_and_ended() {
    let server = Configured::start(|_| String::new());
    let status = server.json(&["status"]);
    assert_eq!((&status["clients"], &status["exports"][0]["name"]), (&0.into(), &"/data".into()));
    let mode = fs::metadata(server.state.join("admin")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut put = holder(&server.url("data/held"));
    until("the open", || !server.json(&["state"])["state"].as_array().unwrap().is_empty());
    let state = server.json(&["state"]);
    let open = &state["state"][0];
    assert_eq!((&open["kind"], &open["export"]), (&"open".into(), &"/data".into()), "{open}");
    // It lies under a passing name until it is whole.
    assert!(open["file"].as_str().unwrap().starts_with("/data/."), "{open}");
    let clients = server.json(&["clients"]);
    let client = &clients["clients"][0];
    assert_eq!((&client["client"], &client["opens"]), (&open["client"], &1.into()), "{client}");
    assert!(client["addresses"][0].as_str().unwrap().starts_with("127.0.0.1:"));
    let id = client["client"].as_str().unwrap();
    let lines = ok(server.admin(&["clients"]));
    assert!(lines.starts_with(&format!("{id} live ")), "{lines}");
    assert!(ok(server.admin(&["state", "--client", id])).contains(" open "));
    assert!(ok(server.admin(&["counters"])).contains("\nop.OPEN 1\n"));
    ok(server.admin(&["counters", "--reset"]));
    assert!(!ok(server.admin(&["counters"])).contains("op.OPEN "));
    // The open goes, then the client.
    let stateid = open["stateid"].as_str().unwrap();
    assert_eq!(server.json(&["revoke", stateid])["revoked"], 1);
    assert!(server.json(&["state"])["state"].as_array().unwrap().is_empty());
    assert!(fails(1, server.admin(&["revoke", stateid])).starts_with("no such open"));
    ok(server.admin(&["expire", id]));
    assert!(fails(1, server.admin(&["expire", id])).starts_with("no such client"));
    assert!(fails(1, server.admin(&["cancel-copy", stateid])).starts_with("no such running copy"));
    assert!(fails(1, server.admin(&["end-grace"])).starts_with("no grace period runs"));
    assert!(fails(1, server.admin(&["revoke", "xyz"])).contains("is not a stateid"));
    assert!(fails(1, server.admin(&["state", "--file", "/data/none"])).starts_with("/data/none: "));
    assert!(server.json(&["copies"])["copies"].as_array().unwrap().is_empty());
    let _ = put.kill();
    let _ = put.wait();
}

#[test]
fn revoked_by_the_name_of_the_file() {
    let server = Configured::start(|_| String::new());
    let mut put = holder(&server.url("data/held"));
    until("the open", || !server.json(&["state"])["state"].as_array().unwrap().is_empty());
    let state = server.json(&["state"]);
    let file = state["state"][0]["file"].as_str().unwrap();
    assert_eq!(server.json(&["state", "--file", file])["state"], state["state"]);
    assert_eq!(server.json(&["revoke", "--file", file])["revoked"], 1);
    assert_eq!(server.json(&["revoke", "--file", file])["revoked"], 0);
    // The writer may open the file again; it ends one way or the other, and the server goes on.
    drop(put.stdin.take());
    put.wait().unwrap();
    ok(["ls", &server.url("data")]);
}

#[test]
fn a_peer_that_says_nothing_harms_nobody() {
    let server = Configured::start(|_| String::new());
    let connect = || UnixStream::connect(server.state.join("admin")).unwrap();
    let silent: Vec<UnixStream> = (0..8).map(|_| connect()).collect();
    // One that takes no answer, one that sends no order, one that sends too much.
    let mut deaf = connect();
    deaf.write_all(b"{\"order\":\"clients\"}\n").unwrap();
    for (order, part) in [
        (b"nonsense\n".to_vec(), "not an order"),
        (b"{}\n".to_vec(), "the order lacks"),
        (b"{\"order\":\"dance\"}\n".to_vec(), "is not an order"),
        (vec![b'x'; 15_000], "not an order"),
    ] {
        let mut peer = connect();
        peer.write_all(&order).unwrap();
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        peer.read_to_string(&mut answer).unwrap();
        assert!(answer.contains(part), "{answer}");
    }
    ok(server.admin(&["status"]));
    ok(["ls", &server.url("data")]);
    drop(silent);
}

#[test]
fn before_the_start_and_after_the_stop() {
    // Case K19.
    let temp = tempfile::tempdir().unwrap();
    let none = temp.path().join("none");
    let said = fails(3, ["admin", "--state-dir", none.to_str().unwrap(), "status"]);
    assert!(said.starts_with("no server runs with the state directory"), "{said}");
    let mut server = Configured::start(|_| String::new());
    let socket = server.state.join("admin");
    assert!(socket.exists());
    // Orders all the time while it stops: each is answered, or there is no server any more.
    let answered = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(60) {
                let out = run(["admin", "--state-dir", server.state.to_str().unwrap(), "clients"]);
                match out.status.code() {
                    Some(0 | 1) => answered.fetch_add(1, Ordering::Relaxed),
                    Some(3) => return true,
                    other => panic!("{other:?}: {}", text(&out.stderr)),
                };
            }
            false
        });
        until("answers", || answered.load(Ordering::Relaxed) >= 3 || asking.is_finished());
        Server::signal(&server.child, "TERM");
        assert!(asking.join().unwrap(), "it did not stop");
    });
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    assert!(!socket.exists());
    assert!(fails(3, server.admin(&["status"])).starts_with("no server runs"));
    // One that was killed leaves its socket; the next one is not disturbed.
    let mut again = dhow(["serve", "--config", server.file.to_str().unwrap()]).stdout(Stdio::piped()).spawn().unwrap();
    ready(&mut again);
    again.kill().unwrap();
    again.wait().unwrap();
    assert!(socket.exists());
    assert!(fails(3, server.admin(&["status"])).starts_with("no server runs"));
    let mut again = dhow(["serve", "--config", server.file.to_str().unwrap()]).stdout(Stdio::piped()).spawn().unwrap();
    ready(&mut again);
    ok(server.admin(&["status"]));
    again.kill().unwrap();
    again.wait().unwrap();
}

#[test]
fn the_configuration_is_read_anew() {
    let mut server = Configured::start(|t| export(t, "more"));
    let temp = server.temp.path().to_path_buf();
    let mut put = holder(&server.url("more/held"));
    until("the open", || !server.json(&["state"])["state"].as_array().unwrap().is_empty());

    // By order: one export goes, with what is open there, one comes; the log gets a level.
    write_config(&temp, &format!("log = \"debug\"\n{}", export(&temp, "new")));
    let done = server.json(&["reload"]);
    assert_eq!(
        (&done["added"][0], &done["removed"][0], &done["revoked"]),
        (&"/new".into(), &"/more".into(), &1.into())
    );
    ok(["ls", &server.url("new")]);
    assert!(run(["ls", &server.url("more")]).status.code() == Some(1));
    assert!(server.json(&["state"])["state"].as_array().unwrap().is_empty());
    server.says("DEBUG");

    // What cannot be is refused in one line, and the old configuration stays.
    for (rest, part) in [
        ("lease = 30", "`lease` cannot be changed while the server runs"),
        ("lisen = 3", "unknown key `lisen`"),
        ("log = \"=x=\"", "is not a log level"),
        ("[[export]]\nname = \"/x\"\ndir = \"/nonexistent\"\n", "no such directory"),
        ("[[export]]\nname = \"/data\"\ndir = \"/tmp\"\n", "named twice"),
    ] {
        write_config(&temp, rest);
        let said = fails(1, server.admin(&["reload"]));
        assert!(said.contains(part), "{said}");
        ok(["ls", &server.url("new")]);
    }
    let text = fs::read_to_string(&server.file).unwrap();
    fs::write(&server.file, text.replace("/state\"", "/other\"")).unwrap();
    write_config(&temp, "");
    let text = fs::read_to_string(&server.file).unwrap();
    fs::write(&server.file, text.replace("127.0.0.1:0", "127.0.0.1:1")).unwrap();
    assert!(fails(1, server.admin(&["reload"])).contains("`listen` cannot be changed"));

    // By signal: refused, then done; the process lives on through both.
    Server::signal(&server.child, "HUP");
    server.says("error: not reloaded, the old configuration stays in force: `listen` cannot be changed");
    ok(["ls", &server.url("new")]);
    write_config(&temp, &export(&temp, "more"));
    Server::signal(&server.child, "HUP");
    until("the export", || run(["ls", &server.url("more")]).status.success());
    assert!(!run(["ls", &server.url("new")]).status.success());
    let names: Vec<Value> = server.json(&["status"])["exports"].as_array().unwrap().clone();
    assert_eq!(names.len(), 2);
    let _ = put.kill();
    let _ = put.wait();
}

/// The server that the default state directory of a port, or the configuration file, stands for.
#[test]
fn the_server_is_found() {
    let server = Configured::start(|_| String::new());
    ok(["admin", "--config", server.file.to_str().unwrap(), "status"]);
    let out = dhow(["admin", "--port", "1", "status"])
        .env("XDG_STATE_HOME", server.temp.path())
        .env("HOME", server.temp.path())
        .output()
        .unwrap();
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(3), "{said}");
    assert!(said.contains("/dhow/1;"), "{said}");
}

#[test]
fn completions_and_manual_pages() {
    let bash = ok(["completions", "bash"]);
    let checked = Command::new("bash").args(["-n", "-c", &bash]).output().unwrap();
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    assert!(bash.contains("--state-dir") && bash.contains("cancel-copy"));
    for shell in ["zsh", "fish"] {
        assert!(ok(["completions", shell]).contains("cancel-copy"));
    }
    assert!(ok(["man"]).contains(".TH dhow 1"));
    assert!(
        ok(["man", "admin expire"]).contains("dhow-admin-expire")
            || ok(["man", "admin expire"]).contains("admin expire")
    );
    assert!(fails(2, ["man", "dance"]).contains("there is no command `dance`"));
    let dir = tempfile::tempdir().unwrap();
    ok(["man", "--dir", dir.path().to_str().unwrap()]);
    assert!(fs::read_to_string(dir.path().join("dhow-cp.1")).unwrap().contains("inter"));
}
