//! `slow-clients`: goodput of fast clients beside many slow ones (RFC 4297 §4).
//!
//! All clients are streams to one engine, the daemon's code in this process. The fast ones write as fast as they can;
//! each slow one writes 4 KiB, waits, and writes again, like clients over wide-area networks.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::clock::thread_cpu_time;
use crate::hosts::{HostPair, Initiator, Sizes, Target};
use crate::{Cores, Progress, Report, Samples, bandwidth_gbps};

/// Bytes of the region on either side.
const REGION: usize = 64 << 20;
/// Bytes of a fast client's Write.
const FAST_MESSAGE: u32 = 64 << 10;
/// Writes that a fast client keeps posted.
const FAST_POSTED: u64 = 8;
/// Bytes of a slow client's Write.
const SLOW_MESSAGE: u32 = 4 << 10;
/// Interval of the Writes of a slow client.
const SLOW_INTERVAL: Duration = Duration::from_secs(1);
/// Connections opened together: fewer than the listener's backlog.
const OPEN_BATCH: usize = 256;
const TIMEOUT: Duration = Duration::from_secs(60);
const WARM_UP: Duration = Duration::from_millis(300);

/// Command-line flags of `slow-clients`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Options {
    /// Numbers of slow clients: one row for each.
    #[arg(long, value_delimiter = ',', default_value = "0,16,32,64,128,256,10000")]
    clients: Vec<u32>,
    /// Number of fast clients.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    fast: u32,
    /// Seconds of CPU time per row and run.
    #[arg(short = 'D', long, value_name = "SECONDS", default_value_t = 1.0)]
    duration: f64,
    /// Repetitions of the whole series; the median counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Largest IP packet, bytes.
    #[arg(short, long, default_value_t = 1500)]
    mtu: u16,
    /// CPUs; the clients and the engine run on the first.
    #[arg(long, value_name = "A,B", default_value = "0,1")]
    cores: Cores,
}

/// Result of one number of slow clients.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct SlowClientsRow {
    /// Number of slow clients.
    pub clients: u32,
    /// Goodput of all fast clients, Gbit per second of CPU time, which excludes other work of the machine.
    pub fast_gbps: Samples,
    /// Writes of slow clients per second.
    pub slow_writes: Samples,
    /// Goodput divided by that of the first row of the same run: by default without slow clients.
    pub ratio: Samples,
}

/// The result rows of `slow-clients`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct SlowClientsReport {
    /// Number of fast clients.
    pub fast: u32,
    /// One row for each number of slow clients, in ascending order.
    pub rows: Vec<SlowClientsRow>,
}

/// Measures all rows in each run, on one engine that more and more slow clients join. One engine serves
/// all rows of a run, so that the placement of its memory explains no difference.
///
/// # Errors
/// A connection fails, or a CPU is not available.
pub fn run(options: &Options) -> Result<SlowClientsReport> {
    ensure!(options.duration.is_finite() && options.duration > 0.0, "a duration of {} s", options.duration);
    options.cores.pin_first()?;
    let mut clients = options.clients.clone();
    clients.sort_unstable();
    clients.dedup();
    let most = clients.last().copied().context("no number of clients")?;
    let progress = Progress::new(clients.len() * options.runs as usize);
    let mut runs = Vec::new();
    for _ in 0..options.runs {
        let mut load = Clients::new(options, most)?;
        // Warms up, so that the first row has no page faults.
        load.join(0)?;
        load.run(Duration::from_secs_f64(options.duration))?;
        let mut run = Vec::new();
        for &slow in &clients {
            progress.step(format!("{slow} slow clients"));
            load.join(slow)?;
            load.run(WARM_UP)?;
            run.push(load.run(Duration::from_secs_f64(options.duration))?);
        }
        runs.push(run);
    }
    let row = |(place, clients): (usize, &u32)| {
        let of = |value: fn(Interval, Interval) -> f64| {
            let pairs = runs.iter().filter_map(|run| Some((*run.get(place)?, *run.first()?)));
            Samples::new(pairs.map(|(this, first)| value(this, first)).collect())
        };
        Ok(SlowClientsRow {
            clients: *clients,
            fast_gbps: of(|this, _| this.fast_gbps)?,
            slow_writes: of(|this, _| this.slow_writes)?,
            ratio: of(|this, first| this.fast_gbps / first.fast_gbps)?,
        })
    };
    let rows = clients.iter().enumerate().map(row).collect::<Result<_>>()?;
    Ok(SlowClientsReport { fast: options.fast, rows })
}

/// Result of one interval.
#[derive(Clone, Copy, Debug)]
struct Interval {
    /// Goodput of the fast clients, Gbit per second of CPU time.
    fast_gbps: f64,
    /// Writes of the slow clients per second.
    slow_writes: f64,
}

/// An engine and its clients; streams `0..fast` are the fast ones.
struct Clients {
    pair: HostPair<Initiator, Target>,
    fast: usize,
    slow: u32,
    /// Writes posted by each fast client.
    posted: Vec<u64>,
    /// Slow client that writes next, and the time of its Write.
    next: (u32, Duration),
    slow_written: u64,
}

impl Clients {
    /// Makes an engine with room for the fast clients and `slow` slow ones.
    fn new(options: &Options, slow: u32) -> Result<Self> {
        let all = options.fast.checked_add(slow).context("too many clients")?;
        let sizes = Sizes { mtu: options.mtu, connections: all, buffers: all.saturating_mul(2).max(8192) };
        let (sender, receiver) = (Initiator::new(&sizes, REGION)?, Target::new(&sizes, REGION)?);
        let pair = HostPair::new(&sizes, sender, receiver)?;
        let fast = options.fast as usize;
        Ok(Self { pair, fast, slow: 0, posted: vec![0; fast], next: (0, Duration::ZERO), slow_written: 0 })
    }

    /// Connects clients until there are `slow` slow ones.
    fn join(&mut self, slow: u32) -> Result<()> {
        let Self { pair, fast, .. } = self;
        let all = *fast + slow as usize;
        for opened in pair.sender().granted()..all {
            let now = pair.elapsed();
            pair.sender().connect(now)?;
            let wanted = opened + 1;
            if wanted.is_multiple_of(OPEN_BATCH) || wanted == all {
                let open = pair.run_until(TIMEOUT, |pair| pair.sender().granted() == wanted);
                ensure!(open, "{wanted} connections are not established: {:?}", pair.sender().failure());
            }
        }
        (self.slow, self.next) = (slow, (0, pair.elapsed()));
        Ok(())
    }

    /// Runs for this CPU time.
    fn run(&mut self, time: Duration) -> Result<Interval> {
        let (begin, used_before) = (self.pair.elapsed(), thread_cpu_time());
        let (before, slow_before) = (self.fast_done(), self.slow_written);
        let mut used = Duration::ZERO;
        while used < time {
            // Reading this clock takes a system call.
            for _ in 0..64 {
                let now = self.pair.elapsed();
                self.post_due(now)?;
                self.pair.poll();
            }
            used = thread_cpu_time().saturating_sub(used_before);
        }
        if let Some(failure) = self.pair.sender().failure() {
            bail!("{failure}");
        }
        let bytes = (self.fast_done() - before) * u64::from(FAST_MESSAGE);
        let seconds = self.pair.elapsed().saturating_sub(begin).as_secs_f64();
        Ok(Interval {
            fast_gbps: bandwidth_gbps(bytes, used.as_secs_f64()),
            slow_writes: (self.slow_written - slow_before) as f64 / seconds,
        })
    }

    fn fast_done(&mut self) -> u64 {
        (0..self.fast).map(|stream| self.pair.sender().completed(stream)).sum()
    }

    /// Posts the Writes that are due.
    fn post_due(&mut self, now: Duration) -> Result<()> {
        for (stream, posted) in self.posted.iter_mut().enumerate() {
            let sender = self.pair.sender();
            while *posted < sender.completed(stream) + FAST_POSTED {
                let at = (*posted * u64::from(FAST_MESSAGE)) % REGION as u64;
                sender.write(stream, at, FAST_MESSAGE)?;
                *posted += 1;
            }
        }
        while self.slow > 0 && self.next.1 <= now {
            let (client, due) = self.next;
            let at = u64::from(client) * u64::from(SLOW_MESSAGE) % REGION as u64;
            self.pair.sender().write(self.fast + client as usize, at, SLOW_MESSAGE)?;
            self.slow_written += 1;
            self.next = ((client + 1) % self.slow, due + SLOW_INTERVAL / self.slow);
        }
        Ok(())
    }
}

impl Report for SlowClientsReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let every = SLOW_INTERVAL.as_secs();
        writeln!(
            out,
            "\n{} fast clients, {FAST_MESSAGE} bytes a Write; slow ones write {SLOW_MESSAGE} bytes each {every} s",
            self.fast
        )?;
        writeln!(out, "{:>8} {:>26} {:>12} {:>26}", "#clients", "fast BW[Gb/s]", "slow[1/s]", "of baseline")?;
        for row in &self.rows {
            let (fast, slow, ratio) = (row.fast_gbps.show(2), row.slow_writes.median, row.ratio.show(3));
            writeln!(out, "{:>8} {fast:>26} {slow:>12.0} {ratio:>26}", row.clients)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_and_slow_clients_are_served() {
        let options = Options {
            clients: vec![0, 300],
            fast: 2,
            duration: 0.3,
            runs: 1,
            mtu: 1500,
            cores: Cores([0, 0]),
        };
        let report = run(&options).unwrap();
        let [alone, beside] = report.rows.as_slice() else { panic!("{report:?}") };
        assert!(alone.fast_gbps.median > 0.0 && beside.fast_gbps.median > 0.0, "{report:?}");
        assert_eq!((alone.slow_writes.median, alone.ratio.median), (0.0, 1.0));
        assert!((200.0..400.0).contains(&beside.slow_writes.median), "{report:?}");
        assert!(beside.ratio.median > 0.1, "{report:?}");
    }
}
