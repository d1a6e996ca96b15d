//! Random networks: a seed determines everything about one.

use crate::harness::{MS, PERCENT, conn, host, two_hosts};
use tcp_stack::testutil::{
    Burst, ConnPlan, Ending, Flap, Liar, Lie, LinkConfig, Plan, Random, Reading, Scenario, Sending,
};
use tcp_stack::{
    Congestion, Duration, Ecn, EvictionPolicy, Keepalive, Segmentation, StackConfig, SynCookies, TcpConfig,
};

const SECOND: Duration = Duration::from_secs(1);

/// The subject of a random network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Transfers over links with every impairment.
    Busy,
    /// Long silence, with keepalives.
    Idle,
    /// A reader that stalls, and probes of its closed window.
    Stalled,
    /// Simultaneous opens of both ends.
    Simultaneous,
    /// An abort by one end in the middle of a transfer.
    Aborted,
    /// A path MTU below the link's, reported by the router or not.
    Narrow,
    /// A link that goes down for good.
    Severed,
    /// A peer that misbehaves ([`Lie`]).
    Lying,
    /// Forged frames, and blind segments from outside.
    Hostile,
    /// Many connections of a third host that pin packet buffers, and honest ones beside them.
    Crowded,
}

impl Kind {
    /// Kinds of thirteen consecutive seeds, five of which are busy; every second time the last kind is replaced by a
    /// crowd.
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
        if seed % 26 == 25 {
            return Self::Crowded;
        }
        Self::ORDER[usize::try_from(seed % 13).unwrap()]
    }

    /// Returns true if every connection must end in good order, with every byte delivered.
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

/// Returns a random duration below `high` microseconds.
fn micros(random: &mut Random, high: u64) -> Duration {
    Duration::from_micros(random.below(high))
}

/// Returns the network of a seed.
pub(crate) fn network(seed: u64) -> Scenario {
    let kind = Kind::of(seed);
    let random = &mut Random::new(seed);
    let link = random_link(random);
    let mut conns = Vec::new();
    for _ in 0..random.between(1, 4) {
        let at = micros(random, 50_000);
        let (opener, listener) = plans(random, kind);
        // The crowd fills the table of host 1, so nothing is opened from there.
        let from = if kind == Kind::Crowded { 0 } else { random.index(2) };
        let simultaneous = kind == Kind::Simultaneous;
        conns.push(ConnPlan {
            at,
            from,
            to: 1 - from,
            ipv6: one_in(random, 2),
            simultaneous,
            opener,
            listener,
            shares_listener_of: None,
            eviction: EvictionPolicy::Never,
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
    // Blind segments carry no tag: a VLAN would ignore them.
    let vlan = (kind != Kind::Hostile && one_in(random, 4)).then_some(100);
    for host in &mut scenario.hosts {
        random_host(random, host, buffers_max);
        host.vlan = vlan;
    }
    if scenario.conns.iter().any(|conn| conn.opener.sending == Sending::Bulk(0)) {
        // A peer that got a cookie must send first: if its acknowledgment is lost, no other segment follows, and the
        // listener has no record of it.
        for host in &mut scenario.hosts {
            host.tcp.syn_cookies = SynCookies::WhenFull;
        }
    }
    if kind.is_in_good_order() || kind == Kind::Crowded {
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
        // Drawn from what was drawn: another number would change all that follow.
        bbr_loss_percent: if host.mtu == 1280 { 10 } else { 2 },
        syn_cookies: pick(random, SynCookies::ALL),
        rto_min_ms: pick(random, &[10, 200, 200, 1_000]),
        delayed_ack_ms: pick(random, &[0, 5, 40, 40, 200]),
        initial_window_segments: pick(random, &[1, 4, 10]),
        ..host.tcp
    };
    if one_in(random, 3) {
        host.tx_checksum_offload = true;
        host.tx_ip_checksum_offload = true;
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

/// Returns two plans that fit each other.
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
        Kind::Crowded => {
            opener.sending = Sending::Bulk(random.between(5_000, 50_000));
            // Short segments fill the pool.
            listener.sending = Sending::Bulk(random.between(20_000, 100_000));
            (listener.chunk, listener.append) = ((50, 500), false);
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

/// Makes a closed end wait for the other one without a limit, and probe its window as often as needed.
fn wait_for_ever(scenario: &mut Scenario) {
    for host in &mut scenario.hosts {
        host.tcp.fin_wait_2_ms = 0;
        host.tcp.data_retries = u8::MAX;
    }
}

/// Adds the properties that only networks of this kind have.
fn specialise(random: &mut Random, kind: Kind, scenario: &mut Scenario) {
    match kind {
        Kind::Busy | Kind::Simultaneous | Kind::Stalled => {}
        Kind::Idle => {
            let idle_ms = pick(random, &[1_000, 10_000, 60_000]);
            scenario.conn_options.keepalive = Some(Keepalive { idle_ms, interval_ms: 5_000, probes: 20 });
        }
        Kind::Aborted => {
            // Ends connections that never reach the abort.
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
        Kind::Crowded => crowd(random, scenario),
    }
}

/// Adds a third host whose connections pin packet buffers of host 1, in one of three ways: one-byte segments behind
/// gaps that never close, data that the application keeps and never reads, or replies that the third host never reads.
/// The limits of host 1 are small enough that connections of the crowd are evicted.
fn crowd(random: &mut Random, scenario: &mut Scenario) {
    scenario.hosts.push(StackConfig {
        tcp: scenario.hosts[0].tcp,
        vlan: scenario.hosts[0].vlan,
        buffers_max: 8192,
        ..host(2)
    });
    scenario.buffers = pick(random, &[48, 96, 300]);
    scenario.further_buffers = 8192;
    scenario.hosts[0].buffers_max = u32::try_from(scenario.buffers / 3).unwrap();
    let server = &mut scenario.hosts[1];
    server.buffers_max = u32::try_from(scenario.buffers).unwrap();
    server.received_buffers_max = u32::MAX;
    server.connections_max = pick(random, &[8, 12, 64]);
    server.connections_per_source_max = pick(random, &[6, u32::MAX]);
    server.tcp.give_way_after_ms = pick(random, &[20, 200]);
    scenario.listener_connections_max = pick(random, &[4, u32::MAX]);
    let stall = Reading::Stall { after: 0, pause: SECOND * 1_000 };
    let (mut opener, mut listener) = (Plan::bulk(20_000), Plan { reading: stall, ..Plan::sink() });
    match random.below(3) {
        0 => {
            scenario.liar = Some(Liar { host: 2, chance: 100 * PERCENT, lies: vec![Lie::Gaps] });
            opener = Plan { chunk: (1, 1), ..Plan::bulk(200) };
        }
        1 => {}
        _ => {
            (opener, listener) = (Plan { reading: stall, ..Plan::bulk(100) }, Plan::bulk(20_000));
            // All data buffers are used until the crowd is gone, so the honest peer only sends.
            scenario.conns.iter_mut().for_each(|plan| plan.listener.sending = Sending::Bulk(0));
        }
    }
    let eviction = pick(random, &[EvictionPolicy::WhenIdle, EvictionPolicy::Anytime]);
    let (first, begin) = (scenario.conns.len(), micros(random, 400_000));
    for index in 0..random.index(24) + 16 {
        let shares_listener_of = (index > 0 && one_in(random, 2)).then_some(first);
        let (at, ipv6) = (micros(random, 20_000) + begin, one_in(random, 2));
        let plan = ConnPlan { from: 2, at, shares_listener_of, eviction, ..conn(ipv6, opener, listener) };
        scenario.conns.push(plan);
    }
    scenario.abort_at = Some(SECOND * 300);
}
