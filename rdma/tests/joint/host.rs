//! A host: a TCP stack, the RDMA state of its worker, and the owners of its streams.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rdma::verbs::{AddressBase, MemoryRegion, RecvWr};
use rdma::{
    Access, ConnectRequest, Endpoint, EndpointConfig, GrantedRange, NegotiationConfig, PdId, RdmaStats,
    RegionId, Scope, Stag, StagTable, StreamId, VecMemory,
};
use tcp_stack::testutil::{HeapBuf, HeapPool, Random};
use tcp_stack::{
    ConnId, ConnOptions, Duration, Event, Instant, Ipv4Cidr, Ipv6Cidr, Keepalive, ListenOptions, MacAddr,
    RxChecksum, RxFrame, Stack, StackConfig,
};

use crate::engine::{Engine, Local};
use crate::model::{Buffer, Place, Region, Shared, Watched};
use crate::scenario::{ConnPlan, Ending, Scenario};
use crate::stream::{GUARD, Outcome, Stream, Tools, open_region, own_region, since_start, work_area};
use crate::verbs;
use crate::work::{pieces, sges};

/// Maximum number of frames that a host receives in one poll iteration, as a poll-mode worker does.
pub(crate) const BURST: usize = 32;
/// First TCP port of the connections.
const FIRST_PORT: u16 = 7400;

#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) index: usize,
    pub(crate) tools: Tools,
    pub(crate) inbox: VecDeque<Vec<u8>>,
    /// Frames that the port holds until they are sent, in that order.
    pub(crate) sending: VecDeque<HeapBuf>,
    /// Streams by connection.
    pub(crate) streams: Vec<Option<Stream>>,
    opening: Vec<Option<ConnId>>,
    /// STag of this host's word that all connections share.
    pub(crate) shared: Stag,
    pub(crate) turn_at: Option<Instant>,
    random: Random,
    options: ConnOptions,
    /// Private data of each connection's request and reply.
    private_data: Vec<[Vec<u8>; 2]>,
    /// The shared receive queue's buffers: memory, length of each in bytes, and elements of their lists.
    shared_slots: Option<(MemoryRegion, u64, usize)>,
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

/// Returns the settings of an endpoint: the only place where a drawn feature becomes configuration.
fn endpoint_config(connection: &ConnPlan, side: usize, pd: PdId) -> EndpointConfig {
    let plan = &connection.sides[side];
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
        pd: Some(pd),
        send_queue: plan.send_queue,
        receive_queue: plan.receive_queue,
        out_of_order: plan.out_of_order,
        last_out_of_order: plan.last_out_of_order,
        poke_after: connection.poke_after.filter(|_| side == 0),
        terminate_timeout: Duration::from_secs(200),
        ..default
    }
}

/// Returns the region of the shared receive queue's buffers.
fn shared_region(connections: usize) -> u32 {
    own_region(connections)
}

/// Returns the settings of the connections of a host's queue pairs.
fn device_config(scenario: &Scenario, host: usize) -> EndpointConfig {
    let first = |side| scenario.queue_pairs(host).find(move |(_, of)| side == *of);
    let responder = first(1).map(|(connection, _)| endpoint_config(connection, 1, PdId(0)));
    let initiator = first(0).map(|(connection, _)| endpoint_config(connection, 0, PdId(0)));
    let Some(mut config) = initiator.or(responder) else { return EndpointConfig::default() };
    // An initiator's options are passed to `connect`.
    config.mpa.rtr = responder.unwrap_or(config).mpa.rtr;
    (config.mpa.ird_max, config.mpa.ord_max) = (64, 64);
    config
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
        let options = ConnOptions { keepalive, out_of_order: true, ..ConnOptions::default() };
        let stack = Stack::new(stack_config(index, scenario), random.seed());
        let mut memory = Watched::new(index, model.clone());
        for connection in &scenario.connections {
            let side = usize::from(connection.from != index);
            let slots =
                u64::from(connection.sides[side].receive_queue) * u64::from(connection.sides[side].slot_len);
            for len in
                [u64::from(connection.window) + 2 * GUARD, work_area(&connection.sides[side]) + slots + GUARD]
            {
                add_region(&mut memory.inner, index, model, len, random);
            }
        }
        let region = add_region(&mut memory.inner, index, model, 8, &mut Random::new(0));
        memory.overwrite(region.0, 0, &[0; 8]);
        let mut stags = StagTable::new(256, random.seed());
        let mut device = verbs::new_device(device_config(scenario, index));
        let shared = verbs::Shared::new(&mut device, plan, scenario.connections.len())?;
        let range = GrantedRange { region, offset: 0, bytes: 8, base_to: 0 };
        let word = stags.grant_range(range, Access::REMOTE_ATOMIC, Scope::Pd(shared.pd));
        let room = usize::from(plan.mtu) + 64;
        let pool = HeapPool::new(plan.buffers, plan.buffers / 16, room);
        let stats = RdmaStats::default();
        let mut host = Self {
            index,
            tools: Tools { stack, pool, stags, memory, stats, device, verbs: shared },
            inbox: VecDeque::new(),
            sending: VecDeque::new(),
            streams: scenario.connections.iter().map(|_| None).collect(),
            opening: vec![None; scenario.connections.len()],
            shared: word.map_err(|error| error.to_string())?,
            turn_at: None,
            random: random.fork(),
            options,
            private_data: private_data.to_vec(),
            shared_slots: None,
        };
        host.share_buffers(scenario, model, random)?;
        for (at, connection) in
            scenario.connections.iter().enumerate().filter(|(_, connection)| connection.from != index)
        {
            host.listen(at, connection)?;
        }
        Ok(host)
    }

    fn listen(&mut self, index: usize, connection: &ConnPlan) -> Result<(), String> {
        let port = FIRST_PORT + u16::try_from(index).unwrap_or(0);
        let listen = ListenOptions { conn: self.options, ..ListenOptions::default() };
        self.tools.stack.listen(port, listen).map_err(|error| error.to_string())?;
        if connection.sides[1].verbs {
            verbs::listen(
                &mut self.tools,
                index,
                connection,
                SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port),
            )?;
        }
        Ok(())
    }

    /// Creates the buffers of the shared receive queue.
    fn share_buffers(
        &mut self,
        scenario: &Scenario,
        model: &Shared,
        random: &mut Random,
    ) -> Result<(), String> {
        let Some(places) = scenario.hosts[self.index].srq else { return Ok(()) };
        let (host, len) = (self.index, u64::from(scenario.shared_slot_len(self.index)));
        let Tools { memory, device, verbs, stags, .. } = &mut self.tools;
        let bytes = len * u64::from(places) + GUARD;
        let region = add_region(&mut memory.inner, host, model, bytes, random);
        let access = Access::LOCAL_READ | Access::LOCAL_WRITE;
        let made = device.reg_mr(verbs.pd, (region, 0, bytes), AddressBase::Zero, access, stags);
        let sges = scenario
            .queue_pairs(host)
            .map(|(connection, side)| connection.sides[side].sges)
            .max()
            .unwrap_or(1);
        self.shared_slots = Some((made.map_err(|error| error.to_string())?, len, sges));
        model.borrow_mut().shared[host].free = (0..places.into()).collect();
        Ok(())
    }

    /// Posts the free buffers of the shared receive queue.
    fn feed(&mut self, model: &Shared) -> Result<(), String> {
        let Some((memory, len, most)) = self.shared_slots else { return Ok(()) };
        let Tools { device, verbs, .. } = &mut self.tools;
        let Some(srq) = verbs.srq else { return Ok(()) };
        let place = Place { host: self.index, region: shared_region(self.streams.len()) };
        let mut model = model.borrow_mut();
        while let Some(slot) = model.shared[self.index].free.pop() {
            let range = slot * len..(slot + 1) * len;
            let local = Local { pieces: pieces(&range, most, &mut self.random), inline: None };
            let (id, list) = (model.next_id(), sges(&local, &memory));
            let posted = device.post_srq_recv(srq, &RecvWr { wr_id: id, sg_list: &list });
            posted.map_err(|error| format!("a shared buffer is refused: {error}"))?;
            model.note_sink(place, id, &local.pieces, None);
            model.share(self.index, Buffer { id, place, slot, message: None });
            if self.random.below(8) == 0 {
                device.modify_srq(srq, 1).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    /// Opens a connection.
    pub(crate) fn connection(
        &mut self,
        now: Instant,
        connection: usize,
        plan: &ConnPlan,
    ) -> Result<(), String> {
        let number = u8::try_from(2 - self.index).unwrap_or(1);
        let address: IpAddr = if plan.ipv6 {
            Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, number.into()).into()
        } else {
            Ipv4Addr::new(10, 77, 0, number).into()
        };
        let port = FIRST_PORT + u16::try_from(connection).unwrap_or(0);
        let conn = self.tools.stack.connect(now, SocketAddr::new(address, port), self.options);
        self.opening[connection] = Some(conn.map_err(|error| error.to_string())?);
        Ok(())
    }

    /// Receives a burst of frames from the port.
    pub(crate) fn take_frames(&mut self, now: Instant) {
        let Self { inbox, tools, .. } = self;
        let frames = inbox.drain(..inbox.len().min(BURST)).filter_map(|frame| {
            // Without a free buffer the frame is lost, as at a port.
            let buf = tools.pool.copy(&frame)?;
            Some(RxFrame { buf, checksum: RxChecksum::Unknown })
        });
        let burst: Vec<_> = frames.collect();
        tools.stack.handle_frames(now, burst);
    }

    /// Handles the events of TCP.
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
            | Event::OutOfOrder { conn }
            | Event::Reclaim { conn }
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
            let Self { streams, tools, opening, .. } = self;
            let stream = streams.iter_mut().flatten().find(|stream| stream.conn == conn);
            let Some(stream) = stream else {
                // It was never established.
                if !matches!(event, Event::Closed { .. }) || !opening.contains(&Some(conn)) {
                    return Err(format!("an event of no connection: {event:?}"));
                }
                continue;
            };
            let judged = match event {
                Event::Data { offset, segment, .. } => stream.receive(now, offset, segment, tools),
                Event::OutOfOrder { .. } => stream.receive_out_of_order(tools),
                Event::PeerClosed { .. } => stream.peer_closed(now, tools),
                Event::Closed { reason, .. } => stream.closed(now, reason, tools),
                _ => {
                    stream.needs_turn = true;
                    stream.room_notified |= matches!(event, Event::Writable { .. });
                    Ok(())
                }
            };
            judged.map_err(|error| {
                format!("connection {}, side {}: {error}", stream.connection, stream.side)
            })?;
        }
        Ok(())
    }

    /// Starts MPA on an established connection.
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
        let connection = usize::from(port.wrapping_sub(FIRST_PORT));
        let plan = scenario.connections.get(connection).ok_or("established on another port")?;
        let id = StreamId(connection as u64 * 2 + side as u64 + 1);
        let request = self.private_data[connection][0].clone();
        let (engine, objects) = if plan.sides[side].verbs {
            let (open, own) = (RegionId(open_region(connection)), RegionId(own_region(connection)));
            let regions = (open, own, u64::from(plan.window));
            let conn =
                verbs::Established { now, id, local: info.local, remote: info.remote, request: &request };
            let (engine, own) = verbs::open(&mut self.tools, (connection, side), plan, regions, &conn)?;
            (engine, Some(own))
        } else {
            (self.endpoint(now, id, (plan, side), &request)?, None)
        };
        let private_data = self.private_data[connection].clone();
        let random = self.random.fork();
        let mut stream =
            Stream::new((connection, side), plan, conn, id, engine, model.clone(), random, private_data);
        stream.objects = objects;
        stream.hostile = scenario.flips.is_some_and(|flips| flips.startup);
        stream.rejects = plan.ending == Ending::Rejected;
        stream.log = scenario.log.then(Vec::new);
        stream.offer(&mut self.tools)?;
        let side_plan = &plan.sides[side];
        let offer = &mut model.borrow_mut().offers[connection][side];
        offer.share = side_plan.srq.then_some(side_plan.receive_queue.into());
        offer.slot_len = match self.shared_slots {
            Some((_, len, _)) if side_plan.srq => len as usize,
            _ => side_plan.slot_len as usize,
        };
        if self.streams[connection].replace(stream).is_some() {
            return Err(format!("connection {connection} is established twice"));
        }
        Ok(())
    }

    /// Creates the endpoint of a stream without a queue pair.
    fn endpoint(
        &mut self,
        now: Instant,
        id: StreamId,
        (plan, side): (&ConnPlan, usize),
        private_data: &[u8],
    ) -> Result<Engine, String> {
        let config = endpoint_config(plan, side, self.tools.verbs.pd);
        let made = if side == 0 {
            let request = ConnectRequest {
                private_data,
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
        Ok(Engine::Endpoint(Box::new(made)))
    }

    /// Runs the streams' timers, their owners, and their output.
    pub(crate) fn run_streams(&mut self, now: Instant, shared: Stag, model: &Shared) -> Result<(), String> {
        self.feed(model)?;
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
            judged.map_err(|error| {
                format!("connection {}, side {}: {error}", stream.connection, stream.side)
            })?;
        }
        Ok(())
    }

    /// Returns the time of the next work without an incoming frame.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let streams = self.streams.iter().flatten().filter_map(|stream| stream.deadline(&self.tools));
        streams.chain(self.tools.stack.next_deadline()).min()
    }

    /// Checks the invariants after each poll iteration.
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

    /// Checks that everything was released when no event is left.
    pub(crate) fn check_end(&mut self) -> Result<(), String> {
        let stats = self.tools.stack.stats();
        if stats.connections != 0 || stats.time_wait_now != 0 {
            return Err(format!("host {} still has connections: {stats:?}", self.index));
        }
        self.sending.clear();
        if self.tools.pool.live() != 0 {
            return Err(format!("host {} still holds buffers: {:?}", self.index, self.tools.pool));
        }
        let Tools { device, verbs, stags, .. } = &mut self.tools;
        if let Some((memory, ..)) = self.shared_slots {
            device.dereg_mr(memory.id, stags).map_err(|error| error.to_string())?;
        }
        verbs.end(device)?;
        let shared = self.tools.stags.revoke(self.shared);
        if !shared || !self.tools.stags.is_empty() {
            return Err(format!("host {} has {} STags left", self.index, self.tools.stags.len()));
        }
        if self.tools.memory.inner.faults() != 0 {
            return Err(format!("host {}: accesses outside of regions", self.index));
        }
        let last = shared_region(self.streams.len()) - u32::from(self.shared_slots.is_none());
        (0..=last).try_for_each(|region| self.tools.memory.check(region))
    }

    pub(crate) fn outcome(&self, connection: usize) -> Option<&Outcome> {
        self.streams[connection].as_ref().map(|stream| &stream.outcome)
    }
}

/// Adds a region of random bytes, and its copy in the model.
fn add_region(
    memory: &mut VecMemory,
    host: usize,
    model: &Shared,
    len: u64,
    random: &mut Random,
) -> RegionId {
    let mut random = random.fork();
    let bytes: Vec<u8> = (0..len).map(|_| random.byte()).collect();
    let region = Region { now: bytes.clone(), then: bytes.clone(), touches: Vec::new() };
    model.borrow_mut().regions[host].push(region);
    memory.add(bytes).unwrap_or(RegionId(u32::MAX))
}
