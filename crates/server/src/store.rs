//! What must outlive the process: the server's identity, and the clients that hold state.
//!
//! A client is recorded *before* its first open or lock is granted, and its record is removed *before* anything is
//! granted that conflicts with what it held (RFC 8881 8.4.3). The server waits for both: a call returns when the change
//! is on stable storage. Records are few and small (one per client that holds state), so one transactional file does.
//!
//! The trait is small so that a cluster can put its records elsewhere.
//!
//! Failures: a store that cannot be opened stops the start with a message that names the file. A store that fails
//! while the server runs (disk full) refuses new clients (the caller answers DELAY and logs it) and harms no old ones.

use crate::config::Identity;
use bytes::Bytes;
use parking_lot::Mutex;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Cache of the store, bytes: its content is a few KiB.
const CACHE: usize = 1 << 20;

const CLIENTS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("clients");
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");

/// Durable records. Calls may block for an fsync: call them off the runtime's threads.
pub trait StableStore: Send + Sync {
    /// All records of clients (owner, value).
    ///
    /// # Errors
    /// The medium failed.
    fn clients(&self) -> io::Result<Vec<(Bytes, Bytes)>>;

    /// Adds or replaces records; durable on return.
    ///
    /// # Errors
    /// The medium failed or is full.
    fn put(&self, records: &[(Bytes, Bytes)]) -> io::Result<()>;

    /// Removes records; durable on return. A record that is not there is no error.
    ///
    /// # Errors
    /// The medium failed or is full.
    fn forget(&self, owners: &[Bytes]) -> io::Result<()>;

    /// A value kept under a fixed name, made by `make` and stored if there is none.
    ///
    /// # Errors
    /// The medium failed or is full.
    fn value(&self, name: &str, make: &mut dyn FnMut() -> io::Result<Vec<u8>>) -> io::Result<Bytes>;

    /// Counts a start: 1 at the first, one more at each later one. Durable on return.
    ///
    /// # Errors
    /// The medium failed or is full.
    fn count_start(&self) -> io::Result<u32>;

    /// Whether calls may take long: then they are made on a thread of their own.
    fn may_block(&self) -> bool {
        true
    }
}

type Opener = Box<dyn Fn() -> Result<Database, redb::DatabaseError> + Send + Sync>;

/// The store in a state directory.
///
/// The database behind it refuses all work after its medium has failed once (a full disk is enough), until it is opened
/// anew; so it is dropped then, and the next call opens it. What was committed before is there, what was not is not.
pub struct FileStore {
    /// `None` after a failure.
    db: Mutex<Option<Database>>,
    opener: Opener,
    path: PathBuf,
}

impl FileStore {
    /// Opens or creates `DIR/state.redb`, and `DIR` if need be (mode 0700: the key of all filehandles lies in it).
    ///
    /// # Errors
    /// The directory or file cannot be used; another server has it open; the file is damaged. The message names the
    /// path, and what can be done.
    pub fn open(dir: &Path) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        let name = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", dir.display()));
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(name)?;
        let path = dir.join("state.redb");
        if !path.try_exists().map_err(name)? {
            Self::make(dir, &path)?;
        }
        let file = path.clone();
        Self::build(path, Box::new(move || builder().create(&file)))
    }

    /// Makes the file: whole and on stable storage under another name before it gets its own, so that a loss of power
    /// at the first start leaves nothing that the next start would take for a damaged file.
    fn make(dir: &Path, path: &Path) -> io::Result<()> {
        let fresh = dir.join("state.redb.new");
        let failed = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", fresh.display()));
        let db = match builder().create(&fresh) {
            // Another server has just begun here: its lock on the file is what keeps the two apart.
            Err(e @ redb::DatabaseError::DatabaseAlreadyOpen) => return Err(cannot_open(&fresh, e)),
            // What an earlier start left unfinished: nobody was told of anything in it.
            Err(_) => {
                match std::fs::remove_file(&fresh) {
                    Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(e)),
                    _ => {}
                }
                builder().create(&fresh).map_err(|e| cannot_open(&fresh, e))?
            }
            Ok(db) => db,
        };
        // Under the lock: somebody else may have been faster.
        if path.try_exists().map_err(failed)? {
            drop(db);
            return match std::fs::remove_file(&fresh) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed(e)),
                _ => Ok(()),
            };
        }
        make_tables(&db).map_err(|e| told(&fresh, e))?;
        std::fs::rename(&fresh, path).map_err(failed)?;
        // The directory itself may be new. Not every filesystem can be asked for this.
        for dir in [Some(dir), dir.parent()].into_iter().flatten() {
            let _ = std::fs::File::open(dir).and_then(|dir| dir.sync_all());
        }
        Ok(())
    }

    /// The store on any medium, for example one that fails on purpose. `medium` makes it at each opening; `name` stands
    /// for its path in messages.
    ///
    /// # Errors
    /// As [`FileStore::open`].
    pub fn over<M: redb::StorageBackend>(
        medium: impl Fn() -> M + Send + Sync + 'static,
        name: &str,
    ) -> io::Result<Self> {
        Self::build(PathBuf::from(name), Box::new(move || builder().create_with_backend(medium())))
    }

    fn build(path: PathBuf, opener: Opener) -> io::Result<Self> {
        let db = opener().map_err(|e| cannot_open(&path, e))?;
        let store = Self { db: Mutex::new(Some(db)), opener, path };
        store.with(make_tables)?;
        Ok(store)
    }

    /// Runs `f` on the database, opened anew if it failed before.
    fn with<T>(&self, f: impl FnOnce(&Database) -> Result<T, redb::Error>) -> io::Result<T> {
        let mut slot = self.db.lock();
        let db = match slot.take() {
            Some(db) => db,
            None => (self.opener)().map_err(|e| cannot_open(&self.path, e))?,
        };
        match f(&db) {
            Ok(out) => {
                *slot = Some(db);
                Ok(out)
            }
            // The database is dropped here.
            Err(e) => Err(told(&self.path, e)),
        }
    }

    /// One transaction, durable when this returns.
    fn write<T>(&self, f: impl FnOnce(&redb::WriteTransaction) -> Result<T, redb::Error>) -> io::Result<T> {
        self.with(|db| {
            let tx = db.begin_write()?;
            let out = f(&tx)?;
            tx.commit()?;
            Ok(out)
        })
    }
}

/// What every file has, durable when this returns.
fn make_tables(db: &Database) -> Result<(), redb::Error> {
    let tx = db.begin_write()?;
    tx.open_table(CLIENTS)?;
    tx.open_table(META)?;
    Ok(tx.commit()?)
}

/// A failure with the file's name.
fn told(path: &Path, e: redb::Error) -> io::Error {
    match e {
        redb::Error::Io(e) => io::Error::new(e.kind(), format!("{}: {e}", path.display())),
        e => io::Error::other(format!("{}: {e}", path.display())),
    }
}

fn builder() -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE);
    builder
}

/// Says which file it is and what can be done.
fn cannot_open(path: &Path, e: redb::DatabaseError) -> io::Error {
    let at = path.display();
    match e {
        redb::DatabaseError::DatabaseAlreadyOpen => io::Error::new(
            io::ErrorKind::ResourceBusy,
            format!("{at} is in use by another server; give each its own state directory"),
        ),
        redb::DatabaseError::Storage(redb::StorageError::Io(e)) if e.kind() != io::ErrorKind::InvalidData => {
            io::Error::new(e.kind(), format!("{at}: {e}"))
        }
        e => io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "{at} is damaged, or no state of a server: {e}; restore it from a backup, or move it away and start \
                 again: then clients cannot reclaim what they held, and must mount anew, for filehandles change"
            ),
        ),
    }
}

impl StableStore for FileStore {
    fn clients(&self) -> io::Result<Vec<(Bytes, Bytes)>> {
        self.with(|db| {
            let table = db.begin_read()?.open_table(CLIENTS)?;
            let mut all = Vec::new();
            for entry in table.iter()? {
                let (owner, value) = entry?;
                all.push((Bytes::copy_from_slice(owner.value()), Bytes::copy_from_slice(value.value())));
            }
            Ok(all)
        })
    }

    fn put(&self, records: &[(Bytes, Bytes)]) -> io::Result<()> {
        self.write(|tx| {
            let mut table = tx.open_table(CLIENTS)?;
            for (owner, value) in records {
                table.insert(&owner[..], &value[..])?;
            }
            Ok(())
        })
    }

    fn forget(&self, owners: &[Bytes]) -> io::Result<()> {
        self.write(|tx| {
            let mut table = tx.open_table(CLIENTS)?;
            for owner in owners {
                table.remove(&owner[..])?;
            }
            Ok(())
        })
    }

    fn value(&self, name: &str, make: &mut dyn FnMut() -> io::Result<Vec<u8>>) -> io::Result<Bytes> {
        let there = self.with(|db| {
            let table = db.begin_read()?.open_table(META)?;
            Ok(table.get(name)?.map(|v| Bytes::copy_from_slice(v.value())))
        })?;
        if let Some(value) = there {
            return Ok(value);
        }
        let value = make()?;
        self.write(|tx| {
            tx.open_table(META)?.insert(name, &value[..])?;
            Ok(())
        })?;
        Ok(value.into())
    }

    fn count_start(&self) -> io::Result<u32> {
        self.write(|tx| {
            let mut table = tx.open_table(META)?;
            let last = table.get("starts")?.map(|v| v.value().try_into().map_or(0, u32::from_be_bytes));
            let this = last.unwrap_or(0).wrapping_add(1);
            table.insert("starts", &this.to_be_bytes()[..])?;
            Ok(this)
        })
    }
}

/// A store that forgets everything with the process: for tests, and for servers that nobody reclaims from.
#[derive(Debug, Default)]
pub struct MemoryStore {
    inner: Mutex<MemoryTables>,
}

#[derive(Debug, Default)]
struct MemoryTables {
    clients: std::collections::BTreeMap<Bytes, Bytes>,
    meta: std::collections::BTreeMap<String, Bytes>,
    starts: u32,
}

impl StableStore for MemoryStore {
    fn clients(&self) -> io::Result<Vec<(Bytes, Bytes)>> {
        Ok(self.inner.lock().clients.iter().map(|(k, v)| (k.clone(), v.clone())).collect())
    }

    fn put(&self, records: &[(Bytes, Bytes)]) -> io::Result<()> {
        self.inner.lock().clients.extend(records.iter().cloned());
        Ok(())
    }

    fn forget(&self, owners: &[Bytes]) -> io::Result<()> {
        self.inner.lock().clients.retain(|k, _| !owners.contains(k));
        Ok(())
    }

    fn value(&self, name: &str, make: &mut dyn FnMut() -> io::Result<Vec<u8>>) -> io::Result<Bytes> {
        if let Some(v) = self.inner.lock().meta.get(name) {
            return Ok(v.clone());
        }
        let value = Bytes::from(make()?);
        self.inner.lock().meta.insert(name.to_owned(), value.clone());
        Ok(value)
    }

    fn count_start(&self) -> io::Result<u32> {
        let mut inner = self.inner.lock();
        inner.starts = inner.starts.wrapping_add(1);
        Ok(inner.starts)
    }

    fn may_block(&self) -> bool {
        false
    }
}

/// The identity kept in `store`, made at the first start: server owner, scope and the key of filehandles belong to the
/// state directory, the instance to this start.
///
/// # Errors
/// The store failed, or the system has no randomness.
pub fn identity(store: &Arc<dyn StableStore>) -> io::Result<Identity> {
    let random = |n: usize| -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; n];
        getrandom::fill(&mut bytes).map_err(|e| io::Error::other(e.to_string()))?;
        Ok(bytes)
    };
    let major = store.value("server-owner", &mut || {
        Ok(random(16)?.iter().map(|b| format!("{b:02x}")).collect::<String>().into_bytes())
    })?;
    let key = store.value("handle-key", &mut || random(16))?;
    let handle_key: [u8; 16] = key.as_ref().try_into().map_err(|_| {
        io::Error::new(io::ErrorKind::InvalidData, "the key of filehandles in the state directory is damaged")
    })?;
    let instance = store.count_start()?;
    let secret = random(16)?.try_into().unwrap_or_default();
    Ok(Identity { major_id: major.clone(), scope: major, handle_key, instance, secret })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(store: &dyn StableStore) {
        let b = |s: &'static str| Bytes::from_static(s.as_bytes());
        assert!(store.clients().unwrap().is_empty());
        store.put(&[(b("a"), b("1")), (b("b"), b("2"))]).unwrap();
        store.put(&[(b("a"), b("3"))]).unwrap();
        assert_eq!(store.clients().unwrap(), vec![(b("a"), b("3")), (b("b"), b("2"))]);
        store.forget(&[b("a"), b("never there")]).unwrap();
        assert_eq!(store.clients().unwrap(), vec![(b("b"), b("2"))]);
        assert_eq!(store.count_start().unwrap(), 1);
        let made = store.value("x", &mut || Ok(vec![1, 2])).unwrap();
        assert_eq!(store.value("x", &mut || panic!("it is there")).unwrap(), made);
    }

    #[test]
    fn memory() {
        check(&MemoryStore::default());
    }

    #[test]
    fn file_outlives_the_process_and_has_one_user() {
        let dir = tempfile::tempdir().unwrap();
        let store = FileStore::open(dir.path()).unwrap();
        check(&store);
        let text = FileStore::open(dir.path()).err().unwrap().to_string();
        assert!(text.contains("in use by another server"), "{text}");
        drop(store);
        let store = FileStore::open(dir.path()).unwrap();
        assert_eq!(store.clients().unwrap().len(), 1);
        let store: Arc<dyn StableStore> = Arc::new(store);
        let (one, two) = (identity(&store).unwrap(), identity(&store).unwrap());
        assert_eq!((one.handle_key, &one.major_id), (two.handle_key, &two.major_id));
        assert_eq!((one.instance, two.instance), (2, 3));
    }

    /// A medium in memory that can be full.
    #[derive(Debug, Default)]
    struct Small {
        data: Mutex<Vec<u8>>,
        full: std::sync::atomic::AtomicBool,
    }

    #[derive(Debug)]
    struct Of(Arc<Small>);

    impl Of {
        fn room(&self) -> io::Result<()> {
            match self.0.full.load(std::sync::atomic::Ordering::SeqCst) {
                true => Err(io::ErrorKind::StorageFull.into()),
                false => Ok(()),
            }
        }
    }

    impl redb::StorageBackend for Of {
        fn len(&self) -> io::Result<u64> {
            Ok(self.0.data.lock().len() as u64)
        }

        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            out.copy_from_slice(&self.0.data.lock()[offset as usize..][..out.len()]);
            Ok(())
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            self.room()?;
            self.0.data.lock().resize(len as usize, 0);
            Ok(())
        }

        fn sync_data(&self) -> io::Result<()> {
            self.room()
        }

        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.room()?;
            self.0.data.lock()[offset as usize..][..data.len()].copy_from_slice(data);
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_is_told_and_got_over() {
        let small = Arc::new(Small::default());
        let medium = small.clone();
        let store = FileStore::over(move || Of(medium.clone()), "/state/state.redb").unwrap();
        let b = |s: &'static str| Bytes::from_static(s.as_bytes());
        store.put(&[(b("old"), b("1"))]).unwrap();
        small.full.store(true, std::sync::atomic::Ordering::SeqCst);
        for _ in 0..3 {
            let e = store.put(&[(b("new"), b("1"))]).unwrap_err();
            assert!(e.kind() == io::ErrorKind::StorageFull && e.to_string().contains("/state/state.redb"), "{e:?}");
            assert!(store.forget(&[b("old")]).is_err());
        }
        small.full.store(false, std::sync::atomic::Ordering::SeqCst);
        store.put(&[(b("newer"), b("1"))]).unwrap();
        let owners: Vec<_> = store.clients().unwrap().into_iter().map(|c| c.0).collect();
        // Whether "new" got there is open, for nobody was told so.
        assert!(owners.contains(&b("old")) && owners.contains(&b("newer")), "{owners:?}");
    }

    #[test]
    fn a_damaged_file_is_named_with_the_remedy() {
        type Damage = fn(&mut Vec<u8>);
        let damage: [(&str, Damage); 4] = [
            ("text instead", |v| *v = b"no database at all".to_vec()),
            ("cut short", |v| v.truncate(v.len() / 3)),
            ("head overwritten", |v| v[..4096].fill(0x5a)),
            ("all zero", |v| v.fill(0)),
        ];
        for (what, damage) in damage {
            let dir = tempfile::tempdir().unwrap();
            let store = FileStore::open(dir.path()).unwrap();
            store.put(&[(Bytes::from_static(b"a"), Bytes::from_static(b"1"))]).unwrap();
            drop(store);
            let file = dir.path().join("state.redb");
            let mut bytes = std::fs::read(&file).unwrap();
            damage(&mut bytes);
            std::fs::write(&file, bytes).unwrap();
            let e = FileStore::open(dir.path()).err().unwrap_or_else(|| panic!("{what}: opened"));
            let text = e.to_string();
            assert!(text.contains("state.redb") && text.contains("move it away"), "{what}: {text}");
        }
    }

    /// What a first start that lost power left is no obstacle, and nothing stays beside the file.
    #[test]
    fn a_first_start_that_was_cut_off_is_begun_anew() {
        let whole = tempfile::tempdir().unwrap();
        drop(FileStore::open(whole.path()).unwrap());
        let bytes = std::fs::read(whole.path().join("state.redb")).unwrap();
        for left in [&b""[..], b"rubbish", &bytes[..4096], &bytes[..bytes.len() / 3], &bytes] {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("state.redb.new"), left).unwrap();
            let store = FileStore::open(dir.path()).unwrap_or_else(|e| panic!("{} bytes: {e}", left.len()));
            store.put(&[(Bytes::from_static(b"a"), Bytes::from_static(b"1"))]).unwrap();
            drop(store);
            let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
            assert_eq!(names, ["state.redb"], "{} bytes", left.len());
            assert_eq!(FileStore::open(dir.path()).unwrap().clients().unwrap().len(), 1);
        }
        // Two at once: one of them may be told to go elsewhere, and whoever has it has all of it.
        for _ in 0..20 {
            let dir = tempfile::tempdir().unwrap();
            std::thread::scope(|scope| {
                let open = || FileStore::open(dir.path()).map(|store| store.clients().unwrap().len());
                let both = [scope.spawn(open), scope.spawn(open)].map(|thread| thread.join().unwrap());
                for failed in both.into_iter().filter_map(Result::err) {
                    assert_eq!(failed.kind(), io::ErrorKind::ResourceBusy, "{failed}");
                }
            });
        }
    }

    #[test]
    fn a_place_that_cannot_be_used_is_named() {
        let text = FileStore::open(Path::new("/proc/nowhere")).err().unwrap().to_string();
        assert!(text.contains("/proc/nowhere"), "{text}");
    }
}
