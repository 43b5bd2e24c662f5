//! Watches for local programs that want to write: read leases of the kernel (`F_SETLEASE`, fcntl(2)).
//!
//! A watch is a descriptor of its own, open for reading, with a read lease on it. The kernel gives one only while nobody
//! has the file open for writing, this process included. Whoever then opens it for writing or truncates it waits until
//! the lease is given up, at most `/proc/sys/fs/lease-break-time` seconds, and the kernel sends SIGIO. One task for each
//! tree waits for that signal, asks which leases are being broken (`F_GETLEASE` says what the lease is to become), and
//! gives their notices. It looks once a second as well, so that nothing depends on a signal that merged with another.
//!
//! Lock order: the table's mutex, never held across a system call other than `fcntl`; notices are given without it.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use dhow_sys::Errno;
use dhow_sys::lock::{self, Lease as Kind};
use dhow_sys::open;
use dhow_vfs::{ErrorKind, Result, Watch, Watching, WriterNotice};
use parking_lot::Mutex;
use rustix::fs::OFlags;
use tokio::signal::unix::{SignalKind, signal};

use crate::error::{as_kind, sys};
use crate::inner::Inner;
use crate::inode::Inode;

/// How often leases are looked at without a signal.
const LOOK: Duration = Duration::from_secs(1);

/// All leases of one tree.
#[derive(Default)]
pub(crate) struct Leases {
    held: Mutex<HashMap<u64, Weak<Lease>>>,
    next: AtomicU64,
    watching: OnceLock<bool>,
}

/// One lease.
struct Lease {
    id: u64,
    fd: Mutex<Option<OwnedFd>>,
    broken: AtomicBool,
    notice: WriterNotice,
    home: Weak<Leases>,
}

/// What the server holds: its drop ends the lease, for the table knows it weakly only.
struct Guard(Arc<Lease>);

impl Lease {
    /// Gives the notice if somebody wants to write.
    fn look(&self) {
        let breaking = self.fd.lock().as_ref().is_some_and(|fd| lock::lease(fd) != Ok(Kind::Read));
        if breaking && !self.broken.swap(true, Ordering::SeqCst) {
            (self.notice)();
        }
    }
}

impl Watching for Guard {
    fn end(&self) {
        if let Some(home) = self.0.home.upgrade() {
            home.held.lock().remove(&self.0.id);
        }
        if let Some(fd) = self.0.fd.lock().take() {
            // Closing would do as well, but later: a closed file ends when its task leaves the kernel.
            let _ = lock::set_lease(&fd, Kind::None);
        }
    }

    fn is_broken(&self) -> bool {
        self.0.broken.load(Ordering::SeqCst)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.end();
    }
}

impl Leases {
    /// Starts the task, before the first lease: the signal's default action is to end the process.
    fn watch(self: &Arc<Self>) -> bool {
        *self.watching.get_or_init(|| {
            let mut io = match signal(SignalKind::io()) {
                Ok(io) => io,
                Err(error) => {
                    tracing::warn!(%error, "no signals of leases: local writers cannot be watched for");
                    return false;
                }
            };
            let all = Arc::downgrade(self);
            tokio::spawn(async move {
                let mut every = tokio::time::interval(LOOK);
                every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
                loop {
                    tokio::select! {
                        _ = io.recv() => {}
                        _ = every.tick() => {}
                    }
                    let Some(all) = all.upgrade() else { return };
                    let held: Vec<_> = all.held.lock().values().filter_map(Weak::upgrade).collect();
                    held.iter().for_each(|lease| lease.look());
                }
            });
            true
        })
    }
}

impl Inner {
    /// Takes a lease on a file.
    ///
    /// # Errors
    /// Locked: somebody has it open for writing. NotSupported: the filesystem has no leases, or this process may not
    /// take one on a file of another user.
    pub(crate) fn watch_writers(&self, inode: &Arc<Inode>, notice: WriterNotice) -> Result<Watch> {
        inode.must_be_file()?;
        if !self.leases.watch() {
            return Err(ErrorKind::NotSupported.into());
        }
        let opened = self.with_descriptors(|| open::reopen(&inode.path, OFlags::RDONLY | OFlags::NONBLOCK));
        let fd = opened.map_err(sys)?;
        match lock::set_lease(&fd, Kind::Read) {
            Ok(()) => {}
            Err(e @ Errno::AGAIN) => return Err(as_kind(ErrorKind::Locked, e)),
            Err(e) => return Err(as_kind(ErrorKind::NotSupported, e)),
        }
        let id = self.leases.next.fetch_add(1, Ordering::Relaxed);
        let (fd, broken, home) = (Mutex::new(Some(fd)), AtomicBool::new(false), Arc::downgrade(&self.leases));
        let lease = Arc::new(Lease { id, fd, broken, notice, home });
        self.leases.held.lock().insert(id, Arc::downgrade(&lease));
        Ok(Watch::new(Guard(lease)))
    }
}
