//! `roofline`: measures the machine's limits, with which the other results are compared.

mod copy;
mod handoff;
mod lines;
mod round_trip;

use std::io::{self, Write};

use anyhow::{Result, anyhow};
use clap::Args;
use dataplane::verbs::Node;
use iwarp_config::Config;
use serde::Serialize;

use crate::{Cores, Machine, PAYLOADS, Progress, Report, size};

pub use copy::CopyRow;
pub use handoff::{Handoff, HandoffRow, Prepared};
pub use lines::LinesRow;
pub(crate) use round_trip::{HISTOGRAM_MAX_NS, interruptions, round_trips};
pub use round_trip::{InterruptionsRow, RoundTripRow};

/// Duration of the measurement of round trips, and of interruptions, seconds.
pub(crate) const ROUND_TRIP_S: f64 = 0.5;

/// Command-line flags of `roofline`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Options {
    /// Duration of a measurement, seconds.
    #[arg(short = 'D', long, value_name = "SECONDS", default_value_t = 2.0)]
    duration: f64,
    /// Runs per result; the median counts.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Size of the source region and of the destination region of the hand-off.
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "64M")]
    region: u64,
    /// Buffers that circulate between the two cores.
    #[arg(long, default_value_t = 256)]
    buffers: usize,
    /// CPUs of sender and receiver, pinned.
    #[arg(long, value_name = "A,B", default_value = "0,1")]
    cores: Cores,
}

/// The measured limits of the machine.
#[derive(Clone, Debug, Serialize)]
pub struct Roofline {
    /// Hand-off from one core to another.
    pub handoff: Vec<HandoffRow>,
    /// Copies and CRC32c on one core.
    pub copy: Vec<CopyRow>,
    /// Independent cache misses on one core.
    pub lines: Vec<LinesRow>,
    /// Round trip of one small frame to the other core.
    pub round_trip: Vec<RoundTripRow>,
    /// Interruptions of either core by the machine.
    pub interruptions: Vec<InterruptionsRow>,
}

/// Measures all limits.
///
/// # Errors
/// There is not enough memory, or a CPU is not available.
pub fn run(options: &Options) -> Result<Roofline> {
    let progress = Progress::new(PAYLOADS.len() * (1 + copy::LEVELS) + 2);
    let Options { duration: seconds, runs, region: region_bytes, buffers, cores } = *options;
    let measure = Handoff { cores, region_bytes, buffers, seconds, runs };
    let mut handoff = Vec::new();
    for payload in PAYLOADS {
        progress.step(format!("hand-off, {payload} bytes"));
        handoff.push(measure.measure(payload)?);
    }
    options.cores.pin_first()?;
    let copy = copy::measure(options, &Machine::here(), &progress);
    let lines = lines::measure(options, &progress);
    progress.step("round trip of a small frame".to_owned());
    // Together they take a second.
    let [left, right] = configs(cores)?;
    let eal = Node::start_dpdk(&[&left, &right])?;
    let round_trip = round_trips(&eal, cores, ROUND_TRIP_S)?;
    let interruptions = interruptions(cores, ROUND_TRIP_S, round_trip.p50_ns)?;
    Ok(Roofline {
        handoff,
        copy,
        lines: vec![lines],
        round_trip: vec![round_trip],
        interruptions: interruptions.into(),
    })
}

/// Returns configurations that start DPDK with memory for two rings and few buffers.
fn configs(Cores([left, right]): Cores) -> Result<[Config; 2]> {
    let config = |core: usize| {
        let text = format!(
            "[memory]\nhugepages = 'prefer'\npacket_buffers = 4095\nfile_prefix = 'iwarp-bench-{}'\n\
             [[port]]\ndriver = 'ring'\naddresses = ['10.99.0.1/24']\n[workers]\ncores = [{core}]\n",
            std::process::id()
        );
        Config::parse("iwarp-bench", &text).map_err(|errors| anyhow!("{}", errors.render(false)))
    };
    Ok([config(left)?, config(right)?])
}

impl Report for Roofline {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\nhand-off: one copy in, one copy out, two cores, no protocol")?;
        writeln!(out, "{:>8} {:>12} {:>12} {:>14}", "#bytes", "region[MiB]", "BW[Gb/s]", "frames[M/s]")?;
        for row in &self.handoff {
            let (payload, region) = (row.payload, row.region_bytes >> 20);
            writeln!(out, "{payload:>8} {region:>12} {:>12.2} {:>14.3}", row.gbps, row.frames_per_us)?;
        }
        writeln!(out, "\none core, into a buffer in its cache")?;
        writeln!(
            out,
            "{:>8} {:>6} {:>14} {:>12} {:>12} {:>12}",
            "#bytes", "from", "working[KiB]", "copy[Gb/s]", "+CRC[Gb/s]", "CRC[Gb/s]"
        )?;
        for row in &self.copy {
            writeln!(
                out,
                "{:>8} {:>6} {:>14} {:>12.1} {:>12.1} {:>12.1}",
                row.payload,
                row.from,
                row.working_set_bytes >> 10,
                row.copy_gbps,
                row.copy_crc_gbps,
                row.crc_gbps
            )?;
        }
        writeln!(out, "\none core, independent cache misses at random addresses")?;
        writeln!(out, "{:>14} {:>12}", "working[MiB]", "line[ns]")?;
        for row in &self.lines {
            writeln!(out, "{:>14} {:>12.1}", row.working_set_bytes >> 20, row.ns)?;
        }
        for row in &self.round_trip {
            row.print(out)?;
        }
        writeln!(out, "\na loop that only reads the clock: interruptions per second that are longer than")?;
        writeln!(out, "{:>8} {:>16} {:>12} {:>12}", "CPU", "5 round trips", "20 us", "50 us")?;
        for row in &self.interruptions {
            let [five, twenty, fifty] = [row.over_5_p50_per_s, row.over_20_us_per_s, row.over_50_us_per_s];
            writeln!(out, "{:>8} {five:>16.0} {twenty:>12.0} {fifty:>12.0}", row.cpu)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configurations_are_valid() {
        assert_eq!(configs(Cores([0, 1])).unwrap().map(|config| config.workers.cores), [[0], [1]]);
    }
}
