//! Quotas of users.

use std::os::fd::{AsFd, AsRawFd};

use crate::{Errno, Result, check};

/// `QCMD(Q_GETQUOTA, USRQUOTA)`.
const GET_USER: libc::c_long = 0x0080_0007 << 8;
/// Unit of limits: `QIF_DQBLKSIZE`.
const BLOCK: u64 = 1024;

/// What a user may take and has taken of a filesystem, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Quota {
    /// Space in use.
    pub used: u64,
    /// What can never be passed; 0: nothing.
    pub hard: u64,
    /// What can be passed for a while; 0: nothing.
    pub soft: u64,
}

/// The kernel's `struct if_dqblk`.
#[repr(C)]
#[derive(Default)]
struct Block {
    bhardlimit: u64,
    bsoftlimit: u64,
    curspace: u64,
    ihardlimit: u64,
    isoftlimit: u64,
    curinodes: u64,
    btime: u64,
    itime: u64,
    valid: u32,
}

/// The quota of a user on the filesystem of an open file (not one opened by `O_PATH`).
///
/// # Errors
/// `ESRCH` where no quotas of users are kept, `ENOSYS` before Linux 5.14, `EPERM` for another user's without
/// `CAP_SYS_ADMIN`.
pub fn of_user(fd: impl AsFd, uid: u32) -> Result<Quota> {
    let mut block = Block::default();
    // SAFETY: quotactl_fd with Q_GETQUOTA writes one `if_dqblk`, which lives through the call.
    let done = unsafe { libc::syscall(libc::SYS_quotactl_fd, fd.as_fd().as_raw_fd(), GET_USER, uid, &raw mut block) };
    check(done)?;
    let bytes = |blocks: u64| blocks.saturating_mul(BLOCK);
    Ok(Quota { used: block.curspace, hard: bytes(block.bhardlimit), soft: bytes(block.bsoftlimit) })
}

/// Whether [`of_user`] answers for every user of a filesystem: quotas are kept there, and this thread may ask.
pub fn can_be_asked(fd: impl AsFd) -> bool {
    answers(of_user(&fd, 0), of_user(&fd, OTHER))
}

/// Anybody but the superuser, who may ask for their own quota without any capability.
const OTHER: u32 = 1;

/// By what is answered for the superuser and for somebody else, of whom there need not be a record yet.
fn answers(superuser: Result<Quota>, other: Result<Quota>) -> bool {
    superuser.is_ok() && other != Err(Errno::PERM)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testdir::TestDir;

    #[test]
    fn an_answer_or_none() {
        for dir in TestDir::each() {
            match of_user(std::fs::File::open(dir.path()).unwrap(), 0) {
                Ok(quota) => assert!(quota.soft == 0 || quota.hard == 0 || quota.soft <= quota.hard),
                Err(e) => assert!(matches!(e, Errno::SRCH | Errno::NOSYS | Errno::PERM | Errno::OPNOTSUPP), "{e}"),
            }
        }
    }

    #[test]
    fn a_superuser_without_capabilities_cannot_ask_for_others() {
        let some = || Ok(Quota::default());
        assert!(answers(some(), some()) && answers(some(), Err(Errno::NOENT)));
        assert!(!answers(some(), Err(Errno::PERM)), "CAP_SYS_ADMIN was taken from it");
        for error in [Errno::SRCH, Errno::PERM, Errno::NOSYS] {
            assert!(!answers(Err(error), Err(error)));
        }
    }
}
