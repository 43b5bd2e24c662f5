//! A copy between two servers over emulated links, one of which is cut in the middle for longer than the destination
//! waits for an answer (RFC 7862 4.6). Needs root and `/dev/net/tun`; says so where it cannot run.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use common::{dhow, text};
use dhow_link::{Net, Shape, Topology};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const MB: usize = 1_000_000;
const LONG: Duration = Duration::from_secs(90);

/// A server on a host of the network, and the directory it serves.
struct Site {
    child: Child,
    dir: PathBuf,
    addr: String,
}

impl Site {
    fn start(net: &Net, name: &str, home: &Path) -> Self {
        let host = net.host(name).unwrap();
        let dir = home.join(name);
        fs::create_dir(&dir).unwrap();
        let config = home.join(format!("{name}.toml"));
        let networks = "[\"10.77.0.0/16\"]";
        let text = format!(
            "[copy]\ninter_server = \"on\"\nsources = {networks}\ndestinations = {networks}\nsource_timeout = \"2s\"\n"
        );
        fs::write(&config, text).unwrap();
        let addr = format!("{}:2049", host.addr());
        let mut command = dhow([
            "serve".to_owned(),
            format!("--config={}", config.display()),
            format!("--listen={addr}"),
            format!("--state-dir={}", home.join(format!("{name}.state")).display()),
            format!("--export=/data={},no_root_squash", dir.display()),
        ]);
        command.stdout(Stdio::piped());
        let mut child = host.command(command).unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|l| l.unwrap().starts_with("ready:")));
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, dir, addr }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_cut_link_between_the_servers_is_survived() {
    if let Err(e) = dhow_link::available() {
        eprintln!("skipped: no emulated links here: {e}");
        return;
    }
    // 32 MB take more than five seconds.
    let shape = || Shape::rate(50_000_000).delay(Duration::from_millis(1));
    let net = Topology::new().star("router", [("a", shape()), ("b", shape()), ("c", shape())]).start().unwrap();
    let home = tempfile::tempdir().unwrap();
    let (a, b) = (Site::start(&net, "a", home.path()), Site::start(&net, "b", home.path()));
    let bytes: Vec<u8> = (0..32 * MB).map(|i| (i * 31 % 251) as u8 + 1).collect();
    fs::write(a.dir.join("x"), &bytes).unwrap();
    let url = |site: &Site, name: &str| format!("nfs://{}/data/{name}", site.addr);
    let mut cp = dhow(["cp", "--json", "--method", "inter", &url(&a, "x"), &url(&b, "y")]);
    cp.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = net.host("c").unwrap().command(cp).unwrap();
    let limit = Instant::now() + LONG;
    // The unfinished file; what of it is there already.
    let grown = || {
        let mut files = fs::read_dir(&b.dir).unwrap().map(|e| e.unwrap().metadata().unwrap().len());
        files.any(|len| len > 8 * MB as u64)
    };
    while !grown() {
        assert!(Instant::now() < limit, "the copy does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    let link = net.link("a", "router").unwrap();
    link.cut().unwrap();
    std::thread::sleep(Duration::from_secs(6));
    link.heal().unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{}\n{}", text(&out.stdout), text(&out.stderr));
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((&report["method"], &report["durable"]), (&"inter".into(), &true.into()));
    assert!(report["ops"]["COPY"].as_u64().unwrap() >= 2, "it was not interrupted: {report}");
    for op in ["READ", "WRITE", "READ_PLUS"] {
        assert_eq!(report["ops"].get(op), None, "{report}");
    }
    assert!(fs::read(b.dir.join("y")).unwrap() == bytes);
}
