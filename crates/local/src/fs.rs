//! One mounted filesystem: how its objects are named and opened, and what it is good at.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use dhow_sys::open::{self, Stat};
use dhow_sys::{Errno, handle as kernel};
use dhow_vfs::{Error, FsId, Handle};
use rustix::fs::OFlags;

use crate::error::sys;
use crate::handle::{self, Parsed};
use crate::options::{HandleMode, Options};
use crate::sync::{Journal, Syncer, Verifier};

/// A filesystem that the tree lies on. Identified by its device number while the process runs.
pub(crate) struct Filesystem {
    /// Its number in handles.
    pub number: u32,
    /// What clients see.
    pub fsid: FsId,
    pub dev: u64,
    pub magic: u32,
    /// A readable directory of it: what handles are opened on, and what is synced as a last resort.
    pub root: OwnedFd,
    /// Number of the directory that `root` is.
    pub root_ino: u64,
    /// Number of the directory it is mounted on, if it is not the export's own filesystem.
    pub mounted_on: Option<u64>,
    /// Kernel handles exist and are used.
    pub named: bool,
    /// Kernel handles can be opened.
    pub openable: bool,
    /// Calls that work on memory may be made on the runtime's threads.
    pub fast: bool,
    /// Nothing survives a crash, so nothing need be synced.
    pub volatile: bool,
    /// Syncing a directory makes durable what was created in it.
    pub dir_sync_covers_new: bool,
    pub journal: Journal,
    /// Every change gives a new ctime, provided that somebody looked in between.
    pub fine_ctime: bool,
    /// So does every change of permissions.
    pub fine_rights: bool,
    /// Unit of allocation, bytes.
    pub block: u32,
    pub read_only: bool,
    /// Sharing blocks was refused once with an answer that will not change.
    pub no_clone: AtomicBool,
    /// There are no files without a name, or they can be given none (what holds of one directory is in its `Inode`).
    pub no_nameless: AtomicBool,
    /// A write cannot be told not to wait.
    pub no_nowait: AtomicBool,
    pub syncer: Arc<Syncer>,
}

impl Filesystem {
    /// Looks at the filesystem of `dir`, a directory that is held by `O_PATH` or open, as the process itself.
    pub(crate) fn probe(
        options: &Options,
        dir: impl AsFd,
        stat: &Stat,
        mounted_on: Option<u64>,
        verifier: &Arc<Verifier>,
    ) -> Result<Filesystem, Errno> {
        let dir = dir.as_fd();
        let root = open::reopen(dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
        Filesystem::with_root(options, dir, root, stat, mounted_on, verifier)
    }

    /// As [`Filesystem::probe`] for any object, with an open directory of the same filesystem. The object may lie in
    /// another subvolume than the directory.
    pub(crate) fn with_root(
        options: &Options,
        object: impl AsFd,
        root: OwnedFd,
        stat: &Stat,
        mounted_on: Option<u64>,
        verifier: &Arc<Verifier>,
    ) -> Result<Filesystem, Errno> {
        let fs = open::statfs(object)?;
        let mut key = fs.magic.to_be_bytes().to_vec();
        if fs.fsid != 0 {
            key.extend_from_slice(&fs.fsid.to_be_bytes());
        } else {
            // It does not say who it is; the device number is all there is, and it may change at boot.
            key.push(b'd');
            key.extend_from_slice(&stat.dev.to_be_bytes());
        }
        let number = options.numbers.number(&key).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        let support = match options.handles {
            HandleMode::Auto => kernel::probe(&root),
            HandleMode::Walk => match kernel::probe(&root) {
                kernel::Support::None => kernel::Support::None,
                _ => kernel::Support::NameOnly,
            },
            HandleMode::Numbers => kernel::Support::None,
        };
        let known = [open::EXT4_MAGIC, open::XFS_MAGIC, open::BTRFS_MAGIC, open::TMPFS_MAGIC].contains(&fs.magic);
        let fsid = match (options.fsid, mounted_on) {
            (Some(major), None) => FsId { major, minor: 0 },
            (Some(major), Some(_)) => FsId { major, minor: u64::from(number) },
            (None, _) => FsId { major: u64::from(number), minor: 0 },
        };
        let journal = match fs.magic {
            open::XFS_MAGIC => Journal::Ordered,
            open::EXT4_MAGIC if ext4_has_journal(stat.dev) => Journal::Ordered,
            _ => Journal::Other,
        };
        // ext4 (and ext2, which has its number) without a journal writes out what it is asked for, and no more.
        let bare = fs.magic == open::EXT4_MAGIC && journal == Journal::Other;
        Ok(Filesystem {
            number,
            fsid,
            dev: stat.dev,
            magic: fs.magic,
            root,
            root_ino: stat.ino,
            mounted_on,
            named: support != kernel::Support::None,
            openable: support == kernel::Support::Full,
            fast: known,
            volatile: fs.magic == open::TMPFS_MAGIC,
            dir_sync_covers_new: known && !bare,
            journal,
            fine_ctime: known && fs.magic != open::TMPFS_MAGIC && kernel_has_fine_ctime(),
            fine_rights: known && kernel_has_fine_ctime(),
            block: u32::try_from(fs.frsize).unwrap_or(4096),
            read_only: fs.read_only,
            no_clone: AtomicBool::new(false),
            no_nameless: AtomicBool::new(false),
            no_nowait: AtomicBool::new(false),
            syncer: Arc::new(Syncer::new(verifier.clone(), journal)),
        })
    }

    /// The handle of the object behind `fd`.
    pub(crate) fn handle_of(&self, fd: impl AsFd, stat: &Stat) -> Result<Handle, Error> {
        if self.named {
            match kernel::of(fd) {
                Ok((inner, _)) if inner.bytes().len() <= handle::MAX_KERNEL_BYTES => {
                    return handle::kernel(self.number, &inner).ok_or_else(|| sys(Errno::OVERFLOW));
                }
                Ok(_) | Err(Errno::OVERFLOW | Errno::OPNOTSUPP) => {}
                Err(e) => return Err(sys(e)),
            }
        }
        handle::number(self.number, stat).ok_or_else(|| sys(Errno::OVERFLOW))
    }

    /// Whether an object with this handle can only be found again by its place in the tree.
    pub(crate) fn needs_hint(&self, handle: &Handle) -> bool {
        !self.openable || matches!(handle::parse(handle), Some(Parsed::Number { .. }))
    }
}

/// Whether the ext4 on this device keeps a journal: it can be made without one, and then a sync of one object says nothing
/// of others. Not known counts as no.
fn ext4_has_journal(dev: u64) -> bool {
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    let Ok(device) = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}")) else { return false };
    let Some(name) = device.file_name() else { return false };
    // The process that writes the journal, by its number.
    let task = std::fs::read_to_string(std::path::Path::new("/sys/fs/ext4").join(name).join("journal_task"));
    task.is_ok_and(|task| task.trim().parse::<u32>().is_ok())
}

/// Linux 6.13 gave the common filesystems a ctime that is never the same for two changes between which somebody
/// looked ("multigrain" timestamps). Before, it ticks a few hundred times a second. Directories of tmpfs still do (seen
/// on 6.18: an unlink gives the directory the removed file's time, at which nobody had looked).
fn kernel_has_fine_ctime() -> bool {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    version >= (6, 13)
}
