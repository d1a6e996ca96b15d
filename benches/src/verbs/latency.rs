//! `write-lat`, `read-lat`, `send-lat`: one message there and one back, again and again.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use dataplane::worker::Clock;
use hdrhistogram::Histogram;
use rdma::verbs::{CqId, Data, RecvWr, SendFlags, SendOp, SendWr, Sge, WcStatus, WorkCompletion};
use serde::{Deserialize, Serialize, Serializer};

use super::link::{Game, Play, Wire};
use super::load::{Crc, Load};
use super::pair::{self, End, Terms};
use super::partner::Meeting;
use super::{Link, Operation};
use crate::cores::preemptions;
use crate::roofline::{LONGEST_NS, ROUND_TRIP_S, RoundTripRow, round_trips};
use crate::{Progress, Report};

/// Sizes that are measured unless told otherwise.
const USUAL: [u64; 3] = [64, 1 << 10, 4 << 10];
/// Buffers posted on each side for Sends.
const BUFFERS: u16 = 16;
/// Messages sent whose end is left for later, at most: half of a send queue.
const PATIENCE: u64 = BUFFERS as u64 / 2;

/// What to measure.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Options {
    #[command(flatten)]
    #[serde(flatten)]
    load: Load,
    /// Begin so many round trips per second, whether or not the one before has ended, and count from when each should
    /// have begun: corrected for coordinated omission. Without this, one begins when the one before has ended.
    #[arg(long, value_name = "PER_SECOND")]
    rate: Option<f64>,
}

/// One row; times are of whole round trips.
#[derive(Clone, Debug, Serialize)]
pub struct LatencyRow {
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
    /// Times that the kernel took one of the cores away meanwhile.
    pub preemptions: u64,
    /// The distribution, nanoseconds.
    #[serde(serialize_with = "summary")]
    pub histogram: Histogram<u64>,
}

/// Round trips.
#[derive(Clone, Debug, Serialize)]
pub struct LatencyReport {
    /// One for each combination.
    pub rows: Vec<LatencyRow>,
    /// A frame to and fro over the same rings without a protocol, in the same run; none over memif.
    pub floor: Vec<RoundTripRow>,
}

/// The numbers of a distribution that reports show.
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
/// Not enough memory, a CPU that cannot be had, or a connection that fails.
pub fn run(operation: Operation, options: &Options) -> Result<LatencyReport> {
    let rows = options.load.rows(&USUAL);
    let progress = Progress::new(rows.len());
    pair::check(&options.load)?;
    let mut wire = Wire::new(&options.load)?;
    let measure = |(mtu, crc, size)| {
        progress.step(format!("{} of {size} at MTU {mtu}", operation.name()));
        row(&mut wire, options, operation, (mtu, crc, size))
    };
    let rows = rows.into_iter().map(measure).collect::<Result<_>>()?;
    let floor = if options.load.link == Link::Ring {
        vec![round_trips(wire.eal(), options.load.cores, ROUND_TRIP_S)?]
    } else {
        Vec::new()
    };
    Ok(LatencyReport { rows, floor })
}

fn row(
    wire: &mut Wire,
    options: &Options,
    operation: Operation,
    (mtu, crc, size): (u16, Crc, u64),
) -> Result<LatencyRow> {
    let Options { load, rate } = options;
    let (depth, inline, out_of_order) = (BUFFERS, 0, true);
    let terms = Terms { mtu, crc, qps: 1, send_depth: depth, receive_depth: depth, inline, out_of_order };
    ensure!((1..=load.region).contains(&size), "a message of {size} bytes does not fit the region");
    let (duration, iters, rate) = (load.duration, load.iters, *rate);
    let game = PingPong { operation, size: u32::try_from(size)?, duration, iters, rate };
    let ((histogram, near_lost), far_lost) = wire.play(load, &terms, &game)?;
    let link = load.link;
    Ok(LatencyRow { operation, size, mtu, link, crc, preemptions: near_lost + far_lost, histogram })
}

/// To and fro.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PingPong {
    operation: Operation,
    size: u32,
    /// Seconds that count.
    duration: f64,
    /// Round trips, in place of a time.
    iters: Option<u64>,
    /// Round trips begun per second, in an open loop.
    rate: Option<f64>,
}

impl Game for PingPong {
    /// The round trips, and how often the core was taken away.
    type Near = (Histogram<u64>, u64);
    /// How often the core was taken away.
    type Far = u64;

    fn near(&self, end: &mut End, meeting: &Meeting) -> Result<Self::Near> {
        let outcome = Pinger::new(end, self, meeting).initiate();
        meeting.arrive()?;
        outcome
    }

    fn far(&self, end: &mut End, meeting: &Meeting) -> Result<u64> {
        Pinger::new(end, self, meeting).answer()
    }

    fn order(self) -> Play {
        Play::PingPong(self)
    }
}

/// One side of the game.
struct Pinger<'a> {
    end: &'a mut End,
    game: &'a PingPong,
    meeting: &'a Meeting,
    /// Messages sent.
    sent: u64,
    /// Of these, whose end was looked at; not counted for Reads, which end when they have come.
    ended: u64,
    /// Messages received.
    received: u64,
}

impl<'a> Pinger<'a> {
    fn new(end: &'a mut End, game: &'a PingPong, meeting: &'a Meeting) -> Self {
        Self { end, game, meeting, sent: 0, ended: 0, received: 0 }
    }

    /// Whether it goes on.
    fn goes_on(&self) -> bool {
        self.meeting.arrived() == 0 && self.meeting.is_open()
    }

    /// Goes to and fro as long as it is to; the round trips, and how often the core was taken away.
    fn initiate(mut self) -> Result<(Histogram<u64>, u64)> {
        let _registered = self.end.node.enter()?;
        let mut histogram = Histogram::new_with_bounds(1, LONGEST_NS, 3)?;
        self.post_buffers(BUFFERS.into())?;
        let time = Duration::from_secs_f64(self.game.duration);
        let (warm_up, before) = (time / 5, preemptions());
        let (clock, limit) = (Clock::start(), self.game.iters.unwrap_or(u64::MAX));
        let elapsed = || Duration::from_nanos(clock.now().as_nanos());
        // The round trip that is counted first, and when it should have begun.
        let (mut first, mut trip) = (None, 0_u64);
        while histogram.len() < limit {
            let mut began = elapsed();
            if let (Some(rate), Some((first, origin))) = (self.game.rate, first) {
                let due = origin + Duration::from_secs_f64((trip - first) as f64 / rate);
                while elapsed() < due {
                    self.end.node.poll();
                }
                began = due;
            }
            self.post()?;
            if !self.wait()? {
                bail!("the other end has failed");
            }
            let ended = elapsed();
            if first.is_some() {
                let nanoseconds = ended.saturating_sub(began).as_nanos();
                histogram.saturating_record(u64::try_from(nanoseconds).unwrap_or(LONGEST_NS));
            } else if ended >= warm_up {
                first = Some((trip + 1, ended));
            }
            trip += 1;
            if self.game.iters.is_none() && ended >= warm_up + time {
                break;
            }
        }
        Ok((histogram, preemptions().saturating_sub(before)))
    }

    /// Answers each message with one, until the other side has had enough; how often the core was taken away.
    fn answer(mut self) -> Result<u64> {
        let _registered = self.end.node.enter()?;
        self.post_buffers(BUFFERS.into())?;
        let before = preemptions();
        if self.game.operation == Operation::Read {
            while self.goes_on() {
                self.end.node.poll();
            }
        }
        while self.wait()? {
            self.post()?;
        }
        Ok(preemptions().saturating_sub(before))
    }

    /// What a message ends with, by its number: never what the one before it did, nor zero, as fresh memory is.
    fn mark(number: u64) -> u8 {
        u8::try_from(number % 255).unwrap_or(0) + 1
    }

    /// Sends the next message.
    fn post(&mut self) -> Result<()> {
        let Self { end, game: PingPong { operation, size, .. }, sent, .. } = self;
        let (source, sink) = (end.source, end.sink);
        if *operation != Operation::Read {
            let last = u64::from(*size) - 1;
            ensure!(end.source_memory.write(last, &[Self::mark(*sent)]), "the region has that byte");
        }
        let (local, op) = match operation {
            Operation::Write => {
                (source, SendOp::RdmaWrite { remote_addr: end.peer_sink.addr, rkey: end.peer_sink.rkey() })
            }
            Operation::Read => {
                (sink, SendOp::RdmaRead { remote_addr: end.peer_source.addr, rkey: end.peer_source.rkey() })
            }
            Operation::Send => (source, SendOp::Send { invalidate: None }),
        };
        let list = [Sge { addr: local.addr, length: *size, lkey: local.lkey }];
        let wr = SendWr { wr_id: *sent, op, data: Data::List(&list), flags: SendFlags::SIGNALED };
        let qp = *end.qps.first().context("there is a queue pair")?;
        end.node.verbs_mut().device_mut().post_send(qp, &wr)?;
        *sent += 1;
        Ok(())
    }

    /// Polls until the next message has come, or a Read has ended; `false` when the other side has had enough. What has
    /// been sent is looked after while there is nothing else to do: the next message does not wait for it.
    fn wait(&mut self) -> Result<bool> {
        while self.goes_on() {
            self.end.node.poll();
            let arrived = match self.game.operation {
                Operation::Read => self.take(self.end.send_cq)? > 0,
                Operation::Write => {
                    let (end, mut last) = (u64::from(self.game.size) - 1, [0]);
                    self.end.sink_memory.read(end, &mut last) && last == [Self::mark(self.received)]
                }
                Operation::Send => self.take(self.end.recv_cq)? > 0,
            };
            if arrived {
                self.received += 1;
                self.post_buffers(1)?;
            }
            let patience = if arrived { PATIENCE } else { 0 };
            if self.game.operation != Operation::Read && self.under_way() > patience {
                self.ended += self.take(self.end.send_cq)?;
            }
            if arrived {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Messages sent whose end was not looked at.
    const fn under_way(&self) -> u64 {
        self.sent.saturating_sub(self.ended)
    }

    /// Takes what has completed; how much that is.
    fn take(&mut self, cq: CqId) -> Result<u64> {
        let mut taken = [WorkCompletion::default(); 4];
        let count = self.end.node.verbs_mut().device_mut().poll_cq(cq, &mut taken)?;
        ensure!(taken.iter().take(count).all(|wc| wc.status == WcStatus::Success), "{taken:?}");
        Ok(count as u64)
    }

    /// Posts buffers, if the operation takes some.
    fn post_buffers(&mut self, count: u64) -> Result<()> {
        if self.game.operation != Operation::Send {
            return Ok(());
        }
        let End { node, qps, sink, .. } = &mut *self.end;
        let list = [Sge { addr: sink.addr, length: self.game.size, lkey: sink.lkey }];
        let qp = *qps.first().context("there is a queue pair")?;
        for wr_id in 0..count {
            node.verbs_mut().device_mut().post_recv(qp, &RecvWr { wr_id, sg_list: &list })?;
        }
        Ok(())
    }
}

impl Report for LatencyReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "\nround trips, microseconds\n{:>6} {:>7} {:>5} {:>5} {:>4} {:>11} {:>8} {:>8} {:>9} {:>8} {:>8} {:>8} {:>9} {:>9} {:>11}",
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
            write!(out, "{operation:>6} {:>7} {:>5} {link:>5} {crc:>4} ", row.size, row.mtu)?;
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
