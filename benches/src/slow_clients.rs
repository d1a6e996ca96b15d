//! RFC 4297 §4's table: what many slow clients in the background take from the fast ones.
//!
//! All clients are streams to one engine of the daemon's. The fast ones write as fast as they can; each slow one writes
//! a few octets, waits, and writes again, as clients over wide-area networks do.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::pair::{Initiator, Pair, Sizes, Target, touched};
use crate::{Cores, Progress, Report, Samples, bandwidth_gbps, cpu};

const REGION: usize = 64 << 20;
/// Octets of a fast client's Write.
const FAST_MESSAGE: u32 = 64 << 10;
/// Writes that a fast client has posted at a time.
const FAST_POSTED: u64 = 8;
/// Octets of a slow client's Write: one each [`SLOW_EVERY`].
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
    /// Octets of an IP packet, at most.
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
    /// The goodput in relation to that without slow clients.
    pub ratio: Option<f64>,
}

/// The table.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct SlowClientsReport {
    /// Fast clients.
    pub fast: u32,
    /// By numbers of slow clients.
    pub rows: Vec<SlowClientsRow>,
}

/// Measures every row with an engine of its own, and the rows in turns, so that a machine that changes its mood does
/// so to all of them.
///
/// # Errors
/// A connection does not come about; a CPU that cannot be had.
pub fn run(options: &Options) -> Result<SlowClientsReport> {
    ensure!(options.duration.is_finite() && options.duration > 0.0, "a duration of {} s", options.duration);
    options.cores.pin_first()?;
    let progress = Progress::new(options.clients.len() * (1 + options.runs as usize));
    let mut loads = Vec::new();
    for &clients in &options.clients {
        progress.step(format!("connecting {clients} slow clients"));
        loads.push(Load::new(options, clients)?);
    }
    let mut samples = vec![(Vec::new(), Vec::new()); loads.len()];
    for _ in 0..options.runs {
        for (load, (fast, slow)) in loads.iter_mut().zip(&mut samples) {
            progress.step(format!("{} slow clients", load.slow));
            load.run(WARM_UP)?;
            let (gbps, writes) = load.run(Duration::from_secs_f64(options.duration))?;
            fast.push(gbps);
            slow.push(writes);
        }
    }
    let mut rows = Vec::new();
    for (clients, (fast, slow)) in options.clients.iter().zip(samples) {
        let (fast_gbps, slow_writes) = (Samples::new(fast)?, Samples::new(slow)?);
        rows.push(SlowClientsRow { clients: *clients, fast_gbps, slow_writes, ratio: None });
    }
    let alone = rows.iter().find(|row| row.clients == 0).map(|row| row.fast_gbps.median);
    for row in &mut rows {
        row.ratio = alone.map(|alone| row.fast_gbps.median / alone).filter(|it| it.is_finite());
    }
    Ok(SlowClientsReport { fast: options.fast, rows })
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
    fn new(options: &Options, slow: u32) -> Result<Self> {
        let all = options.fast.checked_add(slow).context("too many clients")?;
        let sizes = Sizes { mtu: options.mtu, connections: all, buffers: all.saturating_mul(2).max(8192) };
        let (near, far) = (Initiator::new(&sizes, touched(REGION))?, Target::new(&sizes, REGION)?);
        let mut pair = Pair::new(&sizes, near, far);
        for opened in 0..all as usize {
            let now = pair.elapsed();
            pair.near().connect(now)?;
            let wanted = opened + 1;
            if wanted.is_multiple_of(OPENED) || wanted == all as usize {
                let open = pair.run_until(PATIENCE, |pair| pair.near().granted() == wanted);
                ensure!(open, "{wanted} connections do not come about: {:?}", pair.near().failure());
            }
        }
        let fast = options.fast as usize;
        let next = (0, pair.elapsed());
        Ok(Self { pair, fast, slow, posted: vec![0; fast], next, slow_written: 0 })
    }

    /// Runs for so much CPU time; the goodput of the fast clients by it (10⁹ bit/s), and the Writes of the slow ones per
    /// second.
    fn run(&mut self, time: Duration) -> Result<(f64, f64)> {
        let (begin, used_before) = (self.pair.elapsed(), cpu::thread());
        // What was due while another load had its turn is not made up for.
        self.next.1 = self.next.1.max(begin);
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
        let octets = (self.fast_done() - before) * u64::from(FAST_MESSAGE);
        let seconds = self.pair.elapsed().saturating_sub(begin).as_secs_f64();
        let gbps = bandwidth_gbps(octets, used.as_secs_f64());
        Ok((gbps, (self.slow_written - slow_before) as f64 / seconds))
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
            "\n{} fast clients, {FAST_MESSAGE} octets a Write; slow ones write {SLOW_MESSAGE} octets each {every} s",
            self.fast
        )?;
        writeln!(out, "{:>8} {:>26} {:>12} {:>10}", "#clients", "fast BW[Gb/s]", "slow[1/s]", "of alone")?;
        for row in &self.rows {
            let ratio = row.ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{:.1} %", ratio * 100.0));
            let (fast, slow) = (row.fast_gbps.show(2), row.slow_writes.median);
            writeln!(out, "{:>8} {fast:>26} {slow:>12.0} {ratio:>10}", row.clients)?;
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
        assert_eq!((alone.slow_writes.median, alone.ratio), (0.0, Some(1.0)));
        assert!((200.0..400.0).contains(&beside.slow_writes.median), "{report:?}");
        assert!(beside.ratio.is_some_and(|ratio| ratio > 0.1), "{report:?}");
    }
}
