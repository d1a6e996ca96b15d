//! Incast: 64 hosts send to one through a port with a short queue.

use crate::harness::{conn, expect_good_order, host, run_and, two_hosts};
use std::net::{Ipv4Addr, Ipv6Addr};
use tcp_stack::testutil::{ConnPlan, LinkConfig, Plan, Report, Scenario};
use tcp_stack::wire::{Ipv4Cidr, Ipv6Cidr};
use tcp_stack::{Congestion, Duration, Ecn};

const SENDERS: u8 = 64;
/// 10 Gbit/s, a round trip of 20 µs, and a queue of 256 KiB: less than three segments for each sender.
const PORT: LinkConfig = LinkConfig {
    rate: 10_000_000_000,
    delay: Duration::from_micros(10),
    queue: 256 << 10,
    ..LinkConfig::CLEAN
};
/// Marking threshold, bytes: as recommended for 10 Gbit/s, 65 segments.
const K: u64 = 100_000;

/// Returns 64 flows of `bytes` bytes that begin together.
fn incast(port: LinkConfig, congestion: Congestion, ecn: Ecn, bytes: u64, ipv6: bool) -> Scenario {
    let plan =
        |from: u8| ConnPlan { from: from.into(), to: 0, ..conn(ipv6, Plan::bulk(bytes), Plan::sink()) };
    let conns = (1..=SENDERS).map(plan).collect();
    let edge = LinkConfig { mark: None, queue: 16 << 20, ..port };
    let mut scenario = Scenario {
        switched: true,
        link_back: Some(port),
        buffers: 65_536,
        further_buffers: 4096,
        poll_interval: Duration::ZERO,
        steps_max: 60_000_000,
        ..two_hosts(edge, conns)
    };
    scenario.hosts = (0..=SENDERS).map(host).collect();
    for (host, number) in scenario.hosts.iter_mut().zip(1_u8..) {
        host.ipv4 = Ipv4Cidr::new(Ipv4Addr::new(10, 77, 0, number), 24);
        host.ipv6 = Ipv6Cidr::new(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, number.into()), 64);
        (host.connections_max, host.neighbors_max) = (128, 128);
        host.tcp.congestion = congestion;
        host.tcp.ecn = ecn;
        // The profile for data centers.
        (host.tcp.rto_min_ms, host.tcp.delayed_ack_ms, host.tcp.peer_delayed_ack_ms) = (5, 1, 1);
    }
    scenario
}

fn timeouts(report: &Report) -> u64 {
    report.stats.iter().map(|stats| stats.tcp.timeouts).sum()
}

/// Returns the goodput of all flows together, until the last byte of the last one, as a share of the port's.
fn share(report: &Report) -> f64 {
    let listeners = || report.outcomes.iter().map(|[_, listener]| listener);
    let received: u64 = listeners().map(|listener| listener.received).sum();
    let begin = listeners().map(|listener| listener.established.unwrap()).min().unwrap();
    let end = listeners().map(|listener| listener.last_data.unwrap()).max().unwrap();
    received as f64 / ((end - begin).as_secs_f64() * PORT.rate as f64 / 8.0 * 1448.0 / 1538.0)
}

/// Runs an incast; every byte arrives.
fn outcome(mark: Option<u64>, congestion: Congestion, bytes: u64, ipv6: bool) -> Report {
    let ecn = if mark.is_some() { Ecn::On } else { Ecn::Off };
    let scenario = incast(LinkConfig { mark, ..PORT }, congestion, ecn, bytes, ipv6);
    run_and(&scenario, 1, expect_good_order)
}

/// The first round trip overflows the queue, whatever the senders do: 64 initial windows are 985 kB. Its losses are
/// repaired without timeouts, and then marks keep the queue short.
#[test]
fn with_marks_dctcp_takes_no_timeouts_and_fills_the_link() {
    for (bytes, ipv6) in [(256 << 10, false), (256 << 10, true), (1 << 20, false)] {
        let report = outcome(Some(K), Congestion::Dctcp, bytes, ipv6);
        assert_eq!(timeouts(&report), 0, "{bytes} bytes, IPv6 {ipv6}");
        assert!(share(&report) > 0.9, "{bytes} bytes, IPv6 {ipv6}: {}", share(&report));
        assert!(report.links.overflowed < 800 && report.links.marked > 0, "{:?}", report.links);
    }
}

#[test]
fn with_marks_cubic_takes_no_timeouts_either() {
    for (bytes, ipv6) in [(256 << 10, true), (1 << 20, false)] {
        let report = outcome(Some(K), Congestion::Cubic, bytes, ipv6);
        assert_eq!(timeouts(&report), 0, "{bytes} bytes, IPv6 {ipv6}");
        assert!(share(&report) > 0.9, "{bytes} bytes, IPv6 {ipv6}: {}", share(&report));
    }
}

/// Without marks a share of the queue is less than three segments, the smallest window that repairs a loss without a
/// timeout; the timeouts of some flows leave the link to the others.
#[test]
fn without_marks_the_link_does_not_collapse() {
    for congestion in [Congestion::Cubic, Congestion::Dctcp, Congestion::NewReno] {
        for (bytes, least) in [(256 << 10, 0.5), (1 << 20, 0.9)] {
            let report = outcome(None, congestion, bytes, false);
            let what = format!("{congestion:?}, {bytes} bytes, {} timeouts", timeouts(&report));
            assert!(share(&report) > least, "{what}: {}", share(&report));
            assert!(timeouts(&report) < 2 * u64::from(SENDERS), "{what}");
        }
    }
}

/// BBR keeps four segments in flight for each flow, together more than the queue: it loses many, and still fills most
/// of the link.
#[test]
fn bbr_does_not_collapse() {
    for (mark, least) in [(Some(K), 0.9), (None, 0.7)] {
        let report = outcome(mark, Congestion::Bbr, 1 << 20, false);
        assert!(share(&report) > least, "{mark:?}: {} {:?}", share(&report), report.links);
    }
}
