//! Poll-mode workers, one pinned thread each. `setup` makes them, `daemon` runs them, and `admin` sends them commands.
//!
//! ```text
//! iteration: every port receives, processes, transmits ─▶ every 32 iterations, or idle: commands, counters ─▶ sleep?
//! ```
//! A worker shares no state that it writes. Commands arrive through a ring, and counters leave as a published copy.

mod bell;
mod command;
mod command_ring;
mod context_command;
mod idle;
mod jobs;
mod loopback;
mod poll_loop;
mod published;
mod rx_burst;
mod settings_command;
mod steer;
mod thread_state;
mod visit;
mod watch_command;
mod worker_port;

use std::sync::Arc;
use std::time::Duration;

use iwarp_engine::memory::RegionMemory;
use rdma::service::RegionEntry;

pub use bell::Bell;
pub use command::{Command, CommandError, ConnPage, RegionUse};
pub use command_ring::{CommandSender, Commands, command_ring};
pub use context_command::{ContextCommand, Executed, NewMr, Released};
pub use jobs::{Job, Jobs};
pub use loopback::LoopbackStats;
pub use poll_loop::{PollLoop, PollResult};
pub use published::{Published, Row, Visit};
pub use settings_command::{Cursor, SettingsCommand};
pub use steer::{Mesh, SteerStats, mesh};
pub(crate) use thread_state::ThreadState;
pub use visit::{Gauges, PacketPoolStats, is_histogram};
pub use watch_command::{NewWatch, WatchCommand};
pub use worker_port::{PortEngine, Relays, Transmit, WorkerPort};

use crate::dpdk::RegisteredThread;

/// Iterations between two checks of the command ring.
const COMMAND_ITERATIONS: u32 = 32;
/// Longest time between two publications of the counters while the worker is busy.
const PUBLISH_EVERY: Duration = Duration::from_millis(20);

iwarp_counters::counters! {
    /// Counters of a worker's poll loop.
    pub struct WorkerStats {
        /// Poll iterations of the worker.
        iterations,
        /// Poll iterations that moved at least one frame.
        busy_iterations,
        /// Time spent in iterations that moved a frame, nanoseconds.
        busy_ns,
        /// Time since the worker started, nanoseconds.
        total_ns,
        /// Times that the worker slept.
        sleeps,
        /// Time that the worker slept, nanoseconds.
        slept_ns,
        /// Sleeps that ended by themselves.
        sleeps_timed_out,
        /// Time by which these ended later than asked for, nanoseconds: what wake-ups take.
        woken_late_ns,
        /// Spins before a sleep that work ended.
        spins_paid,
        /// Commands of the control side carried out.
        commands,
        /// Iterations longer than 1 ms: the thread was kept from its core, or had too much to do at once.
        long_iterations,
    }
}

/// A worker that has not started yet.
#[derive(Debug)]
pub struct Worker {
    /// Index of the worker.
    pub index: usize,
    /// CPU that the thread is pinned to.
    pub core: u16,
    /// The worker's share of each port.
    pub ports: Vec<WorkerPort>,
    /// Receiving end of the command ring.
    pub commands: Commands,
    /// Published copy of the counters.
    pub published: Arc<Published>,
    /// Poll loop that drives the ports.
    pub poll_loop: PollLoop,
    /// Requests of programs that are not done.
    pub jobs: Jobs,
}

impl Visit for (&WorkerStats, &[WorkerPort]) {
    fn visit(&self, f: &mut dyn FnMut(&'static str, &'static str, &'static str, u64)) {
        let (stats, ports) = self;
        stats.visit(&mut |name, help, value| f(Published::WORKER, name, help, value));
        for port in *ports {
            port.visit(f);
        }
    }
}

impl Worker {
    /// Runs until [`Command::Stop`]. Called on the worker's own thread.
    pub fn run(mut self, _registered: &RegisteredThread) {
        self.published.set_thread();
        self.update_wall_clock();
        self.poll_loop.begin();
        let (mut iterations, mut published_at) = (0_u32, self.poll_loop.now());
        loop {
            let PollResult { now, sleep } = self.poll_loop.poll_once(&mut self.ports);
            iterations = iterations.wrapping_add(1);
            if iterations.is_multiple_of(COMMAND_ITERATIONS) || sleep.is_some() {
                if !self.run_commands() {
                    break;
                }
                if now.saturating_since(published_at) >= PUBLISH_EVERY {
                    published_at = now;
                    self.publish();
                    self.update_wall_clock();
                }
            }
            if !self.jobs.is_empty() {
                let Self { jobs, poll_loop, ports, .. } = &mut self;
                jobs.run(&mut || poll_loop.now(), &mut |now, job| {
                    ports.get_mut(job.port).is_none_or(|port| job.run_part(now, port))
                });
            }
            // Others may be queued behind a command that ends `run_commands`.
            if let Some(sleep) = sleep.filter(|_| self.commands.is_empty() && self.jobs.is_empty()) {
                self.poll_loop.sleep(&mut self.ports, sleep);
            }
        }
        let now = self.poll_loop.now();
        for port in &mut self.ports {
            port.shut_down(now);
        }
        self.publish();
    }

    /// Passes the wall clock's time to every port: an operator, or NTP, may have set the clock.
    fn update_wall_clock(&mut self) {
        let (now, wall) = (self.poll_loop.now(), self.poll_loop.wall());
        for port in &mut self.ports {
            port.engine_mut().set_wall_clock(now, wall);
        }
    }

    fn publish(&self) {
        self.published.publish(&(self.poll_loop.stats(), self.ports.as_slice()));
    }

    /// Carries out the queued commands. Returns `false` after [`Command::Stop`].
    fn run_commands(&mut self) -> bool {
        while let Some(command) = self.commands.pop() {
            self.poll_loop.stats_mut().commands += 1;
            match command {
                Command::Stop => return false,
                Command::RegionAdd { entry, memory, reply } => {
                    // The requester may have gone; the answer is then dropped.
                    let _ = reply.send(self.region_add(&entry, memory.as_ref()));
                }
                Command::RegionHide { name, region, reply } => {
                    let hidden =
                        self.ports.iter_mut().map(|port| port.engine_mut().region_hide(&name, region) as u64);
                    let _ = reply.send(hidden.sum());
                }
                Command::RegionRevoke { region, reply } => {
                    let revoked = self.ports.iter_mut().map(|port| port.region_revoke(region)).sum();
                    let _ = reply.send(revoked);
                }
                Command::RegionUse { region, reply } => {
                    let _ = reply.send(self.region_use(region));
                }
                Command::Context { port, command } => {
                    let on_port = self.ports.get_mut(port);
                    if let Some((user, job)) =
                        on_port.and_then(|worker_port| worker_port.run_context_command(port, command))
                    {
                        self.jobs.push(user, job);
                    }
                }
                Command::Watch(command) => command.run(&mut self.ports),
                Command::Settings(command) => {
                    let now = self.poll_loop.now();
                    command.run(self.index, now, &mut self.ports);
                    // What it has queued is transmitted before the next command.
                    return true;
                }
                Command::Publish { reply } => {
                    self.publish();
                    let _ = reply.send(());
                }
                Command::Detach { port, reply } => {
                    self.ports.iter_mut().skip(port).take(1).for_each(WorkerPort::detach);
                    let _ = reply.send(());
                }
                Command::Attach { port, queues } => {
                    if let Some(port) = self.ports.get_mut(port) {
                        port.attach(*queues);
                    }
                }
                Command::Capture { port, tap, reply } => {
                    let _ = reply.send(self.ports.get_mut(port).and_then(|port| port.set_capture(tap)));
                }
                Command::Conns { from, mut rows, reply } => {
                    let next = self.conns(from, &mut rows);
                    let _ = reply.send(ConnPage { rows, next });
                }
                Command::ConnsClose { selector, from, mut rows, reply } => {
                    let next = self.conns_close(&selector, from, &mut rows);
                    let _ = reply.send(ConnPage { rows, next });
                    // The RSTs are transmitted before the next page.
                    return true;
                }
                Command::Conn { port, index, reply } => {
                    let _ = reply.send(self.ports.get(port).and_then(|port| port.engine().conn_at(index)));
                }
            }
        }
        true
    }

    fn region_add(
        &mut self,
        entry: &RegionEntry,
        memory: Option<&Arc<RegionMemory>>,
    ) -> Result<(), CommandError> {
        for port in &mut self.ports {
            let refused = |what: String| CommandError { worker: self.index, what };
            if let Some(memory) = memory {
                let attached = port.engine_mut().memory_mut().attach(entry.region, Arc::clone(memory));
                attached.map_err(|error| refused(error.to_string()))?;
            }
            port.engine_mut().region_add(entry.clone()).map_err(|error| refused(error.to_string()))?;
        }
        Ok(())
    }

    fn region_use(&self, region: rdma::RegionId) -> RegionUse {
        let mut sum = RegionUse::default();
        for port in &self.ports {
            let engine = port.engine();
            sum.grants += engine.region_grants(region) as u64;
            let bytes = engine.memory().bytes(region);
            sum.bytes_placed += bytes.placed;
            sum.bytes_fetched += bytes.fetched;
        }
        sum
    }

    /// Resets the selected connections of one page. Returns where the next page begins.
    fn conns_close(
        &mut self,
        selector: &iwarp_engine::ConnSelector,
        (port, cursor): (usize, u32),
        rows: &mut Vec<(usize, iwarp_engine::ConnRow)>,
    ) -> Option<(usize, u32)> {
        let now = self.poll_loop.now();
        let (ports, room) = (self.ports.len(), rows.capacity());
        let engine = self.ports.get_mut(port)?.engine_mut();
        let next = engine.conns_close(now, cursor, room, &|row| selector.has(port, row), &mut |row| {
            rows.push((port, row));
        });
        match next {
            Some(cursor) => Some((port, cursor)),
            None => Some((port.saturating_add(1), 0)).filter(|(port, _)| *port < ports),
        }
    }

    fn conns(
        &self,
        (first, cursor): (usize, u32),
        rows: &mut Vec<(usize, iwarp_engine::ConnRow)>,
    ) -> Option<(usize, u32)> {
        let mut cursor = cursor;
        for (index, port) in self.ports.iter().enumerate().skip(first) {
            if let Some(next) = port.engine().conns(cursor, &mut |row| {
                rows.len() < rows.capacity() && {
                    rows.push((index, row));
                    true
                }
            }) {
                return Some((index, next));
            }
            cursor = 0;
        }
        None
    }
}
