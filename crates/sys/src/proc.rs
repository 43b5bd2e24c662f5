//! The process and its threads: limits, priorities, memory and processor time.

use std::time::Duration;

use rustix::process::{Resource, Rlimit};

use crate::{Errno, Result, check};

/// Sets the umask of the process to 0, so that modes asked for by clients are the modes that files get.
pub fn clear_umask() {
    rustix::process::umask(rustix::fs::Mode::empty());
}

/// Raises the soft limit of open files to the hard one, and both towards `wanted` where the process may.
/// Returns the soft limit now in force.
///
/// Call it before [`crate::cred::drop_cap_sys_resource`], which takes away the right to raise the hard limit.
pub fn raise_nofile_limit(wanted: u64) -> u64 {
    let now = rustix::process::getrlimit(Resource::Nofile);
    let hard = now.maximum.unwrap_or(u64::MAX);
    if hard < wanted {
        let both = Rlimit { current: Some(wanted), maximum: Some(wanted) };
        if rustix::process::setrlimit(Resource::Nofile, both).is_ok() {
            return wanted;
        }
    }
    let soft = now.current.unwrap_or(u64::MAX);
    let best = wanted.min(hard);
    if soft < best {
        let raised = Rlimit { current: Some(best), maximum: now.maximum };
        if rustix::process::setrlimit(Resource::Nofile, raised).is_ok() {
            return best;
        }
    }
    soft
}

/// Classes of I/O priority (`ioprio_set(2)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoPriority {
    /// What the scheduler makes of the thread's nice value: the state of a thread that never asked.
    Default,
    /// Only when nobody else wants the disk.
    Idle,
    /// The ordinary class, at a level from 0 (high) to 7 (low).
    BestEffort(u8),
}

const IOPRIO_CLASS_SHIFT: u32 = 13;
const IOPRIO_CLASS_BE: u32 = 2;
const IOPRIO_CLASS_IDLE: u32 = 3;
const IOPRIO_WHO_PROCESS: libc::c_int = 1;

/// Sets the I/O priority of the calling thread.
///
/// # Errors
/// `EINVAL` for a level over 7.
pub fn set_io_priority(priority: IoPriority) -> Result<()> {
    let value = match priority {
        IoPriority::Default => 0,
        IoPriority::Idle => IOPRIO_CLASS_IDLE << IOPRIO_CLASS_SHIFT,
        IoPriority::BestEffort(level) if level > 7 => return Err(Errno::INVAL),
        IoPriority::BestEffort(level) => IOPRIO_CLASS_BE << IOPRIO_CLASS_SHIFT | u32::from(level),
    };
    // SAFETY: the call takes numbers only; 0 means the calling thread.
    check(unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, value) }).map(drop)
}

/// Lets the calling thread run before all threads that are not real-time ones (`SCHED_FIFO`, the lowest priority).
/// Threads that it starts are ordinary ones. Such a thread must sleep most of the time.
///
/// # Errors
/// `EPERM` without `CAP_SYS_NICE`.
pub fn set_realtime() -> Result<()> {
    // SAFETY: `sched_param` is a plain structure for which all-zero bytes are a value.
    let mut param: libc::sched_param = unsafe { std::mem::zeroed() };
    param.sched_priority = 1;
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the kernel reads one `sched_param`, which lives through the call; 0 means the calling thread.
    check(unsafe { libc::sched_setscheduler(0, policy, &raw const param) }.into()).map(drop)
}

/// Processor time used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// In the program.
    pub user: Duration,
    /// In the kernel on the program's behalf.
    pub system: Duration,
}

impl CpuTime {
    /// Both together.
    pub fn total(&self) -> Duration {
        self.user + self.system
    }
}

fn rusage(who: libc::c_int) -> libc::rusage {
    // SAFETY: `rusage` is a plain structure for which all-zero bytes are a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `rusage`, which lives through the call. It cannot fail for these arguments.
    unsafe { libc::getrusage(who, &raw mut usage) };
    usage
}

fn cpu_time(usage: &libc::rusage) -> CpuTime {
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    CpuTime { user: time(usage.ru_utime), system: time(usage.ru_stime) }
}

/// Processor time of all threads of the process.
pub fn process_cpu_time() -> CpuTime {
    cpu_time(&rusage(libc::RUSAGE_SELF))
}

/// Processor time of the calling thread.
pub fn thread_cpu_time() -> CpuTime {
    cpu_time(&rusage(libc::RUSAGE_THREAD))
}

/// The largest resident memory that the process has had, in bytes.
pub fn peak_rss() -> u64 {
    rusage(libc::RUSAGE_SELF).ru_maxrss as u64 * 1024
}

/// Resident memory of the process now, in bytes; `None` without `/proc`.
pub fn rss() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_only_rise() {
        let before = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let now = raise_nofile_limit(before);
        assert!(now >= before);
        assert!(raise_nofile_limit(16) >= before);
        assert!(raise_nofile_limit(1 << 20) >= before);
    }

    #[test]
    fn io_priority_of_this_thread() {
        std::thread::spawn(|| {
            set_io_priority(IoPriority::BestEffort(7)).unwrap();
            set_io_priority(IoPriority::Idle).unwrap();
            // SAFETY: numbers only.
            let got = unsafe { libc::syscall(libc::SYS_ioprio_get, IOPRIO_WHO_PROCESS, 0) };
            assert_eq!(got as u32 >> IOPRIO_CLASS_SHIFT, IOPRIO_CLASS_IDLE);
            set_io_priority(IoPriority::Default).unwrap();
            assert_eq!(set_io_priority(IoPriority::BestEffort(8)).unwrap_err(), Errno::INVAL);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn real_time_is_of_one_thread() {
        // SAFETY: a number only; 0 means the calling thread.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        std::thread::spawn(move || match set_realtime() {
            Ok(()) => {
                assert_eq!(policy() & !libc::SCHED_RESET_ON_FORK, libc::SCHED_FIFO);
                assert_eq!(std::thread::spawn(policy).join().unwrap(), libc::SCHED_OTHER);
            }
            Err(error) => assert_eq!(error, Errno::PERM),
        })
        .join()
        .unwrap();
        assert_eq!(policy(), libc::SCHED_OTHER);
    }

    #[test]
    fn usage_grows() {
        let before = thread_cpu_time().total();
        let mut x = 1u64;
        while thread_cpu_time().total() == before {
            for _ in 0..100_000 {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            }
        }
        assert!(x != 0 && process_cpu_time().total() >= thread_cpu_time().total());
        let rss = rss().unwrap();
        assert!(rss > 100_000 && peak_rss() > 100_000);
    }
}
