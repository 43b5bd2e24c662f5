//! How a client is to be set up.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dhow_rpc::{AuthSys, Credential};
use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::NfsUrl;

/// Everything a client needs to know before it connects. Start from [`ClientConfig::new`] and change fields.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ClientConfig {
    /// `host:port` for messages.
    pub server: String,
    /// Addresses of the server, tried in this order.
    pub addrs: Vec<SocketAddr>,
    /// Minor versions to offer, the preferred first; each 1 or 2.
    pub minor_versions: Vec<u32>,
    /// TCP connections bound to the session (trunking). At least 1.
    pub connections: usize,
    /// Slots to ask for, and the most ever used: requests in flight.
    pub slots: u32,
    /// Sessions at most. More than one are made, each with a connection of its own, while requests wait for slots of
    /// a server that grants fewer than `slots`.
    pub sessions: usize,
    /// Who the client is to the server; unique to this instance when `None`. Give one where state is to be reclaimed
    /// after a restart of this program: no two programs may use the same at the same time.
    pub owner: Option<Bytes>,
    /// Who the user is. What session calls run as, and files unless another one is given for them.
    pub credential: Credential,
    /// Largest READ and WRITE wanted in bytes; the server may allow less.
    pub max_io: u32,
    /// How long to try to connect for the first time.
    pub connect_timeout: Duration,
    /// How long a call may wait for an answer, reconnection and recovery included; `None`: for ever. The call itself
    /// may go on after that: it is the waiting that ends.
    pub call_timeout: Option<Duration>,
    /// Bind the client's sockets to ports below 1024, which some servers insist on; takes privilege.
    pub reserved_port: bool,
    /// How connections are made, if not by TCP to `addrs`.
    pub dialer: Option<Arc<dyn Dialer>>,
    /// Tells this instance of the client from others with the same `owner`; drawn at random when `None`. A server drops
    /// the state of an instance when another one comes (RFC 8881 section 18.35.4): give one in tests that are to be
    /// repeated exactly, and nowhere else.
    pub instance: Option<u64>,
}

/// Makes connections to a server over something else than TCP: a tunnel, or a link in one process.
pub trait Dialer: std::fmt::Debug + Send + Sync {
    /// One more connection: the half to read from and the half to write to. Dropping the future gives it up.
    ///
    /// # Errors
    ///
    /// When there is no connection to be had now; it is asked again later.
    fn dial(&self) -> BoxFuture<'static, std::io::Result<(ReadHalf, WriteHalf)>>;
}

/// What is read from a connection that a [`Dialer`] made.
pub type ReadHalf = Box<dyn AsyncRead + Send + Unpin>;
/// What is written to it.
pub type WriteHalf = Box<dyn AsyncWrite + Send + Unpin>;

impl ClientConfig {
    /// Defaults for the server at `addrs`: minor versions 2 then 1, one connection, 1024 slots, in up to 16 sessions
    /// where the server grants few to each, the credential of this process ([`own_credential`]), 1 MiB of I/O, 10 s to
    /// connect, 5 minutes to answer.
    pub fn new(server: impl Into<String>, addrs: Vec<SocketAddr>) -> Self {
        Self {
            server: server.into(),
            addrs,
            minor_versions: vec![2, 1],
            connections: 1,
            slots: 1024,
            sessions: 16,
            owner: None,
            credential: own_credential(),
            max_io: 1 << 20,
            connect_timeout: Duration::from_secs(10),
            call_timeout: Some(Duration::from_secs(300)),
            reserved_port: false,
            dialer: None,
            instance: None,
        }
    }

    /// As [`ClientConfig::new`], with the addresses that the host name of `url` stands for.
    ///
    /// # Errors
    ///
    /// When the name cannot be resolved.
    pub async fn for_url(url: &NfsUrl) -> std::io::Result<Self> {
        let addrs: Vec<_> = tokio::net::lookup_host((url.host(), url.port())).await?.collect();
        Ok(Self::new(url.authority(), addrs))
    }
}

/// An AUTH_SYS credential. More than 16 groups cannot be expressed (RFC 5531 appendix A); calls made with such a
/// credential fail rather than leave a group out.
pub fn auth_sys(uid: u32, gid: u32, gids: impl IntoIterator<Item = u32>) -> Credential {
    let machine = Bytes::from(host_name());
    Credential::Sys(AuthSys { stamp: 0, machine, uid, gid, gids: gids.into_iter().collect() })
}

/// The credential of this process: effective user and group, and its supplementary groups.
///
/// Of more than 16 groups the first 16 are used, as every AUTH_SYS client of the world does for its own user; a proxy
/// that forwards other people's credentials never cuts them.
pub fn own_credential() -> Credential {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| -> Vec<u32> {
        let line = status.lines().find_map(|l| l.strip_prefix(name));
        line.unwrap_or_default().split_whitespace().filter_map(|n| n.parse().ok()).collect()
    };
    // "Uid:" and "Gid:" list real, effective, saved and filesystem ids. Without /proc: nobody.
    let effective = |ids: Vec<u32>| ids.get(1).copied().unwrap_or(65534);
    let gid = effective(field("Gid:"));
    let groups = field("Groups:").into_iter().filter(|g| *g != gid).take(dhow_rpc::auth::MAX_GIDS);
    auth_sys(effective(field("Uid:")), gid, groups)
}

pub(crate) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "localhost".to_owned() } else { name.chars().take(64).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_has_a_credential_that_can_be_sent() {
        let cred = own_credential();
        assert!(matches!(&cred, Credential::Sys(_)));
        assert!(cred.to_opaque().is_ok());
    }

    /// Case B37: a group too many is an error, not dropped.
    #[test]
    fn seventeen_groups_cannot_be_sent() {
        assert!(auth_sys(1, 1, 0..16).to_opaque().is_ok());
        assert!(auth_sys(1, 1, 0..17).to_opaque().is_err());
    }
}
