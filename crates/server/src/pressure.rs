//! Which limits were reached, and how often: one list, by the names that the configuration has for them.
//!
//! Each limit is counted where it is defended (`dhow_state::LimitHits`, `ServerMetrics`, `NetMetrics`); here the counters
//! come together, for an exporter, for tests, and for the log: once a minute it names the limits that were reached
//! since, so that an administrator learns of it without a line for every request.

use crate::shared::ServerShared;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How often the log tells of limits.
const EVERY: Duration = Duration::from_secs(60);

impl ServerShared {
    /// Every limit that is counted: its name in the configuration, and how often it was reached since the start.
    pub fn limit_hits(&self) -> Vec<(&'static str, u64)> {
        let hits = self.state.limit_hits();
        let (net, own) = (&self.net.metrics, &self.metrics);
        let n = |counter: &AtomicU64| counter.load(Relaxed);
        vec![
            ("limits.connections", n(&net.refused)),
            ("limits.connections_per_peer", n(&net.refused_peer)),
            ("limits.calls_per_connection", n(&own.call_limit_hits)),
            ("limits.request_bytes", n(&net.budget_waits)),
            ("limits.reply_bytes_per_connection", n(&net.write_stalls)),
            ("limits.partial_timeout", n(&net.partial_timeouts)),
            ("limits.clients", hits.clients.count()),
            ("limits.unconfirmed_clients", hits.unconfirmed_clients.count()),
            ("limits.sessions", hits.sessions.count()),
            ("limits.connections_per_session", self.state.session_conn_hits()),
            ("limits.cached_bytes", hits.slots.count()),
            ("limits.operations_per_compound", n(&own.op_limit_hits)),
            ("limits.opens", hits.opens.count()),
            ("limits.delegations", hits.delegations.count()),
            ("limits.lock_owners_per_open", hits.lock_owners.count()),
            ("limits.locks_per_file", hits.locks.count()),
            ("copy.max_total", hits.copies.count()),
            ("copy.max_sources", n(&own.inter.source_limit_hits)),
            ("copy.notifies_total", hits.copy_notifies.count()),
        ]
    }
}

/// Back-pressure, which belongs to the daily work of a fast client, and is counted only.
const QUIET: &[&str] = &["limits.calls_per_connection", "limits.request_bytes", "limits.reply_bytes_per_connection"];

/// What is worth a line: `limits.opens (3 times), ...`; empty if there is nothing new.
fn news(before: &[(&'static str, u64)], now: &[(&'static str, u64)]) -> String {
    let was = |name: &str| before.iter().find(|b| b.0 == name).map_or(0, |b| b.1);
    let grown = now.iter().map(|(name, n)| (*name, n.saturating_sub(was(name))));
    let grown = grown.filter(|(name, n)| *n > 0 && !QUIET.contains(name));
    grown.map(|(name, n)| format!("{name} ({n} times)")).collect::<Vec<_>>().join(", ")
}

/// Tells the log for ever.
pub(crate) async fn tell(shared: Arc<ServerShared>) {
    let mut before = Vec::new();
    loop {
        tokio::time::sleep(EVERY).await;
        let now = shared.limit_hits();
        let news = news(&before, &now);
        if !news.is_empty() {
            tracing::warn!("limits were reached in the last minute: {news}; see docs/configuration.md");
        }
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_new_and_matters_is_told() {
        let before = [("limits.opens", 2), ("limits.clients", 1)];
        assert_eq!(news(&before, &before), "");
        let now = [("limits.opens", 5), ("limits.clients", 1), ("limits.request_bytes", 9), ("copy.max_total", 1)];
        assert_eq!(news(&before, &now), "limits.opens (3 times), copy.max_total (1 times)");
    }
}
