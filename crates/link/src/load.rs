//! What keeps links busy while they are measured: datagrams at a pace, or TCP where there is no pace to keep.
//!
//! Each flow has two threads, one on either host. Where offload is on, datagrams leave in runs that cross the emulator in
//! one piece, as segments of TCP do, so that the emulator has as much to do as with a file that is copied.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dhow_sys::netns;

use crate::{Error, Host, Net, Result};

/// Who sends, and to whom.
pub(crate) type Pair<'n> = (Host<'n>, Host<'n>);

const CHUNK: usize = 256 << 10;
const CONNECT: Duration = Duration::from_secs(30);
/// How soon a thread of the load sees that it is over.
const TICK: Duration = Duration::from_millis(200);
/// How much more is sent than passes: what a pause of the sender leaves undone, the queue has.
const EXCESS: f64 = 1.04;
/// Bytes of the headers of IPv4 and UDP (RFC 791 section 3.1, RFC 768).
const HEADERS: usize = 28;
/// Datagrams of a run; the kernel allows 64.
const MOST_SEGMENTS: usize = 32;
/// Bytes of a run, which is one packet until it is cut.
const MOST_BYTES: usize = 60_000;
/// How much time's worth of data a run is: more at once would be a queue of its own.
const RUN_TIME: f64 = 0.001;
/// A sender that was kept from sending makes up for this much at most.
const BEHIND: f64 = 0.1;

/// The rate of the narrowest link from one host to another, in bits a second; `None` when none has one.
pub(crate) fn rate_of_way(net: &Net, from: &str, to: &str) -> Option<f64> {
    net.path(from, to).iter().filter_map(|shape| shape.rate).min().map(|rate| rate as f64)
}

/// Flows between hosts, until dropped or stopped.
pub(crate) struct Load {
    over: Arc<AtomicBool>,
    /// Bytes that programs received.
    pub(crate) received: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Result<io::Result<()>>>>,
    finds_its_rate: bool,
}

impl Load {
    /// Starts one flow for each pair.
    pub(crate) fn start(net: &Net, pairs: &[Pair<'_>]) -> Result<Load> {
        let (over, received) = (Arc::default(), Arc::default());
        let mut load = Load { over, received, threads: Vec::new(), finds_its_rate: false };
        for (from, to) in pairs {
            match rate_of_way(net, from.name(), to.name()) {
                Some(rate) => {
                    let mtu = net.links().map(|link| link.mtu()).min().unwrap_or(1500);
                    load.paced(*from, *to, &Pace::new(rate * EXCESS, mtu as usize, net.offload_is_on()))?;
                }
                None => load.tcp(*from, *to)?,
            }
        }
        Ok(load)
    }

    /// Whether any of it is TCP, which takes round trips to be as fast as it can.
    pub(crate) fn finds_its_rate(&self) -> bool {
        self.finds_its_rate
    }

    fn paced(&mut self, from: Host<'_>, to: Host<'_>, pace: &Pace) -> Result<()> {
        let address = to.addr();
        let bound = move || -> io::Result<UdpSocket> {
            let socket = UdpSocket::bind((address, 0))?;
            // Without it the kernel cuts runs before it hands them over: slower, nothing else.
            let _ = netns::receive_udp_runs(&socket);
            Ok(socket)
        };
        let socket = to.run(bound)?.map_err(Error::io("binding a socket"))?;
        let port = socket.local_addr().map_err(Error::io("binding a socket"))?.port();
        let (over, received) = (Arc::clone(&self.over), Arc::clone(&self.received));
        let sink = move || take_datagrams(&socket, &over, &received);
        self.threads.push(to.namespace().spawn("load-sink", sink)?);
        let (over, here, pace) = (Arc::clone(&self.over), from.addr(), pace.clone());
        let source = move || send_datagrams((here, address, port), &pace, &over);
        self.threads.push(from.namespace().spawn("load-source", source)?);
        Ok(())
    }

    fn tcp(&mut self, from: Host<'_>, to: Host<'_>) -> Result<()> {
        self.finds_its_rate = true;
        let address = to.addr();
        let listener = to.run(|| TcpListener::bind((address, 0)))?.map_err(Error::io("listening"))?;
        let port = listener.local_addr().map_err(Error::io("listening"))?.port();
        let (over, received) = (Arc::clone(&self.over), Arc::clone(&self.received));
        let sink = move || receive(&listener, &over, &received);
        self.threads.push(to.namespace().spawn("load-sink", sink)?);
        let over = Arc::clone(&self.over);
        let source = move || send(address, port, &over);
        self.threads.push(from.namespace().spawn("load-source", source)?);
        Ok(())
    }

    /// Ends all flows.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.over.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap_or(Err(Error::Stopped))?.map_err(Error::io("the load of the links"))?;
        }
        Ok(())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
    }
}

/// How datagrams are sent.
#[derive(Clone, Debug)]
struct Pace {
    /// Bits a second, of IP packets.
    rate: f64,
    /// Bytes of data in a datagram.
    segment: usize,
    /// Datagrams that leave in one piece.
    segments: usize,
}

impl Pace {
    fn new(rate: f64, mtu: usize, runs: bool) -> Pace {
        let segment = mtu.saturating_sub(HEADERS).clamp(1, MOST_BYTES);
        let worth = rate * RUN_TIME / 8.0 / (segment + HEADERS) as f64;
        let most = MOST_SEGMENTS.min(MOST_BYTES / segment).max(1);
        let segments = if runs { (worth as usize).clamp(1, most) } else { 1 };
        Pace { rate, segment, segments }
    }

    /// How long a run takes at this pace, in seconds.
    fn run_time(&self) -> f64 {
        (self.segments * (self.segment + HEADERS)) as f64 * 8.0 / self.rate
    }
}

fn send_datagrams((here, there, port): (Ipv4Addr, Ipv4Addr, u16), pace: &Pace, over: &AtomicBool) -> io::Result<()> {
    let socket = UdpSocket::bind((here, 0))?;
    socket.connect((there, port))?;
    socket.set_write_timeout(Some(TICK))?;
    let mut pace = pace.clone();
    // Without runs each datagram is a call of its own.
    if pace.segments > 1 && netns::send_udp_runs(&socket, pace.segment).is_err() {
        pace.segments = 1;
    }
    let buffer = vec![0x5a; pace.segment * pace.segments];
    let (start, mut due, run) = (Instant::now(), 0.0_f64, pace.run_time());
    while !over.load(Relaxed) {
        let now = start.elapsed().as_secs_f64();
        if now < due {
            thread::sleep(Duration::from_secs_f64((due - now).min(TICK.as_secs_f64())));
            continue;
        }
        due = due.max(now - BEHIND) + run;
        match socket.send(&buffer) {
            Ok(_) => {}
            Err(error) if is_passing(&error) => {}
            Err(error) => return if over.load(Relaxed) { Ok(()) } else { Err(error) },
        }
    }
    Ok(())
}

fn take_datagrams(socket: &UdpSocket, over: &AtomicBool, received: &AtomicU64) -> io::Result<()> {
    socket.set_read_timeout(Some(TICK))?;
    let mut buffer = vec![0; 1 << 16];
    while !over.load(Relaxed) {
        match socket.recv(&mut buffer) {
            Ok(count) => drop(received.fetch_add(count as u64, Relaxed)),
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn receive(listener: &TcpListener, over: &AtomicBool, received: &AtomicU64) -> io::Result<()> {
    let mut stream = accept(listener)?;
    stream.set_read_timeout(Some(TICK))?;
    let mut buffer = vec![0; CHUNK];
    while !over.load(Relaxed) {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => drop(received.fetch_add(count as u64, Relaxed)),
            Err(error) if is_passing(&error) => {}
            Err(error) => return if over.load(Relaxed) { Ok(()) } else { Err(error) },
        }
    }
    Ok(())
}

fn send(address: Ipv4Addr, port: u16, over: &AtomicBool) -> io::Result<()> {
    let mut stream = connect(address, port)?;
    stream.set_write_timeout(Some(TICK))?;
    let buffer = vec![0x5a; CHUNK];
    while !over.load(Relaxed) {
        match stream.write(&buffer) {
            Ok(_) => {}
            Err(error) if is_passing(&error) => {}
            // The other end may have seen the end first.
            Err(error) => return if over.load(Relaxed) { Ok(()) } else { Err(error) },
        }
    }
    Ok(())
}

/// Time to look whether it is over; or, for datagrams, a queue of the kernel that is full.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
        || error.raw_os_error() == Some(dhow_sys::Errno::NOBUFS.raw_os_error())
}

/// Connects, with time-outs for whatever comes after.
pub(crate) fn connect(address: Ipv4Addr, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&(address, port).into(), CONNECT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(CONNECT))?;
    stream.set_write_timeout(Some(CONNECT))?;
    Ok(stream)
}

/// Takes one connection, waiting no longer than whoever connects.
pub(crate) fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let until = Instant::now() + CONNECT;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(CONNECT))?;
                stream.set_write_timeout(Some(CONNECT))?;
                return Ok(stream);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until => {
                thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_a_millisecond_and_fit_a_packet() {
        let slow = Pace::new(1e6, 1500, true);
        assert_eq!((slow.segment, slow.segments), (1472, 1));
        let middle = Pace::new(200e6, 1500, true);
        assert_eq!(middle.segments, 16);
        assert!((0.0009..=0.001).contains(&middle.run_time()));
        assert_eq!(Pace::new(10e9, 1500, true).segments, MOST_SEGMENTS);
        assert_eq!(Pace::new(10e9, 9000, true).segments, 6);
        assert_eq!(Pace::new(10e9, 65_000, true).segments, 1);
        assert_eq!(Pace::new(10e9, 1500, false).segments, 1);
    }
}
