//! What stands in a request's way and goes in a while: delegations of others, which are recalled (RFC 8881 10.4.4), and
//! clients whose lease has ended, which are retired (case B32).
//!
//! Whoever waits here holds no gate of a file and no lock of a name: the holder of a delegation may have to OPEN, LOCK and
//! WRITE the same file before it can return it, and the end of a client passes the gates of its files. Afterwards the
//! request is judged again from the start.

use crate::shared::ServerShared;
use dhow_proto::v4::Status;
use dhow_state::Refused;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long a request waits for delegations that are in its way before it answers DELAY.
const RETURN_WAIT: Duration = Duration::from_millis(500);

/// It looks again after this time at the latest.
const LOOK: Duration = Duration::from_millis(50);

/// Ended clients that one request may have to retire before it answers DELAY.
const ROUNDS: u32 = 8;

/// What one request has waited for so far.
#[derive(Debug, Default)]
pub(crate) struct Way {
    /// Until when it may wait for delegations, in all.
    until: Option<Instant>,
    /// Clients that it retired.
    retired: u32,
}

impl Way {
    /// Sends the recalls and waits until some delegation came back, or a moment; or retires the client that has ended.
    /// Then the request is judged again. The caller holds no gate and no lock.
    ///
    /// # Errors
    /// What to answer: the status of the refusal; DELAY if it has waited long enough.
    pub async fn clear(&mut self, server: &Arc<ServerShared>, refused: Refused) -> Result<(), Status> {
        match refused {
            Refused::Status(status) => Err(status),
            Refused::Courtesy(id) => {
                self.retired += 1;
                if self.retired > ROUNDS {
                    return Err(Status::DELAY);
                }
                server.clear_the_way(id).await
            }
            Refused::Delegated(recalls) => {
                let gone = server.delegations_gone.notified();
                server.send_recalls(recalls);
                let now = Instant::now();
                let until = *self.until.get_or_insert(now + RETURN_WAIT);
                if now >= until {
                    return Err(Status::DELAY);
                }
                let _ = tokio::time::timeout(LOOK.min(until - now), gone).await;
                Ok(())
            }
        }
    }
}
