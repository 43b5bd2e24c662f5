//! Where servers are: `netloc4` (RFC 7862 4.7) with universal addresses (RFC 5665), and which addresses a copy may go to.

use crate::netmatch::NetMatch;
use bytes::Bytes;
use dhow_proto::v4::{NetAddr, NetLoc};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The port of NFS, meant where a location names none or 0.
const NFS_PORT: u16 = 2049;

/// The location of a TCP address: `h1.h2.h3.h4.p1.p2` or `x:x::x.p1.p2` (RFC 5665 5.2.3.3, 5.2.3.4).
pub fn to_netloc(addr: SocketAddr) -> NetLoc {
    let [high, low] = addr.port().to_be_bytes();
    let ip = addr.ip().to_canonical();
    let netid = if ip.is_ipv4() { "tcp" } else { "tcp6" };
    NetLoc::Addr(NetAddr { netid: Bytes::from_static(netid.as_bytes()), addr: format!("{ip}.{high}.{low}").into() })
}

/// The TCP address that a location stands for: a universal address, or a name that is an address in letters. `None`
/// for true names and for URLs, which are not resolved, for other transports and for what does not parse.
pub fn from_netloc(loc: &NetLoc) -> Option<SocketAddr> {
    match loc {
        NetLoc::Addr(NetAddr { netid, addr }) => {
            let text = std::str::from_utf8(addr).ok()?;
            let (rest, low) = text.rsplit_once('.')?;
            let (host, high) = rest.rsplit_once('.')?;
            let port = u16::from_be_bytes([digits(high)?, digits(low)?]);
            let ip: IpAddr = match &netid[..] {
                b"tcp" => host.parse::<Ipv4Addr>().ok()?.into(),
                b"tcp6" => host.parse::<Ipv6Addr>().ok()?.into(),
                _ => return None,
            };
            Some(SocketAddr::new(ip.to_canonical(), if port == 0 { NFS_PORT } else { port }))
        }
        NetLoc::Name(name) => {
            let ip: IpAddr = std::str::from_utf8(name).ok()?.parse().ok()?;
            Some(SocketAddr::new(ip.to_canonical(), NFS_PORT))
        }
        NetLoc::Url(_) => None,
    }
}

/// A number from 0 to 255, digits only.
fn digits(text: &str) -> Option<u8> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Addresses that reach this host or its link whatever the network looks like: not meant by a list that merely
/// contains them, such as `0.0.0.0/0`, but only by an entry within the range itself.
const SPECIAL: [(IpAddr, u8); 8] = [
    (IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8),
    (IpAddr::V4(Ipv4Addr::new(169, 254, 0, 0)), 16),
    (IpAddr::V4(Ipv4Addr::new(0, 0, 0, 0)), 8),
    // Multicast, reserved, broadcast.
    (IpAddr::V4(Ipv4Addr::new(224, 0, 0, 0)), 3),
    // `::` and `::1`.
    (IpAddr::V6(Ipv6Addr::UNSPECIFIED), 127),
    (IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), 10),
    (IpAddr::V6(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0)), 8),
    // IPv4 in a coat that `to_canonical` does not take off (IPv4-compatible).
    (IpAddr::V6(Ipv6Addr::UNSPECIFIED), 96),
];

/// Whether `list` allows `ip`. Loopback, link-local, multicast and unspecified addresses are allowed only by an entry
/// that lies within their range.
pub fn allowed(list: &[NetMatch], ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    let special = SPECIAL.iter().find(|(net, bits)| NetMatch::new(*net, *bits).contains(ip));
    list.iter().filter(|net| net.contains(ip)).any(|net| {
        special.is_none_or(|(range, bits)| net.bits() >= *bits && NetMatch::new(*range, *bits).contains(net.addr()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(netid: &'static str, addr: &'static str) -> Option<SocketAddr> {
        from_netloc(&NetLoc::Addr(NetAddr { netid: netid.into(), addr: addr.into() }))
    }

    #[test]
    fn universal_addresses() {
        // RFC 5665 5.2.3.3 and 5.2.3.4.
        for text in ["192.0.2.7:2049", "192.0.2.7:65535", "[2001:db8::7]:20049", "[::1]:1"] {
            let there: SocketAddr = text.parse().unwrap();
            assert_eq!(from_netloc(&to_netloc(there)), Some(there));
        }
        assert_eq!(addr("tcp", "192.0.2.7.8.1"), Some("192.0.2.7:2049".parse().unwrap()));
        assert_eq!(addr("tcp", "192.0.2.7.0.0"), Some("192.0.2.7:2049".parse().unwrap()), "no port: that of NFS");
        assert_eq!(addr("tcp6", "::ffff:192.0.2.7.8.1"), Some("192.0.2.7:2049".parse().unwrap()));
        for bad in ["", "1.2", "192.0.2.7", "192.0.2.7.256.1", "192.0.2.7.+8.1", "192.0.2.7.8.1 ", "h.8.1", "1.2.3.8.1"]
        {
            assert_eq!(addr("tcp", bad), None, "{bad:?}");
        }
        assert_eq!(addr("udp", "192.0.2.7.8.1"), None);
        assert_eq!(addr("tcp6", "fe80::1%eth0.8.1"), None);
        assert_eq!(addr("tcp", "2001:db8::7.8.1"), None);
        assert_eq!(from_netloc(&NetLoc::Name("192.0.2.7".into())), Some("192.0.2.7:2049".parse().unwrap()));
        assert_eq!(from_netloc(&NetLoc::Name("host".into())), None);
        assert_eq!(from_netloc(&NetLoc::Url("nfs://192.0.2.7/".into())), None);
    }

    #[test]
    fn special_addresses_must_be_named() {
        let ok = |list: &[&str], ip: &str| {
            let list: Vec<NetMatch> = list.iter().map(|n| n.parse().unwrap()).collect();
            allowed(&list, ip.parse().unwrap())
        };
        let all = ["0.0.0.0/0", "::/0"];
        assert!(ok(&all, "192.0.2.7") && ok(&all, "2001:db8::1") && !ok(&[], "192.0.2.7"));
        for ip in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "0.1.2.3",
            "169.254.1.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::127.0.0.1",
        ] {
            assert!(!ok(&all, ip), "{ip}");
        }
        assert!(ok(&["127.0.0.1"], "127.0.0.1") && !ok(&["127.0.0.1"], "127.0.0.2"));
        assert!(ok(&["127.0.0.0/8"], "127.0.0.2") && !ok(&["126.0.0.0/7"], "127.0.0.2"));
        assert!(ok(&["::1"], "::1") && ok(&["fe80::/10"], "fe80::1") && !ok(&["f000::/4"], "fe80::1"));
        assert!(ok(&["127.0.0.0/8"], "::ffff:127.0.0.1"));
    }
}
