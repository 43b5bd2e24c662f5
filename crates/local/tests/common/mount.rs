//! Filesystems of other types, on loop devices, for as long as a test runs.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A mounted filesystem; unmounted when the value goes.
pub struct Mount {
    // Dropped after the unmounting below.
    _home: Option<TempDir>,
    at: PathBuf,
}

fn run(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

impl Mount {
    /// Makes a filesystem of `kind` in a file and mounts it. `None`, and a line that says so, where that is not possible.
    pub fn image(kind: &str, mib: u64) -> Option<Mount> {
        Mount::image_with(kind, mib, &[])
    }

    /// As [`Mount::image`], with more arguments for mkfs.
    pub fn image_with(kind: &str, mib: u64, arguments: &[&str]) -> Option<Mount> {
        let home = tempfile::Builder::new().prefix("dhow-image-").tempdir().unwrap();
        Mount::image_in(home, kind, mib, arguments)
    }

    /// As [`Mount::image_with`], with the file in a directory that is given.
    pub fn image_in(home: TempDir, kind: &str, mib: u64, arguments: &[&str]) -> Option<Mount> {
        let (image, at) = (home.path().join("image"), home.path().join("mnt"));
        std::fs::File::create(&image).unwrap().set_len(mib << 20).unwrap();
        std::fs::create_dir(&at).unwrap();
        let made = run(Command::new(format!("mkfs.{kind}")).arg("-q").args(arguments).arg(&image));
        if !made || !run(Command::new("mount").args(["-o", "loop"]).args([&image, &at])) {
            println!("skipped: {kind} cannot be made or mounted here");
            return None;
        }
        Some(Mount { _home: Some(home), at })
    }

    /// A tmpfs of at most `options` at an existing directory.
    pub fn tmpfs(at: &Path, options: &str) -> Option<Mount> {
        if !run(Command::new("mount").args(["-t", "tmpfs", "-o", options, "dhow-test"]).arg(at)) {
            println!("skipped: tmpfs cannot be mounted here");
            return None;
        }
        Some(Mount { _home: None, at: at.to_owned() })
    }

    /// An overlay of two directories on the disk.
    pub fn overlay() -> Option<Mount> {
        let home = tempfile::Builder::new().prefix("dhow-overlay-").tempdir().unwrap();
        let place = |name: &str| {
            let path = home.path().join(name);
            std::fs::create_dir(&path).unwrap();
            path.display().to_string()
        };
        let options = format!("lowerdir={},upperdir={},workdir={}", place("lower"), place("upper"), place("work"));
        let at = home.path().join(place("mnt"));
        if !run(Command::new("mount").args(["-t", "overlay", "-o", &options, "dhow-test"]).arg(&at)) {
            println!("skipped: no overlay can be mounted here");
            return None;
        }
        Some(Mount { _home: Some(home), at })
    }

    /// The device of an image as it would be found after a crash at this moment, mounted.
    pub fn after_crash(&self, options: &str) -> Mount {
        let home = tempfile::Builder::new().prefix("dhow-crash-").tempdir().unwrap();
        let (image, at) = (home.path().join("image"), home.path().join("mnt"));
        let from = self.at.parent().unwrap().join("image");
        assert!(run(Command::new("cp").arg("--sparse=always").args([&from, &image])));
        std::fs::create_dir(&at).unwrap();
        assert!(run(Command::new("mount").args(["-o", options]).args([&image, &at])), "the copy cannot be mounted");
        Mount { _home: Some(home), at }
    }

    pub fn path(&self) -> &Path {
        &self.at
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        run(Command::new("umount").arg("--lazy").arg(&self.at));
    }
}
