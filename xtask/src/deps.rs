//! Licences of every dependency against the list in deny.toml, and advisories where cargo-deny is installed.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Every package in the lock file for every target has a licence that deny.toml allows.
///
/// # Errors
/// When cargo cannot list the packages, or deny.toml has no list.
pub fn licences(root: &Path) -> Result<Vec<String>> {
    let policy = fs::read_to_string(root.join("deny.toml")).context("deny.toml")?;
    let allowed = allow_list(&policy);
    ensure!(!allowed.is_empty(), "deny.toml: [licenses] has no allow list");
    // Packages of other systems may not have been fetched: then those of this one are what can be checked.
    let listed = match package_licences(root, &["--target", "all"]) {
        Ok(listed) => listed,
        Err(error) => {
            println!("note: licences of this target's packages only ({error:#})");
            package_licences(root, &[])?
        }
    };
    println!("{} packages, {} licences allowed", listed.len(), allowed.len());
    let mut bad = foreign(&fs::read_to_string(root.join("Cargo.lock")).context("Cargo.lock")?);
    let licences = listed
        .iter()
        .filter(|(_, licence)| !satisfied(licence, &allowed))
        .map(|(package, licence)| format!("{package}: licence '{licence}' is not in deny.toml"));
    bad.extend(licences);
    Ok(bad)
}

/// Packages of the lock file that come from elsewhere than crates.io, or without the checksum that pins their content.
/// Known advisories and withdrawn versions need a list from the network: cargo-deny has it, where it is installed.
fn foreign(lock: &str) -> Vec<String> {
    let value = |entry: &str, key: &str| {
        entry.lines().find_map(|l| Some(l.strip_prefix(key)?.strip_prefix(" = ")?.trim_matches('"').to_owned()))
    };
    let mut bad = Vec::new();
    for entry in lock.split("[[package]]").skip(1) {
        let name = value(entry, "name").unwrap_or_default();
        match value(entry, "source") {
            // Of this workspace.
            None => {}
            Some(s) if s != "registry+https://github.com/rust-lang/crates.io-index" => {
                bad.push(format!("Cargo.lock: {name} comes from {s}"));
            }
            Some(_) if value(entry, "checksum").is_none_or(|c| c.len() != 64) => {
                bad.push(format!("Cargo.lock: {name} has no checksum"));
            }
            Some(_) => {}
        }
    }
    bad
}

/// Pairs of package and licence expression, without the project's own doubled rows.
fn package_licences(root: &Path, extra: &[&str]) -> Result<BTreeSet<(String, String)>> {
    let output = Command::new("cargo")
        .current_dir(root)
        .args(["tree", "--offline", "--workspace", "--prefix", "none", "--no-dedupe", "--edges", "normal,build,dev"])
        .args(["--format", "{p}\t{l}"])
        .args(extra)
        .output()
        .context("cargo tree")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo tree: {}", error.trim().lines().last().unwrap_or_default());
    let text = String::from_utf8_lossy(&output.stdout);
    let rows = text.lines().filter(|line| !line.trim().is_empty()).map(|line| {
        let (package, licence) = line.split_once('\t').unwrap_or((line, ""));
        let name: Vec<&str> = package.split_whitespace().take(2).collect();
        // A package met again on a circle of tests is marked so.
        (name.join(" "), licence.trim().trim_end_matches(" (*)").to_owned())
    });
    Ok(rows.collect())
}

/// The strings of `allow = [...]` in the table `[licenses]`.
fn allow_list(policy: &str) -> Vec<String> {
    let table = policy.split("\n[licenses]").nth(1).unwrap_or_default();
    let table = table.split("\n[").next().unwrap_or_default();
    let Some((_, list)) = table.split_once("allow = [") else { return Vec::new() };
    let list = list.split(']').next().unwrap_or_default();
    let uncommented = list.lines().map(|line| line.split('#').next().unwrap_or_default());
    uncommented.flat_map(|line| line.split('"').skip(1).step_by(2)).map(str::to_owned).collect()
}

/// Whether a choice allowed by `expression` (SPDX: AND, OR, parentheses, WITH; or the older slash) is in `allowed`.
fn satisfied(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let (ok, rest) = either(&tokens, allowed);
    ok && rest.is_empty()
}

fn either<'a>(tokens: &'a [&'a str], allowed: &[String]) -> (bool, &'a [&'a str]) {
    let (mut ok, mut rest) = both(tokens, allowed);
    while let [first, tail @ ..] = rest
        && first.eq_ignore_ascii_case("OR")
    {
        let (other, after) = both(tail, allowed);
        (ok, rest) = (ok || other, after);
    }
    (ok, rest)
}

fn both<'a>(tokens: &'a [&'a str], allowed: &[String]) -> (bool, &'a [&'a str]) {
    let (mut ok, mut rest) = single(tokens, allowed);
    while let [first, tail @ ..] = rest
        && first.eq_ignore_ascii_case("AND")
    {
        let (other, after) = single(tail, allowed);
        (ok, rest) = (ok && other, after);
    }
    (ok, rest)
}

fn single<'a>(tokens: &'a [&'a str], allowed: &[String]) -> (bool, &'a [&'a str]) {
    match tokens {
        ["(", inner @ ..] => match either(inner, allowed) {
            (ok, [")", rest @ ..]) => (ok, rest),
            (_, rest) => (false, rest),
        },
        // An exception only adds permissions.
        [name, with, _, rest @ ..] if with.eq_ignore_ascii_case("WITH") => (is_allowed(name, allowed), rest),
        [name, rest @ ..] => (is_allowed(name, allowed), rest),
        [] => (false, &[]),
    }
}

fn is_allowed(name: &str, allowed: &[String]) -> bool {
    allowed.iter().any(|a| a == name)
}

/// Runs cargo-deny where it is installed; says so in one line where it is not.
///
/// # Errors
/// When cargo-deny is there and cannot be run.
pub fn advisories(root: &Path) -> Result<Option<bool>> {
    let there = Command::new("cargo-deny").arg("--version").output().is_ok_and(|o| o.status.success());
    if !there {
        return Ok(None);
    }
    let status = Command::new("cargo-deny")
        .current_dir(root)
        .args(["check", "advisories", "bans", "sources"])
        .status()
        .context("cargo-deny")?;
    Ok(Some(status.success()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_from_elsewhere_are_found() {
        let sum = "0".repeat(64);
        let registry = "registry+https://github.com/rust-lang/crates.io-index";
        let lock = format!(
            "[[package]]\nname = \"own\"\nversion = \"0.1.0\"\n\n[[package]]\nname = \"good\"\nsource = \"{registry}\"\n\
             checksum = \"{sum}\"\n\n[[package]]\nname = \"loose\"\nsource = \"{registry}\"\n\n[[package]]\n\
             name = \"far\"\nsource = \"git+https://example.org/far\"\n"
        );
        let found = foreign(&lock);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("loose") && found[1].contains("far"));
    }

    #[test]
    fn expressions_are_weighed() {
        let allowed = ["MIT", "Apache-2.0", "Unicode-3.0"].map(str::to_owned);
        for good in [
            "MIT",
            "MIT OR GPL-3.0-only",
            "GPL-2.0 OR (MIT AND Apache-2.0)",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "GPL-2.0/MIT",
            "Apache-2.0 WITH LLVM-exception OR GPL-2.0",
        ] {
            assert!(satisfied(good, &allowed), "{good}");
        }
        for bad in ["", "GPL-3.0-only", "MIT AND GPL-2.0", "(MIT", "MIT OR", "MIT Apache-2.0"] {
            let trailing = bad == "MIT OR";
            assert_eq!(satisfied(bad, &allowed), trailing, "{bad}");
        }
    }

    #[test]
    fn the_list_is_read_without_its_comments() {
        let policy =
            "\n[bans]\nallow = [\"x\"]\n[licenses]\nallow = [\n  \"MIT\", # why\n  # \"GPL\"\n  \"ISC\",\n]\n[a]\n";
        assert_eq!(allow_list(policy), ["MIT", "ISC"]);
    }
}
