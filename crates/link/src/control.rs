//! What the mover is told while it runs.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::EventfdFlags;

use crate::{Error, Result, Shape};

/// How one direction of a link is to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Setting {
    pub(crate) shape: Shape,
    pub(crate) cut: bool,
}

#[derive(Debug)]
struct Wanted {
    settings: Vec<Setting>,
    /// The generation that the mover works by.
    seen: u64,
    stopped: bool,
}

/// Shared by the mover and those who steer it.
#[derive(Debug)]
pub(crate) struct Control {
    /// Counts changes, so that the mover looks at a number only while nothing has changed.
    generation: AtomicU64,
    wanted: Mutex<Wanted>,
    taken_up: Condvar,
    /// Wakes the mover.
    wake: OwnedFd,
}

/// The generation that means "stop".
pub(crate) const STOP: u64 = u64::MAX;
/// How long the mover may take to notice a change.
const PATIENCE: Duration = Duration::from_secs(10);

impl Control {
    pub(crate) fn new(settings: Vec<Setting>) -> Result<Control> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::Io { what: "eventfd", error: error.into() })?;
        Ok(Control {
            generation: AtomicU64::new(0),
            wanted: Mutex::new(Wanted { settings, seen: 0, stopped: false }),
            taken_up: Condvar::new(),
            wake,
        })
    }

    pub(crate) fn wake_fd(&self) -> &OwnedFd {
        &self.wake
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(crate) fn settings(&self) -> Vec<Setting> {
        self.wanted.lock().settings.clone()
    }

    /// Changes settings and waits until the mover works by them.
    pub(crate) fn change(&self, change: impl FnOnce(&mut [Setting])) -> Result<()> {
        let mut wanted = self.wanted.lock();
        if wanted.stopped {
            return Err(Error::Stopped);
        }
        change(&mut wanted.settings);
        let generation = self.generation.fetch_add(1, Ordering::AcqRel) + 1;
        self.ring();
        let until = Instant::now() + PATIENCE;
        while wanted.seen < generation && !wanted.stopped {
            if self.taken_up.wait_until(&mut wanted, until).timed_out() {
                return Err(Error::Stopped);
            }
        }
        if wanted.seen < generation { Err(Error::Stopped) } else { Ok(()) }
    }

    /// Told by the mover once it works by `generation`.
    pub(crate) fn take_up(&self, generation: u64) {
        self.wanted.lock().seen = generation;
        self.taken_up.notify_all();
    }

    /// Makes the mover end.
    pub(crate) fn stop(&self) {
        self.generation.store(STOP, Ordering::Release);
        self.ring();
    }

    /// Told by the mover when it ends, for whatever reason: nobody waits for it any longer.
    pub(crate) fn ended(&self) {
        self.wanted.lock().stopped = true;
        self.taken_up.notify_all();
    }

    fn ring(&self) {
        // Only a counter at its maximum refuses, and then the mover is about to wake anyway.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Clears the bell.
    pub(crate) fn heard(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_change_waits_until_it_is_taken_up() {
        let setting = Setting { shape: Shape::default(), cut: false };
        let control = Arc::new(Control::new(vec![setting; 2]).unwrap());
        let mover = Arc::clone(&control);
        let thread = std::thread::spawn(move || {
            while mover.generation() == 0 {
                std::thread::yield_now();
            }
            mover.heard();
            assert!(mover.settings()[1].cut);
            mover.take_up(1);
        });
        control.change(|settings| settings[1].cut = true).unwrap();
        thread.join().unwrap();
        control.stop();
        assert_eq!(control.generation(), STOP);
        control.ended();
        assert!(matches!(control.change(|_| ()), Err(Error::Stopped)));
    }
}
