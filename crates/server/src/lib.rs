//! The NFS server: from connections to operations, over any [`dhow_vfs::Backend`].
//!
//! ```text
//! Server::start ─► listeners ─► conn (a task per call) ─► dispatch (RPC) ─► v4::compound ─► v4::ops::<operation>
//!                                                                                             │        │
//!                                                                                   dhow_state     Backend
//! ```
//!
//! * [`config`]: what a server is told; [`server`]: start, run, stop; [`shared`]: what all parts share.
//! * [`exports`], `walk`: the namespace; [`fh`]: filehandles; [`cred`]: callers and squashing; `attrs`: attributes;
//!   `acl`: access control lists; [`ids`]: names of users and groups; [`errmap`]: errors to statuses; [`metrics`]: counters;
//!   `deleg`: delegations; `callback`: calls to clients; `way`: waiting for what goes in a while; [`admin`]: what an
//!   administrator sees and does; [`reload`]: other exports and limits while the server runs.
//!
//! Nothing here prints or reads files; logs go to `tracing`.

mod acl;
pub mod admin;
mod attrs;
mod callback;
mod changes;
pub mod config;
pub mod conn;
pub mod copy;
pub mod cred;
mod deleg;
mod dispatch;
pub mod errmap;
pub mod exports;
pub mod fh;
mod gates;
pub mod ids;
pub mod metrics;
pub mod netmatch;
mod pressure;
mod reaper;
mod records;
pub mod reload;
pub mod server;
pub mod shared;
pub mod store;
mod v4;
mod walk;
mod way;

pub use config::{Delegations, ExportConfig, ExportOptions, Identity, ServerConfig, ServerLimits, Squash, WallClock};
pub use copy::{CommitPolicy, CopyConfig};
pub use ids::{IdConfig, NameService};
pub use netmatch::NetMatch;
pub use reload::{Reload, ReloadError, Reloaded};
pub use server::{Running, Server, StartError};
pub use shared::{ServerShared, StatusHook};
pub use v4::compound::breach;
