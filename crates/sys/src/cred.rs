//! The identity of a thread: fsuid, fsgid, supplementary groups, capabilities.
//!
//! Linux keeps these for each thread; the C library's wrappers change all threads at once, so the system calls
//! are made directly here. When the fsuid changes from 0 to another, the kernel itself takes the filesystem
//! capabilities (`CAP_DAC_OVERRIDE`, `CAP_DAC_READ_SEARCH`, `CAP_CHOWN`, `CAP_FOWNER`, `CAP_FSETID`, `CAP_MKNOD`, ...)
//! out of the effective set, and gives them back when the fsuid returns to 0.
//!
//! Two rules follow. [`CredGuard`] is `!Send`, so that it cannot cross an `await` in a task that moves between
//! threads. A thread started while a guard is held inherits the guard's identity: call
//! [`reset_thread_identity`] where a pool starts its threads.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::OnceLock;

use rustix::thread::CapabilitySet;

use crate::{Errno, Result, check};

/// Who a thread is to filesystems.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The user id that permission checks use and that new objects get.
    pub uid: u32,
    /// The group id that permission checks use and that new objects get.
    pub gid: u32,
    /// Supplementary groups, as the kernel lists them (sorted).
    pub groups: Vec<u32>,
}

thread_local! {
    /// What this thread is now, as far as this module has set or read it. Saves system calls.
    static CURRENT: RefCell<Option<Identity>> = const { RefCell::new(None) };
}

/// An id that is never valid: the kernel answers with the present id and changes nothing.
const NO_ID: u32 = u32::MAX;

fn swap_fsuid(uid: u32) -> u32 {
    // SAFETY: the call takes a number and touches no memory.
    unsafe { libc::syscall(libc::SYS_setfsuid, uid) as u32 }
}

fn swap_fsgid(gid: u32) -> u32 {
    // SAFETY: the call takes a number and touches no memory.
    unsafe { libc::syscall(libc::SYS_setfsgid, gid) as u32 }
}

fn set_fsuid(uid: u32) -> Result<()> {
    swap_fsuid(uid);
    // setfsuid reports no error: ask what came of it.
    if swap_fsuid(NO_ID) == uid { Ok(()) } else { Err(Errno::PERM) }
}

fn set_fsgid(gid: u32) -> Result<()> {
    swap_fsgid(gid);
    if swap_fsgid(NO_ID) == gid { Ok(()) } else { Err(Errno::PERM) }
}

fn set_groups(groups: &[u32]) -> Result<()> {
    // SAFETY: the pointer and the count describe the slice, which the kernel only reads. The raw call changes
    // this thread alone.
    check(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) })?;
    Ok(())
}

fn read_groups() -> Result<Vec<u32>> {
    loop {
        // SAFETY: with a size of 0 the kernel writes nothing and returns the count.
        let count = check(unsafe { libc::syscall(libc::SYS_getgroups, 0, std::ptr::null_mut::<u32>()) })?;
        let mut groups = vec![0u32; count as usize];
        // SAFETY: the vector has room for `len` ids.
        let got = unsafe { libc::syscall(libc::SYS_getgroups, groups.len(), groups.as_mut_ptr()) };
        match check(got) {
            Ok(n) => {
                groups.truncate(n as usize);
                return Ok(groups);
            }
            Err(Errno::INVAL) => {}
            Err(e) => return Err(e),
        }
    }
}

/// Asks the kernel who the calling thread is.
///
/// # Errors
/// None in practice.
pub fn current_thread_identity() -> Result<Identity> {
    Ok(Identity { uid: swap_fsuid(NO_ID), gid: swap_fsgid(NO_ID), groups: read_groups()? })
}

/// The identity that the process had when this was first called; call it early in `main`.
pub fn process_identity() -> &'static Identity {
    static FIRST: OnceLock<Identity> = OnceLock::new();
    FIRST.get_or_init(|| current_thread_identity().unwrap_or_default())
}

/// Makes the calling thread what [`process_identity`] says, whatever it inherited from the thread that made it.
///
/// # Errors
/// `EPERM` if the process may not change identity and the thread differs.
pub fn reset_thread_identity() -> Result<()> {
    let base = process_identity();
    let now = current_thread_identity()?;
    switch(&now, base)?;
    CURRENT.set(Some(base.clone()));
    Ok(())
}

/// Changes the thread from `from` to `to`: groups and gid first, while a privileged uid may still be in force.
fn switch(from: &Identity, to: &Identity) -> Result<()> {
    if from.groups != to.groups {
        set_groups(&to.groups)?;
    }
    if from.gid != to.gid {
        set_fsgid(to.gid)?;
    }
    if from.uid != to.uid {
        set_fsuid(to.uid)?;
    }
    Ok(())
}

/// The reverse order of [`switch`]: uid first, so that capabilities are back for the rest.
fn switch_back(from: &Identity, to: &Identity) -> Result<()> {
    if from.uid != to.uid {
        set_fsuid(to.uid)?;
    }
    if from.gid != to.gid {
        set_fsgid(to.gid)?;
    }
    if from.groups != to.groups {
        set_groups(&to.groups)?;
    }
    Ok(())
}

/// While it lives, the calling thread acts on filesystems as somebody else.
///
/// Dropping it restores everything it changed. If that fails the process is aborted: a thread with a wrong
/// identity must not serve anyone. Guards may be nested and must be dropped in reverse order, which scopes do.
///
/// ```compile_fail
/// fn needs_send<T: Send>(_: T) {}
/// needs_send(dhow_sys::cred::CredGuard::become_user(0, 0, &[]).unwrap());
/// ```
#[must_use = "the identity returns as soon as the guard is dropped"]
#[derive(Debug)]
pub struct CredGuard {
    /// What to return to; `None` if nothing had to change.
    previous: Option<Identity>,
    /// Pins the guard to its thread.
    _thread: PhantomData<*const ()>,
}

impl CredGuard {
    /// Makes the calling thread act as `uid`, `gid` and `groups`. Costs nothing if it does already.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SETUID` and `CAP_SETGID`; `EINVAL` for more than 65 536 groups or an id of 2^32-1.
    /// After an error the thread is what it was.
    pub fn become_user(uid: u32, gid: u32, groups: &[u32]) -> Result<CredGuard> {
        if uid == NO_ID || gid == NO_ID || groups.contains(&NO_ID) {
            return Err(Errno::INVAL);
        }
        let mut now = match CURRENT.take() {
            Some(now) => now,
            None => current_thread_identity()?,
        };
        now.groups.sort_unstable();
        let mut groups = groups.to_vec();
        groups.sort_unstable();
        if now.uid == uid && now.gid == gid && now.groups == groups {
            CURRENT.set(Some(now));
            return Ok(CredGuard { previous: None, _thread: PhantomData });
        }
        let wanted = Identity { uid, gid, groups };
        match switch(&now, &wanted) {
            Ok(()) => {
                CURRENT.set(Some(wanted));
                Ok(CredGuard { previous: Some(now), _thread: PhantomData })
            }
            Err(e) => {
                // Whatever part of it was changed goes back; what was not differs from `wanted` in the kernel's
                // eyes too, so ask.
                let is = current_thread_identity().unwrap_or(wanted);
                restore(&is, now);
                Err(e)
            }
        }
    }

    /// Changes the uid alone. That takes the filesystem capabilities away and makes quotas and reserved space count as
    /// they do for the user, at a third of the price; it is not enough where permission is asked or an object is made.
    ///
    /// # Errors
    /// As [`CredGuard::become_user`].
    pub fn become_uid(uid: u32) -> Result<CredGuard> {
        let now = match CURRENT.take() {
            Some(now) => now,
            None => current_thread_identity()?,
        };
        if now.uid == uid {
            CURRENT.set(Some(now));
            return Ok(CredGuard { previous: None, _thread: PhantomData });
        }
        let changed = if uid == NO_ID { Err(Errno::INVAL) } else { set_fsuid(uid) };
        match changed {
            Ok(()) => {
                CURRENT.set(Some(Identity { uid, ..now.clone() }));
                Ok(CredGuard { previous: Some(now), _thread: PhantomData })
            }
            Err(e) => {
                CURRENT.set(Some(now));
                Err(e)
            }
        }
    }

    /// As [`CredGuard::become_user`], from an [`Identity`].
    ///
    /// # Errors
    /// As there.
    pub fn become_identity(identity: &Identity) -> Result<CredGuard> {
        CredGuard::become_user(identity.uid, identity.gid, &identity.groups)
    }
}

fn restore(from: &Identity, to: Identity) {
    if let Err(e) = switch_back(from, &to) {
        eprintln!("dhow: cannot restore the identity of a thread ({e}); aborting");
        std::process::abort();
    }
    CURRENT.set(Some(to));
}

impl Drop for CredGuard {
    fn drop(&mut self) {
        let Some(previous) = self.previous.take() else { return };
        match CURRENT.take() {
            Some(now) => restore(&now, previous),
            // Cannot happen while guards nest; be safe and restore all three.
            None => {
                let nobody = Identity { uid: NO_ID, gid: NO_ID, groups: vec![NO_ID] };
                restore(&nobody, previous);
            }
        }
    }
}

/// Finds out by trying whether this process may act as other users.
///
/// Containers often may, while they may not open by handle; [`crate::handle::probe`] asks for that.
pub fn can_switch_identity() -> bool {
    let Ok(now) = current_thread_identity() else { return false };
    let other = if now.uid == 65_534 { 65_533 } else { 65_534 };
    CredGuard::become_user(other, other, &[other]).is_ok()
}

/// True if the calling thread has `CAP_DAC_OVERRIDE` in effect: file modes do not bind it.
pub fn overrides_modes() -> bool {
    rustix::thread::capabilities(None).is_ok_and(|c| c.effective.contains(CapabilitySet::DAC_OVERRIDE))
}

/// Gives up `CAP_SYS_RESOURCE` in the calling thread, for good.
///
/// With it a process writes past quotas and into blocks reserved for root. Call it in `main` after the limit of
/// open files is raised and before any thread is started, since each thread has its own sets.
///
/// # Errors
/// Those of `capset(2)`; none if the capability was not there.
pub fn drop_cap_sys_resource() -> Result<()> {
    let mut sets = rustix::thread::capabilities(None)?;
    let gone = CapabilitySet::SYS_RESOURCE;
    if !(sets.effective | sets.permitted | sets.inheritable).intersects(gone) {
        return Ok(());
    }
    sets.effective -= gone;
    sets.permitted -= gone;
    sets.inheritable -= gone;
    rustix::thread::set_capabilities(None, sets)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use rustix::fs::{Access, OFlags};

    use super::*;
    use crate::testdir::{TestDir, can_switch};
    use crate::{node, open};

    #[test]
    fn a_guard_changes_and_restores_everything() {
        if !can_switch() {
            return;
        }
        let before = current_thread_identity().unwrap();
        {
            let _a = CredGuard::become_user(1000, 1001, &[30, 10, 20]).unwrap();
            let now = current_thread_identity().unwrap();
            assert_eq!(now, Identity { uid: 1000, gid: 1001, groups: vec![10, 20, 30] });
            {
                let _b = CredGuard::become_user(2000, 1001, &[]).unwrap();
                assert_eq!(current_thread_identity().unwrap(), Identity { uid: 2000, gid: 1001, groups: vec![] });
                let _c = CredGuard::become_user(0, 0, &[]).unwrap();
                assert_eq!(current_thread_identity().unwrap().uid, 0);
            }
            assert_eq!(current_thread_identity().unwrap(), now);
            {
                let _uid = CredGuard::become_uid(5).unwrap();
                let other = current_thread_identity().unwrap();
                assert_eq!(other, Identity { uid: 5, ..now.clone() });
            }
            assert_eq!(current_thread_identity().unwrap(), now);
            assert_eq!(CredGuard::become_uid(u32::MAX).unwrap_err(), Errno::INVAL);
            let _same = CredGuard::become_user(1000, 1001, &[10, 20, 30]).unwrap();
            assert_eq!(current_thread_identity().unwrap(), now);
        }
        assert_eq!(current_thread_identity().unwrap(), before);
    }

    #[test]
    fn a_panic_restores_too() {
        if !can_switch() {
            return;
        }
        let before = current_thread_identity().unwrap();
        let caught = std::panic::catch_unwind(|| {
            let _guard = CredGuard::become_user(1000, 1000, &[5]).unwrap();
            panic!("on purpose");
        });
        assert!(caught.is_err());
        assert_eq!(current_thread_identity().unwrap(), before);
    }

    #[test]
    fn other_threads_keep_their_identity_and_new_ones_can_reset() {
        if !can_switch() {
            return;
        }
        process_identity();
        let (ask, asked) = std::sync::mpsc::channel::<()>();
        let (answer, answered) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            asked.recv().unwrap();
            answer.send(current_thread_identity().unwrap()).unwrap();
        });
        let base = current_thread_identity().unwrap();
        let _guard = CredGuard::become_user(1000, 1000, &[7]).unwrap();
        ask.send(()).unwrap();
        assert_eq!(answered.recv().unwrap(), base);
        other.join().unwrap();
        std::thread::spawn(|| {
            assert_eq!(current_thread_identity().unwrap().uid, 1000, "inherited");
            reset_thread_identity().unwrap();
            assert_eq!(&current_thread_identity().unwrap(), process_identity());
        })
        .join()
        .unwrap();
    }

    #[test]
    fn impossible_ids_are_refused() {
        assert_eq!(CredGuard::become_user(u32::MAX, 0, &[]).unwrap_err(), Errno::INVAL);
        assert_eq!(CredGuard::become_user(0, u32::MAX, &[]).unwrap_err(), Errno::INVAL);
        assert_eq!(CredGuard::become_user(0, 0, &[u32::MAX]).unwrap_err(), Errno::INVAL);
    }

    #[test]
    fn permissions_are_those_of_the_user() {
        if !can_switch() {
            return;
        }
        for dir in TestDir::each() {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
            fs::write(dir.join("f"), b"x").unwrap();
            fs::set_permissions(dir.join("f"), fs::Permissions::from_mode(0o640)).unwrap();
            std::os::unix::fs::chown(dir.join("f"), Some(1000), Some(2000)).unwrap();
            let held = dir.o_path("f");
            let as_user = |uid, gid, groups: &[u32], flags| {
                let _guard = CredGuard::become_user(uid, gid, groups).unwrap();
                open::reopen(&held, flags).map(drop)
            };
            assert_eq!(as_user(1000, 1000, &[], OFlags::RDWR), Ok(()));
            assert_eq!(as_user(1001, 1001, &[2000], OFlags::RDONLY), Ok(()));
            assert_eq!(as_user(1001, 2000, &[], OFlags::RDWR), Err(Errno::ACCESS));
            assert_eq!(as_user(1001, 1001, &[], OFlags::RDONLY), Err(Errno::ACCESS));
            assert_eq!(as_user(0, 0, &[], OFlags::RDWR), Ok(()));
            let _guard = CredGuard::become_user(1234, 4321, &[]).unwrap();
            node::mkdir(dir.fd(), b"made", 0o755).unwrap();
            let meta = fs::metadata(dir.join("made")).unwrap();
            assert_eq!((meta.uid(), meta.gid()), (1234, 4321));
        }
    }

    #[test]
    fn access_checks_use_the_fsuid() {
        if !can_switch() {
            return;
        }
        for dir in TestDir::each() {
            fs::write(dir.join("f"), b"x").unwrap();
            fs::set_permissions(dir.join("f"), fs::Permissions::from_mode(0o640)).unwrap();
            std::os::unix::fs::chown(dir.join("f"), Some(1000), Some(2000)).unwrap();
            let held = dir.o_path("f");
            let as_user = |uid, gid, want| {
                let _guard = CredGuard::become_user(uid, gid, &[]).unwrap();
                node::access(&held, want)
            };
            assert_eq!(as_user(1000, 1000, Access::READ_OK | Access::WRITE_OK), Ok(()));
            assert_eq!(as_user(1000, 1000, Access::EXEC_OK), Err(Errno::ACCESS));
            assert_eq!(as_user(1001, 2000, Access::READ_OK), Ok(()));
            assert_eq!(as_user(1001, 2000, Access::WRITE_OK), Err(Errno::ACCESS));
            assert_eq!(as_user(1001, 1001, Access::READ_OK), Err(Errno::ACCESS));
            assert_eq!(as_user(0, 0, Access::READ_OK | Access::WRITE_OK), Ok(()));
        }
    }

    #[test]
    fn sys_resource_goes_for_this_thread_only() {
        std::thread::spawn(|| {
            drop_cap_sys_resource().unwrap();
            let sets = rustix::thread::capabilities(None).unwrap();
            assert!(!sets.effective.contains(CapabilitySet::SYS_RESOURCE));
            assert!(!sets.permitted.contains(CapabilitySet::SYS_RESOURCE));
            drop_cap_sys_resource().unwrap();
        })
        .join()
        .unwrap();
    }
}
