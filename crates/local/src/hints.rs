//! Finding objects again without the privilege to open by handle.
//!
//! A hint says in which directory, by its handle, and under which name an object was last seen. It is only ever a hint:
//! a walk compares handles at every step. Hints are kept in memory, up to a bound, and appended to a log in the state
//! directory every few seconds, never synced: what a crash loses, a scan of the tree finds again.
//!
//! ```text
//! log      := record*
//! record   := length(2) child-length(1) child parent-length(1) parent name sum(4)
//! ```
//!
//! Numbers are big-endian, `length` counts everything after itself, `sum` is FNV-1a of the record before it. A name of
//! length 0 takes a hint back. Reading stops at the first record that is not whole.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use dhow_sys::proc::IoPriority;
use dhow_sys::{dir, open, proc};
use dhow_vfs::{FileKind, Handle};
use parking_lot::Mutex;
use rustix::fs::OFlags;

use crate::inner::Inner;
use crate::inode::{Inode, kind_of};

/// Directories deeper than this are not followed.
const MAX_DEPTH: usize = 4096;
/// How many lost handles are waited for at once.
const MAX_MISSING: usize = 4096;

/// From an object that is at hand down to the one that is wanted.
pub(crate) struct Way {
    pub start: Arc<Inode>,
    /// Names to go down by, and the handle that each must lead to.
    pub steps: Vec<(Bytes, Handle)>,
}

#[derive(Clone, PartialEq, Eq)]
struct Hint {
    parent: Handle,
    name: Bytes,
}

#[derive(Default)]
struct Table {
    hints: HashMap<Handle, Hint>,
    /// Records not yet in the log.
    unwritten: Vec<u8>,
    /// Records in the log, to know when it is worth writing anew.
    logged: usize,
    /// Handles that no walk found, and whether a scan has begun and ended since.
    missing: HashMap<Handle, Missing>,
    /// Objects that were removed through us, the last few.
    gone: HashSet<Handle>,
    gone_order: VecDeque<Handle>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    Waiting,
    Scanning,
    Scanned,
}

/// The table of hints.
pub(crate) struct Hints {
    table: Mutex<Table>,
    log: Option<PathBuf>,
    max: usize,
    scanning: AtomicBool,
}

impl Hints {
    pub(crate) fn open(log: Option<PathBuf>, max: usize) -> io::Result<Hints> {
        let mut table = Table::default();
        if let Some(path) = &log {
            table.load(path, max)?;
        }
        Ok(Hints { table: Mutex::new(table), log, max, scanning: AtomicBool::new(false) })
    }

    /// The object was seen here.
    pub(crate) fn note(&self, child: &Handle, parent: &Handle, name: &[u8]) {
        let mut table = self.table.lock();
        if table.hints.get(child).is_some_and(|h| h.parent == *parent && h.name == name) {
            return;
        }
        if table.hints.len() >= self.max && !table.hints.contains_key(child) {
            // Any will do: one that is missed is found by a scan.
            if let Some(victim) = table.hints.keys().next().cloned() {
                table.hints.remove(&victim);
            }
        }
        let hint = Hint { parent: parent.clone(), name: Bytes::copy_from_slice(name) };
        if self.log.is_some() {
            push_record(&mut table.unwritten, child, &hint);
        }
        table.missing.remove(child);
        table.hints.insert(child.clone(), hint);
    }

    /// The object is no longer here.
    pub(crate) fn forget(&self, child: &Handle, parent: &Handle, name: &[u8]) {
        let mut table = self.table.lock();
        if table.hints.get(child).is_some_and(|h| h.parent == *parent && h.name == name) {
            table.hints.remove(child);
            if self.log.is_some() {
                let gone = Hint { parent: parent.clone(), name: Bytes::new() };
                push_record(&mut table.unwritten, child, &gone);
            }
        }
    }

    /// The object was removed: it need not be searched for.
    pub(crate) fn gone(&self, handle: &Handle) {
        let mut table = self.table.lock();
        if table.gone.insert(handle.clone()) {
            table.gone_order.push_back(handle.clone());
        }
        if table.gone_order.len() > MAX_MISSING
            && let Some(old) = table.gone_order.pop_front()
        {
            table.gone.remove(&old);
        }
    }

    /// The way to an object from the nearest one that `known` has.
    pub(crate) fn way(&self, handle: &Handle, known: impl Fn(&Handle) -> Option<Arc<Inode>>) -> Option<Way> {
        let mut steps = Vec::new();
        let mut at = handle.clone();
        let start = loop {
            if let Some(inode) = known(&at) {
                break inode;
            }
            if steps.len() > MAX_DEPTH {
                return None;
            }
            let hint = self.table.lock().hints.get(&at).cloned()?;
            steps.push((hint.name, at));
            at = hint.parent;
        };
        steps.reverse();
        Some(Way { start, steps })
    }

    /// An object was not found. True if a whole scan has not found it either, so that it is gone.
    pub(crate) fn miss(&self, handle: &Handle) -> bool {
        let mut table = self.table.lock();
        if table.gone.contains(handle) {
            return true;
        }
        match table.missing.get(handle) {
            Some(Missing::Scanned) => {
                table.missing.remove(handle);
                true
            }
            Some(_) => false,
            None => {
                if table.missing.len() < MAX_MISSING {
                    table.missing.insert(handle.clone(), Missing::Waiting);
                }
                false
            }
        }
    }

    /// True if the caller is to run a scan now: somebody waits for one, and none is running.
    pub(crate) fn start_scan(&self) -> bool {
        if self.scanning.swap(true, Ordering::AcqRel) {
            return false;
        }
        let mut table = self.table.lock();
        table.missing.values_mut().filter(|m| **m == Missing::Waiting).for_each(|m| *m = Missing::Scanning);
        true
    }

    fn end_scan(&self) {
        let mut table = self.table.lock();
        // Those that nobody asked for since the scan before make room.
        table.missing.retain(|_, m| *m != Missing::Scanned);
        table.missing.values_mut().filter(|m| **m == Missing::Scanning).for_each(|m| *m = Missing::Scanned);
        drop(table);
        self.scanning.store(false, Ordering::Release);
    }

    /// Appends what is new to the log; writes it anew when most of it is out of date.
    pub(crate) fn flush(&self) {
        let Some(path) = &self.log else { return };
        let mut table = self.table.lock();
        if table.unwritten.is_empty() {
            return;
        }
        let result = if table.logged > 1024 && table.logged > 4 * table.hints.len() {
            table.rewrite(path)
        } else {
            let new = std::mem::take(&mut table.unwritten);
            table.logged += count_records(&new);
            drop(table);
            OpenOptions::new().append(true).create(true).open(path).and_then(|mut f| f.write_all(&new))
        };
        if let Err(e) = result {
            tracing::warn!("cannot write hints to {}: {e}", path.display());
        }
    }
}

impl Table {
    fn load(&mut self, path: &Path, max: usize) -> io::Result<()> {
        let mut log = Vec::new();
        match File::open(path) {
            Ok(mut file) => drop(file.read_to_end(&mut log)?),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(e),
        }
        let mut rest = log.as_slice();
        while let Some((child, hint, tail)) = take_record(rest) {
            rest = tail;
            self.logged += 1;
            if hint.name.is_empty() {
                self.hints.remove(&child);
            } else if self.hints.len() < max || self.hints.contains_key(&child) {
                self.hints.insert(child, hint);
            }
        }
        if !rest.is_empty() {
            tracing::warn!("the end of {} is damaged; starting it anew", path.display());
            self.rewrite(path)?;
        }
        Ok(())
    }

    fn rewrite(&mut self, path: &Path) -> io::Result<()> {
        let mut all = Vec::new();
        for (child, hint) in &self.hints {
            push_record(&mut all, child, hint);
        }
        let new = path.with_extension("new");
        std::fs::write(&new, &all)?;
        std::fs::rename(&new, path)?;
        self.unwritten.clear();
        self.logged = self.hints.len();
        Ok(())
    }
}

fn sum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5_u32, |h, &b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193))
}

fn push_record(out: &mut Vec<u8>, child: &Handle, hint: &Hint) {
    let (child, parent) = (child.as_bytes(), hint.parent.as_bytes());
    // Handles have at most 104 bytes and names at most 255: every length fits.
    let len = 1 + child.len() + 1 + parent.len() + hint.name.len() + 4;
    let start = out.len();
    out.extend_from_slice(&(len as u16).to_be_bytes());
    out.push(child.len() as u8);
    out.extend_from_slice(child);
    out.push(parent.len() as u8);
    out.extend_from_slice(parent);
    out.extend_from_slice(&hint.name);
    let sum = sum(out.get(start..).unwrap_or_default());
    out.extend_from_slice(&sum.to_be_bytes());
}

fn take_record(log: &[u8]) -> Option<(Handle, Hint, &[u8])> {
    let (len, body) = log.split_first_chunk()?;
    let len = usize::from(u16::from_be_bytes(*len));
    let (body, tail) = body.split_at_checked(len)?;
    let (body, stated) = body.split_last_chunk()?;
    if sum(log.get(..2 + body.len())?) != u32::from_be_bytes(*stated) {
        return None;
    }
    let (n, rest) = body.split_first()?;
    let (child, rest) = rest.split_at_checked(usize::from(*n))?;
    let (n, rest) = rest.split_first()?;
    let (parent, name) = rest.split_at_checked(usize::from(*n))?;
    let hint = Hint { parent: Handle::new(parent)?, name: Bytes::copy_from_slice(name) };
    Some((Handle::new(child)?, hint, tail))
}

fn count_records(mut log: &[u8]) -> usize {
    let mut n = 0;
    while let Some((_, _, tail)) = take_record(log) {
        n += 1;
        log = tail;
    }
    n
}

/// Looks at the whole tree once, at the lowest I/O priority, and notes where everything is.
pub(crate) fn scan(inner: &Arc<Inner>) {
    let started = std::time::Instant::now();
    let _ = proc::set_io_priority(IoPriority::Idle);
    let mut left = inner.options.max_hints;
    // Handles, not descriptors: a wide tree would take too many of those.
    let mut todo = vec![inner.root.handle.clone()];
    while let Some(at) = todo.pop() {
        if let Err(e) = inner.resolve(&at).and_then(|at| scan_dir(inner, &at, &mut left, &mut todo)) {
            tracing::debug!("a directory could not be scanned: {e}");
        }
        if left == 0 {
            tracing::warn!("the scan of {} ended at its bound", inner.options.path.display());
            break;
        }
    }
    let _ = proc::set_io_priority(IoPriority::Default);
    inner.hints.end_scan();
    tracing::debug!("scanned {} in {:?}", inner.options.path.display(), started.elapsed());
}

fn scan_dir(
    inner: &Arc<Inner>,
    at: &Arc<Inode>,
    left: &mut usize,
    todo: &mut Vec<Handle>,
) -> Result<(), dhow_vfs::Error> {
    let fd = open::reopen(&at.path, OFlags::RDONLY | OFlags::DIRECTORY).map_err(crate::error::sys)?;
    let mut buffer = vec![MaybeUninit::uninit(); 32 << 10];
    dir::read_from(&fd, 0, &mut buffer, |entry| {
        if entry.name == b"." || entry.name == b".." {
            return dir::Flow::More;
        }
        if *left == 0 {
            return dir::Flow::Stop;
        }
        *left -= 1;
        if let Ok(child) = open::path_beneath(&at.path, entry.name, inner.crossing())
            && let Ok((handle, stat, fs)) = inner.identify(&child, &at.fs, || Some(entry.ino))
        {
            inner.note(at, entry.name, &handle, &fs);
            if kind_of(stat.mode) == FileKind::Directory {
                todo.push(handle);
            }
        }
        dir::Flow::More
    })
    .map_err(crate::error::sys)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(n: u8) -> Handle {
        Handle::new(&[n; 17]).unwrap()
    }

    #[test]
    fn the_log_keeps_what_was_noted() {
        let path = std::env::temp_dir().join(format!("dhow-hints-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let hints = Hints::open(Some(path.clone()), 100).unwrap();
        hints.note(&handle(2), &handle(1), b"two");
        hints.note(&handle(3), &handle(2), b"three");
        hints.note(&handle(4), &handle(2), b"four");
        hints.note(&handle(3), &handle(1), b"moved");
        hints.forget(&handle(4), &handle(2), b"other");
        hints.forget(&handle(4), &handle(2), b"four");
        hints.flush();
        // A record that was cut off by a crash.
        let mut log = std::fs::read(&path).unwrap();
        log.extend_from_slice(&log.clone()[..20]);
        std::fs::write(&path, &log).unwrap();
        for _ in 0..2 {
            let again = Hints::open(Some(path.clone()), 100).unwrap();
            let table = again.table.lock();
            assert_eq!(table.hints.len(), 2);
            assert!(table.hints[&handle(3)] == Hint { parent: handle(1), name: Bytes::from_static(b"moved") });
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn the_log_does_not_grow_for_ever() {
        let path = std::env::temp_dir().join(format!("dhow-hints-grow-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let hints = Hints::open(Some(path.clone()), 100).unwrap();
        for n in 0..10_000u32 {
            hints.note(&handle((n % 50) as u8), &handle(1), format!("name-{n}").as_bytes());
            if n % 100 == 0 {
                hints.flush();
            }
        }
        hints.flush();
        assert!(std::fs::metadata(&path).unwrap().len() < 200_000);
        assert_eq!(Hints::open(Some(path.clone()), 100).unwrap().table.lock().hints.len(), 50);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn bounded_and_missing_once() {
        let hints = Hints::open(None, 3).unwrap();
        for n in 0..10 {
            hints.note(&handle(n), &handle(99), b"x");
        }
        assert_eq!(hints.table.lock().hints.len(), 3);
        let lost = handle(77);
        assert!(!hints.miss(&lost));
        assert!(hints.start_scan());
        assert!(!hints.start_scan());
        hints.gone(&handle(76));
        assert!(hints.miss(&handle(76)) && hints.miss(&handle(76)));
        // One that is lost while a scan runs waits for the next.
        let late = handle(78);
        assert!(!hints.miss(&late) && !hints.miss(&lost));
        hints.end_scan();
        assert!(hints.miss(&lost));
        assert!(!hints.miss(&late));
        assert!(hints.start_scan());
        hints.end_scan();
        assert!(hints.miss(&late));
    }
}
