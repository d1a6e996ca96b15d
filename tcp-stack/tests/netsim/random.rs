//! Networks that chance made.

use crate::harness::{MS, PERCENT, expect_good_order, run_and, seeds, two_hosts};
use std::ops::Range;
use tcp_stack::testutil::{Burst, Dial, Ending, LinkConfig, Plan, Random, Reading, Scenario, Sending};
use tcp_stack::{Congestion, Duration, Ecn};

fn chance(random: &mut Random, high: u32) -> u32 {
    u32::try_from(random.below(u64::from(high))).unwrap()
}

fn pick(random: &mut Random, values: &[u64]) -> u64 {
    values[random.index(values.len())]
}

/// A network of which everything is chosen by chance, within what TCP must endure.
fn random_scenario(random: &mut Random) -> Scenario {
    let mut link = LinkConfig::CLEAN;
    link.loss = match random.below(4) {
        0 => chance(random, PERCENT),
        1 => chance(random, 5 * PERCENT),
        _ => 0,
    };
    link.duplicate = if random.below(2) == 0 { chance(random, 3 * PERCENT) } else { 0 };
    link.corrupt = if random.below(3) == 0 { chance(random, PERCENT) } else { 0 };
    link.reorder = if random.below(2) == 0 { chance(random, 10 * PERCENT) } else { 0 };
    link.rate = pick(random, &[0, 5_000_000, 100_000_000, 1_000_000_000]);
    link.delay = Duration::from_micros(pick(random, &[1, 50, 1_000, 40_000]));
    link.jitter = Duration::from_micros(pick(random, &[0, 0, 10, 1_000]));
    link.hold = Duration::from_micros(pick(random, &[50, 500, 5_000]));
    link.queue = pick(random, &[20_000, 100_000, 1 << 20]);
    if random.below(8) == 0 {
        link.burst = Some(Burst { begins: PERCENT / 5, lasts: MS, loss: 90 * PERCENT });
    }
    if random.below(8) == 0 {
        let from = Duration::from_micros(random.below(200_000));
        link.outage = Some((from, from + Duration::from_micros(random.below(3_000_000))));
    }
    let mut dials = Vec::new();
    for _ in 0..random.between(1, 4) {
        let at = Duration::from_micros(random.below(50_000));
        let (opener, listener) = random_plans(random);
        let from = random.index(2);
        dials.push(Dial { at, from, to: 1 - from, ipv6: random.below(2) == 0, opener, listener });
    }
    let mut scenario = two_hosts(link, dials);
    scenario.poll_interval = Duration::from_micros(pick(random, &[0, 20, 500, 5_000]));
    scenario.conn.nagle = random.below(4) == 0;
    if random.below(4) == 0 {
        scenario.link_back = Some(LinkConfig { rate: 2_000_000, loss: chance(random, PERCENT), ..link });
    }
    let buffers = usize::try_from(pick(random, &[60, 300, 2048])).unwrap();
    scenario.buffers = buffers;
    for host in &mut scenario.hosts {
        host.mtu = u16::try_from(pick(random, &[1280, 1500, 1500, 9000])).unwrap();
        host.receive_window_bytes = u32::try_from(pick(random, &[4_000, 20_000, 65_535, 256 << 10])).unwrap();
        host.send_buffer_bytes = u32::try_from(pick(random, &[10_000, 65_536, 256 << 10])).unwrap();
        host.buffers_max = u32::try_from(buffers / 3).unwrap();
        host.tcp.sack = random.below(5) != 0;
        host.tcp.timestamps = random.below(5) != 0;
        host.tcp.window_scale = random.below(5) != 0;
        host.tcp.congestion = [Congestion::NewReno, Congestion::Cubic, Congestion::Bbr][random.index(3)];
        host.tcp.pacing = random.below(4) == 0;
    }
    add_marks(random, &mut scenario);
    scenario
}

/// Links that mark, or clear marks, and hosts that care or do not.
fn add_marks(random: &mut Random, scenario: &mut Scenario) {
    scenario.link.bleach = random.below(8) == 0;
    scenario.link.mark = match random.below(4) {
        0 => None,
        // Everything that can be marked.
        1 if random.below(4) == 0 => Some(0),
        _ => Some(random.between(1_000, 100_000)),
    };
    if let Some(back) = &mut scenario.link_back {
        back.mark = scenario.link.mark;
    }
    for host in &mut scenario.hosts {
        host.tcp.ecn = [Ecn::Off, Ecn::Accept, Ecn::On, Ecn::On][random.index(4)];
        if random.below(5) == 0 {
            host.tcp.congestion = Congestion::Dctcp;
        }
        host.tcp.dctcp_ect_control = random.below(2) == 0;
    }
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
        run_and(&scenario, seed, expect_good_order);
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

/// Networks in which anything may be forged: connections may come to anything, the hosts may not.
#[test]
fn hostile_networks() {
    for seed in seeds(0..60) {
        let mut random = Random::new(seed);
        let mut scenario = random_scenario(&mut random);
        scenario.link.forge = chance(&mut random, 30 * PERCENT);
        scenario.attack = Some(Duration::from_micros(random.between(100, 5_000)));
        scenario.hostile = true;
        // Ends that were made to disagree may wait for each other for ever.
        scenario.abort_at = Some(MS * 30_000);
        run_and(&scenario, seed, |_| ());
    }
}
