//! Flows of different hosts in the queue of one port: their shares, the queue, and the losses.

use crate::harness::{MS, conn, host, run, two_hosts};
use tcp_stack::testutil::{ConnPlan, LinkConfig, Plan, Report, Scenario};
use tcp_stack::{Congestion, Duration, Ecn};

/// 1 Gbit/s and a round trip of 1 ms: a BDP of 125 kB.
const PORT: LinkConfig = LinkConfig { delay: Duration::from_micros(500), ..LinkConfig::CLEAN };
const BDP: u64 = 125_000;
/// Payload rate of the port, bytes per second.
const BEST: f64 = 125e6 * 1448.0 / 1538.0;

/// Returns senders with ten times the port's rate, each a host with one flow, to host 0 behind the port. A flow starts
/// 100 ms after the one before, and all end at `time`.
fn meeting(port: LinkConfig, flows: &[Congestion], ecn: Ecn, time: Duration) -> Scenario {
    let plan = |index: usize| ConnPlan {
        at: MS * 100 * u32::try_from(index).unwrap(),
        from: index + 1,
        to: 0,
        ..conn(index % 2 == 1, Plan::bulk(1 << 40), Plan::sink())
    };
    let edge = LinkConfig { rate: port.rate * 10, mark: None, queue: 16 << 20, ..port };
    let conns = (0..flows.len()).map(plan).collect();
    let mut scenario = Scenario {
        switched: true,
        link_back: Some(port),
        abort_at: Some(time),
        buffers: 65_536,
        further_buffers: 16_384,
        poll_interval: Duration::ZERO,
        steps_max: 60_000_000,
        ..two_hosts(edge, conns)
    };
    let senders = flows.iter().zip(1..).map(|(congestion, number)| {
        let mut sender = host(number);
        sender.tcp.congestion = *congestion;
        sender
    });
    scenario.hosts = [host(0)].into_iter().chain(senders).collect();
    for host in &mut scenario.hosts {
        // The applications never limit the rate.
        host.buffers_max = 16_384;
        host.held_segments_max = 8192;
        host.held_bytes_max = 32 << 20;
        (host.send_buffer_bytes, host.receive_window_bytes) = (4 << 20, 4 << 20);
        host.tcp.ecn = ecn;
    }
    scenario
}

/// The second half of a run.
#[derive(Debug)]
struct Shares {
    /// Goodput of each flow as a share of the port's.
    flows: Vec<f64>,
    /// Mean queue before a data frame, bytes.
    queue: f64,
    /// Share of the data frames that found the queue full, of the whole run.
    lost: f64,
    /// Timeouts of the whole run.
    timeouts: u64,
}

impl Shares {
    fn sum(&self) -> f64 {
        self.flows.iter().sum()
    }
}

fn sent(report: &Report) -> f64 {
    report.stats.iter().skip(1).map(|stats| stats.tcp.data_segments_out + stats.tcp.retransmits).sum::<u64>()
        as f64
}

/// Runs a scenario twice, for half its time and for all of it: the difference is the second half.
fn second_half(port: LinkConfig, flows: &[Congestion], ecn: Ecn, time: Duration) -> Shares {
    let before = run(&meeting(port, flows, ecn, time / 2), 1);
    let report = run(&meeting(port, flows, ecn, time), 1);
    let best = BEST * port.rate as f64 / PORT.rate as f64 * time.as_secs_f64() / 2.0;
    let pairs = before.outcomes.iter().zip(&report.outcomes);
    let waited_us = (report.links.waited_us - before.links.waited_us) as f64;
    Shares {
        flows: pairs.map(|([_, a], [_, b])| (b.received - a.received) as f64 / best).collect(),
        queue: waited_us / (sent(&report) - sent(&before)) * port.rate as f64 / 8e6,
        lost: report.links.overflowed as f64 / sent(&report),
        timeouts: report.stats.iter().map(|stats| stats.tcp.timeouts).sum(),
    }
}

/// Version 1 leaves CUBIC an eighth of the link, and loses 3 to 5 % of the frames.
#[test]
fn bbr_shares_short_queues_with_cubic() {
    for (queue, flows) in [
        (BDP / 4, [Congestion::Bbr, Congestion::Cubic]),
        (BDP / 4, [Congestion::Cubic, Congestion::Bbr]),
        (BDP / 2, [Congestion::Bbr, Congestion::Cubic]),
        (BDP / 2, [Congestion::Cubic, Congestion::Bbr]),
    ] {
        let shares = second_half(LinkConfig { queue, ..PORT }, &flows, Ecn::Off, MS * 2_000);
        for (share, congestion) in shares.flows.iter().zip(flows) {
            assert!(*share > 0.3, "{congestion:?}, queue {queue}: {shares:?}");
        }
        assert!(
            shares.sum() > 0.97 && shares.lost < 0.01 && shares.timeouts == 0,
            "queue {queue}: {shares:?}"
        );
    }
}

/// Without marks DCTCP is NewReno, which grows more slowly than CUBIC.
#[test]
fn bbr_leaves_room_to_dctcp() {
    let flows = [Congestion::Bbr, Congestion::Dctcp];
    let shares = second_half(LinkConfig { queue: BDP / 2, ..PORT }, &flows, Ecn::Off, MS * 2_000);
    assert!(shares.flows.iter().all(|share| *share > 0.25), "{shares:?}");
    assert!(shares.sum() > 0.95 && shares.lost < 0.01, "{shares:?}");
}

#[test]
fn bbr_flows_converge_and_leave_a_long_queue_short() {
    for (queue, flows) in [(BDP / 4, 2), (BDP, 2), (4 * BDP, 2), (BDP, 4)] {
        let port = LinkConfig { queue, ..PORT };
        let shares = second_half(port, &vec![Congestion::Bbr; flows], Ecn::Off, MS * 2_000);
        let even = shares.sum() / flows as f64;
        for share in &shares.flows {
            assert!((0.6 * even..1.4 * even).contains(share), "{flows} flows, queue {queue}: {shares:?}");
        }
        assert!(shares.sum() > 0.97 && shares.lost < 0.02, "queue {queue}: {shares:?}");
        assert!(shares.queue < 1.7 * BDP as f64, "queue {queue}: {shares:?}");
    }
}

/// Version 1 loses 4 to 18 BDPs. The loss depends on the moment in a round trip at which the queue overflows: the mean
/// over several rates counts.
#[test]
fn the_start_of_bbr_overshoots_by_two_bdps_at_most() {
    for (rate, rtt_us, time_ms) in
        [(100_000_000, 40_000, 2_000), (1_000_000_000, 1_000, 200), (1_000_000_000, 10_000, 1_000)]
    {
        for part in [8, 4, 2, 1] {
            let losses = [90, 95, 100, 105, 110].map(|percent| {
                let rate = rate / 100 * percent;
                (rate, start_of_bbr(rate, rtt_us, part, MS * time_ms))
            });
            let mean = losses.iter().map(|(_, lost)| lost).sum::<f64>() / losses.len() as f64;
            let none_exceeds = losses.iter().all(|(_, lost)| *lost < 2.25);
            assert!(mean < 2.0 && none_exceeds, "{rtt_us} us, queue 1/{part} BDP: {losses:?}");
        }
    }
}

/// Starts a BBR flow; returns its losses in the queue, in BDPs.
fn start_of_bbr(rate: u64, rtt_us: u64, part: u64, time: Duration) -> f64 {
    let bdp = rate / 8 * rtt_us / 1_000_000;
    let delay = Duration::from_micros(rtt_us / 2);
    let port = LinkConfig { rate, delay, queue: bdp / part, ..LinkConfig::CLEAN };
    let report = run(&meeting(port, &[Congestion::Bbr], Ecn::Off, time), 1);
    let (tcp, received) = (&report.stats[1].tcp, report.outcomes[0][1].received);
    assert_eq!(tcp.timeouts, 0, "{tcp:?}");
    let share = received as f64 * 8.0 / (rate as f64 * time.as_secs_f64());
    assert!(share > 0.6, "{rate} bit/s, {rtt_us} us, queue 1/{part} BDP: {share}");
    (report.links.overflowed * 1538) as f64 / bdp as f64
}
