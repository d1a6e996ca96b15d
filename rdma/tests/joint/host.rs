//! A host: a stack, the RDMA side of its worker, and the owners of its streams.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rdma::{
    Access, ConnectRequest, Endpoint, EndpointConfig, NegotiationConfig, PdId, RdmaStats, RegionId, Scope,
    Stag, StagTable, StreamId, VecMemory, Window,
};
use tcp_stack::testutil::{HeapBuf, HeapPool, Random};
use tcp_stack::{
    ConnId, ConnOptions, Duration, Event, Instant, Ipv4Cidr, Ipv6Cidr, Keepalive, ListenOptions, MacAddr,
    RxChecksum, RxFrame, Stack, StackConfig,
};

use crate::model::{Region, Shared, Watched};
use crate::scenario::{DialPlan, Fate, Scenario};
use crate::stream::{GUARD, Outcome, Stream, Tools, own_region, since_start, work_area};

/// Frames that a host takes and gives in one turn, as a poll-mode worker does.
pub(crate) const BURST: usize = 32;
/// Ports of the connections: this and up.
const FIRST_PORT: u16 = 7400;
/// The domain that the shared word belongs to.
const DOMAIN: PdId = PdId(7);

#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) index: usize,
    pub(crate) tools: Tools,
    pub(crate) inbox: VecDeque<Vec<u8>>,
    /// Frames that the port holds until they are sent, in that order.
    pub(crate) sending: VecDeque<HeapBuf>,
    /// Per connection.
    pub(crate) streams: Vec<Option<Stream>>,
    dialing: Vec<Option<ConnId>>,
    /// The STag of the word of this host that all connections share.
    pub(crate) shared: Stag,
    pub(crate) turn_at: Option<Instant>,
    random: Random,
    options: ConnOptions,
    /// Private data of a connection's request and reply.
    private_data: Vec<[Vec<u8>; 2]>,
}

fn stack_config(index: usize, scenario: &Scenario) -> StackConfig {
    let plan = &scenario.hosts[index];
    let number = u8::try_from(index + 1).unwrap_or(1);
    let mut config = StackConfig {
        mac: MacAddr([2, 0, 0, 0, 0, number]),
        mtu: plan.mtu,
        ipv4: Ipv4Cidr::new(Ipv4Addr::new(10, 77, 0, number), 24),
        ipv6: Ipv6Cidr::new(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, number.into()), 64)
            .filter(|_| plan.mtu >= 1280),
        connections_max: 8,
        neighbors_max: 8,
        buffers_max: u32::try_from(plan.buffers / 3).unwrap_or(0),
        held_segments_max: 256,
        send_buffer_bytes: plan.send_buffer,
        receive_window_bytes: plan.receive_window,
        ..StackConfig::default()
    };
    config.tcp.sack = plan.sack;
    config.tcp.timestamps = plan.timestamps;
    config.tcp.congestion = plan.congestion;
    config.tcp.ecn = plan.ecn;
    if scenario.fatal_outage {
        config.tcp.data_retries = 4;
        config.tcp.syn_retries = 3;
    }
    config
}

/// What an endpoint is made with: the one place where a feature that is drawn becomes configuration.
fn endpoint_config(dial: &DialPlan, side: usize) -> EndpointConfig {
    let plan = &dial.sides[side];
    let default = EndpointConfig::default();
    EndpointConfig {
        mpa: NegotiationConfig {
            crc: plan.crc,
            markers: plan.markers,
            ird_max: plan.ird,
            ord_max: plan.ord,
            rtr: plan.rtr.unwrap_or_default(),
            private_data_max: 512,
            timeout: Duration::from_secs(200),
        },
        pd: Some(DOMAIN),
        send_queue: plan.send_queue,
        receive_queue: plan.receive_queue,
        last_early: plan.last_early,
        poke_after: dial.poke_after.filter(|_| side == 0),
        terminate_timeout: Duration::from_secs(200),
        ..default
    }
}

impl Host {
    pub(crate) fn new(
        index: usize,
        scenario: &Scenario,
        model: &Shared,
        private_data: &[[Vec<u8>; 2]],
        random: &mut Random,
    ) -> Result<Self, String> {
        let plan = &scenario.hosts[index];
        let keepalive = Keepalive { idle_ms: 20_000, interval_ms: 2_000, probes: 5 };
        let keepalive = scenario.keepalive.then_some(keepalive);
        let options = ConnOptions { keepalive, early: true, ..ConnOptions::default() };
        let mut stack = Stack::new(stack_config(index, scenario), random.seed());
        let mut memory = Watched::new(index, model.clone());
        for (at, dial) in (0..).zip(&scenario.dials) {
            let side = usize::from(dial.from != index);
            let slots = u64::from(dial.sides[side].receive_queue) * u64::from(dial.sides[side].slot_len);
            for len in [u64::from(dial.window) + 2 * GUARD, work_area(&dial.sides[side]) + slots + GUARD] {
                add_region(&mut memory.inner, index, model, len, random);
            }
            if side == 1 {
                let listen = ListenOptions { conn: options, ..ListenOptions::default() };
                stack.listen(FIRST_PORT + at, listen).map_err(|error| error.to_string())?;
            }
        }
        let region = add_region(&mut memory.inner, index, model, 8, &mut Random::new(0));
        memory.overwrite(region.0, 0, &[0; 8]);
        let mut stags = StagTable::new(128, random.seed());
        let window = Window { region, offset: 0, bytes: 8, base_to: 0 };
        let shared = stags.grant_window(window, Access::REMOTE_ATOMIC, Scope::Pd(DOMAIN));
        let room = usize::from(plan.mtu) + 64;
        Ok(Self {
            index,
            tools: Tools {
                stack,
                pool: HeapPool::new(plan.buffers, plan.buffers / 16, room),
                stags,
                memory,
                stats: RdmaStats::default(),
            },
            inbox: VecDeque::new(),
            sending: VecDeque::new(),
            streams: scenario.dials.iter().map(|_| None).collect(),
            dialing: vec![None; scenario.dials.len()],
            shared: shared.map_err(|error| error.to_string())?,
            turn_at: None,
            random: random.fork(),
            options,
            private_data: private_data.to_vec(),
        })
    }

    /// Opens a connection.
    pub(crate) fn dial(&mut self, now: Instant, dial: usize, plan: &DialPlan) -> Result<(), String> {
        let number = u8::try_from(2 - self.index).unwrap_or(1);
        let address: IpAddr = if plan.ipv6 {
            Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, number.into()).into()
        } else {
            Ipv4Addr::new(10, 77, 0, number).into()
        };
        let port = FIRST_PORT + u16::try_from(dial).unwrap_or(0);
        let conn = self.tools.stack.connect(now, SocketAddr::new(address, port), self.options);
        self.dialing[dial] = Some(conn.map_err(|error| error.to_string())?);
        Ok(())
    }

    /// Takes a burst from the port.
    pub(crate) fn take_frames(&mut self, now: Instant) {
        let Self { inbox, tools, .. } = self;
        let frames = inbox.drain(..inbox.len().min(BURST)).filter_map(|frame| {
            // As a port without a buffer does, the frame is lost.
            let buf = tools.pool.copy(&frame)?;
            Some(RxFrame { buf, checksum: RxChecksum::Unknown })
        });
        let burst: Vec<_> = frames.collect();
        tools.stack.handle_frames(now, burst);
    }

    /// Acts on what TCP tells.
    pub(crate) fn handle_events(
        &mut self,
        now: Instant,
        scenario: &Scenario,
        model: &Shared,
    ) -> Result<(), String> {
        while let Some(event) = self.tools.stack.poll_event() {
            let (Event::Accepted { conn, .. }
            | Event::Connected { conn }
            | Event::Data { conn, .. }
            | Event::Early { conn }
            | Event::PeerClosed { conn }
            | Event::Writable { conn }
            | Event::Urgent { conn, .. }
            | Event::EmssChanged { conn, .. }
            | Event::Closed { conn, .. }) = &event;
            let conn = *conn;
            if let Event::Accepted { .. } | Event::Connected { .. } = event {
                self.open(now, conn, scenario, model)?;
                continue;
            }
            let Self { streams, tools, dialing, .. } = self;
            let stream = streams.iter_mut().flatten().find(|stream| stream.conn == conn);
            let Some(stream) = stream else {
                // It was never established.
                if !matches!(event, Event::Closed { .. }) || !dialing.contains(&Some(conn)) {
                    return Err(format!("an event of no connection: {event:?}"));
                }
                continue;
            };
            let judged = match event {
                Event::Data { offset, segment, .. } => stream.receive(now, offset, segment, tools),
                Event::Early { .. } => stream.receive_early(tools),
                Event::PeerClosed { .. } => stream.peer_closed(now, tools),
                Event::Closed { reason, .. } => stream.closed(now, reason, tools),
                _ => {
                    stream.needs_turn = true;
                    stream.told_of_room |= matches!(event, Event::Writable { .. });
                    Ok(())
                }
            };
            judged.map_err(|error| format!("connection {}, side {}: {error}", stream.dial, stream.side))?;
        }
        Ok(())
    }

    /// A connection is established: now MPA begins.
    fn open(
        &mut self,
        now: Instant,
        conn: ConnId,
        scenario: &Scenario,
        model: &Shared,
    ) -> Result<(), String> {
        let info = self.tools.stack.info(conn).ok_or("established, and nothing is known of it")?;
        let side = usize::from(info.listener.is_some());
        let port = if side == 0 { info.remote.port() } else { info.local.port() };
        let dial = usize::from(port.wrapping_sub(FIRST_PORT));
        let plan = scenario.dials.get(dial).ok_or("established on another port")?;
        let id = StreamId(dial as u64 * 2 + side as u64 + 1);
        let config = endpoint_config(plan, side);
        let private_data = self.private_data[dial].clone();
        let endpoint = if side == 0 {
            let request = ConnectRequest {
                private_data: &private_data[0],
                revision: plan.revision,
                ird: plan.sides[0].ird,
                ord: plan.sides[0].ord,
                rtr: plan.sides[0].rtr,
            };
            Endpoint::initiator(config, id, &request, since_start(now), &mut self.tools.stats)
                .map_err(|error| error.to_string())?
        } else {
            Endpoint::responder(config, id, since_start(now))
        };
        let random = self.random.fork();
        let mut stream =
            Stream::new((dial, side), plan, conn, id, endpoint, model.clone(), random, private_data);
        stream.hostile = scenario.flips.is_some_and(|flips| flips.startup);
        stream.rejects = plan.fate == Fate::Rejected;
        stream.log = scenario.log.then(Vec::new);
        stream.offer(&mut self.tools)?;
        for _ in 0..2 {
            stream.offer_ticket(&mut self.tools)?;
        }
        if self.streams[dial].replace(stream).is_some() {
            return Err(format!("connection {dial} is established twice"));
        }
        Ok(())
    }

    /// Time limits of the streams, what their owners do, and their turns to send.
    pub(crate) fn run_streams(&mut self, now: Instant, shared: Stag) -> Result<(), String> {
        let Self { streams, tools, .. } = self;
        for stream in streams.iter_mut().flatten() {
            let judged = stream.handle_timeout(now, tools).and_then(|()| {
                stream.read(now, tools);
                stream.post_buffers(now, tools)?;
                stream.needs_turn |= stream.post_work(now, tools, shared)?;
                if stream.needs_turn && stream.outcome.tcp.is_none() {
                    stream.pump(now, tools)
                } else {
                    Ok(())
                }
            });
            judged.map_err(|error| format!("connection {}, side {}: {error}", stream.dial, stream.side))?;
        }
        Ok(())
    }

    /// When it has something to do though no frame arrives.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let streams = self.streams.iter().flatten().filter_map(Stream::deadline);
        streams.chain(self.tools.stack.next_deadline()).min()
    }

    /// What must hold after every turn.
    pub(crate) fn check(&self) -> Result<(), String> {
        let stats = self.tools.stack.stats();
        if stats.interface.rx_frames != stats.interface.rx_delivered + stats.drops.total() {
            return Err(format!("frames received are not delivered plus dropped: {stats:?}"));
        }
        if self.tools.pool.total() != self.tools.pool.capacity() {
            return Err(format!("a buffer was lost: {:?}", self.tools.pool));
        }
        Ok(())
    }

    /// What must hold when nothing is left to happen: all that was taken is given back.
    pub(crate) fn check_end(&mut self) -> Result<(), String> {
        let stats = self.tools.stack.stats();
        if stats.connections != 0 || stats.time_wait_now != 0 {
            return Err(format!("host {} still has connections: {stats:?}", self.index));
        }
        self.sending.clear();
        if self.tools.pool.live() != 0 {
            return Err(format!("host {} still holds buffers: {:?}", self.index, self.tools.pool));
        }
        let shared = self.tools.stags.revoke(self.shared);
        if !shared || !self.tools.stags.is_empty() {
            return Err(format!("host {} has {} STags left", self.index, self.tools.stags.len()));
        }
        if self.tools.memory.inner.faults() != 0 {
            return Err(format!("host {}: accesses outside of regions", self.index));
        }
        let last = own_region(self.streams.len()).saturating_sub(1);
        (0..=last).try_for_each(|region| self.tools.memory.check(region))
    }

    pub(crate) fn outcome(&self, dial: usize) -> Option<&Outcome> {
        self.streams[dial].as_ref().map(|stream| &stream.outcome)
    }
}

/// Adds a region of random octets, and its image to the model.
fn add_region(
    memory: &mut VecMemory,
    host: usize,
    model: &Shared,
    len: u64,
    random: &mut Random,
) -> RegionId {
    let mut random = random.fork();
    let octets: Vec<u8> = (0..len).map(|_| random.byte()).collect();
    let region = Region { now: octets.clone(), then: octets.clone(), touches: Vec::new() };
    model.borrow_mut().regions[host].push(region);
    memory.add(octets).unwrap_or(RegionId(u32::MAX))
}
