//! Mistakes on the command line and in the configuration: one clear line with the remedy, exit code 2.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{dhow, fails, ok, run, text};

#[test]
fn on_the_command_line() {
    for (args, part) in [
        (&[][..], "name a command"),
        (&["serv", "/srv"], "a similar subcommand exists: 'serve'"),
        (&["cp", "only-one"], "SRC... DST: 2 names are needed, 1 was given"),
        (&["cp"], "something is missing: dhow cp [OPTIONS] SRC... DST"),
        (&["cp", "--method", "quick", "a", "b"], "[possible values: auto, clone, copy, inter, readwrite]"),
        (&["cp", "--jobs", "0", "a", "b"], "0 is not in 1..=4096"),
        (&["ls", "/etc"], "`/etc` is not a URL; write nfs://HOST[:PORT]/PATH"),
        (&["cat", "nfs://"], "`nfs://`: "),
        (&["mkdir", "-m", "rwx", "nfs://h/d"], "write it in octal, for example 755"),
        (&["stat", "nfs://host:port/x"], "`nfs://host:port/x`: "),
        (&["bench", "copy", "--size", "big"], "write for example 4096, 64K, 512M or 2G"),
        (&["serve"], "nothing to serve; name a directory: dhow serve DIR, or --export /NAME=DIR"),
        (&["serve", "/nonexistent"], "export /: /nonexistent: no such directory"),
        (&["serve", "/etc/hostname"], "export /: /etc/hostname: is not a directory"),
        (&["serve", "--export", "data=/tmp"], "`data=/tmp` is not an export; write /name=DIR"),
        (
            &["serve", "--export", "/a=/tmp,nroot_squash"],
            "export /a: unknown option `nroot_squash`; did you mean `root_squash`?",
        ),
        (&["serve", "--export", "/a=/tmp", "--export", "/a=/var"], "export /a is named twice"),
        (
            &["serve", "--export", "/a=/proc,exclusive", "--export", "/b=/proc/self/.."],
            "export /a: nobody else may change an exclusive tree, but export /b shows the same files read-write",
        ),
        (
            &["serve", "--export", "/a=/proc", "--export", "/b=/proc/sys,local_writers=no"],
            "export /b: nobody else may change an exclusive tree, but export /a shows the same files read-write",
        ),
        (&["serve", "/tmp", "--listen", "2049"], "`2049` is not an address; write ADDR:PORT"),
        (&["serve", "/tmp", "--log", "=loud="], "is not a log level"),
        (&["serve", "/tmp", "--log", "verbose"], "`verbose` is not a log level; write error, warn, info, debug, trace"),
        (&["serve", "/tmp", "--log", "info,dhow_server=loud"], "is not a log level"),
        (&["bench"], "name a command; dhow bench --help lists them"),
        (&["link"], "name a command; dhow link --help lists them"),
        (&["serve", "--config", "/nonexistent.toml"], "/nonexistent.toml: cannot be read"),
    ] {
        let line = fails(2, args);
        assert!(line.contains(part), "{args:?}: {line}");
    }
}

#[test]
fn in_the_configuration_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dhow.toml");
    for (text, line) in [
        (
            "listen = \":0\"\nlimits.conections = 3\n",
            "2: unknown key `limits.conections`; did you mean `limits.connections`?",
        ),
        ("lease = \"never\"\n", "1: `lease` must be a duration from 5s to 3600s, such as 90, \"500ms\" or \"15m\""),
        (
            "[[export]]\nname = \"data\"\n",
            "2: `name` must be an absolute path without empty parts, `.` and `..`, such as /data",
        ),
        (
            "[[export]]\nname = \"/d\"\ndir = \"/tmp\"\ncopy.reflink = true\n",
            "4: `copy.reflink` must be \"auto\" or \"never\"",
        ),
    ] {
        std::fs::write(&file, text).unwrap();
        let said = fails(2, ["serve".as_ref(), "--config".as_ref(), file.as_os_str()]);
        assert_eq!(said, format!("{}:{line}", file.display()));
    }
}

#[test]
fn a_state_directory_that_cannot_be() {
    for at in ["/etc/hostname", "/proc/none"] {
        let line = fails(1, ["serve", "/tmp", "--listen", "127.0.0.1:0", "--state-dir", at]);
        assert!(line.starts_with(&format!("state directory: {at}: ")), "{line}");
        assert!(line.ends_with("; name another with --state-dir"), "{line}");
    }
}

#[test]
fn a_server_that_is_not_there_is_code_3() {
    // Port 1 of this host: nobody listens.
    for args in [
        &["ls", "nfs://127.0.0.1:1/"][..],
        &["cp", "nfs://127.0.0.1:1/a", "/tmp/never"],
        &["probe", "nfs://127.0.0.1:1/"],
    ] {
        let line = fails(3, args);
        assert!(line.contains("127.0.0.1:1"), "{line}");
    }
    assert!(!std::path::Path::new("/tmp/never").exists());
}

#[test]
fn help_and_version_are_no_mistakes() {
    assert!(ok(["--version"]).starts_with("dhow "));
    assert!(ok(["--help"]).contains("Serve directories"));
    assert!(ok(["ls", "--help"]).contains("nfs://HOST[:PORT]/PATH"));
    // What is only for the benches is not shown.
    assert!(!ok(["bench", "--help"]).contains("\n  bare"));
    assert!(run(["help"]).status.code() == Some(2));
}

/// Directories of its own are gone when a command is interrupted, with its servers at work; also those that threads and
/// processes of it still fill.
#[test]
fn nothing_is_left_of_an_interrupted_command() {
    for (args, signal) in [
        (&["demo", "--size", "256M"][..], "INT"),
        (&["bench", "copy", "--size", "256M"], "TERM"),
        (&["bench", "create", "--rtt", "0", "--seconds", "60s"], "INT"),
    ] {
        let place = tempfile::tempdir().unwrap();
        let mut command = dhow(args.iter().copied());
        command.arg("--dir").arg(place.path()).env("TMPDIR", place.path());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        // At work: there is something in the directory.
        let busy = || {
            let made =
                std::fs::read_dir(place.path()).unwrap().filter_map(|d| std::fs::read_dir(d.unwrap().path()).ok());
            made.flatten().count() > 0
        };
        while !busy() {
            assert!(Instant::now() < until && child.try_wait().unwrap().is_none(), "{args:?} made nothing");
            std::thread::sleep(Duration::from_millis(5));
        }
        let kill = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status().unwrap();
        assert!(kill.success());
        let out = child.wait_with_output().unwrap();
        assert_eq!(out.status.code(), Some(130), "{args:?}: {}", text(&out.stderr));
        assert!(text(&out.stderr).contains("error: interrupted\n"), "{args:?}: {}", text(&out.stderr));
        let left: Vec<_> = std::fs::read_dir(place.path()).unwrap().map(|e| e.unwrap().path()).collect();
        let in_them: Vec<_> =
            left.iter().map(|path| std::fs::read_dir(path).map(|d| d.flatten().collect::<Vec<_>>())).collect();
        assert_eq!(left, [] as [PathBuf; 0], "{args:?}: {in_them:?}: {}", text(&out.stderr));
    }
}
