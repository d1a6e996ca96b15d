//! What a seed draws: hosts, links, connections, and what befalls them.

use rdma::wire::mpa::RtrOptions;
use rdma::{CrcPolicy, OutOfOrderPolicy};
use tcp_stack::testutil::{Burst, LinkConfig, Random};
use tcp_stack::{Congestion, Duration, Ecn};

const MS: Duration = Duration::from_millis(1);
const PERCENT: u32 = 10_000;
const CONGESTIONS: [Congestion; 4] =
    [Congestion::NewReno, Congestion::Cubic, Congestion::Bbr, Congestion::Dctcp];

/// One of the two hosts.
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
    /// Queue pairs: work to send and buffers complete on one queue.
    pub(crate) one_cq: bool,
    /// Places of a receive queue that queue pairs may share.
    pub(crate) srq: Option<u16>,
}

/// What one end of a connection brings, asks for and does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SidePlan {
    pub(crate) crc: CrcPolicy,
    /// Whether it asks for markers.
    pub(crate) markers: bool,
    /// How what lies behind a gap is looked for, and whether what ends a message may be placed there, too.
    pub(crate) out_of_order: OutOfOrderPolicy,
    pub(crate) last_out_of_order: bool,
    /// Its owner has a queue pair of the host's device, not an endpoint.
    pub(crate) verbs: bool,
    /// Its buffers are those of the host's shared receive queue.
    pub(crate) srq: bool,
    /// Not all work is signaled.
    pub(crate) unsignaled: bool,
    /// Elements of a list at most.
    pub(crate) sges: usize,
    pub(crate) ird: u16,
    pub(crate) ord: u16,
    /// Initiator: forms of ready-to-receive that it can send, for the peer-to-peer model. Responder: those it takes.
    pub(crate) rtr: Option<RtrOptions>,
    /// Work requests to post.
    pub(crate) quota: u32,
    pub(crate) send_queue: u16,
    pub(crate) receive_queue: u16,
    /// Bytes of a message at most.
    pub(crate) len_max: u32,
    /// Bytes of a posted buffer.
    pub(crate) slot_len: u32,
    /// The longest pause between two posts.
    pub(crate) think: Duration,
    /// How long a buffer that was used waits at most before it is posted again.
    pub(crate) repost: Duration,
    /// Bytes let go of in a millisecond, if not all at once.
    pub(crate) reads_slowly: Option<u64>,
    /// Whether it ends the stream when all is done.
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

    /// Layer, type and code of the Terminate (RFC 5040 §4.8, RFC 5041 §7.2, RFC 7306 §8.2).
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

/// How a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// A reset.
    Abort,
    /// A FIN in the middle of work.
    Fin,
    /// An end in good order on one side, the other still at work.
    Disconnect,
    /// The owner's region is lost.
    Fault,
}

/// What befalls a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Nothing: all work succeeds.
    Clean,
    /// The responder says no.
    Rejected,
    /// A side, after so many work requests, posts what it may not.
    Violates { side: usize, after: u32, violation: Violation },
    /// A side, some time after so many work requests, cuts it.
    Cut { side: usize, after: u32, delay: Duration, how: Cut },
}

/// A connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnPlan {
    pub(crate) at: Duration,
    /// The host that opens it.
    pub(crate) from: usize,
    pub(crate) ipv6: bool,
    pub(crate) revision: u8,
    pub(crate) private_data: usize,
    pub(crate) poke_after: Option<Duration>,
    /// Bytes of a side's window.
    pub(crate) window: u32,
    /// Initiator, responder.
    pub(crate) sides: [SidePlan; 2],
    pub(crate) ending: Ending,
}

impl ConnPlan {
    /// The host of a side.
    pub(crate) const fn host(&self, side: usize) -> usize {
        if side == 0 { self.from } else { 1 - self.from }
    }

    /// Whether FPDUs are to carry CRCs.
    pub(crate) fn crc(&self) -> bool {
        self.sides.iter().any(|side| side.crc == CrcPolicy::Required)
    }

    /// Whether the sides know no message to begin with: RFC 6581 §9.2 ends such a connection with a Terminate.
    pub(crate) fn no_rtr_in_common(&self) -> bool {
        let [initiator, responder] = &self.sides;
        let forms = initiator.rtr.filter(|_| self.revision == 2);
        let RtrOptions { send, write, read } = responder.rtr.unwrap_or_default();
        // A Read takes a place among the reads, which both must have. A responder that takes nothing else takes a Write.
        let read = read && responder.ird > 0;
        let takes = RtrOptions { send, write: write || !(send || read), read };
        let both = forms.map(|forms| forms.and(takes));
        both.is_some_and(|both| !(both.send || both.write || both.read && initiator.ord > 0))
    }
}

/// Bits that are flipped under checksums that fit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flips {
    /// Out of a million segments with payload.
    pub(crate) chance: u32,
    /// In the MPA frames, which no CRC covers, too.
    pub(crate) startup: bool,
}

/// From some time on packets may not be longer than so many bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Narrows {
    pub(crate) since: Duration,
    pub(crate) mtu: usize,
    /// Whether who sends one is told; else the path is a black hole.
    pub(crate) tells: bool,
}

/// A run.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) hosts: [HostPlan; 2],
    /// From host 0, from host 1.
    pub(crate) links: [LinkConfig; 2],
    pub(crate) connections: Vec<ConnPlan>,
    /// How long a worker is busy elsewhere at most, before it looks at its port.
    pub(crate) poll_interval: Duration,
    pub(crate) flips: Option<Flips>,
    /// Segments, out of a million, behind which part of the stream comes once more with other boundaries.
    pub(crate) recut: Option<u32>,
    /// The path narrows.
    pub(crate) narrows: Option<Narrows>,
    /// Whether the ends watch for a peer that is gone.
    pub(crate) keepalive: bool,
    /// Whether an outage outlasts the patience of the ends.
    pub(crate) fatal_outage: bool,
    /// Whether what happens is written down.
    pub(crate) log: bool,
}

fn pick<T: Copy>(random: &mut Random, values: &[T]) -> T {
    values[random.index(values.len())]
}

fn chance(random: &mut Random, high: u32) -> u32 {
    u32::try_from(random.below(high.into())).unwrap_or(0)
}

impl Scenario {
    /// Each group of features has a generator of its own, so that a new group changes no other.
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
            recut: None,
            narrows: None,
            keepalive: false,
            fatal_outage: false,
            log: false,
        };
        scenario.befall(&mut events);
        scenario.draw_owners(&mut owners);
        scenario.open_gaps(&mut owners);
        scenario
    }

    /// What befalls bytes behind a gap wants gaps: segments that are cut anew, bits that flip, and ends in the middle.
    fn open_gaps(&mut self, random: &mut Random) {
        self.recut = (random.below(2) == 0).then(|| pick(random, &[5 * PERCENT, 20 * PERCENT, 50 * PERCENT]));
        let cut = self.connections.iter().any(|connection| matches!(connection.ending, Ending::Cut { .. }));
        if self.recut.is_some() || self.flips.is_some() || cut && random.below(2) == 0 {
            for link in &mut self.links {
                link.loss = link.loss.max(4 * PERCENT);
            }
        }
    }

    /// How each side looks behind gaps, and which owners have queue pairs, with what of the host's device.
    fn draw_owners(&mut self, random: &mut Random) {
        for host in &mut self.hosts {
            host.one_cq = random.below(2) == 0;
            host.srq = (random.below(2) == 0).then(|| pick(random, &[1, 4, 16]));
        }
        for connection in &mut self.connections {
            for side in 0..2 {
                let host = &self.hosts[connection.host(side)];
                let withholds = matches!(connection.ending, Ending::Violates { side: peer, violation: Violation::SendNoBuffer, .. } if peer != side);
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

    /// Who is to be sent more than a buffer takes does not share longer ones than the sender can fill.
    fn keep_long_sends_out(&mut self, host: usize) {
        let longest = self.shared_slot_len(host);
        for connection in &mut self.connections {
            let side = usize::from(connection.from != host);
            let long = matches!(connection.ending, Ending::Violates { side: peer, violation: Violation::SendTooLong, .. } if peer != side);
            connection.sides[side].srq &= !long || connection.sides[side].slot_len == longest;
        }
    }

    /// What connections are made with is the device's, hence one for all of its queue pairs.
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

    /// The side of a connection that a host has, if its owner has a queue pair.
    pub(crate) fn queue_pairs(&self, host: usize) -> impl Iterator<Item = (&ConnPlan, usize)> {
        let side = move |connection: &ConnPlan| usize::from(connection.from != host);
        self.connections
            .iter()
            .map(move |connection| (connection, side(connection)))
            .filter(|(connection, side)| connection.sides[*side].verbs)
    }

    /// Bytes of a buffer of a host's shared receive queue.
    pub(crate) fn shared_slot_len(&self, host: usize) -> u32 {
        let shares = self.queue_pairs(host).filter(|(connection, side)| connection.sides[*side].srq);
        shares.map(|(connection, side)| connection.sides[side].slot_len).max().unwrap_or(0)
    }

    /// What befalls the run: one thing of all connections, or one of each, or nothing.
    fn befall(&mut self, random: &mut Random) {
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
                let tells = random.below(3) != 0;
                // Who is not told looks for a black hole from 1024 bytes up.
                let lowest = if !tells || self.connections.iter().any(|connection| connection.ipv6) {
                    1280
                } else {
                    576
                };
                let [a, b] = self.hosts.map(|host| host.mtu);
                let mtu = random.between(lowest, u64::from(a.max(b)).max(lowest)) as usize;
                let since = Duration::from_micros(random.below(20_000));
                self.narrows = Some(Narrows { since, mtu, tells });
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
    // Long messages where there are few connections, so that runs are alike in length.
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
        // RFC 5044 has no word for depths: the owners must agree on them elsewhere.
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

/// Forms of ready-to-receive that a side knows.
fn draw_forms(random: &mut Random) -> RtrOptions {
    let forms =
        RtrOptions { send: random.below(2) == 0, write: random.below(3) != 0, read: random.below(2) == 0 };
    // A responder that names no form takes a Write.
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
