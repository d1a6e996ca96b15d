//! ECN on links that mark instead of dropping, that clear the field, or that mark everything.

use crate::harness::{MS, both_families, conn, expect_all_delivered, goodput, two_hosts};
use tcp_stack::testutil::{ConnPlan, LinkConfig, Plan, Report, Scenario};
use tcp_stack::{Congestion, Duration, Ecn};

/// 100 Mbit/s and a round trip of 2 ms: a BDP of 25 kB, and a queue of four times that.
const BOTTLENECK: LinkConfig =
    LinkConfig { rate: 100_000_000, delay: MS, queue: 100_000, ..LinkConfig::CLEAN };
/// Marking threshold of switches, bytes: RFC 8257 §3.1: "K > (RTT * C)/7".
const K: u64 = 10_000;
/// Payload rate of the link, bytes per second: 1448 bytes of 1538.
const BEST: f64 = 12.5e6 * 1448.0 / 1538.0;

fn scenario(link: LinkConfig, congestion: Congestion, conns: Vec<ConnPlan>) -> Scenario {
    let mut scenario = two_hosts(link, conns);
    for host in &mut scenario.hosts {
        host.tcp.congestion = congestion;
        host.tcp.ecn = Ecn::On;
        // Only the senders' queue is measured, not that of the acknowledgments.
        host.receive_window_bytes = 1 << 20;
        host.send_buffer_bytes = 1 << 20;
    }
    scenario.link_back = Some(LinkConfig { mark: None, ..link });
    scenario
}

/// Returns the mean queue length before a data segment, bytes; acknowledgments find no queue.
fn queue(report: &Report) -> u64 {
    report.links.waited / report.stats[0].tcp.segments_out
}

#[test]
fn dctcp_keeps_the_queue_short_and_the_link_busy() {
    for ipv6 in [false, true] {
        let conns = vec![conn(ipv6, Plan::bulk(16 << 20), Plan::sink())];
        let link = LinkConfig { mark: Some(K), ..BOTTLENECK };
        for report in expect_all_delivered(&scenario(link, Congestion::Dctcp, conns), 0..3) {
            let [_, listener] = report.outcomes[0];
            let (queue, tcp) = (queue(&report), &report.stats[0].tcp);
            assert_eq!((report.links.overflowed, tcp.retransmits), (0, 0), "{tcp:?}");
            assert!(goodput(&listener) > 0.97 * BEST, "{}", goodput(&listener));
            assert!((K / 2..K * 3 / 2).contains(&queue), "{queue}");
        }
    }
}

/// A mark ends a probe of BBR before the queue overflows. The marks of random packets reduce what is in flight, but not
/// below a share of the link.
#[test]
fn bbr_responds_to_marks() {
    for ipv6 in [false, true] {
        let conns = vec![conn(ipv6, Plan::bulk(16 << 20), Plan::sink())];
        let link = LinkConfig { mark: Some(3 * K), queue: 8 * K, ..BOTTLENECK };
        for report in expect_all_delivered(&scenario(link, Congestion::Bbr, conns), 0..3) {
            let [_, listener] = report.outcomes[0];
            let (queue, tcp) = (queue(&report), &report.stats[0].tcp);
            assert_eq!((report.links.overflowed, tcp.retransmits), (0, 0), "{tcp:?} {:?}", report.links);
            assert!(report.links.marked > 0 && tcp.ecn_reductions > 0, "{tcp:?}");
            assert!(tcp.ecn_reductions.abs_diff(tcp.cwr_out) <= 1, "{tcp:?}");
            assert!(goodput(&listener) > 0.9 * BEST, "{}", goodput(&listener));
            assert!(queue < 3 * K, "{queue}");
        }
    }
}

/// On the same path without marks, only overflow ends the growth of the window.
#[test]
fn without_marks_the_queue_fills() {
    for ipv6 in [false, true] {
        let conns = vec![conn(ipv6, Plan::bulk(16 << 20), Plan::sink())];
        for report in expect_all_delivered(&scenario(BOTTLENECK, Congestion::Dctcp, conns), 0..1) {
            assert!(report.links.overflowed > 0);
            assert!(report.links.waited_max > 98_000, "{:?}", report.links);
            assert!(queue(&report) > 3 * K, "{}", queue(&report));
        }
    }
}

#[test]
fn nothing_is_lost_where_a_link_marks() {
    for congestion in [Congestion::NewReno, Congestion::Cubic] {
        for (ipv6, mark) in [(false, 30_000), (true, 30_000), (false, 50_000)] {
            let conns = vec![conn(ipv6, Plan::bulk(16 << 20), Plan::sink())];
            // Slow start doubles the bytes in flight before the first echo arrives.
            let link = LinkConfig { mark: Some(mark), queue: 200_000, ..BOTTLENECK };
            for report in expect_all_delivered(&scenario(link, congestion, conns), 0..2) {
                let [_, listener] = report.outcomes[0];
                let tcp = &report.stats[0].tcp;
                assert_eq!((report.links.overflowed, tcp.retransmits, tcp.timeouts), (0, 0, 0), "{tcp:?}");
                assert!(report.links.marked > 0 && tcp.ecn_reductions > 1, "{tcp:?}");
                // Marks of one window cause one reduction, and each is answered.
                assert!(tcp.ecn_reductions.abs_diff(tcp.cwr_out) <= 1, "{tcp:?}");
                assert_eq!(report.stats[1].tcp.cwr_in, tcp.cwr_out);
                assert!(goodput(&listener) > 0.9 * BEST, "{}", goodput(&listener));
            }
        }
    }
}

/// Several connections share one queue.
#[test]
fn connections_share_a_link_that_marks() {
    for congestion in [Congestion::Dctcp, Congestion::Cubic, Congestion::Bbr] {
        let conns = (0..6).map(|index| conn(index % 2 == 0, Plan::bulk(2 << 20), Plan::sink())).collect();
        let link = LinkConfig { mark: Some(30_000), queue: 400_000, ..BOTTLENECK };
        let mut scenario = scenario(link, congestion, conns);
        for host in &mut scenario.hosts {
            host.vlan = Some(100);
        }
        for report in expect_all_delivered(&scenario, 0..2) {
            assert_eq!(report.links.overflowed, 0, "{congestion:?} {:?}", report.links);
            assert!(report.links.marked > 0);
            for [_, listener] in &report.outcomes {
                assert!(goodput(listener) > BEST / 6.0 * 0.6, "{congestion:?} {}", goodput(listener) / BEST);
            }
        }
    }
}

#[test]
fn clearing_the_ecn_field_breaks_no_connection() {
    let link = LinkConfig { mark: Some(K), bleach: true, ..BOTTLENECK };
    for congestion in [Congestion::Cubic, Congestion::Dctcp] {
        let scenario = scenario(link, congestion, both_families(Plan::bulk(4 << 20)));
        for report in expect_all_delivered(&scenario, 0..2) {
            assert!(report.links.marked > 0 && report.links.overflowed > 0);
            assert_eq!((report.stats[0].tcp.ece_in, report.stats[1].tcp.ce_in), (0, 0));
        }
    }
}

/// With every packet marked for ever, the window stays at the least, and the stream still gets through.
#[test]
fn a_link_that_marks_every_packet_still_delivers() {
    let link = LinkConfig { mark: Some(0), ..BOTTLENECK };
    for (congestion, least_ms) in [
        (Congestion::NewReno, 150),
        (Congestion::Cubic, 150),
        (Congestion::Dctcp, 150),
        (Congestion::Bbr, 75),
    ] {
        let plan = Plan::bulk(300_000);
        let conns = vec![conn(false, plan, plan), conn(true, plan, plan)];
        let mut scenario = scenario(link, congestion, conns);
        scenario.link_back = Some(link);
        for report in expect_all_delivered(&scenario, 0..2) {
            let tcp = &report.stats[0].tcp;
            assert_eq!((tcp.timeouts, report.links.overflowed), (0, 0), "{tcp:?}");
            for outcome in report.outcomes.iter().flatten() {
                // Two segments per round trip of 2 ms; with BBR four.
                let took = outcome.last_data.unwrap() - outcome.established.unwrap();
                assert!((MS * least_ms..MS * 500).contains(&took), "{congestion:?} {took:?}");
            }
        }
    }
}

/// Marks and losses together, with reordering and duplication.
#[test]
fn marks_and_losses_together() {
    for congestion in [Congestion::NewReno, Congestion::Cubic, Congestion::Dctcp, Congestion::Bbr] {
        let link = LinkConfig {
            mark: Some(20_000),
            loss: 5_000,
            reorder: 10_000,
            duplicate: 5_000,
            jitter: Duration::from_micros(20),
            ..BOTTLENECK
        };
        let plan = Plan::bulk(1 << 20);
        let conns = vec![conn(false, plan, plan), conn(true, plan, plan)];
        let mut scenario = scenario(link, congestion, conns);
        scenario.link_back = Some(link);
        for report in expect_all_delivered(&scenario, 0..6) {
            assert!(report.links.marked > 0 && report.links.lost > 0);
        }
    }
}
