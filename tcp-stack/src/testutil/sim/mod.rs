//! A network of stacks in virtual time: one seed, one run.
//!
//! ```text
//!   app ─ stack ─ port ══ link ══ port ─ stack ─ app
//!                  │                │
//!                watch            watch          every frame, every event and every step is judged
//! ```
//!
//! Frames travel as bytes; a port holds the buffer of a frame that it sends until the link has taken it.
//! What must hold after every step is in [`check`]; what must hold of every frame, in
//! [`watch`](super::watch).

mod apps;
mod check;
mod crossing;
mod host;
mod wire;

use super::Random;
use super::app::{App, Outcome};
use super::attack::blind_segment;
use super::link::{Link, LinkCounts};
use super::scenario::{Dial, Report, Scenario};
use super::watch::Watch;
use crate::time::{Duration, Instant};
use crate::{ConnId, ListenOptions, Stack, State};
use alloc::collections::{BinaryHeap, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use check::Quiet;
use core::cmp::Reverse;
use core::net::{IpAddr, SocketAddr};
use crossing::Crossing;
use host::Host;

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

/// A running network.
#[derive(Debug)]
pub struct Simulation {
    /// When it began.
    start: Instant,
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
    crossings: Vec<Crossing>,
    quiet: Quiet,
    outcomes: Vec<[Outcome; 2]>,
    log: VecDeque<String>,
    log_max: usize,
}

impl Simulation {
    /// A network; all that happens in it depends on the scenario and the seed alone.
    pub fn new(scenario: &Scenario, seed: u64) -> Result<Self, String> {
        let mut random = Random::new(seed);
        let (mut hosts, mut seeds) = (Vec::new(), Vec::new());
        for _ in &scenario.hosts {
            seeds.push(random.seed());
        }
        let start =
            Instant::ZERO + if scenario.wraps { wait_for_wrap(scenario, &seeds)? } else { Duration::ZERO };
        for (config, seed) in scenario.hosts.iter().zip(seeds) {
            let stack = Stack::new(config.clone(), seed);
            hosts.push(Host::new(stack, scenario.buffers, usize::from(config.mtu)));
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
            happenings: BinaryHeap::new(),
            order: 0,
            steps: 0,
            trace: 0,
            watch: Watch::default(),
            crossings: Vec::new(),
            quiet: Quiet::new(scenario),
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
            if !dial.simultaneous {
                let options = ListenOptions { conn: self.scenario.conn, ..ListenOptions::default() };
                let listened = host.stack.listen(port(index), options);
                listened.map_err(|error| format!("{error}"))?;
            }
            self.plan(self.start + dial.at, Happening::Dial(index));
        }
        for host in 0..self.hosts.len() {
            self.plan_turn(host, self.start);
        }
        if let Some(pause) = self.scenario.attack {
            self.plan(self.start + pause, Happening::Attack);
        }
        if let Some(at) = self.scenario.abort_at {
            self.plan(self.start + at, Happening::AbortAll);
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
                Happening::Arrival { host, frame } => {
                    let frame = self.uncross(host, frame);
                    self.arrive(host, frame);
                }
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
            self.quiet.allow(2);
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
        let remote = SocketAddr::new(self.address(dial.to, dial.ipv6)?, port(index));
        let local = self.open(index, 0, dial, remote)?;
        if dial.simultaneous {
            let remote = SocketAddr::new(local.ip(), port(index));
            let back = self.open(index, 1, dial, remote)?;
            self.crossings.push(Crossing::new(dial.to, port(index), local, back));
        }
        Ok(())
    }

    /// Opens one side's connection; returns its own end.
    fn open(&mut self, index: usize, side: u8, dial: Dial, remote: SocketAddr) -> Result<SocketAddr, String> {
        let (at, plan) = if side == 0 { (dial.from, dial.opener) } else { (dial.to, dial.listener) };
        let host = self.hosts.get_mut(at).ok_or("no such host")?;
        let conn = host.stack.connect(self.now, remote, self.scenario.conn);
        let conn = conn.map_err(|error| format!("{error}"))?;
        let local = host.stack.info(conn).ok_or("opened, and nothing is known of it")?.local;
        let app = App::new(plan, conn, keys(index, side.into()), self.random.fork());
        host.apps.insert(key(conn), (index, side.into(), app));
        self.plan_turn(at, self.now);
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

    /// One turn of a host's worker.
    fn turn(&mut self, index: usize) -> Result<(), String> {
        let now = self.now;
        let host = self.hosts.get_mut(index).ok_or("no such host")?;
        host.turns = host.turns.wrapping_add(1);
        host.take_frames(now);
        self.handle_events(index)?;
        let host = self.hosts.get_mut(index).ok_or("no such host")?;
        if host.stack.next_deadline().is_some_and(|deadline| deadline <= now) {
            // A timer may let an acknowledgment go out for each connection.
            let connections = u64::from(host.stack.stats().connections);
            host.ack_causes = host.ack_causes.saturating_add(connections + 1);
            self.quiet.allow(8 * (connections + 1));
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
            // Output that has no buffer or no neighbor waits; look again soon.
            let pause = if more { Duration::ZERO } else { Duration::from_micros(100) };
            self.plan_turn(index, now + pause);
        }
        if let Some(next) = next {
            self.plan_turn(index, next.max(now + Duration::from_nanos(1)));
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

fn port(dial: usize) -> u16 {
    FIRST_PORT.wrapping_add(u16::try_from(dial).unwrap_or(u16::MAX))
}

/// Names of the streams that a side of a dial sends and receives.
fn keys(dial: usize, side: u64) -> (u64, u64) {
    let base = u64::try_from(dial).unwrap_or(0).wrapping_mul(2).wrapping_add(0x5eed);
    let key = |side: u64| base.wrapping_add(side).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (key(side), key(1_u64.wrapping_sub(side)))
}

/// How long after the beginning of time the first dial, opened then, has an initial sequence number some
/// bytes before zero: RFC 6528's clock counts every 4 µs.
fn wait_for_wrap(scenario: &Scenario, seeds: &[[u8; 32]]) -> Result<Duration, String> {
    let dial = scenario.dials.first().ok_or("no dial")?;
    let (config, seed) = scenario.hosts.iter().zip(seeds).nth(dial.from).ok_or("no such host")?;
    let to = scenario.hosts.get(dial.to).ok_or("no such host")?;
    let v4 = to.ipv4.map(|cidr| cidr.address().into()).filter(|_| !dial.ipv6);
    let v6 = to.ipv6.map(|cidr| cidr.address().into()).filter(|_| dial.ipv6);
    let remote = SocketAddr::new(v4.or(v6).ok_or("a host without an address")?, port(0));
    let mut stack: Stack<super::HeapBuf> = Stack::new(config.clone(), *seed);
    let conn = stack.connect(Instant::ZERO + dial.at, remote, scenario.conn);
    let conn = conn.map_err(|error| format!("{error}"))?;
    let (iss, _) = stack.initial_sequences(conn).ok_or("opened, and nothing is known of it")?;
    let [.., low, _] = seed;
    let before = u32::from(*low).wrapping_mul(64);
    Ok(Duration::from_micros(u64::from(0_u32.wrapping_sub(iss.get()).wrapping_sub(before)) * 4))
}
