//! What the gate needs to know of the workspace's manifests: package folders and their dependencies.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// One package of the workspace.
#[derive(Debug)]
pub struct Package {
    /// The folder's name under `crates` (`xdr`), or `xtask`.
    pub name: String,
    /// The package's folder.
    pub dir: PathBuf,
    /// Names in `[dependencies]` and in its target-specific tables.
    pub normal: Vec<String>,
    /// Names in `[dev-dependencies]`.
    pub dev: Vec<String>,
}

/// Every package of the workspace at `root`, by name.
///
/// # Errors
/// A folder or manifest that cannot be read.
pub fn packages(root: &Path) -> Result<Vec<Package>> {
    let crates = root.join("crates");
    let mut dirs = vec![root.join("xtask")];
    for entry in fs::read_dir(&crates).with_context(|| crates.display().to_string())? {
        let dir = entry?.path();
        if dir.join("Cargo.toml").is_file() {
            dirs.push(dir);
        }
    }
    let mut found = dirs.into_iter().map(read).collect::<Result<Vec<_>>>()?;
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn read(dir: PathBuf) -> Result<Package> {
    let file = dir.join("Cargo.toml");
    let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let name = dir.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let (normal, dev) = dependencies(&text);
    Ok(Package { name, dir, normal, dev })
}

/// The names in the dependency tables of a manifest: those of normal dependencies, and those for tests.
fn dependencies(manifest: &str) -> (Vec<String>, Vec<String>) {
    let (mut normal, mut dev) = (Vec::new(), Vec::new());
    let mut table = String::new();
    for line in manifest.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        if let Some(header) = line.strip_prefix('[').and_then(|l| l.split(']').next()) {
            header.trim().clone_into(&mut table);
            // [dependencies.NAME] is a dependency by itself.
            if let Some((_, name)) = table.split_once("dependencies.") {
                let list = if table.starts_with("dev-") { &mut dev } else { &mut normal };
                list.push(name.to_owned());
                table.clear();
            }
            continue;
        }
        let Some((key, _)) = line.split_once('=') else { continue };
        let name = key.split('.').next().unwrap_or(key).trim().trim_matches('"').to_owned();
        if table.ends_with("dev-dependencies") {
            dev.push(name);
        } else if table.ends_with("dependencies") {
            normal.push(name);
        }
    }
    (normal, dev)
}

/// The Rust files under `dir`, sorted.
///
/// # Errors
/// A folder that cannot be read; a `dir` that does not exist has no files.
pub fn rust_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![dir.to_path_buf()];
    while let Some(folder) = folders.pop() {
        if !folder.is_dir() {
            continue;
        }
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_of_dependencies_are_seen() {
        let (normal, dev) = dependencies(
            "[package]\nname = \"x\"\n[dependencies]\na.workspace = true\nb = \"1\"\n# c = \"1\"\n\
             [target.'cfg(unix)'.dependencies]\nd = { version = \"1\" }\n[dependencies.e]\nversion = \"1\"\n\
             [dev-dependencies]\nf.workspace = true\n[lints]\nworkspace = true\n",
        );
        assert_eq!(normal, ["a", "b", "d", "e"]);
        assert_eq!(dev, ["f"]);
    }
}
