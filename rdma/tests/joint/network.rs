//! Two hosts and the links between them, in virtual time. Only frames, timers and the owners' plans cause events: a
//! forgotten deadline leaves work undone when no event is left.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use rdma::RdmaStats;
use tcp_stack::testutil::{HeapBuf, Link, LinkConfig, LinkCounts, Random, Watch, WireSegment};
use tcp_stack::{Buf, BufPool, Duration, Instant};

use crate::hazard::{Resegmenter, flip};
use crate::host::{BURST, Host};
use crate::model::{Model, Shared};
use crate::scenario::{ConnPlan, Cut, Ending, PathMtuDrop, Scenario};
use crate::stream::{Outcome, own_region, since_start};

/// Number of steps after which a run has failed.
const STEPS_MAX: u64 = 500_000;
/// Time after which open connections are aborted, if bits may flip: an FPDU whose length was changed may wait forever.
const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SimEvent {
    /// A frame reaches a host.
    Arrival(usize, Vec<u8>),
    /// A host's worker runs one poll iteration: port, timers, streams.
    Poll(usize),
    /// The port releases a frame that it has sent.
    Sent(usize),
    /// A connection is opened.
    Connect(usize),
    /// A connection is cut.
    Cut(usize),
    /// Open connections are aborted.
    AbortAll,
}

/// Results of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    /// Outcomes by connection and side; `None` if TCP was never established.
    pub(crate) outcomes: Vec<[Option<Outcome>; 2]>,
    pub(crate) stats: RdmaStats,
    pub(crate) links: LinkCounts,
    pub(crate) flips: u64,
    pub(crate) too_big: u64,
    /// Number of bytes placed, bytes fetched, and words changed.
    pub(crate) accesses: [u64; 3],
    /// Number of buffers taken from shared receive queues, and of their limit events.
    pub(crate) shared: [u64; 2],
    /// Number of connections with markers in both directions, and in one.
    pub(crate) marked: [u64; 2],
    pub(crate) end: Instant,
    /// Hash of all frames on the wire.
    pub(crate) digest: u64,
}

#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) scenario: Scenario,
    now: Instant,
    hosts: [Host; 2],
    links: [Link; 2],
    /// Time from which the path MTU is smaller, and the link with that MTU.
    path: Option<(Duration, Link)>,
    model: Shared,
    watch: Watch,
    /// Events by time, then in the order of planning.
    sim_events: BinaryHeap<Reverse<(Instant, u64, SimEvent)>>,
    order: u64,
    steps: u64,
    random: Random,
    digest: u64,
    /// True for connections whose end, or whose cut, is planned.
    end_planned: Vec<bool>,
    /// Remembered segments by host, and a random generator of their own.
    resegment: [Resegmenter; 2],
    resegment_random: Random,
    flips: u64,
    too_big: u64,
    log: VecDeque<String>,
    log_max: usize,
}

impl Network {
    /// Creates a network; all events depend on the seed alone. The last `log_max` lines are kept.
    pub(crate) fn new(seed: u64, log_max: usize) -> Result<Self, String> {
        let mut scenario = Scenario::draw(seed);
        scenario.log = log_max > 0;
        let mut random = Random::new(seed);
        let model = Shared::new(RefCell::new(Model::default()));
        model.borrow_mut().offers = scenario.connections.iter().map(|_| Default::default()).collect();
        let mut bytes = |len| (0..len).map(|_| random.byte()).collect::<Vec<u8>>();
        let private_data: Vec<[Vec<u8>; 2]> = scenario
            .connections
            .iter()
            .map(|connection| [bytes(connection.private_data), bytes(connection.private_data / 2)])
            .collect();
        let mut host = |index| Host::new(index, &scenario, &model, &private_data, &mut random);
        let hosts = [host(0)?, host(1)?];
        let links = scenario.links.map(|link| Link::new(link, random.fork()));
        let path = scenario.path_mtu_drop.map(|path_mtu_drop| {
            let PathMtuDrop { since, mtu, icmp } = path_mtu_drop;
            let path = LinkConfig { rate: 0, mtu, reports_too_big: icmp, ..LinkConfig::CLEAN };
            (since, Link::new(path, random.fork()))
        });
        let mut network = Self {
            now: Instant::ZERO,
            hosts,
            links,
            path,
            model,
            watch: Watch::default(),
            sim_events: BinaryHeap::new(),
            order: 0,
            steps: 0,
            random,
            digest: 0,
            end_planned: vec![false; scenario.connections.len()],
            resegment: Default::default(),
            resegment_random: Random::new(seed ^ 0x5e_c001),
            flips: 0,
            too_big: 0,
            log: VecDeque::new(),
            log_max,
            scenario,
        };
        for index in 0..network.scenario.connections.len() {
            let at = network.scenario.connections[index].at;
            network.plan(Instant::ZERO + at, SimEvent::Connect(index));
        }
        if network.scenario.flips.is_some() {
            network.plan(Instant::ZERO + PATIENCE, SimEvent::AbortAll);
        }
        Ok(network)
    }

    /// Returns the last events, one line each.
    pub(crate) fn log(&self) -> String {
        self.log.iter().map(|line| format!("{line}\n")).collect()
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        if self.log_max == 0 {
            return;
        }
        if self.log.len() >= self.log_max {
            self.log.pop_front();
        }
        self.log.push_back(format!("{:>10} {}", since_start(self.now).as_micros(), text()));
    }

    fn plan(&mut self, at: Instant, what: SimEvent) {
        self.order += 1;
        self.sim_events.push(Reverse((at, self.order, what)));
    }

    /// Plans a host's next poll iteration, unless an earlier one is planned.
    fn plan_poll(&mut self, host: usize, at: Instant) {
        let planned = &mut self.hosts[host].turn_at;
        if planned.is_none_or(|planned| at < planned) {
            *planned = Some(at);
            self.plan(at, SimEvent::Poll(host));
        }
    }

    /// Runs until no event is left. An error states the failure and its time.
    pub(crate) fn run(&mut self) -> Result<Report, String> {
        let ran = self.run_on();
        let at = since_start(self.now).as_micros();
        ran.map_err(|error| format!("at {at} µs, step {}: {error}", self.steps))
    }

    fn run_on(&mut self) -> Result<Report, String> {
        while let Some(Reverse((at, _, what))) = self.sim_events.pop() {
            self.now = at;
            self.steps += 1;
            if self.steps > STEPS_MAX {
                return Err(format!("no end: {:?}", self.outcomes()));
            }
            match what {
                SimEvent::Arrival(host, frame) => self.arrive(host, frame),
                SimEvent::Sent(host) => drop(self.hosts[host].sending.pop_front()),
                SimEvent::Connect(index) => self.connection(index)?,
                SimEvent::Cut(index) => self.cut(index)?,
                SimEvent::AbortAll => self.abort_all(),
                SimEvent::Poll(host) => {
                    if self.hosts[host].turn_at == Some(at) {
                        self.hosts[host].turn_at = None;
                        self.poll(host)?;
                    }
                }
            }
        }
        self.end()
    }

    fn arrive(&mut self, host: usize, frame: Vec<u8>) {
        let elsewhere = u64::try_from(self.scenario.poll_interval.as_nanos()).unwrap_or(0);
        let at = self.now + Duration::from_nanos(self.random.between(0, elsewhere));
        self.hosts[host].inbox.push_back(frame);
        self.plan_poll(host, at);
    }

    fn connection(&mut self, index: usize) -> Result<(), String> {
        let plan = self.scenario.connections[index];
        self.hosts[plan.from].connection(self.now, index, &plan)?;
        self.plan_poll(plan.from, self.now);
        Ok(())
    }

    fn abort_all(&mut self) {
        for host in 0..2 {
            let Host { streams, tools, .. } = &mut self.hosts[host];
            for stream in streams.iter().flatten() {
                tools.stack.abort(self.now, stream.conn);
            }
            self.plan_poll(host, self.now);
        }
    }

    fn cut(&mut self, index: usize) -> Result<(), String> {
        let plan = self.scenario.connections[index];
        let Ending::Cut { side, how, .. } = plan.ending else { return Ok(()) };
        let (now, host) = (self.now, plan.host(side));
        self.note(|| format!("h{host} c{index} {how:?}"));
        let Host { streams, tools, .. } = &mut self.hosts[host];
        let Some(stream) = streams[index].as_mut().filter(|stream| !stream.is_over()) else { return Ok(()) };
        match how {
            Cut::Abort => stream.abort(now, tools),
            // The owner leaves without a disconnect: TCP sends the queued data, then FIN.
            Cut::Fin => stream.leave(now, tools),
            Cut::Disconnect => stream.engine.disconnect(now, tools),
            Cut::Fault => stream.engine.fail(now, tools),
        }
        stream.needs_turn = true;
        stream.collect(now, tools)?;
        self.plan_poll(host, now);
        Ok(())
    }

    /// Runs one poll iteration of a host's worker.
    fn poll(&mut self, index: usize) -> Result<(), String> {
        let (now, shared) = (self.now, self.hosts[1 - index].shared);
        let Self { hosts, scenario, model, .. } = self;
        let host = &mut hosts[index];
        host.take_frames(now);
        host.handle_events(now, scenario, model)?;
        host.tools.stack.handle_timeouts(now);
        host.handle_events(now, scenario, model)?;
        host.run_streams(now, shared, model)?;
        host.handle_events(now, scenario, model)?;
        self.transmit(index)?;
        self.log_notices(index);
        self.check_host(index)?;
        self.finish(index);
        let host = &self.hosts[index];
        let streams_have =
            host.streams.iter().flatten().any(|stream| stream.needs_turn && stream.outcome.tcp.is_none());
        let (more, output, next) =
            (!host.inbox.is_empty() || streams_have, host.tools.stack.has_output(), host.deadline());
        if more || output {
            // Output without a buffer or a neighbor waits; try again soon.
            let pause = if more { Duration::from_micros(2) } else { Duration::from_micros(100) };
            self.plan_poll(index, now + pause);
        }
        if let Some(next) = next {
            self.plan_poll(index, next.max(now + Duration::from_nanos(1)));
        }
        Ok(())
    }

    fn transmit(&mut self, index: usize) -> Result<(), String> {
        loop {
            let mut frames = Vec::new();
            let tools = &mut self.hosts[index].tools;
            let sent = tools.stack.poll_transmit(
                self.now,
                &mut tools.pool,
                &mut |frame| frames.push(frame.buf),
                BURST,
            );
            for buf in frames {
                self.put_on_wire(index, buf)?;
            }
            if sent < BURST {
                return Ok(());
            }
        }
    }

    fn put_on_wire(&mut self, from: usize, buf: HeapBuf) -> Result<(), String> {
        let (now, bytes) = (self.now, buf.bytes());
        let mut hasher = DefaultHasher::new();
        (self.digest, now.as_nanos(), from, bytes).hash(&mut hasher);
        self.digest = hasher.finish();
        let seen = WireSegment::parse(bytes)?;
        let mut frame = bytes.to_vec();
        if let Some(seen) = &seen {
            if self.scenario.flips.is_none() {
                self.watch.check(seen)?;
            }
            let text = || {
                format!(
                    "h{from} > {:?} seq {} len {} ack {} win {}",
                    seen.header.flags, seen.header.seq, seen.payload_len, seen.header.ack, seen.header.window
                )
            };
            self.note(text);
            if let Some(flips) = self.scenario.flips
                && self.random.chance(flips.chance)
                && flip(&mut frame, seen, flips.startup, &mut self.random)
            {
                self.flips += 1;
                self.note(|| format!("h{from} ^ a bit of the payload is flipped"));
            }
        }
        self.carry(from, &frame);
        if let (Some(seen), Some(chance)) = (&seen, self.scenario.resegment) {
            self.resegment[from].remember(bytes, seen);
            if seen.payload_len > 0 && self.resegment_random.chance(chance) {
                let len_max = self.hosts.iter().map(|host| host.tools.pool.data_room()).min().unwrap_or(0);
                if let Some(again) = self.resegment[from].again(len_max, &mut self.resegment_random) {
                    self.note(|| format!("h{from} & some of it once more, in {} bytes", again.len()));
                    self.carry(from, &again);
                }
            }
        }
        let sent_at = self.links[from].busy_until(now);
        self.hosts[from].sending.push_back(buf);
        self.plan(sent_at, SimEvent::Sent(from));
        Ok(())
    }

    /// Puts a frame on the link to the other host.
    fn carry(&mut self, from: usize, frame: &[u8]) {
        if self.passes(from, frame) {
            let mut arrivals = Vec::new();
            self.links[from].send(self.now, frame, &mut |at, frame| arrivals.push((at, frame)));
            for (at, frame) in arrivals {
                self.plan(at, SimEvent::Arrival(1 - from, frame));
            }
        }
    }

    /// Returns true if a frame fits the path MTU; its sender may receive an ICMP error otherwise.
    fn passes(&mut self, from: usize, frame: &[u8]) -> bool {
        let now = self.now;
        let Some((since, path)) = &mut self.path else { return true };
        let mut passes = since_start(now) < *since;
        path.send(now, frame, &mut |_, _| passes = true);
        if !passes {
            self.too_big += 1;
            if let Some(answer) = path.too_big(frame) {
                self.plan(now + Duration::from_micros(100), SimEvent::Arrival(from, answer));
            }
        }
        passes
    }

    /// Logs the events of a host's streams.
    fn log_notices(&mut self, index: usize) {
        let mut lines = Vec::new();
        for stream in self.hosts[index].streams.iter_mut().flatten() {
            let log = stream.log.as_mut().map(core::mem::take).unwrap_or_default();
            lines.extend(log.into_iter().map(|text| format!("h{index} c{} {text}", stream.connection)));
        }
        for line in lines {
            self.note(|| line);
        }
    }

    /// Checks the memory of connections with completions, and the invariants of the host.
    fn check_host(&mut self, index: usize) -> Result<(), String> {
        if let Some(error) = self.model.borrow().errors.first() {
            return Err(error.clone());
        }
        self.hosts[index].check()?;
        for connection in 0..self.scenario.connections.len() {
            let stream = self.hosts[index].streams[connection].as_mut();
            if stream.is_some_and(|stream| core::mem::take(&mut stream.check_memory)) {
                for host in &self.hosts {
                    let own = own_region(connection);
                    host.tools.memory.check(own - 1)?;
                    host.tools.memory.check(own)?;
                }
            }
        }
        Ok(())
    }

    /// Ends connections whose work is done, and plans the cuts that are due.
    fn finish(&mut self, index: usize) {
        for connection in 0..self.scenario.connections.len() {
            if self.end_planned[connection] {
                continue;
            }
            let plan = self.scenario.connections[connection];
            if let Ending::Cut { side, after, delay, .. } = plan.ending {
                let posted =
                    self.hosts[plan.host(side)].outcome(connection).map_or(0, |outcome| outcome.work[0]);
                if posted >= after {
                    self.end_planned[connection] = true;
                    self.plan(self.now + delay, SimEvent::Cut(connection));
                    continue;
                }
            }
            if !self.is_done(connection) {
                continue;
            }
            self.end_planned[connection] = true;
            for side in (0..2).filter(|side| plan.sides[*side].closes) {
                let host = plan.host(side);
                let Host { streams, tools, .. } = &mut self.hosts[host];
                if let Some(stream) = &mut streams[connection] {
                    stream.engine.disconnect(self.now, tools);
                    stream.needs_turn = true;
                }
                if host != index {
                    self.plan_poll(host, self.now);
                }
            }
        }
    }

    /// Returns true if both sides of a connection have done all their work, and it has arrived: a side that ends its
    /// stream receives nothing more.
    fn is_done(&self, connection: usize) -> bool {
        let model = self.model.borrow();
        self.hosts.iter().all(|host| {
            host.streams[connection].as_ref().is_some_and(|stream| {
                let buffers = &model.offers[connection][stream.side].buffers;
                let open = &model.regions[host.index][own_region(connection) as usize - 1];
                stream.outcome.established
                    && stream.outcome.work[0] >= stream.quota()
                    && stream.posted.is_empty()
                    && buffers.iter().all(|buffer| buffer.message.is_none())
                    && open.touches.is_empty()
            })
        })
    }

    pub(crate) fn outcomes(&self) -> Vec<[Option<Outcome>; 2]> {
        let connections = (0..).zip(&self.scenario.connections);
        connections
            .map(|(at, plan)| [0, 1].map(|side| self.hosts[plan.host(side)].outcome(at).cloned()))
            .collect()
    }

    /// Checks the final state when no event is left.
    fn end(&mut self) -> Result<Report, String> {
        let outcomes = self.outcomes();
        for (connection, pair) in outcomes.iter().enumerate() {
            if pair.iter().flatten().any(|outcome| outcome.close.is_none() || outcome.tcp.is_none()) {
                let drops = self.hosts.each_ref().map(|host| host.tools.stack.stats().drops);
                return Err(format!(
                    "connection {connection} never ends: {pair:?}, and the drops are {drops:?}"
                ));
            }
        }
        for host in &mut self.hosts {
            host.check_end()?;
        }
        let mut stats = RdmaStats::default();
        let mut links = LinkCounts::default();
        for (host, link) in self.hosts.iter().zip(&self.links) {
            stats.add(&host.tools.stats);
            links.add(&link.counts());
        }
        let Self { flips, too_big, now: end, digest, .. } = *self;
        let model = self.model.borrow();
        let accesses = model.accesses;
        let taken = model.shared.iter().map(|shared| shared.taken).sum();
        let shared = [taken, self.hosts.iter().map(|host| host.tools.verbs.limits_reached).sum()];
        let marked = [2, 1].map(|count| {
            let marked =
                |connection: &&ConnPlan| connection.sides.iter().filter(|side| side.markers).count() == count;
            self.scenario.connections.iter().filter(marked).count() as u64
        });
        drop(model);
        self.check_connections(&outcomes)?;
        Ok(Report { outcomes, stats, links, flips, too_big, accesses, shared, marked, end, digest })
    }

    fn check_connections(&self, outcomes: &[[Option<Outcome>; 2]]) -> Result<(), String> {
        for (connection, pair) in outcomes.iter().enumerate() {
            let terms = self
                .hosts
                .each_ref()
                .map(|host| host.streams[connection].as_ref().and_then(|stream| stream.terms));
            let judged =
                crate::verdict::judge(&self.scenario, &self.scenario.connections[connection], pair, terms);
            judged.map_err(|error| format!("connection {connection}: {error}: {pair:?}"))?;
            let is_whole = pair.iter().all(|outcome| outcome.as_ref().is_some_and(Outcome::is_whole));
            if is_whole && self.scenario.connections[connection].ending == Ending::Clean {
                let open = own_region(connection) as usize - 1;
                let model = self.model.borrow();
                if model.regions.iter().any(|regions| regions[open].now != regions[open].then) {
                    return Err(format!(
                        "connection {connection}: all work succeeded, and some of it is not done"
                    ));
                }
            }
        }
        Ok(())
    }
}
