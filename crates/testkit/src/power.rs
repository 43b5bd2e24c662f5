//! A power supply that fails, for machines in virtual time.
//!
//! The power goes at a *step*: before or after a call of the filesystem, or whatever else the machine counts. From that
//! instant on nothing that this life of the server does may have an effect: who asks [`Power::step`] is told so, the
//! filesystem forgets what was not synced, connections are reset.
//!
//! A [`Trace`] notes the steps of all lives of a machine, each with its time: two runs of one seed must give the same.

use crate::{LinkControl, MemFs};
use parking_lot::Mutex;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// What happened on a machine, and when.
#[derive(Debug)]
pub struct Trace {
    began: Instant,
    steps: Mutex<Vec<(Duration, String)>>,
}

impl Trace {
    /// Begins now.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { began: Instant::now(), steps: Mutex::default() })
    }

    /// Notes a step.
    pub fn note(&self, what: impl Debug) {
        self.steps.lock().push((self.began.elapsed(), format!("{what:?}")));
    }

    /// All that was noted.
    pub fn steps(&self) -> Vec<(Duration, String)> {
        self.steps.lock().clone()
    }
}

/// Where two traces part, with a few steps before; `None` when they are alike.
pub fn parting(a: &[(Duration, String)], b: &[(Duration, String)]) -> Option<String> {
    let at = a.iter().zip(b).position(|(a, b)| a != b).or((a.len() != b.len()).then(|| a.len().min(b.len())))?;
    let around = |t: &[(Duration, String)]| t[at.saturating_sub(3)..t.len().min(at + 3)].to_vec();
    Some(format!("at step {at} of {} and {}:\n{:#?}\n{:#?}", a.len(), b.len(), around(a), around(b)))
}

type Lose = Box<dyn Fn() + Send + Sync>;

struct Supply {
    off: bool,
    /// Steps until the power goes.
    left: u64,
    /// Connections, and whose they are.
    links: Vec<(usize, LinkControl)>,
}

/// The power of one life of a server.
pub struct Power {
    fs: Arc<MemFs>,
    /// What else loses what was not synced.
    lose: Lose,
    supply: Mutex<Supply>,
    gone: Notify,
    trace: Arc<Trace>,
}

impl Power {
    /// Stays on for so many steps.
    pub fn new(fs: Arc<MemFs>, steps: u64, trace: Arc<Trace>, lose: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        let supply = Supply { off: false, left: steps, links: Vec::new() };
        Arc::new(Self { fs, lose: Box::new(lose), supply: Mutex::new(supply), gone: Notify::new(), trace })
    }

    /// Whether it is off: what arrives now was not said by the server.
    pub fn is_off(&self) -> bool {
        self.supply.lock().off
    }

    /// A step, before (`after` false) or after something. Whether that may have its effect: a step after the work lets
    /// it be, and nobody is told.
    pub fn step(&self, what: impl Debug, after: bool) -> bool {
        let mut supply = self.supply.lock();
        if supply.off {
            return false;
        }
        self.trace.note((what, after));
        supply.left = supply.left.saturating_sub(1);
        if supply.left == 0 {
            self.go(&mut supply);
        }
        after || !supply.off
    }

    fn go(&self, supply: &mut Supply) {
        self.trace.note("off");
        supply.off = true;
        self.fs.crash();
        (self.lose)();
        supply.links.iter().for_each(|(_, link)| link.reset());
        self.gone.notify_waiters();
    }

    /// The filesystem that hangs on it.
    pub fn fs(&self) -> &MemFs {
        &self.fs
    }

    /// Cuts it now.
    pub fn cut(&self) {
        let mut supply = self.supply.lock();
        if !supply.off {
            self.go(&mut supply);
        }
    }

    /// A connection that ends with the power: at once when it is off, and false then.
    pub fn plug(&self, who: usize, link: LinkControl) -> bool {
        let mut supply = self.supply.lock();
        if supply.off {
            link.reset();
        }
        supply.links.push((who, link));
        !supply.off
    }

    /// The connections of one.
    pub fn links_of(&self, who: usize) -> Vec<LinkControl> {
        self.supply.lock().links.iter().filter(|(w, _)| *w == who).map(|(_, link)| link.clone()).collect()
    }

    /// Waits until it is off.
    pub async fn off(&self) {
        loop {
            let gone = self.gone.notified();
            tokio::pin!(gone);
            gone.as_mut().enable();
            if self.is_off() {
                return;
            }
            gone.await;
        }
    }
}
