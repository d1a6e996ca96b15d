//! RFC 4297 §4's table: what many slow clients in the background take from the fast ones.
//!
//! All clients are streams to one engine of the daemon's. The fast ones write as fast as they can; each slow one writes
//! a few bytes, waits, and writes again, as clients over wide-area networks do.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::pair::{Initiator, Pair, Sizes, Target};
use crate::{Cores, Progress, Report, Samples, bandwidth_gbps, cpu};

const REGION: usize = 64 << 20;
/// Bytes of a fast client's Write.
const FAST_MESSAGE: u32 = 64 << 10;
/// Writes that a fast client has posted at a time.
const FAST_POSTED: u64 = 8;
/// Bytes of a slow client's Write: one each [`SLOW_EVERY`].
const SLOW_MESSAGE: u32 = 4 << 10;
const SLOW_EVERY: Duration = Duration::from_secs(1);
/// Connections that are opened at a time: fewer than the listener's backlog.
const OPENED: usize = 256;
const PATIENCE: Duration = Duration::from_secs(60);
const WARM_UP: Duration = Duration::from_millis(300);

/// How it is measured.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Options {
    /// Slow clients: one row for each number.
    #[arg(long, value_delimiter = ',', default_value = "0,16,32,64,128,256,10000")]
    clients: Vec<u32>,
    /// Fast clients.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    fast: u32,
    /// Seconds of CPU time per run.
    #[arg(short = 'D', long, value_name = "SECONDS", default_value_t = 1.0)]
    duration: f64,
    /// Runs per row; the median counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Bytes of an IP packet, at most.
    #[arg(short, long, default_value_t = 1500)]
    mtu: u16,
    /// CPUs; the clients and the engine run on the first.
    #[arg(long, value_name = "A,B", default_value = "0,1")]
    cores: Cores,
}

/// One number of slow clients.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct SlowClientsRow {
    /// Slow clients.
    pub clients: u32,
    /// Goodput of all fast clients, 10⁹ bit/s of CPU time: what else the machine does is not the slow clients' doing.
    pub fast_gbps: Samples,
    /// Writes of slow clients per second.
    pub slow_writes: Samples,
    /// The goodput in relation to that of the same engine with the fewest slow clients: none, unless told otherwise.
    pub ratio: Samples,
}

/// The table.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct SlowClientsReport {
    /// Fast clients.
    pub fast: u32,
    /// By numbers of slow clients.
    pub rows: Vec<SlowClientsRow>,
}

/// Measures every row, as often as asked: each time on an engine of its own, which more and more slow clients join.
/// What distinguishes the rows of a run are the clients, then, and not where the memory of an engine happens to lie.
///
/// # Errors
/// A connection does not come about; a CPU that cannot be had.
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
        let mut load = Load::new(options, most)?;
        // The first row is not to pay for memory that nobody has touched yet.
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
        let of = |value: fn(Moved, Moved) -> f64| {
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

/// What a spell has come to.
#[derive(Clone, Copy, Debug)]
struct Moved {
    /// Goodput of the fast clients, 10⁹ bit/s of CPU time.
    fast_gbps: f64,
    /// Writes of the slow ones per second.
    slow_writes: f64,
}

/// An engine and its clients: streams `0..fast` are the fast ones.
struct Load {
    pair: Pair<Initiator, Target>,
    fast: usize,
    slow: u32,
    /// Writes posted by each fast client.
    posted: Vec<u64>,
    /// The slow client whose turn is next, and when.
    next: (u32, Duration),
    slow_written: u64,
}

impl Load {
    /// An engine with room for so many slow clients, and the fast ones.
    fn new(options: &Options, slow: u32) -> Result<Self> {
        let all = options.fast.checked_add(slow).context("too many clients")?;
        let sizes = Sizes { mtu: options.mtu, connections: all, buffers: all.saturating_mul(2).max(8192) };
        let (near, far) = (Initiator::new(&sizes, REGION)?, Target::new(&sizes, REGION)?);
        let pair = Pair::new(&sizes, near, far)?;
        let fast = options.fast as usize;
        Ok(Self { pair, fast, slow: 0, posted: vec![0; fast], next: (0, Duration::ZERO), slow_written: 0 })
    }

    /// More clients join, until there are so many slow ones.
    fn join(&mut self, slow: u32) -> Result<()> {
        let Self { pair, fast, .. } = self;
        let all = *fast + slow as usize;
        for opened in pair.near().granted()..all {
            let now = pair.elapsed();
            pair.near().connect(now)?;
            let wanted = opened + 1;
            if wanted.is_multiple_of(OPENED) || wanted == all {
                let open = pair.run_until(PATIENCE, |pair| pair.near().granted() == wanted);
                ensure!(open, "{wanted} connections do not come about: {:?}", pair.near().failure());
            }
        }
        (self.slow, self.next) = (slow, (0, pair.elapsed()));
        Ok(())
    }

    /// Runs for so much CPU time.
    fn run(&mut self, time: Duration) -> Result<Moved> {
        let (begin, used_before) = (self.pair.elapsed(), cpu::thread());
        let (before, slow_before) = (self.fast_done(), self.slow_written);
        let mut used = Duration::ZERO;
        while used < time {
            // Reading this clock is a system call.
            for _ in 0..64 {
                let now = self.pair.elapsed();
                self.supply(now)?;
                self.pair.turn();
            }
            used = cpu::thread().saturating_sub(used_before);
        }
        if let Some(failure) = self.pair.near().failure() {
            bail!("{failure}");
        }
        let bytes = (self.fast_done() - before) * u64::from(FAST_MESSAGE);
        let seconds = self.pair.elapsed().saturating_sub(begin).as_secs_f64();
        Ok(Moved {
            fast_gbps: bandwidth_gbps(bytes, used.as_secs_f64()),
            slow_writes: (self.slow_written - slow_before) as f64 / seconds,
        })
    }

    fn fast_done(&mut self) -> u64 {
        (0..self.fast).map(|stream| self.pair.near().completed(stream)).sum()
    }

    /// Posts what is due.
    fn supply(&mut self, now: Duration) -> Result<()> {
        for (stream, posted) in self.posted.iter_mut().enumerate() {
            let near = self.pair.near();
            while *posted < near.completed(stream) + FAST_POSTED {
                let at = (*posted * u64::from(FAST_MESSAGE)) % REGION as u64;
                near.write(stream, at, FAST_MESSAGE)?;
                *posted += 1;
            }
        }
        while self.slow > 0 && self.next.1 <= now {
            let (client, due) = self.next;
            let at = u64::from(client) * u64::from(SLOW_MESSAGE) % REGION as u64;
            self.pair.near().write(self.fast + client as usize, at, SLOW_MESSAGE)?;
            self.slow_written += 1;
            self.next = ((client + 1) % self.slow, due + SLOW_EVERY / self.slow);
        }
        Ok(())
    }
}

impl Report for SlowClientsReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let every = SLOW_EVERY.as_secs();
        writeln!(
            out,
            "\n{} fast clients, {FAST_MESSAGE} bytes a Write; slow ones write {SLOW_MESSAGE} bytes each {every} s",
            self.fast
        )?;
        writeln!(out, "{:>8} {:>26} {:>12} {:>26}", "#clients", "fast BW[Gb/s]", "slow[1/s]", "of alone")?;
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
