//! `dhow serve` is killed a few dozen times under clients that keep a book of what it acknowledged (case B31; RFC 8881
//! sections 8.4.2 and 18.3).

#![allow(clippy::unwrap_used)]

#[allow(dead_code, missing_docs)]
#[path = "../../client/examples/ledger.rs"]
mod ledger;

mod common;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{dhow, ready, reserved};
use dhow_client::NfsUrl;

/// The server over the folders in `place`, at `listen`.
fn serve(place: &Path, listen: &str) -> Child {
    let export = format!("--export=/={},no_root_squash", place.join("data").display());
    let state = format!("--state-dir={}", place.join("state").display());
    let args = ["serve".to_owned(), export, state, format!("--listen={listen}")];
    let mut child = dhow(args).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
    assert_eq!(ready(&mut child), listen);
    child
}

/// SIGKILL, now and then SIGTERM, at moments that look random: before, in and after the time of grace. `LAB_LONG`
/// in the environment makes it ten times as many.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_and_no_lock_is_held_twice() {
    let times = if std::env::var_os("LAB_LONG").is_some_and(|v| !v.is_empty()) { 300 } else { 30 };
    let temp = tempfile::tempdir().unwrap();
    std::fs::create_dir(temp.path().join("data")).unwrap();
    let (_port, addr) = reserved();
    let mut child = serve(temp.path(), &addr);
    let url: NfsUrl = format!("nfs://{addr}/").parse().unwrap();
    let crashes = async {
        let mut x = 88_172_645_463_325_252_u64;
        for n in 0..times {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            tokio::time::sleep(Duration::from_millis(20 + x % 600)).await;
            assert!(child.try_wait().unwrap().is_none(), "the server ended by itself");
            if n % 5 == 4 {
                let pid = child.id().to_string();
                assert!(Command::new("kill").args(["-s", "TERM", &pid]).status().unwrap().success());
            } else {
                child.kill().unwrap();
            }
            child.wait().unwrap();
            child = serve(temp.path(), &addr);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    };
    let outcome = tokio::time::timeout(Duration::from_secs(60 + times * 10), ledger::run(&url, crashes)).await;
    let _ = child.kill();
    let _ = child.wait();
    let (lines, good) = outcome.expect("no end").unwrap();
    lines.iter().for_each(|line| println!("{line}"));
    assert!(good, "{}", lines.join("\n"));
}
