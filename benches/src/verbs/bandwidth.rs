//! `write-bw`, `read-bw`, `send-bw`, `msg-rate`: as much as goes, over message sizes.

use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use dataplane::dpdk::Eal;
use serde::Serialize;

use super::Operation;
use super::end::{Task, Worker};
use super::load::{Crc, Load};
use super::pair::{self, End, Terms};
use crate::roofline::Handoff;
use crate::{Gate, Progress, Report, bandwidth_gbps, median, on_two_cores};

/// Sizes that are measured unless told otherwise.
const USUAL: [u64; 5] = [64, 1 << 10, 4 << 10, 64 << 10, 1 << 20];
/// Sizes of the message rate.
const SMALL: [u64; 2] = [8, 64];
/// Octets in buffers that a target keeps posted, at least.
const POSTED: u64 = 4 << 20;

/// What to measure.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Options {
    #[command(flatten)]
    #[serde(flatten)]
    load: Load,
    /// Queue pairs.
    #[arg(short = 'q', long = "qp", value_name = "COUNT,…", value_delimiter = ',', default_value = "1")]
    qps: Vec<u16>,
    /// Messages under way on each queue pair.
    #[arg(short = 't', long, default_value_t = 128)]
    tx_depth: u16,
    /// Both ends send.
    #[arg(short = 'b', long)]
    bidirectional: bool,
    /// Messages up to this size are copied into the queue when they are posted.
    #[arg(short = 'I', long, value_name = "BYTES", default_value_t = 0)]
    inline_size: u16,
    /// Runs per row; the median counts.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Do not measure the hand-off without a protocol that each row is compared with.
    #[arg(long)]
    no_roofline: bool,
}

/// One row.
#[derive(Clone, Debug, Serialize)]
pub struct BandwidthRow {
    /// What was done.
    pub operation: Operation,
    /// Octets of a message.
    pub size: u64,
    /// Largest IP packet, octets.
    pub mtu: u16,
    /// MPA's CRC32c.
    pub crc: Crc,
    /// Queue pairs.
    pub qps: u16,
    /// Both ends sent.
    pub bidirectional: bool,
    /// Messages in all runs.
    pub messages: u64,
    /// The best run, Gbit/s of payload.
    pub gbps_peak: f64,
    /// The median of the runs, Gbit/s of payload, both directions together.
    pub gbps: f64,
    /// Million messages per second, of the median.
    pub mpps: f64,
    /// This by what the same cores hand over without a protocol, of the same region size; 0 if not measured.
    pub of_handoff: f64,
    /// Share of their time that initiator and target spent in rounds that moved a frame, in the last run.
    pub busy: [f64; 2],
    /// TCP segments sent again, in all runs.
    pub retransmits: u64,
    /// Octets compared at the end and found the same.
    pub octets_verified: u64,
    /// Whether the regions are of hugepages.
    pub hugepages: bool,
}

/// Bandwidths, and the hand-off in the same run.
#[derive(Clone, Debug, Serialize)]
pub struct BandwidthReport {
    /// By MTU.
    pub handoff: Vec<(u16, f64)>,
    /// One for each combination.
    pub rows: Vec<BandwidthRow>,
}

/// Measures one operation.
///
/// # Errors
/// Not enough memory, a CPU that cannot be had, or a connection that fails.
pub fn run(operation: Operation, options: &Options) -> Result<BandwidthReport> {
    measure(&[operation], &USUAL, options)
}

/// Measures the rate of small Writes and Sends.
///
/// # Errors
/// As [`run`].
pub fn message_rate(options: &Options) -> Result<BandwidthReport> {
    measure(&[Operation::Write, Operation::Send], &SMALL, options)
}

/// Octets of a message that fill a segment, with TCP's timestamps.
pub(super) fn payload_of(mtu: u16) -> usize {
    const HEADERS: u16 = 20 + 32 + 2 + 14 + 4;
    usize::from(mtu.saturating_sub(HEADERS)) / 4 * 4
}

fn measure(operations: &[Operation], usual: &[u64], options: &Options) -> Result<BandwidthReport> {
    let load = &options.load;
    let rows = load.rows(usual);
    let count = rows.len() * options.qps.len() * operations.len();
    pair::check(load)?;
    let progress = Progress::new(count + load.mtu.len());
    let mut handoff = Vec::new();
    for mtu in load.mtu.iter().filter(|_| !options.no_roofline) {
        progress.step(format!("hand-off at MTU {mtu}"));
        let roof = Handoff {
            cores: load.cores,
            region_bytes: load.region,
            buffers: usize::from(load.descriptors),
            seconds: load.duration.min(2.0),
            runs: options.runs,
        };
        handoff.push((*mtu, roof.measure(payload_of(*mtu))?.gbps));
    }
    let eal = pair::start_dpdk(load)?;
    let mut report = BandwidthReport { handoff, rows: Vec::new() };
    for operation in operations {
        for (mtu, crc, size) in &rows {
            for qps in &options.qps {
                progress.step(format!("{} of {size} at MTU {mtu}, {qps} queue pairs", operation.name()));
                let roof = report.handoff.iter().find(|(of, _)| of == mtu).map_or(0.0, |(_, gbps)| *gbps);
                report.rows.push(row(&eal, options, *operation, (*mtu, *crc, *size, *qps), roof)?);
            }
        }
    }
    Ok(report)
}

fn row(
    eal: &Eal,
    options: &Options,
    operation: Operation,
    (mtu, crc, size, qps): (u16, Crc, u64, u16),
    handoff: f64,
) -> Result<BandwidthRow> {
    let inline = size <= u64::from(options.inline_size) && operation != Operation::Read;
    let receives = operation == Operation::Send;
    let receive_depth = if receives { (POSTED / size).clamp(64, 8192) } else { 0 };
    let terms = Terms {
        mtu,
        crc,
        qps,
        send_depth: options.tx_depth,
        receive_depth: u16::try_from(receive_depth)?,
        inline: if inline { options.inline_size } else { 0 },
        out_of_order: true,
    };
    let limit = options.load.iters.unwrap_or(u64::MAX);
    let task = Task {
        operation,
        size: u32::try_from(size)?,
        depth: options.tx_depth,
        receive_depth: terms.receive_depth,
        limit,
        inline,
    };
    let mut runs = Vec::new();
    for _ in 0..options.runs.max(1) {
        let mut ends = pair::open(eal, &options.load, &terms)?;
        runs.push(once(&mut ends, options, &task)?);
    }
    let rates: Vec<f64> = runs.iter().map(|run| run.gbps).collect();
    let gbps = median(&rates);
    Ok(BandwidthRow {
        operation,
        size,
        mtu,
        crc,
        qps,
        bidirectional: options.bidirectional,
        messages: runs.iter().map(|run| run.octets / size).sum(),
        gbps_peak: rates.iter().copied().fold(0.0, f64::max),
        gbps,
        mpps: gbps * 1e9 / 8.0 / size as f64 / 1e6,
        of_handoff: if handoff > 0.0 { gbps / handoff } else { 0.0 },
        busy: runs.last().map_or([0.0; 2], |run| run.busy),
        retransmits: runs.iter().map(|run| run.retransmits).sum(),
        octets_verified: runs.iter().map(|run| run.verified).sum(),
        hugepages: runs.iter().all(|run| run.hugepages),
    })
}

/// What one run has come to.
struct Run {
    octets: u64,
    gbps: f64,
    busy: [f64; 2],
    retransmits: u64,
    verified: u64,
    hugepages: bool,
}

fn once(ends: &mut [End; 2], options: &Options, task: &Task) -> Result<Run> {
    let [left, right] = ends;
    let idle = Task { limit: 0, ..*task };
    let far_task = if options.bidirectional { task } else { &idle };
    // An end that is not sent to needs no buffers.
    let near_task = Task { receive_depth: far_task.limit.min(1) as u16 * task.receive_depth, ..*task };
    let phases = Phases::new(&options.load, task, left.qps.len(), options.bidirectional);
    let (near, far) = on_two_cores(
        options.load.cores,
        || phases.drive(left, &near_task, || {}),
        || phases.drive(right, far_task, || {}),
    )?;
    let octets = near.octets + far.octets;
    let gbps = if task.limit == u64::MAX {
        bandwidth_gbps(near.octets, near.seconds) + bandwidth_gbps(far.octets, far.seconds)
    } else {
        bandwidth_gbps(octets, near.seconds.max(far.seconds))
    };
    let verified = verify(left, right, near.slice)? + verify(right, left, near.slice)?;
    let retransmits = [&*left, &*right].map(|end| end.node.verbs().stack().stats().tcp.retransmits);
    let hugepages = left.sink_memory.is_huge() && right.sink_memory.is_huge();
    Ok(Run {
        octets,
        gbps,
        busy: [near.busy, far.busy],
        retransmits: retransmits.iter().sum(),
        verified,
        hugepages,
    })
}

/// Compares what was placed, where all of it was, with what it was placed from.
fn verify(to: &End, from: &End, slice: u64) -> Result<u64> {
    let gone_through = slice * to.qps.len() as u64;
    // Queue pairs take turns; with one more round than the region has, none has left out anything.
    if to.placed() < 2 * gone_through {
        return Ok(0);
    }
    for index in 0..to.qps.len() as u64 {
        let same = pair::is_same(&to.sink_memory, &from.source_memory, index * slice, slice);
        ensure!(same, "what was placed is not what was sent");
    }
    Ok(gone_through)
}

/// When the two threads begin to count, and when they end.
pub(super) struct Phases {
    warm_up: Duration,
    end: Duration,
    /// With a number of messages: octets to be placed at each end that is sent to.
    expected: Option<u64>,
    bidirectional: bool,
    operation: Operation,
    finished: AtomicUsize,
    failed: Gate,
}

/// What one end has seen.
pub(super) struct Seen {
    /// Octets placed at this end.
    pub(super) octets: u64,
    pub(super) seconds: f64,
    /// Share of this end's rounds, in time, that moved a frame.
    busy: f64,
    slice: u64,
}

impl Phases {
    pub(super) fn new(load: &Load, task: &Task, qps: usize, bidirectional: bool) -> Self {
        let time = Duration::from_secs_f64(load.duration);
        let expected = load.iters.map(|count| count * u64::from(task.size) * qps as u64);
        let warm_up = if expected.is_some() { Duration::ZERO } else { time / 5 };
        Self {
            warm_up,
            end: warm_up + time,
            expected,
            bidirectional,
            operation: task.operation,
            finished: AtomicUsize::new(0),
            failed: Gate::default(),
        }
    }

    /// Runs an end until both have seen the time pass, or what was expected arrive; `between` is called each round.
    pub(super) fn drive(&self, end: &mut End, task: &Task, between: impl FnMut()) -> Result<Seen> {
        let outcome = self.drive_on(end, task, between);
        if outcome.is_err() {
            self.failed.close();
        }
        outcome
    }

    fn drive_on(&self, end: &mut End, task: &Task, mut between: impl FnMut()) -> Result<Seen> {
        let _registered = end.node.enter()?;
        let mut worker = Worker::new(end, task)?;
        // Where payload arrives: reads bring it to the one that posts.
        let sends = task.limit > 0;
        let is_sink = self.bidirectional || sends == (self.operation == Operation::Read);
        let expected = self.expected.map(|octets| if is_sink { octets } else { 0 });
        // Buffers are there before the first message is.
        worker.turn(end)?;
        end.node.poll();
        let start = end.node.now();
        let (mut since, mut seen) = (None, None);
        while self.finished.load(Ordering::Acquire) < 2 {
            ensure!(self.failed.is_open(), "the other end has failed");
            end.node.poll();
            worker.turn(end)?;
            between();
            if seen.is_some() {
                continue;
            }
            let elapsed = end.node.now().saturating_since(start);
            let over = match expected {
                Some(octets) => end.placed() >= octets && worker.is_through(),
                None => elapsed >= self.end,
            };
            if since.is_none() && elapsed >= self.warm_up {
                since = Some((elapsed, if expected.is_some() { 0 } else { end.placed() }));
            }
            if let Some((began, before)) = since.filter(|_| over) {
                let seconds = elapsed.saturating_sub(began).as_secs_f64();
                let (octets, slice) = (end.placed() - before, worker.slice());
                seen = Some(Seen { octets, seconds, busy: end.busy(), slice });
                self.finished.fetch_add(1, Ordering::AcqRel);
            }
        }
        seen.context("the other end has counted twice")
    }
}

impl Report for BandwidthReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        for (mtu, gbps) in &self.handoff {
            writeln!(out, "# hand-off without a protocol, MTU {mtu}: {gbps:.2} Gb/s")?;
        }
        writeln!(
            out,
            "\n{:>6} {:>8} {:>5} {:>4} {:>4} {:>12} {:>15} {:>17} {:>14} {:>10} {:>10}",
            "op",
            "#bytes",
            "MTU",
            "CRC",
            "#qp",
            "#iterations",
            "BW peak[Gb/sec]",
            "BW average[Gb/sec]",
            "MsgRate[Mpps]",
            "of handoff",
            "busy[%]"
        )?;
        for row in &self.rows {
            let crc = if row.crc == Crc::On { "on" } else { "off" };
            write!(
                out,
                "{:>6} {:>8} {:>5} {crc:>4} {:>4} ",
                row.operation.name(),
                row.size,
                row.mtu,
                row.qps
            )?;
            write!(
                out,
                "{:>12} {:>15.2} {:>17.2} {:>14.4}",
                row.messages, row.gbps_peak, row.gbps, row.mpps
            )?;
            match row.of_handoff {
                0.0 => write!(out, " {:>10}", "-")?,
                ratio => write!(out, " {:>9.1}%", ratio * 100.0)?,
            }
            let [near, far] = row.busy.map(|share| share * 100.0);
            writeln!(out, " {:>10}", format!("{near:.0}/{far:.0}"))?;
        }
        Ok(())
    }
}
