//! Limits and times of the server, by their names in the configuration file.

use crate::value::{Value, Wrong};
use dhow_server::copy::{CheckDestination, CommitPolicy, CopyConfig};
use dhow_server::{IdConfig, NetMatch, ServerLimits};
use dhow_state::Limits;
use std::net::{IpAddr, SocketAddr};
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
    /// Names of users and groups. The domain counts only with `owner_names`.
    pub ids: IdConfig,
    /// Owners are shown and taken by name.
    pub owner_names: bool,
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

/// Words for what happens when another server reads than the destination that was named.
const CHECK: &[(&str, CheckDestination)] =
    &[("off", CheckDestination::Off), ("warn", CheckDestination::Warn), ("enforce", CheckDestination::Enforce)];

/// Words for what is off unless it is wanted.
const SWITCH: &[(&str, bool)] = &[("off", false), ("on", true)];

/// How owners are shown.
const OWNERS: &[(&str, bool)] = &[("numbers", false), ("names", true)];

/// The word for a value, as the file would have it.
fn word<T: PartialEq>(words: &[(&str, T)], value: T) -> String {
    words.iter().find(|w| w.1 == value).map_or_else(String::new, |w| format!("\"{}\"", w.0))
}

fn shown_list<T: std::fmt::Display>(list: &[T]) -> String {
    let items: Vec<_> = list.iter().map(|n| format!("\"{n}\"")).collect();
    format!("[{}]", items.join(", "))
}

fn networks(v: &Value) -> Result<Vec<NetMatch>, Wrong> {
    v.list()?.iter().map(|t| t.parse::<NetMatch>()).collect::<Result<_, _>>().map_err(|e| format!("is wrong: {e}"))
}

/// Addresses with ports; without one, the port of NFS.
fn addresses(v: &Value) -> Result<Vec<SocketAddr>, Wrong> {
    let one = |t: &String| {
        let alone = || t.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, crate::serve::PORT));
        t.parse::<SocketAddr>().or_else(|_| alone()).map_err(|_| {
            format!("is wrong: `{t}` is not an address; write ADDR or ADDR:PORT, for example 192.0.2.7:2049")
        })
    };
    v.list()?.iter().map(one).collect()
}

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
    Key {
        name: "copy.inter_server",
        set: |s, v| {
            s.copy.inter.enabled = v.one_of(SWITCH)?;
            Ok(())
        },
        shown: |s| word(SWITCH, s.copy.inter.enabled),
    },
    Key {
        name: "copy.sources",
        set: |s, v| {
            s.copy.inter.sources = networks(v)?;
            Ok(())
        },
        shown: |s| shown_list(&s.copy.inter.sources),
    },
    Key {
        name: "copy.destinations",
        set: |s, v| {
            s.copy.inter.destinations = networks(v)?;
            Ok(())
        },
        shown: |s| shown_list(&s.copy.inter.destinations),
    },
    Key {
        name: "copy.addresses",
        set: |s, v| {
            s.copy.inter.addresses = addresses(v)?;
            Ok(())
        },
        shown: |s| shown_list(&s.copy.inter.addresses),
    },
    Key {
        name: "copy.check_destination",
        set: |s, v| {
            s.copy.inter.check_destination = v.one_of(CHECK)?;
            Ok(())
        },
        shown: |s| word(CHECK, s.copy.inter.check_destination),
    },
    time!("copy.source_idle", copy.inter.source_idle, ANY_TIME),
    time!("copy.source_wait", copy.inter.source_wait, Duration::from_secs(1)..=Duration::from_secs(3600)),
    time!("copy.source_connect", copy.inter.source_connect, Duration::from_secs(1)..=Duration::from_secs(600)),
    time!("copy.source_timeout", copy.inter.source_timeout, Duration::from_secs(1)..=Duration::from_secs(3600)),
    number!("copy.max_sources", copy.inter.max_sources, 1..=100_000),
    size!("copy.bandwidth", copy.inter.bandwidth, 0..=u64::MAX),
    size!("copy.bandwidth_total", copy.inter.bandwidth_total, 0..=u64::MAX),
    size!("copy.buffer", copy.inter.buffer, MIB..=1024 * GIB),
    number!("copy.notifies_per_open", state.copy_notifies_per_open, 1..=100_000),
    number!("copy.notifies_per_client", state.copy_notifies_per_client, 1..=100_000_000),
    number!("copy.notifies_total", state.copy_notifies, 1..=100_000_000),
    time!("copy.keep_finished", state.finished_copy_time, ANY_TIME),
    number!("copy.max_per_client", state.copies_per_client, 0..=100_000),
    number!("copy.max_total", state.copies, 0..=100_000),
    number!("copy.max_finished_per_client", state.finished_copies_per_client, 1..=100_000),
    Key {
        name: "ids.owners",
        set: |s, v| {
            s.owner_names = v.one_of(OWNERS)?;
            Ok(())
        },
        shown: |s| word(OWNERS, s.owner_names),
    },
    Key {
        name: "ids.domain",
        set: |s, v| {
            let domain = v.text()?;
            if domain.is_empty() || domain.len() > 255 || domain.contains(|c: char| c == '@' || !c.is_ascii_graphic()) {
                return Err("must be a domain name, for example \"example.net\"".into());
            }
            s.ids.domain = Some(domain.to_owned());
            Ok(())
        },
        shown: |s| s.ids.domain.as_ref().map_or_else(|| "none".to_owned(), |d| format!("\"{d}\"")),
    },
    Key {
        name: "ids.lookup_groups",
        set: |s, v| {
            s.ids.lookup_groups = v.boolean()?;
            Ok(())
        },
        shown: |s| s.ids.lookup_groups.to_string(),
    },
    time!("ids.keep", ids.keep, ANY_TIME),
    time!("ids.keep_unknown", ids.keep_unknown, ANY_TIME),
    time!("ids.patience", ids.patience, Duration::from_millis(100)..=Duration::from_secs(60)),
    number!("ids.entries", ids.entries, 16..=10_000_000),
    number!("limits.connections", server.connections, 1..=1_000_000),
    number!("limits.connections_per_peer", server.connections_per_peer, 1..=1_000_000),
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
    number!("limits.delegations_per_client", state.delegations_per_client, 1..=100_000_000),
    number!("limits.delegations", state.delegations, 1..=100_000_000),
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
            // And can be written in the file as it stands there.
            if shown.ends_with('B') {
                let mut again = Settings::default();
                (key.set)(&mut again, &Value::Text(shown.clone())).unwrap_or_else(|e| panic!("{shown}: {e}"));
                assert_eq!((key.shown)(&again), shown);
            }
        }
    }
}
