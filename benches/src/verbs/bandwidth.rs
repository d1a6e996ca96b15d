//! `write-bw`, `read-bw`, `send-bw`, `msg-rate`: as much as goes, over message sizes.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};

use super::end::{Task, Worker};
use super::link::{Game, Play, Side, Wire};
use super::load::{Crc, Load};
use super::pair::{self, End, Terms};
use super::partner::Meeting;
use super::steady::Steady;
use super::{Link, Operation};
use crate::roofline::{Handoff, Prepared};
use crate::{Progress, Report, Samples, bandwidth_gbps, median};

/// Sizes that are measured unless told otherwise.
const USUAL: [u64; 5] = [64, 1 << 10, 4 << 10, 64 << 10, 1 << 20];
/// Sizes of the message rate.
const SMALL: [u64; 2] = [8, 64];
/// Bytes in buffers that a target keeps posted, at least.
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
    /// Bytes of a message.
    pub size: u64,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// What joined the two ends.
    pub link: Link,
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
    /// What the same cores hand over without a protocol, of the same region size, Gbit/s: of each run the mean of that
    /// before it and that after it.
    pub handoff_gbps: Option<Samples>,
    /// Each run's bandwidth by its hand-off.
    pub of_handoff: Option<Samples>,
    /// Runs that do not count: the hand-offs before and after them were those of two machines.
    pub thrown_away: u64,
    /// Share of their time that initiator and target spent in rounds that moved a frame.
    pub busy: [f64; 2],
    /// CPU seconds per GiB delivered, of both ends, in rounds that moved a frame.
    pub cpu_busy_s_per_gib: f64,
    /// The same in all rounds: those that found nothing to do, which a poll loop does not sleep through, among them.
    pub cpu_s_per_gib: f64,
    /// TCP segments sent again, in all runs.
    pub retransmits: u64,
    /// Bytes compared at the end and found the same.
    pub bytes_verified: u64,
    /// Whether the regions are of hugepages.
    pub hugepages: bool,
}

/// Bandwidths.
#[derive(Clone, Debug, Serialize)]
pub struct BandwidthReport {
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

/// Bytes of a message that fill a segment, with TCP's timestamps.
pub(super) fn payload_of(mtu: u16) -> usize {
    const HEADERS: u16 = 20 + 32 + 2 + 14 + 4;
    usize::from(mtu.saturating_sub(HEADERS)) / 4 * 4
}

fn measure(operations: &[Operation], usual: &[u64], options: &Options) -> Result<BandwidthReport> {
    let load = &options.load;
    let rows = load.rows(usual);
    pair::check(load)?;
    let progress = Progress::new(rows.len() * options.qps.len() * operations.len());
    // It changes with the machine's mood, and what is compared with it does: it is measured with every run.
    let roof = Handoff {
        cores: load.cores,
        region_bytes: load.region,
        buffers: usize::from(load.descriptors),
        seconds: (load.duration / 2.0).min(1.0),
        runs: 1,
    };
    let roof = if options.no_roofline { None } else { Some(roof.prepare()?) };
    let mut wire = Wire::new(load)?;
    let mut report = BandwidthReport { rows: Vec::new() };
    for operation in operations {
        for (mtu, crc, size) in &rows {
            for qps in &options.qps {
                progress.step(format!("{} of {size} at MTU {mtu}, {qps} queue pairs", operation.name()));
                let of = (*mtu, *crc, *size, *qps);
                report.rows.push(row(&mut wire, options, *operation, of, roof.as_ref())?);
            }
        }
    }
    Ok(report)
}

fn row(
    wire: &mut Wire,
    options: &Options,
    operation: Operation,
    (mtu, crc, size, qps): (u16, Crc, u64, u16),
    roof: Option<&Prepared>,
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
    let game = Bulk::new(&options.load, &task, options.bidirectional);
    let Compared { runs, handoffs, thrown_away } = compared(wire, options, &terms, &game, roof)?;
    let rates: Vec<f64> = runs.iter().map(|run| game.gbps(run)).collect();
    let gbps = median(&rates);
    let ratios = rates.iter().zip(&handoffs).map(|(rate, handoff)| rate / handoff).collect();
    let samples = |values| if roof.is_some() { Samples::new(values).map(Some) } else { Ok(None) };
    let ends = || runs.iter().flat_map(|(near, far)| [near, far]);
    let sum = |of: fn(&Seen) -> u64| ends().map(of).sum::<u64>();
    let per_gib = |nanos: u64| nanos as f64 / 1e9 * f64::from(1 << 30) / sum(|seen| seen.bytes).max(1) as f64;
    let busy = |of: fn(&(Seen, Seen)) -> &Seen| {
        let nanos = |index: usize| runs.iter().filter_map(|run| of(run).spent_ns.get(index)).sum::<u64>();
        nanos(0) as f64 / nanos(1).max(1) as f64
    };
    Ok(BandwidthRow {
        operation,
        size,
        mtu,
        link: options.load.link,
        crc,
        qps,
        bidirectional: options.bidirectional,
        messages: sum(|seen| seen.bytes) / size,
        gbps_peak: rates.iter().copied().fold(0.0, f64::max),
        gbps,
        mpps: gbps * 1e9 / 8.0 / size as f64 / 1e6,
        handoff_gbps: samples(handoffs)?,
        of_handoff: samples(ratios)?,
        thrown_away,
        busy: [busy(|(near, _)| near), busy(|(_, far)| far)],
        cpu_busy_s_per_gib: per_gib(sum(|seen| seen.spent_ns[0])),
        cpu_s_per_gib: per_gib(sum(|seen| seen.spent_ns[1])),
        retransmits: sum(|seen| seen.retransmits),
        bytes_verified: sum(|seen| seen.verified),
        hugepages: ends().all(|seen| seen.hugepages),
    })
}

/// Runs, and the hand-off of each where there is one.
struct Compared {
    runs: Vec<(Seen, Seen)>,
    handoffs: Vec<f64>,
    thrown_away: u64,
}

/// Plays as often as asked, each time between two hand-offs.
fn compared(
    wire: &mut Wire,
    options: &Options,
    terms: &Terms,
    game: &Bulk,
    roof: Option<&Prepared>,
) -> Result<Compared> {
    let wanted = options.runs.max(1);
    let hand_over = || roof.map(|roof| roof.once(payload_of(terms.mtu))).transpose();
    let mut steady = hand_over()?.map(|before| Steady::new(before, wanted));
    let (mut runs, mut handoffs) = (Vec::new(), Vec::new());
    while runs.len() < wanted {
        let run = wire.play(&options.load, terms, game)?;
        if let (Some(steady), Some(after)) = (&mut steady, hand_over()?) {
            let Some(handoff) = steady.judge(after) else { continue };
            handoffs.push(handoff);
        }
        runs.push(run);
    }
    Ok(Compared { runs, handoffs, thrown_away: steady.map_or(0, |steady| steady.thrown()) })
}

/// As many messages as go, in one direction or both, for a time or up to a number.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Bulk {
    task: Task,
    bidirectional: bool,
    /// Seconds that count.
    duration: f64,
    /// Messages on each queue pair, in place of a time.
    iters: Option<u64>,
}

/// What one end has seen.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Seen {
    /// Bytes placed at this end.
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    /// Nanoseconds of its thread: in rounds that moved a frame, and in all.
    spent_ns: [u64; 2],
    retransmits: u64,
    /// Bytes compared and found the same.
    verified: u64,
    hugepages: bool,
}

impl Game for Bulk {
    type Near = Seen;
    type Far = Seen;

    fn near(&self, end: &mut End, meeting: &Meeting) -> Result<Seen> {
        self.drive(end, Side::Near, meeting, || {})
    }

    fn far(&self, end: &mut End, meeting: &Meeting) -> Result<Seen> {
        self.drive(end, Side::Far, meeting, || {})
    }

    fn order(self) -> Play {
        Play::Bulk(self)
    }
}

impl Bulk {
    pub(super) fn new(load: &Load, task: &Task, bidirectional: bool) -> Self {
        Self { task: *task, bidirectional, duration: load.duration, iters: load.iters }
    }

    /// Payload of both directions by the time that it took.
    fn gbps(&self, (near, far): &(Seen, Seen)) -> f64 {
        if self.iters.is_some() {
            bandwidth_gbps(near.bytes + far.bytes, near.seconds.max(far.seconds))
        } else {
            bandwidth_gbps(near.bytes, near.seconds) + bandwidth_gbps(far.bytes, far.seconds)
        }
    }

    /// What one of the ends is to do: only one that is sent to needs buffers.
    fn task(&self, side: Side) -> Task {
        match side {
            Side::Near if !self.bidirectional => Task { receive_depth: 0, ..self.task },
            Side::Far if !self.bidirectional => Task { limit: 0, ..self.task },
            Side::Near | Side::Far => self.task,
        }
    }

    /// Bytes that are to arrive at one of the ends, with a number of messages: Reads bring them to the one that posts.
    fn expected(&self, side: Side, qps: usize) -> Option<u64> {
        let sink = if self.task.operation == Operation::Read { Side::Near } else { Side::Far };
        let bytes = |count| count * u64::from(self.task.size) * qps as u64;
        self.iters.map(|count| if self.bidirectional || side == sink { bytes(count) } else { 0 })
    }

    /// Runs an end until both have seen the time pass, or what was expected arrive; `between` is called each round.
    pub(super) fn drive(
        &self,
        end: &mut End,
        side: Side,
        meeting: &Meeting,
        mut between: impl FnMut(),
    ) -> Result<Seen> {
        let (task, expected) = (self.task(side), self.expected(side, end.qps.len()));
        let time = Duration::from_secs_f64(self.duration);
        let warm_up = if expected.is_some() { Duration::ZERO } else { time / 5 };
        let _registered = end.node.enter()?;
        let mut worker = Worker::new(end, &task)?;
        // Buffers are there before the first message is.
        worker.turn(end)?;
        end.node.poll();
        let start = end.node.now();
        let (mut since, mut seen) = (None, None);
        while meeting.arrived() < 2 || seen.is_none() {
            ensure!(meeting.is_open(), "the other end has failed");
            end.node.poll();
            worker.turn(end)?;
            between();
            if seen.is_some() {
                continue;
            }
            let elapsed = end.node.now().saturating_since(start);
            let over = match expected {
                Some(bytes) => end.placed() >= bytes && worker.is_through(),
                None => elapsed >= warm_up + time,
            };
            if since.is_none() && elapsed >= warm_up {
                since = Some((elapsed, if expected.is_some() { 0 } else { end.placed() }, end.spent_ns()));
            }
            if let Some((began, before, [busy, total])) = since.filter(|_| over) {
                let [busy_now, total_now] = end.spent_ns();
                seen = Some(Seen {
                    bytes: end.placed() - before,
                    seconds: elapsed.saturating_sub(began).as_secs_f64(),
                    spent_ns: [busy_now - busy, total_now - total],
                    retransmits: 0,
                    verified: 0,
                    hugepages: end.sink_memory.is_huge(),
                });
                meeting.arrive()?;
            }
        }
        let seen = seen.context("both have seen enough")?;
        let retransmits = end.node.verbs().stack().stats().tcp.retransmits;
        Ok(Seen { retransmits, verified: self.verify(end, worker.slice())?, ..seen })
    }

    /// Compares what was placed with what it was placed from, once that is twice as much as there is room for: the sources of
    /// both ends are the same. A queue pair that came to be behind the others may have left some of its part as it was.
    fn verify(&self, end: &End, slice: u64) -> Result<u64> {
        let gone_through = slice * end.qps.len() as u64;
        // What is sent inline does not come from the source.
        if end.placed() < 2 * gone_through || self.task.inline {
            return Ok(0);
        }
        let same = |index| pair::same(&end.sink_memory, &end.source_memory, index * slice, slice);
        let same = (0..end.qps.len() as u64).map(same).sum::<Option<u64>>();
        same.context("what was placed is not what was sent")
    }
}

impl Report for BandwidthReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "\n{:>6} {:>8} {:>5} {:>5} {:>4} {:>4} {:>12} {:>15} {:>17} {:>14} {:>12} {:>22} {:>10} {:>11} {:>10}",
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
                "{:>6} {:>8} {:>5} {:>5} {crc:>4} {:>4} ",
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
            let handoff =
                row.handoff_gbps.as_ref().map_or_else(|| "-".to_owned(), |it| format!("{:.2}", it.median));
            let ratio = row.of_handoff.as_ref().map_or_else(|| "-".to_owned(), |ratio| ratio.show(2));
            write!(out, " {handoff:>12} {ratio:>22}")?;
            let [near, far] = row.busy.map(|share| share * 100.0);
            write!(out, " {:>10}", format!("{near:.0}/{far:.0}"))?;
            writeln!(out, " {:>11.3} {:>10.3}", row.cpu_busy_s_per_gib, row.cpu_s_per_gib)?;
        }
        let thrown = self.rows.iter().map(|row| row.thrown_away).sum::<u64>();
        if thrown > 0 {
            writeln!(
                out,
                "{thrown} runs do not count: the hand-offs before and after them differ by more than half"
            )?;
        }
        Ok(())
    }
}
