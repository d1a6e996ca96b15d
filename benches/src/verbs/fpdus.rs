//! `fpdus`: Writes with both nodes on one thread, which poll by turns so that neither waits. For profilers.
//!
//! The path is that of `write-bw`, ring ports included. A profiler that cannot distinguish work from waiting, such as
//! callgrind, sees work only, that of each node below a function of its own: see `benches/profile.sh`.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use rdma::CrcPolicy;
use serde::Serialize;

use super::driver::{TrafficDriver, TrafficSpec};
use super::load::{Link, Load, Operation};
use super::node::{BenchNode, PairSetup, Role};
use super::nodes;
use crate::{Report, Stopwatch};

/// Default bytes of a message.
const SIZE: u64 = 64 << 10;
/// Default number of messages.
const MESSAGES: u64 = 1000;
/// Poll iterations without progress after which the benchmark fails.
const IDLE_MAX: u32 = 1_000_000;

/// Command-line flags of `fpdus`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Options {
    #[command(flatten)]
    #[serde(flatten)]
    load: Load,
    /// Messages in flight: with 1 each is alone in its poll iteration.
    #[arg(short = 't', long, default_value_t = 128)]
    depth: u16,
}

/// Result of one combination of flags.
#[derive(Clone, Debug, Serialize)]
pub struct FpdusRow {
    /// Bytes of a message.
    pub size: u64,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Use of MPA's CRC32c.
    #[serde(with = "super::crc")]
    pub crc: CrcPolicy,
    /// FPDUs received by the target.
    pub fpdus: u64,
    /// Time of the initiator per FPDU, nanoseconds.
    pub initiator_ns: f64,
    /// Time of the target per FPDU, nanoseconds.
    pub target_ns: f64,
}

/// The result rows of `fpdus`.
#[derive(Clone, Debug, Serialize)]
pub struct FpdusReport {
    /// One row for each combination of flags.
    pub rows: Vec<FpdusRow>,
}

/// Measures the time of both nodes per FPDU.
///
/// # Errors
/// There is not enough memory, a CPU is not available, or a connection fails.
pub fn run(options: &Options) -> Result<FpdusReport> {
    let load = &options.load;
    ensure!(load.link == Link::Ring, "--link: both nodes are in one thread, which takes rings");
    nodes::check(load)?;
    let eal = nodes::start_dpdk(load, &[Role::Initiator, Role::Target])?;
    load.cores.pin_first()?;
    let row = |(mtu, crc, size)| {
        let (qps, send_depth, receive_depth, inline, out_of_order) = (1, options.depth, 0, 0, true);
        let setup = PairSetup { mtu, crc, qps, send_depth, receive_depth, inline, out_of_order };
        let [mut left, mut right] = nodes::open(&eal, load, &setup)?;
        let [initiator, target] =
            work([&mut left, &mut right], size, load.iters.unwrap_or(MESSAGES), send_depth)?;
        let fpdus = right.node.engine().rdma_stats().mpa.fpdus_in;
        let per = |time: Duration| time.as_nanos() as f64 / fpdus.max(1) as f64;
        Ok(FpdusRow { size, mtu, crc, fpdus, initiator_ns: per(initiator), target_ns: per(target) })
    };
    Ok(FpdusReport { rows: load.rows(&[SIZE]).into_iter().map(row).collect::<Result<_>>()? })
}

/// Writes all messages; returns the time of initiator and target.
fn work([left, right]: [&mut BenchNode; 2], size: u64, messages: u64, depth: u16) -> Result<[Duration; 2]> {
    let (operation, receive_depth) = (Operation::Write, 0);
    let traffic = TrafficSpec {
        operation,
        size: u32::try_from(size)?,
        depth,
        receive_depth,
        limit: messages,
        inline: false,
    };
    let mut driver = TrafficDriver::new(left, &traffic)?;
    let (mut spent, mut placed, mut idle) = ([Duration::ZERO; 2], 0, 0);
    // A Write is done for the initiator before it has arrived.
    while !driver.is_done() || placed < messages * size {
        let watch = Stopwatch::start();
        initiator_poll(left, &mut driver)?;
        let between = watch.elapsed();
        target_poll(right);
        let [initiator, target] = &mut spent;
        *initiator += between;
        *target += watch.elapsed().saturating_sub(between);
        idle = if right.placed() > placed { 0 } else { idle + 1 };
        placed = right.placed();
        ensure!(idle < IDLE_MAX, "no progress after {placed} bytes");
    }
    Ok(spent)
}

/// Polls the initiator. `benches/profile.sh` selects this function by its name.
#[inline(never)]
fn initiator_poll(node: &mut BenchNode, driver: &mut TrafficDriver) -> Result<()> {
    driver.poll(node)?;
    node.node.poll();
    Ok(())
}

/// Polls the target. `benches/profile.sh` selects this function by its name.
#[inline(never)]
fn target_poll(node: &mut BenchNode) {
    node.node.poll();
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
