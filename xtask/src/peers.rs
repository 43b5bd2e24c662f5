//! The round of the client library (`conformance`) against a server of other people that Debian packages.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::lab;
use crate::lab::verdict::{Known, Tally};

/// What stands for it in lab/KNOWN_FAILURES, in place of a scenario.
const LABEL: &str = "ganesha";
/// Longest that the round may take in seconds; it takes 25.
const LIMIT: &str = "240";

/// Why the round cannot run on this machine, if it cannot.
///
/// # Errors
/// When `id` cannot be run.
pub fn why_not() -> Result<Option<String>> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has = |tool: &str| std::env::split_paths(&path).any(|dir| dir.join(tool).is_file());
    for (tool, package) in [("ganesha.nfsd", "nfs-ganesha (and nfs-ganesha-vfs)"), ("gcc", "gcc"), ("ip", "iproute2")] {
        if !has(tool) {
            return Ok(Some(format!("{package} is not installed")));
        }
    }
    let id = Command::new("id").arg("-u").output().context("id -u")?;
    let root = String::from_utf8_lossy(&id.stdout).trim() == "0";
    Ok((!root).then(|| "it needs root (namespaces of its own)".to_owned()))
}

/// Runs the round against NFS-Ganesha; true when exactly what KNOWN_FAILURES says failed or is not offered.
///
/// # Errors
/// When the round cannot be built or started.
pub fn run(root: &Path) -> Result<bool> {
    ensure!(lab::build_binary(root)?, "the client library's round does not build");
    let round: PathBuf = lab::target_dir(root).join("release/examples/conformance");
    let output = Command::new("timeout")
        .args(["--kill-after=5", LIMIT, "unshare", "--net", "--pid", "--mount", "--fork", "--mount-proc"])
        .arg("--kill-child")
        .arg(root.join("lab/peer-ganesha"))
        .arg(round)
        .arg("nfs://10.99.0.1:12049/export")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("unshare")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let known = Known::read(&root.join("lab/KNOWN_FAILURES"), lab::Server::Beside)?;
    let mut tally = Tally::default();
    let mut seen = Vec::new();
    for line in text.lines() {
        let Some((kind, name, note)) = check(line) else { continue };
        seen.push(name.to_owned());
        match kind {
            "ok" => tally.report(&known, LABEL, &format!("ok {name}")),
            _ => tally.fail(&known, LABEL, name, if kind == "n/a" { "not offered" } else { note }),
        }
    }
    for name in known.checks(LABEL).filter(|name| !seen.iter().any(|s| s == name)) {
        println!("FAILED    {LABEL} / {name}: listed in KNOWN_FAILURES, but there is no such check");
        tally.failed.push(format!("{LABEL} / {name}"));
    }
    println!("peers: {LABEL}: {tally}");
    if seen.is_empty() || !text.lines().any(|l| l.ends_with(" failed") && l.contains(" passed, ")) {
        print!("{text}");
        println!("peers: the round did not reach its end ({})", output.status);
        return Ok(false);
    }
    Ok(tally.failed.is_empty())
}

/// One line of the round: `ok   NAME  N ms  NOTE`, `n/a  ...` or `FAIL ...`.
fn check(line: &str) -> Option<(&str, &str, &str)> {
    let (kind, rest) = line.split_once(' ')?;
    if !["ok", "n/a", "FAIL"].contains(&kind) {
        return None;
    }
    let (head, note) = rest.split_once(" ms")?;
    let (name, ms) = head.trim().rsplit_once(' ')?;
    ms.parse::<u64>().ok()?;
    Some((kind, name.trim(), note.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_round_are_read() {
        assert_eq!(check("ok   ping                        0 ms  46 us"), Some(("ok", "ping", "46 us")));
        assert_eq!(check("n/a  copy a range               25 ms  no COPY"), Some(("n/a", "copy a range", "no COPY")));
        assert_eq!(check("FAIL close                       0 ms  why: 3 ms"), Some(("FAIL", "close", "why: 3 ms")));
        assert_eq!(check("session: 4.2, 64 slots"), None);
        assert_eq!(check("FAIL cannot reach it"), None);
    }
}
