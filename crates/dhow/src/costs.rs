//! What copies between servers cost, kept from one run to the next in `$XDG_CACHE_HOME/dhow/copy-costs`.
//!
//! The file is a cache: without it, or when it cannot be read or written, a few copies find out again.

use dhow_copy::Model;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Larger files are not ours.
const MOST: u64 = 1 << 20;

/// What was known at the start.
pub struct Kept {
    path: Option<PathBuf>,
    /// The costs.
    pub model: Model,
}

impl Kept {
    /// Reads the file of this user.
    pub fn load() -> Self {
        let path = directory().map(|dir| dir.join("copy-costs"));
        let model = path.as_deref().map(read).unwrap_or_default();
        Self { path, model }
    }

    /// Writes what is known now, with what other processes have learned meanwhile; nothing if nothing is new.
    pub fn store(&self, mut model: Model) {
        let Some(path) = self.path.as_deref().filter(|_| model != self.model) else { return };
        model.merge(&read(path));
        if let Err(error) = write(path, &model.to_text()) {
            tracing::debug!(path = %path.display(), %error, "cannot keep the costs of copies");
        }
    }
}

/// `$XDG_CACHE_HOME/dhow`, else `$HOME/.cache/dhow`; relative paths are not valid there.
fn directory() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(cache.join("dhow"))
}

fn read(path: &Path) -> Model {
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_file() && meta.len() <= MOST => {
            std::fs::read_to_string(path).map(|text| Model::from_text(&text)).unwrap_or_default()
        }
        _ => Model::default(),
    }
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(dir)?;
    let temp = dir.join(format!(".copy-costs-{}", std::process::id()));
    let mut file = std::fs::File::create(&temp)?;
    let done = file.write_all(text.as_bytes()).and_then(|()| std::fs::rename(&temp, path));
    if done.is_err() {
        // The first error is the one that counts.
        let _ = std::fs::remove_file(&temp);
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use dhow_copy::Way;

    #[test]
    fn costs_are_kept_and_shared() {
        let dir = crate::output::temporary_dir(&std::env::temp_dir(), "dhow-test").unwrap();
        let path = dir.join("cache/dhow/copy-costs");
        let kept = || Kept { path: Some(path.clone()), model: read(&path) };
        let (first, second) = (kept(), kept());
        let learned = |kept: &Kept, pair: &str| {
            let mut model = kept.model.clone();
            model.learn(pair, Way::Inter, 1 << 20, 0.5, 7);
            model
        };
        first.store(learned(&first, "a>b"));
        second.store(learned(&second, "c>d"));
        let model = kept().model;
        assert!(model.choose("a>b", 1 << 20, 8).inter.is_some());
        assert!(model.choose("c>d", 1 << 20, 8).inter.is_some());
        std::fs::write(&path, b"\xff\xfe").unwrap();
        assert_eq!(kept().model, Model::default());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
