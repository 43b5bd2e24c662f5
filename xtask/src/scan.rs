//! Rules on the sources that no lint knows: where `unsafe` may stand, what pure crates may use, which crate may
//! depend on which.

use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::manifest::{self, Package};
use crate::source;

/// The crates without I/O, clocks and randomness: time and random bytes are handed in.
const PURE: [&str; 7] = ["xdr", "rpc", "proto", "state", "session", "writeback", "dirlock"];

/// What no code of a pure crate may name.
const IMPURE_PATHS: [&str; 14] = [
    "tokio",
    "std::net",
    "std::fs",
    "std::io::stdin",
    "std::process",
    "std::env",
    "std::thread",
    "Instant::now",
    "SystemTime::now",
    "UNIX_EPOCH",
    "getrandom",
    "rand::",
    "RandomState",
    "rustix",
];

/// What no pure crate may depend on, but for its tests.
const IMPURE_DEPENDENCIES: [&str; 10] =
    ["tokio", "socket2", "rustix", "libc", "getrandom", "rand", "redb", "async-trait", "futures-util", "dhow-sys"];

/// Who may depend on whom (the picture in ARCHITECTURE.md). `*`: anything but the binary.
const EDGES: [(&str, &[&str]); 21] = [
    ("xdr", &[]),
    ("rpc", &["xdr"]),
    ("proto", &["xdr", "rpc"]),
    ("state", &["proto", "rpc", "xdr"]),
    ("session", &["proto", "rpc", "xdr"]),
    ("writeback", &[]),
    ("dirlock", &[]),
    ("vfs", &[]),
    ("sys", &[]),
    ("local", &["vfs", "sys"]),
    ("net", &["rpc", "xdr", "sys"]),
    ("server", &["xdr", "rpc", "proto", "state", "dirlock", "vfs", "net"]),
    ("client", &["xdr", "rpc", "proto", "session", "net", "sys"]),
    ("copy", &["client", "sys"]),
    ("mount", &["client", "writeback", "sys"]),
    ("reexport", &["vfs", "client"]),
    ("partner", &["client", "server", "proto", "rpc"]),
    ("link", &["sys"]),
    ("testkit", &["*"]),
    ("dhow", &["*"]),
    ("xtask", &[]),
];

/// Crates that reckon with leases and time-outs.
const STEADY: [&str; 6] = ["server", "state", "session", "client", "net", "partner"];

/// Where in them the time of day is handed in, for times that are shown: those of the pseudo-root, and of a file that the
/// holder of a delegation has changed.
const SHOWN_TIMES: [&str; 2] = ["crates/server/src/config.rs", "crates/server/src/server.rs"];

/// `unsafe` stands in `crates/sys` alone.
///
/// # Errors
/// Sources that cannot be read.
pub fn unsafe_code(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for package in manifest::packages(root)?.iter().filter(|p| p.name != "sys") {
        for file in manifest::rust_files(&package.dir)? {
            let code = source::code_only(&fs::read_to_string(&file)?);
            for line in source::lines_with(&code, "unsafe") {
                found.push(format!("{}:{line}: unsafe outside crates/sys", shown(root, &file)));
            }
            // The lint may be lifted where unsafe code may stand, and nowhere else.
            for line in source::lines_with(&code, "allow(unsafe_code") {
                found.push(format!("{}:{line}: the lint on unsafe code lifted outside crates/sys", shown(root, &file)));
            }
        }
    }
    Ok(found)
}

/// The pure crates name no I/O, clock or randomness, in code or in normal dependencies.
///
/// # Errors
/// Sources that cannot be read.
pub fn purity(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for package in manifest::packages(root)?.iter().filter(|p| PURE.contains(&p.name.as_str())) {
        for name in package.normal.iter().filter(|n| IMPURE_DEPENDENCIES.contains(&n.as_str())) {
            found.push(format!("crates/{}/Cargo.toml: a pure crate depends on {name}", package.name));
        }
        found.extend(impure_lines(root, package)?);
    }
    Ok(found)
}

fn impure_lines(root: &Path, package: &Package) -> Result<Vec<String>> {
    let mut tests = Vec::new();
    let mut sources = Vec::new();
    for file in manifest::rust_files(&package.dir.join("src"))? {
        let code = source::code_only(&fs::read_to_string(&file)?);
        tests.extend(source::test_modules(&code));
        sources.push((file, source::without_tests(&code)));
    }
    let mut found = Vec::new();
    for (file, code) in sources {
        let stem = file.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        if tests.contains(&stem) {
            continue;
        }
        for path in IMPURE_PATHS {
            for line in source::lines_with(&code, path) {
                found.push(format!("{}:{line}: {path} in a pure crate", shown(root, &file)));
            }
        }
    }
    Ok(found)
}

/// Leases, grace and time-outs go by a clock that nobody sets: the crates that reckon with them ask for the time of day
/// nowhere but where a time is to be shown.
///
/// # Errors
/// Sources that cannot be read.
pub fn wall_clock(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for package in manifest::packages(root)?.iter().filter(|p| STEADY.contains(&p.name.as_str())) {
        for file in manifest::rust_files(&package.dir.join("src"))? {
            let name = shown(root, &file);
            if SHOWN_TIMES.contains(&name.as_str()) {
                continue;
            }
            let code = source::without_tests(&source::code_only(&fs::read_to_string(&file)?));
            for path in ["SystemTime", "UNIX_EPOCH"] {
                for line in source::lines_with(&code, path) {
                    found.push(format!("{name}:{line}: {path} where a step of the clock would be felt"));
                }
            }
        }
    }
    Ok(found)
}

/// Dependencies between the project's crates point the way of [`EDGES`].
///
/// # Errors
/// Manifests that cannot be read.
pub fn direction(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for package in manifest::packages(root)? {
        let Some((_, allowed)) = EDGES.iter().find(|(name, _)| *name == package.name) else {
            found.push(format!("{}: no row in the table of who may depend on whom (xtask/src/scan.rs)", package.name));
            continue;
        };
        for name in package.normal.iter().filter_map(|n| n.strip_prefix("dhow-")) {
            if !allowed.contains(&name) && !allowed.contains(&"*") {
                found.push(format!("crates/{}/Cargo.toml: may not depend on {name}", package.name));
            }
            if name == "testkit" {
                found.push(format!("crates/{}/Cargo.toml: testkit is for dev-dependencies", package.name));
            }
        }
        if package.normal.iter().chain(&package.dev).any(|n| n == "dhow") {
            found.push(format!("{}: nothing depends on the binary", package.name));
        }
    }
    Ok(found)
}

fn shown(root: &Path, file: &Path) -> String {
    file.strip_prefix(root).unwrap_or(file).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table itself must not allow a cycle, or "direction" means nothing.
    #[test]
    fn the_allowed_edges_have_no_cycle() {
        let mut placed: Vec<&str> = Vec::new();
        let concrete = || EDGES.iter().filter(|(_, to)| !to.contains(&"*"));
        while placed.len() < concrete().count() {
            let before = placed.len();
            for (name, to) in concrete() {
                if !placed.contains(name) && to.iter().all(|t| placed.contains(t)) {
                    placed.push(name);
                }
            }
            assert!(placed.len() > before, "a cycle among those not in {placed:?}");
        }
    }

    fn tree(files: &[(&str, &str)]) -> std::path::PathBuf {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let n = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("xtask-scan-{}-{n}", std::process::id()));
        for (name, text) in [("xtask/Cargo.toml", ""), ("crates/.keep", "")].iter().chain(files) {
            let file = root.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        root
    }

    #[test]
    fn an_impure_crate_is_found_and_its_tests_are_not() {
        let root = tree(&[
            ("crates/state/Cargo.toml", "[dependencies]\ntokio.workspace = true\n[dev-dependencies]\nrand = \"1\"\n"),
            ("crates/state/src/lib.rs", "//! Instant::now\nfn f() { Instant::now(); }\n#[cfg(test)]\nmod probe;\n"),
            ("crates/state/src/probe.rs", "fn g() { std::fs::read(\"x\"); }\n"),
        ]);
        let found = purity(&root).unwrap();
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("depends on tokio") && found[1].contains("lib.rs:2: Instant::now"), "{found:?}");
    }

    #[test]
    fn the_time_of_day_is_found_where_it_does_not_belong() {
        let root = tree(&[
            ("crates/server/Cargo.toml", ""),
            ("crates/server/src/reaper.rs", "fn f() { std::time::SystemTime::now(); }\n"),
            ("crates/server/src/server.rs", "fn f() { std::time::SystemTime::now(); }\n"),
        ]);
        let found = wall_clock(&root).unwrap();
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(found, ["crates/server/src/reaper.rs:1: SystemTime where a step of the clock would be felt"]);
    }

    #[test]
    fn unsafe_and_a_wrong_dependency_are_found() {
        let root = tree(&[
            ("crates/xdr/Cargo.toml", "[dependencies]\ndhow-rpc.workspace = true\n"),
            ("crates/xdr/src/lib.rs", "fn f() { unsafe { g() } }\n"),
            ("crates/sys/Cargo.toml", ""),
            ("crates/sys/src/lib.rs", "fn f() { unsafe { g() } }\n"),
            ("crates/newcomer/Cargo.toml", ""),
        ]);
        let (code, edges) = (unsafe_code(&root).unwrap(), direction(&root).unwrap());
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(code, ["crates/xdr/src/lib.rs:1: unsafe outside crates/sys"]);
        assert_eq!(edges.len(), 2, "{edges:?}");
        assert!(edges[0].contains("newcomer") && edges[1].contains("may not depend on rpc"), "{edges:?}");
    }
}
