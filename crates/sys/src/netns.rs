//! Network namespaces of threads, TUN interfaces, and the few interface settings that an emulated link needs.
//!
//! A namespace lives for as long as a thread is in it or a descriptor of it is open; a TUN interface for as long
//! as its descriptor. Nothing here makes a name in the file system, so nothing is left behind by a process that
//! dies, however it dies.
//!
//! The functions on interfaces act on the namespace that the calling thread is in.

use std::ffi::CString;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::Signal;
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use crate::{Errno, Result, check};

/// Bytes of the header that stands before each packet of a TUN interface opened with `offload`
/// (`struct virtio_net_hdr`).
pub const VNET_HEADER: usize = 10;

/// Moves the calling thread into a new network namespace, in which only `lo` exists, and it is down.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`; `ENOSPC` where no more namespaces may be made.
pub fn unshare_net() -> Result<()> {
    // SAFETY: `CLONE_NEWNET` alone changes no memory and no descriptor table, which is what the warning on
    // `unshare_unsafe` is about.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
}

/// A descriptor of the network namespace that the calling thread is in.
///
/// # Errors
/// Those of `open(2)`; `ENOENT` without `/proc`.
pub fn current_net() -> Result<OwnedFd> {
    rustix::fs::open("/proc/thread-self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Moves the calling thread into the namespace that `net` is a descriptor of. Threads and processes that it starts
/// from then on are in it too.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`; `EINVAL` for another kind of descriptor.
pub fn enter_net(net: impl AsFd) -> Result<()> {
    rustix::thread::move_into_link_name_space(net.as_fd(), Some(LinkNameSpaceType::Network))
}

/// The inode number of a namespace: what `/proc/<pid>/ns/net` shows in `net:[N]`.
///
/// # Errors
/// Those of `fstat(2)`.
pub fn net_inode(net: impl AsFd) -> Result<u64> {
    Ok(rustix::fs::fstat(net)?.st_ino)
}

/// Makes a TUN interface (packets without a link-layer header) and returns its descriptor, non-blocking.
/// The interface goes away with it. With `vnet_header` each packet read or written starts with [`VNET_HEADER`] bytes.
///
/// # Errors
/// `ENOENT` without `/dev/net/tun`, `EPERM` without `CAP_NET_ADMIN`, `EINVAL` for a name that is too long,
/// `EBUSY` for one in use.
pub fn open_tun(name: &str, vnet_header: bool) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let tun = rustix::fs::open("/dev/net/tun", flags, Mode::empty())?;
    let mut request = request_for(name)?;
    let header = if vnet_header { libc::IFF_VNET_HDR } else { 0 };
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | header) as libc::c_short;
    ioctl(&tun, libc::TUNSETIFF, &mut request)?;
    Ok(tun)
}

/// Lets the kernel hand over TCP segments of IPv4 larger than the MTU, runs of datagrams where it can (Linux 6.2), and
/// packets without a checksum, through a TUN descriptor opened with the vnet header; or no longer.
///
/// # Errors
/// `EINVAL` where the kernel has no such offload.
pub fn set_tun_offload(tun: impl AsFd, on: bool) -> Result<()> {
    let set = |flags: libc::c_uint| {
        // SAFETY: the argument of TUNSETOFFLOAD is a number, not a pointer.
        let done = unsafe { libc::ioctl(tun.as_fd().as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(flags)) };
        check(done.into()).map(drop)
    };
    let segments = libc::TUN_F_CSUM | libc::TUN_F_TSO4;
    match on {
        // The kernel takes the two kinds of datagrams together only.
        true => set(segments | libc::TUN_F_USO4 | libc::TUN_F_USO6).or_else(|_| set(segments)),
        false => set(0),
    }
}

/// Makes what a socket sends at once leave as datagrams of `segment` bytes, the last perhaps shorter: 64 at most.
///
/// # Errors
/// `ENOPROTOOPT` where the kernel has no such offload (Linux 4.18).
pub fn send_udp_runs(socket: impl AsFd, segment: usize) -> Result<()> {
    udp_option(socket, libc::UDP_SEGMENT, libc::c_int::try_from(segment).map_err(|_| Errno::INVAL)?)
}

/// Lets a socket receive datagrams that came as a run in one piece.
///
/// # Errors
/// `ENOPROTOOPT` where the kernel has no such offload (Linux 5.0).
pub fn receive_udp_runs(socket: impl AsFd) -> Result<()> {
    udp_option(socket, libc::UDP_GRO, 1)
}

fn udp_option(socket: impl AsFd, option: libc::c_int, value: libc::c_int) -> Result<()> {
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel reads one `int`, which lives through the call.
    let done = unsafe {
        libc::setsockopt(socket.as_fd().as_raw_fd(), libc::SOL_UDP, option, std::ptr::from_ref(&value).cast(), length)
    };
    check(done.into()).map(drop)
}

/// Gives an interface one IPv4 address.
///
/// # Errors
/// `ENODEV` when there is no such interface, `EPERM` without `CAP_NET_ADMIN`, `EINVAL` for a prefix over 32.
pub fn set_address(name: &str, address: Ipv4Addr, prefix: u8) -> Result<()> {
    let socket = control_socket()?;
    let mut request = request_for(name)?;
    request.ifr_ifru.ifru_addr = socket_address(address);
    ioctl(&socket, libc::SIOCSIFADDR, &mut request)?;
    let mut request = request_for(name)?;
    request.ifr_ifru.ifru_netmask = socket_address(mask(prefix)?);
    ioctl(&socket, libc::SIOCSIFNETMASK, &mut request)
}

/// Sets the MTU of an interface, in bytes of IP packet.
///
/// # Errors
/// `EINVAL` for one that the interface cannot have (a TUN interface: 68 to 65535).
pub fn set_mtu(name: &str, mtu: u32) -> Result<()> {
    let mut request = request_for(name)?;
    request.ifr_ifru.ifru_mtu = libc::c_int::try_from(mtu).map_err(|_| Errno::INVAL)?;
    ioctl(&control_socket()?, libc::SIOCSIFMTU, &mut request)
}

/// Sets how many packets an interface holds for its reader before it drops.
///
/// # Errors
/// `ENODEV`, `EPERM`, `ENOMEM`.
pub fn set_queue_length(name: &str, packets: u32) -> Result<()> {
    let mut request = request_for(name)?;
    request.ifr_ifru.ifru_metric = libc::c_int::try_from(packets).map_err(|_| Errno::INVAL)?;
    ioctl(&control_socket()?, libc::SIOCSIFTXQLEN, &mut request)
}

/// Brings an interface up.
///
/// # Errors
/// `ENODEV`, `EPERM`.
pub fn set_up(name: &str) -> Result<()> {
    let socket = control_socket()?;
    let mut request = request_for(name)?;
    ioctl(&socket, libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: SIOCGIFFLAGS has just filled this member of the union.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    request.ifr_ifru.ifru_flags = flags | (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    ioctl(&socket, libc::SIOCSIFFLAGS, &mut request)
}

/// `struct rtentry` of `<linux/route.h>`.
#[repr(C)]
struct RouteEntry {
    pad1: libc::c_ulong,
    destination: libc::sockaddr,
    gateway: libc::sockaddr,
    mask: libc::sockaddr,
    flags: libc::c_ushort,
    pad2: libc::c_short,
    pad3: libc::c_ulong,
    pad4: *mut libc::c_void,
    metric: libc::c_short,
    device: *mut libc::c_char,
    mtu: libc::c_ulong,
    window: libc::c_ulong,
    initial_rtt: libc::c_ushort,
}

/// Adds a route to the network `to`/`prefix` straight out of an interface that is up.
///
/// # Errors
/// `ENODEV`, `EPERM`, `EEXIST`; `ENETDOWN` while the interface is down.
pub fn add_route(to: Ipv4Addr, prefix: u8, name: &str) -> Result<()> {
    let device = CString::new(name).map_err(|_| Errno::INVAL)?;
    let host = if prefix == 32 { libc::RTF_HOST } else { 0 };
    let mut route = RouteEntry {
        pad1: 0,
        destination: socket_address(to),
        gateway: socket_address(Ipv4Addr::UNSPECIFIED),
        mask: socket_address(mask(prefix)?),
        flags: libc::RTF_UP | host,
        pad2: 0,
        pad3: 0,
        pad4: std::ptr::null_mut(),
        metric: 0,
        device: device.as_ptr().cast_mut(),
        mtu: 0,
        window: 0,
        initial_rtt: 0,
    };
    let socket = control_socket()?;
    // SAFETY: the kernel reads one `rtentry` and the name that it points to; both live through the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCADDRT, &raw mut route) }.into()).map(drop)
}

/// Makes the process that `command` starts die by `SIGKILL` when the thread that spawns it ends, be it because the
/// whole process was killed.
///
/// The kernel forgets this for a program that gains privileges by being executed, and for grandchildren.
pub fn die_with_spawning_thread(command: &mut Command) -> &mut Command {
    let parent = rustix::process::getpid();
    let arm = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // A parent that died before the line above has sent no signal.
        if rustix::process::getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
    };
    // SAFETY: between fork and exec the closure makes two system calls and allocates nothing; no lock is taken.
    unsafe { command.pre_exec(arm) }
}

fn control_socket() -> Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
}

/// A request that names an interface and is zero otherwise.
fn request_for(name: &str) -> Result<libc::ifreq> {
    // SAFETY: `ifreq` is a plain structure for which all-zero bytes are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays 0.
    if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains('\0') {
        return Err(Errno::INVAL);
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

fn ioctl(fd: &OwnedFd, number: libc::Ioctl, request: &mut libc::ifreq) -> Result<()> {
    // SAFETY: every request used here reads and writes one `ifreq` at most, which lives through the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), number, std::ptr::from_mut(request)) }.into()).map(drop)
}

fn mask(prefix: u8) -> Result<Ipv4Addr> {
    let host_bits = 32_u32.checked_sub(prefix.into()).ok_or(Errno::INVAL)?;
    Ok(Ipv4Addr::from_bits(u32::MAX.checked_shl(host_bits).unwrap_or(0)))
}

fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    // `sockaddr_in` in the clothes of `sockaddr`: two bytes of port, then the address.
    let mut bytes = [0 as libc::c_char; 14];
    for (to, from) in bytes.iter_mut().skip(2).zip(address.octets()) {
        *to = from as libc::c_char;
    }
    libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data: bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `f` on a thread in a namespace of its own, or says why not.
    fn in_new_namespace(f: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| match unshare_net() {
                Ok(()) => f(),
                Err(error) => println!("skipped: no network namespace may be made: {error}"),
            });
            thread.join().unwrap();
        });
    }

    #[test]
    fn masks() {
        assert_eq!(mask(0).unwrap(), Ipv4Addr::new(0, 0, 0, 0));
        assert_eq!(mask(16).unwrap(), Ipv4Addr::new(255, 255, 0, 0));
        assert_eq!(mask(32).unwrap(), Ipv4Addr::new(255, 255, 255, 255));
        assert_eq!(mask(33).unwrap_err(), Errno::INVAL);
    }

    #[test]
    fn names_are_checked() {
        for name in ["", "sixteen-letters-", "nul\0"] {
            assert_eq!(request_for(name).err(), Some(Errno::INVAL), "{name:?}");
        }
        assert!(request_for("fifteen-letters").is_ok());
    }

    #[test]
    fn a_namespace_is_of_the_thread() {
        let outside = net_inode(current_net().unwrap()).unwrap();
        in_new_namespace(|| {
            let inside = current_net().unwrap();
            assert_ne!(net_inode(&inside).unwrap(), outside);
            std::thread::spawn(move || {
                // Threads start where their parent is; entering it again changes nothing.
                assert_eq!(net_inode(current_net().unwrap()), net_inode(&inside));
                enter_net(&inside).unwrap();
                assert_eq!(net_inode(current_net().unwrap()), net_inode(&inside));
            })
            .join()
            .unwrap();
        });
        assert_eq!(net_inode(current_net().unwrap()).unwrap(), outside);
    }

    #[test]
    fn loopback_can_be_brought_up() {
        in_new_namespace(|| {
            let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let address = listener.local_addr().unwrap();
            assert!(std::net::TcpStream::connect(address).is_err());
            set_up("lo").unwrap();
            std::net::TcpStream::connect(address).unwrap();
            assert_eq!(set_up("none").unwrap_err(), Errno::NODEV);
        });
    }

    #[test]
    fn packets_to_a_route_come_out_of_the_tun() {
        in_new_namespace(|| {
            let tun = match open_tun("t0", true) {
                Ok(tun) => tun,
                Err(error) => return println!("skipped: no TUN interface may be made: {error}"),
            };
            set_tun_offload(&tun, true).unwrap();
            set_tun_offload(&tun, false).unwrap();
            let runs = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
            send_udp_runs(&runs, 1000).unwrap();
            receive_udp_runs(&runs).unwrap();
            assert_eq!(send_udp_runs(&runs, usize::MAX).unwrap_err(), Errno::INVAL);
            set_mtu("t0", 9000).unwrap();
            assert_eq!(set_mtu("t0", 70_000).unwrap_err(), Errno::INVAL);
            set_queue_length("t0", 100).unwrap();
            let here = Ipv4Addr::new(10, 77, 0, 1);
            let there = Ipv4Addr::new(10, 77, 0, 2);
            set_address("t0", here, 32).unwrap();
            set_up("t0").unwrap();
            add_route(there, 32, "t0").unwrap();
            assert_eq!(add_route(there, 32, "t0").unwrap_err(), Errno::EXIST);
            let socket = std::net::UdpSocket::bind((here, 0)).unwrap();
            socket.send_to(&[7; 8000], (there, 9)).unwrap();
            // Other packets (multicast of IPv6) may come first.
            let mut buffer = [0; 9100];
            let found = (0..100).any(|_| match rustix::io::read(&tun, &mut buffer) {
                Ok(length) => length == VNET_HEADER + 28 + 8000 && buffer[VNET_HEADER + 16..][..4] == there.octets(),
                Err(_) => false,
            });
            assert!(found);
        });
    }

    #[test]
    fn a_command_dies_with_its_thread() {
        let child = std::thread::spawn(|| {
            let mut command = Command::new("sleep");
            command.arg("600");
            die_with_spawning_thread(&mut command).spawn().unwrap()
        });
        let status = child.join().unwrap().wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGKILL));
    }
}
