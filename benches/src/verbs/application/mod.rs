//! `application`: verbs as an application of `iwarpd`, beside the same work in process.
//!
//! ```text
//!  in process         program, node, node: one thread on the first CPU
//!  application        program: first CPU ══ shared memory ══ iwarpd's worker with both ports: second CPU
//! ```
//! Both run the same code over the trait `End`; the nodes, and the daemon's ports, are connected by rings.
//! Runs of the two alternate, so that a change of the machine's speed affects both alike.

pub(super) mod work;

use std::io::{self, Write};

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;

use super::daemon::Daemon;
use super::end::End;
use super::load::{Load, Operation};
use super::node::{BenchNode, PairSetup, Role};
use super::nodes;
use super::program::{self, Program, ProgramEnd};
use crate::samples::median;
pub use work::RoundTrip;
use work::Traffic;

/// Messages of a run, by their size: small ones, and those of 4 KiB and more.
const MESSAGES: [u64; 2] = [100_000, 2000];
/// Slots of a send queue; a receive queue has twice as many.
const DEPTH: u16 = 128;
/// Measured operations with the bytes of a message.
const WORK: [(Operation, u32); 4] = [
    (Operation::Write, 64),
    (Operation::Send, 64),
    (Operation::Write, 64 << 10),
    (Operation::Read, 64 << 10),
];
/// Round trips of a run.
const ROUND_TRIPS: u32 = 5000;
/// Contexts with idle queue pairs, and queue pairs of each.
const IDLE: (usize, usize) = (10, 100);

/// Command-line flags of `application`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Options {
    #[command(flatten)]
    #[serde(flatten)]
    load: Load,
    /// Runs of each measurement; the result is their median.
    #[arg(long, default_value_t = 9)]
    runs: u32,
}

/// Time per message of one operation.
#[derive(Clone, Debug, Serialize)]
pub struct WorkRow {
    /// Operation that was measured.
    pub operation: Operation,
    /// Bytes of a message.
    pub size: u32,
    /// Time of the work in process, nanoseconds.
    pub in_process_ns: f64,
    /// As an application, nanoseconds: the worker's, which is the slower part.
    pub application_ns: f64,
    /// Median of the ratio in each run.
    pub ratio: f64,
    /// Time of a cache line from one CPU to the other, median of the measurements before the runs, nanoseconds.
    pub hand_off_ns: f64,
}

/// Results of the benchmark `application`.
#[derive(Clone, Debug, Serialize)]
pub struct ApplicationReport {
    /// Time per message of each operation.
    pub rows: Vec<WorkRow>,
    /// CPU time of the program to post and poll a Write of 64 bytes, signaled, in batches of 32, nanoseconds.
    pub post_and_poll_ns: f64,
    /// Time of a cache line from one CPU to the other before it, nanoseconds.
    pub post_and_poll_hand_off_ns: f64,
    /// Round trip of Writes of 64 bytes in process.
    pub in_process_round_trip: RoundTrip,
    /// The same as an application.
    pub application_round_trip: RoundTrip,
    /// Time of a cache line from one CPU to the other, median of the measurements before the runs, nanoseconds.
    pub round_trip_hand_off_ns: f64,
    /// Time per Write of 64 bytes while ten other contexts have 100 idle queue pairs each, relative to without.
    pub idle_queue_pairs_ratio: f64,
    /// Round trip of Sends of 64 bytes between programs that wait for events and an adaptive worker, all on one CPU,
    /// median, nanoseconds.
    pub event_round_trip_ns: f64,
    /// CPU time of that daemon while nothing happens, percent.
    pub daemon_idle_percent: f64,
    /// CPU time of that program while it waits for an event, percent.
    pub program_idle_percent: f64,
}

/// Runs all measurements.
///
/// # Errors
/// There is not enough memory, a CPU is not available, `iwarpd` does not start, or a connection fails.
pub fn run(options: &Options) -> Result<ApplicationReport> {
    let load = &options.load;
    nodes::check(load)?;
    let eal = nodes::start_dpdk(load, &[Role::Initiator, Role::Target])?;
    load.cores.pin_first()?;
    let mtu = load.mtus().first().copied().context("no MTU")?;
    let crc = load.crc.first().copied().context("no CRC")?;
    let receive_depth = DEPTH * 2;
    let setup =
        PairSetup { mtu, crc, qps: 1, send_depth: DEPTH, receive_depth, inline: 0, out_of_order: true };
    let mut in_process = nodes::open(&eal, load, &setup)?;
    let daemon = Daemon::start(load, &setup, load.cores.0[1], "spin")?;
    let mut program = Program::connect(&daemon.socket(), load.region, &setup)?;
    let rows = WORK
        .iter()
        .map(|(operation, size)| {
            row(&mut in_process, &mut program.0, &daemon, (*operation, *size), options.runs)
        })
        .collect::<Result<_>>()?;
    let post_and_poll_hand_off_ns = daemon.hand_off_ns()?;
    let post_and_poll_ns = repeat(options.runs, || program.post_and_poll(MESSAGES[0]))?;
    let (mut one, mut other, mut hand_offs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.runs {
        hand_offs.push(daemon.hand_off_ns()?);
        one.push(work::round_trip(&mut in_process, ROUND_TRIPS)?);
        other.push(work::round_trip(&mut program.0, ROUND_TRIPS)?);
    }
    let idle_queue_pairs_ratio = idle_queue_pairs(&daemon, &mut program, options.runs)?;
    drop((program, daemon, in_process));
    let [event_round_trip_ns, daemon_idle_percent, program_idle_percent] = on_one_core(load, &setup)?;
    Ok(ApplicationReport {
        rows,
        post_and_poll_ns,
        post_and_poll_hand_off_ns,
        in_process_round_trip: RoundTrip::median(&one),
        application_round_trip: RoundTrip::median(&other),
        round_trip_hand_off_ns: median(&hand_offs),
        idle_queue_pairs_ratio,
        event_round_trip_ns,
        daemon_idle_percent,
        program_idle_percent,
    })
}

fn repeat(runs: u32, mut measure: impl FnMut() -> Result<f64>) -> Result<f64> {
    Ok(median(&(0..runs).map(|_| measure()).collect::<Result<Vec<_>>>()?))
}

/// Measures one operation in process and as an application, by turns.
fn row(
    in_process: &mut [BenchNode; 2],
    program: &mut [ProgramEnd; 2],
    daemon: &Daemon,
    (operation, size): (Operation, u32),
    runs: u32,
) -> Result<WorkRow> {
    let messages = MESSAGES[usize::from(size >= 4096)];
    let traffic = Traffic { operation, size, messages, depth: DEPTH.into() };
    // To warm up.
    time_per_message(in_process, &traffic)?;
    time_per_message(program, &traffic)?;
    let (mut inside, mut outside, mut ratios, mut hand_offs) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs {
        hand_offs.push(daemon.hand_off_ns()?);
        let (one, other) = (time_per_message(in_process, &traffic)?, time_per_message(program, &traffic)?);
        inside.push(one);
        outside.push(other);
        ratios.push(other / one);
    }
    Ok(WorkRow {
        operation,
        size,
        in_process_ns: median(&inside),
        application_ns: median(&outside),
        ratio: median(&ratios),
        hand_off_ns: median(&hand_offs),
    })
}

fn time_per_message(ends: &mut [impl End; 2], traffic: &Traffic) -> Result<f64> {
    Ok(work::drive(ends, traffic)?.as_nanos() as f64 / traffic.messages as f64)
}

/// Returns the time per Write of 64 bytes beside idle queue pairs, relative to without.
fn idle_queue_pairs(daemon: &Daemon, program: &mut Program, runs: u32) -> Result<f64> {
    // To destroy 1,000 queue pairs takes as many requests.
    let (opened, runs) = ((runs / 10).max(1), runs.min(10));
    let traffic =
        Traffic { operation: Operation::Write, size: 64, messages: MESSAGES[0], depth: DEPTH.into() };
    let mut per_message = |times: &mut Vec<f64>| -> Result<()> {
        for _ in 0..runs {
            times.push(work::drive(&mut program.0, &traffic)?.as_secs_f64());
        }
        Ok(())
    };
    let (mut without, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..opened {
        per_message(&mut without)?;
        let idle = program::idle(&daemon.socket(), IDLE)?;
        per_message(&mut beside)?;
        drop(idle);
    }
    Ok(median(&beside) / median(&without))
}

/// Measures an adaptive worker and a program that waits for events, both on the first CPU: the round trip, and the
/// share of the CPU that each takes while nothing happens.
fn on_one_core(load: &Load, setup: &PairSetup) -> Result<[f64; 3]> {
    let daemon = Daemon::start(load, setup, load.cores.0[0], "adaptive")?;
    let mut program = Program::connect(&daemon.socket(), load.region, setup)?;
    let round_trip = program.event_round_trip(2000)?;
    let before = daemon.cpu_time()?;
    let (own, waited) = program.idle_wait()?;
    let percent = |time: std::time::Duration| 100.0 * time.as_secs_f64() / waited.as_secs_f64();
    Ok([round_trip, percent(daemon.cpu_time()?.saturating_sub(before)), percent(own)])
}

impl crate::Report for ApplicationReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "{:<6} {:>8} {:>15} {:>16} {:>8} {:>13}",
            "", "#bytes", "in process[ns]", "application[ns]", "ratio", "hand-off[ns]"
        )?;
        for WorkRow { operation, size, in_process_ns, application_ns, ratio, hand_off_ns } in &self.rows {
            let name = operation.name();
            writeln!(
                out,
                "{name:<6} {size:>8} {in_process_ns:>15.1} {application_ns:>16.1} {ratio:>8.3} {hand_off_ns:>13.0}"
            )?;
        }
        let Self { post_and_poll_ns, idle_queue_pairs_ratio, event_round_trip_ns, .. } = self;
        let hand_offs = [self.post_and_poll_hand_off_ns, self.round_trip_hand_off_ns];
        let (inside, outside) = (&self.in_process_round_trip, &self.application_round_trip);
        writeln!(
            out,
            "post and poll, batches of 32: {post_and_poll_ns:.1} ns of the program per Write; hand-off {:.0} ns",
            hand_offs[0]
        )?;
        writeln!(
            out,
            "round trip: {:.0} ns in process, {:.0} as an application, {:.0} more; hand-off {:.0} ns",
            inside.whole_ns,
            outside.whole_ns,
            outside.whole_ns - inside.whole_ns,
            hand_offs[1]
        )?;
        writeln!(
            out,
            "    to post: {:.0} and {:.0} ns; until the bytes are seen: {:.0} and {:.0} ns",
            inside.post_ns, outside.post_ns, inside.wait_ns, outside.wait_ns
        )?;
        writeln!(out, "beside 1,000 idle queue pairs: {idle_queue_pairs_ratio:.3} times the time per Write")?;
        writeln!(
            out,
            "one CPU, with events: round trip {event_round_trip_ns:.0} ns; idle: daemon {:.2} %, program {:.2} %",
            self.daemon_idle_percent, self.program_idle_percent
        )
    }
}
