//! The machine's limits, which the other figures are divided by.

mod copy;
mod handoff;

use std::io::{self, Write};

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use crate::{Cores, Machine, PAYLOADS, Progress, Report, size};

pub use copy::CopyRow;
pub use handoff::{Handoff, HandoffRow, Prepared};

/// What to measure.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Options {
    /// Seconds per figure.
    #[arg(short = 'D', long, value_name = "SECONDS", default_value_t = 2.0)]
    duration: f64,
    /// Runs per figure; the median counts.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Size of the region that the hand-off copies into, and of the one it copies from.
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "64M")]
    region: u64,
    /// Buffers that go round between the two cores.
    #[arg(long, default_value_t = 256)]
    buffers: usize,
    /// CPUs: sender, receiver.
    #[arg(long, value_name = "A,B", default_value = "0,1")]
    cores: Cores,
}

/// The limits.
#[derive(Clone, Debug, Serialize)]
pub struct Roofline {
    /// From one core to another.
    pub handoff: Vec<HandoffRow>,
    /// On one core.
    pub copy: Vec<CopyRow>,
}

/// Measures them.
///
/// # Errors
/// Not enough memory, or a CPU that cannot be had.
pub fn run(options: &Options) -> Result<Roofline> {
    let progress = Progress::new(PAYLOADS.len() * (1 + copy::LEVELS));
    let Options { duration: seconds, runs, region: region_bytes, buffers, cores } = *options;
    let measure = Handoff { cores, region_bytes, buffers, seconds, runs };
    let mut handoff = Vec::new();
    for payload in PAYLOADS {
        progress.step(format!("hand-off, {payload} octets"));
        handoff.push(measure.measure(payload)?);
    }
    options.cores.pin_first()?;
    let copy = copy::measure(options, &Machine::here(), &progress);
    Ok(Roofline { handoff, copy })
}

impl Report for Roofline {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\nhand-off: one copy in, one copy out, two cores, no protocol")?;
        writeln!(out, "{:>8} {:>12} {:>12} {:>14}", "#bytes", "region[MiB]", "BW[Gb/s]", "frames[M/s]")?;
        for row in &self.handoff {
            let (payload, region) = (row.payload, row.region_bytes >> 20);
            writeln!(out, "{payload:>8} {region:>12} {:>12.2} {:>14.3}", row.gbps, row.frames_per_us)?;
        }
        writeln!(out, "\none core, into a buffer that lies in its cache")?;
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
        Ok(())
    }
}
