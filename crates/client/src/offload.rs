//! Brings CB_OFFLOAD and the copies that wait for it together (RFC 7862 section 16.1).

use std::collections::{HashMap, VecDeque};

use dhow_proto::v4::cb::OffloadInfo;
use dhow_proto::v4::{Stateid, Status};
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Most completions kept for copies whose COPY reply has not come.
const EARLY: usize = 256;

/// Which copies run, and what was told of copies not known yet.
///
/// A callback can overtake the COPY reply that names the copy (case K05). While a COPY is unanswered, a completion of
/// an unknown copy is kept for it.
#[derive(Debug, Default)]
pub(crate) struct Offloads(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    waiting: HashMap<[u8; 12], oneshot::Sender<OffloadInfo>>,
    early: VecDeque<([u8; 12], OffloadInfo)>,
    /// COPY calls without an answer.
    unanswered: usize,
}

/// A COPY is under way whose answer has not come; dropping it says that it has.
#[must_use]
#[derive(Debug)]
pub(crate) struct Unanswered<'a>(&'a Offloads);

impl Offloads {
    /// A COPY is about to be sent.
    pub(crate) fn begin(&self) -> Unanswered<'_> {
        self.0.lock().unanswered += 1;
        Unanswered(self)
    }

    /// The server named a copy that runs on: returns where its end will be told.
    pub(crate) fn expect(&self, copy: Stateid) -> oneshot::Receiver<OffloadInfo> {
        let (tx, rx) = oneshot::channel();
        let mut table = self.0.lock();
        match table.early.iter().position(|(other, _)| *other == copy.other) {
            Some(at) => {
                if let Some((_, info)) = table.early.remove(at) {
                    let _ = tx.send(info);
                }
            }
            None => {
                table.waiting.insert(copy.other, tx);
            }
        }
        rx
    }

    /// The server knows of no copy any more: those who wait hear that theirs is lost.
    pub(crate) fn lose_all(&self) {
        let mut table = self.0.lock();
        table.waiting.clear();
        table.early.clear();
    }

    /// Nobody waits for this copy any more.
    pub(crate) fn forget(&self, copy: Stateid) {
        self.0.lock().waiting.remove(&copy.other);
    }

    /// A CB_OFFLOAD came; the status to answer with.
    pub(crate) fn completed(&self, copy: Stateid, info: OffloadInfo) -> Status {
        let mut table = self.0.lock();
        if let Some(tx) = table.waiting.remove(&copy.other) {
            let _ = tx.send(info);
            return Status::OK;
        }
        if table.unanswered == 0 {
            return Status::BAD_STATEID;
        }
        if table.early.len() >= EARLY {
            table.early.pop_front();
        }
        table.early.push_back((copy.other, info));
        Status::OK
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let mut table = self.0.0.lock();
        table.unanswered -= 1;
        if table.unanswered == 0 {
            table.early.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: OffloadInfo = OffloadInfo::Err { status: Status::NOSPC, bytes_copied: 7 };

    fn copy(n: u8) -> Stateid {
        Stateid { seqid: 1, other: [n; 12] }
    }

    #[test]
    fn a_waiting_copy_is_told() {
        let o = Offloads::default();
        let reply = o.begin();
        let mut rx = o.expect(copy(1));
        drop(reply);
        assert_eq!(o.completed(copy(1), INFO), Status::OK);
        assert_eq!(rx.try_recv(), Ok(INFO));
        assert_eq!(o.completed(copy(1), INFO), Status::BAD_STATEID, "known no more");
    }

    /// Case K05.
    #[test]
    fn a_callback_that_overtakes_the_reply_is_kept() {
        let o = Offloads::default();
        let reply = o.begin();
        assert_eq!(o.completed(copy(2), INFO), Status::OK);
        let mut rx = o.expect(copy(2));
        drop(reply);
        assert_eq!(rx.try_recv(), Ok(INFO));
    }

    #[test]
    fn completions_nobody_can_want_are_bounded_and_dropped() {
        let o = Offloads::default();
        assert_eq!(o.completed(copy(3), INFO), Status::BAD_STATEID);
        let reply = o.begin();
        for n in 0..2 * EARLY {
            let mut other = [0; 12];
            other[..8].copy_from_slice(&(n as u64).to_be_bytes());
            o.completed(Stateid { seqid: 1, other }, INFO);
        }
        assert_eq!(o.0.lock().early.len(), EARLY);
        drop(reply);
        assert_eq!(o.0.lock().early.len(), 0);
    }

    #[test]
    fn a_forgotten_copy_is_unknown() {
        let o = Offloads::default();
        let _rx = o.expect(copy(4));
        o.forget(copy(4));
        assert_eq!(o.completed(copy(4), INFO), Status::BAD_STATEID);
    }
}
