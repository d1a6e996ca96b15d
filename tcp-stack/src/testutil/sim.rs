//! A network of stacks in virtual time: one seed, one run.
//!
//! ```text
//!   app ─ stack ─ port ══ link ══ port ─ stack ─ app
//!                  │                │
//!                watch            watch          every frame, every event and every step is judged
//! ```
//!
//! Frames travel as bytes; a port holds the buffer of a frame that it sends until the link has taken it.
//! After every step: what came is a prefix of what was sent; no end sends beyond its peer's window or
//! takes back its own; data that waits has a timer that waits with it; each frame received was delivered
//! or its drop counted.

use super::app::{App, Outcome};
use super::attack::blind_segment;
use super::link::{Link, LinkCounts};
use super::scenario::{Report, Scenario};
use super::trace::{describe, digest};
use super::watch::{Seen, Watch};
use super::{HeapBuf, HeapPool, Random};
use crate::buf::{Buf, RxChecksum, RxFrame};
use crate::time::{Duration, Instant};
use crate::wire::EthernetHeader;
use crate::{ConnId, Event, ListenOptions, Stack, State};
use alloc::collections::{BTreeMap, BinaryHeap, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::net::{IpAddr, SocketAddr};

/// Ports of the dials: this and up.
const FIRST_PORT: u16 = 7000;
/// Frames that a host takes in one turn, as a poll-mode worker does.
const BURST: usize = 32;

#[derive(Debug)]
enum Happening {
    /// A frame reaches a host.
    Arrival { host: usize, frame: Vec<u8> },
    /// A host's worker looks at its port and its timers.
    Turn { host: usize },
    /// The port lets go of a frame that it has sent.
    Sent { host: usize },
    /// A connection is opened.
    Dial(usize),
    /// Somebody sends a segment of his own.
    Attack,
    /// What is left is aborted.
    AbortAll,
}

#[derive(Debug)]
struct Timed {
    at: Instant,
    /// Breaks ties in the order of creation.
    order: u64,
    what: Happening,
}

impl PartialEq for Timed {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Timed {}

impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timed {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

#[derive(Debug)]
struct Host {
    stack: Stack<HeapBuf>,
    pool: HeapPool,
    inbox: VecDeque<Vec<u8>>,
    /// Frames that the port holds until they are sent, in that order.
    sending: VecDeque<HeapBuf>,
    apps: BTreeMap<(u32, u32), (usize, usize, App)>,
    /// The turn that is planned; others are stale.
    turn_at: Option<Instant>,
    /// Frames for which the pool had no buffer.
    missed: u64,
    /// Causes for which a pure acknowledgement may be sent, and those sent.
    ack_causes: u64,
    pure_acks: u64,
}

/// A running network.
#[derive(Debug)]
pub struct Simulation {
    now: Instant,
    random: Random,
    scenario: Scenario,
    hosts: Vec<Host>,
    /// Row: from; column: to.
    links: Vec<Vec<Link>>,
    happenings: BinaryHeap<Reverse<Timed>>,
    order: u64,
    steps: u64,
    trace: u64,
    watch: Watch,
    outcomes: Vec<[Outcome; 2]>,
    log: VecDeque<String>,
    log_max: usize,
}

impl Simulation {
    /// A network; all that happens in it depends on the scenario and the seed alone.
    pub fn new(scenario: &Scenario, seed: u64) -> Result<Self, String> {
        let mut random = Random::new(seed);
        let mut hosts = Vec::new();
        for config in &scenario.hosts {
            let stack = Stack::new(config.clone(), random.seed());
            hosts.push(Host::new(stack, scenario.buffers, usize::from(config.mtu)));
        }
        let count = hosts.len();
        let back = scenario.link_back.unwrap_or(scenario.link);
        let mut row = |from: usize| -> Vec<Link> {
            (0..count)
                .map(|to| Link::new(if from > to { back } else { scenario.link }, random.fork()))
                .collect()
        };
        let links = (0..count).map(&mut row).collect();
        let mut simulation = Self {
            now: Instant::ZERO,
            random,
            scenario: scenario.clone(),
            hosts,
            links,
            happenings: BinaryHeap::new(),
            order: 0,
            steps: 0,
            trace: 0,
            watch: Watch::default(),
            outcomes: alloc::vec![[Outcome::default(); 2]; scenario.dials.len()],
            log: VecDeque::new(),
            log_max: 0,
        };
        simulation.prepare()?;
        Ok(simulation)
    }

    /// Keeps the last `lines` lines of what happens, for [`Self::log`].
    pub const fn keep_log(&mut self, lines: usize) {
        self.log_max = lines;
    }

    /// What happened last, one line each.
    pub fn log(&self) -> impl Iterator<Item = &str> {
        self.log.iter().map(String::as_str)
    }

    fn note(&mut self, line: String) {
        if self.log.len() >= self.log_max {
            self.log.pop_front();
        }
        self.log.push_back(line);
    }

    fn prepare(&mut self) -> Result<(), String> {
        for (index, dial) in self.scenario.dials.clone().iter().enumerate() {
            let host = self.hosts.get_mut(dial.to).ok_or("a dial to no host")?;
            let options = ListenOptions { conn: self.scenario.conn, ..ListenOptions::default() };
            let listened = host.stack.listen(port(index), options);
            listened.map_err(|error| format!("{error}"))?;
            self.plan(Instant::ZERO + dial.at, Happening::Dial(index));
        }
        for host in 0..self.hosts.len() {
            self.plan_turn(host, Instant::ZERO);
        }
        if let Some(pause) = self.scenario.attack {
            self.plan(Instant::ZERO + pause, Happening::Attack);
        }
        if let Some(at) = self.scenario.abort_at {
            self.plan(Instant::ZERO + at, Happening::AbortAll);
        }
        Ok(())
    }

    fn plan(&mut self, at: Instant, what: Happening) {
        self.order = self.order.wrapping_add(1);
        self.happenings.push(Reverse(Timed { at, order: self.order, what }));
    }

    /// Plans a host's next turn, unless one is planned before that.
    fn plan_turn(&mut self, host: usize, at: Instant) {
        let Some(planned) = self.hosts.get_mut(host).map(|host| &mut host.turn_at) else { return };
        if planned.is_none_or(|planned| at < planned) {
            *planned = Some(at);
            self.plan(at, Happening::Turn { host });
        }
    }

    /// Runs until nothing is left to happen. An error says what went wrong, and when.
    pub fn run(&mut self) -> Result<Report, String> {
        match self.run_on() {
            Ok(()) => Ok(self.report()),
            Err(error) => Err(format!("at {} µs, step {}: {error}", self.now.as_micros(), self.steps)),
        }
    }

    fn run_on(&mut self) -> Result<(), String> {
        while let Some(Reverse(Timed { at, what, .. })) = self.happenings.pop() {
            self.now = at;
            self.steps = self.steps.saturating_add(1);
            if self.steps > self.scenario.steps_max {
                return Err(format!("no end: {:?}", self.outcomes));
            }
            match what {
                Happening::Arrival { host, frame } => self.arrive(host, frame),
                Happening::Sent { host } => {
                    let host = self.hosts.get_mut(host).ok_or("no such host")?;
                    host.sending.pop_front();
                }
                Happening::Dial(index) => self.dial(index)?,
                Happening::Attack => self.attack(),
                Happening::AbortAll => self.abort_all(),
                Happening::Turn { host } => {
                    let planned = self.hosts.get_mut(host).map(|host| &mut host.turn_at);
                    if let Some(planned) = planned.filter(|planned| **planned == Some(at)) {
                        *planned = None;
                        self.turn(host)?;
                    }
                }
            }
        }
        self.check_end()
    }

    fn arrive(&mut self, index: usize, frame: Vec<u8>) {
        let elsewhere = u64::try_from(self.scenario.poll_interval.as_nanos()).unwrap_or(0);
        let at = self.now + Duration::from_nanos(self.random.between(0, elsewhere));
        if let Some(host) = self.hosts.get_mut(index) {
            host.inbox.push_back(frame);
        }
        self.plan_turn(index, at);
    }

    fn abort_all(&mut self) {
        for index in 0..self.hosts.len() {
            if let Some(host) = self.hosts.get_mut(index) {
                for (_, _, app) in host.apps.values() {
                    host.stack.abort(self.now, app.conn());
                }
            }
            self.plan_turn(index, self.now);
        }
    }

    /// Aims a blind segment at one end of an established connection, as long as there is one. (One that is
    /// being opened must take a SYN for a simultaneous open, and one that is gone for a new one.)
    fn attack(&mut self) {
        let Some(pause) = self.scenario.attack.filter(|_| self.has_work()) else { return };
        self.plan(self.now + pause, Happening::Attack);
        let mut targets = Vec::new();
        for (index, host) in self.hosts.iter().enumerate() {
            let established = host.apps.values().filter(|(_, _, app)| app.outcome().established.is_some());
            targets.extend(established.map(|(_, _, app)| (index, app.conn())));
        }
        let Some(&(index, conn)) = targets.get(self.random.index(targets.len())) else { return };
        let info = self.hosts.get(index).and_then(|host| host.stack.info(conn));
        let mac = self.scenario.hosts.get(index).map(|host| host.mac);
        if let (Some(info), Some(mac)) = (info.filter(|info| info.state == State::Established), mac) {
            let frame = blind_segment(&mut self.random, mac, info.remote, info.local);
            self.arrive(index, frame);
        }
    }

    /// Whether a connection is to come, or has not ended.
    fn has_work(&self) -> bool {
        self.outcomes.iter().any(|[opener, listener]| {
            opener.closed.is_none() || (listener.established.is_some() && listener.closed.is_none())
        })
    }

    fn dial(&mut self, index: usize) -> Result<(), String> {
        let dial = *self.scenario.dials.get(index).ok_or("no such dial")?;
        let to = self.scenario.hosts.get(dial.to).ok_or("no such host")?;
        let address: Option<IpAddr> = if dial.ipv6 {
            to.ipv6.map(|cidr| cidr.address().into())
        } else {
            to.ipv4.map(|cidr| cidr.address().into())
        };
        let remote = SocketAddr::new(address.ok_or("a host without an address")?, port(index));
        let host = self.hosts.get_mut(dial.from).ok_or("no such host")?;
        let conn = host.stack.connect(self.now, remote, self.scenario.conn);
        let conn = conn.map_err(|error| format!("{error}"))?;
        let app = App::new(dial.opener, conn, keys(index, 0), self.random.fork());
        host.apps.insert(key(conn), (index, 0, app));
        self.plan_turn(dial.from, self.now);
        Ok(())
    }

    /// One turn of a host's worker.
    fn turn(&mut self, index: usize) -> Result<(), String> {
        let now = self.now;
        let host = self.hosts.get_mut(index).ok_or("no such host")?;
        host.take_frames(now);
        self.handle_events(index)?;
        let host = self.hosts.get_mut(index).ok_or("no such host")?;
        if host.stack.next_deadline().is_some_and(|deadline| deadline <= now) {
            // A timer may let an acknowledgement go out for each connection.
            host.ack_causes = host.ack_causes.saturating_add(u64::from(host.stack.stats().connections) + 1);
        }
        host.stack.handle_timeouts(now);
        self.handle_events(index)?;
        self.run_apps(index);
        self.handle_events(index)?;
        self.transmit(index)?;
        self.handle_events(index)?;
        self.check(index)?;
        let host = self.hosts.get(index).ok_or("no such host")?;
        let apps = host.apps.values().filter_map(|(_, _, app)| app.deadline());
        let next = apps.chain(host.stack.next_deadline()).min();
        let more = !host.inbox.is_empty();
        if more || host.stack.has_output() {
            // Output that has no buffer or no neighbor waits; look again soon.
            let pause = if more { Duration::ZERO } else { Duration::from_micros(100) };
            self.plan_turn(index, now + pause);
        }
        if let Some(next) = next {
            self.plan_turn(index, next.max(now + Duration::from_nanos(1)));
        }
        Ok(())
    }

    fn handle_events(&mut self, index: usize) -> Result<(), String> {
        let now = self.now;
        loop {
            let event = self.hosts.get_mut(index).and_then(|host| host.stack.poll_event());
            let Some(event) = event else { return Ok(()) };
            if self.log_max > 0 {
                self.note(format!("{:>9} h{index}   {event:?}", now.as_micros()));
            }
            let (conn, event) = match event {
                Event::Accepted { conn, .. } => {
                    self.accept(index, conn)?;
                    continue;
                }
                Event::Connected { conn }
                | Event::Urgent { conn, .. }
                | Event::Data { conn, .. }
                | Event::PeerClosed { conn }
                | Event::Writable { conn }
                | Event::EmssChanged { conn, .. }
                | Event::Closed { conn, .. } => (conn, event),
            };
            let host = self.hosts.get_mut(index).ok_or("no such host")?;
            let (dial, side, app) = host.apps.get_mut(&key(conn)).ok_or("an event of no connection")?;
            let (dial, side) = (*dial, *side);
            let judged = match event {
                Event::Connected { .. } => {
                    app.on_established(now);
                    Ok(())
                }
                Event::Data { offset, segment, .. } => {
                    app.on_data(now, offset, segment.bytes(), self.scenario.hostile)
                }
                Event::PeerClosed { .. } => app.on_peer_closed(),
                Event::Writable { .. } => {
                    app.on_writable();
                    Ok(())
                }
                Event::Closed { reason, .. } => app.on_closed(now, reason),
                Event::Accepted { .. } | Event::Urgent { .. } | Event::EmssChanged { .. } => Ok(()),
            };
            judged.map_err(|error| format!("dial {dial}, side {side}: {error}"))?;
            self.settle(index, conn, dial, side)?;
        }
    }

    fn accept(&mut self, index: usize, conn: ConnId) -> Result<(), String> {
        let host = self.hosts.get_mut(index).ok_or("no such host")?;
        let info = host.stack.info(conn).ok_or("accepted, and nothing is known of it")?;
        let dial = usize::from(info.local.port().wrapping_sub(FIRST_PORT));
        let plan = self.scenario.dials.get(dial).ok_or("accepted on another port")?.listener;
        let mut app = App::new(plan, conn, keys(dial, 1), self.random.fork());
        app.on_established(self.now);
        host.apps.insert(key(conn), (dial, 1, app));
        Ok(())
    }

    /// Notes how a side stands, and judges both.
    fn settle(&mut self, index: usize, conn: ConnId, dial: usize, side: usize) -> Result<(), String> {
        let host = self.hosts.get_mut(index).ok_or("no such host")?;
        let Some((_, _, app)) = host.apps.get(&key(conn)) else { return Ok(()) };
        let outcome = *app.outcome();
        if outcome.closed.is_some() {
            host.apps.remove(&key(conn));
        }
        let pair = self.outcomes.get_mut(dial).ok_or("no such dial")?;
        let [opener, listener] = pair;
        *(if side == 0 { &mut *opener } else { &mut *listener }) = outcome;
        if !self.scenario.hostile && (opener.received > listener.sent || listener.received > opener.sent) {
            return Err(format!("dial {dial}: more came than was sent: {pair:?}"));
        }
        Ok(())
    }

    fn run_apps(&mut self, index: usize) {
        let now = self.now;
        let Some(host) = self.hosts.get_mut(index) else { return };
        let Host { apps, stack, pool, ack_causes, .. } = host;
        for (dial, side, app) in apps.values_mut() {
            let reads = app.turn(now, stack, pool);
            *ack_causes = ack_causes.saturating_add(reads);
            if let Some(outcome) = self.outcomes.get_mut(*dial).and_then(|pair| pair.get_mut(*side)) {
                *outcome = *app.outcome();
            }
        }
    }

    fn transmit(&mut self, index: usize) -> Result<(), String> {
        loop {
            let host = self.hosts.get_mut(index).ok_or("no such host")?;
            let mut frames = Vec::new();
            let Host { stack, pool, .. } = host;
            let sent = stack.poll_transmit(self.now, pool, &mut |frame| frames.push(frame.buf), BURST);
            if sent != frames.len() || sent > BURST {
                return Err(format!("{} frames sent, {sent} reported", frames.len()));
            }
            for buf in frames {
                self.put_on_wire(index, buf)?;
            }
            if sent < BURST {
                return Ok(());
            }
        }
    }

    fn put_on_wire(&mut self, from: usize, buf: HeapBuf) -> Result<(), String> {
        let now = self.now;
        let bytes = buf.bytes();
        self.trace = digest(self.trace, now, from, bytes);
        let seen = Seen::parse(bytes)?;
        if self.log_max > 0 {
            let text = seen.as_ref().map_or_else(|| "other".into(), describe);
            self.note(format!("{:>9} h{from} > {text}", now.as_micros()));
        }
        let mtu = self.scenario.hosts.get(from).map_or(0, |host| usize::from(host.mtu));
        let host = self.hosts.get_mut(from).ok_or("no such host")?;
        if let Some(seen) = &seen {
            if !self.scenario.hostile {
                self.watch.see(seen)?;
            }
            host.pure_acks = host.pure_acks.saturating_add(u64::from(seen.is_pure_ack()));
        }
        let (ethernet, packet) = EthernetHeader::parse(bytes).map_err(|error| format!("{error:?}"))?;
        if packet.len() > mtu {
            return Err(format!("a packet of {} bytes, the MTU being {mtu}", packet.len()));
        }
        let mut arrivals = Vec::new();
        let mut sent_at = now;
        for to in (0..self.hosts.len()).filter(|to| *to != from) {
            let mac = self.scenario.hosts.get(to).map(|host| host.mac);
            if !ethernet.dst.is_group() && mac != Some(ethernet.dst) {
                continue;
            }
            let link = self.links.get_mut(from).and_then(|row| row.get_mut(to)).ok_or("no such link")?;
            link.send(now, bytes, &mut |at, frame| arrivals.push((at, to, frame)));
            arrivals.extend(link.too_big(bytes).map(|error| (now + Duration::from_micros(50), from, error)));
            sent_at = sent_at.max(link.busy_until(now));
        }
        for (at, to, frame) in arrivals {
            self.plan(at, Happening::Arrival { host: to, frame });
        }
        if let Some(host) = self.hosts.get_mut(from) {
            host.sending.push_back(buf);
        }
        self.plan(sent_at, Happening::Sent { host: from });
        Ok(())
    }

    /// What must hold after every turn.
    fn check(&self, index: usize) -> Result<(), String> {
        let host = self.hosts.get(index).ok_or("no such host")?;
        let stats = host.stack.stats();
        let interface = &stats.interface;
        if interface.rx_frames != interface.rx_delivered.wrapping_add(stats.drops.total()) {
            return Err(format!("frames received are not delivered plus dropped: {stats:?}"));
        }
        if host.pool.total() != host.pool.capacity() {
            return Err(format!("a buffer was lost: {:?}", host.pool));
        }
        if host.pure_acks > host.ack_causes {
            let (acks, causes) = (host.pure_acks, host.ack_causes);
            return Err(format!("{acks} acknowledgements for {causes} causes"));
        }
        let waits = host.stack.next_deadline().is_some() || host.stack.has_output();
        let config = self.scenario.hosts.get(index).ok_or("no such host")?;
        for (dial, side, app) in host.apps.values() {
            let Some(info) = host.stack.info(app.conn()) else { continue };
            let wrong = if (info.send_queue_octets > 0 || info.in_flight > 0) && !waits {
                "data waits, and no timer does"
            } else if u64::from(info.unread_octets) != app.unread() {
                "another count of octets not let go of"
            } else if info.held_octets > config.held_bytes_max
                || info.held_segments > config.held_segments_max
            {
                "more is held behind gaps than may be"
            } else if info.send_queue_octets > config.send_buffer_bytes {
                "more is queued than may be"
            } else {
                continue;
            };
            return Err(format!("dial {dial}, side {side}: {wrong}: {info:?}"));
        }
        Ok(())
    }

    /// What must hold when nothing is left to happen.
    fn check_end(&self) -> Result<(), String> {
        for (index, pair) in self.outcomes.iter().enumerate() {
            let [opener, listener] = pair;
            let listener_ended = listener.established.is_none() || listener.closed.is_some();
            if opener.closed.is_none() || !listener_ended {
                return Err(format!("dial {index} never ends: {pair:?}"));
            }
        }
        for (index, host) in self.hosts.iter().enumerate() {
            if host.pool.live() != 0 {
                return Err(format!("host {index} still holds buffers: {:?}", host.pool));
            }
            let stats = host.stack.stats();
            if stats.connections != 0 || stats.time_wait_now != 0 {
                return Err(format!("host {index} still has connections: {stats:?}"));
            }
        }
        Ok(())
    }

    fn report(&self) -> Report {
        let mut links = LinkCounts::default();
        for link in self.links.iter().flatten() {
            links.add(&link.counts());
        }
        Report {
            outcomes: self.outcomes.clone(),
            stats: self.hosts.iter().map(|host| host.stack.stats()).collect(),
            links,
            trace: self.trace,
            end: self.now,
            steps: self.steps,
        }
    }
}

impl Host {
    fn new(stack: Stack<HeapBuf>, buffers: usize, mtu: usize) -> Self {
        Self {
            stack,
            pool: HeapPool::new(buffers, buffers / 16, mtu.saturating_add(64)),
            inbox: VecDeque::new(),
            sending: VecDeque::new(),
            apps: BTreeMap::new(),
            turn_at: None,
            missed: 0,
            ack_causes: 0,
            pure_acks: 0,
        }
    }

    /// Hands a burst of frames to the stack.
    fn take_frames(&mut self, now: Instant) {
        let mut burst = Vec::new();
        for frame in self.inbox.drain(..self.inbox.len().min(BURST)) {
            match self.pool.copy(&frame) {
                Some(buf) => burst.push(RxFrame { buf, checksum: RxChecksum::Unknown }),
                None => self.missed = self.missed.saturating_add(1),
            }
        }
        self.ack_causes = self.ack_causes.saturating_add(u64::try_from(burst.len()).unwrap_or(0));
        self.stack.handle_frames(now, burst);
    }
}

fn key(conn: ConnId) -> (u32, u32) {
    (conn.index(), conn.generation())
}

fn port(dial: usize) -> u16 {
    FIRST_PORT.wrapping_add(u16::try_from(dial).unwrap_or(u16::MAX))
}

/// Names of the streams that a side of a dial sends and receives.
fn keys(dial: usize, side: u64) -> (u64, u64) {
    let base = u64::try_from(dial).unwrap_or(0).wrapping_mul(2).wrapping_add(0x5eed);
    let key = |side: u64| base.wrapping_add(side).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (key(side), key(1_u64.wrapping_sub(side)))
}
