//! The thread that moves packets: reads what hosts send, asks the [`Line`]s when it comes out, and hands it on.
//!
//! One thread serves all links. Handing a packet to a host runs the host's TCP on this thread too, so on a machine
//! with few processors more threads would not carry more. Packets are read until a descriptor has no more, or a batch
//! is full; between batches everything that is due is delivered.

use std::net::Ipv4Addr;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use dhow_sys::Errno;
use dhow_sys::netns::VNET_HEADER;

use crate::control::{Control, STOP, Setting};
use crate::count::Counters;
use crate::line::{Fate, Line};
use crate::packet::{Packet, glance};
use crate::{Error, Result};

/// Packets read from one descriptor before others have their turn.
const BATCH: usize = 64;
/// Waits shorter than this are spent looking again: waking up from sleep takes as long.
const SPIN: u64 = 20_000;
/// The longest sleep, in nanoseconds: a change that was missed is seen then at the latest.
const MAX_SLEEP: u64 = 1_000_000_000;
/// Packets up to this many bytes are copied out of the buffer they were read into; a larger one keeps the buffer.
const COPIED: usize = 16 << 10;
/// Bytes of a buffer: the largest packet and its header.
const BUFFER: usize = 65_536 + VNET_HEADER;
/// Spare buffers kept.
const SPARE_BUFFERS: usize = 256;
/// Bytes of packets on their way, in all links together.
pub(crate) const MEMORY: u64 = 1 << 30;
/// The mover's nice value where it may not be real-time: it must not wait behind the programs it serves.
const NICE: i32 = -15;
/// The mark of the bell among the events; all others are places in `sources`.
const BELL: u64 = u64::MAX;

/// Where a direction of a link ends.
#[derive(Debug)]
pub(crate) enum End {
    /// At a host's interface.
    Host(Arc<OwnedFd>),
    /// At a router: the direction to take next, by the number of the host a packet is for.
    Router(Vec<Option<usize>>),
}

/// One direction of a link.
#[derive(Debug)]
pub(crate) struct Direction {
    pub(crate) line: Line,
    pub(crate) end: End,
    pub(crate) counters: Arc<Counters>,
}

/// An interface that packets are read from, and the direction they take.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) tun: Arc<OwnedFd>,
    pub(crate) direction: usize,
}

pub(crate) struct Mover {
    control: Arc<Control>,
    directions: Vec<Direction>,
    sources: Vec<Source>,
    /// Numbers of hosts by address.
    host_of: fn(Ipv4Addr) -> usize,
    epoll: OwnedFd,
    start: Instant,
    generation: u64,
    settings: Vec<Setting>,
    budget: u64,
    buffer: Vec<u8>,
    spare: Vec<Vec<u8>>,
}

impl Mover {
    pub(crate) fn new(
        control: Arc<Control>,
        directions: Vec<Direction>,
        sources: Vec<Source>,
        host_of: fn(Ipv4Addr) -> usize,
    ) -> Result<Mover> {
        let failed = |error: Errno| Error::Io { what: "epoll", error: error.into() };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let watch = |fd: &OwnedFd, mark| epoll::add(&epoll, fd, epoll::EventData::new_u64(mark), epoll::EventFlags::IN);
        watch(control.wake_fd(), BELL).map_err(failed)?;
        for (place, source) in sources.iter().enumerate() {
            watch(&source.tun, place as u64).map_err(failed)?;
        }
        Ok(Mover {
            settings: control.settings(),
            control,
            directions,
            sources,
            host_of,
            epoll,
            start: Instant::now(),
            generation: 0,
            budget: MEMORY,
            buffer: vec![0; BUFFER],
            spare: Vec::new(),
        })
    }

    /// Moves packets until told to stop.
    pub(crate) fn run(mut self) {
        let told = Told(Arc::clone(&self.control));
        // Both only make the timing better.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        if dhow_sys::proc::set_realtime().is_err() {
            let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
        }
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        while self.look_at_settings() {
            let next = self.deliver();
            let timeout = self.sleep(next);
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => break,
            }
            // A change made before a packet was sent must hold for that packet.
            if !self.look_at_settings() {
                break;
            }
            for event in &events {
                match event.data.u64() {
                    BELL => self.control.heard(),
                    place => self.read(place as usize),
                }
            }
        }
        drop(told);
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Takes up what has changed; false to stop.
    fn look_at_settings(&mut self) -> bool {
        let generation = self.control.generation();
        if generation == STOP {
            return false;
        }
        if generation != self.generation {
            let now = self.now();
            let settings = self.control.settings();
            for ((direction, new), old) in self.directions.iter_mut().zip(&settings).zip(&self.settings) {
                if new != old {
                    let gone = direction.line.set(now, new.shape, new.cut, &mut self.budget);
                    direction.counters.fate(Fate::Cut, gone);
                }
            }
            self.settings = settings;
            self.generation = generation;
            self.control.take_up(generation);
        }
        true
    }

    /// Hands on whatever is due, and says when the next packet is.
    fn deliver(&mut self) -> Option<u64> {
        let mut now = self.now();
        for index in 0..self.directions.len() {
            // A batch at a time, so that a fast link without delay cannot keep others waiting.
            for _ in 0..BATCH {
                let Some(direction) = self.directions.get_mut(index) else { break };
                let Some((due, packet)) = direction.line.take(now, &mut self.budget) else { break };
                self.hand_on(index, now, due, packet);
                now = self.now();
            }
        }
        // Only now: a router may have handed packets to a direction that had had its turn.
        self.directions.iter().filter_map(|direction| direction.line.next_due()).min()
    }

    fn hand_on(&mut self, index: usize, now: u64, due: u64, packet: Packet) {
        let Some(direction) = self.directions.get(index) else { return };
        match &direction.end {
            End::Host(tun) => match rustix::io::retry_on_intr(|| rustix::io::write(&**tun, &packet.data)) {
                Ok(_) => direction.counters.delivered(packet.segments, packet.wire, now.saturating_sub(due)),
                Err(_) => direction.counters.refused(packet.segments),
            },
            End::Router(ways) => {
                direction.counters.delivered(packet.segments, packet.wire, now.saturating_sub(due));
                let way = ways.get((self.host_of)(packet.to)).copied().flatten();
                if let Some(way) = way {
                    // At the time when it was due, not when somebody looked.
                    self.offer(way, due, packet);
                    return;
                }
            }
        }
        self.keep(packet.data);
    }

    fn offer(&mut self, index: usize, at: u64, packet: Packet) {
        let Some(direction) = self.directions.get_mut(index) else { return };
        let (packets, wire) = (packet.segments, packet.wire);
        direction.counters.offered(packets, wire);
        let fate = direction.line.offer(at, packet, &mut self.budget);
        direction.counters.fate(fate, packets.into());
    }

    /// Keeps a large buffer for later.
    fn keep(&mut self, data: Vec<u8>) {
        if data.capacity() >= BUFFER && self.spare.len() < SPARE_BUFFERS {
            self.spare.push(data);
        }
    }

    /// Reads what a host sends.
    fn read(&mut self, place: usize) {
        let Some(source) = self.sources.get(place) else { return };
        let (tun, direction) = (Arc::clone(&source.tun), source.direction);
        for _ in 0..BATCH {
            self.buffer.resize(BUFFER, 0);
            let length = match rustix::io::retry_on_intr(|| rustix::io::read(&*tun, &mut self.buffer)) {
                Ok(length) => length,
                // Empty; or the interface is down, which happens while the host goes away.
                Err(_) => return,
            };
            let now = self.now();
            let Some(seen) = self.buffer.get(..length).and_then(glance) else { continue };
            let data = if length <= COPIED {
                self.buffer.get(..length).map(<[u8]>::to_vec).unwrap_or_default()
            } else {
                let fresh = self.spare.pop().unwrap_or_default();
                let mut data = std::mem::replace(&mut self.buffer, fresh);
                data.truncate(length);
                data
            };
            self.offer(direction, now, Packet { data, wire: seen.wire, segments: seen.segments, to: seen.to });
        }
    }

    fn sleep(&self, next: Option<u64>) -> Timespec {
        let wait = next.map_or(MAX_SLEEP, |due| due.saturating_sub(self.now()).min(MAX_SLEEP));
        // Wake a little early and look again until it is time.
        let nanos = wait.saturating_sub(SPIN);
        Timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as _ }
    }
}

/// Tells those who wait for the mover that it has ended, also by a panic.
struct Told(Arc<Control>);

impl Drop for Told {
    fn drop(&mut self) {
        self.0.ended();
    }
}
