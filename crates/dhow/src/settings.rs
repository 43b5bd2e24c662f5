//! Limits and times of the server, by their names in the configuration file.

use crate::value::{Value, Wrong};
use dhow_server::ServerLimits;
use dhow_server::copy::{CommitPolicy, CopyConfig};
use dhow_state::Limits;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Limits and times of the server.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Of transport and requests.
    pub server: ServerLimits,
    /// Of clients, sessions, opens, locks and copies.
    pub state: Limits,
    /// How copies are done.
    pub copy: CopyConfig,
}

/// A setting.
pub struct Key {
    /// Its name, with its table: `limits.opens_per_client`.
    pub name: &'static str,
    /// Takes the value.
    pub set: fn(&mut Settings, &Value) -> Result<(), Wrong>,
    /// The value in force, as the file would have it.
    pub shown: fn(&Settings) -> String,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Times that can be chosen for anything: long ones overflow nothing, and nothing needs more.
const ANY_TIME: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(366 * 24 * 3600);

fn fits<T: TryFrom<u64>>(number: u64) -> Result<T, Wrong> {
    T::try_from(number).map_err(|_| "is too large".into())
}

macro_rules! number {
    ($name:literal, $($field:ident).+, $range:expr) => {
        Key {
            name: $name,
            set: |s, v| {
                s.$($field).+ = fits(v.number($range)?)?;
                Ok(())
            },
            shown: |s| s.$($field).+.to_string(),
        }
    };
}

macro_rules! size {
    ($name:literal, $($field:ident).+, $range:expr) => {
        Key {
            name: $name,
            set: |s, v| {
                s.$($field).+ = fits(v.size($range)?)?;
                Ok(())
            },
            shown: |s| crate::words::bytes(s.$($field).+ as u64),
        }
    };
}

macro_rules! time {
    ($name:literal, $($field:ident).+, $range:expr) => {
        Key {
            name: $name,
            set: |s, v| {
                s.$($field).+ = v.duration($range)?;
                Ok(())
            },
            shown: |s| format!("{:?}", s.$($field).+),
        }
    };
}

/// Words for when the end of a copy is made durable.
const COMMIT: &[(&str, CommitPolicy)] =
    &[("auto", CommitPolicy::Auto), ("always", CommitPolicy::Always), ("never", CommitPolicy::Never)];

/// Every setting.
pub const KEYS: &[Key] = &[
    time!("lease", state.lease, Duration::from_secs(5)..=Duration::from_secs(3600)),
    time!("grace", state.grace, Duration::from_secs(5)..=Duration::from_secs(3600)),
    time!("courtesy", state.courtesy, ANY_TIME),
    time!("drain", server.drain, ANY_TIME),
    time!("copy.sync_budget", copy.sync_budget, Duration::ZERO..=Duration::from_secs(60)),
    Key {
        name: "copy.strict_eof",
        set: |s, v| {
            s.copy.strict_eof = v.boolean()?;
            Ok(())
        },
        shown: |s| s.copy.strict_eof.to_string(),
    },
    Key {
        name: "copy.commit",
        set: |s, v| {
            s.copy.commit = v.one_of(COMMIT)?;
            Ok(())
        },
        shown: |s| COMMIT.iter().find(|w| w.1 == s.copy.commit).map_or_else(String::new, |w| format!("\"{}\"", w.0)),
    },
    time!("copy.keep_finished", state.finished_copy_time, ANY_TIME),
    number!("copy.max_per_client", state.copies_per_client, 0..=100_000),
    number!("copy.max_total", state.copies, 0..=100_000),
    number!("copy.max_finished_per_client", state.finished_copies_per_client, 1..=100_000),
    number!("limits.connections", server.connections, 1..=1_000_000),
    number!("limits.calls_per_connection", server.calls_per_connection, 1..=65_536),
    size!("limits.max_io", server.max_io, 64 * KIB..=4 * MIB),
    size!("limits.request_bytes", server.request_bytes, 8 * MIB..=1024 * GIB),
    size!("limits.request_bytes_per_connection", server.request_bytes_per_connection, 4 * MIB..=1024 * GIB),
    size!("limits.reply_bytes_per_connection", server.reply_bytes_per_connection, MIB..=1024 * GIB),
    time!("limits.partial_timeout", server.partial_timeout, Duration::from_secs(1)..=Duration::from_secs(3600)),
    number!("limits.clients", state.clients, 1..=10_000_000),
    number!("limits.unconfirmed_clients", state.unconfirmed_clients, 1..=10_000_000),
    number!("limits.sessions_per_client", state.sessions_per_client, 1..=65_536),
    number!("limits.sessions", state.sessions, 1..=10_000_000),
    number!("limits.connections_per_session", state.conns_per_session, 1..=65_536),
    number!("limits.slots_per_session", state.slots_per_session, 1..=2048),
    number!("limits.slots_min", state.slots_min, 1..=2048),
    size!("limits.cached_reply", state.max_cached_reply, KIB..=MIB),
    size!("limits.cached_bytes", state.cached_bytes, MIB..=1024 * GIB),
    number!("limits.operations_per_compound", state.max_ops, 16..=4096),
    number!("limits.callback_slots", state.callback_slots, 1..=1024),
    number!("limits.opens_per_client", state.opens_per_client, 1..=100_000_000),
    number!("limits.opens", state.opens, 1..=100_000_000),
    number!("limits.lock_owners_per_open", state.lock_owners_per_open, 1..=100_000_000),
    number!("limits.locks_per_file", state.locks_per_file, 1..=100_000_000),
    number!("limits.locks_per_client", state.locks_per_client, 1..=100_000_000),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_taken_and_checked() {
        let mut settings = Settings::default();
        let key = |name: &str| KEYS.iter().find(|k| k.name == name).unwrap();
        (key("lease").set)(&mut settings, &Value::Int(30)).unwrap();
        (key("limits.max_io").set)(&mut settings, &Value::Text("256K".into())).unwrap();
        (key("copy.max_total").set)(&mut settings, &Value::Int(3)).unwrap();
        assert_eq!(settings.state.lease, Duration::from_secs(30));
        assert_eq!((settings.server.max_io, settings.state.copies), (256 << 10, 3));
        assert_eq!((key("limits.max_io").shown)(&settings), "256.0 KiB");
        let error = (key("limits.max_io").set)(&mut settings, &Value::Int(12)).unwrap_err();
        assert_eq!(error, "must be from 64.0 KiB to 4.0 MiB");
        let error = (key("lease").set)(&mut settings, &Value::Text("soon".into())).unwrap_err();
        assert!(error.starts_with("must be a duration from 5s to 3600s"), "{error}");
    }

    /// docs/configuration.md states the default of each setting in its table.
    #[test]
    fn documented_defaults_are_true() {
        let docs = include_str!("../../../docs/configuration.md");
        let settings = Settings::default();
        for key in KEYS {
            let start = format!("| `{}` |", key.name);
            let line = docs.lines().find(|l| l.starts_with(&start)).unwrap_or_else(|| panic!("{start} is missing"));
            let shown = (key.shown)(&settings);
            assert!(line.contains(&format!("| {shown} |")), "{line}: the default is {shown}");
        }
    }
}
