//! Kernel filehandles: `name_to_handle_at(2)` and `open_by_handle_at(2)`.
//!
//! A kernel handle names an object of one mounted filesystem for as long as the object exists, whatever happens
//! to its name, and over a reboot. Opening one needs `CAP_DAC_READ_SEARCH` in the effective set, which the kernel
//! takes away from a thread whose fsuid is not 0: open by handle *before* taking a [`crate::cred::CredGuard`].

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::OFlags;

use crate::{Errno, Result, check, retry};

/// The longest handle that the kernel makes, in bytes (`MAX_HANDLE_SZ`).
pub const MAX_HANDLE: usize = 128;

/// `AT_HANDLE_CONNECTABLE` of Linux 6.13: the handle of a file says its parent directory too.
const AT_HANDLE_CONNECTABLE: libc::c_int = 0x002;

/// A handle as the kernel gives it: a type and up to [`MAX_HANDLE`] opaque bytes.
#[derive(Clone, Copy)]
pub struct KernelHandle {
    kind: i32,
    len: u8,
    bytes: [u8; MAX_HANDLE],
}

impl KernelHandle {
    /// A handle from its parts; `None` if there are more than [`MAX_HANDLE`] bytes.
    pub fn new(kind: i32, bytes: &[u8]) -> Option<KernelHandle> {
        let mut handle = KernelHandle { kind, len: u8::try_from(bytes.len()).ok()?, bytes: [0; MAX_HANDLE] };
        handle.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(handle)
    }

    /// The type of the handle, which belongs to the handle as much as its bytes do.
    pub fn kind(&self) -> i32 {
        self.kind
    }

    /// The opaque bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl PartialEq for KernelHandle {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind && self.bytes() == other.bytes()
    }
}

impl Eq for KernelHandle {}

impl std::hash::Hash for KernelHandle {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.kind.hash(state);
        self.bytes().hash(state);
    }
}

impl std::fmt::Debug for KernelHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KernelHandle({:#x}:", self.kind)?;
        for byte in self.bytes() {
            write!(f, "{byte:02x}")?;
        }
        f.write_str(")")
    }
}

/// `struct file_handle` with room for the longest handle.
#[repr(C)]
struct Raw {
    handle_bytes: libc::c_uint,
    handle_type: libc::c_int,
    f_handle: [u8; MAX_HANDLE],
}

fn name_to_handle(fd: i32, flags: libc::c_int) -> Result<(KernelHandle, i32)> {
    let mut raw = Raw { handle_bytes: MAX_HANDLE as libc::c_uint, handle_type: 0, f_handle: [0; MAX_HANDLE] };
    let mut mount_id: libc::c_int = 0;
    // SAFETY: `raw` has the layout of `struct file_handle` followed by the number of bytes that `handle_bytes`
    // states, the path is an empty C string, and both out pointers live through the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            fd,
            c"".as_ptr(),
            &raw mut raw,
            &raw mut mount_id,
            flags | libc::AT_EMPTY_PATH,
        )
    })?;
    let bytes = raw.f_handle.get(..raw.handle_bytes as usize).ok_or(Errno::OVERFLOW)?;
    Ok((KernelHandle::new(raw.handle_type, bytes).ok_or(Errno::OVERFLOW)?, mount_id))
}

/// The handle of the object behind `fd` (an `O_PATH` descriptor will do), and the id of its mount.
///
/// # Errors
/// `EOPNOTSUPP` if the filesystem has no handles.
pub fn of(fd: impl AsFd) -> Result<(KernelHandle, i32)> {
    name_to_handle(fd.as_fd().as_raw_fd(), 0)
}

/// Like [`of`], but the handle of a file also names the directory through which `fd` was opened.
///
/// # Errors
/// As [`of`]; `EINVAL` on kernels before Linux 6.13.
pub fn connectable(fd: impl AsFd) -> Result<KernelHandle> {
    Ok(name_to_handle(fd.as_fd().as_raw_fd(), AT_HANDLE_CONNECTABLE)?.0)
}

/// Opens the object that `handle` names on the filesystem that `mount` lies on.
///
/// `mount` is any descriptor on the mounted filesystem that is not `O_PATH`. `O_CLOEXEC` is added to `flags`.
///
/// # Errors
/// `ESTALE` if the object is gone or `handle` is no handle of this filesystem; `EPERM` without
/// `CAP_DAC_READ_SEARCH`.
pub fn open(mount: impl AsFd, handle: &KernelHandle, flags: OFlags) -> Result<OwnedFd> {
    let mut raw = Raw { handle_bytes: u32::from(handle.len), handle_type: handle.kind, f_handle: handle.bytes };
    let mount = mount.as_fd().as_raw_fd();
    let flags = (flags | OFlags::CLOEXEC).bits() as libc::c_int;
    // SAFETY: `raw` has the layout of `struct file_handle` and `handle_bytes` of at most MAX_HANDLE bytes.
    let fd = retry(|| check(unsafe { libc::syscall(libc::SYS_open_by_handle_at, mount, &raw mut raw, flags) }))?;
    // SAFETY: the kernel has just returned this descriptor, and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// What [`probe`] found for one filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// Handles can be made and opened.
    Full,
    /// Handles can be made, but this process may not open them.
    NameOnly,
    /// The filesystem has no handles.
    None,
}

/// Finds out by trying what this process can do with handles on the filesystem of `dir`.
///
/// `dir` must be open for reading, not `O_PATH`.
pub fn probe(dir: impl AsFd) -> Support {
    let Ok((handle, _)) = of(dir.as_fd()) else { return Support::None };
    match open(dir, &handle, OFlags::PATH) {
        Ok(_) => Support::Full,
        Err(_) => Support::NameOnly,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::testdir::TestDir;
    use crate::{io, open as opening};

    #[test]
    fn handle_survives_rename_and_dies_with_the_object() {
        for dir in TestDir::each() {
            let mount = dir.fd();
            if probe(&mount) != Support::Full {
                println!("skipped: handles cannot be opened under {:?}: {:?}", dir.path(), probe(&mount));
                continue;
            }
            fs::write(dir.join("a"), b"abc").unwrap();
            fs::create_dir(dir.join("d")).unwrap();
            let (handle, _) = of(dir.o_path("a")).unwrap();
            fs::rename(dir.join("a"), dir.join("d/b")).unwrap();
            let fd = open(&mount, &handle, OFlags::RDONLY).unwrap();
            let mut got = [0; 8];
            assert_eq!(io::pread(&fd, &mut got, 0).unwrap(), 3);
            assert_eq!(of(&fd).unwrap().0, handle);
            drop(fd);
            fs::remove_file(dir.join("d/b")).unwrap();
            assert_eq!(open(&mount, &handle, OFlags::PATH).unwrap_err(), Errno::STALE);
        }
    }

    #[test]
    fn every_type_of_object_can_be_held_by_o_path() {
        for dir in TestDir::each() {
            let mount = dir.fd();
            if probe(&mount) != Support::Full {
                println!("skipped: handles cannot be opened under {:?}", dir.path());
                continue;
            }
            symlink("nowhere", dir.join("l")).unwrap();
            fs::create_dir(dir.join("d")).unwrap();
            crate::node::mknod(&mount, b"p", crate::node::Special::Fifo, 0o600).unwrap();
            for name in ["l", "d", "p"] {
                let held = dir.o_path(name);
                let (handle, _) = of(&held).unwrap();
                let again = open(&mount, &handle, OFlags::PATH | OFlags::NOFOLLOW).unwrap();
                assert_eq!(opening::stat(&held).unwrap().ino, opening::stat(&again).unwrap().ino, "{name}");
                assert_eq!(opening::stat(&held).unwrap().mode, opening::stat(&again).unwrap().mode, "{name}");
            }
        }
    }

    #[test]
    fn rubbish_is_stale_not_a_crash() {
        let dir = TestDir::disk();
        let mount = dir.fd();
        if probe(&mount) != Support::Full {
            println!("skipped: handles cannot be opened here");
            return;
        }
        for len in [0, 1, 8, 128] {
            let handle = KernelHandle::new(1, &vec![0xff; len]).unwrap();
            assert!(open(&mount, &handle, OFlags::PATH).is_err(), "{len}");
        }
        assert!(KernelHandle::new(1, &[0; 129]).is_none());
    }

    #[test]
    fn connectable_handles_open_too() {
        let dir = TestDir::disk();
        let mount = dir.fd();
        fs::write(dir.join("a"), b"abc").unwrap();
        match connectable(dir.o_path("a")) {
            Ok(handle) if probe(&mount) == Support::Full => {
                let fd = open(&mount, &handle, OFlags::RDONLY).unwrap();
                assert_eq!(opening::stat(&fd).unwrap().ino, opening::stat(dir.o_path("a")).unwrap().ino);
            }
            other => println!("skipped: connectable handles: {other:?}"),
        }
    }
}
