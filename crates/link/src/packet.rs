//! Packets as a TUN interface with the vnet header hands them over.

use std::net::Ipv4Addr;

use dhow_sys::netns::VNET_HEADER;

const GSO_NONE: u8 = 0;
/// Bytes of an IPv4 header without options (RFC 791 section 3.1).
const IPV4_HEADER: usize = 20;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Bytes of a UDP header (RFC 768).
const UDP_HEADER: usize = 8;

/// A packet, or a run of TCP segments or of datagrams that the kernel left in one piece, on its way.
#[derive(Debug)]
pub(crate) struct Packet {
    /// The vnet header, then the IP packet.
    pub(crate) data: Vec<u8>,
    /// Bytes on the wire: for a run of segments each has headers of its own.
    pub(crate) wire: u64,
    /// Packets on the wire.
    pub(crate) segments: u32,
    /// Where it goes.
    pub(crate) to: Ipv4Addr,
}

/// What a look at the headers tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Glance {
    pub(crate) wire: u64,
    pub(crate) segments: u32,
    pub(crate) to: Ipv4Addr,
}

/// Reads the headers of what a TUN descriptor gave; `None` for anything but IPv4.
pub(crate) fn glance(data: &[u8]) -> Option<Glance> {
    let (header, ip) = data.split_at_checked(VNET_HEADER)?;
    if ip.len() < IPV4_HEADER || ip.first()? >> 4 != 4 {
        return None;
    }
    let to: [u8; 4] = ip.get(16..20)?.try_into().ok()?;
    let whole = Glance { wire: ip.len() as u64, segments: 1, to: to.into() };
    let segment = usize::from(u16::from_ne_bytes([*header.get(4)?, *header.get(5)?]));
    if *header.get(1)? == GSO_NONE || segment == 0 {
        return Some(whole);
    }
    let ip_header = usize::from(ip.first()? & 0xf) * 4;
    let headers = match *ip.get(9)? {
        TCP => ip_header + usize::from(ip.get(ip_header + 12)? >> 4) * 4,
        UDP => ip_header + UDP_HEADER,
        _ => return Some(whole),
    };
    let payload = ip.len().checked_sub(headers)?;
    let segments = payload.div_ceil(segment).max(1);
    let wire = ip.len() + (segments - 1) * headers;
    Some(Glance { wire: wire as u64, segments: u32::try_from(segments).ok()?, ..whole })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A vnet header and a TCP packet of `payload` bytes, to be cut into segments of `segment` bytes unless 0.
    pub(crate) fn tcp(payload: usize, segment: u16) -> Vec<u8> {
        let mut data = vec![0; VNET_HEADER + 20 + 32 + payload];
        if segment > 0 {
            data[1] = 1;
            data[4..6].copy_from_slice(&segment.to_ne_bytes());
        }
        data[VNET_HEADER] = 0x45;
        data[VNET_HEADER + 9] = TCP;
        data[VNET_HEADER + 16..][..4].copy_from_slice(&[10, 77, 0, 2]);
        data[VNET_HEADER + 20 + 12] = 8 << 4;
        data
    }

    #[test]
    fn a_packet_is_as_long_as_it_is() {
        let to = Ipv4Addr::new(10, 77, 0, 2);
        assert_eq!(glance(&tcp(1448, 0)), Some(Glance { wire: 1500, segments: 1, to }));
        // One segment marked as a run is one packet.
        assert_eq!(glance(&tcp(1448, 1448)), Some(Glance { wire: 1500, segments: 1, to }));
        assert_eq!(glance(&tcp(0, 1448)), Some(Glance { wire: 52, segments: 1, to }));
    }

    #[test]
    fn every_segment_of_a_run_has_headers() {
        let seen = glance(&tcp(1448 * 3 + 1, 1448)).unwrap();
        assert_eq!((seen.segments, seen.wire), (4, 3 * 1500 + 53));
    }

    #[test]
    fn every_datagram_of_a_run_has_headers() {
        let mut data = tcp(1472 * 3 + 1 - 24, 1472);
        (data[1], data[VNET_HEADER + 9]) = (5, UDP);
        let seen = glance(&data).unwrap();
        assert_eq!((seen.segments, seen.wire), (4, 3 * 1500 + 29));
        // Another protocol is taken as it is.
        data[VNET_HEADER + 9] = 1;
        assert_eq!(glance(&data).unwrap().segments, 1);
    }

    #[test]
    fn what_is_not_ipv4_is_nothing() {
        assert_eq!(glance(&[]), None);
        assert_eq!(glance(&[0; 40]), None);
        let mut six = tcp(100, 0);
        six[VNET_HEADER] = 0x60;
        assert_eq!(glance(&six), None);
        let cut = tcp(0, 1448);
        assert_eq!(glance(&cut[..VNET_HEADER + 19]), None);
        // A run whose TCP header is cut off.
        assert_eq!(glance(&cut[..VNET_HEADER + 22]), None);
    }
}
