//! Nothing is left behind by a network that ends: no namespace, interface, process or descriptor.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dhow_link::{Error, Net, Shape, Topology};

/// Set in the child that is to be killed.
const CHILD: &str = "DHOW_LINK_TEST_CHILD";
const PATIENCE: Duration = Duration::from_secs(60);

fn start() -> Option<Net> {
    let wire = Shape::default();
    match Topology::new().star("hub", [("a", wire), ("b", wire), ("c", wire)]).start() {
        Ok(net) => Some(net),
        Err(error @ Error::NotPermitted { .. }) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Namespaces that a thread of any process is in, or that a process has open.
fn namespaces() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let processes = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit())));
    for process in processes {
        // Processes and threads come and go while we look.
        let threads = fs::read_dir(process.path().join("task")).into_iter().flatten().flatten();
        found.extend(threads.filter_map(|thread| fs::read_link(thread.path().join("ns/net")).ok()));
        let files = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        found.extend(files.filter_map(|file| fs::read_link(file.path()).ok()));
    }
    let names = found.iter().filter_map(|path| path.to_str()).filter(|name| name.starts_with("net:["));
    names.map(str::to_owned).collect()
}

fn interfaces() -> BTreeSet<String> {
    let table = fs::read_to_string("/proc/self/net/dev").unwrap();
    table.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim().to_owned()).collect()
}

fn named_namespaces() -> BTreeSet<String> {
    let names = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn tuns_open() -> usize {
    let files = fs::read_dir("/proc/self/fd").unwrap().flatten();
    files.filter(|file| fs::read_link(file.path()).is_ok_and(|to| to.ends_with("net/tun"))).count()
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < until, "still there: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

// One test, since it counts what the process has.
#[test]
fn nothing_is_left_behind() {
    if std::env::var_os(CHILD).is_some() {
        be_killed();
    }
    let (interfaces_before, named_before) = (interfaces(), named_namespaces());
    let Some(net) = start() else { return };
    let mine: Vec<String> = net.hosts().map(|host| format!("net:[{}]", host.namespace().inode())).collect();
    let mut sleep = Command::new("sleep");
    sleep.arg("600");
    let mut child = net.host("a").unwrap().command(sleep).unwrap();
    let there = namespaces();
    assert!(mine.iter().all(|name| there.contains(name)));
    assert_eq!(tuns_open(), 3);
    assert_eq!(interfaces(), interfaces_before);
    assert_eq!(named_namespaces(), named_before);
    drop(net);
    child.wait().unwrap();
    assert_eq!(tuns_open(), 0);
    wait_until("a namespace after drop", || {
        let there = namespaces();
        !mine.iter().any(|name| there.contains(name))
    });
    assert_eq!(interfaces(), interfaces_before);
    after_a_kill();
    assert_eq!(interfaces(), interfaces_before);
    assert_eq!(named_namespaces(), named_before);
}

/// Makes a network and a process on it in another process, which is killed in the middle.
fn after_a_kill() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "nothing_is_left_behind", "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let told = lines.filter_map(|line| line.split_once("made ").map(|(_, rest)| rest.to_owned())).next().unwrap();
    let (process, names) = told.split_once(' ').unwrap();
    let mine: Vec<&str> = names.split(' ').collect();
    assert_eq!(mine.len(), 3);
    let there = namespaces();
    assert!(mine.iter().all(|name| there.contains(*name)));
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("a namespace after SIGKILL", || {
        let there = namespaces();
        !mine.iter().any(|name| there.contains(*name))
    });
    // It may be a zombie until somebody reaps it.
    wait_until("a process after SIGKILL", || {
        let status = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        status.is_empty() || status.contains(") Z ")
    });
}

/// Nobody waits for the process made here: that it ends all the same is what is tested.
#[allow(clippy::zombie_processes)]
fn be_killed() -> ! {
    let net = start().unwrap();
    let mut sleep = Command::new("sleep");
    sleep.arg("600").stdout(Stdio::null());
    let process = net.host("a").unwrap().command(sleep).unwrap();
    let names: Vec<String> = net.hosts().map(|host| format!("net:[{}]", host.namespace().inode())).collect();
    println!("\nmade {} {}", process.id(), names.join(" "));
    std::thread::sleep(PATIENCE);
    panic!("nobody killed this process");
}
