//! Emulated links under real TCP and UDP. Without the rights or the devices these tests say so and pass.
//!
//! Nothing here depends on how fast the machine is: a delay is a least, and hangs are bounded generously.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dhow_link::calibrate::Options;
use dhow_link::{Error, LinkSpec, Net, Offload, QueueLimit, Shape, Topology, calibrate};

const MS: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(60);

fn start(topology: Topology) -> Option<Net> {
    match topology.start() {
        Ok(net) => Some(net),
        Err(error @ Error::NotPermitted { .. }) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn pair(shape: Shape) -> Option<Net> {
    start(Topology::new().host("a").host("b").link("a", "b", shape))
}

/// A connection from one host to another; both ends bounded in time.
fn connect(net: &Net, from: &str, to: &str) -> (TcpStream, TcpStream) {
    let (from, to) = (net.host(from).unwrap(), net.host(to).unwrap());
    let listener = to.run(|| TcpListener::bind((to.addr(), 0)).unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let near = from.run(|| TcpStream::connect_timeout(&address, PATIENCE).unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    for stream in [&near, &far] {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
    }
    (near, far)
}

fn echo(near: &mut TcpStream, far: &mut TcpStream) -> Duration {
    let start = Instant::now();
    let mut byte = [0];
    near.write_all(&[1]).unwrap();
    far.read_exact(&mut byte).unwrap();
    far.write_all(&byte).unwrap();
    near.read_exact(&mut byte).unwrap();
    start.elapsed()
}

/// Sends `count` bytes that depend on their place, and checks them at the other end.
fn transfer(near: &mut TcpStream, far: &mut TcpStream, count: usize) {
    let data: Vec<u8> = (0..count).map(|i| (i % 251) as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| near.write_all(&data).unwrap());
        let mut got = vec![0; count];
        far.read_exact(&mut got).unwrap();
        assert!(got == data);
    });
}

#[test]
fn a_round_trip_takes_the_delay_of_both_directions() {
    let Some(net) = pair(Shape::default()) else { return };
    let link = net.link("b", "a").unwrap();
    link.set_each(Shape::default().delay(30 * MS), Shape::default().delay(50 * MS)).unwrap();
    let (mut near, mut far) = connect(&net, "a", "b");
    for _ in 0..3 {
        assert!(echo(&mut near, &mut far) >= 80 * MS);
    }
    assert_eq!(net.path("a", "b"), [Shape::default().delay(50 * MS)]);
    assert_eq!(net.path("b", "a"), [Shape::default().delay(30 * MS)]);
    assert_eq!(link.ends(), ["b", "a"]);
    // And no longer than it must, once in many tries, when the delay is taken away.
    link.set(Shape::default()).unwrap();
    assert!((0..1000).any(|_| echo(&mut near, &mut far) < 80 * MS));
}

#[test]
fn bytes_arrive_as_they_were_sent() {
    for (mtu, offload) in [(1500, Offload::Off), (1500, Offload::On), (9000, Offload::On), (65_535, Offload::Off)] {
        let spec = LinkSpec::from(Shape::rate(1_000_000_000).rtt(2 * MS)).mtu(mtu);
        let Some(net) = start(Topology::new().host("a").host("b").link("a", "b", spec).offload(offload)) else {
            return;
        };
        let (mut near, mut far) = connect(&net, "a", "b");
        transfer(&mut near, &mut far, 3_000_000);
        transfer(&mut far, &mut near, 3_000_000);
        let [there, back] = net.link("a", "b").unwrap().counts();
        for counts in [there, back] {
            assert!(counts.delivered_bytes > 3_000_000);
            // Packets are counted as the wire would see them.
            assert!(counts.delivered_packets >= counts.delivered_bytes.div_ceil(mtu.into()), "{mtu}: {counts:?}");
            assert_eq!((counts.lost, counts.cut, counts.no_memory, counts.refused), (0, 0, 0, 0));
        }
    }
}

#[test]
fn a_rate_is_not_exceeded() {
    // 20 Mbit/s: a megabyte takes 400 ms at least.
    let Some(net) = pair(Shape::rate(20_000_000)) else { return };
    let (mut near, mut far) = connect(&net, "a", "b");
    let start = Instant::now();
    transfer(&mut near, &mut far, 1_000_000);
    assert!(start.elapsed() >= Duration::from_millis(400));
}

#[test]
fn a_cut_stops_everything_and_healing_lets_it_go_on() {
    let Some(net) = pair(Shape::default().rtt(10 * MS)) else { return };
    let (mut near, mut far) = connect(&net, "a", "b");
    echo(&mut near, &mut far);
    let link = net.link("a", "b").unwrap();
    link.cut().unwrap();
    near.write_all(&[7]).unwrap();
    let until = Instant::now() + PATIENCE;
    while link.counts()[0].cut == 0 && Instant::now() < until {
        std::thread::sleep(10 * MS);
    }
    far.set_read_timeout(Some(300 * MS)).unwrap();
    let error = far.read(&mut [0]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    assert!(link.counts()[0].cut > 0);
    link.heal().unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut byte = [0];
    far.read_exact(&mut byte).unwrap();
    assert_eq!(byte, [7]);
    // Until what was sent is acknowledged, TCP sends nothing new after a time-out (RFC 5681 section 3.1).
    echo(&mut near, &mut far);
    // One direction alone: the answer gets lost, the question does not.
    net.link("b", "a").unwrap().cut_there().unwrap();
    near.write_all(&[8]).unwrap();
    far.read_exact(&mut byte).unwrap();
    assert_eq!(byte, [8]);
    far.write_all(&[9]).unwrap();
    near.set_read_timeout(Some(300 * MS)).unwrap();
    assert!(near.read(&mut byte).is_err());
    link.heal().unwrap();
    near.set_read_timeout(Some(PATIENCE)).unwrap();
    near.read_exact(&mut byte).unwrap();
    assert_eq!(byte, [9]);
}

#[test]
fn loss_is_counted_and_tcp_gets_over_it() {
    let Some(net) = pair(Shape::default().loss(0.02)) else { return };
    assert!(!net.offload_is_on());
    let (mut near, mut far) = connect(&net, "a", "b");
    transfer(&mut near, &mut far, 4_000_000);
    let [there, _] = net.link("a", "b").unwrap().counts();
    assert!(there.lost > 0, "{there:?}");
    assert!(there.lost < there.offered_packets / 5, "{there:?}");
    assert_eq!(there.offered_packets, there.delivered_packets + there.lost + there.full, "{there:?}");
    net.link("a", "b").unwrap().set(Shape::default()).unwrap();
    assert!(net.offload_is_on());
    transfer(&mut near, &mut far, 4_000_000);
    assert!(matches!(net.link("a", "b").unwrap().set(Shape::default().loss(2.0)), Err(Error::Topology(_))));
}

#[test]
fn a_bounded_queue_drops_what_is_too_much() {
    // 1 Mbit/s and a queue of 10 packets: of 100 sent at once most are dropped.
    let shape = Shape::rate(1_000_000).queue(QueueLimit::Bytes(10_280));
    let Some(net) = pair(shape) else { return };
    let (a, b) = (net.host("a").unwrap(), net.host("b").unwrap());
    let socket = a.run(|| UdpSocket::bind((a.addr(), 0)).unwrap()).unwrap();
    let target = b.run(|| UdpSocket::bind((b.addr(), 0)).unwrap()).unwrap();
    for _ in 0..100 {
        socket.send_to(&[0; 1000], target.local_addr().unwrap()).unwrap();
    }
    let link = net.link("a", "b").unwrap();
    let until = Instant::now() + PATIENCE;
    let mut counts = link.counts()[0];
    while counts.delivered_packets + counts.full < 100 && Instant::now() < until {
        std::thread::sleep(10 * MS);
        counts = link.counts()[0];
    }
    assert_eq!(counts.offered_packets, 100);
    assert_eq!(counts.offered_bytes, 102_800);
    assert!(counts.full > 0 && counts.delivered_packets >= 10, "{counts:?}");
}

#[test]
fn hosts_of_a_star_reach_each_other_through_the_hub() {
    let near = Shape::default().delay(5 * MS);
    let far = Shape::default().delay(40 * MS);
    let Some(net) = start(Topology::new().star("hub", [("s1", near), ("s2", near), ("client", far)])) else { return };
    let (mut client, mut server) = connect(&net, "client", "s2");
    assert!(echo(&mut client, &mut server) >= 90 * MS);
    let (mut one, mut two) = connect(&net, "s1", "s2");
    assert!(echo(&mut one, &mut two) >= 20 * MS);
    transfer(&mut one, &mut two, 1_000_000);
    assert_eq!(net.path("s1", "client"), [near, far]);
    // What went to s2 came from s1 and the client; late acknowledgements may still be on their way.
    let packets = |from, to| net.link(from, to).unwrap().counts()[0].offered_packets;
    let until = Instant::now() + PATIENCE;
    while packets("hub", "s2") != packets("s1", "hub") + packets("client", "hub") {
        assert!(Instant::now() < until, "packets were lost");
        std::thread::sleep(10 * MS);
    }
    // The client cut off does not touch the servers.
    net.link("client", "hub").unwrap().cut().unwrap();
    echo(&mut one, &mut two);
    assert!(matches!(net.host("nobody"), Err(Error::Unknown(_))));
    assert!(matches!(net.link("s1", "s2"), Err(Error::Unknown(_))));
}

#[test]
fn hosts_that_nothing_joins_do_not_reach_each_other() {
    let wire = Shape::default();
    let topology = Topology::new().host("a").host("b").host("c").link("a", "b", wire).link("b", "c", wire);
    let Some(net) = start(topology) else { return };
    let (a, c) = (net.host("a").unwrap(), net.host("c").unwrap());
    let error = a.run(|| TcpStream::connect_timeout(&(c.addr(), 9).into(), PATIENCE).unwrap_err()).unwrap();
    assert_eq!(error.kind(), ErrorKind::NetworkUnreachable);
    assert!(net.path("a", "c").is_empty());
}

#[test]
fn a_closure_may_borrow_and_its_panic_comes_through() {
    let Some(net) = pair(Shape::default()) else { return };
    let mut seen = 0;
    let inode = net.host("a").unwrap().namespace().inode();
    net.host("a").unwrap().run(|| seen = ns_of("thread-self")).unwrap();
    assert_eq!(seen, inode);
    assert_ne!(ns_of("thread-self"), inode);
    let told = || net.host("a").unwrap().run(|| panic!("of the closure"));
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(told));
    assert!(panic.is_err());
    // Threads and the kept namespace.
    let kept = net.host("b").unwrap().namespace();
    assert_eq!(kept.spawn("there", || ns_of("thread-self")).unwrap().join().unwrap().unwrap(), kept.inode());
}

#[test]
fn a_process_runs_on_its_host_and_ends_with_the_network() {
    let Some(net) = pair(Shape::default()) else { return };
    let mut show = Command::new("readlink");
    show.arg("/proc/self/ns/net").stdout(Stdio::piped());
    let output = net.host("b").unwrap().command(show).unwrap().wait_with_output().unwrap();
    let namespace = net.host("b").unwrap().namespace();
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), format!("net:[{}]", namespace.inode()));
    assert!(net.host("a").unwrap().command(Command::new("/no/such/program")).is_err());
    let mut sleep = Command::new("sleep");
    sleep.arg("600");
    let mut child = net.host("a").unwrap().command(sleep).unwrap();
    assert!(child.try_wait().unwrap().is_none());
    drop(net);
    assert!(!child.wait().unwrap().success());
}

#[test]
fn a_parameter_that_the_kernel_refuses_is_named() {
    let Some(_works) = pair(Shape::default()) else { return };
    let topology = Topology::new().host("a").host("b").link("a", "b", Shape::default());
    let refused = topology.sysctl("net/ipv4/tcp_congestion_control", "none-such").start().err().unwrap().to_string();
    assert!(refused.contains("tcp_congestion_control = none-such"), "{refused}");
}

#[test]
fn a_calibration_sees_all_links() {
    let shape = Shape::rate(20_000_000).rtt(10 * MS);
    let Some(net) = start(Topology::new().star("hub", [("a", shape), ("b", shape), ("c", shape)])) else { return };
    let options = Options { time: 500 * MS, warm_up: 200 * MS, round_trips: 3 };
    let found = calibrate(&net, options).unwrap();
    assert_eq!(found.links.len(), 6);
    assert_eq!(found.round_trips.len(), 6);
    for row in &found.round_trips {
        assert!((row.configured_us - 20_000.0).abs() < 1.0 && row.least_us >= 20_000.0, "{row:?}");
    }
    for row in &found.links {
        assert_eq!(row.expected, Some(20e6));
        assert_eq!(row.failed, 0);
        // How near it comes is the machine's; more than everything is wrong.
        assert!(row.carried > 0.0 && row.ratio.unwrap() < 1.2, "{row:?}");
    }
    assert!(found.table().contains("hub > c"));
}

fn ns_of(process: &str) -> u64 {
    let link = std::fs::read_link(format!("/proc/{process}/ns/net")).unwrap();
    let text = link.to_str().unwrap();
    text.trim_start_matches("net:[").trim_end_matches(']').parse().unwrap()
}
