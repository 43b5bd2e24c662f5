//! Words and paths that must not stand in the project: unfinished code, tests switched off, places of one machine.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::source;

/// In code: work not done, and tests that do not run.
const CODE: [&str; 4] = ["todo!", "unimplemented!", "dbg!", "#[ignore"];

/// First folders of absolute paths that exist on one person's machine only.
const FOLDERS: [&str; 2] = ["work", "root"];

/// A source file longer than this wants a module split off (noted, not refused).
const LONG: usize = 900;

/// Looks through every file that git tracks or would.
///
/// # Errors
/// When git cannot be run.
pub fn forbidden(root: &Path) -> Result<Vec<String>> {
    let output = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("git ls-files")?;
    ensure!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    let mut found = Vec::new();
    for name in String::from_utf8_lossy(&output.stdout).lines() {
        // Listed but deleted, a link, or not text: nothing to read.
        let Ok(text) = fs::read_to_string(root.join(name)) else { continue };
        found.extend(in_text(name, &text));
        if name.ends_with(".rs") && text.lines().count() > LONG {
            println!("note: {name} has {} lines; is a module missing?", text.lines().count());
        }
    }
    Ok(found)
}

fn in_text(name: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (n, line) in text.lines().enumerate() {
        if let Some(path) = machine_path(line) {
            found.push(format!("{name}:{}: a path of one machine: {path}", n + 1));
        }
    }
    if name.ends_with(".rs") {
        let code = source::code_only(text);
        for word in CODE {
            for line in source::lines_with(&code, word) {
                found.push(format!("{name}:{line}: {word}"));
            }
        }
    }
    found
}

/// The first path in `line` that begins with one of [`FOLDERS`].
fn machine_path(line: &str) -> Option<&str> {
    FOLDERS.iter().find_map(|folder| {
        line.match_indices(&format!("/{folder}/")).find_map(|(at, _)| {
            let before = line.get(..at)?.chars().next_back();
            // Something before the slash makes it part of a longer path or of a URL.
            let inner = before.is_some_and(|c| c.is_alphanumeric() || "/._-~}$".contains(c));
            let rest = line.get(at..)?;
            (!inner).then(|| rest.split([' ', '"', '\'', '`', ')']).next().unwrap_or(rest))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_must_not_stand_is_found() {
        let path = ["", "work", "x"].join("/");
        assert_eq!(in_text("a.sh", &format!("cd {path} && make")).len(), 1);
        assert_eq!(in_text("a.sh", &format!("cd /srv{path}")).len(), 0);
        assert_eq!(in_text("a.rs", "fn f() { todo!() }\n// todo!()\n#[ignore]\n").len(), 2);
        assert_eq!(in_text("a.md", "todo!() is refused").len(), 0);
    }
}
