//! `lossy`: what loss and reordering cost, with what arrives behind a gap placed at once and without.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use dataplane::dpdk::Eal;
use dataplane::verbs::Node;
use dataplane::worker::Clock;
use serde::Serialize;

use super::bandwidth::Bulk;
use super::end::Task;
use super::link::Side;
use super::load::{Crc, Load};
use super::pair::{self, End, Terms};
use super::partner::Meeting;
use super::relay::{self, Relay, Weather};
use super::{Link, Operation};
use crate::{Progress, Report, Samples, bandwidth_gbps, median, on_two_cores};

/// Shares of frames lost, and of frames overtaken by others.
const WEATHERS: [(f64, f64); 5] = [(0.0, 0.0), (0.0, 0.01), (0.0, 0.05), (0.001, 0.0), (0.01, 0.0)];
/// How many others overtake a frame, and how long it waits for them at most, microseconds: four times as long as they take
/// at MTU 9000 and 25 Gbit/s.
const HOLD: usize = 8;
const HOLD_US: u64 = 100;
/// Of the relay's random sequence.
const SEED: u64 = 5;
/// Octets of a message.
const MESSAGE: u64 = 64 << 10;

/// What to measure.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Options {
    #[command(flatten)]
    #[serde(flatten)]
    load: Load,
    /// Frames that overtake one that is delayed.
    #[arg(long, default_value_t = HOLD)]
    hold_frames: usize,
    /// Microseconds that it waits for them at most.
    #[arg(long, default_value_t = HOLD_US)]
    hold_us: u64,
    /// Runs per row, in turns with the other rows of its MTU; the median counts.
    #[arg(long, default_value_t = 3)]
    runs: usize,
}

/// One row.
#[derive(Clone, Debug, Serialize)]
pub struct LossyRow {
    /// Largest IP packet, octets.
    pub mtu: u16,
    /// Octets of a message.
    pub size: u64,
    /// What the wire did.
    pub weather: Weather,
    /// Whether what arrived behind a gap was placed at once.
    pub out_of_order_placement: bool,
    /// Median of the runs, Gbit/s of payload.
    pub gbps: f64,
    /// Each run's by that of the run beside it, without loss and reordering.
    pub of_fair: Samples,
    /// Octets that had to be held until a gap closed, per octet placed.
    pub held_per_octet: f64,
    /// Octets placed before the gap in front of them closed, per octet placed.
    pub early_per_octet: f64,
    /// Octets that the receiving processor moved, per octet placed.
    pub copied_per_octet: f64,
    /// Octets sent again, per octet sent the first time.
    pub retransmitted_per_octet: f64,
    /// Retransmission timeouts, in all runs.
    pub timeouts: u64,
}

/// Goodput by weather.
#[derive(Clone, Debug, Serialize)]
pub struct LossyReport {
    /// One for each combination.
    pub rows: Vec<LossyRow>,
}

/// Measures it.
///
/// # Errors
/// Not enough memory, a CPU that cannot be had, or a connection that fails.
pub fn run(options: &Options) -> Result<LossyReport> {
    ensure!(options.load.link == Link::Ring, "--link: what loses and delays frames stands between rings");
    let rows = options.load.rows(&[MESSAGE]);
    let progress = Progress::new(rows.len() * WEATHERS.len() * 2 * options.runs.max(1));
    let eal = pair::start_dpdk(&options.load, &[Side::Near, Side::Far])?;
    let mut report = LossyReport { rows: Vec::new() };
    for (mtu, crc, size) in rows {
        for out_of_order in [true, false] {
            let mut tallies = [const { Tally::new() }; WEATHERS.len()];
            for run in 0..options.runs.max(1) {
                for ((loss, reorder), tally) in WEATHERS.iter().zip(&mut tallies) {
                    progress.step(format!("loss {loss}, reordering {reorder} at MTU {mtu}"));
                    let weather = options.weather(*loss, *reorder);
                    tally.add(&eal, options, (mtu, crc, size), (weather, run as u64), out_of_order)?;
                }
            }
            let [fair, ..] = &tallies;
            for ((loss, reorder), tally) in WEATHERS.iter().zip(&tallies) {
                let weather = options.weather(*loss, *reorder);
                report.rows.push(tally.row((mtu, size), weather, out_of_order, &fair.rates)?);
            }
        }
    }
    Ok(report)
}

impl Options {
    fn weather(&self, loss: f64, reorder: f64) -> Weather {
        Weather { loss, reorder, hold_frames: self.hold_frames, hold_us: self.hold_us }
    }
}

/// Two nodes, and the relay between them.
fn open(eal: &Eal, load: &Load, terms: &Terms, weather: Weather, seed: u64) -> Result<([End; 2], Relay)> {
    let clock = Clock::start();
    let (spec, pool) = (relay::spec(terms.mtu, load.descriptors), relay::few_buffers(eal, terms.mtu)?);
    let open = |side| {
        let config = pair::config(load, terms.mtu, side)?;
        let options = pair::options(&config, terms);
        Node::open_wired(eal, (&config, &options), (&spec, std::slice::from_ref(&pool)), &clock)
    };
    let ((left, left_wire), (right, right_wire)) = (open(Side::Near)?, open(Side::Far)?);
    let mut relay = Relay::new([left_wire, right_wire], weather, seed)?;
    let ends = pair::connect([left, right], load.region, terms, || relay.turn())?;
    Ok((ends, relay))
}

/// Ends the connections and empties the rings, for what is in them belongs to pools that are about to go.
fn clear(left: &mut End, right: &mut End, relay: &mut Relay) {
    const TURNS: usize = 1000;
    left.node.finish(Duration::ZERO);
    right.node.finish(Duration::ZERO);
    for _ in 0..TURNS {
        relay.turn();
        left.node.poll();
        right.node.poll();
    }
}

/// What the runs of a row have come to.
#[derive(Debug)]
struct Tally {
    /// Gbit/s of each run.
    rates: Vec<f64>,
    placed: u64,
    held: u64,
    early: u64,
    copied: u64,
    sent: u64,
    sent_again: u64,
    timeouts: u64,
}

impl Tally {
    const fn new() -> Self {
        let (placed, held, early, copied, sent, sent_again, timeouts) = (0, 0, 0, 0, 0, 0, 0);
        Self { rates: Vec::new(), placed, held, early, copied, sent, sent_again, timeouts }
    }

    /// One more run, by its number.
    fn add(
        &mut self,
        eal: &Eal,
        options: &Options,
        (mtu, crc, size): (u16, Crc, u64),
        (weather, run): (Weather, u64),
        out_of_order: bool,
    ) -> Result<()> {
        const DEPTH: u16 = 128;
        let terms = Terms { mtu, crc, qps: 1, send_depth: DEPTH, receive_depth: 0, inline: 0, out_of_order };
        let limit = options.load.iters.unwrap_or(u64::MAX);
        let task = Task {
            operation: Operation::Write,
            size: u32::try_from(size)?,
            depth: DEPTH,
            receive_depth: 0,
            limit,
            inline: false,
        };
        let ([mut left, mut right], mut relay) = open(eal, &options.load, &terms, weather, SEED + run)?;
        let (bulk, meeting) = (Bulk::new(&options.load, &task, false), Meeting::default());
        let (_, seen) = on_two_cores(
            options.load.cores,
            || meeting.guard(|| bulk.drive(&mut left, Side::Near, &meeting, || {})),
            || meeting.guard(|| bulk.drive(&mut right, Side::Far, &meeting, || relay.turn())),
        )?;
        self.rates.push(bandwidth_gbps(seen.octets, seen.seconds));
        let (target, initiator) = (right.node.verbs(), left.node.verbs().stack().stats().tcp);
        self.placed += right.placed();
        self.held += target.rdma_stats().mpa.octets_held;
        self.early += target.rdma_stats().mpa.octets_placed_early;
        self.copied += target.rdma_stats().mpa.octets_copied;
        self.sent += initiator.octets_out;
        self.sent_again += initiator.octets_retransmitted;
        self.timeouts += initiator.timeouts;
        clear(&mut left, &mut right, &mut relay);
        Ok(())
    }

    /// The row, beside the rates of a fair wire.
    fn row(
        &self,
        (mtu, size): (u16, u64),
        weather: Weather,
        out_of_order: bool,
        fair: &[f64],
    ) -> Result<LossyRow> {
        let per = |octets: u64, of: u64| if of > 0 { octets as f64 / of as f64 } else { 0.0 };
        let ratios = self.rates.iter().zip(fair).map(|(rate, fair)| rate / fair).collect();
        Ok(LossyRow {
            mtu,
            size,
            weather,
            out_of_order_placement: out_of_order,
            gbps: median(&self.rates),
            of_fair: Samples::new(ratios)?,
            held_per_octet: per(self.held, self.placed),
            early_per_octet: per(self.early, self.placed),
            copied_per_octet: per(self.copied, self.placed),
            retransmitted_per_octet: per(self.sent_again, self.sent),
            timeouts: self.timeouts,
        })
    }
}

impl Report for LossyReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "\n{:>5} {:>8} {:>7} {:>10} {:>9} {:>19} {:>8} {:>8} {:>8} {:>8} {:>8}",
            "MTU",
            "loss",
            "overtkn",
            "behind gap",
            "BW[Gb/s]",
            "of fair",
            "held",
            "early",
            "copied",
            "resent",
            "timeouts"
        )?;
        for row in &self.rows {
            let placement = if row.out_of_order_placement { "placed" } else { "held" };
            let (loss, reorder) = (row.weather.loss * 100.0, row.weather.reorder * 100.0);
            write!(out, "{:>5} {loss:>7.2}% {reorder:>6.2}% {placement:>10} ", row.mtu)?;
            write!(out, "{:>9.2} {:>19} ", row.gbps, row.of_fair.show(2))?;
            write!(out, "{:>8.3} {:>8.3} ", row.held_per_octet, row.early_per_octet)?;
            write!(out, "{:>8.3} {:>8.4} ", row.copied_per_octet, row.retransmitted_per_octet)?;
            writeln!(out, "{:>8}", row.timeouts)?;
        }
        Ok(())
    }
}
