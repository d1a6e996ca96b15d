//! A discrete-event simulation of stacks on a network in virtual time; a seed determines the whole run.
//!
//! ```text
//!   app ─ stack ─ port ══ link ══ port ─ stack ─ app
//!                  │                │
//!                watch            watch          every frame, event and poll is checked
//! ```
//!
//! Frames travel as bytes; a port holds the buffer of a frame until the link has sent it. [`check`] has the invariants
//! after each poll, [`watch`](super::watch) those of each frame.

mod apps;
mod check;
mod host;
mod translation;
mod wire;

use super::Random;
use super::app::{App, Outcome};
use super::attack::blind_segment;
use super::link::{Link, LinkCounts};
use super::scenario::{ConnPlan, Report, Scenario};
use super::watch::Watch;
use crate::time::{Duration, Instant};
use crate::{ConnId, ListenOptions, Stack, State};
use alloc::collections::{BTreeMap, BinaryHeap, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use check::Progress;
use core::cmp::Reverse;
use core::net::{IpAddr, SocketAddr};
use host::Host;
use translation::Translation;

/// First port that a listener uses: connection n has port `FIRST_PORT + n`.
const FIRST_PORT: u16 = 7000;
/// Frames that a host receives per poll, as a poll-mode worker does.
const BURST: usize = 32;

#[derive(Debug)]
enum SimEvent {
    /// A frame reaches a host.
    Arrival { host: usize, frame: Vec<u8> },
    /// A host's worker polls its port and its timers.
    Poll { host: usize },
    /// The port frees the buffers of a frame that it has sent.
    Sent { host: usize },
    /// The connection of this number is opened.
    Connect(usize),
    /// The blind attacker sends a segment.
    Attack,
    /// The remaining connections are aborted.
    AbortAll,
}

#[derive(Debug)]
struct Timed {
    at: Instant,
    /// Serial number: events of the same time run in the order of creation.
    order: u64,
    event: SimEvent,
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

/// A network in virtual time.
#[derive(Debug)]
pub struct Simulation {
    /// Time of the first event.
    start: Instant,
    now: Instant,
    random: Random,
    scenario: Scenario,
    hosts: Vec<Host>,
    /// Row: from; column: to.
    links: Vec<Vec<Link>>,
    events: BinaryHeap<Reverse<Timed>>,
    order: u64,
    steps: u64,
    trace: u64,
    watch: Watch,
    translations: Vec<Translation>,
    progress: Progress,
    outcomes: Vec<[Outcome; 2]>,
    /// Number of the connection that was opened last from an address to a listener's port.
    openers: BTreeMap<(SocketAddr, u16), usize>,
    log: VecDeque<String>,
    log_max: usize,
}

impl Simulation {
    /// Returns a network whose course depends on the scenario and the seed alone.
    pub fn new(scenario: &Scenario, seed: u64) -> Result<Self, String> {
        let mut random = Random::new(seed);
        let (mut hosts, mut seeds) = (Vec::new(), Vec::new());
        for _ in &scenario.hosts {
            seeds.push(random.seed());
        }
        let start =
            Instant::ZERO + if scenario.wraps { wait_for_wrap(scenario, &seeds)? } else { Duration::ZERO };
        let pools = [scenario.buffers; 2].into_iter().chain(core::iter::repeat(scenario.further_buffers));
        for ((config, seed), buffers) in scenario.hosts.iter().zip(seeds).zip(pools) {
            let stack = Stack::new(config.clone(), seed);
            hosts.push(Host::new(stack, buffers, usize::from(config.mtu)));
        }
        let count = hosts.len();
        let back = scenario.link_back.unwrap_or(scenario.link);
        let mut row = |from: usize| -> Vec<Link> {
            (0..count)
                .map(|to| Link::new(if from > to { back } else { scenario.link }, random.fork()))
                .map(|link| link.starting_at(start))
                .collect()
        };
        let links = (0..count).map(&mut row).collect();
        let mut simulation = Self {
            start,
            now: start,
            random,
            scenario: scenario.clone(),
            hosts,
            links,
            events: BinaryHeap::new(),
            order: 0,
            steps: 0,
            trace: 0,
            watch: Watch::default(),
            translations: Vec::new(),
            progress: Progress::new(scenario),
            outcomes: alloc::vec![[Outcome::default(); 2]; scenario.conns.len()],
            openers: BTreeMap::new(),
            log: VecDeque::new(),
            log_max: 0,
        };
        simulation.prepare()?;
        Ok(simulation)
    }

    /// Keeps the last `lines` lines of the log, for [`Self::log`].
    pub const fn keep_log(&mut self, lines: usize) {
        self.log_max = lines;
    }

    /// Iterates over the last lines of the log, oldest first.
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
        for (index, plan) in self.scenario.conns.clone().iter().enumerate() {
            let host = self.hosts.get_mut(plan.to).ok_or("a connection to no host")?;
            if !plan.simultaneous && plan.shares_listener_of.is_none() {
                let options = ListenOptions {
                    conn: self.scenario.conn_options,
                    connections_max: self.scenario.listener_connections_max,
                    ..ListenOptions::default()
                };
                let listened = host.stack.listen(port(index), options);
                listened.map_err(|error| format!("{error}"))?;
            }
            self.schedule(self.start + plan.at, SimEvent::Connect(index));
        }
        for host in 0..self.hosts.len() {
            self.schedule_poll(host, self.start);
        }
        if let Some(pause) = self.scenario.attack {
            self.schedule(self.start + pause, SimEvent::Attack);
        }
        if let Some(at) = self.scenario.abort_at {
            self.schedule(self.start + at, SimEvent::AbortAll);
        }
        Ok(())
    }

    fn schedule(&mut self, at: Instant, event: SimEvent) {
        self.order = self.order.wrapping_add(1);
        self.events.push(Reverse(Timed { at, order: self.order, event }));
    }

    /// Schedules a host's next poll, unless an earlier one is scheduled.
    fn schedule_poll(&mut self, host: usize, at: Instant) {
        let Some(planned) = self.hosts.get_mut(host).map(|host| &mut host.poll_at) else { return };
        if planned.is_none_or(|planned| at < planned) {
            *planned = Some(at);
            self.schedule(at, SimEvent::Poll { host });
        }
    }

    /// Runs until no event is left. The error names the broken invariant and its time.
    pub fn run(&mut self) -> Result<Report, String> {
        match self.run_on() {
            Ok(()) => Ok(self.report()),
            Err(error) => Err(format!("at {} µs, step {}: {error}", self.now.as_micros(), self.steps)),
        }
    }

    fn run_on(&mut self) -> Result<(), String> {
        while let Some(Reverse(Timed { at, event, .. })) = self.events.pop() {
            self.now = at;
            self.steps = self.steps.saturating_add(1);
            if self.steps > self.scenario.steps_max {
                return Err(format!("no end: {:?}", self.outcomes));
            }
            match event {
                SimEvent::Arrival { host, frame } => {
                    let frame = self.translate_in(host, frame);
                    self.arrive(host, frame);
                }
                SimEvent::Sent { host } => {
                    let host = self.hosts.get_mut(host).ok_or("no such host")?;
                    host.sending.pop_front();
                }
                SimEvent::Connect(index) => self.connect(index)?,
                SimEvent::Attack => self.attack(),
                SimEvent::AbortAll => self.abort_all(),
                SimEvent::Poll { host } => {
                    let planned = self.hosts.get_mut(host).map(|host| &mut host.poll_at);
                    if let Some(planned) = planned.filter(|planned| **planned == Some(at)) {
                        *planned = None;
                        self.poll_host(host)?;
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
        self.schedule_poll(index, at);
    }

    fn abort_all(&mut self) {
        for index in 0..self.hosts.len() {
            if let Some(host) = self.hosts.get_mut(index) {
                for (_, _, app) in host.apps.values() {
                    host.stack.abort(self.now, app.conn());
                }
            }
            self.schedule_poll(index, self.now);
        }
    }

    /// Sends a blind segment to one end of an established connection, if there is one. (A connection that is being
    /// opened must take a SYN for a simultaneous open, and a closed one for a new connection.)
    fn attack(&mut self) {
        let Some(pause) = self.scenario.attack.filter(|_| self.has_work()) else { return };
        self.schedule(self.now + pause, SimEvent::Attack);
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
            self.progress.allow(2);
            self.arrive(index, frame);
        }
    }

    /// Returns true if a connection has not been opened, or has not ended.
    fn has_work(&self) -> bool {
        self.outcomes.iter().any(|[opener, listener]| {
            opener.closed.is_none() || (listener.established.is_some() && listener.closed.is_none())
        })
    }

    fn connect(&mut self, index: usize) -> Result<(), String> {
        let plan = *self.scenario.conns.get(index).ok_or("no such connection")?;
        let listener = port(plan.shares_listener_of.unwrap_or(index));
        let remote = SocketAddr::new(self.address(plan.to, plan.ipv6)?, listener);
        let local = self.open(index, 0, plan, remote)?;
        self.openers.insert((local, listener), index);
        if plan.simultaneous {
            let remote = SocketAddr::new(local.ip(), port(index));
            let back = self.open(index, 1, plan, remote)?;
            self.translations.push(Translation::new(plan.to, port(index), local, back));
        }
        Ok(())
    }

    /// Opens one side's connection; returns its local address.
    fn open(
        &mut self,
        index: usize,
        side: u8,
        plan: ConnPlan,
        remote: SocketAddr,
    ) -> Result<SocketAddr, String> {
        let (at, app_plan) = if side == 0 { (plan.from, plan.opener) } else { (plan.to, plan.listener) };
        let host = self.hosts.get_mut(at).ok_or("no such host")?;
        let conn = host.stack.connect(self.now, remote, self.scenario.conn_options);
        let conn = conn.map_err(|error| format!("{error}"))?;
        let local = host.stack.info(conn).ok_or("opened, and nothing is known of it")?.local;
        let app = App::new(app_plan, conn, keys(index, side.into()), self.random.fork());
        host.apps.insert(key(conn), (index, side.into(), app));
        self.schedule_poll(at, self.now);
        Ok(local)
    }

    fn address(&self, host: usize, ipv6: bool) -> Result<IpAddr, String> {
        let host = self.scenario.hosts.get(host).ok_or("no such host")?;
        let address = if ipv6 {
            host.ipv6.map(|cidr| cidr.address().into())
        } else {
            host.ipv4.map(|cidr| cidr.address().into())
        };
        address.ok_or_else(|| "a host without an address".into())
    }

    /// Polls one host as its worker does: receives, runs timers and applications, transmits.
    fn poll_host(&mut self, index: usize) -> Result<(), String> {
        let now = self.now;
        let host = self.hosts.get_mut(index).ok_or("no such host")?;
        host.polls = host.polls.wrapping_add(1);
        host.take_frames(now);
        self.handle_events(index)?;
        let host = self.hosts.get_mut(index).ok_or("no such host")?;
        if host.stack.next_deadline().is_some_and(|deadline| deadline <= now) {
            // A timer may let an acknowledgment go out for each connection.
            let connections = u64::from(host.stack.stats().connections);
            host.ack_causes = host.ack_causes.saturating_add(connections + 1);
            self.progress.allow(8 * (connections + 1));
        }
        let host = self.hosts.get_mut(index).ok_or("no such host")?;
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
            // Output waits for a buffer or for a neighbor: poll again soon.
            let pause = if more { Duration::ZERO } else { Duration::from_micros(100) };
            self.schedule_poll(index, now + pause);
        }
        if let Some(next) = next {
            self.schedule_poll(index, next.max(now + Duration::from_nanos(1)));
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
            start: self.start,
            end: self.now,
            steps: self.steps,
        }
    }
}

fn key(conn: ConnId) -> (u32, u32) {
    (conn.index(), conn.generation())
}

fn port(number: usize) -> u16 {
    FIRST_PORT.wrapping_add(u16::try_from(number).unwrap_or(u16::MAX))
}

/// Returns the keys of the byte streams that a side of a connection sends and receives.
fn keys(number: usize, side: u64) -> (u64, u64) {
    let base = u64::try_from(number).unwrap_or(0).wrapping_mul(2).wrapping_add(0x5eed);
    let key = |side: u64| base.wrapping_add(side).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (key(side), key(1_u64.wrapping_sub(side)))
}

/// Returns the start time at which the first connection's initial sequence number is a few bytes before zero: the clock
/// of RFC 6528 advances every 4 µs.
fn wait_for_wrap(scenario: &Scenario, seeds: &[[u8; 32]]) -> Result<Duration, String> {
    let plan = scenario.conns.first().ok_or("no connection")?;
    let (config, seed) = scenario.hosts.iter().zip(seeds).nth(plan.from).ok_or("no such host")?;
    let to = scenario.hosts.get(plan.to).ok_or("no such host")?;
    let v4 = to.ipv4.map(|cidr| cidr.address().into()).filter(|_| !plan.ipv6);
    let v6 = to.ipv6.map(|cidr| cidr.address().into()).filter(|_| plan.ipv6);
    let remote = SocketAddr::new(v4.or(v6).ok_or("a host without an address")?, port(0));
    let mut stack: Stack<super::HeapBuf> = Stack::new(config.clone(), *seed);
    let conn = stack.connect(Instant::ZERO + plan.at, remote, scenario.conn_options);
    let conn = conn.map_err(|error| format!("{error}"))?;
    let (iss, _) = stack.initial_sequences(conn).ok_or("opened, and nothing is known of it")?;
    let [.., low, _] = seed;
    let before = u32::from(*low).wrapping_mul(64);
    Ok(Duration::from_micros(u64::from(0_u32.wrapping_sub(iss.get()).wrapping_sub(before)) * 4))
}
