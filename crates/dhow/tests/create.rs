//! `dhow bench create`, by the binary: that it measures what it says, and leaves nothing behind (C5).

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use common::{Server, fails, json, names};
use serde_json::Value;

fn row<'a>(rows: &'a Value, op: &str, writers: u64) -> &'a Value {
    let mut rows = rows["rows"].as_array().unwrap().iter();
    rows.find(|r| r["op"] == op && r["writers"] == writers).unwrap_or_else(|| panic!("no row {op} {writers}"))
}

/// Measures with these arguments, for longer and longer until there is something in every row: on a machine that is busy
/// with other things a disk may be slow beyond all measure.
fn measured(args: &[&str], enough: impl Fn(&Value) -> bool) -> Value {
    for seconds in ["300ms", "2s", "8s"] {
        let out = common::run(args.iter().copied().chain(["--json", "--seconds", seconds]));
        let short = common::text(&out.stderr).contains("allow more --seconds");
        assert!(out.status.success() || short, "{}", common::text(&out.stderr));
        if out.status.success() {
            let out = serde_json::from_str(&common::text(&out.stdout)).unwrap();
            if enough(&out) {
                return out;
            }
        }
    }
    panic!("there is nothing in some row of {args:?}, however long it takes");
}

/// Every operation is one call, over whatever link there is.
#[test]
fn a_running_server_is_measured_and_left_as_it_was() {
    let server = Server::start();
    let url = server.url("");
    let out = measured(&["bench", "create", "--server", &url, "--writers", "1,8", "--tree", "30"], |_| true);
    for op in ["create", "put", "mkdir", "rename", "remove"] {
        for writers in [1, 8] {
            let row = row(&out, op, writers);
            assert_eq!(row["calls_per_create"], 1.0, "{row}");
            assert!(row["creates_per_second"].as_f64().unwrap() > 0.0, "{row}");
            assert!(row["metadata_sync"].is_null() && row["via"] == "direct", "{row}");
        }
    }
    let trees = out["trees"].as_array().unwrap();
    assert_eq!(trees.len(), 3, "{out}");
    // One call a file, and a few for the directories.
    assert!(trees[..2].iter().all(|t| t["calls_per_file"].as_f64().unwrap() < 1.5), "{out}");
    assert_eq!(trees[2]["calls_per_file"], 3.0, "{out}");
    assert!(names(&server.dir).is_empty(), "something was left behind");
}

/// Over an emulated link, where one can be made: no writer beats its round trip, and few slots make sessions.
#[test]
fn an_emulated_link_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    if dhow_link::available().is_err() {
        eprintln!("no emulated network here (root and /dev/net/tun): not tested");
        return;
    }
    let at = format!("--dir={}", dir.path().display());
    let args = ["--rtt", "50ms", "--writers", "2,40", "--slots", "8", "--ops", "create,remove", "--seconds", "1s"];
    let out = json(["bench", "create", "--json", "--tree", "0", &at].iter().chain(&args));
    let few = row(&out, "create", 2);
    assert_eq!((few["limit"].as_f64(), few["sessions"].as_u64()), (Some(40.0), Some(1)), "{few}");
    assert!(few["p50_ms"].as_f64().unwrap() >= 49.0, "{few}");
    assert_eq!(few["metadata_sync"], true, "{few}");
    let many = row(&out, "create", 40);
    assert!(many["sessions"].as_u64().unwrap() >= 4 && many["slots"].as_u64().unwrap() >= 32, "{many}");
    assert_eq!(row(&out, "remove", 40)["calls_per_create"], 1.0);
    assert!(names(dir.path()).is_empty(), "something was left behind");
}

/// One directory against several, without a link.
#[test]
fn one_directory_is_compared_with_eight() {
    let dir = tempfile::tempdir().unwrap();
    let at = format!("--dir={}", dir.path().display());
    let each = |out: &Value| {
        let rows = out["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 6, "{out}");
        rows.iter().all(|r| r["creates_per_second"].as_f64().unwrap() > 0.0)
    };
    let out = measured(&["bench", "create", "--rtt", "0", "--metadata-sync", "false", &at], each);
    assert!(out["one_over_many"].as_f64().unwrap() > 0.0, "{out}");
    assert!(names(dir.path()).is_empty(), "something was left behind");
}

#[test]
fn mistakes_are_told() {
    fails(2, ["bench", "create", "--server", "nfs://host/x", "--slots", "64"]);
    fails(2, ["bench", "create", "--ops", "create,chmod"]);
    fails(2, ["bench", "create", "--writers", "0"]);
}
