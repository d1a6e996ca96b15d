//! Stacks in simulated networks: what the links do to the frames must not show in the streams.
//!
//! A failure names its seed and shows what happened last; `TCP_SEED=… cargo test --test netsim NAME` runs
//! that seed again, and `TCP_LOG=…` sets how many lines of it are shown.

#![allow(clippy::unwrap_used, reason = "what a test builds is right")]

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tcp_stack::testutil::{
    Burst, Dial, Ending, LinkConfig, Outcome, Plan, Random, Reading, Report, Scenario, Sending, Simulation,
};
use tcp_stack::wire::{Ipv4Cidr, Ipv6Cidr, MacAddr};
use tcp_stack::{CloseReason, Congestion, Duration, StackConfig, TcpConfig};

const MS: Duration = Duration::from_millis(1);
const PERCENT: u32 = 10_000;

/// The configuration of host number `index`.
fn host(index: u8) -> StackConfig {
    let number = index + 1;
    StackConfig {
        mac: MacAddr([2, 0, 0, 0, 0, number]),
        ipv4: Ipv4Cidr::new(Ipv4Addr::new(10, 77, 0, number), 24),
        ipv6: Ipv6Cidr::new(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, number.into()), 64),
        connections_max: 64,
        neighbors_max: 16,
        buffers_max: 4096,
        held_segments_max: 512,
        send_buffer_bytes: 256 << 10,
        receive_window_bytes: 256 << 10,
        ..StackConfig::default()
    }
}

fn dial(ipv6: bool, opener: Plan, listener: Plan) -> Dial {
    Dial { at: Duration::ZERO, from: 0, to: 1, ipv6, opener, listener }
}

/// Two hosts, and between them a link.
fn two_hosts(link: LinkConfig, dials: Vec<Dial>) -> Scenario {
    Scenario {
        hosts: vec![host(0), host(1)],
        link,
        link_back: None,
        dials,
        buffers: 2048,
        poll_interval: Duration::from_micros(20),
        hostile: false,
        steps_max: 3_000_000,
    }
}

/// The seeds to run: those given, or the one in `TCP_SEED`.
fn seeds(default: Range<u64>) -> Range<u64> {
    match std::env::var("TCP_SEED") {
        Ok(seed) => {
            let seed = seed.parse().unwrap();
            seed..seed + 1
        }
        Err(_) => default,
    }
}

/// Runs a scenario. A failure is told with the seed and the end of the log, from a second run that keeps
/// one.
#[track_caller]
fn run(scenario: &Scenario, seed: u64) -> Report {
    let mut simulation = Simulation::new(scenario, seed).unwrap();
    let error = match catch_unwind(AssertUnwindSafe(|| simulation.run())) {
        Ok(Ok(report)) => return report,
        Ok(Err(error)) => error,
        Err(_) => "a panic".into(),
    };
    let mut again = Simulation::new(scenario, seed).unwrap();
    again.keep_log(std::env::var("TCP_LOG").map_or(200, |lines| lines.parse().unwrap()));
    let _ = catch_unwind(AssertUnwindSafe(|| again.run()));
    let log: Vec<&str> = again.log().collect();
    panic!("{}\n{error}\nTCP_SEED={seed}\n{scenario:#?}", log.join("\n"));
}

fn is_normal(outcome: &Outcome) -> bool {
    matches!(outcome.closed, Some((_, CloseReason::Normal)))
}

/// Runs a scenario for some seeds and expects that every connection ends in good order, with every octet
/// that one side sent received by the other.
#[track_caller]
fn expect_all_delivered(scenario: &Scenario, default: Range<u64>) -> Vec<Report> {
    let mut reports = Vec::new();
    for seed in seeds(default) {
        let report = run(scenario, seed);
        expect_good_order(&report, seed);
        reports.push(report);
    }
    reports
}

#[track_caller]
fn expect_good_order(report: &Report, seed: u64) {
    for [opener, listener] in &report.outcomes {
        let what = format!("TCP_SEED={seed}: {opener:?} {listener:?}");
        assert!(is_normal(opener) && is_normal(listener), "{what}");
        assert_eq!((opener.sent, listener.sent), (listener.received, opener.received), "{what}");
    }
}

/// Octets per second that the listener's side received, from its establishment to its last octet.
fn goodput(outcome: &Outcome) -> f64 {
    let time = outcome.last_data.unwrap() - outcome.established.unwrap();
    outcome.received as f64 / time.as_secs_f64()
}

fn both_families(plan: Plan) -> Vec<Dial> {
    vec![dial(false, plan, Plan::sink()), dial(true, plan, Plan::sink())]
}

#[test]
fn a_clean_link_is_filled_without_a_retransmission() {
    // A queue that holds the whole send buffer loses nothing.
    let link = LinkConfig { queue: 1 << 20, ..LinkConfig::CLEAN };
    for ipv6 in [false, true] {
        let scenario = two_hosts(link, vec![dial(ipv6, Plan::bulk(8 << 20), Plan::sink())]);
        for report in expect_all_delivered(&scenario, 0..2) {
            assert_eq!(report.links.overflowed + report.links.lost, 0);
            assert_eq!(report.stats[0].tcp.retransmits, 0, "{:?}", report.stats[0].tcp);
            let [_, listener] = report.outcomes[0];
            assert_eq!(listener.received, 8 << 20);
            // 1460 octets less 12 of timestamps, in 1538 octets of link.
            let best = 125e6 * 1448.0 / 1538.0;
            assert!(goodput(&listener) > 0.9 * best, "{} of {best}", goodput(&listener));
            // At least every second segment is acknowledged, unless they come in bursts; none needs two.
            assert!(report.stats[1].tcp.acks_out < report.stats[0].tcp.segments_out);
        }
    }
}

#[test]
fn one_percent_loss() {
    let link = LinkConfig { loss: PERCENT, queue: 1 << 20, ..LinkConfig::CLEAN };
    for report in expect_all_delivered(&two_hosts(link, both_families(Plan::bulk(2 << 20))), 0..6) {
        assert!(report.links.lost > 10, "{:?}", report.links);
        // Losses are repaired from acknowledgements; timeouts are for the last segments.
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
    let dials = vec![
        dial(false, Plan::bulk(200_000), Plan::bulk(200_000)),
        dial(true, Plan::bulk(200_000), Plan::bulk(1)),
    ];
    expect_all_delivered(&two_hosts(link, dials), 0..6);
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
        // RFC 8985: the reordering window grows until segments that are merely late are waited for.
        assert!(tcp.retransmits < report.links.held / 2, "{tcp:?} {:?}", report.links);
        assert_eq!(tcp.timeouts, 0, "{tcp:?}");
    }
}

#[test]
fn jitter_shuffles_everything() {
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
    let burst = Burst { begins: PERCENT / 2, ends: 15 * PERCENT, loss: 100 * PERCENT };
    let link = LinkConfig { burst: Some(burst), ..LinkConfig::CLEAN };
    expect_all_delivered(&two_hosts(link, both_families(Plan::bulk(1 << 20))), 0..6);
}

#[test]
fn wrong_bits_do_not_get_through() {
    let link = LinkConfig { corrupt: 2 * PERCENT, ..LinkConfig::CLEAN };
    for report in expect_all_delivered(&two_hosts(link, both_families(Plan::bulk(1 << 20))), 0..6) {
        assert!(report.stats[1].drops.drop_tcp_checksum > 0);
    }
}

/// Bits that are wrong under checksums that are right: anything may come of the connections, but they
/// end, and the hosts are as good as before.
#[test]
fn forged_segments_do_no_harm() {
    let link = LinkConfig { forge: 2 * PERCENT, loss: PERCENT, ..LinkConfig::CLEAN };
    let dials = vec![
        dial(false, Plan::bulk(300_000), Plan::bulk(300_000)),
        dial(true, Plan::bulk(300_000), Plan::bulk(300_000)),
    ];
    for seed in seeds(0..30) {
        run(&Scenario { hostile: true, ..two_hosts(link, dials.clone()) }, seed);
    }
}

#[test]
fn a_reader_that_stalls_closes_the_window() {
    let sink = Plan { reading: Reading::Stall { after: 100_000, pause: MS * 20_000 }, ..Plan::sink() };
    let dials = vec![dial(false, Plan::bulk(1 << 20), sink), dial(true, Plan::bulk(1 << 20), sink)];
    for loss in [0, 3 * PERCENT] {
        let scenario = two_hosts(LinkConfig { loss, ..LinkConfig::CLEAN }, dials.clone());
        for report in expect_all_delivered(&scenario, 0..3) {
            let tcp = &report.stats[0].tcp;
            // RFC 9293 §3.8.6.1: probes are sent, further and further apart.
            assert!((4..60).contains(&tcp.window_probes), "{tcp:?}");
            for [_, listener] in &report.outcomes {
                let took = listener.last_data.unwrap() - listener.established.unwrap();
                assert!(took < MS * 30_000, "{took:?}");
            }
        }
    }
}

#[test]
fn a_slow_reader_slows_the_sender() {
    let sink = Plan { reading: Reading::Slow(3_000), ..Plan::sink() };
    let mut scenario = two_hosts(LinkConfig::CLEAN, vec![dial(false, Plan::bulk(1 << 20), sink)]);
    for window in [8 << 10, 64 << 10, 256 << 10] {
        scenario.hosts[1].receive_window_bytes = window;
        for report in expect_all_delivered(&scenario, 0..2) {
            // RFC 9293 §3.8.6.2: no silly window syndrome.
            let tcp = &report.stats[0].tcp;
            let segments = (1 << 20) / 1448;
            assert!(tcp.segments_out < segments * 3, "{tcp:?}");
        }
    }
}

#[test]
fn simultaneous_close() {
    for octets in [0, 1, 5_000] {
        let dials = vec![
            dial(false, Plan::bulk(octets), Plan::bulk(octets)),
            dial(true, Plan::bulk(octets), Plan::bulk(octets)),
        ];
        for loss in [0, 5 * PERCENT] {
            let link = LinkConfig { loss, delay: MS * 5, ..LinkConfig::CLEAN };
            expect_all_delivered(&two_hosts(link, dials.clone()), 0..8);
        }
    }
}

#[test]
fn half_closed_connections_carry_the_other_half() {
    let dials = vec![
        // The opener has nothing to say, and reads on; the listener leaves early, and reads on.
        dial(false, Plan::bulk(0), Plan::bulk(500_000)),
        dial(true, Plan::bulk(500_000), Plan { ending: Ending::Early(10_000), ..Plan::bulk(1 << 20) }),
    ];
    for loss in [0, 2 * PERCENT] {
        let link = LinkConfig { loss, ..LinkConfig::CLEAN };
        expect_all_delivered(&two_hosts(link, dials.clone()), 0..4);
    }
}

#[test]
fn an_abort_is_a_reset_at_the_other_end() {
    let sink = Plan { ending: Ending::Abort(100_000), ..Plan::sink() };
    for loss in [0, 2 * PERCENT] {
        let link = LinkConfig { loss, ..LinkConfig::CLEAN };
        let dials = vec![dial(false, Plan::bulk(1 << 20), sink), dial(true, Plan::bulk(1 << 20), sink)];
        for seed in seeds(0..6) {
            let report = run(&two_hosts(link, dials.clone()), seed);
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
    let dials = vec![dial(false, ask, reply), dial(true, ask, reply)];
    for report in expect_all_delivered(&two_hosts(LinkConfig::CLEAN, dials.clone()), 0..2) {
        let [opener, listener] = report.outcomes[0];
        assert_eq!((opener.sent, listener.sent), (20_000, 600_000));
        // A round takes a round trip, not a delayed acknowledgement.
        assert!(opener.last_data.unwrap() - opener.established.unwrap() < MS * 100, "{opener:?}");
    }
    let link = LinkConfig { loss: 2 * PERCENT, duplicate: PERCENT, ..LinkConfig::CLEAN };
    expect_all_delivered(&two_hosts(link, dials), 0..4);
}

#[test]
fn small_messages() {
    let chatty = Plan { chunk: (1, 40), ..Plan::bulk(30_000) };
    let appended = Plan { append: true, ..chatty };
    for loss in [0, 2 * PERCENT] {
        let link = LinkConfig { loss, ..LinkConfig::CLEAN };
        let dials = vec![dial(false, chatty, chatty), dial(true, appended, appended)];
        expect_all_delivered(&two_hosts(link, dials), 0..3);
    }
}

#[test]
fn a_narrow_link_with_a_short_queue() {
    let link = LinkConfig { rate: 10_000_000, delay: MS * 10, queue: 30_000, ..LinkConfig::CLEAN };
    for congestion in [Congestion::NewReno, Congestion::Cubic] {
        let mut scenario = two_hosts(link, vec![dial(false, Plan::bulk(3 << 20), Plan::sink())]);
        for host in &mut scenario.hosts {
            host.tcp.congestion = congestion;
        }
        for report in expect_all_delivered(&scenario, 0..3) {
            assert!(report.links.overflowed > 0);
            let [_, listener] = report.outcomes[0];
            // RFC 5681: the window follows the path; at least two thirds of it are used.
            assert!(goodput(&listener) > 10e6 / 8.0 * 0.66, "{congestion:?} {}", goodput(&listener));
            let tcp = &report.stats[0].tcp;
            assert!(tcp.retransmits < report.links.overflowed * 2, "{tcp:?} {:?}", report.links);
        }
    }
}

#[test]
fn several_connections_share_a_link() {
    let link = LinkConfig { rate: 50_000_000, delay: MS, queue: 60_000, ..LinkConfig::CLEAN };
    let dials = (0..8).map(|index| dial(index % 2 == 0, Plan::bulk(300_000), Plan::sink())).collect();
    expect_all_delivered(&two_hosts(link, dials), 0..3);
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
        let mut scenario = two_hosts(link, vec![dial(false, Plan::bulk(1 << 20), Plan::bulk(1 << 20))]);
        for host in &mut scenario.hosts {
            host.tcp.data_retries = 6;
        }
        let report = run(&scenario, seed);
        for outcome in &report.outcomes[0] {
            let (at, reason) = outcome.closed.unwrap();
            assert!(matches!(reason, CloseReason::TimedOut | CloseReason::Unreachable), "{reason:?}");
            assert!(at.as_millis() > 5_000, "{at:?}");
        }
    }
}

#[test]
fn nobody_there() {
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
    for buffers in [48, 96] {
        let dials = vec![dial(false, Plan::bulk(300_000), Plan::bulk(300_000))];
        expect_all_delivered(&Scenario { buffers, ..two_hosts(link, dials) }, 0..4);
    }
}

#[test]
fn options_may_be_missing() {
    let link = LinkConfig { loss: PERCENT, jitter: MS / 10, ..LinkConfig::CLEAN };
    for bits in 0..8_u8 {
        // On one side, as an old peer would have it, and on both.
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
    let mut dials = Vec::new();
    for (from, to) in [(0, 1), (1, 2), (2, 0), (0, 2)] {
        let plan = Plan::bulk(200_000);
        dials.push(Dial { from, to, ..dial(from == 1, plan, plan) });
    }
    let mut scenario = two_hosts(link, dials);
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

/// A network of which everything is chosen by chance, within what TCP must endure.
fn random_scenario(random: &mut Random) -> Scenario {
    let mut chance = |high: u64| u32::try_from(random.below(high)).unwrap();
    let pick = |random: &mut Random, values: &[u64]| values[random.index(values.len())];
    let mut link = LinkConfig { ..LinkConfig::CLEAN };
    link.loss = [0, 0, chance(u64::from(PERCENT)), chance(5 * u64::from(PERCENT))][chance(4) as usize];
    link.duplicate = [0, chance(3 * u64::from(PERCENT))][chance(2) as usize];
    link.corrupt = [0, 0, chance(u64::from(PERCENT))][chance(3) as usize];
    link.reorder = [0, chance(10 * u64::from(PERCENT))][chance(2) as usize];
    link.rate = pick(random, &[0, 5_000_000, 100_000_000, 1_000_000_000]);
    link.delay = Duration::from_micros(pick(random, &[1, 50, 1_000, 40_000]));
    link.jitter = Duration::from_micros(pick(random, &[0, 0, 10, 1_000]));
    link.hold = Duration::from_micros(pick(random, &[50, 500, 5_000]));
    link.queue = pick(random, &[20_000, 100_000, 1 << 20]);
    if random.below(8) == 0 {
        link.burst = Some(Burst { begins: PERCENT / 5, ends: 20 * PERCENT, loss: 90 * PERCENT });
    }
    let mut dials = Vec::new();
    for _ in 0..random.between(1, 4) {
        let at = Duration::from_micros(random.below(50_000));
        let (opener, listener) = random_plans(random);
        let from = random.index(2);
        dials.push(Dial { at, from, to: 1 - from, ipv6: random.below(2) == 0, opener, listener });
    }
    let mut scenario = two_hosts(link, dials);
    scenario.poll_interval = Duration::from_micros(pick(random, &[0, 20, 500]));
    for host in &mut scenario.hosts {
        host.mtu = u16::try_from(pick(random, &[1280, 1500, 1500, 9000])).unwrap();
        host.receive_window_bytes = u32::try_from(pick(random, &[4_000, 20_000, 65_535, 256 << 10])).unwrap();
        host.send_buffer_bytes = u32::try_from(pick(random, &[10_000, 65_536, 256 << 10])).unwrap();
        host.tcp.sack = random.below(5) != 0;
        host.tcp.timestamps = random.below(5) != 0;
        host.tcp.window_scale = random.below(5) != 0;
        host.tcp.congestion = [Congestion::NewReno, Congestion::Cubic][random.index(2)];
    }
    scenario
}

/// Two plans whose ends fit each other.
fn random_plans(random: &mut Random) -> (Plan, Plan) {
    let octets = |random: &mut Random| match random.below(4) {
        0 => 0,
        1 => random.below(100),
        2 => random.below(20_000),
        _ => random.below(200_000),
    };
    let mut plans = [(); 2].map(|()| {
        let mut plan = Plan::bulk(octets(random));
        plan.chunk = [(9000, 9000), (1, 3000), (50, 500)][random.index(3)];
        plan.append = random.below(2) == 0;
        plan.reading = match random.below(6) {
            0 => Reading::Slow(random.between(1_000, 20_000)),
            1 => Reading::Stall { after: random.below(20_000), pause: MS * 3_000 },
            _ => Reading::Prompt,
        };
        plan
    });
    let [opener, listener] = &mut plans;
    match random.below(6) {
        0 => {
            let (request, reply) = (random.between(1, 2_000), random.between(1, 10_000));
            let rounds = random.between(1, 20);
            opener.sending = Sending::Ask { request, reply, rounds };
            listener.sending = Sending::Reply { request, reply };
            listener.ending = Ending::AfterPeer;
        }
        1 => listener.ending = Ending::AfterPeer,
        2 => opener.ending = Ending::AfterPeer,
        3 => listener.ending = Ending::Early(random.below(10_000)),
        _ => {}
    }
    (*opener, *listener)
}

fn random_networks(default: Range<u64>) {
    for seed in seeds(default) {
        let scenario = random_scenario(&mut Random::new(seed));
        expect_good_order(&run(&scenario, seed), seed);
    }
}

#[test]
fn random_networks_1() {
    random_networks(0..100);
}

#[test]
fn random_networks_2() {
    random_networks(100..200);
}
