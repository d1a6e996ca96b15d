//! `write-bw`, `read-bw`, `send-bw`, `msg-rate`: bandwidth and message rate over message sizes.
//!
//! Each run stands between two measurements of the hand-off without a protocol ([`Handoff`]) and is divided by their
//! mean.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use rdma::CrcPolicy;
use serde::{Deserialize, Serialize};
use tcp_stack::Instant;

use super::baseline_guard::BaselineGuard;
use super::driver::{TrafficDriver, TrafficSpec};
use super::end::{End, count_equal};
use super::link::{BenchKind, Harness, TwoSided};
use super::load::{Link, Load, Operation};
use super::node::{BenchNode, PairSetup, Role};
use super::nodes;
use super::peer_process::Rendezvous;
use super::program::ProgramEnd;
use crate::roofline::{Handoff, Prepared};
use crate::{Progress, Report, Samples, Stopwatch, bandwidth_gbps, median};

/// Default message sizes, bytes.
const DEFAULT_SIZES: [u64; 5] = [64, 1 << 10, 4 << 10, 64 << 10, 1 << 20];
/// Default message sizes of `msg-rate`, bytes.
const SMALL: [u64; 2] = [8, 64];
/// Bytes of receive buffers that a target keeps posted, at least.
const POSTED_BYTES: u64 = 4 << 20;

/// Command-line flags of the bandwidth benchmarks.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Options {
    #[command(flatten)]
    #[serde(flatten)]
    load: Load,
    /// Number of connected queue pairs.
    #[arg(short = 'q', long = "qp", value_name = "COUNT,…", value_delimiter = ',', default_value = "1")]
    qps: Vec<u16>,
    /// Messages in flight on each queue pair.
    #[arg(short = 't', long, default_value_t = 128)]
    tx_depth: u16,
    /// Both nodes send at once.
    #[arg(short = 'b', long)]
    bidirectional: bool,
    /// Largest message that is copied into the queue when it is posted.
    #[arg(short = 'I', long, value_name = "BYTES", default_value_t = 0)]
    inline_size: u16,
    /// Runs per row; the median counts.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Do not measure the hand-off without a protocol, with which each row is compared.
    #[arg(long)]
    no_roofline: bool,
}

/// Result of one combination of flags.
#[derive(Clone, Debug, Serialize)]
pub struct BandwidthRow {
    /// Operation that the row measures.
    pub operation: Operation,
    /// Bytes of a message.
    pub size: u64,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Link between the nodes.
    pub link: Link,
    /// Use of MPA's CRC32c.
    #[serde(with = "super::crc")]
    pub crc: CrcPolicy,
    /// Number of queue pairs.
    pub qps: u16,
    /// True if both nodes sent.
    pub bidirectional: bool,
    /// Messages in all runs.
    pub messages: u64,
    /// The best run, Gbit/s of payload.
    pub gbps_peak: f64,
    /// The median of the runs, Gbit/s of payload, both directions together.
    pub gbps: f64,
    /// Million messages per second, of the median.
    pub mpps: f64,
    /// Hand-off of the same cores without a protocol, with the same region size, Gbit/s: for each run the mean of the
    /// measurements before and after it.
    pub handoff_gbps: Option<Samples>,
    /// Bandwidth of each run divided by its hand-off.
    pub of_handoff: Option<Samples>,
    /// Runs that do not count, because the hand-offs before and after them differ by more than half.
    #[serde(rename = "thrown_away")]
    pub discarded: u64,
    /// Fraction of time that initiator and target spent in poll iterations that moved a frame; this and the following
    /// ones are `None` if a daemon does their work.
    pub busy: Option<[f64; 2]>,
    /// CPU seconds per GiB delivered, of both nodes, in poll iterations that moved a frame.
    pub cpu_busy_s_per_gib: Option<f64>,
    /// CPU seconds per GiB delivered, of both nodes, in all poll iterations, idle ones included.
    pub cpu_s_per_gib: Option<f64>,
    /// TCP segments retransmitted, in all runs.
    pub retransmits: Option<u64>,
    /// Bytes compared with the source at the end, and equal.
    pub bytes_verified: u64,
    /// True if the regions are on hugepages; `None` if they are a daemon's.
    pub hugepages: Option<bool>,
}

/// Rows of a bandwidth benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct BandwidthReport {
    /// One row for each combination of flags.
    pub rows: Vec<BandwidthRow>,
}

/// Measures the bandwidth of one operation.
///
/// # Errors
/// There is not enough memory, a CPU is not available, or a connection fails.
pub fn run(operation: Operation, options: &Options) -> Result<BandwidthReport> {
    measure(&[operation], &DEFAULT_SIZES, options)
}

/// Measures the rate of small Writes and Sends.
///
/// # Errors
/// As for [`run`].
pub fn message_rate(options: &Options) -> Result<BandwidthReport> {
    measure(&[Operation::Write, Operation::Send], &SMALL, options)
}

/// Returns the payload of an FPDU that fills a segment with TCP timestamps, bytes.
pub(super) fn payload_of(mtu: u16) -> usize {
    const HEADERS: u16 = 20 + 32 + 2 + 14 + 4;
    usize::from(mtu.saturating_sub(HEADERS)) / 4 * 4
}

fn measure(operations: &[Operation], usual: &[u64], options: &Options) -> Result<BandwidthReport> {
    let load = &options.load;
    let rows = load.rows(usual);
    nodes::check(load)?;
    let progress = Progress::new(rows.len() * options.qps.len() * operations.len());
    // The hand-off varies with other load on the host, as the runs do: it is measured beside every run.
    let baseline = Handoff {
        cores: load.cores,
        region_bytes: load.region,
        buffers: usize::from(load.descriptors),
        seconds: (load.duration / 2.0).min(1.0),
        runs: 1,
    };
    let baseline = if options.no_roofline { None } else { Some(baseline.prepare()?) };
    let mut harness = Harness::new(load)?;
    let mut report = BandwidthReport { rows: Vec::new() };
    for operation in operations {
        for (mtu, crc, size) in &rows {
            for qps in &options.qps {
                progress.step(format!("{} of {size} at MTU {mtu}, {qps} queue pairs", operation.name()));
                let of = (*mtu, *crc, *size, *qps);
                report.rows.push(row(&mut harness, options, *operation, of, baseline.as_ref())?);
            }
        }
    }
    Ok(report)
}

fn row(
    harness: &mut Harness,
    options: &Options,
    operation: Operation,
    (mtu, crc, size, qps): (u16, CrcPolicy, u64, u16),
    baseline: Option<&Prepared>,
) -> Result<BandwidthRow> {
    let inline = size <= u64::from(options.inline_size) && operation != Operation::Read;
    let receives = operation == Operation::Send;
    let most = options.load.link.receive_depth_max();
    let receive_depth = if receives { (POSTED_BYTES / size).clamp(64, most) } else { 0 };
    let setup = PairSetup {
        mtu,
        crc,
        qps,
        send_depth: options.tx_depth,
        receive_depth: u16::try_from(receive_depth)?,
        inline: if inline { options.inline_size } else { 0 },
        out_of_order: true,
    };
    let limit = options.load.iters.unwrap_or(u64::MAX);
    let traffic = TrafficSpec {
        operation,
        size: u32::try_from(size)?,
        depth: options.tx_depth,
        receive_depth: setup.receive_depth,
        limit,
        inline,
    };
    let bulk = Bulk::new(&options.load, &traffic, options.bidirectional);
    let Runs { runs, handoffs, discarded } = run_all(harness, options, &setup, &bulk, baseline)?;
    let rates: Vec<f64> = runs.iter().map(|run| bulk.gbps(run)).collect();
    let gbps = median(&rates);
    let ratios = rates.iter().zip(&handoffs).map(|(rate, handoff)| rate / handoff).collect();
    let samples = |values| if baseline.is_some() { Samples::new(values).map(Some) } else { Ok(None) };
    let ends = || runs.iter().flat_map(|(initiator, target)| [initiator, target]);
    let sum = |of: fn(&NodeResult) -> u64| ends().map(of).sum::<u64>();
    let per_gib = |nanos: u64| nanos as f64 / 1e9 * f64::from(1 << 30) / sum(|end| end.bytes).max(1) as f64;
    let busy = |of: fn(&(NodeResult, NodeResult)) -> &NodeResult| {
        let spent = |index| spent_ns(runs.iter().map(of), index);
        Some(spent(0)? as f64 / spent(1)?.max(1) as f64)
    };
    Ok(BandwidthRow {
        operation,
        size,
        mtu,
        link: options.load.link,
        crc,
        qps,
        bidirectional: options.bidirectional,
        messages: sum(|end| end.bytes) / size,
        gbps_peak: rates.iter().copied().fold(0.0, f64::max),
        gbps,
        mpps: gbps * 1e9 / 8.0 / size as f64 / 1e6,
        handoff_gbps: samples(handoffs)?,
        of_handoff: samples(ratios)?,
        discarded,
        busy: busy(|(initiator, _)| initiator).zip(busy(|(_, target)| target)).map(Into::into),
        cpu_busy_s_per_gib: spent_ns(ends(), 0).map(per_gib),
        cpu_s_per_gib: spent_ns(ends(), 1).map(per_gib),
        retransmits: ends().map(|end| end.retransmits).sum(),
        bytes_verified: sum(|end| end.verified),
        hugepages: ends()
            .map(|end| end.hugepages)
            .collect::<Option<Vec<_>>>()
            .map(|all| !all.contains(&false)),
    })
}

/// Returns the sum of one of the two times of these nodes; `None` if they have none.
fn spent_ns<'a>(mut nodes: impl Iterator<Item = &'a NodeResult>, index: usize) -> Option<u64> {
    nodes.try_fold(0, |sum, node| Some(sum + node.spent_ns?.get(index)?))
}

/// Results of the runs that count, and the hand-off of each if it was measured.
struct Runs {
    runs: Vec<(NodeResult, NodeResult)>,
    handoffs: Vec<f64>,
    discarded: u64,
}

/// Runs the benchmark as often as the flags say, each time between two hand-offs.
fn run_all(
    harness: &mut Harness,
    options: &Options,
    setup: &PairSetup,
    bulk: &Bulk,
    baseline: Option<&Prepared>,
) -> Result<Runs> {
    let wanted = options.runs.max(1);
    let hand_over = || baseline.map(|baseline| baseline.once(payload_of(setup.mtu))).transpose();
    let mut guard = hand_over()?.map(|before| BaselineGuard::new(before, wanted));
    let (mut runs, mut handoffs) = (Vec::new(), Vec::new());
    while runs.len() < wanted {
        let run = harness.run(&options.load, setup, bulk)?;
        if let (Some(guard), Some(after)) = (&mut guard, hand_over()?) {
            let Some(handoff) = guard.accept(after) else { continue };
            handoffs.push(handoff);
        }
        runs.push(run);
    }
    Ok(Runs { runs, handoffs, discarded: guard.map_or(0, |guard| guard.discarded()) })
}

/// Bulk transfer: as many messages as possible, in one direction or both, for a time or up to a number.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Bulk {
    traffic: TrafficSpec,
    bidirectional: bool,
    /// Duration of the measurement, seconds.
    duration: f64,
    /// Messages on each queue pair, instead of a time.
    iters: Option<u64>,
}

/// Result of one node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct NodeResult {
    /// Bytes placed at this node.
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    /// Nanoseconds of its thread: in poll iterations that moved a frame, and in all; `None` if a daemon does its work.
    spent_ns: Option<[u64; 2]>,
    retransmits: Option<u64>,
    /// Bytes compared and equal.
    verified: u64,
    hugepages: Option<bool>,
}

impl TwoSided for Bulk {
    const KIND: BenchKind = BenchKind::Bulk;
    type Initiated = NodeResult;
    type Served = NodeResult;

    fn initiate(&self, node: &mut BenchNode, rendezvous: &Rendezvous) -> Result<NodeResult> {
        self.drive(node, Role::Initiator, rendezvous, |_| {})
    }

    fn serve(&self, node: &mut BenchNode, rendezvous: &Rendezvous) -> Result<NodeResult> {
        self.drive(node, Role::Target, rendezvous, |_| {})
    }

    fn run_program(&self, ends: &mut [ProgramEnd; 2]) -> Result<(NodeResult, NodeResult)> {
        let [initiator, target] = self.drive_program(ends)?;
        Ok((initiator, target))
    }
}

impl Bulk {
    pub(super) fn new(load: &Load, traffic: &TrafficSpec, bidirectional: bool) -> Self {
        Self { traffic: *traffic, bidirectional, duration: load.duration, iters: load.iters }
    }

    /// Returns the payload bandwidth of both directions together, Gbit/s.
    fn gbps(&self, (initiator, target): &(NodeResult, NodeResult)) -> f64 {
        if self.iters.is_some() {
            bandwidth_gbps(initiator.bytes + target.bytes, initiator.seconds.max(target.seconds))
        } else {
            bandwidth_gbps(initiator.bytes, initiator.seconds) + bandwidth_gbps(target.bytes, target.seconds)
        }
    }

    /// Returns the traffic of a node: only a receiving one needs receive buffers.
    fn traffic(&self, role: Role) -> TrafficSpec {
        match role {
            Role::Initiator if !self.bidirectional => TrafficSpec { receive_depth: 0, ..self.traffic },
            Role::Target if !self.bidirectional => TrafficSpec { limit: 0, ..self.traffic },
            Role::Initiator | Role::Target => self.traffic,
        }
    }

    /// Returns the bytes to be placed at a node if the number of messages is fixed; Reads place at the node that posts.
    fn expected(&self, role: Role, qps: usize) -> Option<u64> {
        let sink = if self.traffic.operation == Operation::Read { Role::Initiator } else { Role::Target };
        let bytes = |count| count * u64::from(self.traffic.size) * qps as u64;
        self.iters.map(|count| if self.bidirectional || role == sink { bytes(count) } else { 0 })
    }

    /// Runs a node until both have measured their time or received all bytes; calls `between` in each iteration, with
    /// the time at which it began.
    pub(super) fn drive(
        &self,
        node: &mut BenchNode,
        role: Role,
        rendezvous: &Rendezvous,
        mut between: impl FnMut(Instant),
    ) -> Result<NodeResult> {
        let (traffic, expected) = (self.traffic(role), self.expected(role, node.qps.len()));
        let time = Duration::from_secs_f64(self.duration);
        let warm_up = if expected.is_some() { Duration::ZERO } else { time / 5 };
        let _registered = node.node.enter()?;
        let mut driver = TrafficDriver::new(node, &traffic)?;
        // Posts receive buffers before the first message can arrive.
        driver.poll(node)?;
        node.node.poll();
        let start = node.node.now();
        let (mut since, mut result) = (None, None);
        while rendezvous.arrived() < 2 || result.is_none() {
            ensure!(rendezvous.is_open(), "the other node has failed");
            node.node.poll();
            driver.poll(node)?;
            between(node.node.now());
            if result.is_some() {
                continue;
            }
            let elapsed = node.node.now().saturating_since(start);
            let over = match expected {
                Some(bytes) => node.placed() >= bytes && driver.is_done(),
                None => elapsed >= warm_up + time,
            };
            if since.is_none() && elapsed >= warm_up {
                since = Some((elapsed, if expected.is_some() { 0 } else { node.placed() }, node.spent_ns()));
            }
            if let Some((began, before, [busy, total])) = since.filter(|_| over) {
                let [busy_now, total_now] = node.spent_ns();
                result = Some(NodeResult {
                    bytes: node.placed() - before,
                    seconds: elapsed.saturating_sub(began).as_secs_f64(),
                    spent_ns: Some([busy_now - busy, total_now - total]),
                    retransmits: None,
                    verified: 0,
                    hugepages: Some(node.sink_memory.is_huge()),
                });
                rendezvous.arrive()?;
            }
        }
        let result = result.context("both nodes have finished")?;
        let retransmits = node.node.engine().stack().stats().tcp.retransmits;
        let verified = self.verify(node, node.placed(), driver.slice())?;
        Ok(NodeResult { retransmits: Some(retransmits), verified, ..result })
    }

    /// Compares the sink with the source, which is equal on both ends, if at least twice the region was placed. A
    /// queue pair that fell behind the others may have left part of its slice untouched. Returns the equal bytes.
    fn verify(&self, end: &impl End, placed: u64, slice: u64) -> Result<u64> {
        let queue_pairs = end.queue_pairs() as u64;
        // Inline messages do not come from the source.
        if placed < 2 * slice * queue_pairs || self.traffic.inline {
            return Ok(0);
        }
        let equal = |index| count_equal(end, index * slice, slice);
        let equal = (0..queue_pairs).map(equal).sum::<Option<u64>>();
        equal.context("the placed bytes differ from the sent ones")
    }

    /// Runs both ends of a program. A message counts as placed once it has completed at its sender; Writes have been
    /// acknowledged then.
    fn drive_program(&self, ends: &mut [ProgramEnd; 2]) -> Result<[NodeResult; 2]> {
        let roles = [Role::Initiator, Role::Target];
        let time = Duration::from_secs_f64(self.duration);
        let warm_up = if self.iters.is_some() { Duration::ZERO } else { time / 5 };
        let [initiator, target] = ends;
        // The target posts its receive buffers before the first message can arrive.
        let mut target_driver = TrafficDriver::new(target, &self.traffic(roles[1]))?;
        target_driver.poll(target)?;
        let mut initiator_driver = TrafficDriver::new(initiator, &self.traffic(roles[0]))?;
        let watch = Stopwatch::start();
        let mut since = None;
        let sends = self.traffic.operation == Operation::Send;
        let (seconds, before) = loop {
            initiator_driver.poll(initiator)?;
            target_driver.poll(target)?;
            let elapsed = watch.elapsed();
            let done = [initiator_driver.done, target_driver.done];
            if since.is_none() && elapsed >= warm_up {
                since = Some((elapsed, if self.iters.is_some() { [0; 2] } else { done }));
            }
            let all_done = || {
                let arrived = |driver: &TrafficDriver, from: u64| !sends || driver.received >= from;
                initiator_driver.is_done()
                    && target_driver.is_done()
                    && arrived(&target_driver, done[0])
                    && arrived(&initiator_driver, done[1])
            };
            let over = if self.iters.is_some() { all_done() } else { elapsed >= warm_up + time };
            if let Some((began, before)) = since.filter(|_| over) {
                break (elapsed.saturating_sub(began).as_secs_f64(), before);
            }
        };
        let done = [initiator_driver.done, target_driver.done];
        let slices = [initiator_driver.slice(), target_driver.slice()];
        let result = |at: usize, end: &ProgramEnd| -> Result<NodeResult> {
            // Reads place at the end that posts them, other messages at the other end.
            let poster = if self.traffic.operation == Operation::Read { at } else { 1 - at };
            let bytes = |messages: u64| messages * u64::from(self.traffic.size);
            let verified = self.verify(end, bytes(done[poster]), slices[at])?;
            let bytes = bytes(done[poster] - before[poster]);
            Ok(NodeResult { bytes, seconds, spent_ns: None, retransmits: None, verified, hugepages: None })
        };
        Ok([result(0, &*initiator)?, result(1, &*target)?])
    }
}

/// Returns the text, or a dash for what was not measured.
fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

impl Report for BandwidthReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "\n{:>6} {:>8} {:>5} {:>6} {:>4} {:>4} {:>12} {:>15} {:>17} {:>14} {:>12} {:>22} {:>10} {:>11} {:>10}",
            "op",
            "#bytes",
            "MTU",
            "link",
            "CRC",
            "#qp",
            "#iterations",
            "BW peak[Gb/sec]",
            "BW average[Gb/sec]",
            "MsgRate[Mpps]",
            "handoff[Gb/s]",
            "of handoff",
            "busy[%]",
            "busy[s/GiB]",
            "all[s/GiB]"
        )?;
        for row in &self.rows {
            let crc = row.crc.name();
            write!(
                out,
                "{:>6} {:>8} {:>5} {:>6} {crc:>4} {:>4} ",
                row.operation.name(),
                row.size,
                row.mtu,
                row.link.name(),
                row.qps
            )?;
            write!(
                out,
                "{:>12} {:>15.2} {:>17.2} {:>14.4}",
                row.messages, row.gbps_peak, row.gbps, row.mpps
            )?;
            let handoff = or_dash(row.handoff_gbps.as_ref().map(|rate| format!("{:.2}", rate.median)));
            let ratio = or_dash(row.of_handoff.as_ref().map(|ratio| ratio.show(2)));
            write!(out, " {handoff:>12} {ratio:>22}")?;
            let busy =
                row.busy.map(|[initiator, target]| format!("{:.0}/{:.0}", initiator * 100.0, target * 100.0));
            let per_gib = |seconds: Option<f64>| seconds.map(|seconds| format!("{seconds:.3}"));
            let [busy, cpu_busy, cpu] =
                [busy, per_gib(row.cpu_busy_s_per_gib), per_gib(row.cpu_s_per_gib)].map(or_dash);
            writeln!(out, " {busy:>10} {cpu_busy:>11} {cpu:>10}")?;
        }
        let discarded = self.rows.iter().map(|row| row.discarded).sum::<u64>();
        if discarded > 0 {
            writeln!(
                out,
                "{discarded} runs do not count: the hand-offs before and after them differ by more than half"
            )?;
        }
        Ok(())
    }
}
