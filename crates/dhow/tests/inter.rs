//! Copies between two servers, each a process of the binary on loopback (RFC 7862 4.6 to 4.10).

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use common::{Server, dhow, fails, json, names, text};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// A server that may copy from loopback and lend to it.
fn server(more: &str) -> Server {
    let temp = tempfile::tempdir().unwrap();
    let config = temp.path().join("dhow.toml");
    let lists = "copy.inter_server = \"on\"\ncopy.sources = [\"127.0.0.1\"]\ncopy.destinations = [\"127.0.0.1\"]\n";
    fs::write(&config, format!("{lists}{more}")).unwrap();
    let config = format!("--config={}", config.display());
    Server::start_in(temp, &[&config])
}

/// `dhow cp --json` with a memory of its own.
fn cp(cache: &Path, args: &[&str]) -> Value {
    let out = dhow(["cp", "--json"].iter().chain(args)).env("XDG_CACHE_HOME", cache).output().unwrap();
    assert!(out.status.success(), "{}\n{}", text(&out.stdout), text(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

/// Data without pattern at the scale of blocks, and a hole in the second MiB and at the end.
fn data(mib: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..mib * MIB + 77).map(|i| (i * 31 % 251) as u8 + 1).collect();
    bytes[MIB..2 * MIB].fill(0);
    let end = bytes.len();
    bytes[end - MIB..].fill(0);
    bytes
}

fn put(path: &Path, bytes: &[u8]) {
    let file = fs::File::create(path).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    for (i, part) in bytes.chunks(MIB).enumerate() {
        if part.iter().any(|b| *b != 0) {
            file.write_all_at(part, (i * MIB) as u64).unwrap();
        }
    }
}

#[test]
fn servers_copy_by_themselves() {
    let (a, b) = (server(""), server(""));
    let cache = tempfile::tempdir().unwrap();
    let bytes = data(9);
    put(&a.dir.join("x"), &bytes);
    let report = cp(cache.path(), &["--method", "inter", &a.url("x"), &b.url("y")]);
    assert_eq!(report["method"], "inter");
    assert_eq!(report["durable"], true);
    assert_eq!(report["bytes"], bytes.len());
    for op in ["READ", "WRITE", "READ_PLUS"] {
        assert_eq!(report["ops"].get(op), None, "{report}");
    }
    assert_eq!((&report["ops"]["COPY_NOTIFY"], &report["ops"]["COPY"]), (&1.into(), &1.into()));
    assert_eq!(fs::read(b.dir.join("y")).unwrap(), bytes);
    let space = |path: &Path| fs::metadata(path).unwrap().blocks() * 512;
    assert!(space(&a.dir.join("x")) < bytes.len() as u64 - MIB as u64 / 2, "the source has no holes");
    assert!(space(&b.dir.join("y")) < bytes.len() as u64 - MIB as u64 / 2, "holes were filled");
    // As it decides by itself, and says so; an existing file is replaced.
    let report = cp(cache.path(), &["--explain", &a.url("x"), &b.url("y")]);
    assert_eq!(report["decisions"][0]["method"], report["method"]);
    assert!(!report["decisions"][0]["why"].as_str().unwrap().is_empty());
    assert_eq!(fs::read(b.dir.join("y")).unwrap(), bytes);
    // A size that the user fixed goes before what was measured.
    let report = cp(cache.path(), &["--inter-min-size", "1G", &a.url("x"), &b.url("y")]);
    assert_eq!(report["method"], "readwrite");
    let report = cp(cache.path(), &["--inter-min-size", "0", &a.url("x"), &b.url("y")]);
    assert_eq!(report["method"], "inter");
    // What was measured is kept.
    let kept = fs::read_to_string(cache.path().join("dhow/copy-costs")).unwrap();
    assert!(kept.contains(&format!("{}>{}", a.addr, b.addr)), "{kept}");
    assert_eq!(names(&b.dir), ["y"]);
}

/// On a long way each question is a wait: of a new file and its directory the destination is asked once, and OPEN says the
/// rest. The other GETATTR is for the lease, which nothing waits for.
#[test]
fn nothing_is_asked_twice() {
    let (a, b) = (server(""), server(""));
    let cache = tempfile::tempdir().unwrap();
    put(&a.dir.join("x"), &data(2));
    cp(cache.path(), &["--method", "inter", &a.url("x"), &b.url("y")]);
    let state = b.dir.with_file_name("state");
    let report = json(["admin", "--state-dir", state.to_str().unwrap(), "counters", "--json"]);
    let count = |op: &str| report["counters"][format!("op.{op}")].as_u64().unwrap_or(0);
    assert_eq!(count("LOOKUP.errors"), 1, "{report}");
    // Which is not sent at all where the copy is over before.
    assert!((1..=2).contains(&count("GETATTR")), "{report}");
    assert_eq!((count("OPEN"), count("COPY"), count("CLOSE"), count("RENAME")), (1, 1, 1, 1), "{report}");
    assert_eq!(count("EXCHANGE_ID"), 1, "{report}");
}

#[test]
fn a_tree_goes_directly_file_by_file() {
    let (a, b) = (server(""), server(""));
    let cache = tempfile::tempdir().unwrap();
    fs::create_dir_all(a.dir.join("t/sub")).unwrap();
    let big = data(3);
    for i in 0..20 {
        put(&a.dir.join(format!("t/sub/{i}")), &big);
        fs::write(a.dir.join(format!("t/{i}")), vec![i; 1000]).unwrap();
    }
    let report = cp(cache.path(), &["-r", "--inter-min-size", "1M", &a.url("t"), &b.url("t")]);
    assert_eq!(report["files"], 40);
    assert_eq!(report["by_method"]["inter"]["files"], 20);
    assert_eq!(report["by_method"]["readwrite"]["files"], 20);
    for i in 0..20u8 {
        assert!(fs::read(b.dir.join(format!("t/sub/{i}"))).unwrap() == big, "{i}");
        assert_eq!(fs::read(b.dir.join(format!("t/{i}"))).unwrap(), vec![i; 1000]);
    }
}

#[test]
fn servers_that_will_not_are_done_without() {
    // The source lends to nobody; then the destination reads from nobody.
    let (with, without) = (server(""), Server::start());
    let cache = tempfile::tempdir().unwrap();
    let bytes = data(4);
    for (a, b) in [(&without, &with), (&with, &without)] {
        put(&a.dir.join("x"), &bytes);
        let report = cp(cache.path(), &["--inter-min-size", "0", &a.url("x"), &b.url("y")]);
        assert_eq!(report["method"], "readwrite");
        assert!(!report["refused"]["inter"].as_str().unwrap().is_empty(), "{report}");
        assert_eq!(fs::read(b.dir.join("y")).unwrap(), bytes);
        // Found at the first answer, not by trying again and again; and told in words, of trees too.
        assert_eq!(report["ops"]["COPY_NOTIFY"], 1, "{report}");
        assert!(!report["refused"]["inter"].as_str().unwrap().contains("gave up"), "{report}");
        let said = |args: &[&str]| {
            let mut command = dhow(["cp", "--inter-min-size", "0"].iter().chain(args));
            let out = command.env("XDG_CACHE_HOME", cache.path()).output().unwrap();
            text(&out.stdout) + &text(&out.stderr)
        };
        let line = said(&[&a.url("x"), &b.url("y")]);
        assert!(line.contains("by readwrite") && line.contains("not by inter: "), "{line}");
        let which = if std::ptr::eq(a, &without) { "source" } else { "destination" };
        assert!(line.contains(&format!("{which}: the server does not copy between servers")), "{line}");
        let line = said(&["-r", &a.url(""), &b.url("tree")]);
        assert!(line.contains("by readwrite") && line.contains("not by inter: "), "{line}");
        let line = fails(1, ["cp", "--method", "inter", &a.url("x"), &b.url("z")]);
        assert!(line.contains("cannot be made by inter") && line.contains("--method auto"), "{line}");
        assert!(!b.dir.join("z").exists());
    }
    // On one server there is nothing to offload to another.
    let line = fails(1, ["cp", "--method", "inter", &with.url("x"), &with.url("z")]);
    assert!(line.contains("one server"), "{line}");
    let mut wrong = dhow(["cp", &with.url("x"), &without.url("z")]);
    let out = wrong.env("DHOW_INTER_MIN_SIZE", "much").output().unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("DHOW_INTER_MIN_SIZE"));
}

/// Kills the server as a crash would; with `meanwhile` in between, it is started again at its old place.
fn restart(server: &mut Server, meanwhile: impl FnOnce(&Path)) {
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    meanwhile(&server.dir);
    let home = server.dir.parent().unwrap();
    let args = [
        "serve".to_owned(),
        format!("--export=/data={},no_root_squash", server.dir.display()),
        format!("--listen={}", server.addr),
        format!("--state-dir={}", home.join("state").display()),
        format!("--config={}", home.join("dhow.toml").display()),
    ];
    server.child = dhow(args).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(server.child.stdout.take().unwrap()).lines();
    assert!(lines.any(|l| l.unwrap().starts_with("ready:")));
    // Whatever else it prints must find a reader.
    std::thread::spawn(move || lines.for_each(drop));
}

/// RFC 7862 4.6: after a restart of either side the rest is copied; a source that changed is copied anew.
#[test]
fn a_restart_of_either_side_is_survived() {
    let slow = "copy.bandwidth = \"8M\"\n";
    let (mut a, mut b) = (server(""), server(slow));
    let old = data(32);
    let mut new = old.clone();
    new[5 * MIB..6 * MIB].fill(9);
    for (which, change) in [("source", false), ("source", true), ("destination", false)] {
        put(&a.dir.join("x"), &old);
        let args = ["cp", "--json", "--method", "inter", &a.url("x"), &b.url("y")];
        let child = dhow(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let limit = Instant::now() + Duration::from_secs(60);
        let unfinished = |b: &Server| {
            let mut found = fs::read_dir(&b.dir).unwrap().map(|e| e.unwrap());
            found.any(|e| e.file_name().as_bytes().starts_with(b".y") && e.metadata().unwrap().len() > 4 * MIB as u64)
        };
        while !unfinished(&b) {
            assert!(Instant::now() < limit, "the copy does not begin");
            std::thread::sleep(Duration::from_millis(50));
        }
        match which {
            "source" => restart(&mut a, |dir| {
                if change {
                    fs::write(dir.join("x"), &new).unwrap()
                }
            }),
            _ => restart(&mut b, |_| ()),
        }
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success(), "{which}: {}\n{}", text(&out.stdout), text(&out.stderr));
        let report: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!((&report["method"], &report["durable"]), (&"inter".into(), &true.into()));
        assert!(report["ops"]["COPY"].as_u64().unwrap() >= 2, "{which}: it was not interrupted: {report}");
        let there = fs::read(b.dir.join("y")).unwrap();
        assert!(there == if change { &new[..] } else { &old[..] }, "{which}, changed: {change}");
        assert_eq!(names(&b.dir), ["y"]);
        fs::remove_file(b.dir.join("y")).unwrap();
    }
}

/// An interrupt stops the copy at the servers too, and nothing is left behind.
#[test]
fn an_interrupt_leaves_nothing() {
    let (a, b) = (server(""), server("copy.bandwidth = \"4M\"\n"));
    put(&a.dir.join("x"), &data(64));
    let mut child = dhow(["cp", "--method", "inter", &a.url("x"), &b.url("y")]).stderr(Stdio::piped()).spawn().unwrap();
    let limit = Instant::now() + Duration::from_secs(60);
    let grown = |b: &Server| fs::read_dir(&b.dir).unwrap().any(|e| e.unwrap().metadata().unwrap().len() > 0);
    while !grown(&b) {
        assert!(Instant::now() < limit, "the copy does not begin");
        std::thread::sleep(Duration::from_millis(50));
    }
    Server::signal(&child, "INT");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(names(&b.dir), Vec::<String>::new());
    // The servers go on.
    let report = json(["cp", "--json", "--method", "readwrite", &a.url("x"), &b.url("z")]);
    assert_eq!(report["bytes"], 64 * MIB + 77);
}
