//! Users and groups by the system's own data bases (`nsswitch.conf`): `getpwnam_r` and its like. Calls may wait for a
//! network.

use std::ffi::{CStr, CString};
use std::io;

/// Largest buffer offered for one entry, in bytes: a group of very many members.
const MOST: usize = 4 << 20;
/// Most groups of one user: what the kernel takes (`NGROUPS_MAX`).
const MOST_GROUPS: usize = 65_536;

/// Makes a call with a buffer that grows for as long as the call says that it is too small. Every such call answers 0 and
/// no entry for an unknown name; some say so by an error number.
fn with_buffer<T>(mut call: impl FnMut(&mut [libc::c_char]) -> (libc::c_int, Option<T>)) -> io::Result<Option<T>> {
    let mut buffer = vec![0; 1024];
    loop {
        match call(&mut buffer) {
            (0, found) => return Ok(found),
            (libc::ENOENT | libc::ESRCH, _) => return Ok(None),
            (libc::EINTR, _) => {}
            (libc::ERANGE, _) if buffer.len() < MOST => buffer.resize(buffer.len() * 4, 0),
            (e, _) => return Err(io::Error::from_raw_os_error(e)),
        }
    }
}

fn c_string(name: &str) -> Option<CString> {
    CString::new(name).ok()
}

/// A name out of an entry; `None` if it is no UTF-8.
fn text(name: *const libc::c_char) -> Option<String> {
    if name.is_null() {
        return None;
    }
    // SAFETY: the entry's strings end with NUL and lie in the buffer, which outlives this call.
    unsafe { CStr::from_ptr(name) }.to_str().ok().map(str::to_owned)
}

fn passwd<T>(
    mut call: impl FnMut(*mut libc::passwd, *mut libc::c_char, usize, *mut *mut libc::passwd) -> libc::c_int,
    take: impl Fn(&libc::passwd) -> Option<T>,
) -> io::Result<Option<T>> {
    with_buffer(|buffer| {
        // SAFETY: `passwd` is a plain structure of numbers and pointers for which all-zero bytes are a value.
        let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        let code = call(&raw mut entry, buffer.as_mut_ptr(), buffer.len(), &raw mut found);
        (code, if found.is_null() { None } else { take(&entry) })
    })
}

fn group<T>(
    mut call: impl FnMut(*mut libc::group, *mut libc::c_char, usize, *mut *mut libc::group) -> libc::c_int,
    take: impl Fn(&libc::group) -> Option<T>,
) -> io::Result<Option<T>> {
    with_buffer(|buffer| {
        // SAFETY: `group` is a plain structure of numbers and pointers for which all-zero bytes are a value.
        let mut entry: libc::group = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        let code = call(&raw mut entry, buffer.as_mut_ptr(), buffer.len(), &raw mut found);
        (code, if found.is_null() { None } else { take(&entry) })
    })
}

/// The number of a user; `None`: nobody is called so.
///
/// # Errors
/// The data base cannot be asked.
pub fn user_id(name: &str) -> io::Result<Option<u32>> {
    let Some(name) = c_string(name) else { return Ok(None) };
    // SAFETY: the name ends with NUL; entry, buffer with its length and result are valid through the call.
    passwd(|e, b, n, f| unsafe { libc::getpwnam_r(name.as_ptr(), e, b, n, f) }, |e| Some(e.pw_uid))
}

/// The name of a user; `None`: the number has none.
///
/// # Errors
/// The data base cannot be asked.
pub fn user_name(uid: u32) -> io::Result<Option<String>> {
    // SAFETY: entry, buffer with its length and result are valid through the call.
    passwd(|e, b, n, f| unsafe { libc::getpwuid_r(uid, e, b, n, f) }, |e| text(e.pw_name))
}

/// The number of a group; `None`: no group is called so.
///
/// # Errors
/// The data base cannot be asked.
pub fn group_id(name: &str) -> io::Result<Option<u32>> {
    let Some(name) = c_string(name) else { return Ok(None) };
    // SAFETY: as in `user_id`.
    group(|e, b, n, f| unsafe { libc::getgrnam_r(name.as_ptr(), e, b, n, f) }, |e| Some(e.gr_gid))
}

/// The name of a group; `None`: the number has none.
///
/// # Errors
/// The data base cannot be asked.
pub fn group_name(gid: u32) -> io::Result<Option<String>> {
    // SAFETY: as in `user_name`.
    group(|e, b, n, f| unsafe { libc::getgrgid_r(gid, e, b, n, f) }, |e| text(e.gr_name))
}

/// All groups of a user, the primary one included; `None`: the number is no known user's.
///
/// # Errors
/// The data base cannot be asked.
pub fn groups_of(uid: u32) -> io::Result<Option<Vec<u32>>> {
    // SAFETY: entry, buffer with its length and result are valid through the call.
    let user =
        passwd(|e, b, n, f| unsafe { libc::getpwuid_r(uid, e, b, n, f) }, |e| Some((text(e.pw_name)?, e.pw_gid)))?;
    let Some((name, primary)) = user else { return Ok(None) };
    let Some(name) = c_string(&name) else { return Ok(None) };
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut count = libc::c_int::try_from(groups.len()).unwrap_or(libc::c_int::MAX);
        // SAFETY: the name ends with NUL; `groups` has room for `count` numbers.
        let done = unsafe { libc::getgrouplist(name.as_ptr(), primary, groups.as_mut_ptr(), &raw mut count) };
        let count = usize::try_from(count).unwrap_or_default();
        if done >= 0 {
            groups.truncate(count);
            return Ok(Some(groups));
        }
        if groups.len() >= MOST_GROUPS {
            return Err(io::Error::from_raw_os_error(libc::ERANGE));
        }
        groups.resize(count.max(groups.len() * 2).min(MOST_GROUPS), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_known_and_strangers_are_not() {
        assert_eq!(user_id("root").unwrap(), Some(0));
        assert_eq!(user_name(0).unwrap().as_deref(), Some("root"));
        let wheel = group_name(0).unwrap().expect("group 0 has a name");
        assert_eq!(group_id(&wheel).unwrap(), Some(0));
        assert_eq!(user_id("no such user here").unwrap(), None);
        assert_eq!(user_id("a\0b").unwrap(), None);
        assert_eq!(group_id("no such group here").unwrap(), None);
        assert_eq!(user_name(4_000_000_000).unwrap(), None);
        assert_eq!(group_name(4_000_000_000).unwrap(), None);
        assert!(groups_of(0).unwrap().unwrap().contains(&0));
        assert_eq!(groups_of(4_000_000_000).unwrap(), None);
    }
}
