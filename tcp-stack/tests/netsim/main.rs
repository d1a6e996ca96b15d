//! Stacks in simulated networks: impairments of the links must not change the streams.
//!
//! A failure shows its seed and the last lines of the log. `TCP_SEED=7 cargo test --test netsim NAME` runs that seed
//! again, `TCP_SEED=0..10000` a range of them; `TCP_LOG=…` sets the number of lines.

#![allow(clippy::unwrap_used, reason = "what a test builds is right")]

mod coexistence;
mod congestion;
mod ecn;
mod harness;
mod incast;
mod path;
mod random;
mod short;
mod thousand;
mod window;

use harness::{MS, PERCENT, both_families, conn, expect_all_delivered, goodput, host, run, seeds, two_hosts};
use tcp_stack::testutil::{
    Burst, ConnPlan, Ending, LinkConfig, Plan, Reading, Scenario, Sending, Simulation,
};
use tcp_stack::{CloseReason, Congestion, ConnOptions, Duration, Keepalive, TcpConfig};

#[test]
fn a_clean_link_is_filled_without_a_retransmission() {
    // A queue that holds the whole send buffer loses nothing.
    let link = LinkConfig { queue: 1 << 20, ..LinkConfig::CLEAN };
    for ipv6 in [false, true] {
        let scenario = two_hosts(link, vec![conn(ipv6, Plan::bulk(8 << 20), Plan::sink())]);
        for report in expect_all_delivered(&scenario, 0..2) {
            assert_eq!(report.links.overflowed + report.links.lost, 0);
            assert_eq!(report.stats[0].tcp.retransmits, 0, "{:?}", report.stats[0].tcp);
            let [_, listener] = report.outcomes[0];
            assert_eq!(listener.received, 8 << 20);
            // 1460 bytes less 12 of timestamps, in 1538 bytes of link.
            let best = 125e6 * 1448.0 / 1538.0;
            assert!(goodput(&listener) > 0.9 * best, "{} of {best}", goodput(&listener));
            // At least every second segment is acknowledged, unless segments arrive in bursts; no segment needs two
            // acknowledgments.
            assert!(report.stats[1].tcp.acks_out < report.stats[0].tcp.segments_out);
        }
    }
}

#[test]
fn one_percent_loss() {
    let link = LinkConfig { loss: PERCENT, queue: 1 << 20, ..LinkConfig::CLEAN };
    for report in expect_all_delivered(&two_hosts(link, both_families(Plan::bulk(2 << 20))), 0..6) {
        assert!(report.links.lost > 10, "{:?}", report.links);
        // Acknowledgments repair losses; only the last segments need timeouts.
        let tcp = &report.stats[0].tcp;
        assert!(tcp.timeouts * 4 <= tcp.fast_recoveries, "{tcp:?}");
        assert!(tcp.retransmits < report.links.lost * 2, "{tcp:?} {:?}", report.links);
        for [_, listener] in &report.outcomes {
            assert!(goodput(listener) > 5e6, "{}", goodput(listener));
        }
    }
}

#[test]
fn three_percent_loss() {
    let link = LinkConfig { loss: 3 * PERCENT, ..LinkConfig::CLEAN };
    expect_all_delivered(&two_hosts(link, both_families(Plan::bulk(1 << 20))), 0..6);
}

#[test]
fn ten_percent_loss_both_ways_with_data_both_ways() {
    let link = LinkConfig { loss: 10 * PERCENT, delay: MS, ..LinkConfig::CLEAN };
    let conns = vec![
        conn(false, Plan::bulk(200_000), Plan::bulk(200_000)),
        conn(true, Plan::bulk(200_000), Plan::bulk(1)),
    ];
    expect_all_delivered(&two_hosts(link, conns), 0..6);
}

#[test]
fn reordering_costs_little() {
    let link = LinkConfig {
        reorder: 5 * PERCENT,
        hold: Duration::from_micros(200),
        queue: 1 << 20,
        ..LinkConfig::CLEAN
    };
    for report in expect_all_delivered(&two_hosts(link, both_families(Plan::bulk(2 << 20))), 0..6) {
        assert!(report.links.held > 100);
        let tcp = &report.stats[0].tcp;
        // RFC 8985: the reordering window grows until it covers the reordering of the path.
        assert!(tcp.retransmits * 4 < report.links.held * 3, "{tcp:?} {:?}", report.links);
        assert_eq!(tcp.timeouts, 0, "{tcp:?}");
    }
}

#[test]
fn jitter_reorders_everything() {
    let link = LinkConfig { jitter: MS, loss: PERCENT, ..LinkConfig::CLEAN };
    expect_all_delivered(&two_hosts(link, both_families(Plan::bulk(1 << 20))), 0..6);
}

#[test]
fn duplicates_are_harmless() {
    let link = LinkConfig { duplicate: 20 * PERCENT, jitter: MS / 10, ..LinkConfig::CLEAN };
    for report in expect_all_delivered(&two_hosts(link, both_families(Plan::bulk(1 << 20))), 0..4) {
        assert!(report.stats[1].tcp.dsacks_out > 0);
    }
}

#[test]
fn loss_in_bursts() {
    let burst = Burst { begins: PERCENT / 2, lasts: MS / 5, loss: 100 * PERCENT };
    let link = LinkConfig { burst: Some(burst), ..LinkConfig::CLEAN };
    expect_all_delivered(&two_hosts(link, both_families(Plan::bulk(1 << 20))), 0..6);
}

#[test]
fn corrupted_segments_are_dropped() {
    let link = LinkConfig { corrupt: 2 * PERCENT, ..LinkConfig::CLEAN };
    for report in expect_all_delivered(&two_hosts(link, both_families(Plan::bulk(1 << 20))), 0..6) {
        assert!(report.stats[1].drops.drop_tcp_checksum > 0);
    }
}

/// Wrong bits under correct checksums may change any connection, but all connections end, and the hosts stay
/// consistent.
#[test]
fn forged_segments_do_no_harm() {
    let link = LinkConfig { forge: 2 * PERCENT, loss: PERCENT, ..LinkConfig::CLEAN };
    let conns = vec![
        conn(false, Plan::bulk(300_000), Plan::bulk(300_000)),
        conn(true, Plan::bulk(300_000), Plan::bulk(300_000)),
    ];
    for seed in seeds(0..30) {
        // Ends that were made to disagree may wait for ever.
        let abort_at = Some(MS * 300_000);
        run(&Scenario { hostile: true, abort_at, ..two_hosts(link, conns.clone()) }, seed);
    }
}

/// RFC 5961: segments of an attacker who knows the ports but not the sequence numbers change nothing.
#[test]
fn blind_segments_change_nothing() {
    let link = LinkConfig { rate: 50_000_000, loss: PERCENT / 2, ..LinkConfig::CLEAN };
    let sink = Plan { reading: Reading::Stall { after: 50_000, pause: MS * 500 }, ..Plan::sink() };
    let plan = Plan::bulk(300_000);
    let conns = vec![conn(false, plan, plan), conn(true, plan, plan), conn(false, plan, sink)];
    let attack = Some(Duration::from_micros(150));
    for report in expect_all_delivered(&Scenario { attack, ..two_hosts(link, conns) }, 0..10) {
        for stats in &report.stats {
            let drops = &stats.drops;
            assert!(drops.drop_tcp_bad_reset > 0 && drops.drop_tcp_out_of_window > 0, "{drops:?}");
            assert!(drops.drop_tcp_paws > 0 && drops.drop_tcp_duplicate > 0, "{drops:?}");
        }
    }
}

#[test]
fn a_reader_that_stalls_closes_the_window() {
    let sink = Plan { reading: Reading::Stall { after: 100_000, pause: MS * 20_000 }, ..Plan::sink() };
    let conns = vec![conn(false, Plan::bulk(1 << 20), sink), conn(true, Plan::bulk(1 << 20), sink)];
    for loss in [0, 3 * PERCENT] {
        let scenario = two_hosts(LinkConfig { loss, ..LinkConfig::CLEAN }, conns.clone());
        for report in expect_all_delivered(&scenario, 0..3) {
            let tcp = &report.stats[0].tcp;
            // RFC 9293 §3.8.6.1: probes are sent at growing intervals.
            assert!((4..60).contains(&tcp.window_probes), "{tcp:?}");
            for [_, listener] in &report.outcomes {
                let took = listener.last_data.unwrap() - listener.established.unwrap();
                // The update that opens the window may be lost; the next probe is half a minute away then.
                assert!(took < MS * if loss == 0 { 30_000 } else { 60_000 }, "{took:?}");
            }
        }
    }
}

#[test]
fn a_slow_reader_slows_the_sender() {
    let sink = Plan { reading: Reading::Slow(3_000), ..Plan::sink() };
    for (ipv6, segment) in [(false, 1448), (true, 1428)] {
        let mut scenario = two_hosts(LinkConfig::CLEAN, vec![conn(ipv6, Plan::bulk(1 << 20), sink)]);
        for window in [8 << 10, 64 << 10, 256 << 10] {
            scenario.hosts[1].receive_window_bytes = window;
            for report in expect_all_delivered(&scenario, 0..2) {
                // RFC 9293 §3.8.6.2: no silly window syndrome.
                let tcp = &report.stats[0].tcp;
                assert!(tcp.segments_out < (1 << 20) / segment * 3, "{tcp:?}");
            }
        }
    }
}

/// 100 Mbit/s and 100 ms need 1.25 MB: twenty times the initial window.
#[test]
fn the_window_grows_to_what_a_long_path_needs() {
    let link = LinkConfig { rate: 100_000_000, delay: MS * 50, queue: 2 << 20, ..LinkConfig::CLEAN };
    let goodputs = [64 << 10, 4 << 20].map(|window| {
        let mut scenario = two_hosts(link, both_families(Plan::bulk(8 << 20)));
        for host in &mut scenario.hosts {
            (host.send_buffer_bytes, host.receive_window_bytes) = (4 << 20, window);
            host.buffers_max = 16_384;
        }
        scenario.buffers = 16_384;
        let reports = expect_all_delivered(&scenario, 0..2);
        reports
            .iter()
            .flat_map(|report| &report.outcomes)
            .map(|[_, listener]| goodput(listener))
            .fold(0.0, f64::max)
    });
    // A small window allows one window per round trip.
    assert!(goodputs[0] < 65_536.0 / 0.1 * 1.05, "{goodputs:?}");
    assert!(goodputs[1] > 5.0 * goodputs[0], "{goodputs:?}");
}

#[test]
fn simultaneous_close() {
    for bytes in [0, 1, 5_000] {
        let conns = vec![
            conn(false, Plan::bulk(bytes), Plan::bulk(bytes)),
            conn(true, Plan::bulk(bytes), Plan::bulk(bytes)),
        ];
        for loss in [0, 5 * PERCENT] {
            let link = LinkConfig { loss, delay: MS * 5, ..LinkConfig::CLEAN };
            expect_all_delivered(&two_hosts(link, conns.clone()), 0..8);
        }
    }
}

#[test]
fn half_closed_connections_carry_the_other_half() {
    let conns = vec![
        // The opener sends nothing and reads on; the listener closes after 10 kB and reads on.
        conn(false, Plan::bulk(0), Plan::bulk(500_000)),
        conn(
            true,
            Plan::bulk(500_000),
            Plan { ending: Ending::AfterReceived(10_000), ..Plan::bulk(1 << 20) },
        ),
    ];
    for loss in [0, 2 * PERCENT] {
        let link = LinkConfig { loss, ..LinkConfig::CLEAN };
        expect_all_delivered(&two_hosts(link, conns.clone()), 0..4);
    }
}

#[test]
fn an_abort_is_a_reset_at_the_other_end() {
    let sink = Plan { ending: Ending::Abort(100_000), ..Plan::sink() };
    for loss in [0, 2 * PERCENT] {
        let link = LinkConfig { loss, ..LinkConfig::CLEAN };
        let conns = vec![conn(false, Plan::bulk(1 << 20), sink), conn(true, Plan::bulk(1 << 20), sink)];
        for seed in seeds(0..6) {
            let report = run(&two_hosts(link, conns.clone()), seed);
            for [opener, listener] in &report.outcomes {
                assert!(matches!(listener.closed, Some((_, CloseReason::Aborted))), "{listener:?}");
                assert!(matches!(opener.closed, Some((_, CloseReason::Reset))), "{opener:?}");
            }
        }
    }
}

#[test]
fn requests_and_replies() {
    let ask = Plan { sending: Sending::Ask { request: 100, reply: 3_000, rounds: 200 }, ..Plan::bulk(0) };
    let reply = Plan {
        sending: Sending::Reply { request: 100, reply: 3_000 },
        ending: Ending::AfterPeer,
        chunk: (1, 700),
        append: true,
        ..Plan::bulk(0)
    };
    let conns = vec![conn(false, ask, reply), conn(true, ask, reply)];
    for report in expect_all_delivered(&two_hosts(LinkConfig::CLEAN, conns.clone()), 0..2) {
        let [opener, listener] = report.outcomes[0];
        assert_eq!((opener.sent, listener.sent), (20_000, 600_000));
        // A round takes a round trip, without a delayed acknowledgment.
        assert!(opener.last_data.unwrap() - opener.established.unwrap() < MS * 100, "{opener:?}");
    }
    let link = LinkConfig { loss: 2 * PERCENT, duplicate: PERCENT, ..LinkConfig::CLEAN };
    expect_all_delivered(&two_hosts(link, conns), 0..4);
}

#[test]
fn small_messages() {
    let chatty = Plan { chunk: (1, 40), ..Plan::bulk(30_000) };
    let appended = Plan { append: true, ..chatty };
    for loss in [0, 2 * PERCENT] {
        let link = LinkConfig { loss, ..LinkConfig::CLEAN };
        let conns = vec![conn(false, chatty, chatty), conn(true, appended, appended)];
        expect_all_delivered(&two_hosts(link, conns), 0..3);
    }
}

#[test]
fn a_narrow_link_with_a_short_queue() {
    let link = LinkConfig { rate: 10_000_000, delay: MS * 10, queue: 30_000, ..LinkConfig::CLEAN };
    let both = [Congestion::NewReno, Congestion::Cubic];
    for (congestion, ipv6) in both.into_iter().flat_map(|which| [(which, false), (which, true)]) {
        let mut scenario = two_hosts(link, vec![conn(ipv6, Plan::bulk(3 << 20), Plan::sink())]);
        for host in &mut scenario.hosts {
            host.tcp.congestion = congestion;
        }
        for report in expect_all_delivered(&scenario, 0..3) {
            assert!(report.links.overflowed > 0);
            let [_, listener] = report.outcomes[0];
            // RFC 5681: the window adapts to the path and uses at least two thirds of it.
            assert!(goodput(&listener) > 10e6 / 8.0 * 0.66, "{congestion:?} {}", goodput(&listener));
            let tcp = &report.stats[0].tcp;
            assert!(tcp.retransmits < report.links.overflowed * 2, "{tcp:?} {:?}", report.links);
        }
    }
}

#[test]
fn several_connections_share_a_link() {
    let link = LinkConfig { rate: 50_000_000, delay: MS, queue: 60_000, ..LinkConfig::CLEAN };
    let conns = (0..8).map(|index| conn(index % 2 == 0, Plan::bulk(300_000), Plan::sink())).collect();
    expect_all_delivered(&two_hosts(link, conns), 0..3);
}

#[test]
fn an_outage_is_survived() {
    let outage = Some((MS * 5, MS * 9_000));
    let link = LinkConfig { outage, rate: 100_000_000, ..LinkConfig::CLEAN };
    for report in expect_all_delivered(&two_hosts(link, both_families(Plan::bulk(1 << 20))), 0..3) {
        for [_, listener] in &report.outcomes {
            assert!(listener.last_data.unwrap() - listener.established.unwrap() < MS * 30_000);
        }
    }
}

#[test]
fn a_peer_that_vanishes_times_out() {
    let link = LinkConfig { outage: Some((MS * 5, MS * 10_000_000)), rate: 10_000_000, ..LinkConfig::CLEAN };
    for seed in seeds(0..2) {
        let plan = Plan::bulk(1 << 20);
        let mut scenario = two_hosts(link, vec![conn(false, plan, plan), conn(true, plan, plan)]);
        for host in &mut scenario.hosts {
            host.tcp.data_retries = 6;
        }
        let report = run(&scenario, seed);
        for outcome in report.outcomes.iter().flatten() {
            let (at, reason) = outcome.closed.unwrap();
            assert!(matches!(reason, CloseReason::TimedOut | CloseReason::Unreachable), "{reason:?}");
            assert!(at.as_millis() > 5_000, "{at:?}");
        }
    }
}

#[test]
fn an_idle_peer_gets_keepalive_probes() {
    // Each end waits for the other to close.
    let waits = Plan { ending: Ending::AfterPeer, ..Plan::bulk(100) };
    let keepalive = Keepalive { idle_ms: 10_000, interval_ms: 1_000, probes: 5 };
    let conn_options = ConnOptions { keepalive: Some(keepalive), ..ConnOptions::default() };
    for (outage, expected) in
        [(None, CloseReason::Aborted), (Some((MS * 60_000, MS * 10_000_000)), CloseReason::TimedOut)]
    {
        let link = LinkConfig { outage, ..LinkConfig::CLEAN };
        let conns = vec![conn(false, waits, waits), conn(true, waits, waits)];
        let abort_at = Some(MS * 200_000);
        for seed in seeds(0..2) {
            let report = run(&Scenario { conn_options, abort_at, ..two_hosts(link, conns.clone()) }, seed);
            for outcome in report.outcomes.iter().flatten() {
                let (at, reason) = outcome.closed.unwrap();
                let aborted = reason == CloseReason::Reset && expected == CloseReason::Aborted;
                assert!(reason == expected || aborted, "{outcome:?}");
                assert!(outage.is_none() || at.as_millis() < 90_000, "{outcome:?}");
            }
            assert!(report.stats[0].tcp.keepalive_probes > 5);
        }
    }
}

#[test]
fn an_absent_host_times_out() {
    let link = LinkConfig { outage: Some((Duration::ZERO, MS * 10_000_000)), ..LinkConfig::CLEAN };
    for seed in seeds(0..2) {
        let report = run(&two_hosts(link, both_families(Plan::bulk(1000))), seed);
        for [opener, _] in &report.outcomes {
            let (_, reason) = opener.closed.unwrap();
            assert!(matches!(reason, CloseReason::TimedOut | CloseReason::Unreachable), "{reason:?}");
        }
    }
}

#[test]
fn few_buffers_are_enough() {
    let link = LinkConfig { loss: PERCENT, rate: 100_000_000, ..LinkConfig::CLEAN };
    for (buffers, ipv6) in [(48, false), (48, true), (96, false), (96, true)] {
        let conns = vec![conn(ipv6, Plan::bulk(300_000), Plan::bulk(300_000))];
        let mut scenario = Scenario { buffers, ..two_hosts(link, conns) };
        for host in &mut scenario.hosts {
            // A third to send, a third to receive, and a third for the port.
            host.buffers_max = u32::try_from(buffers / 3).unwrap();
        }
        expect_all_delivered(&scenario, 0..4);
    }
}

#[test]
fn options_may_be_missing() {
    let link = LinkConfig { loss: PERCENT, jitter: MS / 10, ..LinkConfig::CLEAN };
    for bits in 0..8_u8 {
        // On one side, like an old peer, and on both.
        for sides in [1, 2] {
            let mut scenario = two_hosts(link, both_families(Plan::bulk(400_000)));
            for host in scenario.hosts.iter_mut().take(sides) {
                let (sack, timestamps, window_scale) = (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0);
                host.tcp = TcpConfig { sack, timestamps, window_scale, ..host.tcp };
            }
            expect_all_delivered(&scenario, 0..1);
        }
    }
}

#[test]
fn packets_of_other_sizes() {
    for (mtu, peer_mtu) in [(1280, 1500), (9000, 1500), (9000, 9000), (1500, 1280)] {
        let link = LinkConfig { loss: PERCENT, ..LinkConfig::CLEAN };
        let mut scenario = two_hosts(link, both_families(Plan::bulk(500_000)));
        scenario.hosts[0].mtu = mtu;
        scenario.hosts[1].mtu = peer_mtu;
        expect_all_delivered(&scenario, 0..2);
    }
}

#[test]
fn in_a_vlan() {
    let mut scenario = two_hosts(LinkConfig::CLEAN, both_families(Plan::bulk(100_000)));
    for host in &mut scenario.hosts {
        host.vlan = Some(100);
    }
    expect_all_delivered(&scenario, 0..1);
}

#[test]
fn three_hosts() {
    let link = LinkConfig { loss: PERCENT, ..LinkConfig::CLEAN };
    let mut conns = Vec::new();
    for (from, to) in [(0, 1), (1, 2), (2, 0), (0, 2)] {
        let plan = Plan::bulk(200_000);
        conns.push(ConnPlan { from, to, ..conn(from == 1, plan, plan) });
    }
    let mut scenario = two_hosts(link, conns);
    scenario.hosts.push(host(2));
    expect_all_delivered(&scenario, 0..4);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let link = LinkConfig { loss: PERCENT, jitter: MS, duplicate: PERCENT, ..LinkConfig::CLEAN };
    let scenario = two_hosts(link, both_families(Plan::bulk(200_000)));
    let mut traces = Vec::new();
    for seed in seeds(0..4) {
        let (first, second) = (run(&scenario, seed), run(&scenario, seed));
        assert_eq!((first.trace, first.end, first.steps), (second.trace, second.end, second.steps));
        assert_eq!((first.outcomes, first.stats), (second.outcomes, second.stats));
        traces.push(first.trace);
    }
    let count = traces.len();
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), count);
}

/// Shows that the other tests can fail: forged bytes are detected.
#[test]
fn the_checker_detects_forged_bytes() {
    let link = LinkConfig { forge: 2 * PERCENT, ..LinkConfig::CLEAN };
    let scenario = two_hosts(link, both_families(Plan::bulk(300_000)));
    let errors: Vec<String> = (0..8)
        .filter_map(|seed| Simulation::new(&scenario, seed).unwrap().run().err())
        .filter(|error| error.contains("byte"))
        .collect();
    assert!(errors.len() > 2, "{errors:?}");
}

/// Frames delayed by more than a round trip look lost but are not, so the link should be filled as if all arrived in
/// order: every congestion response must be undone.
#[test]
fn reordering_by_more_than_a_round_trip_is_not_congestion() {
    for (delay, hold, least) in [(MS / 20, MS, 110e6), (MS * 5, MS * 15, 70e6)] {
        let link = LinkConfig { delay, reorder: PERCENT, hold, queue: 8 << 20, ..LinkConfig::CLEAN };
        let both = [Congestion::NewReno, Congestion::Cubic];
        for (congestion, ipv6) in both.into_iter().flat_map(|which| [(which, false), (which, true)]) {
            let mut scenario = two_hosts(link, vec![conn(ipv6, Plan::bulk(32 << 20), Plan::sink())]);
            scenario.buffers = 8192;
            for host in &mut scenario.hosts {
                host.tcp.congestion = congestion;
                (host.send_buffer_bytes, host.receive_window_bytes) = (4 << 20, 4 << 20);
                // An acknowledgment older than the largest window is ignored (RFC 5961 §5), with its D-SACK: the window
                // is large from the start.
                host.receive_window_initial_bytes = 4 << 20;
                (host.held_bytes_max, host.held_segments_max, host.buffers_max) = (8 << 20, 4096, 16_384);
            }
            for report in expect_all_delivered(&scenario, 0..1) {
                let [_, listener] = report.outcomes[0];
                let (tcp, goodput) = (&report.stats[0].tcp, goodput(&listener));
                println!("{congestion:?}, {hold:?} late: {:.1} MB/s of 125", goodput / 1e6);
                assert!(goodput > least, "{congestion:?} {hold:?}: {goodput} {tcp:?}");
                assert!(tcp.spurious_recoveries > 5, "{tcp:?}");
                assert!(tcp.retransmits < tcp.data_segments_out / 20, "{tcp:?}");
            }
        }
    }
}
