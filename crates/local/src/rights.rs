//! What a user may do to an object, asked of the kernel once and remembered.
//!
//! Taking on a user's identity costs six or more system calls, each of which copies the thread's credentials: some ten
//! times the look-up that it is for. So the answers are kept with the object, for as long as its ctime shows that mode,
//! owner and access control list are what they were. Where ctime ticks coarsely an answer is kept only if the last
//! change is long past.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dhow_sys::open::{Stat, Time};
use dhow_sys::{Errno, node};
use dhow_vfs::{Cred, Error, Result};
use rustix::fs::Access as Mode;

use crate::error::sys;
use crate::inner::Inner;
use crate::inode::Inode;

/// Reading.
pub(crate) const R: u8 = 4;
/// Writing.
pub(crate) const W: u8 = 2;
/// Executing, or searching a directory.
pub(crate) const X: u8 = 1;

/// How many users' rights are remembered for one object.
const MAX_USERS: usize = 8;
/// Coarse clocks tick every 10 ms at worst.
const TICK: Duration = Duration::from_secs(2);

/// The answers for one object at one ctime.
#[derive(Default)]
pub(crate) struct Rights {
    at: Time,
    users: Vec<(Cred, Answer)>,
}

#[derive(Clone, Copy, Default)]
struct Answer {
    known: u8,
    granted: u8,
}

impl Inner {
    /// Which of the rights `want` the user has on an object whose attributes are `stat`. A read-only mount is an error
    /// for those who could write otherwise. Owners have no more rights here than the mode gives them.
    pub(crate) fn rights(&self, user: &Cred, inode: &Inode, stat: &Stat, want: u8) -> Result<u8> {
        let keep = inode.fs.fast && (inode.fs.fine_rights || is_old(stat.ctime));
        if keep {
            let rights = inode.rights.lock();
            if rights.at == stat.ctime
                && let Some((_, answer)) = rights.users.iter().find(|(known, _)| known == user)
                && answer.known & want == want
            {
                return Ok(answer.granted & want);
            }
        }
        let mut granted = 0;
        self.as_reader(user, || {
            for (bit, mode) in [(R, Mode::READ_OK), (W, Mode::WRITE_OK), (X, Mode::EXEC_OK)] {
                if want & bit == 0 {
                    continue;
                }
                match node::access(&inode.path, mode) {
                    Ok(()) => granted |= bit,
                    Err(Errno::ACCESS | Errno::PERM) => {}
                    // Before Linux 5.8: mode bits are the best answer there is.
                    Err(Errno::NOSYS) => granted |= by_mode(user, stat) & bit,
                    Err(e) => return Err(sys(e)),
                }
            }
            Ok(())
        })?;
        if keep {
            let mut rights = inode.rights.lock();
            if rights.at != stat.ctime {
                *rights = Rights { at: stat.ctime, users: Vec::new() };
            }
            match rights.users.iter_mut().find(|(known, _)| known == user) {
                Some((_, answer)) => {
                    answer.granted = answer.granted & !want | granted;
                    answer.known |= want;
                }
                None => {
                    if rights.users.len() >= MAX_USERS {
                        rights.users.remove(0);
                    }
                    rights.users.push((user.clone(), Answer { known: want, granted }));
                }
            }
        }
        Ok(granted)
    }

    /// Fails unless the user has all the rights `want`. Does not even ask for the superuser or when the process acts
    /// for itself: then the call that follows tells.
    pub(crate) fn must_have(&self, user: &Cred, inode: &Inode, want: u8) -> Result<()> {
        if !self.switching || self.is_super(user) {
            return Ok(());
        }
        let stat = inode.stat()?;
        if self.rights(user, inode, &stat, want)? == want {
            return Ok(());
        }
        Err(Error::new(dhow_vfs::ErrorKind::Access))
    }
}

fn is_old(ctime: Time) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(ctime.sec).is_ok_and(|sec| Duration::new(sec, ctime.nsec) + TICK < now)
}

fn by_mode(user: &Cred, stat: &Stat) -> u8 {
    let bits = if user.uid == stat.uid {
        stat.mode >> 6
    } else if user.in_group(stat.gid) {
        stat.mode >> 3
    } else {
        stat.mode
    };
    if user.uid == 0 { R | W | (stat.mode & 0o111 != 0) as u8 } else { (bits & 7) as u8 }
}
