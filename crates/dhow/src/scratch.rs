//! Temporary directories that are gone whatever ends a command: its own end, an error, SIGINT or SIGTERM. After SIGKILL
//! they stay.
//!
//! Who made one owns it, and removes it by dropping it. All are in a list besides, since an interrupted command may have
//! threads that nobody can drop anything of.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;

use crate::exit::{Code, Failure, Outcome, warn};
use crate::output::temporary_dir;

static ALL: Mutex<All> = Mutex::new(All { paths: BTreeSet::new(), closed: false });

/// The list. Invariant: a directory is in it from before it can be seen until it is gone, so that whoever closes the list
/// knows of every one; after that none is made.
struct All {
    paths: BTreeSet<PathBuf>,
    closed: bool,
}

/// How often a directory is removed again in which somebody still makes files, and how long after.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// A new directory, open to this user alone, which goes with this.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes one in `base`.
    ///
    /// # Errors
    /// Those of `mkdir(2)`; `Interrupted` once the command was.
    pub fn new(base: &Path, name: &str) -> std::io::Result<Self> {
        let mut all = ALL.lock();
        if all.closed {
            return Err(std::io::Error::new(std::io::ErrorKind::Interrupted, "interrupted"));
        }
        let path = temporary_dir(base, name)?;
        all.paths.insert(path.clone());
        Ok(Self(path))
    }

    /// Makes one in `base`, or in the system's directory for such files.
    ///
    /// # Errors
    /// Those of `mkdir(2)`.
    pub fn in_or_temp(base: Option<&Path>, name: &str) -> Outcome<Self> {
        Self::new(&base.map_or_else(std::env::temp_dir, Path::to_path_buf), name).map_err(Failure::failed)
    }

    /// Makes one in `base`, or in memory where there is a place for that.
    ///
    /// # Errors
    /// Those of `mkdir(2)`.
    pub fn in_or_memory(base: Option<&Path>, name: &str) -> Outcome<Self> {
        let shm = Path::new("/dev/shm");
        Self::in_or_temp(base.or_else(|| shm.is_dir().then_some(shm)), name)
    }
}

impl Deref for Scratch {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Only what is in the list: who took it out removes it. It stays there until it is gone, since the process may be
        // interrupted, and end, meanwhile.
        let listed = ALL.lock().paths.contains(&self.0);
        if listed {
            clear(&self.0);
            ALL.lock().paths.remove(&self.0);
        }
    }
}

/// Does the work of a command, unless SIGINT or SIGTERM comes first; then everything in the list is removed.
///
/// # Errors
/// Those of the work; [`Code::Interrupted`].
pub async fn unless_interrupted(work: impl Future<Output = Outcome>) -> Outcome {
    let done = tokio::select! {
        // First: from before anything is made, the signals no longer end the process by themselves.
        biased;
        () = crate::serve::interrupted() => None,
        done = work => Some(done),
    };
    match done {
        Some(done) => done,
        None => {
            // Its threads may be at work still, until the process ends: they make none any more.
            let paths = close();
            // Servers that were started for the work make what they miss. One may just have been started.
            end_children();
            paths.iter().for_each(|path| clear(path));
            if end_children() {
                paths.iter().for_each(|path| clear(path));
            }
            Err(Failure { code: Code::Interrupted, message: "interrupted".to_owned() })
        }
    }
}

/// Closes the list, and takes what is in it.
fn close() -> BTreeSet<PathBuf> {
    let mut all = ALL.lock();
    all.closed = true;
    std::mem::take(&mut all.paths)
}

/// Kills the processes that this one has started, and waits for their end, but leaves it to others to reap them. Whether
/// there was any that still ran.
fn end_children() -> bool {
    use rustix::process::{Signal, WaitId, WaitIdOptions, getpid, kill_process, waitid};
    let Ok(all) = std::fs::read_dir("/proc") else { return false };
    let mut any = false;
    for entry in all.flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) else { continue };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        if running_child_of(&stat) != Some(getpid().as_raw_nonzero().get()) {
            continue;
        }
        any = true;
        // Gone by itself meanwhile is as good; its number is not given away before it is reaped.
        if kill_process(pid, Signal::KILL).is_ok() {
            let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        }
    }
    any
}

/// The fields of a line of `/proc/PID/stat` (proc(5)) from the third on, the state. The second is the name in parentheses
/// and may hold anything.
pub fn fields(stat: &str) -> Option<impl Iterator<Item = &str>> {
    Some(stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace())
}

/// Whose child it is, by its line of `/proc/PID/stat`, unless it has ended.
fn running_child_of(stat: &str) -> Option<i32> {
    let mut fields = fields(stat)?;
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(parent)
}

fn clear(path: &Path) {
    for n in 1.. {
        match std::fs::remove_dir_all(path) {
            Ok(()) => return,
            // Or somebody else is removing it too, and something of it was gone already.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && !path.exists() => return,
            Err(_) if n < TRIES => std::thread::sleep(PAUSE),
            Err(e) => return warn(format!("{}: {e}", path.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_that_run_are_known() {
        assert_eq!(running_child_of("12 (a) b (c) S 7 2 3"), Some(7));
        assert_eq!(running_child_of("12 (a) Z 7 2 3"), None);
        assert_eq!(running_child_of("12 (a"), None);
    }

    #[test]
    fn it_goes_when_dropped() {
        let scratch = Scratch::in_or_temp(None, "dhow-test").unwrap();
        std::fs::write(scratch.join("file"), b"x").unwrap();
        let path = scratch.to_path_buf();
        assert!(path.starts_with(std::env::temp_dir()) && ALL.lock().paths.contains(&path));
        drop(scratch);
        assert!(!path.exists() && !ALL.lock().paths.contains(&path));
    }

    #[test]
    fn what_is_still_filled_is_cleared() {
        let scratch = Scratch::in_or_temp(None, "dhow-test").unwrap();
        let path = scratch.to_path_buf();
        let filling = {
            let path = path.clone();
            std::thread::spawn(move || {
                (0..20_000).take_while(|n| std::fs::write(path.join(n.to_string()), b"").is_ok()).count()
            })
        };
        clear(&path);
        assert!(filling.join().unwrap() <= 20_000);
        assert!(!path.exists());
        // Nothing is left to be removed; a warning would be for nothing.
        ALL.lock().paths.remove(&path);
    }
}
