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
use super::steady::Steady;
use super::{Link, Operation};
use crate::{Progress, Report, Samples, bandwidth_gbps, median, on_two_cores};

/// Shares of frames lost, and of frames overtaken by others; and without either.
const FAIR: (f64, f64) = (0.0, 0.0);
const WEATHERS: [(f64, f64); 4] = [(0.0, 0.01), (0.0, 0.05), (0.001, 0.0), (0.01, 0.0)];
/// How many others overtake a frame, and how long it waits for them at most, microseconds: four times as long as they take
/// at MTU 9000 and 25 Gbit/s.
const HOLD: usize = 8;
const HOLD_US: u64 = 100;
/// Of the relay's random sequence.
const SEED: u64 = 5;
/// Bytes of a message.
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
    /// Runs per row, in turns with the other rows of its MTU and placement; the median counts.
    #[arg(long, default_value_t = 3)]
    runs: usize,
}

/// One row.
#[derive(Clone, Debug, Serialize)]
pub struct LossyRow {
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Bytes of a message.
    pub size: u64,
    /// What the wire did.
    pub weather: Weather,
    /// Whether what arrived behind a gap was placed at once.
    pub out_of_order_placement: bool,
    /// Median of the runs, Gbit/s of payload.
    pub gbps: f64,
    /// Each run's by the mean of those before and after its turn, without loss and reordering.
    pub of_fair: Samples,
    /// Turns of its MTU and placement that do not count: those before and after were those of two machines.
    pub thrown_away: u64,
    /// Bytes that had to be held until a gap closed, per byte placed.
    pub held_per_byte: f64,
    /// Bytes placed before the gap in front of them closed, per byte placed.
    pub early_per_byte: f64,
    /// Bytes that the receiving processor moved, per byte placed.
    pub copied_per_byte: f64,
    /// Bytes sent again, per byte sent the first time.
    pub retransmitted_per_byte: f64,
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
    let progress = Progress::new(rows.len() * 2 * (1 + (1 + WEATHERS.len()) * options.runs.max(1)));
    let eal = pair::start_dpdk(&options.load, &[Side::Near, Side::Far])?;
    let mut report = LossyReport { rows: Vec::new() };
    for of in rows {
        for out_of_order in [true, false] {
            report.rows.extend(turns(&eal, options, of, out_of_order, &progress)?);
        }
    }
    Ok(report)
}

/// One MTU with one way of placing, all weathers in turns; the fair one before and after each turn.
fn turns(
    eal: &Eal,
    options: &Options,
    of: (u16, Crc, u64),
    out_of_order: bool,
    progress: &Progress,
) -> Result<Vec<LossyRow>> {
    let (mtu, _, size) = of;
    let run = |(loss, reorder), turn: usize| {
        progress.step(format!("loss {loss}, reordering {reorder} at MTU {mtu}"));
        Tally::of(eal, options, of, (options.weather(loss, reorder), turn as u64), out_of_order)
    };
    let (mut fair, wanted) = (run(FAIR, 0)?, options.runs.max(1));
    let mut steady = Steady::new(fair.gbps(), wanted);
    let (mut tallies, mut beside) = ([const { Tally::new() }; WEATHERS.len()], Vec::new());
    for turn in 1.. {
        let seen = WEATHERS.iter().map(|weather| run(*weather, turn)).collect::<Result<Vec<_>>>()?;
        let after = run(FAIR, turn)?;
        let rate = steady.judge(after.gbps());
        fair.add(after);
        let Some(rate) = rate else { continue };
        beside.push(rate);
        for (tally, seen) in tallies.iter_mut().zip(seen) {
            tally.add(seen);
        }
        if beside.len() == wanted {
            break;
        }
    }
    let row = |tally: &Tally, (loss, reorder), beside: &[f64]| {
        tally.row((mtu, size), options.weather(loss, reorder), (out_of_order, steady.thrown()), beside)
    };
    let fair = row(&fair, FAIR, &fair.rates);
    let others = WEATHERS.into_iter().zip(&tallies).map(|(weather, tally)| row(tally, weather, &beside));
    [fair].into_iter().chain(others).collect()
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

    /// One run, by the number of its turn.
    fn of(
        eal: &Eal,
        options: &Options,
        (mtu, crc, size): (u16, Crc, u64),
        (weather, turn): (Weather, u64),
        out_of_order: bool,
    ) -> Result<Self> {
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
        let ([mut left, mut right], mut relay) = open(eal, &options.load, &terms, weather, SEED + turn)?;
        let (bulk, meeting) = (Bulk::new(&options.load, &task, false), Meeting::default());
        let (_, seen) = on_two_cores(
            options.load.cores,
            || meeting.guard(|| bulk.drive(&mut left, Side::Near, &meeting, || {})),
            || meeting.guard(|| bulk.drive(&mut right, Side::Far, &meeting, || relay.turn())),
        )?;
        let (mpa, tcp) = (right.node.verbs().rdma_stats().mpa, left.node.verbs().stack().stats().tcp);
        let tally = Self {
            rates: vec![bandwidth_gbps(seen.bytes, seen.seconds)],
            placed: right.placed(),
            held: mpa.bytes_held,
            early: mpa.bytes_placed_early,
            copied: mpa.bytes_copied,
            sent: tcp.bytes_out,
            sent_again: tcp.bytes_retransmitted,
            timeouts: tcp.timeouts,
        };
        clear(&mut left, &mut right, &mut relay);
        Ok(tally)
    }

    /// More runs.
    fn add(&mut self, other: Self) {
        self.rates.extend(other.rates);
        self.placed += other.placed;
        self.held += other.held;
        self.early += other.early;
        self.copied += other.copied;
        self.sent += other.sent;
        self.sent_again += other.sent_again;
        self.timeouts += other.timeouts;
    }

    /// Gbit/s of the only run, or their median.
    fn gbps(&self) -> f64 {
        median(&self.rates)
    }

    /// The row, beside the rates of a fair wire.
    fn row(
        &self,
        (mtu, size): (u16, u64),
        weather: Weather,
        (out_of_order, thrown_away): (bool, u64),
        fair: &[f64],
    ) -> Result<LossyRow> {
        let per = |bytes: u64, of: u64| if of > 0 { bytes as f64 / of as f64 } else { 0.0 };
        let ratios = self.rates.iter().zip(fair).map(|(rate, fair)| rate / fair).collect();
        Ok(LossyRow {
            mtu,
            size,
            weather,
            out_of_order_placement: out_of_order,
            gbps: self.gbps(),
            of_fair: Samples::new(ratios)?,
            thrown_away,
            held_per_byte: per(self.held, self.placed),
            early_per_byte: per(self.early, self.placed),
            copied_per_byte: per(self.copied, self.placed),
            retransmitted_per_byte: per(self.sent_again, self.sent),
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
            write!(out, "{:>8.3} {:>8.3} ", row.held_per_byte, row.early_per_byte)?;
            write!(out, "{:>8.3} {:>8.4} ", row.copied_per_byte, row.retransmitted_per_byte)?;
            writeln!(out, "{:>8}", row.timeouts)?;
        }
        Ok(())
    }
}
