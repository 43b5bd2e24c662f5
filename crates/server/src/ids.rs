//! Users and groups: numbers and names (RFC 8881 5.9), and the groups of a user.
//!
//! On the wire an owner is a number in decimal, or `name@domain`. Numbers are always understood; names when a domain is
//! configured, and then they are what clients are shown. Who has no name is shown by number: a string without `@` says
//! that there is no translation (5.9).
//!
//! Names come from a [`NameService`], which may ask a network and wait: it is asked on the blocking pool, so many at a
//! time, each answer waited for only so long, and answers are kept, those that say "unknown" or failed for a shorter
//! while (case B37: a look-up that failed must not lock anybody out for long).
//!
//! Owner: one `Ids` for the server. What fails: an unknown or unreachable name is a number on the way out and BADOWNER
//! on the way in; unknown groups leave the credential's own in force.

use arc_swap::ArcSwap;
use bytes::Bytes;
use dhow_proto::v4::Status;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::Hash;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Where names and groups come from. Calls may wait.
pub trait NameService: Send + Sync + 'static {
    /// Number of a user; `None`: nobody is called so.
    ///
    /// # Errors
    /// The answer cannot be had now.
    fn user_id(&self, name: &str) -> io::Result<Option<u32>>;

    /// Number of a group; `None`: no group is called so.
    ///
    /// # Errors
    /// The answer cannot be had now.
    fn group_id(&self, name: &str) -> io::Result<Option<u32>>;

    /// Name of a user; `None`: the number has none.
    ///
    /// # Errors
    /// The answer cannot be had now.
    fn user_name(&self, uid: u32) -> io::Result<Option<String>>;

    /// Name of a group; `None`: the number has none.
    ///
    /// # Errors
    /// The answer cannot be had now.
    fn group_name(&self, gid: u32) -> io::Result<Option<String>>;

    /// All groups of a user, in any order; `None`: the user is unknown.
    ///
    /// # Errors
    /// The answer cannot be had now.
    fn groups_of(&self, uid: u32) -> io::Result<Option<Vec<u32>>>;
}

/// How users and groups are named.
#[derive(Clone)]
pub struct IdConfig {
    /// What is behind the `@`, if owners are shown and taken as names.
    pub domain: Option<String>,
    /// The groups of AUTH_SYS users are looked up, whatever groups their credentials name.
    pub lookup_groups: bool,
    /// Where names and groups come from; without it neither works.
    pub service: Option<Arc<dyn NameService>>,
    /// Answers kept, of each kind.
    pub entries: usize,
    /// How long an answer is kept.
    pub keep: Duration,
    /// How long it is kept that there was none.
    pub keep_unknown: Duration,
    /// How long an answer is waited for.
    pub patience: Duration,
}

impl Default for IdConfig {
    fn default() -> Self {
        Self {
            domain: None,
            lookup_groups: false,
            service: None,
            entries: 16_384,
            keep: Duration::from_secs(600),
            keep_unknown: Duration::from_secs(10),
            patience: Duration::from_secs(5),
        }
    }
}

impl std::fmt::Debug for IdConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IdConfig")
            .field("domain", &self.domain)
            .field("lookup_groups", &self.lookup_groups)
            .field("entries", &self.entries)
            .field("keep", &self.keep)
            .finish_non_exhaustive()
    }
}

/// Whether a number or a name is a user's or a group's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// A user's.
    User,
    /// A group's.
    Group,
}

/// Answers that are kept: two generations, so that the number is bounded and those in use survive.
struct Kept<K, V> {
    young: HashMap<K, (Option<V>, Instant)>,
    old: HashMap<K, (Option<V>, Instant)>,
}

impl<K: Hash + Eq + Clone, V: Clone> Kept<K, V> {
    fn new() -> Mutex<Self> {
        Mutex::new(Self { young: HashMap::new(), old: HashMap::new() })
    }

    fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
    }

    fn get(&mut self, key: &K, config: &IdConfig, now: Instant) -> Option<Option<V>> {
        let fresh = |entry: &(Option<V>, Instant)| {
            let keep = if entry.0.is_some() { config.keep } else { config.keep_unknown };
            now.saturating_duration_since(entry.1) < keep
        };
        if let Some(entry) = self.young.get(key) {
            return fresh(entry).then(|| entry.0.clone());
        }
        let entry = self.old.remove(key).filter(fresh)?;
        let answer = entry.0.clone();
        self.insert(key.clone(), entry, config);
        Some(answer)
    }

    fn insert(&mut self, key: K, entry: (Option<V>, Instant), config: &IdConfig) {
        if self.young.len() >= (config.entries / 2).max(1) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, entry);
    }
}

/// Names, numbers and groups, with what was learned of them.
pub(crate) struct Ids {
    config: ArcSwap<IdConfig>,
    names: Mutex<Kept<(Kind, u32), Bytes>>,
    numbers: Mutex<Kept<(Kind, String), u32>>,
    groups: Mutex<Kept<u32, Arc<[u32]>>>,
    /// Questions that wait for an answer at once.
    asking: Arc<Semaphore>,
    /// Questions that found no answer in time, or none at all because the service failed.
    failures: AtomicU64,
}

impl Ids {
    pub(crate) fn new(config: IdConfig) -> Self {
        Self {
            config: ArcSwap::from_pointee(config),
            names: Kept::new(),
            numbers: Kept::new(),
            groups: Kept::new(),
            asking: Arc::new(Semaphore::new(8)),
            failures: AtomicU64::new(0),
        }
    }

    /// Other settings from now on; what was learned is forgotten, for it may be told differently now. The service stays.
    pub(crate) fn configure(&self, config: IdConfig) {
        let service = self.config.load().service.clone();
        self.config.store(Arc::new(IdConfig { service, ..config }));
        self.names.lock().clear();
        self.numbers.lock().clear();
        self.groups.lock().clear();
    }

    /// Questions that failed so far.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// An answer that is kept, or a new one. A failure counts as no answer.
    async fn answer<K, V>(
        &self,
        kept: &Mutex<Kept<K, V>>,
        key: K,
        ask: impl FnOnce(&dyn NameService) -> io::Result<Option<V>> + Send + 'static,
    ) -> Option<V>
    where
        K: Hash + Eq + Clone,
        V: Clone + Send + 'static,
    {
        let config = self.config.load_full();
        if let Some(answer) = kept.lock().get(&key, &config, Instant::now()) {
            return answer;
        }
        let service = config.service.clone()?;
        let asked = async {
            let permit = self.asking.clone().acquire_owned().await.map_err(io::Error::other)?;
            // Another may have asked the same meanwhile.
            if let Some(answer) = kept.lock().get(&key, &config, Instant::now()) {
                return Ok(answer);
            }
            let work = tokio::task::spawn_blocking(move || {
                let answer = ask(&*service);
                drop(permit);
                answer
            });
            work.await.map_err(io::Error::other)?
        };
        let answer = match tokio::time::timeout(config.patience, asked).await {
            Ok(Ok(answer)) => answer,
            failed => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                let why = failed.map_or_else(|_| "no answer in time".to_owned(), |r| format!("{:?}", r.err()));
                tracing::warn!(why, "cannot look a user or a group up");
                None
            }
        };
        kept.lock().insert(key, (answer.clone(), Instant::now()), &config);
        answer
    }

    /// How a user or a group is shown; `None`: by number.
    pub(crate) async fn name(&self, kind: Kind, id: u32) -> Option<Bytes> {
        let domain = self.config.load().domain.clone()?;
        self.answer(&self.names, (kind, id), move |service| {
            let name = match kind {
                Kind::User => service.user_name(id)?,
                Kind::Group => service.group_name(id)?,
            };
            // What would not come back as the same name is better shown by number.
            let name = name.filter(|n| !n.is_empty() && !n.contains('@') && number(n.as_bytes()).is_none());
            Ok(name.map(|n| Bytes::from(format!("{n}@{domain}"))))
        })
        .await
    }

    /// The number that an owner stands for.
    ///
    /// # Errors
    /// BADOWNER: no number, and no name of ours (RFC 8881 5.9).
    pub(crate) async fn number(&self, kind: Kind, text: &[u8]) -> Result<u32, Status> {
        if let Some(number) = number(text) {
            return Ok(number);
        }
        let config = self.config.load_full();
        let ours = config.domain.as_deref().ok_or(Status::BADOWNER)?;
        let text = std::str::from_utf8(text).map_err(|_| Status::BADOWNER)?;
        let (name, domain) = text.rsplit_once('@').ok_or(Status::BADOWNER)?;
        if name.is_empty() || name.len() > 255 || name.contains('\0') || !domain.eq_ignore_ascii_case(ours) {
            return Err(Status::BADOWNER);
        }
        let asked = name.to_owned();
        let answer = self.answer(&self.numbers, (kind, name.to_owned()), move |service| match kind {
            Kind::User => service.user_id(&asked),
            Kind::Group => service.group_id(&asked),
        });
        answer.await.filter(|id| *id != u32::MAX).ok_or(Status::BADOWNER)
    }

    /// Whether the groups of users are looked up.
    pub(crate) fn looks_groups_up(&self) -> bool {
        self.config.load().lookup_groups
    }

    /// Whether owners are shown by name.
    pub(crate) fn shows_names(&self) -> bool {
        self.config.load().domain.is_some()
    }

    /// The groups of a user where they are looked up; `None`: those of the credential stand.
    pub(crate) async fn groups(&self, uid: u32) -> Option<Arc<[u32]>> {
        if !self.config.load().lookup_groups {
            return None;
        }
        self.answer(&self.groups, uid, move |service| Ok(service.groups_of(uid)?.map(Arc::from))).await
    }
}

/// A number in decimal without leading zeros (RFC 8881 5.9).
fn number(text: &[u8]) -> Option<u32> {
    let digits = matches!(text, [b'0'] | [b'1'..=b'9', ..]) && text.len() <= 10 && text.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(text).ok().filter(|_| digits).and_then(|t| t.parse().ok());
    // The last number means "no id" to the kernel (chown(2)).
    number.filter(|n| *n != u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[derive(Default)]
    struct Table {
        asked: AtomicUsize,
        broken: std::sync::atomic::AtomicBool,
    }

    impl Table {
        fn ask<T>(&self, answer: Option<T>) -> io::Result<Option<T>> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            if self.broken.load(Ordering::Relaxed) { Err(io::Error::other("broken")) } else { Ok(answer) }
        }
    }

    impl NameService for Table {
        fn user_id(&self, name: &str) -> io::Result<Option<u32>> {
            self.ask((name == "ada").then_some(1000))
        }

        fn group_id(&self, name: &str) -> io::Result<Option<u32>> {
            self.ask((name == "staff").then_some(50))
        }

        fn user_name(&self, uid: u32) -> io::Result<Option<String>> {
            self.ask(match uid {
                1000 => Some("ada".into()),
                7 => Some("12".into()),
                8 => Some("a@b".into()),
                _ => None,
            })
        }

        fn group_name(&self, gid: u32) -> io::Result<Option<String>> {
            self.ask((gid == 50).then(|| "staff".into()))
        }

        fn groups_of(&self, uid: u32) -> io::Result<Option<Vec<u32>>> {
            self.ask((uid == 1000).then(|| (1..=40).collect()))
        }
    }

    fn ids(change: impl FnOnce(&mut IdConfig)) -> (Ids, Arc<Table>) {
        let table = Arc::new(Table::default());
        let mut config = IdConfig {
            domain: Some("example.net".into()),
            lookup_groups: true,
            service: Some(table.clone()),
            ..IdConfig::default()
        };
        change(&mut config);
        (Ids::new(config), table)
    }

    #[test]
    fn numbers() {
        for (text, id) in [("0", 0), ("65534", 65534), ("4294967294", u32::MAX - 1)] {
            assert_eq!(number(text.as_bytes()), Some(id));
        }
        for bad in ["", "root", "00", "01", "1@x", "-1", "+1", " 1", "4294967295", "4294967296", "99999999999"] {
            assert_eq!(number(bad.as_bytes()), None, "{bad}");
        }
    }

    #[tokio::test]
    async fn names_both_ways_rfc8881_5_9() {
        let (ids, table) = ids(|_| {});
        assert_eq!(ids.name(Kind::User, 1000).await.as_deref(), Some(&b"ada@example.net"[..]));
        assert_eq!(ids.name(Kind::Group, 50).await.as_deref(), Some(&b"staff@example.net"[..]));
        for odd in [1, 7, 8] {
            assert_eq!(ids.name(Kind::User, odd).await, None, "no name, or one that is none: by number");
        }
        assert_eq!(ids.number(Kind::User, b"ada@EXAMPLE.net").await, Ok(1000));
        assert_eq!(ids.number(Kind::Group, b"staff@example.net").await, Ok(50));
        assert_eq!(ids.number(Kind::User, b"1234").await, Ok(1234), "numbers always");
        for bad in ["bob@example.net", "ada", "ada@other", "@example.net", "nobody", "", "ada@x@example.net"] {
            assert_eq!(ids.number(Kind::User, bad.as_bytes()).await, Err(Status::BADOWNER), "{bad}");
        }
        assert_eq!(ids.number(Kind::User, b"\xff@example.net").await, Err(Status::BADOWNER));
        // Kept: asking again costs nothing.
        let asked = table.asked.load(Ordering::Relaxed);
        assert_eq!(ids.number(Kind::User, b"ada@example.net").await, Ok(1000));
        assert_eq!(ids.name(Kind::User, 1).await, None);
        assert_eq!(table.asked.load(Ordering::Relaxed), asked);
    }

    #[tokio::test]
    async fn without_a_domain_there_are_numbers_only() {
        let (ids, table) = ids(|c| c.domain = None);
        assert_eq!(ids.name(Kind::User, 1000).await, None);
        assert_eq!(ids.number(Kind::User, b"ada@example.net").await, Err(Status::BADOWNER));
        assert_eq!(table.asked.load(Ordering::Relaxed), 0);
    }

    /// Case B37: unknown users and failures leave the credential's groups in force, and are asked about again soon.
    #[tokio::test]
    async fn groups_case_b37() {
        let (ids, table) = ids(|c| c.keep_unknown = Duration::ZERO);
        assert_eq!(ids.groups(1000).await.map(|g| g.len()), Some(40));
        assert_eq!(ids.groups(1).await, None);
        table.broken.store(true, Ordering::Relaxed);
        assert_eq!(ids.groups(2).await, None);
        assert_eq!(ids.groups(1000).await.map(|g| g.len()), Some(40), "known before it broke");
        assert_eq!(ids.failures(), 1);
        table.broken.store(false, Ordering::Relaxed);
        let asked = table.asked.load(Ordering::Relaxed);
        assert_eq!(ids.groups(2).await, None);
        assert_eq!(table.asked.load(Ordering::Relaxed), asked + 1);
    }

    /// Other settings: what was learned under the old ones is not told any more; who is asked stays.
    #[tokio::test]
    async fn settings_are_replaced() {
        let (ids, table) = ids(|_| {});
        assert_eq!(ids.name(Kind::User, 1000).await.as_deref(), Some(&b"ada@example.net"[..]));
        ids.configure(IdConfig { domain: Some("example.org".into()), ..IdConfig::default() });
        assert_eq!(ids.name(Kind::User, 1000).await.as_deref(), Some(&b"ada@example.org"[..]));
        assert_eq!(ids.number(Kind::User, b"ada@example.net").await, Err(Status::BADOWNER));
        assert_eq!((ids.looks_groups_up(), table.asked.load(Ordering::Relaxed)), (false, 2));
    }

    #[tokio::test]
    async fn what_is_kept_is_bounded() {
        let (ids, _) = ids(|c| c.entries = 10);
        for id in 0..1000 {
            ids.name(Kind::User, id).await;
        }
        let kept = ids.names.lock();
        assert!(kept.young.len() + kept.old.len() <= 10);
    }
}
