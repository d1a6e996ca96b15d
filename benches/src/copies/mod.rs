//! The question of RFC 4297: how often the CPU moves an byte, and how long it works, until an application has it.
//!
//! Three ways from one application's buffer to another's, each of 64 MiB: the kernel's TCP, our TCP with a copy into the
//! buffer, and RDMA Writes into the region. RFC 5532 §4.1 estimates them at 1.00×, 1.25× and 2.00×.

mod kernel;

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::pair::{Host, Initiator, Pair, Receiver, Sender, Sizes, Target, touched};
use crate::peers::{Absent, Wire};
use crate::{Cores, Progress, Report, Samples, bandwidth_gbps, cpu};

/// Bytes of each application's buffer.
const REGION: usize = 64 << 20;
/// Bytes of an RDMA Write.
const MESSAGE: u32 = 64 << 10;
/// Writes that are posted at a time.
const POSTED: u64 = 16;
/// How long a connection may take to come about, and then runs before anything is counted.
const PATIENCE: Duration = Duration::from_secs(10);
const WARM_UP: Duration = Duration::from_millis(200);

/// How it is measured.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Options {
    /// Seconds per run.
    #[arg(short = 'D', long, value_name = "SECONDS", default_value_t = 1.0)]
    duration: f64,
    /// Runs per figure; the median counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Bytes of an IP packet, at most.
    #[arg(short, long, value_delimiter = ',', default_value = "1500,9000")]
    mtu: Vec<u16>,
    /// CPUs: sender, receiver. What runs without the kernel runs on the first alone.
    #[arg(long, value_name = "A,B", default_value = "0,1")]
    cores: Cores,
    /// The kernel's congestion control.
    #[arg(long, default_value = "cubic")]
    congestion_control: String,
}

/// From which application's buffer to which.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// The kernel's TCP over a veth pair without offloads: write(), read().
    Kernel,
    /// The same with offloads.
    KernelOffloads,
    /// Our TCP, with a copy into packets and one out of them ("TCP offload").
    Tcp,
    /// RDMA Write, CRC on ("RDMA offload").
    Rdma,
}

impl Way {
    const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel TCP",
            Self::KernelOffloads => "kernel TCP, offloads on",
            Self::Tcp => "our TCP and a copy",
            Self::Rdma => "RDMA Write",
        }
    }
}

/// What one run has moved.
#[derive(Clone, Copy, Debug)]
struct Moved {
    /// Bytes that are in the receiver's buffer.
    delivered: u64,
    /// Bytes copied by the sender's and by the receiver's side.
    copied: [u64; 2],
    seconds: f64,
    /// CPU time of the sender's and of the receiver's thread, and of the kernel's threads beside them, at work.
    cpu: [Duration; 3],
    /// CPU time that polled and found nothing to do.
    idle: Duration,
}

impl Moved {
    fn per_gib(&self, time: Duration) -> f64 {
        time.as_secs_f64() * f64::from(1 << 30) / self.delivered.max(1) as f64
    }
}

/// One way, at one MTU.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct CopiesRow {
    /// Which.
    pub way: Way,
    /// Bytes of an IP packet at most.
    pub mtu: u16,
    /// Goodput, 10⁹ bit/s: of the kernel on two cores, of ours with both hosts on one.
    pub gbps: Samples,
    /// Bytes copied per byte delivered, by the sender's side.
    pub copied_by_sender: f64,
    /// Bytes copied per byte delivered, by the receiver's side.
    pub copied_by_receiver: f64,
    /// CPU seconds per GiB delivered, of both sides and the kernel's threads, at work.
    pub cpu_s_per_gib: Samples,
    /// Of these the sender's.
    pub sender_s_per_gib: Samples,
    /// Of these the receiver's.
    pub receiver_s_per_gib: Samples,
    /// CPU seconds per GiB delivered that polled and found nothing to do, beside the above; the kernel's threads sleep.
    pub idle_s_per_gib: Samples,
    /// CPU time of the kernel's TCP without offloads at the same MTU, as a multiple of this: RFC 5532's factor.
    pub factor: Option<f64>,
}

/// The table.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct CopiesReport {
    /// All ways, at every MTU.
    pub rows: Vec<CopiesRow>,
    /// What could not be measured.
    pub absent: Vec<Absent>,
}

/// Measures every way at every MTU.
///
/// # Errors
/// Our own hosts did not come to terms; a CPU that cannot be had. That there is no veth pair is part of the report.
pub fn run(options: &Options) -> Result<CopiesReport> {
    ensure!(options.duration.is_finite() && options.duration > 0.0, "a duration of {} s", options.duration);
    let progress = Progress::new(options.mtu.len() * 4);
    let mut report = CopiesReport::default();
    for &mtu in &options.mtu {
        for (way, offloads) in [(Way::Kernel, false), (Way::KernelOffloads, true)] {
            progress.step(format!("{}, MTU {mtu}", way.name()));
            match kernel::measure_over(options, Wire { mtu, offloads }) {
                Ok(runs) => report.rows.push(row(way, mtu, &runs)?),
                Err(error) => {
                    let what = format!("{}, MTU {mtu}", way.name());
                    report.absent.push(Absent { what, why: format!("{error:#}") });
                }
            }
        }
        options.cores.pin_first()?;
        progress.step(format!("{}, MTU {mtu}", Way::Tcp.name()));
        report.rows.push(row(Way::Tcp, mtu, &tcp(options, mtu)?)?);
        progress.step(format!("{}, MTU {mtu}", Way::Rdma.name()));
        report.rows.push(row(Way::Rdma, mtu, &rdma(options, mtu)?)?);
    }
    compare(&mut report.rows);
    Ok(report)
}

fn row(way: Way, mtu: u16, runs: &[Moved]) -> Result<CopiesRow> {
    let samples = |of: &dyn Fn(&Moved) -> f64| Samples::new(runs.iter().map(of).collect());
    let share = |side: fn(&Moved) -> u64| {
        let (copied, delivered): (u64, u64) =
            (runs.iter().map(side).sum(), runs.iter().map(|run| run.delivered).sum());
        copied as f64 / delivered.max(1) as f64
    };
    Ok(CopiesRow {
        way,
        mtu,
        gbps: samples(&|run| bandwidth_gbps(run.delivered, run.seconds))?,
        copied_by_sender: share(|run| run.copied[0]),
        copied_by_receiver: share(|run| run.copied[1]),
        cpu_s_per_gib: samples(&|run| run.per_gib(run.cpu.iter().sum()))?,
        sender_s_per_gib: samples(&|run| run.per_gib(run.cpu[0]))?,
        receiver_s_per_gib: samples(&|run| run.per_gib(run.cpu[1]))?,
        idle_s_per_gib: samples(&|run| run.per_gib(run.idle))?,
        factor: None,
    })
}

/// Sets every row beside the kernel's of the same MTU.
fn compare(rows: &mut [CopiesRow]) {
    let kernels: Vec<(u16, f64)> = rows
        .iter()
        .filter(|row| row.way == Way::Kernel)
        .map(|row| (row.mtu, row.cpu_s_per_gib.median))
        .collect();
    for row in rows {
        let kernel = kernels.iter().find(|(mtu, _)| *mtu == row.mtu);
        row.factor = kernel.map(|(_, cpu)| cpu / row.cpu_s_per_gib.median).filter(|it| it.is_finite());
    }
}

fn sizes(mtu: u16) -> Sizes {
    Sizes { mtu, connections: 4, buffers: 4096 }
}

/// What is counted: bytes delivered; copied by each side.
type Counted = (u64, [u64; 2]);

/// Runs a pair that is under way, as often as asked; `turn` keeps it supplied, `count` says what it has done.
fn runs<N: Host, F: Host>(
    options: &Options,
    pair: &mut Pair<N, F>,
    mut turn: impl FnMut(&mut Pair<N, F>) -> Result<()>,
    count: impl Fn(&mut Pair<N, F>) -> Counted,
) -> Result<Vec<Moved>> {
    let mut spell = |pair: &mut Pair<N, F>, time: Duration| {
        let begin = pair.elapsed();
        while pair.elapsed().saturating_sub(begin) < time {
            turn(pair)?;
        }
        anyhow::Ok(pair.elapsed().saturating_sub(begin).as_secs_f64())
    };
    spell(pair, WARM_UP)?;
    (0..options.runs)
        .map(|_| {
            let (before, spent_before, used) = (count(pair), pair.spent(), cpu::thread());
            let seconds = spell(pair, Duration::from_secs_f64(options.duration))?;
            let used = cpu::thread().saturating_sub(used);
            let after = count(pair);
            // One thread: its time is shared out as the steps took theirs. Steps that moved nothing waited, and a host
            // of its own would have slept or done something else.
            let share = |side: usize| {
                let spent = |times: [Duration; 3]| times.get(side).copied().unwrap_or_default();
                let all: f64 = pair
                    .spent()
                    .iter()
                    .zip(spent_before)
                    .map(|(now, then)| (*now - then).as_secs_f64())
                    .sum();
                used.mul_f64(
                    (spent(pair.spent()) - spent(spent_before)).as_secs_f64() / all.max(f64::MIN_POSITIVE),
                )
            };
            let delivered = after.0 - before.0;
            ensure!(delivered > 0, "nothing was delivered");
            Ok(Moved {
                delivered,
                copied: [after.1[0] - before.1[0], after.1[1] - before.1[1]],
                seconds,
                cpu: [share(0), share(1), Duration::ZERO],
                idle: share(2),
            })
        })
        .collect()
}

fn tcp(options: &Options, mtu: u16) -> Result<Vec<Moved>> {
    let sizes = sizes(mtu);
    let receiver = Receiver::new(&sizes, touched(REGION))?;
    let mut pair = Pair::new(&sizes, Sender::new(&sizes, touched(REGION)), receiver)?;
    pair.near().connect()?;
    ensure!(pair.run_until(PATIENCE, |pair| pair.far().copied() > 0), "no connection");
    let turn = |pair: &mut Pair<Sender, Receiver>| {
        pair.turn();
        Ok(())
    };
    runs(options, &mut pair, turn, |pair| {
        let (sent, received) = (pair.near().copied(), pair.far().copied());
        (received, [sent, received])
    })
}

fn rdma(options: &Options, mtu: u16) -> Result<Vec<Moved>> {
    let sizes = sizes(mtu);
    let (near, far) = (Initiator::new(&sizes, REGION)?, Target::new(&sizes, REGION)?);
    let mut pair = Pair::new(&sizes, near, far)?;
    let now = pair.elapsed();
    let stream = pair.near().connect(now)?;
    ensure!(pair.run_until(PATIENCE, |pair| pair.near().granted() == 1), "no grant");
    let mut posted = 0;
    let turn = |pair: &mut Pair<Initiator, Target>| {
        while posted < pair.near().completed(stream) + POSTED {
            let at = posted * u64::from(MESSAGE) % REGION as u64;
            pair.near().write(stream, at, MESSAGE)?;
            posted += 1;
        }
        pair.turn();
        match pair.near().failure() {
            Some(failure) => bail!("{failure}"),
            None => Ok(()),
        }
    };
    runs(options, &mut pair, turn, |pair| {
        let sent = pair.near().stats().rdmap.payload_bytes_fetched;
        let far = pair.far().stats();
        (far.rdmap.payload_bytes_placed, [sent, far.mpa.bytes_copied])
    })
}

impl Report for CopiesReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "\nmedians; bytes copied per byte delivered; CPU of both sides at work, seconds per GiB delivered; idle: polling"
        )?;
        writeln!(
            out,
            "{:<26} {:>5} {:>10} {:>10} {:>10} {:>24} {:>10} {:>10} {:>8} {:>9}",
            "way",
            "MTU",
            "BW[Gb/s]",
            "copied by",
            "and by",
            "CPU[s/GiB]",
            "sender",
            "receiver",
            "idle",
            "factor"
        )?;
        for row in &self.rows {
            writeln!(
                out,
                "{:<26} {:>5} {:>10.2} {:>10.3} {:>10.3} {:>24} {:>10.3} {:>10.3} {:>8.3} {:>9}",
                row.way.name(),
                row.mtu,
                row.gbps.median,
                row.copied_by_sender,
                row.copied_by_receiver,
                row.cpu_s_per_gib.show(3),
                row.sender_s_per_gib.median,
                row.receiver_s_per_gib.median,
                row.idle_s_per_gib.median,
                row.factor.map_or_else(|| "–".to_owned(), |factor| format!("{factor:.2}×"))
            )?;
        }
        for Absent { what, why } in &self.absent {
            writeln!(out, "not measured: {what}: {why}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_delivers_and_copies_once_on_each_side() {
        let options = Options {
            duration: 0.2,
            runs: 1,
            mtu: vec![1500],
            cores: Cores([0, 0]),
            congestion_control: "cubic".to_owned(),
        };
        let report = run(&options).unwrap();
        assert_eq!(report.absent, []);
        let ways: Vec<Way> = report.rows.iter().map(|row| row.way).collect();
        assert_eq!(ways, [Way::Kernel, Way::KernelOffloads, Way::Tcp, Way::Rdma]);
        for row in &report.rows {
            assert!((0.9999..1.0001).contains(&row.copied_by_receiver), "{row:?}");
            // What was on its way at the end was copied and not delivered.
            assert!((0.8..1.5).contains(&row.copied_by_sender), "{row:?}");
            assert!(row.cpu_s_per_gib.median > 0.0 && row.gbps.median > 0.0, "{row:?}");
        }
        assert_eq!(report.rows.first().unwrap().factor, Some(1.0));
    }
}
