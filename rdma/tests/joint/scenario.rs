//! Scenario drawn from a seed: hosts, links, connections, and the faults that occur.

use rdma::wire::mpa::RtrOptions;
use rdma::{CrcPolicy, OutOfOrderPolicy};
use tcp_stack::testutil::{Burst, LinkConfig, Random};
use tcp_stack::{Congestion, Duration, Ecn};

const MS: Duration = Duration::from_millis(1);
const PERCENT: u32 = 10_000;
const CONGESTIONS: [Congestion; 4] =
    [Congestion::NewReno, Congestion::Cubic, Congestion::Bbr, Congestion::Dctcp];

/// Plan of one of the two hosts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostPlan {
    pub(crate) mtu: u16,
    pub(crate) receive_window: u32,
    pub(crate) send_buffer: u32,
    pub(crate) buffers: usize,
    pub(crate) sack: bool,
    pub(crate) timestamps: bool,
    pub(crate) congestion: Congestion,
    pub(crate) ecn: Ecn,
    /// True if the send and receive queues of queue pairs complete to one completion queue.
    pub(crate) one_cq: bool,
    /// Slots of a receive queue that queue pairs may share.
    pub(crate) srq: Option<u16>,
}

/// Plan of one end of a connection: settings and work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SidePlan {
    pub(crate) crc: CrcPolicy,
    /// True if it asks for markers.
    pub(crate) markers: bool,
    /// Policy for bytes behind a gap; and true if the last segment of a message may be placed there.
    pub(crate) out_of_order: OutOfOrderPolicy,
    pub(crate) last_out_of_order: bool,
    /// True if the owner has a queue pair of the host's device, not an endpoint.
    pub(crate) verbs: bool,
    /// True if it takes buffers from the host's shared receive queue.
    pub(crate) srq: bool,
    /// True if some work is unsignaled.
    pub(crate) unsignaled: bool,
    /// Maximum number of elements of a list.
    pub(crate) sges: usize,
    pub(crate) ird: u16,
    pub(crate) ord: u16,
    /// Initiator: RTR messages that it can send, for the peer-to-peer model. Responder: those that it accepts.
    pub(crate) rtr: Option<RtrOptions>,
    /// Number of work requests to post.
    pub(crate) quota: u32,
    pub(crate) send_queue: u16,
    pub(crate) receive_queue: u16,
    /// Maximum length of a message in bytes.
    pub(crate) len_max: u32,
    /// Length of a posted buffer in bytes.
    pub(crate) slot_len: u32,
    /// Longest pause between two posts.
    pub(crate) think: Duration,
    /// Longest time before a used buffer is posted again.
    pub(crate) repost: Duration,
    /// Bytes consumed per millisecond; `None` consumes all at once.
    pub(crate) reads_slowly: Option<u64>,
    /// True if it ends the stream when all work is done.
    pub(crate) closes: bool,
}

/// A work request that the peer must refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    WriteNoStag,
    WriteBeyond,
    WriteNoRight,
    WriteWraps,
    ReadNoStag,
    ReadBeyond,
    ReadNoRight,
    AtomicUnaligned,
    AtomicNoRight,
    SendTooLong,
    SendNoBuffer,
    InvalidateNoStag,
}

impl Violation {
    const ALL: [Self; 12] = [
        Self::WriteNoStag,
        Self::WriteBeyond,
        Self::WriteNoRight,
        Self::WriteWraps,
        Self::ReadNoStag,
        Self::ReadBeyond,
        Self::ReadNoRight,
        Self::AtomicUnaligned,
        Self::AtomicNoRight,
        Self::SendTooLong,
        Self::SendNoBuffer,
        Self::InvalidateNoStag,
    ];

    const fn needs_ord(self) -> bool {
        matches!(
            self,
            Self::ReadNoStag
                | Self::ReadBeyond
                | Self::ReadNoRight
                | Self::AtomicUnaligned
                | Self::AtomicNoRight
        )
    }

    /// Returns layer, type and code of the Terminate (RFC 5040 §4.8, RFC 5041 §7.2, RFC 7306 §8.2).
    pub(crate) const fn code(self) -> (u8, u8, u8) {
        match self {
            Self::WriteNoStag | Self::WriteNoRight => (1, 1, 0),
            Self::WriteBeyond => (1, 1, 1),
            Self::WriteWraps => (1, 1, 3),
            Self::ReadNoStag => (0, 1, 0),
            Self::ReadBeyond => (0, 1, 1),
            Self::ReadNoRight | Self::AtomicNoRight => (0, 1, 2),
            Self::AtomicUnaligned => (0, 2, 7),
            Self::SendTooLong => (1, 2, 5),
            Self::SendNoBuffer => (1, 2, 2),
            Self::InvalidateNoStag => (0, 1, 9),
        }
    }
}

/// Method of cutting a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The owner resets the connection.
    Abort,
    /// The owner sends a FIN in the middle of work.
    Fin,
    /// The owner disconnects while the peer is still working.
    Disconnect,
    /// The owner's region is lost.
    Fault,
}

/// Planned end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// All work succeeds.
    Clean,
    /// The responder rejects the connection.
    Rejected,
    /// A side posts a violation after `after` work requests.
    Violates { side: usize, after: u32, violation: Violation },
    /// A side cuts the connection `delay` after its `after`th work request.
    Cut { side: usize, after: u32, delay: Duration, how: Cut },
}

impl Ending {
    /// Returns the violation that the other side posts, if any.
    pub(crate) fn violation_by_peer_of(self, side: usize) -> Option<Violation> {
        match self {
            Self::Violates { side: violator, violation, .. } if violator != side => Some(violation),
            _ => None,
        }
    }
}

/// Plan of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnPlan {
    pub(crate) at: Duration,
    /// Host that opens it.
    pub(crate) from: usize,
    pub(crate) ipv6: bool,
    pub(crate) revision: u8,
    pub(crate) private_data: usize,
    pub(crate) poke_after: Option<Duration>,
    /// Length of a side's window in bytes.
    pub(crate) window: u32,
    /// Plans of the initiator and of the responder.
    pub(crate) sides: [SidePlan; 2],
    pub(crate) ending: Ending,
}

impl ConnPlan {
    /// Returns the host of a side.
    pub(crate) const fn host(&self, side: usize) -> usize {
        if side == 0 { self.from } else { 1 - self.from }
    }

    /// Returns true if FPDUs must carry CRCs.
    pub(crate) fn crc(&self) -> bool {
        self.sides.iter().any(|side| side.crc == CrcPolicy::Required)
    }

    /// Returns true if the sides have no RTR message in common: RFC 6581 §9.2 ends such a connection with a Terminate.
    pub(crate) fn no_rtr_in_common(&self) -> bool {
        let [initiator, responder] = &self.sides;
        let forms = initiator.rtr.filter(|_| self.revision == 2);
        let RtrOptions { send, write, read } = responder.rtr.unwrap_or_default();
        // A Read needs a slot among the reads of both sides. A responder that accepts nothing else accepts a Write.
        let read = read && responder.ird > 0;
        let takes = RtrOptions { send, write: write || !(send || read), read };
        let both = forms.map(|forms| forms.and(takes));
        both.is_some_and(|both| !(both.send || both.write || both.read && initiator.ord > 0))
    }
}

/// Bit flips under valid checksums.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flips {
    /// Probability, per million segments with payload.
    pub(crate) chance: u32,
    /// True if MPA frames, which no CRC covers, are flipped, too.
    pub(crate) startup: bool,
}

/// Decrease of the path MTU at some time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathMtuDrop {
    pub(crate) since: Duration,
    pub(crate) mtu: usize,
    /// True if the sender of a larger packet receives an ICMP error; otherwise the path is a black hole.
    pub(crate) icmp: bool,
}

/// Plan of a run.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) hosts: [HostPlan; 2],
    /// Links from host 0 and from host 1.
    pub(crate) links: [LinkConfig; 2],
    pub(crate) connections: Vec<ConnPlan>,
    /// Longest time that a worker spends elsewhere before it polls its port.
    pub(crate) poll_interval: Duration,
    pub(crate) flips: Option<Flips>,
    /// Retransmissions with other boundaries, per million segments.
    pub(crate) resegment: Option<u32>,
    /// Decrease of the path MTU, if any.
    pub(crate) path_mtu_drop: Option<PathMtuDrop>,
    /// True if TCP sends keepalives.
    pub(crate) keepalive: bool,
    /// True if an outage lasts longer than TCP's timeouts.
    pub(crate) fatal_outage: bool,
    /// True if events are logged.
    pub(crate) log: bool,
}

fn pick<T: Copy>(random: &mut Random, values: &[T]) -> T {
    values[random.index(values.len())]
}

fn chance(random: &mut Random, high: u32) -> u32 {
    u32::try_from(random.below(high.into())).unwrap_or(0)
}

impl Scenario {
    /// Draws a scenario. Each group of features has a random generator of its own, so that a new group changes no
    /// other.
    pub(crate) fn draw(seed: u64) -> Self {
        let mut root = Random::new(seed ^ 0x1a_5eed);
        let mut fork = || root.fork();
        let (mut hosts, mut links, mut connections, mut events) = (fork(), fork(), fork(), fork());
        let mut owners = fork();
        let host = |random: &mut Random| HostPlan {
            mtu: pick(random, &[576, 1280, 1500, 1500, 4000, 9000]),
            receive_window: pick(random, &[3_000, 20_000, 65_535, 256 << 10]),
            send_buffer: pick(random, &[10_000, 65_536, 256 << 10]),
            buffers: pick(random, &[200, 600, 2048]),
            sack: random.below(6) != 0,
            timestamps: random.below(4) != 0,
            congestion: pick(random, &CONGESTIONS),
            ecn: pick(random, &[Ecn::Off, Ecn::Accept, Ecn::On]),
            one_cq: false,
            srq: None,
        };
        let hosts = [host(&mut hosts), host(&mut hosts)];
        let link = draw_link(&mut links);
        let back = if links.below(4) == 0 { draw_link(&mut links) } else { link };
        let count = connections.between(1, 4);
        let ipv6_can = hosts.iter().all(|host| host.mtu >= 1280);
        let connections = (0..count).map(|_| draw_connection(&mut connections, ipv6_can, count)).collect();
        let poll_interval = Duration::from_micros(pick(&mut events, &[0, 20, 500]));
        let mut scenario = Self {
            hosts,
            links: [link, back],
            connections,
            poll_interval,
            flips: None,
            resegment: None,
            path_mtu_drop: None,
            keepalive: false,
            fatal_outage: false,
            log: false,
        };
        scenario.draw_faults(&mut events);
        scenario.draw_owners(&mut owners);
        scenario.open_gaps(&mut owners);
        scenario
    }

    /// Adds causes of gaps where faults behind gaps are drawn: resegmentation, bit flips, and cuts.
    fn open_gaps(&mut self, random: &mut Random) {
        self.resegment =
            (random.below(2) == 0).then(|| pick(random, &[5 * PERCENT, 20 * PERCENT, 50 * PERCENT]));
        let cut = self.connections.iter().any(|connection| matches!(connection.ending, Ending::Cut { .. }));
        if self.resegment.is_some() || self.flips.is_some() || cut && random.below(2) == 0 {
            for link in &mut self.links {
                link.loss = link.loss.max(4 * PERCENT);
            }
        }
    }

    /// Draws the out-of-order policy of each side, and the owners that have queue pairs, with their shared objects.
    fn draw_owners(&mut self, random: &mut Random) {
        for host in &mut self.hosts {
            host.one_cq = random.below(2) == 0;
            host.srq = (random.below(2) == 0).then(|| pick(random, &[1, 4, 16]));
        }
        for connection in &mut self.connections {
            for side in 0..2 {
                let host = &self.hosts[connection.host(side)];
                let withholds = connection.ending.violation_by_peer_of(side) == Some(Violation::SendNoBuffer);
                let plan = &mut connection.sides[side];
                use OutOfOrderPolicy::{Aligned, Markers, Off};
                plan.out_of_order = pick(random, &[Aligned, Aligned, Aligned, Aligned, Markers, Off]);
                plan.verbs = random.below(2) == 0;
                plan.srq = random.below(2) == 0 && plan.verbs && host.srq.is_some() && !withholds;
                plan.unsignaled = random.below(2) == 0 && plan.verbs;
                plan.sges = if plan.verbs { pick(random, &[1, 2, 4, 16]) } else { 1 };
            }
        }
        for host in 0..2 {
            self.share_device(host);
            self.keep_long_sends_out(host);
        }
    }

    /// Keeps a side that will receive too long a Send off a shared queue whose buffers are longer than its own.
    fn keep_long_sends_out(&mut self, host: usize) {
        let longest = self.shared_slot_len(host);
        for connection in &mut self.connections {
            let side = usize::from(connection.from != host);
            let long = connection.ending.violation_by_peer_of(side) == Some(Violation::SendTooLong);
            connection.sides[side].srq &= !long || connection.sides[side].slot_len == longest;
        }
    }

    /// Makes the connection settings of a host's queue pairs equal: they belong to the device.
    fn share_device(&mut self, host: usize) {
        let mut common: Option<SidePlan> = None;
        let (mut takes, mut poke_after) = (None, None);
        for connection in &mut self.connections {
            let side = usize::from(connection.from != host);
            let plan = &mut connection.sides[side];
            if !plan.verbs {
                continue;
            }
            let SidePlan { crc, markers, out_of_order, last_out_of_order, .. } = *common.get_or_insert(*plan);
            *plan = SidePlan { crc, markers, out_of_order, last_out_of_order, ..*plan };
            if side == 1 {
                plan.rtr = *takes.get_or_insert(plan.rtr);
            } else {
                connection.poke_after = *poke_after.get_or_insert(connection.poke_after);
            }
        }
    }

    /// Returns the connections, with the host's side, whose owner there has a queue pair.
    pub(crate) fn queue_pairs(&self, host: usize) -> impl Iterator<Item = (&ConnPlan, usize)> {
        let side = move |connection: &ConnPlan| usize::from(connection.from != host);
        self.connections
            .iter()
            .map(move |connection| (connection, side(connection)))
            .filter(|(connection, side)| connection.sides[*side].verbs)
    }

    /// Returns the length in bytes of a buffer of a host's shared receive queue.
    pub(crate) fn shared_slot_len(&self, host: usize) -> u32 {
        let shares = self.queue_pairs(host).filter(|(connection, side)| connection.sides[*side].srq);
        shares.map(|(connection, side)| connection.sides[side].slot_len).max().unwrap_or(0)
    }

    /// Draws the faults of the run: one kind for all connections, or one for each, or none.
    fn draw_faults(&mut self, random: &mut Random) {
        match random.below(10) {
            0 => {
                let startup = random.below(3) == 0;
                self.flips = Some(Flips { chance: 1_000 + chance(random, 5 * PERCENT), startup });
                for side in self.connections.iter_mut().flat_map(|connection| &mut connection.sides) {
                    side.crc = CrcPolicy::Required;
                }
            }
            1 => {
                let from = Duration::from_micros(random.below(30_000));
                self.fatal_outage = random.below(2) == 0;
                let lasts = if self.fatal_outage { MS * 60_000 } else { MS * 1_500 };
                for link in &mut self.links {
                    link.outage = Some((from, from + lasts));
                }
            }
            2 => {
                let icmp = random.below(3) != 0;
                // Without ICMP errors, a sender searches a black hole from 1024 bytes up.
                let lowest = if !icmp || self.connections.iter().any(|connection| connection.ipv6) {
                    1280
                } else {
                    576
                };
                let [a, b] = self.hosts.map(|host| host.mtu);
                let mtu = random.between(lowest, u64::from(a.max(b)).max(lowest)) as usize;
                let since = Duration::from_micros(random.below(20_000));
                self.path_mtu_drop = Some(PathMtuDrop { since, mtu, icmp });
            }
            3..6 => {
                for connection in &mut self.connections {
                    connection.ending = draw_ending(random, connection);
                }
            }
            _ => {}
        }
        let cut = self.connections.iter().any(|connection| matches!(connection.ending, Ending::Cut { .. }));
        self.keepalive = cut || self.flips.is_some() || self.links[0].outage.is_some();
    }
}

fn draw_link(random: &mut Random) -> LinkConfig {
    let mut link = LinkConfig::CLEAN;
    link.loss = match random.below(4) {
        0 => chance(random, PERCENT),
        1 => chance(random, 5 * PERCENT),
        _ => 0,
    };
    link.duplicate = if random.below(3) == 0 { chance(random, 3 * PERCENT) } else { 0 };
    link.corrupt = if random.below(4) == 0 { chance(random, PERCENT) } else { 0 };
    link.reorder = if random.below(2) == 0 { chance(random, 10 * PERCENT) } else { 0 };
    link.rate = pick(random, &[0, 20_000_000, 100_000_000, 1_000_000_000]);
    link.delay = Duration::from_micros(pick(random, &[1, 50, 1_000, 20_000]));
    link.jitter = Duration::from_micros(pick(random, &[0, 0, 10, 1_000]));
    link.hold = Duration::from_micros(pick(random, &[50, 500, 5_000]));
    link.mark = (random.below(3) == 0).then(|| random.between(1_000, 100_000));
    link.queue = pick(random, &[40_000, 100_000, 1 << 20]);
    if random.below(8) == 0 {
        link.burst = Some(Burst { begins: PERCENT / 5, lasts: MS, loss: 90 * PERCENT });
    }
    link
}

fn draw_connection(random: &mut Random, ipv6_can: bool, count: u64) -> ConnPlan {
    let revision = pick(random, &[1, 2, 2]);
    // Long messages only with few connections, so that runs take similar time.
    let len_max = match count {
        1 => pick(random, &[64, 2_000, 20_000, 200 << 10]),
        2 => pick(random, &[64, 2_000, 20_000, 60_000]),
        _ => pick(random, &[64, 2_000, 20_000]),
    };
    let quota_max = match len_max {
        0..=2_000 => 120,
        2_001..=60_000 => 50,
        _ => 24,
    };
    let crc = random.below(4) != 0;
    let mut side = |is_initiator: bool| {
        let depth = |random: &mut Random| {
            let any = random.below(17) as u16;
            pick(random, &[0, 1, 2, 16, any])
        };
        let forms = draw_forms(random);
        SidePlan {
            crc: if crc && random.below(3) != 0 { CrcPolicy::Required } else { CrcPolicy::IfPeerAsks },
            markers: random.below(3) == 0,
            out_of_order: OutOfOrderPolicy::Aligned,
            last_out_of_order: random.below(2) == 0,
            verbs: false,
            srq: false,
            unsignaled: false,
            sges: 1,
            ird: depth(random),
            ord: depth(random),
            rtr: (!is_initiator || random.below(2) == 0).then_some(forms),
            quota: random.between(u64::from(is_initiator), quota_max) as u32,
            send_queue: pick(random, &[1, 2, 8, 32]),
            receive_queue: pick(random, &[1, 2, 8]),
            len_max,
            slot_len: len_max.min(20_000),
            think: Duration::from_micros(pick(random, &[0, 0, 100, 5_000])),
            repost: Duration::from_micros(pick(random, &[0, 0, 1_000])),
            reads_slowly: (random.below(8) == 0).then(|| random.between(2_000, 40_000)),
            closes: true,
        }
    };
    let mut sides = [side(true), side(false)];
    match random.below(3) {
        0 => sides[0].closes = false,
        1 => sides[1].closes = false,
        _ => {}
    }
    if revision == 1 {
        // RFC 5044 negotiates no depths: the owners must agree on them in another way.
        let [initiator, responder] = &mut sides;
        initiator.ord = initiator.ord.min(responder.ird);
        responder.ord = responder.ord.min(initiator.ird);
    }
    ConnPlan {
        at: Duration::from_micros(random.below(5_000)),
        from: random.index(2),
        ipv6: ipv6_can && random.below(2) == 0,
        revision,
        private_data: random.index(200),
        poke_after: (random.below(4) == 0).then_some(MS * pick(random, &[1, 30, 300])),
        window: (len_max * 2).max(4096),
        sides,
        ending: if random.below(24) == 0 { Ending::Rejected } else { Ending::Clean },
    }
}

/// Draws the RTR messages that a side supports.
fn draw_forms(random: &mut Random) -> RtrOptions {
    let forms =
        RtrOptions { send: random.below(2) == 0, write: random.below(3) != 0, read: random.below(2) == 0 };
    // A responder that names none accepts a Write.
    if forms.is_empty() { RtrOptions { write: true, ..forms } } else { forms }
}

fn draw_ending(random: &mut Random, connection: &ConnPlan) -> Ending {
    let side = random.index(2);
    let quota = connection.sides[side].quota;
    if connection.ending == Ending::Rejected || quota == 0 {
        return connection.ending;
    }
    let after = random.below(quota.into()) as u32;
    match random.below(8) {
        0 => Ending::Clean,
        1..4 => {
            let violation = pick(random, &Violation::ALL);
            let [_, peer] =
                if side == 0 { connection.sides } else { [connection.sides[1], connection.sides[0]] };
            let ord = connection.sides[side].ord.min(peer.ird);
            let violation =
                if violation.needs_ord() && ord == 0 { Violation::WriteBeyond } else { violation };
            Ending::Violates { side, after, violation }
        }
        _ => Ending::Cut {
            side,
            after: after + 1,
            delay: Duration::from_micros(random.below(3_000)),
            how: pick(random, &[Cut::Abort, Cut::Fin, Cut::Disconnect, Cut::Fault]),
        },
    }
}
