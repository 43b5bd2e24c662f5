//! Verifiers of exclusive creates (RFC 8881 18.16.3, RFC 1813 3.3.8; case B11).
//!
//! A client that gets no answer to an exclusive create sends it again, with the same verifier, and must then find the
//! file it made. Other servers hide the verifier in the file's times; here it is kept beside the tree: in memory and in
//! a log in the state directory, for the last 65 536 exclusive creates.
//!
//! ```text
//! log    := record*
//! record := length(1) handle verifier(8) sum(4)
//! ```
//!
//! # A server that is killed
//!
//! There must be no moment at which the name exists and its verifier is not known. So the file is made without a name
//! (`O_TMPFILE`), its verifier is logged, and then it gets its name, which fails if the name is taken (`Inner::create`).
//! Killed before the name is given, the server leaves a record of a file that does not exist, whose handle nobody will
//! have again; killed afterwards, the record is there. A note of the intent, written before a create by name, would be
//! cheaper by some microseconds, but a file found afterwards could only be guessed to be the one that was meant, by its
//! time of birth and a clock that can be set. Where a filesystem has no files without a name (NFS, FUSE, older overlays),
//! or one directory lets none be linked though files can be created there, the record is written right after the create,
//! and a kill in between answers EXIST.
//!
//! # A machine that loses its power
//!
//! With `metadata_sync` the log is synced together with the new file, before the reply. Where both lie in one filesystem
//! with an ordered journal the log's sync is all there is: then the record is appended once more after everything else
//! that the create changes, so that the log's own change comes last and its sync takes the rest along. The second copy
//! says nothing new. Between a create and its sync the filesystem may make the name durable by itself, and not the log:
//! then the client, which had no answer, is told EXIST when it asks again.

use std::collections::{HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use dhow_vfs::Handle;
use parking_lot::Mutex;

/// How many exclusive creates are remembered.
const MAX: usize = 65_536;

#[derive(Default)]
struct Table {
    by_handle: HashMap<Handle, [u8; 8]>,
    order: VecDeque<Handle>,
    log: Option<Arc<File>>,
    /// Records in the log.
    logged: usize,
    /// The length of the log up to the end of its last whole record.
    len: u64,
    /// A write failed: there may be a part of a record at the end.
    torn: bool,
    /// At how many records the log is written anew.
    full: usize,
}

/// The verifiers of recent exclusive creates.
pub(crate) struct Exclusive {
    table: Mutex<Table>,
    path: Option<PathBuf>,
    /// The device that the log lies on.
    dev: Option<u64>,
}

fn sum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5_u32, |h, &b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193))
}

fn record(handle: &Handle, verifier: [u8; 8]) -> Vec<u8> {
    let bytes = handle.as_bytes();
    let mut out = Vec::with_capacity(bytes.len() + 13);
    // At most 104 bytes.
    out.push(bytes.len() as u8);
    out.extend_from_slice(bytes);
    out.extend_from_slice(&verifier);
    let sum = sum(&out);
    out.extend_from_slice(&sum.to_be_bytes());
    out
}

fn take(log: &[u8]) -> Option<(Handle, [u8; 8], &[u8])> {
    let (len, rest) = log.split_first()?;
    let (handle, rest) = rest.split_at_checked(usize::from(*len))?;
    let (verifier, rest) = rest.split_first_chunk()?;
    let (stated, rest) = rest.split_first_chunk()?;
    let whole = log.get(..1 + handle.len() + 8)?;
    (sum(whole) == u32::from_be_bytes(*stated)).then_some((Handle::new(handle)?, *verifier, rest))
}

impl Exclusive {
    pub(crate) fn open(path: Option<PathBuf>) -> io::Result<Exclusive> {
        let mut table = Table { full: 2 * MAX, ..Table::default() };
        if let Some(path) = &path {
            let mut bytes = Vec::new();
            let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
            file.read_to_end(&mut bytes)?;
            let mut rest = bytes.as_slice();
            while let Some((handle, verifier, tail)) = take(rest) {
                table.insert(handle, verifier);
                table.logged += 1;
                rest = tail;
            }
            if rest.is_empty() {
                table.log = Some(Arc::new(file));
                table.len = bytes.len() as u64;
            } else {
                tracing::warn!("the end of {} is damaged; starting it anew", path.display());
                table.rewrite(path)?;
            }
        }
        let dev = table.log.as_ref().and_then(|log| log.metadata().ok()).map(|meta| meta.dev());
        Ok(Exclusive { table: Mutex::new(table), path, dev })
    }

    /// The device that the log lies on.
    pub(crate) fn dev(&self) -> Option<u64> {
        self.dev
    }

    /// The verifier with which a file was made.
    pub(crate) fn get(&self, handle: &Handle) -> Option<[u8; 8]> {
        self.table.lock().by_handle.get(handle).copied()
    }

    /// Forgets a file that came to nothing. Its record may stay in the log: nobody will have its handle again.
    pub(crate) fn forget(&self, handle: &Handle) {
        let mut table = self.table.lock();
        table.by_handle.remove(handle);
        // One of the last, so that this looks at few.
        if let Some(place) = table.order.iter().rposition(|other| other == handle) {
            table.order.remove(place);
        }
    }

    /// How many are remembered, and places kept for them.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        let table = self.table.lock();
        assert_eq!(table.by_handle.len(), table.order.len());
        table.order.len()
    }

    /// Remembers a file's verifier, or says so once more. Returns the log, to be synced, if there is one.
    ///
    /// # Errors
    /// The log cannot be written; the verifier is remembered in memory all the same.
    pub(crate) fn add(&self, handle: &Handle, verifier: [u8; 8]) -> io::Result<Option<Arc<OwnedFd>>> {
        let mut table = self.table.lock();
        table.insert(handle.clone(), verifier);
        let Some(path) = &self.path else { return Ok(None) };
        let mut anew = false;
        if table.logged >= table.full {
            match table.rewrite(path) {
                Ok(()) => anew = true,
                Err(e) => {
                    // The old one still serves. To try at each create would be dear.
                    tracing::warn!("cannot write {} anew: {e}", path.display());
                    table.full = table.logged + MAX;
                }
            }
        }
        if !anew {
            table.append(&record(handle, verifier))?;
        }
        let log = table.log.as_ref().map(|log| log.try_clone()).transpose()?;
        Ok(log.map(|log| Arc::new(OwnedFd::from(log))))
    }
}

impl Table {
    fn insert(&mut self, handle: Handle, verifier: [u8; 8]) {
        if self.by_handle.insert(handle.clone(), verifier).is_none() {
            self.order.push_back(handle);
        }
        while self.order.len() > MAX {
            if let Some(old) = self.order.pop_front() {
                self.by_handle.remove(&old);
            }
        }
    }

    /// Adds a record. What failed half way is taken away first: records behind it would not be found again.
    fn append(&mut self, record: &[u8]) -> io::Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        if self.torn {
            log.set_len(self.len)?;
            self.torn = false;
        }
        // One write for the record, so that records do not mix.
        if let Err(e) = (&**log).write_all(record) {
            self.torn = log.set_len(self.len).is_err();
            return Err(e);
        }
        self.len += record.len() as u64;
        self.logged += 1;
        Ok(())
    }

    fn rewrite(&mut self, path: &std::path::Path) -> io::Result<()> {
        let mut all = Vec::new();
        for handle in &self.order {
            if let Some(verifier) = self.by_handle.get(handle) {
                all.extend_from_slice(&record(handle, *verifier));
            }
        }
        let new = path.with_extension("new");
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).open(&new)?;
        file.write_all(&all)?;
        file.sync_all()?;
        // Opened first: once it has the name, nothing may go on with the old one.
        let log = OpenOptions::new().append(true).open(&new)?;
        std::fs::rename(&new, path)?;
        self.log = Some(Arc::new(log));
        self.logged = self.order.len();
        self.len = all.len() as u64;
        self.torn = false;
        self.full = 2 * MAX;
        // The new name is to last as long as what will be synced under it.
        if let Some(dir) = path.parent() {
            File::open(dir)?.sync_all()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verifiers_survive_and_are_bounded() {
        let path = std::env::temp_dir().join(format!("dhow-exclusive-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let handle = |n: u32| Handle::new(&n.to_be_bytes()).unwrap();
        let table = Exclusive::open(Some(path.clone())).unwrap();
        table.add(&handle(1), *b"verifier").unwrap().unwrap();
        table.add(&handle(2), [2; 8]).unwrap().unwrap();
        drop(table);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend_from_slice(&[4, 0, 0]);
        std::fs::write(&path, bytes).unwrap();
        let table = Exclusive::open(Some(path.clone())).unwrap();
        assert_eq!(table.get(&handle(1)), Some(*b"verifier"));
        assert_eq!(table.get(&handle(3)), None);
        for n in 10..(10 + 2 * MAX as u32) {
            table.add(&handle(n), [0; 8]).unwrap();
        }
        assert_eq!(table.get(&handle(1)), None);
        assert_eq!(table.get(&handle(9 + 2 * MAX as u32)), Some([0; 8]));
        let table = Exclusive::open(Some(path.clone())).unwrap();
        assert_eq!(table.table.lock().by_handle.len(), MAX);
        assert!(table.table.lock().logged < 2 * MAX);
        std::fs::remove_file(&path).unwrap();
    }

    /// The state directory was full for a while: a record that came to a part of itself hides none of the later ones, and a
    /// log that cannot be written anew goes on as it is.
    #[test]
    fn a_full_state_directory_costs_no_later_records() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("verifiers");
        let handle = |n: u32| Handle::new(&n.to_be_bytes()).unwrap();
        let table = Exclusive::open(Some(path.clone())).unwrap();
        table.add(&handle(1), [1; 8]).unwrap();
        OpenOptions::new().append(true).open(&path).unwrap().write_all(&record(&handle(2), [2; 8])[..7]).unwrap();
        table.table.lock().torn = true;
        table.add(&handle(3), [3; 8]).unwrap();
        let again = Exclusive::open(Some(path.clone())).unwrap();
        assert_eq!((again.get(&handle(1)), again.get(&handle(2))), (Some([1; 8]), None));
        assert_eq!(again.get(&handle(3)), Some([3; 8]));

        // A directory stands where the new log would be written.
        std::fs::create_dir(path.with_extension("new")).unwrap();
        again.table.lock().full = 0;
        again.add(&handle(4), [4; 8]).unwrap();
        assert!(again.table.lock().full > MAX);
        assert_eq!(Exclusive::open(Some(path.clone())).unwrap().get(&handle(4)), Some([4; 8]));
        std::fs::remove_dir(path.with_extension("new")).unwrap();
        again.table.lock().full = 0;
        again.add(&handle(5), [5; 8]).unwrap();
        again.add(&handle(6), [6; 8]).unwrap();
        let last = Exclusive::open(Some(path)).unwrap();
        assert!([1, 3, 4, 5, 6].iter().all(|&n| last.get(&handle(n)) == Some([n as u8; 8])));
    }
}
