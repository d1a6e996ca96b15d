//! `write-lat`, `read-lat`, `send-lat`: round trips of one message at a time.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use hdrhistogram::Histogram;
use iwarp_engine::Clock;
use rdma::CrcPolicy;
use rdma::verbs::{Data, RecvWr, SendFlags, SendOp, SendWr, Sge, WcStatus, WorkCompletion};
use serde::{Deserialize, Serialize, Serializer};

use super::end::End;
use super::link::{BenchKind, Harness, TwoSided};
use super::load::{Link, Load, Operation};
use super::node::{BenchNode, PairSetup};
use super::nodes;
use super::peer_process::Rendezvous;
use super::program::ProgramEnd;
use crate::cores::preemptions;
use crate::roofline::{HISTOGRAM_MAX_NS, ROUND_TRIP_S, RoundTripRow, round_trips};
use crate::{Progress, Report};

/// Default message sizes, bytes.
const DEFAULT_SIZES: [u64; 3] = [64, 1 << 10, 4 << 10];
/// Receive buffers posted by each node for Sends.
const BUFFERS: u16 = 16;
/// Sent messages whose completions may wait, at most: half of a send queue.
const DEFERRED_MAX: u64 = BUFFERS as u64 / 2;

/// Command-line flags of the latency benchmarks.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Options {
    #[command(flatten)]
    #[serde(flatten)]
    load: Load,
    /// Open loop: begin PER_SECOND round trips per second and measure each from its scheduled start, which corrects for
    /// coordinated omission. Without this, each begins when the one before has ended.
    #[arg(long, value_name = "PER_SECOND")]
    rate: Option<f64>,
}

/// Result of one combination of flags; times are of whole round trips.
#[derive(Clone, Debug, Serialize)]
pub struct LatencyRow {
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
    /// Preemptions of either thread by the kernel meanwhile.
    pub preemptions: u64,
    /// Distribution of the round trips, nanoseconds.
    #[serde(serialize_with = "summary")]
    pub histogram: Histogram<u64>,
}

/// Rows of a latency benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct LatencyReport {
    /// One row for each combination of flags.
    pub rows: Vec<LatencyRow>,
    /// Round trip of a frame over the same rings without a protocol, in the same run; none over memif.
    pub floor: Vec<RoundTripRow>,
}

/// Percentiles of a distribution in JSON reports.
#[derive(Serialize)]
struct Summary {
    samples: u64,
    min_ns: u64,
    p50_ns: u64,
    p90_ns: u64,
    p99_ns: u64,
    p99_9_ns: u64,
    p99_99_ns: u64,
    max_ns: u64,
    mean_ns: f64,
    stdev_ns: f64,
}

fn summary<S: Serializer>(histogram: &Histogram<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    let at = |quantile| histogram.value_at_quantile(quantile);
    let summary = Summary {
        samples: histogram.len(),
        min_ns: histogram.min(),
        p50_ns: at(0.5),
        p90_ns: at(0.9),
        p99_ns: at(0.99),
        p99_9_ns: at(0.999),
        p99_99_ns: at(0.9999),
        max_ns: histogram.max(),
        mean_ns: histogram.mean(),
        stdev_ns: histogram.stdev(),
    };
    summary.serialize(serializer)
}

/// Measures the round trips of one operation.
///
/// # Errors
/// There is not enough memory, a CPU is not available, or a connection fails.
pub fn run(operation: Operation, options: &Options) -> Result<LatencyReport> {
    let rows = options.load.rows(&DEFAULT_SIZES);
    let progress = Progress::new(rows.len());
    nodes::check(&options.load)?;
    let mut harness = Harness::new(&options.load)?;
    let measure = |(mtu, crc, size)| {
        progress.step(format!("{} of {size} at MTU {mtu}", operation.name()));
        row(&mut harness, options, operation, (mtu, crc, size))
    };
    let rows = rows.into_iter().map(measure).collect::<Result<_>>()?;
    let floor = if options.load.link == Link::Ring {
        vec![round_trips(harness.eal(), options.load.cores, ROUND_TRIP_S)?]
    } else {
        Vec::new()
    };
    Ok(LatencyReport { rows, floor })
}

fn row(
    harness: &mut Harness,
    options: &Options,
    operation: Operation,
    (mtu, crc, size): (u16, CrcPolicy, u64),
) -> Result<LatencyRow> {
    let Options { load, rate } = options;
    let (depth, inline, out_of_order) = (BUFFERS, 0, true);
    let setup = PairSetup { mtu, crc, qps: 1, send_depth: depth, receive_depth: depth, inline, out_of_order };
    ensure!((1..=load.region).contains(&size), "a message of {size} bytes does not fit the region");
    let (duration, iters, rate) = (load.duration, load.iters, *rate);
    let bench = PingPong { operation, size: u32::try_from(size)?, duration, iters, rate };
    let ((histogram, initiator_preemptions), target_preemptions) = harness.run(load, &setup, &bench)?;
    let preemptions = initiator_preemptions + target_preemptions;
    let link = load.link;
    Ok(LatencyRow { operation, size, mtu, link, crc, preemptions, histogram })
}

/// Ping-pong of single messages.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PingPong {
    operation: Operation,
    size: u32,
    /// Duration of the measurement, seconds.
    duration: f64,
    /// Round trips, instead of a time.
    iters: Option<u64>,
    /// Round trips per second in an open loop.
    rate: Option<f64>,
}

impl TwoSided for PingPong {
    const KIND: BenchKind = BenchKind::PingPong;
    /// Round trips, and preemptions of the thread.
    type Initiated = (Histogram<u64>, u64);
    /// Preemptions of the thread.
    type Served = u64;

    fn initiate(&self, node: &mut BenchNode, rendezvous: &Rendezvous) -> Result<Self::Initiated> {
        let _registered = node.node.enter()?;
        let mut player = Player::new(node, self);
        player.post_buffers(BUFFERS.into())?;
        let result = self.measure(&mut |step| match step {
            Step::Idle => {
                player.end.step();
                Ok(())
            }
            Step::Trip => {
                player.post()?;
                ensure!(player.wait(rendezvous)?, "the other node has failed");
                Ok(())
            }
        });
        rendezvous.arrive()?;
        result
    }

    /// Answers each message until the initiator has finished.
    fn serve(&self, node: &mut BenchNode, rendezvous: &Rendezvous) -> Result<u64> {
        let _registered = node.node.enter()?;
        let mut player = Player::new(node, self);
        player.post_buffers(BUFFERS.into())?;
        let before = preemptions();
        if self.operation == Operation::Read {
            while is_running(rendezvous) {
                player.end.step();
            }
        }
        while player.wait(rendezvous)? {
            player.post()?;
        }
        Ok(preemptions().saturating_sub(before))
    }

    fn run_program(&self, ends: &mut [ProgramEnd; 2]) -> Result<(Self::Initiated, u64)> {
        let [initiator, target] = ends;
        let (mut initiator, mut target) = (Player::new(initiator, self), Player::new(target, self));
        initiator.post_buffers(BUFFERS.into())?;
        target.post_buffers(BUFFERS.into())?;
        let result = self.measure(&mut |step| {
            if step == Step::Trip {
                initiator.post()?;
                if self.operation != Operation::Read {
                    while !target.has_arrived()? {}
                    target.post()?;
                }
                while !initiator.has_arrived()? {}
            }
            Ok(())
        })?;
        Ok((result, 0))
    }
}

/// Part of a measurement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The next round trip is not due yet.
    Idle,
    /// A round trip begins, and is awaited.
    Trip,
}

impl PingPong {
    /// Measures round trips; returns their times and the preemptions of the thread.
    fn measure(&self, run: &mut dyn FnMut(Step) -> Result<()>) -> Result<(Histogram<u64>, u64)> {
        let mut histogram = Histogram::new_with_bounds(1, HISTOGRAM_MAX_NS, 3)?;
        let time = Duration::from_secs_f64(self.duration);
        let (warm_up, before) = (time / 5, preemptions());
        let (clock, limit) = (Clock::start(), self.iters.unwrap_or(u64::MAX));
        let elapsed = || Duration::from_nanos(clock.now().as_nanos());
        // Number of the first round trip that counts, and its scheduled start.
        let (mut first, mut trip) = (None, 0_u64);
        while histogram.len() < limit {
            let mut began = elapsed();
            if let (Some(rate), Some((first, origin))) = (self.rate, first) {
                let due = origin + Duration::from_secs_f64((trip - first) as f64 / rate);
                while elapsed() < due {
                    run(Step::Idle)?;
                }
                began = due;
            }
            run(Step::Trip)?;
            let ended = elapsed();
            if first.is_some() {
                let nanoseconds = ended.saturating_sub(began).as_nanos();
                histogram.saturating_record(u64::try_from(nanoseconds).unwrap_or(HISTOGRAM_MAX_NS));
            } else if ended >= warm_up {
                first = Some((trip + 1, ended));
            }
            trip += 1;
            if self.iters.is_none() && ended >= warm_up + time {
                break;
            }
        }
        Ok((histogram, preemptions().saturating_sub(before)))
    }
}

/// Returns true until a node has finished or failed.
fn is_running(rendezvous: &Rendezvous) -> bool {
    rendezvous.arrived() == 0 && rendezvous.is_open()
}

/// One end of a ping-pong and its progress.
struct Player<'a, E> {
    end: &'a mut E,
    bench: &'a PingPong,
    /// Messages sent so far.
    sent: u64,
    /// Sent messages whose completions were polled; not counted for Reads.
    completed: u64,
    /// Messages received so far.
    received: u64,
}

impl<'a, E: End> Player<'a, E> {
    fn new(end: &'a mut E, bench: &'a PingPong) -> Self {
        Self { end, bench, sent: 0, completed: 0, received: 0 }
    }

    /// Returns the last byte of a message, by its number: never that of the previous message, nor zero, which fresh
    /// memory has.
    fn mark(number: u64) -> u8 {
        u8::try_from(number % 255).unwrap_or(0) + 1
    }

    /// Posts the next message.
    fn post(&mut self) -> Result<()> {
        let Self { end, bench: PingPong { operation, size, .. }, sent, .. } = self;
        let ([source, sink], [peer_source, peer_sink]) = (end.regions(), end.peer_regions());
        if *operation != Operation::Read {
            end.write_source(u64::from(*size) - 1, &[Self::mark(*sent)])?;
        }
        let (local, op) = match operation {
            Operation::Write => (source, SendOp::RdmaWrite { remote_addr: peer_sink.0, rkey: peer_sink.1 }),
            Operation::Read => (sink, SendOp::RdmaRead { remote_addr: peer_source.0, rkey: peer_source.1 }),
            Operation::Send => (source, SendOp::Send { invalidate: None }),
        };
        let list = [Sge { addr: local.addr, length: *size, lkey: local.lkey }];
        let wr = SendWr { wr_id: *sent, op, data: Data::List(&list), flags: SendFlags::SIGNALED };
        end.post_send(0, &[wr])?;
        *sent += 1;
        Ok(())
    }

    /// Polls until the next message has arrived, or a Read has completed; returns `false` when the other node has
    /// finished.
    fn wait(&mut self, rendezvous: &Rendezvous) -> Result<bool> {
        while is_running(rendezvous) {
            self.end.step();
            if self.has_arrived()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns true if the next message has arrived, or a Read has completed. Polls the send completions only while no
    /// message has arrived: the next message does not wait for them.
    fn has_arrived(&mut self) -> Result<bool> {
        let arrived = match self.bench.operation {
            Operation::Read => self.polled(E::poll_send)? > 0,
            Operation::Write => {
                let (last_at, mut last) = (u64::from(self.bench.size) - 1, [0]);
                self.end.read_sink(last_at, &mut last).is_ok() && last == [Self::mark(self.received)]
            }
            Operation::Send => self.polled(E::poll_recv)? > 0,
        };
        if arrived {
            self.received += 1;
            self.post_buffers(1)?;
        }
        let deferred_max = if arrived { DEFERRED_MAX } else { 0 };
        if self.bench.operation != Operation::Read && self.uncompleted() > deferred_max {
            self.completed += self.polled(E::poll_send)?;
        }
        Ok(arrived)
    }

    /// Returns the number of sent messages whose completions were not polled.
    const fn uncompleted(&self) -> u64 {
        self.sent.saturating_sub(self.completed)
    }

    /// Takes completions; returns their number.
    fn polled(&mut self, poll: impl Fn(&mut E, &mut [WorkCompletion]) -> Result<usize>) -> Result<u64> {
        let mut completions = [WorkCompletion::default(); 4];
        let count = poll(&mut *self.end, &mut completions)?;
        let succeeded = completions.iter().take(count).all(|wc| wc.status == WcStatus::Success);
        ensure!(succeeded, "{completions:?}");
        Ok(count as u64)
    }

    /// Posts receive buffers if the operation is Send.
    fn post_buffers(&mut self, count: u64) -> Result<()> {
        if self.bench.operation != Operation::Send {
            return Ok(());
        }
        let [_, sink] = self.end.regions();
        let list = [Sge { addr: sink.addr, length: self.bench.size, lkey: sink.lkey }];
        for wr_id in 0..count {
            self.end.post_recv(0, &[RecvWr { wr_id, sg_list: &list }])?;
        }
        Ok(())
    }
}

impl Report for LatencyReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "\nround trips, microseconds\n\
             {:>6} {:>7} {:>5} {:>6} {:>4} {:>11} {:>8} {:>8} {:>9} {:>8} {:>8} {:>8} {:>9} \
             {:>9} {:>11}",
            "op",
            "#bytes",
            "MTU",
            "link",
            "CRC",
            "#iterations",
            "t_min",
            "t_max",
            "t_typical",
            "t_avg",
            "t_stdev",
            "99%",
            "99.9%",
            "99.99%",
            "preemptions"
        )?;
        for row in &self.rows {
            let crc = row.crc.name();
            let us = |nanoseconds: f64| nanoseconds / 1e3;
            let at = |quantile| us(row.histogram.value_at_quantile(quantile) as f64);
            let (min, max) = (us(row.histogram.min() as f64), us(row.histogram.max() as f64));
            let (mean, stdev) = (us(row.histogram.mean()), us(row.histogram.stdev()));
            let (operation, link) = (row.operation.name(), row.link.name());
            write!(out, "{operation:>6} {:>7} {:>5} {link:>6} {crc:>4} ", row.size, row.mtu)?;
            write!(out, "{:>11} {min:>8.2} {max:>8.2} {:>9.2} ", row.histogram.len(), at(0.5))?;
            write!(
                out,
                "{mean:>8.2} {stdev:>8.2} {:>8.2} {:>9.2} {:>9.2} ",
                at(0.99),
                at(0.999),
                at(0.9999)
            )?;
            writeln!(out, "{:>11}", row.preemptions)?;
        }
        for row in &self.floor {
            row.print(out)?;
        }
        Ok(())
    }

    fn histograms(&self) -> Vec<(String, &Histogram<u64>)> {
        let name = |row: &LatencyRow| format!("{}-{}-mtu{}", row.operation.name(), row.size, row.mtu);
        self.rows.iter().map(|row| (name(row), &row.histogram)).collect()
    }
}
