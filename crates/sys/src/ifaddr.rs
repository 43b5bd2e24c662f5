//! The addresses of this machine's network interfaces.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{Result, check};

/// The addresses of all interfaces that are up, each with the number of leading bits that its network has, in the
/// order of the system. Of the network namespace that the calling thread is in.
///
/// # Errors
/// Those of `getifaddrs(3)`: no memory, no netlink socket.
pub fn interface_addresses() -> Result<Vec<(IpAddr, u8)>> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `list` is a place for the pointer that the function stores; it is freed below.
    check(unsafe { libc::getifaddrs(&mut list) }.into())?;
    let mut found = Vec::new();
    let mut next = list.cast_const();
    // SAFETY: the list is one of valid entries that ends with a null pointer, and nobody changes it.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        if entry.ifa_flags & libc::IFF_UP as libc::c_uint == 0 {
            continue;
        }
        // SAFETY: addresses of an entry are null or point to a socket address of the family that they name.
        let (addr, mask) = unsafe { (address(entry.ifa_addr), address(entry.ifa_netmask)) };
        if let (Some(addr), Some(mask)) = (addr, mask) {
            let bits = match mask {
                IpAddr::V4(mask) => mask.to_bits().leading_ones(),
                IpAddr::V6(mask) => mask.to_bits().leading_ones(),
            };
            found.push((addr, u8::try_from(bits).unwrap_or(u8::MAX)));
        }
    }
    // SAFETY: `getifaddrs` returned it, and no reference into it is left.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// The address in a socket address; `None` for other families, and for a null pointer.
///
/// # Safety
/// `addr` is null, or points to a socket address of the family that it names.
unsafe fn address(addr: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: as promised by the caller; the entries are aligned for the structures of their family.
    unsafe {
        match i32::from(addr.as_ref()?.sa_family) {
            libc::AF_INET => {
                let v4 = addr.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from_bits(u32::from_be(v4.sin_addr.s_addr)).into())
            }
            libc::AF_INET6 => {
                let v6 = addr.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_among_them() {
        let found = interface_addresses().unwrap();
        assert!(found.contains(&(Ipv4Addr::LOCALHOST.into(), 8)), "{found:?}");
        assert!(found.iter().all(|(addr, bits)| *bits <= if addr.is_ipv4() { 32 } else { 128 }));
    }
}
