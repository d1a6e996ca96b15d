//! Congestion control on paths with known properties.

use crate::harness::{PERCENT, both_families, conn, expect_all_delivered, goodput, run, seeds, two_hosts};
use tcp_stack::testutil::{LinkConfig, Plan, Report, Scenario, Sending};
use tcp_stack::{Congestion, Duration};

/// 100 Mbit/s and a round trip of 40 ms: a BDP of 500 kB, and a queue of the same length.
const LONG: LinkConfig =
    LinkConfig { rate: 100_000_000, delay: Duration::from_millis(20), queue: 500_000, ..LinkConfig::CLEAN };
const BDP: f64 = 500_000.0;

/// Returns the payload rate of a link, bytes per second: 1448 bytes of each 1538 on the wire.
fn best(link: &LinkConfig) -> f64 {
    link.rate as f64 / 8.0 * 1448.0 / 1538.0
}

/// Returns `count` flows that begin together, alternating between the families, between hosts with ample buffers.
fn flows(link: LinkConfig, congestion: Congestion, ipv6: bool, count: usize, bytes: u64) -> Scenario {
    let conns =
        (0..count).map(|index| conn((index % 2 == 1) != ipv6, Plan::bulk(bytes), Plan::sink())).collect();
    let mut scenario = Scenario { buffers: 16_384, steps_max: 20_000_000, ..two_hosts(link, conns) };
    for host in &mut scenario.hosts {
        host.buffers_max = 8192;
        host.held_segments_max = 4096;
        host.held_bytes_max = 16 << 20;
        host.send_buffer_bytes = 4 << 20;
        host.receive_window_bytes = 4 << 20;
        host.tcp.congestion = congestion;
    }
    scenario
}

/// Returns the goodput of each flow as a share of the link's payload rate.
fn shares(report: &Report, link: &LinkConfig) -> Vec<f64> {
    report.outcomes.iter().map(|[_, listener]| goodput(listener) / best(link)).collect()
}

/// Returns the mean queue length before a data frame, bytes.
fn mean_queue(report: &Report, link: &LinkConfig) -> f64 {
    let frames = report.stats[0].tcp.segments_out as f64;
    report.links.waited_us as f64 / frames * link.rate as f64 / 8e6
}

#[test]
fn bbr_fills_a_long_path_and_leaves_its_queue_short() {
    // The IPv6 header is longer.
    for (ipv6, least) in [(false, 0.93), (true, 0.92)] {
        let scenario = flows(LONG, Congestion::Bbr, ipv6, 1, 40 << 20);
        for report in expect_all_delivered(&scenario, 0..1) {
            let (share, queue) = (shares(&report, &LONG)[0], mean_queue(&report, &LONG));
            assert!(share > least, "{share}");
            // The mean queue stays below this share of the BDP, Startup and its overflow included.
            assert!(queue < 0.2 * BDP, "{queue}");
            assert_eq!(report.stats[0].tcp.timeouts, 0);
        }
    }
    // The measurement is sound: CUBIC fills the queue.
    let scenario = flows(LONG, Congestion::Cubic, false, 1, 40 << 20);
    for report in expect_all_delivered(&scenario, 0..1) {
        assert!(mean_queue(&report, &LONG) > 0.3 * BDP, "{}", mean_queue(&report, &LONG));
    }
}

/// draft-ietf-ccwg-bbr-06 §3.1: full throughput "with average packet loss rates of up to 1%". A round trip that loses
/// twice that by chance ends a probe for bandwidth, so that single runs differ: the mean of several counts.
#[test]
fn bbr_does_not_take_random_loss_for_congestion() {
    let gigabit = |rtt_us: u64| LinkConfig {
        delay: Duration::from_micros(rtt_us / 2),
        queue: (125 * rtt_us).max(64 << 10),
        ..LinkConfig::CLEAN
    };
    for (path, time_ms, ipv6) in
        [(LONG, 6_000, false), (gigabit(1_000), 500, true), (gigabit(100), 500, false)]
    {
        let scenario = |loss| Scenario {
            abort_at: Some(Duration::from_millis(time_ms)),
            ..flows(LinkConfig { loss, ..path }, Congestion::Bbr, ipv6, 1, 1 << 40)
        };
        let lossless = run(&scenario(0), 1).outcomes[0][1].received as f64;
        let mut shares = Vec::new();
        for seed in seeds(1..9) {
            let report = run(&scenario(PERCENT), seed);
            let tcp = &report.stats[0].tcp;
            shares.push(report.outcomes[0][1].received as f64 / lossless);
            assert!(
                tcp.retransmits < report.links.lost * 2 && tcp.timeouts == 0,
                "{tcp:?} {:?}",
                report.links
            );
        }
        let mean = shares.iter().sum::<f64>() / shares.len() as f64;
        assert!(mean > 0.8 && shares.iter().all(|share| *share > 0.5), "{path:?}: {shares:?}");
    }
}

/// A loss rate above 2 % is congestion: unlike version 1, BBR yields.
#[test]
fn bbr_takes_much_loss_for_congestion() {
    let scenario = |loss| Scenario {
        abort_at: Some(Duration::from_millis(6_000)),
        ..flows(LinkConfig { loss, ..LONG }, Congestion::Bbr, false, 1, 1 << 40)
    };
    let received = |loss| run(&scenario(loss), 1).outcomes[0][1].received as f64;
    let (lossless, lossy) = (received(0), received(5 * PERCENT));
    assert!(lossy < 0.5 * lossless && lossy > 0.05 * lossless, "{lossy} of {lossless}");
}

/// With a higher threshold BBR takes less random loss for congestion. Shares of the rate without loss, means of four
/// runs, on a path of 40 ms; docs/limits.md has them.
#[test]
fn the_loss_that_bbr_tolerates_is_configured() {
    let received = |loss, bbr_loss_percent, seed| {
        let mut scenario = Scenario {
            abort_at: Some(Duration::from_millis(6_000)),
            ..flows(LinkConfig { loss, ..LONG }, Congestion::Bbr, false, 1, 1 << 40)
        };
        scenario.hosts.iter_mut().for_each(|host| host.tcp.bbr_loss_percent = bbr_loss_percent);
        run(&scenario, seed).outcomes[0][1].received as f64
    };
    let lossless = received(0, 2, 1);
    let share = |loss, percent| {
        let runs = seeds(1..5).map(|seed| received(loss, percent, seed) / lossless).collect::<Vec<_>>();
        runs.iter().sum::<f64>() / runs.len() as f64
    };
    for (loss, least) in [(PERCENT, 0.8), (3 * PERCENT, 0.6), (5 * PERCENT, 0.4)] {
        let (strict, tolerant) = (share(loss, 2), share(loss, 10));
        println!("{} %: {strict:.2} at 2 %, {tolerant:.2} at 10 %", loss / PERCENT);
        assert!(tolerant > least && tolerant > strict, "{loss}: {strict}, {tolerant}");
    }
}

#[test]
fn two_bbr_flows_share() {
    for report in expect_all_delivered(&flows(LONG, Congestion::Bbr, false, 2, 30 << 20), 0..2) {
        let shares = shares(&report, &LONG);
        let sum: f64 = shares.iter().sum();
        for share in &shares {
            assert!((0.3..0.7).contains(&(share / sum)), "{shares:?}");
        }
        assert!(sum > 0.85, "{shares:?}");
    }
}

/// A link with a round trip shorter than a burst of the pacer, and workers that poll seldom.
#[test]
fn pacing_does_not_starve_a_short_path() {
    let link = LinkConfig { queue: 4 << 20, ..LinkConfig::CLEAN };
    for congestion in [Congestion::NewReno, Congestion::Cubic, Congestion::Bbr] {
        for poll_us in [0, 20, 500] {
            let mut scenario = flows(link, congestion, poll_us == 20, 1, 16 << 20);
            scenario.poll_interval = Duration::from_micros(poll_us);
            scenario.hosts[0].tcp.pacing = true;
            for report in expect_all_delivered(&scenario, 0..1) {
                let share = shares(&report, &link)[0];
                assert!(share > 0.95, "{congestion:?}, looked at every {poll_us} us: {share}");
            }
        }
    }
}

/// Many paced connections, and the requests of one more: all make progress.
#[test]
fn paced_connections_share_the_link() {
    let link = LinkConfig { rate: 100_000_000, queue: 200_000, ..LinkConfig::CLEAN };
    for congestion in [Congestion::Cubic, Congestion::Bbr] {
        let mut scenario = flows(link, congestion, false, 12, 1 << 20);
        let ask = Plan { sending: Sending::Ask { request: 100, reply: 3_000, rounds: 50 }, ..Plan::bulk(0) };
        let reply = Plan { sending: Sending::Reply { request: 100, reply: 3_000 }, ..Plan::sink() };
        scenario.conns.push(conn(false, ask, reply));
        for host in &mut scenario.hosts {
            host.tcp.pacing = true;
        }
        for report in expect_all_delivered(&scenario, 0..2) {
            let ends = report.outcomes.iter().take(12).map(|[_, listener]| listener.last_data.unwrap());
            let (first, last) = (ends.clone().min().unwrap(), ends.max().unwrap());
            assert!(last.as_millis() < 3 * first.as_millis(), "{congestion:?}: {first:?} to {last:?}");
            assert!(last.as_millis() < 1_500, "12 MiB at 100 Mbit/s: {last:?}");
        }
    }
}

/// The same loss and queue with peers that lack SACK or timestamps.
#[test]
fn bbr_without_sack_or_timestamps() {
    let link = LinkConfig { loss: PERCENT, rate: 100_000_000, ..LinkConfig::CLEAN };
    for (sack, timestamps) in [(false, false), (false, true), (true, false)] {
        let mut scenario = two_hosts(link, both_families(Plan::bulk(1 << 20)));
        for host in &mut scenario.hosts {
            host.tcp.congestion = Congestion::Bbr;
            (host.tcp.sack, host.tcp.timestamps) = (sack, timestamps);
        }
        expect_all_delivered(&scenario, seeds(0..3));
    }
}

/// The first slow start on long paths with a queue of one or half a bandwidth-delay product: Linux loses 50 to 202
/// frames there, a slow start that does not end early loses hundreds to thousands.
#[test]
fn slow_start_ends_before_a_queue_overflows() {
    for congestion in [Congestion::NewReno, Congestion::Cubic] {
        for (rate, ipv6) in [(20_000_000_u64, false), (50_000_000, true), (100_000_000, false)] {
            for (part, poll_us) in [(1, 0), (1, 1000), (2, 0), (2, 1000)] {
                // A round trip of 100 ms.
                let (delay, bdp) = (Duration::from_millis(50), rate / 8 / 10);
                let link = LinkConfig { rate, delay, queue: bdp / part, ..LinkConfig::CLEAN };
                let scenario = Scenario {
                    abort_at: Some(Duration::from_millis(2500)),
                    poll_interval: Duration::from_micros(poll_us),
                    ..flows(link, congestion, ipv6, 1, 1 << 40)
                };
                let report = run(&scenario, 1);
                let what =
                    format!("{congestion:?}, {rate} bit/s, queue 1/{part}, looked at every {poll_us} us");
                assert!(report.links.overflowed <= 100, "{what}: {:?}", report.links);
                let share = report.outcomes[0][1].received as f64 / (best(&link) * 2.5);
                assert!(share > 0.4, "{what}: {share}");
            }
        }
    }
}
