//! Extended attributes of an open file or of an object held by `O_PATH`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::fs::XattrFlags;

use crate::{Errno, Result, retry};

/// The longest value that Linux keeps, in bytes (`XATTR_SIZE_MAX`).
pub const MAX_VALUE: usize = 65_536;
/// The longest name, in bytes (`XATTR_NAME_MAX`).
pub const MAX_NAME: usize = 255;
/// The longest list of names, in bytes (`XATTR_LIST_MAX`).
pub const MAX_LIST: usize = 65_536;

// The *f* calls refuse O_PATH descriptors. The path calls follow /proc/self/fd/N to the object itself, be it a
// symbolic link, and stop there.
fn proc_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// The value of an attribute.
///
/// # Errors
/// `ENODATA` if there is none of that name.
pub fn get(fd: impl AsFd, name: &[u8]) -> Result<Vec<u8>> {
    let path = proc_path(fd.as_fd());
    // Most values are short; one call is enough for them.
    let mut value = vec![0; 256];
    loop {
        match retry(|| rustix::fs::getxattr(&path, name, &mut value)) {
            Ok(len) => {
                value.truncate(len);
                return Ok(value);
            }
            Err(Errno::RANGE) if value.len() < MAX_VALUE => {
                let len = retry(|| rustix::fs::getxattr_query(&path, name))?;
                value.resize(len.max(value.len() * 2).min(MAX_VALUE), 0);
            }
            Err(e) => return Err(e),
        }
    }
}

/// Whether an attribute must be new, must exist, or neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetMode {
    /// Made or replaced.
    Either,
    /// `EEXIST` if there is one.
    Create,
    /// `ENODATA` if there is none.
    Replace,
}

/// Sets an attribute.
///
/// # Errors
/// `ENOSPC`, `E2BIG` or `ERANGE` for a value that does not fit, `EOPNOTSUPP`, `EPERM`.
pub fn set(fd: impl AsFd, name: &[u8], value: &[u8], mode: SetMode) -> Result<()> {
    let flags = match mode {
        SetMode::Either => XattrFlags::empty(),
        SetMode::Create => XattrFlags::CREATE,
        SetMode::Replace => XattrFlags::REPLACE,
    };
    let path = proc_path(fd.as_fd());
    retry(|| rustix::fs::setxattr(&path, name, value, flags))
}

/// Removes an attribute.
///
/// # Errors
/// `ENODATA` if there is none of that name.
pub fn remove(fd: impl AsFd, name: &[u8]) -> Result<()> {
    let path = proc_path(fd.as_fd());
    retry(|| rustix::fs::removexattr(&path, name))
}

/// The names of all attributes that the thread may see, in the kernel's order, with their prefixes.
///
/// # Errors
/// `EOPNOTSUPP` where the filesystem has none.
pub fn list(fd: impl AsFd) -> Result<Vec<Vec<u8>>> {
    let path = proc_path(fd.as_fd());
    let mut names = vec![0; 1024];
    loop {
        match retry(|| rustix::fs::listxattr(&path, &mut names)) {
            Ok(len) => {
                names.truncate(len);
                return Ok(names.split(|b| *b == 0).filter(|n| !n.is_empty()).map(<[u8]>::to_vec).collect());
            }
            Err(Errno::RANGE) if names.len() < MAX_LIST => names.resize(MAX_LIST, 0),
            Err(e) => return Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::testdir::TestDir;

    #[test]
    fn set_get_list_remove() {
        for dir in TestDir::each() {
            fs::write(dir.join("f"), b"x").unwrap();
            let held = dir.o_path("f");
            match set(&held, b"user.a", b"one", SetMode::Create) {
                Err(Errno::OPNOTSUPP) => {
                    println!("skipped: no extended attributes under {:?}", dir.path());
                    continue;
                }
                other => other.unwrap(),
            }
            assert_eq!(set(&held, b"user.a", b"two", SetMode::Create).unwrap_err(), Errno::EXIST);
            assert_eq!(set(&held, b"user.b", b"two", SetMode::Replace).unwrap_err(), Errno::NODATA);
            set(&held, b"user.a", b"", SetMode::Replace).unwrap();
            assert_eq!(get(&held, b"user.a").unwrap(), b"");
            let long = vec![5; 2000];
            set(&held, b"user.\xff", &long, SetMode::Either).unwrap();
            assert_eq!(get(&held, b"user.\xff").unwrap(), long);
            let mut names = list(&held).unwrap();
            names.sort();
            assert_eq!(names, [b"user.a".to_vec(), b"user.\xff".to_vec()]);
            assert_eq!(list(fs::File::open(dir.join("f")).unwrap()).unwrap().len(), 2);
            remove(&held, b"user.a").unwrap();
            assert_eq!(get(&held, b"user.a").unwrap_err(), Errno::NODATA);
            assert_eq!(remove(&held, b"user.a").unwrap_err(), Errno::NODATA);
        }
    }

    #[test]
    fn a_symbolic_link_is_not_followed() {
        let dir = TestDir::disk();
        fs::write(dir.join("f"), b"x").unwrap();
        crate::node::symlink(b"f", dir.fd(), b"l").unwrap();
        if set(dir.o_path("f"), b"user.a", b"1", SetMode::Either).is_err() {
            println!("skipped: no extended attributes here");
            return;
        }
        assert!(get(dir.o_path("l"), b"user.a").is_err());
    }
}
