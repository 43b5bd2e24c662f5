//! Networks that clients are told apart by.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A network: an address and the number of leading bits that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetMatch {
    addr: IpAddr,
    bits: u8,
}

/// Why a text is no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is neither an address nor a network such as 192.0.2.0/24 or 2001:db8::/32")]
pub struct BadNet(String);

impl NetMatch {
    /// A network of `addr` and `bits`; too many bits count as all.
    pub fn new(addr: IpAddr, bits: u8) -> Self {
        Self { addr, bits }
    }

    /// The address it was made of.
    pub fn addr(&self) -> IpAddr {
        self.addr
    }

    /// Leading bits that count.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Whether `peer` is in it. An IPv4 address in IPv6 clothes (`::ffff:a.b.c.d`) counts as IPv4.
    pub fn contains(&self, peer: IpAddr) -> bool {
        match (self.addr.to_canonical(), peer.to_canonical()) {
            (IpAddr::V4(net), IpAddr::V4(peer)) => {
                let shift = 32 - u32::from(self.bits).min(32);
                (u32::from(net) ^ u32::from(peer)).checked_shr(shift).unwrap_or(0) == 0
            }
            (IpAddr::V6(net), IpAddr::V6(peer)) => {
                let shift = 128 - u32::from(self.bits).min(128);
                (u128::from(net) ^ u128::from(peer)).checked_shr(shift).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

impl FromStr for NetMatch {
    type Err = BadNet;

    fn from_str(s: &str) -> Result<Self, BadNet> {
        let bad = || BadNet(s.to_owned());
        let (addr, bits) = s.split_once('/').map_or((s, None), |(a, b)| (a, Some(b)));
        let addr: IpAddr = addr.parse().map_err(|_| bad())?;
        let most = if addr.is_ipv4() { 32 } else { 128 };
        let bits: u8 = bits.map_or(Ok(most), str::parse).map_err(|_| bad())?;
        if bits > most {
            return Err(bad());
        }
        match (addr, addr.to_canonical()) {
            // A network of IPv4 in the clothes of IPv6 is that of IPv4; one that reaches beyond them is a mistake.
            (IpAddr::V6(_), addr @ IpAddr::V4(_)) => {
                bits.checked_sub(128 - 32).map(|bits| Self { addr, bits }).ok_or_else(bad)
            }
            _ => Ok(Self { addr, bits }),
        }
    }
}

impl fmt::Display for NetMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_by_prefix() {
        let hit = |net: &str, peer: &str| net.parse::<NetMatch>().unwrap().contains(peer.parse().unwrap());
        assert!(hit("192.0.2.0/24", "192.0.2.255"));
        assert!(!hit("192.0.2.0/24", "192.0.3.0"));
        assert!(hit("192.0.2.7", "192.0.2.7") && !hit("192.0.2.7", "192.0.2.6"));
        assert!(hit("0.0.0.0/0", "203.0.113.9") && !hit("0.0.0.0/0", "2001:db8::1"));
        assert!(hit("2001:db8::/32", "2001:db8:ffff::1") && !hit("2001:db8::/32", "2001:db9::"));
        assert!(hit("::/0", "::1"));
        assert!(hit("192.0.2.0/24", "::ffff:192.0.2.9"));
        // Written as IPv6: the same network, not one of as many bits of IPv4.
        assert!(hit("::ffff:192.0.2.0/120", "192.0.2.255") && !hit("::ffff:192.0.2.0/120", "192.0.3.0"));
        assert!(hit("::ffff:0:0/96", "203.0.113.9") && !hit("::ffff:0:0/96", "2001:db8::1"));
        assert!(hit("::ffff:192.0.2.7", "192.0.2.7") && !hit("::ffff:192.0.2.7", "192.0.2.6"));
        for bad in ["::ffff:127.0.0.1/8", "::ffff:127.0.0.1/95"] {
            assert!(bad.parse::<NetMatch>().is_err(), "{bad}");
        }
        for bad in ["", "x", "192.0.2.0/33", "192.0.2.0/", "::/129", "192.0.2/24"] {
            assert!(bad.parse::<NetMatch>().is_err(), "{bad}");
        }
    }
}
