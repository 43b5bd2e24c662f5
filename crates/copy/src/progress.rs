//! What a copy tells while it runs, and how it is told to stop.

use crate::{Decision, Error, FileReport, Method, Result};
use std::sync::Arc;
use tokio::sync::watch;

/// Something happened. Listeners are called from many tasks and must not block.
#[derive(Debug)]
pub enum Event<'a> {
    /// Files were found that will be copied: how many more, with how many bytes.
    Found {
        /// Files.
        files: u64,
        /// Bytes.
        bytes: u64,
    },
    /// Between two servers: which way the file is to take, and why.
    Decided {
        /// The destination.
        place: &'a str,
        /// The choice.
        decision: &'a Decision,
    },
    /// The bytes of a file begin to move by this method.
    Started {
        /// The destination.
        place: &'a str,
        /// How.
        method: Method,
    },
    /// Bytes have moved; negative when they have to move again.
    Moved(i64),
    /// A file is in place.
    Done {
        /// The destination.
        place: &'a str,
        /// How it went.
        report: &'a FileReport,
    },
    /// One object of a tree could not be copied; the others go on.
    Failed(&'a Error),
}

/// Hears [`Event`]s. Cheap to clone.
#[derive(Clone)]
pub struct Progress(Arc<dyn Fn(Event<'_>) + Send + Sync>);

impl Progress {
    /// Calls `listener` for each event.
    pub fn new(listener: impl Fn(Event<'_>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(listener))
    }

    /// Nobody listens.
    pub fn none() -> Self {
        Self::new(|_| ())
    }

    /// Tells an event: for listeners that pass on what they hear.
    pub fn tell(&self, event: Event<'_>) {
        (self.0)(event);
    }

    /// Tells [`Event::Found`].
    pub fn found(&self, files: u64, bytes: u64) {
        self.tell(Event::Found { files, bytes });
    }

    pub(crate) fn moved(&self, bytes: u64) {
        if bytes > 0 {
            self.tell(Event::Moved(i64::try_from(bytes).unwrap_or(i64::MAX)));
        }
    }
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Progress")
    }
}

/// The other end of [`Cancel`]: stops what holds one.
#[derive(Debug)]
pub struct Stop(watch::Sender<bool>);

impl Stop {
    /// A pair: one end stops what holds the other.
    pub fn new() -> (Self, Cancel) {
        let (tx, rx) = watch::channel(false);
        (Self(tx), Cancel(Some(rx)))
    }

    /// Stops; running copies remove their temporary files and return [`crate::ErrorKind::Cancelled`].
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

/// Says whether a copy should stop. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Option<watch::Receiver<bool>>);

impl Cancel {
    /// Never stops.
    pub fn never() -> Self {
        Self(None)
    }

    /// Whether it should stop now.
    pub fn is_cancelled(&self) -> bool {
        self.0.as_ref().is_some_and(|rx| *rx.borrow())
    }

    /// Runs `work` unless, and until, it should stop. `work` is dropped then.
    pub async fn run<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let Some(rx) = &self.0 else { return work.await };
        let mut rx = rx.clone();
        let stopped = async {
            if rx.wait_for(|stop| *stop).await.is_err() {
                // The other end is gone and can never stop us.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = stopped => Err(Error::cancelled()),
            done = work => done,
        }
    }
}
