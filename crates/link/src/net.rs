//! A running network.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::panic::resume_unwind;
use std::process::{Child, Command};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;

use dhow_sys::netns;

use crate::control::{Control, Setting};
use crate::count::{Counters, Counts};
use crate::host::{HostPlan, Interface, Keeper, Namespace};
use crate::line::Line;
use crate::mover::{Direction, End, Mover, Source};
use crate::topology::{LinkPlan, MAX_HOSTS, Node, NodeId, Offload, Routes, Topology, address, routes};
use crate::{Error, Result, Shape};

/// A network of hosts and emulated links. It ends, with all processes started on its hosts, when it is dropped or
/// when this process dies.
#[derive(Debug)]
pub struct Net {
    hosts: Vec<Keeper>,
    nodes: Vec<Node>,
    links: Vec<LinkPlan>,
    routes: Routes,
    control: Arc<Control>,
    counters: Vec<Arc<Counters>>,
    offload: Offload,
    /// Whether runs of segments stay in one piece now.
    offload_on: Mutex<bool>,
    mover: Option<JoinHandle<()>>,
}

/// The number of the host that has this address; no host's number when none has.
fn host_of(address: Ipv4Addr) -> usize {
    match address.octets() {
        [10, 77, high, low] if low > 0 => usize::from(high) * 250 + usize::from(low) - 1,
        _ => MAX_HOSTS,
    }
}

impl Net {
    pub(crate) fn start(topology: &Topology) -> Result<Net> {
        let routes = routes(&topology.nodes, &topology.links);
        let offload_on = topology.offload.is_on(&topology.shapes());
        let mut hosts = Vec::new();
        // The interface at each end of each link that is at a host.
        let mut tuns = BTreeMap::new();
        for (id, node) in topology.nodes.iter().enumerate() {
            let Some(number) = node.host else { continue };
            let ends = ends_at(id, &topology.links);
            let interfaces = ends.iter().enumerate().map(|(place, &(link, outward, mtu))| Interface {
                name: format!("link{place}"),
                mtu,
                routes: routes_through(id, link, outward, &topology.nodes, &routes),
            });
            let keeper = Keeper::start(HostPlan {
                name: node.name.clone(),
                address: address(number),
                interfaces: interfaces.collect(),
                sysctls: topology.sysctls.clone(),
                offload: offload_on,
            })?;
            for ((link, outward, _), tun) in ends.iter().zip(&keeper.tuns) {
                tuns.insert(2 * link + outward, Arc::clone(tun));
            }
            hosts.push(keeper);
        }
        let settings = topology.shapes().into_iter().map(|shape| Setting { shape, cut: false });
        let control = Arc::new(Control::new(settings.collect())?);
        let directions = directions(topology, &tuns, &routes);
        let counters = directions.iter().map(|direction| Arc::clone(&direction.counters)).collect();
        let sources = tuns.iter().map(|(&direction, tun)| Source { tun: Arc::clone(tun), direction });
        let mover = Mover::new(Arc::clone(&control), directions, sources.collect(), host_of)?;
        let thread = thread::Builder::new().name("link-mover".to_owned()).spawn(move || mover.run());
        Ok(Net {
            hosts,
            nodes: topology.nodes.clone(),
            links: topology.links.clone(),
            routes,
            control,
            counters,
            offload: topology.offload,
            offload_on: Mutex::new(offload_on),
            mover: Some(thread.map_err(Error::io("starting a thread"))?),
        })
    }

    /// A host by its name.
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn host(&self, name: &str) -> Result<Host<'_>> {
        let found = self.hosts.iter().find(|host| host.name == name);
        found.map(|keeper| Host { keeper }).ok_or_else(|| Error::Unknown(format!("host {name}")))
    }

    /// All hosts, in the order in which they were added.
    pub fn hosts(&self) -> impl Iterator<Item = Host<'_>> {
        self.hosts.iter().map(|keeper| Host { keeper })
    }

    /// The link between two hosts or routers, as seen from `a`.
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn link(&self, a: &str, b: &str) -> Result<Link<'_>> {
        let name = |id: NodeId| self.nodes.get(id).map_or("", |node| node.name.as_str());
        let found = self.links.iter().enumerate().find_map(|(index, link)| match link.ends.map(name) {
            [first, second] if first == a && second == b => Some((index, false)),
            [first, second] if first == b && second == a => Some((index, true)),
            _ => None,
        });
        let (index, turned) = found.ok_or_else(|| Error::Unknown(format!("link {a}-{b}")))?;
        Ok(Link { net: self, index, turned })
    }

    /// All links, each as seen from its first end, in the order in which they were added.
    pub fn links(&self) -> impl Iterator<Item = Link<'_>> {
        (0..self.links.len()).map(|index| Link { net: self, index, turned: false })
    }

    /// Whether runs of TCP segments stay in one piece now; see [`Offload`].
    pub fn offload_is_on(&self) -> bool {
        *self.offload_on.lock()
    }

    /// The shapes of the directions that packets take from one host to another; empty when there is no way.
    pub fn path(&self, from: &str, to: &str) -> Vec<Shape> {
        let settings = self.control.settings();
        let way = self.way(from, to);
        way.iter().filter_map(|direction| settings.get(*direction)).map(|setting| setting.shape).collect()
    }

    /// The directions that packets take from one host to another.
    pub(crate) fn way(&self, from: &str, to: &str) -> Vec<usize> {
        let find = |name: &str| self.nodes.iter().position(|node| node.name == name);
        let (Some(mut at), Some(target)) = (find(from), find(to)) else { return Vec::new() };
        let Some(host) = self.nodes.get(target).and_then(|node| node.host) else { return Vec::new() };
        let mut way = Vec::new();
        while at != target && way.len() <= self.nodes.len() {
            let Some(&direction) = self.routes.get(&(at, host)) else { return Vec::new() };
            way.push(direction);
            let Some(link) = self.links.get(direction / 2) else { return Vec::new() };
            let [first, second] = link.ends;
            at = if direction % 2 == 0 { second } else { first };
        }
        way
    }

    fn change(&self, change: impl FnOnce(&mut [Setting])) -> Result<()> {
        let mut on = self.offload_on.lock();
        self.control.change(change)?;
        let shapes: Vec<Shape> = self.control.settings().iter().map(|setting| setting.shape).collect();
        let wanted = self.offload.is_on(&shapes);
        if *on != wanted {
            for tun in self.hosts.iter().flat_map(|host| &host.tuns) {
                netns::set_tun_offload(&**tun, wanted).map_err(Error::setup("setting up a TUN interface"))?;
            }
            *on = wanted;
        }
        Ok(())
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.control.stop();
        if let Some(thread) = self.mover.take() {
            drop(thread.join());
        }
    }
}

/// The links that end at a node: the link, 0 when it leaves by its first end and 1 by its second, and the MTU.
fn ends_at(id: NodeId, links: &[LinkPlan]) -> Vec<(usize, usize, u32)> {
    let ends = links.iter().enumerate().filter_map(|(index, link)| match link.ends {
        [first, _] if first == id => Some((index, 0, link.spec.mtu)),
        [_, second] if second == id => Some((index, 1, link.spec.mtu)),
        _ => None,
    });
    ends.collect()
}

/// The addresses that a host reaches by one of its links.
fn routes_through(id: NodeId, link: usize, outward: usize, nodes: &[Node], routes: &Routes) -> Vec<Ipv4Addr> {
    let hosts = nodes.iter().filter_map(|node| node.host);
    hosts.filter(|host| routes.get(&(id, *host)) == Some(&(2 * link + outward))).map(address).collect()
}

/// The directions of all links. `tuns` holds, by direction, the interface at which it starts.
fn directions(topology: &Topology, tuns: &BTreeMap<usize, Arc<OwnedTun>>, routes: &Routes) -> Vec<Direction> {
    let hosts = topology.nodes.iter().filter(|node| node.host.is_some()).count();
    let mut directions = Vec::new();
    for (index, link) in topology.links.iter().enumerate() {
        let [first, second] = link.ends;
        for (backward, shape, ends_at) in [(0, link.spec.there, second), (1, link.spec.back, first)] {
            let number = 2 * index + backward;
            // Where the other direction starts, this one ends.
            let end = match tuns.get(&(number ^ 1)) {
                Some(tun) => End::Host(Arc::clone(tun)),
                None => End::Router((0..hosts).map(|host| routes.get(&(ends_at, host)).copied()).collect()),
            };
            let seed = topology.seed.wrapping_mul(0x1_0000_0001).wrapping_add(number as u64);
            let line = Line::new(shape, link.spec.mtu, seed);
            directions.push(Direction { line, end, counters: Arc::default() });
        }
    }
    directions
}

type OwnedTun = std::os::fd::OwnedFd;

/// A host of a running network.
#[derive(Clone, Copy, Debug)]
pub struct Host<'n> {
    keeper: &'n Keeper,
}

impl Host<'_> {
    /// The name it was given.
    pub fn name(&self) -> &str {
        &self.keeper.name
    }

    /// Its address, the same on all of its links. Nothing outside of the network can reach it.
    pub fn addr(&self) -> Ipv4Addr {
        self.keeper.address
    }

    /// A way into its namespace that can be kept.
    pub fn namespace(&self) -> Namespace {
        self.keeper.namespace.clone()
    }

    /// Runs `f` on a new thread of the host and waits for it. Sockets that it makes are the host's, for as long as they
    /// live and wherever they are used; threads that it starts are on the host too, so a runtime built in it is.
    ///
    /// A panic of `f` goes on in the caller.
    ///
    /// # Errors
    /// [`Error::Io`] when no thread can be made, [`Error::NotPermitted`] when it cannot enter the namespace.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T> {
        let namespace = &self.keeper.namespace;
        thread::scope(|scope| {
            let body = || namespace.enter().map(|()| f());
            let named = thread::Builder::new().name(format!("on-{}", self.keeper.name));
            let thread = named.spawn_scoped(scope, body).map_err(Error::io("starting a thread"))?;
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// Starts a process on the host. It is killed when the [`Net`] is dropped or this process dies; whatever it started
    /// itself is not. The caller waits for it, as for any child.
    ///
    /// # Errors
    /// [`Error::Io`] when the program cannot be started.
    pub fn command(&self, command: Command) -> Result<Child> {
        self.keeper.spawn(command)
    }

    /// How many packets the host's interfaces have dropped because the emulator did not read them in time: the
    /// emulation was not true then. 0 on a machine that keeps up.
    ///
    /// # Errors
    /// [`Error::Io`] without `/proc`.
    pub fn unread(&self) -> Result<u64> {
        let table = self.keeper.ask(|| std::fs::read_to_string("/proc/thread-self/net/dev"))?;
        let table = table.map_err(Error::io("reading /proc/thread-self/net/dev"))?;
        // Name, eight numbers of what came in, then bytes, packets, errors and drops of what went out.
        let drops = table.lines().filter_map(|line| {
            let (name, numbers) = line.split_once(':')?;
            let dropped = numbers.split_ascii_whitespace().nth(11)?.parse::<u64>().ok()?;
            name.trim().starts_with("link").then_some(dropped)
        });
        Ok(drops.sum())
    }
}

/// A link of a running network, seen from one of its ends.
#[derive(Clone, Copy, Debug)]
pub struct Link<'n> {
    net: &'n Net,
    index: usize,
    turned: bool,
}

impl Link<'_> {
    /// The names of its ends, the one it is seen from first.
    pub fn ends(&self) -> [&str; 2] {
        let name = |id: NodeId| self.net.nodes.get(id).map_or("", |node| node.name.as_str());
        let mut ends = self.net.links.get(self.index).map_or(["", ""], |link| link.ends.map(name));
        if self.turned {
            ends.reverse();
        }
        ends
    }

    /// Its MTU, in bytes of IP packet.
    pub fn mtu(&self) -> u32 {
        self.net.links.get(self.index).map_or(0, |link| link.spec.mtu)
    }

    /// Changes both directions. Packets on their way keep their times, and none overtakes another.
    /// It holds for every packet sent after this returns.
    ///
    /// # Errors
    /// [`Error::Topology`] for a shape that cannot be, [`Error::Stopped`].
    pub fn set(&self, shape: Shape) -> Result<()> {
        self.set_each(shape, shape)
    }

    /// Changes the directions away from the end it is seen from, and back.
    ///
    /// # Errors
    /// As [`Link::set`].
    pub fn set_each(&self, there: Shape, back: Shape) -> Result<()> {
        there.check()?;
        back.check()?;
        self.change(|setting, is_there| setting.shape = if is_there { there } else { back })
    }

    /// Cuts both directions: what is on its way is lost, and whatever is sent.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub fn cut(&self) -> Result<()> {
        self.change(|setting, _| setting.cut = true)
    }

    /// Cuts the direction away from the end it is seen from.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub fn cut_there(&self) -> Result<()> {
        self.change(|setting, is_there| setting.cut |= is_there)
    }

    /// Ends every cut of this link.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub fn heal(&self) -> Result<()> {
        self.change(|setting, _| setting.cut = false)
    }

    /// The shapes of the direction away from the end it is seen from, and back.
    pub fn shapes(&self) -> [Shape; 2] {
        let settings = self.net.control.settings();
        self.directions().map(|at| settings.get(at).map_or_else(Shape::default, |setting| setting.shape))
    }

    /// The counters of the direction away from the end it is seen from, and back.
    pub fn counts(&self) -> [Counts; 2] {
        self.directions().map(|at| self.net.counters.get(at).map_or_else(|| Counters::default().read(), |c| c.read()))
    }

    /// The numbers of both directions, the one away from the end it is seen from first.
    pub(crate) fn directions(&self) -> [usize; 2] {
        let [there, back] = [2 * self.index, 2 * self.index + 1];
        if self.turned { [back, there] } else { [there, back] }
    }

    fn change(&self, change: impl Fn(&mut Setting, bool)) -> Result<()> {
        let [there, back] = self.directions();
        self.net.change(|settings| {
            for (at, is_there) in [(there, true), (back, false)] {
                if let Some(setting) = settings.get_mut(at) {
                    change(setting, is_there);
                }
            }
        })
    }
}
