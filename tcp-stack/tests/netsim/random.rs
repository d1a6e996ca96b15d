//! Networks that chance made: everything about one follows from its seed.

use crate::harness::{MS, PERCENT, two_hosts};
use tcp_stack::testutil::{
    Burst, ConnPlan, Ending, Flap, Liar, Lie, LinkConfig, Plan, Random, Reading, Scenario, Sending,
};
use tcp_stack::{Congestion, Duration, Ecn, Keepalive, Segmentation, StackConfig, SynCookies, TcpConfig};

const SECOND: Duration = Duration::from_secs(1);

/// What a network is a test of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Transfers over links that do all that links do.
    Busy,
    /// Silence, kept alive.
    Idle,
    /// A reader that stalls, and probes of its closed window.
    Stalled,
    /// Both ends open at once.
    Simultaneous,
    /// One end aborts in the middle.
    Aborted,
    /// The path carries no large packet, and says so or does not.
    Narrow,
    /// The link goes down for good.
    Severed,
    /// A peer that lies.
    Lying,
    /// Forged frames, and segments from outside.
    Hostile,
}

impl Kind {
    /// In thirteen seeds in a row, five are busy.
    const ORDER: [Self; 13] = [
        Self::Busy,
        Self::Idle,
        Self::Busy,
        Self::Lying,
        Self::Busy,
        Self::Stalled,
        Self::Busy,
        Self::Simultaneous,
        Self::Hostile,
        Self::Busy,
        Self::Aborted,
        Self::Narrow,
        Self::Severed,
    ];

    pub(crate) fn of(seed: u64) -> Self {
        Self::ORDER[usize::try_from(seed % 13).unwrap()]
    }

    /// Whether every connection must end in good order, with every byte delivered.
    pub(crate) fn is_in_good_order(self) -> bool {
        matches!(self, Self::Busy | Self::Idle | Self::Stalled | Self::Simultaneous | Self::Narrow)
    }
}

fn chance(random: &mut Random, high: u32) -> u32 {
    u32::try_from(random.below(u64::from(high))).unwrap()
}

fn pick<T: Copy>(random: &mut Random, values: &[T]) -> T {
    values[random.index(values.len())]
}

fn one_in(random: &mut Random, count: u64) -> bool {
    random.below(count) == 0
}

/// A duration up to so many microseconds.
fn micros(random: &mut Random, high: u64) -> Duration {
    Duration::from_micros(random.below(high))
}

/// The network of a seed.
pub(crate) fn network(seed: u64) -> Scenario {
    let kind = Kind::of(seed);
    let random = &mut Random::new(seed);
    let link = random_link(random);
    let mut conns = Vec::new();
    for _ in 0..random.between(1, 4) {
        let at = micros(random, 50_000);
        let (opener, listener) = plans(random, kind);
        let from = random.index(2);
        let simultaneous = kind == Kind::Simultaneous;
        conns.push(ConnPlan {
            at,
            from,
            to: 1 - from,
            ipv6: one_in(random, 2),
            simultaneous,
            opener,
            listener,
        });
    }
    let mut scenario = two_hosts(link, conns);
    scenario.poll_interval = Duration::from_micros(pick(random, &[0, 20, 500, 5_000]));
    scenario.conn_options.nagle = one_in(random, 4);
    scenario.conn_options.out_of_order = seed % 2 == 1;
    scenario.wraps = one_in(random, 3);
    if one_in(random, 4) {
        scenario.link_back = Some(LinkConfig { rate: 2_000_000, loss: chance(random, PERCENT), ..link });
    }
    scenario.buffers = pick(random, &[60, 300, 2048]);
    let buffers_max = u32::try_from(scenario.buffers / 3).unwrap();
    // Blind segments carry no tag: in a VLAN they would be nobody's.
    let vlan = (kind != Kind::Hostile && one_in(random, 4)).then_some(100);
    for host in &mut scenario.hosts {
        random_host(random, host, buffers_max);
        host.vlan = vlan;
    }
    if scenario.conns.iter().any(|conn| conn.opener.sending == Sending::Bulk(0)) {
        // Whoever gets a cookie must speak first: when its acknowledgment is lost, nothing else comes, and the
        // listener knows of nobody.
        for host in &mut scenario.hosts {
            host.tcp.syn_cookies = SynCookies::WhenFull;
        }
    }
    if kind.is_in_good_order() {
        wait_for_ever(&mut scenario);
    }
    specialise(random, kind, &mut scenario);
    scenario
}

fn random_link(random: &mut Random) -> LinkConfig {
    let mut link = LinkConfig::CLEAN;
    link.loss = match random.below(4) {
        0 => chance(random, PERCENT),
        1 => chance(random, 5 * PERCENT),
        _ => 0,
    };
    link.duplicate = if one_in(random, 2) { chance(random, 3 * PERCENT) } else { 0 };
    link.corrupt = if one_in(random, 3) { chance(random, PERCENT) } else { 0 };
    link.reorder = if one_in(random, 2) { chance(random, 10 * PERCENT) } else { 0 };
    link.rate = pick(random, &[0, 5_000_000, 100_000_000, 1_000_000_000]);
    link.delay = Duration::from_micros(pick(random, &[1, 50, 1_000, 40_000]));
    link.jitter = Duration::from_micros(pick(random, &[0, 0, 10, 1_000]));
    link.hold = Duration::from_micros(pick(random, &[50, 500, 5_000]));
    link.queue = pick(random, &[20_000, 100_000, 1 << 20]);
    link.bleach = one_in(random, 8);
    link.mark = match random.below(4) {
        0 | 1 => None,
        2 if one_in(random, 4) => Some(0),
        _ => Some(random.between(1_000, 100_000)),
    };
    if one_in(random, 6) {
        link.burst = Some(Burst { begins: PERCENT / 5, lasts: MS, loss: 90 * PERCENT });
    }
    if one_in(random, 8) {
        let from = micros(random, 200_000);
        link.outage = Some((from, from + micros(random, 3_000_000)));
    }
    if one_in(random, 8) {
        let (from, down, up) = (micros(random, 200_000), micros(random, 700_000), micros(random, 700_000));
        link.flap = Some(Flap { from, down, up, times: 6 });
    }
    link
}

fn random_host(random: &mut Random, host: &mut StackConfig, buffers_max: u32) {
    host.mtu = pick(random, &[1280, 1500, 1500, 9000]);
    host.receive_window_initial_bytes = pick(random, &[4_000, 65_536, 256 << 10]);
    host.receive_memory_bytes = pick(random, &[100_000, 64 << 20]);
    host.receive_window_bytes = pick(random, &[4_000, 20_000, 65_535, 256 << 10]);
    host.send_buffer_bytes = pick(random, &[10_000, 65_536, 256 << 10]);
    host.buffers_max = buffers_max;
    host.received_buffers_max = pick(random, &[16, u32::MAX]);
    host.tcp = TcpConfig {
        sack: !one_in(random, 5),
        timestamps: !one_in(random, 5),
        window_scale: !one_in(random, 5),
        congestion: pick(random, Congestion::ALL),
        ecn: pick(random, Ecn::ALL),
        dctcp_ect_control: one_in(random, 2),
        pacing: one_in(random, 4),
        syn_cookies: pick(random, SynCookies::ALL),
        rto_min_ms: pick(random, &[10, 200, 200, 1_000]),
        delayed_ack_ms: pick(random, &[0, 5, 40, 40, 200]),
        initial_window_segments: pick(random, &[1, 4, 10]),
        ..host.tcp
    };
    if one_in(random, 3) {
        host.tx_checksum_offload = true;
        let card = |bytes_max, buffers_max| Some(Segmentation { bytes_max, buffers_max });
        host.segmentation = pick(random, &[None, card(65_000, 40), card(10_000, 8)]);
    }
}

fn bytes(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => 0,
        1 => random.below(100),
        2 => random.below(20_000),
        _ => random.below(200_000),
    }
}

/// Two plans whose ends fit each other.
fn plans(random: &mut Random, kind: Kind) -> (Plan, Plan) {
    let mut plans = [(); 2].map(|()| {
        let mut plan = Plan::bulk(bytes(random));
        plan.chunk = pick(random, &[(9000, 9000), (1, 3000), (50, 500)]);
        plan.append = one_in(random, 2);
        plan.reading = match random.below(6) {
            0 => Reading::Slow(random.between(1_000, 20_000)),
            1 => Reading::Stall { after: random.below(20_000), pause: MS * 3_000 },
            _ => Reading::Prompt,
        };
        plan
    });
    let [opener, listener] = &mut plans;
    match kind {
        Kind::Busy => {
            opener.sending = Sending::Bulk(random.between(100_000, 1_000_000));
            if one_in(random, 4) {
                let (request, reply) = (random.between(1, 2_000), random.between(1, 10_000));
                let rounds = random.between(10, 40);
                opener.sending = Sending::Ask { request, reply, rounds };
                listener.sending = Sending::Reply { request, reply };
                listener.ending = Ending::AfterPeer;
            }
        }
        Kind::Idle => {
            // One side, or both, stays for minutes or hours.
            let stays = SECOND * chance(random, 4_000);
            opener.ending = Ending::After(stays);
            opener.sending = Sending::Bulk(random.below(3_000));
            listener.ending = if one_in(random, 2) { Ending::AfterPeer } else { Ending::WhenSent };
        }
        Kind::Stalled => {
            opener.sending = Sending::Bulk(random.between(50_000, 200_000));
            let pause = SECOND * chance(random, 1_200);
            listener.reading = Reading::Stall { after: random.below(30_000), pause };
        }
        Kind::Aborted => {
            opener.sending = Sending::Bulk(random.between(1, 200_000));
            listener.ending = Ending::Abort(random.below(100_000));
        }
        Kind::Simultaneous | Kind::Narrow | Kind::Severed | Kind::Lying | Kind::Hostile => {}
    }
    if kind != Kind::Aborted && opener.ending == Ending::WhenSent && listener.ending == Ending::WhenSent {
        match random.below(5) {
            0 => listener.ending = Ending::AfterPeer,
            1 => opener.ending = Ending::AfterPeer,
            2 => listener.ending = Ending::AfterReceived(random.below(10_000)),
            _ => {}
        }
    }
    (*opener, *listener)
}

/// An end that has closed waits for the other one as long as that takes, and probes its window as often.
fn wait_for_ever(scenario: &mut Scenario) {
    for host in &mut scenario.hosts {
        host.tcp.fin_wait_2_ms = 0;
        host.tcp.data_retries = u8::MAX;
    }
}

/// What only networks of a kind have.
fn specialise(random: &mut Random, kind: Kind, scenario: &mut Scenario) {
    match kind {
        Kind::Busy | Kind::Simultaneous | Kind::Stalled => {}
        Kind::Idle => {
            let idle_ms = pick(random, &[1_000, 10_000, 60_000]);
            scenario.conn_options.keepalive = Some(Keepalive { idle_ms, interval_ms: 5_000, probes: 20 });
        }
        Kind::Aborted => {
            // Those that never come to it.
            scenario.abort_at = Some(SECOND * 120);
        }
        Kind::Narrow => {
            scenario.link.mtu = pick(random, &[1_300, 1_400, 1_492]);
            scenario.link.reports_too_big = one_in(random, 2);
            scenario.link_back = None;
        }
        Kind::Severed => {
            scenario.link.outage = Some((micros(random, 300_000), SECOND * 1_000_000));
            scenario.link_back = None;
            for host in &mut scenario.hosts {
                host.tcp.data_retries = pick(random, &[4, 15]);
            }
            scenario.conn_options.user_timeout_ms = pick(random, &[None, Some(20_000)]);
            scenario.abort_at = Some(SECOND * 1_500);
        }
        Kind::Lying => {
            let lies = if one_in(random, 2) { Lie::ALL.to_vec() } else { vec![pick(random, &Lie::ALL)] };
            let chance = pick(random, &[PERCENT, 20 * PERCENT, 100 * PERCENT]);
            scenario.liar = Some(Liar { host: random.index(2), chance, lies });
            let zero_window_ms = pick(random, &[0, 10_000]);
            for host in &mut scenario.hosts {
                host.tcp.zero_window_ms = zero_window_ms;
            }
            // Some applications never read.
            if one_in(random, 3) {
                for conn in &mut scenario.conns {
                    conn.listener.reading = Reading::Stall { after: 1, pause: SECOND * 1_000 };
                }
            }
            // Ends that were made to disagree may wait for each other for ever.
            scenario.abort_at = Some(SECOND * 60);
        }
        Kind::Hostile => {
            scenario.link.forge = chance(random, 30 * PERCENT);
            scenario.attack = Some(Duration::from_micros(random.between(100, 5_000)));
            scenario.hostile = true;
            scenario.abort_at = Some(SECOND * 30);
        }
    }
}
