//! Under which addresses a source tells destinations to come (RFC 7862 15.3.3: `cnr_source_server`).
//!
//! `copy.addresses`, if it is set. Else every address that this server listens on, where it listens on all of them
//! ([`is_unspecified`](std::net::IpAddr::is_unspecified)) those of the interfaces; the best first, since some
//! destinations try no other (Linux): of the destination's address family, in a network that the destination is in too,
//! the one that the client used. Loopback and link-local addresses mean another host to somebody else: they are named
//! only where the client used them.

use crate::netmatch::NetMatch;
use parking_lot::Mutex;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Tells the addresses of the interfaces, each with the size of its network.
pub type Interfaces = fn() -> Vec<NetMatch>;

/// Addresses named at most.
const MOST: usize = 8;
/// How long the addresses of interfaces are believed.
const FRESH: Duration = Duration::from_secs(5);

/// The addresses of the interfaces, asked for now and then.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<Option<(Instant, Vec<NetMatch>)>>);

impl Known {
    /// As `ask` says, or said a moment ago.
    pub fn get(&self, ask: Option<Interfaces>) -> Vec<NetMatch> {
        let Some(ask) = ask else { return Vec::new() };
        let mut known = self.0.lock();
        match &*known {
            Some((since, list)) if since.elapsed() < FRESH => list.clone(),
            _ => {
                let list = ask();
                *known = Some((Instant::now(), list.clone()));
                list
            }
        }
    }
}

fn canonical(addr: &SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

/// Whether an address means this host, or one on the same link, to everybody who has it.
fn is_private_to_host(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_link_local() || ip.is_multicast(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unicast_link_local() || ip.is_multicast(),
    }
}

/// The addresses for a destination, the best first. `local`: the one that the client used.
pub(crate) fn best_first(
    listening: &[SocketAddr],
    interfaces: &[NetMatch],
    local: Option<SocketAddr>,
    destination: Option<IpAddr>,
) -> Vec<SocketAddr> {
    let local = local.as_ref().map(canonical);
    let mut list: Vec<SocketAddr> = local.into_iter().filter(|a| !a.ip().is_unspecified()).collect();
    let mut add = |addr: SocketAddr| {
        if !list.contains(&addr) {
            list.push(addr);
        }
    };
    for listen in listening {
        let addr = canonical(listen);
        if !addr.ip().is_unspecified() {
            add(addr);
            continue;
        }
        // A listener of all addresses of IPv6 takes those of IPv4 too, unless somebody else does at that port.
        let both = addr.is_ipv6() && !listening.iter().any(|other| other.is_ipv4() && other.port() == addr.port());
        let ips = interfaces.iter().map(|i| i.addr().to_canonical());
        let alike = ips.filter(|ip| both || ip.is_ipv4() == addr.is_ipv4());
        alike.filter(|ip| !is_private_to_host(*ip)).for_each(|ip| add(SocketAddr::new(ip, addr.port())));
    }
    let family = destination.or(local.map(|a| a.ip())).map(|ip| ip.to_canonical().is_ipv4());
    let beside = |ip: IpAddr| {
        destination.is_some_and(|d| interfaces.iter().any(|i| i.addr().to_canonical() == ip && i.contains(d)))
    };
    // Stable: what is alike keeps the order in which it came, that of the client first.
    list.sort_by_key(|a| (family.is_some_and(|v4| v4 != a.is_ipv4()), !beside(a.ip())));
    list.truncate(MOST);
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sort(listening: &[&str], interfaces: &[&str], local: &str, destination: Option<&str>) -> Vec<String> {
        let listening: Vec<SocketAddr> = listening.iter().map(|a| a.parse().unwrap()).collect();
        let interfaces: Vec<NetMatch> = interfaces.iter().map(|i| i.parse().unwrap()).collect();
        let destination = destination.map(|d| d.parse().unwrap());
        let list = best_first(&listening, &interfaces, Some(local.parse().unwrap()), destination);
        list.iter().map(ToString::to_string).collect()
    }

    const INTERFACES: [&str; 6] =
        ["127.0.0.1/8", "10.0.0.5/24", "10.9.0.5/24", "2001:db8::5/64", "fe80::5/64", "169.254.7.7/16"];

    #[test]
    fn a_wildcard_stands_for_the_interfaces() {
        let both = ["0.0.0.0:2049", "[::]:2049"];
        let found = sort(&both, &INTERFACES, "10.0.0.5:2049", None);
        assert_eq!(found, ["10.0.0.5:2049", "10.9.0.5:2049", "[2001:db8::5]:2049"]);
        // Each has the port of its listener.
        assert_eq!(sort(&["0.0.0.0:20049"], &INTERFACES, "10.9.0.5:20049", None), ["10.9.0.5:20049", "10.0.0.5:20049"]);
        // One listener for both families, and one of IPv6 alone, because somebody else has IPv4 at that port.
        let one = sort(&["[::]:2049"], &INTERFACES, "[2001:db8::5]:2049", None);
        assert_eq!(one, ["[2001:db8::5]:2049", "10.0.0.5:2049", "10.9.0.5:2049"]);
        let other = ["[::]:2049", "10.0.0.5:2049"];
        assert_eq!(sort(&other, &INTERFACES, "10.0.0.5:2049", None), ["10.0.0.5:2049", "[2001:db8::5]:2049"]);
    }

    #[test]
    fn the_best_comes_first() {
        let both = ["0.0.0.0:2049", "[::]:2049"];
        let first = |local, destination| sort(&both, &INTERFACES, local, Some(destination)).remove(0);
        // In the destination's network.
        assert_eq!(first("10.0.0.5:2049", "10.9.0.77"), "10.9.0.5:2049");
        // In none of ours: as the client came.
        assert_eq!(first("10.9.0.5:2049", "192.0.2.1"), "10.9.0.5:2049");
        // Of its family.
        assert_eq!(first("10.0.0.5:2049", "2001:db8:1::9"), "[2001:db8::5]:2049");
        assert_eq!(first("[2001:db8::5]:2049", "192.0.2.1"), "10.0.0.5:2049");
        assert_eq!(first("[::ffff:10.9.0.5]:2049", "::ffff:192.0.2.1"), "10.9.0.5:2049");
    }

    #[test]
    fn addresses_of_this_host_alone_are_named_only_if_used() {
        assert_eq!(
            sort(&["0.0.0.0:2049"], &INTERFACES, "127.0.0.1:2049", Some("127.0.0.1")).remove(0),
            "127.0.0.1:2049"
        );
        assert!(!sort(&["0.0.0.0:2049"], &INTERFACES, "10.0.0.5:2049", None).iter().any(|a| a.starts_with("127.")));
        // Listeners of single addresses are named as they are, without interfaces too.
        assert_eq!(sort(&["10.0.0.5:1", "127.0.0.1:2"], &[], "10.0.0.5:1", None), ["10.0.0.5:1", "127.0.0.1:2"]);
        let many: Vec<String> = (1..100).map(|i| format!("10.1.{i}.1/24")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(sort(&["0.0.0.0:2049"], &many, "10.1.50.1:2049", None).len(), MOST);
    }
}
