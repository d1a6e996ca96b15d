//! `fpdus`: Writes with both ends on one thread, in turns, so that neither waits: for a profiler above all.
//!
//! It is the path of `write-bw`, ring ports and all. A profiler that cannot tell work from waiting, callgrind for one, sees
//! nothing but work, each end's below a function of its own: see `benches/profile.sh`.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use serde::Serialize;

use super::end::{Task, Worker};
use super::link::Side;
use super::load::{Crc, Load};
use super::pair::{self, End, Terms};
use super::{Link, Operation};
use crate::{Report, Stopwatch};

/// Bytes of a message, and messages, unless told otherwise.
const SIZE: u64 = 64 << 10;
const MESSAGES: u64 = 1000;
/// Turns without an byte placed after which something is wrong.
const TURNS_MAX: u32 = 1_000_000;

/// What to do.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Options {
    #[command(flatten)]
    #[serde(flatten)]
    load: Load,
    /// Messages under way: with 1 each is alone in its round.
    #[arg(short = 't', long, default_value_t = 128)]
    depth: u16,
}

/// What it took.
#[derive(Clone, Debug, Serialize)]
pub struct FpdusRow {
    /// Bytes of a message.
    pub size: u64,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// MPA's CRC32c.
    pub crc: Crc,
    /// FPDUs that arrived.
    pub fpdus: u64,
    /// Nanoseconds of the initiator per FPDU.
    pub initiator_ns: f64,
    /// Nanoseconds of the target per FPDU.
    pub target_ns: f64,
}

/// One row for each combination.
#[derive(Clone, Debug, Serialize)]
pub struct FpdusReport {
    /// In the order that was asked for.
    pub rows: Vec<FpdusRow>,
}

/// Moves messages.
///
/// # Errors
/// Not enough memory, a CPU that cannot be had, or a connection that fails.
pub fn run(options: &Options) -> Result<FpdusReport> {
    let load = &options.load;
    ensure!(load.link == Link::Ring, "--link: both ends are in one thread, which takes rings");
    pair::check(load)?;
    let eal = pair::start_dpdk(load, &[Side::Near, Side::Far])?;
    load.cores.pin_first()?;
    let row = |(mtu, crc, size)| {
        let (qps, send_depth, receive_depth, inline, out_of_order) = (1, options.depth, 0, 0, true);
        let terms = Terms { mtu, crc, qps, send_depth, receive_depth, inline, out_of_order };
        let [mut left, mut right] = pair::open(&eal, load, &terms)?;
        let [near, far] = work([&mut left, &mut right], size, load.iters.unwrap_or(MESSAGES), send_depth)?;
        let fpdus = right.node.verbs().rdma_stats().mpa.fpdus_in;
        let per = |time: Duration| time.as_nanos() as f64 / fpdus.max(1) as f64;
        Ok(FpdusRow { size, mtu, crc, fpdus, initiator_ns: per(near), target_ns: per(far) })
    };
    Ok(FpdusReport { rows: load.rows(&[SIZE]).into_iter().map(row).collect::<Result<_>>()? })
}

/// All messages from one end to the other; the time that each has spent.
fn work([left, right]: [&mut End; 2], size: u64, messages: u64, depth: u16) -> Result<[Duration; 2]> {
    let (operation, receive_depth) = (Operation::Write, 0);
    let task =
        Task { operation, size: u32::try_from(size)?, depth, receive_depth, limit: messages, inline: false };
    let mut worker = Worker::new(left, &task)?;
    let (mut spent, mut placed, mut turns) = ([Duration::ZERO; 2], 0, 0);
    // A Write is done for the initiator before it has arrived.
    while !worker.is_through() || placed < messages * size {
        let watch = Stopwatch::start();
        initiator_turn(left, &mut worker)?;
        let between = watch.elapsed();
        target_turn(right);
        let [near, far] = &mut spent;
        *near += between;
        *far += watch.elapsed().saturating_sub(between);
        turns = if right.placed() > placed { 0 } else { turns + 1 };
        placed = right.placed();
        ensure!(turns < TURNS_MAX, "nothing arrives any more after {placed} bytes");
    }
    Ok(spent)
}

/// The initiator's part of a turn. Its name is looked for by `benches/profile.sh`.
#[inline(never)]
fn initiator_turn(end: &mut End, worker: &mut Worker) -> Result<()> {
    worker.turn(end)?;
    end.node.poll();
    Ok(())
}

/// The target's part of a turn. Its name is looked for by `benches/profile.sh`.
#[inline(never)]
fn target_turn(end: &mut End) {
    end.node.poll();
}

impl Report for FpdusReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let [bytes, mtu, crc, fpdus] = ["#bytes", "MTU", "CRC", "#fpdus"];
        writeln!(
            out,
            "{bytes:>8} {mtu:>5} {crc:>4} {fpdus:>10} {:>14} {:>14}",
            "initiator[ns]", "target[ns]"
        )?;
        for FpdusRow { size, mtu, crc, fpdus, initiator_ns, target_ns } in &self.rows {
            let crc = crc.name();
            writeln!(out, "{size:>8} {mtu:>5} {crc:>4} {fpdus:>10} {initiator_ns:>14.1} {target_ns:>14.1}")?;
        }
        Ok(())
    }
}
