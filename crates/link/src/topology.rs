//! Which hosts and routers there are, how they are joined, and which way packets go.

use std::collections::{HashMap, VecDeque};
use std::net::Ipv4Addr;

use crate::{Error, Net, Result, Shape};

/// Hosts of one network at most: each is a thread and a namespace.
pub const MAX_HOSTS: usize = 200;
const MAX_NODES: usize = 400;
const MAX_LINKS: usize = 1000;
/// The smallest MTU that every IPv4 host must take (RFC 791 section 3.1).
pub const MIN_MTU: u32 = 576;
/// The largest IP packet.
pub const MAX_MTU: u32 = 65_535;

/// The kernel parameter of the congestion control, and what it is where nothing else is asked for.
pub(crate) const CONGESTION: &str = "net/ipv4/tcp_congestion_control";
pub(crate) const DEFAULT_CONGESTION: &str = "reno";
/// Emulated links carry IPv4 alone.
pub(crate) const NO_IPV6: (&str, &str) = ("net/ipv6/conf/default/disable_ipv6", "1");

/// Both directions of a link, and its MTU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpec {
    /// From the first end to the second.
    pub there: Shape,
    /// From the second end to the first.
    pub back: Shape,
    /// The largest IP packet, in bytes: 576 to 65535.
    pub mtu: u32,
}

impl LinkSpec {
    /// A link with the MTU of Ethernet, 1500.
    pub fn new(there: Shape, back: Shape) -> LinkSpec {
        LinkSpec { there, back, mtu: 1500 }
    }

    /// With another MTU. Large ones mean few packets: what a machine with few processors can move.
    #[must_use]
    pub fn mtu(self, mtu: u32) -> LinkSpec {
        LinkSpec { mtu, ..self }
    }
}

impl From<Shape> for LinkSpec {
    /// The same in both directions, with an MTU of 1500.
    fn from(shape: Shape) -> LinkSpec {
        LinkSpec::new(shape, shape)
    }
}

/// Whether the kernel may hand runs of TCP segments to the emulator in one piece of up to 64 KiB.
///
/// It makes several Gbit/s possible with an MTU of 1500. The rate is still kept as if the segments were apart, but a
/// run arrives at once when its last bit has, and is lost or dropped as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offload {
    /// Where no link has loss, and the rates of all directions together are more than [`Offload::SLOW`].
    #[default]
    Auto,
    /// Always.
    On,
    /// Never: each packet by itself.
    Off,
}

impl Offload {
    /// The rate of all directions together, in bits a second, up to which packets are moved one by one by default.
    pub const SLOW: u64 = 400_000_000;

    pub(crate) fn is_on(self, shapes: &[Shape]) -> bool {
        match self {
            Offload::On => true,
            Offload::Off => false,
            Offload::Auto => {
                let rates = shapes.iter().map(|shape| shape.rate.unwrap_or(u64::MAX));
                let all = rates.fold(0, u64::saturating_add);
                shapes.iter().all(|shape| shape.loss == 0.0) && all > Offload::SLOW
            }
        }
    }
}

/// A host or a router, by its place in [`Topology::nodes`].
pub(crate) type NodeId = usize;

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    /// The number of the host; a router has none.
    pub(crate) host: Option<usize>,
}

#[derive(Clone, Debug)]
pub(crate) struct LinkPlan {
    pub(crate) ends: [NodeId; 2],
    pub(crate) spec: LinkSpec,
}

/// A network to be made. Errors of the description are told by [`Topology::start`].
#[derive(Clone, Debug)]
pub struct Topology {
    pub(crate) nodes: Vec<Node>,
    pub(crate) links: Vec<LinkPlan>,
    pub(crate) offload: Offload,
    pub(crate) seed: u64,
    pub(crate) sysctls: Vec<(String, String)>,
    error: Option<String>,
}

impl Default for Topology {
    fn default() -> Topology {
        Topology::new()
    }
}

impl Topology {
    /// No hosts, no links.
    ///
    /// Every host uses Reno (RFC 5681), windows of up to 64 MiB, and forgets what it learned of a path when a
    /// connection ends, so that runs can be compared; see [`Topology::sysctl`] for anything else.
    pub fn new() -> Topology {
        let sysctls = [
            NO_IPV6,
            // CUBIC takes what a virtual machine's timers add to a round trip for a full link, ends its slow start early,
            // and was seen to leave a third of an idle link unused for many seconds, with nothing lost.
            (CONGESTION, DEFAULT_CONGESTION),
            ("net/ipv4/tcp_rmem", "4096 131072 67108864"),
            ("net/ipv4/tcp_wmem", "4096 65536 67108864"),
            ("net/ipv4/tcp_no_metrics_save", "1"),
        ];
        Topology {
            nodes: Vec::new(),
            links: Vec::new(),
            offload: Offload::Auto,
            seed: 1,
            sysctls: sysctls.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            error: None,
        }
    }

    /// Adds a host: a network namespace with one address, 10.77.x.y, on all of its links.
    #[must_use]
    pub fn host(mut self, name: &str) -> Topology {
        let number = self.nodes.iter().filter(|node| node.host.is_some()).count();
        if number >= MAX_HOSTS {
            self.fail(format!("more than {MAX_HOSTS} hosts"));
            return self;
        }
        self.node(name, Some(number));
        self
    }

    /// Adds a router: a point inside the emulator that hands packets from link to link and takes no time. All of its
    /// links must have one MTU.
    #[must_use]
    pub fn router(mut self, name: &str) -> Topology {
        self.node(name, None);
        self
    }

    /// Joins two hosts or routers that have been added. `spec` is from `a` to `b`; a [`Shape`] serves for both
    /// directions.
    #[must_use]
    pub fn link(mut self, a: &str, b: &str, spec: impl Into<LinkSpec>) -> Topology {
        let spec = spec.into();
        let (Some(from), Some(to)) = (self.find(a), self.find(b)) else {
            self.fail(format!("link {a}-{b}: no such host or router"));
            return self;
        };
        if from == to || self.links.iter().any(|link| link.ends == [from, to] || link.ends == [to, from]) {
            self.fail(format!("link {a}-{b}: two different ends, and one link between them"));
        }
        if !(MIN_MTU..=MAX_MTU).contains(&spec.mtu) {
            self.fail(format!("link {a}-{b}: an MTU is from {MIN_MTU} to {MAX_MTU}"));
        }
        for shape in [spec.there, spec.back] {
            if let Err(error) = shape.check() {
                self.fail(format!("link {a}-{b}: {error}"));
            }
        }
        self.links.push(LinkPlan { ends: [from, to], spec });
        if self.links.len() > MAX_LINKS {
            self.fail(format!("more than {MAX_LINKS} links"));
        }
        self
    }

    /// Adds hosts, each on an access link of its own to a router named `hub`. `spec` is from the host to the hub.
    #[must_use]
    pub fn star<'a, S: Into<LinkSpec>>(self, hub: &str, hosts: impl IntoIterator<Item = (&'a str, S)>) -> Topology {
        let with_hub = self.router(hub);
        hosts.into_iter().fold(with_hub, |topology, (name, spec)| topology.host(name).link(name, hub, spec))
    }

    /// Says whether runs of TCP segments stay in one piece.
    #[must_use]
    pub fn offload(mut self, offload: Offload) -> Topology {
        self.offload = offload;
        self
    }

    /// Where the random numbers of loss and jitter start; 1 unless set.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Topology {
        self.seed = seed;
        self
    }

    /// Sets a kernel parameter of every host, such as `net/ipv4/tcp_congestion_control` to `bbr`. Later settings win.
    #[must_use]
    pub fn sysctl(mut self, name: &str, value: &str) -> Topology {
        let below = name.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
        if !name.starts_with("net/") || !below {
            self.fail(format!("{name}: a parameter of a network namespace is named net/..."));
        }
        self.sysctls.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Makes the namespaces, interfaces and routes, and starts to move packets.
    ///
    /// # Errors
    /// [`Error::Topology`] for a description that makes no sense, [`Error::NotPermitted`] without the rights or the
    /// devices, [`Error::Io`] when a step fails.
    pub fn start(self) -> Result<Net> {
        self.check()?;
        Net::start(&self)
    }

    pub(crate) fn find(&self, name: &str) -> Option<NodeId> {
        self.nodes.iter().position(|node| node.name == name)
    }

    pub(crate) fn shapes(&self) -> Vec<Shape> {
        self.links.iter().flat_map(|link| [link.spec.there, link.spec.back]).collect()
    }

    fn node(&mut self, name: &str, host: Option<usize>) {
        let fine = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || name.len() > 32 || !name.chars().all(fine) {
            self.fail(format!("'{name}': a name is 1 to 32 letters, digits, - or _"));
        }
        if self.find(name).is_some() {
            self.fail(format!("two nodes named {name}"));
        }
        if self.nodes.len() >= MAX_NODES {
            self.fail(format!("more than {MAX_NODES} nodes"));
            return;
        }
        self.nodes.push(Node { name: name.to_owned(), host });
    }

    /// The first error is the one to tell.
    fn fail(&mut self, text: String) {
        self.error.get_or_insert(text);
    }

    fn check(&self) -> Result<()> {
        if let Some(error) = &self.error {
            return Err(Error::Topology(error.clone()));
        }
        for (id, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.host.is_none()) {
            let mut mtus = self.links.iter().filter(|link| link.ends.contains(&id)).map(|link| link.spec.mtu);
            let first = mtus.next();
            if mtus.any(|mtu| Some(mtu) != first) {
                return Err(Error::Topology(format!("router {}: its links have different MTUs", node.name)));
            }
        }
        Ok(())
    }
}

/// The address of a host.
pub(crate) fn address(host: usize) -> Ipv4Addr {
    // At most MAX_HOSTS, so one octet would do; two leave room.
    Ipv4Addr::new(10, 77, (host / 250) as u8, (host % 250 + 1) as u8)
}

/// From a node towards a host: the direction of a link to take. Direction `2 * link` goes from its first end to its
/// second, `2 * link + 1` back.
pub(crate) type Routes = HashMap<(NodeId, usize), usize>;

/// The shortest ways to every host. Only routers pass packets on.
pub(crate) fn routes(nodes: &[Node], links: &[LinkPlan]) -> Routes {
    let mut routes = Routes::new();
    for (target, node) in nodes.iter().enumerate() {
        let Some(host) = node.host else { continue };
        let mut reached = vec![target];
        let mut queue = VecDeque::from([target]);
        while let Some(at) = queue.pop_front() {
            for (index, link) in links.iter().enumerate() {
                let [first, second] = link.ends;
                // The neighbour takes the direction that leads here.
                let (neighbour, direction) = if first == at {
                    (second, 2 * index + 1)
                } else if second == at {
                    (first, 2 * index)
                } else {
                    continue;
                };
                if reached.contains(&neighbour) {
                    continue;
                }
                reached.push(neighbour);
                routes.insert((neighbour, host), direction);
                if nodes.get(neighbour).is_some_and(|node| node.host.is_none()) {
                    queue.push_back(neighbour);
                }
            }
        }
    }
    routes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(topology: Topology) -> String {
        match topology.check() {
            Err(Error::Topology(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let two = || Topology::new().host("a").host("b");
        let wire = Shape::default();
        assert!(two().link("a", "b", wire).check().is_ok());
        assert!(refused(two().host("a")).contains("two nodes"));
        assert!(refused(Topology::new().host("")).contains("name"));
        assert!(refused(Topology::new().host("a b")).contains("name"));
        assert!(refused(two().link("a", "c", wire)).contains("no such host"));
        assert!(refused(two().link("a", "a", wire)).contains("two different ends"));
        assert!(refused(two().link("a", "b", wire).link("b", "a", wire)).contains("one link"));
        assert!(refused(two().link("a", "b", LinkSpec::from(wire).mtu(100))).contains("MTU"));
        assert!(refused(two().link("a", "b", LinkSpec::from(wire).mtu(65_536))).contains("MTU"));
        assert!(refused(two().link("a", "b", Shape::rate(1))).contains("rate"));
        assert!(refused(two().sysctl("net/../kernel/panic", "1")).contains("net/"));
        assert!(refused(two().sysctl("kernel/panic", "1")).contains("net/"));
        let spec = LinkSpec::from(wire);
        assert!(refused(Topology::new().star("hub", [("a", spec), ("b", spec.mtu(9000))])).contains("MTUs"));
        let many = (0..=MAX_HOSTS).fold(Topology::new(), |t, n| t.host(&format!("h{n}")));
        assert!(refused(many).contains("hosts"));
    }

    #[test]
    fn addresses_differ() {
        assert_eq!(address(0), Ipv4Addr::new(10, 77, 0, 1));
        assert_eq!(address(249), Ipv4Addr::new(10, 77, 0, 250));
        assert_eq!(address(250), Ipv4Addr::new(10, 77, 1, 1));
    }

    #[test]
    fn packets_take_the_shortest_way_and_hosts_pass_nothing_on() {
        let wire = Shape::default();
        // a - r1 - r2 - b, a - b directly, and c behind b alone.
        let topology = Topology::new()
            .host("a")
            .host("b")
            .host("c")
            .router("r1")
            .router("r2")
            .link("a", "r1", wire)
            .link("r1", "r2", wire)
            .link("r2", "b", wire)
            .link("b", "a", wire)
            .link("c", "b", wire);
        let routes = routes(&topology.nodes, &topology.links);
        let way = |from: &str, to: &str| {
            let host = topology.nodes[topology.find(to).unwrap()].host.unwrap();
            routes.get(&(topology.find(from).unwrap(), host)).copied()
        };
        assert_eq!(way("a", "b"), Some(7));
        assert_eq!(way("b", "a"), Some(6));
        assert_eq!(way("r1", "b"), Some(2));
        assert_eq!(way("r1", "a"), Some(1));
        assert_eq!(way("r2", "b"), Some(4));
        assert_eq!(way("b", "c"), Some(9));
        assert_eq!(way("c", "b"), Some(8));
        assert_eq!(way("a", "c"), None);
        assert_eq!(way("c", "a"), None);
    }

    #[test]
    fn a_star_joins_all() {
        let topology = Topology::new().star("hub", [("a", Shape::default()), ("b", Shape::rate(1_000_000))]);
        assert!(topology.check().is_ok());
        let routes = routes(&topology.nodes, &topology.links);
        // a is node 1, b node 2; from a to host 1 by link 0, then by link 1 backwards.
        assert_eq!(routes.get(&(1, 1)), Some(&0));
        assert_eq!(routes.get(&(0, 1)), Some(&3));
    }

    #[test]
    fn segments_stay_together_only_where_it_matters() {
        let fast = Shape::rate(1_000_000_000);
        let slow = Shape::rate(100_000_000);
        assert!(Offload::Auto.is_on(&[fast, slow]));
        assert!(Offload::Auto.is_on(&[Shape::default()]));
        assert!(!Offload::Auto.is_on(&[slow; 4]));
        assert!(Offload::Auto.is_on(&[slow; 5]));
        assert!(!Offload::Auto.is_on(&[fast, fast.loss(0.01)]));
        assert!(Offload::On.is_on(&[fast.loss(0.01)]));
        assert!(!Offload::Off.is_on(&[fast]));
    }
}
