//! Emulated WAN links: hosts in network namespaces of their own, joined by links with a rate, a delay, jitter, loss,
//! a queue and an MTU, over which the kernel's own TCP runs. Links can be changed, cut and healed while they carry.
//!
//! ```no_run
//! use std::time::Duration;
//! use dhow_link::{LinkSpec, Shape, Topology};
//!
//! # fn main() -> dhow_link::Result<()> {
//! let wan = Shape::rate(100_000_000).rtt(Duration::from_millis(200));
//! let net = Topology::new().host("a").host("b").link("a", "b", LinkSpec::from(wan).mtu(9000)).start()?;
//! let (a, b) = (net.host("a")?, net.host("b")?);
//! let listener = b.run(|| std::net::TcpListener::bind((b.addr(), 0)).unwrap())?;
//! let stream = a.run(|| std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap())?;
//! net.link("a", "b")?.cut()?;
//! # Ok(())
//! # }
//! ```
//!
//! **How it works.** A host is a network namespace with a TUN interface for each of its links. One thread reads
//! what hosts send, paces it by a virtual clock, holds it for the delay, and writes it to the interface at the other
//! end, or hands it to the next link where a router stands between. No `netem` is needed, and no other tool. Where
//! links are fast, the kernel hands over runs of TCP segments in one piece ([`Offload`]).
//!
//! **What is left behind**: nothing. Namespaces have no names: a thread and a descriptor keep each, interfaces live
//! as long as their descriptors, and processes started by [`Host::command`] die with this one, also when it is killed.
//!
//! **What it does not do.** IPv6. Routers do not count down the time to live, and send no ICMP. Bytes of frames around
//! IP packets are not counted. Loss falls on packets independently. A packet lost or dropped is seen by TCP as on a
//! real network; congestion marks (ECN) are not set.
//!
//! **Rights.** CAP_SYS_ADMIN and CAP_NET_ADMIN (root, in practice), and `/dev/net/tun`; [`available`] tells.
//!
//! What this machine can carry is for [`calibrate()`] to say; see README.md beside this crate for a table and the command
//! that makes it.

pub mod calibrate;
pub mod cli;

mod control;
mod count;
mod error;
mod host;
mod line;
mod load;
mod mover;
mod net;
mod packet;
mod shape;
mod topology;

pub use calibrate::{Calibration, calibrate};
pub use count::{Counts, LATE};
pub use error::{Error, Result};
pub use host::Namespace;
pub use net::{Host, Link, Net};
pub use shape::{MAX_DELAY, MIN_RATE, QueueLimit, Rate, Shape, parse_rate, parse_share, parse_time};
pub use topology::{LinkSpec, MAX_HOSTS, MAX_MTU, MIN_MTU, Offload, Topology};

/// Whether emulated networks can be made here: makes one, and lets it go.
///
/// # Errors
/// What [`Topology::start`] said.
pub fn available() -> Result<()> {
    Topology::new().host("a").host("b").link("a", "b", Shape::default()).start().map(drop)
}
